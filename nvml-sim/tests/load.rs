//! Load of devices and of the programs on them, as the built library tells it.

#![allow(clippy::unwrap_used, unsafe_code)]

mod common;

use common::Simulated;
use nvml_sim::machine::{Process, ProcessKind};
use nvml_wrapper::enum_wrappers::device::{Clock, ComputeMode};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as sys;

fn process(uuid: &str, pid: u32, load_percent: u32) -> Process {
    Process {
        pid,
        uuid: uuid.to_owned(),
        kind: ProcessKind::Compute,
        memory_used_mib: 100,
        load_percent,
    }
}

#[test]
fn utilisation_and_power_follow_what_the_processes_of_a_device_do() {
    let mut simulated = Simulated::start("dgx-h100");
    let uuid = simulated.machine.devices[0].uuid.clone();
    let limit = simulated.machine.devices[0].power_limit_mw;
    let read = |simulated: &Simulated| {
        let device = simulated.nvml.device_by_index(0).unwrap();
        (
            device.utilization_rates().unwrap().gpu,
            device.power_usage().unwrap(),
        )
    };
    assert_eq!(read(&simulated), (0, limit / 10));
    simulated.change(|machine| {
        machine.processes = vec![process(&uuid, 7, 30), process(&uuid, 8, 20)];
    });
    let (load, power) = read(&simulated);
    assert_eq!(load, 50);
    assert!(limit / 2 < power && power < limit, "{power}");
    let device = simulated.nvml.device_by_index(0).unwrap();
    let told = device.process_utilization_stats(None).unwrap();
    let told: Vec<(u32, u32)> = told.iter().map(|told| (told.pid, told.sm_util)).collect();
    assert_eq!(told, [(7, 30), (8, 20)]);
    let memory = device.process_utilization_stats(None).unwrap();
    let memory: Vec<u32> = memory.iter().map(|told| told.mem_util).collect();
    assert_eq!(memory, [15, 10], "and of memory's bandwidth half of that");
    assert_eq!(device.utilization_rates().unwrap().memory, 25);
    let clock = |device: &nvml_wrapper::Device<'_>| device.clock_info(Clock::Graphics).unwrap();
    assert_eq!(
        clock(&device),
        simulated.machine.devices[0].clocks_max_mhz.graphics
    );
    let idle = simulated.nvml.device_by_index(1).unwrap();
    assert!(clock(&idle) < clock(&device));
    simulated.change(|machine| machine.processes.push(process(&uuid, 9, 90)));
    assert_eq!(read(&simulated), (100, limit), "no more than all of it");
}

#[test]
fn samples_tell_the_load_between_them_from_hopper_on_and_nothing_before() {
    let mut simulated = Simulated::start("dgx-h100");
    let uuid = simulated.machine.devices[0].uuid.clone();
    simulated.change(|machine| machine.processes = vec![process(&uuid, 7, 40)]);
    let first = simulated.nvml.device_by_index(0).unwrap();
    assert!(first.gpm_support().unwrap());
    let before = first.gpm_sample().unwrap();
    // The samples borrow the library; the file is replaced beside it.
    let mut busier = simulated.machine.clone();
    busier.processes = vec![process(&uuid, 7, 80)];
    simulated.replace(&busier.to_json());
    let device = simulated.nvml.device_by_index(0).unwrap();
    let after = device.gpm_sample().unwrap();
    let asked = [sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL, 99];
    // SAFETY: numbers and addresses, all of which may be zero.
    let mut metrics: sys::nvmlGpmMetricsGet_t = unsafe { std::mem::zeroed() };
    (metrics.version, metrics.numMetrics) = (1, 2);
    // SAFETY: both samples outlive the structure.
    (metrics.sample1, metrics.sample2) = unsafe { (before.handle(), after.handle()) };
    for (entry, id) in metrics.metrics.iter_mut().zip(asked) {
        entry.metricId = id;
    }
    let ask = simulated.nvml.lib().nvmlGpmMetricsGet.as_ref().unwrap();
    // SAFETY: the structure outlives the call.
    assert_eq!(unsafe { ask(&raw mut metrics) }, 0);
    let told = &metrics.metrics;
    assert!((told[0].value - 60.0).abs() < 0.1, "{}", told[0].value);
    assert_eq!(
        told[1].nvmlReturn,
        sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED
    );
    drop((before, after));
    drop(simulated);

    let older = Simulated::start("dgx-a100");
    let device = older.nvml.device_by_index(0).unwrap();
    assert!(!device.gpm_support().unwrap());
    assert!(matches!(device.gpm_sample(), Err(NvmlError::NotSupported)));
}

#[test]
fn a_compute_mode_stays_until_another_is_set_and_a_cut_device_takes_none() {
    let simulated = Simulated::start("dgx-h100");
    let mut device = simulated.nvml.device_by_index(0).unwrap();
    assert_eq!(device.compute_mode().unwrap(), ComputeMode::Default);
    device
        .set_compute_mode(ComputeMode::ExclusiveProcess)
        .unwrap();
    assert_eq!(
        device.compute_mode().unwrap(),
        ComputeMode::ExclusiveProcess
    );
    device.set_compute_mode(ComputeMode::Default).unwrap();
    device.set_mig_mode(true).unwrap();
    let refused = device.set_compute_mode(ComputeMode::ExclusiveProcess);
    assert!(matches!(refused, Err(NvmlError::NotSupported)));
}

#[test]
fn boxes_without_switches_and_racks_are_linked_as_they_are() {
    let links = |model: &str| {
        let machine = nvml_sim::models::machine(model, "tests").unwrap();
        let first = &machine.devices[0];
        let count: u32 = first.nvlinks.iter().map(|group| group.count).sum();
        (machine.devices.len(), first.nvlinks.len(), count)
    };
    assert_eq!(links("dgx-2"), (16, 6, 6));
    assert_eq!(links("gb200-4"), (4, 9, 18));
    assert_eq!(links("h100-sxm-4"), (4, 3, 18));
    assert_eq!(links("rtx4090-4"), (4, 0, 0));
    let domain = |seed: &str| {
        let machine = nvml_sim::models::machine("gb200-4", seed).unwrap();
        machine.devices[3].fabric.clone().unwrap().cluster_uuid
    };
    assert_eq!(domain("tray-1"), domain("tray-2"), "one rack");
}
