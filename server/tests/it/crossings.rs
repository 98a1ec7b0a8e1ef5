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
use server::scheduler::{self, translate};
use server::store;
use sqlx::PgPool;

use super::fleet::{Fleet, exited, told_to_end};
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
    lifecycle::nodes::set_intent(
        &mut cordon,
        &row,
        server::store::nodes::Wanted::plain(NodeIntent::Cordoned, ""),
        &Actor::System,
    )
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

/// F14, with the refusal in each phase.
#[sqlx::test(migrations = "../migrations")]
async fn a_gang_of_which_one_node_refuses_lets_all_go_and_is_queued_whole(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    for node in ["n1", "n2", "n3", "n4"] {
        fleet.node(node, 1).await;
    }
    let started = FactKind::Started {
        pid: 7,
        image_digest: None,
    };
    let phases = [
        (vec![], vec![]),
        (vec![FactKind::Accepted], vec![]),
        (vec![FactKind::Accepted], vec![FactKind::Accepted]),
        (vec![FactKind::Accepted, started], vec![FactKind::Accepted]),
    ];
    for (others, before) in phases {
        let gang =
            json!({ "name": "g", "command": ["x"], "workers": 4, "per_worker": { "gpus": 1 } });
        let job = fleet.submit_spec(gang).await.expect("accepted").id;
        fleet.turn().await;
        let mut workers = fleet.workers(job).await;
        assert_eq!(workers.len(), 4);
        let lost = workers.pop().expect("one of four");
        for worker in &workers {
            for kind in &others {
                fleet.report_one(*worker, kind).await;
            }
        }
        let refused = FactKind::Refused {
            invalid: false,
            message: "its device is gone".to_owned(),
            exit_code: None,
        };
        for kind in before.iter().chain([&refused]) {
            fleet.report_one(lost, kind).await;
        }
        let asked = sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM attempts WHERE job_id = $1 AND stop_asked_at IS NOT NULL"#,
            job as JobId
        )
        .fetch_one(&owner)
        .await
        .expect("a count");
        assert_eq!(asked, 1, "the others are told to stop: {others:?}");
        for worker in workers {
            if others.len() > 1 {
                fleet.report_one(worker, &told_to_end()).await;
            }
            fleet.report_one(worker, &FactKind::Released).await;
        }
        if !before.is_empty() {
            // Who had taken it on lets it go as the others do.
            fleet.report_one(lost, &FactKind::Released).await;
        }
        let told = fleet.job(job).await;
        assert_eq!(told.state, JobState::Queued, "{others:?} {before:?}");
        assert_eq!(told.reason.as_deref(), Some("start_refused"));
        assert_eq!(fleet.most_holders().await, 0);
        let requeues = sqlx::query_scalar!("SELECT requeues FROM jobs WHERE id = $1", job as JobId)
            .fetch_one(&owner)
            .await
            .expect("a number");
        assert_eq!(requeues, 1, "counted once");
        fleet.cancel(job).await;
    }
}
