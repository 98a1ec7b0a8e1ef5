//! The stages of a start: database, servers, demo organisation, agents, example jobs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use domain::ids::RepeatKey;
use reqwest::Method;
use serde_json::json;

use super::{AGENTS_READY_BOUND, Cluster};
use crate::agent::{Agent, Reach};
use crate::agents_file::Machine;
use crate::api::{Api, text};
use crate::demo::Seeded;
use crate::examples;
use crate::ports::Ports;
use crate::postgres::{DATABASE, Postgres};
use crate::proxy::Proxy;
use crate::server::{Server, Settings};

/// Teams of the demo organisation that work belongs to.
const TEAMS: [&str; 3] = ["vision", "speech", "platform"];

impl Cluster {
    /// Starts all but the database, and waits until the agents are ready.
    pub async fn bring_up(&mut self) -> anyhow::Result<()> {
        self.migrate().await?;
        self.seed().await?;
        self.start_servers().await?;
        self.sign_in_admin().await?;
        self.make_pools().await?;
        self.start_agents().await?;
        self.options.stages.say("waiting for the agents");
        self.agents_ready(AGENTS_READY_BOUND).await
    }

    /// Adds a machine to the running product, and starts its agent.
    pub async fn add_agent(
        &mut self,
        machine: Machine,
        reach: Option<Reach>,
    ) -> anyhow::Result<()> {
        let reach = match reach {
            Some(reach) => reach,
            None => self.reach(&machine.name).await?,
        };
        let name = machine.name.clone();
        let mut agent = Agent::prepare(&self.options.paths, machine, reach).await?;
        agent.enrol(self.admin(), &self.ca()).await?;
        agent.begin()?;
        self.agents.insert(name, agent);
        Ok(())
    }

    async fn migrate(&mut self) -> anyhow::Result<()> {
        self.options.stages.say("migrating the database");
        for number in 1..=self.options.servers {
            let ports = if number == 1 {
                self.options.ports
            } else {
                Ports::FREE
            };
            let mut server_names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
            server_names.extend(self.options.server_names.iter().cloned());
            let settings = Settings {
                database: self.database_urls(&self.postgres),
                ports,
                bind: self.options.bind.clone(),
                server_names,
                timers: self.options.timers.clone(),
                agents: self.options.agents.clone(),
                log: "info".to_owned(),
            };
            self.servers
                .push(Server::prepare(&self.options.paths, number, settings)?);
        }
        self.servers[0].run(&["migrate"]).await.context(
            "the database cannot be brought to this version \
             (what it holds is forgotten with: ./dev up --fresh)",
        )?;
        Ok(())
    }

    fn database_urls(&self, postgres: &Postgres) -> [String; 3] {
        [
            postgres.owner_url(DATABASE),
            postgres.url("allotment_app", &self.secrets.app, DATABASE),
            postgres.url("allotment_system", &self.secrets.system, DATABASE),
        ]
    }

    async fn seed(&mut self) -> anyhow::Result<()> {
        self.options.stages.say("seeding the demo organisation");
        let printed = self.servers[0].run(&["seed-demo"]).await?;
        if self.secrets.users.is_empty() {
            let seeded: Seeded = serde_json::from_str(printed.trim()).context(
                "the demo organisation is there already and its passwords are not known; \
                 start anew with: ./dev up --fresh",
            )?;
            self.secrets.users = seeded.users;
            // Those of the organisation itself come last: no work belongs to it.
            self.secrets
                .users
                .sort_by_key(|user| user.team.as_deref() == Some("org"));
            self.secrets.keep(&self.options.paths.state)?;
        }
        Ok(())
    }

    async fn start_servers(&mut self) -> anyhow::Result<()> {
        self.options.stages.say("starting the server");
        for server in &mut self.servers {
            server.begin().await?;
            server.ready().await?;
        }
        let ca = self.servers[0].run(&["ca"]).await?;
        std::fs::write(self.ca(), ca).context("write the CA certificate")
    }

    async fn sign_in_admin(&mut self) -> anyhow::Result<()> {
        self.admin = Some(self.sign_in("admin").await?);
        Ok(())
    }

    /// Makes the pools that machines name and nobody made yet, with equal guarantees.
    async fn make_pools(&self) -> anyhow::Result<()> {
        let admin = self.admin();
        let pools = admin.list("/pools").await?;
        let known: BTreeSet<&str> = pools
            .iter()
            .filter_map(|pool| pool["name"].as_str())
            .collect();
        let mut missing: BTreeMap<&str, u64> = BTreeMap::new();
        for machine in &self.options.machines {
            if !known.contains(machine.pool.as_str()) {
                *missing.entry(&machine.pool).or_default() += devices_of(machine);
            }
        }
        for (pool, devices) in missing {
            admin.post("/pools", &json!({"name": pool})).await?;
            let share = devices / TEAMS.len() as u64;
            put_quota(admin, "org", pool, share * TEAMS.len() as u64).await?;
            for team in TEAMS {
                put_quota(admin, team, pool, share).await?;
            }
        }
        Ok(())
    }

