//! A job's page, put together of what `app` knows of it.

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use domain::ids::JobId;
use domain::sharing::SharingMode;
use domain::spec::{JobSpec, PerWorker};
use domain::state::{AttemptEnd, JobState};
use domain::{MilliGpu, Timestamp};
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive as _;
use serde::Deserialize;
use serde_json::Value;
use web::draw::Span;
use web::messages::{Messages, Phrase};
use web::parts::{EventLine, State as Shown};
use web::shell::{Section, Shell};
use web::views::{
    AttemptRow, CostLine, EvictionRow, Holders, JobActions, JobChange, JobView, PlacedWorker,
    WaitCause, WaitHistory, WaitStretch, Why,
};

use super::super::form::fields_of;
use super::super::jobs::{Teams, cost_of, size};
use super::super::visit::Visit;
use super::super::{PageError, evictions, page, utilisation, words};
use super::steer::read_id;
use super::{log, why};
use crate::app::authorise::{self, Action};
use crate::app::jobs::{self, Attempt, Event, Job, Waits};
use crate::app::page::PageAsk;
use crate::app::telemetry::{self, TelemetryAsk};
use crate::app::{App, Asker, classes, planning, prices};
use crate::front::fields::read_query;

/// What a job's page may be asked with.
#[derive(Debug, Default, Deserialize)]
pub struct JobQuery {
    /// The log that is shown, as `ATTEMPT.WORKER`.
    pub log: Option<String>,
    /// Of an array, the state whose elements are listed.
    #[serde(default)]
    pub state: String,
    /// Where that list goes on.
    pub cursor: Option<String>,
}

