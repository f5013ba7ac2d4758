//! CDBs against bytes made by hand from the standard's tables, and every value against itself.

use super::*;
use crate::{AttributeId, Id, Page, Permissions, attributes::numbers};
use proptest::prelude::*;

const OBJECT: Id = Id::new(0x1_0000, 0x2_0003);

/// Checks the bytes that the standard's tables give for a READ of OSD-2: length 0x1000 at 0x2000,
/// one attribute page got at 0x1000 of Data-In.
#[test]
fn a_read_of_osd_2_is_what_the_tables_say() {
    let mut cdb = Cdb::new(Command::Read(OBJECT, ObjectRange { start: 0x2000, len: 0x1000 }));
    cdb.options = Options { dpo: true, fua: false, isolation: Isolation::Strict };
    cdb.timestamps = Timestamps::Bypass;
    cdb.continuation = 0x30;
    cdb.attributes = AttributeParameters::Page {
        get: Some(GetPage {
            page: numbers::user_information::PAGE,
            retrieved: Some(Region { len: 0x80, offset: 0x1000 }),
        }),
        set: None,
    };
    cdb.capability.format = 2;
    cdb.capability.permissions = Permissions::READ | Permissions::GET_ATTR;
    cdb.security.nonce = *b"tttttt123456";
    cdb.security.icv = [0xEE; 32];
    let mut expected = [0u8; 236];
    expected[0] = 0x7F;
    expected[7] = 228;
    expected[8..10].copy_from_slice(&[0x88, 0x85]);
    expected[10] = 0x12;
    expected[11] = 0x20;
    expected[12] = 0x7F;
    expected[16..24].copy_from_slice(&[0, 0, 0, 0, 0, 1, 0, 0]);
    expected[24..32].copy_from_slice(&[0, 0, 0, 0, 0, 2, 0, 3]);
    expected[32..40].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x10, 0]);
    expected[40..48].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x20, 0]);
    expected[48..52].copy_from_slice(&[0, 0, 0, 0x30]);
    expected[52..56].copy_from_slice(&[0, 0, 0, 1]);
    expected[56..60].copy_from_slice(&[0, 0, 0, 0x80]);
    // 0x1000 bytes are 0x200 steps of 8 (exponent -5).
    expected[60..64].copy_from_slice(&[0xB0, 0, 2, 0]);
    expected[76..80].fill(0xFF);
    expected[80] = 2;
    expected[80 + 49] = 0xA0;
    expected[184..216].fill(0xEE);
    expected[216..228].copy_from_slice(b"tttttt123456");
    expected[228..236].fill(0xFF);
    assert_eq!(cdb.encode().unwrap().as_slice(), expected);
    assert_eq!(Cdb::decode(&expected), Ok(cdb));
}

#[test]
fn a_write_of_osd_1_has_its_length_and_start_four_bytes_further() {
    let mut cdb = Cdb::new(Command::Write(OBJECT, ObjectRange { start: 0x2000, len: 0x1000 }));
    cdb.form = Form::Osd1;
    cdb.attributes = AttributeParameters::List {
        get: None,
        retrieved: None,
        set: Some(Region { len: 24, offset: 0x1000 }),
    };
    cdb.capability.partition = 0x1_0000;
    cdb.capability.policy_tag = 7;
    let mut expected = [0u8; 200];
    expected[0] = 0x7F;
    expected[7] = 192;
    expected[8..10].copy_from_slice(&[0x88, 0x06]);
    expected[11] = 0x30;
    expected[16..24].copy_from_slice(&[0, 0, 0, 0, 0, 1, 0, 0]);
    expected[24..32].copy_from_slice(&[0, 0, 0, 0, 0, 2, 0, 3]);
    expected[36..44].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x10, 0]);
    expected[44..52].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x20, 0]);
    expected[56..60].fill(0xFF);
    expected[64..68].fill(0xFF);
    expected[68..72].copy_from_slice(&[0, 0, 0, 24]);
    // 0x1000 bytes are 16 steps of 256.
    expected[72..76].copy_from_slice(&[0, 0, 0, 16]);
    expected[80 + 56..80 + 60].copy_from_slice(&[0, 0, 0, 7]);
    expected[80 + 60..80 + 68].copy_from_slice(&[0, 0, 0, 0, 0, 1, 0, 0]);
    expected[192..200].fill(0xFF);
    assert_eq!(cdb.encode().unwrap().as_slice(), expected);
    assert_eq!(Cdb::decode(&expected), Ok(cdb));
}

#[test]
fn an_attribute_of_up_to_18_bytes_fits_the_cdb() {
    let mut cdb = Cdb::new(Command::SetAttributes(OBJECT));
    let attribute = AttributeId::new(Page(1), 9);
    cdb.attributes =
        AttributeParameters::SetOne(InlineValue { attribute, value: b"a name"[..].try_into().unwrap() });
    let mut bytes = cdb.encode().unwrap();
    assert_eq!(bytes[11], 0x10);
    assert_eq!(&bytes[52..68], b"\0\0\0\x01\0\0\0\x09\0\x06a name");
    assert_eq!(Cdb::decode(&bytes).as_ref(), Ok(&cdb));
    bytes[61] = 19;
    assert_eq!(Cdb::decode(&bytes), Err(CdbError::at(60)));
}

