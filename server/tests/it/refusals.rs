//! What every refusal names, what null means in a change, and that a change of nothing is none.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::authorisation::Ground;
use crate::fixture::{Client, Server};
use crate::openapi::operations;

/// The properties of an object's schema, each with whether null is among what it takes.
fn properties(document: &Value, schema: &Value, below: &str) -> Vec<(String, bool)> {
    let schema = resolved(document, schema);
    let all = schema["properties"].as_object().into_iter().flatten();
    let mut found = Vec::new();
    for (name, property) in all {
        let path = format!("{below}{name}");
        let kinds = property["type"].as_array().into_iter().flatten();
        let one_of = property["oneOf"].as_array().into_iter().flatten();
        let mut nullable = kinds.chain(one_of.map(|one| &one["type"]));
        found.push((path.clone(), nullable.any(|kind| kind == "null")));
        found.extend(properties(document, property, &format!("{path}.")));
    }
    found
}

/// The schema itself, where a reference to it is given, alone or beside words of its own.
pub fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let all_of = schema["allOf"].as_array().and_then(|all| all.first());
    let schema = all_of.unwrap_or(schema);
    match schema["$ref"].as_str() {
        Some(path) => document.pointer(&path[1..]).expect("a schema"),
        None => schema,
    }
}

/// An object in which the field at `path` is null.
fn null_at(path: &str) -> Value {
    let inner = |value, key: &str| json!({ key: value });
    path.rsplit('.').fold(Value::Null, inner)
}

#[sqlx::test(migrations = "../migrations")]
async fn null_is_refused_by_name_where_it_means_nothing(owner: PgPool) {
    let ground = Ground::prepare(owner).await;
    ground.restore().await;
    let admin = ground.server.client("admin");
    let document = serde_json::to_value(server::api::document()).expect("a document");
    let (mut refused, mut taken) = (0, 0);
    for (path, method, operation) in operations() {
        if method != "patch" {
            continue;
        }
        let id = operation["operationId"].as_str().expect("an id");
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        for (field, nullable) in properties(&document, body, "") {
            let path = ground.path(id, &path);
            // A version that nothing has: what is read is changed all the same by nobody.
            let reply = admin.patch(&path, 999, null_at(&field)).await;
            if nullable {
                taken += 1;
                reply.problem(StatusCode::PRECONDITION_FAILED);
                continue;
            }
            refused += 1;
            assert_eq!(
                reply.status,
                StatusCode::UNPROCESSABLE_ENTITY,
                "{id} {field}: {}",
                reply.text
            );
            let problem = reply.problem(StatusCode::UNPROCESSABLE_ENTITY);
            let told = (problem["field"].as_str(), problem["value"].as_str());
            assert_eq!(told, (Some(field.as_str()), Some("null")), "{id}");
        }
    }
    assert!(refused > 30 && taken > 5, "{refused} {taken}");
}

/// What a change writes, beside the object.
async fn traces(server: &Server) -> [i64; 4] {
    let mut tx = server.app.db.begin_system().await.expect("begin");
    let mut counts = [0; 4];
    for (count, select) in counts.iter_mut().zip([
        "SELECT count(*) FROM audit",
        "SELECT count(*) FROM policy_versions",
        "SELECT count(*) FROM events",
        "SELECT count(*) FROM changes",
    ]) {
        *count = sqlx::query_scalar::<_, i64>(select)
            .fetch_one(&mut *tx)
            .await
            .expect("counted");
    }
    counts
}

async fn item(client: &Client, path: &str, name: &str) -> Value {
    let list = client.get(path).await.expect(StatusCode::OK);
    let items = list["items"].as_array().expect("items");
    let found = items.iter().find(|item| item["name"] == name);
    found.expect("it is listed").clone()
}

