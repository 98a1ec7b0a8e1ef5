//! What happened to a node and its devices, as lines of its page.

use chrono::TimeDelta;
use domain::Timestamp;
use domain::state::{DeviceHealth, NodeIntent, Reachability};
use web::messages::{Messages, Phrase};
use web::parts::{EventLine, State as Shown};

use crate::app::nodes::NodeEvent;

/// Events of one report lie no further apart: each is written by the clock's time, one after the other.
const REPORTED_WITHIN: TimeDelta = TimeDelta::seconds(5);

/// The words of the page, and when it is made.
type Words<'a> = (&'a Messages, &'a Timestamp);

/// Events as lines, the newest first; what happened to several devices alike at one time is one
/// line.
pub fn lines(words: Words<'_>, node: &str, events: &[NodeEvent]) -> Vec<EventLine> {
    let mut lines = Vec::new();
    let mut rest = events;
    while let Some(newest) = rest.first() {
        let alike = rest.iter().take_while(|event| as_one(newest, event));
        let (group, older) = rest.split_at(alike.count().max(1));
        lines.extend(event_line(words, node, group));
        rest = older;
    }
    lines
}

/// Whether two events of devices are told as one: they are alike, and of one report.
fn as_one(newest: &NodeEvent, event: &NodeEvent) -> bool {
    let what = |event: &NodeEvent| (event.to.clone(), event.reason.clone(), event.actor.clone());
    index(newest).is_some()
        && index(event).is_some()
        && what(newest) == what(event)
        && newest.at - event.at < REPORTED_WITHIN
}

/// The index of the device that an event is about.
fn index(event: &NodeEvent) -> Option<i64> {
    event.data["index"].as_i64()
}

/// Events that are alike as a line; its mark is that of the state they led to.
fn event_line(words: Words<'_>, node: &str, group: &[NodeEvent]) -> Option<EventLine> {
    let event = group.first()?;
    let state = match event.subject.as_str() {
        // That it may come; whether it answers is told when it does.
        _ if event.reason == "enrolled" => Shown::note(),
        "device" => event.to.parse::<DeviceHealth>().map(Shown::device).ok()?,
        _ => match (
            event.to.parse::<NodeIntent>(),
            event.to.parse::<Reachability>(),
        ) {
            (Ok(intent), _) => Shown::node(intent, Reachability::Ready),
            (_, Ok(reachability)) => Shown::node(NodeIntent::Open, reachability),
            _ => Shown::note(),
        },
    };
    Some(EventLine {
        at: event.at,
        state,
        code: match event.reason.as_str() {
            "enrolled" => "enrolled".into(),
            "cleared" => "cleared".into(),
            _ => event.to.clone(),
        },
        // What the node itself or the product did is told without a name.
        actor: Some(event.actor.clone())
            .filter(|actor| ![node, "allotment", "scheduler"].contains(&actor.as_str())),
        detail: detail(words, group),
    })
}

