//! Messages and their bodies.
//!
//! `number` (8 bytes) is a forwarding's [`Number`]; `itl` (4) an I_T_L nexus; `counted` is a length
//! (2) and so many bytes.
//!
//! `kind`, message, sender: body.
//!
//! - 1, Attach, forwarder: itl, nexus (8), unit (4), tenure (8), flags (1): 0 read-only, 1 new, 2
//!   principal; generation (4), relative port (2), TransportID (counted), initiator (counted),
//!   target (counted), with flag 2: user (counted), credential (32); attentions: count (1), ASC and
//!   ASCQ (2) each.
//! - 2, Detach, forwarder: itl.
//! - 3, Command, forwarder: number, itl, generation (4), token (8), tag (8), attribute (1),
//!   Data-Out and Data-In lengths (8 + 8), room for Data-In (8), CDB (counted); data: unsolicited
//!   Data-Out.
//! - 4, Function, forwarder: number, itl, function (1).
//! - 5, Abort, forwarder: number.
//! - 6, Query, forwarder: number.
//! - 7, Settled, forwarder: nothing.
//! - 16, Beat, both: token (8).
//! - 17, Room, both: number, end (8): the receiver may send the command's data up to this byte.
//! - 18, Data, both: number, offset (8); data.
//! - 32, Outcome, owner: number, status (1), Data-In and Data-Out that the CDB requests (8 + 8),
//!   Data-In sent (8), sense (counted).
//! - 33, NotBegun, owner: number, reason (1).
//! - 34, Ended, owner: number.
//! - 35, Managed, owner: number, result (1).
//! - 36, Cleared, owner: itl, generation (4).
//! - 37, Attentions, owner: itl, count (1), ASC and ASCQ (2) each.
//! - 38, View, owner: unit (4), device type (1), flags (1): 0 descriptor sense, 1 write-protected;
//!   bytes of a block (4) and blocks (8), which the first release leaves out.
//!
//! Attention lists have the oldest first. Flags that a receiver does not know it ignores.

use crate::number::Number;
use crate::wire::{Reader, Violation, put_counted};

/// The shortest CDB, bytes.
pub const LEAST_CDB: usize = 6;
/// The longest CDB, bytes (SPC-4 §4.2.1).
pub const MOST_CDB: usize = 260;
/// The longest sense data, bytes (SPC-4 §4.5.2.1).
pub const MOST_SENSE: usize = 252;
/// The most pending unit attentions of a nexus.
pub const MOST_ATTENTIONS: usize = 16;
/// The longest TransportID, bytes.
pub const MOST_TRANSPORT_ID: usize = 512;
/// The longest name of an initiator, a target or a user, bytes.
pub const MOST_NAME: usize = 512;

/// An additional sense code and its qualifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention(pub u8, pub u8);

/// A user that has proven itself to the forwarder: `device::Principal`.
#[derive(Clone, PartialEq, Eq)]
pub struct Principal {
    /// Its name.
    pub user: String,
    /// Represents the credential without revealing it.
    pub credential: [u8; 32],
}

impl std::fmt::Debug for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Principal({:?}, …)", self.user)
    }
}

/// An I_T_L nexus: what an owner needs for `device::ItlNexus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// Its number: the forwarder's, never used again between the two machines.
    pub itl: u32,
    /// Its I_T nexus, by the forwarder's number: the same for all units of one session.
    pub nexus: u64,
    /// The unit, by the group's number.
    pub unit: u32,
    /// The owner's tenure of the unit, by a number that is the same on all channels of the
    /// forwarder, and greater for each later owner. `attentions` are those of this tenure's
    /// beginning: an owner that knows the nexus of an earlier tenure replaces it.
    pub tenure: u64,
    /// The forwarder's access control lets it read only.
    pub read_only: bool,
    /// The session is new, so POWER ON, RESET, OR BUS DEVICE RESET OCCURRED is pending. Otherwise
    /// another owner knew it, and exactly `attentions` are pending.
    pub new: bool,
    /// The last generation that the forwarder was told; 0 in the first message.
    pub generation: u32,
    /// RELATIVE TARGET PORT IDENTIFIER, unique in the group.
    pub port: u16,
    /// The initiator port (SPC-4 §7.6.4); for iSCSI it has the ISID too.
    pub transport_id: Vec<u8>,
    /// The initiator's device name.
    pub initiator: String,
    /// The target's device name.
    pub target: String,
    /// The user that has proven itself.
    pub principal: Option<Principal>,
    /// Pending unit attentions, oldest first.
    pub attentions: Vec<Attention>,
}

