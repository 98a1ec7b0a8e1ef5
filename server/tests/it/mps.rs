//! MPS: two teams share a device where both their pool and the node let them.

use domain::state::JobState;
use serde_json::json;
use sqlx::PgPool;

use super::fleet::Fleet;

#[sqlx::test(migrations = "../migrations")]
async fn teams_share_a_device_only_on_a_node_that_says_that_it_can(owner: PgPool) {
    let policy = json!({ "sharing": ["exclusive", "mps"], "mps_across_teams": true });
    let fleet = Fleet::with_policy(owner.clone(), policy).await;
    fleet.node("n1", 1).await;
    let node = |set: &'static str| {
        let change = format!("UPDATE nodes SET {set}, version = version + 1");
        let owner = owner.clone();
        async move {
            let change = sqlx::raw_sql(sqlx::AssertSqlSafe(change));
            change.execute(&owner).await.expect("changed");
        }
    };
    node("sharing = '{exclusive,mps}'").await;
    let half = json!({ "name": "half", "command": ["x"],
                       "per_worker": { "gpus": 0.5, "sharing": ["mps"] } });
    let ours = fleet.submit_spec(half.clone()).await.expect("accepted").id;
    let theirs = fleet.submit_as(&fleet.bob(), "speech", half).await;
    let theirs = theirs.expect("accepted").id;
    let starting = || async {
        let states = [fleet.job(ours).await.state, fleet.job(theirs).await.state];
        let starting = states.iter().filter(|s| **s == JobState::Starting);
        starting.count()
    };
    fleet.turn().await;
    assert_eq!(starting().await, 1, "one team has the device");
    node("mps_across_teams = true").await;
    fleet.turn().await;
    assert_eq!(starting().await, 2);
}
