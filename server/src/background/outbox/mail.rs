//! E-mail: made header by header, so that no name or reason in one begins another, and sent by SMTP.

use std::time::Duration;

use anyhow::Context;
use lettre::message::header::ContentType;
use lettre::message::{Attachment, Mailbox, MultiPart, SinglePart};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::{Address, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};

use super::{Failed, words};
use crate::config::{Mail, MailSecurity};
use crate::store::outbox::Claimed;

/// A mail server answers each command within this.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// A message is taken within this, whatever its server does between commands.
const SENT_WITHIN: Duration = Duration::from_secs(60);
/// Largest file of certificates or of a password that is read; both are far smaller.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// What sends e-mail, where a mail server is configured.
#[derive(Debug)]
pub struct Mailer(Option<Sender>);

#[derive(Debug)]
struct Sender {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
}

impl Mailer {
    /// Makes one by the configuration; files that it names are read now.
    pub fn new(config: &Mail) -> anyhow::Result<Self> {
        let Some(host) = &config.host else {
            return Ok(Self(None));
        };
        let from = config.from.as_deref().unwrap_or_default();
        let from = from.parse().with_context(|| {
            format!("mail.from {from:?}: an address such as Allotment <allotment@example.com>")
        })?;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host)
            .port(config.port())
            .timeout(Some(ANSWER_WITHIN))
            .tls(tls(config, host)?);
        if let (Some(username), Some(file)) = (&config.username, &config.password_file) {
            let password = read("mail.password_file", file)?;
            let password = password.lines().next().unwrap_or_default().to_owned();
            builder = builder.credentials(Credentials::new(username.clone(), password));
        }
        let transport = builder.build();
        Ok(Self(Some(Sender { transport, from })))
    }

    /// Sends a delivery; there is no status to tell.
    pub async fn send(&self, address: &str, claimed: &Claimed) -> Result<Option<u16>, Failed> {
        let Some(sender) = &self.0 else {
            return Err(Failed::now(
                "no mail server is configured: set host and from under mail in the server's configuration",
            ));
        };
        let message = message(&sender.from, address, claimed).map_err(|error| Failed {
            for_good: true,
            ..Failed::now(format!("no message could be made: {error:#}"))
        })?;
        let sent = tokio::time::timeout(SENT_WITHIN, sender.transport.send(message)).await;
        let sent = sent.map_err(|_| {
            Failed::now(format!(
                "the mail server had not taken it within {} s",
                SENT_WITHIN.as_secs()
            ))
        })?;
        sent.map(|_| None).map_err(|error| Failed {
            for_good: error.is_permanent(),
            ..Failed::now(format!("the mail server did not take it: {error}"))
        })
    }
}

fn tls(config: &Mail, host: &str) -> anyhow::Result<Tls> {
    if config.security == MailSecurity::None {
        return Ok(Tls::None);
    }
    let mut parameters = TlsParameters::builder(host.to_owned());
    if let Some(file) = &config.authorities_file {
        let text = read("mail.authorities_file", file)?;
        for one in pem::parse_many(&text).context("mail.authorities_file: PEM")? {
            let one = Certificate::from_der(one.into_contents());
            parameters = parameters.add_root_certificate(one.context("mail.authorities_file")?);
        }
    }
    let parameters = parameters
        .build_rustls()
        .context("prepare TLS for the mail server")?;
    Ok(match config.security {
        MailSecurity::Tls => Tls::Wrapper(parameters),
        _ => Tls::Required(parameters),
    })
}

fn read(field: &str, file: &std::path::Path) -> anyhow::Result<String> {
    let place = || format!("{field} {}", file.display());
    let bytes = std::fs::metadata(file).with_context(place)?.len();
    anyhow::ensure!(
        bytes <= FILE_BYTES_MAX,
        "{}: larger than {FILE_BYTES_MAX} bytes",
        place()
    );
    std::fs::read_to_string(file).with_context(place)
}

/// Makes the message. Its id is the delivery's in each try, by which a mailbox may tell that it has had it.
fn message(from: &Mailbox, address: &str, claimed: &Claimed) -> anyhow::Result<Message> {
    let to: Address = address.parse().context("its address")?;
    let told = words::of(claimed);
    let builder = Message::builder()
        .from(from.clone())
        .to(Mailbox::new(None, to))
        .subject(told.subject)
        .message_id(Some(format!("<{}@allotment>", claimed.id)));
    let text = SinglePart::plain(told.text);
    let (Some(name), Some(kind), Some(content)) =
        (&claimed.file_name, &claimed.media_type, &claimed.content)
    else {
        return Ok(builder.singlepart(text)?);
    };
    let kind = ContentType::parse(kind).context("the type of its file")?;
    let file = Attachment::new(name.clone()).body(content.clone(), kind);
    Ok(builder.multipart(MultiPart::mixed().singlepart(text).singlepart(file))?)
}

#[cfg(test)]
mod tests {
    use domain::ids::{DeliveryId, TeamId};
    use domain::notice::DeliveryKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn no_name_in_a_message_begins_a_header_of_its_own() {
        let claimed = Claimed {
            id: DeliveryId::new(),
            team_id: TeamId::new(),
            kind: DeliveryKind::JobEnded,
            email: None,
            webhook_id: None,
            url: None,
            payload: json!({"name": "a\r\nBcc: eve@example.com\r\n\r\nx", "team": "vision", "state": "failed\nX-Evil: 1"}),
            created_at: "2026-01-05T12:00:00Z".parse().expect("a time"),
            number: 1,
            tries: 1,
            file_name: Some("a\"\r\nX-Evil: 1.csv".to_owned()),
            media_type: Some("text/csv".to_owned()),
            content: Some("a,b\n".to_owned()),
        };
        let from = "Allotment <allotment@example.com>"
            .parse()
            .expect("a mailbox");
        let text = message(&from, "ada@example.com", &claimed)
            .expect("a message")
            .formatted();
        let text = String::from_utf8(text).expect("text");
        let (head, _) = text.split_once("\r\n\r\n").expect("a head");
        let names: Vec<&str> = head
            .split("\r\n")
            .filter(|line| !line.starts_with([' ', '\t']))
            .filter_map(|line| line.split_once(':'))
            .map(|(name, _)| name)
            .collect();
        assert!(
            !names
                .iter()
                .any(|name| name.eq_ignore_ascii_case("bcc") || name.starts_with("X-")),
            "{head}"
        );
        assert!(!text.contains("\nX-Evil"), "{text}");
        for bad in [
            "a\r\nBcc: b@example.com",
            "a@b\r\n.com",
            "nobody",
            "a b@example.com",
        ] {
            assert!(message(&from, bad, &claimed).is_err(), "{bad:?}");
        }
    }
}
