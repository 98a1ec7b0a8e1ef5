//! Who held which device when, as the journal tells it: evidence for those who check that
//! no device ever had two holders.

use std::collections::BTreeMap;
use std::path::Path;

use domain::ids::{AssignmentId, AttemptId};
use serde::Serialize;

use super::record::{FactKind, KeptDevice, Record};
use super::{JournalError, file};

/// One assignment's time on a node, by the node's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holding {
    /// The assignment.
    pub assignment_id: AssignmentId,
    /// Its attempt.
    pub attempt_id: AttemptId,
    /// What it held.
    pub devices: Vec<KeptDevice>,
    /// The highest epoch that the agent had seen when it took it; absent before the first.
    pub epoch: Option<SeenEpoch>,
    /// From when.
    pub from_micros: i64,
    /// Until when; `None` while it holds.
    pub until_micros: Option<i64>,
    /// How many times its process was started; more than once is a fault.
    pub starts: u32,
    /// How many ends were told; more than one is a fault.
    pub ends: u32,
}

/// An epoch, as the agent saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SeenEpoch {
    /// The database's timeline.
    pub timeline: i64,
    /// The leader's number.
    pub number: i64,
}

/// Reads the holdings that a journal's file tells of, in order of their beginning. The
/// agent may be running.
pub fn history(path: &Path) -> Result<Vec<Holding>, JournalError> {
    let content = std::fs::read(path).map_err(|source| JournalError::File {
        path: path.to_owned(),
        source,
    })?;
    let (records, _) = file::read_lines(&content, path)?;
    let mut holdings: BTreeMap<AssignmentId, Holding> = BTreeMap::new();
    let mut epoch = None;
    for record in records {
        match record {
            Record::Epoch { timeline, number } => epoch = Some(SeenEpoch { timeline, number }),
            Record::Accepted(kept) => {
                holdings.entry(kept.assignment_id).or_insert(Holding {
                    assignment_id: kept.assignment_id,
                    attempt_id: kept.attempt_id,
                    devices: kept.devices,
                    epoch,
                    from_micros: kept.at_micros,
                    until_micros: None,
                    starts: 0,
                    ends: 0,
                });
            }
            Record::Fact(fact) => {
                if let Some(holding) = holdings.get_mut(&fact.assignment_id) {
                    match fact.kind {
                        FactKind::Started { .. } => holding.starts += 1,
                        FactKind::Exited { .. } => holding.ends += 1,
                        FactKind::Released => {
                            holding.until_micros.get_or_insert(fact.at_micros);
                        }
                        FactKind::Accepted | FactKind::Refused { .. } => {}
                    }
                }
            }
            _ => {}
        }
    }
    let mut ordered: Vec<Holding> = holdings.into_values().collect();
    ordered.sort_by_key(|holding| (holding.from_micros, holding.assignment_id));
    Ok(ordered)
}
