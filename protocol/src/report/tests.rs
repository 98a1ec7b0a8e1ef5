use super::*;

fn device(index: u32, uuid: &str) -> wire::Device {
    wire::Device {
        uuid: uuid.into(),
        index,
        product_name: "NVIDIA H100 80GB HBM3".into(),
        memory_mib: 81_559,
        pci_bus_id: String::new(),
        health: "healthy".into(),
        health_reason: String::new(),
        ..wire::Device::default()
    }
}

fn inventory(devices: Vec<wire::Device>) -> wire::Inventory {
    wire::Inventory {
        devices,
        cgroup: "none".into(),
        ..Default::default()
    }
}

#[test]
fn an_inventory_that_names_a_device_twice_is_refused() {
    assert!(Inventory::check(inventory(vec![device(0, "GPU-a"), device(1, "GPU-b")])).is_ok());
    assert!(Inventory::check(inventory(vec![device(0, "GPU-a"), device(0, "GPU-b")])).is_err());
    assert!(Inventory::check(inventory(vec![device(0, "GPU-a"), device(1, "GPU-a")])).is_err());
    assert!(Inventory::check(inventory(vec![device(0, "../x")])).is_err());
}

#[test]
fn findings_are_numbered_and_few() {
    let of = |numbers: &[u64]| {
        let mut found = device(0, "GPU-a");
        let finding = |number: &u64| wire::Finding {
            number: *number,
            health: "failed".into(),
            reason: "Xid 79".into(),
        };
        found.findings = numbers.iter().map(finding).collect();
        let checked = Inventory::check(inventory(vec![found]))?;
        let findings = checked.devices[0].findings.iter();
        Ok::<_, Malformed>(findings.map(|finding| finding.number).collect::<Vec<_>>())
    };
    assert_eq!(of(&[7, 3]), Ok(vec![3, 7]), "by number");
    assert!(of(&[0]).is_err());
    assert!(of(&[u64::MAX]).is_err());
    assert!(of(&vec![1; FINDINGS_MAX + 1]).is_err());
}

#[test]
fn a_clique_names_each_present_device_at_most_once() {
    let mut machine = inventory(vec![device(0, "GPU-a"), device(1, "GPU-b")]);
    machine.nvlink = vec![wire::Clique {
        indices: vec![0, 1],
    }];
    assert!(Inventory::check(machine.clone()).is_ok());
    machine.nvlink.push(wire::Clique { indices: vec![1] });
    assert!(Inventory::check(machine.clone()).is_err());
    machine.nvlink = vec![wire::Clique { indices: vec![7] }];
    assert!(Inventory::check(machine).is_err());
}

#[test]
fn words_that_are_not_known_yet_are_left_out() {
    let mut machine = inventory(vec![]);
    machine.sharing = vec!["exclusive".into(), "quantum".into()];
    let checked = Inventory::check(machine).expect("well-formed");
    assert_eq!(checked.sharing, vec![SharingMode::Exclusive]);
}

#[test]
fn folders_for_work_are_absolute_and_few() {
    let of = |roots: Vec<String>| {
        let mut machine = inventory(vec![]);
        machine.work_roots = roots;
        Inventory::check(machine).map(|checked| checked.work_roots)
    };
    assert_eq!(
        of(vec!["/data//sets/".into(), "/".into()]),
        Ok(vec!["/data/sets".into(), "/".into()])
    );
    for bad in ["data", "", "/a\nb"] {
        assert!(of(vec![bad.into()]).is_err(), "{bad:?}");
    }
    assert!(of(vec!["/data".into(); WORK_ROOTS_MAX + 1]).is_err());
    let deep = |chars: usize| of(vec![format!("/{}", "d".repeat(chars - 1))]);
    assert!(deep(TEXT_CHARS_MAX).is_ok());
    assert!(deep(TEXT_CHARS_MAX + 1).is_err());
}

#[test]
fn a_fact_without_a_kind_or_with_number_zero_is_refused() {
    let fact = wire::Fact {
        number: 1,
        assignment_id: AssignmentId::new().to_string(),
        attempt_id: AttemptId::new().to_string(),
        at_micros: 0,
        kind: None,
    };
    assert_eq!(
        facts::check_one(fact.clone()),
        Err(Malformed::Missing("fact.kind"))
    );
    let zero = wire::Fact {
        number: 0,
        kind: Some(wire::fact::Kind::Released(wire::Released::default())),
        ..fact
    };
    assert!(facts::check_one(zero).is_err());
}

#[test]
fn texts_of_a_node_are_short_and_printable() {
    let long = format!("a\r\n{}", "x".repeat(2000));
    let kept = text(long);
    assert_eq!(kept.chars().count(), TEXT_CHARS_MAX);
    assert!(!kept.contains('\n'));
}

#[test]
fn instances_that_share_a_slice_are_refused() {
    let slice = |start, size| wire::MigSlice {
        profile: "x".into(),
        start,
        size,
    };
    let cut = |instances| {
        let mut device = device(0, "GPU-a");
        device.mig = Some(wire::Mig { instances });
        Inventory::check(inventory(vec![device]))
    };
    let good = cut(vec![slice(4, 4), slice(0, 2)]).expect("beside one another");
    let starts = good.devices[0]
        .mig
        .iter()
        .flatten()
        .map(|slice| slice.start);
    assert_eq!(starts.collect::<Vec<_>>(), [0, 4]);
    assert!(cut(vec![slice(0, 4), slice(3, 1)]).is_err());
}
