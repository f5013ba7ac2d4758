//! From a portal's name to a connection in the full feature phase: resolving, connecting, logging in, following
//! redirections. Nothing of what comes after.

use iscsi::chap::Hash;
use iscsi::discovery::TargetAddress;
use iscsi::login::initiator::{Chap, Config, Established, InitiatorLogin, InitiatorLoginError, Step};
use iscsi::pdu::{LoginStatus, Opcode};

use crate::error::Error;
use crate::options::Options;
use crate::url::{Transport, Url};
use crate::wire::Wire;

/// How often a login follows a redirection.
const MAX_REDIRECTS: usize = 4;

/// Transport, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Portal {
    pub transport: Transport,
    pub host: String,
    pub port: u16,
}

impl From<&Url> for Portal {
    fn from(url: &Url) -> Self {
        Portal { transport: url.transport, host: url.host.clone(), port: url.port }
    }
}

impl std::fmt::Display for Portal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A connection that is logged in.
pub(crate) struct Dialed {
    pub wire: Wire,
    pub login: Established,
    /// Where the target really is.
    pub portal: Portal,
    /// It has moved there for good.
    pub moved_for_good: bool,
}

/// Connects and logs in, within the options' time for it in all.
pub(crate) async fn dial(portal: &Portal, config: &Config, options: &Options) -> Result<Dialed, Error> {
    let attempt = async {
        match follow(portal, config, options).await {
            Err(error) if may_be_hash(&error) => match md5_only(config) {
                Some(config) => follow(portal, &config, options).await,
                None => Err(error),
            },
            outcome => outcome,
        }
    };
    ring::timeout(options.connect_timeout, attempt).await.unwrap_or(Err(Error::TimedOut("login")))
}

/// Logs in where the target really is. Who is sent to where he has been would go round for ever.
async fn follow(portal: &Portal, config: &Config, options: &Options) -> Result<Dialed, Error> {
    let mut portal = portal.clone();
    let mut been = Vec::new();
    // Only if every step of the way was for good.
    let mut for_good = true;
    while been.len() <= MAX_REDIRECTS && !been.contains(&portal) {
        let mut wire = Wire::connect(&portal, options).await?;
        match login(&mut wire, config).await? {
            Outcome::Done(login) => {
                wire.begin_full_feature(&login.params);
                let moved_for_good = for_good && !been.is_empty();
                return Ok(Dialed { wire, login: *login, portal, moved_for_good });
            }
            Outcome::Moved(address, permanently) => {
                for_good &= permanently;
                let host = on_the_same_link(address.host, &portal.host);
                let next = Portal { transport: portal.transport, host, port: address.port };
                tracing::info!(from = %portal, to = %next, "redirected");
                been.push(std::mem::replace(&mut portal, next));
            }
        }
    }
    Err(Error::Redirects)
}

/// A link-local address that a target tells is of the link on which it was reached (RFC 4007 §6).
fn on_the_same_link(host: String, here: &str) -> String {
    let link_local = host.parse::<std::net::Ipv6Addr>().is_ok_and(|ip| ip.is_unicast_link_local());
    match here.split_once('%') {
        Some((_, zone)) if link_local => format!("{host}%{zone}"),
        _ => host,
    }
}

/// Whether a login may have failed for a CHAP algorithm that the target numbers otherwise (tgt takes 7 for SHA-1).
fn may_be_hash(error: &Error) -> bool {
    use LoginStatus::{AuthenticationFailure, InitiatorError};
    matches!(error, Error::Login(InitiatorLoginError::Status(AuthenticationFailure | InitiatorError)))
}

/// The same login with MD5 alone, which every target has, if the algorithms were left to us.
fn md5_only(config: &Config) -> Option<Config> {
    let chap = config.chap.as_ref().filter(|c| c.hashes.is_empty())?;
    Some(Config { chap: Some(Chap { hashes: vec![Hash::Md5], ..chap.clone() }), ..config.clone() })
}

enum Outcome {
    Done(Box<Established>),
    Moved(TargetAddress, bool),
}

async fn login(wire: &mut Wire, config: &Config) -> Result<Outcome, Error> {
    let mut machine = InitiatorLogin::new(config.clone());
    let mut request = machine.start();
    loop {
        wire.send(request.header.into(), &request.data).await?;
        let (bhs, data) = wire.receive().await.map_err(during_login)?;
        if bhs.opcode() != Some(Opcode::LoginResponse) {
            return Err(InitiatorLoginError::Protocol("it sent another PDU than a Login Response").into());
        }
        request = match machine.handle(bhs.as_login_response(), &data)? {
            Step::Send(request) => request,
            Step::Done(login) => return Ok(Outcome::Done(login)),
            Step::Moved { address, permanently } => {
                let address = TargetAddress::parse(&address);
                let bad = InitiatorLoginError::Protocol("it redirects to an address that makes no sense");
                return Ok(Outcome::Moved(address.ok_or(bad)?, permanently));
            }
        };
    }
}

/// Says when it was that the connection was lost.
fn during_login(error: Error) -> Error {
    match error {
        Error::Lost(why) => Error::Lost(format!("{why} during login")),
        other => other,
    }
}
