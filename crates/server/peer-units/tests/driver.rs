//! Commands of one gateway on a unit of another one, over the simulated network and over loopback
//! sockets: data of all directions, reservations, aborts, lost connections, strangers, and owners
//! that vanish.

mod rig;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backing::faulty::{Action, Operations, Rule, RuleId};
use device::{ItlNexus, LogicalUnit, ResetKind};
use peer_units::{Begun, Life};
use rig::{HOLD, Rig, Session, UNIT, both, cdb10, loopback, open_gate, pattern, secret, simulated, soon};
use runtime::sim;
use scsi::mode::{CONTROL, ModeData, select_list};
use scsi::{AdditionalSense as A, SenseKey, Status};

/// Delays operations of the medium until they are released.
fn delay(rig: &Rig, operations: Operations) -> RuleId {
    rig.faults.add(Rule::new(operations, Action::Delay(u64::MAX..u64::MAX)))
}

/// Has all other nexuses hear that mode parameters have changed.
async fn change_modes<U: LogicalUnit>(by: &Session<U>) {
    let pages = by.run(&[0x1a, 0, 0x3f, 0, 255, 0], &[], 255).await.good();
    let pages = ModeData::parse(&pages, false).unwrap();
    let mut values = pages.page(CONTROL, 0).unwrap().to_vec();
    values[0] |= 4;
    let list = select_list(CONTROL, &values, false);
    by.run(&[0x15, 0x10, 0, 0, list.len() as u8, 0], &list, 0).await.good();
}

#[test]
fn commands_of_all_directions_run_at_the_owner() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        for (lba, len) in [(0, 512), (8, 4096), (100, 64 << 10), (1000, 1 << 20), (4000, 1_500 * 512)] {
            let data = pattern(lba as u8, len);
            let wrote = it.write(lba, &data).await;
            assert_eq!(wrote.outcome.wanted_out, len as u64);
            wrote.good();
            let read = it.read(lba, len).await;
            assert_eq!(read.outcome.wanted_in, len as u64);
            assert!(read.good() == data, "{len} bytes at {lba}");
        }
        // The same medium, by the owner's own door.
        let local = rig.owners[0].session(9).ready().await;
        assert!(local.read(1000, 1 << 20).await.good() == pattern(1000u32 as u8, 1 << 20));
        assert_eq!(it.run(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8).await.good()[4..], [0, 0, 2, 0]);
        // COMPARE AND WRITE: miscompare, with its information.
        let mut cdb = [0; 16];
        (cdb[0], cdb[9], cdb[13]) = (0x89, 8, 1);
        let missed = it.run(&cdb, &[9; 1024], 0).await;
        let sense = missed.outcome.sense.unwrap();
        assert_eq!((sense.key, sense.information), (SenseKey::Miscompare, Some(0)));
        let mut both = pattern(8, 512);
        both.extend([9; 512]);
        it.run(&cdb, &both, 0).await.good();
        assert_eq!(it.read(8, 512).await.good(), [9; 512]);
        // An initiator that expects less than the command moves, and more.
        let short = it.run(&cdb10(0x28, 8, 2), &[], 512).await;
        assert_eq!((short.outcome.wanted_in, short.data.len()), (1024, 512));
        let long = it.run(&cdb10(0x28, 8, 1), &[], 4096).await;
        assert_eq!((long.outcome.wanted_in, long.data.len()), (512, 512));
        it.run(&[0xff; 10], &[], 0).await.fails(A::INVALID_COMMAND_OPERATION_CODE);
        soon(|| rig.unit.device_type() == 0 && !rig.unit.descriptor_sense()).await;
        // What the owner tells of its unit, and what was forwarded to it.
        soon(|| (rig.unit.block_size(), rig.unit.size()) == (512, 8 << 20)).await;
        assert_eq!(rig.peers.links(), BTreeMap::from([(rig.owners[0].at.instance, true)]));
        let before = rig.peers.forwarded();
        it.write(8, &[7; 4096]).await.good();
        it.read(8, 512).await.good();
        let now = rig.peers.forwarded();
        let more = (now.bytes_in - before.bytes_in, now.bytes_out - before.bytes_out);
        assert_eq!((now.commands - before.commands, more), (2, (512, 4096)));
    });
}

#[test]
fn many_commands_at_once_end_each_with_its_own_data() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        // More than the owner takes at once.
        let writes: Vec<_> = (0..100u8)
            .map(|n| it.start(&cdb10(0x2a, u32::from(n) * 8, 8), &pattern(n, 4096), 0, false).1)
            .collect();
        for write in writes {
            write.await.unwrap().good();
        }
        let reads: Vec<_> =
            (0..100u8).map(|n| it.start(&cdb10(0x28, u32::from(n) * 8, 8), &[], 4096, false).1).collect();
        for (n, read) in reads.into_iter().enumerate() {
            assert!(read.await.unwrap().good() == pattern(n as u8, 4096), "{n}");
        }
    });
}

