//! Elastic jobs: started with fewer workers, shrunk to make room, and grown again.

use domain::ids::{AssignmentId, JobId, NodeId};
use domain::state::{AssignmentPhase, JobState};
use protocol::report::FactKind;
use serde_json::{Value, json};
use server::background;
use server::lifecycle::Actor;
use server::lifecycle::end::{Loss, Spared, lose_workers};
use server::scheduler::translate;
use server::scheduler::world::{Memory, Mirror};
use server::store::desired;
use server::store::fillings::{self, LogOf};
use sqlx::PgPool;

use super::fleet::{Fleet, told_to_end};
use super::simulated::Clock;

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

const START: [FactKind; 2] = [
    FactKind::Accepted,
    FactKind::Started {
        pid: 7,
        image_digest: None,
    },
];

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
    // The logs of both that had a rank can be told apart.
    let log = async |filling| {
        let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
        let of = LogOf {
            attempt: 1,
            worker: 7,
            filling,
        };
        let place = fillings::log_place(&mut tx, fleet.vision, job, of).await;
        place.expect("asked").map(|place| place.phase)
    };
    assert_eq!(log(Some(1)).await, Some(AssignmentPhase::Released));
    assert_eq!(log(Some(2)).await, Some(AssignmentPhase::Running));
    assert_eq!(log(None).await, Some(AssignmentPhase::Running));
    assert_eq!(log(Some(3)).await, None);
    fleet.exit(job, 0).await;
    let done = fleet.job(job).await;
    assert_eq!((done.state, done.attempt), (JobState::Succeeded, 1));
    assert_eq!(fleet.most_holders().await, 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_whose_growth_a_node_refuses_goes_on_as_it_was_and_asks_again_after_a_while(
    owner: PgPool,
) {
    let clock = Clock::at(&owner, "2026-01-05T12:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 4).await;
    let first = fleet.running(2).await;
    let job = fleet.submit_spec(elastic(1, 4)).await.expect("accepted").id;
    let mut leader = fleet.lead().await;
    leader.turn().await.expect("a turn");
    fleet.run(job).await;
    fleet.exit(first, 0).await;
    leader.turn().await.expect("a turn");
    let refused = FactKind::Refused {
        invalid: false,
        message: "no room on its disk".to_owned(),
        exit_code: None,
    };
    let (granted, stopping) = (AssignmentPhase::Granted, AssignmentPhase::Stopping);
    // Each time it waits twice as long.
    for wait_ms in [10_000, 20_000] {
        let workers = fleet.workers(job).await;
        assert_eq!(workers.len(), 4, "it grows");
        fleet.report_one(workers[3], &FactKind::Accepted).await;
        fleet.report_one(workers[2], &refused).await;
        report(&fleet, job, stopping, &[told_to_end(), FactKind::Released]).await;
        leader.turn().await.expect("a turn");
        clock.pass_ms(wait_ms - 1).await;
        leader.turn().await.expect("a turn");
        assert_eq!(fleet.workers(job).await.len(), 2, "not before {wait_ms} ms");
        assert_eq!(fleet.job(job).await.state, JobState::Running);
        // Nothing changes but the time.
        clock.pass_ms(1).await;
        leader.turn().await.expect("a turn");
    }
    report(&fleet, job, granted, &START).await;
    assert_eq!(fleet.job(job).await.placement.len(), 4);
    fleet.exit(job, 0).await;
    let done = fleet.job(job).await;
    assert_eq!((done.state, done.attempt), (JobState::Succeeded, 1));
}

/// Takes a node away with all that it had.
async fn lose(fleet: &Fleet, job: JobId, node: NodeId) {
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let loss = Loss {
        node_id: node,
        last_heartbeat_at: None,
        message: "gone".to_owned(),
        spared: Spared::Nobody,
    };
    let timers = &fleet.app.config.timers;
    lose_workers(&mut tx, timers, job, &loss, &Actor::System)
        .await
        .expect("lost");
    tx.commit().await.expect("committed");
}

/// A gang of four on two nodes of two devices; where each rank is.
async fn on_two_nodes(fleet: &Fleet, least: u32) -> (JobId, Vec<NodeId>) {
    fleet.node("n1", 2).await;
    fleet.node("n2", 2).await;
    let spec = elastic(least, 4);
    let job = fleet.submit_spec(spec).await.expect("accepted").id;
    fleet.turn().await;
    fleet.run(job).await;
    let nodes = fleet.workers(job).await.into_iter().map(|w| w.2);
    (job, nodes.collect())
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_goes_on_with_the_ranks_that_are_left_when_a_node_is_lost(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let (job, nodes) = on_two_nodes(&fleet, 2).await;
    // Rank 0 is among them: the place where the others met.
    lose(&fleet, job, nodes[0]).await;
    let (running, fenced) = (AssignmentPhase::Running, AssignmentPhase::Fenced);
    let left = [(0, fenced), (1, fenced), (2, running), (3, running)];
    assert_eq!(ranks(&fleet, job).await, left);
    let shown = fleet.job(job).await;
    assert_eq!((shown.state, shown.attempt), (JobState::Running, 1));
    let attempt = fleet.workers(job).await[0].1;
    let seats = async || {
        let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
        let seats = desired::seats(&mut tx, &[attempt]).await.expect("seats");
        seats[&attempt]
            .iter()
            .map(|seat| seat.worker)
            .collect::<Vec<_>>()
    };
    assert_eq!(seats().await, [2, 3], "who is left is told so");
    // It has no part any more in what is held there, and no move of the scheduler ends it.
    fleet.turn().await;
    assert_eq!(fleet.most_holders().await, 1);
    // The ranks that were lost are filled anew, and meet where rank 0 is now.
    report(&fleet, job, AssignmentPhase::Granted, &START).await;
    assert_eq!(seats().await, [0, 1, 2, 3]);
    assert_eq!(fleet.job(job).await.placement.len(), 4);
    let told = sqlx::query!(
        r#"SELECT master_node_id = a.node_id AS "meets!", count(*) OVER () AS "times!", e.data ->> 'rule' AS "rule!"
           FROM attempts AS t
           JOIN assignments AS a ON a.attempt_id = t.id AND a.worker = 0 AND a.phase = 'running'
           JOIN events AS e ON e.job_id = t.job_id AND e.reason = 'shrunk'"#
    )
    .fetch_one(&fleet.owner)
    .await
    .expect("one attempt");
    assert_eq!(
        (told.meets, told.times, told.rule.as_str()),
        (true, 1, "node_lost")
    );
    fleet.exit(job, 0).await;
    assert_eq!(fleet.job(job).await.state, JobState::Succeeded);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_that_would_fall_under_its_least_is_queued_again(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let (job, nodes) = on_two_nodes(&fleet, 3).await;
    lose(&fleet, job, nodes[0]).await;
    let stopping = AssignmentPhase::Stopping;
    assert_eq!(
        ranks(&fleet, job).await[2..],
        [(2, stopping), (3, stopping)]
    );
    report(&fleet, job, stopping, &[told_to_end(), FactKind::Released]).await;
    let again = fleet.job(job).await;
    assert_eq!(
        (again.state, again.reason.as_deref()),
        (JobState::Queued, Some("node_lost"))
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_goes_on_without_the_worker_whose_device_failed(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let (job, _) = on_two_nodes(&fleet, 2).await;
    sqlx::query!(
        "UPDATE devices SET health = 'failed', version = version + 1
         WHERE id = (SELECT s.device_id FROM assignment_devices AS s
                     JOIN assignments AS a ON a.id = s.assignment_id WHERE a.worker = 1)"
    )
    .execute(&fleet.owner)
    .await
    .expect("failed");
    // Twice, as two replicas would.
    for _ in 0..2 {
        let round = background::reconcile(&fleet.app, false).await;
        round.outcome().expect("reconciled");
    }
    let (running, stopping) = (AssignmentPhase::Running, AssignmentPhase::Stopping);
    let left = [(0, running), (1, stopping), (2, running), (3, running)];
    assert_eq!(ranks(&fleet, job).await, left);
    report(&fleet, job, stopping, &[told_to_end(), FactKind::Released]).await;
    let shown = fleet.job(job).await;
    assert_eq!((shown.state, shown.placement.len()), (JobState::Running, 3));
    fleet.exit(job, 0).await;
    assert_eq!(fleet.job(job).await.state, JobState::Succeeded);
}
