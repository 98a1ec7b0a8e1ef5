//! Charts of shares over time: lines from nothing to all, with a gap where nothing is known.

use super::{Html, amount_plain, escape_once, push};

/// The drawing is so wide and high, and is stretched to its place.
const SIDE: i64 = 100;
/// All of a share, in thousandths.
const ALL: i64 = 1000;
/// Most lines of one chart: there are so many dashes.
const LINES_MAX: usize = 4;

/// A line's points from left to right: when, in seconds from the chart's left end, and how much, in thousandths;
/// absent: not known.
pub type Line = Vec<(i64, Option<i64>)>;

/// Lines over so many seconds. Two points of one line are joined where no more than `step` seconds lie between.
pub fn chart(label: &str, seconds: i64, step: i64, lines: &[Line]) -> Html {
    let mut out = format!(
        "<svg class=\"plot\" viewBox=\"0 0 {SIDE} {SIDE}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
        escape_once(label)
    );
    for y in [0, 25, 50, 75, 100] {
        push(
            &mut out,
            format_args!("<line class=\"grid\" x1=\"0\" x2=\"{SIDE}\" y1=\"{y}\" y2=\"{y}\"/>"),
        );
    }
    for (number, line) in lines.iter().take(LINES_MAX).enumerate() {
        let path = path(line, seconds.max(1), step);
        push(
            &mut out,
            format_args!("<path class=\"s{}\" d=\"{path}\"/>", number + 1),
        );
    }
    out.push_str("</svg>");
    Html(out)
}

fn path(points: &[(i64, Option<i64>)], seconds: i64, step: i64) -> String {
    let mut path = String::new();
    let mut last: Option<i64> = None;
    for (at, share) in points {
        let Some(share) = share else {
            last = None;
            continue;
        };
        let joined = last.is_some_and(|before| at - before <= step);
        let x = amount_plain((at.clamp(&0, &seconds) * SIDE * ALL) / seconds);
        let y = amount_plain((ALL - share.clamp(&0, &ALL)) * SIDE);
        if joined {
            push(&mut path, format_args!("L{x} {y}"));
        } else {
            // A point by itself is a short stroke.
            push(&mut path, format_args!("M{x} {y}h0.4M{x} {y}"));
        }
        last = Some(*at);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_from_left_to_right_with_a_gap_where_nothing_is_known() {
        let points = [
            (0, Some(0)),
            (60, Some(500)),
            (120, None),
            (180, Some(1000)),
            (600, Some(250)),
        ];
        let drawn = path(&points, 600, 60);
        let gap = |x, y| format!("M{x} {y}h0.4M{x} {y}");
        let expected = format!(
            "{}L10 50{}{}",
            gap("0", "100"),
            gap("30", "0"),
            gap("100", "75")
        );
        assert_eq!(drawn, expected);
    }

    #[test]
    fn a_chart_says_what_it_shows_and_draws_each_line_its_own_way() {
        let line = vec![(0, Some(1))];
        let drawn = chart("Busy 3%", 60, 60, &[line.clone(), line]).to_string();
        assert!(drawn.contains("aria-label=\"Busy 3%\""), "{drawn}");
        assert!(
            drawn.contains("class=\"s1\"") && drawn.contains("class=\"s2\""),
            "{drawn}"
        );
    }
}
