//! Signing in and out: opaque secrets, kept as hashes, revoked at once.
//!
//! A secret reads `alt_ID_SECRET`: the id finds the row, the secret proves the right. Pages carry
//! it in a cookie, programs as a bearer token; a session is good for the one it was opened for.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::Timestamp;
use domain::ids::{RequestId, SessionId, TeamId, UserId};
use domain::role::TeamRole;
use sha2::{Digest, Sha256};

use super::audit::Change;
use super::authorise::Action;
use super::idempotency::{self, Answer, Repeat};
use super::throttle::Origin;
use super::{App, AppError, Asker, audit, browsers, passwords};
use crate::store::{self, Tx};

/// Begins each secret, for those who scan texts for secrets.
const SECRET_PREFIX: &str = "alt_";
/// Random bytes of a secret and of a form's token.
const SECRET_BYTES: usize = 32;
/// Longest name or password that a log-in is looked at for.
const LOGIN_BYTES_MAX: usize = domain::password::PASSWORD_BYTES_MAX;

/// What a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionKind {
    /// A browser's cookie.
    Page,
    /// A program's bearer token.
    Token,
}

impl SessionKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Token => "token",
        }
    }
}

/// The name of the cookie that carries a page's session. With TLS it takes the prefix that binds
/// it to this host, so that no neighbouring site can plant one.
pub fn cookie_name(config: &crate::config::Sessions) -> &'static str {
    if config.secure_cookies {
        "__Host-allotment"
    } else {
        "allotment"
    }
}

/// Who tries to sign in, and from where.
#[derive(Debug)]
pub struct LogIn {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
    /// What for.
    pub kind: SessionKind,
    /// From where, where it is known.
    pub address: Option<IpAddr>,
    /// The cookie by which the browser proves an earlier sign-in, where it has one.
    pub browser: Option<String>,
    /// The request.
    pub request_id: RequestId,
}

/// A session that was opened.
pub struct Opened {
    /// The secret; it is shown once and never again.
    pub secret: String,
    /// When it ends.
    pub expires_at: Timestamp,
    /// What proves to the next sign-in that this browser has signed in; none for programs.
    pub browser: Option<String>,
}

/// A session that somebody came with.
#[derive(Debug, Clone)]
pub struct Session {
    /// Who.
    pub asker: Asker,
    /// The token that forms must carry.
    pub csrf_token: String,
    /// When it ends.
    pub expires_at: Timestamp,
}

/// Opens a session for who knows the password. An unknown name, a disabled person and a wrong
/// password look and last alike.
pub async fn log_in(app: &App, ask: LogIn) -> Result<Opened, AppError> {
    // Nobody is called so, and the database holds no NUL to compare with.
    let nobody = ask.name.len() > LOGIN_BYTES_MAX || ask.name.contains('\0');
    if nobody || ask.password.len() > LOGIN_BYTES_MAX {
        return Err(AppError::WrongCredentials);
    }
    let mut tx = app.db.begin_system().await?;
    let login = store::sessions::find_login(&mut tx, &ask.name).await?;
    // Nothing is held while the hash is computed.
    tx.commit().await?;
    let hash = login.as_ref().and_then(|l| l.password_hash.clone());
    let origin = origin(&ask, hash.as_deref());
    app.throttle.check(&ask.name, &origin, Instant::now())?;
    // Before the guess is counted: who finds no place has made none.
    let place = app.hashing.queue()?;
    // Counted before the work, and taken back by success: guesses made at once all count.
    app.throttle.failed(&ask.name, &origin, Instant::now());
    let right = place.matches(ask.password, hash.clone()).await?;
    let Some(login) = login.filter(|l| right && !l.disabled) else {
        let mut tx = app.db.begin_system().await?;
        note_log_in(&mut tx, &ask.name, ask.request_id, None).await?;
        tx.commit().await?;
        return Err(AppError::WrongCredentials);
    };
    app.throttle.succeeded(&ask.name, &origin, Instant::now());
    let seconds = app.config.sessions.seconds;
    let mut tx = app.db.begin_system().await?;
    let mut opened = open_in(&mut tx, login.user_id, ask.kind, seconds).await?;
    note_log_in(&mut tx, &ask.name, ask.request_id, Some(login.user_id)).await?;
    tx.commit().await?;
    if ask.kind == SessionKind::Page {
        opened.browser = hash.as_deref().map(browsers::prove);
    }
    Ok(opened)
}

