//! Commitments: capacity that a team pays for whether it uses it or not.

use domain::FieldError;
use domain::MilliGpu;
use domain::Timestamp;
use domain::ids::CommitmentId;
use domain::money::Money;
use domain::name::Name;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::audit::Change;
use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::prices::{checked, trimmed};
use super::{App, AppError, Asker, RefusalCode, audit, pools, teams};
use crate::store;

/// Most commitments of one list: they last for months, and each team has one for a pool at a time.
const COMMITMENTS_MAX: i64 = 10_000;

/// Commitments.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Commitments {
    /// Those that the asker may see, the latest first.
    pub items: Vec<Commitment>,
}

/// Capacity that a team pays for whether it uses it or not: what it uses is charged as use, the rest as committed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Commitment {
    /// Its id.
    pub id: CommitmentId,
    /// The team.
    pub team: Name,
    /// The pool.
    pub pool: Name,
    /// How many GPUs.
    pub gpus: MilliGpu,
    /// What a GPU of it costs for an hour in which the team does not use it.
    pub per_gpu_hour: Money,
    /// From then on.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Up to before then.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
}

/// A commitment to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCommitment {
    /// The team.
    pub team: Name,
    /// The pool.
    pub pool: Name,
    /// How many GPUs.
    pub gpus: MilliGpu,
    /// What a GPU of it costs for an hour in which the team does not use it.
    pub per_gpu_hour: Money,
    /// From then on; not before the present time, since what was billed stays billed.
    #[serde(deserialize_with = "domain::time::read")]
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Up to before then.
    #[serde(deserialize_with = "domain::time::read")]
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
}

/// Lists them.
pub async fn list(app: &App, asker: &Asker) -> Result<Commitments, AppError> {
    authorise(asker, Action::ListCommitments, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let rows = store::commitments::list(&mut tx, COMMITMENTS_MAX).await?;
    tx.commit().await?;
    let items = rows.into_iter().map(|row| {
        Ok(Commitment {
            id: row.id,
            team: row.team.parse()?,
            pool: row.pool.parse()?,
            gpus: MilliGpu::from_milli(row.gpus_milli),
            per_gpu_hour: Money {
                amount: trimmed(row.per_gpu_hour),
                currency: row.currency.parse()?,
            },
            from: row.started_at,
            to: row.ended_at,
        })
    });
    let items = items.collect::<Result<_, FieldError>>()?;
    Ok(Commitments { items })
}

/// Makes one.
pub async fn create(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    new: NewCommitment,
) -> Result<Answer<Commitment>, AppError> {
    authorise(asker, Action::CreateCommitment, Target::Platform)?;
    let amount = checked("per_gpu_hour.amount", new.per_gpu_hour.amount)?;
    if new.gpus <= MilliGpu::ZERO {
        return Err(AppError::invalid("gpus", new.gpus, "more than 0"));
    }
    if new.from >= new.to {
        let remedy = format!(
            "a time after from, which is {}",
            domain::time::format(new.from)
        );
        return Err(AppError::invalid(
            "to",
            domain::time::format(new.to),
            remedy,
        ));
    }
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let tx = &mut work.tx;
    let now = store::clock(tx).await?;
    if new.from < now {
        let remedy = format!("{} or later", domain::time::format(now));
        return Err(AppError::invalid(
            "from",
            domain::time::format(new.from),
            remedy,
        ));
    }
    let there = |field: &'static str, name: &Name, remedy: &'static str| {
        let fault = FieldError::new(field, name, remedy);
        move |error: AppError| match error {
            AppError::NotFound { .. } => AppError::Invalid(fault),
            other => other,
        }
    };
    let team = teams::find(tx, &new.team).await.map_err(there(
        "team",
        &new.team,
        "a team that is there: GET /teams",
    ))?;
    let pool = pools::find(tx, &new.pool).await.map_err(there(
        "pool",
        &new.pool,
        "a pool that is there: GET /pools",
    ))?;
    let currency = new.per_gpu_hour.currency.as_str();
    let organisation = store::prices::claim_currency(tx, currency).await?;
    if organisation != currency {
        let remedy = format!("{organisation}, the organisation's currency");
        return Err(AppError::invalid("per_gpu_hour.currency", currency, remedy));
    }
    let row = store::commitments::NewCommitment {
        id: CommitmentId::new(),
        team: team.id,
        pool: pool.id,
        gpus_milli: new.gpus.milli(),
        per_gpu_hour: amount,
        currency,
        started_at: new.from,
        ended_at: new.to,
        created_by: asker.user_id,
    };
    store::commitments::insert(tx, &row)
        .await
        .map_err(|error| overlaps(error, &new))?;
    let id = row.id;
    let commitment = Commitment {
        id,
        team: new.team,
        pool: new.pool,
        gpus: new.gpus,
        per_gpu_hour: new.per_gpu_hour,
        from: new.from,
        to: new.to,
    };
    let change = Change {
        team_id: Some(team.id),
        after: Some(json!(commitment)),
        ..Change::of(Action::CreateCommitment, format!("commitment/{id}"))
    };
    audit::record(tx, asker, change).await?;
    work.finish(app, Answer::created(commitment, None)).await
}

fn overlaps(error: sqlx::Error, new: &NewCommitment) -> AppError {
    if store::violated(&error) == Some("one_commitment_at_a_time") {
        return AppError::conflict(
            RefusalCode::CommitmentOverlaps,
            format!(
                "team {} has a commitment in pool {} in that time",
                new.team, new.pool
            ),
            FieldError::new(
                "from",
                domain::time::format(new.from),
                "a time in which it has none: GET /commitments",
            ),
        );
    }
    error.into()
}
