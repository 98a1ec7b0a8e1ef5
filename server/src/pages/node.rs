//! One node, and what operators do with it.

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{Redirect, Response};
use chrono::TimeDelta;
use domain::name::Name;
use domain::state::{DeviceHealth, NodeIntent, Reachability};
use serde::Deserialize;
use web::messages::{Messages, Phrase};
use web::parts::{EventLine, State as Shown};
use web::shell::Section;
use web::views::{Leaving, NodeAction, NodeDevice, NodeFinding, NodeNote, NodeView, NodeWork};

use super::fault::encode;
use super::fleet::{cell, holder};
use super::form::minutes;
use super::jobs::Teams;
use super::visit::{Posted, Visit};
use super::{Nothing, PageError, page, utilisation};
use crate::app::authorise::{Action, Target, may};
use crate::app::idempotency::Repeat;
use crate::app::nodes::{self, Clear, Node, NodeEvent, NodeWish, Reason};
use crate::app::page::PageAsk;
use crate::app::telemetry::{self, TelemetryAsk};
use crate::app::{App, AppError, Asker, planning};
use crate::front::fields::read_query;

/// Events on a node's page; older ones are a page further.
const EVENTS_SHOWN: u32 = 30;

/// Events of one report lie no further apart: each is written by the clock's time, one after the other.
const REPORTED_WITHIN: TimeDelta = TimeDelta::seconds(5);

/// What is asked of the page.
#[derive(Debug, Default, Deserialize)]
pub struct NodeQuery {
    /// `next_cursor` of the events before.
    cursor: Option<String>,
}

/// Shows one node.
pub async fn show_node(
    State(app): State<App>,
    visit: Visit,
    Path(name): Path<String>,
    uri: Uri,
) -> Result<Response, PageError> {
    let name = read_node(&name)?;
    let query: NodeQuery = read_query(&uri)?;
    let asker = &visit.asker;
    let node = nodes::get(&app, asker, &name).await?;
    let told_of = telemetry::of_node(&app, asker, &name, TelemetryAsk::default()).await?;
    let teams = Teams::load(&app, asker).await?;
    let ask = PageAsk::new(Some(EVENTS_SHOWN), query.cursor.clone())?;
    let events = nodes::events(&app, asker, &name, &ask).await?;
    let shell = visit.shell(&app, Section::Fleet).await?;
    let actions = actions(asker, &node);
    let leaving = if actions.contains(&NodeAction::Drain) {
        Some(planning::leaving(&app, asker, &name).await?)
    } else {
        None
    };
    page(&NodeView {
        leaving: leaving.map(|leaving| Leaving {
            moves: leaving.moves.milli(),
            stays: leaving.stays.milli(),
        }),
        state: Shown::node(node.intent, node.reachability),
        heard_at: node.last_heartbeat_at,
        agent_version: told(&node.agent_version),
        driver_version: told(&node.driver_version),
        cpus_milli: node.cpus.milli(),
        memory_mib: node.memory_mib,
        labels: node.labels.clone().into_iter().collect(),
        runners: node
            .runners
            .iter()
            .map(|runner| runner.as_str().to_owned())
            .collect(),
        modes: node
            .sharing
            .iter()
            .map(|mode| mode.as_str().to_owned())
            .collect(),
        notes: notes(&node),
        disk_full: node
            .disk_full
            .as_ref()
            .map(|full| (full.free_mib, full.needed_mib)),
        warnings: node.warnings.clone(),
        utilisation: utilisation::of_node(&told_of),
        work: work(&node, &teams),
        devices: devices(asker, &node, &teams),
        intent_reason: told(&node.intent_reason),
        deadline_at: node.drain_deadline_at,
        events: event_lines(&shell.t, &node.name, &events.items),
        newest: query.cursor.is_some().then(|| format!("/nodes/{name}")),
        older: events
            .next_cursor
            .map(|cursor| format!("/nodes/{name}?cursor={}", encode(&cursor))),
        actions,
        pool: node.pool,
        name: node.name,
        shell,
    })
}

