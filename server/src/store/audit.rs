//! The audit log's rows: written once, read newest first.

use domain::Timestamp;
use domain::ids::{RequestId, TeamId, UserId};
use serde_json::Value;

use super::Tx;

/// A row to be written.
#[derive(Debug)]
pub struct NewEntry<'a> {
    /// `user`, or `system` for what was done on the server's command line.
    pub actor_kind: &'a str,
    /// The person.
    pub actor_id: Option<UserId>,
    /// The person's name at that time.
    pub actor_name: &'a str,
    /// The operation.
    pub action: &'a str,
    /// On what.
    pub object: &'a str,
    /// The team that may read of it.
    pub team_id: Option<TeamId>,
    /// The request.
    pub request_id: RequestId,
    /// `done` or `denied`.
    pub outcome: &'a str,
    /// Why.
    pub reason: &'a str,
    /// How it was.
    pub before: Option<Value>,
    /// How it is.
    pub after: Option<Value>,
}

/// A row as it is read.
#[derive(Debug)]
pub struct Entry {
    /// Its number.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor_name: String,
    /// The operation.
    pub action: String,
    /// On what.
    pub object: String,
    /// `done` or `denied`.
    pub outcome: String,
    /// Why.
    pub reason: String,
    /// The request.
    pub request_id: Option<RequestId>,
    /// How it was.
    pub before: Option<Value>,
    /// How it became.
    pub after: Option<Value>,
}

/// Writes a row.
pub async fn insert(tx: &mut Tx, entry: NewEntry<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO audit (actor_kind, actor_id, actor_name, action, object, team_id, request_id, outcome, reason, before, after)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        entry.actor_kind,
        entry.actor_id as Option<UserId>,
        entry.actor_name,
        entry.action,
        entry.object,
        entry.team_id as Option<TeamId>,
        entry.request_id as RequestId,
        entry.outcome,
        entry.reason,
        entry.before,
        entry.after,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Writes rows of one person's request, in their order.
pub async fn insert_all(tx: &mut Tx, entries: &[NewEntry<'_>]) -> Result<(), sqlx::Error> {
    let of =
        |text: fn(&NewEntry<'_>) -> String| -> Vec<String> { entries.iter().map(text).collect() };
    let kinds = of(|e| e.actor_kind.to_owned());
    let actors: Vec<Option<UserId>> = entries.iter().map(|e| e.actor_id).collect();
    let names = of(|e| e.actor_name.to_owned());
    let actions = of(|e| e.action.to_owned());
    let objects = of(|e| e.object.to_owned());
    let teams: Vec<Option<TeamId>> = entries.iter().map(|e| e.team_id).collect();
    let requests: Vec<RequestId> = entries.iter().map(|e| e.request_id).collect();
    let outcomes = of(|e| e.outcome.to_owned());
    let reasons = of(|e| e.reason.to_owned());
    let before: Vec<Option<Value>> = entries.iter().map(|e| e.before.clone()).collect();
    let after: Vec<Option<Value>> = entries.iter().map(|e| e.after.clone()).collect();
    sqlx::query!(
        "INSERT INTO audit (actor_kind, actor_id, actor_name, action, object, team_id, request_id, outcome, reason,
                            before, after)
         SELECT e.actor_kind, e.actor_id, e.actor_name, e.action, e.object, e.team_id, e.request_id, e.outcome,
                e.reason, e.before, e.after
         FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::uuid[],
                     $8::text[], $9::text[], $10::jsonb[], $11::jsonb[]) WITH ORDINALITY
              AS e (actor_kind, actor_id, actor_name, action, object, team_id, request_id, outcome, reason, before,
                    after, place)
         ORDER BY e.place",
        &kinds,
        &actors as &[Option<UserId>],
        &names,
        &actions,
        &objects,
        &teams as &[Option<TeamId>],
        &requests as &[RequestId],
        &outcomes,
        &reasons,
        &before as &[Option<Value>],
        &after as &[Option<Value>],
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Writes a row of what a machine did or tried, under the name that it gave.
pub async fn insert_of_agent(
    tx: &mut Tx,
    name: &str,
    action: &str,
    object: &str,
    outcome: &str,
    reason: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO audit (actor_kind, actor_name, action, object, outcome, reason)
         VALUES ('agent', $1, $2, $3, $4, $5)",
        name,
        action,
        object,
        outcome,
        reason,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Writes a row of what the product itself did.
pub async fn insert_of_system(
    tx: &mut Tx,
    action: &str,
    object: &str,
    reason: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO audit (actor_kind, actor_name, action, object, outcome, reason)
         VALUES ('system', 'allotment', $1, $2, 'done', $3)",
        action,
        object,
        reason,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Reads up to `rows` entries older than `before`, newest first.
pub async fn page(
    tx: &mut Tx,
    object: Option<&str>,
    before: Option<i64>,
    rows: i64,
) -> Result<Vec<Entry>, sqlx::Error> {
    sqlx::query_as!(
        Entry,
        r#"SELECT id, at, actor_name, action, object, outcome, reason,
                  request_id AS "request_id: RequestId", before, after
           FROM audit
           WHERE ($1::text IS NULL OR object = $1)
             AND ($2::bigint IS NULL OR id < $2)
           ORDER BY id DESC
           LIMIT $3"#,
        object,
        before,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}
