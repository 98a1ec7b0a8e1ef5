//! What people are told of what was refused, and of what is not known yet.

use axum::http::{Method, StatusCode};
use serde_json::json;
use server::app::idempotency::Repeat;
use server::app::nodes::{NodeWish, Reason, set_intent};
use sqlx::PgPool;

use crate::fixture::{self, Server};
use crate::fleet::{Fleet, add_node};
use crate::jobs::{JOBS, id, spec};
use crate::pages::{Browser, add_person, token};

#[sqlx::test(migrations = "../migrations")]
async fn a_refused_form_says_so_by_its_status_and_comes_again(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_person(&owner, "root", Some("admin")).await;
    let mut browser = Browser::new(&server.app);
    browser.sign_in("root").await;
    let token = token(&browser.get("/users").await.html);
    for (path, form, kept) in [
        ("/users", "name=%21&password=x&role=", "value=\"!\""),
        (
            "/users",
            "name=root&password=a+long+enough+one+7&role=",
            "value=\"root\"",
        ),
        ("/teams", "name=%21&parent=", "value=\"!\""),
        ("/teams", "name=vision&parent=", "value=\"vision\""),
        (
            "/teams/vision/members",
            "user=nobody-here&role=member",
            "value=\"nobody-here\"",
        ),
        (
            "/teams/vision/members",
            "user=root&role=king",
            "value=\"root\"",
        ),
    ] {
        let answer = browser.post(path, &format!("csrf={token}&{form}")).await;
        assert_eq!(
            answer.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{path} {form}"
        );
        assert!(
            answer.html.contains("<form") && answer.html.contains(kept),
            "{path} {form}: {}",
            answer.html
        );
    }
    let answer = browser.post("/teams", &format!("csrf={token}&nom=x")).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(
        answer.html.contains("Load the page again") && !answer.html.contains('`'),
        "no parser's words: {}",
        answer.html
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn of_a_node_that_has_not_spoken_nothing_is_claimed_and_a_retired_one_is_retired(
    owner: PgPool,
) {
    let app = fixture::app(&owner).await;
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 0).await;
    add_person(&owner, "operator", Some("operator")).await;
    let mut browser = Browser::new(&app);
    browser.sign_in("operator").await;
    let page = browser.get("/nodes/n1").await.html;
    assert!(page.contains("Its agent has not spoken yet."), "{page}");
    for claim in [
        "No isolation",
        "limits are not enforced",
        "The node has no GPU",
        "GiB",
    ] {
        assert!(!page.contains(claim), "{claim}: {page}");
    }
    let name = "n1".parse().expect("a name");
    let (asker, why) = (fleet.root(), Reason::default());
    set_intent(&app, &asker, Repeat::none(), &name, NodeWish::Retire, why)
        .await
        .expect("it is empty");
    let page = browser.get("/nodes/n1").await.html;
    assert!(
        page.contains("Retired") && !page.contains("not spoken"),
        "{page}"
    );
    let page = browser.get("/fleet").await.html;
    assert!(
        page.contains("The node of this pool is retired.") && !page.contains("No node has joined"),
        "{page}"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn refusals_are_sentences_about_what_was_sent(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 2).await;
    let member = server.client("vision-member");
    let admin = server.client("admin");

    // Who may not is told what they wanted, not the name of an operation.
    let problem = server
        .client("vision-viewer")
        .post(JOBS, spec(json!(1)))
        .await
        .problem(StatusCode::FORBIDDEN);
    let detail = problem["detail"].as_str().expect("words");
    assert!(
        detail.starts_with("you may not submit a job: that needs at least the role member"),
        "{detail}"
    );

    // A time that was not sent is not at fault.
    for (query, field) in [
        ("to=9999-12-31T00:00:00Z", "to"),
        ("from=9999-12-31T00:00:00Z", "from"),
        ("from=1990-01-01T00:00:00Z", "from"),
    ] {
        let problem = admin
            .get(&format!("/usage?{query}"))
            .await
            .problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["field"], field, "{query}: {problem}");
        let sent = query.split_once('=').expect("a pair").1;
        assert_eq!(problem["value"], sent, "{query}: {problem}");
    }

    // A tree that would go round in a circle is told by the parent that was asked for.
    let made = admin
        .post("/teams", json!({ "name": "below", "parent": "org" }))
        .await
        .expect(StatusCode::CREATED);
    assert_eq!(made["parent"], "org");
    let org = admin.get("/teams/org").await.expect(StatusCode::OK);
    let version = org["version"].as_i64().expect("a version");
    let problem = admin
        .patch("/teams/org", version, json!({ "parent": "below" }))
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        (&problem["field"], &problem["value"]),
        (&json!("parent"), &json!("below")),
        "{problem}"
    );

    // A log that is not there.
    let job = member
        .post(JOBS, spec(json!(1)))
        .await
        .expect(StatusCode::CREATED);
    let path = format!("/jobs/{}/logs", id(&job));
    let problem = member.get(&path).await.problem(StatusCode::NOT_FOUND);
    assert_eq!(problem["detail"], "no attempt of the job has begun");

    // A whole device in time slices is told what is true of both.
    let mut sliced = spec(json!(1));
    sliced["per_worker"]["sharing"] = json!(["time_slice"]);
    let problem = member
        .post(JOBS, sliced)
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["field"], "per_worker.sharing", "{problem}");
    let remedy = problem["remedy"].as_str().expect("a remedy");
    assert!(
        remedy.starts_with("exclusive, since whole devices") && remedy.contains("below 1"),
        "{remedy}"
    );

    // What has ended.
    let version = job["version"].as_i64().expect("a version");
    member
        .post(&format!("/jobs/{}/cancel", id(&job)), json!({}))
        .await
        .expect(StatusCode::OK);
    let problem = member
        .patch(
            &format!("/jobs/{}", id(&job)),
            version + 1,
            json!({ "class": "normal" }),
        )
        .await;
    assert!(!problem.text.contains("has cancelled"), "{}", problem.text);
}

