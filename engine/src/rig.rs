//! A rig for tests of the engine: worlds in a few words, what becomes of them, and whether they come to rest.

use chrono::TimeDelta;
use domain::sharing::SharingMode;
use domain::{MilliGpu, Timestamp};

use crate::check::violations;
use crate::cycle::plan;
use crate::plan::{DevicePlace, Plan};
use crate::world::{
    Class, MigInstance, Node, Placed, PlacedDevice, Pool, PreemptionPolicy, Quota, Team,
    WithinTeam, Workload, WorkloadState, World,
};
use crate::{cycles, mig};

/// The moment at which every rigged world is.
pub fn noon() -> Timestamp {
    Timestamp::from_timestamp(1_767_614_400, 0).expect("a time in 2026")
}

/// So many minutes before noon.
pub fn before(minutes: i64) -> Timestamp {
    noon() - TimeDelta::minutes(minutes)
}

/// A policy under which everybody may be displaced at once, by rule.
pub fn eager() -> PreemptionPolicy {
    PreemptionPolicy {
        within_team: WithinTeam::LowerPriority,
        grace_seconds: 0,
        ..PreemptionPolicy::default()
    }
}

/// A world in the making: one pool `p`, classes `low`, `normal`, `high` and `fixed`.
#[derive(Debug, Clone)]
pub struct Rig {
    world: World,
}

impl Rig {
    /// A pool with an eager policy, and nothing in it.
    pub fn new() -> Self {
        let mut world = World::empty(noon());
        world.pools.push(Pool::new("p").preemption(eager()));
        world.classes = vec![
            Class::new("low", 0, true),
            Class::new("normal", 50, true),
            Class::new("high", 100, true),
            Class::new("fixed", 100, false),
        ];
        Self { world }
    }

    /// The same with another pool in place of `p`.
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Self {
        self.world.pools = vec![pool];
        self
    }

    /// The same with a node more.
    #[must_use]
    pub fn node(mut self, node: Node) -> Self {
        self.world.nodes.push(node);
        self
    }

    /// The same with so many nodes more, named n1, n2 and so on.
    #[must_use]
    pub fn nodes(mut self, count: usize, gpus: u32) -> Self {
        for _ in 0..count {
            let name = format!("n{}", self.world.nodes.len() + 1);
            self.world.nodes.push(Node::new(&name, "p", gpus));
        }
        self
    }

    /// The same with a team at the root, with a guarantee in `p`.
    #[must_use]
    pub fn team(self, name: &str, guaranteed: i64) -> Self {
        self.tenant(Team::new(name).quota("p", Quota::guaranteed(MilliGpu::whole(guaranteed))))
    }

    /// The same with a team as given.
    #[must_use]
    pub fn tenant(mut self, team: Team) -> Self {
        self.world.teams.push(team);
        self
    }

    /// The same with a workload more.
    #[must_use]
    pub fn work(mut self, work: Workload) -> Self {
        self.world.workloads.push(work);
        self
    }

    /// The same with waiting jobs of so many GPUs, `PREFIX0`, `PREFIX1` and so on, a second apart.
    #[must_use]
    pub fn jobs(mut self, prefix: &str, team: &str, count: usize, gpus: i64) -> Self {
        for i in 0..count {
            let submitted = before(60) + TimeDelta::seconds(i as i64);
            self.world.workloads.push(Workload::waiting(
                &format!("{prefix}{i:02}"),
                team,
                gpus,
                submitted,
            ));
        }
        self
    }

    /// The world as it is.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Changes the world where no builder does.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut World)) -> Self {
        change(&mut self.world);
        self
    }

    /// Plans one cycle, and demands that the checker finds nothing.
    pub fn plan(&self) -> Plan {
        checked(&self.world)
    }

    /// The names of what starts, in the order of the decisions.
    pub fn starts(&self) -> Vec<String> {
        self.plan().starts.into_iter().map(|s| s.workload).collect()
    }

    /// How many of a prefix start.
    pub fn count(&self, prefix: &str) -> usize {
        self.starts()
            .iter()
            .filter(|name| name.starts_with(prefix))
            .count()
    }

    /// Where a workload starts or is nominated, such as `n1:0,1 n2:0/3g.40gb@4`; empty when neither.
    pub fn place(&self, workload: &str) -> String {
        let plan = self.plan();
        let start = plan.start_of(workload).map(|s| &s.placement);
        let kept = plan.nomination_of(workload).map(|n| &n.placement);
        let workers = start.or(kept).into_iter().flatten().map(|worker| {
            let devices: Vec<String> = worker.devices.iter().map(spot).collect();
            format!("{}:{}", worker.node, devices.join(","))
        });
        workers.collect::<Vec<_>>().join(" ")
    }

    /// Runs so many cycles, checks each plan, and demands that the last one changes nothing.
    pub fn settles(&self, count: usize) -> Settled {
        let mut world = self.world.clone();
        let mut plans = Vec::new();
        for _ in 0..count {
            let made = checked(&world);
            let quiet = made.idle() && world.workloads.iter().all(|w| w.leaves_at.is_none());
            cycles::apply(&mut world, &made);
            cycles::advance(&mut world, None);
            plans.push(made);
            if quiet {
                return Settled { world, plans };
            }
        }
        let last: Vec<String> = plans.iter().rev().take(6).map(brief).collect();
        panic!(
            "the world does not come to rest within {count} cycles; the last first: {last:#?} of {}",
            crate::scenario::write(&self.world)
        );
    }
}

