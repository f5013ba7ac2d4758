//! Fixed newstyle negotiation (NBD "Handshake"): from the first bytes of a connection to an export.
//!
//! A reply of a server has at most [`MAX_REPLY`] bytes, and an option at most 64 of them.

use crate::export::{BlockSizes, Export};
use crate::wire::{
    ALLOCATION, CLISERV_MAGIC, FIXED_NEWSTYLE, IHAVEOPT, INIT_PASSWD, MAX_STRING, NO_ZEROES, OPTION_REPLY,
    info, opt, rep, shown, u16_at, u32_at, u64_at,
};

/// The longest reply to an option, bytes: two strings and what is around them.
pub const MAX_REPLY: usize = 2 * MAX_STRING + 64;
/// The most replies to an option.
const MAX_REPLIES: usize = 64;

/// Why there is no export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// It is no NBD server.
    #[error("this is no NBD server: it begins with {0:#018x}")]
    NotNbd(u64),
    /// Only the negotiation of before 2010, or newstyle without options.
    #[error("the server knows only the {0} negotiation of NBD; a current server knows fixed newstyle")]
    TooOld(&'static str),
    /// The server insists on TLS.
    #[error(
        "the server requires TLS for it, which is not supported here: serve it without TLS, over a Unix socket or an encrypted network"
    )]
    TlsRequired,
    /// There is no such export.
    #[error("the server has no export {name:?}{}", words(message))]
    NoExport {
        /// The name asked for.
        name: String,
        /// The server's words.
        message: String,
    },
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The server refuses for another reason.
    #[error("the server refuses the export ({}){}", refusal(*kind), words(message))]
    Refused {
        /// Reply type.
        kind: u32,
        /// The server's words.
        message: String,
    },
    /// The name is longer than a string may be, or has a NUL.
    #[error("the name of an export has at most 4096 bytes, and no NUL")]
    Name,
    /// The server breaks the protocol.
    #[error("the server breaks the protocol: {0}")]
    Violation(&'static str),
}

impl HandshakeError {
    /// Whether the server understood, so that the session ends with NBD_OPT_ABORT.
    fn is_soft(&self) -> bool {
        matches!(self, Self::TlsRequired | Self::NoExport { .. } | Self::ShuttingDown | Self::Refused { .. })
    }
}

fn words(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

fn refusal(kind: u32) -> String {
    match kind {
        rep::ERR_UNSUP => "unknown option".into(),
        rep::ERR_POLICY => "forbidden by its configuration".into(),
        kind => format!("error {}", kind & !rep::ERROR),
    }
}

/// The client's side of a handshake.
#[derive(Debug)]
pub struct Handshake {
    name: String,
    step: Step,
    /// What has come of the bytes that the step needs.
    kept: Vec<u8>,
    zeroes: bool,
    /// Replies to the current option.
    replies: usize,
    has_export_info: bool,
    export: Export,
}

/// What comes next from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// INIT_PASSWD.
    Magic,
    /// The magic of the negotiation.
    Style,
    Flags,
    /// The header of a reply to this option.
    Reply(u32),
    /// The data of one.
    Data {
        option: u32,
        kind: u32,
        len: usize,
    },
    /// The reply to NBD_OPT_EXPORT_NAME.
    Name,
    /// The handshake is over.
    Over,
}

impl Handshake {
    /// Opens the export of this name; the empty one is the default export.
    ///
    /// # Errors
    /// The name is longer than [`MAX_STRING`], or has a NUL.
    pub fn open(name: &str) -> Result<Self, HandshakeError> {
        if name.len() > MAX_STRING || name.contains('\0') {
            return Err(HandshakeError::Name);
        }
        Ok(Self {
            name: name.to_owned(),
            step: Step::Magic,
            kept: Vec::new(),
            zeroes: true,
            replies: 0,
            has_export_info: false,
            export: Export::default(),
        })
    }

