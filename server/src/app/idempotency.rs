//! Repeated requests: work with a key is done once, and a repeat gets the first one's answer.
//!
//! The key's row is inserted first, in the transaction that does the work. A repeat that arrives
//! meanwhile waits on that row; when the first commits, the repeat reads what it was answered,
//! and when the first fails, the repeat does the work itself. So there is no moment at which
//! work is done and its key unknown, and no key of work that was not done.
//!
//! Whether a person may do the work is asked before its key is looked at: who lost a role gets
//! no answer of the time when it had it.
//!
//! Bodies may hold passwords, which a fast hash does not hide. What is kept is therefore hashed
//! together with the key, and of the key, too, only a hash is kept: who reads the table has
//! nothing to try passwords against as long as keys are random.

use domain::FieldError;
use domain::ids::UserId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::{App, AppError, Asker, RefusalCode};
use crate::store::{self, Tx};

/// How a request can be told from others: from `Idempotency-Key`, its route and its body.
#[derive(Debug, Clone)]
pub struct Repeat {
    key: Option<RepeatKey>,
}

#[derive(Debug, Clone)]
struct RepeatKey {
    route: String,
    /// As it was sent.
    key: String,
    /// As it is kept.
    kept: String,
    body_hash: Vec<u8>,
}

impl Repeat {
    /// A request without a key: it is done each time it is sent.
    pub fn none() -> Self {
        Self { key: None }
    }

    /// A request with a key. `route` is method and path; keys of different routes are different.
    pub fn keyed(route: String, key: String, body: &[u8]) -> Self {
        let kept = hex::encode(Sha256::digest(key.as_bytes()));
        // The key's length goes first, so that no other key and body read the same.
        let body_hash = Sha256::new()
            .chain_update(key.len().to_be_bytes())
            .chain_update(key.as_bytes())
            .chain_update(body)
            .finalize()
            .to_vec();
        Self {
            key: Some(RepeatKey {
                route,
                key,
                kept,
                body_hash,
            }),
        }
    }
}

/// What a request was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// HTTP's status, as 201.
    pub status: u16,
    /// The body.
    pub value: T,
    /// The version of what was made or changed, for ETag.
    pub version: Option<i64>,
    /// Whether this is the answer to an earlier request with the same key.
    pub replayed: bool,
}

impl<T> Answer<T> {
    /// Something was made: 201.
    pub fn created(value: T, version: impl Into<Option<i64>>) -> Self {
        Self {
            status: 201,
            value,
            version: version.into(),
            replayed: false,
        }
    }

    /// Something was done: 200.
    pub fn done(value: T, version: impl Into<Option<i64>>) -> Self {
        Self {
            status: 200,
            ..Self::created(value, version)
        }
    }
}

impl Answer<()> {
    /// Something was done of which nothing is to be told: 204.
    pub fn nothing() -> Self {
        Self {
            status: 204,
            ..Self::created((), None)
        }
    }
}

/// A transaction of one person in which work is done at most once: first it is asked whether
/// the person may do it, then [`Work::repeated`], then it is done, then [`Work::finish`].
pub struct Work {
    /// The transaction.
    pub tx: Tx,
    asker: UserId,
    repeat: Repeat,
}

/// Begins work in a person's transaction.
pub async fn begin(app: &App, asker: &Asker, repeat: Repeat) -> Result<Work, AppError> {
    let tx = app.db.begin_person(&asker.scope()).await?;
    Ok(Work::new(tx, asker, repeat))
}

/// Begins work on what no person's transaction may touch, such as passwords.
pub async fn begin_system(app: &App, asker: &Asker, repeat: Repeat) -> Result<Work, AppError> {
    let tx = app.db.begin_system().await?;
    Ok(Work::new(tx, asker, repeat))
}

async fn replay<T: DeserializeOwned>(
    tx: &mut Tx,
    asker: UserId,
    key: &RepeatKey,
) -> Result<Answer<T>, AppError> {
    // A new statement: the one that waited does not see the row it waited for.
    let row = store::idempotency::find(tx, asker, &key.route, &key.kept)
        .await?
        .ok_or_else(|| {
            AppError::conflict(
                RefusalCode::KeyExpired,
                "the key was cleared away at this moment",
                FieldError::new("Idempotency-Key", &key.key, "send the request again"),
            )
        })?;
    if row.body_hash != key.body_hash {
        return Err(AppError::invalid(
            "Idempotency-Key",
            &key.key,
            "a new key: this one came before with another body",
        ));
    }
    let (Some(status), Some(response)) = (row.status, row.response) else {
        return Err(AppError::Internal(anyhow::anyhow!(
            "a committed idempotency key has no answer"
        )));
    };
    let value = serde_json::from_value(response)
        .map_err(|e| AppError::Internal(anyhow::Error::new(e).context("read a kept answer")))?;
    Ok(Answer {
        status: u16::try_from(status).unwrap_or(200),
        value,
        version: row.etag.and_then(|e| e.parse().ok()),
        replayed: true,
    })
}

impl Work {
    fn new(tx: Tx, asker: &Asker, repeat: Repeat) -> Self {
        Self {
            tx,
            asker: asker.user_id,
            repeat,
        }
    }

    /// Takes the key, or gives what the first request with it was answered. Waits for one that
    /// is being worked on.
    pub async fn repeated<T: DeserializeOwned>(&mut self) -> Result<Option<Answer<T>>, AppError> {
        let Some(key) = &self.repeat.key else {
            return Ok(None);
        };
        let first = store::idempotency::insert(
            &mut self.tx,
            self.asker,
            &key.route,
            &key.kept,
            &key.body_hash,
        )
        .await?;
        if first {
            return Ok(None);
        }
        replay(&mut self.tx, self.asker, key).await.map(Some)
    }

    /// Keeps the answer, commits, and wakes the loops.
    pub async fn finish<T: Serialize>(
        mut self,
        app: &App,
        answer: Answer<T>,
    ) -> Result<Answer<T>, AppError> {
        if let Some(key) = &self.repeat.key {
            let response = serde_json::to_value(&answer.value)
                .map_err(|e| AppError::Internal(anyhow::Error::new(e).context("keep an answer")))?;
            store::idempotency::answer(
                &mut self.tx,
                self.asker,
                &key.route,
                &key.kept,
                store::idempotency::Kept {
                    status: i16::try_from(answer.status).unwrap_or(200),
                    response,
                    etag: answer.version.map(|v| v.to_string()),
                },
            )
            .await?;
        }
        self.tx.commit().await?;
        app.wake.all();
        Ok(answer)
    }
}
