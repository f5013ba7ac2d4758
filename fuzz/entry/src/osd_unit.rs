//! A whole object-based unit on a store of plain maps: commands of every form from three nexuses,
//! with continuations, lists of attributes and data that may lie. A refused command leaves the
//! store as it was, retrieved lists can be decoded, the store's sums are those of its objects, and
//! no command waits for ever.

use crate::input::{Input, Seed};
use crate::served::{MAX_OUT, Mover, execute, nexus};
use device::{Cdb, LogicalUnit, ResetKind};
use objects::store::{List, ObjectStore};
use objects::unit::{Clock, OsdOptions, OsdUnit};
use osd::attributes::list::{self, ValueList};
use osd::cdb::{AttributeParameters, ObjectRange, Region};
use osd::continuation::{Continuation, CopySource, Criterion, Descriptor, Query};
use osd::sense::function;
use osd::{Action, AttributeId, Command, Form, Id, ObjectType, Page, Version, offset};
use scsi::{SenseKey, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[allow(dead_code, reason = "tests of the unit use the rest")]
#[path = "../../../objects/objects/tests/support/oracle/mod.rs"]
mod oracle;
use oracle::Oracle;

/// Bytes that the store's objects may take.
const CAPACITY: u64 = 1 << 20;
/// Commands of one input.
const STEPS: usize = 24;
/// The first id that a partition or an object may have.
const FIRST: u64 = objects::store::FIRST_ID;

/// A clock that the input advances.
struct Steps(AtomicU64);

impl Clock for Steps {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// An id: few, so that they meet; 0 and far ones too.
fn id(input: &mut Input<'_>) -> u64 {
    match input.u8() {
        0 => 0,
        0xff => input.u64(),
        n => FIRST + u64::from(n - 1) % 8,
    }
}

/// A length or an address: small, or near an edge.
fn number(input: &mut Input<'_>) -> u64 {
    match input.u8() {
        0xfc => u64::from(input.u32()),
        0xfd => u64::MAX - u64::from(input.u16()),
        0xfe => input.u64(),
        0xff => objects::store::MAX_LENGTH - u64::from(input.u16()),
        high => u64::from(high & 0x0f) << 8 | u64::from(input.u8()),
    }
}

/// Pages of each type of object, and those that any object has.
fn attribute(input: &mut Input<'_>) -> AttributeId {
    let (page, number) = (input.u8(), input.u16());
    let kinds = [ObjectType::User, ObjectType::Partition, ObjectType::Collection, ObjectType::Root];
    let page = match page {
        0xff => Page::ALL,
        0xfe => Page::CURRENT_COMMAND,
        0xfd => Page(Page::ANY),
        0xfc => Page(0x1_0000),
        page => Page::of(kinds[usize::from(page >> 6)], u32::from(page & 0x0f)),
    };
    AttributeId::new(page, if number == u16::MAX { AttributeId::ALL } else { number.into() })
}

fn descriptor(input: &mut Input<'_>) -> Descriptor {
    match input.u8() % 5 {
        0 => Descriptor::ScatterGather(
            (0..input.u8() % 5).map(|_| ObjectRange { start: number(input), len: number(input) }).collect(),
        ),
        1 => {
            let how = input.u8();
            let mut criterion = || Criterion {
                attribute: attribute(input),
                min: input.chunk().to_vec(),
                max: input.chunk().to_vec(),
            };
            Descriptor::Query(Query {
                all: how & 0x80 != 0,
                criteria: (0..how % 4).map(|_| criterion()).collect(),
            })
        }
        2 => Descriptor::UserObjects((0..input.u8() % 5).map(|_| id(input)).collect()),
        3 => {
            let (bits, id) = (input.u8(), Id::new(id(input), id(input)));
            let (attributes, freeze) = (bits & 0x80 != 0, bits & 0x40 != 0);
            Descriptor::CopySource(CopySource { id, attributes, freeze, time: bits & 0x0f })
        }
        _ => Descriptor::ExtensionCapabilities(input.chunk().to_vec()),
    }
}

/// A command whose fields are likely, and its Data-Out. See [`run`].
fn build(input: &mut Input<'_>) -> (Vec<u8>, Vec<u8>) {
    let form = [Form::Osd2, Form::Osd1, Form::Osd2Draft][usize::from(input.u8() % 3)];
    let version = form.version();
    let action = Action::ALL[usize::from(input.u8()) % Action::ALL.len()];
    let mut cdb = vec![0; form.len()];
    let put = |cdb: &mut [u8], at: usize, bytes: &[u8]| cdb[at..at + bytes.len()].copy_from_slice(bytes);
    (cdb[0], cdb[7]) = (osd::cdb::OPCODE, (form.len() - 8) as u8);
    let code = action.code(version).or_else(|| action.code(Version::Osd2)).unwrap_or_default();
    put(&mut cdb, 8, &code.to_be_bytes());
    let options = input.u8();
    // No list attributes, unless asked for: bits 5 and 4 are the attributes' format.
    (cdb[10], cdb[11], cdb[14]) = (options & 0x1f, input.u8() & 0xcf, input.u8());
    cdb[12] = if options & 0x80 != 0 { 0x7f } else { 0 };
    put(&mut cdb, 16, &id(input).to_be_bytes());
    match action {
        Action::SetKey | Action::SetMasterKey | Action::PerformScsiCommand | Action::PerformTmf => {
            let fields = input.chunk();
            put(&mut cdb, 24, &fields[..fields.len().min(28)]);
        }
        _ => {
            put(&mut cdb, 24, &id(input).to_be_bytes());
            let (len, start) = if version == Version::Osd1 { (36, 44) } else { (32, 40) };
            // A source or a collection stands where a start does.
            let (length, begin) =
                (number(input), if options & 0x40 != 0 { id(input) } else { number(input) });
            put(&mut cdb, start, &begin.to_be_bytes());
            match action {
                Action::Create => put(&mut cdb, len, &(length as u16 & 0x3f).to_be_bytes()),
                _ => put(&mut cdb, len, &length.to_be_bytes()),
            }
        }
    }
    let mut out = Vec::new();
    let descriptors = input.u8();
    if descriptors > 0 {
        let descriptors = (0..descriptors % 4).map(|_| descriptor(input)).collect();
        if let Some(bytes) = Continuation::new(descriptors).encode(action) {
            out.extend(bytes);
            put(&mut cdb, 48, &(out.len() as u32).to_be_bytes());
        }
    }
    out.extend(filled(input));
    attributes(input, &mut cdb, &mut out, version);
    (cdb, out)
}

/// A repeated byte, or a chunk.
fn filled(input: &mut Input<'_>) -> Vec<u8> {
    match input.u8() {
        0 => input.chunk().to_vec(),
        byte => vec![byte; usize::from(input.u16()).min(MAX_OUT)],
    }
}

/// Attribute parameters; appends their part of Data-Out to `out`.
fn attributes(input: &mut Input<'_>, cdb: &mut [u8], out: &mut Vec<u8>, version: Version) {
    let how = input.u8();
    let format = if how & 3 == 0 { 3 } else { how & 3 };
    cdb[11] |= format << 4;
    let mut place = |cdb: &mut [u8], at: usize, bytes: &[u8]| {
        let Some(begin) = offset::round_up(out.len() as u64, version) else { return };
        out.resize(begin as usize, 0xee);
        out.extend(bytes);
        region(cdb, at, bytes.len() as u32, begin, version);
    };
    let number = |attribute: AttributeId| {
        let mut bytes = attribute.page.0.to_be_bytes().to_vec();
        bytes.extend(attribute.number.to_be_bytes());
        bytes
    };
    // Behind the command's own data, or anywhere.
    let behind = osd::Cdb::decode(cdb).map_or(0, |cdb| cdb.command.data_in_len());
    let retrieved = |input: &mut Input<'_>| match how & 0x80 {
        0 => offset::round_up(behind, version).unwrap_or(0),
        _ => offset::round_up(u64::from(input.u16()), version).unwrap_or(0),
    };
    match (how & 3, format) {
        (0, _) => {}
        (_, 1) => {
            cdb[52..60].copy_from_slice(&number(attribute(input)));
            let value = input.chunk();
            cdb[60..62].copy_from_slice(&(value.len() as u16).to_be_bytes());
            let len = value.len().min(18);
            cdb[62..62 + len].copy_from_slice(&value[..len]);
        }
        (_, 2) => {
            cdb[52..56].copy_from_slice(&attribute(input).page.0.to_be_bytes());
            let at = retrieved(input);
            region(cdb, 56, input.u16().into(), at, version);
            cdb[64..72].copy_from_slice(&number(attribute(input)));
            place(cdb, 72, input.chunk());
        }
        _ => {
            let mut get = Vec::new();
            list::write_get(&mut get, version, (0..how >> 2 & 7).map(|_| attribute(input)));
            place(cdb, 52, &get);
            let at = retrieved(input);
            region(cdb, 60, input.u16().into(), at, version);
            let mut set = vec![9];
            set.resize(list::header_len(version), 0);
            for _ in 0..how >> 5 & 3 {
                let (attribute, value) = (attribute(input), input.chunk());
                // A value that is too long is left out.
                let _ = list::write_entry(&mut set, version, attribute, (!value.is_empty()).then_some(value));
            }
            place(cdb, 68, &set);
        }
    }
}

/// A length and an offset of the attribute parameters.
fn region(cdb: &mut [u8], at: usize, len: u32, begin: u64, version: Version) {
    cdb[at..at + 4].copy_from_slice(&len.to_be_bytes());
    let field = offset::encode(begin, version).unwrap_or(offset::UNUSED);
    cdb[at + 4..at + 8].copy_from_slice(&field.to_be_bytes());
}

/// The store's totals, which must equal the sums over its partitions.
fn sums(store: &dyn ObjectStore) -> (u64, u64, u64) {
    let root = store.root();
    assert!(root.used <= root.capacity, "{root:?}");
    let (mut partitions, mut objects) = (Vec::new(), 0);
    store.list(List::Partitions, 0, 1 << 20, &mut partitions).expect("partitions can be listed");
    for id in &partitions {
        let mut users = Vec::new();
        store.list(List::Users(*id), 0, 1 << 20, &mut users).expect("a partition can be listed");
        objects += users.len() as u64;
    }
    assert_eq!((root.partitions, root.objects), (partitions.len() as u64, objects), "{root:?}");
    (root.partitions, root.objects, root.used)
}

/// A byte of options; then steps: a nexus and `how`, then a command that [`build`] makes, or the
/// CDB as a chunk, the room in units of `how`, and Data-Out as [`filled`] has it.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let bits = input.u8();
    let clock = Arc::new(Steps(AtomicU64::new(1_000_000)));
    let options = OsdOptions { read_only: bits & 3 == 3, clock: clock.clone(), ..OsdOptions::default() };
    let store = Arc::new(Oracle::new(CAPACITY));
    let unit = OsdUnit::new(store.clone(), options.with_identity("fuzz")).expect("good options");
    let nexuses = [nexus(1, false), nexus(2, false), nexus(3, bits & 4 != 0)];
    for nexus in &nexuses {
        unit.attach(nexus);
        while nexus.take_attention().is_some() {}
    }
    let trace = std::env::var_os("FUZZ_TRACE").is_some();
    let mut before = sums(&*store);
    for _ in 0..STEPS {
        if input.is_empty() {
            return;
        }
        let how = input.u8();
        let nexus = &nexuses[usize::from(how & 3) % nexuses.len()];
        if how & 0xf0 == 0xf0 {
            match how & 0x0c {
                0 => unit.reset(ResetKind::LogicalUnit, Some(nexus.nexus.id)),
                4 => unit.reset(ResetKind::TargetCold, None),
                8 => drop(clock.0.fetch_add(u64::from(input.u16()) << 8, Ordering::Relaxed)),
                _ => {
                    unit.detach(nexus.nexus.id);
                    unit.attach(nexus);
                }
            }
            continue;
        }
        let (cdb, data_out, room) = if how & 4 != 0 {
            let (cdb, room) = (input.chunk().to_vec(), input.u16());
            (cdb, filled(&mut input), room)
        } else {
            let (cdb, out) = build(&mut input);
            (cdb, out, input.u16())
        };
        let room = usize::from(room) << (how >> 4 & 3);
        let Some(cdb) = Cdb::new(&cdb) else { return };
        let (lost, pending) = (how & 8 != 0 && how & 0x40 != 0, if how & 8 != 0 { 3 } else { 0 });
        let mover = Mover { data_out, room, pending, lost, ..Mover::default() };
        let ran = execute(&unit, nexus, cdb.clone(), mover);
        let after = sums(&*store);
        let Some((outcome, data_in)) = ran else {
            before = after;
            continue;
        };
        let decoded = osd::Cdb::decode(cdb.bytes());
        if trace {
            let sense = outcome.sense.as_ref().map(|sense| (sense.key, sense.additional));
            let shown = decoded.as_ref().map(|cdb| (cdb.form, cdb.command));
            eprintln!("{shown:?} of {}: {:?} {sense:?}, {after:?}", nexus.nexus.id.0, outcome.status);
        }
        if refused(&outcome) {
            assert_eq!(before, after, "refused, but the store changed: {:02x?} {outcome:?}", cdb.bytes());
        }
        before = after;
        if let (Ok(decoded), Status::Good) = (decoded, outcome.status) {
            retrieved(&decoded, &data_in, room as u64);
        }
    }
}

