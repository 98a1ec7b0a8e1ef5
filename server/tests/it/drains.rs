//! Nodes that are emptied by a deadline: who may stay until when, who is told, and what a change of it does.

use axum::http::StatusCode;
use domain::Timestamp;
use domain::ids::JobId;
use domain::state::{JobState, NodeIntent};
use protocol::report::FactKind;
use serde_json::{Value, json};
use server::app::App;
use server::app::nodes::NodeWish;
use server::background;
use sqlx::PgPool;

use super::agents::{intent, node};
use super::fixture::{self, Server};
use super::fleet::{Fleet, told_to_end};
use super::pages::{Browser, add_person, token};
use super::simulated::{Clock, Dice};

const DAY: &str = "2026-03-02T08:00:00Z";
const HOUR: i64 = 3600;

async fn reconcile(app: &App) {
    let round = background::reconcile(app, false).await;
    round.outcome().expect("reconciled");
}

/// A spec of one GPU that may be preempted, or not.
fn spec(preemptible: bool) -> Value {
    json!({ "name": "j", "command": ["x"], "preemptible": preemptible, "per_worker": { "gpus": 1 } })
}

/// One job on a node of eight that may be preempted, one that may not, and one that has yet to start.
async fn three_on_a_node(owner: &PgPool) -> (Fleet, [JobId; 3]) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 8).await;
    let mut jobs = Vec::new();
    for preemptible in [true, false, true] {
        let job = fleet
            .submit_spec(spec(preemptible))
            .await
            .expect("accepted");
        jobs.push(job.id);
    }
    fleet.turn().await;
    for job in &jobs[..2] {
        fleet.run(*job).await;
    }
    fleet.report(jobs[2], &[FactKind::Accepted]).await;
    (fleet, jobs.try_into().expect("three"))
}

async fn states(fleet: &Fleet, jobs: &[JobId]) -> Vec<JobState> {
    let mut states = Vec::new();
    for job in jobs {
        states.push(fleet.job(*job).await.state);
    }
    states
}

const AS_BEFORE: [JobState; 3] = [JobState::Running, JobState::Running, JobState::Starting];

