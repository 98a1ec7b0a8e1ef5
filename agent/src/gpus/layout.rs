//! A static MIG layout: how each device is to be cut, from a file in the format of mig-parted, of
//! which one named configuration is chosen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use domain::quantity::DEVICES_PER_NODE_MAX;
use protocol::mig::{MigSlice, SLICES_MAX};
use serde::Deserialize;

use super::mig;
use crate::config::Config;

/// The one version of the format.
const VERSION: &str = "v1";
/// Longest file that is read: the one that NVIDIA ships has some 10 KiB.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Why a layout is refused.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The file cannot be read.
    #[error("mig_layout: {path} cannot be read: name a file of mig-parted's format")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The file is not such a layout; the parser names key and line.
    #[error("mig_layout: {path} is refused")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: Box<serde_saphyr::Error>,
    },
    /// A value cannot be.
    #[error(transparent)]
    Refused(#[from] domain::FieldError),
}

/// How devices are to be cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    entries: Vec<Entry>,
}

/// How one device is to be cut.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// Whether its mode is on.
    pub on: bool,
    /// The profile of each instance.
    pub profiles: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: String,
    #[serde(rename = "mig-configs")]
    configs: BTreeMap<String, Vec<Entry>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Entry {
    #[serde(default)]
    device_filter: Option<Filter>,
    devices: Devices,
    mig_enabled: bool,
    #[serde(default)]
    mig_devices: BTreeMap<String, u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Filter {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Devices {
    Listed(Vec<u32>),
    Word(String),
}

impl Layout {
    /// The layout that the settings name, if they name one.
    pub fn of(config: &Config) -> Result<Option<Self>, LayoutError> {
        let (Some(path), Some(name)) = (&config.mig_layout, &config.mig_config) else {
            return Ok(None);
        };
        let text = read(path).map_err(|source| LayoutError::Unreadable {
            path: path.clone(),
            source,
        })?;
        let file = serde_saphyr::from_str(&text).map_err(|source| LayoutError::Malformed {
            path: path.clone(),
            source: Box::new(source),
        })?;
        Ok(Some(Self::chosen(file, name)?))
    }

    fn chosen(mut file: File, name: &str) -> Result<Self, domain::FieldError> {
        if file.version != VERSION {
            return Err(refusal("version", &file.version, VERSION));
        }
        let names = file.configs.keys().cloned().collect::<Vec<_>>().join(", ");
        let entries = file
            .configs
            .remove(name)
            .ok_or_else(|| refusal("mig_config", name, &format!("one of the file's: {names}")))?;
        for (at, entry) in entries.iter().enumerate() {
            entry.check(&format!("mig-configs.{name}[{at}]"))?;
        }
        Ok(Self { entries })
    }

    /// How the device at a place is to be cut, by its identity on the bus as NVML tells it (device
    /// and vendor in one word); none where the layout leaves it as it is. Of several entries that
    /// fit it the last one holds, as mig-parted takes them in their order.
    pub fn wish(&self, index: u32, pci_device: u32) -> Option<Wish> {
        let entry = self.entries.iter().rfind(|e| e.fits(index, pci_device))?;
        let each = |(profile, count): (&String, &u32)| vec![profile.clone(); *count as usize];
        Some(Wish {
            on: entry.mig_enabled,
            profiles: entry.mig_devices.iter().flat_map(each).collect(),
        })
    }
}

impl Layout {
    /// The devices that it names by their places and that are not among these.
    pub fn absent(&self, places: &[u32]) -> Vec<u32> {
        let named = self.entries.iter().flat_map(|entry| match &entry.devices {
            Devices::Word(_) => &[][..],
            Devices::Listed(listed) => listed,
        });
        let absent: BTreeSet<u32> = named.filter(|at| !places.contains(at)).copied().collect();
        absent.into_iter().collect()
    }
}

/// What is said of devices that a layout names and that are not there.
pub fn words_on_absent(absent: &[u32]) -> Option<String> {
    let named: Vec<String> = absent.iter().map(u32::to_string).collect();
    (!absent.is_empty()).then(|| {
        format!(
            "mig_layout: its configuration names devices that this machine does not have: {}",
            named.join(", ")
        )
    })
}

impl Wish {
    /// Whether a device that is cut like this is as it is wanted; none is a device that is whole. Wherever the
    /// instances lie, there are just those that are asked for.
    pub fn met_by(&self, instances: Option<&[MigSlice]>) -> bool {
        let Some(instances) = instances else {
            return !self.on;
        };
        let mut left: Vec<&MigSlice> = instances.iter().collect();
        let found = self.profiles.iter().all(|profile| {
            let alike = |slice: &&MigSlice| mig::alike(&slice.profile, profile);
            let at = left.iter().position(alike);
            at.map(|at| left.swap_remove(at)).is_some()
        });
        self.on && found && left.is_empty()
    }
}

impl Entry {
    fn check(&self, at: &str) -> Result<(), domain::FieldError> {
        if let Devices::Word(word) = &self.devices
            && word != "all"
        {
            let remedy = "all, or a list of places such as [0, 1]";
            return Err(refusal(&format!("{at}.devices"), word, remedy));
        }
        if let Devices::Listed(places) = &self.devices
            && let Some(beyond) = places.iter().find(|at| **at >= DEVICES_PER_NODE_MAX)
        {
            let remedy = format!("places from 0 to {}", DEVICES_PER_NODE_MAX - 1);
            return Err(refusal(
                &format!("{at}.devices"),
                &beyond.to_string(),
                &remedy,
            ));
        }
        if let Some(wrong) = self.filters().find(|filter| identity(filter).is_none()) {
            let remedy = "a PCI device and vendor such as 0x20B210DE, or a list of them";
            return Err(refusal(&format!("{at}.device-filter"), wrong, remedy));
        }
        for (profile, count) in &self.mig_devices {
            let field = format!("{at}.mig-devices.{profile}");
            if !mig::named(profile) {
                return Err(refusal(&field, profile, &instead_of(profile)));
            }
            if !(1..=SLICES_MAX).contains(count) {
                let remedy = format!("1 to {SLICES_MAX}");
                return Err(refusal(&field, &count.to_string(), &remedy));
            }
        }
        if !self.mig_enabled && !self.mig_devices.is_empty() {
            let remedy = "true, or no mig-devices";
            return Err(refusal(&format!("{at}.mig-enabled"), "false", remedy));
        }
        Ok(())
    }

    fn filters(&self) -> impl Iterator<Item = &str> {
        let filters = match &self.device_filter {
            None => &[][..],
            Some(Filter::One(one)) => std::slice::from_ref(one),
            Some(Filter::Many(many)) => many,
        };
        filters.iter().map(String::as_str)
    }

    fn fits(&self, index: u32, pci_device: u32) -> bool {
        let listed = match &self.devices {
            Devices::Word(_) => true,
            Devices::Listed(places) => places.contains(&index),
        };
        let mut filters = self.filters().peekable();
        let kind = filters.peek().is_none() || filters.any(|f| identity(f) == Some(pci_device));
        listed && kind
    }
}

/// What could stand in the place of what is no profile of whole instances. Parts of an instance are refused:
/// compute instances share the memory of their instance and its engines with nothing in between, so that two jobs
/// in it would read and starve each other, and no request could name one.
fn instead_of(profile: &str) -> String {
    let part = profile.split_once("c.").filter(|(slices, whole)| {
        slices.bytes().all(|b| b.is_ascii_digit()) && !slices.is_empty() && mig::named(whole)
    });
    match part {
        Some((_, whole)) => format!(
            "{whole}, which gets one compute instance of its full size: several in one instance would share its memory and engines without a wall; for more jobs name more, smaller instances"
        ),
        None => "a profile of whole instances such as 1g.10gb or 1g.10gb+me".to_owned(),
    }
}

/// Reads a filter such as `0x20B210DE`.
fn identity(filter: &str) -> Option<u32> {
    let digits = filter.strip_prefix("0x").or(filter.strip_prefix("0X"))?;
    u32::from_str_radix(digits, 16).ok()
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    // A byte more tells one that is longer: half of a layout would be another one.
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let words = format!("it has more than {FILE_BYTES_MAX} bytes");
        return Err(std::io::Error::other(words));
    }
    Ok(text)
}

fn refusal(field: &str, value: &str, remedy: &str) -> domain::FieldError {
    domain::FieldError::new(field, value.to_owned(), remedy)
}

/// A profile as a device has it, with the places that it may be at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The driver's name of it.
    pub profile: String,
    /// Starts and sizes, in memory slices.
    pub at: Vec<(u32, u32)>,
}

