//! A small fleet in a fresh database: two teams, two pools, nodes, and a node that plays along.

use std::collections::BTreeMap;

use domain::ids::{
    AssignmentId, AttemptId, DeviceId, JobId, NodeId, PoolId, RequestId, SessionId, TeamId, UserId,
};
use domain::role::{PlatformRole, TeamRole};
use domain::spec::JobSpec;
use protocol::report::{Exited, Fact, FactKind};
use serde_json::{Value, json};
use server::app::idempotency::Repeat;
use server::app::jobs::{self, Job};
use server::app::{App, AppError, Asker};
use server::lifecycle::{self, Actor, report::Outcome};
use server::scheduler::{self, Cycle};
use server::store::changes;
use sqlx::PgPool;

use super::machine::eventually;

/// The product over a fresh database with a fleet in it.
pub struct Fleet {
    pub app: App,
    pub owner: PgPool,
    pub vision: TeamId,
    pub speech: TeamId,
    pub pool: PoolId,
    users: BTreeMap<&'static str, UserId>,
}

/// Waits until the feed's horizon has passed everything so far.
pub async fn settled(app: &App, owner: &PgPool) {
    let newest = sqlx::query_scalar!(r#"SELECT max(xid)::text::bigint AS "xid!" FROM changes"#)
        .fetch_one(owner)
        .await
        .expect("something is in the feed");
    eventually("the feed has settled", async || {
        let mut tx = app.db.begin_system().await.expect("a transaction");
        let head = changes::head(&mut tx).await.expect("a position");
        tx.commit().await.expect("committed");
        head.xid > newest
    })
    .await;
}

/// Memory of each device.
pub const DEVICE_MIB: i64 = 81_559;

impl Fleet {
    /// Teams `vision` and `speech` under `org`, each guaranteed 4 GPUs of pool `h100`; no node yet.
    pub async fn new(owner: PgPool) -> Self {
        Self::with_policy(owner, json!({})).await
    }

    /// The same with keys of the pool's policy.
    pub async fn with_policy(owner: PgPool, policy: Value) -> Self {
        let app = super::fixture::app(&owner).await;
        let (org, vision, speech, pool) =
            (TeamId::new(), TeamId::new(), TeamId::new(), PoolId::new());
        for (id, name, parent) in [
            (org, "org", None),
            (vision, "vision", Some(org)),
            (speech, "speech", Some(org)),
        ] {
            sqlx::query!(
                "INSERT INTO teams (id, name, parent_id, hue) VALUES ($1, $2, $3, 1)",
                id as TeamId,
                name,
                parent as Option<TeamId>
            )
            .execute(&owner)
            .await
            .expect("a team");
        }
        sqlx::query!(
            "INSERT INTO pools (id, name, policy) VALUES ($1, 'h100', $2)",
            pool as PoolId,
            policy
        )
        .execute(&owner)
        .await
        .expect("a pool");
        for (name, priority, preemptible) in [
            ("normal", 0, true),
            ("urgent", 100, true),
            ("training-high", 100, false),
        ] {
            sqlx::query!(
                "INSERT INTO classes (name, priority, preemptible) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
                name,
                priority,
                preemptible
            )
            .execute(&owner)
            .await
            .expect("a class");
        }
        for team in [vision, speech] {
            sqlx::query!(
                "INSERT INTO quotas (team_id, pool_id, guaranteed_milli) VALUES ($1, $2, 4000)",
                team as TeamId,
                pool as PoolId
            )
            .execute(&owner)
            .await
            .expect("a quota");
        }
        let mut users = BTreeMap::new();
        for name in ["ada", "bob", "root"] {
            let id = UserId::new();
            sqlx::query!(
                "INSERT INTO users (id, name) VALUES ($1, $2)",
                id as UserId,
                name
            )
            .execute(&owner)
            .await
            .expect("a user");
            users.insert(name, id);
        }
        Self {
            app,
            owner,
            vision,
            speech,
            pool,
            users,
        }
    }

    /// Adds a ready node with so many devices.
    pub async fn node(&self, name: &str, gpus: i32) -> NodeId {
        add_node(&self.owner, "h100", name, gpus).await
    }

    fn asker(
        &self,
        name: &'static str,
        platform_role: Option<PlatformRole>,
        team: Option<TeamId>,
    ) -> Asker {
        Asker {
            user_id: self.users[name],
            name: name.parse().expect("a name"),
            platform_role,
            teams: team
                .map(|team| (team, TeamRole::Member))
                .into_iter()
                .collect(),
            ancestors: Vec::new(),
            session_id: SessionId::new(),
            request_id: RequestId::new(),
        }
    }

    /// A member of vision.
    pub fn ada(&self) -> Asker {
        self.asker("ada", None, Some(self.vision))
    }

    /// A member of speech.
    pub fn bob(&self) -> Asker {
        self.asker("bob", None, Some(self.speech))
    }

    /// An administrator.
    pub fn root(&self) -> Asker {
        self.asker("root", Some(PlatformRole::Admin), None)
    }

    /// Submits a job of so many whole GPUs for vision.
    pub async fn submit(&self, gpus: u32) -> Job {
        self.submit_spec(
            json!({ "name": "j", "command": ["true"], "per_worker": { "gpus": gpus } }),
        )
        .await
        .expect("accepted")
    }

    /// Submits a spec for vision.
    pub async fn submit_spec(&self, spec: Value) -> Result<Job, AppError> {
        self.submit_as(&self.ada(), "vision", spec).await
    }

    /// Submits a spec for a team.
    pub async fn submit_as(&self, asker: &Asker, team: &str, spec: Value) -> Result<Job, AppError> {
        let spec: JobSpec = serde_json::from_value(spec).expect("a spec that can be read");
        let team = team.parse().expect("a name");
        jobs::submit(&self.app, asker, Repeat::none(), &team, spec)
            .await
            .map(|answer| answer.value)
    }

    /// Writes a job's row and nothing else.
    pub async fn submit_row(&self) -> JobId {
        let id = JobId::new();
        sqlx::query!(
            r#"INSERT INTO jobs (id, team_id, user_id, name, kind, class, spec)
               VALUES ($1, $2, $3, 'j', 'batch', 'urgent', '{"name": "j", "command": ["true"]}')"#,
            id as JobId,
            self.vision as TeamId,
            self.users["ada"] as UserId
        )
        .execute(&self.owner)
        .await
        .expect("a job");
        id
    }

    /// The job as it is now.
    pub async fn job(&self, id: JobId) -> Job {
        jobs::get(&self.app, &self.root(), id)
            .await
            .expect("it is there")
    }

    /// Waits until the feed's horizon has passed everything so far. Transactions of other tests'
    /// databases on the same server hold it back as well.
    pub async fn settled(&self) {
        settled(&self.app, &self.owner).await;
    }

    /// A job that was granted the one GPU of the one node, and cancelled before that had heard of it.
    pub async fn cancelled_on_its_way(&self) -> JobId {
        self.node("n1", 1).await;
        let job = self.submit(1).await.id;
        self.turn().await;
        self.cancel(job).await;
        job
    }

    /// Takes the lead.
    pub async fn lead(&self) -> Cycle {
        lead(&self.app).await
    }

    /// One turn by a leader that has just taken over.
    pub async fn turn(&self) {
        turn(&self.app).await;
    }

    /// The live workers of a job, by rank.
    pub async fn workers(&self, job: JobId) -> Vec<(AssignmentId, AttemptId, NodeId)> {
        sqlx::query!(
            r#"SELECT id AS "id: AssignmentId", attempt_id AS "attempt: AttemptId", node_id AS "node: NodeId"
               FROM assignments WHERE job_id = $1 AND phase NOT IN ('released', 'fenced') ORDER BY worker"#,
            job as JobId
        )
        .fetch_all(&self.owner)
        .await
        .expect("workers")
        .into_iter()
        .map(|row| (row.id, row.attempt, row.node))
        .collect()
    }

    /// Every worker of a job reports these, one after the other.
    pub async fn report(&self, job: JobId, kinds: &[FactKind]) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for worker in self.workers(job).await {
            for kind in kinds {
                outcomes.push(self.report_one(worker, kind).await);
            }
        }
        outcomes
    }

    /// One worker reports.
    pub async fn report_one(
        &self,
        (assignment, attempt, node): (AssignmentId, AttemptId, NodeId),
        kind: &FactKind,
    ) -> Outcome {
        let fact = Fact {
            number: 1,
            assignment,
            attempt,
            at_micros: 0,
            kept_micros: 0,
            kind: kind.clone(),
        };
        let mut tx = self.app.db.begin_system().await.expect("a transaction");
        let actor = Actor::Agent("n1".to_owned());
        let outcome =
            lifecycle::report::apply(&mut tx, &self.app.config.timers, node, &actor, &fact)
                .await
                .expect("a fact is applied");
        tx.commit().await.expect("committed");
        outcome
    }

    /// A job that runs on so many GPUs of one node.
    pub async fn running(&self, gpus: u32) -> JobId {
        let job = self.submit(gpus).await.id;
        self.turn().await;
        self.run(job).await;
        job
    }

    /// Its owner cancels a job.
    pub async fn cancel(&self, job: JobId) {
        jobs::cancel(&self.app, &self.ada(), Repeat::none(), job)
            .await
            .expect("cancelled");
    }

    /// The job's workers are accepted and started.
    pub async fn run(&self, job: JobId) {
        self.report(
            job,
            &[
                FactKind::Accepted,
                FactKind::Started {
                    pid: 7,
                    image_digest: None,
                },
            ],
        )
        .await;
    }

    /// The job's workers exit with a code and are gone.
    pub async fn exit(&self, job: JobId, code: i32) {
        self.report(job, &[exited(code), FactKind::Released]).await;
    }

    /// How many live shares each device has, the most of any.
    pub async fn most_holders(&self) -> i64 {
        sqlx::query_scalar!(
            r#"SELECT COALESCE(max(n), 0) AS "most!" FROM (
                   SELECT count(*) AS n FROM assignment_devices WHERE live GROUP BY device_id) AS held"#
        )
        .fetch_one(&self.owner)
        .await
        .expect("a number")
    }
}

