//! Events: one row per transition of anything, the only source of timelines.

use domain::Timestamp;
use domain::ids::{AssignmentId, AttemptId, DeviceId, JobId, NodeId, TeamId};
use serde_json::Value;

use super::Tx;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A job.
    Job(JobId),
    /// One run of it.
    Attempt(AttemptId),
    /// One worker of that.
    Assignment(AssignmentId),
    /// A machine.
    Node(NodeId),
    /// A device.
    Device(DeviceId),
}

impl Subject {
    fn noun(self) -> &'static str {
        match self {
            Self::Job(_) => "job",
            Self::Attempt(_) => "attempt",
            Self::Assignment(_) => "assignment",
            Self::Node(_) => "node",
            Self::Device(_) => "device",
        }
    }

    /// Its id in hexadecimal digits, as the database reads it.
    fn id(self) -> String {
        hex::encode(match &self {
            Self::Job(id) => id.as_bytes(),
            Self::Attempt(id) => id.as_bytes(),
            Self::Assignment(id) => id.as_bytes(),
            Self::Node(id) => id.as_bytes(),
            Self::Device(id) => id.as_bytes(),
        })
    }
}

/// Who took a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actor {
    /// A person, by name.
    User(String),
    /// The scheduler.
    Scheduler,
    /// A node's agent, by the node's name.
    Agent(String),
    /// A reconciler: leases, time limits, start windows.
    System,
}

impl Actor {
    /// The word that is stored.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Scheduler => "scheduler",
            Self::Agent(_) => "agent",
            Self::System => "system",
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::User(name) | Self::Agent(name) => name,
            Self::Scheduler => "scheduler",
            Self::System => "allotment",
        }
    }
}

/// The key of an event's data that those alone see who run the platform: it names what runs on a machine.
pub const DETAIL: &str = "detail";

/// An event to be written.
#[derive(Debug, Clone)]
pub struct NewEvent<'a> {
    /// What changed.
    pub subject: Subject,
    /// The job that it belongs to, with its team; absent for a node's own.
    pub job: Option<(TeamId, JobId)>,
    /// The node that it happened on.
    pub node_id: Option<NodeId>,
    /// The state before; absent when it began to exist.
    pub from: Option<&'static str>,
    /// The state after.
    pub to: &'static str,
    /// Who did it.
    pub actor: &'a Actor,
    /// A stable word for why.
    pub reason: &'a str,
    /// What else is worth knowing.
    pub data: Value,
}

/// Writes an event at the database's present time.
pub async fn insert(tx: &mut Tx, event: &NewEvent<'_>) -> Result<(), sqlx::Error> {
    let (team_id, job_id) = event.job.unzip();
    sqlx::query!(
        "INSERT INTO events (team_id, subject, subject_id, job_id, node_id, from_state, to_state,
                             actor_kind, actor_name, reason, data)
         VALUES ($1, $2, $3::text::uuid, $4, $5, $6, $7, $8, $9, $10, $11)",
        team_id as Option<TeamId>,
        event.subject.noun(),
        event.subject.id(),
        job_id as Option<JobId>,
        event.node_id as Option<NodeId>,
        event.from,
        event.to,
        event.actor.kind(),
        event.actor.name(),
        event.reason,
        event.data,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Writes events at the database's present time, in their order.
pub async fn insert_all(tx: &mut Tx, events: &[NewEvent<'_>]) -> Result<(), sqlx::Error> {
    let mut all = Events::default();
    events.iter().for_each(|event| all.put(event));
    all.write(tx).await
}

/// Events that are written together.
#[derive(Debug, Default)]
pub struct Events {
    teams: Vec<Option<TeamId>>,
    nouns: Vec<String>,
    ids: Vec<String>,
    jobs: Vec<Option<JobId>>,
    nodes: Vec<Option<NodeId>>,
    from: Vec<Option<String>>,
    to: Vec<String>,
    actor_kinds: Vec<String>,
    actor_names: Vec<String>,
    reasons: Vec<String>,
    data: Vec<Value>,
}

impl Events {
    /// Puts one behind the others.
    pub fn put(&mut self, event: &NewEvent<'_>) {
        let (team_id, job_id) = event.job.unzip();
        self.teams.push(team_id);
        self.nouns.push(event.subject.noun().to_owned());
        self.ids.push(event.subject.id());
        self.jobs.push(job_id);
        self.nodes.push(event.node_id);
        self.from.push(event.from.map(str::to_owned));
        self.to.push(event.to.to_owned());
        self.actor_kinds.push(event.actor.kind().to_owned());
        self.actor_names.push(event.actor.name().to_owned());
        self.reasons.push(event.reason.to_owned());
        self.data.push(event.data.clone());
    }

    /// Writes them at the database's present time, in their order.
    pub async fn write(&self, tx: &mut Tx) -> Result<(), sqlx::Error> {
        if self.ids.is_empty() {
            return Ok(());
        }
        sqlx::query!(
            "INSERT INTO events (team_id, subject, subject_id, job_id, node_id, from_state, to_state,
                                 actor_kind, actor_name, reason, data)
             SELECT e.team_id, e.subject, e.subject_id::uuid, e.job_id, e.node_id, e.from_state, e.to_state,
                    e.actor_kind, e.actor_name, e.reason, e.data
             FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::uuid[], $6::text[], $7::text[],
                         $8::text[], $9::text[], $10::text[], $11::jsonb[]) WITH ORDINALITY
                  AS e (team_id, subject, subject_id, job_id, node_id, from_state, to_state, actor_kind, actor_name,
                        reason, data, place)
             ORDER BY e.place",
            &self.teams as &[Option<TeamId>],
            &self.nouns,
            &self.ids,
            &self.jobs as &[Option<JobId>],
            &self.nodes as &[Option<NodeId>],
            &self.from as &[Option<String>],
            &self.to,
            &self.actor_kinds,
            &self.actor_names,
            &self.reasons,
            &self.data,
        )
        .execute(&mut **tx)
        .await?;
        Ok(())
    }
}

