//! Bookings: capacity of a pool that is a team's for a time that people have said.

use domain::Timestamp;
use domain::ids::{BookingId, PoolId, TeamId};
use domain::name::Name;

use super::Tx;

/// A row with the names of its team and pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booking {
    /// Its id.
    pub id: BookingId,
    /// Its name, unique in its pool.
    pub name: Name,
    /// The pool.
    pub pool: Name,
    /// The team that it is for.
    pub team_id: TeamId,
    /// That team's name.
    pub team: Name,
    /// How much, in thousandths of a GPU.
    pub gpus_milli: i64,
    /// When it begins.
    pub starts_at: Timestamp,
    /// When it ends.
    pub ends_at: Timestamp,
    /// Since when it is known that more is promised than there is while it lasts.
    pub conflict_since: Option<Timestamp>,
    /// Its version.
    pub version: i64,
}

/// What is written of one.
#[derive(Debug, Clone, Copy)]
pub struct Fields {
    /// The team that it is for.
    pub team_id: TeamId,
    /// How much, in thousandths of a GPU.
    pub gpus_milli: i64,
    /// When it begins.
    pub starts_at: Timestamp,
    /// When it ends.
    pub ends_at: Timestamp,
}

/// Those that have not ended at `now`, of one pool or of all; in the order in which they begin.
pub async fn standing(
    tx: &mut Tx,
    pool: Option<PoolId>,
    now: Timestamp,
) -> Result<Vec<Booking>, sqlx::Error> {
    sqlx::query_as!(
        Booking,
        r#"SELECT b.id AS "id: BookingId", b.name AS "name: Name", p.name AS "pool: Name",
                  b.team_id AS "team_id: TeamId", t.name AS "team: Name", b.gpus_milli,
                  b.starts_at, b.ends_at, b.conflict_since, b.version
           FROM bookings AS b
           JOIN pools AS p ON p.id = b.pool_id
           JOIN teams AS t ON t.id = b.team_id
           WHERE b.ends_at > $2 AND ($1::uuid IS NULL OR b.pool_id = $1)
           ORDER BY b.starts_at, b.id"#,
        pool as Option<PoolId>,
        now,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Lists those of a pool that touch the time from `from` to `to` and come after `after`, in the
/// order in which they begin.
pub async fn page(
    tx: &mut Tx,
    pool: PoolId,
    (from, to): (Option<Timestamp>, Option<Timestamp>),
    after: Option<(Timestamp, BookingId)>,
    rows: i64,
) -> Result<Vec<Booking>, sqlx::Error> {
    let (after_at, after_id) = after.unzip();
    sqlx::query_as!(
        Booking,
        r#"SELECT b.id AS "id: BookingId", b.name AS "name: Name", p.name AS "pool: Name",
                  b.team_id AS "team_id: TeamId", t.name AS "team: Name", b.gpus_milli,
                  b.starts_at, b.ends_at, b.conflict_since, b.version
           FROM bookings AS b
           JOIN pools AS p ON p.id = b.pool_id
           JOIN teams AS t ON t.id = b.team_id
           WHERE b.pool_id = $1
             AND ($2::timestamptz IS NULL OR b.ends_at > $2)
             AND ($3::timestamptz IS NULL OR b.starts_at < $3)
             AND ($4::timestamptz IS NULL OR (b.starts_at, b.id) > ($4, $5))
           ORDER BY b.starts_at, b.id
           LIMIT $6"#,
        pool as PoolId,
        from,
        to,
        after_at,
        after_id as Option<BookingId>,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Finds one of a pool by name.
pub async fn find(tx: &mut Tx, pool: PoolId, name: &str) -> Result<Option<Booking>, sqlx::Error> {
    sqlx::query_as!(
        Booking,
        r#"SELECT b.id AS "id: BookingId", b.name AS "name: Name", p.name AS "pool: Name",
                  b.team_id AS "team_id: TeamId", t.name AS "team: Name", b.gpus_milli,
                  b.starts_at, b.ends_at, b.conflict_since, b.version
           FROM bookings AS b
           JOIN pools AS p ON p.id = b.pool_id
           JOIN teams AS t ON t.id = b.team_id
           WHERE b.pool_id = $1 AND b.name = $2"#,
        pool as PoolId,
        name,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Makes one.
pub async fn insert(
    tx: &mut Tx,
    id: BookingId,
    pool: PoolId,
    (name, version): (&Name, i64),
    fields: &Fields,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO bookings (id, pool_id, name, version, team_id, gpus_milli, starts_at, ends_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        id as BookingId,
        pool as PoolId,
        name.as_str(),
        version,
        fields.team_id as TeamId,
        fields.gpus_milli,
        fields.starts_at,
        fields.ends_at,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Changes one that still has `version`; whether it had.
pub async fn update(
    tx: &mut Tx,
    id: BookingId,
    version: i64,
    fields: &Fields,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE bookings
         SET team_id = $3, gpus_milli = $4, starts_at = $5, ends_at = $6, version = version + 1
         WHERE id = $1 AND version = $2",
        id as BookingId,
        version,
        fields.team_id as TeamId,
        fields.gpus_milli,
        fields.starts_at,
        fields.ends_at,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Notes since when one is in conflict, or that it is not any more; whether that was not noted yet.
pub async fn note_conflict(
    tx: &mut Tx,
    id: BookingId,
    since: Option<Timestamp>,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE bookings
         SET conflict_since = $2
         WHERE id = $1 AND (conflict_since IS NULL) <> ($2::timestamptz IS NULL)",
        id as BookingId,
        since,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Removes one that still has `version`; whether it had.
pub async fn delete(tx: &mut Tx, id: BookingId, version: i64) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "DELETE FROM bookings WHERE id = $1 AND version = $2",
        id as BookingId,
        version,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}
