//! Dialogs at ErrorRecoveryLevel 1, clause by clause.

use std::time::Duration;

use super::Limits;
use crate::pdu::{self, Bhs, Lun, NopOut, RESERVED_TAG, RejectReason, SnackRequest, SnackType};
use crate::target::connection::tests::{Dialog, good};
use crate::target::{Abort, Completion, Event, Fatal, TaskKey};

const KEEP: usize = 64 << 10;

fn dialog() -> Dialog {
    Dialog::with(|config| config.recovery = Some(limits()))
}

fn limits() -> Limits {
    Limits { level: 1, keep_bytes: KEEP, keep_statuses: 12, data_timeout: Duration::from_secs(5) }
}

/// The traces of the sent PDUs, without data.
fn lines(d: &mut Dialog) -> Vec<String> {
    d.heard().into_iter().map(|(line, _)| line).collect()
}

fn snack(d: &mut Dialog, kind: SnackType, itt: u32, tag: u32, run: (u32, u32)) {
    snack_acking(d, kind, itt, tag, run, 50);
}

fn snack_acking(d: &mut Dialog, kind: SnackType, itt: u32, tag: u32, run: (u32, u32), exp_stat_sn: u32) {
    let mut request = SnackRequest::new(kind, itt, tag, run.0, run.1);
    request.exp_stat_sn.set(exp_stat_sn);
    assert_eq!(d.say(request.into(), &[]), None);
}

/// Acknowledges all statuses before this StatSN.
fn acknowledge(d: &mut Dialog, exp_stat_sn: u32) {
    let mut nop = NopOut::answer(0x7777, Lun::default());
    nop.exp_stat_sn.set(exp_stat_sn);
    assert_eq!(d.say(nop.into(), &[]), None);
}

fn command(d: &mut Dialog, itt: u32, read: bool, edtl: u32) -> Bhs {
    let mut bhs = d.command(itt, read, !read && edtl > 0, edtl);
    // ExpStatSN, which the harness leaves at 0: it acknowledges nothing.
    bhs.specific_20[8..12].copy_from_slice(&50u32.to_be_bytes());
    bhs
}

fn read(d: &mut Dialog, itt: u32, bytes: u32) -> TaskKey {
    let bhs = command(d, itt, true, bytes);
    let task = d.start(bhs, &[]);
    let data: Vec<u8> = (0..bytes).map(|at| (at / 7) as u8).collect();
    d.connection.put_data(task, data, &mut d.sent);
    task
}

fn whole_read(d: &mut Dialog, itt: u32, bytes: u32) {
    let task = read(d, itt, bytes);
    d.connection.finish(task, good(bytes.into(), 0), &mut d.sent);
}

fn write(d: &mut Dialog, itt: u32, bytes: u32) -> TaskKey {
    let mut bhs = command(d, itt, false, bytes);
    bhs.flags |= pdu::FINAL;
    let task = d.start(bhs, &[]);
    assert!(d.connection.want_data(task, bytes as usize, &mut d.sent).is_some());
    task
}

fn data_out(itt: u32, tag: u32, data_sn: u32, offset: u32, is_final: bool) -> Bhs {
    let mut out = pdu::DataOut::new(itt, tag, Lun::default(), data_sn, offset);
    out.set_final(is_final);
    out.exp_stat_sn.set(50);
    out.into()
}

/// The Target Transfer Tag in a trace.
fn tag_in(line: &str) -> u32 {
    let tag = line.split(" ttt=0x").nth(1).and_then(|rest| rest.split(' ').next()).expect("a tag");
    u32::from_str_radix(tag, 16).expect("a number")
}

fn rejected(lines: &[String], reason: RejectReason) -> bool {
    lines.last().is_some_and(|line| line.starts_with(&format!("Reject reason=\"{reason}\"")))
}

#[test]
fn data_in_that_a_snack_names_is_sent_again_byte_for_byte() {
    let mut d = dialog();
    whole_read(&mut d, 1, 3500);
    let first = d.heard();
    assert_eq!(first.len(), 4);
    snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (1, 2));
    let again = d.heard();
    // Only the command window's numbers are current: the window has not changed here.
    assert_eq!(again, first[1..3]);
    snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (2, 0));
    assert_eq!(d.heard(), first[2..], "RunLength 0: all from BegRun on");
    snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (0, 0));
    assert_eq!(d.heard(), first);
}

#[test]
fn a_resent_pdu_shows_the_command_window_of_now() {
    let mut d = dialog();
    whole_read(&mut d, 1, 100);
    assert!(lines(&mut d)[0].contains("expcmdsn=101 maxcmdsn=108"));
    read(&mut d, 2, 100);
    snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (0, 1));
    assert!(lines(&mut d)[0].contains("expcmdsn=102 maxcmdsn=108"));
}

