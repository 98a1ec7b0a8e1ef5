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

/// Smallest step that is told, in milliseconds: time services step clocks by less in peace.
const JUMP_MS_MIN: i64 = 60_000;

/// Watches the wall clock by the one that never steps.
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    /// What the wall clock was ahead of the other by, in milliseconds.
    ahead_ms: i64,
}

impl Steps {
    /// Begins with the clocks as they are.
    pub fn since_now() -> Self {
        Self {
            ahead_ms: ahead_ms(),
        }
    }

    /// What to say of a wall clock that has jumped since, if it has.
    pub fn warning(&self) -> Option<String> {
        jump(self.ahead_ms, ahead_ms())
    }
}

fn ahead_ms() -> i64 {
    wall_micros() / 1000 - boot_ms()
}

fn jump(before_ms: i64, now_ms: i64) -> Option<String> {
    let jumped = now_ms - before_ms;
    (jumped.abs() >= JUMP_MS_MIN).then(|| {
        format!(
            "this machine's clock has jumped by {} s since its agent began: leases, limits and bills go by other clocks, and certificates and the moments in logs by this one; look at its time service",
            jumped / 1000
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_an_hour_either_way_is_told_and_one_that_is_set_by_a_little_is_not() {
        for (jumped, words) in [(3_600_000, "by 3600 s"), (-3_600_000, "by -3600 s")] {
            let told = jump(5_000, 5_000 + jumped).expect("told");
            assert!(told.contains(words), "{told}");
        }
        assert_eq!(jump(5_000, 64_000), None);
        assert_eq!(Steps::since_now().warning(), None);
    }
}
