//! Many starts and ends in a row, in all the ways that there are, leave nothing behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use protocol::wire;
use serde_json::Value;

use crate::remains::Remains;
use crate::rig::{AGENT, Agent, assignment, eventually, is_root, script, stopped, until};

/// Starts when nobody says how many: some dozens of seconds of a machine with two cores.
const STARTS: usize = 210;
/// Says how many.
const VARIABLE: &str = "ALLOTMENT_STARTS";
/// Jobs that are there at once: one of each kind.
const KINDS: usize = 7;
/// A user of whom nothing but these jobs runs, so that what they leave is wiped.
const LONE_UID: u32 = 251_300;
/// Descriptors that an agent may have more after many jobs than after some: a connection or two to a
/// server that takes them anew.
const DESCRIPTORS_MORE_MAX: usize = 4;

/// One job of each kind, on a device each, and how it ends.
fn jobs(uuids: &[String], litter: &str) -> [(wire::Assignment, End); KINDS] {
    let share = |at: usize, mode: &str, gpus_milli| wire::DeviceShare {
        uuid: uuids[at].clone(),
        mode: mode.to_owned(),
        gpus_milli,
        ..wire::DeviceShare::default()
    };
    let on = |share: wire::DeviceShare, job: wire::Assignment| wire::Assignment {
        devices: vec![share],
        uid: LONE_UID,
        ..job
    };
    let slice = |start, size, profile: &str| wire::DeviceShare {
        mig: Some(wire::MigSlice {
            profile: profile.to_owned(),
            start,
            size,
        }),
        ..share(1, "mig", 125 * i64::from(size))
    };
    let litters = format!(
        "for at in /tmp /var/tmp /dev/shm; do echo x > $at/{litter}; done; setsid sleep 1000 &"
    );
    [
        (
            on(share(0, "exclusive", 1000), script(&litters)),
            End::ByItself,
        ),
        (on(slice(0, 1, "1g.10gb"), script("exit 3")), End::ByItself),
        (
            on(slice(4, 4, "3g.40gb"), script("sleep 1000")),
            End::Asked(60_000),
        ),
        (on(share(2, "mps", 500), script(&litters)), End::ByItself),
        (
            on(
                share(2, "mps", 250),
                script("trap '' TERM; sleep 1000 & wait; wait"),
            ),
            End::Asked(0),
        ),
        (
            on(share(3, "time_slice", 250), script("sleep 1000")),
            End::Asked(60_000),
        ),
        (assignment(&["no-such-program"]), End::Refused),
    ]
}

#[derive(Debug, Clone, Copy)]
enum End {
    ByItself,
    /// It is stopped with so much grace.
    Asked(i64),
    Refused,
}

#[tokio::test]
async fn many_starts_and_ends_leave_nothing_behind() {
    let starts = std::env::var(VARIABLE).map_or(STARTS, |text| text.parse().expect("a number"));
    let mut agent = Agent::enrolled().await;
    let (remains, settings) = Remains::before(&agent);
    let control = Path::new(AGENT).with_file_name("nvml-sim-mps-control");
    let machine = agent.simulate(
        "dgx-a100",
        &format!("{settings}\nmps_control = '{}'", control.display()),
    );
    agent.start().await;
    let text = fs::read(machine).expect("a machine");
    let machine: Value = serde_json::from_slice(&text).expect("JSON");
    let devices = machine["devices"].as_array().expect("a list").iter();
    let uuids: Vec<String> = devices
        .map(|device| device["uuid"].as_str().expect("a UUID").to_owned())
        .collect();

    let name = agent.folder.path().file_name().expect("a name");
    let litter = format!("litter-{}", name.to_string_lossy());
    let rounds = starts.div_ceil(KINDS);
    let mut descriptors = None;
    for round in 0..rounds {
        round_of(&agent, &remains, jobs(&uuids, &litter)).await;
        until("nothing is left", || remains.now(&agent).is_empty()).await;
        if round == 0 {
            descriptors = Some(open_descriptors(&agent));
        }
    }
    let before = descriptors.expect("a round");
    let now = open_descriptors(&agent);
    assert!(
        now <= before + DESCRIPTORS_MORE_MAX,
        "{before} descriptors became {now}"
    );
    let cuts = fs::read_to_string(agent.state().join("identity/instances.json"));
    assert!(
        !cuts.unwrap_or_default().contains("gb"),
        "an instance is left"
    );
    if is_root() {
        // A job by MPS has the machine's shared memory, and a team leaves nothing there.
        assert!(!Path::new("/dev/shm").join(&litter).exists());
    }
    // Those of other tests come and go: what is there at each of many looks would be ours.
    let mut left = remains.spaces_left();
    eventually("no namespace is left", || {
        left = &left & &remains.spaces_left();
        left.is_empty().then_some(())
    })
    .await;
    // Logs stay, for their time.
    let ran = rounds * KINDS;
    eprintln!("{ran} starts and ends in {rounds} rounds, {now} descriptors");
}

/// Runs one job of each kind to its end, all at once.
async fn round_of(agent: &Agent, remains: &Remains, jobs: [(wire::Assignment, End); KINDS]) {
    let server = &agent.server;
    let mut wanted: Vec<wire::Assignment> = jobs.iter().map(|(job, _)| job.clone()).collect();
    server.desire(&wanted).await;
    for (job, end) in &jobs {
        match end {
            End::ByItself => drop(server.exited(&job.id).await),
            End::Refused => drop(server.refused(&job.id).await),
            End::Asked(grace_ms) => {
                server.started(&job.id).await;
                // What would be left is seen.
                let there = remains.now(agent).join("\n");
                let seen = ["/runs/", "/jobs/", "/sys/fs/cgroup/", "supervise"];
                let unseen = seen.iter().filter(|kind| !there.contains(**kind));
                assert_eq!(unseen.count(), 0, "{there}");
                let told = wanted.iter_mut().find(|wanted| wanted.id == job.id);
                *told.expect("it is wanted") = stopped(job, *grace_ms);
                server.desire(&wanted).await;
            }
        }
    }
    let ids: BTreeSet<&str> = jobs.iter().map(|(job, _)| job.id.as_str()).collect();
    for id in ids {
        server.released(id).await;
    }
}

fn open_descriptors(agent: &Agent) -> usize {
    let list = fs::read_dir(format!("/proc/{}/fd", agent.pid()));
    list.expect("it runs").count()
}
