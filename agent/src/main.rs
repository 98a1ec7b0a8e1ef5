//! `allotment-agent`: enrols a machine, runs its agent, shows its GPUs, checks what it can do.

mod cli;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command};

/// Threads of the agent's runtime: it waits nearly always, and what waits for the disk has
/// threads of its own.
const THREADS: usize = 2;
/// Most threads that wait for the disk.
const BLOCKING_THREADS_MAX: usize = 16;

/// The exit status of an agent whose node is retired: whatever starts agents again leaves this one
/// alone (`RestartPreventExitStatus=` of systemd).
const RETIRED: u8 = 3;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // A supervisor is to stay small: it gets no runtime and no log.
    if let Command::Supervise { run } = &cli.command {
        return match agent::supervise::run(run) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if let Command::Beside { run } = &cli.command {
        return match agent::terminal::beside::run(run) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    match start(cli.command) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("allotment-agent: {error:#}");
            match error.is::<agent::run::Retired>() {
                true => ExitCode::from(RETIRED),
                false => ExitCode::FAILURE,
            }
        }
    }
}

fn start(command: Command) -> anyhow::Result<ExitCode> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("ALLOTMENT_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    // Chosen here, once: several libraries of ours speak TLS.
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a TLS provider was chosen before"))?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .enable_all()
        .build()?
        .block_on(cli::perform(command))
}
