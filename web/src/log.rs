//! Turns a job's raw output into lines that a page can show safely.
//!
//! Output is bytes that a tenant chose. Of its control sequences only colours
//! (SGR) are kept, as classes; cursor movement, titles and hyperlinks are
//! dropped, invalid UTF-8 is replaced, a carriage return starts the line over
//! (as a terminal shows a progress bar), and a line has a bound.

use std::fmt::Write as _;

use crate::draw::Html;
use crate::messages::{Messages, escape};

/// Characters of a line that are shown; a longer line is cut with a mark. A
/// browser lays out lines of this size at once, and no one reads further.
pub const LINE_CHARACTERS_MAX: usize = 4_000;

/// Bytes of a line that has not ended yet which the renderer keeps; what exceeds them is dropped.
const PENDING_BYTES_MAX: usize = 4 * LINE_CHARACTERS_MAX;

/// One line, ready to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The line as HTML: escaped text in coloured spans.
    pub html: String,
    /// Whether the line was longer than what is shown.
    pub cut: bool,
}

impl Line {
    /// The line as an item of the log's list; the page and the stream that follows it show the same.
    pub fn show(&self, t: &Messages) -> Html {
        if self.cut {
            let mark = t.say("log.cut");
            return Html(format!(
                "<li class=\"cut\"><span>{} <b class=\"muted\">{mark}</b></span></li>",
                self.html
            ));
        }
        Html(format!("<li><span>{}</span></li>", self.html))
    }
}

/// Renders output piece by piece; colours and an unfinished line carry over.
#[derive(Debug, Clone, Default)]
pub struct Renderer {
    pending: Vec<u8>,
    overlong: bool,
    style: Style,
}

/// The colours in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Style {
    foreground: Option<u8>,
    background: Option<u8>,
    bold: bool,
    faint: bool,
    italic: bool,
    underline: bool,
}

impl Renderer {
    /// The lines that end in these bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.keep(&rest[..end]);
            lines.push(self.end_line());
            rest = &rest[end + 1..];
        }
        self.keep(rest);
        lines
    }

    /// The last line, when the output stopped without ending it.
    pub fn finish(&mut self) -> Option<Line> {
        (!self.pending.is_empty() || self.overlong).then(|| self.end_line())
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = PENDING_BYTES_MAX - self.pending.len();
        self.overlong |= bytes.len() > room;
        self.pending
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn end_line(&mut self) -> Line {
        let bytes = std::mem::take(&mut self.pending);
        let overlong = std::mem::take(&mut self.overlong);
        let text = String::from_utf8_lossy(&bytes);
        let (html, cut) = render_line(last_overwrite(&text), &mut self.style);
        Line {
            html,
            cut: cut || overlong,
        }
    }
}

/// The lines of a whole output.
pub fn render(bytes: &[u8]) -> Vec<Line> {
    let mut renderer = Renderer::default();
    let mut lines = renderer.feed(bytes);
    lines.extend(renderer.finish());
    lines
}

/// What a terminal would show of a line that a carriage return starts over.
fn last_overwrite(line: &str) -> &str {
    let line = line.trim_end_matches('\r');
    line.rsplit('\r').next().unwrap_or(line)
}

fn render_line(line: &str, style: &mut Style) -> (String, bool) {
    let mut html = String::new();
    let mut run = String::new();
    let mut shown = 0;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => {
                if let Some(parameters) = read_sequence(&mut characters) {
                    flush(&mut html, &mut run, *style);
                    style.apply(&parameters);
                }
            }
            '\u{9b}' => {
                if let Some(parameters) = read_control(&mut characters) {
                    flush(&mut html, &mut run, *style);
                    style.apply(&parameters);
                }
            }
            hidden if hidden != '\t' && is_hidden(hidden) => {}
            _ if shown == LINE_CHARACTERS_MAX => {
                flush(&mut html, &mut run, *style);
                return (html, true);
            }
            visible => {
                run.push(visible);
                shown += 1;
            }
        }
    }
    flush(&mut html, &mut run, *style);
    (html, false)
}

/// A text of a job as a page may hold it: what would be hidden is written out, as `\u{1b}`.
pub fn visible(text: &str) -> String {
    text.chars()
        .map(|character| match character {
            hidden if !matches!(hidden, '\n' | '\t') && is_hidden(hidden) => {
                hidden.escape_unicode().to_string()
            }
            shown => shown.to_string(),
        })
        .collect()
}

/// Control characters, and the marks that turn the direction of text around (they could make a line lie).
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

type Characters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Consumes what follows an escape; the parameters when it was a colour.
fn read_sequence(characters: &mut Characters<'_>) -> Option<String> {
    match characters.peek()? {
        '[' => {
            characters.next();
            read_control(characters)
        }
        // A string (title, hyperlink, device control) up to its terminator: BEL, or ESC and a backslash.
        ']' | 'P' | 'X' | '^' | '_' => {
            while let Some(character) = characters.next() {
                if character == '\u{7}' {
                    break;
                }
                if character == '\u{1b}' && characters.next_if_eq(&'\\').is_some() {
                    break;
                }
            }
            None
        }
        _ => {
            while characters.next_if(|c| (' '..='/').contains(c)).is_some() {}
            characters.next_if(|c| ('0'..='~').contains(c));
            None
        }
    }
}

