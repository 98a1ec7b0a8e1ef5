//! One node: its devices, who is on them, how it is wired, and what is to be done about it.

use askama::Template;
use chrono::{DateTime, Utc};
use domain::state::DeviceHealth;

use crate::draw::{self, Device, Holder, Html};
use crate::messages::{Messages, Phrase};
use crate::parts::{EventLine, State};
use crate::shell::{Section, Shell};

use super::Utilisation;
use super::held::{self, HeldAlike};

/// A node as the reader may see it.
#[derive(Debug, Clone, Template)]
#[template(path = "node.html")]
pub struct NodeView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The node's name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its state.
    pub state: State,
    /// When its agent was last heard.
    pub heard_at: Option<DateTime<Utc>>,
    /// The version of its agent.
    pub agent_version: Option<String>,
    /// The version of its GPU driver.
    pub driver_version: Option<String>,
    /// CPU cores, in thousandths.
    pub cpus_milli: i64,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// The codes of the runners that it can drive.
    pub runners: Vec<String>,
    /// The codes of the sharing modes that it can drive.
    pub modes: Vec<String>,
    /// What people should know of how it isolates work.
    pub notes: Vec<NodeNote>,
    /// What is free on its disk and what a start needs, in MiB, while that is full.
    pub disk_full: Option<(i64, i64)>,
    /// By how many seconds its clock is ahead, or behind where that is negative, while it is wrong.
    pub clock_ahead: Option<i64>,
    /// What its agent warns of, in its words.
    pub warnings: Vec<String>,
    /// Why it is as people want it, where somebody said so.
    pub intent_reason: Option<String>,
    /// Until when running work may stay while it is being emptied.
    pub deadline_at: Option<DateTime<Utc>>,
    /// Its devices.
    pub devices: Vec<NodeDevice>,
    /// What its devices did, where they were sampled.
    pub utilisation: Option<Utilisation>,
    /// What runs on it.
    pub work: Vec<NodeWork>,
    /// What happened to it, newest first.
    pub events: Vec<EventLine>,
    /// Where the newest of that is, unless it is here.
    pub newest: Option<String>,
    /// Where what happened before is.
    pub older: Option<String>,
    /// What the reader may do with it.
    pub actions: Vec<NodeAction>,
    /// What a drain would move, where the reader may drain.
    pub leaving: Option<Leaving>,
}

/// What the work on a node holds of it, by what a drain does to it, in thousandths of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// Preemptible: placed elsewhere.
    pub moves: i64,
    /// Not preemptible: ends by itself.
    pub stays: i64,
}

/// A warning that a message says in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeNote {
    /// The agent is not root: all jobs run as its own user.
    NoIsolation,
    /// The host allows no cgroups: CPU and memory limits are not enforced.
    NoLimits,
    /// Its agent has not said anything yet, so that nothing is known of it.
    Unheard,
}

impl NodeNote {
    fn code(self) -> &'static str {
        match self {
            Self::NoIsolation => "no_isolation",
            Self::NoLimits => "no_limits",
            Self::Unheard => "unheard",
        }
    }
}

/// A device with its particulars.
#[derive(Debug, Clone)]
pub struct NodeDevice {
    /// The device as the map shows it.
    pub cell: Device,
    /// Since when its health is what it is.
    pub since: DateTime<Utc>,
    /// Whether a person has cleared what was found, and its node has yet to say so.
    pub cleared: bool,
    /// What was found of it, by number.
    pub found: Vec<NodeFinding>,
    /// Whether the reader may clear that.
    pub clearable: bool,
    /// Its UUID.
    pub uuid: String,
    /// Its model.
    pub model: String,
    /// Its memory in MiB.
    pub memory_mib: i64,
    /// Its NUMA node.
    pub numa: Option<u32>,
    /// The NVLink clique that it is in.
    pub clique: Option<u32>,
    /// The mode's code in which it is given out now; a free one has none.
    pub mode: Option<String>,
    /// What its node is about to make of it by a layout.
    pub laying: Option<Laying>,
}

/// What a node is about to make of a device by its layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Laying {
    /// One that is given out whole.
    Whole,
    /// One with an instance of each of these profiles.
    Into(Vec<String>),
}

impl Laying {
    fn show(&self, t: &Messages) -> Phrase {
        match self {
            Self::Whole => t.say("node.laying_whole"),
            Self::Into(profiles) if profiles.is_empty() => t.say("node.laying_bare"),
            Self::Into(profiles) => t.say("node.laying").with("profiles", profiles.join(", ")),
        }
    }
}

/// Something that happened to a device and keeps it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFinding {
    /// Its number.
    pub number: i64,
    /// In words.
    pub reason: String,
}

/// Work on a device of the node.
#[derive(Debug, Clone)]
pub struct NodeWork {
    /// The device's index.
    pub device: u32,
    /// Who holds it.
    pub holder: Holder,
    /// How much of the device, in thousandths.
    pub milli: u32,
    /// The mode's code.
    pub mode: String,
    /// Since when, where the reader may know.
    pub since: Option<DateTime<Utc>>,
}

