//! What the values of a configuration must be, beyond their types.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use domain::FieldError;

use super::{Config, Timers};

/// Connections of a pool. One is held to hear of other replicas, and loops, agents and people must
/// not wait for each other; more than the most no PostgreSQL bears.
const CONNECTIONS: RangeInclusive<u32> = 4..=10_000;
/// Every timer: longer than a day is a slip of the unit.
const TIMER_MS: RangeInclusive<i64> = 1..=24 * 3_600 * 1_000;
/// What may also be nothing: grace, margin and back-off.
const PAUSE_MS: RangeInclusive<i64> = 0..=24 * 3_600 * 1_000;
/// A certificate is renewed at half its life, which must leave time to try again; a year at most.
const CERTIFICATE_SECONDS: RangeInclusive<i64> = 10..=366 * 24 * 3_600;
/// A join token lies in the history of a shell, hence an hour at most.
const JOIN_TOKEN_SECONDS: RangeInclusive<i64> = 1..=3_600;
/// A log-in lasts a year at most.
const SESSION_SECONDS: RangeInclusive<i64> = 1..=366 * 24 * 3_600;
/// Below lie the accounts of the machine itself; above, the teams' ranges must find room.
const UNIX_USER_BASE: RangeInclusive<u32> = 1_000..=2_000_000_000;
/// Without a stream no page is live.
const EVENT_STREAMS: RangeInclusive<usize> = 1..=10_000;
/// Each is compared with the address of every request.
const TRUSTED_PROXIES: RangeInclusive<usize> = 0..=256;
/// What was changed in the last month is asked for; more than a century no database has seen.
const VERSION_DAYS: RangeInclusive<i64> = 30..=36_600;
/// From a day to more than anybody keeps.
const SAMPLE_DAYS: RangeInclusive<i64> = 1..=36_500;
/// Without a port there is no webhook; a list of more is no list.
const WEBHOOK_PORTS: RangeInclusive<usize> = 1..=64;
/// An agent reads so many in all.
const LOGS: RangeInclusive<usize> = 1..=512;

impl Config {
    /// Checks what no type can; the error names the key, its value and what it may be.
    pub fn check(&self) -> Result<(), FieldError> {
        let Self {
            database,
            proxies,
            timers,
            agents,
            sessions,
            limits,
            retention,
            ..
        } = self;
        within("database.connections", database.connections, CONNECTIONS)?;
        within("proxies.trusted", proxies.trusted.len(), TRUSTED_PROXIES)?;
        timers.check().map_err(|error| error.under("timers"))?;
        within(
            "agents.certificate_seconds",
            agents.certificate_seconds,
            CERTIFICATE_SECONDS,
        )?;
        within(
            "agents.join_token_seconds",
            agents.join_token_seconds,
            JOIN_TOKEN_SECONDS,
        )?;
        within("sessions.seconds", sessions.seconds, SESSION_SECONDS)?;
        within(
            "limits.event_streams_per_person",
            limits.event_streams_per_person,
            EVENT_STREAMS,
        )?;
        within("limits.logs_per_person", limits.logs_per_person, LOGS)?;
        within(
            "retention.policy_versions_days",
            retention.policy_versions_days,
            VERSION_DAYS,
        )?;
        for (field, days) in [
            ("retention.samples_days", retention.samples_days),
            (
                "retention.sample_minutes_days",
                retention.sample_minutes_days,
            ),
            ("retention.sample_hours_days", retention.sample_hours_days),
            ("retention.sample_days_days", retention.sample_days_days),
        ] {
            within(field, days, SAMPLE_DAYS)?;
        }
        self.mail.check()?;
        within("webhooks.ports", self.webhooks.ports.len(), WEBHOOK_PORTS)?;
        within("unix_user_base", self.unix_user_base, UNIX_USER_BASE)
    }
}

