//! From a portal's name to a connection in the full feature phase: resolving, connecting, logging
//! in, following redirections. Ends there.

use iscsi::chap::{ChapError, Hash};
use iscsi::discovery::TargetAddress;
use iscsi::login::initiator::{Chap, Config, Established, InitiatorLogin, InitiatorLoginError, Step};
use iscsi::pdu::{LoginStatus, Opcode};

use crate::error::Error;
use crate::options::{Options, iser_segment};
use crate::url::{Transport, Url};
use crate::wire::Wire;

/// Maximum number of redirections per login.
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
    /// The portal that accepted the login.
    pub portal: Portal,
    /// Whether the target has moved there permanently.
    pub moved_for_good: bool,
}

/// Connects and logs in, within the options' total time limit.
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
    runtime::timeout(options.connect_timeout, attempt).await.unwrap_or(Err(Error::TimedOut("login")))
}

/// Logs in, following redirections. A redirection to a portal already tried would be a loop.
async fn follow(portal: &Portal, config: &Config, options: &Options) -> Result<Dialed, Error> {
    let mut portal = portal.clone();
    let mut been = Vec::new();
    // Only if every redirection was permanent.
    let mut for_good = true;
    while been.len() <= MAX_REDIRECTS && !been.contains(&portal) {
        let mut wire = Wire::connect(&portal, options).await?;
        match login(&mut wire, config).await? {
            Outcome::Done(mut login) => {
                let params = &mut login.params;
                if params.rdma_extensions {
                    params.target_recv_data_segment_length =
                        iser_segment(params.target_recv_data_segment_length);
                }
                wire.begin_full_feature(params);
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

/// Completes a target's link-local address with the zone of the link on which it was reached (RFC
/// 4007 §6).
fn on_the_same_link(host: String, here: &str) -> String {
    let link_local = host.parse::<std::net::Ipv6Addr>().is_ok_and(|ip| ip.is_unicast_link_local());
    match here.split_once('%') {
        Some((_, zone)) if link_local => format!("{host}%{zone}"),
        _ => host,
    }
}

/// Whether a login may have failed because the target numbers a CHAP algorithm differently (tgt
/// uses 7 for SHA-1).
fn may_be_hash(error: &Error) -> bool {
    use LoginStatus::{AuthenticationFailure, InitiatorError};
    matches!(error, Error::Login(InitiatorLoginError::Status(AuthenticationFailure | InitiatorError)))
}

/// The same login with only MD5, which every target supports, unless the options choose the
/// algorithms.
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
        request = match machine.handle_with(bhs.as_login_response(), &data, &mut random)? {
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

/// Adds to a lost connection's error that it happened during login.
fn during_login(error: Error) -> Error {
    match error {
        Error::Lost(why) => Error::Lost(format!("{why} during login")),
        other => other,
    }
}

/// Randomness for CHAP's challenges.
fn random(bytes: &mut [u8]) -> Result<(), ChapError> {
    runtime::random(bytes).map_err(|_| ChapError::NoRandom)
}
