//! `allotment-server`: the control plane's one binary.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use domain::name::Name;
use server::app::App;
use server::config::Config;
use server::store::Database;
use server::{agents, api, front, serve, setup};

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

#[derive(Args)]
struct ConfigFile {
    /// Configuration file.
    #[arg(
        long,
        env = "ALLOTMENT_SERVER_CONFIG",
        default_value = "/etc/allotment/server.toml"
    )]
    config: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Serve pages, REST and agents.
    Serve(ConfigFile),
    /// Bring the database's schema up to date, as its owner.
    Migrate(ConfigFile),
    /// Make an administrator and print its password.
    CreateAdmin {
        #[command(flatten)]
        file: ConfigFile,
        /// The log-in.
        #[arg(long)]
        name: String,
    },
    /// Make the demo organisation and print its log-ins; nothing where it is there already.
    SeedDemo(ConfigFile),
    /// Print the certificate by which agents know the servers.
    Ca(ConfigFile),
    /// Print the OpenAPI document.
    Openapi,
}

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("allotment-server: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> anyhow::Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok()
        .context("install the TLS provider")?;
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(run(arguments.command))
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(file) => serve::run(begin(&file)?).await,
        Command::Migrate(file) => setup::migrate::run(&begin(&file)?).await,
        Command::CreateAdmin { file, name } => {
            let name: Name = name.parse().context("the log-in")?;
            let db = open(&begin(&file)?).await?;
            println!("{}", setup::admin::add(&db, &name).await?);
            Ok(())
        }
        Command::SeedDemo(file) => {
            let config = begin(&file)?;
            let app = App::new(open(&config).await?, config);
            if let Some(seeded) = setup::demo::seed(&app).await? {
                println!("{}", serde_json::to_string(&seeded).context("print it")?);
            }
            Ok(())
        }
        Command::Ca(file) => {
            let db = open(&begin(&file)?).await?;
            print!("{}", agents::authority::Authority::open(&db).await?.pem());
            Ok(())
        }
        Command::Openapi => {
            let document = api::document().to_yaml().context("make the document")?;
            let mut stdout = std::io::stdout();
            let written = stdout.write_all(document.as_bytes());
            match written.and_then(|()| stdout.flush()) {
                // Who reads it, such as `head`, has seen enough.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
                written => written.context("write the document"),
            }
        }
    }
}

fn begin(file: &ConfigFile) -> anyhow::Result<Config> {
    let config = Config::read(&file.config)?;
    config
        .check()
        .with_context(|| format!("configuration file {}", file.config.display()))?;
    front::logs::install(&config.log)?;
    Ok(config)
}

async fn open(config: &Config) -> anyhow::Result<Database> {
    let db = Database::open(&config.database).context("open the database")?;
    setup::check::run(&db).await?;
    Ok(db)
}
