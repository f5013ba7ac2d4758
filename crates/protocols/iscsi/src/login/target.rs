//! The target's side of login (RFC 7143 §6.3, §11.12–11.13).
//!
//! [`TargetLogin::handle`] handles each Login Request with its data and returns the next step. A
//! [`Directory`] decides about access. After the negotiation it returns [`Step::Place`]. The caller
//! then decides about the session (new, further connection, reinstatement), which may take time. It
//! calls [`TargetLogin::accept`] or [`TargetLogin::refuse`] for the last response.
//!
//! It must never reveal why authentication failed. Where authentication is required, a target's
//! optional declarations and a [`Grant::then`] are sent only after it. Before, every name receives
//! the same answers.

use crate::chap::{self, ChapError, ChapKeys, Credential, Hash, Secret, TargetProgress};
use crate::keys::{Key, Kind, NegotiationError, Negotiator, Offer, Params, Phase, Role};
use crate::login::{MAX_LOGIN_PDUS, MAX_REQUEST_TEXT, SessionType};
use crate::name::{self, NameError};
use crate::pdu::{Isid, LoginRequest, LoginResponse, LoginStatus, Stage};
use crate::text::{self, Assembler, LOGIN_SEGMENT_LEN, Pair, Pairs, TextBuf, TextError};

/// The identity and the destination that an initiator claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim<'a> {
    /// InitiatorName, well-formed; compare it with [`name::eq`].
    pub initiator: &'a str,
    /// TargetName, well-formed; `None` in a discovery session.
    pub target: Option<&'a str>,
    /// The type of the session.
    pub session_type: SessionType,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// 0 for a new session or a session's reinstatement, else the session that this connection is
    /// to join.
    pub tsih: u16,
    /// Connection ID.
    pub cid: u16,
}

/// The authentication that the target requires of this initiator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// Nothing.
    None,
    /// CHAP.
    Chap {
        /// Permitted algorithms; empty means all. The initiator's order decides among them.
        hashes: Vec<Hash>,
        /// The target's credential for mutual CHAP.
        mutual: Option<Credential>,
        /// Whether `AuthMethod=None` is refused.
        required: bool,
    },
}

/// Permission to continue the login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The required authentication.
    pub auth: Auth,
    /// The target's offer.
    pub offer: Offer,
    /// Declared to normal sessions.
    pub portal_group_tag: u16,
    /// Declared to normal sessions after authentication.
    pub alias: Option<String>,
    /// The session's parameters if `tsih` is not 0: session-wide keys are not renegotiated.
    pub session: Option<Params>,
    /// A refusal to send after authentication, instead of continuing.
    pub then: Option<Refusal>,
}

/// The new address of a target (RFC 7143 §11.13.5, class 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// `host:port` in the syntax of `TargetAddress`, without a portal group tag (§13.8).
    pub address: String,
    /// Whether the move is permanent.
    pub permanently: bool,
}

/// The directory's refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// A status, such as [`LoginStatus::NotFound`].
    Status(LoginStatus),
    /// The target has moved.
    Moved(Moved),
}

