//! What can keep the jobs of a node apart.

use crate::text_enum::text_enum;

text_enum!(
    /// A wall between the jobs of a node.
    Wall, "lacks" {
        /// Jobs run as their team's own user.
        Users = "users",
        /// Jobs open the device files of their own GPUs alone.
        DeviceFiles = "device_files",
        /// Jobs have `/tmp`, `/var/tmp` and `/dev/shm` of their own.
        TemporaryFiles = "temporary_files",
        /// Jobs list the processes of their own team alone.
        ProcessList = "process_list",
    }
);
