//! Mode parameters of a unit: MODE SENSE, MODE SELECT, and the effects of their bits. Values are
//! not saved: a reset restores the defaults.

use device::{Command, DataMover, ItlNexus, Outcome};
use scsi::UnitAttention;
use scsi::cdb::{ModeSelect, ModeSense};
use scsi::mode::{Config, Medium, Pages};

use super::gate::flag;
use super::{DiskOptions, DiskUnit};

pub(super) fn pages(options: &DiskOptions) -> Pages {
    Pages::new(&Config {
        write_cache: options.write_cache,
        write_cache_changeable: true,
        thin: options.thin,
        saving: false,
        task_set_per_nexus: false,
        thresholds: super::thresholds::in_sets(&options.thresholds),
    })
}

impl DiskUnit {
    /// Puts the current mode parameters into effect.
    pub(super) fn apply_modes(&self) {
        let state = self.state();
        if state.modes.write_cache() {
            self.set_flag(flag::CACHED, true);
        }
        self.set_flag(flag::WRITE_THROUGH, !state.modes.write_cache());
        self.set_flag(flag::SOFTWARE_PROTECTED, state.modes.software_write_protect());
        self.set_flag(flag::DESCRIPTOR_SENSE, state.modes.descriptor_sense());
        let watched = state.modes.thresholds() != scsi::mode::Thresholds::default();
        self.set_flag(flag::WATCHED, watched && self.options.thin);
    }

    /// The medium's parameters for `nexus`.
    fn medium(&self, nexus: &ItlNexus) -> Medium {
        Medium {
            blocks: self.capacity(),
            block_len: self.options.block_size,
            write_protected: self.options.read_only || nexus.read_only,
        }
    }

    /// MODE SENSE (6, 10).
    pub(super) fn mode_sense(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: ModeSense,
    ) -> Result<Outcome, Outcome> {
        let data = self.state().modes.sense(&cdb, &self.medium(&command.nexus))?;
        Ok(self.answer(mover, data, u64::from(cdb.allocation)))
    }

    /// MODE SELECT (6, 10). The other nexuses get a unit attention for a change.
    pub(super) async fn mode_select(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: ModeSelect,
    ) -> Result<Outcome, Outcome> {
        let wanted = u64::from(cdb.parameter_len);
        let list = self.parameter_list(command, mover, wanted).await?;
        let medium = self.medium(&command.nexus);
        let was_off = self.is_cache_off();
        let changed = {
            let mut state = self.state();
            let selected = state.modes.select(&cdb, &list, &medium)?;
            if selected.changed {
                let own = command.nexus.nexus.id;
                self.nexuses.establish(UnitAttention::ModeParametersChanged, Some(own));
            }
            selected.changed
        };
        if changed {
            self.apply_modes();
        }
        self.settle_cache(was_off).await?;
        Ok(Outcome::wrote(wanted))
    }

    /// Flushes if the write cache was turned off since `was_off` was read.
    pub(super) async fn settle_cache(&self, was_off: bool) -> Result<(), Outcome> {
        if self.is_cache_off() && !was_off { self.flush_all().await } else { Ok(()) }
    }

    /// Flushes the writes that were acknowledged while the write cache was on, and those at work
    /// that have not seen that it is off.
    pub(super) async fn flush_all(&self) -> Result<(), Outcome> {
        drop(self.stripes.claim(0, u64::MAX).await);
        self.flush(0).await
    }
}
