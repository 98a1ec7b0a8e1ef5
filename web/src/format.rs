//! Amounts, durations, money and times as every page writes them.

use std::borrow::Borrow;

use chrono::{DateTime, Datelike, Utc};
use domain::money::Money;
pub use domain::quantity::grouped;
use domain::quantity::{MILLI, MINUS};

use crate::messages::{Messages, Phrase, Whole};

/// From this many GPU-seconds on, work is told in hours.
const SECONDS_PER_HOUR: i64 = 3600;

/// What something cost: known, or in part without a price.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// The priced part; `None` when no price covers any of it.
    pub priced: Option<Money>,
    /// Whether some of the use has no price.
    pub unpriced: bool,
}

impl Cost {
    /// A cost that prices cover in full.
    pub fn priced(money: Money) -> Self {
        Self {
            priced: Some(money),
            unpriced: false,
        }
    }

    /// Two costs together. Amounts of another currency cannot be added and count as unpriced here.
    pub fn plus(self, other: Self) -> Self {
        let mixed =
            matches!((&self.priced, &other.priced), (Some(a), Some(b)) if a.currency != b.currency);
        let priced = match (self.priced, other.priced) {
            (Some(a), Some(b)) if !mixed => Some(Money {
                amount: a.amount + b.amount,
                currency: a.currency,
            }),
            (a, b) => a.or(b),
        };
        Self {
            priced,
            unpriced: self.unpriced || other.unpriced || mixed,
        }
    }

    /// Use that no price covers.
    pub fn unpriced() -> Self {
        Self {
            priced: None,
            unpriced: true,
        }
    }
}

/// How large work is, in thousandths of a GPU: all its workers together. Its size may change while it
/// runs where the two differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// What it needs at the least.
    pub least_milli: i64,
    /// What it takes at the most.
    pub most_milli: i64,
}

impl Size {
    /// Work whose size never changes.
    pub fn fixed(milli: i64) -> Self {
        Self {
            least_milli: milli,
            most_milli: milli,
        }
    }
}

/// An amount of GPUs, in thousandths, as a number: at most three decimals, no trailing zeros.
pub fn amount(milli: impl Whole) -> String {
    let milli = milli.whole();
    let whole = grouped(milli / MILLI);
    let rest = (milli % MILLI).unsigned_abs();
    if rest == 0 {
        return whole;
    }
    let sign = if milli < 0 && milli > -MILLI {
        MINUS
    } else {
        ""
    };
    format!(
        "{sign}{whole}.{}",
        format!("{rest:03}").trim_end_matches('0')
    )
}

/// Whether any of these is less than a cent, so that all of their column are written finely.
pub fn tells_small<'a>(costs: impl IntoIterator<Item = &'a Cost>) -> bool {
    let mut priced = costs.into_iter().filter_map(|cost| cost.priced.as_ref());
    priced.any(Money::less_than_a_cent)
}

impl Messages {
    /// A share, in thousandths: `68%`; where it is under one in a hundred `0.4%`.
    pub fn share(&self, milli: i64) -> Phrase {
        let shown = match milli {
            1..10 => format!("0.{milli}"),
            _ => ((milli + 5) / 10).to_string(),
        };
        self.say("unit.share").with("n", shown)
    }

    /// An amount with its unit: `2 GPUs`, `0.125 GPU`.
    pub fn gpus(&self, milli: impl Whole) -> Phrase {
        let milli = milli.whole();
        self.say_of("unit.gpus", milli).with("n", amount(milli))
    }

    /// How large work is, with its unit: `2 GPUs`; where its size may change `1 to 2 GPUs`.
    pub fn size(&self, size: impl Borrow<Size>) -> Phrase {
        let size = size.borrow();
        let unit = self.say_of("unit.gpus", size.most_milli);
        unit.nest("n", self.bare_size(size))
    }

