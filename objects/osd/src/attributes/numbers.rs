//! The pages and attributes that the standard defines, by name. Lengths are in bytes.

use super::{AttributeId, Page};
use crate::ObjectType::{self, Collection, Partition, Root, User};

/// Length of attribute 0 of every page, and of every value in a directory page: 8 bytes vendor, 32
/// bytes name.
pub const PAGE_ID_LEN: usize = 40;
/// The vendor of the standard's own pages.
pub const INCITS: &[u8; 8] = b"INCITS  ";

/// A page's identification: attribute 0 of the page, and its value in the directory.
pub fn page_id(vendor: &str, name: &str) -> [u8; PAGE_ID_LEN] {
    let mut out = [b' '; PAGE_ID_LEN];
    for (slot, byte) in out[..8].iter_mut().zip(vendor.bytes()) {
        *slot = byte;
    }
    out[8..].fill(0);
    for (slot, byte) in out[8..].iter_mut().zip(name.bytes()) {
        *slot = byte;
    }
    out
}

/// The identification of a page whose name was not set: the text of the other targets of OSD-2; the
/// standard's drafts leave it open.
pub fn unnamed_page_id() -> [u8; PAGE_ID_LEN] {
    page_id("", "unidentified attributes page")
}

/// A time, in milliseconds since 1970, as attributes have it.
pub fn time(ms: u64) -> [u8; 6] {
    crate::bytes::six(ms)
}

/// The name of a standard page ("Information", …), the value of its attribute 0; `None` for other
/// pages.
pub fn page_name(page: Page) -> Option<&'static str> {
    let super::PageKind::Of { object, number } = page.kind() else {
        return (page == Page::CURRENT_COMMAND).then_some("Current Command");
    };
    Some(match (object, number) {
        (Root, 0) => "T10 Root Directory",
        (Partition, 0) => "T10 Partition Directory",
        (Collection, 0) => "T10 Collection Directory",
        (User, 0) => "T10 User Object Directory",
        (Root, 1) => "T10 Root Information",
        (Partition, 1) => "T10 Partition Information",
        (Collection, 1) => "T10 Collection Information",
        (User, 1) => "T10 User Object Information",
        (Root, 2) => "T10 Root Quotas",
        (Partition, 2) => "T10 Partition Quotas",
        (User, 2) => "T10 User Object Quotas",
        (Root, 3) => "T10 Root Timestamps",
        (Partition, 3) => "T10 Partition Timestamps",
        (Collection, 3) => "T10 Collection Timestamps",
        (User, 3) => "T10 User Object Timestamps",
        (User, 4) => "T10 Collections",
        (Partition, 4) => "T10 Attributes Access",
        (Collection, 4) => "T10 Command Tracking",
        (Root, 5) => "T10 Root Policy/Security",
        (Partition, 5) => "T10 Partition Policy/Security",
        (Collection, 5) => "T10 Collection Policy/Security",
        (User, 5) => "T10 User Object Policy/Security",
        _ => return None,
    })
}

macro_rules! pages {
    ($($about:literal $module:ident = $page:expr, { $($name:ident = $value:literal $says:literal,)* })*) => {$(
        #[doc = $about]
        pub mod $module {
            #[allow(unused_imports, reason = "a page is of one type")]
            use super::{Collection, Page, Partition, Root, User};
            /// The page.
            pub const PAGE: Page = $page;
            /// The numbers of all that the standard defines, the page's identification excepted.
            pub const NUMBERS: &[u32] = &[$($value),*];
            $(
                #[doc = $says]
                pub const $name: super::AttributeId = super::AttributeId::new(PAGE, $value);
            )*
        }
    )*};
}

