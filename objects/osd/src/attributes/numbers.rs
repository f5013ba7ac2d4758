//! The pages and attributes that the standard defines, by name. Lengths are in bytes.

use super::{AttributeId, Page};
use crate::ObjectType;

/// Length of attribute 0 of every page, and of every value in a directory page: 8 bytes vendor, 32 bytes name.
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

/// The name of a standard page ("Information", …) as its attribute 0 says it; `None` for pages of others.
pub fn page_name(page: Page) -> Option<&'static str> {
    use ObjectType::{Collection, Partition, Root, User};
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

macro_rules! page {
    ($(#[$meta:meta])* $module:ident = $object:ident + $number:literal {
        $($(#[$about:meta])* $name:ident = $value:literal;)*
    }) => {
        $(#[$meta])*
        pub mod $module {
            /// The page.
            pub const PAGE: super::Page = super::Page::of(super::ObjectType::$object, $number);
            $(
                $(#[$about])*
                pub const $name: super::AttributeId = super::AttributeId::new(PAGE, $value);
            )*
        }
    };
}

page! {
    /// The root's directory: attribute numbers are page numbers, values their identifications.
    root_directory = Root + 0 {}
}
page! {
    /// A partition's directory.
    partition_directory = Partition + 0 {}
}
page! {
    /// A collection's directory.
    collection_directory = Collection + 0 {}
}
page! {
    /// A user object's directory.
    user_directory = User + 0 {}
}

page! {
    /// Root Information.
    root_information = Root + 1 {
        /// OSD SYSTEM ID: 20.
        SYSTEM_ID = 0x3;
        /// VENDOR IDENTIFICATION: 8.
        VENDOR = 0x4;
        /// PRODUCT IDENTIFICATION: 16.
        PRODUCT = 0x5;
        /// PRODUCT MODEL: 32.
        MODEL = 0x6;
        /// PRODUCT REVISION LEVEL: 4.
        REVISION = 0x7;
        /// PRODUCT SERIAL NUMBER: any length.
        SERIAL = 0x8;
        /// OSD NAME: any length, settable.
        OSD_NAME = 0x9;
        /// MAXIMUM CDB CONTINUATION LENGTH: 4.
        MAX_CONTINUATION = 0xA;
        /// TOTAL CAPACITY in bytes: 8.
        TOTAL_CAPACITY = 0x80;
        /// USED CAPACITY in bytes: 8.
        USED_CAPACITY = 0x81;
        /// NUMBER OF PARTITIONS: 8.
        PARTITIONS = 0xC0;
        /// CLOCK, milliseconds since 1970 in UTC: 6.
        CLOCK = 0x100;
        /// DEFAULT ISOLATION METHOD: 1.
        DEFAULT_ISOLATION = 0x110;
        /// SUPPORTED ISOLATION METHODS: 32.
        SUPPORTED_ISOLATION = 0x111;
        /// DATA ATOMICITY GUARANTEE in bytes: 8.
        DATA_ATOMICITY = 0x120;
        /// DATA ATOMICITY ALIGNMENT in bytes: 8.
        DATA_ATOMICITY_ALIGNMENT = 0x121;
        /// ATTRIBUTES ATOMICITY GUARANTEE in bytes: 8.
        ATTRIBUTES_ATOMICITY = 0x122;
        /// DATA/ATTRIBUTES ATOMICITY MULTIPLIER: 1.
        ATOMICITY_MULTIPLIER = 0x123;
        /// MAXIMUM SNAPSHOTS COUNT: 8.
        MAX_SNAPSHOTS = 0x1C1;
        /// MAXIMUM CLONES COUNT: 8.
        MAX_CLONES = 0x1C2;
        /// MAXIMUM BRANCH DEPTH: 8.
        MAX_BRANCH_DEPTH = 0x1CC;
        /// First of the supported object duplication methods, 200h to 2FFh.
        DUPLICATION_METHODS = 0x200;
        /// Last of them.
        DUPLICATION_METHODS_LAST = 0x2FF;
        /// First of the supported time of duplication methods, 300h to 30Fh.
        DUPLICATION_TIMES = 0x300;
        /// Last of them.
        DUPLICATION_TIMES_LAST = 0x30F;
    }
}

page! {
    /// Partition Information.
    partition_information = Partition + 1 {
        /// PARTITION_ID: 8.
        ID = 0x1;
        /// USERNAME: any length, settable.
        NAME = 0x9;
        /// USED CAPACITY in bytes: 8.
        USED_CAPACITY = 0x81;
        /// USED CAPACITY INCREMENT in bytes: 8.
        USED_CAPACITY_INCREMENT = 0x84;
        /// NUMBER OF COLLECTIONS AND USER OBJECTS: 8.
        OBJECTS = 0xC1;
        /// ACTUAL DATA SPACE in bytes: 8.
        ACTUAL_DATA_SPACE = 0xD1;
        /// RESERVED DATA SPACE in bytes: 8.
        RESERVED_DATA_SPACE = 0xD2;
        /// DEFAULT SNAPSHOT DUPLICATION METHOD.
        SNAPSHOT_DUPLICATION = 0x200;
        /// DEFAULT CLONE DUPLICATION METHOD.
        CLONE_DUPLICATION = 0x201;
        /// DEFAULT SNAPSHOT TIME OF DUPLICATION METHOD.
        SNAPSHOT_DUPLICATION_TIME = 0x300;
        /// DEFAULT CLONE TIME OF DUPLICATION METHOD.
        CLONE_DUPLICATION_TIME = 0x301;
    }
}

page! {
    /// Collection Information.
    collection_information = Collection + 1 {
        /// PARTITION_ID: 8.
        PARTITION_ID = 0x1;
        /// COLLECTION_OBJECT_ID: 8.
        ID = 0x2;
        /// USERNAME: any length, settable.
        NAME = 0x9;
        /// COLLECTION TYPE: 1; see [`collection_type`](super::collection_type).
        TYPE = 0xA;
        /// USED CAPACITY in bytes: 8.
        USED_CAPACITY = 0x81;
    }
}

/// Values of COLLECTION TYPE.
pub mod collection_type {
    /// LINKED: members point to it by their Collections pages.
    pub const LINKED: u8 = 0x00;
    /// TRACKING: follows a command over its members.
    pub const TRACKING: u8 = 0x01;
    /// SPONTANEOUS: made of a query.
    pub const SPONTANEOUS: u8 = 0xEF;
}

page! {
    /// User Object Information.
    user_information = User + 1 {
        /// PARTITION_ID: 8.
        PARTITION_ID = 0x1;
        /// USER_OBJECT_ID: 8.
        ID = 0x2;
        /// USERNAME: any length, settable.
        NAME = 0x9;
        /// USED CAPACITY in bytes: 8.
        USED_CAPACITY = 0x81;
        /// USER OBJECT LOGICAL LENGTH in bytes: 8, settable: truncates and extends.
        LOGICAL_LENGTH = 0x82;
        /// ACTUAL DATA SPACE in bytes: 8.
        ACTUAL_DATA_SPACE = 0xD1;
        /// RESERVED DATA SPACE in bytes: 8.
        RESERVED_DATA_SPACE = 0xD2;
    }
}

page! {
    /// Root Quotas, all settable.
    root_quotas = Root + 2 {
        /// DEFAULT MAXIMUM USER OBJECT LENGTH in bytes: 8.
        DEFAULT_MAX_OBJECT_LENGTH = 0x1;
        /// PARTITION CAPACITY QUOTA in bytes: 8.
        PARTITION_CAPACITY = 0x1_0001;
        /// PARTITION OBJECT COUNT: 8.
        PARTITION_OBJECTS = 0x1_0002;
        /// PARTITION COLLECTIONS PER USER OBJECT: 4.
        COLLECTIONS_PER_OBJECT = 0x1_0081;
        /// PARTITION COUNT: 8.
        PARTITIONS = 0x2_0002;
    }
}

page! {
    /// Partition Quotas, all settable.
    partition_quotas = Partition + 2 {
        /// DEFAULT MAXIMUM USER OBJECT LENGTH in bytes: 8.
        DEFAULT_MAX_OBJECT_LENGTH = 0x1;
        /// CAPACITY QUOTA in bytes: 8.
        CAPACITY = 0x1_0001;
        /// OBJECT COUNT: 8.
        OBJECTS = 0x1_0002;
        /// COLLECTIONS PER USER OBJECT: 4.
        COLLECTIONS_PER_OBJECT = 0x1_0081;
    }
}

page! {
    /// User Object Quotas, settable.
    user_quotas = User + 2 {
        /// MAXIMUM LENGTH in bytes: 8.
        MAX_LENGTH = 0x1;
    }
}

/// Numbers of the Timestamps pages (+3); each value is 6 bytes of milliseconds since 1970 in UTC.
pub mod timestamps {
    use super::{ObjectType, Page};
    /// The page's place in each type's range.
    pub const PAGE: u32 = 3;
    /// CREATED TIME; not on the root.
    pub const CREATED: u32 = 0x1;
    /// ATTRIBUTES ACCESSED TIME.
    pub const ATTRIBUTES_ACCESSED: u32 = 0x2;
    /// ATTRIBUTES MODIFIED TIME.
    pub const ATTRIBUTES_MODIFIED: u32 = 0x3;
    /// DATA ACCESSED TIME; not on the root.
    pub const DATA_ACCESSED: u32 = 0x4;
    /// DATA MODIFIED TIME; not on the root.
    pub const DATA_MODIFIED: u32 = 0x5;
    /// TIMESTAMP BYPASS: 1, settable, on the root and on partitions: 00h updates timestamps, 7Fh does not.
    pub const BYPASS: u32 = 0xFFFF_FFFE;

    /// The Timestamps page of an object's type.
    pub const fn page(object: ObjectType) -> Page {
        Page::of(object, PAGE)
    }
}

/// The Collections page of user objects (U+4): each attribute is the id of a collection that the object is in.
pub mod collections {
    use super::{ObjectType, Page};
    /// The page.
    pub const PAGE: Page = Page::of(ObjectType::User, 4);
    /// The lowest number of a pointer.
    pub const FIRST: u32 = 0x1;
    /// The highest.
    pub const LAST: u32 = 0xFFFF_FF00;
}

/// The Attributes Access page of partitions (P+4): lists of (page, number) that capabilities refer to.
pub mod attributes_access {
    use super::{ObjectType, Page};
    /// The page.
    pub const PAGE: Page = Page::of(ObjectType::Partition, 4);
}

page! {
    /// Command Tracking, of tracking collections.
    command_tracking = Collection + 4 {
        /// PERCENT COMPLETE: 1.
        PERCENT_COMPLETE = 0x1;
        /// ACTIVE COMMAND STATUS (its service action): 2.
        ACTIVE_COMMAND = 0x2;
        /// ENDED COMMAND STATUS: 2.
        ENDED_STATUS = 0x3;
        /// SENSE DATA: up to 252.
        SENSE = 0x4;
        /// NUMBER OF MEMBERS: 8.
        MEMBERS = 0x10;
        /// OBJECTS PROCESSED: 8.
        PROCESSED = 0x11;
        /// NEWER OBJECTS SKIPPED: 8.
        NEWER_SKIPPED = 0x12;
        /// MISSING OBJECTS SKIPPED: 8.
        MISSING_SKIPPED = 0x13;
    }
}

page! {
    /// Root Policy/Security.
    root_security = Root + 5 {
        /// DEFAULT SECURITY METHOD: 1, settable.
        DEFAULT_METHOD = 0x1;
        /// OLDEST VALID NONCE LIMIT, milliseconds: 6, settable.
        OLDEST_NONCE = 0x2;
        /// NEWEST VALID NONCE LIMIT, milliseconds: 6, settable.
        NEWEST_NONCE = 0x3;
        /// PARTITION DEFAULT SECURITY METHOD: 1, settable.
        PARTITION_DEFAULT_METHOD = 0x6;
        /// SUPPORTED SECURITY METHODS: 2, a bit each.
        SUPPORTED_METHODS = 0x7;
        /// ADJUSTABLE CLOCK, milliseconds since 1970: 6, settable.
        ADJUSTABLE_CLOCK = 0x9;
        /// BOOT EPOCH: 2.
        BOOT_EPOCH = 0xA;
        /// MASTER KEY IDENTIFIER: 7.
        MASTER_KEY_ID = 0x7FFD;
        /// ROOT KEY IDENTIFIER: 7.
        ROOT_KEY_ID = 0x7FFE;
        /// First SUPPORTED INTEGRITY CHECK VALUE ALGORITHM: 1 each.
        ALGORITHMS = 0x8000_0000;
        /// First SUPPORTED DH GROUP: 1 each.
        DH_GROUPS = 0x8000_0010;
    }
}

page! {
    /// Partition Policy/Security.
    partition_security = Partition + 5 {
        /// DEFAULT SECURITY METHOD: 1, settable.
        DEFAULT_METHOD = 0x1;
        /// OLDEST VALID NONCE LIMIT, milliseconds: 6, settable.
        OLDEST_NONCE = 0x2;
        /// NEWEST VALID NONCE LIMIT, milliseconds: 6, settable.
        NEWEST_NONCE = 0x3;
        /// REQUEST NONCE LIST DEPTH: 2, settable.
        NONCE_LIST_DEPTH = 0x4;
        /// FROZEN WORKING KEY BIT MASK: 2, settable; bit n freezes working key n.
        FROZEN_KEYS = 0x5;
        /// PARTITION KEY IDENTIFIER: 7.
        PARTITION_KEY_ID = 0x7FFF;
        /// WORKING KEY IDENTIFIER of key version 0; those of 1 to 15 follow: 7 each.
        WORKING_KEY_IDS = 0x8000;
        /// POLICY ACCESS TAG: 4, settable.
        POLICY_TAG = 0x4000_0001;
        /// USER OBJECT POLICY ACCESS TAG: 4, settable: what new objects get.
        OBJECT_POLICY_TAG = 0x4000_0002;
    }
}

page! {
    /// Collection Policy/Security.
    collection_security = Collection + 5 {
        /// POLICY ACCESS TAG: 4, settable.
        POLICY_TAG = 0x4000_0001;
    }
}

page! {
    /// User Object Policy/Security.
    user_security = User + 5 {
        /// POLICY ACCESS TAG: 4, settable.
        POLICY_TAG = 0x4000_0001;
    }
}

/// Current Command: what the running command did. It has a fixed page format too.
pub mod current_command {
    use super::{AttributeId, Page};
    /// The page.
    pub const PAGE: Page = Page::CURRENT_COMMAND;
    /// RESPONSE INTEGRITY CHECK VALUE: 20 or 32.
    pub const RESPONSE_ICV: AttributeId = AttributeId::new(PAGE, 0x1);
    /// OBJECT TYPE: 1.
    pub const OBJECT_TYPE: AttributeId = AttributeId::new(PAGE, 0x2);
    /// PARTITION_ID: 8.
    pub const PARTITION_ID: AttributeId = AttributeId::new(PAGE, 0x3);
    /// COLLECTION_OBJECT_ID or USER_OBJECT_ID: 8.
    pub const OBJECT_ID: AttributeId = AttributeId::new(PAGE, 0x4);
    /// STARTING BYTE ADDRESS OF APPEND: 8.
    pub const APPEND_ADDRESS: AttributeId = AttributeId::new(PAGE, 0x5);
    /// CHANGE IN USED CAPACITY in bytes: 8.
    pub const USED_CAPACITY_CHANGE: AttributeId = AttributeId::new(PAGE, 0x6);
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
