//! Keeps the node's certificate young.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::enrol::{self, EnrolError};
use crate::folders::Folders;
use crate::identity::{Identity, IdentityError};

/// How often the time of renewal is looked at, whatever was reckoned before: the machine
/// may have slept, or its clock may have been set.
const LOOK: Duration = Duration::from_secs(60);
/// First wait after a renewal failed.
const RETRY: Duration = Duration::from_secs(1);
/// Longest such wait: an expired certificate keeps the node away, so it is not long.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The node's identity, renewed in time.
pub struct Keeper {
    identity: Mutex<Identity>,
    folders: Folders,
}

impl Keeper {
    /// Keeps the identity that the folders hold. The server is looked for where the settings
    /// say, else where it was at enrolment.
    pub fn load(folders: &Folders, server: Option<String>) -> Result<Self, IdentityError> {
        let mut identity = Identity::load(&folders.identity())?;
        if let Some(server) = server {
            identity.look_at(server)?;
        }
        Ok(Self {
            identity: Mutex::new(identity),
            folders: folders.clone(),
        })
    }

    /// The identity as it is now.
    pub async fn identity(&self) -> Identity {
        self.identity.lock().await.clone()
    }

    /// Renews the certificate when it is due. Fails only where the node cannot speak
    /// without: one that is still good is used on.
    pub async fn renew_if_due(&self) -> Result<(), EnrolError> {
        let mut identity = self.identity.lock().await;
        let expired = identity.expired_certificate().is_some();
        if !expired && !identity.renew_in().is_zero() {
            return Ok(());
        }
        match enrol::renew(&mut identity, &self.folders).await {
            Ok(()) => {
                tracing::info!("the node's certificate was renewed");
                Ok(())
            }
            Err(error) if expired => Err(error),
            Err(error) => {
                let error = anyhow::Error::from(error);
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the node's certificate could not be renewed yet"
                );
                Ok(())
            }
        }
    }

    /// Renews for ever, also while a connection is up.
    pub async fn run(self: Arc<Self>) {
        let mut wait = RETRY;
        loop {
            let due = self.identity.lock().await.renew_in();
            if !due.is_zero() {
                wait = RETRY;
                tokio::time::sleep(due.min(LOOK)).await;
                continue;
            }
            // What went wrong was logged where it was met.
            let _ = self.renew_if_due().await;
            if self.identity.lock().await.renew_in().is_zero() {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RETRY_MAX);
            }
        }
    }
}
