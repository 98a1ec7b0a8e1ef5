//! The probes, and what is done to a database before it is served.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use server::setup;
use sqlx::{ConnectOptions, PgPool};
use tower::ServiceExt;

use crate::fixture;

async fn probe(app: &server::app::App, path: &str) -> (StatusCode, String) {
    let request = Request::builder()
        .uri(path)
        .body(Body::empty())
        .expect("a request");
    let response = server::serve::router(app.clone())
        .oneshot(request)
        .await
        .expect("the router always answers");
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), 4096)
        .await
        .expect("a short answer");
    (status, String::from_utf8_lossy(&bytes).into_owned())
}

#[sqlx::test(migrations = "../migrations")]
async fn a_server_is_ready_when_it_can_work_and_not_before(owner: PgPool) {
    let app = fixture::app(&owner).await;
    assert_eq!(probe(&app, "/healthz").await.0, StatusCode::OK);
    let (status, words) = probe(&app, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(words.contains("scheduler"), "{words}");
    app.pulse.plan_was_refused();
    let (status, words) = probe(&app, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(words.contains("refused"), "{words}");
    app.pulse.scheduler_beats();
    assert_eq!(probe(&app, "/readyz").await.0, StatusCode::OK);
    // That no plan is taken any more is told at once, however lately one was.
    app.pulse.plan_was_refused();
    let (status, words) = probe(&app, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(words.contains("refused"), "{words}");
    app.pulse.scheduler_beats();
    sqlx::raw_sql("UPDATE _sqlx_migrations SET success = false WHERE version = (SELECT max(version) FROM _sqlx_migrations)")
        .execute(&owner)
        .await
        .expect("the owner may");
    let (status, words) = probe(&app, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(words.contains("version"), "{words}");
    assert!(setup::check::run(&app.db).await.is_err());
}

#[sqlx::test(migrations = false)]
async fn the_tables_are_made_in_public_also_where_a_schema_is_called_as_the_owner(owner: PgPool) {
    // As the schema `allotment` is for an owner of that name.
    sqlx::raw_sql("CREATE SCHEMA AUTHORIZATION CURRENT_USER")
        .execute(&owner)
        .await
        .expect("the owner may");
    let url = owner.connect_options().to_url_lossy();
    let config = format!(
        "[database]\nowner_url = '{url}'\n\
         app_url = 'postgres://allotment_app@db/x'\nsystem_url = 'postgres://allotment_system@db/x'\n"
    );
    let config = toml::from_str(&config).expect("a configuration");
    setup::migrate::run(&config).await.expect("migrated");
    let db = fixture::database(&owner).await;
    setup::check::run(&db).await.expect("good to serve with");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_owner_is_no_role_to_serve_with(owner: PgPool) {
    let good = fixture::database(&owner).await;
    setup::check::run(&good).await.expect("as it should be");
    let climber = server::store::Database::from_pools(owner.clone(), owner.clone());
    let error = setup::check::run(&climber).await.expect_err("the owner");
    assert!(error.to_string().contains("must be opened as"), "{error}");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_demo_is_made_once_and_everybody_in_it_can_sign_in(owner: PgPool) {
    let app = fixture::app(&owner).await;
    let seeded = setup::demo::seed(&app)
        .await
        .expect("seeded")
        .expect("for the first time");
    assert_eq!(seeded.users.len(), 15);
    let who = |name: &str| {
        let user = seeded.users.iter().find(|u| u.name == name).expect("there");
        (user.role.clone(), user.team.clone())
    };
    assert_eq!(who("admin"), ("admin".into(), None));
    assert_eq!(
        who("vision-member"),
        ("member".into(), Some("vision".into()))
    );
    for user in seeded.users.iter().take(4) {
        server::app::sessions::log_in(
            &app,
            server::app::sessions::LogIn {
                name: user.name.clone(),
                password: user.password.clone(),
                kind: server::app::sessions::SessionKind::Page,
                address: None,
                browser: None,
                request_id: domain::ids::RequestId::new(),
            },
        )
        .await
        .expect("the password is right");
    }
    let token = server::app::sessions::authenticate(
        &app,
        &seeded.token,
        server::app::sessions::SessionKind::Token,
        domain::ids::RequestId::new(),
    )
    .await
    .expect("the token is good");
    assert_eq!(token.asker.name.as_str(), "admin");
    assert!(setup::demo::seed(&app).await.expect("again").is_none());
    let mut tx = app.db.begin_system().await.expect("begin");
    let lines = server::store::audit::page(&mut tx, Some("team/org"), None, 10)
        .await
        .expect("the audit log");
    let told: Vec<(&str, &str)> = lines
        .iter()
        .map(|line| (line.actor_name.as_str(), line.action.as_str()))
        .collect();
    assert_eq!(told, [("seed-demo", "seed_demo")]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_first_administrator_is_made_on_the_command_line(owner: PgPool) {
    let app = fixture::app(&owner).await;
    let name = "root".parse().expect("a name");
    let password = setup::admin::add(&app.db, &name).await.expect("made");
    assert!(password.len() >= 20);
    assert!(setup::admin::add(&app.db, &name).await.is_err());
}

#[sqlx::test(migrations = "../migrations")]
async fn requests_are_counted_by_route_and_never_by_what_people_typed(owner: PgPool) {
    let recorder = server::front::metrics::install().expect("the first recorder of this process");
    let server = fixture::Server::start(&owner).await;
    let admin = server.client("admin");
    admin.get("/teams/vision").await.expect(StatusCode::OK);
    admin
        .get("/teams/nowhere")
        .await
        .problem(StatusCode::NOT_FOUND);
    let request = Request::builder()
        .uri("/metrics")
        .body(Body::empty())
        .expect("a request");
    let response = server::front::metrics::router(server.app.clone(), recorder)
        .oneshot(request)
        .await
        .expect("the router always answers");
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20)
        .await
        .expect("a short answer");
    let text = String::from_utf8_lossy(&bytes);
    for line in [
        r#"allotment_http_requests_total{method="GET",route="/api/v1/teams/{team}",status="200"} 1"#,
        r#"allotment_http_requests_total{method="GET",route="/api/v1/teams/{team}",status="404"} 1"#,
        r#"allotment_database_connections{role="app",state="open"}"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("vision"), "{text}");
}
