//! The two clocks of an agent: one that measures leases, one that dates evidence.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the machine started, counting the time it slept. Leases and graces
/// are measured by it: it never steps, it is the same for all processes of a boot, and a
/// machine that slept through its lease knows so.
pub fn boot_ms() -> i64 {
    boot_micros() / 1_000
}

/// The same in microseconds: for how long a device has failed is measured by it.
pub fn boot_micros() -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec for the call to fill.
    #[allow(unsafe_code)]
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    assert_eq!(failed, 0, "every Linux since 2.6.39 has CLOCK_BOOTTIME");
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

/// Microseconds since 1970 by the wall clock: evidence beside a fact, never a reason to act.
pub fn wall_micros() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|age| i64::try_from(age.as_micros()).ok())
        .unwrap_or_default()
}
