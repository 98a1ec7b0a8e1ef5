//! Priority classes.

use domain::name::Name;

use super::Tx;

/// A row.
#[derive(Debug, Clone)]
pub struct Class {
    /// Its name.
    pub name: Name,
    /// Higher goes first within a team.
    pub priority: i32,
    /// Whether its work may be preempted.
    pub preemptible: bool,
    /// Its version.
    pub version: i64,
}

/// Finds one by name.
pub async fn find(tx: &mut Tx, name: &str) -> Result<Option<Class>, sqlx::Error> {
    sqlx::query_as!(
        Class,
        r#"SELECT name AS "name: Name", priority, preemptible, version
           FROM classes
           WHERE name = $1"#,
        name,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Which of these names are there.
pub async fn named(tx: &mut Tx, names: &[&str]) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(
        "SELECT name FROM classes WHERE name = ANY ($1::text[])",
        names as &[&str],
    )
    .fetch_all(&mut **tx)
    .await
}

/// Lists those whose names come after `after`, by name.
pub async fn page(tx: &mut Tx, after: Option<&str>, rows: i64) -> Result<Vec<Class>, sqlx::Error> {
    sqlx::query_as!(
        Class,
        r#"SELECT name AS "name: Name", priority, preemptible, version
           FROM classes
           WHERE $1::text IS NULL OR name > $1
           ORDER BY name
           LIMIT $2"#,
        after,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Makes one.
pub async fn insert(
    tx: &mut Tx,
    (name, version): (&Name, i64),
    priority: i32,
    preemptible: bool,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO classes (name, version, priority, preemptible) VALUES ($1, $2, $3, $4)",
        name.as_str(),
        version,
        priority,
        preemptible,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Changes one that still has `version`; whether it had.
pub async fn update(
    tx: &mut Tx,
    name: &str,
    version: i64,
    priority: i32,
    preemptible: bool,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE classes SET priority = $3, preemptible = $4, version = version + 1
         WHERE name = $1 AND version = $2",
        name,
        version,
        priority,
        preemptible,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Removes one that still has `version`; whether it had. The constraint `job_class` refuses one
/// that jobs name.
pub async fn delete(tx: &mut Tx, name: &str, version: i64) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "DELETE FROM classes WHERE name = $1 AND version = $2",
        name,
        version,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}
