//! Versions of pools, classes, quotas, bookings and windows: every change keeps how the object
//! was and is, and each state can be gone back to.
//!
//! There is one way to write each of the five: its `set`, which makes it or changes it, checks it
//! and records it here and in the audit log. To go back is to `set` it once more to what it was,
//! checked against everything that is there now.

mod changed;

use domain::FieldError;
use domain::Timestamp;
use domain::ids::{PoolId, TeamId};
use domain::name::Name;
use domain::policy::PoolPolicy;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::audit::{self, Change};
use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
use super::policy_diff::{PolicyDraft, PoolDraft, QuotaDraft};
use super::reason::check_reason;
use super::{App, AppError, Asker, RefusalCode, bookings, classes, pools, quotas, windows};
use crate::store::Tx;
use crate::store::versions::{self as rows, NewVersion};
pub use changed::KeyChange;

/// What versions are kept of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyNoun {
    /// A pool with its policy.
    Pool,
    /// A priority class.
    Class,
    /// A team's quota in a pool.
    Quota,
    /// Capacity booked ahead.
    Booking,
    /// A weekly window.
    Window,
}

impl PolicyNoun {
    const ALL: [Self; 5] = [
        Self::Pool,
        Self::Class,
        Self::Quota,
        Self::Booking,
        Self::Window,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Class => "class",
            Self::Quota => "quota",
            Self::Booking => "booking",
            Self::Window => "window",
        }
    }
}

/// What a change of an object presupposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// That nothing is there yet.
    Nothing,
    /// That this version is there.
    Version(i64),
}

/// Who changes something, by which operation, and why.
#[derive(Debug, Clone, Copy)]
pub struct By<'a> {
    /// Who.
    pub asker: &'a Asker,
    /// The operation.
    pub action: Action,
    /// Why, in words; already checked.
    pub reason: &'a str,
    /// The version of the object that is gone back to, where one is.
    pub restored_version: Option<i64>,
}

impl<'a> By<'a> {
    /// Lets the asker change something on the platform, or refuses.
    pub fn allowed(asker: &'a Asker, action: Action, reason: &'a str) -> Result<Self, AppError> {
        authorise(asker, action, Target::Platform)?;
        check_reason(reason)?;
        Ok(Self {
            asker,
            action,
            reason,
            restored_version: None,
        })
    }
}

/// An object that was changed.
#[derive(Debug, Clone)]
pub struct Object {
    /// What it is.
    pub noun: PolicyNoun,
    /// Its name, such as `h100` or `vision/h100`.
    pub name: String,
    /// The pool that it belongs to.
    pub pool_id: Option<PoolId>,
    /// The team that may read of it.
    pub team_id: Option<TeamId>,
    /// Its version from now on.
    pub version: i64,
}

impl Object {
    fn path(&self) -> String {
        format!("{}/{}", self.noun.as_str(), self.name)
    }
}

/// Records a change, in the transaction that makes it.
pub async fn record(
    tx: &mut Tx,
    by: &By<'_>,
    object: Object,
    before: Option<Value>,
    after: Option<Value>,
) -> Result<(), AppError> {
    let path = object.path();
    if let Some(before) = &before {
        record_first(tx, &object, &path, before).await?;
    }
    let new = NewVersion {
        actor_id: Some(by.asker.user_id),
        actor_name: by.asker.name.as_str(),
        reason: by.reason,
        restored_version: by.restored_version,
        before: before.as_ref(),
        after: after.as_ref(),
        ..of_object(&object, &path)
    };
    rows::insert(tx, new).await?;
    let change = Change {
        team_id: object.team_id,
        reason: by.reason,
        before,
        after,
        ..Change::of(by.action, path)
    };
    audit::record(tx, by.asker, change).await
}

/// The version that an object begins with: one above the last that its name had, so that a version
/// that somebody has read never comes to mean another state.
pub async fn first(tx: &mut Tx, object: &Object) -> Result<i64, AppError> {
    let path = object.path();
    let filter = rows::Filter {
        object: Some(&path),
        ..rows::Filter::default()
    };
    let newest = rows::page(tx, filter, 1).await?.pop();
    Ok(newest.map_or(1, |newest| newest.version + 1))
}

/// Keeps how an object was that nobody made by an operation: a class that ships, a demo's pool.
async fn record_first(
    tx: &mut Tx,
    object: &Object,
    path: &str,
    before: &Value,
) -> Result<(), AppError> {
    let filter = rows::Filter {
        object: Some(path),
        ..rows::Filter::default()
    };
    if rows::page(tx, filter, 1).await?.is_empty() {
        let first = NewVersion {
            version: object.version - 1,
            after: Some(before),
            ..of_object(object, path)
        };
        rows::insert(tx, first).await?;
    }
    Ok(())
}

