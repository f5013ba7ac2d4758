//! One write against single PDUs, in order and out of it.

use super::super::payload::Due;
use super::super::queue::FEW;
use super::*;

const LIMITS: WriteLimits =
    WriteLimits { max_burst: 8, first_burst: 6, max_r2t: 2, initial_r2t: false, immediate: true };

fn command(
    expected: u32,
    immediate: Vec<u8>,
    is_final: bool,
    limits: &WriteLimits,
) -> Result<Inbound<Vec<u8>>, InboundError> {
    let mut inbound = Inbound::none();
    inbound.begin(expected, immediate, is_final, limits)?;
    Ok(inbound)
}

fn taken(inbound: &mut Inbound<Vec<u8>>, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    inbound.take(len, |p| all.extend(p));
    all
}

#[test]
fn immediate_unsolicited_and_solicited_data_arrive_in_order() {
    let mut w = command(30, vec![0, 1], false, &LIMITS).unwrap();
    assert_eq!(w.want(100), 30);
    assert_eq!(w.next_r2t(&LIMITS), None, "the unsolicited sequence is open");
    w.data_out(2, 0, vec![2, 3], false, false).unwrap();
    w.data_out(4, 1, vec![4, 5], true, false).unwrap();
    assert_eq!(w.next_r2t(&LIMITS), Some(R2t { r2t_sn: 0, offset: 6, len: 8 }));
    assert_eq!(w.next_r2t(&LIMITS), Some(R2t { r2t_sn: 1, offset: 14, len: 8 }));
    assert_eq!(w.next_r2t(&LIMITS), None, "MaxOutstandingR2T");
    w.data_out(6, 0, (6..14).collect::<Vec<u8>>(), true, true).unwrap();
    assert_eq!(w.next_r2t(&LIMITS), Some(R2t { r2t_sn: 2, offset: 22, len: 8 }));
    w.data_out(14, 0, (14..22).collect::<Vec<u8>>(), true, true).unwrap();
    assert_eq!(w.next_r2t(&LIMITS), None, "all is asked for");
    w.data_out(22, 0, (22..25).collect::<Vec<u8>>(), false, true).unwrap();
    assert!(w.owed());
    w.data_out(25, 1, (25..30).collect::<Vec<u8>>(), true, true).unwrap();
    assert!(!w.owed());
    assert_eq!(w.available(), 30);
    assert_eq!(taken(&mut w, 7), (0..7).collect::<Vec<u8>>());
    assert_eq!(taken(&mut w, 23), (7..30).collect::<Vec<u8>>());
}

#[test]
fn data_in_crumbs_is_kept_in_few_pieces() {
    let limits = WriteLimits { first_burst: 5000, ..LIMITS };
    let mut w = command(5000, Vec::new(), false, &limits).unwrap();
    w.want(5000);
    for at in 0..5000u32 {
        w.data_out(at, at, vec![at as u8], at == 4999, false).unwrap();
        assert!(w.queue.len() <= FEW + 14, "{} pieces of {at}", w.queue.len());
    }
    assert_eq!(taken(&mut w, 5000), (0..5000u32).map(|at| at as u8).collect::<Vec<_>>());
}

#[test]
fn rdma_reads_follow_unsolicited_data_and_delay_the_response() {
    let mut w = command(30, vec![0, 1], false, &LIMITS).unwrap();
    assert_eq!(w.want(20), 20);
    assert_eq!(w.next_read(10), None, "the unsolicited sequence is open");
    w.data_out(2, 0, vec![2, 3, 4, 5], true, false).unwrap();
    assert_eq!(w.next_read(10), Some(Read { offset: 0, at: 6, len: 10 }));
    assert_eq!(w.next_read(10), Some(Read { offset: 10, at: 16, len: 4 }));
    assert_eq!(w.next_read(10), None, "no more than is wanted");
    assert!(w.owed() && w.is_reading() && w.awaits_reads());
    w.placed((6..9).collect());
    w.placed((9..14).collect());
    w.placed((14..20).collect());
    assert!(!w.owed() && !w.is_reading() && !w.awaits_reads());
    assert_eq!(taken(&mut w, 20), (0..20).collect::<Vec<u8>>());
    assert_eq!(w.want(20), 10);
    assert_eq!(w.next_read(100), Some(Read { offset: 14, at: 20, len: 10 }));
    assert!(w.awaits_reads());
    w.discard();
    assert!(w.owed() && !w.awaits_reads(), "what was asked for still comes, and the unit does not get it");
    w.placed(vec![0; 10]);
    assert!(!w.owed());
    assert_eq!(w.available(), 0, "and is dropped");
}

