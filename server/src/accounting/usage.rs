//! Usage: who held how much, and what it costs, as people read it.

use std::collections::BTreeMap;

use domain::Timestamp;
use domain::ids::{JobId, TeamId};
use domain::money::{Currency, Money, SHOWN_DECIMALS, round_lines};
use rust_decimal::Decimal;

use crate::store::ledger::{self, Grouping, Line, Window};
use crate::store::{self, Tx};

/// Thousandths of a GPU times microseconds in a GPU-second.
const PER_GPU_SECOND: i64 = 1_000_000_000;
/// Decimals of GPU-seconds as people read them.
pub const GPU_SECOND_DECIMALS: u32 = 3;
/// Most lines of one report; more are a matter of a narrower window or a coarser grouping.
pub const LINES_MAX: i64 = 10_000;

/// A report: rounded lines that add up to the rounded total.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The lines.
    pub lines: Vec<ReportLine>,
    /// All lines together; one for each currency, and one of nothing where there is none.
    pub totals: Vec<Sum>,
    /// Whether there are more lines than a report may have.
    pub cut: bool,
}

/// One line of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportLine {
    /// What it is of.
    pub of: Line,
    /// How much.
    pub sum: Sum,
}

/// An amount of use, rounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    /// GPU-seconds, with at most three decimals.
    pub gpu_seconds: Decimal,
    /// Of these those that no price covers.
    pub unpriced_gpu_seconds: Decimal,
    /// What the rest costs; absent where nothing is priced.
    pub cost: Option<Money>,
}

/// What was held in a window, in lines.
pub async fn report(tx: &mut Tx, window: &Window, by: Grouping) -> Result<Report, sqlx::Error> {
    let mut lines = ledger::usage(tx, window, by, LINES_MAX + 1).await?;
    let most = usize::try_from(LINES_MAX).expect("a small number");
    let cut = lines.len() > most;
    lines.truncate(most);
    Ok(round_report(lines, cut))
}

/// Rounds lines so that they add up: each currency's lines by themselves, GPU-seconds likewise.
fn round_report(lines: Vec<Line>, cut: bool) -> Report {
    let mut by_currency: BTreeMap<Option<Currency>, Vec<usize>> = BTreeMap::new();
    for (index, line) in lines.iter().enumerate() {
        by_currency
            .entry(line.currency.clone())
            .or_default()
            .push(index);
    }
    let mut sums: Vec<Option<Sum>> = vec![None; lines.len()];
    let mut totals = Vec::new();
    for (currency, indices) in by_currency {
        let pick = |of: fn(&Line) -> Decimal| -> Vec<Decimal> {
            indices.iter().map(|index| of(&lines[*index])).collect()
        };
        let seconds = round_lines(
            &pick(|l| gpu_seconds(l.gpu_milli_micros)),
            GPU_SECOND_DECIMALS,
        );
        let unpriced = round_lines(
            &pick(|l| gpu_seconds(l.unpriced_milli_micros)),
            GPU_SECOND_DECIMALS,
        );
        let amounts = round_lines(&pick(|l| l.amount), SHOWN_DECIMALS);
        let money = |amount: Decimal| currency.clone().map(|currency| Money { amount, currency });
        for (place, index) in indices.iter().enumerate() {
            sums[*index] = Some(Sum {
                gpu_seconds: seconds[place].normalize(),
                unpriced_gpu_seconds: unpriced[place].normalize(),
                cost: money(amounts[place]),
            });
        }
        totals.push(Sum {
            gpu_seconds: seconds.iter().sum::<Decimal>().normalize(),
            unpriced_gpu_seconds: unpriced.iter().sum::<Decimal>().normalize(),
            cost: money(amounts.iter().sum()),
        });
    }
    let lines = lines
        .into_iter()
        .zip(sums)
        .map(|(of, sum)| ReportLine {
            of,
            sum: sum.expect("every line has a currency or none, and was summed there"),
        })
        .collect();
    Report { lines, totals, cut }
}

/// What one job has used so far, with what it uses now.
pub async fn of_job(tx: &mut Tx, job: JobId) -> Result<Sum, sqlx::Error> {
    Ok(of_jobs(tx, &[job])
        .await?
        .remove(&job)
        .unwrap_or_else(Sum::nothing))
}

