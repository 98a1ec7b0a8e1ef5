//! A private PostgreSQL: found, made, started, asked, stopped and killed.

mod found;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::child::{Process, Program, finish, in_words, tail};
use crate::paths::Paths;
use crate::who::{self, Owner};

pub use found::Programs;

/// Recovery after a crash replays at most what two checkpoints of a small database hold.
const START_BOUND: Duration = Duration::from_secs(60);
/// A fast shutdown waits for nobody but its own checkpoint.
const STOP_BOUND: Duration = Duration::from_secs(30);
/// Two servers with two pools of 20 each, the tests' databases, and people with psql.
const CONNECTIONS_MAX: u32 = 250;

/// The role that owns the product's database.
pub const OWNER: &str = "allotment_owner";
/// The product's database.
pub const DATABASE: &str = "allotment";

/// How a private PostgreSQL is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Whether what is committed survives a power loss.
    pub durable: bool,
    /// Whether every role needs its password; without, the socket's folder is the only door.
    pub passwords: bool,
}

/// Passwords of the roles that the rig makes.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Passwords {
    /// The superuser, for the rig alone.
    pub superuser: String,
    /// The owner of the database.
    pub owner: String,
}

impl Passwords {
    /// Fresh random ones.
    pub fn random() -> Self {
        Self {
            superuser: crate::demo::random_secret(),
            owner: crate::demo::random_secret(),
        }
    }
}

/// A running private PostgreSQL.
#[derive(Debug)]
pub struct Postgres {
    folder: PathBuf,
    log: PathBuf,
    programs: Programs,
    owner: Option<Owner>,
    passwords: Passwords,
    setup: Setup,
    process: Process,
}

impl Postgres {
    /// Makes the data folder when there is none, and starts.
    pub async fn start(paths: &Paths, passwords: &Passwords, setup: Setup) -> anyhow::Result<Self> {
        let mut postgres = Self {
            folder: paths.postgres(),
            log: paths.logs().join("postgres.log"),
            programs: Programs::find(&paths.tools)?,
            owner: who::postgres_owner()?,
            passwords: passwords.clone(),
            setup,
            process: Process::default(),
        };
        postgres.make().await?;
        postgres.begin().await?;
        postgres.make_owner().await?;
        Ok(postgres)
    }

