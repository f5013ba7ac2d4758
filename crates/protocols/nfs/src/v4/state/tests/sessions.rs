//! SEQUENCE, BIND_CONN_TO_SESSION, DESTROY_SESSION, channel attributes.

use super::*;
use crate::v4::flags::sequence_status;

fn running(sequenced: Result<Sequenced<'_>, Status>) -> Running {
    match sequenced {
        Ok(Sequenced::Run(running)) => running,
        other => panic!("{other:?}"),
    }
}

/// RFC 8881 §2.10.6.1.
#[test]
fn a_retry_gets_the_same_bytes() {
    let mut server = Server::new();
    let client = server.mount(1);
    let first = request(client.session, 2, 1);
    let run = running(server.sequence(1, first));
    assert_eq!((run.client(), run.answer().session), (client.id, client.session));
    assert_eq!((run.answer().highest_slot, run.limits()), (3, CHANNEL));
    assert_eq!(server.sequence(1, first), Err(Status::Delay));
    server.state.finish(server.now, run, b"reply");
    assert_eq!(server.sequence(2, first), Ok(Sequenced::Replay(b"reply")));
    server.hand_over();
    assert_eq!(server.sequence(2, first), Ok(Sequenced::Replay(b"reply")));
    let other = server.state.sequence(server.now, 1, &first, 99);
    assert_eq!(other, Err(Status::SeqFalseRetry));
}

/// RFC 8881 §2.10.6.1.3: the results of SEQUENCE are kept in any case.
#[test]
fn a_retry_of_what_was_not_kept_gets_the_results_of_sequence() {
    let mut server = Server::new();
    let client = server.mount(1);
    let first = Sequence { cache: false, ..request(client.session, 0, 1) };
    let run = running(server.sequence(1, first));
    let answer = run.answer();
    server.state.finish(server.now, run, &[1]);
    assert_eq!(server.sequence(1, first), Ok(Sequenced::Uncached(answer)));
    // A reply beyond ca_maxresponsesize_cached is not kept either.
    let second = request(client.session, 0, 2);
    let run = running(server.sequence(1, second));
    server.state.finish(server.now, run, &[0; 4097]);
    assert_eq!(server.state.usage().replies, 0);
    assert!(matches!(server.sequence(1, second), Ok(Sequenced::Uncached(_))));
}

/// RFC 8881 §18.46.3.
#[test]
fn sequence_names_a_session_and_one_of_its_slots() {
    let mut server = Server::new();
    let client = server.mount(1);
    let unknown = request(SessionId([9; 16]), 0, 1);
    assert_eq!(server.sequence(1, unknown), Err(Status::BadSession));
    assert_eq!(server.sequence(1, request(client.session, 4, 1)), Err(Status::BadSlot));
    let high = Sequence { highest_slot: 4, ..request(client.session, 0, 1) };
    assert_eq!(server.sequence(1, high), Err(Status::BadHighSlot));
    assert_eq!(server.sequence(1, request(client.session, 0, 2)), Err(Status::SeqMisordered));
}

/// RFC 8881 §18.36.3: a channel is at most what each side can do.
#[test]
fn channels_are_negotiated_under_the_limits() {
    let mut server = Server::new();
    let id = server.state.exchange_id(server.now, ROOT, &owner(b"c", 1), 0).unwrap().client;
    let huge = Channel {
        header_padding: 8,
        max_request: u32::MAX,
        max_response: u32::MAX,
        max_response_cached: u32::MAX,
        max_operations: u32::MAX,
        max_requests: u32::MAX,
        rdma_ird: Some(1),
    };
    let create = CreateSession { fore: huge, back: huge, ..creation(id, 1) };
    let created = server.state.create_session(server.now, 1, ROOT, 1, &create).unwrap();
    assert_eq!((created.fore, created.back), (limits().fore, limits().back));
    for fore in [Channel { max_requests: 0, ..CHANNEL }, Channel { max_response: 100, ..CHANNEL }] {
        let sequence = server.state.exchange_id(server.now, ROOT, &owner(b"c", 1), 0).unwrap().sequence;
        let create = CreateSession { fore, ..creation(id, sequence) };
        assert_eq!(server.state.create_session(server.now, 1, ROOT, 1, &create), Err(Status::TooSmall));
    }
}

