//! [`Table`]: locations of files, for a process that cannot open them by the file system's handles.
//! Owns a log in the state directory: a record has the directory and the name at which a file was
//! last seen.
//!
//! A record only gives a place to look: the file found there is checked by inode and birth. So a
//! record that is lost or old costs ESTALE until the next lookup, and never gives a wrong file. The
//! log is written with each operation, and not flushed.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::seal::Seal;

/// An inode's number and its time of birth in nanoseconds, 0 if unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) inode: u64,
    pub(crate) birth: u64,
}

impl Key {
    /// Its bytes, as in ids.
    pub(crate) fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.inode.to_le_bytes());
        bytes[8..].copy_from_slice(&self.birth.to_le_bytes());
        bytes
    }

    /// The key of these bytes.
    pub(crate) fn from_bytes(bytes: &[u8; 16]) -> Self {
        let (inode, birth) = bytes.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Self { inode: number(inode), birth: number(birth) }
    }
}

/// Directory and name at which a file was seen last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) directory: Key,
    pub(crate) name: Vec<u8>,
}

/// A record: the name's length, the file's key, the directory's, the name, and a check of all that.
const HEAD: usize = 2 + 16 + 16;
const CHECK: usize = 4;
/// A log with more records, most of them unused, is rewritten.
const MANY: usize = 4096;
/// Longest name, bytes. A record without one means that the file is gone.
const LONGEST: usize = 255;

/// The log, and the position of each file's last record in it.
pub(crate) struct Table {
    log: File,
    path: PathBuf,
    end: u64,
    /// Records in the log.
    count: usize,
    seal: Seal,
    /// Offset of the last record and its check, by the hash of a key.
    records: HashMap<u64, (u64, u32)>,
}

impl Table {
    /// Reads the log at `path`, or begins one. Drops a record that a crash cut off. Blocks.
    pub(crate) fn load(path: &Path, seal: Seal) -> io::Result<Self> {
        let mut table =
            Self { log: open(path)?, path: path.to_owned(), end: 0, count: 0, seal, records: HashMap::new() };
        table.read()?;
        table.log.set_len(table.end)?;
        table.shorten()?;
        Ok(table)
    }

    /// Rewrites the log, if most of it is unused.
    fn shorten(&mut self) -> io::Result<()> {
        if self.count <= MANY || self.count <= 2 * self.records.len() {
            return Ok(());
        }
        let aside = self.path.with_extension("new");
        let mut log = open(&aside)?;
        log.set_len(0)?;
        let (mut bytes, mut records) = (Vec::new(), HashMap::with_capacity(self.records.len()));
        for (hash, (at, check)) in &self.records {
            records.insert(*hash, (bytes.len() as u64, *check));
            bytes.extend(self.record(*at)?);
        }
        log.write_all(&bytes)?;
        log.sync_all()?;
        std::fs::rename(&aside, &self.path)?;
        (self.log, self.end, self.count, self.records) = (log, bytes.len() as u64, records.len(), records);
        Ok(())
    }

    /// Reads all records.
    fn read(&mut self) -> io::Result<()> {
        let mut log = BufReader::with_capacity(1 << 20, self.log.try_clone()?);
        loop {
            let mut record = vec![0; HEAD];
            if !fill(&mut log, &mut record)? {
                return Ok(());
            }
            record.resize(HEAD + name_len(&record) + CHECK, 0);
            if !fill(&mut log, &mut record[HEAD..])? {
                return Ok(());
            }
            let (body, check) = record.split_at(record.len() - CHECK);
            if check != self.check(body).to_le_bytes() {
                return Ok(());
            }
            let (hash, check) = (self.seal.hash(&body[2..18]), self.check(body));
            self.appended(hash, check, record.len());
        }
    }

