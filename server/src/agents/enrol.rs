//! Enrolment and renewal: a token or a certificate is exchanged for a younger certificate.

use std::time::Instant;

use domain::Timestamp;
use domain::error::quote;
use domain::ids::{EnrolmentId, NodeId};
use domain::name::Name;
use domain::state::{NodeIntent, Reachability};
use protocol::wire;
use serde_json::json;
use sha2::{Digest, Sha256};
use tonic::Status;
use tonic::metadata::MetadataValue;

use super::authority::{Authority, AuthorityError, NodeCertificate};
use super::refusals::Refusals;
use crate::app::App;
use crate::store::events::{self, Actor, NewEvent, Subject};
use crate::store::join_tokens::JoinToken;
use crate::store::nodes::NodeRow;
use crate::store::{self, Tx, assignments, audit, join_tokens, nodes};

/// How long after its end a certificate may still be exchanged, for a node that was cut off.
const EXPIRED_SECONDS_MAX: i64 = 30 * 86_400;
/// A certificate is renewed at this part of its life.
const RENEW_AT: i64 = 2;
/// Longest certificate or signing request that is looked at, in bytes; a real one has a few hundred.
const DER_BYTES_MAX: usize = 16 * 1024;

/// Names that the API has another use for in the place of a node's.
const RESERVED_NAMES: [&str; 1] = ["join-tokens"];

/// Why a machine was refused.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// What it sent cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// It may not.
    #[error("{0}")]
    Denied(String),
    /// The node is retired: its agent is to end.
    #[error("node {0} is retired: enrol this machine again, under another name")]
    Retired(String),
    /// The name is another machine's.
    #[error("{0}")]
    Taken(String),
    /// The database was away or refused.
    #[error("the database does not answer")]
    Database(#[from] sqlx::Error),
}

impl From<AuthorityError> for EnrolError {
    fn from(error: AuthorityError) -> Self {
        match error {
            AuthorityError::Request(_) | AuthorityError::Unreadable => {
                Self::Invalid(error.to_string())
            }
            _ => Self::Denied(error.to_string()),
        }
    }
}

impl From<EnrolError> for Status {
    fn from(error: EnrolError) -> Self {
        match error {
            EnrolError::Invalid(message) => Self::invalid_argument(message),
            EnrolError::Denied(message) => Self::permission_denied(message),
            EnrolError::Retired(_) => {
                let mut status = Self::permission_denied(error.to_string());
                status.metadata_mut().insert(
                    protocol::REFUSAL,
                    MetadataValue::from_static(protocol::REFUSAL_RETIRED),
                );
                status
            }
            EnrolError::Taken(message) => Self::already_exists(message),
            EnrolError::Database(error) => {
                tracing::warn!(%error, "an enrolment or renewal failed: the database refused or was away");
                Self::unavailable("the control plane cannot answer now: try again")
            }
        }
    }
}

/// The SHA-256 under which a join token is kept.
pub fn token_hash(token: &str) -> Vec<u8> {
    Sha256::digest(token.as_bytes()).to_vec()
}

/// Exchanges a one-time token for a certificate, and makes the node. A second use of a token,
/// and any other refusal, leaves an audit row, up to a bound.
pub async fn enrol(
    app: &App,
    authority: &Authority,
    refusals: &Refusals,
    request: wire::EnrolRequest,
) -> Result<wire::EnrolReply, EnrolError> {
    if request.csr_der.len() > DER_BYTES_MAX {
        return Err(EnrolError::Invalid("csr_der is too long".into()));
    }
    let name: Name = request.node_name.parse().map_err(|_| {
        EnrolError::Invalid(format!(
            "node_name: {:?} is refused: 1 to 63 of a-z, 0-9, '-', '_' and '.'; choose one with --name",
            quote(&request.node_name)
        ))
    })?;
    if RESERVED_NAMES.contains(&name.as_str()) {
        return Err(EnrolError::Invalid(format!(
            "node_name: {name} is reserved: choose another with --name"
        )));
    }
    let mut tx = app.db.begin_system().await?;
    let outcome = admit(&mut tx, app, authority, &request, &name).await;
    match outcome {
        Ok(reply) => {
            tx.commit().await?;
            app.wake.all();
            tracing::info!(node.id = %reply.node_id, node = %name, pool = %reply.pool, "node enrolled");
            Ok(reply)
        }
        Err(EnrolError::Database(error)) => Err(error.into()),
        Err(refusal) => {
            tx.rollback().await?;
            write_down(app, refusals, &name, &refusal).await?;
            Err(refusal)
        }
    }
}