impl Attach {
    /// Whether each field has a length that the protocol allows.
    #[must_use]
    pub fn fits(&self) -> bool {
        let user = self.principal.as_ref().map_or(0, |principal| principal.user.len());
        self.transport_id.len() <= MOST_TRANSPORT_ID
            && self.initiator.len() <= MOST_NAME
            && self.target.len() <= MOST_NAME
            && user <= MOST_NAME
            && self.attentions.len() <= MOST_ATTENTIONS
    }

    /// Whether both are the same nexus.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.nexus, self.unit, self.port) == (other.nexus, other.unit, other.port)
            && self.tenure == other.tenure
            && self.read_only == other.read_only
            && self.transport_id == other.transport_id
            && self.initiator == other.initiator
            && self.target == other.target
            && self.principal == other.principal
    }
}

/// The task attribute (SAM-5 §8.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Attribute {
    /// SIMPLE.
    #[default]
    Simple = 0,
    /// ORDERED.
    Ordered = 1,
    /// HEAD OF QUEUE.
    HeadOfQueue = 2,
    /// ACA.
    Aca = 3,
}

/// A command: what `device::Command` has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its I_T_L nexus.
    pub itl: u32,
    /// The nexus's generation that the forwarder knew: an older one never begins.
    pub generation: u32,
    /// The newest time of its owner that the forwarder had.
    pub token: u64,
    /// The initiator's identifier of the task.
    pub tag: u64,
    /// Its task attribute.
    pub attribute: Attribute,
    /// Expected Data-Out length, bytes.
    pub data_out: u64,
    /// Expected Data-In length, bytes.
    pub data_in: u64,
    /// How many bytes of Data-In the forwarder has room for.
    pub room: u64,
    /// The CDB.
    pub cdb: Vec<u8>,
}

/// A task management function for the owner. ABORT TASK and ABORT TASK SET are
/// [`Message::Abort`] for each command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// CLEAR TASK SET.
    ClearTaskSet,
    /// LOGICAL UNIT RESET.
    LogicalUnitReset,
    /// TARGET WARM RESET, as far as this unit is concerned.
    TargetWarmReset,
    /// TARGET COLD RESET, as far as this unit is concerned.
    TargetColdReset,
    /// One of a newer release: the owner answers [`Managed::Rejected`].
    Unknown(u8),
}

impl Function {
    fn code(self) -> u8 {
        match self {
            Self::ClearTaskSet => 1,
            Self::LogicalUnitReset => 2,
            Self::TargetWarmReset => 3,
            Self::TargetColdReset => 4,
            Self::Unknown(code) => code,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            1 => Self::ClearTaskSet,
            2 => Self::LogicalUnitReset,
            3 => Self::TargetWarmReset,
            4 => Self::TargetColdReset,
            code => Self::Unknown(code),
        }
    }
}

/// The result of a task management function. No concerned task touches the medium any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Managed {
    /// Done.
    Done,
    /// The owner does not have the function.
    Rejected,
    /// It failed, or one of a newer release.
    Failed(u8),
}

impl Managed {
    fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Rejected => 1,
            Self::Failed(code) => code,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Done,
            1 => Self::Rejected,
            code => Self::Failed(code),
        }
    }
}

