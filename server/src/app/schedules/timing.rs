//! When a schedule is due, and of which span its report then is, by the clocks of its zone.

use chrono::{Datelike, Days, Months, NaiveDate, NaiveTime, TimeZone};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::CronParser;
use domain::FieldError;
use domain::Timestamp;
use domain::notice::ReportSpan;

/// Longest expression; a list of each minute and hour is shorter.
const CRON_CHARS_MAX: usize = 200;
/// Most hours that clocks have skipped at once: a day, where the date line moved.
const SKIPPED_HOURS_MAX: u32 = 24;

/// A cron expression with its zone.
#[derive(Debug, Clone)]
pub struct Timing {
    cron: Cron,
    zone: Tz,
}

impl Timing {
    /// Reads one of five fields: minute, hour, day of the month, month, day of the week.
    pub fn read(cron: &str, zone: &str) -> Result<Self, FieldError> {
        let zone = zone.parse().map_err(|_| {
            FieldError::new(
                "time_zone",
                zone,
                "a time zone of the IANA database, such as Asia/Shanghai",
            )
        })?;
        let refused = || {
            FieldError::new(
                "cron",
                cron,
                "five fields (minute, hour, day of the month, month, day of the week), such as 0 6 1 * *",
            )
        };
        if cron.len() > CRON_CHARS_MAX || cron.split_whitespace().count() != 5 {
            return Err(refused());
        }
        let cron = CronParser::new().parse(cron).map_err(|_| refused())?;
        Ok(Self { cron, zone })
    }

    /// When it is due after a moment; none where it never is. Where clocks skip its time it is due when they go on,
    /// and where they show it twice once.
    pub fn after(&self, at: Timestamp) -> Option<Timestamp> {
        let local = at.with_timezone(&self.zone);
        let next = self.cron.find_next_occurrence(&local, false).ok()?;
        Some(next.with_timezone(&chrono::Utc))
    }

    /// The last whole span before a moment.
    pub fn span(&self, covers: ReportSpan, due: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let today = due.with_timezone(&self.zone).date_naive();
        let (from, to) = match covers {
            ReportSpan::Day => (today.checked_sub_days(Days::new(1))?, today),
            ReportSpan::Week => {
                let gone = u64::from(today.weekday().num_days_from_monday());
                let monday = today.checked_sub_days(Days::new(gone))?;
                (monday.checked_sub_days(Days::new(7))?, monday)
            }
            ReportSpan::Month => {
                let first = today.with_day(1)?;
                (first.checked_sub_months(Months::new(1))?, first)
            }
        };
        Some((self.midnight(from)?, self.midnight(to)?))
    }

    /// The first moment of a day there.
    fn midnight(&self, day: NaiveDate) -> Option<Timestamp> {
        let mut shown = day.and_time(NaiveTime::MIN);
        (0..=SKIPPED_HOURS_MAX).find_map(|_| {
            let found = self.zone.from_local_datetime(&shown).earliest();
            shown += chrono::TimeDelta::hours(1);
            found.map(|at| at.with_timezone(&chrono::Utc))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn next(cron: &str, zone: &str, at: &str) -> String {
        let timing = Timing::read(cron, zone).expect("a timing");
        domain::time::format(timing.after(time(at)).expect("a time"))
    }

    #[test]
    fn a_schedule_follows_the_clocks_of_its_zone_over_changes_of_daylight_saving() {
        assert_eq!(
            next("0 6 1 * *", "Asia/Shanghai", "2026-01-15T00:00:00Z"),
            "2026-01-31T22:00:00Z"
        );
        // On the last Sunday of March Berlin goes from 01:00 UTC on by 02:00 UTC, and half past two is not shown.
        let berlin = "Europe/Berlin";
        assert_eq!(
            next("0 6 * * *", berlin, "2026-03-28T12:00:00Z"),
            "2026-03-29T04:00:00Z"
        );
        assert_eq!(
            next("0 6 * * *", berlin, "2026-03-27T12:00:00Z"),
            "2026-03-28T05:00:00Z"
        );
        let skipped = next("30 2 * * *", berlin, "2026-03-28T12:00:00Z");
        assert!(skipped.starts_with("2026-03-29T01:"), "{skipped}");
        // On the last Sunday of October half past two is shown twice, and is due once.
        let first = next("30 2 * * *", berlin, "2026-10-24T12:00:00Z");
        assert_eq!(first, "2026-10-25T00:30:00Z");
        assert_eq!(next("30 2 * * *", berlin, &first), "2026-10-26T01:30:00Z");
    }

    #[test]
    fn a_report_is_of_the_last_whole_span_there() {
        let timing = Timing::read("0 6 1 * *", "Europe/Berlin").expect("a timing");
        let span = |covers, due| {
            let (from, to) = timing.span(covers, time(due)).expect("a span");
            (domain::time::format(from), domain::time::format(to))
        };
        let is = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        assert_eq!(
            span(ReportSpan::Month, "2026-04-01T04:00:00Z"),
            is("2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z")
        );
        assert_eq!(
            span(ReportSpan::Day, "2026-03-30T04:00:00Z"),
            is("2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z")
        );
        assert_eq!(
            span(ReportSpan::Week, "2026-01-07T04:00:00Z"),
            is("2025-12-28T23:00:00Z", "2026-01-04T23:00:00Z")
        );
    }

    #[test]
    fn what_is_no_expression_or_no_zone_is_refused_by_name() {
        for cron in [
            "",
            "* * * *",
            "0 0 0 1 1 *",
            "61 * * * *",
            "@daily",
            "a b c d e",
        ] {
            assert_eq!(Timing::read(cron, "UTC").expect_err(cron).field, "cron");
        }
        assert_eq!(
            Timing::read("* * * * *", "Mars/Olympus")
                .expect_err("none")
                .field,
            "time_zone"
        );
    }
}
