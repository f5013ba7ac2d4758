//! EXCHANGE_ID, CREATE_SESSION, DESTROY_CLIENTID.

use super::*;

const CONFIRMED: u32 = exchange_id::USE_NON_PNFS | exchange_id::CONFIRMED_R;
const UPDATE: u32 = exchange_id::UPD_CONFIRMED_REC_A;

impl Server {
    fn exchange(&mut self, verifier: u8, principal: Principal<'_>, flags: u32) -> Result<Exchanged, Status> {
        self.state.exchange_id(self.now, principal, &owner(b"c", verifier), flags)
    }

    fn create(&mut self, client: ClientId, sequence: u32) -> Result<CreateSessionOk, Status> {
        self.state.create_session(self.now, 1, ROOT, 1, &creation(client, sequence))
    }
}

/// RFC 8881 §18.35.4, cases 1 and 4.
#[test]
fn an_unconfirmed_client_is_replaced() {
    let mut server = Server::new();
    let first = server.exchange(1, ROOT, 0).unwrap();
    assert_eq!(first.flags, exchange_id::USE_NON_PNFS);
    let second = server.exchange(1, ROOT, 0).unwrap();
    assert_ne!(first.client, second.client);
    assert_eq!(server.state.usage().clients, 1);
    assert_eq!(server.create(first.client, 1), Err(Status::StaleClientId));
    assert!(server.create(second.client, second.sequence).is_ok());
}

/// RFC 8881 §18.35.4, cases 2 and 6.
#[test]
fn a_confirmed_client_is_found_again() {
    let mut server = Server::new();
    let first = server.exchange(1, ROOT, 0).unwrap();
    server.create(first.client, 1).unwrap();
    let again = Exchanged { sequence: 2, flags: CONFIRMED, ..first };
    assert_eq!(server.exchange(1, ROOT, 0), Ok(again));
    assert_eq!(server.exchange(1, ROOT, UPDATE), Ok(again));
    assert!(server.create(first.client, 2).is_ok());
}

/// RFC 8881 §18.35.4, case 3.
#[test]
fn another_principal_gets_the_owner_only_without_state() {
    let mut server = Server::new();
    let first = server.exchange(1, ROOT, 0).unwrap();
    let session = server.create(first.client, 1).unwrap().session;
    assert_eq!(server.exchange(1, OTHER, 0), Err(Status::ClidInUse));
    server.state.destroy_session(1, session, None).unwrap();
    assert_eq!(server.exchange(1, OTHER, 0).unwrap().flags, exchange_id::USE_NON_PNFS);
    assert_eq!(server.create(first.client, 2), Err(Status::StaleClientId));
}

/// RFC 8881 §18.35.4, case 3: "or if there is state but the lease has expired".
#[test]
fn another_principal_gets_the_owner_of_an_expired_client() {
    let mut server = Server::new();
    let first = server.exchange(1, ROOT, 0).unwrap();
    server.create(first.client, 1).unwrap();
    server.now += LEASE + SECOND;
    assert!(server.exchange(1, OTHER, 0).is_ok());
    assert_eq!(server.state.usage().clients, 1);
}

/// RFC 8881 §18.35.4, case 5.
#[test]
fn a_restarted_client_loses_its_state_when_it_is_confirmed() {
    let mut server = Server::new();
    let old = server.client(b'c');
    server.open(old, 1, ShareAccess::Read).unwrap();
    let new = server.exchange(2, ROOT, 0).unwrap();
    assert_ne!(new.client, old.id);
    server.run(old);
    assert_eq!(server.state.usage().opens, 1);
    server.create(new.client, new.sequence).unwrap();
    let gone = server.sequence(1, request(old.session, 1, 1));
    assert_eq!(gone, Err(Status::BadSession));
    assert_eq!(
        server.state.usage(),
        Usage { clients: 1, sessions: 1, reserved: 4 * 4096, ..Usage::default() }
    );
    assert_eq!(server.effects().last(), Some(&Effect::Forget(Box::from(*b"c"))));
}

/// RFC 8881 §18.35.4, cases 7, 8 and 9.
#[test]
fn an_update_needs_the_confirmed_record() {
    let mut server = Server::new();
    assert_eq!(server.exchange(1, ROOT, UPDATE), Err(Status::NoEnt));
    let first = server.exchange(1, ROOT, 0).unwrap();
    assert_eq!(server.exchange(1, ROOT, UPDATE), Err(Status::NoEnt));
    server.create(first.client, 1).unwrap();
    assert_eq!(server.exchange(2, ROOT, UPDATE), Err(Status::NotSame));
    assert_eq!(server.exchange(1, OTHER, UPDATE), Err(Status::Perm));
}

/// RFC 8881 §18.35.3.
#[test]
fn unknown_flags_of_exchange_id_are_invalid() {
    let mut server = Server::new();
    assert_eq!(server.exchange(1, ROOT, exchange_id::CONFIRMED_R), Err(Status::Inval));
    assert_eq!(server.exchange(1, ROOT, 0x10), Err(Status::Inval));
}

