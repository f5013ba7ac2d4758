//! The context of a check: connections to the target at any point of a login, and the properties of
//! the unit.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi::chap::Hash;
use iscsi::frame::Digests;
use iscsi::pdu::{Bhs, Isid, Lun};
use iscsi::text::{parse_binary, parse_number};

use crate::conn::{Conn, Times};
use crate::finding::{Finding, Verdict, setup, untested};
use crate::iser::Iser;
use crate::login::{Answer, FULL_FEATURE, OPERATIONAL, SECURITY};
use crate::lost::Lost;
use crate::options::{Options, Transport};
use crate::tcp::Tcp;

/// The parameters of a login.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub isid: Isid,
    pub tsih: u16,
    pub cid: u16,
    pub cmd_sn: u32,
    pub initiator: String,
    /// `None`: a discovery session.
    pub target: Option<String>,
    /// Keys to offer in addition to, or instead of, the usual ones. An empty value removes the
    /// usual one.
    pub keys: Vec<(String, String)>,
}

impl Login {
    pub fn with(mut self, keys: &[(&str, &str)]) -> Self {
        self.keys.extend(keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        self
    }
}

/// The properties of the unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    pub blocks: u64,
    pub block_len: u32,
}

/// The context of a check.
pub(crate) struct Lab {
    pub options: Options,
    addresses: Vec<SocketAddr>,
    runtime: Option<Rc<runtime::Runtime>>,
    deadline: Cell<Instant>,
    sessions: Cell<u16>,
    random: [u8; 3],
    /// Pings of the target, on all connections.
    pub pings: Rc<RefCell<Vec<Bhs>>>,
    /// The answer to the first login, if it was a redirection.
    pub redirection: RefCell<Option<Answer>>,
    pub unit: Cell<Option<Unit>>,
    /// Whether the unit supports comparing data (VERIFY), once known; otherwise the reason.
    pub compares: RefCell<Option<Result<(), String>>>,
}

impl Lab {
    pub fn new(options: Options, addresses: Vec<SocketAddr>, runtime: Option<Rc<runtime::Runtime>>) -> Self {
        let mut random = [0; 3];
        // Without randomness the session names repeat between runs, which is harmless.
        let _ = runtime::random(&mut random);
        Self {
            options,
            addresses,
            runtime,
            deadline: Cell::new(runtime::clock()),
            sessions: Cell::new(0),
            random,
            pings: Rc::default(),
            redirection: RefCell::default(),
            unit: Cell::new(None),
            compares: RefCell::default(),
        }
    }

    /// Starts a check's time.
    pub fn begin(&self) {
        self.deadline.set(runtime::clock() + self.options.check_within);
    }

    /// Whether the time has passed.
    pub fn is_over(&self) -> bool {
        runtime::clock() >= self.deadline.get()
    }

    pub fn left(&self) -> Duration {
        self.deadline.get().saturating_duration_since(runtime::clock())
    }

    pub fn is_iser(&self) -> bool {
        self.options.transport == Transport::Iser
    }

    pub fn lun(&self) -> Lun {
        Lun::new(self.options.lun).unwrap_or(Lun::ZERO)
    }

    /// An ISID that no other session of this run uses.
    pub fn isid(&self) -> Isid {
        self.sessions.set(self.sessions.get().wrapping_add(1));
        Isid::random(self.random, self.sessions.get())
    }

    /// A new connection before any PDU.
    pub fn connect(&self) -> Verdict<Conn> {
        let times = Times {
            answer_within: self.options.answer_within,
            deadline: self.deadline.get(),
            pings: Rc::clone(&self.pings),
        };
        let limit = self.options.answer_within.min(self.left()).max(Duration::from_millis(1));
        let mut lost = Lost::NotConnected("the host has no address".to_owned());
        for address in &self.addresses {
            let made = match &self.runtime {
                None => Tcp::connect(*address, limit).map(|tcp| Conn::over_tcp(tcp, times.clone())),
                Some(runtime) => Iser::connect(Rc::clone(runtime), *address, limit)
                    .map(|iser| Conn::over_iser(iser, times.clone())),
            };
            match made {
                Ok(mut conn) => {
                    conn.isid = self.isid();
                    conn.lun = self.lun();
                    return Ok(conn);
                }
                Err(error) => lost = error,
            }
        }
        untested(lost.seen())
    }

