//! What ages: changes that every reader has seen, answers to repeated requests, old sessions.

use crate::app::App;
use crate::store::{self, changes, idempotency, sessions};

/// Answers to requests with an Idempotency-Key are kept for so long.
const IDEMPOTENCY_HOURS: i64 = 24;
/// Ended sessions are kept for so long, for whoever asks who was signed in.
const SESSIONS_DAYS: i64 = 30;

/// Removes what is older than it is kept.
pub async fn sweep(app: &App) -> Result<(), sqlx::Error> {
    let mut tx = app.db.begin_system().await?;
    let now = store::clock(&mut tx).await?;
    changes::prune(&mut tx, changes::KEPT_SECONDS).await?;
    idempotency::clear(&mut tx, now - chrono::TimeDelta::hours(IDEMPOTENCY_HOURS)).await?;
    sessions::clear(&mut tx, now - chrono::TimeDelta::days(SESSIONS_DAYS)).await?;
    tx.commit().await
}
