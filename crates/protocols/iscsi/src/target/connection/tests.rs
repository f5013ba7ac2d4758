//! Dialogs of an initiator with a target's connection, PDU by PDU.

use super::*;
use crate::frame::Digests;
use crate::pdu::{
    self, LogoutReason, LogoutResult, NopOut, TaskAttribute, TaskManagementFunction, TaskManagementResult,
};
use crate::stream::{self, Limits};
use crate::target::inbound::WriteLimits;
use crate::target::order::MAX_REJECTS;
use crate::target::{CommandWindow, Window};

/// A connection, and its output since the last look.
pub(in crate::target) struct Dialog {
    pub connection: Connection<Vec<u8>>,
    pub sent: Vec<u8>,
    pub now: Instant,
    pub cmd_sn: u32,
    data_digest: bool,
    header_digest: bool,
}

impl Dialog {
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let now = Instant::now();
        let mut config = Config {
            cid: 7,
            window: Window::Own(Box::new(CommandWindow::new(100, 8))),
            stat_sn: 50,
            queue_depth: 8,
            write: WriteLimits {
                max_burst: 4096,
                first_burst: 2048,
                max_r2t: 1,
                initial_r2t: false,
                immediate: true,
            },
            peer_max_data_segment: 1024,
            header_digest: false,
            data_digest: false,
            discovery: false,
            rdma: false,
            nop_interval: Duration::from_secs(10),
            nop_timeout: Duration::from_secs(5),
            recovery: None,
        };
        change(&mut config);
        let (header_digest, data_digest) = (config.header_digest, config.data_digest);
        Self {
            connection: Connection::new(config, now),
            sent: Vec::new(),
            now,
            cmd_sn: 100,
            data_digest,
            header_digest,
        }
    }

    pub fn say(&mut self, bhs: Bhs, data: &[u8]) -> Option<Event> {
        self.try_say(bhs, data).expect("the connection goes on")
    }

    pub fn try_say(&mut self, bhs: Bhs, data: &[u8]) -> Result<Option<Event>, Fatal> {
        self.connection.handle(&bhs, &[], data.to_vec(), self.now, &mut self.sent)
    }

    /// The PDUs sent since the last call, as traces, with the bytes of their data segments.
    pub fn heard(&mut self) -> Vec<(String, Vec<u8>)> {
        let digests = Digests { header: self.header_digest, data: self.data_digest };
        let limits = Limits { digests, max_data_segment: 1 << 20, ..Limits::LOGIN };
        let sent = std::mem::take(&mut self.sent);
        let pdus = stream::pdus(limits, &sent).expect("well-formed PDUs");
        pdus.into_iter().map(|pdu| (pdu.bhs.to_string(), pdu.data)).collect()
    }

    pub fn command(&mut self, itt: u32, read: bool, write: bool, edtl: u32) -> Bhs {
        let mut command = pdu::ScsiCommand::new(itt, Lun::default(), TaskAttribute::Simple, &[0x28; 10]);
        command.set_read(read);
        command.set_write(write);
        command.edtl.set(edtl);
        command.cmd_sn.set(self.cmd_sn);
        self.cmd_sn += 1;
        command.into()
    }

    pub fn start(&mut self, bhs: Bhs, data: &[u8]) -> TaskKey {
        match self.say(bhs, data) {
            Some(Event::Command(command)) => command.task,
            other => panic!("no command but {other:?}"),
        }
    }
}

pub(in crate::target) fn good(wanted_in: u64, wanted_out: u64) -> Completion {
    Completion { wanted_in, wanted_out, ..Completion::default() }
}

#[test]
fn a_read_ends_with_its_status_in_the_last_data_in() {
    let mut d = Dialog::new();
    let read = d.command(1, true, false, 2500);
    let task = d.start(read, &[]);
    d.connection.put_data(task, vec![7; 2500], &mut d.sent);
    d.connection.finish(task, good(2500, 0), &mut d.sent);
    let heard = d.heard();
    let lines: Vec<_> = heard.iter().map(|(line, _)| line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "SCSI Data-In itt=0x1 ttt=none datasn=0 offset=0 expcmdsn=101 maxcmdsn=108 dsl=1024",
            "SCSI Data-In itt=0x1 ttt=none datasn=1 offset=1024 expcmdsn=101 maxcmdsn=108 dsl=1024",
            "SCSI Data-In itt=0x1 ttt=none datasn=2 offset=2048 expcmdsn=101 maxcmdsn=108 F S status=0x00 statsn=50 dsl=452",
        ]
    );
    assert_eq!(heard.iter().map(|(_, data)| data.len()).sum::<usize>(), 2500);
    assert!(d.connection.is_idle());
}

