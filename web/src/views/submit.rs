//! The form that submits a job, beside a dry run of what it says.

use std::collections::BTreeMap;

use askama::Template;
use chrono::{DateTime, Utc};
use domain::money::Money;

use crate::messages::{Messages, Phrase};
use crate::shell::{Section, Shell};

use super::{Accuracy, DryRunElements, PlacedWorker, Refusal, Remedy, Wait};

/// The form as it stands, with what is wrong with it.
#[derive(Debug, Clone, Template)]
#[template(path = "submit.html")]
pub struct SubmitView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The team that the job is for; `None` when the reader must choose one.
    pub team: Option<String>,
    /// The teams that the reader may submit for.
    pub teams: Vec<String>,
    /// The pools that the team may use.
    pub pools: Vec<PoolChoice>,
    /// The priority classes.
    pub classes: Vec<ClassChoice>,
    /// What was typed.
    pub form: SubmitForm,
    /// What is wrong with it.
    pub errors: Vec<Refusal>,
    /// What would happen.
    pub dry_run: Option<DryRun>,
    /// A key that makes a second press of the button the same submission.
    pub idempotency_key: String,
}

/// A pool to choose.
#[derive(Debug, Clone)]
pub struct PoolChoice {
    /// The pool's name.
    pub name: String,
}

/// A priority class to choose.
#[derive(Debug, Clone)]
pub struct ClassChoice {
    /// The class's name.
    pub name: String,
    /// Whether its work may be preempted.
    pub preemptible: bool,
    /// The classes that come next behind it in the order; empty for the last.
    pub before: Vec<String>,
}

impl ClassChoice {
    /// Its place in the order.
    fn place(&self, t: &Messages) -> Phrase {
        match (self.before.is_empty(), self.preemptible) {
            (true, true) => t.say("submit.class_first_to_go"),
            (true, false) => t.say("submit.class_last"),
            (false, _) => t
                .say("submit.class_before")
                .with("names", self.before.join(", ")),
        }
    }
}

/// The fields as text, as they were typed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "each field is named after the spec's key that it fills"
)]
pub struct SubmitForm {
    pub name: String,
    pub kind: String,
    pub class: String,
    pub pool: String,
    pub command: String,
    pub workers: String,
    pub min_workers: String,
    pub gpus: String,
    pub mig_profile: String,
    pub cpus: String,
    pub memory_gib: String,
    pub gpu_memory_gib: String,
    pub share: String,
    pub time_limit_minutes: String,
    pub checkpoint_minutes: String,
    pub retries: String,
    pub preemptible: String,
    pub not_before: String,
    pub after: String,
    pub retry_on: String,
    pub array_count: String,
    pub array_at_most: String,
    pub env: String,
    pub file_name: String,
    pub file_text: String,
}

impl Default for SubmitForm {
    fn default() -> Self {
        Self {
            name: String::new(),
            kind: "training".into(),
            class: String::new(),
            pool: String::new(),
            command: String::new(),
            workers: "1".into(),
            min_workers: String::new(),
            gpus: "1".into(),
            mig_profile: String::new(),
            cpus: String::new(),
            memory_gib: String::new(),
            gpu_memory_gib: String::new(),
            share: String::new(),
            time_limit_minutes: String::new(),
            checkpoint_minutes: String::new(),
            retries: "0".into(),
            preemptible: String::new(),
            not_before: String::new(),
            after: String::new(),
            retry_on: "failure".into(),
            array_count: String::new(),
            array_at_most: String::new(),
            env: String::new(),
            file_name: String::new(),
            file_text: String::new(),
        }
    }
}

/// What would happen if the form were submitted now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DryRun {
    /// Whether it would start, wait, or be refused.
    pub outcome: Outcome,
    /// Why it would wait, or be refused.
    pub cause: Option<Cause>,
    /// Of an array, what would happen to its elements; the rest is then told of the first of them.
    pub elements: Option<DryRunElements>,
    /// Where it would run.
    pub placement: Vec<PlacedWorker>,
    /// What would be changed on its devices for it.
    pub slices: Vec<SliceLine>,
    /// The nodes on which a later start would be kept for it.
    pub kept_on: Vec<String>,
    /// Whom it would displace.
    pub displaces: Option<Displaced>,
    /// What it would cost in an hour.
    pub per_hour: Option<Money>,
    /// The least and the most of it, where it would wait and that depends on the pool and the mode.
    pub per_hour_between: Option<(Money, Money)>,
    /// What it would cost at most, when it has a time limit.
    pub at_most: Option<Money>,
}

/// Work that would give way, in sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Displaced {
    /// How many jobs.
    pub jobs: i64,
    /// Of these, jobs of the reader's own teams.
    pub own: i64,
    /// How many jobs more would be moved.
    pub moved: i64,
    /// What they hold, in thousandths of a GPU.
    pub gpus_milli: i64,
    /// Their work that would be lost, in thousandths of GPU-seconds.
    pub lost_milli_seconds: i64,
}

