//! What a person wanted to do, in words: refusals are read by people, and operation ids are not words.

/// Verbs of operation ids that have another word for people.
const VERBS: [(&str, &str); 4] = [
    ("get", "read"),
    ("put", "set"),
    ("dry_run", "try"),
    ("diff", "compare"),
];

/// Operations that are said in other words than their own.
const OTHERWISE: [(&str, &str); 18] = [
    ("log_in", "sign in"),
    ("log_out", "sign out"),
    ("get_whoami", "read who you are"),
    ("change_password", "change your password"),
    ("declare_node_lost", "declare a node lost"),
    ("list_all_quotas", "list the quotas of all teams"),
    ("get_team_usage", "read what a team has used"),
    ("get_usage", "read what was used"),
    ("get_capacity_usage", "read where a pool's capacity went"),
    ("list_audit", "read the audit log"),
    ("diff_policy", "compare policies"),
    ("list_team_billing_statements", "list a team's statements"),
    ("get_team_billing_statement", "read a team's statement"),
    ("stream_events", "follow events"),
    ("exec_job", "run a command beside a job"),
    ("attach_job", "attach to a job"),
    ("forward_job", "reach a port of a job"),
    ("send_form", "send this form"),
];

/// What an operation does, such as `submit a job` for `submit_job`.
pub fn in_words(operation: &str) -> String {
    if let Some((_, words)) = OTHERWISE.iter().find(|(known, _)| *known == operation) {
        return (*words).to_owned();
    }
    let named = |(verb, word): &(&str, &'static str)| {
        let rest = operation.strip_prefix(verb)?.strip_prefix('_')?;
        Some(((*word).to_owned(), rest))
    };
    let split = VERBS.iter().find_map(named).or_else(|| {
        let (verb, rest) = operation.split_once('_')?;
        Some((verb.to_owned(), rest))
    });
    let Some((verb, noun)) = split else {
        return operation.to_owned();
    };
    let noun = noun.replace('_', " ");
    // Several need no article.
    let article = match noun.chars().next() {
        _ if noun.ends_with('s') && !noun.ends_with("ss") => "",
        Some('a' | 'e' | 'i' | 'o' | 'u') if !noun.starts_with("user") => "an ",
        _ => "a ",
    };
    format!("{verb} {article}{noun}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::authorise::Action;

    #[test]
    fn what_was_wanted_is_said_in_words() {
        for (operation, words) in [
            ("submit_job", "submit a job"),
            ("create_user", "create a user"),
            ("put_quotas", "set quotas"),
            ("get_job_logs", "read job logs"),
            ("delete_class", "delete a class"),
            ("dry_run_job", "try a job"),
            ("declare_node_lost", "declare a node lost"),
            ("send_form", "send this form"),
        ] {
            assert_eq!(in_words(operation), words);
        }
        for action in Action::ALL {
            let words = in_words(action.as_str());
            assert!(words.contains(' ') && !words.contains('_'), "{words}");
        }
    }
}
