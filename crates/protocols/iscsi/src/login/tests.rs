//! Login dialogs: traces of the PDUs of each side, malformed PDUs, and both state machines against
//! each other.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::initiator::{self, Chap, Config, InitiatorLogin, InitiatorLoginError};
use super::target::{
    Attempt, Auth, Claim, Directory, Grant, LoginError, Moved, Outcome, Placement, Refusal, Reply, Step,
    TargetLogin,
};
use super::*;
use crate::chap::{ChapError, Credential, Hash, Secret};
use crate::keys::negotiate::tests::any_offer;
use crate::keys::{Digest, DigestChoice, NegotiationError, Offer, Params};
use crate::pdu::{Isid, LoginRequest, LoginStatus, Stage};

const INITIATOR: &str = "iqn.2026-01.org.example:host";
const TARGET: &str = "iqn.2026-01.org.example:disk";

/// A target with one user.
struct House {
    auth: Auth,
    offer: Offer,
    alias: Option<String>,
    session: Option<Params>,
    refusal: Option<Refusal>,
    then: Option<Refusal>,
}

impl Default for House {
    fn default() -> Self {
        House {
            auth: Auth::None,
            offer: Offer::default(),
            alias: None,
            session: None,
            refusal: None,
            then: None,
        }
    }
}

impl House {
    fn with_chap(mutual: bool, required: bool) -> Self {
        let mutual = mutual.then(|| credential("the target", "targetsecret1"));
        House { auth: Auth::Chap { hashes: vec![], mutual, required }, ..House::default() }
    }
}

impl Directory for House {
    fn admit(&self, claim: &Claim<'_>) -> Result<Grant, Refusal> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        if claim.target.is_some_and(|t| t != TARGET) {
            return Err(Refusal::Status(LoginStatus::NotFound));
        }
        if claim.tsih != 0 && self.session.is_none() {
            return Err(Refusal::Status(LoginStatus::SessionDoesNotExist));
        }
        Ok(Grant {
            auth: self.auth.clone(),
            offer: self.offer.clone(),
            portal_group_tag: 1,
            alias: self.alias.clone(),
            session: self.session.clone().filter(|_| claim.tsih != 0),
            then: self.then.clone(),
        })
    }

    fn secret(&self, _: &Claim<'_>, user: &str) -> Option<Secret> {
        (user == "alice").then(|| Secret::new(*b"alicesecret12"))
    }
}

fn credential(name: &str, secret: &str) -> Credential {
    Credential { name: name.into(), secret: Secret::new(secret.as_bytes()) }
}

fn request(csg: Stage, nsg: Option<Stage>) -> LoginRequest {
    let mut r = LoginRequest::new(7, Isid::random([1, 2, 3], 0), 0, 1);
    r.set_stages(csg, nsg);
    r.cmd_sn.set(100);
    r
}

use Stage::{FullFeaturePhase as FFP, LoginOperationalNegotiation as OP, SecurityNegotiation as SEC};

fn text(pairs: &str) -> Vec<u8> {
    pairs.split_terminator(' ').flat_map(|p| p.bytes().chain([0])).collect()
}

fn names(rest: &str) -> Vec<u8> {
    text(&format!("InitiatorName={INITIATOR} TargetName={TARGET} {rest}"))
}

fn show(reply: &Reply) -> String {
    let h = &reply.header;
    let mut line = format!("csg={}", h.current_stage().map_or(2, |s| s as u8));
    if h.transit() {
        let _ = write!(line, " T nsg={}", h.next_stage().map_or(2, |s| s as u8));
    }
    if h.continues() {
        line.push_str(" C");
    }
    if h.status() != Some(LoginStatus::Success) {
        let _ = write!(line, " status={:04x}", h.status().map_or(0xffff, LoginStatus::code));
    }
    for pair in crate::text::Pairs::new(&reply.data) {
        let pair = pair.unwrap();
        let _ = write!(line, " {}={}", pair.key, pair.value);
    }
    line
}

