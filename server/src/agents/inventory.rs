//! What a machine consists of: a node's report is brought into its rows, its devices' health and capacity.

use std::collections::BTreeMap;

use domain::ids::NodeId;
use domain::state::DeviceHealth;
use protocol::report::{Device, DiskFull, Finding, Inventory};
use serde_json::json;

use super::models;
use crate::store::devices::{self, DeviceRow, Reported, Told};
use crate::store::events::{self, Actor, DETAIL, NewEvent, Subject};
use crate::store::nodes::{self, Machine};
use crate::store::{Tx, audit, capacity};

/// Why a device that its node does not report any more is `failed`.
const GONE: &str = "gone from the node's inventory";
/// The audit log's word for a device whose health its node changed.
const HEALTH_ACTION: &str = "report_device_health";
/// Why a device is `suspect` of which a node says nothing that has not read its devices.
const UNREAD: &str = "the node's agent has restarted and cannot read its devices";

/// What an event of a node says of its disk.
const DISK_FULL: &str = "disk_full";
const DISK_HAS_ROOM: &str = "disk_has_room";

/// Brings a node's rows up to date with its inventory. A device that is not reported any more
/// is failed, and `background` ends what held it, but only where the devices were read: a driver
/// that is slow ends no work. The caller holds the node's lock.
pub async fn apply(
    tx: &mut Tx,
    node: NodeId,
    actor: &Actor,
    inventory: &Inventory,
) -> Result<(), sqlx::Error> {
    let mut known: BTreeMap<String, DeviceRow> = devices::lock_of_node(tx, node)
        .await?
        .into_iter()
        .map(|device| (device.uuid.clone(), device))
        .collect();
    let mut warnings = inventory.warnings.clone();
    for device in &inventory.devices {
        match known.remove(&device.uuid) {
            Some(row) => {
                let forgotten = forgotten(&row, device);
                devices::update(tx, row.id, &reported(device, &forgotten)).await?;
                let told = told(device, &forgotten);
                // What has failed is no better for a driver that does not answer.
                let unread = inventory.devices_unread && row.health == DeviceHealth::Failed;
                let stepped = match unread && told.health == DeviceHealth::Suspect {
                    true => false,
                    false => set_health(tx, &row, actor, &told).await?,
                };
                let said = stepped.then_some(told.reason);
                note_findings(tx, &row, actor, (&device.findings, said)).await?;
            }
            None => match devices::add(tx, node, &reported(device, &[])).await? {
                Some(_) => note_new(tx, node, actor, device).await?,
                None => warnings.push(format!(
                    "device {} is registered at another node: retire that node if the device has moved",
                    device.uuid
                )),
            },
        }
    }
    let (unlisted, why) = match inventory.devices_unread {
        true => (DeviceHealth::Suspect, UNREAD),
        false => (DeviceHealth::Failed, GONE),
    };
    let gone = Told {
        health: unlisted,
        reason: why,
        detail: "",
        failed_for_micros: None,
    };
    for row in known.values() {
        if row.health != DeviceHealth::Failed || unlisted == DeviceHealth::Failed {
            set_health(tx, row, actor, &gone).await?;
        }
    }
    note_disk(tx, node, actor, inventory.disk_full).await?;
    nodes::set_machine(tx, node, &machine(inventory, warnings)).await?;
    capacity::refresh(tx, node).await
}

/// What was found of a device and its node does not know any more, as where its disk was lost. It stands until
/// the node, which is told of it, or a person has dealt with it.
fn forgotten(row: &DeviceRow, device: &Device) -> Vec<Finding> {
    let newest = row.finding.unwrap_or(0);
    if device.findings_known >= newest {
        return Vec::new();
    }
    let open = row.findings.iter();
    open.filter(|finding| finding.number > row.cleared)
        .cloned()
        .collect()
}

/// How a device does by its node's word and by what that has forgotten: the worst of them.
fn told<'a>(device: &'a Device, forgotten: &'a [Finding]) -> Told<'a> {
    let own = Told {
        health: device.health,
        reason: &device.health_reason,
        detail: &device.health_detail,
        failed_for_micros: device.failed_for_micros,
    };
    let worse = forgotten.iter().map(|finding| Told {
        health: finding.health,
        reason: &finding.reason,
        detail: "",
        failed_for_micros: None,
    });
    worse.fold(own, |worst, told| {
        match rank(told.health) > rank(worst.health) {
            true => told,
            false => worst,
        }
    })
}

fn rank(health: DeviceHealth) -> u8 {
    match health {
        DeviceHealth::Healthy | DeviceHealth::ModeChange => 0,
        DeviceHealth::Suspect => 1,
        DeviceHealth::Failed => 2,
    }
}

fn reported(device: &Device, forgotten: &[Finding]) -> Reported {
    Reported {
        uuid: device.uuid.clone(),
        index: i32::try_from(device.index).unwrap_or(i32::MAX),
        product_name: device.product_name.clone(),
        model: models::of_product(&device.product_name),
        memory_mib: device.memory_mib,
        pci_bus_id: device.pci_bus_id.clone(),
        findings: forgotten.iter().chain(&device.findings).cloned().collect(),
        mig: device.mig.as_ref().map(|instances| json!(instances)),
        layout: device.layout.as_ref().map(|layout| json!(layout)),
    }
}

