//! `allot webhooks`, `subscriptions`, `deliveries` and `schedules`: what is told to whom.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::budgets::{DeleteOfTeam, keys, of_team};
use super::versioned::{Shape, Why};
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table;

/// What has no version: the header is not read there.
const NO_VERSION: i64 = 0;

/// See and change the addresses that a team's notices are posted to.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot webhooks list vision")]
pub struct Webhooks {
    #[command(subcommand)]
    command: WebhooksCommand,
}

#[derive(Debug, Subcommand)]
enum WebhooksCommand {
    /// List a team's webhooks
    #[command(after_help = "Example:\n  allot webhooks list vision")]
    List(OfTeam),
    /// Make a webhook; its key is shown once
    #[command(
        after_help = "Example:\n  allot webhooks create vision chat https://hooks.example.com/allotment"
    )]
    Create(NewWebhook),
    /// Give a webhook a new key; the old one signs as well for a day
    #[command(after_help = "Example:\n  allot webhooks rotate vision chat")]
    Rotate(OneOfTeam),
    /// Remove a webhook, with what was asked to be told there
    #[command(after_help = "Example:\n  allot webhooks delete vision chat")]
    Delete(OneOfTeam),
}

/// What belongs to a team.
#[derive(Debug, Args)]
struct OfTeam {
    /// The team
    team: String,
    #[command(flatten)]
    shape: Shape,
}

/// One thing that belongs to a team.
#[derive(Debug, Args)]
struct OneOfTeam {
    /// The team
    team: String,
    /// Its name or id
    name: String,
    #[command(flatten)]
    shape: Shape,
}

impl OneOfTeam {
    fn path(&self, noun: &str) -> String {
        format!("/teams/{}/{noun}/{}", part(&self.team), part(&self.name))
    }

    async fn delete(&self, noun: &str) -> Result<(), Failure> {
        Client::found()?
            .delete(&self.path(noun), &[], NO_VERSION)
            .await?;
        self.shape.print_removed(&self.name)
    }
}

#[derive(Debug, Args)]
struct NewWebhook {
    /// The team
    team: String,
    /// The webhook's name
    name: String,
    /// Where messages are posted
    url: String,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Webhooks {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            WebhooksCommand::List(list) => {
                let rows = of_team(&list.team, "webhook")?.rows(&[]).await?;
                list.shape.print_all(&rows, print_webhooks)
            }
            WebhooksCommand::Create(new) => {
                let body = json!({ "name": new.name, "url": new.url });
                let made = of_team(&new.team, "webhook")?
                    .create(&new.why, &body)
                    .await?;
                new.shape.print(&made, print_key)
            }
            WebhooksCommand::Rotate(one) => {
                let path = format!("{}/rotate", one.path("webhooks"));
                let made = Client::found()?.post(&path, &json!({})).await?;
                one.shape.print(&made, print_key)
            }
            WebhooksCommand::Delete(one) => one.delete("webhooks").await,
        }
    }
}

fn print_webhooks(rows: &[Value]) -> Result<(), Failure> {
    let columns = [
        ("NAME", "name"),
        ("URL", "url"),
        ("KEY SINCE", "key_since"),
        ("OLD KEY UNTIL", "old_key_until"),
    ];
    table::print(rows, &columns, "no webhooks")
}

fn print_key(made: &Value) -> Result<(), Failure> {
    let key = made["key"].as_str().unwrap_or_default();
    table::print_line(&format!("key, shown this once: {key}"))
}

/// See and change what a team asked to hear of.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot subscriptions list vision")]
pub struct Subscriptions {
    #[command(subcommand)]
    command: SubscriptionsCommand,
}

#[derive(Debug, Subcommand)]
enum SubscriptionsCommand {
    /// List what a team asked to hear of
    #[command(after_help = "Example:\n  allot subscriptions list vision")]
    List(OfTeam),
    /// Ask to hear of something
    #[command(
        after_help = "Example:\n  allot subscriptions create vision job_ended --own-jobs --email ada@example.com"
    )]
    Create(NewSubscription),
    /// End what was asked for
    #[command(
        after_help = "Example:\n  allot subscriptions delete vision 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f"
    )]
    Delete(OneOfTeam),
}

#[derive(Debug, Args)]
struct NewSubscription {
    /// The team
    team: String,
    /// Of what: `budget_threshold`, `node_lost` or `job_ended`
    kind: String,
    /// Only of your own jobs
    #[arg(long)]
    own_jobs: bool,
    /// By e-mail, to this address
    #[arg(long, conflicts_with = "webhook")]
    email: Option<String>,
    /// At this webhook of the team
    #[arg(long)]
    webhook: Option<String>,
    #[command(flatten)]
    shape: Shape,
}

impl Subscriptions {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            SubscriptionsCommand::List(list) => {
                let rows = of_team(&list.team, "subscription")?.rows(&[]).await?;
                list.shape.print_all(&rows, print_subscriptions)
            }
            SubscriptionsCommand::Create(new) => {
                let body = json!({
                    "kind": new.kind, "own_jobs": new.own_jobs, "email": new.email, "webhook": new.webhook,
                });
                let path = format!("/teams/{}/subscriptions", part(&new.team));
                let made = Client::found()?.post(&path, &body).await?;
                new.shape
                    .print(&made, |row| print_subscriptions(std::slice::from_ref(row)))
            }
            SubscriptionsCommand::Delete(one) => one.delete("subscriptions").await,
        }
    }
}

fn print_subscriptions(rows: &[Value]) -> Result<(), Failure> {
    let columns = [
        ("ID", "id"),
        ("KIND", "kind"),
        ("USER", "user"),
        ("EMAIL", "email"),
        ("WEBHOOK", "webhook"),
    ];
    table::print(rows, &columns, "nothing was asked for")
}