fn of_object<'a>(object: &Object, path: &'a str) -> NewVersion<'a> {
    NewVersion {
        noun: object.noun.as_str(),
        object: path,
        version: object.version,
        pool_id: object.pool_id,
        team_id: object.team_id,
        actor_id: None,
        actor_name: "",
        reason: "",
        restored_version: None,
        before: None,
        after: None,
    }
}

/// A change of a pool, class, quota, booking or window.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PolicyVersion {
    /// Its number; later changes have higher ones.
    pub id: i64,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// What was changed.
    pub noun: String,
    /// Its name with its kind, such as `quota/vision/h100`.
    pub object: String,
    /// The version that the object has had since.
    pub version: i64,
    /// Who made it; empty for what was there before anybody changed it.
    pub actor: String,
    /// Why, where that was said.
    pub reason: String,
    /// The version that the object was set back to, where it was set back to one.
    pub restored_version: Option<i64>,
    /// The keys whose values became other ones, in order; none where it was removed.
    pub changes: Vec<KeyChange>,
    /// How it was; null before it was made.
    pub before: Option<Value>,
    /// How it became; null when it was removed.
    pub after: Option<Value>,
}

impl From<rows::Version> for PolicyVersion {
    fn from(row: rows::Version) -> Self {
        Self {
            id: row.id,
            at: row.at,
            noun: row.noun,
            object: row.object,
            version: row.version,
            actor: row.actor_name,
            reason: row.reason,
            restored_version: row.restored_version,
            changes: changed::between(row.before.as_ref(), row.after.as_ref()),
            before: row.before,
            after: row.after,
        }
    }
}

/// Which versions to list.
#[derive(Debug, Clone, Default)]
pub struct VersionFilter {
    /// Of this kind.
    pub noun: Option<PolicyNoun>,
    /// Of this object, such as `pool/h100`.
    pub object: Option<String>,
    /// Of this pool.
    pub pool: Option<Name>,
}

/// Lists what was changed, newest first: everything to who steers, to others what is of their
/// own teams.
pub async fn list(
    app: &App,
    asker: &Asker,
    filter: &VersionFilter,
    ask: &PageAsk,
) -> Result<Page<PolicyVersion>, AppError> {
    authorise(asker, Action::ListPolicyVersions, Target::Platform)?;
    let before: Option<i64> = ask.after("policy_version")?;
    if let Some(object) = &filter.object {
        parse(object).ok_or_else(|| AppError::invalid("object", object, OBJECTS))?;
    }
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let pool = match &filter.pool {
        Some(name) => Some(pools::find(&mut tx, name).await?.id),
        None => None,
    };
    let wanted = rows::Filter {
        noun: filter.noun.map(PolicyNoun::as_str),
        object: filter.object.as_deref(),
        pool,
        before,
    };
    let found = rows::page(&mut tx, wanted, ask.rows_wanted()).await?;
    tx.commit().await?;
    let versions = found.into_iter().map(PolicyVersion::from).collect();
    Ok(page::cut(ask, "policy_version", versions, |v| v.id))
}

