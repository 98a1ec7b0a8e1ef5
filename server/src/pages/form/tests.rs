//! The form of a submission, read and shown again.

use super::*;

fn filled() -> SubmitFields {
    let text = |t: &str| t.to_owned();
    SubmitFields {
        name: text("digits"),
        kind: text("training"),
        class: text("normal"),
        pool: text("h100"),
        command: text("python3 train.py --epochs 2"),
        workers: text("2"),
        gpus: text("0.5"),
        memory_gib: text("1.5"),
        share: text("time_slice"),
        time_limit_minutes: text("90"),
        min_workers: text("1"),
        retries: text("2"),
        preemptible: text("false"),
        not_before: text("2026-12-01T08:30"),
        after: text("0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f, 0190b6f2-5c1e-7cc3-98c4-dc0c0c073990"),
        env: text("SEED=1\r\nA=b=c\r\n"),
        file_name: text("train.py"),
        file_text: text("print(1)\r\n"),
        ..SubmitFields::default()
    }
}

#[test]
fn the_fields_say_a_spec() {
    let spec = filled().spec().expect("it is well-formed");
    assert_eq!(spec.command, ["python3", "train.py", "--epochs", "2"]);
    assert_eq!((spec.workers, spec.per_worker.gpus().milli()), (2, 500));
    assert_eq!(spec.per_worker.memory_mib, 1536);
    assert_eq!(spec.time_limit_seconds, Some(5400));
    assert_eq!(spec.env["A"], "b=c");
    assert_eq!(spec.files["train.py"], "print(1)\n");
    assert_eq!(spec.retries.on, [RetryOn::Failure]);
    assert_eq!((spec.min_workers, spec.preemptible), (Some(1), Some(false)));
    let at = spec.not_before.map(domain::time::format);
    assert_eq!(at.as_deref(), Some("2026-12-01T08:30:00Z"));
    assert_eq!(spec.after.len(), 2);
}

#[test]
fn a_profile_asks_for_instances_and_is_shown_again() {
    let asked = |gpus: &str| {
        let fields = SubmitFields {
            gpus: gpus.to_owned(),
            share: String::new(),
            mig_profile: " 1g.10gb ".to_owned(),
            ..filled()
        };
        fields.spec()
    };
    let spec = asked("").expect("one instance");
    assert_eq!(spec.per_worker.mig_profile.as_deref(), Some("1g.10gb"));
    assert_eq!(spec.per_worker.sharing, [SharingMode::Mig]);
    assert_eq!(spec.per_worker.gpus(), MilliGpu::whole(1));
    let again = fields_of(&asked("2").expect("two instances"));
    assert_eq!(
        (
            again.mig_profile.as_str(),
            again.gpus.as_str(),
            again.share.as_str()
        ),
        ("1g.10gb", "2", "")
    );
    assert!(asked("0.5").is_err(), "no part of an instance");
}

#[test]
fn a_remedy_that_is_a_profile_is_pressed_in_the_form() {
    let mut fields = SubmitFields {
        change: "mig_profile=2g.20gb".to_owned(),
        gpus: "1".to_owned(),
        share: String::new(),
        ..filled()
    };
    assert!(fields.take_change());
    let spec = fields.spec().expect("it is well-formed");
    assert_eq!(spec.per_worker.mig_profile.as_deref(), Some("2g.20gb"));
}

#[test]
fn a_fraction_shares_a_device_unless_a_mode_is_chosen() {
    let modes = |gpus: &str, share: &str| {
        let (gpus, share) = (gpus.to_owned(), share.to_owned());
        let spec = SubmitFields {
            gpus,
            share,
            ..filled()
        }
        .spec()
        .expect("it is well-formed");
        (fields_of(&spec).share, spec.per_worker.sharing)
    };
    let shared = vec![SharingMode::TimeSlice, SharingMode::Mps];
    assert_eq!(modes("0.5", ""), (String::new(), shared));
    assert_eq!(
        modes("2", ""),
        (String::new(), vec![SharingMode::Exclusive])
    );
    let chosen = (String::from("time_slice"), vec![SharingMode::TimeSlice]);
    assert_eq!(modes("0.5", "time_slice"), chosen);
    let chosen = (String::from("mps"), vec![SharingMode::Mps]);
    assert_eq!(modes("0.5", "mps"), chosen);
}

#[test]
fn a_pressed_change_is_made_in_its_field() {
    let mut fields = filled();
    assert!(!fields.take_change());
    fields.change = "workers=1&gpus=0.25&time_limit_minutes=0.5&preemptible=true&command=rm".into();
    assert!(fields.take_change());
    let spec = fields.spec().expect("it is well-formed");
    assert_eq!(
        (spec.time_limit_seconds, spec.preemptible),
        (Some(30), Some(true))
    );
    assert_eq!((spec.workers, spec.per_worker.gpus().milli()), (1, 250));
    assert_eq!(spec.command[0], "python3");
}

#[test]
fn a_variable_that_is_given_twice_is_named() {
    let mut fields = filled();
    fields.env = "A=1\nB=1\nA=2".into();
    let faults = fields.spec().expect_err("it is there twice");
    let told: Vec<(&str, &str)> = faults
        .iter()
        .map(|fault| (fault.field.as_str(), fault.value.as_str()))
        .collect();
    assert_eq!(told, [("env", "A")]);
}

#[test]
fn every_wrong_field_is_named_at_once() {
    let mut fields = filled();
    fields.gpus = "NaN".into();
    fields.workers = "-1".into();
    fields.command = "sh -c 'x".into();
    fields.time_limit_minutes = "1e99".into();
    fields.env = "SEED".into();
    fields.min_workers = "some".into();
    fields.not_before = "soon".into();
    let faults = fields.spec().expect_err("seven fields are wrong");
    let named: Vec<&str> = faults
        .iter()
        .map(|fault| web::views::field_of(&fault.field))
        .collect();
    assert_eq!(
        named,
        [
            "command",
            "workers",
            "gpus",
            "env",
            "time_limit_minutes",
            "min_workers",
            "not_before"
        ]
    );
}

#[test]
fn one_like_it_says_the_same_spec() {
    let spec = filled().spec().expect("it is well-formed");
    let shown = fields_of(&spec);
    let fields = SubmitFields {
        name: shown.name,
        kind: shown.kind,
        class: shown.class,
        pool: shown.pool,
        command: shown.command,
        workers: shown.workers,
        min_workers: shown.min_workers,
        gpus: shown.gpus,
        cpus: shown.cpus,
        memory_gib: shown.memory_gib,
        gpu_memory_gib: shown.gpu_memory_gib,
        share: shown.share,
        time_limit_minutes: shown.time_limit_minutes,
        checkpoint_minutes: shown.checkpoint_minutes,
        retries: shown.retries,
        preemptible: shown.preemptible,
        not_before: shown.not_before,
        after: shown.after,
        env: shown.env,
        file_name: shown.file_name,
        file_text: shown.file_text,
        ..SubmitFields::default()
    };
    assert_eq!(fields.spec().expect("it is well-formed"), spec);
}
