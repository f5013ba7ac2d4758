//! Sessions over iSER, against a target that behaves, that lies, and that is cut off. A read always
//! returns the written data, and the target has no access to memory that was returned to its owner.

use std::time::{Duration, Instant};

use crate::fake::{BLOCK, TARGET, churn};
use crate::fake_iser::proxy::{Fault, Proxy};
use crate::fake_iser::{Fake, Lie, Manners};
use iscsi::keys::Offer;
use iscsi_client::{
    Chap, Command, Completed, Crc, Credential, Disk, Error, Lun, Options, Secret, Session,
    TaskManagementFunction, Transfer, Unit,
};
use runtime::{Buf, Chain, Runtime, pool};
use scsi::cdb::build::{self, Flags};

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

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(31) ^ (i >> 9) ^ seed) as u8).collect()
}

fn buffer(len: usize) -> runtime::BufMut {
    let mut buffer = pool::alloc(len).expect("memory");
    buffer.set_len(len);
    buffer
}

/// With and without CRC and invalidation.
#[test]
fn reads_return_written_data_at_every_size() {
    for (crc, invalidates) in
        [(Crc::Never, true), (Crc::Require, true), (Crc::Never, false), (Crc::Require, false)]
    {
        run(async {
            let manners = Manners { crc, invalidates, ..Manners::default() };
            let fake = Fake::start(manners, 16384);
            let options = Options { iser_crc: crc, iser_markers: invalidates, ..Options::default() };
            let disk = open(&fake, options).await;
            for shift in 0..14 {
                let data = pattern(shift, BLOCK << shift);
                disk.write(shift, Buf::from(data.clone())).await.unwrap();
                let read = disk.read(shift, 1 << shift).await.unwrap().to_vec();
                assert!(read == data, "{} bytes", BLOCK << shift);
            }
            assert!(disk.session().params().rdma_extensions);
            assert_eq!(disk.session().reconnects(), 0);
            disk.session().close().await.unwrap();
        });
    }
}

#[test]
fn a_command_of_many_buffers_is_one_stag() {
    run(async {
        let fake = Fake::start(Manners::default(), 32768);
        let disk = open(&fake, Options::default()).await;
        let blocks = 5 * 2048 + 7;
        let data = pattern(5, blocks as usize * BLOCK);
        let half = data.len() / 2;
        let chain: Chain =
            [Buf::from(data[..half].to_vec()), Buf::from(data[half..].to_vec())].into_iter().collect();
        let write = disk.command(&build::write(3, blocks, Flags::default())).writing(chain);
        disk.session().execute(write).await.unwrap().ok().unwrap();
        let read = disk.command(&build::read(3, blocks, Flags::default())).reading(data.len() as u32);
        let response = disk.session().execute(read).await.unwrap().ok().unwrap();
        assert!(response.data.to_vec() == data);
        let ran = fake.state.borrow().ran.clone();
        let commands = [0x28, 0x88].iter().filter_map(|opcode| ran.get(opcode)).sum::<u32>();
        assert_eq!(commands, 1, "one read");
        disk.session().close().await.unwrap();
    });
}

#[test]
fn short_writes_go_with_their_command_and_long_ones_are_fetched() {
    // A target that agrees to the highest value has repeated the offer.
    for (agreed, limit, immediate, fetched) in [
        (65_536, 8192, 8192, 16384),
        (65_536, 0, 0, 24576),
        (65_536, 1 << 20, 24576, 0),
        (12_288, 1 << 20, 8192, 16384),
        (0xff_ffff, 1 << 20, 8192, 16384),
    ] {
        run(async {
            let fake = Fake::start(
                Manners {
                    offer: Offer {
                        target_recv_data_segment_length: agreed,
                        initial_r2t: true,
                        ..Manners::default().offer
                    },
                    ..Manners::default()
                },
                256,
            );
            let disk = open(&fake, Options { iser_unsolicited: limit, ..Options::default() }).await;
            for blocks in [16, 32] {
                disk.write(0, Buf::from(pattern(1, blocks * BLOCK))).await.unwrap();
            }
            let state = fake.state.borrow();
            assert_eq!((state.immediate, state.fetched), (immediate, fetched), "{agreed}, limit {limit}");
        });
    }
}

