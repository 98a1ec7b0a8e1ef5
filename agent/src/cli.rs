//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use agent::config::{Config, STATE_DIR};
use agent::enrol::{self, Enrolment, Trust};
use agent::folders::{self, Folders};
use agent::gpus::known::Known;
use agent::gpus::policy::HealthPolicy;
use agent::{check, gpus, inventory, journal, run};
use clap::{Args, Parser, Subcommand};

/// The node agent of Allotment.
#[derive(Debug, Parser)]
#[command(name = "allotment-agent", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What an agent can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Makes this machine a node, by a one-time join token
    Enrol(EnrolArgs),
    /// Runs the agent
    Run(RunArgs),
    /// Shows the GPUs of this machine, or forgets one that was taken out
    Gpus(GpusArgs),
    /// Checks what this machine can do as a node, with a remedy for what it cannot
    Check(CheckArgs),
    /// Tells which assignments this machine has held, from the agent's journal
    Journal(JournalArgs),
    /// Watches over one job (started by the agent)
    #[command(hide = true)]
    Supervise {
        /// The job's run folder.
        run: PathBuf,
    },
    /// Runs a command beside a job, or carries a port of it (started by the agent)
    #[command(hide = true)]
    Beside {
        /// The job's run folder.
        run: PathBuf,
    },
}

/// How a machine enrols.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: allotment-agent enrol --server https://control:8443 --token TOKEN --ca-sha256 2f1c…"
)]
pub struct EnrolArgs {
    /// The server's address for agents
    #[arg(long)]
    server: String,
    /// The join token
    #[arg(long, env = "ALLOTMENT_JOIN_TOKEN", hide_env_values = true)]
    token: String,
    /// The certificate of the server's CA
    #[arg(
        long,
        required_unless_present = "ca_sha256",
        conflicts_with = "ca_sha256"
    )]
    ca: Option<PathBuf>,
    /// The SHA-256 of the certificate of the server's CA
    #[arg(long, value_parser = enrol::read_fingerprint)]
    ca_sha256: Option<[u8; 32]>,
    /// The name that the node is to have; by default the host's
    #[arg(long)]
    name: Option<String>,
    /// Where the agent keeps its state
    #[arg(long, default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// Replaces the identity of a machine that is enrolled already
    #[arg(long)]
    replace: bool,
}

/// How an agent runs. Flags win over the file.
#[derive(Debug, Args)]
#[command(after_help = "Example: allotment-agent run --config /etc/allotment/agent.toml")]
pub struct RunArgs {
    /// The settings, in TOML
    #[arg(long)]
    config: Option<PathBuf>,
    /// Where the agent keeps its state
    #[arg(long)]
    state_dir: Option<PathBuf>,
    /// Runs jobs as this user when it is not root, without isolation between teams
    #[arg(long)]
    allow_unisolated: bool,
    /// The library that GPUs are read through
    #[arg(long)]
    nvml_library: Option<PathBuf>,
    /// The server's address for agents, in place of that of the enrolment
    #[arg(long)]
    server: Option<String>,
    /// Where other workers reach this node
    #[arg(long)]
    address: Option<String>,
    /// Where checkpoints lie
    #[arg(long)]
    checkpoint_root: Option<PathBuf>,
    /// Says that checkpoints lie on storage that all nodes share
    #[arg(long)]
    checkpoints_shared: bool,
    /// A folder below which a job's working directory may lie; may be repeated
    #[arg(long = "work-root")]
    work_roots: Vec<PathBuf>,
    /// CPUs to offer, in place of all that there are
    #[arg(long)]
    cpus: Option<u32>,
    /// Memory to offer, in MiB, in place of all that there is
    #[arg(long)]
    memory_mib: Option<i64>,
    /// How often GPUs are looked at, in seconds
    #[arg(long)]
    inventory_seconds: Option<u64>,
}

/// What to show of the GPUs.
#[derive(Debug, Args)]
pub struct GpusArgs {
    /// The library that GPUs are read through
    #[arg(long)]
    nvml_library: Option<PathBuf>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    /// Forgets a device that was taken out, so that it is no longer reported as failed
    #[arg(long, value_name = "UUID")]
    forget: Option<String>,
    /// Where the agent keeps its state
    #[arg(long, default_value = STATE_DIR)]
    state_dir: PathBuf,
}

