//! Passwords: Argon2id with OWASP's parameters, hashed apart from the event loop and never many at once.

use std::sync::LazyLock;

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::sync::Semaphore;

use super::AppError;

/// Memory of one hash, in KiB: the first of OWASP's equal choices, 19 MiB with two passes.
const MEMORY_KIB: u32 = 19_456;
/// Passes over it.
const PASSES: u32 = 2;
/// Hashes at the same time: bounds memory to 76 MiB whoever asks, and leaves cores to the rest.
const HASHES_AT_ONCE: usize = 4;
/// Shortest password, in characters.
pub const PASSWORD_CHARS_MIN: usize = 8;
/// Longest password, in bytes; bounds what is read before it is hashed.
pub const PASSWORD_BYTES_MAX: usize = 256;

static HASHING: Semaphore = Semaphore::const_new(HASHES_AT_ONCE);
/// What an unknown name's password is compared with, so that it takes as long as a known one's.
static NOBODYS: LazyLock<String> = LazyLock::new(|| {
    hash_now(&hex::encode(rand::random::<[u8; 16]>())).expect("fixed parameters are good")
});

/// Checks a new password before it is set.
pub fn check(field: &str, user: &str, password: &str) -> Result<(), AppError> {
    // The password itself is never quoted back.
    let refused = |remedy: String| Err(AppError::invalid(field, "the password", remedy));
    if password.chars().count() < PASSWORD_CHARS_MIN || password.len() > PASSWORD_BYTES_MAX {
        return refused(format!(
            "at least {PASSWORD_CHARS_MIN} characters and at most {PASSWORD_BYTES_MAX} bytes"
        ));
    }
    if password.to_lowercase().contains(user) && password.len() < user.len() + PASSWORD_CHARS_MIN {
        return refused("a password that is not made of the user's name".into());
    }
    Ok(())
}

/// Hashes a password.
pub async fn hash(password: String) -> Result<String, AppError> {
    let _permit = HASHING.acquire().await.expect("never closed");
    tokio::task::spawn_blocking(move || hash_now(&password))
        .await
        .map_err(|e| AppError::Internal(anyhow::Error::new(e).context("hash a password")))?
        .map_err(|e| AppError::Internal(anyhow::anyhow!("hash a password: {e}")))
}

/// Whether a password is the one that was hashed; without a hash false, after the same work.
pub async fn matches(password: String, hash: Option<String>) -> Result<bool, AppError> {
    let _permit = HASHING.acquire().await.expect("never closed");
    tokio::task::spawn_blocking(move || match hash {
        Some(hash) => verify_now(&password, &hash),
        None => {
            verify_now(&password, &NOBODYS);
            false
        }
    })
    .await
    .map_err(|e| AppError::Internal(anyhow::Error::new(e).context("compare a password")))
}

fn hasher() -> Argon2<'static> {
    let params = Params::new(MEMORY_KIB, PASSES, 1, None).expect("the constants are in range");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

fn hash_now(password: &str) -> Result<String, argon2::password_hash::Error> {
    Ok(hasher().hash_password(password.as_bytes())?.to_string())
}

fn verify_now(password: &str, hash: &str) -> bool {
    PasswordHash::new(hash)
        .is_ok_and(|hash| hasher().verify_password(password.as_bytes(), &hash).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_names_its_parameters_and_matches_only_its_password() {
        let hash = hash_now("correct horse").expect("hashed");
        assert!(
            hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
            "{hash}"
        );
        assert!(verify_now("correct horse", &hash));
        assert!(!verify_now("correct hors", &hash));
        assert!(!verify_now("correct horse", "not a hash"));
    }

    #[test]
    fn a_refused_password_is_not_quoted() {
        let error = check("password", "ada", "secret1").unwrap_err().to_string();
        assert!(!error.contains("secret1"), "{error}");
        assert!(check("password", "grace-hopper", "grace-hopper1").is_err());
        assert!(check("password", "ada", "analytical engine").is_ok());
    }
}
