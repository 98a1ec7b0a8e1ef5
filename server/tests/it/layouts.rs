//! A node whose devices are cut by a layout: what is there is given out, and nothing else is asked of it.

use domain::state::JobState;
use protocol::wire;
use serde_json::{Value, json};
use sqlx::PgPool;

use super::agents::{node, ready};
use super::fleet::Fleet;
use super::machine::{self, Machine, inventory};

/// Two devices, of which the first has an instance of half of it.
fn cut() -> wire::Inventory {
    let mut told = inventory("n1", 2);
    told.sharing.push("mig".into());
    told.mig_static = true;
    told.devices[0].mig = Some(wire::Mig {
        instances: vec![wire::MigSlice {
            profile: "3g.40gb".into(),
            start: 4,
            size: 4,
        }],
    });
    told
}

fn spec(per_worker: Value) -> Value {
    json!({ "name": "j", "command": ["x"], "per_worker": per_worker })
}

#[sqlx::test(migrations = "../migrations")]
async fn work_is_placed_on_what_a_layout_has_made_and_waits_for_what_it_has_not(owner: PgPool) {
    let sharing = json!({ "sharing": ["exclusive", "mig"], "mig_mode": "dynamic" });
    let fleet = Fleet::with_policy(owner, sharing).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(2).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let message = wire::from_agent::Message::Inventory(cut());
    connection.send(message).await;
    machine::eventually("it is told", async || node(&fleet, "n1").await.mig_static).await;
    let submit = async |per_worker: Value| {
        let job = fleet.submit_spec(spec(per_worker)).await;
        job.expect("accepted").id
    };
    let half = submit(json!({ "mig_profile": "3g.40gb" })).await;
    let whole = submit(json!({ "gpus": 1 })).await;
    fleet.turn().await;
    for job in [half, whole] {
        assert_eq!(fleet.job(job).await.state, JobState::Starting);
    }
    let device = async |job| fleet.job(job).await.placement[0].devices[0].index;
    assert_eq!((device(half).await, device(whole).await), (0, 1));
    let another = submit(json!({ "mig_profile": "3g.40gb" })).await;
    let wide = submit(json!({ "gpus": 1 })).await;
    fleet.turn().await;
    for job in [another, wide] {
        let waits = fleet.job(job).await;
        assert_eq!(waits.state, JobState::Queued, "{}", waits.message);
        let told = waits.waiting.expect("a verdict");
        assert_eq!(told["code"], "insufficient_capacity", "{told}");
    }
}
