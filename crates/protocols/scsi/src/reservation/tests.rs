//! Behavior of persistent reservations, as commands of the nexuses A, B and C.

use super::*;
use crate::UnitAttention as Ua;

const IDS: [&str; 3] =
    ["iqn.2000-01.com.example:a", "iqn.2000-01.com.example:b", "iqn.2000-01.com.example:c"];

fn port(n: usize) -> ItPort {
    ItPort { initiator: TransportId::iscsi_port(IDS[n], 1).unwrap(), target_port: 1 }
}

fn list(key: u64, action_key: u64, flags: u8) -> Vec<u8> {
    let mut list = key.to_be_bytes().to_vec();
    list.extend_from_slice(&action_key.to_be_bytes());
    list.extend_from_slice(&[0, 0, 0, 0, flags, 0, 0, 0]);
    list
}

struct Unit {
    state: Reservations,
    initiators: Vec<TransportId>,
}

impl Unit {
    fn new() -> Self {
        Self { state: Reservations::new(), initiators: (0..3).map(|n| port(n).initiator).collect() }
    }

    fn raw(&mut self, n: usize, action: OutAction, scope_type: u8, list: &[u8]) -> Result<Effects, Refusal> {
        let environment =
            Environment { target_ports: &[1, 2], initiators: &self.initiators, can_persist: true };
        self.state.persistent_out(&port(n), n as u64, action, scope_type, list, environment)
    }

    fn out(
        &mut self,
        n: usize,
        action: OutAction,
        kind: u8,
        key: u64,
        sa_key: u64,
    ) -> Result<Effects, Refusal> {
        self.raw(n, action, kind, &list(key, sa_key, 0))
    }

    fn register(&mut self, n: usize, key: u64) {
        self.out(n, OutAction::RegisterAndIgnore, 0, 0, key).unwrap();
    }

    fn may(&self, n: usize, access: Access) -> bool {
        self.state.check(&port(n), n as u64, access).is_ok()
    }
}

#[test]
fn an_unregistered_nexus_registers_with_key_zero_only() {
    let mut unit = Unit::new();
    assert_eq!(unit.out(0, OutAction::Register, 0, 7, 1), Err(Refusal::Conflict));
    unit.out(0, OutAction::Register, 0, 0, 1).unwrap();
    assert_eq!(unit.out(0, OutAction::Register, 0, 2, 3), Err(Refusal::Conflict));
    unit.out(0, OutAction::Register, 0, 1, 3).unwrap();
    assert_eq!(unit.state.key_of(&port(0)), Some(3));
    unit.out(0, OutAction::Register, 0, 3, 0).unwrap();
    assert!(unit.state.is_empty());
    assert_eq!(unit.state.generation(), 3);
}

#[test]
fn dropping_what_was_never_registered_does_nothing() {
    let mut unit = Unit::new();
    unit.out(0, OutAction::Register, 0, 0, 0).unwrap();
    assert!(unit.state.is_empty());
    assert_eq!(unit.state.generation(), 0);
}

#[test]
fn only_registrants_with_their_key_reserve_and_only_one_wins() {
    let mut unit = Unit::new();
    assert_eq!(unit.out(0, OutAction::Reserve, 1, 0, 0), Err(Refusal::Conflict));
    unit.register(0, 1);
    unit.register(1, 2);
    assert_eq!(unit.out(0, OutAction::Reserve, 1, 9, 0), Err(Refusal::Conflict));
    assert_eq!(unit.out(0, OutAction::Reserve, 0x11, 1, 0), Err(Refusal::InvalidFieldInCdb(2)));
    assert_eq!(unit.out(0, OutAction::Reserve, 2, 1, 0), Err(Refusal::InvalidFieldInCdb(2)));
    let generation = unit.state.generation();
    unit.out(0, OutAction::Reserve, 1, 1, 0).unwrap();
    unit.out(0, OutAction::Reserve, 1, 1, 0).unwrap();
    assert_eq!(unit.out(0, OutAction::Reserve, 3, 1, 0), Err(Refusal::Conflict));
    assert_eq!(unit.out(1, OutAction::Reserve, 1, 2, 0), Err(Refusal::Conflict));
    assert_eq!(unit.state.generation(), generation);
}

