//! SCSI commands over a raw connection, on either transport. Sends them with the negotiated
//! parameters, answers their R2Ts, and keeps all their PDUs.

use iscsi::pdu::{DataOut, FINAL, Lun, Opcode, RESERVED_TAG, ScsiCommand, TaskAttribute, U32};
use iser::{Control, Remote};
use rdma::Stag;

use crate::conn::Conn;
use crate::finding::{Finding, Verdict, expect, setup, untested, wrong};
use crate::lab::{Lab, Unit};
use crate::options::Options;
use crate::pdu::Pdu;

pub(crate) const GOOD: u8 = 0x00;
pub(crate) const CHECK_CONDITION: u8 = 0x02;

/// A command to send.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub cdb: Vec<u8>,
    pub lun: Option<Lun>,
    /// Expected Data Transfer Length of a read, bytes.
    pub read: u32,
    pub out: Vec<u8>,
    /// The Expected Data Transfer Length, if it must differ from the data's length.
    pub edtl: Option<u32>,
    /// Whether to send data unsolicited, as far as negotiated.
    pub unsolicited: bool,
    /// Maximum length of a Data-Out's segment, bytes.
    pub segment: Option<usize>,
}

impl Command {
    pub fn new(cdb: &[u8]) -> Self {
        Self {
            cdb: cdb.to_vec(),
            lun: None,
            read: 0,
            out: Vec::new(),
            edtl: None,
            unsolicited: true,
            segment: None,
        }
    }

    pub fn reading(cdb: &[u8], bytes: u32) -> Self {
        Self { read: bytes, ..Self::new(cdb) }
    }

    pub fn writing(cdb: &[u8], data: Vec<u8>) -> Self {
        Self { out: data, ..Self::new(cdb) }
    }

    pub fn at(mut self, lun: Lun) -> Self {
        self.lun = Some(lun);
        self
    }

    /// Its Expected Data Transfer Length.
    pub fn expected(&self) -> u32 {
        self.edtl.unwrap_or(if self.out.is_empty() { self.read } else { self.out.len() as u32 })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub itt: u32,
    pub cmd_sn: u32,
    pub command: Command,
    sink: Option<Stag>,
    source: Option<Stag>,
}

/// The outcome of a command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub itt: u32,
    pub cmd_sn: u32,
    pub status: u8,
    pub response: u8,
    /// Sense data without its length field.
    pub sense: Vec<u8>,
    /// The data read, up to the received length. Over iSER: the buffer, up to the length that the
    /// residual implies.
    pub data: Vec<u8>,
    /// O, U and the Residual Count.
    pub overflow: bool,
    pub underflow: bool,
    pub residual: u32,
    /// All PDUs of the task, in order.
    pub pdus: Vec<Pdu>,
    /// Bytes received beyond the Expected Data Transfer Length.
    pub beyond: u64,
}

impl Done {
    pub fn of(&self, opcode: Opcode) -> Vec<&Pdu> {
        self.pdus.iter().filter(|pdu| pdu.is(opcode)).collect()
    }

    /// Sense key, additional sense code and qualifier.
    pub(crate) fn sense_code(&self) -> Option<(u8, u8, u8)> {
        let at = |n: usize| self.sense.get(n).copied();
        match at(0)? & 0x7f {
            0x72 | 0x73 => Some((at(1)? & 0x0f, at(2)?, at(3)?)),
            0x70 | 0x71 => Some((at(2)? & 0x0f, at(12).unwrap_or(0), at(13).unwrap_or(0))),
            _ => None,
        }
    }

    /// The outcome as text.
    pub fn told(&self) -> String {
        if self.response != 0 {
            return format!("iSCSI response {:#04x}", self.response);
        }
        match (self.status, self.sense_code()) {
            (GOOD, _) => "status GOOD".to_owned(),
            (CHECK_CONDITION, Some((key, asc, ascq))) => {
                format!("CHECK CONDITION, sense key {key:#x}, code {asc:02x}h/{ascq:02x}h")
            }
            (CHECK_CONDITION, None) => "CHECK CONDITION without sense data".to_owned(),
            (status, _) => format!("status {status:#04x}"),
        }
    }

