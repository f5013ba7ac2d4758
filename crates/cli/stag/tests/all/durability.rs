//! kill -9 of the daemon at random moments under a verifying writer on the network. After the
//! restart, every acknowledged write is there, and every persistent reservation that was to survive
//! a power loss (APTPL).
//!
//! A kill leaves the kernel's page cache, so data that was not synced must be there too.
//! `crates/storage/disk/tests/power_cut.rs` tests power cuts on a model of the medium.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use backing::ledger::{Generation, Ledger, stamp};
use backing::model::Random;
use scsi::cdb::build::{self, Flags};

use crate::support::client::{Answer, CHECK_CONDITION, Client, GOOD, RESERVATION_CONFLICT};
use crate::support::daemon::Daemon;

const WRITER: &str = "iqn.2026-01.test.stag:writer";
const OTHER: &str = "iqn.2026-01.test.stag:other";
const BLOCKS: usize = 1024;
const DEPTH: usize = 16;
const LIVES: usize = 5;
const FIRST_KEY: u64 = 100;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const READ_KEYS: u8 = 0;
const READ_RESERVATION: u8 = 1;
const WRITE_EXCLUSIVE: u8 = 1;

/// The effect of a command in flight.
enum Doing {
    Write { lba: u64, count: usize, generation: Generation },
    Sync,
    Register { key: u64 },
}

struct Writer {
    client: Client,
    block: usize,
    random: Random,
    ledger: Ledger,
    doing: HashMap<u64, Doing>,
    /// The key that was acknowledged last.
    key: u64,
    acknowledged: usize,
}

impl Writer {
    fn overlaps(&self, lba: u64, count: usize) -> bool {
        self.doing.values().any(|doing| match doing {
            Doing::Write { lba: other, count: len, .. } => {
                lba < other + *len as u64 && *other < lba + count as u64
            }
            _ => false,
        })
    }

    fn start(&mut self) {
        match self.random.below(40) {
            0 | 1 => {
                let id = self.client.submit(&build::synchronize_cache10(), None, None);
                self.doing.insert(id, Doing::Sync);
            }
            2 if !self.doing.values().any(|doing| matches!(doing, Doing::Register { .. })) => {
                let key = self.key + 1;
                let parameters = reservation_parameters(self.key, key);
                let cdb = build::persistent_reserve_out(REGISTER, 0, parameters.len() as u32);
                let id = self.client.submit(&cdb, Some(parameters), None);
                self.doing.insert(id, Doing::Register { key });
            }
            _ => {
                let count = 1 + self.random.below(16) as usize;
                let lba = self.random.below((BLOCKS - count + 1) as u64);
                if self.overlaps(lba, count) {
                    return;
                }
                let generation = self.ledger.issue(lba, count);
                let mut data = vec![0; count * self.block];
                for (i, block) in data.chunks_mut(self.block).enumerate() {
                    stamp(lba + i as u64, generation, block);
                }
                let flags = if self.random.below(4) == 0 { Flags::FUA } else { Flags::default() };
                let id = self.client.submit(&build::write(lba, count as u32, flags), Some(data), None);
                self.doing.insert(id, Doing::Write { lba, count, generation });
            }
        }
    }

    fn take(&mut self, answer: &Answer) {
        assert_eq!(answer.status, GOOD, "{answer:?}");
        self.acknowledged += 1;
        match self.doing.remove(&answer.id).expect("a command that was sent") {
            Doing::Write { lba, count, generation } => self.ledger.acknowledge(lba, count, generation, true),
            Doing::Register { key } => self.key = key,
            Doing::Sync => {}
        }
    }

    /// Writes for at least `life`, longer on a slow machine, until enough was done. Then kills the
    /// daemon in the middle, and reads its last answers.
    fn live(&mut self, daemon: &mut Daemon, life: Duration) {
        let (started, before) = (Instant::now(), self.acknowledged);
        while started.elapsed() < life || self.acknowledged < before + 50 || self.key == FIRST_KEY {
            while self.client.outstanding() < DEPTH {
                self.start();
            }
            let answer = self.client.answer().expect("the daemon lives");
            self.take(&answer);
        }
        self.client.send().expect("the daemon lives");
        daemon.kill();
        for answer in self.client.last_words() {
            self.take(&answer);
        }
    }

    /// Reads every block from a restarted daemon.
    fn check(&mut self, life: usize) {
        const AT_ONCE: usize = 64;
        for first in (0..BLOCKS).step_by(AT_ONCE) {
            let cdb = build::read(first as u64, AT_ONCE as u32, Flags::default());
            let answer = self.client.run(&cdb, None, Some((AT_ONCE * self.block) as u32)).expect("an answer");
            assert_eq!((answer.status, answer.data.len()), (GOOD, AT_ONCE * self.block), "{answer:?}");
            for (lba, block) in (first as u64..).zip(answer.data.chunks(self.block)) {
                let found = self.ledger.check(lba, block, false);
                found.unwrap_or_else(|violation| panic!("life {life}: {violation}"));
            }
        }
    }
}

/// The parameter list of PERSISTENT RESERVE OUT with APTPL (SPC-4 §6.16.3).
fn reservation_parameters(key: u64, service_action_key: u64) -> Vec<u8> {
    const APTPL: u8 = 1;
    [&key.to_be_bytes()[..], &service_action_key.to_be_bytes(), &[0, 0, 0, 0, APTPL, 0, 0, 0]].concat()
}

