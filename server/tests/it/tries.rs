//! Tries: what a draft of bookings, classes, windows and going back says before it is saved is what
//! is so once it was.

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use super::fixture::{Client, Server};
use super::fleet::add_node;
use super::page_form::{Form, browser, part, run};

async fn tried(client: &Client, draft: Value) -> Value {
    let diff = client.post("/planning/policy-diff", draft).await;
    diff.expect(StatusCode::OK)
}

fn booking(name: &str, team: &str, gpus: i64, days: (u32, u32)) -> Value {
    let at = |day: u32| format!("2126-01-{day:02}T09:00:00Z");
    json!({"name": name, "team": team, "gpus": gpus, "from": at(days.0), "to": at(days.1)})
}

fn of_pool(mut row: Value) -> Value {
    row["pool"] = json!("h100");
    row
}

#[sqlx::test(migrations = "../migrations")]
async fn a_try_of_a_booking_tells_the_conflicts_that_its_calendar_marks_once_it_is_saved(
    owner: PgPool,
) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 12).await;
    let operator = server.client("operator");
    let exam = booking("exam", "speech", 3, (7, 9));
    operator
        .post("/pools/h100/bookings", exam)
        .await
        .expect(StatusCode::CREATED);
    let demo = booking("demo", "vision", 2, (8, 12));
    let diff = tried(&operator, json!({"bookings": [of_pool(demo.clone())]})).await;
    let told: Vec<&Value> = diff["conflicts"]
        .as_array()
        .expect("conflicts")
        .iter()
        .map(|told| &told["booking"])
        .collect();
    assert_eq!(told, ["exam", "demo"], "it brings the other one to it, too");
    let made = operator.post("/pools/h100/bookings", demo).await;
    let made = made.expect(StatusCode::CREATED);
    assert_eq!(diff["conflicts"][1]["conflicts"], made["conflicts"]);
    let listed = operator.get("/pools/h100/bookings").await;
    let listed = listed.expect(StatusCode::OK);
    assert_eq!(
        diff["conflicts"][0]["conflicts"],
        listed["items"][0]["conflicts"]
    );

    // What is known is not told again, but by a change of the booking itself, and by what makes it worse.
    let none = tried(
        &operator,
        json!({"bookings": [of_pool(booking("far", "vision", 1, (20, 21)))]}),
    )
    .await;
    assert_eq!(none["conflicts"], json!([]));
    let quota = json!({"team": "vision", "pool": "h100", "quota": {"guaranteed": 8}});
    let more = tried(&operator, json!({"quotas": [quota]})).await;
    assert_eq!(
        more["conflicts"].as_array().map(Vec::len),
        Some(2),
        "{more}"
    );
    assert_eq!(more["conflicts"][0]["conflicts"][0]["guaranteed"], 12);
    // A team that has no quota in the pool is refused as it is when it is saved.
    let lab = json!({"name": "lab", "parent": "org"});
    let admin = server.client("admin");
    admin.post("/teams", lab).await.expect(StatusCode::CREATED);
    let refused = json!({"bookings": [of_pool(booking("b", "lab", 1, (8, 9)))]});
    let problem = operator.post("/planning/policy-diff", refused).await;
    let problem = problem.problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["field"], "bookings[0].team");

    let mut page = browser(&owner, &server, "operator").await;
    let form = Form::of(
        &page.get("/pools/h100/bookings").await,
        "/pools/h100/bookings",
    )
    .with("name", "third")
    .with("team", "vision")
    .with("gpus", "5")
    .with("from", "2126-01-15T09:00")
    .with("to", "2126-01-15T17:00");
    let answer = form.send(&mut page, "try").await;
    let effect = part(&answer, "id=\"effect\"", "</section>");
    for words in [
        "The booking <b>third</b> of vision would be marked in the calendar.",
        "2126-01-15 09:00 to 2126-01-15 17:00: h100 has 1 GPU less than is promised. Guaranteed then: 8; booked: 5; there: 12.",
    ] {
        assert!(effect.contains(words), "{words}: {effect}");
    }
}

/// Jobs of two classes that wait for the same four GPUs; none of them was looked at yet.
async fn two_classes(owner: &PgPool, server: &Server) {
    add_node(owner, "h100", "n1", 4).await;
    let operator = server.client("operator");
    let spare = json!({"name": "spare", "priority": -5, "preemptible": true});
    operator
        .post("/classes", spare)
        .await
        .expect(StatusCode::CREATED);
    let member = server.client("vision-member");
    for (name, class) in [("first", "normal"), ("second", "spare")] {
        let spec =
            json!({"name": name, "command": ["true"], "class": class, "per_worker": {"gpus": 4}});
        let job = member.post("/teams/vision/jobs", spec).await;
        job.expect(StatusCode::CREATED);
    }
}

