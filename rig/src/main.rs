//! `allotment-rig`: what `./dev` calls to start, stop and measure the product of a checkout.

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use rig::measure::{idle, submissions};
use rig::paths::Paths;
use rig::postgres::{Passwords, Postgres, Setup};
use rig::up::{self, Up};
use rig::up_file::UpFile;
use rig::{measure, who};

/// Starts, stops and measures the product of a checkout.
#[derive(Parser)]
#[command(name = "allotment-rig", version)]
struct Arguments {
    /// The checkout.
    #[arg(long, global = true, default_value = ".")]
    checkout: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts the product and stays in the foreground.
    Up(UpArguments),
    /// Stops the product.
    Down,
    /// Runs a command beside a private PostgreSQL, named to it by DATABASE_URL.
    WithPostgres {
        /// Flush what is committed to the disk, as a product does.
        #[arg(long)]
        durable: bool,
        /// The command.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Measures the running product: from a job's submission to its first line of log.
    Measure {
        /// How many jobs.
        #[arg(long, default_value_t = 50)]
        count: usize,
    },
    /// Starts a durable product and measures an array of 10,000 and a batch of 1,000 jobs until they are durable,
    /// beside plain inserts into the same PostgreSQL (B8).
    MeasureSubmissions {
        /// How many times.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Starts a durable product of many machines and measures it: from a submission to its process, and
    /// trivial jobs end to end (B9).
    MeasureFleet {
        /// How many agents.
        #[arg(long, default_value_t = 50)]
        agents: usize,
        /// How many jobs, one after the other.
        #[arg(long, default_value_t = 200)]
        count: usize,
        /// How many jobs at once.
        #[arg(long, default_value_t = 2_000)]
        burst: usize,
    },
    /// Starts a product with one agent of eight devices and measures what that costs while there is nothing to do.
    MeasureAgent {
        /// For how many seconds.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
}

#[derive(Args)]
struct UpArguments {
    /// Returns when the product answers, and leaves it running.
    #[arg(long)]
    detach: bool,
    /// Forgets the state of earlier starts.
    #[arg(long)]
    fresh: bool,
    /// Simulates GPUs even where the machine has its own.
    #[arg(long)]
    simulated: bool,
    /// Port of pages and REST; 0 takes free ports.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// A YAML list of simulated machines: - {name: n1, model: dgx-h100, pool: h100, count: 10}
    #[arg(long)]
    agents: Option<PathBuf>,
    /// Seconds that have passed since the start.
    #[arg(long, default_value_t = 0, hide = true)]
    elapsed: u64,
    /// We are the one in the background.
    #[arg(long, hide = true)]
    detached: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let checkout = arguments
        .checkout
        .canonicalize()
        .with_context(|| format!("find the checkout {}", arguments.checkout.display()))?;
    // One thread: the kernel ends the children when the thread that started them ends.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    match arguments.command {
        Command::Up(words) => {
            let up = Up {
                checkout,
                fresh: words.fresh,
                simulated: words.simulated,
                port: words.port,
                agents: words.agents,
                before: Duration::from_secs(words.elapsed),
                detached: words.detached,
            };
            if words.detach {
                return up::start_detached(&up);
            }
            let lived = async {
                if up.detached {
                    up::run_detached(&up).await
                } else {
                    up::run(&up, || Ok(())).await
                }
            };
            runtime.block_on(lived).map(|()| ExitCode::SUCCESS)
        }
        Command::Down => runtime
            .block_on(up::down(&checkout))
            .map(|()| ExitCode::SUCCESS),
        Command::WithPostgres { durable, command } => {
            runtime.block_on(with_postgres(durable, &command))
        }
        Command::MeasureFleet {
            agents,
            count,
            burst,
        } => runtime.block_on(measure_fleet(agents, count, burst)),
        Command::MeasureAgent { seconds } => runtime.block_on(measure_agent(seconds)),
        Command::MeasureSubmissions { rounds } => runtime.block_on(measure_submissions(rounds)),
        Command::Measure { count } => {
            let times = runtime.block_on(measure::first_lines(&UpFile::read(&checkout)?, count))?;
            println!(
                "from submission to the first line of log: median {} ms, fastest {} ms, slowest {} ms, of {count} jobs",
                measure::median(&times).as_millis(),
                times[0].as_millis(),
                times[times.len() - 1].as_millis(),
            );
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn measure_fleet(agents: usize, count: usize, burst: usize) -> anyhow::Result<ExitCode> {
    let state = PathBuf::from(format!("/tmp/allotment-measure-{}", std::process::id()));
    let mut cluster = measure::fleet(&state, agents).await?;
    let times = measure::starts(&cluster, count).await?;
    println!(
        "from submission to process: median {:.1} ms, 99th {:.1} ms, of {count} jobs on {agents} agents",
        milliseconds(measure::median(&times)),
        milliseconds(measure::percentile_99(&times)),
    );
    let told = measure::burst(&cluster, burst).await?;
    println!(
        "{burst} trivial jobs: acknowledged after {:.1} ms, all ended after {:.1} ms, {:.0} a second",
        milliseconds(told.submitted),
        milliseconds(told.ended),
        burst as f64 / told.ended.as_secs_f64(),
    );
    cluster.stop().await?;
    Ok(ExitCode::SUCCESS)
}

async fn measure_agent(seconds: u64) -> anyhow::Result<ExitCode> {
    /// The start is over by then: devices are read, and the server knows the node.
    const SETTLE: Duration = Duration::from_secs(10);
    let state = PathBuf::from(format!("/tmp/allotment-measure-{}", std::process::id()));
    let mut cluster = idle::one_agent(&state).await?;
    let told = idle::idle(&cluster, SETTLE, Duration::from_secs(seconds.max(1))).await?;
    println!(
        "an idle agent with 8 devices: {} MiB resident, {} ms of a core in {} s ({} millionths of it)",
        told.resident_kib.div_ceil(1024),
        told.cpu.as_millis(),
        told.over.as_secs(),
        told.core_millionths(),
    );
    cluster.stop().await?;
    Ok(ExitCode::SUCCESS)
}

async fn measure_submissions(rounds: usize) -> anyhow::Result<ExitCode> {
    let state = PathBuf::from(format!("/tmp/allotment-measure-{}", std::process::id()));
    let mut cluster = measure::fleet(&state, 2).await?;
    let told = submissions::rounds(&cluster, rounds.max(1)).await?;
    let round = submissions::medians(&told);
    let rate = |time: Duration| submissions::JOBS as f64 / time.as_secs_f64();
    println!(
        "an array of {} elements: durable after {:.1} ms",
        submissions::ELEMENTS,
        milliseconds(round.array),
    );
    println!(
        "a batch of {} different jobs: durable after {:.1} ms, {:.0} jobs a second",
        submissions::JOBS,
        milliseconds(round.batch),
        rate(round.batch),
    );
    println!(
        "as many rows by statements of 100: {:.1} ms, {:.0} rows a second; the batch has {:.2} of that (medians of {rounds})",
        milliseconds(round.inserts),
        rate(round.inserts),
        rate(round.batch) / rate(round.inserts),
    );
    cluster.stop().await?;
    Ok(ExitCode::SUCCESS)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Tests make databases of their own and connect as every role without a password: the
/// socket's folder keeps others out.
async fn with_postgres(durable: bool, words: &[String]) -> anyhow::Result<ExitCode> {
    let state = PathBuf::from(format!("/tmp/allotment-pg-{}", std::process::id()));
    let tools = rig::paths::checkout_of_build().join(".allotment/tools");
    let paths = Paths::at(&state, tools)?;
    who::make_folder(&paths.state, who::PASSABLE)?;
    who::make_folder(&paths.logs(), who::PRIVATE)?;
    let setup = Setup {
        durable,
        passwords: false,
    };
    let mut postgres = Postgres::start(&paths, &Passwords::random(), setup).await?;
    let status = tokio::process::Command::new(&words[0])
        .args(&words[1..])
        .env("DATABASE_URL", postgres.owner_url(rig::postgres::DATABASE))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .with_context(|| format!("start {}", words[0]));
    let stopped = postgres.stop().await;
    std::fs::remove_dir_all(&state).context("remove PostgreSQL's folder")?;
    stopped?;
    let code = status?
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1);
    Ok(ExitCode::from(code))
}