#[test]
fn sessions_share_a_bounded_memory_of_replies() {
    let limits = Limits { replies: 5 * 4096, ..limits() };
    let mut server = Server::with(limits, Vec::new());
    let client = server.mount(1);
    let next = server.state.create_session(server.now, 1, ROOT, 1, &creation(client.id, 2)).unwrap();
    assert_eq!(next.fore.max_requests, 1);
    assert_eq!(
        server.state.create_session(server.now, 1, ROOT, 1, &creation(client.id, 3)),
        Err(Status::NoSpc)
    );
    server.state.destroy_session(1, client.session, None).unwrap();
    let next = server.state.create_session(server.now, 1, ROOT, 1, &creation(client.id, 4)).unwrap();
    assert_eq!(next.fore.max_requests, 4);
}

#[test]
fn the_sessions_of_a_host_keep_no_more_than_its_share() {
    let limits = Limits { replies: 64 * 4096, replies_of_host: 6 * 4096, ..limits() };
    let mut server = Server::with(limits, Vec::new());
    let mut create = |principal: Principal<'_>, name: u8| {
        let exchanged = server.state.exchange_id(server.now, principal, &owner(&[name], 1), 0).unwrap();
        let create = creation(exchanged.client, exchanged.sequence);
        let created = server.state.create_session(server.now, 1, principal, 1, &create);
        created.map(|it| it.fore.max_requests)
    };
    assert_eq!([create(ROOT, 1), create(ROOT, 2), create(ROOT, 3)], [Ok(4), Ok(2), Err(Status::NoSpc)]);
    assert_eq!(create(ELSEWHERE, 4), Ok(4));
}

/// RFC 8881 §18.37: "on a connection bound to the session".
#[test]
fn a_session_is_destroyed_on_one_of_its_connections() {
    let mut server = Server::new();
    let client = server.mount(1);
    let destroy = |server: &mut Server, connection, own: Option<&Running>| {
        server.state.destroy_session(connection, client.session, own)
    };
    assert_eq!(destroy(&mut server, 2, None), Err(Status::ConnNotBoundToSession));
    let run = running(server.sequence(2, request(client.session, 0, 1)));
    let other = running(server.sequence(2, request(client.session, 1, 1)));
    assert_eq!(destroy(&mut server, 2, Some(&run)), Err(Status::Delay));
    server.state.finish(server.now, other, &[]);
    assert_eq!(destroy(&mut server, 2, Some(&run)), Ok(()));
    server.state.finish(server.now, run, b"reply");
    assert_eq!(destroy(&mut server, 2, None), Err(Status::BadSession));
    assert_eq!(server.state.usage(), Usage { clients: 1, ..Usage::default() });
}

/// RFC 8881 §18.34, §18.46.3.
#[test]
fn a_client_learns_that_its_backchannel_is_gone() {
    let mut server = Server::new();
    let client = server.mount(1);
    assert_eq!(server.run(client).status_flags, 0);
    server.state.closed(client.connection);
    let client = Client { connection: 20, ..client };
    let down = sequence_status::CB_PATH_DOWN | sequence_status::CB_PATH_DOWN_SESSION;
    assert_eq!(server.run(client).status_flags, down);
    let bound = server.state.bind(20, client.session, ChannelFromClient::BackOrBoth);
    assert_eq!(bound, Ok(ChannelFromServer::Both));
    assert_eq!(server.run(client).status_flags, 0);
    assert_eq!(server.state.bind(21, client.session, ChannelFromClient::Back), Ok(ChannelFromServer::Back));
    assert_eq!(server.state.bind(22, client.session, ChannelFromClient::Fore), Ok(ChannelFromServer::Fore));
    let unknown = SessionId([9; 16]);
    assert_eq!(server.state.bind(22, unknown, ChannelFromClient::Fore), Err(Status::BadSession));
}

