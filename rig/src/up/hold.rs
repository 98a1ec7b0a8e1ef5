//! One product per state folder: a lock that the kernel gives back when its holder dies.

use std::fs::{File, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait;

/// The file that is held, in the state folder.
pub const FILE: &str = "lock";

/// The lock of a running product.
pub struct Hold {
    _lock: Flock<File>,
}

impl Hold {
    /// Takes it; `None` when another holds it.
    pub fn take(state: &Path) -> anyhow::Result<Option<Self>> {
        match Flock::lock(open(state)?, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                lock.set_len(0).context("write the lock file")?;
                lock.rewind().context("write the lock file")?;
                write!(lock, "{}", std::process::id()).context("write the lock file")?;
                Ok(Some(Self { _lock: lock }))
            }
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, error)) => Err(error).context("take the lock file"),
        }
    }
}

/// Asks the holder to end and waits for it; whether there was one.
pub async fn end_holder(state: &Path, bound: Duration) -> anyhow::Result<bool> {
    if free(state)? {
        return Ok(false);
    }
    let mut text = String::new();
    open(state)?
        .read_to_string(&mut text)
        .context("read the lock file")?;
    let pid: i32 = match text.trim().parse() {
        Ok(pid) => pid,
        Err(_) => bail!(
            "the lock file in {} names no process: {text:?}",
            state.display()
        ),
    };
    match kill(Pid::from_raw(pid), Signal::SIGTERM) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => return Err(error).with_context(|| format!("ask process {pid} to end")),
    }
    wait::until("the product stops", bound, || async {
        Ok(free(state)?.then_some(()))
    })
    .await?;
    Ok(true)
}

fn free(state: &Path) -> anyhow::Result<bool> {
    match Flock::lock(open(state)?, FlockArg::LockExclusiveNonblock) {
        Ok(_) => Ok(true),
        Err((_, Errno::EWOULDBLOCK)) => Ok(false),
        Err((_, error)) => Err(error).context("look at the lock file"),
    }
}

fn open(state: &Path) -> anyhow::Result<File> {
    let path = state.join(FILE);
    // Whoever can open it can hold it.
    let opened = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .and_then(|file| {
            file.set_permissions(Permissions::from_mode(0o600))?;
            Ok(file)
        });
    opened.with_context(|| format!("open {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::who;

    #[test]
    fn the_second_to_take_it_gets_nothing_until_the_first_lets_go() {
        let state = std::env::temp_dir().join(format!("allotment-rig-hold-{}", std::process::id()));
        who::make_folder(&state, who::PRIVATE).unwrap();
        let first = Hold::take(&state).unwrap().expect("nobody holds it");
        let mode = state.join(FILE).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "no job can open it");
        assert!(Hold::take(&state).unwrap().is_none());
        drop(first);
        assert!(Hold::take(&state).unwrap().is_some());
        std::fs::remove_dir_all(&state).unwrap();
    }
}
