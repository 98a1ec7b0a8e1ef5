//! What an Xid error says of a device: NVIDIA's catalogue brought into what is done about it.

use domain::state::DeviceHealth;
use serde::{Deserialize, Serialize};

/// What is done about a device of which something was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Nothing: it says nothing of the device.
    Ignore,
    /// It is told to the job that ran; the device stays as it is.
    Job,
    /// The device gets no new work; what runs on it may end.
    Suspect,
    /// The device is out, and what runs on it is lost.
    Failed,
}

impl Class {
    /// What a device is of which such a thing was seen; nothing where it is none of its faults.
    pub fn health(self) -> Option<DeviceHealth> {
        match self {
            Self::Ignore | Self::Job => None,
            Self::Suspect => Some(DeviceHealth::Suspect),
            Self::Failed => Some(DeviceHealth::Failed),
        }
    }
}

/// What is done about a code where a site says nothing else. A code that is not in the catalogue makes
/// a device suspect: what nobody knows is looked at by a person.
pub fn class_of(code: u64) -> Class {
    match code {
        // Notes of the firmware, and consequences. Of 63 and 154 the fields tell more: rows that wait
        // for a reset, and the action that recovers the device.
        37 | 38 | 44 | 63 | 66 | 67 | 108 | 121 | 137 | 154 | 157 | 160 | 161 => Class::Ignore,
        8 | 11 | 13 | 25 | 31 | 32 | 39..=41 | 43 | 45 | 60 | 68..=72 | 75..=77 => Class::Job,
        82..=86 | 88 | 89 | 94 | 96..=105 | 126..=135 | 139 => Class::Job,
        46 | 48 | 62 | 64 | 79 | 95 | 110 | 119 | 120 | 140 | 143 | 155 | 156 | 158 => {
            Class::Failed
        }
        _ => Class::Suspect,
    }
}

/// Why a device is as it is for an error, in words.
pub fn reason(code: u64) -> String {
    format!("Xid {code}: {}", words(code))
}

/// The meaning of a code in a few words, where the catalogue has one that helps.
pub fn words(code: u64) -> &'static str {
    match code {
        8 => "a channel timed out",
        13 => "graphics engine exception",
        31 => "MMU fault",
        32 => "bad push buffer data",
        43 => "a channel was reset",
        45 => "its work was removed",
        46 => "GPU time-out",
        48 => "double-bit ECC error",
        54 => "clocks reduced: power connector",
        62 => "PMU halted",
        63 => "a row was remapped or a page retired",
        64 => "a row could not be remapped",
        74 => "NVLink error",
        79 => "fallen off the bus",
        92 => "too many single-bit errors",
        94 => "contained memory error",
        95 => "uncontained memory error",
        109 => "context switch timed out",
        110 => "security fault",
        119 | 120 => "GPU system processor does not answer",
        136 => "a link could not be trained",
        140 => "unrecoverable ECC error",
        143 => "the device could not be initialised",
        144..=150 => "NVLink error",
        154 => "the action that recovers the device has changed",
        155 | 156 | 158 => "fatal NVLink or resource error",
        168 => "less memory than before",
        171 | 172 => "uncorrectable memory error",
        _ => "see NVIDIA's catalogue",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_an_application_takes_no_device_and_one_of_the_hardware_does() {
        let class = |codes: &[u64]| codes.iter().map(|code| class_of(*code)).collect::<Vec<_>>();
        assert_eq!(class(&[13, 31, 43, 45, 94]), [Class::Job; 5]);
        assert_eq!(class(&[48, 64, 79, 95, 119, 140]), [Class::Failed; 6]);
        assert_eq!(class(&[74, 92, 109, 136, 171]), [Class::Suspect; 5]);
        assert_eq!(class(&[63, 154]), [Class::Ignore; 2], "their fields decide");
        assert_eq!(
            class(&[999, 4_000]),
            [Class::Suspect; 2],
            "nobody knows them"
        );
    }
}
