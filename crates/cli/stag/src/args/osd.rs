//! `stag osd`: objects of an object-based storage device, as clap sees them.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::Connect;
use super::place::{Object, Offline, Where};

/// Work with objects: an object-based storage device (T10 OSD-2)
#[derive(Clone, Debug, Args)]
#[command(long_about = "Work with objects: an object-based storage device (T10 OSD-2).\n\n\
    A device has partitions, and a partition has objects. An object has an id, bytes and attributes; collections can list it. A URL \
    extends that of a unit: iscsi://HOST[:PORT]/IQN/LUN/PARTITION/OBJECT, or iser:// for RDMA. PARTITION is an id, \
    decimal or 0x… hexadecimal. OBJECT is an id too, or a path in the partition's tree of files: DIR/FILE. Write a path that \
    looks like an id as ./4711.")]
#[command(after_long_help = EXAMPLES)]
pub struct Osd {
    /// What to do.
    #[command(subcommand)]
    pub command: OsdCommand,
}

const EXAMPLES: &str = "\
Examples:
  stag serve osd:/var/lib/stag/objects
  stag osd mkpart iscsi://localhost/iqn.2026-01.org.example:disks/0 --name attic
  stag osd put -r ~/photos iscsi://localhost/iqn.2026-01.org.example:disks/0/0x10000
  stag osd ls -l iscsi://localhost/iqn.2026-01.org.example:disks/0/0x10000
  stag osd get -r iser://localhost/iqn.2026-01.org.example:disks/0/0x10000 /tmp/photos";

/// What `stag osd` does.
#[derive(Clone, Debug, Subcommand)]
pub enum OsdCommand {
    // Each is described at its arguments.
    Format(Format),
    Mkpart(Mkpart),
    Rmpart(Rmpart),
    Ls(Ls),
    Put(Put),
    Get(Get),
    Rm(Rm),
    Stat(Stat),
    Attr(Attr),
    Find(Find),
    Coll(Coll),
    Snapshot(Snapshot),
    Check(Check),
    Keys(Keys),
    Grant(Grant),
    Bench(Box<super::osd_bench::OsdBench>),
}

/// How to reach the device.
#[derive(Clone, Debug, Args)]
pub struct Reach {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Credential from `stag osd grant`, for a device with security
    #[arg(long, value_name = "FILE", env = "STAG_OSD_CREDENTIAL")]
    pub credential: Option<PathBuf>,
    #[command(flatten)]
    pub connect: Connect,
}

/// How much at once, and what is told meanwhile.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Transfer")]
pub struct Flow {
    /// Commands in flight
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
    /// Hide the progress line, which is shown only on a terminal and after a second
    #[arg(short, long)]
    pub quiet: bool,
}

/// Erase everything on a device
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag osd format --destroy iscsi://192.0.2.1/iqn.2026-01.org.example:osd/0\n  stag osd format --destroy --capacity 100G URL"
)]
pub struct Format {
    /// The device: iscsi://HOST[:PORT]/IQN/LUN
    #[arg(value_name = "URL")]
    pub url: Where,
    /// Bytes that objects may use [default: all]
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    pub capacity: Option<u64>,
    /// Permit the destruction of all data
    #[arg(long, required = true)]
    pub destroy: bool,
    #[command(flatten)]
    pub reach: Reach,
}

/// Create a partition, and print its id
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag osd mkpart iscsi://192.0.2.1/iqn.2026-01.org.example:osd/0\n  stag osd mkpart --name attic --capacity 10G --objects 1000000 URL/0x20000"
)]
pub struct Mkpart {
    /// The device, with the partition's id [default: the device chooses one]
    #[arg(value_name = "URL")]
    pub url: Where,
    /// Its name
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Quota of bytes
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    pub capacity: Option<u64>,
    /// Quota of objects
    #[arg(long, value_name = "N")]
    pub objects: Option<u64>,
    #[command(flatten)]
    pub reach: Reach,
}

/// Remove a partition
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag osd rmpart URL/0x10000\n  stag osd rmpart -r URL/0x10000     (with all that it holds)"
)]
pub struct Rmpart {
    /// The partition
    #[arg(value_name = "URL")]
    pub url: Where,
    /// Also remove its contents
    #[arg(short, long)]
    pub recursive: bool,
    #[command(flatten)]
    pub reach: Reach,
}

