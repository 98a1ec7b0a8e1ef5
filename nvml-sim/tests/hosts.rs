//! Account of processes and virtual GPUs, as the built library tells them.

#![allow(clippy::unwrap_used)]

mod common;

use common::Simulated;
use nvml_sim::machine::{ActiveVgpu, Process, ProcessKind, Vgpu};
use nvml_wrapper::error::NvmlError;

#[test]
fn account_is_kept_of_the_processes_of_a_device_once_that_is_asked_for() {
    let mut simulated = Simulated::start("l40s-4");
    let uuid = simulated.machine.devices[0].uuid.clone();
    let process = Process {
        pid: 7,
        uuid,
        kind: ProcessKind::Compute,
        memory_used_mib: 300,
        load_percent: 40,
    };
    simulated.change(|machine| machine.processes = vec![process]);
    {
        let mut device = simulated.nvml.device_by_index(0).unwrap();
        assert!(!device.is_accounting_enabled().unwrap());
        assert_eq!(device.accounting_pids().unwrap(), Vec::<u32>::new());
        device.set_accounting(true).unwrap();
        assert!(device.is_accounting_enabled().unwrap());
        assert_eq!(device.accounting_buffer_size().unwrap(), 4000);
        assert_eq!(device.accounting_pids().unwrap(), [7]);
        let told = device.accounting_stats_for(7).unwrap();
        assert_eq!(
            (told.gpu_utilization, told.memory_utilization),
            (Some(40), Some(20))
        );
        assert_eq!(told.max_memory_usage, Some(300 * 1024 * 1024));
        assert!(told.is_running);
        assert!(device.accounting_stats_for(8).is_err());
    }
    simulated.change(|machine| machine.processes.clear());
    let mut device = simulated.nvml.device_by_index(0).unwrap();
    let told = device.accounting_stats_for(7).unwrap();
    assert!(!told.is_running, "it has left and is remembered");
    assert_eq!(told.max_memory_usage, Some(300 * 1024 * 1024));
    device.clear_accounting_pids().unwrap();
    assert_eq!(device.accounting_pids().unwrap(), Vec::<u32>::new());
}

#[test]
fn types_of_virtual_gpus_are_those_of_the_size_that_is_there_unless_sizes_mix() {
    let mut simulated = Simulated::start("l40s-4");
    {
        let device = simulated.nvml.device_by_index(0).unwrap();
        let ordinary = device.vgpu_supported_types();
        assert!(matches!(ordinary, Err(NvmlError::NotSupported)));
    }
    let active = ActiveVgpu {
        kind: "NVIDIA L40S-12Q".to_owned(),
        uuid: "ab5d3f2c-0000-4000-8000-000000000001".to_owned(),
        vm: "0a1b2c3d-0000-4000-8000-000000000002".to_owned(),
        memory_used_mib: 512,
    };
    simulated.change(|machine| machine.devices[0].vgpu = Some(Vgpu::default()));
    let names = |simulated: &Simulated| -> Vec<String> {
        let device = simulated.nvml.device_by_index(0).unwrap();
        let types = device.vgpu_creatable_types().unwrap();
        types.iter().map(|kind| kind.name().unwrap()).collect()
    };
    assert_eq!(names(&simulated).len(), 17, "all of an empty device");
    {
        let device = simulated.nvml.device_by_index(0).unwrap();
        let types = device.vgpu_supported_types().unwrap();
        let twelve = types.iter().find(|k| k.name().unwrap().ends_with("-12Q"));
        let twelve = twelve.unwrap();
        assert_eq!(twelve.class_name().unwrap(), "Quadro");
        assert_eq!(twelve.framebuffer_size().unwrap(), 12 * 1024 * 1024 * 1024);
        assert_eq!(twelve.max_instances().unwrap(), 4);
        assert_eq!(device.active_vgpus().unwrap().len(), 0);
    }
    simulated.change(|machine| {
        machine.devices[0].vgpu = Some(Vgpu {
            heterogeneous: false,
            active: vec![active],
        });
    });
    assert_eq!(names(&simulated), ["NVIDIA L40S-12Q", "NVIDIA L40S-12C"]);
    {
        let device = simulated.nvml.device_by_index(0).unwrap();
        let there = device.active_vgpus().unwrap();
        let kind = there[0].instance_type().unwrap();
        assert_eq!(kind.name().unwrap(), "NVIDIA L40S-12Q");
        assert_eq!(there[0].fb_usage().unwrap(), 512 * 1024 * 1024);
        assert_eq!(
            there[0].uuid().unwrap(),
            "ab5d3f2c-0000-4000-8000-000000000001"
        );
    }
    simulated.change(|machine| {
        let vgpu = machine.devices[0].vgpu.as_mut().unwrap();
        vgpu.heterogeneous = true;
    });
    let mixed = names(&simulated);
    assert!(mixed.contains(&"NVIDIA L40S-24Q".to_owned()), "{mixed:?}");
    assert!(!mixed.contains(&"NVIDIA L40S-48Q".to_owned()), "no room");
}
