//! Starts and stops everything that a server runs.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::any;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::app::{App, feed};
use crate::config::Config;
use crate::front::listener::{self, Limits};
use crate::front::{context, headers, health, metrics};
use crate::store::Database;
use crate::{agents, api, background, pages, scheduler, setup};

/// After being told to stop, answers under way get so long; live streams are cut then.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// The addresses that were taken, for those who listen on port 0.
#[derive(Serialize)]
struct Addresses {
    http: SocketAddr,
    agents: SocketAddr,
    metrics: SocketAddr,
    internal: SocketAddr,
}

/// Runs the server until it is told to stop.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let recorder = metrics::install()?;
    let db = Database::open(&config.database).context("open the database")?;
    setup::check::run(&db).await?;
    let app = App::new(db, config);
    let over = CancellationToken::new();
    let mut loops = JoinSet::new();
    let senders = background::outbox::Senders::new(&app)?;

    let http = listen(app.config.listen.http).await?;
    let scrape = listen(app.config.listen.metrics).await?;
    let machines = agents::start(app.clone(), over.clone()).await?;
    let addresses = Addresses {
        http: http.local_addr().context("listen")?,
        agents: machines.agents,
        metrics: scrape.local_addr().context("listen")?,
        internal: machines.internal,
    };

    loops.spawn(scheduler::run(app.clone(), over.clone()));
    loops.spawn(feed::run(app.clone(), over.clone()));
    loops.spawn(feed::listen(app.clone(), over.clone()));
    loops.spawn(feed::relay(app.clone(), over.clone()));
    loops.spawn(background::run(app.clone(), over.clone()));
    loops.spawn(background::outbox::run(app.clone(), senders, over.clone()));

    let limits = Limits::of(&app.config.timers);
    let scraped = metrics::router(app.clone(), recorder);
    loops.spawn(listener::serve(scrape, scraped, limits, over.clone()));
    let mut served = tokio::spawn(listener::serve(
        http,
        router(app.clone()),
        limits,
        over.clone(),
    ));
    if let Some(file) = &app.config.listen.addresses_file {
        write_addresses(file, &addresses)?;
    }
    tracing::info!(http = %addresses.http, agents = %addresses.agents, "serves");

    tokio::select! {
        told = told_to_stop() => told?,
        ended = &mut served => {
            ended.context("serve pages and REST")?;
        }
    }
    tracing::info!("stops");
    over.cancel();
    let _ = tokio::time::timeout(STOP_WITHIN, async {
        let _ = served.await;
        while loops.join_next().await.is_some() {}
        machines.ended().await;
    })
    .await;
    Ok(())
}

/// Everything that people reach on one address: probes, REST and pages.
pub fn router(app: App) -> Router {
    Router::new()
        .nest(api::PREFIX, api::router(app.clone()))
        // What is nested does not have the address that ends in a slash.
        .route(
            &format!("{}/", api::PREFIX),
            any(|| async { StatusCode::NOT_FOUND })
                .layer(from_fn_with_state(app.clone(), api::problem::render)),
        )
        .merge(health::router(app.clone()))
        .merge(pages::router(app.clone()))
        .layer(from_fn_with_state(app.clone(), headers::guard))
        .layer(from_fn_with_state(app, context::carry))
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}: is the port taken?"))
}

/// Writes the file whole or not at all: whoever waits for it never reads half of it.
fn write_addresses(file: &Path, addresses: &Addresses) -> anyhow::Result<()> {
    let text = serde_json::to_string(addresses).context("write the addresses")?;
    let draft = file.with_extension("new");
    std::fs::write(&draft, text).with_context(|| format!("write {}", draft.display()))?;
    std::fs::rename(&draft, file).with_context(|| format!("write {}", file.display()))
}

async fn told_to_stop() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
