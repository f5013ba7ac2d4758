//! The storage format of APTPL state: versioned, checksummed, bounded. Owns these bytes; the caller
//! chooses where to store them.
//!
//! ```text
//! 0   "STAGPR", version 00 01 or 00 02
//! 8   TYPE of the reservation or 0; reserved; number of registrations, 16 bits
//! 12  a registration: flags (1 holds the reservation; others are ignored); reserved;
//!     target port, 16 bits; key, 64 bits; length of the TransportID, 16 bits; the TransportID;
//!     of version 2: length of the caller's note, 16 bits; the note
//! n   CRC32C of all bytes before, 32 bits
//! ```
//! Version 2 is written only if there is a note. Numbers are big-endian. PRGENERATION is not stored:
//! a power on sets it to zero (SPC-4 §6.15.2).

use super::{Held, ItPort, Registration, ReservationType, Reservations, TransportId};

const MAGIC: [u8; 8] = *b"STAGPR\x00\x01";
const MAGIC_WITH_NOTES: [u8; 8] = *b"STAGPR\x00\x02";
const HOLDS: u8 = 1;

/// The caller's notes on registrations, by their ports.
pub type Notes = Vec<(ItPort, Vec<u8>)>;

/// Why stored state cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// The header is unknown: not this format, or another version.
    #[error("not stored reservation state, or of an unknown version")]
    Unknown,
    /// The checksum does not match: torn or altered.
    #[error("the checksum does not match")]
    Checksum,
    /// The checksum matches and the content contradicts itself.
    #[error("the content is inconsistent")]
    Inconsistent,
}

fn checksum(bytes: &[u8]) -> u32 {
    // CRC32C, reflected, bit by bit: for a few kilobytes, rarely.
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

/// Takes `N` bytes off the front.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], SavedError> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or(SavedError::Inconsistent)?;
    *rest = tail;
    Ok(*head)
}

impl Reservations {
    /// Maximum length of [`Self::to_bytes`], in bytes.
    pub const MAX_SAVED_LEN: usize =
        12 + Self::MAX_REGISTRATIONS * (14 + TransportId::MAX_LEN + 2 + Self::MAX_NOTE_LEN) + 4;

    /// Longest note on a registration, in bytes. Longer ones are not kept.
    pub const MAX_NOTE_LEN: usize = 512;

