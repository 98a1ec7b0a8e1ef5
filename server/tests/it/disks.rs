//! A node whose disk is full: a state of its own, which keeps new work away and ends by itself.

use domain::state::{JobState, NodeIntent};
use protocol::wire;
use sqlx::PgPool;

use super::agents::{ids_of, node, ready};
use super::fleet::Fleet;
use super::machine::{self, Connection, Machine, accepted, fact, inventory, refused, started};

async fn tell(connection: &mut Connection, fleet: &Fleet, disk_full: Option<wire::DiskFull>) {
    let told = wire::Inventory {
        disk_full,
        ..inventory("n1", 2)
    };
    let message = wire::from_agent::Message::Inventory(told);
    connection.send(message).await;
    machine::eventually("the disk is told", async || {
        node(fleet, "n1").await.disk_full.is_some() == disk_full.is_some()
    })
    .await;
}

async fn reconcile(fleet: &Fleet) {
    let round = server::background::reconcile(&fleet.app, false).await;
    round.outcome().expect("reconciled");
}

/// F17.
#[sqlx::test(migrations = "../migrations")]
async fn a_node_whose_disk_is_full_takes_no_work_keeps_what_runs_and_returns_by_itself(
    owner: PgPool,
) {
    let fleet = Fleet::new(owner.clone()).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(2).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let runs = fleet.submit(1).await.id;
    fleet.turn().await;
    let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    // So many refusals have a node cordoned.
    for number in 3..6 {
        let job = fleet.submit(1).await.id;
        fleet.turn().await;
        let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
        let refusal = fact(number, ids, refused("the node's disk is full"));
        connection.report_known(vec![refusal], number).await;
        fleet.cancel(job).await;
    }
    let full = wire::DiskFull {
        free_mib: 12,
        needed_mib: 256,
    };
    tell(&mut connection, &fleet, Some(full)).await;
    let seen = node(&fleet, "n1").await.disk_full.expect("told");
    assert_eq!((seen.free_mib, seen.needed_mib), (12, 256));
    let waits = fleet.submit(1).await.id;
    fleet.turn().await;
    reconcile(&fleet).await;
    assert_eq!(fleet.job(waits).await.state, JobState::Queued);
    assert_eq!(fleet.job(runs).await.state, JobState::Running);
    let told = fleet.job(waits).await.waiting.expect("a verdict");
    assert_eq!(told["counts"]["unhealthy"], 1, "{told}");

    tell(&mut connection, &fleet, None).await;
    reconcile(&fleet).await;
    assert_eq!(
        node(&fleet, "n1").await.intent,
        NodeIntent::Open,
        "what it refused is past"
    );
    fleet.turn().await;
    assert_eq!(fleet.job(waits).await.state, JobState::Starting);
    let events =
        sqlx::query_scalar!("SELECT to_state FROM events WHERE reason = 'disk' ORDER BY id")
            .fetch_all(&owner)
            .await
            .expect("events");
    assert_eq!(events, ["disk_full", "disk_has_room"]);
}
