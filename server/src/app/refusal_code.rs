//! For what something well formed is refused, as a stable word for programs.

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)+) => {
        /// For what something well formed is refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum RefusalCode {
            $($(#[$doc])* $name,)+
        }

        impl RefusalCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The word, such as `name_taken`; the type of its problem ends in it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)+ }
            }
        }
    };
}

codes! {
    /// The job is being cancelled.
    BeingCancelled = "being_cancelled",
    /// Somebody or something was faster.
    ChangedMeanwhile = "changed_meanwhile",
    /// Work is of that class.
    ClassInUse = "class_in_use",
    /// Another commitment of the team in the pool lies in that time.
    CommitmentOverlaps = "commitment_overlaps",
    /// It cannot be done from the present state.
    IllegalStep = "illegal_step",
    /// That version is a removal, which has no state to go back to.
    ItWasRemoved = "it_was_removed",
    /// The job has ended.
    JobEnded = "job_ended",
    /// The key of a repetition is too old.
    KeyExpired = "key_expired",
    /// One administrator must remain.
    LastAdmin = "last_admin",
    /// A team keeps an owner.
    LastOwner = "last_owner",
    /// Another has the name.
    NameTaken = "name_taken",
    /// No registered nodes could ever hold it.
    NeverFits = "never_fits",
    /// No server has opened its port for agents yet.
    NoAuthority = "no_authority",
    /// Its team has no quota in its pools.
    NoQuota = "no_quota",
    /// No registered node has what it asks for.
    NoSuchHardware = "no_such_hardware",
    /// The node answers.
    NodeAnswers = "node_answers",
    /// Work is on the node.
    NodeInUse = "node_in_use",
    /// The worker does not run.
    NotRunning = "not_running",
    /// Nothing was found of the device that a person could clear.
    NothingFound = "nothing_found",
    /// The job is not suspended.
    NotSuspended = "not_suspended",
    /// Of the device something else was found than what was seen.
    OtherFinding = "other_finding",
    /// What is to be changed is not there yet.
    NotThereYet = "not_there_yet",
    /// It is of another person's work.
    NotYourOwn = "not_your_own",
    /// The job does not wait.
    NotWaiting = "not_waiting",
    /// A budget has less left than the job costs at the least.
    OverBudget = "over_budget",
    /// Something keeps a billing period from being closed.
    PeriodNotReady = "period_not_ready",
    /// Another price begins at that time.
    PriceTaken = "price_taken",
    /// The quota was changed meanwhile.
    QuotaChanged = "quota_changed",
    /// What the job asks for cannot be read.
    SpecUnreadable = "spec_unreadable",
    /// The same is asked for already.
    SubscriptionTaken = "subscription_taken",
    /// Work of the team has not ended.
    TeamHasWork = "team_has_work",
    /// A team has as many of a thing as it may have.
    TooManyOfTeam = "too_many_of_team",
    /// A pool has as many windows as may be.
    TooManyWindows = "too_many_windows",
    /// A schedule reports to the webhook.
    WebhookInUse = "webhook_in_use",
}
