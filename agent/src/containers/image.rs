//! Images: found, or pulled with their progress told in the job's log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{CreateImageInfo, ImageInspect};
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt as _;

use super::output::Output;
use super::settings::Pull;
use super::{Container, engine};
use crate::runs::Refusal;

/// Most often that progress is told.
const PROGRESS_PACE: Duration = Duration::from_secs(5);
/// Most layers that are counted: images have at most some hundred.
const LAYERS_MAX: usize = 1024;
const MIB: i64 = 1024 * 1024;
/// The answer of a runtime that has no such thing.
const NOT_FOUND: u16 = 404;

/// An image that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The runtime's id of it.
    pub id: String,
    /// What names it for good: its digest in a registry, or else its id.
    pub digest: String,
}

/// Finds the job's image, pulling it where the settings say so.
pub async fn have(
    docker: &Docker,
    container: &Container,
    output: &mut Output,
) -> Result<Found, Refusal> {
    let image = &container.image;
    if container.pull != Pull::Always
        && let Some(found) = find(docker, image).await?
    {
        return Ok(found);
    }
    if container.pull == Pull::Never {
        return Err(Refusal::here(format!(
            "image: {} is not on this node, which pulls none (containers.pull = \"never\")",
            quoted(image)
        )));
    }
    let seconds = container.pull_seconds_max;
    let pulled = tokio::time::timeout(Duration::from_secs(seconds), pull(container, output));
    match pulled.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(unpulled(image, &error)),
        Err(_) => {
            return Err(Refusal::here(format!(
                "image: {} was not pulled within {seconds} s (containers.pull_seconds_max)",
                quoted(image)
            )));
        }
    }
    let found = find(docker, image).await?;
    found.ok_or_else(|| {
        Refusal::here(format!(
            "image: {} was pulled, and the runtime does not have it",
            quoted(image)
        ))
    })
}

fn quoted(image: &str) -> String {
    domain::error::quote(image)
}

async fn find(docker: &Docker, image: &str) -> Result<Option<Found>, Refusal> {
    match docker.inspect_image(image).await {
        Ok(seen) => Ok(found(seen)),
        Err(Error::DockerResponseServerError { status_code, .. }) if status_code == NOT_FOUND => {
            Ok(None)
        }
        Err(error) => Err(Refusal::here(format!(
            "image: {} cannot be looked for: {error}",
            quoted(image)
        ))),
    }
}

fn found(seen: ImageInspect) -> Option<Found> {
    let id = seen.id?;
    let digests = seen.repo_digests.unwrap_or_default();
    // What was built here bears the digest of no registry.
    let of_registry = digests
        .into_iter()
        .find(|digest| !digest.starts_with("localhost/"));
    let bare = |digest: String| digest.split_once('@').map(|(_, digest)| digest.to_owned());
    Some(Found {
        digest: of_registry.and_then(bare).unwrap_or_else(|| id.clone()),
        id,
    })
}

async fn pull(container: &Container, output: &mut Output) -> Result<(), Error> {
    let image = &container.image;
    // Its own connection: this answer may take as long as the pull.
    let docker = engine::connect(&container.socket, container.pull_seconds_max)?;
    let docker = docker.negotiate_version().await?;
    let options = CreateImageOptionsBuilder::default()
        .from_image(&tagged(image))
        .build();
    let mut steps = docker.create_image(Some(options), None, None);
    output.say(&format!("pulling image {image}"));
    let mut progress = Progress::default();
    let mut told_at = Instant::now();
    while let Some(step) = steps.next().await {
        progress.take(&step?);
        if told_at.elapsed() >= PROGRESS_PACE {
            told_at = Instant::now();
            output.say(&format!("pulling image {image}: {progress}"));
        }
    }
    output.say(&format!("pulled image {image}"));
    Ok(())
}

/// The name with a tag: without one a runtime would pull all that there are.
fn tagged(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) {
        image.to_owned()
    } else {
        format!("{image}:latest")
    }
}