/// Whether nothing was done.
fn refused(outcome: &device::Outcome) -> bool {
    let Some(sense) = &outcome.sense else { return outcome.status == Status::ReservationConflict };
    if sense.key == SenseKey::UnitAttention {
        return true;
    }
    // Attributes may be refused when the command itself is done.
    let completed = |found: &osd::sense::Descriptor| match found {
        osd::sense::Descriptor::Object { completed, .. } => *completed,
        _ => 0,
    };
    let done = osd::sense::Descriptor::parse_all(&sense.descriptors)
        .iter()
        .map(completed)
        .fold(0, |all, one| all | one);
    matches!(sense.key, SenseKey::IllegalRequest | SenseKey::DataProtect)
        && done & (function::COMMAND | function::SET_ATTRIBUTES) == 0
}

/// A list of retrieved attributes for which there was room can be read.
fn retrieved(cdb: &osd::Cdb, data_in: &[u8], room: u64) {
    // With LIST_ATTR they are in the list, and no list of their own.
    let (AttributeParameters::List { .. }, Some(Region { len, offset })) = (&cdb.attributes, cdb.retrieved())
    else {
        return;
    };
    if offset + u64::from(len) > room || data_in.len() as u64 <= offset {
        return;
    }
    let list = &data_in[offset as usize..];
    let list = &list[..list.len().min(len as usize)];
    let version = cdb.form.version();
    if list.len() < list::header_len(version) {
        return;
    }
    assert!(
        ValueList::parse_retrieved(list, version).is_ok() || list::parse_many(list, version).is_ok(),
        "{:?}: {list:02x?}",
        cdb.command
    );
}

