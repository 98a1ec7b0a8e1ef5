//! What would start a waiting job sooner, made by a press on its page, and by REST.

use axum::http::StatusCode;
use serde_json::json;
use sqlx::PgPool;

use crate::fleet::turn;
use crate::jobs::{JOBS, fleet, id, spec};
use crate::pages::{Browser, give_password, token};

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_may_not_borrow_starts_once_it_may_be_preempted(owner: PgPool) {
    let server = fleet(&owner).await;
    let member = server.client("vision-member");
    let mut firm = spec(json!(6));
    firm["class"] = json!("training-high");
    let job = id(&member.post(JOBS, firm).await.expect(StatusCode::CREATED));
    turn(&server.app).await;
    for user in ["vision-member", "vision-viewer"] {
        give_password(&owner, server.users[user]).await;
    }
    let mut viewer = Browser::new(&server.app);
    viewer.sign_in("vision-viewer").await;
    let path = format!("/jobs/{job}");
    let page = viewer.get(&path).await;
    assert!(!page.html.contains("/change\""), "{}", page.html);

    let mut browser = Browser::new(&server.app);
    browser.sign_in("vision-member").await;
    let page = browser.get(&path).await;
    assert!(
        page.html.contains("name=\"preemptible\" value=\"true\""),
        "{}",
        page.html
    );
    let shown = member.get(&path).await.expect(StatusCode::OK);
    let form = format!(
        "csrf={}&version={}&preemptible=true",
        token(&page.html),
        shown["version"]
    );
    let pressed = browser.post(&format!("{path}/change"), &form).await;
    assert_eq!(pressed.status, StatusCode::SEE_OTHER, "{}", pressed.html);
    let again = browser.post(&format!("{path}/change"), &form).await;
    assert_eq!(
        again.status,
        StatusCode::CONFLICT,
        "it is another version now"
    );
    turn(&server.app).await;
    let started = member.get(&path).await.expect(StatusCode::OK);
    assert_eq!(started["state"], "starting", "{started}");
    assert_eq!(started["spec"]["preemptible"], true);
    let audit = server.client("auditor").get("/audit").await;
    assert!(audit.text.contains("update_job"), "{}", audit.text);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_a_press_may_not_say_is_refused_by_its_field(owner: PgPool) {
    let server = fleet(&owner).await;
    let member = server.client("vision-member");
    let mut late = spec(json!(1));
    late["not_before"] = json!("2100-01-01T00:00:00Z");
    let job = id(&member.post(JOBS, late).await.expect(StatusCode::CREATED));
    give_password(&owner, server.users["vision-member"]).await;
    let mut browser = Browser::new(&server.app);
    browser.sign_in("vision-member").await;
    let token = token(&browser.get(&format!("/jobs/{job}")).await.html);
    for wrong in [
        "version=1&time_limit_seconds=soon",
        "version=x",
        "version=1&preemptible=2",
    ] {
        let form = format!("csrf={token}&{wrong}");
        let answer = browser.post(&format!("/jobs/{job}/change"), &form).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{wrong}");
    }
}
