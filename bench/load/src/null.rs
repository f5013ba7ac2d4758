//! A target that stores nothing: it answers READ with bytes that it never fetched and discards the
//! data of WRITE.
//!
//! It is the floor (the cost of iSCSI over TCP here when the target does nothing) and the check of
//! this tool's own cost. It is no target for anything else: one unit of 1 GiB, no authentication,
//! no digests, no error recovery.

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::outbox::{Outbox, SLICES};
use crate::wire::{self, BHS, Bhs, FINAL, NO_TAG, op};
use crate::{LoadError, socket};

pub const IQN: &str = "iqn.2026-01.org.stag:null";
const LBA_BYTES: usize = 512;
const LBAS: u64 = (1 << 30) / LBA_BYTES as u64;
const WINDOW: u32 = 1024;
const MAX_DATA: usize = 256 * 1024;
const MAX_IO: usize = 1 << 20;

/// Listens on `address`, passes the bound address to `ready`, and serves for ever, one thread a
/// connection.
pub fn listen(address: SocketAddr, ready: impl FnOnce(SocketAddr)) -> Result<(), LoadError> {
    let listener = TcpListener::bind(address).map_err(|e| LoadError::Io("listening", e))?;
    if address.ip().is_loopback() {
        socket::unpaced(&listener);
    }
    ready(listener.local_addr().map_err(|e| LoadError::Io("listening", e))?);
    for stream in listener.incoming() {
        let stream = stream.map_err(|e| LoadError::Io("accepting", e))?;
        std::thread::spawn(move || {
            if let Err(error) = serve(stream) {
                eprintln!("stag-load: null target: {error}");
            }
        });
    }
    Ok(())
}

/// The counts of one connection, for tests that check a client against it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    pub reads: u64,
    /// Write commands that got all their data.
    pub writes: u64,
    /// Bytes that came inside command PDUs.
    pub immediate_bytes: u64,
    /// Bytes that came after an R2T.
    pub solicited_bytes: u64,
    /// NOP-Outs that answered a NOP-In of this side.
    pub pongs: u64,
    /// Whether the client logged out.
    pub logged_out: bool,
}

/// Serves one connection until it ends.
///
/// # Errors
/// Errors of the socket, and PDUs that this small target does not support.
pub fn serve(mut stream: TcpStream) -> Result<Served, LoadError> {
    stream.set_nodelay(true).map_err(|e| LoadError::Io("setting a socket option", e))?;
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .map_err(|e| LoadError::Io("setting a socket option", e))?;
    let mut unit = NullUnit::default();
    let zeros = vec![0; MAX_DATA];
    let (mut buffer, mut have) = (vec![0; 1 << 20], 0);
    while !unit.served.logged_out {
        match stream.read(&mut buffer[have..]).map_err(|e| LoadError::Io("receiving", e))? {
            0 => break,
            got => have += got,
        }
        let mut at = 0;
        while have - at >= BHS {
            let mut bhs = [0; BHS];
            bhs.copy_from_slice(&buffer[at..at + BHS]);
            let whole = BHS + wire::body_len(&bhs);
            if whole > BHS + MAX_DATA {
                return Err(LoadError::Protocol(format!("a PDU of {whole} bytes")));
            }
            if have - at < whole {
                break;
            }
            unit.pdu(&bhs, &buffer[at + BHS..at + whole])?;
            at += whole;
        }
        buffer.copy_within(at..have, 0);
        have -= at;
        flush(&mut stream, &mut unit.outbox, &zeros)?;
    }
    Ok(unit.served)
}

fn flush(stream: &mut TcpStream, outbox: &mut Outbox, zeros: &[u8]) -> Result<(), LoadError> {
    while !outbox.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = outbox.slices(zeros, &mut slices);
        let sent = stream.write_vectored(&slices[..count]).map_err(|e| LoadError::Io("sending", e))?;
        outbox.consume(sent);
    }
    Ok(())
}

struct PendingWrite {
    command: Bhs,
    got: usize,
    length: usize,
}

#[derive(Default)]
struct NullUnit {
    outbox: Outbox,
    stat_sn: u32,
    exp_cmd_sn: u32,
    writes: Vec<PendingWrite>,
    served: Served,
}

impl NullUnit {
    fn pdu(&mut self, bhs: &Bhs, body: &[u8]) -> Result<(), LoadError> {
        match bhs[0] & 0x3f {
            op::LOGIN => self.login(bhs),
            op::SCSI_COMMAND => {
                self.exp_cmd_sn = wire::get32(bhs, 24).wrapping_add(1);
                return self.command(bhs, body);
            }
            op::DATA_OUT => return self.data_out(bhs, body.len()),
            op::NOP_OUT => self.served.pongs += 1,
            op::LOGOUT => {
                self.served.logged_out = true;
                self.answer(op::LOGOUT_RESPONSE, bhs, 0..0, |_| {});
            }
            other => return Err(LoadError::Protocol(format!("opcode {other:#04x}"))),
        }
        Ok(())
    }

