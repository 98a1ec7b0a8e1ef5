//! What clients lean on in every answer alike: objects that are objects, versions that name one state,
//! and refusals that name what was sent.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::authorisation::Ground;
use crate::fixture::Server;
use crate::fleet::add_node;
use crate::openapi::operations;
use crate::refusals::resolved;

/// Bodies in which an array stands where an object is taken, each with the path of that object.
fn arrays_for_objects(document: &Value, schema: &Value) -> Vec<(String, Value)> {
    let mut one_of = schema["oneOf"].as_array().into_iter().flatten();
    let schema = one_of.rfind(|one| one["type"] != "null").unwrap_or(schema);
    let schema = resolved(document, schema);
    let mut found = Vec::new();
    if schema["items"].is_object() {
        let inner = arrays_for_objects(document, &schema["items"]);
        found.extend(inner.into_iter().map(|(path, value)| {
            let dot = if path.is_empty() { "" } else { "." };
            (format!("[0]{dot}{path}"), json!([value]))
        }));
    }
    let properties = schema["properties"].as_object();
    if properties.is_some() || schema["additionalProperties"].is_object() {
        found.push((String::new(), json!([])));
    }
    for (name, property) in properties.into_iter().flatten() {
        let inner = arrays_for_objects(document, property);
        found.extend(inner.into_iter().map(|(path, value)| {
            let dot = if path.is_empty() || path.starts_with('[') {
                ""
            } else {
                "."
            };
            (format!("{name}{dot}{path}"), json!({ name: value }))
        }));
    }
    found
}

#[sqlx::test(migrations = "../migrations")]
async fn an_array_is_taken_for_an_object_nowhere_in_any_body(owner: PgPool) {
    let ground = Ground::prepare(owner).await;
    ground.restore().await;
    let admin = ground.server.client("admin");
    let document = serde_json::to_value(server::api::document()).expect("a document");
    let mut bodies = Vec::new();
    for (path, method, operation) in operations() {
        let id = operation["operationId"].as_str().expect("an id");
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        let method: Method = method.to_uppercase().parse().expect("a method");
        for (field, body) in arrays_for_objects(&document, body) {
            bodies.push((method.clone(), ground.path(id, &path), field, body));
        }
    }
    assert!(bodies.len() > 60, "{}", bodies.len());
    // What is well-formed by the order of the fields.
    let jobs = "/teams/vision/jobs";
    for (method, path, field, body) in [
        (
            Method::PATCH,
            "/pools/h100",
            "preemption",
            json!(["never", "never", true, 1, 2]),
        ),
        (Method::POST, jobs, "per_worker", json!([1])),
        (Method::POST, jobs, "retries", json!([2, ["failure"]])),
        (Method::POST, jobs, "array", json!([3])),
        (Method::POST, "/prices", "per_gpu_hour", json!(["1", "CNY"])),
    ] {
        bodies.push((method, path.into(), field.into(), json!({ field: body })));
    }
    let quotas = json!({"quotas": [["vision", {"guaranteed": 2}]]});
    let windows = "/pools/h100/windows".to_owned();
    bodies.push((Method::POST, windows, "quotas[0]".into(), quotas));
    for (method, path, field, body) in bodies {
        let reply = admin
            .ask(method.clone(), &path)
            .header("If-Match", "\"999\"")
            .json(body.clone())
            .send()
            .await;
        let told = format!("{method} {path} {body}: {}", reply.text);
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{told}");
        let problem = reply.problem(StatusCode::UNPROCESSABLE_ENTITY);
        let field = if field.is_empty() { "body" } else { &field };
        assert_eq!(problem["field"], field, "{told}");
        assert_eq!(problem["remedy"], "an object", "{told}");
    }
}