#[test]
fn a_read_that_ends_early_is_as_long_as_its_residual_says() {
    run(async {
        let fake = Fake::start(Manners::default(), 64);
        let session = Session::connect(&fake.url(), Options::default()).await.unwrap();
        let disk = Disk::open(&session, 0).await.unwrap();
        let inquiry = Command::new(Lun::ZERO, &[0x12, 0, 0, 0, 255, 0]).reading(255);
        let response = session.execute(inquiry).await.unwrap().ok().unwrap();
        assert!(response.data.len() < 255 && response.data.len() >= 36, "{}", response.data.len());
        let bad = disk.read(1000, 1).await.unwrap_err();
        assert!(bad.sense_key().is_some(), "sense data come in the message: {bad}");
    });
}

#[test]
fn readers_and_writers_do_not_notice_a_target_that_drops_them() {
    for (seed, invalidates) in [(1, true), (2, false)] {
        run(async {
            let manners = Manners { drop_after: 40, invalidates, ..Manners::default() };
            let fake = Fake::start(manners, 4096);
            let options = Options { max_replays: 200, queue_depth: 24, ..Options::default() };
            let disk = open(&fake, options).await;
            churn(&disk, 5, 30, seed).await;
            assert!(disk.session().reconnects() > 2);
            let _ = disk.session().close().await;
        });
    }
}

/// A disk behind a proxy.
async fn behind(fake: &Fake, fault: Fault, seed: u64, options: Options) -> (Disk, Proxy) {
    let proxy = Proxy::start(fake.port, fault, seed);
    let url = format!("iser://127.0.0.1:{}/{TARGET}/0", proxy.port).parse().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        // The first connection may break during its login.
        let opened = match Session::connect(&url, options.clone()).await {
            Ok(session) => Disk::open(&session, 0).await,
            Err(error) => Err(error),
        };
        match opened {
            Ok(disk) => return (disk, proxy),
            Err(error) if Instant::now() > deadline => panic!("{error}"),
            Err(_) => {}
        }
    }
}

#[test]
fn connections_that_break_off_anywhere_are_made_anew_and_no_data_is_wrong() {
    for seed in 0..4 {
        run(async {
            let fake = Fake::start(Manners::default(), 4096);
            let options = Options { max_replays: 200, queue_depth: 24, ..Options::default() };
            let (disk, proxy) = behind(&fake, Fault::Break(600_000), seed, options).await;
            churn(&disk, 5, 25, seed).await;
            assert!(proxy.done.get() > 0 && disk.session().reconnects() > 0, "seed {seed}");
            let _ = disk.session().close().await;
        });
    }
}

#[test]
fn a_target_whose_data_comes_slowly_is_not_taken_for_dead() {
    run(async {
        let fake = Fake::start(Manners::default(), 4096);
        let data = pattern(9, 4096 * BLOCK);
        fake.state.borrow_mut().disk.copy_from_slice(&data);
        let options = Options { ping_interval: Duration::from_millis(400), ..Options::default() };
        // A read of 2.5 s, then the answers to the pings sent meanwhile.
        let (disk, proxy) = behind(&fake, Fault::Slow(Duration::from_millis(20)), 1, options).await;
        let read = disk.command(&build::read(0, 4096, Flags::default())).reading(data.len() as u32);
        let response = disk.session().execute(read).await.unwrap().ok().unwrap();
        assert!(response.data.to_vec() == data);
        assert!(proxy.done.get() >= 128, "it came in pieces");
        assert_eq!(disk.session().reconnects(), 0);
        disk.session().close().await.unwrap();
    });
}

#[test]
fn garbled_bytes_are_found_by_the_crc_and_no_data_is_wrong() {
    for seed in 0..4 {
        run(async {
            let fake = Fake::start(Manners { crc: Crc::Require, ..Manners::default() }, 4096);
            let options = Options {
                max_replays: 200,
                iser_crc: Crc::Require,
                // A corrupted length may make us wait for bytes that never come.
                ping_interval: Duration::from_millis(300),
                command_timeout: Duration::from_secs(1),
                ..Options::default()
            };
            let (disk, proxy) = behind(&fake, Fault::Garble(500_000), seed, options).await;
            churn(&disk, 5, 25, seed).await;
            assert!(proxy.done.get() > 0 && disk.session().reconnects() > 0, "seed {seed}");
            let _ = disk.session().close().await;
        });
    }
}

