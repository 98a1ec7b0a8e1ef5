//! Who may do what: one table, one function, and what is not in the table is denied.
//!
//! A row's name is the operation id of its handler and of the OpenAPI document; a test walks
//! every operation of that document and fails on one without a row. Roles are inherited down the
//! tree of teams, which `app::sessions` has already worked into [`Asker::teams`].

use std::fmt;

use domain::ids::{TeamId, UserId};
use domain::role::{PlatformRole, TeamRole};

use super::{AppError, Asker};

use PlatformRole::{Admin, Auditor, Finance, Operator};

/// Platform roles that see every team's work.
const SEE: &[PlatformRole] = &[Admin, Operator, Finance, Auditor];
/// Platform roles that may read what the work itself writes.
const SEE_INSIDE: &[PlatformRole] = &[Admin, Operator, Auditor];
/// Platform roles that steer nodes, pools and every team's work.
const STEER: &[PlatformRole] = &[Admin, Operator];
/// Platform roles that set prices.
const PRICE: &[PlatformRole] = &[Admin, Finance];
/// Platform roles that read the audit log.
const REVIEW: &[PlatformRole] = &[Admin, Auditor];
/// The administrator alone.
const ADMIN: &[PlatformRole] = &[Admin];

/// What an action needs of its asker.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    /// Nobody needs to be signed in.
    Open,
    /// Anybody who is signed in; what they see is limited to their own.
    SignedIn,
    /// One of these platform roles.
    Platform(&'static [PlatformRole]),
    /// At least this role in the team in question, or one of these platform roles.
    Team(TeamRole, &'static [PlatformRole]),
    /// A member for its own work, an owner for all work of the team, or one of these platform roles.
    Work(&'static [PlatformRole]),
}

/// On what something is to be done.
#[derive(Debug, Clone, Copy, Default)]
pub enum Target {
    /// On nothing of any team.
    #[default]
    Platform,
    /// On a team or what belongs to it.
    Team(TeamId),
    /// On one person's work.
    Work {
        /// The team that it belongs to.
        team: TeamId,
        /// Whose it is.
        user: UserId,
    },
}

macro_rules! actions {
    ($($name:ident $operation:literal $rule:expr;)+) => {
        /// Something that a person can do; one per operation of the API.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Action {
            $(#[doc = concat!("`", $operation, "`")] $name,)+
        }

        impl Action {
            /// Every action.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The operation id.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $operation,)+ }
            }

            /// The row of the table.
            pub fn rule(self) -> Rule {
                match self { $(Self::$name => $rule,)+ }
            }
        }
    };
}

use Rule::{Open, Platform, SignedIn, Team, Work};
use TeamRole::{Member, Owner, Viewer};

actions! {
    LogIn "log_in" Open;
    LogOut "log_out" SignedIn;
    GetWhoami "get_whoami" SignedIn;
    ChangePassword "change_password" SignedIn;

    ListTeams "list_teams" SignedIn;
    CreateTeam "create_team" Platform(ADMIN);
    GetTeam "get_team" Team(Viewer, SEE);
    UpdateTeam "update_team" Platform(ADMIN);
    ListMembers "list_members" Team(Viewer, SEE);
    AddMember "add_member" Team(Owner, ADMIN);
    RemoveMember "remove_member" Team(Owner, ADMIN);
    ListQuotas "list_quotas" Team(Viewer, SEE);
    PutQuota "put_quota" Platform(STEER);
    GetQuotaStatement "get_quota_statement" Team(Viewer, SEE);
    ListAllQuotas "list_all_quotas" SignedIn;
    PutQuotas "put_quotas" Platform(STEER);

    ListUsers "list_users" SignedIn;
    GetUser "get_user" SignedIn;
    CreateUser "create_user" Platform(ADMIN);
    UpdateUser "update_user" Platform(ADMIN);

    ListPools "list_pools" SignedIn;
    GetPool "get_pool" SignedIn;
    ListQueue "list_queue" SignedIn;
    CreatePool "create_pool" Platform(STEER);
    UpdatePool "update_pool" Platform(STEER);
    ListClasses "list_classes" SignedIn;
    CreateClass "create_class" Platform(STEER);
    UpdateClass "update_class" Platform(STEER);
    DeleteClass "delete_class" Platform(STEER);
    ListBookings "list_bookings" SignedIn;
    CreateBooking "create_booking" Platform(STEER);
    UpdateBooking "update_booking" Platform(STEER);
    DeleteBooking "delete_booking" Platform(STEER);
    ListWindows "list_windows" SignedIn;
    CreateWindow "create_window" Platform(STEER);
    UpdateWindow "update_window" Platform(STEER);
    DeleteWindow "delete_window" Platform(STEER);
    ListPolicyVersions "list_policy_versions" SignedIn;
    RestorePolicyVersion "restore_policy_version" Platform(STEER);
    DiffPolicy "diff_policy" Platform(STEER);
    ListPrices "list_prices" SignedIn;
    CreatePrice "create_price" Platform(PRICE);
    ListPriceBooks "list_price_books" Platform(SEE);
    GetPriceBook "get_price_book" Platform(SEE);
    CreatePriceBook "create_price_book" Platform(PRICE);
    ActivatePriceBook "activate_price_book" Platform(PRICE);
    DiscardPriceBook "discard_price_book" Platform(PRICE);
    PreviewPriceBook "preview_price_book" Platform(SEE);
    ListCommitments "list_commitments" SignedIn;
    CreateCommitment "create_commitment" Platform(PRICE);
    GetOrganisation "get_organisation" SignedIn;
    UpdateOrganisation "update_organisation" Platform(PRICE);
    ListBillingPeriods "list_billing_periods" SignedIn;
    CloseBillingPeriod "close_billing_period" Platform(PRICE);
    IssueBillingPeriod "issue_billing_period" Platform(PRICE);
    ListBillingStatements "list_billing_statements" Platform(SEE);
    ListTeamBillingStatements "list_team_billing_statements" Team(Owner, SEE);
    GetTeamBillingStatement "get_team_billing_statement" Team(Owner, SEE);
    ListReconciliations "list_reconciliations" Platform(SEE);
    GetReconciliation "get_reconciliation" Platform(SEE);
    ListAudit "list_audit" Platform(REVIEW);

    ListNodes "list_nodes" SignedIn;
    GetNode "get_node" SignedIn;
    CordonNode "cordon_node" Platform(STEER);
    UncordonNode "uncordon_node" Platform(STEER);
    DrainNode "drain_node" Platform(STEER);
    RetireNode "retire_node" Platform(STEER);
    DeclareNodeLost "declare_node_lost" Platform(STEER);
    ClearDevice "clear_device" Platform(STEER);
    UpdateNode "update_node" Platform(STEER);
    ListNodeEvents "list_node_events" SignedIn;
    GetNodeTelemetry "get_node_telemetry" SignedIn;
    CreateJoinToken "create_join_token" Platform(STEER);

    SubmitJob "submit_job" Team(Member, STEER);
    SubmitJobs "submit_jobs" Team(Member, STEER);
    DryRunJob "dry_run_job" Team(Member, STEER);
    ListJobs "list_jobs" SignedIn;
    GetJobTelemetry "get_job_telemetry" Team(Viewer, SEE);
    GetJob "get_job" Team(Viewer, SEE);
    UpdateJob "update_job" Work(STEER);
    CancelJob "cancel_job" Work(STEER);
    SuspendJob "suspend_job" Work(STEER);
    ResumeJob "resume_job" Work(STEER);
    ListJobElements "list_job_elements" Team(Viewer, SEE);
    ListJobEvents "list_job_events" Team(Viewer, SEE);
    ListJobAttempts "list_job_attempts" Team(Viewer, SEE);
    ListJobEvictions "list_job_evictions" Team(Viewer, SEE);
    ListTeamEvictions "list_team_evictions" Team(Viewer, SEE);
    ListJobWaits "list_job_waits" Team(Viewer, SEE);
    ExplainJob "explain_job" Team(Viewer, SEE);
    GetJobLogs "get_job_logs" Team(Viewer, SEE_INSIDE);
    ExecJob "exec_job" Work(ADMIN);
    AttachJob "attach_job" Work(ADMIN);
    ForwardJob "forward_job" Work(ADMIN);
    SearchJobLogs "search_job_logs" Team(Viewer, SEE_INSIDE);
    ListJobResults "list_job_results" Team(Viewer, SEE_INSIDE);
    GetJobResult "get_job_result" Team(Viewer, SEE_INSIDE);
    GetScenario "get_scenario" Platform(SEE_INSIDE);
    StreamEvents "stream_events" SignedIn;

    ListAllBudgets "list_all_budgets" SignedIn;
    ListBudgets "list_budgets" Team(Viewer, SEE);
    CreateBudget "create_budget" Platform(PRICE);
    UpdateBudget "update_budget" Platform(PRICE);
    DeleteBudget "delete_budget" Platform(PRICE);
    ListWebhooks "list_webhooks" Team(Owner, ADMIN);
    CreateWebhook "create_webhook" Team(Owner, ADMIN);
    RotateWebhookKey "rotate_webhook_key" Team(Owner, ADMIN);
    DeleteWebhook "delete_webhook" Team(Owner, ADMIN);
    ListSubscriptions "list_subscriptions" Team(Viewer, SEE);
    CreateSubscription "create_subscription" Team(Member, ADMIN);
    DeleteSubscription "delete_subscription" Team(Member, ADMIN);
    ListSchedules "list_schedules" Team(Viewer, SEE);
    CreateSchedule "create_schedule" Team(Owner, ADMIN);
    DeleteSchedule "delete_schedule" Team(Owner, ADMIN);
    ListScheduleReports "list_schedule_reports" Team(Viewer, SEE);
    ListDeliveries "list_deliveries" Team(Owner, ADMIN);
    ResendDelivery "resend_delivery" Team(Owner, ADMIN);

    GetTeamUsage "get_team_usage" Team(Viewer, SEE);
    GetUsage "get_usage" SignedIn;
    GetCapacityUsage "get_capacity_usage" Platform(SEE);
}

/// Lets `asker` do `action` on `target`, or refuses. A team that the asker cannot see is not
/// there: 404, never 403.
pub fn authorise(asker: &Asker, action: Action, target: Target) -> Result<(), AppError> {
    if may(asker, action, target) {
        return Ok(());
    }
    if let Target::Team(team) | Target::Work { team, .. } = target
        && asker.platform_role.is_none()
        && !asker.teams.contains_key(&team)
    {
        return Err(AppError::not_found("team", team));
    }
    Err(AppError::Forbidden {
        action: action.as_str(),
        needs: needs(action.rule(), target),
    })
}

/// Whether `asker` may do `action` on `target`: what pages ask before they offer it.
pub fn may(asker: &Asker, action: Action, target: Target) -> bool {
    let in_team = |team: TeamId| asker.teams.get(&team).copied();
    match (action.rule(), target) {
        (Open | SignedIn, _) => true,
        (Platform(roles), _) => has_one_of(asker, roles),
        (Team(least, roles), Target::Team(team) | Target::Work { team, .. }) => {
            has_one_of(asker, roles) || in_team(team) >= Some(least)
        }
        (Work(roles), Target::Work { team, user }) => {
            let role = in_team(team);
            let own = user == asker.user_id && role >= Some(Member);
            has_one_of(asker, roles) || own || role >= Some(Owner)
        }
        // A row that needs a team, asked without one: our mistake, and denied.
        (Team(..) | Work(_), Target::Platform) | (Work(_), Target::Team(_)) => false,
    }
}

/// Whether `asker` may do `action` on a team or on its own work in one, whichever that is.
pub fn may_somewhere(asker: &Asker, action: Action) -> bool {
    let in_some_team = |least| asker.teams.values().any(|role| *role >= least);
    match action.rule() {
        Open | SignedIn => true,
        Platform(roles) => has_one_of(asker, roles),
        Team(least, roles) => has_one_of(asker, roles) || in_some_team(least),
        Work(roles) => has_one_of(asker, roles) || in_some_team(Member),
    }
}

fn has_one_of(asker: &Asker, roles: &[PlatformRole]) -> bool {
    asker
        .platform_role
        .is_some_and(|role| roles.contains(&role))
}

fn needs(rule: Rule, target: Target) -> Needs {
    match (rule, target) {
        (Open | SignedIn, _) => Needs::SignIn,
        (Platform(roles), _) => Needs::Platform(roles),
        (Team(least, roles), Target::Team(_) | Target::Work { .. }) => Needs::Team(least, roles),
        (Work(roles), Target::Work { .. }) => Needs::Work(roles),
        (Team(..) | Work(_), Target::Platform) | (Work(_), Target::Team(_)) => Needs::SomeTeam,
    }
}

/// What would let somebody do what was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// To be signed in.
    SignIn,
    /// A form that bears the token of the session's own page.
    PageToken,
    /// One of these platform roles.
    Platform(&'static [PlatformRole]),
    /// At least this role in the team in question, or one of these platform roles.
    Team(TeamRole, &'static [PlatformRole]),
    /// To be its submitter or an owner of its team, or one of these platform roles.
    Work(&'static [PlatformRole]),
    /// A role in a team.
    SomeTeam,
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let platform = |roles: &[PlatformRole]| {
            let words: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
            format!("the platform role {}", words.join(" or "))
        };
        match self {
            Self::SignIn => f.write_str("a sign-in"),
            Self::PageToken => f.write_str("the page's own token: load the page again and repeat"),
            Self::Platform(roles) => f.write_str(&platform(roles)),
            Self::Team(least, roles) => write!(
                f,
                "at least the role {least} in this team, or {}",
                platform(roles)
            ),
            Self::Work(roles) => write!(
                f,
                "its submitter, the role owner in its team, or {}",
                platform(roles)
            ),
            Self::SomeTeam => f.write_str("a role in a team"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::ids::{RequestId, SessionId};

    fn asker(platform_role: Option<PlatformRole>, teams: &[(TeamId, TeamRole)]) -> Asker {
        Asker {
            user_id: UserId::new(),
            name: "ada".parse().expect("a name"),
            platform_role,
            teams: teams.iter().copied().collect(),
            ancestors: Vec::new(),
            session_id: SessionId::new(),
            request_id: RequestId::new(),
        }
    }

    #[test]
    fn a_member_steers_its_own_work_and_an_owner_everybodys() {
        let team = TeamId::new();
        let member = asker(None, &[(team, Member)]);
        let mine = Target::Work {
            team,
            user: member.user_id,
        };
        let other = Target::Work {
            team,
            user: UserId::new(),
        };
        assert!(authorise(&member, Action::CancelJob, mine).is_ok());
        assert!(matches!(
            authorise(&member, Action::CancelJob, other),
            Err(AppError::Forbidden { .. })
        ));
        let owner = asker(None, &[(team, Owner)]);
        assert!(authorise(&owner, Action::CancelJob, other).is_ok());
    }

    #[test]
    fn another_teams_work_is_not_there() {
        let stranger = asker(None, &[(TeamId::new(), Owner)]);
        let target = Target::Team(TeamId::new());
        assert!(matches!(
            authorise(&stranger, Action::SubmitJob, target),
            Err(AppError::NotFound { .. })
        ));
    }

    #[test]
    fn a_person_who_left_a_team_no_longer_steers_the_work_it_left_there() {
        let gone = asker(None, &[]);
        let target = Target::Work {
            team: TeamId::new(),
            user: gone.user_id,
        };
        assert!(authorise(&gone, Action::CancelJob, target).is_err());
    }

    #[test]
    fn somewhere_is_in_any_team_and_nowhere_without_one() {
        let viewer = asker(None, &[(TeamId::new(), Viewer)]);
        let member = asker(None, &[(TeamId::new(), Viewer), (TeamId::new(), Member)]);
        let operator = asker(Some(Operator), &[]);
        for (asker, may) in [(viewer, false), (member, true), (operator, true)] {
            assert_eq!(may_somewhere(&asker, Action::SubmitJob), may);
            assert_eq!(may_somewhere(&asker, Action::CancelJob), may);
        }
        assert!(!may_somewhere(&asker(None, &[]), Action::SubmitJob));
    }

    #[test]
    fn an_auditor_changes_nothing() {
        let auditor = asker(Some(Auditor), &[]);
        let team = Target::Team(TeamId::new());
        for action in [
            Action::SubmitJob,
            Action::PutQuota,
            Action::CreatePrice,
            Action::AddMember,
        ] {
            assert!(authorise(&auditor, action, team).is_err(), "{action:?}");
        }
        assert!(authorise(&auditor, Action::GetJob, team).is_ok());
    }
}
