//! Browsers that have signed in before, known by a cookie that proves it for one name.
//!
//! The proof is made with the person's stored password hash as its key, which no client knows, all
//! replicas read, and a new password replaces: nothing is kept of the browser itself.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use crate::config::Sessions;

/// Most names that a browser keeps proofs for: their cookies travel with every request.
pub const NAMES_MAX: usize = 8;
/// Bytes of a name's hash in a cookie's name: two names of one browser do not meet in it.
const NAME_HASH_BYTES: usize = 12;

/// Random bytes that tell one browser from another.
const NUMBER_BYTES: usize = 16;
/// Tells this use of the key from any other.
const PURPOSE: &[u8] = b"allotment: a browser that has signed in\0";

/// How the names of all cookies with such a proof begin.
pub fn cookie_prefix(config: &Sessions) -> &'static str {
    if config.secure_cookies {
        "__Host-allotment-browser-"
    } else {
        "allotment-browser-"
    }
}

/// The name of the cookie that holds the proof for one person's name: several people may use one
/// browser, and none of them takes the proof of another.
pub fn cookie_name(config: &Sessions, name: &str) -> String {
    let hash = Sha256::digest(name.as_bytes());
    let hash = URL_SAFE_NO_PAD.encode(&hash[..NAME_HASH_BYTES]);
    format!("{}{hash}", cookie_prefix(config))
}

/// The cookie's value for a browser that has just signed in with this password hash.
pub fn prove(password_hash: &str) -> String {
    let number = URL_SAFE_NO_PAD.encode(rand::random::<[u8; NUMBER_BYTES]>());
    let proof = URL_SAFE_NO_PAD.encode(mac(password_hash, &number).finalize().into_bytes());
    format!("{number}.{proof}")
}

/// The browser's number, where its cookie proves that it has signed in with this password hash.
pub fn known<'c>(cookie: &'c str, password_hash: &str) -> Option<&'c str> {
    let (number, proof) = cookie.split_once('.')?;
    let proof = URL_SAFE_NO_PAD.decode(proof).ok()?;
    // In constant time.
    mac(password_hash, number).verify_slice(&proof).ok()?;
    Some(number)
}

fn mac(password_hash: &str, number: &str) -> Hmac<Sha256> {
    let mac = Hmac::<Sha256>::new_from_slice(password_hash.as_bytes());
    mac.expect("a key of any length is taken")
        .chain_update(PURPOSE)
        .chain_update(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_proves_a_sign_in_with_one_password_hash_alone() {
        let cookie = prove("hash of ada");
        assert!(known(&cookie, "hash of ada").is_some());
        assert_eq!(known(&cookie, "hash of bob"), None);
        assert_ne!(
            prove("hash of ada"),
            cookie,
            "each browser has a number of its own"
        );
        let (number, proof) = cookie.split_once('.').expect("two parts");
        for bad in [
            "",
            ".",
            number,
            &format!("x{number}.{proof}"),
            &format!("{number}."),
        ] {
            assert_eq!(known(bad, "hash of ada"), None, "{bad:?}");
        }
    }
}
