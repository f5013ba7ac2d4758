//! What the live view of `stag top` tells of one row: what it is, its numbers, the stages of its
//! commands, who is connected, its slow commands or calls.

use ratatui::text::{Line, Span};

use super::items::{Column, Item, Tab};
use super::paint::Paint;
use super::rates::{Spent, session_name, unit_name};
use super::shown::{Unit, shortened};
use super::state::{Details, State};
use crate::control::slow::What;
use crate::control::status::{SessionStatus, UnitStatus};
use crate::shown::duration;

/// Sessions of a target that are listed at most: the busiest.
const SESSIONS: usize = 20;
/// Slow commands that are listed at most.
const SLOW: usize = 64;
/// Columns of its operation at most.
const OPERATION: u16 = 32;

/// Takes the mean time of a stage, µs.
type StageTime = fn(&Spent) -> f64;

/// Where the time of a command goes, in the order in which it passes, with the names that
/// `stag slow` has for it.
const STAGES: [(&str, StageTime); 4] = [
    ("waits for its turn (order)", |spent| spent.order_us),
    ("data from the initiator (data)", |spent| spent.data_us),
    ("medium (medium)", |spent| spent.medium_us),
    ("status until acknowledged (send)", |spent| spent.send_us),
];

struct Page<'a> {
    state: &'a State,
    paint: Paint,
    lines: Vec<Line<'static>>,
}

/// The lines of `details`, for a screen of `width` columns.
pub fn lines(state: &State, details: &Details, width: u16, paint: Paint) -> Vec<Line<'static>> {
    let mut page = Page { state, paint, lines: Vec::new() };
    let Some(item) = state.item(details.tab, &details.name) else {
        let gone = format!("There is no {} {} any more. Esc goes back.", details.tab.one(), details.name);
        return vec![Line::styled(gone, paint.trouble())];
    };
    match details.tab {
        Tab::Units => page.unit(item, width),
        Tab::Sessions => page.session(item, width),
        Tab::Exports => {
            let exports = &state.shown().status.nfs.exports;
            if let Some(export) = exports.iter().find(|export| export.name == item.name) {
                page.say(format!("{}, health {}", export.path, export.health.state));
            }
            page.numbers(details.tab, item);
            page.slow(width, |one| match one {
                What::Nfs(call) if call.export.as_deref() == Some(&item.name) => {
                    Some((call.called(), "from", call.client.clone()))
                }
                _ => None,
            });
        }
        Tab::Clients => {
            page.numbers(details.tab, item);
            page.slow(width, |one| match one {
                What::Nfs(call) if call.client == item.name => {
                    Some((call.called(), "of", call.export.clone().unwrap_or_else(|| "no export".to_owned())))
                }
                _ => None,
            });
        }
        Tab::Cores => page.numbers(details.tab, item),
    }
    page.lines
}

