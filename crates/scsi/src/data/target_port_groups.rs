//! REPORT TARGET PORT GROUPS data (SPC-4 §6.37).

use super::Fields;

/// ASYMMETRIC ACCESS STATE (SPC-4 table 317).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessState {
    /// Active/optimized.
    ActiveOptimized,
    /// Active/non-optimized.
    ActiveNonOptimized,
    /// Standby.
    Standby,
    /// Unavailable.
    Unavailable,
    /// Logical block dependent.
    LogicalBlockDependent,
    /// Offline.
    Offline,
    /// Between states.
    Transitioning,
}

impl AccessState {
    const fn code(self) -> u8 {
        match self {
            Self::ActiveOptimized => 0x0,
            Self::ActiveNonOptimized => 0x1,
            Self::Standby => 0x2,
            Self::Unavailable => 0x3,
            Self::LogicalBlockDependent => 0x4,
            Self::Offline => 0xE,
            Self::Transitioning => 0xF,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x0 => Self::ActiveOptimized,
            0x1 => Self::ActiveNonOptimized,
            0x2 => Self::Standby,
            0x3 => Self::Unavailable,
            0x4 => Self::LogicalBlockDependent,
            0xE => Self::Offline,
            0xF => Self::Transitioning,
            _ => return None,
        })
    }
}

/// One target port group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPortGroup {
    /// TARGET PORT GROUP.
    pub id: u16,
    /// PREF: the preferred group.
    pub preferred: bool,
    /// ASYMMETRIC ACCESS STATE.
    pub state: AccessState,
    /// Which states the group can have: T_SUP, O_SUP, LBD_SUP, U_SUP, S_SUP, AN_SUP, AO_SUP, as on the wire.
    pub supported: u8,
    /// STATUS CODE: 0 none, 1 set by SET TARGET PORT GROUPS, 2 by implicit behavior.
    pub status: u8,
    /// RELATIVE TARGET PORT IDENTIFIERs, at most 255.
    pub ports: Vec<u16>,
}

impl TargetPortGroup {
    /// A group that is always active/optimized.
    pub fn optimized(id: u16, ports: Vec<u16>) -> Self {
        Self { id, preferred: false, state: AccessState::ActiveOptimized, supported: 0x01, status: 0, ports }
    }
}

/// The data; `extended` has the header of PARAMETER DATA FORMAT 001b.
pub fn emit(groups: &[TargetPortGroup], extended: bool) -> Vec<u8> {
    let mut out = vec![0; 4];
    if extended {
        out.extend([0x10, 0, 0, 0]); // RETURN DATA FORMAT, IMPLICIT TRANSITION TIME
    }
    for group in groups {
        let ports = &group.ports[..group.ports.len().min(255)];
        out.extend([u8::from(group.preferred) << 7 | group.state.code(), group.supported]);
        out.extend(group.id.to_be_bytes());
        out.extend([0, group.status, 0, ports.len() as u8]);
        for port in ports {
            out.extend([0, 0]);
            out.extend(port.to_be_bytes());
        }
    }
    let len = (out.len() - 4) as u32; // RETURN DATA LENGTH
    out[..4].copy_from_slice(&len.to_be_bytes());
    out
}

/// Reads the data without the extended header. `None` when it is cut within a group or a state is reserved.
pub fn parse(bytes: &[u8]) -> Option<Vec<TargetPortGroup>> {
    let len = Fields(bytes).u32(0)? as usize;
    let mut list = bytes.get(4..)?;
    list = &list[..list.len().min(len)];
    let mut groups = Vec::new();
    while !list.is_empty() {
        let f = Fields(list);
        let end = 8 + 4 * usize::from(f.u8(7)?);
        groups.push(TargetPortGroup {
            id: f.u16(2)?,
            preferred: list[0] & 0x80 != 0,
            state: AccessState::from_code(list[0] & 0x0F)?,
            supported: list[1],
            status: list[5],
            ports: list.get(8..end)?.chunks_exact(4).map(|p| u16::from_be_bytes([p[2], p[3]])).collect(),
        });
        list = &list[end..];
    }
    Some(groups)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_group_lists_its_ports() {
        let groups = [TargetPortGroup::optimized(0x0102, vec![1, 2])];
        let data = emit(&groups, false);
        assert_eq!(data, [0, 0, 0, 16, 0, 1, 1, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]);
        assert_eq!(parse(&data).as_deref(), Some(&groups[..]));
        assert_eq!(parse(&data[..19]), None);
    }

    #[test]
    fn the_extended_header_counts_in_the_length() {
        assert_eq!(emit(&[], true), [0, 0, 0, 4, 0x10, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_parse_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
        }
    }
}
