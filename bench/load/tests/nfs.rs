//! Loads of NFS against a server that answers each procedure with the same bytes: what each side
//! counts has to agree, and what is wrong in a reply is found.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use clap::Parser;
use stag_load::args::Args;
use stag_load::nfs;
use stag_load::report::Report;

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

/// `nfs_fh3` behind a status.
fn found() -> Vec<u8> {
    [words(&[0, 8]), b"a handle".to_vec()].concat()
}

/// Answers a connection's calls until it ends: the number of those that are not of MOUNT, LOOKUP or
/// GETATTR before the load. `short`: bytes that a READ or WRITE lacks.
fn serve(mut stream: TcpStream, short: u32) -> Vec<(u32, u64)> {
    let mut counts = Vec::new();
    let mut mark = [0; 4];
    while stream.read_exact(&mut mark).is_ok() {
        let mut call = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        if stream.read_exact(&mut call).is_err() {
            break;
        }
        let word = |at: usize| u32::from_be_bytes(call[at..at + 4].try_into().unwrap());
        let (program, procedure) = (word(12), word(20));
        // Arguments begin behind a credential of 24 bytes and an empty verifier.
        let behind = 24 + 8 + 24 + 8 + 4 + 8;
        let results = match (program, procedure) {
            (_, 0) => Vec::new(),
            (100_005, 1) | (_, 3) => found(),
            (_, 1) => {
                [words(&[0, 1, 0o644, 1, 0, 0]), (8u64 << 20).to_be_bytes().to_vec(), vec![0; 56]].concat()
            }
            (_, 6) => {
                let count = word(behind + 8);
                let attributes = [words(&[0, 1]), vec![0; 84]].concat();
                let data = vec![0; (count - short) as usize];
                [attributes, words(&[count - short, 0, count - short]), data].concat()
            }
            (_, 7) => {
                assert_eq!(call.len(), behind + 20 + word(behind + 8) as usize);
                words(&[0, 0, 0, word(behind + 8) - short, 0, 0, 0])
            }
            (_, 8) => words(&[if short > 0 { 28 } else { 0 }, 0, 0, 0, 0]),
            (_, 17) => words(&[0, 0, 0, 0, 0, 1]),
            other => panic!("{other:?}"),
        };
        let reply = [words(&[word(0), 1, 0, 0, 0, 0]), results].concat();
        let record = [words(&[reply.len() as u32 | 1 << 31]), reply].concat();
        if stream.write_all(&record).is_err() {
            break;
        }
        match counts.iter_mut().find(|(known, _)| *known == procedure) {
            Some((_, count)) => *count += 1,
            None => counts.push((procedure, 1)),
        }
    }
    counts
}

fn load(words: &[&str], short: u32) -> (Report, Vec<(u32, u64)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rest = format!("{}/export/file", listener.local_addr().unwrap());
    let url = format!("nfs://{rest}");
    let args =
        Args::parse_from(["stag-load", "--warmup", "0", &url].into_iter().chain(words.iter().copied()));
    let server = thread::spawn(move || {
        serve(listener.accept().unwrap().0, 0);
        serve(listener.accept().unwrap().0, short)
    });
    let report = nfs::run(&args, &rest);
    (report.unwrap(), server.join().unwrap())
}

#[test]
fn each_kind_of_call_is_counted_alike_on_both_sides() {
    let loads = [
        ("null", 0),
        ("getattr", 1),
        ("lookup", 3),
        ("rr", 6),
        ("sw", 7),
        ("create", 8),
        ("readdirplus", 17),
    ];
    for (pattern, procedure) in loads {
        for block in ["4K", "1M"] {
            let (report, served) = load(&[pattern, block, "8", "0.05"], 0);
            assert_eq!(report.errors, 0, "{pattern}: {:?}", report.first_error);
            let count = served.iter().find(|(known, _)| *known == procedure).unwrap().1;
            // Some calls go before the load, and some were in flight at its end.
            assert!(
                report.ios > 0 && (report.ios..=report.ios + 9).contains(&count),
                "{pattern}: {} {count}",
                report.ios
            );
        }
    }
}

#[test]
fn replies_that_fail_or_lack_bytes_are_errors() {
    for (pattern, what) in
        [("rr", "4095 bytes of 4096"), ("rw", "4095 bytes of 4096"), ("create", "status 28")]
    {
        let (report, _) = load(&[pattern, "4K", "8", "0.05"], 1);
        assert_eq!(report.errors, report.ios, "{pattern}");
        assert_eq!(report.first_error.as_deref(), Some(what));
    }
}
