//! What a node has, and has yet to say, as its connection begins: what it lost is ended after it was
//! heard, and never run twice.

use domain::ids::IncarnationId;
use domain::state::JobState;
use protocol::wire;
use serde_json::json;
use sqlx::PgPool;
use tonic::Code;

use super::agents::{ids_of, ready};
use super::faults::{running, stop_job};
use super::fleet::Fleet;
use super::machine::{
    self, Machine, PATIENCE, SILENCE, accepted, exited, fact, refused, released, started, unseen,
};

#[sqlx::test(migrations = "../migrations")]
async fn an_end_that_the_journal_kept_over_a_restart_of_the_machine_stands(owner: PgPool) {
    let mut on = running(owner.clone(), stop_job()).await;
    drop(on.connection);
    on.clock.pass_ms(20_000).await;
    on.machine.boot = "boot-2".into();
    let mut back = on.machine.connect_with(1, &[], (3, 5)).await;
    back.beat().await;
    let early = tokio::time::timeout(SILENCE, back.desired()).await;
    assert!(early.is_err(), "it is told nothing before it was heard");
    back.report_known(
        vec![fact(3, on.ids, exited(0)), fact(4, on.ids, released())],
        4,
    )
    .await;
    assert!(back.desired().await.full);
    let job = on.fleet.job(on.job).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1));
    ready(&on.fleet, "n1").await;
    // What came after the last heartbeat is the operator's charge all the same.
    let silent = sqlx::query_scalar!(
        r#"SELECT EXTRACT(EPOCH FROM ended_at - started_at) AS "seconds!" FROM usage_segments
           WHERE kind = 'unreachable'"#
    )
    .fetch_all(&owner)
    .await
    .expect("segments");
    let silent = silent.iter().map(|s| s.normalize().to_string());
    let silent: Vec<String> = silent.filter(|seconds| seconds != "0").collect();
    assert_eq!(silent, ["20"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_a_restart_lost_is_ended_also_when_the_first_connection_after_it_broke(owner: PgPool) {
    let mut on = running(owner, stop_job()).await;
    on.machine.boot = "boot-2".into();
    let mut broken = on.machine.connect_with(1, &[], (3, 5)).await;
    broken.beat().await;
    drop(broken);
    assert_eq!(on.fleet.job(on.job).await.state, JobState::Running);
    let mut back = on.machine.connect_with(1, &[], (3, 3)).await;
    back.beat().await;
    machine::eventually("the job is queued again", async || {
        on.fleet.job(on.job).await.state == JobState::Queued
    })
    .await;
    assert_eq!(on.fleet.job(on.job).await.message, "node n1 was restarted");
}

#[sqlx::test(migrations = "../migrations")]
async fn work_that_ended_while_no_agent_ran_is_charged_up_to_the_last_heartbeat(owner: PgPool) {
    let mut on = running(owner.clone(), stop_job()).await;
    on.clock.pass_ms(30_000).await;
    on.connection.beat().await;
    drop(on.connection);
    on.clock.pass_ms(600_000).await;
    // A new life of the agent on the same boot; its first connection breaks after it has beaten.
    let life = IncarnationId::new();
    let connect = async || on.machine.connect_as(life, 1, &[on.ids], (3, 5)).await;
    connect().await.beat().await;
    on.clock.pass_ms(5_000).await;
    let mut back = connect().await;
    back.beat().await;
    back.report_known(
        vec![fact(3, on.ids, unseen()), fact(4, on.ids, released())],
        4,
    )
    .await;
    let job = on.fleet.job(on.job).await;
    assert_eq!(
        (job.state, job.reason.as_deref()),
        (JobState::Queued, Some("node_lost"))
    );
    let held = sqlx::query!(
        r#"SELECT kind, sum(EXTRACT(EPOCH FROM ended_at - started_at))::bigint AS "seconds!" FROM usage_segments
           WHERE kind <> 'reserved' GROUP BY kind ORDER BY kind"#
    )
    .fetch_all(&owner)
    .await
    .expect("segments");
    let held: Vec<(String, i64)> = held
        .into_iter()
        .map(|row| (row.kind, row.seconds))
        .collect();
    assert_eq!(
        held,
        [("charged".to_owned(), 30), ("unreachable".to_owned(), 605)]
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_whose_end_is_refused_keeps_its_node_from_nothing_else(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    let ports = machine::open(&fleet.app).await;
    let mut machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(2).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let (poison, other) = (fleet.running(1).await, fleet.running(1).await);
    drop(connection);
    let refusal = format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON assignments FOR EACH ROW
         WHEN (OLD.job_id = '{poison}') EXECUTE FUNCTION refuse()"
    );
    run_sql(&owner, refusal).await;
    machine.boot = "boot-2".into();
    let mut back = machine.connect_with(2, &[], (1, 1)).await;
    back.beat().await;
    let first = back.desired().await;
    assert!(first.full && first.assignments.is_empty(), "{first:?}");
    ready(&fleet, "n1").await;
    assert_eq!(fleet.job(poison).await.state, JobState::Running);
    assert_eq!(fleet.job(other).await.state, JobState::Queued);
    let told = sqlx::query_scalar!(
        r#"SELECT count(*) AS "n!" FROM events WHERE to_state = 'end_refused'"#
    );
    assert_eq!(told.fetch_one(&owner).await.expect("a number"), 1);
    // The next connection makes it good, once what refused it is mended.
    run_sql(&owner, "DROP TRIGGER refuse ON assignments".to_owned()).await;
    let mut again = machine.connect_with(2, &[], (1, 1)).await;
    again.beat().await;
    machine::eventually("the job is queued again", async || {
        fleet.job(poison).await.state == JobState::Queued
    })
    .await;
}

async fn run_sql(owner: &PgPool, statements: String) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(statements))
        .execute(owner)
        .await
        .expect("executed");
}

#[sqlx::test(migrations = "../migrations")]
async fn work_whose_end_the_database_lost_is_queued_again(owner: PgPool) {
    let on = running(owner, stop_job()).await;
    // It reported up to fact 4, the end, and that was acknowledged; then the database was
    // restored to a state that has 2.
    drop(on.connection);
    let mut back = on.machine.connect_with(1, &[], (5, 5)).await;
    back.beat().await;
    machine::eventually("the job is queued again", async || {
        on.fleet.job(on.job).await.state == JobState::Queued
    })
    .await;
    let job = on.fleet.job(on.job).await;
    assert_eq!(job.reason.as_deref(), Some("node_lost"));
    assert!(
        job.message.contains("how it ended there was lost"),
        "{}",
        job.message
    );
    assert_eq!(on.fleet.most_holders().await, 0);
    // And the next facts of the same journal count.
    on.fleet.turn().await;
    let again = ids_of(&back.wanted(wire::Want::Hold).await);
    assert_ne!(again, on.ids);
    back.report_known(
        vec![fact(5, again, accepted()), fact(6, again, started())],
        6,
    )
    .await;
    assert_eq!(on.fleet.job(on.job).await.state, JobState::Running);
}

#[sqlx::test(migrations = "../migrations")]
async fn work_that_its_node_refuses_to_run_a_second_time_is_queued_again(owner: PgPool) {
    let mut on = running(owner, stop_job()).await;
    on.connection
        .report_known(
            vec![fact(3, on.ids, refused("it has ended here before"))],
            3,
        )
        .await;
    on.connection.wanted(wire::Want::Stop).await;
    on.connection
        .report_known(vec![fact(4, on.ids, released())], 4)
        .await;
    let job = on.fleet.job(on.job).await;
    assert_eq!(job.state, JobState::Queued);
    assert!(
        job.message.contains("it has ended here before"),
        "{}",
        job.message
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_journal_that_was_lost_means_that_nothing_is_run_a_second_time(owner: PgPool) {
    let mut on = running(owner, stop_job()).await;
    drop(on.connection);
    on.machine.journal = domain::ids::JournalId::new();
    let mut back = on.machine.connect_with(1, &[], (1, 1)).await;
    back.beat().await;
    let first = back.desired().await;
    assert!(first.full && first.assignments.is_empty(), "{first:?}");
    let job = on.fleet.job(on.job).await;
    assert_eq!(job.state, JobState::Queued);
    assert_eq!(job.message, "the agent of node n1 lost its journal");
}

#[sqlx::test(migrations = "../migrations")]
async fn heartbeats_are_heard_while_facts_wait_for_a_row(owner: PgPool) {
    let mut on = running(owner.clone(), stop_job()).await;
    let mut tx = owner.begin().await.expect("a transaction");
    sqlx::query!("SELECT id FROM jobs FOR UPDATE")
        .fetch_all(&mut *tx)
        .await
        .expect("the job's row is locked");
    let last = 302;
    let flood = async {
        for number in 3..=last {
            on.connection
                .report(vec![fact(number, on.ids, started())])
                .await;
        }
        on.connection.beat().await;
    };
    tokio::time::timeout(PATIENCE, flood)
        .await
        .expect("the stream is read on");
    tx.rollback().await.expect("unlocked");
    on.connection.report_known(Vec::new(), last).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_fact_that_is_passed_over_is_not_known_to_a_connection_that_was_superseded(
    owner: PgPool,
) {
    let mut on = running(owner.clone(), stop_job()).await;
    for statement in [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$",
        "CREATE TRIGGER refuse BEFORE UPDATE ON assignments FOR EACH ROW EXECUTE FUNCTION refuse()",
        "UPDATE nodes SET incarnation = gen_random_uuid()",
    ] {
        sqlx::raw_sql(statement)
            .execute(&owner)
            .await
            .expect("prepared");
    }
    on.connection.report(vec![fact(3, on.ids, exited(0))]).await;
    assert_eq!(on.connection.ended().await.code(), Code::Aborted);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_full_set_that_is_too_large_for_one_message_comes_in_several(owner: PgPool) {
    const JOBS: usize = 20;
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(20).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    for _ in 0..JOBS {
        let spec = json!({
            "name": "j", "command": ["true"], "per_worker": { "gpus": 1 },
            "files": { "a": "x".repeat(250 * 1024) },
        });
        fleet.submit_spec(spec).await.expect("accepted");
    }
    fleet.turn().await;
    let mut again = machine.connect(20).await;
    let first = again.desired().await;
    assert!(first.full && !first.assignments.is_empty());
    assert_eq!(first.assignments.len() + first.following.len(), JOBS);
    assert!(!first.following.is_empty());
    let mut told: Vec<String> = first.assignments.into_iter().map(|a| a.id).collect();
    while told.len() < JOBS {
        let next = again.desired().await;
        assert!(!next.full && next.following.is_empty());
        assert!(protocol::encoded_bytes(&next) < 2 * protocol::desired::SET_BYTES_MAX);
        told.extend(next.assignments.into_iter().map(|a| a.id));
    }
    told.sort();
    told.dedup();
    assert_eq!(told.len(), JOBS, "each once");
    assert!(first.following.iter().all(|id| told.contains(id)));
}
