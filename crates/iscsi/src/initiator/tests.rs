//! The session against single PDUs, and against our own target's connections with a disk of memory behind them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::frame::{Cut, Cutter};
use crate::keys::{Digest, Params};
use crate::login::initiator::Established;
use crate::pdu::{
    self, AsyncEvent, Bhs, Lun, Residual, ResponseCode, TaskAttribute, TaskManagementFunction,
    TaskManagementResult,
};
use crate::target::inbound::WriteLimits;
use crate::target::{self, Connection, SharedWindow, Window};

fn established(params: Params) -> Established {
    Established {
        params,
        tsih: 1,
        stat_sn: 9,
        exp_cmd_sn: 100,
        max_cmd_sn: 107,
        target_alias: None,
        portal_group_tag: Some(1),
        authenticated: false,
    }
}

type Plain = Session<Vec<u8>, Vec<u8>>;

fn session(params: Params) -> (Plain, ConnectionId) {
    let mut s = Session::new(SessionConfig { max_tasks: 64, first_cmd_sn: 100 });
    let on = s.connect(0, &established(params));
    (s, on)
}

fn read(len: u32) -> Command<'static, Vec<u8>> {
    let cdb = &[0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Command {
        lun: Lun::ZERO,
        attribute: TaskAttribute::Simple,
        cdb,
        write: None,
        read_len: Some(len),
        may_repeat: true,
    }
}

fn write(data: Vec<u8>) -> Command<'static, Vec<u8>> {
    let cdb = &[0x2a, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Command {
        lun: Lun::ZERO,
        attribute: TaskAttribute::Simple,
        cdb,
        write: Some(data),
        read_len: None,
        may_repeat: true,
    }
}

/// What the session sends on a connection, as traces.
fn sent(s: &mut Plain, on: ConnectionId) -> Vec<String> {
    let mut bytes = Vec::new();
    s.transmit(on, usize::MAX, &mut bytes);
    let mut lines = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let Ok(Cut::Pdu { bhs, consumed, .. }) = plain_cutter().cut(rest) else { panic!("not a PDU") };
        lines.push(bhs.to_string());
        rest = &rest[consumed..];
    }
    lines
}

fn plain_cutter() -> Cutter {
    Cutter { header_digest: false, data_digest: false, max_data_segment: 1 << 24, max_ahs: 1020 }
}

fn hear(
    s: &mut Plain,
    on: ConnectionId,
    bhs: impl Into<Bhs>,
    data: &[u8],
) -> Result<Option<Event<Vec<u8>>>, ProtocolError> {
    let mut bhs = bhs.into();
    bhs.set_data_segment_len(data.len());
    s.handle(on, &bhs, Segment::Here(data))
}

/// Sets the numbers of a response: StatSN, and a window of 8.
macro_rules! numbered {
    ($pdu:expr, $stat_sn:expr) => {{
        let mut pdu = $pdu;
        pdu.stat_sn.set($stat_sn);
        pdu.exp_cmd_sn.set(100);
        pdu.max_cmd_sn.set(107);
        pdu
    }};
}

mod recovery;

#[test]
fn a_read_is_placed_piece_by_piece_and_ends_with_its_status() {
    let (mut s, on) = session(Params::default());
    let key = s.submit(read(3000), Vec::new()).unwrap();
    let itt = key.itt();
    let line = format!(
        "SCSI Command itt={itt:#x} lun=0 edtl=3000 cmdsn=100 expstatsn=10 R F attr=\"simple\" cdb=28000000000000000000000000000000"
    );
    assert_eq!(sent(&mut s, on), [line]);
    let first = numbered!(pdu::DataIn::new(itt, 0, 0), 0);
    assert!(hear(&mut s, on, first, &[1; 2000]).unwrap().is_none());
    let mut last = numbered!(pdu::DataIn::new(itt, 1, 2000), 10);
    last.set_status(0, Residual::Underflow(500));
    let Some(Event::Done(done, data, end)) = hear(&mut s, on, last, &[2; 500]).unwrap() else {
        panic!("not done")
    };
    assert_eq!((done, end.status, end.received, end.residual), (key, 0, 2500, Residual::Underflow(500)));
    assert_eq!(data, [vec![1; 2000], vec![2; 500]].concat());
    assert!(s.is_empty());
}

#[test]
fn a_write_sends_immediate_unsolicited_and_solicited_data() {
    let params = Params {
        initial_r2t: false,
        first_burst_length: 2048,
        max_burst_length: 4096,
        peer_max_recv_data_segment_length: 1024,
        ..Params::default()
    };
    let (mut s, on) = session(params);
    let data: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    let itt = s.submit(write(data), Vec::new()).unwrap().itt();
    let lines = sent(&mut s, on);
    assert_eq!(lines.len(), 2);
    assert!(lines[0].contains("edtl=5000") && lines[0].contains(" W attr") && lines[0].ends_with("dsl=1024"));
    assert!(
        lines[1].contains("ttt=none") && lines[1].contains("datasn=0 offset=1024") && lines[1].contains(" F")
    );
    let r2t = numbered!(pdu::ReadyToTransfer::new(itt, 77, Lun::ZERO, 0, 2048, 2952), 10);
    assert!(hear(&mut s, on, r2t, &[]).unwrap().is_none());
    let lines = sent(&mut s, on);
    assert_eq!(lines.len(), 3);
    assert!(
        lines[0].contains("ttt=0x4d")
            && lines[0].contains("datasn=0 offset=2048")
            && !lines[0].contains(" F")
    );
    assert!(lines[2].contains("datasn=2 offset=4096") && lines[2].contains(" F dsl=904"));
    let end = numbered!(pdu::ScsiResponse::new(itt, ResponseCode::CommandCompleted, 0), 10);
    assert!(matches!(hear(&mut s, on, end, &[]), Ok(Some(Event::Done(_, _, c))) if c.status == 0));
}

