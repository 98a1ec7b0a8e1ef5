//! Agents over real mTLS: enrolment, certificates, connections, desired sets and facts.

use domain::ids::{AssignmentId, AttemptId};
use domain::state::{JobState, Reachability};
use protocol::wire;
use serde_json::json;
use server::app::idempotency::Repeat;
use server::app::nodes::{self, NodeWish, Reason};
use sqlx::PgPool;
use tonic::Code;

use super::fleet::Fleet;
use super::machine::{
    self, Machine, SILENCE, accepted, exited, fact, inventory, killed, released, started,
};

#[sqlx::test(migrations = "../migrations")]
async fn a_join_token_is_good_for_one_machine(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    let ports = machine::open(&fleet.app).await;
    let new = serde_json::from_value(json!({ "pool": "h100" })).expect("a pool");
    let token = nodes::create_join_token(&ports.app, &fleet.root(), new)
        .await
        .expect("a token");
    assert!(token.command.contains(&token.token));
    assert!(token.command.contains(&ports.listening.authority.sha256()));
    Machine::enrol(&ports, &token.token, "n1")
        .await
        .expect("the first joins");
    for (token, name) in [(token.token.as_str(), "n2"), ("alj_guess", "n3")] {
        let refused = Machine::enrol(&ports, token, name).await.err();
        assert_eq!(refused.map(|s| s.code()), Some(Code::PermissionDenied));
    }
    let denied = sqlx::query_scalar!(
        "SELECT object FROM audit WHERE action = 'enrol_node' AND outcome = 'denied' ORDER BY id"
    )
    .fetch_all(&owner)
    .await
    .expect("the audit log");
    assert_eq!(denied, ["node/n2", "node/n3"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_name_is_one_machines_while_it_answers(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let first = Machine::join(&fleet, &ports, "n1").await;
    let again = Machine::join(&fleet, &ports, "n1").await;
    assert_eq!(first.node, again.node, "a machine that was installed anew");
    let mut connection = again.connect(1).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let new = serde_json::from_value(json!({ "pool": "h100" })).expect("a pool");
    let token = nodes::create_join_token(&ports.app, &fleet.root(), new)
        .await
        .expect("a token");
    let refused = Machine::enrol(&ports, &token.token, "n1").await.err();
    assert_eq!(refused.map(|s| s.code()), Some(Code::AlreadyExists));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_connection_needs_a_certificate_that_is_good_now(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let (_, messages) = tokio::sync::mpsc::channel(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(messages);
    let refused = machine.stranger().await.connection(stream).await.err();
    assert_eq!(refused.map(|s| s.code()), Some(Code::PermissionDenied));

    // Retired: its certificate is good, and still it may not.
    let mut connection = machine.connect(1).await;
    connection.beat().await;
    intent(&fleet, "n1", NodeWish::Retire).await;
    connection
        .send(wire::from_agent::Message::Heartbeat(wire::Heartbeat {
            number: 9,
            at_micros: 0,
        }))
        .await;
    assert_eq!(connection.ended().await.code(), Code::Aborted);
    let refused = machine.call().await.err();
    assert_eq!(refused.map(|s| s.code()), Some(Code::PermissionDenied));
    ports.app.wake.all();
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_was_cut_off_renews_its_expired_certificate_by_its_key(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let mut app = fleet.app.clone();
    let mut config = (*app.config).clone();
    config.agents.certificate_seconds = 0;
    app.config = std::sync::Arc::new(config);
    let ports = machine::open(&app).await;
    let mut machine = Machine::join(&fleet, &ports, "n1").await;
    let renewal = |csr_der, expired_certificate_der| wire::RenewRequest {
        csr_der,
        expired_certificate_der,
    };
    let expired = machine.certificate.clone();
    let stranger = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
    let foreign = params.serialize_request(&stranger).expect("a request");
    let refused = machine
        .stranger()
        .await
        .renew(renewal(foreign.der().to_vec(), expired.clone()))
        .await
        .err();
    assert_eq!(
        refused.map(|s| s.code()),
        Some(Code::PermissionDenied),
        "another key"
    );
    let refused = machine
        .stranger()
        .await
        .renew(renewal(machine.signing_request(), Vec::new()))
        .await
        .err();
    assert_eq!(
        refused.map(|s| s.code()),
        Some(Code::PermissionDenied),
        "no certificate"
    );
    let lasting = machine::open(&fleet.app).await;
    machine = machine.calling(&lasting);
    let reply = machine
        .stranger()
        .await
        .renew(renewal(machine.signing_request(), expired))
        .await
        .expect("renewed")
        .into_inner();
    assert_eq!(reply.renew_after_seconds, 12 * 3600);
    machine.certificate = reply.certificate_der;
    machine.connect(1).await.beat().await;
    // Over the connection's own certificate it needs to show nothing else.
    machine
        .client()
        .await
        .renew(renewal(machine.signing_request(), Vec::new()))
        .await
        .expect("renewed");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_hello_brings_the_machine_into_view_and_a_heartbeat_makes_it_ready(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(8).await;
    assert!(connection.desired().await.full, "the first set is whole");
    connection.beat().await;
    let node = ready(&fleet, "n1").await;
    assert_eq!(node.devices.len(), 8);
    assert_eq!(node.devices[0].model, "H100-80GB");
    assert_eq!(node.devices[7].nvlink, Some(0));
    assert_eq!(node.sharing.len(), 2);
    assert!(node.mps_across_teams);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_runs_when_all_its_nodes_have_taken_it_and_not_before(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let (one, two) = (
        Machine::join(&fleet, &ports, "n1").await,
        Machine::join(&fleet, &ports, "n2").await,
    );
    let (mut one, mut two) = (one.connect(1).await, two.connect(1).await);
    for connection in [&mut one, &mut two] {
        connection.beat().await;
    }
    ready(&fleet, "n1").await;
    ready(&fleet, "n2").await;
    let job = fleet
        .submit_spec(json!({
            "name": "gang", "command": ["train"], "workers": 2, "per_worker": { "gpus": 1 },
            "env": { "SEED": "1" }, "files": { "a.txt": "x" },
        }))
        .await
        .expect("accepted");
    fleet.turn().await;
    let first = one.wanted(wire::Want::Hold).await;
    let second = two.wanted(wire::Want::Hold).await;
    assert_eq!((first.workers, first.command.len()), (2, 1));
    assert_eq!(first.env["SEED"], "1");
    assert_eq!(first.master_addr, "10.0.0.1");
    assert!((20_000..30_000).contains(&first.master_port));
    assert_eq!(first.uid % 1_000, 0);
    assert_ne!(first.worker, second.worker);
    let workers = fleet.workers(job.id).await;
    let ids = |order: &wire::Assignment| ids_of(order);
    one.report_known(vec![fact(1, ids(&first), accepted())], 1)
        .await;
    assert_eq!(fleet.job(job.id).await.state, JobState::Starting);
    let early = tokio::time::timeout(SILENCE, one.wanted(wire::Want::Run)).await;
    assert!(early.is_err(), "nobody runs before all have taken it");
    two.report_known(vec![fact(1, ids(&second), accepted())], 1)
        .await;
    one.wanted(wire::Want::Run).await;
    two.wanted(wire::Want::Run).await;
    one.report_known(vec![fact(2, ids(&first), started())], 2)
        .await;
    assert_eq!(fleet.job(job.id).await.state, JobState::Starting);
    two.report_known(vec![fact(2, ids(&second), started())], 2)
        .await;
    assert_eq!(fleet.job(job.id).await.state, JobState::Running);

    // The first that fails stops the others, and its exit code is the job's.
    one.report_known(vec![fact(3, ids(&first), exited(3))], 3)
        .await;
    let stop = two.wanted(wire::Want::Stop).await;
    assert_eq!(stop.stop_reason, "exit");
    one.report_known(vec![fact(4, ids(&first), released())], 4)
        .await;
    two.report_known(
        vec![
            fact(3, ids(&second), killed()),
            fact(4, ids(&second), released()),
        ],
        4,
    )
    .await;
    let job = fleet.job(job.id).await;
    assert_eq!((job.state, job.exit_code), (JobState::Failed, Some(3)));
    assert!(
        job.message.contains("exited with code 3"),
        "{}",
        job.message
    );
    assert_eq!(workers.len(), 2);
    assert!(two.desired().await.forgotten.contains(&second.id));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_speaks_of_its_own_assignments_only(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let one = Machine::join(&fleet, &ports, "n1").await;
    let mut honest = one.connect(1).await;
    honest.beat().await;
    ready(&fleet, "n1").await;
    let job = fleet.submit(1).await;
    fleet.turn().await;
    let order = honest.wanted(wire::Want::Hold).await;
    let mut liar = Machine::join(&fleet, &ports, "n2").await.connect(1).await;
    let ids = ids_of(&order);
    let strange = (AssignmentId::new(), AttemptId::new());
    liar.report_known(
        vec![
            fact(1, ids, accepted()),
            fact(2, ids, exited(0)),
            fact(3, ids, released()),
            fact(4, strange, released()),
        ],
        4,
    )
    .await;
    assert_eq!(fleet.job(job.id).await.state, JobState::Starting);
    assert_eq!(fleet.workers(job.id).await.len(), 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn facts_that_come_twice_and_reversed_give_the_same_end(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(1).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let job = fleet.submit(1).await;
    fleet.turn().await;
    let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
    let facts = vec![
        fact(1, ids, accepted()),
        fact(2, ids, started()),
        fact(3, ids, exited(0)),
        fact(4, ids, released()),
    ];
    for fact in facts.iter().rev() {
        connection.report(vec![fact.clone(), fact.clone()]).await;
    }
    connection.report_known(facts.clone(), 4).await;
    assert_eq!(fleet.job(job.id).await.state, JobState::Succeeded);
    let segments = sqlx::query!(
        r#"SELECT kind, ended_at IS NOT NULL AS "closed!" FROM usage_segments ORDER BY started_at, kind DESC"#
    )
    .fetch_all(&owner)
    .await
    .expect("segments");
    let kinds: Vec<_> = segments
        .iter()
        .map(|s| (s.kind.as_str(), s.closed))
        .collect();
    assert_eq!(kinds, [("reserved", true), ("charged", true)]);
    let attempts = sqlx::query_scalar!(r#"SELECT count(*) AS "n!" FROM attempts"#)
        .fetch_one(&owner)
        .await
        .expect("a number");
    assert_eq!(attempts, 1);

    // And again in another connection of the same journal: everything is known.
    let mut again = machine.connect(1).await;
    again.report_known(facts, 4).await;
    assert_eq!(fleet.job(job.id).await.state, JobState::Succeeded);
}

#[sqlx::test(migrations = "../migrations")]
async fn the_newest_connection_speaks_for_a_node(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut older = machine.connect(1).await;
    older.beat().await;
    let mut newer = machine.connect(1).await;
    assert_eq!(older.ended().await.code(), Code::Aborted);
    newer.beat().await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_holds_what_has_ended_is_not_ready_until_it_has_let_go(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let orphan = (AssignmentId::new(), AttemptId::new());
    let mut connection = machine.connect_holding(1, &[orphan]).await;
    connection.beat().await;
    connection.beat().await;
    assert_ne!(node(&fleet, "n1").await.reachability, Reachability::Ready);
    let events = nodes::events(
        &fleet.app,
        &fleet.root(),
        &"n1".parse().expect("a name"),
        &server::app::page::PageAsk::first(),
    )
    .await
    .expect("events");
    assert!(
        events
            .items
            .iter()
            .any(|e| e.to == "orphan" && e.reason == "unknown")
    );
    connection
        .report_known(vec![fact(1, orphan, released())], 1)
        .await;
    connection.beat().await;
    ready(&fleet, "n1").await;
}

#[sqlx::test(migrations = "../migrations")]
async fn what_ran_on_a_machine_that_was_restarted_is_lost_and_queues_again(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let mut machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(1).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let job = fleet.submit(1).await;
    fleet.turn().await;
    let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    machine.boot = "boot-2".into();
    let mut connection = machine.connect(1).await;
    connection.beat().await;
    machine::eventually("the job is queued again", async || {
        fleet.job(job.id).await.state == JobState::Queued
    })
    .await;
    let queued = fleet.job(job.id).await;
    assert_eq!(queued.message, "node n1 was restarted");
    assert_eq!(fleet.most_holders().await, 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_message_that_is_malformed_ends_the_connection_by_name(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(1).await;
    connection.beat().await;
    let mut twice = inventory("n1", 2);
    twice.devices[1].uuid = twice.devices[0].uuid.clone();
    connection
        .send(wire::from_agent::Message::Inventory(twice))
        .await;
    let ended = connection.ended().await;
    assert_eq!(ended.code(), Code::InvalidArgument);
    assert!(
        ended.message().contains("device.uuid"),
        "{}",
        ended.message()
    );
}

/// The ids of an order.
pub fn ids_of(order: &wire::Assignment) -> (AssignmentId, AttemptId) {
    (
        order.id.parse().expect("an id"),
        order.attempt_id.parse().expect("an id"),
    )
}

/// The node as it is now.
pub async fn node(fleet: &Fleet, name: &str) -> nodes::Node {
    nodes::get(&fleet.app, &fleet.root(), &name.parse().expect("a name"))
        .await
        .expect("it is there")
}

/// Waits until a node is ready.
pub async fn ready(fleet: &Fleet, name: &str) -> nodes::Node {
    machine::eventually("the node is ready", async || {
        node(fleet, name).await.reachability == Reachability::Ready
    })
    .await;
    node(fleet, name).await
}

/// Sets what is wanted of a node.
pub async fn intent(fleet: &Fleet, name: &str, wish: NodeWish) {
    nodes::set_intent(
        &fleet.app,
        &fleet.root(),
        Repeat::none(),
        &name.parse().expect("a name"),
        wish,
        Reason::default(),
    )
    .await
    .expect("it is set");
}
