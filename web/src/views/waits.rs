//! What a job has waited for: each cause to scale, in sum, and stretch by stretch.

use chrono::{DateTime, Utc};

use crate::draw::{self, Html};
use crate::messages::{Messages, Phrase};
use crate::shell::Shell;

use super::Wait;

/// What a job has waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitHistory {
    /// The stretches, the first first.
    pub stretches: Vec<WaitStretch>,
    /// Each cause with how long it held in all, the longest first.
    pub causes: Vec<WaitCause>,
}

/// A stretch in which one cause held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitStretch {
    /// The cause, with what bound.
    pub wait: Wait,
    /// From when.
    pub from: DateTime<Utc>,
    /// Whether it still holds.
    pub holds: bool,
    /// How many stretches are told as this one.
    pub times: i64,
    /// How long it held in all.
    pub seconds: i64,
}

/// A cause, and how long it held in all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitCause {
    /// The verdict's code.
    pub code: String,
    /// For how long.
    pub seconds: i64,
}

impl WaitCause {
    /// Cause and duration, as the key of the drawing says them.
    pub(super) fn say(&self, t: &Messages, stretches: &[WaitStretch]) -> Phrase {
        // Of stretches that what bound tells apart each has words of its own; the sum has those of
        // the code.
        let mut words = stretches.iter().filter(|one| one.wait.code == self.code);
        let first = words.next().map(|one| one.wait.short(t));
        let alike =
            first.filter(|first| words.all(|one| one.wait.short(t).plain() == first.plain()));
        let cause = alike.unwrap_or_else(|| t.word("waiting_short", &self.code));
        t.say("waits.cause")
            .nest("cause", cause)
            .nest("duration", t.duration(self.seconds))
    }

    pub(super) fn class(&self) -> &'static str {
        draw::cause_class(&self.code)
    }
}

impl WaitStretch {
    /// The cause, and how often it held where that was more than once.
    pub(super) fn cause(&self, t: &Messages) -> Phrase {
        let cause = self.wait.short(t);
        if self.times < 2 {
            return cause;
        }
        t.count("waits.times", self.times).nest("cause", cause)
    }

    pub(super) fn binds(&self, shell: &Shell) -> Option<Phrase> {
        self.wait.binds(shell)
    }
}

impl WaitHistory {
    /// Whether the job never waited.
    pub(super) fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    /// The causes to scale in time.
    pub(super) fn drawing(&self, t: &Messages) -> Html {
        let told = self
            .causes
            .iter()
            .map(|cause| draw::plain(&cause.say(t, &self.stretches)));
        let label = told.collect::<Vec<_>>().join(", ");
        let parts = self.stretches.iter().map(|stretch| {
            let class = draw::cause_class(&stretch.wait.code);
            (class, stretch.seconds)
        });
        let holds = self.stretches.iter().any(|stretch| stretch.holds);
        draw::stretches(&label, &parts.collect::<Vec<_>>(), holds)
    }
}