/// RFC 7143 §11.7: the length of a Data-In's data segment is a multiple of 4, unless its F bit is
/// set.
#[test]
fn data_in_is_cut_at_words_whatever_the_initiator_takes() {
    for (max_segment, max_burst) in [(513, 4096), (1023, 1026), (514, 513), (1022, 4095)] {
        let mut d = Dialog::with(|config| {
            config.peer_max_data_segment = max_segment;
            config.write.max_burst = max_burst;
        });
        // In one piece, and in pieces of odd lengths.
        for pieces in [vec![9001], vec![5, 1200, 4097, 3, 3696], vec![4096, 4905]] {
            let read = d.command(1, true, false, 9001);
            let task = d.start(read, &[]);
            pieces.iter().for_each(|len| d.connection.put_data(task, vec![7; *len], &mut d.sent));
            d.connection.finish(task, good(9001, 0), &mut d.sent);
            let heard = d.heard();
            let mut in_burst = 0;
            for (line, data) in &heard {
                let is_final = line.contains(" F ");
                assert!(data.len() <= max_segment as usize, "{line}");
                assert!(data.len() % 4 == 0 || is_final, "MaxRecvDataSegmentLength {max_segment}: {line}");
                in_burst += data.len();
                assert!(in_burst <= max_burst as usize, "{line}");
                if is_final {
                    in_burst = 0;
                }
            }
            assert_eq!(heard.iter().map(|(_, data)| data.len()).sum::<usize>(), 9001);
        }
    }
}

#[test]
fn a_read_that_fails_sends_its_data_then_its_sense() {
    let mut d = Dialog::new();
    let read = d.command(1, true, false, 1000);
    let task = d.start(read, &[]);
    d.connection.put_data(task, vec![7; 600], &mut d.sent);
    let sense: Box<[u8]> = Box::new([0x70, 0, 3]);
    let failed = Completion { status: 2, sense: Some(sense), ..Completion::default() };
    d.connection.finish(task, failed, &mut d.sent);
    let heard = d.heard();
    assert!(heard[0].0.contains(" F dsl=600"), "{}", heard[0].0);
    assert!(heard[1].0.starts_with("SCSI Response itt=0x1"), "{}", heard[1].0);
    assert!(heard[1].0.contains("residual=-400"), "{}", heard[1].0);
    assert_eq!(heard[1].1, [0, 3, 0x70, 0, 3]);
}

#[test]
fn data_beyond_the_expected_length_is_dropped_and_counted_as_overflow() {
    let mut d = Dialog::new();
    let read = d.command(1, true, false, 512);
    let task = d.start(read, &[]);
    d.connection.put_data(task, vec![7; 1024], &mut d.sent);
    d.connection.finish(task, good(1024, 0), &mut d.sent);
    let heard = d.heard();
    assert_eq!(heard.len(), 1);
    assert_eq!(heard[0].1.len(), 512);
    assert!(heard[0].0.contains("residual=+512"), "{}", heard[0].0);
}

#[test]
fn a_write_takes_immediate_data_and_asks_for_the_rest() {
    let mut d = Dialog::new();
    let write = d.command(9, false, true, 6000);
    let task = d.start(write, &[1; 2048]);
    assert_eq!(d.connection.want_data(task, 6000, &mut d.sent), Some(6000));
    let heard = d.heard();
    assert_eq!(heard.len(), 1, "MaxOutstandingR2T is 1");
    assert!(heard[0].0.contains("r2tsn=0 offset=2048 length=3952 statsn=50"), "{}", heard[0].0);
    let mut out = pdu::DataOut::new(9, task.tag(), Lun::default(), 0, 2048);
    out.set_final(true);
    assert_eq!(d.say(out.into(), &[2; 3952]), Some(Event::Data(task)));
    assert_eq!(d.connection.data_available(task), 6000);
    let mut data = Vec::new();
    d.connection.take_data(task, 6000, |piece| data.extend(piece));
    assert_eq!((data.len(), data[2047], data[2048]), (6000, 1, 2));
    d.connection.finish(task, good(0, 6000), &mut d.sent);
    let heard = d.heard();
    assert!(
        heard[0].0.contains("status=0x00 statsn=50 expcmdsn=101 maxcmdsn=108 expdatasn=1"),
        "{}",
        heard[0].0
    );
}

/// SAM-5 §4.7.7: peripheral device and flat space addressing name the same unit.
#[test]
fn both_encodings_of_a_lun_are_one_unit_and_r2ts_return_the_field() {
    let mut d = Dialog::new();
    let flat = Lun::flat(0).expect("a small number");
    let mut write = pdu::ScsiCommand::new(9, flat, TaskAttribute::Simple, &[0x2a; 10]);
    write.set_write(true);
    write.edtl.set(512);
    write.cmd_sn.set(100);
    let Some(Event::Command(command)) = d.say(write.into(), &[]) else { panic!("a command") };
    assert_eq!(command.lun, Lun::ZERO);
    assert!(d.connection.tasks().all(|(_, task)| task.lun == Lun::ZERO));
    d.connection.want_data(command.task, 512, &mut d.sent);
    assert_eq!(&d.sent[8..16], &flat.0, "as in the command");
}

/// A logout of the connection itself, as passed to the caller.
fn log_out(d: &mut Dialog, immediate: bool) -> LogoutRequest {
    let mut logout = pdu::LogoutRequest::new(5, LogoutReason::CloseConnection, 7);
    logout.as_bhs_mut().set_immediate(immediate);
    logout.cmd_sn.set(d.cmd_sn);
    d.cmd_sn += u32::from(!immediate);
    let Some(Event::Logout(request)) = d.say(logout.into(), &[]) else { panic!("a logout") };
    request
}

