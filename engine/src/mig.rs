//! The profiles of MIG instances by device model, and which instances can lie beside one another.
//!
//! A placement is asked of the true table, never of sums: of the 723 states that an 8-slice
//! device can be in, 460 refuse a profile whose slices would still add up.

mod reach;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use crate::world::MigInstance;

/// Thousandths of one device.
const DEVICE: i64 = domain::quantity::MILLI;

/// Most memory slices of a device: no model has more.
const SLICES_MAX: usize = 8;

/// A model of device that can be cut.
#[derive(Debug)]
pub(crate) struct Model {
    /// Its place in the table.
    pub id: usize,
    /// Memory slices of the whole device.
    pub slices: u32,
    pub profiles: BTreeMap<String, Profile>,
    reach: OnceLock<Vec<u32>>,
}

/// A profile of one model: how much of the memory it takes, and where it may begin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    pub name: String,
    /// Memory slices that an instance takes.
    pub size: u32,
    /// Memory slices at which it may begin.
    pub starts: Vec<u32>,
    /// Memory slices of the whole device.
    pub slices: u32,
    /// Compute slices that an instance takes.
    pub compute: u32,
    pub engines: Engines,
}

/// What a profile takes of the engines that a device has only one set of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engines {
    /// Its part of the decoders, as they come with its slices.
    Plain,
    /// The JPEG and optical-flow engines, which one instance may have: `+me`.
    Extra,
    /// All of them, so that nobody else has any: `+me.all`.
    All,
    /// None: `-me`.
    Without,
}

/// An instance at its place.
#[derive(Clone, Copy)]
pub(crate) struct Slice {
    pub profile: &'static Profile,
    pub start: u32,
}

/// What instances take of a device, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Cut {
    /// The memory slices that are taken, as bits.
    pub bits: u64,
    /// Instances on each memory slice: what might be is tried on top of what is, and taken away again.
    held: [u16; SLICES_MAX],
    /// Instances with `+me` or `+me.all`.
    extra: u8,
    /// Instances with `+me.all`.
    all: u8,
    /// Instances that are not `-me`.
    engines: u8,
}

impl Model {
    /// How many sets of instances could still be placed on a device of which these
    /// slices are free: the more, the less a placement has spoilt.
    pub fn reach(&self, free: u64) -> u32 {
        let table = self.reach.get_or_init(|| reach::table(self));
        usize::try_from(free)
            .ok()
            .and_then(|free| table.get(free))
            .copied()
            .unwrap_or(0)
    }

    /// All slices, as bits.
    pub fn whole(&self) -> u64 {
        mask(0, self.slices)
    }
}

impl Profile {
    /// What an instance counts for, in thousandths of a device: its memory slices.
    pub fn milli(&self) -> i64 {
        DEVICE * i64::from(self.size) / i64::from(self.slices.max(1))
    }

    /// The instance at a start, allowed or not.
    pub fn at(&'static self, start: u32) -> Slice {
        Slice {
            profile: self,
            start,
        }
    }

    /// The instances at all allowed starts.
    pub fn places(&'static self) -> impl Iterator<Item = Slice> {
        self.starts.iter().map(|&start| self.at(start))
    }
}

impl Slice {
    /// The memory slices that it takes, as bits.
    pub fn bits(self) -> u64 {
        mask(self.start, self.profile.size)
    }

    /// Whether two instances can be on a device at once.
    pub fn beside(self, other: Self) -> bool {
        Cut::default().with(self).admits(other)
    }
}

impl PartialEq for Slice {
    fn eq(&self, other: &Self) -> bool {
        self.start == other.start && std::ptr::eq(self.profile, other.profile)
    }
}

impl Eq for Slice {}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.profile.name, self.start)
    }
}

impl Cut {
    /// All of it, as two words.
    pub fn words(self) -> [u64; 2] {
        let counts = [self.extra, self.all, self.engines];
        let counts = counts
            .iter()
            .fold(0, |all, &count| all << 8 | u64::from(count));
        [self.bits, counts]
    }

