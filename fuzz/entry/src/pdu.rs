//! Reading a stream of PDUs, and reading any 48 bytes as any PDU.

use crate::input::{Input, Seed};
use iscsi::frame::{Digests, FrameError, emit_pdu};
use iscsi::pdu::{self, Bhs, Lun, Opcode, PduRef, RESERVED_TAG, ahs};
use iscsi::stream::{self, Limits, Owned, Step, Stream};

fn limits(flags: u8) -> Limits {
    Limits {
        digests: Digests { header: flags & 1 != 0, data: flags & 2 != 0 },
        max_data_segment: if flags & 4 != 0 { 64 } else { 65_536 },
        max_ahs: if flags & 8 != 0 { 32 } else { ahs::MAX_LEN },
        resync: flags & 16 != 0,
    }
}

/// A stream of PDUs, read to its end: at once, and in pieces of several lengths. Byte 0 selects
/// digests and limits.
pub fn cut(data: &[u8]) {
    let mut input = Input::new(data);
    let limits = limits(input.u8());
    let bytes = input.rest();
    let whole = read(limits, bytes, usize::MAX);
    for piece in [1, 7, 61] {
        assert_eq!(read(limits, bytes, piece), whole, "in pieces of {piece} bytes");
    }
    for pdu in whole.0.iter().flatten().filter(|pdu| pdu.intact) {
        again(limits, pdu);
    }
}

/// The PDUs of `bytes`, which arrive in pieces of `piece` bytes; `None` for each that is dropped.
/// Then the error, and the bytes of an incomplete PDU's data.
fn read(limits: Limits, bytes: &[u8], piece: usize) -> (Vec<Option<Owned>>, Option<FrameError>, Vec<u8>) {
    let mut stream = Stream::new(limits);
    let (mut all, mut data) = (Vec::new(), Vec::new());
    // Bytes of a dropped PDU may still be in the input before the next one.
    let mut dropped = false;
    for mut input in bytes.chunks(piece.min(bytes.len().max(1))) {
        loop {
            let before = input.len();
            let (pdu, intact) = match stream.step(&mut input) {
                Ok(Step::More | Step::Payload { here: 0, .. }) => {
                    assert!(input.is_empty());
                    break;
                }
                Ok(Step::Payload { bhs, ahs, offset, here, rest }) => {
                    assert!(here <= input.len() && offset == data.len());
                    assert_eq!(offset + here + rest, bhs.data_segment_len() as usize);
                    assert!(offset + here + rest <= limits.max_data_segment as usize);
                    look(bhs, ahs);
                    let (taken, others) = input.split_at(here);
                    data.extend_from_slice(taken);
                    stream.took(taken);
                    input = others;
                    continue;
                }
                Ok(Step::Dropped) => {
                    assert!(limits.resync);
                    dropped = true;
                    all.push(None);
                    continue;
                }
                Ok(Step::Pdu(pdu)) => {
                    assert!(data.is_empty());
                    assert!(dropped || limits.pdu_len(pdu.bhs) >= before - input.len());
                    dropped = false;
                    (pdu, true)
                }
                Ok(Step::Taken(pdu)) => (pdu, true),
                Ok(Step::Damaged(pdu)) => (pdu, false),
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    return (all, Some(error), data);
                }
            };
            look(pdu.bhs, pdu.ahs);
            data.extend_from_slice(pdu.data);
            let (bhs, ahs, data) = (*pdu.bhs, pdu.ahs.to_vec(), std::mem::take(&mut data));
            all.push(Some(Owned { bhs, ahs, data, trailer: pdu.trailer.iter().copied().collect(), intact }));
        }
    }
    (all, None, data)
}

/// A PDU that was read, emitted again, is read the same.
fn again(limits: Limits, pdu: &Owned) {
    let mut out = Vec::new();
    emit_pdu(&mut pdu.bhs.clone(), &pdu.ahs, &pdu.data, limits.digests, &mut out);
    assert_eq!(out.len(), limits.pdu_len(&pdu.bhs));
    let same = stream::pdus(limits, &out).expect("a whole PDU");
    assert!(
        matches!(&same[..], [same] if (&same.bhs, &same.ahs, &same.data) == (&pdu.bhs, &pdu.ahs, &pdu.data))
    );
}

