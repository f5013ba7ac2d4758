//! Reservations of a unit: conflicts, unit attentions, and the state after a restart.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Weak};

use device::{HandedOver, Reload, Tasks};
use runtime::Pooled;
use scsi::AdditionalSense as A;
use scsi::reservation::Reservations;

use super::*;
use crate::unit::{AbortTasks, FilePersist, Persist};

fn out_list(key: u64, action_key: u64, flags: u8) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes()].concat();
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    list
}

fn pr_out(it: &Initiator, action: u8, kind: u8, list: &[u8]) -> Ran {
    it.run_out(&[0x5f, action, kind, 0, 0, 0, 0, 0, list.len() as u8, 0], list)
}

fn register(it: &Initiator, key: u64, flags: u8) {
    pr_out(it, 6, 0, &out_list(0, key, flags)).good();
}

fn keys(it: &Initiator) -> Vec<u8> {
    it.run(&[0x5e, 0, 0, 0, 0, 0, 0, 4, 0, 0]).good()
}

#[track_caller]
fn conflicts(ran: Ran) {
    assert_eq!(ran.outcome.status, Status::ReservationConflict, "{ran:?}");
}

fn three() -> [Initiator; 3] {
    let unit = disk(options());
    [1, 2, 3].map(|id| Initiator::new(&unit, id))
}

#[test]
fn a_persistent_reservation_keeps_others_out_until_it_is_released() {
    let [a, b, c] = three();
    register(&a, 1, 0);
    register(&b, 2, 0);
    pr_out(&a, 1, 1, &out_list(1, 0, 0)).good();
    a.write(0, &[1; 512]).good();
    for it in [&b, &c] {
        assert_eq!(it.read(0, 1).good(), [1; 512]);
        conflicts(it.write(0, &[2; 512]));
        it.run(&[0; 6]).good();
        it.run(&[0x12, 0, 0, 0, 36, 0]).good();
    }
    pr_out(&a, 2, 1, &out_list(1, 0, 0)).good();
    b.write(0, &[2; 512]).good();
    // Exclusive access.
    pr_out(&a, 1, 3, &out_list(1, 0, 0)).good();
    conflicts(b.read(0, 1));
    // Nexuses without a conflict are on the fast path again.
    assert!(a.nexus.verdict().clear());
    assert!(!b.nexus.verdict().clear());
}

#[test]
fn preempting_tells_the_victim_and_hands_its_tasks_to_be_aborted() {
    #[derive(Default)]
    struct Seen(Mutex<Vec<u64>>);
    impl AbortTasks for Seen {
        fn abort(
            &self,
            nexus: Arc<ItlNexus>,
            which: Tasks,
            _except: Option<&Command>,
        ) -> Pin<Box<dyn Future<Output = usize>>> {
            assert_eq!(which, Tasks::All);
            self.0.lock().unwrap().push(nexus.nexus.id.0);
            Box::pin(std::future::ready(0))
        }
        fn count(
            &self,
            _: Arc<ItlNexus>,
            _: Tasks,
            _: Option<&Command>,
        ) -> Pin<Box<dyn Future<Output = usize>>> {
            Box::pin(std::future::ready(0))
        }
    }
    let [a, b, _] = three();
    let seen = Arc::new(Seen::default());
    a.unit.nexuses().set_aborter(seen.clone());
    register(&a, 1, 0);
    register(&b, 2, 0);
    pr_out(&a, 1, 3, &out_list(1, 0, 0)).good();
    pr_out(&b, 5, 3, &out_list(2, 1, 0)).good();
    assert_eq!(*seen.0.lock().unwrap(), [1]);
    a.run(&[0; 6]).fails(SenseKey::UnitAttention, A::REGISTRATIONS_PREEMPTED);
    conflicts(a.read(0, 1));
    b.read(0, 1).good();
    assert_eq!(keys(&a)[4..8], [0, 0, 0, 8]);
}

