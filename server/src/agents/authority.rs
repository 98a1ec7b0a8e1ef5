//! The certificate authority: made at the first start, signs what agents and servers show.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context;
use domain::Timestamp;
use domain::ids::{EnrolmentId, NodeId, ReplicaId};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
    SanType,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};

use crate::store::authority::{self, AuthorityRow};
use crate::store::{self, Database};

/// Life of the authority: longer than a cluster's. A new one would mean that every node joins again.
const AUTHORITY_DAYS: i64 = 20 * 365;
/// Life of a server's own certificate, which it makes anew at each start; servers are
/// restarted for updates far more often.
const SERVER_DAYS: i64 = 3 * 365;
/// A certificate is good from so long before it is made, for clocks that are behind.
const BACKDATED_SECONDS: i64 = 3600;
/// What a node's name in a certificate begins with; the node's id and its enrolment's follow.
const NODE_PREFIX: &str = "node:";
/// What a replica's name in a certificate begins with.
const REPLICA_PREFIX: &str = "replica:";
/// The name by which replicas know one another's certificates; nothing resolves it.
pub const REPLICA_HOST: &str = "replica.allotment.internal";

/// Why a certificate was not given or not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The signing request is not one, or its signature is not by its key.
    #[error("the certificate signing request cannot be used: {0}")]
    Request(#[source] rcgen::Error),
    /// The certificate is not one.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// Another authority signed the certificate.
    #[error("the certificate was not signed by this authority")]
    Foreign,
    /// The certificate names neither a node nor a replica.
    #[error("the certificate names no node")]
    Nameless,
    /// The request is for another key than the certificate's.
    #[error("the signing request is for another key than the certificate's")]
    OtherKey,
    /// Signing failed.
    #[error("sign a certificate")]
    Sign(#[source] rcgen::Error),
}

/// The authority, ready to sign. Cheap to clone.
#[derive(Clone)]
pub struct Authority {
    inner: Arc<Inner>,
}

struct Inner {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// A certificate with its chain and key, as PEM.
pub struct Identity {
    /// The certificate, then the authority's own, so that who enrols may know the authority by
    /// its SHA-256 alone.
    pub chain_pem: String,
    /// The key.
    pub key_pem: String,
}

/// A node's certificate as it was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCertificate {
    /// The node that it names.
    pub node_id: NodeId,
    /// The enrolment that it was given for.
    pub enrolment_id: EnrolmentId,
    /// When it stops being good.
    pub not_after: Timestamp,
}

impl Authority {
    /// Reads the authority, or makes it where there is none yet.
    pub async fn open(db: &Database) -> anyhow::Result<Self> {
        let mut tx = db.begin_system().await.context("open the authority")?;
        let row = match authority::find(&mut tx).await? {
            Some(row) => row,
            None => {
                let now = store::clock(&mut tx).await?;
                authority::insert(&mut tx, &make(now)?).await?;
                authority::find(&mut tx)
                    .await?
                    .context("the authority was written and is not there")?
            }
        };
        tx.commit().await.context("open the authority")?;
        Self::load(&row)
    }

    fn load(row: &AuthorityRow) -> anyhow::Result<Self> {
        let certificate = CertificateDer::from(row.certificate_der.clone());
        let key = KeyPair::try_from(row.key_der.as_slice()).context("read the authority's key")?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .context("read the authority's certificate")?;
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(certificate.clone())
            .context("trust the authority")?;
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
            .build()
            .context("build the verifier of certificates")?;
        Ok(Self {
            inner: Arc::new(Inner {
                certificate,
                issuer,
                verifier,
            }),
        })
    }

    /// The authority's certificate.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.inner.certificate
    }

    /// The same as PEM.
    pub fn pem(&self) -> String {
        // Lines end as openssl writes them.
        let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
        let certificate = pem::Pem::new("CERTIFICATE", self.inner.certificate.to_vec());
        pem::encode_config(&certificate, lines)
    }

    /// The SHA-256 of the certificate, in hexadecimal, by which an agent may know it.
    pub fn sha256(&self) -> String {
        hex::encode(Sha256::digest(&self.inner.certificate))
    }

    /// A certificate for the listener that agents call, good for `names`.
    pub fn issue_server(&self, names: &[String], now: Timestamp) -> anyhow::Result<Identity> {
        let mut params = params("allotment-server", now, SERVER_DAYS * 86_400)?;
        params.subject_alt_names = names
            .iter()
            .map(|name| {
                Ok(match name.parse::<IpAddr>() {
                    Ok(address) => SanType::IpAddress(address),
                    Err(_) => SanType::DnsName(
                        name.as_str()
                            .try_into()
                            .with_context(|| format!("server name {name:?}"))?,
                    ),
                })
            })
            .collect::<anyhow::Result<_>>()?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue_own(&params)
    }

    /// A certificate with which replicas call and answer one another.
    pub fn issue_replica(&self, replica: ReplicaId, now: Timestamp) -> anyhow::Result<Identity> {
        let name = format!("{REPLICA_PREFIX}{replica}");
        let mut params = params(&name, now, SERVER_DAYS * 86_400)?;
        params.subject_alt_names = vec![
            SanType::DnsName(REPLICA_HOST.try_into().context("the replicas' name")?),
            SanType::URI(name.try_into().context("a replica's name")?),
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        self.issue_own(&params)
    }

    fn issue_own(&self, params: &CertificateParams) -> anyhow::Result<Identity> {
        let key = KeyPair::generate().context("make a key")?;
        let certificate = params
            .signed_by(&key, &self.inner.issuer)
            .context("sign a certificate")?;
        Ok(Identity {
            chain_pem: format!("{}{}", certificate.pem(), self.pem()),
            key_pem: key.serialize_pem(),
        })
    }

    /// A node's certificate for the key of a signing request. Of the request only the key is
    /// used: what it wants to be called counts for nothing.
    pub fn issue_node(
        &self,
        csr_der: &[u8],
        (node, enrolment): (NodeId, EnrolmentId),
        now: Timestamp,
        seconds: i64,
    ) -> Result<Vec<u8>, AuthorityError> {
        let request = read_request(csr_der)?;
        let name = format!("{NODE_PREFIX}{node}:{enrolment}");
        let mut params = params(&name, now, seconds).map_err(AuthorityError::Sign)?;
        params.subject_alt_names =
            vec![SanType::URI(name.try_into().map_err(AuthorityError::Sign)?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params
            .signed_by(&request.public_key, &self.inner.issuer)
            .map_err(AuthorityError::Sign)?;
        Ok(certificate.der().to_vec())
    }

    /// Reads a node's certificate that this authority signed, whether or not it has expired.
    pub fn check_node(&self, certificate: &[u8]) -> Result<NodeCertificate, AuthorityError> {
        let (name, not_after) = self.check(certificate)?;
        let ids = name
            .strip_prefix(NODE_PREFIX)
            .and_then(|ids| ids.split_once(':'));
        let (node_id, enrolment_id) = ids
            .and_then(|(node, enrolment)| Some((node.parse().ok()?, enrolment.parse().ok()?)))
            .ok_or(AuthorityError::Nameless)?;
        Ok(NodeCertificate {
            node_id,
            enrolment_id,
            not_after,
        })
    }

    /// Whether a certificate is a replica's.
    pub fn check_replica(&self, certificate: &[u8]) -> Result<(), AuthorityError> {
        let (name, _) = self.check(certificate)?;
        name.strip_prefix(REPLICA_PREFIX)
            .and_then(|id| id.parse::<ReplicaId>().ok())
            .map(|_| ())
            .ok_or(AuthorityError::Nameless)
    }

    /// Checks that a signing request is for the key of a certificate: its own signature then
    /// proves that who made it holds that key.
    pub fn check_same_key(&self, csr_der: &[u8], certificate: &[u8]) -> Result<(), AuthorityError> {
        let request = read_request(csr_der)?;
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
            .map_err(|_| AuthorityError::Unreadable)?;
        if parsed.public_key().subject_public_key.data.as_ref() == request.public_key.der_bytes() {
            Ok(())
        } else {
            Err(AuthorityError::OtherKey)
        }
    }

    /// The name in a certificate that this authority signed, and its end.
    fn check(&self, certificate: &[u8]) -> Result<(String, Timestamp), AuthorityError> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
            .map_err(|_| AuthorityError::Unreadable)?;
        let end = parsed.validity().not_after.timestamp();
        // Judged at its last moment, so that only the signature is judged here: what its age
        // means depends on the call.
        let moment = std::time::Duration::from_secs(u64::try_from(end).unwrap_or(0));
        self.inner
            .verifier
            .verify_client_cert(
                &CertificateDer::from(certificate),
                &[],
                UnixTime::since_unix_epoch(moment),
            )
            .map_err(|_| AuthorityError::Foreign)?;
        let name = parsed
            .subject_alternative_name()
            .ok()
            .flatten()
            .and_then(|names| {
                names
                    .value
                    .general_names
                    .iter()
                    .find_map(|name| match name {
                        x509_parser::extensions::GeneralName::URI(uri) => Some((*uri).to_owned()),
                        _ => None,
                    })
            })
            .ok_or(AuthorityError::Nameless)?;
        let not_after = Timestamp::from_timestamp(end, 0).ok_or(AuthorityError::Unreadable)?;
        Ok((name, not_after))
    }
}

/// Makes an authority.
fn make(now: Timestamp) -> anyhow::Result<AuthorityRow> {
    let key = KeyPair::generate().context("make the authority's key")?;
    let mut params = params("Allotment CA", now, AUTHORITY_DAYS * 86_400)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params
        .self_signed(&key)
        .context("sign the authority's certificate")?;
    Ok(AuthorityRow {
        certificate_der: certificate.der().to_vec(),
        key_der: key.serialize_der(),
    })
}

fn params(name: &str, now: Timestamp, seconds: i64) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    params.use_authority_key_identifier_extension = true;
    let at = |time: i64| {
        let seconds = u64::try_from(time).unwrap_or(0);
        rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds)
    };
    params.not_before = at(now.timestamp() - BACKDATED_SECONDS);
    params.not_after = at(now.timestamp() + seconds);
    Ok(params)
}

