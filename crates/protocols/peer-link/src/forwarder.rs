//! The end that forwards: one for each owner (instance) and channel. It outlives its connections.
//!
//! It keeps each forwarding until the owner's word on it has come, and ends none on its own.
//! [`Forwarder::fenced`] is the only other way: the group's record says that the owner is fenced.
//! It never sends a command a second time; the caller forwards it anew, as another number.

use std::collections::BTreeMap;

use crate::frame::Got;
use crate::handshake::Welcome;
use crate::limits::Limits;
use crate::line::Line;
use crate::message::{
    Attach, Attention, Command, Function, LEAST_CDB, MOST_CDB, Managed, Message, NotBegun, Outcome, View,
};
use crate::number::Number;
use crate::wire::Violation;
use crate::{Connection, Time};

/// The end of a forwarding, by its owner's word. Nothing of it is in flight any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Final {
    /// A command's outcome.
    Outcome {
        /// It.
        outcome: Outcome,
        /// All of its Data-In has come. Otherwise a connection was lost with some of it: a READ is
        /// forwarded again, and any other command ends as ABORTED COMMAND.
        whole: bool,
    },
    /// It has not begun and never will.
    NotBegun(NotBegun),
    /// It began, and has no outcome: it was aborted, or its data was lost with a connection.
    Ended,
    /// The result of a task management function.
    Managed(Managed),
}

/// An event that the owner's messages have caused.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The command's Data-Out may be sent up to this byte.
    Room {
        /// The command.
        number: Number,
        /// The byte.
        end: u64,
    },
    /// Data-In.
    Data {
        /// The command.
        number: Number,
        /// Its place.
        offset: u64,
        /// The bytes. Only with `last` is their checksum known to be right, and that of the bytes
        /// of this command that came since the last `last`: none of them goes on before.
        bytes: &'a [u8],
        /// See `bytes`.
        last: bool,
    },
    /// A forwarding has ended.
    End {
        /// It.
        number: Number,
        /// How it ended.
        end: Final,
    },
    /// A reset, CLEAR TASK SET or PREEMPT AND ABORT has cleared a nexus. What was forwarded before
    /// ends by its own message behind this one: it was aborted unless it has not begun.
    Cleared {
        /// The nexus.
        itl: u32,
    },
    /// The pending unit attentions of a nexus, for its next owner.
    Attentions {
        /// The nexus.
        itl: u32,
        /// Oldest first.
        attentions: Vec<Attention>,
    },
    /// The present state of a nexus's unit.
    View(View),
}

/// Why something was not sent. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no connection.
    #[error("there is no connection to the owner")]
    NotConnected,
    /// The owner's limit is reached.
    #[error("the owner takes no more now")]
    Full,
    /// There is no such nexus or forwarding, or it has ended.
    #[error("there is no such nexus or forwarding")]
    Gone,
    /// Commands of the nexus have not ended.
    #[error("commands of the nexus have not ended")]
    Busy,
    /// A length that the protocol does not allow.
    #[error("a field or the data is too long or too short")]
    Length,
}

#[derive(Debug, Default)]
struct Slot {
    turn: u64,
    task: Option<Task>,
}

#[derive(Debug)]
struct Task {
    itl: u32,
    /// On which it was sent: its data moves on no other one.
    connection: Connection,
    function: bool,
    aborted: bool,
    data_out: u64,
    out_room: u64,
    out_sent: u64,
    data_in: u64,
    in_room: u64,
    in_got: u64,
    unsolicited: u32,
}

/// The forwarding end.
#[derive(Debug)]
pub struct Forwarder {
    /// Most bytes of data in one frame to this end.
    piece: u32,
    /// The owner's, from the first connection on.
    limits: Option<Limits>,
    version: u16,
    slots: Vec<Slot>,
    /// Slots without a task, the last one to be used first.
    free: Vec<usize>,
    free_functions: Vec<usize>,
    unsolicited: u32,
    nexuses: BTreeMap<u32, Attach>,
    next_itl: u32,
    token: u64,
    echo: Option<u64>,
    connections: u64,
    line: Option<Line>,
}