/// Why a forwarding has not begun, and never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// The owner never got it, or not the whole of it before the connection was lost.
    NotReceived,
    /// The forwarder has aborted it.
    Aborted,
    /// The unit is not this owner's: ask the record for the next one.
    NotOwner,
    /// Its token is too old.
    Stale,
    /// The owner's nexus was cleared before it came: a reset, PREEMPT AND ABORT, CLEAR TASK SET.
    Cleared,
    /// The owner has no such nexus.
    NoNexus,
    /// One of a newer release.
    Other(u8),
}

impl NotBegun {
    fn code(self) -> u8 {
        match self {
            Self::NotReceived => 1,
            Self::Aborted => 2,
            Self::NotOwner => 3,
            Self::Stale => 4,
            Self::Cleared => 5,
            Self::NoNexus => 6,
            Self::Other(code) => code,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            1 => Self::NotReceived,
            2 => Self::Aborted,
            3 => Self::NotOwner,
            4 => Self::Stale,
            5 => Self::Cleared,
            6 => Self::NoNexus,
            code => Self::Other(code),
        }
    }
}

/// A command's outcome: what `device::Outcome` has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// SAM status.
    pub status: u8,
    /// Bytes of Data-In that the CDB requests: residuals follow from it.
    pub wanted_in: u64,
    /// Bytes of Data-Out that the CDB requests.
    pub wanted_out: u64,
    /// Sense data in descriptor format, or nothing.
    pub sense: Vec<u8>,
}

/// The properties of a unit that a forwarder needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The unit.
    pub unit: u32,
    /// PERIPHERAL DEVICE TYPE.
    pub device_type: u8,
    /// D_SENSE: sense data goes out in descriptor format.
    pub descriptor_sense: bool,
    /// The unit takes no writes.
    pub write_protected: bool,
    /// Bytes of a block; 0 if the owner does not tell.
    pub block_size: u32,
    /// The unit's size.
    pub blocks: u64,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Attach(Box<Attach>),
    Detach { itl: u32 },
    Command { number: Number, command: Box<Command> },
    Function { number: Number, itl: u32, function: Function },
    Abort { number: Number },
    Query { number: Number },
    Settled,
    Beat { token: u64 },
    Room { number: Number, end: u64 },
    Data { number: Number, offset: u64 },
    Outcome { number: Number, outcome: Box<Outcome>, sent: u64 },
    NotBegun { number: Number, reason: NotBegun },
    Ended { number: Number },
    Managed { number: Number, result: Managed },
    Cleared { itl: u32, generation: u32 },
    Attentions { itl: u32, attentions: Vec<Attention> },
    View(View),
}

const READ_ONLY: u8 = 1;
const NEW: u8 = 2;
const PRINCIPAL: u8 = 4;
const DESCRIPTOR_SENSE: u8 = 1;
const WRITE_PROTECTED: u8 = 2;

impl Message {
    pub fn kind(&self) -> u8 {
        match self {
            Self::Attach(_) => 1,
            Self::Detach { .. } => 2,
            Self::Command { .. } => 3,
            Self::Function { .. } => 4,
            Self::Abort { .. } => 5,
            Self::Query { .. } => 6,
            Self::Settled => 7,
            Self::Beat { .. } => 16,
            Self::Room { .. } => 17,
            Self::Data { .. } => 18,
            Self::Outcome { .. } => 32,
            Self::NotBegun { .. } => 33,
            Self::Ended { .. } => 34,
            Self::Managed { .. } => 35,
            Self::Cleared { .. } => 36,
            Self::Attentions { .. } => 37,
            Self::View(_) => 38,
        }
    }