#[test]
fn reserve_6_conflicts_until_its_nexus_is_gone() {
    let [a, b, _] = three();
    let reserve = [0x16, 0, 0, 0, 0, 0];
    a.run(&reserve).good();
    conflicts(b.run(&reserve));
    conflicts(b.run(&[0; 6]));
    conflicts(b.read(0, 1));
    conflicts(a.run(&[0x5e, 0, 0, 0, 0, 0, 0, 4, 0, 0]));
    b.run(&[0x12, 0, 0, 0, 36, 0]).good();
    b.run(&[0x17, 0, 0, 0, 0, 0]).good();
    conflicts(b.read(0, 1));
    a.unit.detach(NexusId(1));
    b.read(0, 1).good();
    b.run(&reserve).good();
    b.unit.reset(device::ResetKind::LogicalUnit, None);
    let c = Initiator::fresh(&b.unit, 9, false);
    c.run(&[0; 6]).sense();
    c.read(0, 1).good();
}

#[test]
fn a_nexus_that_comes_back_finds_the_reservation_in_force() {
    let [a, b, _] = three();
    register(&a, 1, 0);
    pr_out(&a, 1, 3, &out_list(1, 0, 0)).good();
    a.unit.detach(NexusId(1));
    b.unit.detach(NexusId(2));
    let (a, b) = (Initiator::fresh(&a.unit, 1, false), Initiator::fresh(&b.unit, 2, false));
    a.run(&[0; 6]).sense();
    b.run(&[0; 6]).sense();
    a.read(0, 1).good();
    conflicts(b.read(0, 1));
}