    pub fn is_good(&self) -> bool {
        self.response == 0 && self.status == GOOD
    }

    /// Fails unless the command succeeded.
    pub fn good(self, what: &str) -> Verdict<Self> {
        expect(self.is_good(), format!("{what} ends with status GOOD"), || self.told())?;
        Ok(self)
    }

    /// O or U and the count, as text.
    pub(crate) fn residual_told(&self) -> String {
        match (self.overflow, self.underflow) {
            (false, false) => "no residual".to_owned(),
            (true, false) => format!("an overflow of {} bytes", self.residual),
            (false, true) => format!("an underflow of {} bytes", self.residual),
            (true, true) => "an overflow and an underflow at once".to_owned(),
        }
    }
}

impl Conn {
    /// The header of a command, without the lengths of its data.
    pub(crate) fn command_header(&mut self, command: &Command) -> ScsiCommand {
        let itt = self.tag();
        let mut header =
            ScsiCommand::new(itt, command.lun.unwrap_or(self.lun), TaskAttribute::Simple, &command.cdb);
        header.edtl = U32::new(command.expected());
        header.set_read(command.out.is_empty() && command.expected() > 0);
        header.set_write(!command.out.is_empty());
        header.exp_stat_sn = U32::new(self.exp_stat_sn);
        header
    }

    /// Sends a command with the next CmdSN, and its unsolicited data.
    pub fn start(&mut self, command: &Command) -> Verdict<Task> {
        let mut header = self.command_header(command);
        header.cmd_sn = U32::new(self.take_cmd_sn());
        self.start_as(header, command)
    }

    /// The same with a header that the check provides.
    pub(crate) fn start_as(&mut self, mut header: ScsiCommand, command: &Command) -> Verdict<Task> {
        let mut task = Task {
            itt: header.itt.get(),
            cmd_sn: header.cmd_sn.get(),
            command: command.clone(),
            sink: None,
            source: None,
        };
        let data = &command.out;
        let burst = (self.number("FirstBurstLength", 65_536) as usize).min(data.len());
        let immediate = match command.unsolicited && self.flag("ImmediateData", true) {
            true => burst.min(self.target_segment()),
            false => 0,
        };
        let follows = command.unsolicited && !self.flag("InitialR2T", true) && self.iser().is_none();
        let unsolicited = if follows { burst } else { immediate };
        let mut control = Control::default();
        if let Some(iser) = self.iser() {
            if header.read() {
                let sink = iser.expose_sink(command.expected() as usize);
                let stag = sink.map_err(|lost| Finding::Untested(lost.seen()))?;
                task.sink = Some(stag);
                control.read = Some(Remote { stag: stag.0, offset: 0 });
            }
            if data.len() > immediate {
                let stag = iser.expose_source(data).map_err(|lost| Finding::Untested(lost.seen()))?;
                task.source = Some(stag);
                // The offset is that of the first byte to fetch by RDMA Read.
                control.write = Some(Remote { stag: stag.0, offset: immediate as u64 });
            }
        }
        header.set_final(unsolicited == immediate);
        let extended = command.cdb.get(16..).unwrap_or_default();
        let mut ahs = Vec::new();
        if !extended.is_empty() {
            // AHSLength counts the reserved byte and the CDB's rest (RFC 7143 §11.2.2.3).
            ahs.extend(((extended.len() + 1) as u16).to_be_bytes());
            ahs.extend([1, 0]);
            ahs.extend(extended);
            ahs.resize(ahs.len().next_multiple_of(4), 0);
        }
        self.post_with(control, header, &ahs, data.get(..immediate).unwrap_or_default())?;
        if unsolicited > immediate {
            self.data_out(&task, RESERVED_TAG, immediate, unsolicited - immediate, 0)?;
        }
        Ok(task)
    }

