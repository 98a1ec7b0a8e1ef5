//! Work with a key is done once, whoever repeats it and when.

use axum::http::{Method, StatusCode};
use serde_json::json;
use sqlx::PgPool;

use crate::fixture::{Client, Reply, Server};

async fn keyed(client: &Client, key: &str, body: serde_json::Value) -> Reply {
    client
        .ask(Method::POST, "/teams")
        .header("Idempotency-Key", key)
        .json(body)
        .send()
        .await
}

#[sqlx::test(migrations = "../migrations")]
async fn fifty_at_once_with_one_key_make_one_object_and_get_one_answer(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let admin = admin.clone();
        requests.spawn(async move { keyed(&admin, "k1", json!({"name": "once"})).await });
    }
    let replies = requests.join_all().await;
    let replayed = replies
        .iter()
        .filter(|r| {
            r.headers
                .get("idempotent-replay")
                .is_some_and(|v| v == "true")
        })
        .count();
    assert_eq!(replayed, 49);
    for reply in &replies {
        assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.text);
        assert_eq!(reply.text, replies[0].text);
        assert_eq!(reply.headers["etag"], "\"1\"");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_key_belongs_to_its_body_its_route_and_its_person(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    keyed(&admin, "k1", json!({"name": "once"}))
        .await
        .expect(StatusCode::CREATED);
    let problem = keyed(&admin, "k1", json!({"name": "twice"}))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["field"], "Idempotency-Key");
    admin
        .ask(Method::POST, "/pools")
        .header("Idempotency-Key", "k1")
        .json(json!({"name": "once"}))
        .send()
        .await
        .expect(StatusCode::CREATED);
    for bad in ["", &"k".repeat(256)] {
        keyed(&admin, bad, json!({"name": "other"}))
            .await
            .problem(StatusCode::UNPROCESSABLE_ENTITY);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_request_that_failed_leaves_its_key_free(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    keyed(&admin, "k1", json!({"name": "child", "parent": "later"}))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    admin
        .post("/teams", json!({"name": "later"}))
        .await
        .expect(StatusCode::CREATED);
    let reply = keyed(&admin, "k1", json!({"name": "child", "parent": "later"})).await;
    assert!(!reply.headers.contains_key("idempotent-replay"));
    reply.expect(StatusCode::CREATED);
}
