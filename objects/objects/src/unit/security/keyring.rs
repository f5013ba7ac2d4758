//! Storage of keys: attributes of a reserved page of the root and of partitions, which no client
//! can name. Owns their form and which of them are in force; `permissions` tells which key signs
//! what.
//!
//! A key remembers the mark of the key it was derived from. When that one is replaced, all keys
//! below are in force no more, without being looked for.

use std::collections::BTreeMap;

use osd::Id;
use osd::security::keys::{KEY_ID_LEN, WORKING_KEYS};
use osd::security::{Algorithm, KeyPair, keys, mac};

use super::super::OsdUnit;
use super::super::failure::Failure;
use crate::store::{Attributes, Change, Error, MAX_STEPS, Step, TimesUpdate};

/// The page of keys: of the range that is reserved, so that neither lists nor commands of clients
/// reach it.
pub(super) const PAGE: u32 = 0xC000_0005;
/// The master key; on the root.
const MASTER: u32 = 1;
/// The root key; on the root.
const ROOT: u32 = 2;
/// The key of a partition; on it (that of partition zero on the root).
const PARTITION: u32 = 3;
/// Working key 0 of a partition; the others follow.
const WORKING: u32 = 0x100;

/// Bytes of the security attributes that a partition keeps when its content is replaced, at most of
/// each page.
const MOST_KEPT: usize = 32 << 20;

const MARK: usize = 8;
/// Distinguishes a key from its successor.
pub(super) type Mark = [u8; MARK];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Name {
    Master,
    Root,
    Partition(u64),
    /// A working key of a partition, 0 to 15.
    Working(u64, u8),
}

impl Name {
    /// The key that it is derived from.
    pub const fn parent(self) -> Option<Self> {
        match self {
            Self::Master => None,
            Self::Root => Some(Self::Master),
            Self::Partition(_) => Some(Self::Root),
            Self::Working(partition, _) => Some(Self::Partition(partition)),
        }
    }

    /// On which object and under which number it is kept.
    fn place(self) -> (Id, u32) {
        match self {
            Self::Master => (Id::ROOT, MASTER),
            Self::Root => (Id::ROOT, ROOT),
            Self::Partition(partition) => (Id::partition(partition), PARTITION),
            Self::Working(partition, version) => {
                (Id::partition(partition), WORKING + u32::from(version) % WORKING_KEYS as u32)
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(in super::super) struct Kept {
    pub id: [u8; KEY_ID_LEN],
    pub pair: KeyPair,
    /// Its mark, which keys derived from it remember.
    mark: [u8; MARK],
    /// The mark of the key it was derived from.
    parent: [u8; MARK],
}

impl Kept {
    pub fn new(id: [u8; KEY_ID_LEN], pair: KeyPair, parent: Option<&Self>) -> Self {
        let mut mark = [0; MARK];
        let whole = mac(Algorithm::HmacSha256, &pair.generation, &[b"mark of a key", &id]);
        mark.copy_from_slice(&whole.bytes()[..MARK]);
        Self { id, pair, mark, parent: parent.map_or([0; MARK], |parent| parent.mark) }
    }

    /// Distinguishes it from its successor.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    fn to_bytes(&self) -> Vec<u8> {
        [&self.id[..], &self.mark, &self.parent, &self.pair.to_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk::<{ keys::KEY_ID_LEN }>()?;
        let (mark, rest) = rest.split_first_chunk::<MARK>()?;
        let (parent, rest) = rest.split_first_chunk::<MARK>()?;
        Some(Self { id: *id, mark: *mark, parent: *parent, pair: KeyPair::from_bytes(rest)? })
    }
}

impl OsdUnit {
    /// A key that is in force; `None` if there is none.
    pub(super) fn key(&self, name: Name) -> Result<Option<Kept>, Failure> {
        let Some(kept) = self.kept_key(name)? else { return Ok(None) };
        let mut below = kept.parent;
        let mut above = name.parent();
        while let Some(parent) = above {
            match self.kept_key(parent)? {
                Some(found) if found.mark == below => below = found.parent,
                _ => return Ok(None),
            }
            above = parent.parent();
        }
        Ok(Some(kept))
    }

    fn kept_key(&self, name: Name) -> Result<Option<Kept>, Failure> {
        let (id, number) = name.place();
        let mut value = Vec::new();
        match self.store.attribute(id, PAGE, number, &mut value) {
            // A key that cannot be read is not the same as one that was never set.
            Ok(true) => match Kept::from_bytes(&value) {
                Some(kept) => Ok(Some(kept)),
                None => Err(Error::Damaged(id).into()),
            },
            Ok(false) | Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds the step that keeps a key to a change.
    pub(super) fn keep_key(&self, name: Name, key: &Kept, change: &mut Change) {
        let (id, number) = name.place();
        change.set_attribute(id, PAGE, number, &key.to_bytes());
    }

    /// Adds the steps that leave `partition` its security when it gets the attributes of `content`:
    /// methods, tags, limits, keys and the time of its creation are no content, so that those of
    /// another time do not come back with it.
    pub(in super::super) fn security_stays(
        &self,
        partition: u64,
        content: u64,
        change: &mut Change,
    ) -> Result<(), Failure> {
        use osd::attributes::numbers::{attributes_access, partition_security};
        let id = Id::partition(partition);
        for page in [partition_security::PAGE.0, attributes_access::PAGE.0, PAGE] {
            let kept = |of: u64| -> Result<BTreeMap<u32, Vec<u8>>, Failure> {
                let (mut kept, mut len) = (BTreeMap::new(), 0);
                self.store.attributes(Id::partition(of), Attributes::Page(page), &mut |attribute| {
                    len += attribute.value.len();
                    kept.insert(attribute.number, attribute.value.to_vec());
                    kept.len() <= MAX_STEPS && len <= MOST_KEPT
                })?;
                match kept.len() <= MAX_STEPS && len <= MOST_KEPT {
                    true => Ok(kept),
                    false => Err(Error::BadChange.into()),
                }
            };
            let present = kept(partition)?;
            for number in kept(content)?.keys().filter(|number| !present.contains_key(number)) {
                change.set_attribute(id, page, *number, &[]);
            }
            for (number, value) in present {
                change.set_attribute(id, page, number, &value);
            }
        }
        let created = Some(self.store.times(id)?.created);
        change.push(Step::SetTimes { id, times: TimesUpdate { created, ..TimesUpdate::default() } });
        Ok(())
    }

    /// Adds the steps that restore the root's security attributes: after FORMAT the same manager
    /// governs.
    pub(in super::super) fn security_keep(&self, change: &mut Change) -> Result<(), Failure> {
        let names = [Name::Master, Name::Root, Name::Partition(0)]
            .into_iter()
            .chain((0..WORKING_KEYS as u8).map(|version| Name::Working(0, version)));
        for name in names {
            if let Some(kept) = self.kept_key(name)? {
                self.keep_key(name, &kept, change);
            }
        }
        use osd::attributes::numbers::root_security as r;
        for attribute in [r::DEFAULT_METHOD, r::PARTITION_DEFAULT_METHOD, r::OLDEST_NONCE, r::NEWEST_NONCE] {
            let mut value = Vec::new();
            if self.store.attribute(Id::ROOT, attribute.page.0, attribute.number, &mut value)? {
                change.set_attribute(Id::ROOT, attribute.page.0, attribute.number, &value);
            }
        }
        Ok(())
    }
}
