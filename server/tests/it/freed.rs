//! What was held is free again, whole, whatever ended it and whoever leads then.

use domain::ids::JobId;
use domain::state::JobState;
use protocol::report::FactKind;
use serde_json::json;
use server::app::idempotency::Repeat;
use server::app::jobs;
use server::app::nodes::NodeWish;
use sqlx::PgPool;

use super::agents::intent;
use super::fleet::{Fleet, told_to_end};

/// Nothing is held, nothing is metered, and a job of all eight devices starts.
async fn all_is_free(fleet: &Fleet, what: &str) {
    assert_eq!(fleet.most_holders().await, 0, "{what}");
    let open = sqlx::query_scalar!(
        r#"SELECT count(*) AS "open!" FROM usage_segments WHERE ended_at IS NULL"#
    )
    .fetch_one(&fleet.owner)
    .await
    .expect("a count");
    assert_eq!(open, 0, "{what}");
    let all = fleet.submit(8).await.id;
    // Another leader knows it from the rows alone.
    fleet.turn().await;
    assert_eq!(fleet.job(all).await.state, JobState::Starting, "{what}");
    fleet.run(all).await;
    fleet.exit(all, 0).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_cancel_in_any_state_gives_all_back_whoever_leads_afterwards(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let accepted = FactKind::Accepted;
    let started = FactKind::Started {
        pid: 7,
        image_digest: None,
    };
    let gone = [told_to_end(), FactKind::Released];
    // What its node has said when the cancel comes, and what it says after that.
    type Said = Vec<FactKind>;
    let states: [(&str, Option<Said>, Said); 4] = [
        ("queued", None, vec![]),
        ("granted", Some(vec![]), vec![FactKind::Released]),
        (
            "accepted",
            Some(vec![accepted.clone()]),
            vec![FactKind::Released],
        ),
        ("running", Some(vec![accepted, started]), gone.to_vec()),
    ];
    for (state, before, after) in states {
        for suspended in [false, true] {
            let what = format!("{state}, suspended first: {suspended}");
            let job = fleet.submit(4).await.id;
            if let Some(before) = &before {
                fleet.turn().await;
                fleet.report(job, before).await;
            }
            if suspended {
                jobs::suspend(&fleet.app, &fleet.ada(), Repeat::none(), job)
                    .await
                    .expect("suspended");
            }
            let workers = fleet.workers(job).await;
            fleet.cancel(job).await;
            fleet.turn().await;
            for worker in workers {
                for kind in &after {
                    fleet.report_one(worker, kind).await;
                }
            }
            assert_eq!(fleet.job(job).await.state, JobState::Cancelled, "{what}");
            all_is_free(&fleet, &what).await;
        }
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn eight_shares_of_one_device_that_are_cancelled_at_once_leave_it_whole(owner: PgPool) {
    let policy = json!({ "sharing": ["exclusive", "time_slice"], "time_slices": 8 });
    let fleet = Fleet::with_policy(owner, policy).await;
    fleet.node("n1", 8).await;
    let mut shares: Vec<JobId> = Vec::new();
    for _ in 0..8 {
        let share = json!({ "name": "s", "command": ["x"],
                            "per_worker": { "gpus": 0.125, "sharing": ["time_slice"] } });
        shares.push(fleet.submit_spec(share).await.expect("accepted").id);
    }
    fleet.turn().await;
    for share in &shares {
        fleet.run(*share).await;
    }
    assert_eq!(fleet.most_holders().await, 8, "on one device");
    futures_util::future::join_all(shares.iter().map(|share| fleet.cancel(*share))).await;
    let gone = [told_to_end(), FactKind::Released];
    futures_util::future::join_all(shares.iter().map(|share| fleet.report(*share, &gone))).await;
    all_is_free(&fleet, "after eight cancels").await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_was_drained_over_a_change_of_leader_has_all_free_once_it_is_open(
    owner: PgPool,
) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    // It may not be preempted, and stays while its node drains.
    let firm = json!({ "name": "j", "class": "training-high", "command": ["x"],
                       "per_worker": { "gpus": 2 } });
    let job = fleet.submit_spec(firm).await.expect("accepted").id;
    fleet.turn().await;
    fleet.run(job).await;
    intent(&fleet, "n1", NodeWish::Drain).await;
    fleet.turn().await;
    assert_eq!(fleet.job(job).await.state, JobState::Running);
    intent(&fleet, "n1", NodeWish::Uncordon).await;
    fleet.turn().await;
    fleet.cancel(job).await;
    fleet
        .report(job, &[told_to_end(), FactKind::Released])
        .await;
    all_is_free(&fleet, "after the drain").await;
}
