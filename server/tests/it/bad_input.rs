//! Bad input gets a 4xx that names field, value and remedy, and changes nothing.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::fixture::Server;
use crate::fleet::add_node;
use crate::page_form::{Form, browser};

#[sqlx::test(migrations = "../migrations")]
async fn every_wrong_value_is_named_with_its_remedy(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let put = "/teams/vision/quotas/h100";
    let quota = |text: &str| (Method::PUT, put, format!(r#"{{"guaranteed": {text}}}"#));
    let team = |name: &str| (Method::POST, "/teams", json!({"name": name}).to_string());
    let cases = [
        (quota("-1"), 422, "guaranteed"),
        (quota("0.0001"), 422, "guaranteed"),
        (quota("1000000000000"), 422, "guaranteed"),
        (quota("1e308"), 422, "guaranteed"),
        (quota("\"8\""), 422, "guaranteed"),
        (quota("null"), 422, "guaranteed"),
        (quota("NaN"), 400, "guaranteed"),
        ((Method::PUT, put, r#"{"guaranteed": 4, "limit": 3}"#.into()), 422, "guaranteed"),
        ((Method::PUT, put, r#"{"guaranteed": 4, "wieght": 3}"#.into()), 422, "wieght"),
        ((Method::PUT, put, r#"{"limit": 4}"#.into()), 422, "guaranteed"),
        (team("\"><svg/onload=1>"), 422, "name"),
        (team("a\r\nSet-Cookie: x"), 422, "name"),
        (team("../../x"), 422, "name"),
        (team("\u{202e}x"), 422, "name"),
        (team(&"x".repeat(300)), 422, "name"),
        ((Method::POST, "/teams", r#"{"name": "a", "parent": "nowhere"}"#.into()), 422, "parent"),
        ((Method::POST, "/teams", r#"{"name": "a", "hue": 3}"#.into()), 422, "hue"),
        ((Method::POST, "/teams", "{\"name\":".into()), 400, "name"),
        ((Method::POST, "/teams", "[]".into()), 422, "body"),
        ((Method::POST, "/pools", r#"{"name": "p", "sharing": ["fast"]}"#.into()), 422, "sharing[0]"),
        ((Method::POST, "/pools", r#"{"name": "p", "sharing": []}"#.into()), 422, "sharing"),
        ((Method::POST, "/pools", r#"{"name": "p", "preemption": {"grace_seconds": -1}}"#.into()), 422, "preemption.grace_seconds"),
        ((Method::POST, "/pools", r#"{"name": "p", "preemption": {"consolidate": "often"}}"#.into()), 422, "preemption.consolidate"),
        ((Method::POST, "/pools", r#"{"name": "p", "preemption": {"reclam": "any"}}"#.into()), 422, "preemption.reclam"),
        ((Method::POST, "/classes", r#"{"name": "c", "priority": 2000000, "preemptible": true}"#.into()), 422, "priority"),
        ((Method::POST, "/users", r#"{"name": "u", "display_name": "a\u0000b"}"#.into()), 422, "display_name"),
        ((Method::POST, "/users", r#"{"name": "u", "password": "short"}"#.into()), 422, "password"),
        ((Method::POST, "/users", r#"{"name": "u", "role": "root"}"#.into()), 422, "role"),
        ((Method::POST, "/prices", r#"{"pool": "h100", "mode": "exclusive", "per_gpu_hour": {"amount": "-1", "currency": "CNY"}}"#.into()), 422, "per_gpu_hour.amount"),
        ((Method::POST, "/prices", r#"{"pool": "h100", "mode": "exclusive", "per_gpu_hour": {"amount": "1", "currency": "yuan"}}"#.into()), 422, "per_gpu_hour.currency"),
        ((Method::POST, "/prices", r#"{"pool": "nowhere", "mode": "exclusive", "per_gpu_hour": {"amount": "1", "currency": "CNY"}}"#.into()), 422, "pool"),
        ((Method::POST, "/prices", r#"{"pool": "h100", "mode": "exclusive", "per_gpu_hour": {"amount": "1", "currency": "CNY"}, "effective_from": "tomorrow"}"#.into()), 422, "effective_from"),
        ((Method::POST, "/prices", r#"{"pool": "h100", "mode": "exclusive", "per_gpu_hour": {"amount": "1", "currency": "CNY"}, "effective_from": "+10000-01-01T00:00:00Z"}"#.into()), 422, "effective_from"),
        ((Method::POST, "/prices", r#"{"pool": "h100", "mode": "exclusive", "per_gpu_hour": {"amount": "1", "currency": "CNY"}, "effective_from": "9999-12-31T23:30:00-01:00"}"#.into()), 422, "effective_from"),
        ((Method::POST, "/teams/vision/jobs", r#"{"name": "f", "command": ["true"], "not_before": "-0001-01-01T00:00:00Z"}"#.into()), 422, "not_before"),
        ((Method::POST, "/teams/vision/jobs", r#"{"name": "f", "command": ["true"], "not_before": "9999-12-31T00:00:00Z"}"#.into()), 422, "not_before"),
        ((Method::GET, "/teams/vision/usage?from=%2B10000-01-01T00:00:00Z&to=%2B10000-01-02T00:00:00Z", String::new()), 422, "from"),
        ((Method::GET, "/usage/capacity?pool=h100&from=2026-01-01T00:00:00Z&to=%2B10000-01-02T00:00:00Z", String::new()), 422, "to"),
        ((Method::GET, "/audit?object=%00", String::new()), 422, "object"),
        ((Method::POST, "/teams/vision/jobs", r#"{"name": "f", "command": ["true"], "files": {"a": "x\u0000y"}}"#.into()), 422, "files.a"),
        ((Method::POST, "/teams/vision/jobs", r#"{"name": "f", "command": ["true"], "files": {"a": "x", "a/b": "y"}}"#.into()), 422, "files"),
        ((Method::GET, "/teams?limit=0", String::new()), 422, "limit"),
        ((Method::GET, "/teams?limit=-1", String::new()), 422, "limit"),
        ((Method::GET, "/teams?colour=red", String::new()), 422, "colour"),
        ((Method::GET, "/teams?cursor=notone", String::new()), 422, "cursor"),
        ((Method::GET, "/teams/nowhere", String::new()), 404, "team"),
        ((Method::GET, "/teams/%22%3E%3Csvg", String::new()), 404, "team"),
        ((Method::GET, "/teams/%ff", String::new()), 400, "team"),
        ((Method::PUT, "/teams/vision/quotas/nowhere", r#"{"guaranteed": 4}"#.into()), 404, "pool"),
    ];
    let before = everything(&owner).await;
    for ((method, path, body), status, field) in cases {
        let mut ask = admin.ask(method.clone(), path).header("If-Match", "\"1\"");
        if method != Method::GET {
            ask = ask.raw("application/json", body.clone());
        }
        let status = StatusCode::from_u16(status).expect("a status");
        let reply = ask.send().await;
        assert_eq!(
            reply.status, status,
            "{method} {path} {body}: {}",
            reply.text
        );
        let problem = reply.problem(status);
        assert_eq!(problem["field"], field, "{method} {path} {body}: {problem}");
        for part in ["value", "remedy", "detail"] {
            assert!(
                problem[part].as_str().is_some_and(|text| !text.is_empty()),
                "{method} {path} {body}: {problem}"
            );
        }
    }
    assert_eq!(everything(&owner).await, before, "nothing was changed");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_working_directory_is_refused_as_it_was_given(owner: PgPool) {
    let server = Server::start(&owner).await;
    let member = server.client("vision-member");
    for folder in ["/data/../etc", "/data//x", "../x", "./x", "", "a\nb"] {
        let spec = json!({"name": "f", "command": ["true"], "working_directory": folder});
        let problem = member
            .post("/teams/vision/jobs", spec)
            .await
            .problem(StatusCode::UNPROCESSABLE_ENTITY);
        let told = (&problem["field"], &problem["value"]);
        let value = domain::error::quote(folder);
        assert_eq!(told, (&json!("working_directory"), &json!(value)));
        let remedy = problem["remedy"].as_str().expect("a remedy");
        assert!(!remedy.contains("a relative path"), "{remedy}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn what_cannot_be_read_is_refused_before_it_is_read_in(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let post = |kind: &str, body: Vec<u8>| admin.ask(Method::POST, "/teams").raw(kind, body);
    let problem = post("application/json", vec![b' '; 10 * 1024 * 1024])
        .send()
        .await
        .problem(StatusCode::PAYLOAD_TOO_LARGE);
    assert!(
        problem["detail"]
            .as_str()
            .is_some_and(|d| d.contains("1048576"))
    );
    post("application/json", b"{\"name\": \"\xff\"}".to_vec())
        .send()
        .await
        .problem(StatusCode::BAD_REQUEST);
    post("application/json", "[".repeat(100_000).into_bytes())
        .send()
        .await
        .problem(StatusCode::BAD_REQUEST);
    let encoded = |how: &'static str| {
        let body = br#"{"name": "encoded"}"#.to_vec();
        post("application/json", body).header("Content-Encoding", how)
    };
    for how in ["gzip", "br", "identity, gzip", "x"] {
        let refused = encoded(how).send().await;
        assert_eq!(
            refused.headers.get("accept-encoding").map(|v| v.as_bytes()),
            Some(&b"identity"[..])
        );
        let problem = refused.problem(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert_eq!(
            (&problem["field"], &problem["value"]),
            (&json!("Content-Encoding"), &json!(how))
        );
    }
    encoded("identity").send().await.expect(StatusCode::CREATED);
    post("text/yaml", b"name: a".to_vec())
        .send()
        .await
        .problem(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let problem = admin.ask(Method::DELETE, "/teams").send().await;
    assert!(problem.headers.contains_key("allow"));
    problem.problem(StatusCode::METHOD_NOT_ALLOWED);
    admin
        .get("/no/such/route")
        .await
        .problem(StatusCode::NOT_FOUND);
}

#[sqlx::test(migrations = "../migrations")]
async fn an_update_says_which_version_it_builds_on(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let rename = json!({"name": "seeing"});
    admin
        .ask(Method::PATCH, "/teams/vision")
        .json(rename.clone())
        .send()
        .await
        .problem(StatusCode::PRECONDITION_REQUIRED);
    let stale = admin
        .patch("/teams/vision", 7, rename.clone())
        .await
        .problem(StatusCode::PRECONDITION_FAILED);
    assert_eq!(stale["remedy"], "\"1\", once you have read what changed");
    admin
        .ask(Method::PATCH, "/teams/vision")
        .header("If-Match", "1")
        .json(rename.clone())
        .send()
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    let reply = admin.patch("/teams/vision", 1, rename).await;
    assert_eq!(reply.headers["etag"], "\"2\"");
    assert_eq!(reply.expect(StatusCode::OK)["name"], "seeing");
    admin
        .put("/teams/seeing/quotas/h100", json!({"guaranteed": 1}))
        .send()
        .await
        .problem(StatusCode::PRECONDITION_REQUIRED);
    let there = admin
        .put("/teams/seeing/quotas/h100", json!({"guaranteed": 1}))
        .header("If-None-Match", "*")
        .send()
        .await
        .problem(StatusCode::PRECONDITION_FAILED);
    assert_eq!(
        (&there["field"], &there["value"], &there["remedy"]),
        (
            &json!("If-None-Match"),
            &json!("*"),
            &json!("If-Match: \"1\", once you have read it")
        )
    );
    assert_eq!(there["detail"], "it is there already, with version 1");
}

/// All rows that these requests could have changed, but for the audit log.
async fn everything(owner: &PgPool) -> Vec<Value> {
    let mut conn = owner.acquire().await.expect("a connection");
    sqlx::raw_sql("SET ROLE allotment_system")
        .execute(&mut *conn)
        .await
        .expect("the owner may");
    let mut all = Vec::new();
    for table in [
        "teams",
        "users",
        "quotas",
        "pools",
        "classes",
        "prices",
        "memberships",
        "jobs",
        "arrays",
        "events",
        "bookings",
        "windows",
        "window_quotas",
        "policy_versions",
        "idempotency_keys",
    ] {
        let rows: Vec<Value> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "SELECT to_jsonb(t) FROM {table} AS t ORDER BY to_jsonb(t)::text"
        )))
        .fetch_all(&mut *conn)
        .await
        .expect("rows");
        all.extend(rows);
    }
    sqlx::raw_sql("RESET ROLE")
        .execute(&mut *conn)
        .await
        .expect("reset");
    all
}

#[sqlx::test(migrations = "../migrations")]
async fn every_fault_of_a_job_is_told_at_once_by_each_door(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let member = server.client("vision-member");
    let wrong = json!({
        "name": "b", "command": ["true"], "workers": 0, "time_limit_seconds": -1,
        "class": "gold", "pools": ["nowhere"], "anti_affinity": "rack",
    });
    let fields = |problem: &Value| -> Vec<String> {
        let errors = problem["errors"].as_array().expect("all of them").iter();
        errors
            .map(|error| error["field"].as_str().expect("a field").to_owned())
            .collect()
    };
    let all = [
        "workers",
        "time_limit_seconds",
        "pools",
        "class",
        "anti_affinity",
    ];
    for path in ["/teams/vision/jobs", "/teams/vision/jobs/dry-run"] {
        let problem = member.post(path, wrong.clone()).await;
        let problem = problem.problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["field"], "workers", "{path}: the first as ever");
        assert_eq!(fields(&problem), all, "{path}");
    }
    let batch = json!({ "jobs": [wrong, { "name": "c", "command": [] }] });
    let problem = member.post("/teams/vision/jobs/batch", batch).await;
    let problem = problem.problem(StatusCode::UNPROCESSABLE_ENTITY);
    let told = fields(&problem);
    assert_eq!(told.len(), 6, "{told:?}");
    assert_eq!(
        (told[0].as_str(), told[5].as_str()),
        ("jobs[0].workers", "jobs[1].command")
    );
    // One alone is told as ever.
    let one = member
        .post("/teams/vision/jobs", json!({ "name": "c", "command": [] }))
        .await;
    let problem = one.problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem.get("errors"), None, "{problem}");

    let mut page = browser(&owner, &server, "vision-member").await;
    let form = Form::of(&page.get("/submit?team=vision").await, "/submit")
        .with("name", "b")
        .with("command", "true")
        .with("workers", "2000")
        .with("array_count", "20000")
        .with("time_limit_minutes", "0");
    let refused = form.send(&mut page, "").await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    for id in ["workers", "array_count", "time_limit_minutes"] {
        let marked = refused.html.contains(&format!("id=\"{id}-e\""));
        assert!(marked, "{id}: {}", refused.html);
    }
}
