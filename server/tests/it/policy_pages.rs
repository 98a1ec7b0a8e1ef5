//! The pages of policies: tables and forms that are tried on the live world before they are saved.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use super::fixture::{Client, Server};
use super::fleet::{add_node, turn};
use super::pages::{Browser, Page, give_password};

pub async fn browser(owner: &PgPool, server: &Server, name: &str) -> Browser {
    give_password(owner, server.users[name]).await;
    let mut browser = Browser::new(&server.app);
    browser.sign_in(name).await;
    browser
}

/// The fields of a page's form, as a browser without scripts would send them.
#[derive(Debug, Clone)]
pub struct Form {
    pub action: String,
    fields: BTreeMap<String, String>,
}

impl Form {
    /// The form with this address.
    pub fn of(page: &Page, action: &str) -> Self {
        let opening = format!(" action=\"{action}\"");
        let form = page
            .html
            .split("<form")
            .skip(1)
            .map(|form| form.split("</form>").next().expect("a part"))
            .find(|form| {
                let tag = form.split('>').next().expect("a tag");
                tag.contains(&opening)
            })
            .unwrap_or_else(|| panic!("no form for {action} in {}", page.html));
        let mut fields = BTreeMap::new();
        for tag in form.split("<input").skip(1) {
            let tag = tag.split('>').next().expect("a tag");
            let off = ["checkbox", "radio"].contains(&attribute(tag, "type").as_str())
                && !tag.contains(" checked");
            let name = attribute(tag, "name");
            if !name.is_empty() && !off {
                fields.insert(name, attribute(tag, "value"));
            }
        }
        for select in form.split("<select").skip(1) {
            let select = select.split("</select>").next().expect("a part");
            let options: Vec<&str> = select.split("<option").skip(1).collect();
            let chosen = options
                .iter()
                .find(|option| {
                    option
                        .split('>')
                        .next()
                        .expect("a tag")
                        .contains(" selected")
                })
                .or(options.first());
            if let Some(option) = chosen {
                fields.insert(attribute(select, "name"), attribute(option, "value"));
            }
        }
        Self {
            action: action.to_owned(),
            fields,
        }
    }

    pub fn value(&self, name: &str) -> &str {
        self.fields
            .get(name)
            .unwrap_or_else(|| panic!("no field {name} in {self:?}"))
    }

    /// The same with this field filled in.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The same without a field, as of a box that is not ticked.
    pub fn without(mut self, name: &str) -> Self {
        self.fields.remove(name);
        self
    }

    pub async fn send(&self, browser: &mut Browser, button: &str) -> Page {
        let mut pairs: Vec<String> = self
            .fields
            .iter()
            .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
            .collect();
        if !button.is_empty() {
            pairs.push(format!("do={button}"));
        }
        browser.post(&self.action, &pairs.join("&")).await
    }
}

fn attribute(tag: &str, name: &str) -> String {
    let tag = tag.split('>').next().expect("a tag");
    let value = tag.split(&format!(" {name}=\"")).nth(1);
    let value = value.and_then(|rest| rest.split('"').next()).unwrap_or("");
    value.replace("&amp;", "&")
}

fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// What stands on a page from a mark to the end of its element.
pub fn part<'p>(page: &'p Page, from: &str, to: &str) -> &'p str {
    let rest = page.html.split_once(from);
    let rest = rest
        .unwrap_or_else(|| panic!("no {from} in {}", page.html))
        .1;
    rest.split(to).next().expect("a part")
}

async fn quota(client: &Client, team: &str) -> Value {
    let all = client.get("/quotas").await.expect(StatusCode::OK);
    let items = all["items"].as_array().expect("items");
    let found = items.iter().find(|quota| quota["team"] == team);
    found.cloned().unwrap_or(Value::Null)
}

