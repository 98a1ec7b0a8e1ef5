//! Starts and stops everything that a server runs.

use std::sync::Arc;

use anyhow::Context;

use crate::app::App;
use crate::config::Config;
use crate::store::Database;

/// Runs the server until it is told to stop.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let db = Database::open(&config.database).context("open the database")?;
    let app = App::new(db, config);
    let listener = tokio::net::TcpListener::bind(app.config.listen.http)
        .await
        .with_context(|| format!("listen on {}", app.config.listen.http))?;
    let _app = Arc::new(app);
    axum::serve(listener, axum::Router::new())
        .await
        .context("serve pages and REST")
}
