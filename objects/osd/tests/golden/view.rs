//! A command as JSON, with the names that the vectors use.

use osd::cdb::{
    AttributeParameters, Command, List, ListCollection, ObjectRange, Region, SetKey, SetMasterKey,
    StructureScope, Timestamps,
};
use osd::{Capability, Cdb, Id, Version};
use serde_json::{Map, Value, json};

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal"))
        .collect()
}

struct View(Map<String, Value>);

impl View {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.into(), value.into());
    }

    fn id(&mut self, id: Id) {
        self.put("partition", id.partition);
        self.put("object", id.object);
    }

    fn range(&mut self, range: ObjectRange) {
        self.put("length", range.len);
        self.put("start", range.start);
    }

    fn region(&mut self, region: Option<Region>, len: &str, offset: &str) {
        self.put(len, region.map_or(0, |region| region.len));
        self.put(offset, json!(region.map(|region| region.offset)));
    }
}

pub fn of(cdb: &Cdb) -> Value {
    let version = cdb.form.version();
    let mut view = View(Map::new());
    view.put("version", cdb.form.len());
    view.put("action", cdb.command.action().name());
    view.put("control", cdb.control);
    view.put("dpo", u8::from(cdb.options.dpo));
    view.put("fua", u8::from(cdb.options.fua));
    view.put("timestamps", if cdb.timestamps == Timestamps::Bypass { 0x7F } else { 0 });
    if cdb.command.flush_scope().is_none() {
        view.put("isolation", cdb.options.isolation as u8);
    }
    if version == Version::Osd2 && cdb.command.may_continue() {
        view.put("continuation", cdb.continuation);
    }
    command(&mut view, &cdb.command, version);
    view.put("attributes", attributes(&cdb.attributes));
    view.put("capability", capability(&cdb.capability, version));
    view.put(
        "security",
        json!({
            "icv": hex(&cdb.security.icv[..cdb.form.icv_len()]),
            "nonce": hex(&cdb.security.nonce),
            "data_in_offset": cdb.security.data_in_icv,
            "data_out_offset": cdb.security.data_out_icv,
        }),
    );
    Value::Object(view.0)
}

fn command(view: &mut View, command: &Command, version: Version) {
    if let Some(scope) = command.flush_scope() {
        view.put("scope", scope as u8);
    }
    match *command {
        Command::ObjectStructureCheck(StructureScope::Root) => view.put("partition", 0),
        Command::ObjectStructureCheck(StructureScope::Partition(partition)) => {
            view.put("partition", partition)
        }
        Command::Format { capacity } => view.put("capacity", capacity),
        Command::Create { partition, requested, count } => {
            view.id(Id::new(partition, requested));
            view.put("count", count);
        }
        Command::List(List { partition, allocation, initial, list_id, attributes, sort }) => {
            view.put("partition", partition);
            view.put("sort", sort);
            list(view, version, allocation, initial, list_id, attributes);
        }
        Command::ListCollection(ListCollection { id, allocation, initial, list_id, attributes }) => {
            view.id(id);
            list(view, version, allocation, initial, list_id, attributes);
        }
        Command::Punch(id, range)
        | Command::Read(id, range)
        | Command::Write(id, range)
        | Command::Clear(id, range) => {
            view.id(id);
            view.range(range);
        }
        Command::Flush { id, range, .. } => {
            view.id(id);
            view.range(range);
        }
        Command::Append { id, len } => {
            view.id(id);
            view.put("length", len);
        }
        Command::Remove(id)
        | Command::GetAttributes(id)
        | Command::SetAttributes(id)
        | Command::FlushCollection { id, .. }
        | Command::RemoveMemberObjects(id)
        | Command::GetMemberAttributes(id)
        | Command::SetMemberAttributes(id) => view.id(id),
        Command::CreatePartition { requested: partition }
        | Command::FlushPartition { partition, .. }
        | Command::DetachClone { partition }
        | Command::RefreshSnapshotOrClone { partition } => view.put("partition", partition),
        Command::RemovePartition { partition, scope } => {
            view.put("partition", partition);
            view.put("remove_scope", scope as u8);
        }
        Command::CreateAndWrite { partition, requested, range } => {
            view.id(Id::new(partition, requested));
            view.range(range);
        }
        Command::CopyUserObjects { partition, requested, method } => {
            view.id(Id::new(partition, requested));
            view.put("duplication", method);
        }
        Command::CreateUserTrackingCollection { partition, requested, source } => {
            view.id(Id::new(partition, requested));
            view.put("source", source);
        }
        Command::CreateCollection { partition, requested } => view.id(Id::new(partition, requested)),
        Command::RemoveCollection { id, force } => {
            view.id(id);
            view.put("force", u8::from(force));
        }
        Command::SetKey(SetKey { key, partition, version, key_id, seed }) => {
            view.put("partition", partition);
            view.put("key_to_set", key as u8);
            view.put("key_version", version);
            view.put("key_id", hex(&key_id));
            view.put("seed", hex(&seed));
        }
        Command::SetMasterKey(SetMasterKey { step, group, key_id, parameter_len, allocation }) => {
            view.put("dh_step", step);
            view.put("dh_group", group);
            view.put("key_id", hex(&key_id));
            view.put("parameters", parameter_len);
            view.put("dh_allocation", allocation);
        }
        Command::FlushOsd { .. } => {}
        Command::Query { id, immediate, allocation, matches } => {
            view.id(id);
            view.put("immediate_tracking", u8::from(immediate));
            view.put("allocation", allocation);
            view.put("matches", matches);
        }
        Command::CreateClone { requested, source, method }
        | Command::CreateSnapshot { requested, source, method } => {
            view.put("partition", requested);
            view.put("source", source);
            view.put("duplication", method);
        }
        Command::RestorePartition { partition, snapshot } => {
            view.put("partition", partition);
            view.put("source", snapshot);
        }
        Command::ReadMap { id, allocation, start, map_type } => {
            view.id(id);
            view.put("allocation", allocation);
            view.put("start", start);
            view.put("map_type", map_type);
        }
        Command::ReadMapsAndCompare { id, allocation, other, map_type } => {
            view.id(id);
            view.put("allocation", allocation);
            view.put("source", other);
            view.put("map_type", map_type);
        }
        Command::PerformScsiCommand { cdb } => view.put("scsi_cdb", hex(&cdb)),
        Command::PerformTmf { allocation, function, tag } => {
            view.put("tmf_allocation", allocation);
            view.put("function", function);
            view.put("tag", tag);
        }
    }
}

