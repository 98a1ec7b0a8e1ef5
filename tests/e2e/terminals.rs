//! Commands beside a job, its output and its ports, by the command line against real processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use reqwest::Method;
use rig::{Cluster, Options};
use serde_json::{Value, json};

use crate::support::{END_BOUND, START_BOUND, finish, one_machine, start, submit};

/// Answers each connection in capitals, on a free port that it tells with its own number.
const SERVES: &str = "import os, socket\n\
    s = socket.create_server(('127.0.0.1', 0))\n\
    print('port', s.getsockname()[1], os.getpid(), flush=True)\n\
    while True:\n\
    \x20   c, _ = s.accept()\n\
    \x20   c.sendall(c.recv(64).upper())\n\
    \x20   c.close()\n";

fn allot(cluster: &Cluster, token: &str, words: &[&str]) -> Command {
    let mut command = Command::new(cluster.paths().binary("allot").unwrap());
    command
        .args(words)
        .env("ALLOTMENT_URL", cluster.url())
        .env("ALLOTMENT_TOKEN", token)
        .env("HOME", "/nonexistent");
    command
}

fn exec(cluster: &Cluster, token: &str, job: &str, command: &[&str]) -> Output {
    let words = [&["exec", job, "--"], command].concat();
    let mut ran = allot(cluster, token, &words);
    ran.stdin(Stdio::null()).output().unwrap()
}

