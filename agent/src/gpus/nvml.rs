//! Reads GPUs, their links and their memory nodes through NVML.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use domain::quantity::DEVICES_PER_NODE_MAX;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as LINK_TO_SWITCH,
    nvmlReturn_enum_NVML_SUCCESS,
};

use super::alone::{Alone, Asked, Standing};
use super::mig::{self, Mig};
use super::signs::{self, Signs};
use super::topology::{self, Link};
use super::{Gpu, Reading, uses, vgpus};

/// Links of one device that are looked at: NVML 13.3 knows 36.
const LINKS_MAX: u32 = 36;
/// Longest wait for what one device tells: it takes milliseconds, seconds while a driver is busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for one that is known, once all others have told: what is found of those does not wait for it, and
/// it is told as it was until its own time is over.
const LAGGARD_TIMEOUT: Duration = Duration::from_secs(1);
/// Where libraries are looked for when no path is configured.
const LIBRARY: &str = "libnvidia-ml.so.1";
const BYTES_PER_MIB: u64 = 1024 * 1024;

/// Why nothing could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no usable library; without a GPU that is as it should be.
    #[error("{library} cannot be used: {words}")]
    Library {
        /// The library.
        library: String,
        /// What NVML or the loader said; shown on the node's page, so that it is kept as words.
        words: String,
    },
    /// The library was there, and then failed as a whole.
    #[error("NVML cannot list devices: {words}")]
    Listing {
        /// What NVML said.
        words: String,
    },
}

/// Reads once, with everything; for people who look.
pub fn read_once(library: Option<&Path>) -> Result<Reading, ReadError> {
    let mut reader = Reader::new(library);
    let mut reading = reader.read()?;
    if let Some(nvml) = &reader.nvml {
        for gpu in reading
            .gpus
            .iter()
            .filter(|gpu| !reading.silent.contains(&gpu.index))
        {
            reading
                .uses
                .extend(uses::of_device(nvml, &gpu.uuid).unwrap_or_default());
            let types = nvml.device_by_uuid(gpu.uuid.as_str());
            if let Ok(types) = types.and_then(|device| vgpus::of_device(&device)) {
                reading.vgpu.insert(gpu.uuid.clone(), types);
            }
        }
    }
    Ok(reading)
}

/// Reads again and again. What cannot change while a device stays is read once. Each device is asked on
/// a thread of its own: one that hangs keeps nobody from knowing the others.
pub struct Reader {
    library: Option<PathBuf>,
    nvml: Option<Arc<Nvml>>,
    last: Reading,
    alone: Alone,
    /// Calls that the last readings did not wait for to their end, by index.
    under_way: UnderWay,
}

type UnderWay = BTreeMap<u32, Asked<Result<Told, NvmlError>>>;

impl Reader {
    /// A reader that opens the library when it first reads.
    pub fn new(library: Option<&Path>) -> Self {
        Self {
            library: library.map(Path::to_owned),
            nvml: None,
            last: Reading::default(),
            alone: Alone::default(),
            under_way: UnderWay::new(),
        }
    }

    /// How long it takes at most until a call is over that the last reading did not wait for.
    pub fn patience(&self) -> Option<Duration> {
        self.under_way.values().map(Asked::left).min()
    }

    /// Reads the devices. After a failure of the whole, the next call opens NVML anew.
    pub fn read(&mut self) -> Result<Reading, ReadError> {
        let nvml = match self.nvml.take() {
            Some(nvml) => nvml,
            None => Arc::new(open(self.library.as_deref())?),
        };
        let reading = read(&nvml, &self.last, &self.alone, &mut self.under_way);
        let reading = reading.map_err(|error| ReadError::Listing {
            words: error.to_string(),
        })?;
        self.nvml = Some(nvml);
        self.last.clone_from(&reading);
        Ok(reading)
    }
}

