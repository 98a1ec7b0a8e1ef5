//! The figures of a replay, as JSON and as tables.

use std::collections::BTreeMap;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use domain::MilliGpu;
use engine::world::World;
use serde_json::{Value, json};

use super::fragments::BILLION;
use super::{Measure, Moment};

/// Waits of a set of jobs, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Waits {
    pub jobs: usize,
    /// Jobs that never started; their waits are in no other figure.
    pub unstarted: usize,
    pub mean: f64,
    pub p50: i64,
    pub p90: i64,
    pub p95: i64,
    pub p99: i64,
    pub most: i64,
}

/// A pool.
pub struct PoolFigures {
    pub name: String,
    pub gpus: MilliGpu,
    pub allocation_percent: f64,
    pub fragmentation_percent: f64,
}

/// A team.
pub struct TeamFigures {
    pub name: String,
    pub waits: Waits,
    /// What it had of its fair share in the hours in which it was in need, in percent; nothing where it never was.
    pub share_percent: Option<f64>,
}

/// All figures.
pub struct Report {
    pub seconds: i64,
    pub cycles: u64,
    pub jobs: usize,
    pub ended: usize,
    pub running: usize,
    pub waiting: usize,
    pub allocation_percent: f64,
    /// Work that is done, of what the GPUs could have done.
    pub utilisation_percent: f64,
    pub pools: Vec<PoolFigures>,
    pub waits: Waits,
    pub teams: Vec<TeamFigures>,
    /// Jain's index over the teams that were in need, of what each had of its fair share.
    pub jain: Option<f64>,
    pub preemptions: BTreeMap<String, (u64, i64)>,
    pub migrations: u64,
    pub moments: Vec<Moment>,
}

impl Waits {
    /// From the waits of jobs that started.
    pub fn of(mut waits: Vec<i64>, unstarted: usize) -> Self {
        waits.sort_unstable();
        // The nearest rank: the least wait that so many percent do not exceed.
        let rank = |percent: usize| {
            let at = (waits.len() * percent).div_ceil(100).max(1) - 1;
            waits.get(at).copied().unwrap_or(0)
        };
        Self {
            jobs: waits.len() + unstarted,
            unstarted,
            mean: waits.iter().sum::<i64>() as f64 / waits.len().max(1) as f64,
            p50: rank(50),
            p90: rank(90),
            p95: rank(95),
            p99: rank(99),
            most: waits.last().copied().unwrap_or(0),
        }
    }

    fn json(&self) -> Value {
        json!({
            "jobs": self.jobs,
            "unstarted": self.unstarted,
            "mean_seconds": round(self.mean),
            "p50_seconds": self.p50,
            "p90_seconds": self.p90,
            "p95_seconds": self.p95,
            "p99_seconds": self.p99,
            "max_seconds": self.most,
        })
    }
}

impl Measure {
    /// The figures, at the end.
    pub fn report(mut self, world: &World) -> Report {
        self.fairness.close(world.now);
        let waits = |team: Option<&str>| {
            let jobs = self
                .jobs
                .values()
                .filter(|j| team.is_none_or(|team| j.team == team));
            let (mut started, mut unstarted) = (Vec::new(), 0);
            for job in jobs.filter(|j| j.submitted <= world.now) {
                match job.first_start {
                    Some(at) => started.push((at - job.submitted).num_seconds()),
                    None => unstarted += 1,
                }
            }
            Waits::of(started, unstarted)
        };
        let there: i128 = self.pools.values().map(|p| p.there_seconds).sum();
        let held: i128 = self.pools.values().map(|p| p.held_seconds).sum();
        let useful: i128 = self.jobs.values().filter(|j| j.ended).map(|j| j.work).sum();
        let pools = self.pools.iter().map(|(name, pool)| PoolFigures {
            name: name.clone(),
            gpus: MilliGpu::from_milli(pool.there),
            allocation_percent: percent(pool.held_seconds, pool.there_seconds),
            fragmentation_percent: percent(pool.fragments, pool.seconds * i128::from(BILLION)),
        });
        let had = self.fairness.teams();
        let share = |name: &String| {
            let had = had.get(name).filter(|had| had.entitled > 0)?;
            Some(percent(had.held, had.entitled))
        };
        let teams = self.teams.iter().map(|name| TeamFigures {
            name: name.clone(),
            waits: waits(Some(name)),
            share_percent: share(name),
        });
        let teams: Vec<TeamFigures> = teams.filter(|t| t.waits.jobs > 0).collect();
        let shares: Vec<f64> = teams.iter().filter_map(|t| t.share_percent).collect();
        Report {
            seconds: (world.now - self.begun).num_seconds(),
            cycles: self.cycles,
            jobs: self.jobs.len(),
            ended: self.jobs.values().filter(|j| j.ended).count(),
            running: world
                .workloads
                .iter()
                .filter(|w| !w.placed.is_empty())
                .count(),
            waiting: world
                .workloads
                .iter()
                .filter(|w| w.placed.is_empty())
                .count(),
            allocation_percent: percent(held, there),
            utilisation_percent: percent(useful, there),
            pools: pools.collect(),
            waits: waits(None),
            jain: jain(&shares),
            teams,
            preemptions: self.preemptions,
            migrations: self.migrations,
            moments: self.moments,
        }
    }
}

