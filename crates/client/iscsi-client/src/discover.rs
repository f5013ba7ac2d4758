//! SendTargets over a discovery session.

use std::time::Duration;

use iscsi::discovery::{Record, read_records};
use iscsi::initiator::{ConnectionId, Event, Segment, Session, SessionConfig};
use iscsi::keys::Offer;
use iscsi::login::initiator::Config;
use iscsi::pdu::LogoutReason;

use crate::dial::{Dialed, Portal, dial};
use crate::error::Error;
use crate::options::{Options, on_transport};
use crate::session::{chap_of, isid};
use crate::url::Url;
use crate::wire::Wire;

/// Discovers the targets of a portal (RFC 7143 Appendix C), by a discovery session. Ignores the
/// target in the URL.
///
/// # Errors
/// Any [`Error`] of connecting, logging in or the exchange.
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
        offer: on_transport(
            Offer {
                header_digest: options.header_digest,
                data_digest: options.data_digest,
                ..Offer::discovery()
            },
            url.transport,
        ),
        session: None,
        skip_security: false,
    };
    let dialed = dial(&Portal::from(url), &config, options).await?;
    let talk = async {
        let mut talk = Talk::new(dialed);
        let text = talk.ask(b"SendTargets=All\0".to_vec()).await?;
        talk.leave(options.connect_timeout.min(Duration::from_secs(2))).await;
        read_records(&text).map_err(|_| Error::Data("SendTargets"))
    };
    runtime::timeout(options.command_timeout, talk).await.unwrap_or(Err(Error::TimedOut("discovery")))
}

/// One connection, one request at a time.
struct Talk {
    wire: Wire,
    session: Session<Vec<u8>, ()>,
    on: ConnectionId,
}

impl Talk {
    fn new(dialed: Dialed) -> Self {
        let mut session = Session::new(SessionConfig { max_tasks: 4, first_cmd_sn: 1 });
        let on = session.connect(0, &dialed.login);
        Talk { wire: dialed.wire, session, on }
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

    /// Logs out; does not require the target's answer.
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
        // The answer no longer matters.
        let _ = runtime::timeout(limit, farewell).await;
    }

    async fn next(&mut self) -> Result<Event<()>, Error> {
        loop {
            self.wire.flush(&mut self.session, self.on).await?;
            let (bhs, data) = self.wire.receive().await?;
            if let Some(event) = self.session.handle(self.on, &bhs, Segment::Here(&data))? {
                return Ok(event);
            }
        }
    }
}
