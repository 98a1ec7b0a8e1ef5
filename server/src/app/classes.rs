//! Priority classes: a named priority, and whether its work may be preempted.

use domain::FieldError;
use domain::name::Name;
use domain::spec::CLASS_DEFAULT;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
use super::policy_diff::ClassDraft;
use super::versions::{self, By, Expected, Object, PolicyNoun};
use super::{App, AppError, Asker, RefusalCode, change};
use crate::store::{self, Tx};

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
            default: row.name.as_str() == CLASS_DEFAULT,
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
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub priority: Option<i32>,
    /// Whether its work may be preempted.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
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
    reason: &str,
) -> Result<Answer<Class>, AppError> {
    let by = By::allowed(asker, Action::CreateClass, reason)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let form = ClassForm {
        priority: new.priority,
        preemptible: new.preemptible,
    };
    set(&mut work.tx, &by, &new.name, Expected::Nothing, form).await?;
    let class = find(&mut work.tx, &new.name).await?;
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
    reason: &str,
) -> Result<Class, AppError> {
    let by = By::allowed(asker, Action::UpdateClass, reason)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let before = find(&mut tx, name).await?;
    let form = ClassForm {
        priority: patch.priority.unwrap_or(before.priority),
        preemptible: patch.preemptible.unwrap_or(before.preemptible),
    };
    set(&mut tx, &by, name, Expected::Version(version), form).await?;
    let after = find(&mut tx, name).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(after.into())
}

/// A class as its versions keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClassForm {
    priority: i32,
    preemptible: bool,
}

impl ClassForm {
    /// The same as a draft.
    pub(super) fn draft(self, name: Name) -> ClassDraft {
        ClassDraft {
            name,
            priority: self.priority,
            preemptible: self.preemptible,
        }
    }
}

impl From<&store::classes::Class> for ClassForm {
    fn from(row: &store::classes::Class) -> Self {
        Self {
            priority: row.priority,
            preemptible: row.preemptible,
        }
    }
}

/// Makes or changes one.
pub(super) async fn set(
    tx: &mut Tx,
    by: &By<'_>,
    name: &Name,
    expected: Expected,
    form: ClassForm,
) -> Result<(), AppError> {
    check_priority(form.priority)?;
    let ClassForm {
        priority,
        preemptible,
    } = form;
    let (before, version) = match expected {
        Expected::Nothing => {
            let version = versions::first(tx, &object(name, 1)).await?;
            store::classes::insert(tx, (name, version), priority, preemptible)
                .await
                .map_err(|error| AppError::name_taken(error, "classes_pkey", "class", name))?;
            (None, version)
        }
        Expected::Version(version) => {
            let row = find(tx, name).await?;
            if change::leaves((version, row.version), &ClassForm::from(&row), &form)? {
                return Ok(());
            }
            if !store::classes::update(tx, name.as_str(), version, priority, preemptible).await? {
                return Err(stale(tx, name, version).await);
            }
            let before = versions::written(&ClassForm::from(&row))?;
            (Some(before), version + 1)
        }
    };
    let after = versions::written(&form)?;
    versions::record(tx, by, object(name, version), before, Some(after)).await
}

fn object(name: &Name, version: i64) -> Object {
    Object {
        noun: PolicyNoun::Class,
        name: name.to_string(),
        pool_id: None,
        team_id: None,
        version,
    }
}

/// Removes a class that no job names, neither now nor in the past.
pub async fn delete(
    app: &App,
    asker: &Asker,
    name: &Name,
    version: i64,
    reason: &str,
) -> Result<(), AppError> {
    let by = By::allowed(asker, Action::DeleteClass, reason)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let before = find(&mut tx, name).await?;
    if name.as_str() == CLASS_DEFAULT {
        return Err(AppError::conflict(
            RefusalCode::ClassInUse,
            format!("{name} is the class of work that names none"),
            FieldError::new("class", name, "it stays"),
        ));
    }
    let deleted = store::classes::delete(&mut tx, name.as_str(), version)
        .await
        .map_err(|error| in_use(error, name))?;
    if !deleted {
        return Err(stale(&mut tx, name, version).await);
    }
    let before = versions::written(&ClassForm::from(&before))?;
    let gone = object(name, version + 1);
    versions::record(&mut tx, &by, gone, Some(before), None).await?;
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

/// Checks that a priority is in its bounds.
pub fn check_priority(priority: i32) -> Result<(), FieldError> {
    if (-PRIORITY_MAX..=PRIORITY_MAX).contains(&priority) {
        return Ok(());
    }
    Err(FieldError::new(
        "priority",
        priority,
        format!("-{PRIORITY_MAX} to {PRIORITY_MAX}"),
    ))
}

fn in_use(error: sqlx::Error, name: &Name) -> AppError {
    if matches!(store::violated(&error), Some("job_class" | "array_class")) {
        return AppError::conflict(
            RefusalCode::ClassInUse,
            format!("jobs name the class {name}"),
            FieldError::new("class", name, "it stays, so that their history does"),
        );
    }
    error.into()
}