/// RFC 8881 §18.36.4: one slot, whose result is replayed.
#[test]
fn create_session_is_replayed_by_its_sequence() {
    let mut server = Server::new();
    let client = server.exchange(1, ROOT, 0).unwrap().client;
    assert_eq!(server.create(client, 0), Err(Status::SeqMisordered));
    assert_eq!(server.create(client, 2), Err(Status::SeqMisordered));
    let created = server.create(client, 1);
    assert_eq!(server.create(client, 1), created);
    assert_eq!(server.state.usage().sessions, 1);
    let small = CreateSession { fore: Channel { max_request: 10, ..CHANNEL }, ..creation(client, 2) };
    assert_eq!(server.state.create_session(server.now, 1, ROOT, 1, &small), Err(Status::TooSmall));
    assert_eq!(server.create(client, 2), Err(Status::TooSmall));
    assert_ne!(server.create(client, 3).unwrap().session, created.unwrap().session);
}

/// A name can be claimed: it takes nothing from a client in use on another host.
#[test]
fn a_name_that_another_host_claims_replaces_no_client_in_use() {
    let mut server = Server::new();
    let first = server.exchange(1, ROOT, 0).unwrap();
    let session = server.create(first.client, 1).unwrap().session;
    assert_eq!(server.exchange(2, ELSEWHERE, 0), Err(Status::ClidInUse));
    // Nor is a guessed client ID one.
    let guessed = server.state.create_session(server.now, 9, ELSEWHERE, 1, &creation(first.client, 2));
    assert_eq!(guessed, Err(Status::StaleClientId));
    assert_eq!(server.exchange(1, ROOT, UPDATE).unwrap().sequence, 2, "the guess counts");
    // It is not in use any more.
    server.state.destroy_session(1, session, None).unwrap();
    let next = server.exchange(2, ELSEWHERE, 0).unwrap();
    assert!(server.state.create_session(server.now, 9, ELSEWHERE, 1, &creation(next.client, 1)).is_ok());
    assert_eq!(server.exchange(1, ROOT, UPDATE), Err(Status::NotSame));
}

/// The client was not in use when the other host began, and is again when it goes on.
#[test]
fn a_name_that_another_host_claimed_in_time_replaces_nothing_later() {
    let mut server = Server::new();
    let first = server.exchange(1, ROOT, 0).unwrap();
    let session = server.create(first.client, 1).unwrap().session;
    server.state.destroy_session(1, session, None).unwrap();
    let claimed = server.exchange(2, ELSEWHERE, 0).unwrap().client;
    let session = server.create(first.client, 2).unwrap().session;
    let create =
        |server: &mut Server| server.state.create_session(server.now, 9, ELSEWHERE, 1, &creation(claimed, 1));
    assert_eq!(create(&mut server), Err(Status::ClidInUse));
    server.state.destroy_session(1, session, None).unwrap();
    assert!(create(&mut server).is_ok());
}

/// RFC 8881 §2.10.5: client ID trunking.
#[test]
fn a_client_has_several_addresses_and_restarts_at_any() {
    let second = Principal { host: IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_compatible()), ..ROOT };
    let mut server = Server::new();
    let first = server.exchange(1, ROOT, 0).unwrap();
    server.create(first.client, 1).unwrap();
    assert_eq!(server.exchange(1, second, 0).unwrap().client, first.client);
    assert!(server.state.create_session(server.now, 9, second, 1, &creation(first.client, 2)).is_ok());
    let saved = server.state.save(|file| file.to_be_bytes().to_vec());
    server.state =
        ServerState::load(&saved, limits(), |it| Some(u64::from_be_bytes(it.try_into().ok()?))).unwrap();
    assert_ne!(server.exchange(2, second, 0).unwrap().client, first.client);
}

/// RFC 8881 §18.36.4: "If the principal … differs … NFS4ERR_CLID_INUSE".
#[test]
fn another_principal_does_not_confirm_a_client() {
    let mut server = Server::new();
    let client = server.exchange(1, ROOT, 0).unwrap().client;
    let other = server.state.create_session(server.now, 1, OTHER, 1, &creation(client, 1));
    assert_eq!(other, Err(Status::ClidInUse));
    assert!(server.create(client, 1).is_ok());
}

