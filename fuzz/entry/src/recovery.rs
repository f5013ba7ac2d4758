//! Two connections of a session at ErrorRecoveryLevel 2, between an initiator that loses, repeats
//! and requests anything again, and a driver that may reassign tasks from the first to the second.
//! Whatever happens, the count of kept data is zero in the end, and every place in the command
//! window is free again.

use crate::input::{Input, Seed};
use iscsi::pdu::{
    Bhs, DataOut, FINAL, LogoutResult, Lun, NopOut, PduRef, RESERVED_TAG, ScsiCommand, SnackRequest,
    SnackType, TaskAttribute, TaskManagementResult,
};
use iscsi::stream;
use iscsi::target::inbound::WriteLimits;
use iscsi::target::{Abort, Completion, Config, Connection, Event, SharedWindow, TaskKey, Window, recovery};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEPTH: u32 = 8;
const STEPS: usize = 400;
const KEEP: usize = 16 << 10;
/// Most bytes that one step of a unit sends.
const PIECE: usize = 5000;

struct Harness {
    window: Arc<SharedWindow>,
    connections: [Connection<Vec<u8>>; 2],
    /// The first is gone: its tasks may be moved.
    gone: bool,
    dead: [bool; 2],
    sent: Vec<u8>,
    /// Tasks that units are at work on, and where.
    running: Vec<(usize, TaskKey)>,
    /// Target Transfer Tags that came.
    tags: Vec<u32>,
    now: Instant,
    first: u32,
}

fn connection(cid: u16, first: u32, window: &Arc<SharedWindow>, now: Instant) -> Connection<Vec<u8>> {
    let config = Config {
        cid,
        window: Window::Shared(window.clone()),
        stat_sn: first,
        queue_depth: DEPTH,
        write: WriteLimits {
            max_burst: 2048,
            first_burst: 1024,
            max_r2t: 2,
            initial_r2t: false,
            immediate: true,
        },
        peer_max_data_segment: 700,
        header_digest: false,
        data_digest: false,
        discovery: false,
        rdma: false,
        nop_interval: Duration::from_secs(10),
        nop_timeout: Duration::from_secs(5),
        recovery: Some(recovery::Limits {
            level: 2,
            keep_bytes: KEEP,
            keep_statuses: 12,
            data_timeout: Duration::from_secs(5),
        }),
    };
    Connection::new(config, now)
}

impl Harness {
    fn new(first: u32) -> Self {
        let now = Instant::now();
        let window = Arc::new(SharedWindow::new(first, DEPTH));
        let connections = [connection(1, first, &window, now), connection(2, first, &window, now)];
        Self {
            window,
            connections,
            gone: false,
            dead: [false; 2],
            sent: Vec::new(),
            running: Vec::new(),
            tags: vec![RESERVED_TAG],
            now,
            first,
        }
    }

