//! Query parameters that hold several words, separated by commas.

use domain::FieldError;

/// Reads each word of a parameter once: one that is empty or comes twice is refused, since whoever
/// sent it meant something else. Without the parameter there is none.
pub fn read_list<T: Copy + PartialEq>(
    field: &str,
    text: Option<&str>,
    read: impl Fn(&str) -> Result<T, FieldError>,
) -> Result<Vec<T>, FieldError> {
    let mut words = Vec::new();
    for word in text.into_iter().flat_map(|text| text.split(',')) {
        let read = read(word)?;
        if words.contains(&read) {
            return Err(FieldError::new(field, word, "each word once"));
        }
        words.push(read);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::state::JobState;

    #[test]
    fn a_word_that_is_empty_or_comes_twice_is_refused() {
        let read = |text| read_list("state", text, str::parse::<JobState>);
        assert_eq!(read(None), Ok(vec![]));
        assert_eq!(
            read(Some("queued,running")),
            Ok(vec![JobState::Queued, JobState::Running])
        );
        for (text, value) in [
            ("", ""),
            ("queued,", ""),
            (",queued", ""),
            ("queued,running,queued", "queued"),
            ("queued, running", " running"),
        ] {
            let refused = read(Some(text)).expect_err(text);
            assert_eq!(
                (refused.field.as_str(), refused.value.as_str()),
                ("state", value)
            );
        }
    }
}
