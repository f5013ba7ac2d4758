//! Work of initiators: commands chosen at random, and the expected answer of each.

use std::ops::Range;

use iscsi::initiator::Completion;
use iscsi::pdu::{Residual, ResponseCode};
use scsi::cdb::build::{self, Flags};
use scsi::data::unmap::{self, UnmapRange};
use scsi::{Sense, SenseKey, Status};

use crate::oracle::{Content, OpId, Oracle, SECTOR};
use crate::plan::{InitiatorPlan, Mix, Plan};
use crate::random::Rng;

/// Kind of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// READ.
    Read,
    /// WRITE, WRITE SAME, UNMAP.
    Write,
    /// COMPARE AND WRITE; the bytes to compare with.
    CompareAndWrite(Vec<u8>),
    /// VERIFY with BYTCHK=1; the bytes to compare with.
    Verify(Vec<u8>),
    /// VERIFY of the medium alone.
    Nothing,
    /// SYNCHRONIZE CACHE.
    Sync,
    /// It must be refused with this sense: key, ASC, ASCQ.
    Wrong(SenseKey, u8, u8),
}

/// A SCSI command to be submitted.
#[derive(Clone, Debug)]
pub struct Scsi {
    /// Its kind.
    pub kind: Kind,
    /// Its name in messages.
    pub name: &'static str,
    /// The unit.
    pub lun: u16,
    /// The CDB.
    pub cdb: Vec<u8>,
    /// Data for the target.
    pub data_out: Option<Vec<u8>>,
    /// Bytes that it expects to read.
    pub read_len: Option<u32>,
    /// Ranges of sectors that it changes.
    pub writes: Vec<Range<usize>>,
    /// New content of those sectors.
    pub content: Content,
    /// The first sector that it looks at.
    pub first: usize,
    /// Sectors that it writes from the cache to the medium.
    pub syncs: Range<usize>,
    /// GOOD promises that it is on the medium.
    pub durable: bool,
    /// It may be sent again if it is unknown whether it ran.
    pub may_repeat: bool,
    /// Bytes that the CDB calls for, in and out.
    pub wanted: (u64, u64),
}

/// An initiator's next action.
#[derive(Clone, Debug)]
pub enum Action {
    /// A SCSI command.
    Scsi(Box<Scsi>),
    /// A NOP-Out.
    Ping,
    /// A discovery session beside the normal one.
    Discover,
    /// Log out, and in again.
    Logout,
}

/// Makes commands.
pub struct Workload {
    block: u64,
    blocks: u64,
    most_blocks: u64,
    write_through: bool,
    mix: Mix,
}

impl Workload {
    /// The workload of `initiator` in `plan`.
    pub fn new(plan: &Plan, initiator: &InitiatorPlan) -> Self {
        Self {
            block: u64::from(plan.block),
            blocks: plan.blocks,
            most_blocks: plan.most_blocks.min(plan.blocks),
            write_through: !plan.disk.write_cache,
            mix: initiator.mix,
        }
    }

    fn per_block(&self) -> usize {
        (self.block as usize / SECTOR).max(1)
    }

    fn sectors(&self, lba: u64, blocks: u64) -> Range<usize> {
        let per_block = self.per_block();
        lba as usize * per_block..(lba + blocks) as usize * per_block
    }

    fn place(&self, rng: &mut Rng, most: u64) -> (u64, u64) {
        let blocks = rng.between(1, most.min(self.most_blocks));
        // Half of the commands go to the first blocks, so that they overlap on large disks, too.
        let room = self.blocks - blocks;
        let lba = if rng.chance(500) { rng.below(room.min(8) + 1) } else { rng.below(room + 1) };
        (lba, blocks)
    }

    /// The next action; `op` is the number of a command.
    pub fn next(&self, rng: &mut Rng, oracle: &Oracle, op: OpId) -> Action {
        let mix = &self.mix;
        let weights =
            [mix.read, mix.write, mix.sync, mix.provision, mix.compare, mix.wrong, mix.talk, mix.logout];
        let mut choice = rng.below(weights.iter().sum());
        let mut kind = 0;
        while choice >= weights[kind] {
            choice -= weights[kind];
            kind += 1;
        }
        let scsi = match kind {
            0 => self.read(rng),
            1 => self.write(rng, oracle, op),
            2 => self.sync_some(rng),
            3 => self.provision(rng, oracle, op),
            4 => self.compare(rng, oracle, op),
            5 => self.wrong(rng),
            6 if rng.chance(500) => return Action::Ping,
            6 => return Action::Discover,
            _ => return Action::Logout,
        };
        Action::Scsi(Box::new(scsi))
    }

