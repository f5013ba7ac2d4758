//! The live view as keys and statuses make it, drawn on screens of all sizes.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use serde_json::{Value, json};

use super::draw::draw;
use super::items::Tab;
use super::paint::Paint;
use super::state::{Flow, Key, State};
use crate::control::slow::{Call, Command, Slow, What};
use crate::control::status::{Io, Status};

const PLAIN: Paint = Paint { colours: false };

/// What a daemon tells `seconds` after its start, if unit N reads and session N writes `rates[N]` a
/// second.
fn status(seconds: f64, rates: &[u64], files: bool) -> Status {
    let count = |rate: u64| (rate as f64 * seconds) as u64;
    let reads = |rate: u64| Io {
        reads: count(rate),
        read_bytes: count(rate) * 4096,
        timed: count(rate) / 8,
        time_ns: count(rate) / 8 * 250_000,
        ..Io::default()
    };
    let writes = |rate: u64| Io { writes: count(rate), written_bytes: count(rate) * 512, ..Io::default() };
    let unit = |(lun, rate): (usize, &u64)| {
        json!({
            "lun": lun, "path": format!("/srv/{lun}.img"), "size": 1 << 30, "block": 512, "read_only": false,
            "thin": true, "write_cache": true, "engine": null, "serial": "1", "io": reads(*rate),
        })
    };
    let session = |(number, rate): (usize, &u64)| {
        json!({
            "tsih": number + 1, "initiator": format!("iqn.2026-01.org.example:host{number}"), "isid": "400001370000",
            "target": "iqn.2026-01.org.example:disks", "group": 1, "error_recovery_level": 0, "max_connections": 1,
            "age_s": seconds, "io": writes(*rate),
            "connections": [{ "cid": 0, "peer": format!("192.0.2.{number}:4711"), "transport": "iscsi",
                "header_digest": true, "data_digest": false, "core": 0, "age_s": seconds }],
        })
    };
    let stage = |name: &str, seconds: f64| {
        let mut buckets = [0; iscsi_server::STAGE_BUCKETS];
        buckets[3] = count(8);
        json!({ "operation": "read", "stage": name, "seconds": seconds * 8.0, "buckets": buckets })
    };
    let core = json!({
        "connections": 2, "pool_in_use": 65536, "pool_high_water": 65536, "pool_mapped": 1 << 20,
        "pool_limit": 1 << 24, "busy_s": seconds / 4.0, "tcp": { "received": count(1_000_000), "landed": 0 },
    });
    let all = rates.iter().enumerate();
    let nfs = match files {
        true => json!({
            "listen": [], "exports": [{ "name": "/data", "path": "/srv/data", "calls": count(30),
                "read_bytes": count(5000), "written_bytes": 0, "errors": 0 }],
            "clients": [{ "peer": "192.0.2.77:901", "core": 0, "age_s": seconds, "calls": count(30) }],
        }),
        false => json!({ "listen": [], "exports": [], "clients": [] }),
    };
    let told: Value = json!({
        "version": "0.1.0", "pid": 4711, "uptime_s": seconds, "portals": [], "complete": true,
        "targets": [{
            "iqn": "iqn.2026-01.org.example:disks", "alias": "", "groups": [],
            "units": all.clone().map(unit).collect::<Vec<_>>(),
            "work": { "outcomes": [], "limit_waits": 0, "limit_wait_s": 0.0,
                "stages": [stage("order", 0.0), stage("medium", seconds * 0.000_200), stage("send", seconds * 0.03)] },
        }],
        "sessions": all.map(session).collect::<Vec<_>>(),
        "cores": [core], "nfs": nfs,
    });
    serde_json::from_value(told).unwrap()
}

/// A view that has seen two statuses.
fn view(rates: &[u64]) -> State {
    let mut state = State::new(status(1.0, rates, true));
    state.status(status(3.0, rates, true));
    state
}

fn press(state: &mut State, keys: &str) {
    for key in keys.chars() {
        assert_eq!(state.key(Key::Char(key)), Flow::On, "{key}");
    }
}

/// The screen after drawing, a string a line.
fn screen(state: &mut State, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, PLAIN)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

