//! The ports of `./dev up`: free ones, or fixed ones that are told apart from taken ones.

use std::net::TcpListener;

use anyhow::{Context, bail};

/// The four listeners of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Pages and REST.
    pub http: u16,
    /// Agents.
    pub agents: u16,
    /// Metrics.
    pub metrics: u16,
    /// Other replicas.
    pub internal: u16,
}

/// How far the other listeners lie above pages and REST, as 8443, 9090 and 8444 above 8080.
const AGENTS_ABOVE: u16 = 8443 - 8080;
const METRICS_ABOVE: u16 = 9090 - 8080;
const INTERNAL_ABOVE: u16 = 8444 - 8080;

impl Ports {
    /// Free ports that the servers choose themselves.
    pub const FREE: Self = Self {
        http: 0,
        agents: 0,
        metrics: 0,
        internal: 0,
    };

    /// The ports that go with `http`; 0 for free ones.
    pub fn at(http: u16) -> anyhow::Result<Self> {
        if http == 0 {
            return Ok(Self::FREE);
        }
        let Some(metrics) = http.checked_add(METRICS_ABOVE) else {
            bail!(
                "--port {http} leaves no room for the metrics at {METRICS_ABOVE} above it; \
                 choose one below {}, or 0 for free ports",
                u16::MAX - METRICS_ABOVE + 1
            );
        };
        Ok(Self {
            http,
            agents: http + AGENTS_ABOVE,
            metrics,
            internal: http + INTERNAL_ABOVE,
        })
    }

    /// Fails with one sentence when a port is taken.
    pub fn check_free(&self) -> anyhow::Result<()> {
        let uses = [
            (self.http, "pages and REST"),
            (self.agents, "agents"),
            (self.metrics, "metrics"),
            (self.internal, "other servers"),
        ];
        for (port, what) in uses {
            if port == 0 {
                continue;
            }
            if let Err(error) = TcpListener::bind(("127.0.0.1", port)) {
                match error.kind() {
                    std::io::ErrorKind::AddrInUse => bail!(
                        "port {port} (for {what}) is taken; end what uses it, \
                         or choose others with --port N, or --port 0 for free ones"
                    ),
                    std::io::ErrorKind::PermissionDenied => bail!(
                        "port {port} (for {what}) may not be used by this user; choose --port N above 1023"
                    ),
                    _ => return Err(error).with_context(|| format!("take port {port} for {what}")),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_port_brings_the_documented_ones() {
        let ports = Ports::at(8080).unwrap();
        assert_eq!(
            (ports.agents, ports.metrics, ports.internal),
            (8443, 9090, 8444)
        );
    }

    #[test]
    fn a_port_too_high_is_refused_with_the_highest_that_goes() {
        let error = Ports::at(65000).unwrap_err().to_string();
        assert!(error.contains("below 64526"), "{error}");
        assert!(Ports::at(64525).is_ok());
    }

    #[test]
    fn a_taken_port_is_one_sentence_with_the_remedy() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let http = taken.local_addr().unwrap().port();
        let ports = Ports {
            http,
            ..Ports::FREE
        };
        let error = ports.check_free().unwrap_err().to_string();
        assert!(
            error.contains(&format!("port {http}")) && error.contains("--port 0"),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
}
