//! Faults: partitions, races and late words, with the database's clock in the test's hand.

use domain::state::{JobState, Reachability};
use protocol::wire;
use serde_json::json;
use server::app::idempotency::Repeat;
use server::app::jobs;
use server::app::nodes::{self, NodeWish, Reason};
use server::background;
use sqlx::PgPool;

use super::agents::{ids_of, intent, node, ready};
use super::fleet::{Fleet, told_to_end};
use super::machine::{
    self, Connection, Machine, Ports, accepted, exited, fact, killed, released, started,
};
use super::simulated::Clock;

/// The lease, and what is added to it before work is placed elsewhere: the defaults.
const LEASE_MS: i64 = 60_000;
const MARGIN_MS: i64 = 35_000;

pub struct Running {
    pub fleet: Fleet,
    pub clock: Clock,
    pub ports: Ports,
    pub machine: Machine,
    pub connection: Connection,
    pub job: domain::ids::JobId,
    pub ids: (domain::ids::AssignmentId, domain::ids::AttemptId),
}

/// A job with one GPU runs on node n1.
pub async fn running(owner: PgPool, spec: serde_json::Value) -> Running {
    let clock = Clock::at(&owner, &chrono_now(&owner).await).await;
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(1).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let job = fleet.submit_spec(spec).await.expect("accepted").id;
    fleet.turn().await;
    let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    assert_eq!(fleet.job(job).await.state, JobState::Running);
    Running {
        fleet,
        clock,
        ports,
        machine,
        connection,
        job,
        ids,
    }
}

/// The real time, at which certificates are good.
async fn chrono_now(owner: &PgPool) -> String {
    let now: domain::Timestamp = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#)
        .fetch_one(owner)
        .await
        .expect("a time");
    now.to_rfc3339()
}

/// A job that stops when its node is cut off.
pub fn stop_job() -> serde_json::Value {
    json!({ "name": "j", "command": ["train"], "per_worker": { "gpus": 1 } })
}

/// A job that goes on then.
pub fn keep_job() -> serde_json::Value {
    json!({ "name": "j", "command": ["train"], "per_worker": { "gpus": 1 }, "on_partition": "keep" })
}

impl Running {
    async fn reconcile(&self) {
        background::reconcile(&self.fleet.app, true)
            .await
            .outcome()
            .expect("reconciled");
    }

    async fn reachability(&self) -> Reachability {
        node(&self.fleet, "n1").await.reachability
    }

