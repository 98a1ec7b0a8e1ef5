//! The checks of a spec that need nothing but the spec.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::{JobSpec, PerWorker, Runner, image};
use crate::error::printable;
use crate::quantity::{DEVICES_PER_NODE_MAX, MILLI};
use crate::sharing::SharingMode;
use crate::{FieldError, MilliGpu};

/// Most workers of one gang; a worker is a process with a row, a log and a folder.
pub const WORKERS_MAX: u32 = 1024;
/// Most elements of one array: as many as its page shows as a grid, and are counted by state in
/// milliseconds.
pub const ARRAY_COUNT_MAX: u32 = 10_000;
/// Most whole devices that one worker may ask for: the most that a node may have.
pub const GPUS_PER_WORKER_MAX: i64 = DEVICES_PER_NODE_MAX as i64;
/// Most words of a command, and files, variables, labels and selectors of a job.
pub const FILES_MAX: usize = 64;
/// All files of a job together, in bytes: they are stored with the job and sent to each worker.
pub const FILES_BYTES_MAX: usize = 256 * 1024;
/// Longest word of a command and value of a variable, in bytes; the kernel's own bound is 128 KiB.
const TEXT_BYTES_MAX: usize = 32 * 1024;
/// Most words of a command.
const COMMAND_WORDS_MAX: usize = 1024;
/// Most variables, labels, selectors and names in `pools` and `after`.
const ENTRIES_MAX: usize = 256;
/// Longest duration that a job may name: ten years, in seconds.
const SECONDS_MAX: i64 = 10 * 366 * 24 * 3600;
/// Most host memory of a worker: 64 TiB, in MiB.
const MEMORY_MIB_MAX: i64 = 64 * 1024 * 1024;
/// Most attempts that a person may ask for.
pub const RETRIES_MAX: u32 = 100;
/// Most faults that are told of one spec: more than a person mends at once.
pub const FAULTS_MAX: usize = 50;
/// Longest label or other short text, in characters.
const LABEL_CHARS_MAX: usize = 253;

/// Variables that the agent sets or that would act on its own helpers.
const RESERVED_ENV: [&str; 11] = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "HOME",
    "USER",
];

/// The least and the most of each key of a spec that holds a whole number, by its path.
const BOUNDS: [(&str, i64, i64); 11] = [
    ("array.count", 1, ARRAY_COUNT_MAX as i64),
    ("array.at_most", 1, ARRAY_COUNT_MAX as i64),
    ("workers", 1, WORKERS_MAX as i64),
    ("min_workers", 1, WORKERS_MAX as i64),
    ("per_worker.gpu_memory_mib", 0, MEMORY_MIB_MAX),
    ("per_worker.memory_mib", 0, MEMORY_MIB_MAX),
    ("time_limit_seconds", 1, SECONDS_MAX),
    ("predicted_seconds", 1, SECONDS_MAX),
    ("checkpoint_seconds", 1, SECONDS_MAX),
    ("restart_seconds", 0, SECONDS_MAX),
    ("retries.limit", 0, RETRIES_MAX as i64),
];

/// The numbers that a key of a spec may hold, where it holds a whole number.
pub fn bounds(path: &str) -> Option<RangeInclusive<i64>> {
    let found = BOUNDS.iter().find(|(key, ..)| *key == path);
    found.map(|(_, least, most)| *least..=*most)
}

/// What a key of a spec takes, where that is a number.
pub fn takes(path: &str) -> Option<String> {
    if path == "per_worker.gpus" {
        return Some(format!(
            "a whole number from 0 to {GPUS_PER_WORKER_MAX}, or a fraction under 1 with at most three decimals"
        ));
    }
    bounds(path).map(|bounds| whole_number(&bounds))
}

/// The words for a whole number within bounds.
pub fn whole_number(bounds: &RangeInclusive<i64>) -> String {
    format!("a whole number from {} to {}", bounds.start(), bounds.end())
}

/// Refuses a whole number that its key may not hold.
fn check_bounds(path: &str, value: i64) -> Result<(), FieldError> {
    let bounds = bounds(path).expect("each key that is checked has a row in BOUNDS");
    if bounds.contains(&value) {
        return Ok(());
    }
    Err(FieldError::new(path, value, whole_number(&bounds)))
}

impl JobSpec {
    /// Checks everything that the spec alone can tell, and returns the first fault.
    pub fn check(&self) -> Result<(), FieldError> {
        self.faults().into_iter().next().map_or(Ok(()), Err)
    }

