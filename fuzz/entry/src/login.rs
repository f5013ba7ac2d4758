//! Login: the target against any initiator, the initiator against any target, and one against the
//! other over a line that modifies messages. No initiator logs in without the secret, whatever it
//! sends.

use crate::input::{Input, Seed};
use iscsi::chap::{ChapError, Credential, Hash, Secret};
use iscsi::keys::{DigestChoice, Offer, Params};
use iscsi::login::initiator::{self, Chap, InitiatorLogin};
use iscsi::login::target::{
    Auth, Claim, Directory, Grant, Moved, Placement, Refusal, Reply, Step, TargetLogin,
};
use iscsi::pdu::{Isid, LoginRequest, LoginResponse, LoginStatus, Stage, StatusClass};
use iscsi::text::LOGIN_SEGMENT_LEN;

const TARGET: &str = "iqn.2026-01.org.stag:disk";
const ISID: Isid = Isid([0x80, 1, 2, 3, 0, 4]);
const USER_SECRET: &[u8; 16] = b"the user's own 1";
const TARGET_SECRET: &[u8; 16] = b"the target's own";

/// A target whose demands are the bits of a byte.
struct House(u8);

impl House {
    fn requires_chap(&self) -> bool {
        self.0 & 3 == 3
    }
}

fn credential(name: &str, secret: &[u8; 16]) -> Credential {
    Credential { name: name.to_owned(), secret: Secret::new(*secret) }
}

fn offer(bits: u8) -> Offer {
    let digest = match bits & 3 {
        0 => DigestChoice::Allow,
        1 => DigestChoice::Prefer,
        2 => DigestChoice::Require,
        _ => DigestChoice::Never,
    };
    Offer {
        header_digest: digest,
        data_digest: DigestChoice::Allow,
        initial_r2t: bits & 4 != 0,
        ..Offer::default()
    }
}

impl Directory for House {
    fn admit(&self, claim: &Claim<'_>) -> Result<Grant, Refusal> {
        if claim.initiator.len() == 13 {
            return Err(Refusal::Moved(Moved { address: "192.0.2.1:3260".to_owned(), permanently: true }));
        }
        if claim.target.is_some_and(|name| name != TARGET) {
            return Err(Refusal::Status(LoginStatus::NotFound));
        }
        if claim.tsih > 1 {
            return Err(Refusal::Status(LoginStatus::SessionDoesNotExist));
        }
        let auth = match self.0 & 3 {
            0 => Auth::None,
            bits => Auth::Chap {
                hashes: if self.0 & 4 != 0 { vec![Hash::Md5] } else { Vec::new() },
                mutual: (self.0 & 8 != 0).then(|| credential("target", TARGET_SECRET)),
                required: bits == 3,
            },
        };
        Ok(Grant {
            auth,
            offer: offer(self.0 >> 4),
            portal_group_tag: 1,
            alias: (self.0 & 0x80 != 0).then(|| "a".repeat(200)),
            session: (claim.tsih == 1).then(Params::default),
            then: match claim.initiator.len() {
                14 => {
                    Some(Refusal::Moved(Moved { address: "192.0.2.2:3260".to_owned(), permanently: false }))
                }
                15 => Some(Refusal::Status(LoginStatus::SessionDoesNotExist)),
                _ => None,
            },
        })
    }

    fn secret(&self, _: &Claim<'_>, user: &str) -> Option<Secret> {
        (user == "user").then(|| Secret::new(*USER_SECRET))
    }

    fn random(&self, buf: &mut [u8]) -> Result<(), ChapError> {
        buf.fill(0x42);
        Ok(())
    }
}

fn check_reply(reply: &Reply, stat_sn: u32) {
    assert!(reply.data.len() <= LOGIN_SEGMENT_LEN);
    assert_eq!(reply.header.as_bhs().data_segment_len() as usize, reply.data.len());
    assert_eq!(reply.header.stat_sn.get(), stat_sn);
    assert!(reply.header.status().is_some());
    assert!(!(reply.header.transit() && reply.header.continues()));
}

