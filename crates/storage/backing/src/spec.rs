//! The configuration of a unit's medium, from the command line or the file, and how to open it.
//!
//! Owns the store's options and their names; the caller owns the grammar around them
//! (`PATH,option,…`, TOML tables).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use super::engine::Engine;
use super::file::{FileOptions, FileStore, OpenError};
use super::memory::MemoryStore;
use super::size::{Size, SizeError, parse_size};
use super::{BlockStore, Geometry};

/// Ways in which writes reach the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// Through the page cache; a write is durable after FUA or SYNCHRONIZE CACHE (WCE=1). The
    /// default for files.
    WriteBack,
    /// Through the page cache; every write is durable before it is acknowledged (WCE=0).
    WriteThrough,
    /// Bypasses the page cache (O_DIRECT). The medium's own cache is still volatile, so a write is
    /// durable after FUA or SYNCHRONIZE CACHE (WCE=1). The default for block devices.
    Direct,
}

impl CacheMode {
    /// The initial WCE of the caching mode page. With WCE=0 the unit requests durable writes.
    pub const fn write_cache(self) -> bool {
        !matches!(self, Self::WriteThrough)
    }
}

impl fmt::Display for CacheMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteBack => "writeback",
            Self::WriteThrough => "writethrough",
            Self::Direct => "direct",
        })
    }
}

impl FromStr for CacheMode {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "writeback" => Ok(Self::WriteBack),
            "writethrough" => Ok(Self::WriteThrough),
            "direct" => Ok(Self::Direct),
            _ => Err(SpecError::Cache(text.to_owned())),
        }
    }
}

/// The location of the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A regular file or a block device.
    File(PathBuf),
    /// `mem:SIZE`: this many bytes of memory.
    Memory(u64),
}

/// The error in a store's description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The path is empty.
    #[error("the path is empty: name a file, a block device, or mem:SIZE")]
    NoPath,
    /// A size is invalid.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A size is 0.
    #[error("a size of 0 leaves no disk: write a size such as 1G")]
    NoSize,
    /// The cache mode is unknown.
    #[error("`{0}` is not a cache mode: write writeback, writethrough or direct")]
    Cache(String),
    /// The engine is unknown.
    #[error("`{0}` is not an engine: write {names}", names = engine_names())]
    Engine(String),
    /// The block size is invalid.
    #[error("`{0}` is not a block size: write 512, 1024, 2048 or 4096")]
    BlockSize(String),
    /// A switch is neither on nor off.
    #[error("`{value}` is neither on nor off: write {key}=on or {key}=off")]
    Switch {
        /// The name of the option.
        key: &'static str,
        value: String,
    },
    /// An option needs a value.
    #[error("`{key}` needs a value: write {key}={example}")]
    NoValue {
        /// The name of the option.
        key: &'static str,
        example: &'static str,
    },
    /// A memory store has an option that only files support.
    #[error("`{0}` is for files and block devices, not for mem:")]
    NotForMemory(&'static str),
}

/// The description of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSpec {
    /// The location of the bytes.
    pub source: Source,
    /// `size=`: a missing file is created with this many bytes, sparse; an existing one must have
    /// them.
    pub size: Option<u64>,
    /// `cache=`: `None` for the default of the medium.
    pub cache: Option<CacheMode>,
    /// `engine=`: the system calls that read and write a file. `None`: the fastest measured for the
    /// cache mode.
    pub engine: Option<Engine>,
    /// `thin=`: whether deallocated ranges free space. `None`: if the medium supports it.
    pub thin: Option<bool>,
    /// `bs=`: the logical block size in bytes. `None`: 512, or the sector of a direct medium if
    /// that is larger.
    pub block_size: Option<u32>,
    /// `ro`: opens for reading only.
    pub read_only: bool,
    /// Maximum memory of a thin store in memory, bytes; `None` for its whole size. Ignored for
    /// files.
    pub quota: Option<u64>,
}

/// An open store and the settings in use.
#[derive(Clone)]
pub struct Opened {
    /// The store itself, shared by all cores.
    pub store: Arc<dyn BlockStore>,
    /// The unit's logical block size in bytes.
    pub block_size: u32,
    /// The cache mode in use.
    pub cache: CacheMode,
    /// The block sizes of the medium.
    pub geometry: Geometry,
}

