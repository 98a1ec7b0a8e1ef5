//! Work that we believe on a node and that the node does not have: ended once everything that the
//! node had yet to say was heard, since its end may be among that.

use std::collections::{BTreeMap, BTreeSet};

use domain::Timestamp;
use domain::ids::{AssignmentId, JobId, NodeId};
use domain::state::AssignmentPhase;
use serde_json::json;

use super::facts::TRIES_MAX;
use crate::accounting::meter;
use crate::app::App;
use crate::lifecycle::LifecycleError;
use crate::lifecycle::end::{Loss, Spared, lose_workers};
use crate::store::assignments::{self, Assignment};
use crate::store::events::{self, Actor, NewEvent, Subject};
use crate::store::nodes::{self, NodeRow};
use crate::store::{self, jobs};

/// What a connection has to end as it begins. It is found by what there is, not by what changed: a
/// crash in between is made good by the next connection.
#[derive(Debug, Clone)]
pub struct Losses {
    /// The node.
    pub node_id: NodeId,
    /// The connection's number; what another connection has heard since counts more.
    pub connection: i64,
    /// The kernel's boot, noted when its losses are committed.
    pub boot_id: String,
    /// The last heartbeat before the connection.
    pub last_heartbeat_at: Option<Timestamp>,
    /// Why the node does not have it, in words.
    pub message: String,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// What was lost has ended, but for these workers, the end of whose jobs was refused. The
    /// node must not be told of them: it would begin them anew.
    Done(BTreeSet<AssignmentId>),
    /// Another connection speaks for the node.
    Superseded,
}

/// Workers that their node was handed and does not hold, by job.
type Lost = BTreeMap<JobId, BTreeSet<AssignmentId>>;

impl Losses {
    /// Ends what the node was handed and does not hold, each job apart: one whose end is refused
    /// keeps no other from its end. An error means that the database could not, so that all of it
    /// is to be tried again.
    pub async fn settle(
        &self,
        app: &App,
        held: &BTreeSet<AssignmentId>,
        actor: &Actor,
    ) -> Result<Settled, LifecycleError> {
        let lost = self.find(app, held).await?;
        let ended = self.end_all(app, held, &lost, actor).await?;
        let Ended::All(refused) = ended else {
            return Ok(Settled::Superseded);
        };
        let mut tx = app.db.begin_system().await?;
        let noted = nodes::note_boot(&mut tx, self.node_id, self.connection, &self.boot_id).await?;
        if noted {
            self.note_refused(&mut tx, &refused, actor).await?;
        }
        tx.commit().await?;
        if !noted {
            return Ok(Settled::Superseded);
        }
        if !lost.is_empty() {
            app.wake.all();
        }
        Ok(Settled::Done(refused.into_values().flatten().collect()))
    }

    /// Tries once more to end workers whose end was refused: what refused it may be mended. The
    /// node was told nothing of them meanwhile.
    pub async fn settle_refused(
        &self,
        app: &App,
        held: &BTreeSet<AssignmentId>,
        before: &BTreeSet<AssignmentId>,
        actor: &Actor,
    ) -> Result<Settled, LifecycleError> {
        let mut lost = self.find(app, held).await?;
        lost.retain(|_, workers| workers.iter().any(|worker| before.contains(worker)));
        let Ended::All(refused) = self.end_all(app, held, &lost, actor).await? else {
            return Ok(Settled::Superseded);
        };
        if refused.len() < lost.len() {
            app.wake.all();
        }
        Ok(Settled::Done(refused.into_values().flatten().collect()))
    }

    async fn find(&self, app: &App, held: &BTreeSet<AssignmentId>) -> Result<Lost, LifecycleError> {
        let mut tx = app.db.begin_system().await?;
        let live = assignments::live_on_node(&mut tx, self.node_id).await?;
        tx.commit().await?;
        let mut lost = Lost::new();
        for worker in live {
            if worker.phase != AssignmentPhase::Granted && !held.contains(&worker.id) {
                lost.entry(worker.job_id).or_default().insert(worker.id);
            }
        }
        Ok(lost)
    }

