//! Attributes: their identifiers (page and number), those that the standard defines, and the lists
//! and pages that carry them.

pub mod list;
pub mod numbers;
pub mod page;

use std::fmt;

use crate::ObjectType;

/// The big-endian number that a value of up to 8 bytes is; of a longer one, that in its last 8.
pub fn number(value: &[u8]) -> u64 {
    value.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// An attributes page number. Its range determines the type of object that it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page(pub u32);

/// Meaning of a page number's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageKind {
    /// A page of objects of one type; `number` is the page's place in the type's range.
    Of {
        /// The type of object.
        object: ObjectType,
        /// The page number less the range's first.
        number: u32,
    },
    /// C0000000h to EFFFFFFFh: reserved.
    Reserved,
    /// F0000000h to FFFFFFFDh: pages that any object may have.
    Any,
    /// FFFFFFFEh: the Current Command page, which lives as long as the command.
    CurrentCommand,
    /// FFFFFFFFh: all pages.
    All,
}

impl Page {
    /// First page number of user objects (U+0).
    pub const USER: u32 = 0;
    /// First page number of partitions (P+0).
    pub const PARTITION: u32 = 0x3000_0000;
    /// First page number of collections (C+0).
    pub const COLLECTION: u32 = 0x6000_0000;
    /// First page number of the root (R+0).
    pub const ROOT: u32 = 0x9000_0000;
    /// First page number that any object may have.
    pub const ANY: u32 = 0xF000_0000;
    /// The Current Command page.
    pub const CURRENT_COMMAND: Self = Self(0xFFFF_FFFE);
    /// All pages: in a get list, every attribute of the object of the number asked for.
    pub const ALL: Self = Self(0xFFFF_FFFF);

    /// Page `number` of the range of `object`'s type.
    pub const fn of(object: ObjectType, number: u32) -> Self {
        Self(
            number
                + match object {
                    ObjectType::User => Self::USER,
                    ObjectType::Partition => Self::PARTITION,
                    ObjectType::Collection => Self::COLLECTION,
                    ObjectType::Root => Self::ROOT,
                },
        )
    }

    /// Meaning of the range that the page is in.
    pub const fn kind(self) -> PageKind {
        let (object, first) = match self.0 {
            0xFFFF_FFFF => return PageKind::All,
            0xFFFF_FFFE => return PageKind::CurrentCommand,
            0xF000_0000.. => return PageKind::Any,
            0xC000_0000.. => return PageKind::Reserved,
            Self::ROOT.. => (ObjectType::Root, Self::ROOT),
            Self::COLLECTION.. => (ObjectType::Collection, Self::COLLECTION),
            Self::PARTITION.. => (ObjectType::Partition, Self::PARTITION),
            _ => (ObjectType::User, Self::USER),
        };
        PageKind::Of { object, number: self.0 - first }
    }

    /// Whether objects of type `object` may have the page.
    pub const fn suits(self, object: ObjectType) -> bool {
        match self.kind() {
            PageKind::Of { object: of, .. } => of as u8 == object as u8,
            PageKind::Any | PageKind::CurrentCommand => true,
            PageKind::Reserved | PageKind::All => false,
        }
    }

    /// Whether a client may define the page's attributes as it likes: the public, application and
    /// vendor parts of a type's range and of the range of any object.
    pub const fn is_free(self) -> bool {
        match self.kind() {
            PageKind::Of { number, .. } => number >= 0xF000,
            PageKind::Any => true,
            _ => false,
        }
    }
}

impl fmt::Display for Page {
    /// `U+1h`, `P+5h`, `C+4h`, `R+1h`, or the number in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            PageKind::Of { object, number } => {
                let letter = match object {
                    ObjectType::User => 'U',
                    ObjectType::Partition => 'P',
                    ObjectType::Collection => 'C',
                    ObjectType::Root => 'R',
                };
                write!(f, "{letter}+{number:X}h")
            }
            _ => write!(f, "{:X}h", self.0),
        }
    }
}

/// An attribute's name: its page and its number in the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttributeId {
    /// The attributes page.
    pub page: Page,
    /// The number in the page: 0 is the page's identification, [`Self::ALL`] all attributes of it.
    pub number: u32,
}

impl AttributeId {
    /// The number that means all attributes of a page.
    pub const ALL: u32 = 0xFFFF_FFFF;

    /// Attribute `number` of `page`.
    pub const fn new(page: Page, number: u32) -> Self {
        Self { page, number }
    }
}

impl fmt::Display for AttributeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:X}h", self.page, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_belongs_to_the_objects_of_its_range() {
        let of = |object, number| PageKind::Of { object, number };
        assert_eq!(Page(0x2FFF_FFFF).kind(), of(ObjectType::User, 0x2FFF_FFFF));
        assert_eq!(Page(0x3000_0001).kind(), of(ObjectType::Partition, 1));
        assert_eq!(Page(0x6000_0000).kind(), of(ObjectType::Collection, 0));
        assert_eq!(Page(0xBFFF_FFFF).kind(), of(ObjectType::Root, 0x2FFF_FFFF));
        assert_eq!(Page(0xC000_0000).kind(), PageKind::Reserved);
        assert_eq!(Page(0xFFFF_FFFD).kind(), PageKind::Any);
        assert_eq!(Page(0xFFFF_FFFE).kind(), PageKind::CurrentCommand);
        assert!(Page::of(ObjectType::Root, 1).suits(ObjectType::Root));
        assert!(!Page::of(ObjectType::Root, 1).suits(ObjectType::User));
        assert_eq!(Page::of(ObjectType::Partition, 5).to_string(), "P+5h");
    }
}