    /// Whether data may follow.
    pub fn has_data(&self) -> bool {
        matches!(self, Self::Command { .. } | Self::Data { .. })
    }

    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Attach(attach) => put_attach(attach, out),
            Self::Detach { itl } => out.extend(itl.to_be_bytes()),
            Self::Command { number, command } => {
                out.extend(number.get().to_be_bytes());
                out.extend(command.itl.to_be_bytes());
                out.extend(command.generation.to_be_bytes());
                out.extend(command.token.to_be_bytes());
                out.extend(command.tag.to_be_bytes());
                out.push(command.attribute as u8);
                out.extend(command.data_out.to_be_bytes());
                out.extend(command.data_in.to_be_bytes());
                out.extend(command.room.to_be_bytes());
                put_counted(out, &command.cdb);
            }
            Self::Function { number, itl, function } => {
                out.extend(number.get().to_be_bytes());
                out.extend(itl.to_be_bytes());
                out.push(function.code());
            }
            Self::Abort { number } | Self::Query { number } | Self::Ended { number } => {
                out.extend(number.get().to_be_bytes());
            }
            Self::Settled => {}
            Self::Beat { token } => out.extend(token.to_be_bytes()),
            Self::Room { number, end: at } | Self::Data { number, offset: at } => {
                out.extend(number.get().to_be_bytes());
                out.extend(at.to_be_bytes());
            }
            Self::Outcome { number, outcome, sent } => {
                out.extend(number.get().to_be_bytes());
                out.push(outcome.status);
                out.extend(outcome.wanted_in.to_be_bytes());
                out.extend(outcome.wanted_out.to_be_bytes());
                out.extend(sent.to_be_bytes());
                put_counted(out, &outcome.sense);
            }
            Self::NotBegun { number, reason } => {
                out.extend(number.get().to_be_bytes());
                out.push(reason.code());
            }
            Self::Managed { number, result } => {
                out.extend(number.get().to_be_bytes());
                out.push(result.code());
            }
            Self::Cleared { itl, generation } => {
                out.extend(itl.to_be_bytes());
                out.extend(generation.to_be_bytes());
            }
            Self::Attentions { itl, attentions } => {
                out.extend(itl.to_be_bytes());
                put_attentions(attentions, out);
            }
            Self::View(view) => {
                out.extend(view.unit.to_be_bytes());
                out.push(view.device_type);
                let descriptor = if view.descriptor_sense { DESCRIPTOR_SENSE } else { 0 };
                out.push(descriptor | if view.write_protected { WRITE_PROTECTED } else { 0 });
                out.extend(view.block_size.to_be_bytes());
                out.extend(view.blocks.to_be_bytes());
            }
        }
    }

    /// `None`: of an unknown kind.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Option<Self>, Violation> {
        let mut r = Reader { kind, bytes: body };
        let message = match kind {
            1 => Self::Attach(Box::new(attach(&mut r)?)),
            2 => Self::Detach { itl: r.u32("a nexus")? },
            3 => Self::Command { number: number(&mut r)?, command: Box::new(command(&mut r)?) },
            4 => Self::Function {
                number: number(&mut r)?,
                itl: r.u32("a nexus")?,
                function: Function::from_code(r.u8("a function")?),
            },
            5 => Self::Abort { number: number(&mut r)? },
            6 => Self::Query { number: number(&mut r)? },
            7 => Self::Settled,
            16 => Self::Beat { token: r.u64("a token")? },
            17 => Self::Room { number: number(&mut r)?, end: r.u64("an end")? },
            18 => Self::Data { number: number(&mut r)?, offset: r.u64("an offset")? },
            32 => {
                let number = number(&mut r)?;
                let status = r.u8("a status")?;
                let (wanted_in, wanted_out) = (r.u64("a length")?, r.u64("a length")?);
                let sent = r.u64("a length")?;
                let sense = r.counted(MOST_SENSE, "sense data")?.to_vec();
                let outcome = Outcome { status, wanted_in, wanted_out, sense };
                Self::Outcome { number, outcome: Box::new(outcome), sent }
            }
            33 => Self::NotBegun { number: number(&mut r)?, reason: NotBegun::from_code(r.u8("a reason")?) },
            34 => Self::Ended { number: number(&mut r)? },
            35 => Self::Managed { number: number(&mut r)?, result: Managed::from_code(r.u8("a result")?) },
            36 => Self::Cleared { itl: r.u32("a nexus")?, generation: r.u32("a generation")? },
            37 => Self::Attentions { itl: r.u32("a nexus")?, attentions: attentions(&mut r)? },
            38 => {
                let (unit, device_type, flags) = (r.u32("a unit")?, r.u8("a type")?, r.u8("flags")?);
                let descriptor_sense = flags & DESCRIPTOR_SENSE != 0;
                let write_protected = flags & WRITE_PROTECTED != 0;
                let (block_size, blocks) = match r.bytes {
                    // The first release's.
                    [] => (0, 0),
                    _ => (r.u32("a block's size")?, r.u64("a size")?),
                };
                Self::View(View { unit, device_type, descriptor_sense, write_protected, block_size, blocks })
            }
            _ => return Ok(None),
        };
        Ok(Some(message))
    }
}

