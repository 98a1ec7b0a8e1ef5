use protocol::wire;

use super::super::findings::FINDINGS_MAX;
use super::*;

const GPU: &str = "GPU-1";
const BOOT: &str = "boot";

struct Desk {
    health: Health,
    now: Instant,
    folder: tempfile::TempDir,
}

impl Desk {
    fn new(policy: HealthPolicy) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self {
            health: Health::load(policy, folder.path().join("health.json"), BOOT),
            now: Instant::now(),
            folder,
        }
    }

    /// What is told of the device after a reading.
    fn read(&mut self, signs: &Signs) -> (String, String) {
        self.read_as(signs, DeviceHealth::Healthy)
    }

    fn read_as(&mut self, signs: &Signs, told: DeviceHealth) -> (String, String) {
        let mut snapshot = Snapshot {
            devices: vec![wire::Device {
                uuid: GPU.to_owned(),
                health: told.to_string(),
                ..wire::Device::default()
            }],
            ..Snapshot::default()
        };
        let reading = Reading {
            signs: BTreeMap::from([(GPU.to_owned(), signs.clone())]),
            ..Reading::default()
        };
        self.health.judge(&mut snapshot, Some(&reading), self.now);
        let device = snapshot.devices.remove(0);
        (device.health, device.health_reason)
    }

    fn restart(&mut self) {
        let policy = self.health.policy.clone();
        self.health = Health::load(policy, self.folder.path().join("health.json"), BOOT);
    }
}

fn well() -> Signs {
    Signs {
        ecc_uncorrected: Some(5),
        pcie_width: Some((16, 16)),
        ..Signs::default()
    }
}

#[test]
fn what_happened_stays_over_a_restart_until_it_is_cleared() {
    let mut desk = Desk::new(HealthPolicy::default());
    desk.health.note_xid(GPU, 31);
    assert_eq!(desk.read(&well()).0, "healthy", "an application's fault");
    desk.health.note_xid(GPU, 79);
    let told = desk.read(&well());
    assert_eq!(
        (told.0.as_str(), told.1.as_str()),
        ("failed", "Xid 79: fallen off the bus")
    );
    desk.restart();
    assert_eq!(desk.read(&well()).0, "failed");
    let number = desk.health.findings(GPU)[0].number;
    desk.health.note_xid(GPU, 79);
    assert!(!desk.health.clear(GPU, number), "it happened again since");
    assert_eq!(desk.read(&well()).0, "failed");
    let again = desk.health.findings(GPU)[0].number;
    assert!(again > number && desk.health.clear(GPU, again));
    assert_eq!(desk.read(&well()).0, "healthy");
}

#[test]
fn a_state_is_over_only_after_some_readings_in_a_row_without_it() {
    let mut desk = Desk::new(HealthPolicy::default());
    let pending = Signs {
        rows_pending: true,
        ..well()
    };
    assert_eq!(desk.read(&pending).0, "suspect");
    assert_eq!([desk.read(&well()).0, desk.read(&well()).0], ["suspect"; 2]);
    assert_eq!(desk.read(&pending).0, "suspect", "it begins anew");
    assert_eq!([desk.read(&well()).0, desk.read(&well()).0], ["suspect"; 2]);
    assert_eq!(desk.read(&well()).0, "healthy");
    assert_eq!(
        desk.read_as(&well(), DeviceHealth::Failed).0,
        "failed",
        "it was gone"
    );
    assert_eq!(desk.read(&well()).0, "failed", "it is back, and watched");
}

#[test]
fn memory_errors_count_from_what_is_known_also_of_those_that_nobody_was_there_to_see() {
    let mut desk = Desk::new(HealthPolicy::default());
    assert_eq!(desk.read(&well()).0, "healthy", "those of its life before");
    desk.restart();
    let more = Signs {
        ecc_uncorrected: Some(7),
        ..well()
    };
    let told = desk.read(&more);
    assert_eq!(told.0, "suspect");
    assert_eq!(told.1, "uncorrectable memory errors: 2 more, 7 in all");
}

