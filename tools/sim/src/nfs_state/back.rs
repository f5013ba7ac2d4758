//! A client's answers to the server's callbacks (RFC 8881 §20).

use nfs::v4::callback::{self, Back};
use nfs::v4::{self, Outcome, Stateid};
use rpc::message::{AcceptStat, Call, Reply};
use rpc::xdr::{Opaque, Reader, Writer};

/// The answer to a CB_COMPOUND. The delegations that it recalls go to `recall`.
pub(super) fn answer(record: &[u8], mut recall: impl FnMut(Stateid)) -> Option<Vec<u8>> {
    let mut from = Reader::new(record);
    let call = Call::read(&mut from).ok()?;
    let compound = v4::Call::<Back>::read(from.remaining()).ok()?;
    let mut bytes = Vec::new();
    let mut to = Writer::new(&mut bytes);
    Reply::accepted(call.xid, AcceptStat::Success(())).write(&mut to);
    let mut reply = v4::ReplyWriter::<Back>::new(&mut to, Opaque::EMPTY);
    for operation in compound.operations {
        reply.push(&match operation.ok()?.value {
            callback::Arguments::Sequence(of) => {
                callback::Results::Sequence(Outcome::Ok(callback::SequenceOk {
                    session: of.session,
                    sequence: of.sequence,
                    slot: of.slot,
                    highest_slot: super::client::SLOTS - 1,
                    target_highest_slot: super::client::SLOTS - 1,
                }))
            }
            callback::Arguments::Recall(of) => {
                recall(of.stateid);
                callback::Results::Recall(Outcome::Ok(()))
            }
            callback::Arguments::NotifyLock(_) => callback::Results::NotifyLock(Outcome::Ok(())),
            _ => return None,
        });
    }
    Some(bytes)
}
