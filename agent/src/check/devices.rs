//! What can be done with the devices: the driver, each device, and the ways of sharing them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::state::DeviceHealth;

use super::{Finding, Need, State, laid};
use crate::config::Config;
use crate::folders::health_of;
use crate::gpus::alone::Alone;
use crate::gpus::cut::MigPolicy;
use crate::gpus::findings::Finding as Found;
use crate::gpus::health::{self, Health};
use crate::gpus::mig::Mig;
use crate::gpus::nvml::{self, ReadError};
use crate::gpus::{Gpu, Reading, SILENT, permission};
use crate::{mps, proc};

/// Longest wait for NVML: a driver that loads takes some seconds, and one that hangs never answers.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// Where the kernel lists devices that can be split by mediated devices.
const MEDIATED: &str = "/sys/class/mdev_bus";
/// Where it lists devices by address.
const PCI: &str = "/sys/bus/pci/devices";
/// What a virtual function of NVIDIA's has, where virtual GPUs are handed out by it.
const VIRTUAL_FUNCTION: &str = "nvidia/creatable_vgpu_types";

/// What NVML told at one moment.
struct Driver {
    nvml_version: String,
    reading: Reading,
}

pub(super) fn look(config: &Config) -> Vec<Finding> {
    let driver = ask(config.nvml_library.clone());
    let mut findings = Vec::new();
    match &driver {
        Ok(driver) => {
            findings.push(Finding::ok(
                "driver",
                Need::Needed,
                format!(
                    "version {}, NVML {}",
                    driver.reading.driver_version, driver.nvml_version
                ),
            ));
            findings.extend(devices(config, &driver.reading));
            let capability = permission::capability(config.mig_capability.as_deref());
            let permitted = permission::may_cut(capability);
            findings.extend(mig(&driver.reading, config.mig, permitted, capability));
            findings.extend(laid::layout(config, &driver.reading));
        }
        Err(words) => findings.push(Finding::ok("driver", Need::Needed, words.clone()).but(
            State::Missing,
            "install NVIDIA's driver and load it (`nvidia-smi` shows whether it is), or name its library by nvml_library",
        )),
    }
    let version = driver
        .as_ref()
        .ok()
        .map(|d| d.reading.driver_version.as_str());
    findings.extend(laid::probe(config));
    findings.push(shared_by_mps(config.mps_control.as_deref(), version));
    findings.push(virtual_gpus(Path::new(MEDIATED), Path::new(PCI)));
    findings
}

/// Asks NVML for all devices, each for itself: one that hangs keeps none of the others from being told.
fn ask(library: Option<PathBuf>) -> Result<Driver, String> {
    let read = move || -> Result<Driver, ReadError> {
        let nvml = nvml::open(library.as_deref())?;
        Ok(Driver {
            nvml_version: nvml.sys_nvml_version().unwrap_or_default(),
            reading: nvml::read_once(library.as_deref())?,
        })
    };
    in_time(read)?.map_err(|error| error.to_string())
}

/// Asks the driver, which may hang.
pub(super) fn in_time<T: Send + 'static>(
    ask: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let silent = || format!("NVML has not answered for {} s", LOOK_TIMEOUT.as_secs());
    let asked = Alone::default().ask("nvml", LOOK_TIMEOUT, ask);
    asked.answer().ok_or_else(silent)
}

fn devices(config: &Config, reading: &Reading) -> Vec<Finding> {
    // Of moments nothing is told here, so that it does not matter of which boot they are.
    let boot = proc::boot_id().unwrap_or_default();
    let health = Health::load(config.health.clone(), health_of(&config.state_dir), &boot);
    let answer = |gpu: &&Gpu| !reading.silent.contains(&gpu.index);
    let known = reading.gpus.iter().filter(answer);
    let mut findings: Vec<Finding> = known
        .map(|gpu| {
            let signs = reading.signs.get(&gpu.uuid);
            let shows = signs.and_then(|signs| health::shown(&config.health, signs));
            device(gpu, &health.findings(&gpu.uuid), shows)
        })
        .collect();
    let answering = findings.len();
    findings.extend(reading.silent.iter().map(|index| {
        Finding::ok(format!("device {index}"), Need::Optional, SILENT).but(
            State::Missing,
            "look for Xid errors in the kernel's log (`dmesg`); reset the device or restart the machine",
        )
    }));
    findings.extend(reading.failures.iter().map(|(index, words)| {
        Finding::ok(format!("device {index}"), Need::Optional, words.clone()).but(
            State::Missing,
            "look for Xid errors in the kernel's log (`dmesg`); reset the device or restart the machine",
        )
    }));
    if answering == 0 {
        findings.push(
            Finding::ok("devices", Need::Needed, "the driver has no device that answers").but(
                State::Missing,
                "`lspci -d 10de:` lists the cards that the machine sees, `dmesg` why the driver left one out",
            ),
        );
    }
    findings
}