#[test]
fn set_key_and_set_master_key_have_fields_of_their_own() {
    let seed = [0x5A; 20];
    let set = SetKey { key: KeyToSet::Working, partition: 0x1_0000, version: 5, key_id: *b"keyname", seed };
    let bytes = Cdb::new(Command::SetKey(set)).encode().unwrap();
    assert_eq!(bytes[11], 0x33);
    assert_eq!(&bytes[24..32], b"\x05keyname");
    assert_eq!(&bytes[32..52], seed);
    let set =
        SetMasterKey { step: 1, group: 14, key_id: *b"master ", parameter_len: 0x104, allocation: 0x20 };
    let bytes = Cdb::new(Command::SetMasterKey(set)).encode().unwrap();
    assert_eq!(&bytes[16..40], b"\0\0\0\0\0\0\0\0\x0Emaster \0\0\x01\x04\0\0\0\x20");
}

/// A valid CDB of each command, of the form that has it.
fn with(command: Command) -> Vec<u8> {
    Cdb::new(command).encode().unwrap().to_vec()
}

#[test]
fn every_wrong_field_is_pointed_at() {
    let read = with(Command::Read(OBJECT, ObjectRange::default()));
    let flush = with(Command::FlushOsd { scope: FlushScope::Contents });
    let remove = with(Command::RemovePartition { partition: 0x1_0000, scope: RemoveScope::Empty });
    let wrong = |bytes: &[u8], changes: &[(usize, u8)]| {
        let mut bytes = bytes.to_vec();
        for &(at, value) in changes {
            bytes[at] = value;
        }
        Cdb::decode(&bytes)
    };
    assert_eq!(wrong(&read, &[(0, 0x28)]), Err(CdbError::Opcode));
    assert_eq!(wrong(&read, &[(7, 100)]), Err(CdbError::at(7)));
    assert_eq!(wrong(&read, &[(9, 0xFF)]), Err(CdbError::at(8)));
    assert_eq!(wrong(&read, &[(10, 6)]), Err(CdbError::bit(10, 2)));
    assert_eq!(wrong(&flush, &[(10, 3)]), Err(CdbError::bit(10, 1)));
    assert_eq!(wrong(&flush, &[(11, 0x33)]), Err(CdbError::bit(11, 1)));
    assert_eq!(wrong(&remove, &[(11, 0x37)]), Err(CdbError::bit(11, 2)));
    assert_eq!(wrong(&read, &[(11, 0x00)]), Err(CdbError::bit(11, 5)));
    assert_eq!(wrong(&read, &[(12, 1)]), Err(CdbError::at(12)));
    // A get list with a length and no offset, and one with an exponent of -8.
    assert_eq!(wrong(&read, &[(55, 8)]), Err(CdbError::at(56)));
    assert_eq!(wrong(&read, &[(55, 8), (56, 0x80)]), Err(CdbError::at(56)));
    assert_eq!(wrong(&read, &[(228, 0x80)]), Err(CdbError::at(228)));
    for len in 0..read.len() {
        assert!(Cdb::decode(&read[..len]).is_err(), "{len}");
    }
}

#[test]
fn quirks_of_living_initiators_are_borne() {
    // The final length in a CDB of OSD-1.
    let mut read = Cdb::new(Command::Read(OBJECT, ObjectRange::default()));
    read.form = Form::Osd1;
    let mut bytes = read.encode().unwrap();
    bytes[7] = 228;
    assert_eq!(Cdb::decode(&bytes), Ok(read));
    // FLUSH SCOPE in byte 11.
    let flush =
        Cdb::new(Command::Flush { id: OBJECT, scope: FlushScope::RangeOrAll, range: ObjectRange::default() });
    let mut bytes = flush.encode().unwrap();
    assert_eq!((bytes[10], bytes[11]), (2, 0x30));
    (bytes[10], bytes[11]) = (0, 0x32);
    assert_eq!(Cdb::decode(&bytes), Ok(flush));
}

/// Any command of OSD-2, with any values that the bytes of its fields can hold.
fn any_command() -> impl Strategy<Value = Command> {
    let fields = proptest::collection::vec(any::<u8>(), Form::Osd2.len());
    (proptest::sample::select(Action::ALL), fields).prop_filter_map("a reserved code", |(action, fields)| {
        table::decode(action, &Body { form: Form::Osd2, f: Fields(&fields) }).ok()
    })
}

fn any_form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Osd1), Just(Form::Osd2Draft), Just(Form::Osd2)]
}

