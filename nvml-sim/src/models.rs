//! The named machines: how each is built, from its cards to its buses and links.

mod products;
pub(crate) mod vgpus;

use crate::machine::{
    Architecture, CpuList, Device, Fabric, Machine, NvlinkEnd, NvlinkGroup, PciAddress, Telemetry,
};
use products::{
    A30, A100_PCIE_80GB, A100_SXM4_80GB, GB200, H100_80GB, H200, L40S, Product, RTX_4090,
    V100_SXM3_32GB,
};

/// The driver that a generated machine claims: it knows all of these cards, and it is
/// older than 580.82, where the numbers of some field values changed.
pub const DRIVER_VERSION: &str = "570.133.20";
/// The CUDA version that comes with that driver: 12.8.
pub const CUDA_VERSION: i32 = 12_080;

/// The names that [`machine`] knows.
pub const MODELS: [&str; 11] = [
    "dgx-a100",
    "dgx-h100",
    "dgx-h200",
    "l40s-4",
    "l40s-8",
    "a100-pcie-8",
    "a30-4",
    "dgx-2",
    "gb200-4",
    "h100-sxm-4",
    "rtx4090-4",
];

/// Where one card sits: bus, memory node and the switches above it.
struct Slot {
    bus: u8,
    numa: u32,
    cpus: &'static str,
    host_bridge: String,
    pcie_switches: Vec<String>,
}

