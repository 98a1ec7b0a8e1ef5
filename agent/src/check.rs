//! What this machine can do as a node, found out by looking: each thing with its state and, where it
//! is not as it should be, a remedy. Nothing of a running agent is touched.

mod devices;
mod laid;
mod machine;
mod runtime;

use std::fmt::Write as _;

use serde::Serialize;

use crate::config::Config;

/// How a thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Ok,
    /// It works, and less well than it could.
    Warning,
    /// It is not there, or cannot be used.
    Missing,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Missing => "missing",
        }
    }
}

/// Whether jobs can do without a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Needed,
    Optional,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, such as `driver`, or `device GPU-…`.
    pub what: String,
    /// How it is.
    pub state: State,
    /// Whether no job runs on a GPU of this machine without it.
    pub needed: bool,
    /// What was seen.
    pub seen: String,
    /// What to do about it; nothing where nothing needs to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    fn ok(what: impl Into<String>, need: Need, seen: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            state: State::Ok,
            needed: need == Need::Needed,
            seen: seen.into(),
            remedy: None,
        }
    }

    /// The same thing as less than ok, with what to do.
    fn but(self, state: State, remedy: impl Into<String>) -> Self {
        Self {
            state,
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

/// All that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether jobs can run on GPUs of this machine: nothing that is needed is missing.
    pub jobs_can_run: bool,
    /// What was looked at, in the order of the table.
    pub findings: Vec<Finding>,
}

/// Looks at the machine with the settings that its agent has, or would have.
pub fn look(config: &Config) -> Report {
    let mut findings = machine::look(config);
    findings.extend(devices::look(config));
    Report::of(findings)
}

impl Report {
    fn of(findings: Vec<Finding>) -> Self {
        let lacks = |finding: &Finding| finding.needed && finding.state == State::Missing;
        Self {
            jobs_can_run: !findings.iter().any(lacks),
            findings,
        }
    }

    /// The report for people: a line for each thing, below it what to do.
    pub fn table(&self) -> String {
        let width = self.findings.iter().map(|f| f.what.len()).max();
        let width = width.unwrap_or_default();
        let mut text = String::new();
        for finding in &self.findings {
            let (state, what) = (finding.state.as_str(), &finding.what);
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{state:<7}  {what:<width$}  {}", finding.seen);
            if let Some(remedy) = &finding.remedy {
                let _ = writeln!(text, "{:<7}  {:<width$}  -> {remedy}", "", "");
            }
        }
        let told = match self.jobs_can_run {
            true => "jobs can run on this machine's GPUs",
            false => {
                "no job can run on a GPU of this machine: what is missing and needed is marked ->"
            }
        };
        text.push_str(told);
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_without_what_is_optional_and_not_without_what_is_needed() {
        let fine = Finding::ok("driver", Need::Needed, "570");
        let no_mps = Finding::ok("mps", Need::Optional, "none").but(State::Missing, "install it");
        let slow = Finding::ok("disk", Need::Needed, "small").but(State::Warning, "clear it");
        let report = Report::of(vec![fine.clone(), no_mps.clone(), slow]);
        assert!(report.jobs_can_run);
        let gone = Finding::ok("driver", Need::Needed, "none").but(State::Missing, "install it");
        let report = Report::of(vec![gone, no_mps]);
        assert!(!report.jobs_can_run);
        let table = report.table();
        assert!(table.starts_with("missing  driver  none\n"), "{table}");
        assert!(table.contains("-> install it"), "{table}");
    }
}
