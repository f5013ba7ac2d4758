//! Accounting of SCSI commands: their class in statistics, their cost under limits of service, and
//! the accounts that those limits charge.
//!
//! A command that moves no blocks costs nothing: initiators diagnose faults with such commands.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Nexus, Outcome};
use scsi::Status;
use server_core::qos::{Accounts, Cost, Limiter, QosLimits};
use server_core::tally::{Class, Tally};

use crate::config::ServerConfig;
use crate::node::Target;

/// Cost of the command with this CDB and these expected lengths, bytes; `None` if it costs nothing.
pub(crate) fn cost(cdb: &[u8], expected_in: u32, expected_out: u32) -> Option<Cost> {
    let writes = match (*cdb.first()?, cdb.get(8..10)) {
        // READ (6) to (16), VERIFY (10) to (16) whose data, if any, comes from the initiator.
        (0x08 | 0x28 | 0xa8 | 0x88 | 0x2f | 0xaf | 0x8f, _) => false,
        // WRITE (6) to (16), WRITE AND VERIFY, WRITE ATOMIC (16), COMPARE AND WRITE, ORWRITE (16),
        // WRITE SAME, UNMAP, EXTENDED COPY and its kin.
        (0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x9c | 0x89 | 0x8b, _) => true,
        (0x41 | 0x93 | 0x42 | 0x83, _) => true,
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
    Some(Cost { writes, bytes: u64::from(expected_in) + u64::from(expected_out) })
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
        assert_eq!(cost(&read32, 512, 0), Some(Cost { writes: false, bytes: 512 }));
        assert_eq!(cost(&[0x2a; 10], 0, 512), Some(Cost { writes: true, bytes: 512 }));
        for opcode in [0x00, 0x03, 0x12, 0x25, 0x35, 0x4d, 0x5e, 0x5f, 0x9e, 0xa0, 0xa3] {
            assert_eq!(cost(&[opcode; 16], 4096, 0), None, "{opcode:#04x}");
        }
        assert_eq!(cost(&[], 0, 0), None);
    }
}
