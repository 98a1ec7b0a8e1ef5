//! Small pieces that several pages show: states, teams, events.

use std::borrow::Borrow;

use chrono::{DateTime, Utc};
use domain::state::{AttemptEnd, DeviceHealth, JobState, NodeIntent, Reachability};

use crate::messages::{Messages, Phrase};

/// Hues that teams take turns in; `tokens.css` defines as many.
const HUES: usize = 12;

/// Nodes that are named one by one; of more it is told how many.
const NAMED_NODES_MAX: usize = 2;

/// Whether so many nodes are too many to be named one by one.
pub(crate) fn scattered(nodes: usize) -> bool {
    nodes > NAMED_NODES_MAX
}

/// A state, known by its code, shown as a shape and a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    family: &'static str,
    code: &'static str,
}

impl State {
    /// A job's state.
    pub fn job(state: JobState) -> Self {
        Self {
            family: "state",
            code: state.as_str(),
        }
    }

    /// How an attempt ended.
    pub fn ended(end: AttemptEnd) -> Self {
        Self {
            family: "end",
            code: end.as_str(),
        }
    }

    /// A node's state, of its two facts: what people want of it, and whether it answers.
    pub fn node(intent: NodeIntent, reachability: Reachability) -> Self {
        let code = match (reachability, intent) {
            // It is gone for good, and that it does not answer is of no interest any more.
            (_, NodeIntent::Retired) => intent.as_str(),
            (Reachability::Lost | Reachability::Unreachable, _) => reachability.as_str(),
            (Reachability::Ready, NodeIntent::Open) => "ready",
            (Reachability::Ready, intent) => intent.as_str(),
        };
        Self {
            family: "node_state",
            code,
        }
    }

    /// A device's health.
    pub fn device(health: DeviceHealth) -> Self {
        Self {
            family: "device_state",
            code: health.as_str(),
        }
    }

    /// A mark for what led to no state of its own.
    pub fn note() -> Self {
        Self {
            family: "state",
            code: "note",
        }
    }

    /// The code itself.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The class that colours it.
    pub fn tone(&self) -> &'static str {
        match self.code {
            "running" | "succeeded" | "ready" | "healthy" | "warming" => "ok",
            "starting" | "queued_again" => "info",
            "preempting" | "preempted" | "draining" | "suspect" | "mode_change" | "cancelling" => {
                "warn"
            }
            "failed" | "lost" | "unreachable" | "exit" | "signal" | "oom" | "time_limit"
            | "node_lost" | "start_refused" | "invalid" => "bad",
            "suspended" | "cordoned" => "hold",
            _ => "muted",
        }
    }

    /// The symbol that draws it.
    pub fn shape(&self) -> &'static str {
        match self.code {
            "running" | "ready" | "healthy" => "run",
            "starting" | "warming" | "mode_change" => "start",
            "succeeded" => "ok",
            "failed" | "exit" | "signal" | "oom" | "time_limit" | "start_refused" | "invalid" => {
                "fail"
            }
            "lost" | "unreachable" | "node_lost" => "gone",
            "preempting" | "preempted" | "draining" => "evict",
            "suspended" => "pause",
            "cancelled" | "cancelling" | "retired" => "stop",
            "cordoned" => "hatch",
            "suspect" => "warn",
            _ => "queued",
        }
    }

    /// The word alone.
    pub fn word(&self, t: &Messages) -> Phrase {
        t.word(self.family, self.code)
    }

    /// Shape and word.
    pub fn show(&self, t: &Messages) -> Phrase {
        Phrase::markup(
            "<span class=\"st {tone}\"><svg viewBox=\"0 0 14 14\" aria-hidden=\"true\">\
             <use href=\"#s-{shape}\"/></svg>{word}</span>",
        )
        .with("tone", self.tone())
        .with("shape", self.shape())
        .nest("word", self.word(t))
    }
}

/// A team by its name and the hue it keeps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Team {
    /// The team's name.
    pub name: String,
    /// Which of the twelve hues it has, from 1; 0 is the shared grey.
    pub hue: u8,
}

impl Team {
    /// A team with the hue of its place in the order in which teams were made.
    pub fn with_place(name: &str, place: usize) -> Self {
        Self {
            name: name.into(),
            hue: u8::try_from(place % HUES + 1).expect("twelve hues fit a byte"),
        }
    }

    /// The name after a swatch of its hue.
    pub fn show(&self) -> Phrase {
        Phrase::markup("<span class=\"team t{hue}\">{name}</span>")
            .with("hue", self.hue)
            .with("name", &self.name)
    }

    /// The same, as a link to the team's page.
    pub fn link(&self) -> Phrase {
        Phrase::markup("<a class=\"name\" href=\"/teams/{name}\">{shown}</a>")
            .with("name", &self.name)
            .nest("shown", self.show())
    }
}

/// The attributes that tie an input to its error (`ID-e`) and its hint (`ID-h`).
pub(crate) fn aria(wrong: impl Borrow<bool>, id: &str, hinted: impl Borrow<bool>) -> Phrase {
    let phrase = match (*wrong.borrow(), *hinted.borrow()) {
        (true, true) => Phrase::markup(" aria-invalid=\"true\" aria-describedby=\"{id}-e {id}-h\""),
        (true, false) => Phrase::markup(" aria-invalid=\"true\" aria-describedby=\"{id}-e\""),
        (false, true) => Phrase::markup(" aria-describedby=\"{id}-h\""),
        (false, false) => Phrase::markup(""),
    };
    phrase.with("id", id)
}

/// One line of what happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventLine {
    /// When it happened.
    pub at: DateTime<Utc>,
    /// The state that it led to, which draws its mark.
    pub state: State,
    /// The event's code, which a message says in words.
    pub code: String,
    /// Who did it, when a person did.
    pub actor: Option<String>,
    /// The cause or the particulars.
    pub detail: Option<Phrase>,
}
