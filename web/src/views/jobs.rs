//! The list of jobs that the reader may see, newest first.

use askama::Template;
use chrono::{DateTime, Utc};
use domain::state::JobState;

use crate::format::{Cost, Size};
use crate::messages::Phrase;
use crate::parts::{State, Team, scattered};
use crate::shell::{Section, Shell};

/// A page of the list.
#[derive(Debug, Clone, Template)]
#[template(path = "jobs.html")]
pub struct JobsView {
    /// What surrounds the page.
    pub shell: Shell,
    /// What is filtered by.
    pub filter: JobsFilter,
    /// Whether no user whom the reader may see has the filter's name.
    pub unknown_user: bool,
    /// The teams that the reader may choose from.
    pub teams: Vec<String>,
    /// The jobs.
    pub rows: Vec<JobRow>,
    /// How many jobs wait and run now, of those that the filter's team and user leave.
    pub waiting: i64,
    /// How many run.
    pub running: i64,
    /// The address of the newest page, when this is a later one.
    pub newest: Option<String>,
    /// The address of the next page.
    pub older: Option<String>,
}

/// What the list is filtered by; empty is all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobsFilter {
    /// A team's name.
    pub team: String,
    /// A state's code.
    pub state: String,
    /// A user's name.
    pub user: String,
}

/// One job in the list.
#[derive(Debug, Clone)]
pub struct JobRow {
    /// The job's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its team.
    pub team: Team,
    /// Who submitted it.
    pub user: String,
    /// Its state.
    pub state: JobState,
    /// Why it waits or how it ended, in a few words.
    pub why: Option<Phrase>,
    /// How large it is.
    pub size: Size,
    /// The nodes that it runs on.
    pub nodes: Vec<String>,
    /// When it was submitted.
    pub created_at: DateTime<Utc>,
    /// How long it ran or has been running, in seconds.
    pub ran_seconds: Option<i64>,
    /// What it cost so far.
    pub cost: Cost,
    /// Attempts begun so far.
    pub attempt: u32,
    /// Of an array, its elements.
    pub array: Option<Unfolding>,
    /// Whether the reader may let it queue again, as it is suspended.
    pub resumes: bool,
}

/// The elements of an array in the list: how many, and on demand where they stand.
#[derive(Debug, Clone)]
pub struct Unfolding {
    /// How many there are.
    pub count: u32,
    /// How many stand in each state that one has.
    pub counts: Vec<(JobState, u32)>,
    /// Whether they are shown.
    pub open: bool,
    /// The address of the same list with them shown, or hidden.
    pub address: String,
}

impl JobRow {
    /// Its index, where it is an element of an array.
    pub(super) fn index(&self) -> &str {
        self.id.split_once('.').map_or("", |(_, index)| index)
    }

    pub(super) fn scattered(&self) -> bool {
        scattered(self.nodes.len())
    }

    /// Whether nothing was used yet.
    pub(super) fn unused(&self) -> bool {
        self.cost.priced.is_none() && !self.cost.unpriced
    }
}

impl JobsFilter {
    fn any(&self) -> bool {
        *self != Self::default()
    }

    fn is_team(&self, team: &str) -> bool {
        self.team == team
    }

    fn is_state(&self, state: &str) -> bool {
        self.state == state
    }
}

impl JobsView {
    fn states(&self) -> Vec<&'static str> {
        JobState::ALL.iter().map(|state| state.as_str()).collect()
    }

    fn shown(&self, state: &JobState) -> Phrase {
        State::job(*state).show(&self.shell.t)
    }

    fn submits(&self) -> bool {
        self.shell
            .reader
            .as_ref()
            .is_some_and(|reader| reader.submits)
    }
}
