//! The policy of a pool: shown, tried on the live world, and saved; and making another pool.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use domain::name::Name;
use domain::policy::PoolPolicy;
use web::shell::Section;
use web::views::{Effect, PolicySave, PolicyTab, PoolForm, PoolView, Refusal};

use super::fields::Fields;
use super::jobs::Teams;
use super::policy_fields::Filled;
use super::visit::{Posted, Visit};
use super::{PageError, changes, effect, page, policies, quotas, refusal};
use crate::app::authorise::{Action, Target, authorise, may};
use crate::app::idempotency::Repeat;
use crate::app::policy_diff::{self, PolicyDraft, PoolDraft};
use crate::app::pool_policy::PolicyPatch;
use crate::app::pools::{self, NewPool, Pool};
use crate::app::versions::VersionFilter;
use crate::app::{App, AppError};

/// What came of a form that was sent.
#[derive(Default)]
struct Outcome {
    errors: Vec<Refusal>,
    effect: Option<Effect>,
    reason: String,
    refused: bool,
    /// The version that the form was made of.
    version: Option<i64>,
}

/// Shows a pool's policy.
pub async fn show_pool(
    State(app): State<App>,
    visit: Visit,
    Path(name): Path<String>,
) -> Result<Response, PageError> {
    let pool = pools::get(&app, &visit.asker, &read_name(&name)?).await?;
    let filled = Filled::kept(&pool.policy);
    show(&app, &visit, pool, filled, Outcome::default()).await
}

async fn show(
    app: &App,
    visit: &Visit,
    pool: Pool,
    filled: Filled,
    outcome: Outcome,
) -> Result<Response, PageError> {
    let name = pool.name.as_str();
    let address = format!("/pools/{name}");
    let filter = VersionFilter {
        object: Some(format!("pool/{name}")),
        ..VersionFilter::default()
    };
    let mut shell = visit.shell(app, Section::Policies).await?;
    shell.here = address.clone();
    let mut response = page(&PoolView {
        tabs: policies::tabs(app, visit, PolicyTab::Pool, Some(name)).await?,
        name: name.to_owned(),
        overpromised: pool
            .overpromised
            .map(|over| (over.guaranteed.milli(), over.capacity.milli())),
        unavailable: pool
            .unavailable_sharing
            .iter()
            .map(|mode| mode.as_str().to_owned())
            .collect(),
        version: outcome.version.unwrap_or(pool.version),
        edits: may(&visit.asker, Action::UpdatePool, Target::Platform),
        groups: filled.groups(&pool.policy),
        save: PolicySave {
            address: address.clone(),
            back: address.clone(),
            reason: outcome.reason,
            key: policies::key(None),
        },
        errors: outcome.errors,
        effect: outcome.effect,
        changes: changes::beside(app, visit, filter, &address).await?,
        shell,
    })?;
    if outcome.refused {
        *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    }
    Ok(response)
}

/// Tries a policy on the live world, or saves it.
pub async fn set_policy(
    State(app): State<App>,
    Path(name): Path<String>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::UpdatePool, Target::Platform)?;
    let pool = pools::get(&app, &visit.asker, &read_name(&name)?).await?;
    let mut filled = Filled::typed(&fields, &pool.policy);
    let mut outcome = Outcome {
        reason: fields.text("reason").to_owned(),
        version: Some(policies::version(&fields)?),
        ..Outcome::default()
    };
    let policy = match filled.policy() {
        Some(policy) => policy,
        None => {
            outcome.refused = fields.saves();
            return show(&app, &visit, pool, filled, outcome).await;
        }
    };
    let done = if fields.saves() {
        match save(&app, &visit, &pool, &policy, &outcome).await {
            Ok(done) => {
                let address = format!("/pools/{}?done={done}", pool.name);
                return Ok(Redirect::to(&address).into_response());
            }
            Err(error) => Err(error),
        }
    } else {
        let draft = PolicyDraft {
            pools: vec![PoolDraft {
                pool: pool.name.clone(),
                policy: PolicyPatch::from(policy),
            }],
            ..PolicyDraft::default()
        };
        policy_diff::diff(&app, &visit.asker, draft).await
    };
    match done {
        Ok(diff) => {
            let teams = Teams::load(&app, &visit.asker).await?;
            outcome.effect = Some(effect::of(diff, &teams, app.config.organisation.time_zone));
        }
        Err(error) => {
            if let Some(refused) = filled.refuse(error)? {
                outcome.errors.push(refused);
            }
            outcome.refused = fields.saves();
        }
    }
    show(&app, &visit, pool, filled, outcome).await
}

/// Saves a policy; what was done, as the next page tells it.
async fn save(
    app: &App,
    visit: &Visit,
    pool: &Pool,
    policy: &PoolPolicy,
    outcome: &Outcome,
) -> Result<&'static str, AppError> {
    if *policy == pool.policy {
        return Ok("nothing_changed");
    }
    let version = outcome.version.unwrap_or(pool.version);
    let patch = PolicyPatch::from(policy.clone());
    pools::update(
        app,
        &visit.asker,
        &pool.name,
        version,
        patch,
        &outcome.reason,
    )
    .await?;
    Ok("policy_saved")
}

/// Makes a pool, with the policy that all begin with.
pub async fn make_pool(
    State(app): State<App>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::CreatePool, Target::Platform)?;
    let typed = fields.text("name");
    let made = match typed.parse::<Name>() {
        Ok(name) => {
            let new = NewPool::named(name);
            pools::create(&app, &visit.asker, Repeat::none(), new, "").await
        }
        Err(fault) => Err(fault.into()),
    };
    let error = match made {
        Ok(answer) => {
            let address = format!("/pools/{}?done=pool_made", answer.value.name);
            return Ok(Redirect::to(&address).into_response());
        }
        Err(error) => refusal::of(error, |_| "pool_name".to_owned())?,
    };
    let add = PoolForm {
        name: typed.to_owned(),
        error: Some(error),
    };
    quotas::show_beside_pool(&app, &visit, add).await
}

/// A pool's name from the path; what is none names no pool.
pub fn read_name(text: &str) -> Result<Name, AppError> {
    text.parse().map_err(|_| AppError::not_found("pool", text))
}
