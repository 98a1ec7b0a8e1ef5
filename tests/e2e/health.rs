//! Faults of devices, end to end: off the bus, errors of the hardware, a call that hangs, and memory that
//! somebody left behind.

use serde_json::{Value, json};

use crate::support::{END_BOUND, START_BOUND, Scene};

const NODE: &str = "l40s-1";

/// Changes a device of the machine while it runs.
fn change(scene: &Scene, index: usize, change: impl FnOnce(&mut Value)) {
    scene.cluster.agents[NODE]
        .change_machine(|machine| change(&mut machine["devices"][index]))
        .unwrap();
}

/// Waits until the product tells a device's health; the device.
async fn is(scene: &Scene, index: usize, health: &str) -> Value {
    rig::wait::until(health, END_BOUND, || async {
        let node = scene.cluster.admin().get(&format!("/nodes/{NODE}")).await?;
        let device = node["devices"][index].clone();
        Ok((device["health"] == health).then_some(device))
    })
    .await
    .unwrap()
}

/// The device on which a job runs.
async fn device_of(scene: &Scene, id: &str) -> usize {
    let job = scene.job(id).await;
    let index = job["placement"][0]["devices"][0]["index"].as_u64();
    usize::try_from(index.expect("an index")).expect("small")
}

/// Waits until a job runs for the second time.
async fn runs_again(scene: &Scene, id: &str) {
    rig::wait::until("a second attempt runs", END_BOUND, || async {
        let job = scene.member.get(&format!("/jobs/{id}")).await?;
        Ok((job["attempt"] == 2 && job["state"] == "running").then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn work_on_a_device_that_errs_comes_again_elsewhere_and_a_person_returns_the_device() {
    let scene = Scene::on_one_machine("xid", "vision").await;
    let id = scene.run("on-device", "l40s").await;
    let index = device_of(&scene, &id).await;
    change(&scene, index, |device| device["xids"] = json!([63, 79]));
    let failed = is(&scene, index, "failed").await;
    assert_eq!(failed["health_reason"], "Xid 79: fallen off the bus");
    assert_eq!(failed["found"][0]["reason"], failed["health_reason"]);
    runs_again(&scene, &id).await;
    assert_ne!(device_of(&scene, &id).await, index);
    let path = format!("/nodes/{NODE}/devices/{index}/clear");
    let why =
        json!({"finding": failed["found"][0]["number"], "reason": "the board was seated anew"});
    scene.cluster.admin().post(&path, &why).await.unwrap();
    let well = is(&scene, index, "healthy").await;
    assert_eq!(well["found"], json!([]));
    scene.let_succeed(&id).await;
    e2e::laws::check_ledger(&scene.cluster).await.unwrap();
    scene.finish().await;
}

#[tokio::test]
async fn a_device_off_the_bus_loses_its_job_and_stays_out_until_a_person_returns_it() {
    let scene = Scene::on_one_machine("off-the-bus", "vision").await;
    let id = scene.run("on-device", "l40s").await;
    let index = device_of(&scene, &id).await;
    change(&scene, index, |device| {
        device["fault"] = json!("gpu_is_lost")
    });
    let failed = is(&scene, index, "failed").await;
    runs_again(&scene, &id).await;
    change(&scene, index, |device| device["fault"] = Value::Null);
    rig::wait::until("it is back", END_BOUND, || async {
        let node = scene.cluster.admin().get(&format!("/nodes/{NODE}")).await?;
        let reason = node["devices"][index]["health_reason"].as_str();
        let back = reason.is_some_and(|reason| reason.starts_with("it was gone"));
        Ok(back.then_some(()))
    })
    .await
    .unwrap();
    let path = format!("/nodes/{NODE}/devices/{index}/clear");
    let why = json!({"finding": failed["found"][0]["number"], "reason": "its cable was loose"});
    scene.cluster.admin().post(&path, &why).await.unwrap();
    is(&scene, index, "healthy").await;
    scene.let_succeed(&id).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_device_on_which_a_call_hangs_gets_no_work_and_the_others_do() {
    let scene = Scene::on_one_machine("hang", "vision").await;
    let first = scene.run("first", "l40s").await;
    let index = device_of(&scene, &first).await;
    change(&scene, index, |device| device["fault"] = json!("hangs"));
    is(&scene, index, "suspect").await;
    let other = scene.run("other", "l40s").await;
    assert_ne!(device_of(&scene, &other).await, index);
    assert_eq!(scene.job(&first).await["attempt"], 1, "what runs may end");
    change(&scene, index, |device| device["fault"] = Value::Null);
    is(&scene, index, "healthy").await;
    scene.let_succeed(&first).await;
    scene.finish_when_all_ended().await;
}

#[tokio::test]
async fn a_device_whose_memory_somebody_holds_gets_no_work_until_it_is_free() {
    let scene = Scene::on_one_machine("leak", "vision").await;
    // All but one, so that the next job would have to go there.
    let mut ids = Vec::new();
    for number in 0..3 {
        ids.push(scene.run(&format!("job-{number}"), "l40s").await);
    }
    let mut taken = Vec::new();
    for id in &ids {
        taken.push(device_of(&scene, id).await);
    }
    let free = (0..4)
        .find(|index| !taken.contains(index))
        .expect("one is free");
    let held = |mib: Value| move |device: &mut Value| device["telemetry"]["memory_used_mib"] = mib;
    change(&scene, free, held(json!(5000)));
    let suspect = is(&scene, free, "suspect").await;
    let reason = suspect["health_reason"].as_str().expect("a reason");
    assert!(reason.starts_with("5000 MiB of its memory"), "{reason}");
    assert_eq!(suspect["found"], json!([]), "it is over by itself");
    let last = scene.submit("last", "l40s").await;
    let waits = scene
        .cluster
        .job_in(&scene.member, &last, &["queued"], START_BOUND);
    waits.await.unwrap();
    change(&scene, free, held(Value::Null));
    scene.runs(&last).await;
    assert_eq!(device_of(&scene, &last).await, free);
    scene.let_succeed(&last).await;
    scene.finish_when_all_ended().await;
}
