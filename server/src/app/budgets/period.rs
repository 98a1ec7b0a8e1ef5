//! The period of a budget that a moment lies in.

use chrono::{Datelike, Months, NaiveDate, NaiveTime};
use domain::Timestamp;
use domain::budget::{BudgetPeriod, Elapsed};

use crate::store::budgets::Budget;

/// A half-open span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// From then on.
    pub from: Timestamp,
    /// Up to before then.
    pub to: Timestamp,
}

impl Period {
    /// The one that a moment lies in: months and quarters of UTC, as use is added up everywhere. None before a grant
    /// and after it.
    pub fn at(budget: &Budget, now: Timestamp) -> Option<Self> {
        let months = match budget.period {
            BudgetPeriod::Month => 1,
            BudgetPeriod::Quarter => 3,
            BudgetPeriod::Grant => {
                let (from, to) = budget.starts_at.zip(budget.ends_at)?;
                return (from <= now && now < to).then_some(Self { from, to });
            }
        };
        let month = now.month0() / months * months + 1;
        let from = NaiveDate::from_ymd_opt(now.year(), month, 1)?;
        let to = from.checked_add_months(Months::new(months))?;
        let midnight = |day: NaiveDate| day.and_time(NaiveTime::MIN).and_utc();
        Some(Self {
            from: midnight(from),
            to: midnight(to),
        })
    }

    /// How much of it has passed at a moment.
    pub fn elapsed(self, now: Timestamp) -> Elapsed {
        Elapsed {
            elapsed_seconds: (now - self.from).num_seconds().max(0),
            period_seconds: (self.to - self.from).num_seconds(),
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::budget::{BudgetStop, BudgetUnit};
    use domain::ids::{BudgetId, TeamId};

    use super::*;

    fn budget(period: BudgetPeriod) -> Budget {
        Budget {
            id: BudgetId::new(),
            team_id: TeamId::new(),
            team: "vision".parse().expect("a name"),
            name: "b".parse().expect("a name"),
            unit: BudgetUnit::GpuHours,
            currency: None,
            amount: 1.into(),
            period,
            starts_at: Some(time("2026-02-10T00:00:00Z")),
            ends_at: Some(time("2026-05-01T00:00:00Z")),
            thresholds: serde_json::json!([]),
            hard: false,
            stopped: BudgetStop::None,
            version: 1,
        }
    }

    fn time(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn months_and_quarters_are_half_open_and_a_grant_has_one() {
        let at = |period, now| {
            let period = Period::at(&budget(period), time(now))?;
            Some((
                domain::time::format(period.from),
                domain::time::format(period.to),
            ))
        };
        let is = |from: &str, to: &str| Some((from.to_owned(), to.to_owned()));
        assert_eq!(
            at(BudgetPeriod::Month, "2026-12-31T23:59:59Z"),
            is("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")
        );
        assert_eq!(
            at(BudgetPeriod::Quarter, "2026-06-30T23:59:59Z"),
            is("2026-04-01T00:00:00Z", "2026-07-01T00:00:00Z")
        );
        assert_eq!(at(BudgetPeriod::Grant, "2026-02-09T23:59:59Z"), None);
        assert_eq!(
            at(BudgetPeriod::Grant, "2026-02-10T00:00:00Z"),
            is("2026-02-10T00:00:00Z", "2026-05-01T00:00:00Z")
        );
        assert_eq!(at(BudgetPeriod::Grant, "2026-05-01T00:00:00Z"), None);
    }
}
