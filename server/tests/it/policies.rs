//! Versions of pools, classes and quotas, quotas set as one table, and drafts that are planned and not kept.

use axum::http::StatusCode;
use serde_json::{Value, json};
use server::app::policy_diff;
use sqlx::PgPool;

use super::fixture::{Client, Server};
use super::fleet::{Fleet, add_node};

async fn versions(client: &Client, query: &str) -> Vec<Value> {
    let page = client.get(&format!("/policy-versions?{query}")).await;
    let page = page.expect(StatusCode::OK);
    page["items"].as_array().expect("items").clone()
}

/// Sets an object back to how it was after a change.
async fn restore(client: &Client, change: &Value, header: (&str, &str)) -> super::fixture::Reply {
    let path = format!(
        "/policy-versions/{}/restore?reason=too%20hasty",
        change["id"]
    );
    client
        .ask(axum::http::Method::POST, &path)
        .json(json!({}))
        .header(header.0, header.1)
        .send()
        .await
}

#[sqlx::test(migrations = "../migrations")]
async fn each_change_of_a_pool_is_kept_with_who_and_why_and_can_be_gone_back_to(owner: PgPool) {
    let server = Server::start(&owner).await;
    let operator = server.client("operator");
    let patch = async |version, body| {
        let path = "/pools/h100?reason=%E5%A4%9C%E9%97%B4";
        operator.patch(path, version, body).await
    };
    let closed = patch(1, json!({"state": "closed"})).await;
    closed.expect(StatusCode::OK);
    let spread = patch(
        2,
        json!({"strategy": "spread", "preemption": {"max_per_day": 3}}),
    )
    .await;
    spread.expect(StatusCode::OK);
    let kept = versions(&operator, "object=pool/h100").await;
    let told: Vec<_> = kept
        .iter()
        .map(|v| {
            (
                &v["version"],
                &v["actor"],
                &v["reason"],
                &v["after"]["state"],
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (
                &json!(3),
                &json!("operator"),
                &json!("夜间"),
                &json!("closed")
            ),
            (
                &json!(2),
                &json!("operator"),
                &json!("夜间"),
                &json!("closed")
            ),
            (&json!(1), &json!("admin"), &json!(""), &json!("open")),
        ]
    );
    assert_eq!(kept[1]["before"]["state"], "open");
    assert_eq!(
        kept[0]["changes"],
        json!([
            {"team": null, "key": "preemption.max_per_day", "from": null, "to": 3},
            {"team": null, "key": "strategy", "from": "pack", "to": "spread"},
        ])
    );
    assert_eq!(kept[2]["before"], Value::Null);
    let stale = restore(&operator, &kept[2], ("If-Match", "\"2\"")).await;
    stale.problem(StatusCode::PRECONDITION_FAILED);
    let done = restore(&operator, &kept[2], ("If-Match", "\"3\"")).await;
    assert_eq!(done.headers["etag"], "\"4\"");
    let done = done.expect(StatusCode::OK);
    assert_eq!(
        (&done["reason"], &done["restored_version"]),
        (&json!("too hasty"), &json!(1)),
        "who goes back says why, and the change itself says to what"
    );
    assert_eq!(kept[0]["restored_version"], Value::Null);
    let pool = operator.get("/pools/h100").await.expect(StatusCode::OK);
    assert_eq!(
        (
            &pool["state"],
            &pool["strategy"],
            &pool["preemption"]["max_per_day"],
            &pool["version"]
        ),
        (&json!("open"), &json!("pack"), &Value::Null, &json!(4))
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_class_that_ships_and_one_that_was_removed_can_be_gone_back_to(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let raised = admin.patch("/classes/batch-elastic", 1, json!({"priority": 7}));
    raised.await.expect(StatusCode::OK);
    let kept = versions(&admin, "object=class/batch-elastic").await;
    assert_eq!(
        kept.len(),
        2,
        "what it was before anybody changed it is kept, too"
    );
    restore(&admin, &kept[1], ("If-Match", "\"2\""))
        .await
        .expect(StatusCode::OK);
    let new = json!({"name": "spare", "priority": 1, "preemptible": true});
    admin
        .post("/classes", new)
        .await
        .expect(StatusCode::CREATED);
    admin
        .remove("/classes/spare", 1)
        .await
        .expect(StatusCode::NO_CONTENT);
    let kept = versions(&admin, "object=class/spare").await;
    assert_eq!(kept[0]["after"], Value::Null);
    let removal = restore(&admin, &kept[0], ("If-None-Match", "*")).await;
    removal.problem(StatusCode::CONFLICT);
    restore(&admin, &kept[1], ("If-None-Match", "*"))
        .await
        .expect(StatusCode::OK);
    let classes = admin.get("/classes").await.expect(StatusCode::OK);
    let priority = |name: &str| {
        let all = classes["items"].as_array().expect("items");
        let class = all.iter().find(|class| class["name"] == name);
        class.map(|class| class["priority"].clone())
    };
    assert_eq!(priority("batch-elastic"), Some(json!(-50)));
    assert_eq!(priority("spare"), Some(json!(1)));
}

#[sqlx::test(migrations = "../migrations")]
async fn going_back_is_checked_as_any_change_and_a_team_reads_of_its_own(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let put = |team: &str, version: &str, guaranteed: i64| {
        admin
            .put(
                &format!("/teams/{team}/quotas/h100"),
                json!({"guaranteed": guaranteed}),
            )
            .header(
                if version == "*" {
                    "If-None-Match"
                } else {
                    "If-Match"
                },
                version,
            )
    };
    put("vision", "\"1\"", 2)
        .send()
        .await
        .expect(StatusCode::OK);
    put("org", "*", 6).send().await.expect(StatusCode::CREATED);
    let kept = versions(&admin, "object=quota/vision/h100").await;
    let refused = restore(&admin, &kept[1], ("If-Match", "\"2\"")).await;
    let problem = refused.problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["field"], "policy_version");
    put("org", "\"1\"", 8).send().await.expect(StatusCode::OK);
    restore(&admin, &kept[1], ("If-Match", "\"2\""))
        .await
        .expect(StatusCode::OK);
    let objects =
        |found: Vec<Value>| -> Vec<Value> { found.iter().map(|v| v["object"].clone()).collect() };
    let states = versions(&admin, "object=quota/vision/h100").await;
    assert_eq!(
        (
            &states[0]["before"]["guaranteed"],
            &states[0]["after"]["guaranteed"]
        ),
        (&json!(2), &json!(4))
    );
    let own = objects(versions(&server.client("vision-viewer"), "noun=quota").await);
    assert!(
        own.iter().all(|object| object == "quota/vision/h100") && own.len() == 3,
        "{own:?}"
    );
    restore(
        &server.client("vision-owner"),
        &kept[1],
        ("If-Match", "\"3\""),
    )
    .await
    .problem(StatusCode::FORBIDDEN);
}

#[sqlx::test(migrations = "../migrations")]
async fn quotas_of_the_whole_tree_are_set_together_or_not_at_all(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let admin = server.client("admin");
    let row = |team: &str, version: Option<i64>, guaranteed: i64| {
        json!({"team": team, "pool": "h100", "version": version,
               "quota": {"guaranteed": guaranteed, "max_per_user": 2}})
    };
    let batch = |rows: Vec<Value>| admin.post("/quotas/batch?reason=year", json!({"quotas": rows}));
    let table = async || {
        let page = admin.get("/quotas").await.expect(StatusCode::OK);
        let items = page["items"].as_array().expect("items").clone();
        items
            .iter()
            .map(|q| (q["team"].clone(), q["guaranteed"].clone()))
            .collect::<Vec<_>>()
    };
    let before = table().await;
    // Together they fit their parent, whichever is written first; one version is old.
    let stale = vec![
        row("org", None, 9),
        row("vision", Some(1), 6),
        row("speech", Some(4), 3),
    ];
    let problem = batch(stale).await.problem(StatusCode::CONFLICT);
    assert!(
        problem["detail"]
            .as_str()
            .is_some_and(|d| d.contains("speech")),
        "{problem}"
    );
    let above = vec![
        row("vision", Some(1), 6),
        row("org", None, 9),
        row("speech", Some(1), 4),
    ];
    batch(above).await.problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(table().await, before, "nothing was changed");
    let good = vec![
        row("vision", Some(1), 6),
        row("speech", Some(1), 3),
        row("org", None, 9),
    ];
    let done = batch(good).await.expect(StatusCode::OK);
    assert_eq!(done["warnings"][0]["code"], "overpromised");
    let told = done["warnings"][0]["message"].as_str().expect("a sentence");
    assert!(told.contains("are 9 GPUs and it has 8"), "{told}");
    assert_eq!(
        table().await,
        [
            (json!("org"), json!(9)),
            (json!("speech"), json!(3)),
            (json!("vision"), json!(6))
        ]
    );
    let seen = server.client("speech-viewer").get("/quotas").await;
    assert_eq!(
        seen.expect(StatusCode::OK)["items"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_draft_is_planned_beside_the_present_policies_and_nothing_is_written(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let operator = server.client("operator");
    let member = server.client("vision-member");
    let spec = json!({"name": "long", "command": ["true"], "workers": 5,
                      "per_worker": {"gpus": 1}, "class": "training-high"});
    let job = member
        .post("/teams/vision/jobs", spec)
        .await
        .expect(StatusCode::CREATED);
    let before = versions(&operator, "").await;
    let draft = json!({
        "pools": [{"pool": "h100", "policy": {"non_preemptible_borrowing": true}}],
    });
    let diff = operator
        .post("/planning/policy-diff", draft)
        .await
        .expect(StatusCode::OK);
    assert_eq!(diff["jobs"].as_array().map(Vec::len), Some(1), "{diff}");
    let told = &diff["jobs"][0];
    assert_eq!(
        (
            &told["job"],
            &told["effect"],
            &told["before"]["outcome"],
            &told["after"]["outcome"]
        ),
        (
            &job["id"],
            &json!("starts"),
            &json!("waits"),
            &json!("starts")
        )
    );
    assert_eq!(told["before"]["reason"], "non_preemptible_over_guarantee");
    let vision = diff["shares"]
        .as_array()
        .expect("shares")
        .iter()
        .find(|s| s["team"] == "vision");
    let vision = vision.expect("its share is told");
    assert_eq!(
        (&vision["before"]["used"], &vision["after"]["used"]),
        (&json!(0), &json!(5))
    );
    let quota = |team: &str, guaranteed: i64| json!({"team": team, "pool": "h100", "quota": {"guaranteed": guaranteed}});
    let quotas = async |rows: Vec<Value>| {
        let draft = json!({"quotas": rows});
        let diff = operator.post("/planning/policy-diff", draft).await;
        diff.expect(StatusCode::OK)
    };
    let enough = quotas(vec![quota("vision", 5), quota("speech", 3)]).await;
    assert_eq!(
        (&enough["jobs"][0]["effect"], &enough["warnings"]),
        (&json!("starts"), &json!([]))
    );
    // More than there is shrinks, and is not enough for it: what it waits for are machines.
    let too_much = quotas(vec![quota("vision", 5)]).await;
    assert_eq!(
        (
            &too_much["jobs"][0]["effect"],
            &too_much["warnings"][0]["code"]
        ),
        (&json!("waits_otherwise"), &json!("overpromised"))
    );
    assert_eq!(versions(&operator, "").await, before, "nothing was changed");
    for (draft, field) in [
        (
            json!({"pools": [{"pool": "no", "policy": {}}]}),
            "pools[0].pool",
        ),
        (
            json!({"pools": [{"pool": "h100", "policy": {"time_slices": 0}}]}),
            "pools[0].policy.time_slices",
        ),
        (
            json!({"quotas": [{"team": "vision", "pool": "h100", "quota": {"guaranteed": 2, "limit": 1}}]}),
            "quotas[0].quota.guaranteed",
        ),
        (
            json!({"bookings": [{"pool": "h100", "name": "b", "team": "no", "gpus": 1, "from": "2030-01-01T00:00:00Z", "to": "2030-01-02T00:00:00Z"}]}),
            "bookings[0].team",
        ),
    ] {
        let problem = operator.post("/planning/policy-diff", draft.clone()).await;
        let problem = problem.problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["field"], field, "{draft}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_draft_tells_who_starts_once_victims_have_left_and_what_teams_hold_then(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    fleet.running(8).await;
    let spec = json!({ "name": "newcomer", "command": ["true"], "per_worker": { "gpus": 8 } });
    let newcomer = fleet.submit_as(&fleet.root(), "speech", spec).await;
    let newcomer = newcomer.expect("accepted").id.to_string();
    fleet.settled().await;
    let quota = |team: &str, guaranteed: i64| json!({"team": team, "pool": "h100", "quota": {"guaranteed": guaranteed}});
    let draft = json!({"quotas": [quota("vision", 0), quota("speech", 8)]});
    let draft = serde_json::from_value(draft).expect("a draft");
    let diff = policy_diff::diff(&fleet.app, &fleet.root(), draft).await;
    let diff = serde_json::to_value(diff.expect("planned")).expect("plain");
    let jobs = diff["jobs"].as_array().expect("jobs");
    let of = |newcomers: bool| {
        let found = jobs
            .iter()
            .find(|job| (job["job"] == newcomer) == newcomers);
        found.expect("it is told").clone()
    };
    let gains = of(true);
    assert_eq!(gains["effect"], "starts_after_victims", "{diff}");
    assert_eq!(gains["after"]["outcome"], "starts_after_victims");
    assert!(gains["after"]["expected_start"].is_string(), "{gains}");
    assert_eq!(of(false)["effect"], "stops", "{diff}");
    let shares = diff["shares"].as_array().expect("shares").iter();
    let share = |team: &str| {
        let mut shares = shares.clone();
        let share = shares.find(|share| share["team"] == team);
        share.expect("it is told").clone()
    };
    let (speech, vision) = (share("speech"), share("vision"));
    assert_eq!(
        (&speech["before"]["used"], &speech["after"]["used"]),
        (&json!(0), &json!(8))
    );
    assert_eq!(
        (&vision["before"]["used"], &vision["after"]["used"]),
        (&json!(8), &json!(0))
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_quota_cut_under_what_is_held_says_what_becomes_borrowed(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    fleet.running(6).await;
    let draft = json!({"quotas": [
        {"team": "vision", "pool": "h100", "quota": {"guaranteed": 1, "limit": 2}},
    ]});
    let draft = serde_json::from_value(draft).expect("a draft");
    let diff = policy_diff::diff(&fleet.app, &fleet.root(), draft).await;
    let diff = diff.expect("planned");
    // The team above, which has the sum of both, is told of as well. What is borrowed lies in the
    // idle guarantees of others first, and in what nobody was promised after that.
    let cut = diff.cuts.iter().find(|cut| cut.team == "vision");
    let cut = serde_json::to_value(cut.expect("it is told")).expect("plain");
    assert_eq!(
        cut,
        json!({"team": "vision", "pool": "h100", "held": 6, "guaranteed_before": 4,
               "guaranteed_after": 1, "becomes_borrowed": 3, "reclaimable": 4, "over_limit": 4})
    );
    assert_eq!(diff.jobs, [], "what runs is not touched by that alone");
}
