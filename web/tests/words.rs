//! All words of the pages stand in the message file, and each of its messages is used.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use web::messages::Messages;

/// Attributes whose values people read or hear.
const SPOKEN: [&str; 8] = [
    "aria-label",
    "title",
    "placeholder",
    "alt",
    "data-l",
    "data-failed",
    "data-waits",
    "data-plain",
];

fn files(folder: &str, extension: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found: Vec<_> = fs::read_dir(&root)
        .expect("the folder is there")
        .map(|entry| entry.expect("it can be listed").path())
        .filter(|path| path.extension().is_some_and(|known| known == extension))
        .map(|path| (path.clone(), fs::read_to_string(&path).expect("it is text")))
        .collect();
    found.sort();
    found
}

/// The text with everything between two marks taken out.
fn without(text: &str, open: &str, close: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(open) {
        out.push_str(&rest[..start]);
        out.push(' ');
        rest = rest[start..]
            .find(close)
            .map_or("", |end| &rest[start + end + close.len()..]);
    }
    out + rest
}

fn markup(template: &str) -> String {
    [("{#", "#}"), ("{%", "%}"), ("{{", "}}")]
        .iter()
        .fold(template.to_owned(), |text, (open, close)| {
            without(&text, open, close)
        })
}

#[test]
fn templates_hold_no_words_of_their_own() {
    for (path, template) in files("templates", "html") {
        let html = markup(&template);
        for name in SPOKEN {
            for value in html
                .split(&format!("{name}=\""))
                .skip(1)
                .filter_map(|rest| rest.split('"').next())
            {
                assert!(
                    !value.chars().any(char::is_alphabetic),
                    "{}: {name}=\"{value}\"",
                    path.display()
                );
            }
        }
        let text = without(&html.replace("&amp;", " "), "<", ">");
        let words: Vec<&str> = text
            .split_whitespace()
            .filter(|word| word.chars().any(char::is_alphabetic))
            .collect();
        assert!(
            words.is_empty(),
            "{}: {words:?} belong in messages/en.json",
            path.display()
        );
    }
}

/// What follows each call of a function with a literal key.
fn keys_of(source: &str, call: &str) -> Vec<String> {
    source
        .split(&format!("{call}(\""))
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .map(Into::into)
        .collect()
}

#[test]
fn every_message_is_used_and_every_used_message_exists() {
    let sources: Vec<String> = [
        files("templates", "html"),
        files("src", "rs"),
        files("src/draw", "rs"),
        files("src/views", "rs"),
        // The server says words too: what was refused, what was done.
        files("../server/src/pages", "rs"),
        files("../server/src/pages/job", "rs"),
        files("../server/src/pages/node", "rs"),
    ]
    .concat()
    .into_iter()
    .map(|(_, text)| {
        text.split("#[cfg(test)]")
            .next()
            .unwrap_or_default()
            .to_owned()
    })
    .collect();
    let used: BTreeSet<String> = sources
        .iter()
        .flat_map(|text| {
            let calls = [".say", ".count", ".say_of"];
            calls.map(|call| keys_of(text, call)).concat()
        })
        .collect();
    let families: BTreeSet<String> = sources
        .iter()
        .flat_map(|text| {
            let states = text
                .split("family: \"")
                .skip(1)
                .filter_map(|rest| rest.split('"').next())
                .map(Into::into)
                .collect();
            [keys_of(text, ".word"), keys_of(text, ".word_of"), states].concat()
        })
        .collect();
    // Units are said through a table, and numbers of jobs by the server.
    let tabled = [
        "unit.day",
        "unit.hour",
        "unit.minute",
        "unit.second",
        "count.jobs",
    ];
    let known: BTreeSet<&str> = Messages::english().keys().collect();
    let missing: Vec<_> = used
        .iter()
        .filter(|key| key.contains('.') || *key == "product")
        .filter(|key| !known.contains(key.as_str()))
        .collect();
    assert!(missing.is_empty(), "no such message: {missing:?}");
    let unused: Vec<_> = known
        .iter()
        .filter(|key| !used.contains(**key) && !tabled.contains(key))
        .filter(|key| {
            key.split_once('.')
                .is_none_or(|(family, _)| !families.contains(family))
        })
        .collect();
    assert!(unused.is_empty(), "nobody says {unused:?}");
    let empty: Vec<_> = families
        .iter()
        .filter(|family| {
            !known
                .iter()
                .any(|key| key.starts_with(&format!("{family}.")))
        })
        .collect();
    assert!(empty.is_empty(), "no messages of the families {empty:?}");
}

