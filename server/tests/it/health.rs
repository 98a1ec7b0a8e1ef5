//! Devices that are not well, and nodes that refuse starts: what becomes of their work, who is told,
//! who pays, and how they return.

use axum::http::StatusCode;
use domain::state::{DeviceHealth, JobState, NodeIntent};
use protocol::wire;
use serde_json::json;
use server::app::AppError;
use server::app::idempotency::Repeat;
use server::app::nodes::{NodeWish, Reason, clear_device};
use sqlx::PgPool;

use super::agents::{ids_of, intent, node, ready};
use super::fixture::Server;
use super::fleet::Fleet;
use super::machine::{
    self, Connection, Machine, Ports, accepted, fact, inventory, refused, started,
};

/// An inventory of two devices, of which the second is not well.
fn ill(health: &str, reason: &str, finding: u64) -> wire::Inventory {
    let mut told = inventory("n1", 2);
    let device = &mut told.devices[1];
    device.health = health.into();
    device.health_reason = reason.into();
    device.finding = finding;
    told
}

async fn tell(connection: &mut Connection, told: wire::Inventory) {
    let message = wire::from_agent::Message::Inventory(told);
    connection.send(message).await;
}

async fn is(fleet: &Fleet, health: DeviceHealth) {
    machine::eventually("the device is so", async || {
        node(fleet, "n1").await.devices[1].health == health
    })
    .await;
}

async fn reconcile(fleet: &Fleet) {
    let round = server::background::reconcile(&fleet.app, false).await;
    round.outcome().expect("reconciled");
}

/// What must live for as long as a connection does.
type Open = (Ports, Machine);

async fn fleet_of_two(owner: PgPool) -> (Fleet, Connection, Open) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(2).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    (fleet, connection, (ports, machine))
}

