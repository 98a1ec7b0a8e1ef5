//! Passwords: Argon2id with OWASP's parameters, hashed apart from the event loop and never many at once.

use std::sync::{Arc, LazyLock};

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use domain::password::{PASSWORD_BYTES_MAX, PASSWORD_CHARS_MIN};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::AppError;

/// Memory of one hash, in KiB: the first of OWASP's equal choices, 19 MiB with two passes.
const MEMORY_KIB: u32 = 19_456;
/// Passes over it.
const PASSES: u32 = 2;
/// Hashes at the same time: bounds memory to 76 MiB whoever asks, and leaves cores to the rest.
const HASHES_AT_ONCE: usize = 4;
/// Those who are hashed for and those who wait, together: at some 50 ms a hash the last of them
/// has its turn within a second.
const PLACES: usize = 64;
/// When one who found no place may try again; the queue is empty by then.
const RETRY_AFTER_SECONDS: u64 = 2;

/// What an unknown name's password is compared with, so that it takes as long as a known one's.
static NOBODYS: LazyLock<String> = LazyLock::new(|| {
    hash_now(&hex::encode(rand::random::<[u8; 16]>())).expect("fixed parameters are good")
});

/// Checks a new password before it is set.
pub fn check(field: &str, user: &str, password: &str) -> Result<(), AppError> {
    // The password itself is never quoted back.
    let refused = |remedy: String| Err(AppError::invalid(field, "one such as was given", remedy));
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

/// Hashes a password outside of any request, for those who set the product up.
pub async fn hash(password: String) -> Result<String, AppError> {
    Hashing::default().queue()?.hash(password).await
}

/// Those who wait for a password to be hashed, of one server.
#[derive(Debug)]
pub struct Hashing {
    places: Arc<Semaphore>,
    turns: Arc<Semaphore>,
}

impl Default for Hashing {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(PLACES)),
            turns: Arc::new(Semaphore::new(HASHES_AT_ONCE)),
        }
    }
}

impl Hashing {
    /// A place in the queue. It is refused at once when all are taken: who waited longer than
    /// this would give up and ask again, and make the queue longer still.
    pub fn queue(&self) -> Result<Place, AppError> {
        let held = Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| AppError::TooBusy {
                retry_after_seconds: RETRY_AFTER_SECONDS,
            })?;
        Ok(Place {
            held: Arc::new(held),
            turns: Arc::clone(&self.turns),
        })
    }
}

/// A place in the queue, and the right to have passwords hashed one after the other.
#[derive(Debug)]
pub struct Place {
    held: Arc<OwnedSemaphorePermit>,
    turns: Arc<Semaphore>,
}

impl Place {
    /// Hashes a password.
    pub async fn hash(&self, password: String) -> Result<String, AppError> {
        self.run(move || hash_now(&password))
            .await?
            .map_err(|e| AppError::Internal(anyhow::anyhow!("hash a password: {e}")))
    }

    /// Whether a password is the one that was hashed; without a hash false, after the same work.
    pub async fn matches(&self, password: String, hash: Option<String>) -> Result<bool, AppError> {
        self.run(move || match hash {
            Some(hash) => verify_now(&password, &hash),
            None => {
                verify_now(&password, &NOBODYS);
                false
            }
        })
        .await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, AppError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.expect("never closed");
        let held = Arc::clone(&self.held);
        // Place and turn go along: who hangs up meanwhile makes no room before the work is done.
        tokio::task::spawn_blocking(move || {
            let done = work();
            drop((turn, held));
            done
        })
        .await
        .map_err(|e| AppError::Internal(anyhow::Error::new(e).context("hash a password")))
    }
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

    #[tokio::test]
    async fn the_queue_has_an_end_and_a_place_comes_free_with_its_holder() {
        let hashing = Hashing::default();
        let mut places: Vec<Place> = (0..PLACES)
            .map(|_| hashing.queue().expect("a place"))
            .collect();
        assert!(matches!(hashing.queue(), Err(AppError::TooBusy { .. })));
        let place = places.pop().expect("one of them");
        assert!(
            !place
                .matches("x".into(), None)
                .await
                .expect("compared at last")
        );
        drop(place);
        assert!(hashing.queue().is_ok());
    }

    #[test]
    fn a_refused_password_is_not_quoted() {
        let error = check("password", "ada", "secret1").unwrap_err().to_string();
        assert!(!error.contains("secret1"), "{error}");
        assert!(check("password", "grace-hopper", "grace-hopper1").is_err());
        assert!(check("password", "ada", "analytical engine").is_ok());
    }
}
