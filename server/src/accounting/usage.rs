//! Usage: who held how much, and what it costs, as people read it.

use std::collections::BTreeMap;

use domain::Timestamp;
use domain::ids::{AttemptId, JobId};
use domain::money::{Currency, Money, SHOWN_DECIMALS, round_lines};
use rust_decimal::Decimal;

use crate::store::ledger::{self, Exact, Grouping, Line, Window};
use crate::store::{self, Tx};

/// Thousandths of a GPU times microseconds in a GPU-second.
pub const PER_GPU_SECOND: i64 = 1_000_000_000;
/// Decimals of GPU-seconds as people read them.
pub const GPU_SECOND_DECIMALS: u32 = 3;
/// Most lines of one report; more are a matter of a narrower window or a coarser grouping.
pub const LINES_MAX: i64 = 10_000;

/// A report: rounded lines that add up to the rounded total.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The lines.
    pub lines: Vec<ReportLine>,
    /// All lines together; its cost is absent where nothing is priced, or in several currencies.
    pub total: Sum,
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
    Ok(round_report(join_unpriced(lines), cut))
}

/// Joins what no price covers with the line of the same group that has a price: they come one
/// after the other.
fn join_unpriced(lines: Vec<Line>) -> Vec<Line> {
    let mut joined: Vec<Line> = Vec::with_capacity(lines.len());
    for line in lines {
        match joined.last_mut() {
            Some(last) if line.currency.is_none() && same_group(last, &line) => {
                last.gpu_milli_micros += line.gpu_milli_micros;
                last.unpriced_milli_micros += line.unpriced_milli_micros;
            }
            _ => joined.push(line),
        }
    }
    joined
}

fn same_group(a: &Line, b: &Line) -> bool {
    (&a.team, &a.user, a.job, &a.pool, &a.mode, a.bucket)
        == (&b.team, &b.user, b.job, &b.pool, &b.mode, b.bucket)
}

/// Rounds lines so that they add up: GPU-seconds over all of them, money by currency.
fn round_report(lines: Vec<Line>, cut: bool) -> Report {
    let pick = |of: fn(&Line) -> Decimal| -> Vec<Decimal> { lines.iter().map(of).collect() };
    let seconds = round_lines(
        &pick(|line| gpu_seconds(line.gpu_milli_micros)),
        GPU_SECOND_DECIMALS,
    );
    let unpriced = round_lines(
        &pick(|line| gpu_seconds(line.unpriced_milli_micros)),
        GPU_SECOND_DECIMALS,
    );
    let exact: Vec<_> = lines
        .iter()
        .map(|line| (line.amount, line.currency.as_ref()))
        .collect();
    let costs = round_costs(&exact);
    let total = Sum {
        gpu_seconds: seconds.iter().sum::<Decimal>().normalize(),
        unpriced_gpu_seconds: unpriced.iter().sum::<Decimal>().normalize(),
        cost: add_up(&costs),
    };
    let sums = seconds.into_iter().zip(unpriced).zip(costs);
    let lines = lines
        .into_iter()
        .zip(sums)
        .map(|(of, ((seconds, unpriced), cost))| ReportLine {
            of,
            sum: Sum {
                gpu_seconds: seconds.normalize(),
                unpriced_gpu_seconds: unpriced.normalize(),
                cost,
            },
        })
        .collect();
    Report { lines, total, cut }
}

/// Rounded costs of exact ones, each currency's by themselves.
fn round_costs(exact: &[(Decimal, Option<&Currency>)]) -> Vec<Option<Money>> {
    let mut by_currency: BTreeMap<&Currency, Vec<usize>> = BTreeMap::new();
    for (index, (_, currency)) in exact.iter().enumerate() {
        if let Some(currency) = currency {
            by_currency.entry(currency).or_default().push(index);
        }
    }
    let mut costs = vec![None; exact.len()];
    for (currency, indices) in by_currency {
        let amounts: Vec<Decimal> = indices.iter().map(|index| exact[*index].0).collect();
        for (index, amount) in indices.iter().zip(round_lines(&amounts, SHOWN_DECIMALS)) {
            costs[*index] = Some(Money {
                amount,
                currency: currency.clone(),
            });
        }
    }
    costs
}

/// The sum of costs in one currency; nothing where there are none, or several.
fn add_up(costs: &[Option<Money>]) -> Option<Money> {
    let mut priced = costs.iter().flatten();
    let mut total = priced.next()?.clone();
    for cost in priced {
        if cost.currency != total.currency {
            return None;
        }
        total.amount += cost.amount;
    }
    Some(total)
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
    let mut bills: BTreeMap<JobId, Vec<(JobId, Exact)>> = BTreeMap::new();
    for (job, exact) in ledger::of_jobs(tx, jobs, now).await? {
        bills.entry(job).or_default().push((job, exact));
    }
    Ok(bills.into_values().flat_map(bill).collect())
}

