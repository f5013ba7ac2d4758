//! Clients that lie, stop, and do not read: each gets an error or a closed connection, and other
//! clients are not disturbed.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::support;
use crate::support::{Client, PATIENCE, fragment, handle, nfs3, of, served};
use nfs::v3::{Arguments, DirOp, Outcome, Procedure, Read, Results, Status};

#[test]
fn what_is_no_rpc_ends_the_connection_alone() {
    let served = served();
    let mut good = served.connect();
    let root = good.mount();
    let nonsense: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: server\r\n\r\n",
        // A record of 2 GiB.
        &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2],
        // A reply to no call.
        &[0x80, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0],
        // Too short for a call.
        &[0x80, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2],
        &[0; 4096],
    ];
    for bytes in nonsense {
        let mut client = served.connect();
        client.send(bytes);
        assert!(client.is_closed(), "{bytes:02x?}");
    }
    // Fragments without end.
    let mut client = served.connect();
    client.send(&fragment(&nfs3(1, &Arguments::Null(()), &[])[..16], false));
    client.send(&fragment(&[], false).repeat(1000));
    assert!(client.is_closed());
    let reply = good.call(&Arguments::GetAttr(handle(&root)), &[]);
    assert!(matches!(of(Procedure::GetAttr, &reply), Results::GetAttr(Outcome::Ok(_))));
    served.stop();
}

#[test]
fn handles_that_were_not_given_out_name_nothing() {
    let served = served();
    let mut client = served.connect();
    let root = client.mount();
    let status = |client: &mut support::Client, bytes: &[u8]| {
        let reply = client.call(&Arguments::GetAttr(handle(bytes)), &[]);
        match of(Procedure::GetAttr, &reply) {
            Results::GetAttr(Outcome::Err(status, ())) => status,
            other => panic!("{other:?}"),
        }
    };
    for at in 0..root.len() {
        let mut forged = root.clone();
        forged[at] ^= 1;
        assert_eq!(status(&mut client, &forged), Status::BadHandle, "byte {at}");
    }
    assert_eq!(status(&mut client, &[]), Status::BadHandle);
    // An export that is served no more.
    let mut config = served.config.clone();
    config.exports.clear();
    served.nfs.apply(config).expect("it listens already");
    assert_eq!(status(&mut client, &root), Status::Stale);
    served.nfs.apply(served.config.clone()).expect("it listens already");
    let reply = client.call(&Arguments::GetAttr(handle(&root)), &[]);
    assert!(matches!(of(Procedure::GetAttr, &reply), Results::GetAttr(Outcome::Ok(_))), "it is good again");
    served.stop();
}

#[test]
fn names_lead_nowhere_but_down() {
    let served = served();
    let mut client = served.connect();
    let root = client.mount();
    for name in [&b""[..], b"a/b", b"/", b"a\0b", b"../x"] {
        let name = nfs::v3::Name::new(name).unwrap();
        let reply = client.call(&Arguments::Lookup(DirOp { directory: handle(&root), name }), &[]);
        assert!(matches!(of(Procedure::Lookup, &reply), Results::Lookup(Outcome::Err(Status::Acces, _))));
        let reply = client.call(&Arguments::Remove(DirOp { directory: handle(&root), name }), &[]);
        assert!(matches!(of(Procedure::Remove, &reply), Results::Remove(Outcome::Err(Status::Acces, _))));
    }
    let up = DirOp { directory: handle(&root), name: nfs::v3::Name::new(b"..").unwrap() };
    let reply = client.call(&Arguments::Lookup(up), &[]);
    let Results::Lookup(Outcome::Ok(found)) = of(Procedure::Lookup, &reply) else { panic!() };
    assert_eq!(found.object.bytes(), root, "the root's parent is itself");
    served.stop();
}

#[test]
fn clients_that_read_nothing_hold_no_more_than_their_share() {
    let served = served();
    let mut good = served.connect();
    let root = good.mount();
    let file = good.create(&root, "file");
    let data = vec![5; 1 << 20];
    let write = nfs::v3::Write {
        file: handle(&file),
        offset: 0,
        count: 1 << 20,
        stable: nfs::v3::Stable::Unstable,
        length: 1 << 20,
    };
    good.call(&Arguments::Write(write), &data);
    let read = Arguments::Read(Read { file: handle(&file), offset: 0, count: 1 << 20 });
    let mut silent: Vec<_> = (0..8).map(|_| served.connect()).collect();
    for client in &mut silent {
        client.stream.set_write_timeout(Some(Duration::from_millis(200))).expect("an option");
        for xid in 0..100_000 {
            use std::io::Write;
            // Until its calls are not read any more.
            if client.stream.write_all(&fragment(&nfs3(xid, &read, &[]), true)).is_err() {
                break;
            }
        }
    }
    // The others are served meanwhile.
    for _ in 0..100 {
        let reply = good.call(&read, &[]);
        assert!(matches!(of(Procedure::Read, &reply), Results::Read(Outcome::Ok(ok)) if ok.count == 1 << 20));
    }
    let held: usize =
        served.server.handle().cores(PATIENCE).iter().flatten().map(|core| core.pool.mapped).sum();
    assert!(held <= 128 << 20, "{held} bytes");
    drop(silent);
    served.stop();
}

/// Raises this process's limit of open files. Returns whether `count` are possible.
fn descriptors(count: u64) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum;
    let raised = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
    raised.is_ok() && most.is_none_or(|most| most >= count)
}

