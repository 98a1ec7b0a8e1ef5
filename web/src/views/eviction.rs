//! Evictions: what a job gave up, by which rule, for whom and at what loss.

use chrono::{DateTime, Utc};
use domain::eviction::{EvictionKind, EvictionRule};

use crate::messages::{Messages, Phrase};

/// One time that a job gave way.
#[derive(Debug, Clone)]
pub struct EvictionRow {
    /// When.
    pub at: DateTime<Utc>,
    /// The job's id and name.
    pub job: (String, String),
    /// What it did to the job.
    pub kind: EvictionKind,
    /// By which rule.
    pub rule: EvictionRule,
    /// For whom.
    pub gainer: Gainer,
    /// Workers before and after.
    pub workers: (i64, i64),
    /// What it gave up, in thousandths of a GPU.
    pub gpus_milli: i64,
    /// Work that was lost, in thousandths of a GPU-second.
    pub lost_milli_seconds: i64,
}

/// For whom a job gave way, as far as the reader may know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gainer {
    /// For nobody: its node was emptied.
    Nobody,
    /// For a job, by its id, of a team.
    Job(String, String),
    /// For a booking, by its name, of a team.
    Booking(String, String),
    /// For another team.
    Others,
}

/// What was lost in a month by one rule.
#[derive(Debug, Clone)]
pub struct EvictionSum {
    /// A moment of the month.
    pub month: DateTime<Utc>,
    /// The rule.
    pub rule: EvictionRule,
    /// How often.
    pub evictions: i64,
    /// What was given up, all times together, in thousandths of a GPU.
    pub gpus_milli: i64,
    /// Work that was lost, in thousandths of a GPU-second.
    pub lost_milli_seconds: i64,
}

impl EvictionRow {
    /// What it gave up.
    pub fn gave(&self, t: &Messages) -> Phrase {
        let (before, after) = self.workers;
        t.word("gave_way", self.kind.as_str())
            .nest("gpus", t.gpus(self.gpus_milli))
            .with("before", t.number(before))
            .with("after", t.number(after))
    }

    /// By which rule.
    pub fn rule(&self, t: &Messages) -> Phrase {
        t.word("preempted_by", self.rule.as_str())
    }

    /// For whom; nothing where it was for nobody.
    pub fn made_room_for(&self, t: &Messages) -> Option<Phrase> {
        match &self.gainer {
            Gainer::Nobody => None,
            Gainer::Job(id, team) => Some(
                t.say("eviction.for_job")
                    .with("team", team)
                    .nest("job", job_link(t, id)),
            ),
            Gainer::Booking(name, team) => Some(
                t.say("eviction.for_booking")
                    .with("name", name)
                    .with("team", team),
            ),
            Gainer::Others => Some(t.say("eviction.for_others")),
        }
    }

    /// What was lost.
    pub fn lost(&self, t: &Messages) -> Phrase {
        lost(t, self.lost_milli_seconds)
    }
}

impl EvictionSum {
    /// The rule in few words.
    pub fn rule(&self, t: &Messages) -> Phrase {
        t.word("eviction_rule", self.rule.as_str())
    }
}

fn lost(t: &Messages, milli_seconds: i64) -> Phrase {
    if milli_seconds == 0 {
        return t.say("eviction.nothing_lost");
    }
    t.say("eviction.lost").nest("work", t.work(milli_seconds))
}

/// A job that has room now, to be opened.
fn job_link(t: &Messages, id: &str) -> Phrase {
    Phrase::markup("<a href=\"/jobs/{id}\">{shown}</a>")
        .with("id", id)
        .nest("shown", t.say("eviction.a_job"))
}
