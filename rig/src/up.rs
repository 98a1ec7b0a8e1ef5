//! `./dev up` and `./dev down`: one product per checkout, in the foreground or detached.

mod detach;
mod hold;
mod real_gpus;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::agents_file::{self, Machine};
use crate::cluster::{Cluster, Options};
use crate::paths::Paths;
use crate::ports::Ports;
use crate::stage::Stages;
use crate::up_file::{Pids, UpFile};
use crate::{leftovers, who};

pub use detach::{run_detached, start as start_detached};
use hold::Hold;

/// Free room that a database, logs and jobs' folders need to begin with.
const FREE_BYTES_MIN: u64 = 2 * 1024 * 1024 * 1024;
/// How often the children are looked at.
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// A detached product starts again what ended by itself, but not for ever: so often in all.
const REVIVALS_MAX: u32 = 20;
/// Agents, servers and database each have their own bounds, which add up to less.
const DOWN_BOUND: Duration = Duration::from_secs(120);

/// What `./dev up` was told.
#[derive(Debug, Clone)]
pub struct Up {
    /// The checkout.
    pub checkout: PathBuf,
    /// Whether to forget the state of earlier starts.
    pub fresh: bool,
    /// Whether to leave the machine's own GPUs alone.
    pub simulated: bool,
    /// The port of pages and REST; 0 for free ones.
    pub port: u16,
    /// A list of simulated machines.
    pub agents: Option<PathBuf>,
    /// Time that passed before, in the shell that built all this.
    pub before: Duration,
    /// Whether we run in the background.
    pub detached: bool,
}

/// Starts the product, stays, and stops it on Ctrl-C or SIGTERM. `ready` is called once
/// it answers.
pub async fn run(up: &Up, ready: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let stages = Stages::begin(up.before);
    let paths = Paths::of_checkout(&up.checkout)?;
    make_state(&up.checkout, &paths)?;
    let Some(_hold) = Hold::take(&paths.state)? else {
        return Err(already_running(&up.checkout));
    };
    UpFile::remove(&up.checkout);
    leftovers::kill_all(&paths.state).await?;
    if up.fresh {
        forget(&paths)?;
    }
    let ports = Ports::at(up.port)?;
    ports.check_free()?;
    let machines = machines(up, &paths).await?;
    let options = Options {
        ports,
        paths,
        servers: 1,
        machines,
        bind: "127.0.0.1".to_owned(),
        server_names: Vec::new(),
        timers: Vec::new(),
        agents: Vec::new(),
        durable: true,
        proxied: false,
        checkpoints_shared: false,
        agent_settings: String::new(),
        scratch: false,
        stages,
    };
    let mut cluster = tokio::select! {
        opened = Cluster::open(options) => opened?,
        () = signals.any() => return Ok(()),
    };
    let lived = live(up, &mut cluster, &mut signals, stages, ready).await;
    UpFile::remove(&up.checkout);
    stages.say("stopping");
    let stopped = cluster.stop().await;
    lived.and(stopped)?;
    stages.say("stopped");
    Ok(())
}

async fn live(
    up: &Up,
    cluster: &mut Cluster,
    signals: &mut Signals,
    stages: Stages,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    tokio::select! {
        started = begin(up, cluster) => started?,
        () = signals.any() => return Ok(()),
    }
    stages.say("ready");
    tell(up, cluster)?;
    ready()?;
    tokio::select! {
        ended = watch(up, cluster) => ended,
        () = signals.any() => Ok(()),
    }
}

async fn begin(up: &Up, cluster: &mut Cluster) -> anyhow::Result<()> {
    cluster.bring_up().await?;
    cluster.submit_examples().await?;
    up_file(cluster).await?.write(&up.checkout)
}

async fn up_file(cluster: &Cluster) -> anyhow::Result<UpFile> {
    Ok(UpFile {
        url: cluster.url(),
        agent_url: cluster.agent_url(),
        metrics_url: format!("http://{}/metrics", cluster.servers[0].addresses().metrics),
        ca: cluster.ca(),
        enrol_command: cluster.enrol_command().await?,
        database_url: cluster.postgres.owner_url(crate::postgres::DATABASE),
        users: cluster.secrets.users.clone(),
        token: cluster.admin().token().to_owned(),
        pids: pids(cluster),
        allot: cluster.paths().binary("allot")?,
    })
}

fn pids(cluster: &Cluster) -> Pids {
    Pids {
        postgres: cluster.postgres.pid(),
        server: cluster
            .servers
            .iter()
            .map(crate::server::Server::pid)
            .collect(),
        agents: cluster
            .agents
            .iter()
            .map(|(name, agent)| (name.clone(), agent.pid()))
            .collect(),
    }
}