    /// The state that must survive a power loss: everything except PRGENERATION while APTPL is
    /// active, otherwise nothing.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_bytes_with(|_| None)
    }

    /// [`Self::to_bytes`] with the caller's notes on registrations.
    pub fn to_bytes_with(&self, note: impl Fn(&ItPort) -> Option<Vec<u8>>) -> Vec<u8> {
        let registrations = if self.aptpl { self.registrations.as_slice() } else { &[] };
        let kind = self.held.as_ref().filter(|_| self.aptpl).map_or(0, |held| held.kind as u8);
        let note = |r: &Registration| note(&r.port).filter(|note| note.len() <= Self::MAX_NOTE_LEN);
        let notes: Vec<Option<Vec<u8>>> = registrations.iter().map(note).collect();
        let noted = notes.iter().any(Option::is_some);
        let mut bytes = if noted { MAGIC_WITH_NOTES } else { MAGIC }.to_vec();
        bytes.extend_from_slice(&[kind, 0]);
        bytes.extend_from_slice(&u16::try_from(registrations.len()).unwrap_or(u16::MAX).to_be_bytes());
        for (r, note) in registrations.iter().zip(notes) {
            let holds = if self.holds(&r.port) { HOLDS } else { 0 };
            let id = r.port.initiator.bytes();
            bytes.extend_from_slice(&[holds, 0]);
            bytes.extend_from_slice(&r.port.target_port.to_be_bytes());
            bytes.extend_from_slice(&r.key.to_be_bytes());
            bytes.extend_from_slice(&u16::try_from(id.len()).unwrap_or(u16::MAX).to_be_bytes());
            bytes.extend_from_slice(id);
            if noted {
                let note = note.unwrap_or_default();
                bytes.extend_from_slice(&u16::try_from(note.len()).unwrap_or(u16::MAX).to_be_bytes());
                bytes.extend_from_slice(&note);
            }
        }
        bytes.extend_from_slice(&checksum(&bytes).to_be_bytes());
        bytes
    }

    /// The whole state, for another process that takes over the unit: the bytes, whether APTPL is
    /// active, and PRGENERATION. Without RESERVE, which ends with its session.
    pub fn hand_over(&self) -> (Vec<u8>, bool, u32) {
        (self.whole().to_bytes(), self.aptpl, self.generation)
    }

    /// The state as [`Self::to_bytes`] writes it whole.
    pub fn whole(&self) -> Self {
        Self { aptpl: true, ..self.clone() }
    }

    /// Restores the state from [`Self::hand_over`].
    ///
    /// # Errors
    /// Those of [`Self::from_bytes`].
    pub fn take_over(bytes: &[u8], aptpl: bool, generation: u32) -> Result<Self, SavedError> {
        Ok(Self { aptpl, generation, ..Self::from_bytes(bytes)? })
    }

    /// The state after a power on, from the [`Self::to_bytes`] stored before it.
    ///
    /// # Errors
    /// The bytes are not of this format, are torn, or contradict themselves. Then do not open the
    /// unit: it must not run without its reservations.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SavedError> {
        Self::from_bytes_with(bytes).map(|(state, _)| state)
    }

    /// [`Self::from_bytes`] with the notes of [`Self::to_bytes_with`].
    ///
    /// # Errors
    /// Those of [`Self::from_bytes`].
    pub fn from_bytes_with(bytes: &[u8]) -> Result<(Self, Notes), SavedError> {
        let noted = bytes.starts_with(&MAGIC_WITH_NOTES);
        if !noted && !bytes.starts_with(&MAGIC) {
            return Err(SavedError::Unknown);
        }
        let (content, sum) = bytes.split_last_chunk::<4>().ok_or(SavedError::Checksum)?;
        if checksum(content) != u32::from_be_bytes(*sum) {
            return Err(SavedError::Checksum);
        }
        let mut rest = content.get(MAGIC.len()..).ok_or(SavedError::Inconsistent)?;
        let [kind, _, high, low] = take(&mut rest)?;
        let count = usize::from(u16::from_be_bytes([high, low]));
        if count > Self::MAX_REGISTRATIONS {
            return Err(SavedError::Inconsistent);
        }
        let kind = match kind {
            0 => None,
            code => Some(ReservationType::from_code(code).ok_or(SavedError::Inconsistent)?),
        };
        let mut state = Self { aptpl: count != 0, ..Self::default() };
        let (mut holders, mut notes) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let [flags, _] = take(&mut rest)?;
            let target_port = u16::from_be_bytes(take(&mut rest)?);
            let key = u64::from_be_bytes(take(&mut rest)?);
            let length = usize::from(u16::from_be_bytes(take(&mut rest)?));
            let id = rest.get(..length).ok_or(SavedError::Inconsistent)?;
            rest = &rest[length..];
            let (initiator, used) = TransportId::parse(id).map_err(|_| SavedError::Inconsistent)?;
            let port = ItPort { initiator, target_port };
            if used != length || key == 0 || state.key_of(&port).is_some() {
                return Err(SavedError::Inconsistent);
            }
            if flags & HOLDS != 0 {
                holders.push(port.clone());
            }
            let length = if noted { usize::from(u16::from_be_bytes(take(&mut rest)?)) } else { 0 };
            if length > Self::MAX_NOTE_LEN {
                return Err(SavedError::Inconsistent);
            }
            let (note, behind) = rest.split_at_checked(length).ok_or(SavedError::Inconsistent)?;
            rest = behind;
            if !note.is_empty() {
                notes.push((port.clone(), note.to_vec()));
            }
            state.registrations.push(Registration { port, key });
        }
        state.held = match (kind, holders.len()) {
            (None, 0) => None,
            (Some(kind), n) if kind.all_registrants() && n == count && n > 0 => {
                Some(Held { kind, holder: None })
            }
            (Some(kind), 1) if !kind.all_registrants() => Some(Held { kind, holder: holders.pop() }),
            _ => return Err(SavedError::Inconsistent),
        };
        if rest.is_empty() { Ok((state, notes)) } else { Err(SavedError::Inconsistent) }
    }
}
