//! Texts of others on their way to a terminal: what they say is shown, what they order is not obeyed.

use domain::error::printable;

/// What stands in the place of a character that is not shown.
const REPLACED: char = char::REPLACEMENT_CHARACTER;
/// Longest escape sequence that is waited for; a colour needs a dozen characters.
const SEQUENCE_CHARS_MAX: usize = 64;

/// A text of one line with its control and direction characters replaced.
pub fn plain(text: &str) -> String {
    replaced(text, |_| false)
}

/// The same of a text whose lines and columns are meant.
pub fn plain_lines(text: &str) -> String {
    replaced(text, |c| matches!(c, '\n' | '\t'))
}

fn replaced(text: &str, meant: impl Fn(char) -> bool) -> String {
    let shown = |c| {
        if printable(c) || meant(c) {
            c
        } else {
            REPLACED
        }
    };
    text.chars().map(shown).collect()
}

/// JSON with the same characters escaped, so that it says what it said.
pub fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if printable(c) || c == '\n' {
            text.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    text
}

/// Lets the text and the colours of a log through, and no other control sequence.
#[derive(Debug, Default)]
pub struct Filter {
    /// The beginning of a character whose rest has not come yet.
    cut: Vec<u8>,
    /// The beginning of a sequence that may become a colour.
    held: String,
}

impl Filter {
    /// What is shown of a chunk; what it ends in the middle of comes with the next.
    pub fn pass(&mut self, chunk: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.cut);
        bytes.extend_from_slice(chunk);
        let mut shown = String::with_capacity(bytes.len());
        let mut rest = bytes.as_slice();
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.pass_text(text, &mut shown);
                    return shown;
                }
                Err(error) => error,
            };
            let (good, bad) = rest.split_at(error.valid_up_to());
            self.pass_text(&String::from_utf8_lossy(good), &mut shown);
            // A byte that is no UTF-8 may be a control character of an older terminal.
            match error.error_len() {
                Some(length) => {
                    self.pass_text("\u{fffd}", &mut shown);
                    rest = &bad[length..];
                }
                None => {
                    self.cut = bad.to_vec();
                    return shown;
                }
            }
        }
    }

    fn pass_text(&mut self, text: &str, shown: &mut String) {
        for c in text.chars() {
            if self.held.is_empty() {
                match c {
                    '\u{1b}' => self.held.push(c),
                    '\n' | '\t' | '\r' => shown.push(c),
                    c if printable(c) => shown.push(c),
                    _ => shown.push(REPLACED),
                }
                continue;
            }
            self.held.push(c);
            let colour = self.held.starts_with("\u{1b}[");
            let parameter = self.held.len() == 2 || c.is_ascii_digit() || c == ';';
            if colour && c == 'm' {
                shown.push_str(&std::mem::take(&mut self.held));
            } else if !colour || !parameter || self.held.len() > SEQUENCE_CHARS_MAX {
                self.held.clear();
                shown.push(REPLACED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C1 controls (the second is the one-byte form of ESC [), and all that turns the direction
    /// of what stands beside it.
    const ORDERS: &str = "\u{80}\u{9b}\u{9d}\u{9f}\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}\u{7f}\u{0}\u{7}\u{8}";

    #[test]
    fn only_colours_reach_the_terminal() {
        let mut filter = Filter::default();
        assert_eq!(
            filter.pass(b"\x1b[31mred\x1b[0m\n"),
            "\u{1b}[31mred\u{1b}[0m\n"
        );
        let shown = filter.pass(b"\x1b]52;c;AAAA\x07\x1b[2J\x00");
        assert!(!shown.contains(['\u{1b}', '\u{7}', '\0']), "{shown:?}");
    }

    #[test]
    fn neither_c1_controls_nor_directions_reach_the_terminal() {
        let replaced = "\u{fffd}".repeat(ORDERS.chars().count());
        assert_eq!(Filter::default().pass(ORDERS.as_bytes()), replaced);
        assert_eq!(plain(ORDERS), replaced);
        assert_eq!(plain_lines(ORDERS), replaced);
        // The bytes alone, which terminals without UTF-8 obey.
        assert_eq!(Filter::default().pass(b"a\x9b2Jb\n"), "a\u{fffd}2Jb\n");
    }

    #[test]
    fn a_sequence_or_a_character_may_be_cut_by_a_chunk() {
        let mut filter = Filter::default();
        let mut shown = filter.pass(b"\x1b[3");
        shown += &filter.pass(b"1mx");
        for byte in "块é\u{202e}".bytes() {
            shown += &filter.pass(&[byte]);
        }
        assert_eq!(shown, "\u{1b}[31mx块é\u{fffd}");
    }

    #[test]
    fn escaped_json_says_what_it_said() {
        let said = serde_json::json!({"name": format!("a{ORDERS}\u{e0001}块\nb")});
        let text = escaped(&serde_json::to_string_pretty(&said).expect("JSON"));
        assert_eq!(plain_lines(&text), text);
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).expect("JSON"),
            said
        );
    }
}
