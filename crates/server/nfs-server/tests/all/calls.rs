//! Calls as clients send them: in pieces, again, and many at a time.

use crate::support;
use crate::support::{call, fragment, handle, nfs3, of, served};
use nfs::v3::{
    Arguments, Create, CreateHow, DirOp, Name, Outcome, Procedure, Read, ReadDir, Results, SetAttributes,
    Stable, Status, Write,
};
use rpc::message::{Reply, ReplyBody};
use rpc::xdr::Reader;

fn write<'a>(file: &'a [u8], offset: u64, len: usize) -> Arguments<'a> {
    let count = len as u32;
    Arguments::Write(Write { file: handle(file), offset, count, stable: Stable::Unstable, length: count })
}

#[test]
fn what_is_written_is_read_however_the_call_is_cut() {
    let served = served();
    let mut client = served.connect();
    let root = client.mount();
    let file = client.create(&root, "file");
    let data: Vec<u8> = (0..1_048_576u32).map(|at| (at % 251) as u8).collect();
    for (len, step) in [(1 << 20, 1 << 20), (1 << 20, 100_000), (100_001, 7919), (5000, 13), (3, 1)] {
        let bytes = fragment(&nfs3(9, &write(&file, 0, len), &data[..len]), true);
        for piece in bytes.chunks(step) {
            client.send(piece);
        }
        let Results::Write(Outcome::Ok(ok)) = of(Procedure::Write, &client.reply()) else { panic!() };
        assert_eq!((ok.count, ok.file.after.map(|after| after.size >= len as u64)), (len as u32, Some(true)));
        let read = Arguments::Read(Read { file: handle(&file), offset: 0, count: len as u32 });
        let reply = client.call(&read, &[]);
        let located = nfs::v3::results(Procedure::Read, support::results(&reply)).unwrap();
        assert!(support::results(&reply)[located.payload] == data[..len], "{len} bytes in steps of {step}");
    }
    served.stop();
}

#[test]
fn a_call_may_come_in_many_fragments() {
    let served = served();
    let mut client = served.connect();
    let root = client.mount();
    let file = client.create(&root, "file");
    let bytes = nfs3(9, &write(&file, 4, 300), &[7; 300]);
    for piece in bytes.chunks(20) {
        client.send(&fragment(piece, false));
    }
    client.send(&fragment(&[], true));
    let Results::Write(Outcome::Ok(ok)) = of(Procedure::Write, &client.reply()) else { panic!() };
    assert_eq!(ok.count, 300);
    served.stop();
}

#[test]
fn a_call_that_comes_again_is_not_executed_twice() {
    let served = served();
    let mut client = served.connect();
    let root = client.mount();
    let place = DirOp { directory: handle(&root), name: Name::new(b"new").unwrap() };
    let how = CreateHow::Guarded(SetAttributes::default());
    let create = fragment(&nfs3(77, &Arguments::Create(Create { place, how }), &[]), true);
    client.send(&create);
    let first = client.reply();
    assert!(matches!(of(Procedure::Create, &first), Results::Create(Outcome::Ok(_))));
    drop(client);
    let mut client = served.connect();
    client.send(&create);
    assert_eq!(client.reply(), first, "the reply that it had");
    let other = fragment(&nfs3(78, &Arguments::Create(Create { place, how }), &[]), true);
    client.send(&other);
    let reply = client.reply();
    assert!(matches!(of(Procedure::Create, &reply), Results::Create(Outcome::Err(Status::Exist, _))));
    served.stop();
}

