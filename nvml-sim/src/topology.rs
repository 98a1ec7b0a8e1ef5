//! How devices reach each other: the PCIe path between two, and where each NVLink leads.

use crate::machine::{Device, Machine, NvlinkEnd, PciAddress};

/// The nearest thing on PCIe that two devices share; the numbers are NVML's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Ancestor {
    Internal = 0,
    OneSwitch = 10,
    SeveralSwitches = 20,
    HostBridge = 30,
    Node = 40,
    System = 50,
}

/// What two devices share on PCIe; NVLinks play no part in it, as in NVML.
pub(crate) fn common_ancestor(one: &Device, other: &Device) -> Ancestor {
    if one.uuid == other.uuid {
        Ancestor::Internal
    } else if !one.pcie_switches.is_empty()
        && one.pcie_switches.last() == other.pcie_switches.last()
    {
        Ancestor::OneSwitch
    } else if !one.pcie_switches.is_empty()
        && one.pcie_switches.first() == other.pcie_switches.first()
    {
        Ancestor::SeveralSwitches
    } else if one.host_bridge.is_some() && one.host_bridge == other.host_bridge {
        Ancestor::HostBridge
    } else if one.numa == other.numa {
        Ancestor::Node
    } else {
        Ancestor::System
    }
}

/// The far end of one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkEnd {
    pub(crate) to: NvlinkEnd,
    pub(crate) pci: PciAddress,
    /// Whether the far end is there to answer.
    pub(crate) active: bool,
}

/// Where link `number` of a device leads; none when the device has no such link.
pub(crate) fn link_end(machine: &Machine, device: &Device, number: u32) -> Option<LinkEnd> {
    let mut first = 0;
    for group in &device.nvlinks {
        if number < first + group.count {
            let active = match group.to {
                NvlinkEnd::Switch => true,
                NvlinkEnd::Gpu => machine
                    .devices
                    .iter()
                    .any(|peer| peer.pci == group.pci && peer.fault.is_none()),
            };
            return Some(LinkEnd {
                to: group.to,
                pci: group.pci,
                active,
            });
        }
        first += group.count;
    }
    None
}

/// How many links a device has, active or not.
pub(crate) fn link_count(device: &Device) -> u32 {
    device.nvlinks.iter().map(|group| group.count).sum()
}

/// Whether two devices reach each other over NVLink, directly or by a switch.
pub(crate) fn linked(one: &Device, other: &Device) -> bool {
    one.nvlinks.iter().any(|group| match group.to {
        NvlinkEnd::Gpu => group.pci == other.pci,
        NvlinkEnd::Switch => other
            .nvlinks
            .iter()
            .any(|far| far.to == NvlinkEnd::Switch && far.pci == group.pci),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::machine;

    fn ancestors(model: &str) -> Vec<Ancestor> {
        let machine = machine(model, "t").expect("a named model");
        machine
            .devices
            .iter()
            .map(|device| common_ancestor(&machine.devices[0], device))
            .collect()
    }

    #[test]
    fn boxes_have_the_pcie_matrix_that_is_printed_of_them() {
        use Ancestor::{Internal, Node, SeveralSwitches, System};
        assert_eq!(
            ancestors("dgx-a100"),
            [
                Internal,
                SeveralSwitches,
                System,
                System,
                System,
                System,
                System,
                System
            ]
        );
        assert_eq!(
            ancestors("dgx-h100"),
            [Internal, Node, Node, Node, System, System, System, System]
        );
        assert_eq!(ancestors("l40s-4"), [Internal, Node, System, System]);
        assert_eq!(
            ancestors("a100-pcie-8"),
            [
                Internal,
                SeveralSwitches,
                Node,
                Node,
                System,
                System,
                System,
                System
            ]
        );
    }

    #[test]
    fn bridges_link_pairs_and_switches_link_all() {
        let pairs = machine("a100-pcie-8", "t").expect("a named model").devices;
        assert!(linked(&pairs[0], &pairs[1]) && !linked(&pairs[1], &pairs[2]));
        let clique = machine("dgx-h200", "t").expect("a named model").devices;
        assert!(
            clique
                .iter()
                .all(|one| clique.iter().all(|other| linked(one, other)))
        );
        assert_eq!(link_count(&clique[0]), 18);
    }

    #[test]
    fn a_link_to_a_device_that_is_gone_is_not_active() {
        let mut pairs = machine("a30-4", "t").expect("a named model");
        pairs.devices.remove(1);
        let end = link_end(&pairs, &pairs.devices[0], 0).expect("the bridge is still plugged in");
        assert!(!end.active);
        assert_eq!(link_end(&pairs, &pairs.devices[0], 4), None);
    }
}
