//! A job's page: what it tells of a job to which much has happened.

use axum::http::StatusCode;
use serde_json::json;
use sqlx::PgPool;

use crate::fixture::Server;
use crate::fleet::add_node;
use crate::pages::{Browser, give_password};

/// More than one page of events holds.
const MANY: i32 = 600;

/// A job of vision that was submitted, to whose workers (`assignment`) or to which itself (`job`)
/// many things have happened, and that then succeeded.
async fn job_with_events(owner: &PgPool, server: &Server, subject: &str) -> String {
    let job = server
        .client("vision-member")
        .post(
            "/teams/vision/jobs",
            json!({"name": "long", "command": ["true"]}),
        )
        .await
        .expect(StatusCode::CREATED);
    let id = job["id"].as_str().expect("an id").to_owned();
    let statement = format!(
        "SET ROLE allotment_system;
         INSERT INTO events (team_id, subject, subject_id, job_id, to_state, actor_kind, actor_name)
         SELECT team_id, '{subject}', id, id, 'queued', 'system', 'allotment'
         FROM jobs, generate_series(1, {MANY}) WHERE id = '{id}';
         INSERT INTO events (team_id, subject, subject_id, job_id, to_state, actor_kind, actor_name, data)
         SELECT team_id, 'job', id, id, 'failed', 'system', 'allotment', '{{\"message\": \"the very last\"}}'
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
