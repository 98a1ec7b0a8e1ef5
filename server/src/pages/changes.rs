//! What was changed of policies, and going back to how one of them was.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Redirect, Response};
use domain::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use web::shell::Section;
use web::views::{
    ChangeRow, ChangedKey, Changes, ChangesView, Effect, GoingBack, PolicySave, PolicyTab, Refusal,
};

use super::fault::encode;
use super::fields::Fields;
use super::jobs::Teams;
use super::visit::{self, Posted, Visit};
use super::{PageError, page};
use super::{effect, policies, refusal};
use crate::app::authorise::{Action, Target, authorise, may};
use crate::app::page::{Page, PageAsk};
use crate::app::policy_diff::{self, PolicyDraft};
use crate::app::versions::{self, Expected, PolicyVersion, VersionFilter};
use crate::app::{App, AppError};
use crate::front::fields::read_query;

/// The route that keys of going back belong to.
const ROUTE: &str = "POST /policy-versions/restore";
/// Changes beside what they are of: enough for the last days.
const CHANGES_BESIDE: u32 = 8;
/// Changes on the page of changes.
const CHANGES_PER_PAGE: u32 = 50;
/// How the form says that an object is not there.
const NOTHING: i64 = 0;

/// Which changes to list, and where to go on.
#[derive(Debug, Default, Deserialize)]
pub struct ChangesQuery {
    object: Option<String>,
    cursor: Option<String>,
}

/// Shows what was changed of all policies, or of one.
pub async fn list_changes(
    State(app): State<App>,
    visit: Visit,
    uri: Uri,
) -> Result<Response, PageError> {
    show(&app, &visit, read_query(&uri)?, None).await
}

/// Going back to a change that was tried.
struct Tried {
    change: PolicyVersion,
    /// The version of the object that the form was made of.
    version: i64,
    back: String,
    reason: String,
    key: String,
    outcome: Result<Effect, Refusal>,
}

async fn show(
    app: &App,
    visit: &Visit,
    query: ChangesQuery,
    tried: Option<Tried>,
) -> Result<Response, PageError> {
    let filter = VersionFilter {
        object: query.object.clone(),
        ..VersionFilter::default()
    };
    let ask = PageAsk::new(Some(CHANGES_PER_PAGE), query.cursor.clone())?;
    let found = versions::list(app, &visit.asker, &filter, &ask).await?;
    let mut newest = newest(&found.items);
    if query.cursor.is_some() {
        // What is the newest of an object is told by a list that begins with the newest.
        newest.clear();
        if query.object.is_some() {
            let first = PageAsk::new(Some(1), None)?;
            let first = versions::list(app, &visit.asker, &filter, &first).await?;
            newest = self::newest(&first.items);
        }
    }
    let mut shell = visit.shell(app, Section::Policies).await?;
    let of = query.object.as_ref();
    let of = of.map(|object| format!("object={}", encode(object)));
    if tried.is_some() {
        // The address of going back is for sending alone.
        let of = of.as_ref().map(|of| format!("?{of}")).unwrap_or_default();
        shell.here = format!("/policy-versions{of}");
    }
    let older = found.next_cursor.as_ref().map(|cursor| {
        let of = of.as_ref().map(|of| format!("&{of}")).unwrap_or_default();
        format!("/policy-versions?cursor={}{of}", encode(cursor))
    });
    let (effect, error) = match tried.as_ref().map(|tried| &tried.outcome) {
        None => (None, None),
        Some(Ok(effect)) => (Some(effect.clone()), None),
        Some(Err(refused)) => (None, Some(refused.clone())),
    };
    page(&ChangesView {
        tabs: policies::tabs(app, visit, PolicyTab::Changes, None).await?,
        changes: Changes {
            rows: rows(app, visit, &found, &newest),
            back: shell.here.clone(),
            all: older,
            all_seen: visit.asker.scope().sees_all,
        },
        object: query.object,
        tried: tried.map(|tried| GoingBack {
            id: tried.change.id,
            restores: tried.change.version,
            noun: tried.change.noun.clone(),
            name: name(&tried.change).to_owned(),
            version: tried.version,
            save: PolicySave {
                address: format!("/policy-versions/{}/restore", tried.change.id),
                back: tried.back,
                reason: tried.reason,
                key: tried.key,
            },
        }),
        error,
        effect,
        shell,
    })
}

/// The last changes of what a page shows.
pub async fn beside(
    app: &App,
    visit: &Visit,
    filter: VersionFilter,
    back: &str,
) -> Result<Changes, PageError> {
    let ask = PageAsk::new(Some(CHANGES_BESIDE), None)?;
    let found = versions::list(app, &visit.asker, &filter, &ask).await?;
    let all = match &filter.object {
        Some(object) => format!("/policy-versions?object={}", encode(object)),
        None => "/policy-versions".to_owned(),
    };
    Ok(Changes {
        rows: rows(app, visit, &found, &newest(&found.items)),
        back: back.to_owned(),
        all: found.next_cursor.map(|_| all),
        all_seen: visit.asker.scope().sees_all,
    })
}

/// The newest change of each object: its number, and the version that is expected of the object.
type Newest = BTreeMap<String, (i64, i64)>;

