//! A MIG instance at its place, as server and agent name it to one another.

use serde::{Deserialize, Serialize};

use crate::{Malformed, wire};

/// Most memory slices of a device: no model has more.
pub const SLICES_MAX: u32 = 8;
/// Longest name of a profile; the longest that drivers print has 16 characters.
const PROFILE_CHARS_MAX: usize = 32;

/// A MIG instance at its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MigSlice {
    /// Its profile, such as `3g.40gb`.
    pub profile: String,
    /// The memory slice at which it begins.
    pub start: u32,
    /// Memory slices that it takes.
    pub size: u32,
}

impl MigSlice {
    /// Whether two instances share a memory slice.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.start + other.size && other.start < self.start + self.size
    }
}

impl std::fmt::Display for MigSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.profile, self.start)
    }
}

impl TryFrom<wire::MigSlice> for MigSlice {
    type Error = Malformed;

    fn try_from(wire: wire::MigSlice) -> Result<Self, Malformed> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'+' | b'-');
        if wire.profile.is_empty()
            || wire.profile.len() > PROFILE_CHARS_MAX
            || !wire.profile.bytes().all(plain)
        {
            return Err(Malformed::invalid("mig.profile", &wire.profile));
        }
        let fits = wire.start < SLICES_MAX && (1..=SLICES_MAX - wire.start).contains(&wire.size);
        if !fits {
            return Err(Malformed::invalid("mig.start", wire.start));
        }
        Ok(Self {
            profile: wire.profile,
            start: wire.start,
            size: wire.size,
        })
    }
}

impl From<MigSlice> for wire::MigSlice {
    fn from(slice: MigSlice) -> Self {
        Self {
            profile: slice.profile,
            start: slice.start,
            size: slice.size,
        }
    }
}

/// Checks how a device is cut: its instances by start, none on another's slices.
pub(crate) fn check(mig: wire::Mig) -> Result<Vec<MigSlice>, Malformed> {
    if mig.instances.len() > SLICES_MAX as usize {
        return Err(Malformed::invalid("mig.instances", mig.instances.len()));
    }
    let mut slices: Vec<MigSlice> = mig
        .instances
        .into_iter()
        .map(MigSlice::try_from)
        .collect::<Result<_, _>>()?;
    slices.sort_by_key(|slice| slice.start);
    match slices.windows(2).find(|pair| pair[0].overlaps(&pair[1])) {
        Some(pair) => Err(Malformed::invalid("mig.instances", &pair[1])),
        None => Ok(slices),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(profile: &str, start: u32, size: u32) -> wire::MigSlice {
        wire::MigSlice {
            profile: profile.to_owned(),
            start,
            size,
        }
    }

    #[test]
    fn a_slice_lies_within_a_device_and_has_a_plain_name() {
        assert!(MigSlice::try_from(slice("1g.10gb+me", 6, 1)).is_ok());
        assert!(MigSlice::try_from(slice("7g.80gb", 0, 8)).is_ok());
        for wrong in [
            slice("", 0, 1),
            slice("1g,2g", 0, 1),
            slice("1g.5gb", 8, 1),
            slice("3g.20gb", 5, 4),
            slice("3g.20gb", 0, 0),
            slice("3g.20gb", u32::MAX, 4),
        ] {
            assert!(MigSlice::try_from(wrong.clone()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn slices_that_share_a_place_overlap() {
        let read = |start, size| MigSlice::try_from(slice("x", start, size)).expect("a slice");
        assert!(read(0, 4).overlaps(&read(3, 1)));
        assert!(!read(0, 4).overlaps(&read(4, 4)));
    }
}
