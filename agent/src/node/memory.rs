//! Watches what jobs hold of the memory of devices that they share: where processes take turns, the
//! driver bounds none. Who holds more than his share is warned, and stopped when that lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use domain::ids::AssignmentId;

use super::launch::Supervisor;
use super::{Node, gate};
use crate::gpus::uses::Use;
use crate::journal::KeptDevice;
use crate::proc;
use crate::runs::{Over, RunFolder, Warning};

/// Since when an assignment holds more than its share, and whether it was stopped for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Excess {
    since: Instant,
    stopped: bool,
}

/// What is to be done about an assignment after a look.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Warn,
    Stop,
}

/// Watches until the agent ends.
pub async fn watch(node: Arc<Node>) {
    let mut tick = tokio::time::interval(node.config.inventory_pace());
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut excesses = BTreeMap::new();
    loop {
        tick.tick().await;
        let shares = node.claims().bounded();
        let held: BTreeSet<AssignmentId> = shares.iter().map(|(id, _)| *id).collect();
        excesses.retain(|id, _| held.contains(id));
        if shares.is_empty() {
            continue;
        }
        let devices: BTreeSet<String> =
            shares.iter().map(|(_, share)| share.uuid.clone()).collect();
        let uses = gate::uses(&node, devices.into_iter().collect()).await;
        for (id, share) in &shares {
            // What does not answer says nothing of anybody's memory.
            let Some(uses) = uses.get(&share.uuid) else {
                continue;
            };
            let run = node.folders.run(*id);
            let held_mib = held_mib(&pids(&run), &share.uuid, uses);
            let over = held_mib > share.memory_mib;
            let grace = node.config.memory_grace();
            match judge(&mut excesses, *id, over, grace, Instant::now()) {
                Step::Nothing => {}
                Step::Warn => warn(&node, *id, &words(share, held_mib), grace),
                Step::Stop => stop(&node, *id, &run, words(share, held_mib)),
            }
        }
    }
}

/// What to do, by what was seen before.
fn judge(
    excesses: &mut BTreeMap<AssignmentId, Excess>,
    id: AssignmentId,
    over: bool,
    grace: Duration,
    now: Instant,
) -> Step {
    if !over {
        // Whoever was stopped stays so.
        if excesses.get(&id).is_some_and(|excess| !excess.stopped) {
            excesses.remove(&id);
        }
        return Step::Nothing;
    }
    let Some(excess) = excesses.get_mut(&id) else {
        let stopped = false;
        excesses.insert(
            id,
            Excess {
                since: now,
                stopped,
            },
        );
        return Step::Warn;
    };
    if excess.stopped || now.saturating_duration_since(excess.since) < grace {
        return Step::Nothing;
    }
    excess.stopped = true;
    Step::Stop
}

fn words(share: &KeptDevice, held_mib: i64) -> String {
    format!(
        "it holds {held_mib} MiB of the memory of device {}, more than its share of {} MiB",
        share.uuid, share.memory_mib
    )
}

/// Tells the job's owner in its log, which is where he looks.
fn warn(node: &Node, id: AssignmentId, words: &str, grace: Duration) {
    tracing::warn!(assignment.id = %id, "{words}");
    let run = node.folders.run(id);
    let secs = grace.as_secs();
    let line = format!("allotment: {words}; it is stopped if it still does in {secs} s");
    let told = run
        .write_warning(&Warning { line })
        .and_then(|()| match Supervisor::find(&run)? {
            Some(supervisor) => {
                supervisor.hint();
                Ok(())
            }
            None => Ok(()),
        });
    if let Err(error) = told {
        tracing::warn!(assignment.id = %id, %error, "a job cannot be warned in its log");
    }
}

fn stop(node: &Node, id: AssignmentId, run: &RunFolder, message: String) {
    tracing::warn!(assignment.id = %id, "{message}: it is stopped");
    let grace_ms = node.kill_grace_ms.load(Ordering::Relaxed);
    let stopped = run
        .write_over(&Over { message })
        .and_then(|()| match Supervisor::find(run)? {
            Some(supervisor) => supervisor.stop(run, grace_ms),
            None => Ok(()),
        });
    if let Err(error) = stopped {
        tracing::error!(assignment.id = %id, %error, "a job that holds too much cannot be stopped");
    }
}

/// The processes of a run: what descends from its supervisor, or bears its mark.
pub(super) fn pids(run: &RunFolder) -> BTreeSet<i32> {
    let mut pids = BTreeSet::new();
    if let Ok(Some(claim)) = run.claim() {
        pids.extend(proc::descendants(claim.pid).iter().map(|seen| seen.pid));
    }
    if let Ok(Some(orders)) = run.orders()
        && let Some(mark) = orders.mark
    {
        pids.extend(proc::bearers(mark).iter().map(|seen| seen.pid));
    }
    pids
}

fn held_mib(pids: &BTreeSet<i32>, uuid: &str, uses: &[Use]) -> i64 {
    let own = uses.iter().filter(|used| used.uuid == uuid);
    own.filter(|used| i32::try_from(used.pid).is_ok_and(|pid| pids.contains(&pid)))
        .map(|used| used.memory_mib)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_too_much_is_warned_once_and_stopped_once_when_it_lasts() {
        let (id, grace, begin) = (AssignmentId::new(), Duration::from_secs(30), Instant::now());
        let mut excesses = BTreeMap::new();
        let mut at = |secs, over| {
            let now = begin + Duration::from_secs(secs);
            judge(&mut excesses, id, over, grace, now)
        };
        assert_eq!(at(0, true), Step::Warn);
        assert_eq!(at(10, true), Step::Nothing);
        assert_eq!(at(20, false), Step::Nothing, "it has let go");
        assert_eq!(at(25, true), Step::Warn, "and begins anew");
        assert_eq!(at(50, true), Step::Nothing);
        assert_eq!(at(55, true), Step::Stop);
        assert_eq!(at(60, true), Step::Nothing, "it is on its way");
        assert_eq!(at(61, false), Step::Nothing);
        assert_eq!(at(62, true), Step::Nothing);
    }

    #[test]
    fn what_others_hold_and_on_other_devices_is_not_counted() {
        let used = |uuid: &str, pid, memory_mib| Use {
            instance: None,
            uuid: uuid.to_owned(),
            pid,
            memory_mib,
        };
        let uses = [
            used("GPU-1", 7, 100),
            used("GPU-1", 8, 50),
            used("GPU-2", 7, 900),
            used("GPU-1", 9, 800),
        ];
        assert_eq!(held_mib(&BTreeSet::from([7, 8]), "GPU-1", &uses), 150);
    }
}
