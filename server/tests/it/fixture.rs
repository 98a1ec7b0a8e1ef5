//! A fresh database with an organisation in it, and people of every role who talk to the API.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use domain::ids::{TeamId, UserId};
use domain::name::Name;
use domain::role::{PlatformRole, TeamRole};
use serde_json::{Value, json};
use server::app::App;
use server::app::sessions::{self, SessionKind};
use server::config::Config;
use server::store::{self, Database};
use sqlx::postgres::{PgPool, PgPoolOptions};
use tower::ServiceExt;

/// Connections of each role in a test; enough for a test's own concurrency.
const CONNECTIONS: u32 = 8;
/// Largest answer that a test reads.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Opens `owner`'s database as `allotment_app` and `allotment_system`.
pub async fn database(owner: &PgPool) -> Database {
    let pool = |role: &str| {
        let options = (*owner.connect_options()).clone().username(role);
        PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .connect_lazy_with(options)
    };
    Database::from_pools(pool("allotment_app"), pool("allotment_system"))
}

/// The application over `owner`'s database, with every setting at its default.
pub async fn app(owner: &PgPool) -> App {
    let config: Config = toml::from_str("[database]\napp_url = 'unused'\nsystem_url = 'unused'\n")
        .expect("a minimal configuration");
    App::new(database(owner).await, config)
}

/// A server with an organisation: `org` over `vision` and `speech`, pool `h100` in which both
/// have 4 guaranteed, and people: `admin`, `operator`, `finance`, `auditor`, and for each team
/// `TEAM-owner`, `TEAM-member`, `TEAM-viewer`.
pub struct Server {
    /// The application, for what has no route.
    pub app: App,
    /// The teams.
    pub teams: BTreeMap<&'static str, TeamId>,
    /// Everybody.
    pub users: BTreeMap<String, UserId>,
    router: Router,
    tokens: BTreeMap<String, String>,
}

impl Server {
    /// Sets it up in a fresh database.
    pub async fn start(owner: &PgPool) -> Self {
        let app = app(owner).await;
        let mut server = Self {
            router: server::serve::router(app.clone()),
            app,
            teams: BTreeMap::new(),
            users: BTreeMap::new(),
            tokens: BTreeMap::new(),
        };
        server.add_teams().await;
        for role in PlatformRole::ALL {
            server.add_person(role.as_str(), Some(*role), None).await;
        }
        for team in ["org", "vision", "speech"] {
            for role in TeamRole::ALL {
                let name = format!("{team}-{role}");
                server.add_person(&name, None, Some((team, *role))).await;
            }
        }
        let admin = server.client("admin");
        admin
            .post(
                "/pools",
                json!({"name": "h100", "sharing": ["exclusive", "time_slice"]}),
            )
            .await
            .expect(StatusCode::CREATED);
        for team in ["vision", "speech"] {
            admin
                .put(
                    &format!("/teams/{team}/quotas/h100"),
                    json!({"guaranteed": 4}),
                )
                .header("If-None-Match", "*")
                .send()
                .await
                .expect(StatusCode::CREATED);
        }
        server
    }

    /// A client that comes as this person.
    pub fn client(&self, user: &str) -> Client {
        let token = self
            .tokens
            .get(user)
            .unwrap_or_else(|| panic!("the fixture has no user {user}"));
        Client {
            router: self.router.clone(),
            token: Some(token.clone()),
        }
    }

    /// A client that comes as nobody.
    pub fn stranger(&self) -> Client {
        Client {
            router: self.router.clone(),
            token: None,
        }
    }

    /// A client that comes with this token.
    pub fn bearer(&self, token: &str) -> Client {
        Client {
            router: self.router.clone(),
            token: Some(token.to_owned()),
        }
    }

    /// A client that comes as this person in a session of its own.
    pub async fn fresh(&self, user: &str) -> Client {
        let id = self.users[user];
        let opened = sessions::open(&self.app, id, SessionKind::Token, 3600)
            .await
            .expect("a session");
        self.bearer(&opened.secret)
    }

    async fn add_teams(&mut self) {
        let mut tx = self.app.db.begin_system().await.expect("begin");
        let org = TeamId::new();
        for (name, id, parent) in [
            ("org", org, None),
            ("vision", TeamId::new(), Some(org)),
            ("speech", TeamId::new(), Some(org)),
        ] {
            let hue = store::teams::free_hue(&mut tx).await.expect("a colour");
            store::teams::insert(&mut tx, id, &named(name), parent, hue)
                .await
                .expect("a team");
            self.teams.insert(name, id);
        }
        tx.commit().await.expect("commit");
    }

