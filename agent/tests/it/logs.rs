//! Logs of writers that mean no good, and what jobs leave in their output folders.

use std::fs;

use protocol::wire::log_request::Result as Asked;

use crate::rig::{Agent, script};

/// The most memory that an agent may have had beside a job that writes for all it can, in kB.
const MEMORY_KB_MAX: u64 = 256 * 1024;

/// The most memory that a process has had, in kB.
fn peak_kb(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let figure = line.and_then(|line| line.split_whitespace().nth(1));
    figure.and_then(|kb| kb.parse().ok()).expect("a figure")
}

#[tokio::test]
async fn a_job_that_writes_for_all_it_can_fills_no_disk_and_no_memory_and_its_end_is_kept() {
    let mut agent = Agent::enrolled().await;
    agent.configure("log_bytes_max = 8000000");
    agent.start().await;
    // What no packing makes smaller, a line of 10 MB without an end, and escapes.
    let job = script(
        "head -c 60000000 /dev/urandom; head -c 10000000 /dev/zero | tr '\\0' x; \
         printf '\\033]52;c;aGk=\\007\\377\\n'; echo the end",
    );
    agent.server.desire(std::slice::from_ref(&job)).await;
    assert_eq!(agent.server.exited(&job.id).await.code, Some(0));
    let (begins, bytes) = agent
        .server
        .read_part(&job.id, 0, false, None)
        .await
        .expect("a log");
    assert_eq!(
        begins + bytes.len() as i64,
        70_000_022,
        "offsets count what was written"
    );
    let begin = String::from_utf8_lossy(&bytes[..100]).into_owned();
    assert!(
        begin.starts_with("\n[allotment: the bytes before "),
        "{begin}"
    );
    assert!(bytes.ends_with(b"\x1b]52;c;aGk=\x07\xff\nthe end\n"));
    let held: u64 = fs::read_dir(agent.state().join("logs").join(&job.id))
        .expect("listed")
        .map(|file| file.expect("a file").metadata().expect("its size").len())
        .sum();
    assert!(held <= 9_000_000, "{held} bytes on the disk");
    let peak = peak_kb(agent.pid());
    assert!(peak < MEMORY_KB_MAX, "{peak} kB of memory");
}

#[tokio::test]
async fn what_a_job_leaves_in_its_output_folder_is_listed_and_read_when_it_has_ended() {
    let agent = Agent::running().await;
    let job = script(
        "cd $ALLOTMENT_OUTPUT_DIR && mkdir sub && echo weights > sub/model && ln -s /etc/passwd link && \
         touch '<b>'",
    );
    agent.server.desire(std::slice::from_ref(&job)).await;
    assert_eq!(agent.server.exited(&job.id).await.code, Some(0));
    agent.server.released(&job.id).await;
    let read = async |asked| agent.server.read_part(&job.id, 0, false, Some(asked)).await;
    let (_, list) = read(Asked::Listed(true)).await.expect("a list");
    let list: serde_json::Value = serde_json::from_slice(&list).expect("JSON");
    assert_eq!(
        list,
        serde_json::json!({"files": [
            {"path": "<b>", "bytes": 0}, {"path": "sub/model", "bytes": 8},
        ], "dropped": 1})
    );
    let (_, bytes) = read(Asked::Number(1)).await.expect("a file");
    assert_eq!(bytes, b"weights\n");
    assert_eq!(read(Asked::Number(2)).await, Err("not_found".to_owned()));
}
