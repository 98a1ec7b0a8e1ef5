//! A person's word that what was found of a device is dealt with.

use domain::FieldError;
use domain::name::Name;
use protocol::report::Finding;
use serde::Deserialize;
use serde_json::json;
use utoipa::ToSchema;

use super::{Node, lock, read};
use crate::app::audit::{self, Change};
use crate::app::authorise::{Action, Target, authorise};
use crate::app::idempotency::{self, Answer, Repeat};
use crate::app::reason::check_reason;
use crate::app::{App, AppError, Asker, RefusalCode};
use crate::store::devices::{self, DeviceRow};
use crate::store::events::{self, Actor, NewEvent, Subject};

/// What a person says of a device.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Clear {
    /// The number of the newest finding that the person has seen: what was found later stands.
    #[schema(minimum = 1)]
    pub finding: i64,
    /// What was done, in words; 1 to 200 characters.
    #[schema(min_length = 1)]
    pub reason: String,
}

/// Clears what was found of a device, by its index or its UUID, as far as the person has seen it. Its node is told, and says itself that
/// the device is healthy: what it still sees keeps it out.
pub async fn clear_device(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    (name, device): (&Name, &str),
    clear: Clear,
) -> Result<Answer<Node>, AppError> {
    authorise(asker, Action::ClearDevice, Target::Platform)?;
    let Clear { finding, reason } = clear;
    check_reason(&reason)?;
    if reason.trim().is_empty() {
        let remedy = "what was done, in words: it is kept with the device's events";
        return Err(AppError::invalid("reason", reason, remedy));
    }
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let tx = &mut work.tx;
    let node = lock(tx, name).await?;
    let rows = devices::lock_of_node(tx, node.id).await?;
    let row = rows.into_iter().find(|row| names(row, device));
    let row = row.ok_or_else(|| AppError::not_found("device", device))?;
    let up_to = row.finding.ok_or_else(|| nothing_found(&row))?;
    if finding != up_to {
        return Err(other_found(&row, finding));
    }
    if row.cleared < up_to && devices::clear(tx, row.id, up_to).await? {
        let actor = Actor::User(asker.name.to_string());
        let event = NewEvent {
            subject: Subject::Device(row.id),
            job: None,
            node_id: Some(node.id),
            from: Some(row.health.as_str()),
            to: row.health.as_str(),
            actor: &actor,
            reason: "cleared",
            data: json!({ "uuid": row.uuid, "index": row.index, "message": reason, "finding": up_to }),
        };
        events::insert(tx, &event).await?;
        let change = Change {
            reason: &reason,
            before: Some(json!({ "health": row.health, "findings": row.findings })),
            after: Some(json!({ "cleared": up_to })),
            ..Change::of(Action::ClearDevice, format!("device/{}", row.uuid))
        };
        audit::record(tx, asker, change).await?;
    }
    let node = read(tx, asker, name).await?;
    let version = node.version;
    let answer = work.finish(app, Answer::done(node, version)).await?;
    app.wake.all();
    Ok(answer)
}

fn names(row: &DeviceRow, device: &str) -> bool {
    row.uuid == device || row.index.to_string() == device
}

fn nothing_found(row: &DeviceRow) -> AppError {
    let remedy =
        "wait: a state that its node sees now is over when the node does not see it any more";
    AppError::conflict(
        RefusalCode::NothingFound,
        format!(
            "nothing was found of device {} that could be cleared",
            row.index
        ),
        FieldError::new("health", row.health, remedy),
    )
}

/// The person has not seen what there is to clear.
fn other_found(row: &DeviceRow, seen: i64) -> AppError {
    let newer: Vec<&Finding> = row.findings.iter().filter(|f| f.number > seen).collect();
    let message = match newer.as_slice() {
        [] => format!(
            "nothing with number {seen} was found of device {}",
            row.index
        ),
        newer => {
            let reasons: Vec<&str> = newer.iter().map(|f| f.reason.as_str()).collect();
            let reasons = reasons.join("; ");
            format!("more was found of device {} since: {reasons}", row.index)
        }
    };
    let remedy = match row.finding {
        Some(newest) => format!("look at it anew: once it is dealt with, {newest} clears it all"),
        None => "look at it anew".to_owned(),
    };
    AppError::conflict(
        RefusalCode::OtherFinding,
        message,
        FieldError::new("finding", seen, remedy),
    )
}
