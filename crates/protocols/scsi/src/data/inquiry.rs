//! Standard INQUIRY data (SPC-4 §6.6.2).

use arrayvec::ArrayVec;

use super::Fields;
use super::text::Ascii;

/// PERIPHERAL DEVICE TYPE of a direct access block device (SPC-4 table 140).
pub const DISK: u8 = 0x00;
/// PERIPHERAL DEVICE TYPE of an object-based storage device.
pub const OSD: u8 = 0x11;
/// PERIPHERAL DEVICE TYPE "unknown or no device".
pub(crate) const NO_DEVICE: u8 = 0x1F;

/// Version descriptors (SPC-4 table 142) that claim no revision.
pub mod version {
    /// SAM-5.
    pub const SAM_5: u16 = 0x00A0;
    /// SPC-4.
    pub const SPC_4: u16 = 0x0460;
    /// SBC-3.
    pub const SBC_3: u16 = 0x04C0;
    /// iSCSI.
    pub const ISCSI: u16 = 0x0960;
}

/// Standard INQUIRY data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandardInquiry {
    /// PERIPHERAL QUALIFIER: 0 a unit is connected, 1 a unit is not connected, 3 no unit is
    /// possible.
    pub qualifier: u8,
    /// PERIPHERAL DEVICE TYPE.
    pub device_type: u8,
    /// RMB: the medium is removable.
    pub removable: bool,
    /// VERSION: 6 for SPC-4.
    pub version: u8,
    /// HISUP: LUNs follow the hierarchy of SAM-5.
    pub hierarchical: bool,
    /// TPGS: bit 0 implicit, bit 1 explicit asymmetric access.
    pub target_port_groups: u8,
    /// 3PC: EXTENDED COPY.
    pub third_party_copy: bool,
    /// PROTECT: protection information.
    pub protect: bool,
    /// MULTIP: more than one target port.
    pub multi_port: bool,
    /// CMDQUE: more than one outstanding command.
    pub command_queuing: bool,
    /// T10 VENDOR IDENTIFICATION.
    pub vendor: Ascii<8>,
    /// PRODUCT IDENTIFICATION.
    pub product: Ascii<16>,
    /// PRODUCT REVISION LEVEL.
    pub revision: Ascii<4>,
    /// VERSION DESCRIPTORs, at most 8.
    pub versions: ArrayVec<u16, 8>,
}

impl StandardInquiry {
    /// Length of the emitted data in bytes: 96 with version descriptors.
    pub const LEN: usize = 96;

    /// The data of an SPC-4 and SBC-3 disk over iSCSI, with one target port group of implicit
    /// access.
    pub fn disk(vendor: &str, product: &str, revision: &str, removable: bool) -> Self {
        Self {
            qualifier: 0,
            device_type: DISK,
            removable,
            version: 6,
            hierarchical: true,
            target_port_groups: 1,
            third_party_copy: true,
            protect: false,
            multi_port: true,
            command_queuing: true,
            vendor: Ascii::new(vendor),
            product: Ascii::new(product),
            revision: Ascii::new(revision),
            versions: [version::SAM_5, version::SPC_4, version::SBC_3, version::ISCSI].into_iter().collect(),
        }
    }

    /// The data for a LUN without a unit (SPC-4 §6.6.2: qualifier 011b, device type 1Fh).
    pub fn no_unit(vendor: &str, product: &str, revision: &str) -> Self {
        Self {
            qualifier: 3,
            device_type: NO_DEVICE,
            target_port_groups: 0,
            third_party_copy: false,
            ..Self::disk(vendor, product, revision, false)
        }
    }

    /// The first byte of standard data and of every VPD page.
    pub const fn peripheral(&self) -> u8 {
        self.qualifier << 5 | (self.device_type & 0x1F)
    }

    /// The data, 96 bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = vec![0; Self::LEN];
        out[0] = self.peripheral();
        out[1] = u8::from(self.removable) << 7;
        out[2] = self.version;
        out[3] = u8::from(self.hierarchical) << 4 | 2; // RESPONSE DATA FORMAT
        out[4] = (Self::LEN - 5) as u8; // ADDITIONAL LENGTH
        out[5] = (self.target_port_groups & 3) << 4
            | u8::from(self.third_party_copy) << 3
            | u8::from(self.protect);
        out[6] = u8::from(self.multi_port) << 4;
        out[7] = u8::from(self.command_queuing) << 1;
        out[8..16].copy_from_slice(self.vendor.bytes());
        out[16..32].copy_from_slice(self.product.bytes());
        out[32..36].copy_from_slice(self.revision.bytes());
        for (slot, version) in out[58..74].chunks_exact_mut(2).zip(&self.versions) {
            slot.copy_from_slice(&version.to_be_bytes());
        }
        out
    }

    /// Reads standard INQUIRY data of at least the 36 bytes that every device returns.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let head: [u8; 36] = Fields(bytes).array(0)?;
        let f = Fields(&head);
        let len = bytes.len().min(usize::from(head[4]) + 5);
        let descriptors = bytes.get(58..len.clamp(58, 74)).unwrap_or(&[]);
        Some(Self {
            qualifier: head[0] >> 5,
            device_type: head[0] & 0x1F,
            removable: head[1] & 0x80 != 0,
            version: head[2],
            hierarchical: head[3] & 0x10 != 0,
            target_port_groups: (head[5] >> 4) & 3,
            third_party_copy: head[5] & 0x08 != 0,
            protect: head[5] & 0x01 != 0,
            multi_port: head[6] & 0x10 != 0,
            command_queuing: head[7] & 0x02 != 0,
            vendor: Ascii::from_wire(f.array(8)?),
            product: Ascii::from_wire(f.array(16)?),
            revision: Ascii::from_wire(f.array(32)?),
            versions: descriptors
                .chunks_exact(2)
                .map(|d| u16::from_be_bytes([d[0], d[1]]))
                .filter(|&d| d != 0)
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_says_what_spc_4_lays_down() {
        let data = StandardInquiry::disk("STAG", "DISK", "0.1", true).emit();
        assert_eq!(&data[..36], b"\x00\x80\x06\x12\x5B\x18\x10\x02STAG    DISK            0.1 ".as_slice());
        assert_eq!(data.len(), 96);
        assert_eq!(&data[58..68], [0x00, 0xA0, 0x04, 0x60, 0x04, 0xC0, 0x09, 0x60, 0, 0]);
    }

    #[test]
    fn where_no_unit_can_be_the_first_byte_is_7f() {
        assert_eq!(StandardInquiry::no_unit("STAG", "", "").emit()[0], 0x7F);
    }

    #[test]
    fn what_is_emitted_parses_to_itself() {
        let disk = StandardInquiry::disk("STAG", "DISK", "0.1", true);
        assert_eq!(StandardInquiry::parse(&disk.emit()), Some(disk));
    }

    #[test]
    fn data_of_36_bytes_is_enough_and_less_is_not() {
        let disk = StandardInquiry::disk("STAG", "DISK", "0.1", false);
        let short = StandardInquiry::parse(&disk.emit()[..36]).unwrap();
        assert!(short.versions.is_empty());
        assert_eq!(short.vendor, disk.vendor);
        assert_eq!(StandardInquiry::parse(&disk.emit()[..35]), None);
    }
}
