//! Login Request (RFC 7143 §11.12) and Login Response (§11.13): the headers, stages and statuses.

use super::bhs::Tag;
use super::codes::code_points;
use super::{FINAL, U16, U32, flag_bits, header};
use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

code_points! {
    /// A stage of login (RFC 7143 §11.12.3). Code 2 is reserved.
    pub enum Stage: u8 {
        /// Authentication.
        SecurityNegotiation = 0 => "SecurityNegotiation",
        /// Operational keys.
        LoginOperationalNegotiation = 1 => "LoginOperationalNegotiation",
        /// The end of login.
        FullFeaturePhase = 3 => "FullFeaturePhase",
    }
}

code_points! {
    /// Status-Class of a Login Response (RFC 7143 §11.13.5).
    pub enum StatusClass: u8 {
        /// The login continues or is complete.
        Success = 0 => "Success",
        /// The target has moved.
        Redirection = 1 => "Redirection",
        /// The initiator is at fault and must not repeat the same login.
        InitiatorError = 2 => "Initiator Error",
        /// The target is at fault; the initiator may try again.
        TargetError = 3 => "Target Error",
    }
}

code_points! {
    /// Status-Class and Status-Detail together, class in the high byte (RFC 7143 §11.13.5).
    pub enum LoginStatus: u16 {
        /// Login proceeds.
        Success = 0x0000 => "Success",
        /// The target is temporarily at TargetAddress.
        TargetMovedTemporarily = 0x0101 => "Target moved temporarily",
        /// The target is permanently at TargetAddress.
        TargetMovedPermanently = 0x0102 => "Target moved permanently",
        /// Any other error of the initiator.
        InitiatorError = 0x0200 => "Initiator error",
        /// The initiator could not be authenticated, or the target does not support the method.
        AuthenticationFailure = 0x0201 => "Authentication failure",
        /// The initiator may not use this target.
        AuthorizationFailure = 0x0202 => "Authorization failure",
        /// The target does not exist here.
        NotFound = 0x0203 => "Not found",
        /// The target was removed permanently, without a new address.
        TargetRemoved = 0x0204 => "Target removed",
        /// No version in the requested range is supported.
        UnsupportedVersion = 0x0205 => "Unsupported version",
        /// The session accepts no more connections.
        TooManyConnections = 0x0206 => "Too many connections",
        /// A key is missing, such as InitiatorName.
        MissingParameter = 0x0207 => "Missing parameter",
        /// This connection cannot join that session.
        CannotIncludeInSession = 0x0208 => "Can't include in session",
        /// The target does not support this SessionType.
        SessionTypeNotSupported = 0x0209 => "Session type not supported",
        /// The TSIH names no session.
        SessionDoesNotExist = 0x020a => "Session does not exist",
        /// A request that is invalid during login.
        InvalidDuringLogin = 0x020b => "Invalid request during login",
        /// Any other error of the target.
        TargetError = 0x0300 => "Target error",
        /// The target is not operational now.
        ServiceUnavailable = 0x0301 => "Service unavailable",
        /// The target lacks resources.
        OutOfResources = 0x0302 => "Out of resources",
    }
}

impl LoginStatus {
    /// The high byte.
    pub const fn class(self) -> u8 {
        self.code().to_be_bytes()[0]
    }

    /// The low byte.
    pub const fn detail(self) -> u8 {
        self.code().to_be_bytes()[1]
    }
}

/// The initiator part of a session identifier, with its type in the two top bits (RFC 7143
/// §11.12.5).
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct Isid(pub [u8; 6]);

impl Isid {
    /// The format "Random": 24 random bits and a qualifier.
    pub const fn random(random: [u8; 3], qualifier: u16) -> Self {
        let [q0, q1] = qualifier.to_be_bytes();
        Self([0x80, random[0], random[1], random[2], q0, q1])
    }
}

impl fmt::Display for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Isid({self})")
    }
}

macro_rules! stages {
    () => {
        flag_bits! {
            /// T: ready to move to the next stage.
            transit, set_transit: flags & FINAL;
            /// C: the text continues in the next PDU. Excludes T.
            continues, set_continues: flags & 0x40;
        }

        /// CSG; `None` for the reserved code 2.
        #[inline]
        pub const fn current_stage(&self) -> Option<Stage> {
            Stage::from_code(self.flags >> 2 & 0x03)
        }

        /// NSG, valid if T is set; `None` for the reserved code 2.
        #[inline]
        pub const fn next_stage(&self) -> Option<Stage> {
            Stage::from_code(self.flags & 0x03)
        }

        /// Sets CSG. Sets T and NSG if there is a next stage, else clears both.
        #[inline]
        pub const fn set_stages(&mut self, current: Stage, next: Option<Stage>) {
            self.flags = self.flags & 0x40 | current.code() << 2;
            if let Some(next) = next {
                self.flags |= FINAL | next.code();
            }
        }

        fn show_stages(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, " csg={}", self.flags >> 2 & 0x03)?;
            if self.transit() {
                write!(f, " T nsg={}", self.flags & 0x03)?;
            }
            if self.continues() {
                f.write_str(" C")?;
            }
            Ok(())
        }
    };
}