/// List partitions, directories, collections or objects
#[derive(Clone, Debug, Args)]
#[command(long_about = "List partitions, directories, collections or objects.\n\n\
    Lists the partitions of a device, the top of a partition's tree (--objects and --collections list all its contents by id), \
    the contents of a directory, or the members of a collection.")]
#[command(
    after_long_help = "Examples:\n  stag osd ls URL\n  stag osd ls -l URL/0x10000/photos\n  stag osd ls -r URL/0x10000\n  stag osd ls --objects --json URL/0x10000 | jq '.[].id'"
)]
pub struct Ls {
    /// A device, partition, directory or collection
    #[arg(value_name = "URL")]
    pub url: Where,
    /// Show kind, mode, owner, size and time
    #[arg(short, long)]
    pub long: bool,
    /// List all directories below too
    #[arg(short, long, conflicts_with_all = ["objects", "collections"])]
    pub recursive: bool,
    /// All objects of the partition, by id
    #[arg(long)]
    pub objects: bool,
    /// All collections of the partition, by id
    #[arg(long, conflicts_with = "objects")]
    pub collections: bool,
    #[command(flatten)]
    pub reach: Reach,
}

/// Put a file, a tree or stdin into a partition
#[derive(Clone, Debug, Args)]
#[command(long_about = "Put a file, a tree or stdin into a partition.\n\n\
    With -r, copies the contents of the directory FROM into the directory of the URL, and creates it if missing: names, modes, \
    owners, times, symlinks, hard links, holes and extended attributes. Without -r, a file gets the path in the URL, or its own name \
    in that directory; if the URL names an object by id, only its bytes are replaced. Each file \
    appears whole or not at all, and replaces one of the same name. Ends when all data is on the medium, unless --no-sync.")]
#[command(
    after_long_help = "Examples:\n  stag osd put report.pdf URL/0x10000\n  stag osd put -r /home/me URL/0x10000/home\n  tar c . | stag osd put - URL/0x10000/backup.tar\n  stag osd put - URL/0x10000 < data     (prints the new object's id)"
)]
pub struct Put {
    /// A file, a directory, or - for stdin
    #[arg(value_name = "FROM")]
    pub from: PathBuf,
    /// The destination
    #[arg(value_name = "URL")]
    pub url: Where,
    /// The whole contents of a directory
    #[arg(short, long)]
    pub recursive: bool,
    /// Do not wait for the data to reach the medium
    #[arg(long)]
    pub no_sync: bool,
    #[command(flatten)]
    pub flow: Flow,
    #[command(flatten)]
    pub reach: Reach,
}

/// Get an object or a tree
#[derive(Clone, Debug, Args)]
#[command(long_about = "Get an object or a tree.\n\n\
    With -r, copies the contents of the directory of the URL into the directory TO, and creates it if missing. \
    Sets owners as far as this user may; replaces existing files. Without -r, copies an object's bytes to a file, or to \
    stdout.")]
#[command(
    after_long_help = "Examples:\n  stag osd get URL/0x10000/report.pdf\n  stag osd get URL/0x10000/0x10004 -\n  stag osd get -r URL/0x10000/home /tmp/home"
)]
pub struct Get {
    /// The object or directory
    #[arg(value_name = "URL")]
    pub url: Where,
    /// The destination, - for stdout [default: its own name in this directory]
    #[arg(value_name = "TO")]
    pub to: Option<PathBuf>,
    /// The whole contents of a directory
    #[arg(short, long)]
    pub recursive: bool,
    /// First byte
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = super::size, conflicts_with = "recursive")]
    pub offset: u64,
    /// Number of bytes [default: to the end]
    #[arg(long, value_name = "SIZE", value_parser = super::size, conflicts_with = "recursive")]
    pub length: Option<u64>,
    #[command(flatten)]
    pub flow: Flow,
    #[command(flatten)]
    pub reach: Reach,
}

/// Remove objects
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag osd rm URL/0x10000/report.pdf URL/0x10000/0x10004\n  stag osd rm -r URL/0x10000/home\n  stag osd rm --unfinished URL/0x10000     (left by a killed put)"
)]
pub struct Rm {
    /// Objects or directories
    #[arg(value_name = "URL", required = true)]
    pub urls: Vec<Where>,
    /// Directories too, with their contents
    #[arg(short, long)]
    pub recursive: bool,
    /// Ignore missing objects
    #[arg(short, long)]
    pub force: bool,
    /// In a partition: unfinished objects of a put that was killed or lost its session
    #[arg(long, conflicts_with_all = ["recursive", "force"])]
    pub unfinished: bool,
    /// With --unfinished: only objects begun at least this long ago, hours; choose more than your
    /// longest put
    #[arg(long, default_value_t = 24, value_name = "HOURS", requires = "unfinished")]
    pub hours: u32,
    #[command(flatten)]
    pub flow: Flow,
    #[command(flatten)]
    pub reach: Reach,
}

