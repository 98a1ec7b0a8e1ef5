//! Weekly windows: quotas and weights of a pool that hold for some hours of the week, in a time
//! zone, in place of those that hold else.

mod check;

use std::collections::BTreeMap;

use domain::Timestamp;
use domain::ids::{PoolId, WindowId};
use domain::name::Name;
use domain::weekly::{Day, TimeOfDay, Weekly, Zone};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
use super::policy_diff::WindowDraft;
use super::quotas::{NewQuota, Warning, tree::Promises, warning};
use super::versions::{self, By, Expected, Object, PolicyNoun};
use super::{App, AppError, Asker, change, pools};
use crate::store::windows::{self as rows, WindowQuota as QuotaRow};
use crate::store::{self, Tx};
pub(super) use check::{at, check_count, sent};
use check::{check, quota_rows};

/// Most windows of a pool: every set of them that is open together is checked at each change.
const WINDOWS_MAX: usize = 20;
/// Most teams of a window.
const TEAMS_MAX: usize = 1_000;

/// A weekly window of a pool.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Window {
    /// Its name.
    pub name: Name,
    /// The pool.
    pub pool: Name,
    /// The days on which it opens.
    pub days: Vec<Day>,
    /// When it opens.
    pub from: TimeOfDay,
    /// When it closes; on the next day where this is no later than `from`.
    pub to: TimeOfDay,
    /// Whose clocks are meant.
    pub time_zone: Zone,
    /// What holds meanwhile, for the teams that the asker may see.
    pub quotas: Vec<WindowQuota>,
    /// Whether it is open.
    pub open: bool,
    /// When it opens or closes next.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_edge_at: Option<Timestamp>,
    /// What does not keep it from holding, and should be known; told to who may see the quotas of
    /// all teams.
    pub warnings: Vec<Warning>,
    /// Its version.
    pub version: i64,
}

/// What a team has while a window is open, in place of its quota.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowQuota {
    /// The team.
    pub team: Name,
    /// Its quota then.
    pub quota: NewQuota,
}

impl From<&QuotaRow> for WindowQuota {
    fn from(row: &QuotaRow) -> Self {
        Self {
            team: row.team.clone(),
            quota: NewQuota::from(row.amounts),
        }
    }
}

/// A window to be made.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWindow {
    /// Its name.
    pub name: Name,
    /// The days on which it opens.
    pub days: Vec<Day>,
    /// When it opens.
    pub from: TimeOfDay,
    /// When it closes; on the next day where this is no later than `from`.
    pub to: TimeOfDay,
    /// Whose clocks are meant; the organisation's unless given.
    #[serde(default)]
    pub time_zone: Option<Zone>,
    /// What holds meanwhile.
    pub quotas: Vec<WindowQuota>,
}

/// What is to be changed of a window; what is absent stays.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowPatch {
    /// The days on which it opens.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub days: Option<Vec<Day>>,
    /// When it opens.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub from: Option<TimeOfDay>,
    /// When it closes.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub to: Option<TimeOfDay>,
    /// Whose clocks are meant.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub time_zone: Option<Zone>,
    /// What holds meanwhile, in place of all that held before.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub quotas: Option<Vec<WindowQuota>>,
}

impl WindowPatch {
    /// The first key that changes when it opens, of one that leaves the quotas as they are.
    fn moved(&self) -> Option<(&'static str, String)> {
        if self.quotas.is_some() {
            return None;
        }
        let days = self.days.as_ref().map(|days| {
            let days: Vec<String> = days.iter().map(ToString::to_string).collect();
            ("days", days.join(", "))
        });
        let from = self.from.map(|from| ("from", from.to_string()));
        let to = self.to.map(|to| ("to", to.to_string()));
        let zone = self.time_zone.map(|zone| ("time_zone", zone.to_string()));
        days.or(from).or(to).or(zone)
    }
}

/// A window as its versions keep it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WindowForm {
    days: Vec<Day>,
    from: TimeOfDay,
    to: TimeOfDay,
    time_zone: Zone,
    quotas: Vec<WindowQuota>,
}

impl From<&rows::Window> for WindowForm {
    fn from(row: &rows::Window) -> Self {
        Self {
            days: row.weekly.days.clone(),
            from: row.weekly.from,
            to: row.weekly.to,
            time_zone: row.weekly.zone,
            quotas: row.quotas.iter().map(WindowQuota::from).collect(),
        }
    }
}

impl WindowForm {
    /// The same as a draft.
    pub(super) fn draft(self, pool: Name, name: Name) -> WindowDraft {
        WindowDraft {
            pool,
            name,
            days: self.days,
            from: self.from,
            to: self.to,
            time_zone: Some(self.time_zone),
            quotas: self.quotas,
        }
    }

    /// The same window with its days and teams in one order, in which two are compared.
    fn in_order(&self) -> Self {
        let mut same = self.clone();
        same.days.sort_unstable();
        same.quotas.sort_by(|a, b| a.team.cmp(&b.team));
        same
    }

