//! Repeated requests: work with a key is done once, and a repeat gets the first one's answer.
//!
//! The key's row is inserted first, in the transaction that does the work. A repeat that arrives
//! meanwhile waits on that row; when the first commits, the repeat reads what it was answered,
//! and when the first fails, the repeat does the work itself. So there is no moment at which
//! work is done and its key unknown, and no key of work that was not done.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{App, AppError, Asker};
use crate::store::{self, Tx};

/// How a request can be told from others: from `Idempotency-Key`, its route and its body.
#[derive(Debug, Clone)]
pub struct Repeat {
    key: Option<RepeatKey>,
}

#[derive(Debug, Clone)]
struct RepeatKey {
    route: String,
    key: String,
    body_hash: Vec<u8>,
}

impl Repeat {
    /// A request without a key: it is done each time it is sent.
    pub fn none() -> Self {
        Self { key: None }
    }

    /// A request with a key. `route` is method and path; keys of different routes are different.
    pub fn keyed(route: String, key: String, body_hash: Vec<u8>) -> Self {
        Self {
            key: Some(RepeatKey {
                route,
                key,
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

/// What became of a request at its beginning.
pub enum Begun<T> {
    /// It is the first: do the work in its transaction, then call [`Work::finish`].
    First(Work),
    /// It was done before.
    Repeated(Answer<T>),
}

/// A transaction of one person in which work is done at most once.
pub struct Work {
    /// The transaction.
    pub tx: Tx,
    asker: domain::ids::UserId,
    repeat: Repeat,
}

/// Begins a person's transaction, or finds that the work is done already.
pub async fn begin<T: DeserializeOwned>(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
) -> Result<Begun<T>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    if let Some(key) = &repeat.key {
        let first = store::idempotency::insert(
            &mut tx,
            asker.user_id,
            &key.route,
            &key.key,
            &key.body_hash,
        )
        .await?;
        if !first {
            let answer = replay(&mut tx, asker, key).await?;
            tx.commit().await?;
            return Ok(Begun::Repeated(answer));
        }
    }
    Ok(Begun::First(Work {
        tx,
        asker: asker.user_id,
        repeat,
    }))
}

async fn replay<T: DeserializeOwned>(
    tx: &mut Tx,
    asker: &Asker,
    key: &RepeatKey,
) -> Result<Answer<T>, AppError> {
    // A new statement: the one that waited does not see the row it waited for.
    let row = store::idempotency::find(tx, asker.user_id, &key.route, &key.key)
        .await?
        .ok_or_else(|| AppError::Conflict {
            code: "key_expired",
            message: "the key was cleared away at this moment: send the request again".into(),
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
                &key.key,
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
