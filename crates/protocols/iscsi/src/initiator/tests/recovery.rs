//! Error recovery levels 1 and 2, clause by clause of RFC 7143 §7 and §11.16.

use super::*;
use crate::pdu::{LogoutResult, RejectReason, TaskManagementResult as Result5};

/// A session at a level, with one connection of CID 0.
fn at_level(level: u8) -> (Plain, ConnectionId) {
    session(Params { error_recovery_level: level, max_connections: 8, ..Params::default() })
}

/// Data-In of 100 bytes, the `n`th.
fn piece(itt: u32, n: u32) -> pdu::DataIn {
    numbered!(pdu::DataIn::new(itt, n, 100 * n), 0)
}

/// The same, with the command's status.
fn last_piece(itt: u32, n: u32, stat_sn: u32) -> pdu::DataIn {
    let mut pdu = numbered!(pdu::DataIn::new(itt, n, 100 * n), stat_sn);
    pdu.set_status(0, Residual::Exact);
    pdu
}

fn good(itt: u32, stat_sn: u32) -> pdu::ScsiResponse {
    numbered!(pdu::ScsiResponse::new(itt, ResponseCode::CommandCompleted, 0), stat_sn)
}

/// Sets ExpCmdSN: the target has received all commands before `exp_cmd_sn`.
fn seen(mut pdu: pdu::DataIn, exp_cmd_sn: u32) -> pdu::DataIn {
    pdu.exp_cmd_sn.set(exp_cmd_sn);
    pdu.max_cmd_sn.set(exp_cmd_sn + 7);
    pdu
}

fn snacks(lines: &[String]) -> Vec<String> {
    lines.iter().filter(|line| line.starts_with("SNACK")).cloned().collect()
}

/// The task tag in a trace.
fn itt_of(line: &str) -> u32 {
    let tag = line.split("itt=0x").nth(1).and_then(|rest| rest.split(' ').next());
    u32::from_str_radix(tag.unwrap(), 16).unwrap()
}

fn done(event: Option<Event<Vec<u8>>>) -> (TaskKey, Vec<u8>, Completion) {
    match event {
        Some(Event::Done(key, data, completion)) => (key, data, completion),
        other => panic!("not the end of a command: {other:?}"),
    }
}

#[test]
fn missing_data_in_is_requested_together_with_the_early_data_in() {
    let (mut s, on) = at_level(1);
    let itt = s.submit(read(400), Vec::new()).unwrap().itt();
    sent(&mut s, on);
    assert!(hear(&mut s, on, piece(itt, 0), &[0; 100]).unwrap().is_none());
    assert!(hear(&mut s, on, piece(itt, 2), &[9; 100]).unwrap().is_none());
    let asked = sent(&mut s, on);
    assert!(
        asked[0].contains(&format!("itt={itt:#x} type=\"Data/R2T\" tag=none begrun=1 runlength=0")),
        "{asked:?}"
    );
    // PDUs sent before the SNACK reached the target cause no further request.
    assert!(hear(&mut s, on, last_piece(itt, 3, 10), &[9; 100]).unwrap().is_none());
    assert!(sent(&mut s, on).is_empty());
    for n in 1..3 {
        assert!(hear(&mut s, on, piece(itt, n), &[n as u8; 100]).unwrap().is_none());
    }
    let (_, data, end) = done(hear(&mut s, on, last_piece(itt, 3, 10), &[3; 100]).unwrap());
    assert_eq!(data, [[0; 100], [1; 100], [2; 100], [3; 100]].concat());
    assert_eq!((end.received, s.recoveries().data_snacks), (400, 1));
    assert!(snacks(&sent(&mut s, on)).is_empty());
}

#[test]
fn a_piece_that_is_lost_again_is_asked_for_again_at_once() {
    let (mut s, on) = at_level(1);
    let itt = s.submit(read(300), Vec::new()).unwrap().itt();
    sent(&mut s, on);
    hear(&mut s, on, piece(itt, 1), &[1; 100]).unwrap();
    hear(&mut s, on, piece(itt, 2), &[2; 100]).unwrap();
    assert_eq!(snacks(&sent(&mut s, on)).len(), 1);
    // Number 1 again, without 0 before it: the retransmission was lost too.
    hear(&mut s, on, piece(itt, 1), &[1; 100]).unwrap();
    assert_eq!(snacks(&sent(&mut s, on)).len(), 1);
}