/// They consume their CmdSNs.
#[test]
fn requests_after_a_failed_logout_are_rejected_without_a_gap() {
    for immediate in [true, false] {
        let mut d = Dialog::new();
        let request = log_out(&mut d, immediate);
        let late = d.command(1, true, false, 512);
        assert_eq!(d.say(late, &[]), None);
        let mut ping = NopOut::ping(2);
        ping.as_bhs_mut().set_immediate(true);
        ping.cmd_sn.set(d.cmd_sn);
        assert_eq!(d.say(ping.into(), &[]), None);
        assert!(d.heard().is_empty(), "the logout's end would answer them");
        d.connection.logout_response(&request, LogoutResult::CleanupFailed, &mut d.sent);
        let heard = d.heard();
        assert_eq!(heard.len(), 3, "{heard:?}");
        assert!(heard[0].0.starts_with("Logout Response"), "{}", heard[0].0);
        for (line, _) in &heard[1..] {
            assert!(line.starts_with("Reject reason=\"Protocol Error\""), "{line}");
        }
        assert_eq!(heard[1].1, late.bytes(), "the header of what is rejected");
        let read = d.command(3, true, false, 512);
        d.start(read, &[]);
        let (exp, max) = d.connection.numbering.order.numbers();
        assert_eq!(max.wrapping_sub(exp), 6, "all places but one are free");
    }
}

/// They consume their CmdSNs.
#[test]
fn requests_after_a_logout_are_unanswered_without_a_gap() {
    let mut d = Dialog::new();
    let request = log_out(&mut d, true);
    let late = d.command(1, true, false, 512);
    assert_eq!(d.say(late, &[]), None);
    d.connection.logout_response(&request, LogoutResult::Success, &mut d.sent);
    assert_eq!(d.heard().len(), 1, "the logout's response");
    assert_eq!(d.connection.numbering.order.numbers(), (101, 108), "as if it had come and gone");
}

#[test]
fn requests_without_end_after_a_logout_end_the_connection() {
    let mut d = Dialog::new();
    log_out(&mut d, true);
    let end = (0..1000).find_map(|tag| {
        let late = d.command(tag, true, false, 512);
        d.try_say(late, &[]).err()
    });
    assert_eq!(end, Some(Fatal::TooManyRejects));
}

#[test]
fn what_follows_a_logout_that_waits_for_its_turn_waits_for_its_own() {
    let mut d = Dialog::new();
    let missing = d.command(1, true, false, 512);
    let mut logout = pdu::LogoutRequest::new(5, LogoutReason::CloseConnection, 7);
    logout.cmd_sn.set(d.cmd_sn);
    d.cmd_sn += 1;
    assert_eq!(d.say(logout.into(), &[]), None);
    let late = d.command(2, true, false, 512);
    assert_eq!(d.say(late, &[]), None);
    // The command sent before the logout is executed.
    d.start(missing, &[]);
    let Ok(Some(Event::Logout(request))) = d.connection.next_held(&mut d.sent) else { panic!("a logout") };
    d.connection.logout_response(&request, LogoutResult::RecoveryNotSupported, &mut d.sent);
    assert_eq!(d.heard().len(), 1, "the logout's response");
    assert_eq!(d.connection.next_held(&mut d.sent), Ok(None));
    let heard = d.heard();
    assert!(heard[0].0.starts_with("Reject reason=\"Protocol Error\""), "{heard:?}");
    let read = d.command(3, true, false, 512);
    d.start(read, &[]);
}

#[test]
fn a_response_waits_for_the_data_that_is_still_owed() {
    let mut d = Dialog::new();
    let write = d.command(9, false, true, 2048);
    let task = d.start(write, &[]);
    d.connection.want_data(task, 2048, &mut d.sent);
    d.heard();
    d.connection.finish(task, Completion { status: 2, ..Completion::default() }, &mut d.sent);
    assert!(d.heard().is_empty(), "RFC 7143 §11.4.2");
    let mut out = pdu::DataOut::new(9, task.tag(), Lun::default(), 0, 0);
    out.set_final(true);
    assert_eq!(d.say(out.into(), &[2; 2048]), None);
    assert!(d.heard()[0].0.contains("status=0x02"));
}

#[test]
fn unsolicited_data_against_negotiation_fails_only_the_command() {
    let mut d = Dialog::with(|config| config.write.immediate = false);
    let write = d.command(9, false, true, 512);
    assert_eq!(d.say(write, &[0; 512]), None);
    let heard = d.heard();
    assert!(heard[0].0.contains("status=0x02"), "{}", heard[0].0);
    assert_eq!(&heard[0].1[14..16], [0x0c, 0x0c], "UNEXPECTED UNSOLICITED DATA");
}

/// RFC 7143 §11.4.7.2: unsolicited Data-Out must reach FirstBurstLength, or the end of the data.
#[test]
fn unsolicited_data_that_stops_short_fails_the_command_not_the_connection() {
    let mut d = Dialog::new();
    let mut write = d.command(9, false, true, 6000);
    write.flags &= !0x80;
    let task = d.start(write, &[1; 512]);
    d.connection.want_data(task, 6000, &mut d.sent);
    let mut out = pdu::DataOut::new(9, RESERVED_TAG, Lun::default(), 0, 512);
    out.set_final(true);
    assert_eq!(d.say(out.into(), &[2; 1024]), Some(Event::Data(task)), "FirstBurstLength is 2048");
    assert_eq!(d.connection.want_data(task, 6000, &mut d.sent), None, "the unit gives up");
    d.connection.finish(task, good(0, 6000), &mut d.sent);
    let heard = d.heard();
    assert!(heard[0].0.contains("status=0x02"), "{}", heard[0].0);
    assert_eq!(&heard[0].1[14..16], [0x0c, 0x0d], "INCORRECT AMOUNT OF DATA");
}

