//! Lists of attributes: looked up in pieces, and put as fast as the initiator takes them.
//!
//! A list's header says how long the list is, so a list is measured before any of it is put. Its
//! first [`MAX_KEPT`] bytes are kept meanwhile, and the rest is looked up again when the initiator
//! has room for it. A list that is no longer than that is therefore of one moment, as far as the
//! command's isolation goes. A longer one is as its entries are when they are put; if they do not
//! make up the length that was promised, the command ends with ABORTED COMMAND.

use osd::AttributeId;
use osd::attributes::Page;
use osd::attributes::list::{header_len, values_header, write_entry};

use super::super::OsdUnit;
use super::super::failure::Failure;
use super::super::limits::{MAX_KEPT, PIECE_BYTES};
use super::super::reply::Pieces;
use super::super::subject::Subject;
use super::super::task::{Current, Task};
use super::value::Memberships;

/// Values that one command looks up at most; a list that asks for more ends there.
const MAX_VALUES: usize = 1 << 18;

/// Look-ups between two turns of the core's other tasks, about.
const PIECE: usize = 1024;

/// Source of a list's entries. A clone goes on where the original was.
pub(in super::super) trait Entries: Clone {
    const MANY: bool;

    /// Appends the next entries to `out`, a few times [`PIECE_BYTES`] at most. Whether there may be
    /// more.
    async fn next(&mut self, task: &mut Task<'_>, out: &mut Vec<u8>) -> Result<bool, Failure>;
}

impl Task<'_> {
    /// Puts a list at the retrieved attributes offset, with zeros before it, as much of it as there
    /// is room for.
    pub(crate) async fn put_list<E: Entries>(&mut self, mut entries: E) -> Result<(), Failure> {
        let Some(region) = self.parameters.retrieved else { return Ok(()) };
        let before = region.offset.saturating_sub(self.transfer.in_at());
        let room = self.transfer.room().saturating_sub(before).min(region.len.into());
        if room == 0 {
            return Ok(());
        }
        let header = header_len(self.version());
        let (mut kept, mut piece) = (vec![0; header], Vec::new());
        // Stored attributes follow.
        let mut rest = None;
        let mut len = 0;
        loop {
            let out = if rest.is_none() { &mut kept } else { &mut piece };
            let start = out.len();
            let more = entries.next(self, out).await?;
            len += out.len() - start;
            piece.clear();
            if !more {
                break;
            }
            // The length of a list of many megabytes takes milliseconds to find.
            self.transfer.pause().await?;
            if rest.is_none() && (kept.len() >= MAX_KEPT || kept.len() as u64 >= room) {
                rest = Some(entries.clone());
            }
        }
        kept[..header].copy_from_slice(&values_header(self.version(), E::MANY, len));
        let total = (header + len) as u64;
        self.pad_to(region.offset).await?;
        let mut pieces = Pieces::new(total.min(room));
        pieces.write(self, &kept).await?;
        drop(kept);
        if let Some(mut entries) = rest {
            let mut more = true;
            while more && !pieces.is_full() {
                piece.clear();
                more = entries.next(self, &mut piece).await?;
                let dropped = pieces.write(self, &piece).await?;
                if dropped > 0 && total <= room {
                    return Err(Failure::changed());
                }
            }
        }
        if !pieces.is_full() {
            return Err(Failure::changed());
        }
        pieces.put(self);
        Ok(())
    }
}

#[derive(Clone)]
pub(super) struct OfOne<'w> {
    pub subject: &'w Subject,
    pub values: Values<'w>,
    /// See [`Values::look`].
    pub looked: usize,
}

impl Entries for OfOne<'_> {
    const MANY: bool = false;

    async fn next(&mut self, task: &mut Task<'_>, out: &mut Vec<u8>) -> Result<bool, Failure> {
        let Self { subject, values, looked } = self;
        let (unit, version, current) = (task.unit, task.version(), task.current);
        let start = out.len();
        loop {
            let end = values.look(unit, subject, &current, looked, &mut |attribute, value| {
                // The store keeps no value that is too long for a list.
                let _ = write_entry(out, version, attribute, value);
                out.len() - start < PIECE_BYTES
            })?;
            match end {
                Looked::All => return Ok(false),
                Looked::Stopped => return Ok(true),
                Looked::Paused => task.transfer.pause().await?,
            }
        }
    }
}