/// The newest change of each object, of a list that begins with the newest of all.
fn newest(changes: &[PolicyVersion]) -> Newest {
    let mut newest = Newest::new();
    for change in changes {
        let version = change.after.as_ref().map_or(NOTHING, |_| change.version);
        newest
            .entry(change.object.clone())
            .or_insert((change.id, version));
    }
    newest
}

fn rows(app: &App, visit: &Visit, found: &Page<PolicyVersion>, newest: &Newest) -> Vec<ChangeRow> {
    let restores = may(&visit.asker, Action::RestorePolicyVersion, Target::Platform);
    let row = |change: &PolicyVersion| {
        let newest = newest.get(&change.object);
        let present = newest.is_some_and(|(id, _)| *id == change.id);
        ChangeRow {
            id: change.id,
            version: change.version,
            at: change.at,
            noun: change.noun.clone(),
            name: name(change).to_owned(),
            actor: change.actor.clone(),
            reason: change.reason.clone(),
            went_back_to: change.restored_version,
            kind: kind(change),
            keys: keys(app, change),
            present: present && change.after.is_some(),
            restores: newest
                .filter(|_| restores && !present && change.after.is_some())
                .map(|(_, version)| *version),
        }
    };
    found.items.iter().map(row).collect()
}

/// The object's name without its kind.
fn name(change: &PolicyVersion) -> &str {
    change.object.split_once('/').map_or("", |(_, name)| name)
}

fn kind(change: &PolicyVersion) -> &'static str {
    match (&change.before, &change.after) {
        (_, None) => "removed",
        (Some(_), Some(_)) => "changed",
        (None, Some(_)) if change.actor.is_empty() => "first",
        (None, Some(_)) => "made",
    }
}

/// What a change changed. Of a pool that was made all is new: its page shows it better.
fn keys(app: &App, change: &PolicyVersion) -> Vec<ChangedKey> {
    if change.before.is_none() && change.noun == "pool" {
        return Vec::new();
    }
    let text = |value: &Value| shown(app, value);
    let keys = change.changes.iter().map(|key| ChangedKey {
        team: key.team.as_ref().map(ToString::to_string),
        key: key.key.clone(),
        before: change.before.as_ref().map(|_| {
            let from = key.from.as_ref().map(text);
            from.unwrap_or_else(|| "null".to_owned())
        }),
        after: key.to.as_ref().map(text),
    });
    keys.collect()
}

/// A value as it is read, a moment by the organisation's clocks.
fn shown(app: &App, value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            items.join(", ")
        }
        Value::String(text) => match text.parse::<Timestamp>() {
            Ok(at) => policies::local(app, at),
            Err(_) => text.clone(),
        },
        other => other.to_string(),
    }
}

/// Tries to set an object back to how it was after a change, or does it.
pub async fn restore_version(
    State(app): State<App>,
    Path(id): Path<String>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::RestorePolicyVersion, Target::Platform)?;
    let number: i64 = id
        .parse()
        .map_err(|_| AppError::not_found("policy version", &id))?;
    let version = fields.text("version");
    let version: i64 = version
        .parse()
        .map_err(|_| AppError::invalid("form", version, "a version"))?;
    if !fields.saves() {
        return tried(&app, &visit, number, version, &fields).await;
    }
    let expected = match version {
        NOTHING => Expected::Nothing,
        version => Expected::Version(version),
    };
    let (repeat, reason) = (fields.repeat(ROUTE), fields.text("reason"));
    let restored = versions::restore(&app, &visit.asker, repeat, number, expected, reason);
    match restored.await {
        Ok(_) => {
            let back = visit::back(fields.text("back"));
            let mark = if back.contains('?') { '&' } else { '?' };
            Ok(Redirect::to(&format!("{back}{mark}done=restored")).into_response())
        }
        Err(error @ (AppError::Stale { .. } | AppError::AlreadyThere { .. })) => {
            Err(AppError::changed_meanwhile(error.to_string()).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// The changes of an object, and what would come of going back to one of them.
async fn tried(
    app: &App,
    visit: &Visit,
    number: i64,
    version: i64,
    fields: &Fields,
) -> Result<Response, PageError> {
    let change = versions::get(app, &visit.asker, number).await?;
    let draft = PolicyDraft {
        versions: vec![number],
        ..PolicyDraft::default()
    };
    let outcome = match policy_diff::diff(app, &visit.asker, draft).await {
        Ok(diff) => {
            let teams = Teams::load(app, &visit.asker).await?;
            let zone = app.config.organisation.time_zone;
            Ok(effect::of(diff, &teams, zone))
        }
        Err(error) => Err(refusal::of(error, str::to_owned)?),
    };
    let query = ChangesQuery {
        object: Some(change.object.clone()),
        cursor: None,
    };
    let tried = Tried {
        version,
        back: visit::back(fields.text("back")).to_owned(),
        reason: fields.text("reason").to_owned(),
        key: policies::key(
            Some(fields.text("idempotency_key").to_owned()).filter(|k| !k.is_empty()),
        ),
        outcome,
        change,
    };
    show(app, visit, query, Some(tried)).await
}
