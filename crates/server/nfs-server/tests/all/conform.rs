//! `conform` passes this server whole, over memory and over a directory, and finds fault with a
//! server that lies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support;
use crate::support::{Served, liar};
use conform::{Outcome, Record, Report, ShareOptions};
use nfs::v3;
use rpc::xdr::{Reader, Writer};

/// The results of checks against a server at this port.
fn judged(rdma: bool, port: u16, checks: &[conform::Check]) -> Report {
    let mut options = ShareOptions { rdma, ..ShareOptions::new("127.0.0.1", port, b"/data") };
    options.answer_within = support::PATIENCE;
    options.check_within = 4 * support::PATIENCE;
    conform::run_share(options, checks, &mut |_| {}).expect("it serves")
}

/// The checks of NFS.
fn checks() -> Vec<conform::Check> {
    conform::checks().into_iter().filter(|check| check.over == conform::Over::Nfs).collect()
}

fn name(record: &Record) -> String {
    record.check.full_name()
}

/// Fails unless every check passed, but for those that do not apply to this server.
fn passes_whole(served: &Served, rdma: bool, apart_from: &[&str]) {
    // The server does not keep removed files for NFSv4, and says so.
    let apart_from = &[apart_from, &["v4-opens/removed-while-open"]].concat();
    let report = judged(rdma, served.address().port(), &checks());
    let not_passed: Vec<_> = report.records.iter().filter(|record| record.outcome != Outcome::Pass).collect();
    let wrong: Vec<_> = not_passed
        .iter()
        .filter(|record| {
            !(matches!(record.outcome, Outcome::NotApplicable(_))
                && apart_from.contains(&name(record).as_str()))
        })
        .map(|record| format!("{}: {:?}", name(record), record.outcome))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(not_passed.len(), apart_from.len());
    assert_eq!(report.left_behind, None);
}

#[test]
fn memory_passes_every_check() {
    let served = support::served();
    passes_whole(&served, false, &["v42/clone"]);
    served.stop();
}

#[test]
fn memory_passes_every_check_over_rdma() {
    let served = support::served();
    let of_tcp = ["rpc/many-fragments", "rpc/byte-by-byte", "rpc/several-in-one-segment"];
    passes_whole(&served, true, &[&of_tcp[..], &["v42/clone"]].concat());
    served.stop();
}

#[test]
fn a_directory_passes_every_check() {
    let (exported, state) = (tempfile::tempdir().expect("room"), tempfile::tempdir().expect("room"));
    std::fs::set_permissions(exported.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("ours");
    let mut config = support::config();
    let folder =
        folder::Folder::open(exported.path(), &folder::Options::new(state.path())).expect("a directory");
    // Without privileges the server serves all callers as one user.
    let others: &[&str] = match folder.acts_as() {
        None => &[],
        Some(_) => {
            &["access-of-others", "read-of-others", "write-of-others", "create-of-others", "chmod-of-others"]
        }
    };
    let mut apart_from: Vec<String> = others.iter().map(|name| format!("v3-attributes/{name}")).collect();
    let clones = folder_clones(exported.path());
    if !clones {
        apart_from.push("v42/clone".to_owned());
    }
    config.exports[0].tree = std::sync::Arc::new(folder);
    let served = support::serving(config);
    passes_whole(&served, false, &apart_from.iter().map(String::as_str).collect::<Vec<_>>());
    served.stop();
}

/// Whether the host's file system shares blocks between files.
fn folder_clones(place: &std::path::Path) -> bool {
    let made = std::process::Command::new("sh")
        .args(["-c", "echo x >from && cp --reflink=always from to; code=$?; rm -f from to; exit $code"])
        .current_dir(place)
        .stderr(std::process::Stdio::null())
        .status();
    made.is_ok_and(|status| status.success())
}

/// The result of a check against a server that lies in the `which`th reply that the check gets, and
/// how many it got.
fn judged_with_a_lie(served: &Served, check: &conform::Check, which: usize) -> (Outcome, usize) {
    // The next reply of the check; 0 before and after it.
    let next = Arc::new(AtomicUsize::new(0));
    let counted = next.clone();
    let lie: liar::Lie = Arc::new(move |call, reply| {
        let number = counted.load(Ordering::SeqCst);
        if number > 0 {
            counted.store(number + 1, Ordering::SeqCst);
        }
        if number == which {
            falsify(call, reply);
        }
    });
    let port = liar::lying(served.address(), lie);
    let mut options = ShareOptions::new("127.0.0.1", port, b"/data");
    options.answer_within = support::PATIENCE;
    options.check_within = 4 * support::PATIENCE;
    let mut got = 0;
    let report = conform::run_share(options, &[*check], &mut |progress| match progress {
        conform::Progress::Begins { .. } => next.store(1, Ordering::SeqCst),
        conform::Progress::Ended(_) => got = next.swap(0, Ordering::SeqCst) - 1,
    });
    (report.expect("it serves").records.pop().expect("a record").outcome, got)
}

/// Replaces a reply by an error that no check wants: SERVERFAULT, or SYSTEM_ERR of RPC.
fn falsify(call: &liar::Called, reply: &mut Vec<u8>) {
    const FAULT: u32 = 10006;
    let mut from = Reader::new(reply);
    let header = rpc::message::Reply::read(&mut from).expect("a reply");
    let (xid, at, success) = (header.xid, from.position(), header.is_success());
    let ((program, version, procedure), _) = *call;
    if !success || procedure == 0 || program != v3::PROGRAM {
        reply.clear();
        let error = rpc::message::AcceptStat::SystemErr(());
        rpc::message::Reply::accepted(xid, error).write(&mut Writer::new(reply));
        return;
    }
    if version == v3::VERSION {
        // The attributes of an error are optional: none, as often as the procedure has them.
        let optional = match v3::Procedure::from_code(procedure) {
            Some(v3::Procedure::GetAttr) => 0,
            Some(v3::Procedure::Rename) => 4,
            Some(v3::Procedure::Link) => 3,
            Some(
                v3::Procedure::SetAttr
                | v3::Procedure::Write
                | v3::Procedure::Create
                | v3::Procedure::MkDir
                | v3::Procedure::Symlink
                | v3::Procedure::MkNod
                | v3::Procedure::Remove
                | v3::Procedure::RmDir
                | v3::Procedure::Commit,
            ) => 2,
            _ => 1,
        };
        reply.truncate(at);
        reply.extend(FAULT.to_be_bytes());
        reply.extend([0; 4].repeat(optional));
        return;
    }
    // The first operation fails.
    let first =
        reply.get(at + 12..at + 16).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes);
    reply.truncate(at);
    for word in [FAULT, 0, 1, first, FAULT] {
        reply.extend(word.to_be_bytes());
    }
}

#[test]
fn every_check_fails_where_the_server_answers_it_wrongly() {
    let served = support::served();
    let never: Vec<String> = checks()
        .iter()
        .filter(|check| {
            let (_, replies) = judged_with_a_lie(&served, check, usize::MAX);
            !(1..=replies).rev().any(|which| found(&judged_with_a_lie(&served, check, which).0))
        })
        .map(conform::Check::full_name)
        .collect();
    assert!(never.is_empty(), "no wrong reply makes these fail: {}", never.join(", "));
    served.stop();
}

fn found(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Fail { .. } | Outcome::Warning { .. })
}
