//! What people are told of a job: why it waits, and what each of its runs cost.

use domain::ids::JobId;
use domain::money::Money;
use domain::state::JobState;
use protocol::report::{Exited, FactKind};
use rust_decimal::Decimal;
use serde_json::json;
use server::app::idempotency::Repeat;
use server::app::{jobs, planning};
use sqlx::PgPool;

use super::fleet::{Fleet, told_to_end};
use super::metering::{decimal, price};
use super::pages::{Browser, add_person};
use super::simulated::Clock;

/// A job that waits for another one's only device, as the scheduler has found.
async fn waiting(fleet: &Fleet) -> JobId {
    fleet.node("n1", 1).await;
    let holder = fleet.submit(1).await.id;
    fleet.turn().await;
    fleet.run(holder).await;
    let waits = fleet.submit(1).await.id;
    fleet.turn().await;
    assert_eq!(fleet.job(waits).await.state, JobState::Queued);
    waits
}

#[sqlx::test(migrations = "../migrations")]
async fn a_waiting_jobs_page_tells_what_the_scheduler_found_last(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    let job = waiting(&fleet).await;
    sqlx::query!(
        r#"UPDATE jobs SET waiting = waiting || '{"scope": "what was stored"}' WHERE id = $1"#,
        job as JobId
    )
    .execute(&owner)
    .await
    .expect("marked");
    add_person(&owner, "boss", Some("admin")).await;
    let mut browser = Browser::new(&fleet.app);
    browser.sign_in("boss").await;
    let page = browser.get(&format!("/jobs/{job}")).await;
    assert!(page.html.contains("what was stored"), "{}", page.html);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_is_explained_from_one_plan_until_the_world_changes(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let job = waiting(&fleet).await;
    fleet.settled().await;
    let explain = async || {
        planning::explain(&fleet.app, &fleet.ada(), job)
            .await
            .expect("explained")
    };
    let first = explain().await;
    assert_eq!(
        first.waiting.as_ref().map(|waiting| &waiting["code"]),
        Some(&json!(fleet.job(job).await.reason)),
    );
    assert_eq!(explain().await.at, first.at, "the same plan");
    fleet.submit(1).await;
    assert!(explain().await.at > first.at, "another world");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_costs_of_a_jobs_runs_stand_on_its_page_and_add_up_to_its_own(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-01T00:00:00Z").await;
    let fleet = Fleet::new(owner.clone()).await;
    price(&fleet, "3.60", "2026-01-01T00:00:00Z").await;
    fleet.node("n1", 1).await;
    let spec = json!({ "name": "j", "command": ["train"], "per_worker": { "gpus": 1 },
                       "retries": { "limit": 1, "on": ["failure"] } });
    let job = fleet.submit_spec(spec).await.expect("accepted").id;
    fleet.turn().await;
    fleet.run(job).await;
    clock.set("2026-10-01T01:00:00.001Z").await;
    fleet.exit(job, 1).await;
    fleet.turn().await;
    let again = fleet.job(job).await;
    assert_eq!(again.reason.as_deref(), Some("not_yet"));
    assert!(
        again
            .message
            .contains("waits for attempt 2 after exit code 1"),
        "{}",
        again.message
    );
    server::accounting::rating::rate_due(&fleet.app.db)
        .await
        .expect("rated");
    clock.set("2026-10-01T02:00:00Z").await;
    fleet.turn().await;
    fleet.run(job).await;
    clock.set("2026-10-01T04:00:00.001Z").await;
    let attempts = jobs::attempts(&fleet.app, &fleet.ada(), job)
        .await
        .expect("attempts")
        .items;
    let lines: Vec<_> = attempts
        .iter()
        .map(|a| (a.gpu_seconds, money(a.cost.as_ref())))
        .collect();
    assert_eq!(
        lines,
        [
            (decimal("3600.001"), decimal("3.60")),
            (decimal("7200.001"), decimal("7.20"))
        ]
    );
    let whole = fleet.job(job).await;
    assert_eq!(whole.gpu_seconds, decimal("10800.002"));
    assert_eq!(money(whole.cost.as_ref()), decimal("10.80"));
    add_person(&owner, "boss", Some("admin")).await;
    let mut browser = Browser::new(&fleet.app);
    browser.sign_in("boss").await;
    let page = browser.get(&format!("/jobs/{job}")).await.html;
    for words in ["Attempt 1", "Attempt 2", "3.60", "7.20", "10.80"] {
        assert!(page.contains(words), "{words} in {page}");
    }
}

fn money(cost: Option<&Money>) -> Decimal {
    cost.expect("it is priced").amount
}

/// An administrator's browser.
async fn boss(fleet: &Fleet) -> Browser {
    add_person(&fleet.owner, "boss", Some("admin")).await;
    let mut browser = Browser::new(&fleet.app);
    browser.sign_in("boss").await;
    browser
}

#[sqlx::test(migrations = "../migrations")]
async fn a_suspended_jobs_page_says_who_suspended_it_and_what_happens_next(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let job = fleet.running(1).await;
    jobs::suspend(&fleet.app, &fleet.ada(), Repeat::none(), job)
        .await
        .expect("suspended");
    fleet
        .report(job, &[told_to_end(), FactKind::Released])
        .await;
    let page = boss(&fleet).await.get(&format!("/jobs/{job}")).await.html;
    for words in [
        "It was suspended by ada.",
        "Suspended</span>. It asks for <b>1 GPU</b>.",
        "It stays so until somebody resumes it.",
        "It does not run now.",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    for words in [
        "It was preempted",
        "It has not started",
        "No start can be estimated",
    ] {
        assert!(!page.contains(words), "{words}: {page}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn the_time_run_is_that_of_all_attempts(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let clock = Clock::at(&fleet.owner, "2026-11-29T12:00:00Z").await;
    fleet.node("n1", 1).await;
    let job = fleet.running(1).await;
    clock.pass_ms(600_000).await;
    jobs::suspend(&fleet.app, &fleet.ada(), Repeat::none(), job)
        .await
        .expect("suspended");
    fleet
        .report(job, &[told_to_end(), FactKind::Released])
        .await;
    clock.pass_ms(5_400_000).await;
    jobs::resume(&fleet.app, &fleet.ada(), Repeat::none(), job)
        .await
        .expect("resumed");
    fleet.turn().await;
    fleet.run(job).await;
    clock.pass_ms(180_000).await;
    let page = boss(&fleet).await.get(&format!("/jobs/{job}")).await.html;
    assert!(page.contains("It has run for 13 min;"), "{page}");
}

/// A worker that was ended by a signal.
fn struck(signal: i32, out_of_memory: bool) -> FactKind {
    FactKind::Exited(Exited {
        code: None,
        signal: Some(signal),
        out_of_memory,
        asked: false,
        lost: None,
        message: if out_of_memory {
            "killed for using more than its 512 MiB of memory".into()
        } else {
            String::new()
        },
    })
}

#[sqlx::test(migrations = "../migrations")]
async fn the_list_says_which_signal_and_out_of_memory_says_which_limit(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let mut browser = boss(&fleet).await;
    let job = fleet.running(1).await;
    fleet
        .report(job, &[struck(11, false), FactKind::Released])
        .await;
    let list = browser.get("/jobs").await.html;
    assert!(
        list.contains("It was ended by signal 11"),
        "in the words of pages: {list}"
    );
    assert!(!list.contains("It was ended by a signal."), "{list}");
    let spec =
        json!({ "name": "m", "command": ["true"], "per_worker": { "gpus": 1, "memory_mib": 512 } });
    let job = fleet.submit_spec(spec).await.expect("accepted").id;
    fleet.turn().await;
    fleet.run(job).await;
    fleet
        .report(job, &[struck(9, true), FactKind::Released])
        .await;
    let told = fleet.job(job).await.message;
    assert_eq!(
        told,
        "worker 0 was killed for using more than its 512 MiB of memory"
    );
    for page in [format!("/jobs/{job}"), "/jobs".into()] {
        let html = browser.get(&page).await.html;
        assert!(html.contains("more than its 512 MiB of memory"), "{html}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn the_page_of_a_job_that_waits_counts_who_holds_what_it_could_use(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let job = waiting(&fleet).await;
    let page = boss(&fleet).await.get(&format!("/jobs/{job}")).await.html;
    let facts = "<span class=\"team t0\">other teams</span></dt><dd>0 GPUs</dd><dt>Free</dt><dd>0 GPUs</dd><dt class=\"sum\">All in service</dt><dd class=\"sum\">1 GPU</dd>";
    assert!(page.contains(facts), "{page}");
}

#[sqlx::test(migrations = "../migrations")]
async fn who_drains_a_node_reads_what_moves_and_what_stays_to_its_end(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    fleet.running(1).await;
    let spec = json!({ "name": "s", "class": "training-high", "command": ["true"], "per_worker": { "gpus": 2 } });
    let stays = fleet.submit_spec(spec).await.expect("accepted").id;
    fleet.turn().await;
    fleet.run(stays).await;
    let page = boss(&fleet).await.get("/nodes/n1").await.html;
    let words = "Preemptible work is stopped after its grace and placed elsewhere: <b>1 GPU</b>. The rest ends by itself: <b>2 GPUs</b>.";
    assert!(page.contains(words), "{page}");
}
