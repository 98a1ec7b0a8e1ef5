//! A static MIG layout, on a simulated machine.

use std::fs;

use protocol::wire;
use serde_json::{Value, json};

use crate::gpus::library;
use crate::mig::{CHANGES, Cut, ONE, THREE, on};
use crate::rig::{Agent, eventually, script, stopped, until};

/// A layout for the first device alone.
const LAYOUT: &str = "version: v1
mig-configs:
  mixed:
    - devices: [0]
      mig-enabled: true
      mig-devices: {3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 1}
  too-much:
    - device-filter: '0x20B210DE'
      devices: [0]
      mig-enabled: true
      mig-devices: {3g.40gb: 2, 1g.10gb: 1}
";

/// Settings that name one of the configurations.
fn laid_out(agent: &Agent, config: &str) -> String {
    let file = agent.folder.path().join("layout.yaml");
    fs::write(&file, LAYOUT).expect("written");
    format!(
        "mig = 'static'\nmig_layout = '{}'\nmig_config = '{config}'",
        file.display()
    )
}

impl Cut {
    /// A node whose first device is cut by a layout.
    async fn with_layout(config: &str, change: impl FnOnce(&mut Value)) -> Self {
        let mut agent = Agent::enrolled().await;
        let settings = laid_out(&agent, config);
        let machine = agent.simulate("dgx-a100", &settings);
        let cut = Self { agent, machine };
        cut.change(change);
        let mut cut = cut;
        cut.agent.launch();
        cut
    }

    /// The profiles on the first device, those without compute instance with a mark.
    fn profiles(&self) -> Vec<String> {
        let all = self.instances();
        let mut all: Vec<String> = all
            .iter()
            .map(|named| named.split('@').next().unwrap_or_default().to_owned())
            .zip(&all)
            .map(|(name, whole)| {
                if whole.ends_with('?') {
                    whole.clone()
                } else {
                    name
                }
            })
            .collect();
        all.sort();
        all
    }

    /// What the first device is said to be about to become, once that is as it is wanted.
    async fn laying(&self, wanted: fn(&Option<wire::Layout>) -> bool) -> Option<wire::Layout> {
        let told = |inner: &crate::fake_server::Inner| {
            let layout = inner.inventories.last()?.devices.first()?.layout.clone();
            wanted(&layout).then_some(layout)
        };
        self.agent
            .server
            .wait("what the device will be", told)
            .await
    }

    async fn is_laid_out(&self) {
        let wanted = ["1g.10gb", "2g.20gb", "3g.40gb"];
        until("the layout is made", || self.profiles() == wanted).await;
    }
}

#[tokio::test]
async fn a_device_is_cut_by_its_layout_and_never_otherwise_also_after_a_restart_of_the_machine() {
    let mut cut = Cut::with_layout("mixed", |_| {}).await;
    cut.is_laid_out().await;
    let three = cut.instances();
    let three = three
        .iter()
        .find(|named| named.starts_with("3g"))
        .expect("it is there");
    let start: u32 = three
        .rsplit('@')
        .next()
        .and_then(|at| at.parse().ok())
        .expect("a start");
    let job = on(cut.share(THREE, start), "sleep 1000");
    let other = on(cut.share(ONE, start), "true");
    let whole = wire::Assignment {
        devices: vec![wire::DeviceShare {
            uuid: cut.uuid(1),
            ..cut.whole()
        }],
        ..script("true")
    };
    let server = &cut.agent.server;
    server.desire(&[job.clone(), whole.clone()]).await;
    server.started(&job.id).await;
    server.released(&whole.id).await;
    assert_eq!(
        server.exited(&whole.id).await.code,
        Some(0),
        "what it does not name is whole"
    );
    server.desire(&[stopped(&job, 0), other.clone()]).await;
    server.released(&job.id).await;
    let refused = server.refused(&other.id).await;
    assert!(
        refused.message.contains("static") || refused.message.contains("held"),
        "{refused:?}"
    );
    assert_eq!(cut.profiles().len(), 3, "instances of a layout stay");

    cut.agent.kill();
    cut.change(|machine| machine["boot"] = json!(1));
    assert!(
        cut.cuts()["instances"]
            .as_array()
            .is_some_and(Vec::is_empty)
    );
    cut.agent.start().await;
    cut.is_laid_out().await;
}

