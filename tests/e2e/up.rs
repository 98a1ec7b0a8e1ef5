//! `./dev up` and `./dev down` as a newcomer meets them: resume, a second start, taken ports, a crashed child.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rig::up_file::UpFile;
use rig::wait;

use crate::support::signal;

/// A whole start, on a machine that is busy with other tests.
const UP_BOUND: Duration = Duration::from_secs(180);

/// A checkout of its own, whose product is stopped at the end.
pub struct Checkout {
    pub folder: PathBuf,
}

impl Checkout {
    pub fn make(name: &str) -> Self {
        let folder = PathBuf::from(format!("/tmp/allotment-up-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let machines = "- {name: l40s-1, model: l40s-4, pool: l40s}\n- {name: small-1, model: a30-4, pool: small}\n";
        std::fs::write(folder.join("agents.yaml"), machines).unwrap();
        Self { folder }
    }

    pub fn rig(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary("allotment-rig"));
        command
            .arg("--checkout")
            .arg(&self.folder)
            .args(words)
            .stdin(Stdio::null());
        command
    }

    pub fn up(&self, more: &[&str]) -> Command {
        let agents = self.folder.join("agents.yaml");
        let mut command = self.rig(&["up", "--agents"]);
        command.arg(agents).args(more);
        command
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let _ = self.rig(&["down"]).output();
        let state = std::fs::read_link(self.folder.join(".allotment/state"));
        if !std::thread::panicking() {
            if let Ok(state) = state {
                let _ = std::fs::remove_dir_all(state);
            }
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// One of the product's programs, as it was built.
pub fn binary(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent()
        .and_then(Path::parent)
        .expect("target/debug")
        .join(name)
}

/// All that a command printed.
pub fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Asserts that a start failed with one sentence that has these words.
pub fn refused(output: &Output, words: &[&str]) {
    let told = said(output);
    assert!(!output.status.success(), "{told}");
    let error: Vec<&str> = told
        .lines()
        .skip_while(|line| !line.starts_with("error: "))
        .collect();
    assert_eq!(error.len(), 1, "{told}");
    for word in words {
        assert!(error[0].contains(word), "{word} is not in: {told}");
    }
}

/// A port from which on all that a product needs are free.
fn free_port() -> u16 {
    (20_000..60_000)
        .step_by(997)
        .find(|port| rig::ports::Ports::at(*port).unwrap().check_free().is_ok())
        .expect("free ports")
}

#[tokio::test]
async fn a_detached_product_answers_resumes_and_stops() {
    let checkout = Checkout::make("detached");
    let first = checkout.up(&["--detach", "--port", "0"]).output().unwrap();
    assert!(first.status.success(), "{}", said(&first));
    let file = UpFile::read(&checkout.folder).unwrap();
    assert!(said(&first).contains(&file.url), "{}", said(&first));
    let admin = rig::api::Api::with_token(&file.url, &file.token).unwrap();
    let nodes = admin.list("/nodes").await.unwrap();
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    let pools = admin.list("/pools").await.unwrap();
    assert!(
        pools.iter().any(|pool| pool["name"] == "small"),
        "a missing pool is made: {pools:?}"
    );
    assert!(
        file.enrol_command.starts_with("allotment-agent enrol "),
        "{}",
        file.enrol_command
    );
    for pid in [
        file.pids.postgres,
        file.pids.server[0],
        file.pids.agents["l40s-1"],
    ] {
        assert!(Path::new(&format!("/proc/{pid}")).exists(), "process {pid}");
    }
    let rows = Command::new("psql")
        .args([
            "-XAt",
            "-c",
            "SELECT count(*) FROM teams",
            &file.database_url,
        ])
        .output();
    if let Ok(rows) = rows {
        assert_eq!(said(&rows).trim(), "4", "org and three teams, as the owner");
    }

    for words in [&["up"][..], &["up", "--detach"], &["up", "--fresh"]] {
        let second = checkout.rig(words).output().unwrap();
        let sentence = format!("error: Allotment is running already at {}", file.url);
        refused(&second, &[&sentence, "./dev down"]);
    }

    // A killed child is started again, and its new process id is told.
    let server = file.pids.server[0];
    signal(server, "KILL");
    wait::until("the server is started again", UP_BOUND, || async {
        let now = UpFile::read(&checkout.folder)?;
        let ready = admin.get("/teams").await.is_ok();
        Ok((now.pids.server[0] != server && ready).then_some(()))
    })
    .await
    .unwrap();

    let down = checkout.rig(&["down"]).output().unwrap();
    assert_eq!(said(&down).trim(), "stopped");
    assert!(!Path::new(&format!("/proc/{}", file.pids.postgres)).exists());
    assert!(
        UpFile::read(&checkout.folder).is_err(),
        "up.json goes with the product"
    );

    let again = checkout.up(&["--detach", "--port", "0"]).output().unwrap();
    assert!(again.status.success(), "{}", said(&again));
    let resumed = UpFile::read(&checkout.folder).unwrap();
    assert_eq!(
        resumed.users, file.users,
        "the same people with the same passwords"
    );
    assert_eq!(resumed.url, file.url, "at the same address");
    let jobs = rig::api::Api::with_token(&resumed.url, &resumed.token)
        .unwrap()
        .list("/jobs")
        .await
        .unwrap();
    assert!(!jobs.is_empty(), "the example jobs are still there");

    // Elsewhere with the same state: `up` returns only when the agents are ready there.
    let down = checkout.rig(&["down"]).output().unwrap();
    assert_eq!(said(&down).trim(), "stopped");
    let port = free_port().to_string();
    let moved = checkout
        .up(&["--detach", "--port", &port])
        .output()
        .unwrap();
    assert!(moved.status.success(), "{}", said(&moved));
    let moved = UpFile::read(&checkout.folder).unwrap();
    assert_eq!(moved.url, format!("http://127.0.0.1:{port}"));
    assert_eq!(moved.users, file.users, "the same state");
}

#[tokio::test]
async fn a_job_that_a_stop_of_the_product_ended_is_charged_up_to_then_and_runs_again() {
    let checkout = Checkout::make("stopped");
    let up = |checkout: &Checkout| {
        let up = checkout.up(&["--detach", "--port", "0"]).output().unwrap();
        assert!(up.status.success(), "{}", said(&up));
        let file = UpFile::read(&checkout.folder).unwrap();
        rig::api::Api::with_token(&file.url, &file.token).unwrap()
    };
    let admin = up(&checkout);
    let begun = std::time::Instant::now();
    let spec = serde_json::json!({
        "name": "long", "pools": ["l40s"], "command": ["sleep", "600"], "per_worker": { "gpus": 1 },
    });
    let job = admin.post("/teams/platform/jobs", &spec).await.unwrap();
    let path = format!("/jobs/{}", job["id"].as_str().unwrap());
    let runs_as = async |admin: &rig::api::Api, attempt: i64| {
        wait::until("the job runs", UP_BOUND, || async {
            let job = admin.get(&path).await?;
            let so = job["state"] == "running" && job["attempt"] == attempt;
            Ok(so.then_some(()))
        })
        .await
        .unwrap();
    };
    runs_as(&admin, 1).await;
    let groups = control_groups(&checkout.folder);
    let down = checkout.rig(&["down"]).output().unwrap();
    assert!(said(&down).trim().ends_with("stopped"), "{}", said(&down));
    let held_at_most = begun.elapsed();
    let left: Vec<_> = groups.iter().filter(|group| group.exists()).collect();
    assert!(left.is_empty(), "control groups stay: {left:?}");

    let admin = up(&checkout);
    runs_as(&admin, 2).await;
    let attempts = admin.list(&format!("{path}/attempts")).await.unwrap();
    assert_eq!(attempts[0]["reason"], "node_lost", "{attempts:?}");
    let told = attempts[0]["message"].as_str().unwrap();
    assert!(
        told.contains("gone when the node's agent came back"),
        "{told}"
    );
    let charged = attempts[0]["gpu_seconds"].as_f64().unwrap();
    assert!(
        charged <= held_at_most.as_secs_f64(),
        "{charged} s of {held_at_most:?}"
    );
}

#[tokio::test]
async fn a_product_resumes_without_the_agents_of_retired_nodes() {
    let checkout = Checkout::make("retired");
    let up = |checkout: &Checkout| {
        let up = checkout.up(&["--detach", "--port", "0"]).output().unwrap();
        let said = said(&up);
        assert!(up.status.success(), "{said}");
        let file = UpFile::read(&checkout.folder).unwrap();
        let admin = rig::api::Api::with_token(&file.url, &file.token).unwrap();
        (said, file, admin)
    };
    let (first, file, admin) = up(&checkout);
    let refused: Vec<&str> = first
        .lines()
        .filter(|line| line.contains("an example is not submitted"))
        .collect();
    assert!(!refused.is_empty(), "there is no pool h100 here: {first}");
    assert!(
        refused.iter().all(|line| !line.contains('{')),
        "examples are refused in sentences: {refused:?}"
    );
    let why = serde_json::json!({ "reason": "the board is broken" });
    for job in admin.list("/jobs").await.unwrap() {
        let id = job["id"].as_str().unwrap();
        let cancel = format!("/jobs/{id}/cancel");
        admin.post(&cancel, &serde_json::json!({})).await.unwrap();
    }
    wait::until("the node is empty and retired", UP_BOUND, || async {
        Ok(admin.post("/nodes/small-1/retire", &why).await.ok())
    })
    .await
    .unwrap();
    admin.post("/nodes/l40s-1/cordon", &why).await.unwrap();
    let agent = file.pids.agents["small-1"];
    wait::until(
        "the retired node's agent ends by itself",
        UP_BOUND,
        || async {
            // One that has ended and was not waited for has no command any more.
            let command = std::fs::read(format!("/proc/{agent}/cmdline")).unwrap_or_default();
            Ok(command.is_empty().then_some(()))
        },
    )
    .await
    .unwrap();
    let state = std::fs::canonicalize(checkout.folder.join(".allotment/state")).unwrap();
    let log = std::fs::read_to_string(state.join("logs/agent-small-1.log")).unwrap();
    assert!(
        log.contains("node small-1 is retired and holds nothing any more"),
        "{log}"
    );
    let down = checkout.rig(&["down"]).output().unwrap();
    assert_eq!(said(&down).trim(), "stopped");

    let (again, file, admin) = up(&checkout);
    assert!(
        again.contains("node small-1 is retired: its agent is not started")
            && again.contains("node l40s-1 is cordoned"),
        "{again}"
    );
    let started: Vec<&String> = file.pids.agents.keys().collect();
    assert_eq!(started, ["l40s-1"]);
    let node = admin.get("/nodes/l40s-1").await.unwrap();
    assert_eq!(node["reachability"], "ready", "{node}");
}

/// The folders of the control groups of the jobs of a checkout's product.
fn control_groups(folder: &Path) -> Vec<PathBuf> {
    let state = std::fs::canonicalize(folder.join(".allotment/state")).unwrap();
    let found = rig::leftovers::Leftovers::find(&state);
    assert!(!found.jobs.is_empty(), "the job is there");
    found.groups.into_iter().collect()
}

/// `./dev up` on real GPUs, but for the GPUs: whoever loads NVIDIA's library by its name
/// finds the simulation.
#[tokio::test]
async fn a_machine_with_gpus_of_its_own_joins_a_pool_that_is_named_after_their_model() {
    let checkout = Checkout::make("own-gpus");
    let libraries = checkout.folder.join("lib");
    std::fs::create_dir(&libraries).unwrap();
    std::os::unix::fs::symlink(
        binary("libnvml_sim.so"),
        libraries.join("libnvidia-ml.so.1"),
    )
    .unwrap();
    let machine = Command::new(binary("nvml-sim-machine"))
        .args(["--model", "a30-4", "--seed", "own"])
        .output()
        .unwrap();
    let file = checkout.folder.join("machine.json");
    std::fs::write(&file, machine.stdout).unwrap();
    let up = checkout
        .rig(&["up", "--detach", "--port", "0"])
        .env("LD_LIBRARY_PATH", &libraries)
        .env("ALLOTMENT_NVML_SIM_MACHINE", &file)
        .output()
        .unwrap();
    assert!(up.status.success(), "{}", said(&up));
    let file = UpFile::read(&checkout.folder).unwrap();
    let nodes = rig::api::Api::with_token(&file.url, &file.token)
        .unwrap()
        .list("/nodes")
        .await
        .unwrap();
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    assert_eq!(nodes[0]["pool"], "a30", "{nodes:?}");
    assert_eq!(
        nodes[0]["devices"].as_array().map(Vec::len),
        Some(4),
        "{nodes:?}"
    );
}

#[tokio::test]
async fn in_the_foreground_a_crashed_child_ends_the_product_with_its_name_and_log() {
    let checkout = Checkout::make("crash");
    let mut up = checkout
        .up(&["--port", "0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait::until("it is up", UP_BOUND, || async {
        Ok(UpFile::read(&checkout.folder).ok())
    })
    .await
    .unwrap();
    let file = UpFile::read(&checkout.folder).unwrap();
    signal(file.pids.agents["small-1"], "KILL");
    let output = wait::until("it ends", UP_BOUND, || {
        let ended = up.try_wait();
        async move { Ok(ended?) }
    })
    .await
    .unwrap();
    assert!(!output.success());
    let mut words = String::new();
    std::io::Read::read_to_string(&mut up.stderr.take().expect("piped"), &mut words).unwrap();
    assert!(
        words.contains("agent small-1 has ended (killed by SIGKILL)"),
        "{words}"
    );
    assert!(words.contains("agent-small-1.log"), "{words}");
    assert!(
        !Path::new(&format!("/proc/{}", file.pids.postgres)).exists(),
        "all of it is stopped"
    );
}

#[tokio::test]
async fn an_interrupt_in_the_foreground_stops_all_of_it() {
    let checkout = Checkout::make("interrupt");
    // A group of its own, as a terminal gives a command: its interrupt is meant for all of them.
    let mut up = checkout
        .up(&["--port", "0"])
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    wait::until("it is up", UP_BOUND, || async {
        Ok(UpFile::read(&checkout.folder).ok())
    })
    .await
    .unwrap();
    let file = UpFile::read(&checkout.folder).unwrap();
    let interrupted = Command::new("kill")
        .args(["-INT", "--", &format!("-{}", up.id())])
        .status();
    assert!(interrupted.unwrap().success());
    let status = wait::until("it ends", UP_BOUND, || {
        let ended = up.try_wait();
        async move { Ok(ended?) }
    })
    .await
    .unwrap();
    assert!(status.success(), "{status}");
    let pids = [file.pids.postgres, file.pids.server[0]];
    for pid in pids.iter().chain(file.pids.agents.values()) {
        assert!(
            !Path::new(&format!("/proc/{pid}")).exists(),
            "process {pid}"
        );
    }
    assert!(UpFile::read(&checkout.folder).is_err());
    let state = rig::paths::Paths::of_checkout(&checkout.folder)
        .unwrap()
        .state;
    assert_eq!(speaks_of(&state), Vec::<String>::new());
}

/// Command lines of processes that name this folder.
fn speaks_of(folder: &Path) -> Vec<String> {
    let name = folder.display().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&name))
        .collect()
}
