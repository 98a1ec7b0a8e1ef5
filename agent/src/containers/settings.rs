//! The agent's settings of the container runner.

use std::path::PathBuf;

use domain::FieldError;
use serde::{Deserialize, Serialize};

/// Most folders of the machine that all containers find: each is a mount of each.
const MOUNTS_MAX: usize = 64;
/// Longest pull that may be allowed, in seconds: a day, since a pull holds its devices.
const PULL_SECONDS_MAX: u64 = 24 * 3600;
/// Longest name of a network, in characters: runtimes refuse longer ones.
const NETWORK_CHARS_MAX: usize = 128;

/// The table `[containers]` of the agent's file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The socket of Docker's or Podman's API, such as `/run/podman/podman.sock`; without one no job runs
    /// as a container here.
    pub socket: Option<PathBuf>,
    /// When an image is pulled: `missing`, `always` or `never`.
    pub pull: Pull,
    /// For how long a pull may take, in seconds.
    pub pull_seconds_max: u64,
    /// Folders of the machine that containers find at their own path.
    pub mounts: Vec<Allowed>,
    /// How containers get at devices: `cdi`, `request` (the runtime's own driver), `files`, or `auto`, which is
    /// the first of them that the runtime can.
    pub devices: Way,
    /// The network that containers are in; never the machine's own.
    pub network: String,
    /// Whether the runtime's init is the first process of containers: it passes on signals that a program
    /// takes no care of, and collects orphans.
    pub init: bool,
    /// For how many days an image stays that no job here has used since; 0 is for ever.
    pub images_days_max: u32,
    /// How much the images of jobs may take together, in bytes; those go first that were not used for longest.
    /// 0 is no bound.
    pub images_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            socket: None,
            pull: Pull::Missing,
            pull_seconds_max: 3600,
            mounts: Vec::new(),
            devices: Way::Auto,
            network: "bridge".to_owned(),
            init: true,
            images_days_max: 14,
            images_bytes_max: 200 * 1024 * 1024 * 1024,
        }
    }
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pull {
    /// Where it is not there.
    Missing,
    /// Before each start.
    Always,
    /// Never: images are put there by other means.
    Never,
}

/// How containers get at devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// The first of the others that the runtime can.
    Auto,
    /// By the Container Device Interface.
    Cdi,
    /// By a request to the runtime's own driver for NVIDIA.
    Request,
    /// By their files alone: the driver's libraries must be in the image.
    Files,
}

/// A folder of the machine that containers find.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allowed {
    /// The folder.
    pub path: PathBuf,
    /// Whether it can only be read.
    #[serde(default = "yes")]
    pub read_only: bool,
}

fn yes() -> bool {
    true
}

impl Settings {
    /// Checks what no type can.
    pub fn check(&self) -> Result<(), FieldError> {
        let refuse = |field: &str, value: String, remedy: &str| {
            Err(FieldError::new(
                format!("containers.{field}"),
                value,
                remedy,
            ))
        };
        let shown = |path: &PathBuf| path.display().to_string();
        if let Some(socket) = self.socket.as_ref().filter(|path| !path.is_absolute()) {
            return refuse("socket", shown(socket), "an absolute path");
        }
        if self.mounts.len() > MOUNTS_MAX {
            let remedy = format!("at most {MOUNTS_MAX} folders");
            return refuse("mounts", self.mounts.len().to_string(), &remedy);
        }
        let plain = |path: &PathBuf| {
            let whole = path
                .to_str()
                .is_some_and(|text| !text.contains([',', '"', '\n']));
            let up = path.components().any(|part| part.as_os_str() == "..");
            path.is_absolute() && path.parent().is_some() && whole && !up
        };
        if let Some(mount) = self.mounts.iter().find(|mount| !plain(&mount.path)) {
            let remedy = "an absolute path other than / without '..', ',' and '\"'";
            return refuse("mounts", shown(&mount.path), remedy);
        }
        if !(1..=PULL_SECONDS_MAX).contains(&self.pull_seconds_max) {
            let remedy = format!("1 to {PULL_SECONDS_MAX}");
            return refuse(
                "pull_seconds_max",
                self.pull_seconds_max.to_string(),
                &remedy,
            );
        }
        // `host`, `container:…` and `ns:…` would hand out a network that is another's.
        let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.network.is_empty()
            || self.network == "host"
            || self.network.len() > NETWORK_CHARS_MAX
            || !self.network.chars().all(name)
        {
            let remedy = "none, bridge or the name of a network of the runtime; never host";
            return refuse("network", self.network.clone(), remedy);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), String> {
        let read: Settings = toml::from_str(text).map_err(|e| e.to_string())?;
        read.check().map_err(|e| e.to_string())
    }

    #[test]
    fn what_would_hand_out_the_machine_is_refused() {
        for (text, field) in [
            ("network = 'host'", "containers.network"),
            ("network = 'container:abc'", "containers.network"),
            ("network = 'ns:/proc/1/ns/net'", "containers.network"),
            ("mounts = [{ path = '/' }]", "containers.mounts"),
            ("mounts = [{ path = 'data' }]", "containers.mounts"),
            ("mounts = [{ path = '/data/../etc' }]", "containers.mounts"),
            ("mounts = [{ path = '/a,b' }]", "containers.mounts"),
            ("socket = 'podman.sock'", "containers.socket"),
            ("pull_seconds_max = 0", "containers.pull_seconds_max"),
            ("privileged = true", "privileged"),
        ] {
            let refused = checked(text).expect_err(text);
            assert!(refused.contains(field), "{refused}");
        }
    }

    #[test]
    fn a_mount_can_only_be_read_unless_it_says_otherwise() {
        let read: Settings = toml::from_str(
            "network = 'none'\nmounts = [{ path = '/data' }, { path = '/scratch', read_only = false }]",
        )
        .expect("read");
        read.check().expect("taken");
        let only: Vec<bool> = read.mounts.iter().map(|mount| mount.read_only).collect();
        assert_eq!(only, [true, false]);
    }
}
