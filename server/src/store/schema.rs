//! The schema itself: its migrations, its version, and whether the roles are as weak as they must be.

use anyhow::{Context, bail};
use sqlx::ConnectOptions;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::Tx;

/// The migrations that this program was built with.
static MIGRATIONS: Migrator = sqlx::migrate!("../migrations");
/// A migration that waits longer for a lock gives up, so that it never queues everybody behind it.
const LOCK_TIMEOUT: &str = "5s";

/// Where the tables are made. PostgreSQL looks first for a schema that is called as the role,
/// and an owner called `allotment` would have the one of our functions.
const TABLES: &str = "public";

/// The version that this program needs.
pub fn version_needed() -> i64 {
    MIGRATIONS
        .iter()
        .filter(|m| m.migration_type.is_up_migration())
        .map(|m| m.version)
        .max()
        .unwrap_or(0)
}

/// Connects as the owner, whose statements may hold passwords and are therefore never logged.
pub async fn connect_owner(options: PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    options
        .options([("lock_timeout", LOCK_TIMEOUT), ("search_path", TABLES)])
        .disable_statement_logging()
        .connect()
        .await
}

/// Brings the schema up to date; only one of several who try does it.
pub async fn migrate(owner: &mut PgConnection) -> anyhow::Result<()> {
    match MIGRATIONS.run(owner).await {
        Ok(()) => Ok(()),
        Err(MigrateError::VersionMissing(version)) => bail!(
            "the database has migration {version} of a newer version: run that one, or a newer one yet"
        ),
        Err(MigrateError::VersionMismatch(version)) => bail!(
            "the database was made with another migration {version} than this version's: \
             it belongs to another build"
        ),
        Err(error) => Err(error).context("migrate the database"),
    }
}

/// Sets a role's password, where the owner may; whether it could.
pub async fn set_role_password(
    owner: &mut PgConnection,
    role: &str,
    password: &str,
) -> Result<bool, sqlx::Error> {
    let statement = sqlx::query_scalar!(
        r#"SELECT format('ALTER ROLE %I PASSWORD %L', $1::text, $2::text) AS "statement!""#,
        role,
        password,
    )
    .fetch_one(&mut *owner)
    .await?;
    // PostgreSQL has no parameters in ALTER ROLE; format() above has quoted both.
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
        .execute(&mut *owner)
        .await;
    match done {
        Ok(_) => Ok(true),
        // 42501: the roles were made by somebody else, who sets their passwords.
        Err(sqlx::Error::Database(e)) if e.code().as_deref() == Some("42501") => Ok(false),
        Err(error) => Err(error),
    }
}

/// What a role is able to do beyond what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleFacts {
    /// The role's name.
    pub name: String,
    /// It is above all rules.
    pub superuser: bool,
    /// It walks through the walls between teams.
    pub bypasses_walls: bool,
    /// Tables that it owns.
    pub tables_owned: i64,
}

/// Reads what the transaction's role is able to do.
pub async fn role_facts(tx: &mut Tx) -> Result<RoleFacts, sqlx::Error> {
    sqlx::query_as!(
        RoleFacts,
        r#"SELECT r.rolname::text AS "name!", r.rolsuper AS "superuser!", r.rolbypassrls AS "bypasses_walls!",
                  (SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                   WHERE n.nspname = 'public' AND c.relowner = r.oid) AS "tables_owned!"
           FROM pg_roles AS r
           WHERE r.rolname = current_user"#
    )
    .fetch_one(&mut **tx)
    .await
}

/// The version that the database has; none where the schema came another way.
pub async fn version(tx: &mut Tx) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!("SELECT allotment.schema_version() AS version")
        .fetch_one(&mut **tx)
        .await
}
