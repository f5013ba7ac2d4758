//! Long answers of an object-based storage device to initiators that do not read. The memory that
//! the server holds for all of them is bounded, and it serves those that read.

#[allow(dead_code, reason = "not every test uses all of it")]
mod support;

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use iscsi::pdu::Bhs;
use iscsi::pdu::ahs::{Ahs, MAX_LEN};
use iscsi_server::{Server, Unit};
use objects::store::embedded::EmbeddedStore;
use objects::store::{Change, Commit, ObjectStore, Step};
use objects::unit::{OsdOptions, OsdUnit};
use osd::attributes::list::{ValueList, write_get};
use osd::attributes::numbers::user_information;
use osd::attributes::{AttributeId, Page};
use osd::cdb::{AttributeParameters, List, Region};
use osd::continuation::{Continuation, Criterion, Descriptor, Query};
use osd::data::{list_ids, map, query_ids};
use osd::{Cdb, Command as Osd, Id, Version};
use support::{Client, ONE, address, server_on};

const ID: Id = Id::new(0x1_0000, 0x1_0000);
/// Attributes of [`ID`] and the length of each: more together than the server may hold for one
/// initiator.
const ATTRIBUTES: u32 = 260;
const LENGTH: usize = 65_000;
/// User objects of the partition, whose ids are 400 KB. Of 512 replies of that length, the server
/// may not hold a third.
const OBJECTS: u64 = 50_000;
/// Written parts of [`ID`], each with a hole behind it: its map is as long.
const PARTS: u64 = 12_500;
/// Longest answer that an initiator accepts, bytes.
const ROOM: u32 = 17 << 20;

/// A server of one core with an OSD under LUN 0 that has [`ID`] and others.
fn start() -> Server {
    let store = EmbeddedStore::in_memory(1 << 30).expect("memory");
    let id = ID;
    let mut change = Change::of(Step::CreatePartition(ID.partition));
    change.push(Step::CreateUser(id));
    for number in 1..=ATTRIBUTES {
        change.set_attribute(id, 0x1_0000, number, &vec![number as u8; LENGTH]);
    }
    let mut changes = vec![change];
    for first in (1..OBJECTS).step_by(1000) {
        let ids = first..(first + 1000).min(OBJECTS);
        let create = ids.map(|number| Step::CreateUser(Id { object: id.object + number, ..id }));
        changes.push(create.collect());
    }
    for first in (0..PARTS).step_by(500) {
        let write = |part| Step::Write { id, at: part * 8192, data: vec![1; 100].into() };
        changes.push((first..first + 500).map(write).collect());
    }
    let runtime = runtime::Runtime::new(runtime::Config::default()).expect("a ring");
    for change in changes {
        runtime.block_on(store.apply(change, Commit::Relaxed)).expect("there is room");
    }
    let unit = OsdUnit::new(Arc::new(store), OsdOptions::default()).expect("an OSD");
    server_on(ONE, |config| {
        config.targets[0].units.truncate(1);
        config.targets[0].units[0].unit = Unit::Objects(unit);
    })
}

fn login(server: &Server, number: u8) -> Client {
    let mut client = Client::login(address(server), Client::config(number));
    client.settle(0);
    client
}

/// A command with a long answer, and its Data-Out.
type Ask = (Cdb, Vec<u8>);

/// Asks for all attributes of the page.
fn attributes() -> Ask {
    let mut list = Vec::new();
    write_get(&mut list, Version::Osd2, [AttributeId::new(Page(0x1_0000), AttributeId::ALL)]);
    let mut cdb = Cdb::new(Osd::GetAttributes(ID));
    cdb.attributes = AttributeParameters::List {
        get: Some(Region { len: list.len() as u32, offset: 0 }),
        retrieved: Some(Region { len: ROOM, offset: 0 }),
        set: None,
    };
    (cdb, list)
}

