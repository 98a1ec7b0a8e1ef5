//! Words that cross on their way: what nodes report while people and plans decide otherwise.

use std::collections::BTreeMap;

use domain::ids::JobId;
use domain::state::{JobState, NodeIntent};
use protocol::report::FactKind;
use serde_json::json;
use server::app::idempotency::Repeat;
use server::app::jobs;
use server::lifecycle::{self, Actor};
use server::scheduler::world::{Memory, Mirror};
use server::scheduler::{self, Turn, translate};
use server::store;
use sqlx::PgPool;

use super::fleet::{Fleet, exited};
use super::machine::eventually;

/// A job that runs on the one GPU of the one node.
async fn running(fleet: &Fleet) -> JobId {
    fleet.node("n1", 1).await;
    fleet.running(1).await
}

async fn suspend(fleet: &Fleet, job: JobId) {
    jobs::suspend(&fleet.app, &fleet.ada(), Repeat::none(), job)
        .await
        .expect("suspended");
}

async fn resume(fleet: &Fleet, job: JobId) {
    jobs::resume(&fleet.app, &fleet.ada(), Repeat::none(), job)
        .await
        .expect("resumed");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_ends_well_while_it_is_suspended_and_resumed_has_succeeded(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let job = running(&fleet).await;
    suspend(&fleet, job).await;
    resume(&fleet, job).await;
    assert_eq!(fleet.job(job).await.state, JobState::Queued);
    // Its process had ended by itself before the stop reached it.
    fleet.exit(job, 0).await;
    fleet.turn().await;
    let done = fleet.job(job).await;
    assert_eq!(
        (done.state, done.attempt, done.exit_code),
        (JobState::Succeeded, 1, Some(0))
    );
    assert!(done.started_at.is_some() && done.finished_at.is_some());
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_is_stopped_by_its_suspension_and_resumed_runs_again(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let job = running(&fleet).await;
    suspend(&fleet, job).await;
    resume(&fleet, job).await;
    fleet.turn().await;
    assert_eq!(
        fleet.job(job).await.attempt,
        1,
        "the first run still leaves"
    );
    fleet.exit(job, 1).await;
    fleet.turn().await;
    let again = fleet.job(job).await;
    assert_eq!((again.state, again.attempt), (JobState::Starting, 2));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_was_resumed_and_cancelled_stays_cancelled_however_its_run_ends(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    for code in [0, 1] {
        let job = fleet.running(1).await;
        suspend(&fleet, job).await;
        resume(&fleet, job).await;
        fleet.cancel(job).await;
        fleet.exit(job, code).await;
        assert_eq!(fleet.job(job).await.state, JobState::Cancelled);
        assert_eq!(fleet.most_holders().await, 0, "its device is free");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_plan_starts_nothing_on_a_node_that_is_being_cordoned(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let node = fleet.node("n1", 1).await;
    let job = fleet.submit(1).await.id;
    let epoch = scheduler::take_over(&fleet.app).await.expect("the lead");
    let mirror = Mirror::load(&fleet.app.db).await.expect("the world");
    let plan = engine::plan(&translate::world(
        &mirror.records,
        mirror.now,
        &Memory::default(),
    ));
    assert_eq!(plan.starts.len(), 1);

    let mut cordon = fleet.app.db.begin_system().await.expect("a transaction");
    let row = store::nodes::lock(&mut cordon, node)
        .await
        .expect("a row")
        .expect("a node");
    lifecycle::nodes::set_intent(&mut cordon, &row, NodeIntent::Cordoned, "", &Actor::System)
        .await
        .expect("a step");
    let app = fleet.app.clone();
    let commit = tokio::spawn(async move {
        scheduler::commit(&app, epoch, &mirror, &plan, &BTreeMap::new()).await
    });
    eventually("the commit waits for the cordon", async || {
        waiting_for_locks(&fleet.owner).await > 0
    })
    .await;
    cordon.commit().await.expect("committed");
    let outcome = commit.await.expect("it ends").expect("answered");
    assert_eq!((outcome.committed, outcome.refused.len()), (0, 1));
    assert_eq!(fleet.job(job).await.state, JobState::Queued);
}

/// How many transactions of this database wait for another one.
async fn waiting_for_locks(owner: &PgPool) -> i64 {
    sqlx::query_scalar!(
        r#"SELECT count(*) AS "n!" FROM pg_locks AS l
           JOIN pg_stat_activity AS a ON a.pid = l.pid
           WHERE NOT l.granted AND a.datname = current_database()"#
    )
    .fetch_one(owner)
    .await
    .expect("a number")
}

#[sqlx::test(migrations = "../migrations")]
async fn a_loop_whose_every_plan_is_refused_is_not_done_until_the_world_is_right_again(
    owner: PgPool,
) {
    let fleet = Fleet::with_policy(owner, json!({ "sharing": ["exclusive", "time_slice"] })).await;
    fleet.node("n1", 1).await;
    let spec = json!({ "name": "f", "command": ["true"], "per_worker": { "gpus": 0.25, "sharing": ["time_slice"] } });
    let (one, two) = (
        fleet.submit_spec(spec.clone()).await.expect("accepted").id,
        fleet.submit_spec(spec.clone()).await.expect("accepted").id,
    );
    fleet.turn().await;
    for job in [one, two] {
        fleet.run(job).await;
    }
    // Two that would join on a device that is in two modes at once: neither alone is to blame.
    let waits = fleet.submit_spec(spec.clone()).await.expect("accepted").id;
    fleet.submit_spec(spec).await.expect("accepted");
    mode_of(&fleet, two, "mps").await;
    let mut leader = fleet.lead().await;
    for turn in 0..3 {
        let turned = leader.turn().await.expect("a turn");
        assert_ne!(turned, Turn::Done, "turn {turn}");
    }
    assert_eq!(fleet.job(waits).await.reason, None, "nothing was committed");
    mode_of(&fleet, two, "time_slice").await;
    let mut leader = fleet.lead().await;
    assert_eq!(leader.turn().await.expect("a turn"), Turn::Done);
    assert_ne!(fleet.job(waits).await.state, JobState::Queued);
}

async fn mode_of(fleet: &Fleet, job: JobId, mode: &str) {
    sqlx::query!(
        "UPDATE assignment_devices SET mode = $2
         WHERE assignment_id IN (SELECT id FROM assignments WHERE job_id = $1)",
        job as JobId,
        mode
    )
    .execute(&fleet.owner)
    .await
    .expect("changed");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_stop_that_crosses_a_refusal_ends_the_attempt(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let job = fleet.cancelled_on_its_way().await;
    let refused = FactKind::Refused {
        invalid: false,
        message: "no room on the disk".to_owned(),
        exit_code: None,
    };
    fleet.report(job, &[refused, exited(0)]).await;
    assert_eq!(fleet.job(job).await.state, JobState::Cancelled);
    assert_eq!(fleet.most_holders().await, 0);
}