fn list(view: &mut View, version: Version, allocation: u64, initial: u64, list_id: u32, attributes: bool) {
    view.put("allocation", allocation);
    view.put("initial", initial);
    view.put("list_id", list_id);
    if version == Version::Osd2 {
        view.put("list_attr", u8::from(attributes));
    }
}

fn attributes(parameters: &AttributeParameters) -> Value {
    let mut view = View(Map::new());
    match parameters {
        AttributeParameters::SetOne(set) => {
            view.put("format", 1);
            view.put("page", set.attribute.page.0);
            view.put("number", set.attribute.number);
            view.put("value", hex(&set.value));
        }
        AttributeParameters::Page { get, set } => {
            view.put("format", 2);
            view.put("get_page", get.map_or(0, |get| get.page.0));
            view.region(get.and_then(|get| get.retrieved), "get_length", "retrieved_offset");
            view.put("set_page", set.map_or(0, |set| set.attribute.page.0));
            view.put("set_number", set.map_or(0, |set| set.attribute.number));
            view.region(set.and_then(|set| set.value), "set_length", "set_offset");
        }
        AttributeParameters::List { get, retrieved, set } => {
            view.put("format", 3);
            view.region(*get, "get_list_length", "get_list_offset");
            view.region(*retrieved, "get_length", "retrieved_offset");
            view.region(*set, "set_list_length", "set_list_offset");
        }
    }
    Value::Object(view.0)
}

fn capability(capability: &Capability, version: Version) -> Value {
    let mut view = View(Map::new());
    view.put("format", capability.format);
    view.put("key_version", capability.key_version);
    view.put("algorithm", capability.integrity_algorithm);
    view.put("method", capability.security_method);
    view.put("descriptor", capability.descriptor_type);
    view.put("expiration", capability.expires);
    view.put("audit", hex(&capability.audit));
    view.put("discriminator", hex(&capability.discriminator));
    view.put("created", capability.created);
    view.put("object_type", capability.object_type);
    view.put("permissions", capability.permissions.0);
    view.put("policy_tag", capability.policy_tag);
    view.put("partition", capability.partition);
    view.put("object", capability.object);
    if version == Version::Osd2 {
        view.put("attributes_access", capability.allowed_attributes);
        view.put("boot_epoch", capability.boot_epoch);
        view.put("range_length", capability.range_len);
        view.put("range_start", capability.range_start);
    }
    Value::Object(view.0)
}