async fn write_down(
    app: &App,
    refusals: &Refusals,
    name: &Name,
    refusal: &EnrolError,
) -> Result<(), EnrolError> {
    metrics::counter!("allotment_enrolments_refused").increment(1);
    let Some(unwritten) = refusals.note(Instant::now()) else {
        return Ok(());
    };
    let reason = match unwritten {
        0 => refusal.to_string(),
        n => format!("{refusal} ({n} refusals before this one were counted and not written down)"),
    };
    let object = format!("node/{name}");
    let mut tx = app.db.begin_system().await?;
    audit::insert_of_agent(
        &mut tx,
        name.as_str(),
        "enrol_node",
        &object,
        "denied",
        &reason,
    )
    .await?;
    tx.commit().await?;
    tracing::warn!(node = %name, %reason, "enrolment refused");
    Ok(())
}

async fn admit(
    tx: &mut Tx,
    app: &App,
    authority: &Authority,
    request: &wire::EnrolRequest,
    name: &Name,
) -> Result<wire::EnrolReply, EnrolError> {
    let denied = || {
        EnrolError::Denied(
            "the join token is unknown, used or expired: ask an operator for another".into(),
        )
    };
    let token = join_tokens::lock_by_secret(tx, &token_hash(&request.join_token))
        .await?
        .ok_or_else(denied)?;
    let now = store::clock(tx).await?;
    if token.used_at.is_some() || token.expires_at <= now {
        return Err(denied());
    }
    let enrolment = EnrolmentId::new();
    let node_id = match nodes::lock_by_name(tx, name.as_str()).await? {
        None => {
            let id = NodeId::new();
            if !nodes::insert(tx, id, name.as_str(), token.pool_id, enrolment).await? {
                return Err(taken(name));
            }
            note_joined(tx, id, name).await?;
            id
        }
        Some(node) => {
            check_vacant(tx, &node, &token).await?;
            nodes::enrol_anew(tx, node.id, enrolment).await?;
            node.id
        }
    };
    if !join_tokens::spend(tx, token.id, node_id).await? {
        return Err(denied());
    }
    let seconds = app.config.agents.certificate_seconds;
    let ids = (node_id, enrolment);
    let certificate_der = authority.issue_node(&request.csr_der, ids, now, seconds)?;
    let object = format!("node/{name}");
    audit::insert_of_agent(tx, name.as_str(), "enrol_node", &object, "done", "").await?;
    Ok(wire::EnrolReply {
        certificate_der,
        ca_der: authority.der().to_vec(),
        node_id: node_id.to_string(),
        node_name: name.to_string(),
        pool: token.pool,
        renew_after_seconds: seconds / RENEW_AT,
    })
}

/// Lets a machine that was installed anew take its old place where nobody can sit there any more:
/// nobody was ever heard of, or the node is lost and nothing is waited for on it. One that is
/// merely out of reach may run on, and come back.
async fn check_vacant(tx: &mut Tx, node: &NodeRow, token: &JoinToken) -> Result<(), EnrolError> {
    let name = &node.name;
    if node.pool_id != token.pool_id || node.intent == NodeIntent::Retired {
        return Err(EnrolError::Taken(format!(
            "node_name: {name:?} is another machine's, or was retired: choose another with --name"
        )));
    }
    let never_heard = node.last_heartbeat_at.is_none();
    let lost = node.reachability == Reachability::Lost;
    if never_heard || (lost && assignments::live_on_node(tx, node.id).await?.is_empty()) {
        return Ok(());
    }
    Err(EnrolError::Taken(format!(
        "node_name: {name:?} is a machine's that may still run: choose another with --name, or, if \
         this is the same machine, have an operator declare the node lost first \
         (POST /api/v1/nodes/{name}/declare-lost)"
    )))
}

