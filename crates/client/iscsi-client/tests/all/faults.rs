//! The library against a target that breaks connections, corrupts bytes, delays and refuses: a read
//! always returns the written data.

use std::time::{Duration, Instant};

use crate::fake::{BLOCK, Fake, Faults, churn};
use iscsi::keys::Offer;
use iscsi::login::initiator::InitiatorLoginError;
use iscsi::pdu::{AsyncEvent, LoginStatus};
use iscsi_client::{DigestChoice, Disk, Error, Lun, Options, Session, TaskManagementFunction, Unit};
use runtime::{Buf, Runtime};
use scsi::cdb::build;

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = Runtime::new(runtime::Config::default()).expect("io_uring works here");
    runtime.block_on(async {
        runtime::timeout(Duration::from_secs(300), test).await.expect("the test ends in time")
    })
}

async fn open(fake: &Fake, options: Options) -> Disk {
    let session = Session::connect(&fake.url(), options).await.expect("a session");
    Disk::open(&session, 0).await.expect("a disk")
}

#[test]
fn a_stream_in_crumbs_is_put_together() {
    for (crumb, digest) in
        [(1, DigestChoice::Require), (7, DigestChoice::Never), (3000, DigestChoice::Require)]
    {
        run(async {
            let fake = Fake::start(Faults { crumb, ..Faults::default() }, Offer::default(), 2048);
            let options = Options { header_digest: digest, data_digest: digest, ..Options::default() };
            let disk = open(&fake, options).await;
            let rounds = if crumb == 1 { 2 } else { 12 };
            churn(&disk, 4, rounds, crumb as u64).await;
            assert_eq!(disk.session().reconnects(), 0);
            disk.session().close().await.unwrap();
        });
    }
}

#[test]
fn nothing_follows_a_logout_though_commands_wait_for_the_window() {
    run(async {
        // The answers arrive one by one, and each opens the window for one more command.
        let fake = Fake::start(Faults { crumb: 100, ..Faults::default() }, Offer::default(), 2048);
        fake.state.borrow_mut().depth = 4;
        let disk = open(&fake, Options { queue_depth: 64, ..Options::default() }).await;
        let reads: Vec<_> = (0..64)
            .map(|block| {
                let disk = disk.clone();
                runtime::spawn(async move { disk.read(block, 8).await.is_ok() })
            })
            .collect();
        let done = |fake: &Fake| {
            fake.state
                .borrow()
                .ran
                .iter()
                .filter(|(op, _)| [0x28, 0x88].contains(*op))
                .map(|(_, n)| n)
                .sum::<u32>()
        };
        while done(&fake) < 8 {
            runtime::yield_now().await;
        }
        disk.session().close().await.unwrap();
        let mut read = 0;
        for task in reads {
            read += u32::from(task.await.unwrap());
        }
        assert!(read < 64, "some were waiting");
        assert_eq!(fake.state.borrow().late, 0);
    });
}

#[test]
fn connections_that_break_off_anywhere_are_made_anew_and_no_data_is_wrong() {
    for seed in 0..6 {
        run(async {
            let faults = Faults { seed, break_after: 600_000, crumb: 20_000, ..Faults::default() };
            let fake = Fake::start(faults, Offer::default(), 4096);
            let connections = 1 + (seed % 3) as u16;
            let options = Options { connections, queue_depth: 24, max_replays: 200, ..Options::default() };
            let disk = open(&fake, options).await;
            churn(&disk, 6, 30, seed).await;
            assert!(disk.session().reconnects() > 0, "seed {seed}");
            // The connection may break during the logout too; then no session is left.
            disk.session().close().await.unwrap();
        });
    }
}

