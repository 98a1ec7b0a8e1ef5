//! As whom things run: root starts PostgreSQL as another user, everybody else as themselves.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use anyhow::Context;
use nix::unistd::{Uid, User};

/// The user and group that a child is started as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Numeric user.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
}

/// Whether we are root.
pub fn root() -> bool {
    Uid::effective().is_root()
}

/// Whom PostgreSQL, which refuses root, runs as; `None` when that is ourselves.
pub fn postgres_owner() -> anyhow::Result<Option<Owner>> {
    if !root() {
        return Ok(None);
    }
    let user = User::from_name("postgres")
        .context("look up the user postgres")?
        .context(
            "there is no user `postgres` to run PostgreSQL as; \
             make one with: useradd --system --user-group postgres",
        )?;
    Ok(Some(Owner {
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
    }))
}

/// Makes a folder with these permissions, and its parents, which others may pass but not list.
pub fn make_folder(path: &Path, mode: u32) -> anyhow::Result<()> {
    if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
        make_folder(parent, PASSABLE)?;
    }
    if !path.exists() {
        std::fs::create_dir(path).with_context(|| format!("make the folder {}", path.display()))?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .with_context(|| format!("set the permissions of {}", path.display()))
}

/// Makes a folder that nobody but `owner` may enter.
pub fn make_private_folder(path: &Path, owner: Option<Owner>) -> anyhow::Result<()> {
    make_folder(path, PRIVATE)?;
    if let Some(owner) = owner {
        chown(path, Some(owner.uid), Some(owner.gid))
            .with_context(|| format!("give {} to its user", path.display()))?;
    }
    Ok(())
}

/// Writes a file that only we may read, whole or not at all.
pub fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    let half = path.with_extension("half");
    let _ = std::fs::remove_file(&half);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&half)
        .with_context(|| format!("write {}", half.display()))?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("write {}", half.display()))?;
    file.sync_all()
        .with_context(|| format!("write {}", half.display()))?;
    std::fs::rename(&half, path).with_context(|| format!("write {}", path.display()))
}

/// Jobs' users must pass to their folders, and need not see what else is there.
pub const PASSABLE: u32 = 0o711;
/// For the one user alone.
pub const PRIVATE: u32 = 0o700;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_file_is_replaced_whole_and_stays_private() {
        let folder = std::env::temp_dir().join(format!("allotment-rig-who-{}", std::process::id()));
        make_folder(&folder, PRIVATE).unwrap();
        let file = folder.join("secrets.json");
        write_private(&file, "one").unwrap();
        write_private(&file, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
