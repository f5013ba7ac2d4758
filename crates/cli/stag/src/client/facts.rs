//! What a unit reports about itself, in the words of `stag info` and of its JSON. `scsi::data`
//! parses the bytes; a field that a unit does not report is `None`.

use scsi::data::capacity::ReadCapacity16;
use scsi::data::inquiry::StandardInquiry;
use scsi::data::vpd::{self, Association, BlockCharacteristics, BlockLimits, Identification, Identifier};
use scsi::data::vpd::{LogicalBlockProvisioning, ProvisioningType};
use serde::Serialize;

/// Standard INQUIRY data (SPC-4 §6.6.2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inquiry {
    /// PERIPHERAL DEVICE TYPE.
    pub device_type: u8,
    /// The same in words.
    pub device_type_name: &'static str,
    /// PERIPHERAL QUALIFIER; not 0 if there is no such unit.
    pub qualifier: u8,
    /// RMB.
    pub removable: bool,
    /// VERSION: 6 for SPC-4.
    pub version: u8,
    /// T10 VENDOR IDENTIFICATION.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION.
    pub product: String,
    /// PRODUCT REVISION LEVEL.
    pub revision: String,
    /// 3PC: it takes EXTENDED COPY.
    pub third_party_copy: bool,
    /// CMDQUE: it takes several commands at once.
    pub command_queue: bool,
}

/// One name of a unit, its target or its port (SPC-4 §7.8.6.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Designator {
    /// The named object: `unit`, `port` or `target`.
    pub names: &'static str,
    /// The designator type: `naa`, `eui64`, `t10`, `scsi name`, …
    pub kind: &'static str,
    /// The name; binary ones in hexadecimal.
    pub value: String,
}

/// READ CAPACITY(16) data (SBC-3 §5.16.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capacity {
    pub blocks: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Bytes of it all.
    pub capacity_bytes: u64,
    /// Bytes of a physical block.
    pub physical_block_bytes: u64,
    /// LOWEST ALIGNED LOGICAL BLOCK ADDRESS.
    pub lowest_aligned_block: u16,
    /// LBPME: unmapped blocks are given back.
    pub thin: bool,
    /// LBPRZ: unmapped blocks read as zeros.
    pub unmapped_reads_zeros: bool,
}

/// Block Limits (VPD page B0h, SBC-3 §6.5.3), in logical blocks; `None` where nothing is reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// MAXIMUM TRANSFER LENGTH.
    pub max_transfer: Option<u64>,
    /// OPTIMAL TRANSFER LENGTH.
    pub optimal_transfer: Option<u64>,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY.
    pub optimal_granularity: Option<u64>,
    /// MAXIMUM COMPARE AND WRITE LENGTH.
    pub max_compare_and_write: Option<u64>,
    /// MAXIMUM UNMAP LBA COUNT.
    pub max_unmap: Option<u64>,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
    pub max_unmap_descriptors: Option<u64>,
    /// OPTIMAL UNMAP GRANULARITY.
    pub unmap_granularity: Option<u64>,
    /// MAXIMUM WRITE SAME LENGTH.
    pub max_write_same: Option<u64>,
    /// MAXIMUM ATOMIC TRANSFER LENGTH.
    pub max_atomic: Option<u64>,
}

/// Logical Block Provisioning (VPD page B2h, SBC-3 §6.5.4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Provisioning {
    /// `full`, `resource` or `thin`.
    pub kind: &'static str,
    /// LBPU: it takes UNMAP.
    pub unmap: bool,
    /// LBPWS: WRITE SAME(16) unmaps.
    pub write_same_16: bool,
    /// LBPWS10: WRITE SAME(10) unmaps.
    pub write_same_10: bool,
}

/// Block Device Characteristics (VPD page B1h, SBC-3 §6.5.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Characteristics {
    /// Turns a minute; `Some(0)` for a medium that does not turn, `None` if it does not say.
    pub rotations_per_minute: Option<u16>,
    /// NOMINAL FORM FACTOR in words.
    pub form_factor: Option<&'static str>,
}

