//! Object-based storage: CDBs, attribute lists, CDB continuations and parameter data, from either
//! side.

use crate::input::{Input, Seed};
use osd::attributes::list::{self, GetList, ValueList};
use osd::attributes::page::CurrentCommand;
use osd::cdb::{Cdb, ObjectRange};
use osd::continuation::{Continuation, CopySource, Criterion, Descriptor, Query};
use osd::security::Credential;
use osd::{Action, AttributeId, Command, Form, Id, ObjectType, Page, Version};

const OBJECT: Id = Id::new(0x1_0000, 0x1_0001);
const LENGTH: AttributeId = AttributeId::new(Page(1), 0x82);

fn version(input: &mut Input<'_>) -> Version {
    if input.bool() { Version::Osd1 } else { Version::Osd2 }
}

/// A CDB: a decoded one can be encoded, and then decodes to the same.
pub fn cdb(data: &[u8]) {
    match Cdb::decode(data) {
        Ok(cdb) => {
            let again = cdb.encode().expect("a CDB that was read fits its form");
            assert_eq!(Cdb::decode(&again).as_ref(), Ok(&cdb));
            assert!(again.len() <= data.len() && Cdb::is_osd(data));
            let _ = (cdb.command.id(), cdb.command.object_type(), cdb.command.data_in_len());
            let _ = (cdb.attributes.data_out_end(), cdb.retrieved(), cdb.security.nonce_time());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// CDBs of every form and attribute format.
pub fn cdb_seeds() -> Vec<(&'static str, Seed)> {
    let seed = |name, form, command| {
        let cdb = Cdb { form, ..Cdb::new(command) };
        (name, Seed::new().bytes(cdb.encode().expect("a seed's CDB fits its form")))
    };
    let range = ObjectRange { start: 0x2000, len: 0x1000 };
    let seed_bytes = [7; 20];
    vec![
        seed("osd1_read", Form::Osd1, Command::Read(OBJECT, range)),
        seed("draft_write", Form::Osd2Draft, Command::Write(OBJECT, range)),
        seed("punch", Form::Osd2, Command::Punch(OBJECT, range)),
        seed("create", Form::Osd2, Command::Create { partition: 0x1_0000, requested: 0, count: 3 }),
        seed("get_attributes", Form::Osd2, Command::GetAttributes(Id::ROOT)),
        seed(
            "list",
            Form::Osd2,
            Command::List(osd::cdb::List {
                partition: 0x1_0000,
                allocation: 4096,
                initial: 0,
                list_id: 1,
                attributes: true,
                sort: 0,
            }),
        ),
        seed(
            "set_key",
            Form::Osd2,
            Command::SetKey(osd::cdb::SetKey {
                key: osd::cdb::KeyToSet::Working,
                partition: 0x1_0000,
                version: 1,
                key_id: *b"key-id7",
                seed: seed_bytes,
            }),
        ),
        seed("tunnel", Form::Osd2, Command::PerformScsiCommand { cdb: [0; 16] }),
    ]
}

/// Byte 0: which version; then a list, read as every kind there is.
pub fn lists(data: &[u8]) {
    let mut input = Input::new(data);
    let version = version(&mut input);
    let bytes = input.rest();
    if let Ok(get) = GetList::parse(bytes, version) {
        let mut again = Vec::new();
        list::write_get(&mut again, version, get.iter());
        let read = GetList::parse(&again, version).expect("a list that was written is read");
        assert!(read.iter().eq(get.iter()));
    }
    if let Ok(values) = ValueList::parse(bytes, version) {
        let mut again = Vec::new();
        assert!(values.iter().all(|value| !value.is_cut()));
        let pairs = values.iter().map(|value| (value.attribute, Some(value.bytes)));
        list::write_values(&mut again, version, pairs).expect("values that were read fit a list");
        let read = ValueList::parse(&again, version).expect("a list that was written is read");
        assert!(read.iter().eq(values.iter()));
    }
    if let Ok(values) = ValueList::parse_retrieved(bytes, version) {
        assert!(values.iter().map(|value| value.bytes.len()).sum::<usize>() <= bytes.len());
    }
    if let Ok(objects) = list::parse_many(bytes, version) {
        assert!(objects.len() <= bytes.len());
        objects.iter().for_each(|object| assert!(object.values.iter().count() <= bytes.len()));
    }
}

/// Lists of every kind in both versions.
pub fn lists_seeds() -> Vec<(&'static str, Seed)> {
    let mut out = Vec::new();
    let names = [["get1", "get2"], ["values1", "values2"], ["many1", "many2"]];
    for (number, version) in [Version::Osd1, Version::Osd2].into_iter().enumerate() {
        let first = u8::from(version == Version::Osd1);
        let mut bytes = vec![first];
        list::write_get(&mut bytes, version, [LENGTH, AttributeId::new(Page::ALL, AttributeId::ALL)]);
        out.push((names[0][number], Seed::new().bytes(&bytes)));
        let mut bytes = vec![first];
        let values = [Some(&b"12345678"[..]), Some(b"odd"), None].map(|value| (LENGTH, value));
        list::write_values(&mut bytes, version, values).expect("a seed's values fit");
        out.push((names[1][number], Seed::new().bytes(&bytes)));
        let mut entries = Vec::new();
        list::write_entry(&mut entries, version, LENGTH, Some(b"12345678")).expect("a seed's value fits");
        let mut many = Vec::new();
        for id in [0x1_0000, 0x1_0001] {
            list::write_of_many(&mut many, version, id, ObjectType::User, &entries)
                .expect("a seed's entries fit");
        }
        let bytes = [vec![first], list::values_header(version, true, many.len()), many].concat();
        out.push((names[2][number], Seed::new().bytes(&bytes)));
    }
    out
}

/// A CDB continuation: a decoded one can be encoded, and then decodes to the same.
pub fn continuation(data: &[u8]) {
    for action in [Action::Read, Action::Query, Action::CopyUserObjects] {
        if let Ok(found) = Continuation::parse(data, action) {
            let again = found.encode(action).expect("a continuation that was read fits its fields");
            assert_eq!(Continuation::parse(&again, action), Ok(found));
        }
    }
}

/// Continuations with every descriptor.
pub fn continuation_seeds() -> Vec<(&'static str, Seed)> {
    let seed = |name, action, descriptor| {
        let continuation = Continuation::new(vec![descriptor]);
        (name, Seed::new().bytes(continuation.encode(action).expect("a seed fits its fields")))
    };
    let ranges = vec![ObjectRange { start: 0, len: 8 }, ObjectRange { start: 64, len: 16 }];
    let criterion = Criterion { attribute: LENGTH, min: vec![0; 8], max: vec![0xFF; 8] };
    let source = CopySource { id: OBJECT, attributes: true, freeze: false, time: 0 };
    vec![
        seed("scatter", Action::Read, Descriptor::ScatterGather(ranges)),
        seed("query", Action::Query, Descriptor::Query(Query { all: true, criteria: vec![criterion; 2] })),
        seed("objects", Action::Read, Descriptor::UserObjects(vec![0x1_0000, 0x1_0001])),
        seed("copy", Action::CopyUserObjects, Descriptor::CopySource(source)),
        seed("capabilities", Action::Read, Descriptor::ExtensionCapabilities(vec![1; 104])),
    ]
}

/// Byte 0: which version; then parameter data as an initiator gets it, sense descriptors, and a
/// credential.
pub fn data(data: &[u8]) {
    let mut input = Input::new(data);
    let version = version(&mut input);
    let bytes = input.rest();
    if let Some(header) = osd::data::ListHeader::parse(bytes, version) {
        assert_eq!(osd::data::ListHeader::parse(&header.encode(version), version), Some(header));
        osd::data::list_ids(bytes).count();
        let _ = osd::data::list_objects(bytes);
    }
    if let Some((_, ids)) = osd::data::query_ids(bytes) {
        ids.count();
    }
    if let Some((_, parts)) = osd::data::map(bytes) {
        parts.for_each(|part| assert_eq!(part.encode().len(), osd::data::MAP_DESCRIPTOR_LEN));
    }
    let _ = (osd::data::parse_security_token(bytes), CurrentCommand::parse(bytes, 32));
    for descriptor in osd::sense::Descriptor::parse_all(bytes) {
        assert_eq!(osd::sense::Descriptor::parse_all(&descriptor.emit()).len(), 1);
    }
    if let Some((at, len)) = osd::security::response_icv_in(bytes) {
        assert!(at + len <= bytes.len());
    }
    if let Some(credential) = Credential::from_bytes(bytes) {
        assert_eq!(Credential::from_bytes(&credential.to_bytes()), Some(credential));
    }
}

/// Data of every command, and sense.
pub fn data_seeds() -> Vec<(&'static str, Seed)> {
    use osd::data::{ListHeader, Listed, MapDescriptor, MapType};
    let seed = |name, parts: &[&[u8]]| (name, Seed::new().bytes([&[0][..], &parts.concat()].concat()));
    let header = ListHeader {
        additional_len: 32,
        continuation: 0,
        list_id: 0,
        changed: false,
        listed: Listed::UserObjects,
        attributes: false,
    };
    let id = &0x1_0000u64.to_be_bytes()[..];
    let part = MapDescriptor { kind: MapType::Written, offset: 0, len: 4096 };
    let object = osd::sense::Descriptor::Object { not_initiated: 1 << 28, completed: 0, id: OBJECT };
    let attributes = osd::sense::Descriptor::Attributes(vec![LENGTH]);
    vec![
        seed("list", &[&header.encode(Version::Osd2), id, id]),
        seed("query", &[&osd::data::query_header(2), id, id]),
        seed("map", &[&osd::data::map_header(1)[..], &part.encode()]),
        seed("token", &[&osd::data::vpd_security_token(&[3; 16])]),
        seed("sense", &[&object.emit(), &attributes.emit()]),
    ]
}