    /// Every fault that the spec alone can tell, in the order of its keys; of one value the first.
    pub fn faults(&self) -> Vec<FieldError> {
        let mut faults = Faults::default();
        self.check_command(&mut faults);
        self.check_env(&mut faults);
        self.check_files(&mut faults);
        self.check_workers(&mut faults);
        self.check_array(&mut faults);
        self.check_memory(&mut faults);
        self.per_worker.check(&mut faults);
        self.check_numbers(&mut faults);
        self.check_labels(&mut faults);
        faults.0
    }

    fn check_command(&self, faults: &mut Faults) {
        if self.command.is_empty() || self.command[0].is_empty() {
            let words = serde_json::Value::from(self.command.clone());
            faults.add("command", words, "a program and its arguments");
        } else if self.command.len() > COMMAND_WORDS_MAX {
            let remedy = format!("at most {COMMAND_WORDS_MAX} words");
            faults.add("command", self.command.len(), remedy);
        } else {
            let mut words = self.command.iter();
            faults.keep(words.try_for_each(|word| check_text("command", word)));
        }
        match (self.runner, &self.image) {
            (Runner::Process, Some(image)) => {
                let remedy = "null with runner process, or runner container";
                faults.add("image", image, remedy);
            }
            (Runner::Container, None) => {
                let remedy = "the image that runner container starts, such as python:3.13";
                faults.add("image", "null", remedy);
            }
            (Runner::Container, Some(image)) if !image::well_formed(image) => {
                faults.add("image", image, image::IMAGE_NAME);
            }
            (_, Some(image)) => faults.keep(check_label("image", image)),
            (_, None) => {}
        }
        if self.runner == Runner::Container && self.per_worker.sharing.contains(&SharingMode::Mps) {
            let remedy = "modes without mps where runner is container: its clients meet in the machine's shared memory, which a container does not have";
            faults.add("per_worker.sharing", SharingMode::Mps, remedy);
        }
        if let Some(path) = &self.working_directory {
            faults.keep(check_folder("working_directory", path));
        }
    }

    fn check_env(&self, faults: &mut Faults) {
        faults.keep(check_count("env", self.env.len(), ENTRIES_MAX));
        for (key, value) in &self.env {
            let well_formed = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
                && key.bytes().next().is_some_and(|b| !b.is_ascii_digit())
                && key.len() <= LABEL_CHARS_MAX;
            if !well_formed {
                let remedy = "names of A-Z, a-z, 0-9 and '_', not beginning with a digit";
                faults.add("env", key, remedy);
            } else if RESERVED_ENV.contains(&key.as_str()) || key.starts_with("ALLOTMENT_") {
                let remedy = "another name; this one is set by Allotment";
                faults.add("env", key, remedy);
            } else {
                faults.keep(check_text(&format!("env.{key}"), value));
            }
        }
    }

    fn check_files(&self, faults: &mut Faults) {
        faults.keep(check_count("files", self.files.len(), FILES_MAX));
        for (path, text) in &self.files {
            faults.keep(check_relative("files", path));
            if text.contains('\0') {
                let remedy = "text; put binary data on shared storage";
                faults.add(format!("files.{path}"), "a text with NUL", remedy);
            }
            let folder = format!("{path}/");
            let below = self.files.range(folder.clone()..).next();
            if let Some((inner, _)) = below.filter(|(other, _)| other.starts_with(&folder)) {
                let remedy = format!("another path; {path} is a file and no folder");
                faults.add("files", inner, remedy);
            }
        }
        let bytes: usize = self.files.values().map(String::len).sum();
        if bytes > FILES_BYTES_MAX {
            let remedy =
                format!("at most {FILES_BYTES_MAX} bytes in all; put data on shared storage");
            faults.add("files", format!("{bytes} bytes"), remedy);
        }
    }

    fn check_workers(&self, faults: &mut Faults) {
        faults.keep(check_bounds("workers", self.workers.into()));
        if let Some(min) = self.min_workers
            && !(1..=self.workers).contains(&min)
        {
            let remedy = format!("1 to workers, which is {}", self.workers);
            faults.add("min_workers", min, remedy);
        }
    }

