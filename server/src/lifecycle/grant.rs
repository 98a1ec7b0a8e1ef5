//! Granting: a waiting job gets an attempt, its workers their slices, all or none.

use std::collections::{BTreeMap, BTreeSet};

use domain::MilliCpu;
use domain::ids::{AssignmentId, AttemptId, DeviceId, NodeId};
use domain::sharing::SharingMode;
use domain::state::{AttemptState, JobState};
use protocol::mig::MigSlice;
use serde_json::{Value, json};

use super::{Actor, LifecycleError, step_job};
use crate::store::assignments::{self, Assignment, NewAssignment, NewShare};
use crate::store::attempts::{self, NewAttempt};
use crate::store::events::{self, NewEvent, Subject};
use crate::store::jobs::{JobRow, JobStep};
use crate::store::{self, Tx, expected_starts, violated};

/// Where workers of one attempt meet; outside the range of ephemeral ports.
const MASTER_PORTS: std::ops::RangeInclusive<i32> = 20_000..=29_999;
/// The places of fractions on a device (assignment_devices.slots).
const FRACTION_SLOTS: std::ops::Range<i32> = 1_000..2_000;
/// The places that a whole device takes.
const WHOLE_SLOTS: std::ops::Range<i32> = 0..2_000;

/// A share of one device for one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantDevice {
    /// The device.
    pub device_id: DeviceId,
    /// The mode in which it is given out.
    pub mode: SharingMode,
    /// How much of it, in thousandths.
    pub gpus_milli: i32,
    /// How much of its memory.
    pub memory_mib: i64,
    /// The instance, in the mode `mig`.
    pub mig: Option<MigSlice>,
}

/// One worker's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantWorker {
    /// Its node.
    pub node_id: NodeId,
    /// That node's name, for the event.
    pub node: String,
    /// Its shares of devices.
    pub devices: Vec<GrantDevice>,
}

/// What a plan gives to a waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// One entry for each worker, in order of rank.
    pub workers: Vec<GrantWorker>,
    /// Cores of each worker.
    pub cpus: MilliCpu,
    /// Host memory of each worker.
    pub memory_mib: i64,
    /// Between SIGTERM and SIGKILL.
    pub grace_ms: i64,
    /// What the event says besides, such as why the last node could not be had.
    pub note: Value,
}

/// Begins an attempt of a queued job whose row is locked. Everything that it holds is written
/// at once, under the constraints that give each device one holder; a constraint that
/// refuses is [`LifecycleError::Held`].
pub async fn grant(
    tx: &mut Tx,
    job: &mut JobRow,
    grant: &Grant,
    actor: &Actor,
) -> Result<AttemptId, LifecycleError> {
    let first = grant
        .workers
        .first()
        .ok_or_else(|| LifecycleError::Held(format!("job {} was granted nothing", job.id)))?;
    let id = AttemptId::new();
    let attempt = NewAttempt {
        id,
        team_id: job.team_id,
        job_id: job.id,
        number: job.attempt + 1,
        master_node_id: first.node_id,
        master_port: free_master_port(tx, first.node_id, id).await?,
        grace_ms: grant.grace_ms,
    };
    expected_starts::meet(tx, job.id, job.expected_start(), first.node_id).await?;
    let step = JobStep {
        begins_attempt: true,
        ..JobStep::to(JobState::Starting)
    };
    step_job(tx, job, &step, actor, summary(grant)).await?;
    attempts::insert(tx, &attempt).await.map_err(held)?;
    let event = NewEvent {
        subject: Subject::Attempt(id),
        job: Some((job.team_id, job.id)),
        node_id: Some(first.node_id),
        from: None,
        to: AttemptState::Starting.as_str(),
        actor,
        reason: "",
        data: json!({ "attempt": attempt.number }),
    };
    events::insert(tx, &event).await?;
    let seats = seats(&[], &grant.workers);
    place_workers(tx, job, id, &seats, grant, actor).await?;
    Ok(id)
}

/// A worker's place in its gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seat {
    /// Its rank.
    pub worker: i32,
    /// The place of its node among the job's nodes.
    node_rank: i32,
}

/// The places in the gang for workers that join those which are there: the lowest ranks that nobody
/// has, and for nodes that are new the lowest places likewise.
pub(super) fn seats(there: &[Assignment], joining: &[GrantWorker]) -> Vec<Seat> {
    let ranks: BTreeSet<i32> = there.iter().map(|worker| worker.worker).collect();
    let mut free_ranks = (0..).filter(|rank| !ranks.contains(rank));
    let mut nodes: BTreeMap<NodeId, i32> = there
        .iter()
        .map(|worker| (worker.node_id, worker.node_rank))
        .collect();
    let mut seats = Vec::with_capacity(joining.len());
    for place in joining {
        let taken: BTreeSet<i32> = nodes.values().copied().collect();
        let free = (0..).find(|rank| !taken.contains(rank));
        let free = free.expect("a gang has at most 1,024 nodes");
        seats.push(Seat {
            worker: free_ranks.next().expect("a gang has at most 1,024 workers"),
            node_rank: *nodes.entry(place.node_id).or_insert(free),
        });
    }
    seats
}