    /// The same without its unit.
    pub fn bare_size(&self, size: impl Borrow<Size>) -> Phrase {
        let size = size.borrow();
        if size.least_milli >= size.most_milli {
            return Phrase::literal(&amount(size.least_milli));
        }
        self.say("unit.between")
            .with("least", amount(size.least_milli))
            .with("most", amount(size.most_milli))
    }

    /// The bare amount of GPUs.
    pub fn amount(&self, milli: impl Whole) -> String {
        amount(milli)
    }

    /// A whole number.
    pub fn number(&self, n: impl Whole) -> String {
        grouped(n.whole())
    }

    /// Work done, from GPU-seconds in thousandths: `48.5 GPU-h`, under an hour `40 GPU-s`.
    pub fn work(&self, milli_seconds: impl Whole) -> Phrase {
        let milli_seconds = milli_seconds.whole();
        if milli_seconds < SECONDS_PER_HOUR * MILLI {
            return self
                .say("unit.gpu_seconds")
                .with("n", amount((milli_seconds + 50) / 100 * 100));
        }
        // Thousandths of an hour, cut to hundredths.
        let milli_hours = milli_seconds / SECONDS_PER_HOUR / 10 * 10;
        self.say("unit.gpu_hours").with("n", amount(milli_hours))
    }

    /// A length of time in two units at most: `1 h 12 min`, `3 d 2 h`, `30 s`.
    pub fn duration(&self, seconds: impl Whole) -> Phrase {
        let seconds = seconds.whole().max(0);
        let (days, hours, minutes, rest) = (
            seconds / 86_400,
            seconds / 3_600 % 24,
            seconds / 60 % 60,
            seconds % 60,
        );
        let units = [
            ("unit.day", days),
            ("unit.hour", hours),
            ("unit.minute", minutes),
            ("unit.second", rest),
        ];
        let first = units
            .iter()
            .position(|(_, n)| *n > 0)
            .unwrap_or(units.len() - 1);
        let one = |(key, n): (&str, i64)| self.say(key).with("n", n);
        match units.get(first + 1).filter(|(_, n)| *n > 0) {
            Some(second) => self
                .say("unit.two")
                .nest("first", one(units[first]))
                .nest("second", one(*second)),
            None => one(units[first]),
        }
    }

    /// Memory, from MiB: in GiB when it is one or more, with one decimal at most.
    pub fn memory(&self, mib: impl Whole) -> Phrase {
        let mib = mib.whole();
        if mib < 1024 {
            return self.say("unit.mib").with("n", grouped(mib));
        }
        let tenths = (mib * 10 + 512) / 1024;
        self.say("unit.gib").with("n", amount(tenths * 100))
    }

    /// Money, as a bill writes it.
    pub fn money(&self, value: &Money) -> String {
        value.written()
    }

    /// A price.
    pub fn price(&self, value: &Money) -> String {
        value.written_finely()
    }

    /// What something cost; what has no price says so.
    pub fn cost(&self, cost: &Cost) -> Phrase {
        self.billed(cost, tells_small([cost]))
    }

    /// The same in a column, whose amounts are all written finely where one is `small`.
    pub fn billed(&self, cost: &Cost, small: bool) -> Phrase {
        let written = |value: &Money| {
            if small {
                value.written_evenly()
            } else {
                value.written()
            }
        };
        match (&cost.priced, cost.unpriced) {
            (Some(value), false) => Phrase::literal(&written(value)),
            (Some(value), true) => self
                .say("cost.partly_unpriced")
                .with("money", written(value)),
            (None, true) => self.say("cost.unpriced"),
            (None, false) => Phrase::literal("–"),
        }
    }

