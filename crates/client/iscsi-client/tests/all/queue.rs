//! Commands in batches: each ends once, with its token and its data, on streams in tiny pieces or
//! with lost connections.

use std::time::Duration;

use crate::fake::{BLOCK, Fake, Faults};
use iscsi::keys::Offer;
use iscsi_client::{Completed, DigestChoice, Disk, Error, Options, Session, Transfer};
use runtime::{Buf, Runtime, pool};
use scsi::SenseKey;
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

fn block(number: u64) -> Vec<u8> {
    (0..BLOCK).map(|i| (i as u64 ^ (number * 7)) as u8).collect()
}

fn buffer(len: usize) -> runtime::BufMut {
    let mut buffer = pool::alloc(len).expect("memory");
    buffer.set_len(len);
    buffer
}

#[test]
fn each_command_ends_once_with_its_token_and_its_data() {
    for crumb in [usize::MAX, 100] {
        run(async {
            let fake = Fake::start(Faults { crumb, ..Faults::default() }, Offer::default(), 256);
            let disk = open(&fake, Options::default()).await;
            let mut queue = disk.session().queue().unwrap();
            let mut ended = Vec::new();
            for lba in 0..64u64 {
                let write = Transfer::Write(Buf::from(block(lba)).into());
                queue.submit(lba, disk.lun(), &build::write(lba, 1, Flags::default()), write).unwrap();
            }
            assert_eq!((queue.in_flight(), queue.room()), (64, 64));
            queue.flush();
            let mut tokens = Vec::new();
            while queue.in_flight() > 0 {
                queue.completions(&mut ended).await.unwrap();
                for command in ended.drain(..) {
                    command.outcome.unwrap();
                    tokens.push(command.token);
                }
            }
            tokens.sort_unstable();
            assert!(tokens.into_iter().eq(0..64));
            for lba in 0..64u64 {
                let read = Transfer::Read(buffer(BLOCK));
                queue.submit(lba, disk.lun(), &build::read(lba, 1, Flags::default()), read).unwrap();
            }
            queue.flush();
            let mut seen = 0;
            while queue.in_flight() > 0 {
                queue.completions(&mut ended).await.unwrap();
                for Completed { token, received, buffer, outcome, .. } in ended.drain(..) {
                    outcome.unwrap();
                    assert_eq!(received as usize, BLOCK);
                    assert!(buffer.unwrap()[..] == block(token));
                    seen += 1;
                }
            }
            assert_eq!(seen, 64);
            // Nothing is in flight, so this returns at once.
            queue.completions(&mut ended).await.unwrap();
            disk.session().close().await.unwrap();
        });
    }
}

#[test]
fn data_that_nobody_wants_is_counted_and_the_stream_goes_on_behind_it() {
    for (crumb, digest) in
        [(usize::MAX, DigestChoice::Never), (3001, DigestChoice::Never), (50_000, DigestChoice::Require)]
    {
        run(async {
            let fake = Fake::start(Faults { crumb, ..Faults::default() }, Offer::default(), 2048);
            let options = Options { header_digest: digest, data_digest: digest, ..Options::default() };
            let disk = open(&fake, options).await;
            disk.write(9, Buf::from(block(9))).await.unwrap();
            let mut queue = disk.session().queue().unwrap();
            let mut ended = Vec::new();
            for round in 0..12u64 {
                for blocks in [1u32, 8, 95, 128, 513, 1024] {
                    let len = blocks * BLOCK as u32;
                    let cdb = build::read(round, blocks, Flags::default());
                    queue.submit(len.into(), disk.lun(), &cdb, Transfer::Discard(len)).unwrap();
                }
                let cdb = build::read(9, 1, Flags::default());
                queue.submit(0, disk.lun(), &cdb, Transfer::Read(buffer(BLOCK))).unwrap();
                queue.flush();
                while queue.in_flight() > 0 {
                    queue.completions(&mut ended).await.unwrap();
                    for command in ended.drain(..) {
                        command.outcome.unwrap();
                        match command.buffer {
                            Some(data) => assert!(data[..] == block(9)),
                            None => assert_eq!(u64::from(command.received), command.token),
                        }
                    }
                }
            }
            assert_eq!(disk.session().reconnects(), 0);
            disk.session().close().await.unwrap();
        });
    }
}

#[test]
fn a_command_that_fails_says_why_and_the_others_go_on() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 64);
        let disk = open(&fake, Options::default()).await;
        let mut queue = disk.session().queue().unwrap();
        for (token, lba) in [(0, 0), (1, 1000), (2, 5)] {
            let cdb = build::read(lba, 1, Flags::default());
            queue.submit(token, disk.lun(), &cdb, Transfer::Discard(512)).unwrap();
        }
        queue.flush();
        let mut ended = Vec::new();
        while queue.in_flight() > 0 {
            queue.completions(&mut ended).await.unwrap();
        }
        ended.sort_by_key(|command| command.token);
        assert_eq!(ended.len(), 3);
        assert!(ended[0].outcome.is_ok() && ended[2].outcome.is_ok());
        let error = ended[1].outcome.as_ref().unwrap_err();
        assert_eq!(error.sense_key(), Some(SenseKey::IllegalRequest), "{error}");
    });
}

