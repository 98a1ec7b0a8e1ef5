//! Values of the configuration files that are written for servers and agents.

use std::path::Path;

/// A TOML basic string; JSON's escapes are a subset of TOML's.
pub fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A path as such a string.
pub fn path(path: &Path) -> String {
    string(&path.display().to_string())
}