    /// Sends the Data-Out PDUs of one sequence, from `offset` on, numbered from `number` on.
    pub fn data_out(&mut self, task: &Task, ttt: u32, offset: usize, len: usize, number: u32) -> Verdict {
        let segment = task.command.segment.unwrap_or(usize::MAX).min(self.target_segment()).max(1);
        let end = offset + len;
        let (mut at, mut number) = (offset, number);
        while at < end {
            let next = (at + segment).min(end);
            let Some(part) = task.command.out.get(at..next) else {
                return wrong(
                    format!("data is asked for from {at} to {next} of {} bytes", task.command.out.len()),
                    "only the command's data is asked for",
                );
            };
            let part = part.to_vec();
            let mut pdu = self.data_out_header(task, ttt, number, at);
            pdu.flags = if next == end { FINAL } else { 0 };
            self.post(pdu, &part)?;
            at = next;
            number += 1;
        }
        Ok(())
    }

    pub(crate) fn data_out_header(&mut self, task: &Task, ttt: u32, number: u32, offset: usize) -> DataOut {
        let lun = task.command.lun.unwrap_or(self.lun);
        let mut pdu = DataOut::new(task.itt, ttt, lun, number, offset as u32);
        pdu.exp_stat_sn = U32::new(self.exp_stat_sn);
        pdu
    }

    /// Waits for a task's end, answering its R2Ts.
    pub(crate) fn finish_task(&mut self, task: &Task) -> Verdict<Done> {
        self.finish_with(task, |conn, task, r2t| {
            let (ttt, offset, len) = (r2t.word(20), r2t.word(40) as usize, r2t.word(44) as usize);
            conn.data_out(task, ttt, offset, len, 0)
        })
    }

    /// The same, with R2Ts answered by `respond`.
    pub(crate) fn finish_with(
        &mut self,
        task: &Task,
        mut respond: impl FnMut(&mut Conn, &Task, &Pdu) -> Verdict,
    ) -> Verdict<Done> {
        let itt = task.itt;
        let mut done = Done { itt, cmd_sn: task.cmd_sn, ..Done::default() };
        let expected = task.command.expected() as usize;
        // The check itself chose this length, not the peer.
        let mut data = vec![0; if task.command.out.is_empty() { expected } else { 0 }];
        let mut sent = 0;
        loop {
            let pdu = self.wait("the command's data, R2T or SCSI Response", |pdu| {
                (pdu.itt() == itt && !pdu.is(Opcode::NopIn)) || pdu.is(Opcode::Reject)
            })?;
            match pdu.bhs.opcode() {
                Some(Opcode::DataIn) => {
                    let at = pdu.word(40) as usize;
                    let end = at.saturating_add(pdu.data.len());
                    done.beyond += end.saturating_sub(data.len()).min(pdu.data.len()) as u64;
                    let end = end.min(data.len());
                    if let Some(place) = data.get_mut(at..end) {
                        let len = place.len();
                        place.copy_from_slice(pdu.data.get(..len).unwrap_or_default());
                        sent = sent.max(end);
                    }
                    if pdu.bhs.flags & 1 != 0 {
                        done.status = pdu.bhs.as_data_in().status;
                        take_residual(&mut done, &pdu);
                        done.pdus.push(pdu);
                        break;
                    }
                }
                Some(Opcode::ReadyToTransfer) => {
                    respond(self, task, &pdu)?;
                }
                Some(Opcode::ScsiResponse) => {
                    let response = pdu.bhs.as_scsi_response();
                    (done.status, done.response) = (response.status, response.response);
                    let len = pdu.data.first_chunk::<2>().map_or(0, |len| u16::from_be_bytes(*len).into());
                    done.sense = pdu.data.get(2..2 + len).unwrap_or_default().to_vec();
                    take_residual(&mut done, &pdu);
                    done.pdus.push(pdu);
                    break;
                }
                Some(Opcode::Reject) => {
                    return wrong(format!("a Reject, reason {}", pdu.reject_reason()), "a SCSI Response");
                }
                _ => return wrong(pdu.bhs.to_string(), "the command's data, R2T or SCSI Response"),
            }
            done.pdus.push(pdu);
        }
        if let (Some(iser), Some(sink)) = (self.iser(), task.sink) {
            let (memory, _) = iser.withdraw(sink);
            data = memory;
            sent = match done.underflow {
                true => data.len().saturating_sub(done.residual as usize),
                false => data.len(),
            };
        }
        if let (Some(iser), Some(source)) = (self.iser(), task.source) {
            iser.withdraw(source);
        }
        data.truncate(sent);
        done.data = data;
        Ok(done)
    }

