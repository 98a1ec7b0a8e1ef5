//! Pages in other words than English show no English: what is said comes from the message file.

mod samples;

use serde_json::Value;
use web::messages::Messages;

const ENGLISH: &str = include_str!("../messages/en.json");
/// Attributes whose values people read or hear.
const SPOKEN: [&str; 11] = [
    "aria-label",
    "title",
    "placeholder",
    "alt",
    "data-l",
    "data-live",
    "data-not-live",
    "data-waiting",
    "data-failed",
    "data-plain",
    "label",
];
/// What in the samples is not said but given: texts that people wrote, and codes.
const TEXTS: [&str; 19] = [
    "Xid 92: too many single-bit errors",
    "POST /api/v1/nodes/join-tokens",
    "jobs share the machine&#39;s /tmp, since private_tmp is false",
    "pool",
    "digits-sweep-with-a-rather-long-name-that-wraps-somewhere",
    "script",
    "alert(&#39;x&#39;)",
    "Wei Chen",
    "4f1c",
    "colour",
    "team, state",
    "1g.10gb",
    "3g.40gb",
    "4g.40gb",
    "sha256:0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
    "more for &lt;speech&gt;",
    "Asia/Shanghai",
    "Mars/Olympus",
    "quota/vision/h100",
];
/// Keys of policies, which a list of changes has as REST has them: each is all of its text.
const KEYS: [&str; 6] = [
    "strategy",
    "backfill",
    "sharing",
    "time_slices",
    "days",
    "quotas",
];
/// The same as single words: names, ids, versions, commands.
const GIVEN: [&str; 58] = [
    "vision", "speech", "platform", "org", "owner", "member", "h100", "a100", "l40s", "H100",
    "A100", "L40S", "80GB", "HBM3", "NVIDIA", "GPU", "5e0b1c2d", "rack", "r3", "driver", "pano",
    "depth", "v2", "seg", "pretrain", "digits", "asr", "large", "lint", "bench", "python3",
    "train", "py", "epochs", "normal", "training", "high", "batch", "elastic", "n9", "node",
    "1e12", "x", "y", "admin", "finance", "operator", "demo", "demo2", "urgent", "spare", "sweep",
    "eval", "nights", "nights2", "weekends", "exam", "CNY",
];

/// A letter that no English word has in its place: the full-width form of it.
fn mark(letter: char) -> char {
    match letter {
        'a'..='z' => char::from_u32(letter as u32 - 'a' as u32 + 0xFF41).unwrap_or(letter),
        'A'..='Z' => char::from_u32(letter as u32 - 'A' as u32 + 0xFF21).unwrap_or(letter),
        other => other,
    }
}

/// A message whose own letters are marked; the names of its arguments stay.
fn marked(text: &str) -> String {
    let mut argument = false;
    text.chars()
        .map(|letter| {
            argument = letter == '{' || (argument && letter != '}');
            if argument { letter } else { mark(letter) }
        })
        .collect()
}

fn marked_file() -> Messages {
    let mut file: Value = serde_json::from_str(ENGLISH).expect("the message file is JSON");
    for entry in file.as_object_mut().expect("an object").values_mut() {
        match entry {
            Value::Object(forms) => forms.values_mut().for_each(mark_value),
            text => mark_value(text),
        }
    }
    Messages::read("en", &file.to_string())
}

fn mark_value(value: &mut Value) {
    *value = Value::String(marked(value.as_str().expect("a message is a text")));
}

/// A page without the codes of the API that it shows as they are.
fn without_codes(html: &str) -> String {
    let mut parts = html.split("<code translate=\"no\">");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| {
        kept + part.split_once("</code>").map_or("", |(_, after)| after)
    })
}

/// All that a reader of a page sees or hears, but for what a job wrote.
fn said(html: &str) -> Vec<String> {
    let (before, log) = html.split_once("<ol id=\"log\"").unwrap_or((html, "</ol>"));
    let after = log.split_once("</ol>").map_or("", |(_, after)| after);
    let html = without_codes(&format!("{before}{after}"));
    let mut said: Vec<String> = html
        .split('>')
        .filter_map(|part| part.split('<').next())
        .map(str::to_owned)
        .collect();
    for name in SPOKEN {
        let attribute = format!(" {name}=\"");
        let values = html.split(&attribute).skip(1);
        said.extend(values.filter_map(|rest| Some(rest.split('"').next()?.to_owned())));
    }
    said
}

/// The words of a text that have Latin letters, without entities.
fn words(text: &str) -> Vec<String> {
    let text = [
        "&lt;", "&gt;", "&quot;", "&#39;", "&#x27;", "&amp;", "&#38;", "&#60;", "&#62;", "&#34;",
    ]
    .iter()
    .fold(text.to_owned(), |text, entity| text.replace(entity, " "));
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .filter(|word| word.chars().any(|letter| letter.is_ascii_alphabetic()))
        .map(str::to_owned)
        .collect()
}

#[test]
fn pages_say_nothing_that_is_not_in_the_message_file() {
    let mut found = Vec::new();
    for (name, html) in samples::all_in(marked_file()) {
        assert!(
            html.contains('\u{ff41}'),
            "{name} is said in the marked words"
        );
        for text in said(&html) {
            if KEYS.contains(&text.trim()) {
                continue;
            }
            let told = TEXTS
                .iter()
                .fold(text.clone(), |text, given| text.replace(given, " "));
            let unmarked = words(&told);
            let unmarked: Vec<_> = unmarked
                .iter()
                .filter(|word| !GIVEN.contains(&word.as_str()))
                .collect();
            if !unmarked.is_empty() {
                found.push(format!("{name}: {unmarked:?} in {text:?}"));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
