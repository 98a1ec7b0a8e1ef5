//! Takes desired sets in and gives each assignment's task what is wanted of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::ids::{AssignmentId, AttemptId};
use protocol::desired::{Assignment, DesiredSet, Epoch, Poisoned, Want};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use super::Node;
use super::worker::{Intent, Worker};
use crate::journal::{Entry, FactKind, Kept, Record};
use crate::runs::RefusalCode;

/// Wait before an assignment whose task failed is taken up anew: what fails each time is then logged
/// once a second, and keeps nothing else waiting.
const TAKE_UP_WAIT: Duration = Duration::from_secs(1);

/// What reaches the reconciler.
#[derive(Debug)]
pub enum Command {
    /// A connection began.
    Began,
    /// What the server wants.
    Desired(Box<DesiredSet>),
    /// The connection ended; what was wanted may have changed unseen.
    Ended,
}

/// An assignment's task as the reconciler knows it.
struct Handle {
    attempt: AttemptId,
    intent: watch::Sender<Intent>,
}

struct Reconciler {
    node: Arc<Node>,
    workers: BTreeMap<AssignmentId, Handle>,
    tasks: JoinSet<()>,
    /// Which assignment a task is of, also when it failed.
    of_task: HashMap<tokio::task::Id, AssignmentId>,
    /// The place of the last set of this connection; none before the first full one.
    seen: Option<(Epoch, u64)>,
    /// What was answered about assignments that have ended here, once in a connection.
    answered: BTreeSet<(AssignmentId, Answer)>,
}

/// What is said of an assignment that has ended here: it is not run, and it holds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Refused,
    Released,
}

/// Runs until the commands end. Adopts what the node held before.
pub async fn reconcile(node: Arc<Node>, adopted: Vec<Kept>, mut commands: mpsc::Receiver<Command>) {
    let mut reconciler = Reconciler::new(node);
    for kept in adopted {
        let ids = (kept.assignment_id, kept.attempt_id);
        reconciler.spawn(ids, Intent::Unsaid, |worker| worker.run_adopted(kept));
    }
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(command) => reconciler.take(command).await,
                None => return,
            },
            Some(ended) = reconciler.tasks.join_next_with_id() => reconciler.end(ended).await,
        }
    }
}