/// Sends one request and returns the answer as text; a placed session is accepted with TSIH 9.
fn send(t: &mut TargetLogin, house: &House, r: &LoginRequest, data: &[u8]) -> String {
    match t.handle(r, data, house) {
        Step::Reply(reply) => show(&reply),
        Step::Close(reply, _) => format!("close {}", show(&reply)),
        Step::Place(o) => {
            let placement = Placement { tsih: 9, exp_cmd_sn: o.cmd_sn, max_cmd_sn: o.cmd_sn + 31 };
            let reply = t.accept(placement);
            format!("tsih={} {}", reply.header.tsih, show(&reply))
        }
    }
}

fn refused_with(house: &House, r: &LoginRequest, data: &[u8]) -> LoginError {
    match TargetLogin::new(1).handle(r, data, house) {
        Step::Close(reply, error) => {
            assert_eq!(reply.header.status(), Some(error.status()));
            assert!(!reply.header.transit());
            error
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_login_without_security_takes_one_request() {
    let house = House { alias: Some("disks".into()), ..House::default() };
    let mut t = TargetLogin::new(1);
    let got = send(&mut t, &house, &request(OP, Some(FFP)), &names("HeaderDigest=None MaxBurstLength=65536"));
    assert_eq!(
        got,
        "tsih=9 csg=1 T nsg=3 TargetAlias=disks TargetPortalGroupTag=1 HeaderDigest=None MaxBurstLength=65536 \
         MaxRecvDataSegmentLength=262144"
    );
    assert_eq!(t.next_stat_sn(), 2);
}

#[test]
fn a_login_through_all_stages_moves_when_the_initiator_asks() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    let steps = [
        (
            request(SEC, None),
            names("AuthMethod=CHAP,None SessionType=Normal"),
            "csg=0 TargetPortalGroupTag=1 AuthMethod=None",
        ),
        (request(SEC, Some(OP)), text(""), "csg=0 T nsg=1"),
        (
            request(OP, None),
            text("ImmediateData=Yes"),
            "csg=1 ImmediateData=Yes MaxRecvDataSegmentLength=262144",
        ),
        (request(OP, Some(FFP)), text("MaxConnections=3"), "tsih=9 csg=1 T nsg=3 MaxConnections=3"),
    ];
    for (r, data, want) in steps {
        assert_eq!(send(&mut t, &house, &r, &data), want);
    }
    let late = send(&mut t, &house, &request(OP, Some(FFP)), &[]);
    assert_eq!(late, "close csg=0 status=020b");
}

#[test]
fn security_may_go_straight_to_the_full_feature_phase() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    let got = send(&mut t, &house, &request(SEC, Some(FFP)), &names("AuthMethod=None"));
    assert_eq!(got, "tsih=9 csg=0 T nsg=3 TargetPortalGroupTag=1 AuthMethod=None");
}

#[test]
fn none_in_the_operational_stage_is_answered_where_no_proof_is_due() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    let got = send(&mut t, &house, &request(OP, Some(FFP)), &names("AuthMethod=CHAP,None"));
    assert_eq!(
        got,
        "tsih=9 csg=1 T nsg=3 TargetPortalGroupTag=1 AuthMethod=None MaxRecvDataSegmentLength=262144"
    );
    let (house, mut t) = (House::with_chap(false, true), TargetLogin::new(1));
    let got = send(&mut t, &house, &request(OP, Some(FFP)), &names("AuthMethod=None"));
    assert_eq!(got, "close csg=0 status=0201");
}

