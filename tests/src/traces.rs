//! Jobs that leave traces which the product cannot write: one line at their start and one at their end, appended by the processes themselves.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rig::Cluster;
use serde_json::{Value, json};

/// The program of a traced job.
const PROGRAM: &str = include_str!("traced.py");

/// The folder of one cluster's traces.
#[derive(Debug, Clone)]
pub struct Traces {
    folder: PathBuf,
}

/// One line of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// `start`, `term`, `end`; `double` when another process of the same worker still lived,
    /// `taken` when another job held the device.
    pub what: String,
    /// The process.
    pub pid: u32,
    /// The attempt's number.
    pub attempt: u32,
    /// The worker's rank.
    pub worker: u32,
    /// Devices that it was given.
    pub devices: String,
}

impl Traces {
    /// Makes the folder, which every team's user may write to.
    pub fn of(cluster: &Cluster) -> anyhow::Result<Self> {
        let folder = cluster.paths().state.join("traces");
        for path in [&folder, &folder.with_extension("locks")] {
            std::fs::create_dir_all(path).context("make the folder of traces")?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))
                .context("open the folder of traces")?;
        }
        Ok(Self { folder })
    }

    /// A job on one whole device of `pool` that runs until [`Traces::let_go`].
    pub fn job(&self, name: &str, pool: &str) -> Value {
        json!({
            "name": name, "kind": "batch", "class": "normal", "pools": [pool],
            "command": ["python3", "traced.py"],
            "files": {"traced.py": PROGRAM},
            "env": {"TRACES": self.folder.display().to_string()},
            "per_worker": {"gpus": 1},
            "time_limit_seconds": 1200
        })
    }

    /// Lets every traced job end, those of the future too.
    pub fn let_go(&self) -> anyhow::Result<()> {
        let file = self.folder.join("go");
        std::fs::write(&file, "").context("let the jobs go")?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))
            .context("let the jobs go")
    }

    /// The lines of one job, in the order in which they were written.
    pub fn lines(&self, job: &str) -> anyhow::Result<Vec<Line>> {
        let file = self.folder.join(job);
        match std::fs::read_to_string(&file) {
            Ok(text) => text.lines().map(parse).collect(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| format!("read {}", file.display())),
        }
    }

    /// The jobs that left traces.
    pub fn jobs(&self) -> anyhow::Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.folder).context("list the traces")?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names: Vec<String> = names
            .collect::<std::io::Result<_>>()
            .context("list the traces")?;
        Ok(names.into_iter().filter(|name| name != "go").collect())
    }

    /// Fails when a worker of any job ever lived twice, or two jobs had one whole device at
    /// the same time, as the processes themselves saw it.
    pub fn check(&self) -> anyhow::Result<()> {
        for job in self.jobs()? {
            let mut starts: BTreeMap<(u32, u32), usize> = BTreeMap::new();
            for line in self.lines(&job)? {
                match line.what.as_str() {
                    "double" => bail!(
                        "job {job}: a process of worker {} started while another lived",
                        line.worker
                    ),
                    "taken" => bail!(
                        "job {job}: its device {} was in another job's hands",
                        line.devices
                    ),
                    "start" => *starts.entry((line.attempt, line.worker)).or_default() += 1,
                    _ => {}
                }
            }
            if let Some(((attempt, worker), times)) = starts.iter().find(|(_, times)| **times > 1) {
                bail!("job {job}: attempt {attempt} of worker {worker} was started {times} times");
            }
        }
        Ok(())
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn parse(line: &str) -> anyhow::Result<Line> {
    let words: Vec<&str> = line.split(' ').collect();
    let [what, pid, attempt, worker, devices] = words[..] else {
        bail!("a trace of another form: {line:?}")
    };
    Ok(Line {
        what: what.to_owned(),
        pid: pid.parse().context("pid of a trace")?,
        attempt: attempt.parse().context("attempt of a trace")?,
        worker: worker.parse().context("worker of a trace")?,
        devices: devices.to_owned(),
    })
}
