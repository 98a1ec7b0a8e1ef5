//! Evictions: each names for whom, by which rule and at what loss, as far as its reader may know.

use chrono::TimeDelta;
use domain::MilliGpu;
use domain::eviction::{EvictionKind, EvictionRule};
use domain::ids::JobId;
use domain::state::JobState;
use protocol::report::FactKind;
use serde_json::{Value, json};
use server::app::Asker;
use server::app::evictions::{self, Eviction, Gainer};
use server::app::page::PageAsk;
use server::background;
use server::lifecycle::Actor;
use server::{lifecycle, store};
use sqlx::PgPool;

use super::fixture::Server;
use super::fleet::{Fleet, exited, told_to_end};
use super::pages::{Browser, add_person};
use super::simulated::Clock;

/// One eviction of a job, which has no more of them, as somebody reads it.
async fn the_one(fleet: &Fleet, asker: &Asker, job: JobId) -> Eviction {
    let page = evictions::of_job(&fleet.app, asker, job, &PageAsk::first()).await;
    let mut items = page.expect("a page").items;
    assert_eq!(items.len(), 1, "{items:?}");
    items.pop().expect("one")
}

fn spec(gpus: u32, more: Value) -> Value {
    let mut spec = json!({ "name": "j", "command": ["true"], "per_worker": { "gpus": gpus } });
    let more = more.as_object().expect("keys").clone();
    spec.as_object_mut().expect("keys").extend(more);
    spec
}

async fn starts(fleet: &Fleet, team: &str, spec: Value) -> JobId {
    let job = submits(fleet, team, spec).await;
    fleet.run(job).await;
    assert_eq!(fleet.job(job).await.state, JobState::Running);
    job
}

/// Submits, and lets the scheduler turn once.
async fn submits(fleet: &Fleet, team: &str, spec: Value) -> JobId {
    let job = fleet.submit_as(&fleet.root(), team, spec).await;
    fleet.turn().await;
    job.expect("accepted").id
}

const NOBODY_NAMED: Gainer = Gainer {
    team: None,
    job: None,
    booking: None,
};