/// Opens NVML. Opened again while it is open it costs little.
pub fn open(library: Option<&Path>) -> Result<Nvml, ReadError> {
    let library = library.unwrap_or(Path::new(LIBRARY));
    Nvml::builder()
        .lib_path(library.as_os_str())
        .init()
        .map_err(|error| ReadError::Library {
            library: library.display().to_string(),
            words: error.to_string(),
        })
}

/// What one device tells.
struct Told {
    gpu: Gpu,
    mig: Result<Option<Mig>, NvmlError>,
    signs: Signs,
}

fn read(
    nvml: &Arc<Nvml>,
    last: &Reading,
    alone: &Alone,
    under_way: &mut UnderWay,
) -> Result<Reading, NvmlError> {
    let count = nvml.device_count()?.min(DEVICES_PER_NODE_MAX);
    let seen = |index: u32| last.gpus.iter().find(|gpu| gpu.index == index).cloned();
    let begun: Vec<_> = (0..count)
        .map(|index| {
            let (nvml, seen) = (Arc::clone(nvml), seen(index));
            let ask = move || ask(&nvml, index, seen);
            let begin = || alone.ask(&index.to_string(), ANSWER_TIMEOUT, ask);
            (index, under_way.remove(&index).unwrap_or_else(begin))
        })
        .collect();
    let mut reading = Reading::default();
    for (index, asked) in begun {
        let before = seen(index);
        let signs = before.as_ref().and_then(|gpu| last.signs.get(&gpu.uuid));
        // One that is not known, or that was silent before, is as nobody knows until it has answered.
        let wait = match signs {
            Some(_) => LAGGARD_TIMEOUT.saturating_sub(asked.begun().elapsed()),
            None => ANSWER_TIMEOUT,
        };
        let standing = asked.look(wait);
        if let (Standing::UnderWay, Some(gpu), Some(signs)) = (&standing, &before, signs) {
            let cut = last.mig.get(&gpu.uuid).cloned();
            reading.mig.extend(cut.map(|cut| (gpu.uuid.clone(), cut)));
            reading.signs.insert(gpu.uuid.clone(), signs.clone());
            reading.gpus.push(gpu.clone());
            reading.late.insert(gpu.uuid.clone());
            under_way.insert(index, asked);
            continue;
        }
        let answered = match standing {
            Standing::Answered(answer) => Some(answer),
            Standing::UnderWay | Standing::Hangs => None,
        };
        match answered {
            Some(Ok(told)) => {
                // A device that is cut meanwhile may have lost what it had just listed.
                let kept = || last.mig.get(&told.gpu.uuid).cloned();
                if let Some(mig) = told.mig.unwrap_or_else(|_| kept()) {
                    reading.mig.insert(told.gpu.uuid.clone(), mig);
                }
                reading.signs.insert(told.gpu.uuid.clone(), told.signs);
                reading.gpus.push(told.gpu);
            }
            Some(Err(error)) => reading.failures.push((index, error.to_string())),
            None => {
                reading.silent.push(index);
                if let Some(gpu) = before {
                    let cut = last.mig.get(&gpu.uuid).cloned();
                    reading.mig.extend(cut.map(|cut| (gpu.uuid.clone(), cut)));
                    reading.gpus.push(gpu);
                }
            }
        }
    }
    let same = reading.gpus == last.gpus && !last.driver_version.is_empty();
    let stuck = !reading.late.is_empty() || !reading.silent.is_empty();
    if same || stuck {
        // Hundreds of calls that would give the same answer, or hang.
        reading.nvlink.clone_from(&last.nvlink);
    } else {
        reading.nvlink = read_links(nvml, &reading.gpus);
    }
    // Devices stay when their driver is replaced. Where one hangs this call might as well.
    reading.driver_version = match same && stuck {
        true => last.driver_version.clone(),
        false => nvml.sys_driver_version()?,
    };
    Ok(reading)
}

fn ask(nvml: &Nvml, index: u32, seen: Option<Gpu>) -> Result<Told, NvmlError> {
    let device = nvml.device_by_index(index)?;
    Ok(Told {
        gpu: read_gpu(&device, index, seen)?,
        mig: mig::read(nvml, &device),
        signs: signs::read(&device),
    })
}

