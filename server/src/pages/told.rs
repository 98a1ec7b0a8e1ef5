//! What an error's page says beyond its status, in the words of the message file.

use domain::FieldError;
use domain::role::PlatformRole;
use web::messages::{Messages, Phrase};

use super::refusal;
use crate::app::AppError;
use crate::app::authorise::Needs;
use crate::app::quotas::tree::Excess;

/// Bytes in a KiB.
const KIB: usize = 1024;

/// The particulars of an error, where they help a person beyond what the status says.
pub fn detail(t: &Messages, error: &AppError) -> Option<Phrase> {
    match error {
        AppError::Invalid(fault) | AppError::Unreadable(fault) => Some(value(t, fault, None)),
        AppError::InvalidAll(faults) => {
            let told = faults.iter().map(|fault| value(t, fault, None));
            Some(Phrase::list(told))
        }
        AppError::Impossible { code, field } => Some(value(t, field, Some(code.as_str()))),
        AppError::Exceeded(excess) => Some(self::excess(t, excess)),
        AppError::Conflict { code, .. } => Some(t.word("refused_because", code.as_str())),
        AppError::Forbidden { needs, .. } => Some(needed(t, *needs)),
        AppError::TooMany {
            retry_after_seconds: seconds,
        }
        | AppError::TooBusy {
            retry_after_seconds: seconds,
        } => Some(
            t.say("error_detail.too_many")
                .nest("duration", t.duration(*seconds)),
        ),
        AppError::TooManyStreams { open, .. } => {
            Some(t.count("error_detail.too_many_streams", *open))
        }
        AppError::LogBusy { node, .. } => Some(t.say("error_detail.log_busy").with("node", node)),
        AppError::NodeAway { node } => Some(t.say("error_detail.node_away").with("node", node)),
        AppError::TooSlow { limit_seconds } => Some(
            t.say("error_detail.too_slow")
                .nest("duration", t.duration(*limit_seconds)),
        ),
        AppError::TooLarge { limit_bytes } => Some(
            t.say("error_detail.too_large")
                .with("kib", t.number(limit_bytes / KIB)),
        ),
        // The status says all that there is, or all that may be told.
        AppError::Unauthenticated
        | AppError::WrongCredentials
        | AppError::NotFound { .. }
        | AppError::NoLog { .. }
        | AppError::Stale { .. }
        | AppError::PreconditionRequired
        | AppError::AlreadyThere { .. }
        | AppError::MediaType { .. }
        | AppError::Encoding { .. }
        | AppError::Unavailable(_)
        | AppError::Internal(_) => None,
    }
}

/// What a team's guarantee lacks for the teams below it.
pub fn excess(t: &Messages, excess: &Excess) -> Phrase {
    let words = if excess.windows.is_empty() {
        t.say("excess.always")
    } else {
        let names = excess.windows.iter().map(|w| Phrase::literal(w.as_str()));
        t.count("excess.while_open", excess.windows.len())
            .nest("windows", Phrase::list(names))
    };
    words
        .with("team", &excess.team)
        .with("pool", &excess.pool)
        .with("own", t.amount(excess.own.milli()))
        .nest("below", t.gpus(excess.below.milli()))
}

/// What would let the reader do it, by the authorisation table.
fn needed(t: &Messages, needs: Needs) -> Phrase {
    let platform = |roles: &[PlatformRole]| {
        let roles = roles.iter().map(|role| t.word("role", role.as_str()));
        Phrase::list(roles)
    };
    match needs {
        Needs::SignIn => t.say("needs.sign_in"),
        Needs::PageToken => t.say("needs.page_token"),
        Needs::Platform(roles) => t.say("needs.platform").nest("roles", platform(roles)),
        Needs::Team(least, roles) => t
            .say("needs.team")
            .nest("role", t.word("role", least.as_str()))
            .nest("roles", platform(roles)),
        Needs::Work(roles) => t.say("needs.work").nest("roles", platform(roles)),
        Needs::SomeTeam => t.say("needs.some_team"),
    }
}

fn value(t: &Messages, fault: &FieldError, code: Option<&str>) -> Phrase {
    let mut refused = refusal::of_value(fault, fault.field.clone());
    refused.code = code.map(str::to_owned);
    refused.say(t)
}

#[cfg(test)]
mod tests {
    use domain::role::TeamRole;

    use super::*;
    use crate::app::RefusalCode;

    #[test]
    fn every_refusal_that_a_page_may_meet_has_words() {
        let t = Messages::english();
        let codes = RefusalCode::ALL.iter().map(|code| code.as_str());
        let silent: Vec<_> = codes
            .filter(|code| !t.knows("refused_because", code))
            .collect();
        assert!(silent.is_empty(), "no words for {silent:?}");
    }

    #[test]
    fn who_may_not_do_it_is_told_which_role_may() {
        let t = Messages::english();
        let told = |needs| {
            let refused = AppError::Forbidden {
                action: "do_it",
                needs,
            };
            detail(&t, &refused).map(|words| words.to_string())
        };
        const STEER: &[PlatformRole] = &[PlatformRole::Admin, PlatformRole::Operator];
        for (needs, words) in [
            (
                Needs::Platform(STEER),
                "It needs a platform role: admin, operator.",
            ),
            (
                Needs::Team(TeamRole::Owner, STEER),
                "It needs at least the role owner in this team, or a platform role: admin, operator.",
            ),
            (
                Needs::Work(STEER),
                "Who submitted it can do it, an owner of its team, and who has a platform role: admin, operator.",
            ),
        ] {
            assert_eq!(told(needs).as_deref(), Some(words));
        }
    }
}
