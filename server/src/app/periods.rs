//! Billing periods: the organisation's months, closed by finance and issued to the teams; and what it has settled.

use domain::FieldError;
use domain::Timestamp;
use domain::state::PeriodState;
use domain::weekly::Zone;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::audit::Change;
use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
use super::reason::check_reason;
use super::{App, AppError, Asker, RefusalCode, audit};
use crate::store::{self, Tx};

/// Most minutes before the loss of a node that are credited: a month of 31 days; the table's.
const CREDIT_MINUTES_MAX: i32 = 44_640;

/// What the organisation has settled about its bills.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Organisation {
    /// On whose clocks its months and days begin.
    pub time_zone: Zone,
    /// In which currency it bills; null until the first price.
    pub currency: Option<String>,
    /// Of what an attempt was charged before its node was lost, the last so many minutes are credited.
    pub node_loss_credit_minutes: i32,
    /// Its version.
    pub version: i64,
}

/// A change of it; what is absent stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OrganisationPatch {
    /// On whose clocks its months and days begin. Periods that are there keep their bounds.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub time_zone: Option<Zone>,
    /// Minutes before the loss of a node that are credited, 0 to 44640.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(minimum = 0, maximum = 44640, nullable = false)]
    pub node_loss_credit_minutes: Option<i32>,
}

/// Reads it.
pub async fn organisation(app: &App, asker: &Asker) -> Result<Organisation, AppError> {
    authorise(asker, Action::GetOrganisation, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let organisation = read(&mut tx).await?;
    tx.commit().await?;
    Ok(organisation)
}

async fn read(tx: &mut Tx) -> Result<Organisation, AppError> {
    let row = store::periods::organisation(tx).await?;
    Ok(Organisation {
        time_zone: row.time_zone.parse()?,
        currency: row.currency,
        node_loss_credit_minutes: row.node_loss_credit_minutes,
        version: row.version,
    })
}

/// Changes it.
pub async fn update_organisation(
    app: &App,
    asker: &Asker,
    version: i64,
    patch: OrganisationPatch,
    reason: &str,
) -> Result<Organisation, AppError> {
    authorise(asker, Action::UpdateOrganisation, Target::Platform)?;
    check_reason(reason)?;
    if let Some(minutes) = patch.node_loss_credit_minutes
        && !(0..=CREDIT_MINUTES_MAX).contains(&minutes)
    {
        let remedy = format!("0 to {CREDIT_MINUTES_MAX}");
        return Err(AppError::invalid(
            "node_loss_credit_minutes",
            minutes,
            remedy,
        ));
    }
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let before = read(&mut tx).await?;
    let zone = patch.time_zone.unwrap_or(before.time_zone);
    let minutes = patch.node_loss_credit_minutes;
    let minutes = minutes.unwrap_or(before.node_loss_credit_minutes);
    let stale = AppError::Stale {
        given: version.to_string(),
        present: before.version,
    };
    if version != before.version {
        return Err(stale);
    }
    if zone == before.time_zone && minutes == before.node_loss_credit_minutes {
        return Ok(before);
    }
    let zone = zone.to_string();
    if !store::periods::change_organisation(&mut tx, version, &zone, minutes).await? {
        return Err(stale);
    }
    let after = read(&mut tx).await?;
    let change = Change {
        reason,
        before: Some(json!(before)),
        after: Some(json!(after)),
        ..Change::of(Action::UpdateOrganisation, "organisation".to_owned())
    };
    audit::record(&mut tx, asker, change).await?;
    tx.commit().await?;
    Ok(after)
}

/// A billing period.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BillingPeriod {
    /// Its name, the month.
    #[schema(example = "2026-10")]
    pub name: String,
    /// `open`: what is used is entered in it; `closing`: its statements are made; `closed`: they are made; `issued`: they
    /// have gone to the teams.
    pub state: PeriodState,
    /// From then on.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Up to before then.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// On whose clocks.
    pub time_zone: String,
    /// When it was closed.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub closed_at: Option<Timestamp>,
    /// When its statements were issued.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub issued_at: Option<Timestamp>,
}