    /// Takes what the server sent from the front of `input`, and appends to `out` what to send.
    /// `None` if more has to come. After the export the rest of `input` belongs to the
    /// transmission phase.
    ///
    /// # Errors
    /// There is no export. The client still sends `out`, and closes the connection.
    pub fn advance(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Export>, HandshakeError> {
        let result = self.take_all(input, out);
        if let Err(error) = &result {
            self.step = Step::Over;
            if error.is_soft() {
                write_option(out, opt::ABORT, &[]);
            }
        }
        result
    }

    fn take_all(&mut self, input: &mut &[u8], out: &mut Vec<u8>) -> Result<Option<Export>, HandshakeError> {
        while let Some(bytes) = self.take(input) {
            match self.step {
                Step::Magic => match u64_at(&bytes, 0) {
                    INIT_PASSWD => self.step = Step::Style,
                    other => return Err(HandshakeError::NotNbd(other)),
                },
                Step::Style => match u64_at(&bytes, 0) {
                    IHAVEOPT => self.step = Step::Flags,
                    CLISERV_MAGIC => return Err(HandshakeError::TooOld("oldstyle")),
                    other => return Err(HandshakeError::NotNbd(other)),
                },
                Step::Flags => self.greet(u16_at(&bytes, 0), out)?,
                Step::Reply(option) => self.header(option, &bytes, out)?,
                Step::Data { option, kind, .. } => self.data(option, kind, &bytes, out)?,
                Step::Name => {
                    self.set_export(bytes.first_chunk())?;
                    self.step = Step::Over;
                }
                Step::Over => {}
            }
            if self.step == Step::Over {
                return Ok(Some(std::mem::take(&mut self.export)));
            }
        }
        Ok(None)
    }

    /// The bytes that the step needs, once they have arrived.
    fn take(&mut self, input: &mut &[u8]) -> Option<Vec<u8>> {
        let need = match self.step {
            Step::Magic | Step::Style => 8,
            Step::Flags => 2,
            Step::Reply(_) => 20,
            Step::Data { len, .. } => len,
            Step::Name if self.zeroes => 10 + 124,
            Step::Name => 10,
            Step::Over => return None,
        };
        let len = (need - self.kept.len()).min(input.len());
        let (bytes, rest) = input.split_at(len);
        self.kept.extend_from_slice(bytes);
        *input = rest;
        (self.kept.len() == need).then(|| std::mem::take(&mut self.kept))
    }

    /// Answers the server's flags, and begins.
    fn greet(&mut self, flags: u16, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        if flags & FIXED_NEWSTYLE == 0 {
            return Err(HandshakeError::TooOld("newstyle"));
        }
        self.zeroes = flags & NO_ZEROES == 0;
        out.extend(u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes());
        self.ask(opt::STRUCTURED_REPLY, out);
        Ok(())
    }

    /// Sends an option, whose replies come next.
    fn ask(&mut self, option: u32, out: &mut Vec<u8>) {
        let name = self.name.as_bytes();
        let number = |number: usize| (number as u32).to_be_bytes();
        let data = match option {
            // One information request: the block sizes.
            opt::GO => [&number(name.len())[..], name, &[0, 1], &info::BLOCK_SIZE.to_be_bytes()].concat(),
            opt::SET_META_CONTEXT => {
                let query = ALLOCATION.as_bytes();
                [&number(name.len())[..], name, &number(1), &number(query.len()), query].concat()
            }
            opt::EXPORT_NAME => name.to_vec(),
            _ => Vec::new(),
        };
        write_option(out, option, &data);
        self.replies = 0;
        self.step = if option == opt::EXPORT_NAME { Step::Name } else { Step::Reply(option) };
    }

    /// The header of a reply: `magic | option | type | length`.
    fn header(&mut self, asked: u32, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let (option, kind, len) = (u32_at(bytes, 8), u32_at(bytes, 12), u32_at(bytes, 16) as usize);
        if u64_at(bytes, 0) != OPTION_REPLY {
            return Err(HandshakeError::Violation("a reply to an option has another magic"));
        }
        if option != asked {
            return Err(HandshakeError::Violation("it replies to an option that was not sent"));
        }
        if len > MAX_REPLY {
            return Err(HandshakeError::Violation("a reply to an option is too long"));
        }
        self.replies += 1;
        if self.replies > MAX_REPLIES {
            return Err(HandshakeError::Violation("an option has too many replies"));
        }
        match len {
            0 => self.data(option, kind, &[], out),
            len => {
                self.step = Step::Data { option, kind, len };
                Ok(())
            }
        }
    }

    /// A whole reply to an option.
    fn data(&mut self, option: u32, kind: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        self.step = Step::Reply(option);
        match (kind, option) {
            (rep::ACK, _) if !data.is_empty() => {
                return Err(HandshakeError::Violation("an acknowledgement has data"));
            }
            (rep::ACK, _) => self.acknowledged(option, out)?,
            (rep::INFO, opt::GO) => self.information(data)?,
            (rep::META_CONTEXT, opt::SET_META_CONTEXT) => self.context(data)?,
            (kind, _) if kind & rep::ERROR != 0 => self.refused(option, kind, shown(data), out)?,
            _ => return Err(HandshakeError::Violation("a reply does not belong to the option")),
        }
        Ok(())
    }

    fn acknowledged(&mut self, option: u32, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        match option {
            opt::STRUCTURED_REPLY => {
                self.export.structured = true;
                self.ask(opt::SET_META_CONTEXT, out);
            }
            opt::SET_META_CONTEXT => self.ask(opt::GO, out),
            _ if !self.has_export_info => {
                return Err(HandshakeError::Violation("it opens an export without its size"));
            }
            _ => self.step = Step::Over,
        }
        Ok(())
    }

    /// An option failed: what can be done without it?
    fn refused(
        &mut self,
        option: u32,
        kind: u32,
        message: String,
        out: &mut Vec<u8>,
    ) -> Result<(), HandshakeError> {
        match (option, kind) {
            (_, rep::ERR_TLS_REQD) => return Err(HandshakeError::TlsRequired),
            (_, rep::ERR_SHUTDOWN) => return Err(HandshakeError::ShuttingDown),
            (opt::STRUCTURED_REPLY, _) => self.ask(opt::GO, out),
            (opt::SET_META_CONTEXT, _) => {
                self.export.allocation = None;
                self.ask(opt::GO, out);
            }
            (opt::GO, rep::ERR_UNSUP) => self.ask(opt::EXPORT_NAME, out),
            (opt::GO, rep::ERR_UNKNOWN) => {
                return Err(HandshakeError::NoExport { name: self.name.clone(), message });
            }
            (_, kind) => return Err(HandshakeError::Refused { kind, message }),
        }
        Ok(())
    }

    /// NBD_REP_INFO. Types that are not known are ignored.
    fn information(&mut self, data: &[u8]) -> Result<(), HandshakeError> {
        let Some((kind, payload)) = data.split_first_chunk() else {
            return Err(HandshakeError::Violation("information without a type"));
        };
        match u16::from_be_bytes(*kind) {
            info::EXPORT => {
                let exact = payload.first_chunk().filter(|_| payload.len() == 10);
                self.set_export(exact)?;
                self.has_export_info = true;
            }
            info::BLOCK_SIZE => {
                let exact = payload.first_chunk().filter(|_| payload.len() == 12);
                let sizes = exact.and_then(BlockSizes::read);
                self.export.blocks = sizes.ok_or(HandshakeError::Violation("its block sizes are invalid"))?;
            }
            info::DESCRIPTION => self.export.description = shown(payload),
            _ => {}
        }
        Ok(())
    }

    fn set_export(&mut self, bytes: Option<&[u8; 10]>) -> Result<(), HandshakeError> {
        match bytes {
            Some(bytes) if self.export.set(bytes) => Ok(()),
            Some(_) => Err(HandshakeError::Violation("an export has 2^63 bytes or more")),
            None => Err(HandshakeError::Violation("the information on the export has another length")),
        }
    }

    /// NBD_REP_META_CONTEXT: `id | name`. Only one was asked for.
    fn context(&mut self, data: &[u8]) -> Result<(), HandshakeError> {
        match data.split_first_chunk() {
            Some((id, name)) if name == ALLOCATION.as_bytes() && self.export.allocation.is_none() => {
                self.export.allocation = Some(u32::from_be_bytes(*id));
                Ok(())
            }
            _ => Err(HandshakeError::Violation("it selects a metadata context that was not asked for")),
        }
    }
}

fn write_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend(IHAVEOPT.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}
