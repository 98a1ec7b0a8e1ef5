//! What an agent does before anything else: ends what did not survive a restart of the
//! machine, and clears away what belongs to nobody.

use std::fs;
use std::path::Path;
use std::time::Duration;

use domain::ids::AssignmentId;
use nix::sys::signal::Signal;

use super::{Node, launch, workdir, worker};
use crate::journal::{Entry, FactKind, JournalError, Kept};
use crate::proc::Process;

/// Wait between two rounds of killing; nothing else goes on at that time.
const KILL_WAIT: Duration = Duration::from_millis(20);

/// Brings journal and disk to where tasks can take over; returns what is to be adopted.
pub async fn recover(node: &Node, rebooted: bool) -> Result<Vec<Kept>, JournalError> {
    let kept: Vec<Kept> = node.journal.state().kept.values().cloned().collect();
    if rebooted {
        for lost in &kept {
            bury_after_reboot(node, lost).await?;
        }
    }
    let adopted = if rebooted { Vec::new() } else { kept };
    clear_strays(node, &adopted);
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

/// Removes folders of assignments that the journal does not know, and ends what runs there.
fn clear_strays(node: &Node, adopted: &[Kept]) {
    let known = |id: AssignmentId| adopted.iter().any(|kept| kept.assignment_id == id);
    for id in ids_in(&node.folders.runs()).filter(|id| !known(*id)) {
        let run = node.folders.run(id);
        // From here on no supervisor can begin; one that had begun is ended.
        let void = run.claim_as_void().unwrap_or(false);
        if !void && let Ok(Some(claim)) = run.claim() {
            if let Ok(Some(process)) = Process::find(claim.pid, claim.start_ticks) {
                tracing::warn!(assignment.id = %id, "a job that the journal does not know is ended");
                process.signal(Signal::SIGKILL);
            }
            while launch::kill_orphans(node, &run, &id.to_string()) {
                std::thread::sleep(KILL_WAIT);
            }
        }
        warn_on_error(id, workdir::clear(run.path()));
    }
    for id in ids_in(&node.folders.jobs()).filter(|id| !known(*id)) {
        warn_on_error(id, workdir::clear(&node.folders.job(id)));
    }
}

fn ids_in(folder: &Path) -> impl Iterator<Item = AssignmentId> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn warn_on_error(id: AssignmentId, cleared: std::io::Result<()>) {
    if let Err(error) = cleared {
        tracing::warn!(assignment.id = %id, %error, "a stray folder is left behind");
    }
}
