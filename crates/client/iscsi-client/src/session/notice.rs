//! Handles asynchronous messages of the target (RFC 7143 §11.9), and sends text requests in the
//! full feature phase.
//!
//! After a logout request the session starts no new commands, waits for the outstanding ones, logs
//! out, and logs in again. It logs in at the target's new portal, or as soon as the target accepts
//! logins.

use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi::discovery::{Record, read_records};
use iscsi::initiator::ConnectionId;
use iscsi::pdu::{AsyncEvent, AsyncMessage, LogoutReason};
use iscsi::target::Payload;
use iscsi::text::{Pairs, TextBuf, parse_number};
use runtime::Chain;

use super::state::{Core, Inner, Leaving, State, Task};
use super::{Destination, Response, Session, ticket};
use crate::error::Error;
use crate::payload::Data;

/// Time reserved for the logout itself.
const FOR_LOGOUT: Duration = Duration::from_millis(500);
/// Maximum wait before a login that a target may impose (Time2Wait).
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Handles an Async Message.
pub(super) fn heed(
    inner: &Inner,
    core: &mut Core,
    on: ConnectionId,
    message: &AsyncMessage,
) -> Result<(), Error> {
    let seconds = |field: u16| Duration::from_secs(field.into());
    match message.event_code() {
        Some(AsyncEvent::LogoutRequest) if core.leaving.is_none() => {
            let until = runtime::now() + seconds(message.parameter3.get());
            tracing::info!(target = %inner.target, within_s = message.parameter3.get(), "asked to log out");
            core.leaving = Some(Leaving { until, begun: false, done: false });
            core.protocol.hold(true);
            inner.supervisor_bell.ring();
        }
        Some(AsyncEvent::LogoutRequest) => {}
        Some(event @ (AsyncEvent::DropConnection | AsyncEvent::DropSession)) => {
            let wait = seconds(message.parameter2.get()).min(LONGEST_WAIT);
            let cid = message.parameter1.get();
            tracing::info!(target = %inner.target, cid, wait_s = wait.as_secs(), "{}", event.name());
            let dropped = |link: &super::state::Link| match event {
                AsyncEvent::DropConnection => link.cid == cid,
                _ => true,
            };
            if event == AsyncEvent::DropSession {
                core.not_before = Some(runtime::now() + wait);
            }
            if core.links.iter().any(|link| link.on == on && dropped(link)) {
                return Err(Error::Lost(format!("the {}", event.name())));
            }
            core.doomed.extend(core.links.iter().filter(|link| dropped(link)).map(|link| link.serial));
            inner.supervisor_bell.ring();
        }
        Some(AsyncEvent::NegotiationRequest) => {
            // An empty text suffices. If the table is full there is one already, or soon will be
            // room.
            let _ = core.protocol.text(on, Data::copied(Vec::new()), Task::Ping);
        }
        _ => tracing::debug!(%message, "asynchronous message"),
    }
    Ok(())
}

/// Handles the answer to a text: for a waiting task, or about the connection.
pub(super) fn heard_text(inner: &Inner, core: &mut Core, on: ConnectionId, task: &Task, text: Vec<u8>) {
    for pair in Pairs::new(&text).map_while(Result::ok) {
        match pair.key {
            "MaxRecvDataSegmentLength" => {
                if let Some(bytes) = parse_number(pair.value).and_then(|bytes| u32::try_from(bytes).ok()) {
                    core.protocol.set_segment(on, bytes);
                }
            }
            "TargetAlias" => core.alias = Some(pair.value.to_owned()),
            _ => {}
        }
    }
    inner.complete_text(core, task, text);
}

impl Inner {
    /// Logs out after a logout request, once no command is outstanding or the deadline is near.
    /// Then lets the session reconnect.
    pub(super) fn leave(&self, now: Instant) {
        let mut core = self.core.borrow_mut();
        let core = &mut *core;
        let (Some(leaving), State::Up) = (core.leaving, &core.state) else { return };
        let time_up = now >= leaving.until;
        if leaving.done || (leaving.begun && time_up) {
            let generation = core.generation;
            return self.lose_now(core, generation, Error::Lost("the target asked for a logout".to_owned()));
        }
        let hurry = now + FOR_LOGOUT >= leaving.until;
        if leaving.begun || !(hurry || core.protocol.outstanding() == 0) {
            return;
        }
        let Some(on) = core.links.first().map(|link| link.on) else { return };
        if core.protocol.logout(on, LogoutReason::CloseSession, Task::Leave).is_ok() {
            core.leaving = Some(Leaving { begun: true, ..leaving });
        }
        core.ring_links();
    }
}

impl Session {
    /// The session's own target and its portals, from SendTargets in a normal session (RFC 7143
    /// Appendix C).
    ///
    /// # Errors
    /// The reason why the session ended, or [`Error::TimedOut`].
    pub async fn send_targets(&self) -> Result<Vec<Record>, Error> {
        let inner = self.inner();
        let on = inner.first_link().ok_or(Error::Lost("no connection at the moment".to_owned()))?;
        let mut text = TextBuf::new();
        text.put("SendTargets", "");
        let answer = self.say(on, &text).await?.data.to_vec();
        read_records(&answer).map_err(|_| Error::Data("SendTargets"))
    }

    /// Limits the target's data segments to `bytes` from now on, on all connections
    /// (MaxRecvDataSegmentLength, RFC 7143 §13.12). From 512 up to the value declared at login. Not
    /// over iSER, where the login fixes it.
    ///
    /// # Errors
    /// [`Error::Argument`] for another length; the reason why the session ended, or
    /// [`Error::TimedOut`].
    pub async fn set_max_recv_data_segment(&self, bytes: u32) -> Result<(), Error> {
        let inner = self.inner();
        let most = inner.options.max_recv_data_segment_length;
        if !(512..=most).contains(&bytes) {
            return Err(Error::Argument("a data segment has 512 bytes, up to what was declared at login"));
        }
        let mut text = TextBuf::new();
        text.put_number("MaxRecvDataSegmentLength", bytes.into());
        let links: Vec<ConnectionId> = inner.core.borrow().links.iter().map(|link| link.on).collect();
        for on in links {
            let answer = self.say(on, &text).await?.data.to_vec();
            if Pairs::new(&answer).map_while(Result::ok).any(|pair| pair.value == "Reject") {
                return Err(Error::Argument("the target rejects the data segment's length"));
            }
            inner.core.borrow_mut().protocol.segment_length_changed(on);
        }
        Ok(())
    }

    /// One exchange of text.
    async fn say(&self, on: ConnectionId, text: &TextBuf) -> Result<Response, Error> {
        let inner: &Rc<Inner> = self.inner();
        let text = Data(Chain::from(runtime::Buf::from(text.as_bytes().to_vec())));
        let ticket =
            ticket::submit(inner, Destination::Nothing, 0, |protocol, task| protocol.text(on, text, task))?;
        let limit = inner.options.command_timeout;
        runtime::timeout(limit, ticket).await.unwrap_or(Err(Error::TimedOut("text")))
    }
}