    fn pdu(&mut self, input: &mut Input<'_>) -> (Bhs, Vec<u8>) {
        let (kind, tag, flags) = (input.u8(), input.u8(), input.u8());
        let (one, two) = (u32::from(input.u8()), u32::from(input.u8()));
        let itt = u32::from(tag % 12);
        let exp_stat_sn = self.first.wrapping_add(u32::from(input.u8() % 32));
        let ttt = self.tags.iter().rev().nth(usize::from(input.u8()) % self.tags.len()).copied();
        let ttt = ttt.unwrap_or(RESERVED_TAG);
        let cmd_sn = self.window.numbers().0.wrapping_add(two % 3);
        match kind % 6 {
            0 | 1 => {
                let mut command = ScsiCommand::new(itt, Lun::default(), TaskAttribute::Simple, &[0; 6]);
                command.flags = flags & (FINAL | 0x60);
                command.edtl.set(one * 64);
                command.cmd_sn.set(cmd_sn);
                command.exp_stat_sn.set(exp_stat_sn);
                let mut bhs = Bhs::from(command);
                bhs.set_immediate(flags & 7 == 7);
                let len = if flags & 0x20 != 0 { usize::from(flags & 15) * 32 } else { 0 };
                (bhs, vec![1; len.min(one as usize * 64)])
            }
            2 | 3 => {
                let mut out = DataOut::new(itt, ttt, Lun::default(), two % 4, one * 64);
                out.set_final(flags & FINAL != 0);
                out.exp_stat_sn.set(exp_stat_sn);
                (out.into(), vec![2; usize::from(flags & 31) * 64])
            }
            4 => {
                let kind = SnackType::from_code(flags & 3).unwrap_or(SnackType::Status);
                let named = if flags & 4 != 0 { itt } else { RESERVED_TAG };
                let first = if flags & 8 != 0 { self.first.wrapping_add(one % 32) } else { one % 8 };
                let mut snack = SnackRequest::new(kind, named, ttt, first, two % 5);
                snack.exp_stat_sn.set(exp_stat_sn);
                (snack.into(), Vec::new())
            }
            _ => {
                let mut nop =
                    if flags & 1 == 0 { NopOut::ping(itt) } else { NopOut::answer(ttt, Lun::default()) };
                nop.cmd_sn.set(cmd_sn);
                nop.exp_stat_sn.set(exp_stat_sn);
                (nop.into(), vec![3; usize::from(flags & 0xf0)])
            }
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let step = input.u8();
        let at = usize::from(step >> 7 != 0 || self.gone);
        let nth = usize::from(input.u8());
        let len = usize::from(input.u16());
        let task = self.running.get(nth % self.running.len().max(1)).copied();
        let (now, sent) = (self.now, &mut self.sent);
        match (step % 16, task) {
            (0..=5, _) if !self.dead[at] => {
                let (bhs, data) = self.pdu(input);
                match self.connections[at].handle(&bhs, &[], data, self.now, &mut self.sent) {
                    Ok(event) => self.event(at, event),
                    Err(_) => self.dead[at] = true,
                }
            }
            (6, _) if !self.dead[at] => {
                let (bhs, _) = self.pdu(input);
                self.dead[at] = self.connections[at].damaged(&bhs, self.now, &mut self.sent).is_err();
            }
            (7 | 8, Some((at, key))) => {
                let connection = &mut self.connections[at];
                if connection.may_put(key, now, sent) {
                    let before = connection.kept_bytes();
                    connection.put_data(key, vec![4; len % PIECE], sent);
                    assert!(connection.kept_bytes() <= before.max(KEEP) + 2 * PIECE);
                }
            }
            (9, Some((at, key))) => {
                self.connections[at].want_data(key, len, sent);
            }
            (10, Some((at, key))) => {
                let available = self.connections[at].data_available(key).min(len);
                self.connections[at].take_data(key, available, drop);
            }
            (11, Some((at, key))) => {
                self.running.retain(|other| *other != (at, key));
                let sense = (len & 1 != 0).then(|| vec![0x70; 18].into_boxed_slice());
                let completion = Completion { status: (len & 2) as u8, sense, ..Completion::default() };
                self.connections[at].finish(key, completion, sent);
            }
            (12, Some((at, key))) if len & 7 == 0 => {
                self.connections[at].abort(key);
            }
            (13, _) => {
                self.now += Duration::from_millis(len as u64);
                self.connections[at].recover(self.now, &mut self.sent);
            }
            (14, _) if len & 7 == 0 => self.gone = true,
            (15, _) if self.gone && !self.dead[1] => self.reassign(nth as u32 % 12, u32::from(step >> 4)),
            _ => {}
        }
        self.look();
        self.held();
    }

    fn reassign(&mut self, itt: u32, exp_data_sn: u32) {
        let [from, to] = &mut self.connections;
        if to.allegiant(itt).is_some() || from.allegiant(itt).is_none() {
            return;
        }
        let Some(released) = from.release(itt, exp_data_sn) else { return };
        assert!(from.find(itt).is_none());
        self.running.retain(|other| *other != (0, released.key));
        let held = released.held;
        let came = if held.is_some() { released.data_out } else { Vec::new() };
        let key = to.adopt(&released.task, came).expect("there is room for all of the window's");
        if let Some(command) = held {
            to.hold(iscsi::target::ScsiCommand { task: key, ..command });
            return;
        }
        for piece in released.data_in {
            to.put_data(key, piece, &mut self.sent);
        }
        match released.ended {
            Some(completion) => to.finish(key, completion, &mut self.sent),
            None => self.running.push((1, key)),
        }
    }

    fn held(&mut self) {
        for at in 0..2 {
            for _ in 0..64 {
                match self.connections[at].next_held(&mut self.sent) {
                    Ok(None) => break,
                    Ok(event) => self.event(at, event),
                    Err(_) => {
                        self.dead[at] = true;
                        break;
                    }
                }
            }
        }
    }

    fn event(&mut self, at: usize, event: Option<Event>) {
        let connection = &mut self.connections[at];
        match event {
            Some(Event::Command(command)) => self.running.push((at, command.task)),
            Some(Event::TaskManagement(request)) => {
                let result = TaskManagementResult::NotSupported;
                connection.task_management_response(&request, result, &mut self.sent);
            }
            Some(Event::Text(exchange)) => connection.text_response(&exchange, Vec::new(), &mut self.sent),
            Some(Event::Logout(request)) => {
                connection.logout_response(&request, LogoutResult::CleanupFailed, &mut self.sent);
            }
            Some(Event::Data(_)) | None => {}
        }
    }

    /// Learns the tags of the PDUs sent.
    fn look(&mut self) {
        let limits = stream::Limits { max_data_segment: 1 << 16, ..stream::Limits::LOGIN };
        let sent = std::mem::take(&mut self.sent);
        for pdu in stream::pdus(limits, &sent).expect("the target sends whole PDUs") {
            let tag = match pdu.bhs.view() {
                Some(PduRef::ReadyToTransfer(r2t)) => Some(r2t.ttt.get()),
                Some(PduRef::DataIn(data)) if data.wants_ack() => Some(data.ttt.get()),
                Some(_) => None,
                None => panic!("the target sent an opcode that is none"),
            };
            if let Some(tag) = tag.filter(|tag| !self.tags.contains(tag)) {
                self.tags.push(tag);
            }
        }
    }

    /// All units finish, all sequences are over, all statuses are acknowledged, and nothing is
    /// left.
    fn end(&mut self) {
        for (at, connection) in self.connections.iter_mut().enumerate() {
            let tasks: Vec<TaskKey> = connection.tasks().map(|(key, _)| key).collect();
            // One that no unit runs has ended with that.
            let running: Vec<TaskKey> =
                tasks.into_iter().filter(|key| connection.abort(*key) == Abort::Running).collect();
            for key in running {
                connection.finish(key, Completion::default(), &mut self.sent);
            }
            assert!(connection.is_idle(), "connection {at} has tasks that do not end");
            connection.forget_unacknowledged();
            assert_eq!(connection.kept_bytes(), 0, "connection {at} keeps what nobody can ask for");
            connection.release_held();
        }
        let (exp, max) = self.window.numbers();
        if self.window.gap().is_none() {
            assert_eq!(max.wrapping_sub(exp).wrapping_add(1), DEPTH, "places were lost or won");
        }
    }
}

/// A session that recovers.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut harness = Harness::new(if input.bool() { u32::MAX - 3 } else { 50 });
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        harness.step(&mut input);
    }
    harness.end();
}

