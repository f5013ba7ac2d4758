//! The load generator against the target that stores nothing: what each side counts has to agree.

use std::io::Write;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use clap::Parser;
use stag_load::args::Args;
use stag_load::null::{self, Served};
use stag_load::{hold, report::Report, run};

fn load(words: &[&str]) -> (Report, Vec<Served>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("iscsi://{}/{}/0", listener.local_addr().unwrap(), null::IQN);
    let args = Args::parse_from(["stag-load", &url].into_iter().chain(words.iter().copied()));
    let connections = args.connections;
    let target = thread::spawn(move || {
        let serve = |stream| thread::spawn(move || null::serve(stream).unwrap());
        let threads: Vec<_> = (0..connections).map(|_| serve(listener.accept().unwrap().0)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    (run::run(&args).unwrap(), target.join().unwrap())
}

#[test]
fn reads_of_every_size_are_counted_alike_on_both_sides() {
    for block in ["512", "4K", "64K", "256K", "1M"] {
        let (report, served) = load(&["--warmup", "0", "rr", block, "8", "0.1"]);
        assert_eq!(report.errors, 0, "{:?}", report.first_error);
        assert!(report.ios > 0);
        // The target also serves commands that were in flight at the end; only it counts them.
        assert!((report.ios..=report.ios + 8).contains(&served[0].reads), "{} {served:?}", report.ios);
        assert_eq!(served[0].pongs, 1, "the target's NOP-In was answered");
        assert!(served[0].logged_out);
    }
}

#[test]
fn a_write_larger_than_the_first_burst_goes_on_with_r2ts() {
    for (block, immediate) in [("4K", 4096), ("64K", 65536), ("256K", 65536), ("1M", 65536)] {
        let (report, served) = load(&["--warmup", "0", "sw", block, "4", "0.1"]);
        assert_eq!(report.errors, 0, "{:?}", report.first_error);
        assert!((report.ios..=report.ios + 4).contains(&served[0].writes), "{} {served:?}", report.ios);
        assert_eq!(served[0].immediate_bytes, served[0].writes * immediate);
        assert_eq!(served[0].solicited_bytes, served[0].writes * (report.block as u64 - immediate));
    }
}

#[test]
fn filling_writes_every_block() {
    let (report, served) = load(&["--fill", "rr", "1M", "8"]);
    assert_eq!(report.errors, 0, "{:?}", report.first_error);
    // 1024 cover the unit; the last receive may bring some more, and a window of them was in flight
    // then.
    assert!((1024..1024 + 8).contains(&report.ios), "{}", report.ios);
    assert!((1024..=1024 + 16).contains(&served[0].writes), "{served:?}");
}

#[test]
fn connections_and_mixed_patterns_work_with_and_without_spinning() {
    for words in [&["rm", "4K", "8", "0.2", "3"][..], &["sm", "128K", "8", "0.2", "2", "--spin"]] {
        let (report, served) = load(words);
        assert_eq!(report.errors, 0, "{:?}", report.first_error);
        assert!(served.iter().all(|s| s.reads > 0 && s.writes > 0), "{served:?}");
    }
}

#[test]
fn a_target_that_hangs_up_is_an_error_and_no_hang() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("iscsi://{}/iqn.x:y/0", listener.local_addr().unwrap());
    let target = thread::spawn(move || drop(listener.accept().unwrap()));
    let error = run::run(&Args::parse_from(["stag-load", &url])).unwrap_err();
    target.join().unwrap();
    assert!(error.to_string().contains("receiving") || error.to_string().contains("sending"), "{error}");
}

#[test]
fn held_sessions_report_their_answered_pings_on_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("iscsi://{}/{}/0", listener.local_addr().unwrap(), null::IQN);
    let args = Args::parse_from(["stag-load", "--hold", "1", &url]);
    let (asked, mut ask) = std::io::pipe().unwrap();
    let (said, say) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let (ready, answered) = (said.0, say.0);
    let holder = thread::spawn(move || {
        let ready = |held: &hold::Held| ready.send(held.sessions).unwrap();
        hold::run(&args, 1, ready, |answers| answered.send(answers.pings).unwrap(), asked).unwrap();
    });
    let stream = listener.accept().unwrap().0;
    let mut pinging = stream.try_clone().unwrap();
    let target = thread::spawn(move || null::serve(stream).unwrap());
    assert_eq!(said.1.recv().unwrap(), 1);
    let mut count = || {
        ask.write_all(b"?\n").unwrap();
        say.1.recv().unwrap()
    };
    assert_eq!(count(), 0);
    // NOP-Ins that want an answer, and one that wants none (RFC 7143 §11.19).
    for tag in [7u32, 8, 9, u32::MAX] {
        let mut ping = [0; 48];
        (ping[0], ping[1]) = (0x20, 0x80);
        ping[16..20].fill(0xff);
        ping[20..24].copy_from_slice(&tag.to_be_bytes());
        pinging.write_all(&ping).unwrap();
    }
    let all = (0..10_000).map(|_| count()).find(|pings| {
        thread::sleep(Duration::from_millis(1));
        *pings >= 3
    });
    assert_eq!(all, Some(3));
    drop(ask);
    holder.join().unwrap();
    drop(pinging);
    assert_eq!(target.join().unwrap().pongs, 3);
}

#[test]
fn held_sessions_are_there_until_the_end_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("iscsi://{}/{}/0", listener.local_addr().unwrap(), null::IQN);
    let args = Args::parse_from(["stag-load", "--hold", "20", &url]);
    let target = thread::spawn(move || {
        let serve = |stream| thread::spawn(move || null::serve(stream).unwrap());
        let threads: Vec<_> = (0..20).map(|_| serve(listener.accept().unwrap().0)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    let mut held = 0;
    hold::run(&args, args.hold.unwrap(), |all| held = all.sessions, |_| (), std::io::empty()).unwrap();
    assert_eq!(held, 20);
    let served = target.join().unwrap();
    assert!(served.iter().all(|s| s.reads == 0 && s.writes == 0 && !s.logged_out), "{served:?}");
}
