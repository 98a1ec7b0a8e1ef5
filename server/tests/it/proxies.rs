//! Behind a trusted proxy people are told apart by the address that it names, and nobody else names one.

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use serde_json::json;
use server::app::App;
use server::config::Config;
use sqlx::PgPool;
use tower::ServiceExt as _;

/// The address that is configured as a proxy's.
const PROXY: &str = "10.0.0.1";
/// One that is not.
const STRANGER: &str = "198.51.100.9";

async fn behind_a_proxy(owner: &PgPool) -> Router {
    let config: Config = toml::from_str(
        "[database]\napp_url = 'unused'\nsystem_url = 'unused'\n[proxies]\ntrusted = ['10.0.0.0/8']\n",
    )
    .expect("a configuration");
    server::serve::router(App::new(super::fixture::database(owner).await, config))
}

/// A wrong password from `peer`, whose request says that it is for `client`.
async fn guess(router: &Router, peer: &str, client: &str) -> StatusCode {
    let peer: IpAddr = peer.parse().expect("an address");
    let body = json!({ "username": "ada", "password": "wrong" });
    let request = Request::post("/api/v1/auth/login")
        .extension(ConnectInfo(SocketAddr::from((peer, 4711))))
        .header("Content-Type", "application/json")
        .header("X-Forwarded-For", client)
        .header("Forwarded", format!("for={client}"))
        .body(Body::from(body.to_string()))
        .expect("a request");
    let answer = router.clone().oneshot(request).await;
    answer.expect("the router always answers").status()
}

/// Guesses until a wait begins, each time for the client that `client` names.
async fn until_slowed(router: &Router, peer: &str, client: impl Fn(u8) -> String) -> bool {
    for n in 0..10 {
        if guess(router, peer, &client(n)).await == StatusCode::TOO_MANY_REQUESTS {
            return true;
        }
    }
    false
}

#[sqlx::test(migrations = "../migrations")]
async fn who_guesses_through_the_proxy_slows_nobody_else_behind_it(owner: PgPool) {
    let router = behind_a_proxy(&owner).await;
    assert!(until_slowed(&router, PROXY, |_| "192.0.2.7".to_owned()).await);
    let other = guess(&router, PROXY, "192.0.2.8").await;
    assert_eq!(other, StatusCode::UNAUTHORIZED, "judged by its own address");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_client_gains_nothing_by_naming_addresses_itself(owner: PgPool) {
    let router = behind_a_proxy(&owner).await;
    let invented = |n: u8| format!("192.0.2.{n}");
    assert!(
        until_slowed(&router, STRANGER, invented).await,
        "who is no trusted proxy is believed nothing"
    );
    let through_proxy = |n: u8| format!("192.0.2.{n}, 203.0.113.5");
    assert!(
        until_slowed(&router, PROXY, through_proxy).await,
        "what a client wrote stands to the left of what the proxy adds"
    );
}
