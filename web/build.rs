//! Embeds the pages' assets, each with a hash of its content, into a table that `assets` looks up.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Folders whose files become assets: our own, and what `npm run build` makes.
const FOLDERS: [&str; 2] = ["assets", "dist"];

fn main() -> io::Result<()> {
    let root =
        PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets the manifest folder"));
    let mut table = String::from("&[\n");
    for folder in FOLDERS {
        let path = root.join(folder);
        println!("cargo:rerun-if-changed={}", path.display());
        if path.is_dir() {
            embed_folder(&path, &mut table)?;
        } else {
            println!(
                "cargo:warning=web/{folder} is missing: pages come without live updates; run `npm ci && npm run build` in web/"
            );
        }
    }
    table.push(']');
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets the output folder"));
    fs::write(out.join("assets.rs"), table)
}

fn embed_folder(folder: &Path, table: &mut String) -> io::Result<()> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    for file in files.into_iter().filter(|file| file.is_file()) {
        println!("cargo:rerun-if-changed={}", file.display());
        let name = file
            .file_name()
            .and_then(|name| name.to_str())
            .expect("asset names are ASCII");
        let hash = hash_content(&fs::read(&file)?);
        writeln!(
            table,
            "    ({name:?}, \"{hash:016x}\", include_bytes!({:?})),",
            file.display().to_string()
        )
        .expect("writing to a string cannot fail");
    }
    Ok(())
}

/// FNV-1a: it tells versions of one file apart, it protects nothing, and it needs no dependency.
fn hash_content(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
