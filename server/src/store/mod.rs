//! All SQL, one file per noun; functions take the transaction, the team first, and call nothing above.
//!
//! A transaction is begun here and nowhere else: [`Database::begin_person`] for what a
//! person does (role `allotment_app`, under row-level security), [`Database::begin_system`]
//! for the scheduler, agents and accounts (role `allotment_system`).

pub mod arrays;
pub mod assignments;
pub mod attempts;
pub mod audit;
pub mod authority;
pub mod billing_statements;
pub mod bookings;
pub mod budgets;
pub mod capacity;
pub mod changes;
pub mod classes;
pub mod commitments;
pub mod committed;
pub mod desired;
pub mod devices;
pub mod epochs;
pub mod events;
pub mod evictions;
pub mod expected_starts;
pub mod fillings;
pub mod idempotency;
pub mod jobs;
pub mod join_tokens;
pub mod leases;
pub mod ledger;
pub mod nodes;
pub mod outbox;
pub mod past;
pub mod periods;
pub mod placements;
pub mod pools;
pub mod price_books;
pub mod prices;
pub mod quotas;
pub mod reconciliations;
pub mod replicas;
pub mod reratings;
pub mod sampled;
pub mod samples;
pub mod schedules;
pub mod schema;
pub mod segments;
pub mod sessions;
pub mod starved;
pub mod subscriptions;
pub mod teams;
pub mod users;
pub mod versions;
pub mod waits;
pub mod webhooks;
pub mod windows;
pub mod world;

use std::sync::Arc;
use std::time::Duration;

use domain::Timestamp;
use domain::ids::{TeamId, UserId};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

/// A transaction on either role; what it may see depends on how it was begun.
pub type Tx = sqlx::Transaction<'static, sqlx::Postgres>;

/// Longest wait for a connection: then 503, so that nothing hangs when the pool is used up.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// The two pools.
#[derive(Debug, Clone)]
pub struct Database {
    app: PgPool,
    system: PgPool,
}

/// The connections of one pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolUse {
    /// The role that it connects as.
    pub role: &'static str,
    /// Connections that are open.
    pub open: u32,
    /// Those of them that nobody uses now.
    pub idle: u32,
}

/// What a person's transaction may see: set once when it begins, read by every policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// Who asks.
    pub asker: UserId,
    /// Whether a platform role shows it every team.
    pub sees_all: bool,
    /// Its teams with all below them.
    pub teams: Vec<TeamId>,
    /// The teams above those.
    pub ancestors: Vec<TeamId>,
}

impl Database {
    /// Opens both pools; connections are made when they are first needed.
    pub fn open(config: &crate::config::Database) -> Result<Self, sqlx::Error> {
        let pool = |url: &str| {
            PgPoolOptions::new()
                .max_connections(config.connections)
                .acquire_timeout(ACQUIRE_TIMEOUT)
                .connect_lazy(url)
        };
        Ok(Self {
            app: pool(&config.app_url)?,
            system: pool(&config.system_url)?,
        })
    }

    /// A database over given pools; for tests.
    pub fn from_pools(app: PgPool, system: PgPool) -> Self {
        Self { app, system }
    }

    /// Begins a person's transaction: nothing outside `scope` can be seen or written in it.
    pub async fn begin_person(&self, scope: &Scope) -> Result<Tx, sqlx::Error> {
        let mut tx = begin(&self.app).await?;
        let sees_all = if scope.sees_all { "on" } else { "" };
        sqlx::query!(
            "SELECT set_config('allotment.asker', $1, true) AS asker,
                    set_config('allotment.sees_all', $2, true) AS sees_all,
                    set_config('allotment.teams', $3, true) AS teams,
                    set_config('allotment.ancestors', $4, true) AS ancestors",
            scope.asker.to_string(),
            sees_all,
            join(&scope.teams),
            join(&scope.ancestors),
        )
        .fetch_one(&mut *tx)
        .await?;
        Ok(tx)
    }

    /// Begins a transaction of a person who is nobody: nothing of any team can be seen in it.
    pub async fn begin_nobody(&self) -> Result<Tx, sqlx::Error> {
        begin(&self.app).await
    }

