//! A fleet of rows: nodes whose every device is held by a job, and the message that each node sends.

use anyhow::Context;
use chrono::TimeDelta;
use domain::Timestamp;
use domain::ids::{NodeId, RequestId, SessionId, UserId};
use domain::name::Name;
use domain::role::PlatformRole;
use prost::Message as _;
use protocol::wire;
use server::app::{App, Asker};
use server::config::Config;
use server::store::Database;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

/// Devices of a node.
pub const DEVICES: usize = 8;
/// Agents sample so often, in seconds.
const INTERVAL_SECONDS: i32 = 15;
/// Nodes that have a day of samples.
const NODES_WITH_A_DAY: usize = 20;
/// Ids begin so and end with a number.
const HEAD: &str = "00000000-0000-4000-8000-";
/// The team's number.
const TEAM: usize = 1;

/// A node, with what it sends each time.
pub struct Node {
    /// Its row.
    pub id: NodeId,
    /// Its name.
    pub name: Name,
    /// `Samples`, encoded: each of its devices, and the job on each.
    pub message: Vec<u8>,
}

/// A database of its own with the fleet in it.
pub struct Fleet {
    /// The application over it.
    pub app: App,
    /// Its owner.
    pub owner: PgPool,
    /// An administrator.
    pub asker: Asker,
    /// The nodes.
    pub nodes: Vec<Node>,
    server: PgConnectOptions,
    database: String,
}

