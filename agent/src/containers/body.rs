//! What a container is asked for: the job's own words as data, and the walls that no job may move.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, HostConfig, HostConfigLogConfig,
    Mount as ApiMount, MountType, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use nix::sys::resource::{Resource, getrlimit};

use super::{Container, Devices, LABEL_AGENT, LABEL_ASSIGNMENT, Named};
use crate::runs::Orders;
use crate::supervise::cgroup;

const MIB: i64 = 1024 * 1024;
/// Thousandths of a core in the runtime's billionths.
const NANO_PER_MILLI: i64 = 1_000_000;

/// What to ask the runtime for. The image is named by its id, so that it is the one that was looked at.
pub fn body(orders: &Orders, container: &Container, image_id: &str) -> ContainerCreateBody {
    let mut env: Vec<String> = orders
        .environment
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    env.push(visible(&container.devices));
    let (program, arguments) = match orders.command.split_first() {
        Some((program, arguments)) => (vec![program.clone()], arguments.to_vec()),
        None => (Vec::new(), Vec::new()),
    };
    let labels = HashMap::from([
        (LABEL_ASSIGNMENT.to_owned(), orders.assignment_id.clone()),
        (LABEL_AGENT.to_owned(), container.agent.clone()),
    ]);
    ContainerCreateBody {
        image: Some(image_id.to_owned()),
        // The program is the job's and not the image's: a command means the same to every runner.
        entrypoint: Some(program),
        cmd: Some(arguments),
        env: Some(env),
        user: orders.uid.map(|uid| format!("{uid}:{uid}")),
        working_dir: Some(container.directory.to_string_lossy().into_owned()),
        labels: Some(labels),
        attach_stdin: Some(false),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(false),
        tty: Some(false),
        host_config: Some(host(orders, container)),
        ..ContainerCreateBody::default()
    }
}

/// Some runtimes hand all devices to an image that asks by this variable: it is always ours.
fn visible(devices: &Devices) -> String {
    let names = match &devices.named {
        Named::Request(names) if !names.is_empty() => names.join(","),
        _ => "void".to_owned(),
    };
    format!("NVIDIA_VISIBLE_DEVICES={names}")
}

fn host(orders: &Orders, container: &Container) -> HostConfig {
    let limits = &orders.limits;
    // Below a group of ours that group is the limit, and counts what is killed at it. A second one of
    // the same size would count for itself and be gone with the container.
    let memory = (limits.memory_mib > 0 && container.parent.is_none())
        .then(|| limits.memory_mib.saturating_mul(MIB));
    HostConfig {
        memory,
        // Without swap, as for processes.
        memory_swap: memory,
        nano_cpus: (limits.cpus_milli > 0)
            .then(|| limits.cpus_milli.saturating_mul(NANO_PER_MILLI)),
        pids_limit: Some(cgroup::pids_max().into()),
        cgroup_parent: container.parent.clone(),
        ulimits: Some(ulimits()),
        mounts: Some(container.mounts.iter().map(mount).collect()),
        devices: Some(files(&container.devices)),
        device_requests: request(&container.devices).map(|request| vec![request]),
        shm_size: Some(container.shared_memory_mib.saturating_mul(MIB)),
        network_mode: Some(container.network.clone()),
        // By it all of its processes are found, whatever becomes of the runtime.
        group_add: orders.mark.map(|mark| vec![mark.to_string()]),
        init: Some(container.init),
        // Its output is ours to keep; the runtime would keep all of it.
        log_config: Some(HostConfigLogConfig {
            typ: Some("none".to_owned()),
            config: None,
        }),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        auto_remove: Some(false),
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".to_owned()]),
        // The runtime's own filter of system calls and its masked paths stay as they are.
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        ipc_mode: Some("private".to_owned()),
        // A process namespace of its own is what is given where none is named.
        pid_mode: None,
        oom_score_adj: Some(0),
        ..HostConfig::default()
    }
}

fn mount(mount: &super::Mount) -> ApiMount {
    ApiMount {
        typ: Some(MountType::BIND),
        source: Some(mount.from.to_string_lossy().into_owned()),
        target: Some(mount.to.to_string_lossy().into_owned()),
        read_only: Some(mount.read_only),
        ..ApiMount::default()
    }
}

fn files(devices: &Devices) -> Vec<DeviceMapping> {
    let mapped = devices.files.iter().map(|(from, to)| DeviceMapping {
        path_on_host: Some(from.to_string_lossy().into_owned()),
        path_in_container: Some(to.to_string_lossy().into_owned()),
        // No more of them can be made: that would be `m`.
        cgroup_permissions: Some("rw".to_owned()),
    });
    mapped.collect()
}

fn request(devices: &Devices) -> Option<DeviceRequest> {
    let (driver, ids) = match &devices.named {
        Named::Cdi(ids) => ("cdi", ids),
        Named::Request(ids) => ("nvidia", ids),
        Named::None => return None,
    };
    (!ids.is_empty()).then(|| DeviceRequest {
        driver: Some(driver.to_owned()),
        device_ids: Some(ids.clone()),
        capabilities: Some(vec![vec!["gpu".to_owned()]]),
        ..DeviceRequest::default()
    })
}

