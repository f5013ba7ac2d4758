//! After warm-up an iWARP stream does not allocate, whatever it sends and receives, and however the
//! bytes are split. (The test is here because the counting allocator is above the floor of
//! `iwarp`.)

use iwarp::mpa::{Agreed, Role};
use iwarp::stag::{Registration, Rights, Stag};
use iwarp::stream::{Event, Landing, Options, Remote, SendFlags, Sink, Step, Stream};
use runtime::testing::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static DATA: [u8; 100_000] = [0x5a; 100_000];

/// A wire of fixed capacity.
struct Wire(Vec<u8>);

impl Sink<&'static [u8]> for Wire {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    fn payload(&mut self, payload: &'static [u8]) {
        self.0.extend_from_slice(payload);
    }
    fn marked(
        &mut self,
        payload: &'static [u8],
        len: usize,
        fill: impl FnOnce(&&'static [u8], &mut [u8]) -> bool,
    ) {
        self.0.marked(payload, len, fill);
    }
}

/// Receives the wire in pieces of `cut` bytes and answers requests.
fn receive(stream: &mut Stream, wire: &[u8], cut: usize, out: &mut Wire) -> usize {
    let mut events = 0;
    for mut input in wire.chunks(cut) {
        loop {
            match stream.step(&mut input).expect("a good stream") {
                Step::More | Step::Payload { here: 0, .. } => break,
                Step::Payload { here, .. } => {
                    let (bytes, rest) = input.split_at(here);
                    stream.took(bytes);
                    input = rest;
                }
                Step::Event(event) => {
                    events += 1;
                    if let Event::ReadRequest { len, .. } = event {
                        stream.read_response(&DATA[..len as usize], out).expect("it was asked for");
                    }
                    stream.flush(out);
                }
            }
        }
    }
    events
}

fn round(a: &mut Stream, b: &mut Stream, there: &mut Wire, back: &mut Wire, cut: usize) {
    let rights = Rights::REMOTE_WRITE | Rights::REMOTE_READ | Rights::REMOTE_INVALIDATE;
    let mut stags = [Stag(0); 16];
    for stag in &mut stags {
        let registration =
            Registration { index: 0, base: 0, len: DATA.len() as u64, rights, domain: b.domain() };
        *stag = b.register(registration).expect("there is room");
    }
    b.post_receives(16);
    for (id, stag) in stags.into_iter().enumerate() {
        let remote = Remote { stag, to: 0 };
        a.write(remote, &DATA[..5000 * id], there).expect("it is open");
        a.read(remote, 3000, Landing::Given, id as u64, there).expect("it is open");
    }
    let mut events = 0;
    while !there.0.is_empty() {
        receive(b, &there.0, cut, back);
        there.0.clear();
        events += receive(a, &back.0, cut, there);
        back.0.clear();
    }
    assert_eq!(events, 16, "all reads are done, those that waited under the ORD as well");
    for stag in stags {
        a.send(&DATA[..200], SendFlags { invalidate: Some(stag), solicited: false }, there)
            .expect("it is open");
    }
    assert_eq!(receive(b, &there.0, cut, back), 16);
    there.0.clear();
    assert!(b.stags().is_empty());
}

#[test]
fn warm_streams_do_not_allocate() {
    for (crc, markers, cut) in
        [(false, false, usize::MAX), (true, false, 1500), (false, true, 700), (true, true, 9)]
    {
        let agreed = |role| Agreed {
            role,
            revision: 2,
            crc,
            send_markers: markers,
            receive_markers: markers,
            ird: 4,
            ord: 4,
            rtr: None,
        };
        let mut a = Stream::new(&agreed(Role::Requester), &Options::new([1; 16]));
        let mut b = Stream::new(&agreed(Role::Responder), &Options::new([2; 16]));
        let (mut there, mut back) = (Wire(Vec::with_capacity(2 << 20)), Wire(Vec::with_capacity(2 << 20)));
        round(&mut a, &mut b, &mut there, &mut back, cut);
        let before = Counting::allocations_here();
        for _ in 0..20 {
            round(&mut a, &mut b, &mut there, &mut back, cut);
        }
        assert_eq!(Counting::allocations_here() - before, 0, "CRC {crc}, markers {markers}");
    }
}
