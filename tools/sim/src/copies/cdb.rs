//! Commands of third-party copies, as bytes (SPC-4 §6.4, SBC-3 §5.6, §5.7).

use iscsi_client::{Command, Lun};

use super::status::How;

/// Bytes of a ROD token.
pub(super) const TOKEN: usize = 512;

/// A part of a copy: `from` and `to` are indices of `naas`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub from: u16,
    pub from_lba: u64,
    pub to: u16,
    pub to_lba: u64,
    pub blocks: u16,
}

pub(super) fn sixteen(code: u8, action: u8, list_at: usize, list_id: u32, len: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (code, action);
    cdb[list_at..list_at + 4].copy_from_slice(&list_id.to_be_bytes());
    cdb[10..14].copy_from_slice(&(len as u32).to_be_bytes());
    cdb
}

pub(super) fn writing(lun: u16, cdb: &[u8], list: Vec<u8>) -> Command {
    Command::new(Lun::new(lun).unwrap_or(Lun::ZERO), cdb).writing(runtime::Buf::from(list))
}

pub(super) fn reading(lun: u16, cdb: &[u8], len: u32) -> Command {
    Command::new(Lun::new(lun).unwrap_or(Lun::ZERO), cdb).reading(len)
}

/// EXTENDED COPY, with list identifiers of one byte or of four.
pub(super) fn extended_copy(lun: u16, how: How, id: u32, naas: &[Vec<u8>], segments: &[Segment]) -> Command {
    let How { lid4, held, immediate } = how;
    let mut cscds = Vec::new();
    for naa in naas {
        let mut cscd = vec![0xe4, 0, 0, 0, 1, 3, 0, naa.len() as u8];
        cscd.extend(naa);
        cscd.resize(32, 0);
        // BLOCK LENGTH of LID1's descriptors.
        cscd[30] = u8::from(!lid4) * 2;
        cscds.extend(cscd);
    }
    let mut parts = Vec::new();
    for Segment { from, from_lba, to, to_lba, blocks } in segments {
        parts.extend([0x02, 0, 0, 0x18]);
        parts.extend([from.to_be_bytes(), to.to_be_bytes(), [0, 0], blocks.to_be_bytes()].concat());
        parts.extend([from_lba.to_be_bytes(), to_lba.to_be_bytes()].concat());
    }
    let mut list = vec![0; if lid4 { 48 } else { 16 }];
    if lid4 {
        (list[0], list[3], list[15], list[16]) = (1, 0x20, u8::from(immediate), 0xff);
        list[20..24].copy_from_slice(&id.to_be_bytes());
        list[42..44].copy_from_slice(&(cscds.len() as u16).to_be_bytes());
        list[44..46].copy_from_slice(&(parts.len() as u16).to_be_bytes());
    } else {
        (list[0], list[1]) = (id as u8, if held { 0 } else { 2 << 3 });
        list[2..4].copy_from_slice(&(cscds.len() as u16).to_be_bytes());
        list[8..12].copy_from_slice(&(parts.len() as u32).to_be_bytes());
    }
    list.extend([cscds, parts].concat());
    let cdb = sixteen(0x83, u8::from(lid4), 2, 0, list.len());
    writing(lun, &cdb, list)
}

fn range(lba: u64, blocks: u32) -> Vec<u8> {
    [&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[0; 4]].concat()
}

/// POPULATE TOKEN of one range.
pub(super) fn populate_token(lun: u16, id: u32, lba: u64, blocks: u32) -> Command {
    let mut list = vec![0; 16];
    (list[1], list[15]) = (30, 16);
    list.extend(range(lba, blocks));
    writing(lun, &sixteen(0x83, 0x10, 6, id, list.len()), list)
}

/// RECEIVE ROD TOKEN INFORMATION: see [`token_in`].
pub(super) fn receive_token(lun: u16, id: u32) -> Command {
    reading(lun, &sixteen(0x84, 0x07, 2, id, 2048), 2048)
}

/// The token in the data of RECEIVE ROD TOKEN INFORMATION.
pub(super) fn token_in(data: &[u8]) -> Option<Vec<u8>> {
    Some(data.get(38..38 + TOKEN)?.to_vec())
}

/// WRITE USING TOKEN of one range.
pub(super) fn write_using_token(lun: u16, id: u32, token: &[u8], lba: u64, blocks: u32) -> Command {
    let mut list = vec![0; 536];
    list[..2].copy_from_slice(&550u16.to_be_bytes());
    list[16..16 + TOKEN].copy_from_slice(token);
    list[535] = 16;
    list.extend(range(lba, blocks));
    writing(lun, &sixteen(0x83, 0x11, 6, id, list.len()), list)
}
