//! Why a job waits, by code and number, in the words of the message file.

use chrono::{DateTime, Utc};

use crate::format::Size;
use crate::messages::{Messages, Phrase};
use crate::shell::Shell;

use super::scope::{bookings, rules, scope};
use super::submit::field_of;
use super::{BeyondQuota, Ending};

/// Why a job is as it is.
#[derive(Debug, Clone)]
pub enum Why {
    /// Nothing to explain.
    Nothing,
    /// It waits.
    Waits(Box<Wait>),
    /// It ended, or its last attempt did.
    Ended(Ending),
    /// It failed without ever being started: a code says for what.
    NeverRan(String),
}

/// Why a job waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wait {
    /// The verdict's code.
    pub code: String,
    /// What binds, as the engine names it: `pool h100`, `team vision`.
    pub scope: Option<String>,
    /// What it needs.
    pub need: Option<Size>,
    /// What there is for it.
    pub have_milli: Option<i64>,
    /// Nodes that were looked at, and how many of them each cause ruled out, in any order.
    pub counts: Vec<(String, i64)>,
    /// Its place in the order.
    pub rank: Option<i64>,
    /// When it starts at the soonest, by the ends that are known.
    pub expected_start: Option<DateTime<Utc>>,
    /// What lets it start then, as a code.
    pub expected_once: Option<String>,
    /// Changes that would start it.
    pub remedies: Vec<Remedy>,
    /// Who holds what it could use, where that was looked up.
    pub holders: Option<Holders>,
    /// What of its quota can never admit it, where that was looked up.
    pub beyond_quota: Option<BeyondQuota>,
    /// How far such expected starts were out of late, where that was looked up.
    pub accuracy: Option<Accuracy>,
}

/// How far expected starts in a pool were out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accuracy {
    /// Over how many days.
    pub days: i64,
    /// Starts that had been told before.
    pub cases: i64,
    /// Of these, those that came within ten minutes of what was first told.
    pub near: i64,
    /// By how many seconds half of what was first told was out at the most.
    pub median_seconds: i64,
}

impl Accuracy {
    /// In one sentence.
    pub fn say(&self, t: &Messages) -> Phrase {
        t.count("why.accuracy", self.cases)
            .with("days", self.days)
            .with("near", self.near)
    }

    /// What stands beside an expected start: how far such were out, or that none was measured.
    pub fn spread(known: Option<&Self>, t: &Messages) -> Phrase {
        match known {
            Some(known) => t
                .count("why.spread", known.cases)
                .nest("median", t.duration(known.median_seconds)),
            None => t.say("why.unmeasured"),
        }
    }
}

/// Who holds the devices that a job could use, in thousandths of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holders {
    /// Held by the job's own team.
    pub own_team: i64,
    /// Held by all others together.
    pub other_teams: i64,
    /// Held by nobody.
    pub free: i64,
    /// All that are well and on nodes that answer.
    pub capacity: i64,
}

/// Keys of the counts in the order in which nodes are sifted: all of them, then those that are out
/// of service, then those that are of the wrong kind, then those that have too little left.
const COUNTS: [&str; 15] = [
    "nodes",
    "unreachable",
    "cordoned",
    "draining",
    "unhealthy",
    "not_the_pinned_node",
    "selector_not_met",
    "other_gpu_model",
    "mode_not_offered",
    "mig_profile_not_there",
    "too_little_gpu_memory",
    "too_few_free_gpus",
    "too_few_free_cpus",
    "too_little_free_memory",
    "held_by_reservation",
];
/// What rules a whole node out, whatever the work: keys of the counts.
const NODE_OUT: [&str; 4] = ["cordoned", "draining", "unhealthy", "unreachable"];
/// The cause whose time is told by the job itself, and is no estimate.
const NOT_YET: &str = "not_yet";
/// Keys of the counts by which it is a node's own CPUs or memory that is short, and the causes that
/// are told then.
const HOST: [(&str, &str); 2] = [
    ("too_few_free_cpus", "insufficient_cpus"),
    ("too_little_free_memory", "insufficient_memory"),
];
/// The cause that binds everything: nothing is planned, since the time that is its scope.
const PLANNING_STOPPED: &str = "planning_stopped";
/// The key of a spec that says whether its job may be preempted.
const PREEMPTIBLE: &str = "preemptible";
/// Causes of quota, behind which it may be that the quota never admits the job.
const BY_QUOTA: [&str; 3] = [
    "over_limit",
    "ancestor_over_limit",
    "non_preemptible_over_guarantee",
];
/// Causes that are told by how much is free.
const FOR_WANT_OF_FREE: [&str; 2] = ["insufficient_capacity", "fragmented"];

