//! Servers of NFSv3 that lie, and one that loses data: each test plays one.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::spawn;

use nfs::mount;
use nfs::v3::readdir::EntryPlus;
use nfs::v3::{
    Arguments, Attributes, CommitOk, FileType, FsInfoOk, Handle, LookupOk, Name, Outcome, Procedure,
    ReadDirPlusOk, ReadOk, Results, Stable, Time, Wcc, WriteOk,
};
use nfs_client::{Client, Cursor, Error, File, Options, Url};
use rpc::message::{AcceptStat, Call, Reply};
use rpc::xdr::{Chained, Reader, Writer, padding};
use runtime::{Chain, Config, Runtime};

const OF: Attributes = Attributes {
    kind: FileType::Regular,
    mode: 0o644,
    links: 1,
    uid: 0,
    gid: 0,
    size: 1 << 20,
    used: 0,
    device: nfs::v3::Device { major: 0, minor: 0 },
    fsid: 1,
    fileid: 1,
    atime: Time { seconds: 0, nanoseconds: 0 },
    mtime: Time { seconds: 0, nanoseconds: 0 },
    ctime: Time { seconds: 0, nanoseconds: 0 },
};

fn handle() -> Handle<'static> {
    Handle::new(b"handle").expect("short")
}

/// The reply of every server here, unless a test overrides it.
fn usual(asked: &Arguments<'_>) -> Results<'static> {
    match asked {
        Arguments::Null(()) => Results::Null(()),
        Arguments::GetAttr(_) => Results::GetAttr(Outcome::Ok(OF)),
        Arguments::Lookup(_) => {
            Results::Lookup(Outcome::Ok(LookupOk { object: handle(), attributes: Some(OF), directory: None }))
        }
        Arguments::FsInfo(_) => Results::FsInfo(Outcome::Ok(FsInfoOk {
            attributes: None,
            read_max: 1 << 20,
            read_preferred: 1 << 20,
            read_multiple: 1,
            write_max: 1 << 20,
            write_preferred: 1 << 20,
            write_multiple: 1,
            dir_preferred: 4096,
            max_file_size: u64::MAX,
            time_delta: Time::default(),
            properties: 0,
        })),
        other => panic!("{other:?}"),
    }
}

/// Serves one connection. `answer` writes the results of a call, with its payload.
fn serve(mut stream: TcpStream, mut answer: impl FnMut(&Arguments<'_>, &[u8], &mut Vec<u8>)) {
    loop {
        let mut mark = [0; 4];
        if stream.read_exact(&mut mark).is_err() {
            return;
        }
        let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        stream.read_exact(&mut record).expect("a whole call");
        let mut from = Reader::new(&record);
        let call = Call::read(&mut from).expect("a call");
        let mut out = Vec::new();
        Reply::accepted(call.xid, AcceptStat::Success(())).write(&mut Writer::new(&mut out));
        if call.program == mount::PROGRAM {
            if call.procedure == mount::Procedure::Mnt.code() {
                let mounted = mount::Mounted { handle: handle(), flavors: Default::default() };
                mount::Results::Mnt(Outcome::Ok(mounted)).write(&mut Writer::new(&mut out));
            }
        } else {
            let procedure = Procedure::from_code(call.procedure).expect("a procedure");
            let asked = nfs::v3::arguments(procedure, from.remaining()).expect("arguments");
            answer(&asked.value, &from.remaining()[asked.payload], &mut out);
        }
        let mark = out.len() as u32 | rpc::record::LAST;
        if stream.write_all(&[&mark.to_be_bytes()[..], &out].concat()).is_err() {
            return;
        }
    }
}

/// Runs a client beside a server.
fn with<T>(
    answer: impl FnMut(&Arguments<'_>, &[u8], &mut Vec<u8>) + Send + 'static,
    client: impl AsyncFnOnce(Client, Url) -> T,
) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let server = spawn(move || serve(listener.accept().expect("a connection").0, answer));
    let output = Runtime::new(Config::default()).expect("a ring").block_on(async {
        let url: Url = format!("nfs://127.0.0.1:{port}/a/b?vers=3").parse().expect("a URL");
        let it = Client::connect(&url, Options::default()).await.expect("it serves");
        client(it, url).await
    });
    server.join().expect("the server saw what it wanted");
    output
}

async fn opened(client: &Client, url: &Url) -> File {
    let (handle, _) = client.find(url, true).await.expect("found");
    client.open(&handle, true).await.expect("opened")
}

fn listing(name: &'static [u8], cookie: u64) -> Result<usize, Error> {
    let answer = move |asked: &Arguments<'_>, _: &[u8], out: &mut Vec<u8>| {
        let name = Name::new(name).expect("short");
        let entry = EntryPlus { fileid: 7, name, cookie, attributes: Some(OF), handle: Some(handle()) };
        let entries = Chained::of([entry]);
        let page = ReadDirPlusOk { attributes: None, verifier: [0; 8], entries: entries.chain(), eof: false };
        match asked {
            Arguments::ReadDirPlus(_) => {
                Results::ReadDirPlus(Outcome::Ok(page)).write(&mut Writer::new(out));
            }
            other => usual(other).write(&mut Writer::new(out)),
        }
    };
    with(answer, async |client, url| {
        let (handle, _) = client.find(&url, true).await.expect("found");
        let (mut at, mut entries) = (Cursor::default(), 0);
        while let Some(page) = client.list(&handle, &mut at).await? {
            entries += page.len();
        }
        Ok(entries)
    })
}

#[test]
fn names_that_lead_elsewhere_end_a_listing() {
    for name in [&b"../etc/passwd"[..], b"a/b", b"", b"a\0b"] {
        assert!(matches!(listing(name, 3), Err(Error::Nonsense(_))), "{}", name.escape_ascii());
    }
}

#[test]
fn a_listing_that_does_not_go_on_ends() {
    assert!(matches!(listing(b"name", 3), Err(Error::Nonsense(_))));
}

#[test]
fn more_data_than_were_asked_for_is_an_error() {
    let answer = |asked: &Arguments<'_>, _: &[u8], out: &mut Vec<u8>| match asked {
        Arguments::Read(read) => {
            let length = read.count + 8;
            let read = ReadOk { attributes: None, count: length, eof: true, length };
            Results::Read(Outcome::Ok(read)).write(&mut Writer::new(out));
            out.resize(out.len() + length as usize, 1);
        }
        other => usual(other).write(&mut Writer::new(out)),
    };
    let read = with(answer, async |client, url| opened(&client, &url).await.read(0, 100).await.map(|_| ()));
    assert!(matches!(read, Err(Error::Nonsense(_))), "{read:?}");
}

