//! A random day: the live world is exported before each plan, and the engine makes of the export the plan that was
//! committed. The leader keeps its world from plan to plan: what it decides is what a fresh world decides.

use std::collections::{BTreeMap, BTreeSet};

use domain::ids::{AssignmentId, JobId, TeamId};
use domain::state::JobState;
use engine::plan::{Plan, Reason, WorkerPlace};
use engine::world::{WorkloadState, World};
use protocol::report::FactKind;
use serde_json::{Value, json};
use server::app::idempotency::Repeat;
use server::app::{jobs, planning};
use server::scheduler::{Cycle, Turn, translate};
use sqlx::PgPool;

use super::fleet::{Fleet, told_to_end};
use super::simulated::{Clock, Dice};

/// Changes of the day.
const CHANGES: usize = 2_000;
/// Changes between two plans: the world moves on, and the day is replayed within a minute.
const CHANGES_PER_PLAN: usize = 5;
/// Jobs that have not ended, at most: more would only wait.
const LIVE_MAX: usize = 14;
/// Longest time between two changes, so that the day has 24 hours.
const PAUSE_MS_MAX: usize = 86_400;
const SEED: u64 = 20_261_201;

#[sqlx::test(migrations = "../migrations")]
async fn the_exports_of_a_random_day_give_the_plans_that_were_made(owner: PgPool) {
    let mut day = Day::begin(owner).await;
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
        "a window",
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

struct Day {
    fleet: Fleet,
    clock: Clock,
    begun: domain::Timestamp,
    dice: Dice,
    met: BTreeSet<String>,
    bookings: usize,
}

/// A job that has not ended, and how many of its workers are told to do what.
struct Live {
    id: JobId,
    state: JobState,
    granted: i64,
    stopping: i64,
    unreachable: bool,
}

impl Day {
    async fn begin(owner: PgPool) -> Self {
        let clock = Clock::at(&owner, "2026-10-05T00:00:00Z").await;
        let policy = json!({
            "sharing": ["exclusive", "time_slice"], "backfill": "conservative",
            "preemption": {
                "within_team": "lower_priority", "across_borrowers": true, "consolidate": true,
                "min_runtime_seconds": 120, "max_per_day": 4, "max_per_team_hour": 6,
            },
        });
        let fleet = Fleet::with_policy(owner.clone(), policy).await;
        for (name, gpus) in [("n1", 4), ("n2", 4), ("n3", 2)] {
            fleet.node(name, gpus).await;
        }
        let day = Self {
            begun: clock.now().await,
            fleet,
            clock,
            dice: Dice(SEED),
            met: BTreeSet::new(),
            bookings: 0,
        };
        // Jobs whose checkpoints lie on one node are tried there first, which no file says.
        day.sql("UPDATE nodes SET checkpoints_shared = true, version = version + 1")
            .await;
        day.sql(&format!(
            "WITH made AS (
                 INSERT INTO windows (id, pool_id, name, days, starts_minute, ends_minute, time_zone)
                 SELECT gen_random_uuid(), id, 'noon', '{{mon}}', 600, 840, 'UTC' FROM pools RETURNING id)
             INSERT INTO window_quotas (window_id, team_id, guaranteed_milli, limit_milli, weight_milli)
             SELECT id, '{}'::uuid, 1000, 3000, 1000 FROM made",
            day.fleet.vision
        ))
        .await;
        day
    }

    async fn sql(&self, statement: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))
            .execute(&self.fleet.owner)
            .await
            .expect("the statement is good");
    }

    async fn live(&self) -> Vec<Live> {
        sqlx::query_as!(
            Live,
            r#"SELECT j.id AS "id: JobId", j.state AS "state: JobState",
                      count(*) FILTER (WHERE a.phase = 'granted') AS "granted!",
                      count(*) FILTER (WHERE a.phase = 'stopping') AS "stopping!",
                      COALESCE(bool_or(n.reachability <> 'ready'), false) AS "unreachable!"
               FROM jobs AS j
               LEFT JOIN assignments AS a ON a.job_id = j.id AND a.phase NOT IN ('released', 'fenced')
               LEFT JOIN nodes AS n ON n.id = a.node_id
               WHERE j.state NOT IN ('succeeded', 'failed', 'cancelled')
               GROUP BY j.id
               ORDER BY j.id"#
        )
        .fetch_all(&self.fleet.owner)
        .await
        .expect("jobs")
    }

    /// One thing that happens, and some time that passes.
    async fn change(&mut self) {
        let live = self.live().await;
        match self.dice.roll(20) {
            0..=5 if live.len() < LIVE_MAX => self.submit().await,
            0..=8 => {
                if let Some(id) = self.one_of(&live, |job| job.granted > 0) {
                    self.fleet.run(id).await;
                }
            }
            9..=11 => {
                if let Some(id) = self.one_of(&live, |job| job.state == JobState::Running) {
                    let code = i32::from(self.dice.roll(5) == 0);
                    self.fleet.exit(id, code).await;
                }
            }
            12..=14 => {
                if let Some(id) = self.one_of(&live, |job| job.stopping > 0) {
                    self.leave(id).await;
                }
            }
            15 => self.steer(&live).await,
            16 => {
                let node = ["n1", "n2", "n3"][self.dice.roll(3)];
                let to = ["cordoned", "open", "draining", "open"][self.dice.roll(4)];
                self.sql(&format!(
                    "UPDATE nodes SET intent = '{to}', version = version + 1 WHERE name = '{node}' AND intent <> '{to}'"
                ))
                .await;
            }
            17 => {
                let node = ["n1", "n2", "n3"][self.dice.roll(3)];
                let to = ["unreachable", "ready", "ready"][self.dice.roll(3)];
                self.sql(&format!(
                    "UPDATE nodes SET reachability = '{to}', version = version + 1
                     WHERE name = '{node}' AND reachability <> '{to}'"
                ))
                .await;
            }
            18 => self.promise().await,
            _ => {}
        }
        let pause = 1 + self.dice.roll(PAUSE_MS_MAX);
        let pause = i64::try_from(pause).expect("a small number");
        self.clock.pass_ms(pause).await;
    }

    fn one_of(&mut self, live: &[Live], wanted: impl Fn(&Live) -> bool) -> Option<JobId> {
        let there = |job: &&Live| wanted(job) && !job.unreachable;
        let all: Vec<JobId> = live.iter().filter(there).map(|job| job.id).collect();
        (!all.is_empty()).then(|| all[self.dice.roll(all.len())])
    }

    async fn submit(&mut self) {
        let gpus = ["1", "2", "4", "0.25", "0.5", "0"][self.dice.roll(6)];
        let gpus: serde_json::Number = gpus.parse().expect("a number");
        let mode = if gpus.to_string().contains('.') {
            "time_slice"
        } else {
            "exclusive"
        };
        let class = ["normal", "urgent", "training-high"][self.dice.roll(3)];
        let mut spec = json!({
            "name": "j", "command": ["x"], "class": class,
            "per_worker": { "gpus": gpus, "cpus": 2, "memory_mib": 1024, "sharing": [mode] },
        });
        if self.dice.roll(3) == 0 {
            spec["workers"] = json!(4);
            spec["per_worker"]["gpus"] = json!(1);
            spec["per_worker"]["sharing"] = json!(["exclusive"]);
            if self.dice.roll(3) > 0 {
                spec["min_workers"] = json!(1);
            }
        }
        if self.dice.roll(2) == 0 {
            spec["time_limit_seconds"] = json!(600 + self.dice.roll(7_200));
        }
        if self.dice.roll(3) == 0 {
            spec["checkpoint_seconds"] = json!(300);
        }
        if self.dice.roll(8) == 0 {
            let later = self.clock.now().await + chrono::TimeDelta::minutes(20);
            spec["not_before"] = json!(later);
        }
        let team = ["vision", "speech"][self.dice.roll(2)];
        // What its quota or the fleet never admits is refused, which changes nothing.
        let _ = self.fleet.submit_as(&self.fleet.root(), team, spec).await;
    }

    /// The workers of a job that were told to stop are gone.
    async fn leave(&self, job: JobId) {
        let stopping: Vec<AssignmentId> = sqlx::query_scalar!(
            r#"SELECT id AS "id: AssignmentId" FROM assignments WHERE job_id = $1 AND phase = 'stopping'"#,
            job as JobId
        )
        .fetch_all(&self.fleet.owner)
        .await
        .expect("workers");
        for worker in self.fleet.workers(job).await {
            if stopping.contains(&worker.0) {
                self.fleet.report_one(worker, &told_to_end()).await;
                self.fleet.report_one(worker, &FactKind::Released).await;
            }
        }
    }

    /// Somebody cancels, suspends or resumes a job.
    async fn steer(&mut self, live: &[Live]) {
        let Some(id) = self.one_of(live, |_| true) else {
            return;
        };
        let (app, root) = (&self.fleet.app, self.fleet.root());
        let _ = match self.dice.roll(3) {
            0 => jobs::cancel(app, &root, Repeat::none(), id).await,
            1 => jobs::suspend(app, &root, Repeat::none(), id).await,
            _ => jobs::resume(app, &root, Repeat::none(), id).await,
        };
    }

    /// A quota changes, capacity is booked, or a device fails or is mended.
    async fn promise(&mut self) {
        match self.dice.roll(3) {
            0 => {
                let (team, milli) = (
                    ["vision", "speech"][self.dice.roll(2)],
                    1_000 * self.dice.roll(6),
                );
                self.sql(&format!(
                    "UPDATE quotas SET guaranteed_milli = {milli}, version = version + 1
                     WHERE team_id = (SELECT id FROM teams WHERE name = '{team}')"
                ))
                .await;
            }
            1 => {
                self.bookings += 1;
                let from = self.clock.now().await + chrono::TimeDelta::minutes(30);
                let to = from + chrono::TimeDelta::minutes(60);
                sqlx::query!(
                    "INSERT INTO bookings (id, pool_id, name, team_id, gpus_milli, starts_at, ends_at)
                     SELECT gen_random_uuid(), id, $1, $2, 2000, $3, $4 FROM pools",
                    format!("b{}", self.bookings),
                    self.fleet.speech as TeamId,
                    from,
                    to,
                )
                .execute(&self.fleet.owner)
                .await
                .expect("a booking");
            }
            _ => {
                let index = self.dice.roll(4);
                self.sql(&format!(
                    "UPDATE devices SET health = CASE health WHEN 'healthy' THEN 'failed' ELSE 'healthy' END,
                                        version = version + 1
                     WHERE node_id = (SELECT id FROM nodes WHERE name = 'n1') AND index = {index}"
                ))
                .await;
            }
        }
    }

    /// Exports the world, lets the leader plan, and makes the same plan of the export.
    async fn plan(&mut self, leader: &mut Cycle, number: usize) {
        // A turn that finds nothing new does not plan.
        self.sql("UPDATE pools SET version = version + 1").await;
        let export = planning::scenario(&self.fleet.app, &self.fleet.root())
            .await
            .expect("an export");
        let before = Mark::now(&self.fleet).await;
        assert_eq!(
            leader.turn().await.expect("a turn"),
            Turn::Done,
            "change {number}"
        );
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

/// What a plan decided, or what was committed of one; by job.
#[derive(Debug, PartialEq, Eq)]
struct Decided {
    /// Where it starts, by rank.
    starts: BTreeMap<String, Vec<String>>,
    /// Where it grows.
    grows: BTreeMap<String, Vec<String>>,
    /// How it gives way, with how many workers it goes on, and by which rule unless it is shrunk.
    gives_way: BTreeMap<String, (&'static str, i32, String)>,
    /// Room that is kept for what waits and for what moves.
    kept: BTreeMap<String, Value>,
    /// Why it waits.
    waits: BTreeMap<String, String>,
}

impl Decided {
    /// What a plan decided; of room and reasons those of the jobs that `done` has, since nothing is
    /// kept with what has yet to leave.
    fn of(plan: &Plan, done: &Self) -> Self {
        let mut gives_way: BTreeMap<String, (&'static str, i32, String)> = BTreeMap::new();
        for p in &plan.preemptions {
            let after = i32::try_from(p.to_workers).expect("a gang is small");
            let told = match p.reason {
                Reason::Shrink => ("shrink", after, String::new()),
                reason if after > 0 => ("shrink", after, reason.as_str().to_owned()),
                reason => ("preemption", 0, reason.as_str().to_owned()),
            };
            gives_way.insert(p.workload.clone(), told);
        }
        for m in &plan.migrations {
            let rule = m.gainer.as_ref().map_or("drain", |_| "consolidation");
            gives_way.insert(m.workload.clone(), ("move", 0, rule.to_owned()));
        }
        let nominated = plan.nominations.iter().map(|n| (&n.workload, &n.placement));
        let moved = plan.migrations.iter().map(|m| (&m.workload, &m.placement));
        Self {
            starts: plan
                .starts
                .iter()
                .map(|s| (s.workload.clone(), places(&s.placement)))
                .collect(),
            grows: plan
                .resizes
                .iter()
                .map(|r| (r.workload.clone(), places(&r.placement)))
                .collect(),
            gives_way,
            kept: nominated
                .chain(moved)
                .filter(|(job, _)| done.kept.contains_key(*job) || done.waits.contains_key(*job))
                .map(|(job, places)| (job.clone(), kept(places)))
                .collect(),
            waits: plan
                .waiting
                .iter()
                .filter(|w| done.waits.contains_key(&w.workload))
                .map(|w| (w.workload.clone(), w.code.as_str().to_owned()))
                .collect(),
        }
    }
}

fn kept(places: &[WorkerPlace]) -> Value {
    let mut written = translate::write_nomination(places, domain::Timestamp::UNIX_EPOCH);
    written["placement"].take()
}

fn places(placement: &[WorkerPlace]) -> Vec<String> {
    let told = placement.iter().map(|place| {
        let devices = place.devices.iter();
        let devices = devices.map(|d| format!(" {}:{}:{}", d.index, d.mode, d.gpus.milli()));
        format!("{}{}", place.node, devices.collect::<String>())
    });
    told.collect()
}

/// How far events and evictions had come before a turn.
struct Mark {
    event: i64,
    eviction: i64,
}

impl Mark {
    async fn now(fleet: &Fleet) -> Self {
        let row = sqlx::query!(
            r#"SELECT COALESCE((SELECT max(id) FROM events), 0) AS "event!",
                      COALESCE((SELECT max(id) FROM evictions), 0) AS "eviction!""#
        )
        .fetch_one(&fleet.owner)
        .await
        .expect("numbers");
        Self {
            event: row.event,
            eviction: row.eviction,
        }
    }

    /// What was committed since.
    async fn since(&self, fleet: &Fleet, plan: &Plan) -> Decided {
        let moved: Vec<JobId> = plan
            .migrations
            .iter()
            .filter_map(|m| translate::job_id(&m.workload))
            .collect();
        Decided {
            starts: self.placed(fleet, "starting").await,
            grows: self.placed(fleet, "grown").await,
            gives_way: self.gave_way(fleet).await,
            kept: sqlx::query!(
                r#"SELECT id::text AS "id!", nominated -> 'placement' AS "placement!" FROM jobs
                   WHERE nominated IS NOT NULL AND (state = 'queued' OR id = ANY ($1))"#,
                &moved as &[JobId]
            )
            .fetch_all(&fleet.owner)
            .await
            .expect("jobs")
            .into_iter()
            .map(|row| (row.id, row.placement))
            .collect(),
            waits: sqlx::query!(
                r#"SELECT id::text AS "id!", reason AS "reason!" FROM jobs
                   WHERE state = 'queued' AND waiting IS NOT NULL"#
            )
            .fetch_all(&fleet.owner)
            .await
            .expect("jobs")
            .into_iter()
            .map(|row| (row.id, row.reason))
            .collect(),
        }
    }

    /// Where workers were placed of jobs that took a step of this kind, in order of rank.
    async fn placed(&self, fleet: &Fleet, step: &str) -> BTreeMap<String, Vec<String>> {
        let rows = sqlx::query!(
            r#"SELECT a.job_id::text AS "job!", n.name AS node,
                      COALESCE(string_agg(' ' || d.index || ':' || s.mode || ':' || s.gpus_milli, '' ORDER BY d.index), '')
                          AS "devices!"
               FROM events AS e
               JOIN events AS w ON w.id > $1 AND w.subject = 'assignment' AND w.to_state = 'granted' AND w.job_id = e.job_id
               JOIN assignments AS a ON a.id = w.subject_id
               JOIN nodes AS n ON n.id = a.node_id
               LEFT JOIN assignment_devices AS s ON s.assignment_id = a.id
               LEFT JOIN devices AS d ON d.id = s.device_id
               WHERE e.id > $1 AND e.subject = 'job'
                 AND CASE $2 WHEN 'grown' THEN e.reason = 'grown' ELSE e.to_state = $2 AND e.from_state = 'queued' END
               GROUP BY a.job_id, a.worker, n.name
               ORDER BY a.job_id, a.worker"#,
            self.event,
            step,
        )
        .fetch_all(&fleet.owner)
        .await
        .expect("places");
        let mut placed: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for row in rows {
            let place = format!("{}{}", row.node, row.devices);
            placed.entry(row.job).or_default().push(place);
        }
        placed
    }

    async fn gave_way(&self, fleet: &Fleet) -> BTreeMap<String, (&'static str, i32, String)> {
        let rows = sqlx::query!(
            r#"SELECT job_id::text AS "job!", kind, workers_after, rule FROM evictions WHERE id > $1"#,
            self.eviction
        )
        .fetch_all(&fleet.owner)
        .await
        .expect("evictions");
        let told = |kind: &str, after: i32, rule: String| match kind {
            // A plan says of a guarantee or a priority that takes ranks only that it shrinks.
            "shrink" if matches!(rule.as_str(), "reclaim" | "priority") => {
                ("shrink", after, String::new())
            }
            "shrink" => ("shrink", after, rule),
            "move" => ("move", after, rule),
            _ => ("preemption", after, rule),
        };
        rows.into_iter()
            .map(|row| (row.job, told(&row.kind, row.workers_after, row.rule)))
            .collect()
    }
}
