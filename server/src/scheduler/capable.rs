//! What agents can carry, as labels of nodes that only the engine sees: it knows neither runners nor folders.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use domain::spec::{JobSpec, Runner};
use engine::world::{Node, World};

/// Begins the label that stands for a runner.
const RUNNER_LABEL: &str = "allotment/runner-";
/// Begins the label that stands for a folder below which a node lets jobs work.
const ROOT_LABEL: &str = "allotment/below-";
/// Stands for any root at all: a relative path begins at whichever the node names first.
const ANY_ROOT: &str = ".";
const SET: &str = "true";

/// The labels of a node whose agent drives these runners and names these roots.
pub fn labels(runners: &[String], work_roots: &[String]) -> BTreeMap<String, String> {
    let any = (!work_roots.is_empty()).then_some(ANY_ROOT);
    let roots = work_roots.iter().map(String::as_str).chain(any);
    runners
        .iter()
        .map(|runner| format!("{RUNNER_LABEL}{runner}"))
        .chain(roots.map(|root| format!("{ROOT_LABEL}{root}")))
        .map(|label| (label, SET.to_owned()))
        .collect()
}

/// A folder's path as those of roots are: without a `/` at its end.
fn trimmed(path: &str) -> &str {
    let path = Path::new(path).components().as_path();
    path.to_str()
        .expect("a part of a text, cut between characters")
}

/// Whether a label is one that only the engine sees.
pub fn internal(label: &str) -> bool {
    label.starts_with(RUNNER_LABEL) || label.starts_with(ROOT_LABEL)
}

/// Whether a node's agent can carry a job by this runner.
pub fn carries(node: &Node, runner: Runner) -> bool {
    node.labels.contains_key(&format!("{RUNNER_LABEL}{runner}"))
}

/// The folders below which some nodes let jobs work.
#[derive(Debug, Clone, Default)]
pub struct Roots(BTreeSet<String>);

/// The roots of nodes.
pub fn roots<'n>(nodes: impl IntoIterator<Item = &'n Node>) -> Roots {
    let labels = nodes.into_iter().flat_map(|node| node.labels.keys());
    let named = labels.filter_map(|label| label.strip_prefix(ROOT_LABEL));
    Roots(named.map(str::to_owned).collect())
}

impl Roots {
    /// Whether a job may work in that folder on some of these nodes.
    pub fn hold(&self, path: &str) -> bool {
        self.deepest(path).is_some()
    }

    /// The folders, by name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let named = self.0.iter().map(String::as_str);
        named.filter(|root| *root != ANY_ROOT)
    }

    /// The root that lies nearest above a path, or is it.
    fn deepest(&self, path: &str) -> Option<&str> {
        let path = Path::new(trimmed(path));
        if !path.is_absolute() {
            return self.0.get(ANY_ROOT).map(String::as_str);
        }
        let above = path.ancestors().filter_map(Path::to_str);
        above
            .filter_map(|folder| self.0.get(folder))
            .map(String::as_str)
            .next()
    }

    /// Gives nodes the labels of all roots that lie below their own: what may work below such a
    /// one may work there, too, and asks for the label of the nearest root alone.
    pub fn spread(&self, nodes: &mut [Node]) {
        let deeper: Vec<(String, BTreeSet<String>)> = self
            .names()
            .map(|root| (format!("{ROOT_LABEL}{root}"), self.above(root)))
            .collect();
        for node in nodes {
            let below_own = deeper
                .iter()
                .filter(|(_, above)| above.iter().any(|label| node.labels.contains_key(label)));
            let more: Vec<String> = below_own.map(|(label, _)| label.clone()).collect();
            node.labels
                .extend(more.into_iter().map(|label| (label, SET.to_owned())));
        }
    }

    /// The labels of the roots that lie above one.
    fn above(&self, root: &str) -> BTreeSet<String> {
        let above = Path::new(root).ancestors().skip(1).filter_map(Path::to_str);
        above
            .filter_map(|folder| self.0.get(folder))
            .map(|folder| format!("{ROOT_LABEL}{folder}"))
            .collect()
    }
}

/// The labels that a job's node must have: its own, and those of what its agent must be able to.
pub fn selector(spec: &JobSpec, roots: &Roots) -> BTreeMap<String, String> {
    let mut selector = spec.selector.clone();
    if spec.runner != Runner::Process {
        selector.insert(format!("{RUNNER_LABEL}{}", spec.runner), SET.to_owned());
    }
    if let Some(path) = &spec.working_directory {
        // Where the root has gone meanwhile no node has the label, and the job waits.
        let named = || {
            if path.starts_with('/') {
                trimmed(path)
            } else {
                ANY_ROOT
            }
        };
        let root = roots.deepest(path).unwrap_or_else(named);
        selector.insert(format!("{ROOT_LABEL}{root}"), SET.to_owned());
    }
    selector
}

/// Why a workload has no node, where that is the folder that it is to work in: roots may have gone
/// since it was taken.
pub fn folder_gone(world: &World, workload: &str) -> Option<String> {
    let work = world.workload(workload)?;
    let mut labels = work.selector.keys();
    let (label, root) = labels.find_map(|label| Some((label, label.strip_prefix(ROOT_LABEL)?)))?;
    let accepted = |pool: &String| work.pools.is_empty() || work.pools.contains(pool);
    let mut nodes = world.nodes.iter().filter(|node| accepted(&node.pool));
    if nodes.any(|node| node.labels.contains_key(label)) {
        return None;
    }
    let folder = if root == ANY_ROOT {
        "outside of its own folder".to_owned()
    } else {
        format!("in {root}")
    };
    Some(format!(
        "no node of its pools lets a job work {folder} any more"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, work_roots: &[&str]) -> Node {
        let work_roots: Vec<String> = work_roots.iter().map(|root| (*root).to_owned()).collect();
        let mut node = Node::new(name, "h100", 8);
        node.labels = labels(&["process".to_owned()], &work_roots);
        node
    }

    #[test]
    fn a_folder_asks_for_exactly_the_nodes_that_allow_it() {
        let mut nodes = [
            node("all", &["/data"]),
            node("sets", &["/data/sets", "/home"]),
            node("none", &[]),
        ];
        let roots = roots(&nodes);
        roots.spread(&mut nodes);
        for (path, able) in [
            ("/data/sets/a", &["all", "sets"][..]),
            ("/data/sets", &["all", "sets"]),
            ("/data/sets/", &["all", "sets"]),
            ("/data/other", &["all"]),
            ("/data", &["all"]),
            ("/home/ada", &["sets"]),
            ("a/b", &["all", "sets"]),
            ("/database", &[]),
            ("/", &[]),
        ] {
            let mut spec: JobSpec =
                serde_json::from_value(serde_json::json!({ "name": "j", "command": ["true"] }))
                    .expect("a spec");
            spec.working_directory = Some(path.to_owned());
            let asked = selector(&spec, &roots);
            let found: Vec<&str> = nodes
                .iter()
                .filter(|node| asked.keys().all(|label| node.labels.contains_key(label)))
                .map(|node| node.name.as_str())
                .collect();
            assert_eq!(found, able, "{path}");
            assert_eq!(roots.hold(path), !able.is_empty(), "{path}");
        }
        assert!(roots.names().eq(["/data", "/data/sets", "/home"]));
    }
}