fn read_request(csr_der: &[u8]) -> Result<CertificateSigningRequestParams, AuthorityError> {
    CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(csr_der))
        .map_err(AuthorityError::Request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> Authority {
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        let now = Timestamp::from_timestamp(1_790_000_000, 0).expect("a time");
        Authority::load(&make(now).expect("an authority")).expect("loads")
    }

    fn ids() -> (NodeId, EnrolmentId) {
        (NodeId::new(), EnrolmentId::new())
    }

    fn request(key: &KeyPair) -> Vec<u8> {
        let params = CertificateParams::new(vec!["root.example".to_owned()]).expect("params");
        params.serialize_request(key).expect("a CSR").der().to_vec()
    }

    #[test]
    fn a_node_is_called_what_the_authority_says_and_not_what_it_asks_for() {
        let authority = authority();
        let key = KeyPair::generate().expect("a key");
        let (node, enrolment) = (NodeId::new(), EnrolmentId::new());
        let now = Timestamp::from_timestamp(1_790_000_000, 0).expect("a time");
        let der = authority
            .issue_node(&request(&key), (node, enrolment), now, 86_400)
            .expect("a certificate");
        let read = authority.check_node(&der).expect("its own");
        assert_eq!((read.node_id, read.enrolment_id), (node, enrolment));
        assert_eq!((read.not_after - now).num_seconds(), 86_400);
        assert!(!String::from_utf8_lossy(&der).contains("root.example"));
        assert!(authority.check_replica(&der).is_err());
    }

    #[test]
    fn another_authoritys_certificate_is_foreign() {
        let key = KeyPair::generate().expect("a key");
        let now = Timestamp::from_timestamp(1_790_000_000, 0).expect("a time");
        let der = authority()
            .issue_node(&request(&key), ids(), now, 86_400)
            .expect("a certificate");
        assert!(matches!(
            authority().check_node(&der),
            Err(AuthorityError::Foreign)
        ));
        assert!(matches!(
            authority().check_node(b"junk"),
            Err(AuthorityError::Unreadable)
        ));
    }

    #[test]
    fn a_request_for_another_key_does_not_renew_a_certificate() {
        let authority = authority();
        let (key, other) = (
            KeyPair::generate().expect("a key"),
            KeyPair::generate().expect("a key"),
        );
        let now = Timestamp::from_timestamp(1_790_000_000, 0).expect("a time");
        let der = authority
            .issue_node(&request(&key), ids(), now, 1)
            .expect("a certificate");
        assert!(authority.check_same_key(&request(&key), &der).is_ok());
        assert!(matches!(
            authority.check_same_key(&request(&other), &der),
            Err(AuthorityError::OtherKey)
        ));
    }
}