/// An FPDU without CRC of these bytes.
fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(ulpdu);
    bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
    bytes
}

#[test]
fn a_wild_terminate_ends_the_session_and_the_next_one_goes_on() {
    // RFC 5040 §4.8: untagged, queue 2, message 1, then the error; and some invalid Terminates.
    let terminate = |control: [u8; 4]| {
        let mut ulpdu = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
        ulpdu.extend(control);
        ulpdu
    };
    let mut wild: Vec<Vec<u8>> =
        [[0x00, 0x05, 0, 0], [0x11, 0x02, 0, 0], [0x22, 0xff, 0, 0], [0xff; 4], [0; 4]]
            .into_iter()
            .map(|control| fpdu(&terminate(control)))
            .collect();
    // One truncated, one longer than allowed, one of another message number; FPDUs without content
    // and with random bytes.
    wild.push(fpdu(&terminate([0; 4])[..16]));
    wild.push(fpdu(&[&terminate([0x11, 0x02, 0, 0])[..], &[0xaa; 500]].concat()));
    wild.push(fpdu(&[0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]));
    wild.push(fpdu(&[]));
    wild.push(fpdu(&[0xff; 40]));
    for (number, bytes) in wild.into_iter().enumerate() {
        run(async {
            let fake = Fake::start(Manners { crc: Crc::Never, ..Manners::default() }, 256);
            let options = Options { iser_crc: Crc::Never, ..Options::default() };
            // In the middle of the traffic: the login takes two messages.
            let (disk, proxy) = behind(&fake, Fault::Insert(30, bytes), 1, options).await;
            churn(&disk, 3, 20, number as u64).await;
            assert_eq!(proxy.done.get(), 1, "number {number}");
            assert_eq!(disk.session().reconnects(), 1, "number {number}");
            disk.session().close().await.unwrap();
        });
    }
}

#[test]
fn a_target_that_breaks_the_rules_costs_its_session_and_no_data_is_wrong() {
    use Lie::*;
    let lies = [
        HugeResidual,
        UnknownStag,
        DataIn,
        R2t,
        Hello,
        Garbage,
        Short,
        Long,
        WriteBeyond,
        WildWrite,
        WrongWay,
        Twice,
        Vanish,
    ];
    for lie in lies {
        run(async {
            let fake = Fake::start(Manners::default(), 256);
            let disk = open(&fake, Options::default()).await;
            let data = pattern(3, 64 * BLOCK);
            disk.write(0, Buf::from(data.clone())).await.unwrap();
            fake.lie(lie);
            let read = disk.read(0, 64).await;
            match read {
                Ok(read) => assert!(read.to_vec() == data, "{lie:?}"),
                // A command with an implausible end may fail, but nothing else.
                Err(error) => assert!(matches!(error, Error::Lost(_)), "{lie:?}: {error}"),
            }
            let again = disk.read(0, 64).await.unwrap_or_else(|e| panic!("{lie:?}: {e}"));
            assert!(again.to_vec() == data, "{lie:?}");
            assert_eq!(disk.session().reconnects(), 1, "{lie:?}");
            disk.session().close().await.unwrap();
        });
    }
    for lie in [ReadBeyond, WrongWay] {
        run(async {
            let fake = Fake::start(Manners::default(), 256);
            let disk = open(&fake, Options { iser_unsolicited: 0, ..Options::default() }).await;
            fake.lie(lie);
            let data = pattern(4, 64 * BLOCK);
            disk.write(0, Buf::from(data.clone())).await.unwrap();
            assert!(disk.read(0, 64).await.unwrap().to_vec() == data, "{lie:?}");
            assert_eq!(disk.session().reconnects(), 1, "{lie:?}");
        });
    }
}

#[test]
fn a_target_that_lies_about_what_it_moved_is_not_believed() {
    for (lie, moved) in [(Lie::NoData, 0), (Lie::HalfData, 32 * BLOCK)] {
        run(async {
            let fake = Fake::start(Manners::default(), 256);
            let disk = open(&fake, Options::default()).await;
            let data = pattern(3, 64 * BLOCK);
            disk.write(0, Buf::from(data.clone())).await.unwrap();
            fake.lie(lie);
            let read = disk.command(&build::read(0, 64, Flags::default())).reading(data.len() as u32);
            let response = disk.session().execute(read).await.unwrap().ok().unwrap();
            assert!(response.data.to_vec() == data[..moved], "{lie:?}: {}", response.data.len());
            fake.lie(lie);
            disk.read(0, 64).await.unwrap_err();
            assert!(disk.read(0, 64).await.unwrap().to_vec() == data);
            assert_eq!(disk.session().reconnects(), 0);
        });
    }
}

