//! The end that owns units and executes: one for each forwarder (instance) and channel. It outlives
//! its connections, and ends when that instance is no member of the group any more.
//!
//! [`Owner::begin`] is the moment from which a command counts as begun. Until then a lost
//! connection, an abort or a cleared nexus makes it one that never begins, and `begin` says no.
//! Afterwards it ends by [`Owner::finish`] or [`Owner::ended`] alone, which the caller calls when
//! nothing of it can touch the medium any more.
//!
//! What this end has to say is kept as state, and written by [`Owner::flush`]. So a forwarder that
//! does not read makes nothing grow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::frame::{Got, Keys};
use crate::limits::{BEAT, Limits};
use crate::line::Line;
use crate::message::{Attach, Attention, Command, Function, Managed, Message, NotBegun, Outcome, View};
use crate::number::Number;
use crate::wire::Violation;
use crate::{Connection, Time};

/// What has come from the forwarder.
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

#[derive(Debug, Default)]
struct Slot {
    turn: u64,
    state: State,
    /// Has something for [`Owner::flush`].
    queued: bool,
}

#[derive(Debug, Default)]
enum State {
    /// Nothing to remember.
    #[default]
    Empty,
    Task(Task),
    End(End),
}

#[derive(Debug)]
struct Task {
    itl: u32,
    connection: Connection,
    /// The forwarder has sent it, or asked for it, on the present connection.
    asked: bool,
    function: bool,
    begun: bool,
    aborted: bool,
    data_out: u64,
    out_room: u64,
    out_got: u64,
    /// `out_room` has grown.
    grown: bool,
    data_in: u64,
    in_room: u64,
    in_sent: u64,
    unsolicited: u32,
}

#[derive(Debug)]
struct End {
    /// What is sent, also when it is asked for again.
    message: Message,
    asked: bool,
    sent: bool,
}

#[derive(Debug)]
struct Nexus {
    attach: Attach,
    generation: u32,
    /// On the present connection.
    attached: bool,
    cleared: bool,
    changed: bool,
}

/// The owning end.
#[derive(Debug)]
pub struct Owner {
    limits: Limits,
    slots: Vec<Slot>,
    unsolicited: u32,
    nexuses: BTreeMap<u32, Nexus>,
    last_itl: u32,
    views: BTreeMap<u32, View>,
    /// Slots, nexuses and units with something to say.
    ready: VecDeque<usize>,
    told: BTreeSet<u32>,
    shown: BTreeSet<u32>,
    /// What goes to the caller before anything else is received.
    progress: VecDeque<Progress<'static>>,
    token: u64,
    echo: u64,
    beat: Option<Time>,
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
        let mut slots = Vec::new();
        slots.resize_with(limits.slots(), Slot::default);
        Self {
            limits,
            slots,
            unsolicited: 0,
            nexuses: BTreeMap::new(),
            last_itl: 0,
            views: BTreeMap::new(),
            ready: VecDeque::new(),
            told: BTreeSet::new(),
            shown: BTreeSet::new(),
            progress: VecDeque::new(),
            token: 0,
            echo: 0,
            beat: None,
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
        self.beat = Some(now + BEAT);
        connection
    }

    /// The connection is lost, or ended by a violation. Commands that have not begun never begin.
    /// Others move no data any more, and end nevertheless.
    pub fn lost(&mut self) {
        self.line = None;
        self.beat = None;
        self.ready.clear();
        self.told.clear();
        self.shown.clear();
        for nexus in self.nexuses.values_mut() {
            (nexus.attached, nexus.cleared, nexus.changed) = (false, false, false);
        }
        for index in 0..self.slots.len() {
            self.slots[index].queued = false;
            match &mut self.slots[index].state {
                State::Empty => {}
                State::End(end) => (end.asked, end.sent) = (false, false),
                State::Task(task) => {
                    (task.asked, task.grown) = (false, false);
                    if !task.begun {
                        let number = Number::new(index, self.slots[index].turn);
                        self.end(number, Message::NotBegun { number, reason: NotBegun::NotReceived });
                    }
                }
            }
        }
    }

    /// The connection, if there is one.
    #[must_use]
    pub fn connection(&self) -> Option<Connection> {
        self.line.as_ref().map(|line| line.connection)
    }

    /// The nexuses that are attached: a caller that ends this owner detaches them.
    pub fn nexuses(&self) -> impl Iterator<Item = &Attach> {
        self.nexuses.values().map(|nexus| &nexus.attach)
    }