#[test]
fn a_wrong_data_digest_of_data_in_asks_for_that_piece() {
    let (mut s, on) = at_level(1);
    let itt = s.submit(read(200), Vec::new()).unwrap().itt();
    sent(&mut s, on);
    let mut bad: Bhs = last_piece(itt, 0, 10).into();
    bad.set_data_segment_len(100);
    s.bad_data_digest(on, &bad).unwrap();
    assert!(snacks(&sent(&mut s, on))[0].contains("type=\"Data/R2T\""));
    hear(&mut s, on, piece(itt, 0), &[1; 100]).unwrap();
    done(hear(&mut s, on, last_piece(itt, 1, 10), &[2; 100]).unwrap());
    assert_eq!(s.recoveries().digest_errors, 1);
    let (mut zero, on) = at_level(0);
    let itt = zero.submit(read(200), Vec::new()).unwrap().itt();
    sent(&mut zero, on);
    let bad: Bhs = piece(itt, 0).into();
    assert_eq!(zero.bad_data_digest(on, &bad), Err(ProtocolError::DataDigest));
}

#[test]
fn a_wrong_data_digest_of_a_response_asks_for_the_status() {
    let (mut s, on) = at_level(1);
    let itt = s.submit(read(200), Vec::new()).unwrap().itt();
    sent(&mut s, on);
    let mut end = good(itt, 10);
    end.status = 2;
    s.bad_data_digest(on, &end.into()).unwrap();
    assert!(
        snacks(&sent(&mut s, on))[0].contains("type=\"Status\" tag=none begrun=10 runlength=0 expstatsn=10")
    );
    let (_, _, end) = done(hear(&mut s, on, end, &[0, 2, 0x70, 0]).unwrap());
    assert_eq!((end.status, &end.sense[..]), (2, &[0x70, 0][..]));
}

#[test]
fn a_missing_status_is_requested_and_later_ones_are_taken_after_it() {
    let (mut s, on) = at_level(1);
    let keys: Vec<_> = (0..3).map(|_| s.submit(write(vec![1; 10]), vec![]).unwrap()).collect();
    sent(&mut s, on);
    assert!(hear(&mut s, on, good(keys[1].itt(), 11), &[]).unwrap().is_none());
    assert!(hear(&mut s, on, good(keys[2].itt(), 12), &[]).unwrap().is_none());
    let lines = snacks(&sent(&mut s, on));
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("itt=none type=\"Status\" tag=none begrun=10 runlength=0 expstatsn=10"));
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(done(hear(&mut s, on, good(key.itt(), 10 + n as u32), &[]).unwrap()).0, *key);
    }
    // A repeated status is ignored.
    assert!(hear(&mut s, on, good(keys[2].itt(), 12), &[]).unwrap().is_none());
    assert!(s.is_empty());
}

#[test]
fn a_response_is_not_acknowledged_before_its_missing_data_arrives() {
    let (mut s, on) = at_level(1);
    let keys: Vec<_> = (0..2).map(|_| s.submit(read(200), Vec::new()).unwrap()).collect();
    sent(&mut s, on);
    hear(&mut s, on, piece(keys[0].itt(), 0), &[1; 100]).unwrap();
    // ExpDataSN shows that there were two Data-In.
    let mut end = good(keys[0].itt(), 10);
    end.exp_data_sn.set(2);
    assert!(hear(&mut s, on, end, &[]).unwrap().is_none());
    let lines = sent(&mut s, on);
    assert!(
        lines[0].contains("type=\"Data/R2T\" tag=none begrun=1") && lines[0].contains("expstatsn=10"),
        "{lines:?}"
    );
    // The next command's status arrives meanwhile, out of order.
    let mut other = good(keys[1].itt(), 11);
    other.set_residual(Residual::Underflow(200));
    assert!(hear(&mut s, on, other, &[]).unwrap().is_none());
    assert!(sent(&mut s, on).is_empty());
    let (key, data, completion) = done(hear(&mut s, on, piece(keys[0].itt(), 1), &[2; 100]).unwrap());
    assert_eq!((key, data.len(), completion.received), (keys[0], 200, 200));
    assert!(sent(&mut s, on)[0].contains("type=\"Status\" tag=none begrun=11"));
    done(hear(&mut s, on, other, &[]).unwrap());
}

