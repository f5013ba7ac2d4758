//! The two formats of sense data: fixed (SPC-4 §4.5.3) and descriptor (SPC-4 §4.5.2).

use smallvec::SmallVec;

use super::{AdditionalSense, FieldPointer, KeySpecific, Sense, SenseKey};

/// Sense data on the wire; on the heap only if it has further descriptors.
pub type SenseBytes = SmallVec<[u8; 48]>;

/// Response codes (SPC-4 table 26).
const FIXED_CURRENT: u8 = 0x70;
const FIXED_DEFERRED: u8 = 0x71;
const DESCRIPTOR_CURRENT: u8 = 0x72;
const DESCRIPTOR_DEFERRED: u8 = 0x73;

/// Sense data descriptor types (SPC-4 table 27).
const INFORMATION: u8 = 0x00;
const COMMAND_SPECIFIC: u8 = 0x01;
const KEY_SPECIFIC: u8 = 0x02;
const STREAM: u8 = 0x04;
const BLOCK: u8 = 0x05;

/// SKSV, the top bit of SENSE KEY SPECIFIC.
const SKSV: u8 = 0x80;

impl Sense {
    /// Fixed or descriptor format, as D_SENSE of the control mode page selects.
    pub fn emit(&self, d_sense: bool) -> SenseBytes {
        if d_sense { self.emit_descriptor() } else { self.emit_fixed() }
    }

    /// Fixed format, 18 bytes. Values too large for its 32-bit fields are left out: VALID is then
    /// zero (SPC-4 §4.5.3).
    pub fn emit_fixed(&self) -> SenseBytes {
        let mut out = [0u8; 18];
        out[0] = if self.deferred { FIXED_DEFERRED } else { FIXED_CURRENT };
        if let Some(information) = self.information.and_then(|i| u32::try_from(i).ok()) {
            out[0] |= 0x80; // VALID
            out[3..7].copy_from_slice(&information.to_be_bytes());
        }
        out[2] = self.key.code()
            | u8::from(self.filemark) << 7
            | u8::from(self.end_of_medium) << 6
            | u8::from(self.incorrect_length) << 5;
        out[7] = 10; // ADDITIONAL SENSE LENGTH
        if let Some(specific) = self.command_specific.and_then(|i| u32::try_from(i).ok()) {
            out[8..12].copy_from_slice(&specific.to_be_bytes());
        }
        out[12] = self.additional.asc;
        out[13] = self.additional.ascq;
        if let Some(specific) = self.key_specific {
            out[15..18].copy_from_slice(&specific.emit());
        }
        out.into_iter().collect()
    }

    /// Descriptor format: 8 bytes and one descriptor per value.
    pub fn emit_descriptor(&self) -> SenseBytes {
        let mut out = SenseBytes::new();
        out.extend([
            if self.deferred { DESCRIPTOR_DEFERRED } else { DESCRIPTOR_CURRENT },
            self.key.code(),
            self.additional.asc,
            self.additional.ascq,
            0,
            0,
            0,
            0,
        ]);
        if let Some(information) = self.information {
            out.extend([INFORMATION, 0x0A, 0x80, 0]);
            out.extend(information.to_be_bytes());
        }
        if let Some(specific) = self.command_specific {
            out.extend([COMMAND_SPECIFIC, 0x0A, 0, 0]);
            out.extend(specific.to_be_bytes());
        }
        if let Some(specific) = self.key_specific {
            let [a, b, c] = specific.emit();
            out.extend([KEY_SPECIFIC, 0x06, 0, 0, a, b, c, 0]);
        }
        if self.filemark || self.end_of_medium {
            let flags = u8::from(self.filemark) << 7
                | u8::from(self.end_of_medium) << 6
                | u8::from(self.incorrect_length) << 5;
            out.extend([STREAM, 0x02, 0, flags]);
        } else if self.incorrect_length {
            out.extend([BLOCK, 0x02, 0, 0x20]);
        }
        // Whole descriptors only.
        let mut rest = &self.descriptors[..];
        while let Some((descriptor, next)) =
            rest.get(1).and_then(|len| rest.split_at_checked(2 + usize::from(*len)))
        {
            if out.len() + descriptor.len() > Self::MAX_LEN {
                break;
            }
            out.extend_from_slice(descriptor);
            rest = next;
        }
        out[7] = (out.len() - 8) as u8; // ADDITIONAL SENSE LENGTH; at most 244
        out
    }

