//! `stag tune` against `stag serve`, in processes of their own: its report, the files that it
//! writes, and those that it leaves alone. `iscsi_client::tune::plan` tests the choice for each
//! path.

use std::fs;

use crate::support::command::{Server, done, fails, noise, path, said};
use serde_json::Value;

const QUICK: [&str; 6] = ["--time", "1", "--most", "64M", "--pings", "5"];

fn tuned(url: &str, more: &[&str]) -> Value {
    let text = said(&[&["tune", url, "--json", "--quiet"][..], &QUICK, more].concat());
    serde_json::from_str(&text).unwrap()
}

#[test]
fn what_it_measures_and_chooses_is_told_and_can_be_used_as_it_is() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "mem:64M"], 1);
    for url in [server.iscsi(0).to_owned(), server.iser(0)] {
        let report = tuned(&url, &[]);
        assert_eq!(report["format"], 1);
        assert!(report["measured"]["rtt_us"]["p50"].as_f64().unwrap() > 0.0, "{report}");
        assert!(report["measured"]["read_mb_s"].as_f64().unwrap() > 0.0);
        assert!(report["measured"]["write_mb_s"].is_null(), "nothing is written without --destroy");
        assert!(report["before"]["read_mb_s"].as_f64().unwrap() > 0.0);
        assert!(report["after"]["read_mb_s"].as_f64().unwrap() > 0.0);
        assert_eq!(report["allowed"]["window"], 128);
        assert!(report["reasons"].as_array().unwrap().len() >= 6);
        // Writes longer than the unsolicited limit have at least as many bytes in flight as shorter
        // ones, and there is a load for each length.
        let bytes = |name: &str| report["chosen"][name].as_u64().unwrap();
        assert!(bytes("unasked_bytes") >= 8192, "{report}");
        assert!(bytes("under_way_long_writes_bytes") >= bytes("under_way_bytes"), "{report}");
        let loads = report["loads"].as_array().unwrap();
        assert_eq!(loads.first().unwrap()["bs"], 65_536);
        for load in loads {
            for direction in ["read", "write"] {
                let Value::Object(shape) = &load[direction] else { panic!("{load}") };
                assert!((1..=128).contains(&shape["depth"].as_u64().unwrap()), "{load}");
                assert!((1..=8).contains(&shape["sessions"].as_u64().unwrap()), "{load}");
            }
            let all = |direction: &str| {
                load[direction]["depth"].as_u64().unwrap() * load[direction]["sessions"].as_u64().unwrap()
            };
            assert!(all("write") >= all("read"), "{load}");
        }
        // The words are those of other commands.
        let tuned_url = report["words"]["url"].as_str().unwrap();
        assert!(tuned_url.starts_with(&url) && tuned_url.contains('?'), "{tuned_url}");
        done(&["info", tuned_url]);
        let arguments: Vec<&str> =
            report["bench_arguments"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        done(&[&["bench", &url, "--count", "100", "--quiet"][..], &arguments].concat());
    }
}

#[test]
fn what_is_on_the_unit_stays_unless_it_may_be_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (from, back) = (path(dir.path(), "from"), path(dir.path(), "back"));
    fs::write(&from, noise(8 << 20)).unwrap();
    let server = Server::start(&["--listen", "127.0.0.1:0", "mem:8M"], 1);
    done(&["write", "-q", server.iscsi(0), "-i", &from]);
    tuned(server.iscsi(0), &[]);
    done(&["read", "-q", server.iscsi(0), "-o", &back]);
    assert!(fs::read(&back).unwrap() == fs::read(&from).unwrap());
    let report = tuned(server.iscsi(0), &["--destroy", "--span", "4M"]);
    for phase in ["measured", "before", "after"] {
        assert!(report[phase]["write_mb_s"].as_f64().unwrap() > 0.0, "{phase}: {report}");
    }
    done(&["read", "-q", server.iscsi(0), "-o", &back]);
    let (is, was) = (fs::read(&back).unwrap(), fs::read(&from).unwrap());
    assert!(is[..4 << 20] != was[..4 << 20], "it has written");
    assert!(is[4 << 20..] == was[4 << 20..], "and no farther than it was told to");
}