#[test]
fn commands_before_a_number_that_have_not_come_are_skipped() {
    let mut d = Dialog::new();
    let (first, second) = (d.command(1, true, false, 0), d.command(2, true, false, 0));
    let (third, fourth) = (d.command(3, true, false, 0), d.command(4, true, false, 0));
    assert_eq!(d.say(third, &[]), None);
    d.connection.skip_before(102);
    let Ok(Some(Event::Command(released))) = d.connection.next_held(&mut d.sent) else { panic!("held") };
    assert_eq!(released.cmd_sn, 102);
    assert_eq!((d.say(first, &[]), d.say(second, &[])), (None, None), "they come too late");
    d.start(fourth, &[]);
    // However large the peer's number: at most to the end of the window.
    d.connection.skip_before(104u32.wrapping_add(u32::MAX / 2));
    assert_eq!(d.connection.exp_cmd_sn(), 110);
}

#[test]
fn held_commands_end_in_their_turn_where_their_unit_is_gone() {
    let mut d = Dialog::new();
    let first = d.command(1, true, false, 0);
    let second = d.command(2, true, false, 0);
    assert_eq!(d.say(second, &[]), None);
    d.connection.refuse_held(|_| Some(Completion { status: 2, ..Completion::default() }));
    let task = d.start(first, &[]);
    assert_eq!(d.connection.next_held(&mut d.sent), Ok(None));
    let heard = d.heard();
    assert!(heard[0].0.starts_with("SCSI Response itt=0x2") && heard[0].0.contains("status=0x02"));
    assert!(d.connection.has(task));
}

#[test]
fn a_cut_off_write_is_answered_after_its_outstanding_data() {
    let mut d = Dialog::new();
    let write = d.command(9, false, true, 4096);
    let task = d.start(write, &[]);
    d.connection.want_data(task, 4096, &mut d.sent);
    d.heard();
    d.connection.cut_off(task, Completion { status: 2, ..Completion::default() });
    assert_eq!(d.connection.want_data(task, 4096, &mut d.sent), None, "the unit gives up");
    d.connection.finish(task, good(0, 4096), &mut d.sent);
    assert!(d.heard().is_empty(), "data is owed");
    let mut out = pdu::DataOut::new(9, task.tag(), Lun::default(), 0, 0);
    out.set_final(true);
    assert_eq!(d.say(out.into(), &[2; 4096]), None);
    assert!(d.heard()[0].0.contains("status=0x02"));
    // A write with complete data continues.
    let write = d.command(10, false, true, 512);
    let task = d.start(write, &[1; 512]);
    d.connection.cut_off(task, Completion { status: 2, ..Completion::default() });
    assert_eq!(d.connection.want_data(task, 512, &mut d.sent), Some(512));
}

/// The command fails after the end of the sequence.
#[test]
fn a_gap_in_a_data_out_sequence_fails_only_the_command() {
    let mut d = Dialog::new();
    let write = d.command(9, false, true, 2048);
    let task = d.start(write, &[]);
    d.connection.want_data(task, 2048, &mut d.sent);
    d.heard();
    let out = pdu::DataOut::new(9, task.tag(), Lun::default(), 1, 0);
    assert_eq!(d.say(out.into(), &[2; 512]), Some(Event::Data(task)));
    assert_eq!(d.connection.want_data(task, 2048, &mut d.sent), None, "the unit gives up");
    d.connection.finish(task, good(0, 2048), &mut d.sent);
    assert!(d.heard().is_empty(), "the sequence goes on");
    let mut last = pdu::DataOut::new(9, task.tag(), Lun::default(), 2, 512);
    last.set_final(true);
    assert_eq!(d.say(last.into(), &[2; 1536]), None);
    let heard = d.heard();
    assert!(heard[0].0.contains("status=0x02"), "{}", heard[0].0);
    assert_eq!(&heard[0].1[14..16], [0x47, 0x05], "PROTOCOL SERVICE CRC ERROR");
}

#[test]
fn a_command_that_comes_early_waits_for_its_turn() {
    let mut d = Dialog::new();
    let first = d.command(1, true, false, 0);
    let second = d.command(2, true, false, 0);
    assert_eq!(d.say(second, &[]), None);
    let task = d.start(first, &[]);
    let held = d.connection.next_held(&mut d.sent).expect("goes on");
    let Some(Event::Command(second)) = held else { panic!("{held:?}") };
    assert_ne!(second.task, task);
    assert_eq!(d.connection.next_held(&mut d.sent), Ok(None));
}