    /// Reads sense data of either format. `None` if it is too short for a sense key, or the
    /// response code is unknown. Truncated fields after the key are absent.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? & 0x7F {
            code @ (FIXED_CURRENT | FIXED_DEFERRED) => parse_fixed(bytes, code == FIXED_DEFERRED),
            code @ (DESCRIPTOR_CURRENT | DESCRIPTOR_DEFERRED) => {
                parse_descriptor(bytes, code == DESCRIPTOR_DEFERRED)
            }
            _ => None,
        }
    }
}

fn parse_fixed(bytes: &[u8], deferred: bool) -> Option<Sense> {
    let flags = *bytes.get(2)?;
    // ADDITIONAL SENSE LENGTH limits the data; a device may send fewer bytes than 18.
    let said = bytes.get(7).map_or(bytes.len(), |n| 8 + usize::from(*n));
    let bytes = &bytes[..bytes.len().min(said)];
    let key = SenseKey::from_low_bits(flags);
    let at = |i: usize| bytes.get(i).copied().unwrap_or(0);
    let word = |i: usize| Some(u32::from_be_bytes(bytes.get(i..i + 4)?.try_into().ok()?));
    let mut sense = Sense::new(key, AdditionalSense::new(at(12), at(13)));
    sense.deferred = deferred;
    if bytes[0] & 0x80 != 0 {
        sense.information = word(3).map(u64::from);
    }
    // The fixed format has no validity bit for COMMAND-SPECIFIC INFORMATION: zero means absent.
    sense.command_specific = word(8).filter(|&w| w != 0).map(u64::from);
    sense.filemark = flags & 0x80 != 0;
    sense.end_of_medium = flags & 0x40 != 0;
    sense.incorrect_length = flags & 0x20 != 0;
    sense.key_specific = KeySpecific::parse(key, [at(15), at(16), at(17)]);
    Some(sense)
}

fn parse_descriptor(bytes: &[u8], deferred: bool) -> Option<Sense> {
    let (&[_, key, asc, ascq], rest) = bytes.split_first_chunk::<4>()?;
    let key = SenseKey::from_low_bits(key);
    let mut sense = Sense::new(key, AdditionalSense::new(asc, ascq));
    sense.deferred = deferred;
    // ADDITIONAL SENSE LENGTH is at most 244 (SPC-4 §4.5.2.1).
    let len = usize::from(rest.get(3).copied().unwrap_or(0)).min(Sense::MAX_LEN - 8);
    let mut list = rest.get(4..).unwrap_or(&[]);
    list = &list[..list.len().min(len)];
    while let [kind, len, tail @ ..] = list {
        let Some((body, next)) = tail.split_at_checked(usize::from(*len)) else { break };
        let wide = |b: &[u8]| Some(u64::from_be_bytes(b.get(2..10)?.try_into().ok()?));
        match *kind {
            // VALID must be one, but some devices send zero; then ignore the value.
            INFORMATION if body.first().is_some_and(|b| b & 0x80 != 0) => sense.information = wide(body),
            COMMAND_SPECIFIC => sense.command_specific = wide(body),
            KEY_SPECIFIC => {
                // Its length is 6 (SPC-4 §4.5.2.4.1); ignore a shorter one.
                if let Some(&[_, _, a, b, c, _]) = body.get(..6) {
                    sense.key_specific = KeySpecific::parse(key, [a, b, c]);
                }
            }
            STREAM | BLOCK => {
                let flags = body.get(1).copied().unwrap_or(0);
                sense.incorrect_length |= flags & 0x20 != 0;
                if *kind == STREAM {
                    sense.filemark |= flags & 0x80 != 0;
                    sense.end_of_medium |= flags & 0x40 != 0;
                }
            }
            _ => sense.descriptors.extend_from_slice(&list[..2 + body.len()]),
        }
        list = next;
    }
    Some(sense)
}