/// Type; registrants may read, may write; strangers may read, may write.
const RIGHTS: [(ReservationType, [bool; 4]); 6] = [
    (ReservationType::WriteExclusive, [true, false, true, false]),
    (ReservationType::ExclusiveAccess, [false, false, false, false]),
    (ReservationType::WriteExclusiveRegistrantsOnly, [true, true, true, false]),
    (ReservationType::ExclusiveAccessRegistrantsOnly, [true, true, false, false]),
    (ReservationType::WriteExclusiveAllRegistrants, [true, true, true, false]),
    (ReservationType::ExclusiveAccessAllRegistrants, [true, true, false, false]),
];

#[test]
fn each_type_admits_whom_the_table_admits() {
    for (kind, rights) in RIGHTS {
        let mut unit = Unit::new();
        unit.register(0, 1);
        unit.register(1, 2);
        unit.out(0, OutAction::Reserve, kind as u8, 1, 0).unwrap();
        assert!(unit.may(0, Access::Read) && unit.may(0, Access::Write), "{kind:?}");
        let seen = [(1, Access::Read), (1, Access::Write), (2, Access::Read), (2, Access::Write)]
            .map(|(n, a)| unit.may(n, a));
        assert_eq!(seen, rights, "{kind:?}");
        for n in 0..3 {
            assert!(unit.may(n, Access::Always) && unit.may(n, Access::Status));
            assert!(unit.may(n, Access::PersistentIn));
            let denied = !unit.may(n, Access::Read) || !unit.may(n, Access::Write);
            assert_eq!(unit.state.concerns(&port(n), n as u64), denied, "{kind:?} {n}");
        }
    }
}

#[test]
fn release_tells_the_other_registrants_of_a_registrants_type() {
    for (kind, _) in RIGHTS {
        let mut unit = Unit::new();
        unit.register(0, 1);
        unit.register(1, 2);
        unit.out(0, OutAction::Reserve, kind as u8, 1, 0).unwrap();
        let other = if kind as u8 == 1 { 3 } else { 1 };
        assert_eq!(unit.out(0, OutAction::Release, other, 1, 0), Err(Refusal::InvalidRelease));
        let effects = unit.out(0, OutAction::Release, kind as u8, 1, 0).unwrap();
        let told = if kind.admits_registrants() { vec![(port(1), Ua::ReservationsReleased)] } else { vec![] };
        assert_eq!(effects.attentions, told, "{kind:?}");
        assert_eq!(unit.state.reservation_type(), None);
    }
}

#[test]
fn a_registrant_that_holds_nothing_releases_nothing() {
    let mut unit = Unit::new();
    unit.register(0, 1);
    unit.register(1, 2);
    unit.out(0, OutAction::Reserve, 3, 1, 0).unwrap();
    unit.out(1, OutAction::Release, 3, 2, 0).unwrap();
    assert_eq!(unit.state.reservation_type(), Some(ReservationType::ExclusiveAccess));
}

#[test]
fn the_holder_that_unregisters_takes_its_reservation_along() {
    let mut unit = Unit::new();
    unit.register(0, 1);
    unit.register(1, 2);
    unit.out(0, OutAction::Reserve, 5, 1, 0).unwrap();
    let effects = unit.out(0, OutAction::Register, 0, 1, 0).unwrap();
    assert_eq!(effects.attentions, [(port(1), Ua::ReservationsReleased)]);
    assert_eq!(unit.state.reservation_type(), None);
}

#[test]
fn an_all_registrants_reservation_ends_with_its_last_registrant() {
    let mut unit = Unit::new();
    unit.register(0, 1);
    unit.register(1, 2);
    unit.out(0, OutAction::Reserve, 7, 1, 0).unwrap();
    unit.out(0, OutAction::Register, 0, 1, 0).unwrap();
    assert_eq!(unit.state.reservation_type(), Some(ReservationType::WriteExclusiveAllRegistrants));
    unit.out(1, OutAction::Register, 0, 2, 0).unwrap();
    assert_eq!(unit.state.reservation_type(), None);
}

#[test]
fn clear_drops_everything_and_tells_everybody_else() {
    let mut unit = Unit::new();
    unit.register(0, 1);
    unit.register(1, 2);
    unit.out(0, OutAction::Reserve, 3, 1, 0).unwrap();
    let effects = unit.out(1, OutAction::Clear, 0, 2, 0).unwrap();
    assert_eq!(effects.attentions, [(port(0), Ua::ReservationsPreempted)]);
    assert!(unit.state.is_empty());
    assert_eq!(unit.state.generation(), 3);
}

