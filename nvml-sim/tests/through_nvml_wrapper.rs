//! What an agent sees of simulated machines through nvml-wrapper.

#![allow(unsafe_code)]

mod common;

use std::time::{Duration, Instant};

use common::Simulated;
use nvml_sim::machine::{Fault, Process, ProcessKind, Xid};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TopologyLevel};
use nvml_wrapper::enums::device::{DeviceArchitecture, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as sys;

const GPU: u32 = sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU;
const SWITCH: u32 = sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH;
const MIB: u64 = 1024 * 1024;

#[test]
fn a_dgx_h100_shows_eight_devices_with_their_names() {
    let simulated = Simulated::start("dgx-h100");
    let nvml = &simulated.nvml;
    assert_eq!(nvml.device_count().unwrap(), 8);
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12_080);
    assert_eq!(
        nvml.sys_driver_version().unwrap(),
        simulated.machine.driver_version
    );
    for (index, written) in (0..).zip(&simulated.machine.devices) {
        let device = nvml.device_by_index(index).unwrap();
        assert_eq!(device.name().unwrap(), "NVIDIA H100 80GB HBM3");
        assert_eq!(device.uuid().unwrap(), written.uuid);
        assert_eq!(device.index().unwrap(), index);
        assert_eq!(device.minor_number().unwrap(), index);
        assert_eq!(device.serial().unwrap(), written.serial.clone().unwrap());
        assert_eq!(device.architecture().unwrap(), DeviceArchitecture::Hopper);
        let capability = device.cuda_compute_capability().unwrap();
        assert_eq!((capability.major, capability.minor), (9, 0));
        assert_eq!(
            nvml.device_by_uuid(written.uuid.as_str())
                .unwrap()
                .index()
                .unwrap(),
            index
        );
        let pci = device.pci_info().unwrap();
        assert_eq!(pci.pci_device_id, 0x2330_10DE);
        assert_eq!(pci.bus, u32::from(written.pci.bus));
        assert_eq!(
            nvml.device_by_pci_bus_id(pci.bus_id)
                .unwrap()
                .index()
                .unwrap(),
            index
        );
    }
    assert!(matches!(
        nvml.device_by_index(8),
        Err(NvmlError::InvalidArg)
    ));
    assert!(matches!(
        nvml.device_by_uuid("GPU-none"),
        Err(NvmlError::NotFound)
    ));
}