impl Wait {
    /// The state that keeps all nodes of its pool away, where that is all that does; `out` where
    /// it is several.
    fn nodes_out(&self) -> Option<&str> {
        if !FOR_WANT_OF_FREE.contains(&self.code.as_str()) {
            return None;
        }
        let count = |key: &str| self.count(key);
        let all = count("nodes");
        if all == 0 || NODE_OUT.map(count).iter().sum::<i64>() != all {
            return None;
        }
        let one = NODE_OUT.into_iter().find(|key| count(key) == all);
        Some(one.unwrap_or("out"))
    }

    /// The cause.
    pub fn explain(&self, t: &Messages) -> Phrase {
        let pool = self.scope.as_deref().and_then(|text| scope(t, text));
        if let (Some(state), Some(pool)) = (self.nodes_out(), pool) {
            return t.word("nodes_out", state).nest("scope", pool);
        }
        if self.beyond_quota.is_some() && BY_QUOTA.contains(&self.code.as_str()) {
            return t.word("waiting", "beyond_quota");
        }
        let told = t.word("waiting", self.told_code());
        match self.scope.as_deref().and_then(|text| scope(t, text)) {
            Some(scope) => told.nest("scope", scope),
            None => told,
        }
    }

    /// What it needs, in words.
    pub fn needs(&self, t: &Messages) -> Option<Phrase> {
        self.need.map(|need| t.size(need))
    }

    /// The code, or where its scope says more than that, the one of words that say so, too.
    fn told_code(&self) -> &str {
        let scope = self.scope.as_deref().unwrap_or_default();
        let by_scope = match self.code.as_str() {
            "dependency" if scope.starts_with("array ") => Some("held_by_array"),
            NOT_YET if scope.starts_with("attempt ") => Some("retry"),
            "over_limit" if scope.starts_with("max_per_user of ") => Some("over_user_limit"),
            "over_limit" if scope.starts_with("lend_limit of ") => Some("over_lend_limit"),
            _ if bookings(scope).is_some() => Some("held_for_booking"),
            _ => None,
        };
        let told = by_scope.or_else(|| self.host_binds());
        told.unwrap_or(&self.code)
    }

