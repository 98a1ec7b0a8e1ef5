//! The names of container images, as registries have them.

/// Longest tag, in characters: the registries' own bound.
const TAG_CHARS_MAX: usize = 128;
/// Longest name in all, in characters: the registries' own bound.
const NAME_CHARS_MAX: usize = 255;
/// Digests by their algorithm, with their length in hexadecimal digits.
const DIGESTS: [(&str, usize); 2] = [("sha256", 64), ("sha512", 128)];

/// What such a name is, in words.
pub const IMAGE_NAME: &str = "an image's name, such as python:3.13, registry.example.com:5000/team/train:1 or team/train@sha256:…";

/// Whether a text names an image: `[host[:port]/]path[:tag][@digest]`.
pub fn well_formed(text: &str) -> bool {
    let (name, digest) = match text.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (text, None),
    };
    let parts: Vec<&str> = name.split('/').collect();
    let Some((last, before)) = parts.split_last() else {
        return false;
    };
    let (last, tag) = match last.split_once(':') {
        Some((last, tag)) => (last, Some(tag)),
        None => (*last, None),
    };
    let (host, folders) = match before.split_first() {
        Some((first, rest)) if names_host(first) => (Some(*first), rest),
        _ => (None, before),
    };
    text.len() <= NAME_CHARS_MAX
        && host.is_none_or(host_well_formed)
        && folders.iter().all(|part| part_well_formed(part))
        && part_well_formed(last)
        && tag.is_none_or(tag_well_formed)
        && digest.is_none_or(digest_well_formed)
}

/// The first part of several is a registry where it could be no folder.
fn names_host(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':'])
}

fn host_well_formed(host: &str) -> bool {
    let (name, port) = match host.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let number = |port: &str| {
        !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
    };
    name.split('.').all(label) && port.is_none_or(number)
}

fn part_well_formed(part: &str) -> bool {
    let alphanumeric =
        |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = part.as_bytes();
    alphanumeric(bytes.first())
        && alphanumeric(bytes.last())
        && !part.contains("..")
        && bytes
            .iter()
            .all(|b| alphanumeric(Some(b)) || matches!(b, b'.' | b'_' | b'-'))
}

fn tag_well_formed(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= TAG_CHARS_MAX
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || matches!(b, b'.' | b'-'))
}

fn digest_well_formed(digest: &str) -> bool {
    let Some((algorithm, digits)) = digest.split_once(':') else {
        return false;
    };
    let hexadecimal = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    DIGESTS.contains(&(algorithm, digits.len())) && digits.bytes().all(hexadecimal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_registries_have_are_taken() {
        let digest = format!("team/train@sha256:{}", "0a".repeat(32));
        for name in [
            "python",
            "python:3.13",
            "nvcr.io/nvidia/pytorch:25.01-py3",
            "localhost/bb",
            "localhost:5000/bb:1",
            "registry.example.com:5000/a/b__c/d-e:V1.2_3",
            "a/b",
            digest.as_str(),
        ] {
            assert!(well_formed(name), "{name}");
        }
    }

    #[test]
    fn attacks_and_mistakes_are_refused() {
        let long = "a".repeat(256);
        let many = format!("a:{}", "b".repeat(129));
        for name in [
            "",
            " ",
            "x; rm -rf /",
            "$(id)",
            "`id`",
            "a b",
            "a\nb",
            "-v",
            "--privileged",
            "../x",
            "a/../b",
            "a//b",
            "/a",
            "a/",
            "a:",
            "a:b:c",
            "a@sha256:00",
            "a@md5:00",
            "a@",
            "Upper/case",
            "host.example:99999/a",
            "host.example:/a",
            "docker://python",
            "oci-archive:/etc/passwd",
            "/etc/passwd",
            "a\u{202e}b",
            long.as_str(),
            many.as_str(),
        ] {
            assert!(!well_formed(name), "{name}");
        }
    }
}