    async fn end_all(
        &self,
        app: &App,
        held: &BTreeSet<AssignmentId>,
        lost: &Lost,
        actor: &Actor,
    ) -> Result<Ended, LifecycleError> {
        let mut refused = Lost::new();
        let mut unavailable = None;
        for (&job, workers) in lost {
            match self.end(app, held, job, actor).await {
                Ok(true) => {}
                Ok(false) => return Ok(Ended::Superseded),
                Err(LifecycleError::Database(error)) if !store::refused(&error) => {
                    unavailable = Some(error);
                }
                Err(error) => {
                    metrics::counter!("allotment_agent_losses_refused").increment(1);
                    tracing::error!(
                        node.id = %self.node_id, job.id = %job, %error,
                        "work that a node has lost cannot be ended and is set aside"
                    );
                    refused.insert(job, workers.clone());
                }
            }
        }
        match unavailable {
            Some(error) => Err(error.into()),
            None => Ok(Ended::All(refused)),
        }
    }

    /// Ends what a job has lost on the node; whether the connection still speaks for it.
    async fn end(
        &self,
        app: &App,
        held: &BTreeSet<AssignmentId>,
        job: JobId,
        actor: &Actor,
    ) -> Result<bool, LifecycleError> {
        let mut tries = 1;
        loop {
            match self.try_end(app, held, job, actor).await {
                // It changed at the same moment.
                Err(LifecycleError::Missed(_)) if tries < TRIES_MAX => tries += 1,
                ended => return ended,
            }
        }
    }

    async fn try_end(
        &self,
        app: &App,
        held: &BTreeSet<AssignmentId>,
        job: JobId,
        actor: &Actor,
    ) -> Result<bool, LifecycleError> {
        let loss = Loss {
            node_id: self.node_id,
            last_heartbeat_at: self.last_heartbeat_at,
            message: self.message.clone(),
            spared: Spared::HeldOrNotTaken(held.clone()),
        };
        let mut tx = app.db.begin_system().await?;
        // The job first, as everywhere; then the node: is it still ours to speak for?
        jobs::lock(&mut tx, job).await?;
        nodes::lock(&mut tx, self.node_id).await?;
        if nodes::voice(&mut tx, self.node_id).await?.connection != self.connection {
            return Ok(false);
        }
        lose_workers(&mut tx, &app.config.timers, job, &loss, actor).await?;
        tx.commit().await?;
        tracing::warn!(node.id = %self.node_id, job.id = %job, message = self.message, "work on a node was lost");
        Ok(true)
    }

    /// Tells on the node that work which it lost could not be ended.
    async fn note_refused(
        &self,
        tx: &mut store::Tx,
        refused: &Lost,
        actor: &Actor,
    ) -> Result<(), sqlx::Error> {
        for worker in refused.values().flatten() {
            let event = NewEvent {
                subject: Subject::Node(self.node_id),
                job: None,
                node_id: Some(self.node_id),
                from: None,
                to: "end_refused",
                actor,
                reason: "lost",
                data: json!({ "assignment": worker }),
            };
            events::insert(tx, &event).await?;
        }
        Ok(())
    }
}

/// What came of ending each job that has lost something.
enum Ended {
    /// All has ended but for these.
    All(Lost),
    /// Another connection speaks for the node.
    Superseded,
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
        match end_charge(app, node, &worker).await {
            // Its node must be heard all the same; the charge goes on until the work ends.
            Err(error) if store::refused(&error) => tracing::error!(
                node.id = %node.id, job.id = %worker.job_id, %error,
                "the charge for work on a machine that was restarted cannot be ended"
            ),
            ended => ended?,
        }
    }
    Ok(())
}

async fn end_charge(app: &App, node: &NodeRow, worker: &Assignment) -> Result<(), sqlx::Error> {
    let mut tx = app.db.begin_system().await?;
    jobs::lock(&mut tx, worker.job_id).await?;
    let live = assignments::find(&mut tx, &[worker.id]).await?;
    if live.iter().any(|worker| worker.phase.live()) {
        let now = store::clock(&mut tx).await?;
        meter::silent(&mut tx, worker.id, node.last_heartbeat_at, now).await?;
    }
    tx.commit().await
}