/// The same of several jobs; one that has used nothing is absent.
pub async fn of_jobs(tx: &mut Tx, jobs: &[JobId]) -> Result<BTreeMap<JobId, Sum>, sqlx::Error> {
    let now = store::clock(tx).await?;
    let mut sums = BTreeMap::new();
    for line in ledger::of_jobs(tx, jobs, now).await? {
        let sum: &mut Sum = sums.entry(line.job_id).or_insert_with(Sum::nothing);
        sum.gpu_seconds += rounded_seconds(line.gpu_milli_micros);
        sum.unpriced_gpu_seconds += rounded_seconds(line.unpriced_milli_micros);
        // A job whose pools are priced in several currencies shows the first one's cost here
        // and all of them in the usage report.
        if sum.cost.is_none() {
            sum.cost = line.currency.map(|currency| Money {
                amount: domain::money::round(line.amount, SHOWN_DECIMALS),
                currency,
            });
        }
    }
    Ok(sums)
}

/// What a team, with all below it, has used since the beginning of the month, in UTC.
pub async fn of_team_this_month(tx: &mut Tx, team: TeamId) -> Result<Report, sqlx::Error> {
    let now = store::clock(tx).await?;
    let window = Window {
        from: month_start(now),
        to: now,
        team: Some(team),
        now,
    };
    report(tx, &window, Grouping::default()).await
}

/// The beginning of the month that a time lies in, in UTC.
pub fn month_start(time: Timestamp) -> Timestamp {
    use chrono::Datelike;
    time.date_naive()
        .with_day(1)
        .expect("every month has a first day")
        .and_time(chrono::NaiveTime::MIN)
        .and_utc()
}

impl Sum {
    /// No use at all.
    pub fn nothing() -> Self {
        Self {
            gpu_seconds: Decimal::ZERO,
            unpriced_gpu_seconds: Decimal::ZERO,
            cost: None,
        }
    }
}

fn gpu_seconds(milli_micros: Decimal) -> Decimal {
    milli_micros / Decimal::from(PER_GPU_SECOND)
}

fn rounded_seconds(milli_micros: Decimal) -> Decimal {
    domain::money::round(gpu_seconds(milli_micros), GPU_SECOND_DECIMALS).normalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(milli_micros: i64, amount: &str, currency: Option<&str>) -> Line {
        Line {
            team: None,
            user: None,
            job: None,
            job_name: None,
            pool: None,
            mode: None,
            bucket: None,
            gpu_milli_micros: Decimal::from(milli_micros),
            unpriced_milli_micros: if currency.is_none() {
                Decimal::from(milli_micros)
            } else {
                Decimal::ZERO
            },
            amount: amount.parse().expect("a decimal"),
            currency: currency.map(|c| c.parse().expect("a currency")),
        }
    }

    #[test]
    fn rounded_lines_add_up_to_the_rounded_total() {
        let third = "33.333333333333";
        let lines = vec![
            line(333_333_333, third, Some("CNY")),
            line(333_333_333, third, Some("CNY")),
            line(333_333_334, third, Some("CNY")),
        ];
        let report = round_report(lines, false);
        let total = &report.totals[0];
        assert_eq!(total.gpu_seconds.to_string(), "1");
        let cost = |sum: &Sum| sum.cost.as_ref().map(|c| c.amount).unwrap_or_default();
        assert_eq!(cost(total).to_string(), "100.0000");
        assert_eq!(
            report.lines.iter().map(|l| cost(&l.sum)).sum::<Decimal>(),
            cost(total)
        );
    }

    #[test]
    fn what_no_price_covers_is_shown_and_costs_nothing_known() {
        let report = round_report(vec![line(2_000_000_000, "0", None)], false);
        assert_eq!(report.lines[0].sum.cost, None);
        assert_eq!(report.lines[0].sum.unpriced_gpu_seconds, Decimal::from(2));
    }

    #[test]
    fn a_month_begins_on_its_first_day() {
        let time: Timestamp = "2026-10-31T23:59:59Z".parse().expect("a time");
        assert_eq!(
            month_start(time),
            "2026-10-01T00:00:00Z".parse::<Timestamp>().expect("a time")
        );
    }
}
