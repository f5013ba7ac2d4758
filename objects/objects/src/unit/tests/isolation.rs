//! Isolation: commands that wait for each other and commands that do not, and what threads see of
//! each other's work.

use std::sync::Mutex;

use osd::cdb::FlushScope;

use super::super::locks::{Key, Mode, Part};
use super::*;

/// Of a page that every kind of object may have.
const ANY: AttributeId = AttributeId::new(Page(0xF000_0000), 1);

/// Whether a command ends while another has locked the object's data from `start` to `end`
/// exclusively.
fn ends_beside(it: &Client, ask: Ask<'_>, part: Part, start: u64, end: u64) -> bool {
    let key = Key { id: ID, part };
    let guard = block_on(it.unit.locks.lock(key, Mode { start, end, exclusive: true }));
    let (cdb, out, _) = ask.build();
    let future = match it.start(&cdb, &out, 1 << 20, 0) {
        Execution::Done(_, outcome) => {
            assert_eq!(outcome.status, Status::Good);
            return true;
        }
        Execution::Running(future) => future,
    };
    let mut future = pin!(future);
    let polled = poll(&mut future);
    drop(guard);
    match polled {
        Poll::Ready((_, outcome)) => {
            assert_eq!(outcome.status, Status::Good);
            true
        }
        Poll::Pending => {
            assert_eq!(block_on(future).1.status, Status::Good);
            false
        }
    }
}

#[test]
fn each_level_waits_for_what_it_has_to() {
    let it = Client::ready();
    it.write(0, &[1; 100]).good();
    let read = |isolation| it.ask(Osd::Read(ID, range(10, 10))).isolation(isolation);
    let write = |isolation| it.ask(Osd::Write(ID, range(10, 10))).data(&[2; 10]).isolation(isolation);
    let set = |isolation| it.ask(Osd::SetAttributes(ID)).set(FREE, b"x").isolation(isolation);
    let data = |ask, start, end| ends_beside(&it, ask, Part::Data, start, end);
    let attributes = |ask| ends_beside(&it, ask, Part::Attributes, 0, u64::MAX);
    // The range itself.
    assert!(data(read(Isolation::None), 0, 100) && data(write(Isolation::None), 0, 100));
    assert!(data(read(Isolation::Default), 0, 100), "the default is none");
    for isolation in [Isolation::Strict, Isolation::Range, Isolation::Functional] {
        assert!(!data(read(isolation), 0, 100) && !data(write(isolation), 0, 100), "{isolation:?}");
    }
    // Beside it.
    assert!(data(read(Isolation::Range), 20, 100) && data(write(Isolation::Range), 0, 10));
    assert!(!data(read(Isolation::Strict), 20, 100) && !data(write(Isolation::Functional), 0, 10));
    // Attributes.
    assert!(attributes(set(Isolation::None)) && !data(set(Isolation::Strict), 0, 1));
    assert!(!attributes(set(Isolation::Range)) && !attributes(set(Isolation::Functional)));
    assert!(attributes(read(Isolation::Range)), "it gets none");
    // Another length is other data, wherever the object ends.
    let length = osd::attributes::numbers::user_information::LOGICAL_LENGTH;
    let cut =
        |isolation| it.ask(Osd::SetAttributes(ID)).set(length, &100u64.to_be_bytes()).isolation(isolation);
    assert!(data(cut(Isolation::None), 0, 10));
    for isolation in [Isolation::Strict, Isolation::Range, Isolation::Functional] {
        assert!(!data(cut(isolation), 0, 10) && !data(cut(isolation), 200, 210), "{isolation:?}");
    }
    assert!(!data(read(Isolation::Range).set(length, &100u64.to_be_bytes()), 50, 60));
}

#[test]
fn the_root_says_what_the_default_is() {
    let clock = Arc::new(TestClock::default());
    let options = OsdOptions { isolation: Isolation::Strict, ..options(&clock) };
    let it = Client::of(options, clock);
    it.make();
    let read = it.ask(Osd::Read(ID, range(0, 0)));
    assert!(!ends_beside(&it, read, Part::Data, 50, 60));
    let isolation = it.get(Id::ROOT, osd::attributes::numbers::root_information::DEFAULT_ISOLATION);
    assert_eq!(isolation.good().number(), 2);
}