#[test]
fn a_reservation_holds_for_initiators_of_all_gateways() {
    both(|rig: Rc<Rig>| async move {
        let (one, two) = (rig.session(1).ready().await, rig.session(2).ready().await);
        let local = rig.owners[0].session(3).ready().await;
        one.reserve_out(0, 0, 11).await.good();
        one.reserve_out(1, 11, 0).await.good();
        two.write(0, &[2; 512]).await.ends(Status::ReservationConflict);
        local.write(0, &[3; 512]).await.ends(Status::ReservationConflict);
        one.write(0, &[1; 512]).await.good();
        assert_eq!(local.read(0, 512).await.good(), [1; 512]);
        // An initiator of the owner takes it over: the others learn of it.
        local.reserve_out(0, 0, 33).await.good();
        local.reserve_out(4, 33, 11).await.good();
        one.write(0, &[4; 512]).await.fails(A::REGISTRATIONS_PREEMPTED);
        one.write(0, &[4; 512]).await.ends(Status::ReservationConflict);
        local.write(0, &[3; 512]).await.good();
        // The registration of a session that has gone stays, and RESERVE(6) goes with it.
        local.reserve_out(3, 33, 0).await.good();
        two.run(&[0; 6], &[], 0).await.good();
        two.run(&[0x16, 0, 0, 0, 0, 0], &[], 0).await.good();
        local.write(0, &[3; 512]).await.ends(Status::ReservationConflict);
        rig.unit.detach(two.nexus.nexus.id);
        for _ in 0..200 {
            if local.write(0, &[3; 512]).await.outcome.status == Status::Good {
                return;
            }
            runtime::sleep(Duration::from_millis(10)).await;
        }
        panic!("the nexus is not detached");
    });
}

#[test]
fn a_right_to_write_that_is_taken_away_ends_at_the_owner_too() {
    both(|rig: Rc<Rig>| async move {
        let mut it = rig.session(1).ready().await;
        let local = rig.owners[0].session(3).ready().await;
        it.write(0, &[1; 512]).await.good();
        for read_only in [true, false] {
            // A command of before has the nexus stay at the owner.
            let rule = delay(&rig, Operations::READ);
            let (_, read) = it.start(&cdb10(0x28, 0, 1), &[], 512, false);
            soon(|| rig.faults.waiting() == 1).await;
            rig.faults.remove(rule);
            it.nexus = Arc::new(ItlNexus::new(it.nexus.nexus.clone(), read_only));
            rig.unit.attach(&it.nexus);
            it.run(&[0; 6], &[], 0).await.fails(A::ASYMMETRIC_ACCESS_STATE_CHANGED);
            for _ in 0..2 {
                let write = it.write(8, &[2; 512]).await;
                match read_only {
                    true => write.fails(A::WRITE_PROTECTED),
                    false => drop(write.good()),
                }
                if !read.is_finished() {
                    rig.faults.release();
                }
                soon(|| read.is_finished()).await;
                runtime::sleep(Duration::from_millis(300)).await;
            }
            read.await.unwrap().good();
        }
        // It is one nexus for reservations, with its present verdict.
        assert_eq!(rig.owners[0].disk.nexuses().attached().len(), 2);
        local.reserve_out(0, 0, 33).await.good();
        local.reserve_out(1, 33, 0).await.good();
        it.write(8, &[3; 512]).await.ends(Status::ReservationConflict);
    });
}

#[test]
fn a_command_that_waits_ends_when_its_right_to_write_changes() {
    // The hold is longer than the scenario may take.
    let hold = |config: &mut peer_units::PeersConfig| config.hold = Duration::from_secs(3_600);
    simulated(
        1,
        hold,
        |_| {},
        |rig: Rc<Rig>| async move {
            let mut it = rig.session(1).ready().await;
            rig.peers.set_owner(UNIT, None);
            let (_, write) = it.start(&cdb10(0x2a, 8, 1), &[2; 512], 0, false);
            runtime::sleep(Duration::from_millis(100)).await;
            it.nexus = Arc::new(ItlNexus::new(it.nexus.nexus.clone(), true));
            rig.unit.attach(&it.nexus);
            // The link detaches the nexus of before.
            runtime::sleep(Duration::from_millis(300)).await;
            assert!(!write.is_finished());
            rig.peers.set_owner(UNIT, Some(rig.owners[0].at));
            write.await.unwrap().ends(Status::Busy);
            it.run(&[0; 6], &[], 0).await.fails(A::ASYMMETRIC_ACCESS_STATE_CHANGED);
            it.write(8, &[2; 512]).await.fails(A::WRITE_PROTECTED);
        },
    );
}

#[test]
fn a_nexus_that_preempts_its_own_key_is_told_so() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        it.reserve_out(0, 0, 11).await.good();
        it.reserve_out(5, 11, 11).await.good();
        it.reserve_out(1, 11, 0).await.ends(Status::ReservationConflict);
    });
}

