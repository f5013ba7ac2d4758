//! Tables of offers and answers, key by key, and both sides against each other.

use proptest::prelude::*;

use super::super::{DigestChoice, TABLE};
use super::*;
use crate::text::Pairs;

fn target(phase: Phase) -> Negotiator {
    Negotiator::new(Role::Target, phase, Offer::default(), Params::default())
}

/// The negotiator's answer to `text` (pairs separated by blanks), in the same form.
fn ask(n: &mut Negotiator, text: &str) -> Result<String, NegotiationError> {
    let bytes = text.replace(' ', "\0").into_bytes();
    let pairs: Vec<_> = Pairs::new(&bytes).map(Result::unwrap).collect();
    let mut out = TextBuf::new();
    n.receive(&pairs, &mut out)?;
    Ok(String::from_utf8(out.as_bytes().to_vec()).unwrap().trim_end_matches('\0').replace('\0', " "))
}

#[test]
fn a_target_answers_each_key_by_its_result_function() {
    for (offer, answer) in [
        // Lists: the first supported value in the originator's order.
        ("HeaderDigest=CRC32C,None", "HeaderDigest=CRC32C"),
        ("HeaderDigest=None,CRC32C", "HeaderDigest=None"),
        ("DataDigest=X-new,CRC32C", "DataDigest=CRC32C"),
        ("DataDigest=X-new", "DataDigest=Reject"),
        ("DataDigest=", "DataDigest=Reject"),
        ("TaskReporting=FastAbort,RFC3720", "TaskReporting=RFC3720"),
        // Minimum; our side has 8 connections, 1 MiB, 256 KiB, 20 s, 8 R2Ts, level 0, level 1.
        ("MaxConnections=4", "MaxConnections=4"),
        ("MaxConnections=400", "MaxConnections=8"),
        ("MaxConnections=0", "MaxConnections=Reject"),
        ("MaxConnections=65536", "MaxConnections=Reject"),
        ("MaxBurstLength=16776192", "MaxBurstLength=1048576"),
        ("MaxBurstLength=0x10000", "MaxBurstLength=65536"),
        ("MaxBurstLength=511", "MaxBurstLength=Reject"),
        ("MaxBurstLength=16777216", "MaxBurstLength=Reject"),
        ("FirstBurstLength=65536", "FirstBurstLength=65536"),
        ("FirstBurstLength=16776192", "FirstBurstLength=262144"),
        ("DefaultTime2Retain=0", "DefaultTime2Retain=0"),
        ("DefaultTime2Retain=3601", "DefaultTime2Retain=Reject"),
        ("MaxOutstandingR2T=1", "MaxOutstandingR2T=1"),
        ("MaxOutstandingR2T=65535", "MaxOutstandingR2T=8"),
        ("ErrorRecoveryLevel=2", "ErrorRecoveryLevel=0"),
        ("ErrorRecoveryLevel=3", "ErrorRecoveryLevel=Reject"),
        ("iSCSIProtocolLevel=2", "iSCSIProtocolLevel=1"),
        ("iSCSIProtocolLevel=32", "iSCSIProtocolLevel=Reject"),
        // Maximum; our side has 2 s.
        ("DefaultTime2Wait=0", "DefaultTime2Wait=2"),
        ("DefaultTime2Wait=5", "DefaultTime2Wait=5"),
        // Booleans; our side has InitialR2T=No, ImmediateData=Yes, in order.
        ("InitialR2T=No", "InitialR2T=No"),
        ("InitialR2T=Yes", "InitialR2T=Yes"),
        ("ImmediateData=No", "ImmediateData=No"),
        ("ImmediateData=Yes", "ImmediateData=Yes"),
        ("ImmediateData=yes", "ImmediateData=Reject"),
        ("DataPDUInOrder=No", "DataPDUInOrder=Yes"),
        ("DataSequenceInOrder=No", "DataSequenceInOrder=Yes"),
        ("RDMAExtensions=Yes", "RDMAExtensions=No"),
        // Declarations have no answer, unless they are invalid.
        ("MaxRecvDataSegmentLength=65536", ""),
        ("MaxRecvDataSegmentLength=511", "MaxRecvDataSegmentLength=Reject"),
        ("InitiatorAlias=me", ""),
        ("X#NodeArchitecture=Linux", ""),
        // Irrelevant keys.
        (
            "InitialR2T=Yes ImmediateData=No FirstBurstLength=65536",
            "InitialR2T=Yes ImmediateData=No FirstBurstLength=65536",
        ),
        (
            "FirstBurstLength=65536 InitialR2T=Yes ImmediateData=No",
            "InitialR2T=Yes ImmediateData=No FirstBurstLength=65536",
        ),
        ("TargetRecvDataSegmentLength=8192", "TargetRecvDataSegmentLength=8192"),
        ("TargetRecvDataSegmentLength=1", "TargetRecvDataSegmentLength=Reject"),
        (
            "InitiatorRecvDataSegmentLength=8192 RDMAExtensions=Yes",
            "RDMAExtensions=No InitiatorRecvDataSegmentLength=8192",
        ),
        ("MaxAHSLength=0 MaxOutstandingUnexpectedPDUs=0 iSERHelloRequired=No", ""),
        // Obsolete, misplaced and unknown keys.
        ("IFMarker=Yes OFMarker=No", "IFMarker=No OFMarker=No"),
        ("IFMarkInt=2048~65535", "IFMarkInt=Reject"),
        ("SendTargets=All", "SendTargets=Reject"),
        ("TargetPortalGroupTag=1", "TargetPortalGroupTag=Reject"),
        ("X-org.example.k=1 Color=red", "X-org.example.k=NotUnderstood Color=NotUnderstood"),
        ("Color=NotUnderstood MaxBurstLength=Reject", ""),
    ] {
        assert_eq!(ask(&mut target(Phase::Leading), offer).as_deref(), Ok(answer), "{offer}");
    }
}