#[test]
fn heat_counts_when_it_lasts_and_fewer_lanes_at_once() {
    let mut desk = Desk::new(HealthPolicy::default());
    let hot = Signs {
        clocks_event_reasons: 0x44,
        ..well()
    };
    assert_eq!(desk.read(&hot).0, "healthy");
    desk.now += Duration::from_secs(59);
    assert_eq!(desk.read(&hot).0, "healthy");
    desk.now += Duration::from_secs(1);
    let told = desk.read(&hot);
    assert_eq!(told.1, "heat has slowed it down for more than 60 s");
    let capped = Signs {
        clocks_event_reasons: 4,
        ..well()
    };
    let mut desk = Desk::new(HealthPolicy::default());
    desk.read(&capped);
    desk.now += Duration::from_secs(600);
    assert_eq!(desk.read(&capped).0, "healthy", "a power cap is normal");
    let narrow = Signs {
        pcie_width: Some((8, 16)),
        ..well()
    };
    assert_eq!(desk.read(&narrow).1, "it uses 8 of 16 PCIe lanes");
}

#[test]
fn a_site_says_what_it_makes_of_what_is_seen() {
    let mut desk = Desk::new(HealthPolicy {
        xid: BTreeMap::from([
            ("79".to_owned(), Class::Suspect),
            ("94".to_owned(), Class::Failed),
        ]),
        pcie_width: Class::Ignore,
        ..HealthPolicy::default()
    });
    let narrow = Signs {
        pcie_width: Some((8, 16)),
        ..well()
    };
    assert_eq!(desk.read(&narrow).0, "healthy");
    desk.health.note_xid(GPU, 79);
    assert_eq!(desk.read(&narrow).0, "suspect");
    desk.health.note_xid(GPU, 94);
    assert_eq!(desk.read(&narrow).0, "failed", "the worst counts");
}

#[test]
fn what_the_driver_asks_for_and_rows_that_fail_take_a_device_out() {
    let mut desk = Desk::new(HealthPolicy::default());
    for (signs, health) in [
        (
            Signs {
                rows_failed: true,
                ..well()
            },
            "failed",
        ),
        (
            Signs {
                recovery_action: 1,
                ..well()
            },
            "failed",
        ),
        (
            Signs {
                recovery_action: 2,
                ..well()
            },
            "failed",
        ),
        (
            Signs {
                recovery_action: 4,
                ..well()
            },
            "suspect",
        ),
    ] {
        assert_eq!(desk.read(&signs).0, health, "{signs:?}");
    }
}

#[test]
fn a_device_that_was_gone_stays_out_when_it_is_back() {
    let mut desk = Desk::new(HealthPolicy::default());
    assert_eq!(desk.read_as(&well(), DeviceHealth::Failed).0, "failed");
    let number = desk.health.findings(GPU)[0].number;
    assert_eq!(desk.read_as(&well(), DeviceHealth::Failed).0, "failed");
    assert_eq!(
        desk.health.findings(GPU)[0].number,
        number,
        "it has gone once"
    );
    for _ in 0..5 {
        assert_eq!(desk.read(&well()).0, "failed");
    }
    assert!(desk.health.clear(GPU, number));
    assert_eq!(desk.read(&well()).0, "healthy");
}

#[test]
fn what_fails_a_device_is_not_forgotten_for_what_makes_it_suspect() {
    let mut desk = Desk::new(HealthPolicy::default());
    desk.health.note_xid(GPU, 79);
    let mut signs = well();
    desk.read(&signs);
    for errors in 6..40 {
        signs.ecc_uncorrected = Some(errors);
        desk.read(&signs);
    }
    assert_eq!(desk.health.findings(GPU).len(), FINDINGS_MAX);
    assert_eq!(desk.read(&signs).0, "failed");
}

#[test]
fn what_was_forgotten_is_taken_from_the_server_and_what_was_cleared_here_is_not() {
    let mut desk = Desk::new(HealthPolicy::default());
    let found = |number| {
        [report::Finding {
            number,
            health: DeviceHealth::Failed,
            reason: "Xid 95: uncontained memory error".to_owned(),
        }]
    };
    desk.health.take_found(GPU, &found(41));
    assert_eq!(desk.read(&well()).0, "failed");
    desk.restart();
    assert_eq!(desk.read(&well()).0, "failed", "it is kept here again");
    assert!(desk.health.clear(GPU, 41));
    assert_eq!(desk.read(&well()).0, "healthy");
    // The server had yet to hear of it when it said so.
    desk.health.take_found(GPU, &found(41));
    assert_eq!(desk.read(&well()).0, "healthy");
    desk.restart();
    desk.health.take_found(GPU, &found(41));
    assert_eq!(desk.read(&well()).0, "healthy");
}

