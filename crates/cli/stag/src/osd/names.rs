//! Attributes and their values as people write and read them.

use iscsi_client::objects::{Attribute, number};
use osd::attributes::numbers::{
    collection_information as collection, partition_information as partition, partition_quotas,
    partition_security, root_information as root, root_quotas, root_security, timestamps,
    user_information as user, user_quotas, user_security,
};
use osd::{AttributeId, ObjectType, Page};

use super::layout;
use crate::shown::{ms as show_ms, text};

/// Form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Number,
    Text,
    /// Milliseconds since 1970, 6 bytes.
    Time,
    Bytes,
}

use Form::{Bytes, Number, Text, Time};

/// Names of the standard's attributes and of the tree's, by kinds of objects. A name that several
/// kinds have means that of the object that it is asked of.
const NAMES: &[(&str, ObjectType, AttributeId, Form)] = &[
    ("system-id", ObjectType::Root, root::SYSTEM_ID, Bytes),
    ("vendor", ObjectType::Root, root::VENDOR, Text),
    ("product", ObjectType::Root, root::PRODUCT, Text),
    ("model", ObjectType::Root, root::MODEL, Text),
    ("revision", ObjectType::Root, root::REVISION, Text),
    ("serial", ObjectType::Root, root::SERIAL, Text),
    ("name", ObjectType::Root, root::OSD_NAME, Text),
    ("total", ObjectType::Root, root::TOTAL_CAPACITY, Number),
    ("used", ObjectType::Root, root::USED_CAPACITY, Number),
    ("partitions", ObjectType::Root, root::PARTITIONS, Number),
    ("clock", ObjectType::Root, root::CLOCK, Time),
    ("max-object-length", ObjectType::Root, root_quotas::DEFAULT_MAX_OBJECT_LENGTH, Number),
    ("partition-capacity-quota", ObjectType::Root, root_quotas::PARTITION_CAPACITY, Number),
    ("partition-object-quota", ObjectType::Root, root_quotas::PARTITION_OBJECTS, Number),
    ("partition-quota", ObjectType::Root, root_quotas::PARTITIONS, Number),
    ("security-method", ObjectType::Root, root_security::DEFAULT_METHOD, Number),
    ("name", ObjectType::Partition, partition::NAME, Text),
    ("used", ObjectType::Partition, partition::USED_CAPACITY, Number),
    ("objects", ObjectType::Partition, partition::OBJECTS, Number),
    ("capacity-quota", ObjectType::Partition, partition_quotas::CAPACITY, Number),
    ("object-quota", ObjectType::Partition, partition_quotas::OBJECTS, Number),
    ("max-object-length", ObjectType::Partition, partition_quotas::DEFAULT_MAX_OBJECT_LENGTH, Number),
    ("security-method", ObjectType::Partition, partition_security::DEFAULT_METHOD, Number),
    ("policy-tag", ObjectType::Partition, partition_security::POLICY_TAG, Number),
    ("created", ObjectType::Partition, time(ObjectType::Partition, timestamps::CREATED), Time),
    ("tree-top", ObjectType::Partition, layout::TOP, Number),
    ("name", ObjectType::Collection, collection::NAME, Text),
    ("used", ObjectType::Collection, collection::USED_CAPACITY, Number),
    ("type", ObjectType::Collection, collection::TYPE, Number),
    ("created", ObjectType::Collection, time(ObjectType::Collection, timestamps::CREATED), Time),
    ("name", ObjectType::User, user::NAME, Text),
    ("length", ObjectType::User, user::LOGICAL_LENGTH, Number),
    ("used", ObjectType::User, user::USED_CAPACITY, Number),
    ("max-length", ObjectType::User, user_quotas::MAX_LENGTH, Number),
    ("policy-tag", ObjectType::User, user_security::POLICY_TAG, Number),
    ("created", ObjectType::User, time(ObjectType::User, timestamps::CREATED), Time),
    ("attributes-accessed", ObjectType::User, time(ObjectType::User, timestamps::ATTRIBUTES_ACCESSED), Time),
    ("attributes-modified", ObjectType::User, time(ObjectType::User, timestamps::ATTRIBUTES_MODIFIED), Time),
    ("data-accessed", ObjectType::User, time(ObjectType::User, timestamps::DATA_ACCESSED), Time),
    ("data-modified", ObjectType::User, time(ObjectType::User, timestamps::DATA_MODIFIED), Time),
    ("file-name", ObjectType::User, layout::NAME, Text),
    ("file-kind", ObjectType::User, layout::KIND, Number),
    ("file-mode", ObjectType::User, layout::MODE, Number),
    ("file-target", ObjectType::User, layout::TARGET, Text),
    ("file-collection", ObjectType::User, layout::COLLECTION, Number),
    ("file-link", ObjectType::User, layout::LINK, Number),
];