/// What would be changed on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceLine {
    /// Its node.
    pub node: String,
    /// Its number there.
    pub index: u32,
    /// The code of the mode to which it would be switched.
    pub mode: Option<String>,
    /// Instances that would be cut: profile and first memory slice.
    pub made: Vec<(String, u32)>,
    /// Idle instances that would be removed, likewise.
    pub removed: Vec<(String, u32)>,
}

impl SliceLine {
    fn say(&self, t: &Messages) -> Phrase {
        let switched = self
            .mode
            .iter()
            .map(|mode| t.say("dry.switched").nest("mode", t.word("mode", mode)));
        let of = |said: Phrase, (profile, start): &(String, u32)| {
            said.with("profile", profile).with("start", start)
        };
        let made = self.made.iter().map(|made| of(t.say("dry.made"), made));
        let removed = self.removed.iter();
        let removed = removed.map(|removed| of(t.say("dry.removed"), removed));
        t.say("dry.slice")
            .with("node", &self.node)
            .with("index", self.index)
            .nest("changes", Phrase::list(switched.chain(removed).chain(made)))
    }
}

/// Most workers of which each device is told; of a larger gang only the nodes are.
const WORKERS_TOLD_MAX: usize = 8;

/// Why a job would not start now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// It would wait.
    Waits(Box<Wait>),
    /// It would be refused.
    Refused(Vec<Refusal>),
}

/// What a submission would lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It would start at once.
    Starts,
    /// It would wait, perhaps until a known time.
    Waits {
        /// When it is expected to start.
        until: Option<DateTime<Utc>>,
    },
    /// It would be taken, and its quota would never admit it as it is.
    Never,
    /// It would be refused.
    Refused,
    /// The form is not complete enough to tell.
    Unknown,
}

/// The dry run alone, as the form asks for it while it is filled in.
#[derive(Debug, Clone, Template)]
#[template(path = "dry_run_live.html")]
pub struct DryRunView {
    /// For words and times.
    pub shell: Shell,
    /// What would happen.
    pub dry_run: Option<DryRun>,
}

impl DryRun {
    fn code(&self) -> &'static str {
        match self.outcome {
            Outcome::Starts => "starts",
            Outcome::Waits { .. } => "waits",
            Outcome::Never => "never",
            Outcome::Refused => "refused",
            Outcome::Unknown => "unknown",
        }
    }

    fn tone(&self) -> &'static str {
        match self.outcome {
            Outcome::Starts => "ok",
            Outcome::Waits { .. } => "info",
            Outcome::Never => "warn",
            Outcome::Refused => "bad",
            Outcome::Unknown => "muted",
        }
    }

    fn shape(&self) -> &'static str {
        match self.outcome {
            Outcome::Starts => "run",
            Outcome::Refused => "fail",
            Outcome::Waits { .. } | Outcome::Never | Outcome::Unknown => "queued",
        }
    }

    /// The cause, in words and figures.
    fn causes(&self, t: &Messages) -> Vec<Phrase> {
        match &self.cause {
            Some(Cause::Waits(wait)) => {
                let mends = wait.beyond_quota.as_ref().map(|beyond| beyond.before(t));
                let said = [Some(wait.explain(t)), wait.figures(t), mends];
                said.into_iter().flatten().collect()
            }
            Some(Cause::Refused(refusals)) => refusals.iter().map(|one| one.say(t)).collect(),
            None => Vec::new(),
        }
    }

    /// The nodes that it would run on, each once.
    fn nodes(&self) -> Vec<&str> {
        let mut nodes: Vec<&str> = self.placement.iter().map(|w| w.node.as_str()).collect();
        nodes.dedup();
        nodes
    }

    /// What each worker would hold, where they are few.
    fn devices(&self, t: &Messages) -> Vec<Phrase> {
        if self.placement.len() > WORKERS_TOLD_MAX {
            return Vec::new();
        }
        let workers = self.placement.iter();
        workers.flat_map(|worker| worker.devices_told(t)).collect()
    }

    /// Whom it would displace, in words.
    fn displaced(&self, t: &Messages) -> Phrase {
        let Some(displaced) = self.displaces else {
            return t.say("dry.nobody");
        };
        let mut parts = Vec::new();
        if displaced.jobs > 0 {
            parts.push(
                t.count("dry.displaced", displaced.jobs)
                    .nest("gpus", t.gpus(displaced.gpus_milli)),
            );
        }
        if displaced.own > 0 {
            parts.push(t.say("dry.displaced_own").with("n", displaced.own));
        }
        if displaced.lost_milli_seconds > 0 {
            let lost = t.work(displaced.lost_milli_seconds);
            parts.push(t.say("dry.lost").nest("work", lost));
        }
        if displaced.moved > 0 {
            let moved = t.count("count.jobs", displaced.moved);
            parts.push(t.say("dry.moved").nest("jobs", moved));
        }
        Phrase::list(parts)
    }

    /// When it would start: an estimate with how far such are out, or a time that is its own.
    fn start(&self, shell: &Shell, at: &DateTime<Utc>) -> Phrase {
        let (t, at) = (&shell.t, shell.moment(at));
        match &self.cause {
            Some(Cause::Waits(wait)) if !wait.kept_time() => t
                .say("dry.about_spread")
                .nest("at", at)
                .nest("spread", Accuracy::spread(self.accuracy(), t)),
            _ => t.say("dry.about").nest("at", at),
        }
    }

    /// How far such expected starts were out of late.
    fn accuracy(&self) -> Option<&Accuracy> {
        match &self.cause {
            Some(Cause::Waits(wait)) => wait.accuracy.as_ref(),
            _ => None,
        }
    }

    fn remedies(&self) -> &[Remedy] {
        match &self.cause {
            Some(Cause::Waits(wait)) => &wait.remedies,
            _ => &[],
        }
    }

    fn until(&self) -> Option<DateTime<Utc>> {
        match self.outcome {
            Outcome::Waits { until } => until,
            _ => None,
        }
    }
}

