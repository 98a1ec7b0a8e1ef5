//! Words of quotas.

use crate::text_enum::text_enum;

text_enum!(
    /// A number of a team's quota that may keep work from starting.
    QuotaBound, "bound" {
        /// The most that the team may hold.
        Limit = "limit",
        /// The most that others may use of what the team is guaranteed.
        LendLimit = "lend_limit",
        /// The most that one user of the team may hold.
        MaxPerUser = "max_per_user",
        /// What the team is guaranteed.
        Guarantee = "guarantee",
    }
);
