//! The scheduler's world in memory, against the database that it is of.

use domain::ids::{JobId, NodeId};
use serde_json::json;
use server::app::idempotency::Repeat;
use server::app::jobs;
use server::scheduler::world::Mirror;
use sqlx::PgPool;

use super::fleet::Fleet;
use super::simulated::Clock;

#[sqlx::test(migrations = "../migrations")]
async fn the_world_in_memory_equals_a_fresh_load_after_whatever_happened(owner: PgPool) {
    let fleet = Fleet::with_policy(owner, json!({ "sharing": ["exclusive", "time_slice"] })).await;
    let nodes = [fleet.node("n1", 4).await, fleet.node("n2", 2).await];
    let mut leader = fleet.lead().await;
    let mut mirror = Mirror::load(&fleet.app.db).await.expect("the world");
    let mut ids: Vec<JobId> = Vec::new();
    // A fixed linear congruence: the steps differ and a failure repeats.
    let seed = 20_260_105_u64;
    let mut dice = seed;
    for step in 0..60 {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let roll = usize::try_from(dice >> 33).expect("31 bits");
        let chosen = ids.get(roll % ids.len().max(1)).copied();
        match (roll % 9, chosen) {
            (0 | 1, _) => ids.push(
                fleet
                    .submit(1 + u32::try_from(roll % 3).expect("small"))
                    .await
                    .id,
            ),
            (2, Some(id)) => {
                let _ = jobs::cancel(&fleet.app, &fleet.ada(), Repeat::none(), id).await;
            }
            (3, Some(id)) => fleet.run(id).await,
            (4, Some(id)) => {
                fleet
                    .exit(id, i32::try_from(roll % 2).expect("a bit"))
                    .await
            }
            (5, Some(id)) => {
                let _ = jobs::suspend(&fleet.app, &fleet.ada(), Repeat::none(), id).await;
                let _ = jobs::resume(&fleet.app, &fleet.ada(), Repeat::none(), id).await;
            }
            (6, _) => cordon(&fleet, nodes[roll % 2]).await,
            (7, _) => {
                sqlx::query!(
                    "UPDATE quotas SET weight_milli = weight_milli + 1, version = version + 1"
                )
                .execute(&fleet.owner)
                .await
                .expect("changed");
            }
            _ => {
                leader.turn().await.expect("a turn");
            }
        }
        if roll % 3 == 0 {
            mirror.refresh(&fleet.app.db).await.expect("refreshed");
        }
        let differences = mirror.clone().check(&fleet.app.db).await.expect("compared");
        assert_eq!(
            differences,
            Vec::<String>::new(),
            "step {step} of seed {seed}"
        );
        assert!(fleet.most_holders().await <= 1);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_world_that_missed_a_change_is_found_out_and_mended(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let job = fleet.submit_row().await;
    fleet.settled().await;
    let mut mirror = Mirror::load(&fleet.app.db).await.expect("the world");
    sqlx::query!("ALTER TABLE jobs DISABLE TRIGGER record_change")
        .execute(&fleet.owner)
        .await
        .expect("the feed is cut");
    sqlx::query!("UPDATE jobs SET version = version + 1")
        .execute(&fleet.owner)
        .await
        .expect("changed");
    mirror.refresh(&fleet.app.db).await.expect("refreshed");
    let found = mirror.check(&fleet.app.db).await.expect("compared");
    assert_eq!(found, [format!("job {job}")]);
    let again = mirror.check(&fleet.app.db).await.expect("compared");
    assert_eq!(again, Vec::<String>::new());
}

#[sqlx::test(migrations = "../migrations")]
async fn a_world_that_was_not_looked_at_for_long_does_not_trust_a_swept_feed(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    let clock = Clock::at(&owner, "2026-01-05T12:00:00Z").await;
    let mut mirror = Mirror::load(&fleet.app.db).await.expect("the world");
    fleet.node("n1", 8).await;
    sqlx::query!("DELETE FROM changes")
        .execute(&owner)
        .await
        .expect("the feed is swept");
    clock.pass_ms(3_600_000).await;
    mirror.refresh(&fleet.app.db).await.expect("refreshed");
    assert_eq!(mirror.records.nodes.len(), 1);
}

/// New work stays away from a node.
pub async fn cordon(fleet: &Fleet, node: NodeId) {
    sqlx::query!("UPDATE nodes SET intent = 'cordoned', version = version + 1 WHERE id = $1 AND intent = 'open'", node as NodeId)
        .execute(&fleet.owner)
        .await
        .expect("cordoned");
}
