//! Points at which tests end the agent or a supervisor as a loss of power would: between two steps of a
//! job's start or of its end. Programs that are not built for debugging have none.

/// Names the point; the process is gone when it gets there.
pub const VARIABLE: &str = "ALLOTMENT_DIES_AT";

/// A point between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The agent has noted that the job has its devices, in memory alone.
    DevicesClaimed,
    /// The devices are in the mode in which they were given out.
    DevicesTaken,
    /// The job's folders and files are there.
    LaidOut,
    /// The run folder is there without orders.
    RunFolderMade,
    /// The orders are written.
    Ordered,
    /// The journal says that the job was accepted.
    Accepted,
    /// The supervisor was started and has not said anything.
    Launched,
    /// The supervisor has said how the start went.
    Ready,
    /// The supervisor was asked to stop its job.
    StopAsked,
    /// The supervisor is gone, and nobody has been told.
    EndSeen,
    /// The journal says how the job ended.
    EndTold,
    /// Its control group is gone.
    GroupGone,
    /// Its folder is gone.
    FolderGone,
    /// Its devices are as they were.
    DevicesLeft,
    /// Its run folder is gone.
    RunFolderGone,
    /// The journal says that the devices are free.
    ReleaseTold,
    /// A supervisor has claimed the run folder.
    RunClaimed,
    /// It has made the control group.
    GroupMade,
    /// It has started the job, and not said so.
    JobSpawned,
    /// It has written that the job was started.
    StartWritten,
    /// The job's first process has ended.
    JobEnded,
    /// All that the job began is gone, and its control group.
    GroupEmptied,
    /// How the job ended is written.
    EndWritten,
}

impl Point {
    /// Those between the steps of the agent.
    pub const OF_AGENT: [Self; 16] = [
        Self::DevicesClaimed,
        Self::DevicesTaken,
        Self::LaidOut,
        Self::RunFolderMade,
        Self::Ordered,
        Self::Accepted,
        Self::Launched,
        Self::Ready,
        Self::StopAsked,
        Self::EndSeen,
        Self::EndTold,
        Self::GroupGone,
        Self::FolderGone,
        Self::DevicesLeft,
        Self::RunFolderGone,
        Self::ReleaseTold,
    ];
    /// Those between the steps of a supervisor.
    pub const OF_SUPERVISOR: [Self; 7] = [
        Self::RunClaimed,
        Self::GroupMade,
        Self::JobSpawned,
        Self::StartWritten,
        Self::JobEnded,
        Self::GroupEmptied,
        Self::EndWritten,
    ];

    /// The process dies here if it is to.
    pub fn reached(self) {
        if wanted().is_some_and(|name| name == format!("{self:?}")) {
            // As from outside: nothing is written, closed or handed on.
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// The point that the environment names, to be handed on to a supervisor.
pub fn wanted() -> Option<String> {
    if !cfg!(debug_assertions) {
        return None;
    }
    std::env::var(VARIABLE).ok()
}