#[test]
fn data_of_a_task_at_work_can_be_asked_for_too() {
    let mut d = dialog();
    let task = read(&mut d, 1, 2000);
    assert!(d.heard().is_empty(), "the last of it waits for its status");
    d.connection.put_data(task, vec![9; 1], &mut d.sent);
    assert!(d.heard().is_empty(), "what passes the expected length is dropped");
    let task = read(&mut d, 2, 9000);
    d.connection.put_data(task, Vec::new(), &mut d.sent);
    snack(&mut d, SnackType::DataR2t, 2, RESERVED_TAG, (0, 1));
    assert!(rejected(&lines(&mut d), RejectReason::ProtocolError), "nothing of it was sent");
}

#[test]
fn statuses_are_kept_until_they_are_acknowledged_and_sent_again_by_run() {
    let mut d = dialog();
    for itt in 1..=3 {
        let bhs = command(&mut d, itt, true, 0);
        let task = d.start(bhs, &[]);
        d.connection.finish(task, good(0, 0), &mut d.sent);
    }
    let first = d.heard();
    snack(&mut d, SnackType::Status, RESERVED_TAG, RESERVED_TAG, (51, 1));
    assert_eq!(
        lines(&mut d)[0],
        first[1].0.replace("expcmdsn=102 maxcmdsn=109", "expcmdsn=103 maxcmdsn=110")
    );
    snack(&mut d, SnackType::Status, RESERVED_TAG, RESERVED_TAG, (0, 0));
    assert_eq!(d.heard().len(), 3, "BegRun 0 and RunLength 0: all that is not acknowledged");
    snack(&mut d, SnackType::Status, RESERVED_TAG, RESERVED_TAG, (52, 0));
    assert_eq!(d.heard().len(), 1);
    acknowledge(&mut d, 52);
    snack(&mut d, SnackType::Status, RESERVED_TAG, RESERVED_TAG, (51, 1));
    assert!(rejected(&lines(&mut d), RejectReason::ProtocolError), "it is acknowledged");
    snack(&mut d, SnackType::Status, RESERVED_TAG, RESERVED_TAG, (52, 5));
    assert!(rejected(&lines(&mut d), RejectReason::ProtocolError), "not all of them were sent");
    snack(&mut d, SnackType::Status, RESERVED_TAG, RESERVED_TAG, (52, u32::MAX));
    assert!(rejected(&lines(&mut d), RejectReason::ProtocolError), "a wild run");
}

#[test]
fn a_status_that_came_with_data_is_sent_again_with_it() {
    let mut d = dialog();
    whole_read(&mut d, 1, 700);
    let first = d.heard();
    snack(&mut d, SnackType::Status, RESERVED_TAG, RESERVED_TAG, (50, 1));
    assert_eq!(d.heard(), first);
}

#[test]
fn every_pdu_that_takes_a_stat_sn_is_kept() {
    let mut d = dialog();
    let mut nop = NopOut::ping(9);
    nop.exp_stat_sn.set(50);
    d.say(nop.into(), b"ping");
    let bogus = SnackRequest::new(SnackType::Status, 3, RESERVED_TAG, 0, 0);
    d.say(bogus.into(), &[]);
    let first = d.heard();
    assert!(first[1].0.starts_with("Reject reason=\"Invalid PDU field\""), "{}", first[1].0);
    snack(&mut d, SnackType::Status, RESERVED_TAG, RESERVED_TAG, (50, 2));
    assert_eq!(d.heard(), first);
}

#[test]
fn acknowledgements_of_numbers_never_given_acknowledge_nothing() {
    let mut d = dialog();
    whole_read(&mut d, 1, 100);
    let first = d.heard();
    acknowledge(&mut d, 52);
    acknowledge(&mut d, 50_000);
    acknowledge(&mut d, 49);
    snack(&mut d, SnackType::Status, RESERVED_TAG, RESERVED_TAG, (50, 1));
    assert_eq!(d.heard(), first);
    assert_eq!(d.connection.kept_bytes(), 100);
    acknowledge(&mut d, 51);
    assert_eq!(d.connection.kept_bytes(), 0);
}

#[test]
fn a_snack_for_what_is_acknowledged_or_was_never_sent_is_rejected() {
    let mut d = dialog();
    whole_read(&mut d, 1, 2000);
    d.heard();
    for run in [(2, 1), (0, 3), (1, u32::MAX), (u32::MAX, 2), (2, 0), (u32::MAX, u32::MAX)] {
        snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, run);
        let lines = lines(&mut d);
        assert!(rejected(&lines, RejectReason::ProtocolError), "{run:?}: {lines:?}");
        assert!(lines[0].contains(" datasn=2"), "the next DataSN (RFC 7143 §11.17.3): {lines:?}");
    }
    snack(&mut d, SnackType::DataR2t, 77, RESERVED_TAG, (0, 1));
    assert!(rejected(&lines(&mut d), RejectReason::ProtocolError), "no such task");
    acknowledge(&mut d, 100);
    d.heard();
    let next = d.connection.stat_sn();
    acknowledge(&mut d, next);
    snack_acking(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (0, 1), next);
    assert!(rejected(&lines(&mut d), RejectReason::ProtocolError), "its status is acknowledged");
}

