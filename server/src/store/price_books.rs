//! Versions of the price book: drafts of lines that are put in force together, and what they would have charged.

use domain::Timestamp;
use domain::ids::{PoolId, PriceBookId, PriceId, TeamId, UserId};
use domain::money::Currency;
use rust_decimal::Decimal;

use super::Tx;

/// A version.
#[derive(Debug, Clone)]
pub struct Book {
    /// Its id.
    pub id: PriceBookId,
    /// Its number, by which people name it.
    pub number: i64,
    /// `draft`, `active` or `discarded`.
    pub state: String,
    /// Why it was drafted.
    pub reason: String,
    /// From when on it is to hold.
    pub effective_from: Timestamp,
    /// Who drafted it.
    pub created_by: String,
    /// When.
    pub created_at: Timestamp,
    /// Who put it in force or discarded it.
    pub decided_by: Option<String>,
    /// When it was put in force.
    pub activated_at: Option<Timestamp>,
}

/// Versions before a number, the latest first.
pub async fn page(
    tx: &mut Tx,
    before: Option<i64>,
    number: Option<i64>,
    rows: i64,
) -> Result<Vec<Book>, sqlx::Error> {
    sqlx::query_as!(
        Book,
        r#"SELECT b.id AS "id: PriceBookId", b.number, b.state, b.reason, b.effective_from, u.name AS created_by,
                  b.created_at, d.name AS "decided_by?", b.activated_at
           FROM price_books AS b
           JOIN users AS u ON u.id = b.created_by
           LEFT JOIN users AS d ON d.id = b.decided_by
           WHERE ($1::bigint IS NULL OR b.number < $1) AND ($2::bigint IS NULL OR b.number = $2)
           ORDER BY b.number DESC
           LIMIT $3"#,
        before,
        number,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Drafts one; its number.
pub async fn insert(
    tx: &mut Tx,
    id: PriceBookId,
    reason: &str,
    effective_from: Timestamp,
    by: UserId,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        "INSERT INTO price_books (id, reason, effective_from, created_by)
         VALUES ($1, $2, $3, $4)
         RETURNING number",
        id as PriceBookId,
        reason,
        effective_from,
        by as UserId,
    )
    .fetch_one(&mut **tx)
    .await
}

/// A line that is a price.
#[derive(Debug, Clone)]
pub struct Line {
    /// The pool.
    pub pool_id: PoolId,
    /// Its name.
    pub pool: String,
    /// `gpu`, `cpu` or `memory`.
    pub resource: String,
    /// The sharing mode, of a GPU.
    pub mode: Option<String>,
    /// The profile, where it is the price of an instance.
    pub mig_profile: Option<String>,
    /// What is charged for an hour.
    pub per_hour: Decimal,
    /// The list's price.
    pub list_per_hour: Decimal,
    /// What it is worth once reserved capacity is spread over it.
    pub effective_per_hour: Decimal,
    /// The currency.
    pub currency: String,
}

/// Writes the prices of a draft.
pub async fn insert_prices(
    tx: &mut Tx,
    book: PriceBookId,
    lines: &[Line],
    by: UserId,
) -> Result<(), sqlx::Error> {
    for line in lines {
        sqlx::query!(
            "INSERT INTO prices (id, book_id, pool_id, resource, mode, mig_profile, per_gpu_hour, list_per_hour,
                                 effective_per_hour, currency, effective_from, created_by)
             SELECT $1, b.id, $3, $4, $5, $6, $7, $8, $9, $10, b.effective_from, $11
             FROM price_books AS b
             WHERE b.id = $2",
            PriceId::new() as PriceId,
            book as PriceBookId,
            line.pool_id as PoolId,
            line.resource,
            line.mode,
            line.mig_profile,
            line.per_hour,
            line.list_per_hour,
            line.effective_per_hour,
            line.currency,
            by as UserId,
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

/// The prices of a version.
pub async fn prices(tx: &mut Tx, book: PriceBookId) -> Result<Vec<Line>, sqlx::Error> {
    sqlx::query_as!(
        Line,
        r#"SELECT r.pool_id AS "pool_id: PoolId", p.name AS pool, r.resource, r.mode, r.mig_profile,
                  r.per_gpu_hour AS per_hour, r.list_per_hour, r.effective_per_hour, r.currency
           FROM prices AS r
           JOIN pools AS p ON p.id = r.pool_id
           WHERE r.book_id = $1
           ORDER BY p.name, r.resource, r.mode NULLS FIRST, r.mig_profile NULLS FIRST"#,
        book as PriceBookId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A line that multiplies.
#[derive(Debug, Clone)]
pub struct Factor {
    /// The pool.
    pub pool_id: PoolId,
    /// Its name.
    pub pool: String,
    /// `preemptible`, `borrowed` or `weekly`.
    pub kind: String,
    /// Of a weekly window its name, else empty.
    pub name: String,
    /// By what.
    pub factor: Decimal,
    /// Days of ISO 8601 of a weekly window.
    pub days: Option<Vec<i32>>,
    /// The minute of the day at which it begins.
    pub from_minute: Option<i32>,
    /// The minute of the day at which it ends.
    pub to_minute: Option<i32>,
    /// Whose clocks show them.
    pub time_zone: Option<String>,
}

/// Writes the factors of a draft.
pub async fn insert_factors(
    tx: &mut Tx,
    book: PriceBookId,
    factors: &[Factor],
    by: UserId,
) -> Result<(), sqlx::Error> {
    for factor in factors {
        sqlx::query!(
            "INSERT INTO price_factors (id, book_id, pool_id, kind, name, factor, days, from_minute, to_minute,
                                        time_zone, effective_from, created_by)
             SELECT gen_random_uuid(), b.id, $2, $3, $4, $5, $6, $7, $8, $9, b.effective_from, $10
             FROM price_books AS b
             WHERE b.id = $1",
            book as PriceBookId,
            factor.pool_id as PoolId,
            factor.kind,
            factor.name,
            factor.factor,
            factor.days.as_deref(),
            factor.from_minute,
            factor.to_minute,
            factor.time_zone,
            by as UserId,
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

/// The factors of a version.
pub async fn factors(tx: &mut Tx, book: PriceBookId) -> Result<Vec<Factor>, sqlx::Error> {
    sqlx::query_as!(
        Factor,
        r#"SELECT f.pool_id AS "pool_id: PoolId", p.name AS pool, f.kind, f.name, f.factor, f.days, f.from_minute,
                  f.to_minute, f.time_zone
           FROM price_factors AS f
           JOIN pools AS p ON p.id = f.pool_id
           WHERE f.book_id = $1
           ORDER BY p.name, f.kind, f.name"#,
        book as PriceBookId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Takes a draft to another state; whether it was one still.
pub async fn decide(
    tx: &mut Tx,
    book: PriceBookId,
    state: &str,
    by: UserId,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE price_books
         SET state = $2, decided_by = $3, activated_at = CASE WHEN $2 = 'active' THEN allotment.clock() END,
             version = version + 1
         WHERE id = $1 AND state = 'draft'",
        book as PriceBookId,
        state,
        by as UserId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// What a team was charged in a pool, and what it would have been.
#[derive(Debug, Clone)]
pub struct Compared {
    /// The team.
    pub team: String,
    /// The pool.
    pub pool: String,
    /// What the prices in force charge, exact.
    pub now: Decimal,
    /// What they would, with the version's lines.
    pub then: Decimal,
    /// Thousandths of a GPU times microseconds that no price in force covers.
    pub unpriced_now: Decimal,
    /// The same with the version's lines.
    pub unpriced_then: Decimal,
}

/// What was held between two times, by the prices in force and as if a version's lines had always been. `team` with all
/// below it, or all.
pub async fn compare(
    tx: &mut Tx,
    book: PriceBookId,
    team: Option<TeamId>,
    from: Timestamp,
    to: Timestamp,
) -> Result<Vec<Compared>, sqlx::Error> {
    sqlx::query_as!(
        Compared,
        r#"SELECT t.name AS team, p.name AS pool,
                  round(COALESCE(sum(c.amount) FILTER (WHERE NOT c.new), 0), 12) AS "now!",
                  round(COALESCE(sum(c.amount) FILTER (WHERE c.new), 0), 12) AS "then!",
                  COALESCE(sum(c.gpu_milli_micros) FILTER (WHERE NOT c.new AND c.amount IS NULL), 0) AS "unpriced_now!",
                  COALESCE(sum(c.gpu_milli_micros) FILTER (WHERE c.new AND c.amount IS NULL), 0) AS "unpriced_then!"
           FROM (
               SELECT s.team_id, s.pool_id, v.new, x.amount, x.gpu_milli_micros
               FROM usage_segments AS s
               JOIN nodes AS n ON n.id = s.node_id
               CROSS JOIN (VALUES (false), (true)) AS v (new)
               CROSS JOIN LATERAL (
                   SELECT GREATEST(s.started_at, $3) AS began,
                       LEAST(COALESCE(s.ended_at, n.last_heartbeat_at), $4) AS ended
               ) AS span
               CROSS JOIN LATERAL allotment.priced(s, span.began, span.ended, CASE WHEN v.new THEN $1::uuid END) AS x
               WHERE s.kind = 'charged' AND s.started_at < $4 AND COALESCE(s.ended_at, n.last_heartbeat_at) > $3
                 AND span.began < span.ended AND ($2::uuid IS NULL OR s.team_id = $2)
           ) AS c
           JOIN teams AS t ON t.id = c.team_id
           JOIN pools AS p ON p.id = c.pool_id
           GROUP BY t.name, p.name
           ORDER BY t.name, p.name"#,
        book as PriceBookId,
        team as Option<TeamId>,
        from,
        to,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A price in force now, or a factor's pool without one.
#[derive(Debug, Clone)]
pub struct InForce {
    /// The pool.
    pub pool: String,
    /// `gpu`, `cpu` or `memory`.
    pub resource: String,
    /// The sharing mode, of a GPU.
    pub mode: Option<String>,
    /// The profile, where it is the price of an instance.
    pub mig_profile: Option<String>,
    /// What is charged for an hour.
    pub per_hour: Decimal,
    /// The list's price.
    pub list_per_hour: Decimal,
    /// What it is worth once reserved capacity is spread over it.
    pub effective_per_hour: Decimal,
    /// The currency.
    pub currency: Currency,
    /// Since when.
    pub effective_from: Timestamp,
}

/// The whole book as it is in force now.
pub async fn in_force(tx: &mut Tx) -> Result<Vec<InForce>, sqlx::Error> {
    sqlx::query_as!(
        InForce,
        r#"SELECT DISTINCT ON (p.name, r.resource, r.mode, r.mig_profile) p.name AS pool, r.resource, r.mode,
                  r.mig_profile, r.per_gpu_hour AS per_hour, r.list_per_hour, r.effective_per_hour,
                  r.currency AS "currency: Currency", r.effective_from
           FROM prices AS r
           JOIN pools AS p ON p.id = r.pool_id
           LEFT JOIN price_books AS b ON b.id = r.book_id
           WHERE (r.book_id IS NULL OR b.activated_at IS NOT NULL) AND r.effective_from <= allotment.clock()
           ORDER BY p.name, r.resource, r.mode, r.mig_profile, r.effective_from DESC,
               COALESCE(b.activated_at, r.created_at) DESC, r.id"#,
    )
    .fetch_all(&mut **tx)
    .await
}
