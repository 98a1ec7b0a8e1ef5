//! Which elements of an array are meant: indices and ranges of them, as in `0-9,12`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::FieldError;

/// Most indices and ranges of one list: more than anybody types.
const PARTS_MAX: usize = 256;

/// Some elements of an array: at least one, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elements {
    /// Ascending, and not touching each other's indices.
    parts: Vec<RangeInclusive<u32>>,
}

impl Elements {
    /// One element.
    pub fn one(index: u32) -> Self {
        Self {
            parts: vec![index..=index],
        }
    }

    /// Their indices, ascending.
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        self.parts.iter().cloned().flatten()
    }

    /// Refuses an index that an array of `count` elements does not have.
    pub fn check(&self, count: u32) -> Result<(), FieldError> {
        let last = self.parts.iter().map(RangeInclusive::end).max();
        match last.filter(|last| **last >= count) {
            None => Ok(()),
            Some(last) => Err(FieldError::new(
                "elements",
                last,
                format!("indices from 0 to {}", count.saturating_sub(1)),
            )),
        }
    }
}

impl FromStr for Elements {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let refused = || {
            FieldError::new(
                "elements",
                text,
                format!("indices and ranges such as 0-9,12; at most {PARTS_MAX}, each index once"),
            )
        };
        let parts = text.split(',').map(|part| read(part.trim()));
        let mut parts = parts.collect::<Option<Vec<_>>>().ok_or_else(refused)?;
        parts.sort_by_key(|part| *part.start());
        let apart = parts
            .iter()
            .zip(parts.iter().skip(1))
            .all(|(one, next)| one.end() < next.start());
        if parts.len() > PARTS_MAX || !apart {
            return Err(refused());
        }
        Ok(Self { parts })
    }
}

/// An index, or a range of them with both ends.
fn read(part: &str) -> Option<RangeInclusive<u32>> {
    let index = |text: &str| {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (from, to) = match part.split_once('-') {
        None => (index(part)?, index(part)?),
        Some((from, to)) => (index(from)?, index(to)?),
    };
    (from <= to).then_some(from..=to)
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.parts.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match part.start() == part.end() {
                true => write!(f, "{comma}{}", part.start())?,
                false => write!(f, "{comma}{}-{}", part.start(), part.end())?,
            }
        }
        Ok(())
    }
}

impl Serialize for Elements {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Elements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_elements_has_each_once_and_in_order() {
        let read: Elements = "12, 0-2,7-7".parse().expect("a list");
        assert_eq!(read.indices().collect::<Vec<_>>(), [0, 1, 2, 7, 12]);
        assert_eq!(read.to_string(), "0-2,7,12");
        assert!(read.check(13).is_ok());
        let told = read.check(12).expect_err("12 is beyond").to_string();
        assert!(told.contains("indices from 0 to 11"), "{told}");
        for wrong in [
            "",
            "a",
            "3-1",
            "1-",
            "-1",
            "1,1",
            "0-5,5-9",
            "1;2",
            "4294967296",
        ] {
            assert!(wrong.parse::<Elements>().is_err(), "{wrong}");
        }
    }
}
