//! SERVICE ACTIONs: which command of which version a CDB with operation code 7Fh is.

use std::fmt;

use crate::Version;
pub use crate::cdb::table::Action;

impl Action {
    /// The command of a SERVICE ACTION, and the version that gives it this code.
    pub fn from_code(code: u16) -> Option<(Self, Version)> {
        let of = |version| {
            Self::ALL
                .iter()
                .find(|action| action.code(version) == Some(code))
                .map(|&action| (action, version))
        };
        // OSD-2 first: it is what runs all day. No code belongs to both.
        of(Version::Osd2).or_else(|| of(Version::Osd1))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_means_one_command_of_one_version() {
        for &action in Action::ALL {
            for version in [Version::Osd1, Version::Osd2] {
                if let Some(code) = action.code(version) {
                    assert_eq!(Action::from_code(code), Some((action, version)), "{action}");
                }
            }
        }
    }

    #[test]
    fn osd_2_adds_80h_to_osd_1_except_for_the_tunnels() {
        for &action in Action::ALL {
            if let (Some(one), Some(two)) = (action.code(Version::Osd1), action.code(Version::Osd2)) {
                let tunnel = matches!(action, Action::PerformScsiCommand | Action::PerformTmf);
                assert_eq!(two.wrapping_sub(one), if tunnel { 0xFFFE } else { 0x80 }, "{action}");
            }
        }
    }
}