/// With which settings to check. Flags win over the file.
#[derive(Debug, Args)]
#[command(
    after_help = "Exits with 0 where jobs can run on GPUs of this machine, else with 1.\n\nExample: allotment-agent check --config /etc/allotment/agent.toml"
)]
pub struct CheckArgs {
    /// The settings, in TOML
    #[arg(long)]
    config: Option<PathBuf>,
    /// Where the agent keeps its state
    #[arg(long)]
    state_dir: Option<PathBuf>,
    /// Accepts that jobs run as this user when it is not root
    #[arg(long)]
    allow_unisolated: bool,
    /// The library that GPUs are read through
    #[arg(long)]
    nvml_library: Option<PathBuf>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// What to tell of the journal.
#[derive(Debug, Args)]
pub struct JournalArgs {
    /// Where the agent keeps its state
    #[arg(long, default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Does what was asked; the status to exit with.
pub async fn perform(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Enrol(args) => perform_enrol(args).await?,
        Command::Run(args) => run::run(config_of(args)?).await?,
        Command::Gpus(args) => perform_gpus(&args)?,
        Command::Check(args) => return perform_check(args),
        Command::Journal(args) => perform_journal(&args)?,
        Command::Beside { .. } | Command::Supervise { .. } => {
            unreachable!("a supervisor runs without a runtime")
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn perform_check(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let mut config = Config::read(args.config.as_deref())?;
    if let Some(state_dir) = args.state_dir {
        config.state_dir = state_dir;
    }
    config.allow_unisolated |= args.allow_unisolated;
    config.nvml_library = args.nvml_library.or(config.nvml_library);
    let report = check::look(&config);
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.table()),
    }
    Ok(match report.jobs_can_run {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

async fn perform_enrol(args: EnrolArgs) -> anyhow::Result<()> {
    let folders = Folders::prepare(&args.state_dir, None)?;
    let trust = match (args.ca, args.ca_sha256) {
        (_, Some(sha256)) => Trust::Fingerprint(sha256),
        (Some(path), None) => Trust::File(path),
        (None, None) => unreachable!("the command line requires one of them"),
    };
    let enrolment = Enrolment {
        server: args.server,
        token: args.token,
        trust,
        name: args.name.unwrap_or_else(inventory::host_name),
        replace: args.replace,
    };
    let identity = enrol::enrol(&folders, &enrolment).await?;
    println!(
        "enrolled as {} in pool {}",
        identity.node_name, identity.pool
    );
    Ok(())
}

fn config_of(args: RunArgs) -> anyhow::Result<Config> {
    let mut config = Config::read(args.config.as_deref())?;
    if let Some(state_dir) = args.state_dir {
        config.state_dir = state_dir;
    }
    config.allow_unisolated |= args.allow_unisolated;
    config.checkpoints_shared |= args.checkpoints_shared;
    config.nvml_library = args.nvml_library.or(config.nvml_library);
    config.server = args.server.or(config.server);
    config.address = args.address.or(config.address);
    config.checkpoint_root = args.checkpoint_root.or(config.checkpoint_root);
    config.cpus = args.cpus.or(config.cpus);
    config.memory_mib = args.memory_mib.or(config.memory_mib);
    if let Some(seconds) = args.inventory_seconds {
        config.inventory_seconds = seconds;
    }
    if !args.work_roots.is_empty() {
        config.work_roots = args.work_roots;
    }
    Ok(config)
}

fn perform_gpus(args: &GpusArgs) -> anyhow::Result<()> {
    if let Some(uuid) = &args.forget {
        let folders = Folders::prepare(&args.state_dir, None)?;
        let mut known = Known::load(&folders.known_devices());
        anyhow::ensure!(known.forget(uuid)?, "{uuid} is not known on this machine");
        println!("{uuid} is forgotten; restart the agent");
        return Ok(());
    }
    let reading = gpus::read_once(args.nvml_library.as_deref())?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&reading)?);
        return Ok(());
    }
    println!("driver {}", reading.driver_version);
    for gpu in &reading.gpus {
        let numa = gpu
            .numa
            .map_or_else(|| "-".to_owned(), |node| node.to_string());
        println!(
            "{:>3}  {}  {}  {} MiB  {}  numa {numa}",
            gpu.index, gpu.uuid, gpu.product_name, gpu.memory_mib, gpu.pci_bus_id
        );
    }
    for (uuid, mig) in &reading.mig {
        let state = match (mig.on, mig.pending) {
            (false, false) => continue,
            (true, true) => "on",
            (true, false) => "on, and off after a reset",
            (false, true) => "off, and on after a reset",
        };
        println!("mig of {uuid}: {state}");
        for instance in &mig.instances {
            let uuids = match instance.uuids.as_slice() {
                [] => "no compute instance".to_owned(),
                uuids => uuids.join(" "),
            };
            println!(
                "{:>5}  {:<12}  slices {}-{}  {uuids}",
                instance.id,
                instance.slice.profile,
                instance.slice.start,
                instance.slice.start + instance.slice.size - 1
            );
        }
    }
    for (uuid, types) in &reading.vgpu {
        println!("vgpu of {uuid}: {} types", types.len());
        for kind in types {
            let more = match kind.creatable {
                true => ", more can be made",
                false => "",
            };
            println!(
                "{:>5}  {:<20}  {:<8}  {:>6} MiB  {} of {}{more}",
                kind.id, kind.name, kind.class, kind.memory_mib, kind.active, kind.instances_max
            );
        }
    }
    for (uuid, signs) in &reading.signs {
        for sign in signs.words(&HealthPolicy::default()) {
            println!("health of {uuid}: {sign}");
        }
    }
    for used in &reading.uses {
        println!(
            "process {} holds {} MiB of {}",
            used.pid, used.memory_mib, used.uuid
        );
    }
    for index in &reading.silent {
        println!("{index:>3}  does not answer");
    }
    for (index, words) in &reading.failures {
        println!("{index:>3}  cannot be read: {words}");
    }
    for clique in &reading.nvlink {
        println!("nvlink: {}", clique.join(" "));
    }
    Ok(())
}

fn perform_journal(args: &JournalArgs) -> anyhow::Result<()> {
    let holdings = journal::history(&folders::journal_of(&args.state_dir))?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&holdings)?);
        return Ok(());
    }
    for holding in &holdings {
        let until = holding
            .until_micros
            .map_or_else(|| "now".to_owned(), in_words);
        let devices: Vec<String> = holding
            .devices
            .iter()
            .map(|share| format!("{}:{} ({})", share.uuid, share.gpus_milli, share.mode))
            .collect();
        println!(
            "{} to {until}  assignment {}  attempt {}  starts {}  ends {}  {}",
            in_words(holding.from_micros),
            holding.assignment_id,
            holding.attempt_id,
            holding.starts,
            holding.ends,
            devices.join(" ")
        );
    }
    Ok(())
}

fn in_words(micros: i64) -> String {
    chrono::DateTime::from_timestamp_micros(micros).map_or_else(
        || micros.to_string(),
        |at| at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true),
    )
}
