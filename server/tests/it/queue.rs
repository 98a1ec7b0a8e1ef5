//! The queue of a pool: the engine's own order, own work by name, others' in sum.

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::fixture::{Client, Server};
use crate::fleet::{add_node, turn};
use crate::jobs::{id, spec, submit};
use crate::pages::{Browser, give_password};

/// A pool of four devices that one job holds, behind which two of vision and three of speech wait.
async fn crowded(owner: &PgPool) -> Server {
    let server = Server::start(owner).await;
    add_node(owner, "h100", "n1", 4).await;
    let (vision, speech) = (
        server.client("vision-member"),
        server.client("speech-member"),
    );
    submit(&speech, "speech", 4).await;
    turn(&server.app).await;
    for _ in 0..3 {
        submit(&speech, "speech", 2).await;
    }
    for _ in 0..2 {
        submit(&vision, "vision", 3).await;
    }
    server
}

async fn queue(client: &Client, query: &str) -> Value {
    let reply = client.get(&format!("/pools/h100/queue{query}")).await;
    reply.expect(StatusCode::OK)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// How many jobs of others a queue tells of.
fn others(queue: &Value) -> u64 {
    let items = queue["items"].as_array().expect("items");
    let before = items
        .iter()
        .map(|item| number(&item["others_before"]["jobs"]));
    before.sum::<u64>() + number(&queue["others_after"]["jobs"])
}

#[sqlx::test(migrations = "../migrations")]
async fn who_sees_all_reads_the_whole_order_and_a_member_its_own_work_within_it(owner: PgPool) {
    let server = crowded(&owner).await;
    let all = queue(&server.client("operator"), "").await;
    let items = all["items"].as_array().expect("items");
    let ranks: Vec<u64> = items.iter().map(|item| number(&item["rank"])).collect();
    assert_eq!(ranks, [1, 2, 3, 4, 5], "{all}");
    assert_eq!(all["all"], json!({ "jobs": 5, "gpus": 12 }));
    assert_eq!(others(&all), 0);
    assert!(items.iter().all(|item| item["waiting"]["code"].is_string()));

    let member = server.client("vision-member");
    let reply = member.get("/pools/h100/queue").await;
    assert!(!reply.text.contains("speech"), "{}", reply.text);
    let own = reply.expect(StatusCode::OK);
    let seen: Vec<&Value> = own["items"].as_array().expect("items").iter().collect();
    assert_eq!(seen.len(), 2, "{own}");
    assert_eq!((others(&own), &own["all"]), (3, &all["all"]));
    // Its jobs stand where they stand for who sees all.
    for item in seen {
        let rank = number(&item["rank"]);
        let there = items.iter().find(|other| other["rank"] == item["rank"]);
        assert_eq!(
            there.map(|there| &there["job"]),
            Some(&item["job"]),
            "{rank}"
        );
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_queue_is_read_page_by_page_without_losing_or_repeating_anybody(owner: PgPool) {
    let server = crowded(&owner).await;
    let member = server.client("vision-member");
    let first = queue(&member, "?limit=1").await;
    assert_eq!(first["others_after"], Value::Null, "there is more");
    let cursor = first["next_cursor"].as_str().expect("a second page");
    let second = queue(&member, &format!("?limit=1&cursor={cursor}")).await;
    assert_eq!(second["next_cursor"], Value::Null);
    assert_ne!(first["items"][0]["job"], second["items"][0]["job"]);
    let told = number(&first["items"][0]["others_before"]["jobs"]) + others(&second);
    assert_eq!(told, 3, "{first} {second}");
    member
        .get("/pools/nowhere/queue")
        .await
        .problem(StatusCode::NOT_FOUND);
    member
        .get("/pools/h100/queue?cursor=x")
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_held_back_or_comes_later_has_no_place_in_the_order(owner: PgPool) {
    let server = crowded(&owner).await;
    let member = server.client("vision-member");
    let mut late = spec(json!(1));
    late["not_before"] = json!("2100-01-01T00:00:00Z");
    let late = id(&member
        .post(crate::jobs::JOBS, late)
        .await
        .expect(StatusCode::CREATED));
    let held = id(&submit(&member, "vision", 1).await);
    member
        .post(&format!("/jobs/{held}/suspend"), json!({}))
        .await
        .expect(StatusCode::OK);
    let own = queue(&member, "").await;
    let items = own["items"].as_array().expect("items");
    let last = items.last().expect("it is told");
    assert_eq!((&last["job"], &last["rank"]), (&json!(late), &Value::Null));
    assert!(items.iter().all(|item| item["job"] != json!(held)), "{own}");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_page_shows_own_jobs_in_their_places_and_others_in_sum(owner: PgPool) {
    let server = crowded(&owner).await;
    // The first by name, in which nothing of the reader's waits.
    let another = json!({ "name": "a100" });
    let made = server.client("operator").post("/pools", another).await;
    made.expect(StatusCode::CREATED);
    give_password(&owner, server.users["vision-viewer"]).await;
    let mut browser = Browser::new(&server.app);
    browser.sign_in("vision-viewer").await;
    let page = browser.get("/queue").await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.html);
    assert!(
        page.html.contains("<b>5 jobs</b> wait in h100"),
        "{}",
        page.html
    );
    assert!(page.html.contains("of other teams, for"), "{}", page.html);
    assert!(!page.html.contains("speech"), "{}", page.html);
    assert_eq!(page.html.matches("<tr id=\"job-").count(), 2);
    let unknown = browser.get("/queue?pool=nowhere").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
}