/// The last parts of the names on the screen, from the top.
fn order(state: &mut State) -> Vec<String> {
    state.fit(100);
    state.on_screen().map(|(item, _)| item.name.rsplit([':', '/']).next().unwrap().to_owned()).collect()
}

fn chosen(state: &State) -> String {
    state.chosen().unwrap().name.rsplit('/').next().unwrap().to_owned()
}

#[test]
fn the_busiest_come_first_and_any_number_sorts() {
    let mut state = view(&[10, 300, 20]);
    assert_eq!(order(&mut state), ["1", "2", "0"]);
    press(&mut state, "v");
    assert_eq!(order(&mut state), ["0", "2", "1"]);
    press(&mut state, "n");
    assert_eq!(order(&mut state), ["0", "1", "2"]);
    press(&mut state, "v");
    assert_eq!(order(&mut state), ["2", "1", "0"]);
    for tab in Tab::ALL {
        press(&mut state, &(tab as u8 + 1).to_string());
        assert_eq!(state.tab(), tab);
        for (at, column) in tab.columns().enumerate() {
            press(&mut state, &column.key.to_string());
            assert_eq!(state.order().by, Some(at), "{column:?}");
        }
    }
}

/// A key of a column must not be one that does something else.
#[test]
fn keys_of_columns_are_distinct() {
    for tab in Tab::ALL {
        let mut keys: Vec<char> = tab.columns().map(|column| column.key).collect();
        keys.extend("qpvn/12345".chars());
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count, "{tab:?}: {keys:?}");
    }
}

#[test]
fn rows_without_the_number_come_last_either_way() {
    let mut state = view(&[0, 30, 20]);
    press(&mut state, "m");
    assert_eq!(order(&mut state), ["1", "2", "0"]);
    press(&mut state, "v");
    assert_eq!(order(&mut state)[2], "0");
}

#[test]
fn a_filter_finds_names_initiators_and_targets() {
    let mut state = view(&[10, 300, 20]);
    press(&mut state, "2/HOST1q");
    assert_eq!(order(&mut state), [""; 0]);
    state.key(Key::Backspace);
    assert_eq!(order(&mut state).len(), 1);
    state.key(Key::Enter);
    assert_eq!(state.key(Key::Char('q')), Flow::Quit, "the filter is not typed any more");
    // The initiator of a unit's target, on the view of units.
    press(&mut state, "1");
    assert_eq!(order(&mut state).len(), 3);
    state.key(Key::Esc);
    press(&mut state, "/disks/2");
    assert_eq!(order(&mut state), ["2"]);
    state.key(Key::Esc);
    assert_eq!(order(&mut state).len(), 3);
}

#[test]
fn the_chosen_row_stays_chosen_wherever_it_goes() {
    let mut state = view(&[10, 300, 20]);
    assert_eq!(chosen(&state), "1");
    state.key(Key::Down);
    assert_eq!(chosen(&state), "2");
    press(&mut state, "v");
    assert_eq!(chosen(&state), "2");
    press(&mut state, "n");
    assert_eq!((chosen(&state), state.place()), ("2".into(), (3, 3)));
    // At the top the first row is chosen, whichever it is.
    state.key(Key::Home);
    press(&mut state, "a");
    assert_eq!(chosen(&state), "1");
    state.key(Key::End);
    assert_eq!(chosen(&state), "0");
    state.key(Key::Down);
    assert_eq!(chosen(&state), "0");
    // Its unit goes: another one is chosen at its place.
    press(&mut state, "n");
    state.key(Key::End);
    assert_eq!(chosen(&state), "2");
    state.status(status(4.0, &[10, 300], true));
    assert_eq!((chosen(&state), state.place()), ("1".into(), (2, 2)));
}

#[test]
fn pages_scroll_with_the_chosen_row() {
    let mut state = view(&(0..100).collect::<Vec<u64>>());
    press(&mut state, "n");
    screen(&mut state, 80, 24);
    let shown = |state: &State| state.on_screen().count();
    let page = shown(&state);
    assert!((8..20).contains(&page), "{page}");
    for (key, place) in [
        (Key::PageDown, page + 1),
        (Key::PageDown, 2 * page + 1),
        (Key::Up, 2 * page),
        (Key::PageUp, page),
        (Key::End, 100),
        (Key::PageDown, 100),
        (Key::Home, 1),
    ] {
        state.key(key);
        assert_eq!(state.place(), (place, 100), "{key:?}");
        assert_eq!(state.on_screen().filter(|(_, chosen)| *chosen).count(), 1, "{key:?}");
        assert_eq!(shown(&state), page, "{key:?}");
    }
}