#[test]
fn memory_is_out_of_reach_before_its_owner_is_told() {
    run(async {
        let fake = Fake::start(Manners::default(), 256);
        let disk = open(&fake, Options::default()).await;
        let data = pattern(3, 64 * BLOCK);
        disk.write(0, Buf::from(data.clone())).await.unwrap();
        fake.lie(Lie::WriteLate);
        let read = disk.read(0, 64).await.unwrap();
        for _ in 0..50 {
            assert!(read.to_vec() == data);
            runtime::sleep(Duration::from_millis(2)).await;
        }
        // The late write had no effect, and cost its connection.
        assert!(disk.read(0, 64).await.unwrap().to_vec() == data);
        assert_eq!(disk.session().reconnects(), 1);
    });
}

#[test]
fn an_invalidation_of_another_commands_stag_ends_the_session() {
    run(async {
        let fake = Fake::start(Manners::default(), 256);
        let disk = open(&fake, Options::default()).await;
        let data = pattern(3, 64 * BLOCK);
        disk.write(0, Buf::from(data.clone())).await.unwrap();
        fake.state.borrow_mut().deaf = true;
        let reader = disk.clone();
        let kept = runtime::spawn(async move { reader.read(0, 64).await });
        while ![0x28, 0x88].iter().any(|opcode| fake.state.borrow().ran.contains_key(opcode)) {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        fake.state.borrow_mut().deaf = false;
        fake.lie(Lie::ForeignStag);
        let error = disk.read(0, 64).await.unwrap_err();
        assert!(error.to_string().contains("not its command's"), "{error}");
        // The command that owns the STag is repeated.
        assert!(kept.await.unwrap().unwrap().to_vec() == data);
        assert_eq!(disk.session().reconnects(), 1);
    });
}

#[test]
fn a_queue_ends_each_command_once_with_its_data_through_drops() {
    run(async {
        let fake = Fake::start(Manners { drop_after: 60, ..Manners::default() }, 4096);
        let disk = open(&fake, Options { max_replays: 200, ..Options::default() }).await;
        let mut queue = disk.session().queue().unwrap();
        let mut ended = Vec::new();
        let block = |n: u64| pattern(n * 7 + 1, 16 * BLOCK);
        let (mut begun, mut written) = (0u64, 0u64);
        while written < 128 {
            while begun < 128 && queue.room() > 0 && queue.in_flight() < 24 {
                let write = Transfer::Write(Buf::from(block(begun)).into());
                queue
                    .submit(begun, disk.lun(), &build::write(begun * 16, 16, Flags::default()), write)
                    .unwrap();
                begun += 1;
            }
            queue.flush();
            queue.completions(&mut ended).await.unwrap();
            for command in ended.drain(..) {
                // A new nexus reports one unit attention.
                match command.outcome {
                    Ok(()) => written += 1,
                    Err(error) => {
                        assert!(error.sense_key() == Some(scsi::SenseKey::UnitAttention), "{error}");
                        let write = Transfer::Write(Buf::from(block(command.token)).into());
                        let cdb = build::write(command.token * 16, 16, Flags::default());
                        queue.submit(command.token, disk.lun(), &cdb, write).unwrap();
                    }
                }
            }
        }
        let (mut begun, mut seen) = (0u64, 0u64);
        while seen < 256 {
            while begun < 256 && queue.in_flight() < 24 {
                let transfer = if begun < 128 {
                    Transfer::Read(buffer(16 * BLOCK))
                } else {
                    Transfer::Discard(16 * BLOCK as u32)
                };
                let cdb = build::read(begun % 128 * 16, 16, Flags::default());
                queue.submit(begun, disk.lun(), &cdb, transfer).unwrap();
                begun += 1;
            }
            queue.flush();
            queue.completions(&mut ended).await.unwrap();
            for Completed { token, received, buffer: data, outcome, .. } in ended.drain(..) {
                match outcome {
                    Ok(()) => {
                        assert_eq!(received as usize, 16 * BLOCK);
                        assert_eq!(data.is_some(), token < 128);
                        assert!(data.is_none_or(|data| data[..] == block(token)), "token {token}");
                        seen += 1;
                    }
                    Err(error) => {
                        assert!(error.sense_key() == Some(scsi::SenseKey::UnitAttention), "{error}");
                        let transfer = data.map_or(Transfer::Discard(16 * BLOCK as u32), |mut data| {
                            data.set_len(16 * BLOCK);
                            Transfer::Read(data)
                        });
                        let cdb = build::read(token % 128 * 16, 16, Flags::default());
                        queue.submit(token, disk.lun(), &cdb, transfer).unwrap();
                    }
                }
            }
        }
        assert!(disk.session().reconnects() > 2);
    });
}

#[test]
fn all_memory_comes_back_whatever_becomes_of_the_session() {
    run(async {
        for how in 0..4 {
            let before = pool::stats().in_use;
            {
                let fake = Fake::start(Manners::default(), 4096);
                let disk = open(
                    &fake,
                    Options { reconnect_timeout: Duration::from_millis(200), ..Options::default() },
                )
                .await;
                disk.write(0, Buf::from(pattern(1, 256 * BLOCK))).await.unwrap();
                fake.state.borrow_mut().deaf = true;
                let mut tickets = Vec::new();
                for _ in 0..8 {
                    let read =
                        disk.command(&build::read(0, 256, Flags::default())).reading(256 * BLOCK as u32);
                    tickets.push(disk.session().start(read).await.unwrap());
                }
                runtime::sleep(Duration::from_millis(30)).await;
                match how {
                    0 => disk.session().close().await.unwrap(),
                    1 => drop(fake),
                    2 => drop(disk),
                    _ => {
                        fake.state.borrow_mut().deaf = false;
                        fake.state.borrow_mut().manners.drop_after = 1;
                        drop(disk.session().start(Command::new(Lun::ZERO, &[0; 6])).await);
                    }
                }
                if how == 1 || how == 3 {
                    for ticket in tickets {
                        let _ = runtime::timeout(Duration::from_secs(5), ticket).await;
                    }
                }
            }
            for _ in 0..2000 {
                if pool::stats().in_use <= before {
                    break;
                }
                runtime::sleep(Duration::from_millis(20)).await;
            }
            assert!(pool::stats().in_use <= before, "how {how}: {} after {before}", pool::stats().in_use);
        }
    });
}

#[test]
fn task_management_runs_beside_commands_that_hang() {
    run(async {
        let fake = Fake::start(Manners::default(), 256);
        let disk = open(&fake, Options::default()).await;
        fake.state.borrow_mut().deaf = true;
        let hanging = disk.command(&build::read(0, 64, Flags::default())).reading(64 * BLOCK as u32);
        let hanging = disk.session().start(hanging).await.unwrap();
        let answer =
            disk.session().task_management(TaskManagementFunction::LogicalUnitReset, disk.lun()).await;
        assert_eq!(answer.unwrap(), Some(iscsi_client::TaskManagementResult::FunctionComplete));
        assert_eq!(fake.state.borrow().task_management, 1);
        assert_eq!(hanging.await.unwrap_err(), Error::Aborted);
    });
}

#[test]
fn pings_detect_a_silent_target_and_its_commands_are_repeated() {
    run(async {
        let fake = Fake::start(Manners::default(), 256);
        let options = Options { ping_interval: Duration::from_millis(100), ..Options::default() };
        let disk = open(&fake, options).await;
        let data = pattern(8, 64 * BLOCK);
        disk.write(0, Buf::from(data.clone())).await.unwrap();
        fake.state.borrow_mut().deaf = true;
        let (reader, state) = (disk.clone(), fake.state.clone());
        let reading = runtime::spawn(async move { reader.read(0, 64).await });
        runtime::sleep(Duration::from_millis(250)).await;
        state.borrow_mut().deaf = false;
        assert!(reading.await.unwrap().unwrap().to_vec() == data);
        // More, if this thread did not answer in time.
        assert!(disk.session().reconnects() >= 1);
    });
}

#[test]
fn what_must_not_be_repeated_is_lost_and_said_to_be() {
    run(async {
        let fake = Fake::start(Manners::default(), 256);
        let disk = open(&fake, Options::default()).await;
        fake.lie(Lie::Vanish);
        let once = disk.command(&build::read(0, 8, Flags::default())).reading(8 * BLOCK as u32).once();
        let error = disk.session().execute(once).await.unwrap_err();
        assert!(matches!(error, Error::Lost(_)), "{error}");
        disk.read(0, 8).await.unwrap();
    });
}

#[test]
fn discovery_and_chap_work_over_iser() {
    let credential =
        |name: &str| Credential { name: name.into(), secret: Secret::new(*b"a long enough secret") };
    let other = Credential { name: "disks".into(), secret: Secret::new(*b"another long enough one") };
    run(async {
        let fake = Fake::start(Manners::default(), 64);
        let url = format!("iser://127.0.0.1:{}", fake.port).parse().unwrap();
        let records = iscsi_client::discover(&url, &Options::default()).await.unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].name, TARGET);

        let chap = Some((credential("alice"), Some(other.clone())));
        let fake = Fake::start(Manners { chap, ..Manners::default() }, 64);
        let with = |credential, target| Options {
            chap: Some(Chap { credential, target, hashes: Vec::new() }),
            ..Options::default()
        };
        open(&fake, with(credential("alice"), None)).await;
        open(&fake, with(credential("alice"), Some(other.clone()))).await;
        let wrong = Credential { name: "alice".into(), secret: Secret::new(*b"not the right secret") };
        let error = Session::connect(&fake.url(), with(wrong, None)).await.unwrap_err();
        assert!(matches!(error, Error::Login(_)), "{error}");
        let impostor =
            Session::connect(&fake.url(), with(credential("alice"), Some(credential("disks")))).await;
        assert!(matches!(impostor, Err(Error::Login(_))), "{impostor:?}");
    });
}

