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

#[sqlx::test(migrations = "../migrations")]
async fn what_a_layout_will_make_is_accepted_before_and_its_device_is_kept_until_it_is_made(
    owner: PgPool,
) {
    let sharing = json!({ "sharing": ["exclusive", "mig"], "mig_mode": "dynamic" });
    let fleet = Fleet::with_policy(owner, sharing).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(2).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let mut laying = inventory("n1", 2);
    laying.sharing.push("mig".into());
    laying.mig_static = true;
    laying.devices[0].layout = Some(wire::Layout {
        mig: true,
        profiles: vec!["3g.40gb".into(), "4g.40gb".into()],
    });
    let message = wire::from_agent::Message::Inventory(laying.clone());
    connection.send(message).await;
    let layout = async || node(&fleet, "n1").await.devices[0].layout.clone();
    machine::eventually("it is told", async || layout().await.is_some()).await;
    assert_eq!(
        layout().await.expect("told").profiles,
        ["3g.40gb", "4g.40gb"]
    );
    let submit = async |per_worker: Value| fleet.submit_spec(spec(per_worker)).await;
    let half = submit(json!({ "mig_profile": "3g.40gb" })).await;
    let half = half.expect("a device will have it").id;
    let one = submit(json!({ "gpus": 1 }))
        .await
        .expect("one stays whole")
        .id;
    let other = submit(json!({ "gpus": 1 })).await.expect("likewise").id;
    submit(json!({ "gpus": 2 }))
        .await
        .expect_err("never again two whole ones");
    submit(json!({ "mig_profile": "2g.20gb" }))
        .await
        .expect_err("no device will have it");
    fleet.turn().await;
    assert_eq!(fleet.job(one).await.placement[0].devices[0].index, 1);
    for waits in [half, other] {
        let waits = fleet.job(waits).await;
        assert_eq!(waits.state, JobState::Queued, "{}", waits.message);
    }
    let device = &mut laying.devices[0];
    device.layout = None;
    let made = |profile: &str, start| wire::MigSlice {
        profile: profile.into(),
        start,
        size: 4,
    };
    device.mig = Some(wire::Mig {
        instances: vec![made("4g.40gb", 0), made("3g.40gb", 4)],
    });
    let message = wire::from_agent::Message::Inventory(laying);
    connection.send(message).await;
    machine::eventually("it is made", async || layout().await.is_none()).await;
    fleet.turn().await;
    assert_eq!(fleet.job(half).await.state, JobState::Starting);
    assert_eq!(fleet.job(other).await.state, JobState::Queued);
}