    fn weekly(&self) -> Weekly {
        Weekly {
            days: self.days.clone(),
            from: self.from,
            to: self.to,
            zone: self.time_zone,
        }
    }
}

/// Lists a pool's windows by name: to who does not see all teams those that bring something for a team
/// of its own, as bookings are listed.
pub async fn list(
    app: &App,
    asker: &Asker,
    pool: &Name,
    ask: &PageAsk,
) -> Result<Page<Window>, AppError> {
    authorise(asker, Action::ListWindows, Target::Platform)?;
    let after: Option<Name> = ask.after("window")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let pool_id = pools::find(&mut tx, pool).await?.id;
    // A pool has few.
    let found = rows::all(&mut tx, Some(pool_id)).await?;
    let now = store::clock(&mut tx).await?;
    let mut warnings = if asker.scope().sees_all {
        warnings(&mut tx, (pool_id, pool)).await?
    } else {
        BTreeMap::new()
    };
    tx.commit().await?;
    let sees = |row: &rows::Window| asker.scope().sees_all || !row.quotas.is_empty();
    let later = found
        .iter()
        .filter(|row| sees(row) && Some(&row.name) > after.as_ref());
    let windows = later
        .map(|row| shown(row, now, warnings.remove(&row.name).unwrap_or_default()))
        .collect();
    Ok(page::cut(ask, "window", windows, |w: &Window| {
        w.name.clone()
    }))
}

/// Makes a window.
pub async fn create(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    pool: &Name,
    new: NewWindow,
    reason: &str,
) -> Result<Answer<Window>, AppError> {
    let by = By::allowed(asker, Action::CreateWindow, reason)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let form = WindowForm {
        days: new.days,
        from: new.from,
        to: new.to,
        time_zone: new.time_zone.unwrap_or(app.config.organisation.time_zone),
        quotas: new.quotas,
    };
    set(&mut work.tx, &by, pool, &new.name, Expected::Nothing, &form).await?;
    let window = read(&mut work.tx, pool, &new.name).await?;
    let version = window.version;
    let answer = work.finish(app, Answer::created(window, version)).await?;
    app.wake.all();
    Ok(answer)
}

/// Changes a window.
pub async fn update(
    app: &App,
    asker: &Asker,
    (pool, name): (&Name, &Name),
    version: i64,
    patch: WindowPatch,
    reason: &str,
) -> Result<Window, AppError> {
    let by = By::allowed(asker, Action::UpdateWindow, reason)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let pool_id = pools::find(&mut tx, pool).await?.id;
    let mut form = WindowForm::from(&find(&mut tx, pool_id, name).await?);
    let moved = patch.moved();
    form.days = patch.days.unwrap_or(form.days);
    form.from = patch.from.unwrap_or(form.from);
    form.to = patch.to.unwrap_or(form.to);
    form.time_zone = patch.time_zone.unwrap_or(form.time_zone);
    form.quotas = patch.quotas.unwrap_or(form.quotas);
    let kept = Expected::Version(version);
    set(&mut tx, &by, pool, name, kept, &form)
        .await
        .map_err(|error| match (error, &moved) {
            (AppError::Exceeded(excess), Some((field, value))) => excess.refused(*field, value),
            (other, _) => other,
        })?;
    let window = read(&mut tx, pool, name).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(window)
}

/// Removes a window: what holds else holds in its hours, too.
pub async fn delete(
    app: &App,
    asker: &Asker,
    (pool, name): (&Name, &Name),
    version: i64,
    reason: &str,
) -> Result<(), AppError> {
    let by = By::allowed(asker, Action::DeleteWindow, reason)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let pool_id = lock(&mut tx, pool).await?;
    let row = find(&mut tx, pool_id, name).await?;
    if !rows::delete(&mut tx, row.id, version).await? {
        return Err(stale(&row, version));
    }
    // Of two that overlap the other one may not stand alone.
    let (promises, now) = promises(&mut tx, (pool_id, pool)).await?;
    promises
        .check(now)
        .map_err(|excess| excess.refused("window", name))?;
    let before = versions::written(&WindowForm::from(&row))?;
    let object = object(pool_id, pool, name, version + 1);
    versions::record(&mut tx, &by, object, Some(before), None).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(())
}

