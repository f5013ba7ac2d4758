//! NFS versions 4.1 and 4.2: COMPOUND, one operation after the other (RFC 8881 §2.10, §16.2).

mod attributes;
mod compound;
mod convert;
mod files;
mod locks;
mod names;
mod opens;
mod ranges;
mod sessions;
mod xattrs;

use nfs::v4::state::{Current, Running, Sequenced};
use nfs::v4::{
    self, Arguments, Asked, Fore, Handle, Item, Items, Operation, Outcome, Refused as Unread, Results,
    Sequence, SequenceOk, Status,
};
use rpc::xdr::Writer;
use runtime::{Buf, Chain};

use crate::call::{Accepted, Refused};
use crate::checksum;
use crate::client::Client;
use crate::pseudo::ROOT;
use crate::records::Record;
use crate::reply::{Aparts, RESULTS, Reply};
use compound::{Compound, Done, Failed};

/// Bytes that the result of an operation that changes something takes at most.
const LONGEST_RESULT: usize = 128;

/// Executes a call.
pub(crate) async fn call(client: &Client, call: &Accepted, record: Record) -> Result<Option<Reply>, Refused> {
    match call.procedure {
        0 => Ok(Some(Reply::with(call.xid, |_| {}))),
        v4::COMPOUND => compound(client, call, record).await.map(Some),
        _ => Err(Refused::NoProcedure),
    }
}

/// A COMPOUND as it was received. The data of the first WRITE may lie apart.
struct Received {
    head: Buf,
    data: Option<Chain>,
    /// The bytes after the data.
    rest: Buf,
}

impl Received {
    /// Cuts a record whose arguments begin at `body`.
    fn new(record: Record, body: usize) -> Self {
        let whole = |record: Record| Self { head: record.flat(), data: None, rest: Buf::default() };
        if record.rest.is_empty() {
            return whole(record);
        }
        let head = record.first.clone();
        let (len, first) = (record.len(), first_write(head.as_slice().and_then(|it| it.get(body..))));
        let Some((at, length)) = first.map(|(at, length)| (body + at, length as usize)) else {
            return whole(record);
        };
        let padded = length.next_multiple_of(4);
        if at + padded > len {
            return whole(record);
        }
        let mut tail = record.tail(at);
        let mut data = tail.split_to(padded);
        data.truncate(length);
        Self { head, data: Some(data), rest: tail.to_vec().into() }
    }
}

/// Offset and length of the data of a call's first WRITE, bytes.
fn first_write(body: Option<&[u8]>) -> Option<(usize, u32)> {
    let mut operations = v4::Call::<Fore>::read(body?).ok()?.operations;
    loop {
        let length = operations.head()?.ok()?.payload();
        if length > 0 {
            return Some((operations.position(), length));
        }
        operations.payload(0).ok()?;
    }
}

/// Result of a COMPOUND's SEQUENCE.
enum Begun {
    Run(Running),
    /// It was executed before, with this reply.
    Again(Vec<u8>),
    /// It was executed before, and only this is known.
    Uncached(SequenceOk),
}

/// SEQUENCE. Checks the limits of the request before it takes the slot.
fn begin(
    c: &Compound<'_>,
    what: &Sequence,
    len: usize,
    operations: u32,
    body: &[u8],
) -> Result<Begun, Status> {
    let checksum = checksum::of(body, len);
    c.client.known.set(true);
    c.client.shared.state.with(|state, now| {
        let limits = state.limits_of(what.session)?;
        if len > limits.max_request as usize {
            return Err(Status::ReqTooBig);
        }
        if operations > limits.max_operations {
            return Err(Status::TooManyOps);
        }
        Ok(match state.sequence(now, c.client.connection, what, checksum)? {
            Sequenced::Run(running) => Begun::Run(running),
            Sequenced::Replay(reply) => Begun::Again(reply.to_vec()),
            Sequenced::Uncached(answer) => Begun::Uncached(answer),
        })
    })
}