/// A seed's command: its continuation, its data, and the attributes that it gets and sets.
#[derive(Default)]
struct Ask<'a> {
    descriptors: Vec<Descriptor>,
    data: &'a [u8],
    get: &'a [AttributeId],
    set: &'a [(AttributeId, &'a [u8])],
}

/// Adds a command as a chunk to a seed.
fn ask(seed: Seed, form: Form, command: Command, with: Ask<'_>) -> Seed {
    let mut cdb = osd::Cdb { form, ..osd::Cdb::new(command) };
    let version = form.version();
    let mut out = Vec::new();
    if !with.descriptors.is_empty() {
        out = Continuation::new(with.descriptors).encode(command.action()).expect("a seed fits its fields");
        cdb.continuation = out.len() as u32;
    }
    out.extend(with.data);
    let mut place = |list: Vec<u8>| {
        let offset = offset::round_up(out.len() as u64, version).expect("a seed is short");
        out.resize(offset as usize, 0);
        out.extend(&list);
        Region { len: list.len() as u32, offset }
    };
    if !with.get.is_empty() || !with.set.is_empty() {
        let get = (!with.get.is_empty()).then(|| {
            let mut list = Vec::new();
            list::write_get(&mut list, version, with.get.iter().copied());
            place(list)
        });
        let set = (!with.set.is_empty()).then(|| {
            let mut list = vec![9];
            list.resize(list::header_len(version), 0);
            for (attribute, value) in with.set {
                list::write_entry(&mut list, version, *attribute, Some(value))
                    .expect("a seed's value is short");
            }
            place(list)
        });
        let offset = offset::round_up(command.data_in_len(), version).expect("a seed reads little");
        let retrieved = get.map(|_| Region { len: 512, offset });
        cdb.attributes = AttributeParameters::List { get, retrieved, set };
    }
    let cdb = cdb.encode().expect("a seed's CDB fits its form");
    seed.bytes([4]).chunk(cdb).bytes([0x10, 0, 0]).chunk(out)
}

