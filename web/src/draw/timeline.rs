//! A job's timeline: its states, or what it waited for, to scale.

use domain::state::JobState;

use super::{Html, WHOLE, escape_once, percent, push};

/// Least share of a timeline, in thousandths, that a span is drawn with, so that none vanishes.
const SPAN_LEAST: i64 = 4;

/// A stretch of a job's life in one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The state.
    pub state: JobState,
    /// How long it lasted, in seconds.
    pub seconds: i64,
}

/// A job's life to scale in time.
pub fn timeline(label: &str, spans: &[Span], live: bool) -> Html {
    let parts = spans
        .iter()
        .map(|span| (span_class(span.state), span.seconds));
    stretches(label, &parts.collect::<Vec<_>>(), live)
}

/// Stretches of time to scale: the class that fills each, and its seconds.
pub(crate) fn stretches(label: &str, parts: &[(&str, i64)], live: bool) -> Html {
    let total = parts
        .iter()
        .map(|(_, seconds)| (*seconds).max(0))
        .sum::<i64>()
        .max(1);
    let shares: Vec<i64> = parts
        .iter()
        .map(|(_, seconds)| ((*seconds).max(0) * WHOLE / total).max(SPAN_LEAST))
        .collect();
    let drawn = shares.iter().sum::<i64>().max(1);
    let mut out = format!(
        "<svg class=\"tl\" role=\"img\" aria-label=\"{}\">",
        escape_once(label)
    );
    let mut start = 0;
    for ((class, _), share) in parts.iter().zip(shares) {
        push(
            &mut out,
            format_args!(
                "<rect class=\"{class}\" x=\"{}\" width=\"{}\" y=\"2\" height=\"20\" rx=\"2\"/>",
                percent(start, drawn),
                percent(share, drawn)
            ),
        );
        start += share;
    }
    if live {
        out.push_str("<line class=\"nowl\" x1=\"100%\" x2=\"100%\" y1=\"0\" y2=\"24\"/>");
    }
    out.push_str("</svg>");
    Html(out)
}

/// The class that fills a stretch of a wait, by what kind of cause it had: the order, room, a
/// quota, what cannot be, and the job's own wish.
pub(crate) fn cause_class(code: &str) -> &'static str {
    match code {
        "behind_in_order"
        | "held_for_reservation"
        | "preemption_not_allowed"
        | "waiting_for_victims" => "f-s",
        "insufficient_capacity" | "fragmented" | "topology" => "f-p",
        "over_limit"
        | "ancestor_over_limit"
        | "non_preemptible_over_guarantee"
        | "no_quota"
        | "over_budget" => "f-h",
        "never_fits" | "no_such_hardware" | "pool_closed" => "f-x",
        _ => "f-qb",
    }
}

/// The class that fills a state's span.
pub fn span_class(state: JobState) -> &'static str {
    match state {
        JobState::Starting => "f-s",
        JobState::Running => "f-r",
        JobState::Preempting | JobState::Cancelling => "f-p",
        JobState::Failed => "f-x",
        JobState::Suspended => "f-h",
        JobState::Queued | JobState::Succeeded | JobState::Cancelled => "f-qb",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_span_is_still_drawn() {
        let spans = [
            Span {
                state: JobState::Queued,
                seconds: 1,
            },
            Span {
                state: JobState::Running,
                seconds: 1_000_000,
            },
        ];
        let drawn = timeline("label", &spans, true).to_string();
        assert!(
            drawn.contains("class=\"f-qb\" x=\"0%\" width=\"0.39") && drawn.contains("nowl"),
            "{drawn}"
        );
    }
}