#[test]
fn wrong_lists_and_fields_are_refused() {
    let [a, ..] = three();
    pr_out(&a, 0, 0, &out_list(0, 1, 0)[..20]).refused(A::PARAMETER_LIST_LENGTH_ERROR);
    a.run_out(&[0x5f, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[0; 24]).refused(A::PARAMETER_LIST_LENGTH_ERROR);
    // No storage for it.
    pr_out(&a, 0, 0, &out_list(0, 1, 1)).refused(A::INVALID_FIELD_IN_PARAMETER_LIST);
    for action in 4..0x20 {
        a.run(&[0x5e, action, 0, 0, 0, 0, 0, 4, 0, 0]).refused(A::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn aptpl_reservations_outlive_the_unit_and_others_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let file = || Some(Arc::new(FilePersist::new(directory.path().join("pr"))) as Arc<dyn Persist>);
    for (flags, survives) in [(1, true), (0, false)] {
        let options = || DiskOptions { persist: file(), ..options() };
        {
            let unit = disk(options());
            let (a, b) = (Initiator::new(&unit, 1), Initiator::new(&unit, 2));
            for it in [&a, &b] {
                pr_out(it, 6, 0, &out_list(0, it.nexus.nexus.id.0, flags)).good();
            }
            pr_out(&a, 1, 5, &out_list(1, 0, 0)).good();
        }
        let unit = disk(options());
        let (a, b, c) = (Initiator::new(&unit, 1), Initiator::new(&unit, 2), Initiator::new(&unit, 3));
        assert_eq!(keys(&c)[4..8], [0, 0, 0, if survives { 16 } else { 0 }]);
        a.write(0, &[1; 512]).good();
        b.write(0, &[1; 512]).good();
        assert_eq!(c.write(0, &[1; 512]).outcome.status == Status::ReservationConflict, survives);
        if survives {
            pr_out(&a, 3, 0, &out_list(1, 0, 0)).good();
        }
    }
}

#[test]
fn another_gateway_goes_on_with_all_reservations_and_a_daemon_alone_with_those_of_aptpl() {
    /// What the gateways of a group keep, or a daemon alone reads.
    #[derive(Clone)]
    struct Image(Arc<Mutex<Option<Vec<u8>>>>, bool);
    impl Persist for Image {
        fn save(&self, bytes: Vec<u8>) -> Pooled<std::io::Result<()>> {
            *self.0.lock().unwrap() = Some(bytes);
            Pooled::new(async { Ok(()) })
        }
        fn load(&self, max: usize) -> std::io::Result<Option<Vec<u8>>> {
            Ok(self.0.lock().unwrap().clone().inspect(|bytes| assert!(bytes.len() <= max)))
        }
        fn keeps_all(&self) -> bool {
            self.1
        }
    }
    for aptpl in [0, 1] {
        let kept = Arc::new(Mutex::new(None));
        let open = |of_group| {
            disk(DiskOptions { persist: Some(Arc::new(Image(kept.clone(), of_group))), ..options() })
        };
        let a = Initiator::new(&open(true), 1);
        register(&a, 1, aptpl);
        pr_out(&a, 1, 5, &out_list(1, 0, 0)).good();
        let held = keys(&a);
        for _ in 0..2 {
            let unit = open(true);
            let (a, b) = (Initiator::new(&unit, 1), Initiator::new(&unit, 2));
            // PRGENERATION too.
            assert_eq!(keys(&b), held);
            a.write(0, &[1; 512]).good();
            conflicts(b.write(0, &[1; 512]));
        }
        let b = Initiator::new(&open(false), 2);
        assert_eq!(keys(&b)[..8], [0, 0, 0, 0, 0, 0, 0, 8 * aptpl]);
        assert_eq!(b.write(0, &[1; 512]).outcome.status == Status::ReservationConflict, aptpl == 1);
        *kept.lock().unwrap() = Some(b"STAGPG\x00\x01cut".to_vec());
        assert!(
            DiskUnit::new(
                Arc::new(MemoryStore::new(1 << 20, false).unwrap()),
                DiskOptions { persist: Some(Arc::new(Image(kept.clone(), true))), ..options() },
                &Registry::default()
            )
            .is_err()
        );
    }
}

#[test]
fn what_cannot_be_kept_does_not_happen() {
    struct Broken(std::io::ErrorKind);
    impl Persist for Broken {
        fn save(&self, _: Vec<u8>) -> Pooled<std::io::Result<()>> {
            let error = self.0.into();
            Pooled::new(async { Err(error) })
        }
        fn load(&self, _: usize) -> std::io::Result<Option<Vec<u8>>> {
            Ok(None)
        }
    }
    for (error, key, code) in [
        (std::io::ErrorKind::StorageFull, SenseKey::HardwareError, A::INTERNAL_TARGET_FAILURE),
        (std::io::ErrorKind::NotConnected, SenseKey::NotReady, A::TARGET_PORT_IN_UNAVAILABLE_STATE),
    ] {
        let persist = Some(Arc::new(Broken(error)) as Arc<dyn Persist>);
        let it = Initiator::new(&disk(DiskOptions { persist, ..options() }), 1);
        pr_out(&it, 0, 0, &out_list(0, 1, 1)).fails(key, code);
        assert_eq!(keys(&it).len(), 8);
        register(&it, 1, 0);
        assert_eq!(keys(&it).len(), 16);
    }
}

#[test]
fn reservations_that_another_daemon_has_stored_are_in_force_and_not_overwritten() {
    /// What another daemon may write too.
    #[derive(Default)]
    struct Elsewhere {
        kept: Mutex<Option<Vec<u8>>>,
        epoch: AtomicU64,
        told: Mutex<Option<Weak<dyn Reload>>>,
        /// Another daemon writes this while the next state is being saved.
        meanwhile: Mutex<Option<Vec<u8>>>,
    }
    impl Elsewhere {
        fn replaced(&self, bytes: Vec<u8>) {
            let told = self.told.lock().unwrap().as_ref().and_then(Weak::upgrade).unwrap();
            told.reload(Some(&bytes)).unwrap();
            self.epoch.fetch_add(1, Ordering::AcqRel);
            *self.kept.lock().unwrap() = Some(bytes);
        }
    }
    impl Persist for Elsewhere {
        fn save(&self, bytes: Vec<u8>) -> Pooled<std::io::Result<()>> {
            *self.kept.lock().unwrap() = Some(bytes);
            Pooled::new(async { Ok(()) })
        }
        fn load(&self, _: usize) -> std::io::Result<Option<Vec<u8>>> {
            Ok(None)
        }
        fn epoch(&self) -> u64 {
            self.epoch.load(Ordering::Acquire)
        }
        fn save_since(&self, epoch: u64, bytes: Vec<u8>) -> Pooled<std::io::Result<()>> {
            self.meanwhile.lock().unwrap().take().into_iter().for_each(|bytes| self.replaced(bytes));
            match self.epoch() == epoch {
                true => self.save(bytes),
                false => Pooled::new(async { Err(std::io::ErrorKind::Other.into()) }),
            }
        }
        fn on_replaced(&self, reload: Weak<dyn Reload>) {
            *self.told.lock().unwrap() = Some(reload);
        }
    }
    let open = || {
        let persist = Arc::new(Elsewhere::default());
        (disk(DiskOptions { persist: Some(persist.clone() as Arc<dyn Persist>), ..options() }), persist)
    };
    let (other, others) = open();
    let b = Initiator::new(&other, 2);
    register(&b, 2, 1);
    pr_out(&b, 1, 1, &out_list(2, 0, 0)).good();
    let of_b = others.kept.lock().unwrap().clone().unwrap();

    let (unit, persist) = open();
    let (a, b) = (Initiator::new(&unit, 1), Initiator::new(&unit, 2));
    register(&a, 1, 1);
    a.write(0, &[1; 512]).good();
    persist.replaced(of_b.clone());
    a.run(&[0; 6]).fails(SenseKey::UnitAttention, A::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    conflicts(a.write(0, &[1; 512]));
    b.run(&[0; 6]).fails(SenseKey::UnitAttention, A::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    b.write(0, &[1; 512]).good();
    assert_eq!(keys(&a)[8..], 2u64.to_be_bytes());

    // A change that was made of the state before is refused, whether or not it would be kept.
    *persist.meanwhile.lock().unwrap() = Some(of_b.clone());
    pr_out(&a, 0, 0, &out_list(0, 1, 1)).fails(SenseKey::HardwareError, A::INTERNAL_TARGET_FAILURE);
    assert_eq!(*persist.kept.lock().unwrap(), Some(of_b));
    a.run(&[0; 6]).fails(SenseKey::UnitAttention, A::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    assert_eq!(keys(&a)[8..], 2u64.to_be_bytes());
}

/// While a configuration is applied some sessions still see the old unit.
#[test]
fn a_change_of_reservations_while_the_unit_is_replaced_holds_on_both() {
    type Hook = Box<dyn FnOnce() + Send>;
    /// Does something else while the first state is saved.
    #[derive(Default)]
    struct Meanwhile(Mutex<Option<Hook>>);
    impl Persist for Meanwhile {
        fn save(&self, _: Vec<u8>) -> Pooled<std::io::Result<()>> {
            self.0.lock().unwrap().take().into_iter().for_each(|hook| hook());
            Pooled::new(async { Ok(()) })
        }
        fn load(&self, _: usize) -> std::io::Result<Option<Vec<u8>>> {
            Ok(None)
        }
    }
    let persist = Arc::new(Meanwhile::default());
    let [old, new] = [(); 2]
        .map(|()| disk(DiskOptions { persist: Some(persist.clone() as Arc<dyn Persist>), ..options() }));
    let units = (old.clone(), new.clone());
    *persist.0.lock().unwrap() = Some(Box::new(move || units.1.nexuses().inherit(units.0.nexuses())));
    let a = Initiator::new(&old, 1);
    register(&a, 1, 1);
    let b = Initiator::new(&new, 2);
    assert_eq!(keys(&b).len(), 16, "the registration that was being saved");
    register(&b, 2, 1);
    pr_out(&b, 1, 1, &out_list(2, 0, 0)).good();
    conflicts(a.write(0, &[1; 512]));
    pr_out(&a, 4, 1, &out_list(1, 2, 0)).good();
    a.write(0, &[1; 512]).good();
    b.run(&[0; 6]).fails(SenseKey::UnitAttention, A::REGISTRATIONS_PREEMPTED);
    conflicts(b.write(0, &[2; 512]));
}

#[test]
fn a_unit_whose_kept_reservations_are_torn_does_not_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pr");
    std::fs::write(&path, b"STAGPR\0\x01torn").unwrap();
    let options = DiskOptions { persist: Some(Arc::new(FilePersist::new(&path))), ..options() };
    let store = Arc::new(MemoryStore::new(1 << 20, true).unwrap());
    assert!(DiskUnit::new(store, options, &Registry::new()).is_err());
}

#[test]
fn all_tg_pt_does_not_register_another_principal_of_the_same_name() {
    let unit = disk(options());
    unit.nexuses().set_target_ports(&[1, 2, 3]);
    let nexus = |id, target_port, user: &str| {
        let principal = Some(device::Principal { user: user.into(), credential: [0; 32] });
        Nexus { id: NexusId(id), target_port, principal, ..nexus(1) }
    };
    let alice = Initiator::with(&unit, nexus(1, 1, "alice"), false).settled();
    let second = Initiator::with(&unit, nexus(2, 2, "alice"), false).settled();
    let bob = Initiator::with(&unit, nexus(3, 3, "bob"), false).settled();
    register(&alice, 5, 4);
    pr_out(&alice, 1, 6, &out_list(5, 0, 0)).good();
    second.write(0, &[1; 512]).good();
    conflicts(bob.write(0, &[2; 512]));
    let owner = |of: &Initiator| unit.nexuses().owner(&of.nexus.nexus).map(|owner| owner.user);
    assert_eq!(
        [owner(&alice), owner(&second), owner(&bob)],
        [Some("alice".into()), Some("alice".into()), None]
    );
    // A removed registration has no owner.
    register(&alice, 0, 4);
    assert_eq!(owner(&alice), None);
}

#[test]
fn owners_are_kept_and_handed_over_with_their_registrations() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pr");
    let unit = || {
        let options = DiskOptions { persist: Some(Arc::new(FilePersist::new(&path))), ..options() };
        disk(options)
    };
    let alice = device::Principal { user: "alice".into(), credential: [7; 32] };
    let of =
        |id: u64, principal: Option<&device::Principal>| Nexus { principal: principal.cloned(), ..nexus(id) };
    let owner = |unit: &Arc<DiskUnit>, id| unit.nexuses().owner(&of(id, None));
    let first = unit();
    let her = Initiator::with(&first, of(1, Some(&alice)), false).settled();
    let open = Initiator::with(&first, of(2, None), false).settled();
    for it in [&her, &open] {
        pr_out(it, 6, 0, &out_list(0, it.nexus.nexus.id.0, 1)).good();
    }
    pr_out(&her, 1, 1, &out_list(1, 0, 0)).good();
    assert_eq!((owner(&first, 1), owner(&first, 2)), (Some(alice.clone()), None));
    // A restart.
    let second = unit();
    assert_eq!((owner(&second, 1), owner(&second, 2)), (Some(alice.clone()), None));
    // A takeover, also of what is not on a medium.
    let told = second.nexuses().hand_over().unwrap();
    let third = disk(options());
    third.nexuses().take_over(&told).unwrap();
    assert_eq!((owner(&third, 1), owner(&third, 2)), (Some(alice.clone()), None));
    assert_eq!(third.nexuses().hand_over(), Some(told.clone()));
    // A takeover from a version without owners.
    let fourth = disk(options());
    fourth.nexuses().take_over(&HandedOver { owned: Vec::new(), ..told.clone() }).unwrap();
    assert_eq!(owner(&fourth, 1), None);
    let names_nobody = |_: &_| Some(vec![7; 32]);
    let owned = Reservations::from_bytes(&told.saved).unwrap().to_bytes_with(names_nobody);
    assert!(fourth.nexuses().take_over(&HandedOver { owned, ..told.clone() }).is_err());
    // A file of such a version: its reservations hold, and the first who comes is the owner.
    std::fs::write(&path, &told.saved).unwrap();
    let fifth = unit();
    assert_eq!(owner(&fifth, 1), None);
    let other = Initiator::with(&fifth, of(3, None), false).settled();
    conflicts(other.write(0, &[1; 512]));
    let bob = device::Principal { user: "bob".into(), credential: [8; 32] };
    let _bob = Initiator::with(&fifth, of(1, Some(&bob)), false);
    assert_eq!(owner(&fifth, 1), Some(bob));
}
