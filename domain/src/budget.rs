//! Words of budgets, and the two rules by which it is foretold where a period will end.

use rust_decimal::Decimal;

use crate::text_enum::text_enum;

text_enum!(
    /// What a budget is counted in.
    BudgetUnit, "unit" {
        /// An amount of money.
        Money = "money",
        /// Hours of a GPU.
        GpuHours = "gpu_hours",
    }
);

text_enum!(
    /// For what a budget is given.
    BudgetPeriod, "period" {
        /// Each month of UTC.
        Month = "month",
        /// Each quarter of a year of UTC.
        Quarter = "quarter",
        /// Once, from a beginning to an end.
        Grant = "grant",
    }
);

text_enum!(
    /// What a threshold looks at.
    Measure, "measure" {
        /// What was used so far.
        Actual = "actual",
        /// Where the period will end, by the higher of the two forecasts.
        Forecast = "forecast",
    }
);

text_enum!(
    /// What is done once a threshold is passed; each includes those before it.
    BudgetAction, "action" {
        /// Who asked to hear of it is told.
        Notify = "notify",
        /// Nothing is borrowed any more, and what runs of what was borrowed gives way.
        StopBorrowing = "stop_borrowing",
        /// Nothing new starts; what runs inside the guarantee runs on.
        StopNew = "stop_new",
    }
);

text_enum!(
    /// What a budget stops now.
    BudgetStop, "stopped" {
        /// Nothing.
        None = "none",
        /// What is borrowed.
        Borrowing = "borrowing",
        /// All that is new.
        All = "all",
    }
);

impl BudgetAction {
    /// What it stops.
    pub fn stops(self) -> BudgetStop {
        match self {
            Self::Notify => BudgetStop::None,
            Self::StopBorrowing => BudgetStop::Borrowing,
            Self::StopNew => BudgetStop::All,
        }
    }
}

/// A moment of a period, in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed {
    /// Seconds since the period began.
    pub elapsed_seconds: i64,
    /// Seconds of the whole period.
    pub period_seconds: i64,
}

/// Where the period will end if it goes on as it went since its beginning: what was used, divided by the share of the
/// period that has passed. Nothing at its very beginning, where one job would stand for a month.
pub fn forecast_linear(used: Decimal, at: Elapsed) -> Option<Decimal> {
    if at.elapsed_seconds < FORECAST_SECONDS_MIN {
        return None;
    }
    let elapsed = at.elapsed_seconds.min(at.period_seconds);
    used.checked_mul(Decimal::from(at.period_seconds))?
        .checked_div(Decimal::from(elapsed))
}

/// Where the period will end if it goes on as it went for the last `window_seconds`: what was used, and for the rest of
/// the period the rate of that window.
pub fn forecast_recent(
    used: Decimal,
    used_in_window: Decimal,
    window_seconds: i64,
    at: Elapsed,
) -> Option<Decimal> {
    if window_seconds < FORECAST_SECONDS_MIN {
        return None;
    }
    let left = (at.period_seconds - at.elapsed_seconds).max(0);
    let rest = used_in_window
        .checked_mul(Decimal::from(left))?
        .checked_div(Decimal::from(window_seconds))?;
    used.checked_add(rest)
}

/// No forecast is made of less than a day: daily rhythms would be taken for a trend.
pub const FORECAST_SECONDS_MIN: i64 = 24 * 3_600;
/// The window of the recent rate: each day of the week is in it once.
pub const RECENT_SECONDS: i64 = 7 * 24 * 3_600;

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3_600;

    /// T-3.14: 4,800 spent in 12 of 30 days, the last 7 days at 600 each.
    #[test]
    fn a_forecast_goes_on_as_the_whole_period_or_as_the_last_week_went() {
        let at = Elapsed {
            elapsed_seconds: 12 * DAY,
            period_seconds: 30 * DAY,
        };
        let used = Decimal::from(4_800);
        assert_eq!(forecast_linear(used, at), Some(Decimal::from(12_000)));
        let recent = forecast_recent(used, Decimal::from(4_200), RECENT_SECONDS, at);
        assert_eq!(recent, Some(Decimal::from(15_600)));
    }

    #[test]
    fn nothing_is_foretold_of_a_period_that_has_hardly_begun() {
        let at = Elapsed {
            elapsed_seconds: DAY - 1,
            period_seconds: 30 * DAY,
        };
        assert_eq!(forecast_linear(Decimal::ONE, at), None);
        assert_eq!(
            forecast_recent(Decimal::ONE, Decimal::ONE, DAY - 1, at),
            None
        );
    }

    #[test]
    fn when_a_period_is_over_both_forecasts_are_what_was_used() {
        let at = Elapsed {
            elapsed_seconds: 30 * DAY,
            period_seconds: 30 * DAY,
        };
        let used = Decimal::from(70);
        assert_eq!(forecast_linear(used, at), Some(used));
        assert_eq!(forecast_recent(used, used, RECENT_SECONDS, at), Some(used));
    }
}