/// Writes the workers of a grant with all that they hold, each in its place.
pub(super) async fn place_workers(
    tx: &mut Tx,
    job: &JobRow,
    attempt: AttemptId,
    seats: &[Seat],
    grant: &Grant,
    actor: &Actor,
) -> Result<(), LifecycleError> {
    for (seat, place) in seats.iter().zip(&grant.workers) {
        let assignment = NewAssignment {
            id: AssignmentId::new(),
            team_id: job.team_id,
            job_id: job.id,
            attempt_id: attempt,
            node_id: place.node_id,
            worker: seat.worker,
            node_rank: seat.node_rank,
            cpus_milli: grant.cpus.milli(),
            memory_mib: grant.memory_mib,
        };
        grant_worker(tx, job, &assignment, place, actor).await?;
    }
    Ok(())
}

async fn grant_worker(
    tx: &mut Tx,
    job: &JobRow,
    assignment: &NewAssignment,
    place: &GrantWorker,
    actor: &Actor,
) -> Result<(), LifecycleError> {
    let now = store::clock(tx).await?;
    assignments::insert(tx, assignment, now).await?;
    for device in &place.devices {
        let slots = match &device.mig {
            Some(slice) => slices(slice),
            None if device.mode == SharingMode::Exclusive => WHOLE_SLOTS,
            None => {
                let slot = free_slot(tx, device.device_id).await?;
                slot..slot + 1
            }
        };
        let share = NewShare {
            device_id: device.device_id,
            mode: device.mode,
            gpus_milli: device.gpus_milli,
            memory_mib: device.memory_mib,
            slot_first: slots.start,
            slot_end: slots.end,
            mig_profile: device.mig.as_ref().map(|slice| slice.profile.clone()),
        };
        assignments::insert_share(tx, job.team_id, assignment.id, &share)
            .await
            .map_err(held)?;
    }
    crate::accounting::meter::reserve(tx, assignment.id, now)
        .await
        .map_err(held)?;
    let event = NewEvent {
        subject: Subject::Assignment(assignment.id),
        job: Some((job.team_id, job.id)),
        node_id: Some(place.node_id),
        from: None,
        to: "granted",
        actor,
        reason: "",
        data: json!({ "worker": assignment.worker }),
    };
    Ok(events::insert(tx, &event).await?)
}

/// A port that no live attempt with rank 0 on this node has. The search begins at a place
/// that differs between attempts, so that a port just left is not taken at once.
pub(super) async fn free_master_port(
    tx: &mut Tx,
    node_id: NodeId,
    attempt_id: AttemptId,
) -> Result<i32, LifecycleError> {
    let taken = attempts::master_ports(tx, node_id).await?;
    let count = MASTER_PORTS.end() - MASTER_PORTS.start() + 1;
    let tail = attempt_id.as_bytes();
    let offset = i32::from(u16::from_be_bytes([tail[14], tail[15]])) % count;
    (0..count)
        .map(|step| MASTER_PORTS.start() + (offset + step) % count)
        .find(|port| !taken.contains(port))
        .ok_or_else(|| LifecycleError::Held(format!("node {node_id} has no rendezvous port left")))
}

/// The places of an instance: its memory slices.
fn slices(slice: &MigSlice) -> std::ops::Range<i32> {
    let place = |slice: u32| i32::try_from(slice).expect("a device has at most eight slices");
    place(slice.start)..place(slice.start + slice.size)
}

/// The lowest place for a fraction that nobody holds on a device.
async fn free_slot(tx: &mut Tx, device_id: DeviceId) -> Result<i32, LifecycleError> {
    let taken = assignments::slots_taken(tx, device_id).await?;
    FRACTION_SLOTS
        .clone()
        .find(|slot| !taken.contains(slot))
        .ok_or_else(|| LifecycleError::Held(format!("device {device_id} has no place left")))
}

/// What the job's event says of its placement.
fn summary(grant: &Grant) -> Value {
    let mut nodes: Vec<&str> = grant.workers.iter().map(|w| w.node.as_str()).collect();
    nodes.dedup();
    let mut data = json!({ "nodes": nodes, "workers": grant.workers.len() });
    if let (Value::Object(data), Value::Object(note)) = (&mut data, &grant.note) {
        data.extend(note.clone());
    }
    data
}

/// The constraints that refuse a second holder: of a device, of a part of one, of its metered time.
const ONE_HOLDER: [&str; 3] = ["one_live_holder", "share_fits", "one_holder_at_a_time"];

/// Tells a second holder that was refused from every other error: a row that is wrong must not
/// look as if somebody had been faster.
fn held(error: sqlx::Error) -> LifecycleError {
    match violated(&error).filter(|constraint| ONE_HOLDER.contains(constraint)) {
        Some(constraint) => LifecycleError::Held(format!("{constraint} refuses a second holder")),
        None => LifecycleError::Database(error),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::fmt;

    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// What the database says when a constraint of this name refuses a row.
    #[derive(Debug)]
    struct Refusal(&'static str);

    impl fmt::Display for Refusal {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Refusal {}

    impl DatabaseError for Refusal {
        fn message(&self) -> &str {
            self.0
        }
        fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
            self
        }
        fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
            self
        }
        fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
            self
        }
        fn kind(&self) -> ErrorKind {
            ErrorKind::CheckViolation
        }
        fn constraint(&self) -> Option<&str> {
            Some(self.0)
        }
    }

    #[test]
    fn only_a_second_holder_is_one() {
        let refused = |name| held(sqlx::Error::Database(Box::new(Refusal(name))));
        for name in ONE_HOLDER {
            assert!(matches!(refused(name), LifecycleError::Held(_)), "{name}");
        }
        for name in ["share_memory", "share_amount", "segment_amount"] {
            assert!(
                matches!(refused(name), LifecycleError::Database(_)),
                "{name}"
            );
        }
    }
}