fn told(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

fn notes(node: &Node) -> Vec<NodeNote> {
    // What its agent has not told is not known: what stands in its place are no facts.
    let unheard = node.agent_version.is_empty();
    let all = [
        (
            NodeNote::Unheard,
            unheard && node.intent != NodeIntent::Retired,
        ),
        (NodeNote::NoIsolation, !unheard && !node.isolated),
        (NodeNote::NoLimits, !unheard && node.cgroup == "none"),
    ];
    all.into_iter()
        .filter_map(|(note, holds)| holds.then_some(note))
        .collect()
}

pub(super) fn devices(asker: &Asker, node: &Node, teams: &Teams) -> Vec<NodeDevice> {
    let clears = may(asker, Action::ClearDevice, Target::Platform);
    let devices = node.devices.iter();
    devices
        .map(|device| NodeDevice {
            cell: cell(node, device, teams),
            since: device.health_at,
            cleared: device.cleared,
            found: device.found.iter().map(found).collect(),
            clearable: clears && !device.cleared,
            uuid: device.uuid.clone(),
            model: device.product_name.clone(),
            memory_mib: device.memory_mib,
            numa: device.numa,
            clique: device.nvlink,
            mode: device.mode.map(|mode| mode.as_str().to_owned()),
        })
        .collect()
}

fn found(finding: &nodes::Found) -> NodeFinding {
    NodeFinding {
        number: finding.number,
        reason: finding.reason.clone(),
    }
}

pub(super) fn work(node: &Node, teams: &Teams) -> Vec<NodeWork> {
    let slices = node
        .devices
        .iter()
        .flat_map(|device| device.slices.iter().map(move |slice| (device, slice)));
    slices
        .map(|(device, slice)| NodeWork {
            device: device.index.unsigned_abs(),
            holder: holder(slice, teams),
            milli: u32::try_from(slice.gpus.milli()).unwrap_or(0),
            mode: slice.mode.as_str().to_owned(),
            since: slice.holder.as_ref().map(|known| known.since),
        })
        .collect()
}

/// Events as lines, the newest first; what happened to several devices alike at one time is one
/// line.
fn event_lines(t: &Messages, node: &str, events: &[NodeEvent]) -> Vec<EventLine> {
    let mut lines = Vec::new();
    let mut rest = events;
    while let Some(newest) = rest.first() {
        let alike = rest.iter().take_while(|event| as_one(newest, event));
        let (group, older) = rest.split_at(alike.count().max(1));
        lines.extend(event_line(t, node, group));
        rest = older;
    }
    lines
}

/// Whether two events of devices are told as one: they are alike, and of one report.
fn as_one(newest: &NodeEvent, event: &NodeEvent) -> bool {
    let what = |event: &NodeEvent| (event.to.clone(), event.reason.clone(), event.actor.clone());
    index(newest).is_some()
        && index(event).is_some()
        && what(newest) == what(event)
        && newest.at - event.at < REPORTED_WITHIN
}

/// The index of the device that an event is about.
fn index(event: &NodeEvent) -> Option<i64> {
    event.data["index"].as_i64()
}

/// Events that are alike as a line; its mark is that of the state they led to.
fn event_line(t: &Messages, node: &str, group: &[NodeEvent]) -> Option<EventLine> {
    let event = group.first()?;
    let state = match event.subject.as_str() {
        // That it may come; whether it answers is told when it does.
        _ if event.reason == "enrolled" => Shown::note(),
        "device" => event.to.parse::<DeviceHealth>().map(Shown::device).ok()?,
        _ => match (
            event.to.parse::<NodeIntent>(),
            event.to.parse::<Reachability>(),
        ) {
            (Ok(intent), _) => Shown::node(intent, Reachability::Ready),
            (_, Ok(reachability)) => Shown::node(NodeIntent::Open, reachability),
            _ => Shown::note(),
        },
    };
    Some(EventLine {
        at: event.at,
        state,
        code: match event.reason.as_str() {
            "enrolled" => "enrolled".into(),
            "cleared" => "cleared".into(),
            _ => event.to.clone(),
        },
        // What the node itself or the product did is told without a name.
        actor: Some(event.actor.clone())
            .filter(|actor| ![node, "allotment", "scheduler"].contains(&actor.as_str())),
        detail: detail(t, group),
    })
}

/// Which devices it is about, and why it came. A reason without a word of its own is a person's
/// or a driver's.
fn detail(t: &Messages, group: &[NodeEvent]) -> Option<Phrase> {
    let mut indices: Vec<i64> = group.iter().filter_map(index).collect();
    indices.sort_unstable();
    let named: Vec<String> = indices.iter().map(i64::to_string).collect();
    let devices = (!named.is_empty()).then(|| {
        t.count("node.event_devices", named.len())
            .with("indices", named.join(", "))
    });
    let said = |event: &NodeEvent| Some(event.data["message"].as_str()?.to_owned());
    let why = match group.first()?.reason.as_str() {
        "" | "enrolled" => None,
        "cleared" => said(group.first()?)
            .filter(|said| !said.is_empty())
            .map(|said| Phrase::literal(&said)),
        code if t.knows("node_reason", code) => Some(t.word("node_reason", code)),
        // What names processes comes with the event to those alone who may know it.
        text => Some(Phrase::literal(
            group.first()?.data["detail"].as_str().unwrap_or(text),
        )),
    };
    match (devices, why) {
        (Some(devices), Some(why)) => Some(
            t.say("node.event_because")
                .nest("devices", devices)
                .nest("why", why),
        ),
        (devices, why) => devices.or(why),
    }
}

/// What the reader may do with the node as it is.
fn actions(asker: &Asker, node: &Node) -> Vec<NodeAction> {
    let mut actions = match node.intent {
        NodeIntent::Open => vec![NodeAction::Cordon, NodeAction::Drain],
        NodeIntent::Cordoned => vec![NodeAction::Uncordon, NodeAction::Drain],
        NodeIntent::Draining => vec![NodeAction::Uncordon, NodeAction::Cordon, NodeAction::Drain],
        NodeIntent::Retired => Vec::new(),
    };
    if node.reachability == Reachability::Unreachable {
        actions.push(NodeAction::DeclareLost);
    }
    actions.retain(|action| {
        let action = match action {
            NodeAction::Cordon => Action::CordonNode,
            NodeAction::Uncordon => Action::UncordonNode,
            NodeAction::Drain => Action::DrainNode,
            NodeAction::DeclareLost => Action::DeclareNodeLost,
        };
        may(asker, action, Target::Platform)
    });
    actions
}

/// Keeps new work away.
pub async fn cordon_node(
    State(app): State<App>,
    Path(name): Path<String>,
    posted: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    want(&app, &posted.visit, &name, NodeWish::Cordon, "cordoned").await
}

/// Lets new work come again.
pub async fn uncordon_node(
    State(app): State<App>,
    Path(name): Path<String>,
    posted: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    want(&app, &posted.visit, &name, NodeWish::Uncordon, "uncordoned").await
}

/// Until when a person lets running work stay.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DrainForm {
    /// Minutes from now; empty for none.
    deadline_minutes: String,
}

