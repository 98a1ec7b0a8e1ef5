//! The epoch: the pair that fences out a past leader.

use sqlx::Connection;
use sqlx::postgres::{PgConnection, PgPool};

use super::Tx;

/// A database timeline with a number that only rises; compared in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch {
    /// The timeline of the database; a promoted standby has a higher one.
    pub timeline: i64,
    /// Raised by each leader that takes over.
    pub number: i64,
}

/// The present epoch.
pub async fn current(tx: &mut Tx) -> Result<Epoch, sqlx::Error> {
    sqlx::query_as!(Epoch, "SELECT timeline, number FROM epochs")
        .fetch_one(&mut **tx)
        .await
}

/// The present epoch, locked so that no other leader takes over before the transaction ends.
pub async fn share(tx: &mut Tx) -> Result<Epoch, sqlx::Error> {
    sqlx::query_as!(Epoch, "SELECT timeline, number FROM epochs FOR SHARE")
        .fetch_one(&mut **tx)
        .await
}

/// Takes over: waits for commits under way, then makes every older epoch void. The timeline is
/// read from the name of the log's present segment, which a promotion changes at once, not
/// from the control file, which the next checkpoint changes.
pub async fn raise(tx: &mut Tx, leader: &str) -> Result<Epoch, sqlx::Error> {
    sqlx::query_as!(
        Epoch,
        "UPDATE epochs
         SET timeline = GREATEST(timeline, ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint),
             number = number + 1,
             leader = $1,
             taken_at = allotment.clock()
         RETURNING timeline, number",
        leader,
    )
    .fetch_one(&mut **tx)
    .await
}

/// The advisory lock that the leader holds; one for the whole product in a database.
const LOCK_KEY: i64 = 0x616c_6c6f_746d_6e74;

/// A connection of its own that takes part in the election of the leader. The lock lives as
/// long as the connection: whoever loses it has lost the lead.
#[derive(Debug)]
pub struct Candidate {
    connection: PgConnection,
}

impl Candidate {
    /// Connects as the system role. A connection whose other side is gone is noticed within
    /// half a minute by both sides, so that a dead leader's lock does not linger.
    pub async fn connect(pool: &PgPool) -> Result<Self, sqlx::Error> {
        let mut connection = PgConnection::connect_with(&pool.connect_options()).await?;
        sqlx::query!(
            r#"SELECT set_config('tcp_keepalives_idle', '10', false) AS idle,
                      set_config('tcp_keepalives_interval', '5', false) AS interval,
                      set_config('tcp_keepalives_count', '3', false) AS count"#
        )
        .fetch_one(&mut connection)
        .await?;
        Ok(Self { connection })
    }

    /// Takes the lock unless somebody else has it.
    pub async fn try_lead(&mut self) -> Result<bool, sqlx::Error> {
        sqlx::query_scalar!(r#"SELECT pg_try_advisory_lock($1) AS "led!""#, LOCK_KEY)
            .fetch_one(&mut self.connection)
            .await
    }

    /// Fails when the connection, and with it the lock, is lost.
    pub async fn ping(&mut self) -> Result<(), sqlx::Error> {
        self.connection.ping().await
    }

    /// Gives the lock up, so that another replica leads at once.
    pub async fn resign(self) -> Result<(), sqlx::Error> {
        self.connection.close().await
    }
}
