//! Spans that are drawn one beside the other: those that overlap stand in lines of their own.

/// From, to, and the place of what it is of.
pub type Span = (usize, usize, usize);

/// A part of a line: free, or of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// How long it is.
    pub length: usize,
    /// The place of what it is of.
    pub of: Option<usize>,
}

/// The lines that spans of a given width need, as few as may be, in the order of their beginnings.
pub fn pack(mut spans: Vec<Span>, width: usize) -> Vec<Vec<Part>> {
    spans.sort_unstable();
    let mut lanes: Vec<Vec<Span>> = Vec::new();
    for span in spans {
        let free = lanes
            .iter_mut()
            .find(|lane| lane.last().is_none_or(|(_, end, _)| *end <= span.0));
        match free {
            Some(lane) => lane.push(span),
            None => lanes.push(vec![span]),
        }
    }
    lanes.into_iter().map(|lane| parts(lane, width)).collect()
}

fn parts(lane: Vec<Span>, width: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut at = 0;
    let free = |length| Part { length, of: None };
    for (from, to, place) in lane {
        if from > at {
            parts.push(free(from - at));
        }
        parts.push(Part {
            length: to - from,
            of: Some(place),
        });
        at = to;
    }
    if at < width {
        parts.push(free(width - at));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_stands_in_another_line() {
        let packed = pack(vec![(4, 5, 4), (1, 3, 2), (0, 1, 1), (2, 7, 3)], 7);
        let told: Vec<Vec<(usize, Option<usize>)>> = packed
            .into_iter()
            .map(|lane| {
                lane.into_iter()
                    .map(|part| (part.length, part.of))
                    .collect()
            })
            .collect();
        assert_eq!(
            told,
            [
                vec![
                    (1, Some(1)),
                    (2, Some(2)),
                    (1, None),
                    (1, Some(4)),
                    (2, None)
                ],
                vec![(2, None), (5, Some(3))],
            ]
        );
        assert!(pack(Vec::new(), 7).is_empty());
    }
}
