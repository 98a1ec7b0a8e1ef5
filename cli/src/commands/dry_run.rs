//! What would happen to a job that was submitted now, for people.

use domain::words::{IS, counted, form};
use serde_json::Value;

use super::remedies;
use crate::failure::Failure;
use crate::table::{self, text};
use crate::words;

/// Most workers whose places are printed; of a larger gang the first are.
const WORKERS_MAX: usize = 32;

/// Prints a dry run.
pub fn print(answer: &Value) -> Result<(), Failure> {
    let message = answer["message"].as_str().filter(|text| !text.is_empty());
    let verdict = message
        .or(answer["verdict"].as_str())
        .unwrap_or("no verdict");
    let waiting = words::wait(
        &answer["waiting"],
        &answer["beyond_quota"],
        &answer["accuracy"],
    );
    // Whom it would displace, and what it would be refused for, is told by the answer alone.
    let waiting = waiting.filter(|_| answer["verdict"] == "waits");
    // The sentences of a wait end with when it is over.
    let start_told = waiting.is_some();
    for line in waiting.unwrap_or_else(|| vec![text(&verdict.into())]) {
        table::print_line(&line)?;
    }
    for line in lines(answer, start_told) {
        table::print_line(&line)?;
    }
    remedies::print(&answer["waiting"]["remedies"], None)
}

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// When, unless that was told; where, what is changed for it, whom it displaces, and what it costs.
fn lines(answer: &Value, start_told: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let elements = words::elements(&answer["array"]);
    let array = !elements.is_empty();
    let label = std::iter::once("elements").chain(std::iter::repeat(""));
    lines.extend(
        label
            .zip(elements)
            .map(|(label, line)| format!("{label:<10} {line}")),
    );
    if answer["array"]["cost_per_hour"].is_object() {
        lines.push(format!(
            "price      {} per hour for all that start now",
            table::money(&answer["array"]["cost_per_hour"])
        ));
    }
    if answer["expected_start"].is_string() && !start_told {
        let start = table::shown(answer, "expected_start");
        // Its own earliest start is no estimate.
        let spread = (answer["waiting"]["code"] != "not_yet")
            .then(|| format!(", {}", words::spread(&answer["accuracy"])));
        lines.push(format!(
            "start      about {start}{}",
            spread.unwrap_or_default()
        ));
    }
    lines.extend(words::accuracy(&answer["accuracy"]));
    if items(answer, "expected_nodes").next().is_some() {
        lines.push(format!(
            "where      later, on {}",
            text(&answer["expected_nodes"])
        ));
    }
    // Of an array it is told by node above.
    let placed = if array {
        &Value::Null
    } else {
        &answer["placement"]
    };
    let workers = placed.as_array().map_or(0, Vec::len);
    lines.extend(
        placed
            .as_array()
            .into_iter()
            .flatten()
            .take(WORKERS_MAX)
            .map(worker),
    );
    if workers > WORKERS_MAX {
        lines.push(format!(
            "           and {} more",
            counted((workers - WORKERS_MAX) as u64, "worker")
        ));
    }
    lines.extend(items(answer, "slices").map(slices));
    let displaced = &answer["displaces"];
    let lost = displaced["lost_gpu_seconds"].as_u64().unwrap_or(0);
    if let Some(jobs) = displaced["jobs"].as_u64().filter(|jobs| *jobs > 0) {
        lines.push(format!(
            "displaces  {} that {} {}, {} of them of your own teams; {} of {} work {} lost",
            counted(jobs, "job"),
            form(jobs, ("holds", "hold")),
            table::gpus(&displaced["gpus"]),
            text(&displaced["own_jobs"]),
            counted(lost, "GPU-second"),
            form(jobs, ("its", "their")),
            form(lost, IS)
        ));
    }
    if let Some(moved) = displaced["moved_jobs"].as_u64().filter(|jobs| *jobs > 0) {
        lines.push(format!(
            "moves      {} to {}",
            counted(moved, "job"),
            form(moved, ("another place", "other places"))
        ));
    }
    for there in items(answer, "costs_per_hour").filter(|_| answer["cost_per_hour"].is_null()) {
        let cost = match there["cost_per_hour"].is_object() {
            true => format!("{} per hour", table::price(&there["cost_per_hour"])),
            false => "unpriced".to_owned(),
        };
        let place = (text(&there["pool"]), text(&there["mode"]));
        lines.push(format!(
            "price      {cost} in pool {}, mode {}",
            place.0, place.1
        ));
    }
    if answer["cost_per_hour"].is_object() {
        let each = if array { " for each" } else { "" };
        lines.push(format!(
            "price      {} per hour{each}",
            table::price(&answer["cost_per_hour"])
        ));
    }
    lines
}

