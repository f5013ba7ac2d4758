//! Soft thresholds of a thin unit (SBC-3 §4.7.3.7): its allocated and available space, and the unit
//! attention when a threshold is reached. While a nexus is attached, the unit checks the medium
//! once a second; writes never check it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use runtime::Pooled;
use scsi::UnitAttention;
use scsi::data::log::Provisioning;
use scsi::mode;

use super::gate::flag;
use super::{DiskUnit, Thresholds};
use backing::Resources;

/// Bytes of a threshold set, as a power of two: a mebibyte.
const SET_SHIFT: u32 = 20;
/// Interval between checks of the medium.
const INTERVAL: Duration = Duration::from_secs(1);

/// The state of a unit's thresholds.
#[derive(Default)]
pub(super) struct Watch {
    /// A task checks the medium.
    running: bool,
    /// The threshold of available space was reported, and is still reached.
    available_reached: bool,
    /// The threshold of used space was reported, and is still reached.
    used_reached: bool,
}

/// THRESHOLD EXPONENT for blocks of 2^`block_shift` bytes.
pub(super) fn exponent(block_shift: u32) -> u8 {
    SET_SHIFT.saturating_sub(block_shift) as u8
}

fn sets(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Available sets, rounded down, so that the unit never promises too much.
fn available_sets(bytes: u64) -> u32 {
    sets(bytes >> SET_SHIFT)
}

/// Used sets, rounded up.
fn used_sets(bytes: u64) -> u32 {
    sets(bytes.div_ceil(1 << SET_SHIFT))
}

/// Thresholds in the units of the mode page.
pub(super) fn in_sets(thresholds: &Thresholds) -> mode::Thresholds {
    mode::Thresholds {
        available: thresholds.available.map(available_sets),
        used: thresholds.used.map(used_sets),
    }
}

impl DiskUnit {
    /// The data for LOG SENSE; `None` if the unit is not thin or the store cannot tell.
    pub(super) async fn resources_in_sets(&self) -> Option<Provisioning> {
        let store = self.options.thin.then(|| self.store.clone())?;
        let resources = match runtime::is_running() {
            true => runtime::blocking(move || store.resources()).await?,
            false => store.resources()?,
        };
        Some(Provisioning {
            available: available_sets(resources.available),
            used: used_sets(resources.used),
            dedicated: resources.dedicated,
        })
    }

    /// Starts to check the medium, if thresholds are enabled and no task checks it yet. Every
    /// command except READ and WRITE calls this.
    #[inline]
    pub(super) fn watch_thresholds(self: &Arc<Self>) {
        if self.flags() & flag::WATCHED != 0 {
            self.begin_watch();
        }
    }

    #[cold]
    fn begin_watch(self: &Arc<Self>) {
        if !runtime::is_running() || std::mem::replace(&mut self.state().watch.running, true) {
            return;
        }
        let unit = Arc::downgrade(self);
        drop(runtime::spawn(Pooled::new(watch(unit))));
    }

    /// Compares the medium with the thresholds, and establishes a unit attention once for each time
    /// that one is reached. False if no nexus is left to be warned.
    pub(super) fn check_thresholds(&self, resources: Option<Resources>) -> bool {
        let mut state = self.state();
        let thresholds = state.modes.thresholds();
        if self.nexuses.is_empty() || thresholds == mode::Thresholds::default() {
            state.watch.running = false;
            return false;
        }
        let Some(resources) = resources else { return true };
        let (available, used) = (available_sets(resources.available), used_sets(resources.used));
        let available_reached = thresholds.available.is_some_and(|count| available <= count);
        let used_reached = thresholds.used.is_some_and(|count| used >= count);
        let news =
            available_reached && !state.watch.available_reached || used_reached && !state.watch.used_reached;
        (state.watch.available_reached, state.watch.used_reached) = (available_reached, used_reached);
        if news {
            self.nexuses.establish(UnitAttention::ThinProvisioningSoftThresholdReached, None);
            tracing::warn!(
                serial = self.options.identity.serial,
                available,
                used,
                "a thin unit reached a threshold (MiB)"
            );
        }
        true
    }
}

async fn watch(unit: Weak<DiskUnit>) {
    loop {
        let Some(store) = unit.upgrade().map(|unit| unit.store.clone()) else { return };
        let resources = runtime::blocking(move || store.resources()).await;
        match unit.upgrade() {
            Some(unit) if unit.check_thresholds(resources) => {}
            _ => return,
        }
        runtime::sleep(INTERVAL).await;
    }
}
