//! [`BackChannel`]: the calls to a client over a connection that it has made, and their outcomes
//! (RFC 8881 §2.10.3.1, §20).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use nfs::v4::callback::{Arguments, Back, CB_COMPOUND, NotifyLock, Recall, Results, Sequence, VERSION};
use nfs::v4::state::{Callback, CallbackOperation, Outcome};
use nfs::v4::{self, CallWriter, Handle, OwnerId, SessionId, StateOwner};
use rpc::auth::OpaqueAuth;
use rpc::message::{Call, Reply};
use rpc::record;
use rpc::xdr::{List, Opaque, Reader, Writer, Xdr};

use crate::handle::Bytes;

/// Time that a client has to answer a call.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Calls of one connection that wait for their answers at most. A client that makes and ends
/// sessions without an end, and answers nothing, is not called beyond it.
pub(crate) const MOST: usize = 4096;

/// A call to a client, as the state knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub session: SessionId,
    pub slot: u32,
    pub sequence: u32,
}

/// The calls of one connection that wait for their answers: [`MOST`] at most.
#[derive(Default)]
pub(crate) struct BackChannel {
    last: Cell<u32>,
    waiting: RefCell<HashMap<u32, Sent>>,
}

impl BackChannel {
    /// The record of a call, and its XID. `None`: too many wait. Then the client cannot be called,
    /// and its state is revoked in time.
    pub(crate) fn call(&self, call: &Callback<Bytes>) -> Option<(Vec<u8>, u32)> {
        if self.waiting.borrow().len() >= MOST {
            return None;
        }
        let xid = self.last.get().wrapping_add(1);
        self.last.set(xid);
        let sent = Sent { session: call.session, slot: call.slot, sequence: call.sequence };
        self.waiting.borrow_mut().insert(xid, sent);
        Some((record_of(xid, call), xid))
    }

    /// The call that a reply answers, and its outcome. `None`: no call waits for this reply.
    pub(crate) fn answered(&self, reply: &Reply<'_>, results: &[u8]) -> Option<(Sent, Outcome)> {
        let sent = self.waiting.borrow_mut().remove(&reply.xid)?;
        let outcome = reply.is_success().then(|| outcome(results)).flatten();
        // A client that does not know the service, or answers nonsense, cannot be called here.
        Some((sent, outcome.unwrap_or(Outcome::Lost)))
    }

    /// The connection is over. The state sends its calls again over another one.
    pub(crate) fn end(&self) {
        self.waiting.borrow_mut().clear();
    }

    /// Whether the call with this XID waits for its answer.
    pub(crate) fn waits_for(&self, xid: u32) -> bool {
        self.waiting.borrow().contains_key(&xid)
    }

    /// Waits no longer for the answer to a call. `None`: it was answered.
    pub(crate) fn give_up(&self, xid: u32) -> Option<Sent> {
        self.waiting.borrow_mut().remove(&xid)
    }
}

fn record_of(xid: u32, call: &Callback<Bytes>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(512);
    let to = &mut Writer::new(&mut bytes);
    let begun = record::begin(to);
    let header = Call {
        xid,
        program: call.program,
        version: VERSION,
        procedure: CB_COMPOUND,
        credential: OpaqueAuth::read(&mut Reader::new(&call.credential)).unwrap_or(OpaqueAuth::NONE),
        verifier: OpaqueAuth::NONE,
    };
    header.write(to);
    let mut compound = CallWriter::<Back>::new(to, Opaque::EMPTY, call.minor, 0);
    compound.push(&Arguments::Sequence(Sequence {
        session: call.session,
        sequence: call.sequence,
        slot: call.slot,
        highest_slot: call.highest_slot,
        cache: false,
        referring: List::EMPTY,
    }));
    match &call.operation {
        CallbackOperation::Probe => {}
        CallbackOperation::Recall { stateid, file } => {
            compound.push(&Arguments::Recall(Recall {
                stateid: *stateid,
                truncate: false,
                file: handle(file),
            }));
        }
        CallbackOperation::NotifyLock { file, client, owner } => {
            // It was as short when the client sent it.
            let owner = OwnerId::new(owner).unwrap_or(Opaque::EMPTY);
            let owner = StateOwner { client: *client, owner };
            compound.push(&Arguments::NotifyLock(NotifyLock { file: handle(file), owner }));
        }
    }
    // Some hundred bytes.
    let _ = record::end(to, begun, 0);
    bytes
}

/// Shorter than the longest of NFSv4.
fn handle(file: &Bytes) -> Handle<'_> {
    Handle::new(file).unwrap_or(Handle::EMPTY)
}

/// The outcome that the results of a CB_COMPOUND report. `None`: they are malformed.
fn outcome(results: &[u8]) -> Option<Outcome> {
    let mut results = v4::Reply::<Back>::read(results).ok()?.results;
    let first = results.next()?.ok()?.value;
    match first.error() {
        Some(status) => return Some(Outcome::Refused(status)),
        None if !matches!(first, Results::Sequence(_)) => return None,
        None => {}
    }
    let second = results.next().transpose().ok()?;
    Some(Outcome::Done(second.and_then(|it| it.value.error()).map_or(Ok(()), Err)))
}