#[test]
fn a_snack_counts_before_the_acknowledgement_that_it_carries() {
    let mut d = dialog();
    whole_read(&mut d, 1, 100);
    let first = d.heard();
    snack_acking(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (0, 1), 51);
    assert_eq!(d.heard(), first);
    assert_eq!(d.connection.kept_bytes(), 0);
}

#[test]
fn every_max_burst_requests_a_data_ack_which_releases_the_data() {
    let mut d = dialog();
    let task = read(&mut d, 1, 10_000);
    d.connection.finish(task, good(10_000, 0), &mut d.sent);
    let all = lines(&mut d);
    let asking: Vec<_> = all.iter().filter(|line| line.contains(" A lun=")).collect();
    assert_eq!(asking.len(), 2, "MaxBurstLength is 4096, and the last PDU has the status: {all:?}");
    assert!(asking[0].contains("datasn=3 offset=3072") && asking[1].contains("datasn=7 offset=7168"));
    let tag = tag_in(asking[0]);
    assert_eq!(tag, tag_in(asking[1]));
    assert_eq!(d.connection.kept_bytes(), 10_000);
    snack(&mut d, SnackType::DataAck, RESERVED_TAG, tag, (4, 0));
    assert_eq!(d.connection.kept_bytes(), 10_000 - 4096);
    snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (3, 1));
    assert!(rejected(&lines(&mut d), RejectReason::ProtocolError), "it is acknowledged");
    snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (4, 1));
    assert!(lines(&mut d)[0].contains("datasn=4 offset=4096"));
    for (tag, run) in [(tag, (3, 0)), (tag, (11, 0)), (tag + 1, (5, 0)), (RESERVED_TAG, (5, 0))] {
        snack(&mut d, SnackType::DataAck, RESERVED_TAG, tag, run);
        assert!(rejected(&lines(&mut d), RejectReason::InvalidDataAck), "{tag:#x} {run:?}");
    }
    let mut foreign = SnackRequest::new(SnackType::DataAck, RESERVED_TAG, tag, 5, 0);
    foreign.lun = Lun::new(3).expect("a LUN");
    d.say(foreign.into(), &[]);
    assert!(rejected(&lines(&mut d), RejectReason::InvalidDataAck), "another LUN");
    let next = d.connection.stat_sn();
    acknowledge(&mut d, next);
    assert_eq!(d.connection.kept_bytes(), 0, "a status acknowledges the data before it");
}

#[test]
fn an_r_data_snack_cuts_the_data_anew_and_brings_a_response_with_its_tag() {
    let mut d = dialog();
    whole_read(&mut d, 1, 2500);
    let first = d.heard();
    assert_eq!(first.len(), 3);
    d.connection.set_peer_max_data_segment(600);
    snack(&mut d, SnackType::RData, 1, 0xabcd, (0, 0));
    let again = d.heard();
    let data =
        |pdus: &[(String, Vec<u8>)]| pdus.iter().flat_map(|(_, data)| data.clone()).collect::<Vec<u8>>();
    assert_eq!(data(&again), data(&first));
    assert_eq!(again.len(), 6, "1024 bytes are cut into 600 and 424");
    assert!(again.iter().all(|(line, data)| data.len() <= 600 && !line.contains(" S ")));
    assert!(again[0].0.contains("datasn=0 offset=0") && again[4].0.contains(" F"));
    assert!(again[5].0.contains("statsn=50") && again[5].0.contains("expdatasn=5"), "{}", again[5].0);
    // A Status SNACK returns the newest content.
    snack(&mut d, SnackType::Status, RESERVED_TAG, RESERVED_TAG, (50, 1));
    assert_eq!(d.heard(), again[5..]);
    for (tag, run) in [(0, (0, 0)), (RESERVED_TAG, (0, 0)), (5, (1, 0)), (5, (0, 1))] {
        snack(&mut d, SnackType::RData, 1, tag, run);
        assert!(rejected(&lines(&mut d), RejectReason::InvalidPduField), "{tag:#x} {run:?}");
    }
}