/// Has the session of key 33 preempt and abort that of key 11, one of whose writes the medium
/// holds. Returns the blocks of that write as they are after the GOOD.
async fn preempted<U: LogicalUnit>(rig: &Rig, by: &Session<U>) -> Vec<u8> {
    let mut list = [0; 24];
    list[7] = 33;
    list[15] = 11;
    let (_, preempt) = by.start(&[0x5f, 5, 5, 0, 0, 0, 0, 0, 24, 0], &list, 0, false);
    runtime::sleep(Duration::from_millis(200)).await;
    assert!(!preempt.is_finished(), "a write of the victim may still change the medium");
    rig.faults.release();
    preempt.await.unwrap().good();
    by.read(8, 512).await.good()
}

#[test]
fn preempt_and_abort_ends_writes_of_another_gateway_before_it_is_good() {
    both(|rig: Rc<Rig>| async move {
        let victim = rig.session(1).ready().await;
        let local = rig.owners[0].session(3).ready().await;
        victim.reserve_out(0, 0, 11).await.good();
        local.reserve_out(0, 0, 33).await.good();
        let rule = delay(&rig, Operations::WRITE);
        let (wire, at_work) = victim.start(&cdb10(0x2a, 8, 1), &[9; 512], 0, false);
        soon(|| rig.faults.waiting() == 1).await;
        rig.faults.remove(rule);
        let seen = preempted(&rig, &local).await;
        at_work.await.unwrap();
        assert!(wire.is_lost(), "its server answers nothing");
        assert_eq!(local.read(8, 512).await.good(), seen);
        victim.write(8, &[7; 512]).await.fails(A::REGISTRATIONS_PREEMPTED);
        victim.run(&[0; 6], &[], 0).await.good();
    });
}

#[test]
fn preempt_and_abort_ends_writes_of_a_gateway_that_was_taken_out_too() {
    both(|rig: Rc<Rig>| async move {
        let victim = rig.session(1).ready().await;
        let local = rig.owners[0].session(3).ready().await;
        victim.reserve_out(0, 0, 11).await.good();
        local.reserve_out(0, 0, 33).await.good();
        let rule = delay(&rig, Operations::WRITE);
        let (wire, at_work) = victim.start(&cdb10(0x2a, 8, 1), &[9; 512], 0, false);
        soon(|| rig.faults.waiting() == 1).await;
        rig.faults.remove(rule);
        // Its gateway has died, say.
        rig.owners[0].members.store(false, Ordering::SeqCst);
        rig.owners[0].with(|host| host.forget(rig::FORWARDER)).await;
        rig.peers.leave();
        let seen = preempted(&rig, &local).await;
        runtime::sleep(Duration::from_millis(200)).await;
        assert_eq!(local.read(8, 512).await.good(), seen);
        wire.abort();
        at_work.await.unwrap();
    });
}

#[test]
fn an_abort_ends_when_nothing_touches_the_medium_any_more() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        delay(&rig, Operations::WRITE);
        let (wire, write) = it.start(&cdb10(0x2a, 0, 1), &[1; 512], 0, false);
        soon(|| rig.faults.waiting() == 1).await;
        wire.abort();
        runtime::sleep(Duration::from_millis(300)).await;
        assert!(!write.is_finished(), "the medium has the write still");
        rig.faults.clear();
        write.await.unwrap();
        // One that waits for its initiator's data ends at once, and so does one that is not taken.
        let (wire, write) = it.start(&cdb10(0x2a, 0, 1), &[2; 512], 0, true);
        runtime::sleep(Duration::from_millis(50)).await;
        wire.abort();
        write.await.unwrap();
        let (wire, read) = it.start(&cdb10(0x28, 0, 4096), &[], 2 << 20, true);
        runtime::sleep(Duration::from_millis(200)).await;
        assert!(!read.is_finished());
        it.run(&[0; 6], &[], 0).await.good();
        wire.abort();
        read.await.unwrap();
        assert_eq!(it.read(0, 512).await.good(), [1; 512]);
    });
}

#[test]
fn a_reset_through_one_gateway_ends_tasks_of_all() {
    both(|rig: Rc<Rig>| async move {
        let (one, two) = (rig.session(1).ready().await, rig.session(2).ready().await);
        let local = rig.owners[0].session(3).ready().await;
        delay(&rig, Operations::WRITE);
        let (_, write) = two.start(&cdb10(0x2a, 0, 1), &[1; 512], 0, false);
        soon(|| rig.faults.waiting() == 1).await;
        let (unit, by) = (rig.unit.clone(), one.nexus.nexus.id);
        let reset = runtime::spawn(async move { unit.have_reset(ResetKind::LogicalUnit, by).await });
        runtime::sleep(Duration::from_millis(200)).await;
        assert!(!reset.is_finished(), "a write may still change the medium");
        rig.faults.clear();
        assert!(reset.await.unwrap());
        write.await.unwrap();
        for session in [&one, &two] {
            session.run(&[0; 6], &[], 0).await.fails(A::BUS_DEVICE_RESET_FUNCTION_OCCURRED);
        }
        local.run(&[0; 6], &[], 0).await.fails(A::BUS_DEVICE_RESET_FUNCTION_OCCURRED);
    });
}

