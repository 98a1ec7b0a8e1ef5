//! Notices: written with their cause, told to who asked, signed, tried again, and never to an address that is not public.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::any;
use domain::ids::{RequestId, SessionId};
use domain::role::TeamRole;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use server::app::{App, Asker};
use server::background::outbox::{self, Senders};
use server::config::Config;
use sha2::Sha256;
use sqlx::PgPool;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::fixture::Server;
use crate::fleet::add_node;

/// A test waits for a process at most so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a receiver was posted.
#[derive(Debug, Clone)]
struct Posted {
    headers: BTreeMap<String, String>,
    body: String,
}

/// A receiver on this machine, which answers with what it is told to.
#[derive(Clone)]
struct Receiver {
    posted: Arc<Mutex<Vec<Posted>>>,
    answer: Arc<Mutex<(StatusCode, Option<String>)>>,
    port: u16,
}

impl Receiver {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let receiver = Self {
            posted: Arc::default(),
            answer: Arc::new(Mutex::new((StatusCode::OK, None))),
            port: listener.local_addr().expect("an address").port(),
        };
        let router = Router::new()
            .fallback(any(take))
            .with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    fn posted(&self) -> Vec<Posted> {
        self.posted.lock().expect("not poisoned").clone()
    }

    fn answers(&self, status: StatusCode, location: Option<&str>) {
        *self.answer.lock().expect("not poisoned") = (status, location.map(str::to_owned));
    }
}

async fn take(
    State(receiver): State<Receiver>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, HeaderMap) {
    let headers = headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().expect("text").to_owned()));
    receiver.posted.lock().expect("not poisoned").push(Posted {
        headers: headers.collect(),
        body: String::from_utf8(body.to_vec()).expect("text"),
    });
    let (status, location) = receiver.answer.lock().expect("not poisoned").clone();
    let mut answer = HeaderMap::new();
    if let Some(location) = location {
        answer.insert("location", location.parse().expect("a header"));
    }
    (status, answer)
}

/// The application with these lines in its configuration.
fn configured(app: &App, lines: &str) -> App {
    let base = "[database]\napp_url = 'unused'\nsystem_url = 'unused'\n";
    let config: Config = toml::from_str(&format!("{base}{lines}")).expect("a configuration");
    config.check().expect("a good configuration");
    App::new(app.db.clone(), config)
}

fn local(app: &App, port: u16) -> App {
    let lines = format!(
        "[webhooks]\nprivate_networks = ['127.0.0.0/8']\nports = [{port}]\nplain_http = true\n"
    );
    configured(app, &lines)
}

/// Team vision's webhook at this URL, told of all ends of its jobs; its key.
async fn hooked(server: &Server, app: &App, url: &str) -> String {
    let asker = Asker {
        user_id: server.users["vision-owner"],
        name: "vision-owner".parse().expect("a name"),
        platform_role: None,
        teams: [(server.teams["vision"], TeamRole::Owner)].into(),
        ancestors: Vec::new(),
        session_id: SessionId::new(),
        request_id: RequestId::new(),
    };
    let team = "vision".parse().expect("a name");
    let new = serde_json::from_value(json!({"name": "hook", "url": url})).expect("a webhook");
    let made = server::app::webhooks::create(app, &asker, &team, new, "").await;
    let key = made.expect("made").key;
    let owner = server.client("vision-owner");
    owner
        .post(
            "/teams/vision/subscriptions",
            json!({"kind": "job_ended", "webhook": "hook"}),
        )
        .await
        .expect(StatusCode::CREATED);
    key
}

