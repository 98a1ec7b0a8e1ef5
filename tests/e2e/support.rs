//! Starting a product for a test, traced jobs in it, and the laws at its end.

use std::time::Duration;

use e2e::traces::Traces;
use reqwest::Method;
use rig::agents_file::{Machine, default_machines};
use rig::api::Api;
use rig::{Cluster, Options};
use serde_json::Value;

/// A start of one job on an idle product, on a machine with few cores that is busy.
pub const START_BOUND: Duration = Duration::from_secs(60);
/// An end of what was told to end.
pub const END_BOUND: Duration = Duration::from_secs(120);

/// The states in which a job stays.
pub const ENDED: [&str; 3] = ["succeeded", "failed", "cancelled"];

/// Three machines with 20 devices.
pub async fn three_machines(name: &str) -> Cluster {
    start(Options::for_test(name, default_machines()).unwrap()).await
}

/// One machine with 4 devices, in the pool `l40s`.
pub fn one_machine() -> Vec<Machine> {
    vec![Machine::simulated("l40s-1", "l40s-4", "l40s")]
}

pub async fn start(options: Options) -> Cluster {
    match Cluster::start(options).await {
        Ok(cluster) => cluster,
        Err(error) => panic!("the product does not start: {error:#}"),
    }
}

/// A product, and a member of one team whose jobs leave traces.
pub struct Scene {
    pub cluster: Cluster,
    pub traces: Traces,
    pub member: Api,
    team: &'static str,
}

impl Scene {
    /// Starts the product and signs the member in.
    pub async fn begin(options: Options, team: &'static str) -> Self {
        let cluster = start(options).await;
        let traces = Traces::of(&cluster).unwrap();
        let member = cluster.sign_in(&format!("{team}-member")).await.unwrap();
        Self {
            cluster,
            traces,
            member,
            team,
        }
    }

    /// One machine with 4 devices, in the pool `l40s`.
    pub async fn on_one_machine(name: &str, team: &'static str) -> Self {
        Self::begin(Options::for_test(name, one_machine()).unwrap(), team).await
    }

    /// These machines, each behind a proxy that can be cut, with leases of so long.
    pub async fn behind_proxies(name: &str, machines: Vec<Machine>, lease_ms: i64) -> Self {
        let mut options = Options::for_test(name, machines)
            .unwrap()
            .timer("node_lease_ms", lease_ms);
        options.proxied = true;
        Self::begin(options, "vision").await
    }

    /// Submits a traced job of one device in `pool`; its id.
    pub async fn submit(&self, name: &str, pool: &str) -> String {
        submit(&self.member, self.team, &self.traces.job(name, pool)).await
    }

    /// Submits such a job and waits until it runs; its id.
    pub async fn run(&self, name: &str, pool: &str) -> String {
        let id = self.submit(name, pool).await;
        self.runs(&id).await;
        id
    }

    /// Waits until a job runs.
    pub async fn runs(&self, id: &str) {
        self.cluster
            .job_in(&self.member, id, &["running"], START_BOUND)
            .await
            .unwrap();
    }

    /// Lets the jobs end and waits until this one has ended well; the job.
    pub async fn let_succeed(&self, id: &str) -> Value {
        self.traces.let_go().unwrap();
        self.cluster
            .job_in(&self.member, id, &["succeeded"], END_BOUND)
            .await
            .unwrap()
    }

    /// A job as it is now.
    pub async fn job(&self, id: &str) -> Value {
        self.member.get(&format!("/jobs/{id}")).await.unwrap()
    }

    /// Waits until all agents that run are ready.
    pub async fn agents_ready(&mut self) {
        self.cluster.agents_ready(START_BOUND).await.unwrap();
    }

    /// Cuts a node off from its server.
    pub fn cut(&self, node: &str) {
        self.cluster.proxy(node).unwrap().cut();
    }

    /// Joins it again, and waits until the server sees it.
    pub async fn heal(&mut self, node: &str) {
        self.cluster.proxy(node).unwrap().heal();
        self.agents_ready().await;
    }

    /// Changes keys of the policy of the pool `l40s`.
    pub async fn change_pool(&self, keys: Value) {
        let admin = self.cluster.admin();
        let changed = admin.change(Method::PATCH, "/pools/l40s", &keys).await;
        changed.unwrap();
    }

