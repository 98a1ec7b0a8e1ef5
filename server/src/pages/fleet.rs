//! The fleet: every node and device, as far as the reader may know who is on it.

use axum::extract::State;
use axum::response::Response;
use domain::sharing::SharingMode;
use domain::state::{NodeIntent, Reachability};
use web::draw::{self, Share};
use web::parts::State as Shown;
use web::shell::Section;
use web::views::{FleetNode, FleetPool, FleetView, ModeOffer};

use super::jobs::Teams;
use super::visit::Visit;
use super::{PageError, page};
use crate::app::authorise::{Action, Target, may};
use crate::app::nodes::{self, Device, Node, NodeFilter};
use crate::app::page::{PAGE_ITEMS_MAX, PageAsk};
use crate::app::{App, Asker, pools};

/// Shows the fleet.
pub async fn show_fleet(State(app): State<App>, visit: Visit) -> Result<Response, PageError> {
    let asker = &visit.asker;
    let teams = Teams::load(&app, asker).await?;
    let nodes = all_nodes(&app, asker).await?;
    let offered = pools::list(&app, asker, &PageAsk::first()).await?.items;
    let pools = offered.into_iter().map(|pool| {
        let (retired, here): (Vec<&Node>, Vec<&Node>) = nodes
            .iter()
            .filter(|node| node.pool == pool.name.as_str())
            .partition(|node| node.intent == NodeIntent::Retired);
        FleetPool {
            retired: retired.len(),
            gpu_model: here
                .iter()
                .flat_map(|node| &node.devices)
                .next()
                .map(|device| device.model.clone()),
            modes: pool
                .policy
                .sharing
                .iter()
                .map(|mode| ModeOffer {
                    mode: mode.as_str().into(),
                    available: !pool.unavailable_sharing.contains(mode),
                })
                .collect(),
            nodes: here
                .into_iter()
                .map(|node| fleet_node(node, &teams))
                .collect(),
            overpromised: pool
                .overpromised
                .map(|over| (over.guaranteed.milli(), over.capacity.milli())),
            name: pool.name.to_string(),
        }
    });
    page(&FleetView {
        pools: pools.collect(),
        adds_nodes: may(asker, Action::CreateJoinToken, Target::Platform),
        shell: visit.shell(&app, Section::Fleet).await?,
    })
}

/// Every node, also those that are retired. Bounded by the fleet; each page goes on behind the one before.
async fn all_nodes(app: &App, asker: &Asker) -> Result<Vec<Node>, PageError> {
    let mut nodes = Vec::new();
    let mut ask = PageAsk::first();
    let filter = NodeFilter {
        retired: true,
        ..NodeFilter::default()
    };
    loop {
        let page = nodes::list(app, asker, &filter, &ask).await?;
        nodes.extend(page.items);
        match page.next_cursor {
            Some(cursor) => ask = PageAsk::new(Some(PAGE_ITEMS_MAX), Some(cursor))?,
            None => return Ok(nodes),
        }
    }
}

fn fleet_node(node: &Node, teams: &Teams) -> FleetNode {
    FleetNode {
        name: node.name.clone(),
        state: Shown::node(node.intent, node.reachability),
        devices: node
            .devices
            .iter()
            .map(|device| cell(node, device, teams))
            .collect(),
    }
}

/// A device's cell.
pub fn cell(node: &Node, device: &Device, teams: &Teams) -> draw::Device {
    draw::Device {
        index: device.index.unsigned_abs(),
        health: device.health,
        why: device
            .health_detail
            .clone()
            .or_else(|| Some(device.health_reason.clone()))
            .filter(|why| !why.is_empty()),
        out: node.intent != NodeIntent::Open || node.reachability != Reachability::Ready,
        shares: device
            .slices
            .iter()
            .map(|slice| Share {
                holder: holder(slice, teams),
                milli: u32::try_from(slice.gpus.milli()).unwrap_or(0),
                mode: slice.mode,
                used_percent: used_percent(device, slice.mode),
            })
            .collect(),
    }
}

/// What a device did is the doing of who has it whole; of parts it says nothing.
fn used_percent(device: &Device, mode: SharingMode) -> Option<u8> {
    let load = device
        .load_permille
        .filter(|_| mode == SharingMode::Exclusive)?;
    u8::try_from((load + 5) / 10).ok()
}

/// Who holds a slice, as far as the reader may know.
pub fn holder(slice: &nodes::DeviceSlice, teams: &Teams) -> draw::Holder {
    match &slice.holder {
        Some(known) => draw::Holder::Known {
            team: teams.shown(&known.team),
            job: Some((known.job.to_string(), known.job_name.clone())),
        },
        None => draw::Holder::Other,
    }
}