/// Nouns and verbs that a number which is one does not stand before.
const PLURALS: [&str; 27] = [
    "are",
    "have",
    "hold",
    "run",
    "wait",
    "need",
    "fail",
    "start",
    "end",
    "CPUs",
    "GPUs",
    "days",
    "devices",
    "elements",
    "fields",
    "hours",
    "instances",
    "jobs",
    "keys",
    "nodes",
    "pools",
    "rows",
    "seconds",
    "shares",
    "teams",
    "users",
    "workers",
];

/// Arguments that are names.
const NAMES: [&str; 3] = ["scope", "state", "team"];

#[test]
fn a_message_that_says_a_plural_of_a_number_has_its_singular_too() {
    let file = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("messages/en.json"))
        .expect("it is there");
    let messages: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&file).expect("it is JSON");
    // What follows a name is no noun that it counts.
    let named = |before: &str| {
        NAMES
            .iter()
            .any(|name| before.ends_with(&format!("{{{name}")))
    };
    let next_words = |text: &str| -> Vec<String> {
        let parts: Vec<&str> = text.split('}').collect();
        let counted = parts.windows(2).filter(|pair| !named(pair[0]));
        let words = counted.filter_map(|pair| pair[1].trim_start_matches('*').strip_prefix(' '));
        let word = |rest: &str| {
            rest.split(|c: char| !c.is_alphabetic())
                .next()
                .map(str::to_owned)
        };
        words.filter_map(word).collect()
    };
    let arguments = |text: &str| -> BTreeSet<String> {
        let parts = text.split('{').skip(1);
        parts
            .filter_map(|rest| Some(rest.split_once('}')?.0.to_owned()))
            .collect()
    };
    for (key, value) in &messages {
        if let Some(text) = value.as_str() {
            let plural = next_words(text)
                .into_iter()
                .find(|word| PLURALS.contains(&word.as_str()));
            assert_eq!(plural, None, "{key}: {text}");
            continue;
        }
        let form = |name: &str| value[name].as_str().unwrap_or_default();
        assert!(
            !form("one").is_empty() && !form("other").is_empty(),
            "{key}"
        );
        // Of one the number need not be said.
        let beside = |text: &str| -> BTreeSet<String> {
            arguments(text)
                .into_iter()
                .filter(|name| name != "n")
                .collect()
        };
        assert_eq!(beside(form("one")), beside(form("other")), "{key}");
    }
}

#[test]
fn every_code_of_the_domain_has_a_word() {
    use domain::eviction::{EvictionKind, EvictionRule};
    use domain::role::{PlatformRole, TeamRole};
    use domain::sharing::SharingMode;
    use domain::spec::Runner;
    use domain::state::{AttemptEnd, DeviceHealth, JobState, NodeIntent, Reachability};
    let mut codes: Vec<(&str, &str)> = Vec::new();
    codes.extend(JobState::ALL.iter().map(|code| ("state", code.as_str())));
    for family in ["end", "ended_by"] {
        codes.extend(AttemptEnd::ALL.iter().map(|code| (family, code.as_str())));
    }
    codes.extend(
        DeviceHealth::ALL
            .iter()
            .map(|code| ("device_state", code.as_str())),
    );
    codes.extend(
        NodeIntent::ALL
            .iter()
            .filter(|code| **code != NodeIntent::Open)
            .map(|code| ("node_state", code.as_str())),
    );
    codes.extend(
        Reachability::ALL
            .iter()
            .map(|code| ("node_state", code.as_str())),
    );
    codes.extend(SharingMode::ALL.iter().map(|code| ("mode", code.as_str())));
    for family in ["preempted_by", "eviction_rule"] {
        codes.extend(EvictionRule::ALL.iter().map(|code| (family, code.as_str())));
    }
    codes.extend(
        EvictionKind::ALL
            .iter()
            .map(|code| ("gave_way", code.as_str())),
    );
    codes.extend(Runner::ALL.iter().map(|code| ("runner", code.as_str())));
    codes.extend(TeamRole::ALL.iter().map(|code| ("role", code.as_str())));
    codes.extend(PlatformRole::ALL.iter().map(|code| ("role", code.as_str())));
    let t = Messages::english();
    let missing: Vec<_> = codes
        .iter()
        .filter(|(family, code)| !t.knows(family, code))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