impl Forwarder {
    /// Without a connection. `piece` is what [`crate::Own`] says.
    #[must_use]
    pub fn new(piece: u32) -> Self {
        Self {
            piece,
            limits: None,
            version: 0,
            slots: Vec::new(),
            free: Vec::new(),
            free_functions: Vec::new(),
            unsolicited: 0,
            nexuses: BTreeMap::new(),
            next_itl: 1,
            token: 0,
            echo: None,
            connections: 0,
            line: None,
        }
    }

    /// A handshake has succeeded. Appends what is to be sent first: the nexuses, and a question for
    /// each forwarding without an end.
    ///
    /// # Errors
    /// The owner does not remember what it may have begun, or has changed its limits.
    pub fn connect(
        &mut self,
        now: Time,
        welcome: Welcome,
        out: &mut Vec<u8>,
    ) -> Result<Connection, Violation> {
        let before = self.limits.replace(welcome.limits);
        match before {
            None => {
                let (commands, slots) = (usize::from(welcome.limits.commands), welcome.limits.slots());
                self.slots.resize_with(slots, Slot::default);
                self.free = (0..commands).rev().collect();
                self.free_functions = (commands..slots).rev().collect();
            }
            Some(before) => {
                self.limits = Some(Limits { piece: welcome.limits.piece, ..before });
                if !welcome.remembers {
                    return Err(Violation::Forgotten);
                }
                if self.limits != Some(welcome.limits) {
                    return Err(Violation::State("the owner has changed its limits"));
                }
            }
        }
        if self.nexuses.len() > welcome.limits.nexuses as usize {
            return Err(Violation::State("the owner takes fewer nexuses than there are"));
        }
        self.version = welcome.version;
        self.token = welcome.token;
        self.echo = None;
        self.connections += 1;
        let connection = Connection(self.connections);
        let mut line = Line::new(connection, welcome.keys, self.piece, now);
        for attach in self.nexuses.values() {
            line.sealer.seal(&Message::Attach(Box::new(attach.clone())), out);
        }
        for (index, slot) in self.slots.iter().enumerate() {
            let Some(task) = &slot.task else { continue };
            let number = Number::new(index, slot.turn);
            line.sealer.seal(&Message::Query { number }, out);
            if task.aborted {
                line.sealer.seal(&Message::Abort { number }, out);
            }
        }
        line.sealer.seal(&Message::Settled, out);
        self.line = Some(line);
        Ok(connection)
    }

    /// The connection is lost, or ended by a violation. Nothing ends by it.
    pub fn lost(&mut self) {
        self.line = None;
    }

    /// The connection, if there is one.
    #[must_use]
    pub fn connection(&self) -> Option<Connection> {
        self.line.as_ref().map(|line| line.connection)
    }

    /// The version of the last connection.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// The forwardings without an end.
    pub fn outstanding(&self) -> impl Iterator<Item = Number> {
        let numbers = self.slots.iter().enumerate();
        numbers.filter(|(_, slot)| slot.task.is_some()).map(|(index, slot)| Number::new(index, slot.turn))
    }

    /// The owner's instance is fenced, or has left: it executes nothing any more. What has no end
    /// may have been executed.
    #[must_use]
    pub fn fenced(self) -> Vec<Number> {
        self.outstanding().collect()
    }

    /// How many unsolicited bytes the next command may have.
    #[must_use]
    pub fn unsolicited_room(&self) -> u32 {
        let most = |limits: &Limits| limits.unsolicited.saturating_sub(self.unsolicited).min(limits.piece);
        self.limits.as_ref().map_or(0, most)
    }

    /// The most bytes of one [`Self::data`].
    #[must_use]
    pub fn piece(&self) -> u32 {
        self.limits.as_ref().map_or(0, |limits| limits.piece)
    }

