//! Work that we believe on a node and that the node does not have: ended once everything that the
//! node had yet to say was heard, since its end may be among that.

use std::collections::BTreeSet;

use domain::Timestamp;
use domain::ids::{AssignmentId, JobId, NodeId};
use domain::state::AssignmentPhase;

use crate::accounting::meter;
use crate::app::App;
use crate::lifecycle::LifecycleError;
use crate::lifecycle::end::{Loss, Spared, lose_workers};
use crate::store::events::Actor;
use crate::store::nodes::{self, NodeRow};
use crate::store::{self, assignments, jobs};

/// What a session has to end as it begins. It is found by what there is, not by what changed: a
/// crash in between is made good by the next session.
#[derive(Debug, Clone)]
pub struct Losses {
    /// The node.
    pub node_id: NodeId,
    /// The session's number; what another session has heard since counts more.
    pub session: i64,
    /// The kernel's boot, noted when its losses are committed.
    pub boot_id: String,
    /// The last heartbeat before the session.
    pub last_heartbeat_at: Option<Timestamp>,
    /// Why the node does not have it, in words.
    pub message: String,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// What was lost has ended.
    Done,
    /// Another session speaks for the node.
    Superseded,
}

impl Losses {
    /// Ends what the node was handed and does not hold.
    pub async fn settle(
        &self,
        app: &App,
        held: &BTreeSet<AssignmentId>,
        actor: &Actor,
    ) -> Result<Settled, LifecycleError> {
        let mut tx = app.db.begin_system().await?;
        let mut lost: Vec<JobId> = assignments::live_on_node(&mut tx, self.node_id)
            .await?
            .into_iter()
            .filter(|worker| worker.phase != AssignmentPhase::Granted && !held.contains(&worker.id))
            .map(|worker| worker.job_id)
            .collect();
        tx.commit().await?;
        lost.dedup();
        let loss = Loss {
            node_id: self.node_id,
            last_heartbeat_at: self.last_heartbeat_at,
            message: self.message.clone(),
            spared: Spared::HeldOrNotTaken(held.clone()),
        };
        for job in &lost {
            let mut tx = app.db.begin_system().await?;
            // The job first, as everywhere; then the node: is it still ours to speak for?
            jobs::lock(&mut tx, *job).await?;
            nodes::lock(&mut tx, self.node_id).await?;
            if nodes::voice(&mut tx, self.node_id).await?.session != self.session {
                return Ok(Settled::Superseded);
            }
            lose_workers(&mut tx, &app.config.timers, *job, &loss, actor).await?;
            tx.commit().await?;
            tracing::warn!(node.id = %self.node_id, job.id = %job, message = self.message, "work on a node was lost");
        }
        let mut tx = app.db.begin_system().await?;
        let noted = nodes::note_boot(&mut tx, self.node_id, self.session, &self.boot_id).await?;
        tx.commit().await?;
        if !lost.is_empty() {
            app.wake.all();
        }
        Ok(if noted {
            Settled::Done
        } else {
            Settled::Superseded
        })
    }
}

/// A machine was restarted: what it had ran until then at most, and was heard of until its last
/// heartbeat. What comes after that is the operator's charge, whatever the node says of its end.
pub async fn end_charges(app: &App, node: &NodeRow) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let handed: Vec<_> = assignments::live_on_node(&mut tx, node.id)
        .await?
        .into_iter()
        .filter(|worker| worker.phase != AssignmentPhase::Granted)
        .collect();
    tx.commit().await?;
    for worker in handed {
        let mut tx = app.db.begin_system().await?;
        jobs::lock(&mut tx, worker.job_id).await?;
        let live = assignments::find(&mut tx, &[worker.id]).await?;
        if live.iter().any(|worker| worker.phase.live()) {
            let now = store::clock(&mut tx).await?;
            meter::silent(&mut tx, worker.id, node.last_heartbeat_at, now).await?;
        }
        tx.commit().await?;
    }
    Ok(())
}
