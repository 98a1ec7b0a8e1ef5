//! Proxies whose word is taken for whose request they pass on.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use domain::FieldError;
use serde::{Deserialize, Deserializer};

/// What an entry may be.
const REMEDY: &str =
    "an address such as 10.0.0.1, or a network such as 10.0.0.0/8 or 2001:db8::/32";

/// Which proxies stand before this server, and where they write whom they speak for.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Proxies {
    /// Addresses and networks of proxies; of everybody else the header is not read.
    pub trusted: Vec<Network>,
    /// The header that they write; the other is not read, since a proxy may pass it on unread.
    pub header: ProxyHeader,
}

impl Proxies {
    /// Whether an address is a trusted proxy's.
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.holds(address))
    }
}

/// Where a proxy writes the address that it was asked from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum ProxyHeader {
    /// `X-Forwarded-For`: addresses with commas between.
    #[default]
    #[serde(rename = "x-forwarded-for")]
    XForwardedFor,
    /// `Forwarded`, as in RFC 7239.
    #[serde(rename = "forwarded")]
    Forwarded,
}

/// All addresses that begin with the same bits; a single one is a network of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    bits: u32,
}

impl Network {
    /// Whether an address lies in it.
    pub fn holds(&self, address: IpAddr) -> bool {
        let begins = |address: u128, base: u128, width: u32| {
            // A shift by the whole width is none that there is.
            let rest = width - self.bits;
            address.checked_shr(rest).unwrap_or(0) == base.checked_shr(rest).unwrap_or(0)
        };
        match (address.to_canonical(), self.base) {
            (IpAddr::V4(a), IpAddr::V4(b)) => begins(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => begins(a.to_bits(), b.to_bits(), 128),
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let wrong = || FieldError::new("trusted", text, REMEDY);
        let (base, bits) = match text.split_once('/') {
            Some((base, bits)) => (base, Some(bits)),
            None => (text, None),
        };
        let base: IpAddr = base.parse().map_err(|_| wrong())?;
        let width = if base.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().map_err(|_| wrong())?,
            None => width,
        };
        if bits > width {
            return Err(wrong());
        }
        Ok(Self { base, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_holds_what_begins_as_it_does() {
        for (network, address, holds) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("0.0.0.0/0", "192.0.2.7", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::/0", "2001:db8::1", true),
        ] {
            let network: Network = network.parse().expect("a network");
            let address = address.parse().expect("an address");
            assert_eq!(network.holds(address), holds, "{network} {address}");
        }
    }

    #[test]
    fn what_is_no_network_is_refused_with_what_one_is() {
        for text in [
            "",
            "10.0.0.0/33",
            "2001:db8::/129",
            "10.0.0/8",
            "10.0.0.0/-1",
            "proxy",
            "10.0.0.0/",
        ] {
            let error = text.parse::<Network>().expect_err(text);
            assert_eq!(
                (error.value.as_str(), error.remedy.as_str()),
                (text, REMEDY)
            );
        }
    }
}
