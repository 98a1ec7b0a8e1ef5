//! Where everything lies: the checkout, the state of a product that was started, the binaries.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use crate::who;

/// The kernel's bound on a Unix socket's path, less its final zero byte.
const SOCKET_PATH_MAX: usize = 107;
/// What PostgreSQL adds to the folder of its socket.
const SOCKET_NAME: &str = ".s.PGSQL.5432";
/// Hex digits of the checkout's hash in its state folder's name: enough for one machine's checkouts.
const HASH_DIGITS: usize = 12;
/// Root's state folders, where PostgreSQL's and the jobs' users can reach them.
const ROOT_STATE: &str = "/var/lib/allotment";

/// The folders of one product.
#[derive(Debug, Clone)]
pub struct Paths {
    /// The state folder.
    pub state: PathBuf,
    /// The folder with `allotment-server` and its siblings.
    pub binaries: PathBuf,
    /// The folder with what was fetched for want of a system's own: PostgreSQL, Node.
    pub tools: PathBuf,
}

impl Paths {
    /// The folders of the product that `./dev up` starts in this checkout.
    pub fn of_checkout(checkout: &Path) -> anyhow::Result<Self> {
        let link_folder = checkout.join(".allotment");
        let state = state_of(checkout)?;
        Ok(Self {
            state,
            binaries: binaries()?,
            tools: link_folder.join("tools"),
        })
    }

    /// The folders of a product that lies at `state`.
    pub fn at(state: &Path, tools: PathBuf) -> anyhow::Result<Self> {
        check_socket_path(state)?;
        Ok(Self {
            state: state.to_owned(),
            binaries: binaries()?,
            tools,
        })
    }

    /// One of the product's programs, or a sentence that says how to build it.
    pub fn binary(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.binaries.join(name);
        if !path.exists() {
            bail!(
                "{} is not there; build it with: cargo build --workspace",
                path.display()
            );
        }
        Ok(path)
    }

    /// PostgreSQL's data and socket.
    pub fn postgres(&self) -> PathBuf {
        self.state.join("pg")
    }

    /// The log files of all processes.
    pub fn logs(&self) -> PathBuf {
        self.state.join("logs")
    }

    /// The state folders of the agents.
    pub fn agents(&self) -> PathBuf {
        self.state.join("agents")
    }
}

fn state_of(checkout: &Path) -> anyhow::Result<PathBuf> {
    let hash = hex::encode(Sha256::digest(checkout.as_os_str().as_encoded_bytes()));
    let name = &hash[..HASH_DIGITS];
    if who::root() {
        return Ok(Path::new(ROOT_STATE).join(name));
    }
    let beside = checkout
        .join(".allotment")
        .join(format!("state-{}", nix::unistd::getuid()));
    if check_socket_path(&beside).is_ok() {
        return Ok(beside);
    }
    let home = match std::env::var_os("XDG_STATE_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => {
            PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".local/state")
        }
    };
    let short = home.join("allotment").join(name);
    check_socket_path(&short)?;
    Ok(short)
}

fn check_socket_path(state: &Path) -> anyhow::Result<()> {
    let socket = state.join("pg/run").join(SOCKET_NAME);
    let length = socket.as_os_str().len();
    if length >= SOCKET_PATH_MAX {
        bail!(
            "the path of PostgreSQL's socket, {}, has {length} bytes and may have {}; \
             set XDG_STATE_HOME to a shorter folder",
            socket.display(),
            SOCKET_PATH_MAX - 1
        );
    }
    Ok(())
}

/// The folder of this program, or of the program that it tests.
fn binaries() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find this program's own file")?;
    let folder = own.parent().context("this program lies in no folder")?;
    let folder = match folder.file_name() {
        Some(name) if name == "deps" => folder.parent().context("`deps` lies in no folder")?,
        _ => folder,
    };
    Ok(folder.to_owned())
}

/// The root of the checkout that this was built from.
pub fn checkout_of_build() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest
        .parent()
        .expect("the crate lies in the checkout")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_too_deep_for_a_socket_is_refused_with_the_remedy() {
        let deep = Path::new("/home/somebody").join("x".repeat(80));
        let error = check_socket_path(&deep).unwrap_err().to_string();
        assert!(error.contains("XDG_STATE_HOME"), "{error}");
    }

    #[test]
    fn two_checkouts_have_two_states() {
        let a = state_of(Path::new("/srv/a")).unwrap();
        let b = state_of(Path::new("/srv/b")).unwrap();
        assert_ne!(a, b);
    }
}
