//! One end of a pipe or of a terminal, read and written without a thread of its own.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::pty::Winsize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The end of a pipe or of a terminal.
pub struct Way(AsyncFd<OwnedFd>);

impl Way {
    /// Takes an end over.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        let mode = flags & OFlag::O_ACCMODE;
        let interest = if mode == OFlag::O_WRONLY {
            Interest::WRITABLE
        } else if mode == OFlag::O_RDONLY {
            Interest::READABLE
        } else {
            Interest::READABLE | Interest::WRITABLE
        };
        // SAFETY: the descriptor is owned by what watches it, and names the same file until it is dropped.
        #[allow(unsafe_code)]
        let watched = unsafe { AsyncFd::register_with_interest(fd, interest)? };
        Ok(Self(watched))
    }

    /// Reads what is there; 0 at the end.
    pub async fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|fd| Ok(nix::unistd::read(fd.get_ref(), bytes)?));
            match read {
                // A terminal that nobody has open any more says so by an error.
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::EIO as i32) => return Ok(0),
                Ok(read) => return read,
                Err(_) => {}
            }
        }
    }

    /// Writes all of it, as it is taken.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            let written = ready.try_io(|fd| Ok(nix::unistd::write(fd.get_ref(), bytes)?));
            if let Ok(written) = written {
                bytes = &bytes[written?..];
            }
        }
        Ok(())
    }

    /// Tells a terminal how large it is.
    pub fn resize(&self, size: &Winsize) -> io::Result<()> {
        // SAFETY: TIOCSWINSZ reads one struct of that type, which lives on.
        #[allow(unsafe_code)]
        let failed = unsafe {
            libc::ioctl(
                self.0.get_ref().as_raw_fd(),
                libc::TIOCSWINSZ,
                std::ptr::from_ref(size),
            )
        };
        match failed {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
