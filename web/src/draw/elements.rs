//! The elements of an array as a grid: one square each, in the order of their indices.

use domain::state::JobState;

use super::{Html, escape_once, push};

/// Squares of one line, so that an index is found by its hundreds.
const COLUMNS: usize = 100;
/// Squares of one line where they are few, so that they are no thin strip.
const COLUMNS_FEW: usize = 25;
/// From one square to the next, and the side of one, in the drawing's own units.
const STEP: usize = 10;
const SIDE: usize = 8;

/// The grid, each state in its own filling.
pub fn elements(label: &str, states: &[JobState]) -> Html {
    let few = states.len() <= COLUMNS_FEW * COLUMNS_FEW;
    let columns = if few { COLUMNS_FEW } else { COLUMNS };
    let lines = states.len().div_ceil(columns).max(1);
    let mut out = format!(
        "<svg class=\"grid-of{}\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} {}\">",
        if few { " few" } else { "" },
        escape_once(label),
        columns * STEP,
        lines * STEP
    );
    for state in JobState::ALL {
        let places = states.iter().enumerate().filter(|(_, of)| *of == state);
        let mut path = String::new();
        for (index, _) in places {
            let (x, y) = (index % columns * STEP, index / columns * STEP);
            push(&mut path, format_args!("M{x} {y}h{SIDE}v{SIDE}h-{SIDE}z"));
        }
        if !path.is_empty() {
            let class = element_class(*state);
            push(
                &mut out,
                format_args!("<path class=\"{class}\" d=\"{path}\"/>"),
            );
        }
    }
    out.push_str("</svg>");
    Html(out)
}

/// The class that fills an element in a state; what ended well and what waits look apart.
pub fn element_class(state: JobState) -> &'static str {
    match state {
        JobState::Queued => "f-qb",
        JobState::Starting => "f-s",
        JobState::Running => "f-r",
        JobState::Preempting | JobState::Cancelling => "f-p",
        JobState::Suspended => "f-h",
        JobState::Failed => "f-x",
        JobState::Succeeded => "f-done",
        JobState::Cancelled => "f-q",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_has_one_square_and_each_state_its_filling() {
        let mut states = vec![JobState::Queued; 1_000];
        states[1] = JobState::Failed;
        states[999] = JobState::Running;
        let drawn = elements("label", &states).to_string();
        assert_eq!(drawn.matches('M').count(), 1_000);
        assert!(drawn.contains("<path class=\"f-x\" d=\"M10 0h"), "{drawn}");
        assert!(
            drawn.contains("<path class=\"f-r\" d=\"M990 90h"),
            "{drawn}"
        );
    }
}