#[test]
fn a_discovery_session_gets_plain_values_for_irrelevant_keys() {
    let mut n = target(Phase::Discovery);
    let got = ask(
        &mut n,
        "MaxConnections=1 InitialR2T=Yes DefaultTime2Wait=2 MaxBurstLength=512 ErrorRecoveryLevel=0",
    );
    let want = "MaxConnections=1 InitialR2T=Yes DefaultTime2Wait=2 MaxBurstLength=512 ErrorRecoveryLevel=0";
    assert_eq!(got.as_deref(), Ok(want));
}

#[test]
fn a_further_connection_negotiates_only_what_is_its_own() {
    let mut n = target(Phase::Further);
    let got = ask(&mut n, "HeaderDigest=CRC32C MaxConnections=2 MaxRecvDataSegmentLength=4096");
    assert_eq!(got.as_deref(), Ok("HeaderDigest=CRC32C MaxConnections=Reject"));
    assert_eq!(n.params().header_digest, Digest::Crc32c);
    assert_eq!(n.params().peer_max_recv_data_segment_length, 4096);
}

#[test]
fn the_full_feature_phase_allows_only_what_may_change_in_it() {
    let mut n = target(Phase::FullFeature);
    let got =
        ask(&mut n, "MaxRecvDataSegmentLength=65536 HeaderDigest=None MaxBurstLength=512 InitiatorAlias=x");
    assert_eq!(got.as_deref(), Ok("HeaderDigest=Reject MaxBurstLength=Reject"));
    assert_eq!(n.params().peer_max_recv_data_segment_length, 65536);
}

