//! One view for each page: what it shows, as values, and its HTML.

mod array;
mod beyond;
mod billing;
mod bookings;
mod budgets;
mod classes;
mod device;
mod effect;
mod elements;
mod ending;
mod error;
mod eviction;
mod fleet;
mod held;
mod job;
mod jobs;
mod node;
mod policies;
mod pool;
mod queue;
mod quotas;
mod refusal;
mod scope;
mod signin;
mod submit;
mod team;
mod teams;
mod told;
mod users;
mod utilisation;
mod waits;
mod why;
mod windows;

pub use array::ArrayView;
pub use beyond::BeyondQuota;
pub use billing::{
    BillingView, DayRow, FactorRow, PeriodRow, PriceBookRow, PriceBooksView, PriceForm,
    PricePreview, PriceRow, ReconciledRow, ReconciliationView, StatementLine, StatementRow,
    StatementView, StatementsView,
};
pub use bookings::{
    BookingConflict, BookingForm, BookingRow, BookingsView, CalendarCell, CalendarDay, CalendarWeek,
};
pub use budgets::{BudgetRow, BudgetsView};
pub use classes::{ClassForm, ClassRow, ClassesView};
pub use device::{DeviceSums, DeviceView, DeviceWindow};
pub use effect::{Effect, EffectConflicts, EffectCut, EffectJob, EffectShare, Fate};
pub use elements::DryRunElements;
pub use ending::Ending;
pub use error::ErrorView;
pub use eviction::{EvictionRow, EvictionSum, Gainer};
pub use fleet::{FleetNode, FleetPool, FleetView, Held, ModeOffer};
pub use job::{
    AttemptRow, CostLine, JobActions, JobChange, JobView, LogChoice, LogPanel, PlacedWorker,
};
pub use jobs::{JobRow, JobsFilter, JobsView, Unfolding};
pub use node::{
    Laying, Leaving, NodeAction, NodeDevice, NodeFinding, NodeNote, NodeView, NodeWork,
};
pub use policies::{
    ChangeRow, ChangedKey, Changes, ChangesView, GoingBack, PolicySave, PolicyTab, PolicyTabs,
    PolicyWarning, policy_word,
};
pub use pool::{FieldKind, PolicyField, PolicyGroup, PoolForm, PoolView};
pub use queue::{Crowd, QueueRow, QueueView};
pub use quotas::{QUOTA_KEYS, QuotaCell, QuotaInPlace, QuotaLine, QuotaPool, QuotasView};
pub use refusal::Refusal;
pub use scope::scope;
pub use signin::SigninView;
pub use submit::{
    Cause, ClassChoice, Displaced, DryRun, DryRunView, Outcome, PoolChoice, SliceLine, SubmitForm,
    SubmitView, field_of,
};
pub use team::{MemberForm, MemberRow, QuotaRow, SpendLine, TeamView, UserSpend};
pub use teams::{TeamFigures, TeamForm, TeamRow, TeamsView};
pub use users::{UserForm, UserRow, UsersView};
pub use utilisation::{Utilisation, UtilisationStep};
pub use waits::{WaitCause, WaitHistory, WaitStretch};
pub use why::{Accuracy, Holders, Remedy, Wait, Why};
pub use windows::{
    GridCell, GridDay, WeekGrid, WindowForm, WindowLine, WindowQuota, WindowRow, WindowsView,
};
