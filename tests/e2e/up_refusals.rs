//! Starts of `./dev up` that cannot be: each is one clear sentence and a failure.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use crate::support::skip;
use crate::up::{Checkout, binary, refused, said};

#[test]
fn taken_ports_are_one_sentence_and_a_failure() {
    let checkout = Checkout::make("ports");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    // Close to the end of the range there is no room for the others, which is another error.
    if port < 64_000 {
        for more in [&[][..], &["--detach"]] {
            let up = checkout
                .up(more)
                .args(["--port", &port.to_string()])
                .output()
                .unwrap();
            refused(&up, &[&format!("port {port}"), "--port 0"]);
        }
    }
}

#[test]
fn a_wrong_list_of_machines_is_one_sentence_and_a_failure() {
    let checkout = Checkout::make("list");
    std::fs::write(
        checkout.folder.join("agents.yaml"),
        "- {name: n1, model: dgx-b200, pool: p}\n",
    )
    .unwrap();
    let up = checkout.up(&["--port", "0"]).output().unwrap();
    refused(&up, &["dgx-b200", "dgx-h100"]);
}

/// A small disk in place of a folder.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// `None` where none may be mounted.
    fn at(folder: &'a Path) -> Option<Self> {
        std::fs::create_dir_all(folder).ok()?;
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=16m", "allotment-test"])
            .arg(folder)
            .output();
        mount.ok()?.status.success().then_some(Self(folder))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn too_little_room_on_the_disk_is_one_sentence_and_a_failure() {
    let checkout = Checkout::make("disk");
    let state = rig::paths::Paths::of_checkout(&checkout.folder)
        .unwrap()
        .state;
    let Some(disk) = SmallDisk::at(&state) else {
        return skip("this user may mount no disk");
    };
    let up = checkout.up(&["--port", "0"]).output().unwrap();
    refused(&up, &[&state.display().to_string(), "2048 MiB are needed"]);
    drop(disk);
}

#[test]
fn a_missing_postgresql_is_one_sentence_and_a_failure() {
    let checkout = Checkout::make("no-postgresql");
    if !rig::who::root() {
        return skip("this user may hide nothing of the system");
    }
    // An empty folder in place of Debian's, for this command alone.
    let up = checkout.up(&["--port", "0"]);
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c"])
        .arg("mkdir -p /usr/lib/postgresql && mount -t tmpfs none /usr/lib/postgresql && exec \"$@\"")
        .arg("sh")
        .arg(up.get_program())
        .args(up.get_args())
        .env("PATH", "/usr/bin:/bin")
        .output()
        .unwrap();
    refused(
        &output,
        &["PostgreSQL is missing", "apt-get install postgresql"],
    );
}

#[test]
fn the_models_of_a_list_are_those_that_are_simulated() {
    let refused = Command::new(binary("nvml-sim-machine"))
        .args(["--model", "none-of-them"])
        .output()
        .unwrap();
    let said = said(&refused);
    let known = said
        .split_once("possible values: ")
        .and_then(|(_, rest)| rest.split_once(']'))
        .unwrap_or_else(|| panic!("it names what it knows: {said}"));
    let known: Vec<&str> = known.0.split(", ").collect();
    assert_eq!(known, rig::agents_file::MODELS);
}
