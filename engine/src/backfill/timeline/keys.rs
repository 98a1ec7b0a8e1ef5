//! The claims of a workload by their keys: hardly any has more than one.

use super::Key;

/// Some keys, in the order in which they came.
#[derive(Debug, Clone, Default)]
pub(in crate::backfill) enum Keys {
    #[default]
    None,
    One(Key),
    Several(Vec<Key>),
}

impl Keys {
    pub fn as_slice(&self) -> &[Key] {
        match self {
            Self::None => &[],
            Self::One(key) => std::slice::from_ref(key),
            Self::Several(keys) => keys,
        }
    }

    pub fn push(&mut self, key: Key) {
        match self {
            Self::None => *self = Self::One(key),
            Self::One(first) => *self = Self::Several(vec![*first, key]),
            Self::Several(keys) => keys.push(key),
        }
    }

    pub fn remove(&mut self, key: Key) {
        match self {
            Self::One(only) if *only == key => *self = Self::None,
            Self::None | Self::One(_) => {}
            Self::Several(keys) => keys.retain(|there| *there != key),
        }
    }
}
