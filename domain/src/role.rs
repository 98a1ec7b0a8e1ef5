//! Roles: what a person may be in a team and on the platform.

use crate::text_enum::text_enum;

text_enum!(
    /// A role in one team; each includes those before it.
    TeamRole, "role" {
        /// Sees the team's work.
        Viewer = "viewer",
        /// Submits work and steers its own.
        Member = "member",
        /// Steers all work of the team, and its members.
        Owner = "owner",
    }
);

text_enum!(
    /// A role on the platform.
    PlatformRole, "role" {
        /// Everything.
        Admin = "admin",
        /// Nodes, pools, and every team's work.
        Operator = "operator",
        /// Prices and everybody's usage.
        Finance = "finance",
        /// Sees everything, changes nothing.
        Auditor = "auditor",
    }
);