#[test]
fn whatever_has_a_version_is_changed_and_removed_at_one() {
    // What is made and removed alone has none, and a quota may be made by the same call.
    let unversioned = ["remove_member", "delete_webhook", "delete_subscription"];
    for (path, method, operation) in operations() {
        let id = operation["operationId"].as_str().expect("an id");
        if !["patch", "put", "delete"].contains(&method.as_str()) || unversioned.contains(&id) {
            continue;
        }
        let parameters = operation["parameters"].as_array().expect("parameters");
        let version = parameters.iter().find(|one| one["name"] == "If-Match");
        let version = version.unwrap_or_else(|| panic!("{method} {path} takes no If-Match"));
        assert!(version["required"] == true || id == "put_quota", "{id}");
        assert!(operation["responses"]["428"].is_object(), "{id}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_class_is_removed_at_the_version_that_was_read(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let class = json!({"name": "spare", "priority": 1, "preemptible": true});
    admin
        .post("/classes", class)
        .await
        .expect(StatusCode::CREATED);
    let unread = admin.delete("/classes/spare").await;
    let problem = unread.problem(StatusCode::PRECONDITION_REQUIRED);
    assert_eq!(
        (&problem["field"], &problem["value"]),
        (&json!("If-Match"), &json!("nothing"))
    );
    for (version, status) in [
        (2, StatusCode::PRECONDITION_FAILED),
        (1, StatusCode::NO_CONTENT),
    ] {
        assert_eq!(admin.remove("/classes/spare", version).await.status, status);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_name_that_is_used_again_goes_on_with_its_versions(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let quota = json!({"guaranteed": 1});
    let booking = json!({
        "name": "aba", "team": "vision", "gpus": 1,
        "from": "2126-01-01T00:00:00Z", "to": "2126-01-02T00:00:00Z",
    });
    let window = json!({
        "name": "aba", "days": ["mon"], "from": "20:00", "to": "08:00",
        "quotas": [{"team": "vision", "quota": quota}],
    });
    for (path, object, new) in [
        (
            "/classes",
            "class/aba",
            json!({"name": "aba", "priority": 1, "preemptible": true}),
        ),
        ("/pools/h100/bookings", "booking/h100/aba", booking),
        ("/pools/h100/windows", "window/h100/aba", window),
    ] {
        let make = async |version: i64| {
            let made = admin.post(path, new.clone()).await;
            assert_eq!(made.headers["etag"], format!("\"{version}\""), "{path}");
            let made = made.expect(StatusCode::CREATED);
            assert_eq!(made["version"], version, "{path}");
        };
        let one = format!("{path}/aba");
        make(1).await;
        admin.remove(&one, 1).await.expect(StatusCode::NO_CONTENT);
        make(3).await;
        // What was read before guards nothing that came after.
        let stale = admin.remove(&one, 1).await;
        stale.problem(StatusCode::PRECONDITION_FAILED);
        admin.remove(&one, 3).await.expect(StatusCode::NO_CONTENT);
        let history = format!("/policy-versions?object={object}");
        let changes = admin.get(&history).await.expect(StatusCode::OK);
        let made = changes["items"].as_array().expect("items").last().cloned();
        let id = &made.expect("it was made")["id"];
        admin
            .ask(Method::POST, &format!("/policy-versions/{id}/restore"))
            .header("If-None-Match", "*")
            .json(json!({}))
            .send()
            .await
            .expect(StatusCode::OK);
        let changes = admin.get(&history).await.expect(StatusCode::OK);
        let items = changes["items"].as_array().expect("items");
        let versions: Vec<&Value> = items.iter().map(|item| &item["version"]).collect();
        assert_eq!(json!(versions), json!([5, 4, 3, 2, 1]), "{path}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_guarantee_beyond_the_team_above_is_told_by_what_was_sent(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let create = async |path: &str, quota: Value| {
        let ask = admin.put(path, quota).header("If-None-Match", "*");
        ask.send().await.expect(StatusCode::CREATED);
    };
    create("/teams/org/quotas/h100", json!({"guaranteed": 8})).await;
    let lab = admin.post("/teams", json!({"name": "lab"})).await;
    lab.expect(StatusCode::CREATED);
    create("/teams/lab/quotas/h100", json!({"guaranteed": 4})).await;
    let five = json!({"guaranteed": 5});
    let row = json!({"team": "vision", "pool": "h100", "quota": five});
    let same = json!({"team": "lab", "pool": "h100", "quota": {"guaranteed": 3}});
    let versioned = |row: &Value| {
        let mut row = row.clone();
        row["version"] = json!(1);
        row
    };
    let window = json!({
        "name": "nights", "days": ["mon"], "from": "20:00", "to": "08:00",
        "quotas": [{"team": "lab", "quota": {"guaranteed": 1}}, {"team": "vision", "quota": five}],
    });
    let mut drafted = window.clone();
    drafted["pool"] = json!("h100");
    let put = admin.put("/teams/vision/quotas/h100", five.clone());
    let (post, patch) = (Method::POST, Method::PATCH);
    let asks = [
        (put, "guaranteed", "5"),
        (
            admin
                .ask(post.clone(), "/quotas/batch")
                .json(json!({"quotas": [versioned(&same), versioned(&row)]})),
            "quotas[1].quota.guaranteed",
            "5",
        ),
        (
            admin.ask(post.clone(), "/pools/h100/windows").json(window),
            "quotas[1].quota.guaranteed",
            "5",
        ),
        (
            admin
                .ask(post.clone(), "/planning/policy-diff")
                .json(json!({"quotas": [same, row]})),
            "quotas[1].quota.guaranteed",
            "5",
        ),
        (
            admin
                .ask(post, "/planning/policy-diff")
                .json(json!({"windows": [drafted]})),
            "windows[0].quotas[1].quota.guaranteed",
            "5",
        ),
        (
            admin
                .ask(patch, "/teams/lab")
                .json(json!({"parent": "org"})),
            "parent",
            "org",
        ),
    ];
    for (ask, field, value) in asks {
        let reply = ask.header("If-Match", "\"1\"").send().await;
        let problem = reply.problem(StatusCode::UNPROCESSABLE_ENTITY);
        let told = (&problem["field"], &problem["value"]);
        assert_eq!(told, (&json!(field), &json!(value)), "{problem}");
        let remedy = problem["remedy"].as_str().expect("a remedy");
        assert!(remedy.contains("below team org add up to"), "{remedy}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_set_twice_at_once_is_refused_by_its_second_place(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let quota = json!({"team": "vision", "pool": "h100", "quota": {"guaranteed": 1}});
    let mut versioned = quota.clone();
    versioned["version"] = json!(1);
    let pool = json!({"pool": "h100", "policy": {}});
    let class = json!({"name": "normal", "priority": 1, "preemptible": true});
    let booking = json!({
        "pool": "h100", "name": "demo", "team": "vision", "gpus": 1,
        "from": "2126-01-01T00:00:00Z", "to": "2126-01-02T00:00:00Z",
    });
    let window = json!({
        "pool": "h100", "name": "nights", "days": ["mon"], "from": "20:00", "to": "08:00",
        "quotas": [{"team": "vision", "quota": {"guaranteed": 1}}],
    });
    let diff = "/planning/policy-diff";
    for (path, key, one, field) in [
        ("/quotas/batch", "quotas", versioned, "quotas[1].team"),
        (diff, "quotas", quota, "quotas[1].team"),
        (diff, "pools", pool, "pools[1].pool"),
        (diff, "classes", class, "classes[1].name"),
        (diff, "bookings", booking, "bookings[1].name"),
        (diff, "windows", window, "windows[1].name"),
        (diff, "versions", json!(1), "versions[1]"),
    ] {
        let reply = admin.post(path, json!({ key: [one, one] })).await;
        let problem = reply.problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["field"], field, "{problem}");
        let remedy = problem["remedy"].as_str().expect("a remedy");
        assert!(remedy.ends_with("once"), "{remedy}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_team_that_is_listed_is_read_with_its_name_and_place(owner: PgPool) {
    let server = Server::start(&owner).await;
    let viewer = server.client("vision-viewer");
    let listed = viewer.get("/teams").await.expect(StatusCode::OK);
    let items = listed["items"].as_array().expect("teams");
    assert!(items.iter().any(|team| team["name"] == "org"));
    for team in items {
        let path = format!("/teams/{}", team["name"].as_str().expect("a name"));
        assert_eq!(viewer.get(&path).await.expect(StatusCode::OK), *team);
    }
    // Nothing more is there of the one above.
    for path in ["/teams/org/quotas", "/teams/org/members", "/teams/speech"] {
        viewer.get(path).await.problem(StatusCode::NOT_FOUND);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_tells_the_gpus_that_it_asks_for_by_default(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 1).await;
    let member = server.client("vision-member");
    let spec = json!({"name": "a", "command": ["true"], "per_worker": {"cpus": 1}});
    let made = member.post("/teams/vision/jobs", spec).await;
    let made = made.expect(StatusCode::CREATED);
    assert_eq!(made["spec"]["per_worker"]["gpus"], 0, "{made}");
    let path = format!("/jobs/{}", made["id"].as_str().expect("an id"));
    let read = member.get(&path).await.expect(StatusCode::OK);
    assert_eq!(read["spec"]["per_worker"]["gpus"], 0, "{read}");
    let null = json!({"name": "a", "command": ["true"], "per_worker": {"gpus": null}});
    let refused = member.post("/teams/vision/jobs", null).await;
    let problem = refused.problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        (&problem["field"], &problem["value"]),
        (&json!("per_worker.gpus"), &json!("null"))
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn every_refusal_says_what_it_can_of_field_value_and_remedy(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let viewer = server.client("vision-viewer");
    let large = vec![b' '; 2 * 1024 * 1024];
    for (ask, status, field, value, remedy) in [
        (
            admin.ask(Method::DELETE, "/teams"),
            405,
            "method",
            "DELETE",
            "one that the header Allow names",
        ),
        (
            admin.ask(Method::GET, "/no/such/route"),
            404,
            "path",
            "/no/such/route",
            "a path of openapi.yaml",
        ),
        (
            admin.ask(Method::POST, "/teams").raw("text/yaml", "a: b"),
            415,
            "Content-Type",
            "text/yaml",
            "application/json",
        ),
        (
            admin
                .ask(Method::POST, "/teams")
                .raw("application/json", large),
            413,
            "body",
            "more than 1048576 bytes",
            "at most 1048576 bytes: send less, or in parts",
        ),
        (
            viewer
                .ask(Method::POST, "/pools")
                .json(json!({"name": "p"})),
            403,
            "operation",
            "create_pool",
            "the platform role admin or operator",
        ),
        (
            admin.ask(Method::GET, "/jobs?user=nope"),
            404,
            "user",
            "nope",
            "the name or id of a user that you may see",
        ),
        (
            admin.ask(Method::GET, "/jobs?team=nope"),
            404,
            "team",
            "nope",
            "the name or id of a team that you may see",
        ),
        (
            admin
                .ask(Method::POST, "/policy-versions/abc/restore")
                .header("If-Match", "\"1\""),
            404,
            "policy version",
            "abc",
            "the name or id of a policy version that you may see",
        ),
        (
            admin
                .ask(Method::POST, "/teams")
                .raw("application/json", "{"),
            400,
            "body",
            "the end",
            "JSON, which it is not from line 1 column 1 on: EOF while parsing an object",
        ),
        (
            server
                .client("vision-member")
                .ask(Method::POST, "/teams/vision/jobs")
                .json(json!({"name": "a", "command": [""]})),
            422,
            "command",
            "[\"\"]",
            "a program and its arguments",
        ),
    ] {
        let status = StatusCode::from_u16(status).expect("a status");
        let problem = ask.send().await.problem(status);
        let told = (&problem["field"], &problem["value"], &problem["remedy"]);
        let said = (&json!(field), &json!(value), &json!(remedy));
        assert_eq!(told, said, "{problem}");
    }
}