#[test]
fn garbled_bytes_are_found_by_digests_and_no_data_is_wrong() {
    for seed in 0..6 {
        run(async {
            let faults = Faults { seed, garble_after: 900_000, crumb: 30_000, ..Faults::default() };
            let fake = Fake::start(faults, Offer::default(), 4096);
            let options = Options {
                header_digest: DigestChoice::Require,
                data_digest: DigestChoice::Require,
                connections: 1 + (seed % 2) as u16,
                max_replays: 200,
                // A corrupted length may make us wait for bytes that never come.
                ping_interval: Duration::from_millis(300),
                command_timeout: Duration::from_secs(1),
                ..Options::default()
            };
            let disk = open(&fake, options).await;
            churn(&disk, 5, 30, seed).await;
            assert!(disk.session().reconnects() > 0, "seed {seed}");
            let _ = disk.session().close().await;
        });
    }
}

#[test]
fn lost_and_damaged_pdus_are_recovered_within_the_session() {
    let mut snacks = 0;
    for seed in 0..6 {
        snacks += run(async {
            let spoil_one_in = if seed % 3 == 0 { 0 } else { 60 };
            let lose_one_in = if seed % 3 == 1 { 0 } else { 150 };
            let faults = Faults { seed, lose_one_in, spoil_one_in, crumb: 30_000, ..Faults::default() };
            let offer = Offer {
                error_recovery_level: 1,
                max_recv_data_segment_length: 8192,
                max_burst_length: 32_768,
                first_burst_length: 16_384,
                initial_r2t: seed % 2 == 0,
                ..Offer::default()
            };
            let fake = Fake::start(faults, offer, 4096);
            let options = Options {
                header_digest: DigestChoice::Require,
                data_digest: DigestChoice::Require,
                connections: 1 + (seed % 2) as u16,
                max_recv_data_segment_length: 8192,
                ping_interval: Duration::from_millis(400),
                command_timeout: Duration::from_secs(20),
                ..Options::default()
            };
            let disk = open(&fake, options).await;
            churn(&disk, 5, 20, seed).await;
            let counted = disk.session().recoveries();
            assert_eq!(disk.session().reconnects(), 0, "seed {seed}: {counted:?}");
            let _ = disk.session().close().await;
            counted.snacks()
        });
    }
    // The speed of this machine decides how many PDUs there are, and so which of them a seed loses.
    assert!(snacks > 0);
}

#[test]
fn a_header_with_a_wrong_digest_costs_that_pdu_only_and_no_data_is_wrong() {
    for (seed, data_digest, crumb) in
        [(1, DigestChoice::Require, 30_000), (2, DigestChoice::Never, 700), (3, DigestChoice::Require, 61)]
    {
        run(async {
            let faults = Faults { seed, spoil_header_one_in: 50, crumb, ..Faults::default() };
            let offer = Offer {
                error_recovery_level: 1,
                max_recv_data_segment_length: 8192,
                max_burst_length: 32_768,
                first_burst_length: 16_384,
                ..Offer::default()
            };
            let fake = Fake::start(faults, offer, 4096);
            let options = Options {
                header_digest: DigestChoice::Require,
                data_digest,
                max_recv_data_segment_length: 8192,
                ping_interval: Duration::from_millis(400),
                command_timeout: Duration::from_secs(20),
                ..Options::default()
            };
            let disk = open(&fake, options).await;
            churn(&disk, 5, 16, seed).await;
            let counted = disk.session().recoveries();
            assert_eq!(disk.session().reconnects(), 0, "seed {seed}: {counted:?}");
            assert!(counted.digest_errors > 3, "seed {seed}: {counted:?}");
            let _ = disk.session().close().await;
        });
    }
}

#[test]
fn commands_spread_over_all_connections_of_a_session() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 4096);
        let disk = open(&fake, Options { connections: 4, ..Options::default() }).await;
        assert_eq!((disk.session().connections(), fake.connections()), (4, 4));
        churn(&disk, 8, 40, 1).await;
        assert_eq!(fake.state.borrow().logins, 4);
        disk.session().close().await.unwrap();

        let fewer = Fake::start(Faults::default(), Offer { max_connections: 2, ..Offer::default() }, 4096);
        let disk = open(&fewer, Options { connections: 4, ..Options::default() }).await;
        assert_eq!(disk.session().connections(), 2, "as many as the target allows");
        disk.session().close().await.unwrap();
    });
}