#[test]
fn a_target_that_demands_chap_tells_its_alias_after_the_proof() {
    let house = House { alias: Some("Disks".into()), ..House::with_chap(false, true) };
    let mut t = TargetLogin::new(1);
    let got = send(&mut t, &house, &request(SEC, None), &names("AuthMethod=CHAP"));
    assert_eq!(got, "csg=0 TargetPortalGroupTag=1 AuthMethod=CHAP");
    let Step::Reply(reply) = t.handle(&request(SEC, None), &text("CHAP_A=5"), &house) else {
        panic!("no challenge")
    };
    let pairs: Vec<_> = crate::text::Pairs::new(&reply.data).map(Result::unwrap).collect();
    let value = |key: &str| pairs.iter().find(|pair| pair.key == key).unwrap().value;
    let challenge = crate::text::parse_binary(value("CHAP_C"), 64).unwrap();
    let id = value("CHAP_I").parse().unwrap();
    let response = Hash::Md5.response(id, &Secret::new(*b"alicesecret12"), &challenge);
    let proof = format!("CHAP_N=alice CHAP_R={}", crate::text::to_hex(&response));
    assert_eq!(t.take_attempt(), None);
    let got = send(&mut t, &house, &request(SEC, Some(OP)), &text(&proof));
    assert_eq!(got, "csg=0 T nsg=1 TargetAlias=Disks");
    assert_eq!(t.take_attempt(), Some(Attempt { user: "alice".into(), right: true }));
}

#[test]
fn short_keys_do_not_make_a_long_answer() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    send(&mut t, &house, &request(OP, None), &names(""));
    let keys: String = (0..2000).map(|n| format!("k{n}= ")).collect();
    let mut r = request(OP, None);
    let mut last = String::new();
    for (part, more) in text(&keys).chunks(8192).map(|part| (part, true)).chain([(&b""[..], false)]) {
        r.set_continues(more);
        last = send(&mut t, &house, &r, part);
    }
    assert_eq!(last, "close csg=0 status=0200");
}

#[test]
fn a_discovery_session_needs_no_target_name() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    let data = text(&format!("InitiatorName={INITIATOR} SessionType=Discovery MaxBurstLength=65536"));
    let got = send(&mut t, &house, &request(OP, Some(FFP)), &data);
    assert_eq!(got, "tsih=9 csg=1 T nsg=3 MaxBurstLength=65536 MaxRecvDataSegmentLength=262144");
}

#[test]
fn text_with_c_is_answered_empty_until_it_is_whole() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    let whole = names("MaxBurstLength=65536");
    let (a, b) = whole.split_at(20);
    let mut first = request(OP, None);
    first.set_continues(true);
    assert_eq!(send(&mut t, &house, &first, a), "csg=1");
    let got = send(&mut t, &house, &request(OP, Some(FFP)), b);
    assert_eq!(
        got,
        "tsih=9 csg=1 T nsg=3 TargetPortalGroupTag=1 MaxBurstLength=65536 MaxRecvDataSegmentLength=262144"
    );
}

#[test]
fn a_long_answer_goes_out_in_parts_and_moves_on_with_the_last() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    let mut data = names("");
    for i in 0..600 {
        data.extend_from_slice(format!("X-org.example.{i}=1\0").as_bytes());
    }
    let mut replies = String::new();
    let mut r = request(OP, Some(FFP));
    let outcome = loop {
        match t.handle(&r, &std::mem::take(&mut data), &house) {
            Step::Reply(reply) => {
                assert!(reply.header.continues() && !reply.header.transit());
                assert_eq!(reply.data.len(), crate::text::LOGIN_SEGMENT_LEN);
                replies.push_str(std::str::from_utf8(&reply.data).unwrap());
            }
            Step::Place(outcome) => break outcome,
            Step::Close(_, e) => panic!("{e}"),
        }
        r = request(OP, None);
    };
    let last = t.accept(Placement { tsih: 9, exp_cmd_sn: 0, max_cmd_sn: 0 });
    assert!(last.header.transit() && !last.header.continues());
    replies.push_str(std::str::from_utf8(&last.data).unwrap());
    assert_eq!(replies.matches("=NotUnderstood\0").count(), 600);
    assert_eq!(outcome.initiator, INITIATOR);
}

#[test]
fn text_in_the_middle_of_ours_ends_the_login() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    let mut data = names("");
    for i in 0..600 {
        data.extend_from_slice(format!("X-org.example.{i}=1\0").as_bytes());
    }
    assert!(send(&mut t, &house, &request(OP, Some(FFP)), &data).starts_with("csg=1 C"));
    let got = send(&mut t, &house, &request(OP, Some(FFP)), b"MaxBurstLength=512\0");
    assert_eq!(got, "close csg=0 status=0200");
}