#[test]
fn sense_data_comes_with_check_condition() {
    let (mut s, on) = session(Params::default());
    let itt = s.submit(read(512), Vec::new()).unwrap().itt();
    sent(&mut s, on);
    let end = numbered!(pdu::ScsiResponse::new(itt, ResponseCode::CommandCompleted, 2), 10);
    let Some(Event::Done(_, _, c)) = hear(&mut s, on, end, &[0, 4, 0x70, 0, 5, 0, 9, 9]).unwrap() else {
        panic!()
    };
    assert_eq!((c.status, &c.sense[..]), (2, &[0x70, 0, 5, 0][..]));
}

#[test]
fn commands_wait_for_the_window_and_go_out_when_it_opens() {
    let (mut s, on) = session(Params::default());
    let keys: Vec<_> = (0..10).map(|_| s.submit(read(512), Vec::new()).unwrap()).collect();
    assert_eq!(sent(&mut s, on).len(), 8, "MaxCmdSN is 107");
    let mut end = pdu::DataIn::new(keys[0].itt(), 0, 0);
    end.set_status(0, Residual::Exact);
    let mut end = numbered!(end, 10);
    end.exp_cmd_sn.set(108);
    end.max_cmd_sn.set(109);
    hear(&mut s, on, end, &[0; 512]).unwrap();
    let lines = sent(&mut s, on);
    assert_eq!(lines.len(), 2);
    assert!(lines[1].contains("cmdsn=109 expstatsn=11"));
}

#[test]
fn a_session_that_is_held_gives_no_waiting_command_away_until_it_is_let_go() {
    let (mut s, on) = session(Params::default());
    let first = s.submit(read(512), Vec::new()).unwrap().itt();
    assert_eq!(sent(&mut s, on).len(), 1);
    s.hold(true);
    s.submit(read(512), Vec::new()).unwrap();
    assert_eq!((sent(&mut s, on).len(), s.outstanding(), s.len()), (0, 1, 2));
    let end = numbered!(pdu::ScsiResponse::new(first, ResponseCode::CommandCompleted, 0), 10);
    assert!(matches!(hear(&mut s, on, end, &[]), Ok(Some(Event::Done(..)))));
    assert_eq!((sent(&mut s, on).len(), s.outstanding()), (0, 0), "what was under way ends, and that is all");
    s.logout(on, crate::pdu::LogoutReason::CloseSession, Vec::new()).unwrap();
    assert_eq!(sent(&mut s, on).len(), 1, "a logout is no waiting command");
    s.hold(false);
    assert_eq!(sent(&mut s, on).len(), 1);
}

#[test]
fn data_is_cut_by_the_segment_length_that_the_target_declared_last() {
    let params = Params { peer_max_recv_data_segment_length: 4096, ..Params::default() };
    let (mut s, on) = session(params);
    let immediate = |s: &mut Plain| {
        s.submit(write(vec![0; 8192]), Vec::new()).unwrap();
        sent(s, on).remove(0)
    };
    assert!(immediate(&mut s).ends_with("dsl=4096"));
    s.set_segment(on, 1024);
    assert!(immediate(&mut s).ends_with("dsl=1024"));
    s.set_segment(on, 0);
    assert!(immediate(&mut s).ends_with("dsl=512"), "no target may declare less");
}

#[test]
fn a_full_session_gives_the_command_back() {
    let (mut s, _) = session(Params::default());
    for _ in 0..64 {
        s.submit(read(1), vec![]).unwrap();
    }
    assert_eq!(s.submit(read(1), vec![5]), Err(vec![5]));
    assert_eq!(s.submit(Command { cdb: &[], ..read(1) }, vec![6]), Err(vec![6]));
}

#[test]
fn pings_are_answered_both_ways() {
    let (mut s, on) = session(Params::default());
    let ping = numbered!(pdu::NopIn::ping(55, Lun::ZERO), 10);
    assert!(hear(&mut s, on, ping, &[]).unwrap().is_none());
    assert!(sent(&mut s, on)[0].starts_with("NOP-Out itt=none ttt=0x37"));
    let key = s.ping(on, vec![1]).unwrap();
    assert!(sent(&mut s, on)[0].contains(&format!("itt={:#x}", key.itt())));
    let pong = numbered!(pdu::NopIn::answer(key.itt()), 10);
    assert!(matches!(hear(&mut s, on, pong, &[]), Ok(Some(Event::Pong(k, _))) if k == key));
}

