//! The memory of the packets in flight in one direction: one ring of bytes, of which each read
//! takes a part. A part is released when all its packets are delivered or dropped, in any order.
//! The ring advances when its oldest part is released. Never grows.

use std::collections::VecDeque;

/// A part of the ring.
#[derive(Debug)]
struct Slot<T> {
    start: usize,
    len: usize,
    /// Bytes of the ring from the end of the previous part, including bytes skipped at the ring's
    /// end.
    takes: usize,
    /// The number of holders that have not released it.
    held: u32,
    what: T,
}

/// The ring. `T` is the data kept with a part.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    bytes: Vec<u8>,
    slots: VecDeque<Slot<T>>,
    /// The number of the oldest slot.
    first: u64,
    /// The offset at which the next part begins.
    head: usize,
    used: usize,
}

impl<T> Arena<T> {
    /// A ring of `size` bytes. The system allocates its pages on first use.
    pub(crate) fn new(size: usize) -> Self {
        Self { bytes: vec![0; size], slots: VecDeque::new(), first: 0, head: 0, used: 0 }
    }

    /// The place of the next part: its start, and the bytes skipped before it. `None` if `len`
    /// contiguous bytes are not free.
    fn place(&self, len: usize) -> Option<(usize, usize)> {
        let to_end = self.bytes.len() - self.head;
        let (start, skipped) = if to_end >= len { (self.head, 0) } else { (0, to_end) };
        (self.used + skipped + len <= self.bytes.len()).then_some((start, skipped))
    }

    /// The free bytes for the next part, of which at most `len` are kept; `None` if fewer are free.
    pub(crate) fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let (start, _) = self.place(len)?;
        self.bytes.get_mut(start..start + len)
    }

    /// Keeps the first `len` bytes of the part that `room(room)` returned, until `held` holders
    /// have released it. Returns the part's number. `held` must not be 0.
    pub(crate) fn keep(&mut self, room: usize, len: usize, held: u32, what: T) -> u64 {
        let (start, skipped) = self.place(room).unwrap_or((self.head, 0));
        let takes = skipped + len;
        self.slots.push_back(Slot { start, len, takes, held, what });
        self.head = start + len;
        self.used += takes;
        self.first + self.slots.len() as u64 - 1
    }

    /// The bytes of a part and the data kept with it.
    pub(crate) fn get(&self, number: u64) -> Option<(&[u8], &T)> {
        let slot = self.slots.get(usize::try_from(number.checked_sub(self.first)?).ok()?)?;
        Some((self.bytes.get(slot.start..slot.start + slot.len)?, &slot.what))
    }

    /// Releases a part for one of its holders.
    pub(crate) fn release(&mut self, number: u64) {
        let Some(at) = number.checked_sub(self.first) else { return };
        if let Some(slot) = self.slots.get_mut(at as usize) {
            slot.held = slot.held.saturating_sub(1);
        }
        while let Some(slot) = self.slots.front().filter(|slot| slot.held == 0) {
            self.used -= slot.takes;
            self.first += 1;
            self.slots.pop_front();
        }
        if self.slots.is_empty() {
            // Restart at offset 0, so that few packets in flight touch little memory.
            self.head = 0;
            self.used = 0;
        }
    }

    /// The bytes in use.
    #[cfg(test)]
    fn used(&self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(arena: &mut Arena<u8>, value: u8, len: usize) -> Option<u64> {
        arena.room(64)?[..len].fill(value);
        Some(arena.keep(64, len, 1, value))
    }

    #[test]
    fn parts_keep_their_bytes_until_they_are_given_back_in_any_order() {
        let mut arena = Arena::new(256);
        let mut dice = super::super::shape::Dice::new(1, 1);
        let mut held: Vec<(u64, u8, usize)> = Vec::new();
        let (mut refused, mut kept) = (0, 0);
        for round in 0..20_000u32 {
            let (value, len) = (round as u8, 1 + (dice.unit() * 64.0) as usize);
            match put(&mut arena, value, len) {
                Some(number) => {
                    held.push((number, value, len));
                    kept += 1;
                }
                None => refused += 1,
            }
            if dice.unit() < 0.6 && !held.is_empty() {
                let at = (dice.unit() * held.len() as f64) as usize;
                let (number, ..) = held.swap_remove(at);
                arena.release(number);
            }
            for (number, value, len) in &held {
                let (bytes, what) = arena.get(*number).expect("it was not given back");
                assert_eq!((bytes, what), (&vec![*value; *len][..], value));
            }
            assert!(arena.used() <= 256);
        }
        assert!(refused > 100 && kept > 100, "{refused} {kept}");
        for (number, ..) in held {
            arena.release(number);
        }
        assert_eq!(arena.used(), 0);
        assert!(arena.room(256).is_some(), "all of it is free again");
    }

    #[test]
    fn a_part_of_two_holders_stays_until_both_gave_it_back() {
        let mut arena = Arena::new(100);
        arena.room(80).expect("it is empty")[..2].copy_from_slice(b"ab");
        let number = arena.keep(80, 2, 2, ());
        arena.release(number);
        assert_eq!(arena.get(number).map(|(bytes, ())| bytes), Some(&b"ab"[..]));
        arena.release(number);
        assert!(arena.get(number).is_none());
    }
}