async fn compound(client: &Client, accepted: &Accepted, record: Record) -> Result<Reply, Refused> {
    let len = record.len();
    let received = Received::new(record, accepted.body);
    let body = received.head.as_slice().and_then(|it| it.get(accepted.body..)).unwrap_or_default();
    let asked = v4::Call::<Fore>::read(body)?;
    let mut c = Compound {
        client,
        model: client.model(),
        identity: &accepted.identity,
        minor: asked.minor,
        running: None,
        current: None,
        saved: None,
        stateids: Current::default(),
        apart: Aparts::new(),
        reducible: 0,
        cache: false,
        limit: usize::MAX,
    };
    let mut out = Reply::begun(accepted.xid);
    let mut to = Writer::new(&mut out);
    let mut reply = compound::Results::new(&mut to, asked.tag);
    let mut operations = asked.operations;
    let count = operations.left();
    if !(1..=2).contains(&asked.minor) {
        reply.fail(Status::MinorVersMismatch);
        return Ok(Reply::again(out));
    }
    let mut too_big = Status::RepTooBig;
    let mut payloads =
        Payloads { base: received.head.slice(accepted.body.min(received.head.len())..), data: received.data };
    let mut first = true;
    let counts = &client.tallies.operations;
    loop {
        let arguments = match operations.head() {
            None => break,
            Some(Err(unread)) => {
                // An unsupported operation outside a session gets OP_NOT_IN_SESSION instead.
                reply.refuse(match first && unread.status == Status::NotSupp {
                    true => Unread { status: Status::OpNotInSession, ..unread },
                    false => unread,
                });
                counts.v4(unread.operation, reply.status());
                break;
            }
            Some(Ok(arguments)) => arguments,
        };
        let operation = arguments.operation();
        client.courses.begins(count.saturating_sub(operations.left()));
        let Some(data) = payloads.of(&arguments, &mut operations, &received.rest) else {
            reply.push(&Results::failed(operation, Status::BadXdr));
            counts.v4(operation.code(), reply.status());
            break;
        };
        let begin_at = reply.position();
        let done = match (&arguments, std::mem::take(&mut first)) {
            (Arguments::Sequence(what), true) => match begin(&c, what, len, count, body) {
                Err(status) => Err(status.into()),
                Ok(Begun::Again(kept)) => {
                    // The first reply may wait for the same records.
                    client.shared.state.ledger.settle().await;
                    return Ok(Reply::with(accepted.xid, |to| to.raw(&kept)));
                }
                Ok(Begun::Uncached(answer)) => {
                    reply.push(&Results::Sequence(Outcome::Ok(answer)));
                    match operations.head() {
                        Some(Ok(next)) => {
                            reply.push(&Results::failed(next.operation(), Status::RetryUncachedRep))
                        }
                        Some(Err(unread)) => reply.refuse(unread),
                        None => {}
                    }
                    return Ok(Reply::again(out));
                }
                Ok(Begun::Run(running)) => {
                    let (answer, limits) = (running.answer(), running.limits());
                    let most = if what.cache && limits.max_response_cached < limits.max_response {
                        too_big = Status::RepTooBigToCache;
                        limits.max_response_cached
                    } else {
                        limits.max_response
                    };
                    c.cache = what.cache;
                    c.limit = most as usize + rpc::record::MARK_LEN;
                    c.running = Some(running);
                    reply.push(&Results::Sequence(Outcome::Ok(answer)));
                    Ok(())
                }
            },
            (_, true) if !operation.is_sessionless() => Err(Status::OpNotInSession.into()),
            (_, true) if count > 1 => Err(Status::NotOnlyOp.into()),
            (Arguments::Sequence(_), false) => Err(Status::SequencePos.into()),
            (Arguments::BindConnToSession(_), false) => Err(Status::NotOnlyOp.into()),
            (Arguments::DestroySession(_), false) if operations.left() > 0 => Err(Status::NotOnlyOp.into()),
            _ if operation.changes() && c.left(begin_at + LONGEST_RESULT).is_none() => Err(too_big.into()),
            _ => match ready(&c, operation) {
                Ok(()) => execute(&mut c, arguments, data, &mut reply).await,
                Err(status) => Err(status.into()),
            },
        };
        if let Err(Failed::With(status)) = done {
            reply.push(&Results::failed(operation, status));
        }
        // Operations that change something were checked before: their results fit.
        let too_long = c.left(reply.position()).is_none() && operation != Operation::Sequence;
        if too_long {
            c.apart.retain(|apart| apart.at <= begin_at);
            reply.pop();
            reply.push(&Results::failed(operation, too_big));
        }
        counts.v4(operation.code(), reply.status());
        if too_long || done.is_err() {
            break;
        }
        c.reducible += usize::from(nfs::ddp::v4_result(operation));
    }
    Ok(finish(c, out).await)
}