#[test]
fn a_missing_r2t_is_requested_and_a_recovery_r2t_gets_sent_data_again() {
    let (mut s, on) = at_level(1);
    let data: Vec<u8> = (0..900u32).map(|n| n as u8).collect();
    s.exchange.params.immediate_data = false;
    s.exchange.params.max_outstanding_r2t = 4;
    let itt = s.submit(write(data), vec![]).unwrap().itt();
    sent(&mut s, on);
    let r2t = |sn: u32, offset: u32| {
        numbered!(pdu::ReadyToTransfer::new(itt, 50 + sn, Lun::ZERO, sn, offset, 300), 10)
    };
    hear(&mut s, on, r2t(1, 300), &[]).unwrap();
    assert!(sent(&mut s, on)[0].contains(&format!("itt={itt:#x} type=\"Data/R2T\" tag=none begrun=0")));
    for (sn, offset) in [(0, 0), (1, 300), (2, 600)] {
        hear(&mut s, on, r2t(sn, offset), &[]).unwrap();
        let lines = sent(&mut s, on);
        assert!(
            lines[0].contains(&format!("ttt={:#x}", 50 + sn))
                && lines[0].contains(&format!("offset={offset} "))
        );
    }
    assert_eq!(s.recoveries().r2t_snacks, 1);
    // The target lost the second sequence.
    hear(&mut s, on, r2t(3, 300), &[]).unwrap();
    assert!(sent(&mut s, on)[0].contains("ttt=0x35"));
    // A repeated R2T is ignored; one beyond the data is an error.
    hear(&mut s, on, r2t(3, 300), &[]).unwrap();
    assert!(sent(&mut s, on).is_empty());
    assert!(matches!(hear(&mut s, on, r2t(4, 700), &[]), Err(ProtocolError::R2t { .. })));
}

#[test]
fn data_is_acknowledged_when_the_target_asks() {
    let (mut s, on) = at_level(1);
    let itt = s.submit(read(300), Vec::new()).unwrap().itt();
    sent(&mut s, on);
    let mut ask = piece(itt, 0);
    ask.set_wants_ack(true);
    ask.ttt.set(0x77);
    ask.lun = Lun::new(3).unwrap();
    hear(&mut s, on, ask, &[1; 100]).unwrap();
    let lines = sent(&mut s, on);
    assert!(lines[0].contains("itt=none type=\"DataACK\" tag=0x77 begrun=1 runlength=0"), "{lines:?}");
    // An early Data-In is acknowledged when it is resent.
    let mut early = piece(itt, 2);
    early.set_wants_ack(true);
    hear(&mut s, on, early, &[3; 100]).unwrap();
    let lines = sent(&mut s, on);
    assert!(lines.len() == 1 && lines[0].contains("type=\"Data/R2T\""));
}

#[test]
fn after_a_change_of_the_segment_length_data_is_asked_for_by_r_data_snack() {
    let (mut s, on) = at_level(1);
    let itt = s.submit(read(300), Vec::new()).unwrap().itt();
    sent(&mut s, on);
    s.segment_length_changed(on);
    hear(&mut s, on, piece(itt, 1), &[2; 100]).unwrap();
    let lines = sent(&mut s, on);
    assert!(lines[0].contains("type=\"R-Data\" tag=0x2 begrun=0 runlength=0"), "{lines:?}");
    // The data now has other PDU lengths; a status from before the SNACK does not end the command.
    let mut all = numbered!(pdu::DataIn::new(itt, 0, 0), 0);
    all.set_final(true);
    let mut end = good(itt, 10);
    end.exp_data_sn.set(3);
    assert!(hear(&mut s, on, end, &[]).unwrap().is_none());
    hear(&mut s, on, all, &[5; 300]).unwrap();
    let mut end = good(itt, 10);
    end.exp_data_sn.set(1);
    end.snack_tag.set(2);
    let (_, data, _) = done(hear(&mut s, on, end, &[]).unwrap());
    assert_eq!(data, [5; 300]);
}

#[test]
fn a_command_rejected_for_its_data_digest_is_retried_with_its_old_numbers() {
    let (mut s, on) = at_level(1);
    let itt = s.submit(write(vec![1; 100]), vec![]).unwrap().itt();
    let first = sent(&mut s, on);
    let header = pdu::ScsiCommand::new(itt, Lun::ZERO, TaskAttribute::Simple, &[0x2a; 10]);
    let reject = numbered!(pdu::Reject::new(RejectReason::DataDigestError), 10);
    assert!(hear(&mut s, on, reject, Bhs::from(header).bytes()).unwrap().is_none());
    let again = sent(&mut s, on);
    assert_eq!(again[0].replace("expstatsn=11", "expstatsn=10"), first[0]);
    assert_eq!(s.recoveries().retries, 1);
    // The target requests the data of a rejected Data-Out by a recovery R2T: the task continues.
    let header = pdu::DataOut::new(itt, 5, Lun::ZERO, 0, 0);
    let reject = numbered!(pdu::Reject::new(RejectReason::DataDigestError), 11);
    assert!(hear(&mut s, on, reject, Bhs::from(header).bytes()).unwrap().is_none());
    done(hear(&mut s, on, good(itt, 12), &[]).unwrap());
}

