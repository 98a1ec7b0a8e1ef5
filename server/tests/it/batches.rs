//! Jobs that are submitted together: all of them, or none.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::fixture::Server;
use crate::fleet::add_node;

const BATCH: &str = "/teams/vision/jobs/batch";

fn spec(name: &str, gpus: u32) -> Value {
    json!({ "name": name, "command": ["true"], "per_worker": { "gpus": gpus } })
}

async fn fleet(owner: &PgPool) -> Server {
    let server = Server::start(owner).await;
    add_node(owner, "h100", "n1", 8).await;
    server
}

async fn written(owner: &PgPool) -> (i64, i64, i64) {
    let row = sqlx::query!(
        r#"SELECT (SELECT count(*) FROM jobs) AS "jobs!",
                  (SELECT count(*) FROM events WHERE reason = 'submitted') AS "events!",
                  (SELECT count(*) FROM audit WHERE action = 'submit_jobs') AS "audited!""#
    )
    .fetch_one(owner)
    .await
    .expect("numbers");
    (row.jobs, row.events, row.audited)
}

#[sqlx::test(migrations = "../migrations")]
async fn a_batch_is_written_whole_in_its_order_and_once(owner: PgPool) {
    let server = fleet(&owner).await;
    let member = server.client("vision-member");
    let names: Vec<String> = (0..40).map(|n| format!("j{n}")).collect();
    // More than one job may be: together they are larger than any other body.
    let jobs = names.iter().map(|name| {
        let mut job = spec(name, 1);
        job["files"] = json!({ "data.txt": "x".repeat(40_000) });
        job
    });
    let jobs: Vec<Value> = jobs.collect();
    let send = || {
        member
            .ask(Method::POST, BATCH)
            .header("Idempotency-Key", "a-batch")
            .json(json!({ "jobs": jobs }))
            .send()
    };
    let first = send().await.expect(StatusCode::CREATED);
    let items = first["items"].as_array().expect("jobs");
    let named: Vec<&str> = items
        .iter()
        .map(|job| job["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(named, names);
    assert!(items.iter().all(|job| job["state"] == "queued"));
    assert_eq!(send().await.expect(StatusCode::CREATED), first);
    assert_eq!(written(&owner).await, (40, 40, 40));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_batch_with_one_job_that_is_wrong_is_refused_by_its_place_and_none_is_written(
    owner: PgPool,
) {
    let server = fleet(&owner).await;
    let member = server.client("vision-member");
    let many: Vec<Value> = (0..=1_000).map(|_| spec("j", 1)).collect();
    let cases = [
        (json!([]), "jobs", "invalid-value"),
        (json!(many), "jobs", "invalid-value"),
        (
            json!([spec("a", 1), spec("b", 99)]),
            "jobs[1].per_worker.gpus",
            "invalid-value",
        ),
        (
            json!([spec("a", 1), spec("b", 16)]),
            "jobs[1].per_worker.gpus",
            "never-fits",
        ),
        (
            json!([{ "name": "a", "command": ["true"], "class": "nothing" }]),
            "jobs[0].class",
            "invalid-value",
        ),
    ];
    for (jobs, field, kind) in cases {
        let problem = member
            .post(BATCH, json!({ "jobs": jobs }))
            .await
            .problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["field"], field, "{problem}");
        let told = problem["type"].as_str().expect("a type");
        assert!(told.ends_with(kind), "{problem}");
    }
    assert_eq!(written(&owner).await, (0, 0, 0));
}

#[sqlx::test(migrations = "../migrations")]
async fn jobs_of_one_batch_follow_those_before_them_and_none_else(owner: PgPool) {
    let server = fleet(&owner).await;
    let member = server.client("vision-member");
    let following = |name: &str, after: &[&str]| {
        let mut spec = spec(name, 1);
        spec["after"] = json!(after);
        spec
    };
    for (jobs, field) in [
        (json!([following("a", &["#0"])]), "jobs[0].after"),
        (
            json!([spec("a", 1), following("b", &["#1"])]),
            "jobs[1].after",
        ),
        (
            json!([following("a", &["#1"]), spec("b", 1)]),
            "jobs[0].after",
        ),
        (
            json!([spec("a", 1), following("b", &["#-1"])]),
            "jobs[1].after",
        ),
        (
            json!([spec("a", 1), following("b", &["a"])]),
            "jobs[1].after",
        ),
        (
            json!([spec("a", 1), following("b", &["#0", "#0"])]),
            "jobs[1].after",
        ),
    ] {
        let problem = member
            .post(BATCH, json!({ "jobs": jobs }))
            .await
            .problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["field"], field, "{problem}");
    }
    assert_eq!(written(&owner).await, (0, 0, 0));
    let mut sweep = spec("sweep", 1);
    sweep["array"] = json!({ "count": 5 });
    let jobs = json!([
        sweep,
        spec("a", 1),
        following("b", &["#0", "#1"]),
        following("c", &["#2"]),
    ]);
    let answer = member
        .post(BATCH, json!({ "jobs": jobs }))
        .await
        .expect(StatusCode::CREATED);
    let items = answer["items"].as_array().expect("jobs");
    let names: Vec<_> = items
        .iter()
        .filter_map(|job| job["name"].as_str())
        .collect();
    assert_eq!(names, ["sweep", "a", "b", "c"]);
    let after = |at: usize| items[at]["spec"]["after"].clone();
    assert_eq!(after(2), json!([items[0]["id"], items[1]["id"]]));
    assert_eq!(after(3), json!([items[2]["id"]]));
    // Alone there is no batch whose job it could follow.
    let problem = member
        .post("/teams/vision/jobs", following("d", &["#0"]))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["field"], "after", "{problem}");
}