fn words(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// A command that sleeps beside the job, once it says that it runs.
fn sleeper(cluster: &Cluster, token: &str, job: &str) -> (Child, String) {
    let line = "echo $$; exec sleep 1000";
    let mut child = allot(cluster, token, &["exec", job, "--", "sh", "-c", line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pid = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut pid).unwrap();
    (child, pid.trim().to_owned())
}

async fn gone(pid: &str) {
    let path = format!("/proc/{pid}");
    rig::wait::until("the command has ended", START_BOUND, || async {
        Ok((!std::path::Path::new(&path).exists()).then_some(()))
    })
    .await
    .unwrap();
}

/// The port on which the job listens, and its first process.
async fn port_and_pid(member: &rig::api::Api, job: &str) -> (String, String) {
    let path = format!("/jobs/{job}/logs");
    rig::wait::until("the job tells its port", START_BOUND, || async {
        let log = member.text(&path).await?;
        let told = log
            .strip_prefix("port ")
            .and_then(|told| told.trim().split_once(' '));
        Ok(told.map(|(port, pid)| (port.to_owned(), pid.to_owned())))
    })
    .await
    .unwrap()
}

async fn ends_in_audit(cluster: &Cluster, job: &str) -> Vec<Value> {
    let path = format!("/audit?object=job/{job}&limit=500");
    let rows = cluster.admin().list(&path).await.unwrap();
    rows.into_iter()
        .filter(|row| row["after"]["ends"].is_string())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn people_reach_their_running_jobs_and_nobody_elses() {
    let cluster = start(Options::for_test("terminals", one_machine()).unwrap()).await;
    let member = cluster.sign_in("vision-member").await.unwrap();
    let token = member.token();
    let spec = json!({
        "name": "serves", "kind": "batch", "class": "normal", "time_limit_seconds": 600,
        "per_worker": {"gpus": 1, "cpus": 1, "memory_mib": 512},
        "command": ["python3", "-c", SERVES],
    });
    let job = submit(&member, "vision", &spec).await;
    cluster
        .job_in(&member, &job, &["running"], START_BOUND)
        .await
        .unwrap();
    let (port, pid) = port_and_pid(&member, &job).await;

    // It prints, has the job's environment and devices, and its exit status is ours.
    let line = "echo $ALLOTMENT_JOB_ID; echo oops >&2; exit 7";
    let (code, stdout, stderr) = words(&exec(&cluster, token, &job, &["sh", "-c", line]));
    assert_eq!((code, stdout.trim()), (Some(7), job.as_str()), "{stderr}");
    assert_eq!(stderr, "oops\n");
    let (code, _, stderr) = words(&exec(&cluster, token, &job, &["no-such-program"]));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("no-such-program"), "{stderr}");
    let (code, ..) = words(&exec(&cluster, token, &job, &["sh", "-c", "kill -9 $$"]));
    assert_eq!(code, Some(128 + 9));
    // It runs as the job does: the same user, control group and namespaces.
    let same = "for n in mnt ipc; do test $(readlink /proc/self/ns/$n) = $(readlink /proc/$1/ns/$n); echo $?; done; \
        test \"$(cat /proc/self/cgroup)\" = \"$(cat /proc/$1/cgroup)\"; echo $?; \
        test $(stat -c %u /proc/$$) = $(stat -c %u /proc/$1); echo $?; grep NoNewPrivs /proc/self/status";
    let beside = &["sh", "-c", same, "sh", &pid];
    let (_, stdout, more) = words(&exec(&cluster, token, &job, beside));
    assert_eq!(
        stdout.split_whitespace().collect::<Vec<_>>(),
        ["0", "0", "0", "0", "NoNewPrivs:", "1"],
        "{pid}{more}"
    );
    // Input comes through, and its end does.
    let mut cat = allot(&cluster, token, &["exec", &job, "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let large = "a line of text\n".repeat(20_000);
    let mut input = cat.stdin.take().unwrap();
    let sent = large.clone();
    let writer = std::thread::spawn(move || input.write_all(sent.as_bytes()).unwrap());
    let copied = cat.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(copied.stdout == large.as_bytes(), "{}", copied.stdout.len());
    // A terminal is one, and of the size that was said.
    let tty = ["exec", "--tty", &job, "--", "sh", "-c", "stty size; tty"];
    let shown = allot(&cluster, token, &tty).stdin(Stdio::null()).output();
    let (code, stdout, stderr) = words(&shown.unwrap());
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.starts_with("24 80\r\n/dev/pts/"), "{stdout:?}");

    // A port of the job is reached, and one that is not the job's is not.
    let ports = format!("0:{port}");
    let mut forward = allot(&cluster, token, &["forward", "--json", &job, &ports])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let printed = serde_json::Deserializer::from_reader(forward.stdout.take().unwrap());
    let printed: Value = printed.into_iter().next().unwrap().unwrap();
    let answer = ask(printed["address"].as_str().unwrap());
    forward.kill().unwrap();
    forward.wait().unwrap();
    assert_eq!(answer, "HELLO");
    let metrics = cluster.url();
    let not_its_own = metrics.rsplit(':').next().unwrap().trim_matches('/');
    let mut refused = allot(
        &cluster,
        token,
        &["forward", &job, &format!("0:{not_its_own}")],
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut line = String::new();
    let mut told = BufReader::new(refused.stdout.take().unwrap());
    told.read_line(&mut line).unwrap();
    assert_eq!(ask(line.split(' ').next().unwrap()), "");
    // Told once the connection is closed: read before the program is ended.
    let mut stderr = String::new();
    let mut told = BufReader::new(refused.stderr.take().unwrap());
    told.read_line(&mut stderr).unwrap();
    refused.kill().unwrap();
    refused.wait().unwrap();
    assert!(stderr.contains("no process of the job listens"), "{stderr}");

    // Who may not is refused, and who sees nothing of the team is told that nothing is there.
    for (who, status) in [("speech-owner", 404), ("vision-viewer", 403)] {
        let other = cluster.sign_in(who).await.unwrap();
        for path in ["exec", "attach", "forward?port=80"] {
            let path = format!("/jobs/{job}/{path}");
            let answer = other.call(Method::GET, &path, None, None).await.unwrap();
            assert_eq!(answer.status, status, "{who} {path}");
        }
    }

    // When the person leaves, what was run ends.
    let (mut left, pid) = sleeper(&cluster, token, &job);
    left.kill().unwrap();
    left.wait().unwrap();
    gone(&pid).await;
    // When the session is revoked, it ends too, and that is said.
    let second = cluster.sign_in("vision-member").await.unwrap();
    let (cut, pid) = sleeper(&cluster, second.token(), &job);
    second.post("/auth/logout", &json!({})).await.ok();
    let (code, _, stderr) = words(&cut.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("sign in"), "{stderr}");
    gone(&pid).await;
    // With the job everything ends.
    let (ended, pid) = sleeper(&cluster, token, &job);
    let mut attached = allot(&cluster, token, &["attach", &job])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = vec![0; 5];
    attached
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut seen)
        .unwrap();
    assert_eq!(seen, b"port ");
    member
        .post(&format!("/jobs/{job}/cancel"), &json!({}))
        .await
        .unwrap();
    cluster
        .job_in(&member, &job, &["cancelled"], END_BOUND)
        .await
        .unwrap();
    let (code, _, stderr) = words(&ended.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{stderr}");
    gone(&pid).await;
    assert_ne!(attached.wait().unwrap().code(), Some(0));
    // Nothing runs there any more: that is said before anything is opened.
    let (code, _, stderr) = words(&exec(&cluster, token, &job, &["true"]));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("does not run"), "{stderr}");

    let ends = rig::wait::until("each end is recorded", START_BOUND, || async {
        let ends = ends_in_audit(&cluster, &job).await;
        Ok((ends.len() >= 11).then_some(ends))
    });
    let ends = ends.await.unwrap();
    assert!(ends.iter().all(|row| row["after"]["bytes_out"].is_u64()));
    assert!(ends.iter().any(|row| row["after"]["ends"] == "exit code 7"));
    assert!(!json!(ends).to_string().contains("a line of text"));
    finish(cluster, None).await;
}

/// What a port answers to a word; nothing where it answers nothing.
fn ask(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let _ = stream.write_all(b"hello");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}
