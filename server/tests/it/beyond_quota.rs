//! What a quota never admits is told truly: of which pool, with an amount that would be admitted, and whenever it comes to be so.

use chrono::Datelike as _;
use domain::state::JobState;
use serde_json::{Value, json};
use server::app::idempotency::Repeat;
use server::app::planning::DryRunVerdict;
use server::app::{clock, jobs, planning, windows};
use sqlx::PgPool;

use super::fleet::{Fleet, add_node};
use super::prospects::{set_quota, spec};

/// Adds pool `a100` with one node of eight, and a limit for vision there.
async fn second_pool(fleet: &Fleet, limit: i64) {
    sqlx::query!("INSERT INTO pools (id, name, policy) VALUES (gen_random_uuid(), 'a100', '{}')")
        .execute(&fleet.owner)
        .await
        .expect("a pool");
    sqlx::query!(
        "INSERT INTO quotas (team_id, pool_id, guaranteed_milli, limit_milli)
         SELECT teams.id, pools.id, 1000, $1 FROM teams, pools
         WHERE teams.name = 'vision' AND pools.name = 'a100'",
        limit
    )
    .execute(&fleet.owner)
    .await
    .expect("a quota");
    add_node(&fleet.owner, "a100", "other", 8).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn of_several_pools_the_one_that_admits_the_most_is_told_with_its_own_numbers(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    second_pool(&fleet, 1000).await;
    set_quota(&fleet, "vision", 2000, Some(3000)).await;
    let either = json!({ "pools": ["a100", "h100"] });
    let job = fleet.submit_spec(spec(4, either)).await.expect("taken");
    let words = "the limit of team vision in pool h100 admits 3";
    assert!(job.message.contains(words), "{}", job.message);
    fleet.turn().await;
    let told = planning::explain(&fleet.app, &fleet.ada(), job.id)
        .await
        .expect("explained");
    let beyond = told.beyond_quota.expect("no pool admits it");
    assert_eq!((beyond.pool.as_str(), beyond.have.milli()), ("h100", 3000));
    assert_eq!(fleet.job(job.id).await.message, beyond.to_string());

    // Another pool that would admit it, and is full: it waits like any other.
    let full = spec(8, json!({ "pools": ["h100"] }));
    let first = fleet.submit_as(&fleet.bob(), "speech", full).await;
    let first = first.expect("accepted").id;
    fleet.turn().await;
    assert_eq!(fleet.job(first).await.state, JobState::Starting);
    set_quota(&fleet, "vision", 2000, Some(8000)).await;
    fleet.turn().await;
    let told = planning::explain(&fleet.app, &fleet.ada(), job.id)
        .await
        .expect("explained");
    assert_eq!(told.beyond_quota, None, "{}", told.message);
    for message in [told.message, fleet.job(job.id).await.message] {
        assert!(
            !message.contains("never") && !message.contains("present quota"),
            "{message}"
        );
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn the_amount_that_is_named_is_one_that_would_be_admitted(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    // Guarantees of eight in a pool of five: vision's four shrink to two and a half.
    fleet.node("n1", 5).await;
    let firm = json!({ "class": "training-high", "workers": 5 });
    let job = fleet.submit_spec(spec(1, firm)).await.expect("taken");
    for words in ["h100 admits 2 even", "ask for at most 2 GPUs"] {
        assert!(job.message.contains(words), "{words} in {}", job.message);
    }

    // A limit, and a lower one above it: what is named is within both.
    fleet.node("n3", 16).await;
    set_quota(&fleet, "vision", 2000, Some(5000)).await;
    set_quota(&fleet, "org", 3000, Some(3000)).await;
    let job = fleet.submit(6).await;
    let words = "the limit of team org in pool h100 admits 3";
    assert!(job.message.contains(words), "{}", job.message);
    assert!(
        job.message.contains("ask for at most 3 GPUs"),
        "{}",
        job.message
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_class_that_puts_a_job_beyond_its_quota_is_told_with_the_change(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let running = fleet.running(8).await;
    let job = fleet.submit(5).await;
    fleet.turn().await;
    let waiting = fleet.job(job.id).await;
    assert!(
        !waiting.message.contains("present quota"),
        "{}",
        waiting.message
    );
    let patch = |class: &str| serde_json::from_value(json!({ "class": class })).expect("a patch");
    let change = async |class: &str| {
        let version = fleet.job(job.id).await.version;
        jobs::update(&fleet.app, &fleet.ada(), job.id, version, patch(class))
            .await
            .expect("changed")
    };
    let told = change("training-high").await;
    assert_eq!(
        told.reason.as_deref(),
        Some("non_preemptible_over_guarantee")
    );
    let words = "its team's guarantee in pool h100 admits 4";
    assert!(told.message.contains(words), "{}", told.message);
    fleet.turn().await;
    assert_eq!(
        fleet.job(job.id).await.message,
        told.message,
        "also after a cycle"
    );
    change("normal").await;
    fleet.turn().await;
    let back = fleet.job(job.id).await;
    assert!(!back.message.contains("present quota"), "{}", back.message);
    assert_eq!(fleet.job(running).await.state, JobState::Running);
}

/// Makes a window of a pool that gives vision a quota: at every hour of these days.
async fn window(fleet: &Fleet, pool: &str, days: &[&str], quota: Value) {
    let window = json!({
        "name": "another", "days": days, "from": "00:00", "to": "00:00",
        "quotas": [{ "team": "vision", "quota": quota }],
    });
    let window = serde_json::from_value(window).expect("a window");
    let pool = pool.parse().expect("a name");
    let made = windows::create(&fleet.app, &fleet.root(), Repeat::none(), &pool, window, "").await;
    made.expect("made");
}

/// Open whenever this is tried.
const ALWAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// A day of the week that is neither today nor next to it.
async fn another_day(fleet: &Fleet) -> String {
    let now = clock::now(&fleet.app).await.expect("the time");
    let day = (now + chrono::TimeDelta::days(3)).weekday();
    day.to_string().to_lowercase()
}

async fn dry_run(fleet: &Fleet, spec: Value) -> planning::DryRun {
    let team = "vision".parse().expect("a name");
    let spec = serde_json::from_value(spec).expect("a spec");
    let told = planning::dry_run(&fleet.app, &fleet.ada(), &team, spec).await;
    told.expect("tried")
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_only_a_window_keeps_out_is_not_told_that_it_never_starts(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let job = fleet.submit_spec(spec(4, json!({}))).await.expect("taken");
    window(
        &fleet,
        "h100",
        &ALWAYS,
        json!({ "guaranteed": 1, "limit": 2 }),
    )
    .await;
    fleet.turn().await;
    let told = async || {
        let told = planning::explain(&fleet.app, &fleet.ada(), job.id).await;
        told.expect("explained")
    };
    let within = told().await;
    assert_eq!(
        within.waiting.as_ref().expect("it waits")["code"],
        "over_limit"
    );
    assert_eq!(within.beyond_quota, None, "the window ends");
    let message = fleet.job(job.id).await.message;
    assert!(message.contains("leaves 2"), "{message}");
    // Where the quota itself does not admit it either, that is said.
    set_quota(&fleet, "vision", 2000, Some(3000)).await;
    fleet.turn().await;
    assert!(told().await.beyond_quota.is_some());
}

#[sqlx::test(migrations = "../migrations")]
async fn who_submits_while_a_window_lowers_the_quota_is_not_told_that_it_never_starts(
    owner: PgPool,
) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    window(
        &fleet,
        "h100",
        &ALWAYS,
        json!({ "guaranteed": 1, "limit": 2 }),
    )
    .await;
    let four = || spec(4, json!({}));
    let never = |message: &str| message.contains("present quota");
    let one = fleet.submit_spec(four()).await.expect("taken");
    assert!(!never(&one.message), "{}", one.message);
    let tried = dry_run(&fleet, four()).await;
    assert_eq!(tried.beyond_quota, None, "{}", tried.message);
    assert_eq!(tried.verdict, DryRunVerdict::Waits);
    let batch = json!({ "jobs": [four()] });
    let team = "vision".parse().expect("a name");
    let ada = fleet.ada();
    let made = jobs::submit_batch(
        &fleet.app,
        &ada,
        Repeat::none(),
        &team,
        serde_json::from_value(batch).expect("a batch"),
    );
    let made = made.await.expect("taken").value.items;
    assert!(!never(&made[0].message), "{}", made[0].message);
    // What no quota of any time admits is told so by each, by the time that admits the most.
    let eight = spec(4, json!({ "class": "training-high", "workers": 2 }));
    let job = fleet.submit_spec(eight.clone()).await.expect("taken");
    assert!(never(&job.message), "{}", job.message);
    let beyond = dry_run(&fleet, eight).await.beyond_quota.expect("told");
    assert_eq!(
        (beyond.have.milli(), beyond.preemptible_admitted),
        (4000, true)
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_a_window_of_another_day_admits_is_not_told_that_it_never_starts(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    set_quota(&fleet, "vision", 1000, Some(2000)).await;
    let day = another_day(&fleet).await;
    window(
        &fleet,
        "h100",
        &[&day],
        json!({ "guaranteed": 1, "limit": 6 }),
    )
    .await;
    let job = fleet.submit_spec(spec(4, json!({}))).await.expect("taken");
    assert!(!job.message.contains("present quota"), "{}", job.message);
    fleet.turn().await;
    let told = planning::explain(&fleet.app, &fleet.ada(), job.id).await;
    assert_eq!(told.expect("explained").beyond_quota, None);
    let more = fleet.submit_spec(spec(7, json!({}))).await.expect("taken");
    assert!(more.message.contains("present quota"), "{}", more.message);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_team_that_has_a_quota_in_a_window_alone_may_submit_before_it_opens(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    sqlx::query!("INSERT INTO pools (id, name, policy) VALUES (gen_random_uuid(), 'a100', '{}')")
        .execute(&fleet.owner)
        .await
        .expect("a pool");
    add_node(&fleet.owner, "a100", "other", 8).await;
    let there = |gpus| spec(gpus, json!({ "pools": ["a100"] }));
    let refused = fleet.submit_spec(there(4)).await;
    assert!(refused.is_err(), "no window gives it a quota");
    let day = another_day(&fleet).await;
    window(
        &fleet,
        "a100",
        &[&day],
        json!({ "guaranteed": 1, "limit": 6 }),
    )
    .await;
    let job = fleet.submit_spec(there(4)).await.expect("taken");
    fleet.turn().await;
    let job = fleet.job(job.id).await;
    assert_eq!(
        (job.state, job.reason.as_deref()),
        (JobState::Queued, Some("no_quota"))
    );
    let more = fleet.submit_spec(there(7)).await.expect("taken");
    assert!(more.message.contains("admits 6"), "{}", more.message);
}
