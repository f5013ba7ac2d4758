//! An initiator: one command at a time, each write with a number of its own. It gives a path up
//! when it hears nothing from its gateway, and goes on through another one.

use std::time::Duration;

use super::checker::Checker;
use super::node::Outcome;
use super::rados::BLOCKS;
use super::world::{Happening, NODES, Queue, UNITS};
use crate::id::{Time, UnitId};

/// How long a gateway may be silent. Longer than twice `Timers::fresh`: see the design page.
const PATIENCE: Duration = Duration::from_secs(6);
const LOOK: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Write,
    /// A read from the medium.
    Fetch,
    /// A read from the owner's memory, as of a reservation or a mode page.
    Inquire,
}

#[derive(Clone, Copy, Debug)]
pub struct Command {
    pub op: u64,
    pub unit: UnitId,
    pub block: usize,
    pub action: Action,
}

#[derive(Clone, Copy)]
pub enum FromClient {
    Command(Command),
    /// The answer to a ping that the gateway sent then.
    Pong(Time),
    Closed,
}

#[derive(Clone, Copy)]
pub enum ToClient {
    Ping(Time),
    Answer { op: u64, outcome: Outcome },
    Reset,
}

#[derive(Debug)]
pub struct Client {
    index: usize,
    node: usize,
    connection: u64,
    heard: Duration,
    pending: Option<u64>,
    pub answered: Duration,
    pub timer: u64,
}

impl Client {
    pub fn new(index: usize) -> Self {
        Self {
            index,
            node: index % NODES,
            connection: 0,
            heard: Duration::ZERO,
            pending: None,
            answered: Duration::ZERO,
            timer: 0,
        }
    }

    /// Whether a connection is open.
    pub fn has(&self, connection: u64) -> bool {
        self.connection == connection
    }

    pub fn wakes(&mut self, queue: &mut Queue, checker: &mut Checker, timer: u64) {
        if timer != self.timer {
            return;
        }
        if self.connection == 0 {
            self.connect(queue);
        }
        if queue.now.saturating_sub(self.heard) > PATIENCE {
            self.gives_up(queue, checker);
        } else if self.pending.is_none() {
            self.begins(queue, checker);
        }
        self.sleeps(queue, LOOK);
    }

    pub fn hears(
        &mut self,
        queue: &mut Queue,
        checker: &mut Checker,
        node: usize,
        connection: u64,
        message: ToClient,
    ) -> Result<(), String> {
        if !self.has(connection) || node != self.node {
            return Ok(());
        }
        self.heard = queue.now;
        match message {
            ToClient::Ping(sent) => self.send(queue, FromClient::Pong(sent)),
            ToClient::Reset => {
                self.gives_up(queue, checker);
                self.sleeps(queue, LOOK);
            }
            ToClient::Answer { op, outcome } if self.pending == Some(op) => {
                self.pending = None;
                match outcome {
                    Outcome::Value(value) => {
                        checker.acknowledges(queue.now, op, value)?;
                        self.answered = queue.now;
                    }
                    Outcome::Refused => {
                        checker.refused(op)?;
                        // A new path has to be pinged before it takes commands.
                        if queue.chance.percent(40) {
                            self.moves(queue);
                        }
                        self.sleeps(queue, LOOK);
                        return Ok(());
                    }
                }
                let think = queue.chance.micros(200, 60_000);
                self.sleeps(queue, think);
            }
            ToClient::Answer { .. } => {}
        }
        Ok(())
    }

    fn begins(&mut self, queue: &mut Queue, checker: &mut Checker) {
        let command = Command {
            op: queue.number(),
            unit: UnitId(queue.chance.below(UNITS as usize) as u32),
            block: queue.chance.below(BLOCKS),
            action: match queue.chance.below(20) {
                0..10 => Action::Write,
                10..16 => Action::Fetch,
                _ => Action::Inquire,
            },
        };
        let writes = command.action == Action::Write;
        checker.begins(queue.now, command.op, (command.unit, command.block), writes);
        self.pending = Some(command.op);
        self.send(queue, FromClient::Command(command));
    }

    fn gives_up(&mut self, queue: &mut Queue, checker: &mut Checker) {
        if let Some(op) = self.pending.take() {
            checker.gives_up(queue.now, op);
        }
        self.moves(queue);
    }

    /// Goes to another gateway.
    fn moves(&mut self, queue: &mut Queue) {
        self.send(queue, FromClient::Closed);
        self.node = (self.node + 1 + queue.chance.below(NODES - 1)) % NODES;
        self.connect(queue);
    }

    fn connect(&mut self, queue: &mut Queue) {
        self.connection = queue.number();
        self.heard = queue.now;
    }

    fn send(&mut self, queue: &mut Queue, message: FromClient) {
        let delay = queue.way();
        let (client, node, connection) = (self.index, self.node, self.connection);
        queue.after(delay, Happening::ToNode { client, node, connection, message, accepted: false });
    }

    fn sleeps(&mut self, queue: &mut Queue, delay: Duration) {
        self.timer += 1;
        queue.after(delay, Happening::Client { client: self.index, timer: self.timer });
    }
}