/// Shows one change.
pub async fn get(app: &App, asker: &Asker, id: i64) -> Result<PolicyVersion, AppError> {
    authorise(asker, Action::ListPolicyVersions, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let row = rows::find(&mut tx, id).await?;
    tx.commit().await?;
    row.map(PolicyVersion::from)
        .ok_or_else(|| AppError::not_found("policy version", id))
}

/// Sets an object back to how it was after a change, checked as any change is. What has been
/// removed since is made again.
pub async fn restore(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    id: i64,
    expected: Expected,
    reason: &str,
) -> Result<Answer<PolicyVersion>, AppError> {
    let by = By::allowed(asker, Action::RestorePolicyVersion, reason)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let tx = &mut work.tx;
    let (row_version, object, state) = kept(tx, id).await?;
    let by = By {
        restored_version: Some(row_version),
        ..by
    };
    set(tx, &by, &object, expected, state)
        .await
        .map_err(|error| match error {
            AppError::Exceeded(excess) => excess.refused("policy_version", id),
            other => other,
        })?;
    let filter = rows::Filter {
        object: Some(&object),
        ..rows::Filter::default()
    };
    let newest = rows::page(tx, filter, 1).await?.pop();
    let newest = newest.ok_or_else(|| AppError::not_found("policy version", id))?;
    let version = newest.version;
    let answer = Answer::done(PolicyVersion::from(newest), version);
    let answer = work.finish(app, answer).await?;
    app.wake.all();
    Ok(answer)
}

/// An object, its version, and how it was then, after a change.
async fn kept(tx: &mut Tx, id: i64) -> Result<(i64, String, Value), AppError> {
    let row = rows::find(tx, id)
        .await?
        .ok_or_else(|| AppError::not_found("policy version", id))?;
    match row.after {
        Some(state) => Ok((row.version, row.object, state)),
        None => Err(AppError::conflict(
            RefusalCode::ItWasRemoved,
            format!("version {id} is the removal of {}", row.object),
            FieldError::new("policy_version", id, "go back to one before it"),
        )),
    }
}

/// Puts an object as it was after a change into a draft, to be tried before it is gone back to.
pub(super) async fn draft(tx: &mut Tx, id: i64, into: &mut PolicyDraft) -> Result<(), AppError> {
    let (_, object, state) = kept(tx, id).await?;
    match Named::kept(&object)? {
        Named::Pool(pool) => {
            let policy: PoolPolicy = read(state)?;
            into.pools.push(PoolDraft {
                pool,
                policy: policy.into(),
            });
        }
        Named::Class(name) => {
            let form: classes::ClassForm = read(state)?;
            into.classes.push(form.draft(name));
        }
        Named::Quota(team, pool) => into.quotas.push(QuotaDraft {
            team,
            pool,
            quota: read(state)?,
        }),
        Named::Booking(pool, name) => {
            let form: bookings::BookingForm = read(state)?;
            into.bookings.push(form.draft(pool, name));
        }
        Named::Window(pool, name) => {
            let form: windows::WindowForm = read(state)?;
            into.windows.push(form.draft(pool, name));
        }
    }
    Ok(())
}

async fn set(
    tx: &mut Tx,
    by: &By<'_>,
    object: &str,
    expected: Expected,
    state: Value,
) -> Result<(), AppError> {
    match Named::kept(object)? {
        Named::Pool(pool) => pools::set(tx, by, &pool, expected, &read(state)?).await,
        Named::Class(class) => classes::set(tx, by, &class, expected, read(state)?).await,
        Named::Quota(team, pool) => {
            let quota: quotas::NewQuota = read(state)?;
            let change = quotas::Change {
                team,
                pool,
                expected,
                amounts: quotas::checked(&quota)?,
            };
            quotas::set(tx, by, &[change]).await.map(drop)
        }
        Named::Booking(pool, name) => {
            bookings::set(tx, by, &pool, &name, expected, &read(state)?).await
        }
        Named::Window(pool, name) => {
            windows::set(tx, by, &pool, &name, expected, &read(state)?).await
        }
    }
}

/// How objects are named, for who names one otherwise.
const OBJECTS: &str =
    "pool/POOL, class/CLASS, quota/TEAM/POOL, booking/POOL/NAME or window/POOL/NAME";

/// An object by the names in its path.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    Pool(Name),
    Class(Name),
    /// The team, then the pool.
    Quota(Name, Name),
    /// The pool, then its own name.
    Booking(Name, Name),
    /// Likewise.
    Window(Name, Name),
}

impl Named {
    /// Reads an object's path as a version keeps it.
    fn kept(object: &str) -> Result<Self, AppError> {
        parse(object)
            .ok_or_else(|| AppError::Internal(anyhow::anyhow!("policy version of {object:?}")))
    }
}

fn parse(object: &str) -> Option<Named> {
    let (noun, name) = object.split_once('/')?;
    let noun = PolicyNoun::ALL.into_iter().find(|n| n.as_str() == noun)?;
    let two = || {
        let (first, second) = name.split_once('/')?;
        Some((first.parse().ok()?, second.parse().ok()?))
    };
    Some(match noun {
        PolicyNoun::Pool => Named::Pool(name.parse().ok()?),
        PolicyNoun::Class => Named::Class(name.parse().ok()?),
        PolicyNoun::Quota => two().map(|(team, pool)| Named::Quota(team, pool))?,
        PolicyNoun::Booking => two().map(|(pool, name)| Named::Booking(pool, name))?,
        PolicyNoun::Window => two().map(|(pool, name)| Named::Window(pool, name))?,
    })
}

/// Reads a state as it was kept.
fn read<T: DeserializeOwned>(state: Value) -> Result<T, AppError> {
    serde_json::from_value(state)
        .map_err(|e| AppError::Internal(anyhow::Error::new(e).context("read a policy version")))
}

/// Writes a state as it is kept.
pub fn written(state: &impl Serialize) -> Result<Value, AppError> {
    serde_json::to_value(state)
        .map_err(|e| AppError::Internal(anyhow::Error::new(e).context("write a policy version")))
}