/// Submits a job that waits, and cancels it.
async fn ends(server: &Server) -> String {
    let member = server.client("vision-member");
    let spec = json!({"name": "j", "command": ["true"], "per_worker": {"gpus": 0}});
    let job = member.post("/teams/vision/jobs", spec).await;
    let job = job.expect(StatusCode::CREATED)["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let path = format!("/jobs/{job}/cancel");
    member.post(&path, json!({})).await.expect(StatusCode::OK);
    job
}

async fn deliveries(server: &Server) -> Vec<Value> {
    let owner = server.client("vision-owner");
    let page = owner
        .get("/teams/vision/deliveries")
        .await
        .expect(StatusCode::OK);
    page["items"].as_array().expect("items").clone()
}

/// Makes what waits due at once.
async fn hurry(owner: &PgPool) {
    let mut conn = owner.acquire().await.expect("a connection");
    sqlx::raw_sql(
        "SET ROLE allotment_system; UPDATE deliveries SET due_at = allotment.clock(); RESET ROLE",
    )
    .execute(&mut *conn)
    .await
    .expect("hurried");
}

fn signed(key: &str, at: &str, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("a key");
    mac.update(format!("{at}.{body}").as_bytes());
    format!("v1={}", hex::encode(mac.finalize().into_bytes()))
}

#[sqlx::test(migrations = "../migrations")]
async fn the_end_of_a_job_is_posted_once_signed_by_each_key_and_kept(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 1).await;
    let receiver = Receiver::start().await;
    let app = local(&server.app, receiver.port);
    let key = hooked(
        &server,
        &app,
        &format!("http://127.0.0.1:{}/in", receiver.port),
    )
    .await;
    let senders = Senders::new(&app).expect("senders");
    let job = ends(&server).await;
    assert_eq!(outbox::round(&app, &senders).await.expect("sent"), 1);
    assert_eq!(outbox::round(&app, &senders).await.expect("sent"), 0);
    let posted = receiver.posted();
    assert_eq!(posted.len(), 1, "{posted:?}");
    let body: Value = serde_json::from_str(&posted[0].body).expect("JSON");
    assert_eq!(
        (&body["kind"], &body["data"]["job"], &body["data"]["state"]),
        (&json!("job_ended"), &json!(job), &json!("cancelled"))
    );
    let headers = &posted[0].headers;
    assert_eq!(headers["allotment-delivery"], body["id"]);
    let at = &headers["allotment-timestamp"];
    assert_eq!(
        headers["allotment-signature"],
        signed(&key, at, &posted[0].body)
    );
    let kept = deliveries(&server).await;
    assert_eq!(kept[0]["state"], "delivered", "{kept:?}");
    assert_eq!(kept[0]["tries"][0]["status"], 200, "{kept:?}");

    // While keys change each of the two signs, and what is sent again is the same delivery.
    let client = server.client("vision-owner");
    let rotated = client
        .post("/teams/vision/webhooks/hook/rotate", json!({}))
        .await;
    let new_key = rotated.expect(StatusCode::OK)["key"]
        .as_str()
        .expect("a key")
        .to_owned();
    let path = format!(
        "/teams/vision/deliveries/{}/resend",
        kept[0]["id"].as_str().expect("an id")
    );
    client
        .post(&path, json!({}))
        .await
        .expect(StatusCode::NO_CONTENT);
    assert_eq!(outbox::round(&app, &senders).await.expect("sent"), 1);
    let again = &receiver.posted()[1];
    assert_eq!(again.headers["allotment-delivery"], body["id"]);
    let at = &again.headers["allotment-timestamp"];
    let both = format!(
        "{},{}",
        signed(&new_key, at, &again.body),
        signed(&key, at, &again.body)
    );
    assert_eq!(again.headers["allotment-signature"], both);
    let kept = deliveries(&server).await;
    assert_eq!(
        kept[0]["tries"].as_array().map(Vec::len),
        Some(2),
        "{kept:?}"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_not_taken_is_tried_again_in_order_and_no_redirect_is_followed(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 1).await;
    let receiver = Receiver::start().await;
    let app = local(&server.app, receiver.port);
    let url = format!("http://127.0.0.1:{}/in", receiver.port);
    hooked(&server, &app, &url).await;
    let senders = Senders::new(&app).expect("senders");
    receiver.answers(StatusCode::TEMPORARY_REDIRECT, Some(&url));
    ends(&server).await;
    assert_eq!(outbox::round(&app, &senders).await.expect("tried"), 1);
    assert_eq!(receiver.posted().len(), 1, "the redirect was not followed");
    let kept = deliveries(&server).await;
    assert_eq!(
        (&kept[0]["state"], &kept[0]["tries"][0]["status"]),
        (&json!("waiting"), &json!(307))
    );
    // Not before its pause is over.
    assert_eq!(outbox::round(&app, &senders).await.expect("tried"), 0);
    receiver.answers(StatusCode::GONE, None);
    hurry(&owner).await;
    assert_eq!(outbox::round(&app, &senders).await.expect("tried"), 1);
    let kept = deliveries(&server).await;
    assert_eq!(
        kept[0]["state"], "dead",
        "who is gone is not asked again: {kept:?}"
    );
}

/// T-6.6: what a name stands for is judged when it is connected to, whatever the URL looked like.
#[sqlx::test(migrations = "../migrations")]
async fn a_name_that_stands_for_this_machine_is_not_connected_to(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 1).await;
    let receiver = Receiver::start().await;
    let lines = format!(
        "[webhooks]\nports = [{}]\nplain_http = true\n",
        receiver.port
    );
    let app = configured(&server.app, &lines);
    hooked(
        &server,
        &app,
        &format!("http://localhost:{}/in", receiver.port),
    )
    .await;
    let senders = Senders::new(&app).expect("senders");
    ends(&server).await;
    assert_eq!(outbox::round(&app, &senders).await.expect("tried"), 1);
    assert!(receiver.posted().is_empty());
    let kept = deliveries(&server).await;
    let detail = kept[0]["tries"][0]["detail"].as_str().expect("words");
    assert!(detail.contains("webhooks.private_networks"), "{detail}");
    assert_eq!(kept[0]["state"], "waiting");
}