/// Connections that say nothing, or begin a record and go no further.
#[test]
fn ten_thousand_connections_that_say_nothing_keep_nobody_out() {
    const HALF_OPEN: usize = 10_000;
    if !descriptors(2 * HALF_OPEN as u64 + 500) {
        eprintln!("not run: this process may not have so many files open");
        return;
    }
    let mut config = support::config();
    config.limits.setup_time = Duration::from_secs(5);
    let served = support::serving(config);
    let mut good = served.connect();
    let root = good.mount();
    let mut reached = || {
        let reply = good.call(&Arguments::GetAttr(handle(&root)), &[]);
        assert!(matches!(of(Procedure::GetAttr, &reply), Results::GetAttr(Outcome::Ok(_))));
    };
    let call = fragment(&nfs3(1, &Arguments::GetAttr(handle(&[1; 20])), &[]), true);
    let mut half_open = Vec::new();
    for number in 0..HALF_OPEN {
        let mut one = served.connect_from(Ipv4Addr::new(127, 0, 1, (number % 200) as u8 + 1));
        if number % 2 == 0 {
            // Up to the whole call but for a byte.
            one.send(&call[..number % call.len()]);
        }
        half_open.push(one);
        if number % 500 == 0 {
            reached();
        }
    }
    reached();
    let held: usize =
        served.server.handle().cores(PATIENCE).iter().flatten().map(|core| core.pool.mapped).sum();
    assert!(held <= 128 << 20, "{held} bytes");
    // They end by themselves, and others come in.
    assert!(half_open.iter_mut().all(Client::is_closed));
    reached();
    served.connect().mount();
    served.stop();
}

#[test]
fn one_address_has_no_more_connections_than_its_share() {
    const SHARE: usize = 100;
    let mut config = support::config();
    config.limits.connections_per_address = SHARE;
    let served = support::serving(config);
    // None within the limit is dropped, not even of those that have not called yet.
    let mut all: Vec<_> = (0..SHARE).map(|_| served.connect()).collect();
    let answers = |client: &mut Client| {
        use std::io::{Read as _, Write as _};
        let call = fragment(&nfs3(1, &Arguments::Null(()), &[]), true);
        client.stream.write_all(&call).is_ok() && matches!(client.stream.read(&mut [0; 64]), Ok(1..))
    };
    assert!(all.iter_mut().all(answers));
    assert!(!answers(&mut served.connect()), "one too many");
    assert!(answers(&mut served.connect_from(Ipv4Addr::new(127, 0, 0, 2))));
    // One that leaves makes room.
    drop(all.pop());
    while !answers(&mut served.connect()) {}
    served.stop();
}

/// Client records of version 4, without end: the server makes room among the host's own.
#[test]
fn a_host_that_makes_client_records_keeps_no_other_host_out() {
    let served = served();
    let share = nfs::v4::state::Limits::default().clients_of_host;
    let mut client = served.connect();
    let mut make = |number: usize| client.v4_session(&format!("client {number}")).map(drop);
    for number in 0..share {
        assert_eq!(make(number), Ok(()), "{number}");
    }
    // All are confirmed and in use.
    for number in share..share + 10 {
        assert_eq!(make(number), Err(nfs::v4::Status::Delay), "{number}");
    }
    let mut other = served.connect_from(Ipv4Addr::new(127, 0, 0, 2));
    other.v4_session("another host's").expect("there is room for it");
    served.stop();
}

#[test]
fn a_server_that_pauses_lets_its_clients_come_back() {
    let served = served();
    let mut client = served.connect();
    let root = client.mount();
    served.server.handle().pause(PATIENCE);
    assert!(client.is_closed(), "it was idle");
    let mut waiting = served.connect();
    let call = fragment(&nfs3(1, &Arguments::GetAttr(handle(&root)), &[]), true);
    waiting.send(&call);
    // Another front end may have been first to go on.
    served.nfs.apply(served.config.clone()).expect("it listens already");
    let reply = waiting.reply();
    assert!(matches!(of(Procedure::GetAttr, &reply), Results::GetAttr(Outcome::Ok(_))));
    served.stop();
}

#[test]
fn long_calls_that_stop_leave_buffers_to_others() {
    let served = served();
    let mut good = served.connect();
    let root = good.mount();
    let file = good.create(&root, "file");
    let write = |offset| nfs::v3::Write {
        file: handle(&file),
        offset,
        count: 1 << 20,
        stable: nfs::v3::Stable::Unstable,
        length: 1 << 20,
    };
    let data = vec![5; 1 << 20];
    let call = fragment(&nfs3(1, &Arguments::Write(write(0)), &data), true);
    // More than the pools of both cores have, if each call held its received part.
    let mut begun: Vec<_> = (0..200).map(|_| served.connect()).collect();
    begun.iter_mut().for_each(|client| client.send(&call[..20_000]));
    for _ in 0..20 {
        // Others' short calls, reads of 1 MiB among them, are served.
        let reply = good.call(&Arguments::GetAttr(handle(&root)), &[]);
        assert!(matches!(of(Procedure::GetAttr, &reply), Results::GetAttr(Outcome::Ok(_))));
        std::thread::sleep(Duration::from_millis(20));
    }
    let pools = served.server.handle().cores(PATIENCE);
    for pool in pools.iter().flatten().map(|core| core.pool) {
        assert!(pool.in_use <= pool.limit * 3 / 4, "{} of {} bytes", pool.in_use, pool.limit);
    }
    // A waiting call goes on when there is room again.
    let mut last = begun.pop().expect("there are many");
    drop(begun);
    last.send(&call[20_000..]);
    let reply = last.reply();
    assert!(matches!(of(Procedure::Write, &reply), Results::Write(Outcome::Ok(ok)) if ok.count == 1 << 20));
    served.stop();
}
