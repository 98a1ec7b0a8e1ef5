//! The planner asked through the router: dry runs, explanations, and the live world on paper.

use axum::http::StatusCode;
use serde_json::json;
use sqlx::PgPool;

use crate::jobs::{JOBS, count, fleet, id, spec, submit};

#[sqlx::test(migrations = "../migrations")]
async fn a_dry_run_says_what_would_happen_and_changes_nothing(owner: PgPool) {
    let server = fleet(&owner).await;
    server
        .client("finance")
        .post(
            "/prices",
            json!({ "pool": "h100", "mode": "exclusive", "per_gpu_hour": { "amount": "41.10", "currency": "CNY" } }),
        )
        .await
        .expect(StatusCode::CREATED);
    let member = server.client("vision-member");
    let before = count(&owner).await;
    let dry = "/teams/vision/jobs/dry-run";
    let starts = member
        .post(dry, spec(json!(2)))
        .await
        .expect(StatusCode::OK);
    assert_eq!(starts["verdict"], "starts");
    assert_eq!(starts["placement"][0]["node"], "n1");
    assert_eq!(
        starts["placement"][0]["devices"].as_array().map(Vec::len),
        Some(2)
    );
    assert_eq!(
        starts["cost_per_hour"],
        json!({ "amount": "82.2000", "currency": "CNY" })
    );
    assert_eq!(count(&owner).await, before);
    submit(&server.client("speech-member"), "speech", 4).await;
    crate::fleet::turn(&server.app).await;
    let waits = member
        .post(dry, spec(json!(8)))
        .await
        .expect(StatusCode::OK);
    assert_eq!(
        (&waits["verdict"], &waits["cost_per_hour"]["amount"]),
        (&json!("waits"), &json!("328.8000")),
        "the one pool has one price"
    );
    let before = count(&owner).await;
    let never = member
        .post(dry, spec(json!(16)))
        .await
        .expect(StatusCode::OK);
    assert_eq!(
        (&never["verdict"], &never["waiting"]["code"]),
        (&json!("refused"), &json!("never_fits"))
    );
    member
        .post(dry, spec(json!(-1)))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    member
        .post("/teams/speech/jobs/dry-run", spec(json!(1)))
        .await
        .problem(StatusCode::NOT_FOUND);
    assert_eq!(count(&owner).await, before);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_dry_run_of_an_array_tells_of_all_its_elements(owner: PgPool) {
    let server = fleet(&owner).await;
    let price = json!({
        "pool": "h100", "mode": "exclusive", "per_gpu_hour": { "amount": "41.10", "currency": "CNY" }
    });
    let made = server.client("finance").post("/prices", price).await;
    made.expect(StatusCode::CREATED);
    submit(&server.client("speech-member"), "speech", 2).await;
    crate::fleet::turn(&server.app).await;
    let member = server.client("vision-member");
    let before = count(&owner).await;
    let dry = async |gpus: i32, array: serde_json::Value| {
        let mut spec = spec(json!(gpus));
        spec["array"] = array;
        let answer = member.post("/teams/vision/jobs/dry-run", spec).await;
        answer.expect(StatusCode::OK)
    };
    let all = dry(1, json!({ "count": 100 })).await;
    assert_eq!(all["verdict"], "starts", "{all}");
    let array = &all["array"];
    assert_eq!(
        (
            &array["count"],
            &array["starts"],
            &array["held_by_at_most"],
            &array["not_planned"]
        ),
        (&json!(100), &json!(6), &json!(0), &json!(0)),
        "of 8 devices 2 are taken: {all}"
    );
    assert_eq!(
        array["nodes"],
        json!([{ "node": "n1", "elements": 6, "gpus": 6 }])
    );
    assert_eq!(
        array["cost_per_hour"],
        json!({ "amount": "246.6000", "currency": "CNY" })
    );
    assert_eq!(
        (
            &array["waits"][0]["elements"],
            &all["cost_per_hour"]["amount"]
        ),
        (&json!(94), &json!("41.1000")),
        "{all}"
    );
    let held = dry(2, json!({ "count": 5000, "at_most": 2 })).await;
    assert_eq!(
        (
            &held["array"]["starts"],
            &held["array"]["held_by_at_most"],
            &held["array"]["waits"]
        ),
        (&json!(2), &json!(4998), &json!([])),
        "{held}"
    );
    let large = dry(1, json!({ "count": 5000 })).await;
    assert_eq!(large["array"]["not_planned"], 4000, "{large}");
    let single = member
        .post("/teams/vision/jobs/dry-run", spec(json!(1)))
        .await
        .expect(StatusCode::OK);
    assert_eq!(single["array"], serde_json::Value::Null);
    let refused = dry(16, json!({ "count": 3 })).await;
    assert_eq!(
        (&refused["verdict"], &refused["array"]),
        (&json!("refused"), &serde_json::Value::Null)
    );
    assert_eq!(count(&owner).await, before, "nothing is changed");
}

#[sqlx::test(migrations = "../migrations")]
async fn an_explanation_says_why_a_job_waits_and_speaks_of_others_in_aggregate_only(owner: PgPool) {
    let server = fleet(&owner).await;
    let foreign = id(&submit(&server.client("speech-member"), "speech", 4).await);
    crate::fleet::turn(&server.app).await;
    let member = server.client("vision-member");
    let mut pinned = spec(json!(8));
    pinned["time_limit_seconds"] = json!(60);
    let job = member.post(JOBS, pinned).await.expect(StatusCode::CREATED);
    crate::fleet::turn(&server.app).await;
    let path = format!("/jobs/{}", id(&job));
    let reply = member.get(&format!("{path}/explanation")).await;
    assert!(
        !reply.text.contains("speech") && !reply.text.contains(&foreign),
        "{}",
        reply.text
    );
    let explanation = reply.expect(StatusCode::OK);
    assert_eq!(explanation["state"], "queued");
    assert_eq!(
        explanation["holders"],
        json!({ "capacity": 8, "own_team": 0, "other_teams": 4, "free": 4 })
    );
    assert!(
        explanation["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    let code = explanation["waiting"]["code"].as_str().expect("a code");
    let stored = member.get(&path).await.expect(StatusCode::OK);
    assert_eq!(stored["reason"], code);
    assert_eq!(stored["message"], explanation["message"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn the_live_world_is_a_scenario_file_that_the_engine_reads_back(owner: PgPool) {
    let server = fleet(&owner).await;
    let job = id(&submit(&server.client("vision-member"), "vision", 2).await);
    crate::fleet::turn(&server.app).await;
    submit(&server.client("speech-member"), "speech", 8).await;
    server
        .client("vision-owner")
        .get("/planning/scenario")
        .await
        .problem(StatusCode::FORBIDDEN);
    for user in ["admin", "operator", "auditor"] {
        let reply = server.client(user).get("/planning/scenario").await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
        let world = engine::scenario::parse(&reply.text).expect("a scenario file");
        assert_eq!(world.workload(&job).map(|w| w.placed.len()), Some(1));
        assert_eq!((world.nodes.len(), world.workloads.len()), (1, 2));
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_dry_run_says_when_a_job_that_waits_would_start_and_where(owner: PgPool) {
    let server = fleet(&owner).await;
    let member = server.client("vision-member");
    let mut first = spec(json!(8));
    first["time_limit_seconds"] = json!(3600);
    member.post(JOBS, first).await.expect(StatusCode::CREATED);
    crate::fleet::turn(&server.app).await;
    let dry = member
        .post("/teams/vision/jobs/dry-run", spec(json!(2)))
        .await;
    let dry = dry.expect(StatusCode::OK);
    assert_eq!(dry["verdict"], "waits", "{dry}");
    assert_eq!(dry["expected_start"], dry["waiting"]["expected_start"]);
    assert!(dry["expected_start"].is_string(), "{dry}");
    assert_eq!(dry["expected_nodes"], json!(["n1"]), "{dry}");
    assert_eq!(dry["slices"], json!([]));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_dry_run_says_whom_a_job_would_displace_without_saying_who(owner: PgPool) {
    let server = fleet(&owner).await;
    for _ in 0..2 {
        submit(&server.client("speech-member"), "speech", 4).await;
    }
    crate::fleet::turn(&server.app).await;
    let member = server.client("vision-member");
    let reply = member
        .post("/teams/vision/jobs/dry-run", spec(json!(4)))
        .await;
    assert!(!reply.text.contains("speech"), "{}", reply.text);
    let dry = reply.expect(StatusCode::OK);
    assert_eq!(dry["verdict"], "waits_for_victims", "{dry}");
    assert_eq!(dry["displaces"]["jobs"], 1);
    assert_eq!(
        (&dry["displaces"]["own_jobs"], &dry["displaces"]["gpus"]),
        (&json!(0), &json!(4))
    );
    assert_eq!(dry["placement"][0]["node"], "n1");
    assert!(dry["expected_start"].is_string(), "{dry}");
    assert_eq!(dry["waiting"]["expected_once"], "victims_left");
}

#[sqlx::test(migrations = "../migrations")]
async fn elements_that_start_in_what_one_victim_leaves_are_all_counted(owner: PgPool) {
    let server = fleet(&owner).await;
    submit(&server.client("speech-member"), "speech", 8).await;
    crate::fleet::turn(&server.app).await;
    let mut several = spec(json!(1));
    several["array"] = json!({ "count": 8 });
    let member = server.client("vision-member");
    let dry = member.post("/teams/vision/jobs/dry-run", several).await;
    let dry = dry.expect(StatusCode::OK);
    // Those in the team's guarantee; the rest borrows, and what was stopped comes before it.
    assert_eq!(dry["array"]["waits_for_victims"], 4, "{dry}");
    assert_eq!(
        dry["message"],
        "0 of 8 elements would start at once, and 4 when 1 running job has made room"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_dry_run_says_which_part_of_a_device_a_fraction_would_get(owner: PgPool) {
    let server = fleet(&owner).await;
    let fraction = json!({ "name": "f", "command": ["true"],
        "per_worker": { "gpus": 0.5, "sharing": ["time_slice"], "gpu_memory_mib": 2048 } });
    let dry = server
        .client("vision-member")
        .post("/teams/vision/jobs/dry-run", fraction)
        .await
        .expect(StatusCode::OK);
    let device = &dry["placement"][0]["devices"][0];
    assert_eq!(
        (&device["mode"], &device["gpus"]),
        (&json!("time_slice"), &json!(0.5))
    );
    assert!(device["memory_mib"].as_i64() >= Some(2048), "{dry}");
    assert_eq!(
        (&device["mig"], &device["start"]),
        (&json!(null), &json!(null))
    );
}
