//! The outbox: what is to be delivered, written in the transaction of its cause, and what came of each try.

use domain::Timestamp;
use domain::ids::{DeliveryId, JobId, ScheduleRunId, TeamId, WebhookId};
use domain::name::Name;
use domain::notice::{DeliveryKind, DeliveryState, NoticeKind};
use serde_json::Value;

use super::Tx;

/// What is told to all who asked to hear of it.
#[derive(Debug)]
pub struct Notice<'a> {
    /// Of what kind.
    pub kind: NoticeKind,
    /// The team that it is of: who asked in that team or in one above hears of it. What is of no team goes to all who
    /// asked.
    pub team: Option<TeamId>,
    /// Its cause: of one cause each address hears once.
    pub key: &'a str,
    /// What it is about: of one thing a webhook hears in order.
    pub about: &'a str,
    /// What is told.
    pub payload: &'a Value,
}

/// Writes one delivery for each address that asked for such notices; how many. In a transaction of the system's.
pub async fn tell(tx: &mut Tx, notice: &Notice<'_>) -> Result<u64, sqlx::Error> {
    let written = sqlx::query!(
        "WITH RECURSIVE path AS (
             SELECT id, parent_id FROM teams WHERE id = $2
             UNION
             SELECT t.id, t.parent_id FROM teams AS t JOIN path ON path.parent_id = t.id
         )
         INSERT INTO deliveries (team_id, kind, key, about, email, webhook_id, payload)
         SELECT DISTINCT ON (s.email, s.webhook_id) s.team_id, $1, $3, $4, s.email, s.webhook_id, $5::jsonb
         FROM subscriptions AS s
         WHERE s.kind = $1 AND ($2::uuid IS NULL OR s.team_id IN (SELECT id FROM path))
         ORDER BY s.email, s.webhook_id, s.team_id
         ON CONFLICT ON CONSTRAINT delivery_once DO NOTHING",
        notice.kind.as_str(),
        notice.team as Option<TeamId>,
        notice.key,
        notice.about,
        notice.payload,
    )
    .execute(&mut **tx)
    .await?;
    Ok(written.rows_affected())
}

/// Writes what is to be told of jobs that have just ended, in a person's transaction or the system's.
pub async fn tell_jobs_ended(tx: &mut Tx, jobs: &[JobId]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"SELECT allotment.tell_jobs_ended($1)::text AS "told""#,
        jobs as &[JobId]
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(())
}

/// To whom a report goes.
#[derive(Debug)]
pub struct NewReport<'a> {
    /// The team that it is of.
    pub team_id: TeamId,
    /// Its run.
    pub run: ScheduleRunId,
    /// Its cause.
    pub key: &'a str,
    /// Its schedule, as what it is about.
    pub about: &'a str,
    /// To which addresses.
    pub emails: &'a [String],
    /// To which webhooks.
    pub webhooks: &'a [WebhookId],
    /// What is told beside the file.
    pub payload: &'a Value,
}

/// Writes one delivery for each address of a report.
pub async fn send_report(tx: &mut Tx, report: &NewReport<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO deliveries (team_id, kind, key, about, email, webhook_id, payload, run_id)
         SELECT $1, 'report', $2, $3, a.email, a.webhook_id, $4::jsonb, $5
         FROM (SELECT unnest($6::text[]) AS email, NULL::uuid AS webhook_id
               UNION ALL
               SELECT NULL, id FROM webhooks WHERE id = ANY ($7) AND removed_at IS NULL) AS a
         ON CONFLICT ON CONSTRAINT delivery_once DO NOTHING",
        report.team_id as TeamId,
        report.key,
        report.about,
        report.payload,
        report.run as ScheduleRunId,
        report.emails,
        report.webhooks as &[WebhookId],
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// A delivery that this replica is to try now.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    /// Its id.
    pub id: DeliveryId,
    /// The team that asked for it.
    pub team_id: TeamId,
    /// What it is.
    pub kind: DeliveryKind,
    /// To which address.
    pub email: Option<String>,
    /// To which webhook.
    pub webhook_id: Option<WebhookId>,
    /// Where that posts to; absent where it was removed.
    pub url: Option<String>,
    /// What is told.
    pub payload: Value,
    /// When it was written.
    pub created_at: Timestamp,
    /// The number of this try.
    pub number: i32,
    /// The number of this try since it was last sent on its way.
    pub tries: i32,
    /// The file that goes with it: its name, its type and itself.
    pub file_name: Option<String>,
    /// Its type.
    pub media_type: Option<String>,
    /// What is in it.
    pub content: Option<String>,
}