/// Data, attributes, collections, queries, copies, snapshots, keys and tunnels, each on an object
/// that is there.
pub fn seeds() -> Vec<(&'static str, Seed)> {
    use osd::attributes::numbers::{collections, user_information};
    use osd::cdb::{FlushScope, KeyToSet, ListCollection, SetKey};
    let (p, o) = (FIRST, Id::new(FIRST, FIRST));
    let range = |start, len| ObjectRange { start, len };
    let plain = |seed, command| ask(seed, Form::Osd2, command, Ask::default());
    let created = |form, bits: u8| {
        let seed =
            ask(Seed::new().bytes([bits]), form, Command::CreatePartition { requested: p }, Ask::default());
        ask(seed, form, Command::Create { partition: p, requested: p, count: 1 }, Ask::default())
    };
    let ready = || created(Form::Osd2, 0);
    let write = |seed, form| {
        ask(seed, form, Command::Write(o, range(100, 64)), Ask { data: &[0x5a; 64], ..Ask::default() })
    };
    let written = || write(ready(), Form::Osd2);
    let length = [user_information::LOGICAL_LENGTH, AttributeId::new(Page::ALL, AttributeId::ALL)];
    let name = [(user_information::NAME, &b"name"[..])];
    let both = || Ask { get: &length, set: &name, ..Ask::default() };
    let reads = |form| {
        let seed = write(created(form, 0), form);
        ask(seed, form, Command::Read(o, range(90, 200)), both())
    };
    let pieces = || vec![Descriptor::ScatterGather(vec![range(0, 8), range(64, 56)])];
    let scattered = ask(
        written(),
        Form::Osd2,
        Command::Write(o, range(0, 64)),
        Ask { descriptors: pieces(), data: &[7; 64], ..Ask::default() },
    );
    let gathered = ask(
        scattered,
        Form::Osd2,
        Command::Read(o, range(0, 64)),
        Ask { descriptors: pieces(), ..Ask::default() },
    );
    let collection = Id::new(p, FIRST + 1);
    let members = || {
        let seed = plain(ready(), Command::CreateCollection { partition: p, requested: collection.object });
        let pointer = [(AttributeId::new(collections::PAGE, 1), &collection.object.to_be_bytes()[..])];
        ask(seed, Form::Osd2, Command::SetAttributes(o), Ask { set: &pointer, ..Ask::default() })
    };
    let criterion = |min: &[u8]| Criterion { attribute: length[0], min: min.to_vec(), max: Vec::new() };
    let query = || vec![Descriptor::Query(Query { all: true, criteria: vec![criterion(&[0; 8]); 2] })];
    let asked = |seed, matches| {
        let command = Command::Query { id: Id::partition(p), immediate: false, allocation: 256, matches };
        ask(seed, Form::Osd2, command, Ask { descriptors: query(), ..Ask::default() })
    };
    let source = Descriptor::CopySource(CopySource { id: o, attributes: true, freeze: false, time: 0 });
    let copied = ask(
        written(),
        Form::Osd2,
        Command::CopyUserObjects { partition: p, requested: 0, method: 0 },
        Ask { descriptors: vec![source], ..both() },
    );
    let snapshot = plain(written(), Command::CreateSnapshot { requested: FIRST + 1, source: p, method: 0 });
    let compare = Command::ReadMapsAndCompare { id: o, allocation: 256, other: FIRST + 1, map_type: 0 };
    let restored = plain(
        plain(write(snapshot.clone(), Form::Osd2), compare),
        Command::RestorePartition { partition: p, snapshot: FIRST + 1 },
    );
    let cloned = plain(written(), Command::CreateClone { requested: FIRST + 1, source: p, method: 1 });
    let cloned = plain(
        plain(cloned, Command::RefreshSnapshotOrClone { partition: FIRST + 1 }),
        Command::DetachClone { partition: FIRST + 1 },
    );
    let lists = |seed, partition| {
        let list =
            osd::cdb::List { partition, allocation: 256, initial: 0, list_id: 0, attributes: true, sort: 0 };
        ask(seed, Form::Osd2, Command::List(list), Ask { get: &length, ..Ask::default() })
    };
    let listed =
        ListCollection { id: collection, allocation: 100, initial: 0, list_id: 0, attributes: false };
    let key = SetKey { key: KeyToSet::Working, partition: p, version: 1, key_id: *b"key-id7", seed: [7; 20] };
    let mut inquiry = [0; 16];
    (inquiry[0], inquiry[4]) = (0x12, 96);
    let group = ask(
        members(),
        Form::Osd2,
        Command::SetMemberAttributes(collection),
        Ask { set: &name, ..Ask::default() },
    );
    let group = ask(
        group,
        Form::Osd2,
        Command::GetMemberAttributes(collection),
        Ask { get: &length, ..Ask::default() },
    );
    let flushed = [
        Command::Flush { id: o, scope: FlushScope::RangeOrAll, range: range(0, 8) },
        Command::FlushPartition { partition: p, scope: FlushScope::Contents },
        Command::FlushOsd { scope: FlushScope::RangeOrAll },
        Command::ObjectStructureCheck(osd::cdb::StructureScope::Partition(p)),
    ];
    // Commands that `build` makes: CREATE PARTITION, then CREATE AND WRITE with attributes of each
    // format.
    let position = |wanted| Action::ALL.iter().position(|action| *action == wanted).unwrap_or(0) as u8;
    let built = |format: &[u8]| {
        let partition =
            [0, 0, position(Action::CreatePartition), 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let create = [0, 0, position(Action::CreateAndWrite), 0, 0, 0, 1, 1, 0, 16, 0, 8, 0, 0x5a, 0, 16];
        Seed::new().bytes([0]).bytes(partition).bytes(create).bytes(format).bytes([16, 0])
    };
    vec![
        ("read-osd1", reads(Form::Osd1)),
        ("read-draft", reads(Form::Osd2Draft)),
        ("read-attributes", reads(Form::Osd2)),
        ("scatter-gather", gathered),
        ("append-clear-punch", {
            let seed = ask(
                written(),
                Form::Osd2,
                Command::Append { id: o, len: 16 },
                Ask { data: &[1; 16], ..both() },
            );
            plain(plain(seed, Command::Clear(o, range(8, 4096))), Command::Punch(o, range(4, 100)))
        }),
        ("query", asked(written(), 0)),
        (
            "query-into-collection",
            plain(asked(members(), collection.object), Command::RemoveMemberObjects(collection)),
        ),
        ("member-attributes", group),
        ("list-collection", plain(members(), Command::ListCollection(listed))),
        (
            "tracking",
            plain(
                members(),
                Command::CreateUserTrackingCollection {
                    partition: p,
                    requested: 0,
                    source: collection.object,
                },
            ),
        ),
        ("remove-collection", plain(members(), Command::RemoveCollection { id: collection, force: true })),
        ("lists", lists(lists(written(), 0), p)),
        ("copy", copied),
        ("snapshot-restore", restored),
        ("clone-detach", cloned),
        ("read-map", plain(written(), Command::ReadMap { id: o, allocation: 256, start: 0, map_type: 0 })),
        ("flush", flushed.into_iter().fold(written(), plain)),
        ("set-key", plain(ready(), Command::SetKey(key))),
        ("tunnel", plain(ready(), Command::PerformScsiCommand { cdb: inquiry })),
        ("task-management", plain(ready(), Command::PerformTmf { allocation: 8, function: 1, tag: 0 })),
        (
            "remove",
            plain(
                plain(written(), Command::Remove(o)),
                Command::RemovePartition { partition: p, scope: osd::cdb::RemoveScope::Contents },
            ),
        ),
        ("format", plain(written(), Command::Format { capacity: 0 })),
        ("read-only", created(Form::Osd2, 3)),
        (
            "out-of-space",
            ask(
                ready(),
                Form::Osd2,
                Command::Write(o, range(CAPACITY, 64)),
                Ask { data: &[1; 64], ..Ask::default() },
            ),
        ),
        ("built-one", built(&[1, 0x01, 0, 0x09, 0, 2, b'n', b'm'])),
        ("built-page", built(&[2, 0xfe, 0, 0, 1, 0, 0x01, 0, 0x09, 0, 2, b'n', b'm'])),
        (
            "built-list",
            built(&[0x2b, 0xff, 0xff, 0xff, 0x01, 0, 0x82, 1, 0, 0x01, 0, 0x09, 0, 2, b'n', b'm']),
        ),
    ]
}
