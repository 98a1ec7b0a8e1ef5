//! The container runtime of this node: whether it answers, what it can do, and what a job's container is
//! to be there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::ids::AssignmentId;
use domain::sharing::SharingMode;
use protocol::desired::Assignment;
use tokio::sync::watch;

use super::devices::View;
use super::walls::{Files, LASTING, TEMPORARY};
use super::workdir::Layout;
use super::{Node, environment};
use crate::containers::settings::{Settings, Way};
use crate::containers::{self, Container, Devices, Mount, Named, Runtime};
use crate::runs::Refusal;
use crate::supervise::cgroup::Cgroups;

/// The word of a spec for this way of running work.
pub const CONTAINER: &str = "container";
/// How often the runtime is asked whether it is there.
const LOOK_PACE: Duration = Duration::from_secs(10);
/// How often what nobody holds any more is cleared away.
const CLEAR_PACE: Duration = Duration::from_secs(60);
/// How long an assignment waits for the runtime to remove its container before it is released.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Shared memory of a job without a limit of memory, in MiB: training with some workers that load data
/// takes a part of it, and it is bounded.
const SHARED_MEMORY_MIB: i64 = 4096;

/// What is known of the runtime now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The settings name none.
    Unset,
    /// Jobs run as containers here.
    Ready(Runtime),
    /// Why they do not, in a sentence for the node's page.
    Missing(String),
}

impl Seen {
    /// Whether jobs run as containers.
    pub fn ready(&self) -> bool {
        matches!(self, Self::Ready(_))
    }
}

/// Looks at a runtime once.
pub async fn look(settings: &Settings, isolated: bool) -> Seen {
    let Some(socket) = &settings.socket else {
        return Seen::Unset;
    };
    if !isolated {
        return Seen::Missing(
            "no job runs as a container on this node: its agent is not root, and could not keep containers of teams apart"
                .to_owned(),
        );
    }
    match containers::look(socket).await {
        Ok(runtime) if runtime.remaps_users => Seen::Missing(format!(
            "no job runs as a container on this node: the runtime at {} gives containers other users than the machine's, so that a team's files would be nobody's; start it as root without such a map",
            socket.display()
        )),
        Ok(runtime) => Seen::Ready(runtime),
        Err(error) => Seen::Missing(format!(
            "no job runs as a container on this node: the runtime at {} does not answer: {error}",
            socket.display()
        )),
    }
}

/// Looks for ever, and clears away containers and images.
pub async fn watch(node: Arc<Node>) {
    let settings = &node.config.containers;
    let Some(socket) = settings.socket.clone() else {
        return;
    };
    let mut cleared: Option<Instant> = None;
    loop {
        let seen = look(settings, node.isolated).await;
        let ready = seen.ready();
        node.containers.send_if_modified(|known| {
            let changed = *known != seen;
            if changed {
                *known = seen;
            }
            changed
        });
        if ready && cleared.is_none_or(|at| at.elapsed() >= CLEAR_PACE) {
            clear_all(&node, &socket).await;
            cleared = Some(Instant::now());
        }
        tokio::time::sleep(LOOK_PACE).await;
    }
}

/// Removes what is left of an assignment's container. A runtime that does not answer now is asked again when
/// strays are looked for: none of its processes is left by then.
pub async fn clear(id: AssignmentId, socket: &Path) {
    let name = id.to_string();
    let removed = containers::remove(socket, &name);
    match tokio::time::timeout(REMOVE_TIMEOUT, removed).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(assignment.id = %id, %error, "a container is not removed yet");
        }
        Err(_) => tracing::warn!(assignment.id = %id, "a container is not removed yet"),
    }
}

/// Notes that a job uses an image.
pub fn note(node: &Node, id: &str) {
    if let Err(error) = containers::note_image(&node.folders.images(), id) {
        tracing::warn!(%error, "it cannot be kept when an image was used, so that it stays");
    }
}

async fn clear_all(node: &Node, socket: &Path) {
    match containers::remove_strays(socket, &node.folders).await {
        Ok(0) => {}
        Ok(removed) => tracing::warn!(removed, "containers that nobody held were removed"),
        Err(error) => tracing::warn!(%error, "containers that nobody holds cannot be removed"),
    }
    let settings = &node.config.containers;
    match containers::clean_images(socket, &node.folders.images(), settings).await {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "images that no job has used for long were removed"),
        Err(error) => tracing::warn!(%error, "images cannot be cleaned"),
    }
}

/// The ways in which a node can run work now.
pub fn runners(node: &Node) -> Vec<&'static str> {
    let container = node.containers.borrow().ready().then_some(CONTAINER);
    super::RUNNERS.into_iter().chain(container).collect()
}

/// A sentence for the node's page.
pub fn warning(seen: &watch::Sender<Seen>) -> Option<String> {
    match &*seen.borrow() {
        Seen::Missing(why) => Some(why.clone()),
        Seen::Unset | Seen::Ready(_) => None,
    }
}

/// What cannot be in a container at all.
pub fn check(assignment: &Assignment) -> Result<(), Refusal> {
    let by_mps = assignment
        .devices
        .iter()
        .any(|d| d.mode == SharingMode::Mps);
    if by_mps {
        return Err(Refusal::here(
            "sharing: a container cannot share a device by mps, whose clients meet in the machine's shared memory; use runner process, or time_slice or mig",
        ));
    }
    Ok(())
}