#[test]
fn a_key_sent_twice_is_a_protocol_error() {
    let mut n = target(Phase::Leading);
    assert!(ask(&mut n, "MaxBurstLength=65536").is_ok());
    assert_eq!(ask(&mut n, "MaxBurstLength=4096"), Err(NegotiationError::Repeated(Key::MaxBurstLength)));
    let twice =
        ask(&mut target(Phase::Leading), "MaxRecvDataSegmentLength=4096 MaxRecvDataSegmentLength=4096");
    assert_eq!(twice, Err(NegotiationError::Repeated(Key::MaxRecvDataSegmentLength)));
}

#[test]
fn a_key_rejected_once_is_not_negotiated_again() {
    let mut n = target(Phase::Leading);
    assert_eq!(ask(&mut n, "MaxBurstLength=1").as_deref(), Ok("MaxBurstLength=Reject"));
    assert_eq!(ask(&mut n, "MaxBurstLength=4096"), Err(NegotiationError::Repeated(Key::MaxBurstLength)));
    assert_eq!(n.finish().unwrap().max_burst_length, 262_144);
}

#[test]
fn the_first_burst_never_exceeds_the_burst() {
    let mut n = target(Phase::Leading);
    ask(&mut n, "MaxBurstLength=4096").unwrap();
    let p = n.finish().unwrap();
    assert_eq!((p.max_burst_length, p.first_burst_length), (4096, 4096));
}

#[test]
fn the_first_burst_is_answered_by_no_more_than_the_burst_just_agreed_on() {
    let mut n = target(Phase::Leading);
    let answer = ask(&mut n, "MaxBurstLength=4096 FirstBurstLength=65536");
    assert_eq!(answer.as_deref(), Ok("MaxBurstLength=4096 FirstBurstLength=4096"));
}

#[test]
fn a_required_digest_is_offered_by_the_responder_and_insisted_on() {
    let offer = Offer { header_digest: DigestChoice::Require, ..Offer::default() };
    let mut n = Negotiator::new(Role::Target, Phase::Leading, offer.clone(), Params::default());
    let mut out = TextBuf::new();
    n.originate_required(&mut out);
    assert_eq!(out.as_bytes(), b"HeaderDigest=CRC32C\0");
    assert!(n.is_waiting());
    assert_eq!(n.clone().finish(), Err(NegotiationError::Required(Key::HeaderDigest)));
    assert_eq!(ask(&mut n, "HeaderDigest=CRC32C").as_deref(), Ok(""));
    assert_eq!(n.finish().unwrap().header_digest, Digest::Crc32c);

    let mut n = Negotiator::new(Role::Target, Phase::Leading, offer, Params::default());
    assert_eq!(ask(&mut n, "HeaderDigest=None").as_deref(), Ok("HeaderDigest=Reject"));
    assert_eq!(n.finish(), Err(NegotiationError::Required(Key::HeaderDigest)));
}

#[test]
fn a_digest_is_never_brought_up_after_login() {
    let offer = Offer { header_digest: DigestChoice::Require, ..Offer::default() };
    let session = Params { header_digest: Digest::Crc32c, ..Params::default() };
    let mut n = Negotiator::new(Role::Target, Phase::FullFeature, offer, session);
    let mut out = TextBuf::new();
    n.originate_required(&mut out);
    assert!(out.is_empty() && !n.is_waiting());
    assert_eq!(ask(&mut n, "HeaderDigest=None").as_deref(), Ok("HeaderDigest=Reject"));
    assert_eq!(n.finish().map(|p| p.header_digest), Ok(Digest::Crc32c));
}

/// The keys that Linux's ib_iser and open-iscsi send in one PDU.
const LINUX_ISER: &str = "DefaultTime2Wait=2 DefaultTime2Retain=0 IFMarker=No OFMarker=No ErrorRecoveryLevel=0 InitialR2T=No \
    ImmediateData=Yes MaxBurstLength=16776192 FirstBurstLength=262144 MaxOutstandingR2T=1 MaxConnections=1 DataPDUInOrder=Yes \
    DataSequenceInOrder=Yes InitiatorRecvDataSegmentLength=262144 TargetRecvDataSegmentLength=8192 RDMAExtensions=Yes";