    async fn state(&self) -> JobState {
        self.fleet.job(self.job).await.state
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_partition_shorter_than_the_lease_changes_nothing(owner: PgPool) {
    let mut on = running(owner, stop_job()).await;
    on.clock.pass_ms(LEASE_MS - 1_000).await;
    on.reconcile().await;
    assert_eq!(on.reachability().await, Reachability::Ready);
    on.connection.beat().await;
    on.clock.pass_ms(LEASE_MS - 1_000).await;
    on.reconcile().await;
    assert_eq!(on.reachability().await, Reachability::Ready);
    assert_eq!(on.state().await, JobState::Running);
    assert_eq!(on.fleet.job(on.job).await.attempt, 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn work_that_stops_is_placed_again_after_lease_grace_and_margin_and_not_before(
    owner: PgPool,
) {
    let on = running(owner.clone(), stop_job()).await;
    on.clock.pass_ms(LEASE_MS + 1).await;
    on.reconcile().await;
    assert_eq!(on.reachability().await, Reachability::Unreachable);
    assert_eq!(on.state().await, JobState::Running);
    on.clock.pass_ms(MARGIN_MS - 2).await;
    on.reconcile().await;
    assert_eq!(
        on.reachability().await,
        Reachability::Unreachable,
        "one millisecond early"
    );
    assert_eq!(on.state().await, JobState::Running);
    on.clock.pass_ms(2).await;
    on.reconcile().await;
    assert_eq!(on.reachability().await, Reachability::Lost);
    let job = on.fleet.job(on.job).await;
    assert_eq!(job.state, JobState::Queued);
    assert_eq!(job.reason.as_deref(), Some("node_lost"));
    assert_eq!(on.fleet.most_holders().await, 0);

    // What came after the last heartbeat is the operator's charge.
    let kinds = sqlx::query!(
        r#"SELECT kind, EXTRACT(EPOCH FROM ended_at - started_at) AS "seconds!" FROM usage_segments
           ORDER BY started_at, kind DESC"#
    )
    .fetch_all(&owner)
    .await
    .expect("segments");
    let lost: Vec<_> = kinds.iter().filter(|s| s.kind == "unreachable").collect();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].seconds.normalize().to_string(), "95.001");

    // It comes back with the fenced work: it must let go of that before it takes anything.
    let mut back = on.machine.connect_holding(1, &[on.ids]).await;
    back.beat().await;
    assert_ne!(on.reachability().await, Reachability::Ready);
    assert!(back_is_told_nothing(&mut back).await);
    back.report_known(
        vec![fact(3, on.ids, exited(0)), fact(4, on.ids, released())],
        4,
    )
    .await;
    back.beat().await;
    ready(&on.fleet, "n1").await;
    on.fleet.turn().await;
    let again = ids_of(&back.wanted(wire::Want::Hold).await);
    assert_ne!(again.1, on.ids.1, "a new attempt");
    assert_eq!(on.fleet.job(on.job).await.attempt, 2);
    let late = sqlx::query_scalar!(
        r#"SELECT count(*) AS "n!" FROM events WHERE reason = 'reported_ended'"#
    )
    .fetch_one(&owner)
    .await
    .expect("a number");
    assert_eq!(late, 1);
}

/// The first, whole set lists nothing: what the node holds is not wanted.
async fn back_is_told_nothing(connection: &mut Connection) -> bool {
    let set = connection.desired().await;
    set.full && set.assignments.is_empty()
}

#[sqlx::test(migrations = "../migrations")]
async fn work_that_is_kept_waits_for_its_node(owner: PgPool) {
    let on = running(owner, keep_job()).await;
    on.clock.pass_ms(10 * LEASE_MS).await;
    on.reconcile().await;
    on.reconcile().await;
    assert_eq!(on.reachability().await, Reachability::Lost);
    assert_eq!(on.state().await, JobState::Running);
    let mut back = on.machine.connect_holding(1, &[on.ids]).await;
    back.beat().await;
    ready(&on.fleet, "n1").await;
    back.report_known(
        vec![fact(3, on.ids, exited(0)), fact(4, on.ids, released())],
        4,
    )
    .await;
    let job = on.fleet.job(on.job).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1));
}

