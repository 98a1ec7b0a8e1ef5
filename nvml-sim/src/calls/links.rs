//! How devices reach each other and the processors: PCIe, NVLink, fabric, memory nodes.

use std::ffi::{c_uint, c_ulong};

use nvml_wrapper_sys::bindings as sys;
use sys::{nvmlDevice_t, nvmlEnableState_t};

use super::device::{pci_info, put_pci_head};
use crate::border::{Answer, Refusal, put, put_list, put_mask, read_version, version_word};
use crate::library::{Library, current};
use crate::machine::{Fabric, NVLINKS_MAX, NvlinkEnd, PciAddress};
use crate::topology::{Ancestor, LinkEnd, common_ancestor, link_end, linked};

/// The end of an active link: what most calls on links ask for.
fn active_end(library: &Library, device: nvmlDevice_t, link: c_uint) -> Answer<LinkEnd> {
    let end = any_end(library, device, link)?;
    if end.active {
        Ok(end)
    } else {
        Err(Refusal::NotSupported)
    }
}

fn any_end(library: &Library, device: nvmlDevice_t, link: c_uint) -> Answer<LinkEnd> {
    let device = library.device(device)?;
    if link >= NVLINKS_MAX {
        return Err(Refusal::InvalidArgument);
    }
    link_end(library.machine()?, device, link).ok_or(Refusal::NotSupported)
}

/// The PCI ids at a link's end: a peer's own, or those of an NVSwitch.
fn remote_ids(library: &Library, end: LinkEnd) -> Answer<u32> {
    /// The NVSwitch of the third generation, which is in the boxes with Hopper cards.
    const NVSWITCH: u32 = 0x22A3_10DE;
    match end.to {
        NvlinkEnd::Switch => Ok(NVSWITCH),
        NvlinkEnd::Gpu => Ok(library
            .machine()?
            .devices
            .iter()
            .find(|peer| peer.pci == end.pci)
            .map_or(0, |peer| peer.pci_word())),
    }
}

fn remote(device: nvmlDevice_t, link: c_uint) -> Answer<(PciAddress, u32)> {
    let library = current()?;
    let end = active_end(&library, device, link)?;
    Ok((end.pci, remote_ids(&library, end)?))
}

/// All of NVML's kinds of ability that a link can be asked for are there but the last.
const LINK_CAPABILITIES: c_uint = 6;
/// An NVLink bridge of the SLI kind, which these cards do not have.
const SLI_BRIDGE: sys::nvmlNvLinkCapability_t =
    sys::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_SLI_BRIDGE;

/// The fabric of a device, as the state "completed", or no fabric at all.
fn fabric(library: &Library, device: nvmlDevice_t) -> Answer<(Option<&Fabric>, [u8; 16])> {
    let fabric = library.device(device)?.fabric.as_ref();
    Ok((
        fabric,
        fabric.and_then(Fabric::cluster_bytes).unwrap_or_default(),
    ))
}

const FABRIC_NOT_SUPPORTED: u8 = sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED as u8;
const FABRIC_COMPLETED: u8 = sys::NVML_GPU_FABRIC_STATE_COMPLETED as u8;
const FABRIC_HEALTHY: u8 = sys::NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY as u8;

fn fabric_state(fabric: Option<&Fabric>) -> u8 {
    if fabric.is_some() {
        FABRIC_COMPLETED
    } else {
        FABRIC_NOT_SUPPORTED
    }
}

