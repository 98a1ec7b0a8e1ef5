//! How a table fits a terminal: what is long is wrapped, and where that is not enough the columns farthest right are left out.

use std::io::IsTerminal;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width};

/// A cell is not wrapped to less than this; what is shorter is not wrapped at all.
const WRAPPED_LEAST: usize = 12;
/// What ids and moments take: they are copied, and so stay in one piece.
const WHOLE_MOST: usize = 36;
/// Spaces on both sides of a cell.
const PADDING: usize = 2;
/// Columns that are left in however narrow the terminal is: without them a row says nothing.
const KEPT: usize = 2;

/// A table before it is laid out: heads, rows of cells, and which columns hold numbers.
pub(super) struct Cells {
    pub heads: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    pub numbers: Vec<bool>,
}

/// The columns of the terminal that is written to; nothing where that is none.
pub(super) fn terminal_width() -> Option<usize> {
    let out = std::io::stdout();
    if !out.is_terminal() {
        return None;
    }
    width_of(&out)
}

/// What a terminal says of its width; one that knows none says 0.
fn width_of(terminal: &impl std::os::fd::AsFd) -> Option<usize> {
    use std::os::fd::AsRawFd as _;
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let fd = terminal.as_fd().as_raw_fd();
    #[expect(
        unsafe_code,
        reason = "no library that is here asks for a terminal's size"
    )]
    // SAFETY: the descriptor is open for the call, and the request writes one `winsize`.
    let told = unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) };
    Some(usize::from(size.ws_col)).filter(|columns| told == 0 && *columns > 0)
}

/// The table as text, no wider than `width` where there is one.
pub(super) fn laid_out(mut cells: Cells, width: Option<usize>) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    let mut left_out = Vec::new();
    if let Some(width) = width.filter(|width| cells.width() > *width) {
        left_out = cells.narrow_to(width);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    }
    table.set_header(&cells.heads);
    for row in &cells.rows {
        table.add_row(row);
    }
    for (at, number) in cells.numbers.iter().enumerate() {
        let Some(column) = table.column_mut(at) else {
            continue;
        };
        if *number {
            column.set_cell_alignment(CellAlignment::Right);
        }
        if cells.whole(at) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        } else {
            let least = u16::try_from(WRAPPED_LEAST + PADDING).unwrap_or(u16::MAX);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        }
    }
    let table = table.trim_fmt();
    if left_out.is_empty() {
        return table;
    }
    format!("{table}\n(too narrow for: {})", left_out.join(", "))
}

impl Cells {
    /// The width of the whole table, nothing wrapped.
    fn width(&self) -> usize {
        (0..self.heads.len())
            .map(|at| self.longest(at) + PADDING)
            .sum()
    }

    /// The characters of the longest cell of a column.
    fn longest(&self, at: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[at].chars().count());
        cells
            .chain([self.heads[at].chars().count()])
            .max()
            .unwrap_or(0)
    }

    /// Whether a column is never wrapped: numbers, moments, ids, and what is short.
    fn whole(&self, at: usize) -> bool {
        let one_word = self.rows.iter().all(|row| !row[at].contains(' '));
        let longest = self.longest(at);
        self.numbers[at] || longest <= WRAPPED_LEAST || one_word && longest <= WHOLE_MOST
    }

    /// The least width of a column.
    fn least(&self, at: usize) -> usize {
        let text = self.longest(at);
        PADDING
            + if self.whole(at) {
                text
            } else {
                text.min(WRAPPED_LEAST)
            }
    }

    /// Leaves out columns from the right until the rest can be wrapped to `width`; their heads.
    fn narrow_to(&mut self, width: usize) -> Vec<&'static str> {
        let mut left_out = Vec::new();
        while self.heads.len() > KEPT
            && (0..self.heads.len())
                .map(|at| self.least(at))
                .sum::<usize>()
                > width
        {
            left_out.extend(self.heads.pop());
            self.numbers.pop();
            for row in &mut self.rows {
                row.pop();
            }
        }
        left_out.reverse();
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of jobs, as wide as it is.
    fn jobs(name: &str, reason: &str) -> Cells {
        let row = |values: [&str; 9]| values.map(str::to_owned).to_vec();
        Cells {
            heads: vec![
                "ID", "NAME", "TEAM", "USER", "STATE", "REASON", "GPU-S", "COST", "CREATED",
            ],
            rows: vec![row([
                "0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f",
                name,
                "vision",
                "ada",
                "running",
                reason,
                "271.25",
                "¥12.33",
                "2026-11-30T13:16:27Z",
            ])],
            numbers: vec![false, false, false, false, false, false, true, false, false],
        }
    }

    fn widest(text: &str) -> usize {
        text.lines()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn a_table_fits_the_terminal_and_says_what_it_leaves_out() {
        for width in [80, 100, 120] {
            for name in [
                "train",
                "a-name-of-a-job-that-is-rather-longer-than-others-are",
            ] {
                let text = laid_out(jobs(name, "non_preemptible_over_guarantee"), Some(width));
                assert!(widest(&text) <= width, "{width}: {text}");
                assert!(
                    text.contains("0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f"),
                    "{text}"
                );
                let heads = text.lines().next().expect("a head");
                for head in jobs(name, "").heads {
                    let named = text.lines().last().expect("a last line").contains(head);
                    assert!(heads.contains(head) || named, "{head} in {text}");
                }
            }
        }
    }

    #[test]
    fn where_there_is_room_or_no_terminal_a_table_is_whole() {
        for width in [None, Some(400)] {
            let text = laid_out(jobs("train", "over_limit"), width);
            assert!(text.contains("2026-11-30T13:16:27Z"), "{text}");
            assert_eq!(text.lines().count(), 2, "{text}");
        }
    }

    #[test]
    fn a_long_text_is_wrapped_between_its_words() {
        let sentence =
            "it needs 4 GPUs, and team vision in pool h100 leaves 2 of them at this moment";
        let cells = Cells {
            heads: vec!["NAME", "MESSAGE"],
            rows: vec![vec!["train".to_owned(), sentence.to_owned()]],
            numbers: vec![false, false],
        };
        let text = laid_out(cells, Some(40));
        assert!(widest(&text) <= 40, "{text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        for word in sentence.split(' ') {
            assert!(words.contains(&word), "{word} in {text}");
        }
    }
}