#[test]
fn preempting_a_registration_leaves_the_reservation_alone() {
    let mut unit = Unit::new();
    for (n, key) in [(0, 1), (1, 2), (2, 3)] {
        unit.register(n, key);
    }
    unit.out(0, OutAction::Reserve, 3, 1, 0).unwrap();
    let effects = unit.out(1, OutAction::Preempt, 3, 2, 3).unwrap();
    assert_eq!(effects.attentions, [(port(2), Ua::RegistrationsPreempted)]);
    assert_eq!(effects.abort, []);
    assert_eq!(unit.state.key_of(&port(2)), None);
    assert!(unit.may(0, Access::Write) && !unit.may(1, Access::Read));
    assert_eq!(unit.out(1, OutAction::Preempt, 3, 2, 99), Err(Refusal::Conflict));
    assert_eq!(unit.out(1, OutAction::Preempt, 3, 2, 0), Err(Refusal::InvalidFieldInParameterList(8)));
}

#[test]
fn preempting_the_holder_takes_the_reservation_and_may_change_its_type() {
    let mut unit = Unit::new();
    for (n, key) in [(0, 1), (1, 2), (2, 3)] {
        unit.register(n, key);
    }
    unit.out(0, OutAction::Reserve, 1, 1, 0).unwrap();
    let effects = unit.out(1, OutAction::PreemptAndAbort, 3, 2, 1).unwrap();
    assert_eq!(
        effects.attentions,
        [(port(0), Ua::RegistrationsPreempted), (port(2), Ua::ReservationsReleased)]
    );
    assert_eq!(effects.abort, [port(0)]);
    assert_eq!(unit.state.reservation_type(), Some(ReservationType::ExclusiveAccess));
    assert!(unit.may(1, Access::Write) && !unit.may(0, Access::Read) && !unit.may(2, Access::Read));
}

#[test]
fn preempting_all_registrants_needs_key_zero() {
    let mut unit = Unit::new();
    for (n, key) in [(0, 1), (1, 2), (2, 3)] {
        unit.register(n, key);
    }
    unit.out(0, OutAction::Reserve, 8, 1, 0).unwrap();
    unit.out(1, OutAction::Preempt, 1, 2, 3).unwrap();
    assert_eq!(unit.state.reservation_type(), Some(ReservationType::ExclusiveAccessAllRegistrants));
    let effects = unit.out(1, OutAction::Preempt, 1, 2, 0).unwrap();
    assert_eq!(effects.attentions, [(port(0), Ua::RegistrationsPreempted)]);
    assert_eq!(unit.state.reservation_type(), Some(ReservationType::WriteExclusive));
    assert!(unit.may(1, Access::Write) && !unit.may(0, Access::Write));
}

#[test]
fn one_may_preempt_ones_own_registration() {
    let mut unit = Unit::new();
    unit.register(0, 1);
    let effects = unit.out(0, OutAction::Preempt, 1, 1, 1).unwrap();
    assert_eq!(effects.attentions, []);
    assert!(unit.state.is_empty());
}

fn move_list(key: u64, action_key: u64, flags: u8, to: &TransportId) -> Vec<u8> {
    let mut list = key.to_be_bytes().to_vec();
    list.extend_from_slice(&action_key.to_be_bytes());
    list.extend_from_slice(&[0, flags, 0, 1]);
    list.extend_from_slice(&(to.bytes().len() as u32).to_be_bytes());
    list.extend_from_slice(to.bytes());
    list
}

#[test]
fn register_and_move_hands_the_reservation_on() {
    let mut unit = Unit::new();
    unit.register(0, 1);
    let to = move_list(1, 5, 0x02, &port(1).initiator);
    assert_eq!(unit.raw(0, OutAction::RegisterAndMove, 0, &to), Err(Refusal::InvalidFieldInCdb(1)));
    unit.out(0, OutAction::Reserve, 3, 1, 0).unwrap();
    let own = move_list(1, 5, 0, &port(0).initiator);
    assert_eq!(
        unit.raw(0, OutAction::RegisterAndMove, 0, &own),
        Err(Refusal::InvalidFieldInParameterList(24))
    );
    // Nor is another target port of the same initiator port.
    let own = [&own[..18], &[0, 2], &own[20..]].concat();
    assert_eq!(
        unit.raw(0, OutAction::RegisterAndMove, 0, &own),
        Err(Refusal::InvalidFieldInParameterList(24))
    );
    unit.raw(0, OutAction::RegisterAndMove, 0, &to).unwrap();
    assert_eq!(unit.state.key_of(&port(0)), None);
    assert_eq!(unit.state.key_of(&port(1)), Some(5));
    assert!(unit.may(1, Access::Write) && !unit.may(0, Access::Read));
}

