//! Where the server is and who asks: from the environment, else from the log-in kept on disk.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// An address and a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// The server's address, such as `http://127.0.0.1:8080`.
    pub url: String,
    /// A bearer token.
    pub token: String,
}

impl Login {
    /// Takes ALLOTMENT_URL and ALLOTMENT_TOKEN, and what is missing from the kept log-in.
    pub fn find() -> Result<Self, Failure> {
        let from_env = |key| std::env::var(key).ok().filter(|value| !value.is_empty());
        let kept = Self::kept();
        let url = from_env("ALLOTMENT_URL").or_else(|| kept.as_ref().map(|k| k.url.clone()));
        // A kept token is told to the server that gave it and to no other.
        let token = from_env("ALLOTMENT_TOKEN").or_else(|| {
            kept.filter(|k| url.as_deref().map(trim).as_deref() == Some(trim(&k.url).as_str()))
                .map(|k| k.token)
        });
        match (url, token) {
            (Some(url), Some(token)) => Ok(Self { url: trim(&url), token }),
            _ => Err(Failure::Refused("nobody is logged in: run `allot login --url URL`, or set ALLOTMENT_URL and ALLOTMENT_TOKEN".into())),
        }
    }

    fn kept() -> Option<Self> {
        serde_json::from_str(&fs::read_to_string(path()?).ok()?).ok()
    }

    /// Keeps the log-in for later commands, readable by this user alone.
    pub fn keep(&self) -> anyhow::Result<PathBuf> {
        let path =
            path().context("no home folder to keep the log-in in: set HOME or XDG_CONFIG_HOME")?;
        let folder = path.parent().expect("the path ends in two names");
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let young = folder.join("login.json.new");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&young)
            .with_context(|| format!("write {}", young.display()))?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&young, &path).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}

/// An address without its last slash, so that paths can be appended.
pub fn trim(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}

fn path() -> Option<PathBuf> {
    let base = match std::env::var_os("XDG_CONFIG_HOME").filter(|v| !v.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME").filter(|v| !v.is_empty())?).join(".config"),
    };
    Some(base.join("allotment").join("login.json"))
}
