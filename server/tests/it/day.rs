//! A simulated day of random work: everything that was held, idle or away adds up, in device-seconds and in money.

use domain::ids::{JobId, NodeId};
use domain::state::JobState;
use rust_decimal::Decimal;
use serde_json::json;
use server::accounting::{capacity, rating};
use server::app::usage::of_all;
use server::lifecycle::Actor;
use server::store;
use sqlx::PgPool;

use super::fleet::Fleet;
use super::metering::{GPU_HOUR, ask, cost, heard, price, slice_price};
use super::simulated::{Clock, Dice};

#[sqlx::test(migrations = "../migrations")]
async fn a_simulated_day_adds_up_to_the_device_second_and_the_cent(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-05T00:00:00Z").await;
    let policy = json!({ "sharing": ["exclusive", "time_slice"] });
    let fleet = Fleet::with_policy(owner.clone(), policy).await;
    price(&fleet, "41.10", "2026-01-01T00:00:00Z").await;
    price(&fleet, "33.33", "2026-10-05T13:17:11Z").await;
    slice_price(&fleet, "50.00").await;
    let nodes = [fleet.node("n1", 4).await, fleet.node("n2", 4).await];
    for node in nodes {
        heard(&fleet, node).await;
    }
    let mut dice = Dice(20_261_005);
    let mut live: Vec<JobId> = Vec::new();
    while clock.now().await
        < "2026-10-06T00:00:00Z"
            .parse::<domain::Timestamp>()
            .expect("a time")
    {
        match dice.roll(6) {
            0 | 1 => {
                let gpus = ["1", "2", "0.25", "0.5", "4"][dice.roll(5)];
                let team = ["vision", "speech"][dice.roll(2)];
                let mode = if gpus.contains('.') {
                    "time_slice"
                } else {
                    "exclusive"
                };
                let spec = json!({ "name": "j", "command": ["x"], "per_worker": {
                    "gpus": gpus.parse::<serde_json::Number>().expect("a number"), "sharing": [mode] } });
                if let Ok(job) = fleet.submit_as(&fleet.root(), team, spec).await {
                    live.push(job.id);
                }
                fleet.turn().await;
            }
            2 => {
                for job in &live {
                    if fleet.job(*job).await.state == JobState::Starting {
                        fleet.run(*job).await;
                    }
                }
            }
            3 if !live.is_empty() => {
                let job = live.swap_remove(dice.roll(live.len()));
                if fleet.job(job).await.state == JobState::Running {
                    fleet.exit(job, 0).await;
                }
            }
            4 => toggle(&fleet, nodes[dice.roll(2)]).await,
            _ => {
                for node in nodes {
                    heard(&fleet, node).await;
                }
                rating::rate_due(&fleet.app.db).await.expect("rated");
            }
        }
        let step = 1 + i64::try_from(dice.roll(1_700_000)).expect("a small number");
        clock.pass_ms(step).await;
    }
    clock.set("2026-10-06T00:00:00Z").await;
    for node in nodes {
        heard(&fleet, node).await;
    }
    let day = |by: &str| ask("2026-10-05T00:00:00Z", "2026-10-06T00:00:00Z", by);
    let total = of_all(&fleet.app, &fleet.root(), &day(""))
        .await
        .expect("a report")
        .total;
    assert!(
        total.gpu_seconds > Decimal::from(10_000),
        "seed 20261005: something ran"
    );
    for by in ["team", "user,pool", "job", "mode", "hour", "day,team"] {
        let report = of_all(&fleet.app, &fleet.root(), &day(by))
            .await
            .expect("a report");
        let seconds: Decimal = report.items.iter().map(|i| i.total.gpu_seconds).sum();
        let money: Decimal = report.items.iter().map(|i| cost(&i.total)).sum();
        assert_eq!(
            (seconds, money),
            (total.gpu_seconds, cost(&total)),
            "by {by}"
        );
        assert_eq!(cost(&report.total), cost(&total), "by {by}");
    }
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let (mut sum, mut worth, mut cheaper) = (Decimal::ZERO, Decimal::ZERO, Decimal::ZERO);
    for hour in 0..24 {
        let from = "2026-10-05T00:00:00Z"
            .parse::<domain::Timestamp>()
            .expect("a time")
            + chrono::TimeDelta::hours(hour);
        let to = from + chrono::TimeDelta::hours(1);
        let balance = capacity::balance(&mut tx, fleet.pool, from, to)
            .await
            .expect("a balance");
        assert_eq!(balance.difference(), Decimal::ZERO, "hour {hour}");
        assert_eq!(
            balance.capacity.milli_micros,
            Decimal::from(8) * Decimal::from(GPU_HOUR),
            "hour {hour}"
        );
        assert!(balance.idle.milli_micros >= Decimal::ZERO, "hour {hour}");
        assert!(
            balance.unavailable.milli_micros >= Decimal::ZERO,
            "hour {hour}"
        );
        worth += balance.capacity.value;
        cheaper += balance.capacity.value
            - balance.charged.value
            - balance.reserved.value
            - balance.idle.value
            - balance.unavailable.value;
        let shown = balance.shown();
        let parts = [&shown.allocated, &shown.idle, &shown.unavailable];
        let seconds: Decimal = parts.iter().map(|part| part.gpu_seconds).sum();
        assert_eq!(seconds, shown.capacity.gpu_seconds, "hour {hour}");
        sum += balance.charged.milli_micros;
    }
    let charged = domain::money::round(sum / Decimal::from(1_000_000_000_i64), 3);
    assert_eq!(charged.normalize(), total.gpu_seconds);
    drop(tx);
    // Eight devices for 47,831 seconds at 41.10 and 38,569 seconds at 33.33 an hour.
    assert_eq!(domain::money::round(worth, 4).to_string(), "7225.2419");
    let due = by_hand(&owner).await;
    assert_eq!(domain::money::round(due.cost, 4), cost(&total));
    assert_eq!(
        domain::money::round(due.less_than_whole, 4),
        domain::money::round(cheaper, 4)
    );
    // Everything ends, and the ledger has all of it.
    for job in live {
        if fleet.job(job).await.state == JobState::Running {
            fleet.exit(job, 0).await;
        }
    }
    for node in nodes {
        heard(&fleet, node).await;
    }
    rating::rate_due(&fleet.app.db).await.expect("rated");
    let ledger = sqlx::query_scalar!(r#"SELECT sum(amount) AS "sum!" FROM ledger_entries"#)
        .fetch_one(&owner)
        .await
        .expect("a sum");
    assert_eq!(domain::money::round(ledger, 4), cost(&total));
}

/// What the day's segments cost, told by the two prices themselves.
struct Due {
    /// Of all that was charged.
    cost: Decimal,
    /// What slices, granted ones too, would have cost at the price of whole devices, less what they cost.
    less_than_whole: Decimal,
}

async fn by_hand(owner: &PgPool) -> Due {
    let row = sqlx::query!(
        r#"WITH used AS (
               SELECT mode, kind, gpus_milli::numeric / 1000 / 3600 AS gpu_hours,
                      extract(epoch FROM least(ended_at, '2026-10-05T13:17:11Z') - least(started_at, '2026-10-05T13:17:11Z')) AS before,
                      extract(epoch FROM greatest(least(ended_at, '2026-10-06T00:00:00Z'), '2026-10-05T13:17:11Z')
                          - greatest(started_at, '2026-10-05T13:17:11Z')) AS after
               FROM usage_segments)
           SELECT COALESCE(sum(gpu_hours * CASE mode WHEN 'exclusive' THEN before * 41.10 + after * 33.33
                      ELSE (before + after) * 50.00 END) FILTER (WHERE kind = 'charged'), 0) AS "cost!",
                  COALESCE(sum(gpu_hours * (before * (41.10 - 50.00) + after * (33.33 - 50.00)))
                      FILTER (WHERE kind IN ('charged', 'reserved') AND mode <> 'exclusive'), 0) AS "less!"
           FROM used"#
    )
    .fetch_one(owner)
    .await
    .expect("sums");
    Due {
        cost: row.cost,
        less_than_whole: row.less,
    }
}

async fn toggle(fleet: &Fleet, node: NodeId) {
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let row = store::nodes::lock(&mut tx, node)
        .await
        .expect("a row")
        .expect("a node");
    let to = if row.intent == domain::state::NodeIntent::Open {
        domain::state::NodeIntent::Cordoned
    } else {
        domain::state::NodeIntent::Open
    };
    server::lifecycle::nodes::set_intent(
        &mut tx,
        &row,
        server::store::nodes::Wanted::plain(to, ""),
        &Actor::System,
    )
    .await
    .expect("a step");
    tx.commit().await.expect("committed");
}
