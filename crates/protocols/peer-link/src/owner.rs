//! The end that owns units and executes: one for each forwarder (instance) and channel. It outlives
//! its connections, and ends when that instance is no member of the group any more.
//!
//! [`Owner::begin`] is the moment from which a command counts as begun. Until then a lost
//! connection, an abort or a cleared nexus makes it one that never begins, and `begin` says no.
//! Afterwards it ends by [`Owner::finish`] or [`Owner::ended`] alone, which the caller calls when
//! nothing of it can touch the medium any more.
//!
//! What this end has to say is kept as state, and written by [`Owner::flush`]. So a forwarder that
//! does not read makes nothing grow. Commands are `slots`, nexuses and their units `nexuses`; this
//! file has the connection, and says which messages are in their place.

mod nexuses;
mod slots;

use std::collections::VecDeque;

use crate::frame::{Got, Keys};
use crate::limits::{BEAT, Limits};
use crate::line::Line;
use crate::message::{Attach, Attention, Command, Function, Managed, Message, NotBegun, Outcome, View};
use crate::number::Number;
use crate::wire::Violation;
use crate::{Connection, Time};
use nexuses::Nexuses;
use slots::{Slots, Task};

/// An event that the forwarder's messages have caused.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A nexus that this owner did not know.
    Attach(Attach),
    /// The nexus has gone; it has no task.
    Detach {
        /// The nexus.
        itl: u32,
    },
    /// A command. The caller answers with [`Owner::begin`] or [`Owner::refuse`].
    Command {
        /// Its number.
        number: Number,
        /// It.
        command: Command,
        /// So many bytes of Data-Out follow unsolicited.
        unsolicited: u32,
    },
    /// A task management function, which ends by [`Owner::managed`].
    Function {
        /// Its number.
        number: Number,
        /// The nexus.
        itl: u32,
        /// The function.
        function: Function,
    },
    /// Data-Out of a command, in order.
    Data {
        /// The command.
        number: Number,
        /// Its place.
        offset: u64,
        /// The bytes. Only with `last` is their checksum known to be right, and that of the bytes
        /// of this command that came since the last `last`: no unit gets any of them before.
        bytes: &'a [u8],
        /// See `bytes`.
        last: bool,
    },
    /// More Data-In of the command may be sent: see [`Owner::room`].
    Room {
        /// The command.
        number: Number,
    },
    /// A begun command is aborted: it moves no data any more.
    Abort {
        /// The command.
        number: Number,
    },
    /// The forwarder has this time of the owner: it was there then.
    Beat {
        /// The time.
        token: u64,
    },
    /// The forwarder has asked for all that it wanted to know after a lost connection.
    Settled,
}

/// The owning end.
#[derive(Debug)]
pub struct Owner {
    limits: Limits,
    slots: Slots,
    nexuses: Nexuses,
    /// Nexuses that went with a connection: told before anything else is received.
    detached: VecDeque<u32>,
    token: u64,
    echo: u64,
    beat: Time,
    /// The forwarder has said that it is settled on this connection.
    settled: bool,
    connections: u64,
    /// Most bytes of data in one frame to the forwarder.
    piece: u32,
    line: Option<Line>,
}

