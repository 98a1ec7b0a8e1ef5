//! Samples what devices do, and whose doing it is: of a device that one job holds it is that job's, of an
//! instance its holder's, and of a shared device it is told by processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use domain::ids::AssignmentId;
use domain::quantity::MILLI;
use domain::sharing::SharingMode;
use protocol::wire;

use super::{Node, memory};
use crate::exporter::Told;
use crate::inventory;
use crate::journal::KeptDevice;
use crate::telemetry::{Process, Readers, Reading};

/// An assignment's part of a device, with its processes.
struct Holder {
    id: AssignmentId,
    share: KeptDevice,
    pids: BTreeSet<i32>,
    /// Whether it had that when the device was read before: what lies between the two readings is its own.
    since_before: bool,
}

/// Samples until the agent ends.
pub async fn watch(node: Arc<Node>) {
    let mut tick = tokio::time::interval(node.config.sample_pace());
    // One long silence is no reason for a crowd of samples after it.
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut sampler = Some(Sampler {
        readers: Readers::new(node.config.nvml_library.clone()),
        before: BTreeSet::new(),
    });
    loop {
        tick.tick().await;
        let Some(mut own) = sampler.take() else {
            tracing::error!("devices are not sampled any more");
            return;
        };
        let (of, taken) = (Arc::clone(&node), Instant::now());
        let sampled = tokio::task::spawn_blocking(move || {
            let samples = own.sample(&of, taken);
            (own, samples)
        });
        if let Ok((own, samples)) = sampled.await {
            sampler = Some(own);
            node.samples.put(taken, samples);
        }
    }
}

/// What is kept from sample to sample.
struct Sampler {
    readers: Readers,
    /// Who had which device when it was read before.
    before: BTreeSet<(AssignmentId, String)>,
}

impl Sampler {
    fn sample(&mut self, node: &Node, taken: Instant) -> Vec<wire::DeviceSample> {
        let answering: Vec<String> = node.gpus.borrow().answering.iter().cloned().collect();
        let readings = self.readers.read(&answering);
        let held = node.claims().all();
        let holders: Vec<Holder> = held
            .into_iter()
            .map(|(id, share)| Holder {
                pids: memory::pids(&node.folders.run(id)),
                since_before: self.before.contains(&(id, share.uuid.clone())),
                id,
                share,
            })
            .collect();
        let read = holders
            .iter()
            .filter(|holder| readings.contains_key(&holder.share.uuid));
        self.before = read
            .map(|holder| (holder.id, holder.share.uuid.clone()))
            .collect();
        let mut board = BTreeMap::new();
        let samples = readings.iter().map(|(uuid, reading)| {
            let here = holders.iter().filter(|holder| holder.share.uuid == *uuid);
            let work: Vec<_> = here
                .map(|holder| (holder, of_holder(holder, reading)))
                .collect();
            board.insert(uuid.clone(), told(node, uuid, reading, &work));
            let work = work.into_iter().map(|(_, work)| work).collect();
            of_device(uuid.clone(), reading, work)
        });
        let samples = samples.collect();
        node.board.replace(taken, board);
        samples
    }
}

/// What scrapers are told: of a device that one job has whole its series are labelled as the job's.
fn told(node: &Node, uuid: &str, reading: &Reading, work: &[(&Holder, wire::WorkSample)]) -> Told {
    let own = |name, value: &str| (name, value.to_owned());
    let mut labels = vec![own("UUID", uuid), own("Hostname", &inventory::host_name())];
    if let Some(device) = node.gpus.borrow().device(uuid) {
        labels.push(("gpu", device.index.to_string()));
        labels.push(("device", format!("nvidia{}", device.index)));
        labels.push(own("modelName", &device.product_name));
        labels.push(own("pci_bus_id", &device.pci_bus_id));
    }
    let state = node.journal.state();
    let of = |holder: &Holder| {
        let kept = state.kept.get(&holder.id);
        let kept = kept.map(|kept| {
            [
                own("team", &kept.team),
                // Not `job`: that label is the scraper's own.
                ("job_id", kept.job_id.to_string()),
                own("job_name", &kept.job_name),
            ]
        });
        kept.into_iter().flatten().collect::<Vec<_>>()
    };
    let jobs = work.iter().map(|(holder, sample)| {
        let labels = labels.iter().cloned().chain(of(holder));
        (labels.collect(), sample.clone())
    });
    let jobs = jobs.collect();
    if let [(holder, _)] = work
        && holder.share.mode == SharingMode::Exclusive
    {
        labels.extend(of(holder));
    }
    Told {
        labels,
        reading: reading.clone(),
        work: jobs,
    }
}

fn of_device(uuid: String, reading: &Reading, work: Vec<wire::WorkSample>) -> wire::DeviceSample {
    wire::DeviceSample {
        uuid,
        age_ms: 0,
        busy_permille: reading.busy,
        sm_permille: reading.load.sm,
        tensor_permille: reading.load.tensor,
        dram_permille: reading.load.dram,
        memory_mib: reading.memory_mib.map(|(used, _)| used),
        temperature_c: reading.temperature_c,
        power_mw: reading.power_mw,
        energy_mj: reading.energy_mj,
        work,
    }
}