impl Timers {
    fn check(&self) -> Result<(), FieldError> {
        let ms = |timer: Duration| i64::try_from(timer.as_millis()).unwrap_or(i64::MAX);
        for (field, value, range) in [
            ("heartbeat_ms", self.heartbeat_ms, TIMER_MS),
            ("node_lease_ms", self.node_lease_ms, TIMER_MS),
            ("kill_grace_ms", self.kill_grace_ms, PAUSE_MS),
            ("clock_margin_ms", self.clock_margin_ms, PAUSE_MS),
            ("start_window_ms", self.start_window_ms, TIMER_MS),
            ("retry_backoff_ms", self.retry_backoff_ms, PAUSE_MS),
            ("tick_ms", ms(self.tick), TIMER_MS),
            ("world_check_ms", ms(self.world_check), TIMER_MS),
            ("stall_ms", ms(self.stall), TIMER_MS),
            ("request_head_ms", ms(self.request_head), TIMER_MS),
            ("request_body_ms", ms(self.request_body), TIMER_MS),
        ] {
            within(field, value, range)?;
        }
        // A lease that no heartbeat renews in time is lost by every node that is well.
        if self.node_lease_ms <= self.heartbeat_ms {
            return Err(FieldError::new(
                "node_lease_ms",
                self.node_lease_ms,
                format!("more than heartbeat_ms, {}", self.heartbeat_ms),
            ));
        }
        Ok(())
    }
}

fn within<T: PartialOrd + Display>(
    field: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), FieldError> {
    if range.contains(&value) {
        return Ok(());
    }
    let remedy = format!("{} to {}", range.start(), range.end());
    Err(FieldError::new(field, value, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration with these lines in this table.
    fn with(table: &str, line: &str) -> Result<Config, toml::de::Error> {
        let database = "[database]\napp_url = 'unused'\nsystem_url = 'unused'\n";
        toml::from_str(&match table {
            "" => format!("{line}\n{database}"),
            "database" => format!("{database}{line}\n"),
            table => format!("{database}[{table}]\n{line}\n"),
        })
    }

    #[test]
    fn the_defaults_and_the_example_are_good() {
        assert_eq!(with("", "").expect("read").check(), Ok(()));
        let example = include_str!("../../../examples/config/server.toml");
        let example: Config = toml::from_str(example).expect("read");
        assert_eq!(example.check(), Ok(()));
    }

    #[test]
    fn what_cannot_be_served_with_is_refused_by_its_name() {
        for (table, key, value) in [
            ("database", "connections", "0"),
            ("timers", "heartbeat_ms", "0"),
            ("timers", "node_lease_ms", "0"),
            ("timers", "node_lease_ms", "5000"),
            ("timers", "kill_grace_ms", "-1"),
            ("timers", "start_window_ms", "9223372036854775807"),
            ("timers", "tick_ms", "0"),
            ("timers", "stall_ms", "86400001"),
            ("agents", "certificate_seconds", "-1"),
            ("agents", "join_token_seconds", "3601"),
            ("sessions", "seconds", "0"),
            ("limits", "event_streams_per_person", "0"),
            ("limits", "logs_per_person", "513"),
            ("retention", "policy_versions_days", "29"),
            ("retention", "samples_days", "0"),
            ("retention", "sample_hours_days", "36501"),
            ("", "unix_user_base", "0"),
        ] {
            let config = with(table, &format!("{key} = {value}")).expect("read");
            let error = config.check().expect_err("refused");
            let field = [table, key].join(".");
            assert_eq!(error.field, field.trim_start_matches('.'));
            assert_eq!(error.value, value);
        }
    }

    #[test]
    fn a_proxy_is_trusted_by_an_address_or_a_network_and_nothing_else() {
        let good = with(
            "proxies",
            "trusted = ['10.0.0.0/8', '::1']\nheader = 'forwarded'",
        );
        let proxies = good.expect("read").proxies;
        assert!(proxies.trusts("10.1.2.3".parse().expect("an address")));
        assert!(!proxies.trusts("11.1.2.3".parse().expect("an address")));
        let error = with("proxies", "trusted = ['10.0.0.0/33']").expect_err("refused");
        assert!(error.to_string().contains("10.0.0.0/33"), "{error}");
        let many = vec!["'10.0.0.1'"; TRUSTED_PROXIES.end() + 1].join(", ");
        let many = with("proxies", &format!("trusted = [{many}]")).expect("read");
        assert_eq!(many.check().expect_err("refused").field, "proxies.trusted");
    }

    #[test]
    fn a_time_zone_that_is_none_is_refused_where_it_stands() {
        let error = with("organisation", "time_zone = 'Mars/Olympus'").expect_err("refused");
        assert!(error.to_string().contains("Asia/Shanghai"), "{error}");
    }

    #[test]
    fn a_timer_that_is_negative_is_refused_where_it_stands() {
        let error = with("timers", "tick_ms = -1").expect_err("refused");
        assert!(error.to_string().contains("tick_ms = -1"), "{error}");
    }
}