#[test]
fn a_ping_that_waits_for_its_turn_holds_no_more_than_a_command() {
    let ping = |d: &mut Dialog, itt: u32, len: usize| {
        let mut ping = NopOut::ping(itt);
        ping.as_bhs_mut().set_immediate(false);
        ping.cmd_sn.set(d.cmd_sn);
        d.cmd_sn += 1;
        assert_eq!(d.say(ping.into(), &vec![7; len]), None);
    };
    let mut d = Dialog::new();
    let first = d.command(1, true, false, 0);
    // FirstBurstLength is 2048.
    ping(&mut d, 2, 2048 + 1024);
    ping(&mut d, 3, 2048 + 1025);
    d.start(first, &[]);
    assert_eq!(d.connection.next_held(&mut d.sent), Ok(None));
    ping(&mut d, 4, 8192);
    let heard = d.heard();
    let lines: Vec<_> = heard.iter().map(|(line, _)| line.as_str()).collect();
    assert!(lines[0].starts_with("NOP-In itt=0x2 "), "{lines:?}");
    assert!(lines[1].starts_with("Reject reason=\"Long op reject - out of resources\""), "{lines:?}");
    assert!(lines[2].starts_with("NOP-In itt=0x4 "), "one in its turn may be longer: {lines:?}");
    assert_eq!(d.connection.numbering.order.numbers(), (104, 110), "only the command is running");
}

#[test]
fn a_held_command_can_be_aborted_and_never_runs() {
    let mut d = Dialog::new();
    let first = d.command(1, true, false, 0);
    let second = d.command(2, true, false, 0);
    d.say(second, &[]);
    let key = d.connection.find(2).expect("it is in hand");
    assert_eq!(d.connection.abort(key), Abort::Ended);
    d.start(first, &[]);
    assert_eq!(d.connection.next_held(&mut d.sent), Ok(None));
    assert_eq!(d.connection.exp_cmd_sn(), 102);
}

#[test]
fn aborting_held_commands_never_widens_the_window() {
    let mut d = Dialog::new();
    for itt in 0..50 {
        d.cmd_sn = 107;
        let early = d.command(itt, true, false, 512);
        assert_eq!(d.say(early, &[]), None, "100 to 106 are missing");
        let held = d.connection.find(itt);
        if let Some(key) = held {
            assert_eq!(d.connection.abort(key), Abort::Ended);
        }
    }
    assert_eq!(d.connection.numbering.order.numbers(), (100, 107));
    assert!(d.connection.is_idle() && d.connection.numbering.order.is_empty());
    for cmd_sn in 100..107 {
        d.cmd_sn = cmd_sn;
        let command = d.command(cmd_sn, true, false, 512);
        d.start(command, &[]);
    }
    assert_eq!(d.connection.next_held(&mut d.sent), Ok(None));
    assert_eq!(d.connection.numbering.order.numbers(), (108, 108));
}

#[test]
fn an_aborted_task_ends_without_a_response() {
    let mut d = Dialog::new();
    let read = d.command(1, true, false, 512);
    let task = d.start(read, &[]);
    assert_eq!(d.connection.abort(task), Abort::Running);
    d.connection.put_data(task, vec![0; 512], &mut d.sent);
    d.connection.finish(task, good(512, 0), &mut d.sent);
    assert!(d.heard().is_empty());
    assert_eq!(d.connection.abort(task), Abort::Gone);
}

#[test]
fn a_tag_in_use_is_rejected_and_the_window_moves_on() {
    let mut d = Dialog::new();
    let first = d.command(1, true, false, 0);
    let again = d.command(1, true, false, 0);
    d.start(first, &[]);
    assert_eq!(d.say(again, &[]), None);
    let heard = d.heard();
    assert!(heard[0].0.contains("Task in progress"), "{}", heard[0].0);
    assert_eq!(heard[0].1, again.bytes());
    assert!(heard[0].0.contains("maxcmdsn=108"), "{}", heard[0].0);
}

#[test]
fn pings_are_answered_and_a_silent_initiator_is_pinged_then_dropped() {
    let mut d = Dialog::new();
    let mut nop = NopOut::ping(5);
    nop.as_bhs_mut().set_immediate(true);
    assert_eq!(d.say(nop.into(), b"hello"), None);
    let heard = d.heard();
    assert!(heard[0].0.starts_with("NOP-In itt=0x5"), "{}", heard[0].0);
    assert_eq!(heard[0].1, b"hello");

    let due = d.connection.poll_timeout().expect("a ping is due");
    d.connection.handle_timeout(due, &mut d.sent).expect("not lost yet");
    assert!(d.heard()[0].0.starts_with("NOP-In itt=none"));
    let due = d.connection.poll_timeout().expect("the answer is due");
    assert_eq!(d.connection.handle_timeout(due, &mut d.sent), Err(Fatal::Silent));
}

#[test]
fn task_management_and_logout_are_handed_up_and_answered() {
    let mut d = Dialog::new();
    let mut request = pdu::TaskManagementRequest::new(3, TaskManagementFunction::AbortTask, Lun::default());
    request.as_bhs_mut().set_immediate(true);
    request.referenced_task_tag.set(1);
    let Some(Event::TaskManagement(request)) = d.say(request.into(), &[]) else { panic!("no event") };
    assert_eq!((request.itt, request.referenced, request.function), (3, 1, 1));
    d.connection.task_management_response(&request, TaskManagementResult::TaskDoesNotExist, &mut d.sent);
    let mut logout = pdu::LogoutRequest::new(4, LogoutReason::CloseSession, 0);
    logout.cmd_sn.set(100);
    let Some(Event::Logout(logout)) = d.say(logout.into(), &[]) else { panic!("no event") };
    d.connection.logout_response(&logout, LogoutResult::Success, &mut d.sent);
    let heard = d.heard();
    assert!(heard[0].0.starts_with("Task Management Response itt=0x3"), "{}", heard[0].0);
    assert!(heard[1].0.starts_with("Logout Response itt=0x4"), "{}", heard[1].0);
    assert!(heard[1].0.contains("expcmdsn=101 maxcmdsn=108"), "{}", heard[1].0);
}

