//! [`Carried`]: the state that a server hands to its successor, so that clients notice only a
//! pause. It consists of the state of NFSv4, and of the replies that version 3 may be asked for
//! again.
//!
//! In XDR: the format, the time of the state's clock, the lease, the state, the replies.

use std::net::IpAddr;
use std::time::Duration;

use nfs::v4::state::ServerState;
use rpc::xdr::{Malformed, Reader, Writer, Xdr};

use crate::handle::Bytes;
use crate::replies::Key;
use crate::state::{Machine, limits};

/// The first word: the format.
const FORMAT: u32 = 2;
/// A reply that is kept is shorter, bytes.
const LONGEST_REPLY: usize = 64 << 10;

/// State that a predecessor handed over.
pub(crate) struct Carried {
    /// The state, and the time of its clock.
    pub state: (Machine, Duration),
    /// Replies of version 3, the oldest first.
    pub replies: Vec<(Key, Vec<u8>)>,
}

/// Encodes the state for a successor.
pub(crate) fn encoded(machine: &Machine, now: Duration, replies: &[(Key, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let to = &mut Writer::new(&mut bytes);
    to.u32(FORMAT);
    to.u64(now.as_nanos() as u64);
    to.u64(machine.lease().as_nanos() as u64);
    let state = machine.save(|file| file.to_vec());
    to.u32(state.len() as u32);
    to.fixed(&state);
    to.u32(replies.len() as u32);
    for (key, reply) in replies {
        key.client.write(to);
        to.u32(key.xid);
        to.u32(key.procedure);
        to.u64(key.checksum);
        to.u32(reply.len() as u32);
        to.fixed(reply);
    }
    bytes
}

impl Carried {
    /// Decodes the bytes of [`encoded`]. The lease is not shorter than the predecessor's, by which
    /// its clients renew.
    ///
    /// # Errors
    /// [`Malformed`]: it is of another format.
    pub(crate) fn read(bytes: &[u8], lease: Duration) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let format = from.u32()?;
        if format != FORMAT {
            return Err(Malformed::Unknown { what: "format of what is handed over", value: format });
        }
        let now = Duration::from_nanos(from.u64()?);
        let lease = lease.max(Duration::from_nanos(from.u64()?));
        let state = from.opaque(bytes.len())?;
        let mut state = ServerState::load(state, limits(lease), |file| Bytes::try_from(file).ok())?;
        state.disconnected();
        let mut replies = Vec::new();
        for _ in 0..from.u32()? {
            let key = Key {
                client: IpAddr::read(&mut from)?,
                xid: from.u32()?,
                procedure: from.u32()?,
                checksum: from.u64()?,
            };
            replies.push((key, from.opaque(LONGEST_REPLY)?.to_vec()));
        }
        from.end()?;
        Ok(Self { state: (state, now), replies })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_read_and_nothing_less_is() {
        let (lease, shorter) = (Duration::from_secs(60), Duration::from_secs(20));
        let machine = Machine::new(Duration::ZERO, 1, 2, limits(lease), Vec::new());
        let key = Key::of([192, 0, 2, 1].into(), 7, 9, b"a call", 6);
        let replies = [(key, b"its reply".to_vec())];
        let bytes = encoded(&machine, Duration::from_secs(5), &replies);
        let read = Carried::read(&bytes, shorter).unwrap();
        assert_eq!(read.state, (machine, Duration::from_secs(5)));
        assert_eq!(read.replies, replies);
        let read = Carried::read(&bytes, 2 * lease).unwrap();
        assert_eq!(read.state.0.lease(), 2 * lease, "a longer lease counts");
        for len in 0..bytes.len() {
            assert!(Carried::read(&bytes[..len], lease).is_err(), "{len} bytes");
        }
        let other = [&(FORMAT + 1).to_be_bytes(), &bytes[4..]].concat();
        assert!(Carried::read(&other, lease).is_err(), "another format");
    }
}
