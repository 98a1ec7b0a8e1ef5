//! Notices: who asked to hear of what and where, what was delivered, and sending it again.

use std::collections::BTreeMap;

use domain::FieldError;
use domain::Timestamp;
use domain::ids::{DeliveryId, SubscriptionId, TeamId, UserId};
use domain::name::Name;
use domain::notice::{DeliveryKind, DeliveryState, NoticeKind};
use domain::role::{PlatformRole, TeamRole};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::audit::{self, Change};
use super::authorise::{Action, Needs};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
use super::{App, AppError, Asker, RefusalCode, teams, webhooks};
use crate::store::subscriptions::{self as rows, NewSubscription};
use crate::store::{self, Tx, outbox};

/// Most subscriptions of a team; a list of people belongs into a mailing list.
const OF_TEAM_MAX: i64 = 200;
/// Longest address of e-mail, as RFC 5321 has it.
const EMAIL_CHARS_MAX: usize = 254;

/// What somebody asked to hear of.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Subscription {
    /// Its id.
    pub id: SubscriptionId,
    /// Of what: of the team's own and of that of all below it; of every lost node.
    pub kind: NoticeKind,
    /// Only of this person's jobs; null is of all.
    pub user: Option<Name>,
    /// To this address of e-mail; null where it is to a webhook.
    pub email: Option<String>,
    /// To this webhook; null where it is by e-mail.
    pub webhook: Option<Name>,
    /// When it was asked for.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// What somebody asks to hear of.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAsk {
    /// Of what.
    pub kind: NoticeKind,
    /// Whether only of the asker's own jobs; members may ask for no more, owners for all.
    #[serde(default)]
    pub own_jobs: bool,
    /// To this address of e-mail.
    #[serde(default)]
    pub email: Option<String>,
    /// To this webhook of the team.
    #[serde(default)]
    pub webhook: Option<Name>,
}

/// Lists what was asked for in a team, in the order in which it was.
pub async fn list(app: &App, asker: &Asker, team: &Name) -> Result<Page<Subscription>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, Action::ListSubscriptions, team).await?;
    let found = rows::all(&mut tx, team.id, OF_TEAM_MAX).await?;
    tx.commit().await?;
    Ok(Page {
        items: found.into_iter().map(Subscription::from).collect(),
        next_cursor: None,
    })
}

/// Asks to hear of something.
pub async fn create(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    team: &Name,
    new: NewAsk,
) -> Result<Answer<Subscription>, AppError> {
    let action = Action::CreateSubscription;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    let team = teams::find_as(&mut work.tx, asker, action, team).await?;
    let user_id = new.own_jobs.then_some(asker.user_id);
    steers(asker, action, team.id, user_id)?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    if new.own_jobs && new.kind != NoticeKind::JobEnded {
        return Err(AppError::invalid(
            "own_jobs",
            true,
            "false, where the kind is not job_ended",
        ));
    }
    let webhook_id = match (&new.email, &new.webhook) {
        (Some(email), None) => {
            check_email("email", email)?;
            None
        }
        (None, Some(name)) => {
            let names = std::slice::from_ref(name);
            webhooks::ids(&mut work.tx, team.id, "webhook", names)
                .await?
                .pop()
        }
        (Some(_), Some(name)) => {
            return Err(AppError::invalid(
                "webhook",
                name,
                "nothing, where email is given",
            ));
        }
        (None, None) => {
            return Err(AppError::Invalid(FieldError::missing(
                "email",
                "email or webhook",
            )));
        }
    };
    let there = rows::all(&mut work.tx, team.id, OF_TEAM_MAX).await?.len();
    let there = i64::try_from(there).unwrap_or(i64::MAX);
    webhooks::too_many("subscriptions", there, OF_TEAM_MAX)?;
    let id = SubscriptionId::new();
    let row = NewSubscription {
        id,
        team_id: team.id,
        kind: new.kind,
        user_id,
        email: new.email.as_deref(),
        webhook_id,
        created_by: asker.user_id,
    };
    rows::insert(&mut work.tx, &row)
        .await
        .map_err(|error| taken(error, new.kind))?;
    let made = Subscription::from(find(&mut work.tx, team.id, id).await?);
    let change = Change {
        team_id: Some(team.id),
        after: Some(json!(made)),
        ..Change::of(action, format!("subscription/{id}"))
    };
    audit::record(&mut work.tx, asker, change).await?;
    work.finish(app, Answer::created(made, None)).await
}

/// Ends what somebody asked for.
pub async fn delete(
    app: &App,
    asker: &Asker,
    team: &Name,
    id: SubscriptionId,
) -> Result<(), AppError> {
    let action = Action::DeleteSubscription;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, action, team).await?;
    let row = find(&mut tx, team.id, id).await?;
    if steers(asker, action, team.id, row.user_id).is_err() {
        return Err(AppError::conflict(
            RefusalCode::NotYourOwn,
            "it is not of your own jobs",
            FieldError::new("subscription", id, "an owner of the team ends it"),
        ));
    }
    if !rows::delete(&mut tx, team.id, id).await? {
        return Err(AppError::not_found("subscription", id));
    }
    let change = Change {
        team_id: Some(team.id),
        before: Some(json!(Subscription::from(row))),
        ..Change::of(action, format!("subscription/{id}"))
    };
    audit::record(&mut tx, asker, change).await?;
    Ok(tx.commit().await?)
}

