//! What came of the experiment: means over the seeds, by how much had arrived.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::world::Strategy;
use serde_json::{Map, Value, json};

use super::super::{Placing, Ties};

/// Figures are told at each of these percents of arrival, and at 95.
const STEP: i64 = 10;
const BESIDES: i64 = 95;

/// One order of arrival.
pub struct Run {
    seed: u64,
    /// By percent of arrival: sums of allocated and wasted percents, and of how many arrivals.
    rows: BTreeMap<i64, (f64, f64, u32)>,
    /// Tasks with GPUs and without: how many came, and how many were placed.
    tried: [u32; 2],
    placed: [u32; 2],
}

/// All of them.
pub struct Outcome {
    pub strategy: Strategy,
    pub ties: Ties,
    /// In thousandths.
    pub ratio: i64,
    pub nodes: usize,
    pub gpus: i64,
    pub tasks: usize,
    pub runs: Vec<Run>,
    pub took: Duration,
}

impl Run {
    /// Nothing has arrived.
    pub fn of(seed: u64) -> Self {
        Self {
            seed,
            rows: BTreeMap::new(),
            tried: [0; 2],
            placed: [0; 2],
        }
    }

    /// A task was tried.
    pub fn tried(&mut self, on_devices: bool, placed: bool) {
        self.tried[usize::from(!on_devices)] += 1;
        self.placed[usize::from(!on_devices)] += u32::from(placed);
    }

    /// What stands after an arrival.
    pub fn note(&mut self, arrived: i64, allocated: f64, wasted: f64) {
        let row = self.rows.entry(arrived).or_default();
        *row = (row.0 + allocated, row.1 + wasted, row.2 + 1);
    }

    fn allocated(&self, arrived: i64) -> Option<f64> {
        self.rows.get(&arrived).map(|row| row.0 / f64::from(row.2))
    }

    fn wasted(&self, arrived: i64) -> Option<f64> {
        self.rows.get(&arrived).map(|row| row.1 / f64::from(row.2))
    }
}

impl Outcome {
    /// The mean over the seeds that have a figure.
    fn mean(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let figures: Vec<f64> = self.runs.iter().filter_map(of).collect();
        (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
    }

    fn arrivals(&self) -> Vec<i64> {
        let all = self.runs.iter().flat_map(|run| run.rows.keys().copied());
        let last = all.max().unwrap_or(0);
        (1..=last)
            .filter(|at| at % STEP == 0 || *at == BESIDES)
            .collect()
    }

    fn by_arrival(&self, of: impl Fn(&Run, i64) -> Option<f64>) -> Value {
        let rows = self.arrivals().into_iter();
        let rows =
            rows.filter_map(|at| Some((at.to_string(), rounded(self.mean(|run| of(run, at))?))));
        Value::Object(rows.collect::<Map<_, _>>())
    }

    fn placed(&self, which: usize) -> Option<f64> {
        self.mean(|run| {
            (run.tried[which] > 0)
                .then(|| f64::from(run.placed[which]) * 100.0 / f64::from(run.tried[which]))
        })
    }

    /// As JSON; the figures are percents.
    pub fn json(&self) -> Value {
        let by_seed = |run: &Run| {
            let rows = self.arrivals().into_iter();
            let rows = rows.filter_map(|at| Some((at.to_string(), rounded(run.allocated(at)?))));
            json!({"seed": run.seed, "allocation_percent": Value::Object(rows.collect())})
        };
        json!({
            "allocation_percent": self.by_arrival(Run::allocated),
            "fragmentation_percent": self.by_arrival(Run::wasted),
            "placed_percent": {
                "with_gpus": self.placed(0).map(rounded),
                "without_gpus": self.placed(1).map(rounded),
            },
            "strategy": Placing::of(self.strategy).as_str(),
            "ties": self.ties.as_str(),
            "ratio": self.ratio as f64 / 1000.0,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "tasks": self.tasks,
            "seeds": self.runs.iter().map(|run| run.seed).collect::<Vec<_>>(),
            "by_seed": self.runs.iter().map(by_seed).collect::<Vec<_>>(),
        })
    }

    /// As a table for people.
    pub fn table(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_header([
            "arrived %",
            "allocated %",
            "least",
            "most",
            "fragmented %",
        ]);
        for at in self.arrivals() {
            let all: Vec<f64> = self
                .runs
                .iter()
                .filter_map(|run| run.allocated(at))
                .collect();
            let cell = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.2}"));
            table.add_row([
                at.to_string(),
                cell(self.mean(|run| run.allocated(at))),
                cell(all.iter().copied().reduce(f64::min)),
                cell(all.iter().copied().reduce(f64::max)),
                cell(self.mean(|run| run.wasted(at))),
            ]);
        }
        let tasks: u32 = self.runs.iter().flat_map(|run| run.tried).sum();
        let placed = |which: usize| {
            self.placed(which)
                .map_or("–".to_owned(), |p| format!("{p:.1}"))
        };
        format!(
            "{}, ties {}: {} nodes, {} GPUs, {} tasks, {} seeds\n{}\n\
             placed of the tasks with GPUs {} %, without {} %\n{tasks} decisions in {:.1} s",
            Placing::of(self.strategy).as_str(),
            self.ties.as_str(),
            self.nodes,
            self.gpus,
            self.tasks,
            self.runs.len(),
            table.trim_fmt(),
            placed(0),
            placed(1),
            self.took.as_secs_f64(),
        )
    }
}

/// To ten-thousandths: what is finer is noise.
fn rounded(percent: f64) -> Value {
    json!((percent * 10_000.0).round() / 10_000.0)
}
