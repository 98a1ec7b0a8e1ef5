//! A job's spec from flags.

mod file;
mod yaml;

use std::collections::BTreeSet;
use std::path::Path;

use clap::Args;
use domain::name::{JobName, Name};
use domain::sharing::SharingMode;
use domain::spec::{JobKind, NvlinkRule, PartitionPolicy, RetryOn, Runner};
use serde_json::{Map, Value, json};

use super::said;
use crate::failure::Failure;
use file::read_text;

pub use file::{Asked, read, read_yaml};

/// One flag for each key of a spec.
#[derive(Debug, Default, Args)]
pub struct SpecFlags {
    /// The job's name [default: the program's]
    #[arg(long, value_parser = said::word_or_none::<JobName>)]
    pub name: Option<String>,
    /// training, batch or interactive
    #[arg(long, value_parser = said::word::<JobKind>)]
    pub kind: Option<String>,
    /// Priority class
    #[arg(long, value_parser = said::word_or_none::<Name>)]
    pub class: Option<String>,
    /// Acceptable pool, best first; may be repeated
    #[arg(long = "pool", value_name = "POOL", value_parser = said::name)]
    pub pools: Vec<String>,
    /// Container image, with --runner container
    #[arg(long)]
    pub image: Option<String>,
    /// process, container or vm
    #[arg(long, value_parser = said::word::<Runner>)]
    pub runner: Option<String>,
    /// Environment variable; may be repeated
    #[arg(long = "env", short = 'e', value_name = "KEY=VALUE")]
    pub env: Vec<String>,
    /// Folder to start in, below a root that the agents allow
    #[arg(long, value_name = "PATH")]
    pub working_directory: Option<String>,
    /// Text file to lay into the job's folder; may be repeated
    #[arg(long = "file", value_name = "[NAME=]PATH")]
    pub files: Vec<String>,
    /// Workers, placed all or none
    #[arg(long, value_parser = bounded("workers"), allow_negative_numbers = true)]
    pub workers: Option<u32>,
    /// Elastic: the least workers it starts with
    #[arg(long, value_parser = bounded("min_workers"), allow_negative_numbers = true)]
    pub min_workers: Option<u32>,
    /// Devices per worker, or a fraction under 1
    #[arg(long, short = 'g', allow_negative_numbers = true)]
    pub gpus: Option<String>,
    /// Device model it needs
    #[arg(long)]
    pub gpu_model: Option<String>,
    /// Least device memory, such as 40GiB or a number of MiB
    #[arg(long, value_name = "SIZE")]
    pub gpu_memory: Option<String>,
    /// MIG profile, such as 1g.10gb
    #[arg(long)]
    pub mig_profile: Option<String>,
    /// Accepted sharing mode; may be repeated
    #[arg(long = "sharing", value_name = "MODE", value_parser = said::word::<SharingMode>)]
    pub sharing: Vec<String>,
    /// CPU cores per worker
    #[arg(long, allow_negative_numbers = true)]
    pub cpus: Option<String>,
    /// Host memory per worker, such as 512GiB or a number of MiB
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Node label that must match; may be repeated
    #[arg(long = "selector", value_name = "LABEL=VALUE")]
    pub selector: Vec<String>,
    /// All workers in one domain of this node label
    #[arg(long = "require", value_name = "LABEL")]
    pub topology_require: Option<String>,
    /// Workers in one domain of this node label where possible
    #[arg(long = "prefer", value_name = "LABEL")]
    pub topology_prefer: Option<String>,
    /// prefer, require or any
    #[arg(long, value_parser = said::word::<NvlinkRule>)]
    pub nvlink: Option<String>,
    /// Label whose values workers must not share
    #[arg(long, value_name = "LABEL")]
    pub anti_affinity: Option<String>,
    /// The one node it may run on
    #[arg(long, value_parser = said::word_or_none::<Name>)]
    pub node: Option<String>,
    /// Not started before this time (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = said::time_or_none)]
    pub not_before: Option<String>,
    /// Make it an array of so many jobs, told apart by ALLOTMENT_ARRAY_INDEX
    #[arg(long, value_name = "COUNT", value_parser = bounded("array.count"), allow_negative_numbers = true)]
    pub array: Option<u32>,
    /// Most elements of the array that run at once
    #[arg(long, value_name = "COUNT", value_parser = bounded("array.at_most"), allow_negative_numbers = true)]
    pub at_most: Option<u32>,
    /// Job that must have ended well; may be repeated. #0 is the first job of the same file
    #[arg(long = "after", value_name = "ID")]
    pub after: Vec<String>,
    /// Longest run, such as 90s, 30m, 12h, 2d
    #[arg(long, value_name = "DURATION")]
    pub time_limit: Option<String>,
    /// How long it is expected to run
    #[arg(long, value_name = "DURATION")]
    pub predicted: Option<String>,
    /// Whether it may be preempted [default: as its class says]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub preemptible: Option<bool>,
    /// It saves its state every so often
    #[arg(long, value_name = "DURATION")]
    pub checkpoint: Option<String>,
    /// What a restart costs
    #[arg(long, value_name = "DURATION")]
    pub restart: Option<String>,
    /// Most further attempts
    #[arg(long, value_parser = bounded("retries.limit"), allow_negative_numbers = true)]
    pub retries: Option<u32>,
    /// failure or time_limit; may be repeated [default with --retries: failure]
    #[arg(long = "retry-on", value_name = "END", value_parser = said::word::<RetryOn>)]
    pub retry_on: Vec<String>,
    /// What a cut-off node does with it: stop or keep
    #[arg(long, value_parser = said::word::<PartitionPolicy>)]
    pub on_partition: Option<String>,
    /// Label for people; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
}

