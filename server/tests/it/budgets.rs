//! Budgets: thresholds fire once, stop what they say, and a hard budget takes no more than it has.

use domain::ids::JobId;
use domain::state::JobState;
use serde_json::{Value, json};
use server::app::budgets::{self, Budget};
use server::app::idempotency::Repeat;
use server::app::{AppError, Asker, RefusalCode};
use server::background;
use sqlx::PgPool;

use super::fleet::Fleet;
use super::metering::{decimal, heard};
use super::simulated::Clock;

async fn gives(fleet: &Fleet, team: &str, budget: Value) -> Budget {
    let new = serde_json::from_value(budget).expect("a budget");
    let team = team.parse().expect("a name");
    let made = budgets::create(&fleet.app, &fleet.root(), Repeat::none(), &team, new, "").await;
    made.expect("made").value
}

async fn stands(fleet: &Fleet, asker: &Asker, team: &str) -> Budget {
    let team = team.parse().expect("a name");
    let page = budgets::of_team(&fleet.app, asker, &team).await;
    page.expect("a page").items.pop().expect("one")
}

async fn watch(fleet: &Fleet) {
    background::budgets::watch(&fleet.app)
        .await
        .expect("looked at");
}

fn hours(gpus: u32, hours: i64) -> Value {
    json!({ "name": "j", "command": ["true"], "per_worker": { "gpus": gpus }, "time_limit_seconds": hours * 3600 })
}

async fn starts(fleet: &Fleet, spec: Value) -> JobId {
    let job = fleet.submit_spec(spec).await.expect("accepted").id;
    fleet.turn().await;
    fleet.run(job).await;
    job
}

async fn told(fleet: &Fleet) -> i64 {
    let asked = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM deliveries WHERE kind = 'budget_threshold'"#
    );
    asked.fetch_one(&fleet.owner).await.expect("counted")
}