impl Fleet {
    /// Makes it.
    pub async fn make(nodes: usize) -> anyhow::Result<Self> {
        let url = std::env::var("DATABASE_URL")
            .context("DATABASE_URL must name a database's owner; ./dev bench b11 sets it")?;
        let server: PgConnectOptions = url.parse()?;
        let database = format!("samples_{}", std::process::id());
        let made = format!("CREATE DATABASE {database}");
        let at_server = PgPool::connect_with(server.clone()).await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(made))
            .execute(&at_server)
            .await?;
        let owner = PgPool::connect_with(server.clone().database(&database)).await?;
        sqlx::migrate!("../migrations").run(&owner).await?;
        let pool = |role: &str| {
            let options = server.clone().database(&database).username(role);
            PgPoolOptions::new().connect_lazy_with(options)
        };
        let config: Config =
            toml::from_str("[database]\napp_url = 'unused'\nsystem_url = 'unused'\n")?;
        let pools = (pool("allotment_app"), pool("allotment_system"));
        let app = App::new(Database::from_pools(pools.0, pools.1), config);
        let mut fleet = Self {
            app,
            owner,
            asker: administrator(),
            nodes: Vec::new(),
            server,
            database,
        };
        let filled = fleet.fill(nodes).await;
        match filled {
            Ok(()) => Ok(fleet),
            Err(error) => {
                fleet.drop().await?;
                Err(error)
            }
        }
    }

    /// Removes the database.
    pub async fn drop(&self) -> anyhow::Result<()> {
        self.owner.close().await;
        let dropped = format!("DROP DATABASE {} WITH (FORCE)", self.database);
        let at_server = PgPool::connect_with(self.server.clone()).await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(dropped))
            .execute(&at_server)
            .await?;
        Ok(())
    }

    async fn fill(&mut self, nodes: usize) -> anyhow::Result<()> {
        // What a node, its devices and their jobs are called follows from their numbers: nothing is read back.
        let rows = format!(
            "INSERT INTO teams (id, name) VALUES ('{team}', 'bench');
            INSERT INTO users (id, name) VALUES ('{user}', 'bench');
            INSERT INTO pools (id, name, policy) VALUES ('{pool}', 'bench', '{{}}');
            CREATE FUNCTION pg_temp.numbered(n bigint) RETURNS uuid LANGUAGE sql
                AS $$ SELECT ('{HEAD}' || lpad(to_hex(n), 12, '0'))::uuid $$;
            INSERT INTO nodes (id, name, pool_id, reachability, cpus_milli, memory_mib, sharing, runners)
                SELECT pg_temp.numbered(n), 'n' || n, '{pool}', 'ready', 96000, 1048576, '{{exclusive}}', '{{process}}'
                FROM generate_series(0, {nodes} - 1) AS n;
            INSERT INTO devices (id, node_id, uuid, index, product_name, model, memory_mib)
                SELECT pg_temp.numbered(n * {DEVICES} + d), pg_temp.numbered(n), 'GPU-' || n || '-' || d, d,
                    'NVIDIA H100 80GB HBM3', 'H100-80GB', 81559
                FROM generate_series(0, {nodes} - 1) AS n, generate_series(0, {DEVICES} - 1) AS d;
            INSERT INTO jobs (id, team_id, user_id, name, kind, class, spec, state)
                SELECT id, '{team}', '{user}', 'j', 'training', 'normal', '{{}}', 'running' FROM devices;
            INSERT INTO attempts (id, team_id, job_id, number, state)
                SELECT id, '{team}', id, 1, 'running' FROM devices;
            INSERT INTO assignments (id, team_id, job_id, attempt_id, node_id, worker, node_rank, phase, cpus_milli, memory_mib)
                SELECT id, '{team}', id, id, node_id, 0, 0, 'running', 1000, 1024 FROM devices;",
            team = numbered(TEAM),
            user = self.asker.user_id,
            pool = numbered(0),
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(rows))
            .execute(&self.owner)
            .await?;
        for node in 0..nodes {
            let devices = (0..DEVICES).map(|device| {
                let uuid = format!("GPU-{node}-{device}");
                sample(uuid, numbered(node * DEVICES + device))
            });
            let devices = devices.collect();
            self.nodes.push(Node {
                id: numbered(node).parse()?,
                name: format!("n{node}").parse().context("a node's name")?,
                message: wire::Samples { devices }.encode_to_vec(),
            });
        }
        Ok(())
    }

    /// Gives some nodes a day of samples, reckoned up; its end.
    pub async fn fill_day(&self) -> anyhow::Result<Timestamp> {
        let mut tx = self.app.db.begin_system().await?;
        let to = server::store::clock(&mut tx).await?;
        let from = to - TimeDelta::days(1);
        let rows = format!(
            "INSERT INTO samples (at, device_id, assignment_id, job_id, team_id, busy, sm, tensor, dram, memory_mib,
                temperature_c, power_mw, energy_mj, processes)
             SELECT at, d.id, w, w, CASE WHEN w IS NOT NULL THEN '{team}'::uuid END, 812, 640, 480, 320, 61440, 61, 512000,
                7680000, 1
             FROM (SELECT id FROM devices ORDER BY id LIMIT {devices}) AS d,
                generate_series('{from}'::timestamptz, '{to}'::timestamptz, '{INTERVAL_SECONDS} s') AS at,
                LATERAL (VALUES (NULL::uuid), (d.id)) AS v (w);
             SELECT allotment.reckon_minutes(date_trunc('minute', '{from}'::timestamptz), '{to}'::timestamptz, NULL);",
            team = numbered(TEAM),
            devices = NODES_WITH_A_DAY * DEVICES,
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(rows))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        sqlx::raw_sql("ANALYZE").execute(&self.owner).await?;
        Ok(to)
    }
}

/// An id by its number.
fn numbered(number: usize) -> String {
    format!("{HEAD}{number:012x}")
}

fn administrator() -> Asker {
    Asker {
        user_id: UserId::new(),
        name: "bench".parse().expect("a name"),
        platform_role: Some(PlatformRole::Admin),
        teams: std::collections::BTreeMap::new(),
        ancestors: Vec::new(),
        session_id: SessionId::new(),
        request_id: RequestId::new(),
    }
}

fn sample(uuid: String, assignment_id: String) -> wire::DeviceSample {
    wire::DeviceSample {
        uuid,
        age_ms: 10,
        busy_permille: Some(812),
        sm_permille: Some(640),
        tensor_permille: Some(480),
        dram_permille: Some(320),
        memory_mib: Some(61_440),
        temperature_c: Some(61),
        power_mw: Some(512_000),
        energy_mj: Some(7_680_000),
        work: vec![wire::WorkSample {
            assignment_id,
            busy_permille: Some(812),
            sm_permille: Some(640),
            memory_mib: Some(61_440),
            processes: Some(1),
            energy_mj: Some(7_680_000),
        }],
    }
}