    /// The commands that have begun and not ended.
    pub fn begun(&self) -> impl Iterator<Item = Number> {
        let numbers = self.slots.iter().enumerate();
        let begun = |state: &State| matches!(state, State::Task(task) if task.begun && !task.function);
        numbers.filter(move |(_, slot)| begun(&slot.state)).map(|(index, slot)| Number::new(index, slot.turn))
    }

    /// Begins a command. `false`: it was aborted, cleared or lost meanwhile, and must not begin.
    #[must_use]
    pub fn begin(&mut self, number: Number) -> bool {
        let Some(task) = self.task(number) else { return false };
        invariant::invariant!(!task.begun, "{number} begins twice") && {
            task.begun = true;
            true
        }
    }

    /// Ends a command that has not begun, and never will.
    pub fn refuse(&mut self, number: Number, reason: NotBegun) {
        let Some(task) = self.task(number) else { return };
        if invariant::invariant!(!task.begun, "{number} has begun and is refused") {
            self.end(number, Message::NotBegun { number, reason });
        } else {
            self.end(number, Message::Ended { number });
        }
    }

    /// Ends a begun command with its outcome. All of its Data-In was sent before.
    pub fn finish(&mut self, number: Number, mut outcome: Outcome) {
        let Some(task) = self.task(number) else {
            invariant::broken!("the outcome of {number}, which has ended");
            return;
        };
        invariant::invariant!(task.begun && !task.function, "the outcome of {number}, which has not begun");
        let sent = task.in_sent;
        if task.aborted && sent < outcome.wanted_in.min(task.data_in) {
            // Its Data-In was not sent any more: the forwarder must not take it for whole.
            return self.end(number, Message::Ended { number });
        }
        outcome.sense.truncate(crate::message::MOST_SENSE);
        self.end(number, Message::Outcome { number, outcome: Box::new(outcome), sent });
    }

    /// Ends a begun command without an outcome: it was aborted, or its data was lost.
    pub fn ended(&mut self, number: Number) {
        if invariant::invariant!(self.task(number).is_some(), "{number} ends twice") {
            self.end(number, Message::Ended { number });
        }
    }

    /// Ends a task management function: no concerned task touches the medium any more.
    pub fn managed(&mut self, number: Number, result: Managed) {
        let function = self.task(number).is_some_and(|task| task.function);
        if invariant::invariant!(function, "the result of {number}, which is no function now") {
            self.end(number, Message::Managed { number, result });
        }
    }

    /// Whether data of a begun command still moves: otherwise its mover says `Lost`.
    #[must_use]
    pub fn moves(&mut self, number: Number) -> bool {
        let connection = self.connection();
        self.task(number).is_some_and(|task| !task.aborted && Some(task.connection) == connection)
    }

    /// Asks for Data-Out up to byte `end`, for which the caller has room. Returns the byte up to
    /// which it comes.
    pub fn ask(&mut self, number: Number, end: u64) -> u64 {
        if !self.moves(number) {
            return 0;
        }
        let Some(task) = self.task(number) else { return 0 };
        let end = end.min(task.data_out);
        if end > task.out_room {
            (task.out_room, task.grown) = (end, true);
            self.queue(number.slot());
        }
        end
    }

    /// How many bytes of the command's Data-In may be sent now.
    #[must_use]
    pub fn room(&mut self, number: Number) -> u64 {
        if !self.moves(number) {
            return 0;
        }
        self.task(number).map_or(0, |task| task.in_room - task.in_sent)
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
        if len == 0 || len > u64::from(self.piece) || len > self.room(number) {
            return false;
        }
        let Some(task) = self.task(number) else { return false };
        let offset = task.in_sent;
        task.in_sent += len;
        let Some(line) = &mut self.line else { return false };
        line.sealer.seal_with(&Message::Data { number, offset }, parts, out);
        true
    }

    /// Clears a nexus: no command that the forwarder has sent so far begins any more. Returns those
    /// that have begun, for the caller to abort. A reset, CLEAR TASK SET, PREEMPT AND ABORT.
    #[must_use]
    pub fn clear(&mut self, itl: u32) -> Vec<Number> {
        let Some(nexus) = self.nexuses.get_mut(&itl) else { return Vec::new() };
        nexus.generation = nexus.generation.saturating_add(1);
        nexus.cleared = true;
        self.tell(itl);
        let mut begun = Vec::new();
        for index in 0..self.slots.len() {
            let number = Number::new(index, self.slots[index].turn);
            match &mut self.slots[index].state {
                State::Task(task) if task.itl == itl && !task.function && task.begun => {
                    task.aborted = true;
                    begun.push(number);
                }
                State::Task(task) if task.itl == itl && !task.function => {
                    self.end(number, Message::NotBegun { number, reason: NotBegun::Cleared });
                }
                _ => {}
            }
        }
        begun
    }