impl KeySpecific {
    /// The three bytes, SKSV set.
    fn emit(self) -> [u8; 3] {
        let with_u16 = |first: u8, value: u16| {
            let [high, low] = value.to_be_bytes();
            [SKSV | first, high, low]
        };
        // BPV and BIT POINTER.
        let pointer = |bit: Option<u8>| bit.map_or(0, |b| 0x08 | (b & 0x07));
        match self {
            Self::Field(p) => with_u16(u8::from(p.in_cdb) << 6 | pointer(p.bit), p.byte),
            Self::Progress(value) | Self::Retries(value) => with_u16(0, value),
            Self::Segment { in_segment, byte, bit } => {
                with_u16(u8::from(in_segment) << 5 | pointer(bit), byte)
            }
            Self::AttentionOverflow(overflow) => with_u16(u8::from(overflow), 0),
        }
    }

    /// The meaning of the three bytes with `key`; `None` if SKSV is zero or the key defines none.
    fn parse(key: SenseKey, [first, high, low]: [u8; 3]) -> Option<Self> {
        if first & SKSV == 0 {
            return None;
        }
        let value = u16::from_be_bytes([high, low]);
        let bit = (first & 0x08 != 0).then_some(first & 0x07);
        Some(match key {
            SenseKey::IllegalRequest => {
                Self::Field(FieldPointer { in_cdb: first & 0x40 != 0, byte: value, bit })
            }
            SenseKey::NoSense | SenseKey::NotReady => Self::Progress(value),
            SenseKey::HardwareError | SenseKey::MediumError | SenseKey::RecoveredError => {
                Self::Retries(value)
            }
            SenseKey::CopyAborted => Self::Segment { in_segment: first & 0x20 != 0, byte: value, bit },
            SenseKey::UnitAttention => Self::AttentionOverflow(first & 1 != 0),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_field_in_cdb_points_at_the_bit_in_fixed_format() {
        assert_eq!(
            Sense::invalid_field_in_cdb(1, Some(7)).emit_fixed().as_slice(),
            [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xCF, 0, 1]
        );
    }

    #[test]
    fn an_error_in_the_parameter_list_clears_c_d_in_descriptor_format() {
        assert_eq!(
            Sense::invalid_field_in_parameter_list(0x0102, None).emit_descriptor().as_slice(),
            [0x72, 5, 0x26, 0, 0, 0, 0, 8, 2, 6, 0, 0, 0x80, 1, 2, 0]
        );
    }

    #[test]
    fn a_miscompare_carries_its_offset_as_valid_information_in_both_formats() {
        let sense = Sense::miscompare(0x1234);
        assert_eq!(
            sense.emit(false).as_slice(),
            [0xF0, 0, 0xE, 0, 0, 0x12, 0x34, 10, 0, 0, 0, 0, 0x1D, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            sense.emit(true).as_slice(),
            [0x72, 0xE, 0x1D, 0, 0, 0, 0, 12, 0, 0x0A, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34]
        );
    }

    #[test]
    fn information_beyond_32_bits_is_left_out_of_the_fixed_format() {
        let sense = Sense::unrecovered_read_error(1 << 32);
        assert_eq!(sense.emit_fixed()[0], 0x70);
        assert_eq!(Sense::parse(&sense.emit_fixed()).unwrap().information, None);
        assert_eq!(Sense::parse(&sense.emit_descriptor()).unwrap().information, Some(1 << 32));
    }

    #[test]
    fn a_response_code_of_neither_format_is_no_sense_data() {
        assert_eq!(Sense::parse(&[0x7F, 0, 5, 0, 0, 0, 0, 10]), None);
        assert_eq!(Sense::parse(&[]), None);
        assert_eq!(Sense::parse(&[0x70, 0]), None);
    }

    #[test]
    fn a_descriptor_that_claims_more_than_there_is_ends_the_list() {
        let sense = Sense::parse(&[0x72, 5, 0x24, 0, 0, 0, 0, 200, 2, 250, 0, 0, 0x80]).unwrap();
        assert_eq!(sense, Sense::illegal_request(AdditionalSense::INVALID_FIELD_IN_CDB));
    }

    #[test]
    fn descriptors_of_its_own_go_out_whole_in_descriptor_format_and_come_back() {
        let one = [6, 2, 0xAA, 0xBB];
        let sense = Sense::invalid_field_in_cdb(24, None).with_descriptor(&one).with_descriptor(&[8, 0]);
        let bytes = sense.emit(true);
        assert_eq!(bytes[7], 14);
        assert_eq!(bytes[16..], [6, 2, 0xAA, 0xBB, 8, 0]);
        assert_eq!(Sense::parse(&bytes), Some(sense.clone()));
        assert_eq!(sense.emit(false).len(), 18);
        let many = (0..100).fold(Sense::no_sense(), |sense, _| sense.with_descriptor(&[9, 3, 1, 2, 3]));
        let bytes = many.emit(true);
        assert!(
            bytes.len() <= Sense::MAX_LEN && (bytes.len() - 8) % 5 == 0 && bytes.len() > Sense::MAX_LEN - 5
        );
        assert_eq!(usize::from(bytes[7]), bytes.len() - 8);
    }

    #[test]
    fn descriptors_beyond_252_bytes_are_no_sense_data() {
        let mut bytes = vec![0x72, 5, 0x24, 0, 0, 0, 0, 255];
        (0..51).for_each(|n| bytes.extend([0x80 + n, 3, 1, 2, 3]));
        let sense = Sense::parse(&bytes).unwrap();
        assert_eq!(sense.descriptors, bytes[8..8 + 48 * 5]);
        assert_eq!(Sense::parse(&sense.emit(true)), Some(sense));
    }

    #[test]
    fn a_sense_key_specific_descriptor_that_is_too_short_says_nothing() {
        let mut bytes = vec![0x72, 5, 0x24, 0, 0, 0, 0, 244, KEY_SPECIFIC, 5, 0, 0, 0xCF, 0, 2, 0x80, 235];
        bytes.resize(252, 0);
        let sense = Sense::parse(&bytes).unwrap();
        assert_eq!((sense.key_specific, sense.descriptors.len()), (None, 237));
        assert_eq!(Sense::parse(&sense.emit(true)), Some(sense));
    }

    fn key_specific(key: SenseKey) -> BoxedStrategy<Option<KeySpecific>> {
        let bit = proptest::option::of(0u8..8);
        match key {
            SenseKey::IllegalRequest => (any::<bool>(), any::<u16>(), bit)
                .prop_map(|(in_cdb, byte, bit)| Some(KeySpecific::Field(FieldPointer { in_cdb, byte, bit })))
                .boxed(),
            SenseKey::NoSense | SenseKey::NotReady => {
                any::<u16>().prop_map(|p| Some(KeySpecific::Progress(p))).boxed()
            }
            SenseKey::HardwareError | SenseKey::MediumError | SenseKey::RecoveredError => {
                any::<u16>().prop_map(|p| Some(KeySpecific::Retries(p))).boxed()
            }
            SenseKey::CopyAborted => (any::<bool>(), any::<u16>(), bit)
                .prop_map(|(in_segment, byte, bit)| Some(KeySpecific::Segment { in_segment, byte, bit }))
                .boxed(),
            SenseKey::UnitAttention => {
                any::<bool>().prop_map(|o| Some(KeySpecific::AttentionOverflow(o))).boxed()
            }
            _ => Just(None).boxed(),
        }
    }

    prop_compose! {
        fn sense()(key in (0u8..16).prop_map(SenseKey::from_low_bits))(
            key in Just(key),
            additional in (any::<u8>(), any::<u8>()),
            deferred in any::<bool>(),
            information in proptest::option::of(any::<u32>()),
            command_specific in proptest::option::of(1u32..),
            key_specific in key_specific(key),
            flags in any::<[bool; 3]>(),
        ) -> Sense {
            Sense {
                key,
                additional: AdditionalSense::new(additional.0, additional.1),
                deferred,
                information: information.map(u64::from),
                command_specific: command_specific.map(u64::from),
                key_specific,
                filemark: flags[0],
                end_of_medium: flags[1],
                incorrect_length: flags[2],
                descriptors: Vec::new(),
            }
        }
    }

    proptest! {
        #[test]
        fn sense_survives_both_formats(sense in sense()) {
            prop_assert_eq!(Sense::parse(&sense.emit_fixed()), Some(sense.clone()));
            prop_assert_eq!(Sense::parse(&sense.emit_descriptor()), Some(sense));
        }

        #[test]
        fn no_bytes_make_parse_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), code in 0x70u8..0x74) {
            let _ = Sense::parse(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = code;
                let _ = Sense::parse(&bytes);
            }
        }
    }
}
