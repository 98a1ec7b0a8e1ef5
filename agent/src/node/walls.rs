//! What keeps the jobs of a node apart beside their users: which device files each may open, and what
//! it has of its own where users of a machine share.

use std::io;
use std::path::{Path, PathBuf};

use domain::sharing::SharingMode;
use domain::wall::Wall;
use protocol::desired::Assignment;

use super::Node;
use super::devices::View;
use super::workdir::Layout;
use crate::config::Config;
use crate::gpus::files;
use crate::journal::KeptDevice;
use crate::runs::Refusal;
use crate::supervise::cgroup::Cgroups;
use crate::supervise::devices::DeviceFile;
use crate::supervise::private::{self, InPlace, Private, SharedMemory};

/// Where programs put temporary files.
pub const TEMPORARY: &str = "/tmp";
/// Where they put those that are to outlive a restart.
pub const LASTING: &str = "/var/tmp";
/// Most device files of one job and of all jobs: those in `/dev` of a machine with hundreds of disks
/// are fewer, and a program of the kernel's that compares each at each opening stays short.
const FILES_MAX: usize = 4096;

/// What this node can put between its jobs.
#[derive(Debug, Clone, Copy)]
pub struct Walls {
    /// Jobs are barred from the device files of others.
    devices: bool,
    /// Jobs have folders and shared memory of their own.
    private: bool,
    /// Of which the list of processes is a part.
    processes_hidden: bool,
}

impl Walls {
    /// None at all: of an agent that is not root, and of one that is not a whole one.
    pub const NONE: Self = Self {
        devices: false,
        private: false,
        processes_hidden: false,
    };

    /// The walls that this node cannot have.
    pub fn lacking(self, isolated: bool) -> Vec<Wall> {
        let all = [
            (Wall::Users, isolated),
            (Wall::DeviceFiles, self.devices),
            (Wall::TemporaryFiles, self.private),
            (Wall::ProcessList, self.processes_hidden),
        ];
        let lacking = all.into_iter().filter(|(_, there)| !there);
        lacking.map(|(wall, _)| wall).collect()
    }

    /// Looks at what the machine lets us do; sentences for the node's page on what is missing.
    pub fn look(config: &Config, isolated: bool, cgroups: &Cgroups) -> (Self, Vec<String>) {
        if !isolated {
            return (Self::NONE, Vec::new());
        }
        let mut missing = Vec::new();
        let devices = cgroups.bars_devices();
        if !devices {
            missing.push(
                "jobs can open the device files of all GPUs of this node: its control groups do not bar device files"
                    .to_owned(),
            );
        }
        let absent = config.device_files.iter().filter(|path| !path.exists());
        missing.extend(absent.map(|path| {
            let path = path.display();
            format!("device_files: {path} is not there, so that no job can open it: is its driver loaded?")
        }));
        let able = config.private_tmp.then(private::able);
        match &able {
            None => missing.push(
                "jobs of all teams share /tmp, /var/tmp and /dev/shm on this node (private_tmp = false)"
                    .to_owned(),
            ),
            Some(Err(error)) => missing.push(format!(
                "jobs of all teams share /tmp, /var/tmp and /dev/shm on this node: it lets the agent mount nothing ({error})"
            )),
            Some(Ok(false)) => missing.push(
                "jobs can list the processes of all teams on this node: its kernel cannot hide them from some (5.8 can)"
                    .to_owned(),
            ),
            Some(Ok(true)) => {}
        }
        let walls = Self {
            devices,
            private: matches!(able, Some(Ok(_))),
            processes_hidden: matches!(able, Some(Ok(true))),
        };
        (walls, missing)
    }
}

/// The paths of device files, there or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// Those of a job's devices.
    pub of_devices: Vec<PathBuf>,
    /// Those that all jobs may open by the settings.
    pub of_settings: Vec<PathBuf>,
}

/// The paths of the device files that a job may open, beside those that every program needs.
pub async fn device_paths(
    node: &Node,
    shares: &[KeptDevice],
    view: &View,
) -> Result<Files, Refusal> {
    let mut devices = Vec::new();
    for (share, name) in shares.iter().zip(&view.names) {
        let numbers = node.cutter.numbers(&share.uuid, name.clone()).await;
        devices.push(numbers.map_err(|error| Refusal::here(error.to_string()))?);
    }
    let config = &node.config;
    let mut of_settings = Vec::new();
    for path in &config.device_files {
        within(path, &mut of_settings).map_err(|error| unseen(path, &error))?;
    }
    let files = Files {
        of_devices: files::paths(&config.dev_root, &config.driver_root, &devices),
        of_settings,
    };
    let count = files.of_devices.len() + files.of_settings.len();
    if count > FILES_MAX {
        return Err(Refusal::here(format!(
            "device_files: {count} device files are too many: name folders with at most {FILES_MAX} in all"
        )));
    }
    Ok(files)
}

/// The device files that a job may open, beside those that every program needs; none where it is
/// barred from none.
pub async fn device_files(
    node: &Node,
    shares: &[KeptDevice],
    view: &View,
) -> Result<Option<Vec<DeviceFile>>, Refusal> {
    if !node.walls.devices {
        return Ok(None);
    }
    let paths = device_paths(node, shares, view).await?;
    let mut open = Vec::new();
    for path in paths.of_devices.iter().chain(&paths.of_settings) {
        // What is not there cannot be opened either.
        open.extend(DeviceFile::at(path).map_err(|error| unseen(path, &error))?);
    }
    open.sort_unstable();
    open.dedup();
    Ok(Some(open))
}

fn unseen(path: &Path, error: &io::Error) -> Refusal {
    Refusal::here(format!(
        "device file {} cannot be looked at: {error}",
        path.display()
    ))
}

/// Adds a path, or what lies in a folder, where that is a device file.
fn within(path: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let inside = match path.is_dir() {
        true => path.read_dir()?.map(|entry| Ok(entry?.path())).collect(),
        false => io::Result::Ok(vec![path.to_owned()]),
    };
    for path in inside? {
        if DeviceFile::at(&path)?.is_some() {
            found.push(path);
        }
    }
    Ok(())
}

/// What a job has of its own; none where it shares all with the machine's other users.
pub fn private(node: &Node, assignment: &Assignment, layout: &Layout) -> Option<Private> {
    // Clients and daemon of MPS reach one another by shared memory of the machine.
    let by_mps = |share: &protocol::desired::DeviceShare| share.mode == SharingMode::Mps;
    let memory = (!assignment.devices.iter().any(by_mps)).then_some(SharedMemory {
        mib_max: assignment.memory_mib,
    });
    private_in(node, [&layout.temporary, &layout.lasting], memory, None)
}

/// The same of what is no job's: its folders for temporary files, and those that are to outlive a restart. It finds
/// one folder of the machine's where that is.
pub fn private_in(
    node: &Node,
    [temporary, lasting]: [&Path; 2],
    memory: Option<SharedMemory>,
    found: Option<&Path>,
) -> Option<Private> {
    if !node.walls.private {
        return None;
    }
    let in_place = |own: &Path, of: &str| InPlace {
        own: own.to_owned(),
        of: PathBuf::from(of),
    };
    let config = &node.config;
    let mut kept = vec![
        node.folders.state().to_owned(),
        node.folders.checkpoints().to_owned(),
    ];
    kept.extend(config.work_roots.iter().cloned());
    kept.extend(found.map(Path::to_owned));
    Some(Private {
        folders: vec![in_place(temporary, TEMPORARY), in_place(lasting, LASTING)],
        memory,
        processes_hidden: node.walls.processes_hidden,
        kept,
    })
}