fn named(team: &str, job: JobId) -> Gainer {
    Gainer {
        team: Some(team.to_owned()),
        job: Some(job),
        booking: None,
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_guarantee_taken_back_is_told_with_its_loss_and_the_gainer_only_to_who_may_know(
    owner: PgPool,
) {
    let clock = Clock::at(&owner, "2026-01-05T12:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let victim = starts(
        &fleet,
        "vision",
        spec(8, json!({ "checkpoint_seconds": 600 })),
    )
    .await;
    clock.pass_ms(1_500_000).await;
    let gainer = submits(&fleet, "speech", spec(2, json!({}))).await;
    let told = the_one(&fleet, &fleet.ada(), victim).await;
    assert_eq!(
        (
            told.kind,
            told.rule,
            told.workers_before,
            told.workers_after
        ),
        (EvictionKind::Preemption, EvictionRule::Reclaim, 1, 0)
    );
    assert_eq!((told.gpus, told.devices), (MilliGpu::whole(8), 8));
    // Its last checkpoint was 300 s ago.
    assert_eq!(told.lost_gpu_seconds, MilliGpu::whole(8 * 300));
    assert_eq!(told.at, clock.now().await);
    assert_eq!(told.made_room_for, Some(NOBODY_NAMED));
    let told = the_one(&fleet, &fleet.root(), victim).await;
    assert_eq!(told.made_room_for, Some(named("speech", gainer)));
    assert_eq!((told.team.as_str(), told.attempt), ("vision", 1));
    let teams = evictions::of_team(
        &fleet.app,
        &fleet.ada(),
        &"vision".parse().expect("a name"),
        &PageAsk::first(),
    )
    .await
    .expect("a page");
    assert_eq!(teams.items.len(), 1);
    assert_eq!(teams.items[0].made_room_for, Some(NOBODY_NAMED));
}

#[sqlx::test(migrations = "../migrations")]
async fn work_that_was_done_before_its_stop_arrived_has_lost_nothing(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-01-05T12:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let victim = starts(&fleet, "vision", spec(8, json!({}))).await;
    clock.pass_ms(60_000).await;
    submits(&fleet, "speech", spec(2, json!({}))).await;
    let told = the_one(&fleet, &fleet.ada(), victim).await;
    assert_eq!(told.lost_gpu_seconds, MilliGpu::whole(480));
    fleet.report(victim, &[exited(0), FactKind::Released]).await;
    assert_eq!(fleet.job(victim).await.state, JobState::Succeeded);
    let told = the_one(&fleet, &fleet.ada(), victim).await;
    assert_eq!(told.lost_gpu_seconds, MilliGpu::ZERO);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_that_shrinks_tells_what_its_released_ranks_lost_and_by_which_rule(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-01-05T12:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let gang = json!({ "workers": 8, "min_workers": 2 });
    let victim = starts(&fleet, "vision", spec(1, gang)).await;
    clock.pass_ms(100_000).await;
    submits(&fleet, "speech", spec(3, json!({}))).await;
    let told = the_one(&fleet, &fleet.ada(), victim).await;
    assert_eq!(
        (
            told.kind,
            told.rule,
            told.workers_before,
            told.workers_after
        ),
        (EvictionKind::Shrink, EvictionRule::Reclaim, 8, 5)
    );
    assert_eq!((told.gpus, told.devices), (MilliGpu::whole(3), 3));
    assert_eq!(told.lost_gpu_seconds, MilliGpu::whole(300));
    let attempts = server::app::jobs::attempts(&fleet.app, &fleet.ada(), victim).await;
    assert_eq!(
        attempts.expect("attempts").items[0].preemption_rule,
        None,
        "it goes on"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn work_of_higher_priority_of_the_own_team_is_named(owner: PgPool) {
    let policy = json!({ "preemption": { "within_team": "lower_priority" } });
    let fleet = Fleet::with_policy(owner, policy).await;
    fleet.node("n1", 4).await;
    let victim = starts(&fleet, "vision", spec(4, json!({}))).await;
    let gainer = submits(&fleet, "vision", spec(4, json!({ "class": "urgent" }))).await;
    let told = the_one(&fleet, &fleet.ada(), victim).await;
    assert_eq!(told.rule, EvictionRule::Priority);
    assert_eq!(told.made_room_for, Some(named("vision", gainer)));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_move_is_told_with_what_it_destroys(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-01-05T12:00:00Z").await;
    let policy = json!({ "strategy": "spread", "preemption": { "consolidate": true } });
    let fleet = Fleet::with_policy(owner, policy).await;
    fleet.node("n1", 2).await;
    fleet.node("n2", 2).await;
    let one = starts(&fleet, "vision", spec(1, json!({}))).await;
    let two = starts(&fleet, "vision", spec(1, json!({}))).await;
    clock.pass_ms(7_000).await;
    let gainer = submits(&fleet, "speech", spec(2, json!({}))).await;
    let moved = match fleet.job(one).await.state {
        JobState::Preempting => one,
        _ => two,
    };
    let told = the_one(&fleet, &fleet.root(), moved).await;
    assert_eq!(
        (told.kind, told.rule),
        (EvictionKind::Move, EvictionRule::Consolidation)
    );
    assert_eq!(told.made_room_for, Some(named("speech", gainer)));
    assert_eq!(told.lost_gpu_seconds, MilliGpu::whole(7));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_is_emptied_is_for_nobody(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let node = fleet.node("n1", 1).await;
    let victim = starts(&fleet, "vision", spec(1, json!({}))).await;
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let row = store::nodes::lock(&mut tx, node).await.expect("a row");
    let to = domain::state::NodeIntent::Draining;
    lifecycle::nodes::set_intent(
        &mut tx,
        &row.expect("a node"),
        server::store::nodes::Wanted::plain(to, ""),
        &Actor::System,
    )
    .await
    .expect("a step");
    tx.commit().await.expect("committed");
    let round = background::reconcile(&fleet.app, false).await;
    round.outcome().expect("reconciled");
    let told = the_one(&fleet, &fleet.ada(), victim).await;
    assert_eq!((told.rule, told.made_room_for), (EvictionRule::Drain, None));
}

#[sqlx::test(migrations = "../migrations")]
async fn what_gave_way_is_summed_by_month_and_rule(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-01-31T23:59:00Z").await;
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let victim = starts(&fleet, "vision", spec(8, json!({}))).await;
    for _ in 0..2 {
        clock.pass_ms(50_000).await;
        let gainer = submits(&fleet, "speech", spec(2, json!({}))).await;
        let leaves = [told_to_end(), FactKind::Released];
        fleet.report(victim, &leaves).await;
        fleet.turn().await;
        fleet.run(gainer).await;
        fleet.exit(gainer, 0).await;
        fleet.turn().await;
        fleet.run(victim).await;
    }
    let org = "org".parse().expect("a name");
    let page = evictions::of_team(&fleet.app, &fleet.root(), &org, &PageAsk::first()).await;
    let sums: Vec<_> = page
        .expect("a page")
        .sums
        .into_iter()
        .map(|sum| {
            (
                sum.month,
                sum.rule,
                sum.evictions,
                sum.gpus,
                sum.lost_gpu_seconds,
            )
        })
        .collect();
    let month = |month: &str| {
        let (gpus, lost) = (MilliGpu::whole(8), MilliGpu::whole(400));
        (month.to_owned(), EvictionRule::Reclaim, 1, gpus, lost)
    };
    assert_eq!(sums, [month("2026-02"), month("2026-01")]);
}

/// Its place is that of when it was submitted, not of when it was put back.
#[sqlx::test(migrations = "../migrations")]
async fn who_gave_way_stands_before_what_its_team_submitted_later(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-01-05T12:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let first = starts(&fleet, "vision", spec(8, json!({}))).await;
    clock.pass_ms(1_000).await;
    let later = submits(&fleet, "vision", spec(8, json!({}))).await;
    clock.pass_ms(1_000).await;
    let gainer = submits(&fleet, "speech", spec(2, json!({}))).await;
    clock.pass_ms(1_000).await;
    fleet
        .report(first, &[told_to_end(), FactKind::Released])
        .await;
    fleet.turn().await;
    fleet.run(gainer).await;
    clock.pass_ms(1_000).await;
    fleet.exit(gainer, 0).await;
    fleet.turn().await;
    let (first, later) = (fleet.job(first).await, fleet.job(later).await);
    assert!(first.queued_at > later.queued_at, "it was put back later");
    assert_eq!(
        (first.state, later.state),
        (JobState::Starting, JobState::Queued)
    );
    assert!(first.created_at + TimeDelta::seconds(1) == later.created_at);
}

#[sqlx::test(migrations = "../migrations")]
async fn pages_tell_a_job_and_its_team_what_gave_way(owner: PgPool) {
    use crate::fleet::{add_node, turn};
    use crate::pages::{Browser, give_password};
    use axum::http::StatusCode;
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    give_password(&owner, server.users["vision-member"]).await;
    let submit = async |team: &str, gpus: u32| {
        let member = server.client(&format!("{team}-member"));
        let path = format!("/teams/{team}/jobs");
        let job = member.post(&path, spec(gpus, json!({}))).await;
        let job = job.expect(StatusCode::CREATED);
        turn(&server.app).await;
        job["id"].as_str().expect("an id").to_owned()
    };
    let victim = submit("vision", 8).await;
    let gainer = submit("speech", 2).await;
    let mut browser = Browser::new(&server.app);
    browser.sign_in("vision-member").await;
    for path in [format!("/jobs/{victim}"), "/teams/vision".to_owned()] {
        let page = browser.get(&path).await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.html);
        assert!(
            page.html.contains("Room was made for another team."),
            "{path}"
        );
        assert!(page.html.contains("took back its guarantee"), "{path}");
        assert!(
            !page.html.contains(&gainer) && !page.html.contains("speech"),
            "{path}"
        );
    }
    let path = format!("/jobs/{victim}/evictions");
    let told = server
        .client("auditor")
        .get(&path)
        .await
        .expect(StatusCode::OK);
    assert_eq!(
        told["items"][0]["for"],
        json!({ "team": "speech", "job": gainer, "booking": null })
    );
}

/// Of a list that is cut short its page says that it is.
#[sqlx::test(migrations = "../migrations")]
async fn a_teams_page_says_that_it_lists_the_last_ones_where_there_are_others(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 1).await;
    fleet.running(1).await;
    add_person(&owner, "boss", Some("admin")).await;
    let mut browser = Browser::new(&fleet.app);
    browser.sign_in("boss").await;
    for (rows, told) in [(10, false), (1, true)] {
        let statement = format!(
            "INSERT INTO evictions (team_id, job_id, attempt_id, pool_id, kind, rule, workers_before, workers_after,
                                    gpus_milli, devices, lost_gpu_milli_seconds)
             SELECT a.team_id, a.job_id, a.id, p.id, 'preemption', 'drain', 1, 0, 1000, 1, 0
             FROM attempts AS a, pools AS p, generate_series(1, {rows})"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
            .execute(&owner)
            .await
            .expect("evictions");
        let page = browser.get("/teams/vision").await.html;
        let says = page.contains("Listed are the last 10 times; there were others before");
        assert_eq!(says, told, "{page}");
    }
}
