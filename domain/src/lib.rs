//! The words and rules that every part of Allotment shares: ids, quantities, money, time, names, states and roles; no I/O.

mod text_enum;

pub mod budget;
pub mod elements;
pub mod error;
pub mod eviction;
pub mod ids;
pub mod money;
pub mod name;
pub mod notice;
pub mod password;
pub mod policy;
pub mod quantity;
pub mod quota;
pub mod role;
pub mod sharing;
pub mod spec;
pub mod state;
pub mod time;
pub mod wall;
pub mod weekly;
pub mod words;

pub use error::FieldError;
pub use quantity::{MilliCpu, MilliGpu};
pub use time::Timestamp;