/// Looks after the children. In the foreground the first that ends by itself is an error;
/// in the background it is started again, as a machine's init system would.
async fn watch(up: &Up, cluster: &mut Cluster) -> anyhow::Result<()> {
    let mut revivals = 0;
    loop {
        tokio::time::sleep(WATCH_EVERY).await;
        if !up.detached {
            cluster.check()?;
            continue;
        }
        if let Some(what) = cluster.revive().await? {
            revivals += 1;
            eprintln!("{what}");
            if revivals > REVIVALS_MAX {
                bail!(
                    "processes of the product have ended by themselves {revivals} times; see above"
                );
            }
            let mut file = UpFile::read(&up.checkout)?;
            file.pids = pids(cluster);
            file.write(&up.checkout)?;
        }
    }
}

fn tell(up: &Up, cluster: &Cluster) -> anyhow::Result<()> {
    println!("\nAllotment is at {}\n", cluster.url());
    println!("  {:<20} {:<10} {:<10} password", "user", "role", "team");
    for user in &cluster.secrets.users {
        let team = user.team.as_deref().unwrap_or("-");
        println!(
            "  {:<20} {:<10} {team:<10} {}",
            user.name, user.role, user.password
        );
    }
    println!(
        "\nan administrator's token for REST: {}",
        cluster.admin().token()
    );
    println!(
        "all of this is in {}",
        UpFile::place(&up.checkout).display()
    );
    if up.detached {
        println!("stop it with: ./dev down");
    } else {
        println!("stop it with Ctrl-C");
    }
    Ok(())
}

/// A second product is never started, nor is the first taken for the one that was asked for:
/// it may have other ports, machines or an older build.
fn already_running(checkout: &Path) -> anyhow::Error {
    match UpFile::read(checkout) {
        Ok(running) => anyhow!(
            "Allotment is running already at {}; stop it first with: ./dev down",
            running.url
        ),
        Err(_) => anyhow!(
            "another ./dev up is starting in this checkout; wait for it, or end it with: ./dev down"
        ),
    }
}

async fn machines(up: &Up, paths: &Paths) -> anyhow::Result<Vec<Machine>> {
    if let Some(file) = &up.agents {
        return agents_file::read(file);
    }
    if !up.simulated
        && let Some(machine) = real_gpus::machine(paths).await?
    {
        return Ok(vec![machine]);
    }
    Ok(agents_file::default_machines())
}

/// Makes the state folder, and links it from `.allotment` when it lies elsewhere.
fn make_state(checkout: &Path, paths: &Paths) -> anyhow::Result<()> {
    let folder = checkout.join(".allotment");
    who::make_folder(&folder, 0o755)?;
    who::make_folder(&paths.state, who::PASSABLE)?;
    let link = folder.join("state");
    if !paths.state.starts_with(&folder)
        && std::fs::read_link(&link).ok().as_deref() != Some(&paths.state)
    {
        // Of another place of this checkout, or never made.
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&paths.state, &link)
            .with_context(|| format!("link {} to the state", link.display()))?;
    }
    let found =
        nix::sys::statvfs::statvfs(&paths.state).context("ask for free room on the disk")?;
    let free = found.blocks_available() * found.fragment_size();
    if free < FREE_BYTES_MIN {
        bail!(
            "the disk with {} has {} MiB free and {} MiB are needed; make room and start again",
            paths.state.display(),
            free >> 20,
            FREE_BYTES_MIN >> 20
        );
    }
    Ok(())
}

/// Removes all but the file that we hold.
fn forget(paths: &Paths) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(&paths.state).context("list the state folder")?;
    for entry in entries {
        let entry = entry.context("list the state folder")?;
        if entry.file_name() == hold::FILE {
            continue;
        }
        let removed = match entry
            .file_type()
            .context("look at the state folder")?
            .is_dir()
        {
            true => std::fs::remove_dir_all(entry.path()),
            false => std::fs::remove_file(entry.path()),
        };
        removed.with_context(|| format!("remove {}", entry.path().display()))?;
    }
    Ok(())
}

/// `./dev down`: ends the product of this checkout, and whatever a killed one left.
pub async fn down(checkout: &Path) -> anyhow::Result<()> {
    let paths = Paths::of_checkout(checkout)?;
    if !paths.state.exists() {
        println!("nothing is running");
        return Ok(());
    }
    let ran = hold::end_holder(&paths.state, DOWN_BOUND).await?;
    leftovers::kill_all(&paths.state).await?;
    UpFile::remove(checkout);
    println!("{}", if ran { "stopped" } else { "nothing is running" });
    Ok(())
}

/// The signals that end a product in order.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