#[test]
fn a_long_text_answer_is_asked_for_to_its_end() {
    let (mut s, on) = session(Params::default());
    let key = s.text(on, b"SendTargets=All\0".to_vec(), vec![]).unwrap();
    assert!(sent(&mut s, on)[0].contains("dsl=16"));
    let mut part = numbered!(pdu::TextResponse::new(key.itt(), 99), 10);
    part.flags = 0x40;
    assert!(hear(&mut s, on, part, b"TargetName=iqn.a:").unwrap().is_none());
    assert!(sent(&mut s, on)[0].contains("ttt=0x63"));
    let mut last = numbered!(pdu::TextResponse::new(key.itt(), pdu::RESERVED_TAG), 11);
    last.flags = pdu::FINAL;
    let Some(Event::Text(_, _, text)) = hear(&mut s, on, last, b"b\0").unwrap() else { panic!("no text") };
    assert_eq!(text, b"TargetName=iqn.a:b\0");
}

#[test]
fn task_management_logout_and_asynchronous_messages_are_told() {
    let (mut s, on) = session(Params::default());
    let task = s.submit(read(1), vec![]).unwrap();
    sent(&mut s, on);
    let abort =
        s.task_management(on, TaskManagementFunction::AbortTask, Lun::ZERO, Some(task), vec![]).unwrap();
    let line = &sent(&mut s, on)[0];
    assert!(line.contains(&format!("{:#x}", task.itt())) && line.contains("100"), "{line}");
    let done =
        numbered!(pdu::TaskManagementResponse::new(abort.itt(), TaskManagementResult::FunctionComplete), 10);
    let event = hear(&mut s, on, done, &[]);
    assert!(matches!(
        event,
        Ok(Some(Event::TaskManagement(_, _, Some(TaskManagementResult::FunctionComplete))))
    ));
    assert!(s.forget(task).is_some() && s.is_empty());

    let message = numbered!(pdu::AsyncMessage::new(AsyncEvent::LogoutRequest, Lun::ZERO, [0, 0, 5]), 11);
    assert!(matches!(hear(&mut s, on, message, &[]), Ok(Some(Event::Async(m))) if m.parameter3.get() == 5));

    let out = s.logout(on, pdu::LogoutReason::CloseSession, vec![]).unwrap();
    let done = numbered!(pdu::LogoutResponse::new(out.itt(), pdu::LogoutResult::Success, 2, 0), 12);
    assert!(matches!(
        hear(&mut s, on, done, &[]),
        Ok(Some(Event::LoggedOut(_, _, Some(pdu::LogoutResult::Success))))
    ));
}

#[test]
fn a_reject_ends_the_task_that_it_names() {
    let (mut s, on) = session(Params::default());
    let key = s.submit(read(1), vec![7]).unwrap();
    sent(&mut s, on);
    let mut header = pdu::ScsiCommand::new(key.itt(), Lun::ZERO, TaskAttribute::Simple, &[0; 6]);
    header.set_read(true);
    let reject = numbered!(pdu::Reject::new(pdu::RejectReason::InvalidPduField), 10);
    let event = hear(&mut s, on, reject, Bhs::from(header).bytes());
    assert!(
        matches!(event, Ok(Some(Event::Rejected(Some(pdu::RejectReason::InvalidPduField), Some((k, _))))) if k == key)
    );
    assert!(s.is_empty());
}

