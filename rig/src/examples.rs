//! The jobs in `examples/`, as bodies of a submission.

use std::path::Path;

use anyhow::Context;
use serde_json::Value;

/// The jobs that a first `./dev up` submits: whose, and which file. The borrower comes first, so that
/// it finds its six devices of eight free, of which its team is promised four; the second one waits.
pub const AT_FIRST_START: [(&str, &str); 5] = [
    ("vision-member", "preemptible.yaml"),
    ("vision-member", "digits/job.yaml"),
    ("speech-member", "gang.yaml"),
    ("platform-member", "time-slice.yaml"),
    ("vision-member", "preemptible.yaml"),
];

/// Reads a job file; a text in `files` that begins with `@` names a file beside it.
pub fn read(file: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let mut spec: Value = serde_saphyr::from_str(&text)
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(|| format!("the job in {}", file.display()))?;
    let folder = file.parent().context("a job file lies in a folder")?;
    if let Some(files) = spec["files"].as_object_mut() {
        for (name, text) in files {
            let Some(beside) = text.as_str().and_then(|text| text.strip_prefix('@')) else {
                continue;
            };
            let path = folder.join(beside);
            let content = std::fs::read_to_string(&path)
                .with_context(|| format!("files.{name}: read {}", path.display()))?;
            *text = Value::from(content);
        }
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_of_the_first_start_is_there_with_its_files() {
        let examples = crate::paths::checkout_of_build().join("examples");
        for (_, name) in AT_FIRST_START {
            let spec = read(&examples.join(name)).unwrap();
            let files = spec["files"].as_object().unwrap();
            assert!(
                files["train.py"].as_str().unwrap().contains("import"),
                "{name}"
            );
        }
    }
}
