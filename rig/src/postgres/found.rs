//! Finds the programs of a PostgreSQL that is new enough.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;

/// The oldest version that the migrations are tried on.
pub const VERSION_MIN: u32 = 15;
/// Debian's and Ubuntu's place, which is in nobody's PATH.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The folder of PostgreSQL's programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    folder: PathBuf,
    /// The major version.
    pub major: u32,
}

impl Programs {
    /// Looks where ALLOTMENT_POSTGRES points, in the system's places, in PATH, then in `tools`.
    pub fn find(tools: &Path) -> anyhow::Result<Self> {
        let mut too_old = None;
        for folder in candidates(tools) {
            match version(&folder) {
                Some(major) if major >= VERSION_MIN => return Ok(Self { folder, major }),
                Some(major) => too_old = Some((folder, major)),
                None => {}
            }
        }
        match too_old {
            Some((folder, major)) => bail!(
                "PostgreSQL {major} in {} is too old: {VERSION_MIN} or newer is needed; {}",
                folder.display(),
                remedy()
            ),
            None => bail!("PostgreSQL is missing; {}", remedy()),
        }
    }

    /// The path of one program.
    pub fn path(&self, program: &str) -> PathBuf {
        self.folder.join(program)
    }
}

fn remedy() -> &'static str {
    "install it with: apt-get install postgresql (as root), or run ./dev up, which fetches it"
}

fn candidates(tools: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::env::var_os("ALLOTMENT_POSTGRES")
        .map(PathBuf::from)
        .into_iter()
        .collect();
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir(DEBIAN)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse().ok()?,
                entry.path().join("bin"),
            ))
        })
        .collect();
    versions.sort();
    found.extend(versions.into_iter().rev().map(|(_, folder)| folder));
    if let Some(path) = std::env::var_os("PATH") {
        found.extend(std::env::split_paths(&path));
    }
    found.push(tools.join("postgres/bin"));
    found
}

/// The major version of the PostgreSQL in `folder`, if all its programs that we use are there.
fn version(folder: &Path) -> Option<u32> {
    if !["initdb", "psql"]
        .iter()
        .all(|program| folder.join(program).exists())
    {
        return None;
    }
    let output = Command::new(folder.join("postgres"))
        .arg("--version")
        .output()
        .ok()?;
    major_in(&String::from_utf8(output.stdout).ok()?)
}

/// The major version in `postgres (PostgreSQL) 15.18 (Debian …)`.
fn major_in(text: &str) -> Option<u32> {
    let version = text.split_whitespace().nth(2)?;
    version
        .split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_released_and_coming_versions() {
        assert_eq!(
            major_in("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"),
            Some(15)
        );
        assert_eq!(major_in("postgres (PostgreSQL) 18.6\n"), Some(18));
        assert_eq!(major_in("postgres (PostgreSQL) 19beta1\n"), Some(19));
        assert_eq!(major_in("nonsense"), None);
    }
}