#[test]
fn each_fault_of_a_first_request_has_its_status() {
    let house = House::default();
    let mut version = request(OP, Some(FFP));
    (version.version_min, version.version_max) = (1, 2);
    let mut both = request(OP, Some(FFP));
    both.set_continues(true);
    let mut reserved = request(OP, None);
    reserved.flags = 0x80 | 2 << 2 | 3;
    let mut joining = request(OP, Some(FFP));
    joining.tsih.set(5);
    let discovery = |rest: &str| text(&format!("InitiatorName={INITIATOR} SessionType=Discovery {rest}"));
    for (r, data, status) in [
        (version, names(""), 0x0205),
        (both, names(""), 0x0200),
        (reserved, names(""), 0x0200),
        (request(FFP, None), names(""), 0x0200),
        (request(OP, Some(OP)), names(""), 0x0200),
        (request(OP, Some(SEC)), names(""), 0x0200),
        (request(OP, Some(FFP)), text(""), 0x0207),
        (request(OP, Some(FFP)), text(&format!("InitiatorName={INITIATOR}")), 0x0207),
        (request(OP, Some(FFP)), text(&format!("TargetName={TARGET}")), 0x0207),
        (request(OP, Some(FFP)), text(&format!("InitiatorName=me TargetName={TARGET}")), 0x0200),
        (request(OP, Some(FFP)), text(&format!("InitiatorName={INITIATOR} TargetName={TARGET}2")), 0x0203),
        (request(OP, Some(FFP)), names("SessionType=Other"), 0x0209),
        (request(OP, Some(FFP)), names(&format!("InitiatorName={INITIATOR}")), 0x0200),
        (request(OP, Some(FFP)), names("MaxBurstLength=512 MaxBurstLength=512"), 0x0200),
        (request(OP, Some(FFP)), names("AuthMethod=CHAP"), 0x0200),
        (request(OP, Some(FFP)), names("AuthMethod=None AuthMethod=None"), 0x0200),
        (request(OP, Some(FFP)), b"no equals sign\0".to_vec(), 0x0200),
        (request(SEC, Some(OP)), names("MaxBurstLength=512"), 0x0200),
        (request(SEC, Some(OP)), names("HeaderDigest=None"), 0x0200),
        (request(SEC, Some(OP)), names("CHAP_A=5"), 0x0201),
        (request(SEC, Some(OP)), names("AuthMethod=KRB5,SRP"), 0x0201),
        (request(SEC, Some(OP)), names("AuthMethod=CHAP"), 0x0201),
        (joining, names(""), 0x020a),
        (joining, discovery(""), 0x0208),
    ] {
        let error = refused_with(&house, &r, &data);
        assert_eq!(error.status().code(), status, "{error}");
    }
}

#[test]
fn a_login_that_never_ends_is_cut_off() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    send(&mut t, &house, &request(OP, None), &names(""));
    for _ in 1..MAX_LOGIN_PDUS {
        assert_eq!(send(&mut t, &house, &request(OP, None), &[]), "csg=1");
    }
    assert_eq!(send(&mut t, &house, &request(OP, None), &[]), "close csg=0 status=0200");
}

#[test]
fn text_without_end_is_cut_off() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    let mut r = request(OP, None);
    r.set_continues(true);
    let part = [b'A'; 8192];
    let mut parts = 0;
    while let Step::Reply(_) = t.handle(&r, &part, &house) {
        parts += 1;
    }
    assert!(parts * 8192 <= MAX_REQUEST_TEXT);
}

#[test]
fn the_identifying_fields_may_not_change_within_a_login() {
    for change in [
        (|r| r.itt.set(8)) as fn(&mut LoginRequest),
        |r| r.cid.set(2),
        |r| r.tsih.set(2),
        |r| r.isid = Isid::random([9, 9, 9], 0),
    ] {
        let (house, mut t) = (House::default(), TargetLogin::new(1));
        send(&mut t, &house, &request(OP, None), &names(""));
        let mut r = request(OP, Some(FFP));
        change(&mut r);
        assert_eq!(send(&mut t, &house, &r, &[]), "close csg=0 status=0200");
    }
}