impl StoreSpec {
    /// The names of the options that [`Self::set`] knows, each with its value and meaning.
    pub const OPTIONS: [(&'static str, &'static str); 6] = [
        ("size", "SIZE: create the file with this size if it does not exist"),
        ("cache", "writeback|writethrough|direct: when a write is durable"),
        (
            "engine",
            "uring|fixed|inline|mmap|sendpage|threads|sync: by which calls a file is read and written",
        ),
        ("thin", "on|off: whether deallocated blocks give space back"),
        ("bs", "512|1024|2048|4096: bytes in a logical block"),
        ("ro", "read-only"),
    ];

    /// Reads a path or `mem:SIZE`. Write `./mem:…` for a file whose name begins with `mem:`.
    ///
    /// # Errors
    /// The text is empty, or no size follows `mem:`.
    pub fn parse(source: &str) -> Result<Self, SpecError> {
        let source = match source.strip_prefix("mem:") {
            Some(size) => Source::Memory(size_of(size)?),
            None if source.is_empty() => return Err(SpecError::NoPath),
            None => Source::File(PathBuf::from(source)),
        };
        Ok(Self {
            source,
            size: None,
            cache: None,
            engine: None,
            thin: None,
            block_size: None,
            read_only: false,
            quota: None,
        })
    }

