//! A random day: the live world is exported before each plan, and the engine makes of the export the plan that was
//! committed. The leader keeps its world from plan to plan: what it decides is what a fresh world decides.

mod day;
mod decided;

use engine::plan::Plan;
use engine::world::{WorkloadState, World};
use server::app::planning;
use server::scheduler::{Cycle, Turn, translate};
use sqlx::PgPool;

use day::Day;
use decided::{Decided, Mark};

/// Changes of the day.
const CHANGES: usize = 2_000;
/// Changes between two plans: the world moves on, and the day is replayed within a minute.
const CHANGES_PER_PLAN: usize = 5;
/// Turns in a row that settle what needs no plan: a chain of jobs that follow one another is short.
const SETTLED_MAX: usize = 20;
const SEED: u64 = 20_261_201;

#[sqlx::test(migrations = "../migrations")]
async fn the_exports_of_a_random_day_give_the_plans_that_were_made(owner: PgPool) {
    let mut day = Day::begin(owner, SEED).await;
    let mut leader = day.fleet.lead().await;
    for number in 0..CHANGES {
        day.change().await;
        if number % CHANGES_PER_PLAN == 0 {
            day.plan(&mut leader, number).await;
        }
    }
    let hours = (day.clock.now().await - day.begun).num_hours();
    assert!((20..=28).contains(&hours), "a day: {hours} h");
    let met = day.met.iter().map(String::as_str).collect::<Vec<_>>();
    let all = [
        "a booking",
        "a choice of pools",
        "a dependency",
        "a window",
        "an element",
        "an instance",
        "growth",
        "leaving",
        "move",
        "nominated",
        "preemption",
        "shrink",
        "start",
    ];
    assert_eq!(met, all, "seed {SEED} meets all of it");
    let plans = CHANGES / CHANGES_PER_PLAN;
    let anew = usize::try_from(leader.worlds_taken_in()).expect("a small number");
    assert!(
        2 * anew < plans,
        "{anew} of {plans} plans are of fresh worlds"
    );
}

impl Day {
    /// Exports the world, lets the leader plan, and makes the same plan of the export.
    async fn plan(&mut self, leader: &mut Cycle, number: usize) {
        // A turn that finds nothing new does not plan.
        self.sql("UPDATE pools SET version = version + 1").await;
        let mut settled = 0;
        let (export, before) = loop {
            let export = planning::scenario(&self.fleet.app, &self.fleet.root())
                .await
                .expect("an export");
            let before = Mark::now(&self.fleet).await;
            match leader.turn().await.expect("a turn") {
                Turn::Done => break (export, before),
                // The plan is of what is so then.
                Turn::Settled if settled < SETTLED_MAX => settled += 1,
                turn => panic!("change {number} of seed {SEED}: {turn:?}"),
            }
        };
        let world = engine::scenario::parse(&export).unwrap_or_else(|error| {
            panic!("change {number} of seed {SEED}: {error}: {export}");
        });
        let plan = engine::plan(&world);
        let done = before.since(&self.fleet, &plan).await;
        assert_eq!(
            Decided::of(&plan, &done),
            done,
            "change {number} of seed {SEED}: {export}"
        );
        self.note(&world, &plan);
    }

    fn note(&mut self, world: &World, plan: &Plan) {
        let vision = world.teams.iter().find(|team| team.name == "vision");
        let quota = vision.and_then(|team| team.quotas.get("h100"));
        let works =
            |wanted: &dyn Fn(&engine::world::Workload) -> bool| world.workloads.iter().any(wanted);
        let shrinks = |p: &engine::plan::Preemption| p.to_workers > 0;
        let met = [
            ("a booking", !world.bookings.is_empty()),
            ("a choice of pools", works(&|work| work.pools.len() != 1)),
            ("a dependency", works(&|work| !work.after.is_empty())),
            (
                "an element",
                works(&|work| translate::job_id(&work.name).is_some_and(|id| id.index().is_some())),
            ),
            (
                "an instance",
                plan.starts
                    .iter()
                    .flat_map(|start| &start.placement)
                    .any(|place| place.devices.iter().any(|device| device.mig.is_some())),
            ),
            ("a window", quota.is_some_and(|quota| quota.limit.is_some())),
            (
                "leaving",
                works(&|work| work.state == WorkloadState::Leaving),
            ),
            ("nominated", works(&|work| work.nominated.is_some())),
            ("start", !plan.starts.is_empty()),
            ("growth", !plan.resizes.is_empty()),
            ("preemption", plan.preemptions.iter().any(|p| !shrinks(p))),
            ("shrink", plan.preemptions.iter().any(shrinks)),
            ("move", !plan.migrations.is_empty()),
        ];
        let met = met.into_iter().filter(|(_, met)| *met);
        self.met.extend(met.map(|(what, _)| what.to_owned()));
    }
}