    /// Attaches a nexus: `itl` and `generation` of `attach` are set here. Without a connection the
    /// next one tells the owner.
    ///
    /// # Errors
    /// It was not attached.
    pub fn attach(&mut self, mut attach: Attach, out: &mut Vec<u8>) -> Result<u32, Refused> {
        let most = self.limits.map_or(Limits::MOST_NEXUSES, |limits| limits.nexuses) as usize;
        if self.nexuses.len() >= most || self.next_itl == u32::MAX {
            return Err(Refused::Full);
        }
        if !attach.fits() {
            return Err(Refused::Length);
        }
        let itl = self.next_itl;
        self.next_itl += 1;
        (attach.itl, attach.generation) = (itl, 0);
        if let Some(line) = &mut self.line {
            line.sealer.seal(&Message::Attach(Box::new(attach.clone())), out);
        }
        self.nexuses.insert(itl, attach);
        Ok(itl)
    }

    /// Detaches a nexus, whose commands have all ended.
    ///
    /// # Errors
    /// There is none, or some have not.
    pub fn detach(&mut self, itl: u32, out: &mut Vec<u8>) -> Result<(), Refused> {
        if self.slots.iter().filter_map(|slot| slot.task.as_ref()).any(|task| task.itl == itl) {
            return Err(Refused::Busy);
        }
        self.nexuses.remove(&itl).ok_or(Refused::Gone)?;
        if let Some(line) = &mut self.line {
            line.sealer.seal(&Message::Detach { itl }, out);
        }
        Ok(())
    }