// Each attribute by the standard's name, with its length in bytes.
pages! {
    "Root Information."
    root_information = Page::of(Root, 1), {
        SYSTEM_ID = 0x3 "OSD SYSTEM ID: 20.",
        VENDOR = 0x4 "VENDOR IDENTIFICATION: 8.",
        PRODUCT = 0x5 "PRODUCT IDENTIFICATION: 16.",
        MODEL = 0x6 "PRODUCT MODEL: 32.",
        REVISION = 0x7 "PRODUCT REVISION LEVEL: 4.",
        SERIAL = 0x8 "PRODUCT SERIAL NUMBER: any length.",
        OSD_NAME = 0x9 "OSD NAME: any length, settable.",
        MAX_CONTINUATION = 0xA "MAXIMUM CDB CONTINUATION LENGTH: 4.",
        TOTAL_CAPACITY = 0x80 "TOTAL CAPACITY in bytes: 8.",
        USED_CAPACITY = 0x81 "USED CAPACITY in bytes: 8.",
        PARTITIONS = 0xC0 "NUMBER OF PARTITIONS: 8.",
        CLOCK = 0x100 "CLOCK, milliseconds since 1970 in UTC: 6.",
        DEFAULT_ISOLATION = 0x110 "DEFAULT ISOLATION METHOD: 1.",
        SUPPORTED_ISOLATION = 0x111 "SUPPORTED ISOLATION METHODS: 32.",
        DATA_ATOMICITY = 0x120 "DATA ATOMICITY GUARANTEE in bytes: 8.",
        DATA_ATOMICITY_ALIGNMENT = 0x121 "DATA ATOMICITY ALIGNMENT in bytes: 8.",
        ATTRIBUTES_ATOMICITY = 0x122 "ATTRIBUTES ATOMICITY GUARANTEE in bytes: 8.",
        ATOMICITY_MULTIPLIER = 0x123 "DATA/ATTRIBUTES ATOMICITY MULTIPLIER: 1.",
        MAX_SNAPSHOTS = 0x1C1 "MAXIMUM SNAPSHOTS COUNT: 8.",
        MAX_CLONES = 0x1C2 "MAXIMUM CLONES COUNT: 8.",
        MAX_BRANCH_DEPTH = 0x1CC "MAXIMUM BRANCH DEPTH: 8.",
        DUPLICATION_METHODS = 0x200 "First of the supported object duplication methods, 200h to 2FFh.",
        DUPLICATION_METHODS_LAST = 0x2FF "Last of them.",
        DUPLICATION_TIMES = 0x300 "First of the supported time of duplication methods, 300h to 30Fh.",
        DUPLICATION_TIMES_LAST = 0x30F "Last of them.",
    }
    "Partition Information."
    partition_information = Page::of(Partition, 1), {
        ID = 0x1 "PARTITION_ID: 8.",
        NAME = 0x9 "USERNAME: any length, settable.",
        USED_CAPACITY = 0x81 "USED CAPACITY in bytes: 8.",
        USED_CAPACITY_INCREMENT = 0x84 "USED CAPACITY INCREMENT in bytes: 8.",
        OBJECTS = 0xC1 "NUMBER OF COLLECTIONS AND USER OBJECTS: 8.",
        ACTUAL_DATA_SPACE = 0xD1 "ACTUAL DATA SPACE in bytes: 8.",
        RESERVED_DATA_SPACE = 0xD2 "RESERVED DATA SPACE in bytes: 8.",
        SNAPSHOT_DUPLICATION = 0x200 "DEFAULT SNAPSHOT DUPLICATION METHOD.",
        CLONE_DUPLICATION = 0x201 "DEFAULT CLONE DUPLICATION METHOD.",
        SNAPSHOT_DUPLICATION_TIME = 0x300 "DEFAULT SNAPSHOT TIME OF DUPLICATION METHOD.",
        CLONE_DUPLICATION_TIME = 0x301 "DEFAULT CLONE TIME OF DUPLICATION METHOD.",
    }
    "Collection Information."
    collection_information = Page::of(Collection, 1), {
        PARTITION_ID = 0x1 "PARTITION_ID: 8.",
        ID = 0x2 "COLLECTION_OBJECT_ID: 8.",
        NAME = 0x9 "USERNAME: any length, settable.",
        TYPE = 0xA "COLLECTION TYPE: 1; 00h linked, 01h tracking, EFh spontaneous.",
        USED_CAPACITY = 0x81 "USED CAPACITY in bytes: 8.",
    }
    "User Object Information."
    user_information = Page::of(User, 1), {
        PARTITION_ID = 0x1 "PARTITION_ID: 8.",
        ID = 0x2 "USER_OBJECT_ID: 8.",
        NAME = 0x9 "USERNAME: any length, settable.",
        USED_CAPACITY = 0x81 "USED CAPACITY in bytes: 8.",
        LOGICAL_LENGTH = 0x82 "USER OBJECT LOGICAL LENGTH in bytes: 8, settable: truncates and extends.",
        ACTUAL_DATA_SPACE = 0xD1 "ACTUAL DATA SPACE in bytes: 8.",
        RESERVED_DATA_SPACE = 0xD2 "RESERVED DATA SPACE in bytes: 8.",
    }
    "Root Quotas, all settable."
    root_quotas = Page::of(Root, 2), {
        DEFAULT_MAX_OBJECT_LENGTH = 0x1 "DEFAULT MAXIMUM USER OBJECT LENGTH in bytes: 8.",
        PARTITION_CAPACITY = 0x1_0001 "PARTITION CAPACITY QUOTA in bytes: 8.",
        PARTITION_OBJECTS = 0x1_0002 "PARTITION OBJECT COUNT: 8.",
        COLLECTIONS_PER_OBJECT = 0x1_0081 "PARTITION COLLECTIONS PER USER OBJECT: 4.",
        PARTITIONS = 0x2_0002 "PARTITION COUNT: 8.",
    }
    "Partition Quotas, all settable."
    partition_quotas = Page::of(Partition, 2), {
        DEFAULT_MAX_OBJECT_LENGTH = 0x1 "DEFAULT MAXIMUM USER OBJECT LENGTH in bytes: 8.",
        CAPACITY = 0x1_0001 "CAPACITY QUOTA in bytes: 8.",
        OBJECTS = 0x1_0002 "OBJECT COUNT: 8.",
        COLLECTIONS_PER_OBJECT = 0x1_0081 "COLLECTIONS PER USER OBJECT: 4.",
    }
    "User Object Quotas, settable."
    user_quotas = Page::of(User, 2), {
        MAX_LENGTH = 0x1 "MAXIMUM LENGTH in bytes: 8.",
    }
    "The Attributes Access page of partitions: lists of (page, number) that capabilities refer to."
    attributes_access = Page::of(Partition, 4), {}
    "Command Tracking, of tracking collections."
    command_tracking = Page::of(Collection, 4), {
        PERCENT_COMPLETE = 0x1 "PERCENT COMPLETE: 1.",
        ACTIVE_COMMAND = 0x2 "ACTIVE COMMAND STATUS (its service action): 2.",
        ENDED_STATUS = 0x3 "ENDED COMMAND STATUS: 2.",
        SENSE = 0x4 "SENSE DATA: up to 252.",
        MEMBERS = 0x10 "NUMBER OF MEMBERS: 8.",
        PROCESSED = 0x11 "OBJECTS PROCESSED: 8.",
        NEWER_SKIPPED = 0x12 "NEWER OBJECTS SKIPPED: 8.",
        MISSING_SKIPPED = 0x13 "MISSING OBJECTS SKIPPED: 8.",
    }
    "Root Policy/Security."
    root_security = Page::of(Root, 5), {
        DEFAULT_METHOD = 0x1 "DEFAULT SECURITY METHOD: 1, settable.",
        OLDEST_NONCE = 0x2 "OLDEST VALID NONCE LIMIT, milliseconds: 6, settable.",
        NEWEST_NONCE = 0x3 "NEWEST VALID NONCE LIMIT, milliseconds: 6, settable.",
        PARTITION_DEFAULT_METHOD = 0x6 "PARTITION DEFAULT SECURITY METHOD: 1, settable.",
        SUPPORTED_METHODS = 0x7 "SUPPORTED SECURITY METHODS: 2, a bit each.",
        ADJUSTABLE_CLOCK = 0x9 "ADJUSTABLE CLOCK, milliseconds since 1970: 6, settable.",
        BOOT_EPOCH = 0xA "BOOT EPOCH: 2.",
        MASTER_KEY_ID = 0x7FFD "MASTER KEY IDENTIFIER: 7.",
        ROOT_KEY_ID = 0x7FFE "ROOT KEY IDENTIFIER: 7.",
        ALGORITHMS = 0x8000_0000 "First SUPPORTED INTEGRITY CHECK VALUE ALGORITHM: 1 each.",
        DH_GROUPS = 0x8000_0010 "First SUPPORTED DH GROUP: 1 each.",
    }
    "Partition Policy/Security."
    partition_security = Page::of(Partition, 5), {
        DEFAULT_METHOD = 0x1 "DEFAULT SECURITY METHOD: 1, settable.",
        OLDEST_NONCE = 0x2 "OLDEST VALID NONCE LIMIT, milliseconds: 6, settable.",
        NEWEST_NONCE = 0x3 "NEWEST VALID NONCE LIMIT, milliseconds: 6, settable.",
        NONCE_LIST_DEPTH = 0x4 "REQUEST NONCE LIST DEPTH: 2, settable.",
        FROZEN_KEYS = 0x5 "FROZEN WORKING KEY BIT MASK: 2, settable; bit n freezes working key n.",
        PARTITION_KEY_ID = 0x7FFF "PARTITION KEY IDENTIFIER: 7.",
        WORKING_KEY_IDS = 0x8000 "WORKING KEY IDENTIFIER of key version 0; those of 1 to 15 follow: 7 each.",
        POLICY_TAG = 0x4000_0001 "POLICY ACCESS TAG: 4, settable.",
        OBJECT_POLICY_TAG = 0x4000_0002 "USER OBJECT POLICY ACCESS TAG: 4, settable: what new objects get.",
    }
    "Collection Policy/Security."
    collection_security = Page::of(Collection, 5), {
        POLICY_TAG = 0x4000_0001 "POLICY ACCESS TAG: 4, settable.",
    }
    "User Object Policy/Security."
    user_security = Page::of(User, 5), {
        POLICY_TAG = 0x4000_0001 "POLICY ACCESS TAG: 4, settable.",
    }
    "Current Command: what the running command did. It has a fixed page format too."
    current_command = Page::CURRENT_COMMAND, {
        RESPONSE_ICV = 0x1 "RESPONSE INTEGRITY CHECK VALUE: 20 or 32.",
        OBJECT_TYPE = 0x2 "OBJECT TYPE: 1.",
        PARTITION_ID = 0x3 "PARTITION_ID: 8.",
        OBJECT_ID = 0x4 "COLLECTION_OBJECT_ID or USER_OBJECT_ID: 8.",
        APPEND_ADDRESS = 0x5 "STARTING BYTE ADDRESS OF APPEND: 8.",
        USED_CAPACITY_CHANGE = 0x6 "CHANGE IN USED CAPACITY in bytes: 8.",
    }
}