/// What arrays have used so far, all elements of each together and rounded once; one of which
/// nothing was used is absent.
pub async fn of_arrays(tx: &mut Tx, arrays: &[JobId]) -> Result<BTreeMap<JobId, Sum>, sqlx::Error> {
    let now = store::clock(tx).await?;
    let mut bills: BTreeMap<JobId, Vec<(JobId, Exact)>> = BTreeMap::new();
    for (array, exact) in ledger::of_arrays(tx, arrays, now).await? {
        bills.entry(array).or_default().push((array, exact));
    }
    Ok(bills.into_values().flat_map(bill).collect())
}

/// What each attempt of a job has used so far; one that has used nothing is absent. They add up
/// to the job's use.
pub async fn of_attempts(tx: &mut Tx, job: JobId) -> Result<BTreeMap<AttemptId, Sum>, sqlx::Error> {
    let now = store::clock(tx).await?;
    Ok(bill(ledger::of_attempts(tx, job, now).await?))
}

/// Rounds exact amounts so that the sums, one for each key, add up to the rounded total, whatever
/// the keys: the one home of this, for a job and for its attempts. The cost of one that was priced
/// in several currencies is absent, as in a report's total: a part of it would pass for all.
fn bill<Key: Ord>(lines: Vec<(Key, Exact)>) -> BTreeMap<Key, Sum> {
    let exact: Vec<_> = lines
        .iter()
        .map(|(_, line)| (line.amount, line.currency.as_ref()))
        .collect();
    let costs = round_costs(&exact);
    let mut held: BTreeMap<Key, Held> = BTreeMap::new();
    for ((key, line), cost) in lines.into_iter().zip(costs) {
        let held = held.entry(key).or_default();
        held.all += line.gpu_milli_micros;
        held.unpriced += line.unpriced_milli_micros;
        held.costs.push(cost);
    }
    let pick = |of: fn(&Held) -> Decimal| -> Vec<Decimal> {
        let exact: Vec<Decimal> = held.values().map(|held| gpu_seconds(of(held))).collect();
        round_lines(&exact, GPU_SECOND_DECIMALS)
    };
    let (all, unpriced) = (pick(|held| held.all), pick(|held| held.unpriced));
    held.into_iter()
        .zip(all.into_iter().zip(unpriced))
        .map(|((key, held), (all, unpriced))| {
            let sum = Sum {
                gpu_seconds: all.normalize(),
                unpriced_gpu_seconds: unpriced.normalize(),
                cost: add_up(&held.costs),
            };
            (key, sum)
        })
        .collect()
}

/// What one of a bill's keys has held, exact, with the rounded costs of its lines.
#[derive(Default)]
struct Held {
    all: Decimal,
    unpriced: Decimal,
    costs: Vec<Option<Money>>,
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

pub(super) fn gpu_seconds(milli_micros: Decimal) -> Decimal {
    milli_micros / Decimal::from(PER_GPU_SECOND)
}

pub fn rounded_seconds(milli_micros: Decimal) -> Decimal {
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
        let total = &report.total;
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

    fn exact(milli_micros: i64, amount: &str, currency: Option<&str>) -> Exact {
        let line = line(milli_micros, amount, currency);
        Exact {
            gpu_milli_micros: line.gpu_milli_micros,
            unpriced_milli_micros: line.unpriced_milli_micros,
            amount: line.amount,
            currency: line.currency,
        }
    }

    /// A job that began before its price: each half ends in half a thousandth of a second.
    #[test]
    fn a_job_is_rounded_once_and_its_attempts_add_up_to_it() {
        let half = 500_000;
        let parts = || {
            [
                exact(half, "0.00005", Some("CNY")),
                exact(half, "0", None),
                exact(half, "0.00005", Some("CNY")),
            ]
        };
        let seconds = |sums: &BTreeMap<usize, Sum>| -> Decimal {
            sums.values().map(|sum| sum.gpu_seconds).sum()
        };
        let money = |sums: &BTreeMap<usize, Sum>| -> Decimal {
            let costs = sums.values().filter_map(|sum| sum.cost.as_ref());
            costs.map(|cost| cost.amount).sum()
        };
        let job = bill(parts().into_iter().map(|part| (0, part)).collect());
        let attempts = bill(parts().into_iter().enumerate().collect());
        assert_eq!(job[&0].gpu_seconds.to_string(), "0.002");
        assert_eq!(seconds(&attempts), seconds(&job));
        assert_eq!(money(&job).to_string(), "0.0001");
        assert_eq!(money(&attempts), money(&job));
    }

    #[test]
    fn a_cost_in_two_currencies_is_not_told_by_one_of_them() {
        let parts = vec![
            (1, exact(1_000_000, "1", Some("CNY"))),
            (1, exact(1_000_000, "1", Some("EUR"))),
            (2, exact(1_000_000, "1", Some("EUR"))),
        ];
        let sums = bill(parts);
        assert_eq!(sums[&1].cost, None);
        assert!(sums[&2].cost.is_some());
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