/// Shows one job.
pub async fn show_job(
    State(app): State<App>,
    visit: Visit,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, PageError> {
    let query: JobQuery = read_query(&uri)?;
    let id = read_id(&id)?;
    let asker = &visit.asker;
    let job = jobs::get(&app, asker, id).await?;
    if job.array.is_some() {
        return super::array::show(&app, &visit, job, query).await;
    }
    let steps = jobs::steps(&app, asker, id).await?;
    let attempts = jobs::attempts(&app, asker, id).await?.items;
    let evictions = evictions::of_job(&app, asker, id).await?;
    let teams = Teams::load(&app, asker).await?;
    let shell = visit.shell(&app, Section::Jobs).await?;
    let view = JobView {
        id: id.to_string(),
        element: id.array().map(|array| array.to_string()).zip(id.index()),
        team: teams.shown(&job.team),
        why: with_evidence(
            &app,
            asker,
            id,
            why::explain(&job, job.waiting.as_ref(), attempts.last()),
        )
        .await?,
        size: size(&job),
        ran_seconds: ran_in_all(&attempts, shell.now),
        placement: placement(&job),
        spans: spans(&steps, job.state, shell.now),
        waits: history(jobs::waits(&app, asker, id).await?, job.spec.as_ref()),
        attempts: attempts
            .iter()
            .map(|attempt| attempt_row(attempt, &job, &steps, &evictions, shell.now))
            .collect(),
        events: event_lines(&shell.t, &steps, job.attempt),
        costs: attempts.iter().map(cost_line).collect(),
        cost: cost_of(job.cost.as_ref(), job.gpu_seconds),
        gpu_milli_seconds: milli(job.gpu_seconds),
        price: prices::of_placement(&app, asker, id).await?,
        command: job.spec.as_ref().map_or_else(
            || "–".into(),
            |spec| web::log::visible(&words::join(&spec.command)),
        ),
        asked: asked(&shell, &job),
        utilisation: utilisation::of_job(
            &telemetry::of_job(&app, asker, id, TelemetryAsk::default()).await?,
        ),
        log: log::panel(&app, &visit, &job, query.log.as_deref()).await?,
        change: change(&app, asker, &job).await?,
        actions: actions(asker, &job),
        version: job.version,
        name: job.name,
        user: job.user,
        state: job.state,
        shell,
    };
    page(&view)
}

fn placement(job: &Job) -> Vec<PlacedWorker> {
    let workers = job.placement.iter();
    workers
        .map(|worker| PlacedWorker {
            worker: worker.worker.unsigned_abs(),
            node: worker.node.clone(),
            leaves_by: worker.leaves_by,
            image_digest: worker.image_digest.clone(),
            devices: worker
                .devices
                .iter()
                .map(|device| {
                    let share = u32::try_from(device.gpus.milli()).unwrap_or(0);
                    (
                        device.index.unsigned_abs(),
                        share,
                        device.mode.as_str().to_owned(),
                    )
                })
                .collect(),
        })
        .collect()
}

/// The stretches of a job's life, from the steps that it took.
fn spans(steps: &[Event], state: JobState, now: Timestamp) -> Vec<Span> {
    let steps: Vec<(Timestamp, JobState)> = steps
        .iter()
        .filter_map(|event| Some((event.at, event.to.parse().ok()?)))
        .collect();
    let ends = steps
        .iter()
        .skip(1)
        .map(|(at, _)| *at)
        .chain((!state.terminal()).then_some(now));
    steps
        .iter()
        .zip(ends)
        .map(|((at, state), end)| Span {
            state: *state,
            seconds: whole_seconds(*at, end),
        })
        .collect()
}

/// Adds what stands behind a wait: who holds what the job could use, and what its quota never admits.
async fn with_evidence(
    app: &App,
    asker: &Asker,
    id: JobId,
    explained: Why,
) -> Result<Why, PageError> {
    let Why::Waits(mut wait) = explained else {
        return Ok(explained);
    };
    // What is held back by people would not start if all of it were free.
    if wait.code != "suspended" {
        let evidence = planning::evidence(app, asker, id).await?;
        wait.holders = evidence.as_ref().map(|evidence| Holders {
            own_team: evidence.holders.own_team.milli(),
            other_teams: evidence.holders.other_teams.milli(),
            free: evidence.holders.free.milli(),
            capacity: evidence.holders.capacity.milli(),
        });
        wait.accuracy = evidence
            .as_ref()
            .and_then(|evidence| evidence.accuracy.as_ref())
            .map(why::accuracy);
        wait.beyond_quota = evidence
            .and_then(|evidence| evidence.beyond_quota)
            .map(|beyond| why::beyond(&beyond));
        wait.offer_preemption();
    }
    Ok(Why::Waits(wait))
}

/// What it has waited for, as its page tells it.
fn history(waits: Waits, spec: Option<&JobSpec>) -> WaitHistory {
    let stretch = |wait: jobs::Wait| WaitStretch {
        from: wait.from,
        holds: wait.to.is_none(),
        times: i64::from(wait.stretches),
        seconds: wait.seconds,
        wait: why::past(wait, spec),
    };
    let cause = |cause: jobs::WaitCause| WaitCause {
        code: cause.code,
        seconds: cause.seconds,
    };
    WaitHistory {
        stretches: waits.items.into_iter().map(stretch).collect(),
        causes: waits.causes.into_iter().map(cause).collect(),
    }
}

/// How long all attempts ran, or have been running; nothing where none ever did.
fn ran_in_all(attempts: &[Attempt], now: Timestamp) -> Option<i64> {
    attempts
        .iter()
        .filter_map(|attempt| ran(attempt, now))
        .reduce(|all, one| all + one)
}

fn ran(attempt: &Attempt, now: Timestamp) -> Option<i64> {
    let until = attempt.ended_at.unwrap_or(now);
    attempt.started_at.map(|at| whole_seconds(at, until))
}

/// The seconds between two moments, each cut to its second: what follows one upon the other adds
/// up to the whole.
fn whole_seconds(from: Timestamp, to: Timestamp) -> i64 {
    (to.timestamp() - from.timestamp()).max(0)
}

fn attempt_row(
    attempt: &Attempt,
    job: &Job,
    steps: &[Event],
    evictions: &[(i32, EvictionRow)],
    now: Timestamp,
) -> AttemptRow {
    let own = evictions.iter().filter(|(of, _)| *of == attempt.number);
    AttemptRow {
        number: attempt.number.unsigned_abs(),
        started_at: attempt.started_at.or(Some(attempt.created_at)),
        ran_seconds: ran(attempt, now),
        nodes: attempt.nodes.clone(),
        ending: why::ending_of(attempt, job, steps),
        evictions: own.map(|(_, eviction)| eviction.clone()).collect(),
    }
}

/// What an attempt cost, as a line of the job's bill.
fn cost_line(attempt: &Attempt) -> CostLine {
    CostLine {
        attempt: attempt.number.unsigned_abs(),
        gpu_milli_seconds: milli(attempt.gpu_seconds),
        cost: cost_of(attempt.cost.as_ref(), attempt.gpu_seconds),
    }
}

pub(super) fn milli(gpu_seconds: Decimal) -> i64 {
    (gpu_seconds * Decimal::from(1000))
        .to_i64()
        .unwrap_or(i64::MAX)
}

/// The steps of the job as lines; each start is that of an attempt, `last` that of the last one.
pub(super) fn event_lines(t: &Messages, steps: &[Event], last: i32) -> Vec<EventLine> {
    let starts = |event: &Event| event.to == JobState::Starting.as_str();
    let shown = steps.iter().filter(|event| starts(event)).count();
    let mut attempt = i64::from(last) - i64::try_from(shown).unwrap_or(0);
    let lines = steps.iter().filter_map(|event| {
        let mut line = event_line(t, event)?;
        if starts(event) {
            attempt += 1;
            line.detail = Some(t.say("job.attempt").with("n", attempt));
        }
        Some(line)
    });
    lines.collect()
}

/// A step of the job as a line.
fn event_line(t: &Messages, event: &Event) -> Option<EventLine> {
    let state: JobState = event.to.parse().ok()?;
    let code = match event.reason.as_str() {
        code @ ("submitted" | "shrunk" | "grown" | "changed") => code,
        _ if state == JobState::Queued => "requeued",
        _ => event.to.as_str(),
    };
    Some(EventLine {
        at: event.at,
        state: Shown::job(state),
        code: code.to_owned(),
        actor: (event.actor_kind == "user").then(|| event.actor.clone()),
        detail: detail(t, event),
    })
}

/// What was changed of a job while it waited, each key from what to what.
fn changes(t: &Messages, event: &Event) -> Option<Phrase> {
    let changes = event.data["changes"].as_object()?;
    let said = changes.iter().map(|(key, change)| {
        let value = |value: &Value| match key.as_str() {
            "time_limit_seconds" => match value.as_i64() {
                Some(seconds) => t.duration(seconds),
                None => t.say("event_change.none"),
            },
            "preemptible" => {
                let word = value.as_bool().map(|yes| yes.to_string());
                t.word("preemptible", word.as_deref().unwrap_or_default())
            }
            _ => Phrase::literal(value.as_str().unwrap_or_default()),
        };
        t.say("event_change.of")
            .nest("key", t.word("field", key))
            .nest("from", value(&change["from"]))
            .nest("to", value(&change["to"]))
    });
    Some(Phrase::list(said))
}

/// What an event says beyond its state and who brought it about.
fn detail(t: &Messages, event: &Event) -> Option<Phrase> {
    if event.reason == "changed" {
        return changes(t, event);
    }
    let data = |key: &str| event.data[key].as_str().filter(|text| !text.is_empty());
    if let Some(rule) = data("rule").filter(|rule| t.knows("preempted_by", rule)) {
        return Some(t.word("preempted_by", rule));
    }
    if let Some(rule) = data("rule").filter(|rule| t.knows("shrunk_by", rule)) {
        return Some(t.word("shrunk_by", rule));
    }
    if let Some(label) = data("unknown_label") {
        return Some(t.say("job.no_such_label").with("label", label));
    }
    let never_ran = event.from.as_deref() == Some(JobState::Queued.as_str())
        && event.to == JobState::Failed.as_str();
    if never_ran && t.knows("never_ran", &event.reason) {
        return Some(t.word("never_ran", &event.reason));
    }
    match event.reason.parse::<AttemptEnd>().ok()? {
        // What a node found, no code has.
        AttemptEnd::StartRefused | AttemptEnd::Invalid if event.actor_kind == "agent" => {
            data("message").map(Phrase::literal)
        }
        // That it succeeded says that its command ended, and that it is cancelled says itself.
        AttemptEnd::Exit if event.to == JobState::Succeeded.as_str() => None,
        AttemptEnd::Cancelled => None,
        end => Some(t.word("ended_by", end.as_str())),
    }
}

/// What the reader may do with the job as it is.
pub(super) fn actions(asker: &Asker, job: &Job) -> JobActions {
    let may = |action| authorise::may(asker, action, job.target);
    let cancellable = !job.state.terminal() && job.state != JobState::Cancelling;
    let suspended = job.state == JobState::Suspended;
    JobActions {
        cancel: cancellable && may(Action::CancelJob),
        suspend: cancellable && !suspended && may(Action::SuspendJob),
        resume: suspended && may(Action::ResumeJob),
        change: matches!(job.state, JobState::Queued | JobState::Suspended)
            && may(Action::UpdateJob),
        clone: may(Action::SubmitJob),
    }
}

/// The form that changes a job while it waits, for who may.
pub(super) async fn change(
    app: &App,
    asker: &Asker,
    job: &Job,
) -> Result<Option<JobChange>, PageError> {
    let Some(spec) = job.spec.as_ref().filter(|_| actions(asker, job).change) else {
        return Ok(None);
    };
    let classes = classes::list(app, asker, &PageAsk::first()).await?.items;
    let fields = fields_of(spec);
    Ok(Some(JobChange {
        class: spec.class.to_string(),
        classes: classes.iter().map(|class| class.name.to_string()).collect(),
        time_limit_minutes: fields.time_limit_minutes,
        preemptible: match spec.preemptible {
            Some(true) => "true",
            Some(false) => "false",
            None => "",
        },
    }))
}

/// What the job asked for, as pairs of a message's key and a value.
pub(super) fn asked(shell: &Shell, job: &Job) -> Vec<(&'static str, Phrase)> {
    let t = &shell.t;
    let Some(spec) = &job.spec else {
        return Vec::new();
    };
    let text = |text: String| Phrase::literal(&text);
    let mut asked = vec![
        ("kind", t.word("kind", spec.kind.as_str())),
        ("class", text(spec.class.to_string())),
    ];
    if !spec.pools.is_empty() {
        let pools: Vec<&str> = spec.pools.iter().map(|pool| pool.as_str()).collect();
        asked.push(("pools", text(pools.join(", "))));
    }
    asked.push(("workers", workers(t, spec)));
    asked.push(("per_worker", per_worker(t, &spec.per_worker)));
    // A profile is asked for in the place of a mode.
    let modes = match spec.per_worker.mig_profile {
        Some(_) => &[SharingMode::Mig][..],
        None => &spec.per_worker.sharing,
    };
    let modes = modes.iter().map(|mode| t.word("mode", mode.as_str()));
    asked.push(("sharing", Phrase::list(modes)));
    for (key, seconds) in [
        ("time_limit", spec.time_limit_seconds),
        ("checkpoint", spec.checkpoint_seconds),
    ] {
        if let Some(seconds) = seconds {
            asked.push((key, t.duration(seconds)));
        }
    }
    if let Some(preemptible) = spec.preemptible {
        asked.push((
            "preemptible",
            t.word("preemptible", if preemptible { "true" } else { "false" }),
        ));
    }
    if let Some(at) = &spec.not_before {
        asked.push(("not_before", shell.moment(at)));
    }
    if !spec.after.is_empty() {
        asked.push(("after", text(spec.after.join(", "))));
    }
    if spec.retries.limit > 0 {
        let ends = spec.retries.on.iter();
        let ends = ends.map(|end| t.word("retry_on", end.as_str()));
        let retries = t
            .say("job.retries")
            .with("n", t.number(spec.retries.limit))
            .nest("ends", Phrase::list(ends));
        asked.push(("retries", retries));
    }
    if !spec.files.is_empty() {
        asked.push((
            "files",
            text(spec.files.keys().cloned().collect::<Vec<_>>().join(", ")),
        ));
    }
    if !spec.labels.is_empty() {
        let labels: Vec<String> = spec
            .labels
            .iter()
            .map(|(key, value)| format!("{key}: {value}"))
            .collect();
        asked.push(("labels", text(labels.join(", "))));
    }
    asked
}

/// How many workers it has; of an elastic job that this may change.
fn workers(t: &Messages, spec: &JobSpec) -> Phrase {
    match spec.min_workers {
        Some(least) if least < spec.workers => t
            .say("job.elastic")
            .with("least", t.number(least))
            .with("most", t.number(spec.workers)),
        _ => Phrase::literal(&t.number(spec.workers)),
    }
}

fn per_worker(t: &Messages, need: &PerWorker) -> Phrase {
    let parts = [
        match &need.mig_profile {
            Some(profile) => Some(
                t.say("job.instances")
                    .with("n", need.gpus())
                    .with("profile", profile),
            ),
            None => (need.gpus() > MilliGpu::ZERO).then(|| t.gpus(need.gpus().milli())),
        },
        (need.cpus.milli() > 0).then(|| {
            t.say_of("unit.cpus", need.cpus.milli())
                .with("n", need.cpus)
        }),
        (need.memory_mib > 0).then(|| t.memory(need.memory_mib)),
    ];
    if parts.iter().all(Option::is_none) {
        return Phrase::literal("–");
    }
    Phrase::list(parts.into_iter().flatten())
}
