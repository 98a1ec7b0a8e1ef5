//! Writes every page with sample values into a folder, to be looked at in a browser without a server.

#[path = "../tests/samples/mod.rs"]
mod samples;

use std::path::Path;
use std::{env, fs, io};

/// The assets that a page names.
const ASSETS: [&str; 6] = [
    "tokens.css",
    "components.css",
    "pages.css",
    "app.js",
    "vendor.js",
    "favicon.svg",
];

fn main() -> io::Result<()> {
    let folder = env::args()
        .nth(1)
        .unwrap_or_else(|| "target/web-preview".into());
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    for name in ASSETS {
        if let Some(asset) = web::assets::find(name) {
            fs::write(folder.join(name), asset.bytes)?;
        }
    }
    for (name, html) in samples::all() {
        let html = ASSETS.iter().fold(html, |html, asset| {
            html.replace(&web::assets::address(asset), asset)
        });
        fs::write(folder.join(format!("{name}.html")), html)?;
    }
    println!("{}", folder.display());
    Ok(())
}