#[test]
fn what_was_chosen_goes_into_files_of_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (conf, toml) = (path(dir.path(), "iscsid.conf"), path(dir.path(), "stag.toml"));
    fs::write(&conf, "# kept\nnode.startup = manual\nnode.session.queue_depth = 1\n").unwrap();
    let config = "[limits]\nqueue-depth = 16 # few\n\n[[target]]\niqn = \"iqn.2026-01.org.example:x\"\n\n[[target.unit]]\nlun = 0\npath = \"mem:1M\"\n";
    fs::write(&toml, config).unwrap();
    let server = Server::start(&["--listen", "127.0.0.1:0", "mem:16M"], 1);
    let url = server.iscsi(0);
    tuned(url, &["--apply-to", &conf]);
    let text = fs::read_to_string(&conf).unwrap();
    assert!(text.starts_with("# kept\nnode.startup = manual\nnode.session.queue_depth = "), "{text}");
    assert!(!text.contains("node.session.queue_depth = 1\n"), "{text}");
    assert!(text.contains("node.session.iscsi.MaxBurstLength = "), "{text}");
    let target = [&["tune", url, "--quiet", "--apply-to", toml.as_str()][..], &QUICK].concat();
    done(&target);
    let text = fs::read_to_string(&toml).unwrap();
    assert!(text.contains("max-burst = ") && !text.contains("# few"), "{text}");
    assert!(text.ends_with("path = \"mem:1M\"\n"), "{text}");
    done(&["check-config", "--quiet", &toml]);
    // A file that is no configuration is left alone.
    fs::write(&toml, "nonsense = 1\n").unwrap();
    fails(&target, 3);
    assert_eq!(fs::read_to_string(&toml).unwrap(), "nonsense = 1\n");
    let complaint = fails(&["tune", url, "--apply-to", "/nowhere/at/all"], 1);
    assert!(complaint.contains("/nowhere/at/all"), "{complaint}");
}

#[test]
fn tune_reports_missing_targets_and_bad_arguments_as_other_commands_do() {
    let complaint = fails(&["tune", "iscsi://127.0.0.1:1/iqn.2026-01.org.example:x/0"], 5);
    assert!(complaint.contains("127.0.0.1:1"), "{complaint}");
    fails(&["tune", "iscsi://127.0.0.1"], 2);
    let complaint = fails(&["info", "iscsi://h/iqn.2026-01.org.example:x/0?nonsense=1"], 2);
    assert!(complaint.contains("nonsense"), "{complaint}");
    fails(&["bench", "iscsi://h/iqn.2026-01.org.example:x/0", "--settings", "connections=0"], 2);
}

#[test]
fn unsolicited_iser_writes_are_whole_up_to_the_targets_segment_length() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "mem:16M"], 1);
    let iser = server.iser(0);
    for unsolicited in ["unsolicited=0", "unsolicited=20K", "unsolicited=64K", "unsolicited=1M"] {
        let load = ["--bs", "512,16k,63k,64k,128k", "--pattern", "randrw", "--depth", "64", "--count", "300"];
        let how = ["--settings", unsolicited, "--verify", "--destroy", "--quiet"];
        done(&[&["bench", &iser][..], &load, &how].concat());
    }
}

#[test]
fn a_session_that_tunes_itself_says_where_it_has_come_to() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "mem:64M"], 1);
    for url in [server.iscsi(0).to_owned(), server.iser(0)] {
        // On a busy machine a second may pass without a measurement.
        for seconds in ["1", "5", "25"] {
            let how = ["--quiet", "--tune", "auto", "--depth", "64", "--time", seconds];
            let text = said(&[&["bench", &url, "--json"][..], &how].concat());
            let report: Value = serde_json::from_str(&text).unwrap();
            let tuning = &report["runs"][0]["tuning"];
            assert!((1..=64).contains(&tuning["commands"].as_u64().unwrap()), "{tuning}");
            assert_eq!(tuning["connections"], 1);
            if tuning["rtt_us"].as_f64().unwrap() > 0.0 {
                break;
            }
            assert_ne!(seconds, "25", "{tuning}");
        }
        let text = said(&["bench", &url, "--json", "--quiet", "--count", "10"]);
        let report: Value = serde_json::from_str(&text).unwrap();
        assert!(report["runs"][0]["tuning"].is_null(), "only if it is told to");
    }
}