/// Lists periods, the latest first.
pub async fn list(
    app: &App,
    asker: &Asker,
    ask: &PageAsk,
) -> Result<Page<BillingPeriod>, AppError> {
    authorise(asker, Action::ListBillingPeriods, Target::Platform)?;
    let before: Option<Timestamp> = ask.after("billing period")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let rows = store::periods::page(&mut tx, before, None, ask.rows_wanted()).await?;
    tx.commit().await?;
    let periods = rows.into_iter().map(shown).collect();
    Ok(page::cut(
        ask,
        "billing period",
        periods,
        |p: &BillingPeriod| p.from,
    ))
}

fn shown(row: store::periods::Period) -> BillingPeriod {
    BillingPeriod {
        name: row.name,
        state: row.state,
        from: row.started_at,
        to: row.ended_at,
        time_zone: row.time_zone,
        closed_at: row.closed_at,
        issued_at: row.issued_at,
    }
}

/// A period by its name.
pub(super) async fn find(tx: &mut Tx, name: &str) -> Result<store::periods::Period, AppError> {
    let mut rows = store::periods::page(tx, None, Some(name), 1).await?;
    rows.pop()
        .ok_or_else(|| AppError::not_found("billing period", name))
}

/// Closes a period: from then on nothing more is entered in it, and within seconds its statements are made.
/// It must be over, rated and priced to its end, and none before it open.
pub async fn close(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    name: &str,
) -> Result<Answer<BillingPeriod>, AppError> {
    step(app, asker, repeat, name, PeriodState::Closing).await
}

/// Issues a closed period's statements to its teams.
pub async fn issue(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    name: &str,
) -> Result<Answer<BillingPeriod>, AppError> {
    step(app, asker, repeat, name, PeriodState::Issued).await
}

async fn step(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    name: &str,
    to: PeriodState,
) -> Result<Answer<BillingPeriod>, AppError> {
    let action = match to {
        PeriodState::Issued => Action::IssueBillingPeriod,
        _ => Action::CloseBillingPeriod,
    };
    authorise(asker, action, Target::Platform)?;
    let mut work = idempotency::begin_system(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let tx = &mut work.tx;
    // Nobody rates while it is looked at whether all is rated.
    store::ledger::lock(tx).await?;
    let before = find(tx, name).await?;
    before.state.step(to)?;
    if to == PeriodState::Closing {
        check_ready(tx, &before).await?;
    }
    if !store::periods::step(tx, before.id, before.state, to).await? {
        let message = format!("billing period {name} was changed meanwhile");
        return Err(AppError::changed_meanwhile(message));
    }
    let after = shown(find(tx, name).await?);
    let change = Change {
        before: Some(json!(shown(before))),
        after: Some(json!(after)),
        ..Change::of(action, format!("billing-period/{name}"))
    };
    audit::record(tx, asker, change).await?;
    let answer = work.finish(app, Answer::done(after, None)).await?;
    app.wake.background.notify_one();
    Ok(answer)
}

async fn check_ready(tx: &mut Tx, period: &store::periods::Period) -> Result<(), AppError> {
    let ended = domain::time::format(period.ended_at);
    let refuse = |message: String, value: String, remedy: &str| {
        let field = FieldError::new("state", value, remedy);
        Err(AppError::conflict(
            RefusalCode::PeriodNotReady,
            message,
            field,
        ))
    };
    if store::clock(tx).await? < period.ended_at {
        let message = format!("billing period {} ends at {ended}", period.name);
        return refuse(message, ended, "close it once it is over");
    }
    let found = store::periods::obstacles(tx, period).await?;
    if found.earlier > 0 {
        let message = format!(
            "{} billing periods before {} are not closed",
            found.earlier, period.name
        );
        return refuse(
            message,
            found.earlier.to_string(),
            "close the earlier ones first",
        );
    }
    if found.unrated > 0 || store::reratings::waiting(tx).await? > 0 {
        let message = format!("use of billing period {} is being rated", period.name);
        return refuse(message, found.unrated.to_string(), "try again in a minute");
    }
    if found.unpriced != Decimal::ZERO {
        let seconds = found.unpriced / Decimal::from(crate::accounting::usage::PER_GPU_SECOND);
        let message = format!(
            "billing period {} has use that no price covers",
            period.name
        );
        return refuse(
            message,
            format!("{} GPU-seconds", seconds.round_dp(3).normalize()),
            "add a price for its pool and mode from then on: POST /prices",
        );
    }
    Ok(())
}
