//! Why a job waits, and who holds what it could use.

use domain::ids::JobId;
use domain::money::Money;
use domain::state::{ElementCounts, JobState};
use domain::{MilliGpu, Timestamp};
use engine::world::{Node, Workload, WorkloadState, World};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::accuracy::{self, Accuracy};
use crate::app::authorise::Action;
use crate::app::jobs::{self, BeyondQuota, Job, PLANNING_STOPPED, PlacedWorker};
use crate::app::questions::{self, live};
use crate::app::{App, AppError, Asker, promises};
use crate::scheduler::discreet::Tried;
use crate::scheduler::{discreet, translate};
use crate::store;
use crate::store::jobs::JobRow;

/// Why a job waits, or that it does not.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The job.
    pub job: JobId,
    /// Where it stands.
    pub state: JobState,
    /// Why it waits; null when it does not.
    #[schema(value_type = Option<Object>)]
    pub waiting: Option<Value>,
    /// What of its quota can never admit it as it is; null where no quota is in its way for good.
    pub beyond_quota: Option<BeyondQuota>,
    /// How it ended; null while it may still run.
    pub ended: Option<Ended>,
    /// One sentence for people.
    pub message: String,
    /// How far expected starts in its pool were out of late, where one is told and such are known.
    pub accuracy: Option<Accuracy>,
    /// Who holds what it could use, in aggregate; null of a job that does not wait.
    pub holders: Option<Holders>,
    /// Of an array how many elements stand where; null of any other job.
    pub elements: Option<ElementCounts>,
    /// When this was so.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

/// How a job ended, and what came of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    /// When.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
    /// The end of its last attempt, or why it never had one.
    pub reason: Option<String>,
    /// The exit code of its last attempt, where one decided it.
    pub exit_code: Option<i32>,
    /// The signal that ended its last attempt, where one did.
    pub exit_signal: Option<i32>,
    /// Attempts that it had.
    pub attempts: i32,
    /// What it cost in all; null where no price covers any of it.
    pub cost: Option<Money>,
    /// Where it ran last, by worker.
    pub placement: Vec<PlacedWorker>,
}

impl Ended {
    /// Of a job as it is shown; nothing of one that has not ended.
    fn of(job: Job) -> Option<Self> {
        job.state.terminal().then_some(Self {
            finished_at: job.finished_at,
            reason: job.reason,
            exit_code: job.exit_code,
            exit_signal: job.exit_signal,
            attempts: job.attempt,
            cost: job.cost,
            placement: job.placement,
        })
    }
}

/// Who holds the devices that a job could be on: of the pools that it accepts, there of the node that it is bound
/// to, of those with the labels of its selector, of its model.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Holders {
    /// Those that are well, on nodes that answer.
    pub capacity: MilliGpu,
    /// Held by the job's own team.
    pub own_team: MilliGpu,
    /// Held by other teams together.
    pub other_teams: MilliGpu,
    /// Held by nobody.
    pub free: MilliGpu,
}

