//! `allot`: Allotment from the command line.

mod client;
mod commands;
mod failure;
mod foreign;
mod login;
mod plan;
mod simulate;
mod table;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use commands::{
    attach, billing, bookings, budgets, change, classes, exec, explain, forward, jobs, logs, nodes,
    notices, platform, policy, pools, prices, queue, quotas, results, submit, telemetry, windows,
};
use failure::Failure;

/// GPU clusters, shared: submit work, see why it waits, and what it cost.
#[derive(Debug, Parser)]
#[command(
    name = "allot",
    version,
    after_help = "The server is ALLOTMENT_URL with ALLOTMENT_TOKEN, or the one of `allot login`.\n\nExample:\n  allot submit --team vision --pool h100 --gpus 1 --wait -- python3 train.py"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Login(commands::login::LogIn),
    Submit(Box<submit::Submit>),
    Jobs(jobs::Jobs),
    Job(jobs::Job),
    Logs(logs::Logs),
    Exec(exec::Exec),
    Attach(attach::Attach),
    Forward(forward::Forward),
    Results(results::Results),
    Cancel(jobs::Cancel),
    Change(change::Change),
    Explain(explain::Explain),
    Queue(queue::Queue),
    Nodes(nodes::Nodes),
    Cordon(nodes::Cordon),
    Uncordon(nodes::Uncordon),
    Drain(nodes::Drain),
    Clear(nodes::Clear),
    Teams(platform::Teams),
    Quota(platform::Quota),
    Usage(platform::Usage),
    Telemetry(telemetry::Telemetry),
    Prices(prices::Prices),
    Periods(billing::Periods),
    Statements(billing::Statements),
    Commitments(billing::Commitments),
    Reconciliations(billing::Reconciliations),
    Quotas(quotas::Quotas),
    Pools(pools::Pools),
    Classes(classes::Classes),
    Policy(policy::Policy),
    Bookings(bookings::Bookings),
    Windows(windows::Windows),
    Budgets(budgets::Budgets),
    Webhooks(notices::Webhooks),
    Subscriptions(notices::Subscriptions),
    Deliveries(notices::Deliveries),
    Schedules(notices::Schedules),
    Plan(plan::PlanFile),
    Simulate(simulate::Simulate),
}

fn main() -> ExitCode {
    // clap exits with status 2 on wrong words, and 0 on --help.
    let arguments = Arguments::parse();
    match run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Ended(status)) => ExitCode::from(status),
        Err(failure) => {
            eprintln!("allot: {}", foreign::plain_lines(&failure.to_string()));
            ExitCode::from(failure.status())
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // A second installation is refused, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    runtime.block_on(async {
        match command {
            Command::Login(c) => c.run().await,
            Command::Submit(c) => c.run().await,
            Command::Jobs(c) => c.run().await,
            Command::Job(c) => c.run().await,
            Command::Logs(c) => c.run().await,
            Command::Exec(c) => c.run().await,
            Command::Attach(c) => c.run().await,
            Command::Forward(c) => c.run().await,
            Command::Results(c) => c.run().await,
            Command::Cancel(c) => c.run().await,
            Command::Change(c) => c.run().await,
            Command::Explain(c) => c.run().await,
            Command::Queue(c) => c.run().await,
            Command::Nodes(c) => c.run().await,
            Command::Cordon(c) => c.run().await,
            Command::Uncordon(c) => c.run().await,
            Command::Drain(c) => c.run().await,
            Command::Clear(c) => c.run().await,
            Command::Teams(c) => c.run().await,
            Command::Quota(c) => c.run().await,
            Command::Usage(c) => c.run().await,
            Command::Telemetry(c) => c.run().await,
            Command::Prices(c) => c.run().await,
            Command::Periods(c) => c.run().await,
            Command::Statements(c) => c.run().await,
            Command::Commitments(c) => c.run().await,
            Command::Reconciliations(c) => c.run().await,
            Command::Quotas(c) => c.run().await,
            Command::Pools(c) => c.run().await,
            Command::Classes(c) => c.run().await,
            Command::Policy(c) => c.run().await,
            Command::Bookings(c) => c.run().await,
            Command::Windows(c) => c.run().await,
            Command::Budgets(c) => c.run().await,
            Command::Webhooks(c) => c.run().await,
            Command::Subscriptions(c) => c.run().await,
            Command::Deliveries(c) => c.run().await,
            Command::Schedules(c) => c.run().await,
            Command::Plan(c) => c.run().await,
            Command::Simulate(c) => c.run(),
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::Arguments;

    #[test]
    fn what_a_flag_cannot_mean_is_wrong_words_whoever_would_have_been_asked() {
        for words in [
            "submit --kind zzz -- x",
            "submit --runner zzz -- x",
            "submit --nvlink zzz -- x",
            "submit --on-partition zzz -- x",
            "submit --sharing zzz -- x",
            "submit --retry-on x -- x",
            "submit --not-before tomorrow -- x",
            "submit --pool H100 -- x",
            "submit --class / -- x",
            "jobs --state bogus",
            "jobs --state queued,",
            "jobs --user A/B",
            "usage --group-by foo",
            "usage --group-by team,",
            "usage --from x",
            "usage --to 2026-10-01",
            "bookings list h100 --from x",
            "bookings change h100 demo --to x",
        ] {
            let line = std::iter::once("allot").chain(words.split(' '));
            let refused = Arguments::try_parse_from(line).expect_err(words);
            assert_eq!(refused.exit_code(), 2, "{words}: {refused}");
            let told = refused.to_string();
            assert!(told.contains("invalid value"), "{words}: {told}");
        }
        for words in [
            "submit --kind training --not-before 2026-10-01T00:00:00Z --retry-on failure -- x",
            "submit --not-before= --like 1 -- x",
            "jobs --state queued,running",
            "usage --group-by team,day --from 2026-10-01T00:00:00+08:00",
        ] {
            let line = std::iter::once("allot").chain(words.split(' '));
            Arguments::try_parse_from(line).expect(words);
        }
    }

    #[test]
    fn every_command_prints_json_and_has_an_example() {
        let program = Arguments::command();
        for command in program.get_subcommands() {
            check(command, command.get_name());
        }
    }

    /// Checks a command and, where it holds others, those, which print in its place.
    fn check(command: &clap::Command, name: &str) {
        for below in command.get_subcommands() {
            check(below, &format!("{name} {}", below.get_name()));
        }
        assert!(
            command.has_subcommands() || command.get_arguments().any(|arg| arg.get_id() == "json"),
            "{name} has no --json"
        );
        let after = command.get_after_help().map(ToString::to_string);
        assert!(
            after.is_some_and(|text| text.contains(&format!("allot {name}"))),
            "{name} has no example"
        );
    }
}
