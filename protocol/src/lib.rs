//! The agent protocol: generated types, and the strict types that received messages become.
//!
//! Whoever sends builds [`wire`] types; whoever receives turns them into the types of
//! [`report`] (on the server) or [`desired`] (on the agent), which checks every field once.

/// The generated types, as they travel.
#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications)]
pub mod wire {
    tonic::include_proto!("allotment.agent.v1");
}

/// The generated types of what replicas ask of one another.
#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications)]
pub mod replicas {
    include!(concat!(
        env!("OUT_DIR"),
        "/between/allotment.replicas.v1.rs"
    ));
}

pub mod desired;
mod fields;
pub mod mig;
pub mod report;
pub mod samples;

/// Largest message either side accepts, in bytes: well above [`desired::SET_BYTES_MAX`], by which
/// the largest messages are cut.
pub const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The key in the metadata of a refusal that says why for a program. Its message says it for people.
pub const REFUSAL: &str = "allotment-refusal";

/// The [`REFUSAL`] of a node that is retired: its agent has nothing more to do, and ends.
pub const REFUSAL_RETIRED: &str = "node_retired";

/// How large a message is when it travels, in bytes.
pub fn encoded_bytes(message: &impl prost::Message) -> usize {
    message.encoded_len()
}

/// What was wrong with a received message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A field that must be there is not.
    #[error("field {0} is missing")]
    Missing(&'static str),
    /// A field holds what it may not hold.
    #[error("field {field} is invalid: {value}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What it held, shortened.
        value: String,
    },
}

impl Malformed {
    /// Builds [`Malformed::Invalid`], quoting the value safely.
    pub fn invalid(field: &'static str, value: impl std::fmt::Display) -> Self {
        Self::Invalid {
            field,
            value: domain::error::quote(&value.to_string()),
        }
    }
}