/// A device in the words of `Rig::place`.
fn spot(device: &DevicePlace) -> String {
    let slice = device.mig.as_ref().zip(device.start);
    let slice = slice.map_or(String::new(), |(profile, start)| {
        format!("/{profile}@{start}")
    });
    format!("{}{slice}", device.index)
}

/// A pool whose devices are given out whole and in parts of every kind.
pub fn shared() -> Pool {
    Pool::new("p").sharing(SharingMode::ALL)
}

/// The node with a device more in MIG mode, with instances such as `3g.40gb@0`.
pub fn cut(mut node: Node, device: u32, instances: &[&str]) -> Node {
    let listed = instances.iter().map(|text| {
        let (profile, start) = split(text);
        MigInstance {
            profile,
            start: Some(start),
        }
    });
    node.mig.insert(device, listed.collect());
    node
}

/// A waiting job that asks for instances of a profile.
pub fn slices(name: &str, team: &str, profile: &str, count: i64) -> Workload {
    let mut work = Workload::waiting(name, team, count, before(10));
    work.per_worker.mig_profile = Some(profile.to_owned());
    work.per_worker.sharing = vec![SharingMode::Mig];
    work
}

/// The job, running on instances of an H100, one for each worker.
pub fn running_on_slices(mut work: Workload, node: &str, held: &[(u32, &str)]) -> Workload {
    work.state = WorkloadState::Running;
    work.started = Some(before(60));
    work.workers = work.workers.max(held.len() as u32);
    let workers = held.iter().map(|(index, text)| {
        let (profile, start) = split(text);
        let milli = mig::profile("H100-80GB", &profile).map_or(0, mig::Profile::milli);
        work.per_worker.mig_profile = Some(profile.clone());
        let device = PlacedDevice {
            mode: SharingMode::Mig,
            gpus: MilliGpu::from_milli(milli),
            mig: Some(profile),
            start: Some(start),
            ..PlacedDevice::whole(*index)
        };
        Placed {
            node: node.to_owned(),
            devices: vec![device],
        }
    });
    work.placed = workers.collect();
    work
}

/// A profile and its start.
fn split(text: &str) -> (String, u32) {
    let (profile, start) = text.split_once('@').expect("an instance with its start");
    (
        profile.to_owned(),
        start.parse().expect("a number of a slice"),
    )
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

/// A plan in one line, for messages.
fn brief(plan: &Plan) -> String {
    let starts: Vec<&str> = plan.starts.iter().map(|s| s.workload.as_str()).collect();
    let victims: Vec<String> = plan
        .preemptions
        .iter()
        .map(|p| {
            format!(
                "{} to {} for {:?} by {:?}",
                p.workload, p.to_workers, p.gainer, p.reason
            )
        })
        .collect();
    let growth: Vec<&str> = plan.resizes.iter().map(|r| r.workload.as_str()).collect();
    format!("starts {starts:?}, grows {growth:?}, gives way {victims:?}")
}

/// A world at rest, and the plans that led there.
#[derive(Debug)]
pub struct Settled {
    /// The world in the end.
    pub world: World,
    /// The plans of all cycles.
    pub plans: Vec<Plan>,
}

impl Settled {
    /// How many of a prefix run in the end.
    pub fn running(&self, prefix: &str) -> usize {
        let runs = |w: &&Workload| w.state == WorkloadState::Running && w.name.starts_with(prefix);
        self.world.workloads.iter().filter(runs).count()
    }

    /// How many evictions there were.
    pub fn evictions(&self) -> usize {
        self.plans.iter().map(|p| p.preemptions.len()).sum()
    }
}

/// Plans, and demands that the checker finds nothing.
fn checked(world: &World) -> Plan {
    let made = plan(world);
    let found = violations(world, &made);
    assert!(
        found.is_empty(),
        "the checker finds {found:#?} in {made:#?} of {}",
        crate::scenario::write(world)
    );
    made
}