/// Show all facts about a device, a partition, a collection or an object
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag osd stat URL\n  stag osd stat URL/0x10000\n  stag osd stat --json URL/0x10000/report.pdf | jq .length"
)]
pub struct Stat {
    /// A device, partition, collection or object
    #[arg(value_name = "URL")]
    pub url: Where,
    /// Also show the ranges of data and holes (READ MAP)
    #[arg(long)]
    pub map: bool,
    #[command(flatten)]
    pub reach: Reach,
}

/// Get, set, list and remove attributes
#[derive(Clone, Debug, Args)]
#[command(long_about = "Get, set, list and remove attributes.\n\n\
    An attribute is PAGE:NUMBER, both hexadecimal; U+1, P+1, C+1 and R+1 are page 1 of user objects, partitions, collections and the root. \
    Those of the standard have names too: name, length, used, created, capacity-quota, … (`stag osd attr names`). A value is hex:00ff, \
    u8:, u16:, u32:, u64: with a number, or text.")]
#[command(
    after_long_help = "Examples:\n  stag osd attr list URL/0x10000/report.pdf\n  stag osd attr get URL/0x10000/0x10004 name length\n  stag osd attr set URL/0x10000 name=attic capacity-quota=u64:1000000\n  stag osd attr set URL/0x10000/0x10004 10000:1='any text' 10000:2=hex:cafe\n  stag osd attr rm URL/0x10000/0x10004 10000:1\n  stag osd attr names"
)]
pub struct Attr {
    /// What to do.
    #[command(subcommand)]
    pub command: AttrCommand,
}

/// What `stag osd attr` does.
#[derive(Clone, Debug, Subcommand)]
pub enum AttrCommand {
    /// Show the named attributes
    Get(AttrSome),
    /// Show all attributes of an object
    List(AttrAll),
    /// Set attributes, all or none of them
    Set(AttrSome),
    /// Remove the named attributes
    Rm(AttrSome),
    /// Show the names of attributes
    Names,
}

/// Attributes of an object, by name.
#[derive(Clone, Debug, Args)]
pub struct AttrSome {
    /// The object, partition or collection
    #[arg(value_name = "URL")]
    pub url: Where,
    /// PAGE:NUMBER or a name; for set, followed by =VALUE
    #[arg(value_name = "ATTRIBUTE", required = true)]
    pub attributes: Vec<String>,
    /// Print only the value, unformatted
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
    /// Apply to all members of the collection
    #[arg(long)]
    pub members: bool,
    #[command(flatten)]
    pub reach: Reach,
}

/// All attributes of an object.
#[derive(Clone, Debug, Args)]
pub struct AttrAll {
    /// The object, partition or collection
    #[arg(value_name = "URL")]
    pub url: Where,
    #[command(flatten)]
    pub reach: Reach,
}

/// Find objects by their attributes
#[derive(Clone, Debug, Args)]
#[command(long_about = "Find objects by their attributes (QUERY).\n\n\
    The device searches the whole partition, or one directory or collection, for objects whose attributes lie in the given ranges: \
    in all of them, or with --any in at least one. A range is ATTRIBUTE=VALUE or ATTRIBUTE=MIN..MAX; either end is optional. Values \
    compare as bytes, the shorter one first. `stag osd attr --help` explains ATTRIBUTE and VALUE.")]
#[command(
    after_long_help = "Examples:\n  stag osd find URL/0x10000 --name report.pdf\n  stag osd find URL/0x10000 length=u64:1048576..\n  stag osd find URL/0x10000/photos --any 10000:1=red 10000:1=blue\n  stag osd find --into 0 URL/0x10000 length=u64:0     (into a new collection)"
)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["ranges", "name"]))]
pub struct Find {
    /// A partition, a directory or a collection
    #[arg(value_name = "URL")]
    pub url: Where,
    /// Ranges of attributes
    #[arg(value_name = "ATTRIBUTE=RANGE")]
    pub ranges: Vec<String>,
    /// Files of this name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// One range is enough
    #[arg(long)]
    pub any: bool,
    /// Add the objects found to this collection; 0 creates one and prints its id
    #[arg(long, value_name = "ID", value_parser = super::place::id_or_none)]
    pub into: Option<u64>,
    #[command(flatten)]
    pub reach: Reach,
}

