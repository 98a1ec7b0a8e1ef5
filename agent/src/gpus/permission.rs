//! Whether we may cut devices by MIG, found out without changing anything.

use std::path::Path;

use nix::unistd::{AccessFlags, access};

/// The driver lets whoever may read this cut devices, besides root.
const CAPABILITY: &str = "/proc/driver/nvidia/capabilities/mig/config";

/// The file that is asked, the driver's or the one that is named.
pub fn capability(named: Option<&Path>) -> &Path {
    named.unwrap_or(Path::new(CAPABILITY))
}

/// Whether the driver will let us. It may refuse root all the same, as in a container without the
/// right to administer: then its first refusal tells.
pub fn may_cut(capability: &Path) -> bool {
    may(nix::unistd::geteuid().is_root(), capability)
}

fn may(root: bool, capability: &Path) -> bool {
    root || access(capability, AccessFlags::R_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_may_cut_and_others_where_the_capability_is_theirs() {
        let folder = tempfile::tempdir().expect("a folder");
        let capability = folder.path().join("config");
        assert!(may(true, &capability));
        assert!(!may(false, &capability));
        std::fs::write(&capability, "").expect("written");
        assert!(may(false, &capability));
    }
}
