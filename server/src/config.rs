//! The server's configuration: one TOML file, each key with a documented default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use domain::weekly::Zone;
use serde::{Deserialize, Deserializer};

mod check;
pub mod outbound;
mod proxies;

pub use outbound::{Mail, MailSecurity, Webhooks};
pub use proxies::{Network, Proxies, ProxyHeader};

/// Everything that `allotment-server` can be told.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the database is, and as whom.
    pub database: Database,
    /// Addresses that are listened on.
    #[serde(default)]
    pub listen: Listen,
    /// The proxies before this server.
    #[serde(default)]
    pub proxies: Proxies,
    /// Timers; tests shorten them.
    #[serde(default)]
    pub timers: Timers,
    /// How agents reach this server and what their certificates say.
    #[serde(default)]
    pub agents: Agents,
    /// Sign-in and cookies.
    #[serde(default)]
    pub sessions: Sessions,
    /// How much one person may take.
    #[serde(default)]
    pub limits: Limits,
    /// How long what ages is kept.
    #[serde(default)]
    pub retention: Retention,
    /// What is the organisation's own.
    #[serde(default)]
    pub organisation: Organisation,
    /// The server that takes e-mail.
    #[serde(default)]
    pub mail: Mail,
    /// What webhooks may reach.
    #[serde(default)]
    pub webhooks: Webhooks,
    /// First Unix user id of the teams' ranges; a team's is this plus its slot times 1,000.
    #[serde(default = "default_unix_base")]
    pub unix_user_base: u32,
    /// Log filter in the syntax of `RUST_LOG`.
    #[serde(default = "default_log")]
    pub log: String,
}

/// Connection URLs, one per role.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    /// As the owner; used by `migrate` only and may be left out of the servers' files.
    pub owner_url: Option<String>,
    /// As `allotment_app`, under row-level security.
    pub app_url: String,
    /// As `allotment_system`.
    pub system_url: String,
    /// Connections of each of the two pools.
    #[serde(default = "default_connections")]
    pub connections: u32,
}

/// Listening addresses; loopback by default, port 0 takes a free one.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// Pages and REST.
    pub http: SocketAddr,
    /// Agents, by mTLS.
    pub agents: SocketAddr,
    /// Metrics.
    pub metrics: SocketAddr,
    /// Other replicas, by mTLS.
    pub internal: SocketAddr,
    /// A file that is written, atomically, with the addresses that were taken; for port 0.
    pub addresses_file: Option<PathBuf>,
}

impl Default for Listen {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Self {
            http: loopback(8080),
            agents: loopback(8443),
            metrics: loopback(9090),
            internal: loopback(8444),
            addresses_file: None,
        }
    }
}

/// Timers, written in milliseconds. Those that only loops of this process wait for are durations;
/// what the database or an agent is told stays a number.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timers {
    /// How often an agent says that it is alive.
    pub heartbeat_ms: i64,
    /// How long a node may run its assignments after a heartbeat.
    pub node_lease_ms: i64,
    /// Between SIGTERM and SIGKILL.
    pub kill_grace_ms: i64,
    /// Added to lease and grace before work is placed elsewhere.
    pub clock_margin_ms: i64,
    /// A gang's nodes must all have acknowledged within this.
    pub start_window_ms: i64,
    /// First back-off of a retry; doubled each time.
    pub retry_backoff_ms: i64,
    /// How often reconcilers run without being woken.
    #[serde(rename = "tick_ms", deserialize_with = "milliseconds")]
    pub tick: Duration,
    /// How often the scheduler compares its world with the database.
    #[serde(rename = "world_check_ms", deserialize_with = "milliseconds")]
    pub world_check: Duration,
    /// Without a finished cycle for so long the scheduler counts as stalled.
    #[serde(rename = "stall_ms", deserialize_with = "milliseconds")]
    pub stall: Duration,
    /// A request's head must have come by then, and an idle connection ends.
    #[serde(rename = "request_head_ms", deserialize_with = "milliseconds")]
    pub request_head: Duration,
    /// A request's body must have come by then.
    #[serde(rename = "request_body_ms", deserialize_with = "milliseconds")]
    pub request_body: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            heartbeat_ms: 5_000,
            node_lease_ms: 60_000,
            kill_grace_ms: 30_000,
            clock_margin_ms: 5_000,
            start_window_ms: 60_000,
            retry_backoff_ms: 10_000,
            tick: Duration::from_secs(1),
            world_check: Duration::from_secs(60),
            stall: Duration::from_secs(30),
            request_head: Duration::from_secs(15),
            request_body: Duration::from_secs(30),
        }
    }
}

impl Timers {
    /// The heartbeat, for loops that wait for it.
    pub fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms.unsigned_abs())
    }

    /// The lease, for loops that wait for it.
    pub fn node_lease(&self) -> Duration {
        Duration::from_millis(self.node_lease_ms.unsigned_abs())
    }
}

/// What agents need to know of the server.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Agents {
    /// Names and addresses that the server's certificate is good for.
    pub server_names: Vec<String>,
    /// The URL that enrolment commands show; absent: made of the listening address.
    pub public_url: Option<String>,
    /// Life of an agent's certificate, in seconds.
    pub certificate_seconds: i64,
    /// Life of a join token, in seconds.
    pub join_token_seconds: i64,
}

impl Default for Agents {
    fn default() -> Self {
        Self {
            server_names: vec!["localhost".into(), "127.0.0.1".into()],
            public_url: None,
            certificate_seconds: 24 * 3600,
            join_token_seconds: 3600,
        }
    }
}

/// What is the organisation's own.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Organisation {
    /// Whose clocks weekly windows follow that name no time zone.
    pub time_zone: Zone,
}

impl Default for Organisation {
    fn default() -> Self {
        Self {
            time_zone: Zone::UTC,
        }
    }
}

/// Sessions and cookies.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sessions {
    /// Life of a log-in, in seconds.
    pub seconds: i64,
    /// Whether cookies are marked Secure; set it wherever TLS ends before the server.
    pub secure_cookies: bool,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            seconds: 12 * 3600,
            secure_cookies: false,
        }
    }
}

/// What one person may take of one server.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Event streams that are open at once: each live page has one.
    pub event_streams_per_person: usize,
    /// Logs that are read at once, of all jobs. A node reads few to all people together.
    pub logs_per_person: usize,
}

/// How long what ages is kept, in days.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// Versions of policies; the newest of each object stays for ever.
    pub policy_versions_days: i64,
    /// Samples of what devices do, as they come.
    pub samples_days: i64,
    /// What minutes of them come to.
    pub sample_minutes_days: i64,
    /// What hours come to.
    pub sample_hours_days: i64,
    /// What days come to.
    pub sample_days_days: i64,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            policy_versions_days: 730,
            samples_days: 7,
            sample_minutes_days: 31,
            sample_hours_days: 400,
            sample_days_days: 1_830,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            event_streams_per_person: 32,
            logs_per_person: 16,
        }
    }
}

impl Config {
    /// Reads the file at `path`; errors name the file, and the line where TOML has one.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("read configuration file {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("configuration file {}", path.display()))
    }
}

fn milliseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_millis)
}
fn default_unix_base() -> u32 {
    200_000
}
fn default_log() -> String {
    "info".into()
}
fn default_connections() -> u32 {
    20
}