impl Page<'_> {
    fn say(&mut self, text: String) {
        self.lines.push(Line::raw(text));
    }

    fn heading(&mut self, text: String) {
        self.lines.push(Line::default());
        self.lines.push(Line::styled(text, self.paint.heading()));
    }

    /// All numbers of the row, two in a line.
    fn numbers(&mut self, tab: Tab, item: &Item) {
        self.heading("Numbers".into());
        let known: Vec<_> = tab.columns().zip(&item.values).collect();
        for pair in known.chunks(2) {
            let cell = |(column, value): &(&Column, &Option<f64>)| {
                format!("{:>10} {:<28} ", column.unit.show_known(**value), column.long)
            };
            self.say(pair.iter().map(cell).collect());
        }
    }

    fn unit(&mut self, item: &Item, width: u16) {
        let status = self.state.shown().status.clone();
        let all =
            status.targets.iter().flat_map(|target| target.units.iter().map(move |unit| (target, unit)));
        let found = all.into_iter().find(|(target, unit)| unit_name(&target.iqn, unit.lun) == item.name);
        let Some((target, unit)) = found else { return };
        self.what_a_unit_is(unit);
        self.stages(&target.iqn);
        self.numbers(Tab::Units, item);
        let sessions: Vec<&SessionStatus> =
            status.sessions.iter().filter(|one| one.target.as_ref() == Some(&target.iqn)).collect();
        self.initiators(&sessions, width);
        self.slow(width, |one| match one {
            What::Iscsi(command) if command.target == target.iqn && command.lun == unit.lun => {
                Some((command.operation.clone(), "from", command.initiator.clone()))
            }
            _ => None,
        });
    }

    fn what_a_unit_is(&mut self, unit: &UnitStatus) {
        let flags = [
            (unit.read_only, "read-only"),
            (unit.thin, "thin"),
            (unit.write_cache, "write cache"),
            (unit.health.refuses_flushes, "REFUSES FLUSHES"),
        ];
        let flags: String = flags.iter().filter(|(is, _)| *is).map(|(_, name)| format!(", {name}")).collect();
        let engine = unit.engine.as_ref().map_or_else(String::new, |engine| format!(", engine {engine}"));
        let size = Unit::Size.show(unit.size as f64);
        self.say(format!("{} {}, {size}, blocks of {} B{engine}{flags}", unit.kind, unit.path, unit.block));
        let health = format!("health {}", unit.health.state);
        let error = unit.health.last_error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        let style = if unit.health.state == "ok" { Default::default() } else { self.paint.trouble() };
        self.lines.push(Line::styled(health + &error, style));
    }

    /// The sessions of a unit's target.
    fn initiators(&mut self, sessions: &[&SessionStatus], width: u16) {
        self.heading(format!("Initiators of its target: {}", sessions.len()));
        let mut rows: Vec<(&Item, &&SessionStatus)> = sessions
            .iter()
            .filter_map(|session| Some((self.state.item(Tab::Sessions, &session_name(session))?, session)))
            .collect();
        let all = |item: &Item| item.values.first().copied().flatten().unwrap_or(-1.0);
        rows.sort_by(|(a, _), (b, _)| all(b).total_cmp(&all(a)).then_with(|| a.name.cmp(&b.name)));
        for (item, session) in rows.iter().take(SESSIONS) {
            let peers: Vec<&str> = session.connections.iter().map(|one| one.peer.as_str()).collect();
            let rate = Unit::Rate.show_known(item.values.first().copied().flatten());
            let text = format!("{rate:>10}/s  {} from {}", item.name, peers.join(" "));
            self.say(cut(&text, width));
        }
        if rows.len() > SESSIONS {
            self.say(format!("            and {} more", rows.len() - SESSIONS));
        }
    }

    fn session(&mut self, item: &Item, width: u16) {
        let status = self.state.shown().status.clone();
        let Some(session) = status.sessions.iter().find(|one| session_name(one) == item.name) else { return };
        let target = session.target.as_deref().unwrap_or("no target: discovery");
        self.say(format!("to {target}, portal group {}", session.group));
        let user = session.user.as_ref().map_or_else(String::new, |user| format!(", CHAP user {user}"));
        self.say(format!(
            "session {}, ISID {}{user}, for {}, ErrorRecoveryLevel {}",
            session.tsih,
            session.isid,
            duration(session.age_s),
            session.error_recovery_level
        ));
        self.heading(format!(
            "Connections: {} of at most {}",
            session.connections.len(),
            session.max_connections
        ));
        for one in &session.connections {
            let digests = match (one.header_digest, one.data_digest) {
                (true, true) => "digests of headers and data",
                (true, false) => "digests of headers",
                (false, true) => "digests of data",
                (false, false) => "no digests",
            };
            let age = duration(one.age_s);
            let text = format!(
                "  {} from {}, {}, core {}, {digests}, for {age}",
                one.cid, one.peer, one.transport, one.core
            );
            self.say(cut(&text, width));
        }
        if let Some(target) = &session.target {
            self.stages(target);
        }
        self.numbers(Tab::Sessions, item);
        let recovered = session.recoveries;
        if recovered != Default::default() {
            self.heading("Recoveries".into());
            self.say(format!(
                "  {} digest errors, {} SNACKs, {} PDUs sent again, {} tasks reassigned",
                recovered.digest_errors, recovered.snacks, recovered.resent_pdus, recovered.reassigned_tasks
            ));
        }
        let tsih = session.tsih;
        self.slow(width, |one| match one {
            What::Iscsi(command) if command.session == tsih => {
                Some((command.operation.clone(), "of", unit_name(&command.target, command.lun)))
            }
            _ => None,
        });
    }

    /// Where the time of a target's commands goes.
    fn stages(&mut self, target: &str) {
        self.heading("Stages of its target's commands: mean time, one in eight is timed".into());
        let top = self.state.shown().top.clone();
        let all: Vec<&Spent> =
            top.iter().flat_map(|top| &top.stages).filter(|spent| spent.target == target).collect();
        let operations = ["read", "write", "other"];
        self.say(format!("{:<34}{:>10}{:>10}{:>10}", "", operations[0], operations[1], operations[2]));
        for (name, time) in STAGES {
            let cells: String = operations
                .iter()
                .map(|operation| all.iter().find(|spent| spent.operation == *operation))
                .map(|spent| format!("{:>10}", Unit::Micros.show_known(spent.map(|spent| time(spent)))))
                .collect();
            self.say(format!("  {name:<32}{cells}"));
        }
    }

    /// Slow commands or calls of the row. `of` tells what one of them was, and of or from whom;
    /// `None` if it is not of this row.
    fn slow(&mut self, width: u16, of: impl Fn(&What) -> Option<(String, &'static str, String)>) {
        self.heading("The slowest (10 ms and more in the last 15 minutes)".into());
        let slow = match self.state.slow_commands() {
            None => return self.say("  not told yet".into()),
            Some(Ok(slow)) => {
                let all = slow.iter().filter_map(|one| Some((one, of(&one.what)?)));
                all.take(SLOW).collect::<Vec<_>>()
            }
            Some(Err(why)) => {
                let text = format!("  not known: {why}");
                self.lines.push(Line::styled(text, self.paint.trouble()));
                return;
            }
        };
        if slow.is_empty() {
            return self.say("  none".into());
        }
        self.say(format!("{:>9} {:>8} {:>8} {:>8} {:>8}", "all", "order", "data", "medium", "send"));
        for (one, (operation, word, other_end)) in slow {
            let operation = cut(&operation, OPERATION);
            let time = |seconds: f64| Unit::Micros.show(seconds * 1e6);
            let known = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), time);
            let start = format!(
                "{:>9} {:>8} {:>8} {:>8} {:>8}  {operation}, ",
                time(one.took_s),
                time(one.order_s),
                known(one.data_s()),
                time(one.medium_s),
                known(one.send_s)
            );
            let (when, style) = match one.ended_ago_s {
                Some(_) => (one.when(), Default::default()),
                None => (one.when().to_uppercase(), self.paint.trouble()),
            };
            let taken = start.chars().count() + when.chars().count() + word.len() + 3;
            let name = shortened(&other_end, usize::from(width).saturating_sub(taken));
            let who = format!(", {word} {name}");
            self.lines.push(Line::from(vec![Span::raw(start), Span::styled(when, style), Span::raw(who)]));
        }
    }
}

/// At most `width` characters of a line.
fn cut(text: &str, width: u16) -> String {
    let width = usize::from(width);
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(std::iter::once('…')).collect()
}
