//! Teams, their tree, and who belongs to them.

use domain::Timestamp;
use domain::ids::{TeamId, UserId};
use domain::name::Name;
use domain::role::TeamRole;

use super::Tx;

/// A row, with its parent's name.
#[derive(Debug, Clone)]
pub struct Team {
    /// Its id.
    pub id: TeamId,
    /// Its name.
    pub name: Name,
    /// The team above it.
    pub parent_id: Option<TeamId>,
    /// That team's name.
    pub parent: Option<Name>,
    /// Its colour, 1 to 12.
    pub hue: i16,
    /// When it was made.
    pub created_at: Timestamp,
    /// Its version.
    pub version: i64,
}

/// Finds one by name.
pub async fn find(tx: &mut Tx, name: &str) -> Result<Option<Team>, sqlx::Error> {
    sqlx::query_as!(
        Team,
        r#"SELECT t.id AS "id: TeamId", t.name AS "name: Name", t.parent_id AS "parent_id: TeamId",
                  p.name AS "parent?: Name", t.hue, t.created_at, t.version
           FROM teams AS t
           LEFT JOIN teams AS p ON p.id = t.parent_id
           WHERE t.name = $1"#,
        name,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Lists those whose names come after `after`, by name.
pub async fn page(tx: &mut Tx, after: Option<&str>, rows: i64) -> Result<Vec<Team>, sqlx::Error> {
    sqlx::query_as!(
        Team,
        r#"SELECT t.id AS "id: TeamId", t.name AS "name: Name", t.parent_id AS "parent_id: TeamId",
                  p.name AS "parent?: Name", t.hue, t.created_at, t.version
           FROM teams AS t
           LEFT JOIN teams AS p ON p.id = t.parent_id
           WHERE $1::text IS NULL OR t.name > $1
           ORDER BY t.name
           LIMIT $2"#,
        after,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A place in the tree.
#[derive(Debug, Clone)]
pub struct TreeTeam {
    /// The team.
    pub id: TeamId,
    /// Its name.
    pub name: Name,
    /// The team above it.
    pub parent_id: Option<TeamId>,
}

/// The whole tree that the transaction may see, in the order of ids.
pub async fn tree(tx: &mut Tx) -> Result<Vec<TreeTeam>, sqlx::Error> {
    sqlx::query_as!(
        TreeTeam,
        r#"SELECT id AS "id: TeamId", name AS "name: Name", parent_id AS "parent_id: TeamId"
           FROM teams
           ORDER BY id"#
    )
    .fetch_all(&mut **tx)
    .await
}

/// Lets no other transaction change the tree until this one ends.
pub async fn lock_tree(tx: &mut Tx) -> Result<(), sqlx::Error> {
    // An advisory lock of the transaction: the tree is small, and rows that are about to be
    // inserted cannot be locked.
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('allotment.teams'))::text AS locked")
        .fetch_one(&mut **tx)
        .await?;
    Ok(())
}

/// The colour that the fewest teams have; the lowest of several.
pub async fn free_hue(tx: &mut Tx) -> Result<i16, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT h.hue::smallint AS "hue!"
           FROM generate_series(1, 12) AS h (hue)
           LEFT JOIN teams AS t ON t.hue = h.hue
           GROUP BY h.hue
           ORDER BY count(t.id), h.hue
           LIMIT 1"#
    )
    .fetch_one(&mut **tx)
    .await
}

/// Makes one.
pub async fn insert(
    tx: &mut Tx,
    id: TeamId,
    name: &Name,
    parent: Option<TeamId>,
    hue: i16,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO teams (id, name, parent_id, hue) VALUES ($1, $2, $3, $4)",
        id as TeamId,
        name.as_str(),
        parent as Option<TeamId>,
        hue,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Changes one that still has `version`; whether it had.
pub async fn update(
    tx: &mut Tx,
    id: TeamId,
    version: i64,
    name: &Name,
    parent: Option<TeamId>,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE teams SET name = $3, parent_id = $4, version = version + 1
         WHERE id = $1 AND version = $2",
        id as TeamId,
        version,
        name.as_str(),
        parent as Option<TeamId>,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Whether a team has work that has not ended.
pub async fn has_live_work(tx: &mut Tx, team: TeamId) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT EXISTS (
               SELECT FROM jobs WHERE team_id = $1 AND state NOT IN ('succeeded', 'failed', 'cancelled')
           ) OR EXISTS (
               SELECT FROM arrays WHERE team_id = $1 AND finished_at IS NULL
           ) AS "live!""#,
        team as TeamId,
    )
    .fetch_one(&mut **tx)
    .await
}

/// A person's role in a team.
#[derive(Debug, Clone)]
pub struct Member {
    /// The person.
    pub user: Name,
    /// How it is called.
    pub display_name: String,
    /// The role.
    pub role: TeamRole,
    /// Whether the person may not sign in.
    pub disabled: bool,
    /// Since when.
    pub created_at: Timestamp,
}

/// Lists a team's members whose names come after `after`, by name.
pub async fn members(
    tx: &mut Tx,
    team: TeamId,
    after: Option<&str>,
    rows: i64,
) -> Result<Vec<Member>, sqlx::Error> {
    sqlx::query_as!(
        Member,
        r#"SELECT u.name AS "user: Name", u.display_name, m.role AS "role: TeamRole",
                  u.disabled_at IS NOT NULL AS "disabled!", m.created_at
           FROM memberships AS m
           JOIN users AS u ON u.id = m.user_id
           WHERE m.team_id = $1 AND ($2::text IS NULL OR u.name > $2)
           ORDER BY u.name
           LIMIT $3"#,
        team as TeamId,
        after,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A person's role in a team itself, not inherited.
pub async fn role_of(
    tx: &mut Tx,
    team: TeamId,
    user: UserId,
) -> Result<Option<TeamRole>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT role AS "role: TeamRole" FROM memberships WHERE team_id = $1 AND user_id = $2"#,
        team as TeamId,
        user as UserId,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Makes a person who is none yet a member of a team: since when it is one. None for a member.
pub async fn add_member(
    tx: &mut Tx,
    team: TeamId,
    user: UserId,
    role: TeamRole,
) -> Result<Option<Timestamp>, sqlx::Error> {
    sqlx::query_scalar!(
        "INSERT INTO memberships (team_id, user_id, role) VALUES ($1, $2, $3)
         ON CONFLICT (team_id, user_id) DO NOTHING
         RETURNING created_at",
        team as TeamId,
        user as UserId,
        role as TeamRole,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Gives a person a role in a team, instead of the one it had; since when it is a member.
pub async fn put_member(
    tx: &mut Tx,
    team: TeamId,
    user: UserId,
    role: TeamRole,
) -> Result<Timestamp, sqlx::Error> {
    sqlx::query_scalar!(
        "INSERT INTO memberships (team_id, user_id, role) VALUES ($1, $2, $3)
         ON CONFLICT (team_id, user_id) DO UPDATE SET role = EXCLUDED.role
         RETURNING created_at",
        team as TeamId,
        user as UserId,
        role as TeamRole,
    )
    .fetch_one(&mut **tx)
    .await
}

/// The owners of a team who may sign in, locked so that of two who leave at once one is the last.
pub async fn lock_owners(tx: &mut Tx, team: TeamId) -> Result<Vec<UserId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT m.user_id AS "id: UserId"
           FROM memberships AS m
           JOIN users AS u ON u.id = m.user_id
           WHERE m.team_id = $1 AND m.role = 'owner' AND u.disabled_at IS NULL
           ORDER BY m.user_id
           FOR UPDATE OF m"#,
        team as TeamId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Takes a person out of a team; whether it was in.
pub async fn remove_member(tx: &mut Tx, team: TeamId, user: UserId) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "DELETE FROM memberships WHERE team_id = $1 AND user_id = $2",
        team as TeamId,
        user as UserId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A team with all below it.
pub async fn with_children(tx: &mut Tx, team: TeamId) -> Result<Vec<TeamId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"WITH RECURSIVE below AS (
               SELECT id FROM teams WHERE id = $1
               UNION
               SELECT t.id FROM teams AS t JOIN below AS b ON t.parent_id = b.id)
           SELECT id AS "id!: TeamId" FROM below"#,
        team as TeamId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The names of teams.
pub async fn names_of(tx: &mut Tx, teams: &[TeamId]) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(
        "SELECT name FROM teams WHERE id = ANY ($1)",
        teams as &[TeamId],
    )
    .fetch_all(&mut **tx)
    .await
}