#[test]
fn a_session_has_one_queue_which_takes_what_there_is_room_for() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 64);
        let disk = open(&fake, Options { queue_depth: 4, ..Options::default() }).await;
        let mut queue = disk.session().queue().unwrap();
        assert!(matches!(disk.session().queue(), Err(Error::Argument(_))));
        let cdb = build::read(0, 1, Flags::default());
        assert!(queue.submit(0, disk.lun(), &cdb[..5], Transfer::None).is_err());
        for token in 0..4 {
            queue.submit(token, disk.lun(), &cdb, Transfer::Discard(512)).unwrap();
        }
        assert_eq!(queue.room(), 0);
        let full = queue.submit(4, disk.lun(), &cdb, Transfer::Discard(512));
        assert!(matches!(full, Err(Error::Argument(_))));
        queue.flush();
        // The other interface waits for room, and gets it.
        assert_eq!(disk.read(0, 1).await.unwrap().len(), BLOCK);
        // Uncollected completions affect neither the session nor the next queue.
        drop(queue);
        let mut queue = disk.session().queue().unwrap();
        queue.submit(7, disk.lun(), &cdb, Transfer::Discard(512)).unwrap();
        queue.flush();
        let mut ended = Vec::new();
        queue.completions(&mut ended).await.unwrap();
        assert_eq!(ended.iter().map(|command| command.token).collect::<Vec<_>>(), [7]);
    });
}

#[test]
fn commands_outlive_connections_that_break_off() {
    for seed in 0..4 {
        run(async {
            let faults = Faults { seed, break_after: 400_000, crumb: 20_000, ..Faults::default() };
            let fake = Fake::start(faults, Offer::default(), 4096);
            let options = Options { max_replays: 200, ..Options::default() };
            let disk = open(&fake, options).await;
            let mut queue = disk.session().queue().unwrap();
            let mut ended = Vec::new();
            // Each token is a place of eight blocks: written, then read back.
            let mut done = 0;
            let submit = |queue: &mut iscsi_client::Queue, token: u64| {
                let lba = token / 2 * 8;
                let data: Vec<u8> = (0..8).flat_map(|i| block(lba + i)).collect();
                let (cdb, transfer) = if token % 2 == 0 {
                    (build::write(lba, 8, Flags::default()), Transfer::Write(Buf::from(data).into()))
                } else {
                    (build::read(lba, 8, Flags::default()), Transfer::Read(buffer(8 * BLOCK)))
                };
                queue.submit(token, disk.lun(), &cdb, transfer).unwrap();
            };
            (0..16).for_each(|place| submit(&mut queue, place * 2));
            let mut next = 16;
            while queue.in_flight() > 0 {
                queue.flush();
                queue.completions(&mut ended).await.unwrap();
                for Completed { token, buffer, outcome, .. } in ended.drain(..) {
                    match outcome {
                        Ok(()) if token % 2 == 0 => submit(&mut queue, token + 1),
                        Ok(()) => {
                            let data: Vec<u8> = (0..8).flat_map(|i| block(token / 2 * 8 + i)).collect();
                            assert!(buffer.unwrap()[..] == data, "seed {seed}, token {token}");
                            done += 1;
                            if next < 400 {
                                submit(&mut queue, next * 2);
                                next += 1;
                            }
                        }
                        // A new nexus begins with a unit attention.
                        Err(error) if error.sense_key() == Some(SenseKey::UnitAttention) => {
                            submit(&mut queue, token)
                        }
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
            }
            assert_eq!(done, 400);
            assert!(disk.session().reconnects() > 0, "seed {seed}");
        });
    }
}

#[test]
fn a_session_that_is_over_ends_what_was_in_flight_and_takes_nothing_more() {
    run(async {
        let fake = Fake::start(Faults::default(), Offer::default(), 64);
        let disk = open(&fake, Options::default()).await;
        let mut queue = disk.session().queue().unwrap();
        let cdb = build::read(0, 1, Flags::default());
        queue.submit(1, disk.lun(), &cdb, Transfer::Discard(512)).unwrap();
        disk.session().close().await.unwrap();
        let mut ended = Vec::new();
        let _ = queue.completions(&mut ended).await;
        assert_eq!((ended.len(), queue.in_flight()), (1, 0));
        assert!(matches!(queue.submit(2, disk.lun(), &cdb, Transfer::Discard(512)), Err(Error::Closed)));
    });
}