#[test]
fn a_stage_is_neither_repeated_nor_skipped_back() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    send(&mut t, &house, &request(SEC, Some(OP)), &names("AuthMethod=None"));
    assert_eq!(send(&mut t, &house, &request(SEC, Some(OP)), &[]), "close csg=0 status=0200");
}

#[test]
fn names_are_not_sent_twice() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    send(&mut t, &house, &request(OP, None), &names(""));
    assert_eq!(send(&mut t, &house, &request(OP, Some(FFP)), &names("")), "close csg=0 status=0200");
}

#[test]
fn required_chap_cannot_be_walked_around() {
    let house = House::with_chap(false, true);
    for (r, data) in [
        (request(OP, Some(FFP)), names("")),
        (request(SEC, Some(FFP)), names("")),
        (request(SEC, Some(OP)), names("AuthMethod=None")),
    ] {
        assert_eq!(refused_with(&house, &r, &data).status(), LoginStatus::AuthenticationFailure);
    }
    // AuthMethod=CHAP, then T without a CHAP response: the stage must not end.
    let mut t = TargetLogin::new(1);
    assert_eq!(
        send(&mut t, &house, &request(SEC, Some(FFP)), &names("AuthMethod=CHAP")),
        "csg=0 TargetPortalGroupTag=1 AuthMethod=CHAP"
    );
    assert_eq!(send(&mut t, &house, &request(SEC, Some(FFP)), &[]), "csg=0");
    assert_eq!(send(&mut t, &house, &request(OP, Some(FFP)), &[]), "close csg=0 status=0200");
}

#[test]
fn a_redirection_says_where_the_target_is() {
    for (permanently, code) in [(false, "0101"), (true, "0102")] {
        let refusal = Refusal::Moved(Moved { address: "192.0.2.7:3260".into(), permanently });
        let house = House { refusal: Some(refusal), ..House::default() };
        let mut t = TargetLogin::new(1);
        let got = send(&mut t, &house, &request(SEC, Some(OP)), &names("AuthMethod=None"));
        assert_eq!(got, format!("close csg=0 status={code} TargetAddress=192.0.2.7:3260"));
        let step = run(&house, &mut InitiatorLogin::new(config())).0.unwrap();
        assert_eq!(step, initiator::Step::Moved { address: "192.0.2.7:3260".into(), permanently });
    }
}

#[test]
fn a_session_that_cannot_take_the_connection_refuses_last() {
    let (house, mut t) = (House::default(), TargetLogin::new(1));
    let step = t.handle(&request(OP, Some(FFP)), &names(""), &house);
    assert!(matches!(step, Step::Place(_)));
    let reply = t.refuse(LoginStatus::TooManyConnections);
    assert_eq!(show(&reply), "csg=0 status=0206");
}

#[test]
fn a_required_digest_is_brought_up_by_the_target() {
    let offer = Offer { header_digest: DigestChoice::Require, ..Offer::default() };
    let (house, mut t) = (House { offer, ..House::default() }, TargetLogin::new(1));
    let got = send(&mut t, &house, &request(OP, Some(FFP)), &names(""));
    assert_eq!(got, "csg=1 TargetPortalGroupTag=1 MaxRecvDataSegmentLength=262144 HeaderDigest=CRC32C");
    let got = send(&mut t, &house, &request(OP, Some(FFP)), &text("HeaderDigest=CRC32C"));
    assert_eq!(got, "tsih=9 csg=1 T nsg=3");
}

fn config() -> Config {
    Config {
        initiator: INITIATOR.into(),
        alias: None,
        target: Some(TARGET.into()),
        isid: Isid::random([4, 5, 6], 7),
        tsih: 0,
        cid: 3,
        cmd_sn: 55,
        itt: 1,
        chap: None,
        offer: Offer::default(),
        session: None,
        skip_security: false,
    }
}

fn chap(user: &str, secret: &str, target: Option<Credential>) -> Option<Chap> {
    Some(Chap { credential: credential(user, secret), target, hashes: vec![] })
}

