//! The slowest calls: told while they are at work, and once they have ended, by what they wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nfs::v3::{self, Arguments};
use nfs::v4;
use nfs_server::config::QosLimits;
use nfs_server::{Progress, SlowCall};
use server_core::qos::Rates;

use crate::support::gated::{Gate, Gated};
use crate::support::{self, PATIENCE, Served, exporting, fragment, handle, nfs3, serving, v4::status};

/// A server whose changes wait at a gate.
fn gated() -> (Served, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let tree = Gated { tree: support::memory(), gate: gate.clone() };
    (serving(exporting(Arc::new(tree))), gate)
}

/// Waits until the slow calls are as `wanted`.
fn until(served: &Served, wanted: impl Fn(&[SlowCall]) -> bool) -> Vec<SlowCall> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all = served.nfs.slow(PATIENCE).expect("all cores answer");
        if wanted(&all) {
            return all;
        }
        assert!(Instant::now() < deadline, "{all:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn write(file: &[u8]) -> Arguments<'_> {
    let stable = v3::Stable::FileSync;
    Arguments::Write(v3::Write { file: handle(file), offset: 0, count: 4, stable, length: 4 })
}

#[test]
fn a_call_that_the_medium_delays_is_told_while_it_is_there_and_when_it_has_ended() {
    let (served, gate) = gated();
    let mut client = served.connect();
    let peer = client.stream.local_addr().unwrap();
    let root = client.mount();
    let file = client.create(&root, "file");
    gate.close();
    client.xid += 1;
    let xid = client.xid;
    client.send(&fragment(&nfs3(xid, &write(&file), b"data"), true));
    gate.reached();
    // What is answered at once is never slow, however many there are of it.
    let mut other = served.connect();
    for _ in 0..100 {
        other.call(&Arguments::GetAttr(handle(&file)), &[]);
    }
    let [one] = &until(&served, |all| all.len() == 1)[..] else { panic!("one call is at work") };
    assert_eq!((one.progress, one.client, one.export.as_deref()), (Progress::Medium, peer, Some("/data")));
    assert_eq!((one.version, one.xid, &one.operations[..]), (3, xid, &["write".to_owned()][..]));
    assert_eq!((one.operation.as_deref(), one.order, one.send), (None, Duration::ZERO, None));
    assert!(one.medium >= Duration::from_secs(1), "{one:?}");

    gate.open();
    client.reply();
    let ended = |all: &[SlowCall]| matches!(all, [one] if one.send.is_some());
    let [one] = &until(&served, ended)[..] else { panic!("one call was slow") };
    assert!(matches!(one.progress, Progress::Ended(_)), "{one:?}");
    assert_eq!((one.xid, one.order, one.export.as_deref()), (xid, Duration::ZERO, Some("/data")));
    assert!(one.medium >= Duration::from_secs(1), "{one:?}");
    served.stop();
}

#[test]
fn a_compound_is_told_with_its_operations_and_the_one_that_it_is_in() {
    let (served, gate) = gated();
    let mut client = served.v4("client");
    let root = client.find("/data").expect("the export");
    let (file, open) = client.make(&root, "file", b"owner");
    gate.close();
    let write = v4::Write { stateid: open, offset: 0, stable: v4::Stable::FileSync, length: 4 };
    client.begin(&[support::v4::handle(&file), v4::Arguments::Write(write)], b"data");
    gate.reached();
    let told = |one: &SlowCall| (one.version, one.operations.join(" "), one.operation.clone());
    let [one] = &until(&served, |all| all.len() == 1)[..] else { panic!("one call is at work") };
    assert_eq!(told(one), (4, "sequence putfh write".to_owned(), Some("write".to_owned())));
    assert_eq!((one.progress, one.export.as_deref()), (Progress::Medium, Some("/data")));
    gate.open();
    assert_eq!(status(&client.link.reply()), None);
    let [one] = &until(&served, |all| all.iter().any(|one| one.send.is_some()))[..] else { panic!("one") };
    assert_eq!(told(one), (4, "sequence putfh write".to_owned(), None));
    served.stop();
}

#[test]
fn a_limit_of_service_is_no_time_of_the_medium() {
    let mut config = support::config();
    let iops = Rates { write: Some(1), ..Rates::default() };
    let limits = QosLimits { iops, burst: Duration::ZERO, ..QosLimits::default() };
    config.exports[0].clients[0].limits = Some(Arc::new(limits));
    let mut unlimited = config.clone();
    unlimited.exports[0].clients[0].limits = None;
    let served = serving(config);
    let mut client = served.connect();
    let root = client.mount();
    let file = client.create(&root, "file");
    // The first goes at once, and each of the others a second after the one before it.
    const CALLS: usize = 20;
    for _ in 0..CALLS {
        client.xid += 1;
        client.send(&fragment(&nfs3(client.xid, &write(&file), b"data"), true));
    }
    let is_waiting = |one: &&SlowCall| one.progress == Progress::Waits;
    let all = until(&served, |all| all.iter().any(|one| is_waiting(&one)));
    let waiting = all.iter().filter(is_waiting).count();
    for one in all.iter().filter(is_waiting) {
        assert!(one.order >= Duration::from_secs(1) && one.medium < one.order, "{one:?}");
    }
    served.nfs.apply(unlimited).expect("the same portal");
    for _ in 0..CALLS {
        client.reply();
    }
    let all = until(&served, |all| all.len() >= waiting && all.iter().all(|one| one.send.is_some()));
    assert!(all.iter().all(|one| one.order > one.medium), "{all:?}");
    assert!(all.windows(2).all(|pair| pair[0].took() >= pair[1].took()), "the slowest first: {all:?}");
    served.stop();
}

#[test]
fn a_call_whose_client_has_gone_is_told_without_a_time_to_send() {
    let (served, gate) = gated();
    let mut client = served.connect();
    let root = client.mount();
    let file = client.create(&root, "file");
    gate.close();
    client.send(&fragment(&nfs3(77, &write(&file), b"data"), true));
    gate.reached();
    until(&served, |all| all.len() == 1);
    served.nfs.disconnect([127, 0, 0, 1].into(), None, Duration::ZERO, PATIENCE).expect("it is there");
    until(&served, |all| all.is_empty());
    gate.open();
    let [one] = &until(&served, |all| all.len() == 1)[..] else { panic!("one call was slow") };
    assert_eq!((one.xid, one.send), (77, None));
    assert!(matches!(one.progress, Progress::Ended(_)));
    served.stop();
}
