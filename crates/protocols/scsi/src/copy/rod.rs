//! Copies by token (SPC-4 §5.17.6, SBC-3 §4.28): the parameter lists of POPULATE TOKEN and WRITE
//! USING TOKEN, and the ROD token itself. Owns bytes and limits; moves no block and keeps no state.

use crate::{AdditionalSense, Sense};

/// Bytes of a ROD token.
pub const TOKEN_LEN: usize = 512;
/// ROD TOKEN LENGTH: the bytes after the field.
const TOKEN_LENGTH_FIELD: u16 = 0x01F8;

/// ROD TYPE: point in time copy, the copy manager chooses the method.
pub(crate) const TYPE_POINT_IN_TIME: u32 = 0x0080_0000;
/// ROD TYPE: point in time copy that a change of the data invalidates.
pub const TYPE_CHANGE_VULNERABLE: u32 = 0x0080_0001;
/// ROD TYPE: any point in time copy.
pub(crate) const TYPE_ANY_POINT_IN_TIME: u32 = 0x0080_FFFF;
/// ROD TYPE: block device zero (SBC-3 §4.28.4).
pub(crate) const TYPE_ZERO: u32 = 0xFFFF_0001;

/// MAXIMUM RANGE DESCRIPTORS.
pub const MAX_RANGES: usize = 64;
/// MAXIMUM INACTIVITY TIMEOUT, seconds.
pub(crate) const MAX_INACTIVITY_S: u32 = 600;
/// DEFAULT INACTIVITY TIMEOUT, seconds.
pub(crate) const DEFAULT_INACTIVITY_S: u32 = 60;
/// Maximum lifetime of a token in seconds, however often it is used: MAXIMUM TOKEN LIFETIME.
pub(crate) const MAX_LIFETIME_S: u32 = 3600;
/// Maximum bytes that one command represents or writes: MAXIMUM BYTES IN BLOCK ROD.
pub const MAX_BYTES: u64 = 1 << 30;
/// Recommended bytes for one command to represent or write: OPTIMAL BYTES IN BLOCK ROD TRANSFER.
pub(crate) const OPTIMAL_BYTES: u64 = 64 << 20;

/// The longest parameter list to receive, bytes.
pub const MAX_LIST_LEN: u32 = (WRITE_HEADER + 16 * (MAX_RANGES + 1)) as u32;

const POPULATE_HEADER: usize = 16;
const WRITE_HEADER: usize = 536;

/// A block device range descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// LOGICAL BLOCK ADDRESS.
    pub lba: u64,
    /// NUMBER OF LOGICAL BLOCKS.
    pub blocks: u32,
}

/// POPULATE TOKEN's parameter list (SBC-3 §5.12.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PopulateList {
    /// IMMED.
    pub immediate: bool,
    /// Inactivity timeout of the token, seconds.
    pub inactivity_s: u32,
    /// ROD TYPE of the token. If the list leaves the choice to the copy manager, this is
    /// [`TYPE_CHANGE_VULNERABLE`].
    pub rod_type: u32,
    /// The blocks that the token represents.
    pub ranges: Vec<BlockRange>,
}

/// WRITE USING TOKEN's parameter list (SBC-3 §5.59.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteList {
    /// IMMED.
    pub immediate: bool,
    /// DEL_TKN: delete the token afterwards.
    pub delete: bool,
    /// OFFSET INTO ROD in blocks of the destination unit.
    pub offset_blocks: u64,
    /// ROD TOKEN.
    pub token: Box<[u8; TOKEN_LEN]>,
    /// The destination blocks.
    pub ranges: Vec<BlockRange>,
}

fn field(byte: u16) -> Sense {
    Sense::invalid_field_in_parameter_list(byte, None)
}

fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl PopulateList {
    /// Reads the list for a unit with blocks of `block_len` bytes. The caller handles a length of
    /// zero, which is no error.
    ///
    /// # Errors
    /// The sense data for the response.
    pub fn parse(list: &[u8], block_len: u32) -> Result<Self, Sense> {
        if list.len() < POPULATE_HEADER {
            return Err(Sense::parameter_list_length_error());
        }
        if be16(list, 0) < 0x1E {
            return Err(field(0));
        }
        let inactivity_s = match be32(list, 4) {
            0 => DEFAULT_INACTIVITY_S,
            seconds if seconds > MAX_INACTIVITY_S => return Err(field(4)),
            seconds => seconds,
        };
        let typed = list[2] & 0x02 != 0; // RTV
        let rod_type = if typed { be32(list, 8) } else { TYPE_ANY_POINT_IN_TIME };
        if !matches!(rod_type, TYPE_POINT_IN_TIME | TYPE_CHANGE_VULNERABLE | TYPE_ANY_POINT_IN_TIME) {
            return Err(field(8));
        }
        let rod_type = if rod_type == TYPE_ANY_POINT_IN_TIME { TYPE_CHANGE_VULNERABLE } else { rod_type };
        let ranges = ranges(list, 14, block_len)?;
        Ok(Self { immediate: list[2] & 0x01 != 0, inactivity_s, rod_type, ranges })
    }
}

impl WriteList {
    /// Reads the list for a unit with blocks of `block_len` bytes. The caller handles a length of
    /// zero, which is no error.
    ///
    /// # Errors
    /// The sense data for the response.
    pub fn parse(list: &[u8], block_len: u32) -> Result<Self, Sense> {
        let Some((header, _)) = list.split_first_chunk::<WRITE_HEADER>() else {
            return Err(Sense::parameter_list_length_error());
        };
        if be16(header, 0) < 0x0226 || be16(header, 0) != be16(header, 534) + 534 {
            return Err(field(0));
        }
        let mut token = Box::new([0; TOKEN_LEN]);
        token.copy_from_slice(&header[16..16 + TOKEN_LEN]);
        let offset = [8, 9, 10, 11, 12, 13, 14, 15].map(|at| header[at]);
        Ok(Self {
            immediate: header[2] & 0x01 != 0,
            delete: header[2] & 0x02 != 0,
            offset_blocks: u64::from_be_bytes(offset),
            token,
            ranges: ranges(list, 534, block_len)?,
        })
    }
}

/// Reads the range descriptors that follow their length field at `at`. Ignores an incomplete
/// descriptor.
fn ranges(list: &[u8], at: usize, block_len: u32) -> Result<Vec<BlockRange>, Sense> {
    let len = be16(list, at);
    if len < 16 {
        return Err(field(at as u16));
    }
    let there = &list[at + 2..];
    let mut ranges = Vec::new();
    for d in there[..there.len().min(len)].chunks_exact(16) {
        if ranges.len() == MAX_RANGES {
            let too_many = AdditionalSense::TOO_MANY_SEGMENT_DESCRIPTORS;
            return Err(Sense::in_parameter_list(too_many, at as u16, None));
        }
        let lba = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| d[at]);
        ranges.push(BlockRange { lba: u64::from_be_bytes(lba), blocks: be32(d, 8) });
    }
    let bytes: u64 = ranges.iter().map(|range| u64::from(range.blocks) * u64::from(block_len)).sum();
    if bytes > MAX_BYTES {
        return Err(field(at as u16 + 10));
    }
    // The ranges must not overlap.
    let mut sorted: Vec<BlockRange> = ranges.iter().copied().filter(|range| range.blocks > 0).collect();
    sorted.sort_unstable_by_key(|range| range.lba);
    let overlap = |pair: &[BlockRange]| pair[0].lba.saturating_add(u64::from(pair[0].blocks)) > pair[1].lba;
    if sorted.windows(2).any(overlap) {
        return Err(field(at as u16 + 2));
    }
    Ok(ranges)
}

/// The fields of a ROD token (SPC-4 §5.17.6.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFields<'a> {
    /// ROD TYPE.
    pub rod_type: u32,
    /// COPY MANAGER ROD TOKEN IDENTIFIER.
    pub id: [u8; 8],
    /// NAA designator of the unit that created it, at most 16 bytes.
    pub creator: &'a [u8],
    /// NUMBER OF BYTES REPRESENTED.
    pub bytes: u64,
    /// Block length of the creator, bytes.
    pub block_len: u32,
    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT of the creator.
    pub physical_exponent: u8,
    /// SCSI name of the target device.
    pub target: &'a str,
    /// Random bytes that make the token unguessable.
    pub secret: [u8; 32],
}