#[test]
fn a_long_text_answer_is_fetched_piece_by_piece() {
    let mut d = Dialog::new();
    let mut request = pdu::TextRequest::new(6, RESERVED_TAG);
    request.as_bhs_mut().set_immediate(true);
    let Some(Event::Text(exchange)) = d.say(request.into(), b"SendTargets=All\0") else { panic!("no event") };
    assert_eq!(exchange.text, b"SendTargets=All\0");
    let answer: Vec<u8> = (0..2500u32).map(|i| i as u8).collect();
    d.connection.text_response(&exchange, answer.clone(), &mut d.sent);
    let mut got: Vec<u8> = Vec::new();
    loop {
        let heard = d.heard();
        assert_eq!(heard.len(), 1);
        got.extend(&heard[0].1);
        let tag = heard[0].0.split(' ').find_map(|word| word.strip_prefix("ttt=0x"));
        let Some(tag) = tag.and_then(|tag| u32::from_str_radix(tag, 16).ok()) else { break };
        let mut more = pdu::TextRequest::new(6, tag);
        more.as_bhs_mut().set_immediate(true);
        assert_eq!(d.say(more.into(), &[]), None);
    }
    assert_eq!(got, answer);
}

#[test]
fn digests_cover_headers_data_and_padding() {
    let mut d = Dialog::with(|config| (config.header_digest, config.data_digest) = (true, true));
    let read = d.command(1, true, false, 511);
    let task = d.start(read, &[]);
    d.connection.put_data(task, vec![7; 511], &mut d.sent);
    d.connection.finish(task, good(511, 0), &mut d.sent);
    assert_eq!(d.heard()[0].1.len(), 511, "the cutter has verified both digests");
}

#[test]
fn a_discovery_session_runs_no_command() {
    let mut d = Dialog::with(|config| config.discovery = true);
    let read = d.command(1, true, false, 512);
    assert_eq!(d.say(read, &[]), None);
    assert!(d.heard()[0].0.contains("Protocol Error"));
}

#[test]
fn a_peer_that_is_rejected_without_end_is_dropped() {
    let mut d = Dialog::new();
    let snack = pdu::SnackRequest::new(pdu::SnackType::Status, RESERVED_TAG, RESERVED_TAG, 0, 0);
    let outcome = (0..=MAX_REJECTS).map(|_| d.try_say(snack.into(), &[])).find(Result::is_err);
    assert_eq!(outcome, Some(Err(Fatal::TooManyRejects)));
}

/// The calls to a transport: the opcodes of the PDUs, each with the task that it ends.
#[derive(Default)]
struct Told {
    bytes: Vec<u8>,
    ends: Option<TaskKey>,
    pdus: Vec<(u8, Option<TaskKey>, usize)>,
    descriptor_sense: bool,
}

impl Sink<Vec<u8>> for Told {
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
    fn payload(&mut self, payload: Vec<u8>) {
        self.bytes.extend(payload);
    }
    fn ends(&mut self, task: TaskKey) {
        self.ends = Some(task);
    }
    fn descriptor_sense(&self, _lun: Lun) -> bool {
        self.descriptor_sense
    }
    fn whole(&mut self) {
        let pdu = std::mem::take(&mut self.bytes);
        self.pdus.push((pdu[0], self.ends.take(), pdu.len()));
    }
}

const SCSI_RESPONSE: u8 = 0x21;

#[test]
fn refused_data_has_sense_data_in_the_format_of_its_unit() {
    // The header, SenseLength, and 18 bytes in fixed format or 8 in descriptor format, padded.
    for (descriptor_sense, len) in [(false, 48 + 20), (true, 48 + 12)] {
        let mut told = Told { descriptor_sense, ..Told::default() };
        // At arrival, and while its unit waits for the data.
        let mut d = Dialog::new();
        let write = d.command(9, false, true, 512);
        assert_eq!(d.connection.handle(&write, &[], vec![0; 1024], d.now, &mut told), Ok(None));
        let write = d.command(9, false, true, 2048);
        let task = d.start(write, &[]);
        d.connection.want_data(task, 2048, &mut d.sent);
        let mut out = pdu::DataOut::new(9, task.tag(), Lun::default(), 1, 0);
        out.set_final(true);
        assert_eq!(d.say(out.into(), &[2; 2048]), Some(Event::Data(task)));
        d.connection.finish(task, good(0, 2048), &mut told);
        let responses: Vec<_> = told.pdus.iter().map(|pdu| (pdu.0, pdu.2)).collect();
        assert_eq!(responses, [(SCSI_RESPONSE, len); 2]);
    }
}