fn region() -> impl Strategy<Value = Option<Region>> {
    // Steps of 256 bytes: both versions have them.
    proptest::option::of(
        (1u32.., 0u64..0xFFF_FFFF).prop_map(|(len, steps)| Region { len, offset: steps * 256 }),
    )
}

fn attribute() -> impl Strategy<Value = AttributeId> {
    (1u32.., any::<u32>()).prop_map(|(page, number)| AttributeId::new(Page(page), number))
}

fn any_parameters() -> impl Strategy<Value = AttributeParameters> {
    prop_oneof![
        (attribute(), proptest::collection::vec(any::<u8>(), 0..=18)).prop_map(|(attribute, value)| {
            AttributeParameters::SetOne(InlineValue {
                attribute,
                value: value.as_slice().try_into().unwrap(),
            })
        }),
        (
            proptest::option::of(
                (1u32.., region()).prop_map(|(page, retrieved)| GetPage { page: Page(page), retrieved })
            ),
            proptest::option::of(
                (attribute(), region()).prop_map(|(attribute, value)| SetFromBuffer { attribute, value })
            ),
        )
            .prop_map(|(get, set)| AttributeParameters::Page { get, set }),
        (region(), region(), region()).prop_map(|(get, retrieved, set)| AttributeParameters::List {
            get,
            retrieved,
            set
        }),
    ]
}

fn any_capability() -> impl Strategy<Value = Capability> {
    (any::<([u8; 32], u16, u64, u64)>(), any::<(u32, u32, u16, u64, u64)>(), any::<[u8; 20]>()).prop_map(
        |((bits, permissions, expires, created), (tag, attributes, epoch, start, len), audit)| Capability {
            format: bits[0] & 15,
            key_version: bits[1] & 15,
            integrity_algorithm: bits[2] & 15,
            security_method: bits[3] & 15,
            expires: expires >> 16,
            audit,
            discriminator: *bits[4..].first_chunk().unwrap(),
            created: created >> 16,
            object_type: bits[30],
            permissions: Permissions(permissions),
            descriptor_type: bits[31] & 15,
            allowed_attributes: attributes,
            policy_tag: tag,
            boot_epoch: epoch,
            partition: start.rotate_left(9),
            object: len.rotate_left(9),
            range_len: len,
            range_start: start,
        },
    )
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_to_itself(
        command in any_command(),
        form in any_form(),
        attributes in any_parameters(),
        capability in any_capability(),
        icv in any::<[u8; 32]>(),
        nonce in any::<[u8; 12]>(),
        continuation in any::<u32>(),
        flags in any::<(bool, bool, bool, u8, Option<u16>)>(),
    ) {
        let (dpo, fua, bypass, control, icv_offset) = flags;
        let mut cdb = Cdb::new(command);
        cdb.form = form;
        cdb.control = control;
        cdb.options = Options { dpo, fua, isolation: Isolation::Default };
        if form.version() == Version::Osd2 && command.flush_scope().is_none() {
            cdb.options.isolation = Isolation::Range;
        }
        cdb.timestamps = if bypass { Timestamps::Bypass } else { Timestamps::Update };
        cdb.attributes = attributes;
        cdb.capability = capability;
        cdb.security.icv[..form.icv_len()].copy_from_slice(&icv[..form.icv_len()]);
        cdb.security.nonce = nonce;
        cdb.security.data_out_icv = icv_offset.map(|steps| u64::from(steps) * 256);
        if form.version() == Version::Osd2 && command.may_continue() {
            cdb.continuation = continuation;
        }
        match cdb.encode() {
            Ok(bytes) => {
                prop_assert_eq!(bytes.len(), form.len());
                let back = Cdb::decode(&bytes).unwrap();
                if form.version() == Version::Osd1 {
                    let osd2 = &mut cdb.capability;
                    (osd2.allowed_attributes, osd2.boot_epoch, osd2.range_len, osd2.range_start) = (0, 0, 0, 0);
                }
                prop_assert_eq!(back, cdb);
            }
            Err(error) => prop_assert!(form == Form::Osd1, "{}", error),
        }
    }

    #[test]
    fn any_bytes_decode_or_are_refused(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        action in proptest::sample::select(Action::ALL),
        osd1 in any::<bool>(),
        length in proptest::sample::select(vec![192u8, 216, 228]),
    ) {
        let _ = Cdb::decode(&bytes);
        if bytes.len() > 12 {
            let version = if osd1 { Version::Osd1 } else { Version::Osd2 };
            bytes[0] = OPCODE;
            bytes[7] = length;
            bytes[12] = 0;
            bytes[8..10].copy_from_slice(&action.code(version).unwrap_or(0x8885).to_be_bytes());
            if let Ok(cdb) = Cdb::decode(&bytes) {
                // A CDB that was decoded can be encoded again, and decodes to the same.
                let again = cdb.encode().unwrap();
                prop_assert_eq!(Cdb::decode(&again).unwrap(), cdb);
            }
        }
    }
}