    /// A login of a new session with the target.
    pub fn normal(&self) -> Login {
        Login {
            isid: self.isid(),
            tsih: 0,
            cid: 1,
            cmd_sn: 1,
            initiator: self.options.initiator.clone(),
            target: Some(self.options.target.clone()),
            keys: Vec::new(),
        }
    }

    /// A login of a discovery session.
    pub fn discovery(&self) -> Login {
        Login { target: None, ..self.normal() }
    }

    /// The names at the start of a login.
    pub fn names<'a>(&self, login: &'a Login) -> Vec<(&'a str, &'a str)> {
        let mut names = vec![("InitiatorName", login.initiator.as_str())];
        match &login.target {
            Some(target) => names.extend([("SessionType", "Normal"), ("TargetName", target.as_str())]),
            None => names.push(("SessionType", "Discovery")),
        }
        names
    }

    /// A connection after the security stage: the next request belongs to the operational stage.
    /// Also returns the last answer of the security stage.
    pub fn secured(&self, login: &Login) -> Verdict<(Conn, Answer)> {
        setup(self.try_secured(login), "behind the security stage of a login")
    }

    fn try_secured(&self, login: &Login) -> Verdict<(Conn, Answer)> {
        let mut conn = self.connect()?;
        (conn.isid, conn.tsih, conn.cid, conn.cmd_sn) = (login.isid, login.tsih, login.cid, login.cmd_sn);
        let mut keys = self.names(login);
        let Some(account) = &self.options.account else {
            keys.push(("AuthMethod", "None"));
            let answer = conn.login_step(SECURITY, Some(OPERATIONAL), &keys)?;
            return self.reach_operational(conn, answer);
        };
        keys.push(("AuthMethod", "CHAP"));
        let answer = conn.login_step(SECURITY, None, &keys)?;
        passed(&answer)?;
        let answer = conn.login_step(SECURITY, None, &[("CHAP_A", "5,7,6,8")])?;
        passed(&answer)?;
        let challenge = Challenge::of(&answer)?;
        let response = challenge.response(&account.initiator.secret);
        let mut keys = vec![("CHAP_N", account.initiator.name.as_str()), ("CHAP_R", response.as_str())];
        let ours = own_challenge();
        if account.target.is_some() {
            keys.extend([("CHAP_I", "77"), ("CHAP_C", ours.as_str())]);
        }
        let answer = conn.login_step(SECURITY, Some(OPERATIONAL), &keys)?;
        self.reach_operational(conn, answer)
    }

    fn reach_operational(&self, mut conn: Conn, mut answer: Answer) -> Verdict<(Conn, Answer)> {
        for _ in 0..4 {
            passed(&answer)?;
            if answer.transits() {
                return Ok((conn, answer));
            }
            answer = conn.login_step(SECURITY, Some(OPERATIONAL), &[])?;
        }
        untested("the target does not leave the security stage")
    }

    /// The offers in the operational stage, unless a check changes them.
    pub(crate) fn usual_keys(&self, login: &Login) -> Vec<(String, String)> {
        let mut keys: Vec<(&str, &str)> = vec![("HeaderDigest", "None"), ("DataDigest", "None")];
        if !self.is_iser() {
            keys.push(("MaxRecvDataSegmentLength", "65536"));
        }
        let leading = login.tsih == 0;
        if leading {
            keys.extend([
                ("DefaultTime2Wait", "0"),
                ("DefaultTime2Retain", "0"),
                ("ErrorRecoveryLevel", "0"),
            ]);
        }
        if leading && login.target.is_some() {
            keys.extend([
                ("MaxConnections", "1"),
                ("InitialR2T", "Yes"),
                ("ImmediateData", "Yes"),
                ("MaxBurstLength", "262144"),
                ("FirstBurstLength", "65536"),
                ("MaxOutstandingR2T", "1"),
                ("DataPDUInOrder", "Yes"),
                ("DataSequenceInOrder", "Yes"),
            ]);
        }
        if self.is_iser() && login.target.is_some() {
            keys.extend([
                ("RDMAExtensions", "Yes"),
                ("TargetRecvDataSegmentLength", "8192"),
                ("InitiatorRecvDataSegmentLength", "8192"),
            ]);
        }
        let mut keys: Vec<(String, String)> =
            keys.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        for (key, value) in &login.keys {
            match keys.iter_mut().find(|(name, _)| name == key) {
                Some(usual) => usual.1.clone_from(value),
                None => keys.push((key.clone(), value.clone())),
            }
        }
        keys.retain(|(_, value)| !value.is_empty());
        keys
    }

    /// A session by `login`, in the full feature phase; `agreed` has the negotiated keys.
    pub fn open(&self, login: &Login) -> Verdict<Conn> {
        setup(self.try_open(login), "in a session")
    }

    /// The same for a check of the login itself: an error is the target's.
    pub fn try_open(&self, login: &Login) -> Verdict<Conn> {
        let (mut conn, _) = self.try_secured(login)?;
        let keys = self.usual_keys(login);
        let keys: Vec<(&str, &str)> =
            keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let mut answer = conn.login_step(OPERATIONAL, Some(FULL_FEATURE), &keys)?;
        for _ in 0..4 {
            passed(&answer)?;
            if answer.transits() {
                enter(&mut conn, &answer);
                return Ok(conn);
            }
            answer = conn.login_step(OPERATIONAL, Some(FULL_FEATURE), &[])?;
        }
        untested("the target does not leave the operational stage")
    }

    /// A normal session with these keys.
    pub fn session(&self, keys: &[(&str, &str)]) -> Verdict<Conn> {
        self.open(&self.normal().with(keys))
    }

    /// A normal session whose unit has no pending unit attention.
    pub fn ready(&self, keys: &[(&str, &str)]) -> Verdict<Conn> {
        let mut conn = self.session(keys)?;
        setup(conn.settle(), "with a unit that is ready")?;
        Ok(conn)
    }

    /// A connection at the start of the operational stage, after the names.
    pub fn operational(&self) -> Verdict<Conn> {
        Ok(self.secured(&self.normal())?.0)
    }

    /// The login of another connection of `first`'s session.
    pub fn further(&self, first: &Conn, cid: u16) -> Login {
        Login { isid: first.isid, tsih: first.tsih, cid, cmd_sn: first.cmd_sn, ..self.normal() }
    }
}

