//! `allot telemetry`: what a job, or the devices of a node, did in a window of time.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::said;
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table::{self, text};

/// Show what a job, or the devices of a node, did: load, memory, power and energy
///
/// What is not known is a dash, which is never the same as 0.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  allot telemetry 0190a1b2-…\n  allot telemetry --node h100-1 --from 2026-11-01T08:00:00Z"
)]
pub struct Telemetry {
    /// The job
    #[arg(required_unless_present = "node", conflicts_with = "node")]
    job: Option<String>,
    /// The node, a row for each of its devices
    #[arg(long)]
    node: Option<String>,
    /// Only this device of the node, a row for each step
    #[arg(long, requires = "node")]
    device: Option<u32>,
    /// From this time (RFC 3339) [default: the job's start, or an hour ago]
    #[arg(long, value_parser = said::time)]
    from: Option<String>,
    /// Up to this time (RFC 3339) [default: the job's end, or now]
    #[arg(long, value_parser = said::time)]
    to: Option<String>,
    /// How long the steps are [default: as fine as the window allows]
    #[arg(long)]
    step: Option<Step>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Step {
    Sample,
    Minute,
    Hour,
    Day,
}

impl Telemetry {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        let path = match (&self.job, &self.node) {
            (Some(job), _) => format!("/jobs/{}/telemetry", part(job)),
            (None, Some(node)) => format!("/nodes/{}/telemetry", part(node)),
            (None, None) => unreachable!("clap asks for one of them"),
        };
        let step = self
            .step
            .and_then(|step| Some(step.to_possible_value()?.get_name().to_owned()));
        let said = [("from", &self.from), ("to", &self.to), ("step", &step)];
        let said = said.into_iter();
        let query: Vec<_> = said
            .filter_map(|(key, value)| Some((key, value.clone()?)))
            .collect();
        let answer = client.get(&path, &query).await?;
        let answer = match self.device {
            Some(index) => of_device(answer, index)?,
            None => answer,
        };
        if self.json {
            return table::print_json(&answer);
        }
        let window = format!(
            "{} to {}, by steps of a {}",
            table::shown(&answer, "from"),
            table::shown(&answer, "to"),
            text(&answer["step"])
        );
        table::print_line(&window)?;
        match (self.job, self.device) {
            (Some(_), _) => print_job(&answer),
            (None, Some(_)) => print_device(&answer["devices"][0]),
            (None, None) => print_devices(&answer),
        }
    }
}

/// The answer with that device alone.
fn of_device(mut answer: Value, index: u32) -> Result<Value, Failure> {
    let devices = answer["devices"].as_array_mut();
    let devices = devices.map(std::mem::take).unwrap_or_default();
    let indices: Vec<String> = devices
        .iter()
        .map(|device| text(&device["index"]))
        .collect();
    let own = devices.into_iter().find(|device| device["index"] == index);
    let Some(own) = own else {
        let all = indices.join(", ");
        return Err(Failure::Refused(format!(
            "--device {index}: the node has no such device; its devices are {all}"
        )));
    };
    answer["devices"] = json!([own]);
    Ok(answer)
}

fn print_job(answer: &Value) -> Result<(), Failure> {
    let row = |point: &Value| {
        json!({
            "at": point["at"],
            "parts": point["devices"],
            "busy": percent(&point["busy_permille"]),
            "sm": percent(&point["sm_permille"]),
            "lowest": percent(&point["lowest_permille"]),
            "highest": percent(&point["highest_permille"]),
            "memory": point["memory_mib"],
            "energy": watt_hours(&point["energy_mj"]),
            "processes": point["processes_least"],
        })
    };
    let columns = [
        ("AT", "at"),
        ("PARTS", "parts"),
        ("KERNELS", "busy"),
        ("SM", "sm"),
        ("LOWEST", "lowest"),
        ("HIGHEST", "highest"),
        ("MEMORY MIB", "memory"),
        ("WH", "energy"),
        ("PROCESSES", "processes"),
    ];
    let points = points(answer).iter().map(row).collect::<Vec<_>>();
    table::print(&points, &columns, "no samples of that time")
}