/// From where a password is tried, as failures are counted.
fn origin(ask: &LogIn, hash: Option<&str>) -> Origin {
    let cookie = ask.browser.as_deref();
    let known = cookie
        .zip(hash)
        .and_then(|(cookie, hash)| browsers::known(cookie, hash));
    known.map_or(Origin::Address(ask.address), |number| {
        Origin::Proved(number.to_owned())
    })
}

/// Opens a session without asking for a password; for those who have proved themselves otherwise.
pub async fn open(
    app: &App,
    user_id: UserId,
    kind: SessionKind,
    seconds: i64,
) -> Result<Opened, AppError> {
    let mut tx = app.db.begin_system().await?;
    let opened = open_in(&mut tx, user_id, kind, seconds).await?;
    tx.commit().await?;
    Ok(opened)
}

/// The same, in the system's transaction that also records why.
pub(crate) async fn open_in(
    tx: &mut Tx,
    user_id: UserId,
    kind: SessionKind,
    seconds: i64,
) -> Result<Opened, AppError> {
    let id = SessionId::new();
    let secret = random_text();
    let expires_at = store::sessions::open(
        tx,
        store::sessions::NewSession {
            id,
            user_id,
            kind: kind.as_str(),
            secret_hash: &hash(&secret),
            csrf_token: &random_text(),
            seconds,
        },
    )
    .await?;
    Ok(Opened {
        secret: format!("{SECRET_PREFIX}{id}_{secret}"),
        expires_at,
        browser: None,
    })
}

async fn note_log_in(
    tx: &mut Tx,
    name: &str,
    request_id: RequestId,
    user: Option<UserId>,
) -> Result<(), AppError> {
    let name = domain::error::quote(name);
    store::audit::insert(
        tx,
        store::audit::NewEntry {
            actor_kind: "user",
            actor_id: user,
            actor_name: &name,
            action: Action::LogIn.as_str(),
            object: &format!("user/{name}"),
            team_id: None,
            request_id,
            outcome: if user.is_some() { "done" } else { "denied" },
            reason: "",
            before: None,
            after: None,
        },
    )
    .await?;
    Ok(())
}

/// Finds out who came with `secret`, with the roles that it has at this moment.
pub async fn authenticate(
    app: &App,
    secret: &str,
    kind: SessionKind,
    request_id: RequestId,
) -> Result<Session, AppError> {
    let (id, secret) = split(secret).ok_or(AppError::Unauthenticated)?;
    let mut tx = app.db.begin_system().await?;
    let live = store::sessions::find_live(&mut tx, id)
        .await?
        .filter(|live| live.kind == kind.as_str() && same(&live.secret_hash, &hash(secret)))
        .ok_or(AppError::Unauthenticated)?;
    if live.stale {
        store::sessions::touch(&mut tx, id).await?;
    }
    let csrf_token = live.csrf_token.clone();
    let expires_at = live.expires_at;
    let asker = asker(&mut tx, id, live, request_id).await?;
    tx.commit().await?;
    Ok(Session {
        asker,
        csrf_token,
        expires_at,
    })
}

/// The asker of a request that goes on, with the roles that it has now; refused once its
/// session is over.
pub async fn again(app: &App, before: &Asker) -> Result<Asker, AppError> {
    let mut tx = app.db.begin_system().await?;
    let live = store::sessions::find_live(&mut tx, before.session_id)
        .await?
        .ok_or(AppError::Unauthenticated)?;
    let asker = asker(&mut tx, before.session_id, live, before.request_id).await?;
    tx.commit().await?;
    Ok(asker)
}

