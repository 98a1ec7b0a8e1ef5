//! What happened to a job: its events and its attempts.

use std::collections::BTreeMap;

use domain::eviction::EvictionRule;
use domain::ids::{AttemptId, JobId, TeamId};
use domain::money::{Currency, Money};
use domain::state::{AttemptEnd, AttemptState};
use domain::{MilliGpu, Timestamp};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::view::rust_decimal_number;
use super::{find, view};
use crate::accounting::usage::{self, Sum};
use crate::app::authorise::Action;
use crate::app::page::{self, Page, PageAsk};
use crate::app::{App, AppError, Asker};
use crate::store::attempts::AttemptRow;
use crate::store::evictions::{self, Ended};
use crate::store::{Tx, attempts as attempt_rows, events as event_rows, placements};

/// Steps of a job that are told at once: those of a hundred runs, more than anybody reads.
const STEPS_MAX: i64 = 500;

/// A step that a job, one of its attempts or one of its workers took.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number; rises with time.
    pub id: i64,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// `job`, `attempt` or `assignment`.
    pub subject: String,
    /// Which one.
    pub subject_id: String,
    /// The node, where it happened on one.
    pub node: Option<String>,
    /// The state before; null when it began to exist.
    pub from: Option<String>,
    /// The state after.
    pub to: String,
    /// `user`, `scheduler`, `agent` or `system`.
    pub actor_kind: String,
    /// Who it was.
    pub actor: String,
    /// Why, as a stable word; empty where there is nothing to say.
    pub reason: String,
    /// What else is worth knowing.
    #[schema(value_type = Object)]
    pub data: Value,
}

impl From<event_rows::EventRow> for Event {
    fn from(row: event_rows::EventRow) -> Self {
        Self {
            id: row.id,
            at: row.at,
            // An element of an array is told by its array, as everywhere.
            subject_id: match row.job_id {
                Some(id) if row.subject == "job" => id.to_string(),
                _ => row.subject_id,
            },
            subject: row.subject,
            node: row.node,
            from: row.from_state,
            to: row.to_state,
            actor_kind: row.actor_kind,
            actor: row.actor_name,
            reason: row.reason,
            data: row.data,
        }
    }
}

/// One run of a job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    /// Its id.
    pub id: AttemptId,
    /// Its number within the job, from 1.
    pub number: i32,
    /// Where it stands.
    pub state: AttemptState,
    /// How it ended, or will have ended.
    pub reason: Option<AttemptEnd>,
    /// The same as a sentence.
    pub message: String,
    /// The exit code that decided it.
    pub exit_code: Option<i32>,
    /// The signal that decided it.
    pub exit_signal: Option<i32>,
    /// The rule by which it was preempted.
    #[schema(value_type = Option<String>)]
    pub preemption_rule: Option<EvictionRule>,
    /// Work that its preemption destroyed.
    pub lost_gpu_seconds: Option<MilliGpu>,
    /// When it was granted its place.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When all its workers had started.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// When it was told to stop.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub stop_asked_at: Option<Timestamp>,
    /// When all its workers had left.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// The nodes that its workers had, by name.
    pub nodes: Vec<String>,
    /// GPU-seconds charged so far; those of all attempts add up to the job's.
    #[serde(with = "rust_decimal_number")]
    #[schema(value_type = f64, minimum = 0)]
    pub gpu_seconds: Decimal,
    /// What they cost so far; null where no price covers any of it.
    pub cost: Option<Money>,
}

/// A job's events, the first one first.
pub async fn events(
    app: &App,
    asker: &Asker,
    id: JobId,
    ask: &PageAsk,
) -> Result<Page<Event>, AppError> {
    let after: Option<i64> = ask.after("event")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = find(&mut tx, asker, Action::ListJobEvents, id).await?;
    let rows = event_rows::of_job(
        &mut tx,
        job.team_id,
        id,
        after.unwrap_or(0),
        ask.rows_wanted(),
    )
    .await?;
    tx.commit().await?;
    let events = rows.into_iter().map(Event::from).collect();
    Ok(page::cut(ask, "event", events, |event: &Event| event.id))
}

/// The steps of a job itself, in order: the last 500 of them. Those of its attempts and
/// workers, of which a large gang has thousands, are left out.
pub async fn steps(app: &App, asker: &Asker, id: JobId) -> Result<Vec<Event>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = find(&mut tx, asker, Action::ListJobEvents, id).await?;
    let rows = event_rows::steps_of_job(&mut tx, job.team_id, id, STEPS_MAX).await?;
    tx.commit().await?;
    Ok(rows.into_iter().map(Event::from).collect())
}

/// A job's attempts, the first one first. They are few: retries, requeues and preemptions are bounded.
pub async fn attempts(app: &App, asker: &Asker, id: JobId) -> Result<Page<Attempt>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = find(&mut tx, asker, Action::ListJobAttempts, id).await?;
    let rows = attempt_rows::of_job(&mut tx, job.team_id, id).await?;
    let mut nodes = nodes_of_attempts(&mut tx, job.team_id, id).await?;
    let evicted = evictions::ended(&mut tx, job.team_id, id).await?;
    let mut evicted: BTreeMap<AttemptId, Ended> = evicted
        .into_iter()
        .map(|row| (row.attempt_id, row))
        .collect();
    let mut used = usage::of_attempts(&mut tx, id).await?;
    let currency = view::currency(&mut tx).await?;
    tx.commit().await?;
    let items = rows.into_iter().map(|row| {
        let used = used.remove(&row.id).unwrap_or_else(Sum::nothing);
        let nodes = nodes.remove(&row.id).unwrap_or_default();
        let evicted = evicted.remove(&row.id);
        shown(row, nodes, used, evicted, currency.as_ref())
    });
    Ok(Page {
        items: items.collect(),
        next_cursor: None,
    })
}

async fn nodes_of_attempts(
    tx: &mut Tx,
    team: TeamId,
    job: JobId,
) -> Result<BTreeMap<AttemptId, Vec<String>>, AppError> {
    let mut nodes: BTreeMap<AttemptId, Vec<String>> = BTreeMap::new();
    for row in placements::nodes_of_attempts(tx, team, job).await? {
        nodes.entry(row.attempt_id).or_default().push(row.node);
    }
    Ok(nodes)
}

fn shown(
    row: AttemptRow,
    nodes: Vec<String>,
    used: Sum,
    evicted: Option<Ended>,
    currency: Option<&Currency>,
) -> Attempt {
    Attempt {
        id: row.id,
        number: row.number,
        state: row.state,
        reason: row.reason,
        message: row.message,
        exit_code: row.exit_code,
        exit_signal: row.exit_signal,
        preemption_rule: evicted.map(|evicted| evicted.rule),
        lost_gpu_seconds: evicted.map(|e| MilliGpu::from_milli(e.lost_gpu_milli_seconds)),
        created_at: row.created_at,
        started_at: row.started_at,
        stop_asked_at: row.stop_asked_at,
        ended_at: row.ended_at,
        nodes,
        gpu_seconds: used.gpu_seconds,
        cost: view::cost(used, currency),
    }
}
