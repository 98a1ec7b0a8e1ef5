//! What no node could ever hold is refused by the very key that asks for it.

use axum::http::StatusCode;
use domain::ids::NodeId;
use serde_json::{Value, json};
use server::app::AppError;
use sqlx::PgPool;

use super::fixture::Server;
use super::fleet::{Fleet, add_node};

/// A spec with these keys.
fn spec(more: Value) -> Value {
    let mut spec = json!({ "name": "j", "command": ["true"] });
    let keys = more.as_object().expect("an object").clone();
    spec.as_object_mut().expect("an object").extend(keys);
    spec
}

/// What it is refused for: code, field, value and remedy.
async fn refusal(fleet: &Fleet, more: Value) -> (&'static str, String, String, String) {
    match fleet.submit_spec(spec(more)).await {
        Err(AppError::Impossible { code, field }) => {
            (code.as_str(), field.field, field.value, field.remedy)
        }
        other => panic!("{other:?}"),
    }
}

/// Two nodes of one pool: `big` in zone `a`, eight devices in two linked fours, `small` in zone
/// `b` with two devices and much host memory.
async fn two_kinds(owner: PgPool) -> Fleet {
    let fleet = Fleet::new(owner).await;
    let big = fleet.node("big", 8).await;
    let small = fleet.node("small", 2).await;
    for (node, labels, nvlink, memory) in [
        (
            big,
            json!({ "zone": "a" }),
            json!([[0, 1, 2, 3], [4, 5, 6, 7]]),
            65_536,
        ),
        (small, json!({ "zone": "b" }), json!([]), 262_144),
    ] {
        sqlx::query!(
            "UPDATE nodes SET labels = $2, nvlink = $3, memory_mib = $4, version = version + 1 WHERE id = $1",
            node as NodeId,
            labels,
            nvlink,
            memory
        )
        .execute(&fleet.owner)
        .await
        .expect("a node of its kind");
    }
    sqlx::query!(
        "UPDATE devices SET model = 'A30', memory_mib = 24576, version = version + 1 WHERE node_id = $1",
        small as NodeId
    )
    .execute(&fleet.owner)
    .await
    .expect("other devices");
    fleet
}

#[sqlx::test(migrations = "../migrations")]
async fn a_value_that_no_node_has_is_named_with_those_that_nodes_have(owner: PgPool) {
    let fleet = two_kinds(owner).await;
    let one = |key: &str, value: Value| {
        let mut need = json!({ "gpus": 1 });
        need[key] = value;
        json!({ "per_worker": need })
    };
    for (asked, code, field, value, words) in [
        (
            json!({ "selector": { "zone": "c" }, "per_worker": { "gpus": 1 } }),
            "never_fits",
            "selector.zone",
            "c",
            "have: a, b",
        ),
        (
            json!({ "selector": { "rack": "r1" } }),
            "never_fits",
            "selector.rack",
            "r1",
            "another label that nodes of all pools have: zone",
        ),
        (
            one("gpu_memory_mib", json!(100_000)),
            "never_fits",
            "per_worker.gpu_memory_mib",
            "100000",
            "at most 81559 on one device of h100",
        ),
        (
            one("gpu_model", json!("B200")),
            "no_such_hardware",
            "per_worker.gpu_model",
            "B200",
            "have: A30, H100-80GB",
        ),
        (
            json!({ "per_worker": { "gpus": 0.5, "sharing": ["mps"] } }),
            "no_such_hardware",
            "per_worker.sharing",
            "mps",
            "a whole number of gpus, since no device is shared there (modes of nodes of all pools: exclusive)",
        ),
        (
            json!({ "per_worker": { "mig_profile": "1g.10gb", "sharing": ["mig"] } }),
            "no_such_hardware",
            "per_worker.sharing",
            "mig",
            "mig_profile null, since nothing is cut into instances there",
        ),
    ] {
        let told = refusal(&fleet, asked).await;
        assert_eq!(
            (told.0, told.1.as_str(), told.2.as_str()),
            (code, field, value),
            "{told:?}"
        );
        assert!(told.3.contains(words), "{words} in {}", told.3);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn what_nodes_have_but_none_together_is_named_by_what_binds_it(owner: PgPool) {
    let fleet = two_kinds(owner).await;
    for (asked, field, value, words) in [
        (
            json!({ "node": "small", "per_worker": { "gpus": 4 } }),
            "node",
            "small",
            "this one has 2 GPUs",
        ),
        (
            json!({ "selector": { "zone": "b" }, "per_worker": { "gpus": 4 } }),
            "selector.zone",
            "b",
            "another value",
        ),
        (
            json!({ "per_worker": { "gpus": 4, "gpu_model": "A30" } }),
            "per_worker.gpu_model",
            "A30",
            "another model",
        ),
        (
            json!({ "nvlink": "require", "per_worker": { "gpus": 8 } }),
            "nvlink",
            "require",
            "prefer or any",
        ),
        (
            json!({ "topology": { "require": "zone" }, "workers": 2, "per_worker": { "gpus": 5 } }),
            "workers",
            "2",
            "at once",
        ),
        (
            json!({ "topology": { "require": "zone" }, "workers": 10, "per_worker": { "gpus": 1 } }),
            "topology.require",
            "zone",
            "10 workers",
        ),
        (
            json!({ "per_worker": { "gpus": 4, "memory_mib": 131_072 } }),
            "per_worker.gpus",
            "4",
            "together with the rest",
        ),
    ] {
        let told = refusal(&fleet, asked).await;
        assert_eq!(
            (told.0, told.1.as_str(), told.2.as_str()),
            ("never_fits", field, value),
            "{told:?}"
        );
        assert!(told.3.contains(words), "{words} in {}", told.3);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn pools_without_nodes_are_told_as_that(owner: PgPool) {
    let server = Server::start(&owner).await;
    let member = server.client("vision-member");
    let submit = async |body: Value| {
        let refused = member.post("/teams/vision/jobs", body).await;
        refused.problem(StatusCode::UNPROCESSABLE_ENTITY)
    };
    let told = submit(spec(json!({}))).await;
    assert_eq!(
        (&told["field"], &told["value"]),
        (&json!("pools"), &json!("all pools"))
    );
    assert!(
        told["remedy"]
            .as_str()
            .is_some_and(|words| words.contains("no node is registered"))
    );
    sqlx::query!("INSERT INTO pools (id, name, policy) VALUES (gen_random_uuid(), 'a100', '{}')")
        .execute(&owner)
        .await
        .expect("a pool");
    add_node(&owner, "h100", "n1", 8).await;
    let told = submit(spec(json!({ "pools": ["a100"] }))).await;
    assert_eq!(
        (&told["field"], &told["value"]),
        (&json!("pools"), &json!("a100"))
    );
    assert_eq!(told["remedy"], "pools that have nodes: h100");
}
