//! Cuts a device by a layout. What the layout asks for is what is written down of it: a step that was
//! left half done is gone on with from what is there.

use protocol::mig::MigSlice;

use super::made::Made;
use super::{CutError, Desk};
use crate::gpus::fit::{self, Fit};
use crate::gpus::layout::{self, Wish};
use crate::gpus::mig::{self, Instance};

impl Desk<'_> {
    /// Cuts the device by the layout, while nobody is on it. What is there and as it should be stays.
    /// Whether something was changed.
    pub(super) fn lay_out(
        &self,
        wish: &Wish,
        made: &Made,
        free: &dyn Fn() -> bool,
    ) -> Result<bool, CutError> {
        let there = match self.read() {
            Ok(there) => there,
            // What cannot be cut is whole.
            Err(CutError::NotCapable(_)) if !wish.on => return Ok(false),
            Err(error) => return Err(error),
        };
        let change = "its layout made".to_owned();
        let done = there.on == wish.on && meets(&there.instances, wish);
        if !done && !free() {
            return Err(self.used("a job".to_owned(), &change));
        }
        if !done {
            self.fits(wish)?;
            self.alone(&change)?;
        }
        let wanted = match wish.on {
            _ if done => there.instances.iter().map(|i| i.slice.clone()).collect(),
            true => self.places(wish, there.on)?,
            false => Vec::new(),
        };
        let stays =
            |instance: &&Instance| instance.uuids.len() <= 1 && wanted.contains(&instance.slice);
        let there = self.read()?.instances;
        for instance in there.iter().filter(|instance| !stays(instance)) {
            self.destroy(instance, made)?;
        }
        if !wish.on {
            if !done {
                self.switch(false)?;
            }
            return Ok(!done);
        }
        let mut changed = !done;
        for slice in &wanted {
            let change = format!("an instance {slice}");
            let kept = there.iter().filter(stays).find(|i| i.slice == *slice);
            let id = match kept {
                Some(kept) if !kept.uuids.is_empty() => continue,
                Some(half) => half.id,
                None => mig::create(self.nvml, &self.device()?, slice)
                    .map_err(|error| self.refused(&change, &error))?,
            };
            self.create_compute(id, &change)?;
            changed = true;
        }
        Ok(changed)
    }

    /// Refuses a layout that the device cannot have, before anything is changed for it.
    fn fits(&self, wish: &Wish) -> Result<(), CutError> {
        let told = fit::fit(self.nvml, &self.device()?, &wish.profiles)
            .map_err(|error| self.refused("to ask for its profiles", &error))?;
        match told {
            Fit::Not { wanted, remedy } => Err(self.unfit(wanted, remedy)),
            Fit::Fits | Fit::Unsaid => Ok(()),
        }
    }

    /// Where the instances of a layout lie, which can be asked while the mode is on alone. Where they
    /// cannot lie beside one another the device is left as it was.
    fn places(&self, wish: &Wish, on: bool) -> Result<Vec<MigSlice>, CutError> {
        if on {
            return self.arrange(wish);
        }
        self.switch(true)?;
        let found = self.arrange(wish);
        if found.is_err() {
            self.switch(false)?;
        }
        found
    }

    fn unfit(&self, wanted: String, remedy: String) -> CutError {
        CutError::Unfit {
            uuid: self.uuid.to_owned(),
            wanted,
            remedy,
        }
    }

    fn arrange(&self, wish: &Wish) -> Result<Vec<MigSlice>, CutError> {
        let device = self.device()?;
        let mut all = Vec::with_capacity(wish.profiles.len());
        for profile in &wish.profiles {
            let places = mig::places(self.nvml, &device, profile)
                .map_err(|error| self.refused("to ask for its profiles", &error))?;
            let remedy = "profiles that `nvidia-smi mig -lgip` lists for this model";
            all.push(places.ok_or_else(|| self.unfit(profile.clone(), remedy.to_owned()))?);
        }
        let unfit = || self.unfit(wish.profiles.join(", "), fit::FEWER.to_owned());
        layout::arrange(&all).ok_or_else(unfit)
    }
}

/// Whether a device has just the instances that a layout asks for, wherever they lie: each with its
/// compute instance, or about to get it.
fn meets(there: &[Instance], wish: &Wish) -> bool {
    let mut left: Vec<&Instance> = there.iter().collect();
    let found = wish.profiles.iter().all(|profile| {
        let alike = |i: &&Instance| mig::alike(&i.slice.profile, profile) && i.uuids.len() <= 1;
        left.iter()
            .position(alike)
            .map(|at| left.swap_remove(at))
            .is_some()
    });
    found && left.is_empty()
}
