//! Text exchanges of a session that has logged in: SendTargets, and keys that are negotiated again.

use std::time::Duration;

use crate::support::{Client, IQN, Pdu, address, read10, server};
use iscsi::keys::Offer;
use iscsi::login::SessionType;
use iscsi::pdu::{AsyncEvent, Opcode, RESERVED_TAG, RejectReason, TextRequest};

fn stop(server: iscsi_server::Server) {
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

/// Sends a part of an exchange; returns the answer.
fn post(client: &mut Client, ttt: u32, is_final: bool, text: &str) -> Pdu {
    let itt = client.tag();
    let mut request = TextRequest::new(itt, ttt);
    request.as_bhs_mut().set_immediate(true);
    request.set_final(is_final);
    request.cmd_sn.set(client.cmd_sn);
    client.send(request.into(), text.replace(' ', "\0").as_bytes());
    client.receive().expect("an answer")
}

/// Sends the last part of an exchange, which the target rejects.
fn rejected(client: &mut Client, ttt: u32, text: &str) -> Option<RejectReason> {
    let answer = post(client, ttt, true, text);
    assert_eq!(answer.bhs.opcode(), Some(Opcode::Reject), "{}", answer.bhs);
    answer.bhs.as_reject().reason_code()
}

/// Sends a part of an exchange; returns the answer's pairs and the tag that continues it.
fn say(client: &mut Client, ttt: u32, is_final: bool, text: &str) -> (Vec<String>, u32) {
    let answer = post(client, ttt, is_final, text);
    assert_eq!(answer.bhs.opcode(), Some(Opcode::TextResponse), "{}", answer.bhs);
    let text = String::from_utf8(answer.data).expect("text");
    (text.split_terminator('\0').map(str::to_owned).collect(), answer.bhs.as_text_response().ttt.get())
}

/// A whole exchange of one request.
fn ask(client: &mut Client, text: &str) -> Vec<String> {
    let (answer, ttt) = say(client, RESERVED_TAG, true, text);
    assert_eq!(ttt, RESERVED_TAG, "the exchange ends");
    answer
}

/// The lengths of the data segments in which a read of 64 KiB comes.
fn segments(client: &mut Client) -> Vec<usize> {
    let mut command = client.command(0, &read10(0, 128));
    command.set_read(true);
    command.edtl.set(65536);
    client.send(command.into(), &[]);
    let mut lengths = Vec::new();
    loop {
        let pdu = client.receive().expect("an answer");
        assert_eq!(pdu.bhs.opcode(), Some(Opcode::DataIn), "{}", pdu.bhs);
        lengths.push(pdu.data.len());
        if pdu.bhs.as_data_in().has_status() {
            return lengths;
        }
    }
}

fn logged_in(server: &iscsi_server::Server) -> Client {
    let mut config = Client::config(1);
    config.offer = Offer { max_recv_data_segment_length: 65536, ..Offer::default() };
    let mut client = Client::login(address(server), config);
    client.settle(0);
    client
}

#[test]
fn a_normal_session_learns_of_its_own_target_and_of_no_other() {
    let server = server(|config| {
        let mut other = config.targets[0].clone();
        other.name = "iqn.2026-01.org.example:other".into();
        config.targets.push(other);
    });
    let mut client = logged_in(&server);
    let own = [format!("TargetName={IQN}"), format!("TargetAddress={},1", address(&server))];
    assert_eq!(ask(&mut client, "SendTargets= "), own);
    assert_eq!(ask(&mut client, &format!("SendTargets={IQN} ")), own);
    assert_eq!(ask(&mut client, "SendTargets=All "), ["SendTargets=Reject"]);
    assert_eq!(ask(&mut client, "SendTargets=iqn.2026-01.org.example:other "), [""; 0]);
    assert_eq!(ask(&mut client, "SendTargets=nonsense "), ["SendTargets=Reject"]);

    let mut config = Client::config(2);
    (config.target, config.offer) = (None, Offer::discovery());
    let mut client = Client::login(address(&server), config);
    assert_eq!(ask(&mut client, "SendTargets=All ").len(), 4, "{:?}", SessionType::Discovery);
    assert_eq!(ask(&mut client, "SendTargets=iqn.2026-01.org.example:other ").len(), 2);
    assert_eq!(ask(&mut client, "SendTargets= "), ["SendTargets=Reject"], "it has no target of its own");
    stop(server);
}

#[test]
fn a_data_segment_length_declared_anew_holds_for_the_next_read() {
    let server = server(|_| ());
    let mut client = logged_in(&server);
    assert_eq!(segments(&mut client), [65536]);
    assert_eq!(ask(&mut client, "MaxRecvDataSegmentLength=16384 "), [""; 0], "a declaration has no answer");
    assert_eq!(segments(&mut client), [16384; 4]);
    assert_eq!(ask(&mut client, "MaxRecvDataSegmentLength=100 "), ["MaxRecvDataSegmentLength=Reject"]);
    assert_eq!(segments(&mut client), [16384; 4]);
    stop(server);
}

#[test]
fn what_an_exchange_of_several_requests_agrees_on_holds_when_it_has_ended() {
    let server = server(|_| ());
    let mut client = logged_in(&server);
    let (_, tag) = say(&mut client, RESERVED_TAG, false, "MaxRecvDataSegmentLength=16384 ");
    assert_ne!(tag, RESERVED_TAG, "the target waits for the rest");
    assert_eq!(segments(&mut client), [65536], "nothing has been agreed on yet");
    let (_, tag) = say(&mut client, tag, true, "InitiatorAlias=me ");
    assert_eq!(tag, RESERVED_TAG);
    assert_eq!(segments(&mut client), [16384; 4]);

    // An exchange that is dropped for another changes nothing; the other may use its key.
    let (_, tag) = say(&mut client, RESERVED_TAG, false, "MaxRecvDataSegmentLength=512 ");
    assert_ne!(tag, RESERVED_TAG);
    assert_eq!(ask(&mut client, "MaxRecvDataSegmentLength=32768 "), [""; 0]);
    assert_eq!(segments(&mut client), [32768; 2]);
    stop(server);
}

#[test]
fn an_initiator_that_is_asked_to_negotiate_learns_of_the_targets_alias_and_segment_length() {
    let server = server(|_| ());
    let mut client = logged_in(&server);
    assert_eq!(ask(&mut client, ""), [""; 0], "nobody has asked for it");
    assert_eq!(server.request_negotiation(Some("iqn.2026-01.org.example:none"), Duration::from_secs(7)), 0);
    assert_eq!(server.request_negotiation(Some(IQN), Duration::from_secs(7)), 1);
    let asked = client.receive().expect("an Async Message");
    let message = asked.bhs.as_async_message();
    assert_eq!((message.event_code(), message.parameter3.get()), (Some(AsyncEvent::NegotiationRequest), 7));
    assert_eq!(ask(&mut client, ""), ["TargetAlias=test", "MaxRecvDataSegmentLength=262144"]);
    assert_eq!(ask(&mut client, ""), [""; 0], "it is told once");
    stop(server);
}

#[test]
fn a_server_that_ends_asks_for_logouts_and_says_what_it_drops() {
    let server = server(|_| ());
    let mut client = logged_in(&server);
    stop(server);
    let events: Vec<_> =
        std::iter::from_fn(|| client.receive()).map(|pdu| pdu.bhs.as_async_message().event_code()).collect();
    assert_eq!(events, [Some(AsyncEvent::LogoutRequest), Some(AsyncEvent::DropSession)]);
}

#[test]
fn a_key_said_twice_in_an_exchange_is_rejected_and_changes_nothing() {
    let server = server(|_| ());
    let mut client = logged_in(&server);
    for (key, again) in [
        ("MaxRecvDataSegmentLength=16384", "MaxRecvDataSegmentLength=8192"),
        ("MaxRecvDataSegmentLength=16384", "MaxRecvDataSegmentLength=16384"),
        ("SendTargets=", "SendTargets="),
    ] {
        let (_, tag) = say(&mut client, RESERVED_TAG, false, &format!("{key} "));
        let reject = rejected(&mut client, tag, &format!("{again} "));
        assert_eq!(reject, Some(RejectReason::ProtocolError), "{key}, {again}");
        // The exchange has ended: its tag is invalid.
        assert_eq!(rejected(&mut client, tag, "InitiatorAlias=me "), Some(RejectReason::InvalidPduField));
        assert_eq!(segments(&mut client), [65536], "the old value stands");
    }
    let twice = "MaxRecvDataSegmentLength=4096 MaxRecvDataSegmentLength=4096 ";
    assert_eq!(rejected(&mut client, RESERVED_TAG, twice), Some(RejectReason::ProtocolError));
    assert_eq!(rejected(&mut client, RESERVED_TAG, "no equals sign "), Some(RejectReason::InvalidPduField));
    assert_eq!(ask(&mut client, "MaxRecvDataSegmentLength=16384 "), [""; 0], "another may be begun");
    assert_eq!(segments(&mut client), [16384; 4]);
    stop(server);
}

#[test]
fn keys_of_login_are_rejected_and_unknown_ones_not_understood() {
    let server = server(|_| ());
    let mut client = logged_in(&server);
    for key in [
        "HeaderDigest=CRC32C",
        "MaxConnections=2",
        "InitialR2T=No",
        "MaxBurstLength=1024",
        "ErrorRecoveryLevel=0",
        "TargetPortalGroupTag=1",
        "AuthMethod=None",
        "TargetAddress=192.0.2.1",
    ] {
        let name = key.split_once('=').expect("a pair").0;
        assert_eq!(ask(&mut client, &format!("{key} ")), [format!("{name}=Reject")]);
    }
    assert_eq!(ask(&mut client, "X-org.example.new=1 "), ["X-org.example.new=NotUnderstood"]);
    stop(server);
}
