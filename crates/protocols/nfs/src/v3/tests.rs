//! All procedures in both directions: bytes worked out by hand, the encodings of another
//! implementation, and round trips.

use proptest::prelude::*;
use rpc::xdr::{self, Chain, Chained, Malformed, Opaque, Reader, Writer, padding};

use super::readdir::{Entry, EntryPlus};
use super::*;

mod listing;

/// The values that arguments and results are made of.
#[derive(Debug, Clone)]
struct Parts {
    handle: Vec<u8>,
    other: Vec<u8>,
    name: Vec<u8>,
    second: Vec<u8>,
    path: Vec<u8>,
    file: Attributes,
    attributes: Option<Attributes>,
    wcc: Wcc,
    other_wcc: Wcc,
    set: SetAttributes,
    guard: Option<Time>,
    offset: u64,
    count: u32,
    stable: Stable,
    verifier: Verifier,
    data: Vec<u8>,
    flag: bool,
    status: Status,
    /// The arm of a union.
    arm: usize,
}

fn time(seconds: u32, nanoseconds: u32) -> Time {
    Time { seconds, nanoseconds }
}

fn file() -> Attributes {
    Attributes {
        kind: FileType::Regular,
        mode: 0o644,
        links: 2,
        uid: 1000,
        gid: 100,
        size: 0x1_0000_0005,
        used: 0x1_0000_1000,
        device: Device { major: 8, minor: 1 },
        fsid: 0xfeed_0000_0000_0001,
        fileid: 0x1122_3344_5566_7788,
        atime: time(1, 2),
        mtime: time(3, 4),
        ctime: time(5, 6),
    }
}

impl Parts {
    /// With every optional part.
    fn full(arm: usize) -> Self {
        Parts {
            handle: b"handle-one".to_vec(),
            other: (0..64).collect(),
            name: b"name".to_vec(),
            second: b"other".to_vec(),
            path: b"../target".to_vec(),
            file: file(),
            attributes: Some(file()),
            wcc: Wcc {
                before: Some(PreAttributes { size: 9, mtime: time(3, 4), ctime: time(5, 6) }),
                after: Some(file()),
            },
            other_wcc: Wcc::default(),
            set: SetAttributes {
                mode: Some(0o755),
                uid: Some(1),
                gid: None,
                size: Some(1 << 40),
                atime: SetTime::Server(()),
                mtime: SetTime::Client(time(7, 8)),
            },
            guard: Some(time(5, 6)),
            offset: 1 << 33,
            count: 4096,
            stable: Stable::DataSync,
            verifier: *b"verifier",
            data: b"bytes".to_vec(),
            flag: true,
            status: Status::Stale,
            arm,
        }
    }

    /// Without any optional part.
    fn bare(arm: usize) -> Self {
        let full = Parts::full(arm);
        Parts {
            handle: full.other,
            other: Vec::new(),
            name: b"long-name".to_vec(),
            second: b"x".to_vec(),
            path: Vec::new(),
            attributes: None,
            wcc: Wcc::default(),
            other_wcc: full.wcc,
            set: SetAttributes::default(),
            guard: None,
            offset: 1 << 62,
            count: 5,
            stable: Stable::Unstable,
            verifier: [0; 8],
            data: Vec::new(),
            flag: false,
            status: Status::Jukebox,
            ..full
        }
    }