/// The residuals count its data.
#[test]
fn over_rdma_a_bidirectional_command_sends_only_its_status_as_a_pdu() {
    let mut d = Dialog::with(|config| config.rdma = true);
    let mut command = pdu::ScsiCommand::new(1, Lun::default(), TaskAttribute::Simple, &[0x53; 10]);
    command.set_read(true);
    command.set_write(true);
    command.edtl.set(3000);
    command.cmd_sn.set(d.cmd_sn);
    let mut ahs = arrayvec::ArrayVec::<u8, { pdu::ahs::MAX_LEN }>::new();
    assert!(pdu::ahs::Ahs::BidiReadLength(1000).emit(&mut ahs));
    let mut told = Told::default();
    let event = d.connection.handle(&command.into(), &ahs, vec![1; 500], d.now, &mut told).unwrap();
    let Some(Event::Command(command)) = event else { panic!("{event:?}") };
    let task = command.task;
    assert_eq!((command.expected_in, command.expected_out), (1000, 3000));
    assert_eq!(d.connection.put(task, 600), Some((0, 600)));
    assert_eq!(d.connection.put(task, 600), Some((600, 400)), "what passes the expected length is dropped");
    assert_eq!(d.connection.put(task, 600), None);
    assert_eq!(d.connection.want_data(task, 3000, &mut told), Some(3000));
    assert_eq!(d.connection.next_read(task, 2000), Some(Read { offset: 0, at: 500, len: 2000 }));
    assert_eq!(d.connection.next_read(task, 2000), Some(Read { offset: 2000, at: 2500, len: 500 }));
    assert_eq!(d.connection.next_read(task, 2000), None);
    assert!(!d.connection.read_done(task, vec![2; 2000], &mut told));
    assert!(!d.connection.read_done(task, vec![3; 500], &mut told));
    let mut all = Vec::new();
    d.connection.take_data(task, 3000, |piece| all.extend(piece));
    assert_eq!(all, [vec![1; 500], vec![2; 2000], vec![3; 500]].concat());
    d.connection.finish(task, good(1000, 3000), &mut told);
    assert_eq!(told.pdus, [(SCSI_RESPONSE, Some(task), 48)], "no Data-In, no R2T");
    assert!(d.connection.is_idle());
}

#[test]
fn a_response_waits_for_the_rdma_reads_of_its_task() {
    let mut d = Dialog::with(|config| config.rdma = true);
    let write = d.command(1, false, true, 1000);
    let task = d.start(write, &[]);
    let mut told = Told::default();
    d.connection.want_data(task, 1000, &mut told);
    assert!(d.connection.next_read(task, 1000).is_some());
    // The logical unit finishes early.
    d.connection.finish(task, good(0, 0), &mut told);
    assert_eq!(told.pdus, []);
    assert!(d.connection.read_done(task, vec![0; 1000], &mut told));
    assert_eq!(told.pdus, [(SCSI_RESPONSE, Some(task), 48)]);
}

#[test]
fn an_aborted_task_is_over_when_its_rdma_reads_are() {
    let mut d = Dialog::with(|config| config.rdma = true);
    let mut told = Told::default();
    for unit_first in [true, false] {
        let write = d.command(1, false, true, 1000);
        let task = d.start(write, &[]);
        d.connection.want_data(task, 1000, &mut told);
        assert!(d.connection.next_read(task, 500).is_some());
        assert_eq!(d.connection.abort(task), Abort::Running);
        assert_eq!(d.connection.next_read(task, 500), None, "it asks for no more");
        if unit_first {
            d.connection.finish(task, good(0, 0), &mut told);
            assert_eq!(d.connection.abort(task), Abort::Running, "asked for again");
            assert!(d.connection.has(task));
            assert!(d.connection.read_done(task, vec![0; 500], &mut told));
        } else {
            assert!(!d.connection.read_done(task, vec![0; 500], &mut told));
            assert!(d.connection.has(task));
            d.connection.finish(task, good(0, 0), &mut told);
        }
        assert!(!d.connection.has(task));
        assert_eq!(told.pdus, [], "an aborted task has no response");
    }
}

#[test]
fn reads_of_a_lost_connection_keep_nobody_waiting() {
    let mut d = Dialog::with(|config| config.rdma = true);
    let write = d.command(1, false, true, 1000);
    let task = d.start(write, &[]);
    let mut told = Told::default();
    d.connection.want_data(task, 1000, &mut told);
    assert!(d.connection.next_read(task, 1000).is_some());
    d.connection.abort(task);
    d.connection.finish(task, good(0, 0), &mut told);
    assert!(d.connection.has(task));
    d.connection.forget_reads();
    assert_eq!(d.connection.abort(task), Abort::Ended);
    assert!(d.connection.is_idle());
}

#[test]
fn sense_data_is_cut_to_what_the_initiator_takes() {
    let mut d = Dialog::with(|config| config.peer_max_data_segment = 128);
    let read = d.command(1, true, false, 0);
    let task = d.start(read, &[]);
    let failed = Completion { status: 2, sense: Some(vec![0x72; 252].into()), ..Completion::default() };
    d.connection.finish(task, failed, &mut d.sent);
    let heard = d.heard();
    assert_eq!((heard[0].1.len(), &heard[0].1[..3]), (128, &[0, 126, 0x72][..]));
}

