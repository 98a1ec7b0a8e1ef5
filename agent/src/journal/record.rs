//! The records of the journal, and one line of it.

use domain::ids::{AssignmentId, AttemptId, JobId, TeamId};
use protocol::desired::{Assignment, Epoch};
use protocol::mig::MigSlice;
use protocol::wire;
use serde::{Deserialize, Serialize};

use crate::checksum;

/// The journal's form; another one is refused, not guessed at.
pub const VERSION: u32 = 1;

/// One thing that the journal remembers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// First of a file.
    Head {
        /// The form of what follows.
        version: u32,
        /// The journal's own id; fact numbers count within it.
        journal_id: String,
        /// The number of the next fact.
        next_fact: u64,
    },
    /// The machine's boot during which what follows was written.
    Boot {
        /// The kernel's id of it.
        boot_id: String,
    },
    /// The highest epoch seen.
    Epoch {
        /// The database's timeline.
        timeline: i64,
        /// The leader's number.
        number: i64,
    },
    /// An assignment that this node holds from now on.
    Accepted(Kept),
    /// Something that the server must learn.
    Fact(Fact),
    /// The server knows all facts up to this one.
    Acknowledged {
        /// That fact's number.
        up_to: u64,
    },
    /// An assignment that must never be started here again.
    Tombstone {
        /// Its id.
        assignment_id: AssignmentId,
    },
}

/// What is remembered of an assignment that the node holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Its id.
    pub assignment_id: AssignmentId,
    /// Its attempt.
    pub attempt_id: AttemptId,
    /// Its job.
    pub job_id: JobId,
    /// The job's name, for people; empty of what an older agent accepted.
    #[serde(default)]
    pub job_name: String,
    /// The job's team, likewise.
    #[serde(default)]
    pub team: String,
    /// Its shares of devices.
    pub devices: Vec<KeptDevice>,
    /// When it was accepted, by the wall clock.
    pub at_micros: i64,
    /// Whether its start was told.
    #[serde(default)]
    pub started: bool,
    /// Whether its end was told.
    #[serde(default)]
    pub ended: bool,
}

/// A share of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptDevice {
    /// The device.
    pub uuid: String,
    /// The mode.
    pub mode: domain::sharing::SharingMode,
    /// How much of it, in thousandths.
    pub gpus_milli: i64,
    /// How much of its memory, where that is bounded.
    #[serde(default)]
    pub memory_mib: i64,
    /// The instance, in the mode `mig`, and in the mode `mps` where one is shared so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigSlice>,
    /// Whose job has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<TeamId>,
}

impl Kept {
    /// What is to be remembered of an assignment accepted now.
    pub fn of(assignment: &Assignment, at_micros: i64) -> Self {
        let devices = assignment.devices.iter().map(|share| KeptDevice {
            uuid: share.uuid.clone(),
            mode: share.mode,
            gpus_milli: share.gpus.milli(),
            memory_mib: share.memory_mib,
            mig: share.mig.clone(),
            team: Some(assignment.team_id),
        });
        Self {
            assignment_id: assignment.id,
            attempt_id: assignment.attempt_id,
            job_id: assignment.job_id,
            job_name: assignment.job_name.to_string(),
            team: assignment.team.to_string(),
            devices: devices.collect(),
            at_micros,
            started: false,
            ended: false,
        }
    }
}

/// Something that happened to an assignment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// Its number, given by the journal.
    pub number: u64,
    /// The assignment.
    pub assignment_id: AssignmentId,
    /// Its attempt.
    pub attempt_id: AttemptId,
    /// When, by the wall clock.
    pub at_micros: i64,
    /// For how long the node itself had kept what is released now, nothing of its job being left.
    #[serde(default)]
    pub kept_micros: i64,
    /// What.
    pub kind: FactKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FactKind {
    /// The node holds it now.
    Accepted,
    /// The node will not run it.
    Refused {
        /// Whose fault that is.
        code: String,
        /// The reason, in words.
        message: String,
        /// What a shell would have ended with, where its command is what is wrong.
        #[serde(default)]
        exit_code: Option<i32>,
    },
    /// Its process runs.
    Started {
        /// The process.
        pid: i64,
        /// What names the image of its container for good; empty of a process.
        #[serde(default)]
        image_digest: String,
    },
    /// Its process has ended.
    Exited {
        /// The exit code,
        code: Option<i32>,
        /// or the signal.
        signal: Option<i32>,
        /// Whether it was killed for want of memory.
        out_of_memory: bool,
        /// Whether the agent had begun to stop it.
        asked: bool,
        /// The agent's own reason.
        reason: String,
        /// More in words.
        message: String,
    },
    /// It is gone and what it held is clean.
    Released,
}

impl From<&Fact> for wire::Fact {
    fn from(fact: &Fact) -> Self {
        use wire::fact::Kind;
        let kind = match fact.kind.clone() {
            FactKind::Accepted => Kind::Accepted(wire::Accepted {}),
            FactKind::Refused {
                code,
                message,
                exit_code,
            } => Kind::Refused(wire::Refused {
                code,
                message,
                exit_code,
            }),
            FactKind::Started { pid, image_digest } => {
                Kind::Started(wire::Started { pid, image_digest })
            }
            FactKind::Exited {
                code,
                signal,
                out_of_memory,
                asked,
                reason,
                message,
            } => Kind::Exited(wire::Exited {
                code,
                signal,
                out_of_memory,
                asked,
                reason,
                message,
            }),
            FactKind::Released => Kind::Released(wire::Released {
                kept_micros: fact.kept_micros,
            }),
        };
        Self {
            number: fact.number,
            assignment_id: fact.assignment_id.to_string(),
            attempt_id: fact.attempt_id.to_string(),
            at_micros: fact.at_micros,
            kind: Some(kind),
        }
    }
}

impl From<Epoch> for Record {
    fn from(epoch: Epoch) -> Self {
        Self::Epoch {
            timeline: epoch.timeline,
            number: epoch.number,
        }
    }
}

/// Writes a record as one line, with its checksum before it.
pub fn to_line(record: &Record) -> std::io::Result<Vec<u8>> {
    let json = serde_json::to_vec(record)?;
    let mut line = checksum::of(&json).into_bytes();
    line.push(b' ');
    line.extend_from_slice(&json);
    line.push(b'\n');
    Ok(line)
}

/// Reads a line without its end; `None` where it is not whole.
pub fn from_line(line: &[u8]) -> Option<Record> {
    let (sum, json) = (line.get(..8)?, line.get(9..)?);
    if line[8] != b' ' || checksum::of(json).as_bytes() != sum {
        return None;
    }
    serde_json::from_slice(json).ok()
}
