//! Persistent reservations: sequences of PERSISTENT RESERVE OUT from several nexuses, and the saved
//! state.

use crate::input::{Input, Seed};
use scsi::reservation::{Access, Environment, InAction, ItPort, OutAction, Reservations, TransportId};

fn ports() -> [ItPort; 3] {
    let port = |name, isid, target_port| ItPort {
        initiator: TransportId::iscsi_port(name, isid).expect("a short name"),
        target_port,
    };
    [port("iqn.a", 1, 1), port("iqn.b", 2, 1), port("iqn.b", 2, 2)]
}

/// Commands as nexus, service action, scope and type, and the parameter list as a chunk; action
/// 0x80 and up loses the nexus, reserves or releases by RESERVE(6), or resets.
pub fn out(data: &[u8]) {
    let ports = ports();
    let initiators: Vec<_> = ports.iter().map(|port| port.initiator.clone()).collect();
    let mut state = Reservations::new();
    let mut input = Input::new(data);
    for _ in 0..24 {
        if input.is_empty() {
            break;
        }
        let nexus = usize::from(input.u8()) % ports.len();
        let (port, session) = (&ports[nexus], nexus as u64);
        let code = input.u8();
        let scope_and_type = input.u8();
        let list = input.chunk();
        let before = state.clone();
        if let Some(action) = OutAction::from_code(code) {
            let environment = Environment {
                target_ports: &[1, 2],
                initiators: &initiators,
                can_persist: scope_and_type & 0x80 == 0,
            };
            match state.persistent_out(port, session, action, scope_and_type & 0x7f, list, environment) {
                Ok(effects) => {
                    assert!(effects.attentions.iter().all(|(to, _)| to != port), "nobody surprises himself");
                    if !effects.persist {
                        assert_eq!(reloaded(&before), reloaded(&state), "unsaved changes need no saving");
                    }
                }
                Err(refusal) => {
                    assert!(!refusal.to_string().is_empty());
                    assert_eq!(state, before, "a refusal changes nothing");
                }
            }
        } else {
            match code & 3 {
                0 => drop(state.nexus_lost(session)),
                1 => drop(state.reserve_legacy(port, session)),
                2 => drop(state.release_legacy(port, session)),
                _ => drop(state.reset()),
            }
        }
        for action in InAction::ALL {
            let bytes = state.persistent_in(action, true);
            assert!(
                bytes.len() >= 8
                    && bytes.len() <= 8 + Reservations::MAX_REGISTRATIONS * (24 + TransportId::MAX_LEN)
            );
        }
        let writers = ports
            .iter()
            .enumerate()
            .filter(|(n, p)| state.check(p, *n as u64, Access::Write).is_ok())
            .count();
        assert!(writers >= 1 || state.reservation_type().is_some(), "only a reservation shuts everybody out");
        drop(reloaded(&state));
    }
}

/// The state after a power loss.
fn reloaded(state: &Reservations) -> Reservations {
    let bytes = state.to_bytes();
    assert!(bytes.len() <= Reservations::MAX_SAVED_LEN);
    let back = Reservations::from_bytes(&bytes).expect("what we save, we read");
    let keys = |state: &Reservations| ports().map(|port| state.key_of(&port));
    if state.aptpl() {
        assert_eq!((keys(&back), back.reservation_type()), (keys(state), state.reservation_type()));
    } else {
        assert!(back.is_empty(), "without APTPL nothing outlives a power loss");
    }
    back
}

fn basic(key: u64, action_key: u64, flags: u8) -> Seed {
    Seed::new().bytes(key.to_be_bytes()).bytes(action_key.to_be_bytes()).bytes([0, 0, 0, 0, flags, 0, 0, 0])
}

