//! The numbers by which the files of devices and MIG instances are named.

use std::fs;
use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

/// The files that every process needs which uses a GPU.
const COMMON: [&str; 3] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];

/// What the UUIDs of MIG devices begin with, in place of `GPU-`.
const MIG_PREFIX: &str = "MIG-";

/// What a device's files are named by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// N of `/dev/nvidiaN`, which is not the place in NVML's order.
    pub minor: u32,
    /// The driver's numbers of a GPU instance and of the compute instance in it.
    pub instance: Option<(u32, u32)>,
}

/// Asks for the numbers of a device, or of a MIG device, by its UUID.
pub fn numbers(nvml: &Nvml, uuid: &str) -> Result<Numbers, NvmlError> {
    let device = nvml.device_by_uuid(uuid)?;
    if !uuid.starts_with(MIG_PREFIX) {
        return Ok(Numbers {
            minor: device.minor_number()?,
            instance: None,
        });
    }
    let instance = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let compute = nvml_sym(nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
    let (mut gpu_id, mut compute_id) = (0, 0);
    // SAFETY: the device is live, and the numbers outlive the calls.
    #[allow(unsafe_code)]
    unsafe {
        nvml_try(instance(device.handle(), &raw mut gpu_id))?;
        nvml_try(compute(device.handle(), &raw mut compute_id))?;
    }
    Ok(Numbers {
        minor: device.mig_parent_device()?.minor_number()?,
        instance: Some((gpu_id, compute_id)),
    })
}

/// The paths of the device files that these need, there or not.
pub fn paths(dev_root: &Path, driver_root: &Path, devices: &[Numbers]) -> Vec<PathBuf> {
    if devices.is_empty() {
        return Vec::new();
    }
    let own = devices
        .iter()
        .map(|device| format!("nvidia{}", device.minor));
    let capabilities = devices.iter().flat_map(|device| {
        let found = device.instance.map(|(gpu, compute)| {
            let instance = format!("gpu{}/{{}}gi{gpu}", device.minor);
            [instance.clone(), format!("{instance}/ci{compute}")]
        });
        found.into_iter().flatten()
    });
    let capabilities = capabilities
        .filter_map(|of| capability(driver_root, &of))
        .map(|minor| format!("nvidia-caps/nvidia-cap{minor}"));
    COMMON
        .into_iter()
        .map(str::to_owned)
        .chain(own)
        .chain(capabilities)
        .map(|name| dev_root.join(name))
        .collect()
}

/// The number of the file that lets a process use an instance, as the driver tells it of what is there,
/// or else of all that there could be. In what is asked for, `{}` is where the two differ.
fn capability(driver_root: &Path, of: &str) -> Option<u32> {
    let there = driver_root
        .join("nvidia/capabilities")
        .join(of.replace("{}", "mig/"))
        .join("access");
    if let Ok(told) = fs::read_to_string(there) {
        let minor = told
            .lines()
            .find_map(|line| line.strip_prefix("DeviceFileMinor:"));
        return minor?.trim().parse().ok();
    }
    let all = fs::read_to_string(driver_root.join("nvidia-caps/mig-minors")).ok()?;
    let wanted = format!("{}/access", of.replace("{}", ""));
    all.lines().find_map(|line| {
        let (name, minor) = line.split_once(' ')?;
        (name == wanted).then(|| minor.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_the_files_that_the_driver_tells_of_it() {
        let driver = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = driver.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write(
            "nvidia-caps/mig-minors",
            "config 1\nmonitor 2\ngpu1/gi3/access 48\ngpu1/gi3/ci0/access 49\n",
        );
        let devices = [Numbers {
            minor: 1,
            instance: Some((3, 0)),
        }];
        let names = || -> Vec<String> {
            let paths = paths(Path::new("/dev"), driver.path(), &devices);
            let paths = paths.iter().skip(COMMON.len());
            paths.map(|path| path.display().to_string()).collect()
        };
        let caps = |gpu, compute| {
            let cap = |minor: u32| format!("/dev/nvidia-caps/nvidia-cap{minor}");
            vec!["/dev/nvidia1".to_owned(), cap(gpu), cap(compute)]
        };
        assert_eq!(names(), caps(48, 49));
        for (path, minor) in [("gi3", 12), ("gi3/ci0", 13)] {
            write(
                &format!("nvidia/capabilities/gpu1/mig/{path}/access"),
                &format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\n"),
            );
        }
        assert_eq!(
            names(),
            caps(12, 13),
            "what is there goes before what may be"
        );
    }

    #[test]
    fn work_without_gpus_needs_no_file_of_theirs() {
        assert!(paths(Path::new("/dev"), Path::new("/proc/driver"), &[]).is_empty());
    }
}