    /// The cause where too little else than GPUs is free on the nodes that could take it.
    fn host_binds(&self) -> Option<&'static str> {
        if !FOR_WANT_OF_FREE.contains(&self.code.as_str()) || self.count("too_few_free_gpus") > 0 {
            return None;
        }
        let found = HOST.iter().find(|(key, _)| self.count(key) > 0);
        found.map(|(_, cause)| *cause)
    }

    /// How many nodes a cause rules out.
    fn count(&self, key: &str) -> i64 {
        let found = self.counts.iter().find(|(known, _)| known == key);
        found.map_or(0, |(_, count)| *count)
    }

    /// The cause in figures, where they say more.
    pub fn figures(&self, t: &Messages) -> Option<Phrase> {
        if let Some(beyond) = &self.beyond_quota {
            return Some(beyond.figures(t));
        }
        let no_gpus = self.nodes_out().is_some() || self.host_binds().is_some();
        if !t.knows("waiting_more", &self.code) || no_gpus {
            return None;
        }
        let ruled = self
            .scope
            .as_deref()
            .is_some_and(|text| rules(text).is_some());
        let code = if ruled {
            "preemption_rules"
        } else {
            &self.code
        };
        let have = self.have_milli?;
        let said = t
            .word_of("waiting_more", code, have)
            .nest("need", self.needs(t)?)
            .nest("have", t.gpus(have));
        Some(said.nest("scope", scope(t, self.scope.as_deref()?)?))
    }

    /// The counts as a statement: all nodes first, then what ruled most of them out. Equal ones
    /// stand in the order in which nodes are sifted.
    pub fn sifted(&self) -> Vec<&(String, i64)> {
        let place = |key: &str| COUNTS.iter().position(|known| *known == key);
        let mut counts: Vec<&(String, i64)> = self.counts.iter().collect();
        counts.sort_by_key(|(key, count)| {
            let place = place(key).unwrap_or(COUNTS.len());
            (place > 0, std::cmp::Reverse(*count), place)
        });
        counts
    }

    /// Nodes that no count rules out.
    pub fn left(&self) -> i64 {
        let (all, out): (Vec<_>, Vec<_>) =
            self.counts.iter().partition(|(key, _)| key == COUNTS[0]);
        let sum = |counts: Vec<&(String, i64)>| counts.iter().map(|(_, count)| count).sum::<i64>();
        (sum(all) - sum(out)).max(0)
    }

    /// Offers the change of the job itself that would bring it within its quota, where that is known
    /// and not offered yet.
    pub fn offer_preemption(&mut self) {
        let beyond = self.beyond_quota.as_ref();
        let offered = |remedy: &Remedy| remedy.change.iter().any(|(key, _)| key == PREEMPTIBLE);
        if beyond.is_some_and(|beyond| beyond.preemptible_admitted)
            && !self.remedies.iter().any(offered)
        {
            let remedy = Remedy {
                change: vec![(PREEMPTIBLE.to_owned(), Some("true".to_owned()))],
                effect: "within_limit".to_owned(),
            };
            self.remedies.insert(0, remedy);
        }
    }

    /// Whether its time is told by the job itself, and is no estimate.
    pub(super) fn kept_time(&self) -> bool {
        self.code == NOT_YET
    }

    /// What happens next, as far as it is known.
    pub fn next(&self, shell: &Shell) -> Phrase {
        self.next_by(&shell.t, |at| {
            Phrase::markup("{at}").nest("at", shell.moment(at))
        })
    }

    /// The same, with moments as they are told elsewhere.
    pub fn next_by(&self, t: &Messages, moment: impl Fn(&DateTime<Utc>) -> Phrase) -> Phrase {
        if let Some(beyond) = &self.beyond_quota {
            return beyond.next(t);
        }
        if let Some(since) = self.stopped_since() {
            return t.say("why.stopped").nest("at", moment(&since));
        }
        match &self.expected_start {
            Some(at) if self.kept_time() => t.say("why.begins").nest("at", moment(at)),
            Some(at) => t
                .say("why.expected")
                .nest("at", moment(at))
                .nest("spread", Accuracy::spread(self.accuracy.as_ref(), t))
                .nest("once", t.word("why_once", self.once(t))),
            None if t.knows("why_next", self.told_code()) => t.word("why_next", self.told_code()),
            None if t.knows("why_next", &self.code) => t.word("why_next", &self.code),
            None => t.say("why.no_estimate"),
        }
    }

    /// What lets it start when it is expected to; of a server that does not say, or says what is
    /// not known here, that enough has ended.
    fn once(&self, t: &Messages) -> &str {
        let told = self.expected_once.as_deref();
        let known = told.filter(|code| t.knows("why_once", code));
        known.unwrap_or("ended")
    }

    /// The cause in a few words, for a cell of a table.
    pub fn short(&self, t: &Messages) -> Phrase {
        let told = self.told_code();
        if t.knows("waiting_short", told) {
            return t.word("waiting_short", told);
        }
        t.word("waiting_short", &self.code)
    }

    /// Whether there is anything to show for the cause beside what its sentences say.
    pub fn evident(&self, shell: &Shell) -> bool {
        let figures = self.need.is_some() || self.have_milli.is_some();
        self.rank.is_some()
            || self.binds(shell).is_some()
            || (figures && self.figures(&shell.t).is_none())
    }

    /// Since when nothing is planned, where that is why it waits.
    fn stopped_since(&self) -> Option<DateTime<Utc>> {
        let scope = self.scope.as_deref();
        let since = scope.filter(|_| self.code == PLANNING_STOPPED);
        since?.parse().ok()
    }

    /// What binds.
    pub fn binds(&self, shell: &Shell) -> Option<Phrase> {
        if self.stopped_since().is_some() {
            return None;
        }
        if let Some(beyond) = &self.beyond_quota {
            return Some(beyond.binds(&shell.t));
        }
        let text = self.scope.as_deref()?;
        match text.parse::<DateTime<Utc>>() {
            Ok(at) => Some(shell.moment(&at)),
            Err(_) => scope(&shell.t, text),
        }
    }
}

