//! What waits in a pool, in the order in which it is looked at.

use crate::format::Size;
use crate::messages::{Messages, Phrase};
use crate::parts::Team;
use crate::shell::{Section, Shell};
use askama::Template;

use super::{Accuracy, Remedy, Wait};

/// The queue of one pool.
#[derive(Debug, Clone, Template)]
#[template(path = "queue.html")]
pub struct QueueView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The pools to choose from.
    pub pools: Vec<String>,
    /// The one that is shown; nothing where there is none.
    pub pool: Option<String>,
    /// The jobs that the reader may see, the next one first.
    pub rows: Vec<QueueRow>,
    /// What waits behind all of them, and is others'.
    pub others_after: Option<Crowd>,
    /// All that waits in the pool.
    pub all: Crowd,
    /// How far expected starts in the pool were out of late.
    pub accuracy: Option<Accuracy>,
    /// The address of the first page, when this is a later one.
    pub first: Option<String>,
    /// The address of the next page.
    pub next: Option<String>,
}

/// Jobs that are told in sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Crowd {
    /// How many.
    pub jobs: u64,
    /// What they need, in thousandths of a GPU.
    pub gpus_milli: i64,
}

impl Crowd {
    fn any(&self) -> bool {
        self.jobs > 0
    }

    /// So many jobs of other teams, and what they need.
    fn say(&self, t: &Messages) -> Phrase {
        t.count("queue.others", self.jobs)
            .nest("gpus", t.gpus(self.gpus_milli))
    }
}

/// A job in the queue.
#[derive(Debug, Clone)]
pub struct QueueRow {
    /// The job's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its team.
    pub team: Team,
    /// Who submitted it.
    pub user: String,
    /// Its priority class.
    pub class: String,
    /// What stands before it since the row above, and is others'.
    pub others_before: Crowd,
    /// Why it waits, with its place, what it needs, its expected start and what would help.
    pub wait: Wait,
}

impl QueueRow {
    /// What it needs.
    fn need(&self) -> Size {
        self.wait.need.unwrap_or_default()
    }

    /// The change that would help most.
    fn remedy(&self) -> Option<&Remedy> {
        self.wait.remedies.first()
    }

    /// When it is expected to start, or when it takes its place in the order.
    fn start(&self, shell: &Shell) -> Option<Phrase> {
        let at = shell.moment(self.wait.expected_start.as_ref()?);
        let told = if self.wait.kept_time() {
            shell.t.say("queue.earliest")
        } else {
            shell.t.say("dry.about")
        };
        Some(told.nest("at", at))
    }
}

impl QueueView {
    fn is(&self, pool: &str) -> bool {
        self.pool.as_deref() == Some(pool)
    }

    /// Whether a start is told that is an estimate.
    fn estimates(&self) -> bool {
        let mut waits = self.rows.iter().map(|row| &row.wait);
        waits.any(|wait| wait.expected_start.is_some() && !wait.kept_time())
    }

    fn submits(&self) -> bool {
        self.shell
            .reader
            .as_ref()
            .is_some_and(|reader| reader.submits)
    }
}
