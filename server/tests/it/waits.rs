//! What is kept of a wait: each cause with how long it held, and what was told of the start.

use axum::http::StatusCode;
use domain::Timestamp;
use domain::ids::JobId;
use serde_json::{Value, json};
use server::app::idempotency::Repeat;
use server::app::jobs::{self, Waits};
use server::app::planning;
use server::scheduler::Turn;
use server::store::waits::{self, Cause, WAITS_MAX};
use sqlx::PgPool;

use crate::fixture::Server;
use crate::fleet::{Fleet, turn};
use crate::jobs::{JOBS, id, spec, submit};
use crate::pages::{Browser, give_password};

async fn history(fleet: &Fleet, id: JobId) -> Waits {
    jobs::waits(&fleet.app, &fleet.ada(), id)
        .await
        .expect("its team reads it")
}

fn codes(waits: &Waits) -> Vec<&str> {
    waits.items.iter().map(|wait| wait.code.as_str()).collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn each_cause_of_a_wait_is_kept_until_another_holds_or_the_wait_is_over(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 4).await;
    let first = fleet.submit(4).await.id;
    let second = fleet.submit(4).await.id;
    let mut cycle = fleet.lead().await;
    fleet.settled().await;
    cycle.turn().await.expect("a turn");
    let now = history(&fleet, second).await;
    assert_eq!(now.items.len(), 1, "{now:?}");
    let job = fleet.job(second).await;
    assert_eq!(now.items[0].from, job.queued_at, "it begins with the wait");
    assert_eq!(now.items[0].to, None, "it holds");
    assert_eq!(Some(&now.items[0].code), job.reason.as_ref());
    assert!(!now.items[0].message.is_empty());
    // The pool closes: another cause.
    sqlx::query!("UPDATE pools SET policy = '{\"state\": \"closed\"}'")
        .execute(&fleet.owner)
        .await
        .expect("closed");
    fleet.settled().await;
    cycle.turn().await.expect("a turn");
    let then = history(&fleet, second).await;
    assert_eq!(codes(&then)[1..], ["pool_closed"], "{then:?}");
    assert_eq!(then.items[0].to, Some(then.items[1].from), "without a gap");
    // Nothing that changes leaves the row alone.
    fleet.settled().await;
    cycle.turn().await.expect("a turn");
    assert_eq!(history(&fleet, second).await.items.len(), 2);
    jobs::cancel(&fleet.app, &fleet.ada(), Repeat::none(), second)
        .await
        .expect("cancelled");
    let over = history(&fleet, second).await;
    assert!(over.items.iter().all(|wait| wait.to.is_some()), "{over:?}");
    let sum: i64 = over.causes.iter().map(|cause| cause.seconds).sum();
    assert_eq!(sum, over.waited_seconds);
    assert!(
        history(&fleet, first).await.items.is_empty(),
        "it started at once"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_wait_that_was_broken_off_and_taken_up_between_two_turns_is_told_anew(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 4).await;
    fleet.submit(4).await;
    let id = fleet.submit(4).await.id;
    let mut cycle = fleet.lead().await;
    fleet.settled().await;
    cycle.turn().await.expect("a turn");
    for wish in [jobs::JobWish::Suspend, jobs::JobWish::Resume] {
        jobs::steer(&fleet.app, &fleet.ada(), Repeat::none(), id, wish)
            .await
            .expect("done");
    }
    assert_eq!(fleet.job(id).await.reason, None);
    fleet.settled().await;
    cycle.turn().await.expect("a turn");
    assert!(
        fleet.job(id).await.reason.is_some(),
        "it is told why it waits"
    );
    let waits = history(&fleet, id).await;
    assert_eq!(waits.items.len(), 2, "{waits:?}");
    assert_eq!(waits.items[1].from, fleet.job(id).await.queued_at);
}

/// A cause of a job's wait.
fn cause(job_id: JobId, code: &str, scope: &str) -> Cause {
    Cause {
        job_id,
        code: code.into(),
        scope: scope.into(),
        message: "it waits".into(),
        need_milli: 1000,
        have_milli: 0,
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_wait_whose_cause_swings_keeps_few_rows_and_all_of_its_time(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let id = fleet.submit_row().await;
    let began = fleet.job(id).await.queued_at;
    let turns = 3 * WAITS_MAX;
    let at = |turn: i64| began + chrono::TimeDelta::seconds(60 * turn);
    let mut tx = fleet.app.db.begin_system().await.expect("begin");
    for turn in 0..turns {
        let (code, scope) = match turn {
            0 => ("no_quota", "team vision"),
            turn if turn % 2 == 0 => ("insufficient_capacity", "pool h100"),
            _ => ("behind_in_order", "pool h100"),
        };
        waits::turn(&mut tx, &[cause(id, code, scope)], at(turn))
            .await
            .expect("kept");
    }
    tx.commit().await.expect("committed");
    let kept = history(&fleet, id).await;
    assert_eq!(i64::try_from(kept.items.len()).ok(), Some(WAITS_MAX));
    assert_eq!(kept.items[0].code, "no_quota", "how it began stays");
    assert_eq!(
        (kept.items[0].stretches, kept.items[0].seconds),
        (1, 60),
        "{kept:?}"
    );
    let closed: i64 = kept
        .items
        .iter()
        .filter(|w| w.to.is_some())
        .map(|w| w.seconds)
        .sum();
    assert_eq!(closed, 60 * (turns - 1), "no time is lost");
    let times: i64 = kept.items.iter().map(|w| i64::from(w.stretches)).sum();
    assert_eq!(times, turns, "no stretch is lost");
    let last = &kept.items[kept.items.len() - 2];
    assert_eq!(
        (last.stretches, last.seconds),
        (1, 60),
        "what was last is told alone"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn what_swings_between_many_scopes_is_merged_without_naming_one(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let id = fleet.submit_row().await;
    let began = fleet.job(id).await.queued_at;
    let mut tx = fleet.app.db.begin_system().await.expect("begin");
    for turn in 0..=WAITS_MAX {
        let at = began + chrono::TimeDelta::seconds(turn);
        let scope = format!("workload {turn}");
        waits::turn(&mut tx, &[cause(id, "dependency", &scope)], at)
            .await
            .expect("kept");
    }
    tx.commit().await.expect("committed");
    let kept = history(&fleet, id).await;
    assert_eq!(i64::try_from(kept.items.len()).ok(), Some(WAITS_MAX));
    let merged: Vec<&str> = kept
        .items
        .iter()
        .filter(|wait| wait.stretches > 1)
        .map(|wait| wait.scope.as_str())
        .collect();
    assert_eq!(merged, [""]);
}

/// What is kept of a job's estimates: the first, the last, and whether it was met.
async fn estimates(fleet: &Fleet, id: JobId) -> Vec<(Timestamp, Option<Timestamp>, bool)> {
    let rows = sqlx::query!(
        "SELECT first_at, last_at, granted_at FROM expected_starts WHERE job_id = $1 ORDER BY queued_at",
        id as JobId
    )
    .fetch_all(&fleet.owner)
    .await
    .expect("rows");
    let rows = rows.into_iter();
    rows.map(|row| (row.first_at, row.last_at, row.granted_at.is_some()))
        .collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn the_first_estimate_of_a_wait_and_the_last_are_measured_when_it_starts(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 4).await;
    let limited = || json!({ "name": "l", "command": ["true"], "time_limit_seconds": 3600, "per_worker": { "gpus": 4 } });
    let first = fleet.submit_spec(limited()).await.expect("accepted").id;
    let second = fleet.submit_spec(limited()).await.expect("accepted").id;
    let mut cycle = fleet.lead().await;
    fleet.settled().await;
    cycle.turn().await.expect("a turn");
    let told = estimates(&fleet, second).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(!told[0].2, "it has not started");
    let unmet = planning::explain(&fleet.app, &fleet.ada(), second).await;
    assert_eq!(unmet.expect("explained").accuracy, None, "no case is known");
    // The first job ends an hour early: the second starts.
    fleet.run(first).await;
    fleet.exit(first, 0).await;
    fleet.settled().await;
    cycle.turn().await.expect("a turn");
    let met = estimates(&fleet, second).await;
    assert_eq!(met[0].0, told[0].0, "the first stays");
    assert!(met[0].1.is_some() && met[0].2, "{met:?}");
    // The next one is told how far that was out.
    let third = fleet.submit(4).await.id;
    fleet.settled().await;
    let explained = planning::explain(&fleet.app, &fleet.ada(), third).await;
    let accuracy = explained.expect("explained").accuracy;
    let accuracy = accuracy.expect("a start is expected, and one was met");
    assert_eq!((accuracy.pool.as_str(), accuracy.cases), ("h100", 1));
    assert_eq!(
        (accuracy.within_ten_minutes, accuracy.within_double),
        (0, 0)
    );
    assert!(
        (3500..=3600).contains(&accuracy.median_error_seconds),
        "{accuracy:?}"
    );
    assert_eq!(accuracy.last.cases, 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_a_job_waited_for_is_read_by_its_team_and_shown_on_its_page(owner: PgPool) {
    let server = Server::start(&owner).await;
    crate::fleet::add_node(&owner, "h100", "n1", 4).await;
    submit(&server.client("speech-member"), "speech", 4).await;
    turn(&server.app).await;
    let member = server.client("vision-member");
    let job = id(&member
        .post(JOBS, spec(json!(4)))
        .await
        .expect(StatusCode::CREATED));
    turn(&server.app).await;
    let path = format!("/jobs/{job}/waits");
    let reply = member.get(&path).await;
    assert!(!reply.text.contains("speech"), "{}", reply.text);
    let waits: Value = reply.expect(StatusCode::OK);
    assert_eq!(waits["items"].as_array().map(Vec::len), Some(1), "{waits}");
    assert_eq!(waits["items"][0]["need"], 4);
    assert_eq!(waits["causes"][0]["code"], waits["items"][0]["code"]);
    server
        .client("speech-owner")
        .get(&path)
        .await
        .problem(StatusCode::NOT_FOUND);
    give_password(&owner, server.users["vision-viewer"]).await;
    let mut browser = Browser::new(&server.app);
    browser.sign_in("vision-viewer").await;
    let page = browser.get(&format!("/jobs/{job}")).await;
    assert!(page.html.contains("What it waited for"), "{}", page.html);
}

#[sqlx::test(migrations = "../migrations")]
async fn while_every_plan_is_refused_all_that_waits_says_so_and_afterwards_why_it_waits(
    owner: PgPool,
) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 4).await;
    fleet.running(4).await;
    let looked_at = fleet.submit(4).await.id;
    let mut leader = fleet.lead().await;
    fleet.settled().await;
    assert_eq!(leader.turn().await.expect("a turn"), Turn::Done);
    let cause = fleet.job(looked_at).await.reason;
    let never_looked_at = fleet.submit(2).await.id;
    // A node that tells of more than any machine has, so that sums of it fit in no number.
    let tell = async |cpus: i64, memory: i64| {
        let told = format!(
            "UPDATE pools SET policy = policy || '{{\"charge\": \"dominant\"}}';
             UPDATE nodes SET cpus_milli = {cpus}, memory_mib = {memory}, version = version + 1"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(told))
            .execute(&fleet.owner)
            .await
            .expect("told");
        fleet.settled().await;
    };
    tell(i64::MAX, i64::MAX).await;
    assert_eq!(leader.turn().await.expect("a turn"), Turn::Stuck);
    for id in [looked_at, never_looked_at] {
        let job = fleet.job(id).await;
        assert_eq!(job.reason.as_deref(), Some("planning_stopped"), "{job:?}");
        assert!(
            job.message.starts_with("planning is stopped since 20"),
            "{job:?}"
        );
        let told = planning::explain(&fleet.app, &fleet.ada(), id).await;
        let told = told.expect("its team reads it, though nothing can be planned");
        assert_eq!(told.message, job.message);
        assert_eq!(told.waiting.expect("it waits")["code"], "planning_stopped");
        let history = history(&fleet, id).await;
        let last = history.items.last().expect("a cause");
        assert_eq!((last.code.as_str(), last.to), ("planning_stopped", None));
    }
    let first = &history(&fleet, never_looked_at).await.items[0];
    assert_eq!(first.from, fleet.job(never_looked_at).await.queued_at);
    // Nothing new is said of it while it lasts.
    fleet.settled().await;
    assert_eq!(leader.turn().await.expect("a turn"), Turn::Stuck);
    assert_eq!(history(&fleet, looked_at).await.items.len(), 2);
    tell(96_000, 1_048_576).await;
    assert_eq!(leader.turn().await.expect("a turn"), Turn::Done);
    assert_eq!(fleet.job(looked_at).await.reason, cause);
    for id in [looked_at, never_looked_at] {
        let history = history(&fleet, id).await;
        let [.., stopped, now] = &history.items[..] else {
            panic!("{history:?}");
        };
        assert_eq!(stopped.code, "planning_stopped");
        assert_eq!((stopped.to, now.to), (Some(now.from), None), "{history:?}");
    }
}
