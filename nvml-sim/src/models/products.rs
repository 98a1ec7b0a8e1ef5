//! The cards of the named machines.

use crate::machine::{Architecture, Clocks, ComputeCapability};

/// A card as its data sheet has it.
pub(super) struct Product {
    pub name: &'static str,
    pub memory_mib: u64,
    pub memory_reserved_mib: u64,
    pub pci_device_id: &'static str,
    pub architecture: Architecture,
    pub compute_capability: ComputeCapability,
    pub mig_instances_max: u32,
    pub power_limit_mw: u32,
    pub clocks_max_mhz: Clocks,
    pub nvlink_version: Option<u32>,
}

pub(super) const A100_SXM4_80GB: Product = Product {
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

pub(super) const A100_PCIE_80GB: Product = Product {
    name: "NVIDIA A100 80GB PCIe",
    pci_device_id: "20B5",
    power_limit_mw: 300_000,
    clocks_max_mhz: Clocks {
        graphics: 1_410,
        memory: 1_512,
    },
    ..A100_SXM4_80GB
};

pub(super) const H100_80GB: Product = Product {
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

pub(super) const H200: Product = Product {
    name: "NVIDIA H200",
    memory_mib: 143_771,
    pci_device_id: "2335",
    clocks_max_mhz: Clocks {
        graphics: 1_980,
        memory: 3_201,
    },
    ..H100_80GB
};

pub(super) const L40S: Product = Product {
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

pub(super) const A30: Product = Product {
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

pub(super) const V100_SXM3_32GB: Product = Product {
    name: "Tesla V100-SXM3-32GB",
    memory_mib: 32_768,
    memory_reserved_mib: 300,
    pci_device_id: "1DB8",
    architecture: Architecture::Volta,
    compute_capability: ComputeCapability { major: 7, minor: 0 },
    mig_instances_max: 0,
    power_limit_mw: 350_000,
    clocks_max_mhz: Clocks {
        graphics: 1_597,
        memory: 958,
    },
    nvlink_version: Some(2),
};

pub(super) const GB200: Product = Product {
    name: "NVIDIA GB200",
    memory_mib: 189_471,
    memory_reserved_mib: 600,
    pci_device_id: "2941",
    architecture: Architecture::Blackwell,
    compute_capability: ComputeCapability {
        major: 10,
        minor: 0,
    },
    mig_instances_max: 7,
    power_limit_mw: 1_200_000,
    clocks_max_mhz: Clocks {
        graphics: 2_062,
        memory: 3_996,
    },
    nvlink_version: Some(5),
};

pub(super) const RTX_4090: Product = Product {
    name: "NVIDIA GeForce RTX 4090",
    memory_mib: 24_564,
    memory_reserved_mib: 350,
    pci_device_id: "2684",
    power_limit_mw: 450_000,
    clocks_max_mhz: Clocks {
        graphics: 3_105,
        memory: 10_501,
    },
    ..L40S
};