/// RFC 8881 §20.9: the retry has the slot and the sequence ID of the first call.
#[test]
fn a_lost_call_is_sent_again_on_another_connection() {
    let mut server = Server::new();
    let client = server.mount(1);
    server.run(client);
    let first = server.calls().pop().unwrap();
    assert_eq!((first.connection, first.slot, first.sequence), (1, 0, 1));
    assert_eq!(first.operation, CallbackOperation::Probe);
    server.state.bind(20, client.session, ChannelFromClient::Back).unwrap();
    server.state.closed(1);
    assert_eq!(server.calls(), [Callback { connection: 20, ..first.clone() }]);
    server.answer(&first, Outcome::Refused(Status::Delay));
    assert_eq!(server.calls(), []);
    server.hand_over();
    server.state.tick(server.now);
    assert_eq!(server.calls(), [Callback { connection: 20, ..first.clone() }]);
    server.answer(&first, Outcome::Refused(Status::SeqMisordered));
    assert_ne!(server.run(client).status_flags & sequence_status::BACKCHANNEL_FAULT, 0);
}

/// A client that is not done with CREATE_SESSION asks to wait; its next call shows that it is.
#[test]
fn a_probe_that_is_to_wait_is_sent_again_at_the_clients_next_call() {
    let mut server = Server::new();
    let client = server.mount(1);
    server.run(client);
    let probe = server.calls().pop().unwrap();
    server.answer(&probe, Outcome::Refused(Status::Delay));
    assert_eq!(server.calls(), []);
    server.run(client);
    assert_eq!(server.calls(), [probe]);
    server.run(client);
    assert_eq!(server.calls(), [], "it is on its way");
}

#[test]
fn connections_of_a_session_are_bounded() {
    let mut server = Server::with(Limits { connections: 2, ..limits() }, Vec::new());
    let client = server.mount(1);
    for connection in 2..9 {
        server.run(Client { connection, ..client });
    }
    assert_eq!(server.state.bind(9, client.session, ChannelFromClient::Fore), Err(Status::Delay));
    server.state.closed(2);
    assert_eq!(server.state.bind(9, client.session, ChannelFromClient::Fore), Ok(ChannelFromServer::Fore));
}

#[test]
fn a_call_without_an_answer_takes_the_connection_out_of_the_backchannel() {
    let mut server = Server::new();
    let client = server.mount(1);
    server.run(client);
    let probe = server.calls().pop().unwrap();
    server.answer(&probe, Outcome::Lost);
    assert_eq!(server.calls(), []);
    let down = sequence_status::CB_PATH_DOWN | sequence_status::CB_PATH_DOWN_SESSION;
    assert_eq!(server.run(client).status_flags, down);
    server.state.bind(20, client.session, ChannelFromClient::Back).unwrap();
    assert_eq!(server.calls(), [Callback { connection: 20, ..probe }]);
}

/// RFC 8881 §18.33.
#[test]
fn backchannel_ctl_changes_the_program_of_calls() {
    let mut server = Server::new();
    let client = server.mount(1);
    server.state.set_backchannel(client.session, 77, List::EMPTY).unwrap();
    server.run(client);
    assert_eq!(server.calls().pop().unwrap().program, 77);
    assert_eq!(server.state.set_backchannel(SessionId([9; 16]), 77, List::EMPTY), Err(Status::NoEnt));
}

/// The caller's numbers are the only chance in it.
#[test]
fn the_same_steps_from_one_seed_make_the_same_state() {
    let run = || {
        let mut server = Server::new();
        let (one, two) = (server.client(1), server.client(2));
        let open = server.open(one, 1, ShareAccess::Both).unwrap().stateid;
        let locker = Locker::New { open, owner: b"a" };
        server.lock(one, 1, locker, LockType::Write, (0, 10)).unwrap();
        server.open(two, 2, ShareAccess::Read).unwrap();
        (server.state.save(|it| it.to_be_bytes().to_vec()), server.effects())
    };
    assert_eq!(run(), run());
}
