//! Command descriptor blocks of OSD commands: 7Fh, a service action, and 200, 224 or 236 bytes.
//!
//! Owns the bytes of the whole CDB. [`table`] lists the commands, [`command`] has the positions of
//! their own fields, and [`parameters`] the attribute parameters. It knows no unit: the unit checks
//! whether ids exist and lengths are acceptable. An error gives the byte of the CDB that is wrong,
//! for the field pointer of sense data.

pub mod command;
pub mod parameters;
pub mod table;

pub use command::{
    Allocation, FlushScope, KeyToSet, List, ListCollection, ObjectRange, RemoveScope, SetKey, SetMasterKey,
    StructureScope,
};
pub use parameters::{AttributeParameters, GetPage, InlineValue, Region, SetFromBuffer};
pub use table::{Command, Effect, Needs, Sharing};

use arrayvec::ArrayVec;

use crate::bytes::{Fields, codes, put};
use crate::{Action, Capability, Version, capability, offset};

/// OPERATION CODE of variable-length CDBs.
pub const OPCODE: u8 = 0x7F;

/// The longest CDB, in bytes.
pub const MAX_LEN: usize = 236;

/// Layout of a CDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// OSD-1: 200 bytes.
    Osd1,
    /// OSD-2 up to draft r03: 224 bytes, integrity check values of 20.
    Osd2Draft,
    /// OSD-2: 236 bytes, integrity check values of 32.
    Osd2,
}

impl Form {
    /// The standard it follows.
    pub const fn version(self) -> Version {
        match self {
            Self::Osd1 => Version::Osd1,
            Self::Osd2Draft | Self::Osd2 => Version::Osd2,
        }
    }

    /// Bytes of the whole CDB.
    #[expect(clippy::len_without_is_empty, reason = "no CDB is empty")]
    pub const fn len(self) -> usize {
        match self {
            Self::Osd1 => 200,
            Self::Osd2Draft => 224,
            Self::Osd2 => 236,
        }
    }

    /// Bytes of an integrity check value.
    pub const fn icv_len(self) -> usize {
        match self {
            Self::Osd1 | Self::Osd2Draft => 20,
            Self::Osd2 => 32,
        }
    }

    /// Offset of the capability, and its length in bytes.
    pub const fn capability(self) -> (usize, usize) {
        (80, capability::len(self.version()))
    }

    /// Offset of the REQUEST INTEGRITY CHECK VALUE: behind the capability.
    pub const fn icv_at(self) -> usize {
        80 + capability::len(self.version())
    }

    /// Offset of the REQUEST NONCE.
    pub const fn nonce_at(self) -> usize {
        self.icv_at() + self.icv_len()
    }
}

codes! {
    /// ISOLATION: effect of commands that run at the same time (OSD-2).
    #[derive(Default)]
    Isolation: u8 {
        #[default]
        Default = 0 "The root's default.",
        None = 1 "None.",
        Strict = 2 "As if one command ran after the other.",
        Range = 4 "Commands on ranges that overlap are isolated.",
        Functional = 5 "Each function of a command is isolated for itself.",
        Vendor = 7 "Vendor specific.",
    }
}

/// The options byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// DPO: the data need not be kept in a cache.
    pub dpo: bool,
    /// FUA: what the command changes is on stable storage when it ends.
    pub fua: bool,
    /// ISOLATION; [`Isolation::Default`] in OSD-1, and in FLUSH commands, whose scope has its bits.
    pub isolation: Isolation,
}

/// TIMESTAMPS CONTROL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Timestamps {
    /// 00h: the command updates timestamps.
    #[default]
    Update,
    /// 7Fh: it does not.
    Bypass,
}

/// The security fields that follow the capability; all zeros without security.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Security {
    /// REQUEST INTEGRITY CHECK VALUE; where the form has 20 bytes of it, the last 12 are zero.
    pub icv: [u8; 32],
    /// REQUEST NONCE: milliseconds since 1970 in 6 bytes, then 6 random ones.
    pub nonce: [u8; 12],
    /// DATA-IN INTEGRITY CHECK VALUE OFFSET, in bytes.
    pub data_in_icv: Option<u64>,
    /// DATA-OUT INTEGRITY CHECK VALUE OFFSET, in bytes.
    pub data_out_icv: Option<u64>,
}

impl Security {
    /// The time in the nonce, milliseconds since 1970.
    pub fn nonce_time(&self) -> u64 {
        Fields(&self.nonce).u48(0)
    }
}

