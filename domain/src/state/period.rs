//! Where a billing period stands, and where a version of the price book does.

use super::steps;
use crate::text_enum::text_enum;

text_enum!(
    /// Where a billing period stands.
    PeriodState, "state" {
        /// What is used in it is entered in it.
        Open = "open",
        /// Nothing more is entered in it; its statements are made.
        Closing = "closing",
        /// Its statements are made.
        Closed = "closed",
        /// They have gone to the teams.
        Issued = "issued",
    }
);

steps!(PeriodState, "billing period" {
    Open => [Closing],
    Closing => [Open, Closed],
    Closed => [Issued],
    Issued => [],
});

text_enum!(
    /// Where a version of the price book stands.
    PriceBookState, "state" {
        /// It can be looked at and tried.
        Draft = "draft",
        /// Its lines are in force from their time on.
        Active = "active",
        /// It was given up.
        Discarded = "discarded",
    }
);

steps!(PriceBookState, "version of the price book" {
    Draft => [Active, Discarded],
    Active => [],
    Discarded => [],
});
