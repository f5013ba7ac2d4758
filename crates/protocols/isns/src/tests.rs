//! Message round trips, registrations, and invalid bytes.

use std::net::SocketAddr;

use crate::attribute::{Tag, Writer};
use crate::header::{Function, HEADER_LEN, RESPONSE, Status, flags};
use crate::message::{Joiner, Message, Numbers};
use crate::query::{self, Found};
use crate::registration::{Entity, Inquiries, Portal, Target, period};
use crate::{Attribute, Attributes, MAX_MESSAGE, Malformed};

fn portal(address: &str, group: u16) -> Portal {
    Portal { address: address.parse().unwrap(), group }
}

fn entity() -> Entity {
    let target = |name: &str, groups: &[u16]| Target {
        name: format!("iqn.2026-01.org.example:{name}"),
        alias: String::new(),
        groups: groups.to_vec(),
    };
    Entity {
        id: "host.example".into(),
        period_s: 300,
        portals: vec![portal("192.0.2.1:3260", 1), portal("[2001:db8::1]:3261", 2)],
        targets: vec![target("a", &[1, 2]), target("b", &[2])],
        inquiries: Some(Inquiries { at: "192.0.2.1".parse().unwrap(), port: 4000, interval_s: 60 }),
    }
}

fn tags(message: &Message) -> Vec<u32> {
    message.attributes().map(|one| one.unwrap().tag.0).collect()
}

/// A server's answer with these operating attributes.
fn answer(operating: &Writer) -> Message {
    let mut payload = vec![0; 4];
    let mut delimiter = Writer::new();
    delimiter.tag(Tag::DELIMITER);
    payload.extend_from_slice(delimiter.bytes());
    payload.extend_from_slice(operating.bytes());
    Message {
        function: Function::DevAttrQry.code() | RESPONSE,
        flags: flags::SERVER,
        transaction: 1,
        payload,
    }
}

#[test]
fn a_message_is_written_as_the_rfc_lays_it_out() {
    let mut out = Writer::new();
    out.text(Tag::ISCSI_NAME, "iqn.x").tag(Tag::DELIMITER).number(Tag::ISCSI_NODE_TYPE, 1);
    let bytes = Message::request(Function::DevAttrQry, 7, &out).encode();
    let expected = [
        &[0, 1, 0, 2, 0, 36, 0x8c, 0, 0, 7, 0, 0][..],
        &[0, 0, 0, 32, 0, 0, 0, 8],
        b"iqn.x\0\0\0",
        &[0, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 33, 0, 0, 0, 4, 0, 0, 0, 1],
    ];
    assert_eq!(bytes, expected.concat());
}

#[test]
fn messages_of_any_length_come_through_a_stream_cut_anywhere() {
    for len in [0, 4, 65_532, 65_536, 200_000] {
        let message = Message { function: 2, flags: flags::CLIENT, transaction: 9, payload: vec![7; len] };
        let bytes = message.encode();
        for step in [1, 1000, bytes.len()] {
            let mut joiner = Joiner::new();
            let mut got = Vec::new();
            for piece in bytes.chunks(step) {
                joiner.feed(piece).unwrap();
                got.extend(std::iter::from_fn(|| joiner.next_message().unwrap()));
            }
            assert_eq!(got, std::slice::from_ref(&message), "{len} bytes by {step}");
        }
    }
}

