//! How the bytes of an image lie in its objects.

/// As `rbd create` was given it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Bytes of an object.
    pub(crate) object: u64,
    /// Bytes of one object before those of the next one follow. As many as of an object, unless the
    /// image is striped.
    pub(crate) stripe_unit: u64,
    /// Number of objects that stripe units go to in turn, until all of them are full.
    pub(crate) stripe_count: u64,
}

impl Layout {
    /// The most objects that have some of the `len` bytes at `at`. librbd sends an operation to
    /// each.
    pub(crate) fn objects(&self, at: u64, len: u64) -> u64 {
        let pieces = |size: u64| {
            let size = size.max(1);
            (at % size).saturating_add(len).div_ceil(size)
        };
        let full = self.object.saturating_mul(self.stripe_count);
        pieces(self.stripe_unit).min(pieces(full).saturating_mul(self.stripe_count))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The object of a byte, as Ceph documents it.
    fn object(layout: &Layout, at: u64) -> u64 {
        let Layout { object, stripe_unit, stripe_count } = *layout;
        let (stripe, place) = (at / stripe_unit / stripe_count, at / stripe_unit % stripe_count);
        stripe / (object / stripe_unit) * stripe_count + place
    }

    #[test]
    fn no_range_lies_in_more_objects_than_counted() {
        for (object_size, stripe_unit, stripe_count) in
            [(8, 8, 1), (8, 2, 3), (8, 8, 3), (8, 1, 5), (4, 4, 2)]
        {
            let layout = Layout { object: object_size, stripe_unit, stripe_count };
            for at in 0..130 {
                for len in 1..130 {
                    let there: BTreeSet<u64> = (at..at + len).map(|byte| object(&layout, byte)).collect();
                    let counted = layout.objects(at, len);
                    assert!(there.len() as u64 <= counted, "{layout:?}: {len} at {at}: {counted}");
                    // A range within one stripe, and a whole number of sets, is counted exactly.
                    let is_exact = stripe_count == 1
                        || at % stripe_unit + len <= stripe_unit * stripe_count
                        || (at % (object_size * stripe_count), len % (object_size * stripe_count)) == (0, 0);
                    assert!(
                        !is_exact || there.len() as u64 == counted,
                        "{layout:?}: {len} at {at}: {counted}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_small_stripe_unit_makes_one_call_many_operations() {
        let striped = Layout { object: 4 << 20, stripe_unit: 4096, stripe_count: 16 };
        assert_eq!(striped.objects(0, 4096), 1);
        assert_eq!(striped.objects(2048, 4096), 2);
        assert_eq!(striped.objects(0, 65536), 16);
        assert_eq!(striped.objects(0, 1 << 20), 16);
        assert_eq!(striped.objects(63 << 20, 2 << 20), 32);
        let usual = Layout { object: 4 << 20, stripe_unit: 4 << 20, stripe_count: 1 };
        assert_eq!(usual.objects(4095, 4096), 1);
        assert_eq!(usual.objects((4 << 20) - 2048, 4096), 2);
        assert_eq!(usual.objects(0, 0), 0);
        assert_eq!(usual.objects(u64::MAX, u64::MAX), u64::MAX.div_ceil(4 << 20));
    }
}
