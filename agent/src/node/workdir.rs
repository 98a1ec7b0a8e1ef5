//! A job's folders and small files, laid out where no path of a tenant's leads elsewhere.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, UtimensatFlags, fchmod, fstat, mkdirat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat};
use protocol::desired::Assignment;
use serde::{Deserialize, Serialize};

use super::Node;
use super::rights::as_user;
use crate::files::{ensure_folder, read_json};
use crate::removal;
use crate::runs::{Directory, Refusal};
use crate::supervise::{open_folder, step_down};

/// The name of the file that tells a job's process who works with it.
const WORKERS_FILE: &str = "workers.json";
/// Deepest path of a job's file; deeper ones are a mistake or an attack.
const DEPTH_MAX: usize = 32;

/// The folders of a job that has been laid out.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Its own folder: where it works, and its HOME.
    pub work: PathBuf,
    /// Its temporary files.
    pub temporary: PathBuf,
    /// Those that are to outlive a restart of the machine, by their custom.
    pub lasting: PathBuf,
    /// What it keeps between attempts.
    pub checkpoint: PathBuf,
    /// Where it puts what is to be kept of it.
    pub output: PathBuf,
    /// The file that tells who works with it.
    pub workers: PathBuf,
    /// Where its process starts.
    pub directory: Directory,
}

/// Makes a job's folders and files anew. Nothing of it may be running.
pub fn lay_out(node: &Node, assignment: &Assignment) -> Result<Layout, Refusal> {
    let folder = node.folders.job(assignment.id);
    let owner = node.isolated.then_some(assignment.uid);
    let failed =
        |path: &Path, error: io::Error| Refusal::here(format!("{}: {error}", path.display()));
    removal::remove(&folder).map_err(|e| failed(&folder, e))?;
    ensure_folder(&folder, 0o711).map_err(|e| failed(&folder, e))?;

    let layout = Layout {
        work: folder.join("work"),
        temporary: folder.join("tmp"),
        lasting: folder.join("var-tmp"),
        output: node.folders.output(assignment.id),
        checkpoint: node
            .folders
            .checkpoint(assignment.team_id, assignment.job_id),
        workers: folder.join(WORKERS_FILE),
        directory: directory(
            &node.config.work_roots,
            assignment.working_directory.as_deref(),
            &folder.join("work"),
            owner,
        )?,
    };
    let own = [
        &layout.work,
        &layout.temporary,
        &layout.lasting,
        &layout.output,
    ];
    for path in own {
        ensure_folder(path, 0o700).map_err(|e| failed(path, e))?;
    }
    let work = open_folder(&layout.work).map_err(|e| failed(&layout.work, e.into()))?;
    for (path, text) in &assignment.files {
        write_file(&work, Path::new(path), text.as_bytes(), owner).map_err(|error| match error
            .kind()
        {
            io::ErrorKind::InvalidInput => Refusal::invalid(format!(
                "files: {} is not a path below the job's folder",
                domain::error::quote(path)
            )),
            _ => Refusal::here(format!("files: {}: {error}", domain::error::quote(path))),
        })?;
    }
    // Given away last: until here nobody else could touch them.
    for path in own {
        give(path, owner).map_err(|e| failed(path, e))?;
    }
    let _settled = node.checkpoints_settled();
    checkpoint(
        node.folders.checkpoints(),
        &assignment.team_id.to_string(),
        &assignment.job_id.to_string(),
        owner,
    )
    .map_err(|e| failed(&layout.checkpoint, e))?;
    write_workers(node, assignment).map_err(|e| failed(&layout.workers, e))?;
    Ok(layout)
}

/// What a job's process can read of those that work with it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Workers {
    /// How many there are.
    size: usize,
    /// Where each is reached, by rank.
    addresses: Vec<String>,
    /// The ranks that they have: some are missing where a node was lost.
    #[serde(default)]
    ranks: Vec<u32>,
}

