//! The runtime at the other end of a socket, and what it says it can do.

use std::path::Path;
use std::time::Duration;

use bollard::models::SystemInfo;
use bollard::{API_DEFAULT_VERSION, Docker};

use super::settings::Way;

/// Longest wait for an answer to a question; a runtime that is busy pulling takes seconds.
const ANSWER_SECONDS: u64 = 60;
/// Longest wait for the whole of a look at a runtime.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// The kind of the GPUs of NVIDIA in the Container Device Interface.
const CDI_KIND: &str = "nvidia.com/gpu";
/// Largest such file that is read, in bytes: one names some hundred devices.
const CDI_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// What a runtime is and can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// Its version, for people.
    pub version: String,
    /// How containers get at devices when nobody says otherwise.
    pub way: Way,
    /// Whether it takes a control group of ours as the parent of a container's.
    pub takes_parent: bool,
    /// Whether it gives containers users of their own, so that files of a team's are nobody's there.
    pub remaps_users: bool,
}

/// A connection to the runtime behind a socket.
pub fn connect(socket: &Path, seconds: u64) -> Result<Docker, bollard::errors::Error> {
    let path = socket.to_string_lossy();
    Docker::connect_with_unix(&path, seconds, API_DEFAULT_VERSION)
}

/// The same, that speaks the version that the runtime does.
pub async fn open(socket: &Path) -> Result<Docker, bollard::errors::Error> {
    connect(socket, ANSWER_SECONDS)?.negotiate_version().await
}

/// Asks the runtime behind a socket what it can do; in words why it does not say.
pub async fn look(socket: &Path) -> Result<Runtime, String> {
    let asked = async {
        let docker = open(socket).await?;
        docker.info().await
    };
    match tokio::time::timeout(LOOK_TIMEOUT, asked).await {
        Ok(Ok(info)) => Ok(runtime(&info)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", LOOK_TIMEOUT.as_secs())),
    }
}

fn runtime(info: &SystemInfo) -> Runtime {
    use bollard::models::SystemInfoCgroupDriverEnum as Driver;
    let folders = info.cdi_spec_dirs.iter().flatten();
    let cdi = folders.map(Path::new).any(names_gpus);
    let nvidia = info
        .runtimes
        .iter()
        .flatten()
        .any(|(name, _)| name == "nvidia");
    Runtime {
        version: info.server_version.clone().unwrap_or_default(),
        way: match (cdi, nvidia) {
            (true, _) => Way::Cdi,
            (false, true) => Way::Request,
            (false, false) => Way::Files,
        },
        takes_parent: info.cgroup_driver == Some(Driver::CGROUPFS),
        remaps_users: info
            .security_options
            .iter()
            .flatten()
            .any(|option| option.starts_with("name=userns") || option.starts_with("name=rootless")),
    }
}

/// Whether a folder has a specification of GPUs.
fn names_gpus(folder: &Path) -> bool {
    let files = folder.read_dir().into_iter().flatten().flatten();
    files.map(|entry| entry.path()).any(|path| {
        let small = path
            .metadata()
            .is_ok_and(|found| found.len() <= CDI_BYTES_MAX);
        small && std::fs::read_to_string(&path).is_ok_and(|text| text.contains(CDI_KIND))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_by_the_best_way_that_a_runtime_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let told = |dirs: Vec<String>, nvidia: bool| {
            let runtimes =
                nvidia.then(|| ("nvidia".to_owned(), bollard::models::Runtime::default()));
            let info = SystemInfo {
                cdi_spec_dirs: Some(dirs),
                runtimes: Some(runtimes.into_iter().collect()),
                ..SystemInfo::default()
            };
            runtime(&info).way
        };
        let dirs = vec![folder.path().display().to_string()];
        assert_eq!(told(dirs.clone(), false), Way::Files);
        assert_eq!(told(dirs.clone(), true), Way::Request);
        let spec = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n";
        std::fs::write(folder.path().join("nvidia.yaml"), spec).expect("written");
        assert_eq!(told(dirs, true), Way::Cdi);
        assert_eq!(
            told(Vec::new(), true),
            Way::Request,
            "it reads no such folder"
        );
    }

    #[test]
    fn a_runtime_that_gives_users_other_numbers_is_known() {
        let info = SystemInfo {
            security_options: Some(vec!["name=seccomp,profile=default".to_owned()]),
            ..SystemInfo::default()
        };
        assert!(!runtime(&info).remaps_users);
        let info = SystemInfo {
            security_options: Some(vec!["name=userns".to_owned()]),
            ..info
        };
        assert!(runtime(&info).remaps_users);
    }
}
