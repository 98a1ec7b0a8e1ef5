//! Where an agent keeps what, below its state folder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use domain::ids::{AssignmentId, JobId, TeamId};

use crate::files;
use crate::runs::RunFolder;

/// Why a state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FoldersError {
    /// It cannot be made or opened.
    #[error("state_dir: {path} cannot be used")]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another process, which can be no job, holds it.
    #[error("state_dir: {path} is in use by another agent: stop that one, or name another folder")]
    Taken {
        /// The folder.
        path: PathBuf,
    },
    /// Jobs could not reach their own folders.
    #[error(
        "{key}: {path} cannot be reached by the teams' users, since others may not pass {closed}: name a folder below one that all may pass, such as /var/lib"
    )]
    Closed {
        /// The setting.
        key: &'static str,
        /// The folder that it names.
        path: PathBuf,
        /// The folder on the way that is closed.
        closed: PathBuf,
    },
    /// Others could put links in the place of what root makes there.
    #[error(
        "checkpoint_root: {path} is refused: it belongs to user {owner} with mode {mode:04o}, so that others could change what the agent makes there: `chown {user} {path}; chmod go-w {path}`, or name another folder"
    )]
    Writable {
        /// The folder.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Its mode.
        mode: u32,
        /// Whose it is to be.
        user: u32,
    },
}

/// The folders of one agent.
#[derive(Debug, Clone)]
pub struct Folders {
    state: PathBuf,
    checkpoints: PathBuf,
}

impl Folders {
    /// Makes what is missing. What is secret is closed to others, what jobs must pass is
    /// open to pass and not to list.
    pub fn prepare(state: &Path, checkpoints: Option<&Path>) -> Result<Self, FoldersError> {
        let unusable = |path: &Path, source: io::Error| FoldersError::Unusable {
            path: path.to_owned(),
            source,
        };
        files::ensure_folder(state, 0o711).map_err(|e| unusable(state, e))?;
        let state = state.canonicalize().map_err(|e| unusable(state, e))?;
        let mut folders = Self {
            checkpoints: checkpoints.map_or_else(|| state.join("checkpoints"), Path::to_owned),
            state,
        };
        for (name, mode) in [
            ("identity", 0o700),
            ("journal", 0o700),
            ("runs", 0o700),
            ("logs", 0o700),
            ("results", 0o700),
            ("jobs", 0o711),
        ] {
            let path = folders.state.join(name);
            files::ensure_folder(&path, mode).map_err(|e| unusable(&path, e))?;
        }
        // One that somebody else made, on storage that is shared, keeps its mode.
        if !folders.checkpoints.is_dir() {
            files::ensure_folder(&folders.checkpoints, 0o711)
                .map_err(|e| unusable(&folders.checkpoints, e))?;
        }
        // Links on the way are the operator's; from here on none is followed.
        let found = folders.checkpoints.canonicalize();
        folders.checkpoints = found.map_err(|e| unusable(&folders.checkpoints, e))?;
        Ok(folders)
    }

    /// Checks that nobody but root and us can change what lies directly in the folder of all
    /// checkpoints.
    pub fn check_unwritable(&self) -> Result<(), FoldersError> {
        check_unwritable(&self.checkpoints)
    }

