//! Reads redb's file without redb, to salvage the rest of one that redb refuses.
//!
//! The format is version 3, as redb's design.md describes it: pages of B-trees, each with a
//! checksum (XXH3, 128 bits) beside the reference to it. So a page is known to be the intended one,
//! and a single wrong bit can be corrected. This code must never panic, nor follow a reference to a
//! page that no checksum vouches for, which may be an older one.

use redb::StorageBackend;
use twox_hash::XxHash3_128;

use super::verified::PAGE;

const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// The largest page that is read, in bytes: redb makes one for a value that needs it.
const LARGEST: usize = 16 << 20;
/// Bytes of a page up to which a wrong bit is searched for, which takes a hash for each bit.
const MENDED: usize = 16 << 10;
/// Pages of a file in which it is searched for: more than a few were not damaged by single bits.
const SEARCHED: u64 = 64;
/// Levels of a tree: more than any file has room for.
const DEEPEST: usize = 32;
/// Bytes of a commit slot, and its place in the header.
const SLOT: usize = 128;
const SLOTS: usize = 64;
/// Offsets in the header: a file's geometry, and the byte that selects the commit slot.
const GEOMETRY: usize = 16;
const GOD_BYTE: usize = 9;

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    number(bytes, at).map(|n| usize::from(u16::from_le_bytes(n)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    number(bytes, at).and_then(|n| usize::try_from(u32::from_le_bytes(n)).ok())
}

/// Number of a page, and the checksum of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reference {
    page: u64,
    sum: u128,
}

impl Reference {
    fn at(bytes: &[u8], at: usize) -> Option<Self> {
        let page = u64::from_le_bytes(number(bytes, at)?);
        Some(Self { page, sum: u128::from_le_bytes(number(bytes, at + 8)?) })
    }
}

/// Bytes of each of a tree's keys; `None` if each key has its own width. Values all have their own.
type Width = Option<usize>;

/// A page of a tree.
struct Page<B>(B);

impl<B: AsRef<[u8]>> Page<B> {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    /// Layout of a leaf: number of pairs, offset of its values' ends, offset of its keys.
    fn leaf(&self, width: Width) -> Option<(usize, usize, usize)> {
        let pairs = u16_at(self.bytes(), 2)?;
        let noted = if width.is_some() { 4 } else { 4 + 4 * pairs };
        Some((pairs, noted, noted + 4 * pairs))
    }

    fn key_end(&self, width: Width, keys: usize, n: usize) -> Option<usize> {
        match width {
            Some(width) => Some(keys + width * (n + 1)),
            None => u32_at(self.bytes(), 4 + 4 * n),
        }
    }

    /// A pair of a leaf: its key, and its value.
    fn pair(&self, width: Width, n: usize) -> Option<(&[u8], &[u8])> {
        let (pairs, noted, keys) = self.leaf(width)?;
        let last = pairs.checked_sub(1).filter(|last| n <= *last)?;
        let key = if n == 0 { keys } else { self.key_end(width, keys, n - 1)? };
        let value = if n == 0 {
            self.key_end(width, keys, last)?
        } else {
            u32_at(self.bytes(), noted + 4 * (n - 1))?
        };
        let key = self.bytes().get(key..self.key_end(width, keys, n)?)?;
        Some((key, self.bytes().get(value..u32_at(self.bytes(), noted + 4 * n)?)?))
    }

    fn pairs(&self, width: Width) -> impl Iterator<Item = Option<(&[u8], &[u8])>> {
        (0..u16_at(self.bytes(), 2).unwrap_or(0)).map(move |n| self.pair(width, n))
    }

    fn children(&self) -> impl Iterator<Item = Reference> {
        let count = u16_at(self.bytes(), 2).map_or(0, |keys| keys + 1);
        (0..count).map_while(move |n| {
            let sum = u128::from_le_bytes(number(self.bytes(), 8 + 16 * n)?);
            Some(Reference { page: u64::from_le_bytes(number(self.bytes(), 8 + 16 * count + 8 * n)?), sum })
        })
    }