#[test]
fn a_pause_holds_the_numbers_and_leaves_no_jump() {
    let mut state = view(&[100]);
    press(&mut state, "p");
    state.status(status(10.0, &[100], true));
    state.status(status(11.0, &[100], true));
    assert!(state.is_paused() && screen(&mut state, 80, 24)[0].contains("PAUSED"));
    assert_eq!(state.shown().status.uptime_s, 3.0);
    press(&mut state, "p");
    state.status(status(12.0, &[100], true));
    assert_eq!(state.shown().top.as_ref().unwrap().seconds, 1.0);
    assert_eq!(state.history().latest(Tab::Units, "iqn.2026-01.org.example:disks/0", 0).count(), 2);
}

#[test]
fn another_daemon_and_missing_counts_are_not_compared() {
    let mut state = view(&[100]);
    assert_eq!(state.chosen().unwrap().values[0], Some(100.0));
    let other = Status { pid: 4712, ..status(4.0, &[100], true) };
    state.status(other.clone());
    assert_eq!(state.chosen().unwrap().values[0], None);
    state.status(Status { uptime_s: 5.0, ..other.clone() });
    assert!(state.shown().top.is_some());
    let incomplete = Status { uptime_s: 6.0, complete: false, cores: vec![None], ..other };
    state.status(incomplete.clone());
    assert!(state.shown().top.is_none());
    assert!(state.trouble().unwrap().contains("a core did not answer"), "{:?}", state.trouble());
    // As long as the same core is silent, the others can be compared.
    state.status(Status { uptime_s: 7.0, ..incomplete });
    assert!(state.shown().top.is_some());
}

#[test]
fn a_daemon_that_goes_and_comes_back_is_told() {
    let mut state = view(&[100]);
    assert_eq!(state.trouble(), None);
    assert!(state.silent(4) && !state.silent(4));
    assert!(screen(&mut state, 80, 24)[1].contains("not answered for 4 s"));
    state.lost("the daemon went away: unexpected end of file".into());
    let lines = screen(&mut state, 80, 24);
    assert!(lines[1].starts_with("! waiting for a daemon: the daemon went away"), "{lines:#?}");
    state.status(status(4.0, &[100], true));
    assert_eq!(state.trouble(), None);
}

#[test]
fn views_are_those_that_the_daemon_has() {
    let disks = State::new(status(1.0, &[1], false));
    assert!(disks.tabs().eq([Tab::Units, Tab::Sessions, Tab::Cores]));
    let files = Status { targets: Vec::new(), ..status(1.0, &[], true) };
    let mut state = State::new(files);
    assert!(state.tabs().eq([Tab::Cores, Tab::Exports, Tab::Clients]));
    assert_eq!(state.tab(), Tab::Exports);
    state.key(Key::BackTab);
    assert_eq!(state.tab(), Tab::Cores);
    state.key(Key::BackTab);
    assert_eq!(state.tab(), Tab::Clients);
    press(&mut state, "1");
    assert_eq!(state.tab(), Tab::Clients);
    // The exports go: so does their view.
    state.status(status(2.0, &[1], false));
    assert_eq!(state.tab(), Tab::Units);
}

#[test]
fn q_and_ctrl_c_leave_from_everywhere() {
    let mut state = view(&[1]);
    for keys in ["", "3", "2"] {
        press(&mut state, keys);
        assert_eq!(state.key(Key::Char('q')), Flow::Quit);
        state.key(Key::Enter);
        assert_eq!(state.key(Key::Char('q')), Flow::Quit);
    }
    press(&mut state, "1/");
    assert_eq!(state.key(Key::Interrupt), Flow::Interrupt);
}

