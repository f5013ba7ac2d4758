//! The initiator's side of login (RFC 7143 §6.3, §11.12–11.13), for leading and further connections
//! and for discovery sessions.
//!
//! [`InitiatorLogin::start`] returns the first request; [`InitiatorLogin::handle`] handles each
//! response and returns the next step. The layer above follows redirections and repeats failed
//! logins.

use crate::chap::{self, ChapError, ChapKeys, Credential, Hash, RandomSource};
use crate::keys::{NegotiationError, Negotiator, Offer, Params, Phase, Role};
use crate::login::{MAX_LOGIN_PDUS, MAX_RESPONSE_TEXT, SessionType};
use crate::pdu::{Isid, LoginRequest, LoginResponse, LoginStatus, Stage, StatusClass};
use crate::text::{self, Assembler, LOGIN_SEGMENT_LEN, Pair, Pairs, TextBuf, TextError};

/// The initiator's CHAP configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chap {
    /// The initiator's name and secret.
    pub credential: Credential,
    /// The credential that the target must prove (mutual CHAP); an empty name stands for any. If
    /// set, `AuthMethod=None` is not offered.
    pub target: Option<Credential>,
    /// Algorithms in order of preference; empty means all.
    pub hashes: Vec<Hash>,
}

/// The parameters of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// InitiatorName.
    pub initiator: String,
    /// InitiatorAlias.
    pub alias: Option<String>,
    /// TargetName; `None` makes a discovery session.
    pub target: Option<String>,
    /// The initiator part of the session identifier.
    pub isid: Isid,
    /// 0 for a leading connection, else the session's TSIH.
    pub tsih: u16,
    /// Connection ID, unique within the session.
    pub cid: u16,
    /// CmdSN of the session's next command.
    pub cmd_sn: u32,
    /// Initiator Task Tag of the login.
    pub itt: u32,
    /// CHAP, if the initiator has a credential.
    pub chap: Option<Chap>,
    /// Our side's offer.
    pub offer: Offer,
    /// The session's parameters, for a further connection.
    pub session: Option<Params>,
    /// Skips the security stage if there is nothing to authenticate: saves a round trip, but some
    /// targets require the stage.
    pub skip_security: bool,
}

/// A Login Request to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The header, with DataSegmentLength set.
    pub header: LoginRequest,
    /// The data segment without padding.
    pub data: Vec<u8>,
}

/// The next step after a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send it and wait for its response.
    Send(Request),
    /// The connection is in the full feature phase.
    Done(Box<Established>),
    /// The target has moved; close the connection, and log in at the address.
    Moved {
        /// The value of `TargetAddress`: parse it with [`crate::discovery::TargetAddress::parse`].
        address: String,
        /// Whether the move is permanent.
        permanently: bool,
    },
}

/// The result of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Established {
    /// The operational parameters.
    pub params: Params,
    /// The session's TSIH.
    pub tsih: u16,
    /// StatSN of the last response; the next status has the following number.
    pub stat_sn: u32,
    /// ExpCmdSN of the last response.
    pub exp_cmd_sn: u32,
    /// MaxCmdSN of the last response.
    pub max_cmd_sn: u32,
    /// TargetAlias.
    pub target_alias: Option<String>,
    /// TargetPortalGroupTag.
    pub portal_group_tag: Option<u16>,
    /// Whether CHAP was completed.
    pub authenticated: bool,
}

