//! iSER's messages (RFC 7145 §9), as both sides of a link put them together and take them apart.

use iscsi::pdu::Bhs;
use iser::{Control, HEAD_LEN, HEADER_LEN, Header, Layout, Limits};

/// The longest data segment of a control-type PDU that either side takes.
pub const SEGMENT: u32 = 8192;

/// What is left of a message when it is taken apart.
#[derive(Debug)]
pub struct Message {
    /// The STags.
    pub control: Control,
    /// The PDU's header.
    pub bhs: Bhs,
    /// Its AHSs.
    pub ahs: Vec<u8>,
    /// Its data segment.
    pub data: Vec<u8>,
}

/// The bytes of a message: `pdu` is a PDU with its AHSs and its data segment, padded or not.
pub fn message(control: Control, pdu: &[u8]) -> Vec<u8> {
    let mut message = control.encode().to_vec();
    message.extend_from_slice(pdu);
    let padded = message.len().next_multiple_of(4);
    message.resize(padded, 0);
    message
}

/// Takes a message apart.
///
/// # Errors
/// It is none.
pub fn parse(bytes: &[u8]) -> Result<Message, String> {
    let header = Header::decode(bytes).map_err(|error| error.to_string())?;
    let Header::Control(control) = header else { return Err(format!("{header:?} that nobody asked for")) };
    let limits = Limits { data: SEGMENT as usize, ahs: iscsi::pdu::ahs::MAX_LEN };
    let layout = Layout::of(bytes, bytes.len(), limits).map_err(|error| error.to_string())?;
    let bhs = bytes.get(HEADER_LEN..HEAD_LEN).and_then(Bhs::ref_from).ok_or("a message without a BHS")?;
    Ok(Message { control, bhs: *bhs, ahs: bytes[layout.ahs].to_vec(), data: bytes[layout.data].to_vec() })
}
