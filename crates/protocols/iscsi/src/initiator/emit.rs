//! Sends the session's PDUs: into a byte stream ([`Stream`], TCP), or one by one to a datamover
//! with messages ([`Messages`], iSER). [`super::session`] decides which PDUs are sent, and when.

use arrayvec::ArrayVec;
use invariant::{broken, invariant};

use crate::digest::DIGEST_LEN;
use crate::frame::{self, Digests, MAX_HEADER_LEN};
use crate::keys::Params;
use crate::pdu::{BHS_LEN, Bhs, DataOut, RESERVED_TAG, ScsiCommand, ahs};
use crate::target::{Payload, Sink};

use super::ids::TaskKey;
use super::tasks::{Kind, Scsi, Task};

/// The buffers that the target may access while a SCSI command runs. A datamover needs them to send
/// the command (RFC 5047 §7.3.1, Send_Control).
#[derive(Debug)]
pub struct Buffers<'a, P, T> {
    /// The task, as [`super::Event::Done`] will name it.
    pub key: TaskKey,
    /// The owner's token of the task: the destination of a read's data.
    pub token: &'a mut T,
    /// The maximum number of bytes that the target may write; 0 if the command reads nothing.
    pub read_len: u32,
    /// All data that the command writes.
    pub write: Option<&'a P>,
    /// The number of its bytes sent unsolicited, including those in this PDU. The target fetches
    /// the rest.
    pub unsolicited: u32,
}

/// Receives the PDUs of a connection whose datamover has messages (RFC 5047 §7.3.1): each call is
/// one message.
pub trait Datamover<P, T> {
    /// Sends a PDU. Its lengths are set; there are no digests (RFC 7145 §7.2.1) and no padding.
    fn send_control(&mut self, header: &Bhs, ahs: &[u8], data: Option<P>);

    /// Sends a SCSI command. Its buffers must be accessible to the target first.
    fn send_command(&mut self, header: &Bhs, ahs: &[u8], data: Option<P>, buffers: Buffers<'_, P, T>);
}

/// Receives whole PDUs of one connection.
pub(super) trait Emit<P, T> {
    fn pdu(&mut self, header: &mut Bhs, ahs: &[u8], data: Option<P>);

    /// As [`Emit::pdu`], for a SCSI command.
    fn command(&mut self, header: &mut Bhs, ahs: &[u8], data: Option<P>, buffers: Buffers<'_, P, T>);

    /// Bytes written so far.
    fn written(&self) -> usize;
}

/// Writes PDUs into a byte stream.
pub(super) struct Stream<'a, S> {
    pub digests: Digests,
    pub exp_stat_sn: u32,
    /// Bytes written so far.
    pub written: usize,
    pub sink: &'a mut S,
}

impl<P: Payload, T, S: Sink<P>> Emit<P, T> for Stream<'_, S> {
    fn pdu(&mut self, header: &mut Bhs, ahs: &[u8], data: Option<P>) {
        put_exp_stat_sn(header, self.exp_stat_sn);
        let data_len = data.as_ref().map_or(0, Payload::len);
        // Most PDUs have no AHS, and zeroing a buffer for the longest header takes longer than
        // writing the header.
        let mut short = [0; BHS_LEN + DIGEST_LEN];
        let mut long;
        let bytes: &mut [u8] = if ahs.is_empty() {
            &mut short
        } else {
            long = [0; MAX_HEADER_LEN];
            &mut long
        };
        let Some(len) = frame::emit_header(header, ahs, data_len, self.digests.header, bytes) else {
            broken!("a header of more than {} bytes", bytes.len());
            return;
        };
        self.sink.bytes(&bytes[..len]);
        self.written += len;
        let Some(data) = data.filter(|_| data_len > 0) else { return };
        let mut trailer = frame::trailer(data_len, None);
        if self.digests.data {
            let (data, digest) = data.with_digest();
            self.sink.payload(data);
            // At most three bytes of padding precede it.
            if trailer.try_extend_from_slice(&digest).is_err() {
                broken!("no room for a digest behind {} bytes", trailer.len());
            }
        } else {
            self.sink.payload(data);
        }
        self.sink.bytes(&trailer);
        self.written += data_len + trailer.len();
    }

    #[inline]
    fn command(&mut self, header: &mut Bhs, ahs: &[u8], data: Option<P>, _: Buffers<'_, P, T>) {
        <Self as Emit<P, T>>::pdu(self, header, ahs, data);
    }

    fn written(&self) -> usize {
        self.written
    }
}

/// Passes PDUs to a datamover.
pub(super) struct Messages<'a, M> {
    pub exp_stat_sn: u32,
    /// Bytes written so far.
    pub written: usize,
    pub mover: &'a mut M,
}

impl<M> Messages<'_, M> {
    fn finish<P: Payload>(&mut self, header: &mut Bhs, ahs: &[u8], data: Option<&P>) {
        put_exp_stat_sn(header, self.exp_stat_sn);
        let data_len = data.map_or(0, Payload::len);
        header.set_total_ahs_len(ahs.len());
        header.set_data_segment_len(data_len);
        self.written += BHS_LEN + ahs.len() + data_len;
    }
}

