//! Commands, pings, text, task management and logout, PDU by PDU.

use super::*;

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
fn a_held_session_sends_no_waiting_command_until_its_release() {
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
    let Ok(Some(Event::TaskManagement(_, _, result, ended))) = hear(&mut s, on, done, &[]) else {
        panic!("no event");
    };
    assert_eq!(result, Some(TaskManagementResult::FunctionComplete));
    assert!(ended.iter().map(|(key, _)| *key).eq([task]) && s.is_empty());

    let message = numbered!(pdu::AsyncMessage::new(AsyncEvent::LogoutRequest, Lun::ZERO, [0, 0, 5]), 11);
    assert!(matches!(hear(&mut s, on, message, &[]), Ok(Some(Event::Async(m))) if m.parameter3.get() == 5));

    let out = s.logout(on, pdu::LogoutReason::CloseSession, vec![]).unwrap();
    let done = numbered!(pdu::LogoutResponse::new(out.itt(), pdu::LogoutResult::Success, 2, 0), 12);
    assert!(matches!(
        hear(&mut s, on, done, &[]),
        Ok(Some(Event::LoggedOut(_, _, Some(pdu::LogoutResult::Success))))
    ));
}

/// RFC 7143 §4.2.3.2: the tasks of its unit that were sent before it. A PDU for one of them that
/// arrives on another connection is dropped.
#[test]
fn a_function_ends_the_tasks_that_it_affects() {
    for (function, ends_all) in [
        (TaskManagementFunction::AbortTaskSet, false),
        (TaskManagementFunction::LogicalUnitReset, false),
        (TaskManagementFunction::TargetWarmReset, true),
    ] {
        let (mut s, on) = session(Params::default());
        let second = s.connect(1, &established(Params::default()));
        let other_unit = Command { lun: Lun::new(7).unwrap(), ..read(1) };
        let keys = [read(1), read(1), other_unit].map(|command| s.submit(command, vec![]).unwrap());
        sent(&mut s, on);
        sent(&mut s, second);
        assert_eq!(s.connection_of(keys[1]), Some(second));
        let key = s.task_management(on, function, Lun::ZERO, None, vec![]).unwrap();
        let later = s.submit(read(1), vec![]).unwrap();
        sent(&mut s, on);
        let response = pdu::TaskManagementResponse::new(key.itt(), TaskManagementResult::FunctionComplete);
        let Ok(Some(Event::TaskManagement(.., ended))) = hear(&mut s, on, numbered!(response, 10), &[])
        else {
            panic!("no event")
        };
        let ended: Vec<_> = ended.iter().map(|(key, _)| *key).collect();
        assert_eq!(ended, keys[..if ends_all { 3 } else { 2 }]);
        assert!(s.connection_of(later).is_some());
        let late = pdu::ScsiResponse::new(keys[1].itt(), ResponseCode::CommandCompleted, 0);
        assert!(matches!(hear(&mut s, second, numbered!(late, 10), &[]), Ok(None)));
        // Not on the function's own connection: nothing of them comes after its response.
        let stray = numbered!(pdu::ScsiResponse::new(keys[0].itt(), ResponseCode::CommandCompleted, 0), 11);
        assert!(matches!(hear(&mut s, on, stray, &[]), Err(ProtocolError::UnknownTask(_))));
    }
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
            // Losing one of them is detected by the next of either type.
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
