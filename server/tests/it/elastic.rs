//! Elastic jobs: started with fewer workers, shrunk to make room, and grown again.

use domain::ids::{AssignmentId, JobId};
use domain::state::{AssignmentPhase, JobState};
use protocol::report::FactKind;
use serde_json::{Value, json};
use server::scheduler::translate;
use server::scheduler::world::{Memory, Mirror};
use sqlx::PgPool;

use super::fleet::{Fleet, told_to_end};

fn elastic(least: u32, most: u32) -> Value {
    json!({
        "name": "e", "command": ["true"], "workers": most, "min_workers": least, "per_worker": { "gpus": 1 },
    })
}

/// The ranks of a job with their phases, by rank and time.
async fn ranks(fleet: &Fleet, job: JobId) -> Vec<(i32, AssignmentPhase)> {
    sqlx::query!(
        r#"SELECT worker, phase AS "phase: AssignmentPhase" FROM assignments WHERE job_id = $1 ORDER BY worker, id"#,
        job as JobId
    )
    .fetch_all(&fleet.owner)
    .await
    .expect("workers")
    .into_iter()
    .map(|row| (row.worker, row.phase))
    .collect()
}

/// The workers of a job in a phase report these, one after the other.
async fn report(fleet: &Fleet, job: JobId, phase: AssignmentPhase, kinds: &[FactKind]) {
    let there: Vec<AssignmentId> = sqlx::query_scalar!(
        r#"SELECT id AS "id: AssignmentId" FROM assignments WHERE job_id = $1 AND phase = $2 ORDER BY worker"#,
        job as JobId,
        phase as AssignmentPhase
    )
    .fetch_all(&fleet.owner)
    .await
    .expect("workers");
    for worker in fleet.workers(job).await {
        if there.contains(&worker.0) {
            for kind in kinds {
                fleet.report_one(worker, kind).await;
            }
        }
    }
}

const START: [FactKind; 2] = [FactKind::Accepted, FactKind::Started { pid: 7 }];

#[sqlx::test(migrations = "../migrations")]
async fn an_elastic_job_starts_with_what_there_is_and_grows_when_there_is_more(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 4).await;
    let first = fleet.running(3).await;
    let job = fleet.submit_spec(elastic(1, 4)).await.expect("accepted").id;
    fleet.turn().await;
    fleet.run(job).await;
    assert_eq!(ranks(&fleet, job).await, [(0, AssignmentPhase::Running)]);
    fleet.exit(first, 0).await;
    fleet.turn().await;
    let granted = AssignmentPhase::Granted;
    assert_eq!(
        ranks(&fleet, job).await,
        [
            (0, AssignmentPhase::Running),
            (1, granted),
            (2, granted),
            (3, granted)
        ]
    );
    report(&fleet, job, granted, &START).await;
    let grown = fleet.job(job).await;
    assert_eq!((grown.state, grown.attempt), (JobState::Running, 1));
    assert_eq!(grown.placement.len(), 4);
    let charged = sqlx::query_scalar!(
        r#"SELECT count(*) AS "n!" FROM usage_segments AS s JOIN assignments AS a ON a.id = s.assignment_id
           WHERE a.job_id = $1 AND s.kind = 'charged' AND s.ended_at IS NULL"#,
        job as JobId
    )
    .fetch_one(&fleet.owner)
    .await
    .expect("a number");
    assert_eq!(charged, 4, "each rank has its own meter");
    fleet.exit(job, 0).await;
    assert_eq!(fleet.job(job).await.state, JobState::Succeeded);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_is_shrunk_to_make_room_and_what_leaves_it_counts_for_nothing(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let job = fleet.submit_spec(elastic(2, 8)).await.expect("accepted").id;
    fleet.turn().await;
    fleet.run(job).await;
    let spec = json!({ "name": "s", "command": ["true"], "per_worker": { "gpus": 3 } });
    let bob = fleet.bob();
    let other = fleet
        .submit_as(&bob, "speech", spec)
        .await
        .expect("accepted")
        .id;
    fleet.turn().await;
    let shrunk = fleet.job(job).await;
    assert_eq!(
        (shrunk.state, shrunk.placement.len()),
        (JobState::Running, 5)
    );
    let stopping = AssignmentPhase::Stopping;
    let last: Vec<_> = ranks(&fleet, job).await.split_off(5);
    assert_eq!(last, [(5, stopping), (6, stopping), (7, stopping)]);
    // While they leave nothing grows, and what they hold is not given out.
    fleet.turn().await;
    assert_eq!(fleet.job(other).await.state, JobState::Queued);
    assert_eq!(ranks(&fleet, job).await.len(), 8);
    report(&fleet, job, stopping, &[told_to_end(), FactKind::Released]).await;
    fleet.turn().await;
    assert_eq!(fleet.job(other).await.state, JobState::Starting);
    let mirror = Mirror::load(&fleet.app.db).await.expect("the world");
    let world = translate::world(&mirror.records, mirror.now, &Memory::default());
    let work = world.workload(&job.to_string()).expect("it runs");
    assert_eq!(
        (
            work.placed.len(),
            work.workers,
            work.min_workers,
            work.preemptions_today
        ),
        (5, 8, Some(2), 1)
    );
    // The ranks that it gave up are filled anew when there is room again.
    fleet.run(other).await;
    fleet.exit(other, 0).await;
    fleet.turn().await;
    report(&fleet, job, AssignmentPhase::Granted, &START).await;
    assert_eq!(fleet.job(job).await.placement.len(), 8);
    assert_eq!(ranks(&fleet, job).await.len(), 11);
    fleet.exit(job, 0).await;
    let done = fleet.job(job).await;
    assert_eq!((done.state, done.attempt), (JobState::Succeeded, 1));
    assert_eq!(fleet.most_holders().await, 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_whose_growth_a_node_refuses_goes_on_as_it_was_and_does_not_ask_again(
    owner: PgPool,
) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 4).await;
    let first = fleet.running(2).await;
    let job = fleet.submit_spec(elastic(1, 4)).await.expect("accepted").id;
    fleet.turn().await;
    fleet.run(job).await;
    fleet.exit(first, 0).await;
    fleet.turn().await;
    let refused = FactKind::Refused {
        invalid: false,
        message: "no room on its disk".to_owned(),
        exit_code: None,
    };
    let workers = fleet.workers(job).await;
    fleet.report_one(workers[3], &FactKind::Accepted).await;
    fleet.report_one(workers[2], &refused).await;
    let stopping = AssignmentPhase::Stopping;
    report(&fleet, job, stopping, &[told_to_end(), FactKind::Released]).await;
    fleet.turn().await;
    let released = AssignmentPhase::Released;
    let running = AssignmentPhase::Running;
    assert_eq!(
        ranks(&fleet, job).await,
        [(0, running), (1, running), (2, released), (3, released)]
    );
    assert_eq!(fleet.job(job).await.state, JobState::Running);
    fleet.exit(job, 0).await;
    assert_eq!(fleet.job(job).await.state, JobState::Succeeded);
}