#[sqlx::test(migrations = "../migrations")]
async fn an_address_that_is_not_public_is_refused_by_name_and_a_member_asks_for_its_own_alone(
    owner: PgPool,
) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 1).await;
    let client = server.client("vision-owner");
    let body = json!({"name": "hook", "url": "https://169.254.169.254/"});
    let refused = client.post("/teams/vision/webhooks", body).await;
    let refused = refused.problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        (&refused["field"], &refused["value"]),
        (&json!("url"), &json!("https://169.254.169.254/"))
    );
    let member = server.client("vision-member");
    let all = json!({"kind": "job_ended", "email": "ada@example.com"});
    member
        .post("/teams/vision/subscriptions", all.clone())
        .await
        .problem(StatusCode::FORBIDDEN);
    let mut own = all;
    own["own_jobs"] = json!(true);
    member
        .post("/teams/vision/subscriptions", own.clone())
        .await
        .expect(StatusCode::CREATED);
    member
        .post("/teams/vision/subscriptions", own)
        .await
        .problem(StatusCode::CONFLICT);
    for bad in ["nobody", "a@b\r\nBcc: c@d", "a b@c.d"] {
        let body = json!({"kind": "node_lost", "email": bad});
        let refused = client.post("/teams/vision/subscriptions", body).await;
        assert_eq!(
            refused.problem(StatusCode::UNPROCESSABLE_ENTITY)["field"],
            "email"
        );
    }
}

/// A mail server of its own process.
struct MailServer {
    _process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    port: u16,
    _files: tempfile::TempDir,
    settings: String,
}

impl MailServer {
    async fn start() -> Self {
        let files = tempfile::tempdir().expect("a folder");
        let made =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let place = |name: &str| files.path().join(name);
        std::fs::write(place("cert.pem"), made.cert.pem()).expect("written");
        std::fs::write(place("key.pem"), made.signing_key.serialize_pem()).expect("written");
        std::fs::write(place("password"), "secret\n").expect("written");
        let python = std::env::var("ALLOTMENT_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let mut process = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/smtp.py"))
            .args([place("cert.pem"), place("key.pem")])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a Python with aiosmtpd: ./dev test fetches one");
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let first = next(&mut lines).await;
        let port = u16::try_from(first["port"].as_u64().expect("a port")).expect("a port");
        let settings = format!(
            "[mail]\nhost = 'localhost'\nport = {port}\nusername = 'allotment'\nfrom = 'Allotment <allotment@example.com>'\n\
             password_file = '{}'\nauthorities_file = '{}'\n",
            place("password").display(),
            place("cert.pem").display()
        );
        Self {
            _process: process,
            lines,
            port,
            _files: files,
            settings,
        }
    }
}

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> Value {
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
    let line = line.expect("in time").expect("read").expect("a line");
    serde_json::from_str(&line).expect("JSON")
}

#[sqlx::test(migrations = "../migrations")]
async fn the_end_of_ones_own_job_arrives_by_e_mail_after_starttls_and_a_log_in(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 1).await;
    let mut mail = MailServer::start().await;
    let member = server.client("vision-member");
    let ask = json!({"kind": "job_ended", "own_jobs": true, "email": "ada@example.com"});
    member
        .post("/teams/vision/subscriptions", ask)
        .await
        .expect(StatusCode::CREATED);
    let job = ends(&server).await;
    let app = configured(&server.app, &mail.settings);
    assert_eq!(
        outbox::round(&app, &Senders::new(&app).expect("senders"))
            .await
            .expect("sent"),
        1
    );
    let kept = deliveries(&server).await;
    assert_eq!(kept[0]["state"], "delivered", "{kept:?}");
    let taken = next(&mut mail.lines).await;
    assert_eq!(taken["to"], json!(["ada@example.com"]));
    assert_eq!(
        (&taken["tls"], &taken["authenticated"]),
        (&json!(true), &json!(true))
    );
    let text = taken["text"].as_str().expect("text");
    assert!(
        text.contains("Subject: Job j cancelled") && text.contains(&job),
        "{text}"
    );

    // Without the authority that signed it, its certificate is nobody's; without a server nothing is lost.
    ends(&server).await;
    let untrusted = format!(
        "[mail]\nhost = 'localhost'\nport = {}\nfrom = 'allotment@example.com'\n",
        mail.port
    );
    for settings in [untrusted, String::new()] {
        hurry(&owner).await;
        let app = configured(&server.app, &settings);
        outbox::round(&app, &Senders::new(&app).expect("senders"))
            .await
            .expect("tried");
        let kept = deliveries(&server).await;
        assert_eq!(kept[0]["state"], "waiting", "{kept:?}");
    }
}
