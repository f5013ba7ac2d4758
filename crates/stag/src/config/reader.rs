//! Reads a TOML table key by key, remembering where everything stood and complaining about keys that nobody asked for.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Problems;
use crate::suggest;

/// A value and where it stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Bytes of the file.
    pub span: Range<usize>,
}

impl<T> At<T> {
    /// The same place, another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> At<U> {
        At { value: f(self.value), span: self.span }
    }
}

/// A table that is being read. Each getter takes its key out; [`Table::end`] complains about what is left.
pub struct Table<'t> {
    name: &'static str,
    entries: Vec<(&'t Spanned<std::borrow::Cow<'t, str>>, &'t Spanned<DeValue<'t>>)>,
    asked: Vec<&'static str>,
    /// Where the table stands: its header, or its braces.
    pub span: Range<usize>,
}

impl<'t> Table<'t> {
    /// Reads `table`, which people know by `name`.
    pub fn new(name: &'static str, table: &'t DeTable<'t>, span: Range<usize>) -> Self {
        Self { name, entries: table.iter().collect(), asked: Vec::new(), span }
    }

    /// Takes `key` out, whatever it holds.
    pub fn take(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.asked.push(key);
        let index = self.entries.iter().position(|(name, _)| name.get_ref() == key)?;
        Some(self.entries.swap_remove(index).1)
    }

    /// Takes all that is left: each key with its place, and its value.
    pub fn rest(&mut self) -> Vec<(At<String>, &'t Spanned<DeValue<'t>>)> {
        let mut rest: Vec<_> = self.entries.drain(..).collect();
        rest.sort_by_key(|(key, _)| key.span().start);
        rest.into_iter()
            .map(|(key, value)| (At { value: key.get_ref().to_string(), span: key.span() }, value))
            .collect()
    }

    /// Takes a string.
    pub fn string(&mut self, key: &'static str, problems: &mut Problems) -> Option<At<String>> {
        let found = self.take(key)?;
        match found.get_ref() {
            DeValue::String(text) => Some(At { value: text.to_string(), span: found.span() }),
            other => mismatch(key, "a string in quotes", other, found.span(), problems),
        }
    }

    /// Takes true or false.
    pub fn bool(&mut self, key: &'static str, problems: &mut Problems) -> Option<bool> {
        let found = self.take(key)?;
        match found.get_ref() {
            DeValue::Boolean(value) => Some(*value),
            other => mismatch(key, "true or false", other, found.span(), problems),
        }
    }

    /// Takes a whole number of `range`.
    pub fn int(&mut self, key: &'static str, range: Range<u64>, problems: &mut Problems) -> Option<At<u64>> {
        let found = self.take(key)?;
        int(key, found, range, problems)
    }

    /// Takes a size: a whole number of bytes, or a string such as "64M", of `range`.
    pub fn size(&mut self, key: &'static str, range: Range<u64>, problems: &mut Problems) -> Option<At<u64>> {
        let found = self.take(key)?;
        let DeValue::String(text) = found.get_ref() else { return int(key, found, range, problems) };
        match backing::size::parse_size(text) {
            Ok(bytes) if range.contains(&bytes) => Some(At { value: bytes, span: found.span() }),
            Ok(_) => {
                let what = format!("{key} = \"{text}\" is out of range");
                problems.error(
                    &found.span(),
                    what,
                    format!("write {} to {} bytes", range.start, range.end - 1),
                );
                None
            }
            Err(error) => {
                problems.error(
                    &found.span(),
                    error.to_string(),
                    format!("write {key} = \"64M\", for example"),
                );
                None
            }
        }
    }

    /// Takes the elements of an array; a value that is no array counts as an array of it alone.
    pub fn list(&mut self, key: &'static str) -> Option<Vec<&'t Spanned<DeValue<'t>>>> {
        let found = self.take(key)?;
        Some(match found.get_ref() {
            DeValue::Array(elements) => elements.iter().collect(),
            _ => vec![found],
        })
    }

    /// Takes an array of tables, `[[key]]`.
    pub fn tables(&mut self, key: &'static str, problems: &mut Problems) -> Option<Vec<Table<'t>>> {
        let found = self.list(key)?;
        let wanted = "a table";
        Some(found.into_iter().filter_map(|element| table(key, element, wanted, problems)).collect())
    }

    /// Takes a table, `[key]`.
    pub fn table(&mut self, key: &'static str, problems: &mut Problems) -> Option<Table<'t>> {
        let found = self.take(key)?;
        table(key, found, "a table", problems)
    }

    /// Complains that `key` is missing, showing `example`.
    pub fn missing(&self, key: &str, example: &str, problems: &mut Problems) {
        problems.error(&self.span, format!("{} has no `{key}`", self.name), format!("write {example}"));
    }

    /// Ends the reading: complains about every key that nobody asked for.
    pub fn end(mut self, problems: &mut Problems) {
        for (key, _) in self.rest() {
            let instead = match suggest::nearest(&key.value, self.asked.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", suggest::list(self.asked.iter().copied())),
            };
            problems.error(&key.span, format!("{} knows no `{}`", self.name, key.value), instead);
        }
    }
}

/// `value` as a whole number of `range`.
pub fn int(
    key: &str,
    value: &Spanned<DeValue<'_>>,
    range: Range<u64>,
    problems: &mut Problems,
) -> Option<At<u64>> {
    let DeValue::Integer(number) = value.get_ref() else {
        return mismatch(key, "a whole number", value.get_ref(), value.span(), problems);
    };
    let parsed = u64::from_str_radix(number.as_str(), number.radix()).ok();
    match parsed.filter(|parsed| range.contains(parsed)) {
        Some(parsed) => Some(At { value: parsed, span: value.span() }),
        None => {
            let what = format!("{key} = {} is out of range", number.as_str());
            problems.error(&value.span(), what, format!("write {} to {}", range.start, range.end - 1));
            None
        }
    }
}

/// `value` as a table.
pub fn table<'t>(
    key: &'static str,
    value: &'t Spanned<DeValue<'t>>,
    wanted: &str,
    problems: &mut Problems,
) -> Option<Table<'t>> {
    match value.get_ref() {
        DeValue::Table(table) => Some(Table::new(key, table, value.span())),
        other => mismatch(key, wanted, other, value.span(), problems),
    }
}

/// Complains that `key` holds `found` where `wanted` belongs.
pub fn mismatch<T>(
    key: &str,
    wanted: &str,
    found: &DeValue<'_>,
    span: Range<usize>,
    problems: &mut Problems,
) -> Option<T> {
    problems.error(&span, format!("{key} is {wanted}, and not {}", kind(found)), format!("write {wanted}"));
    None
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a decimal point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
