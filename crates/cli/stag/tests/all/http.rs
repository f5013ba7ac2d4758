//! HTTP for administrators as a part of the daemon: its address, the sandbox, and a takeover.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::command::{
    Server, done, fails, free_portal, noise, path, said, stag, stag_with, wait_until,
};

/// The answer to a client's GET of `path`; empty if no server listens, or it ends before it
/// answers.
fn get(address: &str, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    let _ = write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        Ok(_) => answer,
        Err(_) => String::new(),
    }
}

/// The value of a series.
fn value(metrics: &str, series: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn metrics_count_what_initiators_did_within_the_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, socket) = (path(dir.path(), "disk.img"), path(dir.path(), "control.sock"));
    let address = free_portal();
    let server = Server::start(
        &[
            "--listen",
            "127.0.0.1:0",
            "--http",
            &address,
            "--control",
            &socket,
            &format!("{disk},size=8M,thin"),
        ],
        1,
    );
    let written = stag_with(&["write", server.iscsi(0)], &noise(1 << 20));
    assert!(written.status.success(), "{written:?}");
    assert_eq!(done(&["read", "--length", "1M", server.iscsi(0)]), noise(1 << 20));
    let status: serde_json::Value =
        serde_json::from_str(&said(&["status", "--control", &socket, "--json"])).unwrap();
    let metrics = get(&address, "/metrics");
    let labels = format!("{{target=\"{}\",lun=\"0\"", status["targets"][0]["iqn"].as_str().unwrap());
    let io = &status["targets"][0]["units"][0]["io"];
    for (operation, field) in [("read", "reads"), ("write", "writes")] {
        let told = value(&metrics, &format!("stag_unit_commands_total{labels},operation=\"{operation}\"}}"));
        assert!(told >= Some(1.0) && told == io[field].as_f64(), "{operation}: {told:?}, {io}");
    }
    // An initiator's first command gets the unit attention of power on.
    let target = status["targets"][0]["iqn"].as_str().unwrap();
    for (outcome, json) in [
        ("status=\"good\"", serde_json::json!({"status": "good"})),
        (
            "status=\"check-condition\",sense_key=\"unit-attention\"",
            serde_json::json!({"status": "check-condition", "sense_key": "unit-attention"}),
        ),
    ] {
        let told = value(&metrics, &format!("stag_target_commands_total{{target=\"{target}\",{outcome}}}"));
        let all = status["targets"][0]["work"]["outcomes"].as_array().unwrap();
        let own = all
            .iter()
            .find(|one| one["status"] == json["status"] && one.get("sense_key") == json.get("sense_key"));
        assert!(
            told >= Some(1.0) && told == own.unwrap()["commands"].as_f64(),
            "{outcome}: {told:?}, {all:?}"
        );
    }
    assert_eq!(
        value(&metrics, &format!("stag_unit_size_bytes{labels}}}")),
        Some(f64::from(8 << 20)),
        "{metrics}"
    );
    assert!(value(&metrics, &format!("stag_unit_allocated_bytes{labels}}}")) > Some(0.0), "{metrics}");
    assert!(
        value(&metrics, &format!("stag_command_duration_seconds_count{labels}}}")) > Some(0.0),
        "{metrics}"
    );
    assert!(value(&metrics, "process_open_fds") > Some(5.0), "{metrics}");
    let health = get(&address, "/healthz");
    assert!(health.starts_with("HTTP/1.1 200 ") && health.contains("OK: no problems"), "{health}");
}

#[test]
fn an_address_for_http_that_is_in_use_is_a_clear_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error =
        fails(&["serve", "--listen", "127.0.0.1:0", "--control", "none", "--http", &address, "mem:1M"], 4);
    assert!(error.contains(&format!("HTTP cannot listen on {address}")), "{error}");
    assert!(error.contains("another program listens there"), "{error}");
}

#[test]
fn a_daemon_that_takes_over_answers_at_the_same_address() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, socket) = (path(dir.path(), "disk.img"), path(dir.path(), "control.sock"));
    let (portal, address) = (free_portal(), free_portal());
    let unit = format!("{disk},size=8M");
    let arguments = ["--listen", &portal, "--http", &address, "--control", &socket, &unit];
    let first = Server::start(&arguments, 1);
    assert!(get(&address, "/readyz").starts_with("HTTP/1.1 200 "));
    let began = value(&get(&address, "/metrics"), "process_start_time_seconds").unwrap();
    let second = Server::start(&[&["--takeover"], &arguments[..]].concat(), 1);
    wait_until("the new daemon answers", || {
        value(&get(&address, "/metrics"), "process_start_time_seconds").is_some_and(|now| now > began)
    });
    assert_eq!(first.ended(), Some(0), "the one before ends by itself");
    assert!(get(&address, "/readyz").starts_with("HTTP/1.1 200 "));
    drop(second);
}

