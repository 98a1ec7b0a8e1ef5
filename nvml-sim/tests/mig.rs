//! MIG as an agent drives it: through nvml-wrapper's library, by the raw calls that the wrapper lacks.

#![allow(unsafe_code)]

mod common;

use common::Simulated;
use nvml_sim::machine::{Fault, Process, ProcessKind};
use nvml_wrapper::Device;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper_sys::bindings as sys;

const IN_USE: u32 = 19;
const RESET_REQUIRED: u32 = 16;
const INSUFFICIENT_RESOURCES: u32 = 23;
const INVALID_ARGUMENT: u32 = 2;
const NOT_FOUND: u32 = 6;
const NO_PERMISSION: u32 = 4;
const MIB: u64 = 1024 * 1024;

/// Calls a function of the library by its C name.
macro_rules! raw {
    ($simulated:expr, $call:ident($($argument:expr),*)) => {{
        let call = $simulated.nvml.lib().$call.as_ref().expect("every symbol is exported");
        // SAFETY: the arguments live for the call and are what NVML's header says.
        unsafe { call($($argument),*) }
    }};
}

fn handle(device: &Device<'_>) -> sys::nvmlDevice_t {
    // SAFETY: the handle is only passed back to the library that gave it.
    unsafe { device.handle() }
}

fn set_mode(simulated: &Simulated, at: u32, on: bool) -> (u32, u32) {
    let device = simulated
        .nvml
        .device_by_index(at)
        .expect("the machine has it");
    let mut status = 999;
    let answer = raw!(
        simulated,
        nvmlDeviceSetMigMode(handle(&device), u32::from(on), &mut status)
    );
    (answer, status)
}

fn create(
    simulated: &Simulated,
    profile: u32,
    start: u32,
    size: u32,
) -> Result<sys::nvmlGpuInstance_t, u32> {
    let device = simulated
        .nvml
        .device_by_index(0)
        .expect("the machine has it");
    let place = sys::nvmlGpuInstancePlacement_t { start, size };
    let mut made = std::ptr::null_mut();
    match raw!(
        simulated,
        nvmlDeviceCreateGpuInstanceWithPlacement(handle(&device), profile, &place, &mut made)
    ) {
        0 => Ok(made),
        code => Err(code),
    }
}

fn create_compute(simulated: &Simulated, of: sys::nvmlGpuInstance_t, profile: u32) -> String {
    let mut made = std::ptr::null_mut();
    let answer = raw!(
        simulated,
        nvmlGpuInstanceCreateComputeInstance(of, profile, &mut made)
    );
    assert_eq!(answer, 0);
    // SAFETY: a structure of numbers and addresses, all of which may be zero.
    let mut info: sys::nvmlComputeInstanceInfo_t = unsafe { std::mem::zeroed() };
    assert_eq!(
        raw!(simulated, nvmlComputeInstanceGetInfo_v2(made, &mut info)),
        0
    );
    // SAFETY: the handle came from this library.
    unsafe { Device::new(info.device, &simulated.nvml) }
        .uuid()
        .expect("an instance that was made has a name")
}