/// The container of an assignment that has been laid out; `None` where it is to run as a process.
pub fn container(
    node: &Node,
    assignment: &Assignment,
    layout: &Layout,
    view: &View,
    files: &Files,
) -> Result<Option<Container>, Refusal> {
    if assignment.runner != CONTAINER {
        return Ok(None);
    }
    let runtime = match &*node.containers.borrow() {
        Seen::Ready(runtime) => runtime.clone(),
        Seen::Missing(why) => return Err(Refusal::here(why.clone())),
        Seen::Unset => {
            return Err(Refusal::here(
                "runner: this node has no container runtime (containers.socket)",
            ));
        }
    };
    let settings = &node.config.containers;
    let socket = settings.socket.clone();
    let socket = socket.ok_or_else(|| Refusal::here("containers.socket is not set"))?;
    let image = assignment.image.clone();
    if image.is_empty() {
        return Err(Refusal::invalid("image: runner container starts one"));
    }
    Ok(Some(Container {
        socket,
        image,
        pull: settings.pull,
        pull_seconds_max: settings.pull_seconds_max,
        agent: node.folders.state().to_string_lossy().into_owned(),
        mounts: mounts(node, assignment, layout),
        devices: devices(node, settings, &runtime, view, files),
        directory: layout.directory.root.join(&layout.directory.below),
        shared_memory_mib: match assignment.memory_mib {
            0 => SHARED_MEMORY_MIB,
            // It counts as the job's memory, as for processes.
            mib => mib,
        },
        network: settings.network.clone(),
        init: settings.init,
        parent: parent(node, &runtime, assignment),
    }))
}

/// Below a group of ours its limits are those of a process, and count towards what all jobs have together.
fn parent(node: &Node, runtime: &Runtime, assignment: &Assignment) -> Option<String> {
    let grouped = node.cgroups != Cgroups::None && runtime.takes_parent;
    grouped.then(|| format!("/{}/{}", node.config.cgroup_parent, assignment.id))
}

/// Folders of the machine that it finds: its own ones where a process has them, and those of the settings.
fn mounts(node: &Node, assignment: &Assignment, layout: &Layout) -> Vec<Mount> {
    let at = |from: &Path, to: &Path| Mount {
        from: from.to_owned(),
        to: to.to_owned(),
        read_only: false,
    };
    // The whole of it: the file that tells who works with it is replaced, not written.
    let own = node.folders.job(assignment.id);
    let mut mounts = vec![
        at(&own, &own),
        at(&layout.temporary, Path::new(TEMPORARY)),
        at(&layout.lasting, Path::new(LASTING)),
        at(&layout.checkpoint, &layout.checkpoint),
    ];
    if assignment.working_directory.is_some() {
        mounts.push(at(&layout.directory.root, &layout.directory.root));
    }
    for allowed in &node.config.containers.mounts {
        let mount = Mount {
            from: allowed.path.clone(),
            to: allowed.path.clone(),
            read_only: allowed.read_only,
        };
        // What the settings say of a folder holds, also where a job works in it.
        mounts.retain(|other| other.to != mount.to);
        mounts.push(mount);
    }
    mounts
}

fn devices(
    node: &Node,
    settings: &Settings,
    runtime: &Runtime,
    view: &View,
    files: &Files,
) -> Devices {
    let way = match settings.devices {
        Way::Auto => runtime.way,
        way => way,
    };
    let names = || view.names.clone();
    let named = match way {
        Way::Cdi => Named::Cdi(
            names()
                .iter()
                .map(|name| format!("nvidia.com/gpu={name}"))
                .collect(),
        ),
        Way::Request => Named::Request(names()),
        Way::Files | Way::Auto => Named::None,
    };
    // By its name a device brings its files with it: those of the settings are left.
    let wanted = match named {
        Named::None => files.of_devices.iter().chain(&files.of_settings),
        _ => [].iter().chain(&files.of_settings),
    };
    Devices {
        named,
        files: found(&node.config.dev_root, wanted),
    }
}

/// Device files under the names that programs look for, wherever the machine has them.
fn found<'f>(
    dev_root: &Path,
    files: impl Iterator<Item = &'f PathBuf>,
) -> BTreeMap<PathBuf, PathBuf> {
    let name = |file: &PathBuf| match file.strip_prefix(dev_root) {
        Ok(below) => Path::new("/dev").join(below),
        Err(_) => file.clone(),
    };
    let there = files.filter(|file| file.exists());
    there.map(|file| (file.clone(), name(file))).collect()
}

/// The environment of a container: where a process has the machine's defaults it has its image's.
pub fn environment(
    assignment: &Assignment,
    places: &environment::Places<'_>,
    view: &View,
) -> BTreeMap<String, String> {
    let mut built = environment::build(assignment, places, view);
    for default in ["PATH", "LANG"] {
        if !assignment.env.contains_key(default) {
            built.remove(default);
        }
    }
    built
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_files_are_found_by_the_names_that_programs_know() {
        let root = tempfile::tempdir().expect("a folder");
        let file = root.path().join("nvidia0");
        std::fs::write(&file, "").expect("written");
        let absent = root.path().join("nvidia-uvm");
        let null = PathBuf::from("/dev/null");
        let files = [file.clone(), absent, null.clone()];
        let found = found(root.path(), files.iter());
        let wanted = [(file, PathBuf::from("/dev/nvidia0")), (null.clone(), null)];
        assert_eq!(found, BTreeMap::from(wanted));
    }
}