/// See what was delivered, and send it again.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot deliveries list vision --state dead")]
pub struct Deliveries {
    #[command(subcommand)]
    command: DeliveriesCommand,
}

#[derive(Debug, Subcommand)]
enum DeliveriesCommand {
    /// List what a team's addresses were told, the latest first
    #[command(after_help = "Example:\n  allot deliveries list vision --state dead")]
    List(ListDeliveries),
    /// Send a delivery again, whatever came of it
    #[command(
        after_help = "Example:\n  allot deliveries resend vision 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f"
    )]
    Resend(OneOfTeam),
}

#[derive(Debug, Args)]
struct ListDeliveries {
    /// The team
    team: String,
    /// Only those that are `waiting`, `delivered` or `dead`
    #[arg(long)]
    state: Option<String>,
    /// Most of them
    #[arg(long, default_value_t = 50)]
    limit: u32,
    #[command(flatten)]
    shape: Shape,
}

impl Deliveries {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            DeliveriesCommand::List(list) => {
                let path = format!("/teams/{}/deliveries", part(&list.team));
                let query: Vec<(&str, String)> = list
                    .state
                    .iter()
                    .map(|state| ("state", state.clone()))
                    .collect();
                let client = Client::found()?;
                let rows = super::listed::up_to(&client, &path, &query, list.limit).await?;
                list.shape.print_all(&rows, print_deliveries)
            }
            DeliveriesCommand::Resend(one) => {
                let path = format!("{}/resend", one.path("deliveries"));
                Client::found()?.post(&path, &json!({})).await?;
                let said = json!({ "resent": one.name });
                one.shape.print(&said, |_| {
                    table::print_line(&format!("{} is on its way", one.name))
                })
            }
        }
    }
}

fn print_deliveries(rows: &[Value]) -> Result<(), Failure> {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let mut row = row.clone();
            let tries = row["tries"].as_array().map_or(0, Vec::len);
            row["last"] = row["tries"]
                .as_array()
                .and_then(|tries| tries.last())
                .map_or(Value::Null, |last| last["detail"].clone());
            row["count"] = json!(tries);
            row
        })
        .collect();
    let columns = [
        ("ID", "id"),
        ("KIND", "kind"),
        ("EMAIL", "email"),
        ("WEBHOOK", "webhook"),
        ("STATE", "state"),
        ("TRIES", "count"),
        ("LAST", "last"),
        ("CREATED", "created_at"),
    ];
    table::print(&rows, &columns, "nothing was to be delivered")
}

/// See and change a team's reports on schedule.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot schedules list vision")]
pub struct Schedules {
    #[command(subcommand)]
    command: SchedulesCommand,
}

#[derive(Debug, Subcommand)]
enum SchedulesCommand {
    /// List a team's reports on schedule
    #[command(after_help = "Example:\n  allot schedules list vision")]
    List(OfTeam),
    /// Have a report made on schedule
    #[command(
        after_help = "FILE has keys `kind`, `format`, `covers`, `cron`, `time_zone`, `emails` and `webhooks`, such as\n\n  kind: usage_statement\n  format: csv\n  covers: month\n  cron: \"0 6 1 * *\"\n  time_zone: Asia/Shanghai\n  emails: [lead@example.com]\n\nExample:\n  allot schedules create vision monthly schedule.yaml"
    )]
    Create(NewSchedule),
    /// Remove a schedule
    #[command(after_help = "Example:\n  allot schedules delete vision monthly")]
    Delete(DeleteOfTeam),
    /// List the reports that a schedule made
    #[command(after_help = "Example:\n  allot schedules reports vision monthly")]
    Reports(OneOfTeam),
}

#[derive(Debug, Args)]
struct NewSchedule {
    /// The team
    team: String,
    /// The schedule's name
    name: String,
    /// The schedule, YAML or JSON
    file: PathBuf,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Schedules {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            SchedulesCommand::List(list) => {
                let rows = of_team(&list.team, "schedule")?.rows(&[]).await?;
                list.shape.print_all(&rows, print_schedules)
            }
            SchedulesCommand::Create(new) => {
                let mut body = keys(&new.file, "a schedule")?;
                body["name"] = json!(new.name);
                let made = of_team(&new.team, "schedule")?
                    .create(&new.why, &body)
                    .await?;
                new.shape
                    .print(&made, |row| print_schedules(std::slice::from_ref(row)))
            }
            SchedulesCommand::Delete(delete) => delete.run("schedule").await,
            SchedulesCommand::Reports(one) => {
                let path = format!("{}/reports", one.path("schedules"));
                let answer = Client::found()?.get(&path, &[]).await?;
                let rows = answer["items"].as_array().cloned().unwrap_or_default();
                one.shape.print_all(&rows, print_reports)
            }
        }
    }
}

fn print_schedules(rows: &[Value]) -> Result<(), Failure> {
    let columns = [
        ("NAME", "name"),
        ("KIND", "kind"),
        ("FORMAT", "format"),
        ("COVERS", "covers"),
        ("CRON", "cron"),
        ("TIME ZONE", "time_zone"),
        ("NEXT", "next_at"),
    ];
    table::print(rows, &columns, "no reports on schedule")
}

fn print_reports(rows: &[Value]) -> Result<(), Failure> {
    let columns = [
        ("FROM", "from"),
        ("TO", "to"),
        ("DUE", "due_at"),
        ("MADE", "made_at"),
        ("FILE", "file_name"),
    ];
    table::print(rows, &columns, "no report was due yet")
}
