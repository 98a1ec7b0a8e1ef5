//! Reports on schedule: one for each period, made up after an outage, sent with their figures.

use serde_json::{Value, json};
use server::app::schedules::{self, Report};
use server::app::{Asker, idempotency::Repeat};
use sqlx::PgPool;

use super::fleet::Fleet;
use super::metering::heard;
use super::simulated::Clock;

async fn reports(fleet: &Fleet, asker: &Asker) -> Vec<Report> {
    let (team, name) = (
        "vision".parse().expect("a name"),
        "monthly".parse().expect("a name"),
    );
    let page = schedules::reports(&fleet.app, asker, (&team, &name)).await;
    page.expect("a page").items
}

#[sqlx::test(migrations = "../migrations")]
async fn each_month_is_reported_once_and_what_an_outage_kept_is_made_up(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-10-05T00:00:00Z").await;
    let fleet = Fleet::new(owner).await;
    let node = fleet.node("n1", 8).await;
    let root = fleet.root();
    let new = json!({
        "name": "monthly", "kind": "usage_statement", "format": "json", "covers": "month",
        // Twice a day: it is due often, and reports of each month once.
        "cron": "0 6,18 1-3 * *", "time_zone": "UTC", "emails": ["ada@example.com", "bob@example.com"],
    });
    let new = serde_json::from_value(new).expect("a schedule");
    let team = "vision".parse().expect("a name");
    let made = schedules::create(&fleet.app, &root, Repeat::none(), &team, new, "").await;
    assert_eq!(
        made.expect("made").value.next_at.to_rfc3339(),
        "2026-11-01T06:00:00+00:00"
    );
    fleet.running(2).await;
    clock.set("2026-10-05T03:00:00Z").await;
    heard(&fleet, node).await;
    assert_eq!(schedules::make_due(&fleet.app).await.expect("none"), 0);

    // Nobody was there for two months.
    clock.set("2026-12-02T00:00:00Z").await;
    assert_eq!(schedules::make_due(&fleet.app).await.expect("made"), 2);
    assert_eq!(schedules::make_due(&fleet.app).await.expect("none"), 0);
    let made = reports(&fleet, &root).await;
    let months: Vec<String> = made
        .iter()
        .map(|run| run.from.date_naive().to_string())
        .collect();
    assert_eq!(months, ["2026-11-01", "2026-10-01"]);
    let october: Value = serde_json::from_str(&made[1].content).expect("JSON");
    assert_eq!(
        october["total"]["gpu_seconds"], "21600",
        "two GPUs for three hours: {october}"
    );
    let sent =
        sqlx::query!("SELECT email, payload FROM deliveries WHERE kind = 'report' ORDER BY seq")
            .fetch_all(&fleet.owner)
            .await
            .expect("rows");
    assert_eq!(sent.len(), 4, "each report to each address");
    assert_eq!(sent[0].payload["total_gpu_hours"], "6");
}
