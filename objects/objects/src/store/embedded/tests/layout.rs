//! Contents of the medium: older layouts and later ones, and records in wrong places.

use std::sync::Arc;

use crate::store::embedded::database::{Database, LAYOUT, Meta};
use crate::store::embedded::layers::Layer;
use crate::store::embedded::record::{META, USER, key, moved};
use crate::store::embedded::testing::{P, Rig, change, describe, now, object, sound};
use crate::store::{Commit, Error, FIRST_ID, ObjectStore, Step};

/// Writes the records of a closed store as `layout` has them.
fn rewrite(rig: &Rig, layout: u64) {
    let database = Database::new(Box::new(rig.disk.clone()), 0);
    let (meta, base, _) = database.open().unwrap();
    let (meta, table) = (meta.unwrap(), base.0.unwrap());
    let mut records = Layer::default();
    for pair in table.range::<&[u8; 25]>(..).unwrap() {
        let (at, value) = pair.unwrap();
        let (at, value) = (*at.value(), value.value());
        if at != key(META, 0, 0, 0) {
            records.insert(at, Some(Arc::from(moved(&at, &[], value))));
        }
    }
    assert!(records.living().count() > 20);
    let records = if layout < LAYOUT { records } else { Layer::default() };
    database.write(&records, &Meta { layout, ..meta }).unwrap();
}

/// A store with something of everything.
fn filled(rig: &Rig) -> String {
    let store = rig.open();
    let mut random = backing::model::Random::new(7);
    now(store.apply(Step::CreatePartition(P).into(), Commit::Durable)).unwrap();
    for _ in 0..400 {
        let raw = (
            random.below(256) as u8,
            random.below(256) as u8,
            random.below(1 << 32) as u32,
            random.below(1 << 32) as u32,
        );
        // A change that does not fit the store's contents is refused.
        let _ = now(store.apply(change(&[raw]), Commit::Relaxed));
    }
    let found = describe(&store);
    for _ in 0..2 {
        now(store.checkpoint()).unwrap();
    }
    found
}

#[test]
fn a_store_of_layout_1_is_laid_out_anew_when_it_is_opened() {
    let rig = Rig::new(2000, 1 << 20);
    let before = filled(&rig);
    rewrite(&rig, 1);
    for _ in 0..2 {
        let store = rig.open();
        assert_eq!(describe(&store), before);
        sound(&store);
    }
    let (meta, ..) = Database::new(Box::new(rig.disk.clone()), 0).open().unwrap();
    assert_eq!(meta.unwrap().layout, LAYOUT);
}

#[test]
fn a_power_cut_while_a_store_is_laid_out_anew_leaves_one_of_both() {
    for seed in 0..10 {
        let rig = Rig::new(2000, 1 << 20);
        let before = filled(&rig);
        rewrite(&rig, 1);
        rig.disk.fill(seed % 2 == 0);
        let opened = rig.try_open();
        assert_eq!(opened.is_err(), seed % 2 == 0);
        drop(opened);
        rig.disk.fill(false);
        rig.cut(seed);
        assert_eq!(describe(&rig.open()), before);
    }
}

#[test]
fn a_store_of_a_later_layout_is_refused() {
    let rig = Rig::new(2000, 1 << 20);
    filled(&rig);
    rewrite(&rig, LAYOUT + 1);
    assert_eq!(rig.try_open().err(), Some(Error::Layout(LAYOUT + 1)));
}

#[test]
fn a_record_under_another_objects_key_is_damage_and_not_that_object() {
    let rig = Rig::new(1000, 256 << 10);
    let store = rig.open();
    now(store.apply(Step::CreatePartition(P).into(), Commit::Durable)).unwrap();
    for n in 0..2 {
        now(store.apply(Step::CreateUser(object(n)).into(), Commit::Durable)).unwrap();
    }
    let home = store.inner.directory().partition(P).unwrap().home;
    let at = |n: u64| key(USER, home, FIRST_ID + n, 0);
    let record = store.inner.layers.get(&at(1), <[u8]>::to_vec).unwrap().unwrap();
    store.inner.layers.write().active.insert(at(0), Some(record.into()));
    assert_eq!(store.object(object(0)).unwrap_err(), Error::Damaged(object(0)));
    assert!(store.object(object(1)).is_ok());
    let report = now(store.check(0, true)).unwrap();
    assert!(report.repaired > 0 && report.repaired == report.wrong, "{report:?}");
    sound(&store);
}
