//! The submit form: shown, checked by a dry run while it is filled in, and sent.

use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Redirect, Response};
use domain::FieldError;
use domain::money::Money;
use domain::name::Name;
use domain::spec::JobSpec;
use rust_decimal::Decimal;
use serde::Deserialize;
use web::shell::Section;
use web::views::{
    Cause, ClassChoice, Displaced, DryRun, DryRunElements, DryRunView, Outcome, PlacedWorker,
    PoolChoice, Refusal, SliceLine, SubmitForm, SubmitView, Wait, field_of,
};

use super::form::{SubmitFields, fields_of};
use super::job::why::{accuracy, beyond, verdict};
use super::jobs::Teams;
use super::refusal;
use super::visit::{Posted, Visit};
use super::{PageError, page};
use crate::app::authorise::{Action, may};
use crate::app::classes::Class;
use crate::app::idempotency::Repeat;
use crate::app::page::PageAsk;
use crate::app::planning::{
    CostThere, DryRunDevice, DryRunInstance, DryRunSlices, DryRunVerdict, DryRunWorker,
};
use crate::app::{App, AppError, classes, jobs, planning, pools};
use crate::front::fields::read_query;

/// Seconds in an hour.
const HOUR: i64 = 3600;
/// The route that keys of this form belong to.
const ROUTE: &str = "POST /submit";

/// What the form may be asked with.
#[derive(Debug, Default, Deserialize)]
pub struct SubmitQuery {
    /// The team that the job is for.
    #[serde(default)]
    team: String,
    /// A job to begin from.
    #[serde(default)]
    like: String,
    /// Workers, where the form is to hold others than that job had.
    workers: Option<String>,
    /// The least workers of an elastic job, likewise.
    min_workers: Option<String>,
    /// GPUs per worker, likewise.
    gpus: Option<String>,
    /// The profile of its MIG instances, likewise.
    mig_profile: Option<String>,
    /// Its time limit, likewise.
    time_limit_minutes: Option<String>,
    /// Whether it may be preempted, likewise.
    preemptible: Option<String>,
}

/// Shows the form.
pub async fn show_submit(
    State(app): State<App>,
    visit: Visit,
    uri: Uri,
) -> Result<Response, PageError> {
    let query: SubmitQuery = read_query(&uri)?;
    let mut form = match query.like.as_str() {
        "" => SubmitForm::default(),
        id => jobs::get(&app, &visit.asker, super::job::read_id(id)?)
            .await?
            .spec
            .as_ref()
            .map(fields_of)
            .unwrap_or_default(),
    };
    form.workers = query.workers.unwrap_or(form.workers);
    form.min_workers = query.min_workers.unwrap_or(form.min_workers);
    form.gpus = query.gpus.unwrap_or(form.gpus);
    form.mig_profile = query.mig_profile.unwrap_or(form.mig_profile);
    form.time_limit_minutes = query.time_limit_minutes.unwrap_or(form.time_limit_minutes);
    form.preemptible = query.preemptible.unwrap_or(form.preemptible);
    show(&app, &visit, &query.team, form, Vec::new(), None).await
}

async fn show(
    app: &App,
    visit: &Visit,
    team: &str,
    mut form: SubmitForm,
    errors: Vec<Refusal>,
    dry_run: Option<DryRun>,
) -> Result<Response, PageError> {
    let asker = &visit.asker;
    let known = Teams::load(app, asker).await?;
    // Work belongs to teams without teams below.
    let leaves = known
        .all()
        .filter(|team| may(asker, Action::SubmitJob, team.target))
        .filter(|team| known.children(team.name.as_str()).is_empty());
    let teams: Vec<String> = leaves.map(|team| team.name.to_string()).collect();
    let chosen = match (team, teams.as_slice()) {
        ("", [only]) => Some(only.clone()),
        ("", _) => None,
        (name, _) if teams.iter().any(|team| team == name) => Some(name.to_owned()),
        (name, _) => return Err(AppError::not_found("team", name).into()),
    };
    let kept = classes::list(app, asker, &PageAsk::first()).await?.items;
    if form.class.is_empty() {
        form.class = kept
            .iter()
            .find(|class| class.default)
            .map(|class| class.name.to_string())
            .unwrap_or_default();
    }
    let offered = pools::list(app, asker, &PageAsk::first()).await?.items;
    let status = if errors.is_empty() {
        axum::http::StatusCode::OK
    } else {
        axum::http::StatusCode::UNPROCESSABLE_ENTITY
    };
    let view = SubmitView {
        shell: visit.shell(app, Section::Submit).await?,
        team: chosen,
        teams,
        pools: offered
            .into_iter()
            .map(|pool| PoolChoice {
                name: pool.name.to_string(),
            })
            .collect(),
        classes: choices(&kept),
        form,
        errors,
        dry_run,
        idempotency_key: domain::ids::RequestId::new().to_string(),
    };
    let mut response = page(&view)?;
    *response.status_mut() = status;
    Ok(response)
}

