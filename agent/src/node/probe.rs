//! The check that returns a device of which something was found: a program of the site's, run on the
//! idle device by an unprivileged user for a bounded time, behind the walls that a job has. Where it passes, the
//! findings are cleared; where it does not, what it said last stands beside them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::error::printable;
use domain::ids::AssignmentId;
use domain::quantity::MILLI;
use domain::sharing::SharingMode;

use super::devices::View;
use super::launch::{self, Supervisor};
use super::{Node, clear, environment, walls, workdir};
use crate::files::ensure_folder;
use crate::journal::KeptDevice;
use crate::runs::{Directory, Orders, RunFolder};
use crate::supervise::cgroup::Limits;
use crate::supervise::private::SharedMemory;
use crate::{logs, removal};

/// Wait before a device is probed again whose probe did not pass, and of which nothing new was found.
const AGAIN: Duration = Duration::from_secs(600);
/// How much of a probe's output is kept while it runs.
const LOG_BYTES_MAX: u64 = 1024 * 1024;
/// How much of the end of its output is told: a reason is a sentence or two.
const TAIL_CHARS_MAX: usize = 200;
/// How often it is looked whether the last processes of a probe are gone.
const EMPTY_CHECK: Duration = Duration::from_millis(20);

/// Probes devices until the agent ends.
pub async fn watch(node: Arc<Node>) {
    if node.config.health.probe.is_empty() {
        return;
    }
    let mut tick = tokio::time::interval(node.config.inventory_pace());
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut tried: BTreeMap<String, (u64, Instant)> = BTreeMap::new();
    loop {
        tick.tick().await;
        for (uuid, finding) in due(&node, &tried) {
            tried.insert(uuid.clone(), (finding, Instant::now()));
            match probe(&node, &uuid).await {
                Ok(()) => {
                    tracing::info!(device.uuid = uuid, "the probe of a device has passed");
                    node.health.clear(&uuid, finding);
                }
                Err(words) => {
                    tracing::warn!(
                        device.uuid = uuid,
                        words,
                        "the probe of a device has not passed"
                    );
                    node.health.note_probe(&uuid, &words);
                }
            }
        }
    }
}

/// The idle devices of which something was found that has not been tried, with its number.
fn due(node: &Node, tried: &BTreeMap<String, (u64, Instant)>) -> Vec<(String, u64)> {
    let gpus = node.gpus.borrow();
    let claims = node.claims();
    let newest = gpus.devices.iter().filter_map(|device| {
        let numbers = device.findings.iter().map(|finding| finding.number);
        Some((device.uuid.clone(), numbers.max()?))
    });
    newest
        .filter(|(uuid, _)| !claims.in_use(uuid))
        .filter(|(uuid, _)| node.gate.reason(uuid).is_none())
        .filter(|(uuid, finding)| {
            tried
                .get(uuid)
                .is_none_or(|(number, at)| number < finding || at.elapsed() >= AGAIN)
        })
        .collect()
}

/// Runs the probe on a device to its end, whatever that is, and clears away what it left.
async fn probe(node: &Arc<Node>, uuid: &str) -> Result<(), String> {
    let id = AssignmentId::new();
    node.gate.admit_probe(id);
    let passed = run(node, id, uuid).await;
    let run = node.folders.run(id);
    while launch::kill_orphans(node, &run, &id.to_string()) {
        tokio::time::sleep(EMPTY_CHECK).await;
    }
    node.cgroups.group(&id.to_string()).remove();
    node.gate.dismiss_probe(id);
    for left in [node.folders.job(id), run.path().to_owned()] {
        clear::clear(id, left).await;
    }
    if let Err(error) = removal::remove(&node.folders.log(id)) {
        tracing::warn!(%error, "the output of a probe is left behind");
    }
    passed
}