/// The end of the target's side, if reached.
type Verdict = Option<Result<Box<Outcome>, LoginError>>;

/// Runs both state machines to the end. Returns the initiator's result, and the target's outcome or
/// error.
fn run(house: &House, i: &mut InitiatorLogin) -> (Result<initiator::Step, InitiatorLoginError>, Verdict) {
    let mut t = TargetLogin::new(0xffff_fffe);
    let mut request = i.start();
    let mut verdict = None;
    for _ in 0..2 * MAX_LOGIN_PDUS {
        assert!(request.data.len() <= crate::text::LOGIN_SEGMENT_LEN);
        assert_eq!(request.header.as_bhs().data_segment_len() as usize, request.data.len());
        let reply = match t.handle(&request.header, &request.data, house) {
            Step::Reply(reply) => reply,
            Step::Place(o) => {
                let placement = Placement { tsih: 9, exp_cmd_sn: o.cmd_sn, max_cmd_sn: o.cmd_sn + 31 };
                verdict = Some(Ok(o));
                t.accept(placement)
            }
            Step::Close(reply, error) => {
                verdict = Some(Err(error));
                reply
            }
        };
        assert_eq!(reply.header.as_bhs().data_segment_len() as usize, reply.data.len());
        match i.handle(&reply.header, &reply.data) {
            Ok(initiator::Step::Send(next)) => {
                assert_eq!(next.header.exp_stat_sn.get(), t.next_stat_sn());
                request = next;
            }
            end => return (end, verdict),
        }
    }
    panic!("the login does not end");
}

fn established(result: Result<initiator::Step, InitiatorLoginError>) -> Box<initiator::Established> {
    match result {
        Ok(initiator::Step::Done(e)) => e,
        other => panic!("no session: {other:?}"),
    }
}

#[test]
fn both_machines_log_in_with_and_without_the_security_stage() {
    for skip_security in [false, true] {
        let mut i = InitiatorLogin::new(Config { skip_security, ..config() });
        let (end, verdict) = run(&House::default(), &mut i);
        let e = established(end);
        assert_eq!((e.tsih, e.exp_cmd_sn, e.max_cmd_sn, e.portal_group_tag), (9, 55, 86, Some(1)));
        let outcome = verdict.unwrap().unwrap();
        assert_eq!((outcome.cid, outcome.isid, outcome.cmd_sn), (3, Isid::random([4, 5, 6], 7), 55));
    }
}

#[test]
fn both_machines_authenticate_one_way_and_mutually() {
    for mutual in [false, true] {
        let target = mutual.then(|| credential("the target", "targetsecret1"));
        for hash in Hash::ALL {
            let mut chap = chap("alice", "alicesecret12", target.clone());
            chap.as_mut().unwrap().hashes = vec![hash];
            let (end, verdict) =
                run(&House::with_chap(mutual, true), &mut InitiatorLogin::new(Config { chap, ..config() }));
            assert!(established(end).authenticated);
            assert_eq!(verdict.unwrap().unwrap().user.as_deref(), Some("alice"));
        }
    }
}

#[test]
fn a_redirection_that_waits_for_proof_is_told_to_nobody_else() {
    let then = Some(Refusal::Moved(Moved { address: "192.0.2.7:3260".into(), permanently: false }));
    let house = House { then, ..House::with_chap(false, true) };
    let right = chap("alice", "alicesecret12", None);
    let (end, _) = run(&house, &mut InitiatorLogin::new(Config { chap: right, ..config() }));
    assert!(matches!(end, Ok(initiator::Step::Moved { permanently: false, .. })), "{end:?}");
    for chap in [chap("alice", "malloryssecret", None), None] {
        let (end, _) = run(&house, &mut InitiatorLogin::new(Config { chap, ..config() }));
        assert_eq!(end, Err(InitiatorLoginError::Status(LoginStatus::AuthenticationFailure)));
    }
}

