//! One assignment from its acceptance to its release: a task that converges to what is
//! wanted, from wherever it finds things.

mod prepare;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::ids::{AssignmentId, AttemptId};
use domain::sharing::SharingMode;
use domain::state::AssignmentPhase;
use prepare::{Open, prepare};
use protocol::desired::Assignment;
use tokio::sync::watch;

use super::launch::{self, Supervisor};
use super::{Node, admission, clear, containers, devices, gate, walls, wipe, workdir};
use crate::journal::{Entry, FactKind, Kept, KeptDevice, Record};
use crate::points::Point;
use crate::runs::{Exit, Refusal};
use crate::{clock, results};

/// Wait before something is tried again that must not be given up: the disk is full, a folder
/// cannot be removed, or a file cannot be read.
const RETRY: Duration = Duration::from_secs(1);
/// Longest such wait.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How often a control group is looked at while its last processes die.
const EMPTY_CHECK: Duration = Duration::from_millis(20);

/// What is wanted of an assignment now.
#[derive(Debug, Clone, PartialEq)]
pub enum Intent {
    /// Nobody has said anything in this connection: leave it as it is, start nothing.
    Unsaid,
    /// Keep it ready.
    Hold,
    /// Run it.
    Run(Arc<Assignment>),
    /// End it.
    Stop {
        /// Time between SIGTERM and SIGKILL, in milliseconds.
        grace_ms: i64,
    },
}

/// One assignment's task.
pub struct Worker {
    node: Arc<Node>,
    id: AssignmentId,
    attempt: AttemptId,
    intents: watch::Receiver<Intent>,
}

/// How the wait for a start ended.
enum Begin {
    Run(Arc<Assignment>),
    Give,
}

impl Worker {
    /// A worker for an assignment.
    pub fn new(
        node: Arc<Node>,
        ids: (AssignmentId, AttemptId),
        intents: watch::Receiver<Intent>,
    ) -> Self {
        let (id, attempt) = ids;
        Self {
            node,
            id,
            attempt,
            intents,
        }
    }

    /// Takes a new assignment on, and sees it to its end.
    pub async fn run_new(self, assignment: Arc<Assignment>) {
        match self.accept(&assignment).await {
            Ok(()) => self.run_accepted().await,
            Err(refusal) => {
                tracing::warn!(assignment.id = %self.id, reason = refusal.message, "assignment refused");
                devices::leave(&self.node, self.id).await;
                let folders = &self.node.folders;
                let run = folders.run(self.id).path().to_owned();
                for folder in [folders.job(self.id), run] {
                    clear::clear(self.id, folder).await;
                }
                self.node.give_up(self.id);
                self.record(vec![self.refused(refusal)]).await;
            }
        }
    }

    /// Goes on with an assignment that an earlier life of the agent accepted.
    pub async fn run_adopted(self, kept: Kept) {
        if let Err(holder) = self.node.claims().claim(self.id, &kept.devices) {
            // Both were accepted by us once: told loudly, since it must not be.
            tracing::error!(assignment.id = %self.id, holder, "an adopted assignment shares a device");
        }
        self.enter(AssignmentPhase::HandedOver);
        if kept.ended {
            self.clean().await;
            return;
        }
        let run = self.node.folders.run(self.id);
        match self.answer("who runs a job", || run.claim()).await {
            Some(_) => self.follow(kept.started, Seen::NotYet).await,
            None => self.run_accepted().await,
        }
    }

    async fn accept(&self, assignment: &Arc<Assignment>) -> Result<(), Refusal> {
        let kept = Kept::of(assignment, clock::wall_micros());
        self.node
            .claims()
            .claim(self.id, &kept.devices)
            .map_err(Refusal::here)?;
        Point::DevicesClaimed.reached();
        let (node, asked) = (Arc::clone(&self.node), Arc::clone(assignment));
        blocking(move || admission::check(&node, &asked)).await?;
        self.prepare(assignment, &kept.devices).await?;
        let entries = vec![
            Entry::Record(Record::Accepted(kept)),
            Entry::fact(self.id, self.attempt, FactKind::Accepted),
        ];
        self.node
            .journal
            .append(entries)
            .await
            .map_err(|e| Refusal::here(format!("the node cannot keep it: {e}")))?;
        Point::Accepted.reached();
        self.enter(AssignmentPhase::HandedOver);
        Ok(())
    }

