//! Enrolment: whose place a machine may take, whose certificate counts, and what a flood leaves.

use domain::state::Reachability;
use protocol::wire;
use serde_json::json;
use server::app::idempotency::Repeat;
use server::app::nodes::{self, Reason};
use server::background;
use sqlx::PgPool;
use tonic::Code;

use super::agents::{node, ready};
use super::faults::{keep_job, running};
use super::fleet::Fleet;
use super::machine::{self, Machine, Ports};
use super::simulated::Clock;

/// The lease, and what is added to it before a node counts as lost: the defaults.
const LEASE_MS: i64 = 60_000;
const MARGIN_MS: i64 = 35_000;

async fn token(fleet: &Fleet, ports: &Ports) -> String {
    let new = serde_json::from_value(json!({ "pool": "h100" })).expect("a pool");
    nodes::create_join_token(&ports.app, &fleet.root(), new)
        .await
        .expect("a token")
        .token
}

async fn reconcile(fleet: &Fleet) {
    background::reconcile(&fleet.app, true)
        .await
        .outcome()
        .expect("reconciled");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_place_of_a_lost_machine_may_be_taken_and_its_certificate_is_good_no_more(
    owner: PgPool,
) {
    let now = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#)
        .fetch_one(&owner)
        .await
        .expect("a time");
    let clock = Clock::at(&owner, &now.to_rfc3339()).await;
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let former = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = former.connect(1).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    drop(connection);
    clock.pass_ms(LEASE_MS + 1).await;
    reconcile(&fleet).await;
    assert_eq!(
        node(&fleet, "n1").await.reachability,
        Reachability::Unreachable
    );
    let join = token(&fleet, &ports).await;
    let refused = Machine::enrol(&ports, &join, "n1")
        .await
        .err()
        .expect("refused");
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(
        refused.message().contains("declare-lost"),
        "{}",
        refused.message()
    );

    clock.pass_ms(MARGIN_MS).await;
    reconcile(&fleet).await;
    assert_eq!(node(&fleet, "n1").await.reachability, Reachability::Lost);
    let anew = Machine::enrol(&ports, &join, "n1")
        .await
        .expect("it is vacant");
    assert_eq!(anew.node, former.node);
    let connection = former.call().await.err().expect("refused");
    assert_eq!(connection.code(), Code::PermissionDenied);
    assert!(
        connection
            .message()
            .contains("another machine has enrolled")
    );
    let renewal = wire::RenewRequest {
        csr_der: former.signing_request(),
        expired_certificate_der: Vec::new(),
    };
    let renewed = former.client().await.renew(renewal).await.err();
    assert_eq!(renewed.map(|s| s.code()), Some(Code::PermissionDenied));
    let mut connection = anew.connect(1).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_lost_machine_whose_work_is_waited_for_keeps_its_place(owner: PgPool) {
    let on = running(owner, keep_job()).await;
    on.clock.pass_ms(10 * LEASE_MS).await;
    reconcile(&on.fleet).await;
    reconcile(&on.fleet).await;
    let join = token(&on.fleet, &on.ports).await;
    let refused = Machine::enrol(&on.ports, &join, "n1").await.err();
    assert_eq!(refused.map(|s| s.code()), Some(Code::AlreadyExists));
    nodes::declare_lost(
        &on.fleet.app,
        &on.fleet.root(),
        Repeat::none(),
        &"n1".parse().expect("a name"),
        Reason::default(),
    )
    .await
    .expect("declared");
    Machine::enrol(&on.ports, &join, "n1")
        .await
        .expect("it is vacant");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_flood_of_refused_enrolments_leaves_a_bounded_number_of_audit_rows(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    let ports = machine::open(&fleet.app).await;
    for _ in 0..35 {
        let refused = Machine::enrol(&ports, "alj_guess", "n1").await.err();
        assert_eq!(refused.map(|s| s.code()), Some(Code::PermissionDenied));
    }
    let rows =
        sqlx::query_scalar!(r#"SELECT count(*) AS "n!" FROM audit WHERE action = 'enrol_node'"#)
            .fetch_one(&owner)
            .await
            .expect("a number");
    assert_eq!(rows, 30);
}
