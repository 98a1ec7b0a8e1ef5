//! Walks every page, read or sent, with every role, in its own team and in another, and compares
//! what it may do with `authorisation_pages.txt`.

use std::collections::{BTreeMap, BTreeSet};

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, COOKIE, LOCATION};
use axum::http::{Request, StatusCode};
use domain::ids::RequestId;
use http_body_util::BodyExt as _;
use server::app::sessions::{self, SessionKind};
use server::pages::ROUTES;
use sqlx::PgPool;
use tower::ServiceExt as _;

use crate::authorisation::{Ground, ROLES, table};

/// Somebody with a browser.
struct Reader {
    router: Router,
    cookie: String,
    csrf: String,
}

/// What a page was answered, as far as it tells who may do what.
struct Answered {
    status: StatusCode,
    location: String,
    /// What it shows; of a stream, which need not end, nothing.
    html: String,
}

impl Reader {
    /// A person of the ground, in a session of its own, since some pages end it.
    async fn come(ground: &Ground, role: &str) -> Self {
        let app = &ground.server.app;
        let user = ground.server.users[role];
        let opened = sessions::open(app, user, SessionKind::Page, 3600).await;
        let secret = opened.expect("a session").secret;
        let session =
            sessions::authenticate(app, &secret, SessionKind::Page, RequestId::new()).await;
        Self {
            router: server::serve::router(app.clone()),
            cookie: format!("{}={secret}", sessions::cookie_name(&app.config.sessions)),
            csrf: session.expect("a live session").csrf_token,
        }
    }

    fn stranger(ground: &Ground) -> Self {
        Self {
            router: server::serve::router(ground.server.app.clone()),
            cookie: String::new(),
            csrf: String::new(),
        }
    }

    async fn send(&self, method: &str, path: &str, form: &str) -> Answered {
        let mut request = Request::builder()
            .method(method.to_uppercase().as_str())
            .uri(path)
            .header(COOKIE, &self.cookie);
        if method == "post" {
            request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        let request = request.body(Body::from(form.to_owned()));
        let answer = self.router.clone().oneshot(request.expect("a request"));
        let answer = answer.await.expect("the router always answers");
        let (parts, body) = answer.into_parts();
        let text = |name| {
            parts.headers.get(name).map_or_else(String::new, |value| {
                value.to_str().expect("ASCII").to_owned()
            })
        };
        let page = text(CONTENT_TYPE).starts_with("text/html");
        let html = if page {
            let bytes = body.collect().await.expect("a page").to_bytes();
            String::from_utf8(bytes.to_vec()).expect("UTF-8")
        } else {
            String::new()
        };
        Answered {
            status: parts.status,
            location: text(LOCATION),
            html,
        }
    }

    /// The address of a file that pages refer to.
    async fn asset(&self) -> String {
        let request = Request::get("/signin").body(Body::empty());
        let answer = self
            .router
            .clone()
            .oneshot(request.expect("a request"))
            .await
            .expect("an answer");
        let html = answer.into_body().collect().await.expect("a page");
        let html = String::from_utf8(html.to_bytes().to_vec()).expect("UTF-8");
        let at = html.find("/assets/").expect("a page refers to its style");
        html[at..].split('"').next().expect("it ends").to_owned()
    }
}

/// Fields that are good enough to reach the question of who asks.
fn fields(path: &str) -> &'static str {
    match path {
        "/signin" => "username=nobody&password=x",
        "/theme" => "theme=dark",
        // A version that it has not: who may change it is told so.
        "/jobs/{job}/change" => "version=999&time_limit_seconds=60",
        "/submit" | "/submit/dry-run" => {
            "team=vision&name=b&kind=batch&class=normal&command=true&gpus=1&share=exclusive"
        }
        "/teams" => "name=vision",
        "/teams/{team}/members" => "user=vision-viewer&role=viewer",
        "/pools" => "name=h100",
        // A version that nothing has: who may change is told so, and nothing is changed.
        "/policy-versions/{policy_version}/restore" => "version=999",
        path if path.starts_with("/classes/") || path.starts_with("/pools/") => {
            "version=999&do=save"
        }
        "/price-books" => "pool=h100&mode=mig&amount=x&currency=CNY&from=x&reason=x",
        "/users" => "name=admin&password=a+long+enough+one+7",
        _ => "",
    }
}

