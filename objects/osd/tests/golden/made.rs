//! Vectors that this crate makes: each command in each form, with values of its own choosing.

use osd::cdb::{
    AttributeParameters, Command, GetPage, InlineValue, Isolation, Options, Region, Security, SetFromBuffer,
    StructureScope, Timestamps,
};
use osd::{Action, AttributeId, Capability, Cdb, Form, Id, ObjectType, Page, Version};
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

    fn region(&mut self, version: Version) -> Option<Region> {
        let step = if version == Version::Osd1 { 256 } else { 8 };
        // A tenth of them is far away, where offsets have a coarser step.
        let offset = if self.below(10) == 0 { self.below(1 << 10) << 30 } else { self.below(1 << 20) * step };
        (self.below(4) != 0).then(|| Region { len: 1 + self.below(1 << 20) as u32, offset })
    }
}

/// Each command, with arbitrary bytes as its fields, but for LIST_ATTR, which OSD-1 does not have.
fn commands(n: &mut Numbers) -> Vec<Command> {
    let mut made = vec![Command::ObjectStructureCheck(StructureScope::Root)];
    for action in Action::ALL {
        made.push(loop {
            let mut bytes = Cdb::new(made[0]).encode().expect("a command of OSD-2");
            bytes[8..10].copy_from_slice(&action.code(Version::Osd2).expect("OSD-2 has all").to_be_bytes());
            (bytes[10], bytes[11], bytes[14]) =
                (n.below(3) as u8, n.next() as u8 & 0x8F | 0x30, n.next() as u8);
            bytes[16..52].copy_from_slice(&n.fill::<36>());
            // A code may be a reserved one.
            if let Ok(cdb) = Cdb::decode(&bytes) {
                break cdb.command;
            }
        });
    }
    made
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