/// How the cards of a box are linked.
enum Links {
    /// Each switch at its bus with so many links to every card.
    Switches(&'static [(u8, u32)]),
    /// Cards 0-1, 2-3 and so on with so many links between them.
    BridgedPairs(u32),
    /// Each card with so many links to every other.
    Mesh(u32),
    None,
}

/// A machine of the named model; its UUIDs follow from `seed` and the index alone.
///
/// `None` when there is no such model.
pub fn machine(model: &str, seed: &str) -> Option<Machine> {
    let (product, slots, links) = match model {
        "dgx-a100" => (
            &A100_SXM4_80GB,
            dgx_a100_slots(),
            Links::Switches(&[
                (0xC4, 2),
                (0xC5, 2),
                (0xC6, 2),
                (0xC7, 2),
                (0xC8, 2),
                (0xC9, 2),
            ]),
        ),
        "dgx-h100" => (&H100_80GB, dgx_h100_slots(), DGX_H100_LINKS),
        "dgx-h200" => (&H200, dgx_h100_slots(), DGX_H100_LINKS),
        "l40s-4" => (&L40S, pcie_slots(&[0x17, 0x31], &[0xB1, 0xCA]), Links::None),
        "l40s-8" => (
            &L40S,
            pcie_slots(&[0x17, 0x18, 0x31, 0x32], &[0xB1, 0xB2, 0xCA, 0xCB]),
            Links::None,
        ),
        "a100-pcie-8" => (
            &A100_PCIE_80GB,
            paired_pcie_slots(&[0x17, 0x18, 0x31, 0x32], &[0xB1, 0xB2, 0xCA, 0xCB]),
            Links::BridgedPairs(12),
        ),
        "a30-4" => (
            &A30,
            pcie_slots(&[0x17, 0x31], &[0xB1, 0xCA]),
            Links::BridgedPairs(4),
        ),
        "dgx-2" => (&V100_SXM3_32GB, dgx_2_slots(), DGX_2_LINKS),
        "gb200-4" => (&GB200, gb200_slots(), GB200_LINKS),
        "h100-sxm-4" => (
            &H100_80GB,
            pcie_slots(&[0x1A, 0x4A], &[0x8A, 0xCA]),
            Links::Mesh(6),
        ),
        "rtx4090-4" => (&RTX_4090, desktop_slots(), Links::None),
        _ => return None,
    };
    let addresses: Vec<PciAddress> = slots.iter().map(|slot| address(slot.bus)).collect();
    let devices = slots
        .into_iter()
        .enumerate()
        .map(|(index, slot)| device(product, seed, index, slot, &links, &addresses))
        .collect();
    Some(Machine {
        model: model.to_owned(),
        driver_version: DRIVER_VERSION.to_owned(),
        cuda_version: CUDA_VERSION,
        boot: 0,
        mig_permitted: true,
        kills_caller: None,
        devices,
        processes: Vec::new(),
    })
}

/// Four NVSwitches, 18 links of each card: NV18 between any two.
const DGX_H100_LINKS: Links = Links::Switches(&[(0x05, 5), (0x06, 4), (0x07, 4), (0x08, 5)]);

/// Six NVSwitches of a board, one link of each card to every one: NV6 between any two.
const DGX_2_LINKS: Links = Links::Switches(&[
    (0xF0, 1),
    (0xF1, 1),
    (0xF2, 1),
    (0xF3, 1),
    (0xF4, 1),
    (0xF5, 1),
]);

/// The nine trays of switches of a rack: NV18 between any two of its cards.
const GB200_LINKS: Links = Links::Switches(&[
    (0xE0, 2),
    (0xE1, 2),
    (0xE2, 2),
    (0xE3, 2),
    (0xE4, 2),
    (0xE5, 2),
    (0xE6, 2),
    (0xE7, 2),
    (0xE8, 2),
]);

/// The rack whose links all trays of the model share.
const GB200_CLUSTER: &str = "6f1ac6e2-72c0-4a0b-9d5e-0c1b2a394857";

/// Eight cards on each of two sockets, two below a switch.
fn dgx_2_slots() -> Vec<Slot> {
    paired_pcie_slots(
        &[0x34, 0x36, 0x39, 0x3B, 0x57, 0x59, 0x5C, 0x5E],
        &[0xB7, 0xB9, 0xBC, 0xBE, 0xC7, 0xC9, 0xCC, 0xCE],
    )
}

/// A tray of two processors with two cards each, which hang on links of their own.
fn gb200_slots() -> Vec<Slot> {
    let cpus = ["0-71", "72-143"];
    let mut slots = pcie_slots(&[0x0A, 0x0B], &[0x4A, 0x4B]);
    for slot in &mut slots {
        slot.cpus = cpus[slot.numa as usize];
    }
    slots
}

/// Cards of a desktop machine, all below the one host bridge.
fn desktop_slots() -> Vec<Slot> {
    [0x01, 0x21, 0x41, 0x61]
        .map(|bus| Slot {
            bus,
            numa: 0,
            cpus: "0-31",
            host_bridge: "desktop".to_owned(),
            pcie_switches: Vec::new(),
        })
        .into()
}

/// Two cards on a memory node (NPS4), two nodes in another order than the buses.
fn dgx_a100_slots() -> Vec<Slot> {
    const PAIRS: [(u8, u8, u32, &str); 4] = [
        (0x07, 0x0F, 3, "48-63,176-191"),
        (0x47, 0x4E, 1, "16-31,144-159"),
        (0x87, 0x90, 7, "112-127,240-255"),
        (0xB7, 0xBD, 5, "80-95,208-223"),
    ];
    PAIRS
        .iter()
        .flat_map(|&(first, second, numa, cpus)| {
            [first, second].map(|bus| Slot {
                bus,
                numa,
                cpus,
                host_bridge: format!("node{numa}"),
                pcie_switches: vec![format!("node{numa}-up"), format!("bus{bus:02X}")],
            })
        })
        .collect()
}

/// Four cards on each of two sockets, each with a host bridge and a switch of its own.
fn dgx_h100_slots() -> Vec<Slot> {
    const SOCKETS: [([u8; 4], &str); 2] = [
        ([0x1A, 0x1B, 0x4A, 0x4B], "0-55,112-167"),
        ([0x8A, 0x8B, 0xCA, 0xCB], "56-111,168-223"),
    ];
    (0..)
        .zip(SOCKETS)
        .flat_map(|(numa, (buses, cpus))| {
            buses.map(|bus| Slot {
                bus,
                numa,
                cpus,
                host_bridge: format!("bus{bus:02X}"),
                pcie_switches: vec![format!("bus{bus:02X}")],
            })
        })
        .collect()
}

/// Plain PCIe cards: each with a host bridge of its own, half of them on either socket.
fn pcie_slots(first: &[u8], second: &[u8]) -> Vec<Slot> {
    sockets(first, second, |_, bus| {
        (format!("bus{bus:02X}"), Vec::new())
    })
}

/// PCIe cards in pairs below two switches in a row.
fn paired_pcie_slots(first: &[u8], second: &[u8]) -> Vec<Slot> {
    sockets(first, second, |place, bus| {
        let bridge = format!("socket-bridge{place}");
        let switches = vec![
            format!("{bridge}-up{:02X}", bus & 0xF0),
            format!("bus{bus:02X}"),
        ];
        (format!("{bridge}-{:02X}", bus & 0xF0), switches)
    })
}

fn sockets(
    first: &[u8],
    second: &[u8],
    above: impl Fn(u32, u8) -> (String, Vec<String>),
) -> Vec<Slot> {
    const CPUS: [&str; 2] = ["0-31,64-95", "32-63,96-127"];
    let mut slots = Vec::new();
    for ((numa, buses), cpus) in (0..).zip([first, second]).zip(CPUS) {
        for &bus in buses {
            let (host_bridge, pcie_switches) = above(numa, bus);
            slots.push(Slot {
                bus,
                numa,
                cpus,
                host_bridge,
                pcie_switches,
            });
        }
    }
    slots
}

fn device(
    product: &Product,
    seed: &str,
    index: usize,
    slot: Slot,
    links: &Links,
    addresses: &[PciAddress],
) -> Device {
    let place = format!("{seed}/{index}");
    let identity = digest(&place);
    let nvlinks = match links {
        Links::Switches(switches) => switches
            .iter()
            .map(|&(bus, count)| NvlinkGroup {
                to: NvlinkEnd::Switch,
                pci: address(bus),
                count,
            })
            .collect(),
        Links::BridgedPairs(count) => addresses
            .get(index ^ 1)
            .map(|&pci| NvlinkGroup {
                to: NvlinkEnd::Gpu,
                pci,
                count: *count,
            })
            .into_iter()
            .collect(),
        Links::Mesh(count) => {
            let others = (0..).zip(addresses).filter(|(at, _)| *at != index);
            let group = |(_, &pci): (usize, &PciAddress)| NvlinkGroup {
                to: NvlinkEnd::Gpu,
                pci,
                count: *count,
            };
            others.map(group).collect()
        }
        Links::None => Vec::new(),
    };
    // Switches from Hopper's on form a fabric that the cards join; within one machine its UUID is zero.
    let cluster = match product.architecture {
        Architecture::Hopper => Some("00000000-0000-0000-0000-000000000000"),
        Architecture::Blackwell => Some(GB200_CLUSTER),
        _ => None,
    };
    let cluster = cluster.filter(|_| matches!(links, Links::Switches(_)));
    let fabric = cluster.map(|cluster| Fabric {
        cluster_uuid: cluster.to_owned(),
        clique: 0,
    });
    Device {
        uuid: uuid("GPU", &place),
        name: product.name.to_owned(),
        serial: Some(format!("{:013}", identity % 10_000_000_000_000)),
        memory_mib: product.memory_mib,
        memory_reserved_mib: product.memory_reserved_mib,
        minor: u32::try_from(index).expect("a machine has few devices"),
        pci: address(slot.bus),
        pci_device_id: Some(product.pci_device_id.to_owned()),
        numa: slot.numa,
        cpus: slot
            .cpus
            .parse::<CpuList>()
            .expect("the lists of this file are well formed"),
        host_bridge: Some(slot.host_bridge),
        pcie_switches: slot.pcie_switches,
        architecture: product.architecture,
        compute_capability: product.compute_capability,
        mig_instances_max: product.mig_instances_max,
        power_limit_mw: product.power_limit_mw,
        clocks_max_mhz: product.clocks_max_mhz,
        nvlink_version: product.nvlink_version,
        nvlinks,
        fabric,
        mig_needs_reset: false,
        telemetry: Telemetry::default(),
        fault: None,
        xids: Vec::new(),
        vgpu: None,
    }
}

fn address(bus: u8) -> PciAddress {
    PciAddress {
        domain: 0,
        bus,
        device: 0,
    }
}

/// A random-looking UUID (version 4 by its bits) that is the same for the same text.
pub(crate) fn uuid(kind: &str, of: &str) -> String {
    let bits = digest(of) & !(0xF << 76) & !(0b11 << 62) | 0x4 << 76 | 0b10 << 62;
    let digits = format!("{bits:032x}");
    format!(
        "{kind}-{}-{}-{}-{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..]
    )
}

/// 128 bits from a text by FNV-1a, which is written down and will not change with a
/// library's version, as the standard hasher may.
fn digest(text: &str) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let step = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    let hash = text.bytes().fold(OFFSET, step);
    // Short texts that differ at their end leave the upper bits alike: once more over
    // the hash's own bytes spreads the difference.
    hash.to_be_bytes().into_iter().fold(hash, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_named_machine_is_a_valid_file_and_survives_it() {
        for model in MODELS {
            let machine = machine(model, "seed").expect("a named model");
            assert_eq!(Machine::parse(&machine.to_json()).expect(model), machine);
        }
        assert!(machine("dgx-9000", "seed").is_none());
    }

    #[test]
    fn uuids_follow_from_the_seed_and_no_two_are_alike() {
        let uuids = |seed: &str| -> Vec<String> {
            let machine = machine("dgx-h100", seed).expect("a named model");
            machine
                .devices
                .into_iter()
                .map(|device| device.uuid)
                .collect()
        };
        assert_eq!(uuids("h100-1"), uuids("h100-1"));
        let all: BTreeSet<String> = (0..1000)
            .flat_map(|n| uuids(&format!("h100-{n}")))
            .collect();
        assert_eq!(all.len(), 8_000);
        assert!(
            all.iter()
                .all(|uuid| uuid.len() == 40 && uuid.as_bytes()[18] == b'4')
        );
    }
}
