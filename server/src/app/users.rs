//! People: made, changed and disabled by administrators; never deleted, since what they did stays theirs.

use domain::FieldError;
use domain::Timestamp;
use domain::error::printable;
use domain::ids::UserId;
use domain::name::Name;
use domain::role::{PlatformRole, TeamRole};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::audit::Change;
use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
use super::{App, AppError, Asker, RefusalCode, audit, change, passwords};
use crate::store::users::Fields;
use crate::store::{self, Tx};

/// Longest display name, in characters; fits a table cell.
const DISPLAY_NAME_CHARS_MAX: usize = 128;

/// A person.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct User {
    /// Its name.
    pub name: Name,
    /// How it is called; may be empty.
    pub display_name: String,
    /// Its role on the platform.
    pub role: Option<PlatformRole>,
    /// Whether it may not sign in.
    pub disabled: bool,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Its version.
    pub version: i64,
}

impl From<store::users::User> for User {
    fn from(row: store::users::User) -> Self {
        Self {
            name: row.name,
            display_name: row.display_name,
            role: row.platform_role,
            disabled: row.disabled_at.is_some(),
            created_at: row.created_at,
            version: row.version,
        }
    }
}

/// A role in a team.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TeamOfMine {
    /// The team.
    pub team: Name,
    /// The role there, of the team itself or of one above it.
    pub role: TeamRole,
}

/// The asker, with its roles.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Whoami {
    /// Its name.
    pub name: Name,
    /// How it is called; may be empty.
    pub display_name: String,
    /// Its role on the platform.
    pub role: Option<PlatformRole>,
    /// Its teams with all below them, by name.
    pub teams: Vec<TeamOfMine>,
}

/// Tells the asker who it is.
pub async fn whoami(app: &App, asker: &Asker) -> Result<Whoami, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let user = store::users::find(&mut tx, asker.name.as_str())
        .await?
        .ok_or(AppError::Unauthenticated)?;
    let tree = store::teams::tree(&mut tx).await?;
    tx.commit().await?;
    let mut teams: Vec<TeamOfMine> = tree
        .into_iter()
        .filter_map(|node| {
            let role = asker.teams.get(&node.id).copied()?;
            Some(TeamOfMine {
                team: node.name,
                role,
            })
        })
        .collect();
    teams.sort_by(|a, b| a.team.cmp(&b.team));
    Ok(Whoami {
        name: user.name,
        display_name: user.display_name,
        role: user.platform_role,
        teams,
    })
}

/// Lists the people that the asker may know: itself and its team mates, or all.
pub async fn list(app: &App, asker: &Asker, ask: &PageAsk) -> Result<Page<User>, AppError> {
    authorise(asker, Action::ListUsers, Target::Platform)?;
    let after: Option<String> = ask.after("user")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let rows = store::users::page(&mut tx, after.as_deref(), ask.rows_wanted()).await?;
    tx.commit().await?;
    let users = rows.into_iter().map(User::from).collect();
    Ok(page::cut(ask, "user", users, |u: &User| u.name.to_string()))
}

/// Shows one person.
pub async fn get(app: &App, asker: &Asker, name: &Name) -> Result<User, AppError> {
    authorise(asker, Action::GetUser, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let user = find(&mut tx, name).await?;
    tx.commit().await?;
    Ok(user.into())
}

/// A person to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    /// Its name.
    pub name: Name,
    /// How it is called.
    #[serde(default)]
    pub display_name: String,
    /// Its role on the platform.
    #[serde(default)]
    pub role: Option<PlatformRole>,
    /// Its first password; without one it cannot sign in until one is set.
    #[serde(default)]
    #[schema(format = Password)]
    pub password: Option<String>,
}