/// A whole CDB as a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cdb {
    /// The layout it came in or is to be sent in.
    pub form: Form,
    /// CONTROL.
    pub control: u8,
    /// The command and its own fields.
    pub command: Command,
    /// The options byte.
    pub options: Options,
    /// TIMESTAMPS CONTROL.
    pub timestamps: Timestamps,
    /// Attributes that the command gets and sets beside its work.
    pub attributes: AttributeParameters,
    /// CDB CONTINUATION LENGTH, in bytes; 0 for none, and in commands whose own fields stand there.
    pub continuation: u32,
    /// The capability.
    pub capability: Capability,
    /// Integrity check value, nonce and the offsets of further ones.
    pub security: Security,
}

/// Error in a CDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CdbError {
    /// No OSD command: INVALID COMMAND OPERATION CODE.
    #[error("not an OSD command")]
    Opcode,
    /// INVALID FIELD IN CDB, with the field pointer that sense data gives.
    #[error("invalid field in byte {byte} of the CDB")]
    Field {
        /// The field's first byte.
        byte: u16,
        /// The field's leftmost bit in it, when it is not the whole byte.
        bit: Option<u8>,
    },
}

impl CdbError {
    /// The field that begins at `byte`.
    pub const fn at(byte: u16) -> Self {
        Self::Field { byte, bit: None }
    }

    /// The field whose leftmost bit is `bit` of `byte`.
    pub const fn bit(byte: u16, bit: u8) -> Self {
        Self::Field { byte, bit: Some(bit) }
    }
}

/// A value that cannot be put into a CDB of the form asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// OSD-1 has no such command.
    #[error("OSD-1 has no {0}")]
    NoSuchCommand(Action),
    /// The offset is no multiple of the step that the form has at its size: see
    /// [`offset::round_up`].
    #[error("an offset of {0} bytes cannot be expressed")]
    Offset(u64),
    /// The form has no field for it.
    #[error("the CDB's form has no field for {0}")]
    NoField(&'static str),
}

/// A CDB's bytes, and their layout.
pub(crate) struct Body<'a> {
    pub form: Form,
    pub f: Fields<'a>,
}

impl Cdb {
    /// A CDB of OSD-2's final form for `command`, which gets and sets no attributes and carries no
    /// capability.
    pub fn new(command: Command) -> Self {
        Self {
            form: Form::Osd2,
            control: 0,
            command,
            options: Options::default(),
            timestamps: Timestamps::Update,
            attributes: AttributeParameters::NONE,
            continuation: 0,
            capability: Capability::default(),
            security: Security::default(),
        }
    }

    /// Whether `bytes` are a CDB for [`Self::decode`]: a variable-length one with a service action
    /// of an OSD's.
    pub fn is_osd(bytes: &[u8]) -> bool {
        let f = Fields(bytes);
        f.u8(0) == OPCODE && bytes.len() >= 10 && Action::from_code(f.u16(8)).is_some()
    }

    /// Reads a CDB.
    ///
    /// Ignores bytes behind those that the form defines, and does not check reserved fields: some
    /// initiators write to them, and no version gives them a meaning.
    ///
    /// # Errors
    /// The wrong field, as sense data reports it.
    pub fn decode(bytes: &[u8]) -> Result<Self, CdbError> {
        let f = Fields(bytes);
        if f.u8(0) != OPCODE {
            return Err(CdbError::Opcode);
        }
        if bytes.len() < 10 {
            return Err(CdbError::at(7));
        }
        let (action, version) = Action::from_code(f.u16(8)).ok_or(CdbError::at(8))?;
        let form = form(version, f.u8(7), bytes.len())?;
        let body = Body { form, f };
        let command = table::decode(action, &body)?;
        let flushes = command.flush_scope().is_some();
        let lists_attributes = command.lists_attributes();
        let isolation = match f.u8(10) & 7 {
            _ if version == Version::Osd1 || flushes => Isolation::Default,
            code => Isolation::from_code(code).ok_or(CdbError::bit(10, 2))?,
        };
        let timestamps = match f.u8(12) {
            0x00 => Timestamps::Update,
            0x7F => Timestamps::Bypass,
            _ => return Err(CdbError::at(12)),
        };
        let (capability_at, capability_len) = form.capability();
        let capability = f.slice(capability_at, capability_len).unwrap_or_default();
        Ok(Self {
            form,
            control: f.u8(1),
            command,
            options: Options { dpo: f.u8(10) & 0x10 != 0, fua: f.u8(10) & 0x08 != 0, isolation },
            timestamps,
            attributes: parameters::decode(&body, lists_attributes)?,
            continuation: if version == Version::Osd2 && command.may_continue() { f.u32(48) } else { 0 },
            capability: Capability::decode(capability, version),
            security: security(&body)?,
        })
    }