fn taken(name: &Name) -> EnrolError {
    EnrolError::Taken(format!(
        "node_name: {name:?} was taken by another machine just now: choose another with --name",
        name = name.as_str()
    ))
}

async fn note_joined(tx: &mut Tx, id: NodeId, name: &Name) -> Result<(), sqlx::Error> {
    let event = NewEvent {
        subject: Subject::Node(id),
        job: None,
        node_id: Some(id),
        from: None,
        to: Reachability::Unreachable.as_str(),
        actor: &Actor::Agent(name.to_string()),
        reason: "enrolled",
        data: json!({}),
    };
    events::insert(tx, &event).await
}

/// Exchanges a certificate for a younger one: the one that the connection was made with, or,
/// for a node that was cut off, an expired one that is shown with a request for the same key.
pub async fn renew(
    app: &App,
    authority: &Authority,
    peer: Option<&[u8]>,
    request: &wire::RenewRequest,
) -> Result<wire::RenewReply, EnrolError> {
    if request.csr_der.len() > DER_BYTES_MAX
        || request.expired_certificate_der.len() > DER_BYTES_MAX
    {
        return Err(EnrolError::Invalid(
            "csr_der or expired_certificate_der is too long".into(),
        ));
    }
    let shown = match peer {
        Some(certificate) => certificate,
        None if request.expired_certificate_der.is_empty() => {
            return Err(EnrolError::Denied(
                "show a certificate, or an expired one in expired_certificate_der".into(),
            ));
        }
        None => {
            let certificate = request.expired_certificate_der.as_slice();
            authority.check_same_key(&request.csr_der, certificate)?;
            certificate
        }
    };
    let certificate = authority.check_node(shown)?;
    let mut tx = app.db.begin_system().await?;
    let now = store::clock(&mut tx).await?;
    let latest = certificate.not_after + chrono::TimeDelta::seconds(EXPIRED_SECONDS_MAX);
    if now > latest {
        return Err(EnrolError::Denied(
            "the certificate expired more than 30 days ago: enrol the node again".into(),
        ));
    }
    check_known(&mut tx, &certificate).await?;
    let seconds = app.config.agents.certificate_seconds;
    let ids = (certificate.node_id, certificate.enrolment_id);
    let certificate_der = authority.issue_node(&request.csr_der, ids, now, seconds)?;
    tx.commit().await?;
    tracing::info!(node.id = %certificate.node_id, "certificate renewed");
    Ok(wire::RenewReply {
        certificate_der,
        ca_der: authority.der().to_vec(),
        renew_after_seconds: seconds / RENEW_AT,
    })
}

/// Lets a connection begin with a certificate that is good now, of a node that is not retired.
/// Returns the node and how long the certificate stays good.
pub async fn check_connection(
    app: &App,
    authority: &Authority,
    peer: Option<&[u8]>,
) -> Result<(NodeCertificate, std::time::Duration), EnrolError> {
    let peer = peer.ok_or_else(|| {
        EnrolError::Denied("a connection needs the node's certificate: enrol first".into())
    })?;
    let certificate = authority.check_node(peer)?;
    let mut tx = app.db.begin_system().await?;
    let now: Timestamp = store::clock(&mut tx).await?;
    let Ok(left) = (certificate.not_after - now).to_std() else {
        return Err(EnrolError::Denied(
            "the certificate has expired: renew it first".into(),
        ));
    };
    check_known(&mut tx, &certificate).await?;
    tx.commit().await?;
    Ok((certificate, left))
}

/// Lets a certificate count whose node is not retired and was not enrolled anew since.
async fn check_known(tx: &mut Tx, certificate: &NodeCertificate) -> Result<(), EnrolError> {
    let id = certificate.node_id;
    let node = nodes::lock(tx, id).await?;
    let Some(node) = node else {
        return Err(EnrolError::Denied(
            "the node is unknown: enrol it again".into(),
        ));
    };
    if node.intent == NodeIntent::Retired {
        return Err(EnrolError::Retired(node.name));
    }
    if nodes::voice(tx, id).await?.enrolment_id == certificate.enrolment_id {
        return Ok(());
    }
    Err(EnrolError::Denied(format!(
        "another machine has enrolled as {} since: enrol this one again, under another name",
        node.name
    )))
}
