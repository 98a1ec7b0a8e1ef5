//! Two hundred jobs of three teams at once: all end, the money adds up, no device had two holders.

use std::time::Duration;

use serde_json::json;

use crate::support::{ENDED, all_in, finish, three_machines};

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
        submissions.spawn(async move { member.post(&format!("/teams/{team}/jobs"), &spec).await });
    }
    let mut ids = Vec::new();
    while let Some(submitted) = submissions.join_next().await {
        let job = submitted.unwrap().unwrap();
        ids.push(job["id"].as_str().expect("an id").to_owned());
    }
    assert_eq!(ids.len(), 200);
    let jobs = all_in(&cluster, &ids, &ENDED, BOUND).await;
    for job in &jobs {
        assert_eq!(job["state"], "succeeded", "{job}");
    }

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