fn of_holder(holder: &Holder, reading: &Reading) -> wire::WorkSample {
    let is_own =
        |process: &&Process| i32::try_from(process.pid).is_ok_and(|pid| holder.pids.contains(&pid));
    let own: Vec<&Process> = reading.processes.iter().filter(is_own).collect();
    let sum_of = |what: fn(&Process) -> Option<i64>| own.iter().map(|process| what(process)).sum();
    let held_mib: Option<i64> = sum_of(|process| process.memory_mib);
    let (busy, sm, memory_mib) = match holder.share.mode {
        SharingMode::Exclusive => {
            let used = reading.memory_mib.map(|(used, _)| used);
            (reading.busy, reading.load.sm, used)
        }
        SharingMode::Mig => {
            let slice = holder.share.mig.as_ref();
            let mut instances = reading.instances.iter();
            let instance = instances.find(|instance| Some(&instance.slice) == slice);
            let sm = instance.and_then(|instance| instance.load.sm);
            let used = instance.and_then(|instance| instance.memory_mib);
            (None, sm, used)
        }
        SharingMode::Mps | SharingMode::TimeSlice | SharingMode::Vgpu => {
            // Of a process whose time nobody tells the whole is unknown.
            let busy: Option<u32> = own.iter().map(|process| process.busy).sum();
            (busy.map(|busy| busy.min(1000)), None, held_mib)
        }
    };
    // What was done between two readings may have been the doing of who had the device before.
    let own_time = |share: Option<u32>| share.filter(|_| holder.since_before);
    let energy_mj = reading.energy_mj.filter(|_| holder.since_before);
    wire::WorkSample {
        assignment_id: holder.id.to_string(),
        busy_permille: own_time(busy),
        sm_permille: own_time(sm),
        memory_mib,
        processes: u32::try_from(own.len()).ok(),
        energy_mj: energy_mj.map(|mj| part(mj, holder.share.gpus_milli)),
    }
}

/// A share's part of an amount.
fn part(amount: u64, gpus_milli: i64) -> u64 {
    let share = u128::try_from(gpus_milli.clamp(0, MILLI)).unwrap_or(0);
    let all = u128::try_from(MILLI).unwrap_or(1);
    u64::try_from(u128::from(amount) * share / all).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use protocol::mig::MigSlice;

    use super::*;
    use crate::telemetry::reading::{Instance, Load};

    fn share(mode: SharingMode, gpus_milli: i64, mig: Option<MigSlice>) -> Holder {
        Holder {
            id: AssignmentId::new(),
            share: KeptDevice {
                uuid: "GPU-1".to_owned(),
                mode,
                gpus_milli,
                memory_mib: 0,
                mig,
                team: None,
            },
            pids: BTreeSet::from([7, 8]),
            since_before: true,
        }
    }

    fn process(pid: u32, memory_mib: Option<i64>, busy: Option<u32>) -> Process {
        Process {
            pid,
            memory_mib,
            busy,
        }
    }

    fn reading(processes: Vec<Process>) -> Reading {
        Reading {
            busy: Some(900),
            load: Load {
                sm: Some(400),
                ..Load::default()
            },
            memory_mib: Some((5000, 80_000)),
            energy_mj: Some(1001),
            processes,
            ..Reading::default()
        }
    }

    #[test]
    fn what_a_device_does_is_the_doing_of_who_has_it_alone() {
        let processes = vec![process(7, Some(4000), Some(300))];
        let work = of_holder(
            &share(SharingMode::Exclusive, 1000, None),
            &reading(processes),
        );
        assert_eq!(
            (work.busy_permille, work.sm_permille),
            (Some(900), Some(400))
        );
        assert_eq!((work.memory_mib, work.processes), (Some(5000), Some(1)));
        assert_eq!(work.energy_mj, Some(1001));
    }

    #[test]
    fn what_was_done_before_a_job_had_its_device_is_not_the_jobs() {
        let mut holder = share(SharingMode::Exclusive, 1000, None);
        holder.since_before = false;
        let work = of_holder(&holder, &reading(Vec::new()));
        assert_eq!((work.busy_permille, work.sm_permille), (None, None));
        assert_eq!((work.energy_mj, work.memory_mib), (None, Some(5000)));
    }

    #[test]
    fn of_a_shared_device_own_processes_count_and_one_that_is_unknown_makes_all_unknown() {
        let strange = process(9, Some(1), Some(500));
        let known = vec![
            process(7, Some(10), Some(300)),
            process(8, Some(20), Some(50)),
            strange,
        ];
        let holder = share(SharingMode::TimeSlice, 250, None);
        let work = of_holder(&holder, &reading(known));
        assert_eq!((work.busy_permille, work.sm_permille), (Some(350), None));
        assert_eq!((work.memory_mib, work.processes), (Some(30), Some(2)));
        assert_eq!(work.energy_mj, Some(250));

        let unknown = vec![process(7, None, None), process(8, Some(20), Some(50))];
        let work = of_holder(&holder, &reading(unknown));
        assert_eq!((work.busy_permille, work.memory_mib), (None, None));
    }

    #[test]
    fn of_a_cut_device_the_holders_own_instance_tells() {
        let slice = |start| MigSlice {
            profile: "1g.10gb".to_owned(),
            start,
            size: 1,
        };
        let instance = |start, sm| Instance {
            slice: slice(start),
            load: Load {
                sm,
                ..Load::default()
            },
            memory_mib: Some(i64::from(start) + 100),
        };
        let mut cut = reading(Vec::new());
        cut.instances = vec![instance(0, Some(10)), instance(1, Some(20))];
        let work = of_holder(&share(SharingMode::Mig, 125, Some(slice(1))), &cut);
        assert_eq!((work.busy_permille, work.sm_permille), (None, Some(20)));
        assert_eq!((work.memory_mib, work.processes), (Some(101), Some(0)));
        let gone = of_holder(&share(SharingMode::Mig, 125, Some(slice(2))), &cut);
        assert_eq!((gone.sm_permille, gone.memory_mib), (None, None));
    }
}