    fn command(&self, name: &'static str, kind: Kind, cdb: &[u8]) -> Scsi {
        Scsi {
            kind,
            name,
            lun: 0,
            cdb: cdb.to_vec(),
            data_out: None,
            read_len: None,
            writes: Vec::new(),
            content: Content::Zeros,
            first: 0,
            syncs: 0..0,
            durable: false,
            may_repeat: true,
            wanted: (0, 0),
        }
    }

    /// READ of `blocks` from `lba` on.
    pub fn read_of(&self, lba: u64, blocks: u64, fua: bool) -> Scsi {
        let cdb = build::read(lba, blocks as u32, Flags { fua, ..Flags::default() });
        let mut scsi = self.command("READ", Kind::Read, &cdb);
        scsi.first = self.sectors(lba, blocks).start;
        if fua {
            scsi.syncs = self.sectors(lba, blocks);
        }
        scsi.wanted.0 = blocks * self.block;
        scsi.read_len = Some(scsi.wanted.0 as u32);
        scsi
    }

    fn read(&self, rng: &mut Rng) -> Scsi {
        let (lba, blocks) = self.place(rng, u64::MAX);
        let mut scsi = self.read_of(lba, blocks, rng.chance(100));
        if rng.chance(100) {
            // Room for more or for less than the CDB calls for.
            scsi.read_len = Some(rng.below(2 * scsi.wanted.0) as u32);
        }
        scsi
    }

    fn bytes(&self, oracle: &Oracle, content: Content, sectors: Range<usize>) -> Vec<u8> {
        sectors.flat_map(|sector| oracle.bytes(content, sector)).collect()
    }

    fn write(&self, rng: &mut Rng, oracle: &Oracle, op: OpId) -> Scsi {
        let (lba, blocks) = self.place(rng, u64::MAX);
        let fua = rng.chance(250);
        let flags = Flags { fua, ..Flags::default() };
        let verify = rng.chance(60);
        let mut cdb = build::write16(lba, blocks as u32, flags);
        if verify {
            // WRITE AND VERIFY (16) without BYTCHK: data that it verifies is on the medium.
            cdb[0] = 0x8e;
            cdb[1] = 0;
        } else if rng.chance(500) {
            cdb = build::write(lba, blocks as u32, flags);
        }
        let name = if verify { "WRITE AND VERIFY" } else { "WRITE" };
        let mut scsi = self.command(name, Kind::Write, &cdb);
        scsi.writes = vec![self.sectors(lba, blocks)];
        scsi.content = Content::Stamp(op);
        let mut data = self.bytes(oracle, scsi.content, self.sectors(lba, blocks));
        scsi.wanted.1 = data.len() as u64;
        let sectors = data.len() / SECTOR;
        if sectors > 1 && rng.chance(60) {
            // Less than the CDB calls for, perhaps only a part of the last block: the target writes
            // the data that comes.
            let some = rng.between(1, sectors as u64 - 1) as usize;
            data.truncate(some * SECTOR);
            let first = scsi.writes[0].start;
            scsi.writes = vec![Range { start: first, end: first + some }];
        } else if rng.chance(50) {
            // More data than the CDB calls for: a residual underflow, and the target discards the
            // rest.
            data.extend(std::iter::repeat_n(0xee, 1 + rng.index(2000)));
        }
        scsi.data_out = Some(data);
        scsi.durable = fua || verify || self.write_through;
        scsi
    }

    /// SYNCHRONIZE CACHE of everything.
    pub fn sync(&self) -> Scsi {
        let mut scsi = self.command("SYNCHRONIZE CACHE", Kind::Sync, &build::synchronize_cache10());
        scsi.syncs = self.sectors(0, self.blocks);
        scsi
    }

    fn sync_some(&self, rng: &mut Rng) -> Scsi {
        if rng.chance(500) {
            return self.sync();
        }
        let (lba, blocks) = self.place(rng, u64::MAX);
        let cdb = build::synchronize_cache16(lba, blocks as u32);
        let mut scsi = self.command("SYNCHRONIZE CACHE", Kind::Sync, &cdb);
        scsi.syncs = self.sectors(lba, blocks);
        scsi
    }