fn machine(inventory: &Inventory, warnings: Vec<String>) -> Machine {
    Machine {
        driver_version: inventory.driver_version.clone(),
        cpus_milli: inventory.cpus_milli,
        memory_mib: inventory.memory_mib,
        address: inventory.address.clone(),
        sharing: inventory.sharing.clone(),
        mps_across_teams: inventory.mps_across_teams,
        runners: inventory.runners.clone(),
        work_roots: inventory.work_roots.clone(),
        cgroup: inventory.cgroup.clone(),
        isolated: inventory.isolated,
        checkpoints_shared: inventory.checkpoints_shared,
        warnings,
        nvlink: json!(inventory.nvlink),
        numa: json!(inventory.numa),
        mig_static: inventory.mig_static,
        disk_full: inventory
            .disk_full
            .map(|full| (full.free_mib, full.needed_mib)),
        lacks: inventory.lacks.clone(),
    }
}

/// Writes that a node's disk has become full, or has room again.
async fn note_disk(
    tx: &mut Tx,
    node: NodeId,
    actor: &Actor,
    full: Option<DiskFull>,
) -> Result<(), sqlx::Error> {
    let Some(row) = nodes::lock(tx, node).await? else {
        return Ok(());
    };
    let (from, to) = match (row.disk_free_mib, full) {
        (None, Some(_)) => (DISK_HAS_ROOM, DISK_FULL),
        (Some(_), None) => (DISK_FULL, DISK_HAS_ROOM),
        _ => return Ok(()),
    };
    let event = NewEvent {
        subject: Subject::Node(node),
        job: None,
        node_id: Some(node),
        from: Some(from),
        to,
        actor,
        reason: "disk",
        data: json!({ "node": row.name, "free_mib": full.map(|full| full.free_mib) }),
    };
    events::insert(tx, &event).await
}

/// Writes what was found of a device since its node told last, but for what its step to another health has `said`:
/// of one that is out already, nothing else would tell of it.
async fn note_findings(
    tx: &mut Tx,
    row: &DeviceRow,
    actor: &Actor,
    (findings, said): (&[Finding], Option<&str>),
) -> Result<(), sqlx::Error> {
    let newest = row.finding.unwrap_or(0).max(row.cleared);
    let told = |finding: &&Finding| said.is_some_and(|said| said.contains(&finding.reason));
    let new = findings.iter().filter(|finding| finding.number > newest);
    for finding in new.filter(|finding| !told(finding)) {
        let health = finding.health.as_str();
        let event = NewEvent {
            subject: Subject::Device(row.id),
            job: None,
            node_id: Some(row.node_id),
            from: Some(row.health.as_str()),
            to: health,
            actor,
            reason: &finding.reason,
            data: json!({ "uuid": row.uuid, "index": row.index, "finding": finding.number }),
        };
        events::insert(tx, &event).await?;
    }
    Ok(())
}

/// Steps a device towards the health that its node reports; whether it stands otherwise than before.
async fn set_health(
    tx: &mut Tx,
    row: &DeviceRow,
    actor: &Actor,
    told: &Told<'_>,
) -> Result<bool, sqlx::Error> {
    let (to, reason) = (told.health, told.reason);
    // A change of mode is ours to end.
    let ours = row.health == DeviceHealth::ModeChange && to != DeviceHealth::Failed;
    if row.health == to {
        // One that is gone keeps the reason that its node had last.
        devices::set_reason(tx, row.id, told).await?;
        return Ok(false);
    }
    if ours || row.health.step(to).is_err() {
        return Ok(false);
    }
    let stepped = devices::step_health(tx, row.id, row.health, told).await?;
    if let Some(at) = stepped {
        let event = NewEvent {
            subject: Subject::Device(row.id),
            job: None,
            node_id: Some(row.node_id),
            from: Some(row.health.as_str()),
            to: to.as_str(),
            actor,
            reason,
            data: match told.detail {
                "" => json!({ "uuid": row.uuid, "index": row.index, "since": at }),
                detail => {
                    json!({ "uuid": row.uuid, "index": row.index, "since": at, DETAIL: detail })
                }
            },
        };
        events::insert(tx, &event).await?;
        let object = format!("device/{}", row.uuid);
        let words = match reason {
            "" => to.to_string(),
            reason => format!("{to}: {reason}"),
        };
        audit::insert_of_agent(tx, actor.name(), HEALTH_ACTION, &object, "done", &words).await?;
    }
    Ok(stepped.is_some())
}

/// Writes that a device was seen for the first time; one that comes in bad health gets that too.
async fn note_new(
    tx: &mut Tx,
    node: NodeId,
    actor: &Actor,
    device: &Device,
) -> Result<(), sqlx::Error> {
    let rows = devices::lock_of_node(tx, node).await?;
    let Some(row) = rows.iter().find(|row| row.uuid == device.uuid) else {
        return Ok(());
    };
    let event = NewEvent {
        subject: Subject::Device(row.id),
        job: None,
        node_id: Some(node),
        from: None,
        to: row.health.as_str(),
        actor,
        reason: "first_seen",
        data: json!({ "uuid": row.uuid, "index": row.index, "model": row.model }),
    };
    events::insert(tx, &event).await?;
    set_health(tx, row, actor, &told(device, &[])).await?;
    Ok(())
}