/// The source of targets, access rights, secrets and sessions.
pub trait Directory {
    /// Whether this login may continue. Called once, when the first request's text is complete,
    /// before authentication. It must check that the target exists here, and that the initiator may
    /// use it through this portal. For a non-zero TSIH it must check that the session exists and
    /// can accept the connection.
    ///
    /// # Errors
    /// A [`Refusal`] to send to the initiator.
    fn admit(&self, claim: &Claim<'_>) -> Result<Grant, Refusal>;

    /// The secret of a CHAP user that may log in with this claim.
    fn secret(&self, claim: &Claim<'_>, user: &str) -> Option<Secret>;

    /// Fills `buf` with random bytes for challenges.
    ///
    /// # Errors
    /// [`ChapError::NoRandom`]; the login ends with "target error".
    fn random(&self, buf: &mut [u8]) -> Result<(), ChapError> {
        chap::os_random(buf)
    }
}

/// An initiator's response to a challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// CHAP_N.
    pub user: String,
    /// Whether it proves the user's identity.
    pub right: bool,
}

/// Why a login ended. [`LoginError::status`] is the status for the initiator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum LoginError {
    #[error("no version in common")]
    Version,
    #[error("ISID, TSIH, CID or initiator task tag changed within a login")]
    HeaderChanged,
    #[error("the stages of a login request are out of order")]
    Stage,
    #[error("a login request has both T and C set")]
    TransitWithContinue,
    #[error("a login request carries text before the target has sent all of its own")]
    TextWhileContinuing,
    #[error("malformed text: {0}")]
    Text(#[from] TextError),
    #[error("the login takes more requests than the limit")]
    TooManyRequests,
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is malformed: {1}")]
    Name(&'static str, NameError),
    #[error("{0} was sent again")]
    Again(&'static str),
    #[error("the session type is unknown")]
    SessionType,
    #[error("a discovery session has one connection")]
    DiscoveryConnections,
    #[error("{} is not allowed in this stage", .0.name())]
    Misplaced(Key),
    #[error("negotiation failed: {0}")]
    Negotiation(#[from] NegotiationError),
    #[error("authentication is required and was not offered")]
    AuthRequired,
    #[error("no authentication method in common")]
    NoCommonMethod,
    #[error("CHAP failed: {0}")]
    Chap(#[from] ChapError),
    #[error("refused: {0}")]
    Refused(LoginStatus),
    #[error("the target moved to {}", .0.address)]
    Moved(Moved),
    #[error("a request after the end of login")]
    Over,
}

impl From<Refusal> for LoginError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Status(status) => LoginError::Refused(status),
            Refusal::Moved(moved) => LoginError::Moved(moved),
        }
    }
}

impl LoginError {
    /// The status for the initiator.
    pub fn status(&self) -> LoginStatus {
        match self {
            LoginError::Version => LoginStatus::UnsupportedVersion,
            LoginError::Missing(_) => LoginStatus::MissingParameter,
            LoginError::SessionType => LoginStatus::SessionTypeNotSupported,
            LoginError::DiscoveryConnections => LoginStatus::CannotIncludeInSession,
            LoginError::Chap(ChapError::NoRandom) => LoginStatus::TargetError,
            LoginError::AuthRequired | LoginError::NoCommonMethod | LoginError::Chap(_) => {
                LoginStatus::AuthenticationFailure
            }
            LoginError::Refused(status) => *status,
            LoginError::Moved(Moved { permanently: true, .. }) => LoginStatus::TargetMovedPermanently,
            LoginError::Moved(Moved { permanently: false, .. }) => LoginStatus::TargetMovedTemporarily,
            LoginError::Over => LoginStatus::InvalidDuringLogin,
            _ => LoginStatus::InitiatorError,
        }
    }
}

/// A Login Response to send. The header is complete; the data segment needs padding, but no digests
/// during login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The header, with DataSegmentLength set.
    pub header: LoginResponse,
    /// The data segment, at most [`LOGIN_SEGMENT_LEN`] bytes, without padding.
    pub data: Vec<u8>,
}

/// The next step after a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send it and wait for the next request.
    Reply(Reply),
    /// The negotiation is complete: place the session, then call [`TargetLogin::accept`] or
    /// [`TargetLogin::refuse`].
    Place(Box<Outcome>),
    /// Send it and close the connection.
    Close(Reply, LoginError),
}

/// The result of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// InitiatorName as received.
    pub initiator: String,
    /// InitiatorAlias.
    pub initiator_alias: Option<String>,
    /// TargetName as received; `None` in a discovery session.
    pub target: Option<String>,
    /// The type of the session.
    pub session_type: SessionType,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// The requested TSIH; 0 for a new session or a session's reinstatement.
    pub tsih: u16,
    /// Connection ID.
    pub cid: u16,
    /// The authenticated CHAP user.
    pub user: Option<String>,
    /// The operational parameters.
    pub params: Params,
    /// The CmdSN of the login; a new session's first command has the same number.
    pub cmd_sn: u32,
}