#[test]
fn a_reset_that_comes_after_the_unit_has_gone_is_the_next_owners() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        let local = rig.owners[1].session(3).ready().await;
        // This gateway has not heard of it yet.
        rig.owners[0].with(|host| host.stop_unit(UNIT)).await;
        let (unit, by) = (rig.unit.clone(), it.nexus.nexus.id);
        let reset = runtime::spawn(async move { unit.have_reset(ResetKind::LogicalUnit, by).await });
        runtime::sleep(Duration::from_millis(200)).await;
        assert!(!reset.is_finished(), "nobody has reset the unit");
        rig.peers.set_owner(UNIT, Some(rig.owners[1].at));
        assert!(reset.await.unwrap());
        local.run(&[0; 6], &[], 0).await.fails(A::BUS_DEVICE_RESET_FUNCTION_OCCURRED);
    });
}

#[test]
fn a_lost_connection_ends_no_command_and_loses_no_outcome() {
    for seed in 1..=5 {
        simulated(
            seed,
            |_| {},
            |_| {},
            |rig: Rc<Rig>| async move {
                let it = rig.session(1).ready().await;
                delay(&rig, Operations::ALL);
                let (_, write) = it.start(&cdb10(0x2a, 0, 1), &[5; 512], 0, false);
                let (_, read) = it.start(&cdb10(0x28, 8, 2048), &[], 1 << 20, false);
                soon(|| rig.faults.waiting() >= 2).await;
                sim::links().into_iter().for_each(sim::reset);
                runtime::sleep(Duration::from_millis(20)).await;
                rig.faults.clear();
                // The write had all of its data: its outcome is kept for the next connection.
                write.await.unwrap().good();
                assert!(read.await.unwrap().good() == vec![0; 1 << 20]);
                assert_eq!(it.read(0, 512).await.good(), [5; 512]);
                // A write that lost its data has no outcome: it is not executed twice.
                let (wire, write) = it.start(&cdb10(0x2a, 0, 256), &pattern(1, 128 << 10), 0, false);
                wire.stuck.set(true);
                runtime::sleep(Duration::from_millis(100)).await;
                wire.go_on();
                drop(write.await.unwrap());
            },
        );
    }
}

#[test]
fn a_read_that_is_executed_again_brings_no_byte_twice() {
    for (seed, lba) in (1..=5).flat_map(|seed| [(seed, 0), (seed, 1)]) {
        simulated(
            seed,
            |_| {},
            |_| {},
            move |rig: Rc<Rig>| async move {
                let it = rig.session(1).ready().await;
                let data = pattern(3, (1 << 20) + 512);
                it.write(0, &data).await.good();
                let (wire, read) = it.start(&cdb10(0x28, lba, 2048), &[], 1 << 20, true);
                soon(|| wire.came() > 0).await;
                let (came, start) = (wire.came(), 512 * lba as usize);
                assert!(came < 1 << 20);
                sim::links().into_iter().for_each(sim::reset);
                runtime::sleep(Duration::from_millis(300)).await;
                wire.go_on();
                let ran = read.await.unwrap();
                // It goes on where a block of 4096 bytes begins at the medium.
                if (start + came).is_multiple_of(4096) {
                    assert!(ran.good() == data[start..start + (1 << 20)], "{came} bytes had come");
                } else {
                    assert_eq!(ran.outcome.sense.unwrap().key, SenseKey::AbortedCommand);
                }
            },
        );
    }
}

#[test]
fn an_initiator_that_takes_nothing_makes_the_owner_read_nothing() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        let before = rig.faults.operations();
        let (wire, read) = it.start(&cdb10(0x28, 0, 7 << 11), &[], 7 << 20, true);
        runtime::sleep(Duration::from_millis(300)).await;
        let meanwhile = rig.faults.operations() - before;
        wire.go_on();
        assert_eq!(read.await.unwrap().good().len(), 7 << 20);
        let all = rig.faults.operations() - before;
        assert!(meanwhile < all / 2, "{meanwhile} of {all} reads");
    });
}

#[test]
fn a_bit_that_flips_ends_the_connection_and_no_command() {
    for seed in 1..=5 {
        simulated(
            seed,
            |_| {},
            |_| {},
            |rig: Rc<Rig>| async move {
                let it = rig.session(1).ready().await;
                it.write(0, &pattern(3, 1 << 20)).await.good();
                for to_server in [true, false] {
                    for link in sim::links() {
                        sim::flip_a_bit(link, to_server);
                    }
                    assert!(it.read(0, 1 << 20).await.good() == pattern(3, 1 << 20));
                }
            },
        );
    }
}