impl Reconciler {
    fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            workers: BTreeMap::new(),
            tasks: JoinSet::new(),
            of_task: HashMap::new(),
            seen: None,
            answered: BTreeSet::new(),
        }
    }

    /// Takes the end of a task. One that failed left its assignment half done: what the journal has
    /// of it is adopted anew, as after a restart, and else it is refused.
    async fn end(&mut self, ended: Result<(tokio::task::Id, ()), JoinError>) {
        let (task, failure) = match ended {
            Ok((task, ())) => (task, None),
            Err(error) => (error.id(), Some(error)),
        };
        let Some(id) = self.of_task.remove(&task) else {
            return;
        };
        let handle = self.workers.remove(&id);
        let (Some(error), Some(handle)) = (failure, handle) else {
            return;
        };
        tracing::error!(assignment.id = %id, %error, "an assignment's task failed; it is taken up anew");
        let kept = self.node.journal.state().kept.get(&id).cloned();
        let Some(kept) = kept else {
            self.node.give_up(id);
            if !self.node.journal.state().buried(id) {
                let refused = FactKind::Refused {
                    code: RefusalCode::StartRefused.as_str().to_owned(),
                    message: "the node's agent failed when it took it on".to_owned(),
                    exit_code: None,
                };
                self.append(vec![Entry::fact(id, handle.attempt, refused)])
                    .await;
            }
            return;
        };
        let worker = Worker::new(
            Arc::clone(&self.node),
            (id, handle.attempt),
            handle.intent.subscribe(),
        );
        self.begin(id, handle, async move {
            tokio::time::sleep(TAKE_UP_WAIT).await;
            worker.run_adopted(kept).await;
        });
    }

    fn begin(
        &mut self,
        id: AssignmentId,
        handle: Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.workers.insert(id, handle);
        let task = self.tasks.spawn(task);
        self.of_task.insert(task.id(), id);
    }

    async fn take(&mut self, command: Command) {
        match command {
            Command::Began => {
                self.seen = None;
                self.answered.clear();
            }
            Command::Ended => {
                for handle in self.workers.values() {
                    handle.intent.send_if_modified(|intent| {
                        let forget = matches!(intent, Intent::Hold | Intent::Run(_));
                        if forget {
                            *intent = Intent::Unsaid;
                        }
                        forget
                    });
                }
            }
            Command::Desired(set) => self.take_desired(*set).await,
        }
    }

    async fn take_desired(&mut self, set: DesiredSet) {
        match self.node.journal.admit(set.epoch).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(epoch = ?set.epoch, "a set of a past leader is refused");
                return;
            }
            Err(error) => {
                // The server sends a full set again when the connection is renewed.
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "a set is left aside: its epoch cannot be kept"
                );
                return;
            }
        }
        let place = (set.epoch, set.revision);
        let first_is_missing = self.seen.is_none() && !set.full;
        if first_is_missing || self.seen.is_some_and(|seen| place <= seen) {
            tracing::debug!(?place, "a set out of its order is ignored");
            return;
        }
        self.seen = Some(place);

        let mut listed: BTreeSet<AssignmentId> = set.following.into_iter().collect();
        for assignment in set.assignments {
            match assignment {
                Ok(assignment) => {
                    listed.insert(assignment.id);
                    self.want(assignment).await;
                }
                Err(poisoned) => {
                    listed.insert(poisoned.id);
                    self.refuse(poisoned).await;
                }
            }
        }
        if set.full {
            let unwanted: Vec<AssignmentId> = self
                .workers
                .keys()
                .filter(|id| !listed.contains(id))
                .copied()
                .collect();
            for id in unwanted {
                tracing::info!(assignment.id = %id, "the server does not know it: it is stopped");
                self.stop(id, self.node.kill_grace_ms.load(Ordering::Relaxed));
            }
        }
        for id in set.forgotten {
            self.forget(id).await;
        }
    }

    async fn want(&mut self, assignment: Assignment) {
        let (id, attempt) = (assignment.id, assignment.attempt_id);
        if let Some(handle) = self.workers.get(&id) {
            let intent = intent_of(Arc::new(assignment));
            handle.intent.send_if_modified(|current| {
                let changes = *current != intent
                    && !matches!(
                        (&*current, &intent),
                        (Intent::Stop { .. }, Intent::Hold | Intent::Run(_))
                    );
                if changes {
                    *current = intent;
                }
                changes
            });
        } else if self.node.journal.state().buried(id) {
            self.answer_ended(id, attempt, &assignment.want).await;
        } else if matches!(assignment.want, Want::Stop { .. }) {
            // Its start never came: it must not start when it comes later.
            self.append(vec![
                Entry::Record(Record::Tombstone { assignment_id: id }),
                Entry::fact(id, attempt, FactKind::Released),
            ])
            .await;
        } else {
            let assignment = Arc::new(assignment);
            let intent = intent_of(Arc::clone(&assignment));
            self.spawn((id, attempt), intent, |worker| worker.run_new(assignment));
        }
    }

    /// Answers about an assignment that has ended here and that the server still lists,
    /// unless the answer is on its way already. A stop has an answer of its own: one that comes
    /// after a refusal would have no end otherwise.
    async fn answer_ended(&mut self, id: AssignmentId, attempt: AttemptId, want: &Want) {
        let answer = match want {
            Want::Stop { .. } => Answer::Released,
            Want::Hold | Want::Run => Answer::Refused,
        };
        let on_its_way = {
            let state = self.node.journal.state();
            match answer {
                Answer::Released => state.release_untold(id),
                Answer::Refused => state.untold(id),
            }
        };
        if on_its_way || !self.answered.insert((id, answer)) {
            return;
        }
        let kind = match answer {
            Answer::Released => FactKind::Released,
            Answer::Refused => FactKind::Refused {
                code: RefusalCode::StartRefused.as_str().to_owned(),
                message: "it has ended on this node before and is not started again".to_owned(),
                exit_code: None,
            },
        };
        self.append(vec![Entry::fact(id, attempt, kind)]).await;
    }

    async fn refuse(&mut self, poisoned: Poisoned) {
        if self.workers.contains_key(&poisoned.id) {
            // What runs already goes on: it was well-formed when it began.
            return;
        }
        let told = {
            let state = self.node.journal.state();
            state.buried(poisoned.id) && state.untold(poisoned.id)
        };
        if told || !self.answered.insert((poisoned.id, Answer::Refused)) {
            return;
        }
        let kind = FactKind::Refused {
            code: RefusalCode::Invalid.as_str().to_owned(),
            message: poisoned.fault.to_string(),
            exit_code: None,
        };
        self.append(vec![Entry::fact(poisoned.id, poisoned.attempt_id, kind)])
            .await;
    }

    async fn forget(&mut self, id: AssignmentId) {
        if self.workers.contains_key(&id) {
            self.stop(id, self.node.kill_grace_ms.load(Ordering::Relaxed));
        } else if !self.node.journal.state().buried(id) {
            self.append(vec![Entry::Record(Record::Tombstone { assignment_id: id })])
                .await;
        }
    }

    fn stop(&self, id: AssignmentId, grace_ms: i64) {
        if let Some(handle) = self.workers.get(&id) {
            handle.intent.send_if_modified(|intent| {
                let running = !matches!(intent, Intent::Stop { .. });
                if running {
                    *intent = Intent::Stop { grace_ms };
                }
                running
            });
        }
    }

    fn spawn<F>(
        &mut self,
        ids: (AssignmentId, AttemptId),
        intent: Intent,
        run: impl FnOnce(Worker) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, receiver) = watch::channel(intent);
        let task = run(Worker::new(Arc::clone(&self.node), ids, receiver));
        let handle = Handle {
            attempt: ids.1,
            intent: sender,
        };
        self.begin(ids.0, handle, task);
    }

    /// Writes an answer. One that cannot be written is given again in the next connection.
    async fn append(&self, entries: Vec<Entry>) {
        if let Err(error) = self.node.journal.append(entries).await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the journal cannot be written"
            );
        }
    }
}

