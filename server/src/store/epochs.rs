//! The epoch: the pair that fences out a past leader.

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