/// Why a login failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InitiatorLoginError {
    /// The target refused, with a status defined in RFC 7143.
    #[error("the target refused the login: {0}")]
    Status(LoginStatus),
    /// The target refused, with an undefined status (class, detail).
    #[error("the target refused the login with status {0:#04x}{1:02x}")]
    UnknownStatus(u8, u8),
    /// The response contradicts the request or the RFC.
    #[error("the target broke the login protocol: {0}")]
    Protocol(&'static str),
    /// The response's text is malformed.
    #[error("the target sent malformed text: {0}")]
    Text(#[from] TextError),
    /// Negotiation failed.
    #[error("negotiation failed: {0}")]
    Negotiation(#[from] NegotiationError),
    /// Authentication failed on our side: the target did not prove its identity, or supports none
    /// of our methods.
    #[error("authentication failed: {0}")]
    Chap(#[from] ChapError),
}

/// The login of one connection.
#[derive(Debug)]
pub struct InitiatorLogin {
    config: Config,
    negotiator: Negotiator,
    stage: Stage,
    /// The next stage requested by our last whole text.
    wanted: Option<Stage>,
    out: TextBuf,
    assembler: Assembler,
    chap: Option<chap::InitiatorEnd>,
    /// Whether CHAP was agreed on.
    chap_chosen: bool,
    method_chosen: bool,
    responses: u32,
    exp_stat_sn: u32,
    target_alias: Option<String>,
    portal_group_tag: Option<u16>,
}

impl InitiatorLogin {
    /// A login that has sent nothing so far.
    pub fn new(config: Config) -> Self {
        let phase = match (&config.target, config.tsih) {
            (None, _) => Phase::Discovery,
            (Some(_), 0) => Phase::Leading,
            (Some(_), _) => Phase::Further,
        };
        let params = config.session.as_ref().map(Params::for_further_connection).unwrap_or_default();
        let negotiator = Negotiator::new(Role::Initiator, phase, config.offer.clone(), params);
        let chap = config.chap.as_ref();
        let chap = chap.map(|c| chap::InitiatorEnd::new(c.credential.clone(), c.target.clone(), &c.hashes));
        InitiatorLogin {
            config,
            negotiator,
            stage: Stage::SecurityNegotiation,
            wanted: None,
            out: TextBuf::new(),
            assembler: Assembler::new(MAX_RESPONSE_TEXT),
            chap,
            chap_chosen: false,
            method_chosen: false,
            responses: 0,
            exp_stat_sn: 0,
            target_alias: None,
            portal_group_tag: None,
        }
    }

    /// The first request.
    pub fn start(&mut self) -> Request {
        let config = &self.config;
        self.out.put("InitiatorName", &config.initiator);
        if let Some(alias) = &config.alias {
            self.out.put("InitiatorAlias", alias);
        }
        match &config.target {
            Some(target) => {
                self.out.put("TargetName", target);
                // Sent on the leading connection only (RFC 7143 §13.21).
                if config.tsih == 0 {
                    self.out.put("SessionType", SessionType::Normal.name());
                }
            }
            None => self.out.put("SessionType", SessionType::Discovery.name()),
        }
        match &config.chap {
            None if config.skip_security => self.begin_operational(),
            None => {
                self.out.put("AuthMethod", "None");
                self.wanted = Some(Stage::LoginOperationalNegotiation);
            }
            Some(Chap { target: Some(_), .. }) => self.out.put("AuthMethod", "CHAP"),
            Some(_) => self.out.put("AuthMethod", "CHAP,None"),
        }
        self.emit()
    }

    /// Handles a response and its data segment, without padding.
    ///
    /// # Errors
    /// Any [`InitiatorLoginError`] ends the login: close the connection.
    pub fn handle(&mut self, response: &LoginResponse, data: &[u8]) -> Result<Step, InitiatorLoginError> {
        self.handle_with(response, data, &mut chap::os_random)
    }

    /// As [`InitiatorLogin::handle`], with the caller's source of random numbers for the challenge
    /// of mutual CHAP.
    ///
    /// # Errors
    /// As [`InitiatorLogin::handle`].
    pub fn handle_with(
        &mut self,
        response: &LoginResponse,
        data: &[u8],
        random: RandomSource<'_>,
    ) -> Result<Step, InitiatorLoginError> {
        self.responses += 1;
        if self.responses > MAX_LOGIN_PDUS {
            return Err(InitiatorLoginError::Protocol("it takes too many responses"));
        }
        if response.itt.get() != self.config.itt {
            return Err(InitiatorLoginError::Protocol("the task tag is another one"));
        }
        if let Some(step) = check_status(response, data)? {
            return Ok(step);
        }
        if response.version_active != 0 {
            return Err(InitiatorLoginError::Protocol("the version is one we did not offer"));
        }
        self.exp_stat_sn = response.stat_sn.get().wrapping_add(1);
        if response.current_stage() != Some(self.stage) {
            return Err(InitiatorLoginError::Protocol("the stage is another one"));
        }
        if !self.out.is_empty() {
            // Our text continues: the response to each part but the last is empty.
            return if data.is_empty() && !response.transit() {
                Ok(Step::Send(self.emit()))
            } else {
                Err(InitiatorLoginError::Protocol("it answered before our text was whole"))
            };
        }
        if response.continues() && response.transit() {
            return Err(InitiatorLoginError::Protocol("both T and C are set"));
        }
        if !self.assembler.push(data, response.continues())? {
            // Request the rest with an empty request.
            return Ok(Step::Send(self.request(Vec::new(), None, false)));
        }
        let text = self.assembler.take();
        let pairs = Pairs::new(&text).collect::<Result<Vec<_>, _>>()?;
        let rest = self.take_declarations(&pairs);
        match self.stage {
            Stage::SecurityNegotiation => self.security(&rest, random)?,
            _ => self.negotiator.receive(&rest, &mut self.out)?,
        }
        if response.transit() {
            let next = response.next_stage();
            if self.wanted.is_none() || next != self.wanted {
                return Err(InitiatorLoginError::Protocol("it moves to a stage that we did not ask for"));
            }
            self.check_authenticated()?;
            match next {
                Some(Stage::FullFeaturePhase) => return self.finish(response),
                _ => self.begin_operational(),
            }
        } else if self.stage == Stage::LoginOperationalNegotiation {
            self.wanted = Some(Stage::FullFeaturePhase);
        }
        Ok(Step::Send(self.emit()))
    }

    fn take_declarations<'a>(&mut self, pairs: &[Pair<'a>]) -> Vec<Pair<'a>> {
        let mut rest = Vec::with_capacity(pairs.len());
        for pair in pairs {
            match pair.key {
                "TargetAlias" => self.target_alias = Some(pair.value.to_owned()),
                "TargetPortalGroupTag" => {
                    self.portal_group_tag = text::parse_number(pair.value).and_then(|n| n.try_into().ok());
                }
                _ => rest.push(*pair),
            }
        }
        rest
    }

    fn security(&mut self, pairs: &[Pair<'_>], random: RandomSource<'_>) -> Result<(), InitiatorLoginError> {
        let mut keys = ChapKeys::default();
        let mut method = None;
        let mut rest = Vec::new();
        for pair in pairs {
            if keys.take(pair.key, pair.value)? {
                continue;
            }
            if pair.key == "AuthMethod" {
                method = Some(pair.value);
            } else {
                rest.push(*pair);
            }
        }
        self.negotiator.receive(&rest, &mut self.out)?;
        if let Some(method) = method {
            if std::mem::replace(&mut self.method_chosen, true) {
                return Err(InitiatorLoginError::Protocol("AuthMethod is answered twice"));
            }
            let none_offered = self.config.chap.as_ref().is_none_or(|c| c.target.is_none());
            match (method, &self.chap) {
                ("CHAP", Some(end)) => {
                    self.chap_chosen = true;
                    end.start(&mut self.out);
                }
                ("None", _) if none_offered => self.wanted = Some(Stage::LoginOperationalNegotiation),
                _ => {
                    return Err(InitiatorLoginError::Protocol(
                        "AuthMethod is answered with what was not offered",
                    ));
                }
            }
        }
        if !keys.is_empty() {
            let end = self.chap.as_mut().filter(|_| self.chap_chosen).ok_or(ChapError::Malformed)?;
            end.handle(&keys, random, &mut self.out)?;
            // Our CHAP response is complete: request the next stage with it.
            self.wanted = Some(Stage::LoginOperationalNegotiation);
        }
        Ok(())
    }

    /// Checks that the target has proved its identity before the security stage ends.
    fn check_authenticated(&self) -> Result<(), InitiatorLoginError> {
        let chap_open = self.chap_chosen && self.chap.as_ref().is_some_and(|c| !c.is_done());
        let mutual = self.config.chap.as_ref().is_some_and(|c| c.target.is_some());
        if chap_open || (mutual && !self.chap_chosen) {
            return Err(ChapError::TargetSilent.into());
        }
        Ok(())
    }

    fn begin_operational(&mut self) {
        self.stage = Stage::LoginOperationalNegotiation;
        self.wanted = Some(Stage::FullFeaturePhase);
        self.negotiator.originate_all(&mut self.out);
    }

    fn finish(&mut self, response: &LoginResponse) -> Result<Step, InitiatorLoginError> {
        let tsih = response.tsih.get();
        if tsih == 0 || (self.config.tsih != 0 && tsih != self.config.tsih) {
            // Some targets leave the TSIH of a discovery session 0; no later PDU refers to it.
            if self.config.target.is_some() {
                return Err(InitiatorLoginError::Protocol("the TSIH is not the session's"));
            }
        }
        Ok(Step::Done(Box::new(Established {
            params: self.negotiator.clone().finish()?,
            tsih,
            stat_sn: response.stat_sn.get(),
            exp_cmd_sn: response.exp_cmd_sn.get(),
            max_cmd_sn: response.max_cmd_sn.get(),
            target_alias: self.target_alias.take(),
            portal_group_tag: self.portal_group_tag,
            authenticated: self.chap_chosen,
        })))
    }

    /// The next part of our text; T is set with the last part only.
    fn emit(&mut self) -> Request {
        let (data, more) = self.out.take_part(LOGIN_SEGMENT_LEN);
        let next = if more { None } else { self.wanted };
        self.request(data, next, more)
    }

    fn request(&self, data: Vec<u8>, next: Option<Stage>, more: bool) -> Request {
        let config = &self.config;
        let mut header = LoginRequest::new(config.itt, config.isid, config.tsih, config.cid);
        header.set_stages(self.stage, next);
        header.set_continues(more);
        header.cmd_sn.set(config.cmd_sn);
        header.exp_stat_sn.set(self.exp_stat_sn);
        header.as_bhs_mut().set_data_segment_len(data.len());
        Request { header, data }
    }
}

/// Handles errors and redirections; `None` if the login continues.
fn check_status(response: &LoginResponse, data: &[u8]) -> Result<Option<Step>, InitiatorLoginError> {
    match (response.class(), response.status()) {
        // The class decides even if the detail is unknown (RFC 7143 §11.13.5).
        (Some(StatusClass::Success), _) => Ok(None),
        (Some(StatusClass::Redirection), status) => {
            let address = Pairs::new(data).filter_map(Result::ok).find(|p| p.key == "TargetAddress");
            let address =
                address.ok_or(InitiatorLoginError::Protocol("a redirection has no TargetAddress"))?;
            let permanently = status == Some(LoginStatus::TargetMovedPermanently);
            Ok(Some(Step::Moved { address: address.value.to_owned(), permanently }))
        }
        (_, Some(status)) => Err(InitiatorLoginError::Status(status)),
        (_, None) => Err(InitiatorLoginError::UnknownStatus(response.status_class, response.status_detail)),
    }
}
