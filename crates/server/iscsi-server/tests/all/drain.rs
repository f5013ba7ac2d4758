//! Drains: the initiators that are asked to log out, dropped, and admitted again.

use std::time::{Duration, Instant};

use crate::support::{Client, IQN, PATIENCE, address, server};
use iscsi::discovery::TargetAddress;
use iscsi::login::initiator::{InitiatorLogin, Step};
use iscsi::pdu::{AsyncEvent, LogoutReason, LogoutRequest, Opcode};
use iscsi_server::config::{Portal, Redirect};
use iscsi_server::{Disconnected, DrainError, DrainOptions, DrainScope, DrainState, DrainStatus, Server};

fn options(timeout: Duration) -> DrainOptions {
    DrainOptions { timeout, redirect: None }
}

fn target() -> DrainScope {
    DrainScope::Target(IQN.into())
}

fn stop(server: Server) {
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

/// The drain, once it has reached `state`.
fn wait_for(server: &Server, state: DrainState) -> DrainStatus {
    let limit = Instant::now() + PATIENCE;
    loop {
        let drain = server.handle().drains().remove(0);
        if drain.state == state {
            return drain;
        }
        assert!(Instant::now() < limit, "{drain:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The next PDU as an Async Message: its event and its parameters.
fn notice(client: &mut Client) -> (AsyncEvent, [u16; 3]) {
    let pdu = client.receive().expect("an Async Message");
    assert_eq!(pdu.bhs.opcode(), Some(Opcode::AsyncMessage), "{}", pdu.bhs);
    let message = pdu.bhs.as_async_message();
    let parameters = [message.parameter1.get(), message.parameter2.get(), message.parameter3.get()];
    (message.event_code().expect("an event of the RFC"), parameters)
}

fn log_out(client: &mut Client) {
    let itt = client.tag();
    let mut logout = LogoutRequest::new(itt, LogoutReason::CloseSession, 0);
    logout.as_bhs_mut().set_immediate(true);
    logout.cmd_sn.set(client.cmd_sn);
    client.send(logout.into(), &[]);
    while client.receive().is_some() {}
}

fn refusal(server: &Server, number: u8) -> String {
    Client::connect(address(server)).log_in(Client::config(number)).expect_err("nobody is let in")
}

#[test]
fn who_is_asked_and_logs_out_ends_the_drain_and_nobody_comes_in_until_it_is_undone() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    let handle = server.handle();
    handle.drain(target(), options(Duration::from_secs(600))).expect("the target is there");
    assert_eq!(handle.drain(target(), options(Duration::ZERO)), Err(DrainError::Again(target())));
    let none = DrainScope::Target("iqn.2026-01.org.example:none".into());
    assert_eq!(handle.drain(none.clone(), options(Duration::ZERO)), Err(DrainError::Unknown(none)));
    let (event, [_, _, seconds]) = notice(&mut client);
    assert_eq!(event, AsyncEvent::LogoutRequest);
    assert!((500..=600).contains(&seconds), "{seconds} s");
    assert_eq!(wait_for(&server, DrainState::Asking).left, 1);
    let refused = refusal(&server, 2);
    assert!(refused.contains("Service unavailable"), "{refused}");
    client.settle(0);
    log_out(&mut client);
    let drained = wait_for(&server, DrainState::Drained);
    assert_eq!((drained.asked, drained.dropped, drained.left), (1, 0, 0));
    refusal(&server, 2);
    assert!(handle.undrain(&target()) && !handle.undrain(&target()));
    Client::login(address(&server), Client::config(2)).settle(0);
    assert!(handle.drains().is_empty());
    stop(server);
}

#[test]
fn who_does_not_log_out_in_time_is_dropped_with_notice() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    server.handle().drain(DrainScope::All, options(Duration::from_millis(300))).expect("all is there");
    assert_eq!(notice(&mut client).0, AsyncEvent::LogoutRequest);
    let (event, [_, wait, retain]) = notice(&mut client);
    let params = &client.session.as_ref().expect("logged in").params;
    assert_eq!((event, wait, retain), (AsyncEvent::DropSession, params.default_time2wait_s, 0));
    assert!(client.receive().is_none(), "the connection ends");
    let drained = wait_for(&server, DrainState::Drained);
    assert_eq!((drained.asked, drained.dropped), (1, 1));
    stop(server);
}

#[test]
fn new_logins_are_sent_elsewhere_if_there_is_a_place() {
    let server = server(|_| ());
    let place = TargetAddress::parse("192.0.2.9:3260").expect("an address");
    let redirect = Some(Redirect { address: place, permanent: false, after_auth: false });
    let options = DrainOptions { timeout: Duration::from_secs(1), redirect };
    server.handle().drain(target(), options).expect("the target is there");
    assert!(refusal(&server, 1).contains("192.0.2.9:3260"));
    stop(server);
}

#[test]
fn a_drained_portal_takes_its_connections_along_and_leaves_the_session_the_others() {
    let server = server(|config| {
        let listen = "127.0.0.1:0".parse().expect("an address");
        config.portals.push(Portal { listen, group: 1, transports: Default::default() });
    });
    let (here, there) = (server.portals()[0].address, server.portals()[1].address);
    let mut config = Client::config(1);
    config.offer.max_connections = 4;
    let mut first = Client::login(here, config.clone());
    first.settle(0);
    let established = first.session.clone().expect("logged in");
    (config.tsih, config.cid, config.cmd_sn) = (established.tsih, 7, first.cmd_sn);
    config.session = Some(established.params);
    let mut second = Client::login(there, config);

    let handle = server.handle();
    handle.drain(DrainScope::Portal(there), options(Duration::from_millis(300))).expect("it listens");
    assert_eq!(notice(&mut second).0, AsyncEvent::LogoutRequest);
    let (event, [cid, ..]) = notice(&mut second);
    assert_eq!((event, cid), (AsyncEvent::DropConnection, 7));
    assert!(second.receive().is_none());
    wait_for(&server, DrainState::Drained);
    first.settle(0);
    assert!(Client::connect(there).log_in(Client::config(2)).is_err(), "the portal lets nobody in");
    Client::login(here, Client::config(2)).settle(0);
    stop(server);
}

#[test]
fn a_disconnected_initiator_is_refused_for_a_while_and_others_are_not_disturbed() {
    let server = server(|_| ());
    let handle = server.handle();
    let [mut gone, mut other] = [1, 2].map(|number| Client::login(address(&server), Client::config(number)));
    other.settle(0);
    let tsih = |number: u8| {
        let name = Client::config(number).initiator;
        let session = handle.sessions().into_iter().find(|session| session.initiator == name);
        session.expect("it is there").tsih
    };
    let first = tsih(1);
    let done = handle.disconnect(first, Duration::from_secs(3600)).expect("the session is there");
    let initiator = Client::config(1).initiator;
    assert_eq!(done, Disconnected { initiator, target: Some(IQN.into()), connections: 1 });
    assert_eq!(notice(&mut gone).0, AsyncEvent::DropSession);
    assert!(gone.receive().is_none(), "its connection is closed");
    assert_eq!(handle.disconnect(first, Duration::ZERO), None, "it has gone");
    let refused = refusal(&server, 1);
    assert!(refused.contains("Service unavailable"), "{refused}");
    other.settle(3);
    Client::login(address(&server), Client::config(3)).settle(0);
    // Without a time it may come back at once.
    handle.disconnect(tsih(2), Duration::ZERO).expect("the session is there");
    assert_eq!(notice(&mut other).0, AsyncEvent::DropSession);
    Client::login(address(&server), Client::config(2)).settle(0);
    stop(server);
}

#[test]
fn a_login_in_progress_of_a_disconnected_initiator_is_refused() {
    let server = server(|_| ());
    let handle = server.handle();
    let _there = Client::login(address(&server), Client::config(1));
    let tsih = handle.sessions().first().expect("it is there").tsih;
    // As far as the operational stage.
    let mut late = Client::connect(address(&server));
    let mut config = Client::config(1);
    config.skip_security = false;
    let mut login = InitiatorLogin::new(config);
    let mut request = login.start();
    let mut admitted = false;
    let refused = loop {
        late.send(request.header.into(), &request.data);
        let reply = late.receive().expect("an answer");
        match login.handle(reply.bhs.as_login_response(), &reply.data) {
            Ok(Step::Send(next)) => request = next,
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error.to_string(),
        }
        if !std::mem::replace(&mut admitted, true) {
            handle.disconnect(tsih, Duration::from_secs(3600)).expect("the session is there");
        }
    };
    assert!(admitted && refused.contains("Service unavailable"), "{refused}");
    assert!(handle.sessions().is_empty());
    stop(server);
}
