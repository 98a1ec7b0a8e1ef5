//! Quotas: what a team is promised, and may at most hold, in a pool.

use domain::ids::{PoolId, TeamId};
use domain::name::Name;

use super::Tx;

/// The amounts of a row, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amounts {
    /// What the team can have at any time.
    pub guaranteed_milli: i64,
    /// The most it may hold.
    pub limit_milli: Option<i64>,
    /// What others may use of its idle guarantee.
    pub lend_limit_milli: Option<i64>,
    /// Its claim on spare capacity.
    pub weight_milli: i64,
    /// The most that one of its users may hold.
    pub max_per_user_milli: Option<i64>,
}

/// A row with its pool's name.
#[derive(Debug, Clone)]
pub struct Quota {
    /// The pool.
    pub pool: Name,
    /// The amounts.
    pub amounts: Amounts,
    /// Its version.
    pub version: i64,
}

/// Lists a team's rows in pools whose names come after `after`, by pool.
pub async fn page(
    tx: &mut Tx,
    team: TeamId,
    after: Option<&str>,
    rows: i64,
) -> Result<Vec<Quota>, sqlx::Error> {
    let found = sqlx::query!(
        r#"SELECT p.name AS "pool: Name", q.guaranteed_milli, q.limit_milli, q.lend_limit_milli,
                  q.weight_milli, q.max_per_user_milli, q.version
           FROM quotas AS q
           JOIN pools AS p ON p.id = q.pool_id
           WHERE q.team_id = $1 AND ($2::text IS NULL OR p.name > $2)
           ORDER BY p.name
           LIMIT $3"#,
        team as TeamId,
        after,
        rows,
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(found
        .into_iter()
        .map(|r| Quota {
            pool: r.pool,
            amounts: Amounts {
                guaranteed_milli: r.guaranteed_milli,
                limit_milli: r.limit_milli,
                lend_limit_milli: r.lend_limit_milli,
                weight_milli: r.weight_milli,
                max_per_user_milli: r.max_per_user_milli,
            },
            version: r.version,
        })
        .collect())
}

/// A row of a pool.
#[derive(Debug, Clone, Copy)]
pub struct OfTeam {
    /// The pool.
    pub pool_id: PoolId,
    /// The team.
    pub team_id: TeamId,
    /// The amounts.
    pub amounts: Amounts,
    /// Its version.
    pub version: i64,
}

/// All rows of these pools, locked against change until the transaction ends; in the order of the
/// names of teams and pools, as whoever admits work locks them, so that nobody waits in a circle.
pub async fn lock(tx: &mut Tx, pools: &[PoolId]) -> Result<Vec<OfTeam>, sqlx::Error> {
    let found = sqlx::query!(
        r#"SELECT q.pool_id AS "pool_id: PoolId", q.team_id AS "team_id: TeamId", q.guaranteed_milli,
                  q.limit_milli, q.lend_limit_milli, q.weight_milli, q.max_per_user_milli, q.version
           FROM quotas AS q
           JOIN teams AS t ON t.id = q.team_id
           JOIN pools AS p ON p.id = q.pool_id
           WHERE q.pool_id = ANY ($1)
           ORDER BY t.name, p.name
           FOR UPDATE OF q"#,
        pools as &[PoolId],
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(found
        .into_iter()
        .map(|r| OfTeam {
            pool_id: r.pool_id,
            team_id: r.team_id,
            amounts: Amounts {
                guaranteed_milli: r.guaranteed_milli,
                limit_milli: r.limit_milli,
                lend_limit_milli: r.lend_limit_milli,
                weight_milli: r.weight_milli,
                max_per_user_milli: r.max_per_user_milli,
            },
            version: r.version,
        })
        .collect())
}

/// All amounts of a pool that the transaction may see, by team.
pub async fn of_pool(tx: &mut Tx, pool: PoolId) -> Result<Vec<(TeamId, Amounts)>, sqlx::Error> {
    let found = sqlx::query!(
        r#"SELECT team_id AS "team_id: TeamId", guaranteed_milli, limit_milli, lend_limit_milli,
                  weight_milli, max_per_user_milli
           FROM quotas
           WHERE pool_id = $1
           ORDER BY team_id"#,
        pool as PoolId,
    )
    .fetch_all(&mut **tx)
    .await?;
    let amounts = found.into_iter().map(|r| {
        let amounts = Amounts {
            guaranteed_milli: r.guaranteed_milli,
            limit_milli: r.limit_milli,
            lend_limit_milli: r.lend_limit_milli,
            weight_milli: r.weight_milli,
            max_per_user_milli: r.max_per_user_milli,
        };
        (r.team_id, amounts)
    });
    Ok(amounts.collect())
}

/// Whether a team has a row for a pool.
pub async fn there(tx: &mut Tx, team: TeamId, pool: PoolId) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM quotas WHERE team_id = $1 AND pool_id = $2) AS "there!""#,
        team as TeamId,
        pool as PoolId,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Lists the rows that the transaction may see after those of a team and a pool, by the names of
/// both.
pub async fn page_of_all(
    tx: &mut Tx,
    after: Option<(String, String)>,
    rows: i64,
) -> Result<Vec<(Name, Quota)>, sqlx::Error> {
    let (team, pool) = after.unzip();
    let found = sqlx::query!(
        r#"SELECT t.name AS "team: Name", p.name AS "pool: Name", q.guaranteed_milli, q.limit_milli,
                  q.lend_limit_milli, q.weight_milli, q.max_per_user_milli, q.version
           FROM quotas AS q
           JOIN teams AS t ON t.id = q.team_id
           JOIN pools AS p ON p.id = q.pool_id
           WHERE $1::text IS NULL OR (t.name, p.name) > ($1, $2)
           ORDER BY t.name, p.name
           LIMIT $3"#,
        team,
        pool,
        rows,
    )
    .fetch_all(&mut **tx)
    .await?;
    let quotas = found.into_iter().map(|r| {
        let quota = Quota {
            pool: r.pool,
            amounts: Amounts {
                guaranteed_milli: r.guaranteed_milli,
                limit_milli: r.limit_milli,
                lend_limit_milli: r.lend_limit_milli,
                weight_milli: r.weight_milli,
                max_per_user_milli: r.max_per_user_milli,
            },
            version: r.version,
        };
        (r.team, quota)
    });
    Ok(quotas.collect())
}

/// Lets no other transaction change quotas of the pool until this one ends; rows that are about
/// to be inserted cannot be locked themselves.
pub async fn lock_pool(tx: &mut Tx, pool: PoolId) -> Result<(), sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT id AS "id: PoolId" FROM pools WHERE id = $1 FOR NO KEY UPDATE"#,
        pool as PoolId,
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(())
}

/// Makes a row.
pub async fn insert(
    tx: &mut Tx,
    team: TeamId,
    pool: PoolId,
    version: i64,
    amounts: Amounts,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO quotas (team_id, pool_id, version, guaranteed_milli, limit_milli, lend_limit_milli, weight_milli, max_per_user_milli)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        team as TeamId,
        pool as PoolId,
        version,
        amounts.guaranteed_milli,
        amounts.limit_milli,
        amounts.lend_limit_milli,
        amounts.weight_milli,
        amounts.max_per_user_milli,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Changes a row that still has `version`; whether it had.
pub async fn update(
    tx: &mut Tx,
    team: TeamId,
    pool: PoolId,
    version: i64,
    amounts: Amounts,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE quotas
         SET guaranteed_milli = $4, limit_milli = $5, lend_limit_milli = $6, weight_milli = $7,
             max_per_user_milli = $8, version = version + 1
         WHERE team_id = $1 AND pool_id = $2 AND version = $3",
        team as TeamId,
        pool as PoolId,
        version,
        amounts.guaranteed_milli,
        amounts.limit_milli,
        amounts.lend_limit_milli,
        amounts.weight_milli,
        amounts.max_per_user_milli,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}