#[test]
fn an_owner_that_is_not_heard_is_connected_again() {
    simulated(
        1,
        |_| {},
        |_| {},
        |rig: Rc<Rig>| async move {
            let it = rig.session(1).ready().await;
            let local = rig.owners[0].session(3).ready().await;
            it.write(0, &pattern(3, 1 << 20)).await.good();
            // It does not read: nothing of the owner waits for it.
            for link in sim::links() {
                sim::deafen(link, Duration::from_secs(30));
            }
            let reads: Vec<_> =
                (0..20).map(|_| it.start(&cdb10(0x28, 0, 2048), &[], 1 << 20, false).1).collect();
            let began = runtime::now();
            local.read(0, 1 << 20).await.good();
            assert!(runtime::now() - began < Duration::from_millis(100));
            for read in reads {
                assert!(read.await.unwrap().good() == pattern(3, 1 << 20));
            }
            assert!(runtime::now() - began < Duration::from_secs(5), "{:?}", runtime::now() - began);
        },
    );
}

#[test]
fn a_stranger_gets_nothing_and_commands_wait_no_longer_than_the_hold() {
    let refused = |rig: Rc<Rig>| async move {
        let it = rig.session(1);
        let began = runtime::now();
        it.run(&[0; 6], &[], 0).await.ends(Status::Busy);
        let took = runtime::now() - began;
        assert!(took >= HOLD && took < HOLD + Duration::from_secs(1), "{took:?}");
        assert!(rig.owners[0].disk.nexuses().is_empty());
    };
    // Another secret, another version, and no member.
    simulated(1, |config| config.life.secret = (1, secret(8)), |_| {}, refused);
    simulated(1, |config| config.life.secret = (2, secret(7)), |_| {}, refused);
    simulated(1, |config| config.life.versions = 2..=3, |_| {}, refused);
    simulated(
        1,
        |_| {},
        |_| {},
        move |rig: Rc<Rig>| async move {
            rig.owners[0].members.store(false, Ordering::SeqCst);
            refused(rig).await;
        },
    );
    let served = |rig: Rc<Rig>| async move { drop(rig.session(1).ready().await) };
    // Releases that have a version in common, over real sockets.
    loopback(|config| config.life.versions = 1..=2, |host| host.versions = 1..=4, served);
    loopback(|config| config.life.versions = 1..=2, |_| {}, served);
    loopback(|_| {}, |host| host.versions = 1..=2, served);
    loopback(|_| {}, |host| host.secrets.extend([(9, secret(9))]), served);
}

#[test]
fn a_command_that_comes_too_late_never_begins() {
    let late = |rig: Rc<Rig>| async move {
        sim::set_network(sim::Network { latency: Duration::from_millis(50), ..sim::Network::default() });
        // Two trips and the time between two beats: older than this owner allows.
        rig.session(1).write(0, &[9; 512]).await.ends(Status::Busy);
        let local = rig.owners[0].session(3).ready().await;
        assert_eq!(local.read(0, 512).await.good(), [0; 512]);
    };
    simulated(1, |_| {}, |host| host.fresh = Duration::from_millis(60), late);
}

#[test]
fn connections_that_say_nothing_are_few_and_end() {
    simulated(
        1,
        |_| {},
        |_| {},
        |rig: Rc<Rig>| async move {
            let to = rig.owners[0].at.address;
            let mut silent = Vec::new();
            for _ in 0..40 {
                silent.push(runtime::TcpStream::connect(to, Duration::from_secs(1)).await.unwrap());
            }
            runtime::sleep(Duration::from_secs(1)).await;
            let mut open = 0;
            for stream in &silent {
                let ended = runtime::timeout(Duration::from_millis(1), stream.recv_some(1)).await;
                open += usize::from(ended.is_err());
            }
            assert_eq!(open, 32);
            runtime::sleep(Duration::from_secs(5)).await;
            drop(rig.session(1).ready().await);
        },
    );
}

#[test]
fn a_fence_ends_what_may_have_run_and_the_next_owner_gets_the_rest() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        delay(&rig, Operations::ALL);
        let (_, write) = it.start(&cdb10(0x2a, 0, 1), &[5; 512], 0, false);
        let (_, read) = it.start(&cdb10(0x28, 8, 8), &[], 4096, false);
        soon(|| rig.faults.waiting() == 2).await;
        rig.peers.fenced(rig.owners[0].at.instance);
        let ended = write.await.unwrap();
        assert_eq!(ended.outcome.sense.unwrap().key, SenseKey::AbortedCommand);
        assert!(!read.is_finished());
        // A command that comes while there is no owner.
        let (_, next) = it.start(&cdb10(0x2a, 16, 1), &[6; 512], 0, false);
        runtime::sleep(Duration::from_millis(300)).await;
        rig.faults.clear();
        rig.peers.set_owner(UNIT, Some(rig.owners[1].at));
        // The next owner knows the session: a new path is told to the first of them, and no reset.
        let changed = |ran: rig::Ran| match ran.outcome.sense {
            Some(sense) => usize::from(sense.additional == A::ASYMMETRIC_ACCESS_STATE_CHANGED),
            None => 0,
        };
        assert_eq!(changed(read.await.unwrap()) + changed(next.await.unwrap()), 1);
        it.write(16, &[6; 512]).await.good();
        assert_eq!(it.read(16, 512).await.good(), [6; 512]);
        let next = BTreeMap::from([(rig.owners[1].at.instance, true)]);
        soon(|| rig.peers.links() == next).await;
    });
}

