//! The rules. The order in which writes take effect at OSDs (land) is the witness: if each write
//! lands once between its start and its answer, and each read returns a value that the block had
//! meanwhile, the history of every block is linearizable.

use std::collections::BTreeMap;
use std::time::Instant;

use rados::model::Landing;

use super::{APART, IMAGES, RESERVED};

/// A block: its unit, and its number there.
pub(super) type Block = (usize, usize);

#[derive(Default)]
pub(super) struct Judge {
    blocks: BTreeMap<Block, History>,
    commands: BTreeMap<u64, Command>,
    wrong: Option<String>,
    /// Commands that ended with GOOD, otherwise, or without an answer.
    pub good: u64,
    pub ended: u64,
    pub given_up: u64,
}

#[derive(Default)]
struct History {
    /// The block's values, with the times at which they landed.
    landings: Vec<(Instant, u64)>,
    /// When the latest-begun acknowledged write began.
    written: Option<Instant>,
}

/// The kind of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    /// COMPARE AND WRITE, with the expected value.
    Swap(u64),
}

struct Command {
    block: Block,
    kind: Kind,
    begun: Instant,
    /// The block's value before the command landed.
    landed_on: Option<u64>,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pending,
    Good,
    /// It was never executed, and never is.
    NotBegun,
    /// It may have been executed, and is not any more.
    Unknown(Instant),
    GivenUp(Instant),
}

/// The end of a command, but for GOOD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    NotBegun,
    Unknown,
    /// MISCOMPARE.
    Differs,
}

/// The block with a number in it.
pub(super) fn stamped(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(64)
}

/// The number in a block.
fn stamp(block: &[u8]) -> Result<u64, String> {
    let number = block.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    match block == stamped(number) {
        true => Ok(number),
        false => Err(format!("a block of {} bytes is torn", block.len())),
    }
}

impl Judge {
    pub(super) fn wrong(&self) -> Option<String> {
        self.wrong.clone()
    }