/// The classes in the order in which their work is looked at, each with those that come next.
fn choices(kept: &[Class]) -> Vec<ClassChoice> {
    let mut ordered: Vec<&Class> = kept.iter().collect();
    ordered.sort_by_key(|class| std::cmp::Reverse(class.priority));
    let next = |above: i32| {
        let below = ordered.iter().map(|class| class.priority);
        let next = below.filter(|priority| *priority < above).max();
        let behind = ordered.iter().filter(|class| Some(class.priority) == next);
        behind.map(|class| class.name.to_string()).collect()
    };
    ordered
        .iter()
        .map(|class| ClassChoice {
            name: class.name.to_string(),
            preemptible: class.preemptible,
            before: next(class.priority),
        })
        .collect()
}

/// Submits the job, or shows the form again with what is wrong with it.
pub async fn submit_job(
    State(app): State<App>,
    Posted { visit, mut fields }: Posted<SubmitFields>,
) -> Result<Response, PageError> {
    let team = read_team(&fields.team)?;
    let changed = fields.take_change();
    let errors = match fields.spec() {
        Err(faults) => faults.iter().map(refused_field).collect(),
        Ok(spec) if changed || !fields.check.is_empty() => {
            let dry_run = dry_run(&app, &visit, &team, spec).await;
            return match dry_run {
                Ok(dry_run) => {
                    show(
                        &app,
                        &visit,
                        team.as_str(),
                        fields.shown(),
                        Vec::new(),
                        Some(dry_run),
                    )
                    .await
                }
                Err(refusals) => refuse(&app, &visit, &fields, refusals?).await,
            };
        }
        Ok(spec) => {
            match jobs::submit(&app, &visit.asker, repeat(&fields, &spec), &team, spec).await {
                Ok(answer) => {
                    return Ok(Redirect::to(&format!("/jobs/{}", answer.value.id)).into_response());
                }
                Err(error) => refusals_of(error)?,
            }
        }
    };
    refuse(&app, &visit, &fields, errors).await
}

async fn refuse(
    app: &App,
    visit: &Visit,
    fields: &SubmitFields,
    errors: Vec<Refusal>,
) -> Result<Response, PageError> {
    let team = &fields.team;
    show(app, visit, team, fields.shown(), errors, None).await
}

/// Says what would happen, while the form is filled in.
pub async fn check_job(
    State(app): State<App>,
    Posted { visit, fields }: Posted<SubmitFields>,
) -> Result<Response, PageError> {
    let team = read_team(&fields.team)?;
    let answer = match fields.spec() {
        _ if fields.sketchy() => None,
        Err(faults) => Some(refused(faults.iter().map(refused_field).collect())),
        Ok(spec) => Some(match dry_run(&app, &visit, &team, spec).await {
            Ok(answer) => answer,
            Err(refusals) => refused(refusals?),
        }),
    };
    page(&DryRunView {
        shell: visit.shell(&app, Section::Submit).await?,
        dry_run: answer,
    })
}

fn refused(refusals: Vec<Refusal>) -> DryRun {
    DryRun {
        outcome: Outcome::Refused,
        cause: Some(Cause::Refused(refusals)),
        elements: None,
        placement: Vec::new(),
        slices: Vec::new(),
        kept_on: Vec::new(),
        displaces: None,
        per_hour_between: None,
        per_hour: None,
        at_most: None,
    }
}