#[test]
fn a_read_that_is_cut_anew_at_work_ends_with_a_response_that_has_the_tag() {
    let mut d = dialog();
    let task = read(&mut d, 1, 4000);
    d.connection.put_data(task, vec![1; 8], &mut d.sent);
    let bhs = command(&mut d, 2, true, 6000);
    let task = d.start(bhs, &[]);
    d.connection.put_data(task, vec![1; 3000], &mut d.sent);
    d.connection.put_data(task, vec![2; 3000], &mut d.sent);
    assert_eq!(d.heard().len(), 3);
    snack(&mut d, SnackType::RData, 2, 77, (0, 0));
    assert_eq!(lines(&mut d).len(), 3);
    d.connection.finish(task, good(6000, 0), &mut d.sent);
    let (last, _) = d.heard().pop().expect("a response");
    assert!(last.starts_with("SCSI Response itt=0x2"), "{last}");
    let (bhs, _) = scsi_response_of(&d);
    assert_eq!(bhs.as_scsi_response().snack_tag.get(), 77);
}

/// The newest retained status.
fn scsi_response_of(d: &Dialog) -> (Bhs, u32) {
    let recovery = d.connection.numbering.recovery.as_ref().expect("level 1");
    recovery.statuses.back().map(|status| (status.bhs, status.stat_sn)).expect("a status")
}

/// A recovery R2T requests it after the end of its sequence.
#[test]
fn a_damaged_data_out_is_rejected_and_requested_again() {
    let mut d = dialog();
    let task = write(&mut d, 9, 4000);
    let r2t = lines(&mut d);
    let tag = tag_in(&r2t[0]);
    d.say(data_out(9, tag, 0, 0, false), &[1; 1000]);
    let bad = data_out(9, tag, 1, 1000, false);
    assert_eq!(d.connection.damaged(&bad, d.now, &mut d.sent), Ok(()));
    let heard = d.heard();
    assert!(heard[0].0.starts_with("Reject reason=\"Data (payload) digest error\""), "{}", heard[0].0);
    assert_eq!(heard[0].1, bad.bytes());
    assert_eq!(heard.len(), 1, "the R2T is outstanding until the F bit (RFC 7143 §13.17)");
    d.say(data_out(9, tag, 2, 2000, false), &[3; 1000]);
    d.say(data_out(9, tag, 3, 3000, true), &[4; 1000]);
    let again = lines(&mut d);
    assert!(again[0].contains("r2tsn=1 offset=1000 length=3000"), "{again:?}");
    assert_ne!(tag_in(&again[0]), tag);
    let tag = tag_in(&again[0]);
    d.say(data_out(9, tag, 0, 1000, false), &[2; 1000]);
    d.say(data_out(9, tag, 1, 2000, true), &[3; 2000]);
    assert_eq!(d.connection.data_available(task), 4000);
    let mut data = Vec::new();
    d.connection.take_data(task, 4000, |piece| data.extend(piece));
    assert_eq!((data[999], data[1000], data[3999]), (1, 2, 3));
    d.connection.finish(task, good(0, 4000), &mut d.sent);
    assert!(lines(&mut d)[0].contains("expdatasn=2"), "both R2Ts count");
}

#[test]
fn a_gap_in_the_data_sns_is_a_loss_and_a_duplicate_is_nothing() {
    let mut d = dialog();
    let task = write(&mut d, 9, 3000);
    let tag = tag_in(&lines(&mut d)[0]);
    d.say(data_out(9, tag, 0, 0, false), &[1; 1000]);
    d.say(data_out(9, tag, 0, 0, false), &[1; 1000]);
    assert_eq!(d.connection.data_available(task), 1000);
    d.say(data_out(9, tag, 2, 2000, true), &[3; 1000]);
    let again = lines(&mut d);
    assert!(again[0].contains("r2tsn=1 offset=1000 length=2000"), "{again:?}");
    // Late data of the first sequence is ignored.
    d.say(data_out(9, tag, 1, 1000, true), &[7; 1000]);
    assert_eq!(d.connection.data_available(task), 1000);
    d.say(data_out(9, tag_in(&again[0]), 0, 1000, true), &[2; 2000]);
    assert_eq!(d.connection.data_available(task), 3000);
}

