//! The changes of a random day.

use std::collections::BTreeSet;

use domain::ids::{AssignmentId, JobId, TeamId};
use domain::state::JobState;
use protocol::report::FactKind;
use serde_json::{Value, json};
use server::app::idempotency::Repeat;
use server::app::jobs;
use sqlx::PgPool;

use crate::fleet::{Fleet, add_node, told_to_end};
use crate::simulated::{Clock, Dice};

/// Jobs that have not ended, at most: more would only wait.
const LIVE_MAX: usize = 18;
/// Longest time between two changes, so that the day has 24 hours.
const PAUSE_MS_MAX: usize = 86_400;
const NODES: [&str; 4] = ["n1", "n2", "n3", "m1"];

/// Two teams on two pools: one of whole devices and time slices, one of devices that are cut.
pub struct Day {
    pub fleet: Fleet,
    pub clock: Clock,
    pub begun: domain::Timestamp,
    /// What plans of the day have had.
    pub met: BTreeSet<String>,
    dice: Dice,
    bookings: usize,
}

/// A job that has not ended, and how many of its workers are told to do what.
struct Live {
    id: JobId,
    team: String,
    state: JobState,
    granted: i64,
    stopping: i64,
    unreachable: bool,
}

impl Day {
    pub async fn begin(owner: PgPool, seed: u64) -> Self {
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
        let cut = json!({
            "sharing": ["exclusive", "mig"], "mig_mode": "dynamic",
            "preemption": { "within_team": "lower_priority", "across_borrowers": true },
        });
        sqlx::query!(
            "INSERT INTO pools (id, name, policy) VALUES (gen_random_uuid(), 'a100', $1)",
            cut
        )
        .execute(&owner)
        .await
        .expect("a pool");
        add_node(&owner, "a100", "m1", 2).await;
        let day = Self {
            begun: clock.now().await,
            fleet,
            clock,
            dice: Dice(seed),
            met: BTreeSet::new(),
            bookings: 0,
        };
        // Jobs whose checkpoints lie on one node are tried there first, which no file says.
        day.sql(
            "UPDATE nodes SET checkpoints_shared = true, version = version + 1;
             UPDATE nodes SET sharing = '{exclusive,mig}' WHERE name = 'm1';
             UPDATE devices SET model = 'A100-80GB', product_name = 'NVIDIA A100-SXM4-80GB', version = version + 1
             WHERE node_id = (SELECT id FROM nodes WHERE name = 'm1');
             INSERT INTO quotas (team_id, pool_id, guaranteed_milli)
             SELECT t.id, p.id, 1000 FROM teams AS t, pools AS p
             WHERE t.name IN ('vision', 'speech') AND p.name = 'a100'",
        )
        .await;
        day.sql(&format!(
            "WITH made AS (
                 INSERT INTO windows (id, pool_id, name, days, starts_minute, ends_minute, time_zone)
                 SELECT gen_random_uuid(), id, 'noon', '{{mon}}', 600, 840, 'UTC' FROM pools
                 WHERE name = 'h100' RETURNING id)
             INSERT INTO window_quotas (window_id, team_id, guaranteed_milli, limit_milli, weight_milli)
             SELECT id, '{}'::uuid, 1000, 3000, 1000 FROM made",
            day.fleet.vision
        ))
        .await;
        day
    }

    pub async fn sql(&self, statement: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))
            .execute(&self.fleet.owner)
            .await
            .expect("the statement is good");
    }

    async fn live(&self) -> Vec<Live> {
        sqlx::query_as!(
            Live,
            r#"SELECT j.id AS "id: JobId", t.name AS team, j.state AS "state: JobState",
                      count(*) FILTER (WHERE a.phase = 'granted') AS "granted!",
                      count(*) FILTER (WHERE a.phase = 'stopping') AS "stopping!",
                      COALESCE(bool_or(n.reachability <> 'ready'), false) AS "unreachable!"
               FROM jobs AS j
               JOIN teams AS t ON t.id = j.team_id
               LEFT JOIN assignments AS a ON a.job_id = j.id AND a.phase NOT IN ('released', 'fenced')
               LEFT JOIN nodes AS n ON n.id = a.node_id
               WHERE j.state NOT IN ('succeeded', 'failed', 'cancelled')
               GROUP BY j.id, t.name
               ORDER BY j.id"#
        )
        .fetch_all(&self.fleet.owner)
        .await
        .expect("jobs")
    }

    /// One thing that happens, and some time that passes.
    pub async fn change(&mut self) {
        let live = self.live().await;
        match self.dice.roll(20) {
            0..=5 if live.len() < LIVE_MAX => self.submit(&live).await,
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
                let node = NODES[self.dice.roll(NODES.len())];
                let to = ["cordoned", "open", "draining", "open"][self.dice.roll(4)];
                self.sql(&format!(
                    "UPDATE nodes SET intent = '{to}', version = version + 1 WHERE name = '{node}' AND intent <> '{to}'"
                ))
                .await;
            }
            17 => {
                let node = NODES[self.dice.roll(NODES.len())];
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

    async fn submit(&mut self, live: &[Live]) {
        let class = ["normal", "urgent", "training-high"][self.dice.roll(3)];
        let team = ["vision", "speech"][self.dice.roll(2)];
        let mut spec = json!({
            "name": "j", "command": ["x"], "class": class, "per_worker": self.worker(),
        });
        // Without a pool it goes wherever it may.
        let pools = [json!([]), json!(["h100"]), json!(["a100"])];
        spec["pools"] = pools[self.dice.roll(3)].clone();
        if self.dice.roll(3) == 0 {
            spec["workers"] = json!(4);
            spec["per_worker"] = json!({ "gpus": 1, "cpus": 2, "memory_mib": 1024 });
            if self.dice.roll(3) > 0 {
                spec["min_workers"] = json!(1);
            }
        } else if self.dice.roll(8) == 0 {
            spec["array"] = json!({ "count": 3, "at_most": 2 });
        }
        let before: Vec<JobId> = live
            .iter()
            .filter(|job| job.team == team)
            .map(|job| job.id)
            .collect();
        if self.dice.roll(6) == 0 && !before.is_empty() {
            spec["after"] = json!([before[self.dice.roll(before.len())].to_string()]);
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
        // What its quota or the fleet never admits is refused, which changes nothing.
        let _ = self.fleet.submit_as(&self.fleet.root(), team, spec).await;
    }

    /// What a worker asks for: devices, a share of one, an instance, or none.
    fn worker(&mut self) -> Value {
        let (gpus, mode, profile) = [
            ("1", "exclusive", None),
            ("2", "exclusive", None),
            ("4", "exclusive", None),
            ("0", "exclusive", None),
            ("0.25", "time_slice", None),
            ("0.5", "time_slice", None),
            ("1", "mig", Some("1g.10gb")),
            ("1", "mig", Some("3g.40gb")),
        ][self.dice.roll(8)];
        let gpus: serde_json::Number = gpus.parse().expect("a number");
        json!({
            "gpus": gpus, "cpus": 2, "memory_mib": 1024, "sharing": [mode], "mig_profile": profile,
        })
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
        match self.dice.roll(4) {
            0 => {
                let (team, milli) = (
                    ["vision", "speech"][self.dice.roll(2)],
                    1_000 * self.dice.roll(6),
                );
                self.sql(&format!(
                    "UPDATE quotas SET guaranteed_milli = {milli}, version = version + 1
                     WHERE team_id = (SELECT id FROM teams WHERE name = '{team}')
                       AND pool_id = (SELECT id FROM pools WHERE name = 'h100')"
                ))
                .await;
            }
            1 => {
                self.bookings += 1;
                let from = self.clock.now().await + chrono::TimeDelta::minutes(30);
                let to = from + chrono::TimeDelta::minutes(60);
                sqlx::query!(
                    "INSERT INTO bookings (id, pool_id, name, team_id, gpus_milli, starts_at, ends_at)
                     SELECT gen_random_uuid(), id, $1, $2, 2000, $3, $4 FROM pools WHERE name = 'h100'",
                    format!("b{}", self.bookings),
                    self.fleet.speech as TeamId,
                    from,
                    to,
                )
                .execute(&self.fleet.owner)
                .await
                .expect("a booking");
            }
            2 => self.cut().await,
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

    /// The node that is cut reports its devices: the instances that work holds there, and no others.
    async fn cut(&self) {
        self.sql(
            "UPDATE devices AS d SET version = d.version + 1, mig = (
                 SELECT COALESCE(jsonb_agg(jsonb_build_object(
                     'profile', s.mig_profile, 'start', lower(s.slots), 'size', upper(s.slots) - lower(s.slots))), '[]')
                 FROM assignment_devices AS s WHERE s.device_id = d.id AND s.live AND s.mode = 'mig')
             WHERE d.model = 'A100-80GB'
               AND NOT EXISTS (SELECT FROM assignment_devices AS s
                               WHERE s.device_id = d.id AND s.live AND s.mode <> 'mig')",
        )
        .await;
    }
}
