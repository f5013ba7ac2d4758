//! Reads a TOML table key by key, remembers the place of each value, and complains about unknown
//! keys.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::place::Place;
use super::problem::{Problems, mismatch};
use super::settings::{Group, Setting};
use super::value::Value;
use crate::suggest;

/// A value and where it stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    pub value: T,
    /// Bytes of the file.
    pub span: Range<usize>,
}

/// A table that is being read. Each getter takes its key out; [`Table::end`] complains about what
/// is left.
pub struct Table<'t> {
    name: &'static str,
    entries: Vec<(&'t Spanned<std::borrow::Cow<'t, str>>, &'t Spanned<DeValue<'t>>)>,
    asked: Vec<(&'static str, Option<Range<usize>>)>,
    /// Place of the table: its header, or its braces.
    pub span: Range<usize>,
}

impl<'t> Table<'t> {
    /// Reads `table`, which messages call `name`.
    pub fn new(name: &'static str, table: &'t DeTable<'t>, span: Range<usize>) -> Self {
        Self { name, entries: table.iter().collect(), asked: Vec::new(), span }
    }

    /// Takes `key` out, whatever it holds.
    pub fn take(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        let index = self.entries.iter().position(|(name, _)| name.get_ref() == key);
        let found = index.map(|index| self.entries.swap_remove(index).1);
        self.asked.push((key, found.map(Spanned::span)));
        found
    }

    /// Place of the value of `key`, if `key` was taken and found.
    pub fn said(&self, key: &str) -> Option<Range<usize>> {
        self.asked.iter().find(|(asked, _)| *asked == key)?.1.clone()
    }

    /// Takes all settings of `group`, except those that special code reads.
    pub fn fill<G: Group>(&mut self, group: &mut G, place: &Place<'_>, problems: &mut Problems) {
        let all = G::SETTINGS.iter().zip(group.cells_mut());
        for (setting, cell) in all.filter(|(setting, _)| !setting.by_hand) {
            match (self.take(setting.name), setting.required) {
                (Some(found), _) => cell.read(setting, found, place, problems),
                (None, Some(example)) => self.missing(setting.name, example, problems),
                (None, None) => {}
            }
        }
    }

    /// Takes the value of `setting`; complains if it is required and not there.
    pub fn value<T: Value>(
        &mut self,
        setting: &Setting,
        place: &Place<'_>,
        problems: &mut Problems,
    ) -> Option<At<T>> {
        let Some(found) = self.take(setting.name) else {
            setting.required.iter().for_each(|example| self.missing(setting.name, example, problems));
            return None;
        };
        Some(At { value: T::read(setting, found, place, problems)?, span: found.span() })
    }

    /// Takes the elements of the list `setting`, each with its place; complains if it is required
    /// and empty.
    pub fn elements<T: Value>(
        &mut self,
        setting: &Setting,
        place: &Place<'_>,
        problems: &mut Problems,
    ) -> Option<Vec<At<T>>> {
        let found = self.list(setting.name);
        if let (Some(example), true) = (setting.required, found.as_ref().is_none_or(Vec::is_empty)) {
            self.missing(setting.name, example, problems);
        }
        let element = setting.element();
        let mut read = |one: &'t Spanned<DeValue<'t>>| {
            Some(At { value: T::read(&element, one, place, problems)?, span: one.span() })
        };
        Some(found?.into_iter().filter_map(&mut read).collect())
    }

    /// Takes all remaining keys, each with its place and its value.
    pub fn rest(&mut self) -> Vec<(At<String>, &'t Spanned<DeValue<'t>>)> {
        let mut rest: Vec<_> = self.entries.drain(..).collect();
        rest.sort_by_key(|(key, _)| key.span().start);
        rest.into_iter()
            .map(|(key, value)| (At { value: key.get_ref().to_string(), span: key.span() }, value))
            .collect()
    }

    pub fn text(&mut self, key: &'static str, problems: &mut Problems) -> Option<At<String>> {
        let found = self.take(key)?;
        match found.get_ref() {
            DeValue::String(text) => Some(At { value: text.to_string(), span: found.span() }),
            other => mismatch(key, "a string in quotes", other, found.span(), problems),
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

    /// Ends the reading: complains about every key that was not taken.
    pub fn end(mut self, problems: &mut Problems) {
        for (key, _) in self.rest() {
            let known = || self.asked.iter().map(|(key, _)| *key);
            let instead = match suggest::nearest(&key.value, known()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", suggest::list(known())),
            };
            problems.error(&key.span, format!("{} knows no `{}`", self.name, key.value), instead);
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