header! {
    /// Login Request (RFC 7143 §11.12).
    pub struct LoginRequest {
        /// Byte 1: T, C, CSG, NSG.
        pub flags: u8,
        /// Version-max; 0 is the only version.
        pub version_max: u8,
        /// Version-min.
        pub version_min: u8,
        ..
        /// Initiator part of the session identifier.
        pub isid: Isid,
        /// Target session identifying handle; 0 requests a new session.
        pub tsih: U16,
        /// Initiator Task Tag, the same in all requests of one login.
        pub itt: U32,
        /// Connection identifier.
        pub cid: U16,
        /// Bytes 22 and 23, reserved.
        pub reserved_22: [u8; 2],
        /// CmdSN: the session's first, in a leading login.
        pub cmd_sn: U32,
        /// ExpStatSN; in a login's first request valid only for connection reinstatement
        /// (§11.12.9).
        pub exp_stat_sn: U32,
        /// Bytes 32 to 47, reserved.
        pub reserved_32: [u8; 16],
    }
    trace "Login Request" |pdu, f| {
        itt: Tag(pdu.itt.get()), isid: pdu.isid, tsih: pdu.tsih, cid: pdu.cid, cmdsn: pdu.cmd_sn,
        expstatsn: pdu.exp_stat_sn,
    } {
        pdu.show_stages(f)?;
        if (pdu.version_max, pdu.version_min) != (0, 0) {
            write!(f, " version={}-{}", pdu.version_min, pdu.version_max)?;
        }
    }
}

impl LoginRequest {
    /// A request in the stage SecurityNegotiation that does not request another stage.
    pub fn new(itt: u32, isid: Isid, tsih: u16, cid: u16) -> Self {
        let mut pdu = Self::zeroed();
        pdu.as_bhs_mut().set_immediate(true);
        pdu.isid = isid;
        pdu.tsih.set(tsih);
        pdu.itt.set(itt);
        pdu.cid.set(cid);
        pdu
    }

    stages!();
}

header! {
    /// Login Response (RFC 7143 §11.13).
    pub struct LoginResponse {
        /// Byte 1: T, C, CSG, NSG.
        pub flags: u8,
        /// Version-max.
        pub version_max: u8,
        /// Version-active.
        pub version_active: u8,
        ..
        /// The request's ISID.
        pub isid: Isid,
        /// The request's TSIH; the new session's TSIH in the last response of a leading login.
        pub tsih: U16,
        /// The request's Initiator Task Tag.
        pub itt: U32,
        /// Bytes 20 to 23, reserved.
        pub reserved_20: [u8; 4],
        /// StatSN.
        pub stat_sn: U32,
        /// ExpCmdSN.
        pub exp_cmd_sn: U32,
        /// MaxCmdSN.
        pub max_cmd_sn: U32,
        /// Status-Class.
        pub status_class: u8,
        /// Status-Detail.
        pub status_detail: u8,
        /// Bytes 38 to 47, reserved.
        pub reserved_38: [u8; 10],
    }
    trace "Login Response" |pdu, f| {
        itt: Tag(pdu.itt.get()), isid: pdu.isid, tsih: pdu.tsih, statsn: pdu.stat_sn,
        expcmdsn: pdu.exp_cmd_sn, maxcmdsn: pdu.max_cmd_sn,
    } {
        pdu.show_stages(f)?;
        match pdu.status() {
            Some(LoginStatus::Success) => {}
            Some(status) => write!(f, " status=\"{status}\"")?,
            None => write!(f, " status={:#04x}{:02x}", pdu.status_class, pdu.status_detail)?,
        }
    }
}

impl LoginResponse {
    /// A successful response in the stage SecurityNegotiation that does not change the stage.
    pub fn new(itt: u32, isid: Isid, tsih: u16) -> Self {
        let mut pdu = Self::zeroed();
        pdu.isid = isid;
        pdu.tsih.set(tsih);
        pdu.itt.set(itt);
        pdu
    }

    stages!();

    /// Class and detail together. `None` for a pair that RFC 7143 does not define: then the class
    /// alone decides (§11.13.5).
    #[inline]
    pub const fn status(&self) -> Option<LoginStatus> {
        LoginStatus::from_code(u16::from_be_bytes([self.status_class, self.status_detail]))
    }

    /// The class; `None` if unassigned.
    #[inline]
    pub const fn class(&self) -> Option<StatusClass> {
        StatusClass::from_code(self.status_class)
    }

    /// Sets class and detail.
    #[inline]
    pub const fn set_status(&mut self, status: LoginStatus) {
        self.status_class = status.class();
        self.status_detail = status.detail();
    }
}