#[cfg(test)]
mod tests {
    use nfs::v4::callback::SequenceOk;
    use nfs::v4::{ClientId, ReplyWriter, Stateid, Status};
    use rpc::message::{AcceptStat, Message};

    use super::*;

    fn call(operation: CallbackOperation<Bytes>) -> Callback<Bytes> {
        Callback {
            connection: 1,
            minor: 2,
            program: 0x4000_0000,
            credential: [0; 8].into(),
            session: SessionId([3; 16]),
            slot: 2,
            sequence: 5,
            highest_slot: 2,
            operation,
        }
    }

    fn results(of: &[Results<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let to = &mut Writer::new(&mut bytes);
        let mut reply = ReplyWriter::<Back>::new(to, Opaque::EMPTY);
        of.iter().for_each(|one| reply.push(one));
        bytes
    }

    fn sequence() -> Results<'static> {
        let session = SessionId([3; 16]);
        let ok = SequenceOk { session, sequence: 5, slot: 2, highest_slot: 15, target_highest_slot: 15 };
        Results::Sequence(v4::Outcome::Ok(ok))
    }

    #[test]
    fn a_call_is_a_record_that_a_client_can_read() {
        let back = BackChannel::default();
        let recall = CallbackOperation::Recall { stateid: Stateid::ANONYMOUS, file: Bytes::default() };
        let notice = CallbackOperation::NotifyLock {
            file: Bytes::default(),
            client: ClientId(7),
            owner: b"owner"[..].into(),
        };
        for (operation, count) in [(CallbackOperation::Probe, 1), (recall, 2), (notice, 2)] {
            let (bytes, xid) = back.call(&call(operation)).unwrap();
            assert_eq!(bytes[0], 0x80, "one last fragment");
            let mut from = Reader::new(&bytes[record::MARK_LEN..]);
            let Ok(Message::Call(header)) = Message::read(&mut from) else { panic!("no call") };
            assert_eq!((header.xid, header.program, header.procedure), (xid, 0x4000_0000, CB_COMPOUND));
            let body = v4::Call::<Back>::read(from.remaining()).unwrap();
            assert_eq!(body.minor, 2, "that of the session");
            let operations: Vec<_> = body.operations.map(|one| one.unwrap().value).collect();
            assert_eq!(operations.len(), count);
            assert!(matches!(operations[0], Arguments::Sequence(Sequence { sequence: 5, slot: 2, .. })));
        }
    }

    #[test]
    fn an_answer_tells_the_outcome_once() {
        let back = BackChannel::default();
        let refused = |status| Results::Sequence(v4::Outcome::Err(status, ()));
        let recalled = |outcome| Results::Recall(outcome);
        let cases: [(Vec<u8>, Outcome); 5] = [
            (results(&[sequence()]), Outcome::Done(Ok(()))),
            (results(&[sequence(), recalled(v4::Outcome::Ok(()))]), Outcome::Done(Ok(()))),
            (
                results(&[sequence(), recalled(v4::Outcome::Err(Status::BadHandle, ()))]),
                Outcome::Done(Err(Status::BadHandle)),
            ),
            (results(&[refused(Status::Delay)]), Outcome::Refused(Status::Delay)),
            (vec![1, 2, 3], Outcome::Lost),
        ];
        for (bytes, wanted) in cases {
            let (_, xid) = back.call(&call(CallbackOperation::Probe)).unwrap();
            let reply = Reply::accepted(xid, AcceptStat::Success(()));
            let sent = Sent { session: SessionId([3; 16]), slot: 2, sequence: 5 };
            assert_eq!(back.answered(&reply, &bytes), Some((sent, wanted)));
            assert_eq!(back.answered(&reply, &bytes), None, "it was answered");
        }
    }

    /// Else a call that was sent again elsewhere would be given up there.
    #[test]
    fn a_connection_that_is_over_gives_no_call_up() {
        let back = BackChannel::default();
        let (_, xid) = back.call(&call(CallbackOperation::Probe)).unwrap();
        back.end();
        assert_eq!(back.give_up(xid), None);
    }

    #[test]
    fn a_client_that_answers_nothing_is_called_no_more() {
        let back = BackChannel::default();
        for _ in 0..MOST {
            assert!(back.call(&call(CallbackOperation::Probe)).is_some());
        }
        assert_eq!(back.call(&call(CallbackOperation::Probe)), None);
    }

    #[test]
    fn a_client_without_the_service_cannot_be_called() {
        let back = BackChannel::default();
        let (_, xid) = back.call(&call(CallbackOperation::Probe)).unwrap();
        let reply = Reply::accepted(xid, AcceptStat::ProgUnavail(()));
        assert!(matches!(back.answered(&reply, &[]), Some((_, Outcome::Lost))));
        let (_, xid) = back.call(&call(CallbackOperation::Probe)).unwrap();
        assert!(back.give_up(xid).is_some() && back.give_up(xid).is_none());
    }
}
