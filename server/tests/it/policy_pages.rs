//! The pages of policies: tables and forms that are tried on the live world before they are saved.

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use super::fixture::{Client, Server};
use super::fleet::add_node;
use super::page_form::{Form, browser, part, run};

async fn quota(client: &Client, team: &str) -> Value {
    let all = client.get("/quotas").await.expect(StatusCode::OK);
    let items = all["items"].as_array().expect("items");
    let found = items.iter().find(|quota| quota["team"] == team);
    found.cloned().unwrap_or(Value::Null)
}

#[sqlx::test(migrations = "../migrations")]
async fn quotas_are_one_table_of_the_whole_tree_that_is_tried_and_then_saved(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    run(&server, "vision", 4).await;
    let mut operator = browser(&owner, &server, "operator").await;
    let page = operator.get("/quotas").await;
    assert!(
        page.html.contains("8 guaranteed of 8 GPUs"),
        "{}",
        page.html
    );
    let form = Form::of(&page, "/quotas");
    assert_eq!(form.value("vision/h100/guaranteed"), "4");
    assert_eq!(form.value("org/h100/guaranteed"), "");
    let form = form
        .with("vision/h100/guaranteed", "2.5")
        .with("vision/h100/max_per_user", "3")
        .with("reason", "less for vision");
    let tried = form.send(&mut operator, "try").await;
    assert_eq!(tried.status, StatusCode::OK, "{}", tried.html);
    let effect = part(&tried, "id=\"effect\"", "</section>");
    for words in [
        "<b>vision</b> holds <b>4 GPUs</b> of h100; it would be guaranteed 2.5, not 4.",
        "<b>1.5 GPUs</b> of that would become borrowed.",
    ] {
        assert!(effect.contains(words), "{words}: {effect}");
    }
    assert!(tried.html.contains("was 4"), "{}", tried.html);
    let client = server.client("operator");
    assert_eq!(
        quota(&client, "vision").await["guaranteed"],
        4,
        "a try changes nothing"
    );
    let saved = Form::of(&tried, "/quotas")
        .send(&mut operator, "save")
        .await;
    saved.leads_to("/quotas?done=quotas_saved");
    let kept = quota(&client, "vision").await;
    assert_eq!(
        (&kept["guaranteed"], &kept["max_per_user"]),
        (&json!(2.5), &json!(3))
    );
    // Once more, as who presses twice does: the same change, and not another one.
    let again = Form::of(&tried, "/quotas")
        .send(&mut operator, "save")
        .await;
    again.leads_to("/quotas?done=quotas_saved");
    assert_eq!(quota(&client, "vision").await["version"], kept["version"]);
    let page = operator.get("/quotas").await;
    assert!(page.html.contains("Guaranteed 4 → 2.5"), "{}", page.html);
    assert!(page.html.contains("Why: less for vision"), "{}", page.html);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_wrong_in_the_table_stands_at_its_cell_and_nothing_is_saved(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let mut operator = browser(&owner, &server, "operator").await;
    let page = operator.get("/quotas").await;
    let form = Form::of(&page, "/quotas");
    let client = server.client("operator");
    for (field, value, words) in [
        (
            "vision/h100/limit",
            "many",
            "“many” is not accepted. Write a number of GPUs",
        ),
        (
            "vision/h100/guaranteed",
            "",
            "Write a number of GPUs from 0",
        ),
        ("vision/h100/limit", "3", ""),
        (
            "org/h100/guaranteed",
            "7",
            "The teams below org are guaranteed 8 GPUs of h100 together, and it has 7.",
        ),
    ] {
        for button in ["try", "save"] {
            let form = form
                .clone()
                .with(field, value)
                .with("speech/h100/weight", "2");
            let refused = form.send(&mut operator, button).await;
            let status = if button == "save" {
                StatusCode::UNPROCESSABLE_ENTITY
            } else {
                StatusCode::OK
            };
            assert_eq!(refused.status, status, "{field} {value}: {}", refused.html);
            // A limit under the guarantee is told at the guarantee.
            let cell = if words.is_empty() {
                "vision/h100/guaranteed"
            } else {
                field
            };
            let told = part(&refused, &format!("id=\"{cell}-e\">"), "</span>");
            assert!(told.contains(words), "{told}");
            assert_eq!(
                Form::of(&refused, "/quotas").value(field),
                value,
                "what was typed is kept"
            );
            assert_eq!(
                quota(&client, "speech").await["weight"],
                1,
                "{field} {value}"
            );
        }
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_row_that_somebody_else_changed_meanwhile_is_told_and_not_written_over(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut operator = browser(&owner, &server, "operator").await;
    let form = Form::of(&operator.get("/quotas").await, "/quotas");
    let admin = server.client("admin");
    let faster = admin.ask(axum::http::Method::PUT, "/teams/vision/quotas/h100");
    let faster = faster
        .json(json!({"guaranteed": 3}))
        .header("If-Match", "\"1\"");
    faster.send().await.expect(StatusCode::OK);
    let other = form.clone().with("speech/h100/guaranteed", "3");
    let saved = other.send(&mut operator, "save").await;
    assert_eq!(
        saved.status,
        StatusCode::SEE_OTHER,
        "another row is no matter of it"
    );
    assert_eq!(quota(&admin, "vision").await["guaranteed"], 3);
    let refused = form
        .with("vision/h100/guaranteed", "1")
        .send(&mut operator, "save")
        .await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    let told = part(&refused, "id=\"vision/h100/guaranteed-e\">", "</span>");
    assert!(told.contains("It was changed meanwhile."), "{told}");
    assert_eq!(quota(&admin, "vision").await["guaranteed"], 3);
    // What it is by now stands beside what was typed, rows of others are as they are kept, and the
    // same form, sent again, goes on top of that.
    assert!(refused.html.contains("was 3"), "{}", refused.html);
    let again = Form::of(&refused, "/quotas");
    assert_eq!(again.value("vision/h100/guaranteed"), "1");
    assert_eq!(again.value("speech/h100/guaranteed"), "3");
    let saved = again.send(&mut operator, "save").await;
    saved.leads_to("/quotas?done=quotas_saved");
    assert_eq!(quota(&admin, "vision").await["guaranteed"], 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn who_may_not_change_quotas_sees_those_of_its_own_teams_and_no_form(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut member = browser(&owner, &server, "vision-member").await;
    let page = member.get("/quotas").await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(!page.html.contains("action=\"/quotas\""), "{}", page.html);
    assert!(!page.html.contains("speech"), "{}", page.html);
    assert!(!page.html.contains("Go back to this"), "{}", page.html);
    let mut finance = browser(&owner, &server, "finance").await;
    let page = finance.get("/quotas").await;
    assert!(page.html.contains("speech") && !page.html.contains("action=\"/quotas\""));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_change_is_gone_back_to_from_the_page_that_shows_it(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut operator = browser(&owner, &server, "operator").await;
    let form = Form::of(&operator.get("/quotas").await, "/quotas");
    form.with("vision/h100/guaranteed", "1")
        .send(&mut operator, "save")
        .await;
    let client = server.client("operator");
    let page = operator
        .get("/policy-versions?object=quota%2Fvision%2Fh100")
        .await;
    let versions = client
        .get("/policy-versions?object=quota/vision/h100")
        .await;
    let versions = versions.expect(StatusCode::OK);
    let first = versions["items"]
        .as_array()
        .expect("items")
        .last()
        .expect("one")["id"]
        .clone();
    let back = Form::of(&page, &format!("/policy-versions/{first}/restore"));
    let done = back.send(&mut operator, "save").await;
    done.leads_to("/policy-versions?object=quota%2Fvision%2Fh100&done=restored");
    assert_eq!(quota(&client, "vision").await["guaranteed"], 4);
    // The page was made before that: the version that it knew is not there any more.
    let stale = back.send(&mut operator, "save").await;
    assert_eq!(stale.status, StatusCode::CONFLICT);
    assert!(
        stale.html.contains("has changed meanwhile"),
        "{}",
        stale.html
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_pools_policy_is_a_form_of_every_key_that_is_tried_and_then_saved(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    run(&server, "vision", 8).await;
    let client = server.client("operator");
    let mut operator = browser(&owner, &server, "operator").await;
    let page = operator.get("/pools/h100").await;
    let form = Form::of(&page, "/pools/h100");
    assert_eq!(form.value("preemption.grace_seconds"), "30");
    assert_eq!(form.value("sharing.time_slice"), "time_slice");
    let form = form
        .with("backfill", "conservative")
        .with("preemption.max_per_day", "3")
        .with("preemption.across_borrowers", "true")
        .without("sharing.time_slice")
        .with("reason", "calmer");
    let tried = form.clone().send(&mut operator, "try").await;
    assert_eq!(tried.status, StatusCode::OK, "{}", tried.html);
    let effect = part(&tried, "id=\"effect\"", "</section>");
    assert!(effect.contains("Nothing was saved."), "{effect}");
    let pool = client.get("/pools/h100").await.expect(StatusCode::OK);
    assert_eq!(pool["backfill"], "easy", "a try changes nothing");
    let saved = Form::of(&tried, "/pools/h100")
        .send(&mut operator, "save")
        .await;
    saved.leads_to("/pools/h100?done=policy_saved");
    let pool = client.get("/pools/h100").await.expect(StatusCode::OK);
    assert_eq!(
        (
            &pool["backfill"],
            &pool["sharing"],
            &pool["preemption"]["max_per_day"]
        ),
        (&json!("conservative"), &json!(["exclusive"]), &json!(3))
    );
    assert_eq!(pool["preemption"]["across_borrowers"], true);
    let page = operator.get("/pools/h100").await;
    for words in [
        "What may pass work that does not fit what does not delay the first → what delays nobody ahead",
        "Why: calmer",
    ] {
        assert!(page.html.contains(words), "{words}: {}", page.html);
    }
    // The form that was made of the first version knows that it is not there any more.
    let stale = form
        .with("strategy", "spread")
        .send(&mut operator, "save")
        .await;
    assert_eq!(stale.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        stale.html.contains("has changed meanwhile"),
        "{}",
        stale.html
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn what_no_policy_can_be_stands_at_its_field(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut operator = browser(&owner, &server, "operator").await;
    let page = operator.get("/pools/h100").await;
    let form = Form::of(&page, "/pools/h100");
    for (field, value, words) in [
        ("time_slices", "0", "whole number from 1 to 1000"),
        ("time_slices", "many", "whole number from 1 to 1000"),
        ("preemption.grace_seconds", "-1", "whole number from 0 to"),
        ("ageing_per_hour", "x", "a number from 0 to 1000000"),
        ("backfill", "hopeful", "Choose one of those offered"),
    ] {
        let refused = form
            .clone()
            .with(field, value)
            .send(&mut operator, "save")
            .await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{field}");
        let told = part(&refused, &format!("id=\"{field}-e\">"), "</span>");
        assert!(told.contains(words), "{told}");
    }
    let none = form
        .without("sharing.exclusive")
        .without("sharing.time_slice");
    let refused = none.send(&mut operator, "save").await;
    assert!(part(&refused, "id=\"sharing-e\">", "</span>").contains("at least one"));
    let mut member = browser(&owner, &server, "vision-member").await;
    let page = member.get("/pools/h100").await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(!page.html.contains("name=\"backfill\""), "{}", page.html);
}

#[sqlx::test(migrations = "../migrations")]
async fn classes_are_made_changed_and_removed_on_their_page(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut operator = browser(&owner, &server, "operator").await;
    let page = operator.get("/classes").await;
    let form = Form::of(&page, "/classes");
    let refused = form.clone().with("name", "A b").with("priority", "5");
    let refused = refused.send(&mut operator, "").await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        refused.html.contains("id=\"class-name-e\""),
        "{}",
        refused.html
    );
    let both = form.clone().with("name", "A b").with("priority", "many");
    let both = both.send(&mut operator, "").await;
    for id in ["class-name-e", "class-priority-e"] {
        let told = both.html.contains(&format!("id=\"{id}\""));
        assert!(told, "{id} is told with the other: {}", both.html);
    }
    let made = form.with("name", "spare").with("priority", "5");
    let made = made
        .with("preemptible", "true")
        .send(&mut operator, "")
        .await;
    made.leads_to("/classes?done=class_made");
    let page = operator.get("/classes").await;
    let form = Form::of(&page, "/classes/spare");
    let wrong = form
        .clone()
        .with("priority", "high")
        .send(&mut operator, "save")
        .await;
    assert!(
        wrong.html.contains("id=\"priority-spare-e\""),
        "{}",
        wrong.html
    );
    let changed = form
        .clone()
        .with("priority", "-7")
        .with("reason", "nights are quiet")
        .send(&mut operator, "save")
        .await;
    changed.leads_to("/classes?done=class_saved");
    let classes = server.client("operator").get("/classes").await;
    let classes = classes.expect(StatusCode::OK);
    let spare = classes["items"]
        .as_array()
        .expect("items")
        .iter()
        .find(|c| c["name"] == "spare");
    let spare = spare.expect("it is there");
    // The box was not ticked.
    assert_eq!(
        (&spare["priority"], &spare["preemptible"]),
        (&json!(-7), &json!(false))
    );
    let stale = form.with("priority", "8").send(&mut operator, "save").await;
    assert!(
        stale.html.contains("has changed meanwhile"),
        "{}",
        stale.html
    );
    let page = operator.get("/classes").await;
    let mut gone = Form::of(&page, "/classes/spare").with("reason", "nobody used it");
    gone.action += "/delete";
    let gone = gone.send(&mut operator, "").await;
    gone.leads_to("/classes?done=class_deleted");
    let changes = server.client("operator").get("/policy-versions").await;
    let changes = changes.expect(StatusCode::OK);
    for (at, reason) in [(0, "nobody used it"), (1, "nights are quiet")] {
        assert_eq!(changes["items"][at]["reason"], reason);
    }
    assert!(
        !page.html.contains("/classes/normal/delete"),
        "{}",
        page.html
    );
}
