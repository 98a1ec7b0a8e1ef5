//! A job's spec from flags, or from a YAML file.

use std::fs;
use std::path::Path;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// One flag for each key of a spec.
#[derive(Debug, Default, Args)]
pub struct SpecFlags {
    /// The job's name [default: the program's]
    #[arg(long)]
    pub name: Option<String>,
    /// training, batch or interactive
    #[arg(long)]
    pub kind: Option<String>,
    /// Priority class
    #[arg(long)]
    pub class: Option<String>,
    /// Acceptable pool, best first; may be repeated
    #[arg(long = "pool", value_name = "POOL")]
    pub pools: Vec<String>,
    /// Container image, with --runner container
    #[arg(long)]
    pub image: Option<String>,
    /// process, container or vm
    #[arg(long)]
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
    #[arg(long = "sharing", value_name = "MODE")]
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
    #[arg(long)]
    pub nvlink: Option<String>,
    /// Label whose values workers must not share
    #[arg(long, value_name = "LABEL")]
    pub anti_affinity: Option<String>,
    /// The one node it may run on
    #[arg(long)]
    pub node: Option<String>,
    /// Not started before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub not_before: Option<String>,
    /// Job that must have ended well; may be repeated
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
    #[arg(long = "retry-on", value_name = "END")]
    pub retry_on: Vec<String>,
    /// What a cut-off node does with it: stop or keep
    #[arg(long)]
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
                spec.insert(key.into(), json!(value));
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
            for pair in values {
                let (name, value) = pair
                    .split_once('=')
                    .ok_or_else(|| Failure::Words(format!("--{key}: {pair} is not KEY=VALUE")))?;
                object(spec, key).insert(name.into(), json!(value));
            }
        }
        for (key, value) in [("workers", self.workers), ("min_workers", self.min_workers)] {
            if let Some(value) = value {
                spec.insert(key.into(), json!(value));
            }
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
        for file in &self.files {
            let (name, path) = match file.split_once('=') {
                Some((name, path)) => (name, path),
                None => (file.rsplit('/').next().unwrap_or(file), file.as_str()),
            };
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
                object(spec, "per_worker").insert(key.into(), json!(value));
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
                object(spec, "topology").insert(key.into(), json!(value));
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

/// What a file asks for.
#[derive(Debug)]
pub enum Asked {
    /// One job.
    One(Map<String, Value>),
    /// Many jobs, all of them or none.
    Batch(Vec<Map<String, Value>>),
}

/// Reads a spec, or a list of specs below the key `jobs`, from a YAML or JSON file. A text in
/// `files` that begins with `@` names a file beside it. The key `team`, which a spec does not
/// have, is returned apart.
pub fn read(path: &Path) -> Result<(Asked, Option<String>), Failure> {
    let Value::Object(mut spec) = read_yaml(path)? else {
        return Err(Failure::Refused(format!(
            "{}: this is no spec; write one key with its value on a line, such as name: digits",
            path.display()
        )));
    };
    let team = match spec.remove("team") {
        None => None,
        Some(Value::String(team)) => Some(team),
        Some(other) => {
            return Err(Failure::Refused(format!(
                "{}: team: {other} is not a name",
                path.display()
            )));
        }
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let Some(jobs) = spec.remove("jobs") else {
        return Ok((Asked::One(with_files(spec, folder)?), team));
    };
    if let Some(key) = spec.keys().next() {
        return Err(Failure::Refused(format!(
            "{}: {key}: beside jobs only team is said; write it with each job",
            path.display()
        )));
    }
    let Value::Array(jobs) = jobs else {
        return Err(Failure::Refused(format!(
            "{}: jobs: this is no list of specs; begin each with -",
            path.display()
        )));
    };
    let specs = jobs.into_iter().enumerate().map(|(at, job)| match job {
        Value::Object(spec) => with_files(spec, folder),
        other => Err(Failure::Refused(format!(
            "{}: jobs[{at}]: {other} is no spec",
            path.display()
        ))),
    });
    Ok((Asked::Batch(specs.collect::<Result<_, _>>()?), team))
}

/// Puts the texts of files that a spec names into it.
fn with_files(mut spec: Map<String, Value>, folder: &Path) -> Result<Map<String, Value>, Failure> {
    if let Some(Value::Object(files)) = spec.get_mut("files") {
        for content in files.values_mut() {
            if let Some(beside) = content.as_str().and_then(|text| text.strip_prefix('@')) {
                *content = json!(read_text(&folder.join(beside))?);
            }
        }
    }
    Ok(spec)
}

/// Reads a YAML or JSON file.
pub(super) fn read_yaml(path: &Path) -> Result<Value, Failure> {
    let text = read_text(path)?;
    serde_saphyr::from_str(&text).map_err(|error| unreadable(path, &error))
}

/// A file that is no YAML, told by its place, with what is wrong there and what would be right: a
/// parser's own words speak of its types.
fn unreadable(path: &Path, error: &serde_saphyr::Error) -> Failure {
    let error = error.without_snippet();
    let place = error.location().map_or_else(String::new, |at| {
        format!(", line {}, column {}", at.line(), at.column())
    });
    let words = match error {
        serde_saphyr::Error::DuplicateMappingKey { key, .. } => format!(
            "the key {} is there twice: give it once",
            key.as_deref().map_or_else(|| "here".to_owned(), domain::error::quote)
        ),
        serde_saphyr::Error::MultipleDocuments { .. } => {
            "a second document begins here: put one spec in a file".to_owned()
        }
        serde_saphyr::Error::Eof { .. } => "there is nothing in it: a spec is a mapping of keys, such as name: digits".to_owned(),
        _ => "this is not YAML: write each key as `key: value`, such as name: digits, indent by spaces and alike, and close quotes and brackets".to_owned(),
    };
    Failure::Refused(format!("{}{place}: {words}", path.display()))
}

fn read_text(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
            _ => error.to_string(),
        };
        Failure::Refused(format!(
            "{}: {why}; name a text file that you may read",
            path.display()
        ))
    })
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
fn seconds(flag: &str, text: &str) -> Result<i64, Failure> {
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
    fn a_file_that_is_no_spec_is_told_by_its_place_and_what_to_write() {
        let path = std::env::temp_dir().join(format!("allot-spec-{}.yaml", std::process::id()));
        let told = |text: &str| {
            fs::write(&path, text).expect("it can be written");
            let failure = read(&path).expect_err("it is no spec").to_string();
            fs::remove_file(&path).expect("it was there");
            failure
        };
        for text in [": : bad", "a: [1", "just words"] {
            let failure = told(text);
            assert!(failure.contains("such as name: digits"), "{failure}");
            assert!(!failure.contains("Option<"), "{failure}");
            assert_eq!(failure.lines().count(), 1, "{failure}");
        }
        assert!(told("a: [1").contains("line "));
        let missing = read(&path).expect_err("it is gone").to_string();
        assert!(missing.contains("there is no such file"), "{missing}");
    }

    #[test]
    fn a_file_with_jobs_is_a_batch_and_says_nothing_else_but_its_team() {
        let path = std::env::temp_dir().join(format!("allot-batch-{}.yaml", std::process::id()));
        let asked = |text: &str| {
            fs::write(&path, text).expect("it can be written");
            let asked = read(&path);
            fs::remove_file(&path).expect("it was there");
            asked
        };
        let (batch, team) =
            asked("team: vision\njobs:\n- {name: a}\n- {name: b}\n").expect("a batch");
        let Asked::Batch(specs) = batch else {
            panic!("it lists jobs");
        };
        assert_eq!(team.as_deref(), Some("vision"));
        assert_eq!((specs.len(), &specs[1]["name"]), (2, &json!("b")));
        for (text, told) in [
            ("jobs: []\nname: a", "name: beside jobs"),
            ("jobs: 3", "jobs: this is no list"),
            ("jobs: [3]", "jobs[0]: 3 is no spec"),
        ] {
            let failure = asked(text).expect_err("it is no batch").to_string();
            assert!(failure.contains(told), "{failure}");
        }
    }

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
    fn what_is_no_yaml_is_told_by_its_place_and_what_would_be_right() {
        for (text, place, words) in [
            (
                "name: a\ncommand: [true\nworkers: 2\n",
                ", line ",
                "close quotes and brackets",
            ),
            ("name: a\n\tworkers: 2\n", ", line ", "indent by spaces"),
            (
                "name: a\nworkers: 1\nname: b\n",
                ", line 3",
                "the key name is there twice",
            ),
            ("name: a\n---\nname: b\n", ", line ", "one spec in a file"),
            ("name: \"a\n", ", line ", "close quotes"),
            ("key: value: more\n", ", line 1", "`key: value`"),
        ] {
            let error = serde_saphyr::from_str::<Value>(text).expect_err(text);
            let told = unreadable(Path::new("job.yaml"), &error).to_string();
            assert!(
                told.starts_with(&format!("job.yaml{place}")),
                "{text:?}: {told}"
            );
            assert!(told.contains(words), "{text:?}: {told}");
            assert_eq!(told.lines().count(), 1, "{told}");
        }
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
        ] {
            for value in ["-1", "5000000000", "2000"] {
                let told = refused(flag, value);
                assert!(told.contains(bounds), "{flag} {value}: {told}");
            }
        }
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