/// Offset of the token's random bytes.
const SECRET: usize = 480;

impl TokenFields<'_> {
    /// The token's bytes.
    pub fn emit(&self) -> Box<[u8; TOKEN_LEN]> {
        let mut token = Box::new([0; TOKEN_LEN]);
        token[..4].copy_from_slice(&self.rod_type.to_be_bytes());
        token[6..8].copy_from_slice(&TOKEN_LENGTH_FIELD.to_be_bytes());
        token[8..16].copy_from_slice(&self.id);
        // CREATOR LOGICAL UNIT DESCRIPTOR: an identification descriptor CSCD descriptor.
        let creator = &self.creator[..self.creator.len().min(16)];
        token[16] = super::CSCD_IDENTIFICATION;
        token[20] = 1; // CODE SET: binary
        token[21] = 3; // NAA
        token[23] = creator.len() as u8;
        token[24..24 + creator.len()].copy_from_slice(creator);
        token[45..48].copy_from_slice(&self.block_len.to_be_bytes()[1..]);
        token[56..64].copy_from_slice(&self.bytes.to_be_bytes());
        // Device type specific data (SBC-3 §4.28.5), in the layout of READ CAPACITY (16).
        token[96..100].copy_from_slice(&self.block_len.to_be_bytes());
        token[101] = self.physical_exponent & 0x0F;
        // TARGET DEVICE DESCRIPTOR: an iSCSI SCSI name string.
        let mut name = Vec::new();
        let mut end = self.target.len().min(223);
        while !self.target.is_char_boundary(end) {
            end -= 1;
        }
        let identifier = crate::data::vpd::Identifier::ScsiName(self.target[..end].into());
        crate::data::vpd::Designator::iscsi_device(identifier).emit(&mut name);
        token[128..128 + name.len()].copy_from_slice(&name);
        token[SECRET..].copy_from_slice(&self.secret);
        token
    }
}

/// The token that represents zeros.
pub fn zero_token() -> Box<[u8; TOKEN_LEN]> {
    let mut token = Box::new([0; TOKEN_LEN]);
    token[..4].copy_from_slice(&TYPE_ZERO.to_be_bytes());
    token[6..8].copy_from_slice(&TOKEN_LENGTH_FIELD.to_be_bytes());
    token
}

/// A token from an initiator, before it is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presented<'a> {
    /// The block device zero ROD token.
    Zero,
    /// A token made by a copy manager.
    Made {
        /// COPY MANAGER ROD TOKEN IDENTIFIER.
        id: [u8; 8],
        /// NAA designator of its creator.
        creator: &'a [u8],
    },
}

/// INVALID TOKEN OPERATION with this qualifier.
pub const fn invalid_token(additional: AdditionalSense) -> Sense {
    Sense::illegal_request(additional)
}

/// Reads the header of a token.
///
/// # Errors
/// INVALID TOKEN LENGTH, UNSUPPORTED TOKEN TYPE, TOKEN CORRUPT.
pub fn present(token: &[u8; TOKEN_LEN]) -> Result<Presented<'_>, Sense> {
    if be16(token, 6) != usize::from(TOKEN_LENGTH_FIELD) {
        return Err(invalid_token(AdditionalSense::INVALID_TOKEN_LENGTH));
    }
    match be32(token, 0) {
        TYPE_ZERO => Ok(Presented::Zero),
        TYPE_POINT_IN_TIME | TYPE_CHANGE_VULNERABLE => {
            let named = token[16] == super::CSCD_IDENTIFICATION && token[21] == 3;
            let creator = token[24..40].get(..usize::from(token[23])).filter(|_| named);
            let creator = creator.ok_or(invalid_token(AdditionalSense::TOKEN_CORRUPT))?;
            let id = [8, 9, 10, 11, 12, 13, 14, 15].map(|at| token[at]);
            Ok(Presented::Made { id, creator })
        }
        _ => Err(invalid_token(AdditionalSense::UNSUPPORTED_TOKEN_TYPE)),
    }
}