    /// Sets an option by its name. `Ok(false)` if the store has no such option, so that the caller
    /// can try others.
    ///
    /// # Errors
    /// The value does not fit the option; the text says what to write.
    pub fn set(&mut self, key: &str, value: Option<&str>) -> Result<bool, SpecError> {
        let need = |key, example| value.ok_or(SpecError::NoValue { key, example });
        let memory = matches!(self.source, Source::Memory(_));
        match key {
            "size" if memory => return Err(SpecError::NotForMemory("size")),
            "cache" if memory => return Err(SpecError::NotForMemory("cache")),
            "engine" if memory => return Err(SpecError::NotForMemory("engine")),
            "size" => self.size = Some(size_of(need("size", "1G")?)?),
            "cache" => self.cache = Some(need("cache", "writeback")?.parse()?),
            "engine" => self.engine = Some(need("engine", "uring")?.parse()?),
            "thin" => self.thin = Some(switch("thin", value)?),
            "bs" => {
                let text = need("bs", "4096")?;
                let size = parse_size(text).ok().filter(|size| [512, 1024, 2048, 4096].contains(size));
                self.block_size = Some(size.ok_or_else(|| SpecError::BlockSize(text.to_owned()))? as u32);
            }
            "ro" => self.read_only = switch("ro", value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Opens the store. Blocks on the medium: use it only at start-up, not on the data path.
    ///
    /// # Errors
    /// An [`OpenError`] whose text names the path and what to do.
    pub fn open(&self) -> Result<Opened, OpenError> {
        match &self.source {
            Source::Memory(size) => {
                let store = match self.quota {
                    Some(quota) => MemoryStore::with_quota(*size, quota),
                    None => MemoryStore::new(*size, self.thin.unwrap_or(true)),
                };
                let store = store.map_err(|source| OpenError::Memory { size: *size, source })?;
                let geometry = store.geometry();
                let store: Arc<dyn BlockStore> = match self.read_only {
                    true => Arc::new(super::ReadOnly(store)),
                    false => Arc::new(store),
                };
                let block_size = self.block_size.unwrap_or(DEFAULT_BLOCK_SIZE);
                Ok(Opened { store, block_size, cache: CacheMode::WriteBack, geometry })
            }
            Source::File(path) => {
                let options = FileOptions {
                    size: self.size,
                    cache: self.cache,
                    engine: self.engine,
                    thin: self.thin,
                    block_size: self.block_size,
                    read_only: self.read_only,
                    log: false,
                };
                let store = FileStore::open(path, &options)?;
                let (block_size, cache, geometry) = (store.block_size(), store.cache(), store.geometry());
                Ok(Opened { store: Arc::new(store), block_size, cache, geometry })
            }
        }
    }
}

/// The default logical block size, bytes.
pub(crate) const DEFAULT_BLOCK_SIZE: u32 = 512;

/// The names of all engines, as a list within a sentence.
pub(crate) fn engine_names() -> String {
    let names = Engine::ALL.map(|(engine, _)| engine.name());
    let (last, others) = names.split_last().unwrap_or((&"", &[]));
    format!("{} or {last}", others.join(", "))
}

fn size_of(text: &str) -> Result<u64, SpecError> {
    match parse_size(text)? {
        0 => Err(SpecError::NoSize),
        size => Ok(size),
    }
}

fn switch(key: &'static str, value: Option<&str>) -> Result<bool, SpecError> {
    match value {
        None | Some("on" | "yes" | "true" | "1") => Ok(true),
        Some("off" | "no" | "false" | "0") => Ok(false),
        Some(value) => Err(SpecError::Switch { key, value: value.to_owned() }),
    }
}

impl fmt::Display for StoreSpec {
    /// In the syntax of the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::File(path) => write!(f, "{}", path.display())?,
            Source::Memory(size) => write!(f, "mem:{}", Size(*size))?,
        }
        if let Some(size) = self.size {
            write!(f, ",size={}", Size(size))?;
        }
        if let Some(cache) = self.cache {
            write!(f, ",cache={cache}")?;
        }
        if let Some(engine) = self.engine {
            write!(f, ",engine={engine}")?;
        }
        if let Some(thin) = self.thin {
            write!(f, ",thin={}", if thin { "on" } else { "off" })?;
        }
        if let Some(block) = self.block_size {
            write!(f, ",bs={block}")?;
        }
        if self.read_only {
            f.write_str(",ro")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreError;
    use crate::testing::now;

    fn spec(text: &str) -> Result<StoreSpec, SpecError> {
        let mut parts = text.split(',');
        let mut spec = StoreSpec::parse(parts.next().unwrap_or(""))?;
        for part in parts {
            let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
            assert!(spec.set(key, value)?, "{key}");
        }
        Ok(spec)
    }

    #[test]
    fn what_is_written_is_what_is_shown() {
        for text in [
            "mem:1G",
            "/dev/sdb",
            "a.img,size=1536M,cache=direct,engine=uring,thin=off,bs=4096,ro",
            "mem:1000,thin=on,ro",
        ] {
            assert_eq!(spec(text).unwrap().to_string(), text);
        }
        assert_eq!(spec("./mem:1G").unwrap().source, Source::File("./mem:1G".into()));
    }

    #[test]
    fn wrong_options_are_refused_with_what_to_write() {
        for (text, hint) in [
            ("", "mem:SIZE"),
            ("mem:0", "such as 1G"),
            ("mem:lots", "number and a unit"),
            ("a,size", "size=1G"),
            ("a,cache=none", "writeback, writethrough or direct"),
            ("a,engine=fast", "write uring, fixed"),
            ("a,bs=520", "512, 1024"),
            ("a,thin=maybe", "thin=on or thin=off"),
            ("mem:1G,size=2G", "not for mem:"),
            ("mem:1G,engine=uring", "not for mem:"),
        ] {
            let message = spec(text).unwrap_err().to_string();
            assert!(message.contains(hint), "{text}: {message}");
        }
        assert_eq!(StoreSpec::parse("a").unwrap().set("serial", Some("1")), Ok(false));
    }

    #[test]
    fn a_memory_store_opens_as_described() {
        let opened = spec("mem:1M,bs=4096").unwrap().open().unwrap();
        assert_eq!((opened.store.size(), opened.block_size, opened.store.thin()), (1 << 20, 4096, true));
        now(opened.store.write(0, vec![1; 4096].into(), false)).unwrap();
        let opened = spec("mem:1M,ro,thin=off").unwrap().open().unwrap();
        assert!(!opened.store.writable() && !opened.store.thin());
        assert_eq!(now(opened.store.write(0, vec![1; 512].into(), false)), Err(StoreError::ReadOnly));
        assert_eq!(now(opened.store.discard(0, 512)), Err(StoreError::ReadOnly));
        assert_eq!(now(opened.store.read(0, 512)).unwrap().to_vec(), vec![0; 512]);
    }

    #[test]
    fn a_memory_store_beyond_the_address_space_is_refused() {
        assert!(matches!(spec("mem:1000000T").unwrap().open(), Err(OpenError::Memory { .. })));
    }
}
