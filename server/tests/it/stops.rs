//! Two causes to stop that meet in one job: which of them it ends by, whichever came first.

use domain::ids::JobId;
use domain::state::{AttemptEnd, JobState};
use protocol::report::FactKind;
use serde_json::json;
use server::app::idempotency::Repeat;
use server::app::{AppError, RefusalCode, jobs};
use server::lifecycle::end::{Loss, Spared, lose_workers};
use server::lifecycle::{self, Actor, Stop};
use server::store;
use sqlx::PgPool;

use super::fleet::{Fleet, exited, told_to_end};

/// What stops a job of two workers that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Cancel,
    Suspend,
    Preempt,
    TimeLimit,
    Failure,
    NodeLost,
}

use Cause::{Cancel, Failure, NodeLost, Preempt, Suspend, TimeLimit};

/// First cause, second cause; state, reason and message of the job once all its workers have left.
type Row = (Cause, Cause, JobState, &'static str, &'static str);

const CANCELLED: (JobState, &str, &str) = (JobState::Cancelled, "cancelled", "cancelled by ada");
const SUSPENDED: (JobState, &str, &str) = (JobState::Suspended, "suspended", "suspended by ada");
const OVER: (JobState, &str, &str) = (JobState::Failed, "time_limit", "over its time");
const FAILED: (JobState, &str, &str) = (JobState::Failed, "exit", "worker 0 exited with code 3");
const PREEMPTED: (JobState, &str, &str) = (JobState::Queued, "preempted", "for a test");
const LOST: (JobState, &str, &str) = (JobState::Queued, "node_lost", "gone");

/// A cancel always ends the job and says so. A suspension holds it, but for what had failed
/// already. Between all others the first one counts.
fn table() -> Vec<Row> {
    let all = [Cancel, Suspend, Preempt, TimeLimit, Failure, NodeLost];
    let mut rows = Vec::new();
    let mut put = |first, second, (state, reason, message)| {
        rows.push((first, second, state, reason, message));
    };
    for other in all {
        if other != Cancel {
            put(Cancel, other, CANCELLED);
            put(other, Cancel, CANCELLED);
        }
    }
    for (first, second, end) in [
        (Suspend, Preempt, SUSPENDED),
        (Suspend, TimeLimit, SUSPENDED),
        (Suspend, Failure, SUSPENDED),
        (Suspend, NodeLost, SUSPENDED),
        (Preempt, Suspend, SUSPENDED),
        (TimeLimit, Suspend, OVER),
        (Failure, Suspend, FAILED),
        (NodeLost, Suspend, SUSPENDED),
        (Preempt, TimeLimit, PREEMPTED),
        (Preempt, Failure, PREEMPTED),
        (Preempt, NodeLost, PREEMPTED),
        (TimeLimit, Preempt, OVER),
        (Failure, Preempt, FAILED),
        (NodeLost, Preempt, LOST),
        (TimeLimit, Failure, OVER),
        (Failure, TimeLimit, FAILED),
        (TimeLimit, NodeLost, OVER),
        (NodeLost, TimeLimit, LOST),
        (Failure, NodeLost, FAILED),
        (NodeLost, Failure, LOST),
    ] {
        put(first, second, end);
    }
    rows
}