fn intent_of(assignment: Arc<Assignment>) -> Intent {
    match assignment.want {
        Want::Hold => Intent::Hold,
        Want::Run => Intent::Run(assignment),
        Want::Stop { grace_ms, .. } => Intent::Stop { grace_ms },
    }
}

#[cfg(test)]
mod tests {
    use domain::ids::JobId;

    use super::super::Parts;
    use super::super::walls::Walls;
    use super::*;
    use crate::config::Config;
    use crate::folders::Folders;
    use crate::gpus::Snapshot;
    use crate::gpus::health::Health;
    use crate::gpus::policy::HealthPolicy;
    use crate::journal::{Journal, KeptDevice};
    use crate::lease::Lease;
    use crate::supervise::cgroup::Cgroups;

    fn node(folder: &std::path::Path) -> Arc<Node> {
        let folders = Folders::prepare(&folder.join("state"), None).expect("made");
        let (journal, _) = Journal::open(&folders.journal(), "boot").expect("opened");
        Arc::new(Node::new(Parts {
            config: Config::default(),
            journal,
            gpus: watch::channel(Snapshot::default()).1,
            health: Arc::new(Health::load(
                HealthPolicy::default(),
                folders.health(),
                "boot",
            )),
            lease: Lease::open(&folders.lease(), "boot").expect("opened"),
            cgroups: Cgroups::None,
            layout: None,
            walls: Walls::NONE,
            folders,
        }))
    }

    fn kept() -> Kept {
        Kept {
            assignment_id: AssignmentId::new(),
            attempt_id: AttemptId::new(),
            job_id: JobId::new(),
            job_name: String::new(),
            team: String::new(),
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

    fn held(node: &Node, devices: &[KeptDevice]) -> bool {
        let other = AssignmentId::new();
        let mut claims = node.claims();
        let free = claims.claim(other, devices);
        claims.release(other);
        free.is_err()
    }

    async fn next_end(reconciler: &mut Reconciler) {
        let ended = reconciler.tasks.join_next_with_id().await;
        reconciler.end(ended.expect("a task")).await;
    }

    #[tokio::test]
    async fn an_assignment_whose_task_failed_is_taken_up_anew_and_can_be_stopped() {
        let folder = tempfile::tempdir().expect("a folder");
        let node = node(folder.path());
        let kept = kept();
        let (id, attempt) = (kept.assignment_id, kept.attempt_id);
        let accepted = Entry::Record(Record::Accepted(kept.clone()));
        node.journal.append(vec![accepted]).await.expect("written");
        node.folders.run(id).create().expect("made");
        node.claims().claim(id, &kept.devices).expect("free");
        let mut reconciler = Reconciler::new(Arc::clone(&node));
        reconciler.spawn((id, attempt), Intent::Hold, |_| async {
            panic!("a mistake")
        });
        next_end(&mut reconciler).await;
        assert!(held(&node, &kept.devices), "its process may run");

        reconciler.stop(id, 0);
        next_end(&mut reconciler).await;
        assert!(reconciler.workers.is_empty() && reconciler.of_task.is_empty());
        assert!(!held(&node, &kept.devices));
        assert!(node.journal.state().release_untold(id));
    }

    #[tokio::test]
    async fn one_that_failed_before_it_was_accepted_is_refused_and_holds_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let node = node(folder.path());
        let kept = kept();
        let (id, attempt) = (kept.assignment_id, kept.attempt_id);
        node.claims().claim(id, &kept.devices).expect("free");
        let mut reconciler = Reconciler::new(Arc::clone(&node));
        reconciler.spawn((id, attempt), Intent::Hold, |_| async {
            panic!("a mistake")
        });
        next_end(&mut reconciler).await;
        assert!(!held(&node, &kept.devices));
        assert!(node.journal.state().untold(id) && node.journal.state().buried(id));
        assert!(reconciler.workers.is_empty());
    }
}