/// RFC 8881 §18.50.
#[test]
fn a_client_is_destroyed_only_without_sessions_and_state() {
    let mut server = Server::new();
    let client = server.client(b'c');
    assert_eq!(server.state.destroy_client(server.now, HOST, client.id), Err(Status::ClientIdBusy));
    let opened = server.open(client, 1, ShareAccess::Write).unwrap();
    server.state.destroy_session(client.connection, client.session, None).unwrap();
    assert_eq!(server.state.destroy_client(server.now, HOST, client.id), Err(Status::ClientIdBusy));
    server.state.close(client.id, opened.stateid).unwrap();
    assert_eq!(server.state.destroy_client(server.now, HOST, client.id), Ok(()));
    assert_eq!(server.state.destroy_client(server.now, HOST, client.id), Err(Status::StaleClientId));
    assert_eq!(server.state.usage(), Usage::default());
    let records = [Effect::Remember(record(b'c')), Effect::Forget([b'c'].into())];
    assert_eq!(server.effects(), records);
}

/// The call has no session that would show whose it is.
#[test]
fn another_host_does_not_destroy_an_idle_client() {
    let mut server = Server::new();
    let client = server.client(b'c');
    server.state.destroy_session(client.connection, client.session, None).unwrap();
    let elsewhere = server.state.destroy_client(server.now, ELSEWHERE.host, client.id);
    assert_eq!(elsewhere, Err(Status::StaleClientId));
    assert_eq!(server.state.destroy_client(server.now, HOST, client.id), Ok(()));
}

#[test]
fn too_many_clients_push_out_the_oldest_unconfirmed() {
    let mut server = Server::with(Limits { clients: 2, ..limits() }, Vec::new());
    let stays = server.client(1);
    for name in 2..9 {
        server.now += SECOND;
        server.state.exchange_id(server.now, ROOT, &owner(&[name], 1), 0).unwrap();
        assert_eq!(server.state.usage().clients, 2);
    }
    server.run(stays);
    let ninth = server.mount(9);
    let full = server.state.exchange_id(server.now, ROOT, &owner(&[10], 1), 0);
    assert_eq!(full, Err(Status::Delay));
    // A client that is known needs no room.
    let known = server.state.exchange_id(server.now, ROOT, &owner(&[9], 1), 0).unwrap();
    assert_eq!(known.client, ninth.id);
}

/// RFC 8881 §18.35.3: DELAY is what EXCHANGE_ID has for this. Whose clients are silent for longest
/// does not matter.
#[test]
fn a_host_that_makes_clients_without_end_pushes_out_its_own_alone() {
    let own = Limits { clients: 8, clients_of_host: 3, ..limits() };
    let mut server = Server::with(own, Vec::new());
    let exchange = |server: &mut Server, principal, name| {
        server.now += SECOND;
        server.state.exchange_id(server.now, principal, &owner(&[name], 1), 0).map(|it| it.client)
    };
    let first = exchange(&mut server, ELSEWHERE, 1).unwrap();
    for name in 2..30 {
        exchange(&mut server, ROOT, name).unwrap();
    }
    assert_eq!(server.state.usage().clients, 4);
    let create = creation(first, 1);
    server.state.create_session(server.now, 1, ELSEWHERE, 1, &create).expect("it is still known");
    // Those that stay are not pushed out, and there is no room for more; but there is for others.
    for name in 30..33 {
        server.mount(name);
    }
    assert_eq!(exchange(&mut server, ROOT, 40), Err(Status::Delay));
    assert!(exchange(&mut server, ELSEWHERE, 41).is_ok());
    server.hand_over();
    assert_eq!(exchange(&mut server, ROOT, 42), Err(Status::Delay));
    // A lease that is over makes room.
    server.now += LEASE;
    assert!(exchange(&mut server, ROOT, 43).is_ok());
}

#[test]
fn an_ipv6_network_of_64_bits_is_one_host() {
    let mut server = Server::with(Limits { clients_of_host: 2, ..limits() }, Vec::new());
    let mut exchange = |address: &str, name: u8| {
        let principal = Principal { host: address.parse().unwrap(), ..ROOT };
        let exchanged = server.state.exchange_id(server.now, principal, &owner(&[name], 1), 0).unwrap();
        let create = creation(exchanged.client, 1);
        server.state.create_session(server.now, 1, principal, 1, &create).map(|_| ())
    };
    assert_eq!([exchange("2001:db8::1", 1), exchange("2001:db8::2", 2)], [Ok(()), Ok(())]);
    assert_eq!(exchange("2001:db8:0:1::3", 3), Ok(()));
    let third = Principal { host: "2001:db8::ffff:0:0:3".parse().unwrap(), ..ROOT };
    let refused = server.state.exchange_id(server.now, third, &owner(&[4], 1), 0);
    assert_eq!(refused, Err(Status::Delay));
}

/// RFC 8881 §18.35.4, case 3, while a restart of the client is not confirmed yet.
#[test]
fn another_principal_replaces_both_records_of_an_owner() {
    let mut server = Server::new();
    let first = server.exchange(1, ROOT, 0).unwrap();
    let session = server.create(first.client, 1).unwrap().session;
    server.exchange(2, ROOT, 0).unwrap();
    server.state.destroy_session(1, session, None).unwrap();
    server.exchange(1, OTHER, 0).unwrap();
    assert_eq!(server.state.usage().clients, 1);
}
