//! Nodes whose clocks are wrong: what they say of the time is evidence, and decides nothing.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::TimeDelta;
use domain::state::JobState;
use protocol::wire;
use sqlx::PgPool;

use super::agents::node;
use super::faults::{running, stop_job};
use super::fleet::Fleet;
use super::machine::{self, Machine, exited, fact, released};

const HOUR_MICROS: i64 = 3_600_000_000;

/// F16.
#[sqlx::test(migrations = "../migrations")]
async fn a_node_whose_clock_jumps_an_hour_changes_no_duration_and_no_bill(owner: PgPool) {
    let mut running = running(owner.clone(), stop_job()).await;
    let began = running.clock.now().await;
    running.clock.pass_ms(600_000).await;
    let now = running.clock.now().await.timestamp_micros();
    let at = |kind, number, at_micros| wire::Fact {
        at_micros,
        ..fact(number, running.ids, kind)
    };
    // It ended an hour before it began, and was released an hour from now.
    let facts = vec![
        at(exited(0), 3, now - 2 * HOUR_MICROS),
        at(released(), 4, now + HOUR_MICROS),
    ];
    running.connection.report_known(facts, 4).await;
    let job = running.fleet.job(running.job).await;
    assert_eq!(job.state, JobState::Succeeded);
    let ran = job.finished_at.expect("it ended") - job.started_at.expect("it began");
    assert_eq!(ran, TimeDelta::seconds(600));
    let segments = sqlx::query!(
        r#"SELECT started_at, ended_at AS "ended_at!" FROM usage_segments
           WHERE kind = 'charged' ORDER BY started_at"#
    )
    .fetch_all(&owner)
    .await
    .expect("segments");
    let charged: TimeDelta = segments
        .iter()
        .map(|segment| segment.ended_at - segment.started_at)
        .sum();
    assert_eq!(charged, TimeDelta::seconds(600));
    assert!(segments.iter().all(|segment| segment.started_at >= began));
}

/// One that is wrong from the start, which its own agent cannot know.
#[sqlx::test(migrations = "../migrations")]
async fn a_node_whose_clock_is_wrong_from_the_start_is_told_with_the_offset_until_it_is_right(
    owner: PgPool,
) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(1).await;
    let now_micros = || {
        let age = SystemTime::now().duration_since(UNIX_EPOCH);
        i64::try_from(age.expect("after 1970").as_micros()).expect("it fits")
    };
    connection.beat_at(now_micros() - HOUR_MICROS).await;
    let ahead = async || node(&fleet, "n1").await.clock_ahead_ms;
    machine::eventually("it is told", async || ahead().await.is_some()).await;
    let off = ahead().await.expect("told");
    assert!((-3_700_000..=-3_600_000).contains(&off), "{off}");
    connection.beat_at(now_micros()).await;
    machine::eventually("it is right", async || ahead().await.is_none()).await;
}
