//! Devices that are not well, and nodes that refuse starts: what becomes of their work, who is told,
//! who pays, and how they return.

use axum::http::StatusCode;
use domain::name::Name;
use domain::state::{DeviceHealth, JobState, NodeIntent};
use protocol::wire;
use serde_json::json;
use server::app::AppError;
use server::app::idempotency::Repeat;
use server::app::nodes::{self, Clear, NodeWish, clear_device};
use server::app::page::PageAsk;
use sqlx::PgPool;

use super::agents::{ids_of, intent, node, ready};
use super::fixture::Server;
use super::fleet::{Fleet, add_node};
use super::machine::{
    self, Connection, Machine, Ports, accepted, fact, inventory, refused, started,
};
use super::page_form::browser;
use super::simulated::Clock;

/// An inventory of two devices, of which the second is not well.
fn ill(health: &str, reason: &str, finding: u64) -> wire::Inventory {
    let mut told = inventory("n1", 2);
    let device = &mut told.devices[1];
    device.health = health.into();
    device.health_reason = reason.into();
    device.findings_known = finding;
    device.findings = vec![wire::Finding {
        number: finding,
        health: health.into(),
        reason: reason.into(),
    }];
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

/// Clears what was found of a device, up to a number.
async fn clear(fleet: &Fleet, device: &str, finding: i64) -> Result<(), AppError> {
    let name = "n1".parse().expect("a name");
    let word = Clear {
        finding,
        reason: "reset".to_owned(),
    };
    let asker = fleet.root();
    let cleared = clear_device(&fleet.app, &asker, Repeat::none(), (&name, device), word).await;
    cleared.map(drop)
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
    assert_eq!(device.found[0].reason, device.health_reason);
    assert!(!device.cleared);
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
    let clear = async |device: &'static str| clear(&fleet, device, 41).await;
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
    assert!(device.found.is_empty() && !device.cleared);
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
    let ask = async |body| operator.post("/nodes/n1/devices/0/clear", body).await;
    ask(json!({ "finding": 1, "reason": "reset" }))
        .await
        .problem(StatusCode::NOT_FOUND);
    for (body, field) in [
        (json!({ "finding": 1, "reason": " " }), "reason"),
        (json!({ "finding": 1 }), "reason"),
        (json!({ "reason": "reset" }), "finding"),
        (
            json!({ "finding": 1, "reason": "reset", "force": true }),
            "force",
        ),
    ] {
        let refused = ask(body).await.problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert!(refused.to_string().contains(field), "{refused}");
    }
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

#[sqlx::test(migrations = "../migrations")]
async fn what_was_found_after_the_page_was_made_is_not_cleared_by_it(owner: PgPool) {
    let (fleet, mut connection, _open) = fleet_of_two(owner).await;
    let two = wire::Finding {
        number: 42,
        health: "failed".into(),
        reason: "Xid 79: fallen off the bus".into(),
    };
    let mut told = ill("suspect", "Xid 92: too many single-bit errors", 41);
    told.devices[1].health = "failed".into();
    told.devices[1].findings.push(two);
    told.devices[1].findings_known = 42;
    tell(&mut connection, told).await;
    is(&fleet, DeviceHealth::Failed).await;
    let refused = clear(&fleet, "1", 41).await.expect_err("more was found");
    let AppError::Conflict { message, field, .. } = refused else {
        panic!("{refused:?}");
    };
    assert!(message.contains("Xid 79"), "{message}");
    assert_eq!(
        (field.field.as_str(), field.value.as_str()),
        ("finding", "41")
    );
    assert!(field.remedy.contains("42"), "{}", field.remedy);
    assert!(!node(&fleet, "n1").await.devices[1].cleared);
    clear(&fleet, "1", 43).await.expect_err("no such finding");
    clear(&fleet, "1", 42).await.expect("as it was seen");
    assert!(node(&fleet, "n1").await.devices[1].cleared);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_forgot_what_it_found_is_told_and_offers_the_device_to_nobody(owner: PgPool) {
    let (fleet, mut connection, (_ports, machine)) = fleet_of_two(owner).await;
    tell(
        &mut connection,
        ill("failed", "Xid 95: uncontained memory error", 41),
    )
    .await;
    is(&fleet, DeviceHealth::Failed).await;
    // Its disk is lost: it knows of nothing, and sees nothing.
    tell(&mut connection, inventory("n1", 2)).await;
    let mut fewer = inventory("n1", 2);
    fewer.warnings.push("taken in".into());
    tell(&mut connection, fewer).await;
    machine::eventually("what it said is taken in", async || {
        !node(&fleet, "n1").await.warnings.is_empty()
    })
    .await;
    let device = node(&fleet, "n1").await.devices.remove(1);
    assert_eq!(device.health, DeviceHealth::Failed);
    assert_eq!(device.health_reason, "Xid 95: uncontained memory error");
    assert_eq!(device.found[0].number, 41);
    drop(connection);
    let mut connection = machine.connect(2).await;
    connection.beat().await;
    let told = connection.desired().await;
    assert!(told.full);
    let found = &told.found[0];
    assert_eq!((found.uuid.as_str(), found.findings.len()), ("GPU-n1-1", 1));
    assert_eq!(found.findings[0].number, 41);
    assert_eq!(found.findings[0].health, "failed");
    // It has a probe, which has passed: it knows of all and has nothing.
    let mut passed = inventory("n1", 2);
    passed.devices[1].findings_known = 41;
    tell(&mut connection, passed).await;
    is(&fleet, DeviceHealth::Healthy).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_team_pays_for_a_device_up_to_the_microsecond_at_which_it_failed(owner: PgPool) {
    let (fleet, mut connection, _open) = fleet_of_two(owner.clone()).await;
    let clock = stopped(&owner).await;
    let job = fleet.submit(1).await;
    fleet.turn().await;
    let wanted = connection.wanted(wire::Want::Hold).await;
    let ids = ids_of(&wanted);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    let index = usize::try_from(wanted.devices[0].index).expect("small");
    clock.pass_ms(5_000).await;
    let mut told = inventory("n1", 2);
    told.devices[index].health = "failed".into();
    told.devices[index].failed_for_micros = Some(1_234_567);
    tell(&mut connection, told).await;
    machine::eventually("it has failed", async || {
        node(&fleet, "n1").await.devices[index].health == DeviceHealth::Failed
    })
    .await;
    clock.pass_ms(500).await;
    reconcile(&fleet).await;
    let _stop = connection.wanted(wire::Want::Stop).await;
    clock.pass_ms(700).await;
    connection
        .report_known(
            vec![
                fact(3, ids, machine::killed()),
                fact(4, ids, machine::released()),
            ],
            4,
        )
        .await;
    assert_eq!(charged_micros(&owner).await, 5_000_000 - 1_234_567);
    assert_eq!(fleet.job(job.id).await.state, JobState::Queued);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_ends_by_its_devices_failure_pays_up_to_that(owner: PgPool) {
    let (fleet, mut connection, _open) = fleet_of_two(owner.clone()).await;
    let clock = stopped(&owner).await;
    fleet.submit(2).await;
    fleet.turn().await;
    let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    clock.pass_ms(5_000).await;
    let mut told = ill("failed", "Xid 79: fallen off the bus", 3);
    told.devices[1].failed_for_micros = Some(7);
    tell(&mut connection, told).await;
    is(&fleet, DeviceHealth::Failed).await;
    clock.pass_ms(2_000).await;
    // Nobody came to stop it: it ended by itself.
    connection
        .report_known(
            vec![
                fact(3, ids, machine::killed()),
                fact(4, ids, machine::released()),
            ],
            4,
        )
        .await;
    assert_eq!(charged_micros(&owner).await, 2 * (5_000_000 - 7));
}

#[sqlx::test(migrations = "../migrations")]
async fn what_a_node_itself_kept_from_being_released_is_nobodys_bill(owner: PgPool) {
    let (fleet, mut connection, _open) = fleet_of_two(owner.clone()).await;
    let clock = stopped(&owner).await;
    fleet.submit(1).await;
    fleet.turn().await;
    let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    clock.pass_ms(5_000).await;
    let late = wire::fact::Kind::Released(wire::Released {
        kept_micros: 1_000_001,
    });
    connection
        .report_known(vec![fact(3, ids, machine::killed()), fact(4, ids, late)], 4)
        .await;
    assert_eq!(charged_micros(&owner).await, 5_000_000 - 1_000_001);
}

/// The clock, which stands from now on where it is not put on: what certificates say holds still.
async fn stopped(owner: &PgPool) -> Clock {
    let now: domain::Timestamp = sqlx::query_scalar("SELECT allotment.clock()")
        .fetch_one(owner)
        .await
        .expect("a time");
    Clock::at(owner, &now.to_rfc3339()).await
}

/// For how long devices were charged to teams, in microseconds of devices; all of it has ended.
async fn charged_micros(owner: &PgPool) -> i64 {
    sqlx::query_scalar(
        "SELECT (sum(extract(epoch FROM ended_at - started_at)) * 1000000)::bigint
         FROM usage_segments WHERE kind = 'charged' HAVING count(*) = count(ended_at)",
    )
    .fetch_one(owner)
    .await
    .expect("segments that have ended")
}

#[sqlx::test(migrations = "../migrations")]
async fn names_of_strangers_processes_are_for_those_who_run_the_platform(owner: PgPool) {
    let (fleet, mut connection, _open) = fleet_of_two(owner.clone()).await;
    let public = "a process that is no job's is on it";
    let mut told = inventory("n1", 2);
    told.devices[1].health = "suspect".into();
    told.devices[1].health_reason = public.into();
    told.devices[1].health_detail = "process 7 (secret-miner) holds 700 MiB of it".into();
    tell(&mut connection, told).await;
    is(&fleet, DeviceHealth::Suspect).await;
    let name: Name = "n1".parse().expect("a name");
    let ask = PageAsk::first();
    for (asker, knows) in [(fleet.root(), true), (fleet.ada(), false)] {
        let device = nodes::get(&fleet.app, &asker, &name).await.expect("shown");
        let device = serde_json::to_string(&device.devices[1]).expect("JSON");
        let events = nodes::events(&fleet.app, &asker, &name, &ask).await;
        let events = serde_json::to_string(&events.expect("listed")).expect("JSON");
        for shown in [device, events] {
            assert!(shown.contains(public), "{shown}");
            assert_eq!(shown.contains("secret-miner"), knows, "{shown}");
        }
    }
    let audited = sqlx::query_scalar::<_, i64>(
        "SELECT count(*) FROM audit WHERE reason LIKE '%secret-miner%'",
    )
    .fetch_one(&owner)
    .await
    .expect("an audit log");
    assert_eq!(audited, 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_nodes_page_leads_to_what_happened_before_and_names_what_it_clears(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 2).await;
    for statement in [
        "INSERT INTO events (subject, subject_id, node_id, from_state, to_state, actor_kind, actor_name, reason)
         SELECT 'node', m.id, m.id, 'open', 'cordoned', 'user', 'operator', 'cause ' || n || '.'
         FROM nodes AS m, generate_series(1, 35) AS n ORDER BY n",
        "UPDATE devices SET health = 'suspect', health_reason = 'Xid 92', finding = 41, version = version + 1,
                findings = '[{\"number\": 41, \"health\": \"suspect\", \"reason\": \"Xid 92\"}]'
         WHERE index = 1",
    ] {
        let done = sqlx::raw_sql(statement).execute(&owner).await;
        done.expect("written");
    }
    let mut operator = browser(&owner, &server, "operator").await;
    let page = operator.get("/nodes/n1").await.html;
    assert!(
        page.contains("cause 35.") && !page.contains("cause 5."),
        "{page}"
    );
    let older = page
        .split("href=\"/nodes/n1?cursor=")
        .nth(1)
        .expect("a link");
    let older = older.split('"').next().expect("its end");
    let before = operator
        .get(&format!("/nodes/n1?cursor={older}"))
        .await
        .html;
    assert!(
        before.contains("cause 5.") && before.contains("cause 1."),
        "{before}"
    );
    assert!(
        !before.contains("cause 35.") && !before.contains("rel=\"next\""),
        "{before}"
    );
    assert!(before.contains("href=\"/nodes/n1\""), "back to the newest");
    for part in [
        "name=\"finding\" value=\"41\"",
        "aria-label=\"Clear device 1…\"",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let fleet = operator.get("/fleet").await.html;
    assert!(fleet.contains(">Health</th>"), "{fleet}");
}
