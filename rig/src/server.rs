//! One `allotment-server`: its configuration file, its process, its addresses.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use serde::Deserialize;
use tokio::process::Command;

use crate::child::{Process, Program, finish};
use crate::paths::Paths;
use crate::ports::Ports;
use crate::{toml, who};

/// From start to ready: the listeners, a first scheduling cycle, a certificate.
const READY_BOUND: Duration = Duration::from_secs(60);
/// A server finishes the requests that it has begun.
const STOP_BOUND: Duration = Duration::from_secs(15);

/// What a server's file says, beyond the defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Connection URLs of the owner, the app and the system role.
    pub database: [String; 3],
    /// Where it listens.
    pub ports: Ports,
    /// The address that all listeners are bound to.
    pub bind: String,
    /// Names that its certificate is good for.
    pub server_names: Vec<String>,
    /// Keys of `[timers]` that differ from the defaults.
    pub timers: Vec<(&'static str, i64)>,
    /// Keys of `[agents]` that differ from the defaults.
    pub agents: Vec<(&'static str, i64)>,
    /// Log filter.
    pub log: String,
}

/// The addresses that a server took.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq)]
pub struct Addresses {
    /// Pages and REST.
    pub http: SocketAddr,
    /// Agents.
    pub agents: SocketAddr,
    /// Metrics.
    pub metrics: SocketAddr,
    /// Other replicas.
    pub internal: SocketAddr,
}

impl Addresses {
    fn ports(&self) -> Ports {
        Ports {
            http: self.http.port(),
            agents: self.agents.port(),
            metrics: self.metrics.port(),
            internal: self.internal.port(),
        }
    }
}

/// A server that was started at least once.
#[derive(Debug)]
pub struct Server {
    name: String,
    program: PathBuf,
    config: PathBuf,
    addresses_file: PathBuf,
    log: PathBuf,
    settings: Settings,
    http: reqwest::Client,
    addresses: Option<Addresses>,
    process: Process,
}

impl Server {
    /// Writes the file of server `number`, from 1. For free ports it gets those of its last
    /// start while they are free: agents and people know them.
    pub fn prepare(paths: &Paths, number: usize, settings: Settings) -> anyhow::Result<Self> {
        let folder = paths.state.join(format!("server-{number}"));
        who::make_private_folder(&folder, None)?;
        let mut server = Self {
            name: format!("server {number}"),
            program: paths.binary("allotment-server")?,
            config: folder.join("server.toml"),
            addresses_file: folder.join("addresses.json"),
            log: paths.logs().join(format!("server-{number}.log")),
            settings,
            http: crate::api::http_client()?,
            addresses: None,
            process: Process::default(),
        };
        if server.settings.ports == Ports::FREE
            && let Ok(Some(last)) = server.read_addresses()
            && last.ports().check_free().is_ok()
        {
            server.settings.ports = last.ports();
        }
        who::write_private(&server.config, &server.configuration())?;
        Ok(server)
    }

    /// Runs one of the program's other commands to its end; what it printed.
    pub async fn run(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--config").arg(&self.config);
        // When it fails, its error alone is told.
        command.env("RUST_LOG", "error");
        finish(&format!("allotment-server {}", words.join(" ")), command).await
    }

    /// Starts it and waits until it takes connections. The ports it got are kept for its
    /// next start, since agents and people know them by then.
    pub async fn begin(&mut self) -> anyhow::Result<()> {
        let _ = std::fs::remove_file(&self.addresses_file);
        let mut command = Command::new(&self.program);
        command.arg("serve").arg("--config").arg(&self.config);
        self.process.start(Program {
            name: self.name.clone(),
            command,
            log: self.log.clone(),
            owner: None,
            stop_signal: Signal::SIGTERM,
        })?;
        let addresses: Addresses = self
            .watch("has not taken its addresses", Self::read_addresses)
            .await?;
        self.addresses = Some(addresses);
        self.settings.ports = addresses.ports();
        who::write_private(&self.config, &self.configuration())
    }

    /// Waits until `/readyz` says that work can be done.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        let url = format!("{}/readyz", self.url());
        let http = self.http.clone();
        let begun = std::time::Instant::now();
        loop {
            self.check()?;
            let answer = http.get(&url).send().await;
            if answer
                .as_ref()
                .is_ok_and(|answer| answer.status().is_success())
            {
                return Ok(());
            }
            if begun.elapsed() > READY_BOUND {
                let said = match answer {
                    Ok(answer) => answer.text().await.unwrap_or_default(),
                    Err(error) => error.to_string(),
                };
                bail!(
                    "{} is not ready after {} s: {}",
                    self.name,
                    READY_BOUND.as_secs(),
                    said.trim()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Fails, naming the process and its log, when it has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.process.check()
    }

    /// `http://…` of pages and REST.
    pub fn url(&self) -> String {
        format!("http://{}", reachable(self.addresses().http))
    }

    /// The addresses that it took.
    pub fn addresses(&self) -> Addresses {
        self.addresses
            .expect("the server was started before it is used")
    }

    /// Its process id, 0 while it is stopped.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its log file.
    pub fn log(&self) -> &std::path::Path {
        &self.log
    }

    /// Sends it a signal, for instance to freeze it.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        self.process.signal(signal)
    }

    /// Stops it in order.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.process.stop(STOP_BOUND).await
    }

    /// `kill -9`.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await
    }

    fn read_addresses(&self) -> anyhow::Result<Option<Addresses>> {
        let Ok(text) = std::fs::read_to_string(&self.addresses_file) else {
            return Ok(None);
        };
        serde_json::from_str(&text)
            .map(Some)
            .with_context(|| format!("addresses in {}", self.addresses_file.display()))
    }

    async fn watch<T>(
        &mut self,
        complaint: &str,
        look: impl Fn(&Self) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let begun = std::time::Instant::now();
        loop {
            if let Some(value) = look(self)? {
                return Ok(value);
            }
            self.check()?;
            if begun.elapsed() > READY_BOUND {
                bail!(
                    "{} {complaint} after {} s; see {}",
                    self.name,
                    READY_BOUND.as_secs(),
                    self.log.display()
                );
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    fn configuration(&self) -> String {
        let Settings {
            database: [owner, app, system],
            ports,
            bind,
            server_names,
            timers,
            agents,
            log,
        } = &self.settings;
        let lines = |pairs: &[(&str, i64)]| -> String {
            pairs
                .iter()
                .map(|(key, value)| format!("{key} = {value}\n"))
                .collect()
        };
        let names: Vec<String> = server_names.iter().map(|name| toml::string(name)).collect();
        format!(
            "log = {log}\n\n\
             [database]\nowner_url = {owner}\napp_url = {app}\nsystem_url = {system}\n\n\
             [listen]\nhttp = \"{bind}:{}\"\nagents = \"{bind}:{}\"\nmetrics = \"{bind}:{}\"\n\
             internal = \"{bind}:{}\"\naddresses_file = {}\n\n\
             [agents]\nserver_names = [{}]\n{}\n[timers]\n{}",
            ports.http,
            ports.agents,
            ports.metrics,
            ports.internal,
            toml::path(&self.addresses_file),
            names.join(", "),
            lines(agents),
            lines(timers),
            log = toml::string(log),
            owner = toml::string(owner),
            app = toml::string(app),
            system = toml::string(system),
        )
    }
}

/// The address by which this machine reaches a listener that may be bound to all addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        SocketAddr::from(([127, 0, 0, 1], address.port()))
    } else {
        address
    }
}
