//! Thousands of idle sessions cost bounded memory and no processor time, and do not disturb a busy
//! one.

#[allow(dead_code, reason = "not every test uses all of it")]
mod support;

use std::fs;
use std::time::Duration;

use iscsi::pdu::Isid;
use iscsi_server::CoresConfig;
use support::{CORES, Client, address, read10, server_on};

/// Most memory of one idle session, with its client's end in the same process, bytes.
const MOST_BYTES: usize = 12 << 10;

/// Value of the field `name` in a file of /proc.
fn field(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).expect("/proc can be read");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the field is there");
    line.trim().to_owned()
}

/// Memory of this process that is in use, in bytes.
fn resident() -> usize {
    let text = field("/proc/self/status", "RssAnon:");
    text.trim_end_matches(" kB").trim().parse::<usize>().expect("a number") << 10
}

/// Processor time of the server's cores, in nanoseconds.
fn core_time() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("/proc can be read").flatten();
    tasks
        .filter(|task| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.starts_with("core-"))
        })
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|stat| stat.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// As many sessions as descriptors allow, two for each session here; at most 2,000.
fn count() -> usize {
    let limits = field("/proc/self/limits", "Max open files");
    let soft = limits.split_whitespace().next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(1024);
    (soft.saturating_sub(200) / 2).min(2_000)
}

fn login(server: &iscsi_server::Server, number: usize) -> Client {
    let config = iscsi::login::initiator::Config {
        isid: Isid([0x80, 0, (number >> 8) as u8, number as u8, 0, 0]),
        ..Client::config(1)
    };
    Client::login(address(server), config)
}

#[test]
fn idle_sessions_cost_little_memory_and_no_time() {
    let count = count();
    let server = server_on(CoresConfig { spin_us: 50, ..CORES }, |config| {
        config.limits.sessions = 20_000;
        config.limits.connections = 20_000;
        // These clients answer no ping; the timers for pings exist all the same.
        config.limits.nop_interval = Duration::from_secs(600);
    });
    let mut busy = login(&server, 0);
    busy.settle(0);
    let mut idle: Vec<Client> = (1..=100).map(|number| login(&server, number)).collect();
    let before = resident();
    idle.extend((101..count).map(|number| login(&server, number)));
    let each = resident().saturating_sub(before) / (idle.len() - 100);
    assert_eq!(server.sessions(), idle.len() + 1);
    assert!(each <= MOST_BYTES, "{each} bytes a session");

    // Only the cores' polling ends, and now and then a ping is due. The least of some seconds: a
    // busy machine's delayed work is done in one of them.
    let mut spent = Duration::MAX;
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(200));
        let begun = core_time();
        std::thread::sleep(Duration::from_secs(1));
        spent = spent.min(Duration::from_nanos(core_time() - begun));
        if spent < Duration::from_millis(50) {
            break;
        }
    }
    assert!(spent < Duration::from_millis(50), "{spent:?} of processor time in an idle second");

    for lba in 0..200 {
        assert_eq!(busy.read(0, &read10(lba, 8), 4096).0, 0);
    }
    for client in idle.iter_mut().step_by(97) {
        client.settle(0);
        assert_eq!(client.read(0, &read10(7, 8), 4096).0, 0);
    }
    println!("{} sessions, {each} bytes each, {spent:?} in an idle second", idle.len());
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}
