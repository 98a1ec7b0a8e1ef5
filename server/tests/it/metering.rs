//! Money and time: metering, rating, reports and the balance of capacity, on a simulated clock.

use domain::ids::{AssignmentId, AttemptId, JobId, NodeId, PoolId, PriceId, TeamId, UserId};
use domain::state::{AttemptEnd, JobState};
use protocol::report::{Exited, FactKind};
use rust_decimal::Decimal;
use serde_json::json;
use server::accounting::{capacity, rating, usage};
use server::app::usage::{Usage, UsageAsk, of_all, of_team, parse_grouping};
use server::lifecycle::{Actor, Stop, stop};
use server::store::{self, jobs};
use sqlx::PgPool;

use super::fleet::Fleet;
use super::simulated::Clock;

/// A GPU-hour in thousandths of a GPU times microseconds.
pub const GPU_HOUR: i64 = 3_600 * 1_000_000_000;

#[sqlx::test(migrations = "../migrations")]
async fn the_golden_month_comes_out_to_the_cent_whenever_it_is_rated(owner: PgPool) {
    golden_month(owner, false, false).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn the_golden_month_comes_out_the_same_when_it_is_rated_at_every_step(owner: PgPool) {
    golden_month(owner, true, false).await;
}

/// T-3.12: what a node has told before comes again, the last first, after each step.
#[sqlx::test(migrations = "../migrations")]
async fn the_golden_month_comes_out_the_same_when_every_report_comes_again_in_reverse(
    owner: PgPool,
) {
    golden_month(owner, true, true).await;
}

/// T-3.10: three teams on a node of 8 H100 in October, with a change of price in its middle.
async fn golden_month(owner: PgPool, rated: bool, again: bool) {
    let clock = Clock::at(&owner, "2026-09-30T22:00:00Z").await;
    let fleet = Fleet::new(owner.clone()).await;
    price(&fleet, "3.00", "2026-01-01T00:00:00Z").await;
    price(&fleet, "2.40", "2026-10-16T00:00:00Z").await;
    let node = fleet.node("n1", 8).await;
    heard(&fleet, node).await;
    team(&fleet, "robotics").await;
    let rate = async || {
        heard(&fleet, node).await;
        if rated {
            rating::rate_due(&fleet.app.db).await.expect("rated");
        }
    };
    let start = async |team: &str, gpus: u32| -> JobId {
        let spec = json!({ "name": "j", "command": ["train"], "per_worker": { "gpus": gpus } });
        let job = fleet
            .submit_as(&fleet.root(), team, spec)
            .await
            .expect("accepted");
        fleet.turn().await;
        fleet.run(job.id).await;
        if again {
            let told = [
                FactKind::Started {
                    pid: 7,
                    image_digest: None,
                },
                FactKind::Accepted,
            ];
            fleet.report(job.id, &told).await;
        }
        assert_eq!(fleet.job(job.id).await.state, JobState::Running);
        job.id
    };
    let exit = async |job: JobId| {
        let workers = fleet.workers(job).await;
        fleet.exit(job, 0).await;
        if again {
            tell_again(&fleet, &workers).await;
        }
    };
    let job_c = start("robotics", 2).await;
    clock.set("2026-10-01T02:00:00Z").await;
    rate().await;
    exit(job_c).await;
    clock.set("2026-10-15T12:00:00Z").await;
    let job_a = start("vision", 4).await;
    let job_b = start("speech", 4).await;
    clock.set("2026-10-15T18:00:00Z").await;
    rate().await;
    let workers = fleet.workers(job_b).await;
    preempt(&fleet, job_b).await;
    if again {
        tell_again(&fleet, &workers).await;
    }
    assert_eq!(fleet.job(job_b).await.state, JobState::Queued);
    clock.set("2026-10-16T00:00:00Z").await;
    rate().await;
    fleet.turn().await;
    fleet.run(job_b).await;
    clock.set("2026-10-16T06:00:30Z").await;
    rate().await;
    exit(job_b).await;
    clock.set("2026-10-16T12:00:00Z").await;
    rate().await;
    exit(job_a).await;
    clock.set("2026-11-01T00:00:00Z").await;
    rate().await;

    let october = ask("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z", "team");
    let report = of_all(&fleet.app, &fleet.root(), &october)
        .await
        .expect("a report");
    let mut lines: Vec<(String, Decimal, Decimal)> = report
        .items
        .iter()
        .map(|item| {
            (
                item.group["team"].clone(),
                item.total.gpu_seconds,
                cost(&item.total),
            )
        })
        .collect();
    lines.sort();
    let hours = |hours: &str| decimal(hours) * Decimal::from(3600);
    assert_eq!(
        lines,
        [
            ("robotics".to_owned(), hours("4"), decimal("12.00")),
            ("speech".to_owned(), decimal("172920"), decimal("129.68")),
            ("vision".to_owned(), hours("96"), decimal("259.20")),
        ]
    );
    assert_eq!(cost(&report.total), decimal("400.88"));
    assert_eq!(report.total.gpu_seconds, decimal("532920"));
    assert_eq!(report.total.unpriced_gpu_seconds, Decimal::ZERO);
    let jobs = of_team(&fleet.app, &fleet.root(), &named("speech"), &october)
        .await
        .expect("a report");
    assert_eq!(cost(&jobs.total), decimal("129.68"));

    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let balance = capacity::balance(
        &mut tx,
        fleet.pool,
        "2026-10-01T00:00:00Z".parse().expect("a time"),
        "2026-11-01T00:00:00Z".parse().expect("a time"),
    )
    .await
    .expect("a balance");
    assert_eq!(balance.difference(), Decimal::ZERO);
    assert_eq!(
        balance.capacity.milli_micros,
        Decimal::from(5_952_i64) * Decimal::from(GPU_HOUR)
    );
    let idle_seconds = balance.idle.milli_micros / Decimal::from(1_000_000_000_i64);
    assert_eq!(idle_seconds, decimal("20894280"));
    assert_eq!(balance.unavailable.milli_micros, Decimal::ZERO);
    assert_eq!(
        domain::money::round(balance.charged.value, 2),
        decimal("400.88")
    );

    if rated {
        let again = of_all(&fleet.app, &fleet.root(), &october)
            .await
            .expect("a report");
        assert_eq!(cost(&again.total), decimal("400.88"));
        let sum = sqlx::query_scalar!(
            r#"SELECT sum(amount) AS "sum!" FROM ledger_entries WHERE started_at >= '2026-10-01'"#
        )
        .fetch_one(&owner)
        .await
        .expect("a sum");
        assert_eq!(domain::money::round(sum, 2), decimal("400.88"));
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn an_hour_over_a_change_of_price_is_cut_at_it(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-15T23:30:00Z").await;
    let fleet = Fleet::new(owner).await;
    price(&fleet, "3.00", "2026-01-01T00:00:00Z").await;
    price(&fleet, "2.40", "2026-10-16T00:00:00Z").await;
    fleet.node("n1", 1).await;
    let job = run(&fleet, 1).await;
    clock.set("2026-10-16T00:30:00Z").await;
    let running = fleet.job(job).await.cost.expect("it is priced");
    assert_eq!(running.amount, decimal("2.70"), "what it cost so far");
    fleet.exit(job, 0).await;
    rating::rate_due(&fleet.app.db).await.expect("rated");
    assert_eq!(total(&fleet, "").await, (decimal("3600"), decimal("2.70")));
}

#[sqlx::test(migrations = "../migrations")]
async fn seconds_are_exact_and_add_up_over_a_month(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-01T00:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    price(&fleet, "2.49", "2026-01-01T00:00:00Z").await;
    fleet.node("n1", 8).await;
    let job = run(&fleet, 8).await;
    clock.set("2026-10-01T00:00:01Z").await;
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let now = store::clock(&mut tx).await.expect("a time");
    let lines = store::ledger::of_jobs(&mut tx, &[job], now)
        .await
        .expect("its use");
    // 8 GPUs for a second at 2.49 an hour: 83/15000.
    assert_eq!(lines[0].1.amount, decimal("0.005533333333"));
    drop(tx);
    clock.set("2026-10-31T00:00:00Z").await;
    fleet.exit(job, 0).await;
    let (seconds, cost) = total(&fleet, "").await;
    assert_eq!(seconds, Decimal::from(8 * 30 * 86_400));
    assert_eq!(cost, decimal("14342.40"));
}

#[sqlx::test(migrations = "../migrations")]
async fn what_no_price_covers_is_unpriced_and_never_free(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-01T00:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    price(&fleet, "3.60", "2026-10-01T01:00:00Z").await;
    fleet.node("n1", 1).await;
    let job = run(&fleet, 1).await;
    clock.set("2026-10-01T02:00:00Z").await;
    fleet.exit(job, 0).await;
    rating::rate_due(&fleet.app.db).await.expect("rated");
    let report = of_all(&fleet.app, &fleet.root(), &ask_all("pool"))
        .await
        .expect("a report");
    assert_eq!(report.items.len(), 1, "one line, with both parts");
    assert_eq!(report.total.gpu_seconds, decimal("7200"));
    assert_eq!(report.total.unpriced_gpu_seconds, decimal("3600"));
    assert_eq!(cost(&report.total), decimal("3.60"));
}

#[sqlx::test(migrations = "../migrations")]
async fn rating_again_writes_nothing_again_and_stops_at_the_last_heartbeats_hour(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-01T00:10:00Z").await;
    let fleet = Fleet::new(owner.clone()).await;
    price(&fleet, "3.60", "2026-01-01T00:00:00Z").await;
    let node = fleet.node("n1", 1).await;
    heard(&fleet, node).await;
    let job = run(&fleet, 1).await;
    clock.set("2026-10-01T02:30:00Z").await;
    let entries = async || {
        rating::rate_due(&fleet.app.db).await.expect("rated");
        sqlx::query_scalar!(r#"SELECT count(*) AS "n!" FROM ledger_entries"#)
            .fetch_one(&owner)
            .await
            .expect("a number")
    };
    assert_eq!(entries().await, 0, "its node was not heard of since 00:10");
    heard(&fleet, node).await;
    assert_eq!(entries().await, 2, "00:10 to 01:00, and 01:00 to 02:00");
    assert_eq!(entries().await, 2);
    assert_eq!(total(&fleet, "").await.0, decimal("8400"));
    fleet.exit(job, 0).await;
    assert_eq!(entries().await, 3);
    assert_eq!(total(&fleet, "").await, (decimal("8400"), decimal("8.40")));
}

pub async fn run(fleet: &Fleet, gpus: u32) -> JobId {
    let spec = json!({ "name": "j", "command": ["train"], "per_worker": { "gpus": gpus } });
    let job = fleet.submit_spec(spec).await.expect("accepted");
    fleet.turn().await;
    fleet.run(job.id).await;
    assert_eq!(fleet.job(job.id).await.state, JobState::Running);
    job.id
}

/// Workers that are gone tell all that they told before once more, the last first.
async fn tell_again(fleet: &Fleet, workers: &[(AssignmentId, AttemptId, NodeId)]) {
    let exited = FactKind::Exited(Exited {
        code: Some(0),
        signal: None,
        out_of_memory: false,
        asked: false,
        lost: None,
        message: String::new(),
    });
    let started = FactKind::Started {
        pid: 7,
        image_digest: None,
    };
    for kind in [FactKind::Released, exited, started, FactKind::Accepted] {
        for worker in workers {
            fleet.report_one(*worker, &kind).await;
        }
    }
}

async fn preempt(fleet: &Fleet, id: JobId) {
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let mut job = jobs::lock(&mut tx, id)
        .await
        .expect("a row")
        .expect("a job");
    let wish = Stop {
        job_to: Some(JobState::Preempting),
        ..Stop::because(AttemptEnd::Preempted, "for a test")
    };
    stop(&mut tx, &mut job, &wish, &Actor::Scheduler)
        .await
        .expect("it is stopped");
    tx.commit().await.expect("committed");
    let told = FactKind::Exited(Exited {
        code: Some(0),
        signal: None,
        out_of_memory: false,
        asked: true,
        lost: None,
        message: String::new(),
    });
    fleet.report(id, &[told, FactKind::Released]).await;
}

/// The node beats at the present time.
pub async fn heard(fleet: &Fleet, node: NodeId) {
    sqlx::query!(
        "UPDATE nodes SET last_heartbeat_at = allotment.clock() WHERE id = $1",
        node as NodeId
    )
    .execute(&fleet.owner)
    .await
    .expect("a beat");
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    store::capacity::refresh(&mut tx, node)
        .await
        .expect("refreshed");
    tx.commit().await.expect("committed");
}

async fn team(fleet: &Fleet, name: &str) {
    let id = TeamId::new();
    sqlx::query!(
        "INSERT INTO teams (id, name, parent_id, hue) SELECT $1, $2, id, 1 FROM teams WHERE name = 'org'",
        id as TeamId,
        name
    )
    .execute(&fleet.owner)
    .await
    .expect("a team");
    sqlx::query!(
        "INSERT INTO quotas (team_id, pool_id, guaranteed_milli) VALUES ($1, $2, 4000)",
        id as TeamId,
        fleet.pool as PoolId
    )
    .execute(&fleet.owner)
    .await
    .expect("a quota");
}

pub async fn price(fleet: &Fleet, amount: &str, from: &str) {
    add_price(fleet, "exclusive", amount, from).await;
}

pub async fn slice_price(fleet: &Fleet, amount: &str) {
    add_price(fleet, "time_slice", amount, "2026-01-01T00:00:00Z").await;
}

async fn add_price(fleet: &Fleet, mode: &str, amount: &str, from: &str) {
    sqlx::query!(
        "WITH billed AS (UPDATE organisation SET currency = 'CNY')
         INSERT INTO prices (id, pool_id, mode, per_gpu_hour, list_per_hour, effective_per_hour, currency,
                             effective_from, created_by)
         VALUES ($1, $2, $3, $4, $4, $4, 'CNY', $5, $6)",
        PriceId::new() as PriceId,
        fleet.pool as PoolId,
        mode,
        decimal(amount),
        from.parse::<domain::Timestamp>().expect("a time"),
        fleet.root().user_id as UserId,
    )
    .execute(&fleet.owner)
    .await
    .expect("a price");
}

pub async fn total(fleet: &Fleet, by: &str) -> (Decimal, Decimal) {
    let report: Usage = of_all(&fleet.app, &fleet.root(), &ask_all(by))
        .await
        .expect("a report");
    (report.total.gpu_seconds, cost(&report.total))
}

fn ask_all(by: &str) -> UsageAsk {
    ask("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", by)
}

pub fn ask(from: &str, to: &str, by: &str) -> UsageAsk {
    UsageAsk {
        from: Some(from.parse().expect("a time")),
        to: Some(to.parse().expect("a time")),
        by: parse_grouping(Some(by).filter(|by| !by.is_empty())).expect("words"),
    }
}

pub fn cost(total: &server::app::usage::UsageTotal) -> Decimal {
    total
        .cost
        .as_ref()
        .map(|money| money.amount)
        .unwrap_or_default()
}

pub fn decimal(text: &str) -> Decimal {
    text.parse().expect("a decimal")
}

fn named(text: &str) -> domain::name::Name {
    text.parse().expect("a name")
}

/// The same sums as a job's own page shows.
#[sqlx::test(migrations = "../migrations")]
async fn a_jobs_own_cost_is_that_of_its_report(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-01T00:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    price(&fleet, "41.10", "2026-01-01T00:00:00Z").await;
    fleet.node("n1", 2).await;
    let job = run(&fleet, 2).await;
    clock.set("2026-10-01T00:00:07.5Z").await;
    fleet.exit(job, 0).await;
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let own = usage::of_job(&mut tx, job).await.expect("its use");
    drop(tx);
    let report = of_all(&fleet.app, &fleet.root(), &ask_all("job"))
        .await
        .expect("a report");
    assert_eq!(report.items[0].group["job"], job.to_string());
    assert_eq!(report.items[0].total.gpu_seconds, decimal("15"));
    assert_eq!(own.gpu_seconds, decimal("15"));
    assert_eq!(own.cost.map(|c| c.amount), Some(cost(&report.total)));
    assert_eq!(cost(&report.total), decimal("0.1713"));
}
