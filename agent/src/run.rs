//! A running agent, put together.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use domain::ids::IncarnationId;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::config::Config;
pub use crate::connection::Retired;
use crate::connection::{Connector, Keeper};
use crate::folders::Folders;
use crate::gpus::health::Health;
use crate::gpus::layout::Layout;
use crate::inventory::{Machine, NO_ISOLATION};
use crate::journal::Journal;
use crate::lease::Lease;
use crate::node::walls::Walls;
use crate::node::{self, Node, Parts};
use crate::supervise::cgroup::Cgroups;
use crate::{checkpoints, exporter, gpus, proc, prune};

/// Longest wait for the first look at the GPUs before the server is told what is known
/// from before, as suspect: a driver that loads takes some seconds, and a node that says nothing
/// for longer runs into its lease.
const FIRST_READING_TIMEOUT: Duration = Duration::from_secs(10);
/// Desired sets that wait for the reconciler; it is never long behind.
const COMMANDS_MAX: usize = 16;

/// Runs an agent until it is told to leave; its jobs stay. Fails with
/// [`Retired`] when its node is retired.
pub async fn run(config: Config) -> anyhow::Result<()> {
    config.check_here()?;
    let layout = Layout::of(&config)?;
    let isolated = nix::unistd::geteuid().is_root();
    if !isolated && !config.allow_unisolated {
        bail!(
            "the agent is not root, so that jobs of all teams would run as one user: run it as root, or accept that with --allow-unisolated"
        );
    }
    let scraped = match config.metrics_listen {
        Some(address) => Some(exporter::open(address).await?),
        None => None,
    };
    let folders = Folders::prepare(&config.state_dir, config.checkpoint_root.as_deref())?;
    let _lock = folders.lock()?;
    folders.check_unwritable()?;
    if isolated {
        folders.check_passable()?;
    } else {
        tracing::warn!("{NO_ISOLATION}");
    }
    let keeper = Arc::new(Keeper::load(&folders, config.server.clone())?);
    let boot_id = proc::boot_id().context("the kernel's boot id cannot be read")?;
    let (journal, rebooted) = Journal::open(&folders.journal(), &boot_id)?;
    let lease = Lease::open(&folders.lease(), &boot_id).context("the lease cannot be kept")?;
    let (cgroups, warning) = Cgroups::detect(&config.cgroup_parent);
    let (walls, missing) = Walls::look(&config, isolated, &cgroups);
    let together = cgroups.bound_together(config.jobs_memory_mib());
    let warnings = warning.into_iter().chain(missing).chain(together).collect();
    let identity = keeper.identity().await;
    let health = Arc::new(Health::load(
        config.health.clone(),
        folders.health(),
        &boot_id,
    ));
    let machine = Machine::look(&config, identity.server(), isolated, (&cgroups, warnings));
    let gpus = gpus::watch(
        config.nvml_library.clone(),
        folders.known_devices(),
        config.inventory_pace(),
        Arc::clone(&health),
    );

    let node = Arc::new(Node::new(Parts {
        config: config.clone(),
        folders: folders.clone(),
        journal,
        gpus: gpus.clone(),
        health,
        lease,
        cgroups,
        layout,
        walls,
    }));
    let asked = Arc::downgrade(&node);
    node.health.ask_teams(move |uuid| {
        let node = asked.upgrade();
        node.map_or_else(Vec::new, |node| node.teams_on(uuid))
    });
    // Before anything is adopted or told: a job that waits here for its container is not to be refused.
    let seen = node::containers::look(&config.containers, isolated).await;
    node.containers.send_replace(seen);
    let adopted = node::recover(&node, rebooted).await?;
    tracing::info!(adopted = adopted.len(), rebooted, "agent started");
    tokio::spawn(node::devices::tidy(Arc::clone(&node), adopted.clone()));
    tokio::spawn(node::keep_layout(Arc::clone(&node)));
    tokio::spawn(node::watch_memory(Arc::clone(&node)));
    tokio::spawn(node::watch_gate(Arc::clone(&node)));
    tokio::spawn(node::watch_disk(Arc::clone(&node)));
    tokio::spawn(node::watch_containers(Arc::clone(&node)));
    tokio::spawn(node::watch_probes(Arc::clone(&node)));
    tokio::spawn(node::watch_samples(Arc::clone(&node)));
    if let Some(listener) = scraped {
        tokio::spawn(exporter::serve(listener, Arc::clone(&node.board)));
    }
    let (commands, received) = mpsc::channel(COMMANDS_MAX);
    let reconciler = tokio::spawn(node::reconcile(Arc::clone(&node), adopted, received));
    tokio::spawn(Arc::clone(&keeper).run());
    tokio::spawn(prune::run(config, folders));
    tokio::spawn(checkpoints::run(Arc::clone(&node)));

    // What was looked at is told as it is; before that devices are suspect and take no new work.
    let mut first = gpus;
    let read = async { first.wait_for(|gpus| gpus.read).await.is_ok() };
    if !matches!(
        tokio::time::timeout(FIRST_READING_TIMEOUT, read).await,
        Ok(true)
    ) {
        tracing::warn!("the GPUs have not answered yet");
    }
    let connector = Connector {
        node,
        machine,
        keeper,
        boot_id,
        incarnation: IncarnationId::new(),
        commands,
    };
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    tokio::select! {
        retired = connector.run() => return Err(retired.into()),
        ended = reconciler => ended.context("the reconciler failed")?,
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    tracing::info!("agent leaves; its jobs go on");
    Ok(())
}
