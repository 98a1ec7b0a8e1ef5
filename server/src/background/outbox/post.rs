//! Posts to webhooks: signed, by the address that is connected to, without redirects, and bounded in time.

use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use domain::Timestamp;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::CONTENT_TYPE;
use serde_json::json;
use sha2::Sha256;

use super::Failed;
use crate::config::Webhooks;
use crate::config::outbound::REMEDY;
use crate::store::outbox::Claimed;

/// A receiver answers within this, connection and all; who has more to do with a notice takes it first.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Says which delivery it is: the same in each of its tries.
const DELIVERY: &str = "Allotment-Delivery";
/// Says when it was signed, in seconds since 1970.
const TIMESTAMP: &str = "Allotment-Timestamp";
/// Says `v1=` and the signature; several, with commas between, while keys change.
const SIGNATURE: &str = "Allotment-Signature";

/// What posts.
#[derive(Debug, Clone)]
pub struct Poster {
    client: reqwest::Client,
    rules: Arc<Webhooks>,
}

impl Poster {
    /// Makes one by these rules.
    pub fn new(rules: &Webhooks) -> anyhow::Result<Self> {
        // Tests make one without the program that installs it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let rules = Arc::new(rules.clone());
        let client = reqwest::Client::builder()
            .user_agent(concat!("allotment/", env!("CARGO_PKG_VERSION")))
            .dns_resolver(Arc::new(Permitted(Arc::clone(&rules))))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .timeout(ANSWER_WITHIN)
            // A connection that is kept would outlive the judgement of its address.
            .pool_max_idle_per_host(0)
            .build()
            .context("make an HTTP client for webhooks")?;
        Ok(Self { client, rules })
    }

    /// Posts a delivery; the status of the answer that took it.
    pub async fn send(
        &self,
        claimed: &Claimed,
        keys: &[String],
        now: Timestamp,
    ) -> Result<Option<u16>, Failed> {
        let Some(url) = &claimed.url else {
            return Err(Failed {
                for_good: true,
                ..Failed::now("the webhook was removed")
            });
        };
        // The rules may be others by now than when it was made.
        let url = self.rules.url(url).map_err(|fault| {
            Failed::now(format!(
                "its address is refused: it must be {}",
                fault.remedy
            ))
        })?;
        let body = body(claimed);
        let at = now.timestamp();
        let request = self
            .client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(DELIVERY, claimed.id.to_string())
            .header(TIMESTAMP, at)
            .header(SIGNATURE, signatures(keys, at, &body))
            .body(body);
        let answer = request.send().await.map_err(|error| unsent(&error))?;
        // What was connected to, whatever was resolved: the last word.
        if answer
            .remote_addr()
            .is_some_and(|at| !self.rules.permits(at.ip()))
        {
            return Err(Failed::now(format!("it is not {REMEDY}")));
        }
        let status = answer.status();
        if status.is_success() {
            return Ok(Some(status.as_u16()));
        }
        Err(Failed {
            status: Some(status.as_u16()),
            detail: format!("it answered {status}"),
            for_good: status == reqwest::StatusCode::GONE,
        })
    }
}

/// What is posted.
fn body(claimed: &Claimed) -> String {
    let mut body = json!({
        "id": claimed.id,
        "kind": claimed.kind,
        "created_at": domain::time::format(claimed.created_at),
        "data": claimed.payload,
    });
    if let (Some(name), Some(media_type), Some(content)) =
        (&claimed.file_name, &claimed.media_type, &claimed.content)
    {
        body["file"] = json!({ "name": name, "media_type": media_type, "content": content });
    }
    body.to_string()
}

/// The header: a signature by each key over the moment, a full stop and the body.
fn signatures(keys: &[String], at: i64, body: &str) -> String {
    let signed: Vec<String> = keys
        .iter()
        .map(|key| format!("v1={}", sign(key, at, body)))
        .collect();
    signed.join(",")
}

fn sign(key: &str, at: i64, body: &str) -> String {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("a key may have any length");
    mac.update(format!("{at}.").as_bytes());
    mac.update(body.as_bytes());
    hex::encode(mac.finalize().into_bytes())
}

/// Why nothing came back; never with the URL, which may hold a secret of the receiver's.
fn unsent(error: &reqwest::Error) -> Failed {
    let mut detail = match error.is_timeout() {
        true => format!("it did not answer within {} s", ANSWER_WITHIN.as_secs()),
        false => "it could not be reached".to_owned(),
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        detail = format!("{detail}: {error}");
        cause = error.source();
    }
    Failed::now(detail)
}

/// Resolves names to addresses that webhooks may have, and to nothing where one of them is not: what is connected to is
/// what was judged, so that a name which stands for something else a moment later is no way around it.
#[derive(Debug)]
struct Permitted(Arc<Webhooks>);

impl Resolve for Permitted {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = Arc::clone(&self.0);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.collect();
            match found.iter().all(|at| rules.permits(at.ip())) {
                true => Ok(Box::new(found.into_iter()) as Addrs),
                false => Err(format!("its name does not stand for {REMEDY}").into()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figure is Python's: hmac.new(b"key", b"1700000000.{}", "sha256").hexdigest().
    #[test]
    fn a_signature_is_hmac_sha_256_over_moment_and_body() {
        assert_eq!(
            signatures(&["key".to_owned()], 1_700_000_000, "{}"),
            "v1=9d713ed406bb7076d4123f0dc2c39d2df5c654ed4b0cd56b52c8b4c940bd63ae"
        );
        let both = signatures(&["new".to_owned(), "old".to_owned()], 1, "x");
        let (new, old) = both.split_once(',').expect("two");
        assert_ne!(new, old);
        assert_eq!(new, format!("v1={}", sign("new", 1, "x")));
    }
}
