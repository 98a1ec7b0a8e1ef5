//! The id of a job, of an array, or of one element of an array.
//!
//! An element's id is its array's with the element's number in its last 24 bits, which an array's
//! own id leaves empty. So each tells the other without a look-up, elements sort in their order,
//! and whoever takes a job's id takes an element's.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use super::hyphenated;
use crate::FieldError;

/// Most elements that an array's id has numbers for: its last 24 bits, of which zero is the array.
pub const JOB_ELEMENTS_MAX: u32 = (1 << 24) - 1;

/// The version of UUIDs whose bits their maker defines (RFC 9562): arrays' and elements'.
const CUSTOM_VERSION: u8 = 8;

/// A job, an array of jobs, or an element of one. An element reads `ARRAY.INDEX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
pub struct JobId(Uuid);

impl JobId {
    /// A new id of a job by itself; ids made later sort later.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// A new id of an array.
    pub fn new_array() -> Self {
        let mut bytes = Uuid::now_v7().into_bytes();
        bytes[6] = (CUSTOM_VERSION << 4) | (bytes[6] & 0x0f);
        Self(with_number(bytes, 0))
    }

    /// The id as 16 bytes, most significant first.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// Whether it is an array's.
    pub fn is_array(self) -> bool {
        self.custom() && self.number() == 0
    }

    /// The element of this array with that index; nothing where it is no array's id, or the index is
    /// beyond what ids can tell.
    pub fn element(self, index: u32) -> Option<Self> {
        let fits = self.is_array() && index < JOB_ELEMENTS_MAX;
        fits.then(|| Self(with_number(self.0.into_bytes(), index + 1)))
    }

    /// Which element of its array it is; nothing for any other job.
    pub fn index(self) -> Option<u32> {
        let number = self.number();
        (self.custom() && number > 0).then(|| number - 1)
    }

    /// The array that it is an element of; nothing for any other job.
    pub fn array(self) -> Option<Self> {
        self.index()
            .map(|_| Self(with_number(self.0.into_bytes(), 0)))
    }

    fn custom(self) -> bool {
        self.0.as_bytes()[6] >> 4 == CUSTOM_VERSION
    }

    fn number(self) -> u32 {
        let [.., a, b, c] = *self.0.as_bytes();
        u32::from_be_bytes([0, a, b, c])
    }
}

fn with_number(mut bytes: [u8; 16], number: u32) -> Uuid {
    bytes[13..].copy_from_slice(&number.to_be_bytes()[1..]);
    Uuid::from_bytes(bytes)
}

impl std::fmt::Display for JobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.array().zip(self.index()) {
            Some((array, index)) => write!(f, "{}.{index}", array.0),
            None => self.0.fmt(f),
        }
    }
}

impl std::str::FromStr for JobId {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = match text.split_once('.') {
            // One object has one spelling of its id: an element is told by its array.
            None => hyphenated(text).map(Self).filter(|id| id.index().is_none()),
            Some((array, index)) => hyphenated(array)
                .zip(read_index(index))
                .and_then(|(array, index)| Self(array).element(index)),
        };
        found.ok_or_else(|| {
            FieldError::new(
                "id",
                text,
                "an id such as 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f, of an element of an array with its index, as in ID.3",
            )
        })
    }
}

/// An index without sign or leading zeros.
fn read_index(text: &str) -> Option<u32> {
    let plain = text == "0" || !text.starts_with('0');
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    (plain && digits).then(|| text.parse().ok()).flatten()
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse()
            .map_err(|error| serde::de::Error::custom(format!("{error}")))
    }
}

/// What an id of a job looks like, in the words of the API's document.
#[cfg(feature = "openapi")]
const PATTERN: &str =
    "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(\\.(0|[1-9][0-9]{0,7}))?$";

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for JobId {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::schema::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .pattern(Some(PATTERN))
            .description(Some(
                "A job, an array of jobs, or an element of one: ARRAY.INDEX.",
            ))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for JobId {
    fn name() -> std::borrow::Cow<'static, str> {
        std::borrow::Cow::Borrowed("JobId")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_id_has_one_spelling() {
        let id = JobId::new();
        assert_eq!(id.to_string().parse::<JobId>(), Ok(id));
        let simple = id.to_string().replace('-', "");
        assert!(simple.parse::<JobId>().is_err());
        assert!("../../x".parse::<JobId>().is_err());
        assert_eq!((id.array(), id.index(), id.element(0)), (None, None, None));
        assert!(
            format!("{id}.0").parse::<JobId>().is_err(),
            "it is no array"
        );
    }

    #[test]
    fn an_element_is_read_and_told_by_its_array() {
        let array = JobId::new_array();
        assert_eq!(array.to_string().parse::<JobId>(), Ok(array));
        let element = array.element(41).expect("an array has elements");
        assert_eq!(element.to_string(), format!("{array}.41"));
        assert_eq!(element.to_string().parse::<JobId>(), Ok(element));
        assert_eq!((element.array(), element.index()), (Some(array), Some(41)));
        assert_eq!(element.element(0), None, "an element has none of its own");
        let written = serde_json::to_string(&element).expect("a text");
        assert_eq!(serde_json::from_str::<JobId>(&written).ok(), Some(element));
        for wrong in ["01", "-1", "+1", "", "x", "1.2", "16777215", "4294967296"] {
            assert!(
                format!("{array}.{wrong}").parse::<JobId>().is_err(),
                "{wrong}"
            );
        }
        let bare = Uuid::from_bytes(*element.as_bytes()).to_string();
        assert!(
            bare.parse::<JobId>().is_err(),
            "an element has one spelling"
        );
    }

    #[test]
    fn elements_sort_by_their_index_and_arrays_of_one_moment_differ() {
        let (one, other) = (JobId::new_array(), JobId::new_array());
        assert_ne!(one, other);
        let mut elements: Vec<JobId> = (0..300).rev().filter_map(|i| one.element(i)).collect();
        elements.sort_unstable();
        let indices: Vec<u32> = elements.iter().filter_map(|id| id.index()).collect();
        assert_eq!(indices, (0..300).collect::<Vec<_>>());
        assert!(elements.iter().all(|element| *element > one));
    }
}
