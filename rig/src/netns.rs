//! A network namespace joined to this machine by a pair of virtual cables: a second machine, for tests of root.

use std::process::Command;

use anyhow::{Context, bail};

use crate::child::in_words;
use crate::who;

/// A namespace with one link; removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    /// Its name, for `ip netns exec`.
    pub name: String,
    /// The address of this machine on the link.
    pub outer: String,
    /// The address inside.
    pub inner: String,
    cable: String,
}

impl Namespace {
    /// Why none can be made here, if so.
    pub fn impossible() -> Option<String> {
        if !who::root() {
            return Some("only root may make network namespaces".to_owned());
        }
        if let Err(error) = ip(&["netns", "list"]) {
            return Some(format!("{error:#}"));
        }
        None
    }

    /// Makes one; `number` (below 64) tells those of one machine apart.
    pub fn make(number: u8) -> anyhow::Result<Self> {
        // Two free addresses of a /30 in 198.18.0.0/15, which is set aside for tests.
        let base = number * 4;
        let space = Self {
            name: format!("allotment-{}-{number}", std::process::id()),
            outer: format!("198.18.7.{}", base + 1),
            inner: format!("198.18.7.{}", base + 2),
            cable: format!("alt{}", std::process::id() % 100_000_000),
        };
        let (outer_end, inner_end) = (space.outer_end(), format!("{}i", space.cable));
        ip(&["netns", "add", &space.name])?;
        ip(&[
            "link", "add", &outer_end, "type", "veth", "peer", "name", &inner_end,
        ])?;
        ip(&["link", "set", &inner_end, "netns", &space.name])?;
        ip(&[
            "addr",
            "add",
            &format!("{}/30", space.outer),
            "dev",
            &outer_end,
        ])?;
        ip(&["link", "set", &outer_end, "up"])?;
        let inside = ["netns", "exec", &space.name, "ip"];
        ip(&[
            &inside[..],
            &[
                "addr",
                "add",
                &format!("{}/30", space.inner),
                "dev",
                &inner_end,
            ],
        ]
        .concat())?;
        ip(&[&inside[..], &["link", "set", &inner_end, "up"]].concat())?;
        ip(&[&inside[..], &["link", "set", "lo", "up"]].concat())?;
        Ok(space)
    }

    /// Pulls the cable.
    pub fn cut(&self) -> anyhow::Result<()> {
        ip(&["link", "set", &self.outer_end(), "down"])
    }

    /// Puts it back.
    pub fn heal(&self) -> anyhow::Result<()> {
        ip(&["link", "set", &self.outer_end(), "up"])
    }

    fn outer_end(&self) -> String {
        format!("{}o", self.cable)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The cable goes with either end.
        let _ = ip(&["link", "del", &self.outer_end()]);
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip")
        .args(words)
        .output()
        .context("run ip, of the package iproute2")?;
    if !output.status.success() {
        bail!(
            "ip {} failed ({}): {}",
            words.join(" "),
            in_words(output.status),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