fn keys(whole: &Value, keys: &[&str]) -> Value {
    keys.iter()
        .map(|key| ((*key).to_owned(), whole[key].clone()))
        .collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_change_of_nothing_makes_no_version_no_audit_row_and_no_event(owner: PgPool) {
    let ground = Ground::prepare(owner).await;
    ground.restore().await;
    let admin = ground.server.client("admin");
    let pool = admin.get("/pools/h100").await.expect(StatusCode::OK);
    let class = item(&admin, "/classes", "normal").await;
    let booking = item(&admin, "/pools/h100/bookings", "spare").await;
    let window = item(&admin, "/pools/h100/windows", "spare").await;
    let user = admin
        .get("/users/vision-viewer")
        .await
        .expect(StatusCode::OK);
    let node = admin.get("/nodes/n1").await.expect(StatusCode::OK);
    let quota = json!({"guaranteed": 4, "limit": null, "lend_limit": null, "weight": 1});
    let before = traces(&ground.server).await;
    for (path, same) in [
        ("/teams/vision", json!({"name": "vision", "parent": "org"})),
        (
            "/users/vision-viewer",
            keys(&user, &["display_name", "role", "disabled"]),
        ),
        (
            "/pools/h100",
            keys(
                &pool,
                &[
                    "state",
                    "strategy",
                    "sharing",
                    "usage_half_life_seconds",
                    "preemption",
                ],
            ),
        ),
        (
            "/classes/normal",
            keys(&class, &["priority", "preemptible"]),
        ),
        (
            "/pools/h100/bookings/spare",
            keys(&booking, &["team", "gpus", "from", "to"]),
        ),
        (
            "/pools/h100/windows/spare",
            keys(&window, &["days", "from", "to", "time_zone", "quotas"]),
        ),
        ("/nodes/n1", keys(&node, &["labels"])),
        (
            &format!("/jobs/{}", ground.job),
            json!({"class": "normal", "time_limit_seconds": null}),
        ),
    ] {
        for same in [same, json!({})] {
            let reply = admin.patch(path, 1, same.clone()).await;
            let etag = reply.headers.get("etag").cloned();
            assert_eq!(reply.expect(StatusCode::OK)["version"], 1, "{path} {same}");
            assert_eq!(etag.expect("an ETag"), "\"1\"", "{path}");
        }
        // Who builds on another version is told so, though it wants what is there.
        admin
            .patch(path, 7, json!({}))
            .await
            .problem(StatusCode::PRECONDITION_FAILED);
    }
    let put = admin
        .put("/teams/vision/quotas/h100", quota.clone())
        .header("If-Match", "\"1\"")
        .send()
        .await;
    assert_eq!(put.expect(StatusCode::OK)["version"], 1);
    let batch =
        json!({"quotas": [{"team": "vision", "pool": "h100", "version": 1, "quota": quota}]});
    let batch = admin
        .post("/quotas/batch", batch)
        .await
        .expect(StatusCode::OK);
    assert_eq!(batch["items"][0]["version"], 1);
    let cordon = json!({});
    admin
        .post("/nodes/n1/uncordon", cordon)
        .await
        .expect(StatusCode::OK);
    assert_eq!(traces(&ground.server).await, before);
    let member = json!({"user": "vision-viewer", "role": "viewer"});
    admin
        .post("/teams/vision/members", member)
        .await
        .expect(StatusCode::OK);
    assert_eq!(traces(&ground.server).await[0], before[0], "audit");
    // What does change something still does, once.
    let patched = admin
        .patch("/classes/normal", 1, json!({"priority": 7}))
        .await;
    assert_eq!(patched.expect(StatusCode::OK)["version"], 2);
    assert_ne!(traces(&ground.server).await, before);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_conflict_names_field_value_and_remedy(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let told = |problem: &Value| {
        let text = |key: &str| problem[key].as_str().unwrap_or_default().to_owned();
        (text("field"), text("value"), text("remedy"))
    };
    let conflict = async |path: &str, body: Value| {
        told(&admin.post(path, body).await.problem(StatusCode::CONFLICT))
    };
    let class = json!({"name": "normal", "priority": 1, "preemptible": true});
    for (path, body, value) in [
        ("/teams", json!({"name": "vision"}), "vision"),
        ("/pools", json!({"name": "h100"}), "h100"),
        ("/users", json!({"name": "operator"}), "operator"),
        ("/classes", class, "normal"),
    ] {
        let named = ("name".into(), value.into(), "choose another name".into());
        assert_eq!(conflict(path, body).await, named, "{path}");
    }
    let kept = admin
        .ask(Method::DELETE, "/classes/normal")
        .header("If-Match", "\"1\"");
    let kept = told(&kept.send().await.problem(StatusCode::CONFLICT));
    assert_eq!(kept, ("class".into(), "normal".into(), "it stays".into()));
    let last = admin
        .patch("/users/admin", 1, json!({"disabled": true}))
        .await;
    let last = told(&last.problem(StatusCode::CONFLICT));
    assert_eq!(
        last,
        (
            "disabled".into(),
            "true".into(),
            "make another one first".into()
        )
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn an_empty_or_repeated_word_of_a_query_is_refused_by_name_and_value(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    for (query, field, value) in [
        ("/usage?group_by=", "group_by", ""),
        ("/usage?group_by=team,team", "group_by", "team"),
        ("/usage?group_by=team,", "group_by", ""),
        (
            "/usage?group_by=day&group_by=team",
            "group_by",
            "a second value",
        ),
        (
            "/teams/vision/usage?group_by=user,job,user",
            "group_by",
            "user",
        ),
        ("/jobs?state=", "state", ""),
        ("/jobs?state=queued,running,queued", "state", "queued"),
        ("/jobs?team=", "team", ""),
        ("/jobs?user=", "user", ""),
        ("/nodes?pool=", "pool", ""),
        ("/prices?pool=", "pool", ""),
        ("/audit?object=", "object", ""),
        ("/policy-versions?object=", "object", ""),
        ("/policy-versions?noun=", "noun", ""),
        ("/teams?cursor=", "cursor", ""),
        ("/teams?limit=", "limit", ""),
    ] {
        let reply = admin.get(query).await;
        assert_eq!(
            reply.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{query}: {}",
            reply.text
        );
        let problem = reply.problem(StatusCode::UNPROCESSABLE_ENTITY);
        let told = (problem["field"].as_str(), problem["value"].as_str());
        assert_eq!(told, (Some(field), Some(value)), "{query}");
        assert!(
            problem["remedy"].as_str().is_some_and(|r| !r.is_empty()),
            "{query}"
        );
    }
}
