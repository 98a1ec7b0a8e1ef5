//! One node agent: its machine, its enrolment, its process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::agents_file::Machine;
use crate::api::{Api, text};
use crate::child::{Process, Program, finish};
use crate::paths::Paths;
use crate::{toml, who};

/// An agent leaves its jobs running and has only to sync its journal.
const STOP_BOUND: Duration = Duration::from_secs(15);
/// The exit code of an agent whose node is retired.
const RETIRED: i32 = 3;

/// How an agent finds and is found.
#[derive(Debug, Clone)]
pub struct Reach {
    /// The server's URL for agents.
    pub server_url: String,
    /// The address by which other workers reach the node.
    pub address: String,
    /// The network namespace that it runs in.
    pub namespace: Option<String>,
    /// What stands at the end of its settings.
    pub settings: String,
    /// The folder of checkpoints that it shares with other agents.
    pub shared_checkpoints: Option<PathBuf>,
}

/// An agent that was enrolled.
#[derive(Debug)]
pub struct Agent {
    /// The machine that it speaks for.
    pub machine: Machine,
    folder: PathBuf,
    config: PathBuf,
    program: PathBuf,
    log: PathBuf,
    reach: Reach,
    process: Process,
}

/// CPU cores and memory that a simulated machine says it has: those of the real model, so
/// that requests made for it fit, whatever the machine below.
fn figures(model: &str) -> (u32, i64) {
    const GIB: i64 = 1024;
    match model {
        "dgx-a100" => (128, 2_048 * GIB),
        "dgx-h100" | "dgx-h200" => (112, 2_048 * GIB),
        "a100-pcie-8" => (128, 1_024 * GIB),
        "dgx-2" => (96, 1_536 * GIB),
        "gb200-4" => (144, 960 * GIB),
        "l40s-8" => (128, 1_024 * GIB),
        _ => (64, 512 * GIB),
    }
}

impl Agent {
    /// Writes the machine's files; nothing is started.
    pub async fn prepare(paths: &Paths, machine: Machine, reach: Reach) -> anyhow::Result<Self> {
        let folder = paths.agents().join(&machine.name);
        who::make_folder(&folder, who::PASSABLE)?;
        let agent = Self {
            config: folder.join("agent.toml"),
            program: paths.binary("allotment-agent")?,
            log: paths.logs().join(format!("agent-{}.log", machine.name)),
            machine,
            folder,
            reach,
            process: Process::default(),
        };
        let mut lines = vec![
            format!("state_dir = {}", toml::path(&agent.state_folder())),
            // Its identity may be of an earlier start, at other ports.
            format!("server = {}", toml::string(&agent.reach.server_url)),
            format!("address = {}", toml::string(&agent.reach.address)),
            format!("allow_unisolated = {}", !who::root()),
        ];
        if let Some(root) = &agent.reach.shared_checkpoints {
            who::make_folder(root, who::PASSABLE)?;
            lines.push(format!(
                "checkpoint_root = {}\ncheckpoints_shared = true",
                toml::path(root)
            ));
        }
        if let Some(model) = &agent.machine.model {
            let (cpus, memory_mib) = figures(model);
            lines.push(format!(
                "nvml_library = {}",
                toml::path(&paths.binary("libnvml_sim.so")?)
            ));
            lines.push(format!(
                "mps_control = {}",
                toml::path(&paths.binary("nvml-sim-mps-control")?)
            ));
            lines.push(format!("cpus = {cpus}\nmemory_mib = {memory_mib}"));
            // Who is not root may cut the devices of a simulated machine, too.
            lines.push(format!(
                "mig_capability = {}",
                toml::path(&agent.machine_file())
            ));
            if !agent.machine_file().exists() {
                let mut command = Command::new(paths.binary("nvml-sim-machine")?);
                command.args(["--model", model, "--seed", &agent.machine.name]);
                let text = finish("nvml-sim-machine", command).await?;
                agent.write_machine(&text)?;
            }
        }
        lines.push(agent.reach.settings.clone());
        who::write_private(&agent.config, &(lines.join("\n") + "\n"))?;
        Ok(agent)
    }

