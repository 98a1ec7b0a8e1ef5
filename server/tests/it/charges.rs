//! What is charged of holds that are cut short: by stops, by losses, and by silence.

use domain::state::JobState;
use protocol::report::{Exited, FactKind};
use rust_decimal::Decimal;
use server::app::idempotency::Repeat;
use server::app::jobs;
use sqlx::PgPool;

use super::fleet::Fleet;
use super::metering::{decimal, price, total};
use super::simulated::Clock;

#[sqlx::test(migrations = "../migrations")]
async fn a_hold_that_was_taken_while_its_stop_was_on_the_way_is_charged_until_it_is_clean(
    owner: PgPool,
) {
    let clock = Clock::at(&owner, "2026-10-01T00:00:00Z").await;
    let fleet = Fleet::new(owner.clone()).await;
    price(&fleet, "3.60", "2026-01-01T00:00:00Z").await;
    fleet.node("n1", 1).await;
    let job = fleet.submit(1).await.id;
    fleet.turn().await;
    jobs::cancel(&fleet.app, &fleet.ada(), Repeat::none(), job)
        .await
        .expect("cancelled");
    clock.set("2026-10-01T00:10:00Z").await;
    fleet.report(job, &[FactKind::Accepted]).await;
    clock.set("2026-10-01T00:30:00Z").await;
    let killed = FactKind::Exited(Exited {
        code: None,
        signal: Some(15),
        out_of_memory: false,
        asked: true,
        lost: false,
        message: String::new(),
    });
    fleet.report(job, &[killed]).await;
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
    let clock = Clock::at(&owner, "2026-10-01T00:00:00Z").await;
    let fleet = Fleet::new(owner.clone()).await;
    price(&fleet, "3.60", "2026-01-01T00:00:00Z").await;
    fleet.node("n1", 1).await;
    let job = fleet.submit(1).await.id;
    fleet.turn().await;
    jobs::cancel(&fleet.app, &fleet.ada(), Repeat::none(), job)
        .await
        .expect("cancelled");
    clock.set("2026-10-01T00:10:00Z").await;
    fleet.report(job, &[FactKind::Released]).await;
    assert_eq!(total(&fleet, "").await.0, Decimal::ZERO);
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