#[test]
fn outstanding_immediate_data_delays_r2ts_and_the_response() {
    let begun = |expected, len| {
        let mut inbound = Inbound::<Vec<u8>>::none();
        inbound.begin(expected, Due(len), true, &LIMITS).map(|()| inbound)
    };
    assert_eq!(begun(30, 7).unwrap_err(), InboundError::TooMuch);
    let mut w = begun(30, 5).unwrap();
    assert_eq!((w.want(30), w.available()), (30, 0));
    assert!(w.owed() && w.awaits_immediate() && !w.is_short(5) && w.is_short(6));
    assert_eq!(w.next_r2t(&LIMITS), None);
    assert!(w.rest(vec![0, 1, 2, 3, 4]) && !w.rest(vec![5]));
    assert!(!w.awaits_immediate() && w.available() == 5);
    assert_eq!(w.next_r2t(&LIMITS), Some(R2t { r2t_sn: 0, offset: 5, len: 8 }));
    // The logical unit finishes before the data arrives.
    let mut w = begun(5, 5).unwrap();
    w.discard();
    assert!(w.owed() && !w.awaits_immediate());
    w.rest(vec![0; 5]);
    assert!(!w.owed() && w.available() == 0);
}

#[test]
fn data_is_awaited_if_it_would_be_taken_and_looking_changes_nothing() {
    let mut w = command(30, Vec::new(), false, &LIMITS).unwrap();
    w.want(14);
    assert!(w.awaits(0, 0, 6, true, false) && w.awaits(0, 0, 3, false, false));
    assert!(!w.awaits(0, 0, 7, true, false), "more than FirstBurstLength");
    assert!(!w.awaits(0, 0, 6, true, true), "not asked for");
    w.data_out(0, 0, vec![0; 6], true, false).unwrap();
    w.next_r2t(&LIMITS).unwrap();
    for _ in 0..2 {
        assert!(w.awaits(6, 0, 8, true, true) && w.awaits(6, 0, 4, false, true));
        for (offset, data_sn, len, is_final) in [
            (5, 0, 8, true),
            (7, 0, 7, true),
            (6, 1, 8, true),
            (6, 0, 9, true),
            (6, 0, 8, false),
            (6, 0, 4, true),
        ] {
            assert!(!w.awaits(offset, data_sn, len, is_final, true), "{offset} {data_sn} {len} {is_final}");
        }
    }
    w.fail();
    assert!(!w.awaits(6, 0, 8, true, true));
}

#[test]
fn r2ts_ask_for_no_more_than_the_unit_wants() {
    let mut w = command(30, Vec::new(), true, &LIMITS).unwrap();
    assert_eq!(w.next_r2t(&LIMITS), None);
    assert_eq!(w.want(3), 3);
    assert_eq!(w.next_r2t(&LIMITS), Some(R2t { r2t_sn: 0, offset: 0, len: 3 }));
    assert_eq!(w.next_r2t(&LIMITS), None);
}

#[test]
fn data_that_breaks_the_rules_is_refused() {
    let none = WriteLimits { initial_r2t: true, immediate: false, ..LIMITS };
    assert_eq!(command(9, vec![1], true, &none).unwrap_err(), InboundError::UnexpectedUnsolicited);
    assert_eq!(command(9, Vec::new(), false, &none).unwrap_err(), InboundError::UnexpectedUnsolicited);
    assert_eq!(command(9, vec![0; 7], true, &LIMITS).unwrap_err(), InboundError::TooMuch);
    assert_eq!(command(3, vec![0; 4], true, &LIMITS).unwrap_err(), InboundError::TooMuch);
    // FirstBurstLength is 6.
    for (expected, short, whole) in [(30, 5, 6), (6, 5, 6), (3, 2, 3)] {
        let mut w = command(expected, Vec::new(), false, &LIMITS).unwrap();
        assert_eq!(w.data_out(0, 0, vec![1; short], true, false).unwrap_err(), InboundError::Incorrect);
        assert!(!w.awaits(0, 0, short, true, false));
        w.data_out(0, 0, vec![1; short], false, false).unwrap();
        w.data_out(short as u32, 1, vec![1; whole - short], true, false).unwrap();
        let mut w = command(expected, Vec::new(), false, &LIMITS).unwrap();
        w.allow_short_burst();
        w.data_out(0, 0, vec![1; short], true, false).unwrap();
    }
    let mut w = command(30, Vec::new(), true, &LIMITS).unwrap();
    assert_eq!(w.data_out(0, 0, vec![1], true, false).unwrap_err(), InboundError::UnexpectedUnsolicited);
    assert_eq!(w.data_out(0, 0, vec![1], true, true).unwrap_err(), InboundError::TooMuch);
    w.want(8);
    w.next_r2t(&LIMITS).unwrap();
    assert_eq!(w.data_out(1, 0, vec![1], true, true).unwrap_err(), InboundError::OutOfOrder);
    assert_eq!(w.data_out(0, 5, vec![1], true, true).unwrap_err(), InboundError::DataSn);
    assert_eq!(w.data_out(0, 0, vec![1; 9], true, true).unwrap_err(), InboundError::TooMuch);
    assert_eq!(w.data_out(0, 0, vec![1; 7], true, true).unwrap_err(), InboundError::Incorrect);
}

#[test]
fn a_finished_unit_discards_what_is_still_owed() {
    let mut w = command(30, vec![1, 2], true, &LIMITS).unwrap();
    w.want(10);
    w.next_r2t(&LIMITS).unwrap();
    w.discard();
    assert!(w.owed());
    w.data_out(2, 0, vec![9; 8], true, true).unwrap();
    assert!(!w.owed());
    assert_eq!(w.available(), 0);
    assert_eq!(w.next_r2t(&LIMITS), None);
}
