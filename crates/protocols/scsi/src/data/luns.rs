//! LUNs (SAM-5 §4.7) and REPORT LUNS data (SPC-4 §6.33).
//!
//! Supports single-level LUNs of the peripheral and the flat address method: a target without a
//! hierarchy needs no others.

/// The well known logical unit REPORT LUNS (SPC-4 §8.2), as 8 bytes.
pub const REPORT_LUNS_WELL_KNOWN: [u8; 8] = [0xC1, 0x01, 0, 0, 0, 0, 0, 0];

/// The highest LUN of the flat address method.
pub const MAX: u16 = 0x3FFF;

/// The 8 bytes of a LUN of 0 to [`MAX`]: the peripheral method up to 255, the flat method above.
/// Higher numbers are truncated to 14 bits.
pub const fn encode(lun: u16) -> [u8; 8] {
    let [high, low] = lun.to_be_bytes();
    let method = if lun < 256 { 0x00 } else { 0x40 };
    [method | (high & 0x3F), low, 0, 0, 0, 0, 0, 0]
}

/// The number of a LUN; `None` for LUNs of more levels, of other buses and of other address
/// methods.
pub const fn decode(lun: &[u8; 8]) -> Option<u16> {
    let [first, second, 0, 0, 0, 0, 0, 0] = *lun else { return None };
    match first >> 6 {
        // Peripheral method: the low six bits are the bus, always 0 in a target without a
        // hierarchy.
        0 if first == 0 => Some(second as u16),
        1 => Some(u16::from_be_bytes([first & 0x3F, second])),
        _ => None,
    }
}

/// REPORT LUNS data for LUNs given as 8 bytes each.
pub fn emit(luns: &[[u8; 8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + 8 * luns.len());
    out.extend(((8 * luns.len()) as u32).to_be_bytes());
    out.extend([0; 4]);
    out.extend(luns.as_flattened());
    out
}

/// The complete LUNs of REPORT LUNS data, and the total number reported.
pub fn parse(bytes: &[u8]) -> Option<(Vec<[u8; 8]>, u32)> {
    let (header, list) = bytes.split_first_chunk::<8>()?;
    let len = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let list = &list[..list.len().min(len as usize)];
    Some((list.chunks_exact(8).filter_map(|l| l.try_into().ok()).collect(), len / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lun_survives_and_small_ones_use_the_peripheral_method() {
        assert_eq!(encode(255), [0, 255, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode(256), [0x41, 0, 0, 0, 0, 0, 0, 0]);
        assert!((0..=MAX).all(|lun| decode(&encode(lun)) == Some(lun)));
    }

    #[test]
    fn luns_of_other_buses_levels_and_methods_are_nobodys() {
        assert_eq!(decode(&[1, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(decode(&[0, 1, 0, 1, 0, 0, 0, 0]), None);
        assert_eq!(decode(&[0x80, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(decode(&REPORT_LUNS_WELL_KNOWN), None);
        // The flat method may also name small LUNs.
        assert_eq!(decode(&[0x40, 7, 0, 0, 0, 0, 0, 0]), Some(7));
    }

    #[test]
    fn report_luns_data_says_how_many_there_are_even_when_cut() {
        let data = emit(&[encode(0), encode(5)]);
        assert_eq!(data, [0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0]);
        assert_eq!(parse(&data), Some((vec![encode(0), encode(5)], 2)));
        assert_eq!(parse(&data[..17]), Some((vec![encode(0)], 2)));
        assert_eq!(parse(&data[..7]), None);
    }
}
