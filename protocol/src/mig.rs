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

/// How a layout will have a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Whether it will be cut; else it will be whole.
    pub mig: bool,
    /// The profile of each instance, as the layout names it.
    pub profiles: Vec<String>,
}

impl Layout {
    pub(crate) fn check(layout: wire::Layout) -> Result<Self, Malformed> {
        let wire::Layout { mig, profiles } = layout;
        if profiles.len() > SLICES_MAX as usize || (!mig && !profiles.is_empty()) {
            return Err(Malformed::invalid("device.layout", profiles.len()));
        }
        match profiles.iter().find(|profile| !plain(profile)) {
            Some(wrong) => Err(Malformed::invalid("device.layout", wrong)),
            None => Ok(Self { mig, profiles }),
        }
    }
}

fn plain(profile: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'+' | b'-');
    (1..=PROFILE_CHARS_MAX).contains(&profile.len()) && profile.bytes().all(plain)
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
        if !plain(&wire.profile) {
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

    #[test]
    fn a_layout_has_as_many_profiles_as_a_device_has_slices_and_none_where_it_is_whole() {
        let read = |mig: bool, profiles: &[&str]| {
            Layout::check(wire::Layout {
                mig,
                profiles: profiles.iter().map(ToString::to_string).collect(),
            })
        };
        assert!(read(true, &["3g.40gb", "4g.40gb"]).is_ok());
        assert!(read(true, &[]).is_ok() && read(false, &[]).is_ok());
        assert!(read(false, &["3g.40gb"]).is_err());
        assert!(read(true, &["1g.10gb"; 9]).is_err());
        assert!(read(true, &["1g 10gb"]).is_err() && read(true, &[""]).is_err());
    }
}
