//! Desired sets: what a node is to hold and run, told whole at first and by differences after.
//!
//! A message is bounded, whatever a node holds. A full set that does not fit names what follows,
//! so that nothing is taken for unwanted, and the rest comes as differences: each message can be
//! taken by itself, and a connection that breaks in between begins with a full set again.

use std::collections::BTreeMap;

use domain::ids::{AssignmentId, AttemptId, JobId};
use domain::spec::PartitionPolicy;
use domain::state::{AssignmentPhase, AttemptEnd, AttemptState};
use protocol::desired::SET_BYTES_MAX;
use protocol::report::Finding;
use protocol::wire;

use crate::app::App;
use crate::lifecycle::{LifecycleError, Stop, stop};
use crate::store::desired::{self, Gang, Mark, Order, Seat, Share};
use crate::store::devices::Found;
use crate::store::epochs::Epoch;
use crate::store::events::Actor;
use crate::store::jobs;

/// Unix users of one team: a range, so that a job may have some of its own later.
const UNIX_USERS_PER_TEAM: u32 = 1_000;
/// Assignments that are read for one message: a few more than fit where each has the most files.
const ORDERS_AT_ONCE: usize = 32;

/// What is wanted of one assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Take it, start nothing.
    Hold,
    /// Run it, beside these workers.
    Run(Gang),
    /// Stop it, for this end of its attempt.
    Stop(Option<AttemptEnd>),
}

impl Want {
    /// What a mark means: stop what is being stopped, run what its whole gang was taken of, and
    /// what runs already while its gang grows.
    pub fn of(mark: &Mark) -> Self {
        let leaving = matches!(
            mark.phase,
            AssignmentPhase::Stopping | AssignmentPhase::Cleaning
        ) || mark.attempt_state == AttemptState::Stopping;
        if leaving {
            Self::Stop(mark.reason)
        } else if mark.all_taken || mark.phase == AssignmentPhase::Running {
            Self::Run(mark.gang)
        } else {
            Self::Hold
        }
    }
}

/// Everything that one node is to hold, with the epoch that it is told under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The present leader's epoch.
    pub epoch: Epoch,
    /// By assignment.
    pub wants: BTreeMap<AssignmentId, Want>,
    /// Its devices that persons have cleared, by UUID, up to which finding.
    pub cleared: BTreeMap<String, i64>,
    /// What was found of its devices and nobody has cleared, by UUID.
    pub found: BTreeMap<String, Vec<Finding>>,
}

impl Wanted {
    /// Takes in what was found of a device: what a person has cleared of it, and what is left.
    pub fn take_found(&mut self, device: Found) {
        let (cleared, left): (Vec<Finding>, Vec<Finding>) = device
            .findings
            .0
            .into_iter()
            .partition(|finding| finding.number <= device.cleared);
        if !cleared.is_empty() {
            self.cleared.insert(device.uuid.clone(), device.cleared);
        }
        if !left.is_empty() {
            self.found.insert(device.uuid, left);
        }
    }
}

/// What a connection has told its node so far.
#[derive(Debug, Default)]
pub struct Told {
    revision: u64,
    epoch: Option<Epoch>,
    wants: BTreeMap<AssignmentId, Want>,
    cleared: BTreeMap<String, i64>,
}

/// What must be told to bring a node from what it was told to what is wanted.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// New or changed.
    pub changed: Vec<AssignmentId>,
    /// Ended.
    pub forgotten: Vec<AssignmentId>,
}

impl Told {
    /// The difference to `wanted`; nothing when it is known and no epoch has changed.
    pub fn difference(&self, wanted: &Wanted) -> Option<Difference> {
        let changed: Vec<_> = wanted
            .wants
            .iter()
            .filter(|(id, want)| self.wants.get(id) != Some(want))
            .map(|(id, _)| *id)
            .collect();
        let forgotten: Vec<_> = self
            .wants
            .keys()
            .filter(|id| !wanted.wants.contains_key(id))
            .copied()
            .collect();
        let first = self.revision == 0;
        let known = !first && self.epoch == Some(wanted.epoch) && self.cleared == wanted.cleared;
        if known && changed.is_empty() && forgotten.is_empty() {
            return None;
        }
        Some(Difference { changed, forgotten })
    }

