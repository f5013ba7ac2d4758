//! Read delegations: given, recalled, returned, revoked.

use ShareAccess::{Read, Write};

use super::*;
use crate::v4::flags::sequence_status::RECALLABLE_STATE_REVOKED;

fn given(server: &mut Server, client: Client, file: u64) -> Stateid {
    let delegation = server.open(client, file, Read).unwrap().delegation.unwrap();
    assert!(!delegation.recall);
    delegation.stateid
}

/// RFC 8881 §10.2.1: only to a client that can be called.
#[test]
fn a_delegation_is_given_after_a_call_was_answered() {
    let mut server = Server::new();
    let client = server.mount(1);
    server.state.reclaim_complete(server.now, client.id, false).unwrap();
    server.run(client);
    assert_eq!(server.open(client, 1, Read).unwrap().delegation, Err(WhyNoDelegation::Resource(false)));
    let probe = server.calls().pop().unwrap();
    server.answer(&probe, Outcome::Done(Ok(())));
    let delegation = given(&mut server, client, 1);
    assert_eq!(server.open(client, 1, Read).unwrap().delegation, Err(WhyNoDelegation::Contention(false)));
    assert_eq!(server.io(client, 1, delegation, Read), Ok(()));
    assert_eq!(server.io(client, 1, delegation, Write), Err(Status::OpenMode));
    assert_eq!(server.io(client, 2, delegation, Read), Err(Status::BadStateid));
    assert_eq!(server.state.return_delegation(client.id, delegation), Ok(()));
    assert_eq!(server.state.return_delegation(client.id, delegation), Err(Status::BadStateid));
}

#[test]
fn no_delegation_is_given_beside_a_writer_or_unwanted() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let writer = server.open(two, 1, Write).unwrap().stateid;
    assert_eq!(server.open(one, 1, Read).unwrap().delegation, Err(WhyNoDelegation::Contention(false)));
    server.state.close(two.id, writer).unwrap();
    let share = Share { access: Read, deny: ShareDeny::None };
    for (want, why) in
        [(want::NO_DELEG, WhyNoDelegation::NotWanted(())), (want::CANCEL, WhyNoDelegation::Cancelled(()))]
    {
        let claim = Claim::New;
        let open = OpenFile { file: &1, owner: b"o", share, claim, want, changing: false, made: false };
        assert_eq!(server.state.open(server.now, one.id, open).unwrap().delegation, Err(why));
    }
    // A change that was admitted before is in progress.
    let claim = Claim::New;
    let open = OpenFile { file: &1, owner: b"o", share, claim, want: 0, changing: true, made: false };
    let opened = server.state.open(server.now, one.id, open).unwrap();
    assert_eq!(opened.delegation, Err(WhyNoDelegation::Contention(false)));
    given(&mut server, one, 1);
    given(&mut server, two, 1);
}

/// RFC 8881 §10.4.1, §20.2.
#[test]
fn an_open_for_write_waits_for_the_return() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let delegation = given(&mut server, one, 1);
    assert_eq!(server.open(two, 1, Write), Err(Status::Delay));
    let calls = server.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].operation, CallbackOperation::Recall { stateid: delegation, file: 1 });
    assert_eq!(server.open(two, 1, Write), Err(Status::Delay));
    assert_eq!(server.calls(), []);
    server.hand_over();
    server.answer(&calls[0], Outcome::Done(Ok(())));
    assert_eq!(server.open(two, 1, Write), Err(Status::Delay));
    let under = server.open_as(one, b"o", 1, (Read, ShareDeny::None), Claim::Delegated(delegation)).unwrap();
    assert_eq!(under.delegation, Err(WhyNoDelegation::Resource(false)));
    server.state.return_delegation(one.id, delegation).unwrap();
    let writer = server.open(two, 1, Write).unwrap().stateid;
    server.state.close(two.id, writer).unwrap();
    // None for a while after a recall.
    assert_eq!(server.open(one, 1, Read).unwrap().delegation, Err(WhyNoDelegation::Contention(false)));
    server.pass(limits().cooling, &[one, two]);
    given(&mut server, one, 1);
}

