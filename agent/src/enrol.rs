//! Enrolment: a machine becomes a node by a one-time token, and keeps its certificate young.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol::wire::agents_client::AgentsClient;
use protocol::wire::{EnrolRequest, RenewRequest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest as _, Sha256};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::folders::Folders;
use crate::identity::{self, Identity, IdentityError, Issued, Request};

/// Longest that a call to enrol or renew may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How the server's authority is known before anything was exchanged.
#[derive(Debug, Clone)]
pub enum Trust {
    /// By its certificate, in a file.
    File(PathBuf),
    /// By the SHA-256 of its certificate.
    Fingerprint([u8; 32]),
}

/// What a person said to enrol a machine.
#[derive(Debug, Clone)]
pub struct Enrolment {
    /// The server's address for agents.
    pub server: String,
    /// The join token.
    pub token: String,
    /// How the server is known.
    pub trust: Trust,
    /// The name that the node would like.
    pub name: String,
    /// Whether a former identity may be replaced.
    pub replace: bool,
}

/// Why a machine was not enrolled, or a certificate not renewed.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// It is a node already.
    #[error("this machine is enrolled as {node} already: add --replace to enrol it anew")]
    Already {
        /// The node's name.
        node: String,
    },
    /// The authority's file cannot be read.
    #[error("ca: {path} cannot be read")]
    Authority {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The server cannot be reached, or is not the one that is trusted.
    #[error("{server} cannot be reached")]
    Unreachable {
        /// The server.
        server: String,
        /// What the transport said.
        source: tonic::transport::Error,
    },
    /// The server takes the connection and says nothing.
    #[error("{server} does not answer")]
    Silent {
        /// The server.
        server: String,
    },
    /// The server refused.
    #[error("the server refused: {}", .0.message())]
    Refused(tonic::Status),
    /// Keys, certificates, files.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Whether a server says that the node is retired, whatever it was asked.
pub fn retired(status: &tonic::Status) -> bool {
    status
        .metadata()
        .get(protocol::REFUSAL)
        .is_some_and(|refusal| refusal == protocol::REFUSAL_RETIRED)
}

/// Enrols this machine and keeps its identity.
pub async fn enrol(folders: &Folders, enrolment: &Enrolment) -> Result<Identity, EnrolError> {
    match Identity::load(&folders.identity()) {
        Ok(former) if !enrolment.replace => {
            return Err(EnrolError::Already {
                node: former.node_name,
            });
        }
        _ => {}
    }
    let request = Request::new(&enrolment.name)?;
    let mut client =
        AgentsClient::new(connect(&enrolment.server, first_endpoint(enrolment)?).await?);
    let mut call = tonic::Request::new(EnrolRequest {
        join_token: enrolment.token.clone(),
        csr_der: request.csr_der.clone(),
        node_name: enrolment.name.clone(),
    });
    call.set_timeout(CALL_TIMEOUT);
    let reply = client
        .enrol(call)
        .await
        .map_err(EnrolError::Refused)?
        .into_inner();
    let issued = Issued {
        certificate_der: reply.certificate_der,
        ca_der: reply.ca_der,
        renew_after_seconds: reply.renew_after_seconds,
    };
    let names = (reply.node_id, reply.node_name, reply.pool);
    let identity = Identity::enrolled(&enrolment.server, names, &request, &issued);
    identity.save(&folders.identity())?;
    Ok(identity)
}

/// Exchanges the certificate for a younger one. One that has expired is shown instead of
/// used, with a request of the same key.
pub async fn renew(identity: &mut Identity, folders: &Folders) -> Result<(), EnrolError> {
    let expired = identity.expired_certificate();
    let (request, endpoint) = match &expired {
        Some(_) => (
            identity.request_with_same_key()?,
            identity.endpoint_without_certificate()?,
        ),
        None => (Request::new(&identity.node_name)?, identity.endpoint()?),
    };
    let mut client = AgentsClient::new(connect(identity.server(), endpoint).await?);
    let mut call = tonic::Request::new(RenewRequest {
        csr_der: request.csr_der.clone(),
        expired_certificate_der: expired.unwrap_or_default(),
    });
    call.set_timeout(CALL_TIMEOUT);
    let reply = client
        .renew(call)
        .await
        .map_err(EnrolError::Refused)?
        .into_inner();
    let issued = Issued {
        certificate_der: reply.certificate_der,
        ca_der: reply.ca_der,
        renew_after_seconds: reply.renew_after_seconds,
    };
    identity.take(&request, &issued);
    identity.save(&folders.identity())?;
    Ok(())
}

async fn connect(server: &str, endpoint: Endpoint) -> Result<Channel, EnrolError> {
    let server = || domain::error::quote(server);
    match tokio::time::timeout(CALL_TIMEOUT, endpoint.connect()).await {
        Ok(connected) => connected.map_err(|source| EnrolError::Unreachable {
            server: server(),
            source,
        }),
        Err(_) => Err(EnrolError::Silent { server: server() }),
    }
}

fn first_endpoint(enrolment: &Enrolment) -> Result<Endpoint, EnrolError> {
    match &enrolment.trust {
        Trust::File(path) => {
            let pem = std::fs::read(path).map_err(|source| EnrolError::Authority {
                path: path.clone(),
                source,
            })?;
            let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
            Ok(identity::endpoint(&enrolment.server, tls)?)
        }
        Trust::Fingerprint(sha256) => {
            let verifier = Arc::new(Pinned {
                sha256: *sha256,
                provider: rustls::crypto::ring::default_provider(),
            });
            Ok(identity::encrypted(&enrolment.server)?
                .tls_config_with_verifier(
                    ClientTlsConfig::new().timeout(identity::CONNECT_TIMEOUT),
                    verifier,
                )
                .map_err(|source| IdentityError::Address {
                    address: domain::error::quote(&enrolment.server),
                    source,
                })?)
        }
    }
}

/// Believes a server whose chain holds the authority with the known fingerprint, and whose
/// own certificate that authority signed for this name.
#[derive(Debug)]
struct Pinned {
    sha256: [u8; 32],
    provider: CryptoProvider,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let authority = intermediates
            .iter()
            .find(|certificate| Sha256::digest(certificate.as_ref())[..] == self.sha256[..])
            .ok_or_else(|| {
                rustls::Error::General(
                    "the server's authority is not the one with the given SHA-256".to_owned(),
                )
            })?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        rustls::client::verify_server_name(&parsed, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Reads a SHA-256 as 64 hexadecimal digits, colons allowed.
pub fn read_fingerprint(text: &str) -> Result<[u8; 32], String> {
    let digits: String = text.chars().filter(|c| *c != ':').collect();
    hex::decode(digits)
        .ok()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| {
            "64 hexadecimal digits are expected, the CA certificate's SHA-256".to_owned()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_64_digits_with_or_without_colons() {
        let plain = "ab".repeat(32);
        let colons = vec!["AB"; 32].join(":");
        assert_eq!(read_fingerprint(&plain), read_fingerprint(&colons));
        assert!(read_fingerprint("abc").is_err());
    }
}