/// A target that cannot resend data must not end the command with GOOD.
#[test]
fn without_retransmission_the_command_ends_with_check_condition() {
    for (status, good_end) in [(2, false), (0, true)] {
        let (mut s, on) = at_level(1);
        let itt = s.submit(read(300), Vec::new()).unwrap().itt();
        sent(&mut s, on);
        hear(&mut s, on, piece(itt, 1), &[2; 100]).unwrap();
        sent(&mut s, on);
        let snack = pdu::SnackRequest::new(pdu::SnackType::DataR2t, itt, pdu::RESERVED_TAG, 0, 0);
        let reject = numbered!(pdu::Reject::new(RejectReason::SnackReject), 10);
        assert!(hear(&mut s, on, reject, Bhs::from(snack).bytes()).unwrap().is_none());
        let mut end = good(itt, 11);
        end.status = status;
        end.exp_data_sn.set(2);
        let outcome = hear(&mut s, on, end, &[]);
        match good_end {
            true => assert_eq!(outcome.unwrap_err(), ProtocolError::Unrecoverable),
            false => assert_eq!(done(outcome.unwrap()).2.status, 2),
        }
    }
}

#[test]
fn the_targets_ping_shows_that_a_status_is_missing() {
    let (mut s, on) = at_level(1);
    s.submit(read(300), Vec::new()).unwrap();
    sent(&mut s, on);
    let ping = numbered!(pdu::NopIn::ping(9, Lun::ZERO), 11);
    hear(&mut s, on, ping, &[]).unwrap();
    assert!(snacks(&sent(&mut s, on))[0].contains("type=\"Status\" tag=none begrun=10"));
}

#[test]
fn a_silent_command_is_looked_after_with_a_ping_and_its_lost_status_found() {
    let (mut s, on) = at_level(1);
    let key = s.submit(read(300), Vec::new()).unwrap();
    sent(&mut s, on);
    assert!(s.tick().is_none() && sent(&mut s, on).is_empty());
    s.tick();
    let ping = sent(&mut s, on);
    assert!(ping.len() == 1 && ping[0].starts_with("NOP-Out"));
    let itt = itt_of(&ping[0]);
    let mut pong = numbered!(pdu::NopIn::answer(itt), 11);
    pong.exp_cmd_sn.set(101);
    hear(&mut s, on, pong, &[]).unwrap();
    assert!(snacks(&sent(&mut s, on))[0].contains("type=\"Status\" tag=none begrun=10"));
    let mut end = last_piece(key.itt(), 0, 10);
    end.set_status(0, Residual::Underflow(200));
    done(hear(&mut s, on, end, &[1; 100]).unwrap());
    hear(&mut s, on, pong, &[]).unwrap();
    assert!(s.is_empty() && s.tick().is_none());
}

#[test]
fn a_command_that_the_target_never_saw_is_sent_again_with_its_old_cmd_sn() {
    let (mut s, on) = at_level(1);
    let keys: Vec<_> = (0..2).map(|_| s.submit(read(100), Vec::new()).unwrap()).collect();
    let first = sent(&mut s, on);
    s.tick();
    s.tick();
    let ping = sent(&mut s, on);
    assert_eq!(ping.len(), 1);
    // Not before the ping is answered: it may only be late.
    s.tick();
    s.tick();
    assert!(sent(&mut s, on).is_empty());
    let itt = keys[1].itt() + 1;
    let pong = numbered!(pdu::NopIn::answer(itt), 10);
    hear(&mut s, on, pong, &[]).unwrap();
    s.tick();
    s.tick();
    let again = sent(&mut s, on);
    // The missing command, not those behind it.
    assert_eq!(again[0].replace("expstatsn=11", "expstatsn=10"), first[0]);
    assert!(!again.iter().any(|line| line.contains("cmdsn=101 ") && line.starts_with("SCSI")), "{again:?}");
}

#[test]
fn what_is_asked_for_in_vain_ends_the_connection() {
    let (mut s, on) = at_level(1);
    let itt = s.submit(read(300), Vec::new()).unwrap().itt();
    sent(&mut s, on);
    hear(&mut s, on, piece(itt, 1), &[2; 100]).unwrap();
    let mut ticks = 0;
    let given_up = loop {
        ticks += 1;
        assert!(ticks < 400);
        if let Some(given_up) = s.tick() {
            break given_up;
        }
        sent(&mut s, on);
    };
    assert_eq!(given_up, (Some(on), ProtocolError::Unrecoverable));
}

