//! What a daemon of MPS is of: a device, or an instance of one at its place.

use crate::journal::KeptDevice;

/// What stands between a device and the place of an instance in a name; no UUID has it.
const AT: char = '@';
/// Digits of a device's UUID that tell it from all others of a node.
const SHORT_DIGITS: usize = 16;

/// A device, or an instance of one. An instance has another UUID each time that it is made, so that its
/// place names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The device.
    pub uuid: String,
    /// The instance: the memory slice at which it begins, and how many it takes.
    pub slice: Option<(u32, u32)>,
}

impl Place {
    /// What a share is of.
    pub fn of(share: &KeptDevice) -> Self {
        Self {
            uuid: share.uuid.clone(),
            slice: share.mig.as_ref().map(|slice| (slice.start, slice.size)),
        }
    }

    /// Its name as a folder's.
    pub fn name(&self) -> String {
        match self.slice {
            Some((start, size)) => format!("{}{AT}{start}-{size}", self.uuid),
            None => self.uuid.clone(),
        }
    }

    /// The same as short as it can be.
    pub fn short(&self) -> String {
        let digits = self.uuid.chars().filter(char::is_ascii_hexdigit);
        let digits: String = digits.take(SHORT_DIGITS).collect();
        match self.slice {
            Some((start, size)) => format!("{digits}-{start}-{size}"),
            None => digits,
        }
    }

    /// Reads a name.
    pub fn read(name: &str) -> Option<Self> {
        let Some((uuid, slice)) = name.split_once(AT) else {
            return Some(Self {
                uuid: name.to_owned(),
                slice: None,
            });
        };
        let (start, size) = slice.split_once('-')?;
        Some(Self {
            uuid: uuid.to_owned(),
            slice: Some((start.parse().ok()?, size.parse().ok()?)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_from_its_name() {
        for slice in [None, Some((4, 2))] {
            let place = Place {
                uuid: "GPU-1".to_owned(),
                slice,
            };
            assert_eq!(Place::read(&place.name()), Some(place));
        }
        assert_eq!(Place::read("GPU-1@x"), None);
    }
}
