//! Devices that a node does not report, or has yet to read.

use domain::state::JobState;
use domain::wall::Wall;
use protocol::wire;
use server::app::nodes;
use server::app::page::PageAsk;
use sqlx::PgPool;

use super::agents::{ids_of, node, ready};
use super::fleet::Fleet;
use super::machine::{self, Machine, accepted, fact, inventory, killed, released, started};

#[sqlx::test(migrations = "../migrations")]
async fn a_device_that_vanishes_is_failed_and_its_work_goes_elsewhere(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(2).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let job = fleet.submit(2).await;
    fleet.turn().await;
    let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    connection
        .send(wire::from_agent::Message::Inventory(inventory("n1", 1)))
        .await;
    machine::eventually("the device is failed", async || {
        node(&fleet, "n1").await.devices[1].health == domain::state::DeviceHealth::Failed
    })
    .await;
    server::background::reconcile(&fleet.app, false)
        .await
        .outcome()
        .expect("reconciled");
    let stop = connection.wanted(wire::Want::Stop).await;
    assert_eq!(stop.stop_reason, "node_lost");
    connection
        .report_known(vec![fact(3, ids, killed()), fact(4, ids, released())], 4)
        .await;
    let job = fleet.job(job.id).await;
    assert_eq!(job.state, JobState::Queued, "{}", job.message);
    assert!(job.message.contains("GPU-n1-1"), "{}", job.message);
}

#[sqlx::test(migrations = "../migrations")]
async fn devices_that_a_node_has_not_read_are_suspect_and_their_work_goes_on(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(2).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let job = fleet.submit(2).await;
    fleet.turn().await;
    let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    let unread = wire::Inventory {
        devices_unread: true,
        ..inventory("n1", 1)
    };
    connection
        .send(wire::from_agent::Message::Inventory(unread))
        .await;
    machine::eventually("the device is suspect", async || {
        node(&fleet, "n1").await.devices[1].health == domain::state::DeviceHealth::Suspect
    })
    .await;
    server::background::reconcile(&fleet.app, false)
        .await
        .outcome()
        .expect("reconciled");
    assert_eq!(fleet.job(job.id).await.state, JobState::Running);
    connection
        .send(wire::from_agent::Message::Inventory(inventory("n1", 2)))
        .await;
    machine::eventually("the device is healthy", async || {
        node(&fleet, "n1").await.devices[1].health == domain::state::DeviceHealth::Healthy
    })
    .await;
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_found_of_a_device_that_is_out_already_is_an_event_too_and_once(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(1).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let finding = |number: u64, reason: &str| wire::Finding {
        number,
        health: "failed".into(),
        reason: reason.into(),
    };
    let mut told = inventory("n1", 1);
    told.lacks = vec!["device_files".into(), "a word of tomorrow".into()];
    let first = finding(7, "Xid 79: the GPU has fallen off the bus");
    let second = finding(9, "Xid 95: uncontained memory error");
    for findings in [vec![first.clone()], vec![first, second]] {
        let device = &mut told.devices[0];
        device.health = "failed".into();
        device.health_reason.clone_from(&findings[0].reason);
        device.findings_known = findings.last().map_or(0, |finding| finding.number);
        device.findings = findings;
        let newest = device.findings.len();
        // Told twice, as after a lost answer.
        for _ in 0..2 {
            let message = wire::from_agent::Message::Inventory(told.clone());
            connection.send(message).await;
        }
        machine::eventually("it is told", async || {
            node(&fleet, "n1").await.devices[0].found.len() == newest
        })
        .await;
    }
    let ask = PageAsk::new(None, None).expect("a page");
    let name = "n1".parse().expect("a name");
    let events = nodes::events(&fleet.app, &fleet.root(), &name, &ask).await;
    let events = events.expect("events").items;
    let reasons: Vec<&str> = events
        .iter()
        .filter(|event| event.subject == "device" && event.to == "failed")
        .map(|event| event.reason.as_str())
        .collect();
    let words = [
        "Xid 95: uncontained memory error",
        "Xid 79: the GPU has fallen off the bus",
    ];
    assert_eq!(reasons, words, "the newest first");
    let lacks = node(&fleet, "n1").await.lacks;
    assert_eq!(
        lacks,
        [Wall::DeviceFiles],
        "what it does not know a server leaves out"
    );
}