fn query() -> Ask {
    let any = Criterion { attribute: user_information::ID, min: Vec::new(), max: Vec::new() };
    let query = Descriptor::Query(Query { all: true, criteria: vec![any] });
    let id = Id::partition(ID.partition);
    let command = Osd::Query { id, immediate: false, allocation: ROOM.into(), matches: 0 };
    let continuation = Continuation::new(vec![query]).encode(command.action()).expect("it is short");
    let cdb = Cdb { continuation: continuation.len() as u32, ..Cdb::new(command) };
    (cdb, continuation)
}

fn ask(client: &mut Client, (cdb, out): &Ask) {
    let cdb = cdb.encode().expect("a command of OSD-2");
    let mut request = client.command(0, &cdb[..16]);
    request.set_write(!out.is_empty());
    request.set_read(true);
    let mut ahs = ArrayVec::<u8, MAX_LEN>::new();
    assert!(Ahs::ExtendedCdb(&cdb[16..]).emit(&mut ahs));
    match out.len() as u32 {
        0 => request.edtl.set(ROOM),
        len => {
            request.edtl.set(len);
            assert!(Ahs::BidiReadLength(ROOM).emit(&mut ahs));
        }
    }
    let mut bhs = Bhs::from(request);
    bhs.set_total_ahs_len(ahs.len());
    bhs.set_data_segment_len(out.len());
    let mut bytes = [bhs.bytes(), &ahs[..], out].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    client.stream.write_all(&bytes).expect("the target reads");
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

/// Has initiators ask and not read, and returns the answer of one that reads.
fn asked_by_many(what: &str, command: Ask) -> Vec<u8> {
    const IDLE: usize = 8;
    const OUTSTANDING: usize = 64;
    let server = start();
    let mut clients: Vec<Client> = (1..=IDLE as u8).map(|number| login(&server, number)).collect();
    let mut good = login(&server, 100);
    let before = resident();
    for client in &mut clients {
        (0..OUTSTANDING).for_each(|_| ask(client, &command));
    }
    // Until the server has done all that it can without them.
    let mut most = 0;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        most = most.max(resident().saturating_sub(before));
        std::thread::sleep(Duration::from_millis(20));
    }
    eprintln!("{what}: {} MiB more for {IDLE} connections that do not read", most >> 20);
    // The core's pool is 64 MiB, of which a quarter may wait for initiators. Socket buffers are the
    // kernel's memory.
    assert!(most < 64 << 20, "{what}: {} MiB more", most >> 20);

    ask(&mut good, &command);
    let (status, data) = good.finish();
    assert_eq!(status, 0, "{what}: {data:?}");
    drop(clients);
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
    data
}

/// One after the other, since each looks at the memory of the process.
#[test]
fn long_replies_nobody_takes_are_bounded_and_others_get_theirs_whole() {
    let data = asked_by_many("GET ATTRIBUTES", attributes());
    let values: Vec<_> = ValueList::parse(&data, Version::Osd2).expect("the whole list").iter().collect();
    let values = values.iter().filter(|value| value.attribute.number > 0);
    let (mut count, mut number) = (0, 0);
    for value in values {
        number += 1;
        assert_eq!((value.attribute.number, value.bytes.len()), (number, LENGTH));
        assert!(value.bytes.iter().all(|byte| *byte == number as u8));
        count += 1;
    }
    assert_eq!(count, ATTRIBUTES);

    let all = ID.object..ID.object + OBJECTS;
    let list = Osd::List(List::new(ID.partition, ROOM.into()));
    let data = asked_by_many("LIST", (Cdb::new(list), Vec::new()));
    assert!(list_ids(&data).eq(all.clone()), "{} bytes", data.len());

    let data = asked_by_many("QUERY", query());
    let (total, found) = query_ids(&data).expect("a header");
    assert!(total == OBJECTS && found.eq(all), "{total}");

    let read_map = Osd::ReadMap { id: ID, allocation: ROOM.into(), start: 0, map_type: 0 };
    let data = asked_by_many("READ MAP", (Cdb::new(read_map), Vec::new()));
    let (total, parts) = map(&data).expect("a header");
    assert!(total >= 2 * PARTS - 1 && parts.count() as u64 == total, "{total}");
}
