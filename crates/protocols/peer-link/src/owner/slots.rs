//! What the forwarder has forwarded, slot by slot: tasks, and the ends that it may ask for again.
//!
//! A task that has not begun ends by an abort, a cleared nexus or a lost connection. One that has
//! begun ends by its caller's word alone.

use std::collections::VecDeque;

use crate::frame::Sealer;
use crate::limits::Limits;
use crate::message::{Command, MOST_SENSE, Managed, Message, NotBegun, Outcome};
use crate::number::Number;
use crate::wire::Violation;

#[derive(Debug)]
pub(super) struct Slots {
    limits: Limits,
    slots: Vec<Slot>,
    /// Bytes of Data-Out that have come, or come, with commands that have not ended.
    unsolicited: u32,
    /// Slots with something to say.
    ready: VecDeque<usize>,
}

#[derive(Debug, Default)]
struct Slot {
    turn: u64,
    state: State,
    /// It is in [`Slots::ready`].
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

#[derive(Debug, Default)]
pub(super) struct Task {
    itl: u32,
    /// The forwarder has sent it, or asked for it, on the present connection.
    asked: bool,
    /// The connection by which it came is lost: its data moves on no other one.
    lost: bool,
    function: bool,
    begun: bool,
    aborted: bool,
    /// Its outcome means nothing: its mover was told that data moves no more, or it was cleared.
    stopped: bool,
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

impl Task {
    pub fn function(itl: u32) -> Self {
        Self { itl, asked: true, function: true, begun: true, ..Self::default() }
    }

    pub fn command(command: &Command, unsolicited: u32) -> Self {
        Self {
            itl: command.itl,
            asked: true,
            data_out: command.data_out,
            out_room: u64::from(unsolicited),
            data_in: command.data_in,
            in_room: command.room,
            unsolicited,
            ..Self::default()
        }
    }
}

#[derive(Debug)]
struct End {
    /// The message that is sent, again too when the forwarder asks for it.
    message: Message,
    asked: bool,
    sent: bool,
}

impl Slots {
    pub fn new(limits: Limits) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(limits.slots(), Slot::default);
        Self { limits, slots, unsolicited: 0, ready: VecDeque::new() }
    }

    /// The connection is lost. What has not begun never begins.
    pub fn lost(&mut self) {
        self.ready.clear();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            slot.queued = false;
            match &mut slot.state {
                State::Empty => {}
                State::End(end) => (end.asked, end.sent) = (false, false),
                State::Task(task) => {
                    (task.asked, task.grown, task.lost) = (false, false, true);
                    if !task.begun {
                        let number = Number::new(index, slot.turn);
                        self.end(Message::NotBegun { number, reason: NotBegun::NotReceived }, number);
                    }
                }
            }
        }
    }

    /// The commands that have begun and not ended.
    pub fn begun(&self) -> impl Iterator<Item = Number> {
        let begun = |slot: &Slot| matches!(&slot.state, State::Task(task) if task.begun && !task.function);
        let numbers = self.slots.iter().enumerate().filter(move |(_, slot)| begun(slot));
        numbers.map(|(index, slot)| Number::new(index, slot.turn))
    }

    /// Whether a forwarding of the nexus has not ended.
    pub fn concern(&self, itl: u32) -> bool {
        self.slots.iter().any(|slot| matches!(&slot.state, State::Task(task) if task.itl == itl))
    }

    pub fn begin(&mut self, number: Number) -> bool {
        let Some(task) = self.task(number) else { return false };
        invariant::invariant!(!task.begun, "{number} begins twice") && {
            task.begun = true;
            true
        }
    }

    pub fn refuse(&mut self, number: Number, reason: NotBegun) {
        let Some(task) = self.task(number) else { return };
        if invariant::invariant!(!task.begun, "{number} has begun and is refused") {
            self.end(Message::NotBegun { number, reason }, number);
        } else {
            self.end(Message::Ended { number }, number);
        }
    }

    pub fn finish(&mut self, number: Number, mut outcome: Outcome) {
        let Some(task) = self.task(number) else {
            invariant::broken!("the outcome of {number}, which has ended");
            return;
        };
        invariant::invariant!(task.begun && !task.function, "the outcome of {number}, which has not begun");
        let sent = task.in_sent;
        if task.stopped || task.aborted && sent < outcome.wanted_in.min(task.data_in) {
            // The forwarder must not take it for whole.
            return self.end(Message::Ended { number }, number);
        }
        outcome.sense.truncate(MOST_SENSE);
        self.end(Message::Outcome { number, outcome: Box::new(outcome), sent }, number);
    }

    pub fn ended(&mut self, number: Number) {
        if invariant::invariant!(self.task(number).is_some(), "{number} ends twice") {
            self.end(Message::Ended { number }, number);
        }
    }

    pub fn managed(&mut self, number: Number, result: Managed) {
        let function = self.task(number).is_some_and(|task| task.function);
        if invariant::invariant!(function, "the result of {number}, which is no function now") {
            self.end(Message::Managed { number, result }, number);
        }
    }

    pub fn moves(&mut self, number: Number) -> bool {
        let Some(task) = self.task(number) else { return false };
        task.stopped |= task.aborted || task.lost;
        !task.stopped
    }

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

    pub fn room(&mut self, number: Number) -> u64 {
        if !self.moves(number) {
            return 0;
        }
        self.task(number).map_or(0, |task| task.in_room - task.in_sent)
    }

    /// The place of the next `len` bytes of Data-In, which go out now. `None`: there is no room.
    pub fn send(&mut self, number: Number, len: u64) -> Option<u64> {
        let fits = len > 0 && len <= self.room(number);
        let task = self.task(number).filter(|_| fits)?;
        task.in_sent += len;
        Some(task.in_sent - len)
    }

