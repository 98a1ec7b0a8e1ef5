//! Leases: a node that is not heard of is unreachable, and after all margins lost.

use domain::ids::NodeId;
use domain::state::Reachability;

use crate::app::App;
use crate::lifecycle::LifecycleError;
use crate::lifecycle::nodes::set_reachability;
use crate::store::events::Actor;
use crate::store::nodes::{self, NodeRow};
use crate::store::{self, leases};

/// Marks nodes whose lease is over as unreachable, and those for which the kill grace and the
/// clock margin are over as well as lost.
pub async fn expire(app: &App) -> Result<(), LifecycleError> {
    let timers = &app.config.timers;
    let margin_ms = timers.kill_grace_ms + timers.clock_margin_ms;
    let mut tx = app.db.begin_system().await?;
    let silent = leases::silent(&mut tx).await?;
    let overdue = leases::overdue(&mut tx, margin_ms).await?;
    tx.commit().await?;
    for id in silent {
        step(
            app,
            id,
            Reachability::Ready,
            Reachability::Unreachable,
            0,
            "lease_over",
        )
        .await?;
    }
    for id in overdue {
        step(
            app,
            id,
            Reachability::Unreachable,
            Reachability::Lost,
            margin_ms,
            "margin_over",
        )
        .await?;
    }
    Ok(())
}

async fn step(
    app: &App,
    id: NodeId,
    from: Reachability,
    to: Reachability,
    margin_ms: i64,
    reason: &str,
) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let now = store::clock(&mut tx).await?;
    let due = |node: &NodeRow| {
        let margin = chrono::TimeDelta::milliseconds(margin_ms);
        node.reachability == from && node.lease_until.is_none_or(|until| until + margin < now)
    };
    let Some(node) = nodes::lock(&mut tx, id).await?.filter(due) else {
        return Ok(());
    };
    set_reachability(&mut tx, &node, to, reason, &Actor::System).await?;
    tx.commit().await?;
    tracing::warn!(node.id = %node.id, node = %node.name, reachability = %to, "a node does not answer");
    app.wake.all();
    Ok(())
}