    /// Begins a transaction of the system's own.
    pub async fn begin_system(&self) -> Result<Tx, sqlx::Error> {
        begin(&self.system).await
    }

    /// How many connections each pool holds.
    pub fn pools_in_use(&self) -> [PoolUse; 2] {
        [("app", &self.app), ("system", &self.system)].map(|(role, pool)| PoolUse {
            role,
            open: pool.size(),
            idle: u32::try_from(pool.num_idle()).unwrap_or(u32::MAX),
        })
    }

    /// Where persons' transactions connect to.
    pub fn app_options(&self) -> Arc<PgConnectOptions> {
        self.app.connect_options()
    }

    /// Where the system's transactions connect to.
    pub fn system_options(&self) -> Arc<PgConnectOptions> {
        self.system.connect_options()
    }

    /// The system pool, for connections that are held: the leader's lock and LISTEN.
    pub fn system_pool(&self) -> &PgPool {
        &self.system
    }
}

/// Begins a transaction, in a task of its own: a request that is broken off meanwhile would give its
/// connection back with a transaction that has begun and that nothing ends.
async fn begin(pool: &PgPool) -> Result<Tx, sqlx::Error> {
    let pool = pool.clone();
    let begun = tokio::spawn(async move { pool.begin().await });
    begun.await.map_err(|error| sqlx::Error::Io(error.into()))?
}

/// The database's clock: the only one that decides or bills.
pub async fn clock(tx: &mut Tx) -> Result<Timestamp, sqlx::Error> {
    sqlx::query_scalar!(r#"SELECT allotment.clock() AS "now!""#)
        .fetch_one(&mut **tx)
        .await
}

/// Marks a place in a transaction that [`undo_to_mark`] returns to.
pub async fn mark(tx: &mut Tx) -> Result<(), sqlx::Error> {
    sqlx::query!("SAVEPOINT mark").execute(&mut **tx).await?;
    Ok(())
}

/// Undoes what was done since [`mark`], and takes the mark away.
pub async fn undo_to_mark(tx: &mut Tx) -> Result<(), sqlx::Error> {
    sqlx::query!("ROLLBACK TO SAVEPOINT mark")
        .execute(&mut **tx)
        .await?;
    release_mark(tx).await
}

/// Keeps what was done since [`mark`], and takes the mark away.
pub async fn release_mark(tx: &mut Tx) -> Result<(), sqlx::Error> {
    sqlx::query!("RELEASE SAVEPOINT mark")
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// The name of the constraint that refused a statement, if one did.
pub fn violated(error: &sqlx::Error) -> Option<&str> {
    error.as_database_error().and_then(|e| e.constraint())
}

/// Whether the database was away rather than the statement wrong.
pub fn away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Protocol(_)
        | sqlx::Error::Tls(_) => true,
        // 57P0x: shutting down or starting up; 08: connection; 53300: too many connections.
        sqlx::Error::Database(e) => e
            .code()
            .is_some_and(|c| c.starts_with("57P") || c.starts_with("08") || c == "53300"),
        _ => false,
    }
}

/// Whether the same may succeed if it is asked again: the database was away, or the transaction
/// gave way to another one (40001 and 40P01).
pub fn passing(error: &sqlx::Error) -> bool {
    let gave_way = |e: &dyn sqlx::error::DatabaseError| {
        e.code().is_some_and(|c| matches!(&*c, "40001" | "40P01"))
    };
    away(error) || error.as_database_error().is_some_and(gave_way)
}

/// Whether the database refused what we wrote, so that the same will be refused again. Everything
/// else, such as a full disk or a deadlock, passes.
pub fn refused(error: &sqlx::Error) -> bool {
    match error {
        // 22: bad value; 23: a constraint; 42: a statement that cannot be; P0: raised by ours.
        sqlx::Error::Database(e) => e.code().is_some_and(|code| {
            ["22", "23", "42", "P0"]
                .iter()
                .any(|class| code.starts_with(class))
        }),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => true,
        _ => false,
    }
}

fn join(ids: &[TeamId]) -> String {
    let mut joined = String::with_capacity(ids.len() * 37);
    for id in ids {
        if !joined.is_empty() {
            joined.push(',');
        }
        joined.push_str(&id.to_string());
    }
    joined
}