    /// Joins the machine's pool with a token from `admin`, once in the life of its state folder.
    pub async fn enrol(&self, admin: &Api, ca: &Path) -> anyhow::Result<()> {
        if self.state_folder().join("identity/identity.json").exists() {
            return Ok(());
        }
        let answer = admin
            .post("/nodes/join-tokens", &json!({"pool": self.machine.pool}))
            .await?;
        let mut command = self.command();
        command
            .arg("enrol")
            .args(["--server", &self.reach.server_url])
            .env("ALLOTMENT_JOIN_TOKEN", text(&answer, "token")?)
            .arg("--ca")
            .arg(ca)
            .args(["--name", &self.machine.name])
            .arg("--state-dir")
            .arg(self.state_folder());
        finish(&format!("enrolment of {}", self.machine.name), command).await?;
        Ok(())
    }

    /// Starts the agent's process.
    pub fn begin(&mut self) -> anyhow::Result<()> {
        let mut command = self.command();
        command.arg("run").arg("--config").arg(&self.config);
        self.process.start(Program {
            name: format!("agent {}", self.machine.name),
            command,
            log: self.log.clone(),
            owner: None,
            stop_signal: Signal::SIGTERM,
        })
    }

    /// Fails, naming the process and its log, when it has ended by itself, but for one whose node
    /// is retired.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if self.process.has_left(RETIRED)? {
            return Ok(());
        }
        self.process.check()
    }

    /// Stops it; its jobs go on.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.process.stop(STOP_BOUND).await
    }

    /// `kill -9` of the agent alone; its jobs go on.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        self.process.signal(signal)
    }

    /// Its process id, 0 while it is stopped.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The agent's own state folder, with journal, logs and checkpoints.
    pub fn state_folder(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// Who held which device when, as its journal tells it; the agent may be running.
    pub async fn journal(&self) -> anyhow::Result<Value> {
        let mut command = Command::new(&self.program);
        command
            .args(["journal", "--json", "--state-dir"])
            .arg(self.state_folder());
        let told = finish(&format!("the journal of {}", self.machine.name), command).await?;
        serde_json::from_str(&told).context("what the journal tells")
    }

    /// The simulated machine's file.
    pub fn machine_file(&self) -> PathBuf {
        self.folder.join("machine.json")
    }

    /// Rewrites the simulated machine while the agent runs.
    pub fn write_machine(&self, text: &str) -> anyhow::Result<()> {
        who::write_private(&self.machine_file(), text)
    }

    /// Changes the simulated machine while it runs.
    pub fn change_machine(&self, change: impl FnOnce(&mut Value)) -> anyhow::Result<()> {
        let mut machine = self.read_machine()?;
        change(&mut machine);
        self.write_machine(&machine.to_string())
    }

    fn read_machine(&self) -> anyhow::Result<Value> {
        let text = std::fs::read_to_string(self.machine_file()).context("read the machine file")?;
        serde_json::from_str(&text).context("the machine file")
    }

    /// Takes devices out of the simulated machine, by index, as if they had fallen off the bus.
    pub fn lose_devices(&self, indices: &[usize]) -> anyhow::Result<()> {
        let mut machine = self.read_machine()?;
        let Some(devices) = machine["devices"].as_array_mut() else {
            bail!("the machine file has no devices");
        };
        let mut place = 0;
        devices.retain(|_| {
            place += 1;
            !indices.contains(&(place - 1))
        });
        self.write_machine(&machine.to_string())
    }

    fn command(&self) -> Command {
        let mut command = match &self.reach.namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command
                    .args(["netns", "exec", namespace])
                    .arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        if self.machine.model.is_some() {
            command.env("ALLOTMENT_NVML_SIM_MACHINE", self.machine_file());
        }
        command
    }
}
