//! Work with a key is done once, whoever repeats it and when.

use axum::http::{Method, StatusCode};
use domain::role::TeamRole;
use domain::spec::JobSpec;
use serde_json::json;
use server::app::idempotency::Repeat;
use server::app::{AppError, Asker, jobs};
use sqlx::PgPool;

use crate::fixture::{Client, Reply, Server};
use crate::fleet::Fleet;

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

async fn post_keyed(client: &Client, path: &str, key: &str, body: serde_json::Value) -> Reply {
    client
        .ask(Method::POST, path)
        .header("Idempotency-Key", key)
        .json(body)
        .send()
        .await
}

fn replayed(reply: &Reply) -> bool {
    reply.headers.contains_key("idempotent-replay")
}

#[sqlx::test(migrations = "../migrations")]
async fn who_lost_a_role_gets_no_answer_of_the_time_when_it_had_it(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let ada = fleet.ada();
    let submit = async |asker: &Asker| {
        let spec: JobSpec = serde_json::from_value(
            json!({ "name": "j", "command": ["true"], "per_worker": { "gpus": 1 } }),
        )
        .expect("a spec");
        let repeat = Repeat::keyed("submit".into(), "k1".into(), b"{}");
        let team = "vision".parse().expect("a name");
        jobs::submit(&fleet.app, asker, repeat, &team, spec).await
    };
    let job = submit(&ada).await.expect("queued").value.id;
    let cancel = async |asker: &Asker| {
        let repeat = Repeat::keyed("cancel".into(), "k1".into(), b"{}");
        jobs::cancel(&fleet.app, asker, repeat, job).await
    };
    cancel(&ada).await.expect("cancelled");
    let viewer = Asker {
        teams: [(fleet.vision, TeamRole::Viewer)].into(),
        ..ada.clone()
    };
    for refused in [submit(&viewer).await, cancel(&viewer).await] {
        assert!(
            matches!(refused, Err(AppError::Forbidden { .. })),
            "{refused:?}"
        );
    }
    let gone = Asker {
        teams: [].into(),
        ..ada.clone()
    };
    for hidden in [submit(&gone).await, cancel(&gone).await] {
        assert!(
            matches!(hidden, Err(AppError::NotFound { .. })),
            "{hidden:?}"
        );
    }
    for repeated in [submit(&ada).await, cancel(&ada).await] {
        assert!(repeated.expect("the first answer").replayed);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_password_is_changed_once_with_one_key_and_a_repeat_is_told_so(owner: PgPool) {
    let server = Server::start(&owner).await;
    server
        .client("admin")
        .post(
            "/users",
            json!({"name": "ada", "password": "analytical engine"}),
        )
        .await
        .expect(StatusCode::CREATED);
    let opened = server
        .stranger()
        .post(
            "/auth/login",
            json!({"username": "ada", "password": "analytical engine"}),
        )
        .await
        .expect(StatusCode::OK);
    let ada = server.bearer(opened["token"].as_str().expect("a token"));
    let change = json!({"current": "analytical engine", "new": "difference engine"});
    let first = post_keyed(&ada, "/auth/password", "k1", change.clone()).await;
    assert!(!replayed(&first) && first.text.is_empty());
    first.expect(StatusCode::NO_CONTENT);
    let again = post_keyed(&ada, "/auth/password", "k1", change.clone()).await;
    assert!(replayed(&again) && again.text.is_empty(), "{}", again.text);
    again.expect(StatusCode::NO_CONTENT);
    post_keyed(&ada, "/auth/password", "k2", change)
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    let logout = post_keyed(&ada, "/auth/logout", &"k".repeat(256), json!({})).await;
    logout.problem(StatusCode::UNPROCESSABLE_ENTITY);
    post_keyed(&ada, "/auth/logout", "k1", json!({}))
        .await
        .expect(StatusCode::NO_CONTENT);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_is_declared_lost_once_with_one_key(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut conn = owner.acquire().await.expect("a connection");
    sqlx::raw_sql(
        "INSERT INTO nodes (id, name, pool_id, reachability)
         SELECT gen_random_uuid(), 'n1', id, 'unreachable' FROM pools WHERE name = 'h100'",
    )
    .execute(&mut *conn)
    .await
    .expect("a silent node");
    let operator = server.client("operator");
    let path = "/nodes/n1/declare-lost";
    let first = post_keyed(&operator, path, "k1", json!({"reason": "burnt"})).await;
    let again = post_keyed(&operator, path, "k1", json!({"reason": "burnt"})).await;
    assert!(!replayed(&first) && replayed(&again));
    assert_eq!(first.text, again.text);
    assert_eq!(again.expect(StatusCode::OK)["reachability"], "lost");
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_kept_of_a_key_gives_nothing_to_try_passwords_against(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let body = json!({"name": "ada", "password": "analytical engine"});
    post_keyed(&admin, "/users", "a-random-key", body.clone())
        .await
        .expect(StatusCode::CREATED);
    let kept: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(
        "SELECT to_jsonb(k)::text FROM idempotency_keys AS k".to_owned(),
    ))
    .fetch_all(&owner)
    .await
    .expect("rows");
    let alone = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(body.to_string()));
    for row in kept {
        for secret in ["a-random-key", "analytical engine", &alone] {
            assert!(!row.contains(secret), "{row}");
        }
    }
}
