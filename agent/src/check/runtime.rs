//! Whether jobs run as containers here, and by which runtime.

use std::env;
use std::path::{Path, PathBuf};

use super::{Finding, Need, State};
use crate::config::Config;
use crate::containers::settings::{Settings, Way};
use crate::node::containers::{Seen, look};

/// Programs that run images; the first that is there is told.
const RUNTIMES: [&str; 4] = ["podman", "docker", "nerdctl", "apptainer"];
/// Where programs lie when nobody says so.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) fn container_runtime(config: &Config, root: bool) -> Finding {
    match &config.containers.socket {
        Some(socket) => told(socket, asked(&config.containers, root)),
        None => {
            let search = env::var("PATH").unwrap_or_else(|_| SEARCH_PATH.to_owned());
            unset(program(&search))
        }
    }
}

/// What the runtime says, asked on a thread of its own: who checks may be a part of a running runtime.
fn asked(settings: &Settings, root: bool) -> Result<Seen, String> {
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            Ok(runtime.block_on(look(settings, root)))
        });
        match asking.join() {
            Ok(seen) => seen,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn told(socket: &Path, seen: Result<Seen, String>) -> Finding {
    let found = |seen: String| Finding::ok("container runtime", Need::Optional, seen);
    let why = match seen {
        Ok(Seen::Ready(runtime)) => {
            let way = match runtime.way {
                Way::Cdi => "by CDI",
                Way::Request => "by the runtime's driver for NVIDIA",
                Way::Files | Way::Auto => "as device files",
            };
            let version = &runtime.version;
            let told = found(format!(
                "{} answers: version {version}, devices {way}",
                socket.display()
            ));
            return match runtime.way {
                Way::Files | Way::Auto => told.but(
                    State::Warning,
                    "let the driver's container toolkit write a specification (nvidia-ctk cdi generate) for a runtime that reads it: without one the driver's libraries must be in each image",
                ),
                Way::Cdi | Way::Request => told,
            };
        }
        Ok(Seen::Missing(why)) => why,
        Ok(Seen::Unset) => "no socket is set".to_owned(),
        Err(error) => error,
    };
    found(why).but(
        State::Missing,
        "start the runtime's API, such as podman system service or docker.service, as root, and name its socket in containers.socket",
    )
}

fn unset(program: Option<PathBuf>) -> Finding {
    let found = |seen: String| Finding::ok("container runtime", Need::Optional, seen);
    match program {
        Some(path) => found(format!(
            "{}; no socket is set, so that jobs run as processes alone",
            path.display()
        ))
        .but(
            State::Warning,
            "name the socket of its API in containers.socket where jobs are to run as containers",
        ),
        None => found("none; jobs run as processes, which need none".to_owned()).but(
            State::Missing,
            "install podman or docker and name the socket of its API in containers.socket where jobs are to run as containers",
        ),
    }
}

fn program(search: &str) -> Option<PathBuf> {
    RUNTIMES.iter().find_map(|name| {
        let mut folders = search.split(':').map(Path::new);
        folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_at_which_nobody_answers_is_missed_with_a_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config {
            containers: Settings {
                socket: Some(folder.path().join("podman.sock")),
                ..Settings::default()
            },
            ..Config::default()
        };
        let found = container_runtime(&config, true);
        assert_eq!(found.state, State::Missing);
        assert!(found.seen.contains("podman.sock"), "{}", found.seen);
        assert!(!found.needed, "processes need none");
        let found = container_runtime(&config, false);
        assert!(found.seen.contains("not root"), "{}", found.seen);
    }

    #[test]
    fn a_program_without_a_socket_is_no_runtime_of_ours() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(unset(None).state, State::Missing);
        std::fs::write(folder.path().join("podman"), "").expect("written");
        let search = format!("/nowhere:{}", folder.path().display());
        assert_eq!(unset(program(&search)).state, State::Warning);
    }
}
