//! People: rows of users, without their passwords.

use domain::Timestamp;
use domain::ids::UserId;
use domain::name::Name;
use domain::role::PlatformRole;

use super::Tx;

/// A row.
#[derive(Debug, Clone)]
pub struct User {
    /// Its id.
    pub id: UserId,
    /// Its name.
    pub name: Name,
    /// How it is called.
    pub display_name: String,
    /// Its role on the platform.
    pub platform_role: Option<PlatformRole>,
    /// Since when it may not sign in.
    pub disabled_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Its version.
    pub version: i64,
}

/// Finds one by name.
pub async fn find(tx: &mut Tx, name: &str) -> Result<Option<User>, sqlx::Error> {
    sqlx::query_as!(
        User,
        r#"SELECT id AS "id: UserId", name AS "name: Name", display_name,
                  platform_role AS "platform_role: PlatformRole", disabled_at, created_at, version
           FROM users
           WHERE name = $1"#,
        name,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Finds one by name that neither belongs to a team nor has a role on the platform.
pub async fn find_teamless(tx: &mut Tx, name: &str) -> Result<Option<User>, sqlx::Error> {
    sqlx::query_as!(
        User,
        r#"SELECT u.id AS "id: UserId", u.name AS "name: Name", u.display_name,
                  u.platform_role AS "platform_role: PlatformRole", u.disabled_at, u.created_at, u.version
           FROM users AS u
           WHERE u.name = $1 AND u.platform_role IS NULL
             AND NOT EXISTS (SELECT FROM memberships AS m WHERE m.user_id = u.id)"#,
        name,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Lists those whose names come after `after`, by name.
pub async fn page(tx: &mut Tx, after: Option<&str>, rows: i64) -> Result<Vec<User>, sqlx::Error> {
    sqlx::query_as!(
        User,
        r#"SELECT id AS "id: UserId", name AS "name: Name", display_name,
                  platform_role AS "platform_role: PlatformRole", disabled_at, created_at, version
           FROM users
           WHERE $1::text IS NULL OR name > $1
           ORDER BY name
           LIMIT $2"#,
        after,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// What is written of a person.
#[derive(Debug, PartialEq, Eq)]
pub struct Fields<'a> {
    /// How it is called.
    pub display_name: &'a str,
    /// Its role on the platform.
    pub platform_role: Option<PlatformRole>,
    /// Whether it may not sign in.
    pub disabled: bool,
}

/// Makes one.
pub async fn insert(
    tx: &mut Tx,
    id: UserId,
    name: &Name,
    fields: &Fields<'_>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO users (id, name, display_name, platform_role, disabled_at)
         VALUES ($1, $2, $3, $4, CASE WHEN $5 THEN allotment.clock() END)",
        id as UserId,
        name.as_str(),
        fields.display_name,
        fields.platform_role as Option<PlatformRole>,
        fields.disabled,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Changes one that still has `version`; whether it had.
pub async fn update(
    tx: &mut Tx,
    id: UserId,
    version: i64,
    fields: &Fields<'_>,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE users
         SET display_name = $3, platform_role = $4,
             disabled_at = CASE WHEN $5 THEN COALESCE(disabled_at, allotment.clock()) END,
             version = version + 1
         WHERE id = $1 AND version = $2",
        id as UserId,
        version,
        fields.display_name,
        fields.platform_role as Option<PlatformRole>,
        fields.disabled,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// How many administrators may sign in.
pub async fn count_admins(tx: &mut Tx) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM users WHERE platform_role = 'admin' AND disabled_at IS NULL"#
    )
    .fetch_one(&mut **tx)
    .await
}
