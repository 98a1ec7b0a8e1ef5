//! `allot simulate`: a trace through the real engine on a virtual clock.

mod csv;
mod openb;
mod seeds;
mod trace;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use engine::world::Strategy;

use crate::failure::Failure;
use seeds::Seeds;

/// Replay a trace of work through the engine, without a server
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  allot simulate cluster.yaml --trace jobs.csv --html report.html\n  allot simulate --openb nodes.csv pods.csv --strategy least_fragmentation --seeds 42..51 --ratio 1.3 --json"
)]
pub struct Simulate {
    /// The pools, nodes and teams, and what runs at first: a scenario, YAML or JSON
    #[arg(required_unless_present = "openb", requires = "trace")]
    scenario: Option<PathBuf>,
    /// The jobs, CSV: name, team, submitted and run_seconds, and what docs/simulate.md lists
    #[arg(long, requires = "scenario")]
    trace: Option<PathBuf>,
    /// Stops so many seconds after the beginning; else when all is done
    #[arg(long, value_name = "SECONDS", conflicts_with = "openb", value_parser = clap::value_parser!(i64).range(1..=trace::SECONDS_MAX))]
    until: Option<i64>,
    /// Predicts every run time, by a seed, so many percent off at most
    #[arg(long, value_name = "PERCENT", conflicts_with = "openb", value_parser = clap::value_parser!(i64).range(0..=1000))]
    prediction_error: Option<i64>,
    /// Plans as if all teams were one: a queue by time of submission, whose fairness is told by the teams that there are
    #[arg(long, conflicts_with = "openb")]
    one_queue: bool,
    /// Writes a page with charts
    #[arg(long, value_name = "FILE", conflicts_with = "openb")]
    html: Option<PathBuf>,
    /// The placement experiment on openb lists: tasks arrive one by one and never leave
    #[arg(long, num_args = 2, value_names = ["NODES", "PODS"], conflicts_with_all = ["scenario", "trace"])]
    openb: Option<Vec<PathBuf>>,
    /// Which node is preferred; else what the scenario says, and least_fragmentation for openb
    #[arg(long, value_enum)]
    strategy: Option<Placing>,
    /// Orders of arrival, as 42, 42..51 or 1,2,3; figures are the mean over them. Of a trace, the first is the seed
    #[arg(long, default_value = "42..51")]
    seeds: Seeds,
    /// How much arrives, in parts of what the nodes have
    #[arg(long, default_value = "1.3", value_parser = ratio, conflicts_with = "trace")]
    ratio: Ratio,
    /// Which of equally good nodes is taken: the first or the last by name
    #[arg(long, value_enum, default_value = "lex", conflicts_with = "trace")]
    ties: Ties,
    /// Prints JSON in place of tables
    #[arg(long)]
    json: bool,
}

/// A pool's strategy, as scenario files call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Placing {
    Pack,
    Spread,
    LeastFragmentation,
}

impl Placing {
    fn of(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Pack => Self::Pack,
            Strategy::Spread => Self::Spread,
            Strategy::LeastFragmentation => Self::LeastFragmentation,
        }
    }

    fn strategy(self) -> Strategy {
        match self {
            Self::Pack => Strategy::Pack,
            Self::Spread => Strategy::Spread,
            Self::LeastFragmentation => Strategy::LeastFragmentation,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Spread => "spread",
            Self::LeastFragmentation => "least_fragmentation",
        }
    }
}

/// How nodes are ordered where nothing else tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Ties {
    Lex,
    Reverse,
}

impl Ties {
    fn as_str(self) -> &'static str {
        match self {
            Self::Lex => "lex",
            Self::Reverse => "reverse",
        }
    }
}

/// A ratio in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ratio(i64);

/// The most that may arrive, in thousandths of what is there.
const RATIO_MAX: i64 = 100_000;

fn ratio(text: &str) -> Result<Ratio, String> {
    let amount: domain::MilliGpu = text.parse().map_err(|_| "use a number such as 1.3")?;
    match amount.milli() {
        milli @ 1..=RATIO_MAX => Ok(Ratio(milli)),
        _ => Err("use a number above 0, at most 100".to_owned()),
    }
}

impl Simulate {
    /// Replays and prints what came of it; a wrong file is told like wrong words.
    pub fn run(self) -> Result<(), Failure> {
        let wrong = |error: anyhow::Error| Failure::Words(format!("{error:#}"));
        if let Some([nodes, tasks]) = self.openb.as_deref() {
            let experiment = openb::Experiment::read(nodes, tasks).map_err(wrong)?;
            let strategy = self
                .strategy
                .unwrap_or(Placing::LeastFragmentation)
                .strategy();
            let outcome = experiment.run(&self.seeds.0, self.ratio.0, strategy, self.ties);
            return if self.json {
                crate::table::print_json(&outcome.json())
            } else {
                crate::table::print_line(&outcome.table())
            };
        }
        let (Some(scenario), Some(trace)) = (&self.scenario, &self.trace) else {
            return Err(Failure::Words(
                "say which SCENARIO and --trace, or --openb".into(),
            ));
        };
        let mut read = trace::Trace::read(scenario, trace, self.prediction_error, self.seeds.0[0])
            .map_err(wrong)?;
        if let Some(strategy) = self.strategy {
            for pool in &mut read.world.pools {
                pool.strategy = strategy.strategy();
            }
        }
        read.one_queue = self.one_queue;
        let report = read.replay(self.until);
        if let Some(path) = &self.html {
            let title = format!("{} over {}", trace.display(), scenario.display());
            std::fs::write(path, report.page(&title))
                .with_context(|| path.display().to_string())?;
        }
        if self.json {
            crate::table::print_json(&report.json())
        } else {
            crate::table::print_line(&report.table())
        }
    }
}
