//! Nodes as people see and steer them.

use domain::state::NodeIntent;
use serde_json::json;
use server::app::idempotency::Repeat;
use server::app::nodes::{self, NodeFilter, NodePatch, NodeWish, Reason};
use server::app::page::PageAsk;
use server::app::{AppError, RefusalCode};
use sqlx::PgPool;

use super::agents::{intent, node};
use super::fleet::Fleet;

#[sqlx::test(migrations = "../migrations")]
async fn another_teams_share_is_one_neutral_slice(owner: PgPool) {
    let policy = json!({ "sharing": ["exclusive", "time_slice"] });
    let fleet = Fleet::with_policy(owner, policy).await;
    fleet.node("n1", 1).await;
    for (asker, team, gpus) in [
        (fleet.ada(), "vision", 0.25),
        (fleet.bob(), "speech", 0.25),
        (fleet.bob(), "speech", 0.125),
    ] {
        let spec = json!({ "name": "secret-name", "command": ["x"],
                           "per_worker": { "gpus": gpus, "sharing": ["time_slice"] } });
        fleet.submit_as(&asker, team, spec).await.expect("accepted");
    }
    fleet.turn().await;
    let name = "n1".parse().expect("a name");
    let seen = nodes::get(&fleet.app, &fleet.ada(), &name)
        .await
        .expect("a node");
    let device = &seen.devices[0];
    assert_eq!(device.in_use.milli(), 625);
    let slices: Vec<_> = device
        .slices
        .iter()
        .map(|s| (s.gpus.milli(), s.holder.as_ref().map(|h| h.team.as_str())))
        .collect();
    assert_eq!(slices, [(250, Some("vision")), (375, None)]);
    let text = serde_json::to_string(&seen).expect("JSON");
    assert!(!text.contains("speech"), "{text}");
    assert_eq!(seen.address, None);
    let all = nodes::get(&fleet.app, &fleet.root(), &name)
        .await
        .expect("a node");
    assert_eq!(all.devices[0].slices.len(), 3);
    assert!(all.devices[0].slices.iter().all(|s| s.holder.is_some()));
}

#[sqlx::test(migrations = "../migrations")]
async fn nodes_are_paged_by_name_and_cut_to_a_pool(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    for name in ["n1", "n2", "n3"] {
        fleet.node(name, 1).await;
    }
    let ask = PageAsk::new(Some(2), None).expect("a page");
    let filter = NodeFilter::default();
    let first = nodes::list(&fleet.app, &fleet.ada(), &filter, &ask)
        .await
        .expect("a page");
    let names = |page: &server::app::page::Page<nodes::Node>| {
        page.items
            .iter()
            .map(|n| n.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&first), ["n1", "n2"]);
    let ask = PageAsk::new(Some(2), first.next_cursor).expect("a page");
    let second = nodes::list(&fleet.app, &fleet.ada(), &filter, &ask)
        .await
        .expect("a page");
    assert_eq!(names(&second), ["n3"]);
    assert_eq!(second.next_cursor, None);
    let elsewhere = NodeFilter {
        pool: Some("nowhere".parse().expect("a name")),
        ..NodeFilter::default()
    };
    let refused = nodes::list(&fleet.app, &fleet.ada(), &elsewhere, &PageAsk::first()).await;
    assert!(matches!(
        refused,
        Err(AppError::NotFound { what: "pool", .. })
    ));
}

#[sqlx::test(migrations = "../migrations")]
async fn operators_steer_nodes_and_others_may_not(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 1).await;
    let name = "n1".parse().expect("a name");
    let refused = nodes::set_intent(
        &fleet.app,
        &fleet.ada(),
        Repeat::none(),
        &name,
        NodeWish::Cordon,
        Reason::default(),
    )
    .await;
    assert!(matches!(refused, Err(AppError::Forbidden { .. })));
    for (wish, to) in [
        (NodeWish::Cordon, NodeIntent::Cordoned),
        (NodeWish::Cordon, NodeIntent::Cordoned),
        (NodeWish::Drain, NodeIntent::Draining),
        (NodeWish::Uncordon, NodeIntent::Open),
    ] {
        intent(&fleet, "n1", wish).await;
        assert_eq!(node(&fleet, "n1").await.intent, to);
    }
    let audited =
        sqlx::query_scalar!("SELECT action FROM audit WHERE object = 'node/n1' ORDER BY id")
            .fetch_all(&owner)
            .await
            .expect("the audit log");
    assert_eq!(audited, ["cordon_node", "drain_node", "uncordon_node"]);
    let why = Reason {
        reason: "a\u{202e}b".into(),
    };
    let refused = nodes::set_intent(
        &fleet.app,
        &fleet.root(),
        Repeat::none(),
        &name,
        NodeWish::Cordon,
        why,
    )
    .await;
    assert!(matches!(refused, Err(AppError::Invalid(error)) if error.field == "reason"));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_in_use_is_not_retired_and_a_retired_one_is_gone(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let job = fleet.submit(1).await.id;
    fleet.turn().await;
    fleet.run(job).await;
    let name = "n1".parse().expect("a name");
    let retire = async || {
        nodes::set_intent(
            &fleet.app,
            &fleet.root(),
            Repeat::none(),
            &name,
            NodeWish::Retire,
            Reason::default(),
        )
        .await
    };
    assert!(matches!(
        retire().await,
        Err(AppError::Conflict {
            code: RefusalCode::NodeInUse,
            ..
        })
    ));
    fleet.exit(job, 0).await;
    retire().await.expect("retired");
    let listed = nodes::list(
        &fleet.app,
        &fleet.ada(),
        &NodeFilter::default(),
        &PageAsk::first(),
    )
    .await
    .expect("a page");
    assert!(listed.items.is_empty());
    let refused = nodes::set_intent(
        &fleet.app,
        &fleet.root(),
        Repeat::none(),
        &name,
        NodeWish::Uncordon,
        Reason::default(),
    )
    .await;
    assert!(
        matches!(refused, Err(AppError::Conflict { .. })),
        "gone for good"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn labels_are_replaced_on_the_version_that_was_read(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let name = "n1".parse().expect("a name");
    let version = node(&fleet, "n1").await.version;
    let patch = |labels: serde_json::Value| -> NodePatch {
        serde_json::from_value(json!({ "labels": labels })).expect("a patch")
    };
    let changed = nodes::update(
        &fleet.app,
        &fleet.root(),
        &name,
        version,
        patch(json!({ "rack": "r1" })),
    )
    .await
    .expect("changed");
    assert_eq!(changed.labels["rack"], "r1");
    let stale = nodes::update(
        &fleet.app,
        &fleet.root(),
        &name,
        version,
        patch(json!({ "rack": "r2" })),
    )
    .await;
    assert!(matches!(stale, Err(AppError::Stale { .. })));
    for bad in [
        json!({ "": "x" }),
        json!({ "rack": "<b>" }),
        json!({ "a b": "x" }),
    ] {
        let refused = nodes::update(
            &fleet.app,
            &fleet.root(),
            &name,
            changed.version,
            patch(bad),
        )
        .await;
        assert!(matches!(refused, Err(AppError::Invalid(_))));
    }
}