#[test]
fn a_sequence_that_stops_is_asked_for_again_after_a_while() {
    let mut d = dialog();
    let task = write(&mut d, 9, 3000);
    let tag = tag_in(&lines(&mut d)[0]);
    d.now += Duration::from_secs(9);
    assert!(d.connection.recover(d.now, &mut d.sent).is_empty(), "the R2T may have just been sent");
    d.say(data_out(9, tag, 0, 0, false), &[1; 1000]);
    assert!(d.connection.is_pending());
    d.now += Duration::from_millis(900);
    assert!(d.connection.recover(d.now, &mut d.sent).is_empty());
    d.now += Duration::from_millis(200);
    assert_eq!(d.connection.recover(d.now, &mut d.sent), [task], "nothing else comes on the connection");
    let again = lines(&mut d);
    assert!(again[0].contains("r2tsn=1 offset=1000 length=2000"), "{again:?}");
    // While the connection has other input, the data may be in flight behind it.
    assert!(d.connection.recover(d.now, &mut d.sent).is_empty());
    d.now += Duration::from_secs(4);
    acknowledge(&mut d, 50);
    assert!(d.connection.recover(d.now, &mut d.sent).is_empty());
    d.now += Duration::from_millis(999);
    assert!(d.connection.recover(d.now, &mut d.sent).is_empty());
    d.now += Duration::from_millis(2);
    assert_eq!(d.connection.recover(d.now, &mut d.sent).len(), 1);
    let tag = tag_in(&lines(&mut d)[0]);
    d.say(data_out(9, tag, 0, 1000, true), &[2; 2000]);
    assert_eq!(d.connection.data_available(task), 3000);
}

#[test]
fn data_that_never_comes_fails_the_command_in_the_end() {
    let mut d = dialog();
    let task = write(&mut d, 9, 3000);
    for _ in 0..40 {
        d.now += Duration::from_secs(2);
        d.connection.recover(d.now, &mut d.sent);
    }
    let r2ts = lines(&mut d).iter().filter(|line| line.starts_with("R2T")).count();
    assert_eq!(r2ts, 1 + usize::from(super::MAX_RECOVERIES));
    assert_eq!(d.connection.want_data(task, 3000, &mut d.sent), None, "the unit gives up");
    d.connection.finish(task, good(0, 3000), &mut d.sent);
    let heard = d.heard();
    assert!(heard[0].0.contains("status=0x02"), "{}", heard[0].0);
    assert_eq!(&heard[0].1[14..16], [0x47, 0x05], "PROTOCOL SERVICE CRC ERROR");
}

#[test]
fn unsolicited_data_that_is_lost_comes_by_an_r2t() {
    let mut d = dialog();
    let mut bhs = command(&mut d, 9, false, 4000);
    bhs.flags &= !pdu::FINAL;
    let task = d.start(bhs, &[1; 500]);
    assert_eq!(d.connection.want_data(task, 4000, &mut d.sent), Some(4000));
    let bad = data_out(9, RESERVED_TAG, 0, 500, false);
    d.connection.damaged(&bad, d.now, &mut d.sent).expect("goes on");
    d.say(data_out(9, RESERVED_TAG, 1, 1000, true), &[3; 500]);
    let again = lines(&mut d);
    assert!(again[1].contains("r2tsn=0 offset=500 length=3500"), "{again:?}");
    // Late unsolicited data is no longer an error.
    d.say(data_out(9, RESERVED_TAG, 0, 500, false), &[2; 500]);
    d.say(data_out(9, tag_in(&again[1]), 0, 500, true), &[2; 3500]);
    assert_eq!(d.connection.data_available(task), 4000);
}

#[test]
fn an_r2t_that_was_lost_is_sent_again_as_it_was() {
    let mut d = dialog();
    write(&mut d, 9, 4000);
    let first = lines(&mut d);
    snack(&mut d, SnackType::DataR2t, 9, RESERVED_TAG, (0, 1));
    assert_eq!(lines(&mut d), first);
    snack(&mut d, SnackType::DataR2t, 9, RESERVED_TAG, (0, 0));
    assert_eq!(lines(&mut d), first);
    snack(&mut d, SnackType::DataR2t, 9, RESERVED_TAG, (1, 1));
    assert!(rejected(&lines(&mut d), RejectReason::ProtocolError));
}

#[test]
fn r2ts_have_unique_tags_and_the_next_sequence_reveals_a_lost_end() {
    let mut d = Dialog::with(|config| {
        config.recovery = Some(limits());
        config.write.max_r2t = 2;
    });
    let task = write(&mut d, 9, 8192);
    let r2ts = lines(&mut d);
    assert_eq!(r2ts.len(), 2);
    let (one, two) = (tag_in(&r2ts[0]), tag_in(&r2ts[1]));
    assert_ne!(one, two);
    d.say(data_out(9, one, 0, 0, false), &[1; 4000]);
    d.say(data_out(9, two, 0, 4096, true), &[2; 4096]);
    let again = lines(&mut d);
    assert!(again[0].contains("r2tsn=2 offset=4000 length=4096"), "{again:?}");
    assert!(again[1].contains("r2tsn=3 offset=8096 length=96"), "{again:?}");
    d.say(data_out(9, tag_in(&again[0]), 0, 4000, true), &[2; 4096]);
    d.say(data_out(9, tag_in(&again[1]), 0, 8096, true), &[2; 96]);
    assert_eq!(d.connection.data_available(task), 8192);
}