/// What the button that submits says: what pressing it leads to.
fn button(shell: &Shell, dry_run: Option<&DryRun>) -> Phrase {
    let t = &shell.t;
    match dry_run.map(|dry_run| dry_run.outcome) {
        Some(Outcome::Starts) => t.say("submit.button_starts"),
        Some(Outcome::Waits { until: Some(at) }) => t
            .say("submit.button_waits_until")
            .nest("at", shell.moment(&at)),
        Some(Outcome::Waits { until: None }) => t.say("submit.button_waits"),
        Some(Outcome::Never) => t.say("submit.button_never"),
        _ => t.say("submit.button"),
    }
}

impl DryRunView {
    fn button(&self) -> Phrase {
        button(&self.shell, self.dry_run.as_ref())
    }
}

impl SubmitView {
    fn error(&self, field: &str) -> Option<Phrase> {
        let wrong = self.errors.iter().find(|error| error.field == field)?;
        Some(wrong.say(&self.shell.t))
    }

    /// Errors of no field that the form shows.
    fn general(&self) -> Vec<Phrase> {
        let of_whole = |error: &&Refusal| !SHOWN_FIELDS.contains(&error.field.as_str());
        self.errors
            .iter()
            .filter(of_whole)
            .map(|error| error.say(&self.shell.t))
            .collect()
    }

    fn invalid(&self, field: &str) -> bool {
        self.error(field).is_some()
    }

    fn is(&self, value: &str, option: &str) -> bool {
        value == option
    }

    /// Whether it may be preempted: as its class says, or as said here.
    fn preemptions(&self) -> [&'static str; 3] {
        ["", "true", "false"]
    }

    /// The ends after which a job may be tried again, as the form offers them.
    fn retry_choices(&self) -> [&'static str; 3] {
        ["failure", "time_limit", "any"]
    }

    fn kinds(&self) -> [&'static str; 3] {
        ["training", "batch", "interactive"]
    }

    fn button(&self) -> Phrase {
        button(&self.shell, self.dry_run.as_ref())
    }

    /// Whether the folded part of the form has something to show.
    fn more_open(&self) -> bool {
        [
            "env",
            "file_name",
            "file_text",
            "checkpoint_minutes",
            "retries",
        ]
        .iter()
        .any(|field| self.invalid(field))
            || !self.form.env.is_empty()
            || !self.form.file_name.is_empty()
            || !self.form.file_text.is_empty()
    }
}

/// The fields that carry their own errors.
const SHOWN_FIELDS: [&str; 24] = [
    "name",
    "kind",
    "class",
    "pool",
    "command",
    "workers",
    "min_workers",
    "gpus",
    "mig_profile",
    "cpus",
    "memory_gib",
    "gpu_memory_gib",
    "share",
    "time_limit_minutes",
    "checkpoint_minutes",
    "retries",
    "preemptible",
    "not_before",
    "after",
    "array_count",
    "array_at_most",
    "env",
    "file_name",
    "file_text",
];

/// The form's field for a key of a job's spec, as the server's errors name it.
pub fn field_of(spec_key: &str) -> &str {
    let fields: BTreeMap<&str, &str> = [
        ("pools", "pool"),
        ("per_worker.gpus", "gpus"),
        ("gpus", "gpus"),
        ("per_worker.cpus", "cpus"),
        ("per_worker.memory_mib", "memory_gib"),
        ("per_worker.gpu_memory_mib", "gpu_memory_gib"),
        ("per_worker.mig_profile", "mig_profile"),
        ("per_worker.sharing", "share"),
        ("time_limit_seconds", "time_limit_minutes"),
        ("checkpoint_seconds", "checkpoint_minutes"),
        ("retries.limit", "retries"),
        ("array.count", "array_count"),
        ("array.at_most", "array_at_most"),
        ("files", "file_name"),
    ]
    .into();
    let key = spec_key.split('[').next().unwrap_or(spec_key);
    match key.split_once('.') {
        Some(("env", _)) => "env",
        Some(("files", _)) => "file_text",
        _ => fields.get(key).copied().unwrap_or(key),
    }
}
