//! What is charged of holds that are cut short: by stops, by losses, and by silence.

use domain::Timestamp;
use domain::ids::{JobId, NodeId};
use domain::money::Money;
use domain::state::{JobState, Reachability};
use protocol::report::FactKind;
use rust_decimal::Decimal;
use serde_json::json;
use server::accounting::capacity::{self, Balance};
use server::app::idempotency::Repeat;
use server::app::prices;
use server::app::usage::{CapacityPart, UsageAsk, of_capacity};
use server::lifecycle::end::{Loss, Spared, lose_workers};
use server::lifecycle::{Actor, nodes::set_reachability};
use server::store;
use sqlx::PgPool;

use super::fleet::{Fleet, told_to_end};
use super::metering::{decimal, heard, price, slice_price, total};
use super::simulated::Clock;

#[sqlx::test(migrations = "../migrations")]
async fn a_hold_that_was_taken_while_its_stop_was_on_the_way_is_charged_until_it_is_clean(
    owner: PgPool,
) {
    let (clock, fleet) = priced(&owner).await;
    let job = fleet.cancelled_on_its_way().await;
    clock.set("2026-10-01T00:10:00Z").await;
    fleet.report(job, &[FactKind::Accepted]).await;
    clock.set("2026-10-01T00:30:00Z").await;
    fleet.report(job, &[told_to_end()]).await;
    clock.set("2026-10-01T00:40:00Z").await;
    fleet.report(job, &[FactKind::Released]).await;
    assert_eq!(fleet.job(job).await.state, JobState::Cancelled);
    assert_eq!(total(&fleet, "").await, (decimal("1800"), decimal("1.80")));
    assert_eq!(
        segments(&fleet).await,
        [
            ("reserved".to_owned(), 0, 600),
            ("charged".to_owned(), 600, 2400)
        ]
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_hold_that_its_node_never_took_is_not_charged(owner: PgPool) {
    let (clock, fleet) = priced(&owner).await;
    let job = fleet.cancelled_on_its_way().await;
    clock.set("2026-10-01T00:10:00Z").await;
    fleet.report(job, &[FactKind::Released]).await;
    assert_eq!(total(&fleet, "").await.0, Decimal::ZERO);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_shown_of_a_silent_node_is_what_will_stand_when_it_is_fenced(owner: PgPool) {
    let (clock, fleet) = priced(&owner).await;
    let node = fleet.node("n1", 1).await;
    heard(&fleet, node).await;
    let job = fleet.running(1).await;
    clock.set("2026-10-01T00:10:00Z").await;
    heard(&fleet, node).await;
    clock.set("2026-10-01T00:30:00Z").await;
    reach(&fleet, node, Reachability::Unreachable).await;
    let shown = async || {
        let job = fleet.job(job).await;
        assert_eq!(
            (job.gpu_seconds, job.cost.map(|c| c.amount)),
            (decimal("600"), Some(decimal("0.60"))),
        );
        assert_eq!(total(&fleet, "").await, (decimal("600"), decimal("0.60")));
        let balance = balance(&fleet, "2026-10-01T00:00:00Z", "2026-10-01T00:30:00Z").await;
        assert_eq!(balance.difference(), Decimal::ZERO);
        assert_eq!(
            (seconds(&balance.charged), seconds(&balance.idle)),
            (decimal("600"), Decimal::ZERO)
        );
        assert_eq!(seconds(&balance.unavailable), decimal("1200"));
    };
    shown().await;
    fence(&fleet, job, node, "2026-10-01T00:10:00Z").await;
    shown().await;
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_shown_of_a_silent_node_that_answers_again_only_grows(owner: PgPool) {
    let (clock, fleet) = priced(&owner).await;
    let node = fleet.node("n1", 1).await;
    heard(&fleet, node).await;
    let job = fleet.running(1).await;
    clock.set("2026-10-01T00:10:00Z").await;
    heard(&fleet, node).await;
    clock.set("2026-10-01T00:20:00Z").await;
    assert_eq!(total(&fleet, "").await.0, decimal("600"));
    // A node that is only late counts as allocated up to now, and as charged up to its word.
    let late = balance(&fleet, "2026-10-01T00:00:00Z", "2026-10-01T00:20:00Z").await;
    assert_eq!(late.difference(), Decimal::ZERO);
    assert_eq!(
        (seconds(&late.charged), seconds(&late.reserved)),
        (decimal("600"), decimal("600"))
    );
    assert_eq!(seconds(&late.unavailable), Decimal::ZERO);
    heard(&fleet, node).await;
    assert_eq!(total(&fleet, "").await.0, decimal("1200"));
    fleet.exit(job, 0).await;
    assert_eq!(total(&fleet, "").await, (decimal("1200"), decimal("1.20")));
}

#[sqlx::test(migrations = "../migrations")]
async fn each_device_of_a_fenced_hold_is_unavailable_from_where_its_own_charge_ends(owner: PgPool) {
    let (clock, fleet) = priced(&owner).await;
    let node = fleet.node("n1", 2).await;
    heard(&fleet, node).await;
    let job = fleet.running(2).await;
    // Rating took up one of the two devices and was stopped.
    sqlx::query!(
        "UPDATE usage_segments SET rated_until = '2026-10-01T01:00:00Z'
         WHERE id = (SELECT min(id::text)::uuid FROM usage_segments WHERE kind = 'charged')"
    )
    .execute(&owner)
    .await
    .expect("rated");
    clock.set("2026-10-01T02:00:00Z").await;
    fence(&fleet, job, node, "2026-10-01T00:30:00Z").await;
    let mut found = segments(&fleet).await;
    found.sort();
    assert_eq!(
        found,
        [
            ("charged".to_owned(), 0, 1800),
            ("charged".to_owned(), 0, 3600),
            ("unreachable".to_owned(), 1800, 7200),
            ("unreachable".to_owned(), 3600, 7200),
        ]
    );
    let balance = balance(&fleet, "2026-10-01T00:00:00Z", "2026-10-01T02:00:00Z").await;
    assert_eq!(balance.difference(), Decimal::ZERO);
    assert_eq!(seconds(&balance.charged), decimal("5400"));
    assert_eq!(seconds(&balance.unavailable), decimal("9000"));
    assert_eq!(seconds(&balance.idle), Decimal::ZERO);
}

/// Two devices, one given out whole and one by halves, each at the price of its mode.
#[sqlx::test(migrations = "../migrations")]
async fn what_is_allocated_of_a_pool_is_worth_what_it_costs_by_mode_to_the_cent(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-01T00:00:00Z").await;
    let policy = json!({ "sharing": ["exclusive", "time_slice"] });
    let fleet = Fleet::with_policy(owner, policy).await;
    price(&fleet, "3.60", "2026-01-01T00:00:00Z").await;
    slice_price(&fleet, "1.11").await;
    let node = fleet.node("n1", 2).await;
    heard(&fleet, node).await;
    let whole = fleet.running(1).await;
    let slice = json!({ "name": "s", "command": ["x"],
                        "per_worker": { "gpus": 0.5, "sharing": ["time_slice"] } });
    let slice = fleet.submit_spec(slice).await.expect("accepted").id;
    fleet.turn().await;
    fleet.run(slice).await;
    clock.set("2026-10-01T01:00:00Z").await;
    heard(&fleet, node).await;
    for job in [whole, slice] {
        fleet.exit(job, 0).await;
    }
    clock.set("2026-10-01T02:00:00Z").await;
    let ask = UsageAsk {
        from: Some(time("2026-10-01T00:00:00Z")),
        to: Some(time("2026-10-01T02:00:00Z")),
        ..UsageAsk::default()
    };
    let pool = "h100".parse().expect("a name");
    let report = of_capacity(&fleet.app, &fleet.root(), &pool, &ask)
        .await
        .expect("a report");
    let worth = |money: &Option<Money>| money.as_ref().map(|m| m.amount.normalize());
    let part = |part: &CapacityPart| (part.gpu_seconds, worth(&part.value));
    let of = |seconds: &str, value: &str| (decimal(seconds), Some(decimal(value)));
    // One device at 3.60, half a device at 1.11: 3.60 + 0.555.
    assert_eq!(part(&report.allocated), of("5400", "4.155"));
    assert_eq!(part(&report.idle), of("9000", "9"));
    assert_eq!(part(&report.unavailable), of("0", "0"));
    assert_eq!(part(&report.capacity), of("14400", "14.4"));
    // What the half would have cost at the price of a whole device, less what it costs.
    assert_eq!(worth(&report.price_difference), Some(decimal("1.245")));
    assert_eq!(report.unpriced_gpu_seconds, Decimal::ZERO);
    assert_eq!(total(&fleet, "").await, (decimal("5400"), decimal("4.155")));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_mode_that_no_price_covers_is_told_as_unpriced_in_the_capacity(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-01T00:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    slice_price(&fleet, "1.11").await;
    let node = fleet.node("n1", 1).await;
    heard(&fleet, node).await;
    let job = fleet.running(1).await;
    clock.set("2026-10-01T01:00:00Z").await;
    heard(&fleet, node).await;
    fleet.exit(job, 0).await;
    let balance = balance(&fleet, "2026-10-01T00:00:00Z", "2026-10-01T01:00:00Z").await;
    assert_eq!(balance.shown().unpriced_gpu_seconds, decimal("3600"));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_price_dated_back_counts_for_what_is_not_rated_yet_from_then_on(owner: PgPool) {
    let (clock, fleet) = priced(&owner).await;
    let node = fleet.node("n1", 1).await;
    heard(&fleet, node).await;
    fleet.running(1).await;
    clock.set("2026-10-01T00:30:00Z").await;
    heard(&fleet, node).await;
    assert_eq!(total(&fleet, "").await.1, decimal("1.80"));
    let new = json!({ "pool": "h100", "mode": "exclusive", "effective_from": "2026-10-01T00:10:00Z",
                      "per_gpu_hour": { "amount": "7.20", "currency": "CNY" } });
    let new = serde_json::from_value(new).expect("a price");
    let added = prices::create(&fleet.app, &fleet.root(), Repeat::none(), new).await;
    assert!(added.is_ok(), "{added:?}");
    // Ten minutes at 3.60, twenty at twice that.
    assert_eq!(total(&fleet, "").await.1, decimal("3.00"));
}

/// The first of October, and a fleet in which a GPU costs 3.60 an hour.
async fn priced(owner: &PgPool) -> (Clock, Fleet) {
    let clock = Clock::at(owner, "2026-10-01T00:00:00Z").await;
    let fleet = Fleet::new(owner.clone()).await;
    price(&fleet, "3.60", "2026-01-01T00:00:00Z").await;
    (clock, fleet)
}

async fn reach(fleet: &Fleet, node: NodeId, to: Reachability) {
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let row = store::nodes::lock(&mut tx, node)
        .await
        .expect("a row")
        .expect("a node");
    set_reachability(&mut tx, &row, to, "for a test", &Actor::System)
        .await
        .expect("a step");
    tx.commit().await.expect("committed");
}

async fn fence(fleet: &Fleet, job: JobId, node: NodeId, heard_at: &str) {
    let loss = Loss {
        node_id: node,
        last_heartbeat_at: Some(time(heard_at)),
        message: "for a test".to_owned(),
        spared: Spared::Nobody,
    };
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let timers = &fleet.app.config.timers;
    let fenced = lose_workers(&mut tx, timers, job, &loss, &Actor::System)
        .await
        .expect("fenced");
    assert!(fenced);
    tx.commit().await.expect("committed");
}

/// Kind, beginning and end of all segments, in seconds since the day began, but for empty ones.
async fn segments(fleet: &Fleet) -> Vec<(String, i64, i64)> {
    sqlx::query!(
        r#"SELECT kind, EXTRACT(epoch FROM started_at - '2026-10-01T00:00:00Z')::bigint AS "from!",
                  EXTRACT(epoch FROM ended_at - '2026-10-01T00:00:00Z')::bigint AS "to!"
           FROM usage_segments
           WHERE ended_at > started_at
           ORDER BY started_at, ended_at"#
    )
    .fetch_all(&fleet.owner)
    .await
    .expect("segments")
    .into_iter()
    .map(|row| (row.kind, row.from, row.to))
    .collect()
}

async fn balance(fleet: &Fleet, from: &str, to: &str) -> Balance {
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    capacity::balance(&mut tx, fleet.pool, time(from), time(to))
        .await
        .expect("a balance")
}

fn seconds(part: &capacity::Part) -> Decimal {
    (part.milli_micros / Decimal::from(1_000_000_000_i64)).normalize()
}

fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}