#[test]
fn register_and_move_is_for_the_single_holder_only() {
    let mut unit = Unit::new();
    unit.register(0, 1);
    unit.register(1, 2);
    unit.out(0, OutAction::Reserve, 7, 1, 0).unwrap();
    let to = move_list(1, 5, 0, &port(2).initiator);
    assert_eq!(unit.raw(0, OutAction::RegisterAndMove, 0, &to), Err(Refusal::Conflict));
    unit.out(0, OutAction::Release, 7, 1, 0).unwrap();
    unit.out(0, OutAction::Reserve, 5, 1, 0).unwrap();
    let to = move_list(2, 5, 0, &port(2).initiator);
    assert_eq!(unit.raw(1, OutAction::RegisterAndMove, 0, &to), Err(Refusal::Conflict));
}

fn spec_i_pt(key: u64, ids: &[&TransportId], flags: u8) -> Vec<u8> {
    let mut bytes = list(0, key, 0x08 | flags);
    let length: usize = ids.iter().map(|id| id.bytes().len()).sum();
    bytes.extend_from_slice(&(length as u32).to_be_bytes());
    for id in ids {
        bytes.extend_from_slice(id.bytes());
    }
    bytes
}

#[test]
fn spec_i_pt_registers_others_or_nobody() {
    let mut unit = Unit::new();
    let (b, c) = (port(1).initiator, port(2).initiator);
    unit.register(2, 9);
    let both = spec_i_pt(4, &[&b, &c], 0);
    assert_eq!(unit.raw(0, OutAction::Register, 0, &both), Err(Refusal::InvalidFieldInParameterList(24)));
    assert_eq!(unit.state.key_of(&port(0)), None);
    // Without a key there is nothing to register.
    unit.raw(0, OutAction::Register, 0, &spec_i_pt(0, &[&b, &c], 0)).unwrap();
    assert_eq!(unit.state.key_of(&port(1)), None);
    unit.out(2, OutAction::Clear, 0, 9, 0).unwrap();
    unit.raw(0, OutAction::Register, 0, &both).unwrap();
    assert_eq!([0, 1, 2].map(|n| unit.state.key_of(&port(n))), [Some(4); 3]);
    assert_eq!(
        unit.raw(0, OutAction::RegisterAndIgnore, 0, &both),
        Err(Refusal::InvalidFieldInParameterList(20))
    );
}

#[test]
fn a_device_name_stands_for_the_ports_of_it_that_are_known() {
    let mut unit = Unit::new();
    let device = TransportId::iscsi_device(IDS[1]).unwrap();
    let stranger = TransportId::iscsi_device("iqn.2000-01.com.example:nobody").unwrap();
    unit.raw(0, OutAction::Register, 0, &spec_i_pt(4, &[&device], 0)).unwrap();
    assert_eq!(unit.state.key_of(&port(1)), Some(4));
    assert_eq!(
        unit.raw(2, OutAction::Register, 0, &spec_i_pt(4, &[&stranger], 0)),
        Err(Refusal::InvalidFieldInParameterList(28))
    );
}

#[test]
fn all_tg_pt_registers_through_every_target_port() {
    let mut unit = Unit::new();
    unit.raw(0, OutAction::Register, 0, &list(0, 4, 0x04)).unwrap();
    let second = ItPort { target_port: 2, ..port(0) };
    assert_eq!(unit.state.key_of(&second), Some(4));
    let status = unit.state.persistent_in(InAction::ReadFullStatus, true);
    // A descriptor for each nexus.
    assert_eq!((status[8 + 12], status[8 + 19]), (0, 1));
    unit.raw(0, OutAction::Register, 0, &list(4, 0, 0x04)).unwrap();
    assert!(unit.state.is_empty());
}

#[test]
fn all_tg_pt_is_one_registration_through_each_target_port() {
    let mut unit = Unit::new();
    let second = ItPort { target_port: 2, ..port(0) };
    let keys = |unit: &Unit| [&port(0), &second].map(|port| unit.state.key_of(port));
    unit.raw(0, OutAction::Register, 0, &list(0, 4, 0x04)).unwrap();
    unit.raw(0, OutAction::Register, 0, &list(4, 0, 0)).unwrap();
    // Through the second port the command lacks the key.
    unit.raw(0, OutAction::Register, 0, &list(0, 5, 0x04)).unwrap();
    assert_eq!(keys(&unit), [Some(5), Some(4)]);
    unit.raw(0, OutAction::Register, 0, &list(5, 0, 0x04)).unwrap();
    assert_eq!(keys(&unit), [None, Some(4)]);
    unit.raw(0, OutAction::RegisterAndIgnore, 0, &list(0, 6, 0x04)).unwrap();
    assert_eq!(keys(&unit), [Some(6); 2]);
    unit.raw(0, OutAction::RegisterAndIgnore, 0, &list(0, 7, 0)).unwrap();
    unit.raw(0, OutAction::RegisterAndIgnore, 0, &list(0, 0, 0x04)).unwrap();
    assert!(unit.state.is_empty());
}