fn number(r: &mut Reader<'_>) -> Result<Number, Violation> {
    let number = Number::from_wire(r.u64("a number")?);
    if number.turn() == 0 { r.malformed("a number") } else { Ok(number) }
}

fn put_attach(attach: &Attach, out: &mut Vec<u8>) {
    out.extend(attach.itl.to_be_bytes());
    out.extend(attach.nexus.to_be_bytes());
    out.extend(attach.unit.to_be_bytes());
    out.extend(attach.tenure.to_be_bytes());
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    let principal = flag(attach.principal.is_some(), PRINCIPAL);
    out.push(flag(attach.read_only, READ_ONLY) | flag(attach.new, NEW) | principal);
    out.extend(attach.generation.to_be_bytes());
    out.extend(attach.port.to_be_bytes());
    put_counted(out, &attach.transport_id);
    put_counted(out, attach.initiator.as_bytes());
    put_counted(out, attach.target.as_bytes());
    if let Some(principal) = &attach.principal {
        put_counted(out, principal.user.as_bytes());
        out.extend(principal.credential);
    }
    put_attentions(&attach.attentions, out);
}

fn attach(r: &mut Reader<'_>) -> Result<Attach, Violation> {
    let (itl, nexus, unit) = (r.u32("a nexus")?, r.u64("a nexus")?, r.u32("a unit")?);
    let tenure = r.u64("a tenure")?;
    let (flags, generation, port) = (r.u8("flags")?, r.u32("a generation")?, r.u16("a port")?);
    let transport_id = r.counted(MOST_TRANSPORT_ID, "a TransportID")?.to_vec();
    let (initiator, target) = (r.text(MOST_NAME, "an initiator")?, r.text(MOST_NAME, "a target")?);
    let principal = if flags & PRINCIPAL != 0 {
        Some(Principal { user: r.text(MOST_NAME, "a user")?, credential: r.array("a credential")? })
    } else {
        None
    };
    let attentions = attentions(r)?;
    let (read_only, new) = (flags & READ_ONLY != 0, flags & NEW != 0);
    #[rustfmt::skip]
    let attach = Attach {
        itl, nexus, unit, tenure, read_only, new, generation, port, transport_id, initiator, target, principal,
        attentions,
    };
    Ok(attach)
}

fn put_attentions(attentions: &[Attention], out: &mut Vec<u8>) {
    let attentions = &attentions[..attentions.len().min(MOST_ATTENTIONS)];
    out.push(attentions.len() as u8);
    out.extend(attentions.iter().flat_map(|attention| [attention.0, attention.1]));
}

