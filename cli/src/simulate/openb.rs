//! The placement experiment on openb lists: tasks arrive one by one, are tried once, and never leave.
//!
//! It is the experiment of the paper on fragmentation gradient descent (ATC 2023): the list is
//! shuffled, tasks drawn from it again are appended until the ratio is reached, and after each
//! arrival the demand that has arrived is set against what could be allocated. The planner
//! sees a task when it arrives, and learns the mix from those that have.

mod outcome;
mod waste;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::bail;
use domain::quantity::MILLI;
use domain::sharing::SharingMode;
use domain::spec::{CLASS_DEFAULT, PerWorker};
use domain::{MilliCpu, MilliGpu, Timestamp};
use engine::Planner;
use engine::scenario::amounts::{CPUS_MAX, DEVICES_MAX, MEMORY_MIB_MAX};
use engine::world::{Class, Node, Pool, Quota, Strategy, Team, Workload, World};

use super::Ties;
use super::csv::{Row, Table};
use super::seeds::Random;
use outcome::{Outcome, Run};
use waste::Waste;

/// Most thousandths of cores of a machine or a task.
const CPU_MILLI_MAX: i64 = CPUS_MAX * MILLI;
/// Thousandths of one device.
const DEVICE: i64 = MILLI;
/// The memory that a device is said to have: parts of it are exact, so that it never binds.
const DEVICE_MEMORY_MIB: i64 = 1_000_000;
const NAME: &str = "openb";

/// A row of the list of nodes.
struct Machine {
    name: String,
    cpu_milli: i64,
    memory_mib: i64,
    gpus: i64,
    model: String,
}

/// A row of the list of tasks.
#[derive(Debug, Clone)]
struct Task {
    name: String,
    cpu_milli: i64,
    memory_mib: i64,
    gpus: i64,
    /// Thousandths of each device.
    gpu_milli: i64,
    /// The models that it may run on, joined by `|`; empty is any.
    spec: String,
}

/// The lists.
pub struct Experiment {
    machines: Vec<Machine>,
    tasks: Vec<Task>,
}

impl Machine {
    fn read(row: &Row<'_>) -> anyhow::Result<Self> {
        Ok(Self {
            name: row.required("sn")?.to_owned(),
            cpu_milli: row.number("cpu_milli", 0, CPU_MILLI_MAX)?,
            memory_mib: row.number("memory_mib", 0, MEMORY_MIB_MAX)?,
            gpus: row.number("gpu", 0, DEVICES_MAX)?,
            model: row.text("model").unwrap_or("").to_owned(),
        })
    }
}

impl Task {
    fn read(row: &Row<'_>) -> anyhow::Result<Self> {
        let gpus = row.number("num_gpu", 0, DEVICES_MAX)?;
        let gpu_milli = match gpus {
            0 => 0,
            1 => row.number("gpu_milli", 1, DEVICE)?,
            _ => row.number("gpu_milli", DEVICE, DEVICE)?,
        };
        Ok(Self {
            name: row.required("name")?.to_owned(),
            cpu_milli: row.number("cpu_milli", 0, CPU_MILLI_MAX)?,
            memory_mib: row.number("memory_mib", 0, MEMORY_MIB_MAX)?,
            gpus,
            gpu_milli,
            spec: row.text("gpu_spec").unwrap_or("").to_owned(),
        })
    }

    fn milli(&self) -> i64 {
        self.gpus * self.gpu_milli
    }

    /// The task as work for the engine; `number` tells repetitions apart.
    fn workload(&self, number: usize, now: Timestamp) -> Workload {
        let shared = self.gpus == 1 && self.gpu_milli < DEVICE;
        let mut work = Workload::waiting(&format!("{}#{number}", self.name), NAME, 0, now);
        work.per_worker = PerWorker {
            gpus: Some(MilliGpu::from_milli(self.milli())),
            gpu_model: Some(self.spec.clone()).filter(|spec| self.gpus > 0 && one_model(spec)),
            sharing: vec![if shared {
                SharingMode::TimeSlice
            } else {
                SharingMode::Exclusive
            }],
            cpus: MilliCpu::from_milli(self.cpu_milli),
            memory_mib: self.memory_mib,
            ..PerWorker::default()
        };
        if !self.spec.is_empty() && work.per_worker.gpu_model.is_none() {
            work.selector.insert(self.spec.clone(), YES.to_owned());
        }
        work
    }
}