#[test]
fn every_way_of_moving_write_data_works() {
    let base = Offer::default();
    for offer in [
        Offer { initial_r2t: true, immediate_data: false, ..base.clone() },
        Offer { initial_r2t: true, immediate_data: true, first_burst_length: 4096, ..base.clone() },
        Offer { initial_r2t: false, immediate_data: false, first_burst_length: 9000, ..base.clone() },
        Offer { max_burst_length: 5000, max_outstanding_r2t: 1, max_recv_data_segment_length: 777, ..base },
    ] {
        run(async {
            let fake = Fake::start(Faults::default(), offer, 2048);
            let disk =
                open(&fake, Options { max_recv_data_segment_length: 3000, ..Options::default() }).await;
            churn(&disk, 3, 12, 5).await;
            disk.session().close().await.unwrap();
        });
    }
}

#[test]
fn a_long_write_that_fails_in_part_has_nothing_on_its_way_when_it_ends() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 16_384);
        let disk = open(&fake, Options::default()).await;
        let piece = disk.max_transfer() as usize * BLOCK;
        fake.state.borrow_mut().failing = 1;
        let error = disk.write(0, Buf::from(vec![7; 8 * piece])).await.unwrap_err();
        assert_eq!(error.sense_key(), Some(scsi::SenseKey::MediumError));
        // The others have run.
        let written = fake.state.borrow().disk.iter().filter(|byte| **byte == 7).count();
        assert_eq!(written, 7 * piece);
        disk.session().close().await.unwrap();
    });
}

#[test]
fn a_target_that_is_busy_for_a_while_is_tried_until_it_lets_us_in() {
    run(async {
        let fake = Fake::start(Faults { refuse_logins: 2..5, ..Faults::default() }, Offer::default(), 64);
        let disk = open(&fake, Options::default()).await;
        fake.announce(AsyncEvent::DropSession);
        disk.write(1, Buf::from(vec![7; BLOCK])).await.unwrap();
        // The loss may happen after the write; a later read is certain to succeed.
        while disk.session().reconnects() == 0 {
            runtime::sleep(Duration::from_millis(10)).await;
        }
        assert!(disk.read(1, 1).await.unwrap().to_vec() == [7; BLOCK]);
        assert_eq!(fake.state.borrow().logins, 5);
        disk.session().close().await.unwrap();
    });
}

#[test]
fn a_target_that_refuses_for_good_is_not_tried_to_the_end_of_the_time() {
    use LoginStatus::{AuthenticationFailure, InitiatorError, NotFound, UnsupportedVersion};
    for (refuse_with, most_logins) in
        [(AuthenticationFailure, 2), (UnsupportedVersion, 4), (InitiatorError, 4), (NotFound, 200)]
    {
        run(async {
            let faults = Faults { refuse_logins: 2..u32::MAX, refuse_with, ..Faults::default() };
            let fake = Fake::start(faults, Offer::default(), 64);
            let time = Duration::from_secs(18);
            let disk = open(&fake, Options { reconnect_timeout: time, ..Options::default() }).await;
            let begun = Instant::now();
            fake.announce(AsyncEvent::DropSession);
            let error = loop {
                match disk.read(0, 1).await {
                    Ok(_) => runtime::yield_now().await,
                    Err(error) => break error,
                }
            };
            assert_eq!(error, InitiatorLoginError::Status(refuse_with).into());
            assert!(begun.elapsed() < time / 2, "{refuse_with}: {:?}", begun.elapsed());
            let logins = fake.state.borrow().logins;
            assert!(logins <= most_logins, "{refuse_with}: {logins} logins");
        });
    }
}

