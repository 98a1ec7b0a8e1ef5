//! What servers have acknowledged, kept apart from them: no submission that was answered may ever be lost.

use std::sync::{Mutex, PoisonError};

/// The server that was asked, and the job's id.
static ACKNOWLEDGED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Takes note of a submission that the server at `base` acknowledged.
pub fn note(base: &str, id: &str) {
    let mut all = ACKNOWLEDGED.lock().unwrap_or_else(PoisonError::into_inner);
    all.push((base.to_owned(), id.to_owned()));
}

/// What these servers acknowledged, each known by how its addresses begin.
pub fn by(servers: &[String]) -> Vec<String> {
    let all = ACKNOWLEDGED.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter()
        .filter(|(base, _)| {
            servers.iter().any(|server| {
                base.strip_prefix(server.as_str())
                    .is_some_and(|rest| rest.starts_with('/'))
            })
        })
        .map(|(_, id)| id.clone())
        .collect()
}
