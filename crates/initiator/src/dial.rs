//! From a portal's name to a connection in the full feature phase: resolving, connecting, logging in, following
//! redirections. Nothing of what comes after.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use iscsi::chap::Hash;
use iscsi::discovery::TargetAddress;
use iscsi::frame::{Cut, Cutter, Digests, emit_pdu};
use iscsi::login::initiator::{
    Chap, Config, Established, InitiatorLogin, InitiatorLoginError, Request, Step,
};
use iscsi::pdu::{LoginStatus, Opcode};
use iscsi::text::LOGIN_SEGMENT_LEN;
use ring::{Gather, TcpStream};

use crate::error::Error;

/// How often a login follows a redirection.
const MAX_REDIRECTS: usize = 4;

/// Host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Portal {
    pub host: String,
    pub port: u16,
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
    pub stream: TcpStream,
    pub login: Established,
    /// What the target sent after its last Login Response.
    pub rest: Vec<u8>,
    /// Where the target really is.
    pub portal: Portal,
}

/// Connects and logs in, within `limit` in all.
pub(crate) async fn dial(portal: &Portal, config: &Config, limit: Duration) -> Result<Dialed, Error> {
    let attempt = async {
        match follow(portal, config, limit).await {
            Err(error) if may_be_hash(&error) => match md5_only(config) {
                Some(config) => follow(portal, &config, limit).await,
                None => Err(error),
            },
            outcome => outcome,
        }
    };
    ring::timeout(limit, attempt).await.unwrap_or(Err(Error::TimedOut("login")))
}

/// Logs in where the target really is.
async fn follow(portal: &Portal, config: &Config, limit: Duration) -> Result<Dialed, Error> {
    let mut portal = portal.clone();
    for _ in 0..=MAX_REDIRECTS {
        let stream = connect(&portal, limit).await?;
        match login(&stream, config).await? {
            Outcome::Done(login, rest) => return Ok(Dialed { stream, login: *login, rest, portal }),
            Outcome::Moved(address) => {
                portal = Portal { host: address.host, port: address.port };
            }
        }
    }
    Err(Error::Redirects)
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

async fn connect(portal: &Portal, limit: Duration) -> Result<TcpStream, Error> {
    let mut reason = "no address".to_owned();
    for address in resolve(portal).await? {
        match TcpStream::connect(address, limit).await {
            Ok(stream) => return Ok(stream),
            Err(e) => reason = e.to_string(),
        }
    }
    Err(Error::Connect { portal: portal.to_string(), reason })
}

async fn resolve(portal: &Portal) -> Result<Vec<SocketAddr>, Error> {
    if let Ok(ip) = portal.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, portal.port)]);
    }
    let (host, port) = (portal.host.clone(), portal.port);
    // The system's resolver blocks, so it has a thread of its own.
    let found = ring::blocking(move || {
        (host.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>).map_err(|e| e.to_string())
    });
    found.await.map_err(|reason| Error::Resolve { host: portal.host.clone(), reason })
}

enum Outcome {
    Done(Box<Established>, Vec<u8>),
    Moved(TargetAddress),
}

async fn login(stream: &TcpStream, config: &Config) -> Result<Outcome, Error> {
    let cutter = Cutter {
        header_digest: false,
        data_digest: false,
        max_data_segment: LOGIN_SEGMENT_LEN as u32,
        max_ahs: 0,
    };
    let mut machine = InitiatorLogin::new(config.clone());
    let mut gather = Gather::new();
    let mut received: Vec<u8> = Vec::new();
    let mut request = machine.start();
    loop {
        gather = send(stream, gather, request).await?;
        let step = loop {
            match cutter.cut(&received) {
                Ok(Cut::Pdu { bhs, data, consumed, .. }) => {
                    if bhs.opcode() != Some(Opcode::LoginResponse) {
                        return Err(InitiatorLoginError::Protocol(
                            "it sent another PDU than a Login Response",
                        )
                        .into());
                    }
                    let step = machine.handle(bhs.as_login_response(), &received[data])?;
                    received.drain(..consumed);
                    break step;
                }
                Ok(_) => {}
                Err(_) => return Err(InitiatorLoginError::Protocol("it sent a malformed PDU").into()),
            }
            let bytes = stream.recv_some(LOGIN_SEGMENT_LEN).await.map_err(|e| Error::lost(&e))?;
            if bytes.is_empty() {
                return Err(Error::Lost("the target closed the connection during login".to_owned()));
            }
            received.extend_from_slice(&bytes);
        };
        request = match step {
            Step::Send(request) => request,
            Step::Done(login) => return Ok(Outcome::Done(login, received)),
            Step::Moved { address, .. } => {
                let address = TargetAddress::parse(&address);
                let bad = InitiatorLoginError::Protocol("it redirects to an address that makes no sense");
                return Ok(Outcome::Moved(address.ok_or(bad)?));
            }
        };
    }
}

async fn send(stream: &TcpStream, mut gather: Gather, request: Request) -> Result<Gather, Error> {
    let mut bytes = Vec::new();
    emit_pdu(&mut request.header.into(), &[], &request.data, Digests::default(), &mut bytes);
    gather.push_copy(&bytes);
    let (sent, gather) = stream.send(gather).await;
    sent.map_err(|e| Error::lost(&e))?;
    Ok(gather)
}
