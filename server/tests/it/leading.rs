//! Who leads: one of many, fenced by its epoch, and as long as the database is there.

use domain::ids::JobId;
use domain::state::JobState;
use server::app::App;
use server::{scheduler, store};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::fixture;
use super::fleet::Fleet;
use super::machine::eventually;

#[sqlx::test(migrations = "../migrations")]
async fn a_leader_of_an_older_epoch_commits_nothing(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let job = fleet.submit(1).await;
    let mut paused = fleet.lead().await;
    let mut leader = fleet.lead().await;
    assert_eq!(
        paused.turn().await.expect("a turn"),
        scheduler::Turn::Fenced
    );
    assert_eq!(fleet.job(job.id).await.state, JobState::Queued);
    assert_eq!(fleet.most_holders().await, 0);
    assert_eq!(leader.turn().await.expect("a turn"), scheduler::Turn::Done);
    assert_eq!(fleet.job(job.id).await.state, JobState::Starting);
}

#[sqlx::test(migrations = "../migrations")]
async fn of_two_servers_one_leads_and_the_other_takes_over(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 8).await;
    let other = fixture::app(&owner).await;
    let stops = [CancellationToken::new(), CancellationToken::new()];
    let first = tokio::spawn(scheduler::run(fleet.app.clone(), stops[0].clone()));
    let job = fleet.submit(1).await;
    wait_for(&fleet, job.id, JobState::Starting).await;
    let second = tokio::spawn(scheduler::run(other.clone(), stops[1].clone()));
    beats(&other).await;
    assert_eq!(epoch(&owner).await, 1);
    stops[0].cancel();
    first.await.expect("it stops");
    let job = fleet.submit(1).await;
    wait_for(&fleet, job.id, JobState::Starting).await;
    assert_eq!(epoch(&owner).await, 2);
    stops[1].cancel();
    second.await.expect("it stops");
}

#[sqlx::test(migrations = "../migrations")]
async fn who_leads_tells_scrapers_of_nodes_devices_and_what_waits_and_who_does_not_tells_nothing(
    owner: PgPool,
) {
    let shown = server::front::metrics::install().expect("a recorder");
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 8).await;
    fleet.node("n2", 4).await;
    let silent =
        "UPDATE nodes SET reachability = 'unreachable', version = version + 1 WHERE name = 'n2'";
    sqlx::raw_sql(silent)
        .execute(&owner)
        .await
        .expect("a node that does not answer");
    fleet.submit(8).await;
    fleet.submit(8).await;
    let stop = CancellationToken::new();
    let leader = tokio::spawn(scheduler::run(fleet.app.clone(), stop.clone()));
    let expected = [
        "allotment_scheduler_leads 1",
        "allotment_nodes{state=\"ready\"} 1",
        "allotment_nodes{state=\"unreachable\"} 1",
        "allotment_devices{health=\"healthy\"} 12",
        "allotment_jobs_waiting 1",
    ];
    let shows = |expected: &[&str]| {
        let text = shown.render();
        expected
            .iter()
            .all(|line| text.lines().any(|told| told == *line))
    };
    eventually("the leader tells", async || shows(&expected)).await;
    stop.cancel();
    leader.await.expect("it stops");
    assert!(shows(&[
        "allotment_scheduler_leads 0",
        "allotment_nodes{state=\"ready\"} 0",
        "allotment_devices{health=\"healthy\"} 0",
        "allotment_jobs_waiting 0",
    ]));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_leader_whose_commit_gave_way_to_another_tries_again_and_leads_on(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 8).await;
    give_way_once(&owner).await;
    let stop = CancellationToken::new();
    let leader = tokio::spawn(scheduler::run(fleet.app.clone(), stop.clone()));
    let job = fleet.submit(1).await;
    wait_for(&fleet, job.id, JobState::Starting).await;
    assert_eq!(epoch(&owner).await, 1, "it led on");
    stop.cancel();
    leader.await.expect("it stops");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_turn_after_one_that_failed_plans_anew_though_nothing_has_changed(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 8).await;
    give_way_once(&owner).await;
    let job = fleet.submit(1).await;
    let mut leader = fleet.lead().await;
    assert!(leader.turn().await.is_err());
    assert_eq!(leader.turn().await.expect("a turn"), scheduler::Turn::Done);
    assert_eq!(fleet.job(job.id).await.state, JobState::Starting);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_transaction_that_gave_way_may_be_tried_again_and_the_database_was_not_away(
    owner: PgPool,
) {
    for code in ["deadlock_detected", "serialization_failure"] {
        let error = raised(&owner, code).await;
        assert!(store::passing(&error) && !store::away(&error), "{code}");
    }
    let error = raised(&owner, "admin_shutdown").await;
    assert!(store::passing(&error) && store::away(&error));
    let error = raised(&owner, "check_violation").await;
    assert!(!store::passing(&error) && store::refused(&error));
}

/// From now on the first attempt that is written gives way to a transaction that is not there.
async fn give_way_once(owner: &PgPool) {
    // A number that is taken from a sequence stays taken, whatever becomes of the transaction.
    for statement in [
        "CREATE SEQUENCE tries",
        "GRANT USAGE ON tries TO allotment_system",
        "CREATE FUNCTION give_way() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF nextval('tries') = 1 THEN RAISE EXCEPTION 'a deadlock' USING ERRCODE = 'deadlock_detected'; END IF;
             RETURN NEW; END $$",
        "CREATE TRIGGER give_way BEFORE INSERT ON attempts FOR EACH ROW EXECUTE FUNCTION give_way()",
    ] {
        sqlx::raw_sql(statement)
            .execute(owner)
            .await
            .expect("prepared");
    }
}

/// What the database answers where this condition is raised.
async fn raised(owner: &PgPool, condition: &str) -> sqlx::Error {
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "DO $$ BEGIN RAISE EXCEPTION 'for a test' USING ERRCODE = '{condition}'; END $$"
    )))
    .execute(owner)
    .await
    .expect_err("it is raised")
}

async fn epoch(owner: &PgPool) -> i64 {
    sqlx::query_scalar!("SELECT number FROM epochs")
        .fetch_one(owner)
        .await
        .expect("an epoch")
}

async fn wait_for(fleet: &Fleet, job: JobId, state: JobState) {
    eventually("the state comes", async || {
        fleet.job(job).await.state == state
    })
    .await;
}

async fn beats(app: &App) {
    eventually("it looks for a leader", async || {
        app.pulse.scheduler_age().is_some()
    })
    .await;
}
