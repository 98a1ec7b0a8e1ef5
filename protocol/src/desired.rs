//! What a node was told to hold and run, checked on receipt by the agent.

use std::collections::BTreeMap;
use std::str::FromStr;

use domain::ids::{AssignmentId, AttemptId, JobId, TeamId};
use domain::name::{JobName, Name};
use domain::sharing::SharingMode;
use domain::{MilliCpu, MilliGpu};

use crate::mig::MigSlice;
use crate::report::Finding;
use crate::{Malformed, wire};

/// Most devices that one assignment may name; the most that a node may have.
pub const DEVICES_MAX: usize = domain::quantity::DEVICES_PER_NODE_MAX as usize;
/// What the assignments of one set may come to, in bytes; the rest follows in further sets. Some
/// with the most files fit, and a lease's answer waits for one set at most: about 3 s at 10 Mbit/s.
pub const SET_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest grace that is believed, in milliseconds: a day. A longer one would keep a
/// device from others for good because of one wrong number.
pub const GRACE_MS_MAX: i64 = 24 * 3600 * 1000;
/// The ports that a job's first worker may be given; outside of them lies what belongs to
/// the machine.
const MASTER_PORTS: std::ops::RangeInclusive<u32> = 1024..=65535;

/// The pair that fences out a past leader; ordered by timeline, then number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Epoch {
    /// The database's timeline.
    pub timeline: i64,
    /// The leader's number within it.
    pub number: i64,
}

impl From<wire::Epoch> for Epoch {
    fn from(epoch: wire::Epoch) -> Self {
        Self {
            timeline: epoch.timeline,
            number: epoch.number,
        }
    }
}

impl From<Epoch> for wire::Epoch {
    fn from(epoch: Epoch) -> Self {
        Self {
            timeline: epoch.timeline,
            number: epoch.number,
        }
    }
}

/// What is wanted of one assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// Acknowledge it, lay it out, do not start it.
    Hold,
    /// Run it.
    Run,
    /// End it and never start it again.
    Stop {
        /// Why, as an attempt's end.
        reason: String,
        /// Time between SIGTERM and SIGKILL, in milliseconds.
        grace_ms: i64,
    },
}

/// A share of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceShare {
    /// The device's UUID, as NVML tells it.
    pub uuid: String,
    /// Its index on the node.
    pub index: u32,
    /// How it is given out.
    pub mode: SharingMode,
    /// How much of it; in the mode `mps` of the instance where there is one.
    pub gpus: MilliGpu,
    /// How much of its memory.
    pub memory_mib: i64,
    /// The instance: in the mode `mig` always, in the mode `mps` where one is shared so, in no other.
    pub mig: Option<MigSlice>,
}

/// One worker of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Its id.
    pub id: AssignmentId,
    /// The attempt that it belongs to.
    pub attempt_id: AttemptId,
    /// The job.
    pub job_id: JobId,
    /// The job's name.
    pub job_name: JobName,
    /// The team's name.
    pub team: Name,
    /// The team.
    pub team_id: TeamId,
    /// The attempt's number in its job, from 1.
    pub attempt: u32,
    /// What is wanted of it now.
    pub want: Want,
    /// Its rank among the workers.
    pub worker: u32,
    /// How many workers there are.
    pub workers: u32,
    /// The place of this node among the job's.
    pub node_rank: u32,
    /// Its devices.
    pub devices: Vec<DeviceShare>,
    /// Its CPUs; none asked for means no limit.
    pub cpus: MilliCpu,
    /// Its memory; 0 means no limit.
    pub memory_mib: i64,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The variables of its spec.
    pub env: BTreeMap<String, String>,
    /// Small files for its folder, by relative path.
    pub files: BTreeMap<String, String>,
    /// Where it runs, when not in its own folder.
    pub working_directory: Option<String>,
    /// How it is run: `process`, `container` or `vm`.
    pub runner: String,
    /// The container's image.
    pub image: String,
    /// The team's user and group on every node.
    pub uid: u32,
    /// Where the job's first worker is reached.
    pub master_addr: String,
    /// The port kept for it there.
    pub master_port: u16,
    /// Whether it goes on when the node has lost its lease.
    pub keep_on_partition: bool,
    /// Where the workers that work together are reached, by rank.
    pub addresses: Vec<String>,
    /// The ranks of those: some are missing where a node was lost.
    pub ranks: Vec<u32>,
}

/// An assignment that can be named but not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poisoned {
    /// Its id.
    pub id: AssignmentId,
    /// Its attempt.
    pub attempt_id: AttemptId,
    /// What was wrong with it.
    pub fault: Malformed,
}

