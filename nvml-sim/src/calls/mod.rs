//! The calls that are simulated, by subject; all others are in `stubs`.

pub(crate) mod accounting;
pub(crate) mod compute;
pub(crate) mod device;
pub(crate) mod events;
pub(crate) mod fields;
pub(crate) mod gpm;
pub(crate) mod links;
pub(crate) mod mig;
pub(crate) mod processes;
pub(crate) mod system;
pub(crate) mod telemetry;
pub(crate) mod vgpu;
