//! The parameter list of SANITIZE OVERWRITE (SBC-3 §5.20.2.2).

use super::Fields;
use crate::Sense;

/// The parameters of SANITIZE OVERWRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overwrite<'a> {
    /// INVERT: every other pass writes the pattern's complement.
    pub invert: bool,
    /// OVERWRITE COUNT: passes, 1 to 31.
    pub count: u8,
    /// INITIALIZATION PATTERN, 1 byte to one block, repeated to fill a block.
    pub pattern: &'a [u8],
}

impl<'a> Overwrite<'a> {
    /// Reads the list; `block_len` is the unit's block length in bytes.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB if the list is too long for a block, INVALID FIELD IN PARAMETER LIST
    /// for an invalid value in the list.
    pub fn parse(list: &'a [u8], block_len: u32) -> Result<Self, Sense> {
        // SBC-3 §5.20.2.2: longer than 4 bytes, shorter than the block length plus 5.
        if list.len() <= 4 || list.len() as u64 > u64::from(block_len) + 4 {
            return Err(Sense::invalid_field_in_cdb(7, None));
        }
        let count = list[0] & 0x1F;
        if count == 0 {
            return Err(Sense::invalid_field_in_parameter_list(0, Some(4)));
        }
        let len = usize::from(Fields(list).u16(2).unwrap_or(0));
        match list.get(4..4 + len) {
            Some(pattern) if len != 0 && len as u64 <= u64::from(block_len) => {
                Ok(Self { invert: list[0] & 0x80 != 0, count, pattern })
            }
            _ => Err(Sense::invalid_field_in_parameter_list(2, None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pattern_of_one_byte_to_one_block_is_taken() {
        let list = [0x83, 0, 0, 2, 0xAA, 0x55];
        let expected = Overwrite { invert: true, count: 3, pattern: &[0xAA, 0x55] };
        assert_eq!(Overwrite::parse(&list, 512), Ok(expected));
        let mut list = vec![0xAA; 516];
        list[..4].copy_from_slice(&[1, 0, 2, 0]);
        assert_eq!(Overwrite::parse(&list, 512).unwrap().pattern.len(), 512);
        list.push(0);
        assert_eq!(Overwrite::parse(&list, 512), Err(Sense::invalid_field_in_cdb(7, None)));
    }

    #[test]
    fn no_pass_no_pattern_and_a_pattern_longer_than_the_list_are_refused() {
        let invalid = |list: &[u8]| Overwrite::parse(list, 512).unwrap_err();
        assert_eq!(invalid(&[0x80, 0, 0, 1, 9]), Sense::invalid_field_in_parameter_list(0, Some(4)));
        assert_eq!(invalid(&[1, 0, 0, 0, 9]), Sense::invalid_field_in_parameter_list(2, None));
        assert_eq!(invalid(&[1, 0, 0, 2, 9]), Sense::invalid_field_in_parameter_list(2, None));
        assert_eq!(invalid(&[1, 0, 0, 0]), Sense::invalid_field_in_cdb(7, None));
    }

    proptest! {
        #[test]
        fn no_list_makes_parse_panic(list in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Overwrite::parse(&list, 512);
        }
    }
}
