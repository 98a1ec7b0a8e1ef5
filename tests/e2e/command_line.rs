//! The main job by the command line: every command that the contract names, against a product that runs.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rig::{Cluster, Options};
use serde_json::Value;

use crate::support::{START_BOUND, Scene, finish, one_machine, start};

fn allot(cluster: &Cluster, token: &str, words: &[&str]) -> Output {
    command(cluster, token, words).output().unwrap()
}

fn command(cluster: &Cluster, token: &str, words: &[&str]) -> Command {
    let mut command = Command::new(cluster.paths().binary("allot").unwrap());
    command
        .args(words)
        .env("ALLOTMENT_URL", cluster.url())
        .env("ALLOTMENT_TOKEN", token)
        .env("HOME", "/nonexistent")
        .current_dir(rig::paths::checkout_of_build());
    command
}

fn json(output: &Output) -> Value {
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn every_command_does_its_part_of_the_main_job() {
    let cluster = start(Options::for_test("cli", one_machine()).unwrap()).await;
    let member = cluster.sign_in("vision-member").await.unwrap();
    let run = |words: &[&str]| allot(&cluster, member.token(), words);
    assert!(
        Path::new("/nonexistent").metadata().is_err(),
        "no log-in is kept there"
    );

    let job = json(&run(&[
        "submit",
        "--team",
        "vision",
        "--wait",
        "--json",
        "examples/digits/job.yaml",
    ]));
    assert_eq!(job["state"], "succeeded", "{job}");
    let id = job["id"].as_str().expect("an id").to_owned();
    let failed = run(&[
        "submit", "--team", "vision", "--pool", "l40s", "--gpus", "1", "--wait", "--", "sh", "-c",
        "exit 3",
    ]);
    assert_eq!(
        failed.status.code(),
        Some(1),
        "a failed job is a failed wait"
    );

    let log = run(&["logs", &id]);
    assert!(String::from_utf8_lossy(&log.stdout).contains("accuracy"));
    assert_eq!(json(&run(&["job", &id, "--json"]))["id"], *id);
    let jobs = json(&run(&["jobs", "--json"]));
    assert!(jobs.to_string().contains(&id), "{jobs}");
    for words in [
        &["nodes", "--json"][..],
        &["teams", "--json"],
        &["quota", "vision", "--json"],
        &["usage", "vision", "--json"],
    ] {
        json(&run(words));
    }

    let waits = json(&run(&[
        "submit", "--team", "vision", "--pool", "l40s", "--gpus", "4", "--json", "--", "sleep",
        "600",
    ]));
    let running = waits["id"].as_str().expect("an id").to_owned();
    // The devices of the jobs before may not be free yet.
    rig::wait::until_true("it runs", START_BOUND, || {
        json(&run(&["job", &running, "--json"]))["state"] == "running"
    })
    .await
    .unwrap();
    let behind = json(&run(&[
        "submit", "--team", "vision", "--pool", "l40s", "--gpus", "4", "--json", "--", "sleep",
        "600",
    ]));
    let behind = behind["id"].as_str().expect("an id").to_owned();
    let planned = run(&["plan", "--live"]);
    assert!(
        !planned.status.success(),
        "the live world is not a member's to see"
    );
    let planned = json(&allot(
        &cluster,
        cluster.admin().token(),
        &["plan", "--live"],
    ));
    let waiting = planned["waiting"].as_array().expect("what waits");
    assert!(
        waiting.iter().any(|w| w["workload"] == *behind),
        "{planned}"
    );
    let why = json(&run(&["explain", &behind, "--json"]));
    assert!(why.is_object(), "{why}");
    let text = |words: &[&str]| String::from_utf8_lossy(&run(words).stdout).into_owned();
    let queue = json(&run(&["queue", "--pool", "l40s", "--json"]));
    assert_eq!(queue["items"][0]["items"][0]["job"], *behind, "{queue}");
    assert!(text(&["queue", "--pool", "l40s"]).contains(&behind));
    let history = text(&["explain", &behind, "--history"]);
    assert!(history.contains("in all"), "{history}");
    let like = text(&["submit", "--like", &behind, "--dry-run"]);
    assert!(!like.trim().is_empty(), "{like}");
    assert!(
        run(&["change", &behind, "--time-limit", "2h"])
            .status
            .success()
    );
    let changed = json(&run(&["job", &behind, "--json"]));
    assert_eq!(changed["spec"]["time_limit_seconds"], 7200, "{changed}");
    assert_eq!(run(&["change", &behind]).status.code(), Some(2));
    assert!(run(&["cancel", &behind]).status.success());
    let writes = json(&run(&[
        "submit", "--team", "vision", "--pool", "l40s", "--gpus", "4", "--json", "--", "echo",
        "at last",
    ]));
    let writes = writes["id"].as_str().expect("an id").to_owned();
    let followed = command(&cluster, member.token(), &["logs", "-f", &writes])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(run(&["cancel", &running]).status.success());
    let followed = followed.wait_with_output().unwrap();
    assert!(followed.status.success(), "{followed:?}");
    assert_eq!(String::from_utf8_lossy(&followed.stdout), "at last\n");
    for id in [&behind, &running] {
        cluster
            .job_in(&member, id, &["cancelled"], crate::support::END_BOUND)
            .await
            .unwrap();
    }
    assert_eq!(run(&["submit", "--no-such-word"]).status.code(), Some(2));
    assert_eq!(
        run(&["job", "00000000-0000-7000-8000-000000000000"])
            .status
            .code(),
        Some(1)
    );
    finish(cluster, None).await;
}

#[tokio::test]
async fn a_log_in_is_kept_for_the_commands_that_follow() {
    let cluster = start(Options::for_test("cli-login", one_machine()).unwrap()).await;
    let home = cluster.paths().state.join("home");
    std::fs::create_dir(&home).unwrap();
    let password = &cluster.secrets.user("vision-member").unwrap().password;
    let run = |words: &[&str], input: &str| {
        let mut child = Command::new(cluster.paths().binary("allot").unwrap())
            .args(words)
            .env_clear()
            .env("HOME", &home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that does not ask closes its input unread.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    };
    let url = cluster.url();
    let log_in = ["login", "--url", &url, "--user", "vision-member"];
    let before = run(&["quota", "vision"], "");
    assert_eq!(before.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&before.stderr).contains("allot login"));
    let wrong = run(&log_in, "not-the-password\n");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(!home.join(".config").exists(), "nothing is kept of it");

    let kept = run(&log_in, &format!("{password}\n"));
    assert!(kept.status.success(), "{kept:?}");
    let file = home.join(".config/allotment/login.json");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it is its owner's alone");
    assert!(!std::fs::read_to_string(&file).unwrap().contains(password));
    let quota = json(&run(&["quota", "vision", "--json"], ""));
    let rows = quota["items"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["pool"] == "l40s");
    assert!(
        row.is_some_and(|row| row["guaranteed"].as_f64() > Some(0.0)),
        "{quota}"
    );
    let teams = json(&run(&["teams", "--json"], ""));
    assert!(teams.to_string().contains("vision"), "{teams}");
    let nodes = json(&run(&["nodes", "--json"], ""));
    assert_eq!(nodes["items"][0]["name"], "l40s-1", "{nodes}");
    let usage = json(&run(&["usage", "vision", "--json"], ""));
    assert!(usage["total"].is_object(), "{usage}");

    let scenario = rig::paths::checkout_of_build().join("examples/scenario.yaml");
    let plan = run(&["plan", &scenario.display().to_string()], "");
    let plan = json(&plan);
    assert!(plan["starts"].is_array(), "{plan}");
    finish(cluster, None).await;
}

#[tokio::test]
async fn bookings_windows_and_earlier_policies_are_set_by_command() {
    let cluster = start(Options::for_test("cli-policies", one_machine()).unwrap()).await;
    let run = |words: &[&str]| allot(&cluster, cluster.admin().token(), words);
    let booked = json(&run(&[
        "bookings",
        "create",
        "l40s",
        "demo",
        "--team",
        "vision",
        "--gpus",
        "4",
        "--from",
        "2126-01-07T09:00:00Z",
        "--to",
        "2126-01-07T17:00:00Z",
        "--json",
    ]));
    assert_eq!(booked["gpus"], 4, "{booked}");
    let changed = json(&run(&[
        "bookings", "change", "l40s", "demo", "--gpus", "1.5", "--json",
    ]));
    assert_eq!(
        (&changed["gpus"], &changed["version"]),
        (&1.5.into(), &2.into())
    );
    let listed = run(&["bookings", "list", "l40s"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("demo"));
    let gone = json(&run(&["bookings", "delete", "l40s", "demo", "--json"]));
    assert_eq!(gone["removed"], "demo");

    let history = json(&run(&["policy", "history", "booking/l40s/demo", "--json"]));
    let first = history["items"][2]["id"].to_string();
    let restored = json(&run(&[
        "policy",
        "restore",
        &first,
        "--reason",
        "it is on again",
        "--json",
    ]));
    assert_eq!(restored["after"]["gpus"], 4, "{restored}");
    assert_eq!(restored["reason"], "it is on again");

    let folder = std::env::temp_dir().join(format!("allotment-windows-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let nights = write(
        "nights.yaml",
        "days: [mon]\nfrom: \"20:00\"\nto: \"08:00\"\nquotas:\n  - {team: vision, quota: {guaranteed: 1}}\n",
    );
    let made = json(&run(&[
        "windows", "create", "l40s", "nights", &nights, "--json",
    ]));
    assert_eq!(made["days"], serde_json::json!(["mon"]), "{made}");
    let later = write("later.yaml", "from: \"22:00\"\n");
    let changed = json(&run(&[
        "windows", "change", "l40s", "nights", &later, "--json",
    ]));
    assert_eq!(
        (&changed["from"], &changed["to"]),
        (&"22:00".into(), &"08:00".into())
    );
    let listed = run(&["windows", "list", "l40s"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("nights"));
    assert!(
        run(&["windows", "delete", "l40s", "nights"])
            .status
            .success()
    );
    assert_eq!(
        run(&["windows", "delete", "l40s", "nights"]).status.code(),
        Some(1)
    );
    std::fs::remove_dir_all(&folder).unwrap();
    finish(cluster, None).await;
}

#[tokio::test]
async fn pools_classes_and_quotas_are_tried_and_set_by_command() {
    let cluster = start(Options::for_test("cli-set", one_machine()).unwrap()).await;
    let run = |words: &[&str]| allot(&cluster, cluster.admin().token(), words);
    let text = |words: &[&str]| String::from_utf8_lossy(&run(words).stdout).into_owned();

    let words = ["pools", "change", "l40s", "preemption.reclaim=never"];
    let tried = json(&run(&[&words[..], &["--dry-run", "--json"]].concat()));
    assert_eq!(
        tried["changes"],
        serde_json::json!([{"pool": "l40s", "key": "preemption.reclaim", "from": "any", "to": "never"}])
    );
    assert!(tried["effect"]["jobs"].is_array(), "{tried}");
    assert_eq!(
        json(&run(&["pools", "show", "l40s", "--json"]))["preemption"]["reclaim"],
        "any",
        "a try saves nothing"
    );
    let changed = json(&run(&[&words[..], &["--reason", "calm", "--json"]].concat()));
    assert_eq!(changed["preemption"]["reclaim"], "never", "{changed}");
    assert!(text(&["pools", "list"]).contains("l40s"));
    let wrong = run(&["pools", "change", "l40s", "backfill=loud"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("backfill"));

    let made = json(&run(&[
        "classes",
        "create",
        "urgent",
        "--priority",
        "-5",
        "--preemptible",
        "false",
        "--json",
    ]));
    assert_eq!(made["priority"], -5, "{made}");
    let words = ["classes", "change", "urgent", "--priority", "200"];
    let tried = json(&run(&[&words[..], &["--dry-run", "--json"]].concat()));
    assert_eq!(tried["changes"][0]["from"], -5, "{tried}");
    assert!(run(&words).status.success());
    let shown = json(&run(&["classes", "show", "urgent", "--json"]));
    assert_eq!(
        (&shown["priority"], &shown["preemptible"]),
        (&200.into(), &false.into())
    );
    assert_eq!(
        run(&["classes", "change", "urgent"]).status.code(),
        Some(2),
        "nothing is said"
    );
    assert!(run(&["classes", "delete", "urgent"]).status.success());

    let set = json(&run(&[
        "quotas", "set", "vision", "l40s", "--limit", "2", "--json",
    ]));
    assert_eq!(
        (&set["guaranteed"], &set["limit"], &set["version"]),
        (&1.into(), &2.into(), &2.into()),
        "what is not said stays"
    );
    let file = std::env::temp_dir().join(format!("allotment-quotas-{}.yaml", std::process::id()));
    let quotas = |speech: &str| {
        let text = format!(
            "quotas:\n  - {{team: vision, pool: l40s, quota: {{guaranteed: 0}}}}\n  - {{team: speech, pool: l40s, quota: {speech}}}\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    let path = file.to_str().unwrap();
    quotas("{guaranteed: 4, limit: 3}");
    let refused = run(&["quotas", "apply", path]);
    assert_eq!(refused.status.code(), Some(1));
    let vision = || {
        json(&run(&[
            "quotas", "list", "--team", "vision", "--pool", "l40s", "--json",
        ]))
    };
    assert_eq!(vision()["items"][0]["guaranteed"], 1, "all or none");
    quotas("{guaranteed: 1.5}");
    let tried = json(&run(&["quotas", "apply", path, "--dry-run", "--json"]));
    let keys: Vec<&Value> = tried["changes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| &row["key"])
        .collect();
    assert_eq!(keys, ["guaranteed", "limit", "guaranteed"], "{tried}");
    assert_eq!(vision()["items"][0]["guaranteed"], 1, "a try saves nothing");
    let applied = text(&["quotas", "apply", path, "--reason", "the new quarter"]);
    assert!(applied.contains("1.5"), "{applied}");
    let after = vision();
    assert_eq!(
        (
            &after["items"][0]["guaranteed"],
            &after["items"][0]["limit"]
        ),
        (&0.into(), &Value::Null)
    );
    std::fs::remove_file(&file).unwrap();

    let history = text(&["policy", "history", "pool/l40s"]);
    for words in ["preemption.reclaim", "any", "never", "calm"] {
        assert!(history.contains(words), "{words} in {history}");
    }
    finish(cluster, None).await;
}

#[tokio::test]
async fn a_node_is_drained_by_a_deadline_that_outlives_the_server() {
    let mut scene = Scene::on_one_machine("drain", "vision").await;
    let id = scene.run("drained", "l40s").await;
    let token = scene.cluster.admin().token().to_owned();
    let node = "l40s-1";
    let words = [
        "drain",
        node,
        "--deadline",
        "5s",
        "--reason",
        "a new fan",
        "--json",
    ];
    let drained = json(&allot(&scene.cluster, &token, &words));
    assert_eq!(drained["intent"], "draining");
    assert!(drained["drain_deadline_at"].is_string(), "{drained}");
    let listed = allot(&scene.cluster, &token, &["nodes"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(
        listed.contains("l40s-1: the deadline of its drain is"),
        "{listed}"
    );
    scene.cluster.restart_server(0).await.unwrap();
    scene
        .cluster
        .job_in(&scene.member, &id, &["queued"], START_BOUND)
        .await
        .unwrap();
    let job = scene.job(&id).await;
    let told = job["message"].as_str().expect("words");
    assert_eq!(job["attempt"], 1, "{job}");
    let attempts = scene.member.list(&format!("/jobs/{id}/attempts")).await;
    let attempts = attempts.unwrap();
    assert_eq!(attempts[0]["preemption_rule"], "drain_deadline", "{told}");
    json(&allot(
        &scene.cluster,
        &token,
        &["uncordon", node, "--json"],
    ));
    scene.runs(&id).await;
    let job = scene.let_succeed(&id).await;
    assert_eq!(job["attempt"], 2, "{job}");
    scene.finish().await;
}
