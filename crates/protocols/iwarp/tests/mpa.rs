//! MPA's startup: the frames of each side, how both evaluate them, and the errors that end it.

use iwarp::mpa::{
    Agreed, CrcPolicy, DEPTH_UNSAID, Error, FrameError, MAX_DEPTH, Options, Reply, Request, Requester,
    Responder, Role, Rtr,
};
use iwarp::rdmap::Terminate;
use proptest::prelude::*;

/// The request of Linux's siw for an iSER connection: revision 2, enhanced, IRD 128, ORD 1.
const SIW_REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x08\x00\x80\x00\x01\x80\x00\x00\x00";

fn request(bytes: &[u8]) -> Result<Request, Error> {
    Responder::new().receive(&mut &bytes[..]).map(|request| request.expect("whole"))
}

fn reply(requester: &mut Requester, bytes: &[u8]) -> Result<Reply, Error> {
    requester.receive(&mut &bytes[..]).map(|reply| reply.expect("whole"))
}

fn frame(key: &[u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let len = (private_data.len() as u16).to_be_bytes();
    [&key[..], &[flags, revision], &len, private_data].concat()
}

fn reply_frame(flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    frame(b"MPA ID Rep Frame", flags, revision, private_data)
}

fn agree(requester: &Options, responder: &Options) -> Result<(Agreed, Agreed), Error> {
    let mut asks = Requester::new(*requester, b"")?;
    let (bytes, theirs) = request(asks.request())?.accept(responder, b"")?;
    match reply(&mut asks, &bytes)? {
        Reply::Accepted { agreed, .. } => Ok((agreed, theirs)),
        Reply::Rejected { .. } => panic!("was accepted"),
    }
}

#[test]
fn siws_request_is_answered_as_siw_needs_it() {
    let request = request(SIW_REQUEST).unwrap();
    assert_eq!(request.private_data(), [0x80, 0, 0, 0]);
    assert_eq!((request.ird(), request.ord(), request.rtr()), (Some(128), Some(1), None));
    let (bytes, agreed) = request.accept(&Options::default(), &[0, 0, 0, 0]).unwrap();
    // Enhanced, no CRC since neither side requests it, no markers; IRD 1, ORD 128.
    assert_eq!(bytes, reply_frame(0x10, 2, &[0, 1, 0, 0x80, 0, 0, 0, 0]));
    let expected = Agreed {
        role: Role::Responder,
        revision: 2,
        crc: false,
        send_markers: false,
        receive_markers: false,
        ird: 1,
        ord: 128,
        rtr: None,
    };
    assert_eq!(agreed, expected);
    // If this side requires the CRC, the reply's bit turns siw's CRC on.
    let required = Options { crc: CrcPolicy::Require, ..Options::default() };
    let (bytes, agreed) = request.accept(&required, b"").unwrap();
    assert_eq!(bytes, reply_frame(0x50, 2, &[0, 1, 0, 0x80]));
    assert!(agreed.crc);
}

#[test]
fn our_request_lies_on_the_wire_as_rfc_6581_draws_it() {
    let options = Options { crc: CrcPolicy::Never, ird: 16, ord: 8, ..Options::default() };
    let requester = Requester::new(options, b"hello").unwrap();
    assert_eq!(requester.request(), frame(b"MPA ID Req Frame", 0x10, 2, b"\x00\x10\x00\x08hello"));
    let options = Options { markers: true, crc: CrcPolicy::Require, rtr: Some(Rtr::Read), ..options };
    let requester = Requester::new(options, b"").unwrap();
    assert_eq!(requester.request(), frame(b"MPA ID Req Frame", 0xd0, 2, &[0x80, 0x10, 0x40, 0x08]));
    let requester = Requester::new(Options { revision: 1, ..options }, b"hello").unwrap();
    assert_eq!(requester.request(), frame(b"MPA ID Req Frame", 0xc0, 1, b"hello"));
}

#[test]
fn crc_is_used_as_soon_as_either_side_asks() {
    use CrcPolicy::{Never, Prefer, Require};
    for (requester, responder, used) in [
        (Never, Never, false),
        (Never, Prefer, false),
        (Never, Require, true),
        (Prefer, Never, true),
        (Prefer, Prefer, true),
        (Prefer, Require, true),
        (Require, Never, true),
        (Require, Prefer, true),
        (Require, Require, true),
    ] {
        let of = |crc| Options { crc, ..Options::default() };
        let (ours, theirs) = agree(&of(requester), &of(responder)).unwrap();
        assert_eq!((ours.crc, theirs.crc), (used, used), "{requester:?} {responder:?}");
    }
}

#[test]
fn each_side_sends_markers_iff_the_other_asks() {
    for (ours, theirs) in [(false, false), (true, false), (false, true), (true, true)] {
        let of = |markers| Options { markers, ..Options::default() };
        let (a, b) = agree(&of(ours), &of(theirs)).unwrap();
        assert_eq!((a.receive_markers, a.send_markers), (ours, theirs));
        assert_eq!((b.receive_markers, b.send_markers), (theirs, ours));
    }
}

#[test]
fn depths_meet_in_the_middle() {
    let of = |ird, ord| Options { ird, ord, ..Options::default() };
    for (requester, responder, forth, back) in [
        // Requester (IRD, ORD), responder (IRD, ORD), and the resulting ORD of each.
        ((128, 128), (128, 128), 128, 128),
        ((4, 100), (50, 60), 50, 4),
        ((16, 1), (128, 128), 1, 16),
        ((0, 0), (128, 128), 0, 0),
        ((7, 3), (2, 1), 2, 1),
        ((7, 3), (0, 0), 1, 0),
    ] {
        let (a, b) = agree(&of(requester.0, requester.1), &of(responder.0, responder.1)).unwrap();
        assert_eq!((a.ord, b.ord), (forth, back), "{requester:?} {responder:?}");
        assert!(a.ord <= b.ird && b.ord <= a.ird);
    }
}

#[test]
fn a_peer_that_states_no_depths_gets_few_reads_and_may_send_all() {
    let unsaid = [0x3f, 0xff, 0x3f, 0xff];
    let request = request(&frame(b"MPA ID Req Frame", 0x10, 2, &unsaid)).unwrap();
    assert_eq!((request.ird(), request.ord()), (None, None));
    for (ours, ord) in [(128, 8), (3, 3)] {
        let options = Options { ird: 9, ord: ours, ..Options::default() };
        let (_, agreed) = request.accept(&options, b"").unwrap();
        assert_eq!((agreed.ird, agreed.ord), (9, ord));
        let mut asks = Requester::new(options, b"").unwrap();
        match reply(&mut asks, &reply_frame(0x10, 2, &unsaid)).unwrap() {
            Reply::Accepted { agreed, .. } => assert_eq!((agreed.ird, agreed.ord), (9, ord)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(DEPTH_UNSAID, MAX_DEPTH + 1);
}

#[test]
fn a_responder_that_wants_more_reads_than_our_ird_gets_insufficient_ird() {
    let mut asks = Requester::new(Options { ird: 4, ..Options::default() }, b"").unwrap();
    let error = reply(&mut asks, &reply_frame(0x10, 2, &[0, 4, 0, 5])).unwrap_err();
    assert_eq!(error, Error::InsufficientIrd { theirs: 5, ours: 4 });
    assert_eq!(error.terminate(), Terminate::InsufficientIrd);
    // The peer considers the connection established, so it is sent a Terminate.
    let told = asks.farewell(&error).unwrap();
    assert_eq!(told[2..4], [0x41, 0x47]);
    assert_eq!(told[20..24], [0x20, 0x06, 0, 0]);
}

#[test]
fn only_who_was_accepted_says_farewell() {
    let mut asks = Requester::new(Options::default(), b"").unwrap();
    let error = reply(&mut asks, b"HTTP/1.1 400").unwrap_err();
    assert_eq!(asks.farewell(&error), None);
    let mut asks =
        Requester::new(Options { ird: 4, crc: CrcPolicy::Require, ..Options::default() }, b"").unwrap();
    let error = reply(&mut asks, &reply_frame(0x90, 2, &[0, 4, 0, 5])).unwrap_err();
    // With the marker that the peer asked for before it, and a CRC.
    let told = asks.farewell(&error).unwrap();
    assert_eq!(told[..8], [0, 0, 0, 0, 0, 22, 0x41, 0x47]);
    assert_eq!(told[28..], iwarp::crc::crc32c(&told[..28]));
}

#[test]
fn an_rtr_message_is_agreed_upon() {
    for rtr in [Rtr::Send, Rtr::Write, Rtr::Read] {
        let options = Options { rtr: Some(rtr), ..Options::default() };
        let (a, b) = agree(&options, &Options::default()).unwrap();
        assert_eq!((a.rtr, b.rtr), (Some(rtr), Some(rtr)));
    }
    assert_eq!(agree(&Options::default(), &Options::default()).unwrap().0.rtr, None);
}

/// Also if the request marks none: the responder then proposes a Write.
#[test]
fn the_responder_prefers_a_write_as_rtr_message() {
    for (marked, expected, answered) in [
        ([0xc0, 4, 0xc0, 4], Rtr::Write, [0x80, 4, 0x80, 4]),
        ([0xc0, 4, 0x40, 4], Rtr::Read, [0x80, 4, 0x40, 4]),
        ([0xc0, 4, 0x00, 4], Rtr::Send, [0xc0, 4, 0x00, 4]),
        ([0x80, 4, 0x00, 4], Rtr::Write, [0x80, 4, 0x80, 4]),
    ] {
        let request = request(&frame(b"MPA ID Req Frame", 0x10, 2, &marked)).unwrap();
        assert_eq!(request.rtr(), Some(expected));
        let (bytes, agreed) = request.accept(&Options::default(), b"").unwrap();
        assert_eq!(bytes, reply_frame(0x10, 2, &answered));
        assert_eq!(agreed.rtr, Some(expected));
    }
}

#[test]
fn a_responder_that_agrees_to_no_rtr_message_gets_no_matching_rtr() {
    for depths in [[0, 4, 0, 4], [0x80, 4, 0x40, 4], [0, 4, 0x80, 4]] {
        let mut asks = Requester::new(Options { rtr: Some(Rtr::Write), ..Options::default() }, b"").unwrap();
        let error = reply(&mut asks, &reply_frame(0x10, 2, &depths)).unwrap_err();
        assert_eq!((error, error.terminate()), (Error::NoMatchingRtr, Terminate::NoMatchingRtr));
    }
}

#[test]
fn a_rejection_carries_its_private_data() {
    for revision in [1, 2] {
        let mut asks = Requester::new(Options { revision, ..Options::default() }, b"please").unwrap();
        let bytes = request(asks.request()).unwrap().reject(b"no").unwrap();
        assert_eq!(reply(&mut asks, &bytes), Ok(Reply::Rejected { private_data: b"no".to_vec() }));
    }
}

#[test]
fn another_revision_is_refused_by_both_sides() {
    for revision in [0, 3, 255] {
        assert_eq!(request(&frame(b"MPA ID Req Frame", 0, revision, b"")), Err(Error::Revision(revision)));
        assert!(Requester::new(Options { revision, ..Options::default() }, b"").is_err());
    }
    let mut asks = Requester::new(Options::default(), b"").unwrap();
    let error = reply(&mut asks, &reply_frame(0, 1, b"")).unwrap_err();
    assert_eq!((error, error.terminate()), (Error::Revision(1), Terminate::StartupFrame));
    // The requester sees the refusal as a rejection.
    let mut asks = Requester::new(Options::default(), b"").unwrap();
    assert_eq!(reply(&mut asks, &Responder::refusal()), Ok(Reply::Rejected { private_data: Vec::new() }));
}

#[test]
fn an_enhanced_frame_needs_its_depths() {
    assert_eq!(request(&frame(b"MPA ID Req Frame", 0x10, 2, &[0, 1, 0])), Err(FrameError::NoDepths.into()));
    let mut asks = Requester::new(Options::default(), b"").unwrap();
    assert_eq!(reply(&mut asks, &reply_frame(0x10, 2, b"")), Err(FrameError::NoDepths.into()));
}

#[test]
fn revision_1_has_no_depths_in_its_private_data() {
    let request = request(&frame(b"MPA ID Req Frame", 0x10, 1, b"\x00\x10\x00\x10x")).unwrap();
    assert_eq!(request.private_data(), b"\x00\x10\x00\x10x");
    assert_eq!((request.ird(), request.rtr()), (None, None));
    let (bytes, agreed) = request.accept(&Options::default(), b"y").unwrap();
    assert_eq!(bytes, reply_frame(0, 1, b"y"));
    assert_eq!((agreed.revision, agreed.ird, agreed.ord), (1, 128, 8));
}

#[test]
fn private_data_fills_512_bytes_less_the_depths() {
    let two = Options::default();
    let one = Options { revision: 1, ..two };
    assert!(Requester::new(two, &[0; 508]).is_ok());
    assert_eq!(Requester::new(two, &[0; 509]).unwrap_err(), Error::PrivateData(509));
    assert!(Requester::new(one, &[0; 512]).is_ok());
    assert_eq!(Requester::new(one, &[0; 513]).unwrap_err(), Error::PrivateData(513));
    let request = request(SIW_REQUEST).unwrap();
    assert!(request.accept(&two, &[0; 508]).is_ok());
    assert_eq!(request.accept(&two, &[0; 509]).unwrap_err(), Error::PrivateData(509));
    assert_eq!(request.reject(&[0; 509]).unwrap_err(), Error::PrivateData(509));
}

#[test]
fn bytes_behind_a_request_are_too_early() {
    let bytes = [SIW_REQUEST, b"\0"].concat();
    assert_eq!(request(&bytes), Err(Error::Early));
}

#[test]
fn bytes_behind_a_reply_are_the_streams() {
    let mut asks = Requester::new(Options::default(), b"").unwrap();
    let bytes = [&reply_frame(0x10, 2, &[0, 4, 0, 4])[..], b"stream"].concat();
    let mut input = &bytes[..];
    assert!(matches!(asks.receive(&mut input), Ok(Some(Reply::Accepted { .. }))));
    assert_eq!(input, b"stream");
}

#[test]
fn a_reply_is_no_request_and_an_iscsi_login_is_neither() {
    assert_eq!(request(&reply_frame(0, 1, b"")), Err(FrameError::Key.into()));
    assert_eq!(request(&[0x43; 48]), Err(FrameError::Key.into()));
    let mut asks = Requester::new(Options::default(), b"").unwrap();
    assert_eq!(reply(&mut asks, SIW_REQUEST), Err(FrameError::Key.into()));
}

proptest! {
    #[test]
    fn any_bytes_are_a_frame_or_an_error_and_never_more_than_a_frame_is_kept(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..600),
        key in 0..3u8,
        cut in 1usize..50,
    ) {
        let start: &[u8] = match key { 0 => b"MPA ID Req Frame", 1 => b"MPA ID Rep Frame", _ => b"" };
        let n = start.len().min(bytes.len());
        bytes[..n].copy_from_slice(&start[..n]);
        let mut responder = Responder::new();
        for piece in bytes.chunks(cut) {
            match responder.receive(&mut &piece[..]) {
                Ok(None) => {}
                Ok(Some(request)) => {
                    let (_, agreed) = request.accept(&Options::default(), b"").expect("fits");
                    prop_assert!(agreed.ird >= 1 && agreed.ord <= 128);
                    break;
                }
                Err(_) => break,
            }
        }
        let mut requester = Requester::new(Options::default(), b"").expect("fits");
        for piece in bytes.chunks(cut) {
            match requester.receive(&mut &piece[..]) {
                Ok(None) => {}
                Ok(Some(Reply::Accepted { agreed, .. })) => {
                    prop_assert!(agreed.ord <= 128);
                    break;
                }
                Ok(Some(Reply::Rejected { .. })) | Err(_) => break,
            }
        }
    }
}