/// Places for all of these beside one another, the largest first; none where they do not fit. Trying
/// them in order, as drivers do, would fail where this finds room.
pub fn arrange(wanted: &[Places]) -> Option<Vec<MigSlice>> {
    let mut order: Vec<&Places> = wanted.iter().collect();
    let size = |places: &Places| places.at.first().map_or(0, |(_, size)| *size);
    order.sort_by_key(|places| std::cmp::Reverse(size(places)));
    let mut placed = Vec::with_capacity(order.len());
    place(&order, &mut placed).then_some(placed)
}

/// Goes on from what is placed; at most eight instances lie on a device, so that this ends soon.
fn place(left: &[&Places], placed: &mut Vec<MigSlice>) -> bool {
    let Some((first, rest)) = left.split_first() else {
        return true;
    };
    for (start, size) in &first.at {
        let slice = MigSlice {
            profile: first.profile.clone(),
            start: *start,
            size: *size,
        };
        if placed.iter().any(|other| other.overlaps(&slice)) {
            continue;
        }
        placed.push(slice);
        if place(rest, placed) {
            return true;
        }
        placed.pop();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  mixed:
    - devices: all
      mig-enabled: false
    - devices: [0, 1]
      mig-enabled: true
      mig-devices: {}
    - device-filter: ['0x20B210DE', '0x233010DE']
      devices: all
      mig-enabled: true
      mig-devices:
        1g.10gb: 2
        3g.40gb: 1
";

    fn layout(text: &str, name: &str) -> Result<Layout, LayoutError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("layout.yaml");
        std::fs::write(&path, text).expect("written");
        let config = Config {
            mig_layout: Some(path),
            mig_config: Some(name.to_owned()),
            ..Config::default()
        };
        Ok(Layout::of(&config)?.expect("both are named"))
    }

    #[test]
    fn a_device_is_cut_by_the_last_entry_that_fits_it() {
        let mixed = layout(FILE, "mixed").expect("read");
        assert_eq!(mixed.wish(5, 0x26B9_10DE), Some(Wish::default()));
        let on = Wish {
            on: true,
            ..Wish::default()
        };
        assert_eq!(mixed.wish(1, 0x26B9_10DE), Some(on));
        let cut = mixed.wish(1, 0x2330_10DE).expect("a wish");
        assert_eq!(cut.profiles, ["1g.10gb", "1g.10gb", "3g.40gb"]);
        assert_eq!(mixed.absent(&[0, 2]), [1]);
        let told = words_on_absent(&mixed.absent(&[])).expect("told");
        assert!(told.ends_with("does not have: 0, 1"), "{told}");
        assert_eq!(words_on_absent(&mixed.absent(&[0, 1])), None);
        let only_first = FILE.replace("devices: all", "devices: [0]");
        let only_first = layout(&only_first, "all-disabled").expect("read");
        assert_eq!(only_first.wish(1, 0), None, "left as it is");
    }

    #[test]
    fn a_wrong_layout_is_refused_with_field_value_and_remedy() {
        for (from, to, field, value, remedy) in [
            ("version: v1", "version: v2", "version", "v2", "v1"),
            (
                "1g.10gb: 2",
                "1g.10gb: 9",
                "mig-devices.1g.10gb",
                "9",
                "1 to 8",
            ),
            (
                "1g.10gb: 2",
                "1c.1g.10gb: 2",
                "mig-devices.1c.1g.10gb",
                "1c.1g",
                "1g.10gb, which gets one compute instance of its full size",
            ),
            (
                "1g.10gb: 2",
                "all: 2",
                "mig-devices.all",
                "all",
                "whole instances",
            ),
            ("0x20B210DE", "20B2", "device-filter", "20B2", "0x20B210DE"),
            (
                "devices: [0, 1]",
                "devices: [64]",
                "[1].devices",
                "64",
                "0 to 63",
            ),
            (
                "devices: [0, 1]",
                "devices: some",
                "[1].devices",
                "some",
                "all",
            ),
        ] {
            let told = layout(&FILE.replace(from, to), "mixed").expect_err("refused");
            let told = told.to_string();
            for word in [field, value, remedy] {
                assert!(told.contains(word), "{told} lacks {word}");
            }
        }
        let told = layout(FILE, "none").expect_err("refused").to_string();
        assert!(
            told.contains("mig_config") && told.contains("mixed"),
            "{told}"
        );
        let unknown = FILE.replace("mig-enabled: true", "mig-enable: true");
        let told = layout(&unknown, "mixed").expect_err("refused");
        let told = format!("{:#}", anyhow::Error::from(told));
        assert!(told.contains("mig-enable"), "{told}");
    }

    #[test]
    fn a_file_that_is_too_long_is_refused_and_not_read_in_part() {
        let beyond = format!("{FILE}{}", "# more\n".repeat(160_000));
        let told = layout(&beyond, "mixed").expect_err("refused");
        let told = format!("{:#}", anyhow::Error::from(told));
        assert!(told.contains("more than 1048576 bytes"), "{told}");
    }

    #[test]
    fn instances_find_places_beside_one_another_whatever_order_they_are_named_in() {
        let places = |profile: &str, at: &[(u32, u32)]| Places {
            profile: profile.to_owned(),
            at: at.to_vec(),
        };
        let one = places(
            "1g",
            &[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)],
        );
        let two = places("2g", &[(0, 2), (2, 2), (4, 2)]);
        let three = places("3g", &[(0, 4), (4, 4)]);
        let four = places("4g", &[(0, 4)]);
        let placed = arrange(&[one.clone(), one.clone(), two, three.clone()]).expect("they fit");
        assert_eq!(placed[0].profile, "3g");
        assert!(
            placed
                .iter()
                .enumerate()
                .all(|(at, one)| { placed[at + 1..].iter().all(|other| !one.overlaps(other)) })
        );
        // 3g first takes the half that only 4g can have: it is tried elsewhere.
        let both = arrange(&[three.clone(), four]).expect("beside");
        assert_eq!(both.iter().map(|s| s.start).sum::<u32>(), 4);
        assert!(arrange(&[three.clone(), three, one]).is_none());
    }
}
