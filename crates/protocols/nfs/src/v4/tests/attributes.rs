//! Sets of attributes and their values.

use proptest::prelude::*;
use rpc::xdr::{self, List, Opaque};

use super::samples::some_bitmap;
use crate::v4::*;

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|it| it.to_be_bytes()).collect()
}

/// A value for every attribute.
fn all<'a>(names: &'a [Name<'a>], locations: &'a [FsLocation<'a>], types: &'a [u32]) -> Attributes<'a> {
    let text = Some(Opaque::new(b"staff@example").unwrap());
    let time = Some(Time { seconds: -1, nanoseconds: 999_999_999 });
    let mode = Some(ModeMasked { value: 0o600, mask: 0o777 });
    Attributes {
        supported_attrs: Some(Attributes::KNOWN),
        kind: Some(FileType::NamedAttr),
        fh_expire_type: Some(0),
        change: Some(1),
        size: Some(2),
        link_support: Some(true),
        symlink_support: Some(false),
        named_attr: Some(true),
        fsid: Some(Fsid { major: 3, minor: 4 }),
        unique_handles: Some(true),
        lease_time_s: Some(90),
        rdattr_error: Some(Outcome::Err(Status::Moved, ())),
        acl_support: Some(0),
        archive: Some(true),
        can_set_time: Some(true),
        case_insensitive: Some(false),
        case_preserving: Some(true),
        chown_restricted: Some(true),
        filehandle: Some(Opaque::new(b"handle").unwrap()),
        fileid: Some(5),
        files_avail: Some(6),
        files_free: Some(7),
        files_total: Some(8),
        fs_locations: Some(FsLocations { root: List::of(names), locations: List::of(locations) }),
        hidden: Some(false),
        homogeneous: Some(true),
        max_file_size: Some(9),
        max_links: Some(10),
        max_name: Some(255),
        max_read: Some(1 << 20),
        max_write: Some(1 << 20),
        mime_type: text,
        mode: Some(0o644),
        no_truncation: Some(true),
        links: Some(11),
        owner: text,
        owner_group: text,
        quota_avail_hard: Some(12),
        quota_avail_soft: Some(13),
        quota_used: Some(14),
        device: Some(Device { major: 15, minor: 16 }),
        space_avail: Some(17),
        space_free: Some(18),
        space_total: Some(19),
        space_used: Some(20),
        system: Some(false),
        atime: time,
        atime_set: Some(SetTime::Server(())),
        time_backup: time,
        time_create: time,
        time_delta: Some(Time { seconds: 0, nanoseconds: 1 }),
        ctime: time,
        mtime: time,
        mtime_set: Some(SetTime::Client(Time { seconds: 1, nanoseconds: 2 })),
        mounted_on_fileid: Some(21),
        dir_notif_delay: time,
        dirent_notif_delay: time,
        change_policy: Some(ChangePolicy { major: 22, minor: 23 }),
        fs_layout_types: Some(List::of(types)),
        layout_types: Some(List::of(types)),
        layout_blksize: Some(4096),
        layout_alignment: Some(512),
        mode_set_masked: mode,
        suppattr_exclcreat: Some(SETTABLE),
        fs_charset_cap: Some(1),
        clone_blksize: Some(4096),
        space_freed: Some(24),
        change_attr_type: Some(ChangeAttrType::TimeMetadata),
        sec_label: Some(SecLabel { lfs: 1, pi: 2, data: Opaque::new(b"label").unwrap() }),
        mode_umask: Some(ModeUmask { mode: 0o666, umask: 0o22 }),
        xattr_support: Some(true),
    }
}

#[test]
fn every_attribute_is_read_as_it_was_written() {
    let names = [Opaque::new(b"a").unwrap(), Opaque::new(b"bcdef").unwrap()];
    let locations = [FsLocation { servers: List::of(&names), root: List::EMPTY }];
    let values = all(&names, &locations, &[1, 4, 5]);
    assert_eq!(values.set(), Attributes::KNOWN);
    let wire = xdr::encode(&Fattr::of(&values));
    let read: Fattr<'_> = xdr::decode(&wire).unwrap();
    assert_eq!(read.attributes(), Ok(values.clone()));
    assert_eq!(xdr::encode(&read), wire);
    // Each alone, too; attributes that are not requested are not there.
    for number in Attributes::KNOWN.iter() {
        let one = Fattr::new(Bitmap::of(&[number, Bitmap::BEYOND]), &values);
        let wire = xdr::encode(&one);
        let read: Fattr<'_> = xdr::decode(&wire).unwrap();
        assert_eq!(read.set(), Bitmap::of(&[number]));
        assert_eq!(read.attributes().unwrap(), one.attributes().unwrap());
        assert_eq!(read.attributes().unwrap().set(), Bitmap::of(&[number]));
    }
}

