//! Generates the protocol's types from the .proto, without protoc.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let agents = protox::compile(["proto/agent.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(agents)?;
    // In a folder of its own: what it imports would be written once more, without its messages.
    let folder = PathBuf::from(std::env::var("OUT_DIR")?).join("between");
    std::fs::create_dir_all(&folder)?;
    let replicas = protox::compile(["proto/replicas.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .out_dir(folder)
        .extern_path(".allotment.agent.v1", "crate::wire")
        .compile_fds(replicas)?;
    Ok(())
}