fn cell(method: &str, path: &str, answered: &Answered) -> &'static str {
    match answered.status {
        StatusCode::FORBIDDEN => "-",
        StatusCode::NOT_FOUND => ".",
        // Wrong credentials, or guessed too often by the walk itself: the door is open.
        StatusCode::UNAUTHORIZED | StatusCode::TOO_MANY_REQUESTS if path == "/signin" => "+",
        // The node of this test never answers.
        StatusCode::SERVICE_UNAVAILABLE if path.ends_with("/log/stream") => "+",
        StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY if method == "post" => "+",
        StatusCode::SEE_OTHER | StatusCode::TEMPORARY_REDIRECT
            if path != "/signout" && answered.location.starts_with("/signin") =>
        {
            "!"
        }
        status if status.is_success() || status.is_redirection() => "+",
        _ => "!",
    }
}

struct Walk {
    ground: Ground,
    asset: String,
}

impl Walk {
    async fn prepare(owner: PgPool) -> Self {
        let ground = Ground::prepare(owner).await;
        let asset = Reader::stranger(&ground).asset().await;
        Self { ground, asset }
    }

    fn address(&self, path: &str) -> String {
        let query = if path.ends_with("/log/stream") {
            "?attempt=1&worker=0"
        } else {
            ""
        };
        let filled = path
            .replace("/assets/{*path}", &self.asset)
            .replace("{team}", "vision")
            .replace("{user}", "vision-viewer")
            .replace("{node}", "n1")
            .replace("{device}", "0")
            .replace("{policy_version}", "1")
            .replace("{price_book}", "1")
            .replace("{period}", "2026-01")
            .replace("{day}", "2026-01-01")
            .replace("{pool}", "h100")
            .replace("{class}", "spare")
            .replace("{booking}", "spare")
            .replace("{window}", "spare")
            .replace("{job}", &self.ground.job.to_string());
        assert!(!filled.contains('{'), "{path} needs an example here");
        filled + query
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn every_role_may_do_on_pages_what_the_matrix_says_and_nothing_else(owner: PgPool) {
    let expected: BTreeMap<String, Vec<&str>> = table(include_str!("authorisation_pages.txt"), 2);
    let there: BTreeSet<String> = ROUTES
        .iter()
        .map(|(method, path)| format!("{method} {path}"))
        .collect();
    assert_eq!(
        there,
        expected.keys().cloned().collect(),
        "authorisation_pages.txt has a row for each page"
    );
    let walk = Walk::prepare(owner).await;
    let mut faults = Vec::new();
    for (method, path) in ROUTES {
        let row = &expected[&format!("{method} {path}")];
        for (role, expected) in ROLES.iter().zip(row) {
            walk.ground.restore().await;
            let reader = Reader::come(&walk.ground, role).await;
            let form = format!("csrf={}&{}", reader.csrf, fields(path));
            let answered = reader.send(method, &walk.address(path), &form).await;
            let found = cell(method, path, &answered);
            if found != *expected {
                faults.push(format!(
                    "{method} {path} by {role}: {found} ({} {}), not {expected}",
                    answered.status, answered.location
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[sqlx::test(migrations = "../migrations")]
async fn no_form_is_taken_without_its_token_whoever_sends_it(owner: PgPool) {
    let walk = Walk::prepare(owner).await;
    for (method, path) in ROUTES.iter().filter(|(method, _)| *method == "post") {
        let reader = Reader::come(&walk.ground, "admin").await;
        for token in ["", "x", &walk.ground.job.to_string()] {
            let form = format!("csrf={token}&{}", fields(path));
            let answered = reader.send(method, &walk.address(path), &form).await;
            let refused = if *path == "/signin" {
                StatusCode::UNAUTHORIZED
            } else {
                StatusCode::FORBIDDEN
            };
            assert_eq!(answered.status, refused, "{path} with token {token:?}");
        }
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn no_page_but_the_sign_in_shows_anything_to_who_is_not_signed_in(owner: PgPool) {
    let walk = Walk::prepare(owner).await;
    let stranger = Reader::stranger(&walk.ground);
    for (method, path) in ROUTES {
        if ["/", "/signin", "/assets/{*path}"].contains(path) {
            continue;
        }
        let answered = stranger
            .send(method, &walk.address(path), fields(path))
            .await;
        assert!(
            answered.status.is_redirection() && answered.location.starts_with("/signin?next="),
            "{method} {path}: {} {}",
            answered.status,
            answered.location
        );
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn no_page_takes_a_parameter_that_it_does_not_know(owner: PgPool) {
    let walk = Walk::prepare(owner).await;
    for (method, path) in ROUTES {
        let reader = Reader::come(&walk.ground, "admin").await;
        let form = format!("csrf={}&{}", reader.csrf, fields(path));
        let address = walk.address(path);
        let mark = if address.contains('?') { '&' } else { '?' };
        let address = format!("{address}{mark}colour=red");
        let answered = reader.send(method, &address, &form).await;
        assert_eq!(
            answered.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{method} {address}"
        );
        assert!(
            answered.html.contains("<b>colour</b>"),
            "{method} {address}: {}",
            answered.html
        );
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn an_address_that_is_no_utf_8_gets_a_page_that_says_so(owner: PgPool) {
    let walk = Walk::prepare(owner).await;
    for (method, path) in ROUTES.iter().filter(|(_, path)| path.contains('{')) {
        let reader = Reader::come(&walk.ground, "admin").await;
        let form = format!("csrf={}&{}", reader.csrf, fields(path));
        let (before, rest) = path.split_once('{').expect("a part that varies");
        let after = rest.split_once('}').expect("its end").1;
        let address = walk.address(&format!("{before}%FF{after}"));
        let answered = reader.send(method, &address, &form).await;
        assert_eq!(
            answered.status,
            StatusCode::BAD_REQUEST,
            "{method} {address}"
        );
        assert!(
            answered.html.contains("<h1>That cannot be understood</h1>"),
            "{method} {address}: {}",
            answered.html
        );
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn who_may_not_send_a_form_is_told_so_before_what_is_wrong_with_it(owner: PgPool) {
    let expected: BTreeMap<String, Vec<&str>> = table(include_str!("authorisation_pages.txt"), 2);
    let walk = Walk::prepare(owner).await;
    walk.ground.restore().await;
    let mut faults = Vec::new();
    for (method, path) in ROUTES.iter().filter(|(method, _)| *method == "post") {
        let named = path.contains("{team}") || path.contains("{job}");
        for (role, expected) in ROLES.iter().zip(&expected[&format!("{method} {path}")]) {
            let judged = match *expected {
                "-" => StatusCode::FORBIDDEN,
                "." if named => StatusCode::NOT_FOUND,
                _ => continue,
            };
            let reader = Reader::come(&walk.ground, role).await;
            let token = format!("csrf={}", reader.csrf);
            let many = "x".repeat(2 * 1024 * 1024);
            for wrong in [
                token.clone(),
                format!("{token}&there_is_no_such_field=1&version=x&team=%20&elements=x"),
                format!("{token}&name=%FF"),
                format!("{token}&name={many}"),
            ] {
                let answered = reader.send(method, &walk.address(path), &wrong).await;
                if answered.status != judged {
                    let sent: String = wrong.chars().skip(token.len()).take(60).collect();
                    faults.push(format!(
                        "{path} by {role} with {sent:?}: {}, not {judged}",
                        answered.status
                    ));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