impl Task<'_> {
    /// The entries of `subject` in a list of many objects, or of LIST with attributes: whole ones
    /// only, of as many bytes as the list's field for their length can say. `looked` is that of
    /// [`Values::look`].
    pub(crate) async fn entries_of(
        &mut self,
        subject: &Subject,
        wanted: &[AttributeId],
        looked: &mut usize,
    ) -> Result<Vec<u8>, Failure> {
        let (unit, version, current) = (self.unit, self.version(), self.current);
        let mut out = Vec::new();
        let mut values = Values::of(wanted);
        loop {
            let end = values.look(unit, subject, &current, looked, &mut |attribute, value| {
                let before = out.len();
                let written = write_entry(&mut out, version, attribute, value).is_ok();
                let fits = written && out.len() <= usize::from(u16::MAX);
                if !fits {
                    out.truncate(before);
                }
                fits
            })?;
            match end {
                Looked::All | Looked::Stopped => return Ok(out),
                Looked::Paused => self.transfer.pause().await?,
            }
        }
    }
}

/// A lookup of one object's attributes, in pieces: other commands have their turn in between.
/// However many attributes there are, few are in memory at a time: "all" goes on behind those it
/// has seen.
#[derive(Clone)]
pub(super) struct Values<'w> {
    /// The rest of the requested attributes.
    wanted: std::slice::Iter<'w, AttributeId>,
    /// Page to go on with, for "all pages".
    pages: Option<u32>,
    /// Number of the attribute that is wanted of each page.
    number: u32,
    /// The page whose attributes are looked up, and the next of its numbers.
    page: Page,
    numbers: std::vec::IntoIter<u32>,
    /// Number to go on with behind them.
    behind: Option<u32>,
    left: usize,
    /// Looked up once, however many attributes of the Collections page are wanted.
    memberships: Option<Memberships>,
    value: Vec<u8>,
}

impl<'w> Values<'w> {
    /// The values of `wanted`, in its order: "all" is spread out, an undefined attribute has no
    /// value.
    pub fn of(wanted: &'w [AttributeId]) -> Self {
        Self {
            wanted: wanted.iter(),
            pages: None,
            number: 0,
            page: Page(0),
            numbers: Vec::new().into_iter(),
            behind: None,
            left: MAX_VALUES,
            memberships: None,
            value: Vec::new(),
        }
    }

    /// Shows the next attributes of `subject` to `each` until it returns false; the next call goes
    /// on behind that attribute. `looked` counts the lookups since others had their turn: at
    /// [`PIECE`] their time has come again.
    pub fn look(
        &mut self,
        unit: &OsdUnit,
        subject: &Subject,
        current: &Current,
        looked: &mut usize,
        each: &mut dyn FnMut(AttributeId, Option<&[u8]>) -> bool,
    ) -> Result<Looked, Failure> {
        while *looked < PIECE {
            if self.left == 0 {
                return Ok(Looked::All);
            }
            self.left -= 1;
            *looked += 1;
            let (attribute, always) = if let Some(number) = self.numbers.next() {
                (AttributeId::new(self.page, number), false)
            } else if let Some(from) = self.behind.take() {
                let (numbers, behind) = unit.numbers_of(subject, self.page, from)?;
                *looked += numbers.len();
                (self.numbers, self.behind) = (numbers.into_iter(), behind);
                continue;
            } else if let Some(from) = self.pages.take() {
                if let Some(page) = unit.next_page(subject, from)? {
                    self.pages = page.checked_add(1);
                    self.of_page(Page(page));
                }
                continue;
            } else {
                match self.wanted.next() {
                    None => return Ok(Looked::All),
                    Some(&attribute) if !is_all(attribute) => (attribute, true),
                    Some(&AttributeId { page, number }) => {
                        self.number = number;
                        match page {
                            Page::ALL => self.pages = Some(0),
                            page => self.of_page(page),
                        }
                        continue;
                    }
                }
            };
            self.value.clear();
            let defined = match &mut self.memberships {
                memberships if Memberships::has(subject, attribute) => {
                    let memberships = match memberships {
                        Some(memberships) => memberships,
                        None => memberships.insert(unit.memberships_by_number(subject)?),
                    };
                    memberships.value(attribute.number, &mut self.value)
                }
                _ => unit.value(subject, current, attribute, &mut self.value)?,
            };
            if (defined || always) && !each(attribute, defined.then_some(&self.value[..])) {
                return Ok(Looked::Stopped);
            }
        }
        *looked = 0;
        Ok(Looked::Paused)
    }

    /// Goes on with the wanted attributes of `page`.
    fn of_page(&mut self, page: Page) {
        self.page = page;
        match self.number {
            AttributeId::ALL => self.behind = Some(0),
            number => self.numbers = vec![number].into_iter(),
        }
    }
}

fn is_all(attribute: AttributeId) -> bool {
    attribute.page == Page::ALL || attribute.number == AttributeId::ALL
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    All,
    /// To an attribute after which no more was wanted.
    Stopped,
    /// It goes on when others have had their turn.
    Paused,
}