#[test]
fn calls_that_are_no_calls_of_ours_are_told_so() {
    let served = served();
    let mut client = served.connect();
    let mut body = |call: Vec<u8>| {
        client.send(&fragment(&call, true));
        let reply = client.reply();
        format!("{:?}", Reply::read(&mut Reader::new(&reply)).unwrap().body)
    };
    assert!(
        body(call(1, 100_227, 3, 0, &[])).contains("ProgUnavail"),
        "the ACL program, which Linux asks for"
    );
    let version = body(call(2, 100_003, 5, 0, &[]));
    assert!(version.contains("ProgMismatch") && version.contains("low: 3, high: 4"), "{version}");
    assert!(body(call(3, 100_003, 3, 22, &[])).contains("ProcUnavail"));
    assert!(body(call(4, 100_003, 3, 1, &[1, 2, 3])).contains("GarbageArgs"));
    assert!(body(call(5, 100_003, 3, 0, &[0; 4])).contains("GarbageArgs"), "more than NULL has");
    let mut gss = call(6, 100_003, 3, 0, &[]);
    gss[27] = 6;
    assert!(body(gss).contains("TooWeak"));
    let mut version = call(7, 100_003, 3, 0, &[]);
    version[11] = 3;
    let denied = Reply::read(&mut Reader::new(&{
        client.send(&fragment(&version, true));
        client.reply()
    }))
    .map(|reply| matches!(reply.body, ReplyBody::Denied(_)));
    assert_eq!(denied, Ok(true));
    served.stop();
}

#[test]
fn a_directory_is_listed_whole_whatever_the_size_of_a_reply() {
    let served = served();
    let mut client = served.connect();
    let root = client.mount();
    let names: Vec<String> = (0..300).map(|n| format!("name-{n:0width$}", width = 3 + n % 50)).collect();
    names.iter().for_each(|name| drop(client.create(&root, name)));
    for count in [512, 1000, 4096, 65536] {
        let (mut cookie, mut seen) = (0, Vec::new());
        loop {
            let directory = handle(&root);
            let list = ReadDir { directory, cookie, verifier: [0; 8], count };
            let reply = client.call(&Arguments::ReadDir(list), &[]);
            assert!(support::results(&reply).len() <= count as usize + 4);
            let Results::ReadDir(Outcome::Ok(ok)) = of(Procedure::ReadDir, &reply) else { panic!() };
            for entry in ok.entries.iter() {
                cookie = entry.cookie;
                seen.push(entry.name.text().unwrap().to_owned());
            }
            if ok.eof {
                break;
            }
        }
        assert_eq!(&seen[..2], [".", ".."]);
        let mut listed = seen.split_off(2);
        listed.sort();
        let mut all = names.clone();
        all.sort();
        assert_eq!(listed, all, "replies of {count} bytes");
    }
    served.stop();
}

#[test]
fn the_portmapper_registers_nothing_and_calls_nobody() {
    use rpc::bind::v2::{Arguments, Procedure, Results};
    use rpc::bind::{CallArgs, Indirect, Mapping, PROGRAM, TCP};
    let served = served();
    let mut client = served.connect();
    let bytes = |arguments: &Arguments<'_>| {
        let mut bytes = Vec::new();
        arguments.write(&mut rpc::xdr::Writer::new(&mut bytes));
        bytes
    };
    let mut ask = |procedure: Procedure, arguments: &[u8]| {
        client.send(&fragment(&call(1, PROGRAM, 2, procedure as u32, arguments), true));
        let reply = client.reply();
        let results = Results::read(procedure, &mut Reader::new(support::results(&reply)));
        format!("{:?}", results.unwrap())
    };
    let mapping = |program, port| Mapping { program, version: 3, protocol: TCP, port };
    let own = u32::from(served.address().port());
    assert_eq!(ask(Procedure::Set, &bytes(&Arguments::Set(mapping(100_003, 1)))), "Set(false)");
    assert_eq!(ask(Procedure::Unset, &bytes(&Arguments::Unset(mapping(100_003, 0)))), "Unset(false)");
    assert_eq!(
        ask(Procedure::GetPort, &bytes(&Arguments::GetPort(mapping(100_003, 0)))),
        format!("GetPort({own})")
    );
    assert_eq!(ask(Procedure::GetPort, &bytes(&Arguments::GetPort(mapping(7, 0)))), "GetPort(0)");
    // A call for another program (CALLIT) has no reply: the next one is that of NULL.
    let indirect = CallArgs { program: 100_003, version: 3, procedure: 0, args: Indirect::EMPTY };
    client.send(&fragment(&call(2, PROGRAM, 2, 5, &bytes(&Arguments::CallIt(indirect))), true));
    client.send(&fragment(&call(3, PROGRAM, 2, 0, &[]), true));
    assert_eq!(Reply::read(&mut Reader::new(&client.reply())).unwrap().xid, 3);
    served.stop();
}
