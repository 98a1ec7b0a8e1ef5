//! Teams, members, quotas, pools, classes, prices, and what the audit log says of them.

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::fixture::Server;

fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| {
            item["name"]
                .as_str()
                .or(item["user"].as_str())
                .or(item["pool"].as_str())
                .expect("a name")
        })
        .collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_team_sees_itself_and_the_names_above_and_nothing_beside(owner: PgPool) {
    let server = Server::start(&owner).await;
    let member = server.client("vision-member");
    let teams = member.get("/teams").await.expect(StatusCode::OK);
    assert_eq!(names(&teams), ["org", "vision"]);
    assert_eq!(teams["items"][0]["role"], Value::Null);
    assert_eq!(teams["items"][1]["role"], "member");
    let users = member.get("/users").await.expect(StatusCode::OK);
    assert_eq!(
        names(&users),
        ["vision-member", "vision-owner", "vision-viewer"]
    );
    for path in [
        "/teams/speech",
        "/teams/speech/quotas",
        "/teams/speech/members",
        "/users/speech-member",
        "/teams/org/members",
    ] {
        member.get(path).await.problem(StatusCode::NOT_FOUND);
    }
    // Of a team above its name and place are known; what else is asked about it is told by that name.
    for path in [
        "/teams/org/members",
        "/teams/org/quotas",
        "/teams/org/usage",
    ] {
        let problem = member.get(path).await.problem(StatusCode::NOT_FOUND);
        assert_eq!(
            (&problem["field"], &problem["value"]),
            (&json!("team"), &json!("org")),
            "{path}"
        );
    }
    let org = server.client("org-viewer").get("/teams").await;
    assert_eq!(
        names(&org.expect(StatusCode::OK)),
        ["org", "speech", "vision"]
    );
    let all = server.client("auditor").get("/teams").await;
    assert_eq!(
        names(&all.expect(StatusCode::OK)),
        ["org", "speech", "vision"]
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn lists_are_paged_without_gap_or_repeat(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let whole = admin.get("/users").await.expect(StatusCode::OK);
    assert_eq!(whole["next_cursor"], Value::Null);
    let mut seen = Vec::new();
    let mut path = "/users?limit=4".to_owned();
    loop {
        let page = admin.get(&path).await.expect(StatusCode::OK);
        seen.extend(names(&page).into_iter().map(str::to_owned));
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/users?limit=4&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, names(&whole));
    let cursor = admin.get("/users?limit=1").await.expect(StatusCode::OK)["next_cursor"]
        .as_str()
        .expect("there is more")
        .to_owned();
    admin
        .get(&format!("/teams?cursor={cursor}"))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
}

#[sqlx::test(migrations = "../migrations")]
async fn owners_add_and_remove_members_and_roles_are_inherited(owner: PgPool) {
    let server = Server::start(&owner).await;
    let vision = server.client("vision-owner");
    let path = "/teams/vision/members";
    server
        .client("org-owner")
        .post(path, json!({"user": "speech-member", "role": "viewer"}))
        .await
        .expect(StatusCode::CREATED);
    let newcomer = server.client("speech-member");
    newcomer.get("/teams/vision").await.expect(StatusCode::OK);
    let raised = vision
        .post(path, json!({"user": "speech-member", "role": "owner"}))
        .await
        .expect(StatusCode::OK);
    assert_eq!(raised["role"], "owner");
    newcomer
        .delete("/teams/vision/members/vision-viewer")
        .await
        .expect(StatusCode::NO_CONTENT);
    server
        .client("vision-viewer")
        .get("/teams/vision")
        .await
        .problem(StatusCode::NOT_FOUND);
    server
        .client("org-owner")
        .delete("/teams/vision/members/speech-member")
        .await
        .expect(StatusCode::NO_CONTENT);
    newcomer
        .get("/teams/vision")
        .await
        .problem(StatusCode::NOT_FOUND);
    vision
        .delete("/teams/vision/members/speech-member")
        .await
        .problem(StatusCode::NOT_FOUND);
    vision
        .post(path, json!({"user": "nobody", "role": "viewer"}))
        .await
        .problem(StatusCode::NOT_FOUND);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_person_is_added_once_however_many_add_it_at_once(owner: PgPool) {
    let lead = Server::start(&owner).await.client("org-owner");
    let body = json!({"user": "speech-member", "role": "viewer"});
    let asked = (0..10).map(|_| lead.post("/teams/vision/members", body.clone()));
    let replies = futures_util::future::join_all(asked).await;
    let count = |status| replies.iter().filter(|r| r.status == status).count();
    assert_eq!((count(StatusCode::CREATED), count(StatusCode::OK)), (1, 9));
}

#[sqlx::test(migrations = "../migrations")]
async fn the_last_owner_of_a_team_stays_until_there_is_another(owner: PgPool) {
    let server = Server::start(&owner).await;
    let last = server.client("vision-owner");
    let members = "/teams/vision/members";
    let own = "/teams/vision/members/vision-owner";
    let left = last.delete(own).await.problem(StatusCode::CONFLICT);
    assert_eq!(left["type"], "/problems/last-owner");
    let step_down = json!({"user": "vision-owner", "role": "member"});
    let stepped = last.post(members, step_down.clone()).await;
    assert_eq!(
        stepped.problem(StatusCode::CONFLICT)["type"],
        "/problems/last-owner"
    );
    let heir = json!({"user": "vision-member", "role": "owner"});
    last.post(members, heir).await.expect(StatusCode::OK);
    last.post(members, step_down).await.expect(StatusCode::OK);
    // Who may make another owner afterwards takes out whom it likes.
    server
        .client("org-owner")
        .delete("/teams/vision/members/vision-member")
        .await
        .expect(StatusCode::NO_CONTENT);
}

#[sqlx::test(migrations = "../migrations")]
async fn an_owner_cannot_find_out_who_is_in_other_teams_by_adding_names(owner: PgPool) {
    let server = Server::start(&owner).await;
    let path = "/teams/vision/members";
    let vision = server.client("vision-owner");
    let ask = async |name: &str| {
        let reply = vision
            .post(path, json!({"user": name, "role": "viewer"}))
            .await;
        let mut problem = reply.problem(StatusCode::NOT_FOUND);
        problem["request_id"] = json!(null);
        problem.to_string().replace(name, "NAME")
    };
    let nobody = ask("nobody").await;
    for hidden in ["speech-member", "org-owner", "operator"] {
        assert_eq!(ask(hidden).await, nobody, "{hidden}");
    }
    // Who belongs to no team yet is no other team's: an owner takes a newcomer in by its name.
    let admin = server.client("admin");
    admin
        .post("/users", json!({"name": "ada"}))
        .await
        .expect(StatusCode::CREATED);
    let add = json!({"user": "ada", "role": "member"});
    server
        .client("speech-owner")
        .post("/teams/speech/members", add.clone())
        .await
        .expect(StatusCode::CREATED);
    assert_eq!(ask("ada").await, nobody);
    admin.post(path, add).await.expect(StatusCode::CREATED);
    let raised = vision
        .post(path, json!({"user": "ada", "role": "owner"}))
        .await;
    raised.expect(StatusCode::OK);
}

#[sqlx::test(migrations = "../migrations")]
async fn promises_never_exceed_what_is_above_even_when_made_at_once(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let put = |team: &str, guaranteed: i64| {
        admin.put(
            &format!("/teams/{team}/quotas/h100"),
            json!({"guaranteed": guaranteed}),
        )
    };
    put("org", 7)
        .header("If-None-Match", "*")
        .send()
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    put("org", 10)
        .header("If-None-Match", "*")
        .send()
        .await
        .expect(StatusCode::CREATED);
    // Each alone would fit under 10, both do not.
    let (a, b) = tokio::join!(
        put("vision", 6).header("If-Match", "\"1\"").send(),
        put("speech", 6).header("If-Match", "\"1\"").send(),
    );
    let mut statuses = [a.status.as_u16(), b.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 422], "{} {}", a.text, b.text);
    let quota = admin.get("/teams/org/quotas").await.expect(StatusCode::OK);
    assert_eq!(
        quota["items"][0],
        json!({"team": "org", "pool": "h100", "guaranteed": 10, "limit": null, "lend_limit": null,
               "weight": 1, "max_per_user": null, "version": 1})
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_team_cannot_move_below_itself_and_takes_its_promises_along(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    admin
        .patch("/teams/org", 1, json!({"parent": "vision"}))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    admin
        .post("/teams", json!({"name": "lab", "parent": "org"}))
        .await
        .expect(StatusCode::CREATED);
    admin
        .put("/teams/lab/quotas/h100", json!({"guaranteed": 3}))
        .header("If-None-Match", "*")
        .send()
        .await
        .expect(StatusCode::CREATED);
    admin
        .patch("/teams/vision", 1, json!({"parent": "lab"}))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    let moved = admin
        .patch("/teams/vision", 1, json!({"parent": null}))
        .await
        .expect(StatusCode::OK);
    assert_eq!(
        (&moved["parent"], &moved["version"]),
        (&Value::Null, &json!(2))
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_pool_is_patched_key_by_key_and_says_what_no_node_can_drive(owner: PgPool) {
    let server = Server::start(&owner).await;
    let operator = server.client("operator");
    let pool = operator.get("/pools/h100").await.expect(StatusCode::OK);
    assert_eq!(
        pool["unavailable_sharing"],
        json!(["exclusive", "time_slice"])
    );
    assert_eq!(pool["preemption"]["reclaim"], "any");
    let patched = operator
        .patch(
            "/pools/h100",
            1,
            json!({"preemption": {"within_team": "lower_priority"}, "ageing_per_hour": 0.5}),
        )
        .await
        .expect(StatusCode::OK);
    assert_eq!(patched["preemption"]["within_team"], "lower_priority");
    assert_eq!(patched["preemption"]["reclaim"], "any");
    assert_eq!(patched["sharing"], json!(["exclusive", "time_slice"]));
    assert_eq!(
        (&patched["ageing_per_hour"], &patched["version"]),
        (&json!(0.5), &json!(2))
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn classes_ship_and_one_that_work_names_stays(owner: PgPool) {
    let server = Server::start(&owner).await;
    let operator = server.client("operator");
    let classes = operator.get("/classes").await.expect(StatusCode::OK);
    assert_eq!(
        names(&classes),
        [
            "batch-elastic",
            "inference-preemptible",
            "normal",
            "training-high"
        ]
    );
    operator
        .remove("/classes/normal", 1)
        .await
        .problem(StatusCode::CONFLICT);
    operator
        .post(
            "/classes",
            json!({"name": "urgent", "priority": 500, "preemptible": false}),
        )
        .await
        .expect(StatusCode::CREATED);
    operator
        .post(
            "/classes",
            json!({"name": "urgent", "priority": 1, "preemptible": false}),
        )
        .await
        .problem(StatusCode::CONFLICT);
    let changed = operator
        .patch("/classes/urgent", 1, json!({"priority": 400}))
        .await
        .expect(StatusCode::OK);
    assert_eq!(
        (&changed["priority"], &changed["preemptible"]),
        (&json!(400), &json!(false))
    );
    operator
        .remove("/classes/urgent", 1)
        .await
        .problem(StatusCode::PRECONDITION_FAILED);
    operator
        .remove("/classes/urgent", 2)
        .await
        .expect(StatusCode::NO_CONTENT);
}

#[sqlx::test(migrations = "../migrations")]
async fn prices_are_added_in_one_currency_and_never_twice(owner: PgPool) {
    let server = Server::start(&owner).await;
    let finance = server.client("finance");
    let price = |amount: &str, currency: &str, from: &str| {
        json!({"pool": "h100", "mode": "exclusive", "effective_from": from,
               "per_gpu_hour": {"amount": amount, "currency": currency}})
    };
    let first = finance
        .post("/prices", price("41.10", "CNY", "2026-01-01T00:00:00Z"))
        .await
        .expect(StatusCode::CREATED);
    assert_eq!(
        first["per_gpu_hour"],
        json!({"amount": "41.10", "currency": "CNY"})
    );
    finance
        .post("/prices", price("40", "CNY", "2026-01-01T00:00:00Z"))
        .await
        .problem(StatusCode::CONFLICT);
    finance
        .post("/prices", price("6", "USD", "2026-02-01T00:00:00Z"))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    finance
        .post("/prices", price("42.5", "CNY", "2026-02-01T00:00:00Z"))
        .await
        .expect(StatusCode::CREATED);
    let page = finance
        .get("/prices?limit=1&pool=h100")
        .await
        .expect(StatusCode::OK);
    assert_eq!(page["items"][0]["per_gpu_hour"]["amount"], "42.50");
    let cursor = page["next_cursor"].as_str().expect("there is another");
    let rest = finance
        .get(&format!("/prices?limit=1&pool=h100&cursor={cursor}"))
        .await
        .expect(StatusCode::OK);
    assert_eq!(rest["items"][0]["id"], first["id"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn every_change_and_every_denial_leaves_its_line(owner: PgPool) {
    let server = Server::start(&owner).await;
    server
        .client("admin")
        .patch("/teams/vision", 1, json!({"name": "seeing"}))
        .await
        .expect(StatusCode::OK);
    let denied = server
        .client("vision-member")
        .post("/teams", json!({"name": "mine"}))
        .await
        .problem(StatusCode::FORBIDDEN);
    let log = server
        .client("auditor")
        .get("/audit?limit=2")
        .await
        .expect(StatusCode::OK);
    let line = &log["items"][0];
    assert_eq!(
        (
            &line["actor"],
            &line["action"],
            &line["outcome"],
            &line["request_id"]
        ),
        (
            &json!("vision-member"),
            &json!("create_team"),
            &json!("denied"),
            &denied["request_id"]
        )
    );
    let line = &log["items"][1];
    assert_eq!(
        (
            &line["actor"],
            &line["object"],
            &line["before"]["name"],
            &line["after"]["name"]
        ),
        (
            &json!("admin"),
            &json!("team/vision"),
            &json!("vision"),
            &json!("seeing")
        )
    );
    server
        .client("finance")
        .get("/audit")
        .await
        .problem(StatusCode::FORBIDDEN);
}

/// Takes a right of `allotment_system` away, so that what needs it fails half way.
async fn revoke(owner: &PgPool, right: &str, table: &str) {
    let statement = format!("REVOKE {right} ON {table} FROM allotment_system");
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
        .execute(owner)
        .await
        .expect("the owner may");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_user_whose_password_cannot_be_kept_is_neither_made_nor_changed(owner: PgPool) {
    const PASSWORD: &str = "a long enough password";
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    let lines = async || {
        let log = server.client("auditor").get("/audit").await;
        log.expect(StatusCode::OK)["items"].clone()
    };
    let before = lines().await;
    revoke(&owner, "INSERT", "credentials").await;
    admin
        .post("/users", json!({"name": "ada", "password": PASSWORD}))
        .await
        .problem(StatusCode::INTERNAL_SERVER_ERROR);
    admin.get("/users/ada").await.problem(StatusCode::NOT_FOUND);
    admin
        .patch(
            "/users/operator",
            1,
            json!({"role": null, "password": PASSWORD}),
        )
        .await
        .problem(StatusCode::INTERNAL_SERVER_ERROR);
    let operator = admin.get("/users/operator").await.expect(StatusCode::OK);
    assert_eq!(operator["role"], "operator");
    assert_eq!(
        lines().await,
        before,
        "nothing was done, and nothing is told"
    );
}
