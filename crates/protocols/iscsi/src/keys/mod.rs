//! The text keys of RFC 7143 §12–13, RFC 7144 and RFC 7145: the type of each, its permitted senders
//! and phases, and its result function. [`negotiate`] runs negotiations by this table; [`params`]
//! holds the results.

pub mod negotiate;
pub mod params;

pub use negotiate::{NegotiationError, Negotiator, Phase, Role};
pub use params::{Digest, DigestChoice, Offer, Params, TaskReporting};

/// When a key may be used (RFC 7143 §13, "Use").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// LO: login of a session's leading connection only.
    LeadingOnly,
    /// IO: login of any connection only.
    InitializeOnly,
    /// FFPO: full feature phase only.
    FullFeatureOnly,
    /// ALL: any time.
    Always,
}

/// The sides that may originate a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Senders {
    /// Initiator only.
    Initiator,
    /// Target only.
    Target,
    /// Either.
    Both,
}

/// The type of a key's value and its result function (RFC 7143 §6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Boolean; the result is the AND of both sides.
    And,
    /// Boolean; the result is the OR of both sides.
    Or,
    /// Number from `.0` to `.1`; the result is the smaller of both sides.
    Min(u32, u32),
    /// Number from `.0` to `.1`; the result is the larger of both sides.
    Max(u32, u32),
    /// List in order of preference; the responder picks the first it supports.
    List,
    /// Each side declares its own number from `.0` to `.1`; no answer.
    DeclareNumber(u32, u32),
    /// The sender declares a boolean; no answer.
    DeclareBool,
    /// The sender declares text of at most this many bytes; no answer.
    DeclareText(usize),
    /// Markers of RFC 3720, now obsolete: the answer is `No` (RFC 7143 §13.25).
    ObsoleteBool,
    /// Marker intervals of RFC 3720, now obsolete: the answer is `Reject` (RFC 7143 §13.25).
    ObsoleteRange,
    /// The security keys of RFC 7143 §12, which [`crate::login`] handles.
    Security,
    /// `SendTargets`, which [`crate::discovery`] handles.
    SendTargets,
}

/// The condition that makes a key irrelevant (RFC 7143 §13, "Irrelevant when").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IrrelevantWhen {
    /// The key is always relevant.
    Never,
    /// `SessionType=Discovery`.
    Discovery,
    /// `SessionType=Discovery`, or `InitialR2T=Yes` and `ImmediateData=No`.
    NoUnsolicitedData,
    /// `RDMAExtensions=No`, as always over TCP (RFC 7145 §6).
    NoRdma,
}

/// A row of the key table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec {
    /// The key.
    pub key: Key,
    /// Its name on the wire.
    pub name: &'static str,
    /// The phases in which it may be used.
    pub use_: Use,
    /// The sides that may originate it.
    pub senders: Senders,
    /// The type of its value.
    pub kind: Kind,
    /// The condition that makes it irrelevant.
    pub irrelevant: IrrelevantWhen,
}