/// Which devices it is about, and why it came. A reason without a word of its own is a person's
/// or a driver's.
fn detail((t, now): Words<'_>, group: &[NodeEvent]) -> Option<Phrase> {
    let mut indices: Vec<i64> = group.iter().filter_map(index).collect();
    indices.sort_unstable();
    let named: Vec<String> = indices.iter().map(i64::to_string).collect();
    let devices = (!named.is_empty()).then(|| {
        t.count("node.event_devices", named.len())
            .with("indices", named.join(", "))
    });
    let said = |event: &NodeEvent| Some(event.data["message"].as_str()?.to_owned());
    let why = match group.first()?.reason.as_str() {
        "" | "enrolled" => None,
        "cleared" => said(group.first()?)
            .filter(|said| !said.is_empty())
            .map(|said| Phrase::literal(&said)),
        code if t.knows("node_reason", code) => Some(t.word("node_reason", code)),
        // What names processes comes with the event to those alone who may know it.
        text => Some(Phrase::literal(
            group.first()?.data["detail"].as_str().unwrap_or(text),
        )),
    };
    let deadline = group.first()?.data["deadline_at"].as_str();
    let deadline = deadline.and_then(|at| at.parse::<Timestamp>().ok());
    if let Some(at) = deadline {
        let by = t.say("node.event_by").nest("at", t.moment(&at, now));
        return Some(match why {
            Some(why) => t
                .say("node.event_by_because")
                .nest("by", by)
                .nest("why", why),
            None => by,
        });
    }
    match (devices, why) {
        (Some(devices), Some(why)) => Some(
            t.say("node.event_because")
                .nest("devices", devices)
                .nest("why", why),
        ),
        (devices, why) => devices.or(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(subject: &str, to: &str, reason: &str, data: serde_json::Value) -> NodeEvent {
        NodeEvent {
            id: 1,
            at: domain::Timestamp::UNIX_EPOCH,
            subject: subject.into(),
            subject_id: String::new(),
            from: None,
            to: to.into(),
            actor: "n1".into(),
            reason: reason.into(),
            data,
        }
    }

    #[test]
    fn a_node_that_was_enrolled_is_not_shown_as_lost() {
        let enrolled = [event(
            "node",
            "unreachable",
            "enrolled",
            serde_json::json!({}),
        )];
        let lines = lines(
            (&Messages::english(), &domain::Timestamp::UNIX_EPOCH),
            "n1",
            &enrolled,
        );
        let line = lines.first().expect("a line");
        assert_eq!(
            (line.code.as_str(), line.state.tone()),
            ("enrolled", "muted")
        );
        assert_eq!(line.detail, None, "it is said once");
        assert_eq!(line.actor, None, "its page has its name already");
    }

    #[test]
    fn what_happened_to_devices_alike_is_told_once() {
        let seen = |index: i64| {
            let data = serde_json::json!({ "index": index });
            event("device", "healthy", "first_seen", data)
        };
        let suspect = event(
            "device",
            "suspect",
            "row remapping",
            serde_json::json!({ "index": 1 }),
        );
        let events = [suspect, seen(2), seen(1), seen(0)];
        let lines = lines(
            (&Messages::english(), &domain::Timestamp::UNIX_EPOCH),
            "n1",
            &events,
        );
        let details: Vec<String> = lines
            .iter()
            .map(|line| {
                line.detail
                    .as_ref()
                    .map_or_else(String::new, Phrase::to_string)
            })
            .collect();
        assert_eq!(
            details,
            [
                "device 1: row remapping",
                "devices 0, 1, 2: seen for the first time"
            ]
        );
    }

    #[test]
    fn what_happened_to_devices_at_different_times_is_told_each_time() {
        let lost = |index: i64, at: &str| NodeEvent {
            at: at.parse().expect("a time"),
            ..event(
                "device",
                "failed",
                "row remapping",
                serde_json::json!({ "index": index }),
            )
        };
        let events = [
            lost(3, "2026-11-29T15:00:00.004Z"),
            lost(2, "2026-11-29T15:00:00.001Z"),
            lost(1, "2026-11-28T09:30:00Z"),
            lost(0, "2026-11-28T09:29:00Z"),
        ];
        let lines = lines(
            (&Messages::english(), &domain::Timestamp::UNIX_EPOCH),
            "n1",
            &events,
        );
        let times: Vec<_> = lines.iter().map(|line| line.at).collect();
        assert_eq!(times, [events[0].at, events[2].at, events[3].at]);
        let last = lines[2].detail.as_ref().expect("its device").to_string();
        assert_eq!(last, "device 0: row remapping");
    }

    #[test]
    fn the_history_of_a_node_tells_by_when_it_was_to_be_empty() {
        let drained = |reason: &str| {
            let data = serde_json::json!({ "deadline_at": "2026-12-01T10:00:00Z" });
            let events = [event("node", "draining", reason, data)];
            let now = "2026-12-01T08:00:00Z".parse().expect("a time");
            let lines = lines((&Messages::english(), &now), "n1", &events);
            lines[0].detail.as_ref().expect("a detail").plain()
        };
        assert!(drained("").contains("10:00"), "{}", drained(""));
        let both = drained("a new fan");
        assert!(
            both.contains("10:00") && both.contains("a new fan"),
            "{both}"
        );
    }
}