async fn asker(
    tx: &mut Tx,
    session_id: SessionId,
    live: store::sessions::Live,
    request_id: RequestId,
) -> Result<Asker, AppError> {
    let mut teams: BTreeMap<TeamId, TeamRole> = BTreeMap::new();
    for belonging in store::sessions::belongings(tx, live.user_id).await? {
        let role = teams.entry(belonging.team_id).or_insert(belonging.role);
        *role = belonging.role.max(*role);
    }
    let ancestors = store::sessions::ancestors(tx, live.user_id).await?;
    Ok(Asker {
        user_id: live.user_id,
        name: live.name,
        platform_role: live.platform_role,
        teams,
        ancestors,
        session_id,
        request_id,
    })
}

/// Ends the session that the asker came with. Done once by its nature: whoever repeats it comes
/// with a secret that is good for nothing any more.
pub async fn log_out(app: &App, asker: &Asker) -> Result<(), AppError> {
    let mut tx = app.db.begin_system().await?;
    store::sessions::revoke(&mut tx, asker.session_id).await?;
    audit::record(
        &mut tx,
        asker,
        Change::of(Action::LogOut, format!("user/{}", asker.name)),
    )
    .await?;
    tx.commit().await?;
    app.wake.all();
    Ok(())
}

/// A person's password as it is, and as it is to be.
pub struct PasswordChange {
    /// The present one.
    pub current: String,
    /// The new one.
    pub new: String,
}

/// Changes the asker's own password and ends all its other sessions.
pub async fn change_password(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    change: PasswordChange,
) -> Result<Answer<()>, AppError> {
    let PasswordChange { current, new } = change;
    passwords::check("new", asker.name.as_str(), &new)?;
    let name = asker.name.as_str();
    let origin = Origin::Proved(asker.session_id.to_string());
    app.throttle.check(name, &origin, Instant::now())?;
    let place = app.hashing.queue()?;
    // Counted before the work, as a log-in is.
    app.throttle.failed(name, &origin, Instant::now());
    let mut tx = app.db.begin_system().await?;
    let login = store::sessions::find_login(&mut tx, name).await?;
    tx.commit().await?;
    let known = login.and_then(|l| l.password_hash);
    // Nothing is held while hashes are computed.
    let right = current.len() <= LOGIN_BYTES_MAX && place.matches(current, known).await?;
    let new_hash = if right {
        Some(place.hash(new).await?)
    } else {
        None
    };
    let mut work = idempotency::begin_system(app, asker, repeat).await?;
    // Looked at before the password is: that of a repeat is no longer the present one.
    if let Some(answer) = work.repeated().await? {
        app.throttle.succeeded(name, &origin, Instant::now());
        return Ok(answer);
    }
    let Some(new_hash) = new_hash else {
        return Err(AppError::invalid(
            "current",
            "what was given",
            "the present password",
        ));
    };
    app.throttle.succeeded(name, &origin, Instant::now());
    let tx = &mut work.tx;
    store::sessions::set_password(tx, asker.user_id, &new_hash).await?;
    store::sessions::revoke_all(tx, asker.user_id, Some(asker.session_id)).await?;
    audit::record(
        tx,
        asker,
        Change::of(Action::ChangePassword, format!("user/{name}")),
    )
    .await?;
    work.finish(app, Answer::nothing()).await
}

fn split(secret: &str) -> Option<(SessionId, &str)> {
    let (id, secret) = secret.strip_prefix(SECRET_PREFIX)?.split_once('_')?;
    Some((id.parse().ok()?, secret))
}

fn random_text() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; SECRET_BYTES]>())
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// Compares without telling by its time where two hashes differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_told_apart_from_what_is_none() {
        let id = SessionId::new();
        let secret = format!("alt_{id}_ab_c-d");
        assert_eq!(split(&secret), Some((id, "ab_c-d")));
        for bad in ["", "alt_", "alt_x_y", "x", "alt__"] {
            assert_eq!(split(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn hashes_are_compared_whole() {
        assert!(same(&hash("a"), &hash("a")));
        assert!(!same(&hash("a"), &hash("b")));
        assert!(!same(&hash("a"), &[]));
    }
}