/// All facts that `stag info` shows of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// The unit's URL.
    pub url: String,
    #[serde(flatten)]
    pub inquiry: Inquiry,
    /// PRODUCT SERIAL NUMBER (VPD page 80h).
    pub serial: Option<String>,
    /// Device identification (VPD page 83h).
    pub designators: Vec<Designator>,
    /// READ CAPACITY.
    #[serde(flatten)]
    pub capacity: Option<Capacity>,
    /// Whether the medium is there and takes commands; `None` if unknown.
    pub ready: Option<bool>,
    /// WP of MODE SENSE's header.
    pub write_protected: Option<bool>,
    /// WCE of the caching mode page.
    pub write_cache: Option<bool>,
    /// VPD page B0h.
    pub limits: Option<Limits>,
    /// VPD page B1h.
    pub characteristics: Option<Characteristics>,
    /// VPD page B2h.
    pub provisioning: Option<Provisioning>,
    pub vpd_pages: Vec<u8>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// ASCII text without its padding of blanks or NULs. Unprintable bytes become question marks.
fn text(bytes: &[u8]) -> String {
    let shown = |byte: &u8| if (0x20..=0x7e).contains(byte) { char::from(*byte) } else { '?' };
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes[..end].iter().map(shown).collect::<String>().trim().to_owned()
}

/// Whether units of a PERIPHERAL DEVICE TYPE speak SBC: disks, optical memory, simplified and zoned
/// disks.
pub fn is_of_blocks(device_type: u8) -> bool {
    matches!(device_type, 0x00 | 0x07 | 0x0e | 0x14)
}

/// A PERIPHERAL DEVICE TYPE in words (SPC-4 table 139).
pub fn device_type_name(device_type: u8) -> &'static str {
    match device_type {
        0x00 => "disk",
        0x01 => "tape",
        0x03 => "processor",
        0x05 => "CD/DVD",
        0x07 => "optical memory",
        0x08 => "medium changer",
        0x0c => "storage array controller",
        0x0d => "enclosure",
        0x0e => "simplified disk",
        0x11 => "object storage",
        0x14 => "zoned disk",
        0x1e => "well known unit",
        0x1f => "no device",
        _ => "unknown type",
    }
}

impl From<StandardInquiry> for Inquiry {
    fn from(inquiry: StandardInquiry) -> Self {
        Self {
            device_type: inquiry.device_type,
            device_type_name: device_type_name(inquiry.device_type),
            qualifier: inquiry.qualifier,
            removable: inquiry.removable,
            version: inquiry.version,
            vendor: inquiry.vendor.to_string(),
            product: inquiry.product.to_string(),
            revision: inquiry.revision.to_string(),
            third_party_copy: inquiry.third_party_copy,
            command_queue: inquiry.command_queuing,
        }
    }
}

/// The serial number in the body of VPD page 80h.
pub fn serial(body: &[u8]) -> Option<String> {
    Some(vpd::parse_unit_serial(body)).filter(|serial| !serial.is_empty())
}

/// The designators in the body of VPD page 83h.
pub fn designators(body: &[u8]) -> Vec<Designator> {
    Identification::parse(body).0.into_iter().map(Designator::from).collect()
}

impl From<vpd::Designator> for Designator {
    fn from(designator: vpd::Designator) -> Self {
        let names = match designator.association {
            Association::LogicalUnit => "unit",
            Association::TargetPort => "port",
            Association::TargetDevice => "target",
            Association::Reserved => "reserved",
        };
        let (kind, value) = match designator.identifier {
            Identifier::T10Vendor { vendor, id } => ("t10", text(&[&vendor[..], &id].concat())),
            Identifier::Eui64(bytes) => ("eui64", hex(&bytes)),
            Identifier::Naa(bytes) => ("naa", hex(&bytes)),
            Identifier::RelativeTargetPort(number) => ("relative port", number.to_string()),
            Identifier::TargetPortGroup(number) => ("port group", number.to_string()),
            Identifier::LogicalUnitGroup(number) => ("unit group", number.to_string()),
            Identifier::ScsiName(name) => ("scsi name", text(name.as_bytes())),
            Identifier::Other { code_set: 2 | 3, bytes, .. } => ("other", text(&bytes)),
            Identifier::Other { bytes, .. } => ("other", hex(&bytes)),
        };
        Self { names, kind, value }
    }
}

