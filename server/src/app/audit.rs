//! The audit log: every change by a person, and every denial, with who asked and what was before and after.

use domain::Timestamp;
use domain::ids::{RequestId, TeamId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::page::{self, Page, PageAsk};
use super::{App, AppError, Asker};
use crate::store::audit::NewEntry;
use crate::store::{self, Tx};

/// A change to be recorded.
#[derive(Debug, Clone)]
pub struct Change<'a> {
    /// What was done.
    pub action: Action,
    /// On what, as kind and name: `team/vision`.
    pub object: String,
    /// The team that may read of it.
    pub team_id: Option<TeamId>,
    /// Why, where the person said so.
    pub reason: &'a str,
    /// How it was; never a secret.
    pub before: Option<Value>,
    /// How it is; never a secret.
    pub after: Option<Value>,
}

impl Change<'_> {
    /// A change of `object` without a team and without values.
    pub fn of(action: Action, object: String) -> Self {
        Self {
            action,
            object,
            team_id: None,
            reason: "",
            before: None,
            after: None,
        }
    }
}

/// Records a change in the transaction that makes it.
pub async fn record(tx: &mut Tx, asker: &Asker, change: Change<'_>) -> Result<(), AppError> {
    store::audit::insert(tx, entry(asker, &change)).await?;
    Ok(())
}

/// Records changes that one transaction makes, in their order.
pub async fn record_all(
    tx: &mut Tx,
    asker: &Asker,
    changes: Vec<Change<'_>>,
) -> Result<(), AppError> {
    let entries: Vec<NewEntry<'_>> = changes.iter().map(|change| entry(asker, change)).collect();
    store::audit::insert_all(tx, &entries).await?;
    Ok(())
}

fn entry<'a>(asker: &'a Asker, change: &'a Change<'_>) -> NewEntry<'a> {
    NewEntry {
        actor_kind: "user",
        actor_id: Some(asker.user_id),
        actor_name: asker.name.as_str(),
        action: change.action.as_str(),
        object: &change.object,
        team_id: change.team_id,
        request_id: asker.request_id,
        outcome: "done",
        reason: change.reason,
        before: change.before.clone(),
        after: change.after.clone(),
    }
}

/// Records that something was denied; `object` is the path that was asked for.
pub async fn record_denial(
    app: &App,
    asker: &Asker,
    action: &str,
    object: &str,
) -> Result<(), AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    store::audit::insert(
        &mut tx,
        NewEntry {
            actor_kind: "user",
            actor_id: Some(asker.user_id),
            actor_name: asker.name.as_str(),
            action,
            object,
            team_id: None,
            request_id: asker.request_id,
            outcome: "denied",
            reason: "",
            before: None,
            after: None,
        },
    )
    .await?;
    tx.commit().await?;
    Ok(())
}

/// One line of the audit log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Its number; later entries have higher ones.
    pub id: i64,
    /// When it was written.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Who did it.
    pub actor: String,
    /// The operation.
    pub action: String,
    /// On what.
    pub object: String,
    /// `done` or `denied`.
    pub outcome: String,
    /// Why, where the person said so.
    pub reason: String,
    /// The request.
    pub request_id: Option<RequestId>,
    /// How it was.
    pub before: Option<Value>,
    /// How it became.
    pub after: Option<Value>,
}

/// What to list.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Only of this object, such as `team/vision`.
    pub object: Option<String>,
}

/// Lists the log, newest first.
pub async fn list(
    app: &App,
    asker: &Asker,
    filter: &AuditFilter,
    ask: &PageAsk,
) -> Result<Page<AuditEntry>, AppError> {
    authorise(asker, Action::ListAudit, Target::Platform)?;
    let before: Option<i64> = ask.after("audit")?;
    if let Some(object) = filter
        .object
        .as_deref()
        .filter(|o| o.is_empty() || o.contains('\0'))
    {
        return Err(AppError::invalid("object", object, "such as team/vision"));
    }
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let rows =
        store::audit::page(&mut tx, filter.object.as_deref(), before, ask.rows_wanted()).await?;
    tx.commit().await?;
    let entries = rows
        .into_iter()
        .map(|row| AuditEntry {
            id: row.id,
            at: row.at,
            actor: row.actor_name,
            action: row.action,
            object: row.object,
            outcome: row.outcome,
            reason: row.reason,
            request_id: row.request_id,
            before: row.before,
            after: row.after,
        })
        .collect();
    Ok(page::cut(ask, "audit", entries, |entry| entry.id))
}
