//! The price book: windows, factors, profiles, cores and memory; what is rated anew; what a draft would have charged.

use axum::http::{Method, StatusCode};
use domain::money::round;
use rust_decimal::Decimal;
use serde_json::{Value, json};
use server::accounting::{rating, rerating};
use server::app::idempotency::Repeat;
use server::app::price_books;
use server::store::Database;
use sqlx::PgPool;

use super::fleet::Fleet;
use super::metering::{decimal, heard, price, run, total};
use super::simulated::Clock;

/// A node of four GPUs that has a price since the beginning of the year.
pub async fn priced(
    owner: &PgPool,
    now: &str,
    amount: &str,
) -> (Clock, Fleet, domain::ids::NodeId) {
    let clock = Clock::at(owner, now).await;
    let fleet = Fleet::new(owner.clone()).await;
    price(&fleet, amount, "2026-01-01T00:00:00Z").await;
    let node = fleet.node("n1", 4).await;
    heard(&fleet, node).await;
    (clock, fleet, node)
}

/// Drafts lines that hold from a time on.
pub async fn draft(fleet: &Fleet, from: &str, prices: Value, factors: Value) -> i64 {
    let new =
        json!({"reason": "a test", "effective_from": from, "prices": prices, "factors": factors});
    let new = serde_json::from_value(new).expect("a draft");
    let made = price_books::create(&fleet.app, &fleet.root(), Repeat::none(), new).await;
    made.expect("a draft").value.number
}

/// Puts a draft in force, and rates anew what it changes.
pub async fn activate(fleet: &Fleet, number: i64) {
    let to = domain::state::PriceBookState::Active;
    price_books::decide(&fleet.app, &fleet.root(), Repeat::none(), number, to)
        .await
        .expect("in force");
    rerate(&fleet.app.db).await;
}

async fn rerate(db: &Database) {
    rerating::rerate_due(db).await.expect("rated anew");
}

async fn rate(fleet: &Fleet) {
    rating::rate_due(&fleet.app.db).await.expect("rated");
}

fn exclusive(amount: &str) -> Value {
    json!([{"pool": "h100", "mode": "exclusive", "per_hour": {"amount": amount, "currency": "CNY"}}])
}

async fn billed(fleet: &Fleet) -> Decimal {
    round(total(fleet, "team").await.1, 2)
}

