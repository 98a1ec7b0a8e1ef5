//! The file of a report: a team's statement of usage as CSV or JSON, by the same figures as its page.

use std::fmt::Write as _;

use domain::Timestamp;
use domain::notice::{ReportFormat, ScheduleKind};
use serde_json::{Value, json};

use crate::accounting::usage::{self, Report, ReportLine, Sum};
use crate::app::AppError;
use crate::store::ledger::{Grouping, Window};
use crate::store::schedules::Schedule;
use crate::store::{self, Tx};

/// A file, and what is told beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its type.
    pub media_type: &'static str,
    /// What is in it.
    pub content: String,
    /// What is told beside it.
    pub told: Value,
}

/// Makes the report of a schedule over a span; in a transaction that sees all of the team.
pub async fn make(
    tx: &mut Tx,
    schedule: &Schedule,
    (from, to): (Timestamp, Timestamp),
) -> Result<File, AppError> {
    let ScheduleKind::UsageStatement = schedule.kind;
    let window = Window {
        from,
        to,
        team: Some(schedule.team_id),
        now: store::clock(tx).await?,
    };
    let by = Grouping {
        user: true,
        pool: true,
        mode: true,
        day: true,
        ..Grouping::default()
    };
    // A team with more lines than one report may have gets them without the days.
    let mut report = usage::report(tx, &window, by).await?;
    if report.cut {
        let coarse = Grouping { day: false, ..by };
        report = usage::report(tx, &window, coarse).await?;
    }
    let (content, media_type) = match schedule.format {
        ReportFormat::Csv => (csv(&report), "text/csv"),
        ReportFormat::Json => (
            json_of(schedule, (from, to), &report).to_string(),
            "application/json",
        ),
    };
    let day = from
        .with_timezone(&schedule.time_zone.parse().unwrap_or(chrono_tz::UTC))
        .date_naive();
    let shown = domain::time::format;
    Ok(File {
        name: format!(
            "{}-{}-{day}.{}",
            schedule.team, schedule.name, schedule.format
        ),
        media_type,
        content,
        told: json!({
            "schedule": schedule.name,
            "team": schedule.team,
            "from": shown(from),
            "to": shown(to),
            "total_gpu_hours": hours(&report.total),
            "total_cost": report.total.cost.as_ref().map(|cost| format!("{} {}", cost.amount, cost.currency)),
        }),
    })
}

fn hours(sum: &Sum) -> String {
    let hours = sum.gpu_seconds / rust_decimal::Decimal::from(3_600);
    domain::money::round(hours, 3).normalize().to_string()
}

/// The figures as text: a program that reads floats would change them.
fn json_of(schedule: &Schedule, (from, to): (Timestamp, Timestamp), report: &Report) -> Value {
    let sum = |sum: &Sum| {
        json!({
            "gpu_seconds": sum.gpu_seconds.to_string(),
            "unpriced_gpu_seconds": sum.unpriced_gpu_seconds.to_string(),
            "cost": sum.cost,
        })
    };
    let line = |line: &ReportLine| {
        let mut item = sum(&line.sum);
        item["day"] = json!(day(line));
        item["user"] = json!(line.of.user);
        item["pool"] = json!(line.of.pool);
        item["mode"] = json!(line.of.mode);
        item
    };
    json!({
        "team": schedule.team,
        "from": domain::time::format(from),
        "to": domain::time::format(to),
        "items": report.lines.iter().map(line).collect::<Vec<Value>>(),
        "total": sum(&report.total),
    })
}

fn day(line: &ReportLine) -> Option<String> {
    line.of.bucket.map(|at| at.date_naive().to_string())
}

fn csv(report: &Report) -> String {
    let mut text =
        "day,user,pool,mode,gpu_seconds,unpriced_gpu_seconds,cost,currency\r\n".to_owned();
    for line in &report.lines {
        let of = |value: &Option<String>| cell(value.as_deref().unwrap_or_default());
        let group = [&day(line), &line.of.user, &line.of.pool, &line.of.mode].map(of);
        let _ = writeln!(text, "{},{}\r", group.join(","), amounts(&line.sum));
    }
    let _ = writeln!(text, "total,,,,{}\r", amounts(&report.total));
    text
}

fn amounts(sum: &Sum) -> String {
    let cost = sum.cost.as_ref();
    format!(
        "{},{},{},{}",
        sum.gpu_seconds,
        sum.unpriced_gpu_seconds,
        cost.map(|cost| cost.amount.to_string()).unwrap_or_default(),
        cost.map(|cost| cost.currency.to_string())
            .unwrap_or_default(),
    )
}

/// A cell that no spreadsheet takes for a formula, in quotes where it needs them.
fn cell(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if formula {
        format!("'{text}")
    } else {
        text.to_owned()
    };
    match text.contains(['"', ',', '\r', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_is_a_formula_or_two_cells() {
        for (text, written) in [
            ("vision", "vision"),
            ("=1+1", "'=1+1"),
            ("-2", "'-2"),
            ("a,b", "\"a,b\""),
            ("a\"b", "\"a\"\"b\""),
            ("@x,y", "\"'@x,y\""),
        ] {
            assert_eq!(cell(text), written);
        }
    }
}