/// Makes or changes one.
pub(super) async fn set(
    tx: &mut Tx,
    by: &By<'_>,
    pool: &Name,
    name: &Name,
    expected: Expected,
    form: &WindowForm,
) -> Result<(), AppError> {
    let pool_id = lock(tx, pool).await?;
    if let Expected::Version(version) = expected {
        let row = find(tx, pool_id, name).await?;
        let before = WindowForm::from(&row);
        if change::leaves((version, row.version), &before.in_order(), &form.in_order())? {
            return Ok(());
        }
    }
    check(form)?;
    let quotas = quota_rows(tx, &form.quotas).await?;
    let weekly = form.weekly();
    let (id, before, version) = match expected {
        Expected::Nothing => {
            let id = WindowId::new();
            let version = versions::first(tx, &object(pool_id, pool, name, 1)).await?;
            rows::insert(tx, id, pool_id, (name, version), &weekly)
                .await
                .map_err(|e| AppError::name_taken(e, "window_name_taken", "window", name))?;
            (id, None, version)
        }
        Expected::Version(version) => {
            let row = find(tx, pool_id, name).await?;
            if !rows::update(tx, row.id, version, &weekly).await? {
                return Err(stale(&row, version));
            }
            let before = versions::written(&WindowForm::from(&row))?;
            (row.id, Some(before), version + 1)
        }
    };
    rows::set_quotas(tx, id, &quotas).await?;
    check_count(rows::all(tx, Some(pool_id)).await?.len())?;
    let (promises, now) = promises(tx, (pool_id, pool)).await?;
    promises
        .check(now)
        .map_err(|excess| match sent(&form.quotas, &promises, &excess) {
            Some((index, asked)) => excess.refused(at(index), asked),
            None => AppError::Exceeded(excess),
        })?;
    let object = object(pool_id, pool, name, version);
    versions::record(tx, by, object, before, Some(versions::written(form)?)).await
}

fn object(pool_id: PoolId, pool: &Name, name: &Name, version: i64) -> Object {
    Object {
        noun: PolicyNoun::Window,
        name: format!("{pool}/{name}"),
        pool_id: Some(pool_id),
        // It is of several teams, none of which may know the others'.
        team_id: None,
        version,
    }
}

/// Locks what the promises of a pool depend on; the pool's id.
async fn lock(tx: &mut Tx, pool: &Name) -> Result<PoolId, AppError> {
    let pool_id = pools::find(tx, pool).await?.id;
    store::teams::lock_tree(tx).await?;
    store::quotas::lock_pool(tx, pool_id).await?;
    Ok(pool_id)
}

async fn promises(tx: &mut Tx, pool: (PoolId, &Name)) -> Result<(Promises, Timestamp), AppError> {
    let now = store::clock(tx).await?;
    Ok((Promises::load(tx, pool).await?, now))
}

/// A window as it would be, checked as if it were saved.
pub(super) async fn drafted(
    tx: &mut Tx,
    pool: &Name,
    new: &NewWindow,
    zone: Zone,
) -> Result<rows::Window, AppError> {
    let form = WindowForm {
        days: new.days.clone(),
        from: new.from,
        to: new.to,
        time_zone: new.time_zone.unwrap_or(zone),
        quotas: new.quotas.clone(),
    };
    check(&form)?;
    Ok(rows::Window {
        id: WindowId::new(),
        pool: pool.clone(),
        name: new.name.clone(),
        weekly: form.weekly(),
        quotas: quota_rows(tx, &form.quotas).await?,
        version: 0,
    })
}

async fn find(tx: &mut Tx, pool: PoolId, name: &Name) -> Result<rows::Window, AppError> {
    let windows = rows::all(tx, Some(pool)).await?;
    windows
        .into_iter()
        .find(|window| window.name == *name)
        .ok_or_else(|| AppError::not_found("window", name))
}

fn stale(row: &rows::Window, given: i64) -> AppError {
    AppError::Stale {
        given: given.to_string(),
        present: row.version,
    }
}

/// One window, in the transaction of somebody who sees the quotas of all teams.
async fn read(tx: &mut Tx, pool: &Name, name: &Name) -> Result<Window, AppError> {
    let pool_id = pools::find(tx, pool).await?.id;
    let now = store::clock(tx).await?;
    let mut warnings = warnings(tx, (pool_id, pool)).await?;
    let warnings = warnings.remove(name).unwrap_or_default();
    Ok(shown(&find(tx, pool_id, name).await?, now, warnings))
}

/// What is to be known of the windows of a pool, in such a transaction.
async fn warnings(
    tx: &mut Tx,
    pool: (PoolId, &Name),
) -> Result<BTreeMap<Name, Vec<Warning>>, AppError> {
    let now = store::clock(tx).await?;
    let promises = Promises::load(tx, pool).await?;
    let capacity = warning::capacity(tx, pool.0).await?;
    Ok(warning::of_windows(capacity, &promises, now))
}

fn shown(row: &rows::Window, now: Timestamp, warnings: Vec<Warning>) -> Window {
    Window {
        name: row.name.clone(),
        pool: row.pool.clone(),
        days: row.weekly.days.clone(),
        from: row.weekly.from,
        to: row.weekly.to,
        time_zone: row.weekly.zone,
        quotas: row.quotas.iter().map(WindowQuota::from).collect(),
        open: row.weekly.open_at(now).is_some(),
        next_edge_at: row.weekly.next_edge(now),
        warnings,
        version: row.version,
    }
}
