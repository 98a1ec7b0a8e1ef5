//! Signing in and out, and what ends a session.

use axum::http::{Method, StatusCode};
use serde_json::json;
use sqlx::PgPool;

use crate::fixture::Server;

const PASSWORD: &str = "analytical engine";

async fn log_in(server: &Server, name: &str, password: &str) -> crate::fixture::Reply {
    server
        .stranger()
        .post(
            "/auth/login",
            json!({"username": name, "password": password}),
        )
        .await
}

#[sqlx::test(migrations = "../migrations")]
async fn a_log_in_gives_a_token_that_ends_with_the_log_out(owner: PgPool) {
    let server = Server::start(&owner).await;
    server
        .client("admin")
        .post("/users", json!({"name": "ada", "password": PASSWORD}))
        .await
        .expect(StatusCode::CREATED);
    let opened = log_in(&server, "ada", PASSWORD)
        .await
        .expect(StatusCode::OK);
    assert!(opened["expires_at"].is_string());
    let ada = server.bearer(opened["token"].as_str().expect("a token"));
    let me = ada.get("/auth/whoami").await.expect(StatusCode::OK);
    assert_eq!(
        (&me["name"], &me["role"], &me["teams"]),
        (&json!("ada"), &json!(null), &json!([]))
    );
    ada.post("/auth/logout", json!({}))
        .await
        .expect(StatusCode::NO_CONTENT);
    let refused = ada.get("/auth/whoami").await;
    assert_eq!(refused.headers["www-authenticate"], "Bearer");
    refused.problem(StatusCode::UNAUTHORIZED);
}

#[sqlx::test(migrations = "../migrations")]
async fn an_unknown_name_and_a_wrong_password_look_alike_and_guessing_is_slowed(owner: PgPool) {
    let server = Server::start(&owner).await;
    let alike = |reply: crate::fixture::Reply| {
        let mut problem = reply.problem(StatusCode::UNAUTHORIZED);
        problem["request_id"] = json!(null);
        problem
    };
    let unknown = alike(log_in(&server, "nobody", "x").await);
    assert_eq!(alike(log_in(&server, "a\0b", "x").await), unknown);
    assert_eq!(alike(log_in(&server, "vision-member", "x").await), unknown);
    for _ in 0..5 {
        log_in(&server, "nobody", "x").await;
    }
    let slowed = log_in(&server, "nobody", "x").await;
    assert!(slowed.headers.contains_key("retry-after"));
    slowed.problem(StatusCode::TOO_MANY_REQUESTS);
    // Somebody else is not kept waiting for it.
    log_in(&server, "vision-viewer", "x")
        .await
        .problem(StatusCode::UNAUTHORIZED);
}

#[sqlx::test(migrations = "../migrations")]
async fn guesses_made_at_once_are_slowed_as_well(owner: PgPool) {
    let server = Server::start(&owner).await;
    let guesses = (0..20).map(|_| log_in(&server, "vision-member", "x"));
    let replies = futures_util::future::join_all(guesses).await;
    let slowed = replies
        .iter()
        .filter(|reply| reply.status == StatusCode::TOO_MANY_REQUESTS)
        .count();
    assert!(slowed >= 10, "{slowed} of 20 were slowed");
}