#[test]
fn parameter_lists_of_the_wrong_length_are_refused() {
    let mut unit = Unit::new();
    for action in OutAction::ALL {
        for bytes in 0..BASIC {
            let short = &list(0, 1, 0)[..bytes];
            assert_eq!(
                unit.raw(0, action, 0, short),
                Err(Refusal::ParameterListLength),
                "{action:?} {bytes}"
            );
        }
        let mut long = list(0, 1, 0);
        long.push(0);
        assert_eq!(unit.raw(0, action, 0, &long), Err(Refusal::ParameterListLength), "{action:?}");
    }
    let full = spec_i_pt(4, &[&port(1).initiator], 0);
    for cut in BASIC..full.len() {
        assert_eq!(unit.raw(0, OutAction::Register, 0, &full[..cut]), Err(Refusal::ParameterListLength));
    }
    assert!(unit.state.is_empty());
}
const BASIC: usize = 24;

#[test]
fn registrations_are_bounded() {
    let mut unit = Unit::new();
    let environment = Environment { target_ports: &[1], initiators: &[], can_persist: false };
    for n in 0..=Reservations::MAX_REGISTRATIONS as u64 {
        let one = ItPort { initiator: TransportId::iscsi_port(IDS[0], n).unwrap(), target_port: 1 };
        let result = unit.state.persistent_out(&one, n, OutAction::Register, 0, &list(0, 1, 0), environment);
        let full = n == Reservations::MAX_REGISTRATIONS as u64;
        assert_eq!(result.err(), full.then_some(Refusal::InsufficientResources));
    }
}

#[test]
fn reserve_6_keeps_others_out_until_release_reset_or_nexus_loss() {
    let mut unit = Unit::new();
    let end: [fn(&mut Reservations); 3] = [
        |state| state.release_legacy(&port(0), 0).unwrap(),
        |state| assert!(state.reset()),
        |state| assert!(state.nexus_lost(0)),
    ];
    for end in end {
        unit.state.reserve_legacy(&port(0), 0).unwrap();
        unit.state.reserve_legacy(&port(0), 0).unwrap();
        assert_eq!(unit.state.reserve_legacy(&port(1), 1), Err(Conflict));
        assert!(unit.may(0, Access::Write) && unit.may(1, Access::Always));
        for access in
            [Access::Read, Access::Write, Access::Status, Access::PersistentIn, Access::PersistentOut]
        {
            assert!(!unit.may(1, access), "{access:?}");
        }
        assert!(!unit.may(0, Access::PersistentIn));
        unit.state.release_legacy(&port(1), 1).unwrap();
        assert!(!unit.may(1, Access::Read));
        end(&mut unit.state);
        assert!(unit.may(1, Access::Write));
    }
}

#[test]
fn reserve_6_from_a_persistent_holder_is_good_without_effect() {
    let mut unit = Unit::new();
    unit.register(0, 1);
    assert_eq!(unit.state.reserve_legacy(&port(0), 0), Err(Conflict));
    unit.out(0, OutAction::Reserve, 3, 1, 0).unwrap();
    let before = unit.state.clone();
    unit.state.reserve_legacy(&port(0), 0).unwrap();
    unit.state.release_legacy(&port(0), 0).unwrap();
    assert_eq!(unit.state.reserve_legacy(&port(1), 1), Err(Conflict));
    assert_eq!(unit.state, before);
}

