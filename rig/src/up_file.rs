//! `.allotment/up.json`: where a started product is, and who may use it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::demo::DemoUser;
use crate::who;

/// What `./dev up` writes. Its keys are a contract.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UpFile {
    /// Pages and REST.
    pub url: String,
    /// The agents' listener.
    pub agent_url: String,
    /// Metrics.
    pub metrics_url: String,
    /// The CA certificate's file.
    pub ca: PathBuf,
    /// A command that enrols one more machine.
    pub enrol_command: String,
    /// The database as the owner role.
    pub database_url: String,
    /// Everybody, with passwords.
    pub users: Vec<DemoUser>,
    /// An administrator's token.
    pub token: String,
    /// Process ids.
    pub pids: Pids,
    /// The `allot` program.
    pub allot: PathBuf,
}

/// Process ids of a started product.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pids {
    /// PostgreSQL's first process.
    pub postgres: u32,
    /// The servers.
    pub server: Vec<u32>,
    /// The agents by their node's name.
    pub agents: BTreeMap<String, u32>,
}

impl UpFile {
    /// Its place in a checkout.
    pub fn place(checkout: &Path) -> PathBuf {
        checkout.join(".allotment/up.json")
    }

    /// Reads that of a checkout.
    pub fn read(checkout: &Path) -> anyhow::Result<Self> {
        let file = Self::place(checkout);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                bail!(
                    "{} is not there; start the product with: ./dev up",
                    file.display()
                )
            }
            Err(error) => return Err(error).with_context(|| format!("read {}", file.display())),
        };
        serde_json::from_str(&text).with_context(|| format!("{}", file.display()))
    }

    /// Writes it, for nobody else to read.
    pub fn write(&self, checkout: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("write up.json")?;
        who::write_private(&Self::place(checkout), &(text + "\n"))
    }

    /// Removes that of a checkout.
    pub fn remove(checkout: &Path) {
        // It may never have been written.
        let _ = std::fs::remove_file(Self::place(checkout));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_those_that_others_lean_on() {
        let file = UpFile {
            url: "http://127.0.0.1:8080".into(),
            agent_url: "https://127.0.0.1:8443".into(),
            metrics_url: "http://127.0.0.1:9090/metrics".into(),
            ca: "/ca.pem".into(),
            enrol_command: "allotment-agent enrol".into(),
            database_url: "postgres://".into(),
            users: vec![
                DemoUser {
                    name: "admin".into(),
                    password: "p".into(),
                    team: None,
                    role: "admin".into(),
                },
                DemoUser {
                    name: "vision-member".into(),
                    password: "p".into(),
                    team: Some("vision".into()),
                    role: "member".into(),
                },
            ],
            token: "t".into(),
            pids: Pids {
                postgres: 1,
                server: vec![2],
                agents: BTreeMap::from([("h100-1".into(), 3)]),
            },
            allot: "/allot".into(),
        };
        let text = serde_json::to_string(&file).unwrap();
        assert_eq!(
            text,
            r#"{"url":"http://127.0.0.1:8080","agent_url":"https://127.0.0.1:8443","metrics_url":"http://127.0.0.1:9090/metrics","ca":"/ca.pem","enrol_command":"allotment-agent enrol","database_url":"postgres://","users":[{"name":"admin","password":"p","role":"admin"},{"name":"vision-member","password":"p","team":"vision","role":"member"}],"token":"t","pids":{"postgres":1,"server":[2],"agents":{"h100-1":3}},"allot":"/allot"}"#
        );
    }
}
