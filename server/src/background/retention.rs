//! What ages: changes that every reader has seen, answers to repeated requests, old sessions, old
//! versions of policies.

use crate::app::{App, telemetry};
use crate::store::{self, changes, idempotency, outbox, sessions, versions};

/// Answers to requests with an Idempotency-Key are kept for so long.
const IDEMPOTENCY_HOURS: i64 = 24;
/// Ended sessions are kept for so long, for whoever asks who was signed in.
const SESSIONS_DAYS: i64 = 30;
/// What was delivered or given up is kept for so long: a quarter, in which somebody asks what was told.
const DELIVERIES_DAYS: i64 = 90;
/// Most versions that one sweep removes, so that its transaction stays short.
const VERSIONS_AT_ONCE: i64 = 10_000;

/// Removes what is older than it is kept.
pub async fn sweep(app: &App) -> Result<(), sqlx::Error> {
    let mut tx = app.db.begin_system().await?;
    let now = store::clock(&mut tx).await?;
    changes::prune(&mut tx, changes::KEPT_SECONDS).await?;
    idempotency::clear(&mut tx, now - chrono::TimeDelta::hours(IDEMPOTENCY_HOURS)).await?;
    sessions::clear(&mut tx, now - chrono::TimeDelta::days(SESSIONS_DAYS)).await?;
    let kept = chrono::TimeDelta::days(app.config.retention.policy_versions_days);
    versions::clear(&mut tx, now - kept, VERSIONS_AT_ONCE).await?;
    let delivered = now - chrono::TimeDelta::days(DELIVERIES_DAYS);
    outbox::clear(&mut tx, delivered, VERSIONS_AT_ONCE).await?;
    tx.commit().await?;
    // Apart: what waits for the tables of samples waits for nothing else.
    let mut tx = app.db.begin_system().await?;
    telemetry::tend(&mut tx, app, now).await?;
    tx.commit().await
}
