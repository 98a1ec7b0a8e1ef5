//! Who this node is: its key, its certificate, and the authority that it trusts, in one
//! file that is replaced as a whole.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde::{Deserialize, Serialize};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::files::{self, Durability};

/// Longest wait for a connection, and again for its TLS handshake: a server that takes
/// connections and says nothing must not hold a node for ever.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a silent connection is tried, and how long the answer may take: a link that is
/// cut without a word is noticed well within a lease.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A node's identity.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    /// The server's address for agents, as it was at enrolment.
    server: String,
    /// Where the server is now, when the settings say so; never written.
    #[serde(skip)]
    moved_to: Option<String>,
    /// The node's id.
    pub node_id: String,
    /// Its name.
    pub node_name: String,
    /// Its pool.
    pub pool: String,
    /// Its private key.
    key_pem: String,
    /// Its certificate.
    certificate_pem: String,
    /// The authority whose servers it believes.
    ca_pem: String,
    /// When the certificate came, in seconds since 1970 by our own clock.
    received_at: u64,
    /// When to ask for the next one, counted from then.
    renew_after_seconds: u64,
}

/// What went wrong with keys and certificates.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// There is none.
    #[error("this machine is not enrolled: run `allotment-agent enrol` with a join token first")]
    NotEnrolled,
    /// The file cannot be read or written.
    #[error("the node's identity cannot be read or written")]
    File(#[from] std::io::Error),
    /// A key or request could not be made.
    #[error("the node's key cannot be made or read")]
    Key(#[from] rcgen::Error),
    /// The address of the server is not one.
    #[error(
        "server: {address} is refused: an address such as https://control.example:8443 is expected"
    )]
    Address {
        /// The address.
        address: String,
        /// What was wrong.
        source: tonic::transport::Error,
    },
    /// It is an address of another kind of connection.
    #[error(
        "server: {address} is refused: what is said there could be read by others on the way; write it with https://"
    )]
    Unencrypted {
        /// The address.
        address: String,
    },
}

/// A certificate as the server handed it out.
pub struct Issued {
    /// The certificate.
    pub certificate_der: Vec<u8>,
    /// The authority.
    pub ca_der: Vec<u8>,
    /// When to ask for the next one.
    pub renew_after_seconds: i64,
}

/// A new key with the request to certify it.
pub struct Request {
    key: KeyPair,
    /// The request.
    pub csr_der: Vec<u8>,
}

impl Request {
    /// Makes a key and a request for it. The name is a wish: the server decides.
    pub fn new(name: &str) -> Result<Self, IdentityError> {
        Self::of(KeyPair::generate()?, name)
    }

    fn of(key: KeyPair, name: &str) -> Result<Self, IdentityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let csr_der = params.serialize_request(&key)?.der().to_vec();
        Ok(Self { key, csr_der })
    }
}

impl Identity {
    /// Makes the identity of a machine that has just enrolled.
    pub fn enrolled(
        server: &str,
        names: (String, String, String),
        request: &Request,
        issued: &Issued,
    ) -> Self {
        let (node_id, node_name, pool) = names;
        let mut identity = Self {
            server: server.to_owned(),
            moved_to: None,
            node_id,
            node_name,
            pool,
            key_pem: String::new(),
            certificate_pem: String::new(),
            ca_pem: String::new(),
            received_at: 0,
            renew_after_seconds: 0,
        };
        identity.take(request, issued);
        identity
    }

    /// The server's address for agents.
    pub fn server(&self) -> &str {
        self.moved_to.as_ref().unwrap_or(&self.server)
    }

    /// Looks for the server at another address than that of the enrolment. It is still
    /// believed only with a certificate of the same authority.
    pub fn look_at(&mut self, server: String) -> Result<(), IdentityError> {
        self.moved_to = Some(server);
        self.endpoint().map(drop)
    }

    /// Takes over a newer certificate with its key.
    pub fn take(&mut self, request: &Request, issued: &Issued) {
        self.key_pem = request.key.serialize_pem();
        self.certificate_pem = pem(&issued.certificate_der);
        self.ca_pem = pem(&issued.ca_der);
        self.received_at = now_seconds();
        self.renew_after_seconds = u64::try_from(issued.renew_after_seconds).unwrap_or_default();
    }