/// Something that operators may do with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAction {
    /// New work stays away.
    Cordon,
    /// New work may come again.
    Uncordon,
    /// Work is moved away or stopped.
    Drain,
    /// It does not answer, and the person vouches that nothing runs on it any more.
    DeclareLost,
}

impl NodeAction {
    fn code(self) -> &'static str {
        match self {
            Self::Cordon => "cordon",
            Self::Uncordon => "uncordon",
            Self::Drain => "drain",
            Self::DeclareLost => "declare-lost",
        }
    }

    /// Whether the person may say until when running work may stay.
    fn takes_deadline(self) -> bool {
        self == Self::Drain
    }

    fn interrupts(self) -> bool {
        matches!(self, Self::Drain | Self::DeclareLost)
    }
}

/// Thousandths of a whole device.
const WHOLE: i64 = domain::quantity::MILLI;

impl NodeDevice {
    fn drawn(&self, t: &Messages) -> Html {
        draw::device(t, &self.cell)
    }

    /// Whether its health needs words.
    /// Up to which number the reader may clear what was found of it, if so.
    fn to_clear(&self) -> Option<i64> {
        let newest = self.found.iter().map(|finding| finding.number).max();
        newest.filter(|_| self.clearable)
    }

    fn ill(&self) -> bool {
        self.cell.health != DeviceHealth::Healthy
    }

    /// Who is on it, or why nobody is.
    fn caption(&self, t: &Messages) -> Phrase {
        let state = self.cell.health;
        match self.cell.shares.as_slice() {
            _ if state != DeviceHealth::Healthy => State::device(state).word(t),
            [] if self.cell.out => t.say("device.out_short"),
            [] => t.say("device.free"),
            [share] => match &share.holder {
                Holder::Known {
                    job: Some((_, name)),
                    ..
                } => Phrase::literal(name),
                Holder::Known { team, .. } => Phrase::literal(&team.name),
                Holder::Other => t.say("node.in_use"),
            },
            shares => t.count("device.shares", shares.len()),
        }
    }
}

impl NodeWork {
    /// Whether the same work holds both devices alike.
    fn alike(&self, other: &Self) -> bool {
        let how = |work: &Self| (work.milli, work.mode.clone(), work.since);
        self.holder == other.holder && how(self) == how(other)
    }
}

impl NodeView {
    /// What an action does, for whoever is about to do it.
    fn asks_more(&self, action: &NodeAction) -> Phrase {
        let t = &self.shell.t;
        let said = t
            .word("node_ask_more", action.code())
            .nest("held", t.gpus(self.held_milli()));
        match self.leaving {
            Some(leaving) => said.nest("moves", t.gpus(leaving.moves)),
            None => said,
        }
    }

    /// What an action leaves to end by itself, where that is anything.
    fn leaves(&self, action: &NodeAction) -> Option<Phrase> {
        let t = &self.shell.t;
        let stays = self.leaving.map_or(0, |leaving| leaving.stays);
        let told = stays > 0 && t.knows("node_ask_stays", action.code());
        told.then(|| {
            t.word("node_ask_stays", action.code())
                .nest("stays", t.gpus(stays))
        })
    }

    fn held_milli(&self) -> i64 {
        self.devices
            .iter()
            .map(|device| device.cell.held_milli())
            .sum()
    }

    fn whole_milli(&self) -> i64 {
        self.devices.len() as i64 * WHOLE
    }

    fn troubled(&self) -> usize {
        self.devices
            .iter()
            .filter(|device| device.cell.health != DeviceHealth::Healthy)
            .count()
    }

    /// The devices by NUMA node; those whose place is unknown last.
    fn domains(&self) -> Vec<(Option<u32>, Vec<&NodeDevice>)> {
        let mut numas: Vec<Option<u32>> = self.devices.iter().map(|device| device.numa).collect();
        numas.sort_by_key(|numa| (numa.is_none(), *numa));
        numas.dedup();
        numas
            .into_iter()
            .map(|numa| {
                let here = self.devices.iter().filter(|device| device.numa == numa);
                (numa, here.collect())
            })
            .collect()
    }

    /// The work on the node, devices in a row that are held alike as one line.
    fn held(&self) -> Vec<HeldAlike<'_, NodeWork>> {
        held::alike(
            &self.work,
            |work| (work.device, work.milli),
            NodeWork::alike,
        )
    }

    /// The device that all others are like in model and memory, where they are.
    fn uniform(&self) -> Option<&NodeDevice> {
        let kind = |device: &NodeDevice| (device.model.clone(), device.memory_mib);
        let first = self.devices.first()?;
        let alike = self
            .devices
            .iter()
            .all(|device| kind(device) == kind(first));
        alike.then_some(first)
    }

    /// How many devices each clique links; a clique of one is none.
    fn cliques(&self) -> Vec<usize> {
        let mut sizes = std::collections::BTreeMap::<u32, usize>::new();
        for clique in self.devices.iter().filter_map(|device| device.clique) {
            *sizes.entry(clique).or_default() += 1;
        }
        sizes.into_values().filter(|size| *size > 1).collect()
    }
}
