//! The PDUs of RFC 7143 §11. Each Basic Header Segment is a 48-byte struct laid over the received
//! bytes, with the RFC's field names, typed flags and code points. This module defines the meaning
//! of the bytes, not whether a PDU is permitted at the moment.
//!
//! A receiver starts at [`Bhs`]: check [`Bhs::opcode`] and cast with `as_…`, or use [`Bhs::view`].
//! A sender starts at a header's `new`, which sets fixed bits and reserved tags. Numbers that a
//! connection assigns on sending (StatSN, ExpCmdSN, CmdSN, …) are plain fields to `set`.

pub mod ahs;
mod async_message;
mod bhs;
mod codes;
mod data;
mod login;
mod logout;
mod lun;
mod nop;
mod opcode;
mod recovery;
mod scsi;
mod task;
mod text;

pub use async_message::{AsyncEvent, AsyncMessage};
pub use bhs::{BHS_LEN, Bhs, FINAL, IMMEDIATE, Pdu, PduRef, RESERVED_TAG};
pub use data::{DataIn, DataOut, ReadyToTransfer};
pub use login::{Isid, LoginRequest, LoginResponse, LoginStatus, Stage, StatusClass};
pub use logout::{LogoutReason, LogoutRequest, LogoutResponse, LogoutResult};
pub use lun::{Lun, U24};
pub use nop::{NopIn, NopOut};
pub use opcode::Opcode;
pub use recovery::{Reject, RejectReason, SnackRequest, SnackType};
pub use scsi::{Residual, ResponseCode, ScsiCommand, ScsiResponse, TaskAttribute};
pub use task::{TaskManagementFunction, TaskManagementRequest, TaskManagementResponse, TaskManagementResult};
pub use text::{TextRequest, TextResponse};
pub use zerocopy::byteorder::big_endian::{U16, U32, U64};

/// Declares one PDU's 48 bytes and its line in a trace. Byte 0 and the lengths in bytes 4 to 7, for
/// which `..` stands, are the same in all PDUs.
macro_rules! header {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$top_meta:meta])* pub $top:ident: $top_type:ty,)+
            ..
            $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)+
        }
        trace $title:literal |$pdu:ident, $f:ident| { $($label:ident: $value:expr,)+ } $({ $($more:tt)+ })?
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            /// Byte 0: immediate bit (of requests), opcode.
            pub opcode_byte: u8,
            $($(#[$top_meta])* pub $top: $top_type,)+
            /// TotalAHSLength in words of four bytes; 0 in most PDUs.
            pub total_ahs_words: u8,
            /// DataSegmentLength in bytes, without padding.
            pub data_segment_len: super::U24,
            $($(#[$field_meta])* pub $field: $type,)+
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, $f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let $pdu = self;
                $f.write_str($title)?;
                $(write!($f, concat!(" ", stringify!($label), "={}"), $value)?;)+
                $($($more)+)?
                super::bhs::tail($pdu.as_bhs(), $f)
            }
        }
    };
}
use header;

/// Declares accessors of single flag bits.
macro_rules! flag_bits {
    ($($(#[$meta:meta])* $get:ident, $set:ident: $field:ident & $mask:expr;)+) => {
        $(
            $(#[$meta])*
            #[inline]
            pub const fn $get(&self) -> bool {
                self.$field & $mask != 0
            }

            #[doc = concat!("Sets or clears [`Self::", stringify!($get), "`].")]
            #[inline]
            pub const fn $set(&mut self, on: bool) {
                self.$field = (self.$field & !$mask) | if on { $mask } else { 0 };
            }
        )+
    };
}
use flag_bits;

#[cfg(test)]
mod tests;