#[test]
fn persistent_reserve_in_reports_keys_reservation_and_holders() {
    let mut unit = Unit::new();
    unit.register(0, 0x0102_0304_0506_0708);
    unit.register(1, 2);
    let keys = unit.state.persistent_in(InAction::ReadKeys, true);
    assert_eq!(keys[..8], [0, 0, 0, 2, 0, 0, 0, 16]);
    assert_eq!(keys[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(unit.state.persistent_in(InAction::ReadReservation, true), [0, 0, 0, 2, 0, 0, 0, 0]);
    unit.out(1, OutAction::Reserve, 6, 2, 0).unwrap();
    let reservation = unit.state.persistent_in(InAction::ReadReservation, true);
    assert_eq!(reservation[4..], [0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 6, 0, 0]);
    let status = unit.state.persistent_in(InAction::ReadFullStatus, true);
    let each = 24 + port(0).initiator.bytes().len();
    assert_eq!(status.len(), 8 + 2 * each);
    assert_eq!((status[8 + 12], status[8 + 13]), (0, 0));
    assert_eq!((status[8 + each + 12], status[8 + each + 13]), (1, 6));
    let caps = unit.state.persistent_in(InAction::ReportCapabilities, true);
    assert_eq!(caps, [0, 8, 0x1d, 0xb0, 0xea, 0x01, 0, 0]);
}

#[test]
fn aptpl_state_survives_and_the_rest_does_not() {
    let mut unit = Unit::new();
    unit.register(0, 1);
    unit.out(0, OutAction::Reserve, 3, 1, 0).unwrap();
    assert_eq!(Reservations::from_bytes(&unit.state.to_bytes()).unwrap(), Reservations::new());
    for (kind, _) in RIGHTS {
        let mut unit = Unit::new();
        let effects = unit.raw(0, OutAction::Register, 0, &list(0, 1, 0x01)).unwrap();
        assert!(effects.persist);
        assert!(unit.raw(1, OutAction::Register, 0, &list(0, 2, 0x05)).unwrap().persist);
        assert!(unit.out(1, OutAction::Reserve, kind as u8, 2, 0).unwrap().persist);
        assert!(!unit.out(1, OutAction::Reserve, kind as u8, 2, 0).unwrap().persist);
        let mut again = Reservations::from_bytes(&unit.state.to_bytes()).unwrap();
        assert_eq!(again.generation(), 0);
        again.generation = unit.state.generation;
        assert_eq!(again, unit.state);
        assert!(unit.raw(0, OutAction::Register, 0, &list(1, 1, 0)).unwrap().persist);
        assert!(Reservations::from_bytes(&unit.state.to_bytes()).unwrap().is_empty());
    }
}

#[test]
fn aptpl_without_a_place_to_keep_it_is_refused() {
    let environment = Environment { target_ports: &[1], initiators: &[], can_persist: false };
    let mut state = Reservations::new();
    let result = state.persistent_out(&port(0), 0, OutAction::Register, 0, &list(0, 1, 1), environment);
    assert_eq!(result, Err(Refusal::InvalidFieldInParameterList(20)));
}

#[test]
fn notes_on_registrations_are_kept_with_them() {
    let mut unit = Unit::new();
    unit.raw(0, OutAction::Register, 0, &list(0, 1, 0x01)).unwrap();
    unit.raw(1, OutAction::Register, 0, &list(0, 2, 0x01)).unwrap();
    let note = |of: &ItPort| (*of == port(1)).then(|| b"a note".to_vec());
    let bytes = unit.state.to_bytes_with(note);
    let (state, notes) = Reservations::from_bytes_with(&bytes).unwrap();
    assert_eq!(notes, [(port(1), b"a note".to_vec())]);
    assert_eq!(state, Reservations::from_bytes(&unit.state.to_bytes()).unwrap());
    assert_eq!(state, Reservations::from_bytes(&bytes).unwrap());
    // Without notes the bytes are those of the first version.
    assert_eq!(unit.state.to_bytes_with(|_| None), unit.state.to_bytes());
    assert_eq!(Reservations::from_bytes_with(&unit.state.to_bytes()).unwrap().1, []);
    let long = |_: &ItPort| Some(vec![0; Reservations::MAX_NOTE_LEN + 1]);
    assert_eq!(unit.state.to_bytes_with(long), unit.state.to_bytes());
}

#[test]
fn saved_state_that_was_torn_or_altered_is_refused() {
    let mut unit = Unit::new();
    unit.raw(0, OutAction::Register, 0, &list(0, 1, 0x01)).unwrap();
    for bytes in [unit.state.to_bytes(), unit.state.to_bytes_with(|_| Some(b"a note".to_vec()))] {
        assert!(bytes.len() <= Reservations::MAX_SAVED_LEN);
        for cut in 0..bytes.len() {
            assert!(Reservations::from_bytes(&bytes[..cut]).is_err());
        }
        for at in 0..bytes.len() {
            let mut bent = bytes.clone();
            bent[at] ^= 0x10;
            assert!(Reservations::from_bytes(&bent).is_err());
        }
    }
}
