//! Windows that come again each week: on these days, from one time of day to another, in a time zone.

use chrono::{Datelike, Days, NaiveDate, NaiveTime, TimeDelta, TimeZone};
use serde::{Deserialize, Serialize};

use crate::text_enum::text_enum;
use crate::{FieldError, Timestamp};

text_enum!(
    /// A day of the week.
    Day, "days" {
        /// Monday.
        Mon = "mon",
        /// Tuesday.
        Tue = "tue",
        /// Wednesday.
        Wed = "wed",
        /// Thursday.
        Thu = "thu",
        /// Friday.
        Fri = "fri",
        /// Saturday.
        Sat = "sat",
        /// Sunday.
        Sun = "sun",
    }
);

impl Day {
    fn of(date: NaiveDate) -> Self {
        Self::ALL[date.weekday().num_days_from_monday() as usize]
    }
}

/// Minutes of a day.
const DAY_MINUTES: u16 = 24 * 60;

/// A time of day, to the minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay(u16);

impl TimeOfDay {
    /// The time that lies so many minutes after midnight; nothing beyond the day.
    pub fn from_minutes(minutes: u16) -> Option<Self> {
        (minutes < DAY_MINUTES).then_some(Self(minutes))
    }

    /// Minutes since midnight.
    pub fn minutes(self) -> u16 {
        self.0
    }

    fn clock(self) -> NaiveTime {
        let (hour, minute) = (u32::from(self.0) / 60, u32::from(self.0) % 60);
        NaiveTime::from_hms_opt(hour, minute, 0).expect("it lies in a day")
    }
}

impl std::fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl std::str::FromStr for TimeOfDay {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || FieldError::new("time", text, "a time of day such as 22:30");
        let digits = |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit());
        let (hours, minutes) = text
            .split_once(':')
            .filter(|(hours, minutes)| digits(hours) && digits(minutes))
            .ok_or_else(refused)?;
        let number = |part: &str| part.parse::<u16>().map_err(|_| refused());
        let (hours, minutes) = (number(hours)?, number(minutes)?);
        if minutes >= 60 {
            return Err(refused());
        }
        Self::from_minutes(hours * 60 + minutes).ok_or_else(refused)
    }
}

/// A time zone by its name in the IANA database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone(chrono_tz::Tz);

impl Zone {
    /// UTC.
    pub const UTC: Self = Self(chrono_tz::UTC);

    /// What clocks there show at a moment, to the minute, as `2026-12-01T09:00`.
    pub fn local(self, at: Timestamp) -> String {
        at.with_timezone(&self.0)
            .format("%Y-%m-%dT%H:%M")
            .to_string()
    }

    /// The moment at which clocks there show such a time, to the minute or the second; where they
    /// show it twice the first, where they skip it the one at which they go on.
    pub fn moment(self, shown: &str) -> Option<Timestamp> {
        let (date, time) = shown.split_once('T')?;
        let date = NaiveDate::parse_from_str(date, "%Y-%m-%d").ok()?;
        let minutes = time.get(..MINUTES_CHARS)?;
        let seconds = &time[MINUTES_CHARS..];
        if !seconds.is_empty() && seconds != ":00" {
            return None;
        }
        self.first(date, minutes.parse().ok()?)
    }

    /// The midnight at which the week of a moment begins there, and so many weeks later or earlier.
    pub fn week(self, at: Timestamp, later: i64) -> Option<Timestamp> {
        let date = at.with_timezone(&self.0).date_naive();
        let days = later.checked_mul(7)? - i64::from(date.weekday().num_days_from_monday());
        let monday = date.checked_add_signed(TimeDelta::try_days(days)?)?;
        self.first(monday, TimeOfDay(0))
    }

    /// The first moment at which clocks there show this time or, where they skip it, a later one.
    fn first(self, date: NaiveDate, time: TimeOfDay) -> Option<Timestamp> {
        let mut shown = date.and_time(time.clock());
        (0..=SKIPPED_MINUTES_MAX).find_map(|_| {
            let found = self.0.from_local_datetime(&shown).earliest();
            shown += TimeDelta::minutes(1);
            found.map(|at| at.with_timezone(&chrono::Utc))
        })
    }
}

