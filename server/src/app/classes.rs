//! Priority classes: a named priority, and whether its work may be preempted.

use domain::name::Name;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::audit::Change;
use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
use super::{App, AppError, Asker, audit};
use crate::store::{self, Tx};

/// The class of work that names none; it is always there.
pub const DEFAULT_CLASS: &str = "normal";
/// Highest priority, and the lowest below zero; leaves room for ageing in 64 bits.
pub const PRIORITY_MAX: i32 = 1_000_000;

/// A priority class.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Class {
    /// Its name.
    pub name: Name,
    /// Higher goes first within a team.
    pub priority: i32,
    /// Whether its work may be preempted unless a job says otherwise.
    pub preemptible: bool,
    /// Whether work that names no class has this one.
    pub default: bool,
    /// Its version.
    pub version: i64,
}

impl From<store::classes::Class> for Class {
    fn from(row: store::classes::Class) -> Self {
        Self {
            default: row.name.as_str() == DEFAULT_CLASS,
            name: row.name,
            priority: row.priority,
            preemptible: row.preemptible,
            version: row.version,
        }
    }
}

/// A class to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewClass {
    /// Its name.
    pub name: Name,
    /// Higher goes first within a team.
    pub priority: i32,
    /// Whether its work may be preempted.
    pub preemptible: bool,
}

/// What is to be changed of a class; what is absent stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassPatch {
    /// Higher goes first within a team.
    pub priority: Option<i32>,
    /// Whether its work may be preempted.
    pub preemptible: Option<bool>,
}

/// Lists the classes.
pub async fn list(app: &App, asker: &Asker, ask: &PageAsk) -> Result<Page<Class>, AppError> {
    authorise(asker, Action::ListClasses, Target::Platform)?;
    let after: Option<String> = ask.after("class")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let rows = store::classes::page(&mut tx, after.as_deref(), ask.rows_wanted()).await?;
    tx.commit().await?;
    let classes = rows.into_iter().map(Class::from).collect();
    Ok(page::cut(ask, "class", classes, |c: &Class| {
        c.name.to_string()
    }))
}

/// Makes a class.
pub async fn create(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    new: NewClass,
) -> Result<Answer<Class>, AppError> {
    authorise(asker, Action::CreateClass, Target::Platform)?;
    check_priority(new.priority)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    store::classes::insert(&mut work.tx, &new.name, new.priority, new.preemptible)
        .await
        .map_err(|error| AppError::name_taken(error, "classes_pkey", "class", &new.name))?;
    let class = find(&mut work.tx, &new.name).await?;
    let change = Change {
        after: Some(described(&class)),
        ..Change::of(Action::CreateClass, format!("class/{}", new.name))
    };
    audit::record(&mut work.tx, asker, change).await?;
    let version = class.version;
    work.finish(app, Answer::created(Class::from(class), version))
        .await
}

/// Changes a class; work that waits is ordered by it at once.
pub async fn update(
    app: &App,
    asker: &Asker,
    name: &Name,
    version: i64,
    patch: ClassPatch,
) -> Result<Class, AppError> {
    authorise(asker, Action::UpdateClass, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let before = find(&mut tx, name).await?;
    let priority = patch.priority.unwrap_or(before.priority);
    check_priority(priority)?;
    let preemptible = patch.preemptible.unwrap_or(before.preemptible);
    if !store::classes::update(&mut tx, name.as_str(), version, priority, preemptible).await? {
        return Err(stale(&mut tx, name, version).await);
    }
    let after = find(&mut tx, name).await?;
    let change = Change {
        before: Some(described(&before)),
        after: Some(described(&after)),
        ..Change::of(Action::UpdateClass, format!("class/{name}"))
    };
    audit::record(&mut tx, asker, change).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(after.into())
}

/// Removes a class that no job names, neither now nor in the past.
pub async fn delete(
    app: &App,
    asker: &Asker,
    name: &Name,
    version: Option<i64>,
) -> Result<(), AppError> {
    authorise(asker, Action::DeleteClass, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let before = find(&mut tx, name).await?;
    if name.as_str() == DEFAULT_CLASS {
        return Err(AppError::Conflict {
            code: "class_in_use",
            message: format!("{name} is the class of work that names none: it stays"),
        });
    }
    let version = version.unwrap_or(before.version);
    let deleted = store::classes::delete(&mut tx, name.as_str(), version)
        .await
        .map_err(|error| in_use(error, name))?;
    if !deleted {
        return Err(stale(&mut tx, name, version).await);
    }
    let change = Change {
        before: Some(described(&before)),
        ..Change::of(Action::DeleteClass, format!("class/{name}"))
    };
    audit::record(&mut tx, asker, change).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(())
}

async fn find(tx: &mut Tx, name: &Name) -> Result<store::classes::Class, AppError> {
    store::classes::find(tx, name.as_str())
        .await?
        .ok_or_else(|| AppError::not_found("class", name))
}

async fn stale(tx: &mut Tx, name: &Name, given: i64) -> AppError {
    match find(tx, name).await {
        Ok(class) => AppError::Stale {
            given: given.to_string(),
            present: class.version,
        },
        Err(error) => error,
    }
}

fn check_priority(priority: i32) -> Result<(), AppError> {
    if (-PRIORITY_MAX..=PRIORITY_MAX).contains(&priority) {
        return Ok(());
    }
    Err(AppError::invalid(
        "priority",
        priority,
        format!("-{PRIORITY_MAX} to {PRIORITY_MAX}"),
    ))
}

fn in_use(error: sqlx::Error, name: &Name) -> AppError {
    if store::violated(&error) == Some("job_class") {
        return AppError::Conflict {
            code: "class_in_use",
            message: format!("jobs name the class {name}: it stays, so that their history does"),
        };
    }
    error.into()
}

fn described(class: &store::classes::Class) -> serde_json::Value {
    json!({"priority": class.priority, "preemptible": class.preemptible})
}