/// Why a job waits, from the world as it is now.
pub async fn explain(app: &App, asker: &Asker, id: JobId) -> Result<Explanation, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = jobs::find(&mut tx, asker, Action::ExplainJob, id).await?;
    let elements = jobs::counts(&mut tx, id).await?;
    tx.commit().await?;
    if job.reason.as_deref() == Some(PLANNING_STOPPED) {
        return as_told(app, job, elements).await;
    }
    let thought = match job.state {
        JobState::Queued | JobState::Suspended => Some(questions::think(app).await?),
        _ => None,
    };
    // An element with which nothing was done yet is no work of the world: its array holds it back.
    let held_back = thought.as_ref().is_some_and(|thought| {
        id.index().is_some() && thought.world.workload(&id.to_string()).is_none()
    });
    if held_back && job.waiting.is_some() {
        return as_told(app, job, elements).await;
    }
    let asked = thought
        .as_ref()
        .and_then(|thought| Some((thought, asked_of(&thought.world, id)?)));
    let Some((thought, asked)) = asked else {
        return not_waiting(app, asker, id).await;
    };
    let waiting = thought
        .plan
        .waiting_for(&asked.name)
        .map(|w| discreet::verdict(&thought.world, &asked.team, w))
        .map(|told| match asked.name == id.to_string() {
            true => discreet::retried(told, &Tried::of(&job)),
            false => told,
        });
    let beyond_quota = match &waiting {
        Some(waiting) if jobs::may_be_beyond(waiting.code.as_str()) => {
            beyond_quota(app, asked).await?
        }
        _ => None,
    };
    let message = match (&beyond_quota, &waiting, thought.plan.start_of(&asked.name)) {
        (Some(beyond), ..) => beyond.to_string(),
        (None, Some(waiting), _) => waiting.message.to_string(),
        (None, None, Some(_)) => "it starts with the next plan".to_owned(),
        (None, None, None) => job.message,
    };
    let accuracy = match &waiting {
        Some(waiting) => accuracy::beside(app, waiting).await?,
        None => None,
    };
    let mut waiting = waiting.map(|waiting| serde_json::to_value(waiting).unwrap_or_default());
    if let (Some(beyond), Some(waiting)) = (&beyond_quota, &mut waiting) {
        beyond.mend(waiting);
    }
    Ok(Explanation {
        job: id,
        state: job.state,
        accuracy,
        waiting,
        beyond_quota,
        ended: None,
        message,
        holders: Some(holders(&thought.world, asked)),
        elements,
        at: thought.world.now,
    })
}

/// What there is to say of a job of which the engine is not asked: while nothing is planned what it says
/// is what fails, or what is refused; and of what it does not know yet it says nothing.
async fn as_told(
    app: &App,
    job: JobRow,
    elements: Option<ElementCounts>,
) -> Result<Explanation, AppError> {
    let world = live(app).await?;
    let asked = asked_of(&world, job.id);
    Ok(Explanation {
        job: job.id,
        state: job.state,
        waiting: job.waiting,
        beyond_quota: None,
        ended: None,
        message: job.message,
        accuracy: None,
        holders: asked.map(|asked| holders(&world, asked)),
        elements,
        at: world.now,
    })
}

/// What there is to say of a job that waits for nothing.
async fn not_waiting(app: &App, asker: &Asker, id: JobId) -> Result<Explanation, AppError> {
    let job = jobs::get(app, asker, id).await?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let elements = jobs::counts(&mut tx, id).await?;
    let at = store::clock(&mut tx).await?;
    tx.commit().await?;
    let message = match (job.state, job.message.as_str()) {
        (JobState::Succeeded, _) => "its command ended well".to_owned(),
        (state, "") => format!("the job is {state}"),
        (_, message) => message.to_owned(),
    };
    Ok(Explanation {
        job: id,
        state: job.state,
        waiting: None,
        beyond_quota: None,
        message,
        ended: Ended::of(job),
        accuracy: None,
        holders: None,
        elements,
        at,
    })
}

/// The workload that tells why a job waits. Of an array, and of an element with which nothing was
/// done yet, it is the first element that waits and that nothing of its own array holds back: the
/// others ask for the same.
fn asked_of(world: &World, id: JobId) -> Option<&Workload> {
    if let Some(own) = world.workload(&id.to_string()) {
        return Some(own);
    }
    let array = id.array().unwrap_or(id);
    let of_array = |name: &str| translate::job_id(name).and_then(JobId::array) == Some(array);
    let waits = |work: &&Workload| {
        matches!(
            work.state,
            WorkloadState::Waiting | WorkloadState::Suspended
        ) && of_array(&work.name)
    };
    let waiting = world.workloads.iter().filter(waits);
    waiting.min_by_key(|work| work.after.iter().any(|name| of_array(name)))
}

/// What stands behind a wait, for a job's page.
#[derive(Debug)]
pub struct Evidence {
    /// Who holds what it could use.
    pub holders: Holders,
    /// What of its quota can never admit it.
    pub beyond_quota: Option<BeyondQuota>,
    /// How far expected starts in its pool were out of late, where one is told and such are known.
    pub accuracy: Option<Accuracy>,
}