    fn answer(&mut self, opcode: u8, to: &Bhs, payload: std::ops::Range<usize>, edit: impl FnOnce(&mut Bhs)) {
        let mut bhs = [0; BHS];
        bhs[0] = opcode;
        bhs[1] = FINAL;
        bhs[16..20].copy_from_slice(&to[16..20]);
        wire::set_data_len(&mut bhs, payload.len());
        wire::put32(&mut bhs, 24, self.stat_sn);
        wire::put32(&mut bhs, 28, self.exp_cmd_sn);
        wire::put32(&mut bhs, 32, self.exp_cmd_sn.wrapping_add(WINDOW - 1));
        self.stat_sn = self.stat_sn.wrapping_add(1);
        edit(&mut bhs);
        self.outbox.push(&bhs, payload);
    }

    /// Agrees to everything: the offers stand, since every answer would be the offer or the
    /// default.
    fn login(&mut self, bhs: &Bhs) {
        self.exp_cmd_sn = wire::get32(bhs, 24);
        let (stages, isid) = (bhs[1] & 0x0f, [bhs[8], bhs[9], bhs[10], bhs[11], bhs[12], bhs[13]]);
        let keys = format!("MaxRecvDataSegmentLength={MAX_DATA}\0FirstBurstLength=65536\0");
        let keys = if stages >> 2 == 1 { keys } else { String::new() };
        self.answer(op::LOGIN_RESPONSE, bhs, 0..0, |answer| {
            answer[1] = FINAL | stages;
            answer[8..14].copy_from_slice(&isid);
            answer[15] = 1;
            wire::set_data_len(answer, keys.len());
        });
        self.outbox.push_bytes(keys.as_bytes());
    }

    fn command(&mut self, bhs: &Bhs, body: &[u8]) -> Result<(), LoadError> {
        let cdb = &bhs[32..48];
        let (lba, blocks) = match cdb[0] {
            0x9e => {
                self.capacity(bhs);
                return Ok(());
            }
            0x28 | 0x2a => {
                (u64::from(wire::get32(cdb, 2)), usize::from(u16::from_be_bytes([cdb[7], cdb[8]])))
            }
            other => return Err(LoadError::Protocol(format!("operation code {other:#04x}"))),
        };
        let length = blocks * LBA_BYTES;
        if lba + blocks as u64 > LBAS || length > MAX_IO || wire::get32(bhs, 20) as usize != length {
            return Err(LoadError::Protocol(format!("{blocks} blocks at {lba}")));
        }
        if cdb[0] == 0x2a {
            self.served.immediate_bytes += wire::data_len(bhs) as u64;
            self.writes.push(PendingWrite { command: *bhs, got: body.len(), length });
            self.go_on_writing(self.writes.len() - 1);
            return Ok(());
        }
        self.served.reads += 1;
        let (mut at, mut data_sn) = (0, 0);
        while at < length {
            let len = (length - at).min(MAX_DATA);
            let last = at + len == length;
            let stat_sn = self.stat_sn;
            self.answer(op::DATA_IN, bhs, 0..len, |data_in| {
                data_in[1] = if last { FINAL | wire::STATUS } else { 0 };
                wire::put32(data_in, 20, NO_TAG);
                wire::put32(data_in, 36, data_sn);
                wire::put32(data_in, 40, at as u32);
            });
            if !last {
                self.stat_sn = stat_sn;
            }
            at += len;
            data_sn += 1;
        }
        Ok(())
    }

    fn capacity(&mut self, bhs: &Bhs) {
        let mut data = [0; 32];
        data[..8].copy_from_slice(&(LBAS - 1).to_be_bytes());
        wire::put32(&mut data, 8, LBA_BYTES as u32);
        self.answer(op::DATA_IN, bhs, 0..0, |data_in| {
            data_in[1] = FINAL | wire::STATUS;
            wire::set_data_len(data_in, data.len());
        });
        self.outbox.push_bytes(&data);
        // And a question of our own, which a client has to answer.
        let stat_sn = self.stat_sn;
        self.answer(op::NOP_IN, bhs, 0..0, |nop| {
            wire::put32(nop, 16, NO_TAG);
            wire::put32(nop, 20, 77);
        });
        self.stat_sn = stat_sn;
    }

    fn data_out(&mut self, bhs: &Bhs, len: usize) -> Result<(), LoadError> {
        let index = self.writes.iter().position(|write| write.command[16..20] == bhs[16..20]);
        let Some(index) = index else { return Err(LoadError::Protocol("Data-Out for no command".into())) };
        let write = &mut self.writes[index];
        if wire::get32(bhs, 40) as usize != write.got || write.got + len > write.length {
            return Err(LoadError::Protocol(format!(
                "Data-Out at {} after {} bytes",
                wire::get32(bhs, 40),
                write.got
            )));
        }
        write.got += len;
        self.served.solicited_bytes += len as u64;
        if bhs[1] & FINAL != 0 {
            self.go_on_writing(index);
        }
        Ok(())
    }

    /// Requests the next burst of write number `index`, or ends it.
    fn go_on_writing(&mut self, index: usize) {
        let PendingWrite { command, got, length } = self.writes[index];
        if got == length {
            self.served.writes += 1;
            self.writes.swap_remove(index);
            self.answer(op::SCSI_RESPONSE, &command, 0..0, |_| {});
            return;
        }
        let stat_sn = self.stat_sn;
        self.answer(op::R2T, &command, 0..0, |r2t| {
            r2t[8..16].copy_from_slice(&command[8..16]);
            r2t[20..24].copy_from_slice(&command[16..20]);
            wire::put32(r2t, 40, got as u32);
            wire::put32(r2t, 44, (length - got).min(MAX_DATA) as u32);
        });
        self.stat_sn = stat_sn;
    }
}
