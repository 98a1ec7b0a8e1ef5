//! Join tokens: one-time secrets with which machines enrol.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::FieldError;
use domain::Timestamp;
use domain::ids::JoinTokenId;
use domain::name::Name;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::app::audit::{self, Change};
use crate::app::authorise::{Action, Target, authorise};
use crate::app::{App, AppError, Asker, RefusalCode, pools};
use crate::store::{authority, join_tokens};

/// Random bytes of a token.
const SECRET_BYTES: usize = 32;

/// What a join token is for.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJoinToken {
    /// The pool that the machine joins.
    #[schema(value_type = String)]
    pub pool: Name,
}

/// A join token. It is shown once.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct JoinToken {
    /// The secret.
    pub token: String,
    /// The pool that the machine joins.
    pub pool: Name,
    /// When it stops being good.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
    /// Where agents call.
    pub server: String,
    /// The SHA-256 of the certificate by which the machine knows the servers.
    pub ca_sha256: String,
    /// The command that enrols a machine; to be run there.
    pub command: String,
}

/// Makes a one-time token for a pool. A repeated request makes another: the secret of the first
/// is not kept.
pub async fn create_join_token(
    app: &App,
    asker: &Asker,
    new: NewJoinToken,
) -> Result<JoinToken, AppError> {
    authorise(asker, Action::CreateJoinToken, Target::Platform)?;
    let ca_sha256 = ca_sha256(app).await?;
    let secret: [u8; SECRET_BYTES] = rand::random();
    let token = format!("alj_{}", URL_SAFE_NO_PAD.encode(secret));
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let pool = pools::find(&mut tx, &new.pool).await?;
    let expires_at = join_tokens::insert(
        &mut tx,
        JoinTokenId::new(),
        pool.id,
        &Sha256::digest(token.as_bytes()),
        asker.user_id,
        app.config.agents.join_token_seconds,
    )
    .await?;
    let change = Change {
        after: Some(json!({ "pool": new.pool, "expires_at": expires_at })),
        ..Change::of(Action::CreateJoinToken, format!("pool/{}", new.pool))
    };
    audit::record(&mut tx, asker, change).await?;
    tx.commit().await?;
    let server = app.agent_url();
    let command =
        format!("allotment-agent enrol --server {server} --token {token} --ca-sha256 {ca_sha256}");
    Ok(JoinToken {
        token,
        pool: new.pool,
        expires_at,
        server,
        ca_sha256,
        command,
    })
}

async fn ca_sha256(app: &App) -> Result<String, AppError> {
    let mut tx = app.db.begin_system().await?;
    let row = authority::find(&mut tx).await?;
    tx.commit().await?;
    let row = row.ok_or_else(|| {
        AppError::conflict(
            RefusalCode::NoAuthority,
            "no server has opened its port for agents yet",
            FieldError::missing("ca", "start a server"),
        )
    })?;
    Ok(hex::encode(Sha256::digest(&row.certificate_der)))
}