/// Numbers of the Timestamps pages (+3); each value is 6 bytes of milliseconds since 1970 in UTC.
pub mod timestamps {
    use super::{ObjectType, Page};
    crate::bytes::constants! { u32:
        PAGE = 3 => "The page's place in each type's range.",
        CREATED = 0x1 => "CREATED TIME; not on the root.",
        ATTRIBUTES_ACCESSED = 0x2 => "ATTRIBUTES ACCESSED TIME.",
        ATTRIBUTES_MODIFIED = 0x3 => "ATTRIBUTES MODIFIED TIME.",
        DATA_ACCESSED = 0x4 => "DATA ACCESSED TIME; not on the root.",
        DATA_MODIFIED = 0x5 => "DATA MODIFIED TIME; not on the root.",
        BYPASS = 0xFFFF_FFFE => "TIMESTAMP BYPASS: 1, settable, on the root and on partitions: 00h updates timestamps, 7Fh does not.",
    }

    /// The Timestamps page of an object's type.
    pub const fn page(object: ObjectType) -> Page {
        Page::of(object, PAGE)
    }
}

/// The Collections page of user objects (U+4): each attribute is the id of a collection that the
/// object is in.
pub mod collections {
    use super::{ObjectType, Page};
    /// The page.
    pub const PAGE: Page = Page::of(ObjectType::User, 4);
    /// The lowest number of a pointer.
    pub const FIRST: u32 = 0x1;
    /// The highest.
    pub const LAST: u32 = 0xFFFF_FF00;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_id_is_the_vendor_and_the_name() {
        let id = page_id("INCITS", "T10 Root Information");
        assert_eq!(&id[..30], b"INCITS  T10 Root Information\0\0");
        assert_eq!(page_name(root_information::PAGE), Some("T10 Root Information"));
        assert_eq!(page_name(Page(0x1_0000)), None);
    }

    #[test]
    fn pages_are_where_the_standard_puts_them() {
        assert_eq!(root_information::SYSTEM_ID, AttributeId::new(Page(0x9000_0001), 3));
        assert_eq!(partition_security::FROZEN_KEYS.page, Page(0x3000_0005));
        assert_eq!(user_information::LOGICAL_LENGTH, AttributeId::new(Page(1), 0x82));
        assert_eq!(collections::PAGE, Page(4));
    }
}
