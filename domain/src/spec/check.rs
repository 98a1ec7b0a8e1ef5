//! The checks of a spec that need nothing but the spec.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::{JobSpec, PerWorker, Runner};
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
        self.check_command()?;
        self.check_env()?;
        self.check_files()?;
        self.check_workers()?;
        self.check_array()?;
        self.check_memory()?;
        self.per_worker.check().map_err(|e| e.under("per_worker"))?;
        self.check_numbers()?;
        self.check_labels()
    }

    fn check_command(&self) -> Result<(), FieldError> {
        if self.command.is_empty() || self.command[0].is_empty() {
            return Err(FieldError::new(
                "command",
                serde_json::Value::from(self.command.clone()),
                "a program and its arguments",
            ));
        }
        if self.command.len() > COMMAND_WORDS_MAX {
            return Err(FieldError::new(
                "command",
                self.command.len(),
                format!("at most {COMMAND_WORDS_MAX} words"),
            ));
        }
        for word in &self.command {
            check_text("command", word)?;
        }
        match (self.runner, &self.image) {
            (Runner::Process, Some(image)) => {
                let remedy = "null with runner process, or runner container";
                return Err(FieldError::new("image", image, remedy));
            }
            (Runner::Container, None) => {
                let remedy = "the image that runner container starts, such as python:3.13";
                return Err(FieldError::new("image", "null", remedy));
            }
            _ => {}
        }
        if let Some(path) = &self.working_directory {
            check_folder("working_directory", path)?;
        }
        Ok(())
    }

    fn check_env(&self) -> Result<(), FieldError> {
        check_count("env", self.env.len(), ENTRIES_MAX)?;
        for (key, value) in &self.env {
            let well_formed = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
                && key.bytes().next().is_some_and(|b| !b.is_ascii_digit())
                && key.len() <= LABEL_CHARS_MAX;
            if !well_formed {
                return Err(FieldError::new(
                    "env",
                    key,
                    "names of A-Z, a-z, 0-9 and '_', not beginning with a digit",
                ));
            }
            if RESERVED_ENV.contains(&key.as_str()) || key.starts_with("ALLOTMENT_") {
                return Err(FieldError::new(
                    "env",
                    key,
                    "another name; this one is set by Allotment",
                ));
            }
            check_text(&format!("env.{key}"), value)?;
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), FieldError> {
        check_count("files", self.files.len(), FILES_MAX)?;
        for (path, text) in &self.files {
            check_relative("files", path)?;
            if text.contains('\0') {
                return Err(FieldError::new(
                    format!("files.{path}"),
                    "a text with NUL",
                    "text; put binary data on shared storage",
                ));
            }
            let folder = format!("{path}/");
            let below = self.files.range(folder.clone()..).next();
            if let Some((inner, _)) = below.filter(|(other, _)| other.starts_with(&folder)) {
                return Err(FieldError::new(
                    "files",
                    inner,
                    format!("another path; {path} is a file and no folder"),
                ));
            }
        }
        let bytes: usize = self.files.values().map(String::len).sum();
        if bytes > FILES_BYTES_MAX {
            return Err(FieldError::new(
                "files",
                format!("{bytes} bytes"),
                format!("at most {FILES_BYTES_MAX} bytes in all; put data on shared storage"),
            ));
        }
        Ok(())
    }

    fn check_workers(&self) -> Result<(), FieldError> {
        check_bounds("workers", self.workers.into())?;
        if let Some(min) = self.min_workers
            && !(1..=self.workers).contains(&min)
        {
            return Err(FieldError::new(
                "min_workers",
                min,
                format!("1 to workers, which is {}", self.workers),
            ));
        }
        Ok(())
    }

    fn check_array(&self) -> Result<(), FieldError> {
        let Some(array) = self.array else {
            return Ok(());
        };
        check_bounds("array.count", array.count.into())?;
        match array.at_most {
            Some(most) if !(1..=array.count).contains(&most) => Err(FieldError::new(
                "array.at_most",
                most,
                format!("null, or 1 to array.count, which is {}", array.count),
            )),
            _ => Ok(()),
        }
    }

    fn check_memory(&self) -> Result<(), FieldError> {
        let need = &self.per_worker;
        if let Some(mib) = need.gpu_memory_mib {
            check_bounds("per_worker.gpu_memory_mib", mib)?;
        }
        check_bounds("per_worker.memory_mib", need.memory_mib)
    }

    fn check_numbers(&self) -> Result<(), FieldError> {
        let numbers = [
            ("time_limit_seconds", self.time_limit_seconds),
            ("predicted_seconds", self.predicted_seconds),
            ("checkpoint_seconds", self.checkpoint_seconds),
            ("restart_seconds", Some(self.restart_seconds)),
            ("retries.limit", Some(self.retries.limit.into())),
        ];
        for (path, value) in numbers {
            value.map_or(Ok(()), |value| check_bounds(path, value))?;
        }
        if self.retries.limit > 0 && self.retries.on.is_empty() {
            return Err(FieldError::new(
                "retries.on",
                "[]",
                "failure, time_limit or both, where retries.limit is above 0",
            ));
        }
        Ok(())
    }

    fn check_labels(&self) -> Result<(), FieldError> {
        check_count("pools", self.pools.len(), ENTRIES_MAX)?;
        check_count("after", self.after.len(), ENTRIES_MAX)?;
        check_once("pools", &self.pools)?;
        check_once("after", &self.after)?;
        check_once("retries.on", &self.retries.on)?;
        for (field, map) in [("labels", &self.labels), ("selector", &self.selector)] {
            check_count(field, map.len(), ENTRIES_MAX)?;
            for (key, value) in map {
                check_label(field, key)?;
                check_label(field, value)?;
            }
        }
        let texts = [
            ("image", &self.image),
            ("topology.require", &self.topology.require),
            ("topology.prefer", &self.topology.prefer),
            ("anti_affinity", &self.anti_affinity),
        ];
        texts
            .into_iter()
            .filter_map(|(field, text)| Some((field, text.as_ref()?)))
            .try_for_each(|(field, text)| check_label(field, text))
    }
}

