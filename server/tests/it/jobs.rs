//! Jobs through the router: what is refused, what is listed, how they are steered.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::fixture::{Client, Server};
use crate::fleet::add_node;

pub const JOBS: &str = "/teams/vision/jobs";

pub async fn fleet(owner: &PgPool) -> Server {
    let server = Server::start(owner).await;
    add_node(owner, "h100", "n1", 8).await;
    server
}

pub fn spec(gpus: Value) -> Value {
    json!({ "name": "j", "command": ["true"], "per_worker": { "gpus": gpus } })
}

pub async fn submit(client: &Client, team: &str, gpus: u32) -> Value {
    client
        .post(&format!("/teams/{team}/jobs"), spec(json!(gpus)))
        .await
        .expect(StatusCode::CREATED)
}

pub fn id(job: &Value) -> String {
    job["id"].as_str().expect("a job has an id").to_owned()
}

pub async fn count(owner: &PgPool) -> i64 {
    sqlx::query_scalar!(
        r#"SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM events) AS "n!""#
    )
    .fetch_one(owner)
    .await
    .expect("a number")
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_is_wrong_is_refused_with_field_value_and_remedy_and_nothing_is_written(
    owner: PgPool,
) {
    let server = fleet(&owner).await;
    let member = server.client("vision-member");
    let text =
        |key: &str, value: &str| format!(r#"{{"name": "j", "command": ["true"], {key}: {value}}}"#);
    let gpus = |value: &str| text("\"per_worker\"", &format!(r#"{{"gpus": {value}}}"#));
    let cases = [
        (gpus("-1"), 422, "per_worker.gpus", "invalid-value"),
        (gpus("0.0001"), 422, "per_worker.gpus", "invalid-value"),
        (gpus("1.5"), 422, "per_worker.gpus", "invalid-value"),
        (
            gpus("1000000000000"),
            422,
            "per_worker.gpus",
            "invalid-value",
        ),
        (gpus("NaN"), 400, "per_worker.gpus", "unreadable"),
        (gpus("16"), 422, "per_worker.gpus", "never-fits"),
        (text("\"workers\"", "0"), 422, "workers", "invalid-value"),
        (text("\"workers\"", "-3"), 422, "workers", "invalid-value"),
        (
            text("\"pools\"", r#"["nowhere"]"#),
            422,
            "pools",
            "invalid-value",
        ),
        (
            text("\"class\"", r#""nothing""#),
            422,
            "class",
            "invalid-value",
        ),
        (
            text("\"node\"", r#""nowhere""#),
            422,
            "node",
            "invalid-value",
        ),
        (
            text("\"after\"", r#"["0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f"]"#),
            422,
            "after",
            "invalid-value",
        ),
        (
            text("\"priority\"", "9999"),
            422,
            "priority",
            "invalid-value",
        ),
        (
            text("\"min_workers\"", "3").replace("\"command\"", "\"workers\": 2, \"command\""),
            422,
            "min_workers",
            "invalid-value",
        ),
        (
            text(
                "\"per_worker\"",
                r#"{"mig_profile": "1g.10gb", "sharing": ["mig"]}"#,
            ),
            422,
            "per_worker.sharing",
            "no-such-hardware",
        ),
        (
            text("\"per_worker\"", r#"{"gpus": 1, "gpu_model": "B200"}"#),
            422,
            "per_worker.gpu_model",
            "no-such-hardware",
        ),
        (
            text("\"runner\"", r#""container""#)
                .replace("\"command\"", "\"image\": \"a\", \"command\""),
            422,
            "runner",
            "no-such-hardware",
        ),
        (
            r#"{"name": "<b>", "command": ["true"]}"#.to_owned(),
            422,
            "name",
            "invalid-value",
        ),
        (
            r#"{"name": "a\u0007b", "command": ["true"]}"#.to_owned(),
            422,
            "name",
            "invalid-value",
        ),
        (
            r#"{"name": "j", "command": []}"#.to_owned(),
            422,
            "command",
            "invalid-value",
        ),
    ];
    let before = count(&owner).await;
    for (body, status, field, kind) in cases {
        let reply = member
            .ask(Method::POST, JOBS)
            .raw("application/json", body.clone())
            .send()
            .await;
        let status = StatusCode::from_u16(status).expect("a status");
        assert_eq!(reply.status, status, "{body}: {}", reply.text);
        let problem = reply.problem(status);
        assert_eq!(problem["field"], field, "{body}: {problem}");
        assert_eq!(
            problem["type"],
            format!("/problems/{kind}"),
            "{body}: {problem}"
        );
        for part in ["value", "remedy"] {
            assert!(
                problem[part].as_str().is_some_and(|t| !t.is_empty()),
                "{body}: {problem}"
            );
        }
    }
    let large = format!(
        r#"{{"name": "j", "command": ["{}"]}}"#,
        "x".repeat(10 * 1024 * 1024)
    );
    let reply = member
        .ask(Method::POST, JOBS)
        .raw("application/json", large)
        .send()
        .await;
    reply.problem(StatusCode::PAYLOAD_TOO_LARGE);
    let reply = member
        .ask(Method::POST, JOBS)
        .raw("application/json", &b"{\"name\": \"\xff\"}"[..])
        .send()
        .await;
    reply.problem(StatusCode::BAD_REQUEST);
    for path in ["/teams/nowhere/jobs", "/teams/speech/jobs"] {
        member
            .post(path, spec(json!(1)))
            .await
            .problem(StatusCode::NOT_FOUND);
    }
    member
        .post(&format!("{JOBS}?force=1"), spec(json!(1)))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(count(&owner).await, before);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_team_without_quota_and_one_with_teams_below_it_are_told_at_submission(owner: PgPool) {
    let server = fleet(&owner).await;
    let admin = server.client("admin");
    admin
        .post("/teams", json!({ "name": "lab", "parent": "org" }))
        .await
        .expect(StatusCode::CREATED);
    for (team, kind) in [("lab", "no-quota"), ("org", "invalid-value")] {
        let problem = admin
            .post(&format!("/teams/{team}/jobs"), spec(json!(1)))
            .await
            .problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["type"], format!("/problems/{kind}"), "{problem}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_has_the_shape_of_the_contract(owner: PgPool) {
    let server = fleet(&owner).await;
    let member = server.client("vision-member");
    let reply = member.post(JOBS, spec(json!(2))).await;
    assert_eq!(reply.headers["etag"], "\"1\"");
    let job = reply.expect(StatusCode::CREATED);
    let keys = [
        "id",
        "name",
        "team",
        "user",
        "spec",
        "state",
        "reason",
        "message",
        "attempt",
        "created_at",
        "queued_at",
        "started_at",
        "finished_at",
        "exit_code",
        "exit_signal",
        "placement",
        "gpu_seconds",
        "cost",
        "version",
    ];
    for key in keys {
        assert!(job.get(key).is_some(), "{key} is missing in {job}");
    }
    assert_eq!(
        (&job["team"], &job["user"], &job["state"]),
        (&json!("vision"), &json!("vision-member"), &json!("queued"))
    );
    assert_eq!(job["spec"]["per_worker"]["gpus"], 2);
    assert_eq!(
        member
            .get(&format!("/jobs/{}", id(&job)))
            .await
            .expect(StatusCode::OK),
        job
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_list_shows_what_the_asker_may_see_and_pages_through_all_of_it_once(owner: PgPool) {
    let server = fleet(&owner).await;
    let member = server.client("vision-member");
    let mut mine = Vec::new();
    for _ in 0..5 {
        mine.push(id(&submit(&member, "vision", 1).await));
    }
    let foreign = id(&submit(&server.client("speech-member"), "speech", 1).await);
    let mut seen = Vec::new();
    let mut path = "/jobs?limit=2".to_owned();
    loop {
        let page = member.get(&path).await.expect(StatusCode::OK);
        seen.extend(page["items"].as_array().expect("items").iter().map(id));
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/jobs?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    mine.reverse();
    assert_eq!(seen, mine);
    let listed = |path: &'static str, user: &'static str| {
        let client = server.client(user);
        async move {
            client.get(path).await.expect(StatusCode::OK)["items"]
                .as_array()
                .expect("items")
                .len()
        }
    };
    assert_eq!(listed("/jobs", "operator").await, 6);
    assert_eq!(listed("/jobs?team=org", "operator").await, 6);
    assert_eq!(listed("/jobs?team=speech", "operator").await, 1);
    assert_eq!(
        listed("/jobs?state=queued,running", "vision-member").await,
        5
    );
    assert_eq!(listed("/jobs?state=succeeded", "vision-member").await, 0);
    assert_eq!(listed("/jobs?user=vision-member", "vision-viewer").await, 5);
    assert_eq!(listed("/jobs?user=vision-owner", "vision-viewer").await, 0);
    for (path, field) in [
        ("/jobs?colour=red", "colour"),
        ("/jobs?state=asleep", "state"),
        ("/jobs?limit=501", "limit"),
        ("/jobs?cursor=notone", "cursor"),
    ] {
        assert_eq!(
            member
                .get(path)
                .await
                .problem(StatusCode::UNPROCESSABLE_ENTITY)["field"],
            field,
            "{path}"
        );
    }
    member
        .get("/jobs?team=speech")
        .await
        .problem(StatusCode::NOT_FOUND);
    for path in ["", "/events", "/attempts", "/explanation"] {
        member
            .get(&format!("/jobs/{foreign}{path}"))
            .await
            .problem(StatusCode::NOT_FOUND);
    }
    for verb in ["cancel", "suspend", "resume"] {
        member
            .post(&format!("/jobs/{foreign}/{verb}"), json!({}))
            .await
            .problem(StatusCode::NOT_FOUND);
    }
    member
        .get("/jobs/not-an-id")
        .await
        .problem(StatusCode::NOT_FOUND);
}

#[sqlx::test(migrations = "../migrations")]
async fn fifty_submissions_with_one_key_make_one_job(owner: PgPool) {
    let server = fleet(&owner).await;
    let member = server.client("vision-member");
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let ask = member
            .ask(Method::POST, JOBS)
            .header("Idempotency-Key", "k")
            .json(spec(json!(1)));
        requests.spawn(ask.send());
    }
    let replies = requests.join_all().await;
    let first = replies[0].text.clone();
    for reply in replies {
        assert_eq!((reply.status, &reply.text), (StatusCode::CREATED, &first));
    }
    let jobs = sqlx::query_scalar!(r#"SELECT count(*) AS "n!" FROM jobs"#)
        .fetch_one(&owner)
        .await
        .expect("a number");
    assert_eq!(jobs, 1);
    let other = member
        .ask(Method::POST, JOBS)
        .header("Idempotency-Key", "k")
        .json(spec(json!(2)))
        .send()
        .await;
    assert_eq!(
        other.problem(StatusCode::UNPROCESSABLE_ENTITY)["field"],
        "Idempotency-Key"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_waiting_job_is_suspended_resumed_changed_and_cancelled(owner: PgPool) {
    let server = fleet(&owner).await;
    let member = server.client("vision-member");
    server
        .client("admin")
        .post(
            "/classes",
            json!({ "name": "slow", "priority": -5, "preemptible": true }),
        )
        .await
        .expect(StatusCode::CREATED);
    let path = format!("/jobs/{}", id(&submit(&member, "vision", 1).await));
    let step = |verb: &'static str| {
        let (member, path) = (member.clone(), path.clone());
        async move { member.post(&format!("{path}/{verb}"), json!({})).await }
    };
    assert_eq!(
        step("suspend").await.expect(StatusCode::OK)["state"],
        "suspended"
    );
    let resumed = step("resume").await.expect(StatusCode::OK);
    assert_eq!(resumed["state"], "queued");
    step("resume").await.problem(StatusCode::CONFLICT);
    let version = resumed["version"].as_i64().expect("a version");
    let unconditional = member
        .ask(Method::PATCH, &path)
        .json(json!({ "class": "slow" }))
        .send()
        .await;
    unconditional.problem(StatusCode::PRECONDITION_REQUIRED);
    member
        .patch(&path, version - 1, json!({ "class": "slow" }))
        .await
        .problem(StatusCode::PRECONDITION_FAILED);
    member
        .patch(&path, version, json!({ "class": "none" }))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    member
        .patch(&path, version, json!({ "time_limit_seconds": 0 }))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    member
        .patch(&path, version, json!({ "workers": 2 }))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    let changed = member
        .patch(
            &path,
            version,
            json!({ "class": "slow", "time_limit_seconds": 60 }),
        )
        .await
        .expect(StatusCode::OK);
    assert_eq!(
        (
            &changed["spec"]["class"],
            &changed["spec"]["time_limit_seconds"]
        ),
        (&json!("slow"), &json!(60))
    );
    server
        .client("vision-viewer")
        .post(&format!("{path}/cancel"), json!({}))
        .await
        .problem(StatusCode::FORBIDDEN);
    assert_eq!(
        step("cancel").await.expect(StatusCode::OK)["state"],
        "cancelled"
    );
    assert_eq!(
        step("cancel").await.expect(StatusCode::OK)["state"],
        "cancelled"
    );
    step("suspend").await.problem(StatusCode::CONFLICT);
    let events = member
        .get(&format!("{path}/events"))
        .await
        .expect(StatusCode::OK);
    let steps: Vec<&str> = events["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter_map(|event| event["to"].as_str())
        .collect();
    // A change is a step of its own that leaves the state, with who made it and what of.
    assert_eq!(
        steps,
        ["queued", "suspended", "queued", "queued", "cancelled"]
    );
    let change = &events["items"][3];
    assert_eq!(
        (&change["reason"], &change["actor"], &change["data"]),
        (
            &json!("changed"),
            &json!("vision-member"),
            &json!({ "changes": {
                "class": { "from": "normal", "to": "slow" },
                "time_limit_seconds": { "from": null, "to": 60 },
            } })
        )
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_team_sees_its_jobs_whoever_submitted_them(owner: PgPool) {
    let server = fleet(&owner).await;
    let job = id(&submit(&server.client("admin"), "vision", 1).await);
    let path = format!("/jobs/{job}");
    let seen = server.client("vision-owner").get(&path).await;
    assert_eq!(seen.expect(StatusCode::OK)["user"], "admin");
    let foreign = server.client("speech-owner").get(&path).await;
    foreign.expect(StatusCode::NOT_FOUND);
}