    /// Keeps other agents out for as long as the file is held.
    pub fn lock(&self) -> Result<File, FoldersError> {
        let path = self.state.join("lock");
        let unusable = |source: io::Error| FoldersError::Unusable {
            path: path.clone(),
            source,
        };
        // Whoever can open it can hold it: jobs pass the folder that it lies in.
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let file = opened.map_err(unusable)?;
        let ours = fs::Permissions::from_mode(0o600);
        file.set_permissions(ours).map_err(unusable)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => FoldersError::Taken {
                path: self.state.clone(),
            },
            TryLockError::Error(source) => unusable(source),
        })?;
        Ok(file)
    }

    /// Checks that users other than ours can pass to the folders of their jobs.
    pub fn check_passable(&self) -> Result<(), FoldersError> {
        for (key, path) in [
            ("state_dir", &self.state),
            ("checkpoint_root", &self.checkpoints),
        ] {
            let closed = path.ancestors().find(|folder| {
                folder
                    .metadata()
                    .is_ok_and(|found| found.permissions().mode() & 0o001 == 0)
            });
            if let Some(closed) = closed {
                return Err(FoldersError::Closed {
                    key,
                    path: path.clone(),
                    closed: closed.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The node's identity: key, certificate, names.
    pub fn identity(&self) -> PathBuf {
        self.state.join("identity/identity.json")
    }

    /// The devices that this machine is known to have.
    pub fn known_devices(&self) -> PathBuf {
        self.state.join("identity/devices.json")
    }

    /// What was found of devices.
    pub fn health(&self) -> PathBuf {
        health_of(&self.state)
    }

    /// The folders of the daemons by which devices are shared.
    pub fn mps(&self) -> PathBuf {
        self.state.join("mps")
    }

    /// The MIG instances that the agent made.
    pub fn cuts(&self) -> PathBuf {
        self.state.join("identity/instances.json")
    }

    /// The journal's file.
    pub fn journal(&self) -> PathBuf {
        journal_of(&self.state)
    }

    /// When jobs used images last.
    pub fn images(&self) -> PathBuf {
        self.state.join("images.json")
    }

    /// The node's lease, as supervisors read it.
    pub fn lease(&self) -> PathBuf {
        self.state.join("runs/lease")
    }

    /// The folder that holds all of these but what other settings name, without a link in its path.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The folder of all run folders.
    pub fn runs(&self) -> PathBuf {
        self.state.join("runs")
    }

    /// The run folder of an assignment.
    pub fn run(&self, id: AssignmentId) -> RunFolder {
        RunFolder::at(self.runs().join(id.to_string()))
    }

    /// The folder of all jobs' folders.
    pub fn jobs(&self) -> PathBuf {
        self.state.join("jobs")
    }

    /// The folder of a job's own, with its work and its temporary files.
    pub fn job(&self, id: AssignmentId) -> PathBuf {
        self.jobs().join(id.to_string())
    }

    /// The folder of all logs.
    pub fn logs(&self) -> PathBuf {
        self.state.join("logs")
    }

    /// The folder of an assignment's log.
    pub fn log(&self, id: AssignmentId) -> PathBuf {
        self.logs().join(id.to_string())
    }

    /// The folder into which a job puts what is to be kept of it.
    pub fn output(&self, id: AssignmentId) -> PathBuf {
        self.job(id).join("output")
    }

    /// The folder of all that jobs left.
    pub fn all_results(&self) -> PathBuf {
        self.state.join("results")
    }

    /// What an assignment left.
    pub fn results(&self, id: AssignmentId) -> PathBuf {
        self.all_results().join(id.to_string())
    }

    /// The folder of all checkpoints, without a link in its path.
    pub fn checkpoints(&self) -> &Path {
        &self.checkpoints
    }

    /// The folder that a job keeps between its attempts.
    pub fn checkpoint(&self, team: TeamId, job: JobId) -> PathBuf {
        self.checkpoints
            .join(team.to_string())
            .join(job.to_string())
    }

    /// Free room of the disk with the state, in bytes.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let found = nix::sys::statvfs::statvfs(&self.state)?;
        Ok(found.blocks_available() * found.fragment_size())
    }
}

/// The file of what was found of devices below a state folder.
pub fn health_of(state: &Path) -> PathBuf {
    state.join("identity/health.json")
}

/// The journal's file below a state folder.
pub fn journal_of(state: &Path) -> PathBuf {
    state.join("journal/journal")
}

/// Checks that nobody but root and us can change what lies directly in a folder.
pub fn check_unwritable(folder: &Path) -> Result<(), FoldersError> {
    let user = nix::unistd::geteuid().as_raw();
    let found = folder.symlink_metadata();
    let found = found.map_err(|source| FoldersError::Unusable {
        path: folder.to_owned(),
        source,
    })?;
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o022 == 0 && [0, user].contains(&found.uid()) {
        return Ok(());
    }
    Err(FoldersError::Writable {
        path: folder.to_owned(),
        owner: found.uid(),
        mode,
        user,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_has_one_agent_and_closed_secrets() {
        let folder = tempfile::tempdir().expect("a folder");
        let folders = Folders::prepare(&folder.path().join("state"), None).expect("made");
        let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(folders.identity().parent().expect("a folder")), 0o700);
        assert_eq!(mode(&folders.jobs()), 0o711);
        let held = folders.lock().expect("locked");
        assert!(matches!(folders.lock(), Err(FoldersError::Taken { .. })));
        drop(held);
        assert!(folders.lock().is_ok());
    }

    #[test]
    fn no_job_can_open_the_lock_not_even_one_that_lay_open_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let folders = Folders::prepare(&folder.path().join("state"), None).expect("made");
        let lock = folders.state().join("lock");
        fs::write(&lock, "").expect("written");
        fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).expect("opened to all");
        let _held = folders.lock().expect("locked");
        let mode = lock.metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_state_folder_behind_a_closed_one_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let closed = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(folder.path(), closed).expect("closed to others");
        let folders = Folders::prepare(&folder.path().join("state"), None).expect("made");
        let error = folders.check_passable().expect_err("closed");
        assert!(
            error
                .to_string()
                .contains(&folder.path().display().to_string()),
            "{error}"
        );
    }

    #[test]
    fn a_folder_of_checkpoints_that_others_may_write_to_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("shared");
        fs::create_dir(&root).expect("made");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&root, &link).expect("linked");
        let folders = Folders::prepare(&folder.path().join("state"), Some(&link)).expect("made");
        assert!(folders.checkpoints().ends_with("shared"), "no link is kept");
        let set = |mode| fs::set_permissions(&root, fs::Permissions::from_mode(mode));
        for (mode, fine) in [
            (0o711, true),
            (0o755, true),
            (0o775, false),
            (0o1777, false),
        ] {
            set(mode).expect("set");
            let checked = folders
                .check_unwritable()
                .map_err(|error| error.to_string());
            assert_eq!(checked.is_ok(), fine, "{mode:o}: {checked:?}");
            if let Err(words) = checked {
                assert!(
                    words.contains("checkpoint_root") && words.contains("chmod go-w"),
                    "{words}"
                );
            }
        }
        if nix::unistd::geteuid().is_root() {
            set(0o755).expect("set");
            std::os::unix::fs::chown(&root, Some(1500), None).expect("given away");
            let refused = folders.check_unwritable().expect_err("somebody else's");
            assert!(refused.to_string().contains("user 1500"), "{refused}");
        }
    }
}
