//! What a spec alone is refused for.

use super::*;

fn spec(json: &str) -> Result<JobSpec, String> {
    serde_json::from_str(json).map_err(|e| e.to_string())
}

fn checked(json: &str) -> Result<(), String> {
    spec(json).and_then(|s| s.check().map_err(|e| e.to_string()))
}

#[test]
fn a_plain_spec_is_accepted() {
    assert_eq!(checked(r#"{"name": "a", "command": ["true"]}"#), Ok(()));
}

#[test]
fn what_is_named_twice_in_a_list_is_refused_by_name() {
    for (field, keys) in [
        ("pools", r#""pools": ["h100", "a100", "h100"]"#),
        ("after", r#""after": ["j1", "j1"]"#),
        (
            "retries.on",
            r#""retries": {"limit": 1, "on": ["failure", "failure"]}"#,
        ),
        (
            "per_worker.sharing",
            r#""per_worker": {"sharing": ["exclusive", "exclusive"]}"#,
        ),
    ] {
        let error = checked(&format!(r#"{{"name": "a", "command": ["true"], {keys}}}"#));
        let told = format!("{field}: ");
        assert!(
            error.as_ref().is_err_and(|e| e.starts_with(&told)),
            "{error:?}"
        );
    }
}

#[test]
fn unknown_fields_are_refused_by_name() {
    let error = checked(r#"{"name": "a", "command": ["true"], "priority": 9999}"#).unwrap_err();
    assert!(error.contains("priority"), "{error}");
}

#[test]
fn impossible_amounts_are_refused_before_any_arithmetic() {
    for gpus in ["-1", "0.0001", "1e12", "1000000000000", "65", "1.5"] {
        let json =
            format!(r#"{{"name": "a", "command": ["true"], "per_worker": {{"gpus": {gpus}}}}}"#);
        assert!(checked(&json).is_err(), "{gpus}");
    }
}

#[test]
fn work_without_gpus_names_no_gpu() {
    let asked = |per_worker: &str| {
        checked(&format!(
            r#"{{"name": "a", "command": ["true"], "per_worker": {per_worker}}}"#
        ))
    };
    for per_worker in [
        "{}",
        r#"{"gpus": 0}"#,
        r#"{"gpus": 0, "cpus": 4, "memory_mib": 1024}"#,
    ] {
        assert_eq!(asked(per_worker), Ok(()), "{per_worker}");
    }
    for per_worker in [
        r#"{"gpus": 0, "gpu_model": "H100-80GB"}"#,
        r#"{"gpus": 0, "gpu_memory_mib": 40000}"#,
        r#"{"gpu_memory_mib": 40000}"#,
    ] {
        let error = asked(per_worker).unwrap_err();
        assert!(error.contains("per_worker.gpus: 0"), "{error}");
    }
}

#[test]
fn whole_devices_are_exclusive_and_only_parts_are_shared() {
    let asked = |per_worker: &str| {
        checked(&format!(
            r#"{{"name": "a", "command": ["true"], "per_worker": {per_worker}}}"#
        ))
    };
    for per_worker in [
        r#"{"gpus": 2, "sharing": ["time_slice", "exclusive"]}"#,
        r#"{"gpus": 0.5, "sharing": ["time_slice"]}"#,
        r#"{"gpus": 0, "sharing": ["mps"]}"#,
        r#"{"gpus": 2, "mig_profile": "1g.10gb", "sharing": ["mig"]}"#,
    ] {
        assert_eq!(asked(per_worker), Ok(()), "{per_worker}");
    }
    let error = asked(r#"{"gpus": 1, "sharing": ["time_slice", "mps"]}"#).unwrap_err();
    assert!(
        error.contains(
            "per_worker.sharing: time_slice, mps is refused: exclusive, since whole devices"
        ) && error.contains("a fraction below 1"),
        "{error}"
    );
}

#[test]
fn instances_of_a_profile_are_counted_in_whole_ones() {
    let asked = |gpus: &str| {
        let asked = format!(r#"{{{gpus}"mig_profile": "1g.10gb", "sharing": ["mig"]}}"#);
        checked(&format!(
            r#"{{"name": "a", "command": ["true"], "per_worker": {asked}}}"#
        ))
    };
    assert!(asked("").is_ok() && asked(r#""gpus": 3, "#).is_ok());
    for gpus in [r#""gpus": 0, "#, r#""gpus": 0.5, "#] {
        let error = asked(gpus).unwrap_err();
        assert!(error.contains("how many instances"), "{error}");
    }
}

#[test]
fn paths_and_variables_cannot_escape() {
    for json in [
        r#"{"name": "a", "command": ["true"], "files": {"../x": ""}}"#,
        r#"{"name": "a", "command": ["true"], "files": {"/etc/passwd": ""}}"#,
        r#"{"name": "a", "command": ["true"], "env": {"A B": "1"}}"#,
        r#"{"name": "a", "command": ["true"], "env": {"ALLOTMENT_TEAM": "x"}}"#,
        r#"{"name": "a", "command": []}"#,
        r#"{"name": "a", "command": ["a\u0000b"]}"#,
        r#"{"name": "a", "command": ["true"], "workers": 0}"#,
    ] {
        assert!(checked(json).is_err(), "{json}");
    }
}

#[test]
fn each_number_is_held_to_the_bounds_of_its_key() {
    let asked = |least: i64| {
        checked(&format!(
            r#"{{"name": "a", "command": ["true"], "time_limit_seconds": {least},
                 "predicted_seconds": {least}, "checkpoint_seconds": {least}, "restart_seconds": {least},
                 "retries": {{"limit": {least}, "on": ["failure"]}}, "workers": {least},
                 "per_worker": {{"gpus": 1, "gpu_memory_mib": {least}, "memory_mib": {least}}}}}"#
        ))
    };
    assert_eq!(asked(1), Ok(()));
    assert!(asked(0).is_err());
}

#[test]
fn a_working_directory_may_end_with_a_slash_and_is_refused_as_it_was_given() {
    let asked = |folder: &str| {
        let keys = format!(r#""working_directory": "{folder}""#);
        checked(&format!(r#"{{"name": "a", "command": ["true"], {keys}}}"#))
    };
    for folder in ["/", "/data", "/data/", "data/sets", "data/"] {
        assert_eq!(asked(folder), Ok(()), "{folder}");
    }
    for folder in ["/data/../etc", "//data", "/data//", "/.", "..", "a:b"] {
        let told = asked(folder).unwrap_err();
        let begins = format!("working_directory: {folder} is refused: a path, absolute or");
        assert!(told.starts_with(&begins), "{told}");
    }
}

#[test]
fn every_fault_of_a_spec_is_told_and_of_one_value_the_first() {
    let wrong = spec(
        r#"{"name": "a", "command": [], "workers": 0, "env": {"RANK": "1", "OK": "1"},
            "per_worker": {"gpus": 1.5, "sharing": [], "gpu_model": ""},
            "time_limit_seconds": -1, "retries": {"limit": 1}, "pools": ["a", "a"]}"#,
    );
    let faults = wrong.expect("a spec").faults();
    let fields: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "command",
            "env",
            "workers",
            "per_worker.gpus",
            "per_worker.sharing",
            "per_worker.gpu_model",
            "time_limit_seconds",
            "retries.on",
            "pools",
        ]
    );
}
