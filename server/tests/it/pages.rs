//! Pages through the router: sessions, forged forms, hostile input, and what each role sees.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE};
use axum::http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use server::app::App;
use sqlx::PgPool;
use tower::ServiceExt as _;

use crate::fixture;

pub const PASSWORD: &str = "correct horse battery 9";

/// A browser without scripts: it keeps cookies and sends forms.
pub struct Browser {
    router: axum::Router,
    cookies: Vec<(String, String)>,
}

/// A page as it came.
pub struct Page {
    pub status: StatusCode,
    pub location: Option<String>,
    pub html: String,
}

impl Page {
    /// A form was sent, and this is where its answer leads to.
    pub fn leads_to(&self, address: &str) {
        assert_eq!(self.location.as_deref(), Some(address), "{}", self.html);
    }
}

impl Browser {
    pub fn new(app: &App) -> Self {
        let router = server::pages::router(app.clone()).layer(
            axum::middleware::from_fn_with_state(app.clone(), server::front::context::carry),
        );
        Self {
            router,
            cookies: Vec::new(),
        }
    }

    pub async fn get(&mut self, path: &str) -> Page {
        let request = self.request("GET", path).body(Body::empty());
        self.send(request.expect("a request")).await
    }

    pub async fn post(&mut self, path: &str, form: &str) -> Page {
        let request = self
            .request("POST", path)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(form.to_owned()));
        self.send(request.expect("a request")).await
    }

    fn request(&self, method: &str, path: &str) -> axum::http::request::Builder {
        let cookies: Vec<String> = self
            .cookies
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        Request::builder()
            .method(method)
            .uri(path)
            .header(COOKIE, cookies.join("; "))
    }

    async fn send(&mut self, request: Request<Body>) -> Page {
        let response: Response<Body> = self
            .router
            .clone()
            .oneshot(request)
            .await
            .expect("an answer");
        for cookie in response.headers().get_all(SET_COOKIE) {
            let text = cookie.to_str().expect("ASCII");
            assert!(
                text.contains("HttpOnly") && text.contains("SameSite=Lax"),
                "{text}"
            );
            let (name, value) = text
                .split(';')
                .next()
                .and_then(|pair| pair.split_once('='))
                .expect("a pair");
            self.cookies.retain(|(known, _)| known != name);
            self.cookies.push((name.to_owned(), value.to_owned()));
        }
        let status = response.status();
        let location = response
            .headers()
            .get(LOCATION)
            .map(|value| value.to_str().expect("ASCII").to_owned());
        let bytes = response
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        let html = String::from_utf8(bytes.to_vec()).expect("UTF-8");
        Page {
            status,
            location,
            html,
        }
    }

    pub async fn sign_in(&mut self, name: &str) {
        let token = token(&self.get("/signin").await.html);
        let form = format!(
            "csrf={token}&username={name}&password={}&next=/users",
            PASSWORD.replace(' ', "+")
        );
        let answer = self.post("/signin", &form).await;
        assert_eq!(
            (answer.status, answer.location.as_deref()),
            (StatusCode::SEE_OTHER, Some("/users")),
            "{}",
            answer.html
        );
    }
}

/// The token of the first form of a page.
pub fn token(html: &str) -> String {
    let rest = html
        .split("name=\"csrf\" value=\"")
        .nth(1)
        .expect("a form with a token");
    rest.split('"').next().expect("it ends").to_owned()
}

pub async fn add_person(owner: &PgPool, name: &str, platform_role: Option<&str>) {
    let id = domain::ids::UserId::new();
    sqlx::query!(
        "INSERT INTO users (id, name, platform_role) VALUES ($1, $2, $3)",
        id as domain::ids::UserId,
        name,
        platform_role,
    )
    .execute(owner)
    .await
    .expect("a user");
    give_password(owner, id).await;
}

