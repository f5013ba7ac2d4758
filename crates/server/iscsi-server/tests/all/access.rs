//! Access of initiators: CHAP, access lists, masked and read-only units, discovery, digests.

use std::time::Duration;

use crate::support::{Client, IQN, address, read10, server, write10};
use iscsi::chap::{Credential, Hash, Secret};
use iscsi::keys::{Digest, DigestChoice};
use iscsi::login::initiator::Chap as Proof;
use iscsi::pdu::{Opcode, RESERVED_TAG, RejectReason, TextRequest};
use iscsi_server::config::{Acl, AclLun, Auth, Chap};

fn stop(server: iscsi_server::Server) {
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

fn credential(name: &str, secret: &str) -> Credential {
    Credential { name: name.into(), secret: Secret::new(secret) }
}

fn chap() -> Auth {
    Auth::Chap(Chap {
        users: vec![credential("alice", "a secret of alice")],
        mutual: Some(credential("target", "a secret of ours!")),
        hashes: vec![Hash::Sha256, Hash::Md5],
    })
}

/// Tries to log in with a name, a secret, and the secret with which the target must authenticate.
fn attempt(
    server: &iscsi_server::Server,
    user: &str,
    secret: &str,
    target: Option<&str>,
) -> Result<(), String> {
    let mut config = Client::config(1);
    config.skip_security = false;
    config.chap = Some(Proof {
        credential: credential(user, secret),
        target: target.map(|secret| credential("target", secret)),
        hashes: vec![],
    });
    Client::connect(address(server)).log_in(config)
}

#[test]
fn chap_lets_in_who_has_the_secret_and_nobody_else() {
    let server = server(|config| config.targets[0].auth = chap());
    assert_eq!(attempt(&server, "alice", "a secret of alice", None), Ok(()));
    assert!(attempt(&server, "alice", "a secret of other", None).is_err());
    assert!(attempt(&server, "bob", "a secret of alice", None).is_err());
    let mut none = Client::config(1);
    assert!(Client::connect(address(&server)).log_in(none.clone()).is_err(), "no security at all");
    none.skip_security = false;
    assert!(Client::connect(address(&server)).log_in(none).is_err(), "AuthMethod=None");
    stop(server);
}

#[test]
fn the_target_proves_itself_with_its_own_secret() {
    let server = server(|config| config.targets[0].auth = chap());
    assert_eq!(attempt(&server, "alice", "a secret of alice", Some("a secret of ours!")), Ok(()));
    assert!(attempt(&server, "alice", "a secret of alice", Some("not what is ours!")).is_err());
    assert!(attempt(&server, "alice", "a secret of other", Some("a secret of ours!")).is_err());
    stop(server);
}

#[test]
fn an_initiator_sees_the_units_of_its_entry_only_and_writes_where_it_may() {
    let server = server(|config| {
        let only = |seen_as, unit, read_only| Some(vec![AclLun { seen_as, unit, read_only }]);
        let acl = |name: &str, luns| Acl {
            initiator: name.into(),
            auth: None,
            user: None,
            luns,
            limits: Default::default(),
        };
        config.targets[0].acls = Some(vec![
            acl("iqn.2026-01.org.example:client1", only(5, 3, true)),
            acl("iqn.2026-01.org.example:client2", None),
        ]);
    });
    let mut one = Client::login(address(&server), Client::config(1));
    let mut two = Client::login(address(&server), Client::config(2));
    assert!(Client::connect(address(&server)).log_in(Client::config(3)).is_err(), "no entry");
    let (status, luns) = one.read(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256);
    assert_eq!((status, luns), (0, [&[0, 0, 0, 8, 0, 0, 0, 0][..], &[0, 5, 0, 0, 0, 0, 0, 0]].concat()));
    one.settle(5);
    two.settle(3);
    let (status, sense) = one.read(3, &read10(0, 1), 512);
    assert_eq!((status, sense[12]), (2, 0x25), "its number in the target is none of this initiator's");
    let (status, sense) = one.write(5, &write10(0, 1), &[1; 512]);
    assert_eq!((status, sense[2] & 0xf), (2, 7), "DATA PROTECT");
    assert_eq!(two.write(3, &write10(0, 1), &[2; 512]).0, 0);
    assert_eq!(one.read(5, &read10(0, 1), 512), (0, vec![2; 512]));
    stop(server);
}

#[test]
fn discovery_shows_the_targets_that_the_initiator_may_use() {
    let server = server(|config| {
        let entry = Acl {
            initiator: "iqn.2026-01.org.example:client1".into(),
            auth: None,
            user: None,
            luns: None,
            limits: Default::default(),
        };
        config.targets[0].acls = Some(vec![entry]);
    });
    let record = format!("TargetName={IQN}\0TargetAddress={},1\0", address(&server));
    for (number, expected) in [(1, record.as_str()), (2, "")] {
        let mut config = Client::config(number);
        config.target = None;
        let mut client = Client::login(address(&server), config);
        let mut text = TextRequest::new(client.tag(), RESERVED_TAG);
        text.cmd_sn.set(client.cmd_sn);
        client.send(text.into(), b"SendTargets=All\0");
        let answer = client.receive().expect("an answer");
        assert_eq!(answer.bhs.opcode(), Some(Opcode::TextResponse));
        assert_eq!(String::from_utf8_lossy(&answer.data), expected);
    }
    stop(server);
}

#[test]
fn digests_cover_what_goes_both_ways_and_data_with_a_wrong_one_is_rejected_and_not_written() {
    let server = server(|_| ());
    let mut config = Client::config(1);
    config.offer.header_digest = DigestChoice::Require;
    config.offer.data_digest = DigestChoice::Require;
    let mut client = Client::login(address(&server), config);
    let params = &client.session.as_ref().expect("logged in").params;
    assert_eq!((params.header_digest, params.data_digest), (Digest::Crc32c, Digest::Crc32c));
    client.settle(0);
    for blocks in [1u16, 17, 2048, 8192] {
        let data: Vec<u8> = (0..usize::from(blocks) * 512).map(|i| (i / 5) as u8).collect();
        assert_eq!(client.write(0, &write10(0, blocks), &data).0, 0, "{blocks} blocks");
        assert!(client.read(0, &read10(0, blocks), data.len() as u32) == (0, data), "{blocks} blocks");
    }
    let mut write = client.command(0, &write10(0, 1));
    write.set_write(true);
    write.edtl.set(512);
    let mut bytes = client.bytes(write.into(), &[0x99; 512]);
    *bytes.last_mut().expect("a digest") ^= 1;
    std::io::Write::write_all(&mut client.stream, &bytes).expect("the target reads");
    let reject = client.receive().expect("the connection goes on (RFC 7143 §7.8)");
    assert_eq!(reject.bhs.opcode(), Some(Opcode::Reject));
    assert_eq!(reject.bhs.as_reject().reason_code(), Some(RejectReason::DataDigestError));
    assert_eq!(reject.data, bytes[..48], "the header that was rejected");
    let mut other = Client::login(address(&server), Client::config(2));
    other.settle(0);
    let (status, data) = other.read(0, &read10(0, 1), 512);
    assert!(status == 0 && data != [0x99; 512], "damaged data was written");
    stop(server);
}