#[test]
fn an_idle_device_is_cut_and_its_parts_are_devices_of_their_own() {
    let simulated = Simulated::start("dgx-h100");
    let device = simulated.nvml.device_by_index(0).unwrap();
    assert_eq!(create(&simulated, 9, 4, 4), Err(3), "MIG is off");
    assert_eq!(set_mode(&simulated, 0, true), (0, 0));
    let mode = device.mig_mode().unwrap();
    assert_eq!((mode.current, mode.pending), (1, 1));
    assert_eq!(device.mig_device_count().unwrap(), 7);
    assert!(
        device.utilization_rates().is_err(),
        "a cut device tells of no load"
    );

    // SAFETY: a structure of numbers and letters, all of which may be zero.
    let mut info: sys::nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
    info.version = 0x0200_0098;
    let answer = raw!(
        simulated,
        nvmlDeviceGetGpuInstanceProfileInfoV(handle(&device), 2, &mut info)
    );
    assert_eq!((answer, info.id, info.sliceCount), (0, 9, 3));
    let mut count = 0;
    let mut places = [sys::nvmlGpuInstancePlacement_t { start: 9, size: 9 }; 4];
    let answer = raw!(
        simulated,
        nvmlDeviceGetGpuInstancePossiblePlacements_v2(
            handle(&device),
            9,
            places.as_mut_ptr(),
            &mut count
        )
    );
    assert_eq!((answer, count), (0, 2));
    assert_eq!((places[1].start, places[1].size), (4, 4));

    let right = create(&simulated, 9, 4, 4).unwrap();
    let left = create(&simulated, 5, 0, 4).unwrap();
    assert_eq!(create(&simulated, 19, 6, 1), Err(INSUFFICIENT_RESOURCES));
    assert_eq!(
        create(&simulated, 19, 7, 1),
        Err(INVALID_ARGUMENT),
        "none starts there"
    );
    let uuid = create_compute(&simulated, right, 2);
    let other = create_compute(&simulated, left, 3);
    assert!(uuid.starts_with("MIG-") && uuid != other, "{uuid}");
    let part = simulated.nvml.device_by_uuid(uuid.as_str()).unwrap();
    assert!(part.mig_is_mig_device_handle().unwrap());
    assert_eq!(part.name().unwrap(), "NVIDIA H100 80GB HBM3 MIG 3g.40gb");
    assert_eq!(part.memory_info().unwrap().total, 40_448 * MIB);
    assert!(matches!(part.power_usage(), Err(NvmlError::NotSupported)));
    let parent = part.mig_parent_device().unwrap();
    assert_eq!(parent.uuid().unwrap(), device.uuid().unwrap());
    let attributes = part.attributes().unwrap();
    assert_eq!(attributes.gpu_instance_slice_count, 3);
    let mut hole = std::ptr::null_mut();
    let answer = raw!(
        simulated,
        nvmlDeviceGetMigDeviceHandleByIndex(handle(&device), 5, &mut hole)
    );
    assert_eq!(answer, NOT_FOUND);
}

#[test]
fn what_has_clients_or_parts_is_in_use() {
    let mut simulated = Simulated::start("dgx-a100");
    let uuid = simulated.machine.devices[0].uuid.clone();
    let on = |uuid: &str| Process {
        pid: 4242,
        uuid: uuid.to_owned(),
        kind: ProcessKind::Compute,
        memory_used_mib: 100,
        load_percent: 0,
    };
    simulated.change(|machine| machine.processes.push(on(&uuid)));
    assert_eq!(
        set_mode(&simulated, 0, true),
        (0, IN_USE),
        "success, and yet not done"
    );
    let mode = simulated
        .nvml
        .device_by_index(0)
        .unwrap()
        .mig_mode()
        .unwrap();
    assert_eq!((mode.current, mode.pending), (0, 1));
    simulated.change(|machine| machine.processes.clear());
    assert_eq!(set_mode(&simulated, 0, true), (0, 0));

    let whole = create(&simulated, 0, 0, 8).unwrap();
    let part = create_compute(&simulated, whole, 4);
    assert_eq!(raw!(simulated, nvmlGpuInstanceDestroy(whole)), IN_USE);
    simulated.change(|machine| machine.processes.push(on(&part)));
    let mut compute = std::ptr::null_mut();
    let found = raw!(
        simulated,
        nvmlGpuInstanceGetComputeInstanceById(whole, 0, &mut compute)
    );
    assert_eq!(found, 0);
    assert_eq!(raw!(simulated, nvmlComputeInstanceDestroy(compute)), IN_USE);
    let device = simulated.nvml.device_by_index(0).unwrap();
    let processes = device.running_compute_processes().unwrap();
    assert_eq!(processes[0].gpu_instance_id, Some(0));
    simulated.change(|machine| machine.processes.clear());
    assert_eq!(raw!(simulated, nvmlComputeInstanceDestroy(compute)), 0);
    assert_eq!(
        raw!(simulated, nvmlComputeInstanceDestroy(compute)),
        INVALID_ARGUMENT
    );
    assert!(simulated.nvml.device_by_uuid(part.as_str()).is_err());
    assert_eq!(raw!(simulated, nvmlGpuInstanceDestroy(whole)), 0);
}