    /// Number of its bytes that a checksum covers.
    fn covered(&self, width: Width) -> Option<usize> {
        let end = match *self.bytes().first()? {
            LEAF => {
                let (pairs, noted, _) = self.leaf(width)?;
                u32_at(self.bytes(), noted + 4 * pairs.checked_sub(1)?)?
            }
            BRANCH => {
                let keys = u16_at(self.bytes(), 2)?;
                let last = keys.checked_sub(1)?;
                let begin = 8 + 24 * (keys + 1);
                match width {
                    Some(width) => begin + width * keys,
                    None => u32_at(self.bytes(), begin + 4 * last)?,
                }
            }
            _ => return None,
        };
        (end <= self.bytes().len()).then_some(end)
    }

    fn is(&self, sum: u128, width: Width) -> bool {
        self.covered(width).is_some_and(|end| XxHash3_128::oneshot(&self.bytes()[..end]) == sum)
    }
}

impl Page<Vec<u8>> {
    /// Finds the one bit that makes it what the checksum says, and turns it.
    fn mend(&mut self, sum: u128, width: Width) -> bool {
        mend(&mut self.0, |bytes, at| {
            let page = Page(bytes);
            page.covered(width).is_some_and(|end| at < end) && page.is(sum, width)
        })
    }
}

/// Turns each bit in turn, until the bytes are right. Else they stay as they are.
pub(super) fn mend(bytes: &mut [u8], is: impl Fn(&[u8], usize) -> bool) -> bool {
    if bytes.len() > MENDED {
        return false;
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            if is(bytes, at) {
                return true;
            }
            bytes[at] ^= 1 << bit;
        }
    }
    false
}

/// A result of reading a table.
pub(super) enum Item<'a> {
    /// A pair of a whole page, or of the rest of a damaged one.
    Pair { key: &'a [u8], value: &'a [u8], whole: bool },
    /// The pairs of this page are lost, all or some.
    Lost(u64),
}

/// A file that redb wrote.
pub(super) struct Salvage<'a> {
    file: &'a dyn StorageBackend,
    len: u64,
    /// Bytes of a region, and of those the ones before its pages.
    region: u64,
    before: u64,
    /// Bytes of a key of the table that is read.
    width: usize,
    /// Whether a pair of that table vouches for itself.
    sound: fn(&[u8], &[u8]) -> bool,
    /// Pages that had one wrong bit.
    mended: u64,
    /// Pages in which one was searched for.
    searched: u64,
}

