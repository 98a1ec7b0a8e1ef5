//! Who asks: a signed-in person with its roles, as loaded at the beginning of a request.

use std::collections::BTreeMap;

use domain::ids::{RequestId, SessionId, TeamId, UserId};
use domain::name::Name;
use domain::role::{PlatformRole, TeamRole};

use crate::store::Scope;

/// A person who has proved who it is. Only `app::sessions` makes one, from a session's row.
#[derive(Debug, Clone)]
pub struct Asker {
    /// The person.
    pub user_id: UserId,
    /// Its name.
    pub name: Name,
    /// Its role on the platform, if any.
    pub platform_role: Option<PlatformRole>,
    /// Its role in each team that it can see, inherited from the teams above.
    pub teams: BTreeMap<TeamId, TeamRole>,
    /// The teams above those.
    pub ancestors: Vec<TeamId>,
    /// The session or token that it came with.
    pub session_id: SessionId,
    /// The request, quoted in audit rows, errors and logs.
    pub request_id: RequestId,
}

impl Asker {
    /// What its transactions may see.
    pub fn scope(&self) -> Scope {
        Scope {
            asker: self.user_id,
            sees_all: self.platform_role.is_some(),
            teams: self.teams.keys().copied().collect(),
            ancestors: self.ancestors.clone(),
        }
    }
}
