//! An array over real agents: never more at once than may, each with its index, cancelled in part.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::support::{finish, submit, three_machines};

/// Twenty elements of a second, four at a time, on two cores that are busy.
const BOUND: Duration = Duration::from_secs(240);

#[tokio::test]
async fn an_array_runs_four_at_a_time_and_each_element_knows_its_index() {
    let cluster = three_machines("array").await;
    let member = cluster.sign_in("vision-member").await.unwrap();
    let spec = json!({
        "name": "sweep", "kind": "batch", "class": "normal", "pools": ["h100"],
        "command": ["sh", "-c", "echo index=$ALLOTMENT_ARRAY_INDEX of $ALLOTMENT_JOB_ID; sleep 1"],
        "per_worker": {"gpus": 1}, "array": {"count": 20, "at_most": 4},
    });
    let id = submit(&member, "vision", &spec).await;
    let mut follower = spec.clone();
    follower["array"] = json!(null);
    follower["after"] = json!([id]);
    let follower = submit(&member, "vision", &follower).await;
    let allot = |words: &[&str]| {
        let done = Command::new(cluster.paths().binary("allot").unwrap())
            .env("ALLOTMENT_URL", cluster.url())
            .env("ALLOTMENT_TOKEN", member.token())
            .args(words)
            .output()
            .unwrap();
        let told = String::from_utf8(done.stdout).unwrap();
        assert!(done.status.success(), "{words:?}: {told}");
        told
    };
    // The last ones are far from their turn: four go first, a second each.
    let told = allot(&["cancel", &format!("{id}.15-18"), &format!("{id}.19")]);
    assert!(told.contains("4 cancelled"), "{told}");
    assert!(told.contains(&format!("{id}.19 cancelled")), "{told}");

    let array = cluster
        .job_in(&member, &id, &["succeeded", "failed", "cancelled"], BOUND)
        .await
        .unwrap();
    // Not all of it has ended well.
    assert_eq!(array["state"], "cancelled", "{array}");
    assert_eq!(
        array["array"]["elements"],
        json!({"succeeded": 15, "cancelled": 5}),
        "{array}"
    );
    let elements = member.list(&format!("/jobs/{id}/elements")).await.unwrap();
    assert_eq!(elements.len(), 20);
    let sum: f64 = elements
        .iter()
        .map(|element| element["gpu_seconds"].as_f64().expect("a number"))
        .sum();
    let whole = array["gpu_seconds"].as_f64().expect("a number");
    assert!(whole > 14.0 && (whole - sum).abs() < 0.1, "{whole} {sum}");
    for index in 0..15 {
        let log = member
            .text(&format!("/jobs/{id}.{index}/logs"))
            .await
            .unwrap();
        assert_eq!(log.trim(), format!("index={index} of {id}.{index}"));
    }
    let most = &cluster
        .postgres
        .query(
            "SELECT max(n)::text AS most, count(*)::text AS assignments FROM (
                 SELECT (SELECT count(*) FROM assignments AS b
                         WHERE b.granted_at <= a.granted_at AND b.ended_at > a.granted_at) AS n
                 FROM assignments AS a) AS at_once",
        )
        .await
        .unwrap()[0];
    assert_eq!(
        (&most["most"], &most["assignments"]),
        (&json!("4"), &json!("15"))
    );

    // What follows all of it was told that it never will.
    let follower = cluster
        .job_in(&member, &follower, &["failed"], BOUND)
        .await
        .unwrap();
    assert_eq!(follower["reason"], "dependency", "{follower}");

    let listed = member.list("/jobs").await.unwrap();
    let ids: BTreeSet<&str> = listed.iter().filter_map(|job| job["id"].as_str()).collect();
    assert_eq!(listed.len(), 2, "{ids:?}");
    let told = allot(&["jobs"]);
    assert!(told.contains("5 cancelled, 15 succeeded"), "{told}");
    let told = allot(&["job", &id]);
    assert!(told.contains(&format!("{id}.3 ")), "{told}");
    e2e::laws::check_ledger(&cluster).await.unwrap();
    finish(cluster, None).await;
}
