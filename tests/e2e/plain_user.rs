//! The product for a person without any right on the machine: started, used and stopped.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rig::up_file::UpFile;
use rig::{wait, who};

use crate::support::ENDED;
use crate::up::{binary, said};

/// A whole start with one agent, on a machine that is busy with other tests.
const BOUND: Duration = Duration::from_secs(180);
/// What a product on one machine is made of.
const PROGRAMS: [&str; 7] = [
    "allot",
    "allotment-agent",
    "allotment-rig",
    "allotment-server",
    "libnvml_sim.so",
    "nvml-sim-machine",
    "nvml-sim-mps-control",
];

/// A home with a checkout in it, of a user who may do nothing.
struct Home {
    folder: PathBuf,
    /// Whom root becomes; nobody else can become another.
    user: Option<who::Owner>,
}

impl Home {
    fn make() -> Self {
        let folder = PathBuf::from(format!("/tmp/allotment-plain-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let user = who::root().then(|| nobody(&folder));
        // Copies: the folder that they were built in may be closed to others.
        let programs = folder.join("bin");
        std::fs::create_dir(&programs).unwrap();
        for name in PROGRAMS {
            std::fs::copy(binary(name), programs.join(name)).unwrap();
        }
        let machines = "- {name: l40s-1, model: l40s-4, pool: l40s}\n";
        std::fs::write(folder.join("agents.yaml"), machines).unwrap();
        for path in [&folder, &programs] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
            if let Some(user) = user {
                chown(path, Some(user.uid), Some(user.gid)).unwrap();
            }
        }
        Self { folder, user }
    }

    /// A command of the rig as that user, in its own home.
    fn rig(&self, words: &[&str]) -> Command {
        let program = self.folder.join("bin/allotment-rig");
        let mut command = match self.user {
            Some(user) => {
                let mut command = Command::new("setpriv");
                command
                    .arg(format!("--reuid={}", user.uid))
                    .arg(format!("--regid={}", user.gid))
                    .args(["--clear-groups", "--no-new-privs", "--bounding-set=-all"])
                    .arg(program);
                command
            }
            None => Command::new(program),
        };
        command
            .env("HOME", &self.folder)
            .env_remove("XDG_STATE_HOME")
            .current_dir(&self.folder)
            .arg("--checkout")
            .arg(&self.folder)
            .args(words);
        command
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = self.rig(&["down"]).output();
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// The user that has no rights, as the system knows it: PostgreSQL wants one that has a name.
fn nobody(folder: &Path) -> who::Owner {
    let ask = |what: &str| {
        let id = Command::new("id").args([what, "nobody"]).output().unwrap();
        let told = said(&id);
        let told = told.trim().parse::<u32>();
        told.unwrap_or_else(|error| panic!("{}: no user nobody: {error}", folder.display()))
    };
    who::Owner {
        uid: ask("-u"),
        gid: ask("-g"),
    }
}

#[tokio::test]
async fn a_plain_user_starts_the_product_runs_a_job_to_its_end_and_stops_it() {
    let home = Home::make();
    let machines = home.folder.join("agents.yaml").display().to_string();
    let up = home
        .rig(&["up", "--detach", "--port", "0", "--agents", &machines])
        .output()
        .unwrap();
    assert!(up.status.success(), "{}", said(&up));
    let file = UpFile::read(&home.folder).unwrap();
    if let Some(user) = home.user {
        for pid in [
            file.pids.postgres,
            file.pids.server[0],
            file.pids.agents["l40s-1"],
        ] {
            let owner = std::os::unix::fs::MetadataExt::uid(
                &std::fs::metadata(format!("/proc/{pid}")).unwrap(),
            );
            assert_eq!(owner, user.uid, "process {pid}");
        }
    }
    let admin = rig::api::Api::with_token(&file.url, &file.token).unwrap();
    let spec = serde_json::json!({
        "name": "plain", "pools": ["l40s"], "command": ["sh", "-c", "echo as $(id -u)"],
        "per_worker": {"gpus": 1},
    });
    let job = admin.post("/teams/platform/jobs", &spec).await.unwrap();
    let path = format!("/jobs/{}", job["id"].as_str().expect("an id"));
    let ended = wait::until("the job has ended", BOUND, || async {
        let job = admin.get(&path).await?;
        let state = job["state"].as_str().unwrap_or_default().to_owned();
        Ok(ENDED.contains(&state.as_str()).then_some(job))
    })
    .await
    .unwrap();
    assert_eq!(ended["state"], "succeeded", "{ended}");
    let log = admin.text(&format!("{path}/logs")).await.unwrap();
    if let Some(user) = home.user {
        assert_eq!(
            log,
            format!("as {}\n", user.uid),
            "it runs as the agent does"
        );
    }
    let node = admin.get("/nodes/l40s-1").await.unwrap();
    assert_eq!(node["isolated"], false, "and its node says so: {node}");

    let down = home.rig(&["down"]).output().unwrap();
    assert!(said(&down).trim().ends_with("stopped"), "{}", said(&down));
    for pid in [
        file.pids.postgres,
        file.pids.server[0],
        file.pids.agents["l40s-1"],
    ] {
        assert!(
            !Path::new(&format!("/proc/{pid}")).exists(),
            "process {pid}"
        );
    }
}
