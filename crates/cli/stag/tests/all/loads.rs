//! The measuring commands: `stag bench` against files, `stag rdma-bench` with both sides as
//! processes, and `stag osd bench` against `stag serve osd:…`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::command::{STAG, Server, fails, said, stag_with};
use rustix::process::Signal;
use serde_json::Value;

/// The answering side of `stag rdma-bench`, which ends with the test.
struct Answering {
    child: Child,
    address: String,
}

impl Answering {
    fn start(more: &[&str]) -> Self {
        let mut child = Command::new(STAG)
            .args(["rdma-bench", "--listen", "127.0.0.1:0"])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().to_owned() }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn runs(args: &[&str]) -> Vec<Value> {
    let report: Value = serde_json::from_str(&said(args)).unwrap();
    assert_eq!(report["format"], 1);
    report["runs"].as_array().unwrap().clone()
}

/// The result of `measure` for the shortest time that suffices on this machine, or for the longest.
fn in_time<T>(mut measure: impl FnMut(&str) -> T, is_enough: impl Fn(&T) -> bool) -> T {
    for time in ["0.02", "0.2", "2"] {
        let found = measure(time);
        if is_enough(&found) {
            return found;
        }
    }
    measure("20")
}

fn has_ops(found: &Value) -> bool {
    found["ops"].as_u64() > Some(0)
}

#[test]
fn every_operation_moves_messages_of_every_size_with_and_without_crc() {
    let answering = Answering::start(&[]);
    for (crc, has) in [("never", false), ("require", true)] {
        let measure = |time: &str| {
            runs(&[
                "rdma-bench",
                &answering.address,
                "--operation",
                "read,write,send",
                "--size",
                "1,4k,100001,2M",
                "--depth",
                "1,5",
                "--time",
                time,
                "--warmup",
                "0",
                "--rdma-crc",
                crc,
                "--json",
            ])
        };
        let found = in_time(measure, |found| found.iter().all(has_ops));
        assert_eq!(found.len(), 3 * 4 * 2);
        for run in &found {
            assert!(has_ops(run), "{run}");
            // A few bytes a second round to 0.
            assert!(run["mb_s"].as_f64() > Some(0.0) || run["size"] == 1, "{run}");
            assert!(run["rtt_us"].as_f64() > Some(0.0) && run["seconds"].as_f64() > Some(0.0), "{run}");
            assert_eq!(run["crc"], has, "{run}");
        }
        assert_eq!(
            (&found[0]["operation"], &found[0]["size"], &found[1]["depth"]),
            (&"read".into(), &1.into(), &5.into())
        );
    }
    for when in ["run", "message"] {
        let measure = |time: &str| {
            let short = ["--operation", "read,write,send", "--time", time, "--warmup", "0", "--json"];
            runs(&[&["rdma-bench", &answering.address, "--register", when][..], &short].concat())
        };
        let found = in_time(measure, |found| found.iter().all(has_ops));
        assert!(found.iter().all(has_ops), "{when}: {found:?}");
    }
    // The fields of a run are consistent.
    let run = &runs(&["rdma-bench", &answering.address, "--outstanding", "2", "--time", "0.1", "--json"])[0];
    let (ops, seconds) = (run["ops"].as_f64().unwrap(), run["seconds"].as_f64().unwrap());
    assert!((ops / seconds / run["ops_s"].as_f64().unwrap() - 1.0).abs() < 0.01, "{run}");
    assert!(
        (run["ops_s"].as_f64().unwrap() * 65536.0 / 1e6 / run["mb_s"].as_f64().unwrap() - 1.0).abs() < 0.01
    );
    assert_eq!((&run["outstanding"], &run["depth"]), (&2.into(), &16.into()));
}

#[test]
fn excessive_and_foreign_requests_are_refused_and_others_served() {
    let answering = Answering::start(&["--memory", "1M"]);
    let refused = fails(&["rdma-bench", &answering.address, "--size", "2M", "--time", "0.01"], 5);
    assert!(refused.contains("--memory"), "{refused}");
    fails(
        &["info", &format!("iser://{}/iqn.2026-01.org.stag:disk/0", answering.address), "--timeout", "2"],
        5,
    );
    let mut other = TcpStream::connect(&answering.address).unwrap();
    other.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    other.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(other.read(&mut [0; 16]).unwrap_or(0), 0);
    let found = runs(&["rdma-bench", &answering.address, "--size", "64k", "--time", "0.01", "--json"]);
    assert_eq!(found.len(), 1);
    fails(&["rdma-bench", "127.0.0.1:1"], 5);
}

#[test]
fn the_side_that_answers_once_ends_after_its_client() {
    let mut answering = Answering::start(&["--once"]);
    runs(&["rdma-bench", &answering.address, "--time", "0.01", "--json"]);
    let limit = Instant::now() + Duration::from_secs(60);
    let status = loop {
        match answering.child.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(Instant::now() < limit, "it does not end"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success());
}

#[test]
fn objects_are_loaded_in_a_partition_that_is_gone_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("osd:{}", dir.path().join("objects").display());
    let server = Server::start(&["--listen", "127.0.0.1:0", "--cores", "1", &store, "mem:32M"], 2);
    for url in [server.iscsi(0).to_owned(), server.iser(0)] {
        for what in ["ping", "create", "getattr", "setattr", "read", "write", "fill"] {
            let short =
                ["--warmup", "0", "--span", "1M", "--size", "200k", "--clients", "2", "--objects", "50"];
            let measure = |time: &str| -> Value {
                let words = ["osd", "bench", &url, what, "--json", "--time", time];
                serde_json::from_str(&said(&[&words[..], &short].concat())).unwrap()
            };
            let enough = |found: &Value| {
                what == "fill" || has_ops(found) && (what != "create" || has_ops(&found["remove"]))
            };
            let found = in_time(measure, enough);
            match what {
                "fill" => assert_eq!(found["made"], 50),
                _ => assert!(found["ops"].as_u64() > Some(0) && found["errors"] == 0, "{found}"),
            }
            if what == "create" {
                assert_eq!(found["remove"]["errors"], 0, "{found}");
                assert!(found["remove"]["ops"].as_u64() > Some(0), "{found}");
            }
        }
    }
    assert_eq!(said(&["osd", "ls", server.iscsi(0)]).trim(), "", "partitions were left");
    // So many commands of each client, once a line allows them.
    let counted = |line: &str| {
        let words =
            ["osd", "bench", server.iscsi(0), "write", "--count", "7", "--clients", "2", "--wait", "--json"];
        let mut child = Command::new(STAG)
            .args(words)
            .args(["--warmup", "0", "--span", "64k"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.starts_with("ready\n"), "{said}");
        ended.status.success().then(|| serde_json::from_slice::<Value>(&ended.stdout).unwrap())
    };
    let found = counted("\n").expect("a run");
    assert_eq!((&found["ops"], &found["errors"]), (&14.into(), &0.into()), "{found}");
    assert!(found["ended_s"].as_f64() > found["began_s"].as_f64(), "{found}");
    assert!(counted("").is_none(), "it began without being told to");
    assert_eq!(said(&["osd", "ls", server.iscsi(0)]).trim(), "", "partitions were left");
    // A named partition stays, with the objects created in it.
    let within = ["--partition", "0x20000", "--objects", "20", "--time", "0.03", "--json"];
    said(&[&["osd", "bench", server.iscsi(0), "fill"][..], &within].concat());
    for what in ["lookup", "list"] {
        let looked = said(&[&["osd", "bench", server.iscsi(0), what][..], &within].concat());
        assert!(serde_json::from_str::<Value>(&looked).unwrap()["errors"] == 0, "{looked}");
        fails(&["osd", "bench", server.iscsi(0), what], 1);
    }
    assert!(said(&["osd", "ls", server.iscsi(0)]).contains("0x20000"));
    // A disk is no device of objects.
    fails(&["osd", "bench", server.iscsi(1), "create", "--time", "0.01"], 1);
    let table = said(&["osd", "bench", server.iscsi(0), "create", "--time", "0.03"]);
    assert!(table.starts_with("create ") && table.contains("\nremove "), "{table}");
}

/// Loads a file of an export in memory with `more`, by every version over TCP and over RDMA.
fn loaded_files(export: &str, more: &[&str]) -> Vec<Value> {
    let mut found = Vec::new();
    for scheme in ["nfs", "nfs+rdma"] {
        for version in ["3", "4.1", "4.2"] {
            let place = export.replace("nfs://", &format!("{scheme}://"));
            let url = format!("{place}/{scheme}-{version}?vers={version}");
            found.extend(runs(&[&["bench", &url, "--json", "--destroy"], more].concat()));
        }
    }
    found
}

#[test]
fn files_are_loaded_and_verified_in_every_version_over_tcp_and_rdma() {
    let server = Server::start(&["--nfs", "127.0.0.1:0", "--export", "/data=mem:64M"], 1);
    let export = server.urls[0].as_str();
    // Without writes, the file must exist.
    let missing = fails(&["bench", &format!("{export}/none"), "--count", "1"], 1);
    assert!(missing.contains("no such file"), "{missing}");

    let span = ["--span", "1M", "--count", "300", "--depth", "8"];
    let verified = [&span[..], &["--fill", "--verify", "--pattern", "randrw", "--sessions", "2"]].concat();
    // As single calls, and cut into calls, and over RDMA these into segments that two RDMA Reads
    // fetch at a time.
    let cut = ["--bs", "128k", "--call", "48k", "--rdma-segment", "4k", "--rdma-reads", "2"];
    for load in [verified.clone(), [&verified[..], &cut].concat()] {
        for run in loaded_files(export, &load) {
            assert_eq!((&run["ios"], &run["errors"]), (&300.into(), &0.into()), "{run}");
            // At the end each of the 2,048 blocks is verified.
            assert!(run["verified_blocks"].as_u64() >= Some(2048), "{run}");
        }
    }
    let long = ["--bs", "2M", "--span", "4M", "--pattern", "write,read", "--count", "6", "--depth", "2"];
    for run in loaded_files(export, &long) {
        assert_eq!((&run["ios"], &run["errors"]), (&6.into(), &0.into()), "{run}");
    }
    // Also I/Os that are longer than a call, stable and unstable.
    for more in
        [&["--bs", "4k,1M", "--pattern", "write,read"][..], &["--file-sync", "--pattern", "randwrite"]]
    {
        for run in loaded_files(export, &[&span[..], more].concat()) {
            assert_eq!((&run["ios"], &run["errors"]), (&300.into(), &0.into()), "{run}");
            assert!(run["reads"] == 300 || run["writes"] == 300, "{run}");
        }
    }
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn directories_are_loaded_without_data_in_every_version_over_tcp_and_rdma() {
    let server = Server::start(&["--nfs", "127.0.0.1:0", "--export", "/data=mem:64M"], 1);
    let export = server.urls[0].as_str();
    assert!(fails(&["bench", export, "--pattern", "lookup", "--count", "1"], 2).contains("is empty"));
    for name in ["a", "b", "c"] {
        stag_with(&["write", &format!("{export}/{name}")], &[1; 10]);
    }
    let load = ["--pattern", "null,getattr,lookup,create,readdirplus", "--depth", "8", "--count", "100"];
    for scheme in ["nfs", "nfs+rdma"] {
        for version in ["3", "4.1", "4.2"] {
            let url = format!("{}?vers={version}", export.replace("nfs://", &format!("{scheme}://")));
            let found =
                runs(&[&["bench", &url, "--json", "--destroy", "--sessions", "2"], &load[..]].concat());
            let names: Vec<_> = found.iter().map(|run| run["pattern"].as_str().unwrap()).collect();
            assert_eq!(names, ["null", "getattr", "lookup", "create", "readdirplus"]);
            for run in &found {
                assert_eq!(
                    (&run["ios"], &run["errors"], &run["bs"]),
                    (&100.into(), &0.into(), &0.into()),
                    "{run}"
                );
                let writes = if run["pattern"] == "create" { 100 } else { 0 };
                assert_eq!(run["writes"], writes, "{run}");
            }
            assert_eq!(found[4]["entries_per_io"], 3.0);
        }
    }
    // The load has removed its files.
    let listed = said(&["ls", export]);
    assert!(!listed.contains("stag-bench") && listed.lines().count() == 3, "{listed}");
    let file = format!("{export}/a");
    assert!(fails(&["bench", &file, "--pattern", "getattr", "--count", "1"], 1).contains("not a directory"));
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn a_file_that_somebody_else_writes_to_is_found_wrong() {
    let server = Server::start(&["--nfs", "127.0.0.1:0", "--export", "/data=mem:64M"], 1);
    let file = format!("{}/file", server.urls[0]);
    let load = ["--span", "1M", "--pattern", "randread", "--fill", "--verify", "--destroy", "--time", "300"];
    let begun = Instant::now();
    let mut bench = Command::new(STAG)
        .args(["bench", &file, "--json"])
        .args(load)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The load may still be filling at the first write here, and overwrites it.
    let deadline = Instant::now() + Duration::from_secs(90);
    let status = loop {
        stag_with(&["write", &file], &[0; 1 << 20]);
        match bench.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(Instant::now() < deadline, "nothing was found"),
        }
    };
    assert_eq!(status.code(), Some(1));
    let mut words = String::new();
    bench.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    assert!(words.contains("expected generation 1"), "{words}");
    // The rate is that of the time until it ended.
    let report: Value = serde_json::from_reader(bench.stdout.take().unwrap()).unwrap();
    let seconds = report["runs"][0]["seconds"].as_f64().unwrap();
    assert!(seconds <= begun.elapsed().as_secs_f64(), "{seconds} s");
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn what_is_of_units_alone_or_of_files_alone_is_refused() {
    let (file, unit) = ("nfs://127.0.0.1:1/data/file", "iscsi://127.0.0.1:1/iqn.2026-01.org.example:a/0");
    for (words, says) in [
        (&["bench", file, unit][..], "not of one kind"),
        (&["bench", file, "--connections", "2"], "--sessions"),
        (&["bench", file, "--initiators", "2"], "--sessions"),
        (&["bench", file, "--pattern", "write"], "writes over the file"),
        (&["bench", unit, "--file-sync"], "of files"),
        (&["bench", unit, "--call", "4k"], "of files"),
        (&["bench", unit, "--rdma-segment", "4k"], "of files"),
        (&["bench", unit, "--bs", "4k,2M"], "of files"),
        (&["bench", file, "--bs", "2M", "--verify", "--fill", "--destroy"], "1M at most"),
        (&["bench", unit, "--pattern", "lookup"], "of a directory of NFS"),
        (&["bench", file, "--pattern", "lookup,read"], "a file and some a directory"),
        (&["bench", file, "--pattern", "create"], "makes files"),
        (&["bench", file, "--pattern", "null", "--verify", "--destroy"], "that move data"),
    ] {
        let said = fails(words, 2);
        assert!(said.contains(says), "{said}");
    }
    assert!(fails(&["bench", file], 5).contains("cannot connect"));
}
