//! Who is short of its guarantee while its work waits: one row for each team and pool, with since when.

use domain::Timestamp;

use super::Tx;

/// A team that is short in a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StarvedRow {
    /// The team's name.
    pub team: String,
    /// The pool's name.
    pub pool: String,
    /// Since when.
    pub since: Timestamp,
}

/// Those that the asker may see, by team and pool.
pub async fn all(tx: &mut Tx) -> Result<Vec<StarvedRow>, sqlx::Error> {
    sqlx::query_as!(
        StarvedRow,
        "SELECT t.name AS team, p.name AS pool, s.since
         FROM starved_teams AS s
         JOIN teams AS t ON t.id = s.team_id
         JOIN pools AS p ON p.id = s.pool_id
         ORDER BY t.name, p.name"
    )
    .fetch_all(&mut **tx)
    .await
}

/// Notes who has begun to be short. Who is noted already keeps its time.
pub async fn begin(tx: &mut Tx, rows: &[StarvedRow]) -> Result<(), sqlx::Error> {
    let teams: Vec<String> = rows.iter().map(|row| row.team.clone()).collect();
    let pools: Vec<String> = rows.iter().map(|row| row.pool.clone()).collect();
    let since: Vec<Timestamp> = rows.iter().map(|row| row.since).collect();
    sqlx::query!(
        "INSERT INTO starved_teams (team_id, pool_id, since)
         SELECT t.id, p.id, new.since
         FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS new (team, pool, since)
         JOIN teams AS t ON t.name = new.team
         JOIN pools AS p ON p.name = new.pool
         ON CONFLICT DO NOTHING",
        &teams,
        &pools,
        &since,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Forgets those that are not short any more.
pub async fn end(tx: &mut Tx, rows: &[StarvedRow]) -> Result<(), sqlx::Error> {
    let teams: Vec<String> = rows.iter().map(|row| row.team.clone()).collect();
    let pools: Vec<String> = rows.iter().map(|row| row.pool.clone()).collect();
    sqlx::query!(
        "DELETE FROM starved_teams AS s
         USING unnest($1::text[], $2::text[]) AS gone (team, pool), teams AS t, pools AS p
         WHERE t.name = gone.team AND p.name = gone.pool AND s.team_id = t.id AND s.pool_id = p.id",
        &teams,
        &pools,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