/// The descriptors of the Third-party Copy VPD page for tokens: block device ROD limits, ROD token
/// features, supported ROD types. Each is a type and its content.
pub(super) fn descriptors(block_len: u32) -> [(u16, Vec<u8>); 3] {
    let blocks = |bytes: u64| (bytes / u64::from(block_len.max(1))).to_be_bytes();
    let mut limits = vec![0; 0x20];
    limits[6..8].copy_from_slice(&(MAX_RANGES as u16).to_be_bytes());
    limits[8..12].copy_from_slice(&MAX_INACTIVITY_S.to_be_bytes());
    limits[12..16].copy_from_slice(&DEFAULT_INACTIVITY_S.to_be_bytes());
    limits[16..24].copy_from_slice(&blocks(MAX_BYTES));
    limits[24..32].copy_from_slice(&blocks(OPTIMAL_BYTES));

    let mut device = vec![0; 48];
    device[2..4].copy_from_slice(&0x2Cu16.to_be_bytes());
    device[6..8].copy_from_slice(&1u16.to_be_bytes()); // OPTIMAL BLOCK ROD LENGTH GRANULARITY
    device[8..16].copy_from_slice(&MAX_BYTES.to_be_bytes());
    for at in [16, 24, 32] {
        device[at..at + 8].copy_from_slice(&OPTIMAL_BYTES.to_be_bytes());
    }
    // REMOTE TOKENS is 0: only tokens of this copy manager are valid.
    let mut features = vec![0; 44];
    features[12..16].copy_from_slice(&1u32.to_be_bytes());
    features[16..20].copy_from_slice(&MAX_LIFETIME_S.to_be_bytes());
    features[20..24].copy_from_slice(&MAX_INACTIVITY_S.to_be_bytes());
    features[42..44].copy_from_slice(&(device.len() as u16).to_be_bytes());
    features.extend(device);

    let mut types = vec![0; 4];
    for (rod_type, token_out, preference) in [
        (TYPE_POINT_IN_TIME, true, 0x8000u16),
        (TYPE_CHANGE_VULNERABLE, true, 0xFFFF),
        (TYPE_ZERO, false, 0x0001),
    ] {
        let mut d = [0; 64];
        d[..4].copy_from_slice(&rod_type.to_be_bytes());
        d[4] = 0x02 | u8::from(token_out); // TOKEN_IN, TOKEN_OUT
        d[6..8].copy_from_slice(&preference.to_be_bytes());
        types.extend(d);
    }
    let len = (types.len() - 4) as u16;
    types[2..4].copy_from_slice(&len.to_be_bytes());
    [(0x0000, limits), (0x0106, features), (0x0108, types)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn populate(ranges: &[(u64, u32)]) -> Vec<u8> {
        let mut list = vec![0; 16];
        for (lba, blocks) in ranges {
            list.extend(lba.to_be_bytes());
            list.extend(blocks.to_be_bytes());
            list.extend([0; 4]);
        }
        let len = list.len() as u16;
        list[..2].copy_from_slice(&(len - 2).to_be_bytes());
        list[14..16].copy_from_slice(&(len - 16).to_be_bytes());
        list
    }

    fn write(token: &[u8; TOKEN_LEN], ranges: &[(u64, u32)]) -> Vec<u8> {
        let descriptors = populate(ranges)[16..].to_vec();
        let mut list = vec![0; 536];
        list[..2].copy_from_slice(&(534 + descriptors.len() as u16).to_be_bytes());
        list[16..528].copy_from_slice(token);
        list[534..536].copy_from_slice(&(descriptors.len() as u16).to_be_bytes());
        list.extend(descriptors);
        list
    }

    fn fields() -> TokenFields<'static> {
        TokenFields {
            rod_type: TYPE_CHANGE_VULNERABLE,
            id: [7; 8],
            creator: &[0x31, 2, 3, 4, 5, 6, 7, 8],
            bytes: 1 << 20,
            block_len: 512,
            physical_exponent: 3,
            target: "iqn.2000-01.com.example:target",
            secret: [9; 32],
        }
    }

    #[test]
    fn a_populate_list_says_what_and_how_long() {
        let mut list = populate(&[(8, 16), (64, 0)]);
        let parsed = PopulateList::parse(&list, 512).unwrap();
        assert_eq!(parsed.ranges, [BlockRange { lba: 8, blocks: 16 }, BlockRange { lba: 64, blocks: 0 }]);
        assert_eq!((parsed.rod_type, parsed.inactivity_s), (TYPE_CHANGE_VULNERABLE, DEFAULT_INACTIVITY_S));
        list[2] = 3;
        list[4..8].copy_from_slice(&30u32.to_be_bytes());
        list[8..12].copy_from_slice(&TYPE_POINT_IN_TIME.to_be_bytes());
        let parsed = PopulateList::parse(&list, 512).unwrap();
        assert!(parsed.immediate);
        assert_eq!((parsed.rod_type, parsed.inactivity_s), (TYPE_POINT_IN_TIME, 30));
        // Persistent copies and types other than point in time copies are not supported.
        for rod_type in [0x0080_0002u32, 0x0001_0000, TYPE_ZERO] {
            list[8..12].copy_from_slice(&rod_type.to_be_bytes());
            assert_eq!(PopulateList::parse(&list, 512), Err(field(8)));
        }
    }

    #[test]
    fn lists_that_the_standard_refuses_are_refused_where_they_are_wrong() {
        let refused = |list: &[u8]| PopulateList::parse(list, 512).unwrap_err();
        assert_eq!(refused(&[0; 15]), Sense::parameter_list_length_error());
        assert_eq!(refused(&[0; 32]), field(0));
        let mut late = populate(&[(0, 1)]);
        late[4] = 1;
        assert_eq!(refused(&late), field(4));
        let mut short = populate(&[(0, 1)]);
        short[15] = 15;
        assert_eq!(refused(&short), field(14));
        assert_eq!(refused(&populate(&[(0, 9), (8, 1)])), field(16));
        assert_eq!(refused(&populate(&[(0, u32::MAX)])), field(24));
        let many: Vec<_> = (0..=MAX_RANGES as u64).map(|lba| (lba, 1)).collect();
        assert_eq!(refused(&populate(&many)).additional, AdditionalSense::TOO_MANY_SEGMENT_DESCRIPTORS);
        assert!(populate(&many).len() <= MAX_LIST_LEN as usize);
        // An incomplete descriptor does not count.
        let cut = populate(&[(0, 1), (1, 1)]);
        assert_eq!(PopulateList::parse(&cut[..cut.len() - 1], 512).unwrap().ranges.len(), 1);
    }

    #[test]
    fn a_token_that_was_made_is_known_by_its_creator_and_its_number() {
        let token = fields().emit();
        let made = Presented::Made { id: [7; 8], creator: &[0x31, 2, 3, 4, 5, 6, 7, 8] };
        assert_eq!(present(&token), Ok(made));
        let mut list = write(&token, &[(5, 6)]);
        list[2] = 3;
        list[15] = 2;
        let parsed = WriteList::parse(&list, 4096).unwrap();
        assert!(parsed.immediate && parsed.delete && parsed.token == token);
        assert_eq!((parsed.offset_blocks, parsed.ranges[0].lba), (2, 5));
        assert_eq!(present(&zero_token()), Ok(Presented::Zero));
        let refused = |at: usize, value: u8| {
            let mut token = fields().emit();
            token[at] = value;
            present(&token).unwrap_err().additional
        };
        assert_eq!(refused(7, 0xF0), AdditionalSense::INVALID_TOKEN_LENGTH);
        assert_eq!(refused(3, 2), AdditionalSense::UNSUPPORTED_TOKEN_TYPE);
        assert_eq!(refused(23, 17), AdditionalSense::TOKEN_CORRUPT);
        assert_eq!(WriteList::parse(&list[..535], 512), Err(Sense::parameter_list_length_error()));
        list[1] ^= 1;
        assert_eq!(WriteList::parse(&list, 512), Err(field(0)));
    }

    #[test]
    fn the_longest_target_name_leaves_the_secret_alone() {
        let name = "n".repeat(400);
        let token = TokenFields { target: &name, ..fields() }.emit();
        assert_eq!(token[SECRET..], [9; 32]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1700)) {
            let _ = PopulateList::parse(&bytes, 512);
            let _ = WriteList::parse(&bytes, 512);
            if let Some(token) = bytes.first_chunk::<TOKEN_LEN>() {
                let _ = present(token);
            }
        }
    }
}
