//! A fresh database, opened as the two roles that the server itself uses.

use server::app::App;
use server::config::Config;
use server::store::Database;
use sqlx::postgres::{PgPool, PgPoolOptions};

/// Connections of each role in a test; enough for a test's own concurrency.
const CONNECTIONS: u32 = 8;

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
#[allow(dead_code)]
pub async fn app(owner: &PgPool) -> App {
    let config: Config = toml::from_str("[database]\napp_url = 'unused'\nsystem_url = 'unused'\n")
        .expect("a minimal configuration");
    App::new(database(owner).await, config)
}