#[test]
fn a_command_that_needs_a_partition_for_itself_waits_for_those_that_work_in_it() {
    let it = Client::ready();
    let working = block_on(it.unit.exclusion.write(P, P + 1));
    let scope = osd::cdb::RemoveScope::Contents;
    let mut removing = it.ask(Osd::RemovePartition { partition: P, scope }).begin(0, 0, 0);
    assert!(poll(&mut removing).is_pending());
    // Others that come meanwhile wait in turn, but not those of other partitions.
    it.ask(Osd::FlushOsd { scope: FlushScope::Contents }).send().good();
    let mut late = it.ask(Osd::Read(ID, range(0, 0))).begin(0, 0, 0);
    assert!(poll(&mut late).is_pending());
    drop(working);
    assert_eq!(block_on(removing).1.status, Status::Good);
    assert_eq!(block_on(late).1.status, Status::CheckCondition);
}

#[test]
fn an_initiator_that_sends_nothing_holds_nobody_up() {
    let it = Client::ready();
    let stalled = |command, data: &[u8], isolation| {
        let mut future = it.ask(command).data(data).set(FREE, b"x").isolation(isolation).begin(0, 0, 2);
        assert!(poll(&mut future).is_pending());
        future
    };
    let long = vec![1; 2_000_000];
    let waiting = [
        stalled(Osd::Write(ID, range(0, 5)), b"hello", Isolation::Strict),
        stalled(Osd::Append { id: ID, len: 5 }, b"hello", Isolation::Functional),
        stalled(Osd::Write(ID, range(0, 2_000_000)), &long, Isolation::Range),
        stalled(Osd::SetAttributes(ID), b"", Isolation::Strict),
    ];
    it.ask(Osd::Read(ID, range(0, 0))).isolation(Isolation::Strict).send().good();
    let scope = osd::cdb::RemoveScope::Contents;
    it.ask(Osd::RemovePartition { partition: P, scope }).send().good();
    it.ask(Osd::Format { capacity: 0 }).send().good();
    for future in waiting {
        assert_eq!(block_on(future).1.status, Status::CheckCondition);
    }
}

#[test]
fn commands_on_lists_and_members_wait_for_their_initiator_before_they_hold_anything() {
    let it = Client::ready();
    let collection = Id::new(P, O + 1);
    let others = Id::new(P, O + 2);
    for id in [collection, others] {
        it.ask(Osd::CreateCollection { partition: P, requested: id.object }).send().good();
    }
    let list = |partition| Osd::List(osd::cdb::List::new(partition, 4096));
    let list_collection = Osd::ListCollection(osd::cdb::ListCollection::new(collection, 4096));
    let query = Osd::Query { id: Id::partition(P), immediate: false, allocation: 4096, matches: 0 };
    let criteria = Descriptor::Query(osd::continuation::Query { all: true, criteria: Vec::new() });
    let commands = [
        it.ask(list(P)),
        it.ask(list_collection),
        it.ask(query).descriptor(criteria),
        it.ask(Osd::GetMemberAttributes(collection)),
        it.ask(Osd::SetMemberAttributes(collection)),
        it.ask(Osd::RemoveMemberObjects(collection)),
        it.ask(Osd::RemoveCollection { id: others, force: true }),
    ];
    for ask in commands {
        let name = format!("{:?}", ask.cdb.command.action());
        let at_first = usize::from(matches!(ask.cdb.command, Osd::Query { .. }));
        let mut future = ask.set(ANY, b"x").isolation(Isolation::Strict).begin(1 << 20, 0, 1 + at_first);
        let mut poll = || poll(&mut future);
        // The descriptors of a query come first.
        (0..=at_first).for_each(|_| assert!(poll().is_pending(), "{name}"));
        let alone = it.unit.exclusion.atomic(P, P + 1);
        let mut alone = pin!(alone);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(alone.as_mut().poll(&mut cx).is_ready(), "{name} has its partition while it waits");
        for id in [Id::partition(P), collection, others] {
            let lock = it.unit.locks.lock(Key { id, part: Part::Data }, Mode::EXCLUSIVE);
            assert!(pin!(lock).poll(&mut cx).is_ready(), "{name} has a lock while it waits");
        }
    }
    // A partition that is gone when the initiator has sent all is not listed as it was.
    let mut late = it.ask(list(P)).set(ANY, b"x").begin(1 << 20, 0, 1);
    assert!(poll(&mut late).is_pending());
    let scope = osd::cdb::RemoveScope::Contents;
    it.ask(Osd::RemovePartition { partition: P, scope }).send().good();
    assert_eq!(block_on(late).1.status, Status::CheckCondition);
}

