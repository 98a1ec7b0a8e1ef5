//! Nodes that refuse starts: cordoned before each of their refusals has cost somebody his place.

use domain::ids::NodeId;
use domain::state::NodeIntent;

use super::each;
use crate::app::App;
use crate::lifecycle::{LifecycleError, nodes as steps};
use crate::store::events::Actor;
use crate::store::nodes::Wanted;
use crate::store::{audit, nodes};

/// Starts that a node may refuse within the span: one may be a race, two a coincidence.
const REFUSALS_MAX: i64 = 3;
/// The span, in seconds: with the back-off of a job that was refused, three of its own fit in.
const SPAN_SECONDS: i32 = 300;

/// Cordons the open nodes that have refused too many starts of late; a person opens them again.
pub async fn cordon(app: &App) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let due = nodes::refusing(&mut tx, REFUSALS_MAX, SPAN_SECONDS).await?;
    tx.commit().await?;
    each(due, |(node, _)| cordon_one(app, node)).await
}

async fn cordon_one(app: &App, node: NodeId) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let Some(row) = nodes::lock(&mut tx, node).await? else {
        return Ok(());
    };
    // Somebody may have opened it anew since.
    let due = nodes::refusing(&mut tx, REFUSALS_MAX, SPAN_SECONDS).await?;
    let Some((_, refused)) = due.into_iter().find(|(due, _)| *due == node) else {
        return Ok(());
    };
    let minutes = SPAN_SECONDS / 60;
    let reason = format!("it refused {refused} starts in {minutes} minutes");
    let wanted = Wanted::plain(NodeIntent::Cordoned, &reason);
    steps::set_intent(&mut tx, &row, wanted, &Actor::System).await?;
    let object = format!("node/{}", row.name);
    audit::insert_of_system(&mut tx, "cordon_node", &object, &reason).await?;
    tx.commit().await?;
    tracing::error!(node.id = %node, node = %row.name, reason, "a node is cordoned");
    app.wake.all();
    Ok(())
}