const fn time(object: ObjectType, number: u32) -> AttributeId {
    AttributeId::new(timestamps::page(object), number)
}

/// All names, with their objects and numbers.
pub fn list() -> String {
    let mut text = String::new();
    for (name, object, id, _) in NAMES {
        text += &format!("{name:<26} {id:<22} {object}\n");
    }
    text
}

/// The attribute that `text` names on an object of type `of`: a name, or PAGE:NUMBER.
pub fn attribute(text: &str, of: ObjectType) -> Result<AttributeId, String> {
    if let Some((_, _, id, _)) = NAMES.iter().find(|(name, object, ..)| *name == text && *object == of) {
        return Ok(*id);
    }
    let Some((page, number)) = text.split_once(':') else {
        let known = NAMES.iter().filter(|(_, object, ..)| *object == of).map(|(name, ..)| *name);
        return Err(match crate::suggest::nearest(text, known) {
            Some(near) => format!("a {of} has no attribute `{text}`: did you mean `{near}`?"),
            None => format!(
                "`{text}` is no attribute of a {of}: write PAGE:NUMBER or a name of `stag osd attr names`"
            ),
        });
    };
    let hexadecimal = |text: &str| {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let digits = digits.strip_suffix('h').unwrap_or(digits);
        let fits = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        fits.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
    };
    let page = match page.split_once('+') {
        Some((kind, number)) => {
            let kind = match kind {
                "R" | "r" => Some(ObjectType::Root),
                "P" | "p" => Some(ObjectType::Partition),
                "C" | "c" => Some(ObjectType::Collection),
                "U" | "u" => Some(ObjectType::User),
                _ => None,
            };
            // The next kind's pages begin 30000000h behind.
            kind.zip(hexadecimal(number).filter(|number| *number < 0x3000_0000))
                .map(|(kind, number)| Page::of(kind, number))
        }
        None => hexadecimal(page).map(Page),
    };
    match (page, hexadecimal(number)) {
        (Some(page), Some(number)) => Ok(AttributeId::new(page, number)),
        _ => Err(format!("`{text}` is no PAGE:NUMBER, both hexadecimal, as in U+1:82 or 10000:1")),
    }
}

/// The value that `text` writes: `hex:`, `u8:` to `u64:`, or text.
pub fn value(text: &str) -> Result<Vec<u8>, String> {
    let unfit = |what: &str| Err(format!("`{text}` is no {what}"));
    if let Some(digits) = text.strip_prefix("hex:") {
        let digits: Vec<u8> = digits.bytes().filter(|digit| !matches!(digit, b' ' | b':')).collect();
        let pairs = digits.chunks_exact(2);
        let whole = pairs.remainder().is_empty();
        let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|nibble| u8::try_from(nibble).ok());
        let bytes: Option<Vec<u8>> =
            pairs.map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?)).collect();
        return match bytes.filter(|_| whole) {
            Some(bytes) => Ok(bytes),
            None => unfit("hexadecimal number of whole bytes"),
        };
    }
    for (prefix, bytes) in [("u8:", 1), ("u16:", 2), ("u32:", 4), ("u48:", 6), ("u64:", 8)] {
        let Some(digits) = text.strip_prefix(prefix) else { continue };
        let parsed = match digits.strip_prefix("0x") {
            Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
            Some(_) => None,
            None => digits.parse::<u64>().ok().or_else(|| backing::size::parse_size(digits).ok()),
        };
        return match parsed.filter(|number| bytes == 8 || *number >> (8 * bytes) == 0) {
            Some(number) => Ok(number.to_be_bytes()[8 - bytes..].to_vec()),
            None => unfit(&format!("number of {bytes} bytes")),
        };
    }
    Ok(text.strip_prefix("text:").unwrap_or(text).as_bytes().to_vec())
}

