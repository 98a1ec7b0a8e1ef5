//! The authority that signs certificates: one row, read by the system role alone.

use super::Tx;

/// The authority's certificate and key.
#[derive(Clone)]
pub struct AuthorityRow {
    /// The certificate.
    pub certificate_der: Vec<u8>,
    /// The key, as PKCS #8.
    pub key_der: Vec<u8>,
}

/// The authority, if there is one yet.
pub async fn find(tx: &mut Tx) -> Result<Option<AuthorityRow>, sqlx::Error> {
    sqlx::query_as!(
        AuthorityRow,
        "SELECT certificate_der, key_der FROM authorities"
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Writes the authority; of several servers that start at once, the first one's stays.
pub async fn insert(tx: &mut Tx, authority: &AuthorityRow) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "INSERT INTO authorities (certificate_der, key_der) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        authority.certificate_der,
        authority.key_der,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}