fn read_gpu(device: &Device<'_>, index: u32, seen: Option<Gpu>) -> Result<Gpu, NvmlError> {
    let uuid = device.uuid()?;
    // A call that needs the device itself: one that fell off the bus still has its name.
    let memory = device.memory_info()?;
    if let Some(seen) = seen.filter(|gpu| gpu.uuid == uuid) {
        return Ok(seen);
    }
    let pci = device.pci_info()?;
    let (pci_bus_id, pci_device) = (pci.bus_id, pci.pci_device_id);
    Ok(Gpu {
        index,
        product_name: device.name()?,
        memory_mib: i64::try_from(memory.total / BYTES_PER_MIB).unwrap_or(i64::MAX),
        numa: device
            .numa_node_id()
            .ok()
            .or_else(|| numa_by_sysfs(&pci_bus_id)),
        pci_bus_id,
        pci_device,
        uuid,
    })
}

/// Most drivers tell the memory node only where GPUs are memory nodes themselves.
fn numa_by_sysfs(pci_bus_id: &str) -> Option<u32> {
    // NVML writes eight digits of domain and capitals, the kernel four and small letters.
    let (domain, rest) = pci_bus_id.split_once(':')?;
    let domain = domain.get(domain.len().checked_sub(4)?..)?;
    let path = format!("/sys/bus/pci/devices/{domain}:{rest}/numa_node").to_lowercase();
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn read_links(nvml: &Nvml, gpus: &[Gpu]) -> Vec<Vec<String>> {
    let mut links = Vec::new();
    for (at, gpu) in gpus.iter().enumerate() {
        let Ok(device) = nvml.device_by_uuid(gpu.uuid.as_str()) else {
            continue;
        };
        for number in 0..LINKS_MAX {
            let link = device.link_wrapper_for(number);
            match link.is_active() {
                Ok(true) => {}
                Ok(false) => continue,
                // No NVLink at all, or no link of this number.
                Err(_) => break,
            }
            let far_end = link.remote_pci_info().ok().map(|pci| pci.bus_id);
            let peer =
                far_end.and_then(|bus| gpus.iter().position(|g| same_bus(&g.pci_bus_id, &bus)));
            match peer {
                Some(peer) => links.push(Link::Peer(at, peer)),
                None if leads_to_switch(nvml, &device, number) => links.push(Link::Switch(at)),
                None => {}
            }
        }
    }
    topology::cliques(gpus.len(), &links)
        .into_iter()
        .map(|clique| clique.into_iter().map(|at| gpus[at].uuid.clone()).collect())
        .collect()
}

fn same_bus(one: &str, other: &str) -> bool {
    let tail = |bus: &str| bus.to_lowercase().trim_start_matches('0').to_owned();
    tail(one) == tail(other)
}

/// Asks for the kind of a link's far end without the wrapper, whose function of this name
/// lets NVML write to a copy and always answers "unknown".
fn leads_to_switch(nvml: &Nvml, device: &Device<'_>, link: u32) -> bool {
    let Ok(ask) = nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref() else {
        return false;
    };
    let mut kind = 0;
    // SAFETY: the handle is of a live device of this NVML, and `kind` outlives the call.
    #[allow(unsafe_code)]
    let answer = unsafe { ask(device.handle(), link, &raw mut kind) };
    answer == nvmlReturn_enum_NVML_SUCCESS && kind == LINK_TO_SWITCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_the_same_with_four_or_eight_digits_of_domain() {
        assert!(same_bus("00000000:1A:00.0", "0000:1a:00.0"));
        assert!(!same_bus("00000000:1A:00.0", "0000:1b:00.0"));
    }

    #[test]
    fn a_machine_without_the_library_says_so() {
        let error =
            read_once(Some(Path::new("/nonexistent/libnvidia-ml.so"))).expect_err("no library");
        assert!(
            error.to_string().contains("/nonexistent/libnvidia-ml.so"),
            "{error}"
        );
    }
}
