//! The scheduler against a real database: fencing, guards, no double booking, and a world that stays right.

use std::collections::BTreeMap;

use domain::eviction::EvictionRule;
use domain::ids::JobId;
use domain::state::JobState;
use protocol::report::FactKind;
use serde_json::{Value, json};
use server::app::idempotency::Repeat;
use server::app::jobs;
use server::scheduler::world::{Memory, Mirror};
use server::scheduler::{self, translate};
use sqlx::PgPool;

use super::fleet::Fleet;
use super::simulated::Clock;
use super::world::cordon;

#[sqlx::test(migrations = "../migrations")]
async fn a_job_runs_on_devices_of_its_own_and_its_timeline_says_so(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let job = fleet.submit(2).await;
    assert_eq!((job.state, job.placement.len()), (JobState::Queued, 0));
    fleet.turn().await;
    let starting = fleet.job(job.id).await;
    assert_eq!(starting.state, JobState::Starting);
    assert_eq!(starting.placement[0].node, "n1");
    assert_eq!(starting.placement[0].devices.len(), 2);
    fleet.run(job.id).await;
    assert_eq!(fleet.job(job.id).await.state, JobState::Running);
    fleet.exit(job.id, 0).await;
    let done = fleet.job(job.id).await;
    assert_eq!(
        (done.state, done.exit_code, done.attempt),
        (JobState::Succeeded, Some(0), 1)
    );
    assert!(done.gpu_seconds > rust_decimal::Decimal::ZERO);
    assert_eq!(fleet.most_holders().await, 0);
    let ask = server::app::page::PageAsk::first();
    let events = jobs::events(&fleet.app, &fleet.ada(), job.id, &ask)
        .await
        .expect("events")
        .items;
    let steps: Vec<&str> = events
        .iter()
        .filter(|e| e.subject == "job")
        .map(|e| e.to.as_str())
        .collect();
    assert_eq!(steps, ["queued", "starting", "running", "succeeded"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn two_plans_for_the_same_device_do_not_both_come_true(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let (one, two) = (fleet.submit(1).await, fleet.submit(1).await);
    let epoch = scheduler::take_over(&fleet.app).await.expect("the lead");
    let mirror = Mirror::load(&fleet.app.db).await.expect("the world");
    let plan_for = |job: JobId| {
        let mut world = translate::world(&mirror.records, mirror.now, &Memory::default());
        world.workloads.retain(|w| w.name == job.to_string());
        engine::plan(&world)
    };
    let (plan_one, plan_two) = (plan_for(one.id), plan_for(two.id));
    assert_eq!((plan_one.starts.len(), plan_two.starts.len()), (1, 1));
    let none = BTreeMap::new();
    let (first, second) = tokio::join!(
        scheduler::commit(&fleet.app, epoch, &mirror, &plan_one, &none),
        scheduler::commit(&fleet.app, epoch, &mirror, &plan_two, &none),
    );
    let outcomes = [first.expect("committed"), second.expect("committed")];
    assert_eq!(
        outcomes.iter().map(|o| o.committed).sum::<usize>(),
        1,
        "{outcomes:?}"
    );
    assert_eq!(
        outcomes.iter().map(|o| o.refused.len()).sum::<usize>(),
        1,
        "{outcomes:?}"
    );
    assert_eq!(fleet.most_holders().await, 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_plan_made_before_a_quota_was_lowered_starts_nothing(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let job = fleet.submit(2).await;
    let epoch = scheduler::take_over(&fleet.app).await.expect("the lead");
    let mirror = Mirror::load(&fleet.app.db).await.expect("the world");
    let plan = engine::plan(&translate::world(
        &mirror.records,
        mirror.now,
        &Memory::default(),
    ));
    sqlx::query!(
        "UPDATE quotas SET limit_milli = 1000, guaranteed_milli = 1000, version = version + 1"
    )
    .execute(&fleet.owner)
    .await
    .expect("lowered");
    let outcome = scheduler::commit(&fleet.app, epoch, &mirror, &plan, &BTreeMap::new())
        .await
        .expect("answered");
    assert_eq!(outcome.committed, 0);
    assert_eq!(fleet.job(job.id).await.state, JobState::Queued);
    fleet.turn().await;
    let waiting = fleet.job(job.id).await;
    assert_eq!(waiting.reason.as_deref(), Some("over_limit"));
    assert!(!waiting.message.is_empty());
}

#[sqlx::test(migrations = "../migrations")]
async fn a_team_takes_its_guarantee_back_and_the_victim_queues_again(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let borrower = fleet.submit(8).await;
    fleet.turn().await;
    fleet.run(borrower.id).await;
    let spec = json!({ "name": "k", "command": ["true"], "per_worker": { "gpus": 2 } });
    let owner_job = fleet
        .submit_as(&fleet.bob(), "speech", spec)
        .await
        .expect("accepted");
    fleet.turn().await;
    let victim = fleet.job(borrower.id).await;
    assert_eq!(victim.state, JobState::Preempting);
    assert!(
        !victim.message.contains(&owner_job.id.to_string()) && !victim.message.contains("speech")
    );
    let waiting = fleet.job(owner_job.id).await;
    assert_eq!(waiting.reason.as_deref(), Some("waiting_for_victims"));
    assert!(nominated(&fleet, owner_job.id).await.is_some());
    // A new leader keeps the room, since the nomination is with the job.
    fleet.turn().await;
    assert_eq!(fleet.job(owner_job.id).await.state, JobState::Queued);
    fleet.report(borrower.id, &[FactKind::Released]).await;
    assert_eq!(fleet.job(borrower.id).await.state, JobState::Queued);
    fleet.turn().await;
    assert_eq!(fleet.job(owner_job.id).await.state, JobState::Starting);
    assert_eq!(nominated(&fleet, owner_job.id).await, None);
    assert_eq!(fleet.job(borrower.id).await.state, JobState::Queued);
    let attempts = jobs::attempts(&fleet.app, &fleet.ada(), borrower.id)
        .await
        .expect("attempts")
        .items;
    assert_eq!(attempts[0].preemption_rule, Some(EvictionRule::Reclaim));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_is_preempted_so_often_in_a_day_whoever_leads(owner: PgPool) {
    limited(owner, "max_per_day", 24 * 3_600_000).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_team_suffers_so_many_evictions_in_an_hour_whoever_leads(owner: PgPool) {
    limited(owner, "max_per_team_hour", 3_600_000).await;
}

/// A limit of one holds until its time is over. Each turn is a new leader's, who knows nothing but
/// rows.
async fn limited(owner: PgPool, limit: &str, over_ms: i64) {
    let clock = Clock::at(&owner, "2026-10-01T00:00:00Z").await;
    let fleet = Fleet::with_policy(owner, json!({ "preemption": { limit: 1 } })).await;
    fleet.node("n1", 8).await;
    let borrower = fleet.running(8).await;
    let submit = async || {
        let spec = json!({ "name": "k", "command": ["true"], "per_worker": { "gpus": 2 } });
        let submitted = fleet.submit_as(&fleet.bob(), "speech", spec).await;
        fleet.turn().await;
        submitted.expect("accepted").id
    };
    let first = submit().await;
    assert_eq!(fleet.job(borrower).await.state, JobState::Preempting);
    fleet.report(borrower, &[FactKind::Released]).await;
    fleet.turn().await;
    fleet.run(first).await;
    fleet.exit(first, 0).await;
    fleet.turn().await;
    fleet.run(borrower).await;
    let second = submit().await;
    assert_eq!(fleet.job(borrower).await.state, JobState::Running);
    let waits = fleet.job(second).await;
    assert_eq!(waits.reason.as_deref(), Some("preemption_not_allowed"));
    clock.pass_ms(over_ms).await;
    fleet.turn().await;
    assert_eq!(fleet.job(borrower).await.state, JobState::Preempting);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_pool_that_wastes_little_remembers_what_has_ended(owner: PgPool) {
    let fleet = Fleet::with_policy(owner, json!({ "strategy": "least_fragmentation" })).await;
    fleet.node("n1", 8).await;
    let history = async || {
        let mut mirror = Mirror::load(&fleet.app.db).await.expect("the world");
        let memory = mirror.recall(&fleet.app.db).await.expect("the past");
        let world = translate::world(&mirror.records, mirror.now, &memory);
        let known = world.history.into_iter();
        known
            .map(|past| (past.pool, past.per_worker.gpus().milli(), past.workers))
            .collect::<Vec<_>>()
    };
    for gpus in [2, 4, 2] {
        let job = fleet.running(gpus).await;
        fleet.exit(job, 0).await;
    }
    let never_ran = fleet.submit(1).await.id;
    fleet.cancel(never_ran).await;
    assert_eq!(
        history().await,
        [("h100".to_owned(), 2000, 2), ("h100".to_owned(), 4000, 1)]
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_whose_stored_spec_is_poison_fails_alone(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let (poison, sound) = (fleet.submit(1).await, fleet.submit(1).await);
    sqlx::query!(
        r#"UPDATE jobs SET spec = '{"workers": -3}' WHERE id = $1"#,
        poison.id as JobId
    )
    .execute(&fleet.owner)
    .await
    .expect("spoiled");
    let mut leader = fleet.lead().await;
    leader.turn().await.expect("a turn");
    leader.turn().await.expect("a turn");
    assert_eq!(fleet.job(sound.id).await.state, JobState::Starting);
    let row = sqlx::query!(
        "SELECT state, reason FROM jobs WHERE id = $1",
        poison.id as JobId
    )
    .fetch_one(&fleet.owner)
    .await
    .expect("it is there");
    assert_eq!(
        (row.state.as_str(), row.reason.as_deref()),
        ("failed", Some("invalid"))
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_follows_a_failed_one_fails_and_one_that_follows_a_good_one_starts(
    owner: PgPool,
) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let (good, bad) = (fleet.submit(1).await, fleet.submit(1).await);
    let after = |id: JobId| json!({ "name": "f", "command": ["true"], "per_worker": { "gpus": 1 }, "after": [id] });
    let follows_good = fleet.submit_spec(after(good.id)).await.expect("accepted");
    let follows_bad = fleet.submit_spec(after(bad.id)).await.expect("accepted");
    let mut leader = fleet.lead().await;
    leader.turn().await.expect("a turn");
    assert_eq!(
        fleet.job(follows_good.id).await.reason.as_deref(),
        Some("dependency")
    );
    for (id, code) in [(good.id, 0), (bad.id, 3)] {
        fleet.run(id).await;
        fleet.exit(id, code).await;
    }
    leader.turn().await.expect("a turn");
    leader.turn().await.expect("a turn");
    assert_eq!(fleet.job(follows_good.id).await.state, JobState::Starting);
    let failed = fleet.job(follows_bad.id).await;
    assert_eq!(
        (failed.state, failed.reason.as_deref()),
        (JobState::Failed, Some("dependency"))
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn fractions_share_a_device_up_to_its_slices_and_its_memory(owner: PgPool) {
    let fleet = Fleet::with_policy(owner, json!({ "sharing": ["exclusive", "time_slice"] })).await;
    fleet.node("n1", 1).await;
    let spec = json!({ "name": "f", "command": ["true"], "per_worker": { "gpus": 0.25, "sharing": ["time_slice"] } });
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(fleet.submit_spec(spec.clone()).await.expect("accepted").id);
    }
    fleet.turn().await;
    let mut starting = 0;
    for id in ids {
        starting += usize::from(fleet.job(id).await.state == JobState::Starting);
    }
    assert_eq!(starting, 4);
    let held = sqlx::query!(
        r#"SELECT count(DISTINCT lower(slots)) AS "slots!", sum(gpus_milli) AS "milli!", sum(memory_mib)::bigint AS "memory!"
           FROM assignment_devices WHERE live"#
    )
    .fetch_one(&fleet.owner)
    .await
    .expect("shares");
    assert_eq!((held.slots, held.milli), (4, 1000));
    assert!(held.memory <= super::fleet::DEVICE_MIB);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_is_placed_whole_with_ranks_by_node_and_a_port_of_its_own(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 2).await;
    fleet.node("n2", 2).await;
    let gang =
        json!({ "name": "g", "command": ["true"], "workers": 2, "per_worker": { "gpus": 2 } });
    let job = fleet.submit_spec(gang).await.expect("accepted");
    fleet.turn().await;
    let ranks = sqlx::query!(
        "SELECT worker, node_rank FROM assignments WHERE job_id = $1 ORDER BY worker",
        job.id as JobId
    )
    .fetch_all(&fleet.owner)
    .await
    .expect("workers");
    assert_eq!(
        ranks
            .iter()
            .map(|r| (r.worker, r.node_rank))
            .collect::<Vec<_>>(),
        [(0, 0), (1, 1)]
    );
    let port = sqlx::query_scalar!(
        r#"SELECT master_port AS "port!" FROM attempts WHERE job_id = $1"#,
        job.id as JobId
    )
    .fetch_one(&fleet.owner)
    .await
    .expect("a port");
    assert!((20_000..30_000).contains(&port));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_requeued_job_goes_back_to_its_checkpoints_or_says_why_not(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 2).await;
    let n2 = fleet.node("n2", 2).await;
    let pinned = json!({ "name": "c", "command": ["false"], "per_worker": { "gpus": 1 }, "node": "n2",
                         "retries": { "limit": 3, "on": ["failure"] } });
    let job = fleet.submit_spec(pinned).await.expect("accepted");
    fleet.turn().await;
    fleet.run(job.id).await;
    fleet.exit(job.id, 1).await;
    assert_eq!(fleet.job(job.id).await.state, JobState::Queued);
    // The pin was only there to bring it to n2 first.
    sqlx::query!(
        r#"UPDATE jobs SET not_before = NULL, spec = spec || '{"node": null}', version = version + 1 WHERE id = $1"#,
        job.id as JobId
    )
    .execute(&fleet.owner)
    .await
    .expect("unpinned");
    fleet.turn().await;
    assert_eq!(fleet.job(job.id).await.placement[0].node, "n2");
    fleet.run(job.id).await;
    fleet.exit(job.id, 1).await;
    sqlx::query!("UPDATE jobs SET not_before = NULL, version = version + 1")
        .execute(&fleet.owner)
        .await
        .expect("due");
    cordon(&fleet, n2).await;
    fleet.turn().await;
    assert_eq!(fleet.job(job.id).await.placement[0].node, "n1");
    let data = sqlx::query_scalar!(
        "SELECT data FROM events WHERE job_id = $1 AND subject = 'job' AND to_state = 'starting' ORDER BY id DESC LIMIT 1",
        job.id as JobId
    )
    .fetch_one(&fleet.owner)
    .await
    .expect("an event");
    assert!(
        data["checkpoints"]
            .as_str()
            .is_some_and(|text| text.contains("n2")),
        "{data}"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_cancel_that_races_with_the_end_gives_one_end(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    for _ in 0..6 {
        let job = fleet.submit(1).await;
        fleet.turn().await;
        fleet.run(job.id).await;
        let ada = fleet.ada();
        let (cancel, ()) = tokio::join!(
            jobs::cancel(&fleet.app, &ada, Repeat::none(), job.id),
            fleet.exit(job.id, 0),
        );
        // The process is gone in either case.
        fleet.report(job.id, &[FactKind::Released]).await;
        let end = fleet.job(job.id).await;
        // Who cancels is told the end that came first, or that the cancel did.
        let told = cancel
            .expect("a cancel is accepted in every state")
            .value
            .state;
        let agreed = match told {
            JobState::Cancelling => JobState::Cancelled,
            ended => ended,
        };
        assert_eq!(end.state, agreed, "{end:?}");
        let ends = sqlx::query_scalar!(
            r#"SELECT count(*) AS "n!" FROM events
               WHERE job_id = $1 AND subject = 'job' AND to_state IN ('succeeded', 'cancelled', 'failed')"#,
            job.id as JobId
        )
        .fetch_one(&fleet.owner)
        .await
        .expect("a number");
        assert_eq!(ends, 1);
    }
    assert_eq!(fleet.most_holders().await, 0);
}

async fn nominated(fleet: &Fleet, job: JobId) -> Option<Value> {
    sqlx::query_scalar!("SELECT nominated FROM jobs WHERE id = $1", job as JobId)
        .fetch_one(&fleet.owner)
        .await
        .expect("it is there")
}
