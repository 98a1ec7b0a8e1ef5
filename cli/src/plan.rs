//! `allot plan`: one or more cycles of the engine on a scenario file.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use engine::plan::{Plan, WorkerPlace};

use crate::client::Client;
use crate::failure::Failure;
use crate::table::{print_json, print_line};

/// The largest file that is read, in bytes; the engine refuses more.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Plan a scenario file, or the live world, with the engine
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  allot plan examples/scenario.yaml --table\n  allot plan examples/scenario.yaml --cycles 10 --json\n  allot plan --live --table"
)]
pub struct PlanFile {
    /// The scenario, YAML or JSON; - is standard input
    #[arg(required_unless_present = "live")]
    file: Option<PathBuf>,
    /// Plans the live world of the server that is logged in to, and changes nothing there
    #[arg(long, conflicts_with = "file")]
    live: bool,
    /// Prints tables for people in place of JSON
    #[arg(long)]
    table: bool,
    /// Prints JSON, as it does anyway
    #[arg(long, conflicts_with = "table")]
    json: bool,
    /// Applies each plan and plans again, until nothing changes or N cycles are done
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    cycles: Option<u16>,
}

impl PlanFile {
    /// Prints the plan; a wrong file is told like wrong words, with status 2.
    pub async fn run(self) -> Result<(), Failure> {
        let plans = match &self.file {
            Some(file) => read(file)
                .and_then(|text| planned(&text, self.cycles))
                .map_err(|error| Failure::Words(format!("{}: {error:#}", file.display())))?,
            None => {
                let world = Client::found()?.get("/planning/scenario", &[]).await?;
                planned(&world.to_string(), self.cycles)?
            }
        };
        if self.table {
            let text: Vec<String> = plans.iter().map(tables).collect();
            return print_line(text.join("\n").trim_end());
        }
        match plans.as_slice() {
            [plan] if self.cycles.is_none() => print_json(plan),
            plans => print_json(&plans),
        }
    }
}

fn planned(text: &str, cycles: Option<u16>) -> anyhow::Result<Vec<Plan>> {
    let world = engine::scenario::parse(text)?;
    Ok(match cycles {
        Some(cycles) => engine::cycles::run(world, cycles.into()),
        None => vec![engine::plan(&world)],
    })
}

fn read(file: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    if file.as_os_str() == "-" {
        std::io::stdin()
            .take(FILE_BYTES_MAX)
            .read_to_end(&mut bytes)
            .context("standard input cannot be read")?;
    } else {
        let file = std::fs::File::open(file).context("the file cannot be opened")?;
        file.take(FILE_BYTES_MAX)
            .read_to_end(&mut bytes)
            .context("the file cannot be read")?;
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..good]
            .iter()
            .filter(|&&b| b == b'\n')
            .count()
            + 1;
        anyhow::anyhow!("line {line}: file: not UTF-8")
    })
}

/// The plan for people: what happens, why the rest waits, what teams have.
fn tables(plan: &Plan) -> String {
    let mut text = format!("Plan at {}\n", domain::time::format(plan.now));
    let mut done = table(&["what", "workload", "workers", "where or why"]);
    for start in &plan.starts {
        done.add_row([
            "starts",
            &start.workload,
            &start.workers.to_string(),
            &places(&start.placement),
        ]);
    }
    for growth in &plan.resizes {
        let workers = format!("{} to {}", growth.from, growth.to);
        done.add_row([
            "grows",
            &growth.workload,
            &workers,
            &places(&growth.placement),
        ]);
    }
    for loss in &plan.preemptions {
        let gainer = loss
            .gainer
            .as_deref()
            .map_or(String::new(), |name| format!(" for {name}"));
        let reason = serde_json::to_value(loss.reason).ok();
        let reason = reason.as_ref().and_then(|r| r.as_str()).unwrap_or("");
        let why = format!(
            "{reason}{gainer}, {} lost",
            domain::words::counted(loss.lost_gpu_seconds.unsigned_abs(), "GPU-second")
        );
        done.add_row([
            "gives way",
            &loss.workload,
            &loss.to_workers.to_string(),
            &why,
        ]);
    }
    for mover in &plan.migrations {
        done.add_row([
            "moves",
            &mover.workload,
            &mover.placement.len().to_string(),
            &places(&mover.placement),
        ]);
    }
    for kept in &plan.nominations {
        let why = format!(
            "{}, after {}",
            places(&kept.placement),
            kept.waits_for.join(", ")
        );
        done.add_row([
            "is next",
            &kept.workload,
            &kept.placement.len().to_string(),
            &why,
        ]);
    }
    if done.row_count() == 0 {
        text.push_str("Nothing changes.\n");
    } else {
        text.push_str(&format!("{done}\n"));
    }
    if !plan.waiting.is_empty() {
        let mut waiting = table(&["rank", "waits", "code", "because"]);
        for row in &plan.waiting {
            let rank = row.rank.map_or(String::new(), |rank| rank.to_string());
            waiting.add_row([&rank, &row.workload, row.code.as_str(), &row.message]);
        }
        text.push_str(&format!("{waiting}\n"));
    }
    let mut shares = table(&[
        "pool",
        "team",
        "guaranteed",
        "used",
        "borrowed",
        "lent",
        "fair share",
    ]);
    for row in &plan.shares {
        let amounts = [
            row.guaranteed,
            row.used,
            row.borrowed,
            row.lent,
            row.fair_share,
        ]
        .map(|a| a.to_string());
        shares.add_row(
            [row.pool.clone(), row.team.clone()]
                .into_iter()
                .chain(amounts),
        );
    }
    text.push_str(&format!("{shares}\n"));
    text
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_BORDERS_ONLY)
        .set_header(header.iter().copied());
    table
}

fn places(workers: &[WorkerPlace]) -> String {
    let place = |worker: &WorkerPlace| {
        let devices: Vec<String> = worker.devices.iter().map(|d| d.index.to_string()).collect();
        if devices.is_empty() {
            worker.node.clone()
        } else {
            format!("{}:{}", worker.node, devices.join(","))
        }
    };
    workers.iter().map(place).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_shows_a_start_a_loss_and_a_wait() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/scenario.yaml");
        let text = read(Path::new(file)).expect("the example is there");
        let plans = planned(&text, None).expect("the example is well-formed");
        let [plan] = plans.as_slice() else {
            panic!("one cycle makes one plan");
        };
        assert!(plan.starts.iter().any(|start| start.workload == "resnet"));
        assert!(plan.preemptions.iter().any(|loss| loss.workload == "sweep"));
        assert!(plan.waiting.iter().any(|wait| wait.workload == "night-run"));
    }
}
