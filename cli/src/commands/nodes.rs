//! `allot nodes`, `allot cordon`, `allot uncordon`, `allot drain` and `allot clear`: the fleet, what is
//! wrong with it, what is wanted of a node, and a device returned to service.

use clap::Args;
use domain::state::DRAIN_SECONDS_MAX;
use serde_json::{Value, json};

use super::spec::seconds;
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table::{self, text};

/// Most rows of a list that is not paged for people.
const ROWS_MAX: usize = 10_000;

/// List nodes, and the devices that are out of use.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot nodes")]
pub struct Nodes {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Nodes {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let nodes = Client::found()?.list("/nodes", &[], ROWS_MAX).await?;
        if self.json {
            return table::print_json(&json!({ "items": nodes }));
        }
        let out: Vec<String> = nodes.iter().flat_map(out_of_use).collect();
        let rows: Vec<Value> = nodes.into_iter().map(count_devices).collect();
        let columns = [
            ("NAME", "name"),
            ("POOL", "pool"),
            ("INTENT", "intent"),
            ("REACHABILITY", "reachability"),
            ("MODEL", "model"),
            ("DEVICES", "count"),
            ("FREE", "free"),
            ("OUT", "out"),
        ];
        table::print(
            &rows,
            &columns,
            "no nodes; enrol one with `allotment-agent enrol`",
        )?;
        for line in out {
            table::print_line(&line)?;
        }
        Ok(())
    }
}

/// What is out of use on a node, and why, as lines.
fn out_of_use(node: &Value) -> Vec<String> {
    let name = text(&node["name"]);
    let mut lines = Vec::new();
    if node["intent"] != "open" && node["intent_reason"] != "" {
        let (intent, why) = (text(&node["intent"]), text(&node["intent_reason"]));
        lines.push(format!("{name} is {intent}: {why}"));
    }
    if let Some(at) = node["drain_deadline_at"].as_str() {
        lines.push(format!(
            "{name}: the deadline of its drain is {at}; what still runs there then is stopped"
        ));
    }
    if let Some(full) = node["disk_full"].as_object() {
        let [free, needed, since] = ["free_mib", "needed_mib", "since"].map(|key| text(&full[key]));
        lines.push(format!(
            "{name} takes no work: its disk is full since {since}, {free} MiB were free and {needed} are needed"
        ));
    }
    if let Some(ahead_ms) = node["clock_ahead_ms"].as_i64() {
        let (seconds, way) = (
            ahead_ms.unsigned_abs() / 1000,
            if ahead_ms < 0 { "behind" } else { "ahead" },
        );
        lines.push(format!(
            "{name}: its clock is {seconds} s {way}; look at its time service"
        ));
    }
    let devices = node["devices"].as_array().into_iter().flatten();
    lines.extend(devices.clone().filter_map(|device| {
        let layout = device["layout"].as_object()?;
        let index = text(&device["index"]);
        let profiles = layout["profiles"].as_array().into_iter().flatten();
        let profiles: Vec<String> = profiles.map(text).collect();
        let will = match (&layout["mig"], profiles.is_empty()) {
            (Value::Bool(true), false) => format!("cut into {}", profiles.join(", ")),
            (Value::Bool(true), true) => "put into MIG mode".to_owned(),
            _ => "made whole".to_owned(),
        };
        Some(format!(
            "{name} device {index} is about to be {will}; nothing new is placed on it until then"
        ))
    }));
    lines.extend(devices.filter(|d| d["health"] != "healthy").map(|device| {
        let [index, health] = ["index", "health"].map(|key| text(&device[key]));
        let since = table::shown(device, "health_at");
        let why = match &device["health_detail"] {
            Value::String(detail) => text(&json!(detail)),
            _ => text(&device["health_reason"]),
        };
        let found = device["found"].as_array().into_iter().flatten();
        let numbered = found.filter_map(|finding| Some((finding["number"].as_i64()?, finding)));
        let newest = numbered.clone().map(|(number, _)| number).max();
        // Who clears one vouches for all of them.
        let shown = text(&device["health_reason"]);
        let others = numbered.map(|(_, finding)| text(&finding["reason"]));
        let others: Vec<String> = others.filter(|reason| !shown.contains(reason.as_str())).collect();
        let remedy = match (newest, &device["cleared"]) {
            (None, _) => String::new(),
            (Some(_), Value::Bool(true)) => "; cleared, which its node has yet to say".to_owned(),
            (Some(newest), _) => format!(
                "; once it is dealt with: allot clear {name} {index} --finding {newest} --reason 'what was done'"
            ),
        };
        let also = match others.is_empty() {
            true => String::new(),
            false => format!("; found too: {}", others.join("; ")),
        };
        format!("{name} device {index} is {health} since {since}: {why}{also}{remedy}")
    }));
    lines
}