#[test]
fn a_unit_that_moves_keeps_the_attentions_of_its_sessions() {
    // Told by a look of the owner, and by its last word.
    for pause in [600, 0] {
        both(move |rig: Rc<Rig>| async move {
            let it = rig.session(1).ready().await;
            let local = rig.owners[0].session(3).ready().await;
            change_modes(&local).await;
            runtime::sleep(Duration::from_millis(pause)).await;
            rig.owners[0].with(|host| host.stop_unit(UNIT)).await;
            let (_, waits) = it.start(&[0; 6], &[], 0, false);
            runtime::sleep(Duration::from_millis(200)).await;
            assert!(!waits.is_finished(), "no owner has begun it");
            rig.peers.set_owner(UNIT, Some(rig.owners[1].at));
            waits.await.unwrap().fails(A::MODE_PARAMETERS_CHANGED);
            it.run(&[0; 6], &[], 0).await.fails(A::ASYMMETRIC_ACCESS_STATE_CHANGED);
            it.run(&[0; 6], &[], 0).await.good();
        });
    }
}

#[test]
fn a_session_that_no_owner_has_known_is_told_of_power_on() {
    both(|rig: Rc<Rig>| async move {
        // This gateway has not heard of it yet.
        rig.owners[0].with(|host| host.stop_unit(UNIT)).await;
        let it = rig.session(1);
        let (_, first) = it.start(&[0; 6], &[], 0, false);
        soon(|| rig.peers.forwarded().commands > 0).await;
        assert!(!first.is_finished(), "its owner has refused it");
        rig.peers.set_owner(UNIT, Some(rig.owners[1].at));
        first.await.unwrap().fails(A::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
        it.run(&[0; 6], &[], 0).await.good();
    });
}

/// The unit goes from its first owner to the second one, where its mode pages change, and leaves it.
async fn visits_the_second_owner<U: LogicalUnit>(rig: &Rig, it: &Session<U>) {
    rig.peers.set_owner(UNIT, None);
    rig.owners[0].with(|host| host.stop_unit(UNIT)).await;
    rig.peers.set_owner(UNIT, Some(rig.owners[1].at));
    it.run(&[0; 6], &[], 0).await.fails(A::ASYMMETRIC_ACCESS_STATE_CHANGED);
    change_modes(&rig.owners[1].session(3).ready().await).await;
    runtime::sleep(Duration::from_millis(600)).await;
    rig.peers.set_owner(UNIT, None);
    rig.owners[1].with(|host| host.stop_unit(UNIT)).await;
}

#[test]
fn a_unit_that_comes_back_brings_the_attentions_of_its_way() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        visits_the_second_owner(&rig, &it).await;
        // Its first owner has known the session all the time.
        let disk = rig.owners[0].disk.clone();
        rig.owners[0].with(move |host| host.serve_unit(UNIT, disk, open_gate())).await;
        rig.peers.set_owner(UNIT, Some(rig.owners[0].at));
        it.run(&[0; 6], &[], 0).await.fails(A::MODE_PARAMETERS_CHANGED);
        it.run(&[0; 6], &[], 0).await.fails(A::ASYMMETRIC_ACCESS_STATE_CHANGED);
        it.run(&[0; 6], &[], 0).await.good();
    });
}

#[test]
fn an_owner_that_still_has_a_nexus_takes_the_attentions_since() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        delay(&rig, Operations::READ);
        // It keeps the nexus at the first owner.
        let (unit, nexus) = (rig.unit.clone(), it.nexus.clone());
        let busy = move || async move { Session::of(&unit, &nexus).read(0, 512).await.good() };
        let busy = rig.owners[1].core.call(busy);
        soon(|| rig.faults.waiting() == 1).await;
        visits_the_second_owner(&rig, &it).await;
        let disk = rig.owners[0].disk.clone();
        rig.owners[0].with(move |host| host.serve_unit(UNIT, disk, open_gate())).await;
        // The first owner tells of what it knew last, before it is asked for anything.
        runtime::sleep(Duration::from_millis(600)).await;
        rig.peers.set_owner(UNIT, Some(rig.owners[0].at));
        it.run(&[0; 6], &[], 0).await.fails(A::MODE_PARAMETERS_CHANGED);
        it.run(&[0; 6], &[], 0).await.fails(A::ASYMMETRIC_ACCESS_STATE_CHANGED);
        it.run(&[0; 6], &[], 0).await.good();
        rig.faults.clear();
        assert_eq!(busy.await.unwrap(), [0; 512]);
    });
}

#[test]
fn a_command_of_a_unit_that_the_group_serves_no_more_asks_no_owner() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        rig.owners[0].with(|host| host.stop_unit(UNIT)).await;
        rig.peers.keep(|_| false);
        let (_, waits) = it.start(&[0; 6], &[], 0, false);
        soon(|| rig.peers.links().is_empty()).await;
        let asked = rig.peers.forwarded().commands;
        runtime::sleep(Duration::from_millis(300)).await;
        assert!(!waits.is_finished());
        assert_eq!(rig.peers.forwarded().commands, asked);
        // It is added again.
        rig.peers.set_owner(UNIT, Some(rig.owners[1].at));
        waits.await.unwrap().fails(A::ASYMMETRIC_ACCESS_STATE_CHANGED);
        it.run(&[0; 6], &[], 0).await.good();
    });
}