/// RFC 8881 §10.4: conflicts without an OPEN.
#[test]
fn other_changes_of_the_file_recall_too() {
    for change in 0..4 {
        let mut server = Server::new();
        let (one, two) = (server.client(1), server.client(2));
        given(&mut server, one, 1);
        let now = server.now;
        let refused = match change {
            0 => server.io(two, 1, Stateid::ANONYMOUS, Write),
            1 => server.state.check_change(now, Some(two.id), &1),
            2 => server.state.check_change(now, None, &1),
            _ => server.open_as(two, b"o", 1, (Read, ShareDeny::Read), Claim::New).map(|_| ()),
        };
        // A denial of READ conflicts with the holder's open as well.
        assert_eq!(refused, Err(if change == 3 { Status::ShareDenied } else { Status::Delay }));
        assert_eq!(server.calls().len(), usize::from(change != 3));
        assert_eq!(server.state.check_change(now, Some(one.id), &1), Ok(()));
        assert_eq!(server.state.check_change(now, Some(one.id), &2), Ok(()));
    }
}

/// RFC 8881 §10.4.3, §18.38, §18.46.3.
#[test]
fn a_delegation_that_is_not_returned_is_revoked() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let delegation = given(&mut server, one, 1);
    assert_eq!(server.open(two, 1, Write), Err(Status::Delay));
    server.pass(LEASE - SECOND, &[one, two]);
    assert_eq!(server.open(two, 1, Write), Err(Status::Delay));
    server.pass(SECOND, &[one, two]);
    assert!(server.open(two, 1, Write).is_ok());
    assert_eq!(server.run(one).status_flags, RECALLABLE_STATE_REVOKED);
    assert_eq!(server.run(two).status_flags, 0);
    assert_eq!(server.state.test_stateid(one.id, delegation), Err(Status::DelegRevoked));
    assert_eq!(server.io(one, 1, delegation, Read), Err(Status::DelegRevoked));
    assert_eq!(server.state.return_delegation(one.id, delegation), Err(Status::DelegRevoked));
    server.hand_over();
    assert_eq!(server.state.free_stateid(two.id, delegation), Err(Status::BadStateid));
    assert_eq!(server.state.free_stateid(one.id, delegation), Ok(()));
    assert_eq!(server.run(one).status_flags, 0);
}

#[test]
fn a_recall_waits_for_a_backchannel() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let delegation = given(&mut server, one, 1);
    server.state.closed(one.connection);
    assert_eq!(server.open(two, 1, Write), Err(Status::Delay));
    assert_eq!(server.calls(), []);
    server.state.bind(30, one.session, ChannelFromClient::BackOrBoth).unwrap();
    let call = server.calls().pop().unwrap();
    assert_eq!(call.connection, 30);
    assert_eq!(call.operation, CallbackOperation::Recall { stateid: delegation, file: 1 });
    // The client may not know of the delegation yet: the server asks again.
    server.answer(&call, Outcome::Done(Err(Status::BadStateid)));
    assert_eq!(server.calls(), []);
    server.state.tick(server.now);
    assert_eq!(server.calls().pop().unwrap().operation, call.operation);
}

#[test]
fn delegations_are_bounded() {
    let mut server = Server::with(Limits { delegations: 1, ..limits() }, Vec::new());
    let client = server.client(1);
    let delegation = given(&mut server, client, 1);
    assert_eq!(server.open(client, 2, Read).unwrap().delegation, Err(WhyNoDelegation::Resource(false)));
    server.state.return_delegation(client.id, delegation).unwrap();
    given(&mut server, client, 2);
}

/// RFC 8881 §10.4: a denial of READ conflicts with the reads of the holder.
#[test]
fn a_denial_of_read_waits_for_the_return() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let opened = server.open(one, 1, Read).unwrap();
    server.state.close(one.id, opened.stateid).unwrap();
    let deny = |server: &mut Server| server.open_as(two, b"o", 1, (Read, ShareDeny::Read), Claim::New);
    assert_eq!(deny(&mut server), Err(Status::Delay));
    assert_eq!(server.calls().len(), 1);
    server.state.return_delegation(one.id, opened.delegation.unwrap().stateid).unwrap();
    assert!(deny(&mut server).is_ok());
}

#[test]
fn a_recall_outlives_its_session() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    given(&mut server, one, 1);
    assert_eq!(server.open(two, 1, Write), Err(Status::Delay));
    let lost = server.calls().pop().unwrap();
    let other = server.state.create_session(server.now, 40, ROOT, 1, &creation(one.id, 2)).unwrap();
    server.run(Client { session: other.session, connection: 40, ..one });
    let probe = server.calls().pop().unwrap();
    server.answer(&probe, Outcome::Done(Ok(())));
    assert_eq!(server.calls(), []);
    server.state.destroy_session(one.connection, one.session, None).unwrap();
    let again = server.calls().pop().unwrap();
    assert_eq!((again.session, again.operation), (other.session, lost.operation));
}
