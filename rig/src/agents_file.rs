//! The list of simulated machines that `./dev up --agents FILE` starts.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

/// More would not fit the process table of a development machine.
pub const MACHINES_MAX: usize = 2_000;

/// The models that `nvml-sim-machine` knows. It stands alone, so that the names stand there too; an
/// end-to-end test compares the two.
pub const MODELS: [&str; 11] = [
    "dgx-a100",
    "dgx-h100",
    "dgx-h200",
    "l40s-4",
    "l40s-8",
    "a100-pcie-8",
    "a30-4",
    "dgx-2",
    "gb200-4",
    "h100-sxm-4",
    "rtx4090-4",
];

/// One line of the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    model: String,
    pool: String,
    #[serde(default = "one")]
    count: usize,
}

fn one() -> usize {
    1
}

/// One machine to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Its node's name.
    pub name: String,
    /// The simulated model; `None` for the machine's own GPUs.
    pub model: Option<String>,
    /// The pool that it joins.
    pub pool: String,
}

impl Machine {
    /// A simulated machine.
    pub fn simulated(name: &str, model: &str, pool: &str) -> Self {
        Self {
            name: name.to_owned(),
            model: Some(model.to_owned()),
            pool: pool.to_owned(),
        }
    }
}

/// The machines of a plain `./dev up`.
pub fn default_machines() -> Vec<Machine> {
    vec![
        Machine::simulated("h100-1", "dgx-h100", "h100"),
        Machine::simulated("a100-1", "dgx-a100", "a100"),
        Machine::simulated("l40s-1", "l40s-4", "l40s"),
    ]
}

/// Reads the file; errors name the file, and the entry and key that are wrong.
pub fn read(file: &Path) -> anyhow::Result<Vec<Machine>> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("read the list of machines {}", file.display()))?;
    parse(&text).with_context(|| format!("the list of machines {}", file.display()))
}

fn parse(text: &str) -> anyhow::Result<Vec<Machine>> {
    let lines: Vec<Line> = serde_saphyr::from_str(text)
        .map_err(|error| anyhow::anyhow!("{error}"))
        .context("must be a list of {name, model, pool, count}")?;
    let mut machines = Vec::new();
    for line in &lines {
        for (key, value) in [("name", &line.name), ("pool", &line.pool)] {
            if value.parse::<domain::name::Name>().is_err() {
                bail!(
                    "{key} {value:?} is no name: small letters, digits, '.', '_' and '-', at most 63"
                );
            }
        }
        if !MODELS.contains(&line.model.as_str()) {
            bail!(
                "model {:?} of {} is not known; choose one of {}",
                line.model,
                line.name,
                MODELS.join(", ")
            );
        }
        if line.count == 0 || machines.len() + line.count > MACHINES_MAX {
            bail!(
                "count {} of {} is out of range: 1 or more, {MACHINES_MAX} in all",
                line.count,
                line.name
            );
        }
        for number in 1..=line.count {
            let name = match line.count {
                1 => line.name.clone(),
                _ => format!("{}-{number}", line.name),
            };
            machines.push(Machine::simulated(&name, &line.model, &line.pool));
        }
    }
    if machines.is_empty() {
        bail!("names no machine; add one, such as: - {{name: n1, model: dgx-h100, pool: h100}}");
    }
    let mut seen = BTreeSet::new();
    match machines.iter().find(|machine| !seen.insert(&machine.name)) {
        Some(twice) => bail!(
            "name {:?} stands twice; each machine needs its own",
            twice.name
        ),
        None => Ok(machines),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_numbers_the_machines_and_one_keeps_its_name() {
        let machines = parse(
            "- {name: n1, model: dgx-h100, pool: h100, count: 3}\n- {name: single, model: a30-4, pool: small}\n",
        )
        .unwrap();
        let names: Vec<&str> = machines
            .iter()
            .map(|machine| machine.name.as_str())
            .collect();
        assert_eq!(names, ["n1-1", "n1-2", "n1-3", "single"]);
        assert_eq!(machines[3].pool, "small");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("- {name: n1, model: dgx-b200, pool: p}", "dgx-b200"),
            ("- {name: N1, model: dgx-h100, pool: p}", "\"N1\""),
            (
                "- {name: n1, model: dgx-h100, pool: p, count: 0}",
                "count 0",
            ),
            ("- {name: n1, model: dgx-h100, pool: p, gpus: 3}", "gpus"),
            ("- {name: n1, model: dgx-h100}", "pool"),
            ("[]", "names no machine"),
            (
                "- {name: a, model: a30-4, pool: p}\n- {name: a, model: a30-4, pool: p}",
                "stands twice",
            ),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