    /// The pending unit attentions of a nexus have changed. After an outcome that has reported one,
    /// so that none is lost with this owner.
    pub fn attentions(&mut self, itl: u32, attentions: Vec<Attention>) {
        let Some(nexus) = self.nexuses.get_mut(&itl) else { return };
        if nexus.attach.attentions != attentions {
            (nexus.attach.attentions, nexus.changed) = (attentions, true);
            self.tell(itl);
        }
    }

    /// A unit of a nexus has changed.
    pub fn view(&mut self, view: View) {
        let known = self.nexuses.values().any(|nexus| nexus.attach.unit == view.unit);
        if known && self.views.insert(view.unit, view) != Some(view) && self.line.is_some() {
            self.shown.insert(view.unit);
        }
    }

    fn tell(&mut self, itl: u32) {
        if self.line.is_some() && self.nexuses.get(&itl).is_some_and(|nexus| nexus.attached) {
            self.told.insert(itl);
        }
    }

    fn task(&mut self, number: Number) -> Option<&mut Task> {
        let slot = self.slots.get_mut(number.slot()).filter(|slot| slot.turn == number.turn())?;
        match &mut slot.state {
            State::Task(task) => Some(task),
            _ => None,
        }
    }

    fn end(&mut self, number: Number, message: Message) {
        let slot = &mut self.slots[number.slot()];
        let State::Task(task) = &slot.state else { return };
        let asked = task.asked;
        self.unsolicited -= task.unsolicited;
        slot.state = State::End(End { message, asked, sent: false });
        if asked {
            self.queue(number.slot());
        }
    }

