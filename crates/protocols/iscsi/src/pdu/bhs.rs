//! The Basic Header Segment (RFC 7143 §11.2.1) as 48 raw bytes with the fields that all PDUs share.
//! Also the casts to each PDU's own header. A cast never copies and never fails: it only
//! reinterprets the bytes, so check the opcode first.

use super::{
    AsyncMessage, DataIn, DataOut, LoginRequest, LoginResponse, LogoutRequest, LogoutResponse, Lun, NopIn,
    NopOut, Opcode, ReadyToTransfer, Reject, ScsiCommand, ScsiResponse, SnackRequest, TaskManagementRequest,
    TaskManagementResponse, TextRequest, TextResponse, U24,
};
use core::fmt;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The length of every Basic Header Segment, bytes.
pub const BHS_LEN: usize = 48;

/// The reserved value of initiator, target transfer and SNACK tags, which names no task (RFC 7143
/// §11.2.1.8, §11.7.4).
pub const RESERVED_TAG: u32 = 0xffff_ffff;

/// The bit of byte 0 that marks a request for immediate delivery (§11.2.1.1).
pub const IMMEDIATE: u8 = 0x40;

/// The bit of byte 1 that ends a sequence (§11.2.1.3); always set in PDUs without sequences.
pub const FINAL: u8 = 0x80;

/// The first 48 bytes of any PDU.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Bhs {
    /// The immediate bit and the opcode, byte 0.
    pub opcode_byte: u8,
    /// The final bit and opcode-specific bits, byte 1.
    pub flags: u8,
    /// Bytes 2 and 3, opcode-specific.
    pub specific_2: [u8; 2],
    /// TotalAHSLength in words of four bytes, byte 4.
    pub total_ahs_words: u8,
    /// DataSegmentLength without padding, bytes 5 to 7.
    pub data_segment_len: U24,
    /// The LUN, or opcode-specific fields, bytes 8 to 15.
    pub lun: Lun,
    /// Initiator Task Tag, bytes 16 to 19.
    pub itt: U32,
    /// Bytes 20 to 47, opcode-specific.
    pub specific_20: [u8; 28],
}

/// The operations of every PDU's header. The implementing types are exactly the 48-byte headers of
/// this module's family.
pub trait Pdu: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy + fmt::Display {
    /// The opcode of this header.
    const OPCODE: Opcode;

    /// The same bytes as a generic header.
    fn as_bhs(&self) -> &Bhs;

    /// The same bytes as a mutable generic header.
    fn as_bhs_mut(&mut self) -> &mut Bhs;

    /// The header as this PDU; `None` if it has another opcode.
    fn from_bhs(bhs: &Bhs) -> Option<&Self>;
}

