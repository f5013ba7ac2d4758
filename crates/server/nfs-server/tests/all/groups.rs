//! Groups that the machine knows, in place of those that clients claim.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use crate::support;
use crate::support::{Client, PATIENCE, call_as, config, fragment, handle, of, serving};
use nfs::v3::{self, Access, Arguments, Outcome, Procedure, Results, SetAttr, SetAttributes};
use nfs_server::config::{GroupLookup, NfsConfig};
use rpc::xdr::Writer;

/// READ of ACCESS (RFC 1813 §3.3.4).
const READ: u32 = 1;

fn managed(lookup: impl Fn(u32) -> Option<Vec<u32>> + Send + Sync + 'static) -> NfsConfig {
    let lookup: GroupLookup = Arc::new(lookup);
    NfsConfig { groups: Some(lookup), ..config() }
}

/// A file that root's group 77 may read, and others may not.
fn file_of_a_group(client: &mut Client) -> Vec<u8> {
    let root = client.mount();
    let file = client.create(&root, "file");
    let set = SetAttributes { mode: Some(0o640), gid: Some(77), ..SetAttributes::default() };
    let arguments = Arguments::SetAttr(SetAttr { object: handle(&file), attributes: set, guard: None });
    let reply = client.call(&arguments, &[]);
    assert!(matches!(of(Procedure::SetAttr, &reply), Results::SetAttr(Outcome::Ok(_))));
    file
}

fn ask(client: &mut Client, user: (u32, u32, &[u32]), file: &[u8]) {
    client.xid += 1;
    let mut bytes = Vec::new();
    let arguments = Arguments::Access(Access { object: handle(file), access: READ });
    arguments.write(&mut Writer::new(&mut bytes));
    let procedure = (v3::PROGRAM, v3::VERSION, Procedure::Access as u32);
    let call = call_as(user, client.xid, procedure, &bytes);
    client.send(&fragment(&call, true));
}

fn answer(client: &mut Client) -> bool {
    let reply = client.reply();
    match of(Procedure::Access, &reply) {
        Results::Access(Outcome::Ok(granted)) => granted.access & READ != 0,
        other => panic!("{other:?}"),
    }
}

fn may_read(client: &mut Client, user: (u32, u32, &[u32]), file: &[u8]) -> bool {
    ask(client, user, file);
    answer(client)
}

#[test]
fn a_user_has_the_twenty_groups_that_the_machine_knows_and_no_others() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let served = serving(managed(move |uid| {
        counted.fetch_add(1, Ordering::SeqCst);
        (uid == 2000).then(|| (60..80).collect())
    }));
    let mut client = served.connect();
    let file = file_of_a_group(&mut client);
    let before = asked.load(Ordering::SeqCst);
    assert!(may_read(&mut client, (2000, 2000, &[]), &file), "77 is the 18th");
    assert!(!may_read(&mut client, (2001, 2001, &[77]), &file), "a claim counts for nothing");
    assert!(may_read(&mut client, (2001, 77, &[]), &file), "but for the first group");
    for _ in 0..3 {
        let mut other = served.connect();
        for _ in 0..10 {
            assert!(may_read(&mut other, (2000, 2000, &[1, 2, 3]), &file));
        }
    }
    assert_eq!(asked.load(Ordering::SeqCst) - before, 2, "each user once");
    served.stop();
}

#[test]
fn clients_are_believed_where_nothing_else_is_asked_for() {
    let served = support::served();
    let mut client = served.connect();
    let file = file_of_a_group(&mut client);
    assert!(may_read(&mut client, (2001, 2001, &[77]), &file));
    assert!(!may_read(&mut client, (2001, 2001, &[]), &file));
    served.stop();
}

/// RFC 1813 §4.4: READ lets owners and those who may execute read, and ACCESS tells of the mode.
#[test]
fn owners_have_the_rights_of_the_mode() {
    let served = support::served();
    let mut client = served.connect();
    let root = client.mount();
    let file = client.create(&root, "file");
    for (mode, expected) in [(0o200, false), (0o100, false), (0o044, false), (0o400, true)] {
        let set = SetAttributes { mode: Some(mode), uid: Some(2000), ..SetAttributes::default() };
        let arguments = Arguments::SetAttr(SetAttr { object: handle(&file), attributes: set, guard: None });
        let reply = client.call(&arguments, &[]);
        assert!(matches!(of(Procedure::SetAttr, &reply), Results::SetAttr(Outcome::Ok(_))));
        assert_eq!(may_read(&mut client, (2000, 2000, &[]), &file), expected, "{mode:o}");
    }
    served.stop();
}

#[test]
fn a_slow_look_up_holds_up_its_user_alone() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let served = serving(managed(move |uid| {
        if uid == 2000 {
            let _ = wait.lock().unwrap().recv_timeout(PATIENCE);
        }
        Some(vec![77])
    }));
    let mut client = served.connect();
    let file = file_of_a_group(&mut client);
    // On every core, and more users than look-ups at once.
    let mut slow: Vec<Client> = (0..8).map(|_| served.connect()).collect();
    for client in &mut slow {
        ask(client, (2000, 2000, &[]), &file);
    }
    for uid in 3000..3100 {
        let mut other = served.connect();
        assert!(may_read(&mut other, (uid, uid, &[]), &file));
    }
    go.send(()).unwrap();
    assert!(slow.iter_mut().all(answer));
    served.stop();
}
