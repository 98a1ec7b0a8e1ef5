//! What keeps a daemon of MPS from the jobs that it serves, and bounds it as they are bounded.
//!
//! It must run as the user of its clients, who may trace what is theirs: whoever traces it would be outside of
//! his own walls. So it bears a capability that no job can have, which the kernel takes as more than a
//! tracer may reach, and so does all that it begins. It has a control group and a mark of its own, by which
//! that is found when it ends.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

use crate::proc;
use crate::supervise::cgroup::Group;

/// The capability that is borne, `CAP_BLOCK_SUSPEND`: the least that there is, since it lets a process keep
/// a machine awake that does not sleep. Its number is the kernel's ABI.
const CAPABILITY: u32 = 36;
/// The layout of capabilities in two words, `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITIES_VERSION: u32 = 0x2008_0522;
/// Capabilities in a word.
const WORD_BITS: u32 = 32;

/// The wall of one daemon.
#[derive(Debug, Clone)]
pub struct Wall {
    /// Its control group, made or not.
    pub group: Group,
    /// The user that it runs as; none where that is ours.
    pub uid: Option<u32>,
    /// The group that it bears and nobody else does.
    pub mark: Option<u32>,
}

impl Wall {
    /// Has a program begin behind it. Without a group that was made it begins in ours.
    pub fn put(&self, command: &mut Command) -> io::Result<()> {
        let doors = match self.group.doors() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            doors => doors?,
        };
        let mark: Vec<Gid> = self.mark.into_iter().map(Gid::from_raw).collect();
        let uid = self.uid;
        // SAFETY: what runs between fork and exec is system calls on memory that was laid out before.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(move || enter(&doors, uid, &mark));
        }
        Ok(())
    }

    /// Kills what is behind it, once; whether anything was. Repeat until nothing is.
    pub fn kill(&self) -> bool {
        let mut left = !self.group.empty();
        self.group.kill();
        for bearer in self.mark.iter().flat_map(|mark| proc::bearers(*mark)) {
            left = true;
            proc::kill_seen(&bearer);
        }
        left
    }
}

fn enter(doors: &[File], uid: Option<u32>, mark: &[Gid]) -> io::Result<()> {
    for mut door in doors {
        door.write_all(b"0")?;
    }
    if !mark.is_empty() {
        setgroups(mark)?;
    }
    if let Some(uid) = uid {
        setgid(Gid::from_raw(uid))?;
        nix::sys::prctl::set_keepcaps(true)?;
        setuid(Uid::from_raw(uid))?;
        bear_capability()?;
    }
    Ok(nix::sys::prctl::set_no_new_privs()?)
}

#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Words {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Gives up all capabilities but the one, which whatever is executed from here on bears.
fn bear_capability() -> io::Result<()> {
    let header = Header {
        version: CAPABILITIES_VERSION,
        pid: 0,
    };
    let bit = 1 << (CAPABILITY % WORD_BITS);
    let mut words = [Words::default(); 2];
    words[(CAPABILITY / WORD_BITS) as usize] = Words {
        effective: bit,
        permitted: bit,
        inheritable: bit,
    };
    // SAFETY: both are as the kernel lays them out and live through the call.
    #[allow(unsafe_code)]
    let failed = unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: four numbers, no memory.
    #[allow(unsafe_code)]
    let failed = unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::c_ulong::try_from(libc::PR_CAP_AMBIENT_RAISE).map_err(io::Error::other)?,
            libc::c_ulong::from(CAPABILITY),
            0 as libc::c_ulong,
            0 as libc::c_ulong,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
