//! The parameter list header of FORMAT UNIT (SBC-3 §5.3.2), for units that support neither a defect
//! list nor a pattern.

use super::Fields;
use crate::Sense;
use crate::cdb::FormatUnit;

/// The header's fields that a unit without defects uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FormatHeader {
    /// IMMED: return status before the work is done.
    pub immediate: bool,
}

impl FormatHeader {
    /// Length of the header in bytes.
    pub const fn len(command: &FormatUnit) -> usize {
        match (command.has_data, command.long_list) {
            (false, _) => 0,
            (true, false) => 4,
            (true, true) => 8,
        }
    }

    /// Reads the header.
    ///
    /// # Errors
    /// PARAMETER LIST LENGTH ERROR for a truncated list. INVALID FIELD IN PARAMETER LIST if it
    /// requests protection information, an initialization pattern or a defect list.
    pub fn parse(command: &FormatUnit, list: &[u8]) -> Result<Self, Sense> {
        let len = Self::len(command);
        if len == 0 {
            return Ok(Self::default());
        }
        let header = list.get(..len).ok_or(Sense::parameter_list_length_error())?;
        let invalid = Sense::invalid_field_in_parameter_list;
        if header[0] & 0x07 != 0 {
            return Err(invalid(0, Some(2))); // PROTECTION FIELD USAGE
        }
        // IP: an initialization pattern descriptor would follow.
        if header[1] & 0x08 != 0 {
            return Err(invalid(1, Some(3)));
        }
        let f = Fields(header);
        let (at, defects) = if command.long_list {
            // P_I_INFORMATION and PROTECTION INTERVAL EXPONENT.
            if header[3] != 0 {
                return Err(invalid(3, None));
            }
            (4, f.u32(4))
        } else {
            (2, f.u16(2).map(u32::from))
        };
        if defects != Some(0) {
            return Err(invalid(at, None));
        }
        Ok(Self { immediate: header[1] & 0x02 != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: FormatUnit =
        FormatUnit { has_data: true, long_list: false, complete_list: false, defect_list_format: 0 };
    const LONG: FormatUnit = FormatUnit { long_list: true, ..SHORT };

    #[test]
    fn a_header_without_defects_is_taken_and_one_that_is_cut_is_not() {
        let immediate = FormatHeader { immediate: true };
        assert_eq!(FormatHeader::parse(&SHORT, &[0, 0x82, 0, 0]), Ok(immediate));
        assert_eq!(FormatHeader::parse(&LONG, &[0, 0x02, 0, 0, 0, 0, 0, 0]), Ok(immediate));
        assert_eq!(FormatHeader::parse(&LONG, &[0, 0, 0, 0]), Err(Sense::parameter_list_length_error()));
        let none = FormatUnit { has_data: false, ..SHORT };
        assert_eq!(FormatHeader::parse(&none, &[]), Ok(FormatHeader::default()));
    }

    #[test]
    fn protection_patterns_and_defect_lists_are_refused_where_they_stand() {
        let invalid = |command, list: &[u8]| FormatHeader::parse(command, list).unwrap_err();
        assert_eq!(invalid(&SHORT, &[1, 0, 0, 0]), Sense::invalid_field_in_parameter_list(0, Some(2)));
        assert_eq!(invalid(&SHORT, &[0, 8, 0, 0]), Sense::invalid_field_in_parameter_list(1, Some(3)));
        assert_eq!(invalid(&SHORT, &[0, 0, 0, 8]), Sense::invalid_field_in_parameter_list(2, None));
        assert_eq!(
            invalid(&LONG, &[0, 0, 0, 0, 0, 0, 0, 8]),
            Sense::invalid_field_in_parameter_list(4, None)
        );
    }
}