impl<'a> Salvage<'a> {
    /// Shows all that can be read of a table whose keys are `width` bytes long. `None` if not even
    /// the table is found. `like` is a file of the same making. The pairs of a damaged page are
    /// shown if one of them is `sound`: then it has the pairs that it seems to have. Returns the
    /// number of pages with one wrong bit.
    pub fn read<E>(
        file: &'a dyn StorageBackend,
        like: &dyn StorageBackend,
        table: &str,
        width: usize,
        sound: fn(&[u8], &[u8]) -> bool,
        each: &mut dyn FnMut(Item<'_>) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        let Ok(len) = file.len() else { return Ok(None) };
        let mut headers = [[0; PAGE]; 2];
        for (header, file) in headers.iter_mut().zip([file, like]) {
            if file.read(0, header).is_err() {
                return Ok(None);
            }
        }
        // A file's own geometry counts, unless it is damaged itself.
        for header in &headers {
            let pages = |at| u32_at(header, at).map_or(0, |pages| pages as u64 * PAGE as u64);
            let (before, data) = (pages(GEOMETRY), pages(GEOMETRY + 4));
            let region = before + data;
            let mut salvage = Self { file, len, region, before, width, sound, mended: 0, searched: 0 };
            let Some(root) = salvage.tables(&headers[0]).and_then(|tables| salvage.table(tables, table))
            else {
                continue;
            };
            salvage.tree(root, Some(width), 0, each)?;
            return Ok(Some(salvage.mended));
        }
        Ok(None)
    }

    /// The tree of all tables, as the latest commit has it.
    fn tables(&mut self, header: &[u8]) -> Option<Reference> {
        let at = SLOTS + SLOT * usize::from(header.get(GOD_BYTE)? & 1);
        let mut slot = header.get(at..at + SLOT)?.to_vec();
        let is = |slot: &[u8], _: usize| {
            number(slot, SLOT - 16).map(u128::from_le_bytes) == Some(XxHash3_128::oneshot(&slot[..SLOT - 16]))
        };
        if !is(&slot, 0) {
            if !mend(&mut slot, is) {
                return None;
            }
            self.mended += 1;
        }
        // Version 3, with a root.
        if slot[0] == 3 && slot[1] != 0 { Reference::at(&slot, 8) } else { None }
    }

    /// The root of a table's tree.
    fn table(&mut self, tables: Reference, name: &str) -> Option<Reference> {
        let mut roots = Vec::new();
        let none: Result<(), std::convert::Infallible> = self.tree(tables, None, 0, &mut |item| {
            // A definition: its kind, its length, and whether and where it has a root.
            if let Item::Pair { key, value, whole } = item {
                if key == name.as_bytes() && value.get(9).is_some_and(|has| *has != 0) {
                    roots.extend(Reference::at(value, 10).map(|root| (root, whole)));
                }
            }
            Ok(())
        });
        let Ok(()) = none;
        let vouched = |(root, whole): &(Reference, bool)| {
            *whole || self.page(root.page).is_some_and(|page| page.is(root.sum, Some(self.width)))
        };
        roots.iter().find(|root| vouched(root)).map(|(root, _)| *root)
    }

    /// The bytes of a page. `None` if there is no such one, or the medium does not give them.
    fn page(&self, number: u64) -> Option<Page<Vec<u8>>> {
        let order = number >> 59;
        let (index, region) = (number & (0xf_ffff >> order), number >> 20 & 0xf_ffff);
        let len = usize::try_from((PAGE as u64).checked_shl(u32::try_from(order).ok()?)?).ok()?;
        let within = region.checked_mul(self.region)?.checked_add(index.checked_mul(len as u64)?)?;
        let at = within.checked_add(PAGE as u64 + self.before)?;
        if len > LARGEST || at.checked_add(len as u64)? > self.len {
            return None;
        }
        let mut bytes = vec![0; len];
        self.file.read(at, &mut bytes).ok()?;
        Some(Page(bytes))
    }

    /// Shows what a tree has. Its root was vouched for.
    fn tree<E>(
        &mut self,
        at: Reference,
        width: Width,
        depth: usize,
        each: &mut dyn FnMut(Item<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(mut page) = self.page(at.page).filter(|_| depth < DEEPEST) else {
            return each(Item::Lost(at.page));
        };
        let mut whole = page.is(at.sum, width);
        if !whole && self.searched < SEARCHED {
            self.searched += 1;
            whole = page.mend(at.sum, width);
            self.mended += u64::from(whole);
        }
        if whole && page.0[0] == BRANCH {
            return page.children().try_for_each(|child| self.tree(child, width, depth + 1, each));
        }
        if !whole {
            each(Item::Lost(at.page))?;
            // A branch: its children are good where its checksums of them are.
            for child in page.children() {
                if self.page(child.page).is_some_and(|page| page.is(child.sum, width)) {
                    self.tree(child, width, depth + 1, each)?;
                }
            }
        }
        let sound = |(key, value): (&[u8], &[u8])| width.is_none() || (self.sound)(key, value);
        if whole || page.pairs(width).flatten().any(sound) {
            for (key, value) in page.pairs(width).flatten() {
                each(Item::Pair { key, value, whole })?;
            }
        }
        Ok(())
    }
}
