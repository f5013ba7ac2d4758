//! Atomic operations on 64 bits of the peer's memory (RFC 7306 §5): their headers, and the effect
//! of each on a value. Accesses no memory itself.

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an Atomic Request's header (RFC 7306 §5.2.1).
pub(crate) const ATOMIC_REQUEST_LEN: usize = 52;
/// Bytes of an Atomic Response's header (RFC 7306 §5.2.2).
pub(crate) const ATOMIC_RESPONSE_LEN: usize = 12;

/// An Atomic Request's header (RFC 7306 §5.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicRequest {
    /// 28 reserved bits, then the atomic operation's code.
    pub operation: U32,
    /// Request identifier; the response repeats it.
    pub request: U32,
    /// STag of the value's buffer.
    pub stag: U32,
    /// Tagged offset of the value there; a multiple of 8.
    pub to: U64,
    /// Value to add or to swap in.
    pub data: U64,
    /// Add mask or swap mask.
    pub mask: U64,
    /// Value to compare with.
    pub compare: U64,
    /// Mask of the bits to compare.
    pub compare_mask: U64,
}

/// An Atomic Response's header (RFC 7306 §5.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicResponse {
    /// The request's identifier.
    pub request: U32,
    /// The value before the operation.
    pub original: U64,
}

/// An atomic operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Adds to each field of the value (RFC 7306 §5.1.1).
    FetchAdd {
        /// The addend.
        add: u64,
        /// A 1 marks the top bit of a field; carries stop there. 0: one field of 64 bits.
        mask: u64,
    },
    /// Replaces the masked bits (RFC 7306 §5.1.2).
    Swap {
        /// The new bits.
        swap: u64,
        /// Mask of the bits to replace.
        mask: u64,
    },
    /// Replaces the masked bits if the value compares equal (RFC 7306 §5.1.3).
    CmpSwap {
        /// The new bits.
        swap: u64,
        /// Mask of the bits to replace.
        mask: u64,
        /// The value to compare with.
        compare: u64,
        /// Mask of the bits to compare.
        compare_mask: u64,
    },
}

impl Atomic {
    const FETCH_ADD: u32 = 0;
    const SWAP: u32 = 1;
    const CMP_SWAP: u32 = 2;

    /// The operation of a request; `None` if its code is not assigned.
    pub fn of(header: &AtomicRequest) -> Option<Self> {
        let (data, mask) = (header.data.get(), header.mask.get());
        Some(match header.operation.get() & 0xf {
            Self::FETCH_ADD => Self::FetchAdd { add: data, mask },
            Self::SWAP => Self::Swap { swap: data, mask },
            Self::CMP_SWAP => Self::CmpSwap {
                swap: data,
                mask,
                compare: header.compare.get(),
                compare_mask: header.compare_mask.get(),
            },
            _ => return None,
        })
    }

    /// The request header for this operation.
    pub fn request(&self, request: u32, stag: u32, to: u64) -> AtomicRequest {
        let (operation, data, mask, compare, compare_mask) = match *self {
            Self::FetchAdd { add, mask } => (Self::FETCH_ADD, add, mask, 0, 0),
            Self::Swap { swap, mask } => (Self::SWAP, swap, mask, 0, 0),
            Self::CmpSwap { swap, mask, compare, compare_mask } => {
                (Self::CMP_SWAP, swap, mask, compare, compare_mask)
            }
        };
        AtomicRequest {
            operation: U32::new(operation),
            request: U32::new(request),
            stag: U32::new(stag),
            to: U64::new(to),
            data: U64::new(data),
            mask: U64::new(mask),
            compare: U64::new(compare),
            compare_mask: U64::new(compare_mask),
        }
    }

    /// The value after the operation on `original`.
    pub fn apply(&self, original: u64) -> u64 {
        match *self {
            Self::FetchAdd { add, mask } => {
                // With the fields' top bits cleared the sum never carries across a boundary; XOR
                // then adds these bits without carry.
                let low = !mask;
                (original & low).wrapping_add(add & low) ^ ((original ^ add) & mask)
            }
            Self::Swap { swap, mask } => original & !mask | swap & mask,
            Self::CmpSwap { swap, mask, compare, compare_mask } => {
                if (original ^ compare) & compare_mask == 0 {
                    original & !mask | swap & mask
                } else {
                    original
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The addition bit by bit, as RFC 7306 §5.1.1 defines it.
    fn add_in_fields(a: u64, b: u64, mask: u64) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..64 {
            let column = (a >> bit & 1) + (b >> bit & 1) + carry;
            sum |= (column & 1) << bit;
            carry = if mask >> bit & 1 == 1 { 0 } else { column >> 1 };
        }
        sum
    }

    #[test]
    fn headers_have_the_lengths_of_rfc_7306() {
        assert_eq!(size_of::<AtomicRequest>(), ATOMIC_REQUEST_LEN);
        assert_eq!(size_of::<AtomicResponse>(), ATOMIC_RESPONSE_LEN);
    }

    #[test]
    fn compare_and_swap_changes_only_what_compares_equal() {
        let swap = Atomic::CmpSwap { swap: 0xff, mask: 0x0f, compare: 0x1234, compare_mask: 0xff00 };
        assert_eq!(swap.apply(0x12aa), 0x12af);
        assert_eq!(swap.apply(0x13aa), 0x13aa);
    }

    proptest! {
        #[test]
        fn fetch_add_adds_in_fields(a: u64, add: u64, mask: u64) {
            prop_assert_eq!(Atomic::FetchAdd { add, mask }.apply(a), add_in_fields(a, add, mask));
            prop_assert_eq!(Atomic::FetchAdd { add, mask: 0 }.apply(a), a.wrapping_add(add));
        }

        #[test]
        fn an_operation_survives_its_header(data: u64, mask: u64, compare: u64, compare_mask: u64) {
            for atomic in [
                Atomic::FetchAdd { add: data, mask },
                Atomic::Swap { swap: data, mask },
                Atomic::CmpSwap { swap: data, mask, compare, compare_mask },
            ] {
                let header = atomic.request(1, 2, 3);
                prop_assert_eq!(Atomic::of(&header), Some(atomic));
            }
        }
    }
}
