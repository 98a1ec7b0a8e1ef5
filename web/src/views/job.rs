//! One job: its state and why, its life, its log, where it runs and what it costs.

use askama::Template;
use chrono::{DateTime, Utc};
use domain::state::{AttemptEnd, JobState};

use crate::draw::{self, Html, Span};
use crate::format::Cost;
use crate::log::Line;
use crate::messages::{Messages, Phrase};
use crate::parts::{EventLine, State, Team};
use crate::shell::{Section, Shell};

/// The shell's code for a program that was found but may not be run.
const CODE_NOT_EXECUTABLE: i32 = 126;
/// The shell's code for a program that was not found.
const CODE_NOT_FOUND: i32 = 127;
/// Shells add this to a signal's number when a program was ended by it.
const CODE_SIGNAL_BASE: i32 = 128;

/// A job as its team sees it.
#[derive(Debug, Clone, Template)]
#[template(path = "job.html")]
pub struct JobView {
    /// What surrounds the page.
    pub shell: Shell,
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
    /// Why it waits, or how it ended.
    pub why: Why,
    /// All that its workers ask for, in thousandths.
    pub gpus_milli: i64,
    /// How long it ran or has been running, in seconds, over all attempts.
    pub ran_seconds: Option<i64>,
    /// Where its workers are.
    pub placement: Vec<PlacedWorker>,
    /// The stretches of its life.
    pub spans: Vec<Span>,
    /// Its attempts, first to last.
    pub attempts: Vec<AttemptRow>,
    /// What happened, first to last.
    pub events: Vec<EventLine>,
    /// What it cost, by attempt.
    pub costs: Vec<CostLine>,
    /// What it cost so far.
    pub cost: Cost,
    /// GPU-seconds so far, in thousandths.
    pub gpu_milli_seconds: i64,
    /// The price that its GPUs have now, per GPU and hour.
    pub price: Option<domain::money::Money>,
    /// Its command, as one line.
    pub command: String,
    /// What it asked for: a message's key and the value.
    pub asked: Vec<(&'static str, String)>,
    /// Its log.
    pub log: LogPanel,
    /// What the reader may do.
    pub actions: JobActions,
}

/// Why a job is as it is.
#[derive(Debug, Clone)]
pub enum Why {
    /// Nothing to explain.
    Nothing,
    /// It waits.
    Waits(Wait),
    /// It ended, or its last attempt did.
    Ended(Ending),
}

/// Why a job waits.
#[derive(Debug, Clone, Default)]
pub struct Wait {
    /// The verdict's code.
    pub code: String,
    /// The verdict in a sentence, when there is more to say than the code's own words.
    pub message: Option<String>,
    /// What binds: a team, a pool, a node.
    pub scope: Option<String>,
    /// What it needs, in thousandths of a GPU.
    pub need_milli: Option<i64>,
    /// What there is for it.
    pub have_milli: Option<i64>,
    /// Nodes that were looked at, counted by what ruled them out.
    pub counts: Vec<(String, i64)>,
    /// Its place in the order.
    pub rank: Option<i64>,
    /// When it is expected to start.
    pub expected_start: Option<DateTime<Utc>>,
    /// Changes that would start it.
    pub remedies: Vec<Remedy>,
}

/// A change that would start a waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy {
    /// What to change, in words.
    pub change: String,
    /// What it would bring: a code.
    pub effect: String,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// The end.
    pub end: AttemptEnd,
    /// The exit code, when the process gave one.
    pub exit_code: Option<i32>,
    /// The number of the signal that ended it.
    pub signal: Option<i32>,
    /// More, as the node or the scheduler said it.
    pub message: Option<String>,
}

impl Ending {
    /// The end in words: exit codes and signals that have a meaning say it.
    pub fn explain(&self, t: &Messages) -> Phrase {
        let signal = self
            .signal
            .or_else(|| self.exit_code.map(|code| code - CODE_SIGNAL_BASE))
            .filter(|n| *n > 0);
        match (self.end, self.exit_code) {
            (AttemptEnd::Exit, Some(0)) => t.say("ended.well"),
            (AttemptEnd::Exit, Some(CODE_NOT_FOUND)) => t.say("ended.not_found"),
            (AttemptEnd::Exit, Some(CODE_NOT_EXECUTABLE)) => t.say("ended.not_executable"),
            (AttemptEnd::Exit, Some(code)) => {
                match signal.filter(|n| t.knows("signal", &n.to_string())) {
                    Some(n) => t
                        .say("ended.exit_signal")
                        .with("code", code)
                        .nest("signal", t.word("signal", &n.to_string())),
                    None => t.say("ended.exit").with("code", code),
                }
            }
            (AttemptEnd::Signal, _) => match signal.map(|number| number.to_string()) {
                Some(number) => t
                    .say("ended.signal")
                    .with("number", &number)
                    .nest("signal", t.word("signal", &number)),
                None => t.say("ended.some_signal"),
            },
            (end, _) => t.word("ended_by", end.as_str()),
        }
    }

    /// What may help, where there is something general to say.
    pub fn advise(&self, t: &Messages) -> Option<Phrase> {
        let code = match (self.end, self.exit_code) {
            (AttemptEnd::Exit, Some(CODE_NOT_FOUND)) => "not_found",
            (AttemptEnd::Exit, Some(CODE_NOT_EXECUTABLE)) => "not_executable",
            (AttemptEnd::Exit, Some(0)) => return None,
            (end, _) => end.as_str(),
        };
        t.knows("advice", code).then(|| t.word("advice", code))
    }