    /// Runs a command from start to end.
    pub fn run(&mut self, command: &Command) -> Verdict<Done> {
        let task = self.start(command)?;
        self.finish_task(&task)
    }

    /// Sends TEST UNIT READY until no unit attention is pending.
    pub fn settle(&mut self) -> Verdict {
        for _ in 0..16 {
            let done = self.run(&Command::new(&[0; 6]))?;
            match done.sense_code() {
                _ if done.is_good() => return Ok(()),
                Some((6, ..)) => {}
                _ => return wrong(done.told(), "TEST UNIT READY ends with status GOOD"),
            }
        }
        wrong("16 unit attentions in a row", "TEST UNIT READY ends with status GOOD")
    }
}

fn take_residual(done: &mut Done, pdu: &Pdu) {
    done.overflow = pdu.bhs.flags & 4 != 0;
    done.underflow = pdu.bhs.flags & 2 != 0;
    done.residual = pdu.word(44);
}

pub(crate) fn read10(lba: u32, blocks: u16) -> [u8; 10] {
    let (l, b) = (lba.to_be_bytes(), blocks.to_be_bytes());
    [0x28, 0, l[0], l[1], l[2], l[3], 0, b[0], b[1], 0]
}

pub(crate) fn write10(lba: u32, blocks: u16) -> [u8; 10] {
    let (l, b) = (lba.to_be_bytes(), blocks.to_be_bytes());
    [0x2a, 0, l[0], l[1], l[2], l[3], 0, b[0], b[1], 0]
}

/// VERIFY (10) with BYTCHK=01b: compares the medium with the sent data.
pub(crate) fn verify10(lba: u32, blocks: u16) -> [u8; 10] {
    let (l, b) = (lba.to_be_bytes(), blocks.to_be_bytes());
    [0x2f, 2, l[0], l[1], l[2], l[3], 0, b[0], b[1], 0]
}

pub(crate) fn inquiry(page: Option<u8>, allocation: u16) -> [u8; 6] {
    let a = allocation.to_be_bytes();
    [0x12, u8::from(page.is_some()), page.unwrap_or(0), a[0], a[1], 0]
}

/// A command that sends data without a lasting change of the medium.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub command: Command,
    pub lba: u32,
    pub blocks: u16,
}

impl Lab {
    /// The unit's size and block length.
    pub fn unit(&self, conn: &mut Conn) -> Verdict<Unit> {
        if let Some(unit) = self.unit.get() {
            return Ok(unit);
        }
        let done =
            setup(conn.run(&Command::reading(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8)), "to a unit's size")?;
        let words: Option<(&[u8; 4], &[u8; 4])> =
            done.data.get(..8).and_then(|data| Some((data.first_chunk()?, data.last_chunk()?)));
        let Some((last, len)) = words.filter(|_| done.is_good()) else {
            return untested(format!("READ CAPACITY (10) came to {}: no disk with a medium", done.told()));
        };
        let unit =
            Unit { blocks: u64::from(u32::from_be_bytes(*last)) + 1, block_len: u32::from_be_bytes(*len) };
        if !(256..=65_536).contains(&unit.block_len) || unit.blocks < 4096 {
            return untested(format!(
                "{} blocks of {} bytes are no disk to test with",
                unit.blocks, unit.block_len
            ));
        }
        self.unit.set(Some(unit));
        Ok(unit)
    }

    /// The first block of the area to write or compare.
    fn area(&self, unit: Unit) -> Verdict<u32> {
        let lba = self.options.write_at.div_ceil(unit.block_len.into());
        let area = Options::AREA.div_ceil(unit.block_len.into());
        match u32::try_from(lba) {
            Ok(small) if lba + area <= unit.blocks => Ok(small),
            _ => untested("the area to write to does not lie on the unit, or beyond the reach of WRITE (10)"),
        }
    }

    /// A command that sends at least `bytes`, in whole blocks: a write if writing is allowed,
    /// otherwise a comparison with the medium's content.
    pub fn outgoing(&self, conn: &mut Conn, bytes: usize) -> Verdict<Outgoing> {
        self.outgoing_behind(conn, bytes, 0)
    }