/// As for processes: no core dumps, and of all else as much as the agent itself may have.
fn ulimits() -> Vec<ResourcesUlimits> {
    let set = |name: &str, most: i64| ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(most),
        hard: Some(most),
    };
    let own = |resource| {
        let (_, hard) = getrlimit(resource).ok()?;
        // What is no number there is no limit.
        Some(i64::try_from(hard).unwrap_or(-1))
    };
    let processes = own(Resource::RLIMIT_NPROC).map(|most| match most {
        -1 => i64::from(cgroup::pids_max()),
        most => most.min(cgroup::pids_max().into()),
    });
    let own = [
        ("memlock", own(Resource::RLIMIT_MEMLOCK)),
        ("nofile", own(Resource::RLIMIT_NOFILE)),
        ("nproc", processes),
    ];
    let own = own
        .into_iter()
        .filter_map(|(name, most)| Some(set(name, most?)));
    std::iter::once(set("core", 0)).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::*;
    use crate::containers::Mount;
    use crate::containers::settings::Pull;
    use crate::runs::Directory;
    use crate::supervise::cgroup::{Cgroups, Limits};

    fn orders(command: &[&str]) -> Orders {
        Orders {
            assignment_id: "0197".to_owned(),
            command: command.iter().map(ToString::to_string).collect(),
            environment: BTreeMap::from([("A".to_owned(), "line\nline; $(id)".to_owned())]),
            directory: Directory {
                root: PathBuf::from("/state/work"),
                below: PathBuf::from("."),
            },
            uid: Some(20_001),
            mark: Some(1_879_048_200),
            limits: Limits {
                cpus_milli: 1500,
                memory_mib: 64,
            },
            cgroups: Cgroups::None,
            devices: None,
            private: None,
            sharing: None,
            container: None,
            log: PathBuf::from("/state/log"),
            log_bytes_max: 1,
            lease: None,
            grace_ms: 1,
        }
    }

    fn container(devices: Devices) -> Container {
        Container {
            socket: PathBuf::from("/run/podman.sock"),
            image: "bb".to_owned(),
            pull: Pull::Never,
            pull_seconds_max: 1,
            agent: "/state".to_owned(),
            mounts: vec![Mount {
                from: PathBuf::from("/data"),
                to: PathBuf::from("/data"),
                read_only: true,
            }],
            devices,
            directory: PathBuf::from("/state/work"),
            shared_memory_mib: 64,
            network: "bridge".to_owned(),
            init: true,
            parent: None,
        }
    }

    fn named(named: Named) -> Devices {
        Devices {
            named,
            files: BTreeMap::new(),
        }
    }

    fn asked(devices: Devices) -> (ContainerCreateBody, HostConfig) {
        let orders = orders(&["sh", "-c", "x; rm -rf / $(id)"]);
        let mut body = body(&orders, &container(devices), "sha256:1");
        let host = body.host_config.take().expect("a host's part");
        (body, host)
    }

    #[test]
    fn no_job_moves_its_walls() {
        let (body, host) = asked(Devices::default());
        assert_eq!(host.privileged, Some(false));
        assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
        assert_eq!(host.cap_add, None);
        assert_eq!(
            host.security_opt,
            Some(vec!["no-new-privileges".to_owned()])
        );
        for shared in [
            &host.pid_mode,
            &host.uts_mode,
            &host.userns_mode,
            &host.cgroup,
        ] {
            assert_eq!(*shared, None, "no namespace of the machine's");
        }
        assert_eq!(host.ipc_mode.as_deref(), Some("private"));
        assert_eq!(host.memory, Some(64 * MIB));
        assert_eq!(host.memory_swap, host.memory);
        assert_eq!(host.nano_cpus, Some(1_500_000_000));
        assert_eq!(body.user.as_deref(), Some("20001:20001"));
        assert_eq!(host.binds, None);
        let mounts = host.mounts.expect("mounts");
        assert_eq!(mounts[0].read_only, Some(true));
    }

    #[test]
    fn words_of_a_job_are_data() {
        let (body, _) = asked(Devices::default());
        assert_eq!(body.entrypoint, Some(vec!["sh".to_owned()]));
        let words = ["-c", "x; rm -rf / $(id)"].map(str::to_owned);
        assert_eq!(body.cmd, Some(words.to_vec()));
        let env = body.env.expect("an environment");
        assert!(env.contains(&"A=line\nline; $(id)".to_owned()), "{env:?}");
    }

    #[test]
    fn an_image_gets_the_devices_of_its_job_and_no_others_whatever_it_asks() {
        let seen = |body: &ContainerCreateBody| {
            let env = body.env.clone().expect("an environment");
            env.into_iter()
                .find(|set| set.starts_with("NVIDIA_VISIBLE_DEVICES="))
        };
        let (body, host) = asked(named(Named::Cdi(vec!["nvidia.com/gpu=GPU-1".to_owned()])));
        assert_eq!(seen(&body).as_deref(), Some("NVIDIA_VISIBLE_DEVICES=void"));
        let requests = host.device_requests.expect("requests");
        assert_eq!(requests[0].driver.as_deref(), Some("cdi"));
        let (body, host) = asked(named(Named::Request(vec!["GPU-1".to_owned()])));
        assert_eq!(seen(&body).as_deref(), Some("NVIDIA_VISIBLE_DEVICES=GPU-1"));
        assert_eq!(host.device_requests.expect("requests")[0].count, None);
        let (body, host) = asked(named(Named::Request(Vec::new())));
        assert_eq!(seen(&body).as_deref(), Some("NVIDIA_VISIBLE_DEVICES=void"));
        assert_eq!(host.device_requests, None);
        let file = (PathBuf::from("/sim/nvidia0"), PathBuf::from("/dev/nvidia0"));
        let (_, host) = asked(Devices {
            named: Named::None,
            files: BTreeMap::from([file]),
        });
        let devices = host.devices.expect("devices");
        assert_eq!(devices[0].cgroup_permissions.as_deref(), Some("rw"));
    }
}
