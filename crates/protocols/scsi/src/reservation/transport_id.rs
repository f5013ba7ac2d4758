//! TransportIDs (SPC-4 §7.6.4): the identity of an initiator port in a persistent reservation. Owns
//! their bytes and their equality; knows no sessions.

use smallvec::SmallVec;

/// PROTOCOL IDENTIFIER of iSCSI (SPC-4 table 440).
const PROTOCOL_ISCSI: u8 = 0x5;
/// Separator between name and ISID in an iSCSI TransportID of format 01b.
const ISID_MARK: &str = ",i,0x";

/// A TransportID in canonical form: reserved fields and padding zero, iSCSI names in lower case
/// (RFC 7143 §4.2.7.2). So two TransportIDs name the same port if their bytes are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransportId(SmallVec<[u8; 64]>);

/// Why bytes are not a TransportID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportIdError {
    /// The bytes end before the TransportID does.
    #[error("the TransportID is truncated")]
    Truncated,
    /// A field has a value that SPC-4 §7.6.4 does not allow.
    #[error("the TransportID is malformed")]
    Malformed,
}

impl TransportId {
    /// Bytes of every TransportID other than iSCSI's, and the minimum for iSCSI's.
    pub(crate) const MIN_LEN: usize = 24;
    /// Maximum accepted length in bytes: the header, an iSCSI name of 223 bytes, the separator,
    /// twelve digits, a NUL, padding.
    pub const MAX_LEN: usize = 4 + 244;