impl Owner {
    /// Without a connection. The limits are those of each [`crate::Answering::challenge`].
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            slots: Slots::new(limits),
            nexuses: Nexuses::new(limits.nexuses),
            detached: VecDeque::new(),
            token: 0,
            echo: 0,
            beat: Time::ZERO,
            settled: false,
            connections: 0,
            piece: 0,
            line: None,
        }
    }

    /// Whether a forwarder has been connected: what [`crate::Answering::accept`] says of it.
    #[must_use]
    pub fn remembers(&self) -> bool {
        self.connections > 0
    }

    /// A handshake has succeeded: `piece` is what the forwarder's claim says, `token` what it was
    /// told. A connection that there was before is lost by it.
    pub fn connect(&mut self, now: Time, keys: Keys, piece: u32, token: u64) -> Connection {
        self.lost();
        self.connections += 1;
        let connection = Connection(self.connections);
        self.line = Some(Line::new(connection, keys, self.limits.piece, now));
        (self.piece, self.settled) = (piece, false);
        self.token = self.token.max(token);
        self.echo = 0;
        self.beat = now + BEAT;
        connection
    }

    /// The connection is lost, or ended by a violation. Commands that have not begun never begin.
    /// Others move no data any more, and end nevertheless.
    pub fn lost(&mut self) {
        self.line = None;
        self.slots.lost();
        self.nexuses.lost();
    }

    /// The connection, if there is one.
    #[must_use]
    pub fn connection(&self) -> Option<Connection> {
        self.line.as_ref().map(|line| line.connection)
    }

    /// The nexuses that are attached: a caller that ends this owner detaches them.
    pub fn nexuses(&self) -> impl Iterator<Item = &Attach> {
        self.nexuses.all()
    }

    /// The commands that have begun and not ended.
    pub fn begun(&self) -> impl Iterator<Item = Number> {
        self.slots.begun()
    }

    /// Begins a command. `false`: it was aborted, cleared or lost meanwhile, and must not begin.
    #[must_use]
    pub fn begin(&mut self, number: Number) -> bool {
        self.slots.begin(number)
    }

    /// Ends a command that has not begun, and never will.
    pub fn refuse(&mut self, number: Number, reason: NotBegun) {
        self.slots.refuse(number, reason);
    }

    /// Ends a begun command with its outcome. All of its Data-In was sent before. The forwarder
    /// gets no outcome if [`Self::moves`] has said no: a unit whose mover is lost ends with any.
    pub fn finish(&mut self, number: Number, outcome: Outcome) {
        self.slots.finish(number, outcome);
    }

    /// Ends a begun command without an outcome: it was aborted, or its data was lost.
    pub fn ended(&mut self, number: Number) {
        self.slots.ended(number);
    }

    /// Ends a task management function: no concerned task touches the medium any more.
    pub fn managed(&mut self, number: Number, result: Managed) {
        self.slots.managed(number, result);
    }

    /// Whether data of a begun command still moves: otherwise its mover says `Lost`.
    #[must_use]
    pub fn moves(&mut self, number: Number) -> bool {
        self.slots.moves(number)
    }

    /// Asks for Data-Out up to byte `end`, for which the caller has room. Returns the byte up to
    /// which it comes.
    pub fn ask(&mut self, number: Number, end: u64) -> u64 {
        self.slots.ask(number, end)
    }

    /// How many bytes of the command's Data-In may be sent now.
    #[must_use]
    pub fn room(&mut self, number: Number) -> u64 {
        self.slots.room(number)
    }

    /// The most bytes of one [`Self::data`].
    #[must_use]
    pub fn piece(&self) -> u32 {
        self.piece
    }

    /// Sends the next bytes of a command's Data-In: the caller sends `parts` behind what this
    /// appends to `out`. `false`: they are more than there is room for, and nothing was appended.
    #[must_use]
    pub fn data(&mut self, number: Number, parts: &[&[u8]], out: &mut Vec<u8>) -> bool {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let Some(line) = self.line.as_mut().filter(|_| len <= u64::from(self.piece)) else { return false };
        let Some(offset) = self.slots.send(number, len) else { return false };
        line.sealer.seal_with(&Message::Data { number, offset }, parts, out);
        true
    }

    /// Aborts a command by itself, as [`Progress::Abort`] does. Whether it has begun: the caller
    /// waits for its end then.
    #[must_use]
    pub fn abort(&mut self, number: Number) -> bool {
        self.slots.abort(number)
    }

    /// Clears a nexus: no command that the forwarder has sent so far begins any more, but `except`,
    /// which asks for it. Returns those that have begun, for the caller to abort. A reset, CLEAR
    /// TASK SET, PREEMPT AND ABORT.
    #[must_use]
    pub fn clear(&mut self, itl: u32, except: Option<Number>) -> Vec<Number> {
        if !self.nexuses.clear(itl) {
            return Vec::new();
        }
        self.slots.clear(itl, except)
    }

    /// The pending unit attentions of a nexus have changed. After an outcome that has reported one,
    /// so that none is lost with this owner.
    pub fn attentions(&mut self, itl: u32, attentions: Vec<Attention>) {
        self.nexuses.attentions(itl, attentions);
    }

    /// A unit of a nexus has changed.
    pub fn view(&mut self, view: View) {
        self.nexuses.view(view);
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
    ) -> Result<Option<Progress<'a>>, Violation> {
        loop {
            if let Some(itl) = self.detached.pop_front() {
                return Ok(Some(Progress::Detach { itl }));
            }
            let line = self.line.as_mut().filter(|line| line.connection == connection);
            let line = line.ok_or(Violation::Replaced)?;
            match line.next(now, input)? {
                None => return Ok(None),
                Some(Got::Data { bytes, last }) => {
                    let Some((number, piece)) = line.data else {
                        invariant::broken!("data without a message");
                        continue;
                    };
                    if last {
                        line.data = None;
                    }
                    if let Some(offset) = self.slots.data_came(number, last.then_some(piece)) {
                        return Ok(Some(Progress::Data { number, offset, bytes, last }));
                    }
                }
                Some(Got::Message(message, len)) => {
                    if let Some(progress) = self.message(message, len)? {
                        return Ok(Some(progress));
                    }
                }
            }
        }
    }

    fn message<'a>(&mut self, message: Message, len: u32) -> Result<Option<Progress<'a>>, Violation> {
        match message {
            Message::Attach(attach) => {
                let new = self.nexuses.attach(&attach)?;
                Ok(new.then_some(Progress::Attach(*attach)))
            }
            Message::Detach { itl } => {
                self.detach(itl)?;
                Ok(Some(Progress::Detach { itl }))
            }
            Message::Command { number, command } => self.command(number, *command, len),
            Message::Function { number, itl, function } => {
                self.place(number, Task::function(itl))?;
                if self.nexuses.generation(itl).is_none() {
                    self.slots.managed(number, Managed::Rejected);
                    return Ok(None);
                }
                Ok(Some(Progress::Function { number, itl, function }))
            }
            Message::Abort { number } => {
                Ok(self.slots.abort_asked(number)?.then_some(Progress::Abort { number }))
            }
            Message::Query { number } => {
                if self.settled {
                    return Err(Violation::State("a question after all was asked for"));
                }
                self.slots.query(number)?;
                Ok(None)
            }
            Message::Settled => {
                self.settle()?;
                Ok(Some(Progress::Settled))
            }
            Message::Beat { token } => {
                if token > self.token || token < self.echo {
                    return Err(Violation::State("a time that the owner has not told"));
                }
                self.echo = token;
                Ok(Some(Progress::Beat { token }))
            }
            Message::Room { number, end } => {
                Ok(self.slots.room_given(number, end)?.then_some(Progress::Room { number }))
            }
            Message::Data { number, offset } => {
                self.slots.data_comes(number, offset, len)?;
                if let Some(line) = &mut self.line {
                    line.data = Some((number, len));
                }
                Ok(None)
            }
            Message::Outcome { .. }
            | Message::NotBegun { .. }
            | Message::Ended { .. }
            | Message::Managed { .. }
            | Message::Cleared { .. }
            | Message::Attentions { .. }
            | Message::View(_) => Err(Violation::WrongWay(message.kind())),
        }
    }

    fn detach(&mut self, itl: u32) -> Result<(), Violation> {
        if self.slots.concern(itl) {
            return Err(Violation::State("a nexus is detached whose commands have not ended"));
        }
        self.nexuses.detach(itl)
    }

    fn place(&mut self, number: Number, task: Task) -> Result<(), Violation> {
        if !self.settled {
            return Err(Violation::State("a command before all was asked for"));
        }
        self.slots.place(number, task)
    }

    fn command<'a>(
        &mut self,
        number: Number,
        command: Command,
        unsolicited: u32,
    ) -> Result<Option<Progress<'a>>, Violation> {
        if command.token > self.token {
            return Err(Violation::State("a time that the owner has not told"));
        }
        self.place(number, Task::command(&command, unsolicited))?;
        if let Some(line) = self.line.as_mut().filter(|_| unsolicited > 0) {
            line.data = Some((number, unsolicited));
        }
        let reason = match self.nexuses.generation(command.itl) {
            None => NotBegun::NoNexus,
            Some(generation) if command.generation > generation => {
                return Err(Violation::State("a generation that the owner has not told"));
            }
            Some(generation) if command.generation < generation => NotBegun::Cleared,
            Some(_) => return Ok(Some(Progress::Command { number, command, unsolicited })),
        };
        self.slots.refuse(number, reason);
        Ok(None)
    }

    /// The forwarder needs no end that it has not asked for by now.
    fn settle(&mut self) -> Result<(), Violation> {
        if std::mem::replace(&mut self.settled, true) {
            return Err(Violation::State("settled twice"));
        }
        self.slots.settle()?;
        for itl in self.nexuses.left() {
            self.detach(itl)?;
            self.detached.push_back(itl);
        }
        Ok(())
    }

    /// Appends what this end has to say, and stops soon after `out` has `most` bytes. Returns
    /// whether there is more. Call it when little of what was appended before is still unsent.
    pub fn flush(&mut self, now: Time, most: usize, out: &mut Vec<u8>) -> bool {
        let Some(line) = &mut self.line else { return false };
        let sealer = &mut line.sealer;
        if self.beat <= now {
            self.beat = now + BEAT;
            self.token = self.token.max(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
            sealer.seal(&Message::Beat { token: self.token }, out);
        }
        while out.len() < most {
            // Cleared commands end behind the word that they are cleared, and attentions come
            // behind the outcomes that have reported some.
            let said = self.nexuses.say_view(sealer, out)
                || self.nexuses.say_cleared(sealer, out)
                || self.slots.say(sealer, out)
                || self.nexuses.say_attentions(sealer, out);
            if !said {
                return false;
            }
        }
        true
    }

    /// Time has passed: [`Self::flush`] may have something to say.
    ///
    /// # Errors
    /// The forwarder is silent: the connection has to be closed.
    pub fn tick(&mut self, now: Time) -> Result<(), Violation> {
        match &self.line {
            Some(line) if line.ends() <= now => Err(Violation::Silent),
            _ => Ok(()),
        }
    }

    /// When [`Self::tick`] and [`Self::flush`] are due.
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        self.line.as_ref().map(|line| line.ends().min(self.beat))
    }
}