fn effects(diff: &Value) -> Vec<(&str, &str)> {
    let jobs = diff["jobs"].as_array().expect("jobs").iter();
    let mut effects: Vec<_> = jobs
        .map(|job| {
            let text = |key: &str| job[key].as_str().expect("a text");
            (text("name"), text("effect"))
        })
        .collect();
    effects.sort_unstable();
    effects
}

#[sqlx::test(migrations = "../migrations")]
async fn a_changed_class_is_tried_on_its_page_before_it_is_saved(owner: PgPool) {
    let server = Server::start(&owner).await;
    two_classes(&owner, &server).await;
    let mut operator = browser(&owner, &server, "operator").await;
    let page = operator.get("/classes").await;
    let form = Form::of(&page, "/classes/spare")
        .with("priority", "700")
        .with("preemptible", "true");
    let tried = form.send(&mut operator, "try").await;
    assert_eq!(tried.status, StatusCode::OK, "{}", tried.html);
    let effect = part(&tried, "id=\"effect\"", "</section>");
    assert!(effect.contains("Nothing was saved."), "{effect}");
    for words in [
        ">second</a> (vision): <b class=\"ok\">starts now",
        ">first</a> (vision): <b class=\"warn\">starts later",
    ] {
        assert!(effect.contains(words), "{words}: {effect}");
    }
    let class = async || {
        let all = server.client("operator").get("/classes").await;
        let all = all.expect(StatusCode::OK);
        let items = all["items"].as_array().expect("items").clone();
        items
            .into_iter()
            .find(|class| class["name"] == "spare")
            .expect("it is there")
    };
    assert_eq!(
        (&class().await["priority"], &class().await["version"]),
        (&json!(-5), &json!(1))
    );
    let refused = form
        .clone()
        .with("priority", "2000000")
        .send(&mut operator, "try")
        .await;
    assert!(
        refused.html.contains("id=\"priority-spare-e\""),
        "{}",
        refused.html
    );
    assert!(tried.html.contains("value=\"700\""), "{}", tried.html);
    let saved = form.send(&mut operator, "save").await;
    saved.leads_to("/classes?done=class_saved");
    assert_eq!(class().await["priority"], 700);
}

#[sqlx::test(migrations = "../migrations")]
async fn going_back_to_a_version_is_tried_before_it_is_done(owner: PgPool) {
    let server = Server::start(&owner).await;
    two_classes(&owner, &server).await;
    let operator = server.client("operator");
    for (version, priority) in [(1, 700), (2, -7)] {
        let patch = operator.patch("/classes/spare", version, json!({"priority": priority}));
        patch.await.expect(StatusCode::OK);
    }
    let of = async |object: &str| {
        let all = operator
            .get(&format!("/policy-versions?object={object}"))
            .await;
        all.expect(StatusCode::OK)["items"]
            .as_array()
            .expect("items")
            .clone()
    };
    let kept = of("class/spare").await;
    let raised = &kept[1]["id"];
    let diff = tried(&operator, json!({"versions": [raised]})).await;
    assert_eq!(
        effects(&diff),
        [("first", "delayed"), ("second", "starts")],
        "{diff}"
    );
    assert_eq!(
        of("class/spare").await.len(),
        kept.len(),
        "nothing was changed"
    );
    operator
        .post("/planning/policy-diff", json!({"versions": [999_999]}))
        .await
        .problem(StatusCode::NOT_FOUND);

    let mut page = browser(&owner, &server, "operator").await;
    let address = format!("/policy-versions/{raised}/restore");
    let form = Form::of(&page.get("/policy-versions").await, &address);
    let answer = form.send(&mut page, "try").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.html);
    let effect = part(&answer, "id=\"effect\"", "</section>");
    assert!(
        effect.contains(">second</a> (vision): <b class=\"ok\">starts now"),
        "{effect}"
    );
    assert_eq!(
        of("class/spare").await.len(),
        kept.len(),
        "nothing was changed"
    );
    let form = Form::of(&answer, &address).with("reason", "it was right");
    let done = form.send(&mut page, "save").await;
    done.leads_to("/policy-versions?done=restored");
    assert_eq!(of("class/spare").await[0]["after"]["priority"], 700);

    // What cannot be gone back to is told by the try, too.
    for quota in [json!({"guaranteed": 1}), json!({"guaranteed": 3})] {
        let row = |team: &str, version: Option<i64>, quota: &Value| json!({"team": team, "pool": "h100", "version": version, "quota": quota});
        let first = quota["guaranteed"] == 1;
        let rows = if first {
            vec![row("vision", Some(1), &quota)]
        } else {
            vec![row("org", None, &json!({"guaranteed": 5}))]
        };
        let set = operator
            .post("/quotas/batch", json!({"quotas": rows}))
            .await;
        set.expect(StatusCode::OK);
    }
    let kept = of("quota/vision/h100").await;
    let first = &kept.last().expect("one")["id"];
    let refused = operator
        .post("/planning/policy-diff", json!({"versions": [first]}))
        .await;
    refused.problem(StatusCode::UNPROCESSABLE_ENTITY);
    let address = format!("/policy-versions/{first}/restore");
    let all = page
        .get("/policy-versions?object=quota%2Fvision%2Fh100")
        .await;
    let answer = Form::of(&all, &address).send(&mut page, "try").await;
    assert!(
        answer
            .html
            .contains("The teams below org are guaranteed 8 GPUs of h100 together, and it has 5."),
        "{}",
        answer.html
    );
}

