//! Parameter data as JSON: attribute lists and CDB continuations, read and made.

use osd::attributes::list::{self, GetList, ValueList};
use osd::cdb::ObjectRange;
use osd::continuation::{Continuation, CopySource, Criterion, Descriptor, Query};
use osd::{Action, AttributeId, Id, ObjectType, Page, Version};
use serde_json::{Value, json};

use crate::made::Numbers;
use crate::view::hex;

fn version(generation: &Value) -> Version {
    if generation == 1 { Version::Osd1 } else { Version::Osd2 }
}

fn values(list: ValueList<'_>) -> Value {
    list.iter()
        .map(|value| json!([value.attribute.page.0, value.attribute.number, hex(value.bytes)]))
        .collect()
}

pub fn list(bytes: &[u8], generation: &Value) -> Value {
    let version = version(generation);
    let kind = bytes[0] & 0x0F;
    let entries: Value = match kind {
        1 => {
            let list = GetList::parse(bytes, version).expect("a get list");
            list.iter().map(|attribute| json!([attribute.page.0, attribute.number])).collect()
        }
        9 => values(ValueList::parse(bytes, version).expect("a list of values")),
        _ => {
            let many = list::parse_many(bytes, version).expect("a list of many objects");
            many.into_iter()
                .map(|object| match object.kind {
                    Some(kind) => json!([object.id, kind.code(), values(object.values)]),
                    None => json!([object.id, values(object.values)]),
                })
                .collect()
        }
    };
    json!({ "type": kind, "entries": entries })
}

/// A continuation's descriptors as their bytes, which is how the vectors have them: they are
/// written again one by one.
pub fn continuation(bytes: &[u8]) -> (Value, Vec<u8>) {
    let code = u16::from_be_bytes([bytes[2], bytes[3]]);
    let (action, _) = Action::from_code(code).expect("an action");
    let read = Continuation::parse(bytes, action).expect("a continuation");
    let descriptors: Vec<Value> = read
        .descriptors
        .iter()
        .map(|descriptor| {
            let alone = Continuation::new(vec![descriptor.clone()]).encode(action).expect("it was read");
            let len = u32::from_be_bytes([alone[44], alone[45], alone[46], alone[47]]) as usize;
            json!([u16::from_be_bytes([alone[40], alone[41]]), hex(&alone[48..48 + len])])
        })
        .collect();
    let view = json!({ "service_action": code, "icv": hex(&read.icv), "descriptors": descriptors });
    (view, read.encode(action).expect("it was read"))
}

fn attribute(n: &mut Numbers) -> AttributeId {
    AttributeId::new(Page(n.next() as u32), n.next() as u32)
}

/// Lists and continuations of this crate's making.
pub fn vectors(n: &mut Numbers) -> Vec<Value> {
    let mut made = Vec::new();
    for (generation, version) in [(1, Version::Osd1), (2, Version::Osd2)] {
        let mut lists = Vec::new();
        let mut out = Vec::new();
        list::write_get(&mut out, version, (0..5).map(|_| attribute(n)));
        lists.push(out);
        let mut out = Vec::new();
        let some = [1, 7, 8, 9, 16, 17].map(|len| (attribute(n), n.fill::<17>()[..len].to_vec()));
        let values = some.iter().map(|(attribute, value)| (*attribute, Some(&value[..])));
        list::write_values(&mut out, version, values.chain([(attribute(n), None)])).expect("short values");
        lists.push(out);
        let mut many = Vec::new();
        for kind in [ObjectType::User, ObjectType::Collection] {
            let mut entries = Vec::new();
            list::write_entry(&mut entries, version, attribute(n), Some(&n.fill::<11>()))
                .expect("a short value");
            list::write_entry(&mut entries, version, attribute(n), Some(b"")).expect("a short value");
            list::write_of_many(&mut many, version, n.next(), kind, &entries).expect("few entries");
        }
        lists.push([list::values_header(version, true, many.len()), many].concat());
        for bytes in lists {
            let view = list(&bytes, &json!(generation));
            made.push(json!({ "kind": "attribute list", "generation": generation, "hex": hex(&bytes), "view": view }));
        }
    }
    let ranges = (0..4).map(|_| ObjectRange { start: n.next(), len: n.next() }).collect();
    let criteria = (0..3usize)
        .map(|at| Criterion {
            attribute: attribute(n),
            min: n.fill::<9>()[at..].to_vec(),
            max: n.fill::<9>()[..2 * at].to_vec(),
        })
        .collect();
    let source = CopySource { id: Id::new(n.next(), n.next()), attributes: true, freeze: true, time: 3 };
    for (action, descriptors) in [
        (Action::Write, vec![Descriptor::ScatterGather(ranges)]),
        (Action::Query, vec![Descriptor::Query(Query { all: true, criteria })]),
        (Action::CopyUserObjects, vec![Descriptor::CopySource(source)]),
        (Action::SetAttributes, vec![Descriptor::UserObjects(vec![n.next(), n.next(), n.next()])]),
        (
            Action::Read,
            vec![
                Descriptor::ExtensionCapabilities(n.fill::<104>().to_vec()),
                Descriptor::UserObjects(vec![]),
            ],
        ),
    ] {
        let bytes = Continuation { icv: n.fill(), descriptors }.encode(action).expect("short descriptors");
        let (view, _) = continuation(&bytes);
        made.push(json!({ "kind": "continuation", "hex": hex(&bytes), "view": view }));
    }
    made
}
