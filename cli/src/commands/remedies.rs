//! What would start a job sooner, with the command that does it.

use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::foreign::plain;
use crate::table::{self, text};
use crate::words;

/// Keys of a spec that may change while a job waits, with the flags that change them.
const OF_THE_JOB: [(&str, &str); 2] = [
    ("time_limit_seconds", "--time-limit"),
    ("preemptible", "--preemptible"),
];
/// Keys of a spec with their flags, for a job like it.
const OF_ANOTHER: [(&str, &str); 9] = [
    ("workers", "--workers"),
    ("min_workers", "--min-workers"),
    ("per_worker.gpus", "--gpus"),
    ("per_worker.mig_profile", "--mig-profile"),
    ("topology.require", "--require"),
    ("anti_affinity", "--anti-affinity"),
    ("nvlink", "--nvlink"),
    ("time_limit_seconds", "--time-limit"),
    ("preemptible", "--preemptible"),
];

/// Prints remedies: of a job that waits with the commands that make the changes, of one that is
/// asked about with the flags.
pub fn print(remedies: &Value, job: Option<&str>) -> Result<(), Failure> {
    for remedy in remedies.as_array().into_iter().flatten() {
        let (changes, effect) = words::remedy(remedy);
        table::print_line(&format!("{}: {effect}", changes.join(", ")))?;
        let change = remedy["change"].as_object();
        if let Some(command) = change.and_then(|change| command(change, job)) {
            table::print_line(&format!("    {command}"))?;
        }
    }
    Ok(())
}

/// What makes a change; nothing where no flag does.
fn command(change: &Map<String, Value>, job: Option<&str>) -> Option<String> {
    let Some(job) = job else {
        return flags(change, &OF_ANOTHER);
    };
    match flags(change, &OF_THE_JOB) {
        Some(flags) => Some(format!("allot change {job} {flags}")),
        None => Some(format!(
            "allot submit --like {job} {}",
            flags(change, &OF_ANOTHER)?
        )),
    }
}

fn flags(change: &Map<String, Value>, known: &[(&str, &str)]) -> Option<String> {
    let flags = change.iter().map(|(key, value)| {
        let (_, flag) = known.iter().find(|(known, _)| known == key)?;
        // An empty value takes the key away.
        let value = match value {
            Value::Null => "''".to_owned(),
            value if *flag == "--time-limit" => format!("{}s", text(value)),
            value => text(value),
        };
        Some(format!("{flag} {value}"))
    });
    let flags: Option<Vec<String>> = flags.collect();
    flags.map(|flags| flags.join(" "))
}

/// The keys and values of an object, as people read them.
pub fn pairs(object: &Value) -> String {
    let Some(map) = object.as_object() else {
        return text(object);
    };
    let pairs: Vec<String> = map
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| format!("{} {}", plain(key).replace(['_', '.'], " "), text(value)))
        .collect();
    pairs.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(change: Value, job: Option<&str>) -> Option<String> {
        command(change.as_object().expect("an object"), job)
    }

    #[test]
    fn a_remedy_is_told_as_the_command_that_makes_it() {
        assert_eq!(
            told(json!({"time_limit_seconds": 4320}), Some("j1")).as_deref(),
            Some("allot change j1 --time-limit 4320s")
        );
        assert_eq!(
            told(json!({"preemptible": true}), Some("j1")).as_deref(),
            Some("allot change j1 --preemptible true")
        );
        assert_eq!(
            told(
                json!({"anti_affinity": null, "topology.require": null}),
                Some("j1")
            )
            .as_deref(),
            Some("allot submit --like j1 --anti-affinity '' --require ''")
        );
        assert_eq!(
            told(json!({"per_worker.gpus": 2, "workers": 4}), None).as_deref(),
            Some("--gpus 2 --workers 4")
        );
        assert_eq!(
            told(json!({"per_worker.sharing": ["mps"]}), Some("j1")),
            None
        );
    }
}