    /// Reads one TransportID from the front of `bytes` and returns it with its length in bytes.
    ///
    /// # Errors
    /// The bytes are truncated or break the format.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), TransportIdError> {
        let (&first, rest) = bytes.split_first().ok_or(TransportIdError::Truncated)?;
        if first & 0x0f != PROTOCOL_ISCSI {
            let body = bytes.get(..Self::MIN_LEN).ok_or(TransportIdError::Truncated)?;
            return Ok((Self(SmallVec::from_slice(body)), Self::MIN_LEN));
        }
        let length = match rest {
            [_, high, low, ..] => usize::from(u16::from_be_bytes([*high, *low])),
            _ => return Err(TransportIdError::Truncated),
        };
        let total = 4 + length;
        // §7.6.4.6: ADDITIONAL LENGTH is at least 20 and a multiple of four.
        if length % 4 != 0 || !(Self::MIN_LEN..=Self::MAX_LEN).contains(&total) {
            return Err(TransportIdError::Malformed);
        }
        let text = bytes.get(4..total).ok_or(TransportIdError::Truncated)?;
        let end = text.iter().position(|&b| b == 0).ok_or(TransportIdError::Malformed)?;
        let (text, padding) = text.split_at(end);
        if padding.iter().any(|&b| b != 0) || !text.iter().all(|b| b.is_ascii_graphic() || *b >= 0x80) {
            return Err(TransportIdError::Malformed);
        }
        let text = std::str::from_utf8(text).map_err(|_| TransportIdError::Malformed)?;
        let this = match first >> 6 {
            0b00 => Self::iscsi_device(text),
            0b01 => {
                let (name, isid) = text.rsplit_once(ISID_MARK).ok_or(TransportIdError::Malformed)?;
                if isid.is_empty() || isid.len() > 12 || !isid.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(TransportIdError::Malformed);
                }
                let isid = u64::from_str_radix(isid, 16).map_err(|_| TransportIdError::Malformed)?;
                Self::iscsi_port(name, isid)
            }
            _ => None,
        };
        Ok((this.ok_or(TransportIdError::Malformed)?, total))
    }

    /// The TransportID of an iSCSI initiator port (format 01b): its node name and 48-bit ISID.
    /// `None` if the name is empty or longer than 223 bytes (RFC 7143 §4.2.7.1).
    pub fn iscsi_port(name: &str, isid: u64) -> Option<Self> {
        Self::iscsi(0b01, name, &format!("{ISID_MARK}{:012x}", isid & 0xffff_ffff_ffff))
    }

    /// The TransportID of an iSCSI initiator device (format 00b): all its ports.
    pub fn iscsi_device(name: &str) -> Option<Self> {
        Self::iscsi(0b00, name, "")
    }

    /// A TransportID of no protocol (PROTOCOL IDENTIFIER Fh), for a nexus whose own one cannot be
    /// read.
    pub fn opaque(number: u64) -> Self {
        let mut bytes = SmallVec::from_elem(0, Self::MIN_LEN);
        bytes[0] = 0x0f;
        bytes[16..24].copy_from_slice(&number.to_be_bytes());
        Self(bytes)
    }

    fn iscsi(format: u8, name: &str, suffix: &str) -> Option<Self> {
        if name.is_empty() || name.len() > 223 || name.contains('\0') {
            return None;
        }
        let text = name.len() + suffix.len() + 1;
        let length = text.next_multiple_of(4).max(20);
        let mut bytes = SmallVec::with_capacity(4 + length);
        bytes.push(format << 6 | PROTOCOL_ISCSI);
        bytes.push(0);
        bytes.extend_from_slice(&u16::try_from(length).ok()?.to_be_bytes());
        bytes.extend(name.bytes().map(|b| b.to_ascii_lowercase()));
        bytes.extend_from_slice(suffix.as_bytes());
        bytes.resize(4 + length, 0);
        Some(Self(bytes))
    }

    /// The bytes on the wire.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The iSCSI node name, if this TransportID names an initiator device instead of one port
    /// (format 00b).
    pub fn device(&self) -> Option<&str> {
        (self.0[0] == PROTOCOL_ISCSI).then(|| self.text())
    }

    /// Whether `self` is a port of the iSCSI device called `name`.
    pub(crate) fn is_port_of(&self, name: &str) -> bool {
        self.0[0] == 0b01 << 6 | PROTOCOL_ISCSI
            && self.text().rsplit_once(ISID_MARK).is_some_and(|(mine, _)| mine.eq_ignore_ascii_case(name))
    }

    fn text(&self) -> &str {
        let text = self.0.get(4..).unwrap_or_default();
        let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
        std::str::from_utf8(&text[..end]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iscsi_port_survives_emit_and_parse() {
        let id = TransportId::iscsi_port("iqn.1993-08.org.debian:01:abc", 0x8000_0000_0001).unwrap();
        assert_eq!(id.bytes().len() % 4, 0);
        assert_eq!(id.bytes()[0], 0x45);
        let (again, used) = TransportId::parse(id.bytes()).unwrap();
        assert_eq!((&again, used), (&id, id.bytes().len()));
        assert!(again.is_port_of("IQN.1993-08.org.debian:01:ABC"));
        assert!(!again.is_port_of("iqn.1993-08.org.debian:01:ab"));
    }

    #[test]
    fn case_digits_and_padding_do_not_make_two_ports_of_one() {
        let id = TransportId::iscsi_port("iqn.2000-01.com.example:a", 0x23d).unwrap();
        let mut raw = vec![0x45, 0, 0, 60];
        raw.extend_from_slice(b"IQN.2000-01.com.example:A,i,0x23D\0");
        raw.resize(64, 0);
        assert_eq!(TransportId::parse(&raw).unwrap(), (id, 64));
    }

    #[test]
    fn a_short_name_is_padded_to_the_least_length() {
        let id = TransportId::iscsi_device("eui.0123").unwrap();
        assert_eq!(id.bytes().len(), TransportId::MIN_LEN);
        assert_eq!(TransportId::parse(id.bytes()).unwrap().0.device(), Some("eui.0123"));
    }

    #[test]
    fn other_protocols_are_24_opaque_bytes() {
        let mut raw = [0u8; 30];
        raw[0] = 6;
        raw[23] = 9;
        let (id, used) = TransportId::parse(&raw).unwrap();
        assert_eq!((id.bytes(), used), (&raw[..24], 24));
        assert_eq!(id.device(), None);
    }

    #[test]
    fn malformed_ids_are_refused_and_no_prefix_panics() {
        let id = TransportId::iscsi_port("iqn.2000-01.com.example:a", 1).unwrap();
        for cut in 0..id.bytes().len() {
            assert_eq!(TransportId::parse(&id.bytes()[..cut]), Err(TransportIdError::Truncated));
        }
        for at in 0..id.bytes().len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = id.bytes().to_vec();
                bytes[at] = value;
                let _ = TransportId::parse(&bytes);
            }
        }
        let mut unterminated = vec![0x45, 0, 0, 20];
        unterminated.resize(24, b'a');
        assert_eq!(TransportId::parse(&unterminated), Err(TransportIdError::Malformed));
        let mut odd = id.bytes().to_vec();
        odd[3] -= 1;
        assert_eq!(TransportId::parse(&odd), Err(TransportIdError::Malformed));
    }
}