#[test]
fn what_a_target_may_not_send_is_an_error() {
    let data_in = |itt, sn, offset| numbered!(pdu::DataIn::new(itt, sn, offset), 0);
    type Case = (&'static str, fn(&mut Plain, ConnectionId, u32, u32) -> bool);
    let cases: [Case; 12] = [
        ("data beyond the read", |s, on, r, _| {
            matches!(
                hear(s, on, numbered!(pdu::DataIn::new(r, 0, 0), 0), &[0; 513]),
                Err(ProtocolError::DataIn { .. })
            )
        }),
        ("data at an offset that is not next", |s, on, r, _| {
            matches!(
                hear(s, on, numbered!(pdu::DataIn::new(r, 0, 4), 0), &[0; 4]),
                Err(ProtocolError::DataIn { .. })
            )
        }),
        ("an offset that would wrap", |s, on, r, _| {
            matches!(
                hear(s, on, numbered!(pdu::DataIn::new(r, 0, u32::MAX), 0), &[0; 4]),
                Err(ProtocolError::DataIn { .. })
            )
        }),
        ("a DataSN that is not next", |s, on, r, _| {
            matches!(
                hear(s, on, numbered!(pdu::DataIn::new(r, 1, 0), 0), &[0; 4]),
                Err(ProtocolError::DataSn { .. })
            )
        }),
        ("data for a write", |s, on, _, w| {
            hear(s, on, numbered!(pdu::DataIn::new(w, 0, 0), 0), &[0; 4]).is_err()
        }),
        ("data for no task", |s, on, r, _| {
            hear(s, on, numbered!(pdu::DataIn::new(r ^ 0x10000, 0, 0), 0), &[0; 4]).is_err()
        }),
        ("an R2T for a read", |s, on, r, _| {
            hear(s, on, numbered!(pdu::ReadyToTransfer::new(r, 1, Lun::ZERO, 0, 0, 512), 10), &[]).is_err()
        }),
        ("an R2T beyond the write", |s, on, _, w| {
            hear(s, on, numbered!(pdu::ReadyToTransfer::new(w, 1, Lun::ZERO, 0, 0, 300_001), 10), &[])
                .is_err()
        }),
        ("an R2T for sent data", |s, on, _, w| {
            hear(s, on, numbered!(pdu::ReadyToTransfer::new(w, 1, Lun::ZERO, 0, 0, 512), 10), &[]).is_err()
        }),
        ("a StatSN that is not next", |s, on, r, _| {
            matches!(
                hear(s, on, numbered!(pdu::ScsiResponse::new(r, ResponseCode::CommandCompleted, 0), 11), &[]),
                Err(ProtocolError::StatSn { .. })
            )
        }),
        ("an initiator's PDU", |s, on, r, _| {
            matches!(hear(s, on, pdu::NopOut::ping(r), &[]), Err(ProtocolError::Opcode(0)))
        }),
        ("a login response", |s, on, r, _| {
            matches!(
                hear(s, on, pdu::LoginResponse::new(r, pdu::Isid::default(), 1), &[]),
                Err(ProtocolError::Opcode(_))
            )
        }),
    ];
    for (what, refused) in cases {
        let (mut s, on) = session(Params::default());
        let r = s.submit(read(512), vec![]).unwrap().itt();
        let w = s.submit(write(vec![0; 300_000]), vec![]).unwrap().itt();
        sent(&mut s, on);
        assert!(refused(&mut s, on, r, w), "{what}");
    }
    let (mut s, on) = session(Params::default());
    let r = s.submit(read(512), vec![]).unwrap().itt();
    assert!(hear(&mut s, on, data_in(r, 0, 0), &[0; 4]).is_err(), "an answer to what was never sent");
}

#[test]
fn a_target_cannot_make_us_queue_without_end() {
    let params =
        Params { max_outstanding_r2t: 2, initial_r2t: true, immediate_data: false, ..Params::default() };
    let (mut s, on) = session(params);
    let itt = s.submit(write(vec![0; 5000]), vec![]).unwrap().itt();
    sent(&mut s, on);
    let r2t = |n: u32| numbered!(pdu::ReadyToTransfer::new(itt, 1, Lun::ZERO, n, n, 1), 10);
    for n in 0..2 {
        assert!(hear(&mut s, on, r2t(n), &[]).is_ok());
    }
    assert_eq!(hear(&mut s, on, r2t(2), &[]).unwrap_err(), ProtocolError::Flood);
    assert_eq!(sent(&mut s, on).len(), 2);
    assert!(hear(&mut s, on, r2t(2), &[]).is_ok(), "after the data is sent there may be more");

    let (mut s, on) = session(Params::default());
    let mut pings = 0;
    while hear(&mut s, on, numbered!(pdu::NopIn::ping(1, Lun::ZERO), 10), &[]).is_ok() {
        pings += 1;
    }
    assert!((16..1000).contains(&pings));
}

#[test]
fn a_contradictory_window_is_ignored() {
    let (mut s, on) = session(Params::default());
    let mut ping = pdu::NopIn::unsolicited();
    ping.exp_cmd_sn.set(200);
    ping.max_cmd_sn.set(150);
    hear(&mut s, on, ping, &[]).unwrap();
    for _ in 0..20 {
        s.submit(read(512), vec![]).unwrap();
    }
    assert_eq!(sent(&mut s, on).len(), 8);
}

#[test]
fn after_a_lost_connection_what_may_be_repeated_goes_out_again_in_order() {
    let (mut s, on) = session(Params::default());
    let a = s.submit(read(512), vec![1]).unwrap();
    let once = s.submit(Command { may_repeat: false, ..write(vec![1; 10]) }, vec![2]).unwrap();
    let b = s.submit(write(vec![2; 600]), vec![3]).unwrap();
    let ping = s.ping(on, vec![4]).unwrap();
    sent(&mut s, on);
    let unsent = s.submit(Command { may_repeat: false, ..read(512) }, vec![5]).unwrap();
    hear(&mut s, on, numbered!(pdu::DataIn::new(a.itt(), 0, 0), 0), &[9; 100]).unwrap();

    let mut lost: Vec<_> = s.disconnect(500).into_iter().map(|(key, _)| key).collect();
    lost.sort_by_key(|k| k.itt());
    let mut want = vec![once, ping];
    want.sort_by_key(|k| k.itt());
    assert_eq!(lost, want);
    assert!(s.is_disconnected());
    let mut login = established(Params::default());
    (login.exp_cmd_sn, login.max_cmd_sn) = (500, 600);
    let on = s.connect(0, &login);
    let lines = sent(&mut s, on);
    for (line, (key, sn)) in lines.iter().zip([(a, 500), (b, 501), (unsent, 502)]) {
        assert!(
            line.contains(&format!("itt={:#x}", key.itt())) && line.contains(&format!("cmdsn={sn}")),
            "{line}"
        );
    }
    assert_eq!(lines.len(), 3);
    let mut end = pdu::DataIn::new(a.itt(), 0, 0);
    end.set_status(0, Residual::Exact);
    let event = hear(&mut s, on, numbered!(end, 10), &[7; 512]).unwrap();
    assert!(matches!(event, Some(Event::Done(_, data, _)) if data == [7; 512]));
}

/// Our target: connections that share a window, and a disk.
struct Target {
    connections: Vec<(Connection<Vec<u8>>, Vec<u8>)>,
    disk: Vec<u8>,
    cutter: Cutter,
    now: Instant,
    running: Vec<(usize, target::ScsiCommand)>,
}

impl Target {
    fn new(params: &Params, connections: usize, depth: u32, disk: usize) -> Self {
        let window = Arc::new(SharedWindow::new(100, depth));
        let now = Instant::now();
        let digests = (params.header_digest == Digest::Crc32c, params.data_digest == Digest::Crc32c);
        let make = |cid| {
            let config = target::Config {
                cid,
                window: Window::Shared(window.clone()),
                stat_sn: 10,
                queue_depth: depth,
                write: WriteLimits {
                    max_burst: params.max_burst_length,
                    first_burst: params.first_burst_length,
                    max_r2t: params.max_outstanding_r2t,
                    initial_r2t: params.initial_r2t,
                    immediate: params.immediate_data,
                },
                peer_max_data_segment: params.max_recv_data_segment_length,
                header_digest: digests.0,
                data_digest: digests.1,
                discovery: false,
                rdma: false,
                nop_interval: Duration::ZERO,
                nop_timeout: Duration::ZERO,
                recovery: None,
            };
            (Connection::new(config, now), Vec::new())
        };
        Target {
            connections: (0..connections as u16).map(make).collect(),
            disk: (0..disk).map(|i| (i / 7) as u8).collect(),
            cutter: Cutter {
                header_digest: digests.0,
                data_digest: digests.1,
                max_data_segment: params.peer_max_recv_data_segment_length,
                max_ahs: 1020,
            },
            now,
            running: Vec::new(),
        }
    }

    fn receive(&mut self, index: usize, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let Ok(Cut::Pdu { bhs, ahs, data, consumed }) = self.cutter.cut(rest) else {
                panic!("not a PDU")
            };
            let (connection, out) = &mut self.connections[index];
            let event = connection.handle(bhs, ahs, rest[data].to_vec(), self.now, out).unwrap();
            self.take(index, event);
            for i in 0..self.connections.len() {
                loop {
                    let (connection, out) = &mut self.connections[i];
                    let Some(event) = connection.next_held(out).unwrap() else { break };
                    self.take(i, Some(event));
                }
            }
            rest = &rest[consumed..];
        }
    }

    fn take(&mut self, index: usize, event: Option<target::Event>) {
        match event {
            Some(target::Event::Command(command)) => {
                let (connection, out) = &mut self.connections[index];
                if command.expected_out > 0 {
                    connection.want_data(command.task, command.expected_out as usize, out).unwrap();
                }
                self.running.push((index, command));
            }
            Some(target::Event::Data(_)) | None => {}
            other => panic!("{other:?}"),
        }
        self.run();
    }

    /// Runs commands whose data is there: the CDB's bytes 2 to 5 are an offset, 6 to 9 a length.
    fn run(&mut self) {
        let mut waiting = Vec::new();
        for (index, command) in std::mem::take(&mut self.running) {
            let (connection, out) = &mut self.connections[index];
            let word = |at: usize| u32::from_be_bytes(command.cdb[at..at + 4].try_into().unwrap()) as usize;
            let (offset, len) = (word(2), word(6));
            let mut end = target::Completion::default();
            if command.cdb[0] == 0x2a {
                if connection.data_available(command.task) < command.expected_out as usize {
                    waiting.push((index, command));
                    continue;
                }
                let mut at = offset;
                let disk = &mut self.disk;
                connection.take_data(command.task, command.expected_out as usize, |data: Vec<u8>| {
                    disk[at..at + data.len()].copy_from_slice(&data);
                    at += data.len();
                });
                end.wanted_out = len as u64;
            } else {
                connection.put_data(command.task, self.disk[offset..offset + len].to_vec(), out);
                end.wanted_in = len as u64;
            }
            connection.finish(command.task, end, out);
        }
        self.running.extend(waiting);
    }
}