fn worker(worker: &Value) -> String {
    let devices: Vec<String> = items(worker, "devices").map(device).collect();
    format!(
        "worker {:<3} {} {}",
        text(&worker["worker"]),
        text(&worker["node"]),
        devices.join(", ")
    )
}

fn device(device: &Value) -> String {
    let part = match (device["mig"].as_str(), device["memory_mib"].as_i64()) {
        (Some(_), _) => format!(" {} at {}", text(&device["mig"]), text(&device["start"])),
        (None, Some(mib)) => format!(" {mib} MiB"),
        (None, None) => String::new(),
    };
    format!(
        "#{} {} {}{part}",
        text(&device["index"]),
        text(&device["mode"]),
        text(&device["gpus"])
    )
}

/// What is changed on a device.
fn slices(change: &Value) -> String {
    let instance = |verb: &'static str| {
        move |one: &Value| {
            format!(
                "{verb} {} at {}",
                text(&one["profile"]),
                text(&one["start"])
            )
        }
    };
    let switched = change["mode"]
        .as_str()
        .map(|mode| format!("switched to {mode}"));
    let changes: Vec<String> = switched
        .into_iter()
        .chain(items(change, "destroy").map(instance("remove")))
        .chain(items(change, "create").map(instance("cut")))
        .collect();
    format!(
        "changes    {} #{}: {}",
        text(&change["node"]),
        text(&change["index"]),
        changes.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dry_run_tells_when_where_what_is_cut_whom_it_displaces_and_the_price() {
        let answer = json!({
            "expected_start": "2026-11-30T12:00:00Z",
            "expected_nodes": ["n2"],
            "placement": [{"worker": 0, "node": "n1", "devices": [
                {"index": 0, "mode": "mig", "gpus": 0.5, "mig": "3g.40gb", "start": 4, "memory_mib": null},
                {"index": 1, "mode": "time_slice", "gpus": 0.25, "mig": null, "start": null, "memory_mib": 2048}
            ]}],
            "slices": [{"node": "n1", "index": 0, "mode": "mig",
                "create": [{"profile": "3g.40gb", "start": 4}], "destroy": [{"profile": "1g.10gb", "start": 5}]}],
            "displaces": {"jobs": 2, "own_jobs": 1, "gpus": 3.5, "moved_jobs": 3, "lost_gpu_seconds": 60},
            "cost_per_hour": {"amount": "82.2000", "currency": "CNY"},
        });
        assert_eq!(
            lines(&answer, false),
            [
                "start      about 2026-11-30T12:00:00Z, no starts measured yet",
                "where      later, on n2",
                "worker 0   n1 #0 mig 0.5 3g.40gb at 4, #1 time_slice 0.25 2048 MiB",
                "changes    n1 #0: switched to mig, remove 1g.10gb at 5, cut 3g.40gb at 4",
                "displaces  2 jobs that hold 3.5 GPUs, 1 of them of your own teams; 60 GPU-seconds of their work are lost",
                "moves      3 jobs to other places",
                "price      ¥82.20 per hour",
            ]
        );
        assert_eq!(lines(&answer, true)[0], "where      later, on n2");
    }

    #[test]
    fn one_job_is_told_as_one() {
        let answer = json!({
            "displaces": {"jobs": 1, "own_jobs": 0, "gpus": 1, "moved_jobs": 1, "lost_gpu_seconds": 1},
        });
        assert_eq!(
            lines(&answer, false),
            [
                "displaces  1 job that holds 1 GPU, 0 of them of your own teams; 1 GPU-second of its work is lost",
                "moves      1 job to another place",
            ]
        );
    }
}
