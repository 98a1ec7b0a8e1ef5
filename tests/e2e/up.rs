//! `./dev up` and `./dev down` as a newcomer meets them: resume, a second start, taken ports, a crashed child.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rig::up_file::UpFile;
use rig::wait;

/// A whole start, on a machine that is busy with other tests.
const UP_BOUND: Duration = Duration::from_secs(180);

/// A checkout of its own, whose product is stopped at the end.
struct Checkout {
    folder: PathBuf,
}

impl Checkout {
    fn make(name: &str) -> Self {
        let folder = PathBuf::from(format!("/tmp/allotment-up-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let machines = "- {name: l40s-1, model: l40s-4, pool: l40s}\n- {name: small-1, model: a30-4, pool: small}\n";
        std::fs::write(folder.join("agents.yaml"), machines).unwrap();
        Self { folder }
    }

    fn rig(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary("allotment-rig"));
        command
            .arg("--checkout")
            .arg(&self.folder)
            .args(words)
            .stdin(Stdio::null());
        command
    }

    fn up(&self, more: &[&str]) -> Command {
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

fn binary(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent()
        .and_then(Path::parent)
        .expect("target/debug")
        .join(name)
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
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

    let second = checkout.rig(&["up"]).output().unwrap();
    assert!(second.status.success(), "{}", said(&second));
    assert!(
        said(&second).contains(&format!("running already at {}", file.url)),
        "{}",
        said(&second)
    );

    // A killed child is started again, and its new process id is told.
    let server = file.pids.server[0];
    assert!(
        Command::new("kill")
            .args(["-9", &server.to_string()])
            .status()
            .unwrap()
            .success()
    );
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
}

#[test]
fn taken_ports_are_one_sentence_and_a_failure() {
    let checkout = Checkout::make("ports");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    // Close to the end of the range there is no room for the others, which is another error.
    if port < 64_000 {
        let up = checkout
            .up(&["--port", &port.to_string()])
            .output()
            .unwrap();
        assert!(!up.status.success());
        let words = said(&up);
        assert!(
            words.contains(&format!("error: port {port}")) && words.contains("--port 0"),
            "{words}"
        );
        assert_eq!(words.trim().lines().count(), 1, "{words}");
    }
}

#[test]
fn a_wrong_list_of_machines_is_one_sentence_and_a_failure() {
    let checkout = Checkout::make("list");
    std::fs::write(
        checkout.folder.join("agents.yaml"),
        "- {name: n1, model: dgx-b200, pool: p}\n",
    )
    .unwrap();
    let up = checkout.up(&["--port", "0"]).output().unwrap();
    assert!(!up.status.success());
    let words = said(&up);
    assert!(
        words.contains("dgx-b200") && words.contains("dgx-h100"),
        "{words}"
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
    let agent = file.pids.agents["small-1"];
    assert!(
        Command::new("kill")
            .args(["-9", &agent.to_string()])
            .status()
            .unwrap()
            .success()
    );
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