/// Bytes of one step that sends a PDU.
fn say(kind: u8, tag: u8, flags: u8, one: u8, two: u8, exp_stat_sn: u8, nth_tag: u8) -> Vec<u8> {
    vec![0, 0, 0, 0, kind, tag, flags, one, two, exp_stat_sn, nth_tag]
}

/// Bytes of one step of the driver.
fn act(step: u8, nth: u8, len: u16) -> Vec<u8> {
    let [high, low] = len.to_be_bytes();
    vec![step, nth, high, low]
}

/// Seeds that reach deep.
pub fn seeds() -> Vec<(&'static str, Seed)> {
    let seed = |steps: &[Vec<u8>]| Seed::new().bytes([0]).bytes(steps.concat());
    let read = say(0, 1, FINAL | 0x40, 80, 0, 0, 0);
    let write = say(0, 2, FINAL | 0x20, 80, 0, 0, 0);
    let put = act(7, 0, 3000);
    let end = act(11, 0, 0);
    vec![
        (
            "snack_data",
            seed(&[
                read.clone(),
                put.clone(),
                put.clone(),
                say(4, 1, 4, 1, 2, 0, 0),
                say(4, 1, 2, 3, 0, 0, 0),
                say(4, 1, 7, 0, 0, 0, 0),
                end.clone(),
                say(4, 1, 9, 0, 1, 0, 0),
                say(5, 1, 1, 0, 0, 1, 0),
            ]),
        ),
        (
            "lost_data_out",
            seed(&[
                write.clone(),
                act(9, 0, 5000),
                say(2, 2, 8, 0, 0, 0, 0),
                say(2, 2, FINAL | 8, 16, 2, 0, 0),
                act(13, 0, 6000),
                say(2, 2, FINAL | 24, 8, 0, 0, 0),
                end.clone(),
            ]),
        ),
        (
            "reassign",
            seed(&[
                read,
                put.clone(),
                write,
                act(9, 1, 5000),
                say(2, 2, 8, 0, 0, 0, 0),
                act(11, 0, 1),
                act(14, 0, 8),
                act(0x2f, 1, 0),
                act(15, 2, 0),
                act(9, 0, 5000),
                say(2, 2, FINAL | 24, 8, 0, 0, 0),
                end,
            ]),
        ),
        (
            "held_and_reassigned",
            seed(&[
                say(0, 3, FINAL | 0x25, 20, 1, 0, 0),
                act(14, 0, 8),
                act(15, 3, 0),
                say(0, 4, FINAL | 0x40, 20, 0, 0, 0),
                act(9, 1, 2000),
            ]),
        ),
    ]
}
