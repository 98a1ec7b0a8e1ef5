//! One node, and what operators do with it.

use axum::extract::{Path, State};
use axum::response::{Redirect, Response};
use domain::name::Name;
use domain::state::{DeviceHealth, NodeIntent, Reachability};
use web::draw::plain_text;
use web::messages::Messages;
use web::parts::{EventLine, State as Shown};
use web::shell::Section;
use web::views::{Leaving, NodeAction, NodeDevice, NodeNote, NodeView, NodeWork};

use super::fleet::{cell, holder, mode_of};
use super::jobs::Teams;
use super::visit::{Posted, Visit};
use super::{Nothing, PageError, page};
use crate::app::authorise::{Action, Target, may};
use crate::app::idempotency::Repeat;
use crate::app::nodes::{self, Node, NodeEvent, Reason, Wish};
use crate::app::page::PageAsk;
use crate::app::{App, AppError, Asker, planning};

/// Events on a node's page; older ones are had by REST.
const EVENTS_SHOWN: u32 = 30;

/// Shows one node.
pub async fn show_node(
    State(app): State<App>,
    visit: Visit,
    Path(name): Path<String>,
) -> Result<Response, PageError> {
    let name = read_node(&name)?;
    let asker = &visit.asker;
    let node = nodes::get(&app, asker, &name).await?;
    let teams = Teams::load(&app, asker).await?;
    let events = nodes::events(&app, asker, &name, &PageAsk::new(Some(EVENTS_SHOWN), None)?)
        .await?
        .items;
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
        work: work(&node, &teams),
        devices: devices(&node, &teams),
        events: events
            .iter()
            .filter_map(|event| event_line(&shell.t, event))
            .collect(),
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
    let all = [
        (NodeNote::NoIsolation, !node.isolated),
        (NodeNote::NoLimits, node.cgroup == "none"),
    ];
    all.into_iter()
        .filter_map(|(note, holds)| holds.then_some(note))
        .collect()
}

fn devices(node: &Node, teams: &Teams) -> Vec<NodeDevice> {
    let devices = node.devices.iter();
    devices
        .map(|device| NodeDevice {
            cell: cell(node, device, teams),
            uuid: device.uuid.clone(),
            model: device.product_name.clone(),
            memory_mib: device.memory_mib,
            numa: device.numa,
            clique: device.nvlink,
            mode: mode_of(device).as_str().to_owned(),
        })
        .collect()
}

fn work(node: &Node, teams: &Teams) -> Vec<NodeWork> {
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

/// An event as a line; its mark is that of the state it led to.
fn event_line(t: &Messages, event: &NodeEvent) -> Option<EventLine> {
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
    let device = event.data["index"]
        .as_i64()
        .map(|index| plain_text(&t.say("node.event_device").with("index", index)));
    let said = event.data["message"].as_str().map(str::to_owned);
    let reason = told(&event.reason)
        .filter(|reason| reason != "enrolled")
        .map(|reason| plain_text(&t.word("node_reason", &reason)));
    let detail: Vec<String> = [device, said.or(reason)].into_iter().flatten().collect();
    Some(EventLine {
        at: event.at,
        state,
        code: if event.reason == "enrolled" {
            "enrolled".into()
        } else {
            event.to.clone()
        },
        actor: Some(event.actor.clone())
            .filter(|actor| actor != "allotment" && actor != "scheduler"),
        detail: Some(detail.join(": ")).filter(|detail| !detail.is_empty()),
    })
}

/// What the reader may do with the node as it is.
fn actions(asker: &Asker, node: &Node) -> Vec<NodeAction> {
    let mut actions = match node.intent {
        NodeIntent::Open => vec![NodeAction::Cordon, NodeAction::Drain],
        NodeIntent::Cordoned => vec![NodeAction::Uncordon, NodeAction::Drain],
        NodeIntent::Draining => vec![NodeAction::Uncordon],
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
    want(&app, &posted.visit, &name, Wish::Cordon, "cordoned").await
}

/// Lets new work come again.
pub async fn uncordon_node(
    State(app): State<App>,
    Path(name): Path<String>,
    posted: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    want(&app, &posted.visit, &name, Wish::Uncordon, "uncordoned").await
}

/// Keeps new work away and lets what runs leave.
pub async fn drain_node(
    State(app): State<App>,
    Path(name): Path<String>,
    posted: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    want(&app, &posted.visit, &name, Wish::Drain, "draining").await
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

async fn want(
    app: &App,
    visit: &Visit,
    name: &str,
    wish: Wish,
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
fn read_node(text: &str) -> Result<Name, AppError> {
    text.parse().map_err(|_| AppError::not_found("node", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_enrolled_is_not_shown_as_lost() {
        let line = event_line(
            &Messages::english(),
            &NodeEvent {
                id: 1,
                at: domain::Timestamp::UNIX_EPOCH,
                subject: "node".into(),
                subject_id: String::new(),
                from: None,
                to: "unreachable".into(),
                actor: "admin".into(),
                reason: "enrolled".into(),
                data: serde_json::json!({}),
            },
        );
        let line = line.expect("a line");
        assert_eq!(
            (line.code.as_str(), line.state.tone()),
            ("enrolled", "muted")
        );
        assert_eq!(line.detail, None, "it is said once");
    }
}