/// RFC 8881 §5: the numbers, spot-checked at the ends of each document's range.
#[test]
fn numbers_are_those_of_the_rfcs() {
    use attribute::*;
    assert_eq!((SUPPORTED_ATTRS, RDATTR_ERROR, FILEHANDLE, FILEID), (0, 11, 19, 20));
    assert_eq!((MODE, OWNER, OWNER_GROUP, SPACE_USED), (33, 36, 37, 45));
    assert_eq!((TIME_ACCESS_SET, TIME_MODIFY_SET, MOUNTED_ON_FILEID), (48, 54, 55));
    assert_eq!((SUPPATTR_EXCLCREAT, CLONE_BLKSIZE, CHANGE_ATTR_TYPE), (75, 77, 79));
    assert_eq!((SEC_LABEL, MODE_UMASK, XATTR_SUPPORT), (80, 81, 82));
    assert!(SETTABLE.minus(Attributes::KNOWN).is_empty());
}

#[test]
fn values_stand_in_the_order_of_their_numbers() {
    let values = Attributes {
        mode: Some(0o644),
        size: Some(5),
        kind: Some(FileType::Directory),
        mtime: Some(Time { seconds: -2, nanoseconds: 3 }),
        ..Attributes::default()
    };
    let wire = words(&[2, 0x12, 0x20_0002, 28, 2, 0, 5, 0o644, u32::MAX, u32::MAX - 1, 3]);
    assert_eq!(xdr::encode(&Fattr::of(&values)), wire);
    assert_eq!(xdr::decode::<Fattr<'_>>(&wire).unwrap().attributes(), Ok(values));
}

#[test]
fn an_unknown_attribute_is_attrnotsupp_and_a_wrong_length_badxdr() {
    let status = |wire: &[u32]| {
        let wire = words(wire);
        xdr::decode::<Fattr<'_>>(&wire).unwrap().attributes().map(|it| it.set())
    };
    // The ACL, 12, has no field; 96 and above neither.
    assert_eq!(status(&[1, 1 << 12, 4, 0]), Err(Status::AttrNotSupp));
    assert_eq!(status(&[4, 0, 0, 0, 1, 4, 0]), Err(Status::AttrNotSupp));
    assert_eq!(status(&[1, 1 << 4, 4, 0]), Err(Status::BadXdr));
    assert_eq!(status(&[1, 1 << 4, 12, 0, 0, 0]), Err(Status::BadXdr));
    assert_eq!(status(&[0, 4, 0]), Err(Status::BadXdr));
    assert_eq!(status(&[1, 1 << 4, 8, 0, 0]), Ok(Bitmap::of(&[4])));
}

#[test]
fn a_request_of_unknown_attributes_gets_those_that_are_known() {
    // 32 words with the last bit of all.
    let mut request = words(&[32, 0x8]);
    request.extend(words(&[0; 30]));
    request.extend(words(&[0x8000_0000]));
    let request: Bitmap = xdr::decode(&request).unwrap();
    assert_eq!(request, Bitmap::of(&[attribute::CHANGE, Bitmap::BEYOND]));
    let values = Attributes { change: Some(1), size: Some(2), ..Attributes::default() };
    assert_eq!(Fattr::new(request, &values).set(), Bitmap::of(&[attribute::CHANGE]));
}

#[test]
fn words_of_zeros_at_the_end_of_a_set_are_not_kept() {
    let set: Bitmap = xdr::decode(&words(&[5, 0, 1, 0, 0, 0])).unwrap();
    assert_eq!(set, Bitmap::of(&[32]));
    assert_eq!(xdr::encode(&set), words(&[2, 0, 1]));
    assert_eq!(xdr::encode(&Bitmap::EMPTY), words(&[0]));
}

proptest! {
    #[test]
    fn sets_behave_as_sets_of_numbers(a in some_bitmap(), b in some_bitmap()) {
        let numbers = |set: Bitmap| set.iter().collect::<std::collections::BTreeSet<_>>();
        let (x, y) = (numbers(a), numbers(b));
        prop_assert_eq!(numbers(a.and(b)), &x & &y);
        prop_assert_eq!(numbers(a.or(b)), &x | &y);
        prop_assert_eq!(numbers(a.minus(b)), &x - &y);
        prop_assert_eq!(a.is_empty(), x.is_empty());
        prop_assert_eq!(xdr::decode(&xdr::encode(&a)), Ok(a));
        for number in 0..=Bitmap::BEYOND {
            prop_assert_eq!(a.contains(number), x.contains(&number));
            prop_assert!(!a.without(number).contains(number));
        }
    }
}
