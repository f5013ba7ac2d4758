//! Vectors that this crate makes: each command in each form, with values of its own choosing.

use osd::cdb::{
    AttributeParameters, Command, FlushScope, GetPage, InlineValue, Isolation, KeyToSet, List,
    ListCollection, ObjectRange, Options, Region, RemoveScope, Security, SetFromBuffer, SetKey, SetMasterKey,
    StructureScope, Timestamps,
};
use osd::{AttributeId, Capability, Cdb, Form, Id, ObjectType, Page, Version};
use serde_json::{Value, json};

use crate::view;

/// Numbers that look like chance and are always the same (splitmix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn fill<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }

    fn id(&mut self) -> Id {
        Id::new(self.next(), self.next())
    }

    fn range(&mut self) -> ObjectRange {
        ObjectRange { start: self.next(), len: self.next() }
    }

    fn region(&mut self, version: Version) -> Option<Region> {
        let step = if version == Version::Osd1 { 256 } else { 8 };
        // A tenth of them is far away, where offsets have a coarser step.
        let offset = if self.below(10) == 0 { self.below(1 << 10) << 30 } else { self.below(1 << 20) * step };
        (self.below(4) != 0).then(|| Region { len: 1 + self.below(1 << 20) as u32, offset })
    }
}

fn commands(n: &mut Numbers) -> Vec<Command> {
    let scopes = [FlushScope::Contents, FlushScope::Attributes, FlushScope::RangeOrAll];
    let scope = scopes[n.below(3) as usize];
    vec![
        Command::ObjectStructureCheck(StructureScope::Root),
        Command::ObjectStructureCheck(StructureScope::Partition(n.next())),
        Command::Format { capacity: n.next() },
        Command::Create { partition: n.next(), requested: n.next(), count: n.next() as u16 },
        Command::List(List {
            partition: n.next(),
            allocation: n.next(),
            initial: n.next(),
            list_id: n.next() as u32,
            attributes: false,
            sort: n.below(16) as u8,
        }),
        Command::Punch(n.id(), n.range()),
        Command::Read(n.id(), n.range()),
        Command::Write(n.id(), n.range()),
        Command::Append { id: n.id(), len: n.next() },
        Command::Flush { id: n.id(), scope, range: n.range() },
        Command::Clear(n.id(), n.range()),
        Command::Remove(n.id()),
        Command::CreatePartition { requested: n.next() },
        Command::RemovePartition { partition: n.next(), scope: RemoveScope::Contents },
        Command::GetAttributes(n.id()),
        Command::SetAttributes(n.id()),
        Command::CreateAndWrite { partition: n.next(), requested: n.next(), range: n.range() },
        Command::CopyUserObjects { partition: n.next(), requested: n.next(), method: n.next() as u8 },
        Command::CreateUserTrackingCollection { partition: n.next(), requested: n.next(), source: n.next() },
        Command::CreateCollection { partition: n.next(), requested: n.next() },
        Command::RemoveCollection { id: n.id(), force: n.below(2) == 1 },
        Command::ListCollection(ListCollection {
            id: n.id(),
            allocation: n.next(),
            initial: n.next(),
            list_id: n.next() as u32,
            attributes: false,
        }),
        Command::SetKey(SetKey {
            key: KeyToSet::Working,
            partition: n.next(),
            version: n.below(16) as u8,
            key_id: n.fill(),
            seed: n.fill(),
        }),
        Command::SetMasterKey(SetMasterKey {
            step: n.below(2) as u8,
            group: n.next() as u8,
            key_id: n.fill(),
            parameter_len: n.next() as u32,
            allocation: n.next() as u32,
        }),
        Command::FlushCollection { id: n.id(), scope },
        Command::FlushPartition { partition: n.next(), scope },
        Command::FlushOsd { scope },
        Command::Query { id: n.id(), immediate: n.below(2) == 1, allocation: n.next(), matches: n.next() },
        Command::RemoveMemberObjects(n.id()),
        Command::GetMemberAttributes(n.id()),
        Command::SetMemberAttributes(n.id()),
        Command::CreateClone { requested: n.next(), source: n.next(), method: n.next() as u8 },
        Command::CreateSnapshot { requested: n.next(), source: n.next(), method: n.next() as u8 },
        Command::DetachClone { partition: n.next() },
        Command::RefreshSnapshotOrClone { partition: n.next() },
        Command::RestorePartition { partition: n.next(), snapshot: n.next() },
        Command::ReadMap { id: n.id(), allocation: n.next(), start: n.next(), map_type: n.next() as u16 },
        Command::ReadMapsAndCompare {
            id: n.id(),
            allocation: n.next(),
            other: n.next(),
            map_type: n.next() as u16,
        },
        Command::PerformScsiCommand { cdb: n.fill() },
        Command::PerformTmf { allocation: n.next() as u16, function: n.next() as u8, tag: n.next() },
    ]
}