impl<P: Payload, T, M: Datamover<P, T>> Emit<P, T> for Messages<'_, M> {
    fn pdu(&mut self, header: &mut Bhs, ahs: &[u8], data: Option<P>) {
        self.finish(header, ahs, data.as_ref());
        self.mover.send_control(header, ahs, data);
    }

    fn command(&mut self, header: &mut Bhs, ahs: &[u8], data: Option<P>, buffers: Buffers<'_, P, T>) {
        self.finish(header, ahs, data.as_ref());
        self.mover.send_command(header, ahs, data, buffers);
    }

    fn written(&self) -> usize {
        self.written
    }
}

/// Sets ExpStatSN: bytes 28 to 31 of every initiator PDU (RFC 7143 §11.3 and following).
fn put_exp_stat_sn(header: &mut Bhs, exp_stat_sn: u32) {
    header.specific_20[8..12].copy_from_slice(&exp_stat_sn.to_be_bytes());
}

/// The limits of a connection's target for unsolicited data.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// The maximum data segment, bytes.
    pub segment: u32,
    /// The maximum length of a write with unsolicited data, bytes: the target fetches all data of
    /// longer writes.
    pub unsolicited: u32,
}

/// Emits the command PDU with immediate data, and the unsolicited Data-Out after it (RFC 7143
/// §4.2.5.2, §11.3.4).
pub(super) fn command<P: Payload, T>(
    out: &mut impl Emit<P, T>,
    key: TaskKey,
    task: &mut Task<P, T>,
    params: &Params,
    room: Room,
) {
    let cmd_sn = task.cmd_sn;
    let (Kind::Scsi(scsi), Some(token)) = (&mut task.kind, &mut task.token) else {
        broken!("a command's PDU of another task");
        return;
    };
    let mut pdu = ScsiCommand::new(key.0, scsi.lun, scsi.attribute, &scsi.cdb);
    pdu.cmd_sn.set(cmd_sn);
    pdu.set_read(scsi.read_len.is_some());
    pdu.set_write(scsi.write.is_some());
    pdu.edtl.set(if scsi.write.is_some() { scsi.write_len } else { scsi.read_len.unwrap_or(0) });
    let mut ahs = ArrayVec::<u8, { ahs::MAX_LEN }>::new();
    if let Some(rest) = &scsi.cdb_rest {
        // Its length was checked on submission.
        let fits = ahs::Ahs::ExtendedCdb(rest).emit(&mut ahs);
        invariant!(fits, "a CDB of {} bytes in a command", 16 + rest.len());
    }
    if let (Some(read_len), Some(_)) = (scsi.read_len, &scsi.write) {
        let fits = ahs::Ahs::BidiReadLength(read_len).emit(&mut ahs);
        invariant!(fits, "no room for a read's length behind {} bytes", ahs.len());
    }
    let wanted = if scsi.write_len <= room.unsolicited { scsi.write_len } else { 0 };
    let burst = wanted.min(params.first_burst_length);
    let immediate = if params.immediate_data { burst.min(room.segment) } else { 0 };
    let unsolicited = if params.initial_r2t { immediate } else { burst };
    pdu.set_final(unsolicited == immediate);
    scsi.solicited = scsi.solicited.max(unsolicited);
    let data = part(scsi, 0, immediate);
    let buffers =
        Buffers { key, token, read_len: scsi.read_len.unwrap_or(0), write: scsi.write.as_ref(), unsolicited };
    out.command(&mut pdu.into(), &ahs, data, buffers);
    if unsolicited > immediate {
        data_out(out, key, scsi, RESERVED_TAG, immediate, unsolicited - immediate, room);
    }
}

/// Emits a sequence of Data-Out PDUs (RFC 7143 §11.7).
pub(super) fn data_out<P: Payload, T>(
    out: &mut impl Emit<P, T>,
    key: TaskKey,
    scsi: &Scsi<P>,
    ttt: u32,
    offset: u32,
    len: u32,
    room: Room,
) {
    let (mut at, end, mut data_sn) = (offset, offset + len, 0);
    while at < end {
        let n = (end - at).min(room.segment);
        let mut pdu = DataOut::new(key.0, ttt, scsi.lun, data_sn, at);
        pdu.set_final(at + n == end);
        out.pdu(&mut pdu.into(), &[], part(scsi, at, n));
        at += n;
        data_sn += 1;
    }
}

/// Bytes `at..at + len` of a command's write data.
fn part<P: Payload>(scsi: &Scsi<P>, at: u32, len: u32) -> Option<P> {
    if len == 0 {
        return None;
    }
    let mut data = scsi.write.clone()?;
    if at > 0 {
        data.split_to(at as usize);
    }
    Some(if (len as usize) < data.len() { data.split_to(len as usize) } else { data })
}