fn on_rdma(role: Role, phase: Phase, offer: Offer) -> Negotiator {
    Negotiator::new(role, phase, offer.over_rdma(), Params::default())
}

#[test]
fn linux_gets_iser_on_rdma_and_no_key_that_it_does_not_know() {
    let offer = Offer { max_outstanding_unexpected_pdus: 16, max_ahs_length: 64, ..Offer::default() };
    let mut n = on_rdma(Role::Target, Phase::Leading, offer);
    let answer = ask(&mut n, LINUX_ISER).unwrap();
    assert_eq!(
        answer,
        "RDMAExtensions=Yes DefaultTime2Wait=2 DefaultTime2Retain=0 IFMarker=No OFMarker=No ErrorRecoveryLevel=0 InitialR2T=No \
         ImmediateData=Yes MaxBurstLength=1048576 MaxOutstandingR2T=1 MaxConnections=1 DataPDUInOrder=Yes \
         DataSequenceInOrder=Yes FirstBurstLength=262144 InitiatorRecvDataSegmentLength=262144 \
         TargetRecvDataSegmentLength=8192"
    );
    let mut out = TextBuf::new();
    n.originate(Key::MaxRecvDataSegmentLength, &mut out);
    assert!(out.is_empty(), "RFC 7145 §6.2");
    let p = n.finish().unwrap();
    assert!(p.rdma_extensions && !p.iser_hello_required);
    assert_eq!((p.max_recv_data_segment_length, p.peer_max_recv_data_segment_length), (8192, 262_144));
}

#[test]
fn digests_are_off_with_iser_whoever_wants_them() {
    for require in [DigestChoice::Require, DigestChoice::Prefer] {
        let offer = Offer { header_digest: require, data_digest: require, ..Offer::default() };
        let offer = Offer { rdma_extensions: true, ..offer };
        let mut n = Negotiator::new(Role::Target, Phase::Leading, offer, Params::default());
        let answer = ask(&mut n, "HeaderDigest=CRC32C,None DataDigest=CRC32C RDMAExtensions=Yes");
        assert_eq!(answer.as_deref(), Ok("RDMAExtensions=Yes HeaderDigest=None DataDigest=Reject"));
        let mut out = TextBuf::new();
        n.originate_required(&mut out);
        assert!(out.is_empty());
        let p = n.finish().unwrap();
        assert_eq!((p.header_digest, p.data_digest), (Digest::None, Digest::None));
    }
}

#[test]
fn a_normal_session_on_rdma_must_agree_to_iser() {
    for refusal in ["RDMAExtensions=No", "InitialR2T=Yes"] {
        let mut n = on_rdma(Role::Target, Phase::Leading, Offer::default());
        ask(&mut n, refusal).unwrap();
        assert_eq!(n.finish(), Err(NegotiationError::Required(Key::RDMAExtensions)), "{refusal}");
        let mut n = on_rdma(Role::Initiator, Phase::Leading, Offer::default());
        n.originate_all(&mut TextBuf::new());
        ask(&mut n, refusal).unwrap();
        assert_eq!(n.finish(), Err(NegotiationError::Required(Key::RDMAExtensions)), "{refusal}");
    }
    let mut n = on_rdma(Role::Target, Phase::Discovery, Offer::discovery());
    let answer = ask(&mut n, "HeaderDigest=CRC32C,None MaxRecvDataSegmentLength=32768 RDMAExtensions=Yes");
    assert_eq!(answer.as_deref(), Ok("RDMAExtensions=No HeaderDigest=None"));
    assert_eq!(n.finish().unwrap().peer_max_recv_data_segment_length, 32_768);
}