    fn provision(&self, rng: &mut Rng, oracle: &Oracle, op: OpId) -> Scsi {
        if rng.chance(400) {
            let mut ranges = Vec::new();
            let mut writes = Vec::new();
            for _ in 0..rng.between(1, 3) {
                let (lba, blocks) = self.place(rng, u64::MAX);
                ranges.push(UnmapRange { lba, blocks: blocks as u32 });
                writes.push(self.sectors(lba, blocks));
            }
            let list = unmap::emit(&ranges);
            let mut scsi = self.command("UNMAP", Kind::Write, &build::unmap(list.len() as u16));
            scsi.wanted.1 = list.len() as u64;
            scsi.data_out = Some(list);
            scsi.writes = writes;
            scsi.durable = self.write_through;
            return scsi;
        }
        let (lba, blocks) = self.place(rng, u64::MAX);
        let (zeros, unmap) = (rng.chance(500), rng.chance(500));
        let no_data = zeros && rng.chance(500);
        let cdb = build::write_same16(lba, blocks as u32, unmap, no_data);
        let mut scsi = self.command("WRITE SAME", Kind::Write, &cdb);
        scsi.writes = vec![self.sectors(lba, blocks)];
        scsi.durable = self.write_through;
        if !zeros {
            scsi.content = Content::Repeated(op);
        }
        if !no_data {
            let block = self.bytes(oracle, scsi.content, self.sectors(lba, 1));
            scsi.wanted.1 = block.len() as u64;
            scsi.data_out = Some(block);
        }
        scsi
    }

    fn compare(&self, rng: &mut Rng, oracle: &Oracle, op: OpId) -> Scsi {
        let (lba, blocks) = self.place(rng, 8);
        let sectors = self.sectors(lba, blocks);
        let mut guess: Vec<u8> =
            sectors.clone().flat_map(|sector| oracle.bytes(oracle.guess(sector), sector)).collect();
        if rng.chance(100) {
            // A guess that is certainly wrong.
            let at = rng.index(guess.len());
            guess[at] ^= 0x55;
        }
        if rng.chance(400) {
            let check = rng.chance(700);
            let cdb = build::verify16(lba, blocks as u32, u8::from(check));
            if !check {
                return self.command("VERIFY", Kind::Nothing, &cdb);
            }
            let mut scsi = self.command("VERIFY", Kind::Verify(guess.clone()), &cdb);
            scsi.first = sectors.start;
            scsi.wanted.1 = guess.len() as u64;
            scsi.data_out = Some(guess);
            return scsi;
        }
        let fua = rng.chance(300);
        let cdb = build::compare_and_write(lba, blocks as u8, Flags { fua, ..Flags::default() });
        let mut scsi = self.command("COMPARE AND WRITE", Kind::CompareAndWrite(guess.clone()), &cdb);
        scsi.content = Content::Stamp(op);
        guess.extend(self.bytes(oracle, scsi.content, sectors.clone()));
        scsi.wanted.1 = guess.len() as u64;
        scsi.data_out = Some(guess);
        scsi.first = sectors.start;
        scsi.writes = vec![sectors];
        scsi.durable = fua || self.write_through;
        scsi.may_repeat = false;
        scsi
    }

    fn wrong(&self, rng: &mut Rng) -> Scsi {
        let (_, blocks) = self.place(rng, u64::MAX);
        let beyond = self.blocks - blocks + 1 + rng.below(1 << 20);
        let out_of_range = Kind::Wrong(SenseKey::IllegalRequest, 0x21, 0x00);
        let bytes = (blocks * self.block) as usize;
        match rng.below(4) {
            0 => {
                let cdb = build::read(beyond, blocks as u32, Flags::default());
                let mut scsi = self.command("READ beyond the end", out_of_range, &cdb);
                scsi.read_len = Some(bytes as u32);
                scsi
            }
            1 => {
                let cdb = build::write(beyond, blocks as u32, Flags::default());
                let mut scsi = self.command("WRITE beyond the end", out_of_range, &cdb);
                scsi.data_out = Some(vec![0xbd; bytes]);
                scsi
            }
            2 => {
                let wrong = Kind::Wrong(SenseKey::IllegalRequest, 0x25, 0x00);
                let cdb = build::write(0, blocks as u32, Flags::default());
                let mut scsi = self.command("WRITE to no unit", wrong, &cdb);
                scsi.lun = 3;
                scsi.data_out = Some(vec![0xbd; bytes]);
                scsi
            }
            _ => {
                let wrong = Kind::Wrong(SenseKey::IllegalRequest, 0x20, 0x00);
                self.command("an opcode that is none", wrong, &[0xc7, 0, 0, 0, 0, 0])
            }
        }
    }
}

