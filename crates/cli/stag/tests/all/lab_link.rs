//! Emulated links in use: programs on both sides, data through loss and reordering, and no
//! leftovers. No check depends on the machine's speed. If the system permits no link, the tests
//! report it and check nothing, unless `STAG_LAB_MUST` is set.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::command::{STAG, noise, path};
use lab::link::{Backend, DirectionCounters, Link, LinkError, LinkOptions, Side};
use rustix::process::{Pid, Signal, kill_process};

/// A link; `None` if the system permits none.
fn up(options: LinkOptions) -> Option<Link> {
    let spec = options.resolve().expect("the options make a link");
    match Link::up_by(Path::new(STAG), &spec) {
        Ok(link) => Some(link),
        Err(LinkError::Unavailable(why)) if std::env::var_os("STAG_LAB_MUST").is_none() => {
            eprintln!("NOT CHECKED: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// `stag serve` on side A, and its unit's address.
fn serve(link: &Link) -> (Child, String) {
    serve_at(link, &[link.address(Side::A).to_string()])
}

fn serve_at(link: &Link, addresses: &[String]) -> (Child, String) {
    let mut server = link
        .command(Side::A, STAG)
        .args(["--log", "warn", "serve", "--control", "none", "mem:64M"])
        .args(addresses.iter().map(|address| format!("--listen={address}:3260")))
        .env("STATE_DIRECTORY", concat!(env!("CARGO_TARGET_TMPDIR"), "/state"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut url).unwrap();
    assert!(url.contains(&addresses[0]), "{url}");
    (server, url.trim().to_owned())
}

/// Copies 24 MiB to or from a unit, from side B.
fn link_moves(link: &Link, arguments: [&str; 4]) {
    let length = if arguments[0] == "read" { &["--length", "24M"][..] } else { &[] };
    let done = link.command(Side::B, STAG).args(arguments).args(length).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Whether a process has ended, reaped or not.
fn gone(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

fn is_soon_gone(pid: u32) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(20) {
        if gone(pid) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn a_link_takes_the_time_and_the_rate_that_it_was_asked_for() {
    let options = LinkOptions {
        delay: Some("10ms/20ms".into()),
        rate: Some("50Mb/s/20Mb/s".into()),
        backend: Some(Backend::Tun),
        ..LinkOptions::of("lan")
    };
    let Some(link) = up(options) else { return };
    let measured = link.measure().unwrap();
    let (trip, a, b) = (measured.round_trip_us, measured.a_to_b, measured.b_to_a);
    assert!(a.one_way_us.min >= 10_000.0 && b.one_way_us.min >= 20_000.0, "{measured:?}");
    assert!(trip.min >= measured.round_trip_asked_us && trip.max >= trip.median, "{measured:?}");
    assert!(measured.round_trip_asked_us >= 30_000.0);
    for way in [a, b] {
        assert!(way.rate_bits_per_second.is_some_and(|rate| rate > 0.0), "{measured:?}");
        assert!(way.sent > 0 && way.lost <= way.sent);
    }
    let counters = link.counters().unwrap();
    assert_eq!((counters.a_to_b.packets_in, counters.b_to_a.packets_in), (0, 0), "it measured before");
}

#[test]
fn connections_of_a_session_take_the_lines_in_turn() {
    let line = |text: &str| text.parse().unwrap();
    let options = LinkOptions {
        lines: vec![line("rate=200Mb/s"), line("rate=200Mb/s delay=1ms mtu=9000")],
        ..LinkOptions::of("metro")
    };
    let Some(link) = up(options) else { return };
    let [first, second] = link.addresses(Side::A)[..] else { panic!("two lines have two addresses") };
    let (mut server, url) = serve_at(&link, &[first.to_string(), second.to_string()]);
    for spread in ["--connections", "--sessions"] {
        link.reset_counters().unwrap();
        let mut load = link.command(Side::B, STAG);
        load.args(["bench", &url, "--pattern", "read", "--bs", "64k", "--depth", "8", "--count", "200"]);
        load.args([spread, "2", "--portals", &second.to_string(), "--quiet"]);
        let done = load.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let counters = link.counters().unwrap();
        let carried = [&counters, &counters.others[0]].map(|line| line.a_to_b.bytes_in);
        // 200 or 400 reads of 64 KiB, some on each line.
        assert!(carried.iter().sum::<u64>() > 200 << 16, "{spread}: {carried:?}");
        assert!(carried.iter().all(|bytes| *bytes > 20 << 16), "{spread}: {carried:?}");
        assert_eq!(counters.others[0].a_to_b.largest_packet_bytes, 9000, "{spread}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn data_is_whole_on_a_line_that_loses_delays_and_reorders() {
    let dir = tempfile::tempdir().unwrap();
    let (from, back) = (path(dir.path(), "from"), path(dir.path(), "back"));
    let data = noise(24 << 20);
    fs::write(&from, &data).unwrap();
    let options = LinkOptions {
        delay: Some("1ms".into()),
        jitter: Some("0.2ms".into()),
        loss: Some("0.2%".into()),
        burst: Some("2".into()),
        reorder: Some("0.2%".into()),
        reorder_by: Some("0.3ms".into()),
        ..LinkOptions::of("lan")
    };
    let Some(link) = up(options) else { return };
    assert_eq!(link.setup().backend, Backend::Tun, "netem cannot do that");
    let (mut server, url) = serve(&link);
    for arguments in [["write", &url, "-i", &from], ["read", &url, "-o", &back]] {
        link_moves(&link, arguments);
    }
    assert!(fs::read(&back).unwrap() == data, "what was read is not what was written");
    // Packets in flight arrive or are lost; then every one is accounted for.
    let settled =
        |way: &DirectionCounters| way.packets_in == way.packets_out + way.dropped_loss + way.dropped_queue;
    let mut counters = link.counters().unwrap();
    for _ in 0..500 {
        if settled(&counters.a_to_b) && settled(&counters.b_to_a) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        counters = link.counters().unwrap();
    }
    for way in [&counters.a_to_b, &counters.b_to_a] {
        assert!(way.bytes_in > 24 << 20 && way.dropped_loss > 0 && way.reordered > 0, "{way:?}");
        assert_eq!(way.packets_in, way.packets_out + way.dropped_loss + way.dropped_queue, "{way:?}");
        assert_eq!((way.dropped_overrun, way.undeliverable, way.malformed), (0, 0, 0), "{way:?}");
        assert!(way.reads < way.packets_in, "super-packets are taken in one piece: {way:?}");
        assert!(way.queue_high_water_bytes <= 500_000, "{way:?}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn packets_of_65520_bytes_pass_over_ipv4_and_ipv6() {
    let dir = tempfile::tempdir().unwrap();
    let (from, back) = (path(dir.path(), "from"), path(dir.path(), "back"));
    let data = noise(24 << 20);
    fs::write(&from, &data).unwrap();
    let options =
        LinkOptions { mtu: Some(65_520), backend: Some(Backend::Tun), ..LinkOptions::of("wan-0.2mi") };
    let Some(link) = up(options) else { return };
    assert!(link.measure().unwrap().a_to_b.rate_bits_per_second.is_some_and(|rate| rate > 0.0));
    let addresses = [
        Some(link.address(Side::A).to_string()),
        link.address6(Side::A).map(|address| format!("[{address}]")),
    ];
    for address in addresses.into_iter().flatten() {
        let (mut server, url) = serve_at(&link, &[address]);
        link_moves(&link, ["write", &url, "-i", &from]);
        link_moves(&link, ["read", &url, "-o", &back]);
        assert!(fs::read(&back).unwrap() == data, "what was read is not what was written");
        server.kill().unwrap();
        server.wait().unwrap();
    }
    let counters = link.counters().unwrap();
    for way in [&counters.a_to_b, &counters.b_to_a] {
        assert!((32_000..=65_520).contains(&way.largest_packet_bytes), "{way:?}");
        assert_eq!((way.dropped_overrun, way.undeliverable, way.malformed), (0, 0, 0), "{way:?}");
    }
}

/// One end of a connection: prints its congestion control, and whether it takes another one.
fn tell_congestion_control(side: &str) {
    let at = |name: &str| -> IpAddr { std::env::var(name).unwrap().parse().unwrap() };
    let port = 5000;
    let stream = match side {
        "a" => {
            let listener = TcpListener::bind((at("STAG_TEST_ADDRESS"), port)).unwrap();
            listener.accept().unwrap().0
        }
        _ => loop {
            match TcpStream::connect((at("STAG_TEST_PEER"), port)) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        },
    };
    let other = rustix::net::sockopt::set_tcp_congestion(&stream, "reno");
    println!("it is {}, {}", rustix::net::sockopt::tcp_congestion(&stream).unwrap(), other.is_ok());
}

#[test]
fn both_ends_have_the_congestion_control_that_was_asked_for() {
    // On the link this same test is either end.
    if let Ok(side) = std::env::var("STAG_LAB_SIDE") {
        return tell_congestion_control(&side);
    }
    let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    // One that is not the machine's, if there is one.
    let own = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let Some(name) =
        known.split_whitespace().filter(|name| *name != "reno").max_by_key(|name| *name != own.trim())
    else {
        return;
    };
    let options = LinkOptions { congestion: Some(name.to_owned()), ..LinkOptions::of("lan") };
    let Some(link) = up(options) else { return };
    assert_eq!(link.setup().congestion_control.as_deref(), Some(name));
    let mut addresses = vec![IpAddr::V4(link.address(Side::A))];
    addresses.extend(link.address6(Side::A).map(IpAddr::V6));
    for address in addresses {
        let run = |side| {
            let mut command = link.command(side, std::env::current_exe().unwrap());
            let test = "lab_link::both_ends_have_the_congestion_control_that_was_asked_for";
            command.args(["--exact", test, "--nocapture"]);
            command.env("STAG_TEST_ADDRESS", address.to_string()).env("STAG_TEST_PEER", address.to_string());
            command.stdout(Stdio::piped()).spawn().unwrap()
        };
        for end in [run(Side::A), run(Side::B)] {
            let said = String::from_utf8(end.wait_with_output().unwrap().stdout).unwrap();
            assert!(said.contains(&format!("it is {name}, false")), "{address}: {said}");
        }
    }
}

#[test]
fn a_congestion_control_that_the_kernel_lacks_is_refused_with_those_it_has() {
    if up(LinkOptions::of("lan")).is_none() {
        return;
    }
    let options = LinkOptions { congestion: Some("nosuch".into()), ..LinkOptions::of("lan") };
    let refused = Link::up_by(Path::new(STAG), &options.resolve().unwrap()).unwrap_err().to_string();
    let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    assert!(refused.contains("no congestion control `nosuch`"), "{refused}");
    assert!(known.split_whitespace().all(|name| refused.contains(name)), "{refused}");
}

#[test]
fn what_runs_on_a_link_ends_with_it() {
    let Some(link) = up(LinkOptions::of("lan")) else { return };
    // One leaves children behind, and ignores SIGTERM and SIGHUP.
    let mut left = link
        .command(Side::A, "/bin/sh")
        .args(["-c", "trap '' TERM HUP; sleep 1000 & echo $!; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut right = link.command(Side::B, "sleep").arg("1000").spawn().unwrap();
    let mut child = String::new();
    BufReader::new(left.stdout.take().unwrap()).read_line(&mut child).unwrap();
    let child: u32 = child.trim().parse().unwrap();
    assert!(!gone(child) && left.try_wait().unwrap().is_none() && right.try_wait().unwrap().is_none());
    drop(link);
    assert!(is_soon_gone(child));
    assert_eq!(left.wait().unwrap().signal(), Some(9));
    assert_eq!(right.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_maker_that_is_killed_takes_its_link_along() {
    if up(LinkOptions::of("lan")).is_none() {
        return;
    }
    let mut maker = Command::new(STAG)
        .args(["lab", "link", "lan", "--", "/bin/sh", "-c", "echo $$; exec sleep 1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut pid = String::new();
    BufReader::new(maker.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    let pid: u32 = pid.trim().parse().unwrap();
    assert!(!gone(pid));
    let namespace = fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    assert_ne!(namespace, fs::read_link("/proc/self/ns/net").unwrap());
    maker.kill().unwrap();
    maker.wait().unwrap();
    assert!(is_soon_gone(pid));
}

#[test]
fn the_command_tells_what_the_link_did_and_ends_as_its_command_did() {
    let dir = tempfile::tempdir().unwrap();
    let record = path(dir.path(), "record.json");
    if up(LinkOptions::of("lan")).is_none() {
        return;
    }
    let serve = format!("exec {STAG} --log warn serve --control none --listen 198.18.0.1:3260 mem:1M");
    let script = format!("{STAG} ls iscsi://$STAG_LAB_PEER && exit 7");
    let done = Command::new(STAG)
        .args(["lab", "link", "metro", "--mtu", "9000", "--seed", "5", "--record", &record])
        .args(["--serve", &serve, "--", "/bin/sh", "-c", &script])
        .output()
        .unwrap();
    let (said, shown) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.status.code(), Some(7), "{said}{shown}");
    assert!(said.contains("iqn."), "{said}{shown}");
    assert!(shown.contains("link metro by") && shown.contains("packets in"), "{shown}");
    let record: serde_json::Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    assert_eq!(record["spec"]["mtu"], 9000);
    assert!(record["counters"]["a_to_b"]["packets_in"].as_u64().unwrap() > 3, "{record}");
    assert!(record["setup"]["tcp_rmem"].is_array(), "{record}");
}

#[test]
fn a_link_that_cannot_be_is_a_usage_error() {
    for wrong in
        [&["moon"][..], &["lan", "--delay", "5"], &["lan", "--loss", "100%"], &["lan", "--mtu", "20"]]
    {
        let done =
            Command::new(STAG).args(["lab", "link"]).args(wrong).args(["--", "true"]).output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{wrong:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn a_command_that_is_not_there_is_told_as_a_shell_would() {
    let Some(link) = up(LinkOptions::of("lan")) else { return };
    let mut child = link.command(Side::B, "/no/such/program").stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(127), "{said}");
    assert!(said.contains("cannot run it on the link"), "{said}");
}

#[test]
fn a_signal_to_the_command_ends_what_it_runs() {
    if up(LinkOptions::of("lan")).is_none() {
        return;
    }
    let mut maker = Command::new(STAG)
        .args(["lab", "link", "lan", "--", "/bin/sh", "-c", "echo on; exec sleep 1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(maker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // The command may run before `stag lab link` handles signals: then the signal ends both, and
    // the link with them.
    std::thread::sleep(Duration::from_millis(200));
    kill_process(Pid::from_raw(maker.id() as i32).unwrap(), Signal::TERM).unwrap();
    let mut shown = String::new();
    maker.stderr.take().unwrap().read_to_string(&mut shown).unwrap();
    let status = maker.wait().unwrap();
    assert!(
        status.code() == Some(130) && shown.contains("packets in") || status.signal() == Some(15),
        "{shown}"
    );
}
