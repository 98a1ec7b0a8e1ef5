//! The named machines: how each is built, from its cards to its buses and links.

use crate::machine::{
    Architecture, Clocks, ComputeCapability, CpuList, Device, Fabric, Machine, NvlinkEnd,
    NvlinkGroup, PciAddress, Telemetry,
};

/// The driver that a generated machine claims: it knows all of these cards, and it is
/// older than 580.82, where the numbers of some field values changed.
pub const DRIVER_VERSION: &str = "570.133.20";
/// The CUDA version that comes with that driver: 12.8.
pub const CUDA_VERSION: i32 = 12_080;

/// The names that [`machine`] knows.
pub const MODELS: [&str; 7] = [
    "dgx-a100",
    "dgx-h100",
    "dgx-h200",
    "l40s-4",
    "l40s-8",
    "a100-pcie-8",
    "a30-4",
];

/// A card as its data sheet has it.
struct Product {
    name: &'static str,
    memory_mib: u64,
    memory_reserved_mib: u64,
    pci_device_id: &'static str,
    architecture: Architecture,
    compute_capability: ComputeCapability,
    mig_instances_max: u32,
    power_limit_mw: u32,
    clocks_max_mhz: Clocks,
    nvlink_version: Option<u32>,
}

const A100_SXM4_80GB: Product = Product {
    name: "NVIDIA A100-SXM4-80GB",
    memory_mib: 81_920,
    memory_reserved_mib: 600,
    pci_device_id: "20B2",
    architecture: Architecture::Ampere,
    compute_capability: ComputeCapability { major: 8, minor: 0 },
    mig_instances_max: 7,
    power_limit_mw: 400_000,
    clocks_max_mhz: Clocks {
        graphics: 1_410,
        memory: 1_593,
    },
    nvlink_version: Some(3),
};

const A100_PCIE_80GB: Product = Product {
    name: "NVIDIA A100 80GB PCIe",
    pci_device_id: "20B5",
    power_limit_mw: 300_000,
    clocks_max_mhz: Clocks {
        graphics: 1_410,
        memory: 1_512,
    },
    ..A100_SXM4_80GB
};

const H100_80GB: Product = Product {
    name: "NVIDIA H100 80GB HBM3",
    memory_mib: 81_559,
    memory_reserved_mib: 551,
    pci_device_id: "2330",
    architecture: Architecture::Hopper,
    compute_capability: ComputeCapability { major: 9, minor: 0 },
    mig_instances_max: 7,
    power_limit_mw: 700_000,
    clocks_max_mhz: Clocks {
        graphics: 1_980,
        memory: 2_619,
    },
    nvlink_version: Some(4),
};

const H200: Product = Product {
    name: "NVIDIA H200",
    memory_mib: 143_771,
    pci_device_id: "2335",
    clocks_max_mhz: Clocks {
        graphics: 1_980,
        memory: 3_201,
    },
    ..H100_80GB
};

const L40S: Product = Product {
    name: "NVIDIA L40S",
    memory_mib: 46_068,
    memory_reserved_mib: 499,
    pci_device_id: "26B9",
    architecture: Architecture::Ada,
    compute_capability: ComputeCapability { major: 8, minor: 9 },
    mig_instances_max: 0,
    power_limit_mw: 350_000,
    clocks_max_mhz: Clocks {
        graphics: 2_520,
        memory: 9_001,
    },
    nvlink_version: None,
};

const A30: Product = Product {
    name: "NVIDIA A30",
    memory_mib: 24_576,
    memory_reserved_mib: 512,
    pci_device_id: "20B7",
    architecture: Architecture::Ampere,
    compute_capability: ComputeCapability { major: 8, minor: 0 },
    mig_instances_max: 4,
    power_limit_mw: 165_000,
    clocks_max_mhz: Clocks {
        graphics: 1_440,
        memory: 1_215,
    },
    nvlink_version: Some(3),
};

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
        Links::None => Vec::new(),
    };
    // Hopper's switches form a fabric that the cards join; within one machine its UUID is zero.
    let fabric = (matches!(links, Links::Switches(_))
        && product.architecture == Architecture::Hopper)
        .then(|| Fabric {
            cluster_uuid: "00000000-0000-0000-0000-000000000000".to_owned(),
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
