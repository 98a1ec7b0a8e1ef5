//! The built library and machine files for the tests that load it as an agent does.

#![allow(dead_code, unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvml_sim::machine::Machine;
use nvml_wrapper::Nvml;

/// Where the library lies: beside the test's own program, or where the variable says.
pub fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("NVML_SIM_LIBRARY") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a running test has a path");
    let folder = test.parent().expect("a program lies in a folder");
    [
        folder.join("libnvml_sim.so"),
        folder.join("../libnvml_sim.so"),
    ]
    .into_iter()
    .find(|path| path.exists())
    .expect("cargo builds the library with its tests; name another in NVML_SIM_LIBRARY")
}

/// A machine in a file of its own, with the library open on it.
pub struct Simulated {
    pub nvml: Nvml,
    pub machine: Machine,
    path: PathBuf,
    _folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// One library per process has one machine: tests of one program take turns.
static TURN: Mutex<()> = Mutex::new(());

impl Simulated {
    pub fn start(model: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("machine.json");
        let machine = nvml_sim::models::machine(model, "tests").expect("a named model");
        write(&path, &machine);
        // SAFETY: the turn is held, and no other thread of these tests reads the environment.
        unsafe { std::env::set_var(nvml_sim::MACHINE_FILE_VARIABLE, &path) };
        let nvml = Nvml::builder()
            .lib_path(library().as_os_str())
            .init()
            .expect("the library starts");
        Self {
            nvml,
            machine,
            path,
            _folder: folder,
            _turn: turn,
        }
    }

    /// Replaces the machine's file, as an operator's or a test's tool does.
    pub fn change(&mut self, change: impl FnOnce(&mut Machine)) {
        change(&mut self.machine);
        write(&self.path, &self.machine);
    }

    /// Replaces the machine's file by any text.
    pub fn replace(&self, text: &str) {
        write_text(&self.path, text);
    }
}

fn write(path: &Path, machine: &Machine) {
    write_text(path, &machine.to_json());
}

fn write_text(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).expect("the temporary folder takes a file");
    std::fs::rename(&beside, path).expect("a rename within a folder");
}