    fn handle(&self) -> Handle<'_> {
        Opaque::new(&self.handle).unwrap()
    }

    fn other(&self) -> Handle<'_> {
        Opaque::new(&self.other).unwrap()
    }

    fn name(&self) -> Name<'_> {
        Opaque::new(&self.name).unwrap()
    }

    fn second(&self) -> Name<'_> {
        Opaque::new(&self.second).unwrap()
    }

    fn path(&self) -> Path<'_> {
        Opaque::new(&self.path).unwrap()
    }

    fn place(&self) -> DirOp<'_> {
        DirOp { directory: self.other(), name: self.name() }
    }

    fn length(&self) -> u32 {
        self.data.len() as u32
    }

    /// The optional handle of a reply.
    fn object(&self) -> Option<Handle<'_>> {
        self.attributes.map(|_| self.handle())
    }

    fn entries(&self) -> Chained<Entry<'_>> {
        let two = [
            Entry { fileid: self.offset, name: self.name(), cookie: 1 },
            Entry { fileid: self.offset + 1, name: self.second(), cookie: 2 },
        ];
        Chained::of(two.into_iter().filter(|_| self.flag))
    }

    fn entries_plus(&self) -> Chained<EntryPlus<'_>> {
        let (attributes, handle) = (self.attributes, self.object());
        let two = [
            EntryPlus { fileid: self.offset, name: self.name(), cookie: 1, attributes, handle },
            EntryPlus {
                fileid: self.offset + 1,
                name: self.second(),
                cookie: 2,
                attributes: None,
                handle: None,
            },
        ];
        Chained::of(two.into_iter().filter(|_| self.flag))
    }

    fn arguments(&self, procedure: Procedure) -> Arguments<'_> {
        let (offset, count, verifier) = (self.offset, self.count, self.verifier);
        let device = DeviceData {
            attributes: self.set,
            device: Device { major: count, minor: count.wrapping_add(1) },
        };
        match procedure {
            Procedure::Null => Arguments::Null(()),
            Procedure::GetAttr => Arguments::GetAttr(self.handle()),
            Procedure::SetAttr => {
                Arguments::SetAttr(SetAttr { object: self.handle(), attributes: self.set, guard: self.guard })
            }
            Procedure::Lookup => Arguments::Lookup(self.place()),
            Procedure::Access => {
                Arguments::Access(Access { object: self.handle(), access: access::READ | access::EXECUTE })
            }
            Procedure::ReadLink => Arguments::ReadLink(self.handle()),
            Procedure::Read => Arguments::Read(Read { file: self.handle(), offset, count }),
            Procedure::Write => Arguments::Write(Write {
                file: self.handle(),
                offset,
                count: self.length(),
                stable: self.stable,
                length: self.length(),
            }),
            Procedure::Create => Arguments::Create(Create {
                place: self.place(),
                how: match self.arm % 3 {
                    0 => CreateHow::Unchecked(self.set),
                    1 => CreateHow::Guarded(self.set),
                    _ => CreateHow::Exclusive(verifier),
                },
            }),
            Procedure::MkDir => Arguments::MkDir(MkDir { place: self.place(), attributes: self.set }),
            Procedure::Symlink => {
                Arguments::Symlink(Symlink { place: self.place(), attributes: self.set, path: self.path() })
            }
            Procedure::MkNod => Arguments::MkNod(MkNod {
                place: self.place(),
                what: match self.arm % 5 {
                    0 => NodeData::Block(device),
                    1 => NodeData::Character(device),
                    2 => NodeData::Socket(self.set),
                    3 => NodeData::Fifo(self.set),
                    _ => NodeData::Regular(()),
                },
            }),
            Procedure::Remove => Arguments::Remove(self.place()),
            Procedure::RmDir => Arguments::RmDir(self.place()),
            Procedure::Rename => Arguments::Rename(Rename {
                from: self.place(),
                to: DirOp { directory: self.handle(), name: self.second() },
            }),
            Procedure::Link => Arguments::Link(Link { file: self.handle(), link: self.place() }),
            Procedure::ReadDir => {
                Arguments::ReadDir(ReadDir { directory: self.handle(), cookie: offset, verifier, count })
            }
            Procedure::ReadDirPlus => Arguments::ReadDirPlus(ReadDirPlus {
                directory: self.handle(),
                cookie: offset,
                verifier,
                dir_count: count,
                max_count: count.wrapping_add(1),
            }),
            Procedure::FsStat => Arguments::FsStat(self.handle()),
            Procedure::FsInfo => Arguments::FsInfo(self.handle()),
            Procedure::PathConf => Arguments::PathConf(self.handle()),
            Procedure::Commit => Arguments::Commit(Commit { file: self.handle(), offset, count }),
        }
    }

    /// Successful results, with these entries.
    fn ok<'a>(
        &'a self,
        procedure: Procedure,
        entries: Chain<'a, Entry<'a>>,
        entries_plus: Chain<'a, EntryPlus<'a>>,
    ) -> Results<'a> {
        let Parts { attributes, wcc, verifier, .. } = *self;
        let bytes = |more: u64| self.offset.wrapping_add(more);
        let count = |more: u32| self.count.wrapping_add(more);
        let created = Created { object: self.object(), attributes, directory: wcc };
        match procedure {
            Procedure::Null => Results::Null(()),
            Procedure::GetAttr => Results::GetAttr(Outcome::Ok(self.file)),
            Procedure::SetAttr => Results::SetAttr(Outcome::Ok(wcc)),
            Procedure::Lookup => Results::Lookup(Outcome::Ok(LookupOk {
                object: self.handle(),
                attributes,
                directory: attributes,
            })),
            Procedure::Access => {
                Results::Access(Outcome::Ok(AccessOk { attributes, access: access::EXECUTE }))
            }
            Procedure::ReadLink => {
                Results::ReadLink(Outcome::Ok(ReadLinkOk { attributes, path: self.path() }))
            }
            Procedure::Read => Results::Read(Outcome::Ok(ReadOk {
                attributes,
                count: self.length(),
                eof: self.flag,
                length: self.length(),
            })),
            Procedure::Write => Results::Write(Outcome::Ok(WriteOk {
                file: wcc,
                count: self.length(),
                committed: Stable::FileSync,
                verifier,
            })),
            Procedure::Create => Results::Create(Outcome::Ok(created)),
            Procedure::MkDir => Results::MkDir(Outcome::Ok(created)),
            Procedure::Symlink => Results::Symlink(Outcome::Ok(created)),
            Procedure::MkNod => Results::MkNod(Outcome::Ok(created)),
            Procedure::Remove => Results::Remove(Outcome::Ok(wcc)),
            Procedure::RmDir => Results::RmDir(Outcome::Ok(wcc)),
            Procedure::Rename => Results::Rename(Outcome::Ok(Renamed { from: wcc, to: self.other_wcc })),
            Procedure::Link => {
                Results::Link(Outcome::Ok(Linked { file: attributes, directory: self.other_wcc }))
            }
            Procedure::ReadDir => {
                Results::ReadDir(Outcome::Ok(ReadDirOk { attributes, verifier, entries, eof: self.flag }))
            }
            Procedure::ReadDirPlus => Results::ReadDirPlus(Outcome::Ok(ReadDirPlusOk {
                attributes,
                verifier,
                entries: entries_plus,
                eof: self.flag,
            })),
            Procedure::FsStat => Results::FsStat(Outcome::Ok(FsStatOk {
                attributes,
                total_bytes: bytes(0),
                free_bytes: bytes(1),
                available_bytes: bytes(2),
                total_files: bytes(3),
                free_files: bytes(4),
                available_files: bytes(5),
                invariant_s: count(0),
            })),
            Procedure::FsInfo => Results::FsInfo(Outcome::Ok(FsInfoOk {
                attributes,
                read_max: count(0),
                read_preferred: count(1),
                read_multiple: count(2),
                write_max: count(3),
                write_preferred: count(4),
                write_multiple: count(5),
                dir_preferred: count(6),
                max_file_size: bytes(0),
                time_delta: time(0, 1),
                properties: properties::LINK
                    | properties::SYMLINK
                    | properties::HOMOGENEOUS
                    | properties::CAN_SET_TIME,
            })),
            Procedure::PathConf => Results::PathConf(Outcome::Ok(PathConfOk {
                attributes,
                max_links: count(0),
                max_name: count(1),
                no_truncation: true,
                chown_restricted: self.flag,
                case_insensitive: false,
                case_preserving: !self.flag,
            })),
            Procedure::Commit => Results::Commit(Outcome::Ok(CommitOk { file: wcc, verifier })),
        }
    }

    /// Results with an error; NULL has none.
    fn err(&self, procedure: Procedure) -> Option<Results<'static>> {
        let Parts { attributes, wcc, status, .. } = *self;
        let renamed = Renamed { from: wcc, to: self.other_wcc };
        let linked = Linked { file: attributes, directory: self.other_wcc };
        Some(match procedure {
            Procedure::Null => return None,
            Procedure::GetAttr => Results::GetAttr(Outcome::Err(status, ())),
            Procedure::SetAttr => Results::SetAttr(Outcome::Err(status, wcc)),
            Procedure::Lookup => Results::Lookup(Outcome::Err(status, attributes)),
            Procedure::Access => Results::Access(Outcome::Err(status, attributes)),
            Procedure::ReadLink => Results::ReadLink(Outcome::Err(status, attributes)),
            Procedure::Read => Results::Read(Outcome::Err(status, attributes)),
            Procedure::Write => Results::Write(Outcome::Err(status, wcc)),
            Procedure::Create => Results::Create(Outcome::Err(status, wcc)),
            Procedure::MkDir => Results::MkDir(Outcome::Err(status, wcc)),
            Procedure::Symlink => Results::Symlink(Outcome::Err(status, wcc)),
            Procedure::MkNod => Results::MkNod(Outcome::Err(status, wcc)),
            Procedure::Remove => Results::Remove(Outcome::Err(status, wcc)),
            Procedure::RmDir => Results::RmDir(Outcome::Err(status, wcc)),
            Procedure::Rename => Results::Rename(Outcome::Err(status, renamed)),
            Procedure::Link => Results::Link(Outcome::Err(status, linked)),
            Procedure::ReadDir => Results::ReadDir(Outcome::Err(status, attributes)),
            Procedure::ReadDirPlus => Results::ReadDirPlus(Outcome::Err(status, attributes)),
            Procedure::FsStat => Results::FsStat(Outcome::Err(status, attributes)),
            Procedure::FsInfo => Results::FsInfo(Outcome::Err(status, attributes)),
            Procedure::PathConf => Results::PathConf(Outcome::Err(status, attributes)),
            Procedure::Commit => Results::Commit(Outcome::Err(status, wcc)),
        })
    }
}