#[sqlx::test(migrations = "../migrations")]
async fn of_two_causes_to_stop_a_job_ends_by_the_one_that_counts(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    fleet.node("n2", 1).await;
    let rows = table();
    assert_eq!(rows.len(), 30, "every pair in both orders");
    let mut wrong = Vec::new();
    for (first, second, state, reason, message) in rows {
        let job = gang(&fleet).await;
        for cause in [first, second] {
            strike(&fleet, job, cause).await;
        }
        leave(&fleet, job).await;
        let found = fleet.job(job).await;
        let ended = (found.state, found.reason.as_deref().unwrap_or_default());
        if ended != (state, reason) || !found.message.contains(message) {
            let told = (ended, &found.message);
            wrong.push(format!("{first:?} then {second:?}: {told:?}"));
        }
        assert_eq!(fleet.most_holders().await, 0, "{first:?} then {second:?}");
        if !found.state.terminal() {
            strike(&fleet, job, Cancel).await;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_events_of_a_gangs_stop_say_of_which_worker_each_is(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 2).await;
    let job = gang(&fleet).await;
    strike(&fleet, job, TimeLimit).await;
    let told: Vec<serde_json::Value> = sqlx::query_scalar(
        "SELECT data FROM events WHERE job_id = $1 AND subject = 'assignment' AND to_state = 'stopping'",
    )
    .bind(job)
    .fetch_all(&fleet.owner)
    .await
    .expect("events");
    let mut workers: Vec<_> = told.iter().map(|data| data["worker"].as_i64()).collect();
    workers.sort_unstable();
    assert_eq!(workers, [Some(0), Some(1)]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_cancel_of_what_has_ended_is_answered_with_how_it_ended(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    for (code, state) in [(0, JobState::Succeeded), (1, JobState::Failed)] {
        let job = fleet.running(1).await;
        fleet.exit(job, code).await;
        let answer = jobs::cancel(&fleet.app, &fleet.ada(), Repeat::none(), job).await;
        assert_eq!(answer.expect("accepted").value.state, state);
        assert_eq!(fleet.job(job).await.state, state);
    }
    let job = fleet.submit(1).await.id;
    for _ in 0..2 {
        let answer = jobs::cancel(&fleet.app, &fleet.ada(), Repeat::none(), job).await;
        assert_eq!(answer.expect("accepted").value.state, JobState::Cancelled);
    }
}

async fn gang(fleet: &Fleet) -> JobId {
    let spec = json!({ "name": "g", "command": ["x"], "workers": 2, "per_worker": { "gpus": 1 } });
    let job = fleet.submit_spec(spec).await.expect("accepted").id;
    fleet.turn().await;
    fleet.run(job).await;
    job
}

async fn strike(fleet: &Fleet, job: JobId, cause: Cause) {
    match cause {
        Cancel => {
            fleet.cancel(job).await;
        }
        Suspend => {
            let answer = jobs::suspend(&fleet.app, &fleet.ada(), Repeat::none(), job).await;
            let cancelled = matches!(
                answer,
                Err(AppError::Conflict {
                    code: RefusalCode::BeingCancelled,
                    ..
                })
            );
            assert!(answer.is_ok() || cancelled, "{answer:?}");
        }
        // Policy looks only at what nobody stops yet.
        Preempt => {
            let wish = Stop::because(AttemptEnd::Preempted, "for a test");
            stop(fleet, job, wish, Some(JobState::Preempting)).await;
        }
        TimeLimit => {
            let wish = Stop::because(AttemptEnd::TimeLimit, "over its time");
            stop(fleet, job, wish, None).await;
        }
        Failure => {
            let first = fleet.workers(job).await[0];
            fleet.report_one(first, &exited(3)).await;
        }
        NodeLost => lose(fleet, job).await,
    }
}

async fn stop(fleet: &Fleet, job: JobId, wish: Stop, to: Option<JobState>) {
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let mut row = store::jobs::lock(&mut tx, job)
        .await
        .expect("a row")
        .expect("a job");
    let job_to = to.filter(|_| row.state == JobState::Running);
    let wish = Stop { job_to, ..wish };
    lifecycle::stop(&mut tx, &mut row, &wish, &Actor::System)
        .await
        .expect("stopped");
    tx.commit().await.expect("committed");
}

/// The node of the first worker is gone.
async fn lose(fleet: &Fleet, job: JobId) {
    let (_, _, node) = fleet.workers(job).await[0];
    let loss = Loss {
        node_id: node,
        last_heartbeat_at: None,
        message: "gone".to_owned(),
        spared: Spared::Nobody,
    };
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let timers = &fleet.app.config.timers;
    lose_workers(&mut tx, timers, job, &loss, &Actor::System)
        .await
        .expect("lost");
    tx.commit().await.expect("committed");
}

/// Whoever is still there ends as it is told to.
async fn leave(fleet: &Fleet, job: JobId) {
    for worker in fleet.workers(job).await {
        for fact in [told_to_end(), FactKind::Released] {
            fleet.report_one(worker, &fact).await;
        }
    }
}