#[derive(Debug, Clone)]
struct Work {
    write: bool,
    offset: u32,
    len: u32,
}

fn any_params() -> impl Strategy<Value = Params> {
    let lengths = (512u32..4000, 512u32..4000, 512u32..9000, 512u32..9000);
    (lengths, 1u16..4, any::<[bool; 4]>()).prop_map(|(l, r2t, b)| Params {
        max_recv_data_segment_length: l.0,
        peer_max_recv_data_segment_length: l.1,
        max_burst_length: l.2,
        first_burst_length: l.3.min(l.2),
        max_outstanding_r2t: r2t,
        initial_r2t: b[0],
        immediate_data: b[1],
        header_digest: if b[2] { Digest::Crc32c } else { Digest::None },
        data_digest: if b[3] { Digest::Crc32c } else { Digest::None },
        ..Params::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn commands_move_the_right_bytes_whatever_was_negotiated(
        params in any_params(),
        connections in 1usize..4,
        depth in 1u32..12,
        work in proptest::collection::vec(
            (any::<bool>(), 0u32..40_000, 0u32..12_000).prop_map(|(write, offset, len)| Work { write, offset, len }), 1..24),
        turns in proptest::collection::vec(any::<u8>(), 64),
        part in 1usize..20_000,
    ) {
        let mut target = Target::new(&params, connections, depth, 64 << 10);
        let mut s: Plain = Session::new(SessionConfig { max_tasks: 64, first_cmd_sn: 100 });
        for cid in 0..connections {
            let mut login = established(params.clone());
            login.max_cmd_sn = 100 + depth - 1;
            s.connect(cid as u16, &login);
        }
        let cutter = Cutter { max_data_segment: params.max_recv_data_segment_length, ..target.cutter };
        let mut model = target.disk.clone();
        let mut expected = std::collections::HashMap::new();
        for (n, w) in work.iter().enumerate() {
            let mut cdb = [0u8; 10];
            cdb[0] = if w.write { 0x2a } else { 0x28 };
            cdb[2..6].copy_from_slice(&w.offset.to_be_bytes());
            cdb[6..10].copy_from_slice(&w.len.to_be_bytes());
            let range = w.offset as usize..(w.offset + w.len) as usize;
            // Tasks run in the order of their numbers, except that a write waits for its data: so one at a time touches
            // the disk only where the model is told the same.
            let data = w.write.then(|| vec![n as u8 ^ 0xa5; w.len as usize]);
            let command = Command {
                lun: Lun::ZERO, attribute: TaskAttribute::Simple, cdb: &cdb, may_repeat: true,
                read_len: (!w.write).then_some(w.len), write: data.clone(),
            };
            let key = s.submit(command, Vec::new()).unwrap();
            let mut ended = false;
            let mut idle = 0;
            let mut turn = turns.iter().cycle().skip(n);
            while !ended {
                let mut moved = false;
                for _ in 0..connections {
                    let on = *turn.next().unwrap() as usize % connections;
                    let mut bytes = Vec::new();
                    s.transmit(ConnectionId(on), part, &mut bytes);
                    moved |= !bytes.is_empty();
                    target.receive(on, &bytes);
                }
                for on in 0..connections {
                    let bytes = std::mem::take(&mut target.connections[on].1);
                    let mut rest = &bytes[..];
                    while !rest.is_empty() {
                        moved = true;
                        let Ok(Cut::Pdu { bhs, data, consumed, .. }) = cutter.cut(rest) else { panic!("not a PDU") };
                        let event = s.handle(ConnectionId(on), bhs, Segment::Here(&rest[data]));
                        match event.expect("a target that keeps the rules") {
                            Some(Event::Done(done, data, end)) => {
                                prop_assert_eq!(done, key);
                                prop_assert_eq!((end.status, end.residual), (0, Residual::Exact));
                                expected.insert(n, data);
                                ended = true;
                            }
                            None => {}
                            other => prop_assert!(false, "{other:?}"),
                        }
                        rest = &rest[consumed..];
                    }
                }
                idle = if moved { 0 } else { idle + 1 };
                prop_assert!(idle < 200, "nothing moves");
            }
            if let Some(data) = data {
                model[range].copy_from_slice(&data);
            } else {
                prop_assert_eq!(&expected[&n][..], &model[range]);
            }
        }
        prop_assert_eq!(target.disk, model);
        prop_assert!(s.is_empty());
    }

    #[test]
    fn many_commands_at_once_all_end_over_any_number_of_connections(
        params in any_params(), connections in 1usize..4, depth in 1u32..12, count in 1usize..48,
    ) {
        let mut target = Target::new(&params, connections, depth, 64 << 10);
        let mut s: Plain = Session::new(SessionConfig { max_tasks: 64, first_cmd_sn: 100 });
        for cid in 0..connections {
            let mut login = established(params.clone());
            login.max_cmd_sn = 100 + depth - 1;
            s.connect(cid as u16, &login);
        }
        let cutter = Cutter { max_data_segment: params.max_recv_data_segment_length, ..target.cutter };
        // Each command has its own kilobyte, so that the order does not matter.
        let mut keys = std::collections::HashMap::new();
        for n in 0..count as u32 {
            let mut cdb = [0u8; 10];
            cdb[0] = if n % 2 == 0 { 0x2a } else { 0x28 };
            cdb[2..6].copy_from_slice(&(n * 1024).to_be_bytes());
            cdb[6..10].copy_from_slice(&1024u32.to_be_bytes());
            let write = (n % 2 == 0).then(|| vec![n as u8; 1024]);
            let read_len = write.is_none().then_some(1024);
            let command = Command { lun: Lun::ZERO, attribute: TaskAttribute::Simple, cdb: &cdb, may_repeat: true, read_len, write };
            keys.insert(s.submit(command, Vec::new()).unwrap(), n);
        }
        let before = target.disk.clone();
        let mut rounds = 0;
        while !s.is_empty() {
            for on in 0..connections {
                let mut bytes = Vec::new();
                s.transmit(ConnectionId(on), usize::MAX, &mut bytes);
                target.receive(on, &bytes);
                let bytes = std::mem::take(&mut target.connections[on].1);
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let Ok(Cut::Pdu { bhs, data, consumed, .. }) = cutter.cut(rest) else { panic!("not a PDU") };
                    if let Some(Event::Done(key, data, end)) = s.handle(ConnectionId(on), bhs, Segment::Here(&rest[data])).unwrap() {
                        let n = keys.remove(&key).expect("ends once");
                        prop_assert_eq!(end.status, 0);
                        if n % 2 == 1 {
                            let at = n as usize * 1024;
                            prop_assert_eq!(&data[..], &before[at..at + 1024]);
                        }
                    }
                    rest = &rest[consumed..];
                }
            }
            rounds += 1;
            prop_assert!(rounds < 1000, "nothing moves");
        }
        for n in (0..count).step_by(2) {
            prop_assert!(target.disk[n * 1024..(n + 1) * 1024].iter().all(|b| *b == n as u8));
        }
    }

    #[test]
    fn any_pdu_is_handled_without_panic(
        pdus in proptest::collection::vec((any::<[u8; 48]>(), proptest::collection::vec(any::<u8>(), 0..60), any::<u8>()), 1..12),
    ) {
        let (mut s, on) = session(Params::default());
        let keys = [s.submit(read(512), vec![]).unwrap(), s.submit(write(vec![1; 99_999]), vec![]).unwrap()];
        sent(&mut s, on);
        let opcodes = [0x20u8, 0x21, 0x22, 0x24, 0x25, 0x26, 0x31, 0x32, 0x3f, 0x25, 0x31, 0x21];
        let mut stat_sn = 10u32;
        for (mut bytes, data, shape) in pdus {
            bytes[0] = opcodes[usize::from(shape) % opcodes.len()];
            bytes[4] = 0;
            bytes[5..8].copy_from_slice(&[0, 0, data.len() as u8]);
            if shape & 0x80 == 0 {
                bytes[16..20].copy_from_slice(&keys[usize::from(shape >> 6 & 1)].itt().to_be_bytes());
                bytes[24..28].copy_from_slice(&stat_sn.to_be_bytes());
                bytes[36..40].fill(0);
            }
            let Some(bhs) = Bhs::ref_from(&bytes) else { unreachable!() };
            if s.handle(on, bhs, Segment::Here(&data[..])).is_ok() { stat_sn += 1; }
            let mut out = Vec::new();
            s.transmit(on, usize::MAX, &mut out);
            prop_assert!(out.len() <= 400_000);
        }
    }
}

/// What a session over RDMA hands to its datamover, as traces.
#[derive(Default)]
struct Mover(Vec<String>);

impl crate::initiator::Datamover<Vec<u8>, Vec<u8>> for Mover {
    fn send_control(&mut self, header: &Bhs, _: &[u8], data: Option<Vec<u8>>) {
        assert_eq!(header.data_segment_len() as usize, data.map_or(0, |d| d.len()));
        self.0.push(header.to_string());
    }

    fn send_command(
        &mut self,
        header: &Bhs,
        ahs: &[u8],
        data: Option<Vec<u8>>,
        buffers: crate::initiator::Buffers<'_, Vec<u8>, Vec<u8>>,
    ) {
        assert_eq!(header.total_ahs_len(), ahs.len());
        self.0.push(format!(
            "command {:#x}: read {}, write {:?}, unsolicited {}, immediate {}",
            buffers.key.itt(),
            buffers.read_len,
            buffers.write.map(Vec::len),
            buffers.unsolicited,
            data.map_or(0, |d| d.len())
        ));
    }
}

fn moved(s: &mut Plain, on: ConnectionId) -> Vec<String> {
    let mut mover = Mover::default();
    s.transmit_messages(on, usize::MAX, &mut mover);
    mover.0
}

fn iser(target_segment: u32) -> Params {
    Params {
        rdma_extensions: true,
        initial_r2t: false,
        target_recv_data_segment_length: target_segment,
        // Of no meaning over iSER (RFC 7145 §6.2).
        peer_max_recv_data_segment_length: 512,
        ..Params::default()
    }
}

#[test]
fn over_rdma_a_command_leaves_with_its_buffers_and_its_response_tells_what_was_read() {
    let (mut s, on) = session(iser(8192));
    let key = s.submit(read(3000), Vec::new()).unwrap();
    let itt = key.itt();
    assert_eq!(
        moved(&mut s, on),
        [format!("command {itt:#x}: read 3000, write None, unsolicited 0, immediate 0")]
    );
    let mut end = numbered!(pdu::ScsiResponse::new(itt, ResponseCode::CommandCompleted, 0), 10);
    end.set_residual(Residual::Underflow(500));
    let Some(Event::Done(done, _, end)) = hear(&mut s, on, end, &[]).unwrap() else { panic!("not done") };
    assert_eq!((done, end.received, end.residual), (key, 2500, Residual::Underflow(500)));
}

#[test]
fn over_rdma_a_residual_longer_than_the_read_is_an_error() {
    let (mut s, on) = session(iser(8192));
    let itt = s.submit(read(3000), Vec::new()).unwrap().itt();
    moved(&mut s, on);
    let mut end = numbered!(pdu::ScsiResponse::new(itt, ResponseCode::CommandCompleted, 0), 10);
    end.set_residual(Residual::Underflow(3001));
    assert_eq!(hear(&mut s, on, end, &[]).unwrap_err(), ProtocolError::Field);
}

#[test]
fn over_rdma_neither_data_in_nor_r2t_has_a_place() {
    let (mut s, on) = session(iser(8192));
    let itt = s.submit(read(3000), Vec::new()).unwrap().itt();
    let out = s.submit(write(vec![1; 300_000]), Vec::new()).unwrap().itt();
    moved(&mut s, on);
    let data = numbered!(pdu::DataIn::new(itt, 0, 0), 0);
    assert_eq!(hear(&mut s, on, data, &[0; 100]).unwrap_err(), ProtocolError::Opcode(0x25));
    let r2t = numbered!(pdu::ReadyToTransfer::new(out, 7, Lun::ZERO, 0, 0, 1000), 10);
    assert_eq!(hear(&mut s, on, r2t, &[]).unwrap_err(), ProtocolError::Opcode(0x31));
}

#[test]
fn over_rdma_a_write_sends_unasked_what_the_limit_allows_and_no_more() {
    let (mut s, on) = session(iser(8192));
    let key = s.submit(write(vec![1; 20_000]), Vec::new()).unwrap().itt();
    let lines = moved(&mut s, on);
    assert_eq!(
        lines[0],
        format!("command {key:#x}: read 0, write Some(20000), unsolicited 20000, immediate 8192")
    );
    assert_eq!(lines.len(), 3, "two Data-Outs behind it: {lines:?}");
    assert!(lines[2].contains(" F") && lines[2].ends_with("dsl=3616"), "{lines:?}");

    let mut s = Session::new(SessionConfig { max_tasks: 64, first_cmd_sn: 100 });
    s.limit_unsolicited(8192);
    let on = s.connect(0, &established(iser(8192)));
    let short = s.submit(write(vec![1; 8192]), Vec::new()).unwrap().itt();
    let long = s.submit(write(vec![1; 8193]), Vec::new()).unwrap().itt();
    assert_eq!(
        moved(&mut s, on),
        [
            format!("command {short:#x}: read 0, write Some(8192), unsolicited 8192, immediate 8192"),
            format!("command {long:#x}: read 0, write Some(8193), unsolicited 0, immediate 0"),
        ]
    );
}

fn both_ways(len: u32, data: Vec<u8>) -> Command<'static, Vec<u8>> {
    Command { read_len: Some(len), ..write(data) }
}