#[test]
fn a_peer_that_makes_us_ask_without_end_is_cut_off() {
    let (mut s, on) = at_level(1);
    let itt = s.submit(read(1000), Vec::new()).unwrap().itt();
    sent(&mut s, on);
    let outcome = (0..1000).find_map(|n| hear(&mut s, on, piece(itt, 2 + n % 2), &[2; 100]).err());
    assert_eq!(outcome, Some(ProtocolError::Unrecoverable));
    // Farther ahead than any real target.
    let (mut s, on) = at_level(1);
    let itt = s.submit(read(1000), Vec::new()).unwrap().itt();
    sent(&mut s, on);
    assert!(matches!(hear(&mut s, on, piece(itt, 1 << 20), &[]), Err(ProtocolError::DataSn { .. })));
    assert!(matches!(hear(&mut s, on, good(itt, 1 << 20), &[]), Err(ProtocolError::StatSn { .. })));
}

/// Two connections at level 2. The read on the first has received the first of three pieces; the
/// write on the second is not acknowledged.
fn two_connections() -> (Plain, [ConnectionId; 2], TaskKey, TaskKey) {
    let (mut s, first) = at_level(2);
    let second = s.connect(1, &established(s.params().clone()));
    let a = s.submit(read(300), Vec::new()).unwrap();
    let b = s.submit(write(vec![7; 10]), vec![]).unwrap();
    assert!(sent(&mut s, first)[0].contains("cmdsn=100 "));
    assert!(sent(&mut s, second)[0].contains("cmdsn=101 "));
    hear(&mut s, first, seen(piece(a.itt(), 0), 101), &[1; 100]).unwrap();
    (s, [first, second], a, b)
}

#[test]
fn tasks_of_a_removed_connection_resume_on_another() {
    let (mut s, [first, second], a, _) = two_connections();
    assert!(s.lose_connection(first).is_empty());
    assert_eq!((s.orphans(), s.connection_of(a)), (1, None));
    assert!(s.remove_for_recovery(second, 0));
    let out = sent(&mut s, second);
    assert!(out[0].contains("reason=\"remove the connection for recovery\" cid=0"), "{out:?}");
    let itt = a.itt() + 2;
    let answer = numbered!(pdu::LogoutResponse::new(itt, LogoutResult::Success, 2, 20), 10);
    let event = hear(&mut s, second, answer, &[]).unwrap();
    assert!(
        matches!(
            event,
            Some(Event::Removed {
                cid: 0,
                result: Some(LogoutResult::Success),
                time2wait_s: 2,
                time2retain_s: 20
            })
        ),
        "{event:?}"
    );
    assert!(sent(&mut s, second).is_empty(), "not before Time2Wait");
    s.adopt(0).unwrap();
    let out = sent(&mut s, second);
    assert!(
        out[0].contains(&format!("function=\"TASK REASSIGN\" lun=0 rtt={:#x}", a.itt()))
            && out[0].contains("expdatasn=1"),
        "{out:?}"
    );
    let reassign = itt_of(&out[0]);
    let mut complete = numbered!(pdu::TaskManagementResponse::new(reassign, Result5::FunctionComplete), 11);
    complete.exp_cmd_sn.set(102);
    assert!(hear(&mut s, second, complete, &[]).unwrap().is_none());
    hear(&mut s, second, seen(piece(a.itt(), 1), 102), &[2; 100]).unwrap();
    let (_, data, _) = done(hear(&mut s, second, seen(last_piece(a.itt(), 2, 12), 102), &[3; 100]).unwrap());
    assert_eq!(data, [[1; 100], [2; 100], [3; 100]].concat());
    assert_eq!((s.recoveries().reassigns, s.recoveries().connections, s.orphans()), (1, 1, 0));
}

#[test]
fn an_unacknowledged_command_is_resent_on_the_new_connection() {
    let (mut s, [first, second], _, b) = two_connections();
    s.lose_connection(second);
    // A new connection with the same CID replaces the logout.
    let again =
        s.connect(1, &Established { exp_cmd_sn: 101, max_cmd_sn: 108, ..established(s.params().clone()) });
    assert_eq!(again, second);
    s.adopt(1).unwrap();
    let out = [sent(&mut s, first), sent(&mut s, again)].concat();
    assert!(out.len() == 1 && out[0].starts_with("SCSI Command") && out[0].contains("cmdsn=101 "), "{out:?}");
    // The command had arrived after all, and waits for its reassignment: its silence shows that.
    let on = s.connection_of(b).unwrap();
    let ping = numbered!(pdu::NopIn::ping(9, Lun::ZERO), 10);
    let mut ping = ping;
    ping.exp_cmd_sn.set(102);
    hear(&mut s, on, ping, &[]).unwrap();
    s.tick();
    s.tick();
    let out = sent(&mut s, on);
    assert!(out.iter().any(|line| line.contains("TASK REASSIGN")), "{out:?}");
}