#[test]
fn the_same_error_of_applications_in_jobs_of_two_teams_makes_a_device_suspect() {
    let mut desk = Desk::new(HealthPolicy::default());
    let (one, two) = (TeamId::new(), TeamId::new());
    let there = std::sync::Arc::new(Mutex::new(Vec::new()));
    let asked = std::sync::Arc::clone(&there);
    desk.health
        .ask_teams(move |_| asked.lock().expect("no panic").clone());
    let mut errs = |teams: &[TeamId], code| {
        *there.lock().expect("no panic") = teams.to_vec();
        desk.health.note_xid(GPU, code);
        desk.read(&well()).0
    };
    assert_eq!(errs(&[one], 31), "healthy");
    assert_eq!(errs(&[one], 31), "healthy", "its own fault, again");
    assert_eq!(errs(&[two], 13), "healthy", "another error");
    assert_eq!(errs(&[one, two], 31), "healthy", "nobody knows whose");
    assert_eq!(errs(&[], 31), "healthy", "nobody's");
    assert_eq!(errs(&[two], 31), "suspect");
    let found = desk.health.findings(GPU).remove(0);
    assert_eq!(
        found.reason,
        "Xid 31: MMU fault, in jobs of 2 teams within 86400 s"
    );
    // Once it is dealt with, it begins anew.
    assert!(desk.health.clear(GPU, found.number));
    *there.lock().expect("no panic") = vec![one];
    desk.health.note_xid(GPU, 31);
    assert_eq!(desk.read(&well()).0, "healthy");
}

#[test]
fn errors_of_applications_count_together_within_their_time_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut findings = Findings::load(folder.path().join("health.json"), BOOT);
    let mut count = |within| findings.count_fault(GPU, 31, TeamId::new(), within);
    let long = Duration::from_secs(3_600);
    assert_eq!([count(long), count(long)], [1, 2]);
    assert_eq!(count(Duration::ZERO), 1, "the others are too old");
}

#[test]
fn a_device_has_failed_since_its_first_finding_and_a_restart_of_the_agent_changes_nothing() {
    let mut desk = Desk::new(HealthPolicy::default());
    let before = clock::boot_micros();
    desk.health.note_xid(GPU, 79);
    let after = clock::boot_micros();
    desk.health.note_xid(GPU, 95);
    desk.restart();
    let mut snapshot = Snapshot {
        devices: vec![wire::Device {
            uuid: GPU.to_owned(),
            health: "healthy".to_owned(),
            ..wire::Device::default()
        }],
        ..Snapshot::default()
    };
    desk.health.judge(&mut snapshot, None, desk.now);
    let since = snapshot.failed_at[GPU];
    assert!((before..=after).contains(&since), "{since}");
    let newest = desk.health.findings(GPU).iter().map(|f| f.number).max();
    assert!(desk.health.clear(GPU, newest.expect("two")));
    snapshot.devices[0].health = "healthy".to_owned();
    desk.health.judge(&mut snapshot, None, desk.now);
    assert!(snapshot.failed_at.is_empty());
}

#[test]
fn what_a_look_shows_after_a_job_is_an_error_where_it_is_new_or_bad() {
    let desk = Desk::new(HealthPolicy::default());
    assert_eq!(desk.health.error_of(GPU, &well()), None, "the first count");
    let more = Signs {
        ecc_uncorrected: Some(6),
        ..well()
    };
    let told = desk.health.error_of(GPU, &more).expect("an error");
    assert_eq!(told, "uncorrectable memory errors: 1 more, 6 in all");
    assert!(desk.health.error_of(GPU, &more).is_some(), "it is found");
    let number = desk.health.findings(GPU)[0].number;
    assert!(desk.health.clear(GPU, number));
    assert_eq!(desk.health.error_of(GPU, &more), None);
    let pending = Signs {
        rows_pending: true,
        ..more
    };
    let told = desk.health.error_of(GPU, &pending).expect("a state");
    assert!(told.contains("waits for a reset"), "{told}");
}

#[test]
fn what_a_probe_said_stands_beside_what_was_found() {
    let mut desk = Desk::new(HealthPolicy::default());
    desk.health.note_xid(GPU, 79);
    let number = desk.health.findings(GPU)[0].number;
    desk.health
        .note_probe(GPU, "its probe ended with 1: no link");
    let told = desk.read(&well());
    assert_eq!(
        told.1,
        "Xid 79: fallen off the bus; its probe ended with 1: no link"
    );
    assert_eq!(desk.health.findings(GPU)[0].number, number, "it is no news");
}