/// Make and remove collections, and change their members
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag osd coll make --name best URL/0x10000\n  stag osd coll add URL/0x10000/0x10007 URL/0x10000/0x10004 URL/0x10000/0x10005\n  stag osd ls URL/0x10000/0x10007\n  stag osd coll empty URL/0x10000/0x10007     (removes its members from the device)\n  stag osd coll rm --force URL/0x10000/0x10007"
)]
pub struct Coll {
    /// What to do.
    #[command(subcommand)]
    pub command: CollCommand,
}

/// What `stag osd coll` does.
#[derive(Clone, Debug, Subcommand)]
pub enum CollCommand {
    /// Create a collection, and print its id
    Make {
        /// The partition, with the id [default: the device chooses one]
        #[arg(value_name = "URL")]
        url: Where,
        /// Its name
        #[arg(long, value_name = "TEXT")]
        name: Option<String>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Add objects to a collection
    Add(Members),
    /// Take objects out of a collection; they stay on the device
    Take(Members),
    /// Remove all members of a collection from the device
    Empty {
        /// The collection
        #[arg(value_name = "URL")]
        url: Where,
        #[command(flatten)]
        reach: Reach,
    },
    /// Remove a collection
    Rm {
        /// The collection
        #[arg(value_name = "URL")]
        url: Where,
        /// Even if it has members, which stay on the device
        #[arg(short, long)]
        force: bool,
        #[command(flatten)]
        reach: Reach,
    },
}

/// A collection and objects.
#[derive(Clone, Debug, Args)]
pub struct Members {
    /// The collection
    #[arg(value_name = "COLLECTION")]
    pub collection: Where,
    /// Objects of the same partition
    #[arg(value_name = "URL", required = true)]
    pub objects: Vec<Where>,
    #[command(flatten)]
    pub reach: Reach,
}

/// Make and use snapshots and clones of partitions
#[derive(Clone, Debug, Args)]
#[command(long_about = "Make and use snapshots and clones of partitions.\n\n\
    A snapshot is a partition that keeps the present state of another one; a clone is a writable one. Neither copies data: identical \
    data is stored once.")]
#[command(
    after_long_help = "Examples:\n  stag osd snapshot create URL/0x10000\n  stag osd snapshot clone URL/0x10000 0x30000\n  stag osd snapshot diff URL/0x10000/report.pdf 0x20000\n  stag osd snapshot restore URL/0x10000 0x20000\n  stag osd snapshot refresh URL/0x20000\n  stag osd snapshot detach URL/0x30000"
)]
pub struct Snapshot {
    /// What to do.
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

/// What `stag osd snapshot` does.
#[derive(Clone, Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Make a snapshot, and print its id
    Create(Duplicate),
    /// Make a clone, and print its id
    Clone(Duplicate),
    /// Bring a snapshot or clone to the present state of its partition
    Refresh(OnePartition),
    /// Return a partition to the state of its snapshot
    Restore {
        /// The partition
        #[arg(value_name = "URL")]
        url: Where,
        /// The snapshot's id
        #[arg(value_name = "ID", value_parser = super::place::id)]
        snapshot: u64,
        #[command(flatten)]
        reach: Reach,
    },
    /// Turn a clone into an independent partition
    Detach(OnePartition),
    /// Show where an object's bytes differ from the same object in another partition
    Diff {
        /// The object
        #[arg(value_name = "URL")]
        url: Where,
        /// The other partition's id
        #[arg(value_name = "ID", value_parser = super::place::id)]
        other: u64,
        #[command(flatten)]
        reach: Reach,
    },
}

/// A partition, and the id of what is made of it.
#[derive(Clone, Debug, Args)]
pub struct Duplicate {
    /// The partition
    #[arg(value_name = "URL")]
    pub url: Where,
    /// Id of the new partition [default: the device chooses one]
    #[arg(value_name = "ID", value_parser = super::place::id)]
    pub id: Option<u64>,
    #[command(flatten)]
    pub reach: Reach,
}

/// A partition.
#[derive(Clone, Debug, Args)]
pub struct OnePartition {
    /// The partition
    #[arg(value_name = "URL")]
    pub url: Where,
    #[command(flatten)]
    pub reach: Reach,
}

