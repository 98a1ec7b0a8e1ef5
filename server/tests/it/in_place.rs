//! What a changed quota does not do: while a window holds in its place, and to jobs that it never admits.

use axum::http::{Method, StatusCode};
use domain::ids::NodeId;
use domain::state::JobState;
use serde_json::{Value, json};
use server::app::planning;
use sqlx::PgPool;

use super::fixture::{Client, Server};
use super::fleet::{Fleet, add_node, turn};
use super::page_form::{Form, browser, part};
use super::pages::{Browser, add_person};
use super::prospects::{set_quota, spec};

async fn tried(client: &Client, quotas: Value) -> Value {
    let diff = client
        .post("/planning/policy-diff", json!({ "quotas": quotas }))
        .await;
    diff.expect(StatusCode::OK)
}

/// The warnings of an answer that windows hold in place of what is changed: each window and its teams.
fn told(answer: &Value) -> Vec<(Value, Value)> {
    let warnings = answer["warnings"].as_array().expect("warnings").iter();
    let of_windows = warnings.filter(|warning| warning["code"] == "window_in_place");
    of_windows
        .map(|warning| (warning["window"].clone(), warning["teams"].clone()))
        .collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_quota_that_an_open_window_holds_in_place_of_is_marked_and_told_with_its_change(
    owner: PgPool,
) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 12).await;
    let operator = server.client("operator");
    let always = json!({
        "name": "always", "days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
        "from": "00:00", "to": "00:00",
        "quotas": [{ "team": "vision", "quota": { "guaranteed": 3, "limit": 6 } }],
    });
    let made = operator.post("/pools/h100/windows", always).await;
    made.expect(StatusCode::CREATED);
    let of = |team: &str| json!([{ "team": team, "pool": "h100", "quota": { "guaranteed": 5 } }]);
    let expected = [(json!("always"), json!(["vision"]))];
    assert_eq!(told(&tried(&operator, of("vision")).await), expected);
    assert_eq!(told(&tried(&operator, of("speech")).await), []);
    let put = operator
        .put("/teams/vision/quotas/h100", json!({ "guaranteed": 4 }))
        .header("If-Match", "\"1\"");
    assert_eq!(told(&put.send().await.expect(StatusCode::OK)), expected);

    let mut page = browser(&owner, &server, "operator").await;
    let shown = page.get("/quotas").await;
    let words = "the window always holds in place of this: Guaranteed 3, Limit 6,";
    assert_eq!(shown.html.matches(words).count(), 1, "{}", shown.html);
    let form = Form::of(&shown, "/quotas").with("vision/h100/guaranteed", "5");
    let answer = form.send(&mut page, "try").await;
    let effect = part(&answer, "id=\"effect\"", "</section>");
    let words = "and holds in place of the quota of vision: what you change there is felt once it has closed.";
    assert!(effect.contains(words), "{effect}");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_try_says_of_jobs_that_the_changed_quota_never_admits_that_they_never_start(
    owner: PgPool,
) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let member = server.client("vision-member");
    let job = json!({ "name": "big", "command": ["true"], "per_worker": { "gpus": 6 } });
    let job = member.post("/teams/vision/jobs", job).await;
    let job = job.expect(StatusCode::CREATED)["id"].clone();
    let operator = server.client("operator");
    let quota = |limit: u32| json!([{ "team": "vision", "pool": "h100", "quota": { "guaranteed": 4, "limit": limit } }]);
    let diff = tried(&operator, quota(4)).await;
    let told = &diff["jobs"][0];
    assert_eq!(told["job"], job);
    assert_eq!(told["effect"], "never_starts");
    assert_eq!(told["after"]["beyond_quota"]["have"], 4);
    assert_eq!(told["before"]["beyond_quota"], Value::Null);
    // A window that is open is no reason of its own, whatever is tried beside it.
    let open = json!({
        "name": "always", "days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
        "from": "00:00", "to": "00:00",
        "quotas": [{ "team": "vision", "quota": { "guaranteed": 1, "limit": 2 } }],
    });
    let made = operator.post("/pools/h100/windows", open).await;
    made.expect(StatusCode::CREATED);
    let beside = tried(&operator, quota(8)).await;
    assert_eq!(beside["jobs"], json!([]), "the window ends");
    let gone = operator.ask(Method::DELETE, "/pools/h100/windows/always");
    let gone = gone.header("If-Match", "\"1\"").send().await;
    gone.expect(StatusCode::NO_CONTENT);
    // What starts later, and does not start never, is told as that.
    let put = operator
        .put(
            "/teams/vision/quotas/h100",
            json!({ "guaranteed": 4, "limit": 4 }),
        )
        .header("If-Match", "\"1\"");
    put.send().await.expect(StatusCode::OK);
    let back = tried(&operator, quota(7)).await;
    assert_eq!(back["jobs"][0]["effect"], "starts");

    let queue = member.get("/pools/h100/queue").await.expect(StatusCode::OK);
    assert_eq!(queue["items"][0]["beyond_quota"]["have"], 4, "{queue}");
    let mut page = browser(&owner, &server, "operator").await;
    let shown = page.get("/queue?pool=h100").await;
    for words in [
        "Its quota never admits it as it is.",
        "and team vision may hold <b>4 GPUs</b> of pool h100, even when nothing else runs.",
    ] {
        assert!(shown.html.contains(words), "{words}: {}", shown.html);
    }
    turn(&server.app).await;
    let shown = page.get("/jobs").await;
    let words = "Its quota never admits it as it is.";
    assert!(shown.html.contains(words), "{}", shown.html);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_may_not_be_preempted_is_told_to_be_changed_in_place_where_that_helps(
    owner: PgPool,
) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 8).await;
    let firm = |gpus| spec(gpus, json!({ "class": "training-high" }));
    let job = fleet.submit_spec(firm(6)).await.expect("taken");
    fleet.turn().await;
    add_person(&owner, "boss", Some("admin")).await;
    let mut browser = Browser::new(&fleet.app);
    browser.sign_in("boss").await;
    let page = browser.get(&format!("/jobs/{}", job.id)).await.html;
    for words in [
        "It cannot start under the present quota. Let it be preempted,",
        "<input type=\"hidden\" name=\"preemptible\" value=\"true\">",
        "<dd>the guarantee of team vision in pool h100</dd>",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let told = planning::explain(&fleet.app, &fleet.ada(), job.id).await;
    let told = told.expect("explained");
    let remedies = &told.waiting.expect("it waits")["remedies"];
    assert_eq!(remedies[0]["change"], json!({ "preemptible": true }));
    let patch = serde_json::from_value(json!({ "preemptible": true })).expect("a patch");
    let version = fleet.job(job.id).await.version;
    server::app::jobs::update(&fleet.app, &fleet.ada(), job.id, version, patch)
        .await
        .expect("changed");
    fleet.turn().await;
    assert_eq!(fleet.job(job.id).await.state, JobState::Starting);

    // Where the limit does not admit it either, no such thing is said.
    set_quota(&fleet, "vision", 4000, Some(5000)).await;
    let job = fleet.submit_spec(firm(6)).await.expect("taken");
    assert!(job.message.contains("present quota"), "{}", job.message);
    assert!(!job.message.contains("preempted"), "{}", job.message);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_waits_is_changed_by_a_form_of_its_page(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let member = server.client("vision-member");
    let job = json!({ "name": "big", "command": ["true"], "per_worker": { "gpus": 2 } });
    let job = member.post("/teams/vision/jobs", job).await;
    let job = job.expect(StatusCode::CREATED)["id"]
        .as_str()
        .map(str::to_owned);
    let job = job.expect("an id");
    let mut page = browser(&owner, &server, "vision-member").await;
    let address = format!("/jobs/{job}/change");
    let form = Form::of(&page.get(&format!("/jobs/{job}")).await, &address);
    let changed = form
        .clone()
        .with("class", "training-high")
        .with("preemptible", "false")
        .with("time_limit_minutes", "90");
    let changed = changed.send(&mut page, "").await;
    changed.leads_to(&format!("/jobs/{job}?done=changed"));
    let spec = async || {
        let told = member
            .get(&format!("/jobs/{job}"))
            .await
            .expect(StatusCode::OK);
        let spec = &told["spec"];
        ["class", "preemptible", "time_limit_seconds"].map(|key| spec[key].clone())
    };
    assert_eq!(
        spec().await,
        [json!("training-high"), json!(false), json!(5400)]
    );
    let form = Form::of(&page.get(&format!("/jobs/{job}")).await, &address);
    assert_eq!(form.value("time_limit_minutes"), "90");
    let cleared = form.with("preemptible", "").with("time_limit_minutes", "");
    let cleared = cleared.send(&mut page, "").await;
    cleared.leads_to(&format!("/jobs/{job}?done=changed"));
    assert_eq!(
        spec().await,
        [json!("training-high"), Value::Null, Value::Null]
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_booked_and_what_is_guaranteed_is_set_against_the_same_devices(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 6).await;
    let away = add_node(&owner, "h100", "n2", 4).await;
    sqlx::query!(
        "UPDATE nodes SET reachability = 'unreachable', version = version + 1 WHERE id = $1",
        away as NodeId
    )
    .execute(&owner)
    .await
    .expect("it is away for now");
    let operator = server.client("operator");
    let demo = json!({
        "name": "demo", "team": "vision", "gpus": 3,
        "from": "2126-01-01T09:00:00Z", "to": "2126-01-01T17:00:00Z",
    });
    let made = operator.post("/pools/h100/bookings", demo).await;
    let conflict = made.expect(StatusCode::CREATED)["conflicts"][0].clone();
    assert_eq!(conflict["capacity"], 10, "{conflict}");
    let quota = |guaranteed: u32| json!([{ "team": "vision", "pool": "h100", "quota": { "guaranteed": guaranteed } }]);
    let within = tried(&operator, quota(6)).await;
    assert_eq!(within["warnings"], json!([]), "ten are promised of ten");
    let over = tried(&operator, quota(7)).await;
    assert_eq!(
        over["warnings"][0]["capacity"], conflict["capacity"],
        "{over}"
    );
    let page = browser(&owner, &server, "operator")
        .await
        .get("/quotas")
        .await;
    assert!(
        page.html.contains("8 guaranteed of 10 GPUs"),
        "{}",
        page.html
    );
}