#[tokio::test]
async fn a_layout_waits_until_those_have_left_who_are_on_the_device() {
    let mut cut = Cut::start("dgx-a100", "").await;
    let job = on(cut.whole(), "sleep 1000");
    cut.agent.server.desire(std::slice::from_ref(&job)).await;
    let pid = cut.agent.server.started(&job.id).await;
    cut.agent.kill();
    let settings = laid_out(&cut.agent, "mixed");
    let library = library().display().to_string();
    cut.agent.configure(&format!(
        "inventory_seconds = 1\nnvml_library = '{library}'\nmig_capability = '/dev/null'\n{settings}"
    ));
    cut.agent.start().await;
    until("it has been tried", || {
        cut.agent.log().contains("its layout made cannot be done")
    })
    .await;
    assert!(crate::rig::alive(pid));
    assert_eq!(cut.cuts()["on"], false);
    // The server is told, so that nobody else gets the device meanwhile.
    let laying = cut.laying(Option::is_some).await.expect("it is told");
    assert!(laying.mig);
    assert_eq!(laying.profiles, ["1g.10gb", "2g.20gb", "3g.40gb"]);
    cut.agent.server.desire(&[stopped(&job, 0)]).await;
    cut.agent.server.released(&job.id).await;
    cut.is_laid_out().await;
    cut.laying(Option::is_none).await;
}

#[tokio::test]
async fn an_agent_that_dies_at_any_step_of_a_layout_comes_back_and_makes_it_whole() {
    for call in &CHANGES[..3] {
        for when in ["before", "after"] {
            let kill = json!({"call": call, "when": when});
            let mut cut = Cut::with_layout("mixed", |machine| machine["kills_caller"] = kill).await;
            eventually("it dies", || cut.agent.ended()).await;
            cut.change(|machine| machine["kills_caller"] = Value::Null);
            cut.agent.start().await;
            cut.is_laid_out().await;
        }
    }
}

#[tokio::test]
async fn a_layout_that_does_not_fit_is_told_with_what_it_asks_for_and_nothing_is_made_of_it() {
    let mut cut = Cut::with_layout("too-much", |_| {}).await;
    let words = "mig-devices: 1g.10gb, 3g.40gb, 3g.40gb is refused: instances that lie beside";
    until("it is refused", || cut.agent.log().contains(words)).await;
    assert!(cut.instances().is_empty());
    assert_eq!(cut.cuts()["on"], false, "nothing was begun for it");
    let warned = |inner: &crate::fake_server::Inner| {
        let told = inner.inventories.last()?;
        let warned = told.warnings.iter().any(|warning| warning.contains(words));
        warned.then(|| told.devices[0].layout.clone())
    };
    let layout = cut.agent.server.wait("it is told", warned).await;
    assert_eq!(
        layout, None,
        "what cannot be made keeps nobody from the device"
    );
    cut.agent.kill();

    cut.agent
        .configure("mig = 'dynamic'\nmig_layout = '/nonexistent'\nmig_config = 'a'");
    cut.agent.launch();
    eventually("it does not begin", || cut.agent.ended()).await;
    let refused = cut.agent.log();
    assert!(refused.contains("mig: dynamic"), "{refused}");
}

#[tokio::test]
async fn how_devices_are_cut_reaches_the_server_with_the_change() {
    let mut agent = Agent::enrolled().await;
    let settings = laid_out(&agent, "mixed");
    let machine = agent.simulate("dgx-a100", "");
    let library = library().display().to_string();
    // Nobody would wait for the next reading.
    agent.configure(&format!(
        "inventory_seconds = 600\nnvml_library = '{library}'\nmig_capability = '{}'\n{settings}",
        machine.display()
    ));
    agent.launch();
    let told = agent
        .server
        .wait("the layout", |inner| {
            let told = inner.inventories.last()?;
            let mig = told.devices.first()?.mig.as_ref()?;
            (mig.instances.len() == 3).then(|| told.clone())
        })
        .await;
    assert!(told.mig_static);
    assert!(told.devices[1].mig.is_none());
}
