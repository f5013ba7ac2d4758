//! Asynchronous Message (RFC 7143 §11.9).

use super::codes::{Named, code_points};
use super::{FINAL, Lun, RESERVED_TAG, U16, U32, header};

code_points! {
    /// The event of an Asynchronous Message (RFC 7143 §11.9.1).
    pub enum AsyncEvent: u8 {
        /// A SCSI asynchronous event; sense data is in the data segment.
        ScsiEvent = 0 => "SCSI asynchronous event",
        /// The target requests a logout of this connection within Parameter3 seconds.
        LogoutRequest = 1 => "target requests logout",
        /// The target will drop, or has dropped, the connection with CID Parameter1.
        DropConnection = 2 => "target drops the connection",
        /// The target will drop all connections of the session.
        DropSession = 3 => "target drops all connections of the session",
        /// The target requests parameter negotiation within Parameter3 seconds.
        NegotiationRequest = 4 => "target requests parameter negotiation",
        /// All tasks of the logical unit are being terminated (FastAbort of RFC 5048).
        TasksTerminated = 5 => "all active tasks of the LU are being terminated",
        /// A vendor's event; AsyncVCode identifies it.
        VendorSpecific = 255 => "vendor-specific",
    }
}

header! {
    /// Asynchronous Message (RFC 7143 §11.9).
    /// Its data segment: SenseLength and sense data of a SCSI event, or a vendor's data.
    pub struct AsyncMessage {
        /// Byte 1: 1.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        ..
        /// The logical unit, if the event concerns one.
        pub lun: Lun,
        /// The reserved tag.
        pub itt: U32,
        /// Bytes 20 to 23, reserved.
        pub reserved_20: [u8; 4],
        /// StatSN.
        pub stat_sn: U32,
        /// ExpCmdSN.
        pub exp_cmd_sn: U32,
        /// MaxCmdSN.
        pub max_cmd_sn: U32,
        /// AsyncEvent, an [`AsyncEvent`].
        pub event: u8,
        /// AsyncVCode, of a vendor's event.
        pub vendor_code: u8,
        /// Parameter1: a CID in [`AsyncEvent::DropConnection`].
        pub parameter1: U16,
        /// Parameter2: Time2Wait in seconds in the drop events.
        pub parameter2: U16,
        /// Parameter3: seconds to act within, or Time2Retain in the drop events.
        pub parameter3: U16,
        /// Bytes 44 to 47, reserved.
        pub reserved_44: [u8; 4],
    }
    trace "Asynchronous Message" |pdu, f| {
        event: Named(pdu.event_code(), pdu.event), lun: pdu.lun,
        parameters: format_args!("{},{},{}", pdu.parameter1, pdu.parameter2, pdu.parameter3),
        statsn: pdu.stat_sn, expcmdsn: pdu.exp_cmd_sn, maxcmdsn: pdu.max_cmd_sn,
    }
}

impl AsyncMessage {
    /// A message with the three parameters, whose meanings §11.9.1 defines for each event.
    pub fn new(event: AsyncEvent, lun: Lun, parameters: [u16; 3]) -> Self {
        let mut pdu = Self::zeroed();
        pdu.flags = FINAL;
        pdu.lun = lun;
        pdu.itt.set(RESERVED_TAG);
        pdu.event = event.code();
        pdu.parameter1.set(parameters[0]);
        pdu.parameter2.set(parameters[1]);
        pdu.parameter3.set(parameters[2]);
        pdu
    }

    /// The event; `None` if unassigned.
    #[inline]
    pub const fn event_code(&self) -> Option<AsyncEvent> {
        AsyncEvent::from_code(self.event)
    }
}
