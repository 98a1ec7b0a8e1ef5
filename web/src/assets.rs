//! The pages' stylesheets, scripts and pictures, embedded at build and addressed by their content.

/// A file as the server sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asset {
    /// The file's content.
    pub bytes: &'static [u8],
    /// What the `Content-Type` header says.
    pub content_type: &'static str,
    /// A hash of the content, fit for an `ETag`.
    pub hash: &'static str,
    /// Whether the address named the content: then it may be kept for ever.
    pub immutable: bool,
}

/// What `Cache-Control` says of an asset whose address holds its hash.
pub const CACHE_FOREVER: &str = "public, max-age=31536000, immutable";

type Entry = (&'static str, &'static str, &'static [u8]);

const TABLE: &[Entry] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// The file at a path below `/assets/`: `HASH/NAME`, or `NAME` alone.
pub fn find(path: &str) -> Option<Asset> {
    let (hash, name) = match path.split_once('/') {
        Some((hash, name)) => (Some(hash), name),
        None => (None, path),
    };
    let (_, known, bytes) = entry(name)?;
    if hash.is_some_and(|hash| hash != known) {
        return None;
    }
    Some(Asset {
        bytes,
        content_type: content_type(name),
        hash: known,
        immutable: hash.is_some(),
    })
}

/// The address of a file, with its hash; a file that was not built has the address that answers 404.
pub fn address(name: &str) -> String {
    match entry(name) {
        Some((_, hash, _)) => format!("/assets/{hash}/{name}"),
        None => format!("/assets/{name}"),
    }
}

fn entry(name: &str) -> Option<Entry> {
    TABLE.iter().find(|(known, _, _)| *known == name).copied()
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assets_are_built() {
        assert!(
            find("vendor.js").is_some_and(|asset| asset.bytes.len() > 10_000),
            "web/dist is missing: run `npm ci && npm run build` in web/, then build again"
        );
    }

    #[test]
    fn an_address_with_its_hash_may_be_kept_for_ever_and_another_hash_is_not_found() {
        let address = address("app.js");
        let asset = find(address.strip_prefix("/assets/").unwrap()).unwrap();
        assert!(asset.immutable && asset.content_type.starts_with("text/javascript"));
        assert!(!find("app.js").unwrap().immutable);
        assert_eq!(find("0000000000000000/app.js"), None);
        assert_eq!(find("../Cargo.toml"), None);
    }
}
