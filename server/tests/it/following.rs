//! Jobs that wait for one another, or for a time.

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::fixture::Server;
use crate::fleet::add_node;

fn spec(name: &str, gpus: u32) -> Value {
    json!({ "name": name, "command": ["true"], "per_worker": { "gpus": gpus } })
}

async fn fleet(owner: &PgPool) -> Server {
    let server = Server::start(owner).await;
    add_node(owner, "h100", "n1", 8).await;
    server
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_follows_jobs_of_its_own_team_only_and_says_which_it_waits_for(owner: PgPool) {
    let server = fleet(&owner).await;
    let operator = server.client("operator");
    let first = operator
        .post("/teams/vision/jobs", spec("first", 1))
        .await
        .expect(StatusCode::CREATED);
    let mut follower = spec("second", 1);
    follower["after"] = json!([first["id"]]);
    // Seen by the operator, but another team's: its readers would be told of it.
    let problem = operator
        .post("/teams/speech/jobs", follower.clone())
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["field"], "after", "{problem}");
    let second = operator
        .post("/teams/vision/jobs", follower)
        .await
        .expect(StatusCode::CREATED);
    let waits = explained(&server, &second).await;
    assert_eq!(waits["waiting"]["code"], "dependency");
    let told = waits["message"].as_str().expect("a sentence");
    assert!(
        told.contains(first["id"].as_str().expect("an id")),
        "{told}"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_is_not_to_start_yet_says_when_it_may(owner: PgPool) {
    let server = fleet(&owner).await;
    let mut late = spec("late", 1);
    late["not_before"] = json!("2100-01-01T00:00:00Z");
    let late = server
        .client("vision-member")
        .post("/teams/vision/jobs", late)
        .await
        .expect(StatusCode::CREATED);
    let waits = explained(&server, &late).await;
    assert_eq!(waits["waiting"]["code"], "not_yet");
    assert_eq!(waits["waiting"]["scope"], "2100-01-01T00:00:00Z");
}

async fn explained(server: &Server, job: &Value) -> Value {
    let id = job["id"].as_str().expect("an id");
    server
        .client("vision-viewer")
        .get(&format!("/jobs/{id}/explanation"))
        .await
        .expect(StatusCode::OK)
}