#[test]
fn a_response_waits_exactly_for_the_end_of_a_damaged_sequence() {
    let mut d = dialog();
    let task = write(&mut d, 9, 3000);
    let tag = tag_in(&lines(&mut d)[0]);
    d.connection.finish(task, Completion { status: 2, ..Completion::default() }, &mut d.sent);
    let bad = data_out(9, tag, 0, 0, false);
    d.connection.damaged(&bad, d.now, &mut d.sent).expect("goes on");
    assert_eq!(lines(&mut d).len(), 1, "the Reject");
    d.say(data_out(9, tag, 1, 1000, true), &[2; 2000]);
    assert!(lines(&mut d)[0].contains("status=0x02"), "nothing is asked for again that nobody wants");
}

#[test]
fn a_command_that_was_dropped_runs_when_it_is_sent_again_and_only_once() {
    let mut d = dialog();
    let bhs = command(&mut d, 1, false, 512);
    d.connection.damaged(&bhs, d.now, &mut d.sent).expect("goes on");
    assert!(lines(&mut d)[0].contains("expcmdsn=100"), "it was not received");
    let later = command(&mut d, 2, true, 0);
    assert_eq!(d.say(later, &[]), None, "it waits");
    let task = d.start(bhs, &[1; 512]);
    assert!(matches!(d.connection.next_held(&mut d.sent), Ok(Some(Event::Command(_)))));
    assert_eq!(d.say(bhs, &[1; 512]), None, "at work: ignored (RFC 7143 §7.2.1)");
    d.connection.finish(task, good(0, 512), &mut d.sent);
    d.heard();
    assert_eq!(d.say(bhs, &[1; 512]), None, "done: ignored");
    assert!(d.heard().is_empty());
}

#[test]
fn one_pdu_is_sent_again_a_few_times_only() {
    let mut d = dialog();
    whole_read(&mut d, 1, 900);
    d.heard();
    for _ in 0..super::MAX_RESENDS {
        snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (0, 0));
        assert_eq!(d.heard().len(), 1);
    }
    snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (0, 0));
    assert!(rejected(&lines(&mut d), RejectReason::SnackReject));
    let mut count = 0;
    let refused = loop {
        let request = SnackRequest::new(SnackType::DataR2t, 1, RESERVED_TAG, 0, 0);
        match d.try_say(request.into(), &[]) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 1000);
    };
    assert!(matches!(refused, Fatal::TooManyRejects | Fatal::Unacknowledged), "{refused:?}");
}

#[test]
fn too_many_unacknowledged_statuses_stop_the_window_and_cause_a_ping() {
    let mut d = dialog();
    for itt in 0..14 {
        let bhs = command(&mut d, itt, true, 0);
        let task = d.start(bhs, &[]);
        d.connection.finish(task, good(0, 0), &mut d.sent);
    }
    let last = lines(&mut d).pop().expect("a response");
    assert!(last.contains("expcmdsn=114 maxcmdsn=120"), "one place is owed: {last}");
    d.connection.recover(d.now, &mut d.sent);
    let asked = lines(&mut d);
    assert!(asked[0].starts_with("NOP-In itt=none ttt=0x") && asked[0].contains("statsn=64"), "{asked:?}");
    d.connection.recover(d.now, &mut d.sent);
    assert!(d.heard().is_empty(), "once");
    acknowledge(&mut d, 64);
    assert_eq!(d.connection.numbering.order.numbers(), (114, 121));
    assert!(!d.connection.is_pending());
}

#[test]
fn a_read_begins_no_burst_while_too_much_data_waits_and_one_always_may() {
    let mut d = dialog();
    let mut tasks = Vec::new();
    for itt in 0..8 {
        let bhs = command(&mut d, itt, true, 1 << 20);
        tasks.push(d.start(bhs, &[]));
    }
    let mut bursts = 0;
    for round in 0..4 {
        for task in &tasks {
            if d.connection.may_put(*task, d.now, &mut d.sent) {
                d.connection.put_data(*task, vec![round; 4096], &mut d.sent);
                bursts += 1;
            }
        }
    }
    assert!(d.connection.kept_bytes() <= KEEP, "{} bytes", d.connection.kept_bytes());
    assert!((16..=24).contains(&bursts), "{bursts} bursts of 4096 bytes");
    let all = lines(&mut d);
    assert!(
        all.iter().any(|line| line.starts_with("NOP-In itt=none ttt=0x")),
        "it asks for an acknowledgement"
    );
    let ack = all.iter().find(|line| line.contains(" A lun=") && line.contains("itt=0x0 ")).expect("it asks");
    assert!(!d.connection.may_put(tasks[0], d.now, &mut d.sent) || d.connection.kept_bytes() < KEEP);
    snack(&mut d, SnackType::DataAck, RESERVED_TAG, tag_in(ack), (4, 0));
    assert!(d.connection.take_made_room());
    assert!(tasks.iter().any(|task| d.connection.may_put(*task, d.now, &mut d.sent)));
}

