//! What must be true of a database before a server works on it.

use anyhow::{Context, bail};

use super::reach;
use crate::store::Database;
use crate::store::schema::{self, RoleFacts};

/// Refuses a schema of another version, and roles that could climb over the walls between teams.
pub async fn run(db: &Database) -> anyhow::Result<()> {
    let mut tx = db
        .begin_system()
        .await
        .map_err(|error| reach::failed("database.system_url", &db.system_options(), error))?;
    let system = schema::role_facts(&mut tx)
        .await
        .context("read the roles")?;
    let version = schema::version(&mut tx).await.context(
        "read the version of the schema; bring it up to date with: allotment-server migrate",
    )?;
    tx.commit().await.context("read the roles")?;
    let mut tx = db
        .begin_nobody()
        .await
        .map_err(|error| reach::failed("database.app_url", &db.app_options(), error))?;
    let app = schema::role_facts(&mut tx)
        .await
        .context("read the roles")?;
    tx.commit().await.context("read the roles")?;
    for (facts, role) in [(&app, "allotment_app"), (&system, "allotment_system")] {
        check_role(facts, role)?;
    }
    let needed = schema::version_needed();
    match version {
        Some(version) if version == needed => Ok(()),
        Some(version) if version < needed => bail!(
            "the schema is at version {version} and this program needs {needed}: run allotment-server migrate"
        ),
        Some(version) => bail!(
            "the schema is at version {version} and this program knows {needed}: run a newer program"
        ),
        None => bail!("the database has no schema: run allotment-server migrate"),
    }
}

fn check_role(facts: &RoleFacts, role: &str) -> anyhow::Result<()> {
    let name = &facts.name;
    if name != role {
        bail!("the database is opened as {name}: it must be opened as {role}");
    }
    if facts.superuser || facts.bypasses_walls {
        bail!("role {name} is above row-level security: ALTER ROLE {name} NOSUPERUSER NOBYPASSRLS");
    }
    if facts.tables_owned > 0 {
        bail!("role {name} owns tables: they must belong to the owner, who alone migrates");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_that_could_climb_over_the_walls_is_refused() {
        let weak = RoleFacts {
            name: "allotment_app".into(),
            superuser: false,
            bypasses_walls: false,
            tables_owned: 0,
        };
        assert!(check_role(&weak, "allotment_app").is_ok());
        assert!(check_role(&weak, "allotment_system").is_err());
        for strong in [
            RoleFacts {
                superuser: true,
                ..weak.clone()
            },
            RoleFacts {
                bypasses_walls: true,
                ..weak.clone()
            },
            RoleFacts {
                tables_owned: 1,
                ..weak.clone()
            },
        ] {
            assert!(check_role(&strong, "allotment_app").is_err(), "{strong:?}");
        }
    }
}