#[test]
fn a_gateway_that_is_taken_out_while_it_proves_itself_is_not_let_in() {
    both(|rig: Rc<Rig>| async move {
        let owner = rig.owners[0].at;
        // It is taken out meanwhile, or the owner itself, which begins another life.
        for (is_member, is_same_life) in [(true, true), (false, true), (true, false)] {
            rig.owners[0].members.store(true, Ordering::SeqCst);
            let stream = runtime::TcpStream::connect(owner.address, Duration::from_secs(1)).await.unwrap();
            let own = peer_link::Own {
                gateway: 9,
                instance: rig::FORWARDER,
                channel: 7,
                owner: owner.instance,
                versions: 1..=1,
                secret: 1,
                piece: 1 << 16,
            };
            let send = async |bytes: &mut Vec<u8>| {
                let mut gather = runtime::Gather::new();
                gather.push_copy(&std::mem::take(bytes));
                stream.send(gather).await.0.unwrap();
            };
            let mut out = Vec::new();
            let mut calling = peer_link::Calling::open(own, &rig::secret(7), [5; 32], &mut out);
            send(&mut out).await;
            while out.is_empty() {
                let challenge = stream.recv_some(1 << 16).await.unwrap();
                assert!(calling.advance(&mut &challenge[..], &mut out).unwrap().is_none());
            }
            // Its proof is right, and on its way.
            rig.owners[0].members.store(is_member, Ordering::SeqCst);
            rig.owners[0].with(|host| host.forget(rig::FORWARDER)).await;
            if !is_same_life {
                rig.owners[0].with(move |host| host.renew(owner.instance + 0x100)).await;
            }
            send(&mut out).await;
            let answer = stream.recv_some(1 << 16).await;
            let is_let_in = answer.is_ok_and(|bytes| !bytes.is_empty());
            assert_eq!(is_let_in, is_member && is_same_life);
        }
    });
}

#[test]
fn a_gateway_that_is_taken_out_loses_its_nexuses_and_begins_anew() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        it.run(&[0x16, 0, 0, 0, 0, 0], &[], 0).await.good();
        delay(&rig, Operations::WRITE);
        let (_, write) = it.start(&cdb10(0x2a, 0, 1), &[5; 512], 0, false);
        soon(|| rig.faults.waiting() == 1).await;
        let disk: Arc<_> = rig.owners[0].disk.clone();
        rig.owners[0].members.store(false, Ordering::SeqCst);
        rig.owners[0].with(|host| host.forget(rig::FORWARDER)).await;
        runtime::sleep(Duration::from_millis(300)).await;
        assert!(!write.is_finished() && !disk.nexuses().is_empty(), "its write is at the medium");
        // Its next life is let in when the write has ended. Nobody says what became of it.
        rig.owners[0].members.store(true, Ordering::SeqCst);
        rig.peers.renew(Life { instance: rig::FORWARDER + 1, secret: (1, secret(7)), versions: 1..=1 });
        runtime::sleep(Duration::from_secs(3)).await;
        assert!(!write.is_finished(), "its write is at the medium");
        rig.faults.clear();
        assert_eq!(write.await.unwrap().outcome.sense.unwrap().key, SenseKey::AbortedCommand);
        it.run(&[0; 6], &[], 0).await.fails(A::ASYMMETRIC_ACCESS_STATE_CHANGED);
        // The nexus of the life before is gone, and its RESERVE(6) with it.
        soon(|| disk.nexuses().attached().len() == 1).await;
        rig.owners[0].session(3).ready().await.write(0, &[3; 512]).await.good();
    });
}

#[test]
fn a_gateway_that_has_left_gives_no_answer_to_what_may_be_executed() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        delay(&rig, Operations::WRITE);
        let (wire, write) = it.start(&cdb10(0x2a, 0, 1), &[5; 512], 0, false);
        soon(|| rig.faults.waiting() == 1).await;
        rig.owners[0].members.store(false, Ordering::SeqCst);
        rig.owners[0].with(|host| host.forget(rig::FORWARDER)).await;
        rig.peers.leave();
        runtime::sleep(Duration::from_secs(2)).await;
        assert!(!write.is_finished());
        // It ends with its connection.
        wire.abort();
        write.await.unwrap();
        rig.faults.clear();
    });
}