/// A byte with the target's demands; then requests: flags, a byte of deviations from the first
/// header, the text as a chunk.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let house = House(input.u8());
    let mut login = TargetLogin::new(u32::MAX - 1);
    for _ in 0..80 {
        if input.is_empty() {
            return;
        }
        let (flags, deviation) = (input.u8(), input.u8());
        let tsih = u16::from(deviation >> 6);
        let mut request =
            LoginRequest::new(7 + u32::from(deviation & 1), ISID, tsih, 1 + u16::from(deviation >> 1 & 1));
        request.flags = flags;
        request.version_min = deviation >> 2 & 1;
        request.isid.0[5] ^= deviation >> 3 & 1;
        request.cmd_sn.set(100);
        let text = input.chunk();
        let text = &text[..text.len().min(LOGIN_SEGMENT_LEN)];
        request.as_bhs_mut().set_data_segment_len(text.len());
        let stat_sn = login.next_stat_sn();
        match login.handle(&request, text, &house) {
            Step::Reply(reply) => {
                check_reply(&reply, stat_sn);
                assert_eq!(reply.header.class(), Some(StatusClass::Success));
                assert!(
                    !(reply.header.transit() && reply.header.next_stage() == Some(Stage::FullFeaturePhase))
                );
            }
            Step::Close(reply, error) => {
                check_reply(&reply, stat_sn);
                assert_ne!(reply.header.class(), Some(StatusClass::Success), "{error}");
                assert!(matches!(login.handle(&request, text, &house), Step::Close(..)), "closed is closed");
                return;
            }
            Step::Place(outcome) => {
                assert!(
                    !house.requires_chap() || outcome.user.is_some(),
                    "nobody gets in without CHAP: {outcome:?}"
                );
                assert!(outcome.user.as_deref().is_none_or(|user| user == "user"));
                assert!(outcome.params.first_burst_length <= outcome.params.max_burst_length);
                let placement =
                    Placement { tsih: 9, exp_cmd_sn: outcome.cmd_sn, max_cmd_sn: outcome.cmd_sn + 31 };
                let reply = if flags & 0x10 == 0 {
                    login.accept(placement)
                } else {
                    login.refuse(LoginStatus::OutOfResources)
                };
                check_reply(&reply, stat_sn);
                assert!(matches!(login.handle(&request, text, &house), Step::Close(..)), "over is over");
                return;
            }
        }
    }
    panic!("a login takes more requests than the limit");
}

fn text(pairs: &str) -> Vec<u8> {
    pairs.split_terminator(' ').flat_map(|pair| pair.bytes().chain([0])).collect()
}

fn names(rest: &str) -> Vec<u8> {
    text(&format!(
        "InitiatorName=iqn.1993-08.org.debian:01:abc TargetName={TARGET} SessionType=Normal {rest}"
    ))
}

