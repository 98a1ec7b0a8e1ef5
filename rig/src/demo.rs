//! The demo organisation's secrets: made once, kept for the next start.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::postgres::Passwords;
use crate::who;

/// Bytes of a random secret: 128 bits.
const SECRET_BYTES: usize = 16;

/// A person of the demo organisation.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct DemoUser {
    /// The log-in.
    pub name: String,
    /// The password.
    pub password: String,
    /// The team that the role is in; absent for roles on the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// The role.
    pub role: String,
}

/// What the state folder keeps and nobody else may read.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Secrets {
    /// Of the database's superuser and owner.
    pub postgres: Passwords,
    /// Of the role `allotment_app`.
    pub app: String,
    /// Of the role `allotment_system`.
    pub system: String,
    /// The people that `seed-demo` made; empty before.
    pub users: Vec<DemoUser>,
    /// Whether the example jobs were submitted.
    pub examples_submitted: bool,
}

/// What `allotment-server seed-demo` prints when it has made something.
#[derive(Debug, Deserialize)]
pub struct Seeded {
    /// Everybody, with passwords.
    pub users: Vec<DemoUser>,
}

impl Secrets {
    /// Reads those of the state folder, or makes fresh ones where there is none.
    pub fn of(state: &Path) -> anyhow::Result<Self> {
        let file = file_in(state);
        if file.exists() {
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("read {}", file.display()))?;
            return serde_json::from_str(&text).with_context(|| {
                format!(
                    "{} is of another version; go on with that one, \
                     or start anew with: ./dev up --fresh",
                    file.display()
                )
            });
        }
        let fresh = Self {
            postgres: Passwords::random(),
            app: random_secret(),
            system: random_secret(),
            users: Vec::new(),
            examples_submitted: false,
        };
        fresh.keep(state)?;
        Ok(fresh)
    }

    /// Writes them to the state folder.
    pub fn keep(&self, state: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("write the secrets")?;
        who::write_private(&file_in(state), &text)
    }

    /// The person with this name.
    pub fn user(&self, name: &str) -> anyhow::Result<&DemoUser> {
        match self.users.iter().find(|user| user.name == name) {
            Some(user) => Ok(user),
            None => bail!("the demo organisation has no user {name:?}"),
        }
    }
}

fn file_in(state: &Path) -> PathBuf {
    state.join("secrets.json")
}

/// A random secret in hex, which needs no quoting anywhere.
pub fn random_secret() -> String {
    let mut bytes = [0_u8; SECRET_BYTES];
    rand::rng().fill_bytes(&mut bytes);
    hex::encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_another_version_are_refused_with_the_remedy() {
        let state = std::env::temp_dir().join(format!("allotment-rig-old-{}", std::process::id()));
        who::make_folder(&state, who::PRIVATE).unwrap();
        who::write_private(&file_in(&state), r#"{"cluster": {}}"#).unwrap();
        let error = format!("{:#}", Secrets::of(&state).unwrap_err());
        std::fs::remove_dir_all(&state).unwrap();
        assert!(
            error.contains("another version") && error.contains("--fresh"),
            "{error}"
        );
    }

    #[test]
    fn secrets_are_made_once_and_read_back() {
        let state = std::env::temp_dir().join(format!("allotment-rig-demo-{}", std::process::id()));
        who::make_folder(&state, who::PRIVATE).unwrap();
        let first = Secrets::of(&state).unwrap();
        let second = Secrets::of(&state).unwrap();
        std::fs::remove_dir_all(&state).unwrap();
        assert_eq!(first.app, second.app);
        assert_eq!(first.app.len(), 2 * SECRET_BYTES);
        assert_ne!(first.app, first.system);
    }
}
