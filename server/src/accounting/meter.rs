//! Opens and closes usage segments, in the transaction that changes the assignment's phase.
//!
//! Metering cannot drift from state, since nobody counts: a segment opens as `reserved` when an
//! assignment is granted, becomes `charged` when its node takes it, and ends when it is released
//! or fenced. Who changes a phase calls the one function here that belongs to the step.

use domain::Timestamp;
use domain::ids::AssignmentId;

use crate::store::Tx;
use crate::store::segments::{self, Kind};

/// Assignments were granted, each at its moment: their shares are reserved. Call after their shares
/// are written.
pub async fn reserve(
    tx: &mut Tx,
    granted: &[(AssignmentId, Timestamp)],
) -> Result<(), sqlx::Error> {
    segments::open(tx, granted, Kind::Reserved).await
}

/// Their nodes acknowledged them: from now on their teams pay.
pub async fn charge(tx: &mut Tx, taken: &[(AssignmentId, Timestamp)]) -> Result<(), sqlx::Error> {
    segments::close(tx, taken).await?;
    segments::open(tx, taken, Kind::Charged).await
}

/// They were released: nobody holds their shares any more.
pub async fn close(tx: &mut Tx, released: &[(AssignmentId, Timestamp)]) -> Result<(), sqlx::Error> {
    segments::close(tx, released).await
}

/// Its node was silent since its last heartbeat, and what ran there did not survive: its team pays
/// up to then, the operator until it is released or fenced.
pub async fn silent(
    tx: &mut Tx,
    assignment: AssignmentId,
    last_heartbeat_at: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let seen = last_heartbeat_at.map_or(now, |at| at.min(now));
    segments::split(tx, assignment, seen, now).await?;
    segments::open(tx, &[(assignment, now)], Kind::Unreachable).await
}

/// Its device failed at `at`, and what ran there is lost: its team pays up to then, the operator from then on.
pub async fn failed(
    tx: &mut Tx,
    assignment: AssignmentId,
    at: Timestamp,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    // One that was lost before is the operator's already.
    match segments::charged(tx, assignment).await? {
        true => silent(tx, assignment, Some(at), now).await,
        false => Ok(()),
    }
}

/// It was released at `now`, and its node had kept it since `left_at` without anything of its job: that is the
/// operator's.
pub async fn kept(
    tx: &mut Tx,
    assignment: AssignmentId,
    left_at: Timestamp,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    segments::split(tx, assignment, left_at, now).await
}

/// It was fenced at `now`: its team pays up to the node's last heartbeat, the operator the rest.
pub async fn fence(
    tx: &mut Tx,
    assignment: AssignmentId,
    last_heartbeat_at: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let seen = last_heartbeat_at.map_or(now, |at| at.min(now));
    segments::split(tx, assignment, seen, now).await
}