/// The keys that are registered, and the key and type of the reservation.
fn reservations(client: &mut Client) -> (Vec<u64>, Option<(u64, u8)>) {
    let mut ask = |action| {
        let answer =
            client.run(&build::persistent_reserve_in(action, 1024), None, Some(1024)).expect("an answer");
        assert_eq!(answer.status, GOOD, "{answer:?}");
        let len = u32::from_be_bytes(answer.data[4..8].try_into().unwrap()) as usize;
        answer.data[8..8 + len].to_vec()
    };
    let keys = ask(READ_KEYS).chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect();
    let reservation = ask(READ_RESERVATION);
    let holder = reservation.first_chunk().map(|key| (u64::from_be_bytes(*key), reservation[13] & 0x0f));
    (keys, holder)
}

fn reserve(client: &mut Client, key: u64) {
    for (action, kind, parameters) in [
        (REGISTER, 0, reservation_parameters(0, key)),
        (RESERVE, WRITE_EXCLUSIVE, reservation_parameters(key, 0)),
    ] {
        let cdb = build::persistent_reserve_out(action, kind, parameters.len() as u32);
        let answer = client.run(&cdb, Some(parameters), None).expect("an answer");
        assert_eq!(answer.status, GOOD, "{answer:?}");
    }
}

/// Consumes a connection's first unit attentions.
fn settle(client: &mut Client) {
    let answer = client.run(&build::test_unit_ready(), None, None).expect("an answer");
    assert_eq!(answer.status, GOOD, "{answer:?}");
}

fn killed_again_and_again(block: usize, options: &str) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("disk.img");
    let unit = format!("{},size={},bs={block},{options}", path.display(), BLOCKS * block);
    let mut daemon = Daemon::serve(&[&unit]);
    let login = |daemon: &Daemon, name| Client::login(daemon.portal, &daemon.target, name).expect("a login");
    let mut writer = Writer {
        client: login(&daemon, WRITER),
        block,
        random: Random::new(std::process::id().into()),
        ledger: Ledger::new(BLOCKS),
        doing: HashMap::new(),
        key: FIRST_KEY,
        acknowledged: 0,
    };
    reserve(&mut writer.client, writer.key);
    for life in 1..=LIVES {
        settle(&mut writer.client);
        let duration = Duration::from_millis(50 + writer.random.below(300));
        writer.live(&mut daemon, duration);
        let maybe_key = writer.doing.drain().find_map(|(_, doing)| match doing {
            Doing::Register { key } => Some(key),
            _ => None,
        });
        daemon = Daemon::serve(&[&unit]);

        // Another initiator finds the reservation in force before its holder has logged in again.
        let mut other = login(&daemon, OTHER);
        let (keys, holder) = reservations(&mut other);
        let possible = [Some(writer.key), maybe_key];
        assert!(
            keys.len() == 1 && possible.contains(&Some(keys[0])),
            "life {life}: {keys:?}, not {possible:?}"
        );
        assert_eq!(holder, Some((keys[0], WRITE_EXCLUSIVE)), "life {life}");
        let refused =
            other.run(&build::write(0, 1, Flags::default()), Some(vec![0; block]), None).expect("an answer");
        assert_eq!(refused.status, RESERVATION_CONFLICT, "life {life}: {refused:?}");
        writer.key = keys[0];

        writer.client = login(&daemon, WRITER);
        writer.check(life);
    }
    assert!(writer.acknowledged > 200, "only {} commands: too few to prove anything", writer.acknowledged);
    assert_ne!(writer.key, FIRST_KEY, "no registration changed");
    assert_on_medium(&path, block, &mut writer.ledger);
}

/// The file itself holds the blocks, where other programs expect them.
fn assert_on_medium(path: &Path, block: usize, ledger: &mut Ledger) {
    let bytes = std::fs::read(path).expect("the file");
    assert_eq!(bytes.len(), BLOCKS * block);
    for (lba, block) in (0..).zip(bytes.chunks(block)) {
        ledger.check(lba, block, false).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

#[test]
fn a_killed_daemon_in_write_back_mode_has_lost_nothing() {
    killed_again_and_again(512, "cache=writeback");
}

#[test]
fn a_killed_daemon_in_write_through_mode_has_lost_nothing() {
    killed_again_and_again(4096, "cache=writethrough");
}

#[test]
fn a_killed_daemon_with_direct_io_has_lost_nothing() {
    killed_again_and_again(4096, "cache=direct");
}

#[test]
fn a_daemon_that_is_asked_to_end_does_so_under_load_and_keeps_everything() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("disk.img");
    let unit = format!("{},size={},bs=512", path.display(), BLOCKS * 512);
    let daemon = Daemon::serve(&[&unit]);
    let mut writer = Writer {
        client: Client::login(daemon.portal, &daemon.target, WRITER).expect("a login"),
        block: 512,
        random: Random::new(1),
        ledger: Ledger::new(BLOCKS),
        doing: HashMap::new(),
        key: FIRST_KEY,
        acknowledged: 0,
    };
    reserve(&mut writer.client, writer.key);
    for _ in 0..500 {
        while writer.client.outstanding() < DEPTH {
            writer.start();
        }
        let answer = writer.client.answer().expect("the daemon lives");
        writer.take(&answer);
    }
    writer.client.send().expect("the daemon lives");
    let status = daemon.terminate();
    assert!(status.success(), "{status}");
    for answer in writer.client.last_words() {
        // It may refuse commands while it ends, but must not lie.
        if answer.status == GOOD {
            writer.take(&answer);
        } else {
            assert_eq!(answer.status, CHECK_CONDITION, "{answer:?}");
        }
    }
    assert_on_medium(&path, 512, &mut writer.ledger);
}