#[test]
fn no_mix_of_commands_and_levels_waits_in_a_circle() {
    let (done, finished) = std::sync::mpsc::channel();
    let it = Client::ready();
    let quota = osd::attributes::numbers::partition_quotas::CAPACITY;
    for thread in 0..4u64 {
        let it = Client::to(&it.unit, 20 + thread, it.clock.clone());
        let done = done.clone();
        std::thread::spawn(move || {
            let mut seed = thread + 1;
            let mut next = |below: u64| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (seed >> 33) % below
            };
            for _ in 0..400 {
                let levels = [Isolation::None, Isolation::Strict, Isolation::Range, Isolation::Functional];
                let isolation = levels[next(4) as usize];
                let partition = P + next(2);
                let id = Id::new(partition, O + next(2));
                let (data, len) = (vec![7; 1_100_000], 1 + next(2) * 1_099_999);
                let ask = match next(12) {
                    0 => it.ask(Osd::Write(id, range(0, len))).data(&data[..len as usize]),
                    1 => it.ask(Osd::Append { id, len: 10 }).data(&[1; 10]),
                    2 => it.ask(Osd::Read(id, range(0, 100))),
                    3 => it.ask(Osd::Punch(id, range(0, 100_000))),
                    4 => it.ask(Osd::Remove(id)),
                    5 => it.ask(Osd::Create { partition, requested: id.object, count: 1 }),
                    6 => it.ask(Osd::GetAttributes(id)),
                    7 => it.ask(Osd::SetAttributes(id)),
                    8 => it.ask(Osd::CreatePartition { requested: partition }),
                    9 if next(4) == 0 => {
                        let scope = osd::cdb::RemoveScope::Contents;
                        it.ask(Osd::RemovePartition { partition, scope })
                    }
                    10 => {
                        let range = range(0, len);
                        let create = Osd::CreateAndWrite { partition, requested: id.object, range };
                        it.ask(create).data(&data[..len as usize])
                    }
                    _ => it.ask(Osd::Clear(id, range(0, 10))),
                };
                let ask = match next(3) {
                    0 => ask.set(ANY, b"x").get(&[ANY]),
                    1 => ask.get(&[ANY]),
                    _ => ask,
                };
                ask.isolation(isolation).send_slowly();
                if next(20) == 0 {
                    it.set(Id::partition(partition), quota, &(next(1 << 23)).to_be_bytes());
                }
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..4 {
        finished.recv_timeout(std::time::Duration::from_secs(60)).expect("somebody waits for ever");
    }
}

/// A mover whose task is aborted by another one.
struct Abortable {
    data_out: Vec<u8>,
    abort: Arc<Mutex<Abort>>,
}

#[derive(Default)]
struct Abort {
    aborted: bool,
    waker: Option<Waker>,
}

impl DataMover for Abortable {
    fn put_data(&mut self, _: Buf) {}
    fn poll_put_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(if self.abort.lock().unwrap().aborted { Err(Lost) } else { Ok(()) })
    }
    fn poll_get_data(&mut self, _: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        let rest = self.data_out.split_off(len.min(self.data_out.len()));
        Poll::Ready(Ok(std::mem::replace(&mut self.data_out, rest).into()))
    }
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        let mut abort = self.abort.lock().unwrap();
        if abort.aborted {
            return Poll::Ready(Lost);
        }
        abort.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[test]
fn a_command_that_waits_for_others_ends_when_it_is_aborted_and_leaves_no_place_behind() {
    let it = Client::ready();
    let quota = osd::attributes::numbers::partition_quotas::CAPACITY;
    it.set(Id::partition(P), quota, &(1u64 << 30).to_be_bytes()).good();
    let write = |isolation| it.ask(Osd::Write(ID, range(0, 5))).data(b"wrong").isolation(isolation);
    let scope = osd::cdb::RemoveScope::Contents;
    let none = Isolation::None;
    let waits = [
        (ID, Some(Part::Data), write(Isolation::Strict)),
        (ID, Some(Part::Data), write(Isolation::Range)),
        (
            ID,
            Some(Part::Attributes),
            it.ask(Osd::SetAttributes(ID)).set(ANY, b"x").isolation(Isolation::Range),
        ),
        (
            ID,
            Some(Part::Attributes),
            it.ask(Osd::Read(ID, range(0, 0))).get(&[ANY]).isolation(Isolation::Functional),
        ),
        (ID, Some(Part::Tail), it.ask(Osd::Append { id: ID, len: 5 }).data(b"wrong").isolation(none)),
        (Id::partition(P), Some(Part::Quota), write(none)),
        (Id::ROOT, Some(Part::Quota), it.ask(Osd::CreatePartition { requested: P + 1 })),
        (ID, None, write(none)),
        (ID, None, it.ask(Osd::RemovePartition { partition: P, scope })),
        (ID, None, it.ask(Osd::Format { capacity: 0 })),
    ];
    for (at, part, ask) in waits {
        let name = format!("{:?} {part:?}", ask.cdb.command.action());
        let lock = part.map(|part| block_on(it.unit.locks.lock(Key { id: at, part }, Mode::EXCLUSIVE)));
        let alone = part.is_none().then(|| block_on(it.unit.exclusion.atomic(P, P + 1)));
        let (cdb, data_out, _) = ask.build();
        let (len, abort) = (data_out.len() as u64, Arc::<Mutex<Abort>>::default());
        let mover = Abortable { data_out, abort: abort.clone() };
        let Execution::Running(mut waiting) = it.execute(&cdb, len, 1 << 20, mover) else { panic!("{name}") };
        assert!(poll(&mut waiting).is_pending(), "{name} waits");
        abort.lock().unwrap().aborted = true;
        abort.lock().unwrap().waker.take().expect("it would not hear of its end").wake();
        assert!(poll(&mut waiting).is_ready(), "{name} goes on waiting");
        drop((lock, alone));
        // No lock is left to wait for.
        it.ask(Osd::Clear(ID, range(0, 1))).isolation(Isolation::Strict).send().good();
        it.ask(Osd::SetAttributes(ID)).set(ANY, b"y").isolation(Isolation::Range).send().good();
        assert_eq!(it.length(), 1, "{name} has done something");
    }
}

#[test]
fn strictly_isolated_writes_of_many_threads_are_never_seen_in_parts() {
    const LEN: usize = 2_500_000;
    let it = Client::ready();
    it.write(0, &vec![0; LEN]).good();
    let threads: Vec<_> = (1..=4u8)
        .map(|n| {
            let it = Client::to(&it.unit, 10 + u64::from(n), it.clock.clone());
            std::thread::spawn(move || {
                for _ in 0..5 {
                    let write = it.ask(Osd::Write(ID, range(0, LEN as u64))).data(&vec![n; LEN]);
                    write.isolation(Isolation::Strict).send_slowly().good();
                    let read = it.ask(Osd::Read(ID, range(0, LEN as u64))).isolation(Isolation::Strict);
                    let data = read.send_slowly().good().data;
                    assert!(data.iter().all(|byte| *byte == data[0]), "parts of two writes");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn appends_of_many_threads_lose_nothing_whatever_their_isolation() {
    const EACH: usize = 40;
    let it = Client::ready();
    let threads: Vec<_> = (1..=4u8)
        .map(|n| {
            let it = Client::to(&it.unit, 10 + u64::from(n), it.clock.clone());
            std::thread::spawn(move || {
                for round in 0..EACH {
                    // Some of them are longer than a piece.
                    let len = if round % 20 == 0 { 1_200_000 } else { 100 };
                    it.ask(Osd::Append { id: ID, len }).data(&vec![n; len as usize]).send().good();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let len = it.length();
    assert_eq!(len, 4 * (2 * 1_200_000 + (EACH as u64 - 2) * 100));
    let data = it.read(0, len).good().data;
    let mut runs = Vec::new();
    for byte in data {
        match runs.last_mut() {
            Some((last, count)) if *last == byte => *count += 1,
            _ => runs.push((byte, 1u64)),
        }
    }
    assert!(runs.iter().all(|(byte, count)| *byte != 0 && count % 100 == 0), "an append was torn");
}

#[test]
fn objects_quotas_hold_against_many_threads() {
    let it = Client::ready();
    let quota = osd::attributes::numbers::partition_quotas::OBJECTS;
    it.set(Id::partition(P), quota, &101u64.to_be_bytes()).good();
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let it = Client::to(&it.unit, 10 + n, it.clock.clone());
            std::thread::spawn(move || {
                let create = || it.ask(Osd::Create { partition: P, requested: 0, count: 3 }).send();
                (0..50).filter(|_| create().outcome.status == Status::Good).count()
            })
        })
        .collect();
    let created: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(created, 33);
}

#[test]
fn strictly_isolated_commands_about_many_objects_have_their_partition_for_themselves() {
    let it = Client::ready();
    let collection = Id::new(P, O + 1);
    it.ask(Osd::CreateCollection { partition: P, requested: collection.object }).send().good();
    let list = |partition| Osd::List(osd::cdb::List::new(partition, 4096));
    let list_collection = Osd::ListCollection(osd::cdb::ListCollection::new(collection, 4096));
    let query = Osd::Query { id: Id::partition(P), immediate: false, allocation: 4096, matches: 0 };
    let criteria = Descriptor::Query(osd::continuation::Query { all: true, criteria: Vec::new() });
    let tracking =
        Osd::CreateUserTrackingCollection { partition: P, requested: 0, source: collection.object };
    let commands = [
        it.ask(list(P)),
        it.ask(list(0)),
        it.ask(list_collection),
        it.ask(query).descriptor(criteria),
        it.ask(tracking),
        it.ask(Osd::Create { partition: P, requested: 0, count: 2 }),
        it.ask(Osd::GetMemberAttributes(collection)),
        it.ask(Osd::SetMemberAttributes(collection)),
        it.ask(Osd::RemoveMemberObjects(collection)),
    ];
    for ask in commands {
        let name = format!("{:?}", ask.cdb.command);
        for (isolation, waits) in [(Isolation::Strict, true), (Isolation::Range, false)] {
            let mut cdb = ask.cdb.clone();
            cdb.options.isolation = isolation;
            let ask = Ask { cdb, ..ask.clone() };
            let working = block_on(it.unit.exclusion.write(P, P + 1));
            let mut future = ask.begin(1 << 20, 0, 0);
            let polled = poll(&mut future);
            assert_eq!(polled.is_pending(), waits, "{name} {isolation:?}");
            drop(working);
            if let Poll::Ready((_, outcome)) = polled {
                assert_eq!(outcome.status, Status::Good, "{name}");
            } else {
                assert_eq!(block_on(future).1.status, Status::Good, "{name}");
            }
        }
    }
}

#[test]
fn objects_that_name_collections_take_turns_where_a_quota_counts_them() {
    let it = Client::ready();
    let collection = O + 1;
    it.ask(Osd::CreateCollection { partition: P, requested: collection }).send().good();
    let pointer = |n| AttributeId::new(osd::attributes::numbers::collections::PAGE, n);
    let quota = osd::attributes::numbers::partition_quotas::COLLECTIONS_PER_OBJECT;
    let commands = [Osd::SetAttributes(ID), Osd::GetAttributes(ID)];
    for (limit, waits, command) in
        [(u32::MAX, false), (1, true)].into_iter().flat_map(|(l, w)| commands.map(|c| (l, w, c)))
    {
        it.set(Id::partition(P), quota, &limit.to_be_bytes()).good();
        let key = Key { id: Id::partition(P), part: Part::Quota };
        let other = block_on(it.unit.locks.lock(key, Mode::EXCLUSIVE));
        let ask = it.ask(command).set(pointer(limit.min(2)), &collection.to_be_bytes());
        let mut future = ask.begin(0, 0, 0);
        let polled = poll(&mut future);
        assert_eq!(polled.is_pending(), waits);
        // A command that names no collection need not wait.
        it.set(ID, FREE, b"x").good();
        drop(other);
        if polled.is_pending() {
            block_on(future);
        }
    }
}

/// Whether a functionally isolated command waits, for its last function, for another command that
/// came during the function before, and has not changed the object until then.
fn waits_for_its_last_function(it: &Client, ask: Ask<'_>, part: Part) {
    let name = format!("{:?}", ask.cdb.command.action());
    let key = Key { id: ID, part };
    let mut cx = Context::from_waker(Waker::noop());
    let first = block_on(it.unit.locks.lock(key, Mode::EXCLUSIVE));
    let mut future = ask.isolation(Isolation::Functional).begin(1 << 20, 0, 0);
    assert!(poll(&mut future).is_pending(), "{name}");
    let mut other = pin!(it.unit.locks.lock(key, Mode::EXCLUSIVE));
    assert!(other.as_mut().poll(&mut cx).is_pending(), "{name} is before it");
    drop(first);
    assert!(poll(&mut future).is_pending(), "{name} goes on beside another");
    let Poll::Ready(other) = other.as_mut().poll(&mut cx) else {
        panic!("{name} keeps what it has done with")
    };
    assert_eq!(it.length(), 100, "{name} has changed what another has");
    drop(other);
    assert_eq!(block_on(future).1.status, Status::Good, "{name}");
}

#[test]
fn each_function_of_a_functionally_isolated_command_waits_for_those_who_came_before_it() {
    let length = osd::attributes::numbers::user_information::LOGICAL_LENGTH;
    let it = Client::ready();
    it.write(0, &[1; 100]).good();
    let cut = it.ask(Osd::Read(ID, range(0, 100))).set(length, &50u64.to_be_bytes());
    waits_for_its_last_function(&it, cut, Part::Data);
    assert_eq!(it.length(), 50);
    it.write(0, &[1; 100]).good();
    waits_for_its_last_function(&it, it.ask(Osd::Remove(ID)).get(&[FREE]), Part::Data);
    it.get(ID, FREE).bad_field(24);
}

#[test]
fn a_short_read_is_done_at_once_or_waits_for_its_lock() {
    let it = Client::ready();
    it.write(0, b"0123456789").good();
    let (cdb, out, _) = it.ask(Osd::Read(ID, range(2, 4))).isolation(Isolation::Strict).build();
    let Execution::Done(mover, outcome) = it.start(&cdb, &out, 4, 0) else {
        panic!("there is nothing to wait for")
    };
    assert_eq!((outcome.status, &mover.data_in[..]), (Status::Good, &b"2345"[..]));
    let held = block_on(it.unit.locks.lock(Key { id: ID, part: Part::Data }, Mode::EXCLUSIVE));
    let Execution::Running(mut waiting) = it.start(&cdb, &out, 4, 0) else { panic!("another has the lock") };
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(&mut waiting).poll(&mut cx).is_pending());
    drop(held);
    let (mover, outcome) = block_on(waiting);
    assert_eq!((outcome.status, &mover.data_in[..]), (Status::Good, &b"2345"[..]));
}