/// Characters of a time of day to the minute.
const MINUTES_CHARS: usize = "22:30".len();
/// Most minutes that clocks have skipped at once: a day, where the date line moved.
const SKIPPED_MINUTES_MAX: u32 = 24 * 60;

impl std::fmt::Display for Zone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

impl std::str::FromStr for Zone {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let remedy = "a time zone of the IANA database, such as Asia/Shanghai";
        text.parse()
            .map(Self)
            .map_err(|_| FieldError::new("time_zone", text, remedy))
    }
}

macro_rules! as_text {
    ($name:ident, $example:literal) => {
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .examples([$example])
                    .into()
            }
        }
        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}
    };
}

as_text!(TimeOfDay, "22:30");
as_text!(Zone, "Asia/Shanghai");

/// When a window is open. One that ends no later in the day than it begins ends on the next day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weekly {
    /// The days on which it begins.
    pub days: Vec<Day>,
    /// When it begins.
    pub from: TimeOfDay,
    /// When it ends.
    pub to: TimeOfDay,
    /// Whose clocks are meant.
    pub zone: Zone,
}

/// One opening of a window, half open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Opening {
    /// When it begins.
    pub from: Timestamp,
    /// When it ends.
    pub to: Timestamp,
}

/// Days on either side of a moment on which an opening may have begun that matters to it: one
/// lasts a day at most, and clocks differ by less than another.
const MARGIN_DAYS: u64 = 2;

impl Weekly {
    /// The openings that lie in, or reach into, the time between two moments; in order.
    pub fn openings(&self, from: Timestamp, to: Timestamp) -> Vec<Opening> {
        let date = |at: Timestamp| at.with_timezone(&self.zone.0).date_naive();
        let first = date(from).checked_sub_days(Days::new(MARGIN_DAYS));
        let last = date(to).checked_add_days(Days::new(MARGIN_DAYS));
        let (Some(first), Some(last)) = (first, last) else {
            return Vec::new();
        };
        let days = first.iter_days().take_while(|day| *day <= last);
        days.filter(|day| self.days.contains(&Day::of(*day)))
            .filter_map(|day| self.opening(day))
            .filter(|opening| opening.from < to && from < opening.to)
            .collect()
    }

    fn opening(&self, day: NaiveDate) -> Option<Opening> {
        let last = if self.to > self.from {
            day
        } else {
            day.succ_opt()?
        };
        let (from, to) = (
            self.zone.first(day, self.from)?,
            self.zone.first(last, self.to)?,
        );
        (from < to).then_some(Opening { from, to })
    }

    /// The opening that holds at a moment, if one does.
    pub fn open_at(&self, at: Timestamp) -> Option<Opening> {
        self.openings(at, at + TimeDelta::microseconds(1)).pop()
    }