    /// Whether an instance can be there too.
    pub fn admits(self, slice: Slice) -> bool {
        self.bits & slice.bits() == 0
            && match slice.profile.engines {
                Engines::Without => true,
                Engines::Plain => self.all == 0,
                Engines::Extra => self.extra == 0,
                Engines::All => self.engines == 0,
            }
    }

    /// The same with an instance more.
    pub fn with(mut self, slice: Slice) -> Self {
        let (extra, all, engines) = Self::counts(slice);
        self.bits |= slice.bits();
        for held in self
            .held
            .iter_mut()
            .skip(slice.start as usize)
            .take(slice.profile.size as usize)
        {
            *held += 1;
        }
        self.extra += extra;
        self.all += all;
        self.engines += engines;
        self
    }

    /// The same with an instance less.
    pub fn without(mut self, slice: Slice) -> Self {
        let (extra, all, engines) = Self::counts(slice);
        let on = (self.held.iter_mut().zip(0..)).skip(slice.start as usize);
        for (held, at) in on.take(slice.profile.size as usize) {
            *held = held.saturating_sub(1);
            if *held == 0 {
                self.bits &= !(1 << at);
            }
        }
        self.extra = self.extra.saturating_sub(extra);
        self.all = self.all.saturating_sub(all);
        self.engines = self.engines.saturating_sub(engines);
        self
    }

    /// What admits only what both admit.
    pub fn or(self, other: Self) -> Self {
        Self {
            bits: self.bits | other.bits,
            held: std::array::from_fn(|at| self.held[at].max(other.held[at])),
            extra: self.extra.max(other.extra),
            all: self.all.max(other.all),
            engines: self.engines.max(other.engines),
        }
    }

    fn counts(slice: Slice) -> (u8, u8, u8) {
        match slice.profile.engines {
            Engines::Without => (0, 0, 0),
            Engines::Plain => (0, 0, 1),
            Engines::Extra => (1, 0, 1),
            Engines::All => (1, 1, 1),
        }
    }
}

#[derive(serde::Deserialize)]
struct File {
    models: Vec<FileModel>,
}

#[derive(serde::Deserialize)]
struct FileModel {
    key: String,
    memory_slices: u32,
    profiles: Vec<FileProfile>,
}

#[derive(serde::Deserialize)]
struct FileProfile {
    name: String,
    kind: String,
    compute_slices: u32,
    placement_size: Option<u32>,
    #[serde(default)]
    placement_starts: Option<Vec<u32>>,
}

/// The table of all models, read once from the file that ships with the crate.
fn table() -> &'static BTreeMap<String, Model> {
    static TABLE: OnceLock<BTreeMap<String, Model>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let file: File = serde_json::from_str(include_str!("../data/mig_profiles.json"))
            .expect("the file is part of the crate and read by a test");
        let models = file.models.into_iter().enumerate();
        models
            .map(|(id, model)| (model.key.clone(), read(id, model)))
            .collect()
    })
}

fn read(id: usize, model: FileModel) -> Model {
    let slices = model.memory_slices;
    let usable = model.profiles.into_iter().filter_map(|profile| {
        let (size, starts) = (profile.placement_size?, profile.placement_starts?);
        let engines = match profile.kind.split_once("me") {
            Some((head, ".all")) if head.ends_with('+') => Engines::All,
            Some((head, "")) if head.ends_with('+') => Engines::Extra,
            Some((head, "")) if head.ends_with('-') => Engines::Without,
            _ => Engines::Plain,
        };
        let shape = Profile {
            name: profile.name.clone(),
            size,
            starts,
            slices,
            compute: profile.compute_slices,
            engines,
        };
        (!shape.starts.is_empty()).then_some((profile.name, shape))
    });
    Model {
        id,
        slices,
        profiles: usable.collect(),
        reach: OnceLock::new(),
    }
}

/// The model of that name, if it can be cut at all.
pub(crate) fn model(name: &str) -> Option<&'static Model> {
    table().get(name)
}

/// How many models there are.
pub(crate) fn models() -> usize {
    table().len()
}

/// The profile of that name by model, where the model has it.
pub(crate) fn by_model(name: &str) -> Vec<Option<&'static Profile>> {
    let mut found = vec![None; models()];
    for model in table().values() {
        found[model.id] = model.profiles.get(name);
    }
    found
}

