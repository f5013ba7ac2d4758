//! Requests: their headers, and what an export does not take.

use super::*;

fn export() -> Export {
    Export {
        size: 1 << 20,
        flags: Flags::new(FLAGS),
        blocks: BlockSizes { minimum: 512, preferred: 4096, maximum: 65_536 },
        structured: true,
        allocation: Some(1),
        ..Export::default()
    }
}

#[test]
fn headers_are_the_documents() {
    let mut session = Session::new(export(), 8);
    let (at, len) = (0x1000, 0x200);
    for (command, flags, kind) in [
        (Command::Read { at, len }, 0, 0),
        (Command::Write { at, len, fua: true }, 1, 1),
        (Command::Trim { at, len, fua: false }, 0, 4),
        (Command::WriteZeroes { at, len, fua: true, hole: false, fast: true }, 0x13, 6),
        (Command::WriteZeroes { at, len, fua: false, hole: true, fast: false }, 0, 6),
        (Command::BlockStatus { at, len, one: true }, 8, 7),
    ] {
        let (cookie, header) = session.submit(command).unwrap();
        let expected = [
            vec![0x25, 0x60, 0x95, 0x13],
            be16(flags),
            be16(kind),
            be64(cookie.value()),
            be64(at),
            be32(len),
        ]
        .concat();
        assert_eq!(header[..], expected);
    }
    let (cookie, header) = session.submit(Command::Flush).unwrap();
    let expected = [vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 3], be64(cookie.value()), vec![0; 12]].concat();
    assert_eq!(header[..], expected);
    let expected = [vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 2], vec![0; 20]].concat();
    assert_eq!(DISCONNECT[..], expected);
}

#[test]
fn nothing_is_sent_that_an_export_does_not_take() {
    let read = |at, len| Command::Read { at, len };
    let zeroes = |len, fast| Command::WriteZeroes { at: 0, len, fua: false, hole: true, fast };
    let all = export();
    let with = |flags: u16| Export { flags: Flags::new(flags), allocation: None, ..export() };
    for (export, command, expected) in [
        (&all, read(0, 65_536), Ok(())),
        (&all, read((1 << 20) - 512, 512), Ok(())),
        (&all, read(0, 66_048), Err(Refused::TooLong(65_536))),
        (&all, zeroes(1 << 20, true), Ok(())),
        (&all, read(0, 0), Err(Refused::Empty)),
        (&all, read(1 << 20, 512), Err(Refused::OutOfRange)),
        (&all, read(u64::MAX - 511, 512), Err(Refused::OutOfRange)),
        (&all, read(1, 512), Err(Refused::Misaligned(512))),
        (&all, read(0, 513), Err(Refused::Misaligned(512))),
        (&with(3), Command::Write { at: 0, len: 512, fua: false }, Err(Refused::ReadOnly)),
        (&with(1), Command::Write { at: 0, len: 512, fua: false }, Ok(())),
        (&with(1), Command::Write { at: 0, len: 512, fua: true }, Err(Refused::Unsupported("FUA"))),
        (&with(1), Command::Flush, Err(Refused::Unsupported("flushes"))),
        (&with(1), Command::Trim { at: 0, len: 512, fua: false }, Err(Refused::Unsupported("trims"))),
        (&with(1), zeroes(512, false), Err(Refused::Unsupported("writes of zeros"))),
        (&with(0x41), zeroes(512, true), Err(Refused::Unsupported("fast zeros"))),
        (
            &with(FLAGS),
            Command::BlockStatus { at: 0, len: 512, one: true },
            Err(Refused::Unsupported("block status")),
        ),
    ] {
        assert_eq!(command.check(export), expected, "{command:?}");
    }
}

#[test]
fn outstanding_requests_are_bounded_and_cookies_are_not_used_twice() {
    let mut session = Session::new(export(), 2);
    let (first, _) = session.submit(Command::Flush).unwrap();
    let (second, _) = session.submit(Command::Flush).unwrap();
    assert_eq!(session.submit(Command::Flush), Err(Refused::TooMany(2)));
    let reply = [be32(0x6744_6698), be32(0), be64(first.value())].concat();
    let done = Event::Done { cookie: first, outcome: Ok(()) };
    assert_eq!(session.next(&mut &reply[..]), Ok(Some(done)));
    assert_eq!((session.outstanding(), session.command(first)), (1, None));
    let (third, _) = session.submit(Command::Flush).unwrap();
    assert_eq!(third.slot(), first.slot());
    assert!(![first.value(), second.value()].contains(&third.value()));
    assert_eq!(session.next(&mut &reply[..]), Err(Violation::Cookie(first.value())));
}
