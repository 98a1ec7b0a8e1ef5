//! Specs from a YAML or JSON file.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::yaml::{self, Mark};
use crate::failure::Failure;

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
    let (value, marks) = read_marked(path)?;
    if let Some(mark) = marks.iter().find(|mark| is_text(&mark.path)) {
        let text = domain::error::quote(&mark.text);
        return Err(Failure::Words(format!(
            "{}, line {}: {}: {text} is {} here and a text is wanted: write it in quotes, \"{text}\"",
            path.display(),
            mark.line,
            mark.path,
            mark.kind()
        )));
    }
    let Value::Object(mut spec) = value else {
        return Err(Failure::Words(format!(
            "{}: this is no spec; write one key with its value on a line, such as name: digits",
            path.display()
        )));
    };
    let team = match spec.remove("team") {
        None => None,
        Some(Value::String(team)) => Some(team),
        Some(other) => {
            return Err(Failure::Words(format!(
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
        return Err(Failure::Words(format!(
            "{}: {key}: beside jobs only team is said; write it with each job",
            path.display()
        )));
    }
    let Value::Array(jobs) = jobs else {
        return Err(Failure::Words(format!(
            "{}: jobs: this is no list of specs; begin each with -",
            path.display()
        )));
    };
    let specs = jobs.into_iter().enumerate().map(|(at, job)| match job {
        Value::Object(spec) => with_files(spec, folder),
        other => Err(Failure::Words(format!(
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

/// Keys of a spec, and of what is below them, whose values are texts.
const TEXTS: [&str; 20] = [
    "name",
    "kind",
    "class",
    "pools",
    "image",
    "runner",
    "command",
    "env",
    "working_directory",
    "files",
    "per_worker.gpu_model",
    "per_worker.mig_profile",
    "per_worker.sharing",
    "selector",
    "nvlink",
    "anti_affinity",
    "node",
    "on_partition",
    "labels",
    "topology",
];

/// Whether a spec takes a text at a path.
fn is_text(path: &str) -> bool {
    let path = match path
        .strip_prefix("jobs[")
        .and_then(|rest| rest.split_once("]."))
    {
        Some((_, within)) => within,
        None => path,
    };
    TEXTS.iter().any(|key| {
        let rest = path.strip_prefix(key);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

/// Reads a YAML or JSON file.
pub fn read_yaml(path: &Path) -> Result<Value, Failure> {
    read_marked(path).map(|(value, _)| value)
}

/// Reads a YAML or JSON file, and where in it numbers, true and false stand.
fn read_marked(path: &Path) -> Result<(Value, Vec<Mark>), Failure> {
    let text = read_text(path)?;
    // The first reading finds what is no YAML, or grows without end; it takes words such as `no` and
    // `on` for false and true, as YAML did until 2009.
    let first: Value = serde_saphyr::from_str(&text).map_err(|error| unreadable(path, &error))?;
    Ok(yaml::read(&text).unwrap_or((first, Vec::new())))
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
    Failure::Words(format!("{}{place}: {words}", path.display()))
}

/// A text file's content.
pub(super) fn read_text(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
            _ => error.to_string(),
        };
        Failure::Words(format!(
            "{}: {why}; name a text file that you may read",
            path.display()
        ))
    })
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
        let missing = read(&path).expect_err("it is gone");
        assert_eq!(missing.status(), crate::failure::WRONG_WORDS);
        let missing = missing.to_string();
        assert!(missing.contains("there is no such file"), "{missing}");
    }

    #[test]
    fn a_number_where_a_text_is_wanted_is_told_with_its_line_as_it_stands_there() {
        let path = std::env::temp_dir().join(format!("allot-texts-{}.yaml", std::process::id()));
        let asked = |text: &str| {
            fs::write(&path, text).expect("it can be written");
            let asked = read(&path);
            fs::remove_file(&path).expect("it was there");
            asked
        };
        for (text, told) in [
            (
                "name: a\ncommand: [echo, 1e3]\n",
                "line 2: command[1]: 1e3 is a number here and a text is wanted: write it in quotes, \"1e3\"",
            ),
            (
                "jobs:\n- name: a\n  env:\n    CI: true\n",
                "line 4: jobs[0].env.CI: true is true or false here",
            ),
            ("name: 007\n", "line 1: name: 007 is a number"),
        ] {
            let failure = asked(text).expect_err("a text is wanted").to_string();
            assert!(failure.contains(told), "{failure}");
        }
        let text = "name: y\nenv: {C: no}\nretries: {limit: 1, on: [failure]}\nworkers: 2\n";
        let (Asked::One(spec), _) = asked(text).expect("a spec") else {
            panic!("it is one job");
        };
        assert_eq!(
            Value::Object(spec),
            json!({
                "name": "y", "env": {"C": "no"}, "workers": 2,
                "retries": {"limit": 1, "on": ["failure"]},
            })
        );
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
}
