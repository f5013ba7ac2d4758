//! Once warm, the data path does not allocate: READ and WRITE commands of every size, answered over
//! sockets by a whole server on two cores.

#[allow(dead_code, reason = "not every test uses all of it")]
mod support;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use backing::{FileOptions, FileStore};
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi::keys::DigestChoice;
use iscsi::pdu::{DataOut, Opcode};
use iscsi_server::Unit;
use iscsi_server::config::LunConfig;
use objects::store::embedded::EmbeddedStore;
use objects::unit::{OsdOptions, OsdUnit};
use runtime::testing::Counting;
use support::{BLOCKS, Client, address, read10, server, write10};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Commands in flight at once.
const BATCH: u32 = 16;
/// The unit on a file.
const ON_FILE: u16 = 5;
/// The unit of objects.
const OBJECTS: u16 = 6;

/// Sends `BATCH` reads in one piece and takes in all of their answers.
fn read_batch(client: &mut Client, lun: u16, blocks: u16, round: u32) {
    let mut bytes = Vec::new();
    for i in 0..BATCH {
        let lba = (round * 61 + i * 97) * u32::from(blocks) % (BLOCKS as u32 - u32::from(blocks));
        let mut command = client.command(lun, &read10(lba, blocks));
        command.set_read(true);
        command.edtl.set(u32::from(blocks) * 512);
        bytes.extend(client.bytes(command.into(), &[]));
    }
    client.stream.write_all(&bytes).expect("the target reads");
    for _ in 0..BATCH {
        assert_eq!(client.finish().0, 0);
    }
}

/// The same with writes; sends data that does not go with the command when it is requested.
fn write_batch(client: &mut Client, lun: u16, data: &[u8], round: u32) {
    let blocks = (data.len() / 512) as u16;
    let first = data.len().min(8192);
    let mut bytes = Vec::new();
    for i in 0..BATCH {
        let lba = (round * 61 + i * 97) * u32::from(blocks) % (BLOCKS as u32 - u32::from(blocks));
        let mut command = client.command(lun, &write10(lba, blocks));
        command.set_write(true);
        command.edtl.set(data.len() as u32);
        bytes.extend(client.bytes(command.into(), &data[..first]));
    }
    client.stream.write_all(&bytes).expect("the target reads");
    let mut left = BATCH;
    while left > 0 {
        let pdu = client.receive().expect("an answer");
        if pdu.bhs.opcode() == Some(Opcode::ReadyToTransfer) {
            let r2t = *pdu.bhs.as_ready_to_transfer();
            let (start, len) = (r2t.buffer_offset.get() as usize, r2t.desired_length.get() as usize);
            let mut out = DataOut::new(r2t.itt.get(), r2t.ttt.get(), r2t.lun, 0, start as u32);
            out.set_final(true);
            client.send(out.into(), &data[start..start + len]);
        } else {
            assert_eq!(support::status(&pdu).0, 0);
            left -= 1;
        }
    }
}

fn file_unit(path: &Path) -> Unit {
    let options = FileOptions { size: Some(BLOCKS as u64 * 512), ..FileOptions::default() };
    let store = Arc::new(FileStore::open(path, &options).expect("a file can be made"));
    let options = DiskOptions::default().with_identity("file");
    Unit::Disk(DiskUnit::new(store, options, &Registry::new()).expect("a disk"))
}

/// Sends `BATCH` commands of 236 bytes in one piece, and takes in their answers.
fn long_batch(client: &mut Client, cdb: &[u8]) {
    let mut bytes = Vec::new();
    (0..BATCH).for_each(|_| bytes.extend(client.long_command(OBJECTS, cdb, 0).0));
    client.stream.write_all(&bytes).expect("the target reads");
    for _ in 0..BATCH {
        assert_eq!(client.finish().0, 0);
    }
}

/// Runs `work` until it is warm and counts allocations. The least of a few counts: they depend on
/// the number of commands that ran at once.
fn allocations(name: &str, rounds: u32, mut work: impl FnMut(u32)) -> (String, u64) {
    let mut least = u64::MAX;
    for time in 0..5 {
        let before = Counting::allocations();
        (time * rounds..(time + 1) * rounds).for_each(&mut work);
        if time > 0 {
            least = least.min(Counting::allocations() - before);
        }
        if least == 0 {
            break;
        }
    }
    (name.to_owned(), least)
}

#[test]
fn a_warm_data_path_does_not_allocate() {
    Counting::ignore_this_thread();
    let dir = tempfile::tempdir().expect("a directory");
    let on_file = file_unit(&dir.path().join("disk.img"));
    let server = server(|config| {
        let osd =
            OsdUnit::new(Arc::new(EmbeddedStore::in_memory(1 << 20).expect("memory")), OsdOptions::default())
                .expect("an OSD");
        for (lun, unit) in [(ON_FILE, on_file), (OBJECTS, Unit::Objects(osd))] {
            config.targets[0].units.push(LunConfig { lun, unit, limiter: Default::default(), stages: false });
        }
    });
    let mut found = Vec::new();
    for (name, digests) in [("plain", false), ("with digests", true)] {
        let mut config = Client::config(1);
        if digests {
            config.offer.header_digest = DigestChoice::Require;
            config.offer.data_digest = DigestChoice::Require;
        }
        let mut client = Client::login(address(&server), config);
        for lun in [0, ON_FILE] {
            client.settle(lun);
            for blocks in [1u16, 8, 16, 128, 512] {
                let rounds = if blocks > 16 { 30 } else { 100 };
                let label = |what: &str| format!("{what} of {blocks} blocks, unit {lun}, {name}");
                found.push(allocations(&label("READ"), rounds, |round| {
                    read_batch(&mut client, lun, blocks, round);
                }));
                let data = vec![7; usize::from(blocks) * 512];
                found.push(allocations(&label("WRITE"), rounds, |round| {
                    write_batch(&mut client, lun, &data, round);
                }));
            }
        }
    }
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(OBJECTS);
    let flush = osd::Command::FlushOsd { scope: osd::cdb::FlushScope::Contents };
    let cdb = osd::Cdb::new(flush).encode().expect("a command of OSD-2");
    found.push(allocations("FLUSH OSD", 100, |_| long_batch(&mut client, &cdb)));
    let per_command: Vec<String> = found
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name}: {count} allocations"))
        .collect();
    assert!(per_command.is_empty(), "{per_command:#?}");
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}
