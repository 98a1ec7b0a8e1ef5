//! Typed ids: one newtype per noun, so that no id is passed for another.

mod job;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::FieldError;

pub use job::{JOB_ELEMENTS_MAX, JobId};

macro_rules! id {
    ($(#[$meta:meta] $name:ident),+ $(,)?) => {$(
        #[$meta]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String, format = "uuid"))]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id; ids made later sort later.
            #[allow(clippy::new_without_default)]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// The id as 16 bytes, most significant first.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = FieldError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match hyphenated(text) {
                    Some(id) => Ok(Self(id)),
                    None => Err(FieldError::new("id", text, "an id such as 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f")),
                }
            }
        }
    )+};
}

/// Only the hyphenated form: one object has one spelling of its id.
fn hyphenated(text: &str) -> Option<Uuid> {
    let id = Uuid::try_parse(text).ok()?;
    (text.len() == uuid::fmt::Hyphenated::LENGTH).then_some(id)
}

id! {
    /// A team.
    TeamId,
    /// A user.
    UserId,
    /// A pool.
    PoolId,
    /// A node, kept over re-enrolments of the same machine.
    NodeId,
    /// A device, that is one physical GPU as first seen on its node.
    DeviceId,
    /// One run of a job.
    AttemptId,
    /// One worker of one attempt on named slices of one node.
    AssignmentId,
    /// A usage segment.
    SegmentId,
    /// Capacity booked ahead.
    BookingId,
    /// A weekly window.
    WindowId,
    /// A price of the price book.
    PriceId,
    /// A budget.
    BudgetId,
    /// An address that notices are posted to.
    WebhookId,
    /// A key that a webhook's messages are signed with.
    WebhookKeyId,
    /// What somebody asked to hear of.
    SubscriptionId,
    /// A notice or report on its way to one address.
    DeliveryId,
    /// A report that is made by itself.
    ScheduleId,
    /// One report of a schedule, of one period.
    ScheduleRunId,
    /// A version of the price book.
    PriceBookId,
    /// A billing period.
    BillingPeriodId,
    /// What a closed period bills a team.
    StatementId,
    /// Capacity that a team pays for whether it uses it or not.
    CommitmentId,
    /// A session or token.
    SessionId,
    /// A one-time token with which a machine enrols.
    JoinTokenId,
    /// One request, quoted in errors and logs.
    RequestId,
    /// What a client names a request by (`Idempotency-Key`), so that a repeat does nothing twice.
    RepeatKey,
    /// One enrolment of a machine as a node; its certificates name it.
    EnrolmentId,
    /// One life of an agent process.
    IncarnationId,
    /// An agent's journal, within which its facts are numbered.
    JournalId,
    /// One life of a server process.
    ReplicaId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        let id = NodeId::new();
        assert_eq!(id.to_string().parse::<NodeId>(), Ok(id));
        let simple = id.to_string().replace('-', "");
        assert!(simple.parse::<NodeId>().is_err());
        assert!("../../x".parse::<NodeId>().is_err());
    }
}