nvml_calls! {
    /// The nearest thing on PCIe that two devices share.
    fn nvmlDeviceGetTopologyCommonAncestor(
        one: nvmlDevice_t,
        other: nvmlDevice_t,
        to: *mut sys::nvmlGpuTopologyLevel_t,
    ) {
        let library = current()?;
        put(to, common_ancestor(library.device(one)?, library.device(other)?) as sys::nvmlGpuTopologyLevel_t)
    }

    /// The devices that share just this with a device.
    fn nvmlDeviceGetTopologyNearestGpus(
        device: nvmlDevice_t,
        level: sys::nvmlGpuTopologyLevel_t,
        count: *mut c_uint,
        to: *mut nvmlDevice_t,
    ) {
        let mut library = current()?;
        let device = library.device(device)?;
        let near: Vec<String> = library
            .machine()?
            .devices
            .iter()
            .filter(|other| other.uuid != device.uuid)
            .filter(|other| common_ancestor(device, other) as sys::nvmlGpuTopologyLevel_t == level)
            .map(|other| other.uuid.clone())
            .collect();
        let handles = near.iter().map(|uuid| library.handle(uuid)).collect();
        put_list(to, count, handles)
    }

    /// Whether one device reaches another's memory, and over what.
    fn nvmlDeviceGetP2PStatus(
        one: nvmlDevice_t,
        other: nvmlDevice_t,
        ability: sys::nvmlGpuP2PCapsIndex_t,
        to: *mut sys::nvmlGpuP2PStatus_t,
    ) {
        let library = current()?;
        let (one, other) = (library.device(one)?, library.device(other)?);
        if one.uuid == other.uuid {
            return Err(Refusal::InvalidArgument);
        }
        if one.name.contains("GeForce") && !linked(one, other) {
            // The driver keeps such cards from reading each other's memory.
            return put(to, sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_GPU_NOT_SUPPORTED);
        }
        let reached = match ability {
            sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_READ
            | sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_WRITE => {
                linked(one, other) || common_ancestor(one, other) < Ancestor::System
            }
            sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_PCI => {
                common_ancestor(one, other) < Ancestor::System
            }
            sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK
            | sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_ATOMICS => linked(one, other),
            _ => return Err(Refusal::InvalidArgument),
        };
        put(to, if reached {
            sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK
        } else {
            sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED
        })
    }

    /// Whether a link is up.
    fn nvmlDeviceGetNvLinkState(device: nvmlDevice_t, link: c_uint, to: *mut nvmlEnableState_t) {
        put(to, nvmlEnableState_t::from(any_end(&*current()?, device, link)?.active))
    }

    /// The generation of a link.
    fn nvmlDeviceGetNvLinkVersion(device: nvmlDevice_t, link: c_uint, to: *mut c_uint) {
        let library = current()?;
        active_end(&library, device, link)?;
        put(to, library.device(device)?.nvlink_version.ok_or(Refusal::NotSupported)?)
    }

    /// Whether a link can do something.
    fn nvmlDeviceGetNvLinkCapability(
        device: nvmlDevice_t,
        link: c_uint,
        ability: sys::nvmlNvLinkCapability_t,
        to: *mut c_uint,
    ) {
        active_end(&*current()?, device, link)?;
        if ability >= LINK_CAPABILITIES {
            return Err(Refusal::InvalidArgument);
        }
        put(to, c_uint::from(ability != SLI_BRIDGE))
    }

    /// The address of what a link leads to.
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: nvmlDevice_t, link: c_uint, to: *mut sys::nvmlPciInfo_t) {
        let (pci, ids) = remote(device, link)?;
        put(to, pci_info(pci, ids))
    }

    /// The address of what a link leads to, in the first structure.
    fn nvmlDeviceGetNvLinkRemotePciInfo(device: nvmlDevice_t, link: c_uint, to: *mut sys::nvmlPciInfo_t) {
        let (pci, ids) = remote(device, link)?;
        put_pci_head(to, pci, ids)
    }

    /// What a link leads to.
    fn nvmlDeviceGetNvLinkRemoteDeviceType(
        device: nvmlDevice_t,
        link: c_uint,
        to: *mut sys::nvmlIntNvLinkDeviceType_t,
    ) {
        put(to, match active_end(&*current()?, device, link)?.to {
            NvlinkEnd::Gpu => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
            NvlinkEnd::Switch => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
        })
    }

    /// Errors of a link: none.
    fn nvmlDeviceGetNvLinkErrorCounter(
        device: nvmlDevice_t,
        link: c_uint,
        _counter: sys::nvmlNvLinkErrorCounter_t,
        to: *mut std::ffi::c_ulonglong,
    ) {
        active_end(&*current()?, device, link)?;
        put(to, 0)
    }

    /// The NVLink fabric, in the first structure.
    fn nvmlDeviceGetGpuFabricInfo(device: nvmlDevice_t, to: *mut sys::nvmlGpuFabricInfo_t) {
        let library = current()?;
        let (fabric, cluster) = fabric(&library, device)?;
        put(to, sys::nvmlGpuFabricInfo_t {
            clusterUuid: cluster,
            status: 0,
            cliqueId: fabric.map_or(0, |fabric| fabric.clique),
            state: fabric_state(fabric),
        })
    }

    /// The NVLink fabric, in either structure with a version.
    fn nvmlDeviceGetGpuFabricInfoV(device: nvmlDevice_t, to: *mut sys::nvmlGpuFabricInfoV_t) {
        let library = current()?;
        let (fabric, cluster) = fabric(&library, device)?;
        let clique = fabric.map_or(0, |fabric| fabric.clique);
        let version = read_version(to)?;
        if version == version_word::<sys::nvmlGpuFabricInfo_v2_t>(2) {
            put(to.cast(), sys::nvmlGpuFabricInfo_v2_t {
                version,
                clusterUuid: cluster,
                status: 0,
                cliqueId: clique,
                state: fabric_state(fabric),
                healthMask: 0,
            })
        } else if version == version_word::<sys::nvmlGpuFabricInfo_v3_t>(3) {
            put(to, sys::nvmlGpuFabricInfo_v3_t {
                version,
                clusterUuid: cluster,
                status: 0,
                cliqueId: clique,
                state: fabric_state(fabric),
                healthMask: 0,
                healthSummary: fabric.map_or(0, |_| FABRIC_HEALTHY),
            })
        } else {
            Err(Refusal::VersionMismatch)
        }
    }

    /// The memory node (NUMA) of a device. A driver answers this only where GPUs are
    /// nodes themselves; the simulator always does, since there is no sysfs to ask.
    fn nvmlDeviceGetNumaNodeId(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, current()?.device(device)?.numa)
    }

    /// The memory nodes near a device, as a mask.
    fn nvmlDeviceGetMemoryAffinity(
        device: nvmlDevice_t,
        words: c_uint,
        to: *mut c_ulong,
        _scope: sys::nvmlAffinityScope_t,
    ) {
        put_mask(to, words, &[current()?.device(device)?.numa])
    }

    /// The processors near a device, as a mask.
    fn nvmlDeviceGetCpuAffinity(device: nvmlDevice_t, words: c_uint, to: *mut c_ulong) {
        put_mask(to, words, &current()?.device(device)?.cpus.0)
    }

    /// The processors near a device, as a mask; a socket is one node here.
    fn nvmlDeviceGetCpuAffinityWithinScope(
        device: nvmlDevice_t,
        words: c_uint,
        to: *mut c_ulong,
        _scope: sys::nvmlAffinityScope_t,
    ) {
        put_mask(to, words, &current()?.device(device)?.cpus.0)
    }
}
