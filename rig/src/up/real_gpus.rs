//! The GPUs that this machine has itself, as its agent sees them.

use serde_json::Value;
use tokio::process::Command;

use crate::agents_file::Machine;
use crate::paths::Paths;

/// The machine itself, when NVIDIA's library loads and lists devices.
pub async fn machine(paths: &Paths) -> anyhow::Result<Option<Machine>> {
    let mut command = Command::new(paths.binary("allotment-agent")?);
    command.args(["gpus", "--json"]);
    let Ok(output) = command.output().await else {
        return Ok(None);
    };
    let Ok(inventory) = serde_json::from_slice::<Value>(&output.stdout) else {
        return Ok(None);
    };
    Ok(first_product(&inventory).map(|product| Machine {
        name: host_name(),
        model: None,
        pool: pool_name(&product),
    }))
}

fn first_product(inventory: &Value) -> Option<String> {
    inventory["gpus"].as_array()?.first()?["product_name"]
        .as_str()
        .map(str::to_owned)
}

fn host_name() -> String {
    let name = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_default();
    let plain = plain_name(&name);
    if plain.is_empty() {
        "gpu-1".to_owned()
    } else {
        plain
    }
}

/// `NVIDIA H200` becomes `h200`.
fn pool_name(product: &str) -> String {
    let plain = plain_name(product.trim_start_matches("NVIDIA").trim());
    if plain.is_empty() {
        "gpus".to_owned()
    } else {
        plain
    }
}

/// A text as a name: small letters, digits and dashes, at most 63.
fn plain_name(text: &str) -> String {
    let dashed: String = text
        .to_ascii_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let words: Vec<&str> = dashed.split('-').filter(|word| !word.is_empty()).collect();
    words.join("-").chars().take(63).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_named_after_the_model() {
        assert_eq!(pool_name("NVIDIA H200"), "h200");
        assert_eq!(pool_name("NVIDIA A100-SXM4-80GB"), "a100-sxm4-80gb");
        assert_eq!(pool_name("Tesla V100-PCIE-16GB"), "tesla-v100-pcie-16gb");
    }
}