#[test]
fn a_command_that_was_never_sent_goes_to_another_connection_at_once() {
    let (mut s, first) = at_level(2);
    let second = s.connect(1, &established(s.params().clone()));
    for _ in 0..2 {
        s.submit(read(100), Vec::new()).unwrap();
    }
    assert!(sent(&mut s, second)[0].contains("cmdsn=101 "));
    s.lose_connection(first);
    s.tick();
    assert!(sent(&mut s, second)[0].contains("cmdsn=100 "));
    assert_eq!(s.recoveries().retries, 0);
}

type Heard = core::result::Result<Option<Event<Vec<u8>>>, ProtocolError>;

/// The state after a TASK REASSIGN with this response.
fn after_reassign(result: Result5, may_repeat: bool) -> (Plain, ConnectionId, Heard) {
    let (mut s, first) = at_level(2);
    let key = s.submit(Command { may_repeat, ..read(300) }, vec![9]).unwrap();
    sent(&mut s, first);
    hear(&mut s, first, seen(piece(key.itt(), 0), 101), &[1; 100]).unwrap();
    s.lose_connection(first);
    let on =
        s.connect(0, &Established { exp_cmd_sn: 101, max_cmd_sn: 108, ..established(s.params().clone()) });
    s.adopt(0).unwrap();
    let out = sent(&mut s, on);
    let itt = itt_of(&out[0]);
    let mut answer = numbered!(pdu::TaskManagementResponse::new(itt, result), 10);
    answer.exp_cmd_sn.set(101);
    answer.max_cmd_sn.set(108);
    let event = hear(&mut s, on, answer, &[]);
    (s, on, event)
}

#[test]
fn a_task_that_the_target_has_lost_is_repeated_if_it_may_be_and_else_lost() {
    let (mut s, on, event) = after_reassign(Result5::TaskDoesNotExist, true);
    assert!(event.unwrap().is_none());
    let out = sent(&mut s, on);
    assert!(out[0].starts_with("SCSI Command") && out[0].contains("cmdsn=101 "), "{out:?}");
    let (s, _, event) = after_reassign(Result5::TaskDoesNotExist, false);
    assert!(matches!(event, Ok(Some(Event::Lost(_, token))) if token[0] == 1));
    assert!(s.is_empty());
}

/// A target that answers late receives the request again.
#[test]
fn a_target_without_reassignment_ends_the_session() {
    for result in [Result5::ReassignmentNotSupported, Result5::NotSupported, Result5::FunctionRejected] {
        let (mut s, _, event) = after_reassign(result, true);
        assert!(event.unwrap_err().ends_session());
        assert!(s.disconnect(500).is_empty(), "the command waits for the next session");
        let on =
            s.connect(0, &Established { exp_cmd_sn: 500, max_cmd_sn: 507, ..established(Params::default()) });
        assert!(sent(&mut s, on)[0].contains("cmdsn=500 "));
    }
    let (mut s, on, event) = after_reassign(Result5::TaskStillAllegiant, true);
    assert!(event.unwrap().is_none());
    assert!(sent(&mut s, on).is_empty());
    s.tick();
    assert!(sent(&mut s, on)[0].contains("TASK REASSIGN"));
}

#[test]
fn few_tasks_are_reassigned_at_once_and_all_in_the_end() {
    let (mut s, first) = at_level(2);
    let keys: Vec<_> = (0..8).map(|_| s.submit(read(100), Vec::new()).unwrap()).collect();
    sent(&mut s, first);
    s.lose_connection(first);
    let on =
        s.connect(0, &Established { exp_cmd_sn: 108, max_cmd_sn: 115, ..established(s.params().clone()) });
    s.adopt(0).unwrap();
    let mut stat_sn = 10;
    let mut reassigned = 0;
    loop {
        let out = sent(&mut s, on);
        if out.is_empty() {
            break;
        }
        assert!(out.len() <= 4);
        for line in out {
            let itt = itt_of(&line);
            let mut answer =
                numbered!(pdu::TaskManagementResponse::new(itt, Result5::FunctionComplete), stat_sn);
            answer.exp_cmd_sn.set(108);
            stat_sn += 1;
            reassigned += 1;
            hear(&mut s, on, answer, &[]).unwrap();
        }
    }
    assert_eq!((reassigned, s.orphans(), keys.len()), (8, 0, 8));
}

#[test]
fn reassigned_data_may_begin_anew_and_be_cut_otherwise() {
    let (mut s, on, event) = after_reassign(Result5::FunctionComplete, true);
    assert!(event.unwrap().is_none());
    let itt = {
        let (key, _) = s.tokens_mut().next().unwrap();
        key.itt()
    };
    let mut whole = numbered!(pdu::DataIn::new(itt, 0, 0), 11);
    whole.set_status(0, Residual::Exact);
    let (_, data, _) = done(hear(&mut s, on, whole, &[8; 300]).unwrap());
    assert_eq!(data, [vec![8; 300]].concat());
}