/// Logins with and without CHAP, in one and in many requests, and wrong ones.
pub fn target_seeds() -> Vec<(&'static str, Seed)> {
    let seed = |house: u8, requests: &[(u8, u8, Vec<u8>)]| {
        let start = Seed::new().bytes([house]);
        requests
            .iter()
            .fold(start, |seed, (flags, deviation, text)| seed.bytes([*flags, *deviation]).chunk(text))
    };
    let operational = "HeaderDigest=None,CRC32C DataDigest=None InitialR2T=No ImmediateData=Yes MaxBurstLength=262144 \
                       FirstBurstLength=65536 MaxRecvDataSegmentLength=262144 MaxConnections=1 MaxOutstandingR2T=1 ";
    let response = Hash::Md5.response(0x42, &Secret::new(*USER_SECRET), &[0x42; 16]);
    let proof = format!("CHAP_N=user CHAP_R={} ", iscsi::text::to_hex(&response));
    let mutual = format!("{proof}CHAP_I=9 CHAP_C=0x0102030405060708090a0b0c0d0e0f10 ");
    let chap = |proof: &str| {
        [
            (0x00, 0, names("AuthMethod=CHAP,None ")),
            (0x00, 0, text("CHAP_A=5 ")),
            (0x81, 0, text(proof)),
            (0x87, 0, text(operational)),
        ]
    };
    let long = names(&"X-org.stag.fill=0123456789 ".repeat(100));
    let (first, second) = long.split_at(1000);
    vec![
        ("one-request", seed(0, &[(0x87, 0, names(operational))])),
        (
            "security-then-operational",
            seed(0, &[(0x81, 0, names("AuthMethod=None ")), (0x87, 0, text(operational))]),
        ),
        ("straight-to-full-feature", seed(1, &[(0x83, 0, names("AuthMethod=None "))])),
        (
            "discovery",
            seed(0, &[(0x87, 0, text("InitiatorName=iqn.1993-08.org.debian:01:abc SessionType=Discovery "))]),
        ),
        ("chap", seed(7, &chap(&proof))),
        ("chap-mutual", seed(15, &chap(&mutual))),
        ("chap-wrong", seed(7, &chap("CHAP_N=user CHAP_R=0x00112233445566778899aabbccddeeff "))),
        ("chap-refused", seed(7, &[(0x81, 0, names("AuthMethod=None "))])),
        ("chap-skipped", seed(7, &[(0x87, 0, names(operational))])),
        (
            "continued",
            seed(0, &[(0x44, 0, first.to_vec()), (0x04, 0, second.to_vec()), (0x87, 0, text(operational))]),
        ),
        ("long-answer", seed(0x80, &[(0x04, 0, long.clone()), (0x87, 0, Vec::new())])),
        ("further-connection", seed(0, &[(0x87, 0x40, names(operational))])),
        ("no-such-session", seed(0, &[(0x87, 0x80, names(operational))])),
        ("header-changed", seed(0, &[(0x81, 0, names("AuthMethod=None ")), (0x87, 1, text(operational))])),
        ("digest-required", seed(0x20, &[(0x87, 0, names("")), (0x87, 0, text("HeaderDigest=CRC32C "))])),
        ("refused-by-session", seed(0, &[(0x97, 0, names(operational))])),
    ]
}

fn initiator_config(bits: u8) -> initiator::Config {
    initiator::Config {
        initiator: "iqn.2026-01.org.stag:host".to_owned(),
        alias: None,
        target: (bits & 8 == 0).then(|| TARGET.to_owned()),
        isid: ISID,
        tsih: u16::from(bits >> 7),
        cid: 1,
        cmd_sn: 100,
        itt: 7,
        chap: (bits & 1 != 0).then(|| Chap {
            credential: credential("user", USER_SECRET),
            target: (bits & 2 != 0).then(|| credential("target", TARGET_SECRET)),
            hashes: Vec::new(),
        }),
        offer: offer(bits >> 4),
        session: (bits & 0x80 != 0).then(Params::default),
        skip_security: bits & 4 != 0,
    }
}

fn check_request(request: &initiator::Request) {
    assert!(request.data.len() <= LOGIN_SEGMENT_LEN);
    assert_eq!(request.header.as_bhs().data_segment_len() as usize, request.data.len());
    assert!(request.header.as_bhs().immediate());
    assert!(!(request.header.transit() && request.header.continues()));
}

