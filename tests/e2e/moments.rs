//! A leader that dies at a moment that is seen, not guessed by the clock.

use rig::postgres::DATABASE;
use serde_json::Value;

use crate::support::{START_BOUND, Scene, signal};

/// Lets the database keep whoever writes that a worker runs waiting, inside its transaction.
const HOLD: &str = "
    CREATE FUNCTION public.hold_the_report() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(3600); RETURN NEW; END $$;
    CREATE TRIGGER hold_the_report BEFORE UPDATE OF phase ON assignments
        FOR EACH ROW WHEN (NEW.phase = 'running') EXECUTE FUNCTION public.hold_the_report();";
/// Ends that wait, and what was begun in it.
const RELEASE: &str = "
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep';
    DROP TRIGGER hold_the_report ON assignments;
    DROP FUNCTION public.hold_the_report();";

/// F1: what is granted is committed, and nobody has been told to start it: its node has not even
/// accepted it, since its agent stands still.
#[tokio::test]
async fn a_leader_killed_between_an_attempts_commit_and_its_start_starts_that_attempt_once() {
    let mut scene = Scene::on_one_machine("granted", "platform").await;
    let agent = scene.cluster.agent("l40s-1").unwrap().pid();
    signal(agent, "STOP");
    let id = scene.submit("granted", "l40s").await;
    let granted = in_phase(&scene, &id, "granted").await;
    scene.cluster.servers[0].kill().await.unwrap();
    assert_eq!(
        assignment(&scene, &id).await,
        Some(granted.clone()),
        "it died at this moment"
    );
    assert_eq!(scene.traces.lines(&id).unwrap(), [], "nothing has started");

    scene.cluster.servers[0].begin().await.unwrap();
    scene.cluster.servers[0].ready().await.unwrap();
    signal(agent, "CONT");
    scene.runs(&id).await;
    ended_once(scene, &id, &granted["attempt"]).await;
}

/// F2: the process has started, and the report of it is not stored: the server dies in the very
/// transaction.
#[tokio::test]
async fn a_leader_killed_while_it_stores_a_start_leaves_one_process_and_one_charge() {
    let mut scene = Scene::on_one_machine("started", "platform").await;
    scene
        .cluster
        .postgres
        .query_text(DATABASE, HOLD)
        .await
        .unwrap();
    let id = scene.submit("started", "l40s").await;
    rig::wait::until(
        "the report of the start is being stored",
        START_BOUND,
        || async {
            let held = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
            Ok((!scene.cluster.postgres.query(held).await?.is_empty()).then_some(()))
        },
    )
    .await
    .unwrap();
    rig::wait::until_true("the process has started", START_BOUND, || {
        scene.traces.lines(&id).unwrap().len() == 1
    })
    .await
    .unwrap();
    scene.cluster.servers[0].kill().await.unwrap();
    let handed_over = assignment(&scene, &id).await.expect("an assignment");
    assert_eq!(
        handed_over["phase"], "handed_over",
        "it died at this moment"
    );
    scene
        .cluster
        .postgres
        .query_text(DATABASE, RELEASE)
        .await
        .unwrap();

    scene.cluster.servers[0].begin().await.unwrap();
    scene.cluster.servers[0].ready().await.unwrap();
    scene.runs(&id).await;
    ended_once(scene, &id, &handed_over["attempt"]).await;
}

/// The job's only assignment: its phase, and its attempt.
async fn assignment(scene: &Scene, id: &str) -> Option<Value> {
    let sql = format!("SELECT phase, attempt_id AS attempt FROM assignments WHERE job_id = '{id}'");
    let mut rows = scene.cluster.postgres.query(&sql).await.unwrap();
    assert!(rows.len() <= 1, "one worker of one attempt: {rows:?}");
    rows.pop()
}

async fn in_phase(scene: &Scene, id: &str, phase: &str) -> Value {
    rig::wait::until("its assignment is there", START_BOUND, || async {
        Ok(assignment(scene, id)
            .await
            .filter(|row| row["phase"] == phase))
    })
    .await
    .unwrap()
}

/// Lets the job end, and checks that it was one attempt, one process and one charge.
async fn ended_once(scene: Scene, id: &str, attempt: &Value) {
    let job = scene.let_succeed(id).await;
    assert_eq!(job["attempt"], 1, "{job}");
    let last = assignment(&scene, id).await.expect("an assignment");
    assert_eq!(&last["attempt"], attempt, "the same attempt");
    let lines = scene.traces.lines(id).unwrap();
    let what: Vec<&str> = lines.iter().map(|line| line.what.as_str()).collect();
    assert_eq!(what, ["start", "end"], "{lines:?}");
    let charged =
        format!("SELECT id FROM usage_segments WHERE job_id = '{id}' AND kind = 'charged'");
    let charged = scene.cluster.postgres.query(&charged).await.unwrap();
    assert_eq!(charged.len(), 1, "{charged:?}");
    e2e::laws::check_ledger(&scene.cluster).await.unwrap();
    scene.finish().await;
}
