//! One device: what it did in a window of time, who is on it, and how it is.

use askama::Template;

use crate::draw::Holder;
use crate::messages::Phrase;
use crate::parts::State;
use crate::shell::{Section, Shell};

use super::{NodeDevice, NodeWork, Utilisation};

/// A device as the reader may see it.
#[derive(Debug, Clone, Template)]
#[template(path = "device.html")]
pub struct DeviceView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The name of its node.
    pub node: String,
    /// The node's pool.
    pub pool: String,
    /// Itself.
    pub device: NodeDevice,
    /// Who is on it.
    pub work: Vec<NodeWork>,
    /// The window that is shown.
    pub shown: DeviceWindow,
    /// What it did in it, where it was sampled.
    pub utilisation: Option<Utilisation>,
    /// The same in sums.
    pub sums: DeviceSums,
}

/// How far a device's page looks back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceWindow {
    /// An hour, by minutes.
    #[default]
    Hour,
    /// A day, by minutes or hours.
    Day,
    /// A week.
    Week,
    /// Thirty days.
    Month,
}

/// What a device did in a window; absent is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceSums {
    /// The most of its memory that was held, in MiB.
    pub memory_most_mib: Option<i64>,
    /// The hottest, in degrees Celsius.
    pub hottest_c: Option<i64>,
    /// Mean power, in milliwatts.
    pub power_mw: Option<i64>,
    /// Energy, in millijoules.
    pub energy_mj: Option<i64>,
}

impl DeviceWindow {
    /// All of them, the shortest first.
    pub const ALL: &'static [Self] = &[Self::Hour, Self::Day, Self::Week, Self::Month];

    /// What the address calls it.
    pub fn code(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// How many hours it is.
    pub fn hours(self) -> i64 {
        match self {
            Self::Hour => 1,
            Self::Day => 24,
            Self::Week => 7 * 24,
            Self::Month => 30 * 24,
        }
    }
}

impl DeviceView {
    fn shows(&self, window: &DeviceWindow) -> bool {
        self.shown == *window
    }

    /// Each figure with its name.
    fn figures(&self) -> Vec<(Phrase, Phrase)> {
        let t = &self.shell.t;
        let unknown = || t.say("chart.no_data");
        let or_unknown = |said: Option<Phrase>| said.unwrap_or_else(unknown);
        let sums = &self.sums;
        let memory = sums.memory_most_mib.map(|mib| t.memory(mib));
        let degrees = |c: i64| t.say("device.degrees").with("degrees", c);
        let watts = |mw: i64| t.say("device.watts").with("watts", mw / 1000);
        let energy = |mj: i64| {
            let tenths = mj / 360_000;
            let shown = format!("{}.{}", tenths / 10, tenths % 10);
            t.say("device.watt_hours").with("watt_hours", shown)
        };
        vec![
            (t.say("device.memory_most"), or_unknown(memory)),
            (
                t.say("device.hottest"),
                or_unknown(sums.hottest_c.map(degrees)),
            ),
            (t.say("device.power"), or_unknown(sums.power_mw.map(watts))),
            (
                t.say("device.energy"),
                or_unknown(sums.energy_mj.map(energy)),
            ),
        ]
    }
}