    /// Forwards a command with the first bytes of its Data-Out, which the caller sends behind what
    /// this appends to `out`. Its `generation` and `token` are set here.
    ///
    /// # Errors
    /// It was not forwarded.
    pub fn submit(
        &mut self,
        mut command: Command,
        unsolicited: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<Number, Refused> {
        let room = self.unsolicited_room();
        let Some(line) = &mut self.line else { return Err(Refused::NotConnected) };
        let nexus = self.nexuses.get(&command.itl).ok_or(Refused::Gone)?;
        let len: usize = unsolicited.iter().map(|part| part.len()).sum();
        let len = u32::try_from(len).ok().filter(|len| *len <= room).ok_or(Refused::Full)?;
        if !(LEAST_CDB..=MOST_CDB).contains(&command.cdb.len()) || u64::from(len) > command.data_out {
            return Err(Refused::Length);
        }
        let slot = self.free.pop().ok_or(Refused::Full)?;
        command.generation = nexus.generation;
        command.token = self.token;
        command.room = command.room.min(command.data_in);
        let task = Task {
            itl: command.itl,
            connection: line.connection,
            function: false,
            aborted: false,
            data_out: command.data_out,
            out_room: u64::from(len),
            out_sent: u64::from(len),
            data_in: command.data_in,
            in_room: command.room,
            in_got: 0,
            unsolicited: len,
        };
        self.unsolicited += len;
        let number = self.slots[slot].begin(slot, task);
        let message = Message::Command { number, command: Box::new(command) };
        line.sealer.seal_with(&message, unsolicited, out);
        Ok(number)
    }

    /// Asks for a task management function. Its end comes when no concerned task touches the medium
    /// any more.
    ///
    /// # Errors
    /// It was not sent.
    pub fn manage(&mut self, itl: u32, function: Function, out: &mut Vec<u8>) -> Result<Number, Refused> {
        let Some(line) = &mut self.line else { return Err(Refused::NotConnected) };
        if !self.nexuses.contains_key(&itl) {
            return Err(Refused::Gone);
        }
        let slot = self.free_functions.pop().ok_or(Refused::Full)?;
        let task = Task {
            itl,
            connection: line.connection,
            function: true,
            aborted: false,
            data_out: 0,
            out_room: 0,
            out_sent: 0,
            data_in: 0,
            in_room: 0,
            in_got: 0,
            unsolicited: 0,
        };
        let number = self.slots[slot].begin(slot, task);
        line.sealer.seal(&Message::Function { number, itl, function }, out);
        Ok(number)
    }

    /// Sends the next bytes of a command's Data-Out: the caller sends `parts` behind what this
    /// appends.
    ///
    /// # Errors
    /// They are more than the owner has room for, or the command moves no data any more.
    pub fn data(&mut self, number: Number, parts: &[&[u8]], out: &mut Vec<u8>) -> Result<(), Refused> {
        let piece = self.piece() as usize;
        let Some(line) = &mut self.line else { return Err(Refused::NotConnected) };
        let task = task(&mut self.slots, number).ok_or(Refused::Gone)?;
        if task.connection != line.connection {
            return Err(Refused::Gone);
        }
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let offset = task.out_sent;
        if len == 0 || len > piece || offset + len as u64 > task.out_room {
            return Err(Refused::Length);
        }
        task.out_sent += len as u64;
        line.sealer.seal_with(&Message::Data { number, offset }, parts, out);
        Ok(())
    }

    /// There is room for Data-In up to byte `end`.
    pub fn room(&mut self, number: Number, end: u64, out: &mut Vec<u8>) {
        let (Some(line), Some(task)) = (&mut self.line, task(&mut self.slots, number)) else { return };
        let end = end.min(task.data_in);
        if end > task.in_room && task.connection == line.connection {
            task.in_room = end;
            line.sealer.seal(&Message::Room { number, end }, out);
        }
    }

    /// Aborts a command. Its end follows in any case: its outcome, if that was first.
    pub fn abort(&mut self, number: Number, out: &mut Vec<u8>) {
        let Some(task) = task(&mut self.slots, number) else { return };
        if task.function || std::mem::replace(&mut task.aborted, true) {
            return;
        }
        if let Some(line) = &mut self.line {
            line.sealer.seal(&Message::Abort { number }, out);
        }
    }

    /// Takes what has come on a connection. `None` when all of it is used.
    ///
    /// # Errors
    /// The connection has to be closed.
    pub fn receive<'a>(
        &mut self,
        connection: Connection,
        now: Time,
        input: &mut &'a [u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        loop {
            let line = self.line.as_mut().filter(|line| line.connection == connection);
            let line = line.ok_or(Violation::Replaced)?;
            match line.next(now, input)? {
                None => return Ok(None),
                Some(Got::Data { bytes, last }) => {
                    let Some((number, piece)) = line.data else {
                        invariant::broken!("data without a message");
                        continue;
                    };
                    let Some(task) = task(&mut self.slots, number) else {
                        invariant::broken!("data of {number}, which has ended");
                        continue;
                    };
                    let offset = task.in_got;
                    if last {
                        line.data = None;
                        task.in_got += u64::from(piece);
                    }
                    return Ok(Some(Event::Data { number, offset, bytes, last }));
                }
                Some(Got::Message(message, len)) => {
                    if let Some(event) = self.message(message, len)? {
                        return Ok(Some(event));
                    }
                }
            }
        }
    }

    fn message<'a>(&mut self, message: Message, len: u32) -> Result<Option<Event<'a>>, Violation> {
        let event = match message {
            Message::Beat { token } => {
                if token < self.token {
                    return Err(Violation::State("the owner's time went back"));
                }
                self.token = token;
                self.echo = Some(token);
                return Ok(None);
            }
            Message::Room { number, end } => {
                let task = self.moving(number)?;
                if end <= task.out_room || end > task.data_out {
                    return Err(Violation::State("room for Data-Out that there is none of"));
                }
                task.out_room = end;
                Event::Room { number, end }
            }
            Message::Data { number, offset } => {
                let task = self.moving(number)?;
                if len == 0 || offset != task.in_got {
                    return Err(Violation::State("Data-In out of order"));
                }
                if u64::from(len) > task.in_room - task.in_got {
                    return Err(Violation::State("more Data-In than there is room for"));
                }
                if let Some(line) = &mut self.line {
                    line.data = Some((number, len));
                }
                return Ok(None);
            }
            Message::Outcome { number, outcome, sent } => {
                let connection = self.connection();
                let task = self.ending(number, Some(false))?;
                if sent > task.data_in {
                    return Err(Violation::State("more Data-In was sent than expected"));
                }
                let same = connection == Some(task.connection);
                if same && sent != task.in_got {
                    return Err(Violation::State("an outcome before its Data-In"));
                }
                let all = task.in_got >= outcome.wanted_in.min(task.data_in);
                let whole = sent == task.in_got && (same || all);
                self.release(number);
                Event::End { number, end: Final::Outcome { outcome: *outcome, whole } }
            }
            Message::NotBegun { number, reason } => {
                if self.ending(number, None)?.in_got > 0 {
                    return Err(Violation::State("Data-In of a command that has not begun"));
                }
                self.release(number);
                Event::End { number, end: Final::NotBegun(reason) }
            }
            Message::Ended { number } => {
                self.ending(number, None)?;
                self.release(number);
                Event::End { number, end: Final::Ended }
            }
            Message::Managed { number, result } => {
                self.ending(number, Some(true))?;
                self.release(number);
                Event::End { number, end: Final::Managed(result) }
            }
            Message::Cleared { itl, generation } => {
                let Some(nexus) = self.nexus(itl)? else { return Ok(None) };
                if generation <= nexus.generation {
                    return Ok(None);
                }
                nexus.generation = generation;
                Event::Cleared { itl }
            }
            Message::Attentions { itl, attentions } => {
                let Some(nexus) = self.nexus(itl)? else { return Ok(None) };
                nexus.attentions.clone_from(&attentions);
                Event::Attentions { itl, attentions }
            }
            Message::View(view) => {
                // The last nexus of it may just have been detached.
                if !self.nexuses.values().any(|nexus| nexus.unit == view.unit) {
                    return Ok(None);
                }
                Event::View(view)
            }
            Message::Attach(_)
            | Message::Detach { .. }
            | Message::Command { .. }
            | Message::Function { .. }
            | Message::Abort { .. }
            | Message::Query { .. }
            | Message::Settled => return Err(Violation::WrongWay(message.kind())),
        };
        Ok(Some(event))
    }

    /// A command whose data moves on this connection.
    fn moving(&mut self, number: Number) -> Result<&mut Task, Violation> {
        let connection = self.connection();
        task(&mut self.slots, number)
            .filter(|task| !task.function && Some(task.connection) == connection)
            .ok_or(Violation::State("data of a command that moves none here"))
    }

    /// A forwarding that the owner ends. It keeps its slot until all of the message is checked: a
    /// violation ends nothing.
    fn ending(&mut self, number: Number, function: Option<bool>) -> Result<&Task, Violation> {
        let task = task(&mut self.slots, number).ok_or(Violation::State("the end of nothing"))?;
        if function.is_some_and(|function| function != task.function) {
            return Err(Violation::State("an end of another kind"));
        }
        Ok(task)
    }

    /// Frees the slot of a forwarding that has ended.
    fn release(&mut self, number: Number) {
        let slot = number.slot();
        let Some(task) = self.slots.get_mut(slot).and_then(|slot| slot.task.take()) else { return };
        self.unsolicited -= task.unsolicited;
        if task.function { self.free_functions.push(slot) } else { self.free.push(slot) }
    }

    fn nexus(&mut self, itl: u32) -> Result<Option<&mut Attach>, Violation> {
        if itl == 0 || itl >= self.next_itl {
            return Err(Violation::State("a nexus that never was"));
        }
        // It may have been detached meanwhile.
        Ok(self.nexuses.get_mut(&itl))
    }

    /// Appends what this end has to say by itself. Call it after receiving, when what was appended
    /// before has left.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        if let (Some(line), Some(token)) = (&mut self.line, self.echo.take()) {
            line.sealer.seal(&Message::Beat { token }, out);
        }
    }

    /// Time has passed.
    ///
    /// # Errors
    /// The owner is silent: the connection has to be closed.
    pub fn tick(&mut self, now: Time) -> Result<(), Violation> {
        match &self.line {
            Some(line) if line.ends() <= now => Err(Violation::Silent),
            _ => Ok(()),
        }
    }

    /// When [`Self::tick`] is due.
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        self.line.as_ref().map(Line::ends)
    }
}

impl Slot {
    fn begin(&mut self, index: usize, task: Task) -> Number {
        self.turn += 1;
        self.task = Some(task);
        Number::new(index, self.turn)
    }
}

/// The task with this number, if it has no end.
fn task(slots: &mut [Slot], number: Number) -> Option<&mut Task> {
    slots.get_mut(number.slot()).filter(|slot| slot.turn == number.turn())?.task.as_mut()
}
