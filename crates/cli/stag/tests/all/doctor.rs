//! `stag doctor` on this machine: problems that a test can make, and that it disturbs nothing.

use std::fs;
use std::net::TcpListener;

use crate::support::command::{Server, fails, path, stag};
use rustix::process::Signal;
use serde_json::Value;

/// The exit status, and the findings about `about`.
fn findings(args: &[&str], about: &str) -> (Option<i32>, Vec<Value>) {
    let output = stag(&[&["doctor", "--json"], args].concat());
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = answer["findings"].as_array().unwrap().iter();
    (output.status.code(), all.filter(|found| found["about"] == about).cloned().collect())
}

#[test]
fn a_port_that_another_program_holds_is_critical_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (config, socket) = (path(dir.path(), "stag.toml"), path(dir.path(), "socket"));
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    fs::write(&config, format!("[[portal]]\nlisten = \"{}\"\n", held.local_addr().unwrap())).unwrap();
    let args = ["--config", &config, "--control", &socket];
    let (status, found) = findings(&args, "port");
    let what = found[0]["what"].as_str().unwrap();
    assert_eq!((status, found.len(), &found[0]["level"]), (Some(1), 1, &"critical".into()));
    assert!(what.contains(&format!("(process {})", std::process::id())), "{what}");
    assert!(found[0]["remedy"].as_str().unwrap().contains("--listen"));
    let text = stag(&[&["doctor"][..], &args].concat());
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.lines().rev().nth(1).unwrap().starts_with("critical  port"), "{text}");
    drop(held);
    let (status, found) = findings(&args, "port");
    assert_eq!((status, &found[0]["level"]), (Some(0), &"ok".into()));
}

#[test]
fn the_running_daemon_holds_its_ports_rightly_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (config, socket) = (path(dir.path(), "stag.toml"), path(dir.path(), "socket"));
    let server = Server::start(&["--listen", "127.0.0.1:0", "--control", &socket, "mem:1M"], 1);
    let portal = server.urls[0].split('/').nth(2).unwrap();
    fs::write(&config, format!("[[portal]]\nlisten = \"{portal}\"\n")).unwrap();
    let args = ["--config", &config, "--control", &socket];
    let (status, found) = findings(&args, "port");
    assert_eq!((status, &found[0]["level"]), (Some(0), &"ok".into()), "{found:?}");
    assert!(found[0]["what"].as_str().unwrap().contains("the running daemon's"), "{found:?}");
    assert_eq!(findings(&args, "daemon").1[0]["level"], "ok");
    assert!(stag(&["info", &server.urls[0]]).status.success());
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn a_configuration_is_checked_with_what_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let config = path(dir.path(), "stag.toml");
    fs::write(&config, "core = 1\n").unwrap();
    assert!(fails(&["doctor", "--config", &config], 3).contains("cores"));
    fs::write(&config, "[limits]\ncongestion-control = \"nobodys\"\n").unwrap();
    let (status, found) = findings(&["--config", &config], "congestion");
    assert_eq!((status, &found[0]["level"]), (Some(1), &"critical".into()));
}
