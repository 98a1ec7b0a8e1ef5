//! Specs that cannot be read, which a newer version or another hand wrote: each harms its own job only.

use axum::http::StatusCode;
use domain::ids::JobId;
use domain::state::JobState;
use protocol::wire;
use serde_json::json;
use server::background;
use sqlx::PgPool;

use super::agents::{ids_of, ready};
use super::fixture::Server;
use super::fleet::{Fleet, add_node};
use super::machine::{self, Machine, accepted, fact, killed, released, started};
use super::simulated::Clock;

/// Puts a key into a job's stored spec.
async fn write(owner: &PgPool, job: JobId, key: &str, value: serde_json::Value) {
    let done = sqlx::query!(
        "UPDATE jobs SET spec = spec || jsonb_build_object($2::text, $3::jsonb) WHERE id = $1",
        job as JobId,
        key,
        value
    )
    .execute(owner)
    .await
    .expect("written");
    assert_eq!(done.rows_affected(), 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_cannot_be_read_is_stopped_by_name_and_the_nodes_other_work_goes_on(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(2).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let jobs = [fleet.submit(1).await.id, fleet.submit(1).await.id];
    fleet.turn().await;
    let mut held = Vec::new();
    while held.len() < 2 {
        held.extend(connection.desired().await.assignments.iter().map(ids_of));
    }
    let facts = vec![
        fact(1, held[0], accepted()),
        fact(2, held[0], started()),
        fact(3, held[1], accepted()),
        fact(4, held[1], started()),
    ];
    connection.report_known(facts, 4).await;
    write(&owner, jobs[0], "from_the_future", json!(1)).await;
    drop(connection);
    let mut connection = machine.connect_holding(2, &held).await;
    let set = connection.desired().await;
    assert!(set.full);
    let of = |job: JobId| {
        let mut all = set.assignments.iter();
        all.find(|a| a.job_id == job.to_string())
            .expect("it is told")
    };
    assert_eq!(of(jobs[1]).want(), wire::Want::Run);
    assert_eq!(of(jobs[1]).command, ["true"]);
    let stopped = of(jobs[0]);
    assert_eq!(stopped.want(), wire::Want::Stop);
    assert_eq!(stopped.stop_reason, "invalid");
    let ids = ids_of(stopped);
    connection
        .report_known(vec![fact(5, ids, killed()), fact(6, ids, released())], 6)
        .await;
    let ended = fleet.job(jobs[0]).await;
    assert_eq!(ended.state, JobState::Failed);
    assert_eq!(ended.reason.as_deref(), Some("invalid"));
    assert!(
        ended.message.contains("its spec cannot be read")
            && ended.message.contains("from_the_future"),
        "{}",
        ended.message
    );
    assert!(ended.spec.is_none());
    assert_eq!(fleet.job(jobs[1]).await.state, JobState::Running);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_list_shows_what_can_be_shown(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let member = server.client("vision-member");
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        let job = member
            .post(
                "/teams/vision/jobs",
                json!({ "name": name, "command": ["true"], "per_worker": { "gpus": 1 } }),
            )
            .await
            .expect(StatusCode::CREATED);
        ids.push(job["id"].as_str().expect("an id").to_owned());
    }
    let broken: JobId = ids[0].parse().expect("an id");
    write(&owner, broken, "workers", json!("two")).await;
    let page = member.get("/jobs").await.expect(StatusCode::OK);
    let items = page["items"].as_array().expect("jobs");
    assert_eq!(items.len(), 2);
    assert_eq!(
        (&items[0]["spec"]["name"], &items[1]["spec"]),
        (&json!("b"), &json!(null))
    );
    let job = member
        .get(&format!("/jobs/{broken}"))
        .await
        .expect(StatusCode::OK);
    assert_eq!(job["name"], "a");
    let message = job["message"].as_str().expect("a sentence");
    assert!(message.contains("its spec cannot be read"), "{message}");
    let version = job["version"].as_i64().expect("a version");
    member
        .patch(
            &format!("/jobs/{broken}"),
            version,
            json!({ "class": "normal" }),
        )
        .await
        .problem(StatusCode::CONFLICT);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_time_limit_that_is_no_number_keeps_no_other_job_from_its_own(owner: PgPool) {
    let clock = Clock::at(&owner, "2030-01-01T00:00:00Z").await;
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 2).await;
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let spec = json!({ "name": "j", "command": ["x"], "per_worker": { "gpus": 1 }, "time_limit_seconds": 60 });
        jobs.push(fleet.submit_spec(spec).await.expect("accepted").id);
    }
    fleet.turn().await;
    for job in &jobs {
        fleet.run(*job).await;
    }
    write(&owner, jobs[0], "time_limit_seconds", json!("soon")).await;
    clock.pass_ms(60_000).await;
    background::reconcile(&fleet.app, false)
        .await
        .outcome()
        .expect("reconciled");
    fleet.exit(jobs[1], 1).await;
    let ended = fleet.job(jobs[1]).await;
    assert_eq!(
        (ended.state, ended.reason.as_deref()),
        (JobState::Failed, Some("time_limit"))
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn what_a_job_with_an_unreadable_spec_holds_is_not_planned_with(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 1).await;
    let holder = fleet.submit(1).await.id;
    fleet.turn().await;
    fleet.run(holder).await;
    write(&owner, holder, "from_the_future", json!(1)).await;
    let next = fleet.submit(1).await.id;
    // The first turn tells the holder to stop, the second plans beside what it still holds.
    fleet.turn().await;
    fleet.turn().await;
    let waiting = fleet.job(next).await;
    assert_eq!(waiting.state, JobState::Queued);
    assert!(
        waiting.reason.is_some(),
        "it has a verdict: {}",
        waiting.message
    );
    fleet.exit(holder, 1).await;
    assert_eq!(fleet.job(holder).await.reason.as_deref(), Some("invalid"));
    fleet.turn().await;
    assert_eq!(fleet.job(next).await.state, JobState::Starting);
}
