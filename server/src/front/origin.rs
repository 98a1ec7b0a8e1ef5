//! From where a request came: the address of its connection or, where that is a trusted proxy's, the one that the proxy names.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::FORWARDED;
use axum::http::{HeaderMap, HeaderName};

use crate::config::{Proxies, ProxyHeader};

/// The header of proxies that do not write `Forwarded`.
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Proxies that are looked through: a request that passed more came in a circle, or was made up.
const HOPS_MAX: usize = 32;

/// The address of who sent a request. Each proxy adds the address that it was asked from at the right,
/// so that from there on addresses are true as long as they are trusted proxies' own; the first that
/// is not is the client's, and what stands to its left is the client's word alone.
pub(super) fn address(proxies: &Proxies, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let mut known = peer.to_canonical();
    for named in named(proxies.header, headers)
        .into_iter()
        .rev()
        .take(HOPS_MAX)
    {
        if !proxies.trusts(known) {
            break;
        }
        match named {
            Some(address) => known = address.to_canonical(),
            // Whom the proxy does not name comes from the proxy, as far as anybody knows.
            None => break,
        }
    }
    known
}

/// The addresses that the header names, from the left; nothing for an entry that is none.
fn named(header: ProxyHeader, headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    let (name, read): (_, fn(&str) -> Option<IpAddr>) = match header {
        ProxyHeader::Forwarded => (FORWARDED, read_element),
        ProxyHeader::XForwardedFor => (X_FORWARDED_FOR, read_address),
    };
    let lines = headers.get_all(name).into_iter();
    lines
        .flat_map(|line| match line.to_str() {
            Ok(line) => split(line, ',').into_iter().map(read).collect(),
            Err(_) => vec![None],
        })
        .collect()
}

/// The `for` of one element of `Forwarded` (RFC 7239).
fn read_element(element: &str) -> Option<IpAddr> {
    split(element, ';').into_iter().find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        let asked_for = key.trim().eq_ignore_ascii_case("for");
        asked_for.then(|| read_address(value.trim().trim_matches('"')))?
    })
}

/// An address as proxies write it, perhaps with a port; `unknown` and made-up names are none.
fn read_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse().ok();
    address.or_else(|| {
        text.parse::<SocketAddr>()
            .ok()
            .map(|with_port| with_port.ip())
    })
}

/// The parts of a line between separators that stand in no quotes.
fn split(line: &str, separator: char) -> Vec<&str> {
    let mut quoted = false;
    line.split(|c| {
        quoted ^= c == '"';
        c == separator && !quoted
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn proxies(header: ProxyHeader) -> Proxies {
        let trusted = ["10.0.0.0/8", "2001:db8:1::/48"];
        Proxies {
            header,
            trusted: trusted
                .map(|network| network.parse().expect("a network"))
                .to_vec(),
        }
    }

    fn of(header: ProxyHeader, peer: &str, lines: &[&str]) -> String {
        let name = match header {
            ProxyHeader::Forwarded => FORWARDED,
            ProxyHeader::XForwardedFor => X_FORWARDED_FOR,
        };
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(&name, HeaderValue::from_str(line).expect("a value"));
        }
        let peer = peer.parse().expect("an address");
        address(&proxies(header), peer, &headers).to_string()
    }

    #[test]
    fn the_right_most_address_that_is_no_trusted_proxys_is_the_clients() {
        for (peer, lines, client) in [
            ("10.0.0.1", &["192.0.2.7"][..], "192.0.2.7"),
            ("10.0.0.1", &["198.51.100.9, 192.0.2.7"], "192.0.2.7"),
            ("10.0.0.1", &["192.0.2.7, 10.0.0.2"], "192.0.2.7"),
            ("10.0.0.1", &["192.0.2.7", "10.0.0.2"], "192.0.2.7"),
            ("::ffff:10.0.0.1", &["192.0.2.7"], "192.0.2.7"),
            ("2001:db8:1::5", &["[2001:db8:2::9]:4711"], "2001:db8:2::9"),
            ("10.0.0.1", &["192.0.2.7:4711"], "192.0.2.7"),
            // All of them are proxies: the one farthest away.
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            // The proxy does not say: whatever stands to the left is a client's word.
            ("10.0.0.1", &["192.0.2.7, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["192.0.2.7, "], "10.0.0.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
        ] {
            let found = of(ProxyHeader::XForwardedFor, peer, lines);
            assert_eq!(found, client, "{peer} {lines:?}");
        }
    }

    #[test]
    fn who_is_no_trusted_proxy_names_nobody() {
        for header in [ProxyHeader::XForwardedFor, ProxyHeader::Forwarded] {
            for line in ["192.0.2.7", "for=192.0.2.7", "10.0.0.1"] {
                assert_eq!(of(header, "198.51.100.9", &[line]), "198.51.100.9");
            }
        }
    }

    #[test]
    fn forwarded_is_read_as_its_standard_says() {
        for (line, client) in [
            ("for=192.0.2.7", "192.0.2.7"),
            ("For=\"192.0.2.7:80\";proto=http;by=10.0.0.1", "192.0.2.7"),
            ("proto=https; for=\"[2001:db8:2::9]:4711\"", "2001:db8:2::9"),
            ("for=198.51.100.9, for=192.0.2.7, for=10.0.0.2", "192.0.2.7"),
            ("for=192.0.2.7;host=\"a, for=198.51.100.9\"", "192.0.2.7"),
            ("for=192.0.2.7, for=_hidden", "10.0.0.1"),
            ("proto=https", "10.0.0.1"),
        ] {
            assert_eq!(
                of(ProxyHeader::Forwarded, "10.0.0.1", &[line]),
                client,
                "{line}"
            );
        }
        // One header is believed: the other a proxy may pass on as the client wrote it.
        assert_eq!(
            of(ProxyHeader::Forwarded, "10.0.0.1", &["192.0.2.7"]),
            "10.0.0.1"
        );
    }
}