#[test]
fn work_on_an_instance_loads_as_much_of_its_device_as_the_instance_is() {
    let mut simulated = Simulated::start("dgx-h100");
    set_mode(&simulated, 0, true);
    let instance = create(&simulated, 19, 0, 1).unwrap();
    let part = create_compute(&simulated, instance, 0);
    simulated.change(|machine| {
        machine.processes.push(Process {
            pid: 4242,
            uuid: part,
            kind: ProcessKind::Compute,
            memory_used_mib: 100,
            load_percent: 70,
        });
    });
    let device = simulated.nvml.device_by_index(0).unwrap();
    let between = |before: &GpmSample<'_>, after: &GpmSample<'_>| {
        let told = gpm_metrics_get(&simulated.nvml, before, after, &[GpmMetricId::SmUtil]);
        told.unwrap().remove(0).unwrap().value
    };
    let processes = device.running_compute_processes().unwrap();
    let id = processes[0].gpu_instance_id.unwrap();
    let of_part = || device.gpm_mig_sample(id).unwrap();
    assert!((between(&of_part(), &of_part()) - 70.0).abs() < 0.1);
    let of_all = || device.gpm_sample().unwrap();
    let share = between(&of_all(), &of_all());
    assert!((share - 10.0).abs() < 0.1, "one slice of seven: {share}");
}

#[test]
fn a_machine_that_starts_anew_has_no_instances_and_a_newer_card_no_mode() {
    for (model, mode) in [("dgx-a100", 1), ("dgx-h100", 0)] {
        let mut simulated = Simulated::start(model);
        set_mode(&simulated, 0, true);
        let instance = create(&simulated, 19, 0, 1).unwrap();
        let part = create_compute(&simulated, instance, 0);
        assert!(simulated.nvml.device_by_uuid(part.as_str()).is_ok());
        simulated.change(|machine| machine.boot += 1);
        let device = simulated.nvml.device_by_index(0).unwrap();
        assert_eq!(device.mig_mode().unwrap().current, mode, "{model}");
        assert!(simulated.nvml.device_by_uuid(part.as_str()).is_err());
    }
}

#[test]
fn who_may_not_cut_is_told_so_and_a_guest_waits_for_a_restart() {
    let mut simulated = Simulated::start("dgx-h100");
    simulated.change(|machine| machine.mig_permitted = false);
    assert_eq!(set_mode(&simulated, 0, true).0, NO_PERMISSION);
    simulated.change(|machine| {
        machine.mig_permitted = true;
        machine.devices[0].mig_needs_reset = true;
    });
    assert_eq!(set_mode(&simulated, 0, true), (0, RESET_REQUIRED));
}

#[test]
fn a_call_that_hangs_returns_once_the_fault_is_gone() {
    let mut simulated = Simulated::start("l40s-4");
    let device = simulated.nvml.device_by_index(1).unwrap().uuid().unwrap();
    simulated.change(|machine| machine.devices[1].fault = Some(Fault::Hangs));
    let waits = std::thread::scope(|scope| {
        let nvml = &simulated.nvml;
        let call = scope.spawn(|| nvml.device_by_uuid(device.as_str()).map(|d| d.name()));
        // The others answer meanwhile.
        assert!(nvml.device_by_index(0).is_ok());
        let waits = !call.is_finished();
        let mut machine = simulated.machine.clone();
        machine.devices[1].fault = None;
        simulated.replace(&machine.to_json());
        assert!(call.join().expect("no panic").is_ok());
        waits
    });
    assert!(waits, "it had not returned before");
}