/// Replaces the file that tells a job's process who works with it, where that has changed. It lies
/// beside the job's own folder, where nobody but us can put anything in its place.
pub fn write_workers(node: &Node, assignment: &Assignment) -> io::Result<()> {
    let path = node.folders.job(assignment.id).join(WORKERS_FILE);
    let workers = Workers {
        size: assignment.addresses.len(),
        addresses: assignment.addresses.clone(),
        ranks: assignment.ranks.clone(),
    };
    if read_json::<Workers>(&path)?.as_ref() == Some(&workers) {
        return Ok(());
    }
    let aside = path.with_extension("new");
    fs::write(&aside, serde_json::to_vec(&workers)?)?;
    fs::set_permissions(&aside, Permissions::from_mode(0o644))?;
    fs::rename(&aside, &path)
}

/// Where the process starts: the job's own folder, or the one it names below a root.
fn directory(
    roots: &[PathBuf],
    wanted: Option<&str>,
    work: &Path,
    owner: Option<u32>,
) -> Result<Directory, Refusal> {
    let Some(wanted) = wanted else {
        return Ok(Directory {
            root: work.to_owned(),
            below: PathBuf::from("."),
        });
    };
    let refuse = |why: String| {
        Refusal::invalid(format!(
            "working_directory: {} is refused: {why}",
            domain::error::quote(wanted)
        ))
    };
    let Some((root, below)) = nearest(roots, Path::new(wanted)) else {
        let names: Vec<String> = roots
            .iter()
            .map(|root| root.display().to_string())
            .collect();
        return Err(refuse(if names.is_empty() {
            "this node lets no job work outside of its own folder".to_owned()
        } else {
            format!("it must lie below {}", names.join(" or "))
        }));
    };
    let below = if below.as_os_str().is_empty() {
        Path::new(".")
    } else {
        below
    };
    // Tried here to refuse early, and again when it starts; both times as the job's user, so that
    // nobody learns what lies in a folder that is closed to him.
    open_folder(root)
        .and_then(|root| as_user(owner, || step_down(&root, below)))
        .map_err(|error| match error {
            Errno::EACCES => refuse("the team's user may not enter it".to_owned()),
            Errno::ENOENT => refuse("there is no such folder".to_owned()),
            Errno::ELOOP => refuse(format!(
                "a part of it below {} is a link, and links are not followed",
                root.display()
            )),
            Errno::EXDEV => refuse(format!("it leads out of {}", root.display())),
            other => refuse(other.to_string()),
        })?;
    Ok(Directory {
        root: root.clone(),
        below: below.to_owned(),
    })
}

/// The root that lies nearest above a path, with the rest of the path: what the server chose the
/// node by. A relative path begins at the first.
fn nearest<'a>(roots: &'a [PathBuf], path: &'a Path) -> Option<(&'a PathBuf, &'a Path)> {
    if path.is_relative() {
        return roots.first().map(|root| (root, path));
    }
    roots
        .iter()
        .filter_map(|root| Some((root, path.strip_prefix(root).ok()?)))
        .max_by_key(|(root, _)| root.components().count())
}

