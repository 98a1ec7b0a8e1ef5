//! Device cells: what of each GPU of a node is held, and by whom.

use domain::sharing::SharingMode;
use domain::state::DeviceHealth;

use super::{Html, WHOLE, amount_plain, escape_once, push};
use crate::messages::Messages;
use crate::parts::{State, Team};

/// Size of a device's cell, and of the gap between two, in the drawing's units.
const CELL: (i64, i64) = (36, 24);
const GAP: i64 = 3;
/// Cells in a row: a machine's first four devices share a NUMA node, so they stand together.
const CELLS_PER_ROW: usize = 4;

/// Who holds a part of a device, as far as the reader may know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// Work that the reader may see.
    Known {
        /// The team that holds it.
        team: Team,
        /// The job's id and name.
        job: Option<(String, String)>,
    },
    /// Somebody else: shown as in use, and no more.
    Other,
}

/// A part of a device that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Who holds it.
    pub holder: Holder,
    /// Its size, in thousandths of the device.
    pub milli: u32,
    /// How it is given out.
    pub mode: SharingMode,
    /// How much of it was used lately, in percent, when known and the reader's to see.
    pub used_percent: Option<u8>,
}

/// One device as the map shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its index on the node.
    pub index: u32,
    /// Its health.
    pub health: DeviceHealth,
    /// Why it is so, where that is told.
    pub why: Option<String>,
    /// Whether the node takes no new work, or does not answer.
    pub out: bool,
    /// The parts that are held, in the order of their places.
    pub shares: Vec<Share>,
}

impl Device {
    /// Thousandths that are held.
    pub fn held_milli(&self) -> i64 {
        self.shares.iter().map(|share| i64::from(share.milli)).sum()
    }

    /// Whether it could take new work: healthy, and its node does.
    pub fn usable(&self) -> bool {
        !self.out && self.health == DeviceHealth::Healthy
    }

    /// What the cell shows, in words.
    pub fn describe(&self, t: &Messages) -> String {
        let health = State::device(self.health);
        let mut parts: Vec<String> = self
            .shares
            .iter()
            .map(|share| describe_share(t, share))
            .collect();
        if self.health != DeviceHealth::Healthy {
            let state = health.word(t);
            parts.push(match &self.why {
                Some(why) => t
                    .say("device.because")
                    .nest("state", state)
                    .with("why", why)
                    .to_string(),
                None => state.to_string(),
            });
        }
        if parts.is_empty() {
            let state = if self.out {
                t.say("device.out")
            } else {
                t.say("device.free")
            };
            parts.push(state.to_string());
        }
        t.say("device.cell")
            .with("index", self.index)
            .nest("state", Html(parts.join(", ")))
            .to_string()
    }
}

fn describe_share(t: &Messages, share: &Share) -> String {
    let size = t.gpus(share.milli);
    match &share.holder {
        Holder::Known { team, job } => {
            let job = job.as_ref().map_or("", |(_, name)| name.as_str());
            t.say("device.held")
                .with("team", &team.name)
                .with("job", job)
                .nest("size", size)
                .to_string()
        }
        Holder::Other => t.say("device.in_use").nest("size", size).to_string(),
    }
}

/// The cells of a node, four in a row.
pub fn devices(t: &Messages, devices: &[Device]) -> Html {
    let columns = devices.len().clamp(1, CELLS_PER_ROW) as i64;
    let rows = devices.len().div_ceil(CELLS_PER_ROW).max(1) as i64;
    // A node of few devices keeps the size of its cells: the drawing's width is that of a full row.
    let width = CELLS_PER_ROW as i64 * (CELL.0 + GAP) - GAP;
    let height = rows * (CELL.1 + GAP) - GAP;
    let mut out = format!(
        "<svg class=\"devs\" viewBox=\"0 0 {width} {height}\" aria-hidden=\"true\" data-columns=\"{columns}\">"
    );
    for (place, device) in devices.iter().enumerate() {
        let x = (place % CELLS_PER_ROW) as i64 * (CELL.0 + GAP);
        let y = (place / CELLS_PER_ROW) as i64 * (CELL.1 + GAP);
        draw_device(&mut out, t, device, (x, y));
    }
    out.push_str("</svg>");
    Html(out)
}

/// The cell of one device, as wide as its place.
pub(crate) fn device(t: &Messages, device: &Device) -> Html {
    let (width, height) = CELL;
    let mut out =
        format!("<svg class=\"devs\" viewBox=\"0 0 {width} {height}\" aria-hidden=\"true\">");
    draw_device(&mut out, t, device, (0, 0));
    out.push_str("</svg>");
    Html(out)
}