fn window(name: &str, days: &[&str], quotas: Value) -> Value {
    json!({"name": name, "days": days, "from": "20:00", "to": "23:00", "time_zone": "UTC", "quotas": quotas})
}

#[sqlx::test(migrations = "../migrations")]
async fn a_window_says_what_it_promises_too_much_and_with_which_other_it_quarrels(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    run(&server, "vision", 1).await;
    let operator = server.client("operator");
    let quota =
        |team: &str, guaranteed: i64| json!({"team": team, "quota": {"guaranteed": guaranteed}});
    let nights = window(
        "nights",
        &["mon", "tue"],
        json!([quota("vision", 7), quota("speech", 4)]),
    );
    let diff = tried(&operator, json!({"windows": [of_pool(nights.clone())]})).await;
    let made = operator.post("/pools/h100/windows", nights).await;
    let made = made.expect(StatusCode::CREATED);
    assert_eq!(diff["warnings"], made["warnings"]);
    let over = json!({"code": "overpromised", "pool": "h100", "windows": ["nights"], "guaranteed": 11, "capacity": 8,
        "message": "the guarantees in pool h100 while window nights is open are 11 GPUs and it has 8: all of them shrink in proportion until it has more"});
    assert_eq!(made["warnings"], json!([over]));

    // On Tuesday both are open; they agree on speech.
    let late = window(
        "late",
        &["tue", "wed"],
        json!([quota("vision", 2), quota("speech", 4)]),
    );
    let late_made = operator.post("/pools/h100/windows", late).await;
    let late_made = late_made.expect(StatusCode::CREATED);
    let told: Vec<&Value> = late_made["warnings"]
        .as_array()
        .expect("warnings")
        .iter()
        .map(|w| &w["code"])
        .collect();
    assert_eq!(told, ["overpromised", "windows_overlap"], "{late_made}");
    let overlap = &late_made["warnings"][1];
    assert_eq!(
        (&overlap["windows"], &overlap["teams"]),
        (&json!(["late", "nights"]), &json!(["vision"]))
    );
    let listed = operator
        .get("/pools/h100/windows")
        .await
        .expect(StatusCode::OK);
    assert_eq!(listed["items"][1]["warnings"], json!([over, overlap]));
    let seen = server
        .client("vision-member")
        .get("/pools/h100/windows")
        .await;
    let seen = seen.expect(StatusCode::OK);
    assert_eq!(
        seen["items"][1]["warnings"],
        json!([]),
        "the quotas of others are not told"
    );

    // A quota is told of what windows make of it, where that is more than without them.
    let set = operator
        .put("/teams/vision/quotas/h100", json!({"guaranteed": 3}))
        .header("If-Match", "\"1\"")
        .send()
        .await
        .expect(StatusCode::OK);
    assert_eq!(set["warnings"], json!([over]));

    let mut page = browser(&owner, &server, "operator").await;
    let shown = page.get("/pools/h100/windows").await;
    for words in [
        "While nights is open: Guaranteed of h100: <b>11 GPUs</b>, and it has 8. All guarantees there shrink in proportion.",
        "late, nights are open together and give vision other quotas. The one that opened last holds; of two that opened at once, nights.",
    ] {
        assert!(shown.html.contains(words), "{words}: {}", shown.html);
    }
}
