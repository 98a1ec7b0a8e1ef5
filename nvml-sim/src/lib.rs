//! A stand-in for `libnvidia-ml.so.1` whose GPUs are written down in a file.
//!
//! A node agent loads this library by the same path, the same symbols and the same
//! structures as NVIDIA's, so that one code drives real and simulated machines. The
//! machine is the JSON file named by `ALLOTMENT_NVML_SIM_MACHINE`; it may be replaced
//! (by rename) at any time, and every call that reads state sees the newest version.
//! What is not simulated is exported nevertheless and answers `NOT_SUPPORTED`, as a
//! real driver does for a card that lacks a feature. README.md has the file's format.
//!
//! Nothing of this project links the library; programs that only want to write machine
//! files may use [`machine`] and [`models`] as an ordinary crate.

// This crate is a C library: its functions take the callers' pointers. All pointer
// accesses go through `border`, which states what it relies on.
#![allow(unsafe_code)]

#[macro_use]
mod border;
mod calls;
mod cuts;
mod library;
pub mod machine;
pub mod models;
mod notation;
mod profiles;
mod stubs;
mod topology;
mod workers;

/// The environment variable that names the machine file.
pub const MACHINE_FILE_VARIABLE: &str = "ALLOTMENT_NVML_SIM_MACHINE";