/// The standard's attributes of a type of objects that have names.
pub fn standard(of: ObjectType) -> impl Iterator<Item = (&'static str, AttributeId)> {
    let tree = [layout::FILE, layout::TREE];
    NAMES
        .iter()
        .filter(move |(_, object, id, _)| *object == of && !tree.contains(&id.page))
        .map(|(name, _, id, _)| (*name, *id))
}

/// The name of an attribute, if it has one.
pub fn name_of(id: AttributeId) -> Option<&'static str> {
    NAMES.iter().find(|(_, _, known, _)| *known == id).map(|(name, ..)| *name)
}

/// A value in words.
pub fn show(attribute: &Attribute) -> String {
    let value = &attribute.value;
    let form = NAMES.iter().find(|(_, _, id, _)| *id == attribute.id).map(|(.., form)| *form);
    match form {
        Some(Number) => number(value).map_or_else(|| hex(value), |number| number.to_string()),
        Some(Time) => number(value).map_or_else(|| hex(value), show_ms),
        Some(Text) => text(value),
        // Page identifications are text too.
        _ if attribute.id.number == 0 && value.len() == 40 => text(value),
        Some(Bytes) => hex(value),
        None if value.iter().all(|byte| (0x20..0x7f).contains(byte)) => text(value),
        None => hex(value),
    }
}

/// The value as JSON has it: numbers as such, text as such, all else in hexadecimal.
pub fn json(attribute: &Attribute) -> serde_json::Value {
    let form = NAMES.iter().find(|(_, _, id, _)| *id == attribute.id).map(|(.., form)| *form);
    match (form, number(&attribute.value)) {
        (Some(Number | Time), Some(number)) => number.into(),
        _ => show(attribute).into(),
    }
}

/// Hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("hex:".to_owned(), |shown, byte| shown + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_names_and_numbers() {
        let of = |text: &str, object| attribute(text, object).unwrap();
        assert_eq!(of("length", ObjectType::User), user::LOGICAL_LENGTH);
        assert_eq!(of("U+1:82", ObjectType::User), user::LOGICAL_LENGTH);
        assert_eq!(of("1:0x82", ObjectType::User), user::LOGICAL_LENGTH);
        assert_eq!(of("P+2:10001h", ObjectType::Partition), partition_quotas::CAPACITY);
        assert_eq!(of("used", ObjectType::Partition), partition::USED_CAPACITY);
        assert!(attribute("lenght", ObjectType::User).unwrap_err().contains("`length`"));
        for wrong in ["length:", ":1", "U+30000000:1", "X+1:1", "1:+2", "nonsense"] {
            assert!(attribute(wrong, ObjectType::User).is_err(), "{wrong}");
        }
        for (name, object, id, _) in NAMES {
            assert_eq!(attribute(name, *object), Ok(*id), "{name}");
        }
    }

    #[test]
    fn values_are_text_numbers_or_bytes() {
        assert_eq!(value("any text").unwrap(), b"any text");
        assert_eq!(value("text:u8:1").unwrap(), b"u8:1");
        assert_eq!(value("hex:00 fF").unwrap(), [0, 255]);
        assert_eq!(value("u16:258").unwrap(), [1, 2]);
        assert_eq!(value("u64:1K").unwrap(), 1024u64.to_be_bytes());
        assert_eq!(value("u32:0xff").unwrap(), [0, 0, 0, 255]);
        for wrong in ["hex:0", "hex:zz", "u8:256", "u16:-1", "u8:", "u8:0x+1"] {
            assert!(value(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_are_shown_as_what_they_are() {
        let shown = |id, value: &[u8]| show(&Attribute::new(id, value));
        assert_eq!(shown(user::LOGICAL_LENGTH, &[1, 0]), "256");
        assert_eq!(shown(user::NAME, b"a\nb\0"), "a\\nb");
        let own = AttributeId::new(Page(0x10000), 1);
        assert_eq!((shown(own, b"red"), shown(own, &[0, 1])), ("red".into(), "hex:0001".into()));
    }
}