fn look(bhs: &Bhs, area: &[u8]) {
    assert!(!bhs.to_string().contains('\n'));
    let mut out = arrayvec::ArrayVec::<u8, { ahs::MAX_LEN }>::new();
    for ahs in ahs::iter(area) {
        let ahs = ahs.expect("the stream lets well-formed AHSs through only");
        assert!(ahs.emit(&mut out));
    }
    let back: Vec<_> = ahs::iter(&out).collect();
    assert_eq!(back, ahs::iter(area).collect::<Vec<_>>());
}

/// Any 48 bytes under every name, and any AHS area.
pub fn fields(data: &[u8]) {
    let Some(bhs) = Bhs::ref_from(data) else { return };
    assert!(!bhs.to_string().contains('\n'));
    assert_eq!(bhs.view().is_some(), bhs.opcode().is_some());
    for opcode in Opcode::ALL {
        let mut other = *bhs;
        other.opcode_byte = opcode.code() | bhs.opcode_byte & 0xc0;
        let view = other.view().expect("a defined opcode has a view");
        assert!(!view.to_string().contains('\n'));
        accessors(view);
        assert_eq!(other.cmd_sn().is_some(), opcode.carries_cmd_sn());
        assert_eq!(other.exp_stat_sn().is_some(), opcode.is_from_initiator());
    }
    let _ = (bhs.lun().number(), bhs.lun().is_well_known());
    let walked = ahs::iter(&data[48..]).count();
    assert!(walked <= data.len());
}

fn accessors(view: PduRef<'_>) {
    match view {
        PduRef::ScsiCommand(p) => drop((p.attribute(), p.read(), p.write(), p.is_final())),
        PduRef::ScsiResponse(p) => drop((p.response_code(), p.residual(), p.bidi_residual())),
        PduRef::DataIn(p) => drop((p.residual(), p.wants_ack(), p.has_status(), p.is_final())),
        PduRef::DataOut(p) => drop((p.is_unsolicited(), p.is_final())),
        PduRef::LoginRequest(p) => drop((p.current_stage(), p.next_stage(), p.transit(), p.continues())),
        PduRef::LoginResponse(p) => drop((p.current_stage(), p.next_stage(), p.status(), p.class())),
        PduRef::LogoutRequest(p) => drop(p.reason()),
        PduRef::LogoutResponse(p) => drop(p.result()),
        PduRef::TaskManagementRequest(p) => drop(p.function()),
        PduRef::TaskManagementResponse(p) => drop(p.result()),
        PduRef::SnackRequest(p) => drop(p.kind()),
        PduRef::Reject(p) => drop(p.reason_code()),
        PduRef::AsyncMessage(p) => drop(p.event_code()),
        PduRef::TextRequest(p) => drop((p.starts_exchange(), p.is_final(), p.continues())),
        PduRef::TextResponse(p) => drop((p.is_final(), p.continues())),
        PduRef::NopOut(p) => drop(p.wants_answer()),
        PduRef::NopIn(p) => drop(p.wants_answer()),
        PduRef::ReadyToTransfer(p) => drop(p.desired_length.get()),
    }
}

