//! What of an initiator's memory its target may reach, over iSER: exposed before a command goes out, taken back before its owner
//! learns of its end.

use ::iser::{Control, Remote};
use iscsi::initiator::{Buffers, Datamover, Event, Segment, TaskKey};
use iscsi::pdu::Bhs;
use iscsi::target::Payload;

use super::link::Phase;
use super::payload::Slice;
use super::{Initiator, Token};
use crate::iser;
use crate::network::Side;
use crate::rdma::{Fault, Happening, Pair};
use crate::trace::note;

/// The STags of a command's memory.
#[derive(Debug, Default)]
pub(super) struct Reach {
    read: Option<u32>,
    write: Option<u32>,
}

/// Exposes commands' memory, and sends them.
pub(super) struct Exposing<'a>(pub &'a mut Pair);

impl Datamover<Slice, Token> for Exposing<'_> {
    fn send_control(&mut self, header: &Bhs, ahs: &[u8], data: Option<Slice>) {
        self.send(Control::default(), header, ahs, data);
    }

    fn send_command(
        &mut self,
        header: &Bhs,
        ahs: &[u8],
        data: Option<Slice>,
        buffers: Buffers<'_, Slice, Token>,
    ) {
        let mut control = Control::default();
        let mut expose = |bytes: Vec<u8>, writable: bool| {
            let (stag, offset) = self.0.expose(bytes, writable).expect("room for as many STags as commands");
            Remote { stag, offset }
        };
        buffers.token.reach = Reach::default();
        if buffers.read_len > 0 {
            control.read = Some(expose(vec![0; buffers.read_len as usize], true));
        }
        // What goes unsolicited is not for the target to fetch.
        let rest = buffers.write.map(|data| Payload::to_vec(data).split_off(buffers.unsolicited as usize));
        if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
            control.write = Some(expose(rest, false));
        }
        let stag = |remote: Option<Remote>| remote.map(|remote| remote.stag);
        buffers.token.reach = Reach { read: stag(control.read), write: stag(control.write) };
        self.send(control, header, ahs, data);
    }
}

impl Exposing<'_> {
    fn send(&mut self, control: Control, header: &Bhs, ahs: &[u8], data: Option<Slice>) {
        let data = data.map(|data| Payload::to_vec(&data)).unwrap_or_default();
        self.0.send(iser::message(control, &[header.bytes(), ahs, &data].concat()), None);
    }
}

impl Initiator {
    /// Handles the next message of a link; false when there is none, or no such link any more.
    pub(super) fn message(&mut self, at: usize) -> Result<bool, String> {
        let link = &mut self.links[at];
        let id = link.id;
        let Some(pair) = &mut link.pair else { return Ok(false) };
        let (bytes, invalidated) = match pair.next(&mut link.input, None) {
            Ok(None) => return Ok(false),
            Ok(Some(Happening::Message(bytes, invalidated))) => (bytes, invalidated),
            Ok(Some(Happening::Read(..))) => return Err(format!("initiator {}: a read", self.number)),
            Err(fault) => {
                let network = self.shared.network.borrow();
                let corrupted = match fault {
                    Fault::Theirs(_) => network.corrupted(id, Side::Target),
                    _ => network.corrupted(id, Side::Initiator),
                };
                drop(network);
                if !corrupted {
                    return Err(format!("initiator {}: link {}: {fault}", self.number, id.0));
                }
                self.lose("what arrived is broken");
                return Ok(false);
            }
        };
        let message = iser::parse(&bytes).map_err(|error| format!("initiator {}: {error}", self.number))?;
        if message.control != Control::default() {
            return Err(format!("initiator {}: a target has STags: {:?}", self.number, message.control));
        }
        let (bhs, data) = (message.bhs, message.data);
        let on = match &link.phase {
            Phase::Login(_) => return self.login_response(at, &bhs, &data),
            Phase::Full(on, _) => *on,
        };
        note!(self.shared.trace, "initiator {} <- {bhs}", self.number);
        self.tap.see(on, &bhs, self.protocol.params())?;
        let event = self.protocol.handle(on, &bhs, Segment::Here(&data[..]));
        let mut event = event.map_err(|error| format!("initiator {}: {bhs}: {error:?}", self.number))?;
        let ended = match &mut event {
            Some(Event::Done(_, token, completion)) => {
                let placed = self.withdraw(token, invalidated)?;
                let received = completion.received as usize;
                if token.data.len() != placed || placed < received {
                    token.data.resize(placed.max(token.data.len()), 0);
                }
                if placed < received {
                    return Err(format!("op {}: {received} bytes were read, {placed} placed", token.op));
                }
                token.data.truncate(received);
                true
            }
            _ => false,
        };
        if let (false, Some(stag)) = (ended, invalidated) {
            return Err(format!("initiator {}: {bhs} invalidates {stag:#x}", self.number));
        }
        if let Some(event) = event {
            self.on_event(event)?;
        }
        Ok(true)
    }

    /// Takes a command's memory back; what was read goes to its token. Answers how far the target has written.
    pub(super) fn withdraw(&mut self, token: &mut Token, invalidated: Option<u32>) -> Result<usize, String> {
        let Reach { read, write } = std::mem::take(&mut token.reach);
        if let Some(stag) = invalidated
            && read != Some(stag)
            && write != Some(stag)
        {
            return Err(format!("op {}: its response invalidates {stag:#x}, which is another's", token.op));
        }
        let Some(pair) = self.links.first_mut().and_then(|link| link.pair.as_mut()) else { return Ok(0) };
        if let Some(stag) = write {
            pair.withdraw(stag);
        }
        let Some(stag) = read else { return Ok(0) };
        let Some((bytes, placed)) = pair.withdraw(stag) else {
            return Err(format!("op {}: its memory is not there", token.op));
        };
        token.data = bytes;
        Ok(placed)
    }

    /// Forgets a task that a function has ended.
    pub(super) fn forget(&mut self, key: TaskKey) -> Option<Token> {
        let mut token = self.protocol.forget(key)?;
        // Nothing of it may arrive any more: the stream would end for it.
        let _ = self.withdraw(&mut token, None);
        Some(token)
    }
}