async fn entries(owner: &PgPool) -> Vec<(String, Decimal)> {
    sqlx::query!(r#"SELECT kind, round(amount, 2) AS "amount!" FROM ledger_entries ORDER BY id"#)
        .fetch_all(owner)
        .await
        .expect("entries")
        .into_iter()
        .map(|row| (row.kind, row.amount))
        .collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_weekly_window_multiplies_what_is_used_within_it_on_its_own_clocks(owner: PgPool) {
    // A Monday; Berlin is one hour ahead of UTC in November.
    let (clock, fleet, node) = priced(&owner, "2026-11-02T18:00:00Z", "2").await;
    let night = json!([{"pool": "h100", "kind": "weekly", "factor": "0.5",
        "window": {"name": "night", "days": ["mon"], "from": "20:00", "to": "22:00", "time_zone": "Europe/Berlin"}}]);
    let number = draft(&fleet, "2026-11-01T00:00:00Z", json!([]), night).await;
    activate(&fleet, number).await;
    let job = run(&fleet, 1).await;
    clock.set("2026-11-02T22:00:00Z").await;
    heard(&fleet, node).await;
    fleet.exit(job, 0).await;
    // 18 to 19 and 21 to 22 in full, 19 to 21 by half.
    assert_eq!(billed(&fleet).await, decimal("6.00"));
    rate(&fleet).await;
    assert_eq!(billed(&fleet).await, decimal("6.00"));
}

#[sqlx::test(migrations = "../migrations")]
async fn preemptible_and_borrowed_use_are_multiplied_with_each_other(owner: PgPool) {
    let (clock, fleet, node) = priced(&owner, "2026-11-02T18:00:00Z", "10").await;
    let factors = json!([{"pool": "h100", "kind": "preemptible", "factor": "0.5"},
                         {"pool": "h100", "kind": "borrowed", "factor": "0.4"}]);
    let number = draft(&fleet, "2026-11-01T00:00:00Z", json!([]), factors).await;
    activate(&fleet, number).await;
    let job = run(&fleet, 1).await;
    clock.set("2026-11-02T19:00:00Z").await;
    heard(&fleet, node).await;
    fleet.exit(job, 0).await;
    let row =
        sqlx::query!(r#"SELECT preemptible, borrowed FROM usage_segments WHERE kind = 'charged'"#)
            .fetch_one(&owner)
            .await
            .expect("a segment");
    let factor = match (row.preemptible, row.borrowed) {
        (true, true) => "2.00",
        (true, false) => "5.00",
        (false, true) => "4.00",
        (false, false) => "10.00",
    };
    assert!(row.preemptible, "the class normal may be preempted");
    assert_eq!(billed(&fleet).await, decimal(factor));
    sqlx::query!("UPDATE usage_segments SET borrowed = true, preemptible = true")
        .execute(&owner)
        .await
        .expect("changed");
    assert_eq!(billed(&fleet).await, decimal("2.00"));
}

#[sqlx::test(migrations = "../migrations")]
async fn cores_and_memory_cost_what_the_book_says_and_nothing_before_it_does(owner: PgPool) {
    let (clock, fleet, node) = priced(&owner, "2026-11-02T18:00:00Z", "10").await;
    let job = run(&fleet, 1).await;
    clock.set("2026-11-02T19:00:00Z").await;
    heard(&fleet, node).await;
    fleet.exit(job, 0).await;
    sqlx::query!(
        "UPDATE usage_segments SET cpus_milli = 4000, memory_mib = 8192 WHERE kind = 'charged'"
    )
    .execute(&owner)
    .await
    .expect("changed");
    rate(&fleet).await;
    assert_eq!(billed(&fleet).await, decimal("10.00"));
    let money = |amount: &str| json!({"amount": amount, "currency": "CNY"});
    let prices = json!([{"pool": "h100", "resource": "cpu", "per_hour": money("0.10")},
                        {"pool": "h100", "resource": "memory", "per_hour": money("0.01")}]);
    let number = draft(&fleet, "2026-11-01T00:00:00Z", prices, json!([])).await;
    activate(&fleet, number).await;
    assert_eq!(billed(&fleet).await, decimal("10.48"));
    let before = entries(&owner).await.len();
    activate_again(&fleet, &owner).await;
    assert_eq!(
        entries(&owner).await.len(),
        before,
        "nothing is entered twice"
    );
}

/// Asks once more for what was rated anew already.
async fn activate_again(fleet: &Fleet, owner: &PgPool) {
    sqlx::query!("UPDATE reratings SET done_at = NULL, looked_at = 0")
        .execute(owner)
        .await
        .expect("changed");
    rerate(&fleet.app.db).await;
}

/// T-3.8, the open part.
#[sqlx::test(migrations = "../migrations")]
async fn a_price_dated_into_an_open_period_rates_it_anew_once(owner: PgPool) {
    let (clock, fleet, node) = priced(&owner, "2026-11-02T18:00:00Z", "10").await;
    let job = run(&fleet, 1).await;
    clock.set("2026-11-02T20:00:00Z").await;
    heard(&fleet, node).await;
    fleet.exit(job, 0).await;
    rate(&fleet).await;
    assert_eq!(billed(&fleet).await, decimal("20.00"));
    // In the middle of the second hour.
    let number = draft(&fleet, "2026-11-02T19:30:00Z", exclusive("6"), json!([])).await;
    activate(&fleet, number).await;
    let found = entries(&owner).await;
    let kinds: Vec<_> = found
        .iter()
        .map(|(kind, amount)| (kind.as_str(), amount.to_string()))
        .collect();
    assert_eq!(
        kinds,
        [
            ("usage", "10.00".to_owned()),
            ("usage", "10.00".to_owned()),
            ("reversal", "-10.00".to_owned()),
            ("usage", "5.00".to_owned()),
            ("usage", "3.00".to_owned()),
        ]
    );
    assert_eq!(
        total(&fleet, "team").await.0,
        decimal("7200"),
        "no quantity is counted twice"
    );
    assert_eq!(billed(&fleet).await, decimal("18.00"));
    activate_again(&fleet, &owner).await;
    assert_eq!(
        entries(&owner).await,
        found,
        "to rate anew again changes nothing"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_preview_says_what_a_draft_would_have_charged_and_changes_nothing(owner: PgPool) {
    let (clock, fleet, node) = priced(&owner, "2026-10-02T18:00:00Z", "10").await;
    let job = run(&fleet, 2).await;
    clock.set("2026-10-02T20:00:00Z").await;
    heard(&fleet, node).await;
    fleet.exit(job, 0).await;
    clock.set("2026-11-02T00:00:00Z").await;
    let number = draft(&fleet, "2026-12-01T00:00:00Z", exclusive("7.50"), json!([])).await;
    let preview = price_books::preview(&fleet.app, &fleet.root(), number, None, None)
        .await
        .expect("a preview");
    let amount = |money: Option<domain::money::Money>| money.expect("money").amount;
    assert_eq!(amount(preview.now), decimal("40.0000"));
    assert_eq!(amount(preview.then), decimal("30.0000"));
    assert_eq!(preview.items.len(), 1);
    let october = super::metering::ask("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z", "team");
    let charged = server::app::usage::of_all(&fleet.app, &fleet.root(), &october).await;
    assert_eq!(
        super::metering::cost(&charged.expect("a report").total),
        decimal("40.0000")
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_drafts_lines_are_checked_and_a_draft_is_decided_once(owner: PgPool) {
    let server = super::fixture::Server::start(&owner).await;
    let finance = server.client("finance");
    let money = json!({"amount": "1", "currency": "CNY"});
    let draft = |prices: Value, factors: Value| json!({"reason": "dearer power", "effective_from": "2126-01-01T00:00:00Z", "prices": prices, "factors": factors});
    for (prices, factors, field) in [
        (
            json!([{"pool": "nowhere", "mode": "mig", "per_hour": money}]),
            json!([]),
            "prices[0].pool",
        ),
        (
            json!([{"pool": "h100", "per_hour": money}]),
            json!([]),
            "prices[0].mode",
        ),
        (
            json!([{"pool": "h100", "resource": "cpu", "mode": "mig", "per_hour": money}]),
            json!([]),
            "prices[0].mode",
        ),
        (
            json!([{"pool": "h100", "mode": "mps", "mig_profile": "1g.10gb", "per_hour": money}]),
            json!([]),
            "prices[0].mig_profile",
        ),
        (
            json!([]),
            json!([{"pool": "h100", "kind": "weekly", "factor": "1"}]),
            "factors[0].window",
        ),
        (
            json!([]),
            json!([{"pool": "h100", "kind": "borrowed", "factor": "101"}]),
            "factors[0].factor",
        ),
        (json!([]), json!([]), "prices"),
    ] {
        let refused = finance.post("/price-books", draft(prices, factors)).await;
        let problem = refused.problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["field"], field, "{problem}");
        assert!(
            problem["remedy"]
                .as_str()
                .is_some_and(|remedy| !remedy.is_empty())
        );
    }
    let lines =
        json!([{"pool": "h100", "mode": "mig", "mig_profile": "1g.10gb", "per_hour": money}]);
    let made = finance.post("/price-books", draft(lines, json!([]))).await;
    let made = made.expect(StatusCode::CREATED);
    assert_eq!(made["state"], "draft");
    let path = format!("/price-books/{}", made["number"]);
    let active = finance
        .ask(Method::POST, &format!("{path}/activate"))
        .send()
        .await;
    assert_eq!(active.expect(StatusCode::OK)["state"], "active");
    let again = finance
        .ask(Method::POST, &format!("{path}/discard"))
        .send()
        .await;
    assert_eq!(again.problem(StatusCode::CONFLICT)["value"], "active");
}