    /// The next moment after `at` at which it opens or closes.
    pub fn next_edge(&self, at: Timestamp) -> Option<Timestamp> {
        let openings = self.openings(at, at + TimeDelta::days(8));
        let edges = openings.into_iter().flat_map(|o| [o.from, o.to]);
        edges.filter(|edge| *edge > at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weekly(days: &[Day], from: &str, to: &str, zone: &str) -> Weekly {
        Weekly {
            days: days.to_vec(),
            from: from.parse().expect("a time"),
            to: to.parse().expect("a time"),
            zone: zone.parse().expect("a zone"),
        }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn a_night_begins_on_its_day_and_ends_on_the_next() {
        // 2026-01-05 is a Monday; Shanghai is eight hours ahead.
        let nights = weekly(&[Day::Mon], "22:00", "06:00", "Asia/Shanghai");
        for (moment, open) in [
            ("2026-01-05T13:59:59Z", false),
            ("2026-01-05T14:00:00Z", true),
            ("2026-01-05T21:59:59Z", true),
            ("2026-01-05T22:00:00Z", false),
            ("2026-01-06T14:00:00Z", false),
        ] {
            assert_eq!(nights.open_at(at(moment)).is_some(), open, "{moment}");
        }
        let edge = |from: &str| nights.next_edge(at(from)).expect("it comes again");
        assert_eq!(edge("2026-01-05T13:00:00Z"), at("2026-01-05T14:00:00Z"));
        assert_eq!(edge("2026-01-05T14:00:00Z"), at("2026-01-05T22:00:00Z"));
        assert_eq!(edge("2026-01-05T22:00:00Z"), at("2026-01-12T14:00:00Z"));
    }

    #[test]
    fn a_window_that_ends_when_it_begins_lasts_a_day() {
        let day = weekly(&[Day::Sat], "00:00", "00:00", "UTC");
        let opening = day.open_at(at("2026-01-10T12:00:00Z")).expect("open");
        assert_eq!(
            (opening.from, opening.to),
            (at("2026-01-10T00:00:00Z"), at("2026-01-11T00:00:00Z"))
        );
    }

    #[test]
    fn clocks_that_are_put_forward_and_back_neither_lose_nor_repeat_a_window() {
        let small_hours = weekly(&[Day::Sun], "01:30", "02:30", "Europe/Berlin");
        // Forward on 2026-03-29: 02:00 is 03:00, so that it ends then.
        let forward = small_hours.openings(at("2026-03-28T12:00:00Z"), at("2026-03-29T12:00:00Z"));
        assert_eq!(
            forward,
            [Opening {
                from: at("2026-03-29T00:30:00Z"),
                to: at("2026-03-29T01:00:00Z")
            }]
        );
        // Back on 2026-10-25: 02:30 comes twice, and the first ends it.
        let back = small_hours.openings(at("2026-10-24T12:00:00Z"), at("2026-10-25T12:00:00Z"));
        assert_eq!(
            back,
            [Opening {
                from: at("2026-10-24T23:30:00Z"),
                to: at("2026-10-25T00:30:00Z")
            }]
        );
        // One that lies in what is skipped alone does not open.
        let skipped = weekly(&[Day::Sun], "02:10", "02:50", "Europe/Berlin");
        assert_eq!(skipped.open_at(at("2026-03-29T01:00:00Z")), None);
    }

    #[test]
    fn a_moment_is_shown_by_the_clocks_of_its_zone_and_read_back() {
        let berlin: Zone = "Europe/Berlin".parse().expect("a zone");
        let moment = at("2026-12-01T08:30:00Z");
        assert_eq!(berlin.local(moment), "2026-12-01T09:30");
        assert_eq!(berlin.moment("2026-12-01T09:30"), Some(moment));
        assert_eq!(berlin.moment("2026-12-01T09:30:00"), Some(moment));
        // Skipped: the clocks go on at three.
        let skipped = berlin.moment("2026-03-29T02:30").expect("a moment");
        assert_eq!(berlin.local(skipped), "2026-03-29T03:00");
        for text in [
            "",
            "2026-12-01",
            "2026-12-01T9:30",
            "2026-12-01T09:30:05",
            "2026-13-01T09:30",
        ] {
            assert_eq!(berlin.moment(text), None, "{text}");
        }
        // 2026-12-01 is a Tuesday.
        let week = |later| berlin.week(moment, later).map(|at| berlin.local(at));
        assert_eq!(week(0).as_deref(), Some("2026-11-30T00:00"));
        assert_eq!(week(1).as_deref(), Some("2026-12-07T00:00"));
        assert_eq!(week(-1).as_deref(), Some("2026-11-23T00:00"));
    }

    #[test]
    fn times_and_zones_that_are_none_are_refused() {
        for text in ["24:00", "7:00", "07:60", "", "0700", "-1:00", "07:00:00"] {
            assert!(text.parse::<TimeOfDay>().is_err(), "{text}");
        }
        assert_eq!(
            "07:05".parse::<TimeOfDay>().expect("one").to_string(),
            "07:05"
        );
        assert!("Mars/Olympus".parse::<Zone>().is_err());
    }
}
