//! Another user's rights to files, for one look.

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

/// Looks at files with the rights of a job's user. On a thread of its own, which ends with them: the
/// kernel keeps them for each thread.
pub fn as_user<T: Send>(
    user: Option<u32>,
    look: impl FnOnce() -> nix::Result<T> + Send,
) -> nix::Result<T> {
    let Some(user) = user else {
        return look();
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("as user".to_owned());
        let looks = thread.spawn_scoped(scope, move || {
            take_file_rights(user)?;
            look()
        });
        match looks.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(seen)) => seen,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => Err(Errno::EAGAIN),
        }
    })
}

/// Gives this thread the rights to files of a user with no group but his own.
fn take_file_rights(user: u32) -> nix::Result<()> {
    // SAFETY: no memory is passed. The plain system call reaches this thread alone, where the
    // library's function would reach all.
    #[allow(unsafe_code)]
    let failed = unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) };
    if failed != 0 {
        return Err(Errno::last());
    }
    setfsgid(Gid::from_raw(user));
    setfsuid(Uid::from_raw(user));
    // They tell no failure; asked for what cannot be, they change nothing and tell what is.
    let now = (
        setfsgid(Gid::from_raw(u32::MAX)).as_raw(),
        setfsuid(Uid::from_raw(u32::MAX)).as_raw(),
    );
    if now == (user, user) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}