/// Of two exports of the same size each has its own.
#[test]
fn an_export_in_memory_that_fills_up_is_in_status_and_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, address) = (path(dir.path(), "control.sock"), free_portal());
    let words = ["--nfs", "127.0.0.1:0", "--export", "/full=mem:1M", "--export", "/empty=mem:1M"];
    let server = Server::start(&[&words[..], &["--http", &address, "--control", &socket]].concat(), 2);
    let check = || {
        let check = stag(&["status", "--check", "--control", &socket]);
        (check.status.code(), String::from_utf8_lossy(&check.stdout).into_owned())
    };
    assert_eq!(check(), (Some(0), "OK: no problems, 2 file systems with room\n".to_owned()));
    let file = path(dir.path(), "file");
    std::fs::write(&file, vec![1; 950 << 10]).unwrap();
    let url = server.urls.iter().find(|url| url.ends_with("/full")).unwrap();
    done(&["cp", &file, &format!("{url}/file")]);
    let (status, text) = check();
    assert_eq!((status, text.lines().count()), (Some(1), 1), "{text}");
    assert!(text.starts_with("WARNING: export /full: 9"), "{text}");
    let metrics = get(&address, "/metrics");
    let of = |name: &str| value(&metrics, &format!("stag_file_system_state{{mount=\"export {name}\"}}"));
    assert_eq!((of("/full"), of("/empty")), (Some(1.0), Some(0.0)));
    // An operation beyond what is free fails, and others do not.
    assert!(!stag(&["cp", &file, &format!("{url}/another")]).status.success());
    let operation = |metrics: &str, name: &str, outcome: &str| {
        let labels = format!("version=\"4\",operation=\"{name}\",outcome=\"{outcome}\"");
        value(metrics, &format!("stag_nfs_operations_total{{{labels}}}"))
    };
    let enough = |count: Option<f64>| count >= Some(1.0);
    wait_until("the failed operation is counted", || {
        enough(operation(&get(&address, "/metrics"), "write", "failed"))
    });
    let metrics = get(&address, "/metrics");
    assert!(enough(operation(&metrics, "write", "done")) && enough(operation(&metrics, "sequence", "done")));
    assert_eq!(operation(&metrics, "sequence", "failed"), Some(0.0), "{metrics}");
}

#[test]
fn a_vanished_folder_of_an_export_is_in_status_healthz_and_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, away) = (dir.path().join("tree"), dir.path().join("away"));
    let (socket, address) = (path(dir.path(), "control.sock"), free_portal());
    std::fs::create_dir(&tree).unwrap();
    let exports = ["/data", "/same"].map(|name| format!("{name}={}", tree.display()));
    let words = ["--nfs", "127.0.0.1:0", "--export", &exports[0], "--export", &exports[1]];
    let _server = Server::start(&[&words[..], &["--http", &address, "--control", &socket]].concat(), 2);
    let status = || -> serde_json::Value {
        serde_json::from_str(&said(&["status", "--control", &socket, "--json"])).unwrap()
    };
    let kinds = || -> Vec<String> {
        let problems = status()["health"]["problems"].as_array().unwrap().clone();
        assert!(problems.iter().all(|found| found["export"] == "/data" && found.get("lun").is_none()));
        problems.iter().map(|found| found["kind"].as_str().unwrap().to_owned()).collect()
    };
    let before = status();
    assert_eq!(before["nfs"]["exports"][1]["health"]["state"], "ok");
    assert_eq!(before["health"]["file_systems"][0]["exported"], true, "{before:#}");
    assert_eq!(kinds(), [""; 0]);

    std::fs::rename(&tree, &away).unwrap();
    wait_until("the move is noticed", || kinds() == ["replaced"]);
    assert!(
        said(&["status", "--control", &socket]).contains(&format!("export /data ({}): ", tree.display()))
    );
    std::fs::rename(&away, &tree).unwrap();
    wait_until("it is back", || kinds().is_empty());

    std::fs::remove_dir(&tree).unwrap();
    wait_until("the removal is noticed", || kinds() == ["unusable"]);
    let check = stag(&["status", "--check", "--control", &socket]);
    let text = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_eq!(check.status.code(), Some(2), "{text}");
    let line = format!("CRITICAL: export /data ({}): the folder was removed; ", tree.display());
    assert!(text.starts_with(&line), "{text}");
    wait_until("HTTP tells it", || get(&address, "/healthz").starts_with("HTTP/1.1 503 "));
    let metrics = get(&address, "/metrics");
    for series in
        ["stag_export_state{export=\"/data\"}", "stag_export_state{export=\"/same\"}", "stag_health_state"]
    {
        assert_eq!(value(&metrics, series), Some(2.0), "{series}: {metrics}");
    }
    let acknowledged = said(&["acknowledge", "--control", &socket, "/data"]);
    assert!(acknowledged.contains("not over: unusable"), "{acknowledged}");
    assert!(fails(&["acknowledge", "--control", &socket, "/none"], 1).contains("there is no export /none"));
}
