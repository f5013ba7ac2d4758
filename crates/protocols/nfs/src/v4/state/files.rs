//! Owns the numbers of files that have state: everything else here names a file by its number.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use rpc::xdr::{Malformed, Reader, Writer};

use super::saved::Saved;

/// The number of a file that has state. Never used twice.
pub(super) type FileNo = u64;

/// Files that have state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Files<F: Eq + Hash> {
    last: FileNo,
    numbers: HashMap<F, FileNo>,
    names: BTreeMap<FileNo, F>,
}

impl<F: Clone + Eq + Hash> Files<F> {
    pub(super) fn new() -> Self {
        Files { last: 0, numbers: HashMap::new(), names: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn number(&self, file: &F) -> Option<FileNo> {
        self.numbers.get(file).copied()
    }

    pub(super) fn name(&self, number: FileNo) -> Option<&F> {
        self.names.get(&number)
    }

    /// The number of a file, which gets one if it has none.
    pub(super) fn intern(&mut self, file: &F) -> FileNo {
        if let Some(number) = self.number(file) {
            return number;
        }
        self.last += 1;
        self.numbers.insert(file.clone(), self.last);
        self.names.insert(self.last, file.clone());
        self.last
    }

    /// Forgets a file without state.
    pub(super) fn forget(&mut self, number: FileNo) {
        if let Some(file) = self.names.remove(&number) {
            self.numbers.remove(&file);
        }
    }

    pub(super) fn save(&self, to: &mut Writer<'_>, bytes: impl Fn(&F) -> Vec<u8>) {
        self.last.save(to);
        to.u32(self.names.len() as u32);
        for (number, file) in &self.names {
            number.save(to);
            bytes(file).into_boxed_slice().save(to);
        }
    }

    pub(super) fn load(from: &mut Reader<'_>, file: impl Fn(&[u8]) -> Option<F>) -> Result<Self, Malformed> {
        let mut files = Files::new();
        files.last = Saved::load(from)?;
        for _ in 0..from.length(u32::MAX as usize)? {
            let number = FileNo::load(from)?;
            let bytes = Box::<[u8]>::load(from)?;
            let file = file(&bytes).ok_or(Malformed::Unknown { what: "file", value: number as u32 })?;
            files.numbers.insert(file.clone(), number);
            files.names.insert(number, file);
        }
        Ok(files)
    }
}
