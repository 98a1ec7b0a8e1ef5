//! The calendar of a pool's bookings: some weeks, day by day.

use chrono::{Datelike, Days, NaiveDate};
use domain::Timestamp;
use domain::name::Name;
use domain::weekly::{Day, Zone};
use web::views::{CalendarCell, CalendarDay, CalendarWeek};

use super::lanes::{Part, pack};
use crate::app::AppError;
use crate::app::bookings::Booking;

/// Weeks of the calendar: a month of it is seen at once.
const WEEKS: u64 = 4;
/// Days of a week.
const WEEK_DAYS: u64 = 7;

/// The weeks that are shown, by the clocks of the organisation.
#[derive(Debug)]
pub struct Calendar {
    /// The organisation's time zone.
    pub zone: Zone,
    monday: NaiveDate,
    today: NaiveDate,
}

impl Calendar {
    /// The weeks from that of a day on, or from the present one.
    pub fn of(zone: Zone, day: Option<&str>, now: Timestamp) -> Result<Self, AppError> {
        let today = date(&zone.local(now)).ok_or_else(|| AppError::not_found("day", now))?;
        let day = match day {
            None => today,
            Some(text) => date(text)
                .ok_or_else(|| AppError::invalid("week", text, "a day such as 2026-11-30"))?,
        };
        let monday = day.checked_sub_days(Days::new(day.weekday().num_days_from_monday().into()));
        Ok(Self {
            zone,
            monday: monday.unwrap_or(day),
            today,
        })
    }

    /// When the weeks begin and end.
    pub fn span(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        (self.midnight(0), self.midnight(WEEKS * WEEK_DAYS))
    }

    /// When a day begins there, so many days after the first one that is shown.
    fn midnight(&self, later: u64) -> Option<Timestamp> {
        let day = self.monday.checked_add_days(Days::new(later))?;
        self.zone.moment(&format!("{day}T00:00"))
    }

    /// The first day of these weeks, of those before them and of those after them.
    pub fn steps(&self, pool: &Name) -> [String; 3] {
        let days = Days::new(WEEKS * WEEK_DAYS);
        let before = self.monday.checked_sub_days(days);
        let after = self.monday.checked_add_days(days);
        [before, None, after].map(|day| match day {
            Some(day) => format!("/pools/{pool}/bookings?week={day}"),
            None => format!("/pools/{pool}/bookings"),
        })
    }

    /// The weeks with these bookings, each by its place in the list.
    pub fn weeks(&self, bookings: &[Booking]) -> Vec<CalendarWeek> {
        (0..WEEKS)
            .filter_map(|week| {
                let first = week * WEEK_DAYS;
                let edges: Option<Vec<Timestamp>> = (0..=WEEK_DAYS)
                    .map(|day| self.midnight(first + day))
                    .collect();
                Some(CalendarWeek {
                    days: (0..WEEK_DAYS)
                        .filter_map(|day| self.day(first + day))
                        .collect(),
                    lanes: lanes(bookings, &edges?),
                })
            })
            .collect()
    }

    fn day(&self, later: u64) -> Option<CalendarDay> {
        let day = self.monday.checked_add_days(Days::new(later))?;
        Some(CalendarDay {
            weekday: Day::ALL[day.weekday().num_days_from_monday() as usize].as_str(),
            day: day.day(),
            month: day.month(),
            today: day == self.today,
        })
    }
}

/// The day of a moment as clocks show it, or of a day alone.
pub fn date(text: &str) -> Option<NaiveDate> {
    let day = text.split('T').next()?;
    NaiveDate::parse_from_str(day, "%Y-%m-%d").ok()
}

/// The bookings that reach into the days between these edges, in as few lines as they need.
fn lanes(bookings: &[Booking], edges: &[Timestamp]) -> Vec<Vec<CalendarCell>> {
    let days = edges.len() - 1;
    let here = bookings.iter().enumerate();
    let here = here.filter(|(_, b)| b.to > edges[0] && b.from < edges[days]);
    let spans = here.map(|(place, booking)| {
        let first = edges.partition_point(|edge| *edge <= booking.from).max(1) - 1;
        let last = edges.partition_point(|edge| *edge < booking.to).min(days);
        (first, last, place)
    });
    let cell = |part: Part| CalendarCell {
        days: part.length,
        booking: part.of,
    };
    pack(spans.collect(), days)
        .into_iter()
        .map(|lane| lane.into_iter().map(cell).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use domain::MilliGpu;

    use super::*;
    use crate::app::bookings::BookingState;

    fn at(day: u32, hour: u32) -> Timestamp {
        format!("2026-11-{day:02}T{hour:02}:00:00Z")
            .parse()
            .expect("a time")
    }

    fn booking(name: &str, from: Timestamp, to: Timestamp) -> Booking {
        Booking {
            name: name.parse().expect("a name"),
            pool: "h100".parse().expect("a name"),
            team: "vision".parse().expect("a name"),
            gpus: MilliGpu::whole(4),
            from,
            to,
            state: BookingState::Ahead,
            conflicts: Vec::new(),
            conflict_since: None,
            version: 1,
        }
    }

    #[test]
    fn a_booking_takes_the_days_that_it_touches_and_no_others() {
        let calendar = Calendar::of(Zone::UTC, Some("2026-11-04"), at(20, 0)).expect("weeks");
        let weeks = calendar.weeks(&[
            booking("before", at(1, 0), at(2, 0)),
            booking("weekend", at(1, 0), at(3, 0)),
            booking("long", at(8, 23), at(9, 1)),
        ]);
        let told: Vec<_> = weeks
            .iter()
            .map(|week| {
                let cells = week.lanes.iter().flatten();
                (
                    week.days[0].day,
                    cells.map(|c| (c.days, c.booking)).collect::<Vec<_>>(),
                )
            })
            .collect();
        assert_eq!(told[0], (2, vec![(1, Some(1)), (5, None), (1, Some(2))]));
        assert_eq!(told[1], (9, vec![(1, Some(2)), (6, None)]));
        assert!(weeks[2].days[4].today && !weeks[2].days[3].today);
        assert!(Calendar::of(Zone::UTC, Some("tomorrow"), at(1, 0)).is_err());
    }
}
