//! What happened to assignments, as a node tells it.

use domain::ids::{AssignmentId, AttemptId};

use crate::fields::{bounded, parsed, text};
use crate::{Malformed, wire};

/// Most facts in one message; an agent that was away for long sends several.
pub const FACTS_MAX: usize = 4_096;

/// Something that happened to an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Its number in the journal.
    pub number: u64,
    /// The assignment.
    pub assignment: AssignmentId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// When, by the node's clock; evidence only.
    pub at_micros: i64,
    /// For how long the node itself had kept what is released now, nothing of its job being left.
    pub kept_micros: i64,
    /// What.
    pub kind: FactKind,
}

/// Longest name of an image's content that is kept: `sha512:` with its digits is half of that.
const IMAGE_DIGEST_CHARS_MAX: usize = 255;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FactKind {
    /// The node took it.
    Accepted,
    /// The node would not take it, or could not run it.
    Refused {
        /// Whether it could run nowhere.
        invalid: bool,
        /// Why, in words.
        message: String,
        /// The exit code that a shell would have ended with, where its command is what is wrong.
        exit_code: Option<i32>,
    },
    /// Its process runs.
    Started {
        /// The process.
        pid: i64,
        /// What names the image of its container for good.
        image_digest: Option<String>,
    },
    /// Its process ended.
    Exited(Exited),
    /// What it held is clean.
    Released,
}

/// How a node lost a process that it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The machine or the device went away under it, or its lease ended.
    Seen,
    /// It ended at some time while no agent ran, and nothing says when or how.
    Unseen,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exited {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether it had used more memory than it had asked for.
    pub out_of_memory: bool,
    /// Whether the agent had begun to stop it.
    pub asked: bool,
    /// Where the node lost it, whether its agent was there.
    pub lost: Option<Lost>,
    /// In words.
    pub message: String,
}

pub(super) fn check(facts: Vec<wire::Fact>) -> Result<Vec<Fact>, Malformed> {
    bounded("facts", facts.len(), FACTS_MAX)?;
    facts.into_iter().map(check_one).collect()
}

pub(super) fn check_one(fact: wire::Fact) -> Result<Fact, Malformed> {
    use wire::fact::Kind;
    if fact.number == 0 || i64::try_from(fact.number).is_err() {
        return Err(Malformed::invalid("fact.number", fact.number));
    }
    let kept_micros = match &fact.kind {
        Some(Kind::Released(released)) => released.kept_micros.max(0),
        _ => 0,
    };
    let kind = match fact.kind.ok_or(Malformed::Missing("fact.kind"))? {
        Kind::Accepted(_) => FactKind::Accepted,
        Kind::Refused(refused) => FactKind::Refused {
            invalid: refused.code == "invalid",
            message: text(refused.message),
            exit_code: refused.exit_code,
        },
        Kind::Started(started) => FactKind::Started {
            pid: started.pid,
            image_digest: Some(text(started.image_digest))
                .filter(|digest| (1..=IMAGE_DIGEST_CHARS_MAX).contains(&digest.chars().count())),
        },
        Kind::Exited(exited) => FactKind::Exited(Exited {
            code: exited.code,
            signal: exited.signal,
            out_of_memory: exited.out_of_memory,
            asked: exited.asked,
            lost: match exited.reason.as_str() {
                "node_lost" | "lease_over" => Some(Lost::Seen),
                "unseen" => Some(Lost::Unseen),
                _ => None,
            },
            message: text(exited.message),
        }),
        Kind::Released(_) => FactKind::Released,
    };
    Ok(Fact {
        number: fact.number,
        assignment: parsed("fact.assignment_id", &fact.assignment_id)?,
        attempt: parsed("fact.attempt_id", &fact.attempt_id)?,
        at_micros: fact.at_micros,
        kept_micros,
        kind,
    })
}