    /// Builds the message for as much of a difference as one may hold, and takes that for told:
    /// where more is left, [`Told::difference`] says so. A job that no node can be told of is ended.
    pub async fn tell(
        &mut self,
        app: &App,
        wanted: &Wanted,
        difference: &Difference,
    ) -> Result<wire::DesiredSet, LifecycleError> {
        let read = difference.changed.len().min(ORDERS_AT_ONCE);
        let mut tx = app.db.begin_system().await?;
        let orders = desired::orders(&mut tx, &difference.changed[..read]).await?;
        let mut shares = desired::shares(&mut tx, &difference.changed[..read]).await?;
        let gangs: Vec<AttemptId> = orders.iter().map(|order| order.attempt_id).collect();
        let seats = desired::seats(&mut tx, &gangs).await?;
        tx.commit().await?;
        let mut part = Part::default();
        for order in orders {
            let Some(want) = wanted.wants.get(&order.id) else {
                continue;
            };
            let shares = shares.remove(&order.id).unwrap_or_default();
            let base = app.config.unix_user_base;
            let gang = seats.get(&order.attempt_id).map_or(&[][..], Vec::as_slice);
            match assignment(base, &order, &shares, gang, *want) {
                Ok(assignment) => part.put(order.id, assignment),
                Err(message) => {
                    end_untellable(app, order.job_id, &message).await?;
                    let stop = Want::Stop(Some(AttemptEnd::Invalid));
                    part.put(order.id, to_be_ended(base, &order, &shares, stop));
                }
            }
        }
        let later: Vec<AssignmentId> = part
            .left
            .iter()
            .chain(&difference.changed[read..])
            .copied()
            .collect();
        let full = self.revision == 0;
        self.revision += 1;
        self.epoch = Some(wanted.epoch);
        self.cleared.clone_from(&wanted.cleared);
        for id in &difference.forgotten {
            self.wants.remove(id);
        }
        for id in difference.changed[..read]
            .iter()
            .filter(|id| !part.left.contains(id))
        {
            if let Some(want) = wanted.wants.get(id) {
                self.wants.insert(*id, *want);
            }
        }
        Ok(wire::DesiredSet {
            epoch: Some(wire::Epoch {
                timeline: wanted.epoch.timeline,
                number: wanted.epoch.number,
            }),
            revision: self.revision,
            full,
            assignments: part.assignments,
            forgotten: texts(&difference.forgotten),
            // Of a delta nothing follows from what it does not list.
            following: if full { texts(&later) } else { Vec::new() },
            cleared: wanted.cleared.iter().map(cleared).collect(),
            // Once: a node loses what it kept between two lives, not between two messages.
            found: match full {
                true => wanted.found.iter().map(found).collect(),
                false => Vec::new(),
            },
        })
    }
}

/// What goes into one message.
#[derive(Default)]
struct Part {
    assignments: Vec<wire::Assignment>,
    bytes: usize,
    left: Vec<AssignmentId>,
}

impl Part {
    fn put(&mut self, id: AssignmentId, assignment: wire::Assignment) {
        let bytes = protocol::encoded_bytes(&assignment);
        if self.bytes + bytes > SET_BYTES_MAX && !self.assignments.is_empty() {
            self.left.push(id);
            return;
        }
        self.bytes += bytes;
        self.assignments.push(assignment);
    }
}

fn cleared((uuid, up_to): (&String, &i64)) -> wire::Cleared {
    wire::Cleared {
        uuid: uuid.clone(),
        up_to: up_to.unsigned_abs(),
    }
}

fn found((uuid, findings): (&String, &Vec<Finding>)) -> wire::Found {
    wire::Found {
        uuid: uuid.clone(),
        findings: findings.iter().map(Into::into).collect(),
    }
}

fn texts(ids: &[AssignmentId]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

/// Ends a job of which no node can be told: the leader does so too, if it reads what we cannot.
async fn end_untellable(app: &App, job: JobId, message: &str) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let Some(mut job) = jobs::lock(&mut tx, job).await? else {
        return Ok(());
    };
    let wish = Stop::because(AttemptEnd::Invalid, message);
    stop(&mut tx, &mut job, &wish, &Actor::System).await?;
    tx.commit().await?;
    tracing::error!(job.id = %job.id, reason = message, "a job cannot be told to its node and is ended");
    app.wake.all();
    Ok(())
}

/// An assignment as its node is told of it, or why it cannot be.
fn assignment(
    unix_user_base: u32,
    order: &Order,
    shares: &[Share],
    gang: &[Seat],
    want: Want,
) -> Result<wire::Assignment, String> {
    let bare = to_be_ended(unix_user_base, order, shares, want);
    if matches!(want, Want::Stop(_)) {
        return Ok(bare);
    }
    let spec = order
        .spec()
        .map_err(|error| jobs::unreadable_spec(&error))?;
    let whole = wire::Assignment {
        command: spec.command,
        env: spec.env.into_iter().collect(),
        files: spec.files.into_iter().collect(),
        working_directory: spec.working_directory.unwrap_or_default(),
        runner: spec.runner.to_string(),
        image: spec.image.unwrap_or_default(),
        keep_on_partition: spec.on_partition == PartitionPolicy::Keep,
        addresses: gang.iter().map(|seat| seat.address.clone()).collect(),
        ranks: gang.iter().map(|seat| seat.worker.unsigned_abs()).collect(),
        ..bare
    };
    if protocol::encoded_bytes(&whole) > SET_BYTES_MAX {
        return Err(format!(
            "it is larger than the {SET_BYTES_MAX} bytes that a node takes"
        ));
    }
    Ok(whole)
}