/// Begins a write of `edtl` bytes without any of its immediate data.
fn begin(d: &mut Dialog, itt: u32, edtl: u32, immediate: usize) -> (Bhs, Option<Event>) {
    let mut bhs = d.command(itt, false, true, edtl);
    bhs.set_data_segment_len(immediate);
    assert!(d.connection.is_begun_early(&bhs));
    let event = d.connection.begin(&bhs, &[], immediate, d.now, &mut d.sent).expect("goes on");
    (bhs, event)
}

#[test]
fn a_command_that_was_begun_runs_before_its_immediate_data_has_come() {
    let mut d = Dialog::new();
    let (bhs, event) = begin(&mut d, 1, 3000, 2000);
    let Some(Event::Command(command)) = event else { panic!("{event:?}") };
    let task = command.task;
    assert_eq!(d.connection.want_data(task, 3000, &mut d.sent), Some(3000));
    assert!(d.heard().is_empty(), "no R2T before it");
    assert_eq!(d.connection.awaits(&bhs), Some((task, 0)));
    assert_eq!(d.connection.rest(vec![1; 2000], &mut d.sent), Some(Event::Data(task)));
    assert_eq!(d.connection.data_available(task), 2000);
    assert!(d.heard()[0].0.contains("offset=2000 length=1000"), "the rest is asked for");
    assert_eq!(d.connection.awaits(&bhs), None);
    let mut out = pdu::DataOut::new(1, task.tag(), Lun::default(), 0, 2000);
    out.set_final(true);
    let mut out = Bhs::from(out);
    out.set_data_segment_len(1000);
    assert_eq!(d.connection.awaits(&out), Some((task, 2000)));
    d.say(out, &[2; 1000]);
    assert_eq!(d.connection.awaits(&out), None, "it has come");
    let mut taken = Vec::new();
    d.connection.take_data(task, 3000, |piece| taken.extend(piece));
    assert_eq!(taken, [vec![1; 2000], vec![2; 1000]].concat());
    d.connection.finish(task, good(0, 3000), &mut d.sent);
    assert!(d.heard()[0].0.contains("status=0x00") && d.connection.is_idle());
}

#[test]
fn responses_wait_for_outstanding_immediate_data_and_aborts_do_not() {
    let mut d = Dialog::new();
    let (bhs, event) = begin(&mut d, 1, 2000, 2000);
    let Some(Event::Command(command)) = event else { panic!("{event:?}") };
    d.connection.finish(command.task, good(0, 0), &mut d.sent);
    assert!(d.heard().is_empty());
    assert_eq!(d.connection.awaits(&bhs), None, "nobody wants it any more");
    assert_eq!(d.connection.rest(vec![1; 2000], &mut d.sent), None);
    assert!(d.heard()[0].0.contains("status=0x00") && d.connection.is_idle());

    let (bhs, event) = begin(&mut d, 2, 2000, 2000);
    let Some(Event::Command(command)) = event else { panic!("{event:?}") };
    assert_eq!(d.connection.abort(command.task), Abort::Running);
    assert_eq!(d.connection.awaits(&bhs), None);
    d.connection.finish(command.task, Completion::default(), &mut d.sent);
    assert!(d.connection.is_idle());
    assert_eq!(d.connection.rest(vec![1; 2000], &mut d.sent), None);
    assert!(d.heard().is_empty());
    let third = d.command(3, false, true, 10);
    d.start(third, &[1; 10]);
}

/// Early: ahead of their turn. Invalid: with too much data.
#[test]
fn begun_commands_may_be_early_or_invalid_like_any_other() {
    let mut d = Dialog::new();
    let first = d.command(1, true, false, 0);
    let (_, event) = begin(&mut d, 2, 2000, 2000);
    assert_eq!(event, None, "its turn has not come");
    d.connection.rest(vec![3; 2000], &mut d.sent);
    d.start(first, &[]);
    let held = d.connection.next_held(&mut d.sent).expect("goes on");
    let Some(Event::Command(command)) = held else { panic!("{held:?}") };
    assert_eq!(d.connection.data_available(command.task), 2000);

    let early = d.cmd_sn;
    d.cmd_sn += 1;
    let (_, event) = begin(&mut d, 3, 100, 2000);
    assert_eq!(event, None);
    assert_eq!(d.connection.rest(vec![4; 2000], &mut d.sent), None);
    d.heard();
    d.cmd_sn = early;
    let before = d.command(4, true, false, 0);
    d.start(before, &[]);
    assert_eq!(d.connection.next_held(&mut d.sent), Ok(None));
    assert!(d.heard()[0].0.contains("status=0x02"), "more data than the command expects");
}

#[test]
fn only_plain_writes_without_digests_and_recovery_are_begun() {
    let mut d = Dialog::new();
    let read = d.command(1, true, false, 512);
    let both = d.command(2, true, true, 512);
    let ping: Bhs = NopOut::ping(3).into();
    assert!([read, both, ping].iter().all(|bhs| !d.connection.is_begun_early(bhs)));
    let mut digests = Dialog::with(|config| config.data_digest = true);
    let write = digests.command(1, false, true, 512);
    assert!(!digests.connection.is_begun_early(&write));
}
