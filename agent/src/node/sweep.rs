//! What an agent does before anything else: ends what did not survive a restart of the
//! machine, and clears away what belongs to nobody.

use std::fs;
use std::io::ErrorKind::{InvalidData, UnexpectedEof};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use domain::ids::AssignmentId;
use nix::sys::signal::Signal;

use super::{Node, clear, launch, wipe, worker};
use crate::journal::{Entry, FactKind, JournalError, Kept};
use crate::proc::Process;
use crate::removal;
use crate::runs::RunFolder;

/// Wait between two rounds of killing; nothing else goes on at that time.
const KILL_WAIT: Duration = Duration::from_millis(20);
/// Such rounds before the agent starts all the same, in all five seconds: what the kernel lets end
/// is gone within one, and what hangs in a driver may hang for days.
const KILL_ROUNDS: u32 = 250;
/// Wait between two rounds from then on, beside all else.
const KILL_WAIT_LONG: Duration = Duration::from_secs(5);

/// Brings journal and disk to where tasks can take over; returns what is to be adopted.
pub async fn recover(node: &Arc<Node>, rebooted: bool) -> Result<Vec<Kept>, JournalError> {
    let kept: Vec<Kept> = node.journal.state().kept.values().cloned().collect();
    if rebooted {
        for lost in &kept {
            bury_after_reboot(node, lost).await?;
        }
    }
    let adopted = if rebooted { Vec::new() } else { kept };
    let (of, known) = (Arc::clone(node), adopted.clone());
    let strays = tokio::task::spawn_blocking(move || end_strays(&of, &known)).await;
    let strays = strays.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    for id in strays.stubborn {
        tokio::spawn(outlast(Arc::clone(node), id));
    }
    for id in strays.left {
        // What is large is removed beside all else.
        tokio::spawn(clear::clear(id, node.folders.job(id)));
    }
    Ok(adopted)
}

/// No process survives a restart of the machine, and nothing that ran is run again.
async fn bury_after_reboot(node: &Node, lost: &Kept) -> Result<(), JournalError> {
    let (id, attempt) = (lost.assignment_id, lost.attempt_id);
    let mut entries = Vec::new();
    if !lost.ended {
        // An end that was written down before the restart is the truth.
        let known = node.folders.run(id).exit().ok().flatten();
        let kind = match known.filter(|exit| exit.refused.is_none()) {
            Some(exit) => FactKind::Exited {
                code: exit.code,
                signal: exit.signal,
                out_of_memory: exit.out_of_memory,
                asked: exit.asked,
                reason: String::new(),
                message: exit.message,
            },
            None => worker::lost("the machine was restarted"),
        };
        entries.push(Entry::fact(id, attempt, kind));
    }
    entries.push(Entry::fact(id, attempt, FactKind::Released));
    node.journal.append(entries).await
}

/// Assignments that the journal does not know.
struct Strays {
    /// Those that did not end.
    stubborn: Vec<AssignmentId>,
    /// Those of which nothing but a folder is left.
    left: Vec<AssignmentId>,
}

/// Ends what runs of assignments that the journal does not know.
fn end_strays(node: &Node, adopted: &[Kept]) -> Strays {
    let mut stubborn = Vec::new();
    let known = |id: AssignmentId| adopted.iter().any(|kept| kept.assignment_id == id);
    for id in ids_in(&node.folders.runs()).filter(|id| !known(*id)) {
        let run = node.folders.run(id);
        // From here on no supervisor can begin; one that had begun is ended.
        let void = run.claim_as_void().unwrap_or(false);
        if !void {
            tracing::warn!(assignment.id = %id, "a job that the journal does not know is ended");
        }
        if !void && !within_rounds(KILL_WAIT, || end_stray(node, id, &run)) {
            tracing::warn!(
                assignment.id = %id,
                "a job that the journal does not know does not end, perhaps in the kernel (`ps -eo pid,stat,args`, state D); the agent starts all the same and goes on ending it"
            );
            stubborn.push(id);
            continue;
        }
        forget(node, id, &run);
    }
    let lasts = |id: &AssignmentId| stubborn.contains(id);
    let left = ids_in(&node.folders.jobs()).filter(|id| !known(*id) && !lasts(id));
    let left = left.collect();
    Strays { stubborn, left }
}

/// Removes what an ended run has left but its job's folder: that may be large.
fn forget(node: &Node, id: AssignmentId, run: &RunFolder) {
    node.cgroups.group(&id.to_string()).remove();
    let uid = run.orders().ok().flatten().and_then(|orders| orders.uid);
    warn_on_error(id, uid.map_or(Ok(()), |uid| wipe::wipe(uid).map(drop)));
    warn_on_error(id, removal::remove(run.path()));
}

/// Kills what is left of a run that the journal does not know; true once nothing is.
fn end_stray(node: &Node, id: AssignmentId, run: &RunFolder) -> bool {
    let supervisor = match run.claim() {
        Ok(Some(claim)) if claim.pid != 0 => Process::find(claim.pid, claim.start_ticks),
        // A power loss left half a file; what it named did not survive that either.
        Err(error) if matches!(error.kind(), InvalidData | UnexpectedEof) => Ok(None),
        Ok(_) => Ok(None),
        Err(error) => Err(error),
    };
    if let Ok(Some(process)) = &supervisor {
        process.signal(Signal::SIGKILL);
    }
    let left = launch::kill_orphans(node, run, &id.to_string());
    !left && matches!(supervisor, Ok(None))
}

/// Tries a bounded number of times; whether it was done at last.
fn within_rounds(wait: Duration, mut done: impl FnMut() -> bool) -> bool {
    for _ in 1..KILL_ROUNDS {
        if done() {
            return true;
        }
        std::thread::sleep(wait);
    }
    done()
}

/// Goes on ending a run that did not end when the agent started, then clears its folders away.
async fn outlast(node: Arc<Node>, id: AssignmentId) {
    let run = node.folders.run(id);
    while !end_stray(&node, id, &run) {
        tokio::time::sleep(KILL_WAIT_LONG).await;
    }
    let (of, ended) = (Arc::clone(&node), run.clone());
    let forgotten = tokio::task::spawn_blocking(move || forget(&of, id, &ended)).await;
    forgotten.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    clear::clear(id, node.folders.job(id)).await;
}

fn ids_in(folder: &Path) -> impl Iterator<Item = AssignmentId> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn warn_on_error(id: AssignmentId, cleared: std::io::Result<()>) {
    if let Err(error) = cleared {
        tracing::warn!(assignment.id = %id, %error, "something of a stray run is left behind");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_keeps_the_agent_for_so_many_rounds_and_no_longer() {
        let mut rounds = 0;
        let ended = within_rounds(Duration::ZERO, || {
            rounds += 1;
            false
        });
        assert!(!ended);
        assert_eq!(rounds, KILL_ROUNDS);
    }

    #[test]
    fn what_ends_is_waited_for_no_longer_than_that() {
        let mut rounds = 0;
        let ended = within_rounds(Duration::ZERO, || {
            rounds += 1;
            rounds == 3
        });
        assert!(ended);
        assert_eq!(rounds, 3);
    }
}
