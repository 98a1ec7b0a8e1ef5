//! What can go wrong when a person asks for something, by what the caller does about it.

use domain::FieldError;
use domain::name::Name;
use domain::state::IllegalStep;

use super::authorise::Needs;
use super::quotas::tree::Excess;
use super::refusal_code::RefusalCode;
use super::streams::Kind;
use super::wish;
use crate::lifecycle::LifecycleError;

/// A refusal or a failure; `api` renders it as problem+json, `pages` as a page.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A value is wrong: 422 (400 where it could not even be read).
    #[error("{0}")]
    Invalid(FieldError),
    /// Several values are wrong, at least two, and all are told: 422.
    #[error("{}", all_in_words(.0))]
    InvalidAll(Vec<FieldError>),
    /// It is well formed, and can never be done here: 422 with a type of its own.
    #[error("{field}")]
    Impossible {
        /// For what, such as that it never fits.
        code: RefusalCode,
        /// What stands in the way.
        field: FieldError,
    },
    /// Teams would be guaranteed more than the team above them: 422.
    #[error("{}", .0.fault())]
    Exceeded(Box<Excess>),
    /// The request could not be read: 400.
    #[error("{0}")]
    Unreadable(FieldError),
    /// Nobody is signed in: 401.
    #[error("sign in first: send a bearer token or use the sign-in page")]
    Unauthenticated,
    /// A name or a password is wrong, which of them is not told: 401.
    #[error("the name or the password is wrong")]
    WrongCredentials,
    /// Known and visible, but not for this person: 403.
    #[error("you may not {}: that needs {needs}", wish::in_words(.action))]
    Forbidden {
        /// What was asked for.
        action: &'static str,
        /// What would let the asker do it.
        needs: Needs,
    },
    /// Not there, or not to be seen: 404, and the two look alike.
    #[error("no {what} {name:?} is here")]
    NotFound {
        /// The noun.
        what: &'static str,
        /// The name or id as asked for.
        name: String,
    },
    /// No such log, or not to be seen: 404.
    #[error("there is no log {of}")]
    NoLog {
        /// Of what, such as `of worker 3 of attempt 1`.
        of: String,
    },
    /// It contradicts the present state: 409, which is told.
    #[error("{message}: {}", .field.remedy)]
    Conflict {
        /// For what, such as that a name is taken.
        code: RefusalCode,
        /// What is in the way.
        message: String,
        /// Where it is in the way, what is there, and what to do.
        field: FieldError,
    },
    /// If-Match names another version: 412.
    #[error("version {given} is not the present one, which is {present}: read it again and repeat")]
    Stale {
        /// As given.
        given: String,
        /// As it is.
        present: i64,
    },
    /// If-None-Match asked that nothing be there, and something is: 412.
    #[error("it is there already, with version {present}")]
    AlreadyThere {
        /// Its version.
        present: i64,
    },
    /// An update came without If-Match: 428.
    #[error("send If-Match with the version that you read")]
    PreconditionRequired,
    /// Too many requests: 429.
    #[error("too many attempts: try again in {retry_after_seconds} s")]
    TooMany {
        /// When to try again.
        retry_after_seconds: u64,
    },
    /// As many streams of one person are open as may be: 429.
    #[error("{open} {kind} of yours are open on this server, and no more may be: close one")]
    TooManyStreams {
        /// What they tell of.
        kind: Kind,
        /// How many.
        open: usize,
    },
    /// More people at once than can be served: 503 with Retry-After.
    #[error("too many people ask for this at this moment: try again in {retry_after_seconds} s")]
    TooBusy {
        /// When to try again.
        retry_after_seconds: u64,
    },
    /// The node of a log is there and does not read it to anybody now: 503 with Retry-After.
    #[error("node {node} does not read this log now: {why}; try again soon")]
    LogBusy {
        /// Its name.
        node: String,
        /// What it says of it.
        why: String,
    },
    /// The body came too slowly: 408.
    #[error("the body had not come within {limit_seconds} s: send it at once, or less of it")]
    TooSlow {
        /// How long is waited for it.
        limit_seconds: u64,
    },
    /// The body is larger than is read: 413.
    #[error("the body is larger than {limit_bytes} bytes: send less, or in parts")]
    TooLarge {
        /// The most that is read.
        limit_bytes: usize,
    },
    /// The body is of a kind that is not read: 415.
    #[error("{given:?} is not read: send Content-Type: application/json")]
    MediaType {
        /// As given.
        given: String,
    },
    /// The body is encoded in a way that is not read: 415.
    #[error(
        "a body in Content-Encoding {given:?} is not read: send it as it is, without that header"
    )]
    Encoding {
        /// As given.
        given: String,
    },
    /// The database is away: 503 with Retry-After.
    #[error("the database does not answer: try again in a few seconds")]
    Unavailable(#[source] sqlx::Error),
    /// A node that is needed cannot be reached now: 503 with Retry-After.
    #[error("node {node} cannot be reached: try again when it is back")]
    NodeAway {
        /// The node's name.
        node: String,
    },
    /// Our fault: 500; nothing is told but the request's id.
    #[error("internal error")]
    Internal(#[source] anyhow::Error),
}

impl AppError {
    /// A wrong value.
    pub fn invalid(field: &str, value: impl std::fmt::Display, remedy: impl Into<String>) -> Self {
        Self::Invalid(FieldError::new(field, value, remedy))
    }

    /// Refuses what has faults, with all of them.
    pub fn of_faults(mut faults: Vec<FieldError>) -> Result<(), Self> {
        match faults.len() {
            0 => Ok(()),
            1 => Err(Self::Invalid(faults.remove(0))),
            _ => Err(Self::InvalidAll(faults)),
        }
    }

    /// The same seen from what holds the fields, where values are wrong.
    #[must_use]
    pub fn under(self, place: &str) -> Self {
        match self {
            Self::Invalid(fault) => Self::Invalid(fault.under(place)),
            Self::InvalidAll(faults) => {
                let faults = faults.into_iter().map(|fault| fault.under(place));
                Self::InvalidAll(faults.collect())
            }
            Self::Impossible { code, field } => Self::Impossible {
                code,
                field: field.under(place),
            },
            other => other,
        }
    }

    /// Something that contradicts the present state: what is in the way, where, and what to do.
    pub fn conflict(code: RefusalCode, message: impl Into<String>, field: FieldError) -> Self {
        Self::Conflict {
            code,
            message: message.into(),
            field,
        }
    }

    /// Something that is in another state than the one in which `remedy` can be done.
    pub fn wrong_state(
        code: RefusalCode,
        message: impl Into<String>,
        state: impl std::fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        Self::conflict(code, message, FieldError::new("state", state, remedy))
    }

    /// What was read is not what is there any more.
    pub fn changed_meanwhile(message: impl Into<String>) -> Self {
        let remedy = "read it again and repeat";
        let field = FieldError::new("version", "an earlier one", remedy);
        Self::conflict(RefusalCode::ChangedMeanwhile, message, field)
    }

    /// Something that is not there, or not to be seen.
    pub fn not_found(what: &'static str, name: impl std::fmt::Display) -> Self {
        Self::NotFound {
            what,
            name: domain::error::quote(&name.to_string()),
        }
    }
}

impl AppError {
    /// A name that somebody else has, where `constraint` refused it; else the error as it is.
    pub(super) fn name_taken(
        error: sqlx::Error,
        constraint: &str,
        noun: &str,
        name: &Name,
    ) -> Self {
        if crate::store::violated(&error) == Some(constraint) {
            return Self::conflict(
                RefusalCode::NameTaken,
                format!("a {noun} {name} is there already"),
                FieldError::new("name", name, "choose another name"),
            );
        }
        error.into()
    }
}

/// Faults as one text, a sentence each.
fn all_in_words(faults: &[FieldError]) -> String {
    let sentences: Vec<String> = faults.iter().map(FieldError::to_string).collect();
    sentences.join("; ")
}

impl From<FieldError> for AppError {
    fn from(error: FieldError) -> Self {
        Self::Invalid(error)
    }
}

impl From<IllegalStep> for AppError {
    fn from(error: IllegalStep) -> Self {
        let remedy = format!(
            "a {} in a state that has a step to {}",
            error.what, error.to
        );
        Self::wrong_state(
            RefusalCode::IllegalStep,
            error.to_string(),
            error.from,
            remedy,
        )
    }
}

impl From<sqlx::Error> for AppError {
    fn from(error: sqlx::Error) -> Self {
        if crate::store::passing(&error) {
            Self::Unavailable(error)
        } else {
            Self::Internal(error.into())
        }
    }
}

impl From<LifecycleError> for AppError {
    fn from(error: LifecycleError) -> Self {
        match error {
            LifecycleError::Database(error) => error.into(),
            LifecycleError::Illegal(error) => error.into(),
            LifecycleError::Missed(_) | LifecycleError::Held(_) => {
                Self::changed_meanwhile(error.to_string())
            }
        }
    }
}
