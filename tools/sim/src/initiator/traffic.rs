//! What an initiator's links carry: bytes become PDUs, and PDUs become bytes.
//!
//! What a PDU means is decided elsewhere.

use iscsi::initiator::ProtocolError;

use super::link::{Handled, Phase, Unreadable};
use super::reach::Exposing;
use super::{BATCH, Initiator, State};
use crate::network::{Received, Side};
use crate::trace::note;

impl Initiator {
    /// Reads what has arrived.
    pub(super) fn receive(&mut self) -> Result<bool, String> {
        if self.now() < self.deaf_until {
            return Ok(false);
        }
        let mut any = false;
        let mut at = 0;
        while at < self.links.len() {
            let id = self.links[at].id;
            let now = self.now();
            let received = self.shared.network.borrow_mut().receive(now, id, Side::Initiator);
            match received {
                Received::Nothing => {
                    at += 1;
                    continue;
                }
                Received::Bytes(bytes) => {
                    let link = &mut self.links[at];
                    link.last_heard = now;
                    link.input.extend(bytes);
                    self.read(at)?;
                }
                // A target that logs a session out closes its other connections before it answers.
                Received::Closed if self.state == State::LoggingOut && self.links.len() > 1 => {
                    self.links.remove(at);
                }
                Received::Closed | Received::Reset => {
                    let why = if received == Received::Closed { "closed by the target" } else { "reset" };
                    self.lose_link(id, why);
                }
            }
            any = true;
            // The links may be others now.
            if self.links.get(at).is_none_or(|link| link.id != id) {
                at = 0;
            }
        }
        Ok(any)
    }

    /// Handles the PDUs that are whole.
    pub(super) fn read(&mut self, at: usize) -> Result<(), String> {
        let id = self.links[at].id;
        loop {
            // Whatever a PDU led to, go on only with the same link.
            let Some(link) = self.links.get_mut(at).filter(|link| link.id == id) else { return Ok(()) };
            if link.pair.is_some() {
                if !self.message(at)? {
                    return Ok(());
                }
                continue;
            }
            let (on, read) = match &mut link.phase {
                Phase::Login(_) => {
                    if !self.login_pdu(at)? {
                        return Ok(());
                    }
                    continue;
                }
                Phase::Full(on, reader) => (*on, reader.next(&mut self.protocol, *on, &mut link.input)),
            };
            match read {
                Ok(None) => return Ok(()),
                Ok(Some(Handled::Dropped(bhs))) => {
                    note!(self.shared.trace, "initiator {} <- lost: {bhs}", self.number);
                }
                Ok(Some(Handled::Taken(bhs, event))) => {
                    note!(self.shared.trace, "initiator {} <- {bhs}", self.number);
                    self.tap.see(on, &bhs, self.protocol.params())?;
                    if let Some(event) = event {
                        self.on_event(event)?;
                    }
                }
                Err(error) => {
                    let corrupted = self.shared.network.borrow().corrupted(id, Side::Initiator);
                    if !corrupted
                        || matches!(error, Unreadable::Protocol(fault) if fault != ProtocolError::DataDigest)
                    {
                        return Err(format!("initiator {}: link {}: {error:?}", self.number, id.0));
                    }
                    self.lose_link(id, "what arrived is broken");
                    return Ok(());
                }
            }
        }
    }

    /// Sends what the session has to say.
    pub(super) fn transmit(&mut self) -> bool {
        let now = self.now();
        let mut any = false;
        for link in &mut self.links {
            loop {
                if let Phase::Full(on, _) = &link.phase
                    && link.output.len() < BATCH
                {
                    match &mut link.pair {
                        None => {
                            self.protocol.transmit(*on, BATCH, &mut link.output);
                        }
                        Some(pair) => {
                            self.protocol.transmit_messages(*on, BATCH, &mut Exposing(pair));
                        }
                    }
                }
                if let Some(pair) = &mut link.pair {
                    link.output.append(&mut pair.take_output());
                }
                if link.output.is_empty() {
                    break;
                }
                let sent = self.shared.network.borrow_mut().send(now, link.id, Side::Initiator, &link.output);
                link.output.drain(..sent);
                any |= sent > 0;
                if sent == 0 {
                    break;
                }
            }
        }
        any
    }
}
