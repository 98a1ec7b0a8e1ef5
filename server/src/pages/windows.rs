//! The weekly windows of a pool: a grid of the week, and making, changing and removing one.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Redirect, Response};
use domain::name::Name;
use domain::weekly::Day;
use serde::Deserialize;
use web::shell::Section;
use web::views::{Effect, PolicyTab, WindowForm, WindowRow, WindowsView};

use super::fields::Fields;
use super::jobs::Teams;
use super::policies::{self, Outcome};
use super::pool::read_name;
use super::quota_fields::{self, Texts};
use super::visit::{Posted, Visit};
use super::week_grid::grids;
use super::window_fields::{edited, fresh, kept, lines, read};
use super::{PageError, changes, effect, page, refusal};
use crate::app::authorise::{Action, Target, authorise, may};
use crate::app::page::PageAsk;
use crate::app::policy_diff::{self, PolicyDraft, WindowDraft};
use crate::app::quotas::table::table;
use crate::app::versions::{PolicyNoun, VersionFilter};
use crate::app::windows::{self, NewWindow, Window, WindowPatch};
use crate::app::{App, AppError};
use crate::front::fields::read_query;

/// The route that keys of this form belong to.
const ROUTE: &str = "POST /pools/windows";

/// Which window is to be changed.
#[derive(Debug, Default, Deserialize)]
pub struct WindowsQuery {
    edit: Option<String>,
}

/// Shows the windows.
pub async fn show_windows(
    State(app): State<App>,
    visit: Visit,
    Path(pool): Path<String>,
    uri: Uri,
) -> Result<Response, PageError> {
    let query: WindowsQuery = read_query(&uri)?;
    show(&app, &visit, &read_name(&pool)?, query, Outcome::none()).await
}

async fn show(
    app: &App,
    visit: &Visit,
    pool: &Name,
    query: WindowsQuery,
    mut outcome: Outcome<WindowForm>,
) -> Result<Response, PageError> {
    let asker = &visit.asker;
    // A pool has few.
    let found = windows::list(app, asker, pool, &PageAsk::first())
        .await?
        .items;
    let table = table(app, asker).await?;
    let teams = Teams::load(app, asker).await?;
    let address = format!("/pools/{pool}/windows");
    let mut shell = visit.shell(app, Section::Policies).await?;
    if outcome.answers() {
        shell.here = address.clone();
    }
    let form = match (
        may(asker, Action::CreateWindow, Target::Platform),
        outcome.form.take(),
    ) {
        (false, _) => None,
        (true, Some(form)) => Some(form),
        (true, None) => Some(match &query.edit {
            Some(name) => {
                let window = found.iter().find(|window| window.name.as_str() == name);
                let window = window.ok_or_else(|| AppError::not_found("window", name))?;
                edited(window, &table)
            }
            None => fresh(app.config.organisation.time_zone, pool, &table),
        }),
    };
    let send = match &form {
        Some(form) if form.changes => format!("{address}/{}", form.name),
        _ => address.clone(),
    };
    let changes = VersionFilter {
        noun: Some(PolicyNoun::Window),
        pool: Some(pool.clone()),
        ..VersionFilter::default()
    };
    let kept = kept(&table, pool);
    let status = outcome.status();
    let mut response = page(&WindowsView {
        tabs: policies::tabs(app, visit, PolicyTab::Windows, Some(pool.as_str())).await?,
        pool: pool.to_string(),
        grids: grids(&found),
        rows: found
            .iter()
            .map(|window| row(window, &kept, &teams))
            .collect(),
        form,
        save: outcome.save(send, &address),
        errors: outcome.errors,
        effect: outcome.effect,
        changes: changes::beside(app, visit, changes, &address).await?,
        shell,
    })?;
    *response.status_mut() = status;
    Ok(response)
}

fn row(window: &Window, kept: &BTreeMap<Name, Texts>, teams: &Teams) -> WindowRow {
    WindowRow {
        name: window.name.to_string(),
        days: window.days.iter().map(|day| day.as_str()).collect(),
        span: (window.from.to_string(), window.to.to_string()),
        overnight: window.to <= window.from,
        zone: window.time_zone.to_string(),
        open: window.open,
        next_edge_at: window.next_edge_at,
        quotas: window
            .quotas
            .iter()
            .map(|quota| web::views::WindowQuota {
                team: teams.shown(quota.team.as_str()),
                values: quota_fields::texts(&quota.quota),
                else_values: kept.get(&quota.team).cloned(),
            })
            .collect(),
        warnings: window.warnings.iter().map(effect::warning).collect(),
        version: window.version,
        edit: format!("/pools/{}/windows?edit={}#form", window.pool, window.name),
    }
}