#[sqlx::test(migrations = "../migrations")]
async fn work_on_a_suspect_device_goes_on_and_nothing_new_comes_there(owner: PgPool) {
    let (fleet, mut connection, _open) = fleet_of_two(owner).await;
    let job = fleet.submit(2).await;
    fleet.turn().await;
    let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    tell(
        &mut connection,
        ill("suspect", "Xid 92: too many single-bit errors", 3),
    )
    .await;
    is(&fleet, DeviceHealth::Suspect).await;
    reconcile(&fleet).await;
    assert_eq!(fleet.job(job.id).await.state, JobState::Running);
    fleet.exit(job.id, 0).await;
    let (one, other) = (fleet.submit(1).await, fleet.submit(1).await);
    fleet.turn().await;
    fleet.turn().await;
    let states = [
        fleet.job(one.id).await.state,
        fleet.job(other.id).await.state,
    ];
    assert_eq!(states, [JobState::Starting, JobState::Queued]);
    let device = node(&fleet, "n1").await.devices.remove(1);
    assert_eq!(device.health_reason, "Xid 92: too many single-bit errors");
    assert!(device.found && !device.cleared);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_a_failed_device_has_lost_is_nobodys_bill_and_comes_again_elsewhere(owner: PgPool) {
    let (fleet, mut connection, _open) = fleet_of_two(owner.clone()).await;
    let job = fleet.submit(2).await;
    fleet.turn().await;
    let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    tell(
        &mut connection,
        ill("failed", "Xid 79: fallen off the bus", 3),
    )
    .await;
    is(&fleet, DeviceHealth::Failed).await;
    reconcile(&fleet).await;
    reconcile(&fleet).await;
    let kinds = sqlx::query_scalar!(
        r#"SELECT DISTINCT kind AS "kind!" FROM usage_segments WHERE ended_at IS NULL"#
    )
    .fetch_all(&owner)
    .await
    .expect("segments");
    assert_eq!(kinds, ["unreachable"], "the operator's, of both devices");
    let audited = sqlx::query_scalar!(
        "SELECT reason FROM audit WHERE action = 'report_device_health' AND object = 'device/GPU-n1-1'"
    )
    .fetch_all(&owner)
    .await
    .expect("an audit log");
    assert_eq!(audited, ["failed: Xid 79: fallen off the bus"]);
    let stop = connection.wanted(wire::Want::Stop).await;
    assert_eq!(stop.stop_reason, "node_lost");
    connection
        .report_known(
            vec![
                fact(3, ids, machine::killed()),
                fact(4, ids, machine::released()),
            ],
            4,
        )
        .await;
    let job = fleet.job(job.id).await;
    assert_eq!(job.state, JobState::Queued, "{}", job.message);
    assert!(job.message.contains("Xid 79"), "{}", job.message);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_person_clears_what_was_found_and_the_node_says_when_it_is_well(owner: PgPool) {
    let (fleet, mut connection, _open) = fleet_of_two(owner).await;
    let clear = async |device: &'static str| {
        let name = "n1".parse().expect("a name");
        let why = Reason {
            reason: "reset".to_owned(),
        };
        let asker = fleet.root();
        clear_device(&fleet.app, &asker, Repeat::none(), (&name, device), why).await
    };
    let nothing = clear("1").await.expect_err("it is well");
    assert!(matches!(nothing, AppError::Conflict { .. }), "{nothing:?}");
    assert!(matches!(clear("7").await, Err(AppError::NotFound { .. })));
    tell(
        &mut connection,
        ill("failed", "Xid 95: uncontained memory error", 41),
    )
    .await;
    is(&fleet, DeviceHealth::Failed).await;
    clear("GPU-n1-1").await.expect("cleared");
    let told = async |connection: &mut Connection| loop {
        let set = connection.desired().await;
        if let Some(cleared) = set.cleared.first() {
            return (cleared.uuid.clone(), cleared.up_to);
        }
    };
    assert_eq!(told(&mut connection).await, ("GPU-n1-1".to_owned(), 41));
    let device = node(&fleet, "n1").await.devices.remove(1);
    assert!(
        device.cleared && device.health == DeviceHealth::Failed,
        "its node has yet to say so"
    );
    tell(&mut connection, inventory("n1", 2)).await;
    is(&fleet, DeviceHealth::Healthy).await;
    let device = node(&fleet, "n1").await.devices.remove(1);
    assert!(!device.found && !device.cleared);
    // Whose state was lost counts anew: what it finds then is not cleared by what was before.
    tell(
        &mut connection,
        ill("failed", "Xid 95: uncontained memory error", 2),
    )
    .await;
    is(&fleet, DeviceHealth::Failed).await;
    assert!(!node(&fleet, "n1").await.devices[1].cleared);
}

/// F14: one bad node must not take one start after the other.
#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_refuses_three_starts_is_cordoned_until_a_person_opens_it(owner: PgPool) {
    let (fleet, mut connection, _open) = fleet_of_two(owner.clone()).await;
    let refuse = async |connection: &mut Connection, number: u64| {
        let job = fleet.submit(1).await;
        fleet.turn().await;
        let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
        connection
            .report_known(vec![fact(number, ids, refused("its disk is full"))], number)
            .await;
        fleet.cancel(job.id).await;
        reconcile(&fleet).await;
        node(&fleet, "n1").await.intent
    };
    assert_eq!(refuse(&mut connection, 1).await, NodeIntent::Open);
    assert_eq!(refuse(&mut connection, 2).await, NodeIntent::Open);
    assert_eq!(refuse(&mut connection, 3).await, NodeIntent::Cordoned);
    let seen = node(&fleet, "n1").await;
    assert_eq!(seen.intent_reason, "it refused 3 starts in 5 minutes");
    let actors = sqlx::query_scalar!(
        "SELECT actor_name FROM audit WHERE action = 'cordon_node' AND object = 'node/n1'"
    )
    .fetch_all(&owner)
    .await
    .expect("an audit log");
    assert_eq!(actors, ["allotment"]);
    intent(&fleet, "n1", NodeWish::Uncordon).await;
    reconcile(&fleet).await;
    assert_eq!(
        node(&fleet, "n1").await.intent,
        NodeIntent::Open,
        "a person's word stands"
    );
    assert_eq!(
        refuse(&mut connection, 4).await,
        NodeIntent::Open,
        "those before count no more"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn clearing_by_rest_says_what_is_wrong_with_the_question(owner: PgPool) {
    let server = Server::start(&owner).await;
    let operator = server.client("operator");
    operator
        .post("/nodes/n1/devices/0/clear", json!({}))
        .await
        .problem(StatusCode::NOT_FOUND);
    operator
        .post("/nodes/n1/devices/0/clear", json!({ "force": true }))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
}

#[sqlx::test(migrations = "../migrations")]
async fn the_workers_of_a_gang_that_are_refused_together_are_one_start(owner: PgPool) {
    let (fleet, mut connection, _open) = fleet_of_two(owner).await;
    for gang in 0..2 {
        let spec =
            json!({ "name": "g", "command": ["true"], "workers": 2, "per_worker": { "gpus": 1 } });
        let job = fleet.submit_spec(spec).await.expect("accepted").id;
        fleet.turn().await;
        let held = loop {
            let set = connection.desired().await;
            let held = set.assignments.into_iter();
            let held: Vec<_> = held.filter(|a| a.want() == wire::Want::Hold).collect();
            if held.len() == 2 {
                break held;
            }
        };
        let facts = held.iter().zip(2 * gang + 1..);
        let facts: Vec<_> = facts
            .map(|(worker, number)| fact(number, ids_of(worker), refused("its disk is full")))
            .collect();
        connection.report_known(facts, 2 * gang + 2).await;
        fleet.cancel(job).await;
        reconcile(&fleet).await;
        assert_eq!(node(&fleet, "n1").await.intent, NodeIntent::Open);
    }
}