    /// Ends what has not begun of a nexus, but not `except`. The rest moves no data any more.
    pub fn clear(&mut self, itl: u32, except: Option<Number>) -> Vec<Number> {
        let mut begun = Vec::new();
        for index in 0..self.slots.len() {
            let number = Number::new(index, self.slots[index].turn);
            let State::Task(task) = &mut self.slots[index].state else { continue };
            if task.itl != itl || task.function || Some(number) == except {
                continue;
            }
            if task.begun {
                (task.aborted, task.stopped) = (true, true);
                begun.push(number);
            } else {
                self.end(Message::NotBegun { number, reason: NotBegun::Cleared }, number);
            }
        }
        begun
    }

    /// Aborts a command. Whether it has begun, and was not aborted before.
    pub fn abort(&mut self, number: Number) -> bool {
        let Some(task) = self.task(number) else { return false };
        if task.function || std::mem::replace(&mut task.aborted, true) {
            return false;
        }
        let begun = task.begun;
        if !begun {
            self.end(Message::NotBegun { number, reason: NotBegun::Aborted }, number);
        }
        begun
    }

    /// The forwarder aborts: see [`Self::abort`].
    pub fn abort_asked(&mut self, number: Number) -> Result<bool, Violation> {
        self.known(number)?;
        Ok(self.abort(number))
    }

    /// The forwarder has room for Data-In up to `end`. Whether the command can still use it.
    pub fn room_given(&mut self, number: Number, end: u64) -> Result<bool, Violation> {
        let Some(task) = self.known(number)? else { return Ok(false) };
        if task.function || end <= task.in_room || end > task.data_in {
            return Err(Violation::State("room for Data-In that there is none of"));
        }
        if task.lost {
            return Err(Violation::State("room for Data-In of a lost connection"));
        }
        task.in_room = end;
        Ok(true)
    }

    /// The forwarder sends Data-Out.
    pub fn data_comes(&mut self, number: Number, offset: u64, len: u32) -> Result<(), Violation> {
        let task = self.known(number)?;
        if len == 0 {
            return Err(Violation::State("Data-Out without bytes"));
        }
        let Some(task) = task else { return Ok(()) };
        if task.lost {
            return Err(Violation::State("Data-Out of a lost connection"));
        }
        if task.function || offset != task.out_got {
            return Err(Violation::State("Data-Out out of order"));
        }
        if u64::from(len) > task.out_room - task.out_got {
            return Err(Violation::State("more Data-Out than was asked for"));
        }
        Ok(())
    }

    /// The place of Data-Out that comes now; `piece` bytes are whole with it. `None`: its command
    /// has ended meanwhile.
    pub fn data_came(&mut self, number: Number, piece: Option<u32>) -> Option<u64> {
        let task = self.task(number)?;
        let offset = task.out_got;
        task.out_got += u64::from(piece.unwrap_or(0));
        Some(offset)
    }

    /// Puts a forwarding into its slot.
    pub fn place(&mut self, number: Number, task: Task) -> Result<(), Violation> {
        if u64::from(task.unsolicited) > task.data_out {
            return Err(Violation::State("more unsolicited data than the command has"));
        }
        if task.unsolicited > self.limits.unsolicited - self.unsolicited {
            return Err(Violation::State("more unsolicited data than there is room for"));
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

    /// The forwarder asks what became of a forwarding.
    pub fn query(&mut self, number: Number) -> Result<(), Violation> {
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
            return Ok(());
        }
        match &mut slot.state {
            State::Empty => return Err(Violation::State("a question for what has ended")),
            State::Task(task) => task.asked = true,
            State::End(end) => {
                end.asked = true;
                self.queue(number.slot());
            }
        }
        Ok(())
    }

    /// The forwarder has asked for all that it wants to know.
    pub fn settle(&mut self) -> Result<(), Violation> {
        for slot in &mut self.slots {
            match &slot.state {
                State::Task(task) if !task.asked => {
                    return Err(Violation::State("a command was not asked for"));
                }
                State::End(end) if !end.asked => slot.state = State::Empty,
                _ => {}
            }
        }
        Ok(())
    }

    /// Says one thing: room for Data-Out, or an end. `false`: there is nothing to say.
    pub fn say(&mut self, sealer: &mut Sealer, out: &mut Vec<u8>) -> bool {
        let Some(index) = self.ready.pop_front() else { return false };
        let slot = &mut self.slots[index];
        slot.queued = false;
        match &mut slot.state {
            State::Task(task) if task.grown => {
                task.grown = false;
                let number = Number::new(index, slot.turn);
                sealer.seal(&Message::Room { number, end: task.out_room }, out);
            }
            State::End(end) if end.asked && !end.sent => {
                end.sent = true;
                sealer.seal(&end.message, out);
            }
            State::Empty | State::Task(_) | State::End(_) => {}
        }
        true
    }

    fn task(&mut self, number: Number) -> Option<&mut Task> {
        let slot = self.slots.get_mut(number.slot()).filter(|slot| slot.turn == number.turn())?;
        match &mut slot.state {
            State::Task(task) => Some(task),
            State::Empty | State::End(_) => None,
        }
    }

    /// The same, of a number that the forwarder names: it is the last one of its slot.
    fn known(&mut self, number: Number) -> Result<Option<&mut Task>, Violation> {
        match self.slots.get(number.slot()) {
            Some(slot) if slot.turn == number.turn() => Ok(self.task(number)),
            _ => Err(Violation::State("a command that is not the last one of its slot")),
        }
    }

    /// Ends the task `number`.
    fn end(&mut self, message: Message, number: Number) {
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
        if !std::mem::replace(&mut self.slots[index].queued, true) {
            self.ready.push_back(index);
        }
    }
}
