//! Keeps the images of jobs within their bounds of age and size. An image that no job of this agent's
//! has used is another's, and stays.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bollard::errors::Error;
use bollard::query_parameters::RemoveImageOptionsBuilder;
use serde::{Deserialize, Serialize};

use super::engine;
use super::settings::Settings;
use crate::clock;
use crate::config::SECONDS_PER_DAY;
use crate::files::{self, Durability};

/// Most images that are remembered; the oldest is forgotten, and stays, beyond that.
const IMAGES_MAX: usize = 4096;
/// What a runtime answers that has no such image.
const NOT_FOUND: u16 = 404;

/// Held by who changes the file: jobs start together.
static CHANGING: Mutex<()> = Mutex::new(());

/// When jobs used each image last, by the wall clock.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Uses {
    at_micros: BTreeMap<String, i64>,
}

/// Notes that a job uses an image, by the runtime's id of it.
pub fn note(path: &Path, id: &str) -> io::Result<()> {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut uses = read(path)?;
    uses.at_micros.insert(id.to_owned(), clock::wall_micros());
    while uses.at_micros.len() > IMAGES_MAX {
        let oldest = uses.at_micros.iter().min_by_key(|(_, at)| **at);
        let Some(id) = oldest.map(|(id, _)| id.clone()) else {
            break;
        };
        uses.at_micros.remove(&id);
    }
    write(path, &uses)
}

fn read(path: &Path) -> io::Result<Uses> {
    Ok(files::read_json(path)?.unwrap_or_default())
}

fn write(path: &Path, uses: &Uses) -> io::Result<()> {
    // Lost with power at worst, and an image then stays longer.
    files::write_json(path, uses, Durability::Buffered)
}

/// Removes images of jobs that are too old, and those of longest ago that are too much. The runtime keeps
/// what a container has, whoever's it is. How many were removed.
pub async fn clean(socket: &Path, path: &Path, settings: &Settings) -> Result<usize, Error> {
    let uses = read(path)?;
    let docker = engine::open(socket).await?;
    let mut there = Vec::new();
    let mut gone = Vec::new();
    for (id, at_micros) in &uses.at_micros {
        match docker.inspect_image(id).await {
            Ok(seen) => there.push(Used {
                id: id.clone(),
                bytes: seen.size.unwrap_or_default().max(0).unsigned_abs(),
                at_micros: *at_micros,
            }),
            Err(Error::DockerResponseServerError { status_code, .. })
                if status_code == NOT_FOUND =>
            {
                gone.push(id.clone());
            }
            Err(error) => return Err(error),
        }
    }
    let mut removed = 0;
    for id in beyond(there, settings, clock::wall_micros()) {
        let options = RemoveImageOptionsBuilder::default().force(false).build();
        // One that is in use, or has another name, is refused: it is looked at again the next time.
        if docker.remove_image(&id, Some(options), None).await.is_ok() {
            removed += 1;
            gone.push(id);
        }
    }
    forget(path, &gone)?;
    Ok(removed)
}

/// Reads again what was noted meanwhile, and forgets these.
fn forget(path: &Path, gone: &[String]) -> io::Result<()> {
    if gone.is_empty() {
        return Ok(());
    }
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut uses = read(path)?;
    uses.at_micros.retain(|id, _| !gone.contains(id));
    write(path, &uses)
}

#[derive(Debug, Clone)]
struct Used {
    id: String,
    bytes: u64,
    at_micros: i64,
}

/// Those that are to go, by when they were used last.
fn beyond(mut there: Vec<Used>, settings: &Settings, now_micros: i64) -> Vec<String> {
    there.sort_by_key(|used| std::cmp::Reverse(used.at_micros));
    let days = u64::from(settings.images_days_max);
    let age_max = Duration::from_secs(days * SECONDS_PER_DAY);
    let too_old = |used: &Used| {
        let age = now_micros
            .saturating_sub(used.at_micros)
            .max(0)
            .unsigned_abs();
        days > 0 && Duration::from_micros(age) > age_max
    };
    let mut kept: u64 = 0;
    let mut out = Vec::new();
    for used in there {
        let more = kept.saturating_add(used.bytes);
        let too_much = settings.images_bytes_max > 0 && more > settings.images_bytes_max;
        if too_old(&used) || too_much {
            out.push(used.id);
        } else {
            kept = more;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MICROS: i64 = 24 * 3600 * 1_000_000;

    #[test]
    fn old_images_go_and_of_too_many_those_of_longest_ago() {
        let used = |id: &str, bytes, days| Used {
            id: id.to_owned(),
            bytes,
            at_micros: 100 * DAY_MICROS - days * DAY_MICROS,
        };
        let there = vec![used("old", 1, 15), used("big", 60, 2), used("new", 50, 1)];
        let settings = Settings {
            images_days_max: 14,
            images_bytes_max: 100,
            ..Settings::default()
        };
        let now = 100 * DAY_MICROS;
        assert_eq!(beyond(there.clone(), &settings, now), ["big", "old"]);
        let without = Settings {
            images_days_max: 0,
            images_bytes_max: 0,
            ..Settings::default()
        };
        assert!(beyond(there, &without, now).is_empty());
    }

    #[test]
    fn uses_are_noted_and_forgotten_one_by_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("images.json");
        note(&path, "a").expect("noted");
        note(&path, "b").expect("noted");
        forget(&path, &["a".to_owned()]).expect("forgotten");
        let left: Vec<String> = read(&path).expect("read").at_micros.into_keys().collect();
        assert_eq!(left, ["b"]);
    }
}