    fn fails(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    fn check(&mut self, result: Result<(), String>) {
        if let Err(what) = result {
            self.fails(what);
        }
    }

    pub(super) fn begins(&mut self, number: u64, block: Block, kind: Kind) {
        let begun = runtime::clock();
        self.commands.insert(number, Command { block, kind, begun, landed_on: None, fate: Fate::Pending });
    }

    pub(super) fn lands(&mut self, landing: &Landing<'_>) {
        let result = self.landed(landing);
        self.check(result);
    }

    fn landed(&mut self, landing: &Landing<'_>) -> Result<(), String> {
        let unit = IMAGES.iter().position(|image| *image == landing.image);
        let unit = unit.ok_or_else(|| format!("image {} was written", landing.image))?;
        if unit == RESERVED {
            // The oracle of reservations judges it.
            return Ok(());
        }
        let block = (unit, (landing.at / APART) as usize);
        let number = stamp(landing.data)?;
        let history = self.blocks.entry(block).or_default();
        let Some(command) = self.commands.get_mut(&number) else {
            return Err(format!("{number} was written by nobody"));
        };
        let told = format!("command {number} ({:?}) of {block:?}", command.kind);
        match command.fate {
            Fate::Pending => {}
            // By an OSD that no later owner has used yet.
            Fate::Unknown(at) if !landing.is_listed => {
                return Err(format!("{told} landed after its end at {at:?}"));
            }
            Fate::Unknown(at) | Fate::GivenUp(at) => {
                if history.written.is_some_and(|written| written > at) {
                    return Err(format!("{told}, left at {at:?}, landed over what was written since"));
                }
            }
            fate => return Err(format!("{told} landed after its end, {fate:?}")),
        }
        if command.landed_on.is_some() || command.block != block {
            return Err(format!("{told} landed again, or elsewhere"));
        }
        let owner = landing.owner;
        // The cluster may not have refused a fenced one yet, where the next owner has not been.
        let may_be_late = landing.is_listed && landing.after != owner;
        if owner != Some(landing.from) && !may_be_late {
            return Err(format!("{told} landed from {}, not from the owner {owner:?}", landing.from));
        }
        let before = history.landings.last().map_or(0, |(_, number)| *number);
        command.landed_on = Some(before);
        history.landings.push((runtime::clock(), number));
        Ok(())
    }

    /// A command has ended with GOOD. `data` is what it has read.
    pub(super) fn good(&mut self, number: u64, data: &[u8]) {
        self.good += 1;
        let result = self.is_good(number, data);
        self.check(result);
    }

    fn is_good(&mut self, number: u64, data: &[u8]) -> Result<(), String> {
        let Some(command) = self.commands.get_mut(&number) else {
            return Err(format!("no command {number}"));
        };
        command.fate = Fate::Good;
        let history = self.blocks.entry(command.block).or_default();
        let told = format!("command {number} ({:?}) of {:?}", command.kind, command.block);
        match (command.kind, command.landed_on) {
            (Kind::Read, _) => {
                let read = stamp(data)?;
                let seen = history.since(command.begun);
                if !seen.contains(&read) {
                    return Err(format!("{told} returned {read}, and since it began there was {seen:?}"));
                }
            }
            (_, None) => return Err(format!("{told} is acknowledged and lost")),
            (Kind::Swap(expected), Some(found)) if expected != found => {
                return Err(format!("{told} is acknowledged, and there was {found}"));
            }
            (Kind::Write | Kind::Swap(_), Some(_)) => {
                history.written = history.written.max(Some(command.begun));
            }
        }
        Ok(())
    }

    /// A command has ended otherwise.
    pub(super) fn ends(&mut self, number: u64, end: End) {
        self.ended += 1;
        let result = self.has_ended(number, end);
        self.check(result);
    }

    fn has_ended(&mut self, number: u64, end: End) -> Result<(), String> {
        let Some(command) = self.commands.get_mut(&number) else {
            return Err(format!("no command {number}"));
        };
        let told = format!("command {number} ({:?}) of {:?}", command.kind, command.block);
        command.fate = match end {
            End::Unknown => Fate::Unknown(runtime::clock()),
            End::NotBegun | End::Differs => Fate::NotBegun,
        };
        if end != End::Unknown && command.landed_on.is_some() {
            return Err(format!("{told} landed, and ends as {end:?}"));
        }
        if end != End::Differs {
            return Ok(());
        }
        let Kind::Swap(expected) = command.kind else { return Err(format!("{told} compares nothing")) };
        let history = self.blocks.entry(command.block).or_default();
        match history.since(command.begun).iter().all(|there| *there == expected) {
            true => Err(format!("{told} differs, and there was nothing else")),
            false => Ok(()),
        }
    }

    /// An initiator gives the path of a command up.
    pub(super) fn gives_up(&mut self, number: u64) {
        self.given_up += 1;
        if let Some(command) = self.commands.get_mut(&number) {
            command.fate = Fate::GivenUp(runtime::clock());
        }
    }

    /// The content of a unit at the end.
    pub(super) fn compare(&mut self, unit: usize, content: &[u8]) {
        let mut wrong = Vec::new();
        for (block, there) in content.chunks(APART as usize).enumerate() {
            let history = self.blocks.get(&(unit, block));
            let last = history.and_then(|history| history.landings.last()).map_or(0, |(_, number)| *number);
            if there.get(..512) != Some(&stamped(last)[..]) {
                wrong.push(format!("at the end block {block} of unit {unit} is not {last}"));
            }
        }
        wrong.into_iter().for_each(|what| self.fails(what));
    }
}

impl History {
    /// The block's value at `begun`, and all values that have landed since.
    fn since(&self, begun: Instant) -> Vec<u64> {
        let first = self.landings.iter().rposition(|(at, _)| *at <= begun);
        let nothing = first.is_none().then_some(0);
        let later = &self.landings[first.unwrap_or(0)..];
        nothing.into_iter().chain(later.iter().map(|(_, number)| *number)).collect()
    }
}