/// All that a node is to hold, or what changed of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredSet {
    /// The leader that decided it.
    pub epoch: Epoch,
    /// Its place among the sets of the connection.
    pub revision: u64,
    /// Whether what is not listed is not wanted.
    pub full: bool,
    /// What is wanted. One that is malformed spoils itself only.
    pub assignments: Vec<Result<Assignment, Poisoned>>,
    /// What has ended for the server.
    pub forgotten: Vec<AssignmentId>,
    /// What a full set does not tell of yet, though it is wanted: it stays as it is.
    pub following: Vec<AssignmentId>,
    /// The devices whose findings are cleared, by UUID, up to which number.
    pub cleared: Vec<(String, u64)>,
    /// What the server knows to have been found of devices and nobody has cleared, by UUID.
    pub found: Vec<(String, Vec<Finding>)>,
}

impl TryFrom<wire::DesiredSet> for DesiredSet {
    type Error = Malformed;

    fn try_from(set: wire::DesiredSet) -> Result<Self, Malformed> {
        let assignments = set.assignments.into_iter().map(read_assignment);
        Ok(Self {
            epoch: set.epoch.ok_or(Malformed::Missing("epoch"))?.into(),
            revision: set.revision,
            full: set.full,
            assignments: assignments.collect::<Result<_, _>>()?,
            forgotten: set
                .forgotten
                .iter()
                .map(|id| parse("forgotten", id))
                .collect::<Result<_, _>>()?,
            following: set
                .following
                .iter()
                .map(|id| parse("following", id))
                .collect::<Result<_, _>>()?,
            cleared: set
                .cleared
                .into_iter()
                .map(|cleared| (cleared.uuid, cleared.up_to))
                .collect(),
            found: set
                .found
                .into_iter()
                .map(|found| {
                    let findings = found.findings.into_iter().map(Finding::check);
                    Ok((found.uuid, findings.collect::<Result<_, _>>()?))
                })
                .collect::<Result<_, Malformed>>()?,
        })
    }
}

/// Reads one assignment; one whose ids cannot be read spoils the whole set, since nobody
/// could be told about it.
fn read_assignment(wire: wire::Assignment) -> Result<Result<Assignment, Poisoned>, Malformed> {
    let id = parse("assignment.id", &wire.id)?;
    let attempt_id = parse("assignment.attempt_id", &wire.attempt_id)?;
    Ok(
        check_assignment(id, attempt_id, wire).map_err(|fault| Poisoned {
            id,
            attempt_id,
            fault,
        }),
    )
}

fn check_assignment(
    id: AssignmentId,
    attempt_id: AttemptId,
    wire: wire::Assignment,
) -> Result<Assignment, Malformed> {
    let want = read_want(&wire)?;
    if wire.workers == 0 || wire.worker >= wire.workers {
        return Err(Malformed::invalid("worker", wire.worker));
    }
    if wire.addresses.len() > domain::spec::WORKERS_MAX as usize {
        return Err(Malformed::invalid("addresses", wire.addresses.len()));
    }
    // A server that knows no ranks means all of them.
    let ranks = if wire.ranks.is_empty() {
        (0..).take(wire.addresses.len()).collect()
    } else {
        wire.ranks
    };
    if ranks.len() != wire.addresses.len() {
        return Err(Malformed::invalid("ranks", ranks.len()));
    }
    if wire.devices.len() > DEVICES_MAX {
        return Err(Malformed::invalid("devices", wire.devices.len()));
    }
    // What is only to be stopped need not be runnable.
    if wire.command.first().is_none_or(String::is_empty) && !matches!(want, Want::Stop { .. }) {
        return Err(Malformed::Missing("command"));
    }
    if let Some(word) = wire.command.iter().find(|word| word.contains('\0')) {
        return Err(Malformed::invalid("command", word));
    }
    for (key, value) in &wire.env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return Err(Malformed::invalid("env", key));
        }
    }
    if wire.master_port != 0 && !MASTER_PORTS.contains(&wire.master_port) {
        return Err(Malformed::invalid("master_port", wire.master_port));
    }
    Ok(Assignment {
        id,
        attempt_id,
        job_id: parse("job_id", &wire.job_id)?,
        job_name: parse("job_name", &wire.job_name)?,
        team: parse("team", &wire.team)?,
        team_id: parse("team_id", &wire.team_id)?,
        attempt: wire.attempt,
        want,
        worker: wire.worker,
        workers: wire.workers,
        node_rank: wire.node_rank,
        devices: wire
            .devices
            .into_iter()
            .map(DeviceShare::try_from)
            .collect::<Result<_, _>>()?,
        cpus: MilliCpu::from_milli(not_negative("cpus_milli", wire.cpus_milli)?),
        memory_mib: not_negative("memory_mib", wire.memory_mib)?,
        command: wire.command,
        env: wire.env.into_iter().collect(),
        files: wire.files.into_iter().collect(),
        working_directory: Some(wire.working_directory).filter(|path| !path.is_empty()),
        runner: wire.runner,
        image: wire.image,
        uid: wire.uid,
        master_addr: wire.master_addr,
        master_port: u16::try_from(wire.master_port)
            .map_err(|_| Malformed::invalid("master_port", wire.master_port))?,
        keep_on_partition: wire.keep_on_partition,
        addresses: wire.addresses,
        ranks,
    })
}