/// A change that would start a waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy {
    /// Keys of the spec with what they are to be; `None` is to be left out.
    pub change: Vec<(String, Option<String>)>,
    /// What it would bring: a code.
    pub effect: String,
}

impl Remedy {
    /// The keys that make this change of the job itself while it waits; nothing where only another
    /// job can have it.
    pub fn keys_of_job(&self) -> Option<Vec<(&'static str, &str)>> {
        let keys = self.change.iter().map(|(key, value)| {
            let known = ["time_limit_seconds", "preemptible"];
            let key = known.into_iter().find(|known| known == key)?;
            Some((key, value.as_deref()?))
        });
        keys.collect()
    }

    /// The fields of the submit form that make this change, by name with what they are to hold;
    /// nothing where the form cannot make it.
    pub fn fields(&self) -> Option<Vec<(&'static str, String)>> {
        let mut fields = Vec::new();
        for (key, value) in &self.change {
            match (key.as_str(), value.as_deref()) {
                ("workers", Some(value)) => fields.push(("workers", value.to_owned())),
                ("min_workers", Some(value)) => fields.push(("min_workers", value.to_owned())),
                ("per_worker.gpus", Some(value)) => fields.push(("gpus", value.to_owned())),
                ("per_worker.mig_profile", Some(value)) => {
                    fields.push(("mig_profile", value.to_owned()));
                }
                ("preemptible", Some(value)) => fields.push(("preemptible", value.to_owned())),
                ("time_limit_seconds", Some(value)) => {
                    fields.push(("time_limit_minutes", minutes(value.parse().ok()?)));
                }
                // What the form has no field for it never asks.
                ("topology.require" | "anti_affinity", None) | ("nvlink", Some("prefer")) => {}
                _ => return None,
            }
        }
        Some(fields)
    }

    /// What to change, by the labels of the form.
    pub fn changes(&self, t: &Messages) -> Vec<Phrase> {
        let change = self.change.iter();
        change
            .map(|(key, value)| {
                let field = field_of(key);
                let label = if t.knows("field", field) {
                    t.word("field", field)
                } else {
                    t.word("change", key)
                };
                let line = t.say("why.change").nest("field", label);
                let seconds = value.as_deref().filter(|_| key.ends_with("_seconds"));
                let seconds = seconds.and_then(|value| value.parse::<i64>().ok());
                match (seconds, value) {
                    (Some(seconds), _) => line.nest("value", t.duration(seconds)),
                    (None, Some(value)) => line.with("value", value),
                    (None, None) => line.nest("value", t.say("why.left_out")),
                }
            })
            .collect()
    }
}

/// Seconds as minutes with at most three decimals, cut: never longer than they are.
fn minutes(seconds: i64) -> String {
    let milli = seconds.saturating_mul(1000) / 60;
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