/// The bytes that `write` writes, and the padded payload behind them, as a caller sends them.
fn bytes(write: impl FnOnce(&mut Writer<'_>), payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut Writer::new(&mut out));
    [&out, payload, padding(payload.len())].concat()
}

/// The payload that belongs to results or arguments whose length is this.
fn payload_of(parts: &Parts, length: u32) -> &[u8] {
    if length == 0 { &[] } else { &parts.data }
}

/// Checks that these bytes are these arguments, in both directions.
fn same_arguments(parts: &Parts, procedure: Procedure, wire: Option<&[u8]>) {
    let value = parts.arguments(procedure);
    let payload = payload_of(parts, value.payload());
    let ours = bytes(|to| value.write(to), payload);
    let wire = wire.unwrap_or(&ours);
    assert_eq!(ours, wire, "{value:?}");
    let read = arguments(procedure, wire).unwrap();
    assert_eq!((&read.value, &wire[read.payload]), (&value, payload));
}

/// Checks that these bytes are these results, in both directions.
fn same_results(parts: &Parts, value: &Results<'_>, wire: Option<&[u8]>) {
    let payload = payload_of(parts, value.payload());
    let ours = bytes(|to| value.write(to), payload);
    let wire = wire.unwrap_or(&ours);
    assert_eq!(ours, wire, "{value:?}");
    let read = results(value.procedure(), wire).unwrap();
    assert_eq!((&read.value, &wire[read.payload]), (value, payload));
}

#[test]
fn every_procedure_is_encoded_as_nfs3_types_does() {
    let mut seen = 0;
    for line in include_str!("nfs3_types.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let [name, kind, arm, parts] = [(); 4].map(|()| words.next().unwrap());
        let wire = crate::from_hex(words.next().unwrap());
        let arm = arm.parse().unwrap();
        let procedure =
            Procedure::ALL.iter().find(|procedure| format!("{procedure:?}") == name).copied().unwrap();
        let parts = if parts == "full" { Parts::full(arm) } else { Parts::bare(arm) };
        match kind {
            "args" => same_arguments(&parts, procedure, Some(&wire)),
            "ok" => {
                let (entries, plus) = (parts.entries(), parts.entries_plus());
                same_results(&parts, &parts.ok(procedure, entries.chain(), plus.chain()), Some(&wire));
            }
            _ => same_results(&parts, &parts.err(procedure).unwrap(), Some(&wire)),
        }
        seen += 1;
    }
    // 22 calls with 2 arms of CREATE and 3 of MKNOD more, 22 results, 21 errors; full and bare.
    assert_eq!(seen, 2 * (22 + 2 + 3 + 22 + 21));
}

#[test]
fn attributes_are_84_bytes_in_the_order_of_fattr3() {
    let wire: Vec<u8> = [
        1,
        0o644,
        2,
        1000,
        100,
        1,
        5,
        1,
        0x1000,
        8,
        1,
        0xfeed_0000,
        1,
        0x1122_3344,
        0x5566_7788,
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    .into_iter()
    .flat_map(u32::to_be_bytes)
    .collect();
    assert_eq!(wire.len(), 84);
    assert_eq!(xdr::encode(&file()), wire);
    assert_eq!(xdr::decode(&wire), Ok(file()));
}

#[test]
fn a_lookup_is_a_handle_and_a_name() {
    let wire = b"\0\0\0\x03fh!\0\0\0\0\x05a.txt\0\0\0";
    let what = DirOp { directory: Opaque::new(b"fh!").unwrap(), name: Opaque::new(b"a.txt").unwrap() };
    let read = arguments(Procedure::Lookup, wire).unwrap();
    assert_eq!(read.value, Arguments::Lookup(what));
    assert_eq!(bytes(|to| Arguments::Lookup(what).write(to), &[]), wire);
    let trailing = arguments(Procedure::Lookup, b"\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(trailing, Err(Malformed::Trailing(4)));
}

#[test]
fn handles_and_paths_beyond_their_limits_are_refused() {
    let long = |length: u32, limit| Err(Malformed::TooLong { length, limit });
    assert_eq!(arguments(Procedure::GetAttr, &[0, 0, 0, 65]), long(65, MAX_HANDLE));
    let link = [&[0; 8 + 24][..], &[0, 0, 0x10, 1]].concat();
    assert_eq!(arguments(Procedure::Symlink, &link), long(4097, MAX_PATH));
}

#[test]
fn the_data_of_a_write_is_a_range_of_the_record() {
    let parts = Parts::full(0);
    let value = parts.arguments(Procedure::Write);
    assert_eq!(value.payload(), 5);
    let head = bytes(|to| value.write(to), &[]);
    assert_eq!(head.len(), 4 + 12 + 8 + 4 + 4 + 4);
    // The head can be read before the data has arrived.
    assert_eq!(Arguments::read(Procedure::Write, &mut Reader::new(&head)), Ok(value));
    assert!(matches!(arguments(Procedure::Write, &head), Err(Malformed::Truncated { at: 36 })));
    let whole = [&head[..], b"bytes\0\0\0"].concat();
    assert_eq!(arguments(Procedure::Write, &whole).unwrap().payload, 36..41);
    assert!(arguments(Procedure::Write, &whole[..43]).is_err());
}

fn some_time() -> impl Strategy<Value = Time> {
    any::<(u32, u32)>().prop_map(|(seconds, nanoseconds)| Time { seconds, nanoseconds })
}

fn some_set_time() -> impl Strategy<Value = SetTime> {
    (0..3, some_time()).prop_map(|(arm, time)| match arm {
        0 => SetTime::Keep(()),
        1 => SetTime::Server(()),
        _ => SetTime::Client(time),
    })
}

fn some_attributes() -> impl Strategy<Value = Attributes> {
    (any::<[u32; 6]>(), any::<[u64; 4]>(), [some_time(), some_time(), some_time()], 0..7usize).prop_map(
        |([mode, links, uid, gid, major, minor], [size, used, fsid, fileid], [atime, mtime, ctime], kind)| {
            let (kind, device) = (FileType::ALL[kind], Device { major, minor });
            Attributes { kind, mode, links, uid, gid, size, used, device, fsid, fileid, atime, mtime, ctime }
        },
    )
}

fn some_wcc() -> impl Strategy<Value = Wcc> {
    let before = (any::<u64>(), some_time(), some_time());
    let before = before.prop_map(|(size, mtime, ctime)| PreAttributes { size, mtime, ctime });
    (prop::option::of(before), prop::option::of(some_attributes()))
        .prop_map(|(before, after)| Wcc { before, after })
}

fn some_set() -> impl Strategy<Value = SetAttributes> {
    (any::<[Option<u32>; 3]>(), any::<Option<u64>>(), some_set_time(), some_set_time()).prop_map(
        |([mode, uid, gid], size, atime, mtime)| SetAttributes { mode, uid, gid, size, atime, mtime },
    )
}

fn some_bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..=most)
}

fn some_parts() -> impl Strategy<Value = Parts> {
    (
        (some_bytes(MAX_HANDLE), some_bytes(MAX_HANDLE), some_bytes(MAX_NAME), some_bytes(MAX_NAME)),
        (some_bytes(MAX_PATH), some_bytes(2000)),
        (some_attributes(), prop::option::of(some_attributes()), some_wcc(), some_wcc(), some_set()),
        (prop::option::of(some_time()), 0..u64::MAX, any::<u32>(), 0..3usize),
        (any::<Verifier>(), any::<bool>(), 0..Status::ALL.len(), 0..15usize),
    )
        .prop_map(|((handle, other, name, second), (path, data), files, numbers, rest)| {
            let (file, attributes, wcc, other_wcc, set) = files;
            let (guard, offset, count, stable) = numbers;
            let (verifier, flag, status, arm) = rest;
            let (stable, status) = (Stable::ALL[stable], Status::ALL[status]);
            Parts {
                handle,
                other,
                name,
                second,
                path,
                file,
                attributes,
                wcc,
                other_wcc,
                set,
                guard,
                offset,
                count,
                stable,
                verifier,
                data,
                flag,
                status,
                arm,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_procedure_is_read_as_it_was_written(parts in some_parts()) {
        let (entries, plus) = (parts.entries(), parts.entries_plus());
        for procedure in Procedure::ALL {
            same_arguments(&parts, *procedure, None);
            same_results(&parts, &parts.ok(*procedure, entries.chain(), plus.chain()), None);
            if let Some(err) = parts.err(*procedure) {
                same_results(&parts, &err, None);
            }
        }
    }

    #[test]
    fn a_changed_byte_or_a_cut_leads_to_a_value_or_an_error(
        parts in some_parts(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let (entries, plus) = (parts.entries(), parts.entries_plus());
        for procedure in Procedure::ALL {
            let ok = parts.ok(*procedure, entries.chain(), plus.chain());
            let call = parts.arguments(*procedure);
            for whole in [
                bytes(|to| call.write(to), payload_of(&parts, call.payload())),
                bytes(|to| ok.write(to), payload_of(&parts, ok.payload())),
            ] {
                let mut wire = whole[..cut.index(whole.len() + 1)].to_vec();
                check_any(*procedure, &wire);
                if !wire.is_empty() {
                    let at = at.index(wire.len());
                    wire[at] = byte;
                    check_any(*procedure, &wire);
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_a_value_or_an_error(
        words in prop::collection::vec(0u32..6, 0..60), rest in some_bytes(300),
    ) {
        let head: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        for procedure in Procedure::ALL {
            check_any(*procedure, &[&head[..], &rest].concat());
            check_any(*procedure, &rest);
        }
    }
}

/// Decoded arguments or results are encoded in as many bytes, and decoded as the same again.
fn check_any(procedure: Procedure, wire: &[u8]) {
    if let Ok(Located { value, payload }) = arguments(procedure, wire) {
        let again = bytes(|to| value.write(to), &wire[payload]);
        assert_eq!(again.len(), wire.len());
        assert_eq!(arguments(procedure, &again).unwrap().value, value);
    }
    if let Ok(Located { value, payload }) = results(procedure, wire) {
        let again = bytes(|to| value.write(to), &wire[payload]);
        assert_eq!(again.len(), wire.len());
        assert_eq!(results(procedure, &again).unwrap().value, value);
    }
}
