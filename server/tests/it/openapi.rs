//! The API's document: committed, of this code, and complete.

use std::collections::BTreeSet;

use serde_json::Value;
use server::app::authorise::Action;

/// Operations of the document as (path, method, operation).
pub fn operations() -> Vec<(String, String, Value)> {
    let document = serde_json::to_value(server::api::document()).expect("a document");
    let paths = document["paths"].as_object().expect("paths").clone();
    let mut all = Vec::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().expect("an item") {
            if operation.get("operationId").is_some() {
                all.push((path.clone(), method.clone(), operation.clone()));
            }
        }
    }
    all
}

#[test]
fn the_committed_document_is_that_of_the_code() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../openapi/openapi.yaml");
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    let generated = server::api::document().to_yaml().expect("a document");
    assert!(
        committed == generated,
        "openapi/openapi.yaml differs from the code: run `allotment-server openapi > openapi/openapi.yaml` and read the difference"
    );
}

#[test]
fn every_operation_has_its_row_in_the_authorisation_table_and_every_row_its_operation() {
    let operations: BTreeSet<String> = operations()
        .into_iter()
        .map(|(_, _, operation)| operation["operationId"].as_str().expect("an id").to_owned())
        .collect();
    let rows: BTreeSet<String> = Action::ALL
        .iter()
        .map(|action| action.as_str().to_owned())
        .collect();
    assert_eq!(operations, rows);
}

#[test]
fn every_operation_is_described_and_says_what_it_refuses() {
    for (path, method, operation) in operations() {
        let id = &operation["operationId"];
        assert!(operation["summary"].is_string(), "{method} {path} {id}");
        assert!(operation["tags"][0].is_string(), "{method} {path} {id}");
        let responses = operation["responses"].as_object().expect("responses");
        for (status, response) in responses {
            assert!(
                response["description"]
                    .as_str()
                    .is_some_and(|d| !d.is_empty()),
                "{id} {status}"
            );
        }
        for status in ["401", "422", "500"] {
            assert!(responses.contains_key(status), "{id} {status}");
        }
        assert!(
            // A connection that becomes a WebSocket is answered with 101.
            responses
                .keys()
                .any(|status| status.starts_with('2') || status == "101"),
            "{id}"
        );
    }
}

#[test]
fn the_document_has_the_words_that_are_sent() {
    let document = serde_json::to_value(server::api::document()).expect("a document");
    let words = &document["components"]["schemas"]["JobState"]["enum"];
    let sent: Vec<&str> = domain::state::JobState::ALL
        .iter()
        .map(|state| state.as_str())
        .collect();
    assert_eq!(*words, serde_json::json!(sent));
}

/// What gives a secret that is not kept, or changes nothing, is done each time that it is asked.
const WITHOUT_KEY: [&str; 6] = [
    "log_in",
    "create_join_token",
    "create_webhook",
    "rotate_webhook_key",
    "dry_run_job",
    "diff_policy",
];

#[test]
fn every_post_takes_a_key_but_those_whose_answer_cannot_be_kept() {
    for (path, method, operation) in operations() {
        let id = operation["operationId"].as_str().expect("an id");
        let keyed = operation["parameters"].as_array().is_some_and(|all| {
            all.iter()
                .any(|parameter| parameter["name"] == "Idempotency-Key")
        });
        let expected = method == "post" && !WITHOUT_KEY.contains(&id);
        assert_eq!(keyed, expected, "{method} {path} {id}");
    }
}

#[test]
fn the_document_says_what_names_and_currencies_must_be() {
    use domain::name::{JOB_NAME_CHARS_MAX, JobName, NAME_CHARS_MAX, Name};
    let document = serde_json::to_value(server::api::document()).expect("a document");
    let said = |schema: &str, chars_max: usize, letters: &str| {
        let schema = &document["components"]["schemas"][schema];
        assert_eq!(schema["minLength"], 1, "{schema}");
        assert_eq!(schema["maxLength"], chars_max, "{schema}");
        let pattern = format!("^[{letters}][{letters}._-]*$");
        assert_eq!(schema["pattern"], pattern, "{schema}");
    };
    said("Name", NAME_CHARS_MAX, "a-z0-9");
    said("JobName", JOB_NAME_CHARS_MAX, "A-Za-z0-9");
    // Every character, first and later, is taken where the patterns above say so and nowhere else.
    for c in (0..=0x17f_u32).filter_map(char::from_u32) {
        let lower = c.is_ascii_lowercase() || c.is_ascii_digit();
        let letter = lower || c.is_ascii_uppercase();
        let inner = matches!(c, '.' | '_' | '-');
        for (text, name, job_name) in [
            (format!("{c}"), lower, letter),
            (format!("a{c}"), lower || inner, letter || inner),
        ] {
            assert_eq!(text.parse::<Name>().is_ok(), name, "{text:?}");
            assert_eq!(text.parse::<JobName>().is_ok(), job_name, "{text:?}");
        }
    }
    let currency = &document["components"]["schemas"]["Currency"];
    assert_eq!(currency["pattern"], "^[A-Z]{3}$");
    for (text, taken) in [
        ("CNY", true),
        ("cny", false),
        ("EURO", false),
        ("EU", false),
    ] {
        assert_eq!(
            text.parse::<domain::money::Currency>().is_ok(),
            taken,
            "{text}"
        );
    }
}

#[test]
fn the_document_is_printed_to_whom_reads_no_further() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let printed = std::process::Command::new(env!("CARGO_BIN_EXE_allotment-server"))
        .arg("openapi")
        .stdout(writer)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&printed.stderr);
    assert!(printed.status.success() && said.is_empty(), "{said}");
}