    fn queue(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if self.line.is_some() && !std::mem::replace(&mut slot.queued, true) {
            self.ready.push_back(index);
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
    ) -> Result<Option<Progress<'a>>, Violation> {
        loop {
            if let Some(progress) = self.progress.pop_front() {
                return Ok(Some(progress));
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
                    // It may have ended since.
                    let Some(task) = self.task(number) else { continue };
                    let offset = task.out_got;
                    if last {
                        task.out_got += u64::from(piece);
                    }
                    return Ok(Some(Progress::Data { number, offset, bytes, last }));
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
            Message::Attach(attach) => self.attach(*attach),
            Message::Detach { itl } => {
                self.detach(itl)?;
                Ok(Some(Progress::Detach { itl }))
            }
            Message::Command { number, command } => self.command(number, *command, len),
            Message::Function { number, itl, function } => {
                let task = Task { function: true, begun: true, ..self.fresh(itl) };
                self.place(number, task)?;
                if !self.nexuses.contains_key(&itl) {
                    self.end(number, Message::NotBegun { number, reason: NotBegun::NoNexus });
                    return Ok(None);
                }
                Ok(Some(Progress::Function { number, itl, function }))
            }
            Message::Abort { number } => {
                let slot = self.known(number)?;
                let State::Task(task) = &mut self.slots[slot].state else { return Ok(None) };
                if task.function || std::mem::replace(&mut task.aborted, true) {
                    return Ok(None);
                }
                if task.begun {
                    return Ok(Some(Progress::Abort { number }));
                }
                self.end(number, Message::NotBegun { number, reason: NotBegun::Aborted });
                Ok(None)
            }
            Message::Query { number } => self.query(number),
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
                let slot = self.known(number)?;
                let State::Task(task) = &mut self.slots[slot].state else { return Ok(None) };
                if task.function || end <= task.in_room || end > task.data_in {
                    return Err(Violation::State("room for Data-In that there is none of"));
                }
                if task.connection != Connection(self.connections) {
                    return Err(Violation::State("room for Data-In of a lost connection"));
                }
                task.in_room = end;
                Ok(Some(Progress::Room { number }))
            }
            Message::Data { number, offset } => {
                let slot = self.known(number)?;
                if len == 0 {
                    return Err(Violation::State("Data-Out without bytes"));
                }
                if let State::Task(task) = &self.slots[slot].state {
                    if task.connection != Connection(self.connections) {
                        return Err(Violation::State("Data-Out of a lost connection"));
                    }
                    if task.function || offset != task.out_got {
                        return Err(Violation::State("Data-Out out of order"));
                    }
                    if u64::from(len) > task.out_room - task.out_got {
                        return Err(Violation::State("more Data-Out than was asked for"));
                    }
                }
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

    fn attach<'a>(&mut self, attach: Attach) -> Result<Option<Progress<'a>>, Violation> {
        let itl = attach.itl;
        if let Some(known) = self.nexuses.get_mut(&itl) {
            if known.attached || !known.attach.is_same(&attach) {
                return Err(Violation::State("a nexus that is attached already"));
            }
            if attach.generation > known.generation {
                return Err(Violation::State("a generation that the owner has not told"));
            }
            known.attached = true;
            known.cleared = attach.generation < known.generation;
            known.changed = attach.attentions != known.attach.attentions;
            if known.cleared || known.changed {
                self.told.insert(itl);
            }
            if self.views.contains_key(&attach.unit) {
                self.shown.insert(attach.unit);
            }
            return Ok(None);
        }
        if itl <= self.last_itl {
            return Err(Violation::State("the number of a nexus is used again"));
        }
        if self.nexuses.len() >= self.limits.nexuses as usize {
            return Err(Violation::State("too many nexuses"));
        }
        if attach.generation != 0 {
            return Err(Violation::State("a generation that the owner has not told"));
        }
        self.last_itl = itl;
        if self.views.contains_key(&attach.unit) {
            self.shown.insert(attach.unit);
        }
        let nexus =
            Nexus { attach: attach.clone(), generation: 0, attached: true, cleared: false, changed: false };
        self.nexuses.insert(itl, nexus);
        Ok(Some(Progress::Attach(attach)))
    }

    fn detach(&mut self, itl: u32) -> Result<(), Violation> {
        let of = |slot: &Slot| matches!(&slot.state, State::Task(task) if task.itl == itl);
        if self.slots.iter().any(of) {
            return Err(Violation::State("a nexus is detached whose commands have not ended"));
        }
        let nexus = self.nexuses.remove(&itl).ok_or(Violation::State("a nexus that is not attached"))?;
        self.told.remove(&itl);
        let unit = nexus.attach.unit;
        if !self.nexuses.values().any(|nexus| nexus.attach.unit == unit) {
            self.views.remove(&unit);
            self.shown.remove(&unit);
        }
        Ok(())
    }

    fn fresh(&self, itl: u32) -> Task {
        Task {
            itl,
            connection: Connection(self.connections),
            asked: true,
            function: false,
            begun: false,
            aborted: false,
            data_out: 0,
            out_room: 0,
            out_got: 0,
            grown: false,
            data_in: 0,
            in_room: 0,
            in_sent: 0,
            unsolicited: 0,
        }
    }

    /// Puts a forwarding into its slot.
    fn place(&mut self, number: Number, task: Task) -> Result<(), Violation> {
        if !self.settled {
            return Err(Violation::State("a command before all was asked for"));
        }
        let commands = usize::from(self.limits.commands);
        let slot = self.slots.get_mut(number.slot()).ok_or(Violation::State("too many commands"))?;
        if task.function != (number.slot() >= commands) {
            return Err(Violation::State("a slot of the other kind"));
        }
        if number.turn() <= slot.turn {
            return Err(Violation::State("the number of a command is used again"));
        }
        match &slot.state {
            State::Task(_) => return Err(Violation::State("a slot whose command has not ended")),
            State::End(end) if !end.sent => {
                return Err(Violation::State("a slot whose command's end was not sent"));
            }
            State::End(_) | State::Empty => {}
        }
        slot.turn = number.turn();
        self.unsolicited += task.unsolicited;
        slot.state = State::Task(task);
        Ok(())
    }

    fn command<'a>(
        &mut self,
        number: Number,
        command: Command,
        unsolicited: u32,
    ) -> Result<Option<Progress<'a>>, Violation> {
        if u64::from(unsolicited) > command.data_out {
            return Err(Violation::State("more unsolicited data than the command has"));
        }
        if unsolicited > self.limits.unsolicited - self.unsolicited {
            return Err(Violation::State("more unsolicited data than there is room for"));
        }
        if command.token > self.token {
            return Err(Violation::State("a time that the owner has not told"));
        }
        let task = Task {
            data_out: command.data_out,
            out_room: u64::from(unsolicited),
            data_in: command.data_in,
            in_room: command.room,
            unsolicited,
            ..self.fresh(command.itl)
        };
        self.place(number, task)?;
        if let Some(line) = self.line.as_mut().filter(|_| unsolicited > 0) {
            line.data = Some((number, unsolicited));
        }
        let reason = match self.nexuses.get(&command.itl) {
            None => NotBegun::NoNexus,
            Some(nexus) if command.generation > nexus.generation => {
                return Err(Violation::State("a generation that the owner has not told"));
            }
            Some(nexus) if command.generation < nexus.generation => NotBegun::Cleared,
            Some(_) => return Ok(Some(Progress::Command { number, command, unsolicited })),
        };
        self.end(number, Message::NotBegun { number, reason });
        Ok(None)
    }

    /// The slot of a forwarding that this owner has seen, if it is the slot's last one.
    fn known(&self, number: Number) -> Result<usize, Violation> {
        match self.slots.get(number.slot()) {
            Some(slot) if slot.turn == number.turn() => Ok(number.slot()),
            _ => Err(Violation::State("a command that is not the last one of its slot")),
        }
    }

    fn query<'a>(&mut self, number: Number) -> Result<Option<Progress<'a>>, Violation> {
        if self.settled {
            return Err(Violation::State("a question after all was asked for"));
        }
        let slot = self.slots.get_mut(number.slot()).ok_or(Violation::State("too many commands"))?;
        if number.turn() < slot.turn {
            return Err(Violation::State("a question for what has ended"));
        }
        if number.turn() > slot.turn {
            if matches!(slot.state, State::Task(_)) {
                return Err(Violation::State("a slot whose command has not ended"));
            }
            slot.turn = number.turn();
            let message = Message::NotBegun { number, reason: NotBegun::NotReceived };
            slot.state = State::End(End { message, asked: true, sent: false });
            self.queue(number.slot());
            return Ok(None);
        }
        match &mut slot.state {
            State::Empty => return Err(Violation::State("a question for what has ended")),
            State::Task(task) => task.asked = true,
            State::End(end) => {
                end.asked = true;
                self.queue(number.slot());
            }
        }
        Ok(None)
    }

    /// What the forwarder has not asked for it does not want to know any more.
    fn settle(&mut self) -> Result<(), Violation> {
        if std::mem::replace(&mut self.settled, true) {
            return Err(Violation::State("settled twice"));
        }
        for slot in &mut self.slots {
            match &slot.state {
                State::Task(task) if !task.asked => {
                    return Err(Violation::State("a command was not asked for"));
                }
                State::End(end) if !end.asked => slot.state = State::Empty,
                _ => {}
            }
        }
        let gone = self.nexuses.iter().filter(|(_, nexus)| !nexus.attached).map(|(itl, _)| *itl);
        for itl in gone.collect::<Vec<_>>() {
            self.detach(itl)?;
            self.progress.push_back(Progress::Detach { itl });
        }
        Ok(())
    }

    /// Appends what this end has to say, and stops soon after `out` has `most` bytes. Returns
    /// whether there is more. Call it when little of what was appended before is still unsent.
    pub fn flush(&mut self, now: Time, most: usize, out: &mut Vec<u8>) -> bool {
        let Some(line) = &mut self.line else { return false };
        if self.beat.is_none_or(|beat| beat <= now) {
            self.beat = Some(now + BEAT);
            self.token = self.token.max(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
            line.sealer.seal(&Message::Beat { token: self.token }, out);
        }
        while out.len() < most {
            if let Some(unit) = self.shown.pop_first() {
                if let Some(view) = self.views.get(&unit) {
                    line.sealer.seal(&Message::View(*view), out);
                }
            } else if let Some(index) = self.ready.pop_front() {
                let slot = &mut self.slots[index];
                slot.queued = false;
                let number = Number::new(index, slot.turn);
                match &mut slot.state {
                    State::Empty => {}
                    State::Task(task) => {
                        if std::mem::take(&mut task.grown) {
                            line.sealer.seal(&Message::Room { number, end: task.out_room }, out);
                        }
                    }
                    State::End(end) if end.asked && !end.sent => {
                        end.sent = true;
                        line.sealer.seal(&end.message, out);
                    }
                    State::End(_) => {}
                }
            } else if let Some(itl) = self.told.pop_first() {
                let Some(nexus) = self.nexuses.get_mut(&itl) else { continue };
                if std::mem::take(&mut nexus.cleared) {
                    line.sealer.seal(&Message::Cleared { itl, generation: nexus.generation }, out);
                }
                if std::mem::take(&mut nexus.changed) {
                    let attentions = nexus.attach.attentions.clone();
                    line.sealer.seal(&Message::Attentions { itl, attentions }, out);
                }
            } else {
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
        self.line.as_ref().map(|line| self.beat.map_or(line.ends(), |beat| beat.min(line.ends())))
    }
}
