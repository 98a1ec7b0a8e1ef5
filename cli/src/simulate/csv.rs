//! Comma-separated tables with a header, read by the names of their columns.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The largest table that is read, in bytes.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// A table in memory. Fields hold no quotes and no commas.
pub struct Table {
    path: PathBuf,
    text: String,
}

impl Table {
    /// Reads a file.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let named = || path.display().to_string();
        let length = std::fs::metadata(path).with_context(named)?.len();
        if length > FILE_BYTES_MAX {
            bail!("{}: more than {FILE_BYTES_MAX} bytes", path.display());
        }
        let text = std::fs::read_to_string(path).with_context(named)?;
        Ok(Self {
            path: path.to_owned(),
            text,
        })
    }

    /// The same table, refused where it has a column that is not one of these.
    pub fn only(self, columns: &[&str]) -> anyhow::Result<Self> {
        let header = self.text.lines().next().map(names).unwrap_or_default();
        if let Some(other) = header.iter().find(|name| !columns.contains(name)) {
            bail!(
                "{}: line 1: there is no column {other:?}; there are {}",
                self.path.display(),
                columns.join(", ")
            );
        }
        Ok(self)
    }

    /// What `made` makes of each row; an error names file and line.
    pub fn rows<T>(&self, made: impl Fn(&Row<'_>) -> anyhow::Result<T>) -> anyhow::Result<Vec<T>> {
        let mut lines = self.text.lines().enumerate();
        let header = match lines.next() {
            Some((_, line)) => names(line),
            None => bail!(
                "{}: empty; the first line names the columns",
                self.path.display()
            ),
        };
        let mut rows = Vec::new();
        for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let at = || format!("{}: line {}", self.path.display(), number + 1);
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            if fields.len() != header.len() {
                bail!(
                    "{}: {} fields under {} columns",
                    at(),
                    fields.len(),
                    header.len()
                );
            }
            let row = Row {
                header: &header,
                fields,
            };
            rows.push(made(&row).with_context(at)?);
        }
        Ok(rows)
    }
}

fn names(header: &str) -> Vec<&str> {
    let header = header.trim_start_matches('\u{feff}');
    header.split(',').map(str::trim).collect()
}

/// A row under its header.
pub struct Row<'t> {
    header: &'t [&'t str],
    fields: Vec<&'t str>,
}

impl Row<'_> {
    /// The text of a column; nothing where it is empty or not there.
    pub fn text(&self, column: &str) -> Option<&str> {
        let at = self.header.iter().position(|name| *name == column)?;
        Some(self.fields[at]).filter(|text| !text.is_empty())
    }

    /// The text of a column that must be there.
    pub fn required(&self, column: &str) -> anyhow::Result<&str> {
        self.text(column)
            .with_context(|| format!("{column}: missing"))
    }

    /// The whole number of a column, within bounds.
    pub fn number(&self, column: &str, least: i64, most: i64) -> anyhow::Result<i64> {
        let text = self.required(column)?;
        match text.parse() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => bail!("{column}: {text:?} is refused; use a whole number from {least} to {most}"),
        }
    }
}
