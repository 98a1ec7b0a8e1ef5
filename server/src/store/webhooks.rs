//! Webhooks: where a team's notices are posted, and the keys that sign them.

use domain::Timestamp;
use domain::ids::{TeamId, UserId, WebhookId, WebhookKeyId};
use domain::name::Name;

use super::Tx;

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Its id.
    pub id: WebhookId,
    /// Its name.
    pub name: Name,
    /// Where to.
    pub url: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its newest key was made.
    pub key_since: Timestamp,
    /// Until when the key before that signs as well.
    pub old_key_until: Option<Timestamp>,
}

/// A team's webhooks, by name.
pub async fn all(tx: &mut Tx, team: TeamId, rows: i64) -> Result<Vec<Webhook>, sqlx::Error> {
    sqlx::query_as!(
        Webhook,
        r#"SELECT w.id AS "id: WebhookId", w.name AS "name: Name", w.url, w.created_at,
                  (SELECT max(k.created_at) FROM webhook_keys AS k WHERE k.webhook_id = w.id) AS "key_since!",
                  (SELECT max(k.ends_at) FROM webhook_keys AS k
                   WHERE k.webhook_id = w.id AND k.ends_at > allotment.clock()) AS old_key_until
           FROM webhooks AS w
           WHERE w.team_id = $1 AND w.removed_at IS NULL
           ORDER BY w.name
           LIMIT $2"#,
        team as TeamId,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// How many a team has.
pub async fn count(tx: &mut Tx, team: TeamId) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM webhooks WHERE team_id = $1 AND removed_at IS NULL"#,
        team as TeamId,
    )
    .fetch_one(&mut **tx)
    .await
}

/// The ids of a team's webhooks of these names, with the names.
pub async fn named(
    tx: &mut Tx,
    team: TeamId,
    names: &[String],
) -> Result<Vec<(WebhookId, String)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT id AS "id: WebhookId", name FROM webhooks
           WHERE team_id = $1 AND name = ANY ($2) AND removed_at IS NULL
           ORDER BY name"#,
        team as TeamId,
        names,
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.name)).collect())
}

/// A row to be written.
#[derive(Debug)]
pub struct NewWebhook<'a> {
    /// Its id.
    pub id: WebhookId,
    /// Its team.
    pub team_id: TeamId,
    /// Its name.
    pub name: &'a Name,
    /// Where to.
    pub url: &'a str,
    /// Who makes it.
    pub created_by: UserId,
}

/// Makes one, without a key.
pub async fn insert(tx: &mut Tx, new: &NewWebhook<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO webhooks (id, team_id, name, url, created_by) VALUES ($1, $2, $3, $4, $5)",
        new.id as WebhookId,
        new.team_id as TeamId,
        new.name.as_str(),
        new.url,
        new.created_by as UserId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Gives a webhook a new key. The one before signs as well until then, and any older one no more.
pub async fn add_key(
    tx: &mut Tx,
    webhook: WebhookId,
    secret: &str,
    old_until: Timestamp,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE webhook_keys SET ends_at = LEAST(COALESCE(ends_at, $2), CASE WHEN ends_at IS NULL THEN $2 ELSE allotment.clock() END)
         WHERE webhook_id = $1 AND (ends_at IS NULL OR ends_at > allotment.clock())",
        webhook as WebhookId,
        old_until,
    )
    .execute(&mut **tx)
    .await?;
    sqlx::query!(
        "INSERT INTO webhook_keys (id, webhook_id, secret) VALUES ($1, $2, $3)",
        WebhookKeyId::new() as WebhookKeyId,
        webhook as WebhookId,
        secret,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The keys that sign now, the newest first; for the system alone.
pub async fn keys(tx: &mut Tx, webhook: WebhookId) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(
        "SELECT secret FROM webhook_keys
         WHERE webhook_id = $1 AND (ends_at IS NULL OR ends_at > allotment.clock())
         ORDER BY ends_at DESC NULLS FIRST, id",
        webhook as WebhookId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Removes one; whether it was there. Nobody's notices go there any more.
pub async fn remove(tx: &mut Tx, team: TeamId, webhook: WebhookId) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE webhooks SET removed_at = allotment.clock()
         WHERE team_id = $1 AND id = $2 AND removed_at IS NULL",
        team as TeamId,
        webhook as WebhookId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A schedule of the team that reports to it, if there is one.
pub async fn reported_to(tx: &mut Tx, webhook: WebhookId) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!(
        "SELECT name FROM schedules
         WHERE removed_at IS NULL AND $1 = ANY (webhook_ids) ORDER BY name LIMIT 1",
        webhook as WebhookId,
    )
    .fetch_optional(&mut **tx)
    .await
}
