//! The Device Identification page, 83h (SPC-4 §7.8.6).

/// The object that a designator identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Association {
    /// 00b: the logical unit.
    LogicalUnit,
    /// 01b: the target port that received the command.
    TargetPort,
    /// 10b: the target device.
    TargetDevice,
    /// 11b: reserved.
    Reserved,
}

/// The name or number in a designator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identifier {
    /// Type 1h: vendor identification and a vendor specific identifier, in ASCII.
    T10Vendor {
        /// T10 VENDOR IDENTIFICATION.
        vendor: [u8; 8],
        /// VENDOR SPECIFIC IDENTIFIER.
        id: Vec<u8>,
    },
    /// Type 2h: an EUI-64 of 8, 12 or 16 bytes.
    Eui64(Vec<u8>),
    /// Type 3h: an NAA designator of 8 bytes or, for NAA 6h, 16.
    Naa(Vec<u8>),
    /// Type 4h.
    RelativeTargetPort(u16),
    /// Type 5h.
    TargetPortGroup(u16),
    /// Type 6h.
    LogicalUnitGroup(u16),
    /// Type 8h: a SCSI name string: `iqn.`, `eui.` or `naa.`.
    ScsiName(String),
    /// Any other type, or one of an invalid length.
    Other {
        /// CODE SET: 1 binary, 2 ASCII, 3 UTF-8.
        code_set: u8,
        /// DESIGNATOR TYPE.
        kind: u8,
        /// DESIGNATOR.
        bytes: Vec<u8>,
    },
}

impl Identifier {
    /// NAA 3h, locally assigned (SPC-4 §7.8.6.6.4): for vendors without an IEEE company identifier.
    /// The top four bits of `number` are replaced. The designator is only as unique as `number`:
    /// derive it from a random or hashed serial number.
    pub fn naa_local(number: u64) -> Self {
        Self::Naa((number & (u64::MAX >> 4) | 3 << 60).to_be_bytes().to_vec())
    }

    /// The vendor's name, truncated or padded to 8 bytes, and a vendor specific identifier.
    pub fn t10_vendor(vendor: &str, id: &str) -> Self {
        let vendor = *crate::data::text::Ascii::<8>::new(vendor).bytes();
        Self::T10Vendor { vendor, id: super::unit_serial(id) }
    }
}

/// One designation descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Designator {
    /// ASSOCIATION.
    pub association: Association,
    /// PROTOCOL IDENTIFIER, with PIV: 5 is iSCSI. Only for target ports and devices.
    pub protocol: Option<u8>,
    /// The designator.
    pub identifier: Identifier,
}

/// CODE SET values.
const BINARY: u8 = 1;
const ASCII: u8 = 2;
const UTF_8: u8 = 3;
/// PROTOCOL IDENTIFIER of iSCSI (SPC-4 table 434).
const ISCSI: u8 = 5;

impl Designator {
    /// A designator of the logical unit.
    pub const fn unit(identifier: Identifier) -> Self {
        Self { association: Association::LogicalUnit, protocol: None, identifier }
    }

    /// A designator of the iSCSI target port that received the command.
    pub const fn iscsi_port(identifier: Identifier) -> Self {
        Self { association: Association::TargetPort, protocol: Some(ISCSI), identifier }
    }

    /// A designator of the iSCSI target device.
    pub const fn iscsi_device(identifier: Identifier) -> Self {
        Self { association: Association::TargetDevice, protocol: Some(ISCSI), identifier }
    }