/// Takes what is due, for this replica alone until the claim ends: nothing that stands behind another for the same
/// webhook about the same thing.
pub async fn claim(
    tx: &mut Tx,
    limit: i64,
    claim_seconds: i64,
) -> Result<Vec<Claimed>, sqlx::Error> {
    sqlx::query_as!(
        Claimed,
        r#"WITH due AS (
               SELECT d.id
               FROM deliveries AS d
               WHERE d.state = 'waiting' AND d.due_at <= allotment.clock()
                 AND (d.claimed_until IS NULL OR d.claimed_until < allotment.clock())
                 AND NOT EXISTS (
                     SELECT FROM deliveries AS b
                     WHERE b.webhook_id = d.webhook_id AND b.about = d.about AND b.state = 'waiting' AND b.seq < d.seq)
               ORDER BY d.due_at
               LIMIT $1
               FOR UPDATE OF d SKIP LOCKED
           ), taken AS (
               UPDATE deliveries AS d
               SET claimed_until = allotment.clock() + $2::bigint * interval '1 second', tries = d.tries + 1
               FROM due
               WHERE d.id = due.id
               RETURNING d.*
           )
           SELECT t.id AS "id!: DeliveryId", t.team_id AS "team_id!: TeamId", t.kind AS "kind!: DeliveryKind", t.email,
                  t.webhook_id AS "webhook_id: WebhookId", w.url AS "url?", t.payload AS "payload!",
                  t.created_at AS "created_at!", t.tries AS "number!", t.tries - t.tries_before AS "tries!",
                  r.file_name AS "file_name?", r.media_type AS "media_type?", r.content AS "content?"
           FROM taken AS t
           LEFT JOIN webhooks AS w ON w.id = t.webhook_id AND w.removed_at IS NULL
           LEFT JOIN schedule_runs AS r ON r.id = t.run_id
           ORDER BY t.seq"#,
        limit,
        claim_seconds,
    )
    .fetch_all(&mut **tx)
    .await
}

/// What came of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Where the delivery stands now.
    pub state: DeliveryState,
    /// When it is due again, where it waits.
    pub due_at: Timestamp,
    /// HTTP's status, where there was an answer.
    pub status: Option<i32>,
    /// What happened, in words.
    pub detail: String,
    /// How long it took, in milliseconds.
    pub took_ms: i32,
}

/// Writes what came of a try that this replica claimed; nothing where the claim ended meanwhile and another tried again.
pub async fn record(
    tx: &mut Tx,
    claimed: &Claimed,
    outcome: &Outcome,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE deliveries
         SET state = $3, due_at = $4, claimed_until = NULL,
             delivered_at = CASE WHEN $3 = 'delivered' THEN allotment.clock() END
         WHERE id = $1 AND tries = $2 AND state = 'waiting'",
        claimed.id as DeliveryId,
        claimed.number,
        outcome.state.as_str(),
        outcome.due_at,
    )
    .execute(&mut **tx)
    .await?;
    if done.rows_affected() != 1 {
        return Ok(false);
    }
    sqlx::query!(
        "INSERT INTO delivery_tries (delivery_id, team_id, number, delivered, status, detail, took_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
        claimed.id as DeliveryId,
        claimed.team_id as TeamId,
        claimed.number,
        outcome.state == DeliveryState::Delivered,
        outcome.status,
        outcome.detail,
        outcome.took_ms,
    )
    .execute(&mut **tx)
    .await?;
    Ok(true)
}