#[test]
fn memory_v2_tells_reserved_from_used_and_follows_the_processes() {
    let mut simulated = Simulated::start("dgx-h100");
    let uuid = simulated.machine.devices[3].uuid.clone();
    simulated.change(|machine| {
        machine.processes.push(Process {
            pid: 4242,
            uuid,
            kind: ProcessKind::Compute,
            memory_used_mib: 1_000,
            load_percent: 0,
        });
    });
    let device = simulated.nvml.device_by_index(3).unwrap();
    let memory = device.memory_info().unwrap();
    assert_eq!(memory.total, 81_559 * MIB);
    assert_eq!(memory.reserved, 551 * MIB);
    assert_eq!(memory.used, 1_000 * MIB);
    assert_eq!(memory.total, memory.reserved + memory.used + memory.free);
    let processes = device.running_compute_processes().unwrap();
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0].pid, 4242);
    assert_eq!(
        processes[0].used_gpu_memory,
        UsedGpuMemory::Used(1_000 * MIB)
    );
    assert_eq!(processes[0].gpu_instance_id, None);
    assert!(device.running_graphics_processes().unwrap().is_empty());
    assert!(
        simulated
            .nvml
            .device_by_index(0)
            .unwrap()
            .running_compute_processes()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_structure_of_a_wrong_version_is_refused_and_not_written() {
    let simulated = Simulated::start("dgx-h100");
    let device = simulated.nvml.device_by_index(0).unwrap();
    // SAFETY: the handle and the structures live for the calls.
    let (memory, refused) = unsafe {
        let call = simulated
            .nvml
            .lib()
            .nvmlDeviceGetMemoryInfo_v2
            .as_ref()
            .unwrap();
        let mut memory: sys::nvmlMemory_v2_t = std::mem::zeroed();
        memory.version = 0x0100_0028;
        let refused = call(device.handle(), &mut memory);
        (memory, refused)
    };
    assert_eq!(refused, 25);
    assert_eq!(memory.total, 0);
    // SAFETY: as above.
    let answers = unsafe {
        let call = simulated
            .nvml
            .lib()
            .nvmlDeviceGetGpuFabricInfoV
            .as_ref()
            .unwrap();
        [0x0200_0024, 0x0300_0028, 0x0300_0024].map(|version| {
            let mut fabric: sys::nvmlGpuFabricInfoV_t = std::mem::zeroed();
            fabric.version = version;
            call(device.handle(), &mut fabric)
        })
    };
    assert_eq!(answers, [0, 0, 25]);
}

/// What a link leads to; nvml-wrapper 0.13's `remote_device_type` writes the answer to a
/// temporary and returns `Unknown` for any, so the symbol is called itself.
fn remote_type(simulated: &Simulated, device: &nvml_wrapper::Device, link: u32) -> u32 {
    let call = simulated
        .nvml
        .lib()
        .nvmlDeviceGetNvLinkRemoteDeviceType
        .as_ref()
        .expect("a test of its own proves that every symbol is there");
    let mut kind = u32::MAX;
    // SAFETY: the handle and the number live for the call.
    assert_eq!(unsafe { call(device.handle(), link, &mut kind) }, 0);
    kind
}

#[test]
fn a_dgx_h100_is_one_clique_of_eighteen_links_to_switches() {
    let simulated = Simulated::start("dgx-h100");
    for index in 0..8 {
        let device = simulated.nvml.device_by_index(index).unwrap();
        for link in 0..18 {
            let link = device.link_wrapper_for(link);
            assert!(link.is_active().unwrap());
            assert_eq!(link.version().unwrap(), 4);
            assert_eq!(remote_type(&simulated, &device, link.link()), SWITCH);
        }
        assert!(matches!(
            device.link_wrapper_for(18).is_active(),
            Err(NvmlError::InvalidArg)
        ));
    }
    let first = simulated.nvml.device_by_index(0).unwrap();
    let levels: Vec<TopologyLevel> = (1..8)
        .map(|index| {
            let other = simulated.nvml.device_by_index(index).unwrap();
            first.topology_common_ancestor(other).unwrap()
        })
        .collect();
    use TopologyLevel::{Node, System};
    assert_eq!(levels, [Node, Node, Node, System, System, System, System]);
    assert_eq!(first.topology_nearest_gpus(Node).unwrap().len(), 3);
    assert_eq!(first.numa_node_id().unwrap(), 0);
    assert_eq!(
        first.cpu_affinity(4).unwrap(),
        [(1 << 56) - 1, 0xFFFF << 48, (1 << 40) - 1, 0]
    );
    assert!(matches!(
        first.cpu_affinity(1),
        Err(NvmlError::InsufficientSize(_))
    ));
}

#[test]
fn bridged_cards_see_their_peer_and_cards_without_links_see_none() {
    let simulated = Simulated::start("a100-pcie-8");
    let device = simulated.nvml.device_by_index(2).unwrap();
    let link = device.link_wrapper_for(11);
    assert_eq!(remote_type(&simulated, &device, 11), GPU);
    let peer = simulated.nvml.device_by_index(3).unwrap();
    assert_eq!(
        link.remote_pci_info().unwrap().bus_id,
        peer.pci_info().unwrap().bus_id
    );
    assert!(device.link_wrapper_for(12).is_active().is_err());
    drop(simulated);

    let simulated = Simulated::start("l40s-4");
    let device = simulated.nvml.device_by_index(0).unwrap();
    assert!(matches!(
        device.link_wrapper_for(0).is_active(),
        Err(NvmlError::NotSupported)
    ));
    assert!(matches!(device.mig_mode(), Err(NvmlError::NotSupported)));
}

#[test]
fn a_device_taken_from_the_file_is_lost_on_its_handle_and_not_counted() {
    let mut simulated = Simulated::start("dgx-h100");
    let gone = simulated.machine.devices[2].uuid.clone();
    let handle = {
        let device = simulated.nvml.device_by_index(2).unwrap();
        // SAFETY: the handle is only compared and passed back to the library.
        unsafe { device.handle() }.addr()
    };
    let whole = simulated.machine.clone();
    simulated.change(|machine| {
        machine.devices.remove(2);
    });
    let nvml = &simulated.nvml;
    assert_eq!(nvml.device_count().unwrap(), 7);
    assert!(matches!(
        nvml.device_by_uuid(gone.as_str()),
        Err(NvmlError::NotFound)
    ));
    // SAFETY: the handle came from this library.
    let lost = unsafe { nvml_wrapper::Device::new(std::ptr::without_provenance_mut(handle), nvml) };
    assert!(matches!(lost.name(), Err(NvmlError::GpuLost)));
    assert!(matches!(lost.memory_info(), Err(NvmlError::GpuLost)));

    simulated.change(|machine| *machine = whole);
    let back = simulated.nvml.device_by_uuid(gone.as_str()).unwrap();
    assert_eq!(back.index().unwrap(), 2);
    // SAFETY: as above.
    assert_eq!(unsafe { back.handle() }.addr(), handle);
}

#[test]
fn a_fault_written_in_the_file_is_answered_until_it_is_gone() {
    let mut simulated = Simulated::start("l40s-4");
    simulated.change(|machine| machine.devices[1].fault = Some(Fault::GpuIsLost));
    assert_eq!(simulated.nvml.device_count().unwrap(), 4);
    assert!(matches!(
        simulated.nvml.device_by_index(1),
        Err(NvmlError::GpuLost)
    ));
    assert!(simulated.nvml.device_by_index(2).is_ok());
    simulated.change(|machine| machine.devices[1].fault = None);
    assert!(simulated.nvml.device_by_index(1).is_ok());
}

#[test]
fn a_broken_file_leaves_the_machine_as_it_was() {
    let mut simulated = Simulated::start("l40s-4");
    simulated.replace("{\"devices\": [");
    assert_eq!(simulated.nvml.device_count().unwrap(), 4);
    simulated.change(|machine| {
        machine.devices.pop();
    });
    assert_eq!(simulated.nvml.device_count().unwrap(), 3);
}

#[test]
fn sensors_follow_the_file() {
    let mut simulated = Simulated::start("l40s-4");
    simulated.change(|machine| {
        let telemetry = &mut machine.devices[0].telemetry;
        telemetry.utilization_gpu_percent = 87;
        telemetry.utilization_memory_percent = 41;
        telemetry.temperature_c = Some(71);
        telemetry.power_mw = Some(312_000);
        telemetry.ecc.uncorrected_volatile = 2;
        telemetry.remapped_rows.pending = true;
        telemetry.recovery_action = 1;
    });
    let device = simulated.nvml.device_by_index(0).unwrap();
    let utilization = device.utilization_rates().unwrap();
    assert_eq!((utilization.gpu, utilization.memory), (87, 41));
    let sensor = nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu;
    assert_eq!(device.temperature(sensor).unwrap(), 71);
    assert_eq!(device.power_usage().unwrap(), 312_000);
    assert_eq!(device.clock_info(Clock::Graphics).unwrap(), 2_520);
    let errors = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    assert_eq!(errors.unwrap(), 2);
    let field = |number| {
        let id = nvml_wrapper::structs::device::FieldId(number);
        device
            .field_values_for(&[id])
            .unwrap()
            .remove(0)
            .unwrap()
            .value
    };
    use nvml_wrapper::enums::device::SampleValue;
    assert!(matches!(field(230), Ok(SampleValue::U32(1))));
    assert!(matches!(field(144), Ok(SampleValue::U32(1))));
    assert!(matches!(field(4), Ok(SampleValue::U64(2))));
    assert!(matches!(field(64), Err(NvmlError::NotSupported)));
}

#[test]
fn energy_never_runs_backwards_when_the_power_changes() {
    let mut simulated = Simulated::start("l40s-4");
    let read = |simulated: &Simulated| {
        simulated
            .nvml
            .device_by_index(0)
            .unwrap()
            .total_energy_consumption()
            .unwrap()
    };
    simulated.change(|machine| machine.devices[0].telemetry.power_mw = Some(300_000_000));
    let limit = Instant::now() + Duration::from_secs(5);
    while read(&simulated) < 1_000 {
        assert!(
            Instant::now() < limit,
            "300 kW make a joule in far less than five seconds"
        );
        std::thread::yield_now();
    }
    let before = read(&simulated);
    simulated.change(|machine| machine.devices[0].telemetry.power_mw = Some(0));
    assert!(read(&simulated) >= before);
}

#[test]
fn an_xid_appended_to_the_file_is_told_once_and_past_ones_never() {
    let mut simulated = Simulated::start("l40s-4");
    simulated.change(|machine| machine.devices[1].xids.push(Xid::Device(13)));
    let set = simulated.nvml.create_event_set().unwrap();
    let watched = simulated.nvml.device_by_index(1).unwrap();
    assert_eq!(
        watched.supported_event_types().unwrap(),
        EventTypes::CRITICAL_XID_ERROR
    );
    // SAFETY: the handle and set live for the call.
    let registered = unsafe {
        let call = simulated
            .nvml
            .lib()
            .nvmlDeviceRegisterEvents
            .as_ref()
            .unwrap();
        call(
            watched.handle(),
            EventTypes::CRITICAL_XID_ERROR.bits(),
            set.handle(),
        )
    };
    assert_eq!(registered, 0);
    // SAFETY: as above, and the event is written by the call.
    let handle = unsafe { set.handle() };
    let wait = |simulated: &Simulated| unsafe {
        let mut event: sys::nvmlEventData_t = std::mem::zeroed();
        let call = simulated.nvml.lib().nvmlEventSetWait_v2.as_ref().unwrap();
        let answer = call(handle, &mut event, 50);
        let instance = (event.gpuInstanceId, event.computeInstanceId);
        (answer, event.eventData, instance)
    };
    let whole = (u32::MAX, u32::MAX);
    assert_eq!(
        wait(&simulated).0,
        10,
        "an error before the registration is past"
    );
    std::mem::forget(set);
    simulated.change(|machine| machine.devices[1].xids.push(Xid::Device(79)));
    assert_eq!(wait(&simulated), (0, 79, whole));
    let of_instance = Xid::Instance {
        xid: 31,
        gpu_instance: 2,
        compute_instance: 1,
    };
    simulated.change(|machine| machine.devices[1].xids.push(of_instance));
    assert_eq!(wait(&simulated), (0, 31, (2, 1)));
    assert_eq!(wait(&simulated).0, 10);
    simulated.change(|machine| {
        machine.devices.remove(1);
    });
    assert_eq!(wait(&simulated).0, 15, "a device that left is told");
    assert_eq!(wait(&simulated).0, 10, "and told once");
}

#[test]
fn without_a_machine_the_driver_is_not_loaded() {
    let simulated = Simulated::start("l40s-4");
    let Simulated { nvml, .. } = &simulated;
    // SAFETY: the one user's end, and calls without arguments.
    unsafe {
        let shutdown = nvml.lib().nvmlShutdown.as_ref().unwrap();
        let init = nvml.lib().nvmlInit_v2.as_ref().unwrap();
        assert_eq!(shutdown(), 0);
        assert_eq!(shutdown(), 1);
        let before = std::env::var_os(nvml_sim::MACHINE_FILE_VARIABLE).unwrap();
        std::env::set_var(nvml_sim::MACHINE_FILE_VARIABLE, "/nonexistent/machine.json");
        assert_eq!(init(), 9);
        std::env::set_var(nvml_sim::MACHINE_FILE_VARIABLE, before);
        assert_eq!(init(), 0);
    }
}

#[test]
fn what_a_device_suffers_from_is_told_as_the_file_has_it_and_is_over_with_it() {
    let mut simulated = Simulated::start("dgx-h100");
    let seen = |simulated: &Simulated| {
        let device = simulated.nvml.device_by_index(2).unwrap();
        let ecc = |kind, counter| device.total_ecc_errors(kind, counter).unwrap();
        let width = device.current_pcie_link_width().unwrap();
        let generation = device.current_pcie_link_gen().unwrap();
        (
            device.current_throttle_reasons().unwrap().bits(),
            (width, generation),
            ecc(MemoryError::Uncorrected, EccCounter::Aggregate),
            ecc(MemoryError::Corrected, EccCounter::Volatile),
        )
    };
    let well = seen(&simulated);
    assert_eq!(well, (1, (16, 5), 0, 0));
    simulated.change(|machine| {
        let telemetry = &mut machine.devices[2].telemetry;
        telemetry.clocks_event_reasons = Some(0x48);
        telemetry.pcie_width = Some(8);
        telemetry.pcie_generation = Some(3);
        telemetry.ecc.uncorrected_aggregate = 2;
        telemetry.ecc.corrected_volatile = 7;
    });
    assert_eq!(seen(&simulated), (0x48, (8, 3), 2, 7));
    simulated.change(|machine| machine.devices[2].telemetry = Default::default());
    assert_eq!(seen(&simulated), well);
}