#[test]
fn an_initiator_that_acknowledges_nothing_and_asks_for_more_is_dropped() {
    let mut d = dialog();
    let mut pings = 0;
    let error = loop {
        let mut nop = NopOut::ping(pings);
        nop.exp_stat_sn.set(50);
        match d.try_say(nop.into(), &[1; 64]) {
            Ok(_) => pings += 1,
            Err(error) => break error,
        }
        assert!(pings < 1000);
    };
    assert_eq!(error, Fatal::Unacknowledged);
}

#[test]
fn an_aborted_task_leaves_nothing_behind() {
    let mut d = dialog();
    let task = read(&mut d, 1, 8000);
    d.connection.put_data(task, vec![0; 1], &mut d.sent);
    let bhs = command(&mut d, 2, true, 9000);
    let other = d.start(bhs, &[]);
    d.connection.put_data(other, vec![0; 4000], &mut d.sent);
    d.connection.put_data(other, vec![0; 4000], &mut d.sent);
    assert!(d.connection.kept_bytes() > 0);
    for task in [task, other] {
        assert_eq!(d.connection.abort(task), Abort::Running);
        d.connection.finish(task, good(0, 0), &mut d.sent);
    }
    assert_eq!(d.connection.kept_bytes(), 0);
    assert!(!d.connection.is_pending());
}

/// The write fails after the end of its sequence.
#[test]
fn level_0_rejects_damaged_data_and_fails_the_write() {
    let mut d = Dialog::new();
    let task = write(&mut d, 9, 3000);
    let tag = tag_in(&lines(&mut d)[0]);
    let bad = data_out(9, tag, 0, 0, false);
    d.connection.damaged(&bad, d.now, &mut d.sent).expect("goes on");
    assert!(rejected(&lines(&mut d), RejectReason::DataDigestError));
    assert_eq!(d.connection.want_data(task, 3000, &mut d.sent), None, "the unit gives up");
    d.connection.finish(task, good(0, 3000), &mut d.sent);
    assert!(d.heard().is_empty(), "the sequence goes on");
    d.say(data_out(9, tag, 1, 1000, true), &[2; 2000]);
    let heard = d.heard();
    assert!(heard[0].0.contains("status=0x02"), "{}", heard[0].0);
    assert_eq!(&heard[0].1[14..16], [0x47, 0x05], "PROTOCOL SERVICE CRC ERROR");
}

#[test]
fn level_0_keeps_nothing_and_knows_no_snack() {
    let mut d = Dialog::new();
    whole_read(&mut d, 1, 2000);
    assert_eq!((d.connection.kept_bytes(), d.connection.is_pending()), (0, false));
    assert!(!lines(&mut d).iter().any(|line| line.contains(" A lun=")));
    snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (0, 1));
    assert!(rejected(&lines(&mut d), RejectReason::SnackReject));
}

#[test]
fn data_that_was_given_up_is_not_sent_again_and_its_snack_is_rejected() {
    let mut d = dialog();
    whole_read(&mut d, 1, 3500);
    let task = read(&mut d, 2, 9000);
    d.heard();
    assert!(d.connection.give_up_data(d.now));
    assert_eq!(d.connection.kept_bytes(), 0);
    assert!(d.connection.take_made_room());
    assert!(!d.connection.give_up_data(d.now), "there is nothing left");
    for run in [(1, 1), (0, 0), (0, 2)] {
        snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, run);
        assert!(rejected(&lines(&mut d), RejectReason::SnackReject), "{run:?}");
    }
    snack(&mut d, SnackType::RData, 1, 77, (0, 0));
    assert!(rejected(&lines(&mut d), RejectReason::SnackReject));
    // Its status was sent with the last of its data, and is now sent without it.
    snack(&mut d, SnackType::Status, RESERVED_TAG, RESERVED_TAG, (50, 1));
    let again = lines(&mut d);
    assert!(again[0].starts_with("SCSI Response itt=0x1 "), "{again:?}");
    assert!(again[0].contains("status=0x00 statsn=50") && again[0].contains("expdatasn=4"), "{again:?}");
    // The other read continues, and ends well unless its discarded data is requested.
    d.connection.finish(task, good(9000, 0), &mut d.sent);
    let end = lines(&mut d);
    assert!(end.last().is_some_and(|line| line.contains(" S status=0x00")), "{end:?}");
    acknowledge(&mut d, 80);
}

