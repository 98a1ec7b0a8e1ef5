//! `allot results`: the files that a job left in ALLOTMENT_OUTPUT_DIR.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use futures_util::StreamExt as _;
use serde_json::Value;

use crate::client::{Client, part};
use crate::failure::Failure;
use crate::foreign::plain;
use crate::table;

/// List the files that a job left, or fetch them.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  allot results --fetch ./digits 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f"
)]
pub struct Results {
    /// The job's id
    id: String,
    /// Fetch them into this folder, which is made; what lies there stays
    #[arg(long, value_name = "DIR")]
    fetch: Option<PathBuf>,
    /// The worker's rank
    #[arg(long, short, default_value_t = 0)]
    worker: u32,
    /// The attempt [default: the last]
    #[arg(long, short)]
    attempt: Option<u32>,
    /// Which filling of the rank, of one that was filled anew [default: the last]
    #[arg(long)]
    filling: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Results {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        let query = self.query();
        let path = format!("/jobs/{}/results", part(&self.id));
        let list = client.get(&path, &query).await?;
        let files = list["items"].as_array().cloned().unwrap_or_default();
        if let Some(folder) = &self.fetch {
            for file in &files {
                self.fetch_one(&client, folder, file).await?;
            }
        }
        if self.json {
            return table::print_json(&list);
        }
        if files.is_empty() {
            table::print_line(
                "No files. What a job puts into ALLOTMENT_OUTPUT_DIR is listed once it has ended.",
            )?;
        }
        for file in &files {
            let path = table::text(&file["path"]);
            table::print_line(&format!("{:>14}  {path}", file["bytes"]))?;
        }
        match list["dropped"].as_u64() {
            None | Some(0) => Ok(()),
            Some(dropped) => table::print_line(&format!(
                "{dropped} more were not kept: no plain files of the job's own, too many, too deep or too large."
            )),
        }
    }

    fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = vec![("worker", self.worker.to_string())];
        query.extend(self.attempt.map(|attempt| ("attempt", attempt.to_string())));
        query.extend(self.filling.map(|filling| ("filling", filling.to_string())));
        query
    }

    async fn fetch_one(&self, client: &Client, folder: &Path, file: &Value) -> Result<(), Failure> {
        let path = file["path"].as_str().unwrap_or_default();
        let number = file["number"].as_u64().unwrap_or_default();
        let Some(to) = below(folder, path) else {
            eprintln!(
                "note: {} is not fetched: its path leads out of the folder",
                plain(path)
            );
            return Ok(());
        };
        let from = format!("/jobs/{}/results/{number}", part(&self.id));
        let response = client.open(&from, &self.query()).await?;
        let mut written = create(folder, &to).with_context(|| format!("write {}", to.display()))?;
        let mut stream = response.bytes_stream();
        while let Some(bytes) = stream.next().await {
            let bytes = bytes.with_context(|| format!("{} broke off", plain(path)))?;
            written
                .write_all(&bytes)
                .with_context(|| format!("write {}", to.display()))?;
        }
        Ok(())
    }
}

/// Where a file goes: below the folder, whatever its job called it.
fn below(folder: &Path, path: &str) -> Option<PathBuf> {
    let parts = Path::new(path).components();
    let plain = path
        .split('/')
        .all(|part| !part.is_empty() && part != "." && part != ".." && !part.contains('\0'));
    let normal = parts
        .clone()
        .all(|part| matches!(part, Component::Normal(_)));
    (plain && normal && parts.count() > 0).then(|| folder.join(path))
}

/// Makes a file that is not there, through no link below the folder.
fn create(folder: &Path, to: &Path) -> anyhow::Result<fs::File> {
    let parent = to.parent().unwrap_or(folder);
    fs::create_dir_all(parent)?;
    let (root, real) = (folder.canonicalize()?, parent.canonicalize()?);
    anyhow::ensure!(
        real.starts_with(&root),
        "a link leads out of {}",
        folder.display()
    );
    let mut options = OpenOptions::new();
    Ok(options.write(true).create_new(true).open(to)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_that_a_job_chose_leads_out_of_the_folder() {
        let folder = Path::new("/tmp/here");
        assert_eq!(below(folder, "a/b.txt"), Some(folder.join("a/b.txt")));
        for path in ["../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "a/./b"] {
            assert_eq!(below(folder, path), None, "{path}");
        }
    }

    #[test]
    fn what_lies_there_stays_and_no_link_is_followed() {
        let root = tempfile::tempdir().expect("a folder");
        let (folder, outside) = (root.path().join("in"), root.path().join("out"));
        fs::create_dir_all(&folder).expect("made");
        fs::create_dir_all(&outside).expect("made");
        std::os::unix::fs::symlink(&outside, folder.join("link")).expect("linked");
        assert!(create(&folder, &folder.join("link/x")).is_err());
        assert!(create(&folder, &folder.join("new/x")).is_ok());
        assert!(create(&folder, &folder.join("new/x")).is_err());
        assert!(!outside.join("x").exists());
    }
}
