//! What an agent costs while its node has nothing to do.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::{Cluster, Machine, Options};

const MILLION: u128 = 1_000_000;

/// What was used over a time.
#[derive(Debug, Clone, Copy)]
pub struct Idle {
    /// How long was measured.
    pub over: Duration,
    /// The processor's time meanwhile.
    pub cpu: Duration,
    /// Memory at the end, in KiB.
    pub resident_kib: u64,
}

impl Idle {
    /// The part of one core, in millionths.
    pub fn core_millionths(&self) -> u128 {
        self.cpu.as_micros() * MILLION / self.over.as_micros().max(1)
    }
}

/// A product with timers as shipped and one machine of eight devices, below `state`.
pub async fn one_agent(state: &Path) -> anyhow::Result<Cluster> {
    let machine = Machine::simulated("n1", "dgx-h100", "h100");
    let mut options = Options::for_test("idle", vec![machine])?;
    options.paths = crate::paths::Paths::at(state, options.paths.tools.clone())?;
    options.timers.clear();
    Cluster::start(options).await
}

/// Measures the product's one agent for so long, a while after its start.
pub async fn idle(cluster: &Cluster, settle: Duration, over: Duration) -> anyhow::Result<Idle> {
    let agent = cluster
        .agents
        .values()
        .next()
        .context("there is no agent")?;
    let pid = agent.pid();
    // The passing of time is what is measured.
    tokio::time::sleep(settle).await;
    let (begun, before) = (Instant::now(), cpu(pid)?);
    tokio::time::sleep(over).await;
    let used = cpu(pid)?.saturating_sub(before);
    Ok(Idle {
        over: begun.elapsed(),
        cpu: used,
        resident_kib: resident_kib(pid)?,
    })
}

/// The processor's time that a process has used, with the threads that it had.
fn cpu(pid: u32) -> anyhow::Result<Duration> {
    /// The places of both kinds of time behind the name.
    const USER: usize = 11;
    const SYSTEM: usize = 12;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("the agent is gone")?;
    let (_, rest) = stat.rsplit_once(") ").context("the kernel's statistics")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |at: usize| -> anyhow::Result<u64> {
        let field = fields.get(at).context("the kernel's statistics")?;
        Ok(field.parse()?)
    };
    let per_sec = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?;
    let per_sec = u64::try_from(per_sec.context("ticks of a second")?)?.max(1);
    let used = ticks(USER)? + ticks(SYSTEM)?;
    Ok(Duration::from_millis(used * 1000 / per_sec))
}

fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let text = line
        .context("the agent's memory")?
        .trim()
        .trim_end_matches(" kB");
    Ok(text.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_used_some_time_and_holds_some_memory() {
        let pid = std::process::id();
        assert!(resident_kib(pid).expect("read") > 0);
        cpu(pid).expect("read");
        let idle = Idle {
            over: Duration::from_secs(60),
            cpu: Duration::from_millis(300),
            resident_kib: 0,
        };
        assert_eq!(idle.core_millionths(), 5_000, "half a percent");
    }
}
