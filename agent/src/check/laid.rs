//! The layout that the settings name, set against the devices that are there, and the probe's program.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::devices::in_time;
use super::{Finding, Need, State};
use crate::config::Config;
use crate::gpus::fit::{Fit, fit};
use crate::gpus::layout::{Layout, Wish, words_on_absent};
use crate::gpus::{Gpu, Reading, nvml};

/// A line for each device that answers and that the layout cuts; none where no layout is named.
pub(super) fn layout(config: &Config, reading: &Reading) -> Vec<Finding> {
    // One that cannot be read is told with the settings.
    let Ok(Some(layout)) = Layout::of(config) else {
        return Vec::new();
    };
    let places: Vec<u32> = reading.gpus.iter().map(|gpu| gpu.index).collect();
    let absent = words_on_absent(&layout.absent(&places)).map(|words| {
        let remedy = "name devices that are there, or all: what is not there is not cut";
        Finding::ok("layout", Need::Optional, words).but(State::Warning, remedy)
    });
    let answering = reading.gpus.iter();
    let answering = answering.filter(|gpu| !reading.silent.contains(&gpu.index));
    let each = answering.filter_map(|gpu| {
        let cuttable = reading.mig.contains_key(&gpu.uuid);
        let (library, layout, gpu) = (config.nvml_library.clone(), layout.clone(), gpu.clone());
        let what = format!("layout {}", gpu.index);
        in_time(move || of_device(library, &layout, &gpu, cuttable)).unwrap_or_else(|words| {
            let remedy = "look for Xid errors in the kernel's log (`dmesg`)";
            Some(Finding::ok(what, Need::Optional, words).but(State::Warning, remedy))
        })
    });
    absent.into_iter().chain(each).collect()
}

fn of_device(
    library: Option<PathBuf>,
    layout: &Layout,
    gpu: &Gpu,
    cuttable: bool,
) -> Option<Finding> {
    let found = |seen: String| Finding::ok(format!("layout {}", gpu.index), Need::Optional, seen);
    let failed = |words: String| {
        let remedy = "look for Xid errors in the kernel's log (`dmesg`)";
        Some(found(words).but(State::Warning, remedy))
    };
    let nvml = match nvml::open(library.as_deref()) {
        Ok(nvml) => nvml,
        Err(error) => return failed(error.to_string()),
    };
    match told(&nvml, layout, gpu, cuttable) {
        Ok(None) => None,
        Ok(Some((wish, Fit::Fits))) => Some(found(in_words(&wish))),
        Ok(Some((wish, Fit::Unsaid))) => {
            let words =
                "its driver tells profiles while its MIG mode is on, so that more is not known yet";
            Some(found(format!("{}; {words}", in_words(&wish))))
        }
        Ok(Some((wish, Fit::Not { remedy, .. }))) => {
            let seen = format!("{}: refused, and nothing is made of it", in_words(&wish));
            Some(found(seen).but(State::Missing, format!("mig-devices: {remedy}")))
        }
        Err(error) => failed(format!("NVML says: {error}")),
    }
}

/// What the layout wants of a device, and whether that can be.
fn told(
    nvml: &Nvml,
    layout: &Layout,
    gpu: &Gpu,
    cuttable: bool,
) -> Result<Option<(Wish, Fit)>, NvmlError> {
    let device = nvml.device_by_uuid(gpu.uuid.as_str())?;
    let Some(wish) = layout.wish(gpu.index, device.pci_info()?.pci_device_id) else {
        return Ok(None);
    };
    let told = match wish.on {
        false => Fit::Fits,
        true if !cuttable => Fit::Not {
            wanted: in_words(&wish),
            remedy: "none, on a device that cannot be cut by MIG".to_owned(),
        },
        true => fit(nvml, &device, &wish.profiles)?,
    };
    Ok(Some((wish, told)))
}

fn in_words(wish: &Wish) -> String {
    match (wish.on, wish.profiles.as_slice()) {
        (false, _) => "whole".to_owned(),
        (true, []) => "in MIG mode, without instances".to_owned(),
        (true, profiles) => profiles.join(", "),
    }
}

/// The program by which devices return to service, where one is named.
pub(super) fn probe(config: &Config) -> Option<Finding> {
    let program = config.health.probe.first()?;
    let found = |seen: String| Finding::ok("probe", Need::Optional, seen);
    let named = program.display();
    let remedy = "name a program that the probe's user may run by health.probe";
    let Ok(metadata) = std::fs::metadata(program) else {
        return Some(found(format!("{named} is not there")).but(State::Missing, remedy));
    };
    let uid = config.health.probe_uid;
    let bits = match metadata.uid() == uid {
        true => 0o500,
        false => 0o005,
    };
    if !metadata.is_file() || metadata.mode() & bits & 0o111 == 0 {
        let words = format!("{named} may not be executed by user {uid}");
        return Some(found(words).but(State::Missing, remedy));
    }
    if let Some(shut) = program.ancestors().skip(1).find(|folder| is_shut(folder)) {
        let words = format!("user {uid} does not pass through {}", shut.display());
        return Some(found(words).but(State::Missing, remedy));
    }
    Some(found(format!("{named}, as user {uid}")))
}

/// Whether a folder lets nobody through but its owner and group.
fn is_shut(folder: &Path) -> bool {
    std::fs::metadata(folder).is_ok_and(|told| told.mode() & 0o001 == 0)
}