#[sqlx::test(migrations = "../migrations")]
async fn guesses_at_the_present_password_are_slowed_as_well_when_made_at_once(owner: PgPool) {
    let server = Server::start(&owner).await;
    crate::pages::give_password(&owner, server.users["vision-member"]).await;
    let member = server.client("vision-member");
    let change = json!({"current": "wrong", "new": "difference engine"});
    let guesses = (0..20).map(|_| member.post("/auth/password", change.clone()));
    let replies = futures_util::future::join_all(guesses).await;
    let slowed = replies
        .iter()
        .filter(|reply| reply.status == StatusCode::TOO_MANY_REQUESTS)
        .count();
    assert!(slowed >= 10, "{slowed} of 20 were slowed");
    let other = server.client("vision-owner");
    crate::pages::give_password(&owner, server.users["vision-owner"]).await;
    let mut current = crate::pages::PASSWORD.to_owned();
    for n in 0..10 {
        let new = format!("difference engine {n}");
        other
            .post("/auth/password", json!({"current": current, "new": new}))
            .await
            .expect(StatusCode::NO_CONTENT);
        current = new;
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_disabled_persons_sessions_end_at_once(owner: PgPool) {
    let server = Server::start(&owner).await;
    let member = server.client("vision-member");
    member.get("/auth/whoami").await.expect(StatusCode::OK);
    let disabled = server
        .client("admin")
        .patch("/users/vision-member", 1, json!({"disabled": true}))
        .await
        .expect(StatusCode::OK);
    assert_eq!(disabled["disabled"], true);
    member
        .get("/auth/whoami")
        .await
        .problem(StatusCode::UNAUTHORIZED);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_changed_password_ends_the_other_sessions_only(owner: PgPool) {
    let server = Server::start(&owner).await;
    server
        .client("admin")
        .post("/users", json!({"name": "ada", "password": PASSWORD}))
        .await
        .expect(StatusCode::CREATED);
    let mut clients = Vec::new();
    for _ in 0..2 {
        let opened = log_in(&server, "ada", PASSWORD)
            .await
            .expect(StatusCode::OK);
        clients.push(server.bearer(opened["token"].as_str().expect("a token")));
    }
    clients[0]
        .post(
            "/auth/password",
            json!({"current": "wrong", "new": "difference engine"}),
        )
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    clients[0]
        .post(
            "/auth/password",
            json!({"current": PASSWORD, "new": "difference engine"}),
        )
        .await
        .expect(StatusCode::NO_CONTENT);
    clients[0].get("/auth/whoami").await.expect(StatusCode::OK);
    clients[1]
        .get("/auth/whoami")
        .await
        .problem(StatusCode::UNAUTHORIZED);
    log_in(&server, "ada", PASSWORD)
        .await
        .problem(StatusCode::UNAUTHORIZED);
    log_in(&server, "ada", "difference engine")
        .await
        .expect(StatusCode::OK);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_no_token_is_nobody(owner: PgPool) {
    let server = Server::start(&owner).await;
    for token in [
        "",
        "x",
        "alt__",
        "alt_0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f_x",
    ] {
        server
            .bearer(token)
            .get("/teams")
            .await
            .problem(StatusCode::UNAUTHORIZED);
    }
    server
        .stranger()
        .ask(Method::GET, "/teams")
        .header("Cookie", "allotment=x")
        .send()
        .await
        .problem(StatusCode::UNAUTHORIZED);
}

#[sqlx::test(migrations = "../migrations")]
async fn the_last_administrator_stays(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    for change in [json!({"role": null}), json!({"disabled": true})] {
        admin
            .patch("/users/admin", 1, change)
            .await
            .problem(StatusCode::CONFLICT);
    }
    let changed = admin
        .patch(
            "/users/operator",
            1,
            json!({"role": null, "display_name": "Grace"}),
        )
        .await
        .expect(StatusCode::OK);
    assert_eq!(
        (&changed["role"], &changed["display_name"]),
        (&json!(null), &json!("Grace"))
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn who_finds_no_place_to_have_a_password_hashed_is_told_when_to_come_again(owner: PgPool) {
    let server = Server::start(&owner).await;
    let places: Vec<_> = std::iter::from_fn(|| server.app.hashing.queue().ok())
        .take(10_000)
        .collect();
    assert!(places.len() < 1_000, "{} wait", places.len());
    for _ in 0..10 {
        let busy = log_in(&server, "vision-member", "x").await;
        assert!(busy.headers.contains_key("retry-after"));
        busy.problem(StatusCode::SERVICE_UNAVAILABLE);
    }
    let refused = server
        .client("admin")
        .post("/users", json!({"name": "ada", "password": PASSWORD}))
        .await;
    refused.problem(StatusCode::SERVICE_UNAVAILABLE);
    drop(places);
    // Nothing was guessed meanwhile, and nobody was made without the password.
    log_in(&server, "vision-member", "x")
        .await
        .problem(StatusCode::UNAUTHORIZED);
    server
        .client("admin")
        .get("/users/ada")
        .await
        .problem(StatusCode::NOT_FOUND);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_log_in_that_cannot_be_recorded_opens_no_session(owner: PgPool) {
    let server = Server::start(&owner).await;
    crate::pages::give_password(&owner, server.users["vision-member"]).await;
    let sessions = async || {
        let mut tx = server.app.db.begin_system().await.expect("begin");
        sqlx::query_scalar::<_, i64>("SELECT count(*) FROM sessions")
            .fetch_one(&mut *tx)
            .await
            .expect("counted")
    };
    let before = sessions().await;
    sqlx::raw_sql("REVOKE INSERT ON audit FROM allotment_system")
        .execute(&owner)
        .await
        .expect("the owner may");
    log_in(&server, "vision-member", crate::pages::PASSWORD)
        .await
        .problem(StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(sessions().await, before);
}
