//! The pages of bookings and weekly windows, and windows in a draft.

use axum::http::StatusCode;
use serde_json::json;
use sqlx::PgPool;

use super::fixture::Server;
use super::fleet::add_node;
use super::page_form::{Form, browser, part, run};

#[sqlx::test(migrations = "../migrations")]
async fn a_calendar_shows_what_is_booked_and_tells_a_conflict_in_words(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let mut operator = browser(&owner, &server, "operator").await;
    let page = operator.get("/pools/h100/bookings").await;
    let form = Form::of(&page, "/pools/h100/bookings")
        .with("name", "demo")
        .with("team", "vision")
        .with("gpus", "2")
        .with("from", "2126-01-07T09:00")
        .with("to", "2126-01-08T17:00");
    for (field, value, id) in [
        ("gpus", "0", "gpus"),
        ("to", "2126-01-07T08:00", "to"),
        ("from", "soon", "from"),
        ("team", "nobody", "team"),
        ("name", "A b", "booking_name"),
    ] {
        form.marks(&mut operator, (field, value), id).await;
    }
    let all = form
        .clone()
        .with("name", "A b")
        .with("team", "nobody")
        .with("gpus", "0")
        .with("to", "2126-01-07T08:00")
        .send(&mut operator, "save")
        .await;
    for id in ["booking_name", "team", "gpus", "to"] {
        let told = all.html.contains(&format!("id=\"{id}-e\""));
        assert!(told, "{id} is told with the others: {}", all.html);
    }
    let tried = form.send(&mut operator, "try").await;
    assert!(tried.html.contains("Nothing was saved."), "{}", tried.html);
    let made = Form::of(&tried, "/pools/h100/bookings")
        .send(&mut operator, "save")
        .await;
    made.leads_to("/pools/h100/bookings?done=booking_made");
    let page = operator.get("/pools/h100/bookings?week=2126-01-09").await;
    assert!(page.html.contains("colspan=\"2\""), "{}", page.html);
    assert!(
        page.html.contains("2126-01-07 09:00 to 2126-01-08 17:00: h100 has 2 GPUs less than is promised. Guaranteed then: 8; booked: 2; there: 8."),
        "{}",
        page.html
    );
    let edit = operator
        .get("/pools/h100/bookings?edit=demo&week=2126-01-07")
        .await;
    let form = Form::of(&edit, "/pools/h100/bookings/demo");
    assert_eq!(form.value("from"), "2126-01-07T09:00");
    let saved = form.with("gpus", "1.5").send(&mut operator, "save").await;
    saved.leads_to("/pools/h100/bookings?done=booking_saved");
    let mut member = browser(&owner, &server, "speech-member").await;
    let others = member.get("/pools/h100/bookings?week=2126-01-07").await;
    assert!(!others.html.contains("demo"), "{}", others.html);
    let page = operator.get("/pools/h100/bookings?week=2126-01-07").await;
    let gone = Form::of(&page, "/pools/h100/bookings/demo/delete")
        .send(&mut operator, "")
        .await;
    gone.leads_to("/pools/h100/bookings?done=booking_deleted");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_weekly_window_is_tried_as_if_it_were_open_and_shown_in_the_week(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    run(&server, "vision", 4).await;
    let mut operator = browser(&owner, &server, "operator").await;
    let page = operator.get("/pools/h100/windows").await;
    let form = Form::of(&page, "/pools/h100/windows")
        .with("name", "nights")
        .with("day.mon", "true")
        .with("day.sun", "true")
        .with("from", "22:00")
        .with("to", "06:00")
        .with("time_zone", "Asia/Shanghai")
        .with("quota/vision/guaranteed", "1");
    for (field, value, id) in [
        ("from", "noon", "from"),
        ("time_zone", "Mars/Olympus", "time_zone"),
        ("quota/vision/limit", "x", "quota/vision/limit"),
        ("quota/vision/limit", "0.5", "quota/vision/guaranteed"),
        ("quota/org/guaranteed", "3", "quota/org/guaranteed"),
        ("name", "", "window_name"),
    ] {
        form.marks(&mut operator, (field, value), id).await;
    }
    let refused = form
        .clone()
        .without("day.mon")
        .without("day.sun")
        .send(&mut operator, "save")
        .await;
    assert!(refused.html.contains("id=\"days-e\""), "{}", refused.html);
    let tried = form.send(&mut operator, "try").await;
    let effect = part(&tried, "id=\"effect\"", "</section>");
    assert!(
        effect.contains(
            "<b>vision</b> holds <b>4 GPUs</b> of h100; it would be guaranteed 1, not 4."
        ),
        "{effect}"
    );
    let made = Form::of(&tried, "/pools/h100/windows")
        .send(&mut operator, "save")
        .await;
    made.leads_to("/pools/h100/windows?done=window_made");
    let page = operator.get("/pools/h100/windows").await;
    assert!(
        page.html.contains("colspan=\"4\" title=\"nights 22:00"),
        "{}",
        page.html
    );
    assert!(page.html.contains("Guaranteed 4 → 1"), "{}", page.html);
    let edit = operator.get("/pools/h100/windows?edit=nights").await;
    let form = Form::of(&edit, "/pools/h100/windows/nights");
    assert_eq!(form.value("quota/vision/guaranteed"), "1");
    let saved = form
        .with("quota/vision/weight", "3")
        .send(&mut operator, "save")
        .await;
    saved.leads_to("/pools/h100/windows?done=window_saved");
    // Who has nothing of a window sees nothing of it, as of a booking.
    for (name, sees) in [("vision-member", true), ("speech-member", false)] {
        let mut member = browser(&owner, &server, name).await;
        let seen = member.get("/pools/h100/windows").await;
        assert_eq!(seen.html.contains("nights"), sees, "{}", seen.html);
        assert!(!seen.html.contains("action=\"/pools/h100/windows\""));
    }
    let page = operator.get("/pools/h100/windows").await;
    let gone = Form::of(&page, "/pools/h100/windows/nights/delete")
        .send(&mut operator, "")
        .await;
    gone.leads_to("/pools/h100/windows?done=window_deleted");
}

#[sqlx::test(migrations = "../migrations")]
async fn windows_in_a_draft_are_checked_and_planned_at_the_moment_that_is_asked_for(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    run(&server, "vision", 4).await;
    let client = server.client("operator");
    let window = |guaranteed: u32| {
        json!({"pool": "h100", "name": "nights", "days": ["mon"], "from": "22:00", "to": "06:00", "time_zone": "UTC",
               "quotas": [{"team": "vision", "quota": {"guaranteed": guaranteed}}]})
    };
    // 2126-01-07 is a Monday.
    for (at, cut) in [
        ("2126-01-07T22:00:00Z", true),
        ("2126-01-07T21:59:00Z", false),
    ] {
        let draft = json!({"windows": [window(1)], "windows_at": at});
        let diff = client
            .post("/planning/policy-diff", draft)
            .await
            .expect(StatusCode::OK);
        let cuts = diff["cuts"].as_array().expect("cuts");
        assert_eq!(!cuts.is_empty(), cut, "{at}: {diff}");
    }
    let mut wrong = window(1);
    wrong["quotas"][0]["team"] = json!("nobody");
    let refused = client
        .post("/planning/policy-diff", json!({"windows": [wrong]}))
        .await;
    let problem = refused.problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["field"], "windows[0].quotas[0].team");
    let draft = json!({"windows": [window(9)], "windows_at": "2126-01-07T22:00:00Z"});
    let diff = client
        .post("/planning/policy-diff", draft)
        .await
        .expect(StatusCode::OK);
    let warning = &diff["warnings"][0];
    assert_eq!(
        (
            &warning["pool"],
            &warning["guaranteed"],
            &warning["capacity"]
        ),
        (&json!("h100"), &json!(13), &json!(8))
    );
    let kept = client
        .get("/pools/h100/windows")
        .await
        .expect(StatusCode::OK);
    assert_eq!(kept["items"], json!([]), "a draft is not kept");
}