/// The value of the label, named after a set of models, of a node that has one of them.
const YES: &str = "yes";

fn one_model(spec: &str) -> bool {
    !spec.is_empty() && !spec.contains('|')
}

impl Experiment {
    /// Reads both lists.
    pub fn read(nodes: &Path, tasks: &Path) -> anyhow::Result<Self> {
        let machines = Table::read(nodes)?.rows(Machine::read)?;
        let mut tasks = Table::read(tasks)?.rows(Task::read)?;
        let mut names = BTreeSet::new();
        if let Some(twice) = machines.iter().find(|m| !names.insert(m.name.as_str())) {
            bail!("{}: node {} is there twice", nodes.display(), twice.name);
        }
        if machines.iter().all(|m| m.gpus == 0) {
            bail!("{}: no node has a GPU", nodes.display());
        }
        if tasks.iter().all(|t| t.gpus == 0) {
            bail!("no task asks for a GPU");
        }
        tasks.sort_by(|a, b| a.name.cmp(&b.name));
        let mut experiment = Self { machines, tasks };
        experiment.machines.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(experiment)
    }

    /// Runs the experiment once for each seed, as many at a time as there are processors.
    pub fn run(&self, seeds: &[u64], ratio: i64, strategy: Strategy, ties: Ties) -> Outcome {
        let world = self.world(strategy, ties);
        let waste = Waste::of(&self.machines, &self.tasks);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = seeds.len().div_ceil(threads.max(1)).max(1);
        let begun = std::time::Instant::now();
        let runs: Vec<Run> = std::thread::scope(|scope| {
            let (world, waste) = (&world, &waste);
            let some = |some: &[u64]| -> Vec<Run> {
                some.iter()
                    .map(|&seed| self.once(world, waste, seed, ratio))
                    .collect()
            };
            let workers: Vec<_> = seeds
                .chunks(share)
                .map(|part| scope.spawn(move || some(part)))
                .collect();
            let done = workers
                .into_iter()
                .flat_map(|w| w.join().expect("a run does not panic"));
            done.collect()
        });
        Outcome {
            strategy,
            ties,
            ratio,
            nodes: self.machines.len(),
            gpus: self.capacity() / DEVICE,
            tasks: self.tasks.len(),
            runs,
            took: begun.elapsed(),
        }
    }

    fn capacity(&self) -> i64 {
        self.machines.iter().map(|m| m.gpus * DEVICE).sum()
    }

    /// The nodes as a world with one pool and one team that may have all.
    fn world(&self, strategy: Strategy, ties: Ties) -> World {
        let mut world = World::empty(Timestamp::UNIX_EPOCH);
        let mut pool = Pool::new(NAME).sharing(&[SharingMode::Exclusive, SharingMode::TimeSlice]);
        pool.strategy = strategy;
        pool.time_slices = u32::MAX;
        world.pools.push(pool);
        world.classes.push(Class::new(CLASS_DEFAULT, 0, true));
        let all = Quota::guaranteed(MilliGpu::from_milli(self.capacity()));
        world.teams.push(Team::new(NAME).quota(NAME, all));
        let specs: BTreeSet<&str> = self.tasks.iter().map(|t| t.spec.as_str()).collect();
        for (rank, machine) in self.machines.iter().enumerate() {
            let mut node = Node::new(&self.place_name(rank, ties), NAME, machine.gpus as u32);
            node.gpu_model = Some(machine.model.clone());
            node.gpu_memory_mib = DEVICE_MEMORY_MIB;
            node.cpus = MilliCpu::from_milli(machine.cpu_milli);
            node.memory_mib = machine.memory_mib;
            for spec in specs
                .iter()
                .filter(|spec| spec.split('|').any(|m| m == machine.model))
            {
                node.labels.insert((*spec).to_owned(), YES.to_owned());
            }
            world.nodes.push(node);
        }
        world
    }

    /// The name of a machine in the world. The engine takes the first by name of equally good
    /// nodes, so the reverse order is one of names.
    fn place_name(&self, rank: usize, ties: Ties) -> String {
        let place = match ties {
            Ties::Lex => rank,
            Ties::Reverse => self.machines.len() - 1 - rank,
        };
        format!("{place:06}")
    }

