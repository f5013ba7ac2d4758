//! What a session does when its target tells it something of its own accord (RFC 7143 §11.9), and what it asks of a target by
//! text in full-feature phase.
//!
//! Asked to log out, a session gives the target no new commands, waits for those under way, logs out, and logs in again: where the
//! target has been moved to, or as soon as it lets anybody in.

use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi::discovery::{Record, read_records};
use iscsi::initiator::ConnectionId;
use iscsi::pdu::{AsyncEvent, AsyncMessage, LogoutReason};
use iscsi::target::Payload;
use iscsi::text::{Pairs, TextBuf, parse_number};
use ring::Chain;

use super::state::{Core, Inner, State, Task};
use super::{Destination, Response, Session};
use crate::error::Error;
use crate::payload::Data;

/// Kept of the time to log out for the logout itself.
const FOR_LOGOUT: Duration = Duration::from_millis(500);
/// The longest that a target has us wait before a login (Time2Wait).
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A session that was asked to log out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaving {
    /// Until when.
    until: Instant,
    /// It has begun to.
    begun: bool,
    /// It has.
    pub done: bool,
}

/// Heeds an Async Message.
pub(super) fn heed(
    inner: &Inner,
    core: &mut Core,
    on: ConnectionId,
    message: &AsyncMessage,
) -> Result<(), Error> {
    let seconds = |field: u16| Duration::from_secs(field.into());
    match message.event_code() {
        Some(AsyncEvent::LogoutRequest) if core.leaving.is_none() => {
            let until = ring::now() + seconds(message.parameter3.get());
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
                core.not_before = Some(ring::now() + wait);
            }
            if core.links.iter().any(|link| link.on == on && dropped(link)) {
                return Err(Error::Lost(format!("the {}", event.name())));
            }
            core.doomed.extend(core.links.iter().filter(|link| dropped(link)).map(|link| link.serial));
            inner.supervisor_bell.ring();
        }
        Some(AsyncEvent::NegotiationRequest) => {
            // A text that says nothing will do; a full table means that there is one already, or soon will be room.
            let _ = core.protocol.text(on, Data::copied(Vec::new()), Task::Ping);
        }
        _ => tracing::debug!(%message, "asynchronous message"),
    }
    Ok(())
}

/// Takes the answer to a text: for who waits for it, or what it says of the connection.
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
    /// Logs out when it has been asked to and nothing is under way any more, or the time is nearly up; makes the session anew
    /// when it has.
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
    /// The session's own target and its portals, as SendTargets tells them in a normal session (RFC 7143 Appendix C).
    ///
    /// # Errors
    /// Whatever ended the session, or [`Error::TimedOut`].
    pub async fn send_targets(&self) -> Result<Vec<Record>, Error> {
        let inner = self.inner();
        let on = inner.first_link().ok_or(Error::Lost("no connection at the moment".to_owned()))?;
        let mut text = TextBuf::new();
        text.put("SendTargets", "");
        let answer = self.say(on, &text).await?.data.to_vec();
        read_records(&answer).map_err(|_| Error::Data("SendTargets"))
    }

    /// Has the target send data segments of at most `bytes` from now on, on all connections (MaxRecvDataSegmentLength, RFC 7143
    /// §13.12): 512, up to what was declared at login. Not over iSER, whose login decides it.
    ///
    /// # Errors
    /// [`Error::Argument`] for another length; whatever ended the session, or [`Error::TimedOut`].
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
        let text = Data(Chain::from(ring::Buf::from(text.as_bytes().to_vec())));
        let ticket = inner.submit(Destination::Nothing, 0, |protocol, task| protocol.text(on, text, task))?;
        let limit = inner.options.command_timeout;
        ring::timeout(limit, ticket).await.unwrap_or(Err(Error::TimedOut("text")))
    }
}