/// An assignment without what only a start needs: all that its spec says.
fn to_be_ended(
    unix_user_base: u32,
    order: &Order,
    shares: &[Share],
    want: Want,
) -> wire::Assignment {
    let (want, stop_reason) = match want {
        Want::Hold => (wire::Want::Hold, ""),
        Want::Run(_) => (wire::Want::Run, ""),
        Want::Stop(end) => (wire::Want::Stop, end.map_or("", AttemptEnd::as_str)),
    };
    let slot = order.unix_slot.unsigned_abs();
    wire::Assignment {
        id: order.id.to_string(),
        attempt_id: order.attempt_id.to_string(),
        job_id: order.job_id.to_string(),
        job_name: order.job_name.clone(),
        team: order.team.clone(),
        team_id: order.team_id.to_string(),
        attempt: order.attempt.unsigned_abs(),
        want: want.into(),
        stop_reason: stop_reason.to_owned(),
        grace_ms: order.grace_ms,
        worker: order.worker.unsigned_abs(),
        workers: order.workers.unsigned_abs(),
        node_rank: order.node_rank.unsigned_abs(),
        devices: shares
            .iter()
            .map(|share| wire::DeviceShare {
                uuid: share.uuid.clone(),
                index: share.index.unsigned_abs(),
                mode: share.mode.to_string(),
                gpus_milli: share.gpus_milli.into(),
                memory_mib: share.memory_mib,
                mig: share.mig.clone().map(Into::into),
            })
            .collect(),
        cpus_milli: order.cpus_milli,
        memory_mib: order.memory_mib,
        uid: unix_user_base.saturating_add(slot.saturating_mul(UNIX_USERS_PER_TEAM)),
        master_addr: order.master_address.clone().unwrap_or_default(),
        master_port: order.master_port.unwrap_or_default().unsigned_abs(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(phase: AssignmentPhase, attempt_state: AttemptState, all_taken: bool) -> Mark {
        Mark {
            id: AssignmentId::new(),
            node_id: domain::ids::NodeId::new(),
            phase,
            attempt_state,
            reason: None,
            all_taken,
            gang: Gang::default(),
        }
    }

    #[test]
    fn nobody_runs_before_the_whole_gang_was_taken() {
        let held = mark(AssignmentPhase::HandedOver, AttemptState::Starting, false);
        assert_eq!(Want::of(&held), Want::Hold);
        let taken = mark(AssignmentPhase::HandedOver, AttemptState::Starting, true);
        assert_eq!(Want::of(&taken), Want::Run(Gang::default()));
        let grows = mark(AssignmentPhase::Running, AttemptState::Running, false);
        assert_eq!(Want::of(&grows), Want::Run(Gang::default()));
        let stopped = mark(AssignmentPhase::Stopping, AttemptState::Stopping, true);
        assert_eq!(Want::of(&stopped), Want::Stop(None));
        let left = mark(AssignmentPhase::Cleaning, AttemptState::Running, true);
        assert_eq!(Want::of(&left), Want::Stop(None));
    }

    #[test]
    fn the_first_set_is_told_even_when_it_is_empty_and_nothing_is_told_twice() {
        let epoch = Epoch {
            timeline: 1,
            number: 1,
        };
        let id = AssignmentId::new();
        let mut wanted = Wanted {
            epoch,
            wants: BTreeMap::new(),
            cleared: BTreeMap::new(),
            found: BTreeMap::new(),
        };
        let mut told = Told::default();
        assert!(told.difference(&wanted).is_some());
        told.revision = 1;
        told.epoch = Some(epoch);
        assert_eq!(told.difference(&wanted), None);
        wanted.wants.insert(id, Want::Hold);
        let difference = told.difference(&wanted).expect("something is new");
        assert_eq!(
            (difference.changed, difference.forgotten),
            (vec![id], vec![])
        );
        told.wants.insert(id, Want::Hold);
        wanted.wants.clear();
        let difference = told.difference(&wanted).expect("something has ended");
        assert_eq!(
            (difference.changed, difference.forgotten),
            (vec![], vec![id])
        );
        told.wants.clear();
        wanted.cleared.insert("GPU-1".to_owned(), 7);
        assert!(told.difference(&wanted).is_some(), "a person cleared it");
        told.cleared.clone_from(&wanted.cleared);
        assert_eq!(told.difference(&wanted), None);
        wanted.epoch.number = 2;
        assert!(told.difference(&wanted).is_some(), "another leader");
    }
}