#[test]
fn declarations_of_iser_are_made_to_those_who_make_them() {
    let offer = Offer { max_outstanding_unexpected_pdus: 16, max_ahs_length: 64, ..Offer::default() };
    let mut n = on_rdma(Role::Target, Phase::Leading, offer);
    let text = "iSERHelloRequired=Yes RDMAExtensions=Yes MaxOutstandingUnexpectedPDUs=4 MaxAHSLength=128 \
                TaggedBufferForSolicitedDataOnly=Yes MaxRecvDataSegmentLength=4096";
    let answer = ask(&mut n, text);
    assert_eq!(answer.as_deref(), Ok("RDMAExtensions=Yes MaxOutstandingUnexpectedPDUs=16 MaxAHSLength=64"));
    let p = n.finish().unwrap();
    assert!(p.iser_hello_required && p.tagged_buffer_for_solicited_data_only);
    assert_eq!((p.peer_max_outstanding_unexpected_pdus, p.peer_max_ahs_length), (4, 128));
    assert_eq!(p.peer_max_recv_data_segment_length, 8192, "RFC 7145 §6.2: the declared one is ignored");
}

#[test]
fn both_ends_of_iser_agree() {
    let theirs = Offer {
        initiator_recv_data_segment_length: 1024,
        target_recv_data_segment_length: 65_536,
        max_outstanding_unexpected_pdus: 4,
        iser_hello_required: true,
        ..Offer::default()
    };
    let ours = Offer { max_outstanding_unexpected_pdus: 20, max_ahs_length: 64, ..Offer::default() };
    let (mut i, mut t) =
        (on_rdma(Role::Initiator, Phase::Leading, theirs), on_rdma(Role::Target, Phase::Leading, ours));
    let mut request = TextBuf::new();
    i.originate_all(&mut request);
    let request = String::from_utf8(request.as_bytes().to_vec()).unwrap().replace('\0', " ");
    assert!(!request.contains("Digest=") && !request.contains(" MaxRecvDataSegmentLength"), "{request}");
    let answer = ask(&mut t, request.trim_end()).unwrap();
    ask(&mut i, &answer).unwrap();
    let (i, t) = (i.finish().unwrap(), t.finish().unwrap());
    assert!(i.rdma_extensions && i.iser_hello_required && t.iser_hello_required);
    assert_eq!((i.max_recv_data_segment_length, i.peer_max_recv_data_segment_length), (1024, 8192));
    assert_eq!((t.max_recv_data_segment_length, t.peer_max_recv_data_segment_length), (8192, 1024));
    assert_eq!((t.peer_max_outstanding_unexpected_pdus, t.peer_max_ahs_length), (4, 256));
    assert_eq!((i.peer_max_outstanding_unexpected_pdus, i.peer_max_ahs_length), (20, 64));
}

fn initiator(offer: Offer) -> Negotiator {
    let mut n = Negotiator::new(Role::Initiator, Phase::Leading, offer, Params::default());
    n.originate_all(&mut TextBuf::new());
    n
}

#[test]
fn an_initiator_refuses_answers_that_it_did_not_offer() {
    for (offer, answer) in [
        (Offer { header_digest: DigestChoice::Never, ..Offer::default() }, "HeaderDigest=CRC32C"),
        (Offer::default(), "HeaderDigest=None,CRC32C"),
        (Offer::default(), "MaxBurstLength=0"),
        (Offer::default(), "InitialR2T=Maybe"),
    ] {
        let got = ask(&mut initiator(offer), answer);
        assert!(matches!(got, Err(NegotiationError::BadAnswer(_))), "{answer}: {got:?}");
    }
    let got = ask(&mut initiator(Offer::default()), "TaskReporting=FastAbort");
    assert_eq!(got.as_deref(), Ok("TaskReporting=Reject"), "a target's own offer, not an answer");
}

#[test]
fn an_initiator_keeps_defaults_where_the_target_refuses_or_is_silent() {
    let mut n = initiator(Offer { immediate_data: false, ..Offer::default() });
    ask(&mut n, "MaxConnections=Reject MaxBurstLength=Irrelevant InitialR2T=NotUnderstood").unwrap();
    let p = n.finish().unwrap();
    assert_eq!((p.max_connections, p.max_burst_length, p.initial_r2t), (1, 262_144, true));
    assert!(!p.immediate_data, "No decides an AND alone");
}