#[test]
fn a_target_temporarily_not_found_is_retried_until_it_is_there() {
    run(async {
        let faults = Faults { refuse_logins: 2..5, refuse_with: LoginStatus::NotFound, ..Faults::default() };
        let fake = Fake::start(faults, Offer::default(), 64);
        let disk = open(&fake, Options::default()).await;
        fake.announce(AsyncEvent::DropSession);
        while disk.session().reconnects() == 0 {
            runtime::sleep(Duration::from_millis(10)).await;
        }
        disk.read(0, 1).await.unwrap();
        disk.session().close().await.unwrap();
    });
}

#[test]
fn a_logout_that_the_target_asks_for_is_followed_by_a_new_session() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 64);
        let disk = open(&fake, Options { connections: 2, ..Options::default() }).await;
        fake.announce(AsyncEvent::LogoutRequest);
        while disk.session().reconnects() == 0 {
            runtime::sleep(Duration::from_millis(10)).await;
        }
        disk.read(0, 8).await.unwrap();
        disk.session().close().await.unwrap();
    });
}

#[test]
fn what_must_not_be_repeated_is_lost_and_said_to_be() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 64);
        let disk = open(&fake, Options::default()).await;
        assert!(
            disk.compare_and_write(0, Buf::from(vec![0; BLOCK]), Buf::from(vec![1; BLOCK])).await.unwrap()
        );
        assert!(
            !disk.compare_and_write(0, Buf::from(vec![0; BLOCK]), Buf::from(vec![1; BLOCK])).await.unwrap()
        );
        // The answer to the next one never arrives: its connection breaks first.
        fake.state.borrow_mut().faults.break_after = 1;
        fake.announce(AsyncEvent::DropSession);
        while disk.session().reconnects() == 0 {
            runtime::sleep(Duration::from_millis(5)).await;
        }
        let unit: &Unit = &disk;
        let outcome = unit.scsi_command(&build::test_unit_ready(), None, None).await;
        assert!(matches!(outcome, Err(Error::Lost(_))), "{outcome:?}");
        fake.state.borrow_mut().faults.break_after = 0;
        // Repeatable commands succeed.
        disk.read(0, 1).await.unwrap();
        disk.session().close().await.unwrap();
    });
}

#[test]
fn a_command_that_is_lost_again_and_again_fails_in_the_end() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 64);
        let options = Options { max_replays: 3, ..Options::default() };
        let disk = open(&fake, options).await;
        fake.state.borrow_mut().faults.break_after = 1;
        fake.announce(AsyncEvent::DropSession);
        let begun = Instant::now();
        let outcome = disk.read(0, 1).await;
        assert!(matches!(outcome, Err(Error::Lost(_))), "{outcome:?}");
        assert!(begun.elapsed() < Duration::from_secs(60));
        fake.state.borrow_mut().faults.break_after = 0;
        disk.read(0, 1).await.unwrap();
        disk.session().close().await.unwrap();
    });
}

#[test]
fn task_management_is_answered() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 64);
        let disk = open(&fake, Options::default()).await;
        let result =
            disk.session().task_management(TaskManagementFunction::LogicalUnitReset, Lun::ZERO).await;
        assert_eq!(result.unwrap(), Some(iscsi_client::TaskManagementResult::FunctionComplete));
        disk.session().close().await.unwrap();
    });
}