    /// Fails, naming the process and its log, when it has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.process.check()
    }

    /// Its process id, 0 while it is stopped.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The URL of a database as the owner.
    pub fn owner_url(&self, database: &str) -> String {
        self.url(OWNER, &self.passwords.owner, database)
    }

    /// The URL of a database as some role.
    pub fn url(&self, role: &str, password: &str, database: &str) -> String {
        let socket = self.socket_folder().display().to_string();
        let credentials = if self.setup.passwords {
            format!("{role}:{password}")
        } else {
            role.to_owned()
        };
        format!("postgres://{credentials}@localhost/{database}?host={socket}")
    }

    /// Starts it again after a stop or a kill, and waits until it answers. The backends of a
    /// killed server may live on for a moment, and the new one refuses to start beside them.
    pub async fn begin(&mut self) -> anyhow::Result<()> {
        let begun = std::time::Instant::now();
        self.spawn()?;
        loop {
            if let Err(error) = self.process.check() {
                let beside = [
                    "pre-existing shared memory block",
                    "lock file \"postmaster.pid\" already exists",
                ];
                let passes = beside.iter().any(|sign| tail(&self.log).contains(sign));
                if !passes || begun.elapsed() > START_BOUND {
                    return Err(error);
                }
                self.spawn()?;
            }
            if self.query_text("postgres", "SELECT 1").await.is_ok() {
                return Ok(());
            }
            if begun.elapsed() > START_BOUND {
                bail!(
                    "PostgreSQL does not answer after {} s; see {}",
                    START_BOUND.as_secs(),
                    self.log.display()
                );
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        let mut command = Command::new(self.programs.path("postgres"));
        command.arg("-D").arg(self.data());
        self.process.start(Program {
            name: "PostgreSQL".to_owned(),
            command,
            log: self.log.clone(),
            owner: self.owner,
            stop_signal: Signal::SIGINT,
        })
    }

    /// Stops it as an operator would.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.process.stop(STOP_BOUND).await
    }

    /// `kill -9` of it and of all its backends' parent.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await
    }

    /// The rows of a query, as JSON objects; past row-level security.
    pub async fn query(&self, sql: &str) -> anyhow::Result<Vec<Value>> {
        let sql = sql.trim().trim_end_matches(';');
        let text = self
            .query_text(
                DATABASE,
                &format!("SELECT COALESCE(json_agg(q), '[]') FROM ({sql}) AS q"),
            )
            .await?;
        serde_json::from_str(&text).with_context(|| format!("rows of: {sql}"))
    }

    /// Runs statements as the superuser; what they print.
    pub async fn query_text(&self, database: &str, sql: &str) -> anyhow::Result<String> {
        let mut command = Command::new(self.programs.path("psql"));
        command
            .args([
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "postgres",
            ])
            .arg("-h")
            .arg(self.socket_folder())
            .args(["-d", database, "-f", "-"])
            .env("PGPASSWORD", &self.passwords.superuser)
            .env("PGCONNECT_TIMEOUT", "10")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true);
        let mut psql = command.spawn().context("start psql")?;
        let mut input = psql.stdin.take().expect("its input is piped");
        // A psql that ended at once (nobody listens) says so below.
        let _ = input.write_all(sql.as_bytes()).await;
        drop(input);
        let output = psql.wait_with_output().await.context("wait for psql")?;
        if !output.status.success() {
            bail!(
                "psql failed ({}): {}",
                in_words(output.status),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8(output.stdout)
            .context("psql printed invalid UTF-8")?
            .trim()
            .to_owned())
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Where the socket lies; nobody but PostgreSQL's user and root may enter.
    pub fn socket_folder(&self) -> PathBuf {
        self.folder.join("run")
    }

    async fn make(&self) -> anyhow::Result<()> {
        who::make_private_folder(&self.folder, self.owner)?;
        who::make_private_folder(&self.socket_folder(), self.owner)?;
        if self.data().join("PG_VERSION").exists() {
            return self.check_version();
        }
        let password_file = self.folder.join("superuser");
        who::write_private(&password_file, &self.passwords.superuser)?;
        if let Some(owner) = self.owner {
            std::os::unix::fs::chown(&password_file, Some(owner.uid), Some(owner.gid))
                .context("give the password file to PostgreSQL's user")?;
        }
        // A half-made folder from an interrupted start would be refused.
        let half = self.folder.join("half");
        let _ = std::fs::remove_dir_all(&half);
        let mut command = Command::new(self.programs.path("initdb"));
        command
            .args([
                "-U",
                "postgres",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-instructions",
            ])
            .arg("-A")
            .arg(if self.setup.passwords {
                "scram-sha-256"
            } else {
                "trust"
            })
            .arg("--pwfile")
            .arg(&password_file)
            .arg("-D")
            .arg(&half)
            .current_dir(&self.folder);
        if !self.setup.durable {
            command.arg("--no-sync");
        }
        if let Some(owner) = self.owner {
            command.uid(owner.uid).gid(owner.gid);
        }
        finish("initdb", command).await?;
        std::fs::remove_file(&password_file).context("remove the password file")?;
        let settings = half.join("postgresql.conf");
        let mut text = std::fs::read_to_string(&settings).context("read postgresql.conf")?;
        text.push_str(&self.settings());
        std::fs::write(&settings, text).context("write postgresql.conf")?;
        std::fs::rename(&half, self.data()).context("put PostgreSQL's data in place")
    }

    fn settings(&self) -> String {
        let mut text = format!(
            "\n# A private server: reached by its socket alone.\n\
             listen_addresses = ''\n\
             unix_socket_directories = '{}'\n\
             max_connections = {CONNECTIONS_MAX}\n\
             shared_buffers = '64MB'\n\
             log_timezone = 'UTC'\n\
             timezone = 'UTC'\n",
            self.socket_folder()
                .display()
                .to_string()
                .replace('\'', "''"),
        );
        if !self.setup.durable {
            // What is committed must still survive a kill: hence not synchronous_commit.
            text.push_str("fsync = off\nfull_page_writes = off\n");
        }
        text
    }

    fn check_version(&self) -> anyhow::Result<()> {
        let file = self.data().join("PG_VERSION");
        let made_by =
            std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let made_by = made_by.trim();
        if made_by != self.programs.major.to_string() {
            bail!(
                "the data in {} was made by PostgreSQL {made_by} and the one at hand is {}; \
                 install PostgreSQL {made_by}, or start anew with: ./dev up --fresh",
                self.data().display(),
                self.programs.major
            );
        }
        Ok(())
    }

    async fn make_owner(&self) -> anyhow::Result<()> {
        let there = self
            .query_text(
                "postgres",
                &format!("SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'"),
            )
            .await?;
        if there == "1" {
            return Ok(());
        }
        // The password is hex and needs no quoting.
        self.query_text(
            "postgres",
            &format!(
                "DO $$ BEGIN CREATE ROLE {OWNER} LOGIN CREATEDB CREATEROLE; \
                 EXCEPTION WHEN duplicate_object THEN NULL; END $$;\n\
                 ALTER ROLE {OWNER} PASSWORD '{}';\n\
                 CREATE DATABASE {DATABASE} OWNER {OWNER};",
                self.passwords.owner
            ),
        )
        .await
        .context("make the owner and the database")?;
        Ok(())
    }
}
