//! The whole product, started as real processes and taken apart again.

mod bring_up;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::agent::Agent;
use crate::agents_file::Machine;
use crate::api::Api;
use crate::demo::Secrets;
use crate::paths::Paths;
use crate::ports::Ports;
use crate::postgres::Postgres;
use crate::proxy::Proxy;
use crate::server::Server;
use crate::stage::Stages;
use crate::{child, leftovers, wait, who};

/// Enrolment, a first connection and an inventory, on a machine that is busy building.
pub const AGENTS_READY_BOUND: Duration = Duration::from_secs(120);

/// What to start, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where everything lies.
    pub paths: Paths,
    /// How many servers share the database.
    pub servers: usize,
    /// The machines, one agent each.
    pub machines: Vec<Machine>,
    /// Where the first server listens; the others take free ports.
    pub ports: Ports,
    /// The address that listeners are bound to.
    pub bind: String,
    /// Names besides localhost that the servers' certificates are good for.
    pub server_names: Vec<String>,
    /// Keys of the servers' `[timers]` that differ from the defaults.
    pub timers: Vec<(&'static str, i64)>,
    /// Keys of the servers' `[agents]` that differ from the defaults.
    pub agents: Vec<(&'static str, i64)>,
    /// Whether the database survives a power loss.
    pub durable: bool,
    /// Whether each agent reaches its server through a proxy that can be cut.
    pub proxied: bool,
    /// Whether all agents keep checkpoints in one folder, as on a shared file system.
    pub checkpoints_shared: bool,
    /// What stands at the end of each agent's settings.
    pub agent_settings: String,
    /// Whether the state folder is removed at the end.
    pub scratch: bool,
    /// Says what goes on.
    pub stages: Stages,
}

impl Options {
    /// A product of its own for one test: free ports, no durability, gone at the end.
    pub fn for_test(name: &str, machines: Vec<Machine>) -> anyhow::Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        // Not below the checkout, which other users may not be able to pass, nor below /tmp, of
        // which the jobs of an agent that is root have their own.
        let above = if who::root() { "/var/lib" } else { "/tmp" };
        let state = PathBuf::from(format!(
            "{above}/allotment-{name}-{}-{number}",
            std::process::id()
        ));
        let tools = crate::paths::checkout_of_build().join(".allotment/tools");
        Ok(Self {
            paths: Paths::at(&state, tools)?,
            servers: 1,
            machines,
            ports: Ports::FREE,
            bind: "127.0.0.1".to_owned(),
            server_names: Vec::new(),
            timers: vec![
                ("heartbeat_ms", 500),
                ("kill_grace_ms", 3_000),
                ("clock_margin_ms", 1_000),
                ("retry_backoff_ms", 200),
                ("tick_ms", 200),
                ("world_check_ms", 2_000),
            ],
            agents: Vec::new(),
            durable: false,
            proxied: false,
            checkpoints_shared: false,
            agent_settings: String::new(),
            scratch: true,
            stages: Stages::quiet(),
        })
    }

    /// Sets a timer of the servers.
    pub fn timer(mut self, key: &'static str, value: i64) -> Self {
        self.timers.retain(|(known, _)| *known != key);
        self.timers.push((key, value));
        self
    }
}

/// A product that runs.
#[derive(Debug)]
pub struct Cluster {
    /// The database; stopped, killed and begun by tests.
    pub postgres: Postgres,
    /// The servers.
    pub servers: Vec<Server>,
    /// The agents by their node's name.
    pub agents: BTreeMap<String, Agent>,
    /// The proxies by their node's name, when there are any.
    pub proxies: BTreeMap<String, Proxy>,
    /// Passwords.
    pub secrets: Secrets,
    options: Options,
    admin: Option<Api>,
}

impl Cluster {
    /// Starts everything and waits until the product answers and all agents are ready.
    /// When that fails, what was started is stopped.
    pub async fn start(options: Options) -> anyhow::Result<Self> {
        let mut cluster = Self::open(options).await?;
        if let Err(error) = cluster.bring_up().await {
            // The first error is the one to tell; what follows from it is not.
            let _ = cluster.stop().await;
            return Err(error);
        }
        Ok(cluster)
    }

    /// Ends what an earlier product left in the state folder, and starts PostgreSQL alone.
    pub async fn open(options: Options) -> anyhow::Result<Self> {
        who::make_folder(&options.paths.state, who::PASSABLE)?;
        who::make_folder(&options.paths.logs(), who::PRIVATE)?;
        who::make_folder(&options.paths.agents(), who::PASSABLE)?;
        leftovers::kill_all(&options.paths.state).await?;
        let secrets = Secrets::of(&options.paths.state)?;
        options.stages.say("starting PostgreSQL");
        let setup = crate::postgres::Setup {
            durable: options.durable,
            passwords: true,
        };
        let postgres = Postgres::start(&options.paths, &secrets.postgres, setup).await?;
        Ok(Self {
            postgres,
            servers: Vec::new(),
            agents: BTreeMap::new(),
            proxies: BTreeMap::new(),
            secrets,
            options,
            admin: None,
        })
    }

    /// Where everything lies.
    pub fn paths(&self) -> &Paths {
        &self.options.paths
    }

    /// `http://…` of the first server.
    pub fn url(&self) -> String {
        self.servers[0].url()
    }

    /// The CA certificate's file.
    pub fn ca(&self) -> PathBuf {
        self.options.paths.state.join("ca.pem")
    }

