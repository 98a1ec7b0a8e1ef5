//! Why a device is not cut as it should be, and whether that stays so.

use super::CHANGE_TIMEOUT;

/// Why a device is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum CutError {
    /// The model has no MIG, or the driver.
    #[error("device {0} cannot be cut by MIG")]
    NotCapable(String),
    /// The settings do not let us.
    #[error(
        "device {uuid} would need {change}, which the setting mig of the node's agent does not allow (static, or never)"
    )]
    NotAllowed {
        /// The device.
        uuid: String,
        /// What would have to be done.
        change: String,
    },
    /// Somebody is on it.
    #[error("device {uuid} is used by {by}, so that {change} cannot be done: end that first")]
    Used {
        /// The device.
        uuid: String,
        /// Who, in words.
        by: String,
        /// What would have to be done.
        change: String,
    },
    /// The driver took a mode and has not changed to it.
    #[error("the MIG mode of device {0} waits for a reset of the device or a restart of the node")]
    Pending(String),
    /// NVML refused.
    #[error("device {uuid}: {change}: NVML says: {words}")]
    Refused {
        /// The device.
        uuid: String,
        /// What was tried.
        change: String,
        /// What it said.
        words: String,
    },
    /// The layout asks for what the device cannot give.
    #[error(
        "device {uuid} cannot be cut as the layout asks: mig-devices: {wanted} is refused: {remedy}"
    )]
    Unfit {
        /// The device.
        uuid: String,
        /// What the layout asks for.
        wanted: String,
        /// What could be asked for.
        remedy: String,
    },
    /// Nothing came back.
    #[error("device {0}: NVML has not answered for {secs} s", secs = CHANGE_TIMEOUT.as_secs())]
    Hangs(String),
    /// What we made cannot be written down.
    #[error("what is made on device {uuid} cannot be kept: {words}")]
    Unkept {
        /// The device.
        uuid: String,
        /// What the kernel said.
        words: String,
    },
}

impl CutError {
    /// Whether it stays so until somebody changes the layout, the settings or the machine: what waits for a job's
    /// end, for a driver or for a restart does not.
    pub fn lasts(&self) -> bool {
        match self {
            Self::NotCapable(_)
            | Self::NotAllowed { .. }
            | Self::Refused { .. }
            | Self::Unfit { .. }
            | Self::Unkept { .. } => true,
            Self::Used { .. } | Self::Pending(_) | Self::Hangs(_) => false,
        }
    }
}