/// Keeps new work away and lets what runs leave, by a deadline if one is named.
pub async fn drain_node(
    State(app): State<App>,
    Path(name): Path<String>,
    posted: Posted<DrainForm>,
) -> Result<Redirect, PageError> {
    let typed = &posted.fields.deadline_minutes;
    let seconds = minutes(typed.trim(), "deadline_minutes").map_err(AppError::from)?;
    let wish = seconds.map_or(NodeWish::Drain, NodeWish::DrainWithin);
    want(&app, &posted.visit, &name, wish, "draining").await
}

/// Takes a person's word that nothing runs on a node that does not answer.
pub async fn declare_node_lost(
    State(app): State<App>,
    Path(name): Path<String>,
    posted: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    let name = read_node(&name)?;
    nodes::declare_lost(
        &app,
        &posted.visit.asker,
        Repeat::none(),
        &name,
        Reason::default(),
    )
    .await?;
    Ok(back_to(&name, "declared_lost"))
}

/// Why a person clears a device, and what was found of it when the page was made.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClearForm {
    finding: i64,
    reason: String,
}

/// Takes a person's word that what was found of a device is dealt with.
pub async fn clear_device(
    State(app): State<App>,
    Path((name, device)): Path<(String, String)>,
    posted: Posted<ClearForm>,
) -> Result<Redirect, PageError> {
    let name = read_node(&name)?;
    let clear = Clear {
        finding: posted.fields.finding,
        reason: posted.fields.reason,
    };
    let asker = &posted.visit.asker;
    nodes::clear_device(&app, asker, Repeat::none(), (&name, &device), clear).await?;
    Ok(back_to(&name, "device_cleared"))
}