    /// The administrator, signed in.
    pub fn admin(&self) -> &Api {
        self.admin
            .as_ref()
            .expect("the administrator signs in while the product is started")
    }

    /// Signs in as a person of the demo organisation.
    pub async fn sign_in(&self, name: &str) -> anyhow::Result<Api> {
        let user = self.secrets.user(name)?;
        Api::log_in(&self.url(), &user.name, &user.password).await
    }

    /// Waits until all agents that run are ready and show their devices.
    pub async fn agents_ready(&mut self, bound: Duration) -> anyhow::Result<()> {
        let begun = std::time::Instant::now();
        loop {
            self.check()?;
            let waiting = match self.admin().list("/nodes?limit=500").await {
                Ok(nodes) => self.not_ready(&nodes),
                Err(error) => vec![format!("the list of nodes: {error:#}")],
            };
            if waiting.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > bound {
                bail!(
                    "after {} s not ready: {}",
                    bound.as_secs(),
                    waiting.join(", ")
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn not_ready(&self, nodes: &[Value]) -> Vec<String> {
        let ready = |name: &str| {
            nodes.iter().any(|node| {
                let devices = node["devices"].as_array().map_or(0, Vec::len);
                node["name"] == *name && node["reachability"] == "ready" && devices > 0
            })
        };
        self.agents
            .iter()
            .filter(|(name, agent)| agent.pid() != 0 && !ready(name))
            .map(|(name, agent)| format!("agent {name} (log {})", agent.log().display()))
            .collect()
    }

    /// Fails, naming the process and its log, when one has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.postgres.check()?;
        for server in &mut self.servers {
            server.check()?;
        }
        for agent in self.agents.values_mut() {
            agent.check()?;
        }
        Ok(())
    }

    /// Starts again what has ended by itself, as a machine's init system would; what was
    /// started, in words.
    pub async fn revive(&mut self) -> anyhow::Result<Option<String>> {
        if let Err(error) = self.postgres.check() {
            self.postgres.begin().await?;
            return Ok(Some(format!("{error:#}\nPostgreSQL was started again")));
        }
        for server in &mut self.servers {
            if let Err(error) = server.check() {
                server.begin().await?;
                return Ok(Some(format!("{error:#}\nthe server was started again")));
            }
        }
        for agent in self.agents.values_mut() {
            if let Err(error) = agent.check() {
                agent.begin()?;
                return Ok(Some(format!("{error:#}\nthe agent was started again")));
            }
        }
        Ok(None)
    }

    /// Kills the first server's process and starts it again.
    pub async fn restart_server(&mut self, number: usize) -> anyhow::Result<()> {
        self.servers[number].kill().await?;
        self.servers[number].begin().await?;
        self.servers[number].ready().await
    }

    /// Kills PostgreSQL and starts it again.
    pub async fn restart_postgres(&mut self) -> anyhow::Result<()> {
        self.postgres.kill().await?;
        self.postgres.begin().await
    }

    /// Kills an agent and starts it again.
    pub async fn restart_agent(&mut self, name: &str) -> anyhow::Result<()> {
        let agent = self.agent(name)?;
        agent.kill().await?;
        agent.begin()
    }

    /// The agent of a node.
    pub fn agent(&mut self, name: &str) -> anyhow::Result<&mut Agent> {
        self.agents
            .get_mut(name)
            .with_context(|| format!("there is no agent {name:?}"))
    }

    /// The proxy of a node.
    pub fn proxy(&self, name: &str) -> anyhow::Result<&Proxy> {
        self.proxies
            .get(name)
            .with_context(|| format!("there is no proxy of {name:?}"))
    }

    /// Waits until a job is in one of these states; the job.
    pub async fn job_in(
        &self,
        api: &Api,
        id: &str,
        states: &[&str],
        bound: Duration,
    ) -> anyhow::Result<Value> {
        let what = format!("job {id} is {}", states.join(" or "));
        let seen = std::cell::RefCell::new(Value::Null);
        let result = wait::until(&what, bound, || async {
            let job = api.get(&format!("/jobs/{id}")).await?;
            let there = states.iter().any(|state| job["state"] == **state);
            *seen.borrow_mut() = job.clone();
            Ok(there.then_some(job))
        })
        .await;
        result.with_context(|| {
            let job = seen.borrow();
            format!(
                "it is {} ({}: {})",
                job["state"], job["reason"], job["message"]
            )
        })
    }

    /// Stops everything: agents, servers, jobs, PostgreSQL.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        for agent in self.agents.values_mut() {
            agent.stop().await?;
        }
        for server in &mut self.servers {
            server.stop().await?;
        }
        leftovers::end_jobs(&self.options.paths.state).await?;
        self.postgres.stop().await
    }
}

impl Drop for Cluster {
    /// A test that unwinds leaves nothing running, and its logs for who looks for the cause.
    fn drop(&mut self) {
        if !self.options.scratch {
            return;
        }
        leftovers::kill_now(&self.options.paths.state);
        if std::thread::panicking() {
            let logs = self.options.paths.logs();
            eprintln!("the product's logs are kept in {}", logs.display());
            for entry in std::fs::read_dir(logs).into_iter().flatten().flatten() {
                let name = entry.file_name();
                eprintln!(
                    "--- {}\n{}",
                    name.to_string_lossy(),
                    child::tail(&entry.path())
                );
            }
        } else {
            let _ = std::fs::remove_dir_all(&self.options.paths.state);
        }
    }
}