async fn asks_to_hear(fleet: &Fleet) {
    sqlx::query!(
        "INSERT INTO subscriptions (id, team_id, kind, email, created_by)
         SELECT gen_random_uuid(), t.id, 'budget_threshold', 'ada@example.com', u.id
         FROM teams AS t, users AS u WHERE t.name = 'org' AND u.name = 'ada'"
    )
    .execute(&fleet.owner)
    .await
    .expect("asked");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_threshold_fires_once_and_stops_what_is_new_until_there_is_more(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-05T00:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    let node = fleet.node("n1", 8).await;
    asks_to_hear(&fleet).await;
    let stop = json!([
        {"measure": "actual", "percent": 50, "action": "notify"},
        {"measure": "actual", "percent": 100, "action": "stop_new"},
    ]);
    gives(&fleet, "vision", json!({"name": "b", "unit": "gpu_hours", "amount": "4", "period": "month", "thresholds": stop})).await;
    starts(&fleet, hours(2, 4)).await;
    clock.set("2026-10-05T01:00:00Z").await;
    heard(&fleet, node).await;
    watch(&fleet).await;
    watch(&fleet).await;
    assert_eq!(told(&fleet).await, 1, "half was used, and told once");
    let budget = stands(&fleet, &fleet.ada(), "vision").await;
    let now = budget.now.expect("in its period");
    assert_eq!(
        (now.used, now.committed, now.left),
        (decimal("2"), decimal("6"), decimal("-4"))
    );
    assert_eq!(budget.stopped.as_str(), "none");

    clock.set("2026-10-05T02:00:00Z").await;
    heard(&fleet, node).await;
    watch(&fleet).await;
    assert_eq!(told(&fleet).await, 2);
    let waits = fleet.submit_spec(hours(1, 1)).await.expect("taken").id;
    fleet.turn().await;
    let job = fleet.job(waits).await;
    assert_eq!(job.state, JobState::Queued);
    assert!(
        job.message
            .contains("a budget of team vision has stopped such work"),
        "{}",
        job.message
    );

    // With more it goes on, and what fired in this period does not fire again.
    let before = stands(&fleet, &fleet.ada(), "vision").await;
    let (team, name) = (
        "vision".parse().expect("a name"),
        "b".parse().expect("a name"),
    );
    let more = serde_json::from_value(json!({"amount": "100"})).expect("a change");
    budgets::update(
        &fleet.app,
        &fleet.root(),
        (&team, &name),
        before.version,
        more,
        "",
    )
    .await
    .expect("changed");
    watch(&fleet).await;
    fleet.turn().await;
    assert_eq!(fleet.job(waits).await.state, JobState::Starting);
    assert_eq!(told(&fleet).await, 2);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_budget_of_a_team_above_stops_what_is_borrowed_and_leaves_the_guarantee(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-05T00:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    let node = fleet.node("n1", 8).await;
    let inside = starts(&fleet, hours(4, 10)).await;
    clock.set("2026-10-05T00:10:00Z").await;
    let borrows = starts(&fleet, hours(2, 10)).await;
    let stop = json!([{"measure": "actual", "percent": 100, "action": "stop_borrowing"}]);
    gives(&fleet, "org", json!({"name": "b", "unit": "gpu_hours", "amount": "1", "period": "month", "thresholds": stop})).await;
    clock.set("2026-10-05T01:00:00Z").await;
    heard(&fleet, node).await;
    watch(&fleet).await;
    assert_eq!(fleet.job(borrows).await.state, JobState::Preempting);
    assert_eq!(fleet.job(inside).await.state, JobState::Running);
    watch(&fleet).await;
    assert_eq!(
        fleet.job(inside).await.state,
        JobState::Running,
        "its guarantee is left to it"
    );
    let rule = sqlx::query_scalar!("SELECT rule FROM evictions")
        .fetch_all(&fleet.owner)
        .await
        .expect("rows");
    assert_eq!(rule, ["budget"]);
}

/// T-3.15: actual, committed and the new job's limit together, under a lock.
#[sqlx::test(migrations = "../migrations")]
async fn a_hard_budget_refuses_what_it_cannot_hold_and_of_two_at_once_the_second(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-05T00:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    let node = fleet.node("n1", 8).await;
    gives(
        &fleet,
        "org",
        json!({"name": "b", "unit": "gpu_hours", "amount": "10", "period": "month", "hard": true}),
    )
    .await;
    let open = json!({ "name": "j", "command": ["true"], "per_worker": { "gpus": 1 } });
    match fleet.submit_spec(open).await {
        Err(AppError::Invalid(fault)) => assert_eq!(fault.field, "time_limit_seconds"),
        other => panic!("{other:?}"),
    }
    starts(&fleet, hours(2, 2)).await;
    clock.set("2026-10-05T01:00:00Z").await;
    heard(&fleet, node).await;
    // 2 were used, 2 are committed: of two times 4 one fits.
    let (ada, bob) = (fleet.ada(), fleet.bob());
    let (one, other) = tokio::join!(
        fleet.submit_as(&ada, "vision", hours(1, 4)),
        fleet.submit_as(&bob, "speech", hours(1, 4))
    );
    let both = [one, other];
    let refused: Vec<&AppError> = both
        .iter()
        .filter_map(|outcome| outcome.as_ref().err())
        .collect();
    assert_eq!(refused.len(), 1, "{both:?}");
    match refused[0] {
        AppError::Conflict {
            code,
            message,
            field,
        } => {
            assert_eq!(*code, RefusalCode::OverBudget);
            assert!(
                message.contains("costs 4 GPU-hours") && message.contains("less is left"),
                "{message}"
            );
            assert_eq!(field.field, "time_limit_seconds");
        }
        other => panic!("{other:?}"),
    }
    // Who may see the budget is told what is left of it.
    match fleet.submit_as(&fleet.root(), "vision", hours(1, 4)).await {
        Err(AppError::Conflict { message, .. }) => {
            assert!(message.contains("2 GPU-hours are left"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    assert!(fleet.submit_spec(hours(1, 2)).await.is_ok());
    assert!(
        fleet.submit_spec(hours(0, 9)).await.is_ok(),
        "what takes no GPU costs nothing"
    );
}