fn attributes(n: &mut Numbers, version: Version) -> AttributeParameters {
    let attribute = AttributeId::new(Page(1 + n.below(0xFFFF_FFFE) as u32), n.next() as u32);
    match n.below(3) {
        0 if version == Version::Osd2 => {
            let len = n.below(19) as usize;
            let value = n.fill::<18>()[..len].iter().copied().collect();
            AttributeParameters::SetOne(InlineValue { attribute, value })
        }
        1 => AttributeParameters::Page {
            get: Some(GetPage { page: Page(1 + n.below(0xFFFF_FFFE) as u32), retrieved: n.region(version) }),
            set: Some(SetFromBuffer { attribute, value: n.region(version) }),
        },
        _ => AttributeParameters::List {
            get: n.region(version),
            retrieved: n.region(version),
            set: n.region(version),
        },
    }
}

fn capability(n: &mut Numbers, version: Version) -> Capability {
    let id = n.id();
    let mut capability = Capability::all(version, ObjectType::User, id);
    capability.key_version = n.below(16) as u8;
    capability.integrity_algorithm = n.below(16) as u8;
    capability.security_method = n.below(4) as u8;
    capability.expires = n.below(1 << 48);
    capability.audit = n.fill();
    capability.discriminator = n.fill();
    capability.created = n.below(1 << 48);
    capability.permissions.0 = n.next() as u16;
    capability.policy_tag = n.next() as u32;
    if version == Version::Osd2 {
        capability.allowed_attributes = n.next() as u32;
        capability.boot_epoch = n.next() as u16;
        capability.range_len = n.next();
        capability.range_start = n.next();
    }
    capability
}

/// Every vector, always the same.
pub fn vectors() -> Vec<Value> {
    let mut n = Numbers(1729);
    let mut made = Vec::new();
    for form in [Form::Osd1, Form::Osd2Draft, Form::Osd2] {
        let version = form.version();
        for command in commands(&mut n) {
            if command.action().code(version).is_none() {
                continue;
            }
            let mut cdb = Cdb::new(command);
            cdb.form = form;
            cdb.control = n.next() as u8;
            cdb.options =
                Options { dpo: n.below(2) == 1, fua: n.below(2) == 1, isolation: Isolation::Default };
            if version == Version::Osd2 && cdb.command.flush_scope().is_none() {
                cdb.options.isolation = Isolation::Range;
            }
            if n.below(2) == 1 {
                cdb.timestamps = Timestamps::Bypass;
            }
            if version == Version::Osd2 && cdb.command.may_continue() {
                cdb.continuation = n.next() as u32;
            }
            cdb.attributes = attributes(&mut n, version);
            cdb.capability = capability(&mut n, version);
            let mut icv = [0; 32];
            icv[..form.icv_len()].copy_from_slice(&n.fill::<32>()[..form.icv_len()]);
            cdb.security = Security {
                icv,
                nonce: n.fill(),
                data_in_icv: n.region(version).map(|region| region.offset),
                data_out_icv: n.region(version).map(|region| region.offset),
            };
            let bytes = cdb.encode().unwrap_or_else(|error| panic!("{error}: {cdb:?}"));
            made.push(json!({ "kind": "cdb", "hex": view::hex(&bytes), "view": view::of(&cdb) }));
        }
    }
    made.extend(crate::data::vectors(&mut n));
    made
}