fn draw_device(out: &mut String, t: &Messages, device: &Device, (x, y): (i64, i64)) {
    let (width, height) = CELL;
    let (inner_x, inner_y) = (half(x), half(y));
    let frame = format!(
        "x=\"{inner_x}\" y=\"{inner_y}\" width=\"{}\" height=\"{}\" rx=\"2\"",
        width - 1,
        height - 1
    );
    push(
        out,
        format_args!("<g><title>{}</title>", escape_once(&device.describe(t))),
    );
    if device.health == DeviceHealth::Failed {
        push(
            out,
            format_args!(
                "<rect class=\"dead\" {frame}/><path class=\"x\" d=\"M{} {}l10 10m0-10l-10 10\"/>",
                x + 13,
                y + 7
            ),
        );
    } else if device.out && device.shares.is_empty() {
        push(out, format_args!("<rect class=\"hatch\" {frame}/>"));
    } else if device.shares.is_empty() {
        push(out, format_args!("<rect class=\"dv free\" {frame}/>"));
    } else {
        push(out, format_args!("<rect class=\"dv\" {frame}/>"));
        draw_shares(out, &device.shares, (x, y));
    }
    if matches!(
        device.health,
        DeviceHealth::Suspect | DeviceHealth::ModeChange
    ) {
        push(
            out,
            format_args!(
                "<rect class=\"hot\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2\"/>",
                x + 1,
                y + 1,
                width - 2,
                height - 2
            ),
        );
    }
    out.push_str("</g>");
}

fn draw_shares(out: &mut String, shares: &[Share], (x, y): (i64, i64)) {
    let (width, height) = CELL;
    let mut start = 0;
    for share in shares {
        let milli = i64::from(share.milli).min(WHOLE - start).max(0);
        let (left, right) = (
            x * WHOLE + start * width,
            x * WHOLE + (start + milli) * width,
        );
        start += milli;
        let (class, edge) = match &share.holder {
            Holder::Known { team, .. } => (
                format!("t{}", team.hue),
                if matches!(share.mode, SharingMode::Exclusive | SharingMode::Mig) {
                    "edge"
                } else {
                    "edge soft"
                },
            ),
            Holder::Other => ("t0".into(), "edge"),
        };
        let span = format!(
            "x=\"{}\" width=\"{}\"",
            amount_plain(left),
            amount_plain(right - left)
        );
        push(
            out,
            format_args!(
                "<g class=\"{class}\"><rect class=\"held\" {span} y=\"{y}\" height=\"{height}\" rx=\"2\"/>"
            ),
        );
        if let Some(percent) = share.used_percent {
            let fill = i64::from(percent.min(100)) * height * 10;
            let top = (y + height) * WHOLE - fill;
            push(
                out,
                format_args!(
                    "<rect class=\"util\" {span} y=\"{}\" height=\"{}\" rx=\"1.5\"/>",
                    amount_plain(top),
                    amount_plain(fill)
                ),
            );
        }
        let inset = format!(
            "x=\"{}\" width=\"{}\"",
            amount_plain(left + 500),
            amount_plain((right - left - 1000).max(0))
        );
        push(
            out,
            format_args!(
                "<rect class=\"{edge}\" {inset} y=\"{}\" height=\"{}\" rx=\"2\"/></g>",
                half(y),
                height - 1
            ),
        );
    }
}

fn half(n: i64) -> String {
    format!("{n}.5")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(milli: u32, hue: u8) -> Share {
        let team = Team {
            name: "vision".into(),
            hue,
        };
        Share {
            holder: Holder::Known {
                team,
                job: Some(("1".into(), "<b>".into())),
            },
            milli,
            mode: SharingMode::TimeSlice,
            used_percent: Some(50),
        }
    }

    #[test]
    fn slices_cut_a_device_by_their_size_and_names_are_escaped() {
        let device = Device {
            index: 3,
            health: DeviceHealth::Healthy,
            why: None,
            out: false,
            shares: vec![held(250, 2), held(500, 3)],
        };
        let drawn = devices(&Messages::english(), &[device]).to_string();
        assert!(
            drawn.contains("<g class=\"t2\"><rect class=\"held\" x=\"0\" width=\"9\""),
            "{drawn}"
        );
        assert!(
            drawn.contains("<g class=\"t3\"><rect class=\"held\" x=\"9\" width=\"18\""),
            "{drawn}"
        );
        assert!(
            drawn.contains("&lt;b&gt;")
                && drawn.contains("class=\"util\" x=\"0\" width=\"9\" y=\"12\" height=\"12\"")
        );
    }

    #[test]
    fn what_others_hold_is_one_neutral_cell_without_a_name() {
        let share = Share {
            holder: Holder::Other,
            milli: 1000,
            mode: SharingMode::Exclusive,
            used_percent: None,
        };
        let device = Device {
            index: 0,
            health: DeviceHealth::Healthy,
            why: None,
            out: false,
            shares: vec![share],
        };
        let drawn = devices(&Messages::english(), &[device]).to_string();
        assert!(
            drawn.contains("class=\"t0\"") && drawn.contains("in use") && !drawn.contains("util")
        );
    }
}
