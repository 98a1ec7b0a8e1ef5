//! Removes containers of this agent's that nobody follows any more, and never another's.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::{ListContainersOptionsBuilder, RemoveContainerOptionsBuilder};

use super::{LABEL_AGENT, assignment_of, engine, name};
use crate::folders::Folders;

/// Tries to remove a container: a runtime that is still taking one down says so for a moment.
const TRIES: u32 = 5;
/// Wait between them.
const TRY_WAIT: Duration = Duration::from_millis(300);
/// What a runtime answers that has no such container.
const NOT_FOUND: u16 = 404;

/// Removes the container of an assignment, running or not; fine where there is none.
pub async fn remove(socket: &Path, assignment: &str) -> Result<(), Error> {
    let docker = engine::open(socket).await?;
    remove_by(&docker, &name(assignment)).await
}

/// The same over a connection that is there, by name or id.
pub(super) async fn remove_by(docker: &Docker, container: &str) -> Result<(), Error> {
    let options = || {
        let options = RemoveContainerOptionsBuilder::default();
        Some(options.force(true).v(true).build())
    };
    let mut tried = 0;
    loop {
        tried += 1;
        match docker.remove_container(container, options()).await {
            Ok(()) => return Ok(()),
            Err(Error::DockerResponseServerError { status_code, .. })
                if status_code == NOT_FOUND =>
            {
                return Ok(());
            }
            Err(error) if tried >= TRIES => return Err(error),
            Err(_) => tokio::time::sleep(TRY_WAIT).await,
        }
    }
}

/// Removes this agent's containers whose assignment has no run folder any more; how many those were.
pub async fn remove_strays(socket: &Path, folders: &Folders) -> Result<usize, Error> {
    let docker = engine::open(socket).await?;
    let ours = format!("{LABEL_AGENT}={}", folders.state().display());
    let filters = HashMap::from([("label", vec![ours])]);
    let options = ListContainersOptionsBuilder::default()
        .all(true)
        .filters(&filters)
        .build();
    let mut removed = 0;
    for seen in docker.list_containers(Some(options)).await? {
        let labels = seen.labels.unwrap_or_default();
        let own = labels.get(LABEL_AGENT).map(String::as_str) == folders.state().to_str();
        let (Some(id), Some(assignment)) = (seen.id, assignment_of(&labels)) else {
            continue;
        };
        // Made after its run folder, and gone before it.
        if own && !folders.run(assignment).exists() {
            remove_by(&docker, &id).await?;
            removed += 1;
        }
    }
    Ok(removed)
}