/// A device that answers: what was found of it and is not cleared, or what it shows now, the worst of it.
fn device(gpu: &Gpu, found: &[Found], shows: Option<(DeviceHealth, String)>) -> Finding {
    let seen = format!(
        "{} {}, {} MiB, at {}",
        gpu.uuid, gpu.product_name, gpu.memory_mib, gpu.pci_bus_id
    );
    let well = Finding::ok(format!("device {}", gpu.index), Need::Optional, seen);
    let found = found
        .iter()
        .map(|found| (found.health, found.reason.clone(), true));
    let shows = shows.map(|(health, reason)| (health, reason, false));
    let worst = found
        .chain(shows)
        .max_by_key(|(health, _, _)| *health == DeviceHealth::Failed);
    let Some((health, reason, stays)) = worst else {
        return well;
    };
    let state = match health {
        DeviceHealth::Failed => State::Missing,
        _ => State::Warning,
    };
    let remedy = match stays {
        true => format!(
            "gets no work until what was found is dealt with and cleared: allot clear NODE {}",
            gpu.index
        ),
        false => {
            "gets no work while that is so: reset the device or restart the machine".to_owned()
        }
    };
    Finding {
        seen: format!("{health}: {reason}; {}", well.seen),
        ..well.but(state, remedy)
    }
}

/// MIG for each device that has it; one line where none has.
fn mig(reading: &Reading, policy: MigPolicy, permitted: bool, capability: &Path) -> Vec<Finding> {
    let cuttable = reading
        .gpus
        .iter()
        .filter_map(|gpu| Some((gpu, reading.mig.get(&gpu.uuid)?)));
    let mut findings: Vec<Finding> = cuttable
        .map(|(gpu, mig)| of_device(gpu, mig, policy, permitted, capability))
        .collect();
    if findings.is_empty() && !reading.gpus.is_empty() {
        findings.push(
            Finding::ok("mig", Need::Optional, "no device here can be cut by MIG").but(
                State::Missing,
                "nothing: share these devices by time slices or by MPS",
            ),
        );
    }
    findings
}

fn of_device(
    gpu: &Gpu,
    mig: &Mig,
    policy: MigPolicy,
    permitted: bool,
    capability: &Path,
) -> Finding {
    let mode = match (mig.on, mig.pending) {
        (false, false) => "off".to_owned(),
        (true, true) => format!("on, {} instances", mig.instances.len()),
        (true, false) => "on, and off after a reset".to_owned(),
        (false, true) => "off, and on after a reset".to_owned(),
    };
    let seen = format!("capable, mode {mode}");
    let found = Finding::ok(format!("mig {}", gpu.index), Need::Optional, seen);
    if policy == MigPolicy::Never {
        return found.but(
            State::Warning,
            "the setting mig is never: dynamic or static would use it",
        );
    }
    if !permitted {
        let remedy = format!(
            "run the agent as root, or let its user read {}",
            capability.display()
        );
        return Finding {
            seen: format!("{}; this user may not cut it", found.seen),
            ..found.but(State::Missing, remedy)
        };
    }
    if mig.on != mig.pending {
        return found.but(
            State::Warning,
            "reset the device (`nvidia-smi --gpu-reset`) or restart the machine",
        );
    }
    found
}

fn shared_by_mps(named: Option<&Path>, driver_version: Option<&str>) -> Finding {
    let program = named.unwrap_or(Path::new(mps::PROGRAM));
    let path = program.display();
    if !program.is_file() {
        return Finding::ok("mps", Need::Optional, format!("{path} is not there")).but(
            State::Missing,
            "install the driver's package with nvidia-cuda-mps-control, or name the program by mps_control",
        );
    }
    let version = driver_version.map_or_else(
        || "of an unknown version".to_owned(),
        |version| format!("of driver {version}, whose part it is"),
    );
    Finding::ok("mps", Need::Optional, format!("{path}, {version}"))
}

/// Virtual GPUs by the way that the kernel shows, if it shows one.
fn virtual_gpus(mediated: &Path, pci: &Path) -> Finding {
    let found = |seen| Finding::ok("vgpu", Need::Optional, seen);
    let count = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().count();
    let functions = std::fs::read_dir(pci).into_iter().flatten().flatten();
    let functions = functions.filter(|entry| entry.path().join(VIRTUAL_FUNCTION).exists());
    let told = match (count(mediated), functions.count()) {
        (0, 0) => {
            return found("the kernel shows no device that can be split for guests".to_owned())
                .but(
                    State::Missing,
                    "where guests are wanted, install NVIDIA's vGPU host driver; a job needs none",
                );
        }
        (0, functions) => format!("{functions} virtual functions with types of their own"),
        (devices, _) => format!("{devices} devices by mediated devices"),
    };
    found(told).but(
        State::Warning,
        "this agent hands out no virtual GPUs: it counts such a device as whole",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_gpus_are_found_by_either_of_the_kernels_ways() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mediated, pci) = (folder.path().join("mdev"), folder.path().join("pci"));
        assert_eq!(virtual_gpus(&mediated, &pci).state, State::Missing);
        let function = pci.join("0000:41:00.4/nvidia");
        std::fs::create_dir_all(&function).expect("made");
        std::fs::write(function.join("creatable_vgpu_types"), "").expect("written");
        let told = virtual_gpus(&mediated, &pci);
        assert!(told.seen.contains("1 virtual function"), "{}", told.seen);
        std::fs::create_dir_all(mediated.join("0000:41:00.0")).expect("made");
        let told = virtual_gpus(&mediated, &pci);
        assert!(told.seen.contains("mediated"), "{}", told.seen);
    }
}
