//! Fails on a new arrow: between crates by their manifests, inside the server by its `use` lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Who may depend on whom among the workspace's crates. A new pair needs a decision record.
const CRATES: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("engine", &["domain"]),
    ("protocol", &["domain"]),
    ("web", &["domain"]),
    ("server", &["domain", "engine", "protocol", "web"]),
    ("agent", &["domain", "protocol"]),
    ("cli", &["domain", "engine", "web"]),
    ("nvml-sim", &[]),
    ("rig", &["domain"]),
    ("tests", &["domain", "rig"]),
];

/// Which of the server's modules each may name, from the lowest up. ARCHITECTURE.md has this table
/// as its diagram.
const LAYERS: &[(&str, &[&str])] = &[
    ("config", &[]),
    ("store", &["config"]),
    ("accounting", &["store"]),
    ("lifecycle", &["accounting", "config", "store"]),
    ("scheduler", &["accounting", "app", "lifecycle", "store"]),
    (
        "app",
        &["accounting", "config", "lifecycle", "scheduler", "store"],
    ),
    (
        "agents",
        &["accounting", "app", "config", "lifecycle", "store"],
    ),
    (
        "background",
        &["accounting", "app", "config", "lifecycle", "store"],
    ),
    ("front", &["app", "config", "store"]),
    ("setup", &["app", "config", "store"]),
    ("api", &["app", "front"]),
    ("pages", &["app", "front"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn crates_depend_only_downwards() {
    let names: BTreeSet<&str> = CRATES.iter().map(|(name, _)| *name).collect();
    let mut faults = Vec::new();
    for (name, allowed) in CRATES {
        let manifest = fs::read_to_string(root().join(name).join("Cargo.toml"))
            .expect("each crate has a manifest");
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or("");
        let dependencies = dependencies.split("\n[").next().unwrap_or("");
        for line in dependencies.lines() {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or("");
            if names.contains(dependency) && !allowed.contains(&dependency) {
                faults.push(format!("{name} -> {dependency}"));
            }
        }
    }
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn the_servers_layers_call_only_downwards() {
    let layers: BTreeMap<&str, &[&str]> = LAYERS.iter().copied().collect();
    let mut faults = Vec::new();
    for (layer, allowed) in LAYERS {
        let mut files = Vec::new();
        sources(&root().join("server/src").join(layer), &mut files);
        let alone = root().join(format!("server/src/{layer}.rs"));
        files.extend(alone.exists().then_some(alone));
        assert!(!files.is_empty(), "there is no layer {layer}");
        for file in files {
            let text = fs::read_to_string(&file).expect("a source file is text");
            let product = text.split("\n#[cfg(test)]").next().unwrap_or("");
            for named in product.split("crate::").skip(1) {
                let module: String = named
                    .chars()
                    .take_while(|c| c.is_ascii_lowercase() || *c == '_')
                    .collect();
                // Modules named in one list with braces would be missed.
                assert!(
                    !module.is_empty(),
                    "{}: name one module a line",
                    file.display()
                );
                let other = module != *layer && layers.contains_key(module.as_str());
                if other && !allowed.contains(&module.as_str()) {
                    faults.push(format!(
                        "{} -> {module}",
                        file.strip_prefix(root()).unwrap_or(&file).display()
                    ));
                }
            }
        }
    }
    faults.sort();
    faults.dedup();
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn the_diagram_is_that_of_the_layers() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page is there");
    let width = LAYERS.iter().map(|(layer, _)| layer.len()).max();
    let width = width.expect("there are layers");
    let mut diagram = String::new();
    for (layer, allowed) in LAYERS.iter().rev() {
        let below = allowed.join(" ");
        let line = format!(
            "{layer:width$}  →  {}",
            if below.is_empty() { "nobody" } else { &below }
        );
        diagram.push_str(&line);
        diagram.push('\n');
    }
    assert!(
        page.contains(&format!("```\n{diagram}```\n")),
        "it should be:\n{diagram}"
    );
}

#[test]
fn sql_stands_in_the_store_alone() {
    let mut files = Vec::new();
    sources(&root().join("server/src"), &mut files);
    let outside: Vec<_> = files
        .iter()
        .filter(|f| !f.starts_with(root().join("server/src/store")))
        .filter(|f| fs::read_to_string(f).is_ok_and(|text| text.contains("sqlx::query")))
        .collect();
    assert!(outside.is_empty(), "{outside:?}");
}

#[test]
fn the_engine_and_the_domain_hold_no_float_and_read_no_clock() {
    let mut files = Vec::new();
    sources(&root().join("engine/src"), &mut files);
    sources(&root().join("domain/src"), &mut files);
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file is text");
        for (number, line) in text.lines().enumerate() {
            let words: BTreeSet<&str> = line
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .collect();
            let documented = line.contains("value_type");
            for banned in ["f32", "f64", "SystemTime", "Instant", "tokio"] {
                assert!(
                    documented || !words.contains(banned),
                    "{}:{}: {banned}",
                    file.display(),
                    number + 1
                );
            }
        }
    }
}