impl PerWorker {
    fn check(&self) -> Result<(), FieldError> {
        let gpus = self.gpus();
        if gpus > MilliGpu::whole(1) && gpus.milli() % MILLI != 0 {
            return Err(FieldError::new(
                "gpus",
                gpus,
                "whole devices, or a fraction under 1",
            ));
        }
        if gpus > MilliGpu::whole(GPUS_PER_WORKER_MAX) {
            return Err(FieldError::new(
                "gpus",
                gpus,
                format!("at most {GPUS_PER_WORKER_MAX} for one worker; use more workers"),
            ));
        }
        if self.mig_profile.is_some() && (gpus == MilliGpu::ZERO || gpus.milli() % MILLI != 0) {
            return Err(FieldError::new(
                "gpus",
                gpus,
                format!("1 to {GPUS_PER_WORKER_MAX}: how many instances of the profile"),
            ));
        }
        if gpus == MilliGpu::ZERO && (self.gpu_model.is_some() || self.gpu_memory_mib.is_some()) {
            return Err(FieldError::new(
                "gpus",
                gpus,
                format!(
                    "1 to {GPUS_PER_WORKER_MAX}, or a fraction, where gpu_model or gpu_memory_mib says which GPU"
                ),
            ));
        }
        if self.sharing.is_empty() {
            return Err(FieldError::new(
                "sharing",
                "[]",
                "at least one mode, such as exclusive",
            ));
        }
        check_once("sharing", &self.sharing)?;
        if self.fraction()
            && !self.sharing.iter().any(|m| {
                matches!(
                    m,
                    SharingMode::Mps | SharingMode::TimeSlice | SharingMode::Vgpu
                )
            })
        {
            return Err(FieldError::new(
                "sharing",
                "exclusive",
                "time_slice or mps, since a fraction of a device is shared",
            ));
        }
        let whole = self.mig_profile.is_none() && gpus >= MilliGpu::whole(1);
        if whole && !self.sharing.contains(&SharingMode::Exclusive) {
            let asked: Vec<&str> = self.sharing.iter().map(|mode| mode.as_str()).collect();
            return Err(FieldError::new(
                "sharing",
                asked.join(", "),
                "exclusive, since whole devices are given to one worker; a device is shared where gpus is a fraction below 1, and cut where mig_profile names an instance",
            ));
        }
        if let Some(model) = &self.gpu_model {
            check_label("gpu_model", model)?;
        }
        self.mig_profile
            .as_ref()
            .map_or(Ok(()), |profile| check_label("mig_profile", profile))
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
