//! Soft thresholds of a thin unit (SBC-3 §4.7.3.7): what is allocated and what can still be, and the unit attention when a threshold
//! is reached. The medium is asked once a second while anybody is there to be warned; no write ever looks.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ring::Pooled;
use scsi::UnitAttention;
use scsi::data::log::Provisioning;
use scsi::mode;

use super::gate::flag;
use super::{DiskUnit, Thresholds};
use backing::Resources;

/// Bytes of a threshold set, as a power of two: a mebibyte.
const SET_SHIFT: u32 = 20;
/// How often the medium is asked.
const INTERVAL: Duration = Duration::from_secs(1);

/// What is known of a unit's thresholds.
#[derive(Default)]
pub(super) struct Watch {
    /// A task asks the medium.
    running: bool,
    /// Told that too little is available, and not yet more again.
    available_reached: bool,
    /// Told that too much is used, and not yet less again.
    used_reached: bool,
}

/// THRESHOLD EXPONENT for blocks of 2^`block_shift` bytes.
pub(super) fn exponent(block_shift: u32) -> u8 {
    SET_SHIFT.saturating_sub(block_shift) as u8
}

fn sets(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// What is available, rounded down, so that nobody is promised what is not there.
fn available_sets(bytes: u64) -> u32 {
    sets(bytes >> SET_SHIFT)
}

/// What is used, rounded up.
fn used_sets(bytes: u64) -> u32 {
    sets(bytes.div_ceil(1 << SET_SHIFT))
}

/// Thresholds as the mode page has them.
pub(super) fn in_sets(thresholds: &Thresholds) -> mode::Thresholds {
    mode::Thresholds {
        available: thresholds.available.map(available_sets),
        used: thresholds.used.map(used_sets),
    }
}

impl DiskUnit {
    /// What LOG SENSE tells of the medium; `None` if it is not thin or cannot say.
    pub(super) fn resources_in_sets(&self) -> Option<Provisioning> {
        let resources = self.options.thin.then(|| self.store.resources()).flatten()?;
        Some(Provisioning {
            available: available_sets(resources.available),
            used: used_sets(resources.used),
            dedicated: resources.dedicated,
        })
    }

    /// Begins to ask the medium, if thresholds are enabled and nobody does yet. Each core's commands but READ and WRITE come by.
    #[inline]
    pub(super) fn watch_thresholds(self: &Arc<Self>) {
        if self.flags() & flag::WATCHED != 0 {
            self.begin_watch();
        }
    }

    #[cold]
    fn begin_watch(self: &Arc<Self>) {
        if !ring::is_running() || std::mem::replace(&mut self.state().watch.running, true) {
            return;
        }
        let unit = Arc::downgrade(self);
        drop(ring::spawn(Pooled::new(watch(unit))));
    }

    /// Compares what the medium says with the thresholds, and tells every nexus of one that is reached: once, until it is left
    /// again. False when nobody is there to be told any more.
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
        let resources = ring::blocking(move || store.resources()).await;
        match unit.upgrade() {
            Some(unit) if unit.check_thresholds(resources) => {}
            _ => return,
        }
        ring::sleep(INTERVAL).await;
    }
}
