//! One function per thing that a person can do: one transaction, its event, its audit row.

use std::sync::Arc;

use domain::ids::ReplicaId;
use tokio::sync::Notify;

use crate::config::Config;
use crate::store::Database;

pub mod asker;
pub mod audit;
pub mod authorise;
pub mod billing_statements;
pub mod bookings;
pub mod browsers;
pub mod budgets;
mod change;
pub mod classes;
pub mod clock;
pub mod commitments;
pub mod error;
pub mod evictions;
pub mod feed;
pub mod gate;
pub mod holdings;
pub mod idempotency;
pub mod jobs;
pub mod links;
pub mod lists;
pub mod log_search;
pub mod logs;
pub mod nodes;
pub mod notices;
pub mod page;
pub mod passwords;
pub mod periods;
pub mod planning;
pub mod policy_diff;
pub mod pool_policy;
pub mod pools;
pub mod price_books;
pub mod prices;
pub mod promises;
pub mod pulse;
pub mod questions;
pub mod queue;
pub mod quotas;
pub mod reason;
pub mod reconciliations;
mod refusal_code;
pub mod results;
pub mod rights;
pub mod schedules;
pub mod sessions;
pub mod spend;
pub mod statements;
pub mod streams;
pub mod teams;
pub mod telemetry;
pub mod terminals;
pub mod throttle;
pub mod usage;
pub mod users;
pub mod versions;
pub mod webhooks;
pub mod windows;
mod wish;

pub use asker::Asker;
pub use error::AppError;
pub use links::Links;
pub use refusal_code::RefusalCode;

/// What every front door shares. Cheap to clone.
#[derive(Clone)]
pub struct App {
    /// The database.
    pub db: Database,
    /// The configuration.
    pub config: Arc<Config>,
    /// Wakes this replica's loops after a commit; a hint, never a message.
    pub wake: Arc<Wake>,
    /// This life of this server process.
    pub replica: ReplicaId,
    /// The nodes whose streams this replica holds, for reading their logs.
    pub links: Arc<Links>,
    /// Where who asks for a terminal meets the node.
    pub terminals: terminals::exchange::Exchange,
    /// Who guesses passwords.
    pub throttle: Arc<throttle::Throttle>,
    /// Who waits for a password to be hashed.
    pub hashing: Arc<passwords::Hashing>,
    /// What the loops last achieved, for `/readyz`.
    pub pulse: Arc<pulse::Pulse>,
    /// Where committed changes are handed on to live pages.
    pub feed: Arc<feed::Feed>,
    /// Who follows the feed, and who reads logs.
    pub streams: Arc<streams::Streams>,
    /// Where changes of rights are handed on to logs that are followed.
    pub rights: Arc<rights::Board>,
    /// What this replica keeps for questions to the planner.
    pub questions: Arc<questions::Questions>,
}

/// One hint per loop. Whoever commits a change that a loop should see calls it after the commit.
#[derive(Debug, Default)]
pub struct Wake {
    /// The scheduler.
    pub scheduler: Notify,
    /// The sender of desired sets.
    pub agents: Notify,
    /// The reconcilers in `background`.
    pub background: Notify,
    /// Readers of the change feed for live pages.
    pub feed: Notify,
    /// The sender of hints to other replicas.
    pub relay: Notify,
}

impl Wake {
    /// Wakes every loop, here and in the other replicas.
    pub fn all(&self) {
        self.local();
        self.relay.notify_one();
    }

    /// Wakes every loop of this replica.
    pub fn local(&self) {
        for notify in [&self.scheduler, &self.agents, &self.background, &self.feed] {
            notify.notify_one();
        }
    }
}

impl App {
    /// Builds the application over an open database.
    pub fn new(db: Database, config: Config) -> Self {
        Self {
            db,
            config: Arc::new(config),
            wake: Arc::new(Wake::default()),
            replica: ReplicaId::new(),
            links: Arc::new(Links::default()),
            terminals: terminals::exchange::Exchange::default(),
            throttle: Arc::default(),
            hashing: Arc::default(),
            pulse: Arc::default(),
            feed: Arc::default(),
            streams: Arc::default(),
            rights: Arc::default(),
            questions: Arc::default(),
        }
    }
}

impl App {
    /// Where agents call: as configured, else the address that the port was opened on.
    pub fn agent_url(&self) -> String {
        let configured = self.config.agents.public_url.clone();
        configured
            .or_else(|| {
                self.links
                    .agents_address()
                    .map(|at| format!("https://{at}"))
            })
            .unwrap_or_else(|| format!("https://{}", self.config.listen.agents))
    }
}

/// Reads a field of a change, in which absent means "stays" and is told from null: where null has a
/// meaning the field is an option of an option, and else null is refused.
pub fn some<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: serde::Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}