/// A READ(10), a WRITE(10) with immediate data, a command with a CDB of 32 bytes and bidirectional,
/// a Data-Out, a NOP-Out.
fn stream(digests: Digests) -> Vec<u8> {
    let mut out = Vec::new();
    let mut read =
        pdu::ScsiCommand::new(1, Lun::ZERO, pdu::TaskAttribute::Simple, &[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0]);
    read.set_read(true);
    read.edtl.set(4096);
    emit_pdu(&mut read.into(), &[], &[], digests, &mut out);
    let mut write =
        pdu::ScsiCommand::new(2, Lun::ZERO, pdu::TaskAttribute::Simple, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    write.set_write(true);
    write.set_final(false);
    write.edtl.set(512);
    emit_pdu(&mut write.into(), &[], &[0x5a; 30], digests, &mut out);
    let cdb: [u8; 32] = core::array::from_fn(|i| if i == 0 { 0x7f } else { i as u8 });
    let mut long = pdu::ScsiCommand::new(3, Lun::ZERO, pdu::TaskAttribute::Ordered, &cdb);
    long.set_read(true);
    long.set_write(true);
    let mut area = arrayvec::ArrayVec::<u8, { ahs::MAX_LEN }>::new();
    assert!(ahs::Ahs::ExtendedCdb(&cdb[16..]).emit(&mut area));
    assert!(ahs::Ahs::BidiReadLength(512).emit(&mut area));
    emit_pdu(&mut long.into(), &area, &[], digests, &mut out);
    let mut data = pdu::DataOut::new(2, RESERVED_TAG, Lun::ZERO, 0, 30);
    data.set_final(true);
    emit_pdu(&mut data.into(), &[], &[0xa5; 17], digests, &mut out);
    emit_pdu(&mut pdu::NopOut::ping(4).into(), &[], b"ping", digests, &mut out);
    out
}

/// Streams without and with digests, whole, cut short, and with a broken digest.
pub fn cut_seeds() -> Vec<(&'static str, Seed)> {
    let plain = stream(Digests::default());
    let both = stream(Digests { header: true, data: true });
    let mut broken = both.clone();
    broken[52 + 52 + 3] ^= 1;
    let mut garbled = both.clone();
    garbled[50] ^= 1;
    vec![
        ("stream-plain", Seed::new().bytes([0]).bytes(&plain)),
        ("stream-digests", Seed::new().bytes([3]).bytes(&both)),
        ("stream-header-digest", Seed::new().bytes([1]).bytes(stream(Digests { header: true, data: false }))),
        ("stream-data-digest", Seed::new().bytes([2]).bytes(stream(Digests { header: false, data: true }))),
        ("stream-short", Seed::new().bytes([3]).bytes(&both[..both.len() - 9])),
        ("stream-wrong-data-digest", Seed::new().bytes([3]).bytes(&broken)),
        ("stream-resync", Seed::new().bytes([19]).bytes(&garbled)),
        ("stream-low-limits", Seed::new().bytes([12]).bytes(&plain)),
        ("too-long-data", Seed::new().bytes([0]).bytes([1, 0x80, 0, 0, 0, 0xff, 0xff, 0xff]).bytes([0; 40])),
        ("too-long-ahs", Seed::new().bytes([8]).bytes([1, 0x80, 0, 0, 0xff, 0, 0, 0]).bytes([0; 40])),
    ]
}

/// One header of every kind, with an AHS area behind the command's.
pub fn fields_seeds() -> Vec<(&'static str, Seed)> {
    let isid = pdu::Isid::random([1, 2, 3], 4);
    let mut login = pdu::LoginRequest::new(1, isid, 0, 1);
    login.set_stages(pdu::Stage::SecurityNegotiation, Some(pdu::Stage::FullFeaturePhase));
    let mut response = pdu::ScsiResponse::new(1, pdu::ResponseCode::CommandCompleted, 2);
    response.set_residual(pdu::Residual::Underflow(512));
    let mut data_in = pdu::DataIn::new(1, 0, 0);
    data_in.set_status(0, pdu::Residual::Overflow(1));
    let header = |bhs: &Bhs| Seed::new().bytes(bhs.bytes());
    let plain = stream(Digests::default());
    let third = 48 + 48 + 32;
    vec![
        ("command", Seed::new().bytes(&plain[third..third + 48 + 28])),
        ("response", header(response.as_bhs())),
        ("data-in", header(data_in.as_bhs())),
        ("r2t", header(pdu::ReadyToTransfer::new(1, 2, Lun::ZERO, 0, 0, 4096).as_bhs())),
        ("login", header(login.as_bhs())),
        ("login-response", header(pdu::LoginResponse::new(1, isid, 1).as_bhs())),
        ("logout", header(pdu::LogoutRequest::new(1, pdu::LogoutReason::CloseSession, 0).as_bhs())),
        ("text", header(pdu::TextRequest::new(1, RESERVED_TAG).as_bhs())),
        (
            "tmf",
            header(
                pdu::TaskManagementRequest::new(1, pdu::TaskManagementFunction::AbortTask, Lun::REPORT_LUNS)
                    .as_bhs(),
            ),
        ),
        ("snack", header(pdu::SnackRequest::new(pdu::SnackType::Status, 1, RESERVED_TAG, 2, 3).as_bhs())),
        ("reject", header(pdu::Reject::new(pdu::RejectReason::ProtocolError).as_bhs())),
        ("vendor-opcode", Seed::new().bytes([0x1d; 48])),
    ]
}