/// Consumes a control sequence; its parameters when its final byte is `m`.
fn read_control(characters: &mut Characters<'_>) -> Option<String> {
    let mut parameters = String::new();
    while let Some(character) = characters.next_if(|c| (' '..='?').contains(c)) {
        parameters.push(character);
    }
    let last = characters.next_if(|c| ('@'..='~').contains(c))?;
    (last == 'm'
        && parameters
            .chars()
            .all(|c| c.is_ascii_digit() || c == ';' || c == ':'))
    .then_some(parameters)
}

fn flush(html: &mut String, run: &mut String, style: Style) {
    if run.is_empty() {
        return;
    }
    let text = escape(run);
    run.clear();
    let classes = style.classes();
    if classes.is_empty() {
        html.push_str(&text);
    } else {
        write!(html, "<span class=\"{classes}\">{text}</span>")
            .expect("writing to a string cannot fail");
    }
}

impl Style {
    fn apply(&mut self, parameters: &str) {
        let mut codes = parameters
            .split([';', ':'])
            .map(|code| code.parse::<u16>().unwrap_or(0));
        while let Some(code) = codes.next() {
            match code {
                0 => *self = Self::default(),
                1 => self.bold = true,
                2 => self.faint = true,
                3 => self.italic = true,
                4 => self.underline = true,
                22 => (self.bold, self.faint) = (false, false),
                23 => self.italic = false,
                24 => self.underline = false,
                30..=37 | 90..=97 => self.foreground = Some(palette(code, 30)),
                39 => self.foreground = None,
                40..=47 | 100..=107 => self.background = Some(palette(code, 40)),
                49 => self.background = None,
                38 | 48 => {
                    let colour = read_extended(&mut codes);
                    if code == 38 {
                        self.foreground = colour
                    } else {
                        self.background = colour
                    }
                }
                _ => {}
            }
        }
    }

    fn classes(self) -> String {
        let mut classes = Vec::new();
        classes.extend(self.foreground.map(|colour| format!("f{colour}")));
        classes.extend(self.background.map(|colour| format!("g{colour}")));
        for (on, class) in [
            (self.bold, "b"),
            (self.faint, "d"),
            (self.italic, "o"),
            (self.underline, "n"),
        ] {
            if on {
                classes.push(format!("a{class}"));
            }
        }
        classes.join(" ")
    }
}

/// The place in the sixteen-colour palette of a basic or a bright colour's code.
fn palette(code: u16, base: u16) -> u8 {
    let place = if code >= base + 60 {
        code - base - 60 + 8
    } else {
        code - base
    };
    u8::try_from(place).expect("a palette has sixteen places")
}

/// Of the extended colours the sixteen basic ones are kept; others would not keep their contrast in both themes.
fn read_extended(codes: &mut impl Iterator<Item = u16>) -> Option<u8> {
    match codes.next()? {
        5 => codes
            .next()
            .filter(|colour| *colour < 16)
            .and_then(|colour| u8::try_from(colour).ok()),
        2 => {
            codes.nth(2);
            None
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8]) -> Vec<String> {
        render(bytes).into_iter().map(|line| line.html).collect()
    }

    #[test]
    fn markup_in_a_log_is_escaped() {
        assert_eq!(
            shown(b"<script>alert(1)</script>\n"),
            ["&lt;script&gt;alert(1)&lt;/script&gt;"]
        );
    }

    #[test]
    fn what_a_command_would_hide_is_written_out() {
        assert_eq!(
            visible("echo '\u{1b}]0;evil\u{7}' \u{202e}a\tb\n"),
            "echo '\\u{1b}]0;evil\\u{7}' \\u{202e}a\tb\n"
        );
    }

    #[test]
    fn colours_become_classes_and_carry_over_lines_until_they_are_reset() {
        assert_eq!(
            shown(b"\x1b[1;31mbad\nstill\x1b[0m fine\n"),
            [
                "<span class=\"f1 ab\">bad</span>",
                "<span class=\"f1 ab\">still</span> fine"
            ]
        );
        assert_eq!(
            shown(b"\x1b[38;5;12mx\x1b[38;2;1;2;3my"),
            ["<span class=\"f12\">x</span>y"]
        );
    }

    #[test]
    fn other_control_sequences_are_dropped() {
        assert_eq!(
            shown(b"a\x1b[2Jb\x1b]0;title\x07c\x1b]8;;http://x\x1b\\d\x1b(Be\x00\x08\n"),
            ["abcde"]
        );
        assert_eq!(
            shown("\u{202e}abc\u{9b}31mx".as_bytes()),
            ["abc<span class=\"f1\">x</span>"]
        );
    }

    #[test]
    fn a_carriage_return_starts_the_line_over() {
        assert_eq!(shown(b" 10%\r 50%\r100%\r\ndone\r\n"), ["100%", "done"]);
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        assert_eq!(shown(b"a\xffb\n"), ["a\u{fffd}b"]);
    }

    #[test]
    fn a_long_line_is_cut_and_says_so_without_keeping_all_of_it() {
        let mut renderer = Renderer::default();
        for _ in 0..100 {
            assert!(renderer.feed(&[b'x'; 1_000]).is_empty());
            assert!(renderer.pending.len() <= PENDING_BYTES_MAX);
        }
        let line = renderer.feed(b"\n").remove(0);
        assert!(line.cut && line.html.len() == LINE_CHARACTERS_MAX);
    }

    #[test]
    fn a_line_in_two_pieces_is_one_line() {
        let mut renderer = Renderer::default();
        assert!(
            renderer
                .feed("caf\u{e9}".as_bytes().split_last().unwrap().1)
                .is_empty()
        );
        assert_eq!(renderer.feed(b"\xa9!\n")[0].html, "caf\u{e9}!");
    }
}
