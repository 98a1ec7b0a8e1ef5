//! Which programs may compute on a device at once: only the server of MPS while one shares the device,
//! so that nobody goes past it.

use std::path::PathBuf;
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::error::NvmlError;

use super::alone::Alone;
use super::nvml;

/// Longest wait for the driver, which answers in milliseconds and may hang with its device.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// What came of a wish for a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It was another before.
    Made,
    /// It was so already.
    Had,
}

/// Lets one process alone compute on a device, or again as many as like. A mode that an operator chose
/// otherwise stays: of the modes only the default one and this are exchanged.
pub async fn set_exclusive(
    library: Option<PathBuf>,
    uuid: &str,
    exclusive: bool,
) -> Result<Change, String> {
    let (from, to) = match exclusive {
        true => (ComputeMode::Default, ComputeMode::ExclusiveProcess),
        false => (ComputeMode::ExclusiveProcess, ComputeMode::Default),
    };
    let about = uuid.to_owned();
    let change = move || -> Result<Change, String> {
        let nvml = nvml::open(library.as_deref()).map_err(|error| error.to_string())?;
        let exchange = || -> Result<Change, NvmlError> {
            let mut device = nvml.device_by_uuid(about.as_str())?;
            if device.compute_mode()? != from {
                return Ok(Change::Had);
            }
            device.set_compute_mode(to)?;
            Ok(Change::Made)
        };
        exchange().map_err(|error| error.to_string())
    };
    let changed = Alone::default().wait(uuid, CHANGE_TIMEOUT, change).await;
    changed.unwrap_or_else(|| {
        Err(format!(
            "NVML has not answered for {} s",
            CHANGE_TIMEOUT.as_secs()
        ))
    })
}
