//! A short checksum that tells a whole line from one half written.

use sha2::{Digest as _, Sha256};

/// Bytes of the hash that are kept: enough against accidents, which is all it is for.
const BYTES: usize = 4;

/// The checksum of some bytes, as eight hexadecimal digits.
pub fn of(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes)[..BYTES])
}
