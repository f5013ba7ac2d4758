//! REPORT TARGET PORT GROUPS data (SPC-4 §6.37) and SET TARGET PORT GROUPS parameter lists (SPC-4
//! §6.45).

use super::Fields;
use crate::Sense;

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
    /// Between two states.
    Transitioning,
}

/// Bits of [`TargetPortGroup::supported`].
pub mod supported {
    /// AO_SUP.
    pub const ACTIVE_OPTIMIZED: u8 = 1;
    /// AN_SUP.
    pub const ACTIVE_NON_OPTIMIZED: u8 = 1 << 1;
    /// S_SUP.
    pub const STANDBY: u8 = 1 << 2;
    /// U_SUP.
    pub const UNAVAILABLE: u8 = 1 << 3;
    /// LBD_SUP.
    pub const LOGICAL_BLOCK_DEPENDENT: u8 = 1 << 4;
    /// O_SUP.
    pub const OFFLINE: u8 = 1 << 6;
    /// T_SUP.
    pub const TRANSITIONING: u8 = 1 << 7;
    /// All bits.
    pub const ALL: u8 = 0xDF;
    /// The states that SET TARGET PORT GROUPS can set.
    pub(crate) const SETTABLE: u8 = ACTIVE_OPTIMIZED | ACTIVE_NON_OPTIMIZED | STANDBY | UNAVAILABLE | OFFLINE;
}

impl AccessState {
    /// All states that can be set, with their names in the configuration and on the command line.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("active/optimized", Self::ActiveOptimized),
        ("active/non-optimized", Self::ActiveNonOptimized),
        ("standby", Self::Standby),
        ("unavailable", Self::Unavailable),
        ("offline", Self::Offline),
    ];

    /// The state's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveOptimized => "active/optimized",
            Self::ActiveNonOptimized => "active/non-optimized",
            Self::Standby => "standby",
            Self::Unavailable => "unavailable",
            Self::LogicalBlockDependent => "logical block dependent",
            Self::Offline => "offline",
            Self::Transitioning => "transitioning",
        }
    }

    /// The state with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, state)| state)
    }

    /// The state's bit of [`supported`].
    pub const fn support(self) -> u8 {
        match self {
            Self::ActiveOptimized => supported::ACTIVE_OPTIMIZED,
            Self::ActiveNonOptimized => supported::ACTIVE_NON_OPTIMIZED,
            Self::Standby => supported::STANDBY,
            Self::Unavailable => supported::UNAVAILABLE,
            Self::LogicalBlockDependent => supported::LOGICAL_BLOCK_DEPENDENT,
            Self::Offline => supported::OFFLINE,
            Self::Transitioning => supported::TRANSITIONING,
        }
    }

    /// Whether read and write commands run.
    pub const fn active(self) -> bool {
        matches!(self, Self::ActiveOptimized | Self::ActiveNonOptimized | Self::LogicalBlockDependent)
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
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

    /// The state with this code; `None` for reserved ones.
    pub const fn from_code(code: u8) -> Option<Self> {
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
    /// The states that the group supports: T_SUP, O_SUP, LBD_SUP, U_SUP, S_SUP, AN_SUP, AO_SUP, as
    /// on the wire.
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

/// The data. With `transition_s`, IMPLICIT TRANSITION TIME in seconds, it has the header of
/// PARAMETER DATA FORMAT 001b.
pub fn emit(groups: &[TargetPortGroup], transition_s: Option<u8>) -> Vec<u8> {
    let mut out = vec![0; 4];
    if let Some(transition_s) = transition_s {
        out.extend([0x10, transition_s, 0, 0]); // RETURN DATA FORMAT, IMPLICIT TRANSITION TIME
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

/// Reads the data without the extended header. `None` if a group is truncated or a state is
/// reserved.
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

/// One descriptor of a SET TARGET PORT GROUPS parameter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetTargetPortGroup {
    /// ASYMMETRIC ACCESS STATE; `None` if it is reserved.
    pub state: Option<AccessState>,
    /// TARGET PORT GROUP OR TARGET PORT: a group for primary states, a relative target port
    /// identifier for offline.
    pub group_or_port: u16,
}

/// Reads a SET TARGET PORT GROUPS parameter list. An empty list has no requests.
///
/// # Errors
/// PARAMETER LIST LENGTH ERROR for a list that ends within its header or a descriptor.
pub fn parse_set(list: &[u8]) -> Result<Vec<SetTargetPortGroup>, Sense> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let descriptors = list.get(4..).filter(|descriptors| descriptors.len() % 4 == 0);
    let descriptors = descriptors.ok_or(Sense::parameter_list_length_error())?;
    Ok(descriptors
        .chunks_exact(4)
        .map(|d| SetTargetPortGroup {
            state: AccessState::from_code(d[0] & 0x0F),
            group_or_port: u16::from_be_bytes([d[2], d[3]]),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_group_lists_its_ports() {
        let groups = [TargetPortGroup::optimized(0x0102, vec![1, 2])];
        let data = emit(&groups, None);
        assert_eq!(data, [0, 0, 0, 16, 0, 1, 1, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]);
        assert_eq!(parse(&data).as_deref(), Some(&groups[..]));
        assert_eq!(parse(&data[..19]), None);
    }

    #[test]
    fn the_extended_header_counts_in_the_length() {
        assert_eq!(emit(&[], Some(9)), [0, 0, 0, 4, 0x10, 9, 0, 0]);
    }

    #[test]
    fn a_set_list_is_whole_descriptors_behind_a_header() {
        assert_eq!(parse_set(&[]), Ok(vec![]));
        assert_eq!(parse_set(&[0; 4]), Ok(vec![]));
        let set = SetTargetPortGroup { state: Some(AccessState::Standby), group_or_port: 0x0102 };
        assert_eq!(parse_set(&[0, 0, 0, 0, 0xF2, 0, 1, 2]), Ok(vec![set]));
        assert_eq!(parse_set(&[0, 0, 0, 0, 7, 0, 1, 2]).unwrap()[0].state, None);
        for cut in [1, 3, 5, 7] {
            assert_eq!(parse_set(&[0; 8][..cut]), Err(Sense::parameter_list_length_error()), "{cut}");
        }
    }

    #[test]
    fn names_and_codes_lead_back_to_their_states() {
        for (name, state) in AccessState::NAMES {
            assert_eq!((AccessState::named(name), state.name()), (Some(state), name));
            assert_eq!(AccessState::from_code(state.code()), Some(state));
        }
        assert_eq!(AccessState::named("transitioning"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_parse_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
            let _ = parse_set(&bytes);
        }
    }
}
