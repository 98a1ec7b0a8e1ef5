//! Ends what a product left running: processes that a killed rig could not end, and the jobs of its agents.
//!
//! Jobs outlive their agent by design, so that whoever stops the whole product must end
//! them. They are known by what the agent gave them: a checkpoint folder or, as the daemons of
//! MPS, a folder for pipes, below the state folder. A job's small parent is killed first: it then writes no exit record, and the
//! agent's next life reports the attempt as lost with its node, which requeues it from its
//! checkpoint. The job itself is asked by SIGTERM to save. The control groups of jobs that ended
//! so are removed as well, which their parents and agents would have done.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait;

/// A job that saves at SIGTERM does so within this; who stops a product does not wait longer.
const SAVE_BOUND: Duration = Duration::from_secs(5);
/// After SIGKILL.
const REAP_BOUND: Duration = Duration::from_secs(10);

/// The processes that belong to one state folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Processes whose command line names the folder: database, servers, agents.
    pub ours: BTreeSet<i32>,
    /// Jobs' small parents.
    pub parents: BTreeSet<i32>,
    /// Processes of jobs, and the daemons of MPS that serve them.
    pub jobs: BTreeSet<i32>,
    /// The folders of the jobs' control groups.
    pub groups: BTreeSet<PathBuf>,
}

impl Leftovers {
    /// Finds what belongs to `state`, ourselves left out.
    pub fn find(state: &Path) -> Self {
        let own = std::process::id().cast_signed();
        let folder = format!("{}/", state.display());
        let mut found = Self::default();
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        for pid in all_processes() {
            if pid == own {
                continue;
            }
            let proc = PathBuf::from(format!("/proc/{pid}"));
            let given = ["ALLOTMENT_CHECKPOINT_DIR=", "CUDA_MPS_PIPE_DIRECTORY="];
            let names = |key| names_folder(&proc.join("environ"), key, &folder);
            if given.into_iter().any(names) {
                found.jobs.insert(pid);
                let member = std::fs::read_to_string(proc.join("cgroup")).unwrap_or_default();
                found.groups.extend(groups_of_job(&member, &mounts));
            } else if let Some(words) = product_words(&proc, &folder) {
                let parent = words.get(1).is_some_and(|word| word == "supervise");
                if parent {
                    found.parents.insert(pid)
                } else {
                    found.ours.insert(pid)
                };
            }
        }
        found
    }

    fn kill(&self) {
        for pids in [&self.parents, &self.ours, &self.jobs] {
            send(pids, Signal::SIGKILL);
        }
    }

    fn any(&self) -> bool {
        !self.ours.is_empty() || !self.parents.is_empty() || !self.jobs.is_empty()
    }
}

/// Ends the jobs of `state`'s agents, which must have ended already.
pub async fn end_jobs(state: &Path) -> anyhow::Result<()> {
    let found = Leftovers::find(state);
    send(&found.parents, Signal::SIGKILL);
    send(&found.jobs, Signal::SIGTERM);
    let mut groups = found.groups;
    let saved = wait::until_true("jobs end by SIGTERM", SAVE_BOUND, || {
        Leftovers::find(state).jobs.is_empty()
    });
    if saved.await.is_err() {
        wait::until_true("jobs end by SIGKILL", REAP_BOUND, || {
            let mut found = Leftovers::find(state);
            send(&found.parents, Signal::SIGKILL);
            send(&found.jobs, Signal::SIGKILL);
            groups.append(&mut found.groups);
            found.parents.is_empty() && found.jobs.is_empty()
        })
        .await?;
    }
    remove(&groups).await;
    Ok(())
}

/// Kills everything that belongs to `state`, again and again while more of it appears.
pub async fn kill_all(state: &Path) -> anyhow::Result<()> {
    let mut groups = BTreeSet::new();
    wait::until_true("what was left running ends by SIGKILL", REAP_BOUND, || {
        let mut found = Leftovers::find(state);
        found.kill();
        groups.append(&mut found.groups);
        !found.any()
    })
    .await?;
    remove(&groups).await;
    Ok(())
}