/// A process that ended with a code by itself.
pub fn exited(code: i32) -> FactKind {
    FactKind::Exited(Exited {
        code: Some(code),
        signal: None,
        out_of_memory: false,
        asked: false,
        lost: None,
        message: String::new(),
    })
}

/// A process that was told to end, and did.
pub fn told_to_end() -> FactKind {
    FactKind::Exited(Exited {
        code: None,
        signal: Some(15),
        out_of_memory: false,
        asked: true,
        lost: None,
        message: String::new(),
    })
}

/// Takes the lead.
pub async fn lead(app: &App) -> Cycle {
    let epoch = scheduler::take_over(app)
        .await
        .expect("the epoch is raised");
    Cycle::begin(app.clone(), epoch)
        .await
        .expect("the world is loaded")
}

/// One turn by a leader that has just taken over.
pub async fn turn(app: &App) {
    lead(app).await.turn().await.expect("a turn");
}

/// Adds a ready node with so many devices to a pool.
pub async fn add_node(owner: &PgPool, pool: &str, name: &str, gpus: i32) -> NodeId {
    let id = NodeId::new();
    sqlx::query!(
        "INSERT INTO nodes (id, name, pool_id, reachability, cpus_milli, memory_mib, sharing, runners)
         SELECT $1, $2, id, 'ready', 96000, 1048576, '{exclusive,time_slice}', '{process}' FROM pools WHERE name = $3",
        id as NodeId,
        name,
        pool
    )
    .execute(owner)
    .await
    .expect("a node");
    for index in 0..gpus {
        sqlx::query!(
            "INSERT INTO devices (id, node_id, uuid, index, product_name, model, memory_mib)
             VALUES ($1, $2, $3, $4, 'NVIDIA H100 80GB HBM3', 'H100-80GB', $5)",
            DeviceId::new() as DeviceId,
            id as NodeId,
            format!("GPU-{name}-{index}"),
            index,
            DEVICE_MIB
        )
        .execute(owner)
        .await
        .expect("a device");
    }
    id
}