/// A byte with what the initiator wants; then responses: flags, class, detail, a byte of
/// deviations, the text as a chunk.
pub fn initiator(data: &[u8]) {
    let mut input = Input::new(data);
    let config = initiator_config(input.u8());
    let wants_proof = config.chap.as_ref().is_some_and(|chap| chap.target.is_some());
    let mut login = InitiatorLogin::new(config);
    check_request(&login.start());
    for n in 0..80 {
        if input.is_empty() {
            return;
        }
        let (flags, class, detail, deviation) = (input.u8(), input.u8(), input.u8(), input.u8());
        let mut response = LoginResponse::new(7 + u32::from(deviation & 1), ISID, 9);
        response.flags = flags;
        (response.status_class, response.status_detail) = (class, detail);
        response.version_active = deviation >> 1 & 1;
        response.tsih.set(u16::from(deviation >> 4));
        response.stat_sn.set(n);
        let text = input.chunk();
        match login.handle(&response, text) {
            Ok(initiator::Step::Send(request)) => check_request(&request),
            Ok(initiator::Step::Moved { address, .. }) => {
                let _ = iscsi::discovery::TargetAddress::parse(&address);
                return;
            }
            Ok(initiator::Step::Done(established)) => {
                assert!(!wants_proof, "no target without the secret is believed: {established:?}");
                assert_eq!(class, 0);
                return;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        }
    }
    panic!("a login takes more responses than the limit");
}

/// Answers of targets, with and without CHAP, redirections and refusals.
pub fn initiator_seeds() -> Vec<(&'static str, Seed)> {
    let seed = |bits: u8, responses: &[(u8, u16, u8, &str)]| {
        responses.iter().fold(Seed::new().bytes([bits]), |seed, (flags, status, deviation, pairs)| {
            seed.bytes([*flags]).bytes(status.to_be_bytes()).bytes([*deviation]).chunk(text(pairs))
        })
    };
    let operational = "HeaderDigest=CRC32C DataDigest=None InitialR2T=Yes ImmediateData=Yes MaxBurstLength=262144 \
                       FirstBurstLength=65536 MaxRecvDataSegmentLength=8192 MaxConnections=1 MaxOutstandingR2T=1 \
                       DefaultTime2Wait=2 DefaultTime2Retain=20 ErrorRecoveryLevel=0 ";
    let challenge = "CHAP_A=5 CHAP_I=1 CHAP_C=0x000102030405060708090a0b0c0d0e0f ";
    vec![
        (
            "plain",
            seed(
                0,
                &[(0x81, 0, 0x90, "TargetPortalGroupTag=1 AuthMethod=None "), (0x87, 0, 0x90, operational)],
            ),
        ),
        ("skip-security", seed(4, &[(0x87, 0, 0x90, operational)])),
        ("discovery", seed(12, &[(0x87, 0, 0, "MaxRecvDataSegmentLength=8192 ")])),
        (
            "chap",
            seed(
                1,
                &[
                    (0, 0, 0x90, "AuthMethod=CHAP "),
                    (0, 0, 0x90, challenge),
                    (0x81, 0, 0x90, ""),
                    (0x87, 0, 0x90, operational),
                ],
            ),
        ),
        (
            "chap-mutual-silent",
            seed(3, &[(0, 0, 0x90, "AuthMethod=CHAP "), (0, 0, 0x90, challenge), (0x81, 0, 0x90, "")]),
        ),
        (
            "chap-mutual-wrong",
            seed(
                3,
                &[
                    (0, 0, 0x90, "AuthMethod=CHAP "),
                    (0, 0, 0x90, challenge),
                    (0x81, 0, 0x90, "CHAP_N=target CHAP_R=0x0011 "),
                ],
            ),
        ),
        ("chap-declined", seed(3, &[(0x81, 0, 0x90, "AuthMethod=None ")])),
        ("moved", seed(0, &[(0, 0x0101, 0, "TargetAddress=[2001:db8::1]:3260,1 ")])),
        ("refused", seed(0, &[(0, 0x0203, 0, "")])),
        ("unknown-status", seed(0, &[(0, 0x05ff, 0, "")])),
        ("continued", seed(4, &[(0x44, 0, 0x90, "HeaderDigest=None "), (0x87, 0, 0x90, "DataDigest=None ")])),
        ("further", seed(0x84, &[(0x87, 0, 0x10, operational)])),
    ]
}

/// Both machines against each other: a byte each with their wishes, then noise that is XORed into
/// what passes.
pub fn pair(data: &[u8]) {
    let mut input = Input::new(data);
    let house = House(input.u8());
    let config = initiator_config(input.u8() & 0x7f);
    let wants_proof = config.chap.as_ref().is_some_and(|chap| chap.target.is_some());
    let mut untouched = true;
    let mut line = |text: &[u8]| {
        let noise = input.take(text.len());
        untouched &= noise.iter().all(|&byte| byte == 0);
        let mut heard = text.to_vec();
        heard.iter_mut().zip(noise).for_each(|(byte, noise)| *byte ^= noise);
        heard
    };
    let mut target = TargetLogin::new(0);
    let mut initiator = InitiatorLogin::new(config);
    let mut request = initiator.start();
    let mut placed = None;
    for _ in 0..100 {
        let heard = line(&request.data);
        let reply = match target.handle(&request.header, &heard, &house) {
            Step::Reply(reply) => reply,
            Step::Close(reply, _) => reply,
            Step::Place(outcome) => {
                let placement =
                    Placement { tsih: 9, exp_cmd_sn: outcome.cmd_sn, max_cmd_sn: outcome.cmd_sn + 31 };
                assert!(!house.requires_chap() || outcome.user.as_deref() == Some("user"));
                placed = Some(outcome);
                target.accept(placement)
            }
        };
        let heard = line(&reply.data);
        match initiator.handle(&reply.header, &heard) {
            Ok(initiator::Step::Send(next)) => request = next,
            Ok(initiator::Step::Done(established)) => {
                let outcome = placed.expect("the initiator is done when the target has placed it");
                assert!(!wants_proof || established.authenticated);
                assert_eq!(established.tsih, 9);
                if untouched {
                    agree(&outcome.params, &established.params);
                }
                return;
            }
            Ok(initiator::Step::Moved { .. }) | Err(_) => return,
        }
    }
    panic!("a login never ends");
}

/// RFC 7143 §6.2: both sides of an honest line hold the same session.
fn agree(target: &Params, initiator: &Params) {
    assert_eq!(target.header_digest, initiator.header_digest);
    assert_eq!(target.data_digest, initiator.data_digest);
    assert_eq!(target.initial_r2t, initiator.initial_r2t);
    assert_eq!(target.immediate_data, initiator.immediate_data);
    assert_eq!(target.max_burst_length, initiator.max_burst_length);
    assert_eq!(target.first_burst_length, initiator.first_burst_length);
    assert_eq!(target.max_outstanding_r2t, initiator.max_outstanding_r2t);
    assert_eq!(target.max_connections, initiator.max_connections);
    assert_eq!(target.error_recovery_level, initiator.error_recovery_level);
    assert_eq!(target.max_recv_data_segment_length, initiator.peer_max_recv_data_segment_length);
    assert_eq!(initiator.max_recv_data_segment_length, target.peer_max_recv_data_segment_length);
}

/// All that both may want, over an honest line, and noise at some places.
pub fn pair_seeds() -> Vec<(&'static str, Seed)> {
    vec![
        ("plain", Seed::new().bytes([0, 0])),
        ("skip-security", Seed::new().bytes([0x10, 0x14])),
        ("discovery", Seed::new().bytes([0x80, 0x0c])),
        ("chap", Seed::new().bytes([3, 1])),
        ("chap-mutual", Seed::new().bytes([11, 3])),
        ("chap-mutual-md5", Seed::new().bytes([15, 3])),
        ("chap-optional", Seed::new().bytes([1, 0])),
        ("chap-not-offered", Seed::new().bytes([3, 0])),
        ("digests-required", Seed::new().bytes([0x20, 0x20])),
        ("digests-in-conflict", Seed::new().bytes([0x20, 0x30])),
        ("noise-in-names", Seed::new().bytes([0, 0]).bytes([0; 20]).bytes([1])),
        ("noise-in-answers", Seed::new().bytes([11, 3]).bytes([0; 200]).bytes([0x10, 0, 0, 1])),
    ]
}