    fn check_array(&self, faults: &mut Faults) {
        let Some(array) = self.array else {
            return;
        };
        faults.keep(check_bounds("array.count", array.count.into()));
        if let Some(most) = array.at_most
            && !(1..=array.count).contains(&most)
        {
            let remedy = format!("null, or 1 to array.count, which is {}", array.count);
            faults.add("array.at_most", most, remedy);
        }
    }

    fn check_memory(&self, faults: &mut Faults) {
        let need = &self.per_worker;
        if let Some(mib) = need.gpu_memory_mib {
            faults.keep(check_bounds("per_worker.gpu_memory_mib", mib));
        }
        faults.keep(check_bounds("per_worker.memory_mib", need.memory_mib));
    }

    fn check_numbers(&self, faults: &mut Faults) {
        let numbers = [
            ("time_limit_seconds", self.time_limit_seconds),
            ("predicted_seconds", self.predicted_seconds),
            ("checkpoint_seconds", self.checkpoint_seconds),
            ("restart_seconds", Some(self.restart_seconds)),
            ("retries.limit", Some(self.retries.limit.into())),
        ];
        for (path, value) in numbers {
            faults.keep(value.map_or(Ok(()), |value| check_bounds(path, value)));
        }
        if self.retries.limit > 0 && self.retries.on.is_empty() {
            let remedy = "failure, time_limit or both, where retries.limit is above 0";
            faults.add("retries.on", "[]", remedy);
        }
    }

    fn check_labels(&self, faults: &mut Faults) {
        faults.keep(check_count("pools", self.pools.len(), ENTRIES_MAX));
        faults.keep(check_count("after", self.after.len(), ENTRIES_MAX));
        faults.keep(check_once("pools", &self.pools));
        faults.keep(check_once("after", &self.after));
        faults.keep(check_once("retries.on", &self.retries.on));
        for (field, map) in [("labels", &self.labels), ("selector", &self.selector)] {
            faults.keep(check_count(field, map.len(), ENTRIES_MAX));
            let mut texts = map.iter().flat_map(|(key, value)| [key, value]);
            faults.keep(texts.try_for_each(|text| check_label(field, text)));
        }
        for (field, text) in [
            ("topology.require", &self.topology.require),
            ("topology.prefer", &self.topology.prefer),
            ("anti_affinity", &self.anti_affinity),
        ] {
            faults.keep(
                text.as_ref()
                    .map_or(Ok(()), |text| check_label(field, text)),
            );
        }
    }
}

impl PerWorker {
    fn check(&self, faults: &mut Faults) {
        let of = |result: Result<(), FieldError>| result.map_err(|e| e.under("per_worker"));
        faults.keep(of(self.check_gpus()));
        faults.keep(of(self.check_sharing()));
        for (field, text) in [
            ("gpu_model", &self.gpu_model),
            ("mig_profile", &self.mig_profile),
        ] {
            let checked = text
                .as_ref()
                .map_or(Ok(()), |text| check_label(field, text));
            faults.keep(of(checked));
        }
    }

    fn check_gpus(&self) -> Result<(), FieldError> {
        let gpus = self.gpus();
        let refused = |remedy: String| Err(FieldError::new("gpus", gpus, remedy));
        if gpus > MilliGpu::whole(1) && gpus.milli() % MILLI != 0 {
            return refused("whole devices, or a fraction under 1".to_owned());
        }
        if gpus > MilliGpu::whole(GPUS_PER_WORKER_MAX) {
            return refused(format!(
                "at most {GPUS_PER_WORKER_MAX} for one worker; use more workers"
            ));
        }
        if self.mig_profile.is_some() && (gpus == MilliGpu::ZERO || gpus.milli() % MILLI != 0) {
            return refused(format!(
                "1 to {GPUS_PER_WORKER_MAX}: how many instances of the profile"
            ));
        }
        if gpus == MilliGpu::ZERO && (self.gpu_model.is_some() || self.gpu_memory_mib.is_some()) {
            return refused(format!(
                "1 to {GPUS_PER_WORKER_MAX}, or a fraction, where gpu_model or gpu_memory_mib says which GPU"
            ));
        }
        Ok(())
    }