/// An event as it is shown.
#[derive(Debug, Clone)]
pub struct EventRow {
    /// Its number; rises with time.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// What changed.
    pub subject: String,
    /// Which one.
    pub subject_id: String,
    /// The job that it belongs to, if any.
    pub job_id: Option<JobId>,
    /// The node's name, if it happened on one.
    pub node: Option<String>,
    /// The state before.
    pub from_state: Option<String>,
    /// The state after.
    pub to_state: String,
    /// What kind of actor.
    pub actor_kind: String,
    /// Who it was.
    pub actor_name: String,
    /// Why, as a stable word.
    pub reason: String,
    /// What else is worth knowing.
    pub data: Value,
}

/// A job's events in order, after the event `after`.
pub async fn of_job(
    tx: &mut Tx,
    team_id: TeamId,
    job_id: JobId,
    after: i64,
    limit: i64,
) -> Result<Vec<EventRow>, sqlx::Error> {
    sqlx::query_as!(
        EventRow,
        r#"SELECT e.id, e.at, e.subject, e.subject_id::text AS "subject_id!",
                  e.job_id AS "job_id: JobId", n.name AS "node?",
                  e.from_state, e.to_state, e.actor_kind, e.actor_name, e.reason, e.data
           FROM events AS e
           LEFT JOIN nodes AS n ON n.id = e.node_id
           WHERE e.team_id = $1 AND e.job_id = $2 AND e.id > $3
           ORDER BY e.id
           LIMIT $4"#,
        team_id as TeamId,
        job_id as JobId,
        after,
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The steps of a job itself, without those of its attempts and workers: the last `limit` of them,
/// in order.
pub async fn steps_of_job(
    tx: &mut Tx,
    team_id: TeamId,
    job_id: JobId,
    limit: i64,
) -> Result<Vec<EventRow>, sqlx::Error> {
    let mut steps = sqlx::query_as!(
        EventRow,
        r#"SELECT e.id, e.at, e.subject, e.subject_id::text AS "subject_id!",
                  e.job_id AS "job_id: JobId", n.name AS "node?",
                  e.from_state, e.to_state, e.actor_kind, e.actor_name, e.reason, e.data
           FROM events AS e
           LEFT JOIN nodes AS n ON n.id = e.node_id
           WHERE e.team_id = $1 AND e.job_id = $2 AND e.subject = 'job'
           ORDER BY e.id DESC
           LIMIT $3"#,
        team_id as TeamId,
        job_id as JobId,
        limit,
    )
    .fetch_all(&mut **tx)
    .await?;
    steps.reverse();
    Ok(steps)
}

/// What happened to a node and its devices, the newest first, before the event `before`.
pub async fn of_node(
    tx: &mut Tx,
    node_id: NodeId,
    before: i64,
    limit: i64,
) -> Result<Vec<EventRow>, sqlx::Error> {
    sqlx::query_as!(
        EventRow,
        r#"SELECT e.id, e.at, e.subject, e.subject_id::text AS "subject_id!",
                  e.job_id AS "job_id: JobId", n.name AS "node?",
                  e.from_state, e.to_state, e.actor_kind, e.actor_name, e.reason, e.data
           FROM events AS e
           LEFT JOIN nodes AS n ON n.id = e.node_id
           WHERE e.node_id = $1 AND e.job_id IS NULL AND e.id < $2
           ORDER BY e.id DESC
           LIMIT $3"#,
        node_id as NodeId,
        before,
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}