#[test]
fn an_initiator_with_a_secret_logs_in_where_none_is_asked() {
    let chap = chap("alice", "alicesecret12", None);
    let (end, _) = run(&House::default(), &mut InitiatorLogin::new(Config { chap, ..config() }));
    assert!(!established(end).authenticated);
}

#[test]
fn an_initiator_that_wants_proof_accepts_no_target_without() {
    let wanted = chap("alice", "alicesecret12", Some(credential("", "targetsecret1")));
    let (end, _) =
        run(&House::default(), &mut InitiatorLogin::new(Config { chap: wanted.clone(), ..config() }));
    assert_eq!(end, Err(InitiatorLoginError::Status(LoginStatus::AuthenticationFailure)));
    let impostor = House {
        auth: Auth::Chap { hashes: vec![], mutual: Some(credential("x", "wrong")), required: true },
        ..House::default()
    };
    let (end, _) = run(&impostor, &mut InitiatorLogin::new(Config { chap: wanted, ..config() }));
    assert_eq!(end, Err(InitiatorLoginError::Chap(ChapError::WrongResponse)));
}

#[test]
fn a_wrong_secret_an_unknown_user_and_no_user_are_told_the_same() {
    for chap in [chap("alice", "wrong", None), chap("mallory", "alicesecret12", None), None] {
        let (end, verdict) =
            run(&House::with_chap(false, true), &mut InitiatorLogin::new(Config { chap, ..config() }));
        assert_eq!(end, Err(InitiatorLoginError::Status(LoginStatus::AuthenticationFailure)));
        assert!(verdict.unwrap().is_err());
    }
}

#[test]
fn a_further_connection_keeps_the_sessions_parameters() {
    let session = Params { max_burst_length: 123_456, header_digest: Digest::Crc32c, ..Params::default() };
    let house = House { session: Some(session.clone()), ..House::default() };
    let mut i = InitiatorLogin::new(Config { tsih: 9, session: Some(session), ..config() });
    let (end, verdict) = run(&house, &mut i);
    let (e, o) = (established(end), verdict.unwrap().unwrap());
    assert_eq!((e.params.max_burst_length, o.params.max_burst_length), (123_456, 123_456));
    assert_eq!((e.params.header_digest, o.tsih), (Digest::None, 9), "digests are the connection's own");
}

#[test]
fn the_longest_names_and_aliases_come_through() {
    let long = format!("iqn.2026-01.org.example:{}", "x".repeat(199));
    let mut i = InitiatorLogin::new(Config { initiator: long, alias: Some("a".repeat(255)), ..config() });
    let house = House { alias: Some("b".repeat(255)), ..House::default() };
    let (end, verdict) = run(&house, &mut i);
    assert_eq!(established(end).target_alias, Some("b".repeat(255)));
    assert_eq!(verdict.unwrap().unwrap().initiator_alias, Some("a".repeat(255)));
}

#[test]
fn an_initiator_refuses_a_target_that_breaks_the_dialog() {
    let fresh = || {
        let mut i = InitiatorLogin::new(config());
        let request = i.start();
        (i, request.header)
    };
    let response = |r: &LoginRequest| crate::pdu::LoginResponse::new(r.itt.get(), r.isid, 0);
    let protocol = |r: Result<_, InitiatorLoginError>| matches!(r, Err(InitiatorLoginError::Protocol(_)));

    let (mut i, r) = fresh();
    let mut jump = response(&r);
    jump.set_stages(SEC, Some(FFP));
    assert!(protocol(i.handle(&jump, b"AuthMethod=None\0")), "a stage that was not asked for");

    let (mut i, r) = fresh();
    let mut stray = response(&r);
    stray.set_stages(OP, None);
    assert!(protocol(i.handle(&stray, b"")), "another stage");

    let (mut i, r) = fresh();
    assert!(protocol(i.handle(&response(&r), b"AuthMethod=CHAP\0")), "a method that was not offered");

    let (mut i, r) = fresh();
    let mut tag = response(&r);
    tag.itt.set(99);
    assert!(protocol(i.handle(&tag, b"")), "another tag");

    let (mut i, r) = fresh();
    let mut moved = response(&r);
    moved.set_status(LoginStatus::TargetMovedTemporarily);
    assert!(protocol(i.handle(&moved, b"")), "a redirection to nowhere");

    let (mut i, r) = fresh();
    let mut odd = response(&r);
    (odd.status_class, odd.status_detail) = (2, 0x77);
    assert_eq!(i.handle(&odd, b""), Err(InitiatorLoginError::UnknownStatus(2, 0x77)));
}