/// A SCSI answer, as far as the model of the disk needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Good,
    /// A unit attention came first: nothing was done.
    Attention,
    /// The data compared differs.
    Miscompare,
    /// It was refused, as it had to be.
    Refused,
    /// The medium failed.
    Failed,
}

/// Faults that may occur at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excuses {
    /// Reads of the medium.
    pub reads: bool,
    /// Writes and syncs of the medium.
    pub writes: bool,
    /// Allocations of space.
    pub space: bool,
}

/// Reads an answer.
///
/// # Errors
/// It cannot be the answer to this command.
pub fn judge(scsi: &Scsi, answer: &Completion, excuses: Excuses) -> Result<Answer, String> {
    if answer.response != ResponseCode::CommandCompleted {
        return Err(format!("response {}", answer.response));
    }
    let wrong = matches!(scsi.kind, Kind::Wrong(..));
    if answer.status == Status::Good.code() && !wrong {
        return residuals(scsi, answer).map(|()| Answer::Good);
    }
    let sense = Sense::parse(&answer.sense);
    let (Some(sense), true) = (sense, answer.status == Status::CheckCondition.code()) else {
        return Err(format!("status {:#04x} with sense {:02x?}", answer.status, answer.sense));
    };
    let code = (sense.key, sense.additional.asc, sense.additional.ascq);
    // A READ with FUA has the cache written first.
    let fua = scsi.cdb.get(1).is_some_and(|flags| flags & 8 != 0);
    let writes = match scsi.kind {
        Kind::Read => fua,
        Kind::Verify(_) | Kind::Nothing => false,
        _ => true,
    };
    match (code, &scsi.kind) {
        ((SenseKey::UnitAttention, 0x29 | 0x2f | 0x47, _), _) => Ok(Answer::Attention),
        ((key, asc, ascq), Kind::Wrong(k, a, q)) if (key, asc, ascq) == (*k, *a, *q) => Ok(Answer::Refused),
        ((SenseKey::Miscompare, 0x1d, 0), Kind::CompareAndWrite(_) | Kind::Verify(_)) => {
            Ok(Answer::Miscompare)
        }
        ((SenseKey::MediumError, 0x11, _), _) if excuses.reads => Ok(Answer::Failed),
        ((SenseKey::MediumError, 0x0c, _), _) if writes && excuses.writes => Ok(Answer::Failed),
        ((SenseKey::DataProtect, 0x27, 0x07), _) if writes && excuses.space => Ok(Answer::Failed),
        _ => {
            Err(format!("sense {:?} {:#04x}/{:#04x}", sense.key, sense.additional.asc, sense.additional.ascq))
        }
    }
}

/// RFC 7143 §11.4.5.
fn residuals(scsi: &Scsi, answer: &Completion) -> Result<(), String> {
    let (expected, wanted) = match (&scsi.data_out, scsi.read_len) {
        (Some(data), _) => (data.len() as u64, scsi.wanted.1),
        (None, Some(len)) => (u64::from(len), scsi.wanted.0),
        (None, None) => (0, 0),
    };
    let residual = match wanted.cmp(&expected) {
        std::cmp::Ordering::Equal => Residual::Exact,
        std::cmp::Ordering::Less => Residual::Underflow((expected - wanted) as u32),
        std::cmp::Ordering::Greater => Residual::Overflow((wanted - expected) as u32),
    };
    if answer.residual != residual {
        return Err(format!("residual {:?} instead of {residual:?}", answer.residual));
    }
    let received = if scsi.read_len.is_some() { wanted.min(expected) } else { 0 };
    if u64::from(answer.received) != received {
        return Err(format!("{} bytes read instead of {received}", answer.received));
    }
    Ok(())
}