macro_rules! keys {
    ($($(#[$doc:meta])* $key:ident = $name:literal: $use_:ident, $senders:ident, $kind:expr, $irr:ident;)*) => {
        /// Every supported key.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Key { $($(#[$doc])* $key,)* }

        /// The table, in the order of [`Key`].
        pub(crate) const TABLE: &[Spec] = &[$(Spec {
            key: Key::$key, name: $name, use_: Use::$use_, senders: Senders::$senders,
            kind: $kind, irrelevant: IrrelevantWhen::$irr,
        },)*];
    };
}

/// 2^24 - 1: the largest data segment and burst, bytes.
const MAX_24_BITS: u32 = 0xff_ffff;

keys! {
    // RFC 7143 §12: security.
    /// RFC 7143 §12.
    AuthMethod = "AuthMethod": InitializeOnly, Both, Kind::Security, Never;
    /// RFC 7143 §12.1.3.
    ChapA = "CHAP_A": InitializeOnly, Both, Kind::Security, Never;
    /// RFC 7143 §12.1.3.
    ChapI = "CHAP_I": InitializeOnly, Both, Kind::Security, Never;
    /// RFC 7143 §12.1.3.
    ChapC = "CHAP_C": InitializeOnly, Both, Kind::Security, Never;
    /// RFC 7143 §12.1.3.
    ChapN = "CHAP_N": InitializeOnly, Both, Kind::Security, Never;
    /// RFC 7143 §12.1.3.
    ChapR = "CHAP_R": InitializeOnly, Both, Kind::Security, Never;
    // RFC 7143 §13.
    /// RFC 7143 §13.1.
    HeaderDigest = "HeaderDigest": InitializeOnly, Both, Kind::List, Never;
    /// RFC 7143 §13.1.
    DataDigest = "DataDigest": InitializeOnly, Both, Kind::List, Never;
    /// RFC 7143 §13.2.
    MaxConnections = "MaxConnections": LeadingOnly, Both, Kind::Min(1, 65535), Discovery;
    /// RFC 7143 §13.3.
    SendTargets = "SendTargets": FullFeatureOnly, Initiator, Kind::SendTargets, Never;
    /// RFC 7143 §13.4: sent by the initiator at login; by the target in answer to `SendTargets`
    /// only.
    TargetName = "TargetName": InitializeOnly, Initiator, Kind::DeclareText(223), Never;
    /// RFC 7143 §13.5.
    InitiatorName = "InitiatorName": InitializeOnly, Initiator, Kind::DeclareText(223), Never;
    /// RFC 7143 §13.6.
    TargetAlias = "TargetAlias": Always, Target, Kind::DeclareText(255), Never;
    /// RFC 7143 §13.7.
    InitiatorAlias = "InitiatorAlias": Always, Initiator, Kind::DeclareText(255), Never;
    /// RFC 7143 §13.8.
    TargetAddress = "TargetAddress": Always, Target, Kind::DeclareText(255), Never;
    /// RFC 7143 §13.9.
    TargetPortalGroupTag = "TargetPortalGroupTag": InitializeOnly, Target, Kind::DeclareNumber(0, 65535), Never;
    /// RFC 7143 §13.10.
    InitialR2T = "InitialR2T": LeadingOnly, Both, Kind::Or, Discovery;
    /// RFC 7143 §13.11.
    ImmediateData = "ImmediateData": LeadingOnly, Both, Kind::And, Discovery;
    /// RFC 7143 §13.12.
    MaxRecvDataSegmentLength = "MaxRecvDataSegmentLength": Always, Both, Kind::DeclareNumber(512, MAX_24_BITS), Never;
    /// RFC 7143 §13.13.
    MaxBurstLength = "MaxBurstLength": LeadingOnly, Both, Kind::Min(512, MAX_24_BITS), Discovery;
    /// RFC 7143 §13.14.
    FirstBurstLength = "FirstBurstLength": LeadingOnly, Both, Kind::Min(512, MAX_24_BITS), NoUnsolicitedData;
    /// RFC 7143 §13.15.
    DefaultTime2Wait = "DefaultTime2Wait": LeadingOnly, Both, Kind::Max(0, 3600), Never;
    /// RFC 7143 §13.16.
    DefaultTime2Retain = "DefaultTime2Retain": LeadingOnly, Both, Kind::Min(0, 3600), Never;
    /// RFC 7143 §13.17.
    MaxOutstandingR2T = "MaxOutstandingR2T": LeadingOnly, Both, Kind::Min(1, 65535), Discovery;
    /// RFC 7143 §13.18.
    DataPDUInOrder = "DataPDUInOrder": LeadingOnly, Both, Kind::Or, Discovery;
    /// RFC 7143 §13.19.
    DataSequenceInOrder = "DataSequenceInOrder": LeadingOnly, Both, Kind::Or, Discovery;
    /// RFC 7143 §13.20.
    ErrorRecoveryLevel = "ErrorRecoveryLevel": LeadingOnly, Both, Kind::Min(0, 2), Never;
    /// RFC 7143 §13.21.
    SessionType = "SessionType": LeadingOnly, Initiator, Kind::DeclareText(255), Never;
    /// RFC 7143 §13.23.
    TaskReporting = "TaskReporting": LeadingOnly, Both, Kind::List, Discovery;
    /// RFC 7143 §13.24, RFC 7144 §3.
    ISCSIProtocolLevel = "iSCSIProtocolLevel": LeadingOnly, Both, Kind::Min(0, 31), Discovery;
    /// RFC 7143 §13.25.
    IFMarker = "IFMarker": InitializeOnly, Both, Kind::ObsoleteBool, Never;
    /// RFC 7143 §13.25.
    OFMarker = "OFMarker": InitializeOnly, Both, Kind::ObsoleteBool, Never;
    /// RFC 7143 §13.25.
    IFMarkInt = "IFMarkInt": InitializeOnly, Both, Kind::ObsoleteRange, Never;
    /// RFC 7143 §13.25.
    OFMarkInt = "OFMarkInt": InitializeOnly, Both, Kind::ObsoleteRange, Never;
    /// RFC 7143 §13.26: declared for statistics, without any effect.
    NodeArchitecture = "X#NodeArchitecture": LeadingOnly, Both, Kind::DeclareText(255), Never;
    // RFC 7145 §6: iSER.
    /// RFC 7145 §6.3.
    RDMAExtensions = "RDMAExtensions": LeadingOnly, Both, Kind::And, Discovery;
    /// RFC 7145 §6.4.
    TargetRecvDataSegmentLength = "TargetRecvDataSegmentLength": InitializeOnly, Both, Kind::Min(512, MAX_24_BITS), NoRdma;
    /// RFC 7145 §6.5.
    InitiatorRecvDataSegmentLength = "InitiatorRecvDataSegmentLength": InitializeOnly, Both, Kind::Min(512, MAX_24_BITS), NoRdma;
    /// RFC 7145 §6.7: 0 means no limit.
    MaxOutstandingUnexpectedPDUs = "MaxOutstandingUnexpectedPDUs": LeadingOnly, Both, Kind::DeclareNumber(0, u32::MAX), NoRdma;
    /// RFC 7145 §6.8: 0 means no limit.
    MaxAHSLength = "MaxAHSLength": LeadingOnly, Both, Kind::DeclareNumber(0, u32::MAX), NoRdma;
    /// RFC 7145 §6.9.
    TaggedBufferForSolicitedDataOnly = "TaggedBufferForSolicitedDataOnly": LeadingOnly, Initiator, Kind::DeclareBool, NoRdma;
    /// RFC 7145 §6.10.
    ISERHelloRequired = "iSERHelloRequired": LeadingOnly, Initiator, Kind::DeclareBool, NoRdma;
}

impl Key {
    /// The key with this name; names are case-sensitive.
    pub fn from_name(name: &str) -> Option<Key> {
        TABLE.iter().find(|s| s.name == name).map(|s| s.key)
    }

    /// The key's row of the table.
    pub(crate) fn spec(self) -> &'static Spec {
        &TABLE[self as usize]
    }

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Whether it may be sent more than once in one negotiation (RFC 7143 §6.3).
    pub fn may_repeat(self) -> bool {
        self == Key::TargetAddress
    }
}

/// A set of keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KeySet(u64);

impl KeySet {
    /// Adds a key; returns whether it was absent.
    pub fn insert(&mut self, key: Key) -> bool {
        let bit = 1u64 << key as u8;
        let fresh = self.0 & bit == 0;
        self.0 |= bit;
        fresh
    }

    /// Removes a key; returns whether it was present.
    pub fn remove(&mut self, key: Key) -> bool {
        let held = self.contains(key);
        self.0 &= !(1u64 << key as u8);
        held
    }

    /// Whether the set contains the key.
    pub fn contains(self, key: Key) -> bool {
        self.0 >> key as u8 & 1 == 1
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_keys_and_fits_a_key_set() {
        for (i, spec) in TABLE.iter().enumerate() {
            assert_eq!(spec.key as usize, i);
            assert_eq!(Key::from_name(spec.name), Some(spec.key));
            assert_eq!(spec.key.spec().name, spec.name);
        }
        assert!(TABLE.len() <= 64);
        assert_eq!(Key::from_name("headerdigest"), None);
    }
}