    fn good(&self) -> bool {
        self.end == AttemptEnd::Exit && self.exit_code == Some(0)
    }
}

/// A worker and its devices.
#[derive(Debug, Clone)]
pub struct PlacedWorker {
    /// The worker's number.
    pub worker: u32,
    /// Its node.
    pub node: String,
    /// Its devices: index, thousandths held, and the mode's code.
    pub devices: Vec<(u32, u32, String)>,
}

/// Devices of a worker that are held alike.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HeldAlike {
    count: usize,
    indices: String,
    milli: u32,
    mode: String,
}

impl PlacedWorker {
    /// The devices, those in a row that are held alike as one.
    fn held(&self) -> Vec<HeldAlike> {
        let mut groups: Vec<(u32, u32, u32, &str)> = Vec::new();
        for (index, milli, mode) in &self.devices {
            match groups.last_mut() {
                Some((_, last, size, kind))
                    if *last + 1 == *index && size == milli && kind == mode =>
                {
                    *last = *index
                }
                _ => groups.push((*index, *index, *milli, mode)),
            }
        }
        let held = |(first, last, milli, mode): (u32, u32, u32, &str)| HeldAlike {
            count: (last - first) as usize + 1,
            indices: if first == last {
                first.to_string()
            } else {
                format!("{first}–{last}")
            },
            milli: milli * (last - first + 1),
            mode: mode.into(),
        };
        groups.into_iter().map(held).collect()
    }
}

/// One run of the job.
#[derive(Debug, Clone)]
pub struct AttemptRow {
    /// Its number, from 1.
    pub number: u32,
    /// When it started to run, or was placed.
    pub started_at: Option<DateTime<Utc>>,
    /// How long it ran or has been running, in seconds.
    pub ran_seconds: Option<i64>,
    /// The nodes that it ran on.
    pub nodes: Vec<String>,
    /// How it ended; `None` while it lives.
    pub ending: Option<Ending>,
}

/// A line of the job's statement.
#[derive(Debug, Clone)]
pub struct CostLine {
    /// The attempt's number.
    pub attempt: u32,
    /// GPU-seconds in thousandths.
    pub gpu_milli_seconds: i64,
    /// What they cost.
    pub cost: Cost,
}

/// The job's log, or why there is none.
#[derive(Debug, Clone, Default)]
pub struct LogPanel {
    /// The workers and attempts that have one.
    pub choices: Vec<LogChoice>,
    /// The worker that is shown.
    pub worker: u32,
    /// The attempt that is shown.
    pub attempt: u32,
    /// The lines.
    pub lines: Vec<Line>,
    /// Whether earlier output exists and is not shown.
    pub has_earlier: bool,
    /// The address of a stream of what follows, while it is written.
    pub stream: Option<String>,
    /// The address of the whole log as text.
    pub download: Option<String>,
    /// Why the log cannot be shown: a code.
    pub unavailable: Option<String>,
}

/// A log that can be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChoice {
    /// The worker's number.
    pub worker: u32,
    /// The attempt's number.
    pub attempt: u32,
    /// The node that wrote it, where that is known.
    pub node: Option<String>,
}

impl LogPanel {
    fn shows(&self, choice: &LogChoice) -> bool {
        (choice.worker, choice.attempt) == (self.worker, self.attempt)
    }
}

/// What the reader may do with the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobActions {
    /// Cancel it.
    pub cancel: bool,
    /// Suspend it.
    pub suspend: bool,
    /// Resume it.
    pub resume: bool,
    /// Submit one like it.
    pub clone: bool,
}

impl JobView {
    fn shown_state(&self) -> Phrase {
        State::job(self.state).show(&self.shell.t)
    }

    fn live(&self) -> bool {
        !self.state.terminal()
    }

    fn nodes(&self) -> Vec<&str> {
        let mut nodes: Vec<&str> = self
            .placement
            .iter()
            .map(|worker| worker.node.as_str())
            .collect();
        nodes.dedup();
        nodes
    }

    fn timeline(&self) -> Html {
        let t = &self.shell.t;
        let label = self
            .spans
            .iter()
            .map(|span| self.span_words(span).to_string())
            .collect::<Vec<_>>()
            .join(", ");
        draw::timeline(
            if label.is_empty() {
                draw::plain(&t.say("job.timeline"))
            } else {
                label
            }
            .as_str(),
            &self.spans,
            self.live(),
        )
    }

    fn span_words(&self, span: &Span) -> Phrase {
        let t = &self.shell.t;
        t.say("job.span")
            .nest("state", State::job(span.state).word(t))
            .nest("duration", t.duration(span.seconds))
    }

    /// Each state that the timeline shows, with the time spent in it, in the order of appearance.
    fn totals(&self) -> Vec<Span> {
        let mut totals: Vec<Span> = Vec::new();
        for span in &self.spans {
            match totals.iter_mut().find(|total| total.state == span.state) {
                Some(total) => total.seconds += span.seconds,
                None => totals.push(span.clone()),
            }
        }
        totals
    }

    fn span_class(&self, span: &Span) -> &'static str {
        draw::span_class(span.state)
    }
}
