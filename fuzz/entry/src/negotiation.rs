//! A whole negotiation against a peer that sends anything, in every role and phase.

use crate::input::{Input, Seed};
use iscsi::keys::{Digest, DigestChoice, Key, Negotiator, Offer, Params, Phase, Role};
use iscsi::text::{Pair, Pairs, TextBuf};

/// A byte each for role, phase and offer; then texts as chunks, each one turn of the peer.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let role = if input.bool() { Role::Initiator } else { Role::Target };
    let phase =
        [Phase::Leading, Phase::Further, Phase::Discovery, Phase::FullFeature][usize::from(input.u8() & 3)];
    let bits = input.u8();
    let digests = [DigestChoice::Allow, DigestChoice::Prefer, DigestChoice::Require, DigestChoice::Never];
    let offer = Offer {
        header_digest: digests[usize::from(bits & 3)],
        data_digest: digests[usize::from(bits >> 2 & 3)],
        initial_r2t: bits & 0x10 != 0,
        immediate_data: bits & 0x20 != 0,
        error_recovery_level: bits >> 6,
        rdma_extensions: bits & 0x80 != 0,
        ..Offer::default()
    };
    let mut negotiator = Negotiator::new(role, phase, offer.clone(), Params::default());
    let mut out = TextBuf::new();
    if input.bool() {
        negotiator.originate_all(&mut out);
    } else {
        negotiator.originate_required(&mut out);
    }
    for _ in 0..16 {
        if input.is_empty() {
            break;
        }
        let Ok(pairs) = Pairs::new(input.chunk()).collect::<Result<Vec<Pair<'_>>, _>>() else { return };
        let before = out.remaining();
        if negotiator.receive(&pairs, &mut out).is_err() {
            return;
        }
        let said: usize = pairs.iter().map(|p| p.key.len() + p.value.len()).sum();
        assert!(
            out.remaining() - before <= 64 * pairs.len() + 2 * said,
            "an answer stays near its question's size"
        );
    }
    let Ok(params) = negotiator.finish() else { return };
    check(&params, &offer, phase);
}

/// RFC 7143 §13: no outcome leaves a key's range or what we support.
fn check(params: &Params, offer: &Offer, phase: Phase) {
    let segment = 512..1 << 24;
    assert!(segment.contains(&params.max_recv_data_segment_length));
    assert!(segment.contains(&params.peer_max_recv_data_segment_length));
    assert!(segment.contains(&params.max_burst_length));
    assert!(params.first_burst_length <= params.max_burst_length && params.first_burst_length >= 512);
    assert!(params.max_connections >= 1 && params.max_outstanding_r2t >= 1);
    assert!(params.error_recovery_level <= 2);
    assert!(params.default_time2wait_s <= 3600 && params.default_time2retain_s <= 3600);
    if offer.rdma_extensions {
        assert_eq!((params.header_digest, params.data_digest), (Digest::None, Digest::None), "RFC 7145 §6.1");
        assert!(params.rdma_extensions || matches!(phase, Phase::Discovery | Phase::FullFeature));
    } else {
        assert!(offer.header_digest.supports(params.header_digest));
        assert!(offer.data_digest.supports(params.data_digest));
        assert!(!params.rdma_extensions);
    }
    if phase == Phase::FullFeature {
        assert_eq!(
            (params.header_digest, params.data_digest),
            (Digest::None, Digest::None),
            "digests are login's"
        );
    }
    assert!(Key::from_name("HeaderDigest").is_some());
}

/// Texts of initiators and targets in use, ranges at their ends, and answers to keys that were
/// never offered.
pub fn seeds() -> Vec<(&'static str, Seed)> {
    let linux = "HeaderDigest=None,CRC32C\0DataDigest=None,CRC32C\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0IFMarker=No\0\
                 OFMarker=No\0ErrorRecoveryLevel=0\0InitialR2T=No\0ImmediateData=Yes\0MaxBurstLength=16776192\0\
                 FirstBurstLength=262144\0MaxOutstandingR2T=1\0MaxConnections=1\0DataPDUInOrder=Yes\0\
                 DataSequenceInOrder=Yes\0MaxRecvDataSegmentLength=262144\0";
    let answers = "HeaderDigest=CRC32C\0DataDigest=None\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0ErrorRecoveryLevel=0\0\
                   InitialR2T=Yes\0ImmediateData=No\0MaxBurstLength=512\0FirstBurstLength=512\0MaxOutstandingR2T=1\0\
                   MaxConnections=1\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0MaxRecvDataSegmentLength=16777215\0";
    let odd = "MaxBurstLength=0\0FirstBurstLength=16777216\0MaxConnections=65536\0ErrorRecoveryLevel=3\0InitialR2T=Maybe\0\
               HeaderDigest=Reject\0DataDigest=NotUnderstood\0X-com.example=1\0TaskReporting=ResponseFence,FastAbort\0\
               iSCSIProtocolLevel=2\0RDMAExtensions=Yes\0";
    let seed = |head: [u8; 4], texts: &[&str]| {
        texts.iter().fold(Seed::new().bytes(head), |seed, text| seed.chunk(text))
    };
    vec![
        ("target-linux", seed([0, 0, 0, 0], &[linux])),
        ("target-require-digests", seed([0, 0, 0x0a, 0], &[linux])),
        ("target-further", seed([0, 1, 0, 0], &[linux])),
        ("target-discovery", seed([0, 2, 0, 0], &["HeaderDigest=None\0MaxRecvDataSegmentLength=8192\0"])),
        (
            "target-full-feature",
            seed([0, 3, 0, 0], &["MaxRecvDataSegmentLength=65536\0", "HeaderDigest=CRC32C\0"]),
        ),
        ("target-asks-and-is-answered", seed([0, 0, 0x30, 1], &[answers])),
        ("initiator", seed([1, 0, 0x10, 1], &[answers])),
        ("initiator-odd", seed([1, 0, 0, 1], &[odd])),
        ("target-odd", seed([0, 0, 0, 0], &[odd, "FirstBurstLength=1024\0", "FirstBurstLength=1024\0"])),
    ]
}