/// Enters the full feature phase with the values of the answer.
pub(crate) fn enter(conn: &mut Conn, answer: &Answer) {
    conn.tsih = answer.tsih();
    conn.is_full_feature = true;
    let on = |key: &str| conn.agreed(key) == Some("CRC32C");
    let digests = Digests { header: on("HeaderDigest"), data: on("DataDigest") };
    conn.set_digests(digests);
}

fn passed(answer: &Answer) -> Verdict {
    match answer.is_success() {
        true => Ok(()),
        false => Err(Finding::Wrong { seen: answer.told(), expected: "the login goes on".to_owned() }),
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Challenge {
    pub hash: Hash,
    pub id: u8,
    pub bytes: Vec<u8>,
}

impl Challenge {
    pub fn of(answer: &Answer) -> Verdict<Self> {
        let number = |key| answer.get(key).and_then(parse_number);
        let hash = number("CHAP_A").and_then(Hash::from_number);
        let id = number("CHAP_I").and_then(|id| u8::try_from(id).ok());
        let bytes = answer.get("CHAP_C").and_then(|text| parse_binary(text, 1024));
        match (hash, id, bytes) {
            (Some(hash), Some(id), Some(bytes)) => Ok(Self { hash, id, bytes }),
            _ => Err(Finding::Wrong {
                seen: answer.told(),
                expected: "CHAP_A of those offered, CHAP_I from 0 to 255 and CHAP_C".to_owned(),
            }),
        }
    }

    pub fn response(&self, secret: &iscsi::chap::Secret) -> String {
        iscsi::text::to_hex(&self.hash.response(self.id, secret, &self.bytes))
    }
}

/// CHAP_C, a challenge of this side.
pub(crate) fn own_challenge() -> String {
    let mut bytes = [0x5a; 16];
    // If this fails, the fixed bytes are still a valid challenge.
    let _ = runtime::random(&mut bytes);
    iscsi::text::to_hex(&bytes)
}
