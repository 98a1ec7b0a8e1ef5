//! Webhooks: addresses that a team's notices are posted to, each message signed with a key of its own.

use chrono::TimeDelta;
use domain::FieldError;
use domain::Timestamp;
use domain::ids::{TeamId, WebhookId};
use domain::name::Name;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::audit::{self, Change};
use super::authorise::Action;
use super::page::Page;
use super::{App, AppError, Asker, RefusalCode, teams};
use crate::store::webhooks::{self as rows, NewWebhook};
use crate::store::{self, Tx, subscriptions};

/// Most webhooks of a team: more receivers than that are fed by one of their own.
const OF_TEAM_MAX: i64 = 20;
/// Bytes of a key: as many as SHA-256 has.
const KEY_BYTES: usize = 32;
/// While keys change the old one signs as well for so long: a day to bring the new one to the receiver.
const OLD_KEY_HOURS: i64 = 24;

/// A webhook.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Webhook {
    /// Its name.
    pub name: Name,
    /// Where messages are posted.
    pub url: String,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When its key was made.
    #[schema(value_type = String, format = DateTime)]
    pub key_since: Timestamp,
    /// Until when messages also bear a signature by the key before that; null where they do not.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub old_key_until: Option<Timestamp>,
}

/// A webhook with its new key.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct WebhookWithKey {
    /// The webhook.
    #[serde(flatten)]
    pub webhook: Webhook,
    /// The key, which is shown this once: `Allotment-Signature` is `v1=` with the HMAC-SHA256 by it, in
    /// hexadecimal, over `Allotment-Timestamp`, a full stop and the body.
    pub key: String,
}

/// A webhook to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewHook {
    /// Its name.
    pub name: Name,
    /// Where messages are posted: `https:`, on a port and an address that the server's configuration allows.
    #[schema(max_length = 2048)]
    pub url: String,
}

/// Lists a team's webhooks, by name.
pub async fn list(app: &App, asker: &Asker, team: &Name) -> Result<Page<Webhook>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, Action::ListWebhooks, team).await?;
    let found = rows::all(&mut tx, team.id, OF_TEAM_MAX).await?;
    tx.commit().await?;
    Ok(Page {
        items: found.into_iter().map(Webhook::from).collect(),
        next_cursor: None,
    })
}

/// Makes a webhook, with its first key. Done each time: a repeat finds its name taken.
pub async fn create(
    app: &App,
    asker: &Asker,
    team: &Name,
    new: NewHook,
    reason: &str,
) -> Result<WebhookWithKey, AppError> {
    let action = Action::CreateWebhook;
    super::reason::check_reason(reason)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, action, team).await?;
    app.config
        .webhooks
        .url(&new.url)
        .map_err(AppError::Invalid)?;
    too_many(
        "webhooks",
        rows::count(&mut tx, team.id).await?,
        OF_TEAM_MAX,
    )?;
    let id = WebhookId::new();
    let row = NewWebhook {
        id,
        team_id: team.id,
        name: &new.name,
        url: &new.url,
        created_by: asker.user_id,
    };
    rows::insert(&mut tx, &row)
        .await
        .map_err(|error| AppError::name_taken(error, "webhook_name_taken", "webhook", &new.name))?;
    let key = add_key(&mut tx, id).await?;
    let webhook = Webhook::from(find(&mut tx, team.id, &new.name).await?);
    let change = Change {
        team_id: Some(team.id),
        reason,
        after: Some(json!({ "url": new.url })),
        ..Change::of(action, format!("webhook/{}/{}", team.name, new.name))
    };
    audit::record(&mut tx, asker, change).await?;
    tx.commit().await?;
    Ok(WebhookWithKey { webhook, key })
}

