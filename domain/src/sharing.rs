//! The ways in which a device is given out.

use crate::text_enum::text_enum;

text_enum!(
    /// How a device is given out; a device has one mode at a time.
    SharingMode, "sharing" {
        /// The whole device to one worker.
        Exclusive = "exclusive",
        /// Hardware partitions.
        Mig = "mig",
        /// Concurrent kernels of several processes.
        Mps = "mps",
        /// Processes take turns.
        TimeSlice = "time_slice",
        /// Virtual GPUs for machines.
        Vgpu = "vgpu",
    }
);
