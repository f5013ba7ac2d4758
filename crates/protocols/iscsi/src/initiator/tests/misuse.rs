//! Violations by a target, and limits on the resources that a target can consume.

use proptest::prelude::*;

use super::*;

#[test]
fn what_a_target_may_not_send_is_an_error() {
    let data_in = |itt, sn, offset| numbered!(pdu::DataIn::new(itt, sn, offset), 0);
    type Case = (&'static str, fn(&mut Plain, ConnectionId, u32, u32) -> bool);
    let cases: [Case; 12] = [
        ("data beyond the read", |s, on, r, _| {
            matches!(
                hear(s, on, numbered!(pdu::DataIn::new(r, 0, 0), 0), &[0; 513]),
                Err(ProtocolError::DataIn { .. })
            )
        }),
        ("data at an offset that is not next", |s, on, r, _| {
            matches!(
                hear(s, on, numbered!(pdu::DataIn::new(r, 0, 4), 0), &[0; 4]),
                Err(ProtocolError::DataIn { .. })
            )
        }),
        ("an offset that would wrap", |s, on, r, _| {
            matches!(
                hear(s, on, numbered!(pdu::DataIn::new(r, 0, u32::MAX), 0), &[0; 4]),
                Err(ProtocolError::DataIn { .. })
            )
        }),
        ("a DataSN that is not next", |s, on, r, _| {
            matches!(
                hear(s, on, numbered!(pdu::DataIn::new(r, 1, 0), 0), &[0; 4]),
                Err(ProtocolError::DataSn { .. })
            )
        }),
        ("data for a write", |s, on, _, w| {
            hear(s, on, numbered!(pdu::DataIn::new(w, 0, 0), 0), &[0; 4]).is_err()
        }),
        ("data for no task", |s, on, r, _| {
            hear(s, on, numbered!(pdu::DataIn::new(r ^ 0x10000, 0, 0), 0), &[0; 4]).is_err()
        }),
        ("an R2T for a read", |s, on, r, _| {
            hear(s, on, numbered!(pdu::ReadyToTransfer::new(r, 1, Lun::ZERO, 0, 0, 512), 10), &[]).is_err()
        }),
        ("an R2T beyond the write", |s, on, _, w| {
            hear(s, on, numbered!(pdu::ReadyToTransfer::new(w, 1, Lun::ZERO, 0, 0, 300_001), 10), &[])
                .is_err()
        }),
        ("an R2T for sent data", |s, on, _, w| {
            hear(s, on, numbered!(pdu::ReadyToTransfer::new(w, 1, Lun::ZERO, 0, 0, 512), 10), &[]).is_err()
        }),
        ("a StatSN that is not next", |s, on, r, _| {
            matches!(
                hear(s, on, numbered!(pdu::ScsiResponse::new(r, ResponseCode::CommandCompleted, 0), 11), &[]),
                Err(ProtocolError::StatSn { .. })
            )
        }),
        ("an initiator's PDU", |s, on, r, _| {
            matches!(hear(s, on, pdu::NopOut::ping(r), &[]), Err(ProtocolError::Opcode(0)))
        }),
        ("a login response", |s, on, r, _| {
            matches!(
                hear(s, on, pdu::LoginResponse::new(r, pdu::Isid::default(), 1), &[]),
                Err(ProtocolError::Opcode(_))
            )
        }),
    ];
    for (what, refused) in cases {
        let (mut s, on) = session(Params::default());
        let r = s.submit(read(512), vec![]).unwrap().itt();
        let w = s.submit(write(vec![0; 300_000]), vec![]).unwrap().itt();
        sent(&mut s, on);
        assert!(refused(&mut s, on, r, w), "{what}");
    }
    let (mut s, on) = session(Params::default());
    let r = s.submit(read(512), vec![]).unwrap().itt();
    assert!(hear(&mut s, on, data_in(r, 0, 0), &[0; 4]).is_err(), "an answer to what was never sent");
}

#[test]
fn a_target_cannot_make_us_queue_without_end() {
    let params =
        Params { max_outstanding_r2t: 2, initial_r2t: true, immediate_data: false, ..Params::default() };
    let (mut s, on) = session(params);
    let itt = s.submit(write(vec![0; 5000]), vec![]).unwrap().itt();
    sent(&mut s, on);
    let r2t = |n: u32| numbered!(pdu::ReadyToTransfer::new(itt, 1, Lun::ZERO, n, n, 1), 10);
    for n in 0..2 {
        assert!(hear(&mut s, on, r2t(n), &[]).is_ok());
    }
    assert_eq!(hear(&mut s, on, r2t(2), &[]).unwrap_err(), ProtocolError::Flood);
    assert_eq!(sent(&mut s, on).len(), 2);
    assert!(hear(&mut s, on, r2t(2), &[]).is_ok(), "after the data is sent there may be more");

    let (mut s, on) = session(Params::default());
    let mut pings = 0;
    while hear(&mut s, on, numbered!(pdu::NopIn::ping(1, Lun::ZERO), 10), &[]).is_ok() {
        pings += 1;
    }
    assert!((16..1000).contains(&pings));
}

#[test]
fn a_contradictory_window_is_ignored() {
    let (mut s, on) = session(Params::default());
    let mut ping = pdu::NopIn::unsolicited();
    ping.exp_cmd_sn.set(200);
    ping.max_cmd_sn.set(150);
    hear(&mut s, on, ping, &[]).unwrap();
    for _ in 0..20 {
        s.submit(read(512), vec![]).unwrap();
    }
    assert_eq!(sent(&mut s, on).len(), 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn any_pdu_is_handled_without_panic(
        pdus in proptest::collection::vec((any::<[u8; 48]>(), proptest::collection::vec(any::<u8>(), 0..60), any::<u8>()), 1..12),
    ) {
        let (mut s, on) = session(Params::default());
        let keys = [s.submit(read(512), vec![]).unwrap(), s.submit(write(vec![1; 99_999]), vec![]).unwrap()];
        sent(&mut s, on);
        let opcodes = [0x20u8, 0x21, 0x22, 0x24, 0x25, 0x26, 0x31, 0x32, 0x3f, 0x25, 0x31, 0x21];
        let mut stat_sn = 10u32;
        for (mut bytes, data, shape) in pdus {
            bytes[0] = opcodes[usize::from(shape) % opcodes.len()];
            bytes[4] = 0;
            bytes[5..8].copy_from_slice(&[0, 0, data.len() as u8]);
            if shape & 0x80 == 0 {
                bytes[16..20].copy_from_slice(&keys[usize::from(shape >> 6 & 1)].itt().to_be_bytes());
                bytes[24..28].copy_from_slice(&stat_sn.to_be_bytes());
                bytes[36..40].fill(0);
            }
            let Some(bhs) = Bhs::ref_from(&bytes) else { unreachable!() };
            if s.handle(on, bhs, Segment::Here(&data[..])).is_ok() { stat_sn += 1; }
            let mut out = Vec::new();
            s.transmit(on, usize::MAX, &mut out);
            prop_assert!(out.len() <= 400_000);
        }
    }
}
