//! Whether somebody may do a thing at all, asked apart from doing it.

use domain::ids::JobId;
use domain::name::Name;

use super::authorise::{Action, Needs, Rule, Target, authorise, may_somewhere};
use super::{App, AppError, Asker, jobs, teams};

/// On what something was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum On {
    /// On nothing of any team that its address names.
    Platform,
    /// On a team or a job by what can be the name of none.
    Unknown,
    /// On a team.
    Team(Name),
    /// On a job.
    Job(JobId),
}

/// Refuses what the asker may not do, as the operation itself would.
pub async fn judge(app: &App, asker: &Asker, action: Action, on: &On) -> Result<(), AppError> {
    match (action.rule(), on) {
        (Rule::Open | Rule::SignedIn, _) => Ok(()),
        (Rule::Platform(_), _) => authorise(asker, action, Target::Platform),
        (_, On::Team(team)) => {
            let mut tx = app.db.begin_person(&asker.scope()).await?;
            teams::find_as(&mut tx, asker, action, team).await?;
            Ok(tx.commit().await?)
        }
        (_, On::Job(job)) => {
            let mut tx = app.db.begin_person(&asker.scope()).await?;
            jobs::find(&mut tx, asker, action, *job).await?;
            Ok(tx.commit().await?)
        }
        // Which team is meant stands in what could not be read.
        (Rule::Team(..) | Rule::Work(_), On::Platform) if !may_somewhere(asker, action) => {
            Err(AppError::Forbidden {
                action: action.as_str(),
                needs: Needs::SomeTeam,
            })
        }
        // Its path names nothing that could be there, which its refusal says.
        (Rule::Team(..) | Rule::Work(_), On::Platform | On::Unknown) => Ok(()),
    }
}