/// What stands behind a job's wait as it is now; nothing of a job that does not wait.
pub async fn evidence(app: &App, asker: &Asker, id: JobId) -> Result<Option<Evidence>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = jobs::find(&mut tx, asker, Action::ExplainJob, id).await?;
    tx.commit().await?;
    if !matches!(job.state, JobState::Queued | JobState::Suspended) {
        return Ok(None);
    }
    let world = live(app).await?;
    let Some(work) = asked_of(&world, id) else {
        return Ok(None);
    };
    let beyond_quota = match job.reason.as_deref() {
        Some(code) if jobs::may_be_beyond(code) => beyond_quota(app, work).await?,
        _ => None,
    };
    let pool = job
        .waiting
        .as_ref()
        .filter(|_| job.expected_start().is_some())
        .and_then(|waiting| waiting["pool"].as_str());
    let accuracy = match pool {
        Some(pool) => accuracy::of_pool(app, pool).await?,
        None => None,
    };
    Ok(Some(Evidence {
        accuracy,
        holders: holders(&world, work),
        beyond_quota,
    }))
}

/// What of its quota can never admit a job, whatever else runs.
async fn beyond_quota(app: &App, work: &Workload) -> Result<Option<BeyondQuota>, AppError> {
    let week = questions::week(app).await?;
    let work = work.clone();
    let asked = move || jobs::beyond_quotas(&week, vec![work]).pop_first();
    let found = app.questions.ask("ask of a quota", asked).await?;
    Ok(found.map(|(_, beyond)| beyond))
}

/// Whether a workload may be placed on a node for what it is, however much is free there: what is free elsewhere
/// is nothing to it, and its verdict counts none of that.
fn could_be_on(node: &Node, work: &Workload) -> bool {
    let pool = work.pools.is_empty() || work.pools.contains(&node.pool);
    let bound = work.node.as_ref().is_none_or(|name| *name == node.name);
    let labels = work.selector.iter();
    let labelled = || {
        labels
            .clone()
            .all(|(key, value)| node.labels.get(key) == Some(value))
    };
    let model = work.per_worker.gpu_model.as_ref();
    pool && bound && labelled() && model.is_none_or(|model| node.gpu_model.as_ref() == Some(model))
}

fn holders(world: &World, work: &Workload) -> Holders {
    let nodes: Vec<_> = world
        .nodes
        .iter()
        .filter(|n| could_be_on(n, work) && promises::answers(n))
        .collect();
    let mut sum = Holders {
        capacity: promises::capacity(nodes.iter().copied()),
        ..Holders::default()
    };
    for other in &world.workloads {
        let here = other
            .placed
            .iter()
            .filter(|p| nodes.iter().any(|n| n.name == p.node));
        let gpus: MilliGpu = here.flat_map(|p| &p.devices).map(|d| d.gpus).sum();
        if other.team == work.team {
            sum.own_team += gpus;
        } else {
            sum.other_teams += gpus;
        }
    }
    sum.free = sum.capacity.saturating_sub(sum.own_team + sum.other_teams);
    sum
}

#[cfg(test)]
mod tests {
    use engine::rig::before;

    use super::*;

    #[test]
    fn what_is_held_and_free_is_of_the_devices_that_work_could_be_on() {
        let nodes = [
            Node::new("n1", "a", 8).label("rack", "r1"),
            Node::new("n2", "a", 4),
        ];
        let work = Workload::waiting("w", "t", 1, before(1));
        let of = |work: &Workload| {
            let on = nodes.iter().filter(|node| could_be_on(node, work));
            on.map(|node| node.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(of(&work), ["n1", "n2"]);
        let mut bound = work.clone();
        bound.node = Some("n2".to_owned());
        assert_eq!(of(&bound), ["n2"]);
        let mut labelled = work.clone();
        labelled.selector = [("rack".to_owned(), "r1".to_owned())].into();
        assert_eq!(of(&labelled), ["n1"]);
        let mut other = work;
        other.per_worker.gpu_model = Some("L40S".to_owned());
        assert_eq!(of(&other), Vec::<&str>::new());
    }
}