fn any_digest() -> impl Strategy<Value = DigestChoice> {
    prop_oneof![
        Just(DigestChoice::Never),
        Just(DigestChoice::Allow),
        Just(DigestChoice::Prefer),
        Just(DigestChoice::Require)
    ]
}

pub(crate) fn any_offer() -> impl Strategy<Value = Offer> {
    let digests = (any_digest(), any_digest());
    let lengths = (any::<u32>(), any::<u32>(), any::<u32>());
    let shorts = (any::<u16>(), any::<u16>(), any::<u16>(), any::<u16>());
    let bools = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (digests, lengths, shorts, bools, 0u8..3).prop_map(|(d, l, s, b, erl)| Offer {
        header_digest: d.0,
        data_digest: d.1,
        max_recv_data_segment_length: l.0,
        max_burst_length: l.1,
        first_burst_length: l.2,
        max_connections: s.0,
        default_time2wait_s: s.1,
        default_time2retain_s: s.2,
        max_outstanding_r2t: s.3,
        initial_r2t: b.0,
        immediate_data: b.1,
        data_pdu_in_order: b.2,
        data_sequence_in_order: b.3,
        error_recovery_level: erl,
        ..Offer::default()
    })
}

proptest! {
    #[test]
    fn both_ends_agree_whatever_they_offer(theirs in any_offer(), ours in any_offer()) {
        let mut i = Negotiator::new(Role::Initiator, Phase::Leading, theirs, Params::default());
        let mut t = Negotiator::new(Role::Target, Phase::Leading, ours, Params::default());
        let (mut request, mut response) = (TextBuf::new(), TextBuf::new());
        i.originate_all(&mut request);
        let pairs: Vec<_> = Pairs::new(request.as_bytes()).map(Result::unwrap).collect();
        t.receive(&pairs, &mut response).unwrap();
        t.originate(Key::MaxRecvDataSegmentLength, &mut response);
        let pairs: Vec<_> = Pairs::new(response.as_bytes()).map(Result::unwrap).collect();
        let taken = i.receive(&pairs, &mut TextBuf::new());
        match (taken.and_then(|()| i.finish()), t.finish()) {
            (Ok(i), Ok(t)) => {
                let mirrored = Params {
                    max_recv_data_segment_length: t.peer_max_recv_data_segment_length,
                    peer_max_recv_data_segment_length: t.max_recv_data_segment_length,
                    ..t
                };
                prop_assert_eq!(i, mirrored);
            }
            // One side requires a digest that the other never supports: one of them detects it, and
            // neither returns params.
            (i, t) => prop_assert!(
                matches!(i, Err(NegotiationError::Required(_))) || matches!(t, Err(NegotiationError::Required(_))),
            ),
        }
    }

    #[test]
    fn any_text_is_negotiated_without_panic_and_answers_are_bounded(
        keys in proptest::collection::vec((0usize..TABLE.len() + 1, "[ -~]{0,12}|[0-9]{1,12}|Yes|No|None"), 0..20),
        role in prop_oneof![Just(Role::Initiator), Just(Role::Target)],
    ) {
        let mut text = TextBuf::new();
        for (i, v) in &keys {
            text.put(TABLE.get(*i).map_or("Unknown", |s| s.name), v);
        }
        let mut n = Negotiator::new(role, Phase::Leading, Offer::default(), Params::default());
        let pairs: Vec<_> = Pairs::new(text.as_bytes()).map(Result::unwrap).collect();
        let mut out = TextBuf::new();
        let _ = n.receive(&pairs, &mut out);
        prop_assert!(out.as_bytes().len() <= keys.len() * 80);
        let _ = n.finish();
    }
}