fn print_device(device: &Value) -> Result<(), Failure> {
    let row = |point: &Value| {
        let mut row = figures(std::slice::from_ref(point));
        row["at"] = point["at"].clone();
        row
    };
    let rows: Vec<Value> = points(device).iter().map(row).collect();
    table::print(&rows, &columns(("AT", "at")), "no samples of that time")
}

fn print_devices(answer: &Value) -> Result<(), Failure> {
    let devices = answer["devices"].as_array().into_iter().flatten();
    let row = |device: &Value| {
        let mut row = figures(points(device));
        row["gpu"] = device["index"].clone();
        row
    };
    let rows: Vec<Value> = devices.map(row).collect();
    table::print(&rows, &columns(("GPU", "gpu")), "the node has no devices")
}

fn columns(first: table::Column) -> [table::Column; 9] {
    [
        first,
        ("KERNELS", "busy"),
        ("SM", "sm"),
        ("TENSOR", "tensor"),
        ("DRAM", "dram"),
        ("MEMORY MIB", "memory"),
        ("°C", "temperature"),
        ("W", "power"),
        ("WH", "energy"),
    ]
}

fn points(of: &Value) -> &[Value] {
    of["points"].as_array().map_or(&[], Vec::as_slice)
}

/// What a device did in all of these steps: means by samples, the hottest, all energy.
fn figures(points: &[Value]) -> Value {
    let known = |key: &str| {
        let of = |point: &Value| Some((point["samples"].as_i64()?, point[key].as_i64()?));
        points.iter().filter_map(of).collect::<Vec<_>>()
    };
    let mean = |key: &str| {
        let known = known(key);
        let count: i64 = known.iter().map(|(samples, _)| samples).sum();
        let sum: i64 = known.iter().map(|(samples, figure)| samples * figure).sum();
        json!(sum.checked_div(count))
    };
    let all = |key: &str| known(key).into_iter().map(|(_, figure)| figure);
    let energy: Option<i64> = all("energy_mj").reduce(|sum, more| sum.saturating_add(more));
    json!({
        "busy": percent(&mean("busy_permille")),
        "sm": percent(&mean("sm_permille")),
        "tensor": percent(&mean("tensor_permille")),
        "dram": percent(&mean("dram_permille")),
        "memory": mean("memory_mib"),
        "temperature": all("temperature_c").max(),
        "power": mean("power_mw").as_i64().map(|mw| mw / 1000),
        "energy": watt_hours(&json!(energy)),
    })
}

/// A share in thousandths as people read it.
fn percent(permille: &Value) -> Value {
    let shown = permille
        .as_i64()
        .map(|share| format!("{}.{} %", share / 10, share % 10));
    json!(shown)
}

/// Millijoules in watt-hours, to the hundredth.
fn watt_hours(millijoules: &Value) -> Value {
    const HUNDREDTH_MJ: i64 = 36_000;
    let shown = millijoules.as_i64().map(|mj| {
        let hundredths = mj / HUNDREDTH_MJ;
        format!("{}.{:02}", hundredths / 100, hundredths % 100)
    });
    json!(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_told_by_means_over_samples_and_what_is_unknown_is_not_0() {
        let points = [
            json!({"samples": 1, "busy_permille": 1000, "memory_mib": 100, "temperature_c": 40,
                "energy_mj": 3_600_000, "sm_permille": null}),
            json!({"samples": 3, "busy_permille": 0, "memory_mib": null, "temperature_c": 60,
                "energy_mj": 3_636_000, "power_mw": 70_900}),
        ];
        let told = figures(&points);
        assert_eq!(told["busy"], "25.0 %");
        assert_eq!(told["sm"], Value::Null);
        assert_eq!(told["memory"], 100);
        assert_eq!(told["temperature"], 60);
        assert_eq!(told["power"], 70);
        assert_eq!(told["energy"], "2.01");
        assert_eq!(figures(&[])["energy"], Value::Null);
    }

    #[test]
    fn a_device_that_is_not_there_is_refused_with_those_that_are() {
        let answer = || json!({"devices": [{"index": 0}, {"index": 3}]});
        let own = of_device(answer(), 3).expect("it is there");
        assert_eq!(own["devices"], json!([{"index": 3}]));
        let refused = of_device(answer(), 1).expect_err("it is not");
        assert!(refused.to_string().contains("0, 3"), "{refused}");
    }
}
