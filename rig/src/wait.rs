//! Waits for a state, with a bound: the only way in which this crate waits.

use std::time::{Duration, Instant};

use anyhow::bail;

/// Between two looks at a state: short enough not to be felt, long enough not to load two cores.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Looks again and again until `look` has a value; after `bound` the error names `what`.
pub async fn until<T, L, F>(what: &str, bound: Duration, mut look: L) -> anyhow::Result<T>
where
    L: FnMut() -> F,
    F: Future<Output = anyhow::Result<Option<T>>>,
{
    let begun = Instant::now();
    loop {
        let last_error = match look().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if begun.elapsed() >= bound {
            let waited = begun.elapsed().as_secs();
            match last_error {
                Some(error) => {
                    return Err(error.context(format!("waited {waited} s in vain: {what}")));
                }
                None => bail!("waited {waited} s in vain: {what}"),
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The same for what needs no network.
pub async fn until_true(
    what: &str,
    bound: Duration,
    mut holds: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    until(what, bound, || {
        let held = holds();
        async move { Ok(held.then_some(())) }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_in_vain_names_what_it_waited_for() {
        let error = until_true("the moon turns green", Duration::from_millis(60), || false)
            .await
            .expect_err("it never does");
        assert!(
            error.to_string().contains("the moon turns green"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn an_error_on_the_way_is_forgotten_when_the_state_comes() {
        let mut looks = 0;
        let seen = until("the third look", Duration::from_secs(5), || {
            looks += 1;
            let now = looks;
            async move {
                match now {
                    1 => anyhow::bail!("not there yet"),
                    2 => Ok(None),
                    _ => Ok(Some(now)),
                }
            }
        })
        .await
        .unwrap();
        assert_eq!(seen, 3);
    }
}
