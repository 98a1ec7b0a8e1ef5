//! The check that returns a device of which something was found: a program of the site's, run on the
//! idle device by an unprivileged user for a bounded time. Where it passes, the findings are cleared.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::process::Command;

use super::{Node, environment};
use crate::proc;

/// Wait before a device is probed again whose probe did not pass, and of which nothing new was found.
const AGAIN: Duration = Duration::from_secs(600);

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
                Err(words) => tracing::warn!(
                    device.uuid = uuid,
                    words,
                    "the probe of a device has not passed"
                ),
            }
        }
    }
}

/// The idle devices of which something was found that has not been tried, with its number.
fn due(node: &Node, tried: &BTreeMap<String, (u64, Instant)>) -> Vec<(String, u64)> {
    let gpus = node.gpus.borrow();
    let claims = node.claims();
    let found = gpus.devices.iter().filter(|device| device.finding > 0);
    found
        .filter(|device| !claims.in_use(&device.uuid))
        .filter(|device| node.gate.reason(&device.uuid).is_none())
        .filter(|device| {
            tried
                .get(&device.uuid)
                .is_none_or(|(number, at)| *number < device.finding || at.elapsed() >= AGAIN)
        })
        .map(|device| (device.uuid.clone(), device.finding))
        .collect()
}

async fn probe(node: &Node, uuid: &str) -> Result<(), String> {
    let policy = &node.config.health;
    let (program, arguments) = policy.probe.split_first().ok_or("no probe is set")?;
    let mut command = std::process::Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", environment::SEARCH_PATH)
        .env(environment::VISIBLE, uuid)
        .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A group of its own, so that what it begins ends with it.
        .process_group(0);
    if node.isolated {
        command.uid(policy.probe_uid).gid(policy.probe_uid);
    }
    let mut child = Command::from(command)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid {
        node.gate.admit_probe(pid);
    }
    let ended = tokio::time::timeout(policy.probe_timeout(), child.wait()).await;
    if let Some(pid) = pid {
        proc::signal_group(pid, Signal::SIGKILL);
        if ended.is_err() {
            let _ = child.wait().await;
        }
        node.gate.dismiss_probe(pid);
    }
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("{} ended with {status}", program.display())),
        Ok(Err(error)) => Err(format!(
            "{} cannot be waited for: {error}",
            program.display()
        )),
        Err(_) => Err(format!(
            "{} had not ended after {} s",
            program.display(),
            policy.probe_seconds
        )),
    }
}