    /// Reads it.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        files::read_json(path)?.ok_or(IdentityError::NotEnrolled)
    }

    /// Writes it so that it survives a power loss.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        Ok(files::write_json(path, self, Durability::Synced)?)
    }

    /// How long until the next certificate is to be asked for; nothing when it is due, or
    /// when the clock was set back behind the day it came.
    pub fn renew_in(&self) -> Duration {
        let age = now_seconds().checked_sub(self.received_at);
        age.map_or(Duration::ZERO, |age| {
            Duration::from_secs(self.renew_after_seconds.saturating_sub(age))
        })
    }

    /// The certificate, when its time is over.
    pub fn expired_certificate(&self) -> Option<Vec<u8>> {
        let der = self.certificate_der()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
        let until = certificate.validity().not_after.timestamp();
        (i64::try_from(now_seconds()).ok()? >= until).then(|| der.clone())
    }

    /// A request for the key that the node has, which proves that it is the same node.
    pub fn request_with_same_key(&self) -> Result<Request, IdentityError> {
        Request::of(KeyPair::from_pem(&self.key_pem)?, &self.node_name)
    }

    fn certificate_der(&self) -> Option<Vec<u8>> {
        let certificate = pem::parse(&self.certificate_pem).ok()?;
        Some(certificate.into_contents())
    }

    /// The way to the server, as this node.
    pub fn endpoint(&self) -> Result<Endpoint, IdentityError> {
        let tls = self.trust().identity(tonic::transport::Identity::from_pem(
            &self.certificate_pem,
            &self.key_pem,
        ));
        self.connect(tls)
    }

    /// The way to the server, as nobody: for a node whose certificate has expired.
    pub fn endpoint_without_certificate(&self) -> Result<Endpoint, IdentityError> {
        self.connect(self.trust())
    }

    fn trust(&self) -> ClientTlsConfig {
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.ca_pem))
    }

    fn connect(&self, tls: ClientTlsConfig) -> Result<Endpoint, IdentityError> {
        endpoint(self.server(), tls)
    }
}

/// The way to a server at an address.
pub fn endpoint(server: &str, tls: ClientTlsConfig) -> Result<Endpoint, IdentityError> {
    encrypted(server)?
        .tls_config(tls.timeout(CONNECT_TIMEOUT))
        .map_err(|source| IdentityError::Address {
            address: domain::error::quote(server),
            source,
        })
}

/// The way to an address that can be reached by TLS only, with the bounds that every connection of
/// ours has. Whatever TLS is configured, the transport does without for `http`.
pub fn encrypted(server: &str) -> Result<Endpoint, IdentityError> {
    let endpoint =
        Endpoint::from_shared(server.to_owned()).map_err(|source| IdentityError::Address {
            address: domain::error::quote(server),
            source,
        })?;
    if endpoint.uri().scheme_str() != Some("https") {
        return Err(IdentityError::Unencrypted {
            address: domain::error::quote(server),
        });
    }
    Ok(settle(endpoint))
}

fn settle(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
}

/// A certificate in DER as PEM.
fn pem(der: &[u8]) -> String {
    let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new("CERTIFICATE", der), lines)
}

fn now_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |age| age.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued(days: i32) -> (Request, Issued) {
        let request = Request::new("n1").expect("a request");
        let mut params = CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(2000 + days, 1, 1);
        let certificate = params.self_signed(&request.key).expect("a certificate");
        let issued = Issued {
            certificate_der: certificate.der().to_vec(),
            ca_der: certificate.der().to_vec(),
            renew_after_seconds: 100,
        };
        (request, issued)
    }

    fn identity(days: i32) -> Identity {
        let (request, issued) = issued(days);
        let names = ("id".to_owned(), "n1".to_owned(), "h100".to_owned());
        Identity::enrolled("https://127.0.0.1:1", names, &request, &issued)
    }

    #[test]
    fn a_certificate_is_renewed_in_time_or_when_the_clock_was_set_back() {
        let mut identity = identity(90);
        assert!(identity.renew_in() > Duration::from_secs(90));
        identity.received_at -= 100;
        assert_eq!(identity.renew_in(), Duration::ZERO);
        identity.received_at = now_seconds() + 1000;
        assert_eq!(identity.renew_in(), Duration::ZERO);
    }

    #[test]
    fn another_address_is_looked_at_and_not_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("identity.json");
        let mut moved = identity(90);
        let refused = moved.look_at("not an address".to_owned());
        assert!(matches!(refused, Err(IdentityError::Address { .. })));
        for plain in ["http://127.0.0.1:2", "127.0.0.1:2", "ftp://127.0.0.1:2"] {
            let refused = moved.look_at(plain.to_owned()).expect_err("refused");
            let words = refused.to_string();
            assert!(
                words.contains(plain) && words.contains("https://"),
                "{words}"
            );
        }
        moved
            .look_at("https://127.0.0.1:2".to_owned())
            .expect("an address");
        assert_eq!(moved.server(), "https://127.0.0.1:2");
        moved.save(&path).expect("saved");
        let read = Identity::load(&path).expect("read");
        assert_eq!(read.server(), "https://127.0.0.1:1");
    }

    #[test]
    fn an_expired_certificate_is_known_as_such() {
        assert!(identity(1).expired_certificate().is_some());
        assert!(identity(90).expired_certificate().is_none());
    }

    #[test]
    fn an_identity_is_read_back_and_closed_to_others() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("identity.json");
        assert!(matches!(
            Identity::load(&path),
            Err(IdentityError::NotEnrolled)
        ));
        identity(90).save(&path).expect("saved");
        let mode = path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let read = Identity::load(&path).expect("read");
        assert!(read.endpoint().is_ok());
        assert!(read.request_with_same_key().is_ok());
    }
}