/// Lets somebody sign in on the page.
pub async fn give_password(owner: &PgPool, id: domain::ids::UserId) {
    let hash = server::app::passwords::hash(PASSWORD.to_owned())
        .await
        .expect("a hash");
    sqlx::query!(
        "INSERT INTO credentials (user_id, password_hash) VALUES ($1, $2)",
        id as domain::ids::UserId,
        hash,
    )
    .execute(owner)
    .await
    .expect("its password");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_page_without_a_session_leads_to_the_sign_in_and_back(owner: PgPool) {
    let app = fixture::app(&owner).await;
    add_person(&owner, "ada", None).await;
    let mut browser = Browser::new(&app);
    let refused = browser.get("/users?cursor=x").await;
    assert_eq!(
        refused.location.as_deref(),
        Some("/signin?next=/users%3Fcursor%3Dx")
    );
    browser.sign_in("ada").await;
    assert_eq!(browser.get("/users").await.status, StatusCode::OK);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_wrong_password_is_refused_in_words_and_an_unknown_name_alike(owner: PgPool) {
    let app = fixture::app(&owner).await;
    add_person(&owner, "ada", None).await;
    let mut browser = Browser::new(&app);
    for name in ["ada", "nobody", "%3Cscript%3E"] {
        let token = token(&browser.get("/signin").await.html);
        let answer = browser
            .post(
                "/signin",
                &format!("csrf={token}&username={name}&password=wrong&next=/"),
            )
            .await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{name}");
        assert!(
            answer.html.contains("do not match") && !answer.html.contains("<script>alert"),
            "{name}"
        );
        assert!(!answer.html.contains("value=\"<script>"), "{name}");
    }
    assert!(browser.cookies.iter().all(|(name, _)| name != "allotment"));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_browser_keeps_the_proofs_of_the_last_eight_names(owner: PgPool) {
    let app = fixture::app(&owner).await;
    add_person(&owner, "ada", None).await;
    let mut browser = Browser::new(&app);
    for n in 0..9 {
        let proof = (format!("allotment-browser-{n}"), "x".to_owned());
        browser.cookies.push(proof);
    }
    browser.sign_in("ada").await;
    let (gone, kept): (Vec<_>, Vec<_>) = browser
        .cookies
        .iter()
        .filter(|(name, _)| name.starts_with("allotment-browser-"))
        .map(|(name, value)| (name.as_str(), value.is_empty()))
        .partition(|(_, gone)| *gone);
    assert_eq!(
        gone,
        [("allotment-browser-0", true), ("allotment-browser-1", true)]
    );
    assert_eq!(kept.len(), 8);
}

#[sqlx::test(migrations = "../migrations")]
async fn who_guesses_a_name_does_not_keep_a_browser_out_that_has_signed_in_with_it(owner: PgPool) {
    let app = fixture::app(&owner).await;
    add_person(&owner, "ada", None).await;
    let mut own = Browser::new(&app);
    own.sign_in("ada").await;
    let mut guesser = Browser::new(&app);
    let csrf = token(&guesser.get("/signin").await.html);
    let guess = format!("csrf={csrf}&username=ada&password=wrong&next=/");
    let mut last = StatusCode::OK;
    for _ in 0..7 {
        last = guesser.post("/signin", &guess).await.status;
    }
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS);
    own.cookies.retain(|(name, _)| name != "allotment");
    own.sign_in("ada").await;
    // A second person there takes nothing from the first.
    add_person(&owner, "bob", None).await;
    for name in ["bob", "ada"] {
        own.cookies.retain(|(name, _)| name != "allotment");
        own.sign_in(name).await;
        for _ in 0..7 {
            guesser.post("/signin", &guess).await;
        }
    }
    // Another browser at the same address has proved nothing.
    let mut new = Browser::new(&app);
    let csrf = token(&new.get("/signin").await.html);
    let right = format!(
        "csrf={csrf}&username=ada&password={}&next=/",
        PASSWORD.replace(' ', "+")
    );
    let answer = new.post("/signin", &right).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
}

#[sqlx::test(migrations = "../migrations")]
async fn who_finds_no_place_in_the_queue_reads_so_on_the_sign_in_page(owner: PgPool) {
    let app = fixture::app(&owner).await;
    add_person(&owner, "ada", None).await;
    let mut browser = Browser::new(&app);
    let token = token(&browser.get("/signin").await.html);
    let places: Vec<_> = std::iter::from_fn(|| app.hashing.queue().ok())
        .take(10_000)
        .collect();
    let answer = browser
        .post("/signin", &format!("csrf={token}&username=ada&password=x"))
        .await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        answer.html.contains("Too many people sign in") && answer.html.contains("value=\"ada\""),
        "{}",
        answer.html
    );
    drop(places);
    browser.sign_in("ada").await;
}

#[sqlx::test(migrations = "../migrations")]
async fn signing_in_never_leads_to_another_site(owner: PgPool) {
    let app = fixture::app(&owner).await;
    add_person(&owner, "ada", None).await;
    let mut browser = Browser::new(&app);
    let token = token(&browser.get("/signin?next=//evil.example").await.html);
    let form = format!(
        "csrf={token}&username=ada&password={}&next=//evil.example",
        PASSWORD.replace(' ', "+")
    );
    assert_eq!(
        browser.post("/signin", &form).await.location.as_deref(),
        Some("/")
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_form_without_its_token_changes_nothing(owner: PgPool) {
    let app = fixture::app(&owner).await;
    add_person(&owner, "root", Some("admin")).await;
    let mut browser = Browser::new(&app);
    browser.sign_in("root").await;
    let token = token(&browser.get("/users").await.html);
    let form = "name=mallory&password=a+long+enough+one+7";
    for forged in [
        form.to_owned(),
        format!("{form}&csrf="),
        format!("{form}&csrf={token}x"),
    ] {
        assert_eq!(
            browser.post("/users", &forged).await.status,
            StatusCode::FORBIDDEN
        );
    }
    let strange = browser
        .post("/users", &format!("{form}&csrf={token}&role=&is_admin=1"))
        .await;
    assert_eq!(strange.status, StatusCode::BAD_REQUEST);
    assert!(!browser.get("/users").await.html.contains("mallory"));
    let done = browser
        .post("/users", &format!("{form}&csrf={token}&role="))
        .await;
    assert_eq!(done.location.as_deref(), Some("/users?done=user_added"));
    let list = browser.get("/users?done=user_added").await;
    assert!(list.html.contains("mallory") && list.html.contains("The user was added."));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_wrong_value_stands_beside_its_field_and_what_was_typed_stays(owner: PgPool) {
    let app = fixture::app(&owner).await;
    add_person(&owner, "root", Some("admin")).await;
    let mut browser = Browser::new(&app);
    browser.sign_in("root").await;
    let token = token(&browser.get("/users").await.html);
    let answer = browser
        .post(
            "/users",
            &format!("csrf={token}&name=%3Cb%3Ex&password=a+long+enough+one+7&role="),
        )
        .await;
    assert!(
        answer.html.contains("value=\"&#60;b&#62;x\"")
            || answer.html.contains("value=\"&lt;b&gt;x\""),
        "{}",
        answer.html
    );
    assert!(answer.html.contains("id=\"name-e\""));
    let taken = browser
        .post(
            "/users",
            &format!("csrf={token}&name=root&password=a+long+enough+one+7&role="),
        )
        .await;
    assert!(taken.html.contains("That name is taken."));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_disabled_user_is_out_at_once(owner: PgPool) {
    let app = fixture::app(&owner).await;
    add_person(&owner, "root", Some("admin")).await;
    add_person(&owner, "ada", None).await;
    let (mut root, mut ada) = (Browser::new(&app), Browser::new(&app));
    root.sign_in("root").await;
    ada.sign_in("ada").await;
    assert!(
        !ada.get("/users").await.html.contains("action=\"/users\""),
        "only administrators add users"
    );
    let token = token(&root.get("/users").await.html);
    let done = root
        .post("/users/ada/disable", &format!("csrf={token}"))
        .await;
    assert_eq!(done.location.as_deref(), Some("/users?done=user_disabled"));
    assert_eq!(
        ada.get("/users").await.location.as_deref(),
        Some("/signin?next=/users")
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn signing_out_ends_the_session_and_its_cookie(owner: PgPool) {
    let app = fixture::app(&owner).await;
    add_person(&owner, "ada", None).await;
    let mut browser = Browser::new(&app);
    browser.sign_in("ada").await;
    let kept = browser.cookies.clone();
    let token = token(&browser.get("/users").await.html);
    assert_eq!(
        browser
            .post("/signout", &format!("csrf={token}"))
            .await
            .location
            .as_deref(),
        Some("/signin")
    );
    browser.cookies = kept;
    assert_eq!(
        browser.get("/users").await.status,
        StatusCode::SEE_OTHER,
        "the old cookie is good for nothing"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_not_there_is_a_page_that_says_so(owner: PgPool) {
    let app = fixture::app(&owner).await;
    add_person(&owner, "ada", None).await;
    let mut browser = Browser::new(&app);
    for path in [
        "/nowhere",
        "/assets/nothing.css",
        "/assets/0000000000000000/app.js",
        "/%ff",
    ] {
        let page = browser.get(path).await;
        assert_eq!(page.status, StatusCode::NOT_FOUND, "{path}");
        assert!(
            page.html.contains("<h1>There is nothing here</h1>"),
            "{path}"
        );
    }
    assert_eq!(
        browser.post("/fleet-of-nothing", "").await.status,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        browser.post("/assets/app.js", "").await.status,
        StatusCode::METHOD_NOT_ALLOWED
    );
    let big = "x".repeat(2 * 1024 * 1024);
    browser.sign_in("ada").await;
    assert_eq!(
        browser.post("/theme", &big).await.status,
        StatusCode::PAYLOAD_TOO_LARGE
    );
    for broken in ["csrf=%ff", "csrf=%4", "a=%zz"] {
        assert_eq!(
            browser.post("/theme", broken).await.status,
            StatusCode::BAD_REQUEST,
            "{broken}"
        );
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn the_theme_is_kept_in_a_cookie_and_stands_on_the_page(owner: PgPool) {
    let app = fixture::app(&owner).await;
    add_person(&owner, "ada", None).await;
    let mut browser = Browser::new(&app);
    browser.sign_in("ada").await;
    let token = token(&browser.get("/users").await.html);
    let answer = browser
        .post("/theme", &format!("csrf={token}&theme=dark&back=/users"))
        .await;
    assert_eq!(answer.location.as_deref(), Some("/users"));
    assert!(
        browser
            .get("/users")
            .await
            .html
            .contains("data-theme=\"dark\"")
    );
}
