//! What a password must be.

/// Shortest password, in characters.
pub const PASSWORD_CHARS_MIN: usize = 8;
/// Longest password, in bytes; bounds what is read before it is hashed.
pub const PASSWORD_BYTES_MAX: usize = 256;