    /// What the product's clock shows.
    pub async fn now(&self) -> chrono::DateTime<chrono::Utc> {
        let rows = self
            .cluster
            .postgres
            .query("SELECT allotment.clock() AS now");
        let rows = rows.await.unwrap();
        let now = rows[0]["now"].as_str().expect("a time");
        now.parse().expect("a time")
    }

    /// Waits until a job's log has this.
    pub async fn log_has(&self, id: &str, text: &str) {
        let path = format!("/jobs/{id}/logs");
        rig::wait::until(text, START_BOUND, || async {
            Ok(self.member.text(&path).await?.contains(text).then_some(()))
        })
        .await
        .unwrap();
    }

    /// Waits until no job is left that has not ended, checks the laws and stops the product.
    pub async fn finish_when_all_ended(self) {
        rig::wait::until("all jobs have ended", END_BOUND, || async {
            let jobs = self.cluster.admin().list("/jobs?limit=500").await?;
            let ended = |job: &Value| ENDED.iter().any(|state| job["state"] == **state);
            Ok(jobs.iter().all(ended).then_some(()))
        })
        .await
        .unwrap();
        self.finish().await;
    }

    /// Checks the laws, the traces too, and stops the product.
    pub async fn finish(self) {
        finish(self.cluster, Some(&self.traces)).await;
    }
}

/// Leaves a test out that this user may not do. Root may do all of them: what keeps root from one
/// is a fault of the machine that must be seen.
pub fn skip(reason: &str) {
    assert!(!rig::who::root(), "as root nothing is skipped: {reason}");
    println!("skipped: {reason}");
}

/// Sends a signal, by its name without SIG, to a process.
pub fn signal(pid: u32, name: &str) {
    let sent = std::process::Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status();
    assert!(sent.unwrap().success(), "SIG{name} to {pid}");
}

/// Submits a job; its id.
pub async fn submit(api: &Api, team: &str, spec: &Value) -> String {
    let job = api
        .post(&format!("/teams/{team}/jobs"), spec)
        .await
        .unwrap();
    let id = job["id"].as_str().expect("a job has an id");
    e2e::acknowledged::note(api.base(), id);
    id.to_owned()
}

/// Sets a team's quota in a pool, as it was just read.
pub async fn set_quota(admin: &Api, team: &str, pool: &str, quota: Value) {
    let listed = admin.list(&format!("/teams/{team}/quotas")).await.unwrap();
    let row = listed.iter().find(|row| row["pool"] == pool);
    let version = row.expect("a quota")["version"]
        .as_i64()
        .expect("a version");
    let answer = admin
        .request(Method::PUT, &format!("/teams/{team}/quotas/{pool}"))
        .header("If-Match", format!("\"{version}\""))
        .json(&quota)
        .send()
        .await
        .unwrap();
    let status = answer.status();
    assert!(
        status.is_success(),
        "{status}: {}",
        answer.text().await.unwrap()
    );
}

/// What a job's explanation says that it waits for, once it is this.
pub async fn wait_for_code(api: &Api, job: &str, code: &str) -> Value {
    let path = format!("/jobs/{job}/explanation");
    let seen = std::cell::RefCell::new(Value::Null);
    let found = rig::wait::until(&format!("it waits for {code}"), START_BOUND, || async {
        let told = api.get(&path).await?;
        *seen.borrow_mut() = told.clone();
        let waiting = told["waiting"].clone();
        Ok((waiting["code"] == code).then_some(waiting))
    })
    .await;
    found.unwrap_or_else(|error| panic!("{error:#}: it waits for {}", seen.borrow()))
}

/// Waits until every one of these jobs is in one of the states.
pub async fn all_in(
    cluster: &Cluster,
    ids: &[String],
    states: &[&str],
    bound: Duration,
) -> Vec<Value> {
    let mut jobs = Vec::new();
    let end = tokio::time::Instant::now() + bound;
    for id in ids {
        let left = end.saturating_duration_since(tokio::time::Instant::now());
        jobs.push(
            cluster
                .job_in(cluster.admin(), id, states, left)
                .await
                .unwrap(),
        );
    }
    jobs
}

/// Checks the laws and stops the product.
pub async fn finish(mut cluster: Cluster, traces: Option<&Traces>) {
    cluster.check().unwrap();
    if let Some(traces) = traces {
        traces.check().unwrap();
    }
    e2e::laws::check(&cluster).await.unwrap();
    e2e::journals::check(&cluster).await.unwrap();
    cluster.stop().await.unwrap();
}
