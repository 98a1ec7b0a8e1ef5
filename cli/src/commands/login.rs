//! `allot login`: a token for later commands.

use std::io::{BufRead, IsTerminal, Write};

use clap::Args;
use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
use serde_json::json;

use crate::client::Client;
use crate::failure::Failure;
use crate::foreign;
use crate::login::{Login, trim};
use crate::table;

/// Log in, and keep the token for later commands.
#[derive(Debug, Args)]
#[command(
    name = "login",
    after_help = "Example:\n  allot login --url http://127.0.0.1:8080 --user vision-member\n  The password is asked for, or read from standard input."
)]
pub struct LogIn {
    /// The server's address
    #[arg(long, env = "ALLOTMENT_URL")]
    url: String,
    /// The user's name
    #[arg(long, short)]
    user: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl LogIn {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let user = match self.user {
            Some(user) => user,
            None => ask("User: ", true)?,
        };
        let password = ask("Password: ", false)?;
        let client = Client::new(Login {
            url: trim(&self.url),
            token: String::new(),
        })?;
        let answer = client
            .post(
                "/auth/login",
                &json!({"username": user, "password": password}),
            )
            .await?;
        let token = answer["token"]
            .as_str()
            .ok_or_else(|| Failure::Refused("the server gave no token".into()))?;
        let path = Login {
            url: trim(&self.url),
            token: token.to_owned(),
        }
        .keep()?;
        if self.json {
            return table::print_json(
                &json!({"url": trim(&self.url), "user": user, "expires_at": answer["expires_at"]}),
            );
        }
        table::print_line(&format!(
            "logged in as {} until {}; kept in {}",
            foreign::plain(&user),
            table::text(&answer["expires_at"]),
            path.display()
        ))
    }
}

/// Asks on the terminal, or reads a line where there is none.
fn ask(prompt: &str, echo: bool) -> Result<String, Failure> {
    let stdin = std::io::stdin();
    let terminal = stdin.is_terminal();
    if terminal {
        eprint!("{prompt}");
        std::io::stderr().flush()?;
    }
    let before = if terminal && !echo {
        Some(tcgetattr(&stdin).map_err(std::io::Error::from)?)
    } else {
        None
    };
    if let Some(before) = &before {
        let mut silent = before.clone();
        silent.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(&stdin, SetArg::TCSANOW, &silent).map_err(std::io::Error::from)?;
    }
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    if let Some(before) = &before {
        tcsetattr(&stdin, SetArg::TCSANOW, before).map_err(std::io::Error::from)?;
        eprintln!();
    }
    read?;
    let answer = line.trim_end_matches(['\r', '\n']).to_owned();
    if answer.is_empty() {
        return Err(Failure::Words(format!(
            "{} is empty",
            prompt.trim_end_matches([':', ' ']).to_lowercase()
        )));
    }
    Ok(answer)
}