/// A whole number within the bounds of its key of a spec.
fn bounded(key: &str) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(domain::spec::bounds(key).expect("a key of whole numbers"))
}

impl SpecFlags {
    /// Writes the flags over `spec`; what was not said stays as it is.
    pub fn write(&self, spec: &mut Map<String, Value>) -> Result<(), Failure> {
        let texts = [
            ("name", &self.name),
            ("kind", &self.kind),
            ("class", &self.class),
            ("image", &self.image),
            ("runner", &self.runner),
            ("working_directory", &self.working_directory),
            ("nvlink", &self.nvlink),
            ("anti_affinity", &self.anti_affinity),
            ("node", &self.node),
            ("not_before", &self.not_before),
            ("on_partition", &self.on_partition),
        ];
        for (key, value) in texts {
            if let Some(value) = value {
                spec.insert(key.into(), text_or_none(value));
            }
        }
        for (key, values) in [("pools", &self.pools), ("after", &self.after)] {
            if !values.is_empty() {
                spec.insert(key.into(), json!(values));
            }
        }
        for (key, values) in [
            ("env", &self.env),
            ("selector", &self.selector),
            ("labels", &self.labels),
        ] {
            // Those of a file or of a job like it are overwritten; of two flags neither is.
            let flag = key.trim_end_matches('s');
            let mut named = BTreeSet::new();
            for pair in values {
                let (name, value) = pair
                    .split_once('=')
                    .ok_or_else(|| Failure::Words(format!("--{flag}: {pair} is not KEY=VALUE")))?;
                if !named.insert(name) {
                    return Err(twice(flag, name));
                }
                object(spec, key).insert(name.into(), json!(value));
            }
        }
        for (key, value) in [("workers", self.workers), ("min_workers", self.min_workers)] {
            if let Some(value) = value {
                spec.insert(key.into(), json!(value));
            }
        }
        for (key, value) in [("count", self.array), ("at_most", self.at_most)] {
            if let Some(value) = value {
                object(spec, "array").insert(key.into(), json!(value));
            }
        }
        if self.at_most.is_some() && spec["array"].get("count").is_none() {
            let words = "--at-most is of an array: say --array COUNT with it";
            return Err(Failure::Words(words.into()));
        }
        let durations = [
            ("--time-limit", "time_limit_seconds", &self.time_limit),
            ("--predicted", "predicted_seconds", &self.predicted),
            ("--checkpoint", "checkpoint_seconds", &self.checkpoint),
            ("--restart", "restart_seconds", &self.restart),
        ];
        for (flag, key, value) in durations {
            if let Some(value) = value {
                spec.insert(key.into(), json!(seconds(flag, value)?));
            }
        }
        if let Some(preemptible) = self.preemptible {
            spec.insert("preemptible".into(), json!(preemptible));
        }
        self.write_needs(spec)?;
        self.write_retries(spec);
        let mut named = BTreeSet::new();
        for file in &self.files {
            let (name, path) = match file.split_once('=') {
                Some((name, path)) => (name, path),
                None => (file.rsplit('/').next().unwrap_or(file), file.as_str()),
            };
            if !named.insert(name) {
                return Err(twice("file", name));
            }
            object(spec, "files").insert(name.into(), json!(read_text(Path::new(path))?));
        }
        Ok(())
    }