#[sqlx::test(migrations = "../migrations")]
async fn work_that_is_kept_is_not_placed_again_because_somebody_stops_it(owner: PgPool) {
    let on = running(owner, keep_job()).await;
    on.clock.pass_ms(10 * LEASE_MS).await;
    on.reconcile().await;
    jobs::suspend(&on.fleet.app, &on.fleet.ada(), Repeat::none(), on.job)
        .await
        .expect("accepted");
    on.reconcile().await;
    assert_eq!(on.reachability().await, Reachability::Lost);
    assert_eq!(on.fleet.most_holders().await, 1, "it may still run there");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_person_may_declare_a_silent_node_dead_and_only_a_silent_one(owner: PgPool) {
    let on = running(owner, keep_job()).await;
    let declare = async || {
        nodes::declare_lost(
            &on.fleet.app,
            &on.fleet.root(),
            Repeat::none(),
            &"n1".parse().expect("a name"),
            Reason::default(),
        )
        .await
    };
    assert!(declare().await.is_err(), "it answers");
    on.clock.pass_ms(LEASE_MS + 1).await;
    on.reconcile().await;
    let node = declare().await.expect("declared").value;
    assert_eq!(node.reachability, Reachability::Lost);
    let job = on.fleet.job(on.job).await;
    assert_eq!(job.state, JobState::Queued);
    assert!(
        job.message.contains("declared dead by root"),
        "{}",
        job.message
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_cancel_ends_also_on_a_lost_node(owner: PgPool) {
    let on = running(owner, keep_job()).await;
    on.clock.pass_ms(10 * LEASE_MS).await;
    on.reconcile().await;
    on.reconcile().await;
    jobs::cancel(&on.fleet.app, &on.fleet.ada(), Repeat::none(), on.job)
        .await
        .expect("accepted");
    on.reconcile().await;
    assert_eq!(on.state().await, JobState::Cancelled);
    assert_eq!(on.fleet.most_holders().await, 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn an_end_that_was_on_its_way_beats_the_time_limit_and_a_cancel_stands(owner: PgPool) {
    let mut on = running(
        owner,
        json!({ "name": "j", "command": ["train"], "per_worker": { "gpus": 1 }, "time_limit_seconds": 600 }),
    )
    .await;
    // It ends well by itself while the stop is on its way: it is done.
    on.clock.pass_ms(30_000).await;
    on.connection.beat().await;
    on.clock.pass_ms(570_000).await;
    background::reconcile(&on.fleet.app, false)
        .await
        .outcome()
        .expect("reconciled");
    let stop = on.connection.wanted(wire::Want::Stop).await;
    assert_eq!(stop.stop_reason, "time_limit");
    on.connection
        .report_known(
            vec![fact(3, on.ids, exited(0)), fact(4, on.ids, released())],
            4,
        )
        .await;
    assert_eq!(on.state().await, JobState::Succeeded);

    // A cancel that was accepted stands, whatever the process did meanwhile.
    let job = on.fleet.submit(1).await.id;
    on.fleet.turn().await;
    on.fleet.run(job).await;
    jobs::cancel(&on.fleet.app, &on.fleet.ada(), Repeat::none(), job)
        .await
        .expect("accepted");
    on.fleet.exit(job, 0).await;
    assert_eq!(on.fleet.job(job).await.state, JobState::Cancelled);
    drop(on.ports);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_fails_once_its_retries_are_used_up(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-05T09:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let spec = json!({ "name": "j", "command": ["train"], "per_worker": { "gpus": 1 },
                       "retries": { "limit": 2, "on": ["failure"] } });
    let job = fleet.submit_spec(spec).await.expect("accepted").id;
    for (attempt, then) in [
        (1, JobState::Queued),
        (2, JobState::Queued),
        (3, JobState::Failed),
    ] {
        fleet.turn().await;
        fleet.run(job).await;
        fleet.exit(job, 3).await;
        let told = fleet.job(job).await;
        assert_eq!((told.attempt, told.state), (attempt, then));
        assert_eq!(told.exit_code, Some(3));
        // Longer than any back-off.
        clock.pass_ms(3_600_000).await;
    }
    fleet.turn().await;
    assert_eq!(fleet.job(job).await.state, JobState::Failed);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_time_limit_ends_what_runs_into_it(owner: PgPool) {
    let mut on = running(
        owner,
        json!({ "name": "j", "command": ["train"], "per_worker": { "gpus": 1 }, "time_limit_seconds": 600,
                "retries": { "limit": 1, "on": ["time_limit"] } }),
    )
    .await;
    on.clock.pass_ms(599_999).await;
    background::reconcile(&on.fleet.app, false)
        .await
        .outcome()
        .expect("reconciled");
    assert_eq!(on.state().await, JobState::Running);
    on.clock.pass_ms(1).await;
    background::reconcile(&on.fleet.app, false)
        .await
        .outcome()
        .expect("reconciled");
    on.connection.wanted(wire::Want::Stop).await;
    on.connection
        .report_known(
            vec![fact(3, on.ids, killed()), fact(4, on.ids, released())],
            4,
        )
        .await;
    let job = on.fleet.job(on.job).await;
    assert_eq!(job.state, JobState::Queued, "its one retry");
    assert_eq!(job.reason.as_deref(), Some("time_limit"));
    on.fleet.turn().await;
    assert_eq!(
        on.state().await,
        JobState::Queued,
        "not before its back-off is over"
    );
    on.clock.pass_ms(10_000).await;
    on.connection.beat().await;
    on.fleet.turn().await;
    assert_eq!(on.state().await, JobState::Starting);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_that_one_node_does_not_take_in_time_is_taken_back_whole(owner: PgPool) {
    let clock = Clock::at(&owner, &chrono_now(&owner).await).await;
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    fleet.node("n2", 1).await;
    let job = fleet
        .submit_spec(
            json!({ "name": "g", "command": ["x"], "workers": 2, "per_worker": { "gpus": 1 } }),
        )
        .await
        .expect("accepted")
        .id;
    fleet.turn().await;
    let workers = fleet.workers(job).await;
    fleet
        .report_one(workers[0], &protocol::report::FactKind::Accepted)
        .await;
    clock.pass_ms(59_999).await;
    background::reconcile(&fleet.app, false)
        .await
        .outcome()
        .expect("reconciled");
    assert_eq!(fleet.job(job).await.state, JobState::Starting);
    clock.pass_ms(1).await;
    background::reconcile(&fleet.app, false)
        .await
        .outcome()
        .expect("reconciled");
    for worker in workers {
        fleet
            .report_one(worker, &protocol::report::FactKind::Released)
            .await;
    }
    let job = fleet.job(job).await;
    assert_eq!(job.state, JobState::Queued);
    assert_eq!(job.reason.as_deref(), Some("start_refused"));
    assert!(job.message.contains("n2"), "{}", job.message);
    assert_eq!(fleet.most_holders().await, 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_command_that_is_not_there_ends_with_the_code_of_a_shell(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let job = fleet.submit(1).await.id;
    fleet.turn().await;
    let refusal = protocol::report::FactKind::Refused {
        invalid: true,
        message: "command not found: train".to_owned(),
        exit_code: Some(127),
    };
    fleet
        .report(job, &[refusal, protocol::report::FactKind::Released])
        .await;
    let job = fleet.job(job).await;
    assert_eq!(job.state, JobState::Failed);
    assert_eq!(job.reason.as_deref(), Some("invalid"));
    assert_eq!(job.exit_code, Some(127));
}

#[sqlx::test(migrations = "../migrations")]
async fn work_that_nodes_keep_refusing_fails_after_five_requeues(owner: PgPool) {
    let clock = Clock::at(&owner, &chrono_now(&owner).await).await;
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let job = fleet.submit(1).await.id;
    let refusal = protocol::report::FactKind::Refused {
        invalid: false,
        message: "no room on the disk".to_owned(),
        exit_code: None,
    };
    for requeue in 0..=5 {
        assert_eq!(
            fleet.job(job).await.state,
            JobState::Queued,
            "requeue {requeue}"
        );
        clock.pass_ms(600_000).await;
        fleet.turn().await;
        fleet.report(job, std::slice::from_ref(&refusal)).await;
    }
    let failed = fleet.job(job).await;
    assert_eq!(failed.state, JobState::Failed);
    assert!(
        failed.message.contains("no room on the disk"),
        "{}",
        failed.message
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_drained_node_loses_preemptible_work_and_keeps_other(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 2).await;
    let one = fleet.submit(1).await.id;
    let two = fleet
        .submit_spec(json!({ "name": "j", "class": "training-high", "command": ["x"], "per_worker": { "gpus": 1 } }))
        .await
        .expect("accepted")
        .id;
    fleet.turn().await;
    for job in [one, two] {
        fleet.run(job).await;
    }
    intent(&fleet, "n1", NodeWish::Drain).await;
    background::reconcile(&fleet.app, false)
        .await
        .outcome()
        .expect("reconciled");
    assert_eq!(fleet.job(one).await.state, JobState::Preempting);
    assert_eq!(fleet.job(two).await.state, JobState::Running);
    fleet
        .report(one, &[told_to_end(), protocol::report::FactKind::Released])
        .await;
    assert_eq!(fleet.job(one).await.state, JobState::Queued);
    let rule = sqlx::query_scalar!("SELECT rule FROM evictions")
        .fetch_one(&owner)
        .await
        .expect("one eviction");
    assert_eq!(rule, "drain");
}