/// A sum in percent of another: the one division, for people to read.
fn percent(part: i128, whole: i128) -> f64 {
    if whole > 0 {
        part as f64 * 100.0 / whole as f64
    } else {
        0.0
    }
}

/// 1 where all are alike, 1/n where one has everything; nothing without figures.
fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

fn round(figure: f64) -> f64 {
    (figure * 1000.0).round() / 1000.0
}

impl Report {
    /// GPU-seconds that preemptions destroyed.
    pub fn destroyed(&self) -> i64 {
        self.preemptions.values().map(|(_, lost)| lost).sum()
    }

    /// Preemptions of all reasons.
    pub fn evictions(&self) -> u64 {
        self.preemptions.values().map(|(count, _)| count).sum()
    }

    /// As JSON; amounts of time are seconds, parts are percents.
    pub fn json(&self) -> Value {
        let pool = |pool: &PoolFigures| {
            json!({
                "pool": pool.name,
                "gpus": pool.gpus,
                "allocation_percent": round(pool.allocation_percent),
                "fragmentation_percent": round(pool.fragmentation_percent),
            })
        };
        let team = |team: &TeamFigures| {
            json!({
                "team": team.name,
                "waits": team.waits.json(),
                "fair_share_percent": team.share_percent.map(round),
            })
        };
        let by_reason = |(reason, (count, lost)): (&String, &(u64, i64))| {
            (
                reason.clone(),
                json!({"count": count, "lost_gpu_seconds": lost}),
            )
        };
        json!({
            "seconds": self.seconds,
            "cycles": self.cycles,
            "jobs": {"all": self.jobs, "ended": self.ended, "running": self.running, "waiting": self.waiting},
            "allocation_percent": round(self.allocation_percent),
            "utilisation_percent": round(self.utilisation_percent),
            "pools": self.pools.iter().map(pool).collect::<Vec<_>>(),
            "waits": self.waits.json(),
            "teams": self.teams.iter().map(team).collect::<Vec<_>>(),
            "fairness": {"jain": self.jain.map(round)},
            "preemptions": {
                "count": self.evictions(),
                "lost_gpu_seconds": self.destroyed(),
                "by_reason": self.preemptions.iter().map(by_reason).collect::<serde_json::Map<_, _>>(),
            },
            "migrations": self.migrations,
        })
    }

    /// As tables for people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} jobs in {}, {} cycles: {} ended, {} running, {} waiting\n\
             allocated {:.1} %, useful {:.1} % of the GPUs\n",
            self.jobs,
            span(self.seconds),
            self.cycles,
            self.ended,
            self.running,
            self.waiting,
            self.allocation_percent,
            self.utilisation_percent,
        );
        let mut pools = table(&["pool", "GPUs", "allocated %", "fragmented %"]);
        for pool in &self.pools {
            pools.add_row([
                pool.name.clone(),
                pool.gpus.to_string(),
                format!("{:.1}", pool.allocation_percent),
                format!("{:.1}", pool.fragmentation_percent),
            ]);
        }
        let mut waits = table(&[
            "waits",
            "jobs",
            "mean",
            "p50",
            "p90",
            "p95",
            "p99",
            "most",
            "never",
            "fair share %",
        ]);
        let mut row = |name: &str, of: &Waits, share: Option<f64>| {
            let spans = [
                of.mean.round() as i64,
                of.p50,
                of.p90,
                of.p95,
                of.p99,
                of.most,
            ]
            .map(span);
            let share = share.map_or("–".to_owned(), |share| format!("{share:.1}"));
            let head = [name.to_owned(), of.jobs.to_string()];
            waits.add_row(
                head.into_iter()
                    .chain(spans)
                    .chain([of.unstarted.to_string(), share]),
            );
        };
        for team in &self.teams {
            row(&team.name, &team.waits, team.share_percent);
        }
        row("all", &self.waits, None);
        text.push_str(&format!(
            "\n{}\n\n{}\n\n",
            pools.trim_fmt(),
            waits.trim_fmt()
        ));
        if let Some(jain) = self.jain {
            text.push_str(&format!("Jain's index of fair shares had: {jain:.3}\n"));
        }
        let reasons = self
            .preemptions
            .iter()
            .map(|(reason, (count, lost))| format!("{reason} {count} ({lost})"));
        let reasons: Vec<String> = reasons.collect();
        text.push_str(&format!(
            "preemptions {}, GPU-seconds destroyed {}{}{}; moves {}",
            self.evictions(),
            self.destroyed(),
            if reasons.is_empty() { "" } else { ": " },
            reasons.join(", "),
            self.migrations,
        ));
        text
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().copied());
    table
}

/// Seconds as people say them.
pub fn span(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let waits = Waits::of((1..=100).rev().collect(), 3);
        assert_eq!(
            (waits.p50, waits.p99, waits.most, waits.jobs),
            (50, 99, 100, 103)
        );
        assert_eq!(Waits::of(vec![7], 0).p50, 7);
        assert_eq!(Waits::of(Vec::new(), 0).most, 0);
    }

    #[test]
    fn jains_index_is_one_among_equals_and_falls_to_one_of_so_many() {
        assert_eq!(jain(&[3.0, 3.0]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[]), None);
    }
}