    async fn start_agents(&mut self) -> anyhow::Result<()> {
        let mut machines = self.options.machines.clone();
        let nodes = self.admin().list("/nodes?retired=true&limit=500").await?;
        let intent = |machine: &Machine| {
            let node = nodes.iter().find(|node| node["name"] == *machine.name);
            node.and_then(|node| node["intent"].as_str())
                .unwrap_or("open")
        };
        let mut told = Vec::new();
        for machine in &machines {
            match intent(machine) {
                "open" => {}
                "retired" => told.push(format!(
                    "node {} is retired: its agent is not started",
                    machine.name
                )),
                other => told.push(format!(
                    "node {} is {other}: it starts nothing until it is uncordoned",
                    machine.name
                )),
            }
        }
        machines.retain(|machine| intent(machine) != "retired");
        for line in told {
            self.options.stages.say(line);
        }
        self.options
            .stages
            .say(format!("starting {} agents", machines.len()));
        for machine in machines {
            self.add_agent(machine, None).await?;
        }
        Ok(())
    }

    async fn reach(&mut self, name: &str) -> anyhow::Result<Reach> {
        let place = self.agents.len() % self.servers.len();
        let mut address = self.servers[place].addresses().agents;
        if self.options.proxied {
            let proxy = Proxy::start(address).await?;
            address = proxy.address();
            self.proxies.insert(name.to_owned(), proxy);
        }
        Ok(Reach {
            server_url: format!("https://127.0.0.1:{}", address.port()),
            address: "127.0.0.1".to_owned(),
            namespace: None,
            settings: self.options.agent_settings.clone(),
            shared_checkpoints: self
                .options
                .checkpoints_shared
                .then(|| self.options.paths.state.join("checkpoints")),
        })
    }

    /// Submits the example jobs, once in the life of the state folder.
    pub async fn submit_examples(&mut self) -> anyhow::Result<()> {
        if self.secrets.examples_submitted {
            return Ok(());
        }
        self.options.stages.say("submitting the example jobs");
        let folder = crate::paths::checkout_of_build().join("examples");
        let mut refused = Vec::new();
        for (user, file) in examples::AT_FIRST_START {
            let user = self.secrets.user(user)?.clone();
            let team = user
                .team
                .as_deref()
                .context("an example's owner is in a team")?;
            let spec = examples::read(&folder.join(file))?;
            let api = self.sign_in(&user.name).await?;
            let key = RepeatKey::new().to_string();
            let path = format!("/teams/{team}/jobs");
            let answer = api
                .call(Method::POST, &path, Some(&spec), Some(&key))
                .await?;
            if !answer.status.is_success() {
                refused.push(format!("{file}: {}", answer.words()));
            }
        }
        // Machines of another kind than the examples ask for are no failed start.
        for line in refused {
            self.options
                .stages
                .say(format!("an example is not submitted: {line}"));
        }
        self.secrets.examples_submitted = true;
        self.secrets.keep(&self.options.paths.state)
    }

    /// A command that enrols one more machine, with a fresh token.
    pub async fn enrol_command(&self) -> anyhow::Result<String> {
        let Some(machine) = self.options.machines.first() else {
            bail!("no machine names a pool");
        };
        let answer = self
            .admin()
            .post("/nodes/join-tokens", &json!({"pool": machine.pool}))
            .await?;
        Ok(format!(
            "allotment-agent enrol --server {} --token {} --ca {}",
            self.agent_url(),
            text(&answer, "token")?,
            self.ca().display()
        ))
    }

    /// `https://…` of the agents' listener.
    pub fn agent_url(&self) -> String {
        format!(
            "https://127.0.0.1:{}",
            self.servers[0].addresses().agents.port()
        )
    }
}

async fn put_quota(admin: &Api, team: &str, pool: &str, guaranteed: u64) -> anyhow::Result<()> {
    let quota = json!({
        "guaranteed": guaranteed, "limit": null, "lend_limit": null, "weight": 1, "max_per_user": null
    });
    admin
        .put_new(&format!("/teams/{team}/quotas/{pool}"), &quota)
        .await?;
    Ok(())
}

/// Devices of a machine, for the sake of sharing them out; 3 where it must be looked up.
fn devices_of(machine: &Machine) -> u64 {
    match machine.model.as_deref() {
        Some("l40s-4" | "a30-4") => 4,
        Some(_) => 8,
        None => TEAMS.len() as u64,
    }
}