    async fn add_person(
        &mut self,
        name: &str,
        platform_role: Option<PlatformRole>,
        team: Option<(&str, TeamRole)>,
    ) {
        let id = UserId::new();
        let mut tx = self.app.db.begin_system().await.expect("begin");
        let fields = store::users::Fields {
            display_name: "",
            platform_role,
            disabled: false,
        };
        store::users::insert(&mut tx, id, &named(name), &fields)
            .await
            .expect("a person");
        if let Some((team, role)) = team {
            store::teams::put_member(&mut tx, self.teams[team], id, role)
                .await
                .expect("a member");
        }
        tx.commit().await.expect("commit");
        let opened = sessions::open(&self.app, id, SessionKind::Token, 3600)
            .await
            .expect("a session");
        self.tokens.insert(name.to_owned(), opened.secret);
        self.users.insert(name.to_owned(), id);
    }
}

/// Somebody who talks to the API, through the router.
#[derive(Clone)]
pub struct Client {
    router: Router,
    token: Option<String>,
}

impl Client {
    /// A request to `path` under /api/v1.
    pub fn ask(&self, method: Method, path: &str) -> Ask {
        let mut builder = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"));
        if let Some(token) = &self.token {
            builder = builder.header("Authorization", format!("Bearer {token}"));
        }
        Ask {
            router: self.router.clone(),
            builder,
            body: Body::empty(),
        }
    }

    /// Reads.
    pub async fn get(&self, path: &str) -> Reply {
        self.ask(Method::GET, path).send().await
    }

    /// Posts `body`.
    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.ask(Method::POST, path).json(body).send().await
    }

    /// A PUT of `body`, to be given its condition.
    pub fn put(&self, path: &str, body: Value) -> Ask {
        self.ask(Method::PUT, path).json(body)
    }

    /// A PATCH of `body` on a version.
    pub async fn patch(&self, path: &str, version: i64, body: Value) -> Reply {
        self.ask(Method::PATCH, path)
            .json(body)
            .header("If-Match", &format!("\"{version}\""))
            .send()
            .await
    }

    /// Removes what has a version.
    pub async fn remove(&self, path: &str, version: i64) -> Reply {
        let ask = self.ask(Method::DELETE, path);
        ask.header("If-Match", &format!("\"{version}\""))
            .send()
            .await
    }

    /// Deletes.
    pub async fn delete(&self, path: &str) -> Reply {
        self.ask(Method::DELETE, path).send().await
    }
}

/// A request that is not sent yet.
pub struct Ask {
    router: Router,
    builder: axum::http::request::Builder,
    body: Body,
}

impl Ask {
    /// With a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.builder = self.builder.header(name, value);
        self
    }

    /// With a body of JSON.
    pub fn json(self, body: Value) -> Self {
        self.raw("application/json", body.to_string())
    }

    /// With any body.
    pub fn raw(mut self, kind: &str, body: impl Into<Bytes>) -> Self {
        self.builder = self.builder.header("Content-Type", kind);
        self.body = Body::from(body.into());
        self
    }

    /// Sends it, and reads no more of the answer than its status; a stream has no end.
    pub async fn status(self) -> StatusCode {
        let request = self.builder.body(self.body).expect("a request");
        let answer = self.router.oneshot(request).await;
        answer.expect("the router always answers").status()
    }

    /// Sends it, and reads the answer to its end.
    pub async fn send(self) -> Reply {
        let request = self.builder.body(self.body).expect("a request");
        let response = self
            .router
            .oneshot(request)
            .await
            .expect("the router always answers");
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, ANSWER_BYTES_MAX)
            .await
            .expect("the answer has an end");
        Reply {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).expect("answers are text"),
        }
    }
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub text: String,
}

impl Reply {
    /// The body as JSON, of an answer that must have this status.
    #[track_caller]
    pub fn expect(self, status: StatusCode) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        if self.text.is_empty() {
            return Value::Null;
        }
        serde_json::from_str(&self.text).expect("answers are JSON")
    }

    /// The problem of an answer that must have this status; its form is checked on the way.
    #[track_caller]
    pub fn problem(self, status: StatusCode) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        assert_eq!(
            self.headers.get("content-type").map(|v| v.as_bytes()),
            Some(&b"application/problem+json"[..])
        );
        let problem: Value = serde_json::from_str(&self.text).expect("a problem is JSON");
        assert_eq!(problem["status"], status.as_u16());
        assert!(
            problem["type"]
                .as_str()
                .is_some_and(|t| t.starts_with("/problems/")),
            "{problem}"
        );
        if matches!(
            status,
            StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY
        ) {
            for key in ["field", "value", "remedy"] {
                assert!(problem[key].is_string(), "no {key}: {problem}");
            }
        }
        assert_eq!(
            problem["request_id"].as_str(),
            self.headers
                .get("x-request-id")
                .and_then(|v| v.to_str().ok()),
        );
        problem
    }
}

fn named(text: &str) -> Name {
    text.parse().expect("the fixture's names are well-formed")
}