    fn write_needs(&self, spec: &mut Map<String, Value>) -> Result<(), Failure> {
        for (key, value) in [("gpus", &self.gpus), ("cpus", &self.cpus)] {
            if let Some(value) = value {
                object(spec, "per_worker").insert(key.into(), number(key, value)?);
            }
        }
        for (flag, key, value) in [
            ("--gpu-memory", "gpu_memory_mib", &self.gpu_memory),
            ("--memory", "memory_mib", &self.memory),
        ] {
            if let Some(value) = value {
                object(spec, "per_worker").insert(key.into(), json!(mib(flag, value)?));
            }
        }
        for (key, value) in [
            ("gpu_model", &self.gpu_model),
            ("mig_profile", &self.mig_profile),
        ] {
            if let Some(value) = value {
                object(spec, "per_worker").insert(key.into(), text_or_none(value));
            }
        }
        if !self.sharing.is_empty() {
            object(spec, "per_worker").insert("sharing".into(), json!(self.sharing));
        }
        for (key, value) in [
            ("require", &self.topology_require),
            ("prefer", &self.topology_prefer),
        ] {
            if let Some(value) = value {
                object(spec, "topology").insert(key.into(), text_or_none(value));
            }
        }
        Ok(())
    }

    fn write_retries(&self, spec: &mut Map<String, Value>) {
        if let Some(limit) = self.retries {
            object(spec, "retries").insert("limit".into(), json!(limit));
            if self.retry_on.is_empty() {
                object(spec, "retries")
                    .entry("on")
                    .or_insert(json!(["failure"]));
            }
        }
        if !self.retry_on.is_empty() {
            object(spec, "retries").insert("on".into(), json!(self.retry_on));
        }
    }
}

/// A name that two flags give.
fn twice(flag: &str, name: &str) -> Failure {
    let name = domain::error::quote(name);
    Failure::Words(format!("--{flag}: {name} is given twice: give it once"))
}

/// A text; an empty one takes the key of a file or of a job like it away.
fn text_or_none(text: &str) -> Value {
    if text.is_empty() {
        Value::Null
    } else {
        json!(text)
    }
}

fn object<'a>(spec: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let entry = spec.entry(key).or_insert_with(|| json!({}));
    if !entry.is_object() {
        *entry = json!({});
    }
    entry.as_object_mut().expect("it was just made one")
}

/// A plain decimal, passed on digit for digit.
fn number(flag: &str, text: &str) -> Result<Value, Failure> {
    let plain = text
        .bytes()
        .all(|b| b.is_ascii_digit() || b == b'.' || b == b'-');
    text.parse::<serde_json::Number>()
        .ok()
        .filter(|_| plain)
        .map(Value::Number)
        .ok_or_else(|| Failure::Words(format!("--{flag}: {text} is not a number such as 4 or 0.5")))
}

