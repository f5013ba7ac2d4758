//! Accounting of SCSI commands: their class in statistics, their cost under limits of service, and
//! the accounts that those limits charge.
//!
//! A command that moves no blocks costs nothing: initiators diagnose faults with such commands.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Charge, Charged, Nexus, Outcome};
use disk::unit::limits::MAX_TRANSFER_BYTES;
use scsi::Status;
use server_core::qos::{Accounts, Cost, Limiter, QosLimits};
use server_core::tally::{Class, Tally};

use crate::config::ServerConfig;
use crate::node::Target;

/// Cost of the command with this CDB and these expected lengths, bytes, to a medium of blocks of so
/// many bytes, and of so many blocks; `None` if it costs nothing.
///
/// A copy costs its parameters at first. Its unit charges the data as it moves ([`charge`]).
pub(crate) fn cost(
    cdb: &[u8],
    (expected_in, expected_out): (u32, u32),
    (block, blocks): (u32, u64),
) -> Option<Cost> {
    let writes = match (*cdb.first()?, cdb.get(8..10)) {
        // READ (6) to (16), VERIFY (10) to (16) whose data, if any, comes from the initiator.
        (0x08 | 0x28 | 0xa8 | 0x88 | 0x2f | 0xaf | 0x8f, _) => false,
        // WRITE (6) to (16), WRITE AND VERIFY, WRITE ATOMIC (16), COMPARE AND WRITE, ORWRITE (16),
        // WRITE SAME, UNMAP.
        (0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x9c | 0x89 | 0x8b, _) => true,
        (0x41 | 0x93 | 0x42, _) => true,
        // The third-party copies that copy: EXTENDED COPY of both kinds, WRITE USING TOKEN.
        (0x83, _) => matches!(cdb.get(1)? & 0x1f, 0x00 | 0x01 | 0x11).then_some(true)?,
        // The 32-byte ones, by SERVICE ACTION: READ, VERIFY; WRITE, WRITE AND VERIFY, WRITE SAME,
        // WRITE ATOMIC.
        (0x7f, Some([0, 0x09 | 0x0a])) => false,
        (0x7f, Some([0, 0x0b | 0x0c | 0x0d | 0x0f])) => true,
        // Objects', of OSD-1 and OSD-2: READ; WRITE, APPEND, CREATE AND WRITE, PUNCH, CLEAR, COPY
        // USER OBJECTS.
        (0x7f, Some([0x88, 0x05 | 0x85])) => false,
        (0x7f, Some([0x88, 0x06 | 0x07 | 0x12 | 0x84 | 0x86 | 0x87 | 0x89 | 0x92 | 0x93])) => true,
        _ => return None,
    };
    let expected = u64::from(expected_in) + u64::from(expected_out);
    let bytes = match block {
        0 => expected,
        // A disk refuses longer transfers.
        _ => expected.max(addressed(cdb, blocks) * u64::from(block)).min(MAX_TRANSFER_BYTES),
    };
    Some(Cost { writes, bytes })
}

