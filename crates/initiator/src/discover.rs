//! SendTargets over a discovery session.

use std::time::Duration;

use iscsi::discovery::{Record, read_records};
use iscsi::frame::{Cut, Cutter};
use iscsi::initiator::{ConnectionId, Event, Segment, Session, SessionConfig};
use iscsi::keys::{Digest, Offer};
use iscsi::login::initiator::Config;
use iscsi::pdu::LogoutReason;
use ring::{Gather, TcpStream};

use crate::dial::{Dialed, Portal, dial};
use crate::error::Error;
use crate::options::Options;
use crate::session::{chap_of, isid};
use crate::url::Url;

/// Asks a portal which targets there are (RFC 7143 Appendix C), by a discovery session of its own. The target in the URL
/// does not matter.
///
/// # Errors
/// Any [`Error`] of connecting, logging in or talking.
pub async fn discover(url: &Url, options: &Options) -> Result<Vec<Record>, Error> {
    let config = Config {
        initiator: options.initiator.clone(),
        alias: options.alias.clone(),
        target: None,
        isid: isid()?,
        tsih: 0,
        cid: 0,
        cmd_sn: 1,
        itt: 0,
        chap: chap_of(url, options),
        offer: Offer {
            header_digest: options.header_digest,
            data_digest: options.data_digest,
            ..Offer::discovery()
        },
        session: None,
        skip_security: false,
    };
    let portal = Portal { host: url.host.clone(), port: url.port };
    let dialed = dial(&portal, &config, options.connect_timeout).await?;
    let talk = async {
        let mut talk = Talk::new(dialed);
        let text = talk.ask(b"SendTargets=All\0".to_vec()).await?;
        talk.leave(options.connect_timeout.min(Duration::from_secs(2))).await;
        read_records(&text).map_err(|_| Error::Data("SendTargets"))
    };
    ring::timeout(options.command_timeout, talk).await.unwrap_or(Err(Error::TimedOut("discovery")))
}

/// One connection, one question at a time.
struct Talk {
    stream: TcpStream,
    session: Session<Vec<u8>, ()>,
    on: ConnectionId,
    cutter: Cutter,
    received: Vec<u8>,
}

impl Talk {
    fn new(dialed: Dialed) -> Self {
        let mut session = Session::new(SessionConfig { max_tasks: 4, first_cmd_sn: 1 });
        let on = session.connect(0, &dialed.login);
        let params = &dialed.login.params;
        let cutter = Cutter {
            header_digest: params.header_digest == Digest::Crc32c,
            data_digest: params.data_digest == Digest::Crc32c,
            max_data_segment: params.max_recv_data_segment_length,
            max_ahs: 0,
        };
        Talk { stream: dialed.stream, session, on, cutter, received: dialed.rest }
    }

    async fn ask(&mut self, text: Vec<u8>) -> Result<Vec<u8>, Error> {
        self.session.text(self.on, text, ()).map_err(|()| Error::Closed)?;
        loop {
            match self.next().await? {
                Event::Text(_, (), text) => return Ok(text),
                Event::Rejected(reason, _) => return Err(Error::Rejected(reason)),
                _ => {}
            }
        }
    }

    /// Logs out; a target that does not answer is left without.
    async fn leave(&mut self, limit: Duration) {
        if self.session.logout(self.on, LogoutReason::CloseSession, ()).is_err() {
            return;
        }
        let farewell = async {
            while let Ok(event) = self.next().await {
                if matches!(event, Event::LoggedOut(..)) {
                    break;
                }
            }
        };
        // Whether it answers does not matter any more.
        let _ = ring::timeout(limit, farewell).await;
    }

    async fn next(&mut self) -> Result<Event<()>, Error> {
        loop {
            let mut out = Vec::new();
            self.session.transmit(self.on, usize::MAX, &mut out);
            if !out.is_empty() {
                let mut gather = Gather::new();
                gather.push_copy(&out);
                self.stream.send(gather).await.0.map_err(|e| Error::lost(&e))?;
            }
            match self.cutter.cut(&self.received) {
                Ok(Cut::Pdu { bhs, data, consumed, .. }) => {
                    let event = self.session.handle(self.on, bhs, Segment::Here(&self.received[data]))?;
                    self.received.drain(..consumed);
                    match event {
                        Some(event) => return Ok(event),
                        None => continue,
                    }
                }
                Ok(_) => {}
                Err(e) => return Err(Error::Lost(e.to_string())),
            }
            let bytes = self.stream.recv_some(64 << 10).await.map_err(|e| Error::lost(&e))?;
            if bytes.is_empty() {
                return Err(Error::Lost("the target closed the connection".to_owned()));
            }
            self.received.extend_from_slice(&bytes);
        }
    }
}
