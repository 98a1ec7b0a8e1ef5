//! The server's own log: one JSON object a line, or text where a person watches.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// Begins to log to standard error. RUST_LOG overrides the filter; control characters of what
/// others sent are escaped by both formats.
pub fn install(filter: &str) -> anyhow::Result<()> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => text,
        _ => filter.to_owned(),
    };
    let filter = EnvFilter::try_new(&filter).with_context(|| format!("log filter {filter:?}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        builder.init();
    } else {
        builder.json().flatten_event(true).init();
    }
    Ok(())
}