#[test]
fn parts_that_do_not_belong_together_end_the_stream() {
    let long = Message { function: 2, flags: 0, transaction: 9, payload: vec![7; 70_000] }.encode();
    let second = HEADER_LEN + 65_532;
    for (at, value) in [(second + 3, 3), (second + 9, 8), (second + 11, 5)] {
        let mut bytes = long.clone();
        bytes[at] = value;
        let mut joiner = Joiner::new();
        joiner.feed(&bytes).unwrap();
        assert_eq!(joiner.next_message(), Err(Malformed::Sequence));
    }
    let next = |bytes: &[u8]| {
        let mut joiner = Joiner::new();
        joiner.feed(bytes).unwrap();
        joiner.next_message()
    };
    assert_eq!(next(&[0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), Err(Malformed::Version(2)));
    assert_eq!(next(&[0, 1, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0]), Err(Malformed::Length));
    assert_eq!(Joiner::new().feed(&vec![0; MAX_MESSAGE + 1]), Err(Malformed::TooLong));
}

#[test]
fn an_endless_message_is_given_up() {
    let mut joiner = Joiner::new();
    let part = Message { function: 2, flags: 0, transaction: 1, payload: vec![0; 65_532] }.encode();
    let mut sequence = 0u16;
    loop {
        let mut part = part.clone();
        part[6] = if sequence == 0 { 0x04 } else { 0 };
        part[10..12].copy_from_slice(&sequence.to_be_bytes());
        sequence += 1;
        joiner.feed(&part).unwrap();
        match joiner.next_message() {
            Ok(None) => assert!(usize::from(sequence) * 65_532 <= MAX_MESSAGE),
            other => {
                assert_eq!(other, Err(Malformed::TooLong));
                break;
            }
        }
    }
}

#[test]
fn attributes_that_claim_more_than_there_is_are_an_error_and_the_last() {
    for bytes in [&[0; 7][..], &[0, 0, 0, 1, 0, 0, 0, 4, 1, 2, 3], &[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xfc]] {
        let all: Vec<_> = Attributes::new(bytes).collect();
        assert_eq!(all, [Err(Malformed::Length)]);
    }
}

#[test]
fn an_entity_registers_portals_targets_and_portal_groups() {
    let message = entity().register(1).unwrap();
    assert_eq!(message.flags & flags::REPLACE, flags::REPLACE);
    let node = [32, 33, 51, 49, 50, 51, 49, 50];
    let expected = [&[32, 1, 0, 1, 2, 6, 16, 17, 23, 19, 20, 16, 17][..], &node, &node].concat();
    assert_eq!(tags(&message), expected);
    let groups: Vec<Option<u32>> = message
        .attributes()
        .map(Result::unwrap)
        .filter(|one| one.tag == Tag::PORTAL_GROUP_TAG)
        .map(|one| one.number())
        .collect();
    assert_eq!(groups, [Some(1), Some(2), None, Some(2)], "b is not behind the first portal");
    let v4 = message.attributes().map(Result::unwrap).find(|one| one.tag == Tag::PORTAL_IP_ADDRESS).unwrap();
    assert_eq!(v4.value, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]);

    let b = &entity().targets[1];
    let only = entity().register_target(b, 2).unwrap();
    assert_eq!((tags(&only), only.flags & flags::REPLACE), ([&[32, 1, 0][..], &node].concat(), 0));
    assert_eq!(tags(&entity().deregister_target(&b.name, 3).unwrap()), [32, 0, 32]);
    assert_eq!(tags(&entity().deregister(4).unwrap()), [32, 0, 1]);
    assert_eq!(tags(&entity().watch(5).unwrap()), [32, 32, 0, 35]);
    let nobody = Entity { targets: vec![], ..entity() };
    assert_eq!((nobody.register(1), nobody.deregister(1)), (None, None));
}

#[test]
fn the_answer_tells_for_how_long_a_registration_holds() {
    let mut operating = Writer::new();
    operating.text(Tag::ENTITY_IDENTIFIER, "host").number(Tag::REGISTRATION_PERIOD, 77);
    assert_eq!(period(&answer(&operating)), Some(77));
    assert_eq!(period(&answer(&Writer::new())), None);
}

#[test]
fn targets_are_found_with_the_portals_through_which_they_are_reached() {
    let mut out = Writer::new();
    out.text(Tag::ISCSI_NAME, "iqn.a").text(Tag::ISCSI_ALIAS, "first");
    out.text(Tag::ISCSI_NAME, "iqn.b");
    for (name, address, tag) in [
        ("iqn.a", "192.0.2.1:3260", Some(1)),
        ("iqn.a", "[2001:db8::1]:99", Some(2)),
        ("iqn.b", "192.0.2.1:3260", None),
    ] {
        let address: SocketAddr = address.parse().unwrap();
        out.text(Tag::PG_ISCSI_NAME, name).address(Tag::PG_PORTAL_IP_ADDRESS, address.ip());
        out.number(Tag::PG_PORTAL_TCP_UDP_PORT, address.port().into());
        match tag {
            Some(tag) => out.number(Tag::PORTAL_GROUP_TAG, tag),
            None => out.tag(Tag::PORTAL_GROUP_TAG),
        };
    }
    let found = query::found(&answer(&out)).unwrap();
    let portals = vec![("192.0.2.1:3260".parse().unwrap(), 1), ("[2001:db8::1]:99".parse().unwrap(), 2)];
    assert_eq!(
        found,
        [
            Found { name: "iqn.a".into(), alias: "first".into(), portals },
            Found { name: "iqn.b".into(), alias: String::new(), portals: vec![] },
        ]
    );
}

#[test]
fn an_inquiry_is_answered_with_what_it_said() {
    let mut out = Writer::new();
    out.put(Tag::TIMESTAMP, &[0, 0, 0, 0, 0, 0, 0, 9]).text(Tag::ENTITY_IDENTIFIER, "host");
    let mut asked = Message::request(Function::Esi, 5, &out);
    asked.flags = flags::SERVER;
    let said = Message::answer(&asked, Status::Success);
    assert_eq!((said.function, said.transaction, said.flags), (0x800d, 5, flags::CLIENT));
    let (status, attributes) = said.response().unwrap();
    assert_eq!((status, attributes.count()), (0, 2));
}

#[test]
fn values_are_read_as_what_they_are_or_not_at_all() {
    let attribute = |value| Attribute { tag: Tag(1), value };
    assert_eq!(attribute(b"abc\0\0\0\0\0").text(), Some("abc"));
    assert_eq!(attribute(b"\xff\0\0\0").text(), None);
    assert_eq!(attribute(&[0; 3]).number(), None);
    assert_eq!(attribute(&[0, 1, 0x0c, 0xbc]).tcp_port(), None, "a UDP port");
    assert_eq!(attribute(&[0; 4]).address(), None);
    let mut numbers = Numbers::default();
    assert!((0..70_000).all(|_| numbers.next_id() != 0));
}