#[test]
fn commands_are_spread_round_robin_or_by_what_is_outstanding() {
    for spread in [Spread::RoundRobin, Spread::LeastOutstanding] {
        let (mut s, first) = at_level(0);
        let second = s.connect(1, &established(s.params().clone()));
        s.set_spread(spread);
        let key = s.submit(read(100), Vec::new()).unwrap();
        sent(&mut s, first);
        let mut end = last_piece(key.itt(), 0, 10);
        end.exp_cmd_sn.set(101);
        done(hear(&mut s, first, end, &[1; 100]).unwrap());
        s.submit(read(100), Vec::new()).unwrap();
        let counts = [sent(&mut s, first).len(), sent(&mut s, second).len()];
        assert_eq!(counts, if spread == Spread::RoundRobin { [0, 1] } else { [1, 0] });
    }
}

/// The residual shows that data is missing.
#[test]
fn a_good_status_without_all_data_requests_the_data_once() {
    for comes in [true, false] {
        let (mut s, on) = at_level(1);
        let itt = s.submit(read(100), Vec::new()).unwrap().itt();
        sent(&mut s, on);
        // ExpDataSN is 0, as from a target that does not count.
        assert!(hear(&mut s, on, good(itt, 10), &[]).unwrap().is_none());
        assert!(snacks(&sent(&mut s, on))[0].contains("begrun=0"));
        let (_, data, _) = if comes {
            done(hear(&mut s, on, last_piece(itt, 0, 10), &[4; 100]).unwrap())
        } else {
            // The target has no more data: the read is complete.
            let snack = pdu::SnackRequest::new(pdu::SnackType::DataR2t, itt, pdu::RESERVED_TAG, 0, 0);
            let reject = numbered!(pdu::Reject::new(RejectReason::ProtocolError), 11);
            done(hear(&mut s, on, reject, Bhs::from(snack).bytes()).unwrap())
        };
        assert_eq!(data.len(), if comes { 100 } else { 0 });
    }
}

#[test]
fn a_snack_that_waits_to_be_sent_asks_only_for_what_is_still_missing() {
    let (mut s, on) = at_level(1);
    let keys: Vec<_> = (0..3).map(|_| s.submit(write(vec![1; 10]), vec![]).unwrap()).collect();
    sent(&mut s, on);
    hear(&mut s, on, good(keys[2].itt(), 12), &[]).unwrap();
    done(hear(&mut s, on, good(keys[0].itt(), 10), &[]).unwrap());
    assert!(snacks(&sent(&mut s, on))[0].contains("begrun=11 runlength=0 expstatsn=11"));
    hear(&mut s, on, good(keys[2].itt(), 12), &[]).unwrap();
    for (n, key) in keys.iter().enumerate().skip(1) {
        done(hear(&mut s, on, good(key.itt(), 10 + n as u32), &[]).unwrap());
    }
    assert!(snacks(&sent(&mut s, on)).is_empty());
    // The target rejects a late SNACK, which is harmless.
    let late = pdu::SnackRequest::new(pdu::SnackType::Status, pdu::RESERVED_TAG, pdu::RESERVED_TAG, 10, 0);
    let reject = numbered!(pdu::Reject::new(RejectReason::ProtocolError), 13);
    assert!(hear(&mut s, on, reject, Bhs::from(late).bytes()).unwrap().is_none());
}

/// Answers the internal pings in `lines`, if any.
fn answer_probes(s: &mut Plain, on: ConnectionId, lines: &[String], stat_sn: &mut u32) {
    for line in lines.iter().filter(|line| line.starts_with("NOP-Out") && line.contains(" I")) {
        let pong = numbered!(pdu::NopIn::answer(itt_of(line)), *stat_sn);
        assert!(hear(s, on, pong, &[]).unwrap().is_none());
        *stat_sn += 1;
    }
}

