//! What pages tell: the same of a team wherever it is shown, and in the words of the message file.

use axum::http::StatusCode;
use serde_json::json;
use sqlx::PgPool;

use crate::fixture::Server;
use crate::fleet::{add_node, turn};
use crate::pages::{Browser, give_password, token};

async fn browser(owner: &PgPool, server: &Server, name: &str) -> Browser {
    give_password(owner, server.users[name]).await;
    let mut browser = Browser::new(&server.app);
    browser.sign_in(name).await;
    browser
}

/// The row of a table whose head holds `name` in its text.
fn row<'h>(html: &'h str, name: &str) -> &'h str {
    html.split("<tr>")
        .map(|rest| rest.split("</tr>").next().unwrap_or(rest))
        .find(|row| row.contains(&format!(">{name}<")))
        .unwrap_or_else(|| panic!("no row of {name} in {html}"))
}

/// What a row or a page holds under a head, as it is shown.
fn figure<'h>(html: &'h str, head: &str) -> &'h str {
    html.rsplit(&format!("data-l=\"{head}\">"))
        .next()
        .filter(|rest| rest.len() < html.len())
        .and_then(|rest| rest.split('<').next())
        .unwrap_or_else(|| panic!("nothing under {head} in {html}"))
}

/// The links to teams of a page.
fn links(html: &str) -> Vec<&str> {
    html.split("href=\"/teams/")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_team_above_has_no_figures_and_no_link(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut member = browser(&owner, &server, "vision-member").await;
    let list = member.get("/teams").await;
    let above = row(&list.html, "org");
    for head in [
        "GPUs held",
        "Guaranteed",
        "Jobs waiting",
        "Spent this month",
    ] {
        assert!(!above.contains(head), "{head}: {above}");
    }
    assert_eq!(figure(row(&list.html, "vision"), "Guaranteed"), "4");
    let own = member.get("/teams/vision").await;
    assert!(own.html.contains(" / org</p>"), "it is named");
    for page in [&list.html, &own.html, &member.get("/jobs").await.html] {
        assert!(!page.contains("<option>org</option>"), "{page}");
        for team in links(page) {
            let there = member.get(&format!("/teams/{team}")).await;
            assert_eq!(there.status, StatusCode::OK, "a link to {team}");
        }
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_team_with_teams_below_tells_the_same_on_both_pages(owner: PgPool) {
    let server = Server::start(&owner).await;
    for user in ["org-member", "finance"] {
        let mut reader = browser(&owner, &server, user).await;
        let list = reader.get("/teams").await.html;
        let page = reader.get("/teams/org").await.html;
        for head in ["GPUs held", "Guaranteed"] {
            assert_eq!(
                figure(row(&list, "org"), head),
                figure(&page, head),
                "{head}"
            );
        }
        assert_eq!(figure(&page, "Guaranteed"), "8", "4 of each team below");
        assert_eq!(figure(row(&page, "h100"), "Guaranteed"), "8");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn an_unknown_user_in_the_filter_is_an_empty_list_with_a_note(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut member = browser(&owner, &server, "vision-member").await;
    for user in ["nobody", "Not+A+Name", "speech-member"] {
        let page = member.get(&format!("/jobs?user={user}")).await;
        assert_eq!(page.status, StatusCode::OK, "{user}");
        assert!(page.html.contains("id=\"f-user-e\""), "{}", page.html);
        assert!(page.html.contains("No job matches the filter."), "{user}");
    }
    let own = member.get("/jobs?user=vision-member").await;
    assert!(!own.html.contains("id=\"f-user-e\""));
}

#[sqlx::test(migrations = "../migrations")]
async fn who_is_signed_in_is_not_asked_to_sign_in_where_nothing_is(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut member = browser(&owner, &server, "vision-member").await;
    let page = member.get("/nowhere").await;
    assert_eq!(page.status, StatusCode::NOT_FOUND);
    assert!(!page.html.contains("href=\"/signin\""), "{}", page.html);
    assert!(page.html.contains("href=\"/jobs\""));
    let stranger = Browser::new(&server.app).get("/nowhere").await;
    assert!(stranger.html.contains("href=\"/signin\""));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_refused_field_is_named_by_its_label(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut member = browser(&owner, &server, "vision-member").await;
    let token = token(&member.get("/submit?team=vision").await.html);
    let form = |gpus: &str, command: &str| {
        format!(
            "csrf={token}&team=vision&name=a&kind=batch&class=normal&workers=1&share=exclusive&gpus={gpus}&command={command}"
        )
    };
    for (form, label, key) in [
        (form("NaN", "true"), "GPUs per worker", "per_worker.gpus"),
        (form("1.5", "true"), "GPUs per worker", "per_worker.gpus"),
        (
            form("0.5", "true"),
            "Sharing it accepts",
            "per_worker.sharing",
        ),
        (form("1", "sh+-c+%27x"), "Command", "command: "),
        (form("1", ""), "Command", "command: "),
    ] {
        for path in ["/submit", "/submit/dry-run"] {
            let html = member.post(path, &form).await.html;
            if path == "/submit/dry-run" && form.ends_with("command=") {
                continue;
            }
            assert!(
                html.contains(&format!("<b>{label}</b>")),
                "{path} {form}: {html}"
            );
            assert!(
                !html.contains(&format!("{key}: ")) && !html.contains("is refused:"),
                "{html}"
            );
        }
    }
    let several = form("NaN", "sh+-c+%27x");
    for path in ["/submit", "/submit/dry-run"] {
        let html = member.post(path, &several).await.html;
        for label in ["GPUs per worker", "Command"] {
            let told = html.contains(&format!("<b>{label}</b>"));
            assert!(told, "{path}: {label} is told with the other: {html}");
        }
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn what_no_waiting_mends_is_refused_in_the_words_of_the_pages(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut member = browser(&owner, &server, "vision-member").await;
    let token = token(&member.get("/submit?team=vision").await.html);
    let form = format!(
        "csrf={token}&team=vision&name=a&kind=batch&class=normal&workers=1&share=exclusive&gpus=1&command=true"
    );
    let words = "No registered node has what it asks for.";
    for path in ["/submit", "/submit/dry-run"] {
        let html = member.post(path, &form).await.html;
        assert!(html.contains(words), "{path}: {html}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn other_forms_are_refused_in_the_words_of_the_pages(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut admin = browser(&owner, &server, "admin").await;
    let token = token(&admin.get("/users").await.html);
    for (path, fields) in [
        ("/users", "name=B%3Cb&password=a+long+enough+one+7&role="),
        ("/users", "name=admin&password=a+long+enough+one+7&role="),
        ("/users", "name=new&password=x&role="),
        ("/teams", "name=A+B&parent="),
        ("/teams", "name=vision&parent="),
        ("/teams/vision/members", "user=A+B&role=member"),
    ] {
        let page = admin.post(path, &format!("csrf={token}&{fields}")).await;
        assert!(
            page.html.contains("class=\"err\""),
            "{path} {fields}: {}",
            page.html
        );
        assert!(
            !page.html.contains("is refused:"),
            "{path} {fields}: {}",
            page.html
        );
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_wait_is_told_in_the_words_of_the_pages(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let spec = json!({"name": "a", "command": ["true"], "per_worker": {"gpus": 8}});
    let client = server.client("vision-member");
    let mut id = String::new();
    // The first takes all there is, the second waits.
    for _ in 0..2 {
        let job = client.post("/teams/vision/jobs", spec.clone()).await;
        id = job.expect(StatusCode::CREATED)["id"]
            .as_str()
            .expect("an id")
            .to_owned();
        turn(&server.app).await;
    }
    let told = client.get(&format!("/jobs/{id}")).await;
    let told = told.expect(StatusCode::OK)["message"].clone();
    let told = told.as_str().expect("the engine's sentence");
    let mut member = browser(&owner, &server, "vision-member").await;
    let page = member.get(&format!("/jobs/{id}")).await.html;
    assert!(
        page.contains("Not enough GPUs are free.</b> It needs <b>8 GPUs</b>; free in pool h100: <b>0 GPUs</b>."),
        "{page}"
    );
    assert!(!page.contains(told), "{told}: {page}");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_pool_whose_nodes_take_no_work_is_called_so(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let admin = server.client("admin");
    let cordoned = admin.post("/nodes/n1/cordon", json!({})).await;
    cordoned.expect(StatusCode::OK);
    let spec = json!({"name": "a", "command": ["true"], "per_worker": {"gpus": 1}});
    let client = server.client("vision-member");
    let job = client.post("/teams/vision/jobs", spec).await;
    let job = job.expect(StatusCode::CREATED);
    turn(&server.app).await;
    let id = job["id"].as_str().expect("an id");
    let mut member = browser(&owner, &server, "vision-member").await;
    let form = format!(
        "csrf={}&team=vision&name=a&kind=batch&class=normal&workers=1&share=exclusive&gpus=1&command=true",
        token(&member.get("/submit?team=vision").await.html)
    );
    for page in [
        member.get(&format!("/jobs/{id}")).await,
        member.get("/jobs").await,
        member.post("/submit/dry-run", &form).await,
    ] {
        let words = "All nodes of pool h100 are cordoned.";
        assert!(page.html.contains(words), "{}", page.html);
        assert!(!page.html.contains("Not enough GPUs"), "{}", page.html);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn who_does_not_see_all_users_is_not_told_how_many_there_are(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut member = browser(&owner, &server, "vision-member").await;
    let page = member.get("/users").await.html;
    assert!(page.contains("You may see <b>"), "{page}");
    assert!(!page.contains("enabled."), "{page}");
    let mut admin = browser(&owner, &server, "admin").await;
    assert!(admin.get("/users").await.html.contains("enabled."));
}

#[sqlx::test(migrations = "../migrations")]
async fn what_never_fits_names_the_field_and_the_most_that_would(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let spec = json!({"name": "a", "command": ["true"], "per_worker": {"gpus": 9}});
    let client = server.client("vision-member");
    let refused = client.post("/teams/vision/jobs", spec).await;
    let problem = refused.problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["field"], "per_worker.gpus", "{problem}");
    assert_eq!(problem["value"], "9");
    assert_eq!(problem["remedy"], "at most 8 on one node of h100");
    let mut member = browser(&owner, &server, "vision-member").await;
    let form = format!(
        "csrf={}&team=vision&name=a&kind=batch&class=normal&workers=1&share=exclusive&gpus=9&command=true",
        token(&member.get("/submit?team=vision").await.html)
    );
    let page = member.post("/submit", &form).await.html;
    assert!(
        page.contains("aria-describedby=\"gpus-e gpus-h\""),
        "{page}"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_refusal_is_a_sentence(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = server.client("admin");
    for (path, body, sentence) in [
        (
            "/nodes/join-tokens",
            json!({}),
            "pool is missing: it takes a string",
        ),
        (
            "/users",
            json!({"name": "u", "password": "short"}),
            "password: one such as was given is refused: at least",
        ),
    ] {
        let refused = admin.post(path, body).await;
        let problem = refused.problem(StatusCode::UNPROCESSABLE_ENTITY);
        let detail = problem["detail"].as_str().expect("a sentence");
        assert!(detail.starts_with(sentence), "{detail}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_query_that_the_list_does_not_know_is_told_as_rest_tells_it(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut member = browser(&owner, &server, "vision-member").await;
    let page = member.get("/jobs?foo=1").await;
    assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY);
    let words = "<b>foo</b> is nothing that this page’s address may hold. It may hold: team, state";
    assert!(page.html.contains(words), "{}", page.html);
    assert!(!page.html.contains("deserialize"), "{}", page.html);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_refused_member_is_told_at_the_top_and_reloading_leads_to_the_team(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut owns = browser(&owner, &server, "vision-owner").await;
    let token = token(&owns.get("/teams/vision").await.html);
    let refused = owns
        .post(
            "/teams/vision/members",
            &format!("csrf={token}&user=nobody&role=member"),
        )
        .await;
    let note = refused.html.find("class=\"note bad\"").expect("a note");
    assert!(
        note < refused.html.find("<h1").expect("a head"),
        "at the top"
    );
    let again = owns.get("/teams/vision/members").await;
    assert_eq!(again.status, StatusCode::SEE_OTHER);
    assert_eq!(again.location.as_deref(), Some("/teams/vision"));
}

#[sqlx::test(migrations = "../migrations")]
async fn priority_classes_say_their_order(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut member = browser(&owner, &server, "vision-member").await;
    let page = member.get("/submit?team=vision").await.html;
    assert!(page.contains("before normal"), "{page}");
    assert!(page.contains("first to give way"), "{page}");
}

#[sqlx::test(migrations = "../migrations")]
async fn who_takes_out_the_last_owner_stays_on_the_page_and_reads_why_not(owner: PgPool) {
    let server = Server::start(&owner).await;
    let mut browser = browser(&owner, &server, "vision-owner").await;
    let team = browser.get("/teams/vision").await.html;
    let form = format!("csrf={}", token(&team));
    let kept = browser
        .post("/teams/vision/members/vision-owner/remove", &form)
        .await;
    assert_eq!(kept.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(kept.html.contains("A team keeps at least one owner."));
    assert!(
        kept.html.contains("hx-get=\"/teams/vision\""),
        "it is the team's page"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_change_that_is_pressed_stands_in_the_form(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let mut browser = browser(&owner, &server, "vision-member").await;
    let linked = browser.get("/submit?team=vision&gpus=3&workers=2").await;
    assert!(
        linked.html.contains("name=\"gpus\" value=\"3\""),
        "{}",
        linked.html
    );
    let form = format!(
        "csrf={}&team=vision&name=a&kind=batch&class=normal&command=true&workers=1&gpus=6&share=&change=gpus%3D2",
        token(&linked.html)
    );
    let pressed = browser.post("/submit", &form).await;
    assert_eq!(pressed.status, StatusCode::OK, "nothing was submitted");
    assert!(pressed.html.contains("name=\"gpus\" value=\"2\""));
    assert!(
        pressed.html.contains("It would start now"),
        "{}",
        pressed.html
    );
}