    /// The tasks in the order in which they arrive.
    fn arrivals(&self, seed: u64, ratio: i64) -> Vec<&Task> {
        let mut random = Random::of(seed);
        let mut tasks: Vec<&Task> = self.tasks.iter().collect();
        random.shuffle(&mut tasks);
        let most = self.capacity() * ratio / 1000;
        let mut asked: i64 = tasks.iter().map(|t| t.milli()).sum();
        loop {
            let task = &self.tasks[random.below(self.tasks.len())];
            asked += task.milli();
            if asked > most {
                return tasks;
            }
            tasks.push(task);
        }
    }

    fn once(&self, world: &World, waste: &Waste, seed: u64, ratio: i64) -> Run {
        let tasks = self.arrivals(seed, ratio);
        let work: Vec<Workload> = tasks
            .iter()
            .enumerate()
            .map(|(number, task)| task.workload(number, world.now))
            .collect();
        let capacity = self.capacity();
        let ranks: BTreeMap<&str, usize> = world
            .nodes
            .iter()
            .enumerate()
            .map(|(rank, n)| (n.name.as_str(), rank))
            .collect();
        let mut planner = Planner::of(world);
        let mut run = Run::of(seed);
        let mut wasted = waste.of_idle(&self.machines);
        let (mut arrived, mut allocated) = (0, 0);
        for (task, work) in tasks.iter().zip(&work) {
            arrived += task.milli();
            let taken = planner.take(work);
            assert!(taken, "its team is there");
            let start = planner.start(&work.name);
            run.tried(task.gpus > 0, start.is_some());
            if let Some(start) = start {
                allocated += task.milli();
                let name = start.placement[0].node.as_str();
                let left = planner.left(name).expect("the node is there");
                wasted.change(waste, ranks[name], &left);
            }
            run.note(
                percent(arrived, capacity),
                allocated as f64 * 100.0 / capacity as f64,
                wasted.percent(capacity),
            );
        }
        run
    }
}

/// A part in percent, rounded to the nearest.
fn percent(part: i64, whole: i64) -> i64 {
    (part * 200 + whole) / (2 * whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A twentieth of the openb lists.
    fn few() -> Experiment {
        let file = |name: &str| {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/openb");
            root.join(name)
        };
        Experiment::read(&file("nodes.csv"), &file("pods.csv")).unwrap()
    }

    fn run(experiment: &Experiment, strategy: Strategy, ties: Ties) -> serde_json::Value {
        experiment.run(&[42], 1300, strategy, ties).json()
    }

    #[test]
    fn little_waste_allocates_more_than_packing_whatever_the_order_of_ties() {
        let few = few();
        let at = |strategy, ties| {
            run(&few, strategy, ties)["allocation_percent"]["130"]
                .as_f64()
                .unwrap()
        };
        for ties in [Ties::Lex, Ties::Reverse] {
            let (least, pack) = (
                at(Strategy::LeastFragmentation, ties),
                at(Strategy::Pack, ties),
            );
            assert!(pack > 85.0 && least > pack + 1.0 && least <= 100.0);
        }
    }

    #[test]
    fn what_arrives_stops_at_the_first_task_that_would_pass_the_ratio() {
        let few = few();
        let asked: i64 = few.arrivals(7, 1300).iter().map(|task| task.milli()).sum();
        let most = few.capacity() * 1300 / 1000;
        assert!(asked <= most && asked > most - 8 * DEVICE);
        let names = |seed| -> Vec<&str> {
            let tasks = few.arrivals(seed, 1300);
            tasks.iter().map(|task| task.name.as_str()).collect()
        };
        assert_eq!(names(7), names(7));
        assert_ne!(names(7), names(8));
    }

    #[test]
    fn a_wrong_row_is_told_by_file_line_and_column() {
        let folder = std::env::temp_dir().join(format!("allot-openb-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (nodes, tasks) = (folder.join("nodes.csv"), folder.join("tasks.csv"));
        std::fs::write(
            &nodes,
            "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,1024,2,T4\n",
        )
        .unwrap();
        std::fs::write(
            &tasks,
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,500\nb,1,1,2,500\n",
        )
        .unwrap();
        let error = Experiment::read(&nodes, &tasks).err().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let text = format!("{error:#}");
        assert!(
            text.contains("tasks.csv: line 3: gpu_milli: \"500\""),
            "{text}"
        );
    }
}