async fn run(node: &Arc<Node>, id: AssignmentId, uuid: &str) -> Result<(), String> {
    let policy = &node.config.health;
    let program = policy.probe.first().ok_or("no probe is set")?.display();
    let failed = |error: io::Error| format!("{program} cannot be started: {error}");
    let orders = orders(node, id, uuid).await?;
    let run = node.folders.run(id);
    run.create().map_err(failed)?;
    run.write_orders(&orders).map_err(failed)?;
    launch::launch(&run).await.map_err(failed)?;
    let in_time = match Supervisor::find(&run).map_err(failed)? {
        None => true,
        Some(supervisor) => {
            let ended = tokio::time::timeout(policy.probe_timeout(), supervisor.ended()).await;
            if ended.is_err() {
                supervisor.stop(&run, 0).map_err(failed)?;
                supervisor.ended().await;
            }
            ended.is_ok()
        }
    };
    let verdict = match in_time {
        true => ended(&run)?,
        false => Some(format!("had not ended after {} s", policy.probe_seconds)),
    };
    match verdict {
        None => Ok(()),
        Some(how) => Err(match tail(&orders.log) {
            Some(said) => format!("its probe {how}: {said}"),
            None => format!("its probe {how}"),
        }),
    }
}

/// How a probe ended; nothing where it passed.
fn ended(run: &RunFolder) -> Result<Option<String>, String> {
    let exit = run
        .exit()
        .map_err(|error| format!("its probe's end cannot be read: {error}"))?;
    let exit = exit.ok_or("its probe ended without a word")?;
    if let Some(refusal) = exit.refused {
        return Err(format!("its probe could not run: {}", refusal.message));
    }
    Ok(match (exit.code, exit.signal) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("ended with {code}")),
        (None, Some(signal)) => Some(format!("was ended by signal {signal}")),
        (None, None) => Some("was ended".to_owned()),
    })
}

/// The end of what a probe said, on one line.
fn tail(log: &Path) -> Option<String> {
    // A character has four bytes at the most.
    let end = logs::cursor::tail(log, TAIL_CHARS_MAX * 4).ok()?;
    let text = String::from_utf8_lossy(&end);
    let words: Vec<&str> = text.split_whitespace().collect();
    let line: Vec<char> = words.join(" ").chars().filter(|c| printable(*c)).collect();
    let from = line.len().saturating_sub(TAIL_CHARS_MAX);
    let told: String = line[from..].iter().collect();
    (!told.is_empty()).then_some(told)
}

fn uid(node: &Node) -> Option<u32> {
    node.isolated.then_some(node.config.health.probe_uid)
}

/// What a supervisor does for a probe: as for a job on the whole of the device.
async fn orders(node: &Arc<Node>, id: AssignmentId, uuid: &str) -> Result<Orders, String> {
    let policy = &node.config.health;
    let share = KeptDevice {
        uuid: uuid.to_owned(),
        mode: SharingMode::Exclusive,
        gpus_milli: MILLI,
        memory_mib: 0,
        mig: None,
        team: None,
    };
    let view = View {
        names: vec![uuid.to_owned()],
        ..View::default()
    };
    let devices = walls::device_files(node, std::slice::from_ref(&share), &view).await;
    let devices = devices.map_err(|refusal| refusal.message)?;
    let owner = uid(node);
    let folder = node.folders.job(id);
    let [work, temporary, lasting] = ["work", "tmp", "var-tmp"].map(|name| folder.join(name));
    ensure_folder(&folder, 0o711)
        .and_then(|()| workdir::own_folders(&[&work, &temporary, &lasting], owner))
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    let memory = SharedMemory { mib_max: 0 };
    let program = policy.probe.first().and_then(|program| program.parent());
    let private = walls::private_in(node, [&temporary, &lasting], Some(memory), program);
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let temporary = match private {
        Some(_) => walls::TEMPORARY.to_owned(),
        None => text(&temporary),
    };
    let environment = [
        ("PATH", environment::SEARCH_PATH.to_owned()),
        ("HOME", text(&work)),
        ("TMPDIR", temporary),
        (environment::VISIBLE, uuid.to_owned()),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
    ];
    Ok(Orders {
        assignment_id: id.to_string(),
        command: policy.probe.iter().map(text).collect(),
        environment: environment
            .map(|(key, value)| (key.to_owned(), value))
            .into(),
        directory: Directory {
            root: work,
            below: PathBuf::from("."),
        },
        uid: owner,
        mark: owner.map(|_| launch::free_mark(&id.to_string())),
        // It is the site's own: what ends it is its time.
        limits: Limits {
            cpus_milli: 0,
            memory_mib: 0,
        },
        cgroups: node.cgroups.clone(),
        devices,
        container: None,
        sharing: None,
        private,
        log: node.folders.log(id),
        log_bytes_max: LOG_BYTES_MAX,
        // Where the agent is gone, its end comes with the node's lease.
        lease: Some(node.folders.lease()),
        grace_ms: 0,
    })
}
