//! The geometry of drawings: device cells, quota bars, squares, timelines, as SVG of numbers only.

use std::fmt::Write as _;

use domain::sharing::SharingMode;
use domain::state::{DeviceHealth, JobState};

use crate::format::amount;
use crate::messages::{Messages, Phrase};
use crate::parts::{State, Team};

/// Size of a device's cell, and of the gap between two, in the drawing's units.
const CELL: (i64, i64) = (36, 24);
const GAP: i64 = 3;
/// Cells in a row: a machine's first four devices share a NUMA node, so they stand together.
const CELLS_PER_ROW: usize = 4;
/// Thousandths of a whole device, and of a whole bar.
const WHOLE: i64 = domain::quantity::MILLI;
/// GPUs up to which one square is drawn for each; more are shown by the bar alone.
pub const SQUARES_MAX: i64 = 128;
/// Least share of a timeline, in thousandths, that a span is drawn with, so that none vanishes.
const SPAN_LEAST: i64 = 4;

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
            parts.push(health.word(t).to_string());
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

/// HTML of our own making.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Html(pub(crate) String);

impl std::fmt::Display for Html {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

// Made in this crate only, of numbers, our own class names and escaped text.
impl askama::filters::HtmlSafe for Html {}

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

/// What a quota's bar and squares show, in thousandths of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// What the team is promised.
    pub guaranteed: i64,
    /// What it may hold at most.
    pub limit: Option<i64>,
    /// What it holds.
    pub used: i64,
    /// What others hold of its guarantee.
    pub lent: i64,
}

impl Quota {
    /// What it holds above its guarantee.
    pub fn borrowed(&self) -> i64 {
        (self.used - self.guaranteed).max(0)
    }

    /// What it holds within its guarantee.
    pub fn within(&self) -> i64 {
        self.used.min(self.guaranteed)
    }

    /// What of its guarantee nobody holds.
    pub fn idle(&self) -> i64 {
        (self.guaranteed - self.within() - self.lent).max(0)
    }

    /// How far the bar must reach to hold all of it.
    pub fn reach(&self) -> i64 {
        self.limit.unwrap_or(0).max(self.guaranteed).max(self.used)
    }
}

/// A quota as a bar whose whole length is `scale`; one scale per table, so that bars compare.
pub fn quota_bar(label: &str, hue: u8, quota: &Quota, scale: i64) -> Html {
    let scale = scale.max(1);
    let at = |milli: i64| percent(milli.clamp(0, scale), scale);
    let track = quota.limit.unwrap_or(scale);
    let mut out = format!(
        "<svg class=\"qbar t{hue}\" role=\"img\" aria-label=\"{}\"><rect class=\"track\" y=\"3\" width=\"{}\" height=\"12\" rx=\"2\"/>",
        escape_once(label),
        at(track)
    );
    let part = |out: &mut String, class: &str, from: i64, size: i64| {
        if size > 0 {
            push(
                out,
                format_args!(
                    "<rect class=\"{class}\" x=\"{}\" y=\"3\" width=\"{}\" height=\"12\"/>",
                    at(from),
                    at(size)
                ),
            );
        }
    };
    part(&mut out, "used", 0, quota.within());
    part(&mut out, "lent", quota.within(), quota.lent);
    part(&mut out, "bor", quota.guaranteed, quota.borrowed());
    part(&mut out, "borx", quota.guaranteed, quota.borrowed());
    if quota.guaranteed > 0 {
        push(
            &mut out,
            format_args!(
                "<line class=\"tick\" x1=\"{0}\" x2=\"{0}\" y1=\"0\" y2=\"18\"/>",
                at(quota.guaranteed)
            ),
        );
    }
    if quota.limit.is_some() {
        push(
            &mut out,
            format_args!(
                "<line class=\"lim\" x1=\"{0}\" x2=\"{0}\" y1=\"1\" y2=\"17\"/>",
                at(track)
            ),
        );
    }
    out.push_str("</svg>");
    Html(out)
}

/// A quota as squares, one a GPU; nothing when there are too many to count by eye.
pub fn squares(label: &str, hue: u8, quota: &Quota) -> Option<Html> {
    let whole = |milli: i64| (milli / WHOLE, milli % WHOLE > 0);
    let (used, used_half) = whole(quota.within());
    let (lent, lent_half) = whole(quota.lent);
    let (borrowed, borrowed_half) = whole(quota.borrowed());
    let lent = lent + i64::from(lent_half);
    let drawn = used + i64::from(used_half) + lent;
    let idle = (quota.guaranteed / WHOLE - drawn).max(0);
    let borrowed = borrowed + i64::from(borrowed_half);
    if drawn + idle + borrowed > SQUARES_MAX {
        return None;
    }
    let mut out = format!(
        "<span class=\"plots t{hue}\" role=\"img\" aria-label=\"{}\">",
        escape_once(label)
    );
    let groups = [
        ("u", used),
        ("h", i64::from(used_half)),
        ("l", lent),
        ("e", idle),
    ];
    for (class, count) in groups {
        (0..count).for_each(|_| push(&mut out, format_args!("<i class=\"{class}\"></i>")));
    }
    if borrowed > 0 {
        out.push_str("<i class=\"gap\"></i>");
        (0..borrowed).for_each(|_| out.push_str("<i class=\"b\"></i>"));
    }
    out.push_str("</span>");
    Some(Html(out))
}