    /// The same, `skip` blocks behind the area's first.
    pub fn outgoing_behind(&self, conn: &mut Conn, bytes: usize, skip: u16) -> Verdict<Outgoing> {
        let unit = self.unit(conn)?;
        let lba = self.area(unit)? + u32::from(skip);
        let len = unit.block_len as usize;
        let blocks = bytes.div_ceil(len).max(1);
        let blocks =
            u16::try_from(blocks).map_err(|_| Finding::Untested("too much data for a check".to_owned()))?;
        if self.options.write {
            // The data differs between blocks and between runs.
            let salt = conn.tag().wrapping_mul(0x9e37_79b9);
            let data = (0..usize::from(blocks) * len / 4)
                .flat_map(|word| (word as u32).wrapping_mul(0x85eb_ca6b).wrapping_add(salt).to_be_bytes())
                .collect();
            return Ok(Outgoing { command: Command::writing(&write10(lba, blocks), data), lba, blocks });
        }
        self.can_compare(conn, lba, unit)?;
        let read = setup(
            conn.run(&Command::reading(&read10(lba, blocks), u32::from(blocks) * unit.block_len)),
            "to what the medium holds",
        )?;
        if !read.is_good() || read.data.len() != usize::from(blocks) * len {
            return untested(format!("the medium could not be read: {}", read.told()));
        }
        Ok(Outgoing { command: Command::writing(&verify10(lba, blocks), read.data), lba, blocks })
    }

    /// Whether VERIFY compares: it must accept correct data and reject wrong data.
    fn can_compare(&self, conn: &mut Conn, lba: u32, unit: Unit) -> Verdict {
        let known = self.compares.borrow().clone();
        let known = match known {
            Some(known) => known,
            None => {
                let found = self.try_compare(conn, lba, unit)?;
                self.compares.replace(Some(found.clone()));
                found
            }
        };
        known.map_err(|why| {
            Finding::Untested(format!(
                "nothing may be written (--write), and data that goes out cannot be compared instead: {why}"
            ))
        })
    }

    fn try_compare(&self, conn: &mut Conn, lba: u32, unit: Unit) -> Verdict<Result<(), String>> {
        let read =
            setup(conn.run(&Command::reading(&read10(lba, 1), unit.block_len)), "to what the medium holds")?;
        if !read.is_good() {
            return Ok(Err(format!("READ (10) came to {}", read.told())));
        }
        let mut attempt = |data: Vec<u8>| {
            conn.run(&Command::writing(&verify10(lba, 1), data))
                .map(|done| (done.is_good(), done.sense_code(), done.told()))
        };
        let right = attempt(read.data.clone());
        match right {
            Ok((true, ..)) => {}
            Ok((_, _, told)) => return Ok(Err(format!("VERIFY (10) with BYTCHK=01b came to {told}"))),
            Err(_) => return Ok(Err("VERIFY (10) with BYTCHK=01b was not answered".to_owned())),
        }
        let mut other = read.data;
        if let Some(byte) = other.last_mut() {
            *byte ^= 0xff;
        }
        match attempt(other) {
            Ok((false, Some((0xe, ..)), _)) => Ok(Ok(())),
            Ok((_, _, told)) => Ok(Err(format!("VERIFY (10) of data that is not there came to {told}"))),
            Err(_) => Ok(Err("VERIFY (10) of data that is not there was not answered".to_owned())),
        }
    }

    /// Fails unless the sent data is on the medium.
    pub fn confirm(&self, conn: &mut Conn, out: &Outgoing) -> Verdict {
        let len = out.command.out.len();
        let read =
            conn.run(&Command::reading(&read10(out.lba, out.blocks), len as u32))?.good("reading it back")?;
        expect(read.data == out.command.out, "what was sent is what the unit holds", || {
            let at = read.data.iter().zip(&out.command.out).position(|(a, b)| a != b);
            match at {
                Some(at) => format!("byte {at} of {len} is another one"),
                None => format!("{} bytes of {len} are there", read.data.len()),
            }
        })
    }
}
