//! Limits of service: the calls that wait, and those that do not wait with them. Clients that an
//! administrator disconnects.

use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Client, PATIENCE, config, fragment, handle, nfs3, of, results, serving, v4::status};
use nfs::v3::{Arguments, Outcome, Procedure, Results, Stable, Write};
use nfs::v4::{self, Stateid};
use nfs_server::config::{NfsConfig, QosLimits};
use server_core::qos::Rates;

/// A limit of `writes` per second for each client, without a burst.
fn limited(writes: u64) -> NfsConfig {
    let mut config = config();
    let iops = Rates { write: Some(writes), ..Rates::default() };
    config.exports[0].clients[0].limits =
        Some(Arc::new(QosLimits { iops, burst: Duration::ZERO, ..QosLimits::default() }));
    config
}

fn write(file: &[u8]) -> Arguments<'_> {
    Arguments::Write(Write { file: handle(file), offset: 0, count: 4, stable: Stable::FileSync, length: 4 })
}

/// Sends a WRITE and does not wait for its reply.
fn begin(client: &mut Client, file: &[u8]) -> u32 {
    client.xid += 1;
    client.send(&fragment(&nfs3(client.xid, &write(file), b"data"), true));
    client.xid
}

/// The XID of the next reply.
fn next(client: &mut Client) -> u32 {
    let reply = client.reply();
    u32::from_be_bytes(*reply.first_chunk().expect("an XID"))
}

#[test]
fn writes_beyond_a_clients_limit_wait_and_hold_nobody_else_back() {
    let served = serving(limited(1));
    let mut client = served.connect();
    let root = client.mount();
    let file = client.create(&root, "file");
    // The first goes at once; the others of this address have minutes to wait, over any connection.
    let first = begin(&mut client, &file);
    assert_eq!(next(&mut client), first);
    let waiting: Vec<u32> = (0..100).map(|_| begin(&mut client, &file)).collect();
    let mut again = served.connect();
    let late = begin(&mut again, &file);
    for client in [&mut client, &mut again] {
        let reply = client.call(&Arguments::GetAttr(handle(&file)), &[]);
        let told = of(Procedure::GetAttr, &reply);
        assert!(
            matches!(told, Results::GetAttr(Outcome::Ok(_))),
            "what moves no data does not wait: {told:?}"
        );
    }
    let mut other = served.connect_from(Ipv4Addr::new(127, 0, 0, 2));
    let reply = other.call(&write(&file), b"data");
    assert!(matches!(of(Procedure::Write, &reply), Results::Write(Outcome::Ok(_))));
    // Without the limit all go.
    served.nfs.apply(unlimited(&served.config)).expect("the same portal");
    let mut ended: Vec<u32> = waiting.iter().map(|_| next(&mut client)).collect();
    ended.sort_unstable();
    assert_eq!(ended, waiting);
    assert_eq!(next(&mut again), late);
    served.stop();
}

/// The same without limits.
fn unlimited(config: &NfsConfig) -> NfsConfig {
    let mut config = config.clone();
    config.exports[0].clients[0].limits = None;
    config
}

#[test]
fn a_server_that_stops_waits_for_no_limit() {
    let served = serving(limited(1));
    let mut client = served.connect();
    let root = client.mount();
    let file = client.create(&root, "file");
    let first = begin(&mut client, &file);
    for _ in 0..100 {
        begin(&mut client, &file);
    }
    assert_eq!(next(&mut client), first);
    served.stop();
}

#[test]
fn version_4_is_limited_as_well() {
    let served = serving(limited(200));
    let mut client = served.v4("client");
    let root = client.find("/data").expect("the export");
    let (file, open) = client.make(&root, "file", b"owner");
    let write = |stateid: Stateid| {
        v4::Arguments::Write(v4::Write { stateid, offset: 0, stable: v4::Stable::FileSync, length: 4 })
    };
    let begun = Instant::now();
    for _ in 0..20 {
        let reply = client.run(&[support::v4::handle(&file), write(open)], b"data");
        assert_eq!(status(&reply), None, "{:?}", results(&reply));
    }
    // Each but the first waits for 5 ms.
    assert!(begun.elapsed() >= Duration::from_millis(90), "{:?}", begun.elapsed());
    served.stop();
}

#[test]
fn a_disconnected_client_is_refused_for_a_while_and_others_are_not_disturbed() {
    let served = serving(config());
    let host = Ipv4Addr::new(127, 0, 0, 2);
    let mut client = served.connect_from(host);
    let mut second = served.connect_from(host);
    let mut other = served.connect();
    for one in [&mut client, &mut second, &mut other] {
        one.mount();
    }
    let port = client.stream.local_addr().expect("an address").port();
    let disconnect = |port, time| served.nfs.disconnect(host.into(), port, time, PATIENCE);
    assert_eq!(disconnect(Some(1), Duration::ZERO), None, "there is no such connection");
    assert_eq!(disconnect(Some(port), Duration::from_secs(3600)), NonZeroUsize::new(1));
    assert!(client.is_closed());
    // Its host is refused; what it has else stays.
    assert!(served.connect_from(host).is_closed());
    second.mount();
    served.connect().mount();
    assert_eq!(disconnect(None, Duration::ZERO), NonZeroUsize::new(1));
    assert!(second.is_closed());
    served.connect_from(host).mount();
    other.mount();
    served.stop();
}
