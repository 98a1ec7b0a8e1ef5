//! What one worker needs of devices.

use std::collections::HashMap;

use domain::MilliGpu;
use domain::spec::PerWorker;

use super::DEVICE;
use crate::mig::{self, Profile};

/// What one worker needs of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Whole(u32),
    /// A part of one device; its memory where the workload says it.
    Part {
        milli: i64,
        memory: Option<i64>,
    },
    /// MIG instances of one profile, by its number among those that are asked for.
    Instances {
        count: u32,
        profile: usize,
    },
}

impl Need {
    pub fn of<'w>(asked: &'w PerWorker, profiles: &mut Profiles<'w>) -> Self {
        let gpus = asked.gpus();
        if let Some(name) = &asked.mig_profile {
            Self::Instances {
                count: u32::try_from(gpus.milli() / DEVICE).unwrap_or(u32::MAX),
                profile: profiles.number(name),
            }
        } else if gpus == MilliGpu::ZERO {
            Self::Nothing
        } else if asked.fraction() {
            Self::Part {
                milli: gpus.milli(),
                memory: asked.gpu_memory_mib,
            }
        } else {
            Self::Whole(u32::try_from(gpus.milli() / DEVICE).unwrap_or(u32::MAX))
        }
    }
}

/// The profiles that are asked for, numbered as they come.
#[derive(Default)]
pub(crate) struct Profiles<'w> {
    numbers: HashMap<&'w str, usize>,
    pub(super) by_model: Vec<Vec<Option<&'static Profile>>>,
}

impl<'w> Profiles<'w> {
    fn number(&mut self, name: &'w str) -> usize {
        *self.numbers.entry(name).or_insert_with(|| {
            self.by_model.push(mig::by_model(name));
            self.by_model.len() - 1
        })
    }
}

/// A fraction counts as the larger of its GPUs and its memory's part, rounded up to a thousandth.
pub(super) fn part_milli(milli: i64, memory: Option<i64>, device_memory: i64) -> i64 {
    match memory {
        Some(memory) if device_memory > 0 => {
            milli.max((memory * DEVICE + device_memory - 1) / device_memory)
        }
        _ => milli,
    }
}
