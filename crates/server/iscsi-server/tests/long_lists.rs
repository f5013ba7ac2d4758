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
use osd::attributes::{AttributeId, Page};
use osd::cdb::{AttributeParameters, Region};
use osd::{Command as Osd, Id, Version};
use support::{Client, ONE, address, server_on};

const ID: Id = Id::new(0x1_0000, 0x1_0000);
/// Attributes of [`ID`] and the length of each: more together than the server may hold for one
/// initiator.
const ATTRIBUTES: u32 = 260;
const LENGTH: usize = 65_000;
/// Longest answer that an initiator accepts, bytes.
const ROOM: u32 = 17 << 20;

/// A server of one core with an OSD under LUN 0 that has [`ID`].
fn start() -> Server {
    let store = EmbeddedStore::in_memory(1 << 30).expect("memory");
    let id = ID;
    let mut change = Change::of(Step::CreatePartition(ID.partition));
    change.push(Step::CreateUser(id));
    for number in 1..=ATTRIBUTES {
        change.set_attribute(id, 0x1_0000, number, &vec![number as u8; LENGTH]);
    }
    let runtime = runtime::Runtime::new(runtime::Config::default()).expect("a ring");
    runtime.block_on(store.apply(change, Commit::Relaxed)).expect("there is room");
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

/// Asks for all attributes of the page.
fn ask(client: &mut Client) {
    let mut list = Vec::new();
    write_get(&mut list, Version::Osd2, [AttributeId::new(Page(0x1_0000), AttributeId::ALL)]);
    let mut cdb = osd::Cdb::new(Osd::GetAttributes(ID));
    cdb.attributes = AttributeParameters::List {
        get: Some(Region { len: list.len() as u32, offset: 0 }),
        retrieved: Some(Region { len: ROOM, offset: 0 }),
        set: None,
    };
    let cdb = cdb.encode().expect("a command of OSD-2");
    let mut request = client.command(0, &cdb[..16]);
    request.set_write(true);
    request.set_read(true);
    request.edtl.set(list.len() as u32);
    let mut ahs = ArrayVec::<u8, MAX_LEN>::new();
    assert!(Ahs::ExtendedCdb(&cdb[16..]).emit(&mut ahs) && Ahs::BidiReadLength(ROOM).emit(&mut ahs));
    let mut bhs = Bhs::from(request);
    bhs.set_total_ahs_len(ahs.len());
    bhs.set_data_segment_len(list.len());
    client.stream.write_all(&[bhs.bytes(), &ahs[..], &list[..]].concat()).expect("the target reads");
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

#[test]
fn attributes_nobody_takes_are_bounded_and_others_get_theirs_whole() {
    const IDLE: usize = 8;
    const OUTSTANDING: usize = 64;
    let server = start();
    let mut clients: Vec<Client> = (1..=IDLE as u8).map(|number| login(&server, number)).collect();
    let mut good = login(&server, 100);
    let before = resident();
    for client in &mut clients {
        (0..OUTSTANDING).for_each(|_| ask(client));
    }
    // Until the server has done all that it can without them.
    let mut most = 0;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        most = most.max(resident().saturating_sub(before));
        std::thread::sleep(Duration::from_millis(20));
    }
    eprintln!("{} MiB more for {IDLE} connections that do not read", most >> 20);
    // The core's pool is 64 MiB, of which a quarter may wait for initiators. Socket buffers are the
    // kernel's memory.
    assert!(most < 64 << 20, "{} MiB more", most >> 20);

    ask(&mut good);
    let (status, data) = good.finish();
    assert_eq!(status, 0, "{data:?}");
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
    drop(clients);
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}