    fn check_sharing(&self) -> Result<(), FieldError> {
        if self.sharing.is_empty() {
            let remedy = "at least one mode, such as exclusive";
            return Err(FieldError::new("sharing", "[]", remedy));
        }
        check_once("sharing", &self.sharing)?;
        let shared = |mode: &SharingMode| {
            matches!(
                mode,
                SharingMode::Mps | SharingMode::TimeSlice | SharingMode::Vgpu
            )
        };
        if self.fraction() && !self.sharing.iter().any(shared) {
            let remedy = "time_slice or mps, since a fraction of a device is shared";
            return Err(FieldError::new("sharing", "exclusive", remedy));
        }
        let whole = self.mig_profile.is_none() && self.gpus() >= MilliGpu::whole(1);
        if whole && !self.sharing.contains(&SharingMode::Exclusive) {
            let asked: Vec<&str> = self.sharing.iter().map(|mode| mode.as_str()).collect();
            return Err(FieldError::new(
                "sharing",
                asked.join(", "),
                "exclusive, since whole devices are given to one worker; a device is shared where gpus is a fraction below 1, and cut where mig_profile names an instance",
            ));
        }
        Ok(())
    }
}

/// The faults of a spec that were found so far, of each value the first.
#[derive(Debug, Default)]
struct Faults(Vec<FieldError>);

impl Faults {
    fn keep(&mut self, checked: Result<(), FieldError>) {
        let Err(fault) = checked else {
            return;
        };
        let same = |known: &FieldError| known.field == fault.field && known.value == fault.value;
        if self.0.len() < FAULTS_MAX && !self.0.iter().any(same) {
            self.0.push(fault);
        }
    }

    fn add(&mut self, field: impl Into<String>, value: impl Display, remedy: impl Into<String>) {
        self.keep(Err(FieldError::new(field, value, remedy)));
    }
}

/// Each entry of a list that is a set, once.
fn check_once<T: PartialEq + Display>(field: &str, list: &[T]) -> Result<(), FieldError> {
    let twice = list
        .iter()
        .enumerate()
        .find(|(at, entry)| list[..*at].contains(entry));
    twice.map_or(Ok(()), |(_, entry)| {
        Err(FieldError::new(field, entry, "each one once"))
    })
}

fn check_count(field: &str, count: usize, most: usize) -> Result<(), FieldError> {
    if count > most {
        return Err(FieldError::new(
            field,
            format!("{count} entries"),
            format!("at most {most} entries"),
        ));
    }
    Ok(())
}

fn check_text(field: &str, text: &str) -> Result<(), FieldError> {
    if text.len() > TEXT_BYTES_MAX || text.contains('\0') {
        return Err(FieldError::new(
            field,
            text,
            format!("at most {TEXT_BYTES_MAX} bytes, without NUL"),
        ));
    }
    Ok(())
}

fn check_label(field: &str, text: &str) -> Result<(), FieldError> {
    let well_formed = !text.is_empty()
        && text.chars().count() <= LABEL_CHARS_MAX
        && text
            .chars()
            .all(|c| printable(c) && !matches!(c, '<' | '>'));
    if well_formed {
        return Ok(());
    }
    Err(FieldError::new(
        field,
        text,
        format!("1 to {LABEL_CHARS_MAX} printable characters without '<' and '>'"),
    ))
}

/// A file's path below a folder: no root, and plain.
fn check_relative(field: &str, path: &str) -> Result<(), FieldError> {
    if plain_path(path) {
        return Ok(());
    }
    let remedy = format!("a relative path of {PLAIN_PATH}");
    Err(FieldError::new(field, path, remedy))
}

/// A folder's path, absolute or not: plain, but that it may begin and end with a `/`.
fn check_folder(field: &str, path: &str) -> Result<(), FieldError> {
    let within = path.strip_prefix('/').unwrap_or(path);
    if path == "/" || plain_path(within.strip_suffix('/').unwrap_or(within)) {
        return Ok(());
    }
    let remedy =
        format!("a path, absolute or below the node's first folder for work, of {PLAIN_PATH}");
    Err(FieldError::new(field, path, remedy))
}

/// What a plain path is, in words.
const PLAIN_PATH: &str = "letters, digits, '-', '_', '.', '+', '=', spaces and '/', without '.', '..' or nothing between two '/'";

/// Whether no part of a path is empty, leads up or needs quoting.
fn plain_path(path: &str) -> bool {
    let plain = |part: &str| {
        !matches!(part, "" | "." | "..")
            && part.bytes().all(|b| {
                b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b' ' | b'+' | b'=')
            })
    };
    path.len() <= LABEL_CHARS_MAX && path.split('/').all(plain)
}

#[cfg(test)]
mod tests;
