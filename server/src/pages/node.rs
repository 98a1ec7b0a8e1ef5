//! One node, and what operators do with it.

mod history;

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{Redirect, Response};
use domain::name::Name;
use domain::state::{DRAIN_SECONDS_MAX, NodeIntent, Reachability};
use serde::Deserialize;
use web::parts::State as Shown;
use web::shell::Section;
use web::views::{
    Laying, Leaving, NodeAction, NodeDevice, NodeFinding, NodeNote, NodeView, NodeWork,
};

use super::fault::encode;
use super::fleet::{cell, holder};
use super::form::minutes;
use super::jobs::Teams;
use super::visit::{Posted, Visit};
use super::{Nothing, PageError, page, utilisation};
use crate::app::authorise::{Action, Target, may};
use crate::app::idempotency::Repeat;
use crate::app::nodes::{self, Clear, Node, NodeWish, Reason};
use crate::app::page::PageAsk;
use crate::app::telemetry::{self, TelemetryAsk};
use crate::app::{App, AppError, Asker, planning};
use crate::front::fields::read_query;

/// Events on a node's page; older ones are a page further.
const EVENTS_SHOWN: u32 = 30;

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
        clock_ahead: node.clock_ahead_ms.map(|ms| ms / 1000),
        warnings: node.warnings.clone(),
        utilisation: utilisation::of_node(&told_of),
        work: work(&node, &teams),
        devices: devices(asker, &node, &teams),
        intent_reason: told(&node.intent_reason),
        deadline_at: node.drain_deadline_at,
        events: history::lines((&shell.t, &shell.now), &node.name, &events.items),
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
            laying: device.layout.as_ref().map(|layout| match layout.mig {
                true => Laying::Into(layout.profiles.clone()),
                false => Laying::Whole,
            }),
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

/// The key of the form below.
const DEADLINE_FIELD: &str = "deadline_minutes";

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
    let typed = posted.fields.deadline_minutes.trim();
    let seconds = minutes(typed, DEADLINE_FIELD).map_err(AppError::from)?;
    // Said of what was typed: the seconds that come of it nobody has seen.
    if seconds.is_some_and(|seconds| seconds > DRAIN_SECONDS_MAX) {
        let remedy = format!("0 to {} minutes, or nothing", DRAIN_SECONDS_MAX / 60);
        return Err(AppError::invalid(DEADLINE_FIELD, typed, remedy).into());
    }
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