/// Removes control groups whose processes have been killed; the last may still be on its way out.
/// One that stays is told: it is empty, and no reason to call a stop failed.
async fn remove(groups: &BTreeSet<PathBuf>) {
    let left = || {
        let stays = |group: &&PathBuf| std::fs::remove_dir(group).is_err() && group.exists();
        groups.iter().filter(stays).count()
    };
    let removed = wait::until_true("control groups of jobs go", REAP_BOUND, || left() == 0).await;
    if let Err(error) = removed {
        eprintln!("control groups of jobs are left behind: {error:#}");
    }
}

/// Kills once, without waiting: for a test that unwinds.
pub fn kill_now(state: &Path) {
    Leftovers::find(state).kill();
}

fn send(pids: &BTreeSet<i32>, signal: Signal) {
    for pid in pids {
        // It may have ended since it was seen.
        let _ = kill(Pid::from_raw(*pid), signal);
    }
}

fn all_processes() -> Vec<i32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The folders of the control groups that a job's process is in, of those that an agent made for
/// it: they are named after its assignment. `member` is the process's list, `mounts` the system's.
fn groups_of_job(member: &str, mounts: &str) -> Vec<PathBuf> {
    let mut groups = Vec::new();
    for line in member.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let name = path.rsplit('/').next().unwrap_or_default();
        if name.parse::<domain::ids::AssignmentId>().is_err() {
            continue;
        }
        for mount in mounts.lines() {
            let fields: Vec<&str> = mount.split(' ').collect();
            let [_, root, kind, options, ..] = fields.as_slice() else {
                continue;
            };
            let held = match *kind {
                "cgroup2" => controllers.is_empty(),
                "cgroup" => controllers
                    .split(',')
                    .any(|one| !one.is_empty() && options.split(',').any(|option| option == one)),
                _ => false,
            };
            if held {
                groups.push(Path::new(root).join(path.trim_start_matches('/')));
            }
        }
    }
    groups
}

/// Whether one of the zero-separated strings in `file` is `key` followed by a path in `folder`.
fn names_folder(file: &Path, key: &str, folder: &str) -> bool {
    let wanted = format!("{key}{folder}");
    std::fs::read(file)
        .unwrap_or_default()
        .split(|byte| *byte == 0)
        .any(|text| text.starts_with(wanted.as_bytes()))
}

/// The command line of a program of the product, or of PostgreSQL, that was started for `folder`.
fn product_words(proc: &Path, folder: &str) -> Option<Vec<String>> {
    let command_line = std::fs::read(proc.join("cmdline")).ok()?;
    let words: Vec<String> = command_line
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let name = Path::new(words.first()?).file_name()?.to_str()?;
    let ours = ["allotment-server", "allotment-agent", "postgres"].contains(&name);
    let for_folder = words.iter().skip(1).any(|word| word.contains(folder));
    (ours && for_folder).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_job_are_those_that_are_named_after_its_assignment() {
        let id = domain::ids::AssignmentId::new();
        let mounts = "\
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
";
        let member =
            format!("9:memory:/allotment/{id}\n8:cpu:/allotment/{id}\n7:pids:/\n0::/user.slice\n");
        let found = |root: &str| PathBuf::from(format!("/sys/fs/cgroup/{root}/allotment/{id}"));
        assert_eq!(
            groups_of_job(&member, mounts),
            [found("memory"), found("cpu")]
        );
        let unified = format!("0::/allotment/{id}\n");
        assert_eq!(groups_of_job(&unified, mounts), [found("unified")]);
    }

    #[tokio::test]
    async fn a_job_is_found_by_its_checkpoint_folder_and_ends_by_sigterm() {
        let state = PathBuf::from(format!(
            "/tmp/allotment-rig-leftovers-{}",
            std::process::id()
        ));
        let mut job = std::process::Command::new("sleep")
            .arg("60")
            .env(
                "ALLOTMENT_CHECKPOINT_DIR",
                state.join("checkpoints/team/job"),
            )
            .spawn()
            .unwrap();
        let pid = job.id().cast_signed();
        wait::until_true("the job is seen", Duration::from_secs(5), || {
            Leftovers::find(&state).jobs.contains(&pid)
        })
        .await
        .unwrap();
        let reaper = std::thread::spawn(move || job.wait().unwrap());
        end_jobs(&state).await.unwrap();
        let status = reaper.join().unwrap();
        assert_eq!(crate::child::in_words(status), "killed by SIGTERM");
        assert_eq!(Leftovers::find(&state), Leftovers::default());
    }
}
