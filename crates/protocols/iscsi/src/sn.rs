//! Serial number arithmetic of RFC 1982 with SERIAL_BITS = 32, which RFC 7143 §4.2.2.1 prescribes
//! for CmdSN, StatSN, DataSN and R2TSN. Numbers are plain `u32`; they must never be compared with
//! `<`.

use core::cmp::Ordering;

/// The number after `sn`; 0xffffffff is followed by 0.
#[inline]
pub const fn next(sn: u32) -> u32 {
    sn.wrapping_add(1)
}

/// The number `n` steps after `sn`. RFC 1982 defines it for `n` up to 2^31 - 1.
#[inline]
pub const fn add(sn: u32, n: u32) -> u32 {
    sn.wrapping_add(n)
}

/// Steps from `from` forward to `to` (0 to 2^32 - 1); the length of a range `from..to` if `from` is
/// not after `to`.
#[inline]
pub const fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from)
}

/// The order of `a` and `b`; `None` if RFC 1982 leaves it undefined (exactly 2^31 apart).
#[inline]
pub const fn compare(a: u32, b: u32) -> Option<Ordering> {
    match a.wrapping_sub(b) {
        0 => Some(Ordering::Equal),
        0x8000_0000 => None,
        1..0x8000_0000 => Some(Ordering::Greater),
        _ => Some(Ordering::Less),
    }
}

/// Whether `a` comes before `b`. False for numbers 2^31 apart.
#[inline]
pub const fn lt(a: u32, b: u32) -> bool {
    let forward = b.wrapping_sub(a);
    forward != 0 && forward < 0x8000_0000
}

/// Whether `a` comes before `b` or equals it.
#[inline]
pub const fn le(a: u32, b: u32) -> bool {
    b.wrapping_sub(a) < 0x8000_0000
}

/// Whether `a` comes after `b`. False for numbers 2^31 apart.
#[inline]
pub const fn gt(a: u32, b: u32) -> bool {
    lt(b, a)
}

/// Whether `a` comes after `b` or equals it.
#[inline]
pub const fn ge(a: u32, b: u32) -> bool {
    le(b, a)
}

/// Whether `sn` lies in the closed window `first..=last`. The window is empty if `last` is the
/// number before `first`: MaxCmdSN = ExpCmdSN - 1 closes a command window (RFC 7143 §4.2.2.1).
#[inline]
pub const fn in_window(sn: u32, first: u32, last: u32) -> bool {
    ge(sn, first) && le(sn, last)
}

/// The later of two numbers; `a` if their order is undefined.
#[inline]
pub const fn max(a: u32, b: u32) -> u32 {
    if lt(a, b) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn order_survives_the_wrap_at_32_bits() {
        assert!(lt(0xffff_ffff, 0));
        assert!(gt(0, 0xffff_ffff));
        assert!(lt(0xffff_fff0, 0x10));
        assert_eq!(next(0xffff_ffff), 0);
        assert_eq!(add(0xffff_fffe, 3), 1);
        assert_eq!(distance(0xffff_fffe, 1), 3);
        assert_eq!(max(0xffff_ffff, 2), 2);
    }

    #[test]
    fn numbers_half_the_space_apart_have_no_order() {
        assert_eq!(compare(0, 0x8000_0000), None);
        assert!(!lt(0, 0x8000_0000) && !gt(0, 0x8000_0000));
        assert!(!le(0, 0x8000_0000) && !ge(0, 0x8000_0000));
    }

    #[test]
    fn a_window_ending_just_before_its_start_is_closed() {
        for first in [0u32, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
            let last = first.wrapping_sub(1);
            for sn in [first, last, next(first), add(first, 1000)] {
                assert!(!in_window(sn, first, last));
            }
            assert!(in_window(first, first, first));
            assert!(!in_window(next(first), first, first));
        }
    }

    proptest! {
        #[test]
        fn a_number_precedes_every_number_up_to_half_the_space_ahead(a: u32, n in 1u32..0x8000_0000) {
            let b = add(a, n);
            prop_assert!(lt(a, b) && le(a, b) && gt(b, a) && ge(b, a));
            prop_assert!(!lt(b, a) && !le(b, a));
            prop_assert_eq!(compare(a, b), Some(Ordering::Less));
            prop_assert_eq!(compare(b, a), Some(Ordering::Greater));
            prop_assert_eq!(distance(a, b), n);
            prop_assert_eq!(max(a, b), b);
        }

        #[test]
        fn windows_hold_exactly_their_numbers(first: u32, len in 1u32..0x4000_0000, offset in 0u32..0x7000_0000) {
            let last = add(first, len - 1);
            prop_assert_eq!(in_window(add(first, offset), first, last), offset < len);
        }
    }
}
