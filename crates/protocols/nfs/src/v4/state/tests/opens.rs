//! OPEN, OPEN_DOWNGRADE, CLOSE, and what READ and WRITE may do.

use ShareAccess::{Both, Read, Write};

use super::*;

/// Without delegations, which are in the way of opens for write.
fn server() -> Server {
    Server::with(Limits { delegations: 0, ..limits() }, Vec::new())
}

fn held(server: &mut Server, client: Client, deny: ShareDeny) -> Stateid {
    server.open_as(client, b"holder", 1, (Read, deny), Claim::New).unwrap().stateid
}

/// RFC 8881 §9.9: the opens of one owner are one, and its stateid moves on.
#[test]
fn an_owner_has_one_open_of_a_file() {
    let mut server = server();
    let client = server.client(1);
    let read = server.open(client, 1, Read).unwrap().stateid;
    let write = server.open(client, 1, Write).unwrap().stateid;
    assert_eq!(write, Stateid { seqid: 2, ..read });
    let other = server.open_as(client, b"other", 1, (Read, ShareDeny::None), Claim::New).unwrap().stateid;
    assert_ne!(other.other, read.other);
    assert_eq!(server.io(client, 1, read, Read), Err(Status::OldStateid));
    let latest = Stateid { seqid: 0, ..read };
    assert_eq!(server.io(client, 1, latest, Write), Ok(()));
    let none = ShareDeny::None;
    assert_eq!(
        server.state.downgrade(client.id, read, Share { access: Read, deny: none }),
        Err(Status::OldStateid)
    );
    let read = server.state.downgrade(client.id, latest, Share { access: Read, deny: none }).unwrap();
    assert_eq!(read.seqid, 3);
    assert_eq!(server.io(client, 1, read, Write), Err(Status::OpenMode));
    assert_eq!(server.state.close(client.id, read), Ok(()));
    assert_eq!(server.state.close(client.id, read), Err(Status::BadStateid));
    assert_eq!(server.io(client, 1, read, Read), Err(Status::BadStateid));
}

/// RFC 8881 §9.7.
#[test]
fn an_open_is_denied_by_what_others_deny_and_do() {
    let mut server = server();
    let (one, two) = (server.client(1), server.client(2));
    let first = held(&mut server, one, ShareDeny::Write);
    assert_eq!(server.open(two, 1, Write), Err(Status::ShareDenied));
    assert_eq!(server.open_as(two, b"o", 1, (Read, ShareDeny::Read), Claim::New), Err(Status::ShareDenied));
    assert!(server.open(two, 1, Read).is_ok());
    server.state.close(one.id, first).unwrap();
    assert!(server.open(two, 1, Both).is_ok());
    assert_eq!(server.open_as(one, b"o", 1, (Read, ShareDeny::Write), Claim::New), Err(Status::ShareDenied));
}

/// RFC 8881 §8.2.3, §9.1.2: special stateids do not pass by a denial.
#[test]
fn share_deny_holds_for_special_stateids() {
    let mut server = server();
    let (one, two) = (server.client(1), server.client(2));
    let first = held(&mut server, one, ShareDeny::Write);
    for special in [Stateid::ANONYMOUS, Stateid::BYPASS] {
        assert_eq!(server.io(two, 1, special, Write), Err(Status::Locked));
        assert_eq!(server.io(two, 1, special, Read), Ok(()));
        assert_eq!(server.io(two, 2, special, Write), Ok(()));
    }
    let (now, anonymous) = (server.now, Stateid::ANONYMOUS);
    assert_eq!(server.state.check_io(now, None, &1, anonymous, Write), Err(Status::Locked));
    assert_eq!(server.state.check_io(now, None, &1, first, Read), Err(Status::BadStateid));
    server.state.close(one.id, first).unwrap();
    assert_eq!(server.io(two, 1, Stateid::ANONYMOUS, Write), Ok(()));
    assert_eq!(server.io(two, 1, Stateid::INVALID, Write), Err(Status::BadStateid));
    assert_eq!(server.io(two, 1, Stateid::CURRENT, Write), Err(Status::BadStateid));
}

/// RFC 8881 §8.2.4: the stateid is of this client and of this file.
#[test]
fn a_stateid_is_good_for_its_client_and_file_alone() {
    let mut server = server();
    let (one, two) = (server.client(1), server.client(2));
    let first = server.open(one, 1, Both).unwrap().stateid;
    server.open(two, 2, Both).unwrap();
    assert_eq!(server.io(one, 1, first, Write), Ok(()));
    assert_eq!(server.io(two, 1, first, Write), Err(Status::BadStateid));
    assert_eq!(server.io(one, 2, first, Write), Err(Status::BadStateid));
    assert_eq!(server.io(one, 3, first, Write), Err(Status::BadStateid));
    assert_eq!(server.state.close(two.id, first), Err(Status::BadStateid));
    assert_eq!(server.io(one, 1, Stateid { seqid: 2, ..first }, Write), Err(Status::BadStateid));
}

/// A client that writes parts of pages reads them first.
#[test]
fn an_open_for_write_may_read_unless_another_denies_it() {
    let mut server = server();
    let (one, two) = (server.client(1), server.client(2));
    let write = server.open(one, 1, Write).unwrap().stateid;
    assert_eq!(server.io(one, 1, write, Read), Ok(()));
    server.open_as(two, b"o", 1, (Read, ShareDeny::Read), Claim::New).unwrap();
    assert_eq!(server.io(one, 1, write, Read), Err(Status::OpenMode));
}

/// RFC 8881 §18.38, §18.48.
#[test]
fn an_open_is_tested_and_is_not_freed() {
    let mut server = server();
    let (one, two) = (server.client(1), server.client(2));
    let first = server.open(one, 1, Read).unwrap().stateid;
    assert_eq!(server.state.test_stateid(one.id, first), Ok(()));
    assert_eq!(server.state.test_stateid(two.id, first), Err(Status::BadStateid));
    assert_eq!(server.state.test_stateid(one.id, Stateid::ANONYMOUS), Err(Status::BadStateid));
    assert_eq!(server.state.free_stateid(one.id, first), Err(Status::LocksHeld));
    server.open(one, 1, Read).unwrap();
    assert_eq!(server.state.test_stateid(one.id, first), Err(Status::OldStateid));
}

#[test]
fn the_record_is_kept_before_the_first_open_is_answered() {
    let mut server = server();
    let client = server.client(1);
    assert_eq!(server.effects(), []);
    server.open(client, 1, Read).unwrap();
    assert_eq!(server.effects(), [Effect::Remember(record(1))]);
    server.open(client, 2, Read).unwrap();
    assert_eq!(server.effects(), []);
}

#[test]
fn opens_of_a_client_are_bounded() {
    let mut server = Server::with(Limits { opens: 2, ..limits() }, Vec::new());
    let client = server.client(1);
    let first = server.open(client, 1, Read).unwrap().stateid;
    assert!(server.state.has_room(client.id));
    server.open(client, 2, Read).unwrap();
    assert!(!server.state.has_room(client.id));
    assert_eq!(server.open(client, 3, Read), Err(Status::Delay));
    assert_eq!(server.state.usage().files, 2);
    assert!(server.open(client, 2, Write).is_ok());
    server.state.close(client.id, first).unwrap();
    assert!(server.open(client, 3, Read).is_ok());
    // A file was made while there was room.
    let share = Share { access: Read, deny: ShareDeny::None };
    let (claim, changing, made) = (Claim::New, false, true);
    let made = OpenFile { file: &4, owner: b"opener", share, claim, want: 0, changing, made };
    assert!(server.state.open(server.now, client.id, made).is_ok());
}