/// Ends a COMPOUND: its slot is free, and the changes that it promises are durable.
async fn finish(c: Compound<'_>, out: Vec<u8>) -> Reply {
    let client = c.client;
    let state = &client.shared.state;
    if let Some(running) = c.running {
        let mut whole = Vec::new();
        let kept = if c.cache && c.apart.iter().any(|apart| !apart.data().is_empty()) {
            // Short enough to be kept.
            let mut from = RESULTS;
            for apart in &c.apart {
                whole.extend_from_slice(&out[std::mem::replace(&mut from, apart.at)..apart.at]);
                apart.data().iter().for_each(|piece| whole.extend_from_slice(&piece.to_vec()));
                whole.resize(whole.len().next_multiple_of(4), 0);
            }
            whole.extend_from_slice(&out[from..]);
            &whole
        } else {
            &out[RESULTS..]
        };
        state.with(|state, now| state.finish(now, running, kept));
    }
    // It may have begun when its connection was over: nothing stays bound to that.
    if client.over.get() {
        state.with(|state, _| state.closed(client.connection));
    }
    state.ledger.settle().await;
    Reply::around(out, c.apart)
}

/// Takes the data of the operations.
struct Payloads {
    /// The buffer from which the operations are read.
    base: Buf,
    data: Option<Chain>,
}

impl Payloads {
    /// The data of an operation. `rest` is what follows data that lie apart. `None` if they are cut
    /// short.
    fn of<'a>(
        &mut self,
        arguments: &Arguments<'_>,
        operations: &mut Items<'a, Asked<Fore>>,
        rest: &'a Buf,
    ) -> Option<Chain> {
        let length = arguments.payload_length();
        if length > 0
            && let Some(data) = self.data.take()
        {
            self.base = rest.clone();
            operations.resume(rest.as_slice().unwrap_or_default());
            return Some(data);
        }
        let range = operations.payload(length).ok()?;
        let mut data = Chain::new();
        if length > 0 {
            data.push(self.base.slice(range));
        }
        Some(data)
    }
}

/// Whether there are the files that an operation needs.
fn ready(c: &Compound<'_>, operation: Operation) -> Result<(), Status> {
    if operation.needs_current() && c.current.is_none() {
        return Err(Status::NoFileHandle);
    }
    if operation.needs_saved() && c.saved.is_none() {
        return Err(Status::NoFileHandle);
    }
    Ok(())
}

