//! What would happen to the elements of an array, in words for pages and the command line.

use domain::money::Money;
use serde_json::Value;

use crate::messages::{Messages, Phrase};

/// What would come of the elements of an array.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DryRunElements {
    /// How many it has.
    pub count: i64,
    /// How many would start at once.
    pub starts: i64,
    /// How many of them on each node.
    pub nodes: Vec<(String, i64)>,
    /// How many would start when others have made room.
    pub after_victims: i64,
    /// How many would wait, by the code of the cause.
    pub waits: Vec<(String, i64)>,
    /// How many the array itself holds back.
    pub held_by_at_most: i64,
    /// How many were not looked at.
    pub not_planned: i64,
    /// What those cost in an hour that start at once.
    pub per_hour: Option<Money>,
}

impl DryRunElements {
    /// As a dry run of REST tells it; nothing of a job that is no array.
    pub fn told(array: &Value) -> Option<Self> {
        let number = |value: &Value| value.as_i64().unwrap_or_default();
        let counts = |list: &str, name: &str| {
            let rows = array[list].as_array().into_iter().flatten();
            rows.filter_map(|row| Some((row[name].as_str()?.to_owned(), number(&row["elements"]))))
                .collect()
        };
        Some(Self {
            count: array["count"].as_i64()?,
            starts: number(&array["starts"]),
            nodes: counts("nodes", "node"),
            after_victims: number(&array["waits_for_victims"]),
            waits: counts("waits", "code"),
            held_by_at_most: number(&array["held_by_at_most"]),
            not_planned: number(&array["not_planned"]),
            per_hour: serde_json::from_value(array["cost_per_hour"].clone()).ok(),
        })
    }

    /// How many start, where, and what keeps the others: a line each.
    pub fn lines(&self, t: &Messages) -> Vec<Phrase> {
        let starts = t
            .count("dry.elements_start", self.starts)
            .with("count", t.number(self.count));
        let on = |(node, elements): &(String, i64)| {
            t.count("dry.elements_on", *elements).with("node", node)
        };
        let mut lines = vec![starts];
        if !self.nodes.is_empty() {
            lines.push(Phrase::list(self.nodes.iter().map(on)));
        }
        if self.after_victims > 0 {
            lines.push(t.count("dry.elements_after", self.after_victims));
        }
        lines.extend(self.waits.iter().map(|(code, elements)| {
            let cause = t.word("waiting_short", code);
            t.count("dry.elements_wait", *elements).nest("cause", cause)
        }));
        if self.held_by_at_most > 0 {
            lines.push(t.count("dry.elements_held", self.held_by_at_most));
        }
        if self.not_planned > 0 {
            lines.push(t.count("dry.elements_unplanned", self.not_planned));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_are_told_by_what_becomes_of_them() {
        let array = json!({
            "count": 100, "starts": 1, "waits_for_victims": 2, "held_by_at_most": 90, "not_planned": 0,
            "nodes": [{"node": "n1", "elements": 1, "gpus": 1}],
            "waits": [{"code": "over_limit", "elements": 7}], "cost_per_hour": null,
        });
        let told = DryRunElements::told(&array).expect("an array");
        let lines: Vec<String> = told
            .lines(&Messages::english())
            .iter()
            .map(Phrase::plain)
            .collect();
        assert_eq!(
            lines,
            [
                "1 of 100 elements would start now",
                "1 on n1",
                "2 would start when others have made room",
                "7 would wait: Limit reached",
                "90 would wait until others of the array have ended",
            ]
        );
        assert!(DryRunElements::told(&Value::Null).is_none());
    }
}