#[test]
fn a_lost_immediate_request_is_resent_after_an_answered_ping() {
    for kind in ["Task Management", "Text", "Logout"] {
        let (mut s, on) = at_level(1);
        let key = match kind {
            "Text" => s.text(on, b"SendTargets=\0".to_vec(), Vec::new()),
            "Logout" => s.logout(on, pdu::LogoutReason::CloseSession, Vec::new()),
            _ => s.task_management(on, TaskManagementFunction::LogicalUnitReset, Lun::ZERO, None, Vec::new()),
        };
        let itt = key.unwrap().itt();
        let is_it = |line: &&String| line.starts_with(kind) && line.contains(&format!("itt={itt:#x}"));
        let first: Vec<_> = sent(&mut s, on).into_iter().filter(|line| is_it(&line)).collect();
        assert_eq!(first.len(), 1, "{kind}");
        let (mut stat_sn, mut again) = (10, Vec::new());
        // Without an answered ping there is no proof that it is lost.
        for _ in 0..12 {
            assert!(s.tick().is_none());
            let lines = sent(&mut s, on);
            again.extend(lines.iter().filter(is_it).cloned());
            assert!(again.is_empty(), "{again:?}");
            if lines.iter().any(|line| line.starts_with("NOP-Out")) {
                break;
            }
        }
        let mut ticks = 0;
        while again.len() < 2 {
            assert!(s.tick().is_none());
            let lines = sent(&mut s, on);
            again.extend(lines.iter().filter(is_it).cloned());
            answer_probes(&mut s, on, &lines, &mut stat_sn);
            ticks += 1;
            assert!(ticks < 200, "{kind}: {again:?}");
        }
        assert_eq!(s.recoveries().requests, 2);
        // A second answer, because the first request was only late, is not a fault.
        for round in 0..2 {
            let heard = match kind {
                "Text" => {
                    let mut answer = numbered!(pdu::TextResponse::new(itt, pdu::RESERVED_TAG), stat_sn);
                    answer.set_final(true);
                    hear(&mut s, on, answer, b"TargetName=iqn.2026-01.org.example:a\0")
                }
                "Logout" => hear(
                    &mut s,
                    on,
                    numbered!(pdu::LogoutResponse::new(itt, LogoutResult::Success, 0, 0), stat_sn),
                    &[],
                ),
                _ => {
                    let answer = pdu::TaskManagementResponse::new(itt, Result5::FunctionComplete);
                    hear(&mut s, on, numbered!(answer, stat_sn), &[])
                }
            };
            assert_eq!(heard.unwrap().is_some(), round == 0, "{kind}");
            stat_sn += 1;
        }
    }
}

#[test]
fn a_slow_immediate_request_is_resent_a_few_times_only() {
    let (mut s, on) = at_level(1);
    let key = s.task_management(on, TaskManagementFunction::LogicalUnitReset, Lun::ZERO, None, Vec::new());
    let itt = key.unwrap().itt();
    let (mut stat_sn, mut count) = (10, 0);
    for _ in 0..2000 {
        assert!(s.tick().is_none());
        let lines = sent(&mut s, on);
        count += lines.iter().filter(|line| line.starts_with("Task Management")).count();
        answer_probes(&mut s, on, &lines, &mut stat_sn);
    }
    assert_eq!(count, 1 + 4);
    let answer = numbered!(pdu::TaskManagementResponse::new(itt, Result5::FunctionComplete), stat_sn);
    assert!(matches!(hear(&mut s, on, answer, &[]).unwrap(), Some(Event::TaskManagement(..))));
}

#[test]
fn at_level_0_no_request_is_kept() {
    let (mut s, on) = at_level(0);
    s.text(on, b"SendTargets=\0".to_vec(), Vec::new()).unwrap();
    assert!(s.exchange.requests.is_empty());
}

#[test]
fn a_late_rejection_of_a_resent_text_request_does_not_end_its_exchange() {
    let (mut s, on) = at_level(1);
    let itt = s.text(on, b"SendTargets=All\0".to_vec(), Vec::new()).unwrap().itt();
    sent(&mut s, on);
    let part = |ttt, last| {
        let mut answer = pdu::TextResponse::new(itt, ttt);
        answer.set_final(last);
        answer.set_continues(!last);
        answer
    };
    let mut old = pdu::TextRequest::new(itt, 7);
    for (stat_sn, ttt) in [(10, 7), (11, 8)] {
        assert!(hear(&mut s, on, numbered!(part(ttt, false), stat_sn), b"TargetName=").unwrap().is_none());
        sent(&mut s, on);
    }
    old.set_final(true);
    let reject = numbered!(pdu::Reject::new(RejectReason::InvalidPduField), 12);
    assert!(hear(&mut s, on, reject, Bhs::from(old).bytes()).unwrap().is_none());
    let last = numbered!(part(pdu::RESERVED_TAG, true), 13);
    assert!(matches!(hear(&mut s, on, last, b"iqn.2026-01.org.example:a\0").unwrap(), Some(Event::Text(..))));
    // The rejection of the outstanding request ends the exchange.
    let itt = s.text(on, b"SendTargets=All\0".to_vec(), Vec::new()).unwrap().itt();
    let mut request = pdu::TextRequest::new(itt, pdu::RESERVED_TAG);
    request.set_final(true);
    let reject = numbered!(pdu::Reject::new(RejectReason::InvalidPduField), 14);
    assert!(hear(&mut s, on, reject, Bhs::from(request).bytes()).unwrap().is_some());
}
