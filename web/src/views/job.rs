//! One job: its state and why, its life, its log, where it runs and what it costs.

use askama::Template;
use chrono::{DateTime, TimeDelta, Utc};
use domain::sharing::SharingMode;
use domain::state::{DeviceHealth, JobState};

use crate::draw::{self, Device, Holder, Html, Share, Span};
use crate::format::{self, Cost, Size};
use crate::log::Line;
use crate::messages::{Messages, Phrase};
use crate::parts::{EventLine, State, Team, scattered};
use crate::shell::{Section, Shell};

use super::held::{self, HeldAlike};
use super::{Ending, EvictionRow, Remedy, Utilisation, WaitHistory, Why};

/// A job as its team sees it.
#[derive(Debug, Clone, Template)]
#[template(path = "job.html")]
pub struct JobView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The job's id.
    pub id: String,
    /// Of an element, the id of its array and its index there.
    pub element: Option<(String, u32)>,
    /// Its name.
    pub name: String,
    /// Its team.
    pub team: Team,
    /// Who submitted it.
    pub user: String,
    /// Its state.
    pub state: JobState,
    /// Its version, which a change of it names.
    pub version: i64,
    /// Why it waits, or how it ended.
    pub why: Why,
    /// How large it is.
    pub size: Size,
    /// How long it ran or has been running, in seconds, over all attempts; `None` if it never did.
    pub ran_seconds: Option<i64>,
    /// Where its workers are.
    pub placement: Vec<PlacedWorker>,
    /// The stretches of its life.
    pub spans: Vec<Span>,
    /// What it has waited for.
    pub waits: WaitHistory,
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
    pub asked: Vec<(&'static str, Phrase)>,
    /// What it did, once it was sampled.
    pub utilisation: Option<Utilisation>,
    /// Its log.
    pub log: LogPanel,
    /// What the reader may do.
    pub actions: JobActions,
    /// The form that changes it while it waits, for who may.
    pub change: Option<JobChange>,
}

/// What may be changed of a job while it waits, as it is.
#[derive(Debug, Clone)]
pub struct JobChange {
    /// Its priority class.
    pub class: String,
    /// The classes to choose from.
    pub classes: Vec<String>,
    /// Its time limit; empty for none.
    pub time_limit_minutes: String,
    /// Whether it may be preempted: `true`, `false` or empty for as its class says.
    pub preemptible: &'static str,
}

impl JobChange {
    pub(super) fn preemptions(&self) -> [(&'static str, bool); 3] {
        ["", "true", "false"].map(|choice| (choice, choice == self.preemptible))
    }
}

/// A worker and its devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedWorker {
    /// The worker's number.
    pub worker: u32,
    /// Its node.
    pub node: String,
    /// Until when it may stay there, where that is being emptied by a deadline.
    pub leaves_by: Option<DateTime<Utc>>,
    /// What names the image of its container for good, once that has started.
    pub image_digest: Option<String>,
    /// Its devices: index, thousandths held, and the mode's code.
    pub devices: Vec<(u32, u32, String)>,
}

impl PlacedWorker {
    /// Its devices as cells in its team's hue.
    fn cells(&self, t: &Messages, team: &Team) -> Html {
        let cells = self.devices.iter().map(|(index, milli, mode)| Device {
            index: *index,
            health: DeviceHealth::Healthy,
            why: None,
            out: false,
            shares: vec![Share {
                holder: Holder::Known {
                    team: team.clone(),
                    job: None,
                },
                milli: *milli,
                mode: mode.parse().unwrap_or(SharingMode::Exclusive),
                used_percent: None,
            }],
        });
        draw::devices(t, &cells.collect::<Vec<_>>())
    }

    /// The devices in words, those in a row that are held alike as one.
    pub(super) fn devices_told(&self, t: &Messages) -> Vec<Phrase> {
        let told = self.held().into_iter().map(|held| {
            t.count("job.devices", held.count)
                .with("indices", held.indices)
                .with("gpus", t.amount(held.milli))
                .nest("mode", t.word("mode", &held.first.2))
        });
        told.collect()
    }

