//! Keeps the logs within their bounds of age and size.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use domain::ids::AssignmentId;

use crate::config::{Config, SECONDS_PER_DAY};
use crate::folders::Folders;

/// How often logs are looked at.
const LOOK: Duration = Duration::from_secs(600);

/// Prunes for ever.
pub async fn run(config: Config, folders: Folders) {
    loop {
        let (config, folders) = (config.clone(), folders.clone());
        let pruned = tokio::task::spawn_blocking(move || prune(&config, &folders));
        if let Ok(Err(error)) = pruned.await {
            tracing::warn!(%error, "old logs cannot be removed");
        }
        tokio::time::sleep(LOOK).await;
    }
}

struct Log {
    path: PathBuf,
    bytes: u64,
    written_at: SystemTime,
}

/// Removes logs that are too old, and the oldest of those that are too much. A log whose
/// job is still here stays.
fn prune(config: &Config, folders: &Folders) -> std::io::Result<()> {
    let mut logs: Vec<Log> = fs::read_dir(folders.logs())?
        .filter_map(|entry| log(&entry.ok()?.path(), folders))
        .collect();
    logs.sort_by_key(|log| std::cmp::Reverse(log.written_at));
    let age_max = Duration::from_secs(u64::from(config.logs_days_max) * SECONDS_PER_DAY);
    let mut kept_bytes: u64 = 0;
    for log in logs {
        let age = log.written_at.elapsed().unwrap_or_default();
        if age > age_max || kept_bytes + log.bytes > config.logs_bytes_max {
            fs::remove_file(&log.path)?;
        } else {
            kept_bytes += log.bytes;
        }
    }
    Ok(())
}

fn log(path: &Path, folders: &Folders) -> Option<Log> {
    let id: AssignmentId = path.file_stem()?.to_str()?.parse().ok()?;
    if folders.run(id).exists() {
        return None;
    }
    let found = path.metadata().ok()?;
    Some(Log {
        path: path.to_owned(),
        bytes: found.len(),
        written_at: found.modified().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_logs_go_first_and_those_of_jobs_that_run_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let folders = Folders::prepare(folder.path(), None).expect("made");
        let ids: Vec<AssignmentId> = (0..4).map(|_| AssignmentId::new()).collect();
        let now = SystemTime::now();
        for (at, id) in ids.iter().enumerate() {
            fs::write(folders.log(*id), [0; 100]).expect("written");
            let file = fs::File::options()
                .write(true)
                .open(folders.log(*id))
                .expect("opened");
            let age = Duration::from_secs(3600 * (4 - at as u64));
            file.set_modified(now - age).expect("dated");
        }
        folders.run(ids[0]).create().expect("made");
        let config = Config {
            logs_bytes_max: 200,
            ..Config::default()
        };
        prune(&config, &folders).expect("pruned");
        let left: Vec<bool> = ids.iter().map(|id| folders.log(*id).exists()).collect();
        assert_eq!(left, [true, false, true, true]);
    }
}
