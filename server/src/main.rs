//! `allotment-server`: the control plane's one binary.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use server::config::Config;

#[derive(Parser)]
#[command(
    name = "allotment-server",
    version,
    about = "The control plane of Allotment"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve pages, REST and agents.
    Serve {
        /// Configuration file.
        #[arg(
            long,
            env = "ALLOTMENT_SERVER_CONFIG",
            default_value = "/etc/allotment/server.toml"
        )]
        config: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok()
        .context("install the TLS provider")?;
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    match arguments.command {
        Command::Serve { config } => runtime.block_on(server::serve::run(Config::read(&config)?)),
    }
}