fn count_devices(mut node: Value) -> Value {
    let devices = node["devices"].as_array().cloned().unwrap_or_default();
    let out = devices.iter().filter(|d| d["health"] != "healthy").count();
    let free = devices
        .iter()
        .filter(|d| d["health"] == "healthy" && d["in_use"].as_i64() == Some(0))
        .count();
    node["model"] = devices.first().map_or(Value::Null, |d| d["model"].clone());
    node["count"] = json!(devices.len());
    node["free"] = json!(free);
    node["out"] = json!(out);
    node
}

/// Keep new work away from a node; what runs stays, also beyond the deadline of a drain before.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot cordon gpu-07 --reason 'a noisy fan'")]
pub struct Cordon {
    #[command(flatten)]
    steered: Steered,
}

impl Cordon {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        self.steered.post("cordon", json!({})).await
    }
}

/// Let new work come to a node again.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot uncordon gpu-07")]
pub struct Uncordon {
    #[command(flatten)]
    steered: Steered,
}

impl Uncordon {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        self.steered.post("uncordon", json!({})).await
    }
}

/// Empty a node: work that may be preempted leaves, the rest ends by itself, or all by a deadline.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  allot drain gpu-07 --deadline 2h --reason 'a new fan'\n\nAsked again, the last word holds: another deadline, or none. `allot cordon` lets what runs stay."
)]
pub struct Drain {
    #[command(flatten)]
    steered: Steered,
    /// How long running work may stay, such as 90s, 30m, 12h or 2d: all of it until then, and what
    /// still runs then is preempted, also what may not be preempted otherwise
    #[arg(long)]
    deadline: Option<String>,
}

impl Drain {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let seconds = self.deadline.map(|text| deadline(&text));
        let body = json!({ "deadline_seconds": seconds.transpose()? });
        self.steered.post("drain", body).await
    }
}

/// Seconds of a deadline; one that is too long is refused in the words in which it was typed.
fn deadline(text: &str) -> Result<i64, Failure> {
    let seconds = seconds("--deadline", text)?;
    if seconds > DRAIN_SECONDS_MAX {
        let days = DRAIN_SECONDS_MAX / (24 * 3600);
        return Err(Failure::Words(format!(
            "--deadline: {text} is too long: at most {days}d"
        )));
    }
    Ok(seconds)
}

/// What is said of a node that is steered.
#[derive(Debug, Args)]
struct Steered {
    /// The node
    node: String,
    /// Why; it is shown with the node
    #[arg(long, default_value = "")]
    reason: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Steered {
    async fn post(self, verb: &str, mut body: Value) -> Result<(), Failure> {
        let path = format!("/nodes/{}/{verb}", part(&self.node));
        body["reason"] = self.reason.into();
        let node = Client::found()?.post(&path, &body).await?;
        if self.json {
            return table::print_json(&node);
        }
        let (name, intent) = (text(&node["name"]), text(&node["intent"]));
        match node["drain_deadline_at"].as_str() {
            Some(at) => table::print_line(&format!(
                "node {name} is {intent}; its deadline is {at}, what still runs there then is stopped"
            )),
            None => table::print_line(&format!("node {name} is {intent}")),
        }
    }
}

/// Return a device to service of which something was found, once that is dealt with.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  allot clear gpu-07 3 --finding 1764000000000000 --reason 'reset, and dcgmi diag has passed'"
)]
pub struct Clear {
    /// The node
    node: String,
    /// The device: its index on the node, or its UUID
    device: String,
    /// The number of the newest finding that you have seen; `allot nodes` prints it
    #[arg(long)]
    finding: i64,
    /// What was done
    #[arg(long)]
    reason: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Clear {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let path = format!(
            "/nodes/{}/devices/{}/clear",
            part(&self.node),
            part(&self.device)
        );
        let body = json!({ "finding": self.finding, "reason": self.reason });
        let node = Client::found()?.post(&path, &body).await?;
        if self.json {
            return table::print_json(&node);
        }
        let said = "what was found of it is cleared; it is healthy when its node says so";
        table::print_line(&format!("device {} of {}: {said}", self.device, self.node))
    }
}

#[cfg(test)]
mod deadlines {
    use super::*;

    #[test]
    fn a_deadline_that_is_too_long_is_refused_in_the_words_in_which_it_was_typed() {
        assert_eq!(deadline("30d").expect("the longest"), DRAIN_SECONDS_MAX);
        let told = deadline("31d").expect_err("refused").to_string();
        assert_eq!(told, "--deadline: 31d is too long: at most 30d");
    }
}
