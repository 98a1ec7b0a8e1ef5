//! Nodes as people see them: what each is, who holds what of it, and what is wanted of it.

mod clear;
mod join;
mod steer;
mod view;

use domain::name::Name;

use super::authorise::{Action, Target, authorise};
use super::page::{self, Page, PageAsk};
use super::{App, AppError, Asker};
use crate::store::nodes::{Filter, NodeRow};
use crate::store::{self, Tx};

pub use clear::{Clear, clear_device};
pub use join::{JoinToken, NewJoinToken, create_join_token};
pub use steer::{Drain, NodePatch, NodeWish, Reason, declare_lost, drain, set_intent, update};
pub use view::{Device, DeviceSlice, DiskFull, Found, LaidOut, Node, NodeEvent};

/// What a list of nodes is cut to.
#[derive(Debug, Clone, Default)]
pub struct NodeFilter {
    /// Of this pool only.
    pub pool: Option<Name>,
    /// Also those that are gone for good.
    pub retired: bool,
}

/// Lists nodes, by name.
pub async fn list(
    app: &App,
    asker: &Asker,
    filter: &NodeFilter,
    ask: &PageAsk,
) -> Result<Page<Node>, AppError> {
    authorise(asker, Action::ListNodes, Target::Platform)?;
    let after: Option<String> = ask.after("node")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let pool_id = match &filter.pool {
        Some(pool) => Some(super::pools::find(&mut tx, pool).await?.id),
        None => None,
    };
    let rows = Filter {
        pool_id,
        retired: filter.retired,
        after,
    };
    let rows = store::nodes::list(&mut tx, &rows, ask.rows_wanted()).await?;
    let nodes = view::show(&mut tx, asker, rows).await?;
    tx.commit().await?;
    Ok(page::cut(ask, "node", nodes, |node: &Node| {
        node.name.clone()
    }))
}

/// Shows one node.
pub async fn get(app: &App, asker: &Asker, name: &Name) -> Result<Node, AppError> {
    authorise(asker, Action::GetNode, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let node = read(&mut tx, asker, name).await?;
    tx.commit().await?;
    Ok(node)
}

/// What happened to a node, the newest first.
pub async fn events(
    app: &App,
    asker: &Asker,
    name: &Name,
    ask: &PageAsk,
) -> Result<Page<NodeEvent>, AppError> {
    authorise(asker, Action::ListNodeEvents, Target::Platform)?;
    let before: Option<i64> = ask.after("node_event")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let node = find(&mut tx, name).await?;
    let rows = store::events::of_node(
        &mut tx,
        node.id,
        before.unwrap_or(i64::MAX),
        ask.rows_wanted(),
    )
    .await?;
    tx.commit().await?;
    let events = rows
        .into_iter()
        .map(|row| view::event(asker, row))
        .collect();
    Ok(page::cut(ask, "node_event", events, |event: &NodeEvent| {
        event.id
    }))
}

async fn read(tx: &mut Tx, asker: &Asker, name: &Name) -> Result<Node, AppError> {
    let row = find(tx, name).await?;
    view::show(tx, asker, vec![row])
        .await?
        .pop()
        .ok_or_else(|| AppError::not_found("node", name))
}

pub(super) async fn find(tx: &mut Tx, name: &Name) -> Result<NodeRow, AppError> {
    store::nodes::find_by_name(tx, name.as_str())
        .await?
        .ok_or_else(|| AppError::not_found("node", name))
}

async fn lock(tx: &mut Tx, name: &Name) -> Result<NodeRow, AppError> {
    store::nodes::lock_by_name(tx, name.as_str())
        .await?
        .ok_or_else(|| AppError::not_found("node", name))
}