/// Seconds of `90`, `90s`, `30m`, `12h` or `2d`.
pub fn seconds(flag: &str, text: &str) -> Result<i64, Failure> {
    scaled(text, &[("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)]).ok_or_else(|| {
        Failure::Words(format!(
            "{flag}: {text} is not a duration such as 90s, 30m, 12h or 2d"
        ))
    })
}

/// MiB of `32768`, `512MiB`, `64GiB` or `2TiB`.
fn mib(flag: &str, text: &str) -> Result<i64, Failure> {
    scaled(text, &[("MiB", 1), ("GiB", 1024), ("TiB", 1024 * 1024)]).ok_or_else(|| {
        Failure::Words(format!(
            "{flag}: {text} is not a size such as 32768, 512MiB, 64GiB or 2TiB"
        ))
    })
}

fn scaled(text: &str, units: &[(&str, i64)]) -> Option<i64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (amount, unit) = text.split_at(digits);
    let factor = if unit.is_empty() {
        1
    } else {
        units.iter().find(|(name, _)| *name == unit)?.1
    };
    amount.parse::<i64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_read_in_the_units_that_people_use() {
        let seconds = |text| seconds("--time-limit", text);
        let mib = |text| mib("--memory", text);
        assert_eq!(seconds("12h").ok(), Some(43_200));
        assert_eq!(seconds("90").ok(), Some(90));
        assert!(seconds("1.5h").is_err() && seconds("h").is_err());
        assert_eq!(mib("512GiB").ok(), Some(524_288));
        assert!(mib("9999999999999TiB").is_err() && mib("512GB").is_err());
        let told = seconds("1x").expect_err("no such unit").to_string();
        assert!(told.starts_with("--time-limit: 1x is not"), "{told}");
    }

    #[test]
    fn numbers_of_flags_have_the_bounds_of_their_keys() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            spec: SpecFlags,
        }
        let refused = |flag: &str, value: &str| {
            let words = ["allot", flag, value];
            let parsed = <Line as clap::Parser>::try_parse_from(words);
            parsed.map(|_| ()).expect_err(flag).to_string()
        };
        for (flag, bounds) in [
            ("--workers", "1..=1024"),
            ("--min-workers", "1..=1024"),
            ("--retries", "0..=100"),
            ("--array", "1..=10000"),
        ] {
            for value in ["-1", "5000000000", "20000"] {
                let told = refused(flag, value);
                assert!(told.contains(bounds), "{flag} {value}: {told}");
            }
        }
    }

    #[test]
    fn a_name_that_two_flags_give_is_refused() {
        let told = |flags: &SpecFlags| {
            let mut spec = Map::new();
            spec.insert("env".into(), json!({"A": "0"}));
            flags
                .write(&mut spec)
                .map_err(|failure| failure.to_string())
        };
        let pairs = |pairs: &[&str]| pairs.iter().map(|pair| (*pair).to_owned()).collect();
        let once = SpecFlags {
            env: pairs(&["A=1", "B=1"]),
            ..SpecFlags::default()
        };
        assert_eq!(told(&once), Ok(()));
        for (flags, words) in [
            (
                SpecFlags {
                    env: pairs(&["A=1", "A=2"]),
                    ..SpecFlags::default()
                },
                "--env: A is given twice",
            ),
            (
                SpecFlags {
                    labels: pairs(&["x=1", "x=1"]),
                    ..SpecFlags::default()
                },
                "--label: x is given twice",
            ),
        ] {
            let failure = told(&flags).expect_err(words);
            assert!(failure.starts_with(words), "{failure}");
        }
    }

    #[test]
    fn how_many_run_at_once_is_said_of_an_array_alone() {
        let flags = SpecFlags {
            at_most: Some(2),
            ..SpecFlags::default()
        };
        let refused = flags.write(&mut Map::new());
        assert!(matches!(refused, Err(Failure::Words(_))), "{refused:?}");
        let mut array = Map::new();
        array.insert("array".into(), json!({"count": 4}));
        flags.write(&mut array).expect("the file says how many");
        assert_eq!(array["array"], json!({"count": 4, "at_most": 2}));
    }

    #[test]
    fn flags_overwrite_a_file_and_leave_the_rest() {
        let mut spec = json!({"name": "a", "per_worker": {"gpus": 8, "cpus": 4}})
            .as_object()
            .cloned()
            .expect("an object");
        let flags = SpecFlags {
            gpus: Some("0.5".into()),
            time_limit: Some("1h".into()),
            retries: Some(2),
            ..SpecFlags::default()
        };
        flags.write(&mut spec).expect("well-formed flags");
        assert_eq!(
            Value::Object(spec),
            json!({
                "name": "a", "per_worker": {"gpus": 0.5, "cpus": 4}, "time_limit_seconds": 3600,
                "retries": {"limit": 2, "on": ["failure"]},
            })
        );
    }
}