#[test]
fn a_portal_without_iser_is_named_and_says_what_to_do() {
    run(async {
        let options = Options { connect_timeout: Duration::from_secs(60), ..Options::default() };
        let hasty = Options { connect_timeout: Duration::from_secs(3), ..Options::default() };
        let silent =
            runtime::TcpListener::bind("127.0.0.1:0".parse().unwrap(), runtime::ListenOptions::default())
                .unwrap();
        let deaf = format!("iser://{}/{TARGET}/0", silent.local_addr().unwrap()).parse().unwrap();
        let error = Session::connect(&deaf, hasty).await.unwrap_err();
        assert!(matches!(error, Error::NoIser { .. } | Error::TimedOut(_)), "{error}");

        let closing =
            runtime::TcpListener::bind("127.0.0.1:0".parse().unwrap(), runtime::ListenOptions::default());
        let mut closing = closing.unwrap();
        let port = closing.local_addr().unwrap().port();
        let task = runtime::spawn(async move {
            while let Ok(stream) = closing.accept().await {
                // As an iSCSI target does without a login.
                let _ = stream.recv_some(512).await;
            }
        });
        let url = format!("iser://127.0.0.1:{port}/{TARGET}/0").parse().unwrap();
        let error = Session::connect(&url, options.clone()).await.unwrap_err();
        assert!(matches!(error, Error::NoIser { .. }) && error.is_unreachable(), "{error}");
        assert!(error.to_string().contains("iscsi://"), "{error}");
        task.abort();

        // A target that accepts the connection but requires plain iSCSI.
        let fake = Fake::start(Manners { offer: Offer::default(), ..Manners::default() }, 64);
        let error = Session::connect(&fake.url(), options.clone()).await.unwrap_err();
        assert!(error.to_string().contains("RDMAExtensions"), "{error}");

        let nobody = format!("iser://127.0.0.1:1/{TARGET}/0").parse().unwrap();
        let error = Session::connect(&nobody, options).await.unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error}");
    });
}

#[test]
fn a_unit_tells_what_it_is_over_iser() {
    run(async {
        let fake = Fake::start(Manners::default(), 64);
        let session = Session::connect(&fake.url(), Options::default()).await.unwrap();
        let unit = Unit::new(&session, 0).unwrap();
        assert_eq!(unit.inquiry().await.unwrap().product.to_string(), "fake");
    });
}