/// Tries a window on the live world, or makes it.
pub async fn make_window(
    State(app): State<App>,
    Path(pool): Path<String>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::CreateWindow, Target::Platform)?;
    set(&app, &visit, &read_name(&pool)?, None, &fields).await
}

/// Tries a changed window on the live world, or saves it.
pub async fn change_window(
    State(app): State<App>,
    Path((pool, name)): Path<(String, String)>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::UpdateWindow, Target::Platform)?;
    let (pool, name) = (read_name(&pool)?, read_window(&name)?);
    set(&app, &visit, &pool, Some(&name), &fields).await
}

async fn set(
    app: &App,
    visit: &Visit,
    pool: &Name,
    changed: Option<&Name>,
    fields: &Fields,
) -> Result<Response, PageError> {
    let table = table(app, &visit.asker).await?;
    let mut typed = read(&table, changed, fields);
    let text = |name: &str| fields.text(name).to_owned();
    let version = match changed {
        Some(_) => policies::version(fields)?,
        None => 0,
    };
    let mut outcome = Outcome::sent(fields);
    if let Some(new) = typed.new.take() {
        let teams: Vec<Name> = new.quotas.iter().map(|quota| quota.team.clone()).collect();
        let refused = if fields.saves() {
            match save(app, visit, pool, (changed, version), new, fields).await {
                Ok(done) => {
                    let address = format!("/pools/{pool}/windows?done={done}");
                    return Ok(Redirect::to(&address).into_response());
                }
                Err(error) => Some(error),
            }
        } else {
            match tried(app, visit, pool, new).await {
                Ok(effect) => {
                    outcome.effect = Some(effect);
                    None
                }
                Err(error) => Some(error),
            }
        };
        if let Some(error) = refused {
            outcome.errors.extend(typed.refuse(&teams, error)?);
        }
    }
    let day = |day: &Day| (day.as_str(), fields.has(&format!("day.{day}")));
    let texts = |team: &Name| quota_fields::typed(fields, &format!("quota/{team}"));
    outcome.form = Some(WindowForm {
        changes: changed.is_some(),
        name: changed.map_or_else(|| text("name"), Name::to_string),
        days: Day::ALL.iter().map(day).collect(),
        from: text("from"),
        to: text("to"),
        zone: text("time_zone"),
        lines: lines(&table, pool, &texts, &typed.cells),
        version,
        errors: typed.errors,
    });
    show(app, visit, pool, WindowsQuery::default(), outcome).await
}

/// What a window would do at the moment at which it is open next.
async fn tried(app: &App, visit: &Visit, pool: &Name, new: NewWindow) -> Result<Effect, AppError> {
    let draft = WindowDraft::of(pool, new);
    let zone = app.config.organisation.time_zone;
    let draft = PolicyDraft {
        windows: vec![draft],
        ..PolicyDraft::default()
    };
    let diff = policy_diff::diff(app, &visit.asker, draft).await?;
    let teams = Teams::load(app, &visit.asker).await?;
    Ok(effect::of(diff, &teams, zone))
}

async fn save(
    app: &App,
    visit: &Visit,
    pool: &Name,
    (changed, version): (Option<&Name>, i64),
    new: NewWindow,
    fields: &Fields,
) -> Result<&'static str, AppError> {
    let reason = fields.text("reason");
    let Some(name) = changed else {
        let repeat = fields.repeat(ROUTE);
        windows::create(app, &visit.asker, repeat, pool, new, reason).await?;
        return Ok("window_made");
    };
    let patch = WindowPatch {
        days: Some(new.days),
        from: Some(new.from),
        to: Some(new.to),
        time_zone: new.time_zone,
        quotas: Some(new.quotas),
    };
    windows::update(app, &visit.asker, (pool, name), version, patch, reason).await?;
    Ok("window_saved")
}

/// Removes a window.
pub async fn delete_window(
    State(app): State<App>,
    Path((pool, name)): Path<(String, String)>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::DeleteWindow, Target::Platform)?;
    let (pool, name) = (read_name(&pool)?, read_window(&name)?);
    let version = policies::version(&fields)?;
    match windows::delete(
        &app,
        &visit.asker,
        (&pool, &name),
        version,
        fields.text("reason"),
    )
    .await
    {
        Ok(()) => {
            let address = format!("/pools/{pool}/windows?done=window_deleted");
            Ok(Redirect::to(&address).into_response())
        }
        Err(error) => {
            let outcome = Outcome::refused(refusal::of(error, str::to_owned)?);
            show(&app, &visit, &pool, WindowsQuery::default(), outcome).await
        }
    }
}

fn read_window(text: &str) -> Result<Name, AppError> {
    text.parse()
        .map_err(|_| AppError::not_found("window", text))
}
