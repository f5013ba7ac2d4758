//! From a record to its reply: the call's header, its caller, and its program.

use std::rc::Rc;

use nfs::{mount, v3, v4};
use rpc::bind;
use rpc::message::{AcceptStat, BadCall, Call, Message, Reply as Header, Versions};
use rpc::xdr::{Malformed, Reader};
use runtime::Chain;

use crate::call::{Accepted, Refused};
use crate::client::Client;
use crate::end::End;
use crate::records::Record;
use crate::replies::{Key, Known};
use crate::reply::Reply;
use crate::{mount as mounting, portmap, v3 as version3, v4 as version4};

/// Executes a call. `None` if it gets no reply.
///
/// # Errors
/// The message is no call: the connection ends.
pub(crate) async fn call(client: Rc<Client>, mut record: Record) -> Result<Option<Reply>, End> {
    client.courses.begins(0);
    // Given back when the call has ended.
    let _held = record.held.take();
    let first = record.first.as_slice().ok_or(End::NoCall)?;
    let mut from = Reader::new(first);
    let call = match Message::read(&mut from) {
        Ok(Message::Call(call)) => call,
        Ok(Message::Reply(reply)) => {
            answered(&client, &reply, from.remaining());
            return Ok(None);
        }
        Err(BadCall::Malformed(_)) => return Err(End::NoCall),
        Err(denied) => return Ok(denied.reply().map(|reply| Reply::bare(&reply))),
    };
    let Call { xid, program, version, procedure, credential, .. } = call;
    let refused = |stat| Ok(Some(Reply::refused(xid, stat)));
    let served = match program {
        v3::PROGRAM => v3::VERSION..=v4::VERSION,
        mount::PROGRAM => mount::VERSION..=mount::VERSION,
        bind::PROGRAM => bind::v2::VERSION..=bind::v4::VERSION,
        _ => return refused(AcceptStat::ProgUnavail(())),
    };
    if !served.contains(&version) {
        let (low, high) = served.into_inner();
        return refused(AcceptStat::ProgMismatch(Versions { low, high }));
    }
    let identity = match client.identity(&credential).await {
        Ok(identity) => identity,
        Err(stat) => return Ok(Some(Reply::bare(&Header::auth_error(xid, stat)))),
    };
    let accepted = Accepted { xid, procedure, body: from.position(), identity };
    let reply = match program {
        v3::PROGRAM if version == v4::VERSION => version4::call(&client, &accepted, record).await,
        v3::PROGRAM => nfs3(&client, accepted, record).await,
        mount::PROGRAM => mounting::call(&client, &accepted, &record.flat()).await,
        _ => portmap::call(&client, version, &accepted, &record.flat()),
    };
    Ok(match reply {
        Ok(reply) => reply,
        Err(Refused::Garbage) => Some(Reply::refused(xid, AcceptStat::GarbageArgs(()))),
        Err(Refused::NoProcedure) => Some(Reply::refused(xid, AcceptStat::ProcUnavail(()))),
    })
}

/// Handles a client's reply to a call of the server. A reply to no outstanding call is ignored.
fn answered(client: &Client, reply: &Header<'_>, results: &[u8]) {
    if let Some((sent, outcome)) = client.back.answered(reply, results) {
        let state = &client.shared.state;
        state.with(|state, _| state.called(sent.session, sent.slot, sent.sequence, outcome));
    }
}

/// A call of NFSv3, once.
async fn nfs3(client: &Client, call: Accepted, record: Record) -> Result<Option<Reply>, Refused> {
    let procedure = v3::Procedure::from_code(call.procedure).ok_or(Refused::NoProcedure)?;
    // Of a WRITE, only a part of it lies in one piece, and not the same part each time.
    let len = record.len();
    let (first, data) = match procedure {
        // The data of a WRITE stays where it was received.
        v3::Procedure::Write => {
            let first = record.first.clone();
            let mut from = Reader::new(first.as_slice().and_then(|f| f.get(call.body..)).unwrap_or_default());
            let length = v3::Arguments::read(procedure, &mut from)?.payload() as usize;
            let at = call.body + from.position();
            if record.len() != at + length.next_multiple_of(4) {
                return Err(Malformed::Truncated { at: record.len() }.into());
            }
            let mut data = record.tail(at);
            data.truncate(length);
            (first, data)
        }
        _ => (record.flat(), Chain::new()),
    };
    let bytes = first.as_slice().unwrap_or_default();
    let mut from = Reader::new(bytes.get(call.body..).unwrap_or_default());
    let arguments = v3::Arguments::read(procedure, &mut from)?;
    if procedure != v3::Procedure::Write {
        from.end()?;
    }
    let once = version3::once(procedure);
    if once == version3::Once::Any {
        return Ok(Some(counted(client, procedure, version3::execute(client, &call, arguments, data).await)));
    }
    let replies = &client.shared.replies;
    let key = Key::of(client.peer.ip(), call.xid, call.procedure, bytes, len);
    match replies.begin(key) {
        Known::Done(reply) => return Ok(Some(Reply::again(reply))),
        // Its reply goes to the connection that it came over first.
        Known::Running => return Ok(None),
        Known::New => {}
    }
    let reply = counted(client, procedure, version3::execute(client, &call, arguments, data).await);
    let kept = (once == version3::Once::Ever).then(|| reply.bytes());
    replies.end(key, kept, client.limits().replies);
    Ok(Some(reply))
}

/// Counts a call of NFSv3 that was executed.
fn counted(client: &Client, procedure: v3::Procedure, reply: Reply) -> Reply {
    client.tallies.operations.v3(procedure, reply.status());
    reply
}
