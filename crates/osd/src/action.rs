//! SERVICE ACTIONs: which command of which version a CDB with operation code 7Fh is.

use std::fmt;

/// Which standard a command follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// INCITS 400-2004.
    Osd1,
    /// INCITS 458-2011 and its drafts.
    Osd2,
}

macro_rules! actions {
    ($($name:ident = $osd1:expr, $osd2:literal, $text:literal;)*) => {
        /// An OSD command, by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Action {
            $(
                #[doc = concat!($text, ".")]
                $name,
            )*
        }

        impl Action {
            /// All of them, by OSD-2's codes.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// SERVICE ACTION in `version`; `None` for a command that OSD-1 does not have.
            pub const fn code(self, version: Version) -> Option<u16> {
                match (self, version) {
                    $(
                        (Self::$name, Version::Osd1) => $osd1,
                        (Self::$name, Version::Osd2) => Some($osd2),
                    )*
                }
            }

            /// The standard's name of the command.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

actions! {
    ObjectStructureCheck = None, 0x8880, "OBJECT STRUCTURE CHECK";
    Format = Some(0x8801), 0x8881, "FORMAT OSD";
    Create = Some(0x8802), 0x8882, "CREATE";
    List = Some(0x8803), 0x8883, "LIST";
    Punch = None, 0x8884, "PUNCH";
    Read = Some(0x8805), 0x8885, "READ";
    Write = Some(0x8806), 0x8886, "WRITE";
    Append = Some(0x8807), 0x8887, "APPEND";
    Flush = Some(0x8808), 0x8888, "FLUSH";
    Clear = None, 0x8889, "CLEAR";
    Remove = Some(0x880A), 0x888A, "REMOVE";
    CreatePartition = Some(0x880B), 0x888B, "CREATE PARTITION";
    RemovePartition = Some(0x880C), 0x888C, "REMOVE PARTITION";
    GetAttributes = Some(0x880E), 0x888E, "GET ATTRIBUTES";
    SetAttributes = Some(0x880F), 0x888F, "SET ATTRIBUTES";
    CreateAndWrite = Some(0x8812), 0x8892, "CREATE AND WRITE";
    CopyUserObjects = None, 0x8893, "COPY USER OBJECTS";
    CreateUserTrackingCollection = None, 0x8894, "CREATE USER TRACKING COLLECTION";
    CreateCollection = Some(0x8815), 0x8895, "CREATE COLLECTION";
    RemoveCollection = Some(0x8816), 0x8896, "REMOVE COLLECTION";
    ListCollection = Some(0x8817), 0x8897, "LIST COLLECTION";
    SetKey = Some(0x8818), 0x8898, "SET KEY";
    SetMasterKey = Some(0x8819), 0x8899, "SET MASTER KEY";
    FlushCollection = Some(0x881A), 0x889A, "FLUSH COLLECTION";
    FlushPartition = Some(0x881B), 0x889B, "FLUSH PARTITION";
    FlushOsd = Some(0x881C), 0x889C, "FLUSH OSD";
    Query = None, 0x88A0, "QUERY";
    RemoveMemberObjects = None, 0x88A1, "REMOVE MEMBER OBJECTS";
    GetMemberAttributes = None, 0x88A2, "GET MEMBER ATTRIBUTES";
    SetMemberAttributes = None, 0x88A3, "SET MEMBER ATTRIBUTES";
    CreateClone = None, 0x88A8, "CREATE CLONE";
    CreateSnapshot = None, 0x88A9, "CREATE SNAPSHOT";
    DetachClone = None, 0x88AA, "DETACH CLONE";
    RefreshSnapshotOrClone = None, 0x88AB, "REFRESH SNAPSHOT OR CLONE";
    RestorePartition = None, 0x88AC, "RESTORE PARTITION FROM SNAPSHOT";
    ReadMap = None, 0x88B1, "READ MAP";
    ReadMapsAndCompare = None, 0x88B2, "READ MAPS AND COMPARE";
    PerformScsiCommand = Some(0x8F7E), 0x8F7C, "PERFORM SCSI COMMAND";
    PerformTmf = Some(0x8F7F), 0x8F7D, "PERFORM TASK MANAGEMENT FUNCTION";
}

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
