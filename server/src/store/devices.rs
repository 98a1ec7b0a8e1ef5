//! Devices: the physical GPUs of a node, each known by its UUID.

use domain::Timestamp;
use domain::ids::{DeviceId, JobId, NodeId};
use domain::sharing::SharingMode;
use domain::state::{AssignmentPhase, DeviceHealth};
use protocol::mig::Layout;
use protocol::report::Finding;
use serde_json::{Value, json};
use sqlx::types::Json;

use super::Tx;

/// A device as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRow {
    /// Its id.
    pub id: DeviceId,
    /// The node that it sits in.
    pub node_id: NodeId,
    /// NVML's UUID.
    pub uuid: String,
    /// Its index there.
    pub index: i32,
    /// NVML's name.
    pub product_name: String,
    /// The model that requests know it by.
    pub model: String,
    /// Its memory.
    pub memory_mib: i64,
    /// Where it sits.
    pub pci_bus_id: String,
    /// How it does.
    pub health: DeviceHealth,
    /// Why.
    pub health_reason: String,
    /// What of it is for those alone who run the platform.
    pub health_detail: String,
    /// Since when.
    pub health_at: Timestamp,
    /// What its node found of it and that is not cleared there, by number.
    pub findings: Json<Vec<Finding>>,
    /// The newest of them.
    pub finding: Option<i64>,
    /// Up to which finding a person has cleared it.
    pub cleared: i64,
    /// How its node is about to cut it by a layout, until it has.
    pub layout: Option<Json<Layout>>,
    /// When it was first seen.
    pub first_seen_at: Timestamp,
}

/// A device as its node reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// NVML's UUID.
    pub uuid: String,
    /// Its index.
    pub index: i32,
    /// NVML's name.
    pub product_name: String,
    /// The model that requests know it by.
    pub model: String,
    /// Its memory.
    pub memory_mib: i64,
    /// Where it sits.
    pub pci_bus_id: String,
    /// What was found of it and is not cleared, by number.
    pub findings: Vec<Finding>,
    /// Its instances, while it is in MIG mode.
    pub mig: Option<Value>,
    /// How its node is about to cut it by a layout, until it has.
    pub layout: Option<Value>,
}

impl Reported {
    /// The number of the newest thing that was found of it.
    fn newest(&self) -> Option<i64> {
        self.findings.iter().map(|finding| finding.number).max()
    }
}

/// The devices of nodes, by node and index.
pub async fn of_nodes(tx: &mut Tx, nodes: &[NodeId]) -> Result<Vec<DeviceRow>, sqlx::Error> {
    sqlx::query_as!(
        DeviceRow,
        r#"SELECT id AS "id: DeviceId", node_id AS "node_id: NodeId", uuid, index, product_name, model, memory_mib,
                  pci_bus_id, health AS "health: DeviceHealth", health_reason, health_detail, health_at,
                  findings AS "findings: Json<Vec<Finding>>", finding, cleared, layout AS "layout: Json<Layout>", first_seen_at
           FROM devices
           WHERE node_id = ANY ($1)
           ORDER BY node_id, index, id"#,
        nodes as &[NodeId],
    )
    .fetch_all(&mut **tx)
    .await
}

