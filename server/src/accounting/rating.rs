//! Rating: charged segments become ledger entries, once, at most an hour each.

use domain::Timestamp;

use crate::store::{self, Database, ledger, periods};

/// Segments rated in one transaction; more wait for the next, so that it stays short.
const SEGMENTS_MAX: i64 = 500;
/// Transactions of one call; what is left is taken up by the next.
const ROUNDS_MAX: usize = 100;

/// Rates everything that is due: closed segments to their end, open ones up to the last full
/// hour. It may be stopped at any point and run again: what has been rated is not rated twice.
pub async fn rate_due(db: &Database) -> Result<(), sqlx::Error> {
    for _ in 0..ROUNDS_MAX {
        let mut tx = db.begin_system().await?;
        if !ledger::try_lock(&mut tx).await? {
            return Ok(());
        }
        let now = store::clock(&mut tx).await?;
        periods::open_through(&mut tx, now).await?;
        let hour = full_hour(now);
        let due = ledger::lock_due(&mut tx, hour, SEGMENTS_MAX).await?;
        if due.is_empty() {
            return tx.commit().await;
        }
        let (entries, unpriced) = ledger::rate(&mut tx, &due, hour).await?;
        tx.commit().await?;
        metrics::counter!("allotment_ledger_entries").increment(entries);
        if unpriced > 0 {
            metrics::counter!("allotment_ledger_entries_unpriced").increment(unpriced);
            tracing::error!(
                entries = unpriced,
                "usage that no price covers is unpriced: add a price for its pool and mode"
            );
        }
    }
    Ok(())
}

/// The beginning of the hour of the clock that a time lies in.
fn full_hour(time: Timestamp) -> Timestamp {
    let seconds = time.timestamp().div_euclid(3_600) * 3_600;
    Timestamp::from_timestamp(seconds, 0).expect("an hour before a time is a time")
}
