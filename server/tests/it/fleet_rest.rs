//! Nodes, logs and usage by REST: status, shape, and what bad input is told.

use axum::http::{Method, StatusCode};
use serde_json::json;
use sqlx::PgPool;

use super::fixture::Server;
use super::machine::{self};

#[sqlx::test(migrations = "../migrations")]
async fn a_join_token_comes_with_the_command_that_enrols_a_machine(owner: PgPool) {
    let server = Server::start(&owner).await;
    let operator = server.client("operator");
    operator
        .post("/nodes/join-tokens", json!({ "pool": "h100" }))
        .await
        .problem(StatusCode::CONFLICT);
    let ports = machine::open(&server.app).await;
    let token = operator
        .post("/nodes/join-tokens", json!({ "pool": "h100" }))
        .await
        .expect(StatusCode::CREATED);
    let command = token["command"].as_str().expect("a command");
    let server_url = format!("--server https://{}", ports.listening.agents);
    assert!(command.contains(&server_url), "{command}");
    assert!(command.contains("--ca-sha256 "), "{command}");
    operator
        .post("/nodes/join-tokens", json!({ "pool": "nowhere" }))
        .await
        .problem(StatusCode::NOT_FOUND);
    operator
        .post("/nodes/join-tokens", json!({ "pool": "h100", "count": 3 }))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    server
        .client("vision-owner")
        .post("/nodes/join-tokens", json!({ "pool": "h100" }))
        .await
        .problem(StatusCode::FORBIDDEN);
}

#[sqlx::test(migrations = "../migrations")]
async fn nodes_are_read_and_steered_by_name(owner: PgPool) {
    let server = Server::start(&owner).await;
    sqlx::query!(
        "INSERT INTO nodes (id, name, pool_id) SELECT gen_random_uuid(), 'n1', id FROM pools WHERE name = 'h100'"
    )
    .execute(&owner)
    .await
    .expect("a node");
    let (viewer, operator) = (server.client("vision-viewer"), server.client("operator"));
    let list = viewer.get("/nodes").await.expect(StatusCode::OK);
    assert_eq!(list["items"][0]["name"], "n1");
    assert_eq!(list["next_cursor"], json!(null));
    viewer.get("/nodes/n2").await.problem(StatusCode::NOT_FOUND);
    viewer
        .get("/nodes?colour=red")
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    viewer
        .post("/nodes/n1/cordon", json!({}))
        .await
        .problem(StatusCode::FORBIDDEN);
    let cordoned = operator
        .ask(Method::POST, "/nodes/n1/cordon")
        .send()
        .await
        .expect(StatusCode::OK);
    assert_eq!(cordoned["intent"], "cordoned");
    // Another reason for the same takes the place of the one before; saying nothing leaves it.
    for body in [json!({ "reason": "a noisy fan" }), json!({})] {
        let again = operator.post("/nodes/n1/cordon", body).await;
        assert_eq!(again.expect(StatusCode::OK)["intent_reason"], "a noisy fan");
    }
    let events = operator
        .get("/nodes/n1/events")
        .await
        .expect(StatusCode::OK);
    assert_eq!(events["items"][0]["reason"], "a noisy fan", "{events}");
    let drained = operator
        .post("/nodes/n1/drain", json!({ "reason": "a new fan" }))
        .await
        .expect(StatusCode::OK);
    assert_eq!(
        (
            drained["intent"].as_str(),
            drained["intent_reason"].as_str()
        ),
        (Some("draining"), Some("a new fan"))
    );
    operator
        .post("/nodes/n1/drain", json!({ "force": true }))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    operator
        .ask(Method::PATCH, "/nodes/n1")
        .json(json!({ "labels": {} }))
        .send()
        .await
        .problem(StatusCode::PRECONDITION_REQUIRED);
    let version = drained["version"].as_i64().expect("a version");
    let labelled = operator
        .patch("/nodes/n1", version, json!({ "labels": { "rack": "r1" } }))
        .await
        .expect(StatusCode::OK);
    assert_eq!(labelled["labels"], json!({ "rack": "r1" }));
    let events = viewer.get("/nodes/n1/events").await.expect(StatusCode::OK);
    assert_eq!(events["items"][0]["to"], "draining");
    let lost = operator
        .post("/nodes/n1/declare-lost", json!({}))
        .await
        .expect(StatusCode::OK);
    assert_eq!(lost["reachability"], "lost");
    let gone = operator
        .post("/nodes/n1/retire", json!({}))
        .await
        .expect(StatusCode::OK);
    assert_eq!(gone["intent"], "retired");
}

#[sqlx::test(migrations = "../migrations")]
async fn usage_is_reported_as_the_contract_says_and_bad_questions_are_named(owner: PgPool) {
    let server = Server::start(&owner).await;
    let member = server.client("vision-member");
    let empty = member
        .get("/teams/vision/usage?group_by=user,day")
        .await
        .expect(StatusCode::OK);
    assert_eq!(empty["items"], json!([]));
    assert_eq!(empty["total"]["gpu_seconds"], json!(0));
    member.get("/usage").await.expect(StatusCode::OK);
    member
        .get("/teams/speech/usage")
        .await
        .problem(StatusCode::NOT_FOUND);
    server
        .client("finance")
        .get("/teams/speech/usage")
        .await
        .expect(StatusCode::OK);
    for (query, field) in [
        ("group_by=colour", "group_by"),
        ("from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", "to"),
        ("from=1900-01-01T00:00:00Z", "from"),
        (
            "from=2026-01-01T00:00:00Z&to=2026-09-01T00:00:00Z&group_by=hour",
            "from",
        ),
    ] {
        let problem = member
            .get(&format!("/usage?{query}"))
            .await
            .problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["field"], field, "{query}: {problem}");
    }
    member
        .get("/usage?since=yesterday")
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    member
        .get("/usage/capacity?pool=h100")
        .await
        .problem(StatusCode::FORBIDDEN);
    let capacity = server
        .client("auditor")
        .get("/usage/capacity?pool=h100")
        .await
        .expect(StatusCode::OK);
    assert_eq!(capacity["capacity"]["gpu_seconds"], json!(0));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_log_that_is_not_there_is_not_found(owner: PgPool) {
    let server = Server::start(&owner).await;
    let member = server.client("vision-member");
    let job = domain::ids::JobId::new();
    member
        .get(&format!("/jobs/{job}/logs"))
        .await
        .problem(StatusCode::NOT_FOUND);
    // Nor is more told of it to who asks wrongly.
    member
        .get(&format!("/jobs/{job}/logs?offset=-1"))
        .await
        .problem(StatusCode::NOT_FOUND);
}