/// Check the structures of objects, and repair damage
#[derive(Clone, Debug, Args)]
#[command(long_about = "Check the structures of objects, and repair damage.\n\n\
    For a directory that is not being served, reads every structure of the store and compares them; --repair repairs what it can, \
    and reports losses. For a URL, the device checks itself (OBJECT STRUCTURE CHECK) while it serves. Exits with status 1 if \
    something is wrong, even if repaired.")]
#[command(
    after_long_help = "Examples:\n  stag osd check /var/lib/stag/objects\n  stag osd check --repair /var/lib/stag/objects\n  stag osd check URL/0x10000"
)]
pub struct Check {
    /// The directory, or the URL of a device or a partition
    #[arg(value_name = "DIR|URL")]
    pub place: Offline,
    /// Repair damage
    #[arg(long)]
    pub repair: bool,
    #[command(flatten)]
    pub reach: Reach,
}

impl Where {
    /// The object that is meant, by id.
    pub fn object_id(&self) -> Option<u64> {
        match self.object {
            Some(Object::Id(id)) => Some(id),
            _ => None,
        }
    }
}

/// A security method
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MethodArg {
    /// No proof
    Nosec,
    /// Proves that the client has the capability's key; needs a trusted network
    Capkey,
    /// Proves that the command is the client's, and new
    Cmdrsp,
    /// Proves that the data is the client's too
    Alldata,
}

impl From<MethodArg> for osd::security::Method {
    fn from(method: MethodArg) -> Self {
        match method {
            MethodArg::Nosec => Self::NoSec,
            MethodArg::Capkey => Self::CapKey,
            MethodArg::Cmdrsp => Self::CmdRsp,
            MethodArg::Alldata => Self::AllData,
        }
    }
}

/// Set the keys of a device or partition, and its minimum security method
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "The first use for a device creates its master key and is not authenticated: do it before others can reach the device. \
    The file grants all rights. See docs/src/objects/security.md.\n\n\
    Examples:\n  stag osd keys URL --keys osd.keys\n  stag osd keys URL/0x10000 --keys osd.keys --demand cmdrsp\n  stag osd keys URL/0x10000 --keys osd.keys --renew     (ends all credentials of the partition)"
)]
pub struct Keys {
    /// The device, or a partition
    #[arg(value_name = "URL")]
    pub url: Where,
    /// File of the keys; created if missing
    #[arg(long, value_name = "FILE")]
    pub keys: PathBuf,
    /// The weakest security method that commands may use
    #[arg(long, value_name = "METHOD")]
    pub demand: Option<MethodArg>,
    /// Set a new working key
    #[arg(long)]
    pub renew: bool,
    #[command(flatten)]
    pub reach: Reach,
}

/// Make a credential, and print it
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag osd grant 0x10000 0 --keys osd.keys --permit read,get_attr > reader     (all objects of a partition)\n  stag osd grant 0x10000 0x10005 --keys osd.keys --permit read,write --expires 3600 --method alldata\n  stag osd grant 0x10000 --keys osd.keys --permit read,m_object,get_attr,query >> reader     (list the partition)\n  stag osd get --credential reader URL/0x10000/0x10005 -"
)]
pub struct Grant {
    /// The partition's id; 0 for the root
    #[arg(value_name = "PARTITION", value_parser = number)]
    pub partition: u64,
    /// The object's id, 0 for all objects of the partition [default: the partition itself]
    #[arg(value_name = "OBJECT", value_parser = object_id)]
    pub object: Option<Object>,
    /// File of the keys, from `stag osd keys`
    #[arg(long, value_name = "FILE")]
    pub keys: PathBuf,
    /// Permissions: read, write, get_attr, set_attr, create, remove, obj_mgmt, append, dev_mgmt,
    /// global, pol_sec, m_object, query, gbl_rem, or all
    #[arg(long, value_name = "PERMISSIONS", value_delimiter = ',', required = true)]
    pub permit: Vec<String>,
    /// The weakest security method it allows
    #[arg(long, value_name = "METHOD", value_enum, default_value = "cmdrsp")]
    pub method: MethodArg,
    /// Seconds until it expires [default: never]
    #[arg(long, value_name = "SECONDS")]
    pub expires: Option<u64>,
    /// The policy access tag that the object must have; 0 for any
    #[arg(long, value_name = "TAG", default_value_t = 0)]
    pub tag: u32,
    /// The object is a collection
    #[arg(long)]
    pub collection: bool,
}

/// A number, decimal or `0x…`.
fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| error.to_string())
}

fn object_id(text: &str) -> Result<Object, String> {
    number(text).map(Object::Id)
}
