//! `allotment-server migrate`: brings the schema up to date and gives the two roles their passwords.

use anyhow::{Context, bail};
use sqlx::postgres::PgConnectOptions;

use super::reach;
use crate::config::Config;
use crate::store::schema;

/// The roles with the configuration's key of their URL.
const ROLES: [(&str, &str); 2] = [
    ("allotment_app", "database.app_url"),
    ("allotment_system", "database.system_url"),
];

/// The configuration's key of the owner's URL.
const OWNER_KEY: &str = "database.owner_url";

/// Migrates as the owner.
pub async fn run(config: &Config) -> anyhow::Result<()> {
    let Some(url) = &config.database.owner_url else {
        bail!("{OWNER_KEY} is missing: migrations run as the owner of the database");
    };
    let options: PgConnectOptions = url.parse().context(OWNER_KEY)?;
    let mut owner = schema::connect_owner(options.clone())
        .await
        .map_err(|error| reach::failed(OWNER_KEY, &options, error))?;
    schema::migrate(&mut owner).await?;
    let urls = [&config.database.app_url, &config.database.system_url];
    for ((role, key), url) in ROLES.into_iter().zip(urls) {
        let options: PgConnectOptions = url.parse().with_context(|| key.to_owned())?;
        if options.get_username() != role {
            bail!(
                "{key} connects as {:?}: it must connect as {role}",
                options.get_username()
            );
        }
        let Some(password) = password_of(url) else {
            continue;
        };
        let set = schema::set_role_password(&mut owner, role, &password)
            .await
            .with_context(|| format!("set the password of {role}"))?;
        if !set {
            tracing::warn!("the owner may not set the password of {role}: it stays as it is");
        }
    }
    tracing::info!("schema is at version {}", schema::version_needed());
    Ok(())
}

/// The password in a connection URL, percent-decoded.
fn password_of(url: &str) -> Option<String> {
    let authority = url.split_once("://")?.1.split(['/', '?']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    let (_, password) = user.split_once(':')?;
    decode(password)
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_read_out_of_a_url_in_all_its_spellings() {
        for (url, password) in [
            ("postgres://a:secret@db/x", Some("secret")),
            (
                "postgresql://a:p%40ss%3A@db:5432/x?sslmode=require",
                Some("p@ss:"),
            ),
            ("postgres://a:p@ss@db/x", Some("p@ss")),
            ("postgres://a@db/x", None),
            ("postgres://db/x", None),
            ("postgres://a:bad%zz@db/x", None),
        ] {
            assert_eq!(password_of(url).as_deref(), password, "{url}");
        }
    }
}