    /// Records that a file is in `directory` by this name.
    ///
    /// # Errors
    /// Those of writing the log. Then the record is as it was.
    pub(crate) fn put(&mut self, key: Key, directory: Key, name: &[u8]) -> io::Result<()> {
        if name.is_empty() || name.len() > LONGEST {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.append(key, directory, name)
    }

    /// Records that a file is gone.
    ///
    /// # Errors
    /// Those of writing the log. Then the record is as it was.
    pub(crate) fn forget(&mut self, key: Key) -> io::Result<()> {
        if self.records.contains_key(&self.seal.hash(&key.bytes())) {
            self.append(key, key, b"")?;
        }
        Ok(())
    }

    fn append(&mut self, key: Key, directory: Key, name: &[u8]) -> io::Result<()> {
        let mut record = Vec::with_capacity(HEAD + name.len() + CHECK);
        record.extend((name.len() as u16).to_le_bytes());
        record.extend(key.bytes());
        record.extend(directory.bytes());
        record.extend(name);
        let check = self.check(&record);
        let hash = self.seal.hash(&key.bytes());
        if self.records.get(&hash).is_some_and(|(_, known)| *known == check) {
            return Ok(());
        }
        record.extend(check.to_le_bytes());
        self.log.write_all_at(&record, self.end)?;
        self.appended(hash, check, record.len());
        self.shorten()
    }

    /// Records a record of `len` bytes at the end of the log.
    fn appended(&mut self, hash: u64, check: u32, len: usize) {
        if len > HEAD + CHECK {
            self.records.insert(hash, (self.end, check));
        } else {
            self.records.remove(&hash);
        }
        self.end += len as u64;
        self.count += 1;
    }

    /// Directory and name at which a file was seen last.
    pub(crate) fn get(&self, key: Key) -> Option<Place> {
        let (at, _) = self.records.get(&self.seal.hash(&key.bytes()))?;
        let record = self.record(*at).ok()?;
        if record[2..18] != key.bytes() {
            return None;
        }
        let directory = Key::from_bytes(record[18..HEAD].try_into().ok()?);
        Some(Place { directory, name: record[HEAD..record.len() - CHECK].to_vec() })
    }

    fn record(&self, at: u64) -> io::Result<Vec<u8>> {
        let mut record = vec![0; HEAD];
        self.log.read_exact_at(&mut record, at)?;
        record.resize(HEAD + name_len(&record) + CHECK, 0);
        self.log.read_exact_at(&mut record[HEAD..], at + HEAD as u64)?;
        Ok(record)
    }

    fn check(&self, body: &[u8]) -> u32 {
        self.seal.hash(body) as u32
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn name_len(head: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([head[0], head[1]]))
}

/// Reads all of `bytes`. False at the end of the file.
fn fill(log: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match log.read_exact(bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        other => other.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(inode: u64) -> Key {
        Key { inode, birth: 7 }
    }

    #[test]
    fn the_last_record_of_a_file_counts_after_a_restart_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("places");
        let seal = Seal::load(&directory.path().join("key")).unwrap();
        let mut table = Table::load(&path, seal).unwrap();
        table.put(key(5), key(2), b"a").unwrap();
        table.put(key(6), key(2), b"other").unwrap();
        table.put(key(5), key(3), b"moved").unwrap();
        let len = std::fs::metadata(&path).unwrap().len();
        table.put(key(5), key(3), b"moved").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), len, "known already");
        drop(table);
        // A record that a crash cut off.
        let log = OpenOptions::new().append(true).open(&path).unwrap();
        (&log).write_all(&[9, 0, 1, 2, 3]).unwrap();
        let mut table = Table::load(&path, seal).unwrap();
        assert_eq!(table.get(key(5)).unwrap(), Place { directory: key(3), name: b"moved".to_vec() });
        assert_eq!(table.get(key(6)).unwrap().name, b"other");
        assert_eq!(table.get(Key { inode: 5, birth: 8 }), None, "another file with that number");
        table.put(key(7), key(2), b"behind it").unwrap();
        drop(table);
        assert_eq!(Table::load(&path, seal).unwrap().get(key(7)).unwrap().name, b"behind it");
    }

    #[test]
    fn a_log_of_old_records_is_written_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("places");
        let seal = Seal::load(&directory.path().join("key")).unwrap();
        let mut table = Table::load(&path, seal).unwrap();
        for n in 0..10_000u64 {
            table.put(key(n % 100), key(1), format!("name {n}").as_bytes()).unwrap();
        }
        assert!(std::fs::metadata(&path).unwrap().len() < 5000 * 60);
        assert_eq!(table.get(key(99)).unwrap().name, b"name 9999");
        drop(table);
        let mut table = Table::load(&path, seal).unwrap();
        assert_eq!(table.get(key(99)).unwrap().name, b"name 9999");
        table.forget(key(99)).unwrap();
        assert_eq!(table.get(key(99)), None);
        drop(table);
        let table = Table::load(&path, seal).unwrap();
        assert_eq!(table.get(key(99)), None);
        drop(table);
        assert_eq!(Table::load(&path, seal).unwrap().get(key(0)).unwrap().name, b"name 9900");
    }
}