fn unpulled(image: &str, error: &Error) -> Refusal {
    let said = error.to_string();
    let image = quoted(image);
    let unknown = [
        "not found",
        "manifest unknown",
        "repository does not exist",
        "name unknown",
    ];
    let lower = said.to_lowercase();
    // Whoever has such an image has it on every node.
    if unknown.iter().any(|words| lower.contains(words)) {
        return Refusal::invalid(format!(
            "image: {image} is not in its registry; look at its name and tag: {said}"
        ));
    }
    if ["denied", "unauthorized", "authentication required"]
        .iter()
        .any(|words| lower.contains(words))
    {
        return Refusal::here(format!(
            "image: {image} is not given to this node; let its container runtime log in to the registry: {said}"
        ));
    }
    Refusal::here(format!("image: {image} cannot be pulled: {said}"))
}

/// How far the layers of an image are.
#[derive(Debug, Default)]
struct Progress {
    layers: BTreeMap<String, (i64, i64)>,
}

impl Progress {
    fn take(&mut self, step: &CreateImageInfo) {
        let Some(id) = step.id.as_ref() else { return };
        if self.layers.len() >= LAYERS_MAX && !self.layers.contains_key(id) {
            return;
        }
        let layer = self.layers.entry(id.clone()).or_default();
        let detail = step.progress_detail.as_ref();
        if let Some(total) = detail.and_then(|detail| detail.total).filter(|t| *t > 0) {
            let current = detail.and_then(|detail| detail.current).unwrap_or_default();
            *layer = (current.clamp(0, total), total);
        }
    }
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = |part: fn(&(i64, i64)) -> i64| -> i64 {
            self.layers.values().map(part).fold(0, i64::saturating_add) / MIB
        };
        write!(
            f,
            "{} layers, {} of {} MiB so far",
            self.layers.len(),
            sum(|layer| layer.0),
            sum(|layer| layer.1)
        )
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;
    use crate::runs::RefusalCode;

    #[test]
    fn a_name_without_a_tag_is_the_latest() {
        for (name, wanted) in [
            ("python", "python:latest"),
            ("registry:5000/a/b", "registry:5000/a/b:latest"),
            ("registry:5000/a/b:1", "registry:5000/a/b:1"),
            ("a@sha256:00", "a@sha256:00"),
        ] {
            assert_eq!(tagged(name), wanted);
        }
    }

    #[test]
    fn an_image_is_named_by_its_registrys_digest_where_it_has_one() {
        let seen = |digests: &[&str]| ImageInspect {
            id: Some("sha256:1".to_owned()),
            repo_digests: Some(digests.iter().map(ToString::to_string).collect()),
            ..ImageInspect::default()
        };
        let digest = |digests: &[&str]| found(seen(digests)).expect("found").digest;
        assert_eq!(digest(&["docker.io/library/a@sha256:2"]), "sha256:2");
        assert_eq!(digest(&["localhost/a@sha256:2"]), "sha256:1");
        assert_eq!(digest(&[]), "sha256:1");
    }

    #[test]
    fn layers_are_added_up_and_a_total_that_lies_harms_nobody() {
        let step = |id: &str, current, total| CreateImageInfo {
            id: Some(id.to_owned()),
            progress_detail: Some(ProgressDetail {
                current: Some(current),
                total: Some(total),
            }),
            ..CreateImageInfo::default()
        };
        let mut progress = Progress::default();
        progress.take(&step("a", 3 * MIB, 10 * MIB));
        progress.take(&step("b", MIB, 2 * MIB));
        progress.take(&step("a", 10 * MIB, 10 * MIB));
        assert_eq!(progress.to_string(), "2 layers, 11 of 12 MiB so far");
        progress.take(&step("c", i64::MAX, i64::MAX));
        progress.take(&step("d", i64::MAX, i64::MAX));
        assert!(progress.to_string().starts_with("4 layers"));
    }

    #[test]
    fn what_no_node_could_pull_ends_the_job_and_what_this_one_cannot_does_not() {
        let error = |said: &str| Error::DockerStreamError {
            error: said.to_owned(),
        };
        for (said, code) in [
            ("manifest unknown", RefusalCode::Invalid),
            ("pull access denied", RefusalCode::StartRefused),
            ("dial tcp: i/o timeout", RefusalCode::StartRefused),
        ] {
            let refusal = unpulled("a\nb", &error(said));
            assert_eq!(refusal.code, code, "{said}");
            assert!(!refusal.message.contains('\n'), "{}", refusal.message);
        }
    }
}
