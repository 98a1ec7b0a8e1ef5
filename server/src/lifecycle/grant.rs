//! Granting: a waiting job gets an attempt, its workers their slices, all or none.

use std::collections::{BTreeMap, BTreeSet};

use domain::MilliCpu;
use domain::ids::{AssignmentId, AttemptId, DeviceId, JobId, NodeId, TeamId};
use domain::sharing::SharingMode;
use domain::state::{AttemptState, JobState};
use protocol::mig::MigSlice;
use serde_json::{Value, json};

use super::steps::Steps;
use super::{Actor, LifecycleError};
use crate::accounting::meter;
use crate::store::assignments::{self, Assignment, NewAssignment, NewShare};
use crate::store::attempts::{self, NewAttempt};
use crate::store::events::{Events, NewEvent, Subject};
use crate::store::expected_starts::{self, Met};
use crate::store::jobs::{JobRow, JobStep};
use crate::store::{self, Tx, violated};

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

/// Begins attempts of queued jobs whose rows are locked, all or none. Everything that they hold is
/// written at once, under the constraints that give each device one holder; a constraint that
/// refuses is [`LifecycleError::Held`].
pub async fn grant(
    tx: &mut Tx,
    granted: &mut [(JobRow, Grant)],
    actor: &Actor,
) -> Result<(), LifecycleError> {
    let first = |job: &JobRow, grant: &Grant| {
        let first = grant.workers.first().map(|worker| worker.node_id);
        first.ok_or_else(|| LifecycleError::Held(format!("job {} was granted nothing", job.id)))
    };
    let nodes = granted.iter().map(|(job, grant)| first(job, grant));
    let nodes = nodes.collect::<Result<Vec<NodeId>, _>>()?;
    let mut ports = Ports::taken(tx, &nodes).await?;
    let mut new = Vec::with_capacity(granted.len());
    let mut met = Vec::with_capacity(granted.len());
    let mut steps = Steps::default();
    for ((job, grant), node_id) in granted.iter_mut().zip(nodes) {
        let id = AttemptId::new();
        let attempt = NewAttempt {
            id,
            team_id: job.team_id,
            job_id: job.id,
            number: job.attempt + 1,
            master_node_id: node_id,
            master_port: ports.take(node_id, id)?,
            grace_ms: grant.grace_ms,
        };
        met.push(Met {
            job_id: job.id,
            last: job.expected_start(),
            node_id,
        });
        let step = JobStep {
            begins_attempt: true,
            ..JobStep::to(JobState::Starting)
        };
        steps.job(job, step, actor, summary(grant))?;
        steps.event(&NewEvent {
            subject: Subject::Attempt(id),
            job: Some((job.team_id, job.id)),
            node_id: Some(node_id),
            from: None,
            to: AttemptState::Starting.as_str(),
            actor,
            reason: "",
            data: json!({ "attempt": attempt.number }),
        });
        new.push(attempt);
    }
    expected_starts::meet(tx, &met).await?;
    attempts::insert(tx, &new).await.map_err(held)?;
    steps.write(tx).await?;
    let seats: Vec<Vec<Seat>> = granted
        .iter()
        .map(|(_, grant)| seats(&[], &grant.workers))
        .collect();
    let seated = granted.iter().zip(&new).zip(&seats);
    let seated = seated.map(|(((job, grant), attempt), seats)| Seated {
        job: (job.team_id, job.id),
        attempt: attempt.id,
        seats,
        grant,
    });
    place_workers(tx, &seated.collect::<Vec<_>>(), actor).await
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

/// A grant with the places of its workers in their gang.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seated<'g> {
    /// The job, after its team.
    pub job: (TeamId, JobId),
    /// The attempt that they belong to.
    pub attempt: AttemptId,
    /// Their places, in the order of the grant's workers.
    pub seats: &'g [Seat],
    /// The grant.
    pub grant: &'g Grant,
}

