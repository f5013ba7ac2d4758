//! `stag`'s client commands over iSER, in processes of their own, against `stag serve`: the same
//! disk by `iscsi://` and by `iser://`.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::command::{
    STAG, Server, done, fails, free_portal, noise, path, reads_and_writes, said, wait_until,
};

#[test]
fn what_goes_in_one_way_comes_out_the_other_at_every_block_size() {
    let dir = tempfile::tempdir().unwrap();
    let (from, back, disk) = (path(dir.path(), "from"), path(dir.path(), "back"), path(dir.path(), "disk"));
    let data = noise(20_000_123);
    fs::write(&from, &data).unwrap();
    let server = Server::start(&["--listen", "127.0.0.1:0", "mem:64M", &format!("{disk},size=64M")], 2);
    for unit in 0..2 {
        for (block, crc) in
            [("512", "never"), ("4K", "require"), ("64K", "prefer"), ("1M", "never"), ("16M", "require")]
        {
            let offset = if block == "512" { "19999744" } else { "0" };
            let (iser, iscsi) = (server.iser(unit), server.iscsi(unit));
            let how = ["-q", "--block", block, "--rdma-crc", crc, "--offset", offset];
            let len = (64 << 20) - offset.parse::<usize>().unwrap();
            let len = len.min(data.len()).min(if block == "512" { 400_000 } else { usize::MAX });
            fs::write(&from, &data[..len]).unwrap();
            done(&[&["write", &iser, "-i", &from][..], &how].concat());
            done(&["read", "-q", iscsi, "-o", &back, "--offset", offset, "--length", &len.to_string()]);
            assert!(fs::read(&back).unwrap() == data[..len], "{block} in by iSER");
            done(&["write", "-q", iscsi, "-i", &from, "--offset", offset]);
            done(&[&["read", &iser, "-o", &back, "--length", &len.to_string()][..], &how].concat());
            assert!(fs::read(&back).unwrap() == data[..len], "{block} out by iSER");
        }
    }
    fs::write(&from, &data).unwrap();
    done(&["cp", "-q", "--verify", &from, &server.iser(0)]);
    done(&["cp", "-q", "--verify", &server.iser(0), &server.iser(1)]);
    done(&["cp", "-q", "--verify", server.iscsi(1), &server.iser(0)]);
}

#[test]
fn ls_and_info_answer_over_iser_and_name_it() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "mem:8M,serial=S1", "mem:16M"], 2);
    let portal = format!("iser://{}", server.portal());
    assert!(said(&["ls", &portal]).contains("iser://"));
    let listed = said(&["ls", "--units", &portal]);
    assert!(listed.contains(&server.iser(0)) && listed.contains(&server.iser(1)), "{listed}");
    let info = said(&["info", &server.iser(0)]);
    assert!(info.lines().any(|line| line.starts_with("serial") && line.ends_with("S1")), "{info}");
}

#[test]
fn a_verified_load_of_every_size_and_depth_finds_what_it_wrote() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "mem:32M"], 1);
    for crc in ["never", "require"] {
        for (sizes, depths) in [("512,4k,12k,64k,1M", "8"), ("8k", "1,2,64")] {
            let printed = said(&[
                "bench",
                &server.iser(0),
                "--pattern",
                "randrw",
                "--bs",
                sizes,
                "--depth",
                depths,
                "--count",
                "300",
                "--verify",
                "--fill",
                "--destroy",
                "--json",
                "--rdma-crc",
                crc,
            ]);
            let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
            for run in report["runs"].as_array().unwrap() {
                assert_eq!((&run["errors"], &run["reconnects"]), (&0.into(), &0.into()), "{run}");
                assert!(run["verified_blocks"].as_u64() > Some(0), "{run}");
            }
        }
    }
}

#[test]
fn a_verified_load_outlives_a_target_that_is_killed_and_started_again() {
    // More time only if the short run did not suffice.
    let report = [4, 60].into_iter().find_map(load_over_a_death).expect("a target starts within a minute");
    let run = &report["runs"][0];
    assert_eq!((&run["errors"], &run["reconnects"]), (&0.into(), &1.into()), "{run}");
}

/// The report of a load of so many seconds during which its target is killed and started again.
/// `None` if the load was over before it could continue.
fn load_over_a_death(seconds: u64) -> Option<serde_json::Value> {
    let dir = tempfile::tempdir().unwrap();
    let (portal, disk, socket) = (free_portal(), path(dir.path(), "disk"), path(dir.path(), "control.sock"));
    let server = Server::start(&["--listen", &portal, "--control", &socket, &format!("{disk},size=32M")], 1);
    let begun = Instant::now();
    let load = Command::new(STAG)
        .args(["bench", &server.iser(0), "--pattern", "randrw", "--bs", "16k", "--depth", "16", "--time"])
        .arg(seconds.to_string())
        .args(["--verify", "--fill", "--destroy", "--json", "--reconnect", "60"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The load has filled the unit once it reads.
    wait_until("the load reads", || reads_and_writes(&socket).0 > 100);
    drop(server);
    std::thread::sleep(Duration::from_millis(300));
    let _server = Server::start(&["--listen", &portal, "--control", &socket, &disk], 1);
    wait_until("the load goes on", || reads_and_writes(&socket).0 > 100);
    let in_time = begun.elapsed() < Duration::from_secs(seconds);
    let output = load.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    in_time.then(|| serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn chap_both_ways_works_over_iser() {
    let dir = tempfile::tempdir().unwrap();
    let (config, right, wrong) =
        (path(dir.path(), "stag.toml"), path(dir.path(), "right"), path(dir.path(), "wrong"));
    let target_secret = path(dir.path(), "target");
    fs::write(&right, "correct horse battery\n").unwrap();
    fs::write(&wrong, "incorrect horse battery\n").unwrap();
    fs::write(&target_secret, "staple staple staple\n").unwrap();
    let text = r#"
        [[portal]]
        listen = "127.0.0.1:0"
        [[target]]
        iqn = "iqn.2026-01.org.example:t"
        auth = { users = [{ name = "alice", secret-file = "right" }], mutual = { name = "t", secret-file = "target" } }
        [[target.unit]]
        lun = 3
        path = "mem:1M"
    "#;
    fs::write(&config, text).unwrap();
    let server = Server::start(&["--config", &config], 1);
    let url = server.iser(0);
    let me = ["info", &url, "--user", "alice", "--secret-file"];
    done(&[&me[..], &[&right, "--mutual-user", "t", "--mutual-secret-file", &target_secret]].concat());
    fails(&[&me[..], &[&wrong]].concat(), 5);
    fails(&[&me[..], &[&right, "--mutual-user", "t", "--mutual-secret-file", &wrong]].concat(), 5);
    fails(&["info", &url], 5);
}

#[test]
fn a_portal_without_iser_says_so_and_goes_on_with_iscsi() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--no-iser", "mem:8M"], 1);
    let complaint = fails(&["info", "--timeout", "3", &server.iser(0)], 5);
    assert!(complaint.contains("iscsi://") && complaint.contains("iSER"), "{complaint}");
    done(&["info", server.iscsi(0)]);
}