    async fn run_accepted(mut self) {
        match self.wait_for_start().await {
            Begin::Run(assignment) => match self.start(&assignment).await {
                Ok(()) => self.follow(false, Seen::Running).await,
                Err(refusal) => {
                    // A supervisor may have started all the same, only later than we waited.
                    if self.void() {
                        self.record(vec![self.refused(refusal)]).await;
                        self.clean().await;
                    } else {
                        self.follow(false, Seen::Running).await;
                    }
                }
            },
            Begin::Give => {
                if self.void() {
                    self.clean().await;
                } else {
                    self.follow(false, Seen::Running).await;
                }
            }
        }
    }

    /// Waits until it is to run and the node's lease lets it, or is to be given up.
    async fn wait_for_start(&mut self) -> Begin {
        let mut renewals = self.node.lease.renewals();
        loop {
            let intent = self.intents.borrow_and_update().clone();
            renewals.borrow_and_update();
            match intent {
                Intent::Stop { .. } => return Begin::Give,
                Intent::Run(assignment) if self.node.lease.runs() => return Begin::Run(assignment),
                Intent::Run(_) | Intent::Hold | Intent::Unsaid => {}
            }
            tokio::select! {
                changed = self.intents.changed() => if changed.is_err() { return std::future::pending().await },
                _ = renewals.changed() => {}
            }
        }
    }

    async fn start(&self, assignment: &Arc<Assignment>) -> Result<(), Refusal> {
        let run = self.node.folders.run(self.id);
        // Adopted between acceptance and orders, or the layout was lost; instances may have been
        // unmade behind our back, and daemons ended.
        let made = assignment
            .devices
            .iter()
            .any(|share| matches!(share.mode, SharingMode::Mig | SharingMode::Mps));
        if made || matches!(run.orders(), Ok(None) | Err(_)) {
            let shares = self.node.claims().of(self.id);
            self.prepare(assignment, &shares).await?;
        }
        self.tell_workers(assignment);
        launch::launch(&run)
            .await
            .map_err(|e| Refusal::here(format!("its supervisor could not be started: {e}")))?;
        Point::Ready.reached();
        Ok(())
    }

    /// Brings its devices into their mode, lays it out and writes its orders.
    async fn prepare(
        &self,
        assignment: &Arc<Assignment>,
        shares: &[KeptDevice],
    ) -> Result<(), Refusal> {
        let view = devices::take(&self.node, self.id, assignment.uid, shares).await?;
        Point::DevicesTaken.reached();
        let (node, laid_out) = (Arc::clone(&self.node), Arc::clone(assignment));
        if assignment.runner == containers::CONTAINER {
            let files = walls::device_paths(&self.node, shares, &view).await?;
            return blocking(move || prepare(&node, &laid_out, &view, Open::Container(files)))
                .await;
        }
        let open = walls::device_files(&self.node, shares, &view).await?;
        blocking(move || prepare(&node, &laid_out, &view, Open::Process(open))).await
    }

    /// Tells the job's process who works with it now.
    fn tell_workers(&self, assignment: &Assignment) {
        if let Err(error) = workdir::write_workers(&self.node, assignment) {
            tracing::error!(assignment.id = %self.id, %error, "a job cannot be told who works with it");
        }
    }

    /// Makes sure that nothing starts any more; false where a supervisor was earlier.
    fn void(&self) -> bool {
        let run = self.node.folders.run(self.id);
        // A folder that is gone cannot be claimed by a supervisor either.
        run.claim_as_void().unwrap_or_else(|_| !run.exists())
    }

