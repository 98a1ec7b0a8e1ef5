//! Rating anew: a price that changes in the past changes the ledger by reversals and new entries.

use crate::store::{Database, ledger, reratings};

/// Entries that are looked at in one transaction; more wait for the next, so that it stays short.
const ENTRIES_MAX: i64 = 500;
/// Transactions of one call; what is left is taken up by the next.
const ROUNDS_MAX: usize = 100;

/// Goes through what is due. It may be stopped at any point and run again: an entry that is right already is left.
pub async fn rerate_due(db: &Database) -> Result<(), sqlx::Error> {
    for _ in 0..ROUNDS_MAX {
        let mut tx = db.begin_system().await?;
        if !ledger::try_lock(&mut tx).await? {
            return Ok(());
        }
        let Some(due) = reratings::due(&mut tx).await? else {
            return Ok(());
        };
        let entries = reratings::next(&mut tx, &due, ENTRIES_MAX).await?;
        let written = reratings::apply(&mut tx, &entries).await?;
        let through = entries.is_empty();
        let last = entries.last().copied().unwrap_or(due.looked_at);
        let counted = i64::try_from(written).unwrap_or(i64::MAX);
        reratings::advance(&mut tx, due.id, last, counted, through).await?;
        tx.commit().await?;
        metrics::counter!("allotment_ledger_entries_corrected").increment(written);
        if through {
            tracing::info!(rerating.id = due.id, "a change of price was rated anew");
        }
    }
    Ok(())
}
