//! Who asked to hear of what, and where.

use domain::Timestamp;
use domain::ids::{SubscriptionId, TeamId, UserId, WebhookId};
use domain::name::Name;
use domain::notice::NoticeKind;

use super::Tx;

/// A row, with the names of what it is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Its id.
    pub id: SubscriptionId,
    /// Of what.
    pub kind: NoticeKind,
    /// Only of this person's jobs.
    pub user_id: Option<UserId>,
    /// That person's name.
    pub user: Option<Name>,
    /// To which address.
    pub email: Option<String>,
    /// To which webhook.
    pub webhook: Option<Name>,
    /// When it was made.
    pub created_at: Timestamp,
}

/// A team's, in the order in which they were made.
pub async fn all(tx: &mut Tx, team: TeamId, rows: i64) -> Result<Vec<Subscription>, sqlx::Error> {
    sqlx::query_as!(
        Subscription,
        r#"SELECT s.id AS "id: SubscriptionId", s.kind AS "kind: NoticeKind", s.user_id AS "user_id: UserId",
                  u.name AS "user?: Name", s.email, w.name AS "webhook?: Name", s.created_at
           FROM subscriptions AS s
           LEFT JOIN users AS u ON u.id = s.user_id
           LEFT JOIN webhooks AS w ON w.id = s.webhook_id
           WHERE s.team_id = $1
           ORDER BY s.id
           LIMIT $2"#,
        team as TeamId,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A row to be written.
#[derive(Debug)]
pub struct NewSubscription<'a> {
    /// Its id.
    pub id: SubscriptionId,
    /// The team.
    pub team_id: TeamId,
    /// Of what.
    pub kind: NoticeKind,
    /// Only of this person's jobs.
    pub user_id: Option<UserId>,
    /// To which address.
    pub email: Option<&'a str>,
    /// To which webhook.
    pub webhook_id: Option<WebhookId>,
    /// Who asks.
    pub created_by: UserId,
}

/// Makes one.
pub async fn insert(tx: &mut Tx, new: &NewSubscription<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO subscriptions (id, team_id, kind, user_id, email, webhook_id, created_by)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
        new.id as SubscriptionId,
        new.team_id as TeamId,
        new.kind as NoticeKind,
        new.user_id as Option<UserId>,
        new.email,
        new.webhook_id as Option<WebhookId>,
        new.created_by as UserId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Removes one; whether it was there.
pub async fn delete(
    tx: &mut Tx,
    team: TeamId,
    subscription: SubscriptionId,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "DELETE FROM subscriptions WHERE team_id = $1 AND id = $2",
        team as TeamId,
        subscription as SubscriptionId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Removes those that go to a webhook.
pub async fn delete_of_webhook(
    tx: &mut Tx,
    team: TeamId,
    webhook: WebhookId,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "DELETE FROM subscriptions WHERE team_id = $1 AND webhook_id = $2",
        team as TeamId,
        webhook as WebhookId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
