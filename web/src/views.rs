//! One view for each page: what it shows, as values, and its HTML.

mod error;
mod fleet;
mod held;
mod job;
mod jobs;
mod node;
mod queue;
mod refusal;
mod signin;
mod submit;
mod team;
mod teams;
mod users;
mod waits;
mod why;

pub use error::ErrorView;
pub use fleet::{FleetNode, FleetPool, FleetView, Held, ModeOffer};
pub use job::{AttemptRow, CostLine, JobActions, JobView, LogChoice, LogPanel, PlacedWorker};
pub use jobs::{JobRow, JobsFilter, JobsView};
pub use node::{Leaving, NodeAction, NodeDevice, NodeNote, NodeView, NodeWork};
pub use queue::{Crowd, QueueRow, QueueView};
pub use refusal::Refusal;
pub use signin::SigninView;
pub use submit::{
    Cause, ClassChoice, Displaced, DryRun, DryRunView, Outcome, PoolChoice, SliceLine, SubmitForm,
    SubmitView, field_of,
};
pub use team::{MemberForm, MemberRow, QuotaRow, SpendLine, TeamView, UserSpend};
pub use teams::{TeamFigures, TeamForm, TeamRow, TeamsView};
pub use users::{UserForm, UserRow, UsersView};
pub use waits::{WaitCause, WaitHistory, WaitStretch};
pub use why::{Accuracy, BeyondQuota, Ending, Holders, Remedy, Wait, Why};
