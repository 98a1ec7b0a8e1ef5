//! Splits a command line into words as a shell would, without running one.

/// Why a line cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// A quote was opened and not closed.
    #[error("close the quote, or put a backslash before it")]
    OpenQuote,
    /// The line ends in a backslash.
    #[error("put a character after the last backslash, or leave it out")]
    OpenEscape,
}

/// The words of a line: blanks divide, quotes and backslashes keep together.
/// Variables, wildcards and pipes mean nothing here and stay as they are.
pub fn split(line: &str) -> Result<Vec<String>, SplitError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            blank if blank.is_whitespace() => words.extend(word.take()),
            '\'' => read_quoted(&mut characters, word.get_or_insert_default())?,
            '"' => read_double_quoted(&mut characters, word.get_or_insert_default())?,
            '\\' => match characters.next() {
                // A line that goes on: the backslash and the line's end are nothing.
                Some('\n') => {}
                Some(escaped) => word.get_or_insert_default().push(escaped),
                None => return Err(SplitError::OpenEscape),
            },
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

fn read_quoted(characters: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), SplitError> {
    for character in characters {
        if character == '\'' {
            return Ok(());
        }
        word.push(character);
    }
    Err(SplitError::OpenQuote)
}

fn read_double_quoted(
    characters: &mut std::str::Chars<'_>,
    word: &mut String,
) -> Result<(), SplitError> {
    while let Some(character) = characters.next() {
        match character {
            '"' => return Ok(()),
            '\\' => match characters.next() {
                Some(escaped @ ('"' | '\\' | '$' | '`')) => word.push(escaped),
                Some('\n') => {}
                Some(other) => word.extend(['\\', other]),
                None => return Err(SplitError::OpenQuote),
            },
            other => word.push(other),
        }
    }
    Err(SplitError::OpenQuote)
}

/// Writes words as a line that [`split`] turns into the same words.
pub fn join<S: AsRef<str>>(words: &[S]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| quote(word.as_ref())).collect();
    quoted.join(" ")
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-{}[]*?$&|;<>()!#~^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quotes_and_backslashes_keep_words_together() {
        let words = |line: &str| split(line).expect("it can be split");
        assert_eq!(
            words("python3  train.py --epochs 20"),
            ["python3", "train.py", "--epochs", "20"]
        );
        assert_eq!(
            words(r#"sh -c 'echo "a b"' "c \"d\" \n" e\ f"#),
            ["sh", "-c", "echo \"a b\"", "c \"d\" \\n", "e f"]
        );
        assert_eq!(words("a '' \"\" b"), ["a", "", "", "b"]);
        assert_eq!(words("a \\\n b"), ["a", "b"]);
        assert_eq!(words("  "), Vec::<String>::new());
    }

    #[test]
    fn what_is_left_open_is_refused() {
        assert_eq!(split("sh -c 'x"), Err(SplitError::OpenQuote));
        assert_eq!(split("sh \"x"), Err(SplitError::OpenQuote));
        assert_eq!(split("sh \\"), Err(SplitError::OpenEscape));
    }

    proptest! {
        #[test]
        fn joined_words_split_into_the_same_words(words in proptest::collection::vec(".{0,12}", 0..5)) {
            prop_assert_eq!(split(&join(&words)), Ok(words));
        }
    }
}
