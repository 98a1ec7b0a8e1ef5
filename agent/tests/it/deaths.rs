//! Agents and supervisors that die between any two steps of a job's start or end.

use std::fs;
use std::path::PathBuf;

use agent::points::{Point, VARIABLE};
use protocol::wire;

use crate::remains::Remains;
use crate::rig::{Agent, content, eventually, script, stopped, until};

/// An agent that dies at a point, with a job on a part of a device for it to die of.
struct Doomed {
    agent: Agent,
    remains: Remains,
    count: PathBuf,
    job: wire::Assignment,
    what: String,
}

impl Doomed {
    async fn start(point: Point) -> Self {
        let mut agent = Agent::enrolled().await;
        let (remains, settings) = Remains::before(&agent);
        let machine = agent.simulate("dgx-a100", &settings);
        let text = fs::read(machine).expect("a machine");
        let machine: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let uuid = machine["devices"][0]["uuid"].as_str().expect("a device");
        let count = agent.open_folder().join("count");
        let stops = point == Point::StopAsked;
        let mut job = script(&format!(
            "echo x >> {}; {}",
            count.display(),
            if stops { "sleep 1000" } else { "true" }
        ));
        job.devices = vec![wire::DeviceShare {
            uuid: uuid.to_owned(),
            mode: "mig".to_owned(),
            gpus_milli: 500,
            mig: Some(wire::MigSlice {
                profile: "3g.40gb".to_owned(),
                start: 4,
                size: 4,
            }),
            ..wire::DeviceShare::default()
        }];
        let what = format!("{point:?}");
        agent.environment.push((VARIABLE.to_owned(), what.clone()));
        agent.start().await;
        agent.server.desire(std::slice::from_ref(&job)).await;
        if stops {
            content(&count).await;
            agent.server.desire(&[stopped(&job, 0)]).await;
        }
        Self {
            agent,
            remains,
            count,
            job,
            what,
        }
    }

    /// Sees that it is over, was run once at most, and has left nothing.
    async fn ends_clean(&self) -> String {
        self.agent.server.released(&self.job.id).await;
        let ran = fs::read_to_string(&self.count).unwrap_or_default();
        assert!(ran.len() <= "x\n".len(), "{}: it ran twice", self.what);
        until("nothing is left", || {
            self.remains.now(&self.agent).is_empty()
        })
        .await;
        let cuts = fs::read_to_string(self.agent.state().join("identity/instances.json"));
        let cuts = cuts.unwrap_or_default();
        assert!(!cuts.contains("3g.40gb"), "{}: {cuts}", self.what);
        ran
    }
}

async fn dies(points: &[Point]) {
    for point in points {
        let mut doomed = Doomed::start(*point).await;
        eventually(&doomed.what, || doomed.agent.ended()).await;
        doomed
            .agent
            .environment
            .retain(|(name, _)| name != VARIABLE);
        // What ends a job is not told twice: the server goes on wanting what it wanted.
        doomed.agent.start().await;
        let ran = doomed.ends_clean().await;
        assert_eq!(ran, "x\n", "{}: it ran", doomed.what);
        let story = doomed.agent.server.story(&doomed.job.id);
        let once = |what: &str| story.iter().filter(|told| **told == what).count();
        assert_eq!(
            (once("exited"), once("released")),
            (1, 1),
            "{point:?} {story:?}"
        );
    }
}

#[tokio::test]
async fn an_agent_that_dies_before_a_job_is_accepted_takes_it_on_when_it_is_back() {
    dies(&Point::OF_AGENT[..6]).await;
}

#[tokio::test]
async fn an_agent_that_dies_while_a_job_starts_or_stops_finds_it_again() {
    dies(&Point::OF_AGENT[6..10]).await;
}

#[tokio::test]
async fn an_agent_that_dies_while_a_job_is_cleaned_away_goes_on_with_that() {
    dies(&Point::OF_AGENT[10..]).await;
}

#[tokio::test]
async fn a_supervisor_that_dies_at_any_step_leaves_nothing_and_its_job_is_told_of() {
    for point in Point::OF_SUPERVISOR {
        let doomed = Doomed::start(point).await;
        let ran = doomed.ends_clean().await;
        let exited = doomed.agent.server.exited(&doomed.job.id).await;
        if point == Point::EndWritten {
            assert_eq!(exited.code, Some(0));
        } else {
            assert_eq!(exited.reason, "node_lost", "{point:?}");
        }
        let began = !matches!(point, Point::RunClaimed | Point::GroupMade);
        assert!(began || ran.is_empty(), "{point:?}");
    }
}
