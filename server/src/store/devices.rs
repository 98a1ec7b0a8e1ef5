//! Devices: the physical GPUs of a node, each known by its UUID.

use domain::Timestamp;
use domain::ids::{DeviceId, NodeId};
use domain::state::DeviceHealth;

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
}

/// The devices of nodes, by node and index.
pub async fn of_nodes(tx: &mut Tx, nodes: &[NodeId]) -> Result<Vec<DeviceRow>, sqlx::Error> {
    sqlx::query_as!(
        DeviceRow,
        r#"SELECT id AS "id: DeviceId", node_id AS "node_id: NodeId", uuid, index, product_name, model, memory_mib,
                  pci_bus_id, health AS "health: DeviceHealth", health_reason, first_seen_at
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
                  pci_bus_id, health AS "health: DeviceHealth", health_reason, first_seen_at
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
        r#"INSERT INTO devices AS d (id, node_id, uuid, index, product_name, model, memory_mib, pci_bus_id)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
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
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Brings a known device up to date with its node's report; false when nothing differs.
pub async fn update(tx: &mut Tx, id: DeviceId, device: &Reported) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE devices
         SET index = $2, product_name = $3, model = $4, memory_mib = $5, pci_bus_id = $6, version = version + 1
         WHERE id = $1
           AND (index, product_name, model, memory_mib, pci_bus_id) IS DISTINCT FROM ($2, $3, $4, $5, $6)",
        id as DeviceId,
        device.index,
        device.product_name,
        device.model,
        device.memory_mib,
        device.pci_bus_id,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Steps a device's health; false when it stands elsewhere by now.
pub async fn step_health(
    tx: &mut Tx,
    id: DeviceId,
    from: DeviceHealth,
    to: DeviceHealth,
    reason: &str,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE devices SET health = $3, health_reason = $4, version = version + 1
         WHERE id = $1 AND health = $2",
        id as DeviceId,
        from as DeviceHealth,
        to as DeviceHealth,
        reason,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}