#[sqlx::test(migrations = "../migrations")]
async fn addresses_of_the_api_answer_as_the_api_does(owner: PgPool) {
    let server = Server::start(&owner).await;
    for path in ["", "/", "/nothing"] {
        let reply = server.client("admin").ask(Method::GET, path).send().await;
        let problem = reply.problem(StatusCode::NOT_FOUND);
        assert_eq!(problem["type"], "/problems/no-such-route", "{path:?}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn what_cannot_be_priced_as_one_is_priced_by_pool_and_work_without_gpus_costs_nothing(
    owner: PgPool,
) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 2).await;
    let admin = server.client("admin");
    admin
        .post("/pools", json!({ "name": "a100" }))
        .await
        .expect(StatusCode::CREATED);
    admin
        .put("/teams/vision/quotas/a100", json!({ "guaranteed": 2 }))
        .header("If-None-Match", "*")
        .send()
        .await
        .expect(StatusCode::CREATED);
    add_node(&owner, "a100", "n2", 2).await;
    for (pool, amount) in [("h100", "40"), ("a100", "20")] {
        let price = json!({ "pool": pool, "mode": "exclusive",
                            "per_gpu_hour": { "amount": amount, "currency": "CNY" } });
        admin
            .post("/prices", price)
            .await
            .expect(StatusCode::CREATED);
    }
    let dry = async |asked: serde_json::Value| {
        server
            .client("vision-member")
            .post("/teams/vision/jobs/dry-run", asked)
            .await
            .expect(StatusCode::OK)
    };
    let mut none = spec(json!(0));
    none["per_worker"]["cpus"] = json!(1);
    let free = dry(none).await;
    assert_eq!(
        free["cost_per_hour"],
        json!({ "amount": "0.0000", "currency": "CNY" }),
        "{free}"
    );
    let mut later = spec(json!(2));
    later["not_before"] = json!("2099-01-01T00:00:00Z");
    let waits = dry(later).await;
    assert_eq!(waits["verdict"], "waits", "{waits}");
    let told: Vec<_> = waits["costs_per_hour"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|there| {
            (
                there["pool"].clone(),
                there["cost_per_hour"]["amount"].clone(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (json!("a100"), json!("40.0000")),
            (json!("h100"), json!("80.0000"))
        ],
        "{waits}"
    );
}