/// A member may ask for what is told of its own jobs; the rest is its owners'.
fn steers(asker: &Asker, action: Action, team: TeamId, of: Option<UserId>) -> Result<(), AppError> {
    let admin = asker.platform_role == Some(PlatformRole::Admin);
    let owner = asker.teams.get(&team) == Some(&TeamRole::Owner);
    if admin || owner || of == Some(asker.user_id) {
        return Ok(());
    }
    Err(AppError::Forbidden {
        action: action.as_str(),
        needs: Needs::Team(TeamRole::Owner, &[PlatformRole::Admin]),
    })
}

/// Checks an address of e-mail, as what sends would read it.
pub(super) fn check_email(field: &str, email: &str) -> Result<(), AppError> {
    let short = email.len() <= EMAIL_CHARS_MAX;
    if short && email.parse::<lettre::Address>().is_ok() {
        return Ok(());
    }
    Err(AppError::invalid(
        field,
        email,
        "an address such as ada@example.com",
    ))
}

async fn find(
    tx: &mut Tx,
    team: TeamId,
    id: SubscriptionId,
) -> Result<rows::Subscription, AppError> {
    let all = rows::all(tx, team, OF_TEAM_MAX).await?;
    all.into_iter()
        .find(|row| row.id == id)
        .ok_or_else(|| AppError::not_found("subscription", id))
}

fn taken(error: sqlx::Error, kind: NoticeKind) -> AppError {
    if store::violated(&error) == Some("subscription_taken") {
        return AppError::conflict(
            RefusalCode::SubscriptionTaken,
            format!("{kind} is told there already"),
            FieldError::new("kind", kind, "nothing more is needed"),
        );
    }
    error.into()
}

impl From<rows::Subscription> for Subscription {
    fn from(row: rows::Subscription) -> Self {
        Self {
            id: row.id,
            kind: row.kind,
            user: row.user,
            email: row.email,
            webhook: row.webhook,
            created_at: row.created_at,
        }
    }
}

/// A notice or report on its way to one address, with all that came of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    /// Its id: the same in each try.
    pub id: DeliveryId,
    /// What it is.
    pub kind: DeliveryKind,
    /// To which address of e-mail; null where it is to a webhook.
    pub email: Option<String>,
    /// To which webhook; null where it is by e-mail.
    pub webhook: Option<Name>,
    /// What it is about: to one webhook nothing about it goes out before what came earlier.
    pub about: String,
    /// What is told.
    #[schema(value_type = Object)]
    pub data: Value,
    /// Where it stands.
    pub state: DeliveryState,
    /// When it is tried next; null where it is not.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_try_at: Option<Timestamp>,
    /// When its cause was.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When its address took it.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub delivered_at: Option<Timestamp>,
    /// What came of each try.
    pub tries: Vec<Try>,
    /// Where its page begins.
    #[serde(skip)]
    pub seq: i64,
}

/// What came of one try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Try {
    /// Its number, from 1.
    pub number: i32,
    /// When it was over.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Whether its address took it.
    pub delivered: bool,
    /// HTTP's status; null where there was no answer, and of e-mail.
    pub status: Option<i32>,
    /// What happened, in words; empty where it was taken.
    pub detail: String,
    /// How long it took, in milliseconds.
    pub took_ms: i32,
}

/// Lists what a team's addresses were told, the latest first.
pub async fn deliveries(
    app: &App,
    asker: &Asker,
    team: &Name,
    state: Option<DeliveryState>,
    ask: &PageAsk,
) -> Result<Page<Delivery>, AppError> {
    let before: Option<i64> = ask.after("delivery")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, Action::ListDeliveries, team).await?;
    let found = outbox::page(&mut tx, team.id, before, state, ask.rows_wanted()).await?;
    let ids: Vec<DeliveryId> = found.iter().map(|row| row.id).collect();
    let mut tries: BTreeMap<DeliveryId, Vec<Try>> = BTreeMap::new();
    for row in outbox::tries(&mut tx, &ids).await? {
        tries.entry(row.delivery).or_default().push(Try {
            number: row.number,
            at: row.at,
            delivered: row.delivered,
            status: row.status,
            detail: row.detail,
            took_ms: row.took_ms,
        });
    }
    tx.commit().await?;
    let items = found.into_iter().map(|row| Delivery {
        tries: tries.remove(&row.id).unwrap_or_default(),
        id: row.id,
        kind: row.kind,
        email: row.email,
        webhook: row.webhook,
        about: row.about,
        data: row.payload,
        next_try_at: (row.state == DeliveryState::Waiting).then_some(row.due_at),
        state: row.state,
        created_at: row.created_at,
        delivered_at: row.delivered_at,
        seq: row.seq,
    });
    Ok(page::cut(
        ask,
        "delivery",
        items.collect(),
        |d: &Delivery| d.seq,
    ))
}

/// Sends a delivery again, whatever came of it; one that waits is tried at once.
pub async fn resend(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    team: &Name,
    id: DeliveryId,
) -> Result<Answer<()>, AppError> {
    let action = Action::ResendDelivery;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    let team = teams::find_as(&mut work.tx, asker, action, team).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let state = outbox::lock(&mut work.tx, team.id, id).await?;
    let state = state.ok_or_else(|| AppError::not_found("delivery", id))?;
    outbox::resend(&mut work.tx, id).await?;
    let change = Change {
        team_id: Some(team.id),
        before: Some(json!({ "state": state })),
        after: Some(json!({ "state": DeliveryState::Waiting })),
        ..Change::of(action, format!("delivery/{id}"))
    };
    audit::record(&mut work.tx, asker, change).await?;
    work.finish(app, Answer::nothing()).await
}
