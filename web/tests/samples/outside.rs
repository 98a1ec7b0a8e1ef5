//! What is shown to who is not signed in, and what went wrong.

use web::shell::Section;
use web::views::*;

use super::{shell, words};

pub fn signin() -> SigninView {
    let mut shell = shell(Section::Nowhere, "/signin");
    shell.reader = None;
    SigninView {
        csrf: "token".into(),
        next: "/jobs".into(),
        username: "vision-member".into(),
        refused: Some(words().say("signin.wrong")),
        shell,
    }
}

pub fn error(status: u16) -> ErrorView {
    ErrorView {
        shell: shell(Section::Nowhere, "/nowhere"),
        status,
        detail: Some(
            words()
                .say("refusal.unknown")
                .with("name", "colour")
                .with("known", "team, state"),
        ),
        request_id: Some("4f1c".into()),
        back: Some("/submit".into()),
    }
}