/// Writes a small file below a folder that nobody else can touch yet.
fn write_file(folder: &OwnedFd, path: &Path, bytes: &[u8], owner: Option<u32>) -> io::Result<()> {
    let parts: Vec<&std::ffi::OsStr> = path
        .components()
        .map(|part| match part {
            Component::Normal(name) => Ok(name),
            _ => Err(io::ErrorKind::InvalidInput),
        })
        .collect::<Result<_, _>>()?;
    let (name, parents) = parts.split_last().ok_or(io::ErrorKind::InvalidInput)?;
    if parts.len() > DEPTH_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut at = folder.try_clone()?;
    for parent in parents {
        match mkdirat(at.as_fd(), Path::new(parent), Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let below = step_in(
            &at,
            parent,
            OFlag::O_RDONLY | OFlag::O_DIRECTORY,
            Mode::empty(),
        )?;
        give_opened(&below, owner)?;
        at = below;
    }
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    let file = step_in(&at, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
    give_opened(&file, owner)?;
    File::from(file).write_all(bytes)
}

fn step_in(at: &OwnedFd, name: &std::ffi::OsStr, flags: OFlag, mode: Mode) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .mode(mode)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    Ok(openat2(at.as_fd(), Path::new(name), how)?)
}

fn give_opened(opened: &OwnedFd, owner: Option<u32>) -> io::Result<()> {
    match owner {
        Some(uid) => Ok(fchown(
            opened.as_fd(),
            Some(Uid::from_raw(uid)),
            Some(Gid::from_raw(uid)),
        )?),
        None => Ok(()),
    }
}

/// Makes folders that are somebody's own.
pub fn own_folders(folders: &[&PathBuf], owner: Option<u32>) -> io::Result<()> {
    for folder in folders {
        ensure_folder(folder, 0o700)?;
        give(folder, owner)?;
    }
    Ok(())
}

fn give(path: &Path, owner: Option<u32>) -> io::Result<()> {
    match owner {
        Some(uid) => std::os::unix::fs::lchown(path, Some(uid), Some(uid)),
        None => Ok(()),
    }
}

/// Makes the folder that a job keeps between its attempts, step by step from the folder of all
/// checkpoints, through no link. Its team's folder is ours, so that nothing else of the team's can be
/// put in its place.
fn checkpoint(root: &Path, team: &str, job: &str, owner: Option<u32>) -> io::Result<()> {
    let root = open_folder(root)?;
    let as_path = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let team_folder = match mkdirat(root.as_fd(), team, Mode::from_bits_truncate(0o711)) {
        Ok(()) => {
            let made = step_in(
                &root,
                team.as_ref(),
                OFlag::O_RDONLY | OFlag::O_DIRECTORY,
                Mode::empty(),
            )?;
            // Whatever our umask took away: the team's user passes here.
            fchmod(made.as_fd(), Mode::from_bits_truncate(0o711))?;
            made
        }
        Err(Errno::EEXIST) => step_in(&root, team.as_ref(), as_path, Mode::empty())?,
        Err(error) => return Err(error.into()),
    };
    let ours = [0, nix::unistd::geteuid().as_raw()];
    let found = fstat(team_folder.as_fd())?;
    if !ours.contains(&found.st_uid) {
        return Err(io::Error::other(format!(
            "the team's folder {team} belongs to user {} and not to the agent",
            found.st_uid
        )));
    }
    match mkdirat(team_folder.as_fd(), job, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let job_folder = step_in(&team_folder, job.as_ref(), as_path, Mode::empty())?;
    // It is in use from now on, however old what lies in it is. On storage that lets root do no
    // more than others it stays as old as its owner last wrote to it.
    let now = TimeSpec::UTIME_NOW;
    let _ = utimensat(
        team_folder.as_fd(),
        job,
        &now,
        &now,
        UtimensatFlags::NoFollowSymlink,
    );
    let Some(uid) = owner.filter(|uid| fstat(job_folder.as_fd()).is_ok_and(|f| f.st_uid != *uid))
    else {
        return Ok(());
    };
    Ok(fchownat(
        team_folder.as_fd(),
        job,
        Some(Uid::from_raw(uid)),
        Some(Gid::from_raw(uid)),
        AtFlags::AT_SYMLINK_NOFOLLOW,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_below_its_folder_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let opened = open_folder(folder.path()).expect("opened");
        write_file(&opened, Path::new("a/b/train.py"), b"x", None).expect("written");
        write_file(&opened, Path::new("a/b/other.py"), b"y", None).expect("written");
        assert_eq!(
            fs::read(folder.path().join("a/b/train.py")).expect("read"),
            b"x"
        );
        let outside = tempfile::tempdir().expect("another folder");
        std::os::unix::fs::symlink(outside.path(), folder.path().join("out")).expect("linked");
        for bad in ["../x", "/etc/x", "a/../../x", "out/x", "", "."] {
            assert!(
                write_file(&opened, Path::new(bad), b"x", None).is_err(),
                "{bad}"
            );
        }
        assert!(!outside.path().join("x").exists());
    }

    #[test]
    fn a_job_starts_below_the_nearest_root_whatever_their_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let real = folder.path().join("real");
        let data = folder.path().join("data");
        for made in [real.join("in"), data.join("plain")] {
            fs::create_dir_all(made).expect("made");
        }
        let deep = data.join("deep");
        std::os::unix::fs::symlink(&real, &deep).expect("linked");
        std::os::unix::fs::symlink("plain", data.join("link")).expect("linked");
        let work = folder.path().join("work");
        let slashed = PathBuf::from(format!("{}/", data.display()));
        for roots in [
            [slashed.clone(), deep.clone()],
            [deep.clone(), slashed.clone()],
        ] {
            let starts = |path: &Path| {
                directory(&roots, path.to_str(), &work, None).map(|found| (found.root, found.below))
            };
            for (below, name) in [(".", deep.clone()), ("in", deep.join("in"))] {
                let found = starts(&name).expect("below the nearest root");
                assert_eq!(found, (deep.clone(), PathBuf::from(below)));
            }
            assert_eq!(starts(&data).expect("a root").0, slashed);
            let refused = starts(&data.join("link")).expect_err("no link is followed");
            assert!(refused.message.contains("is a link"), "{}", refused.message);
        }
    }

    #[test]
    fn a_refusal_tells_nothing_of_what_lies_in_a_folder_that_is_closed_to_the_team() {
        const TEAM: u32 = 251_000;
        if !nix::unistd::geteuid().is_root() {
            eprintln!("not checked: only root can be another user");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755));
        open(folder.path()).expect("opened");
        fs::create_dir_all(folder.path().join("theirs/secret")).expect("made");
        fs::create_dir(folder.path().join("plain")).expect("made");
        open(&folder.path().join("plain")).expect("opened");
        let closed = Permissions::from_mode(0o770);
        // Of the group that root's own groups are likely to hold.
        fs::set_permissions(folder.path().join("theirs"), closed).expect("closed");
        let roots = [folder.path().to_owned()];
        let asked = |below: &str| {
            let wanted = folder.path().join(below);
            let found = directory(&roots, wanted.to_str(), Path::new("/"), Some(TEAM));
            found.map(drop).map_err(|refusal| {
                let words = refusal.message;
                words.replace(below, "")
            })
        };
        assert_eq!(asked("plain"), Ok(()));
        let (there, absent) = (asked("theirs/secret"), asked("theirs/nothing"));
        assert_eq!(there, absent);
        let words = there.expect_err("closed");
        assert!(words.contains("may not enter"), "{words}");
        // Our own rights are as they were.
        assert!(folder.path().join("theirs/secret").is_dir());
    }

    #[test]
    fn a_checkpoint_folder_is_made_through_no_link_and_stays() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let elsewhere = tempfile::tempdir().expect("another folder");
        let root = folder.path();
        checkpoint(root, "team", "job", None).expect("made");
        fs::write(root.join("team/job/step"), "7").expect("written");
        checkpoint(root, "team", "job", None).expect("there");
        assert_eq!(fs::read(root.join("team/job/step")).expect("kept"), b"7");
        let mode = |path: &Path| path.metadata().expect("there").mode() & 0o777;
        assert_eq!(mode(&root.join("team")), 0o711);
        assert_eq!(mode(&root.join("team/job")), 0o700);

        let link = std::os::unix::fs::symlink::<&Path, _>;
        link(elsewhere.path(), root.join("linked")).expect("linked");
        link(elsewhere.path(), root.join("team/linked")).expect("linked");
        checkpoint(root, "linked", "job", None).expect_err("a link");
        checkpoint(root, "team", "linked", None).expect_err("a link");
        assert_eq!(fs::read_dir(elsewhere.path()).expect("read").count(), 0);
    }
}