/// A header cast to the type of its opcode.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "each variant is the type it holds")]
pub enum PduRef<'a> {
    NopOut(&'a NopOut),
    ScsiCommand(&'a ScsiCommand),
    TaskManagementRequest(&'a TaskManagementRequest),
    LoginRequest(&'a LoginRequest),
    TextRequest(&'a TextRequest),
    DataOut(&'a DataOut),
    LogoutRequest(&'a LogoutRequest),
    SnackRequest(&'a SnackRequest),
    NopIn(&'a NopIn),
    ScsiResponse(&'a ScsiResponse),
    TaskManagementResponse(&'a TaskManagementResponse),
    LoginResponse(&'a LoginResponse),
    TextResponse(&'a TextResponse),
    DataIn(&'a DataIn),
    LogoutResponse(&'a LogoutResponse),
    ReadyToTransfer(&'a ReadyToTransfer),
    AsyncMessage(&'a AsyncMessage),
    Reject(&'a Reject),
}

macro_rules! casts {
    ($($as_name:ident => $name:ident;)+) => {
        impl Bhs {
            $(
                #[doc = concat!("The bytes read as [`", stringify!($name), "`], whatever the opcode says.")]
                #[inline]
                pub fn $as_name(&self) -> &$name {
                    zerocopy::transmute_ref!(self)
                }
            )+

            /// The header cast to the type of its opcode; `None` if RFC 7143 does not define the
            /// opcode.
            #[inline]
            pub fn view(&self) -> Option<PduRef<'_>> {
                Some(match self.opcode()? {
                    $(Opcode::$name => PduRef::$name(self.$as_name()),)+
                })
            }
        }

        $(
            impl Pdu for $name {
                const OPCODE: Opcode = Opcode::$name;

                #[inline]
                fn as_bhs(&self) -> &Bhs {
                    zerocopy::transmute_ref!(self)
                }

                #[inline]
                fn as_bhs_mut(&mut self) -> &mut Bhs {
                    zerocopy::transmute_mut!(self)
                }

                #[inline]
                fn from_bhs(bhs: &Bhs) -> Option<&Self> {
                    (bhs.opcode() == Some(Self::OPCODE)).then(|| bhs.$as_name())
                }
            }

            impl From<$name> for Bhs {
                #[inline]
                fn from(pdu: $name) -> Self {
                    zerocopy::transmute!(pdu)
                }
            }

            impl fmt::Debug for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    fmt::Display::fmt(self, f)
                }
            }

            impl $name {
                /// The same bytes as a generic header.
                #[inline]
                pub fn as_bhs(&self) -> &Bhs {
                    zerocopy::transmute_ref!(self)
                }

                /// The same bytes as a mutable generic header.
                #[inline]
                pub fn as_bhs_mut(&mut self) -> &mut Bhs {
                    zerocopy::transmute_mut!(self)
                }

                /// A header with the opcode, and zeros elsewhere.
                #[inline]
                pub(super) fn zeroed() -> Self {
                    let mut pdu = Self::new_zeroed();
                    pdu.as_bhs_mut().opcode_byte = Opcode::$name.code();
                    pdu
                }
            }
        )+

        impl fmt::Display for PduRef<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$name(pdu) => fmt::Display::fmt(pdu, f),)+ }
            }
        }
    };
}

casts! {
    as_nop_out => NopOut;
    as_scsi_command => ScsiCommand;
    as_task_management_request => TaskManagementRequest;
    as_login_request => LoginRequest;
    as_text_request => TextRequest;
    as_data_out => DataOut;
    as_logout_request => LogoutRequest;
    as_snack_request => SnackRequest;
    as_nop_in => NopIn;
    as_scsi_response => ScsiResponse;
    as_task_management_response => TaskManagementResponse;
    as_login_response => LoginResponse;
    as_text_response => TextResponse;
    as_data_in => DataIn;
    as_logout_response => LogoutResponse;
    as_ready_to_transfer => ReadyToTransfer;
    as_async_message => AsyncMessage;
    as_reject => Reject;
}

impl Bhs {
    /// A header of zeros.
    pub(crate) const ZERO: Self = Self {
        opcode_byte: 0,
        flags: 0,
        specific_2: [0; 2],
        total_ahs_words: 0,
        data_segment_len: U24::ZERO,
        lun: Lun::ZERO,
        itt: U32::ZERO,
        specific_20: [0; 28],
    };

    /// The header at the start of `bytes`; `None` if there are fewer than 48.
    #[inline]
    pub fn ref_from(bytes: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(bytes).ok().map(|(bhs, _)| bhs)
    }

    /// All 48 bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8; BHS_LEN] {
        zerocopy::transmute_ref!(self)
    }

    /// The opcode's six bits.
    #[inline]
    pub const fn opcode_code(&self) -> u8 {
        self.opcode_byte & 0x3f
    }

    /// The opcode; `None` if RFC 7143 does not define it (0x1c to 0x1e and 0x3c to 0x3e belong to
    /// vendors).
    #[inline]
    pub const fn opcode(&self) -> Option<Opcode> {
        Opcode::from_code(self.opcode_code())
    }

    /// The immediate bit (§11.2.1.1). Undefined in a target's PDU.
    #[inline]
    pub const fn immediate(&self) -> bool {
        self.opcode_byte & IMMEDIATE != 0
    }

    /// Sets or clears the immediate bit.
    #[inline]
    pub const fn set_immediate(&mut self, on: bool) {
        self.opcode_byte = (self.opcode_byte & !IMMEDIATE) | if on { IMMEDIATE } else { 0 };
    }

    /// The final bit (§11.2.1.3).
    #[inline]
    pub const fn is_final(&self) -> bool {
        self.flags & FINAL != 0
    }

    /// TotalAHSLength in bytes, 0 to 1020.
    #[inline]
    pub const fn total_ahs_len(&self) -> usize {
        self.total_ahs_words as usize * 4
    }

    /// Sets TotalAHSLength.
    ///
    /// # Panics
    /// If `bytes` is not a multiple of four or exceeds 1020: the caller passes the length of AHSs
    /// that it has built.
    #[inline]
    pub fn set_total_ahs_len(&mut self, bytes: usize) {
        assert!(bytes % 4 == 0 && bytes <= super::ahs::MAX_LEN, "{bytes} bytes of AHS");
        self.total_ahs_words = (bytes / 4) as u8;
    }

    /// DataSegmentLength in bytes, without padding.
    #[inline]
    pub const fn data_segment_len(&self) -> u32 {
        self.data_segment_len.get()
    }

    /// Sets DataSegmentLength, in bytes without padding.
    ///
    /// # Panics
    /// If `bytes` exceeds 2^24 - 1: the caller passes the length of data that it has built.
    #[inline]
    pub fn set_data_segment_len(&mut self, bytes: usize) {
        let len = u32::try_from(bytes).ok().and_then(U24::new);
        let Some(len) = len else { panic!("a data segment of {bytes} bytes") };
        self.data_segment_len = len;
    }

    /// The LUN field, reserved in some PDUs.
    #[inline]
    pub const fn lun(&self) -> Lun {
        self.lun
    }

    /// Initiator Task Tag.
    #[inline]
    pub const fn itt(&self) -> u32 {
        self.itt.get()
    }

    /// CmdSN of an initiator's PDU, bytes 24 to 27; `None` in PDUs without CmdSN.
    #[inline]
    pub fn cmd_sn(&self) -> Option<u32> {
        self.opcode().is_some_and(Opcode::carries_cmd_sn).then(|| self.word(4))
    }

    /// ExpStatSN, bytes 28 to 31 of every initiator's PDU; `None` in a target's.
    #[inline]
    pub fn exp_stat_sn(&self) -> Option<u32> {
        self.opcode().is_some_and(Opcode::is_from_initiator).then(|| self.word(8))
    }

    /// Sets ExpCmdSN and MaxCmdSN, bytes 28 to 35 of every target's PDU in full-feature phase.
    #[inline]
    pub fn set_command_window(&mut self, (exp_cmd_sn, max_cmd_sn): (u32, u32)) {
        self.specific_20[8..12].copy_from_slice(&exp_cmd_sn.to_be_bytes());
        self.specific_20[12..16].copy_from_slice(&max_cmd_sn.to_be_bytes());
    }

    fn word(&self, at: usize) -> u32 {
        let s = &self.specific_20;
        u32::from_be_bytes([s[at], s[at + 1], s[at + 2], s[at + 3]])
    }
}

impl fmt::Display for Bhs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.view() {
            Some(pdu) => fmt::Display::fmt(&pdu, f),
            None => write!(
                f,
                "opcode {:#04x} itt={:#x} ahs={} dsl={}",
                self.opcode_code(),
                self.itt(),
                self.total_ahs_len(),
                self.data_segment_len()
            ),
        }
    }
}

impl fmt::Debug for Bhs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Writes the end of a Display line: the immediate bit, AHS and data segment if present.
pub(super) fn tail(bhs: &Bhs, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if bhs.immediate() && bhs.opcode().is_some_and(Opcode::is_from_initiator) {
        f.write_str(" I")?;
    }
    if bhs.total_ahs_len() != 0 {
        write!(f, " ahs={}", bhs.total_ahs_len())?;
    }
    if bhs.data_segment_len() != 0 {
        write!(f, " dsl={}", bhs.data_segment_len())?;
    }
    Ok(())
}

/// Writes a flag that is set.
pub(super) fn flag(f: &mut fmt::Formatter<'_>, name: &str, on: bool) -> fmt::Result {
    if on { write!(f, " {name}") } else { Ok(()) }
}

/// Displays a tag; the reserved one as `none`.
pub(super) struct Tag(pub u32);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            RESERVED_TAG => f.write_str("none"),
            tag => write!(f, "{tag:#x}"),
        }
    }
}
