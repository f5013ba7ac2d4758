//! A text exchange over several PDUs, in either direction (RFC 7143 §11.10, §11.11).

use crate::pdu::{RESERVED_TAG, RejectReason, TextRequest};

/// The maximum text of one exchange, bytes.
const MAX_TEXT: usize = 64 << 10;
/// The maximum text of one response, bytes.
const MAX_SEGMENT: usize = 8192;

/// A connection's text exchange.
#[derive(Debug, Default)]
pub(super) struct Text {
    /// The Target Transfer Tag that continues it.
    tag: Option<u32>,
    /// Nothing of the exchange has been answered so far.
    begins: bool,
    /// The initiator's text received so far.
    request: Vec<u8>,
    /// The text still to be sent.
    reply: Vec<u8>,
}

/// A response's text segment.
pub(super) struct Segment {
    pub text: Vec<u8>,
    /// Ours continues in the next response.
    pub continues: bool,
    /// The tag that continues the exchange, or the reserved tag.
    pub tag: u32,
}

impl Text {
    /// Takes in a request. Returns the initiator's whole text, and whether it begins an exchange;
    /// `None` while either side's text is incomplete.
    pub fn request(
        &mut self,
        request: &TextRequest,
        data: &[u8],
    ) -> Result<Option<(Vec<u8>, bool)>, RejectReason> {
        if request.is_final() && request.continues() {
            return Err(RejectReason::InvalidPduField);
        }
        if request.ttt.get() == RESERVED_TAG {
            // A new exchange discards the remainder of an earlier one (RFC 7143 §11.10.4).
            *self = Self { begins: true, ..Self::default() };
        } else if self.tag != Some(request.ttt.get()) {
            return Err(RejectReason::InvalidPduField);
        }
        if self.request.len() + data.len() > MAX_TEXT {
            self.end();
            return Err(RejectReason::LongOperationReject);
        }
        self.request.extend_from_slice(data);
        if request.continues() || !self.reply.is_empty() {
            return Ok(None);
        }
        Ok(Some((std::mem::take(&mut self.request), std::mem::take(&mut self.begins))))
    }

    /// Sets our text.
    pub fn reply(&mut self, text: Vec<u8>) {
        self.reply = text;
    }

    /// The next part of our text. `is_final`: the initiator has sent its last. `tag` makes a tag
    /// if the exchange continues.
    pub fn next(&mut self, max_segment: u32, is_final: bool, tag: impl FnOnce() -> u32) -> Segment {
        let cut = self.reply.len().min((max_segment as usize).min(MAX_SEGMENT));
        let rest = self.reply.split_off(cut);
        let text = std::mem::replace(&mut self.reply, rest);
        let continues = !self.reply.is_empty();
        // The exchange ends when both sides have sent their last text (§11.10.1, §11.11.1).
        if is_final && !continues && self.request.is_empty() {
            self.end();
            return Segment { text, continues, tag: RESERVED_TAG };
        }
        let tag = tag();
        self.tag = Some(tag);
        Segment { text, continues, tag }
    }

    /// Ends the exchange.
    pub fn end(&mut self) {
        *self = Self::default();
    }
}