fn read_want(wire: &wire::Assignment) -> Result<Want, Malformed> {
    match wire.want() {
        wire::Want::Unspecified => Err(Malformed::invalid("want", wire.want)),
        wire::Want::Hold => Ok(Want::Hold),
        wire::Want::Run => Ok(Want::Run),
        wire::Want::Stop => Ok(Want::Stop {
            reason: wire.stop_reason.clone(),
            grace_ms: wire.grace_ms.clamp(0, GRACE_MS_MAX),
        }),
    }
}

impl TryFrom<wire::DeviceShare> for DeviceShare {
    type Error = Malformed;

    fn try_from(wire: wire::DeviceShare) -> Result<Self, Malformed> {
        // The UUID becomes part of an environment variable's list.
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'/' | b'_');
        if wire.uuid.is_empty() || !wire.uuid.bytes().all(plain) {
            return Err(Malformed::invalid("devices.uuid", &wire.uuid));
        }
        let mode = parse("devices.mode", &wire.mode)?;
        let mig = wire.mig.map(MigSlice::try_from).transpose()?;
        let fits = match mode {
            SharingMode::Mig => mig.is_some(),
            SharingMode::Mps => true,
            SharingMode::Exclusive | SharingMode::TimeSlice | SharingMode::Vgpu => mig.is_none(),
        };
        if !fits {
            return Err(Malformed::invalid("devices.mig", &wire.mode));
        }
        Ok(Self {
            mode,
            mig,
            gpus: MilliGpu::from_milli(not_negative("devices.gpus_milli", wire.gpus_milli)?),
            memory_mib: not_negative("devices.memory_mib", wire.memory_mib)?,
            uuid: wire.uuid,
            index: wire.index,
        })
    }
}

fn not_negative(field: &'static str, value: i64) -> Result<i64, Malformed> {
    if value < 0 {
        return Err(Malformed::invalid(field, value));
    }
    Ok(value)
}

fn parse<T: FromStr>(field: &'static str, text: &str) -> Result<T, Malformed> {
    text.parse().map_err(|_| Malformed::invalid(field, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment() -> wire::Assignment {
        wire::Assignment {
            id: AssignmentId::new().to_string(),
            attempt_id: AttemptId::new().to_string(),
            job_id: JobId::new().to_string(),
            job_name: "digits".to_owned(),
            team: "vision".to_owned(),
            team_id: TeamId::new().to_string(),
            attempt: 1,
            want: wire::Want::Run.into(),
            workers: 1,
            command: vec!["true".to_owned()],
            master_port: 20000,
            ..wire::Assignment::default()
        }
    }

    fn set(assignments: Vec<wire::Assignment>) -> wire::DesiredSet {
        wire::DesiredSet {
            epoch: Some(wire::Epoch {
                timeline: 1,
                number: 1,
            }),
            revision: 1,
            full: true,
            assignments,
            forgotten: Vec::new(),
            following: Vec::new(),
            cleared: Vec::new(),
            found: Vec::new(),
        }
    }

    #[test]
    fn a_malformed_assignment_spoils_itself_only() {
        let mut bad = assignment();
        bad.env.insert("A=B".to_owned(), "x".to_owned());
        let read = DesiredSet::try_from(set(vec![bad.clone(), assignment()])).expect("a set");
        let poisoned = read.assignments[0].as_ref().expect_err("poisoned");
        assert_eq!(poisoned.id.to_string(), bad.id);
        assert!(read.assignments[1].is_ok());
    }

    #[test]
    fn what_cannot_be_named_or_run_is_refused() {
        type Spoil = fn(&mut wire::Assignment);
        let spoils: [Spoil; 8] = [
            |a| a.want = 0,
            |a| a.command.clear(),
            |a| a.command.push("a\0b".to_owned()),
            |a| a.worker = 1,
            |a| a.memory_mib = -1,
            |a| a.master_port = 80,
            |a| a.team = "../x".to_owned(),
            |a| {
                a.devices.push(wire::DeviceShare {
                    uuid: "GPU-1,GPU-2".to_owned(),
                    mode: "exclusive".to_owned(),
                    ..wire::DeviceShare::default()
                });
            },
        ];
        for (at, spoil) in spoils.iter().enumerate() {
            let mut bad = assignment();
            spoil(&mut bad);
            let read = DesiredSet::try_from(set(vec![bad])).expect("a set");
            assert!(read.assignments[0].is_err(), "case {at}");
        }
        let mut nameless = assignment();
        nameless.id = "../../etc".to_owned();
        assert!(DesiredSet::try_from(set(vec![nameless])).is_err());
    }

    #[test]
    fn epochs_compare_by_timeline_first() {
        let old = Epoch {
            timeline: 1,
            number: 900,
        };
        let new = Epoch {
            timeline: 2,
            number: 1,
        };
        assert!(old < new);
    }
}
