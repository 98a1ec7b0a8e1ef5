//! Names that people choose: plain ASCII, short, safe in a URL, a path, a log and a page.

use serde::{Deserialize, Serialize};

use crate::FieldError;

/// The longest name; fits a DNS label, a folder and a table cell.
pub const NAME_CHARS_MAX: usize = 63;
/// The longest job name; people put parameters into them.
pub const JOB_NAME_CHARS_MAX: usize = 128;

const NAME_REMEDY: &str =
    "1 to 63 of a-z, 0-9, '-', '_' and '.', beginning with a letter or a digit";
const JOB_NAME_REMEDY: &str =
    "1 to 128 of A-Z, a-z, 0-9, '-', '_' and '.', beginning with a letter or a digit";

macro_rules! name {
    ($(#[$meta:meta])* $name:ident, $what:literal, $max:expr, $upper:expr, $remedy:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = FieldError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                if acceptable(text, $max, $upper) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(FieldError::new("name", text, $remedy))
                }
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                schema($what, $max, $upper)
            }
        }
        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

name!(
    /// The name of a team, pool, node, user or class.
    Name, "The name of a team, pool, node, user or class.", NAME_CHARS_MAX, false, NAME_REMEDY
);
name!(
    /// The name of a job; not unique.
    JobName, "The name of a job; not unique.", JOB_NAME_CHARS_MAX, true, JOB_NAME_REMEDY
);

fn acceptable(text: &str, chars_max: usize, upper: bool) -> bool {
    let letter =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || (upper && b.is_ascii_uppercase());
    text.len() <= chars_max
        && text.bytes().next().is_some_and(letter)
        && text
            .bytes()
            .all(|b| letter(b) || matches!(b, b'-' | b'_' | b'.'))
}

/// The rule of [`acceptable`], as a schema says it.
#[cfg(feature = "openapi")]
fn schema(
    what: &str,
    chars_max: usize,
    upper: bool,
) -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
    utoipa::openapi::ObjectBuilder::new()
        .schema_type(utoipa::openapi::schema::Type::String)
        .description(Some(what))
        .min_length(Some(1))
        .max_length(Some(chars_max))
        .pattern(Some(pattern(upper)))
        .into()
}

/// The letters of [`acceptable`] as a regular expression.
#[cfg(feature = "openapi")]
fn pattern(upper: bool) -> String {
    let letters = if upper { "A-Za-z0-9" } else { "a-z0-9" };
    format!("^[{letters}][{letters}._-]*$")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_holds_no_markup_path_or_control_character() {
        let long = "x".repeat(64);
        for bad in [
            "",
            "\"><svg/onload=1>",
            "../../x",
            "a\r\nb",
            "\u{202e}x",
            "-a",
            "Vision",
            long.as_str(),
            "a b",
        ] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
        for good in ["vision", "h100-1", "l40s", "constructor", "a_b.c"] {
            assert!(good.parse::<Name>().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn a_job_name_may_have_upper_case() {
        assert!("Digits-LR0.1".parse::<JobName>().is_ok());
        assert!("<b>".parse::<JobName>().is_err());
    }
}
