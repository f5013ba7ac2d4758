//! REPORT TIMESTAMP data (SPC-4 §6.38).

/// TIMESTAMP ORIGIN: the source of the time (SPC-4 table 98).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// 000b: counts from power on.
    PowerOn,
    /// 010b: set by SET TIMESTAMP.
    SetTimestamp,
    /// 011b: set by other means, here the system's clock.
    Other,
}

/// The data, 12 bytes: `milliseconds` since 1970-01-01T00:00Z (or since power on), truncated to 48
/// bits.
pub fn emit(origin: Origin, milliseconds: u64) -> [u8; 12] {
    let mut out = [0; 12];
    out[1] = 10; // TIMESTAMP PARAMETER DATA LENGTH
    out[2] = match origin {
        Origin::PowerOn => 0,
        Origin::SetTimestamp => 2,
        Origin::Other => 3,
    };
    out[4..10].copy_from_slice(&milliseconds.to_be_bytes()[2..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_48_bits_of_milliseconds() {
        assert_eq!(emit(Origin::Other, 0x0102_0304_0506), [0, 10, 3, 0, 1, 2, 3, 4, 5, 6, 0, 0]);
    }
}