/// A stretch of a job's life in one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The state.
    pub state: JobState,
    /// How long it lasted, in seconds.
    pub seconds: i64,
}

/// A job's life to scale in time.
pub fn timeline(label: &str, spans: &[Span], live: bool) -> Html {
    let total = spans
        .iter()
        .map(|span| span.seconds.max(0))
        .sum::<i64>()
        .max(1);
    let shares: Vec<i64> = spans
        .iter()
        .map(|span| (span.seconds.max(0) * WHOLE / total).max(SPAN_LEAST))
        .collect();
    let drawn = shares.iter().sum::<i64>().max(1);
    let mut out = format!(
        "<svg class=\"tl\" role=\"img\" aria-label=\"{}\">",
        escape_once(label)
    );
    let mut start = 0;
    for (span, share) in spans.iter().zip(shares) {
        push(
            &mut out,
            format_args!(
                "<rect class=\"{}\" x=\"{}\" width=\"{}\" y=\"2\" height=\"20\" rx=\"2\"/>",
                span_class(span.state),
                percent(start, drawn),
                percent(share, drawn)
            ),
        );
        start += share;
    }
    if live {
        out.push_str("<line class=\"nowl\" x1=\"100%\" x2=\"100%\" y1=\"0\" y2=\"24\"/>");
    }
    out.push_str("</svg>");
    Html(out)
}

/// The class that fills a state's span.
pub fn span_class(state: JobState) -> &'static str {
    match state {
        JobState::Starting => "f-s",
        JobState::Running => "f-r",
        JobState::Preempting | JobState::Cancelling => "f-p",
        JobState::Failed => "f-x",
        JobState::Suspended => "f-h",
        JobState::Queued | JobState::Succeeded | JobState::Cancelled => "f-qb",
    }
}

fn percent(part: i64, whole: i64) -> String {
    format!("{}%", amount_plain(part * 100 * WHOLE / whole.max(1)))
}

/// Thousandths as a plain number for an attribute: no separators, an ASCII minus.
fn amount_plain(milli: i64) -> String {
    amount(milli).replace(',', "").replace('\u{2212}', "-")
}

fn half(n: i64) -> String {
    format!("{n}.5")
}

/// A description made of phrases is escaped already; only quotes could leave an attribute, and they are.
fn escape_once(text: &str) -> &str {
    debug_assert!(
        !text.contains(['"', '<', '>']),
        "descriptions are made of phrases, which escape"
    );
    text
}

fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what)
        .expect("writing to a string cannot fail");
}

/// A phrase's text as an attribute's value: without emphasis.
pub fn plain(phrase: &Phrase) -> String {
    phrase.to_string().replace("<b>", "").replace("</b>", "")
}

/// A phrase as plain text, for where it will be escaped once more.
pub fn plain_text(phrase: &Phrase) -> String {
    let replaced = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    replaced
        .iter()
        .fold(plain(phrase), |text, (entity, character)| {
            text.replace(entity, character)
        })
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
            out: false,
            shares: vec![share],
        };
        let drawn = devices(&Messages::english(), &[device]).to_string();
        assert!(
            drawn.contains("class=\"t0\"") && drawn.contains("in use") && !drawn.contains("util")
        );
    }

    #[test]
    fn a_quota_adds_up_to_its_guarantee() {
        let quota = Quota {
            guaranteed: 8000,
            limit: Some(16_000),
            used: 5500,
            lent: 1000,
        };
        assert_eq!(quota.within() + quota.lent + quota.idle(), quota.guaranteed);
        let drawn = squares("label", 1, &quota).unwrap().to_string();
        assert_eq!(drawn.matches("<i ").count(), 8);
        let borrowing = Quota {
            used: 10_000,
            lent: 0,
            ..quota
        };
        assert_eq!(
            (borrowing.within(), borrowing.borrowed(), borrowing.idle()),
            (8000, 2000, 0)
        );
        assert!(
            quota_bar("label", 1, &borrowing, 16_000)
                .to_string()
                .contains("class=\"bor\" x=\"50%\" y=\"3\" width=\"12.5%\"")
        );
    }

    #[test]
    fn a_short_span_is_still_drawn() {
        let spans = [
            Span {
                state: JobState::Queued,
                seconds: 1,
            },
            Span {
                state: JobState::Running,
                seconds: 1_000_000,
            },
        ];
        let drawn = timeline("label", &spans, true).to_string();
        assert!(
            drawn.contains("class=\"f-qb\" x=\"0%\" width=\"0.39") && drawn.contains("nowl"),
            "{drawn}"
        );
    }
}