/// The session's fields of the last response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The session's TSIH, never 0.
    pub tsih: u16,
    /// ExpCmdSN: the login's CmdSN in a new session, the session's current value in an existing
    /// one.
    pub exp_cmd_sn: u32,
    /// MaxCmdSN.
    pub max_cmd_sn: u32,
}

/// The constant fields of one login, and the directory's grant.
#[derive(Debug)]
struct Identity {
    initiator: String,
    initiator_alias: Option<String>,
    target: Option<String>,
    session_type: SessionType,
    auth: Auth,
    /// Declared after authentication.
    alias: Option<String>,
    then: Option<Refusal>,
    negotiator: Negotiator,
}

impl Identity {
    fn requires_auth(&self) -> bool {
        matches!(self.auth, Auth::Chap { required: true, .. })
    }

    /// Declares the alias after authentication.
    fn tell(&mut self, out: &mut TextBuf) {
        if let Some(alias) = self.alias.take() {
            out.put(Key::TargetAlias.name(), &alias);
        }
    }

    /// Continues to the next stage, unless a refusal was deferred until now.
    fn go_on(&mut self) -> Result<(), LoginError> {
        self.then.take().map_or(Ok(()), |refusal| Err(refusal.into()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AuthState {
    /// No method was negotiated so far.
    Unsaid,
    /// CHAP was chosen and is in progress.
    Chap,
    /// The target's requirement is met.
    Enough,
}

/// The login of one connection.
#[derive(Debug)]
pub struct TargetLogin {
    /// The first request's header.
    first: Option<LoginRequest>,
    stage: Stage,
    requests: u32,
    assembler: Assembler,
    out: TextBuf,
    /// The next stage, once `out` is sent.
    next: Option<Stage>,
    /// InitiatorName and TargetName, well-formed, whether or not the directory knows them.
    claimed: (Option<String>, Option<String>),
    identity: Option<Identity>,
    auth: AuthState,
    chap: Option<chap::TargetEnd>,
    user: Option<String>,
    /// A response to the challenge that the caller has not taken yet.
    attempt: Option<Attempt>,
    stat_sn: u32,
    /// The last response's data while the caller places the session.
    last_data: Vec<u8>,
    over: bool,
}

impl TargetLogin {
    /// A login whose first response carries `stat_sn`.
    pub fn new(stat_sn: u32) -> Self {
        TargetLogin {
            first: None,
            stage: Stage::SecurityNegotiation,
            requests: 0,
            assembler: Assembler::new(MAX_REQUEST_TEXT),
            out: TextBuf::new(),
            next: None,
            claimed: (None, None),
            identity: None,
            auth: AuthState::Unsaid,
            chap: None,
            user: None,
            attempt: None,
            stat_sn,
            last_data: Vec::new(),
            over: false,
        }
    }

    /// The StatSN of this connection's next response.
    pub fn next_stat_sn(&self) -> u32 {
        self.stat_sn
    }

    /// InitiatorName and TargetName, as far as received.
    pub fn names(&self) -> (Option<&str>, Option<&str>) {
        let (initiator, target) = &self.claimed;
        (initiator.as_deref(), target.as_deref())
    }

    /// Takes the CHAP attempt of the last request, once. The caller must delay the answer, right or
    /// wrong, as long as earlier wrong attempts require.
    pub fn take_attempt(&mut self) -> Option<Attempt> {
        self.attempt.take()
    }

    /// Bytes of incomplete received text, and of unsent text, in memory.
    pub fn held(&self) -> usize {
        self.assembler.held() + self.out.held() + self.last_data.capacity()
    }

    /// Handles a request and its data segment, without padding.
    pub fn handle(&mut self, request: &LoginRequest, data: &[u8], directory: &dyn Directory) -> Step {
        match self.try_handle(request, data, directory) {
            Ok(step) => step,
            Err(error) => self.close(request, error),
        }
    }

    /// The last response of a login that returned [`Step::Place`]. Once it is sent, the connection
    /// is in the full feature phase.
    pub fn accept(&mut self, placement: Placement) -> Reply {
        let data = std::mem::take(&mut self.last_data);
        let from = self.stage;
        let mut reply = self.reply(data);
        reply.header.set_stages(from, Some(Stage::FullFeaturePhase));
        reply.header.tsih.set(placement.tsih);
        reply.header.exp_cmd_sn.set(placement.exp_cmd_sn);
        reply.header.max_cmd_sn.set(placement.max_cmd_sn);
        reply
    }

    /// The last response of a login that returned [`Step::Place`], if the session cannot accept the
    /// connection. Close the connection after it.
    pub fn refuse(&mut self, status: LoginStatus) -> Reply {
        self.over = true;
        let mut reply = self.reply(Vec::new());
        reply.header.set_status(status);
        reply
    }

    fn try_handle(
        &mut self,
        request: &LoginRequest,
        data: &[u8],
        directory: &dyn Directory,
    ) -> Result<Step, LoginError> {
        if self.over {
            return Err(LoginError::Over);
        }
        self.requests += 1;
        if self.requests > MAX_LOGIN_PDUS {
            return Err(LoginError::TooManyRequests);
        }
        self.check_header(request)?;
        if !self.out.is_empty() {
            // Our text continues: an empty request asks for the rest (RFC 7143 §6.2, C bit).
            return if data.is_empty() { Ok(self.emit()) } else { Err(LoginError::TextWhileContinuing) };
        }
        if !self.assembler.push(data, request.continues())? {
            let stage = self.stage;
            let mut reply = self.reply(Vec::new());
            reply.header.set_stages(stage, None);
            return Ok(Step::Reply(reply));
        }
        let text = self.assembler.take();
        let pairs = Pairs::new(&text).collect::<Result<Vec<_>, _>>()?;
        let pairs = self.take_identity(&pairs, request, directory)?;
        let wanted = if request.transit() { request.next_stage() } else { None };
        match self.stage {
            Stage::SecurityNegotiation => self.security(&pairs, wanted, directory)?,
            _ => self.operational(&pairs, wanted)?,
        }
        // The refusals of many short keys are several times longer than the keys.
        if self.out.remaining() > 2 * MAX_REQUEST_TEXT {
            return Err(TextError::TooLong.into());
        }
        Ok(self.emit())
    }

    /// Checks the version, the constant fields, and the order of stages (RFC 7143 §6.3, §11.12).
    fn check_header(&mut self, request: &LoginRequest) -> Result<(), LoginError> {
        if request.version_min > 0 {
            return Err(LoginError::Version);
        }
        let current = request.current_stage().filter(|s| *s != Stage::FullFeaturePhase);
        let current = current.ok_or(LoginError::Stage)?;
        match &self.first {
            None => {
                self.first = Some(*request);
                self.stage = current;
            }
            Some(first) => {
                let same = first.isid == request.isid
                    && first.tsih == request.tsih
                    && first.cid == request.cid
                    && first.itt == request.itt;
                if !same {
                    return Err(LoginError::HeaderChanged);
                }
            }
        }
        if current != self.stage {
            return Err(LoginError::Stage);
        }
        if request.transit() {
            if request.continues() {
                return Err(LoginError::TransitWithContinue);
            }
            if request.next_stage().is_none_or(|next| next <= current) {
                return Err(LoginError::Stage);
            }
        }
        Ok(())
    }

    /// Extracts names, session type and alias from a text. The first text is passed to the
    /// directory.
    fn take_identity<'a>(
        &mut self,
        pairs: &[Pair<'a>],
        request: &LoginRequest,
        directory: &dyn Directory,
    ) -> Result<Vec<Pair<'a>>, LoginError> {
        let (mut initiator, mut target, mut session_type, mut alias) = (None, None, None, None);
        let mut rest = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let (slot, name) = match pair.key {
                "InitiatorName" => (&mut initiator, "InitiatorName"),
                "TargetName" => (&mut target, "TargetName"),
                "SessionType" => (&mut session_type, "SessionType"),
                "InitiatorAlias" => (&mut alias, "InitiatorAlias"),
                _ => {
                    rest.push(*pair);
                    continue;
                }
            };
            if slot.replace(pair.value).is_some() {
                return Err(LoginError::Again(name));
            }
        }
        let alias = alias.filter(|a| a.len() <= text::MAX_VALUE_LEN).map(str::to_owned);
        if let Some(identity) = &mut self.identity {
            let named = [(initiator, "InitiatorName"), (target, "TargetName"), (session_type, "SessionType")];
            if let Some((_, name)) = named.into_iter().find(|(value, _)| value.is_some()) {
                return Err(LoginError::Again(name));
            }
            if alias.is_some() && std::mem::replace(&mut identity.initiator_alias, alias).is_some() {
                return Err(LoginError::Again("InitiatorAlias"));
            }
            return Ok(rest);
        }
        let session_type = match session_type {
            None | Some("Normal") => SessionType::Normal,
            Some("Discovery") => SessionType::Discovery,
            Some(_) => return Err(LoginError::SessionType),
        };
        let initiator = initiator.ok_or(LoginError::Missing("InitiatorName"))?;
        name::check_received(initiator).map_err(|e| LoginError::Name("InitiatorName", e))?;
        let target = match session_type {
            SessionType::Normal => {
                let target = target.ok_or(LoginError::Missing("TargetName"))?;
                name::check_received(target).map_err(|e| LoginError::Name("TargetName", e))?;
                Some(target)
            }
            SessionType::Discovery if request.tsih.get() != 0 => {
                return Err(LoginError::DiscoveryConnections);
            }
            SessionType::Discovery => None,
        };
        let (isid, tsih, cid) = (request.isid, request.tsih.get(), request.cid.get());
        let claim = Claim { initiator, target, session_type, isid, tsih, cid };
        self.claimed = (Some(initiator.to_owned()), target.map(str::to_owned));
        let grant = directory.admit(&claim)?;
        let phase = match session_type {
            SessionType::Discovery => Phase::Discovery,
            SessionType::Normal if tsih == 0 => Phase::Leading,
            SessionType::Normal => Phase::Further,
        };
        let params = grant.session.map(|s| s.for_further_connection()).unwrap_or_default();
        let mut identity = Identity {
            initiator: initiator.to_owned(),
            initiator_alias: alias,
            target: target.map(str::to_owned),
            session_type,
            auth: grant.auth,
            alias: grant.alias.filter(|_| session_type == SessionType::Normal),
            then: grant.then,
            negotiator: Negotiator::new(Role::Target, phase, grant.offer, params),
        };
        if !identity.requires_auth() {
            identity.tell(&mut self.out);
        }
        if session_type == SessionType::Normal {
            // RFC 7143 §13.9: in the response to the first request.
            self.out.put_number(Key::TargetPortalGroupTag.name(), grant.portal_group_tag.into());
        }
        self.identity = Some(identity);
        Ok(rest)
    }

    fn security(
        &mut self,
        pairs: &[Pair<'_>],
        wanted: Option<Stage>,
        directory: &dyn Directory,
    ) -> Result<(), LoginError> {
        let (Some(identity), Some(first)) = (&mut self.identity, &self.first) else {
            return Err(LoginError::Missing("InitiatorName"));
        };
        let mut chap_keys = ChapKeys::default();
        let mut methods = None;
        let mut rest = Vec::new();
        for pair in pairs {
            if chap_keys.take(pair.key, pair.value)? {
                continue;
            }
            match Key::from_name(pair.key) {
                Some(Key::AuthMethod) if methods.replace(pair.value).is_some() => {
                    return Err(LoginError::Again("AuthMethod"));
                }
                Some(Key::AuthMethod) => {}
                // Operational keys must wait for their stage (RFC 7143 §6.3.3); declarations are
                // permitted at any time.
                Some(key)
                    if matches!(key.spec().kind, Kind::And | Kind::Or | Kind::Min(..) | Kind::Max(..)) =>
                {
                    return Err(LoginError::Misplaced(key));
                }
                Some(key @ (Key::HeaderDigest | Key::DataDigest | Key::TaskReporting)) => {
                    return Err(LoginError::Misplaced(key));
                }
                _ => rest.push(*pair),
            }
        }
        identity.negotiator.receive(&rest, &mut self.out)?;
        let required = identity.requires_auth();
        if let Some(methods) = methods {
            if self.auth != AuthState::Unsaid {
                return Err(LoginError::Again("AuthMethod"));
            }
            let mut offered = text::parse_list(methods).ok_or(LoginError::NoCommonMethod)?;
            let pick = offered.find(|m| match *m {
                "None" => !required,
                "CHAP" => matches!(identity.auth, Auth::Chap { .. }),
                _ => false,
            });
            match (pick, &identity.auth) {
                (Some("CHAP"), Auth::Chap { hashes, mutual, .. }) => {
                    self.chap = Some(chap::TargetEnd::new(hashes, mutual.clone()));
                    self.auth = AuthState::Chap;
                }
                (Some(_), _) => self.auth = AuthState::Enough,
                (None, _) => return Err(LoginError::NoCommonMethod),
            }
            self.out.put("AuthMethod", pick.unwrap_or("None"));
        }
        if !chap_keys.is_empty() {
            let end = self.chap.as_mut().ok_or(ChapError::Malformed)?;
            let claim = Claim {
                initiator: &identity.initiator,
                target: identity.target.as_deref(),
                session_type: identity.session_type,
                isid: first.isid,
                tsih: first.tsih.get(),
                cid: first.cid.get(),
            };
            let mut asked = None;
            let secret = |user: &str| {
                asked = Some(user.to_owned());
                directory.secret(&claim, user)
            };
            let progress = end.handle(&chap_keys, secret, &mut |buf| directory.random(buf), &mut self.out);
            let right = matches!(progress, Ok(TargetProgress::Authenticated(_)));
            self.attempt = asked.map(|user| Attempt { user, right });
            if let TargetProgress::Authenticated(user) = progress? {
                self.user = Some(user);
                self.auth = AuthState::Enough;
                identity.tell(&mut self.out);
            }
        }
        if wanted.is_some() {
            match self.auth {
                AuthState::Enough => self.next = wanted,
                AuthState::Unsaid if required => return Err(LoginError::AuthRequired),
                AuthState::Unsaid => self.next = wanted,
                // The initiator is ready and we are not: T stays clear, and the exchange continues.
                AuthState::Chap => {}
            }
        }
        if self.next.is_some() { identity.go_on() } else { Ok(()) }
    }

    fn operational(&mut self, pairs: &[Pair<'_>], wanted: Option<Stage>) -> Result<(), LoginError> {
        let Some(identity) = &mut self.identity else {
            return Err(LoginError::Missing("InitiatorName"));
        };
        if identity.requires_auth() && self.auth != AuthState::Enough {
            return Err(LoginError::AuthRequired);
        }
        identity.go_on()?;
        let mut rest = Vec::with_capacity(pairs.len());
        for pair in pairs {
            match Key::from_name(pair.key).filter(|k| k.spec().kind == Kind::Security) {
                None => rest.push(*pair),
                // AuthMethod belongs to the security stage. Some initiators offer None here if no
                // authentication is required, which changes nothing.
                Some(Key::AuthMethod) if offers_none(pair.value) => {
                    if std::mem::replace(&mut self.auth, AuthState::Enough) != AuthState::Unsaid {
                        return Err(LoginError::Again("AuthMethod"));
                    }
                    self.out.put(Key::AuthMethod.name(), "None");
                }
                Some(key) => return Err(LoginError::Misplaced(key)),
            }
        }
        identity.negotiator.receive(&rest, &mut self.out)?;
        identity.negotiator.originate(Key::MaxRecvDataSegmentLength, &mut self.out);
        if wanted.is_some() {
            identity.negotiator.originate_required(&mut self.out);
            if !identity.negotiator.is_waiting() {
                self.next = wanted;
            }
        }
        Ok(())
    }

    /// Sends the pending text, in parts if necessary; changes the stage with the last part.
    fn emit(&mut self) -> Step {
        let (data, more) = self.out.take_part(LOGIN_SEGMENT_LEN);
        let stage = self.stage;
        if more {
            let mut reply = self.reply(data);
            reply.header.set_stages(stage, None);
            reply.header.set_continues(true);
            return Step::Reply(reply);
        }
        let next = self.next.take();
        if next == Some(Stage::FullFeaturePhase) {
            self.last_data = data;
            return match self.outcome() {
                Ok(outcome) => {
                    self.over = true;
                    Step::Place(Box::new(outcome))
                }
                Err(error) => match self.first {
                    Some(first) => self.close(&first, error),
                    None => self.close(&LoginRequest::new(0, Isid::default(), 0, 0), error),
                },
            };
        }
        let mut reply = self.reply(data);
        reply.header.set_stages(stage, next);
        if let Some(next) = next {
            self.stage = next;
        }
        Step::Reply(reply)
    }

    fn outcome(&mut self) -> Result<Outcome, LoginError> {
        let identity = self.identity.take().ok_or(LoginError::Missing("InitiatorName"))?;
        let first = self.first.as_ref().ok_or(LoginError::Missing("InitiatorName"))?;
        Ok(Outcome {
            initiator: identity.initiator,
            initiator_alias: identity.initiator_alias,
            target: identity.target,
            session_type: identity.session_type,
            isid: first.isid,
            tsih: first.tsih.get(),
            cid: first.cid.get(),
            user: self.user.take(),
            params: identity.negotiator.finish()?,
            cmd_sn: first.cmd_sn.get(),
        })
    }

    fn close(&mut self, request: &LoginRequest, error: LoginError) -> Step {
        self.over = true;
        self.first.get_or_insert(*request);
        let mut text = TextBuf::new();
        if let LoginError::Moved(moved) = &error {
            text.put("TargetAddress", &moved.address);
        }
        let (data, _) = text.take_part(LOGIN_SEGMENT_LEN);
        let mut reply = self.reply(data);
        // The answer matches this request, even if the request contradicts the first.
        reply.header.itt = request.itt;
        reply.header.isid = request.isid;
        reply.header.tsih = request.tsih;
        reply.header.set_status(error.status());
        Step::Close(reply, error)
    }

    /// A response without stages, with the next StatSN.
    fn reply(&mut self, data: Vec<u8>) -> Reply {
        let mut header = match &self.first {
            Some(first) => {
                let mut header = LoginResponse::new(first.itt.get(), first.isid, first.tsih.get());
                header.exp_cmd_sn = first.cmd_sn;
                header.max_cmd_sn = first.cmd_sn;
                header
            }
            None => LoginResponse::new(0, Isid::default(), 0),
        };
        header.stat_sn.set(self.stat_sn);
        self.stat_sn = self.stat_sn.wrapping_add(1);
        header.as_bhs_mut().set_data_segment_len(data.len());
        Reply { header, data }
    }
}

/// Whether a list of authentication methods contains `None`.
fn offers_none(methods: &str) -> bool {
    text::parse_list(methods).is_some_and(|mut offered| offered.any(|method| method == "None"))
}