    /// A moment: the time alone when it is today, else with its date; the browser turns it to the reader's zone.
    pub fn moment(&self, at: &DateTime<Utc>, now: &DateTime<Utc>) -> Phrase {
        let time = at.format("%H:%M").to_string();
        let shown = if at.date_naive() == now.date_naive() {
            Phrase::literal(&time)
        } else {
            let month = self.word("month", &at.month().to_string());
            let words = if at.year() == now.year() {
                self.say("time.other_day")
            } else {
                self.say("time.other_year")
            };
            words
                .with("day", at.day())
                .nest("month", month)
                .with("year", at.year())
                .with("time", time)
        };
        let exact = at.format("%Y-%m-%dT%H:%M:%SZ").to_string();
        Phrase::markup("<time datetime=\"{exact}\" title=\"{title}\" data-moment>{shown}</time>")
            .with("exact", exact)
            .nest(
                "title",
                self.say("time.exact")
                    .with("at", at.format("%Y-%m-%d %H:%M:%S")),
            )
            .nest("shown", shown)
    }

    /// A month with its year.
    pub fn month(&self, at: &DateTime<Utc>) -> Phrase {
        self.say("time.month")
            .nest("month", self.word("month_name", &at.month().to_string()))
            .with("year", at.year())
    }

    /// How long ago something was.
    pub fn ago(&self, at: &DateTime<Utc>, now: &DateTime<Utc>) -> Phrase {
        self.say("time.ago")
            .nest("duration", self.duration((*now - *at).num_seconds()))
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeZone as _;

    use super::*;

    #[test]
    fn amounts_have_at_most_three_decimals_and_no_trailing_zeros() {
        let t = Messages::english();
        assert_eq!(t.gpus(271_250).to_string(), "271.25 GPUs");
        assert_eq!(t.gpus(125).to_string(), "0.125 GPU");
        assert_eq!(t.gpus(1000).to_string(), "1 GPU");
        assert_eq!(t.gpus(0).to_string(), "0 GPUs");
        assert_eq!(amount(-500), "\u{2212}0.5");
    }

    #[test]
    fn work_whose_size_may_change_is_told_by_least_and_most() {
        let t = Messages::english();
        let size = |least_milli, most_milli| Size {
            least_milli,
            most_milli,
        };
        assert_eq!(t.size(size(1000, 2000)).to_string(), "1 to 2 GPUs");
        assert_eq!(t.size(size(250, 1000)).to_string(), "0.25 to 1 GPU");
        assert_eq!(t.size(Size::fixed(1000)).to_string(), "1 GPU");
        assert_eq!(t.bare_size(size(1000, 2000)).to_string(), "1 to 2");
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let t = Messages::english();
        let shown = |seconds: i64| t.duration(seconds).to_string();
        assert_eq!(shown(0), "0 s");
        assert_eq!(shown(4_320), "1 h 12 min");
        assert_eq!(shown(3 * 86_400 + 2 * 3_600 + 59), "3 d 2 h");
        assert_eq!(shown(3_600 + 5), "1 h");
    }

    #[test]
    fn work_is_told_in_hours_from_one_hour_on() {
        let t = Messages::english();
        assert_eq!(t.work(40_000).to_string(), "40 GPU-s");
        assert_eq!(t.work(48 * 3_600_000 + 1_800_000).to_string(), "48.5 GPU-h");
    }

    #[test]
    fn a_moment_of_another_day_carries_its_date() {
        let t = Messages::english();
        let now = Utc.with_ymd_and_hms(2026, 11, 29, 14, 55, 0).unwrap();
        let other = Utc.with_ymd_and_hms(2026, 11, 28, 9, 5, 0).unwrap();
        assert!(t.moment(&now, &now).to_string().contains(">14:55</time>"));
        assert!(
            t.moment(&other, &now)
                .to_string()
                .contains(">28 Nov 09:05</time>")
        );
        let later = Utc.with_ymd_and_hms(2100, 1, 1, 0, 0, 0).unwrap();
        assert!(
            t.moment(&later, &now)
                .to_string()
                .contains(">1 Jan 2100 00:00</time>")
        );
    }
}
