use domain::ids::JobId;

use super::*;

fn kept(id: AssignmentId) -> Kept {
    Kept {
        assignment_id: id,
        attempt_id: AttemptId::new(),
        job_id: JobId::new(),
        job_name: "a".to_owned(),
        team: "vision".to_owned(),
        devices: vec![KeptDevice {
            uuid: "GPU-1".to_owned(),
            mode: domain::sharing::SharingMode::Exclusive,
            gpus_milli: 1000,
            memory_mib: 0,
            mig: None,
            team: None,
        }],
        at_micros: 1,
        started: false,
        ended: false,
    }
}

fn exited(code: i32) -> FactKind {
    FactKind::Exited {
        code: Some(code),
        signal: None,
        out_of_memory: false,
        asked: false,
        reason: String::new(),
        message: String::new(),
    }
}

#[tokio::test]
async fn facts_are_numbered_without_gaps_and_kept_over_a_restart_until_acknowledged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let id = AssignmentId::new();
    let attempt = AttemptId::new();
    {
        let (journal, rebooted) = Journal::open(&path, "boot").expect("opened");
        assert!(!rebooted);
        journal
            .append(vec![
                Entry::Record(Record::Accepted(kept(id))),
                Entry::fact(id, attempt, FactKind::Accepted),
            ])
            .await
            .expect("written");
        journal
            .append(vec![Entry::fact(
                id,
                attempt,
                FactKind::Started {
                    pid: 7,
                    image_digest: String::new(),
                },
            )])
            .await
            .expect("written");
        journal.acknowledge(1);
        journal
            .append(vec![Entry::fact(id, attempt, exited(0))])
            .await
            .expect("written");
    }
    let (journal, _) = Journal::open(&path, "boot").expect("opened");
    let numbers: Vec<u64> = journal
        .facts_after(0, 10)
        .iter()
        .map(|f| f.number)
        .collect();
    assert_eq!(numbers, [2, 3]);
    let state = journal.state();
    assert!(state.kept[&id].started && state.kept[&id].ended);
    assert_eq!(state.next_fact, 4);
}

#[tokio::test]
async fn what_was_released_or_refused_is_buried() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let (released, refused) = (AssignmentId::new(), AssignmentId::new());
    let (journal, _) = Journal::open(&path, "boot").expect("opened");
    let refusal = FactKind::Refused {
        code: "invalid".to_owned(),
        message: "no".to_owned(),
        exit_code: None,
    };
    journal
        .append(vec![
            Entry::Record(Record::Accepted(kept(released))),
            Entry::fact(released, AttemptId::new(), FactKind::Released),
            Entry::fact(refused, AttemptId::new(), refusal),
        ])
        .await
        .expect("written");
    drop(journal);
    let (journal, rebooted) = Journal::open(&path, "another boot").expect("opened");
    assert!(rebooted);
    assert!(journal.state().buried(released) && journal.state().buried(refused));
    assert!(journal.state().kept.is_empty());
    let holdings = history(&path).expect("read");
    assert_eq!(holdings.len(), 1);
    assert!(holdings[0].until_micros.is_some());
}

#[tokio::test]
async fn an_epoch_once_seen_never_falls() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let epoch = |timeline, number| Epoch { timeline, number };
    let (journal, _) = Journal::open(&path, "boot").expect("opened");
    assert!(journal.admit(epoch(1, 5)).await.expect("written"));
    assert!(journal.admit(epoch(1, 5)).await.expect("written"));
    assert!(!journal.admit(epoch(1, 4)).await.expect("read"));
    assert!(journal.admit(epoch(2, 1)).await.expect("written"));
    drop(journal);
    let (journal, _) = Journal::open(&path, "boot").expect("opened");
    assert!(!journal.admit(epoch(1, 900)).await.expect("read"));
}

#[tokio::test]
async fn more_than_may_wait_is_written_whole_and_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let (journal, _) = Journal::open(&folder.path().join("journal"), "boot").expect("opened");
    let (id, attempt) = (AssignmentId::new(), AttemptId::new());
    let mut waiting = tokio::task::JoinSet::new();
    let many = 3 * QUEUE_MAX;
    for _ in 0..many {
        let journal = journal.clone();
        waiting.spawn(async move {
            let entry = Entry::fact(id, attempt, FactKind::Accepted);
            journal.append(vec![entry]).await
        });
    }
    assert!(
        journal.requests.capacity() <= QUEUE_MAX && journal.requests.max_capacity() == QUEUE_MAX
    );
    while let Some(written) = waiting.join_next().await {
        written.expect("no panic").expect("written");
    }
    let facts = journal.facts_after(0, 2 * many);
    let numbers: Vec<u64> = facts.iter().map(|fact| fact.number).collect();
    assert_eq!(
        numbers,
        (1..=u64::try_from(many).expect("few")).collect::<Vec<_>>()
    );
}
