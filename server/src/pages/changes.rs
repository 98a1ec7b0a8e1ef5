//! What was changed of policies, and going back to how one of them was.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Redirect, Response};
use domain::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use web::shell::Section;
use web::views::{ChangeRow, ChangedKey, Changes, ChangesView, PolicyTab};

use super::fault::encode;
use super::fields::Fields;
use super::policies;
use super::visit::{self, Posted, Visit};
use super::{PageError, page};
use crate::app::authorise::{Action, Target, authorise, may};
use crate::app::idempotency::Repeat;
use crate::app::page::{Page, PageAsk};
use crate::app::versions::{self, Expected, PolicyVersion, VersionFilter};
use crate::app::{App, AppError};
use crate::front::fields::read_query;

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
    let query: ChangesQuery = read_query(&uri)?;
    let filter = VersionFilter {
        object: query.object.clone(),
        ..VersionFilter::default()
    };
    let ask = PageAsk::new(Some(CHANGES_PER_PAGE), query.cursor.clone())?;
    let found = versions::list(&app, &visit.asker, &filter, &ask).await?;
    let mut newest = newest(&found.items);
    if query.cursor.is_some() {
        // What is the newest of an object is told by a list that begins with the newest.
        newest.clear();
        if query.object.is_some() {
            let first = PageAsk::new(Some(1), None)?;
            let first = versions::list(&app, &visit.asker, &filter, &first).await?;
            newest = self::newest(&first.items);
        }
    }
    let shell = visit.shell(&app, Section::Policies).await?;
    let of = query.object.as_ref();
    let of = of.map(|object| format!("object={}", encode(object)));
    let older = found.next_cursor.as_ref().map(|cursor| {
        let of = of.as_ref().map(|of| format!("&{of}")).unwrap_or_default();
        format!("/policy-versions?cursor={}{of}", encode(cursor))
    });
    page(&ChangesView {
        tabs: policies::tabs(&app, &visit, PolicyTab::Changes, None).await?,
        changes: Changes {
            rows: rows(&app, &visit, &found, &newest),
            back: shell.here.clone(),
            all: older,
        },
        object: query.object,
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
        let name = change.object.split_once('/').map_or("", |(_, name)| name);
        ChangeRow {
            id: change.id,
            at: change.at,
            noun: change.noun.clone(),
            name: name.to_owned(),
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

/// Sets an object back to how it was after a change.
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
    let expected = match version.parse() {
        Ok(NOTHING) => Expected::Nothing,
        Ok(version) => Expected::Version(version),
        Err(_) => return Err(AppError::invalid("form", version, "a version").into()),
    };
    let reason = fields.text("reason");
    let restored = versions::restore(&app, &visit.asker, Repeat::none(), number, expected, reason);
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
