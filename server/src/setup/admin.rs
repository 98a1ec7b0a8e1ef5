//! `allotment-server create-admin`: a first administrator, where nobody can sign in yet.

use anyhow::{Context, bail};
use domain::ids::{RequestId, UserId};
use domain::name::Name;
use domain::role::PlatformRole;

use crate::app::passwords;
use crate::store::{self, Database, Tx};

/// Random bytes of a password that is made here: 120 bits in 20 characters.
const PASSWORD_BYTES: usize = 15;

/// Makes an administrator and returns its password, which is shown this once.
pub async fn add(db: &Database, name: &Name) -> anyhow::Result<String> {
    let password = random_password();
    let hash = passwords::hash(password.clone()).await?;
    let mut tx = db.begin_system().await.context("begin")?;
    if store::users::find(&mut tx, name.as_str())
        .await
        .context("look for the user")?
        .is_some()
    {
        bail!("a user {name} is there already: choose another name");
    }
    add_person(&mut tx, name, Some(PlatformRole::Admin), &hash).await?;
    store::audit::insert(
        &mut tx,
        store::audit::NewEntry {
            actor_kind: "system",
            actor_id: None,
            actor_name: "create-admin",
            action: "create_user",
            object: &format!("user/{name}"),
            team_id: None,
            request_id: RequestId::new(),
            outcome: "done",
            reason: "made on the server's command line",
            before: None,
            after: Some(serde_json::json!({"role": PlatformRole::Admin})),
        },
    )
    .await
    .context("record it")?;
    tx.commit().await.context("commit")?;
    Ok(password)
}

/// Makes a person with a password, in the system's own transaction.
pub(super) async fn add_person(
    tx: &mut Tx,
    name: &Name,
    role: Option<PlatformRole>,
    password_hash: &str,
) -> anyhow::Result<UserId> {
    let id = UserId::new();
    let fields = store::users::Fields {
        display_name: "",
        platform_role: role,
        disabled: false,
    };
    store::users::insert(tx, id, name, &fields)
        .await
        .with_context(|| format!("make user {name}"))?;
    store::sessions::set_password(tx, id, password_hash)
        .await
        .with_context(|| format!("set the password of {name}"))?;
    Ok(id)
}

/// A password that nobody has to remember.
pub(super) fn random_password() -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(rand::random::<[u8; PASSWORD_BYTES]>())
}
