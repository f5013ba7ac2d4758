//! READ DEFECT DATA (10, 12) data of a medium without defects (SBC-3 §5.17, §5.18).

use crate::cdb::ReadDefectData;

/// The header of an empty list in the requested format: 4 bytes, or 8 for the 12-byte command.
pub fn emit_empty(request: &ReadDefectData) -> Vec<u8> {
    let flags = u8::from(request.primary) << 4 | u8::from(request.grown) << 3 | (request.format & 7);
    let mut out = vec![0, flags];
    out.resize(if request.long { 8 } else { 4 }, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdb::{Command, decode};

    #[test]
    fn an_empty_list_is_a_header_that_names_what_was_asked_for() {
        let data = |cdb: &[u8]| match decode(cdb) {
            Ok(Command::ReadDefectData(r)) => emit_empty(&r),
            other => panic!("{other:?}"),
        };
        assert_eq!(data(&[0x37, 0, 0x1D, 0, 0, 0, 0, 0, 8, 0]), [0, 0x1D, 0, 0]);
        assert_eq!(data(&[0xB7, 0x0C, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0]), [0, 0x0C, 0, 0, 0, 0, 0, 0]);
    }
}