/// A dry run; its error are refusals that the form shows, or one that makes a page of its own.
async fn dry_run(
    app: &App,
    visit: &Visit,
    team: &Name,
    spec: JobSpec,
) -> Result<DryRun, Result<Vec<Refusal>, PageError>> {
    let limit = spec.time_limit_seconds;
    let answer = planning::dry_run(app, &visit.asker, team, spec)
        .await
        .map_err(refusals_of)?;
    if let Some(refused) = answer.refusal {
        let fault = FieldError::new(&refused.field, &refused.value, refused.remedy);
        return Err(Ok(vec![Refusal {
            code: Some(refused.code),
            ..refused_field(&fault)
        }]));
    }
    let waits = answer.waiting.as_ref().map(|waiting| Wait {
        beyond_quota: answer.beyond_quota.as_ref().map(beyond),
        accuracy: answer.accuracy.as_ref().map(accuracy),
        ..verdict(waiting)
    });
    Ok(DryRun {
        outcome: match answer.verdict {
            DryRunVerdict::Starts => Outcome::Starts,
            DryRunVerdict::Waits if answer.beyond_quota.is_some() => Outcome::Never,
            DryRunVerdict::Waits | DryRunVerdict::WaitsForVictims => Outcome::Waits {
                until: answer.expected_start,
            },
            DryRunVerdict::Refused => Outcome::Refused,
        },
        cause: waits.map(|wait| Cause::Waits(Box::new(wait))),
        elements: elements(answer.array.as_ref()),
        placement: answer.placement.iter().map(placed).collect(),
        slices: answer.slices.into_iter().map(slice_line).collect(),
        kept_on: answer.expected_nodes,
        displaces: displaced(&answer.displaces),
        at_most: answer
            .cost_per_hour
            .as_ref()
            .zip(limit)
            .map(|(price, seconds)| for_seconds(price, seconds)),
        per_hour_between: match answer.cost_per_hour {
            Some(_) => None,
            None => between(&answer.costs_per_hour),
        },
        per_hour: answer.cost_per_hour,
    })
}

fn elements(array: Option<&planning::DryRunArray>) -> Option<DryRunElements> {
    DryRunElements::told(&serde_json::to_value(array).ok()?)
}

/// The least and the most of what it costs per hour where it may start; nothing where a place has no
/// price, or another currency.
fn between(costs: &[CostThere]) -> Option<(Money, Money)> {
    let costs: Option<Vec<&Money>> = costs
        .iter()
        .map(|there| there.cost_per_hour.as_ref())
        .collect();
    let costs = costs?;
    let first = costs.first()?;
    if costs.iter().any(|cost| cost.currency != first.currency) {
        return None;
    }
    let least = costs.iter().min_by_key(|cost| cost.amount)?;
    let most = costs.iter().max_by_key(|cost| cost.amount)?;
    Some(((*least).clone(), (*most).clone()))
}

fn placed(worker: &DryRunWorker) -> PlacedWorker {
    let share = |device: &DryRunDevice| {
        let share = u32::try_from(device.gpus.milli()).unwrap_or(0);
        (device.index, share, device.mode.as_str().to_owned())
    };
    PlacedWorker {
        worker: worker.worker,
        node: worker.node.clone(),
        leaves_by: None,
        image_digest: None,
        devices: worker.devices.iter().map(share).collect(),
    }
}

fn slice_line(change: DryRunSlices) -> SliceLine {
    let told = |instances: Vec<DryRunInstance>| {
        let instances = instances.into_iter();
        instances.map(|i| (i.profile, i.start)).collect()
    };
    SliceLine {
        node: change.node,
        index: change.index,
        mode: change.mode.map(|mode| mode.as_str().to_owned()),
        made: told(change.create),
        removed: told(change.destroy),
    }
}

fn displaced(sum: &planning::Displaced) -> Option<Displaced> {
    (sum.jobs + sum.moved_jobs > 0).then(|| Displaced {
        jobs: i64::from(sum.jobs),
        own: i64::from(sum.own_jobs),
        moved: i64::from(sum.moved_jobs),
        gpus_milli: sum.gpus.milli(),
        lost_milli_seconds: sum.lost_gpu_seconds.saturating_mul(1000),
    })
}

fn for_seconds(per_hour: &Money, seconds: i64) -> Money {
    let amount = per_hour.amount * Decimal::from(seconds) / Decimal::from(HOUR);
    Money {
        amount: domain::money::round(amount, domain::money::SHOWN_DECIMALS),
        currency: per_hour.currency.clone(),
    }
}

/// The same press of the button twice is one submission; the key comes with the form.
fn repeat(fields: &SubmitFields, spec: &JobSpec) -> Repeat {
    if fields
        .idempotency_key
        .parse::<domain::ids::RequestId>()
        .is_err()
    {
        return Repeat::none();
    }
    let body = serde_json::to_vec(&(&fields.team, spec)).expect("a spec is plain data");
    Repeat::keyed(ROUTE.into(), fields.idempotency_key.clone(), &body)
}

/// Refusals that the form shows; anything else makes a page of its own.
fn refusals_of(error: AppError) -> Result<Vec<Refusal>, PageError> {
    match error {
        AppError::InvalidAll(faults) => Ok(faults.iter().map(refused_field).collect()),
        error => Ok(vec![refusal::of(error, |key| field_of(key).to_owned())?]),
    }
}

fn refused_field(fault: &FieldError) -> Refusal {
    refusal::of_value(fault, field_of(&fault.field).to_owned())
}

fn read_team(text: &str) -> Result<Name, AppError> {
    text.parse().map_err(|_| AppError::not_found("team", text))
}