async fn want(
    app: &App,
    visit: &Visit,
    name: &str,
    wish: NodeWish,
    done: &str,
) -> Result<Redirect, PageError> {
    let name = read_node(name)?;
    nodes::set_intent(
        app,
        &visit.asker,
        Repeat::none(),
        &name,
        wish,
        Reason::default(),
    )
    .await?;
    Ok(back_to(&name, done))
}

fn back_to(name: &Name, done: &str) -> Redirect {
    Redirect::to(&format!("/nodes/{name}?done={done}"))
}

/// A node's name from the path; what is none names no node.
pub(super) fn read_node(text: &str) -> Result<Name, AppError> {
    text.parse().map_err(|_| AppError::not_found("node", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(subject: &str, to: &str, reason: &str, data: serde_json::Value) -> NodeEvent {
        NodeEvent {
            id: 1,
            at: domain::Timestamp::UNIX_EPOCH,
            subject: subject.into(),
            subject_id: String::new(),
            from: None,
            to: to.into(),
            actor: "n1".into(),
            reason: reason.into(),
            data,
        }
    }

    #[test]
    fn a_node_that_was_enrolled_is_not_shown_as_lost() {
        let enrolled = [event(
            "node",
            "unreachable",
            "enrolled",
            serde_json::json!({}),
        )];
        let lines = event_lines(&Messages::english(), "n1", &enrolled);
        let line = lines.first().expect("a line");
        assert_eq!(
            (line.code.as_str(), line.state.tone()),
            ("enrolled", "muted")
        );
        assert_eq!(line.detail, None, "it is said once");
        assert_eq!(line.actor, None, "its page has its name already");
    }

    #[test]
    fn what_happened_to_devices_alike_is_told_once() {
        let seen = |index: i64| {
            let data = serde_json::json!({ "index": index });
            event("device", "healthy", "first_seen", data)
        };
        let suspect = event(
            "device",
            "suspect",
            "row remapping",
            serde_json::json!({ "index": 1 }),
        );
        let events = [suspect, seen(2), seen(1), seen(0)];
        let lines = event_lines(&Messages::english(), "n1", &events);
        let details: Vec<String> = lines
            .iter()
            .map(|line| {
                line.detail
                    .as_ref()
                    .map_or_else(String::new, Phrase::to_string)
            })
            .collect();
        assert_eq!(
            details,
            [
                "device 1: row remapping",
                "devices 0, 1, 2: seen for the first time"
            ]
        );
    }

    #[test]
    fn what_happened_to_devices_at_different_times_is_told_each_time() {
        let lost = |index: i64, at: &str| NodeEvent {
            at: at.parse().expect("a time"),
            ..event(
                "device",
                "failed",
                "row remapping",
                serde_json::json!({ "index": index }),
            )
        };
        let events = [
            lost(3, "2026-11-29T15:00:00.004Z"),
            lost(2, "2026-11-29T15:00:00.001Z"),
            lost(1, "2026-11-28T09:30:00Z"),
            lost(0, "2026-11-28T09:29:00Z"),
        ];
        let lines = event_lines(&Messages::english(), "n1", &events);
        let times: Vec<_> = lines.iter().map(|line| line.at).collect();
        assert_eq!(times, [events[0].at, events[2].at, events[3].at]);
        let last = lines[2].detail.as_ref().expect("its device").to_string();
        assert_eq!(last, "device 0: row remapping");
    }
}