    /// The devices, those in a row that are held alike as one.
    fn held(&self) -> Vec<HeldAlike<'_, (u32, u32, String)>> {
        held::alike(
            &self.devices,
            |(index, milli, _)| (*index, *milli),
            |(_, milli, mode), (_, next, kind)| milli == next && mode == kind,
        )
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
    /// What it gave up, first to last.
    pub evictions: Vec<EvictionRow>,
}

/// A line of the job's bill.
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
    /// Which worker of that rank it is, where another one has filled it since.
    pub filling: Option<u32>,
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
    /// Which worker of that rank, the first being 1; `None` is the last.
    pub filling: Option<u32>,
    /// The node that wrote it, where that is known.
    pub node: Option<String>,
}

impl LogPanel {
    fn shows(&self, choice: &LogChoice) -> bool {
        self.key() == choice.key()
    }

    fn key(&self) -> String {
        key(self.attempt, self.worker, self.filling)
    }
}

impl LogChoice {
    fn key(&self) -> String {
        key(self.attempt, self.worker, self.filling)
    }
}

/// A log's name in the page's address.
fn key(attempt: u32, worker: u32, filling: Option<u32>) -> String {
    match filling {
        None => format!("{attempt}.{worker}"),
        Some(filling) => format!("{attempt}.{worker}.{filling}"),
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
    /// Change it while it waits.
    pub change: bool,
    /// Submit one like it.
    pub clone: bool,
}

/// Parts that the timeline's labels divide it into.
const AXIS_PARTS: i64 = 4;

impl JobView {
    fn shown_state(&self) -> Phrase {
        State::job(self.state).show(&self.shell.t)
    }

    /// The keys of this job that make a change, where it may still be made and by the reader.
    fn pressed<'a>(&self, remedy: &'a Remedy) -> Option<Vec<(&'static str, &'a str)>> {
        remedy.keys_of_job().filter(|_| self.actions.change)
    }

    /// The fields of the submit form that make a change, where the reader may submit one like it.
    fn offered(&self, remedy: &Remedy) -> Option<Vec<(&'static str, String)>> {
        remedy.fields().filter(|_| self.actions.clone)
    }

    /// Whether the bill tells an amount under a cent.
    fn tells_small(&self) -> bool {
        format::tells_small(self.costs.iter().map(|line| &line.cost).chain([&self.cost]))
    }

    fn live(&self) -> bool {
        !self.state.terminal()
    }

    /// What a cancel would lose.
    fn cancel_loses(&self) -> Phrase {
        let t = &self.shell.t;
        match (self.placement.is_empty(), self.attempts.is_empty()) {
            (false, _) => t.say("job.cancel_running"),
            (true, false) => t.say("job.cancel_stopped"),
            (true, true) => t.say("job.cancel_waiting"),
        }
    }

    fn queued(&self) -> bool {
        self.state == JobState::Queued
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

    /// Whether its nodes are too many to be named in a sentence.
    fn scattered(&self) -> bool {
        scattered(self.nodes().len())
    }

    /// How long it waited or ran, and what that cost.
    fn tally(&self) -> Phrase {
        let t = &self.shell.t;
        let waited = self
            .totals()
            .into_iter()
            .find(|total| total.state == JobState::Queued);
        match (self.ran_seconds, waited) {
            (Some(seconds), _) => {
                let told = if self.live() {
                    t.say("job.so_far_ran")
                } else {
                    t.say("job.ran")
                };
                told.nest("duration", t.duration(seconds))
                    .nest("cost", t.cost(&self.cost))
            }
            (None, Some(waited)) if self.queued() => t
                .say("job.waited")
                .nest("duration", t.duration(waited.seconds)),
            (None, _) => Phrase::literal(""),
        }
    }

    /// Moments at even distances below the timeline, from its beginning to its end.
    fn axis(&self) -> Vec<DateTime<Utc>> {
        let Some(begin) = self.events.first().map(|event| event.at) else {
            return Vec::new();
        };
        let seconds: i64 = self.spans.iter().map(|span| span.seconds.max(0)).sum();
        // A minute is the least that two labels differ by.
        let parts = if seconds < AXIS_PARTS * 60 {
            1
        } else {
            AXIS_PARTS
        };
        let at = |part: i64| begin + TimeDelta::seconds(seconds * part / parts);
        (0..=parts).map(at).collect()
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
