//! The geometry of drawings: device cells, quota bars, squares, timelines, as SVG of numbers only.

mod chart;
mod devices;
mod elements;
mod quota;
mod timeline;

use std::fmt::Write as _;

pub use chart::{Line, chart};
pub(crate) use devices::device;
pub use devices::{Device, Holder, Share, devices};
pub use elements::{element_class, elements};
pub use quota::{Quota, SQUARES_MAX, quota_bar, squares};
pub use timeline::{Span, span_class, timeline};
pub(crate) use timeline::{cause_class, stretches};

use crate::format::amount;
use crate::messages::Phrase;

/// Thousandths of a whole device, and of a whole bar.
const WHOLE: i64 = domain::quantity::MILLI;

/// HTML of our own making.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Html(pub(crate) String);

impl std::fmt::Display for Html {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

// Made in this crate only, of numbers, our own class names and escaped text.
impl askama::filters::HtmlSafe for Html {}

fn percent(part: i64, whole: i64) -> String {
    format!("{}%", amount_plain(part * 100 * WHOLE / whole.max(1)))
}

/// Thousandths as a plain number for an attribute: no separators, an ASCII minus.
fn amount_plain(milli: i64) -> String {
    amount(milli).replace(',', "").replace('\u{2212}', "-")
}

/// A description made of phrases is escaped already; only quotes could leave an attribute, and they are.
fn escape_once(text: &str) -> &str {
    debug_assert!(
        !text.contains(['"', '<', '>']),
        "descriptions are made of phrases, which escape"
    );
    text
}

fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what)
        .expect("writing to a string cannot fail");
}

/// A phrase's text as an attribute's value: without emphasis.
pub fn plain(phrase: &Phrase) -> String {
    phrase.to_string().replace("<b>", "").replace("</b>", "")
}
