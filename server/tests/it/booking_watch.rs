//! Bookings that can no longer be had whole: noticed, told once, and let go again.

use axum::http::StatusCode;
use serde_json::{Value, json};
use server::app::bookings;
use sqlx::PgPool;

use super::fixture::Server;
use super::fleet::add_node;
use super::simulated::Clock;

/// What the audit log says of the booking, the newest first.
async fn told(server: &Server) -> Vec<(Value, Value)> {
    let log = server.client("auditor").get("/audit").await;
    let log = log.expect(StatusCode::OK);
    let of_it =
        |line: &&Value| line["object"] == "booking/h100/demo" && line["actor"] == "allotment";
    let lines = log["items"].as_array().expect("items").iter();
    lines
        .filter(of_it)
        .map(|line| (line["action"].clone(), line["after"]["capacity"].clone()))
        .collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_booking_that_a_failed_device_or_a_lost_node_takes_from_is_noticed_and_told_once(
    owner: PgPool,
) {
    let _clock = Clock::at(&owner, "2026-01-05T08:00:00Z").await;
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    add_node(&owner, "h100", "n2", 4).await;
    let demo = json!({
        "name": "demo", "team": "vision", "gpus": 4, "from": "2026-01-06T09:00:00Z", "to": "2026-01-06T17:00:00Z"
    });
    let operator = server.client("operator");
    let made = operator.post("/pools/h100/bookings", demo).await;
    let made = made.expect(StatusCode::CREATED);
    assert_eq!(
        (&made["conflicts"], &made["conflict_since"]),
        (&json!([]), &Value::Null)
    );
    let watch = async || bookings::watch(&server.app).await.expect("watched");
    // Nothing of its own happened: what the feed tells of it comes from the watch.
    let changes = async || {
        sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM changes WHERE noun = 'booking' AND team_id IS NOT NULL"#
        )
        .fetch_one(&owner)
        .await
        .expect("changes")
    };
    watch().await;
    assert_eq!(told(&server).await, [], "all is there");
    let before = changes().await;

    sqlx::query!(
        "UPDATE devices SET health = 'failed', version = version + 1
         WHERE index = 0 AND node_id = (SELECT id FROM nodes WHERE name = 'n1')"
    )
    .execute(&owner)
    .await
    .expect("failed");
    // Twice, as two replicas would.
    watch().await;
    watch().await;
    let in_conflict = |capacity: i32| (json!("booking_in_conflict"), json!(capacity));
    assert_eq!(told(&server).await, [in_conflict(11)]);
    assert_eq!(changes().await, before + 1, "live pages are told once");
    let list = async |user: &str| {
        let page = server.fresh(user).await.get("/pools/h100/bookings").await;
        page.expect(StatusCode::OK)["items"][0].clone()
    };
    let seen = list("vision-viewer").await;
    assert_eq!(seen["conflict_since"], "2026-01-05T08:00:00Z", "{seen}");
    assert_eq!(seen["conflicts"][0]["excess"], 1, "{seen}");
    assert_eq!(seen["version"], 1, "nobody changed it");

    sqlx::query!(
        "UPDATE devices SET health = 'healthy', version = version + 1 WHERE health = 'failed'"
    )
    .execute(&owner)
    .await
    .expect("well again");
    watch().await;
    let again = (json!("booking_honoured_again"), Value::Null);
    assert_eq!(told(&server).await, [again.clone(), in_conflict(11)]);
    assert_eq!(list("vision-viewer").await["conflict_since"], Value::Null);

    sqlx::query!("UPDATE nodes SET reachability = 'lost', version = version + 1 WHERE name = 'n2'")
        .execute(&owner)
        .await
        .expect("lost");
    watch().await;
    assert_eq!(
        told(&server).await,
        [in_conflict(8), again, in_conflict(11)]
    );
}
