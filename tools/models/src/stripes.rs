//! Commands on the same sectors, by the table of a disk.

use std::pin::pin;
use std::task::{Context, Waker};

use loom::future::block_on;
use loom::sync::Arc;

use shipped::{PIECE, Stripes};
use sync::{AtomicU32, Ordering};

mod sync {
    pub(super) use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, fence};

    /// Few, since loom looks at each.
    pub(super) const WORDS: usize = 4;
}

#[allow(dead_code, reason = "models use parts of it")]
#[path = "../../../crates/storage/disk/src/unit/stripes.rs"]
mod shipped;

const SECTOR: u64 = 512;
const BLOCK: u64 = PIECE as u64;

/// A table, and two sectors: the first ones of two blocks.
struct Disk {
    stripes: Stripes,
    sectors: [AtomicU32; 2],
}

impl Disk {
    fn new() -> Arc<Self> {
        Arc::new(Self { stripes: Stripes::new(), sectors: Default::default() })
    }

    /// Writes both sectors, as a command that has claimed them may.
    fn write(&self, value: u32) {
        self.sectors.iter().for_each(|sector| sector.store(value, Ordering::Relaxed));
    }

    fn read(&self) -> [u32; 2] {
        self.sectors.each_ref().map(|sector| sector.load(Ordering::Relaxed))
    }

    /// Reads and writes those of the sectors that are in a range, in two steps each.
    fn increment(&self, (at, bytes): (u64, u64)) {
        for (sector, place) in self.sectors.iter().zip([0, BLOCK]) {
            if (at..at + bytes).contains(&place) {
                let value = sector.load(Ordering::Relaxed);
                sector.store(value + 1, Ordering::Relaxed);
            }
        }
    }
}

/// Commands claim these ranges, each in a thread, and change the sectors in it, of which there are
/// so many together.
fn turns(preemptions: usize, ranges: &'static [(u64, u64)], changes: [u32; 2]) {
    crate::check(preemptions, move || {
        let disk = Disk::new();
        let command = |range: (u64, u64)| -> Box<dyn FnOnce()> {
            let disk = disk.clone();
            Box::new(move || {
                let _claim = block_on(disk.stripes.claim(range.0, range.1));
                disk.increment(range);
            })
        };
        crate::at_once(ranges.iter().copied().map(command).collect());
        assert_eq!(disk.read(), changes, "two commands had a sector at once");
    });
}

/// Two commands of one word take turns, and each has its own.
pub fn commands_of_one_word_take_turns() {
    turns(9, &[(0, SECTOR), (0, BLOCK)], [2, 0]);
}

/// The same where one changes whole words, whose bits it clears by a plain store.
pub fn commands_of_several_words_take_turns() {
    turns(9, &[(0, 2 * BLOCK), (BLOCK, SECTOR)], [1, 2]);
}

/// Three commands: a claim that waits behind one that waits.
pub fn a_command_behind_one_that_waits_has_its_turn() {
    turns(2, &[(0, SECTOR), (0, 2 * BLOCK), (BLOCK, SECTOR)], [2, 2]);
}

/// A reader that claims nothing sees a command's change whole, or learns that it did not.
pub fn a_reader_sees_a_change_whole_or_learns_of_it() {
    crate::check(9, || {
        let one = Disk::new();
        let other = one.clone();
        let reader = move || {
            let seen = one.stripes.look::<2>(0, BLOCK + SECTOR);
            let [first, second] = one.read();
            if one.stripes.is_whole(&seen) {
                assert_eq!(first, second, "a torn read was taken for a whole one");
            }
        };
        let writer = move || {
            let _claim = block_on(other.stripes.claim(0, BLOCK + SECTOR));
            other.write(1);
        };
        crate::at_once(vec![Box::new(reader), Box::new(writer)]);
    });
}

/// A command that stops waiting keeps nobody from the sectors.
pub fn a_command_that_stops_waiting_keeps_nobody() {
    crate::check(1, || {
        let disk = Disk::new();
        let [one, other, third] = [disk.clone(), disk.clone(), disk.clone()];
        let holds = move || drop(block_on(one.stripes.claim(0, SECTOR)));
        let stops = move || {
            let mut claim = pin!(other.stripes.claim(0, 2 * BLOCK));
            let _ = claim.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        };
        let waits = move || drop(block_on(third.stripes.claim(BLOCK, SECTOR)));
        crate::at_once(vec![Box::new(holds), Box::new(stops), Box::new(waits)]);
        assert!(disk.stripes.try_claim(0, 4 * BLOCK).is_some(), "something is left claimed");
    });
}
