//! One view for each page: what it shows, as values, and its HTML.

mod error;
mod fleet;
mod job;
mod jobs;
mod node;
mod signin;
mod submit;
mod team;
mod teams;
mod users;

pub use error::ErrorView;
pub use fleet::{FleetNode, FleetPool, FleetView, Held, ModeOffer};
pub use job::{
    AttemptRow, CostLine, Ending, JobActions, JobView, LogChoice, LogPanel, PlacedWorker, Remedy,
    Wait, Why,
};
pub use jobs::{JobRow, JobsFilter, JobsView};
pub use node::{NodeAction, NodeDevice, NodeNote, NodeView, NodeWork};
pub use signin::SigninView;
pub use submit::{
    ClassChoice, DryRun, DryRunView, FieldError, Outcome, PoolChoice, SubmitForm, SubmitView,
    field_of,
};
pub use team::{MemberForm, MemberRow, QuotaRow, SpendLine, TeamView, UserSpend};
pub use teams::{TeamForm, TeamRow, TeamsView};
pub use users::{UserForm, UserRow, UsersView};