/// Gives a webhook a new key; for a day messages bear a signature by the old one, too. Done each time.
pub async fn rotate(
    app: &App,
    asker: &Asker,
    (team, name): (&Name, &Name),
) -> Result<WebhookWithKey, AppError> {
    let action = Action::RotateWebhookKey;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, action, team).await?;
    let id = find(&mut tx, team.id, name).await?.id;
    let key = add_key(&mut tx, id).await?;
    let webhook = Webhook::from(find(&mut tx, team.id, name).await?);
    let change = Change {
        team_id: Some(team.id),
        ..Change::of(action, format!("webhook/{}/{name}", team.name))
    };
    audit::record(&mut tx, asker, change).await?;
    tx.commit().await?;
    Ok(WebhookWithKey { webhook, key })
}

/// Removes a webhook, with what was asked to be told there. What waits for it is not delivered.
pub async fn delete(
    app: &App,
    asker: &Asker,
    (team, name): (&Name, &Name),
    reason: &str,
) -> Result<(), AppError> {
    let action = Action::DeleteWebhook;
    super::reason::check_reason(reason)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, action, team).await?;
    let row = find(&mut tx, team.id, name).await?;
    if let Some(schedule) = rows::reported_to(&mut tx, row.id).await? {
        return Err(AppError::conflict(
            RefusalCode::WebhookInUse,
            format!("the schedule {schedule} reports to the webhook {name}"),
            FieldError::new(
                "webhook",
                name,
                format!("remove the schedule {schedule} first"),
            ),
        ));
    }
    subscriptions::delete_of_webhook(&mut tx, team.id, row.id).await?;
    if !rows::remove(&mut tx, team.id, row.id).await? {
        return Err(AppError::not_found("webhook", name));
    }
    let change = Change {
        team_id: Some(team.id),
        reason,
        before: Some(json!({ "url": row.url })),
        ..Change::of(action, format!("webhook/{}/{name}", team.name))
    };
    audit::record(&mut tx, asker, change).await?;
    Ok(tx.commit().await?)
}

/// The ids of a team's webhooks of these names.
pub(super) async fn ids(
    tx: &mut Tx,
    team: TeamId,
    field: &str,
    names: &[Name],
) -> Result<Vec<WebhookId>, AppError> {
    let wanted: Vec<String> = names.iter().map(Name::to_string).collect();
    let found = rows::named(tx, team, &wanted).await?;
    let known = |name: &&String| found.iter().any(|(_, known)| known == *name);
    if let Some(unknown) = wanted.iter().find(|name| !known(name)) {
        return Err(AppError::invalid(
            field,
            unknown,
            "the name of a webhook of the team",
        ));
    }
    Ok(found.into_iter().map(|(id, _)| id).collect())
}

/// Refuses one more of what a team may have so many of.
pub(super) fn too_many(what: &str, there: i64, most: i64) -> Result<(), AppError> {
    if there < most {
        return Ok(());
    }
    Err(AppError::conflict(
        RefusalCode::TooManyOfTeam,
        format!("the team has {there} {what}, and may have {most}"),
        FieldError::new(what, there, "remove one first"),
    ))
}

async fn find(tx: &mut Tx, team: TeamId, name: &Name) -> Result<rows::Webhook, AppError> {
    let all = rows::all(tx, team, OF_TEAM_MAX).await?;
    all.into_iter()
        .find(|row| row.name == *name)
        .ok_or_else(|| AppError::not_found("webhook", name))
}

async fn add_key(tx: &mut Tx, webhook: WebhookId) -> Result<String, AppError> {
    let key = hex::encode(rand::random::<[u8; KEY_BYTES]>());
    let now = store::clock(tx).await?;
    rows::add_key(tx, webhook, &key, now + TimeDelta::hours(OLD_KEY_HOURS)).await?;
    Ok(key)
}

impl From<rows::Webhook> for Webhook {
    fn from(row: rows::Webhook) -> Self {
        Self {
            name: row.name,
            url: row.url,
            created_at: row.created_at,
            key_since: row.key_since,
            old_key_until: row.old_key_until,
        }
    }
}