/// Register, reserve, preempt, move and release between two initiators; TransportIDs; RESERVE(6).
pub fn out_seeds() -> Vec<(&'static str, Seed)> {
    let command = |seed: Seed, nexus: u8, action: OutAction, kind: u8, list: Seed| {
        seed.bytes([nexus, action as u8, kind]).chunk(list.into_bytes())
    };
    let registered = || {
        let seed = command(Seed::new(), 0, OutAction::Register, 0, basic(0, 1, 1));
        command(seed, 1, OutAction::RegisterAndIgnore, 0, basic(0, 2, 1))
    };
    let with_ids = {
        let id = ports()[1].initiator.clone();
        let list = basic(0, 5, 0x0d).bytes((id.bytes().len() as u32).to_be_bytes()).bytes(id.bytes());
        command(Seed::new(), 0, OutAction::Register, 0, list)
    };
    let mover = {
        let id = ports()[1].initiator.clone();
        let list = Seed::new().bytes(1u64.to_be_bytes()).bytes(2u64.to_be_bytes()).bytes([0, 1, 0, 1]);
        let list = list.bytes((id.bytes().len() as u32).to_be_bytes()).bytes(id.bytes());
        let seed = command(registered(), 0, OutAction::Reserve, 1, basic(1, 0, 0));
        command(seed, 0, OutAction::RegisterAndMove, 1, list)
    };
    let reserved = || command(registered(), 0, OutAction::Reserve, 5, basic(1, 0, 0));
    let all = command(registered(), 1, OutAction::Reserve, 7, basic(2, 0, 0));
    vec![
        ("register", registered()),
        ("register-transport-ids", with_ids),
        ("reserve-release", command(reserved(), 0, OutAction::Release, 5, basic(1, 0, 0))),
        ("reserve-preempt", command(reserved(), 1, OutAction::PreemptAndAbort, 6, basic(2, 1, 0))),
        ("reserve-clear", command(reserved(), 1, OutAction::Clear, 0, basic(2, 0, 0))),
        ("reserve-all-preempt", command(all, 0, OutAction::Preempt, 3, basic(1, 0, 0))),
        ("register-and-move", mover),
        ("unregister-holder", command(reserved(), 0, OutAction::Register, 0, basic(1, 0, 0))),
        (
            "legacy",
            Seed::new()
                .bytes([0, 0x81, 0, 0, 0, 1, 0x81, 0, 0, 0, 0, 0x82, 0, 0, 0])
                .bytes([0, 0x80, 0, 0, 0]),
        ),
        ("short-list", command(Seed::new(), 0, OutAction::Register, 0, Seed::new().bytes([0; 23]))),
    ]
}

/// Saved state as a file has it, and as bytes whose checksum is made right when bit 0 of byte 0 is
/// set.
pub fn saved(data: &[u8]) {
    let mut input = Input::new(data);
    let repair = input.bool();
    let mut bytes = input.rest().to_vec();
    if repair && bytes.len() >= 4 {
        let end = bytes.len() - 4;
        let crc = u32::from_le_bytes(iscsi::digest::crc32c(&bytes[..end]));
        bytes[end..].copy_from_slice(&crc.to_be_bytes());
    }
    let Ok((state, notes)) = Reservations::from_bytes_with(&bytes) else { return };
    let note = |of: &ItPort| notes.iter().find(|(port, _)| port == of).map(|(_, note)| note.clone());
    let again = Reservations::from_bytes_with(&state.to_bytes_with(note)).expect("what we save, we read");
    assert_eq!((&again.0, &again.1), (&state, &notes));
    assert_eq!(Reservations::from_bytes(&state.to_bytes()), Ok(state.clone()));
    for port in ports() {
        let _ = (state.key_of(&port), state.check(&port, 1, Access::Write));
    }
    let _ = state.persistent_in(InAction::ReadFullStatus, true);
}

/// Nothing saved, a reservation of each kind, and torn ones.
pub fn saved_seeds() -> Vec<(&'static str, Seed)> {
    let ports = ports();
    let initiators: Vec<_> = ports.iter().map(|port| port.initiator.clone()).collect();
    let state = |kind: u8| {
        let environment = Environment { target_ports: &[1, 2], initiators: &initiators, can_persist: true };
        let mut state = Reservations::new();
        let mut run = |nexus: usize, action, kind, list: Seed| {
            let done = state.persistent_out(
                &ports[nexus],
                nexus as u64,
                action,
                kind,
                &list.into_bytes(),
                environment,
            );
            assert!(done.is_ok(), "{done:?}");
        };
        run(0, OutAction::Register, 0, basic(0, 1, 1));
        run(1, OutAction::Register, 0, basic(0, 2, 5));
        run(0, OutAction::Reserve, kind, basic(1, 0, 0));
        state
    };
    let whole = state(1).to_bytes();
    let noted = state(1).to_bytes_with(|of| (*of == ports[1]).then(|| b"a note".to_vec()));
    vec![
        ("nothing", Seed::new().bytes([0]).bytes(Reservations::new().to_bytes())),
        ("write-exclusive", Seed::new().bytes([0]).bytes(&whole)),
        ("write-exclusive-repair", Seed::new().bytes([1]).bytes(&whole)),
        ("all-registrants", Seed::new().bytes([1]).bytes(state(8).to_bytes())),
        ("noted", Seed::new().bytes([0]).bytes(&noted)),
        ("noted-repair", Seed::new().bytes([1]).bytes(&noted)),
        ("torn", Seed::new().bytes([0]).bytes(&whole[..whole.len() / 2])),
        ("wrong-checksum", Seed::new().bytes([0]).bytes(&whole[..whole.len() - 1]).bytes([0])),
    ]
}
