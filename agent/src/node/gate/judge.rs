//! Whether what is seen on a device keeps it from being offered.

use std::collections::BTreeSet;

use super::super::Node;
use super::owners::{Owner, Owners};
use super::{Occupied, Part, Reason, lock};
use crate::gpus::uses::Use;
use crate::proc;

/// Processes that are named of a device; more help nobody.
const NAMED_MAX: usize = 4;
/// How the programs of MPS begin, as the kernel cuts names.
const MPS_PROGRAMS: &str = "nvidia-cuda-mps";
/// So many readings must have been judged after an error before it is theirs to tell of it: one may have been
/// under way.
const READINGS_AFTER: u64 = 2;

/// How a device that is judged was left.
pub(super) struct Left<'a> {
    /// What of it is judged.
    pub(super) part: &'a Part,
    /// Whether nobody has any of it.
    pub(super) idle: bool,
    /// Whether somebody is about to release it.
    pub(super) leaving: bool,
}

impl Left<'_> {
    /// Whether a use is of what is judged. Of a process whose instance its driver does not tell nobody knows.
    fn concerns(&self, seen: &Occupied, used: &Use) -> bool {
        let Part::Instances(slices) = self.part else {
            return true;
        };
        let mut instances = seen.instances.iter();
        let of = instances.find(|instance| used.instance == Some(instance.id));
        of.is_some_and(|of| slices.iter().any(|slice| of.slice.overlaps(slice)))
    }
}

/// Why a device is to be kept out, if it is; `unseen` takes the processes that no list of the kernel's has.
pub(super) fn judge(
    node: &Node,
    owners: &Owners,
    (uuid, seen): (&str, &Occupied),
    left: &Left<'_>,
    unseen: &mut BTreeSet<(String, u32)>,
) -> Option<Reason> {
    if left.leaving
        && let Some(error) = node.health.error_of(uuid, &seen.signs)
    {
        return Some(Reason {
            until_reading: Some(node.health.judged() + READINGS_AFTER),
            ..Reason::plain(error)
        });
    }
    let mut strangers: Vec<(&str, String)> = Vec::new();
    for used in seen.uses.iter().filter(|used| left.concerns(seen, used)) {
        let pid = i32::try_from(used.pid).unwrap_or(i32::MAX);
        let Some(program) = proc::name(pid) else {
            let key = (uuid.to_owned(), used.pid);
            if lock(&node.gate.unseen).contains(&key) || left.leaving {
                strangers.push((
                    "that cannot be seen",
                    named(used, "which cannot be seen", None),
                ));
            }
            unseen.insert(key);
            continue;
        };
        let (words, detail) = match owners.of_process(pid) {
            Owner::Agent => continue,
            Owner::Assignment(id) if node.claims().holds(id, uuid) => {
                if !left.idle && !node.claims().has_left(id) {
                    continue;
                }
                (
                    "of a job that has left",
                    "of a job that has left".to_owned(),
                )
            }
            Owner::Assignment(id) => (
                "of a job that was not given it",
                format!("of assignment {id}, which was not given it"),
            ),
            Owner::Nobody if allowed(node, uuid, pid, &program) => continue,
            Owner::Nobody => ("that is no job's", "which is no job's".to_owned()),
        };
        strangers.push((words, named(used, &detail, Some(&program))));
    }
    if let Some(reason) = of_strangers(strangers) {
        return Some(reason);
    }
    let used = seen
        .used_mib
        .filter(|_| left.idle && seen.uses.is_empty())?;
    (used > node.config.health.idle_memory_mib_max).then(|| {
        Reason::plain(format!(
            "{used} MiB of its memory are in use, by no process that is known"
        ))
    })
}

fn named(used: &Use, whose: &str, program: Option<&str>) -> String {
    let program = program.map_or_else(String::new, |program| format!(" ({program})"));
    let (pid, mib) = (used.pid, used.memory_mib);
    format!("process {pid}{program}, {whose}, holds {mib} MiB of it")
}

/// The reason that processes are on a device: for everybody what kinds there are, and who they are for those
/// who run the platform.
fn of_strangers(strangers: Vec<(&str, String)>) -> Option<Reason> {
    if strangers.is_empty() {
        return None;
    }
    let kinds: BTreeSet<&str> = strangers.iter().map(|(words, _)| *words).collect();
    let kinds = kinds
        .into_iter()
        .map(|kind| format!("a process {kind} is on it"));
    let more = strangers.len().saturating_sub(NAMED_MAX);
    let named = strangers.into_iter().take(NAMED_MAX);
    let mut named: Vec<String> = named.map(|(_, named)| named).collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    Some(Reason {
        words: kinds.collect::<Vec<_>>().join(", "),
        detail: named.join(", "),
        until_reading: None,
    })
}

/// Whether a program of the machine's may be on a device beside jobs. Its name is its own to choose, so
/// that it must be root's; MPS's run as the team that shares the device.
fn allowed(node: &Node, uuid: &str, pid: i32, program: &str) -> bool {
    let listed = node.config.health.allowed_programs.iter();
    let roots = proc::user(pid) == Some(0) && listed.clone().any(|allowed| allowed == program);
    let shares = node.claims().shared_by_mps(uuid)
        || node.mps.places().iter().any(|place| place.uuid == uuid);
    roots || (program.starts_with(MPS_PROGRAMS) && shares)
}
