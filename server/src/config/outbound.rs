//! Where notices may go out to: the mail server, and which addresses webhooks may have.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use domain::FieldError;
use serde::Deserialize;
use url::{Host, Url};

use super::Network;

/// What webhooks may reach.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Webhooks {
    /// Networks that are not public and that webhooks may reach all the same; none unless given. No others: not
    /// those of this machine, of this site, or of the metadata services of clouds.
    pub private_networks: Vec<Network>,
    /// Ports that they may be on.
    pub ports: Vec<u16>,
    /// Whether `http:` is taken as well, which anybody on the way can read.
    pub plain_http: bool,
}

impl Default for Webhooks {
    fn default() -> Self {
        Self {
            private_networks: Vec::new(),
            ports: vec![443],
            plain_http: false,
        }
    }
}

/// Longest URL; the table's.
const URL_CHARS_MAX: usize = 2_048;

impl Webhooks {
    /// Reads a webhook's URL. A name in it is judged again by what it stands for, each time that it is connected to.
    pub fn url(&self, text: &str) -> Result<Url, FieldError> {
        let refused = |remedy: String| FieldError::new("url", text, remedy);
        if text.len() > URL_CHARS_MAX {
            return Err(refused(format!("at most {URL_CHARS_MAX} characters")));
        }
        let url = Url::parse(text)
            .map_err(|_| refused("a URL such as https://hooks.example.com/allotment".to_owned()))?;
        let schemes: &[&str] = if self.plain_http {
            &["https", "http"]
        } else {
            &["https"]
        };
        if !schemes.contains(&url.scheme()) {
            return Err(refused(format!(
                "a URL that begins with {}:",
                schemes.join(": or ")
            )));
        }
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(refused(
                "a URL without a user, a password and a fragment".to_owned(),
            ));
        }
        let port = url.port_or_known_default().unwrap_or_default();
        if !self.ports.contains(&port) {
            let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
            return Err(refused(format!(
                "a port that the server's configuration lists under webhooks.ports: {}",
                ports.join(", ")
            )));
        }
        let address = match url.host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            Some(Host::Domain(_)) => None,
            None => return Err(refused("a URL with a host".to_owned())),
        };
        match address.filter(|address| !self.permits(*address)) {
            Some(_) => Err(refused(REMEDY.to_owned())),
            None => Ok(url),
        }
    }

    /// Whether a webhook may be at this address.
    pub fn permits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        public(address) || self.private_networks.iter().any(|n| n.holds(address))
    }
}

/// What is said of an address that webhooks may not reach.
pub const REMEDY: &str = "an address that is public, or in a network that the server's configuration lists under webhooks.private_networks";

/// Whether an address is one of the public internet: what is not is reached by nobody who names it from outside.
fn public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => public_v4(address),
        IpAddr::V6(address) => public_v6(address),
    }
}

/// IANA's registry of special purposes has the networks.
fn public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = matches!(
        (a, b, c),
        (0 | 10 | 127 | 224..=255, _, _)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    );
    !special
}

/// Global unicast is 2000::/3; of that, tunnels hold addresses of version 4, and some is for documents.
fn public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    let global = a & 0xe000 == 0x2000;
    let special = matches!(
        (a, b),
        (0x2001, 0x0000..=0x01ff | 0x0db8) | (0x2002 | 0x3fff, _)
    );
    global && !special
}

/// The server that takes e-mail.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mail {
    /// Its name; no e-mail is sent without it.
    pub host: Option<String>,
    /// Its port; 587 unless given, 465 with `tls`, 25 with `none`.
    pub port: Option<u16>,
    /// How the connection is kept from others.
    pub security: MailSecurity,
    /// Who signs in there; nobody unless given.
    pub username: Option<String>,
    /// A file whose first line is the password.
    pub password_file: Option<PathBuf>,
    /// A file with certificates in PEM that are trusted beside those of the system.
    pub authorities_file: Option<PathBuf>,
    /// From whom e-mail comes, as `Allotment <allotment@example.com>`.
    pub from: Option<String>,
}

impl fmt::Debug for Mail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mail")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// How a connection to the mail server is kept from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MailSecurity {
    /// It begins in the clear and goes on by TLS, or not at all.
    #[default]
    Starttls,
    /// By TLS from the beginning.
    Tls,
    /// Not at all: for a mail server on this machine.
    None,
}

impl Mail {
    /// The port.
    pub fn port(&self) -> u16 {
        let usual = match self.security {
            MailSecurity::Starttls => 587,
            MailSecurity::Tls => 465,
            MailSecurity::None => 25,
        };
        self.port.unwrap_or(usual)
    }

    /// Checks that what belongs together is there.
    pub(super) fn check(&self) -> Result<(), FieldError> {
        let missing = |field: &str, remedy: &str| FieldError::missing(field, remedy);
        if self.host.is_some() && self.from.is_none() {
            return Err(missing(
                "mail.from",
                "the address that e-mail comes from, where there is a host",
            ));
        }
        match (&self.username, &self.password_file) {
            (Some(_), None) => Err(missing(
                "mail.password_file",
                "the file with the password of mail.username",
            )),
            (None, Some(_)) => Err(missing(
                "mail.username",
                "whose password mail.password_file holds",
            )),
            (Some(_), Some(_)) if self.security == MailSecurity::None => Err(FieldError::new(
                "mail.security",
                "none",
                "starttls or tls, so that the password is not sent in the clear",
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_default() -> Webhooks {
        Webhooks::default()
    }

    /// T-6.6: each of these names what nobody outside may reach, in some spelling.
    #[test]
    fn a_webhook_is_on_no_private_address_however_that_is_written() {
        let open = Webhooks {
            plain_http: true,
            ports: vec![80, 443],
            ..by_default()
        };
        for url in [
            "http://169.254.169.254/",
            "http://[::ffff:127.0.0.1]/",
            "http://0x7f000001/",
            "http://2130706433/",
            "http://127.1/",
            "http://0/",
            "https://10.1.2.3/",
            "https://172.16.0.1/",
            "https://192.168.1.1/",
            "https://100.64.0.1/",
            "https://[::1]/",
            "https://[fe80::1]/",
            "https://[fd00::1]/",
            "https://[64:ff9b::7f00:1]/",
            "https://[2002:7f00:1::]/",
            "https://[::]/",
            "file:///etc/passwd",
            "gopher://example.com/",
            "https://example.com:5432/",
            "https://user@example.com/",
            "https://example.com/#x",
            "nothing",
        ] {
            let refused = open.url(url).expect_err(url);
            assert_eq!(
                (refused.field.as_str(), refused.value.as_str()),
                ("url", url)
            );
        }
        for url in [
            "https://example.com/a?b=c",
            "https://1.1.1.1/",
            "https://[2606:4700::1]/",
        ] {
            assert!(by_default().url(url).is_ok(), "{url}");
        }
        assert!(by_default().url("http://example.com/").is_err());
    }

    #[test]
    fn a_network_that_the_operator_names_may_be_reached() {
        let own = Webhooks {
            private_networks: vec!["10.2.0.0/16".parse().expect("a network")],
            ..by_default()
        };
        assert!(own.url("https://10.2.3.4/").is_ok());
        assert!(own.url("https://10.3.3.4/").is_err());
    }
}
