//! The commands of the load: CDBs, with the data they write and the length they read.

use iscsi_client::{Command as Scsi, Lun};
use osd::attributes::list;
use osd::cdb::{AttributeParameters, Command, List, ObjectRange, Options, Region};
use osd::{AttributeId, Capability, Cdb, Id, ObjectType, Page, Version};
use runtime::Buf;
use scsi::cdb::build;

/// The attribute that is got and set: an application's, 8 bytes.
const ATTRIBUTE: AttributeId = AttributeId::new(Page(0x10000), 1);
/// Room for the list with it.
const RETRIEVED: u32 = 64;
/// Ids of one LIST.
pub const LISTED: u64 = 1000;
/// Bytes before the ids of a LIST.
pub const LIST_HEADER: usize = 24;

/// An OSD command without security.
pub fn command(lun: Lun, osd: Command, durable: bool) -> Scsi {
    finish(lun, cdb(osd, durable))
}

fn cdb(osd: Command, durable: bool) -> Cdb {
    let mut cdb = Cdb::new(osd);
    cdb.options = Options { fua: durable, ..Options::default() };
    cdb.capability = Capability::all(Version::Osd2, osd.object_type().unwrap_or(ObjectType::User), osd.id());
    cdb
}

fn finish(lun: Lun, cdb: Cdb) -> Scsi {
    // Every offset here is 0, which every form can say.
    let bytes = cdb.encode().unwrap_or_default();
    Scsi::new(lun, &bytes).once()
}

pub fn ping(lun: Lun) -> Scsi {
    Scsi::new(lun, &build::test_unit_ready())
}

pub fn create(lun: Lun, id: Id, durable: bool) -> Scsi {
    command(lun, Command::Create { partition: id.partition, requested: id.object, count: 1 }, durable)
}

pub fn remove(lun: Lun, id: Id, durable: bool) -> Scsi {
    command(lun, Command::Remove(id), durable)
}

/// GET ATTRIBUTES of one attribute; `out` is the list that asks for it.
pub fn get(lun: Lun, id: Id, out: &Buf) -> Scsi {
    let mut cdb = cdb(Command::GetAttributes(id), false);
    cdb.attributes = AttributeParameters::List {
        get: Some(Region { len: out.len() as u32, offset: 0 }),
        retrieved: Some(Region { len: RETRIEVED, offset: 0 }),
        set: None,
    };
    finish(lun, cdb).writing(out.clone()).reading(RETRIEVED)
}

/// The list that [`get`] sends.
pub fn get_list() -> Buf {
    let mut out = Vec::new();
    list::write_get(&mut out, Version::Osd2, [ATTRIBUTE]);
    Buf::from(out)
}

/// SET ATTRIBUTES of one attribute; `out` is the list with its value.
pub fn set(lun: Lun, id: Id, out: &Buf, durable: bool) -> Scsi {
    let mut cdb = cdb(Command::SetAttributes(id), durable);
    cdb.attributes = AttributeParameters::List {
        get: None,
        retrieved: None,
        set: Some(Region { len: out.len() as u32, offset: 0 }),
    };
    finish(lun, cdb).writing(out.clone())
}

/// The list that [`set`] sends.
pub fn set_list(value: u64) -> Buf {
    let mut out = Vec::new();
    // Eight bytes fit any list.
    let _ = list::write_values(&mut out, Version::Osd2, [(ATTRIBUTE, Some(&value.to_be_bytes()[..]))]);
    Buf::from(out)
}

pub fn read(lun: Lun, id: Id, start: u64, len: u32) -> Scsi {
    let range = ObjectRange { start, len: len.into() };
    command(lun, Command::Read(id, range), false).reading(len)
}

pub fn write(lun: Lun, id: Id, start: u64, data: Buf, durable: bool) -> Scsi {
    let range = ObjectRange { start, len: data.len() as u64 };
    command(lun, Command::Write(id, range), durable).writing(data)
}

/// LIST of up to `ids` user objects of a partition, from `initial` on.
pub fn listing(lun: Lun, partition: u64, initial: u64, ids: u64) -> Scsi {
    let allocation = LIST_HEADER as u64 + 8 * ids;
    let list = List { partition, allocation, initial, list_id: 0, attributes: false, sort: 0 };
    command(lun, Command::List(list), false).reading(allocation as u32)
}

pub fn disk_read(lun: Lun, start: u64, len: u32) -> Scsi {
    Scsi::new(lun, &build::read16(start / 512, len / 512, build::Flags::default())).reading(len)
}