/// The number of blocks that a command reads or writes without data for each of them: VERIFY, and
/// WRITE SAME but one that deallocates. 0 for other commands.
fn addressed(cdb: &[u8], blocks: u64) -> u64 {
    const UNMAP: u8 = 0x08;
    let number = |at: Range<usize>| {
        let bytes = cdb.get(at).unwrap_or_default();
        bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let (lba, count, flags) = match (cdb.first(), cdb.get(8..10)) {
        (Some(0x2f), _) => return number(7..9),
        (Some(0xaf), _) => return number(6..10),
        (Some(0x8f), _) => return number(10..14),
        (Some(0x7f), Some([0, 0x0a])) => return number(28..32),
        (Some(0x41), _) => (2..6, 7..9, 1),
        (Some(0x93), _) => (2..10, 10..14, 1),
        (Some(0x7f), Some([0, 0x0d])) => (12..20, 28..32, 10),
        _ => return 0,
    };
    match number(count) {
        _ if cdb.get(flags).is_some_and(|flags| flags & UNMAP != 0) => 0,
        // To the end of the medium.
        0 => blocks.saturating_sub(number(lba)).min(MAX_TRANSFER_BYTES),
        count => count,
    }
}

/// Charges bytes to accounts, for reads or writes.
pub(crate) fn charge(limiters: [Arc<Limiter>; 2], writes: bool) -> Charge {
    Box::new(move |bytes| {
        let active = limiters.iter().filter(|limiter| limiter.is_active());
        let active: Vec<_> = active.map(|limiter| (limiter.clone(), limiter.limits())).collect();
        let (cost, now) = (Cost { writes, bytes }, runtime::now());
        let due = active.iter().map(|(limiter, _)| limiter.charge_bytes(cost, now)).max()?;
        let is_void = move || active.iter().any(|(limiter, limits)| limiter.limits() != *limits);
        Some(Charged { due, is_void: Box::new(is_void) })
    })
}

/// A command's class, by the OPERATION CODE: READ and WRITE of all lengths, and other commands that
/// put blocks on the medium with data of their own. Of objects, by the SERVICE ACTION in bytes 8
/// and 9: READ; WRITE, APPEND and CREATE AND WRITE, of OSD-1 and OSD-2.
#[inline]
pub(crate) fn class(cdb: &[u8]) -> Class {
    match cdb {
        [0x08 | 0x28 | 0x88 | 0xa8, ..] => Class::Read,
        [0x0a | 0x2a | 0x2e | 0x8a | 0x8e | 0xaa | 0xae | 0x89 | 0x9c, ..] => Class::Write,
        [0x7f, _, _, _, _, _, _, _, 0x88, 0x05 | 0x85, ..] => Class::Read,
        [0x7f, _, _, _, _, _, _, _, 0x88, 0x06 | 0x86 | 0x07 | 0x87 | 0x12 | 0x92, ..] => Class::Write,
        _ => Class::Other,
    }
}

/// Counts a command that has ended. Returns the time that it took, if it is one that is timed.
#[inline]
pub(crate) fn count(
    tally: &Tally,
    class: Class,
    began: Option<Instant>,
    outcome: &Outcome,
) -> Option<Duration> {
    let bytes = if class == Class::Write { outcome.wanted_out } else { outcome.wanted_in };
    tally.end(class, began, bytes, outcome.status != Status::Good)
}

/// Lets units that continue in `config` keep their accounts, under the limits of `config`.
pub(crate) fn carry(before: &[Arc<Target>], config: &mut ServerConfig) {
    let old: HashMap<usize, &Arc<Limiter>> = before
        .iter()
        .flat_map(|target| &target.config.units)
        .map(|unit| (unit.unit.address(), &unit.limiter))
        .collect();
    for unit in config.targets.iter_mut().flat_map(|target| &mut target.units) {
        let Some(limiter) = old.get(&unit.unit.address()) else { continue };
        let limits = unit.limiter.limits();
        if limits != limiter.limits() {
            limiter.set(limits);
        }
        unit.limiter = Arc::clone(limiter);
    }
}

/// The accounts of initiators, by the names of target and initiator and the authenticated user. So
/// no other user who claims the name uses an account up.
#[derive(Debug, Default)]
pub(crate) struct Initiators(Accounts<(String, String, Option<String>)>);

impl Initiators {
    /// The account of the initiator behind `nexus`.
    pub(crate) fn limiter(&self, nexus: &Nexus, limits: QosLimits) -> Arc<Limiter> {
        let user = nexus.principal.as_ref().map(|principal| principal.user.clone());
        self.0.limiter((nexus.target.clone(), nexus.initiator.clone(), user), limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_and_written_by_service_actions() {
        let of = |action: u8| class(&[0x7f, 0, 0, 0, 0, 0, 0, 228, 0x88, action]);
        assert_eq!((of(0x05), of(0x85)), (Class::Read, Class::Read));
        assert_eq!((of(0x86), of(0x87), of(0x92)), (Class::Write, Class::Write, Class::Write));
        assert_eq!((of(0x8e), class(&[0x7f, 0])), (Class::Other, Class::Other));
    }

    #[test]
    fn another_user_of_an_initiators_name_has_an_account_of_its_own() {
        let accounts = Initiators::default();
        let of = |id, user: &str| {
            let nexus = Nexus {
                id: device::NexusId(id),
                initiator: "iqn.2026-01.org.example:i".into(),
                principal: Some(device::Principal { user: user.into(), credential: [0; 32] }),
                transport_id: Vec::new(),
                target_port: 1,
                target: "iqn.2026-01.org.example:t".into(),
                ports: None,
            };
            accounts.limiter(&nexus, QosLimits::default())
        };
        let alice = of(1, "alice");
        assert!(Arc::ptr_eq(&alice, &of(2, "alice")), "sessions of one user share theirs");
        assert!(!Arc::ptr_eq(&alice, &of(3, "bob")));
    }

    #[test]
    fn only_commands_that_move_blocks_cost_anything() {
        let mut read32 = [0; 32];
        (read32[0], read32[9]) = (0x7f, 0x09);
        let medium = (512, 1 << 20);
        assert_eq!(cost(&read32, (512, 0), medium), Some(Cost { writes: false, bytes: 512 }));
        assert_eq!(cost(&[0x2a; 10], (0, 512), medium), Some(Cost { writes: true, bytes: 512 }));
        for opcode in [0x00, 0x03, 0x12, 0x25, 0x35, 0x4d, 0x5e, 0x5f, 0x9e, 0xa0, 0xa3] {
            assert_eq!(cost(&[opcode; 16], (4096, 0), medium), None, "{opcode:#04x}");
        }
        assert_eq!(cost(&[], (0, 0), medium), None);
        // POPULATE TOKEN, COPY OPERATION ABORT.
        for action in [0x10, 0x1c] {
            assert_eq!(cost(&[0x83, action], (0, 512), medium), None);
        }
    }

    #[test]
    fn commands_without_data_for_each_block_cost_their_blocks() {
        let of = |cdb: &[u8], out: u32| {
            let cost = cost(cdb, (0, out), (512, 1000))?;
            Some((cost.writes, cost.bytes))
        };
        let cdb = |opcode: u8, at: usize, count: u8| {
            let mut cdb = [0; 16];
            (cdb[0], cdb[at]) = (opcode, count);
            cdb
        };
        assert_eq!(of(&cdb(0x2f, 8, 9), 0), Some((false, 9 * 512)), "VERIFY (10)");
        assert_eq!(of(&cdb(0xaf, 9, 9), 0), Some((false, 9 * 512)), "VERIFY (12)");
        assert_eq!(of(&cdb(0x8f, 13, 9), 512), Some((false, 9 * 512)), "VERIFY (16)");
        assert_eq!(of(&cdb(0x41, 8, 9), 512), Some((true, 9 * 512)), "WRITE SAME (10)");
        assert_eq!(of(&cdb(0x93, 13, 9), 512), Some((true, 9 * 512)), "WRITE SAME (16)");
        assert_eq!(of(&cdb(0x93, 9, 100), 512), Some((true, 900 * 512)), "to the end");
        let mut unmap = cdb(0x93, 13, 9);
        unmap[1] = 0x08;
        assert_eq!(of(&unmap, 512), Some((true, 512)));
        let mut long = [0; 32];
        (long[0], long[9], long[31]) = (0x7f, 0x0d, 9);
        assert_eq!(of(&long, 512), Some((true, 9 * 512)), "WRITE SAME (32)");
        assert_eq!(of(&cdb(0x8f, 10, 9), 0), Some((false, MAX_TRANSFER_BYTES)), "it is refused");
    }
}