/// The same of one node, locked.
pub async fn lock_of_node(tx: &mut Tx, node: NodeId) -> Result<Vec<DeviceRow>, sqlx::Error> {
    sqlx::query_as!(
        DeviceRow,
        r#"SELECT id AS "id: DeviceId", node_id AS "node_id: NodeId", uuid, index, product_name, model, memory_mib,
                  pci_bus_id, health AS "health: DeviceHealth", health_reason, health_detail, health_at,
                  findings AS "findings: Json<Vec<Finding>>", finding, cleared, layout AS "layout: Json<Layout>", first_seen_at
           FROM devices
           WHERE node_id = $1
           ORDER BY id
           FOR UPDATE"#,
        node as NodeId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Adds a device that was not known. One that another node has is left alone, unless that node
/// is retired: then it has moved. Its id, or nothing where it belongs to another node.
pub async fn add(
    tx: &mut Tx,
    node: NodeId,
    device: &Reported,
) -> Result<Option<DeviceId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"INSERT INTO devices AS d (id, node_id, uuid, index, product_name, model, memory_mib, pci_bus_id, mig, finding, findings, layout)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
           ON CONFLICT ON CONSTRAINT device_uuid_taken DO UPDATE
           SET node_id = excluded.node_id, index = excluded.index, version = d.version + 1
           WHERE EXISTS (SELECT FROM nodes AS n WHERE n.id = d.node_id AND n.intent = 'retired')
           RETURNING id AS "id: DeviceId""#,
        DeviceId::new() as DeviceId,
        node as NodeId,
        device.uuid,
        device.index,
        device.product_name,
        device.model,
        device.memory_mib,
        device.pci_bus_id,
        device.mig,
        device.newest(),
        json!(device.findings),
        device.layout,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Brings a known device up to date with its node's report; false when nothing differs.
pub async fn update(tx: &mut Tx, id: DeviceId, device: &Reported) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE devices
         SET index = $2, product_name = $3, model = $4, memory_mib = $5, pci_bus_id = $6, mig = $7, finding = $8,
             findings = $9, layout = $10,
             -- Numbers may begin anew with the next finding.
             cleared = CASE WHEN $8::bigint IS NULL THEN 0 ELSE cleared END, version = version + 1
         WHERE id = $1
           AND (index, product_name, model, memory_mib, pci_bus_id, mig, finding, findings, layout)
               IS DISTINCT FROM ($2, $3, $4, $5, $6, $7, $8, $9, $10::jsonb)",
        id as DeviceId,
        device.index,
        device.product_name,
        device.model,
        device.memory_mib,
        device.pci_bus_id,
        device.mig,
        device.newest(),
        json!(device.findings),
        device.layout,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// How a device does by its node's word.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// How it does.
    pub health: DeviceHealth,
    /// Why.
    pub reason: &'a str,
    /// What of that is for those alone who run the platform.
    pub detail: &'a str,
    /// For how long it has failed, where its node can say.
    pub failed_for_micros: Option<i64>,
}

/// Steps a device's health; the moment since which it has been so, or nothing where it stands elsewhere by now.
pub async fn step_health(
    tx: &mut Tx,
    id: DeviceId,
    from: DeviceHealth,
    told: &Told<'_>,
) -> Result<Option<Timestamp>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"UPDATE devices
           SET health = $3, health_reason = $4, health_detail = $5, health_at = allotment.clock(),
               failed_at = CASE WHEN $3 = 'failed'
                                THEN allotment.clock() - COALESCE($6::bigint, 0) * interval '1 microsecond' END,
               version = version + 1
           WHERE id = $1 AND health = $2
           RETURNING COALESCE(failed_at, health_at) AS "at!""#,
        id as DeviceId,
        from as DeviceHealth,
        told.health as DeviceHealth,
        told.reason,
        told.detail,
        told.failed_for_micros,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Writes why a device is as it is, where that has changed and its health has not.
pub async fn set_reason(tx: &mut Tx, id: DeviceId, told: &Told<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE devices SET health_reason = $2, health_detail = $3, version = version + 1
         WHERE id = $1 AND (health_reason, health_detail) <> ($2, $3)",
        id as DeviceId,
        told.reason,
        told.detail,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Notes that a person has cleared what was found of a device, up to a number; false where something
/// was found since, or it is cleared there by now.
pub async fn clear(tx: &mut Tx, id: DeviceId, up_to: i64) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE devices SET cleared = $2, version = version + 1 WHERE id = $1 AND finding = $2",
        id as DeviceId,
        up_to,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A device of which something was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The node.
    pub node_id: NodeId,
    /// NVML's UUID.
    pub uuid: String,
    /// What was found.
    pub findings: Json<Vec<Finding>>,
    /// Up to which finding a person has cleared it.
    pub cleared: i64,
}

/// The devices of nodes of which something was found, by UUID.
pub async fn found(tx: &mut Tx, nodes: &[NodeId]) -> Result<Vec<Found>, sqlx::Error> {
    sqlx::query_as!(
        Found,
        r#"SELECT node_id AS "node_id: NodeId", uuid, findings AS "findings: Json<Vec<Finding>>", cleared
           FROM devices
           WHERE node_id = ANY ($1) AND finding IS NOT NULL
           ORDER BY uuid"#,
        nodes as &[NodeId],
    )
    .fetch_all(&mut **tx)
    .await
}

/// A share of a device with who holds it, as far as the transaction may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldShare {
    /// The device.
    pub device_id: DeviceId,
    /// The way in which it is given out.
    pub mode: SharingMode,
    /// How much of it.
    pub gpus_milli: i32,
    /// How much of its memory.
    pub memory_mib: i64,
    /// The team.
    pub team: String,
    /// The job.
    pub job_id: JobId,
    /// The job's name.
    pub job: String,
    /// Who submitted it.
    pub user: String,
    /// Which worker of the job it is.
    pub worker: i32,
    /// Where that stands.
    pub phase: AssignmentPhase,
    /// Since when it holds the share.
    pub since: Timestamp,
}

/// Who holds shares of nodes' devices, by device and place.
pub async fn held(tx: &mut Tx, nodes: &[NodeId]) -> Result<Vec<HeldShare>, sqlx::Error> {
    sqlx::query_as!(
        HeldShare,
        r#"SELECT s.device_id AS "device_id: DeviceId", s.mode AS "mode: SharingMode", s.gpus_milli, s.memory_mib,
                  t.name AS team, j.id AS "job_id: JobId", j.name AS job, u.name AS "user", a.worker,
                  a.phase AS "phase: AssignmentPhase", a.granted_at AS since
           FROM assignment_devices AS s
           JOIN assignments AS a ON a.id = s.assignment_id
           JOIN jobs AS j ON j.id = a.job_id
           JOIN teams AS t ON t.id = a.team_id
           JOIN users AS u ON u.id = j.user_id
           WHERE s.live AND a.node_id = ANY ($1)
           ORDER BY s.device_id, s.slots, a.id"#,
        nodes as &[NodeId],
    )
    .fetch_all(&mut **tx)
    .await
}

/// How much of a device is in use, whoever uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InUse {
    /// The device.
    pub device_id: DeviceId,
    /// The way in which it is given out.
    pub mode: SharingMode,
    /// How much of it.
    pub gpus_milli: i64,
}

/// How much of each device that is in use is in use.
pub async fn in_use(tx: &mut Tx) -> Result<Vec<InUse>, sqlx::Error> {
    sqlx::query_as!(
        InUse,
        r#"SELECT device_id AS "device_id!: DeviceId", mode AS "mode!: SharingMode", gpus_milli AS "gpus_milli!"
           FROM allotment.device_use()"#,
    )
    .fetch_all(&mut **tx)
    .await
}