#[test]
fn a_unit_comes_here_with_its_commands_and_goes_again() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        it.write(8, &pattern(1, 512)).await.good();
        it.reserve_out(6, 0, 0xab).await.good();
        rig.peers.set_owner(UNIT, None);
        rig.owners[0].with(|host| host.stop_unit(UNIT)).await;
        // More than goes out with a command.
        let data = pattern(2, 200 << 10);
        let (_, write) = it.start(&cdb10(0x2a, 16, 400), &data, 0, false);
        let (_, read) = it.start(&cdb10(0x28, 8, 1), &[], 512, false);
        runtime::sleep(Duration::from_millis(200)).await;
        assert!(!write.is_finished() && !read.is_finished());
        rig.unit.serve(&rig.disk, open_gate());
        // One of the two is told.
        let (write, read) = (write.await.unwrap(), read.await.unwrap());
        let told: Vec<_> = [&write, &read].into_iter().filter(|ran| ran.outcome.sense.is_some()).collect();
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].outcome.sense.as_ref().unwrap().additional, A::ASYMMETRIC_ACCESS_STATE_CHANGED);
        it.write(16, &data).await.good();
        assert_eq!(it.read(8, 512).await.good(), pattern(1, 512));
        assert_eq!(it.read(16, data.len()).await.good(), data);
        let new = rig.session(2);
        new.run(&[0; 6], &[], 0).await.fails(A::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
        // A unit attention that nobody was told goes along.
        it.nexus.establish(scsi::UnitAttention::ModeParametersChanged);
        rig.unit.stop();
        rig.peers.set_owner(UNIT, Some(rig.owners[1].at));
        rig.owners[1].with(|_| ()).await;
        it.run(&[0; 6], &[], 0).await.fails(A::MODE_PARAMETERS_CHANGED);
        it.run(&[0; 6], &[], 0).await.fails(A::ASYMMETRIC_ACCESS_STATE_CHANGED);
        new.run(&[0; 6], &[], 0).await.fails(A::ASYMMETRIC_ACCESS_STATE_CHANGED);
        assert_eq!(it.read(16, data.len()).await.good(), data);
        assert!(rig.disk.nexuses().is_empty());
    });
}

#[test]
fn a_command_waits_while_its_gateway_may_not_execute() {
    both(|rig: Rc<Rig>| async move {
        rig.peers.set_owner(UNIT, None);
        let admits = Arc::new(AtomicBool::new(false));
        let gate = admits.clone();
        rig.unit
            .serve(&rig.disk, Arc::new(move || gate.load(Ordering::SeqCst).then(|| Box::new(()) as Begun)));
        let it = rig.session(1);
        let (_, waits) = it.start(&[0; 6], &[], 0, false);
        runtime::sleep(Duration::from_millis(300)).await;
        assert!(!waits.is_finished());
        admits.store(true, Ordering::SeqCst);
        waits.await.unwrap().fails(A::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
        admits.store(false, Ordering::SeqCst);
        it.run(&[0; 6], &[], 0).await.ends(Status::Busy);
    });
}

#[test]
fn a_reset_of_the_owners_initiator_ends_commands_of_other_gateways() {
    both(|rig: Rc<Rig>| async move {
        // The owner's own initiators see the unit as the group's too.
        let own = Session::new(&rig.unit, 5);
        let other = rig.session(6).ready().await;
        rig.peers.set_owner(UNIT, None);
        rig.unit.serve(&rig.disk, open_gate());
        own.run(&[0; 6], &[], 0).await.fails(A::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
        other.run(&[0; 6], &[], 0).await.fails(A::ASYMMETRIC_ACCESS_STATE_CHANGED);
        own.run(&[0x16, 0, 0, 0, 0, 0], &[], 0).await.good();
        assert!(rig.unit.have_reset(device::ResetKind::LogicalUnit, other.nexus.nexus.id).await);
        own.run(&[0; 6], &[], 0).await.fails(A::BUS_DEVICE_RESET_FUNCTION_OCCURRED);
        other.run(&[0; 6], &[], 0).await.fails(A::BUS_DEVICE_RESET_FUNCTION_OCCURRED);
        other.run(&[0x16, 0, 0, 0, 0, 0], &[], 0).await.good();
    });
}

#[test]
fn a_command_of_an_initiator_that_may_have_gone_does_not_begin() {
    both(|rig: Rc<Rig>| async move {
        let it = rig.session(1).ready().await;
        for is_here in [false, true] {
            if is_here {
                rig.peers.set_owner(UNIT, None);
                rig.unit.serve(&rig.disk, open_gate());
                it.run(&[0; 6], &[], 0).await.fails(A::ASYMMETRIC_ACCESS_STATE_CHANGED);
            }
            let (wire, write) = it.start(&cdb10(0x2a, 0, 1), &[5; 512], 0, false);
            wire.away.set(true);
            runtime::sleep(Duration::from_secs(1)).await;
            assert!(!write.is_finished());
            assert_eq!(it.read(0, 512).await.good(), [0; 512]);
            wire.abort();
            write.await.unwrap();
            let (wire, write) = it.start(&cdb10(0x2a, 0, 1), &[6; 512], 0, false);
            wire.away.set(true);
            runtime::sleep(Duration::from_millis(100)).await;
            wire.away.set(false);
            write.await.unwrap().good();
            assert_eq!(it.read(0, 512).await.good(), [6; 512]);
            it.write(0, &[0; 512]).await.good();
        }
    });
}