#[sqlx::test(migrations = "../migrations")]
async fn until_the_deadline_all_work_may_stay_and_then_all_that_is_left_leaves(owner: PgPool) {
    let clock = Clock::at(&owner, DAY).await;
    let (fleet, jobs) = three_on_a_node(&owner).await;
    intent(&fleet, "n1", NodeWish::DrainWithin(2 * HOUR)).await;
    let late = fleet.submit(1).await.id;
    for ms in [0, 2 * HOUR * 1000 - 1] {
        clock.pass_ms(ms).await;
        reconcile(&fleet.app).await;
        fleet.turn().await;
        assert_eq!(states(&fleet, &jobs).await, AS_BEFORE);
        assert_eq!(
            fleet.job(late).await.state,
            JobState::Queued,
            "nothing new comes"
        );
    }
    let placed = &fleet.job(jobs[1]).await.placement[0];
    assert_eq!(
        placed.leaves_by,
        Some("2026-03-02T10:00:00Z".parse().expect("a time"))
    );
    clock.pass_ms(1).await;
    // A server that was started since knows it as well.
    reconcile(&fixture::app(&owner).await).await;
    assert_eq!(states(&fleet, &jobs).await, [JobState::Preempting; 3]);
    let words = "drain deadline: node n1 was to be empty by 2026-03-02T10:00:00Z";
    for job in jobs {
        assert_eq!(fleet.job(job).await.message, words);
    }
    for job in jobs {
        fleet
            .report(job, &[told_to_end(), FactKind::Released])
            .await;
    }
    fleet.turn().await;
    assert_eq!(states(&fleet, &jobs).await, [JobState::Queued; 3]);
    assert_eq!(fleet.most_holders().await, 0);
    let rules = sqlx::query_scalar!("SELECT DISTINCT rule FROM evictions")
        .fetch_all(&owner)
        .await
        .expect("evictions");
    assert_eq!(rules, ["drain_deadline"]);
    let audited = sqlx::query_scalar!(
        "SELECT reason FROM audit WHERE action = 'evict_job' AND actor_kind = 'system'"
    )
    .fetch_all(&owner)
    .await
    .expect("the audit log");
    assert_eq!(audited, [words; 3]);
    intent(&fleet, "n1", NodeWish::Uncordon).await;
    assert_eq!(node(&fleet, "n1").await.drain_deadline_at, None);
    clock.pass_ms(3_600_000).await;
    fleet.turn().await;
    assert_eq!(states(&fleet, &jobs).await, [JobState::Starting; 3]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_deadline_is_put_off_taken_back_and_made_none_by_the_last_word(owner: PgPool) {
    let clock = Clock::at(&owner, DAY).await;
    let (fleet, jobs) = three_on_a_node(&owner).await;
    let by = async |fleet: &Fleet| node(fleet, "n1").await.drain_deadline_at;
    let at = |text: &str| Some(text.parse::<Timestamp>().expect("a time"));
    intent(&fleet, "n1", NodeWish::DrainWithin(HOUR)).await;
    assert_eq!(by(&fleet).await, at("2026-03-02T09:00:00Z"));
    clock.pass_ms(HOUR * 500).await;
    intent(&fleet, "n1", NodeWish::DrainWithin(2 * HOUR)).await;
    assert_eq!(by(&fleet).await, at("2026-03-02T10:30:00Z"));
    clock.set("2026-03-02T10:29:59Z").await;
    reconcile(&fleet.app).await;
    assert_eq!(states(&fleet, &jobs).await, AS_BEFORE, "it was put off");
    intent(&fleet, "n1", NodeWish::Cordon).await;
    assert_eq!(by(&fleet).await, None);
    clock.set("2026-03-03T00:00:00Z").await;
    reconcile(&fleet.app).await;
    assert_eq!(states(&fleet, &jobs).await, AS_BEFORE, "it was taken back");
    intent(&fleet, "n1", NodeWish::DrainWithin(HOUR)).await;
    intent(&fleet, "n1", NodeWish::Drain).await;
    let seen = node(&fleet, "n1").await;
    assert_eq!(
        (seen.intent, seen.drain_deadline_at),
        (NodeIntent::Draining, None)
    );
    reconcile(&fleet.app).await;
    let without = [
        JobState::Preempting,
        JobState::Running,
        JobState::Preempting,
    ];
    assert_eq!(
        states(&fleet, &jobs).await,
        without,
        "as a drain does without one"
    );
    intent(&fleet, "n1", NodeWish::DrainWithin(0)).await;
    reconcile(&fleet.app).await;
    assert_eq!(states(&fleet, &jobs).await, [JobState::Preempting; 3]);
    let audited = sqlx::query_scalar!(
        r#"SELECT after ->> 'drain_deadline_at' AS "by" FROM audit WHERE object = 'node/n1' ORDER BY id"#
    )
    .fetch_all(&owner)
    .await
    .expect("the audit log");
    let told = |by: &Option<String>| by.as_deref().map(|by| by[11..16].to_owned());
    let told: Vec<Option<String>> = audited.iter().map(told).collect();
    let said = |text: &str| Some(text.to_owned());
    assert_eq!(
        told,
        [
            said("09:00"),
            said("10:30"),
            None,
            said("01:00"),
            None,
            said("00:00")
        ]
    );
}

/// The law of it, over chances: before a deadline nothing leaves for it, and once it and the grace are
/// over nothing is there, whoever changes what meanwhile.
#[sqlx::test(migrations = "../migrations")]
async fn nothing_runs_on_a_node_after_the_deadline_and_the_grace(owner: PgPool) {
    let clock = Clock::at(&owner, DAY).await;
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 4).await;
    fleet.node("n2", 4).await;
    let seed = 20_260_302;
    let mut dice = Dice(seed);
    let mut before = 0;
    for step in 0..60 {
        match dice.roll(6) {
            0 | 1 => {
                let gpus = 1 + dice.roll(2);
                let mut spec = spec(dice.roll(2) == 0);
                spec["per_worker"]["gpus"] = gpus.into();
                fleet.submit_spec(spec).await.expect("accepted");
            }
            2 => {
                let seconds = i64::try_from(dice.roll(3)).expect("small") * 600;
                intent(&fleet, "n1", NodeWish::DrainWithin(seconds)).await;
            }
            3 if dice.roll(2) == 0 => intent(&fleet, "n1", NodeWish::Uncordon).await,
            _ => {
                clock
                    .pass_ms(i64::try_from(dice.roll(900)).expect("small") * 1000)
                    .await
            }
        }
        reconcile(&fleet.app).await;
        fleet.turn().await;
        // Every node does at once what it is told.
        let jobs = sqlx::query!(
            r#"SELECT DISTINCT job_id AS "job: JobId", phase FROM assignments
               WHERE phase IN ('granted', 'stopping')"#
        )
        .fetch_all(&owner)
        .await
        .expect("workers");
        for told in jobs {
            match told.phase.as_str() {
                "granted" => fleet.run(told.job).await,
                _ => {
                    let gone = [told_to_end(), FactKind::Released];
                    fleet.report(told.job, &gone).await;
                }
            }
        }
        let now = clock.now().await;
        let evicted = evictions(&owner).await;
        let n1 = node(&fleet, "n1").await;
        let there: i64 = n1.devices.iter().map(|device| device.in_use.milli()).sum();
        match n1.drain_deadline_at.is_some_and(|by| by <= now) {
            true => assert_eq!(there, 0, "seed {seed}, step {step}"),
            false => assert_eq!(evicted, before, "seed {seed}, step {step}"),
        }
        before = evicted;
    }
    assert!(before > 3, "seed {seed}: too little happened: {before}");
}

async fn evictions(owner: &PgPool) -> i64 {
    sqlx::query_scalar!(r#"SELECT count(*) AS "n!" FROM evictions"#)
        .fetch_one(owner)
        .await
        .expect("a count")
}

#[sqlx::test(migrations = "../migrations")]
async fn a_deadline_is_asked_for_and_told_by_rest_and_on_the_pages(owner: PgPool) {
    let server = Server::start(&owner).await;
    super::fleet::add_node(&owner, "h100", "n1", 1).await;
    let operator = server.client("operator");
    for wrong in [json!(-1), json!(2_592_001)] {
        let told = operator
            .post("/nodes/n1/drain", json!({ "deadline_seconds": wrong }))
            .await
            .problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(told["field"], "deadline_seconds", "{told}");
    }
    let body = json!({ "deadline_seconds": 7200, "reason": "a new fan" });
    let drained = operator
        .post("/nodes/n1/drain", body)
        .await
        .expect(StatusCode::OK);
    assert_eq!(drained["intent"], "draining");
    let by: Timestamp = drained["drain_deadline_at"]
        .as_str()
        .and_then(|by| by.parse().ok())
        .expect("a time");
    // The reason stays where only the deadline is another.
    let body = json!({ "deadline_seconds": 10_800 });
    let later = operator
        .post("/nodes/n1/drain", body)
        .await
        .expect(StatusCode::OK);
    assert_eq!(later["intent_reason"], "a new fan");
    let put_off: Timestamp = later["drain_deadline_at"]
        .as_str()
        .and_then(|by| by.parse().ok())
        .expect("a time");
    assert!(put_off > by);

    add_person(&owner, "boss", Some("admin")).await;
    let mut browser = Browser::new(&server.app);
    browser.sign_in("boss").await;
    let page = browser.get("/nodes/n1").await.html;
    assert!(
        page.contains("what still runs here then is stopped"),
        "{page}"
    );
    let form = format!("csrf={}&deadline_minutes=", token(&page));
    let sent = browser.post("/nodes/n1/drain", &format!("{form}90")).await;
    sent.leads_to("/nodes/n1?done=draining");
    let seen = operator.get("/nodes/n1").await.expect(StatusCode::OK);
    let sooner: Timestamp = seen["drain_deadline_at"]
        .as_str()
        .and_then(|by| by.parse().ok())
        .expect("a time");
    assert!(sooner < by);
    let refused = browser
        .post("/nodes/n1/drain", &format!("{form}soon"))
        .await;
    assert_eq!(
        refused.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        refused.html
    );
    let told = |page: &str, words: &str| assert!(page.contains(words), "no {words}: {page}");
    told(&refused.html, "Minutes that work may stay");
    told(&refused.html, "soon");
    told(&refused.html, "43,200");
    // A day more than may be: said of the minutes that were typed, not of seconds that come of them.
    let long = browser
        .post("/nodes/n1/drain", &format!("{form}44640"))
        .await;
    assert_eq!(
        long.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        long.html
    );
    told(&long.html, "44640");
    told(&long.html, "Minutes that work may stay");
    assert!(!long.html.contains("2678400"), "{}", long.html);
    let history = browser.get("/nodes/n1").await.html;
    let shown = format!("by <time datetime=\"{}", sooner.format("%Y-%m-%dT%H:%M"));
    assert_eq!(
        history.matches(&shown).count(),
        1,
        "its history tells the deadline: {history}"
    );
    browser
        .post("/nodes/n1/drain", &form)
        .await
        .leads_to("/nodes/n1?done=draining");
    let seen = operator.get("/nodes/n1").await.expect(StatusCode::OK);
    assert_eq!(seen["drain_deadline_at"], Value::Null);
}
