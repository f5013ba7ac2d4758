//! Direct placement: the data that a unit allows it for, and the refusals.

use std::cell::RefCell;
use std::rc::Rc;

use device::{Land, Landing};
use runtime::RegionRange;

use super::*;
use crate::unit::gate::flag;

/// A mover whose data never arrives, and which records the declared place.
#[derive(Default)]
struct Waiting(Rc<RefCell<Option<Landing>>>);

impl DataMover for Waiting {
    fn put_data(&mut self, _: Buf) {}

    fn poll_put_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(Ok(()))
    }

    fn poll_get_data(&mut self, _: &mut Context<'_>, _: usize) -> Poll<Result<Chain, Lost>> {
        Poll::Pending
    }

    fn lands(&mut self, landing: Landing) {
        *self.0.borrow_mut() = Some(landing);
    }

    fn poll_lost(&mut self, _: &mut Context<'_>) -> Poll<Lost> {
        Poll::Pending
    }
}

/// The place for a command's data that its unit declares.
fn landing(it: &Initiator, cdb: &[u8], out: u64) -> Option<Landing> {
    let mover = Waiting::default();
    let said = mover.0.clone();
    let running = it.unit.execute(it.command(cdb, out, 0), mover);
    drop(running);
    said.take()
}

fn land(unit: &Arc<DiskUnit>, at: u64, byte: u8) -> bool {
    let mut fill = |place: &mut RegionRange| {
        place.write(&[byte; 1024]);
        1024
    };
    unit.land(at, 1024, &mut fill).is_some()
}

#[test]
fn only_an_admitted_write_declares_the_place_of_its_data() {
    let it = pair();
    for cdb in [&cdb10(0x2a, 7, 64)[..], &cdb16(0x8a, 0, 7, 64), &[0xaa, 0, 0, 0, 0, 7, 0, 0, 0, 64, 0, 0]] {
        let landing = landing(&it, cdb, 32_768).expect("a plain WRITE");
        assert_eq!((landing.at, landing.len, landing.block), (7 * 512, 32_768, 512));
        assert!(it.unit.lands(cdb));
    }
    // Longer than a chunk of the unit.
    assert_eq!(landing(&it, &cdb10(0x2a, 0, 4096), 4096 * 512).map(|landing| landing.len), Some(4096 * 512));
    let none = [
        ("short", cdb10(0x2a, 0, 8).to_vec(), 4096),
        ("not all of it", cdb10(0x2a, 0, 64).to_vec(), 32_000),
        ("beyond the end", cdb10(0x2a, 4090, 64).to_vec(), 32_768),
        ("WRITE AND VERIFY", cdb10(0x2e, 0, 64).to_vec(), 32_768),
        ("COMPARE AND WRITE", cdb16(0x89, 0, 0, 64 << 8).to_vec(), 65_536),
        ("WRITE ATOMIC", cdb16(0x9c, 0, 0, 64).to_vec(), 32_768),
        ("READ", cdb10(0x28, 0, 64).to_vec(), 0),
    ];
    for (name, cdb, out) in none {
        assert!(landing(&it, &cdb, out).is_none(), "{name}");
    }
    assert!(!it.unit.lands(&cdb10(0x2e, 0, 64)) && !it.unit.lands(&[]));
    // The command fails its checks.
    let read_only = Initiator::new(&it.unit, 2);
    let read_only = Initiator { nexus: Initiator::fresh(&it.unit, 3, true).nexus, ..read_only };
    assert!(landing(&read_only, &cdb10(0x2a, 0, 64), 32_768).is_none());
}

#[test]
fn what_lands_is_a_plain_write_to_other_commands() {
    let it = pair();
    assert!(land(&it.unit, 512, 7));
    assert_eq!(it.read(1, 2).good(), [7; 1024]);
    let alone = block_on(it.unit.stripes.claim(1024, 512));
    assert!(!land(&it.unit, 512, 8), "somebody has one of its blocks");
    drop(alone);
    assert!(land(&it.unit, 512, 8));
    let mut reading = None;
    let mut fill = |place: &mut RegionRange| {
        let mut read = it.start(&cdb10(0x28, 0, 1), &[], 0);
        assert!(poll_once(&mut read).is_pending(), "it is being changed");
        reading = Some(read);
        place.len()
    };
    assert!(it.unit.land(0, 512, &mut fill).is_some());
}

#[test]
fn nothing_is_placed_during_a_sanitize_or_after_an_eject() {
    let it = pair();
    for stops in [
        flag::SANITIZING,
        flag::SANITIZE_FAILED,
        flag::NO_MEDIUM,
        flag::SOFTWARE_PROTECTED,
        flag::READ_ONLY,
        flag::TOKENS,
    ] {
        it.unit.set_flag(stops, true);
        assert!(!land(&it.unit, 0, 9), "{stops:#x}");
        it.unit.set_flag(stops, false);
    }
    assert!(land(&it.unit, 0, 9));
}