    /// Follows a run that has a supervisor until it is over, then cleans up.
    async fn follow(mut self, mut started_told: bool, mut seen: Seen) {
        let run = self.node.folders.run(self.id);
        self.enter(AssignmentPhase::Running);
        loop {
            let supervisor = self
                .answer("a job's supervisor", || Supervisor::find(&run))
                .await;
            if !started_told && let Ok(Some(started)) = run.started() {
                let pid = i64::from(started.pid);
                if let Some(image) = &started.image {
                    containers::note(&self.node, &image.id);
                }
                let image_digest = started.image.map(|image| image.digest);
                self.record(vec![Entry::Fact {
                    assignment_id: self.id,
                    attempt_id: self.attempt,
                    at_micros: started.at_micros,
                    kept_micros: 0,
                    kind: FactKind::Started {
                        pid,
                        image_digest: image_digest.unwrap_or_default(),
                    },
                }])
                .await;
                started_told = true;
            }
            let Some(supervisor) = supervisor else { break };
            seen = Seen::Running;
            if self.follow_supervisor(&supervisor, started_told).await {
                break;
            }
        }
        Point::EndSeen.reached();
        self.tell_end(&run, seen).await;
        Point::EndTold.reached();
        self.clean().await;
    }

    /// Asks until there is an answer: an agent that is short of descriptors, or a disk that fails,
    /// is no end of a job.
    async fn answer<T>(&self, what: &str, ask: impl Fn() -> io::Result<T>) -> T {
        let mut wait = RETRY;
        loop {
            match ask() {
                Ok(answer) => return answer,
                Err(error) => {
                    tracing::error!(assignment.id = %self.id, %error, "{what} cannot be found out; it is left alone");
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    /// Returns true when the supervisor has ended, false when it may have news.
    async fn follow_supervisor(&mut self, supervisor: &Supervisor, started_told: bool) -> bool {
        /// How often an adopted supervisor that had not started its job yet is looked at.
        const STARTED_CHECK: Duration = Duration::from_millis(50);
        let run = self.node.folders.run(self.id);
        loop {
            let intent = self.intents.borrow_and_update().clone();
            match intent {
                Intent::Stop { grace_ms } => {
                    self.enter(AssignmentPhase::Stopping);
                    if let Err(error) = supervisor.stop(&run, grace_ms) {
                        tracing::error!(assignment.id = %self.id, %error, "a job cannot be told to stop");
                    }
                    Point::StopAsked.reached();
                }
                Intent::Run(assignment) => self.tell_workers(&assignment),
                Intent::Hold | Intent::Unsaid => {}
            }
            tokio::select! {
                () = supervisor.ended() => return true,
                changed = self.intents.changed() => if changed.is_err() { return std::future::pending().await },
                () = tokio::time::sleep(STARTED_CHECK), if !started_told => return false,
            }
        }
    }

    async fn tell_end(&self, run: &crate::runs::RunFolder, seen: Seen) {
        let exit = match self.answer("how a job ended", || run.exit()).await {
            Some(exit) => exit,
            None => {
                while launch::kill_orphans(&self.node, run, &self.id.to_string()) {
                    tokio::time::sleep(EMPTY_CHECK).await;
                }
                let kind = match seen {
                    Seen::Running => {
                        lost("the job's supervisor ended without a word; the job was killed")
                    }
                    Seen::NotYet => exit_without_word(
                        UNSEEN,
                        "it was gone when the node's agent came back, and how it ended is not known",
                    ),
                };
                let entry = Entry::fact(self.id, self.attempt, kind);
                return self.record(vec![entry]).await;
            }
        };
        let entry = match exit.refused.clone() {
            Some(refusal) => self.refused(refusal),
            None => self.exited(self.explained(exit).await),
        };
        self.record(vec![entry]).await;
    }

    /// Removes what is left and releases the devices.
    async fn clean(self) {
        self.enter(AssignmentPhase::Cleaning);
        let orders = self.node.folders.run(self.id).orders().ok().flatten();
        let group = self.node.cgroups.group(&self.id.to_string());
        while !group.empty() {
            group.kill();
            tokio::time::sleep(EMPTY_CHECK).await;
        }
        if let Some(container) = orders.as_ref().and_then(|orders| orders.container.as_ref()) {
            containers::clear(self.id, &container.socket).await;
        }
        group.remove();
        Point::GroupGone.reached();
        self.keep_results(orders.as_ref().and_then(|orders| orders.uid))
            .await;
        clear::clear(self.id, self.node.folders.job(self.id)).await;
        Point::FolderGone.reached();
        let kept = devices::leave(&self.node, self.id).await;
        let left_at = Instant::now();
        gate::pass(&self.node, self.id).await;
        Point::DevicesLeft.reached();
        // Also after one that had memory of its own: it may be the last of its team.
        if let Some(uid) = orders.and_then(|orders| orders.uid) {
            self.wipe(uid).await;
        }
        // Last: it says what there is to clean.
        clear::clear(self.id, self.node.folders.run(self.id).path().to_owned()).await;
        Point::RunFolderGone.reached();
        self.node.give_up(self.id);
        // Up to the release, where it was kept at all.
        let kept = match kept {
            Duration::ZERO => kept,
            kept => kept + left_at.elapsed(),
        };
        self.record(vec![Entry::released(self.id, self.attempt, kept)])
            .await;
        Point::ReleaseTold.reached();
    }

    /// Wipes what its team has left where users share, unless more of it runs here.
    /// Keeps what the job left in its output folder, before its own is removed. Nothing of it runs any more.
    async fn keep_results(&self, owner: Option<u32>) {
        let (output, kept) = (
            self.node.folders.output(self.id),
            self.node.folders.results(self.id),
        );
        let bytes_max = self.node.config.result_bytes_max;
        let keep = move || results::keep(&output, &kept, owner, bytes_max);
        if let Err(error) = blocking(keep).await {
            tracing::error!(assignment.id = %self.id, %error, "what a job left cannot be kept");
        }
    }

    async fn wipe(&self, uid: u32) {
        if let Err(error) = blocking(move || wipe::wipe(uid)).await {
            tracing::error!(assignment.id = %self.id, %error, "what a team left in shared memory is not wiped");
        }
    }

    fn enter(&self, phase: AssignmentPhase) {
        self.node.set_phase(self.id, phase);
    }

    /// Writes what must be told. Tried until it is on disk: a full disk delays it.
    async fn record(&self, entries: Vec<Entry>) {
        let mut wait = RETRY;
        while let Err(error) = self.node.journal.append(entries.clone()).await {
            tracing::error!(assignment.id = %self.id, error = &error as &dyn std::error::Error, "the journal cannot be written");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    fn refused(&self, refusal: Refusal) -> Entry {
        let kind = FactKind::Refused {
            code: refusal.code.as_str().to_owned(),
            message: refusal.message,
            exit_code: refusal.exit_code,
        };
        Entry::fact(self.id, self.attempt, kind)
    }

    /// An end with what its devices have to say of it.
    async fn explained(&self, exit: Exit) -> Exit {
        if let Ok(Some(over)) = self.node.folders.run(self.id).over() {
            return Exit {
                out_of_memory: true,
                message: over.message,
                ..exit
            };
        }
        if exit.code == Some(0) || !exit.message.is_empty() {
            return exit;
        }
        match devices::fault(&self.node, self.id).await {
            Some(message) => Exit { message, ..exit },
            None => exit,
        }
    }

    fn exited(&self, exit: Exit) -> Entry {
        Entry::Fact {
            assignment_id: self.id,
            attempt_id: self.attempt,
            at_micros: exit.at_micros,
            kept_micros: 0,
            kind: FactKind::Exited {
                code: exit.code,
                signal: exit.signal,
                out_of_memory: exit.out_of_memory,
                asked: exit.asked,
                reason: if exit.lease_over { LEASE_OVER } else { "" }.to_owned(),
                message: exit.message,
            },
        }
    }
}

/// Whether this life of the agent has seen a run's supervisor alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    NotYet,
    Running,
}

/// The protocol's word for an end by the node's lease.
const LEASE_OVER: &str = "lease_over";

/// The protocol's word for an end that no agent was there to see.
const UNSEEN: &str = "unseen";

/// The end of a run that the node itself lost.
pub fn lost(message: &str) -> FactKind {
    exit_without_word(domain::state::AttemptEnd::NodeLost.as_str(), message)
}

fn exit_without_word(reason: &str, message: &str) -> FactKind {
    FactKind::Exited {
        code: None,
        signal: None,
        out_of_memory: false,
        asked: false,
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

/// Runs what waits for the disk where it holds nobody up.
async fn blocking<T: Send + 'static, E: Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