/// Makes a person.
pub async fn create(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    new: NewUser,
) -> Result<Answer<User>, AppError> {
    authorise(asker, Action::CreateUser, Target::Platform)?;
    check_display_name(&new.display_name)?;
    if let Some(password) = &new.password {
        passwords::check("password", new.name.as_str(), password)?;
    }
    // Hashed first: a person is never made without its password since too many wait for theirs.
    let hash = hash(app, new.password).await?;
    // The system's: a person's own transaction may not touch passwords.
    let mut work = idempotency::begin_system(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let id = UserId::new();
    let fields = Fields {
        display_name: &new.display_name,
        platform_role: new.role,
        disabled: false,
    };
    store::users::insert(&mut work.tx, id, &new.name, &fields)
        .await
        .map_err(|error| AppError::name_taken(error, "user_name_taken", "user", &new.name))?;
    if let Some(hash) = hash {
        store::sessions::set_password(&mut work.tx, id, &hash).await?;
    }
    let user = find(&mut work.tx, &new.name).await?;
    let change = Change {
        after: Some(described(&user)),
        ..Change::of(Action::CreateUser, format!("user/{}", new.name))
    };
    audit::record(&mut work.tx, asker, change).await?;
    let version = user.version;
    work.finish(app, Answer::created(User::from(user), version))
        .await
}

/// What is to be changed of a person; what is absent stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserPatch {
    /// How it is called.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub display_name: Option<String>,
    /// Its role on the platform; null takes it away.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(value_type = Option<PlatformRole>)]
    pub role: Option<Option<PlatformRole>>,
    /// Whether it may not sign in; its sessions end at once.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub disabled: Option<bool>,
    /// A new password; its sessions end at once.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(format = Password, nullable = false)]
    pub password: Option<String>,
}

/// Changes a person. The last administrator who can sign in keeps that role.
pub async fn update(
    app: &App,
    asker: &Asker,
    name: &Name,
    version: i64,
    patch: UserPatch,
) -> Result<User, AppError> {
    authorise(asker, Action::UpdateUser, Target::Platform)?;
    if let Some(display_name) = &patch.display_name {
        check_display_name(display_name)?;
    }
    if let Some(password) = &patch.password {
        passwords::check("password", name.as_str(), password)?;
    }
    let hash = hash(app, patch.password).await?;
    // The system's: a person's own transaction may not touch passwords and sessions.
    let mut tx = app.db.begin_system().await?;
    let before = find(&mut tx, name).await?;
    let fields = Fields {
        display_name: patch
            .display_name
            .as_deref()
            .unwrap_or(&before.display_name),
        platform_role: patch.role.unwrap_or(before.platform_role),
        disabled: patch.disabled.unwrap_or(before.disabled_at.is_some()),
    };
    let was = Fields {
        display_name: &before.display_name,
        platform_role: before.platform_role,
        disabled: before.disabled_at.is_some(),
    };
    let versions = (version, before.version);
    // What a new password is like is not asked: it is a change.
    if hash.is_none() && change::leaves(versions, &was, &fields)? {
        return Ok(before.into());
    }
    // Two administrators who disable each other at once must not both succeed.
    store::teams::lock_tree(&mut tx).await?;
    if !store::users::update(&mut tx, before.id, version, &fields).await? {
        return Err(AppError::Stale {
            given: version.to_string(),
            present: find(&mut tx, name).await?.version,
        });
    }
    if store::users::count_admins(&mut tx).await? == 0 {
        let (field, value) = if fields.disabled {
            ("disabled", "true".to_owned())
        } else {
            let role = fields.platform_role.map(PlatformRole::as_str);
            ("role", role.unwrap_or("null").to_owned())
        };
        return Err(AppError::conflict(
            RefusalCode::LastAdmin,
            format!("{name} is the last administrator"),
            FieldError::new(field, value, "make another one first"),
        ));
    }
    let after = find(&mut tx, name).await?;
    if let Some(hash) = &hash {
        store::sessions::set_password(&mut tx, after.id, hash).await?;
    }
    if hash.is_some() || fields.disabled {
        store::sessions::revoke_all(&mut tx, after.id, None).await?;
    }
    let change = Change {
        before: Some(described(&before)),
        after: Some(described(&after)),
        reason: if hash.is_some() { "password set" } else { "" },
        ..Change::of(Action::UpdateUser, format!("user/{name}"))
    };
    audit::record(&mut tx, asker, change).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(after.into())
}

async fn hash(app: &App, password: Option<String>) -> Result<Option<String>, AppError> {
    match password {
        Some(password) => app.hashing.queue()?.hash(password).await.map(Some),
        None => Ok(None),
    }
}

async fn find(tx: &mut Tx, name: &Name) -> Result<store::users::User, AppError> {
    store::users::find(tx, name.as_str())
        .await?
        .ok_or_else(|| AppError::not_found("user", name))
}

fn check_display_name(text: &str) -> Result<(), AppError> {
    if text.chars().count() <= DISPLAY_NAME_CHARS_MAX && text.chars().all(printable) {
        return Ok(());
    }
    Err(AppError::invalid(
        "display_name",
        text,
        format!("at most {DISPLAY_NAME_CHARS_MAX} printable characters"),
    ))
}

fn described(user: &store::users::User) -> serde_json::Value {
    json!({
        "display_name": user.display_name,
        "role": user.platform_role,
        "disabled": user.disabled_at.is_some(),
    })
}
