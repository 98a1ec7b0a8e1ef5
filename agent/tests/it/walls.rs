//! What keeps jobs apart: each test tries to get past a wall, and beside it the same where there is
//! none, so that a try which could not succeed anywhere proves nothing here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use protocol::wire;
use serde_json::Value;

use crate::rig::{Agent, OTHER_UID, UID, assignment, content, is_root, stopped};

/// Character devices of this number are for local use: no driver has them, so that an opening which
/// nothing bars ends with `NO_DRIVER`.
const LOCAL: u64 = 60;
const NO_DRIVER: &str = "6";
const BARRED: &str = "1";
const OPEN: &str = "done";

/// A job in Perl whose `told` says how a try went: `done`, or the number of the kernel's refusal.
fn tries(text: &str) -> wire::Assignment {
    let told =
        r#"sub told { my ($name, $done) = @_; print "$name=", ($done ? "done" : $! + 0), "\n"; }"#;
    let mut job = assignment(&["perl", "-e", &format!("{told} {text}")]);
    // Or it complains of a machine that lacks the language that jobs are set to.
    let quiet = ("PERL_BADLANG".to_owned(), "0".to_owned());
    job.env.extend([quiet]);
    job
}

/// How its tries went, by name.
async fn results(agent: &Agent, job: &wire::Assignment) -> BTreeMap<String, String> {
    agent.want_also(job).await;
    let exited = agent.server.exited(&job.id).await;
    let log = agent.server.read_log(&job.id, false).await.expect("a log");
    assert_eq!(exited.code, Some(0), "{} {log}", exited.message);
    agent.server.released(&job.id).await;
    let lines = log.lines().filter_map(|line| line.split_once('='));
    lines.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// Openings of device files, by name below a folder.
fn openings(root: &Path, names: &[&str]) -> wire::Assignment {
    let tries = names.iter().map(|name| {
        let path = root.join(name);
        format!(r#"told("{name}", open(my $f, "<", "{}"));"#, path.display())
    });
    tries_of(tries)
}

fn tries_of(all: impl Iterator<Item = String>) -> wire::Assignment {
    tries(&all.collect::<String>())
}

/// A machine of eight A100s, and device files that stand in for theirs.
struct Stand {
    agent: Agent,
    machine: PathBuf,
    root: PathBuf,
}

impl Stand {
    async fn start(settings: &str) -> Self {
        let mut agent = Agent::enrolled().await;
        let root = agent.open_folder().join("dev");
        let driver = agent.folder.path().join("driver");
        fs::create_dir_all(root.join("nvidia-caps")).expect("made");
        fs::create_dir_all(driver.join("nvidia-caps")).expect("made");
        let caps: Vec<String> = (0..28)
            .map(|at| format!("nvidia-caps/nvidia-cap{at}"))
            .collect();
        let devices = (0..8).map(|at| format!("nvidia{at}"));
        let more = [
            "nvidiactl",
            "nvidia-uvm",
            "nvidia-uvm-tools",
            "fabric",
            "other",
        ];
        let all = devices.chain(caps).chain(more.map(str::to_owned));
        for (minor, name) in all.enumerate() {
            let path = root.join(name);
            let mode = Mode::from_bits_truncate(0o666);
            let number = makedev(LOCAL, minor as u64);
            mknod(&path, SFlag::S_IFCHR, mode, number).expect("made");
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
            fs::set_permissions(&path, open).expect("opened");
        }
        // Of each device, GPU instances 1 to 14 with a compute instance each, as drivers number them.
        let minors = (1..14).flat_map(|gi| {
            let at = gi * 2;
            [
                format!("gpu0/gi{gi}/access {at}\n"),
                format!("gpu0/gi{gi}/ci0/access {}\n", at + 1),
            ]
        });
        let minors: String = minors.collect();
        fs::write(driver.join("nvidia-caps/mig-minors"), minors).expect("written");
        let machine = agent.simulate(
            "dgx-a100",
            &format!(
                "dev_root = '{0}'\ndriver_root = '{1}'\ndevice_files = ['{0}/fabric']\n{settings}",
                root.display(),
                driver.display()
            ),
        );
        agent.start().await;
        Self {
            agent,
            machine,
            root,
        }
    }

    /// The UUID of the device whose file is `nvidiaN`.
    fn device(&self, minor: u64) -> String {
        let text = fs::read(&self.machine).expect("a machine");
        let machine: Value = serde_json::from_slice(&text).expect("JSON");
        let devices = machine["devices"].as_array().expect("a list");
        let found = devices.iter().find(|device| device["minor"] == minor);
        let uuid = found.expect("a device")["uuid"].as_str();
        uuid.expect("a UUID").to_owned()
    }

    fn whole(&self, minor: u64) -> wire::DeviceShare {
        wire::DeviceShare {
            uuid: self.device(minor),
            mode: "exclusive".to_owned(),
            gpus_milli: 1000,
            ..wire::DeviceShare::default()
        }
    }

    /// How openings of device files went for a job with these devices.
    async fn opens(&self, names: &[&str], devices: Vec<wire::DeviceShare>) -> Vec<String> {
        let job = wire::Assignment {
            devices,
            ..openings(&self.root, names)
        };
        let results = results(&self.agent, &job).await;
        names.iter().map(|name| results[*name].clone()).collect()
    }
}

/// A user of whom nothing else runs, so that what its jobs leave is wiped.
const LONE_UID: u32 = 251_200;

/// Whether walls can be tried here: only root can be many users.
fn skipped() -> bool {
    if !is_root() {
        eprintln!("NOT CHECKED: only root can keep users apart");
    }
    !is_root()
}

#[tokio::test]
async fn a_job_opens_the_device_files_of_its_own_gpus_and_no_others() {
    if skipped() {
        return;
    }
    let names = [
        "nvidia0",
        "nvidia1",
        "nvidiactl",
        "nvidia-uvm",
        "fabric",
        "other",
    ];
    let stand = Stand::start("").await;
    let warnings = stand.agent.server.inner().inventories[0].warnings.clone();
    assert!(warnings.is_empty(), "{warnings:?}");
    let own = stand.opens(&names, vec![stand.whole(0)]).await;
    let (yes, no) = (NO_DRIVER, BARRED);
    assert_eq!(own, [yes, no, yes, yes, yes, no]);
    let both = vec![stand.whole(0), stand.whole(1)];
    assert_eq!(stand.opens(&names[..2], both).await, [yes, yes]);
    // Of no GPU not even what all have in common.
    assert_eq!(
        stand.opens(&names, Vec::new()).await,
        [no, no, no, no, yes, no]
    );
    let dev = Path::new("/dev");
    let usual = ["null", "zero", "full", "random", "urandom", "ptmx"];
    let results = results(&stand.agent, &openings(dev, &usual)).await;
    assert!(results.values().all(|went| went == OPEN), "{results:?}");

    let bare = Stand::start("cgroup_parent = 'cgroup.procs/none'").await;
    assert_eq!(bare.opens(&names, vec![bare.whole(0)]).await, [yes; 6]);
    let warnings = bare.agent.server.inner().inventories[0].warnings.concat();
    assert!(warnings.contains("device files of all GPUs"), "{warnings}");
}

#[tokio::test]
async fn a_job_opens_the_capabilities_of_its_own_instance_and_no_others() {
    if skipped() {
        return;
    }
    let stand = Stand::start("").await;
    let slice = |start| wire::DeviceShare {
        uuid: stand.device(0),
        mode: "mig".to_owned(),
        gpus_milli: 125,
        mig: Some(wire::MigSlice {
            profile: "1g.10gb".to_owned(),
            start,
            size: 1,
        }),
        ..wire::DeviceShare::default()
    };
    let names: Vec<String> = (0..28)
        .map(|at| format!("nvidia-caps/nvidia-cap{at}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut seen = Vec::new();
    for start in [0, 1] {
        let holder = wire::Assignment {
            devices: vec![slice(start)],
            ..assignment(&["sleep", "1000"])
        };
        // The first stays, so that the second has another instance.
        let went = stand.opens(&names, vec![slice(start)]).await;
        let open = went
            .iter()
            .enumerate()
            .filter(|(_, went)| *went == NO_DRIVER);
        seen.push(open.map(|(at, _)| at).collect::<Vec<_>>());
        stand.agent.want_also(&holder).await;
        stand.agent.server.started(&holder.id).await;
    }
    for open in &seen {
        // A GPU instance and the compute instance in it.
        assert_eq!(open.len(), 2, "{seen:?}");
        assert!(open[0] >= 2 && open[1] == open[0] + 1, "{seen:?}");
    }
    assert_ne!(seen[0], seen[1]);
    assert_eq!(stand.opens(&["nvidia0"], vec![slice(2)]).await, [NO_DRIVER]);
}

/// A job of one team that has a secret in each place where another one might look, and tells its pid and
/// the address of a secret in its memory.
fn keeper(told: &Path, place: &Place) -> wire::Assignment {
    let mut job = tries(&format!(
        r#"my $secret = "secret"; my $address = unpack("J", pack("p", $secret));
           for my $path ("secret", "/tmp/{2}", "/var/tmp/{2}", "/dev/shm/{2}") {{
               open(my $f, ">", $path) or die "$path: $!"; print $f $secret; close($f); chmod(0644, $path);
           }}
           shmget({3}, 4096, 0666 | 01000) // die "no shared memory: $!";
           open(my $told, ">", "{0}.new"); print $told "$$ $address $ENV{{HOME}}\n"; close($told);
           chmod(0644, "{0}.new"); rename("{0}.new", "{0}"); sleep({1});"#,
        told.display(),
        1000,
        place.name,
        place.key,
    ));
    job.env.insert("SECRET".to_owned(), "secret".to_owned());
    job
}

/// The name of a secret where all users may write, and the key of one of System V: each agent's own,
/// whatever a test that was killed has left.
struct Place {
    name: String,
    key: u32,
}

impl Place {
    fn of(agent: &Agent) -> Self {
        let name = agent.folder.path().file_name().expect("a name");
        Self {
            name: format!("secret-{}", name.to_string_lossy()),
            // A test is a process of its own, or a thread: its agent is one.
            key: agent.pid().unsigned_abs() | 0x0A00_0000,
        }
    }
}

/// What a job tries of the one that keeps a secret. Numbers of calls are those of x86-64.
fn thief(told: &str, place: &Place, uid: u32) -> wire::Assignment {
    let mut words = told.split_whitespace();
    let mut next = || words.next().expect("a word");
    let (pid, address, home) = (next(), next(), next());
    let Place { name, key } = place;
    let job = tries(&format!(
        r#"sub holds {{ my ($path, $at) = @_; open(my $f, "<", $path) or return 0; sysseek($f, $at, 0) if $at;
                        sysread($f, my $text, $at ? 6 : 65536) // return 0; return $text =~ /secret/ ? 1 : 0; }}
           told("file", holds("{home}/secret", 0));
           told("environment", holds("/proc/{pid}/environ", 0));
           told("memory", holds("/proc/{pid}/mem", {address}));
           my $into = "\0" x 6; my $to = pack("JJ", unpack("J", pack("p", $into)), 6); my $from = pack("JJ", {address}, 6);
           told("read", syscall(310, {pid}, $to, 1, $from, 1, 0) == 6 && $into eq "secret");
           told("trace", syscall(101, 0x4206, {pid}, 0, 0) == 0);
           told("signal", kill(0, {pid}));
           told("list", -d "/proc/{pid}");
           told("root", -d "/proc/{pid}/root/etc");
           for my $above ("/tmp", "/var/tmp", "/dev/shm") {{ told($above, holds("$above/{name}", 0)); }}
           my $up = "../" x 32; told("up", holds("${{up}}tmp/{name}", 0));
           told("objects", defined shmget({key}, 4096, 0));"#
    ));
    wire::Assignment { uid, ..job }
}

#[tokio::test]
async fn a_job_reads_nothing_of_another_teams() {
    if skipped() {
        return;
    }
    let agent = Agent::running().await;
    let (told, place) = (agent.open_folder().join("told"), Place::of(&agent));
    let keeper = keeper(&told, &place);
    agent.want_also(&keeper).await;
    let told = content(&told).await;

    let stranger = results(&agent, &thief(&told, &place, OTHER_UID)).await;
    assert!(stranger.values().all(|went| went != OPEN), "{stranger:?}");
    // Of what has a path there is not even that it is there; EPERM would say that there is one.
    assert_eq!(stranger["list"], "2");

    // The same tries succeed where the user is the same, but for what is each job's own.
    let own = results(&agent, &thief(&told, &place, UID)).await;
    let failed: Vec<&str> = own
        .iter()
        .filter(|(_, went)| *went != OPEN)
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(failed, ["/dev/shm", "/tmp", "/var/tmp", "objects", "up"]);
    for above in ["/tmp", "/var/tmp", "/dev/shm"] {
        assert!(!Path::new(above).join(&place.name).exists(), "{above}");
    }
    let work = agent.state().join("jobs").join(&keeper.id);
    let kept = |below: &str| work.join(below).join(&place.name).exists();
    assert!(kept("tmp") && kept("var-tmp"));
}

#[tokio::test]
async fn without_private_tmp_teams_share_what_all_may_write_to_and_the_node_says_so() {
    if skipped() {
        return;
    }
    let mut agent = Agent::enrolled().await;
    agent.configure("private_tmp = false");
    agent.start().await;
    let warnings = agent.server.inner().inventories[0].warnings.concat();
    assert!(warnings.contains("private_tmp = false"), "{warnings}");
    let lacks = agent.server.inner().inventories[0].lacks.clone();
    let has = |word: &str| lacks.iter().any(|lacking| lacking == word);
    assert!(has("temporary_files") && has("process_list"), "{lacks:?}");
    assert!(!has("users"), "jobs run as their team's user: {lacks:?}");
    let (told, place) = (agent.open_folder().join("told"), Place::of(&agent));
    let keeper = wire::Assignment {
        uid: LONE_UID,
        ..keeper(&told, &place)
    };
    agent.want_also(&keeper).await;
    let told = content(&told).await;
    let stranger = results(&agent, &thief(&told, &place, OTHER_UID)).await;
    let open: Vec<&str> = stranger
        .iter()
        .filter(|(_, went)| *went == OPEN)
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        open,
        ["/dev/shm", "/tmp", "/var/tmp", "list", "objects", "up"]
    );
    // What lies in memory does not outlive the team's last job; what lies on disk is nobody's to remove.
    agent.server.desire(&[stopped(&keeper, 0)]).await;
    agent.server.released(&keeper.id).await;
    let later = results(&agent, &thief(&told, &place, UID)).await;
    assert_ne!(later["objects"], OPEN);
    assert!(!Path::new("/dev/shm").join(&place.name).exists());
    for above in ["/tmp", "/var/tmp"] {
        fs::remove_file(Path::new(above).join(&place.name)).expect("removed");
    }
}

#[tokio::test]
async fn a_job_has_none_of_the_keys_of_whoever_started_its_agent() {
    if skipped() {
        return;
    }
    let mut agent = Agent::enrolled().await;
    // A session of this thread's, which the agent is started from, with a key that all in it may read.
    let name = c"allotment-test";
    // SAFETY: the texts end with a zero and outlive the calls.
    #[allow(unsafe_code)]
    let key = unsafe {
        let join = libc::KEYCTL_JOIN_SESSION_KEYRING;
        if libc::syscall(libc::SYS_keyctl, join, std::ptr::null::<libc::c_char>()) < 0 {
            eprintln!("NOT CHECKED: this kernel has no keys");
            return;
        }
        let (kind, text) = (c"user".as_ptr(), c"secret".as_ptr());
        let session = libc::KEY_SPEC_SESSION_KEYRING;
        libc::syscall(libc::SYS_add_key, kind, name.as_ptr(), text, 6, session)
    };
    assert!(key > 0, "{}", std::io::Error::last_os_error());
    agent.start().await;
    // To find a key of the session by its name, and to join a new session, by their numbers in keyctl(2).
    let search = r#"told("key", syscall(250, 10, -3, my $kind = "user", my $name = "allotment-test", 0) > 0);"#;
    let seen = results(&agent, &tries(search)).await;
    assert_ne!(seen["key"], OPEN);
    // The same question finds it here.
    let own = std::process::Command::new("perl")
        .args([
            "-e",
            r#"print syscall(250, 10, -3, my $kind = "user", my $name = "allotment-test", 0);"#,
        ])
        .output()
        .expect("perl runs");
    assert_eq!(String::from_utf8_lossy(&own.stdout), key.to_string());
}

#[tokio::test]
async fn a_job_dumps_no_core_and_may_pin_memory_and_open_files_as_the_node_allows() {
    let agent = Agent::running().await;
    let job = assignment(&["cat", "/proc/self/limits"]);
    agent.want_also(&job).await;
    assert_eq!(agent.server.exited(&job.id).await.code, Some(0));
    let log = agent.server.read_log(&job.id, false).await.expect("a log");
    let limits = |name: &str| -> Vec<String> {
        let line = log.lines().find_map(|line| line.strip_prefix(name));
        let words = line.expect("a limit").split_whitespace().take(2);
        words.map(str::to_owned).collect()
    };
    assert_eq!(limits("Max core file size"), ["0", "0"]);
    // As much as the agent may have itself, at once.
    let (_, files) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).expect("told");
    assert_eq!(
        limits("Max open files"),
        [files.to_string(), files.to_string()]
    );
    let pinned = limits("Max locked memory");
    assert_eq!(pinned[0], pinned[1]);
    assert_ne!(pinned[0], "0");
}
