//! Versions of policies as a list: which are named, and which are kept.

use axum::http::StatusCode;
use serde_json::json;
use server::background::retention;
use server::store;
use sqlx::PgPool;

use super::fixture::Server;

#[sqlx::test(migrations = "../migrations")]
async fn an_object_that_is_none_is_refused_by_name_with_how_one_is_written(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    for object in [
        "",
        "pool",
        "pool/",
        "pool/h100/demo",
        "quota/vision",
        "node/h100",
        "booking/h100/Demo",
        "pool/h100%00",
    ] {
        let path = format!("/policy-versions?object={object}");
        let refused = admin.get(&path).await;
        let problem = refused.problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["field"], "object", "{object:?}: {problem}");
        let remedy = problem["remedy"].as_str().expect("a remedy");
        assert!(remedy.contains("quota/TEAM/POOL"), "{remedy}");
    }
    let gone = admin
        .get("/policy-versions?object=window/h100/nights")
        .await;
    let gone = gone.expect(StatusCode::OK);
    assert_eq!(
        gone["items"],
        json!([]),
        "one that was never there has no changes"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn old_versions_go_and_the_newest_of_each_object_stays(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let kept = i32::try_from(server.app.config.retention.policy_versions_days).expect("days");
    let mut tx = server.app.db.begin_system().await.expect("begin");
    let now = store::clock(&mut tx).await.expect("now");
    let old = now - chrono::TimeDelta::days(i64::from(kept) + 1);
    let young = now - chrono::TimeDelta::days(i64::from(kept) - 1);
    for (object, version, at) in [
        ("class/long-gone", 1, old),
        ("class/long-gone", 2, old),
        ("class/changed-since", 1, old),
        ("class/changed-since", 2, young),
        ("class/changed-since", 3, young),
    ] {
        sqlx::query!(
            "INSERT INTO policy_versions (noun, object, version, at, actor_name, reason)
             VALUES ('class', $1, $2, $3, 'operator', '')",
            object,
            i64::from(version),
            at,
        )
        .execute(&mut *tx)
        .await
        .expect("inserted");
    }
    tx.commit().await.expect("committed");
    retention::sweep(&server.app).await.expect("swept");
    for (object, left) in [
        ("class/long-gone", json!([2])),
        ("class/changed-since", json!([3, 2])),
    ] {
        let path = format!("/policy-versions?object={object}");
        let page = admin.get(&path).await.expect(StatusCode::OK);
        let items = page["items"].as_array().expect("items");
        let versions: Vec<_> = items.iter().map(|v| v["version"].clone()).collect();
        assert_eq!(json!(versions), left, "{object}");
    }
    let mut tx = server.app.db.begin_system().await.expect("begin");
    let changed = sqlx::query!("UPDATE policy_versions SET reason = 'another'")
        .execute(&mut *tx)
        .await;
    assert!(changed.is_err(), "what is kept is never written over");
}
