//! Sessions and passwords; only the system role reads or writes them.

use domain::Timestamp;
use domain::ids::{SessionId, TeamId, UserId};
use domain::name::Name;
use domain::role::{PlatformRole, TeamRole};

use super::Tx;

/// A person as it is about to sign in.
#[derive(Debug)]
pub struct Login {
    /// The person.
    pub user_id: UserId,
    /// Whether it may sign in.
    pub disabled: bool,
    /// Argon2's text, if a password was ever set.
    pub password_hash: Option<String>,
}

/// Finds a person by name.
pub async fn find_login(tx: &mut Tx, name: &str) -> Result<Option<Login>, sqlx::Error> {
    sqlx::query_as!(
        Login,
        r#"SELECT u.id AS "user_id: UserId", u.disabled_at IS NOT NULL AS "disabled!",
                  c.password_hash AS "password_hash?"
           FROM users AS u
           LEFT JOIN credentials AS c ON c.user_id = u.id
           WHERE u.name = $1"#,
        name,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Sets a person's password.
pub async fn set_password(tx: &mut Tx, user: UserId, hash: &str) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO credentials (user_id, password_hash, changed_at)
         VALUES ($1, $2, allotment.clock())
         ON CONFLICT (user_id) DO UPDATE
         SET password_hash = EXCLUDED.password_hash, changed_at = EXCLUDED.changed_at",
        user as UserId,
        hash,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// A session to be opened.
#[derive(Debug)]
pub struct NewSession<'a> {
    /// Its id.
    pub id: SessionId,
    /// Whose.
    pub user_id: UserId,
    /// `page` or `token`.
    pub kind: &'a str,
    /// SHA-256 of its secret.
    pub secret_hash: &'a [u8],
    /// The token that forms must carry.
    pub csrf_token: &'a str,
    /// Its life.
    pub seconds: i64,
}

/// Opens a session; when it ends.
pub async fn open(tx: &mut Tx, session: NewSession<'_>) -> Result<Timestamp, sqlx::Error> {
    sqlx::query_scalar!(
        "INSERT INTO sessions (id, user_id, kind, secret_hash, csrf_token, expires_at)
         VALUES ($1, $2, $3, $4, $5, allotment.clock() + make_interval(secs => $6::bigint::double precision))
         RETURNING expires_at",
        session.id as SessionId,
        session.user_id as UserId,
        session.kind,
        session.secret_hash,
        session.csrf_token,
        session.seconds,
    )
    .fetch_one(&mut **tx)
    .await
}

/// A live session with its person.
#[derive(Debug)]
pub struct Live {
    /// Whose.
    pub user_id: UserId,
    /// The person's name.
    pub name: Name,
    /// The person's role on the platform.
    pub platform_role: Option<PlatformRole>,
    /// `page` or `token`.
    pub kind: String,
    /// SHA-256 of its secret.
    pub secret_hash: Vec<u8>,
    /// The token that forms must carry.
    pub csrf_token: String,
    /// When it ends.
    pub expires_at: Timestamp,
    /// Whether it was not used for a while.
    pub stale: bool,
}

/// Finds a session that has neither ended nor been revoked, of a person who is not disabled.
pub async fn find_live(tx: &mut Tx, id: SessionId) -> Result<Option<Live>, sqlx::Error> {
    sqlx::query_as!(
        Live,
        r#"SELECT u.id AS "user_id: UserId", u.name AS "name: Name",
                  u.platform_role AS "platform_role: PlatformRole",
                  s.kind, s.secret_hash, s.csrf_token, s.expires_at,
                  s.last_used_at < allotment.clock() - interval '1 minute' AS "stale!"
           FROM sessions AS s
           JOIN users AS u ON u.id = s.user_id
           WHERE s.id = $1 AND s.revoked_at IS NULL AND s.expires_at > allotment.clock()
             AND u.disabled_at IS NULL"#,
        id as SessionId,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Notes that a session was used.
pub async fn touch(tx: &mut Tx, id: SessionId) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE sessions SET last_used_at = allotment.clock() WHERE id = $1",
        id as SessionId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Ends a session; whether it was live.
pub async fn revoke(tx: &mut Tx, id: SessionId) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE sessions SET revoked_at = allotment.clock() WHERE id = $1 AND revoked_at IS NULL",
        id as SessionId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Ends all sessions of a person but `spared`.
pub async fn revoke_all(
    tx: &mut Tx,
    user: UserId,
    spared: Option<SessionId>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE sessions SET revoked_at = allotment.clock()
         WHERE user_id = $1 AND revoked_at IS NULL AND ($2::uuid IS NULL OR id <> $2)",
        user as UserId,
        spared as Option<SessionId>,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Deletes sessions that ended before `before`; how many.
pub async fn clear(tx: &mut Tx, before: Timestamp) -> Result<u64, sqlx::Error> {
    let done = sqlx::query!("DELETE FROM sessions WHERE expires_at < $1", before)
        .execute(&mut **tx)
        .await?;
    Ok(done.rows_affected())
}

/// A team that a person belongs to, by itself or through a team above it.
#[derive(Debug)]
pub struct Belonging {
    /// The team.
    pub team_id: TeamId,
    /// The role there, of the team itself or of one above.
    pub role: TeamRole,
}

/// The teams of a person with all below them, one row per membership that reaches a team.
pub async fn belongings(tx: &mut Tx, user: UserId) -> Result<Vec<Belonging>, sqlx::Error> {
    sqlx::query_as!(
        Belonging,
        r#"WITH RECURSIVE reached (team_id, role) AS (
               SELECT m.team_id, m.role FROM memberships AS m WHERE m.user_id = $1
               UNION
               SELECT t.id, r.role FROM reached AS r JOIN teams AS t ON t.parent_id = r.team_id
           )
           SELECT team_id AS "team_id!: TeamId", role AS "role!: TeamRole" FROM reached"#,
        user as UserId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The teams above those that a person is a member of.
pub async fn ancestors(tx: &mut Tx, user: UserId) -> Result<Vec<TeamId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"WITH RECURSIVE above (team_id) AS (
               SELECT t.parent_id FROM memberships AS m JOIN teams AS t ON t.id = m.team_id
               WHERE m.user_id = $1 AND t.parent_id IS NOT NULL
               UNION
               SELECT t.parent_id FROM above AS a JOIN teams AS t ON t.id = a.team_id
               WHERE t.parent_id IS NOT NULL
           )
           SELECT team_id AS "team_id!: TeamId" FROM above"#,
        user as UserId,
    )
    .fetch_all(&mut **tx)
    .await
}
