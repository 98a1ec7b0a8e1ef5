//! A database that cannot be reached, told once: by which setting, where, and what was met.

use anyhow::anyhow;
use sqlx::postgres::PgConnectOptions;

/// The error of a connection that the setting `key` asked for.
pub fn failed(key: &str, options: &PgConnectOptions, error: sqlx::Error) -> anyhow::Error {
    let place = place(options);
    match error {
        sqlx::Error::Io(error) => anyhow!(
            "{key}: the database at {place} cannot be reached: {error}; is it started, and is that its address?"
        ),
        sqlx::Error::PoolTimedOut => anyhow!(
            "{key}: the database at {place} does not answer; is it started, and is that its address?"
        ),
        sqlx::Error::Database(error) => {
            anyhow!(
                "{key}: the database at {place} refuses: {}",
                error.message()
            )
        }
        error => anyhow::Error::new(error).context(format!("{key}: connect to {place}")),
    }
}

/// Host and port, or the folder of the socket; never a password.
fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(folder) => folder.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_once_and_no_password_is() {
        let options: PgConnectOptions = "postgres://app:secret@db.example:5433/allotment"
            .parse()
            .expect("a URL");
        let met = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let told = format!(
            "{:#}",
            failed("database.app_url", &options, sqlx::Error::Io(met))
        );
        assert_eq!(
            told,
            "database.app_url: the database at db.example:5433 cannot be reached: connection refused; is it started, and is that its address?"
        );
        let told = format!("{:#}", failed("k", &options, sqlx::Error::PoolTimedOut));
        assert!(told.contains("db.example:5433 does not answer"), "{told}");
    }
}