impl Capacity {
    /// From READ CAPACITY(16) data; `None` for an impossible capacity.
    pub fn new(capacity: &ReadCapacity16) -> Option<Self> {
        let blocks = capacity.last_lba.checked_add(1)?;
        let block_bytes = capacity.block_len;
        Some(Self {
            blocks,
            block_bytes,
            capacity_bytes: blocks.checked_mul(u64::from(block_bytes)).filter(|_| block_bytes > 0)?,
            physical_block_bytes: u64::from(block_bytes) << capacity.physical_exponent,
            lowest_aligned_block: capacity.lowest_aligned,
            thin: capacity.provisioning,
            unmapped_reads_zeros: capacity.deallocated_is_zero,
        })
    }
}

impl Limits {
    /// Reads the body of VPD page B0h.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let limits = BlockLimits::parse(body)?;
        let reported = |value: u32| Some(u64::from(value)).filter(|value| *value != 0);
        Some(Self {
            max_transfer: reported(limits.max_transfer),
            optimal_transfer: reported(limits.optimal_transfer),
            optimal_granularity: reported(limits.optimal_granularity.into()),
            max_compare_and_write: reported(limits.max_compare_and_write.into()),
            max_unmap: reported(limits.max_unmap),
            max_unmap_descriptors: reported(limits.max_unmap_ranges),
            unmap_granularity: reported(limits.unmap_granularity),
            max_write_same: Some(limits.max_write_same).filter(|value| *value != 0),
            max_atomic: reported(limits.max_atomic),
        })
    }
}

impl Characteristics {
    /// Reads the body of VPD page B1h.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let medium = BlockCharacteristics::parse(body)?;
        let rotations_per_minute = match medium.rotation_rate {
            1 => Some(0),
            turns @ 0x401..=0xfffe => Some(turns),
            _ => None,
        };
        let form_factor = match medium.form_factor {
            1 => Some("5.25 inch"),
            2 => Some("3.5 inch"),
            3 => Some("2.5 inch"),
            4 => Some("1.8 inch"),
            5 => Some("less than 1.8 inch"),
            _ => None,
        };
        Some(Self { rotations_per_minute, form_factor })
    }
}

impl Provisioning {
    /// Reads the body of VPD page B2h.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let provisioning = LogicalBlockProvisioning::parse(body)?;
        let kind = match provisioning.kind {
            ProvisioningType::Full => "full",
            ProvisioningType::Resource => "resource",
            ProvisioningType::Thin => "thin",
            ProvisioningType::Reserved(_) => "reserved",
        };
        Some(Self {
            kind,
            unmap: provisioning.unmap,
            write_same_16: provisioning.write_same16,
            write_same_10: provisioning.write_same10,
        })
    }
}

/// WP and WCE of MODE SENSE(6) data that holds the caching mode page (SPC-4 §7.5.4, SBC-3 §6.4.5).
pub fn modes(data: &[u8]) -> (Option<bool>, Option<bool>) {
    let protected = data.get(2).map(|byte| byte & 0x80 != 0);
    let page = data.get(3).and_then(|descriptors| data.get(4 + usize::from(*descriptors)..));
    let cache =
        page.filter(|page| page.first().is_some_and(|code| code & 0x3f == 0x08)).and_then(|page| page.get(2));
    (protected, cache.map(|byte| byte & 0x04 != 0))
}