/// Of a function's own session, and sent before it on any connection.
#[test]
fn commands_that_a_function_aborts_end_with_an_error_of_their_own() {
    use TaskManagementFunction as Function;
    for (function, others_end) in [
        (Function::AbortTaskSet, false),
        (Function::ClearTaskSet, false),
        (Function::LogicalUnitReset, false),
        (Function::TargetWarmReset, true),
    ] {
        run(async {
            let fake = Fake::start(Faults::default(), Offer::default(), 64);
            let offer = Offer { max_connections: 2, ..Offer::default() };
            fake.state.borrow_mut().offer = offer;
            let disk = open(&fake, Options { connections: 2, ..Options::default() }).await;
            let session = disk.session();
            // SYNCHRONIZE CACHE.
            let cdb = build::synchronize_cache10();
            fake.state.borrow_mut().hangs = Some(cdb[0]);
            let mut named = Vec::new();
            for _ in 0..4 {
                named.push(session.start(disk.command(&cdb)).await.unwrap());
            }
            let far = iscsi_client::Command::new(Lun::new(5).unwrap(), &cdb);
            let mut other = session.start(far).await.unwrap();
            let result = session.task_management(function, Lun::ZERO).await;
            assert_eq!(result.unwrap(), Some(iscsi_client::TaskManagementResult::FunctionComplete));
            for ticket in named {
                assert_eq!(ticket.await.unwrap_err(), Error::Aborted);
            }
            let ended = runtime::timeout(Duration::from_millis(20), &mut other).await;
            assert_eq!(ended.is_ok(), others_end, "{function}");
            disk.read(0, 1).await.unwrap();
            assert_eq!((session.reconnects(), session.connections()), (0, 2));
            session.close().await.unwrap();
        });
    }
}

#[test]
fn an_aborted_command_ends_and_its_neighbour_does_not() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 64);
        fake.state.borrow_mut().depth = 2;
        let disk = open(&fake, Options::default()).await;
        let session = disk.session();
        let cdb = build::synchronize_cache10();
        fake.state.borrow_mut().hangs = Some(cdb[0]);
        let mut tickets = Vec::new();
        for _ in 0..3 {
            tickets.push(session.start(disk.command(&cdb)).await.unwrap());
        }
        // It waits for the window, and never reaches the target.
        let waiting = tickets.remove(2);
        assert_eq!(session.abort(&waiting).await, Ok(true));
        assert_eq!(waiting.await.unwrap_err(), Error::Aborted);
        let sent = tickets.remove(0);
        assert_eq!(session.abort(&sent).await, Ok(true));
        assert_eq!(sent.await.unwrap_err(), Error::Aborted);
        let mut left = tickets.remove(0);
        assert!(runtime::timeout(Duration::from_millis(20), &mut left).await.is_err());
        let mut read = session.start(disk.command(&build::test_unit_ready())).await.unwrap();
        (&mut read).await.unwrap();
        // It has ended: there is nothing to abort.
        assert_eq!(session.abort(&read).await, Ok(false));
        session.close().await.unwrap();
    });
}

#[test]
fn a_session_that_nobody_holds_leaves_nothing_behind() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 64);
        let used = runtime::pool::stats().in_use;
        for _ in 0..20 {
            let disk = open(&fake, Options { connections: 3, ..Options::default() }).await;
            let cdb = build::read10(0, 16, build::Flags::default());
            let ticket = disk.session().start(disk.command(&cdb).reading(8192)).await.unwrap();
            drop(disk);
            // The session ended before the ticket.
            assert_eq!(ticket.await.unwrap_err(), Error::Closed);
        }
        while fake.connections() > 0 {
            runtime::sleep(Duration::from_millis(5)).await;
        }
        assert!(runtime::pool::stats().in_use <= used + (1 << 20), "{:?}", runtime::pool::stats());
    });
}

#[test]
fn more_commands_than_the_depth_wait_their_turn() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 4096);
        let disk = open(&fake, Options { queue_depth: 3, ..Options::default() }).await;
        churn(&disk, 40, 5, 3).await;
        disk.session().close().await.unwrap();
    });
}

#[test]
fn a_read_that_could_wait_for_its_own_memory_is_refused() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 64);
        let disk = open(&fake, Options::default()).await;
        assert!(matches!(disk.read(0, u32::MAX).await, Err(Error::Argument(_))));
        disk.session().close().await.unwrap();
    });
}
