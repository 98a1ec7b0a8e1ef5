//! Two hundred jobs of three teams at once: all end, the money adds up, no device had two holders.

use std::collections::BTreeSet;
use std::time::Duration;

use rig::Cluster;
use serde_json::json;

use crate::support::{ENDED, all_in, finish, submit, three_machines};

/// 200 times a second of work on two cores, with all that goes around it.
const BOUND: Duration = Duration::from_secs(15 * 60);

#[tokio::test]
async fn two_hundred_digits_jobs_end_and_their_usage_equals_the_ledger() {
    let cluster = three_machines("many").await;
    let example = rig::paths::checkout_of_build().join("examples/digits/job.yaml");
    let mut spec = rig::examples::read(&example).unwrap();
    spec["command"] = json!(["python3", "train.py", "--epochs", "2"]);
    let mut submissions = tokio::task::JoinSet::new();
    for number in 0..200 {
        let team = ["vision", "speech", "platform"][number % 3];
        let member = cluster.sign_in(&format!("{team}-member")).await.unwrap();
        let mut spec = spec.clone();
        spec["name"] = json!(format!("digits-{number}"));
        submissions.spawn(async move { submit(&member, team, &spec).await });
    }
    let mut ids = Vec::new();
    while let Some(submitted) = submissions.join_next().await {
        ids.push(submitted.unwrap());
    }
    assert_eq!(ids.len(), 200);
    let jobs = all_in(&cluster, &ids, &ENDED, BOUND).await;
    for job in &jobs {
        assert_eq!(job["state"], "succeeded", "{job}");
    }

    check_journals(&cluster).await;
    e2e::laws::check_ledger(&cluster).await.unwrap();
    let usage = cluster.admin().get("/usage?group_by=team").await.unwrap();
    let ledger = &cluster
        .postgres
        .query(
            "SELECT sum(gpu_milli_micros)::text AS micros, round(sum(amount), 4)::text AS amount, count(DISTINCT job_id) AS jobs
             FROM ledger_entries",
        )
        .await
        .unwrap()[0];
    assert_eq!(ledger["jobs"], 200);
    // Thousandths of a GPU times microseconds, as GPU-seconds with three decimals.
    let micros: u128 = ledger["micros"]
        .as_str()
        .expect("a sum")
        .parse()
        .expect("a number");
    let shown = usage["total"]["gpu_seconds"].to_string();
    let milli_seconds = (micros + 500_000) / 1_000_000;
    let due = format!("{}.{:03}", milli_seconds / 1000, milli_seconds % 1000);
    assert_eq!(
        shown.trim_end_matches('0').trim_end_matches('.'),
        due.trim_end_matches('0').trim_end_matches('.')
    );
    assert_eq!(
        usage["total"]["cost"]["amount"], ledger["amount"],
        "{usage}"
    );
    finish(cluster, None).await;
}

/// The agents' journals tell of each assignment that they took on, on its node and of its
/// device, and that it is gone. That no device had two holders, and that nothing was started
/// twice, they are asked at the end of every test.
async fn check_journals(cluster: &Cluster) {
    let known = cluster
        .postgres
        .query(
            "SELECT n.name AS node, a.id AS assignment, v.uuid AS device
             FROM assignments AS a
             JOIN assignment_devices AS d ON d.assignment_id = a.id
             JOIN devices AS v ON v.id = d.device_id
             JOIN nodes AS n ON n.id = v.node_id
             WHERE a.handed_over_at IS NOT NULL",
        )
        .await
        .unwrap();
    let known: BTreeSet<[String; 3]> = known
        .iter()
        .map(|row| {
            ["node", "assignment", "device"]
                .map(|key| row[key].as_str().expect("a text").to_owned())
        })
        .collect();
    let mut told = BTreeSet::new();
    let mut whole = 0;
    for (node, holdings) in e2e::journals::read(cluster).await.unwrap() {
        for held in holdings {
            assert!(held.until_micros.is_some(), "{held:?}");
            whole += u32::from((held.starts, held.ends) == (1, 1));
            for share in held.devices {
                told.insert([node.clone(), held.assignment_id.clone(), share.uuid]);
            }
        }
    }
    assert_eq!(told, known);
    assert!(whole >= 200, "{whole} ran from a start to an end");
}