fn attentions(r: &mut Reader<'_>) -> Result<Vec<Attention>, Violation> {
    let count = usize::from(r.u8("attentions")?);
    if count > MOST_ATTENTIONS {
        return r.malformed("attentions");
    }
    let bytes = r.take(count * 2, "attentions")?;
    Ok(bytes.chunks_exact(2).map(|pair| Attention(pair[0], pair[1])).collect())
}

fn command(r: &mut Reader<'_>) -> Result<Command, Violation> {
    let (itl, generation) = (r.u32("a nexus")?, r.u32("a generation")?);
    let (token, tag) = (r.u64("a token")?, r.u64("a tag")?);
    let attribute = match r.u8("an attribute")? {
        0 => Attribute::Simple,
        1 => Attribute::Ordered,
        2 => Attribute::HeadOfQueue,
        3 => Attribute::Aca,
        _ => return r.malformed("an attribute"),
    };
    let (data_out, data_in) = (r.u64("a length")?, r.u64("a length")?);
    let room = r.u64("room")?;
    let cdb = r.counted(MOST_CDB, "a CDB")?.to_vec();
    if cdb.len() < LEAST_CDB {
        return r.malformed("a CDB");
    }
    if room > data_in {
        return r.malformed("room");
    }
    Ok(Command { itl, generation, token, tag, attribute, data_out, data_in, room, cdb })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..=most)
    }

    fn numbers() -> impl Strategy<Value = Number> {
        (0..1usize << 16, 1..1u64 << 48).prop_map(|(slot, turn)| Number::new(slot, turn))
    }

    fn lists() -> impl Strategy<Value = Vec<Attention>> {
        proptest::collection::vec(any::<(u8, u8)>().prop_map(|(a, b)| Attention(a, b)), 0..=MOST_ATTENTIONS)
    }

    fn attaches() -> impl Strategy<Value = Message> {
        let names = ("[ -~]{0,40}", "[ -~]{0,40}", proptest::option::of(("[ -~]{0,40}", any::<[u8; 32]>())));
        let numbers = any::<(u32, u64, u32, bool, bool, u32, u16, u64)>();
        (numbers, names, bytes(MOST_TRANSPORT_ID), lists()).prop_map(
            |(n, names, transport_id, attentions)| {
                let principal = names.2.map(|(user, credential)| Principal { user, credential });
                Message::Attach(Box::new(Attach {
                    itl: n.0,
                    nexus: n.1,
                    unit: n.2,
                    tenure: n.7,
                    read_only: n.3,
                    new: n.4,
                    generation: n.5,
                    port: n.6,
                    transport_id,
                    initiator: names.0,
                    target: names.1,
                    principal,
                    attentions,
                }))
            },
        )
    }

    fn commands() -> impl Strategy<Value = Message> {
        let cdb = proptest::collection::vec(any::<u8>(), LEAST_CDB..=MOST_CDB);
        let attribute = prop_oneof![
            Just(Attribute::Simple),
            Just(Attribute::Ordered),
            Just(Attribute::HeadOfQueue),
            Just(Attribute::Aca)
        ];
        (numbers(), any::<(u32, u32, u64, u64, u64, u64)>(), attribute, cdb, any::<u64>()).prop_map(
            |(number, n, attribute, cdb, room)| {
                let room = room.min(n.5);
                let (itl, generation, token, tag, data_out, data_in) = n;
                let command =
                    Command { itl, generation, token, tag, attribute, data_out, data_in, room, cdb };
                Message::Command { number, command: Box::new(command) }
            },
        )
    }

    fn messages() -> impl Strategy<Value = Message> {
        let outcome = (numbers(), any::<(u8, u64, u64, u64)>(), bytes(MOST_SENSE));
        prop_oneof![
            attaches(),
            any::<u32>().prop_map(|itl| Message::Detach { itl }),
            commands(),
            (numbers(), any::<(u32, u8)>()).prop_map(|(number, (itl, code))| {
                Message::Function { number, itl, function: Function::from_code(code) }
            }),
            numbers().prop_map(|number| Message::Abort { number }),
            numbers().prop_map(|number| Message::Query { number }),
            Just(Message::Settled),
            any::<u64>().prop_map(|token| Message::Beat { token }),
            (numbers(), any::<u64>()).prop_map(|(number, end)| Message::Room { number, end }),
            (numbers(), any::<u64>()).prop_map(|(number, offset)| Message::Data { number, offset }),
            outcome.prop_map(|(number, (status, wanted_in, wanted_out, sent), sense)| {
                let outcome = Box::new(Outcome { status, wanted_in, wanted_out, sense });
                Message::Outcome { number, outcome, sent }
            }),
            (numbers(), any::<u8>()).prop_map(|(number, code)| {
                Message::NotBegun { number, reason: NotBegun::from_code(code) }
            }),
            numbers().prop_map(|number| Message::Ended { number }),
            (numbers(), any::<u8>())
                .prop_map(|(number, code)| { Message::Managed { number, result: Managed::from_code(code) } }),
            any::<(u32, u32)>().prop_map(|(itl, generation)| Message::Cleared { itl, generation }),
            (any::<u32>(), lists()).prop_map(|(itl, attentions)| Message::Attentions { itl, attentions }),
            any::<(u32, u8, bool, bool, u32, u64)>().prop_map(
                |(unit, device_type, descriptor_sense, write_protected, block_size, blocks)| {
                    let view =
                        View { unit, device_type, descriptor_sense, write_protected, block_size, blocks };
                    Message::View(view)
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_written(message in messages(), more in bytes(20)) {
            let mut body = Vec::new();
            message.encode(&mut body);
            prop_assert!(body.len() <= crate::frame::MOST_BODY as usize);
            prop_assert_eq!(Message::decode(message.kind(), &body), Ok(Some(message.clone())));
            // Fields of a newer release.
            body.extend(more);
            prop_assert_eq!(Message::decode(message.kind(), &body), Ok(Some(message)));
        }

        #[test]
        fn a_message_that_ends_too_soon_is_refused(message in messages(), at in any::<proptest::sample::Index>()) {
            let mut body = Vec::new();
            message.encode(&mut body);
            if !body.is_empty() {
                body.truncate(at.index(body.len()));
                let cut = Message::decode(message.kind(), &body);
                let of_first_release = matches!(message, Message::View(_)) && body.len() == 6;
                prop_assert!(
                    of_first_release || matches!(cut, Err(Violation::Malformed { .. })),
                    "{:?}",
                    cut
                );
            }
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(kind in any::<u8>(), body in bytes(700)) {
            if let Ok(Some(message)) = Message::decode(kind, &body) {
                let mut again = Vec::new();
                message.encode(&mut again);
                prop_assert_eq!(Message::decode(kind, &again), Ok(Some(message)));
            }
        }
    }

    #[test]
    fn the_bytes_of_version_1_stay_as_they_are() {
        let command = Command {
            itl: 1,
            generation: 2,
            token: 3,
            tag: 4,
            attribute: Attribute::Ordered,
            data_out: 5,
            data_in: 6,
            room: 6,
            cdb: vec![0x28, 0, 0, 0, 0, 9, 0, 0, 1, 0],
        };
        let mut body = Vec::new();
        Message::Command { number: Number::new(7, 8), command: Box::new(command) }.encode(&mut body);
        let expected = b"\0\0\0\0\0\x08\0\x07\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\x01\
            \0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x06\0\x0a\x28\0\0\0\0\x09\0\0\x01\0";
        assert_eq!(body, expected);
        let view = View {
            unit: 7,
            device_type: 0,
            descriptor_sense: true,
            write_protected: false,
            block_size: 0,
            blocks: 0,
        };
        assert_eq!(Message::decode(38, b"\0\0\0\x07\0\x01"), Ok(Some(Message::View(view))));
    }
}