#[test]
fn data_and_r2ts_of_a_bidirectional_command_share_their_numbers() {
    for level in [0, 1] {
        let params = Params { error_recovery_level: level, initial_r2t: true, ..Params::default() };
        let (mut s, on) = session(Params { immediate_data: false, ..params });
        let itt = s.submit(both_ways(200, vec![7; 3000]), Vec::new()).unwrap().itt();
        sent(&mut s, on);
        let r2t = |n: u32, offset: u32, len: u32| {
            numbered!(pdu::ReadyToTransfer::new(itt, 0x55, Lun::ZERO, n, offset, len), 10)
        };
        hear(&mut s, on, r2t(0, 0, 1000), &[]).unwrap();
        sent(&mut s, on);
        hear(&mut s, on, numbered!(pdu::DataIn::new(itt, 1, 0), 0), &[1; 100]).unwrap();
        if level == 1 {
            // One that goes lost is found by whichever of both comes next.
            hear(&mut s, on, numbered!(pdu::DataIn::new(itt, 3, 100), 0), &[9; 100]).unwrap();
            let asked = sent(&mut s, on);
            assert!(
                asked.iter().any(|line| line.contains("Data/R2T") && line.contains("begrun=2")),
                "{asked:?}"
            );
        }
        hear(&mut s, on, r2t(2, 1000, 2000), &[]).unwrap();
        hear(&mut s, on, numbered!(pdu::DataIn::new(itt, 3, 100), 0), &[2; 100]).unwrap();
        let mut end = numbered!(pdu::ScsiResponse::new(itt, ResponseCode::CommandCompleted, 0), 10);
        end.exp_data_sn.set(4);
        match hear(&mut s, on, end, &[]).unwrap() {
            Some(Event::Done(_, data, completion)) => {
                assert_eq!((data, completion.received), ([[1; 100], [2; 100]].concat(), 200));
            }
            other => panic!("{other:?}"),
        }
    }
}
