//! `allot submit`: a job from flags or a file, and its end when asked to wait.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};

use super::spec::{self, SpecFlags};
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::foreign;
use crate::table;

/// How often a waiting command looks at its job.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Looks in a row that may find nobody: ten minutes, an upgrade of the server.
const AWAY_LOOKS_MAX: u32 = 1_200;

/// Submit a job.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  allot submit --team vision --pool h100 --gpus 1 --wait -- python3 train.py --epochs 20\n  allot submit examples/digits/job.yaml --team vision"
)]
pub struct Submit {
    /// A spec as YAML or JSON; flags overwrite its keys
    #[arg(value_name = "FILE.yaml")]
    file: Option<PathBuf>,
    /// The team that it belongs to
    #[arg(long, short)]
    team: Option<String>,
    /// Wait for its end; the exit status is 0 only if it succeeds
    #[arg(long)]
    wait: bool,
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    spec: SpecFlags,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments, after --
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Submit {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let (spec, team) = self.assemble()?;
        let client = Client::found()?;
        let team = super::team(&client, team).await?;
        let path = format!("/teams/{}/jobs", part(&team));
        if self.dry_run {
            return self.show_dry_run(
                &client
                    .post(&format!("{path}/dry-run"), &Value::Object(spec))
                    .await?,
            );
        }
        let job = client.post(&path, &Value::Object(spec)).await?;
        let id = job["id"].as_str().unwrap_or_default().to_owned();
        // Beside what scripts read: it is taken, and something is to be known of it already.
        if let Some(message) = job["message"].as_str().filter(|text| !text.is_empty()) {
            eprintln!("note: {}", foreign::plain(message));
        }
        if !self.wait {
            return if self.json {
                table::print_json(&job)
            } else {
                table::print_line(&id)
            };
        }
        if !self.json {
            table::print_line(&id)?;
        }
        self.wait_for_end(&client, &id).await
    }

    fn assemble(&self) -> Result<(Map<String, Value>, Option<String>), Failure> {
        let (mut spec, mut team) = match &self.file {
            Some(path) => spec::read(path)?,
            None if self.command.is_empty() => {
                return Err(Failure::Words(
                    "say what to run: allot submit [FLAGS] -- COMMAND, or allot submit FILE.yaml"
                        .into(),
                ));
            }
            None => (Map::new(), None),
        };
        self.spec.write(&mut spec)?;
        if !self.command.is_empty() {
            spec.insert("command".into(), json!(self.command));
        }
        if let (false, Some(program)) = (spec.contains_key("name"), self.command.first()) {
            spec.insert("name".into(), json!(name_after(program)));
        }
        if self.team.is_some() {
            team.clone_from(&self.team);
        }
        Ok((spec, team))
    }

    fn show_dry_run(&self, answer: &Value) -> Result<(), Failure> {
        if self.json {
            return table::print_json(answer);
        }
        let verdict = answer["message"]
            .as_str()
            .or(answer["verdict"].as_str())
            .unwrap_or("no verdict");
        table::print_line(&foreign::plain(verdict))?;
        if answer["cost_per_hour"].is_object() {
            table::print_line(&format!(
                "{} per hour",
                table::money(&answer["cost_per_hour"])
            ))?;
        }
        Ok(())
    }

    async fn wait_for_end(&self, client: &Client, id: &str) -> Result<(), Failure> {
        let mut seen = String::new();
        let mut away = 0;
        loop {
            let job = match client.get(&format!("/jobs/{}", part(id)), &[]).await {
                Ok(job) => job,
                // The job goes on while its server restarts.
                Err(Failure::Away(_)) if away < AWAY_LOOKS_MAX => {
                    away += 1;
                    tokio::time::sleep(LOOK_EVERY).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            away = 0;
            let state = job["state"].as_str().unwrap_or_default().to_owned();
            if state != seen && !self.json {
                let message = job["message"].as_str().unwrap_or_default();
                table::print_line(foreign::plain(&format!("{state}  {message}")).trim_end())?;
            }
            match state.as_str() {
                "succeeded" | "failed" | "cancelled" => {
                    if self.json {
                        table::print_json(&job)?;
                    }
                    return if state == "succeeded" {
                        Ok(())
                    } else {
                        Err(Failure::Refused(format!("job {id} {state}")))
                    };
                }
                _ => seen = state,
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// A job name from the program's file name.
fn name_after(program: &str) -> String {
    let file = Path::new(program)
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or("job");
    let name: String = file
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        .take(64)
        .collect();
    let name = name.trim_start_matches(['-', '_', '.']);
    if name.is_empty() {
        "job".into()
    } else {
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::name_after;

    #[test]
    fn a_job_is_named_after_its_program() {
        assert_eq!(name_after("/usr/bin/python3"), "python3");
        assert_eq!(name_after("./-x"), "x");
        assert_eq!(name_after("$(id)"), "id");
        assert_eq!(name_after("/"), "job");
    }
}
