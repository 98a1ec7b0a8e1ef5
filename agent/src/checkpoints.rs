//! Removes checkpoints that nobody has touched for as long as the operator lets them lie.
//!
//! An agent does not know whether a job that is not here will ever run again: what it removes is
//! old, not ended, which is why it removes nothing unless it is told to.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use domain::ids::{JobId, TeamId};
use nix::fcntl::renameat;

use crate::node::Node;
use crate::removal;
use crate::supervise::{open_folder, step_down};

/// How often checkpoints are looked at: their age is counted in days.
const LOOK: Duration = Duration::from_secs(3600);
/// The name of what is about to be removed begins so; no job's does.
const ASIDE: &str = ".removed-";

/// Removes for ever, where there is anything to remove at all.
pub async fn run(node: Arc<Node>) {
    let Some(age_max) = node.config.checkpoints_age_max() else {
        return;
    };
    loop {
        let node = Arc::clone(&node);
        let removed = tokio::task::spawn_blocking(move || {
            let held = |job: JobId| {
                let state = node.journal.state();
                state.kept.values().any(|kept| kept.job_id == job)
            };
            let settled = || node.checkpoints_settled();
            remove_old(node.folders.checkpoints(), age_max, &held, &settled)
        });
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(%error, "old checkpoints cannot be removed");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Removes the folders of jobs that are not held here and are older. What `settled` returns keeps
/// others from making or entering one while it is looked at and put aside.
fn remove_old<G>(
    root: &Path,
    age_max: Duration,
    held: &impl Fn(JobId) -> bool,
    settled: &impl Fn() -> G,
) -> io::Result<()> {
    let root_folder = open_folder(root)?;
    for team in names::<TeamId>(root)? {
        let team_folder = step_down(&root_folder, Path::new(&team.to_string()))?;
        let listed = through(&team_folder);
        for job in names::<JobId>(&listed)? {
            let _settled = settled();
            let name = job.to_string();
            if held(job) || youngest(&team_folder, &name)?.is_none_or(|age| age <= age_max) {
                continue;
            }
            let aside = format!("{ASIDE}{name}");
            renameat(
                team_folder.as_fd(),
                name.as_str(),
                team_folder.as_fd(),
                aside.as_str(),
            )?;
            tracing::info!(job.id = %job, team.id = %team, "checkpoints that were too old are removed");
        }
        remove_aside(&listed)?;
    }
    Ok(())
}

/// Removes what was put aside, now or by an earlier life. Links in it are removed, not followed.
fn remove_aside(team: &Path) -> io::Result<()> {
    for entry in fs::read_dir(team)? {
        let entry = entry?;
        let aside = entry.file_name().to_string_lossy().starts_with(ASIDE);
        if aside && entry.file_type()?.is_dir() {
            removal::remove(&entry.path())?;
        }
    }
    Ok(())
}

/// How long ago a job's folder or what lies directly in it was last written; nothing where it is no
/// folder.
fn youngest(team: &OwnedFd, job: &str) -> io::Result<Option<Duration>> {
    let Ok(folder) = step_down(team, Path::new(job)) else {
        return Ok(None);
    };
    let path = through(&folder);
    let mut written = fs::metadata(&path)?.modified()?;
    for entry in fs::read_dir(&path)? {
        // Of a link its own time, not that of what it names.
        written = written.max(entry?.metadata()?.modified()?);
    }
    // A time to come is young.
    let age = SystemTime::now().duration_since(written);
    Ok(Some(age.unwrap_or_default()))
}

/// A path that leads to an open folder, wherever its names lead to by now.
fn through(folder: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

/// The ids that name folders here.
fn names<T: std::str::FromStr>(folder: &Path) -> io::Result<Vec<T>> {
    let entries = fs::read_dir(folder)?.flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(folders
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn aged(path: &Path, age: Duration) {
        let time = nix::sys::time::TimeSpec::from_duration(
            (SystemTime::now() - age)
                .duration_since(SystemTime::UNIX_EPOCH)
                .expect("after 1970"),
        );
        let flag = nix::sys::stat::UtimensatFlags::NoFollowSymlink;
        nix::sys::stat::utimensat(nix::fcntl::AT_FDCWD, path, &time, &time, flag).expect("dated");
    }

    #[test]
    fn only_what_is_old_and_not_held_is_removed_and_no_link_is_followed() {
        let root = tempfile::tempdir().expect("a folder");
        let elsewhere = tempfile::tempdir().expect("another folder");
        fs::write(elsewhere.path().join("precious"), "x").expect("written");
        let team = root.path().join(TeamId::new().to_string());
        let [old, held, young, entry_young, link] = [(); 5].map(|()| JobId::new());
        for job in [old, held, young, entry_young] {
            let folder = team.join(job.to_string());
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("step"), "7").expect("written");
            let out = folder.join("out");
            std::os::unix::fs::symlink(elsewhere.path(), &out).expect("linked");
            let entry_age = if job == entry_young { DAY } else { 9 * DAY };
            aged(&folder.join("step"), entry_age);
            aged(&out, 9 * DAY);
            aged(&folder, if job == young { DAY } else { 9 * DAY });
        }
        let linked = team.join(link.to_string());
        std::os::unix::fs::symlink(elsewhere.path(), &linked).expect("linked");
        aged(&linked, 9 * DAY);
        fs::create_dir(team.join(format!("{ASIDE}of-an-earlier-life"))).expect("made");
        remove_old(root.path(), 7 * DAY, &|job| job == held, &|| ()).expect("removed");
        let there = |job: JobId| team.join(job.to_string()).symlink_metadata().is_ok();
        assert!(!there(old));
        assert!([held, young, entry_young, link].into_iter().all(there));
        assert_eq!(fs::read_dir(&team).expect("listed").count(), 4);
        assert!(elsewhere.path().join("precious").exists());
    }
}