#[test]
fn short_reads_and_writes_are_continued() {
    let taken = Arc::new(Mutex::new(Vec::new()));
    let log = taken.clone();
    let answer = move |asked: &Arguments<'_>, data: &[u8], out: &mut Vec<u8>| match asked {
        Arguments::Read(read) => {
            // Three bytes at a time, and the end at byte 10.
            let length = read.count.min(3).min(10u64.saturating_sub(read.offset) as u32);
            let eof = read.offset + u64::from(length) == 10;
            let ok = ReadOk { attributes: None, count: length, eof, length };
            Results::Read(Outcome::Ok(ok)).write(&mut Writer::new(out));
            out.extend((read.offset..read.offset + u64::from(length)).map(|at| at as u8));
            out.extend_from_slice(padding(length as usize));
        }
        Arguments::Write(write) => {
            let count = write.count.min(4);
            log.lock().expect("alive").push((write.offset, data[..count as usize].to_vec()));
            let ok = WriteOk { file: Wcc::default(), count, committed: Stable::FileSync, verifier: [0; 8] };
            Results::Write(Outcome::Ok(ok)).write(&mut Writer::new(out));
        }
        other => usual(other).write(&mut Writer::new(out)),
    };
    with(answer, async |client, url| {
        let file = opened(&client, &url).await;
        assert_eq!(file.read(0, 100).await.expect("read").to_vec(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        file.write(5, Chain::from(b"0123456789".to_vec())).await.expect("written");
    });
    let expected = vec![(5, b"0123".to_vec()), (9, b"4567".to_vec()), (13, b"89".to_vec())];
    assert_eq!(*taken.lock().expect("alive"), expected);
}

#[test]
fn a_write_of_nothing_or_of_too_much_is_an_error() {
    for count in [0, 11] {
        let answer = move |asked: &Arguments<'_>, _: &[u8], out: &mut Vec<u8>| match asked {
            Arguments::Write(_) => {
                let (file, committed) = (Wcc::default(), Stable::FileSync);
                let ok = WriteOk { file, count, committed, verifier: [0; 8] };
                Results::Write(Outcome::Ok(ok)).write(&mut Writer::new(out));
            }
            other => usual(other).write(&mut Writer::new(out)),
        };
        let written = with(answer, async |client, url| {
            opened(&client, &url).await.write(0, Chain::from(vec![1; 10])).await
        });
        assert!(matches!(written, Err(Error::Nonsense(_))), "{written:?}");
    }
}