/// A delivery as people read it.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Its id.
    pub id: DeliveryId,
    /// Its number; later ones have higher ones.
    pub seq: i64,
    /// What it is.
    pub kind: DeliveryKind,
    /// To which address.
    pub email: Option<String>,
    /// To which webhook.
    pub webhook: Option<Name>,
    /// What it is about.
    pub about: String,
    /// What is told.
    pub payload: Value,
    /// Where it stands.
    pub state: DeliveryState,
    /// When it is tried next.
    pub due_at: Timestamp,
    /// When it was written.
    pub created_at: Timestamp,
    /// When its address took it.
    pub delivered_at: Option<Timestamp>,
}

/// A team's, the latest first.
pub async fn page(
    tx: &mut Tx,
    team: TeamId,
    before: Option<i64>,
    state: Option<DeliveryState>,
    rows: i64,
) -> Result<Vec<Delivery>, sqlx::Error> {
    sqlx::query_as!(
        Delivery,
        r#"SELECT d.id AS "id: DeliveryId", d.seq, d.kind AS "kind: DeliveryKind", d.email, w.name AS "webhook?: Name",
                  d.about, d.payload, d.state AS "state: DeliveryState", d.due_at, d.created_at, d.delivered_at
           FROM deliveries AS d
           LEFT JOIN webhooks AS w ON w.id = d.webhook_id
           WHERE d.team_id = $1 AND ($2::bigint IS NULL OR d.seq < $2) AND ($3::text IS NULL OR d.state = $3)
           ORDER BY d.seq DESC
           LIMIT $4"#,
        team as TeamId,
        before,
        state.map(DeliveryState::as_str),
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// What came of one try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Try {
    /// Of which delivery.
    pub delivery: DeliveryId,
    /// Its number.
    pub number: i32,
    /// When it was over.
    pub at: Timestamp,
    /// Whether its address took it.
    pub delivered: bool,
    /// HTTP's status.
    pub status: Option<i32>,
    /// What happened, in words.
    pub detail: String,
    /// How long it took, in milliseconds.
    pub took_ms: i32,
}

/// The tries of deliveries, in their order.
pub async fn tries(tx: &mut Tx, of: &[DeliveryId]) -> Result<Vec<Try>, sqlx::Error> {
    sqlx::query_as!(
        Try,
        r#"SELECT delivery_id AS "delivery: DeliveryId", number, at, delivered, status, detail, took_ms
           FROM delivery_tries
           WHERE delivery_id = ANY ($1)
           ORDER BY delivery_id, number"#,
        of as &[DeliveryId],
    )
    .fetch_all(&mut **tx)
    .await
}

/// Where a delivery of a team stands, locked; nothing where it is not there.
pub async fn lock(
    tx: &mut Tx,
    team: TeamId,
    id: DeliveryId,
) -> Result<Option<DeliveryState>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT state AS "state: DeliveryState" FROM deliveries WHERE team_id = $1 AND id = $2 FOR UPDATE"#,
        team as TeamId,
        id as DeliveryId,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Sends a locked delivery on its way again, with all of its tries before it.
pub async fn resend(tx: &mut Tx, id: DeliveryId) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE deliveries
         SET state = 'waiting', delivered_at = NULL, due_at = allotment.clock(), claimed_until = NULL, tries_before = tries
         WHERE id = $1",
        id as DeliveryId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Removes what was written before a time and does not wait any more; at most so many.
pub async fn clear(tx: &mut Tx, before: Timestamp, at_once: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "DELETE FROM deliveries WHERE id IN (
             SELECT id FROM deliveries WHERE created_at < $1 AND state <> 'waiting' ORDER BY created_at LIMIT $2)",
        before,
        at_once,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
