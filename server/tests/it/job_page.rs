//! A job's page: what it tells of a job to which much has happened.

use axum::http::StatusCode;
use domain::state::JobState;
use protocol::report::FactKind;
use serde_json::json;
use server::app::jobs;
use sqlx::PgPool;

use crate::fixture::Server;
use crate::fleet::{Fleet, add_node, exited, turn};
use crate::pages::{Browser, add_person, give_password, token};

/// More than one page of events holds.
const MANY: i32 = 600;

async fn submit(server: &Server, spec: serde_json::Value) -> String {
    let job = server
        .client("vision-member")
        .post("/teams/vision/jobs", spec)
        .await
        .expect(StatusCode::CREATED);
    job["id"].as_str().expect("an id").to_owned()
}

/// A job of vision that was submitted, to whose workers (`assignment`) or to which itself (`job`)
/// many things have happened, and that then succeeded.
async fn job_with_events(owner: &PgPool, server: &Server, subject: &str) -> String {
    let id = submit(server, json!({"name": "long", "command": ["true"]})).await;
    let statement = format!(
        "SET ROLE allotment_system;
         INSERT INTO events (team_id, subject, subject_id, job_id, to_state, actor_kind, actor_name)
         SELECT team_id, '{subject}', id, id, 'queued', 'system', 'allotment'
         FROM jobs, generate_series(1, {MANY}) WHERE id = '{id}';
         INSERT INTO events (team_id, subject, subject_id, job_id, to_state, actor_kind, actor_name, reason, data)
         SELECT team_id, 'job', id, id, 'failed', 'agent', 'n1', 'invalid', '{{\"message\": \"the very last\"}}'
         FROM jobs WHERE id = '{id}';
         RESET ROLE"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
        .execute(owner)
        .await
        .expect("the statement is good");
    id
}

#[sqlx::test(migrations = "../migrations")]
async fn the_last_step_is_told_whatever_happened_before_it(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 1).await;
    give_password(&owner, server.users["vision-member"]).await;
    let mut browser = Browser::new(&server.app);
    browser.sign_in("vision-member").await;
    for subject in ["assignment", "job"] {
        let id = job_with_events(&owner, &server, subject).await;
        let page = browser.get(&format!("/jobs/{id}")).await;
        assert_eq!(page.status, StatusCode::OK);
        assert!(page.html.contains("the very last"), "{subject}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn the_price_is_that_of_what_the_job_holds(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 2).await;
    give_password(&owner, server.users["vision-member"]).await;
    let mut browser = Browser::new(&server.app);
    browser.sign_in("vision-member").await;
    for (mode, amount) in [("exclusive", "41.10"), ("time_slice", "20.55")] {
        server
            .client("admin")
            .post(
                "/prices",
                json!({"pool": "h100", "mode": mode, "per_gpu_hour": {"amount": amount, "currency": "CNY"}}),
            )
            .await
            .expect(StatusCode::CREATED);
    }
    // It names no pool: what it holds decides.
    let spec = json!({"name": "priced", "command": ["true"], "per_worker": {"gpus": 1}});
    let id = submit(&server, spec).await;
    let waits = browser.get(&format!("/jobs/{id}")).await;
    assert!(!waits.html.contains("41.10"), "it holds nothing yet");
    turn(&server.app).await;
    let holds = browser.get(&format!("/jobs/{id}")).await;
    assert!(holds.html.contains("41.10"), "{}", holds.html);
    assert!(!holds.html.contains("20.55"), "{}", holds.html);
}

#[sqlx::test(migrations = "../migrations")]
async fn an_attempt_that_is_over_tells_where_it_ran(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 1).await;
    let once = json!({"name": "once", "command": ["true"], "per_worker": {"gpus": 1}});
    let id = fleet.submit_spec(once).await.expect("accepted").id;
    fleet.turn().await;
    fleet.run(id).await;
    fleet.report(id, &[exited(1), FactKind::Released]).await;
    let attempts = jobs::attempts(&fleet.app, &fleet.ada(), id).await;
    let attempts = attempts.expect("they are told").items;
    assert_eq!(attempts[0].nodes, ["n1"]);
    add_person(&owner, "boss", Some("admin")).await;
    let mut browser = Browser::new(&fleet.app);
    browser.sign_in("boss").await;
    let page = browser.get(&format!("/jobs/{id}")).await.html;
    let attempts = page.split("class=\"stack attempts\"").nth(1);
    let attempts = attempts.and_then(|rest| rest.split("</ol>").next());
    let attempts = attempts.expect("its attempts are on its page");
    assert!(attempts.contains(" · n1"), "{attempts}");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_was_cancelled_while_it_ran_says_so_once_where_it_stands(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 1).await;
    let id = fleet.running(1).await;
    fleet.cancel(id).await;
    fleet.report(id, &[exited(1), FactKind::Released]).await;
    assert_eq!(fleet.job(id).await.state, JobState::Cancelled);
    add_person(&owner, "boss", Some("admin")).await;
    let mut browser = Browser::new(&fleet.app);
    browser.sign_in("boss").await;
    let page = browser.get(&format!("/jobs/{id}")).await.html;
    let lede = page
        .split("<p class=\"lede\"")
        .nth(1)
        .expect("where it stands");
    let lede = lede.split("</p>").next().expect("its end");
    // Once as a code for scripts and once for people.
    assert_eq!(lede.matches("ancelled").count(), 2, "{lede}");
    assert_eq!(page.matches("<b>Cancelled</b>").count(), 1, "{page}");
}

#[sqlx::test(migrations = "../migrations")]
async fn an_array_is_changed_on_its_page_until_an_element_has_begun(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 1).await;
    let spec = json!({
        "name": "sweep", "command": ["true"], "per_worker": { "gpus": 1 }, "array": { "count": 3 },
    });
    let id = fleet.submit_spec(spec).await.expect("accepted").id;
    add_person(&owner, "boss", Some("admin")).await;
    let mut browser = Browser::new(&fleet.app);
    browser.sign_in("boss").await;
    let (page, change) = (format!("/jobs/{id}"), format!("/jobs/{id}/change"));
    let html = browser.get(&page).await.html;
    assert!(html.contains(&format!("action=\"{change}\"")), "{html}");
    let form = format!(
        "csrf={}&version=1&class=urgent&preemptible=&time_limit_minutes=2",
        token(&html)
    );
    let answer = browser.post(&change, &form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.html);
    let spec = fleet.job(id).await.spec.expect("it can be read");
    assert_eq!(
        (spec.class.as_str(), spec.time_limit_seconds),
        ("urgent", Some(120))
    );
    let mut leader = fleet.lead().await;
    // Elements are brought to life before one starts.
    for _ in 0..3 {
        leader.turn().await.expect("a turn");
    }
    let html = browser.get(&page).await.html;
    assert!(!html.contains(&change), "one has begun: {html}");
}