proptest! {
    #[test]
    fn both_machines_agree_whatever_they_offer(
        theirs in any_offer(), ours in any_offer(), skip_security: bool, further: bool,
    ) {
        let session = further.then(|| Params { max_burst_length: 4096, first_burst_length: 512, ..Params::default() });
        let house = House { offer: ours, session: session.clone(), ..House::default() };
        let tsih = if further { 9 } else { 0 };
        let mut i = InitiatorLogin::new(Config { offer: theirs, skip_security, tsih, session, ..config() });
        let (end, verdict) = run(&house, &mut i);
        match (end, verdict) {
            (Ok(initiator::Step::Done(e)), Some(Ok(o))) => {
                let mirrored = Params {
                    max_recv_data_segment_length: o.params.peer_max_recv_data_segment_length,
                    peer_max_recv_data_segment_length: o.params.max_recv_data_segment_length,
                    ..o.params
                };
                prop_assert_eq!(e.params, mirrored);
            }
            // Digest requirements that exclude each other.
            (Err(_), Some(Err(LoginError::Negotiation(NegotiationError::Required(_))))) => {}
            (Err(InitiatorLoginError::Negotiation(_)), _) => {}
            (end, verdict) => prop_assert!(false, "{end:?} {verdict:?}"),
        }
    }

    #[test]
    fn any_requests_are_handled_without_panic_and_never_authenticate(
        requests in proptest::collection::vec(
            (any::<u8>(), proptest::option::of("[ -~]{0,60}"), proptest::sample::subsequence(vec![
                "AuthMethod=CHAP,None", "AuthMethod=CHAP", "CHAP_A=5,7", "CHAP_N=alice", "CHAP_R=0x00112233445566778899aabbccddeeff",
                "CHAP_I=1", "CHAP_C=0x0011", "MaxBurstLength=65536", "HeaderDigest=CRC32C", "TargetName=iqn.2026-01.org.example:disk",
                "InitiatorName=iqn.2026-01.org.example:host", "SessionType=Normal",
            ], 0..8)),
            1..8,
        ),
    ) {
        let house = House::with_chap(true, true);
        let mut t = TargetLogin::new(1);
        for (n, (flags, junk, keys)) in requests.into_iter().enumerate() {
            let mut r = request(SEC, None);
            r.flags = flags & 0xcf;
            let mut data = if n == 0 { names("") } else { vec![] };
            data.extend(keys.iter().flat_map(|k| k.bytes().chain([0])));
            data.extend(junk.unwrap_or_default().bytes());
            match t.handle(&r, &data, &house) {
                Step::Reply(_) => {}
                Step::Place(_) => prop_assert!(false, "logged in without the secret"),
                Step::Close(..) => break,
            }
        }
    }

    #[test]
    fn any_responses_are_handled_without_panic(
        responses in proptest::collection::vec((any::<[u8; 48]>(), proptest::collection::vec(any::<u8>(), 0..80), 0u8..16), 1..6),
    ) {
        let mut i = InitiatorLogin::new(config());
        let first = i.start().header;
        for (bytes, data, shape) in responses {
            let mut bytes = bytes;
            if shape & 1 == 0 { bytes[16..20].copy_from_slice(&first.as_bhs().bytes()[16..20]); }
            if shape & 2 == 0 { bytes[36] = 0; }
            if shape & 4 == 0 { bytes[3] = 0; }
            if shape & 8 == 0 { bytes[1] &= 0xf3; }
            let Some(bhs) = crate::pdu::Bhs::ref_from(&bytes) else { unreachable!() };
            if i.handle(bhs.as_login_response(), &data).is_err() { break; }
        }
    }
}
