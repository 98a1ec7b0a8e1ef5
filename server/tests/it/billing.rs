//! Periods, statements and reconciliation: what is closed stays, what was wrong is corrected, and all time adds up.

use axum::http::{Method, StatusCode};
use domain::money::round;
use domain::state::PeriodState;
use rust_decimal::Decimal;
use serde_json::json;
use server::accounting::{closing, rating, reconciling};
use server::app::billing_statements::{self, BillingStatement};
use server::app::idempotency::Repeat;
use server::app::page::PageAsk;
use server::app::{commitments, periods, reconciliations};
use sqlx::PgPool;

use super::fleet::Fleet;
use super::metering::{decimal, heard, run};
use super::price_book::{activate, draft, priced};

async fn close(fleet: &Fleet, period: &str) {
    rating::rate_due(&fleet.app.db).await.expect("rated");
    periods::close(&fleet.app, &fleet.root(), Repeat::none(), period)
        .await
        .expect("closing");
    closing::close_due(&fleet.app.db).await.expect("closed");
}

async fn statement(fleet: &Fleet, period: &str) -> BillingStatement {
    let team = "vision".parse().expect("a name");
    billing_statements::get(&fleet.app, &fleet.root(), &team, period)
        .await
        .expect("a statement")
}

/// T-3.13 and the closed part of T-3.8.
#[sqlx::test(migrations = "../migrations")]
async fn a_closed_period_stays_to_the_byte_and_its_corrections_stand_in_the_open_one(
    owner: PgPool,
) {
    let (clock, fleet, node) = priced(&owner, "2026-10-10T10:00:00Z", "10").await;
    let job = run(&fleet, 1).await;
    clock.set("2026-10-10T12:00:00Z").await;
    heard(&fleet, node).await;
    fleet.exit(job, 0).await;
    clock.set("2026-11-02T00:00:00Z").await;
    close(&fleet, "2026-10").await;
    let october = statement(&fleet, "2026-10").await;
    assert_eq!(october.total.amount, decimal("20.00"));
    assert!(october.verified);

    let cheaper = json!([{"pool": "h100", "mode": "exclusive", "per_hour": {"amount": "7", "currency": "CNY"}}]);
    let number = draft(&fleet, "2026-10-10T11:00:00Z", cheaper, json!([])).await;
    activate(&fleet, number).await;
    let again = statement(&fleet, "2026-10").await;
    assert_eq!(
        json!(again),
        json!(october),
        "the old statement is the same to the byte"
    );

    clock.set("2026-12-02T00:00:00Z").await;
    close(&fleet, "2026-11").await;
    let november = statement(&fleet, "2026-11").await;
    assert_eq!(november.total.amount, decimal("-3.00"));
    assert_eq!(november.lines.len(), 1);
    assert_eq!(november.lines[0].kind, "correction");
    assert_eq!(
        november.lines[0].gpu_seconds,
        Decimal::ZERO,
        "no quantity is counted twice"
    );
    let sum = sqlx::query_scalar!(r#"SELECT sum(amount) AS "sum!" FROM ledger_entries"#)
        .fetch_one(&owner)
        .await
        .expect("a sum");
    assert_eq!(round(sum, 2), decimal("17.00"));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_closed_period_and_a_ledger_row_are_changed_by_nobody(owner: PgPool) {
    let (clock, fleet, node) = priced(&owner, "2026-10-10T10:00:00Z", "10").await;
    let job = run(&fleet, 1).await;
    clock.set("2026-10-10T12:00:00Z").await;
    heard(&fleet, node).await;
    fleet.exit(job, 0).await;
    clock.set("2026-11-02T00:00:00Z").await;
    close(&fleet, "2026-10").await;
    for statement in [
        "UPDATE ledger_entries SET amount = 0",
        "DELETE FROM ledger_entries",
        "UPDATE statements SET total = 0",
        "INSERT INTO ledger_entries (kind, period_id, team_id, user_id, job_id, segment_id, pool_id, mode, started_at, ended_at,
             gpu_milli_micros, revision)
         SELECT kind, period_id, team_id, user_id, job_id, segment_id, pool_id, mode, started_at, ended_at, gpu_milli_micros,
             revision + 1
         FROM ledger_entries",
        "UPDATE billing_periods SET state = 'open'",
    ] {
        let done = sqlx::raw_sql(statement).execute(&owner).await;
        let constraint = done.err().and_then(|e| e.as_database_error()?.constraint().map(str::to_owned));
        let constraint = constraint.unwrap_or_else(|| panic!("{statement} was not refused"));
        assert!(
            ["append_only", "period_closed", "legal_step"].contains(&constraint.as_str()),
            "{statement}: {constraint}"
        );
    }
    // A digest that does not fit any more is told.
    sqlx::raw_sql(
        "ALTER TABLE ledger_entries DISABLE TRIGGER ledger_append_only;
         UPDATE ledger_entries SET amount = amount + 1, list_amount = list_amount, effective_amount = effective_amount",
    )
    .execute(&owner)
    .await
    .expect("changed behind the trigger");
    assert!(!statement(&fleet, "2026-10").await.verified);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_period_is_closed_once_it_is_over_rated_and_priced(owner: PgPool) {
    let (clock, fleet, node) = priced(&owner, "2026-10-10T10:00:00Z", "10").await;
    let job = run(&fleet, 1).await;
    clock.set("2026-10-10T12:00:00Z").await;
    heard(&fleet, node).await;
    fleet.exit(job, 0).await;
    let refused = async |words: &str| {
        let done = periods::close(&fleet.app, &fleet.root(), Repeat::none(), "2026-10").await;
        let message = done.expect_err("it is not ready").to_string();
        assert!(message.contains(words), "{message}");
    };
    rating::rate_due(&fleet.app.db).await.expect("rated");
    refused("once it is over").await;
    clock.set("2026-11-02T00:00:00Z").await;
    sqlx::raw_sql("UPDATE usage_segments SET rated_until = NULL WHERE kind = 'charged'")
        .execute(&owner)
        .await
        .expect("changed");
    refused("being rated").await;
    sqlx::raw_sql("UPDATE usage_segments SET rated_until = ended_at")
        .execute(&owner)
        .await
        .expect("changed");
    // What has a price no more would be unpriced; a second team's hour of another mode is.
    sqlx::raw_sql(
        "INSERT INTO ledger_entries (period_id, team_id, user_id, job_id, segment_id, pool_id, mode, started_at, ended_at,
                                     gpu_milli_micros)
         SELECT period_id, team_id, user_id, job_id, segment_id, pool_id, 'mps', started_at + interval '1 minute',
             ended_at, 5000000000 FROM ledger_entries LIMIT 1",
    )
    .execute(&owner)
    .await
    .expect("an unpriced entry");
    refused("no price covers").await;
}

#[sqlx::test(migrations = "../migrations")]
async fn months_and_days_are_those_of_the_organisations_clocks(owner: PgPool) {
    let (clock, fleet, node) = priced(&owner, "2026-10-25T00:00:00Z", "1").await;
    sqlx::raw_sql("UPDATE organisation SET time_zone = 'Europe/Berlin'")
        .execute(&owner)
        .await
        .expect("a zone");
    let job = run(&fleet, 1).await;
    clock.set("2026-11-01T00:00:00Z").await;
    heard(&fleet, node).await;
    fleet.exit(job, 0).await;
    rating::rate_due(&fleet.app.db).await.expect("rated");
    let list = periods::list(&fleet.app, &fleet.root(), &PageAsk::first())
        .await
        .expect("periods");
    let hours: Vec<(String, i64)> = list
        .items
        .iter()
        .map(|period| (period.name.clone(), (period.to - period.from).num_hours()))
        .collect();
    // October has the hour that comes twice (tenancy: 745 hours).
    assert_eq!(
        hours,
        [("2026-11".to_owned(), 720), ("2026-10".to_owned(), 745)]
    );
    let by_period = sqlx::query_scalar!(
        r#"SELECT sum(e.amount)::bigint AS "sum!" FROM ledger_entries AS e JOIN billing_periods AS p ON p.id = e.period_id
           GROUP BY p.name ORDER BY p.name"#
    )
    .fetch_all(&owner)
    .await
    .expect("sums");
    assert_eq!(
        by_period,
        [167, 1],
        "the last hour in UTC is November's in Berlin"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn committed_capacity_is_charged_where_it_is_not_used(owner: PgPool) {
    let (clock, fleet, node) = priced(&owner, "2026-09-30T00:00:00Z", "10").await;
    let new = json!({"team": "vision", "pool": "h100", "gpus": 2, "per_gpu_hour": {"amount": "4", "currency": "CNY"},
                     "from": "2026-10-01T00:00:00Z", "to": "2026-10-01T10:00:00Z"});
    let new = serde_json::from_value(new).expect("a commitment");
    commitments::create(&fleet.app, &fleet.root(), Repeat::none(), new)
        .await
        .expect("committed");
    clock.set("2026-10-01T02:00:00Z").await;
    heard(&fleet, node).await;
    // Three GPUs, of which two are what was committed.
    let job = run(&fleet, 3).await;
    clock.set("2026-10-01T05:00:00Z").await;
    heard(&fleet, node).await;
    fleet.exit(job, 0).await;
    clock.set("2026-11-02T00:00:00Z").await;
    rating::rate_due(&fleet.app.db).await.expect("rated");
    close(&fleet, "2026-10").await;
    let statement = statement(&fleet, "2026-10").await;
    let lines: Vec<(String, String, String)> = statement
        .lines
        .iter()
        .map(|line| {
            (
                line.kind.clone(),
                line.gpu_seconds.to_string(),
                line.amount.amount.to_string(),
            )
        })
        .collect();
    // Used 3 GPUs for 3 hours at 10; unused 2 GPUs for 7 hours at 4.
    assert_eq!(
        lines,
        [
            ("usage".to_owned(), "32400".to_owned(), "90.00".to_owned()),
            (
                "committed".to_owned(),
                "50400".to_owned(),
                "56.00".to_owned()
            ),
        ]
    );
    assert_eq!(statement.total.amount, decimal("146.00"));
}

#[sqlx::test(migrations = "../migrations")]
async fn what_was_lost_with_a_node_is_credited_for_the_last_hour(owner: PgPool) {
    let (clock, fleet, node) = priced(&owner, "2026-10-10T10:00:00Z", "10").await;
    let job = run(&fleet, 2).await;
    clock.set("2026-10-10T13:30:00Z").await;
    heard(&fleet, node).await;
    rating::rate_due(&fleet.app.db).await.expect("rated");
    fleet.exit(job, 0).await;
    sqlx::raw_sql("UPDATE attempts SET reason = 'node_lost'")
        .execute(&owner)
        .await
        .expect("lost");
    clock.set("2026-11-02T00:00:00Z").await;
    close(&fleet, "2026-10").await;
    let statement = statement(&fleet, "2026-10").await;
    assert_eq!(statement.lines[1].kind, "credit");
    assert_eq!(statement.lines[1].amount.amount, decimal("-20.00"));
    assert_eq!(statement.total.amount, decimal("50.00"));
}

#[sqlx::test(migrations = "../migrations")]
async fn every_devices_day_adds_up_and_one_microsecond_is_told(owner: PgPool) {
    let (clock, fleet, node) = priced(&owner, "2026-10-10T10:00:00Z", "10").await;
    let job = run(&fleet, 2).await;
    clock.set("2026-10-10T13:30:00.000001Z").await;
    heard(&fleet, node).await;
    fleet.exit(job, 0).await;
    clock.set("2026-10-12T00:30:00Z").await;
    reconciling::reconcile_due(&fleet.app.db)
        .await
        .expect("reconciled");
    let list = reconciliations::list(&fleet.app, &fleet.root(), &PageAsk::first())
        .await
        .expect("days");
    let days: Vec<(String, i32, i32)> = list
        .items
        .iter()
        .map(|day| (day.day.to_string(), day.devices, day.off))
        .collect();
    assert_eq!(
        days,
        [("2026-10-10".to_owned(), 4, 0)],
        "the eleventh has not settled"
    );
    let devices = reconciliations::get(
        &fleet.app,
        &fleet.root(),
        list.items[0].day,
        &PageAsk::first(),
    )
    .await
    .expect("devices");
    let held: i64 = devices.items.iter().map(|device| device.held_micros).sum();
    assert_eq!(held, 2 * (3 * 3_600 + 1_800) * 1_000_000 + 2);
    // A gap of one microsecond in what was there.
    sqlx::raw_sql(
        "UPDATE capacity_segments SET ended_at = '2026-10-11T06:00:00Z'
         WHERE device_id = (SELECT min(device_id::text)::uuid FROM capacity_segments) AND ended_at IS NULL;
         INSERT INTO capacity_segments (id, pool_id, node_id, device_id, available, started_at)
         SELECT gen_random_uuid(), pool_id, node_id, device_id, true, '2026-10-11T06:00:00.000001Z' FROM capacity_segments
         WHERE ended_at = '2026-10-11T06:00:00Z'",
    )
    .execute(&owner)
    .await
    .expect("a gap");
    clock.set("2026-10-12T02:00:00Z").await;
    reconciling::reconcile_due(&fleet.app.db)
        .await
        .expect("reconciled");
    let list = reconciliations::list(&fleet.app, &fleet.root(), &PageAsk::first())
        .await
        .expect("days");
    assert_eq!((list.items[0].devices, list.items[0].off), (4, 1));
    let devices = reconciliations::get(
        &fleet.app,
        &fleet.root(),
        list.items[0].day,
        &PageAsk::first(),
    )
    .await
    .expect("devices");
    assert_eq!(
        devices.items[0].difference_micros, 1,
        "those that are off come first"
    );
    let events = sqlx::query_scalar!(
        r#"SELECT count(*) AS "n!" FROM events WHERE subject = 'device' AND to_state = 'unreconciled'"#
    )
    .fetch_one(&owner)
    .await
    .expect("events");
    assert_eq!(events, 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn an_owner_reads_its_teams_statements_and_finance_steps_the_periods(owner: PgPool) {
    let server = super::fixture::Server::start(&owner).await;
    let finance = server.client("finance");
    let missing = finance
        .ask(Method::POST, "/billing-periods/2026-01/close")
        .send()
        .await;
    missing.problem(StatusCode::NOT_FOUND);
    let listed = server
        .client("vision-owner")
        .get("/teams/vision/statements")
        .await;
    assert_eq!(listed.expect(StatusCode::OK)["items"], json!([]));
    let refused = server
        .client("vision-member")
        .get("/teams/vision/statements")
        .await;
    refused.problem(StatusCode::FORBIDDEN);
    let before = finance.get("/organisation").await.expect(StatusCode::OK);
    assert_eq!(before["time_zone"], "UTC");
    let changed = finance
        .patch(
            "/organisation?reason=we+are+there",
            1,
            json!({"time_zone": "Asia/Shanghai"}),
        )
        .await;
    assert_eq!(changed.expect(StatusCode::OK)["time_zone"], "Asia/Shanghai");
    assert_eq!(PeriodState::Open.next(), [PeriodState::Closing]);
}
