//! Two connected streams execute each operation once.

use iwarp::mpa::{self, Requester, Responder};
use iwarp::stag::{Domain, Registration, Rights};
use iwarp::stream::{Event, Landing, Options, Place, Remote, SendFlags, Step, Stream};

fn connect(ours: mpa::Options, theirs: mpa::Options) -> (mpa::Agreed, mpa::Agreed) {
    let mut requester = Requester::new(ours, b"hello").unwrap();
    let request = Responder::new().receive(&mut requester.request()).unwrap().unwrap();
    assert_eq!(request.private_data(), b"hello");
    let (reply, responder) = request.accept(&theirs, b"welcome").unwrap();
    match requester.receive(&mut &reply[..]).unwrap().unwrap() {
        mpa::Reply::Accepted { agreed, private_data } => {
            assert_eq!(private_data, b"welcome");
            (agreed, responder)
        }
        other => panic!("{other:?}"),
    }
}

type Pieces = Vec<(Place, u64, Vec<u8>)>;

fn drain(stream: &mut Stream, mut input: &[u8]) -> (Vec<Event>, Pieces) {
    let (mut events, mut pieces) = (Vec::new(), Vec::new());
    loop {
        match stream.step(&mut input).unwrap() {
            Step::More => return (events, pieces),
            Step::Payload { place, offset, here, .. } => {
                let (bytes, rest) = input.split_at(here);
                pieces.push((place, offset, bytes.to_vec()));
                stream.took(bytes);
                input = rest;
            }
            Step::Event(event) => events.push(event),
        }
    }
}

#[test]
fn each_operation_reaches_the_other_side() {
    for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
        let crc = if crc { mpa::CrcPolicy::Require } else { mpa::CrcPolicy::Never };
        let options = mpa::Options { crc, markers, ..Default::default() };
        let (a, b) = connect(options, options);
        let mut a = Stream::new(&a, &Options::new([1; 16]));
        let mut b = Stream::new(&b, &Options::new([2; 16]));
        b.post_receives(1);
        let memory = Registration {
            index: 7,
            base: 0x1000,
            len: 5000,
            rights: Rights::REMOTE_WRITE | Rights::REMOTE_READ | Rights::REMOTE_INVALIDATE,
            domain: Domain(0),
        };
        let stag = b.register(memory).unwrap();
        let mut wire = Vec::new();
        let data: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
        a.write(Remote { stag, to: 0x1000 }, &data[..], &mut wire).unwrap();
        a.read::<&[u8]>(Remote { stag, to: 0x1001 }, 3000, Landing::Given, 99, &mut wire).unwrap();
        a.send(&b"message"[..], SendFlags { invalidate: Some(stag), solicited: true }, &mut wire).unwrap();
        assert!(!b.may_send());
        let (events, pieces) = drain(&mut b, &wire);
        assert!(b.may_send());
        let written: Vec<u8> = pieces
            .iter()
            .filter(|(place, ..)| *place == Place::Tagged(7))
            .flat_map(|(.., bytes)| bytes.clone())
            .collect();
        assert_eq!(written, data);
        assert_eq!(events[0], Event::ReadRequest { index: 7, offset: 1, len: 3000 });
        assert!(
            matches!(events[1], Event::Received { len: 7, solicited: true, invalidated: Some(i) } if i.index == 7)
        );
        let mut wire = Vec::new();
        b.read_response(&data[1..3001], &mut wire).unwrap();
        let (events, pieces) = drain(&mut a, &wire);
        assert_eq!(events, [Event::ReadDone { id: 99 }]);
        let read: Vec<u8> = pieces.into_iter().flat_map(|(.., bytes)| bytes).collect();
        assert_eq!(read, data[1..3001]);
    }
}