#[test]
fn data_that_the_server_lost_are_sent_again_and_no_others() {
    let taken = Arc::new(Mutex::new(Vec::new()));
    let log = taken.clone();
    let mut verifier = 1u64;
    let answer = move |asked: &Arguments<'_>, _: &[u8], out: &mut Vec<u8>| match asked {
        Arguments::Write(write) => {
            log.lock().expect("alive").push(write.offset);
            // The server restarts after the second write.
            if log.lock().expect("alive").len() == 3 {
                verifier = 2;
            }
            let ok = WriteOk {
                file: Wcc::default(),
                count: write.count,
                committed: Stable::Unstable,
                verifier: verifier.to_be_bytes(),
            };
            Results::Write(Outcome::Ok(ok)).write(&mut Writer::new(out));
        }
        Arguments::Commit(_) => {
            let ok = CommitOk { file: Wcc::default(), verifier: verifier.to_be_bytes() };
            Results::Commit(Outcome::Ok(ok)).write(&mut Writer::new(out));
        }
        other => usual(other).write(&mut Writer::new(out)),
    };
    with(answer, async |client, url| {
        let file = opened(&client, &url).await;
        for at in [0, 100, 200] {
            file.write(at, Chain::from(vec![1; 100])).await.expect("written");
        }
        file.sync().await.expect("stable");
        file.sync().await.expect("nothing is left");
    });
    assert_eq!(*taken.lock().expect("alive"), [0, 100, 200, 0, 100]);
}

#[test]
fn after_data_were_forgotten_no_sync_says_that_all_is_stable() {
    let mut commits = 0;
    let answer = move |asked: &Arguments<'_>, _: &[u8], out: &mut Vec<u8>| match asked {
        Arguments::Write(write) => {
            let committed = Stable::Unstable;
            let ok = WriteOk { file: Wcc::default(), count: write.count, committed, verifier: [1; 8] };
            Results::Write(Outcome::Ok(ok)).write(&mut Writer::new(out));
        }
        Arguments::Commit(_) => {
            commits += 1;
            let outcome = match commits {
                1 => Outcome::Err(nfs::v3::Status::Io, Wcc::default()),
                _ => Outcome::Ok(CommitOk { file: Wcc::default(), verifier: [1; 8] }),
            };
            Results::Commit(outcome).write(&mut Writer::new(out));
        }
        other => usual(other).write(&mut Writer::new(out)),
    };
    with(answer, async |client, url| {
        let file = opened(&client, &url).await;
        file.write(0, Chain::from(vec![1; 100])).await.expect("written");
        let failed = file.sync().await;
        assert!(matches!(failed, Err(Error::Status(_))), "{failed:?}");
        file.write(100, Chain::from(vec![1; 100])).await.expect("written");
        assert_eq!(file.sync().await, failed);
        // Another file's data are its own.
        let other = opened(&client, &url).await;
        other.write(0, Chain::from(vec![1; 100])).await.expect("written");
        other.sync().await.expect("stable");
    });
}
