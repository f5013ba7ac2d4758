//! A disk's identification and size: INQUIRY with its VPD pages, READ CAPACITY.

use device::{Command, DataMover, Identity, Outcome};
use scsi::Sense;
use scsi::cdb::Inquiry;
use scsi::copy::{self, third_party_copy_page};
use scsi::data::capacity::{ReadCapacity10, ReadCapacity16};
use scsi::data::inquiry::StandardInquiry;
use scsi::data::vpd::{
    self, BlockCharacteristics, BlockLimits, ExtendedInquiry, LogicalBlockProvisioning, ProvisioningType,
};

use super::DiskUnit;
use super::limits::{
    MAX_ATOMIC_BYTES, MAX_COMPARE_BLOCKS, MAX_TRANSFER_BYTES, MAX_UNMAP_BLOCKS, MAX_UNMAP_DESCRIPTORS,
    MAX_WRITE_SAME_BYTES, OPTIMAL_TRANSFER_BYTES,
};

/// The VPD pages of a disk.
const PAGES: [u8; 9] = [
    vpd::SUPPORTED_PAGES,
    vpd::UNIT_SERIAL,
    vpd::IDENTIFICATION,
    vpd::EXTENDED_INQUIRY,
    vpd::MODE_PAGE_POLICY,
    copy::THIRD_PARTY_COPY_PAGE,
    vpd::BLOCK_LIMITS,
    vpd::BLOCK_CHARACTERISTICS,
    vpd::LOGICAL_BLOCK_PROVISIONING,
];

/// A medium that does not rotate.
const NON_ROTATING: u16 = 1;

impl DiskUnit {
    pub(super) fn inquiry(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: Inquiry,
    ) -> Result<Outcome, Outcome> {
        let standard = StandardInquiry {
            target_port_groups: command.nexus.ports.as_ref().map_or(1, |ports| ports.tpgs()),
            ..StandardInquiry::disk(
                &self.options.identity.vendor,
                &self.options.identity.product,
                &self.options.identity.revision,
                self.options.removable,
            )
        };
        let data = match cdb.page {
            None => standard.emit(),
            Some(page) => {
                let body = self.vpd_body(command, page).ok_or(Sense::invalid_field_in_cdb(2, None))?;
                vpd::emit(standard.peripheral(), page, &body)
            }
        };
        Ok(self.answer(mover, data, u64::from(cdb.allocation)))
    }

    fn vpd_body(&self, command: &Command, page: u8) -> Option<Vec<u8>> {
        Some(match page {
            vpd::SUPPORTED_PAGES => vpd::supported_pages(&PAGES),
            vpd::UNIT_SERIAL => vpd::unit_serial(&self.options.identity.serial),
            vpd::IDENTIFICATION => {
                let Identity { naa, vendor, serial, .. } = &self.options.identity;
                self.nexuses.identification(&command.nexus, naa, vendor, serial).body()
            }
            vpd::EXTENDED_INQUIRY => extended().body(),
            vpd::MODE_PAGE_POLICY => vpd::ALL_MODE_PAGES_SHARED.to_vec(),
            copy::THIRD_PARTY_COPY_PAGE => third_party_copy_page(self.options.block_size),
            vpd::BLOCK_LIMITS => self.block_limits().body(),
            vpd::BLOCK_CHARACTERISTICS => BlockCharacteristics {
                rotation_rate: NON_ROTATING,
                // Only thin units support SANITIZE's erases; erased blocks read as zeros.
                after_block_erase: u8::from(self.options.thin),
                after_cryptographic_erase: u8::from(self.options.thin),
                fua_behavior: true,
                verify_unmapped: true,
                ..BlockCharacteristics::default()
            }
            .body(),
            vpd::LOGICAL_BLOCK_PROVISIONING => self.provisioning().body(),
            _ => return None,
        })
    }

    fn block_limits(&self) -> BlockLimits {
        let blocks = |bytes: u64| u32::try_from(bytes >> self.block_shift).unwrap_or(u32::MAX);
        let thin = |value: u32| if self.options.thin { value } else { 0 };
        let geometry = self.store.geometry();
        let granularity = (u64::from(geometry.discard_granularity) >> self.block_shift).max(1);
        BlockLimits {
            write_same_non_zero: false,
            max_compare_and_write: MAX_COMPARE_BLOCKS as u8,
            optimal_granularity: 1 << self.options.physical_block_exponent,
            max_transfer: blocks(MAX_TRANSFER_BYTES),
            optimal_transfer: blocks(OPTIMAL_TRANSFER_BYTES),
            max_prefetch: 0,
            max_unmap: thin(MAX_UNMAP_BLOCKS),
            max_unmap_ranges: thin(MAX_UNMAP_DESCRIPTORS),
            unmap_granularity: thin(u32::try_from(granularity).unwrap_or(u32::MAX)),
            unmap_alignment: self.options.thin.then_some(0),
            max_write_same: MAX_WRITE_SAME_BYTES >> self.block_shift,
            max_atomic: blocks(MAX_ATOMIC_BYTES),
            atomic_alignment: 1 << self.options.physical_block_exponent,
            atomic_granularity: 1 << self.options.physical_block_exponent,
            max_atomic_with_boundary: 0,
            max_atomic_boundary: 0,
        }
    }

    fn provisioning(&self) -> LogicalBlockProvisioning {
        let thin = self.options.thin;
        LogicalBlockProvisioning {
            threshold_exponent: if thin { super::thresholds::exponent(self.block_shift) } else { 0 },
            unmap: thin,
            write_same16: thin,
            write_same10: thin,
            reads_zero: u8::from(thin),
            anchor: false,
            kind: if thin { ProvisioningType::Thin } else { ProvisioningType::Full },
        }
    }

    /// READ CAPACITY (10).
    pub(super) fn read_capacity_10(&self, mover: &mut dyn DataMover) -> Result<Outcome, Outcome> {
        let last = self.check_capacity().saturating_sub(1);
        let data = ReadCapacity10::new(last, self.options.block_size).emit();
        Ok(self.answer(mover, data.to_vec(), data.len() as u64))
    }

    /// READ CAPACITY (16).
    pub(super) fn read_capacity_16(
        &self,
        mover: &mut dyn DataMover,
        allocation: u32,
    ) -> Result<Outcome, Outcome> {
        let data = ReadCapacity16 {
            last_lba: self.check_capacity().saturating_sub(1),
            block_len: self.options.block_size,
            physical_exponent: self.options.physical_block_exponent,
            lowest_aligned: 0,
            provisioning: self.options.thin,
            deallocated_is_zero: self.options.thin,
        };
        Ok(self.answer(mover, data.emit().to_vec(), u64::from(allocation)))
    }
}

fn extended() -> ExtendedInquiry {
    ExtendedInquiry {
        head_of_queue: true,
        ordered: true,
        simple: true,
        volatile_cache: true,
        nexus_clears: true,
        ..ExtendedInquiry::default()
    }
}
