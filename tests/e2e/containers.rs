//! Jobs as containers of a real Podman, with an image that is built from nothing.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rig::api::Api;
use rig::{Cluster, Options, wait};
use serde_json::{Value, json};

use crate::support::{END_BOUND, START_BOUND, finish, one_machine, skip, start, submit};

/// The image, by the name that Podman gives what has no registry.
const IMAGE: &str = "localhost/allotment-test";
/// A service that answers within seconds, on a machine that is busy building.
const SERVICE_BOUND: std::time::Duration = std::time::Duration::from_secs(60);

/// A Podman with storage and socket of its own.
struct Podman {
    folder: PathBuf,
    service: Child,
}

impl Podman {
    /// Builds the image and serves the API; in words why this user cannot.
    async fn start(name: &str) -> Result<Self, String> {
        if !rig::who::root() {
            return Err("containers are kept apart by an agent that is root".to_owned());
        }
        let busybox = Path::new("/bin/busybox");
        let there = Command::new("podman").arg("--version").output().is_ok() && busybox.is_file();
        assert!(
            there,
            "podman or busybox is missing; install them with: apt-get install podman runc netavark iptables catatonit busybox-static"
        );
        let folder = PathBuf::from(format!(
            "/var/lib/allotment-podman-{name}-{}",
            std::process::id()
        ));
        let image = folder.join("image/bin");
        std::fs::create_dir_all(&image).unwrap();
        std::fs::copy(busybox, image.join("busybox")).unwrap();
        for applet in ["sh", "cat", "id", "sleep", "grep", "kill", "echo"] {
            std::fs::hard_link(image.join("busybox"), image.join(applet)).unwrap();
        }
        let recipe = "FROM scratch\nCOPY bin /bin\nENV PATH=/bin FROM_IMAGE=yes\n";
        std::fs::write(folder.join("image/Dockerfile"), recipe).unwrap();
        // A machine without systemd, whose limits are its own.
        let settings = "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n\
             [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n";
        std::fs::write(folder.join("containers.conf"), settings).unwrap();
        let built = podman(&folder)
            .args(["build", "-q", "--network=none", "-t", IMAGE])
            .arg(folder.join("image"))
            .output()
            .unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let service = podman(&folder)
            .args(["system", "service", "--time", "0"])
            .arg(format!("unix://{}", folder.join("podman.sock").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Self { folder, service };
        wait::until("Podman's socket", SERVICE_BOUND, || async {
            Ok(started.socket().exists().then_some(()))
        })
        .await
        .unwrap();
        Ok(started)
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("podman.sock")
    }

    /// An agent's settings with it.
    fn settings(&self) -> String {
        format!(
            "[containers]\nsocket = \"{}\"\npull = \"missing\"\n",
            self.socket().display()
        )
    }

    /// All containers, running or not.
    fn containers(&self) -> String {
        let listed = podman(&self.folder)
            .args(["ps", "-a", "-q"])
            .output()
            .unwrap();
        assert!(listed.status.success());
        String::from_utf8(listed.stdout).unwrap()
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = podman(&self.folder).args(["rm", "-a", "-f"]).output();
        let _ = self.service.kill();
        let _ = self.service.wait();
        let _ = podman(&self.folder).args(["rmi", "-a", "-f"]).output();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn podman(folder: &Path) -> Command {
    let mut command = Command::new("podman");
    command
        .env("CONTAINERS_CONF", folder.join("containers.conf"))
        .arg("--root")
        .arg(folder.join("store"))
        .arg("--runroot")
        .arg(folder.join("run"));
    command
}

/// A job of the image with a script for its shell.
fn job(name: &str, script: &str) -> Value {
    json!({
        "name": name, "kind": "batch", "class": "normal", "runner": "container", "image": IMAGE,
        "command": ["sh", "-c", script], "per_worker": {"gpus": 1, "memory_mib": 64, "cpus": 1},
        "time_limit_seconds": 300
    })
}

async fn in_state(cluster: &Cluster, member: &Api, id: &str, state: &str) -> Value {
    let reached = cluster.job_in(member, id, &[state], END_BOUND).await;
    reached.unwrap()
}

async fn log(member: &Api, id: &str) -> String {
    member.text(&format!("/jobs/{id}/logs")).await.unwrap()
}

async fn log_has(member: &Api, id: &str, text: &str) {
    wait::until(text, START_BOUND, || async {
        // Before its first attempt there is no log.
        let said = member.text(&format!("/jobs/{id}/logs")).await;
        Ok(said.is_ok_and(|said| said.contains(text)).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_container_is_a_job_like_any_other() {
    let podman = match Podman::start("jobs").await {
        Ok(podman) => podman,
        Err(reason) => return skip(&reason),
    };
    let mut options = Options::for_test("containers", one_machine()).unwrap();
    options.agent_settings = podman.settings();
    let mut cluster = start(options).await;
    let member = cluster.sign_in("vision-member").await.unwrap();

    // What it prints, finds and may, and the image that it was.
    let mut spec = job(
        "plain",
        "echo hello $GREETING; echo uid=$(id -u) home=$HOME from-image=$FROM_IMAGE; cat note.txt; \
         grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; \
         echo gpus=$CUDA_VISIBLE_DEVICES seen=$NVIDIA_VISIBLE_DEVICES pwd=$(pwd); \
         echo kept > $ALLOTMENT_CHECKPOINT_DIR/state; exit 3",
    );
    spec["env"] = json!({"GREETING": "x; $(id)"});
    spec["files"] = json!({"note.txt": "a small text\n"});
    let id = submit(&member, "vision", &spec).await;
    let ended = in_state(&cluster, &member, &id, "failed").await;
    assert_eq!(ended["reason"], "exit", "{ended}");
    assert_eq!(ended["exit_code"], 3, "{ended}");
    let digest = ended["placement"][0]["image_digest"]
        .as_str()
        .expect("an image");
    assert!(digest.len() >= 64, "{ended}");
    let said = log(&member, &id).await;
    for wanted in [
        "hello x; $(id)\n", // words of a spec are data
        "a small text",
        "from-image=yes",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "gpus=GPU-",
        "seen=void",
    ] {
        assert!(said.contains(wanted), "{wanted:?} in {said}");
    }
    assert!(!said.contains("uid=0 "), "a team's user: {said}");

    // Memory, a signal, a program that is not there: each told as what it is.
    let cases = [
        (
            "memory",
            "x=aaaaaaaa; while :; do x=$x$x; done",
            "oom",
            "64 MiB",
        ),
        ("signal", "kill -SEGV $$", "signal", "SIGSEGV"),
        ("code", "exit 7", "exit", "7"),
    ];
    for (name, script, reason, word) in cases {
        let id = submit(&member, "vision", &job(name, script)).await;
        let ended = in_state(&cluster, &member, &id, "failed").await;
        assert_eq!(ended["reason"], reason, "{ended}");
        let message = ended["message"].as_str().expect("a message");
        assert!(message.contains(word), "{message}");
    }

    // A stop asks first.
    let waits = "trap 'echo leaving; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let id = submit(&member, "vision", &job("stops", waits)).await;
    log_has(&member, &id, "ready").await;
    let cancelled = member.post(&format!("/jobs/{id}/cancel"), &json!({})).await;
    cancelled.unwrap();
    in_state(&cluster, &member, &id, "cancelled").await;
    log_has(&member, &id, "leaving").await;

    // The agent is killed under it, comes back and sees its end.
    let script =
        "echo begun; while [ ! -e $ALLOTMENT_CHECKPOINT_DIR/go ]; do sleep 0.1; done; echo went on";
    let id = submit(&member, "vision", &job("adopted", script)).await;
    log_has(&member, &id, "begun").await;
    cluster.restart_agent("l40s-1").await.unwrap();
    cluster.agents_ready(START_BOUND).await.unwrap();
    let checkpoints = cluster
        .agent("l40s-1")
        .unwrap()
        .state_folder()
        .join("checkpoints");
    let own = folder_named(&checkpoints, &id).expect("a checkpoint folder");
    std::fs::write(own.join("go"), "").unwrap();
    let ended = in_state(&cluster, &member, &id, "succeeded").await;
    assert_eq!(ended["attempt"], 1, "{ended}");
    log_has(&member, &id, "went on").await;

    // An image that is nowhere is the job's own fault or the node's, and told by its name.
    let mut spec = job("nowhere", "true");
    spec["image"] = json!("localhost/not-there:1");
    let refused = submit(&member, "vision", &spec).await;
    wait::until("a word on the image", END_BOUND, || async {
        let attempts = member.list(&format!("/jobs/{refused}/attempts")).await?;
        let told = |attempt: &Value| {
            attempt["message"]
                .as_str()
                .is_some_and(|m| m.contains("localhost/not-there:1"))
        };
        Ok(attempts.iter().any(told).then_some(()))
    })
    .await
    .unwrap();
    let _ = member
        .post(&format!("/jobs/{refused}/cancel"), &json!({}))
        .await;

    wait::until("no container is left", END_BOUND, || async {
        Ok(podman.containers().trim().is_empty().then_some(()))
    })
    .await
    .unwrap();
    e2e::laws::check_ledger(&cluster).await.unwrap();
    finish(cluster, None).await;
}

/// A folder of that name below another.
fn folder_named(below: &Path, name: &str) -> Option<PathBuf> {
    let folders = below.read_dir().ok()?.flatten().map(|entry| entry.path());
    let folders: Vec<PathBuf> = folders.filter(|path| path.is_dir()).collect();
    let own = folders.iter().find(|path| path.ends_with(name)).cloned();
    own.or_else(|| folders.iter().find_map(|path| folder_named(path, name)))
}