impl std::fmt::Display for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut line = |name: &str, value: String| {
            if value.is_empty() { Ok(()) } else { writeln!(f, "{name:<25} {value}") }
        };
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let inquiry = &self.inquiry;
        line("url", self.url.clone())?;
        line(
            "type",
            format!("{}{}", inquiry.device_type_name, if inquiry.removable { ", removable" } else { "" }),
        )?;
        line("vendor", inquiry.vendor.clone())?;
        line("product", inquiry.product.clone())?;
        line("revision", inquiry.revision.clone())?;
        line("serial", self.serial.clone().unwrap_or_default())?;
        for designator in &self.designators {
            line(&format!("{} {}", designator.names, designator.kind), designator.value.clone())?;
        }
        if let Some(ready) = self.ready {
            line("ready", yes(ready))?;
        }
        if let Some(capacity) = &self.capacity {
            let shown = backing::size::Size(capacity.capacity_bytes);
            line("capacity", format!("{shown} ({} bytes)", capacity.capacity_bytes))?;
            let physical = if capacity.physical_block_bytes == u64::from(capacity.block_bytes) {
                String::new()
            } else {
                format!(", physical blocks of {}", capacity.physical_block_bytes)
            };
            line("blocks", format!("{} of {} bytes{physical}", capacity.blocks, capacity.block_bytes))?;
            line("thin", yes(capacity.thin))?;
        }
        line("write-protected", self.write_protected.map(yes).unwrap_or_default())?;
        line("write cache", self.write_cache.map(yes).unwrap_or_default())?;
        if let Some(provisioning) = &self.provisioning {
            let ways = [
                (provisioning.unmap, "UNMAP"),
                (provisioning.write_same_16, "WRITE SAME(16)"),
                (provisioning.write_same_10, "WRITE SAME(10)"),
            ];
            let ways = crate::suggest::list(ways.iter().filter(|(can, _)| *can).map(|(_, name)| *name));
            line("unmapped with", ways)?;
        }
        if let Some(limits) = &self.limits {
            let blocks =
                |value: Option<u64>| value.map(|value| format!("{value} blocks")).unwrap_or_default();
            line("largest transfer", blocks(limits.max_transfer))?;
            line("optimal transfer", blocks(limits.optimal_transfer))?;
            line("largest UNMAP", blocks(limits.max_unmap))?;
            line("UNMAP granularity", blocks(limits.unmap_granularity))?;
            line("largest WRITE SAME", blocks(limits.max_write_same))?;
            line("largest COMPARE AND WRITE", blocks(limits.max_compare_and_write))?;
            line("largest atomic write", blocks(limits.max_atomic))?;
        }
        if let Some(characteristics) = &self.characteristics {
            let turns = match characteristics.rotations_per_minute {
                Some(0) => "does not turn".to_owned(),
                Some(turns) => format!("{turns} turns a minute"),
                None => String::new(),
            };
            line("medium", turns)?;
            line("form factor", characteristics.form_factor.unwrap_or_default().to_owned())?;
        }
        let pages: Vec<String> = self.vpd_pages.iter().map(|page| format!("{page:02x}")).collect();
        line("VPD pages", pages.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_tells_of_physical_blocks_and_provisioning() {
        let mut data = [0; 32];
        data[..8].copy_from_slice(&2_097_151_u64.to_be_bytes());
        data[8..12].copy_from_slice(&512_u32.to_be_bytes());
        (data[13], data[14]) = (3, 0xc0);
        let capacity = Capacity::new(&ReadCapacity16::parse(&data).unwrap()).unwrap();
        assert_eq!(capacity.capacity_bytes, 1 << 30);
        assert_eq!(capacity.physical_block_bytes, 4096);
        assert!(capacity.thin && capacity.unmapped_reads_zeros);
        let beyond = ReadCapacity16::parse(&[0xff; 32]).unwrap();
        assert_eq!(Capacity::new(&beyond), None, "2^64 blocks are no capacity");
    }

    #[test]
    fn a_name_of_a_peer_cannot_move_the_cursor() {
        let mut body = vec![0x02, 0x01, 0, 13];
        body.extend_from_slice(b"ACME    \x1b[2J\n");
        let found = designators(&body);
        assert_eq!(found, [Designator { names: "unit", kind: "t10", value: "ACME    ?[2J?".into() }]);
    }

    #[test]
    fn the_caching_page_is_found_behind_block_descriptors() {
        let mut data = vec![31, 0, 0x80, 8];
        data.extend_from_slice(&[0; 8]);
        data.extend_from_slice(&[0x08, 18, 0x04]);
        assert_eq!(modes(&data), (Some(true), Some(true)));
        assert_eq!(modes(&[3, 0, 0, 0]), (Some(false), None));
        assert_eq!(modes(&[3, 0, 0, 255]), (Some(false), None));
    }
}