    /// Appends the descriptor. Truncates a designator beyond 255 bytes.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let number = |n: u16| {
            let [high, low] = n.to_be_bytes();
            vec![0, 0, high, low]
        };
        let (code_set, kind, mut bytes) = match &self.identifier {
            Identifier::T10Vendor { vendor, id } => (ASCII, 1, [&vendor[..], id].concat()),
            Identifier::Eui64(bytes) => (BINARY, 2, bytes.clone()),
            Identifier::Naa(bytes) => (BINARY, 3, bytes.clone()),
            Identifier::RelativeTargetPort(n) => (BINARY, 4, number(*n)),
            Identifier::TargetPortGroup(n) => (BINARY, 5, number(*n)),
            Identifier::LogicalUnitGroup(n) => (BINARY, 6, number(*n)),
            Identifier::ScsiName(name) => (UTF_8, 8, scsi_name(name)),
            Identifier::Other { code_set, kind, bytes } => (code_set & 0x0F, kind & 0x0F, bytes.clone()),
        };
        bytes.truncate(255);
        let association = match self.association {
            Association::LogicalUnit => 0,
            Association::TargetPort => 1,
            Association::TargetDevice => 2,
            Association::Reserved => 3,
        };
        let piv = u8::from(self.protocol.is_some()) << 7;
        out.extend([
            self.protocol.unwrap_or(0) << 4 | code_set,
            piv | association << 4 | kind,
            0,
            bytes.len() as u8,
        ]);
        out.extend(bytes);
    }

    /// Reads the first descriptor of `bytes` and returns the rest.
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[first, second, _, len], rest) = bytes.split_first_chunk::<4>()?;
        let (body, rest) = rest.split_at_checked(usize::from(len))?;
        let code_set = first & 0x0F;
        let number = || Some(u16::from_be_bytes(*body.last_chunk::<2>().filter(|_| body.len() == 4)?));
        let other = || Identifier::Other { code_set, kind: second & 0x0F, bytes: body.to_vec() };
        let identifier = match second & 0x0F {
            1 => body
                .split_first_chunk()
                .map(|(vendor, id)| Identifier::T10Vendor { vendor: *vendor, id: id.to_vec() }),
            2 if matches!(body.len(), 8 | 12 | 16) => Some(Identifier::Eui64(body.to_vec())),
            3 if matches!(body.len(), 8 | 16) => Some(Identifier::Naa(body.to_vec())),
            4 => number().map(Identifier::RelativeTargetPort),
            5 => number().map(Identifier::TargetPortGroup),
            6 => number().map(Identifier::LogicalUnitGroup),
            8 => {
                let end = body.iter().position(|&b| b == 0).unwrap_or(body.len());
                std::str::from_utf8(&body[..end]).ok().map(|s| Identifier::ScsiName(s.into()))
            }
            _ => None,
        };
        let designator = Self {
            association: match (second >> 4) & 3 {
                0 => Association::LogicalUnit,
                1 => Association::TargetPort,
                2 => Association::TargetDevice,
                _ => Association::Reserved,
            },
            protocol: (second & 0x80 != 0).then_some(first >> 4),
            identifier: identifier.unwrap_or_else(other),
        };
        Some((designator, rest))
    }
}

/// The name, NUL-terminated and padded with NULs to a multiple of four bytes (SPC-4 §7.8.6.11): at
/// most 252 bytes with at least one NUL.
fn scsi_name(name: &str) -> Vec<u8> {
    let mut end = name.len().min(251);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = name.as_bytes()[..end].to_vec();
    bytes.resize((end + 4) & !3, 0);
    bytes
}

/// The page: all designators of a unit, its port and its target.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Identification(pub Vec<Designator>);

impl Identification {
    /// The body.
    pub fn body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for designator in &self.0 {
            designator.emit(&mut out);
        }
        out
    }

    /// Reads the body, up to the first truncated descriptor.
    pub fn parse(mut body: &[u8]) -> Self {
        let mut list = Vec::new();
        while let Some((designator, rest)) = Designator::parse(body) {
            list.push(designator);
            body = rest;
        }
        Self(list)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn designators_carry_their_association_and_protocol() {
        let list = Identification(vec![
            Designator::unit(Identifier::t10_vendor("STAG", "s1")),
            Designator::unit(Identifier::naa_local(0xF123_4567_89AB_CDEF)),
            Designator::iscsi_port(Identifier::RelativeTargetPort(1)),
            Designator::iscsi_port(Identifier::TargetPortGroup(2)),
            Designator::iscsi_device(Identifier::ScsiName("iqn.a:bc".into())),
        ]);
        let body = list.body();
        let expected = [
            b"\x02\x01\x00\x0ASTAG    s1".as_slice(),
            b"\x01\x03\x00\x08\x31\x23\x45\x67\x89\xAB\xCD\xEF",
            b"\x51\x94\x00\x04\x00\x00\x00\x01",
            b"\x51\x95\x00\x04\x00\x00\x00\x02",
            b"\x53\xA8\x00\x0Ciqn.a:bc\0\0\0\0",
        ]
        .concat();
        assert_eq!(body, expected);
        assert_eq!(Identification::parse(&body), list);
    }

    #[test]
    fn a_scsi_name_always_ends_in_a_nul_and_fits_its_length_byte() {
        for len in 1..300 {
            let name = scsi_name(&"é".repeat(len));
            assert!(name.len() <= 252 && name.len() % 4 == 0 && name.last() == Some(&0), "{len}");
            assert!(std::str::from_utf8(&name).is_ok());
        }
    }

    #[test]
    fn a_designator_of_a_wrong_length_is_kept_as_it_is() {
        let (designator, rest) = Designator::parse(&[1, 3, 0, 2, 7, 8, 9]).unwrap();
        assert_eq!(designator.identifier, Identifier::Other { code_set: 1, kind: 3, bytes: vec![7, 8] });
        assert_eq!(rest, [9]);
        assert_eq!(Designator::parse(&[1, 3, 0, 4, 7, 8, 9]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_to_designators_that_emit_without_loss(
            bytes in proptest::collection::vec(prop_oneof![0u8..20, any::<u8>()], 0..80),
        ) {
            let list = Identification::parse(&bytes);
            prop_assert_eq!(Identification::parse(&list.body()).0.len(), list.0.len());
        }
    }
}