/// The profile of that name on devices of that model.
pub(crate) fn profile(model_name: &str, name: &str) -> Option<&'static Profile> {
    model(model_name)?.profiles.get(name)
}

/// Memory slices of an instance of that profile on devices of that model; nothing where none can
/// begin at that slice.
pub fn slices_at(model: &str, name: &str, start: u32) -> Option<u32> {
    let profile = profile(model, name)?;
    profile.starts.contains(&start).then_some(profile.size)
}

/// Gives each instance its start: as listed, those without one at their lowest
/// free start. `Err` holds the instance that cannot exist beside the others.
pub(crate) fn lay_out(model: &str, instances: &[MigInstance]) -> Result<Vec<Slice>, MigInstance> {
    let mut cut = Cut::default();
    let mut placed = Vec::with_capacity(instances.len());
    for instance in instances {
        let listed = || instance.clone();
        let shape = profile(model, &instance.profile).ok_or_else(listed)?;
        let wanted = |slice: &Slice| {
            instance.start.is_none_or(|start| slice.start == start) && cut.admits(*slice)
        };
        let slice = shape.places().find(wanted).ok_or_else(listed)?;
        cut = cut.with(slice);
        placed.push(slice);
    }
    Ok(placed)
}

/// Places beside one another for one instance of each of these profiles, by whatever names a driver calls them, the
/// largest first; none where they do not fit. At most eight lie on a device, so that this ends soon.
pub(crate) fn arrange(model_name: &str, names: &[String]) -> Option<Vec<Slice>> {
    if names.len() > SLICES_MAX {
        return None;
    }
    let of_name = |name: &String| profile(model_name, alike(model_name, name, None)?);
    let mut wanted: Vec<&'static Profile> = names.iter().map(of_name).collect::<Option<_>>()?;
    wanted.sort_by_key(|profile| Reverse(profile.size));
    let mut placed = Vec::with_capacity(wanted.len());
    arrange_rest(&wanted, Cut::default(), &mut placed).then_some(placed)
}

fn arrange_rest(left: &[&'static Profile], cut: Cut, placed: &mut Vec<Slice>) -> bool {
    let Some((first, rest)) = left.split_first() else {
        return true;
    };
    for slice in first.places().filter(|slice| cut.admits(*slice)) {
        placed.push(slice);
        if arrange_rest(rest, cut.with(slice), placed) {
            return true;
        }
        placed.pop();
    }
    false
}

/// The table's name of the profile that a driver may call otherwise, as boards of GB200 do: the one of that name,
/// or else the one with as many compute slices, the same engines and the nearest memory, and of that size where
/// it is known.
pub fn alike(model_name: &str, name: &str, size: Option<u32>) -> Option<&'static str> {
    let table = model(model_name)?;
    let sized = |profile: &&Profile| size.is_none_or(|size| profile.size == size);
    if let Some(same) = table.profiles.get(name).filter(sized) {
        return Some(&same.name);
    }
    let (compute, memory, engines) = named(name)?;
    let others = table.profiles.values().filter(sized).filter_map(|profile| {
        let told = named(&profile.name)?;
        (told.0 == compute && told.2 == engines).then_some((told.1.abs_diff(memory), profile))
    });
    let nearest = others.min_by_key(|(far, profile)| (*far, profile.size));
    nearest.map(|(_, profile)| profile.name.as_str())
}

/// The compute slices, the GiB and the engines that a profile's name tells.
fn named(name: &str) -> Option<(u32, u32, &str)> {
    let (compute, rest) = name.split_once("g.")?;
    let (memory, engines) = rest.split_once("gb")?;
    Some((compute.parse().ok()?, memory.parse().ok()?, engines))
}

/// The memory slices from `start` on, as bits; no model has more than 64.
fn mask(start: u32, size: u32) -> u64 {
    let ones = if size >= u64::BITS {
        u64::MAX
    } else {
        (1 << size) - 1
    };
    if start >= u64::BITS { 0 } else { ones << start }
}