    /// Region of Data-In for retrieved attributes. `None` if they have none of their own: with
    /// LIST_ATTR they are in the list.
    pub fn retrieved(&self) -> Option<Region> {
        if self.command.lists_attributes() { None } else { self.attributes.retrieved() }
    }

    /// Writes the CDB.
    ///
    /// # Errors
    /// A field's value has no place in the form.
    pub fn encode(&self) -> Result<ArrayVec<u8, MAX_LEN>, EncodeError> {
        let version = self.form.version();
        let action = self.command.action();
        let code = action.code(version).ok_or(EncodeError::NoSuchCommand(action))?;
        let mut buffer = ArrayVec::from([0u8; MAX_LEN]);
        buffer.truncate(self.form.len());
        let out = &mut buffer[..];
        out[0] = OPCODE;
        out[1] = self.control;
        out[7] = (self.form.len() - 8) as u8; // at most 228
        put(out, 8, &code.to_be_bytes());
        out[10] = u8::from(self.options.dpo) << 4 | u8::from(self.options.fua) << 3;
        match version {
            Version::Osd2 => out[10] |= self.options.isolation as u8,
            Version::Osd1 if self.options.isolation != Isolation::Default => {
                return Err(EncodeError::NoField("isolation"));
            }
            Version::Osd1 => {}
        }
        out[12] = if self.timestamps == Timestamps::Bypass { 0x7F } else { 0 };
        if self.continuation != 0 {
            if version == Version::Osd1 || !self.command.may_continue() {
                return Err(EncodeError::NoField("a CDB continuation"));
            }
            put(out, 48, &self.continuation.to_be_bytes());
        }
        table::encode(&self.command, version, out)?;
        parameters::encode(&self.attributes, self.form, out)?;
        let (at, len) = self.form.capability();
        self.capability.encode(&mut out[at..at + len], version);
        put(out, self.form.icv_at(), &self.security.icv[..self.form.icv_len()]);
        let nonce = self.form.nonce_at();
        put(out, nonce, &self.security.nonce);
        for (at, bytes) in [(nonce + 12, self.security.data_in_icv), (nonce + 16, self.security.data_out_icv)]
        {
            put(out, at, &field(bytes, version)?.to_be_bytes());
        }
        Ok(buffer)
    }
}

/// Form of a CDB of `version` with ADDITIONAL CDB LENGTH `said`, of which `len` bytes are present.
fn form(version: Version, said: u8, len: usize) -> Result<Form, CdbError> {
    let form = match (version, said) {
        // Initiators exist that leave OSD-2's length in OSD-1's CDBs.
        (Version::Osd1, 192 | 216 | 228) => Form::Osd1,
        (Version::Osd2, 216) => Form::Osd2Draft,
        (Version::Osd2, 228) => Form::Osd2,
        _ => return Err(CdbError::at(7)),
    };
    if len < form.len() { Err(CdbError::at(7)) } else { Ok(form) }
}

fn security(body: &Body<'_>) -> Result<Security, CdbError> {
    let form = body.form;
    let mut icv = [0; 32];
    put(&mut icv, 0, body.f.slice(form.icv_at(), form.icv_len()).unwrap_or_default());
    let nonce = form.nonce_at();
    let offset = |at: usize| {
        offset::decode(body.f.u32(at), form.version()).map_err(|_| CdbError::at(at as u16)) // at most 232
    };
    Ok(Security {
        icv,
        nonce: body.f.array(nonce),
        data_in_icv: offset(nonce + 12)?,
        data_out_icv: offset(nonce + 16)?,
    })
}

/// The offset field for `bytes`.
fn field(bytes: Option<u64>, version: Version) -> Result<u32, EncodeError> {
    match bytes {
        None => Ok(offset::UNUSED),
        Some(bytes) => offset::encode(bytes, version).ok_or(EncodeError::Offset(bytes)),
    }
}

#[cfg(test)]
mod tests;
