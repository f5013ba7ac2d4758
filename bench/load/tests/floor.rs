//! The floor and its client: the requested bytes go over the wire, and its end does not hang.

use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use stag_load::args::Args;
use stag_load::floor;

fn floor(words: &[&str]) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let portal = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let mut memory = vec![0; 4 << 20];
        floor::serve(listener.accept().unwrap().0, &mut memory).unwrap();
        memory
    });
    let url = format!("tcp://{portal}");
    let args =
        Args::parse_from(["stag-load", "--warmup", "0", &url].into_iter().chain(words.iter().copied()));
    let report = floor::run(&args, &portal).unwrap();
    let memory = server.join().unwrap();
    assert!(report.ios > 0 && report.errors == 0, "{report:?}");
    assert!(report.p50_us > 0.0 && report.p50_us <= report.max_us, "{report:?}");
    memory
}

#[test]
fn reads_of_every_size_are_answered_and_change_nothing() {
    for words in [["rr", "512", "1"], ["rr", "4K", "32"], ["sr", "16K", "32"], ["sr", "1M", "4"]] {
        let memory = floor(&[&words[..], &["0.1"]].concat());
        assert!(memory.iter().all(|byte| *byte == 0), "{words:?}");
    }
    floor(&["rr", "4K", "1", "0.1", "--spin"]);
}

#[test]
fn writes_reach_their_places_whole() {
    for words in [["rw", "512", "1"], ["rw", "4K", "32"], ["sw", "64K", "8"], ["sw", "1M", "3"]] {
        let memory = floor(&[&words[..], &["0.1"]].concat());
        let block = match words[1] {
            "512" => 512,
            "4K" => 4096,
            "64K" => 65536,
            _ => 1 << 20,
        };
        // All writes carry the same bytes: a place has them from its first byte on, or none of
        // them.
        let written: Vec<_> =
            memory.chunks(block).filter(|place| place.iter().any(|byte| *byte != 0)).collect();
        assert!(written.len() >= 3, "{words:?}");
        // The last one in flight when the client left may be cut short.
        let odd = written.iter().filter(|place| **place != written[0]).count();
        assert!(odd <= usize::from(written.len() > 1), "{words:?}: {odd} of {} differ", written.len());
    }
}

#[test]
fn many_connections_read_at_once_and_one_client_after_the_other_is_served() {
    let (told, address) = mpsc::channel();
    let (done, served) = mpsc::channel();
    thread::spawn(move || {
        let any = "127.0.0.1:0".parse().unwrap();
        floor::listen(any, 4 << 20, |bound| told.send(bound).unwrap(), |ended| done.send(ended.ios).unwrap())
    });
    let portal = address.recv().unwrap().to_string();
    for (connections, more) in [("2", &[][..]), ("100", &["--spin"]), ("1", &[]), ("3", &["--spin"])] {
        let url = format!("tcp://{portal}");
        let words = ["stag-load", &url, "rr", "4K", "4", "0.1", connections];
        let report = floor::run(&Args::parse_from(words.iter().chain(more)), &portal).unwrap();
        assert!(report.ios > 0 && report.errors == 0, "{report:?}");
        let ios = served.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(ios >= report.ios, "{ios} were answered, {} arrived", report.ios);
    }
}

#[test]
fn what_a_floor_has_no_meaning_for_is_refused() {
    for words in [&["rm"][..], &["rw", "4K", "8", "1", "2"]] {
        let args =
            Args::parse_from(["stag-load", "tcp://127.0.0.1:1"].into_iter().chain(words.iter().copied()));
        assert!(floor::run(&args, "127.0.0.1:1").unwrap_err().to_string().contains("one connection"));
    }
}