async fn execute(
    c: &mut Compound<'_>,
    arguments: Arguments<'_>,
    data: Chain,
    to: &mut compound::Results<'_, '_>,
) -> Done {
    match arguments {
        Arguments::ExchangeId(what) => sessions::exchange_id(c, &what, to),
        Arguments::CreateSession(what) => sessions::create_session(c, what, to),
        Arguments::BindConnToSession(what) => sessions::bind(c, what, to),
        Arguments::BackchannelCtl(what) => sessions::set_backchannel(c, what, to),
        Arguments::DestroySession(session) => sessions::destroy_session(c, session, to),
        Arguments::DestroyClientId(client) => sessions::destroy_client(c, client, to),
        Arguments::ReclaimComplete(one) => sessions::reclaim_complete(c, one, to),
        Arguments::TestStateid(list) => sessions::test_stateids(c, list, to),
        Arguments::FreeStateid(stateid) => sessions::free_stateid(c, stateid, to),
        Arguments::PutRootFh(()) => {
            let root = c.at(ROOT)?;
            c.go_to(root);
            to.push(&Results::PutRootFh(Outcome::Ok(())));
            Ok(())
        }
        Arguments::PutPubFh(()) => {
            let root = c.at(ROOT)?;
            c.go_to(root);
            to.push(&Results::PutPubFh(Outcome::Ok(())));
            Ok(())
        }
        Arguments::PutFh(handle) => {
            let place = c.of_handle(handle.bytes())?;
            c.go_to(place);
            to.push(&Results::PutFh(Outcome::Ok(())));
            Ok(())
        }
        Arguments::GetFh(()) => {
            let handle = c.handle(c.current()?);
            to.push(&Results::GetFh(Outcome::Ok(Handle::new(&handle).map_err(|_| Status::ServerFault)?)));
            Ok(())
        }
        Arguments::SaveFh(()) => {
            c.saved = c.current.clone();
            c.stateids.save();
            to.push(&Results::SaveFh(Outcome::Ok(())));
            Ok(())
        }
        Arguments::RestoreFh(()) => {
            c.current = c.saved.clone();
            c.stateids.restore();
            to.push(&Results::RestoreFh(Outcome::Ok(())));
            Ok(())
        }
        Arguments::Lookup(name) => names::lookup(c, name, to).await,
        Arguments::LookupP(()) => names::lookup_parent(c, to).await,
        Arguments::SecInfo(name) => names::security(c, name, to).await,
        Arguments::SecInfoNoName(of) => names::security_here(c, of, to).await,
        Arguments::Create(what) => names::create(c, &what, to).await,
        Arguments::Remove(name) => names::remove(c, name, to).await,
        Arguments::Rename(what) => names::rename(c, &what, to).await,
        Arguments::Link(name) => names::link(c, name, to).await,
        Arguments::ReadDir(what) => names::read_dir(c, &what, to).await,
        Arguments::GetAttr(requested) => files::get_attributes(c, requested, to).await,
        Arguments::SetAttr(what) => files::set_attributes(c, &what, to).await,
        Arguments::Verify(given) => match files::are(c, &given).await? {
            true => {
                to.push(&Results::Verify(Outcome::Ok(())));
                Ok(())
            }
            false => Err(Status::NotSame.into()),
        },
        Arguments::NVerify(given) => match files::are(c, &given).await? {
            true => Err(Status::Same.into()),
            false => {
                to.push(&Results::NVerify(Outcome::Ok(())));
                Ok(())
            }
        },
        Arguments::Access(asked) => files::access(c, asked, to).await,
        Arguments::ReadLink(()) => files::read_link(c, to).await,
        Arguments::Read(what) => files::read(c, what, to).await,
        Arguments::Write(what) => files::write(c, what, data, to).await,
        Arguments::Commit(what) => files::commit(c, what, to).await,
        Arguments::Open(what) => opens::open(c, &what, to).await,
        Arguments::Close(what) => opens::close(c, what, to),
        Arguments::DelegReturn(stateid) => opens::return_delegation(c, stateid, to),
        Arguments::OpenDowngrade(what) => opens::downgrade(c, what, to),
        Arguments::Lock(what) => locks::lock(c, what, to).await,
        Arguments::LockT(what) => locks::test(c, what, to).await,
        Arguments::LockU(what) => locks::unlock(c, what, to),
        Arguments::Allocate(what) => ranges::allocate(c, what, to).await,
        Arguments::Deallocate(what) => ranges::deallocate(c, what, to).await,
        Arguments::Seek(what) => ranges::seek(c, what, to).await,
        Arguments::Copy(what) => ranges::copy(c, &what, to).await,
        Arguments::Clone(what) => ranges::clone(c, what, to).await,
        Arguments::GetXattr(name) => xattrs::get(c, name, to).await,
        Arguments::SetXattr(what) => xattrs::set(c, &what, to).await,
        Arguments::ListXattrs(what) => xattrs::list(c, what, to).await,
        Arguments::RemoveXattr(name) => xattrs::remove(c, name, to).await,
        // Handled where the COMPOUND begins.
        Arguments::Sequence(_) => Err(Status::SequencePos.into()),
        Arguments::DelegPurge(_)
        | Arguments::OpenAttr(_)
        | Arguments::CopyNotify(_)
        | Arguments::IoAdvise(_)
        | Arguments::OffloadCancel(_)
        | Arguments::OffloadStatus(_) => Err(Status::NotSupp.into()),
    }
}