/// Writes the workers of grants with all that they hold, each in its place.
pub(super) async fn place_workers(
    tx: &mut Tx,
    all: &[Seated<'_>],
    actor: &Actor,
) -> Result<(), LifecycleError> {
    let now = store::clock(tx).await?;
    let places = || all.iter().flat_map(|seated| &seated.grant.workers);
    let devices: BTreeSet<DeviceId> = places()
        .flat_map(|place| &place.devices)
        .filter(|device| device.mode != SharingMode::Exclusive && device.mig.is_none())
        .map(|device| device.device_id)
        .collect();
    let mut slots = Slots::taken(tx, &devices.into_iter().collect::<Vec<_>>()).await?;
    let mut workers = Vec::new();
    let mut shares = Vec::new();
    let mut events = Events::default();
    for Seated {
        job: (team_id, job_id),
        attempt,
        seats,
        grant,
    } in all
    {
        for (seat, place) in seats.iter().zip(&grant.workers) {
            let assignment = NewAssignment {
                id: AssignmentId::new(),
                team_id: *team_id,
                job_id: *job_id,
                attempt_id: *attempt,
                node_id: place.node_id,
                worker: seat.worker,
                node_rank: seat.node_rank,
                cpus_milli: grant.cpus.milli(),
                memory_mib: grant.memory_mib,
            };
            for device in &place.devices {
                shares.push(share(&assignment, device, &mut slots)?);
            }
            events.put(&NewEvent {
                subject: Subject::Assignment(assignment.id),
                job: Some((*team_id, *job_id)),
                node_id: Some(place.node_id),
                from: None,
                to: "granted",
                actor,
                reason: "",
                data: json!({ "worker": assignment.worker }),
            });
            workers.push(assignment);
        }
    }
    assignments::insert(tx, &workers, now).await?;
    assignments::insert_shares(tx, &shares)
        .await
        .map_err(held)?;
    let reserved: Vec<_> = workers.iter().map(|worker| (worker.id, now)).collect();
    meter::reserve(tx, &reserved).await.map_err(held)?;
    Ok(events.write(tx).await?)
}

fn share(
    assignment: &NewAssignment,
    device: &GrantDevice,
    slots: &mut Slots,
) -> Result<NewShare, LifecycleError> {
    let places = match &device.mig {
        Some(slice) => slices(slice),
        None if device.mode == SharingMode::Exclusive => WHOLE_SLOTS,
        None => {
            let slot = slots.take(device.device_id)?;
            slot..slot + 1
        }
    };
    Ok(NewShare {
        assignment_id: assignment.id,
        team_id: assignment.team_id,
        device_id: device.device_id,
        mode: device.mode,
        gpus_milli: device.gpus_milli,
        memory_mib: device.memory_mib,
        slot_first: places.start,
        slot_end: places.end,
        mig_profile: device.mig.as_ref().map(|slice| slice.profile.clone()),
    })
}

/// The rendezvous ports of nodes that are taken.
pub(super) struct Ports(BTreeSet<(NodeId, i32)>);

impl Ports {
    /// Those of live attempts with rank 0 on one of these nodes.
    pub async fn taken(tx: &mut Tx, nodes: &[NodeId]) -> Result<Self, sqlx::Error> {
        let taken = attempts::master_ports(tx, nodes).await?;
        Ok(Self(taken.into_iter().collect()))
    }

    /// Takes a port of a node that nobody has. The search begins at a place that differs between
    /// attempts, so that a port just left is not taken at once.
    pub fn take(&mut self, node_id: NodeId, attempt_id: AttemptId) -> Result<i32, LifecycleError> {
        let count = MASTER_PORTS.end() - MASTER_PORTS.start() + 1;
        let tail = attempt_id.as_bytes();
        let offset = i32::from(u16::from_be_bytes([tail[14], tail[15]])) % count;
        (0..count)
            .map(|step| MASTER_PORTS.start() + (offset + step) % count)
            .find(|port| self.0.insert((node_id, *port)))
            .ok_or_else(|| {
                LifecycleError::Held(format!("node {node_id} has no rendezvous port left"))
            })
    }
}

/// The places for fractions of devices that are taken.
struct Slots(BTreeSet<(DeviceId, i32)>);

impl Slots {
    async fn taken(tx: &mut Tx, devices: &[DeviceId]) -> Result<Self, sqlx::Error> {
        let taken = assignments::slots_taken(tx, devices).await?;
        Ok(Self(taken.into_iter().collect()))
    }

    /// Takes the lowest place for a fraction of a device that nobody holds.
    fn take(&mut self, device_id: DeviceId) -> Result<i32, LifecycleError> {
        FRACTION_SLOTS
            .clone()
            .find(|slot| self.0.insert((device_id, *slot)))
            .ok_or_else(|| LifecycleError::Held(format!("device {device_id} has no place left")))
    }
}

/// The places of an instance: its memory slices.
fn slices(slice: &MigSlice) -> std::ops::Range<i32> {
    let place = |slice: u32| i32::try_from(slice).expect("a device has at most eight slices");
    place(slice.start)..place(slice.start + slice.size)
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