#[test]
fn the_smallest_screen_has_every_part() {
    let mut state = view(&[10, 12_345, 20]);
    let lines = screen(&mut state, 80, 24);
    assert!(lines[0].starts_with("stag 0.1.0, process 4711, up 3.0 s"), "{lines:#?}");
    assert!(
        lines[1].contains("12.4k commands/s, 30 calls/s") && lines[1].contains("cores 25%"),
        "{lines:#?}"
    );
    assert!(lines[2].contains("Units 3") && lines[2].contains("NFS clients 1"), "{lines:#?}");
    let headings: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!(
        headings,
        ["unit", "▼all", "reads", "writes", "read", "B", "write", "B", "bad", "mean", "p99"],
        "{lines:#?}"
    );
    let busiest: Vec<&str> = lines[4].split_whitespace().collect();
    assert_eq!(busiest, ["…org.example:disks/1", "12.3k", "12.3k", "0", "50.6M", "0", "0", "250µs", "-"]);
    assert!(lines[18].starts_with("── 1 of 3  iqn.2026-01.org.example:disks/1 ──"), "{lines:#?}");
    assert!(lines[19].starts_with("commands/s       12.3k") && lines[19].contains('█'), "{lines:#?}");
    assert!(lines[21].starts_with("mean time        250µs"), "{lines:#?}");
    assert!(lines[22].starts_with("sort: a all r reads") && lines[22].ends_with("n name"), "{lines:#?}");
    assert!(lines[23].contains("v reverse") && lines[23].ends_with("q quit"), "{lines:#?}");
    for line in &lines {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_wide_screen_has_more_columns() {
    let mut state = view(&[10, 300, 20]);
    press(&mut state, "2");
    let lines = screen(&mut state, 200, 50);
    for word in ["session", "others", "conns", "age"] {
        assert!(lines[3].contains(word), "{word}: {lines:#?}");
    }
    assert!(lines[4].starts_with("iqn.2026-01.org.example:host1 (2)"), "{lines:#?}");
    assert!(lines[49].contains("q quit"));
}

#[test]
fn details_tell_stages_initiators_and_slow_commands() {
    let mut state = view(&[10, 300, 20]);
    assert!(!state.wants_slow());
    state.key(Key::Enter);
    assert!(state.wants_slow());
    let slow = |lun, session, ended_ago_s| Slow {
        what: What::Iscsi(Command {
            initiator: "iqn.2026-01.org.example:host1".into(),
            target: "iqn.2026-01.org.example:disks".into(),
            session,
            lun,
            itt: 1,
            operation: "write".into(),
            cdb: "2a00".into(),
            data_s: 1.2,
        }),
        state: "data".into(),
        ended_ago_s,
        took_s: 1.25,
        order_s: 0.0,
        medium_s: 0.05,
        send_s: None,
    };
    state.slow(Ok(vec![slow(1, 2, None), slow(1, 3, Some(7.0)), slow(0, 2, Some(8.0))]));
    let text = screen(&mut state, 100, 60).join("\n");
    for part in [
        "unit iqn.2026-01.org.example:disks/1",
        "disk /srv/1.img, 1G, blocks of 512 B, thin, write cache",
        "waits for its turn (order)",
        "200µs",
        "30.0ms",
        "Initiators of its target: 3",
        "300/s  iqn.2026-01.org.example:host1 (2) from 192.0.2.1:4711",
        "write, STILL IN DATA, from …2026-01.org.example:host1",
        "write, 7.0 s ago",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("8.0 s ago"), "another unit's:\n{text}");
    state.key(Key::Esc);
    assert!(!state.wants_slow() && state.details().is_none());
    press(&mut state, "2");
    state.key(Key::Enter);
    state.slow(Err("a core does not answer".into()));
    let text = screen(&mut state, 100, 60).join("\n");
    for part in [
        "session iqn.2026-01.org.example:host1 (2)",
        "to iqn.2026-01.org.example:disks, portal group 1",
        "0 from 192.0.2.1:4711, iscsi, core 0, digests of headers, for 3.0 s",
        "not known: a core does not answer",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    // It ends.
    state.status(status(4.0, &[10], true));
    let text = screen(&mut state, 100, 60).join("\n");
    assert!(text.contains("There is no session iqn.2026-01.org.example:host1 (2) any more"), "{text}");
}

#[test]
fn details_of_exports_and_clients_tell_slow_calls() {
    let mut state = view(&[10]);
    let slow = |client: &str, export: Option<&str>, operation: Option<&str>| Slow {
        what: What::Nfs(Call {
            client: client.into(),
            export: export.map(str::to_owned),
            version: 4,
            operations: vec!["sequence".into(), "putfh".into(), "write".into()],
            operation: operation.map(str::to_owned),
            xid: 1,
        }),
        state: if operation.is_some() { "medium" } else { "ended" }.into(),
        ended_ago_s: operation.is_none().then_some(7.0),
        took_s: 1.25,
        order_s: 0.0,
        medium_s: 1.2,
        send_s: operation.is_none().then_some(0.05),
    };
    let all = vec![
        slow("192.0.2.77:901", Some("/data"), Some("write")),
        slow("192.0.2.77:901", None, None),
        slow("192.0.2.78:902", Some("/data"), None),
    ];
    let at_work = "sequence putfh write, STILL IN MEDIUM, IN WRITE";
    for (view, parts, absent) in [
        ("4", [at_work, ", from 192.0.2.77:901", ", from 192.0.2.78:902"], "no export"),
        ("5", [at_work, ", of /data", "7.0 s ago, of no export"], "192.0.2.78"),
    ] {
        press(&mut state, view);
        state.key(Key::Enter);
        state.slow(Ok(all.clone()));
        let text = screen(&mut state, 120, 60).join("\n");
        for part in parts {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains(absent), "{absent} is in\n{text}");
        state.key(Key::Esc);
    }
}

#[test]
fn details_scroll_to_their_end_and_no_further() {
    let mut state = view(&(0..60).collect::<Vec<u64>>());
    state.key(Key::Enter);
    let first = screen(&mut state, 80, 24);
    assert!(first[3].contains("more lines"), "{first:#?}");
    state.key(Key::End);
    let last = screen(&mut state, 80, 24);
    assert!(!last[3].contains("more lines") && last.join("").contains("not told yet"), "{last:#?}");
    state.key(Key::Up);
    assert!(screen(&mut state, 80, 24)[3].contains("1 more line"));
    state.key(Key::Home);
    assert_eq!(screen(&mut state, 80, 24), first);
}

#[test]
fn a_small_screen_says_what_it_needs() {
    let mut state = view(&[10, 300]);
    let lines = screen(&mut state, 79, 24);
    assert!(lines[0].starts_with("stag top needs 80 columns and 24 lines; this terminal has 79 and 24."));
    assert!(screen(&mut state, 80, 23)[0].starts_with("stag top needs"));
}

#[test]
fn no_size_of_a_screen_and_no_text_of_a_peer_panics() {
    let sizes =
        [(0, 0), (1, 1), (2, 80), (80, 1), (79, 23), (80, 24), (81, 25), (120, 24), (80, 100), (300, 90)];
    let mut told = status(1.0, &[1 << 40, 0], true);
    for session in &mut told.sessions {
        session.initiator = "\x1b[2J漢字\u{202e}\0é".repeat(40);
    }
    let mut later = told.clone();
    later.uptime_s = 2.0;
    later.sessions[0].io.reads = u64::MAX;
    let mut state = State::new(told);
    for turn in 0..2 {
        for tab in Tab::ALL {
            press(&mut state, &(tab as u8 + 1).to_string());
            for key in [None, Some(Key::Enter), Some(Key::End)] {
                key.map(|key| state.key(key));
                for (width, height) in sizes {
                    let lines = screen(&mut state, width, height);
                    assert!(lines.iter().all(|line| !line.contains('\x1b')), "{lines:#?}");
                }
            }
        }
        if turn == 0 {
            state.status(later.clone());
        }
    }
}

#[test]
fn no_colours_where_none_are_wanted() {
    let mut state = view(&[10, 300]);
    state.lost("gone".into());
    for colours in [false, true] {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &mut state, Paint { colours })).unwrap();
        let cells = &terminal.backend().buffer().content;
        let coloured = cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        assert_eq!(coloured, colours);
    }
}
