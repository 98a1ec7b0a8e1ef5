//! `allot submit`: a job from flags or a file, and its end when asked to wait.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};

use super::dry_run;
use super::spec::{self, Asked, SpecFlags};
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::foreign;
use crate::table::{self, text};

/// How often a waiting command looks at its job.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Looks in a row that may find nobody: ten minutes, an upgrade of the server.
const AWAY_LOOKS_MAX: u32 = 1_200;

/// Most jobs of a batch that are tried: each is a question to the planner.
const TRIED_MAX: usize = 50;

/// Submit a job.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  allot submit --team vision --pool h100 --gpus 1 --wait -- python3 train.py --epochs 20\n  allot submit examples/digits/job.yaml --team vision\n\nA file whose key jobs lists specs submits all of them, or none; --dry-run tries each of them by itself."
)]
pub struct Submit {
    /// A spec, or a list of them below jobs, as YAML 1.2 or JSON; flags overwrite their keys
    #[arg(value_name = "FILE.yaml")]
    file: Option<PathBuf>,
    /// A job whose spec it begins with; flags overwrite its keys
    #[arg(long, value_name = "ID", conflicts_with = "file")]
    like: Option<String>,
    /// The team that it belongs to
    #[arg(long, short)]
    team: Option<String>,
    /// Wait for the end; the exit status is 0 only if all succeed
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
        let client = Client::found()?;
        let (asked, team) = self.assemble(&client).await?;
        let team = super::team(&client, team, "--team NAME").await?;
        let path = format!("/teams/{}/jobs", part(&team));
        let answer = match asked {
            Asked::One(spec) if self.dry_run => {
                let path = format!("{path}/dry-run");
                return self.show_dry_run(&client.post(&path, &json!(spec)).await?);
            }
            Asked::Batch(specs) if self.dry_run => {
                let path = format!("{path}/dry-run");
                return self.try_each(&client, &path, specs).await;
            }
            Asked::One(spec) => client.post(&path, &json!(spec)).await?,
            Asked::Batch(specs) => {
                let batch = json!({ "jobs": specs });
                client.post(&format!("{path}/batch"), &batch).await?
            }
        };
        let jobs = answer["items"]
            .as_array()
            .map_or(vec![&answer], |items| items.iter().collect());
        // Beside what scripts read: it is taken, and something is to be known of it already.
        for message in jobs.iter().filter_map(|job| job["message"].as_str()) {
            if !message.is_empty() {
                eprintln!("note: {}", foreign::plain(message));
            }
        }
        if self.json && !self.wait {
            return table::print_json(&answer);
        }
        let ids = jobs.into_iter().filter_map(|job| job["id"].as_str());
        let ids: Vec<&str> = ids.collect();
        if !self.json {
            ids.iter().try_for_each(|id| table::print_line(id))?;
        }
        if self.wait {
            self.wait_for_all(&client, &ids).await?;
        }
        Ok(())
    }

    /// Waits for one job after the other; those that did not succeed are named at the end.
    async fn wait_for_all(&self, client: &Client, ids: &[&str]) -> Result<(), Failure> {
        let mut failed = Vec::new();
        for id in ids {
            match self.wait_for_end(client, id).await {
                Err(Failure::Refused(why)) => failed.push(why),
                other => other?,
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        Err(Failure::Refused(failed.join("\n")))
    }

    async fn assemble(&self, client: &Client) -> Result<(Asked, Option<String>), Failure> {
        let (asked, mut team) = match (&self.file, &self.like) {
            (Some(path), _) => spec::read(path)?,
            (None, Some(id)) => like(client, id).await?,
            (None, None) if self.command.is_empty() => {
                return Err(Failure::Words(
                    "say what to run: allot submit [FLAGS] -- COMMAND, or allot submit FILE.yaml"
                        .into(),
                ));
            }
            (None, None) => (Asked::One(Map::new()), None),
        };
        if self.team.is_some() {
            team.clone_from(&self.team);
        }
        let asked = match asked {
            Asked::One(spec) => Asked::One(self.overwrite(spec)?),
            Asked::Batch(specs) => {
                let specs = specs.into_iter().map(|spec| self.overwrite(spec));
                Asked::Batch(specs.collect::<Result<_, _>>()?)
            }
        };
        Ok((asked, team))
    }

    /// Writes flags and command over a spec.
    fn overwrite(&self, mut spec: Map<String, Value>) -> Result<Map<String, Value>, Failure> {
        self.spec.write(&mut spec)?;
        if !self.command.is_empty() {
            spec.insert("command".into(), json!(self.command));
        }
        if let (false, Some(program)) = (spec.contains_key("name"), self.command.first()) {
            spec.insert("name".into(), json!(name_after(program)));
        }
        Ok(spec)
    }

    /// Shows what would happen; what would be refused ends as its submission would.
    fn show_dry_run(&self, answer: &Value) -> Result<(), Failure> {
        let refused = answer["verdict"] == "refused";
        if self.json {
            table::print_json(answer)?;
        } else if !refused {
            dry_run::print(answer)?;
        }
        if refused {
            return Err(Failure::Refused(text(&answer["message"])));
        }
        Ok(())
    }

    /// Shows what would happen to each job of a batch by itself, in the order of the file.
    async fn try_each(
        &self,
        client: &Client,
        path: &str,
        specs: Vec<Map<String, Value>>,
    ) -> Result<(), Failure> {
        if specs.len() > TRIED_MAX {
            let words = format!("--dry-run tries at most {TRIED_MAX} jobs: give it a shorter list");
            return Err(Failure::Words(words));
        }
        let (mut answers, mut refused) = (Vec::new(), Vec::new());
        for (index, mut spec) in specs.into_iter().enumerate() {
            alone(&mut spec);
            let name = text(spec.get("name").unwrap_or(&Value::Null));
            let answer = match client.post(path, &json!(spec)).await {
                Ok(answer) => answer,
                Err(Failure::Refused(why)) => {
                    refused.push(format!("jobs[{index}]: {why}"));
                    continue;
                }
                Err(other) => return Err(other),
            };
            if answer["verdict"] == "refused" {
                refused.push(format!("jobs[{index}]: {}", text(&answer["message"])));
            } else if !self.json {
                table::print_line(&format!("jobs[{index}] {name}"))?;
                dry_run::print(&answer)?;
                table::print_line("")?;
            }
            answers.push(answer);
        }
        if self.json {
            table::print_json(&json!({ "items": answers }))?;
        }
        eprintln!(
            "note: each is tried by itself: what the others of the file would take is not counted"
        );
        if refused.is_empty() {
            return Ok(());
        }
        Err(Failure::Refused(refused.join("\n")))
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

/// Takes from a spec which jobs of its batch it follows: they are not there to be named.
fn alone(spec: &mut Map<String, Value>) {
    let of_batch = |id: &Value| id.as_str().is_some_and(|id| id.starts_with('#'));
    if let Some(Value::Array(after)) = spec.get_mut("after") {
        after.retain(|id| !of_batch(id));
    }
}

/// The spec of a job that is there, and its team.
async fn like(client: &Client, id: &str) -> Result<(Asked, Option<String>), Failure> {
    let job = client.get(&format!("/jobs/{}", part(id)), &[]).await?;
    let spec = job["spec"].as_object().cloned().ok_or_else(|| {
        Failure::Refused(format!("what job {id} asked for can no longer be read"))
    })?;
    Ok((Asked::One(spec), job["team"].as_str().map(str::to_owned)))
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
    use serde_json::json;

    use super::{alone, name_after};

    #[test]
    fn a_job_of_a_batch_is_tried_without_those_of_the_batch_that_it_follows() {
        let spec = json!({"after": ["#0", "0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f"]});
        let mut spec = spec.as_object().cloned().expect("an object");
        alone(&mut spec);
        assert_eq!(
            spec["after"],
            json!(["0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f"])
        );
    }

    #[test]
    fn a_job_is_named_after_its_program() {
        assert_eq!(name_after("/usr/bin/python3"), "python3");
        assert_eq!(name_after("./-x"), "x");
        assert_eq!(name_after("$(id)"), "id");
        assert_eq!(name_after("/"), "job");
    }
}