async fn run(server: &Server, team: &str, gpus: u32) {
    let client = server.client(&format!("{team}-member"));
    let spec = json!({"name": format!("train-{team}"), "command": ["true"], "preemptible": true, "per_worker": {"gpus": gpus}});
    let job = client.post(&format!("/teams/{team}/jobs"), spec).await;
    job.expect(StatusCode::CREATED);
    turn(&server.app).await;
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
    assert_eq!(
        saved.location.as_deref(),
        Some("/quotas?done=quotas_saved"),
        "{}",
        saved.html
    );
    let kept = quota(&client, "vision").await;
    assert_eq!(
        (&kept["guaranteed"], &kept["max_per_user"]),
        (&json!(2.5), &json!(3))
    );
    // Once more, as who presses twice does: the same change, and not another one.
    let again = Form::of(&tried, "/quotas")
        .send(&mut operator, "save")
        .await;
    assert_eq!(again.location.as_deref(), Some("/quotas?done=quotas_saved"));
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
    assert!(told.contains("it has changed meanwhile"), "{told}");
    assert_eq!(quota(&admin, "vision").await["guaranteed"], 3);
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
    let done = back.send(&mut operator, "").await;
    assert_eq!(
        done.location.as_deref(),
        Some("/policy-versions?object=quota%2Fvision%2Fh100&done=restored"),
        "{}",
        done.html
    );
    assert_eq!(quota(&client, "vision").await["guaranteed"], 4);
    // The page was made before that: the version that it knew is not there any more.
    let stale = back.send(&mut operator, "").await;
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
    assert_eq!(
        saved.location.as_deref(),
        Some("/pools/h100?done=policy_saved"),
        "{}",
        saved.html
    );
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
        "What may pass work that does not fit easy → conservative",
        "Why: calmer",
    ] {
        assert!(page.html.contains(words), "{words}: {}", page.html);
    }
    // The form that was made of the first version knows that it is not there any more.
    let stale = form.send(&mut operator, "save").await;
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
    let made = form.with("name", "spare").with("priority", "5");
    let made = made
        .with("preemptible", "true")
        .send(&mut operator, "")
        .await;
    assert_eq!(
        made.location.as_deref(),
        Some("/classes?done=class_made"),
        "{}",
        made.html
    );
    let page = operator.get("/classes").await;
    let form = Form::of(&page, "/classes/spare");
    let wrong = form
        .clone()
        .with("priority", "high")
        .send(&mut operator, "")
        .await;
    assert!(
        wrong.html.contains("id=\"priority-spare-e\""),
        "{}",
        wrong.html
    );
    let changed = form
        .clone()
        .with("priority", "-7")
        .send(&mut operator, "")
        .await;
    assert_eq!(
        changed.location.as_deref(),
        Some("/classes?done=class_saved"),
        "{}",
        changed.html
    );
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
    let stale = form.with("priority", "8").send(&mut operator, "").await;
    assert!(
        stale.html.contains("has changed meanwhile"),
        "{}",
        stale.html
    );
    let page = operator.get("/classes").await;
    let gone = Form::of(&page, "/classes/spare/delete")
        .send(&mut operator, "")
        .await;
    assert_eq!(
        gone.location.as_deref(),
        Some("/classes?done=class_deleted")
    );
    assert!(
        !page.html.contains("/classes/normal/delete"),
        "{}",
        page.html
    );
}

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
        for button in ["try", "save"] {
            let refused = form
                .clone()
                .with(field, value)
                .send(&mut operator, button)
                .await;
            assert!(
                refused.html.contains(&format!("id=\"{id}-e\"")),
                "{field} {button}: {}",
                refused.html
            );
        }
    }
    let tried = form.send(&mut operator, "try").await;
    assert!(tried.html.contains("Nothing was saved."), "{}", tried.html);
    let made = Form::of(&tried, "/pools/h100/bookings")
        .send(&mut operator, "save")
        .await;
    assert_eq!(
        made.location.as_deref(),
        Some("/pools/h100/bookings?done=booking_made"),
        "{}",
        made.html
    );
    let page = operator.get("/pools/h100/bookings?week=2126-01-09").await;
    assert!(page.html.contains("colspan=\"2\""), "{}", page.html);
    assert!(
        page.html.contains("2126-01-07 09:00 to 2126-01-08 17:00: 2 GPUs more are promised than h100 has. Guaranteed then: 8; booked: 2; there: 8."),
        "{}",
        page.html
    );
    let edit = operator
        .get("/pools/h100/bookings?edit=demo&week=2126-01-07")
        .await;
    let form = Form::of(&edit, "/pools/h100/bookings/demo");
    assert_eq!(form.value("from"), "2126-01-07T09:00");
    let saved = form.with("gpus", "1.5").send(&mut operator, "save").await;
    assert_eq!(
        saved.location.as_deref(),
        Some("/pools/h100/bookings?done=booking_saved"),
        "{}",
        saved.html
    );
    let mut member = browser(&owner, &server, "speech-member").await;
    let others = member.get("/pools/h100/bookings?week=2126-01-07").await;
    assert!(!others.html.contains("demo"), "{}", others.html);
    let page = operator.get("/pools/h100/bookings?week=2126-01-07").await;
    let gone = Form::of(&page, "/pools/h100/bookings/demo/delete")
        .send(&mut operator, "")
        .await;
    assert_eq!(
        gone.location.as_deref(),
        Some("/pools/h100/bookings?done=booking_deleted")
    );
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
        for button in ["try", "save"] {
            let refused = form
                .clone()
                .with(field, value)
                .send(&mut operator, button)
                .await;
            assert!(
                refused.html.contains(&format!("id=\"{id}-e\"")),
                "{field} {button}: {}",
                refused.html
            );
        }
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
    assert_eq!(
        made.location.as_deref(),
        Some("/pools/h100/windows?done=window_made"),
        "{}",
        made.html
    );
    let page = operator.get("/pools/h100/windows").await;
    assert!(
        page.html
            .contains("colspan=\"4\"><a href=\"#window-nights\">"),
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
    assert_eq!(
        saved.location.as_deref(),
        Some("/pools/h100/windows?done=window_saved"),
        "{}",
        saved.html
    );
    let mut member = browser(&owner, &server, "speech-member").await;
    let seen = member.get("/pools/h100/windows").await;
    assert!(seen.html.contains("nights") && !seen.html.contains("action=\"/pools/h100/windows\""));
    assert!(seen.html.contains("quotas of other teams"), "{}", seen.html);
    let page = operator.get("/pools/h100/windows").await;
    let gone = Form::of(&page, "/pools/h100/windows/nights/delete")
        .send(&mut operator, "")
        .await;
    assert_eq!(
        gone.location.as_deref(),
        Some("/pools/h100/windows?done=window_deleted")
    );
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
