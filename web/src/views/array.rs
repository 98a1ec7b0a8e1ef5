//! An array of jobs: where its elements stand, all at a glance and one by one.

use askama::Template;
use domain::state::JobState;

use crate::draw::{self, Html};
use crate::format::{Cost, Size};
use crate::messages::Phrase;
use crate::parts::{EventLine, State, Team};
use crate::shell::{Section, Shell};

use super::{JobActions, JobChange, JobRow};

/// An array as its team sees it.
#[derive(Debug, Clone, Template)]
#[template(path = "array.html")]
pub struct ArrayView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The array's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its team.
    pub team: Team,
    /// Who submitted it.
    pub user: String,
    /// Its state, as its elements make it.
    pub state: JobState,
    /// Why the first of those that wait does, in a few words.
    pub why: Option<Phrase>,
    /// Where each element stands, by index.
    pub grid: Vec<JobState>,
    /// How many stand in each state that one has.
    pub counts: Vec<(JobState, u32)>,
    /// Most of them that run at once.
    pub at_most: Option<u32>,
    /// What each asks for, in thousandths of a GPU.
    pub size: Size,
    /// The state that the list is filtered by; empty is all.
    pub filter: String,
    /// The elements of this page of the list.
    pub rows: Vec<JobRow>,
    /// The address of the list's first page, when this is a later one.
    pub first: Option<String>,
    /// The address of its next page.
    pub more: Option<String>,
    /// What happened to the whole, first to last.
    pub events: Vec<EventLine>,
    /// What all elements cost so far.
    pub cost: Cost,
    /// Their GPU-seconds, in thousandths.
    pub gpu_milli_seconds: i64,
    /// The command of each, as one line.
    pub command: String,
    /// What each asked for: a message's key and the value.
    pub asked: Vec<(&'static str, Phrase)>,
    /// What the reader may do with it, and with some of its elements.
    pub actions: JobActions,
    /// Its version, which a change of it names.
    pub version: i64,
    /// What may be changed of all its elements, while none of them has begun.
    pub change: Option<JobChange>,
}

impl ArrayView {
    fn shown_state(&self) -> Phrase {
        State::job(self.state).show(&self.shell.t)
    }

    fn live(&self) -> bool {
        !self.state.terminal()
    }

    /// How many elements have ended, of how many.
    fn lede(&self) -> Phrase {
        let t = &self.shell.t;
        let ended = self.counts.iter().filter(|(state, _)| state.terminal());
        let ended: u32 = ended.map(|(_, elements)| elements).sum();
        t.count("array.lede", self.grid.len())
            .with("ended", t.number(ended))
    }

    fn drawing(&self) -> Html {
        let t = &self.shell.t;
        let told = self.counts.iter().map(|(state, elements)| {
            format!("{} {}", State::job(*state).word(t), t.number(*elements))
        });
        let label = told.collect::<Vec<_>>().join(", ");
        draw::elements(&label, &self.grid)
    }

    fn word(&self, state: &JobState) -> Phrase {
        State::job(*state).word(&self.shell.t)
    }

    fn filling(&self, state: &JobState) -> &'static str {
        draw::element_class(*state)
    }

    fn is_filter(&self, state: &JobState) -> bool {
        self.filter == state.as_str()
    }

    /// Whether something can be done with some of its elements.
    fn steers(&self) -> bool {
        self.actions.cancel || self.actions.suspend || self.actions.resume
    }
}
