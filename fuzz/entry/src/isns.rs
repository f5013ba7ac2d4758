//! iSNS: a stream of messages from a server, cut anywhere, and their contents.

use crate::input::{Input, Seed};
use isns::attribute::{Tag, Writer};
use isns::header::RESPONSE;
use isns::query::{self, MAX_FOUND};
use isns::registration::{Entity, Inquiries, Portal, Target, period};
use isns::{Attributes, Function, Joiner, Message, Status};

/// Byte 0: how many bytes are received at once; then the stream.
pub fn message(data: &[u8]) {
    let mut input = Input::new(data);
    let step = usize::from(input.u8()).max(1);
    let stream = input.rest();
    let mut joiner = Joiner::new();
    for piece in stream.chunks(step) {
        if joiner.feed(piece).is_err() {
            return;
        }
        loop {
            match joiner.next_message() {
                Ok(Some(message)) => read(&message),
                Ok(None) => break,
                Err(error) => return assert!(!error.to_string().is_empty()),
            }
        }
    }
}

fn read(message: &Message) {
    // A message that is encoded again decodes to the same.
    let mut joiner = Joiner::new();
    if joiner.feed(&message.encode()).is_ok()
        && let Ok(Some(again)) = joiner.next_message()
    {
        assert_eq!((&again.payload, again.function), (&message.payload, message.function));
    }
    for attribute in Attributes::new(&message.payload).map_while(Result::ok) {
        let _ = (attribute.number(), attribute.text(), attribute.address(), attribute.tcp_port());
    }
    if let Ok(found) = query::found(message) {
        assert!(found.iter().map(|one| one.portals.len()).sum::<usize>() <= MAX_FOUND);
    }
    let _ = period(message);
    let answer = Message::answer(message, Status::Success);
    assert!(answer.is_response());
}

fn stream(step: u8, messages: &[Message]) -> Seed {
    let mut bytes = vec![step];
    messages.iter().for_each(|message| bytes.extend_from_slice(&message.encode()));
    Seed::new().bytes(&bytes)
}

/// A message in two PDUs.
fn in_parts(message: &Message) -> Seed {
    let (first, second) = message.payload.split_at(16);
    let part = |payload: &[u8]| Message { payload: payload.to_vec(), ..message.clone() }.encode();
    let (mut first, mut second) = (part(first), part(second));
    // Neither the first nor the last is both; the second has a number of its own.
    first[6] &= !0x08;
    second[6] &= !0x04;
    second[11] = 1;
    Seed::new().bytes([9]).bytes(first).bytes(second)
}

/// A registration, the answer to a query, an inquiry, and one in pieces.
pub fn message_seeds() -> Vec<(&'static str, Seed)> {
    let entity = Entity {
        id: "host".into(),
        period_s: 300,
        portals: vec![Portal { address: ([192, 0, 2, 1], 3260).into(), group: 1 }],
        targets: vec![Target {
            name: "iqn.2026-01.org.example:a".into(),
            alias: "a".into(),
            groups: vec![1],
        }],
        inquiries: Some(Inquiries { at: [192, 0, 2, 1].into(), port: 99, interval_s: 60 }),
    };
    let mut found = Writer::new();
    found.tag(Tag::DELIMITER).text(Tag::ISCSI_NAME, "iqn.2026-01.org.example:a").text(Tag::ISCSI_ALIAS, "a");
    found.text(Tag::PG_ISCSI_NAME, "iqn.2026-01.org.example:a");
    found.address(Tag::PG_PORTAL_IP_ADDRESS, [192, 0, 2, 1].into()).number(Tag::PG_PORTAL_TCP_UDP_PORT, 3260);
    found.number(Tag::PORTAL_GROUP_TAG, 1).number(Tag::REGISTRATION_PERIOD, 300);
    let mut payload = vec![0; 4];
    payload.extend_from_slice(found.bytes());
    let answer =
        Message { function: Function::DevAttrQry.code() | RESPONSE, flags: 0x4000, transaction: 1, payload };
    let inquiry = Message::request(Function::Esi, 3, &found);
    let register = entity.register(1).into_iter().chain(entity.watch(2)).collect::<Vec<_>>();
    vec![
        ("register", stream(255, &register)),
        ("found", stream(7, std::slice::from_ref(&answer))),
        ("inquiry", stream(1, &[inquiry])),
        ("parts", in_parts(&answer)),
    ]
}
