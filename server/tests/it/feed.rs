//! The change feed: nothing is missed, nothing comes twice, and nobody learns of others' work.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use domain::ids::{JobId, RequestId};
use serde_json::json;
use server::app::feed::{self, FeedItem, Subscription};
use server::app::sessions::{self, SessionKind};
use server::store::changes;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::fixture::Server;
use super::fleet::{Fleet, settled};
use super::machine::eventually;

/// Longest wait for an item that must come.
const PATIENCE: Duration = Duration::from_secs(20);

async fn next(subscription: &mut Subscription) -> FeedItem {
    tokio::time::timeout(PATIENCE, subscription.next())
        .await
        .expect("an item comes")
        .expect("the stream goes on")
}

/// Items up to the one on this job.
async fn until(subscription: &mut Subscription, job: JobId) -> Vec<FeedItem> {
    let mut items = Vec::new();
    loop {
        let item = next(subscription).await;
        let found = item.job == Some(job);
        items.push(item);
        if found {
            return items;
        }
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn each_team_hears_of_its_own_jobs_and_of_others_only_that_a_nodes_use_changed(
    owner: PgPool,
) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    fleet.settled().await;
    let stop = CancellationToken::new();
    let reader = tokio::spawn(feed::run(fleet.app.clone(), stop.clone()));
    let mut ada = feed::subscribe(&fleet.app, fleet.ada(), None)
        .await
        .expect("a stream");
    let mut bob = feed::subscribe(&fleet.app, fleet.bob(), None)
        .await
        .expect("a stream");
    // The reader begins at the present: what is submitted before its first look is not told.
    let warm = fleet.submit(1).await;
    let heard = tokio::time::timeout(Duration::from_secs(3), until(&mut ada, warm.id))
        .await
        .is_ok();
    let job = fleet.submit(1).await;
    let items = until(&mut ada, job.id).await;
    assert!(heard || !items.is_empty());
    fleet.turn().await;
    let end = fleet
        .submit_as(
            &fleet.bob(),
            "speech",
            serde_json::json!({ "name": "e", "command": ["true"], "per_worker": { "gpus": 1 } }),
        )
        .await
        .expect("accepted");
    let items = until(&mut bob, end.id).await;
    for item in &items[..items.len() - 1] {
        assert_eq!((item.job, item.team), (None, None), "{item:?}");
    }
    assert!(
        items.iter().any(|n| n.noun == "node" && n.node.is_some()),
        "{items:?}"
    );
    let hints = |item: &FeedItem| item.noun == "queue";
    assert!(
        items.iter().any(hints),
        "queues are to be read again: {items:?}"
    );
    let told = |items: Vec<FeedItem>| -> Vec<FeedItem> {
        items.into_iter().filter(|item| !hints(item)).collect()
    };
    let items = told(items);
    // Resuming after an item gives what came after it, once; hints have no place in the feed.
    let first = &items[0];
    let mut again = feed::subscribe(&fleet.app, fleet.bob(), Some(&first.id))
        .await
        .expect("a stream");
    let replayed = told(until(&mut again, end.id).await);
    assert_eq!(replayed, items[1..]);
    // One that was away for longer than changes are kept is told to read everything again.
    let mut old = feed::subscribe(&fleet.app, fleet.bob(), Some("1-1"))
        .await
        .expect("a stream");
    assert_eq!(next(&mut old).await.noun, "reset");
    assert!(
        feed::subscribe(&fleet.app, fleet.bob(), Some("yesterday"))
            .await
            .is_err()
    );
    stop.cancel();
    reader.await.expect("it stops");
}

#[sqlx::test(migrations = "../migrations")]
async fn what_commits_late_is_read_late_and_never_missed(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let db = &fleet.app.db;
    fleet.settled().await;
    let mut tx = db.begin_system().await.expect("a transaction");
    let start = changes::head(&mut tx).await.expect("a position");
    tx.commit().await.expect("committed");
    // The slow transaction takes its number first and commits last.
    let mut slow = db.begin_system().await.expect("a transaction");
    sqlx::query!("UPDATE classes SET priority = priority + 1 WHERE name = 'normal'")
        .execute(&mut *slow)
        .await
        .expect("changed");
    let job = fleet.submit_row().await;
    let read = |from| async move {
        let mut tx = db.begin_system().await.expect("a transaction");
        let settled = changes::settled(&mut tx, from, 100).await.expect("changes");
        let touched = changes::touched(&mut tx, from, true)
            .await
            .expect("changes");
        tx.commit().await.expect("committed");
        (settled, touched)
    };
    let (settled, touched) = read(start).await;
    assert!(
        settled.is_empty(),
        "nothing has settled while an older transaction runs"
    );
    assert_eq!(
        touched.jobs,
        [job],
        "who reads objects in the same snapshot need not wait"
    );
    slow.commit().await.expect("committed");
    eventually("both have settled", async || read(start).await.0.len() == 2).await;
    let (settled, touched) = read(start).await;
    let nouns: Vec<&str> = settled.iter().map(|c| c.noun.as_str()).collect();
    assert_eq!(nouns, ["class", "job"]);
    assert!(touched.classes);
    let (after, _) = read(settled[1].position).await;
    assert_eq!(after, []);
}

/// Somebody of the organisation with an open stream, and what tells of changes.
struct Listener {
    server: Server,
    subscription: Subscription,
    secret: String,
    _stopped: tokio_util::sync::DropGuard,
}

async fn listener(owner: &PgPool, user: &str) -> Listener {
    let server = Server::start(owner).await;
    let app = &server.app;
    // What was written before is history to who begins now, and not told late.
    settled(app, owner).await;
    let stop = CancellationToken::new();
    tokio::spawn(feed::run(app.clone(), stop.clone()));
    let opened = sessions::open(app, server.users[user], SessionKind::Token, 3600)
        .await
        .expect("a session");
    let session = sessions::authenticate(app, &opened.secret, SessionKind::Token, RequestId::new())
        .await
        .expect("a live session");
    let mut subscription = feed::subscribe(app, session.asker, None)
        .await
        .expect("a stream");
    begun(&mut subscription, async || change_class(&server).await).await;
    Listener {
        subscription,
        secret: opened.secret,
        _stopped: stop.drop_guard(),
        server,
    }
}

/// Waits until the feed's reader has begun: it begins at the present, and misses nothing from the
/// first item on. `change` makes something that this subscriber hears of.
pub async fn begun(subscription: &mut Subscription, change: impl AsyncFn()) {
    let heard = async {
        loop {
            change().await;
            let wait = Duration::from_millis(300);
            if tokio::time::timeout(wait, subscription.next())
                .await
                .is_ok()
            {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, heard)
        .await
        .expect("the reader has begun");
}

/// Something that everybody hears of.
pub async fn change_class(server: &Server) {
    let admin = server.client("admin");
    let all = admin.get("/classes").await.expect(StatusCode::OK);
    let class = all["items"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|class| class["name"] == "normal")
        .expect("it ships");
    let version = class["version"].as_i64().expect("a version");
    let priority = class["priority"].as_i64().expect("a priority") + 1;
    admin
        .patch("/classes/normal", version, json!({ "priority": priority }))
        .await
        .expect(StatusCode::OK);
}

#[sqlx::test(migrations = "../migrations")]
async fn one_person_has_so_many_streams_and_they_take_nobodys_connections(owner: PgPool) {
    let on = listener(&owner, "vision-member").await;
    let app = &on.server.app;
    let most = app.config.limits.event_streams_per_person;
    let mut readers = tokio::task::JoinSet::new();
    for user in ["vision-member", "speech-member", "org-member"] {
        let opened = sessions::open(app, on.server.users[user], SessionKind::Token, 3600)
            .await
            .expect("a session");
        let id = RequestId::new();
        let session = sessions::authenticate(app, &opened.secret, SessionKind::Token, id)
            .await
            .expect("a live session");
        // The listener has one.
        let more = if user == "vision-member" {
            most - 1
        } else {
            most
        };
        for _ in 0..more {
            let mut stream = feed::subscribe(app, session.asker.clone(), None)
                .await
                .expect("a stream");
            readers.spawn(async move { while stream.next().await.is_some() {} });
        }
    }
    let member = on.server.client("vision-member");
    let status = member.ask(Method::GET, "/events").status().await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    let refused = member.get("/events").await;
    assert!(refused.headers.contains_key("retry-after"));
    let problem = refused.problem(StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(problem["type"], "/problems/too-many-streams");
    assert!(
        problem["remedy"]
            .as_str()
            .is_some_and(|r| r.contains("close"))
    );
    let other = on.server.client("vision-owner").ask(Method::GET, "/events");
    assert_eq!(other.status().await, StatusCode::OK);
    // A change of the tree makes all of them look at their rights again.
    on.server
        .client("admin")
        .post("/teams", json!({ "name": "vision-2", "parent": "org" }))
        .await
        .expect(StatusCode::CREATED);
    member.get("/teams").await.expect(StatusCode::OK);
    readers.abort_all();
    while readers.join_next().await.is_some() {}
    let again = member.ask(Method::GET, "/events");
    assert_eq!(again.status().await, StatusCode::OK, "they were given back");
}

/// Longest life of a stream after its right is gone; far below the age at which it looks by itself.
const PROMPTLY: Duration = Duration::from_secs(20);

async fn ends(on: &mut Listener) {
    tokio::time::timeout(PROMPTLY, async {
        while on.subscription.next().await.is_some() {}
    })
    .await
    .expect("it ends");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_stream_ends_as_soon_as_its_session_does(owner: PgPool) {
    let mut on = listener(&owner, "vision-member").await;
    let token = on.server.bearer(&on.secret);
    token
        .post("/auth/logout", json!({}))
        .await
        .expect(StatusCode::NO_CONTENT);
    ends(&mut on).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_disabled_persons_stream_ends_at_once(owner: PgPool) {
    let mut on = listener(&owner, "operator").await;
    on.server
        .client("admin")
        .patch("/users/operator", 1, json!({"disabled": true}))
        .await
        .expect(StatusCode::OK);
    ends(&mut on).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_stream_tells_nothing_more_of_a_team_that_its_reader_has_left(owner: PgPool) {
    let mut on = listener(&owner, "vision-member").await;
    let job = JobId::new();
    let (team, user) = (on.server.teams["vision"], on.server.users["vision-owner"]);
    on.server
        .client("vision-owner")
        .delete("/teams/vision/members/vision-member")
        .await
        .expect(StatusCode::NO_CONTENT);
    let statement = format!(
        "INSERT INTO jobs (id, team_id, user_id, name, kind, class, spec)
         VALUES ('{job}', '{team}', '{user}', 'j', 'batch', 'normal', '{{}}')"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
        .execute(&owner)
        .await
        .expect("a job");
    // The first of its kind that is told: it comes after all of these.
    on.server
        .client("admin")
        .post("/pools", json!({ "name": "last" }))
        .await
        .expect(StatusCode::CREATED);
    loop {
        let item = next(&mut on.subscription).await;
        assert_eq!((item.job, item.team), (None, None), "{item:?}");
        assert_ne!(item.noun, "rights");
        if item.noun == "pool" {
            break;
        }
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn every_noun_that_the_database_records_is_in_the_contract(owner: PgPool) {
    let document = serde_json::to_value(server::api::document()).expect("a document");
    let told = document["components"]["schemas"]["FeedItem"]["properties"]["noun"]["description"]
        .as_str()
        .expect("what nouns there are")
        .to_owned();
    let recorded: Vec<String> = sqlx::query_scalar!(
        r#"SELECT substring(pg_get_triggerdef(oid) FROM 'record_change\(''([a-z]+)''\)') AS "noun!"
           FROM pg_trigger WHERE pg_get_triggerdef(oid) LIKE '%record_change(''%'"#
    )
    .fetch_all(&owner)
    .await
    .expect("the triggers are told");
    assert!(recorded.len() > 8, "{recorded:?}");
    for noun in recorded {
        assert!(told.contains(&format!("`{noun}`")), "{noun}");
    }
}