#[test]
fn a_command_at_work_whose_snack_was_rejected_ends_with_an_error() {
    let mut d = dialog();
    let bhs = command(&mut d, 1, true, 9000);
    let task = d.start(bhs, &[]);
    d.connection.put_data(task, vec![1; 4000], &mut d.sent);
    d.connection.put_data(task, vec![2; 4000], &mut d.sent);
    d.heard();
    assert!(d.connection.give_up_data(d.now));
    snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (0, 1));
    assert!(rejected(&lines(&mut d), RejectReason::SnackReject));
    d.connection.put_data(task, vec![3; 1000], &mut d.sent);
    d.connection.finish(task, good(9000, 0), &mut d.sent);
    let heard = d.heard();
    let (line, sense) = heard.last().expect("an end");
    assert!(line.starts_with("SCSI Response itt=0x1 ") && line.contains("status=0x02"), "{line}");
    assert_eq!(&sense[14..16], [0x11, 0x13], "READ ERROR - FAILED RETRANSMISSION REQUEST");
}

#[test]
fn room_that_the_driver_has_not_is_not_taken() {
    let mut d = dialog();
    let bhs = command(&mut d, 1, true, 9000);
    let first = d.start(bhs, &[]);
    d.connection.put_data(first, vec![0; 4000], &mut d.sent);
    d.connection.put_data(first, vec![0; 5000], &mut d.sent);
    d.heard();
    assert_eq!(d.connection.kept_bytes(), 4000);
    d.connection.set_keep_room(1000);
    let bhs = command(&mut d, 2, true, 9000);
    let second = d.start(bhs, &[]);
    assert!(!d.connection.may_begin(d.now, &mut d.sent));
    assert!(!d.connection.may_put(second, d.now, &mut d.sent));
    assert!(d.connection.wants_keep_room());
    assert!(lines(&mut d).iter().any(|line| line.starts_with("NOP-In itt=none ttt=0x")), "it asks");
    d.connection.set_keep_room(KEEP);
    d.connection.more_keep_room();
    assert!(d.connection.take_made_room());
    assert!(d.connection.may_put(second, d.now, &mut d.sent));
    d.connection.finish(first, good(9000, 0), &mut d.sent);
}

#[test]
fn r_data_keeps_the_r2t_numbers_of_a_bidirectional_command() {
    let mut d = dialog();
    let mut command = pdu::ScsiCommand::new(1, Lun::default(), pdu::TaskAttribute::Simple, &[0x53; 10]);
    command.set_read(true);
    command.set_write(true);
    command.set_final(true);
    command.edtl.set(3000);
    command.cmd_sn.set(d.cmd_sn);
    command.exp_stat_sn.set(50);
    d.cmd_sn += 1;
    let mut ahs = arrayvec::ArrayVec::<u8, { pdu::ahs::MAX_LEN }>::new();
    assert!(pdu::ahs::Ahs::BidiReadLength(3000).emit(&mut ahs));
    let event = d.connection.handle(&command.into(), &ahs, Vec::new(), d.now, &mut d.sent).unwrap();
    let Some(Event::Command(command)) = event else { panic!("{event:?}") };
    let task = command.task;
    d.connection.put_data(task, vec![1; 1000], &mut d.sent);
    d.connection.put_data(task, vec![2; 1000], &mut d.sent);
    assert!(d.connection.want_data(task, 3000, &mut d.sent).is_some());
    d.connection.put_data(task, vec![3; 1000], &mut d.sent);
    let numbers = |d: &mut Dialog| -> Vec<(bool, u32, u32)> {
        let field = |line: &str, name: &str| {
            let rest = line.split(name).nth(1).and_then(|rest| rest.split(' ').next());
            rest.and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
        };
        let numbered = |line: &String| match line.starts_with("R2T") || line.starts_with("Ready") {
            true => (true, field(line, "r2tsn="), field(line, " offset=")),
            false => (false, field(line, "datasn="), field(line, " offset=")),
        };
        lines(d)
            .iter()
            .filter(|line| line.contains("sn=") && line.contains(" offset="))
            .map(numbered)
            .collect()
    };
    assert_eq!(numbers(&mut d), [(false, 0, 0), (true, 1, 0), (false, 2, 1000)]);
    d.connection.set_peer_max_data_segment(600);
    snack(&mut d, SnackType::RData, 1, 77, (0, 0));
    assert_eq!(numbers(&mut d), [(false, 0, 0), (false, 2, 600), (false, 3, 1000), (false, 4, 1600)]);
    // The R2T is resent unchanged, and later data follows it.
    snack(&mut d, SnackType::DataR2t, 1, RESERVED_TAG, (1, 1));
    assert_eq!(numbers(&mut d), [(true, 1, 0)]);
    d.connection.finish(task, good(3000, 0), &mut d.sent);
    assert_eq!(numbers(&mut d), []);
}
